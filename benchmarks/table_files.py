"""Writes the table of methods: CSV and a bar chart."""

from __future__ import annotations

import csv
import io
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from mural_tf.files import whole, write_whole

COLUMNS = {  # column → (title, digits, of which the mean over seeds is shown with one less)
    "well": ("nine well-resourced", 2),
    "under": ("twelve with captions for 3% of the emoji", 2),
    "none": ("four without captions", 2),
    "en": ("English", 2),
    "held_out": ("held-out names, text to image, sixteen", 2),
    "translation_well": ("translation, nine", 2),
    "translation_under": ("translation, twelve", 2),
    "translation_none": ("translation, four", 2),
    "text_head_translation_well": ("by the text-text head, nine", 2),
    "text_head_translation_under": ("by the text-text head, twelve", 2),
    "text_head_translation_none": ("by the text-text head, four", 2),
    "english_share": ("English among an image's first five names of all languages", 2),
    "precision": ("of these the image's own", 2),
    "styles": ("image to image, another drawing style", 2),
    "parameters": ("parameters", 0),
    "processor_seconds_per_step": ("processor seconds a step", 3),
    "processor_seconds": ("processor seconds", 0),
}
CHART = ("well", "under", "none")


def write_table(
    path: pathlib.Path, results: Mapping[str, Sequence[Mapping]], pairs: Mapping[str, tuple[int, int]]
) -> None:
    """Writes a line for each method and seed, and where matplotlib is installed a bar chart beside it.

    Args:
      path: of the CSV; its folder is made if missing.
      results: method → the numbers of each seed, {column: number or None}.
      pairs: method → (image-caption pairs, text pairs) seen in training.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    titles = [title for title, _ in COLUMNS.values()]
    writer.writerow(["method", "seed", "commit", *titles, "image-caption pairs", "text pairs"])
    for method, rows in results.items():
        for seed, row in enumerate(rows):
            numbers = [_cell(row.get(column), digits) for column, (_, digits) in COLUMNS.items()]
            writer.writerow([method, seed, row["commit"], *numbers, *pairs[method]])
    write_whole(path, text.getvalue())
    write_chart(path.with_suffix(".png"), results)


def summarize(rows: Sequence[Mapping], column: str) -> tuple[float, float] | None:
    """Returns mean and standard deviation over seeds (0 of one seed); None where a seed has no number."""
    values = [row.get(column) for row in rows]
    if None in values:
        return None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


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


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
