"""Writes the table of methods: Markdown, JSON and a bar chart."""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from mural_tf.files import whole, write_whole

COLUMNS = {  # column → (title, digits)
    "well": ("well-resourced", 1),
    "under": ("under-resourced", 1),
    "none": ("no image-caption pair", 1),
    "en": ("English", 1),
    "held_out": ("held-out names, text to image, under-resourced", 1),
    "translation_well": ("translation, well-resourced", 1),
    "translation_under": ("translation, under-resourced", 1),
    "translation_none": ("translation, no image-caption pair", 1),
    "text_head_translation_well": ("translation by the text-text head, well-resourced", 1),
    "text_head_translation_under": ("by the text-text head, under-resourced", 1),
    "text_head_translation_none": ("by the text-text head, no image-caption pair", 1),
    "parameters": ("parameters", 0),
    "processor_seconds_per_step": ("processor seconds a step", 3),
    "processor_seconds": ("processor seconds of all steps", 0),
}
CHART = ("well", "under", "none")


def write_table(
    folder: pathlib.Path,
    name: str,
    results: Mapping[str, Sequence[Mapping]],
    pairs: Mapping[str, tuple[int, int]],
    held_out: Sequence[str],
) -> None:
    """Writes <name>.md, .json and, where matplotlib is installed, .png.

    Args:
      folder: made if missing.
      results: method → the numbers of each seed, {column: number or None}.
      pairs: method → (image-caption pairs, text pairs) seen in training.
      held_out: the languages without an image-caption pair.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.json", json.dumps({"results": results, "pairs": pairs}, indent=1) + "\n")
    write_whole(folder / f"{name}.md", markdown(results, pairs, held_out))
    write_chart(folder / f"{name}.png", results)


def summarize(rows: Sequence[Mapping], column: str) -> tuple[float, float] | None:
    """Returns mean and standard deviation over seeds (0 of one seed); None where a seed has no number."""
    values = [row.get(column) for row in rows]
    if None in values:
        return None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def markdown(results: Mapping, pairs: Mapping, held_out: Sequence[str]) -> str:
    """The table with mean ± standard deviation over the seeds."""
    seeds = {method: len(rows) for method, rows in results.items()}
    titles = ["method", *(title for title, _ in COLUMNS.values()), "image-caption pairs", "text pairs", "seeds"]
    lines = [
        "Mean recall (R@1, 5, 10, both directions, percent) on the emoji benchmark's test split, a drawing style not",
        f"seen in training. Languages without an image-caption pair: {', '.join(held_out)}. Translation: between the",
        "names in a language and in English, by the head that texts have for images and, where one was trained, by the",
        "head for texts; methods with text pairs have trained on these. Mean ± standard deviation over seeds; – where",
        "a method has no answer.",
        "",
        "| " + " | ".join(titles) + " |",
        "|---|" + "---:|" * (len(titles) - 1),
    ]
    for method, rows in results.items():
        cells = [_cell(summarize(rows, column), digits, seeds[method]) for column, (_, digits) in COLUMNS.items()]
        captions, texts = pairs[method]
        lines.append("| " + " | ".join([method, *cells, f"{captions:,}", f"{texts:,}", str(seeds[method])]) + " |")
    return "\n".join(lines) + "\n"


def write_chart(path: pathlib.Path, results: Mapping) -> None:
    """Draws the mean recall of each method that has one; says so and draws nothing where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        print("No chart: matplotlib is not installed.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = {method: rows for method, rows in results.items() if any(summarize(rows, column) for column in CHART)}
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.3 * len(results)), 4.0), layout="constrained")
    width = 0.8 / len(CHART)
    for place, column in enumerate(CHART):
        bars = [(index, summarize(rows, column)) for index, rows in enumerate(results.values())]
        bars = [(index, value) for index, value in bars if value is not None]
        positions = [index + (place - (len(CHART) - 1) / 2) * width for index, _ in bars]
        heights, errors = zip(*(value for _, value in bars)) if bars else ((), ())
        axes.bar(positions, heights, width, yerr=errors if any(errors) else None, capsize=2, label=COLUMNS[column][0])
    axes.set_xticks(range(len(results)), list(results), rotation=30, ha="right")
    axes.set_ylabel("mean recall, percent")
    axes.legend()
    with whole(path) as partial:
        figure.savefig(partial, format="png", dpi=150)
    pyplot.close(figure)


def _cell(value: tuple[float, float] | None, digits: int, seeds: int) -> str:
    if value is None:
        return "–"
    mean, deviation = value
    return f"{mean:,.{digits}f}" + (f" ± {deviation:.{digits}f}" if seeds > 1 and digits else "")
