"""Evaluations as a table for people, rows for `metrics.jsonl` and a JSON file with everything needed to compare."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

from mural_tf.config import ConfigurationError
from mural_tf.embedder import load
from mural_tf.evaluation.retrieval import Evaluation, measure_retrieval
from mural_tf.metrics.ranking import CUTOFFS
from mural_tf.training.workdir import append_metrics

DIRECTIONS = ("image_to_text", "text_to_image")


def evaluate_and_report(
    model: str,
    data_dir: str,
    split: str,
    languages: Sequence[str] | None = None,
    benchmark: str = "retrieval",
    output: str = "",
    batch_size: int = 128,
    checkpoint: str = "latest",
) -> Evaluation:
    """Loads a model (of a workdir, its "latest" or "best" checkpoint), evaluates it, prints and keeps the numbers.

    They go to `output`, or, if that is empty and the model is a workdir, to it: one row in metrics.jsonl and
    evaluation/<benchmark>-<split>.json, which a later evaluation of the same benchmark and split replaces.
    """
    folder = _output_folder(model, output)
    embedder = load(model, checkpoint)
    evaluation = measure_retrieval(embedder, data_dir, split, languages, batch_size, benchmark, progress=True)
    print(table(evaluation))
    if folder is None:
        print(f"{model} is an export and stays as it is; give --output to keep the numbers.")
        return evaluation
    append_metrics(folder, {"step": embedder.step, **evaluation.metrics})
    path = write_report(evaluation, folder, model=str(model), data_dir=str(data_dir), step=embedder.step)
    print(f"Written: {folder / 'metrics.jsonl'} (one row), {path}")
    return evaluation


def table(evaluation: Evaluation) -> str:
    """Returns plain text: the protocol, a row for each language, a row for each group."""
    names = [*evaluation.sizes, *evaluation.groups, "all", "language"]
    width = max(len(name) for name in names)
    cutoffs = " ".join(f"{f'R@{k}':>6}" for k in CUTOFFS)
    lines = [
        f"{evaluation.name}, split {evaluation.split}: {evaluation.protocol}",
        "",
        f"{'':{width}} {'':>7} {'':>8}  {'image to text':^20}  {'text to image':^20}     mean",
        f"{'language':{width}} {'images':>7} {'captions':>8}  {cutoffs}  {cutoffs}   recall",
    ]
    for language, size in evaluation.sizes.items():
        values = lambda key: evaluation.metrics[f"{evaluation.name}/{language}/{key}"]  # noqa: B023, E731
        recalls = ["".join(f"{values(f'{way}/recall@{k}'):7.1f}" for k in CUTOFFS)[1:] for way in DIRECTIONS]
        lines.append(
            f"{language:{width}} {size['images']:7,} {size['captions']:8,}  {recalls[0]}  {recalls[1]}  "
            f"{values('mean_recall'):7.1f}"
        )
    lines += ["", group_table(evaluation.metrics, evaluation.name, evaluation.groups, len(evaluation.sizes))]
    return "\n".join(lines)


def group_table(metrics: dict[str, float], name: str, groups: dict[str, Sequence[str]], languages: int) -> str:
    """Returns plain text: the mean recall of each group and of all `languages`, with their numbers of languages."""
    rows = [(group, len(members)) for group, members in groups.items()] + [("all", languages)]
    width = max(len("group"), *(len(group) for group, _ in rows))
    lines = [f"{'group':{width}}  languages  mean recall"]
    lines += [f"{group:{width}}  {count:9,}  {metrics[f'{name}/{group}/mean_recall']:11.1f}" for group, count in rows]
    return "\n".join(lines)


def write_report(evaluation: Evaluation, folder: str | os.PathLike, **origin) -> pathlib.Path:
    """Writes the evaluation with `origin` (model, data_dir, step) to <folder>/evaluation/<name>-<split>.json."""
    path = pathlib.Path(folder) / "evaluation" / f"{evaluation.name}-{evaluation.split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    values = {**origin, **dataclasses.asdict(evaluation)}
    partial.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def _output_folder(model: str, output: str) -> pathlib.Path | None:
    """Where the numbers go; checked before the evaluation, which may take long. None: nowhere."""
    folder = pathlib.Path(output or model)
    if not output and not (folder / "checkpoints").is_dir():
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"The output folder {folder} cannot be made: {error.strerror}.") from None
    if not os.access(folder, os.W_OK):
        raise ConfigurationError(f"The output folder {folder} cannot be written; name another with --output.")
    return folder
