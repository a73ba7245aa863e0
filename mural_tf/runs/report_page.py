"""The page with which a run ends: `report.html` in its workdir, one file that can be mailed.

It shows the loss and the recall over the steps, the recall in each language next to the recall before the run
(rows of step 0 in metrics.jsonl), what the model finds and misses, data, settings, and the time of each stage.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from mural_lite import pages
from mural_lite.config import takes_features
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path, read_json, write_whole
from mural_lite.pictures import thumbnail_url
from mural_lite.remote_folders import display_name
from mural_lite.top_k import top_k
from mural_tf.analysis import errors
from mural_tf.analysis.errors import captions_of, choose_queries, evenly, find_queries
from mural_tf.evaluation.retrieval import Evaluation, encode_captions, read_pool
from mural_tf.runs.line_chart import is_finite, line_chart
from mural_tf.training.callbacks import duration
from mural_tf.training.workdir import flat, read_metrics

NAME = "report.html"
IMAGES = 300  # of the split, that the examples are searched among
EXAMPLES = 3  # found, and as many missed, in each language shown
SIDE = 96  # pixels of a thumbnail's longer side
# Shown after training on the emoji benchmark: one wish in a well-resourced and one in an under-resourced language.
EXAMPLE_QUERIES = {"emoji": ("a red heart", "moyo mwekundu"), "shapes": ("a red circle",)}
MOST = 10  # pictures that are shown for each


def write_report_page(
    workdir: pathlib.Path,
    config: ConfigDict,
    evaluation: Evaluation | None,
    embedder: Embedder | None,
    seconds: Mapping[str, float],
    searches: Mapping[str, Sequence[tuple[str, bytes]]] = {},
) -> pathlib.Path:
    """Writes the page and returns its path.

    Args:
      workdir: of a run whose training is over.
      config: the run's.
      evaluation: of its last step; `None`: nothing was evaluated.
      embedder: reads the examples' captions; None: they are left out.
      seconds: stage → its time.
      searches: what `find_examples` found.
    """
    rows = read_metrics(workdir)
    page = pages.render(
        pathlib.Path(__file__).with_name("report.html"),
        title=f"{config.model}, {config.train.steps:,} steps",
        place=display_name(workdir),
        recall=None if evaluation is None else _summary(rows, evaluation),
        charts={
            "Loss over the steps": line_chart(_losses(rows), "loss over steps"),
            "Recall over the steps": line_chart(_recalls(rows), "mean recall, %, over steps"),
        },
        languages=[] if evaluation is None else _by_language(rows, evaluation),
        searches={
            sentence: [(thumbnail_url(picture, SIDE), name) for name, picture in pictures]
            for sentence, pictures in searches.items()
        },
        examples=None if evaluation is None or embedder is None else _examples(evaluation, embedder, config),
        data=_data(config),
        seconds={stage: duration(value) for stage, value in seconds.items()},
        settings=_settings(workdir, config),
        share=lambda value, top: f"{100 * value / top:.1f}%",
    )
    write_whole(workdir / NAME, page)
    return workdir / NAME


# Numbers.


def training_seconds(rows: Iterable[Mapping]) -> float:
    """Returns the time of all training steps in rows of metrics.jsonl, interruptions left out."""
    total = before = 0
    for row in rows:
        if "train/seconds_per_step" in row:
            total += max(row["step"] - before, 0) * row["train/seconds_per_step"]
            before = row["step"]
    return float(total)


def _summary(rows: list[dict], evaluation: Evaluation) -> dict[str, object]:
    """The table of groups, with a column of the recalls before the run where they were measured."""
    source = _of_step(rows, evaluation.name, 0)
    heads = ["group", "languages", "mean recall, %", *(["before this run, %"] if source else [])]
    lines = []
    for group, members in {**evaluation.groups, "all": evaluation.sizes}.items():
        key = f"{evaluation.name}/{group}/mean_recall"
        numbers = [evaluation.metrics[key], *([source.get(key)] if source else [])]
        lines.append([group, f"{len(members):,}", *(f"{x:.1f}" if is_finite(x) else "–" for x in numbers)])
    return {"heads": heads, "rows": lines, "split": evaluation.split, "protocol": evaluation.protocol}


def _of_step(rows: list[dict], name: str, step: int) -> dict:
    """The last evaluation of this name at this step."""
    evaluations = [row for row in rows if row["step"] == step and any(key.startswith(f"{name}/") for key in row)]
    return evaluations[-1] if evaluations else {}


def _losses(rows: list[dict]) -> dict[str, list[tuple[float, float]]]:
    names = dict.fromkeys(key for row in rows for key in row if key.startswith("train/loss"))
    return {name.removeprefix("train/"): [(row["step"], row[name]) for row in rows if name in row] for name in names}


def _recalls(rows: list[dict]) -> dict[str, list[tuple[float, float]]]:
    """The mean recall of groups and of all languages, of each evaluation that was made at two steps or more."""
    single = {"/".join(key.split("/")[:2]) for row in rows for key in row if key.endswith("/recall@1")}
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for key, value in row.items():
            name, _, metric = key.rpartition("/")
            if metric == "mean_recall" and name not in single:
                series.setdefault(name, []).append((row["step"], value))
    return {name: points for name, points in series.items() if len({step for step, _ in points}) > 1}


def _by_language(rows: list[dict], evaluation: Evaluation) -> list[dict]:
    """Bars of the last evaluation, and of any other that was made before the first step and after the last."""
    charts = [_bars(evaluation.name, evaluation.metrics, _of_step(rows, evaluation.name, 0), evaluation)]
    for name in dict.fromkeys(key.split("/")[0] for row in rows if row["step"] == 0 for key in row if "/" in key):
        last = max(row["step"] for row in rows if any(key.startswith(f"{name}/") for key in row))
        if name not in (evaluation.name, "train") and last:
            chart = _bars(name, _of_step(rows, name, last), _of_step(rows, name, 0), evaluation)
            charts.append({**chart, "title": f"{name}, step {last:,}"})
    return charts


def _bars(name: str, now: Mapping, source: Mapping, evaluation: Evaluation) -> dict[str, object]:
    """Each language once, in the last group that has it: of a tuned model in "tuned" or "others"."""
    group_of = dict.fromkeys(evaluation.sizes, "other languages" if evaluation.groups else "")
    group_of.update({language: group for group, members in evaluation.groups.items() for language in members})
    groups: dict[str, list] = {group: [] for group in dict.fromkeys([*evaluation.groups, *group_of.values()])}
    for language, group in group_of.items():
        key = f"{name}/{language}/mean_recall"
        if is_finite(now.get(key)):
            groups[group].append((language, now[key], source.get(key)))
    groups = {group: sorted(bars, key=lambda bar: -bar[1]) for group, bars in groups.items() if bars}
    values = [value for bars in groups.values() for bar in bars for value in bar[1:] if value is not None]
    has_before = any(before is not None for bars in groups.values() for _, _, before in bars)
    return {"title": "", "groups": groups, "top": max([*values, 1e-9]), "has_before": has_before}


# Examples.


def find_examples(evaluation: Evaluation, embedder: Embedder, config: ConfigDict) -> dict[str, list[tuple[str, bytes]]]:
    """Returns sentence → ids and pictures closest to it, best first; of the data's example queries, if it has some."""
    sentences = EXAMPLE_QUERIES.get(config.data.source, ())
    if not sentences:
        return {}
    pool = read_pool(config.data.directory, config.evaluation.split)
    ids, (images, numbers) = list(pool.image_numbers), evaluation.pictures
    _, rows = top_k(embedder.encode_text(list(sentences)), images, MOST)
    closest = {sentence: numbers[nearest].tolist() for sentence, nearest in zip(sentences, rows)}
    shown = sorted({number for nearest in closest.values() for number in nearest})
    pictures = dict(zip(shown, pool.read(shown)))
    return {sentence: [(ids[n], pictures[n]) for n in nearest] for sentence, nearest in closest.items()}


def _examples(evaluation: Evaluation, embedder: Embedder, config: ConfigDict) -> dict[str, object] | None:
    """Examples in the languages with the highest, the middle and the lowest recall; `None` without pictures to show."""
    if takes_features(config.image_tower):
        return None
    try:
        pool = read_pool(config.data.directory, config.evaluation.split)
    except UserError:
        return None
    total, (images, numbers) = len(pool.image_numbers), evaluation.pictures
    rows = np.unique(np.linspace(0, len(numbers) - 1, min(len(numbers), IMAGES)).round().astype(int))
    images, numbers = images[rows], numbers[rows]
    shown_pictures = list(pool.read(numbers.tolist()))
    best = sorted(evaluation.sizes, key=lambda x: -evaluation.metrics[f"{evaluation.name}/{x}/mean_recall"])
    languages = {}
    for language in dict.fromkeys((best[0], best[len(best) // 2], best[-1])):
        texts, owners = captions_of(pool, language, numbers)
        if texts:
            made = find_queries("text_to_image", [(images, encode_captions(embedder, texts, language))], owners)
            right = [example for example in made if example.found[0].rank <= 1]
            chosen = [*evenly(right, EXAMPLES), *choose_queries(made, EXAMPLES, "wrong")]
            languages[language] = [_example(example, texts[example.number], shown_pictures) for example in chosen]
    return {"count": len(numbers), "total": total, "languages": languages}


def _example(searched: errors.Searched, text: str, pictures: Sequence[bytes]) -> dict[str, object]:
    """The first three pictures and, if the right pictures are not among them, these behind a gap."""
    rank, first = searched.found[0].rank, searched.found[0].top[:3]
    shown_pictures = [(thumbnail_url(pictures[i], SIDE), i in searched.right) for i in first]
    if not searched.right.intersection(first):
        right = [(thumbnail_url(pictures[i], SIDE), True) for i in sorted(searched.right)]
        shown_pictures += [(None, False), *right]
    note = "found" if rank <= 1 else f"the right one has rank {rank:g}"
    return {"text": text, "note": note, "pictures": shown_pictures}


# Data and settings.


def _data(config: ConfigDict) -> list[tuple[str, str]]:
    lines = [("folder", config.data.directory)]
    try:
        described = read_json(as_path(config.data.directory) / "dataset.json")
    except UserError:  # other people's records come without one
        return lines
    lines += [(key, str(described[key])) for key in ("name", "license") if key in described]
    for part, splits in _items(described.get("counts")):
        for split, counts in _items(splits):
            words = [f"{number:,} {name}" for name, number in _items(counts)] or [f"{counts:,}"]
            lines.append((f"{part}, {split}", ", ".join(words)))
    if isinstance(described.get("languages"), (list, Mapping)):
        lines.append(("languages", ", ".join(sorted(described["languages"]))))
    return lines


def _items(value: object) -> Iterable[tuple[str, object]]:
    return value.items() if isinstance(value, Mapping) else ()


def _settings(workdir: pathlib.Path, config: ConfigDict) -> list[tuple[str, str]]:
    lines = [(name, json.dumps(value, default=list)) for name, value in flat(config.to_dict()).items()]
    with contextlib.suppress(UserError):
        lines += [(name, str(value)) for name, value in flat(read_json(workdir / "environment.json")).items()]
    return lines
