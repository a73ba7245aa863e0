"""Runs benchmarks on a model; prints tables, keeps rows for `metrics.jsonl` and a JSON file for each evaluation."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from mural_tf.errors import UserError
from mural_tf.evaluation import benchmarks
from mural_tf.evaluation.protocol import check_protocol, default_protocol
from mural_tf.evaluation.published import compare
from mural_tf.evaluation.retrieval import HELD_OUT, Evaluation, Request
from mural_tf.files import as_path, storage_errors, write_whole
from mural_tf.hugging_face import is_name
from mural_tf.loading import load
from mural_tf.metrics.ranking import CUTOFFS
from mural_tf.paths import RemotePath
from mural_tf.remote_folders import LOCK
from mural_tf.training.workdir import EVALUATED, append_metrics

DIRECTIONS = ("image_to_text", "text_to_image")


def table(evaluation: Evaluation) -> str:
    """Returns the protocol, the notes, and the numbers: a row for each language (or task), one for each group."""
    head = [f"{evaluation.name}, split {evaluation.split}: {evaluation.protocol}", *evaluation.notes, ""]
    if all("images" in size and "captions" in size for size in evaluation.sizes.values()):
        groups = group_table(evaluation.metrics, evaluation.name, evaluation.groups, len(evaluation.sizes))
        return "\n".join([*head, *_retrieval_rows(evaluation), "", groups])
    return "\n".join([*head, *metric_rows(evaluation.metrics, evaluation.sizes)])


def _retrieval_rows(evaluation: Evaluation) -> list[str]:
    names = [*evaluation.sizes, *evaluation.groups, "all", "language"]
    width = max(len(name) for name in names)
    cutoffs = " ".join(f"{f'R@{k}':>6}" for k in CUTOFFS)
    lines = [
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
    return lines


def group_table(metrics: dict[str, float], name: str, groups: dict[str, Sequence[str]], languages: int) -> str:
    """Returns plain text: the mean recall of each group and of all `languages`, with their numbers of languages."""
    rows = [(group, len(members)) for group, members in groups.items()] + [("all", languages)]
    titles = {"mean recall": "mean_recall"}
    if f"{name}/all/{HELD_OUT}" in metrics:
        titles["held-out names"] = HELD_OUT
    width = max(len("group"), *(len(group) for group, _ in rows))
    lines = [f"{'group':{width}}  languages" + "".join(f"  {title}" for title in titles)]
    for group, count in rows:
        found = ((len(title), metrics.get(f"{name}/{group}/{key}")) for title, key in titles.items())
        cells = "".join(f"  {'–' if value is None else f'{value:.1f}':>{space}}" for space, value in found)
        lines.append(f"{group:{width}}  {count:9,}{cells}")
    return "\n".join(lines)


def metric_rows(metrics: Mapping[str, float], sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Returns tables of `<name>/<row>/<metric>` numbers: rows with the same metrics share one table."""
    values: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        _, row, metric = key.split("/", 2)
        values.setdefault(row, {})[metric] = value
    shapes: dict[tuple, list[str]] = {}
    for row, cells in values.items():
        shapes.setdefault((tuple(sizes.get(row, ())), tuple(cells)), []).append(row)
    lines: list[str] = []
    for (counted, columns), rows in shapes.items():
        width = max(len(row) for row in rows)
        lines += [""] if lines else []
        lines.append(f"{'':{width}}" + "".join(f"  {x:>9}" for x in counted) + "".join(f"  {x:>11}" for x in columns))
        for row in rows:
            counts = "".join(f"  {sizes[row][x]:{max(9, len(x))},}" for x in counted)
            numbers = "".join(f"  {values[row][x]:{max(11, len(x))}.2f}" for x in columns)
            lines.append(f"{row:{width}}{counts}{numbers}")
    return lines


def evaluate_and_report(
    model: str,
    data_dir: str,
    split: str = "",
    languages: Sequence[str] | None = None,
    benchmark: str = "retrieval",
    output: str = "",
    batch_size: int = 128,
    checkpoint: str = "result",
    protocol: ConfigDict | None = None,
    published: bool = False,
) -> list[Evaluation]:
    """Loads a model (of a workdir its "result", "latest" or "best"), evaluates it, prints and keeps the numbers.

    They go to `output`, or, if that is empty and the model is a workdir, to it: one row in metrics.jsonl for each
    benchmark and evaluation/<name>-<split>.json, which a later evaluation of the same name and split replaces.

    Args:
      model: workdir or export.
      data_dir: folder of the benchmark's files, or of folders named after benchmarks.
      split: empty: the benchmark's own default.
      languages: evaluate these only; None or empty: all.
      benchmark: a name of `--list`; "all": every one whose files `data_dir` holds.
      protocol: see `evaluation/protocol.py`; None: the defaults.
      published: whether to print the papers' numbers beside ours.

    Raises:
      UserError: see `benchmarks.run_benchmark`. With "all", one that fails does not keep the others from
        running, and the error comes at the end.
    """
    protocol = protocol or default_protocol()
    check_protocol(protocol)
    folder = _output_folder(model, output)
    names = _chosen(benchmark, as_path(data_dir), protocol)
    embedder = load(model, checkpoint)
    evaluations, failed = [], []
    for name in names:
        request = Request(
            embedder, as_path(data_dir), split, protocol, tuple(languages or ()), batch_size, progress=True
        )
        try:
            made = benchmarks.run_benchmark(name, request)
        except UserError as error:
            if len(names) == 1:
                raise
            failed.append(name)
            print(f"{name} failed: {error}\n")
            continue
        for evaluation in made:
            print(table(evaluation), end="\n\n")
        if published:
            _print_published(made, name, protocol)
        _keep(made, folder, model, embedder.step, request)
        evaluations += made
    if failed:
        raise UserError(f"{len(failed)} of {len(names)} benchmarks failed, see above: {', '.join(failed)}.")
    return evaluations


def _print_published(made: list[Evaluation], name: str, protocol: ConfigDict) -> None:
    text = compare({key: value for one in made for key, value in one.metrics.items()}, protocol)
    print(text or f"No paper's table holds numbers of {name}.")
    if text and any(one.protocol.startswith("NOT COMPLETE") for one in made):
        print("Ours are NOT COMPLETE, as said above: they cannot be compared with the papers'.")
    print()


def _chosen(benchmark: str, data_dir: pathlib.Path, protocol: ConfigDict) -> list[str]:
    """Returns the benchmarks to run, before a model is loaded; for "all" it prints what the folder lacks."""
    if benchmark != benchmarks.ALL:
        benchmarks.check_options(benchmark, protocol)
        benchmarks.check_files(benchmark, data_dir)
        return [benchmark]
    ready, lacking = benchmarks.available(data_dir)
    for name, missing in lacking.items():
        print(f"No {name}: {data_dir} lacks {', '.join(missing)}. Get it: {benchmarks.CATALOGUE[name].source}.")
    if not ready:
        raise UserError(f"{data_dir} holds the files of no benchmark; what each needs is listed above.")
    print(f"Running {', '.join(ready)}.\n")
    return ready


def _keep(made: list[Evaluation], folder, model: str, step: int | None, request: Request) -> None:
    if folder is None:
        print(f"{model} is not a workdir and stays as it is; give --output to keep the numbers.")
        return
    append_metrics(folder, metrics_row(made, step, str(request.folder)))
    origin = dict(model=str(model), data_dir=str(request.folder), step=step, options=request.protocol.to_dict())
    paths = [write_report(evaluation, folder, **origin) for evaluation in made]
    print(f"Written: {folder / 'metrics.jsonl'} (one row), {', '.join(map(str, paths))}")


def metrics_row(made: Sequence[Evaluation], step: int | None, data: str) -> dict[str, object]:
    """Returns the row of metrics.jsonl of evaluations of one step on a folder of data."""
    numbers = {key: value for one in made for key, value in one.metrics.items()}
    return {"step": step, EVALUATED: {one.name: {"data": data, "split": one.split} for one in made}, **numbers}


def write_report(evaluation: Evaluation, folder: str | os.PathLike, **origin) -> pathlib.Path:
    """Writes the evaluation with `origin` (model, data_dir, step) to <folder>/evaluation/<name>-<split>.json."""
    path = as_path(folder) / "evaluation" / f"{evaluation.name}-{evaluation.split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {**origin, **dataclasses.asdict(evaluation)}
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    return path


def _output_folder(model: str, output: str) -> pathlib.Path | RemotePath | None:
    """Where the numbers go; checked before the evaluation, which may take long. None: nowhere."""
    if not output and is_name(model):
        return None
    folder = as_path(output or model)
    if not output and not (folder / "checkpoints").is_dir():
        return None
    if isinstance(folder, RemotePath):
        return _remote_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The output folder {folder} cannot be made: {error.strerror}.") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"The output folder {folder} cannot be written; name another with --output.")
    return folder


def _remote_folder(folder: RemotePath) -> RemotePath:
    """Returns the folder; raises `UserError` if it cannot be written, or a run has it, which would undo a new row."""
    if (folder / LOCK).is_file():
        raise UserError(
            f"{folder} is in use by a run, which uploads its own metrics.jsonl: wait until it ends (or, killed, delete "
            f"{LOCK} there), or name another folder with --output."
        )
    with storage_errors(folder):
        write_whole(folder / "evaluation" / ".written", "")
        (folder / "evaluation" / ".written").unlink()
    return folder
