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
from mural_lite.config import takes_features, training_folders
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path, read_json, write_whole
from mural_lite.pictures import thumbnail_url
from mural_lite.remote_folders import display_name
from mural_lite.top_k import top_k
from mural_tf.analysis.queries import Searched, choose_queries, evenly, find_queries
from mural_tf.evaluation.retrieval import Evaluation, encode_captions, read_pool
from mural_tf.runs.line_chart import is_finite, line_chart
from mural_tf.training.callbacks import duration
from mural_tf.training.metrics_file import has_evaluation, read_metrics
from mural_tf.training.workdir import flat

NAME = "report.html"
IMAGES = 300  # of the split, among which the examples are searched
EXAMPLES = 3  # queries that are found, and as many that are missed, for each language shown
SIDE = 96  # pixels of a thumbnail's longer side
# Shown after training on the emoji benchmark: a wish in a well-resourced and one in an under-resourced language.
EXAMPLE_QUERIES = {"emoji": ("a red heart", "moyo mwekundu"), "shapes": ("a red circle",)}
MOST = 10  # pictures that are shown for each query


def write_report_page(
    workdir: pathlib.Path,
    config: ConfigDict,
    evaluation: Evaluation | None,
    embedder: Embedder | None,
    seconds: Mapping[str, float],
    searches: Mapping[str, Sequence[tuple[str, bytes]]],
) -> pathlib.Path:
    """Writes report.html in the workdir and returns its path.

    Args:
      workdir: the folder of a run whose training is over.
      config: the run's configuration.
      evaluation: the evaluation of its last step; `None`: nothing was evaluated.
      embedder: encodes the examples' captions; `None`: no examples.
      seconds: {stage: its time}, such as {"training": 60.0}.
      searches: the result of `find_examples`; {}: no searches are shown.
    """
    rows = read_metrics(workdir)
    thumbnails = {}
    for sentence, pictures in searches.items():
        thumbnails[sentence] = [(thumbnail_url(picture, SIDE), name) for name, picture in pictures]
    recall = None
    languages = []
    examples = None
    if evaluation is not None:
        recall = _summary(rows, evaluation)
        languages = _by_language(rows, evaluation)
        if embedder is not None:
            examples = _examples(evaluation, embedder, config)
    page = pages.render(
        pathlib.Path(__file__).with_name("report.html"),
        title=f"{config.model}, {config.train.steps:,} steps",
        place=display_name(workdir),
        recall=recall,
        charts={
            "Loss over the steps": line_chart(_losses(rows), "loss over steps"),
            "Recall over the steps": line_chart(_recalls(rows), "mean recall, %, over steps"),
        },
        languages=languages,
        searches=thumbnails,
        examples=examples,
        data=_data_lines(config),
        seconds={stage: duration(value) for stage, value in seconds.items()},
        settings=_settings_lines(workdir, config),
        share=lambda value, top: f"{100 * value / top:.1f}%",
    )
    write_whole(workdir / NAME, page)
    return workdir / NAME


# Numbers.


def training_seconds(rows: Iterable[Mapping]) -> float:
    """Returns the time of all training steps in rows of metrics.jsonl, interruptions left out."""
    seconds = 0.0
    last_step = 0
    for row in rows:
        if "train/seconds_per_step" in row:
            seconds += max(row["step"] - last_step, 0) * row["train/seconds_per_step"]
            last_step = row["step"]
    return seconds


def _summary(rows: list[dict], evaluation: Evaluation) -> dict[str, object]:
    """Returns the table of mean recalls by group: {"heads", "rows": lists of cells, "split", "protocol"}.

    It has a column of the recalls before the run, where `rows` of metrics.jsonl hold them.
    """
    before = _at_step(rows, evaluation.name, 0)
    heads = ["group", "languages", "mean recall, %"]
    if before:
        heads.append("before this run, %")
    table_rows = []
    for group, members in {**evaluation.groups, "all": evaluation.sizes}.items():
        key = f"{evaluation.name}/{group}/mean_recall"
        cells = [group, f"{len(members):,}", _one_digit(evaluation.metrics[key])]
        if before:
            cells.append(_one_digit(before.get(key)))
        table_rows.append(cells)
    return {"heads": heads, "rows": table_rows, "split": evaluation.split, "protocol": evaluation.protocol}


def _one_digit(number: object) -> str:
    """Returns a number with one digit after its point, or a dash for `None`, NaN and infinity."""
    return f"{number:.1f}" if is_finite(number) else "–"


def _at_step(rows: list[dict], name: str, step: int) -> dict:
    """Returns the row of the last evaluation of this name at this step, or {}."""
    last = {}
    for row in rows:
        if has_evaluation(row, name, step):
            last = row
    return last


def _losses(rows: list[dict]) -> dict[str, list[tuple[float, float]]]:
    """Returns {name of a loss, such as "loss_image_text": its (step, value) points}."""
    series = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith("train/loss"):
                series.setdefault(key.removeprefix("train/"), []).append((row["step"], value))
    return series


def _recalls(rows: list[dict]) -> dict[str, list[tuple[float, float]]]:
    """Returns {"<evaluation>/<group>": its (step, mean recall) points}, with the group "all", of two steps or more."""
    languages = set()  # "<evaluation>/<language>": only languages have recalls of their own
    series = {}
    for row in rows:
        for key, value in row.items():
            name, _, metric = key.rpartition("/")
            if metric == "recall@1":
                languages.add("/".join(key.split("/")[:2]))
            elif metric == "mean_recall":
                series.setdefault(name, []).append((row["step"], value))
    recalls = {}
    for name, points in series.items():
        steps = {step for step, _ in points}
        if name not in languages and len(steps) > 1:
            recalls[name] = points
    return recalls


def _by_language(rows: list[dict], evaluation: Evaluation) -> list[dict]:
    """Returns a chart per evaluation, as `_bars`: the last one first, then others that were also made before the run.

    Args:
      rows: rows of metrics.jsonl.
      evaluation: the last evaluation of the run.
    """
    charts = [_bars(evaluation.name, evaluation.metrics, _at_step(rows, evaluation.name, 0), evaluation)]
    names = {}  # a set that keeps its order
    for row in rows:
        if row["step"] == 0:
            names.update(dict.fromkeys(key.split("/")[0] for key in row if "/" in key))
    for name in names:
        last_step = max(row["step"] for row in rows if has_evaluation(row, name, row["step"]))
        if name not in (evaluation.name, "train") and last_step:  # 0: only measured before the run
            chart = _bars(name, _at_step(rows, name, last_step), _at_step(rows, name, 0), evaluation)
            charts.append({**chart, "title": f"{name}, step {last_step:,}"})
    return charts


def _bars(name: str, now: Mapping, before: Mapping, evaluation: Evaluation) -> dict[str, object]:
    """Returns the chart of an evaluation for report.html: {"title", "groups", "top", "has_before"}.

    "groups" is {group: [(language, recall, recall before or `None`)]}, "top" the largest recall. Each language is there
    once, in its last group: in "tuned" or "others" for a tuned model.

    Args:
      name: the evaluation's name, with which its keys begin.
      now, before: {key: metric} at the last step and before the first; `before` may lack any.
      evaluation: the last evaluation of the run, by whose groups the languages are divided.
    """
    group_of = dict.fromkeys(evaluation.sizes, "other languages" if evaluation.groups else "")  # "": no heading
    for group, members in evaluation.groups.items():
        group_of.update(dict.fromkeys(members, group))
    bars_of_groups = {group: [] for group in evaluation.groups}
    recalls = [1e-9]  # so that the largest value, by which bars are divided, is never 0
    has_before = False
    for language, group in group_of.items():
        key = f"{name}/{language}/mean_recall"
        if not is_finite(now.get(key)):
            continue
        bars_of_groups.setdefault(group, []).append((language, now[key], before.get(key)))
        recalls.append(now[key])
        if before.get(key) is not None:
            recalls.append(before[key])
            has_before = True
    groups = {}
    for group, bars in bars_of_groups.items():
        if bars:
            groups[group] = sorted(bars, key=lambda bar: bar[1], reverse=True)  # the highest recall first
    return {"title": "", "groups": groups, "top": max(recalls), "has_before": has_before}


# Examples.


def find_examples(evaluation: Evaluation, embedder: Embedder, config: ConfigDict) -> dict[str, list[tuple[str, bytes]]]:
    """Returns {example query for the data: (id, picture) of the `MOST` closest pictures, the closest first}.

    Args:
      evaluation: the evaluation of the model, which has the pictures' embeddings.
      embedder: encodes the queries.
      config: the run's configuration; only some of its `data.source` have example queries.
    """
    sentences = EXAMPLE_QUERIES.get(config.data.source, ())
    if not sentences:
        return {}
    pool = read_pool(config.data.directory, config.evaluation.split)
    ids = list(pool.image_numbers)
    images, numbers = evaluation.pictures
    _, rows = top_k(embedder.encode_text(list(sentences)), images, MOST)
    nearest = numbers[rows]  # [queries, MOST]
    shown_numbers = np.unique(nearest).tolist()
    picture_of = dict(zip(shown_numbers, pool.read(shown_numbers)))
    examples = {}
    for sentence, sentence_numbers in zip(sentences, nearest.tolist()):
        examples[sentence] = [(ids[number], picture_of[number]) for number in sentence_numbers]
    return examples


def _examples(evaluation: Evaluation, embedder: Embedder, config: ConfigDict) -> dict[str, object] | None:
    """Returns {"count", "total", "languages": {language: `_example`s}}; `None` for a model or data without pictures.

    `_shown_languages` are shown; "count" of the split's "total" pictures are searched.
    """
    if takes_features(config.image_tower):
        return None
    try:
        pool = read_pool(config.data.directory, config.evaluation.split)
    except UserError:
        return None
    images, numbers = _sample(*evaluation.pictures)
    pictures = list(pool.read(numbers.tolist()))
    languages = {}
    for language in _shown_languages(evaluation):
        texts, owners = pool.readable_captions(language, numbers)
        if texts:
            embeddings = images, encode_captions(embedder, texts, language)
            queries = _shown_queries(find_queries("text_to_image", [embeddings], owners))
            languages[language] = [_example(query, texts[query.number], pictures) for query in queries]
    return {"count": len(numbers), "total": len(pool.image_numbers), "languages": languages}


def _sample(images: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `IMAGES` of the pictures' embeddings and numbers, evenly spaced; all of them where there are fewer."""
    rows = evenly(range(len(numbers)), IMAGES)
    return images[rows], numbers[rows]


def _shown_languages(evaluation: Evaluation) -> list[str]:
    """Returns the languages with the highest, the middle and the lowest recall, each once."""

    def recall(language):
        return evaluation.metrics[f"{evaluation.name}/{language}/mean_recall"]

    by_recall = sorted(evaluation.sizes, key=recall, reverse=True)
    middle = len(by_recall) // 2
    return list(dict.fromkeys((by_recall[0], by_recall[middle], by_recall[-1])))


def _shown_queries(queries: Sequence[Searched]) -> list[Searched]:
    """Returns up to `EXAMPLES` queries whose picture came first, then as many queries that missed theirs."""
    right_queries = [query for query in queries if query.found[0].rank <= 1]  # by the only model
    return [*evenly(right_queries, EXAMPLES), *choose_queries(queries, EXAMPLES, "wrong")]


def _example(searched: Searched, text: str, pictures: Sequence[bytes]) -> dict[str, object]:
    """Returns {"text", "note", "pictures": [(URL, whether it is right)]} of a query.

    The pictures are its first three and, if none of them is right, a gap, (`None`, False), and the right pictures.

    Args:
      searched: the query with its results.
      text: its caption.
      pictures: all pictures, by number.
    """
    (results,) = searched.found  # of the only model
    first = results.top[:3]
    shown_pictures = [(thumbnail_url(pictures[number], SIDE), number in searched.right) for number in first]
    if not searched.right.intersection(first):
        shown_pictures.append((None, False))
        for number in sorted(searched.right):
            shown_pictures.append((thumbnail_url(pictures[number], SIDE), True))
    note = "found"
    if results.rank > 1:
        note = f"the right one has rank {results.rank:g}"
    return {"text": text, "note": note, "pictures": shown_pictures}


# Data and settings.


def _data_lines(config: ConfigDict) -> list[tuple[str, str]]:
    """Returns (name, value) of the training data's folders and of their descriptions."""
    lines = []
    for folder in training_folders(config.data):
        lines.append(("folder", folder))
        try:
            description = read_json(as_path(folder) / "dataset.json")
        except UserError:  # other people's records come without a description
            continue
        lines += _entry_lines(description)
    return lines


def _entry_lines(description: Mapping) -> list[tuple[str, str]]:
    """Returns (name, value) of the entries of a dataset.json, such as ("image_text, train", "90 captions, 30 images").

    Entries of another form than this project's are left out or shown as they are.
    """
    lines = [(key, str(description[key])) for key in ("name", "license") if key in description]
    for part, splits in _items(description.get("counts")):
        for split, counts in _items(splits):
            if isinstance(counts, Mapping):
                words = ", ".join(f"{_with_commas(number)} {name}" for name, number in counts.items())
            else:
                words = _with_commas(counts)
            lines.append((f"{part}, {split}", words))
    if isinstance(description.get("languages"), (list, Mapping)):
        lines.append(("languages", ", ".join(sorted(description["languages"]))))
    return lines


def _with_commas(value: object) -> str:
    """Returns a whole number with commas between thousands, and any other value as Python writes it."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _items(value: object) -> Iterable[tuple[str, object]]:
    """Returns the items of a mapping, () for any other value: other people's descriptions may hold anything."""
    if not isinstance(value, Mapping):
        return ()
    return value.items()


def _settings_lines(workdir: pathlib.Path, config: ConfigDict) -> list[tuple[str, str]]:
    """Returns (name, value) of the configuration and the environment."""
    lines = [(name, json.dumps(value, default=list)) for name, value in flat(config.to_dict()).items()]
    with contextlib.suppress(UserError):
        lines += [(name, str(value)) for name, value in flat(read_json(workdir / "environment.json")).items()]
    return lines
