"""The forms of an evaluation: printed tables, a row of `metrics.jsonl`, and a JSON file."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence

from mural_lite.files import as_path, write_whole
from mural_tf.evaluation.retrieval import HELD_OUT, Evaluation
from mural_tf.metrics.ranking import CUTOFFS
from mural_tf.training.metrics_file import CHECKPOINT, EVALUATED

DIRECTIONS = ("image_to_text", "text_to_image")


def table(evaluation: Evaluation) -> str:
    """Returns an evaluation as text: protocol, notes, and tables with a row for each language (or task) and group."""
    head = [f"{evaluation.name}, split {evaluation.split}: {evaluation.protocol}", *evaluation.notes, ""]
    is_retrieval = all("images" in size and "captions" in size for size in evaluation.sizes.values())
    if is_retrieval:
        groups = group_table(evaluation.metrics, evaluation.name, evaluation.groups, len(evaluation.sizes))
        return "\n".join([*head, *_retrieval_rows(evaluation), "", groups])
    metrics = dict(evaluation.metrics)
    for row, models in evaluation.published.items():
        for model, value in models.items():
            metrics[f"{evaluation.name}/{row}/{model}"] = value
    return "\n".join([*head, *metric_rows(metrics, evaluation.sizes)])


def _retrieval_rows(evaluation: Evaluation) -> list[str]:
    """Returns the lines of a table of recalls: two lines of heads, and a line for each language."""
    names = [*evaluation.sizes, *evaluation.groups, "all", "language"]
    width = max(len(name) for name in names)
    # The heads are as wide as the lines below: 7 and 8 for counts, 3 x 6 + 2 = 20 for the recalls of a direction.
    cutoffs = " ".join(f"{f'R@{k}':>6}" for k in CUTOFFS)
    lines = [
        f"{'':{width}} {'':>7} {'':>8}  {'image to text':^20}  {'text to image':^20}     mean",
        f"{'language':{width}} {'images':>7} {'captions':>8}  {cutoffs}  {cutoffs}   recall",
    ]
    for language, size in evaluation.sizes.items():
        key = f"{evaluation.name}/{language}"
        line = f"{language:{width}} {size['images']:7,} {size['captions']:8,}"
        for direction in DIRECTIONS:
            recalls = [evaluation.metrics[f"{key}/{direction}/recall@{k}"] for k in CUTOFFS]
            line += " " + "".join(f"{recall:7.1f}" for recall in recalls)
        lines.append(f"{line}  {evaluation.metrics[f'{key}/mean_recall']:7.1f}")
    return lines


def group_table(metrics: dict[str, float], name: str, groups: dict[str, Sequence[str]], language_count: int) -> str:
    """Returns as text a table of the mean recall of each group, {group: languages}, and of all languages.

    A group that was not measured has "–". `metrics` and `name` are an `Evaluation`'s, with `language_count` languages.
    """
    rows = [(group, len(members)) for group, members in groups.items()] + [("all", language_count)]
    titles = {"mean recall": "mean_recall"}
    if f"{name}/all/{HELD_OUT}" in metrics:
        titles["held-out names"] = HELD_OUT
    width = max(len("group"), *(len(group) for group, _ in rows))
    lines = [f"{'group':{width}}  languages" + "".join(f"  {title}" for title in titles)]
    for group, count in rows:
        line = f"{group:{width}}  {count:9,}"
        for title, key in titles.items():
            value = metrics.get(f"{name}/{group}/{key}")
            text = "–" if value is None else f"{value:.1f}"
            line += f"  {text:>{len(title)}}"
        lines.append(line)
    return "\n".join(lines)


def metric_rows(metrics: Mapping[str, float], sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Returns the lines of tables of metrics, {`<name>/<row>/<metric>`: number}, and sizes, {row: {name: count}}.

    Rows with the same names of metrics and counts share a table; an empty line divides tables.
    """
    values = collections.defaultdict(dict)
    for key, value in metrics.items():
        _, row, metric = key.split("/", 2)
        values[row][metric] = value
    rows_by_columns = collections.defaultdict(list)
    for row, numbers in values.items():
        rows_by_columns[tuple(sizes.get(row, ())), tuple(numbers)].append(row)
    lines = []
    for (count_names, metric_names), rows in rows_by_columns.items():
        width = max(map(len, rows))
        if lines:
            lines.append("")
        # Columns of counts are at least 9 wide, columns of metrics 11, in heads and rows.
        head = "".join(f"  {name:>9}" for name in count_names) + "".join(f"  {name:>11}" for name in metric_names)
        lines.append(f"{'':{width}}{head}")
        for row in rows:
            line = f"{row:{width}}"
            for name in count_names:
                line += f"  {sizes[row][name]:{max(9, len(name))},}"
            for name in metric_names:
                line += f"  {values[row][name]:{max(11, len(name))}.2f}"
            lines.append(line)
    return lines


def metrics_row(
    evaluations: Sequence[Evaluation], step: int | None, data: str, checkpoint: str = ""
) -> dict[str, object]:
    """Returns the row of metrics.jsonl, {name: value}, for evaluations of one step on a folder of data.

    Args:
      checkpoint: which of a workdir's checkpoints was evaluated, "" during training.
    """
    evaluated = {evaluation.name: {"data": data, "split": evaluation.split} for evaluation in evaluations}
    row: dict[str, object] = {"step": step, EVALUATED: evaluated}
    if checkpoint:
        row[CHECKPOINT] = checkpoint
    for evaluation in evaluations:
        row.update(evaluation.metrics)
    return row


def write_report(evaluation: Evaluation, folder: str | os.PathLike, **origin) -> pathlib.Path:
    """Writes an evaluation and `origin` (model, data_dir, step, options) as JSON; returns the file's path.

    It is <folder>/evaluation/<name>-<split>.json, whose folders are made. Embeddings of pictures are left out.
    """
    path = as_path(folder) / "evaluation" / f"{evaluation.name}-{evaluation.split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {**origin, **dataclasses.asdict(dataclasses.replace(evaluation, pictures=None))}
    del values["pictures"]
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    return path
