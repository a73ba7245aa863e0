"""Runs benchmarks on a model, prints their tables and keeps the numbers."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import as_path, storage_errors, write_whole
from mural_lite.hugging_face import is_name
from mural_lite.models import open_model
from mural_lite.paths import RemotePath
from mural_lite.remote_folders import LOCK
from mural_tf.evaluation import benchmarks
from mural_tf.evaluation.protocol import check_protocol, default_protocol
from mural_tf.evaluation.published import compare
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation
from mural_tf.evaluation.tables import metrics_row, table, write_report
from mural_tf.training.checkpoints import existing_name
from mural_tf.training.metrics_file import append_metrics


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
    """Loads a model, evaluates it, prints and writes the numbers, and returns all evaluations.

    The numbers go to `output`, or, if that is empty and the model is a workdir, to the workdir: one row in
    metrics.jsonl for each benchmark, and evaluation/<name>-<split>.json, which a later evaluation of the same name and
    split replaces.

    Args:
      model: workdir or export.
      data_dir: folder of the benchmark's files, or of folders named after benchmarks.
      split: the split to measure; empty: the benchmark's own default.
      languages: the languages to measure; None or empty: all.
      benchmark: a name of `--list`; "all": every benchmark whose files `data_dir` holds.
      output: folder for the numbers.
      batch_size: images, or texts, per call of the model.
      checkpoint: a workdir's checkpoint: "result", "latest" or "best".
      protocol: see `evaluation/protocol.py`; None: the defaults.
      published: whether to print the papers' numbers next to ours.

    Raises:
      UserError: an output folder that cannot be written, or as `benchmarks.run_benchmark`. With "all", the others
        still run after a benchmark that fails, and the error comes at the end.
    """
    protocol = protocol or default_protocol()
    check_protocol(protocol)
    folder = _output_folder(model, output)
    names = _benchmarks_to_run(benchmark, as_path(data_dir), protocol)
    embedder = open_model(model, checkpoint)
    evaluations = []
    failed = []
    for name in names:
        request = Request(  # anew, because each benchmark sets its own folder and split
            embedder, as_path(data_dir), split, protocol, tuple(languages or ()), batch_size, progress=True
        )
        try:
            results = benchmarks.run_benchmark(name, request)
        except (UserError, OSError) as error:
            if len(names) == 1:
                raise
            failed.append(name)
            print(f"{name} failed: {error}\n")
            continue
        for evaluation in results:
            print(table(evaluation), end="\n\n")
        if published:
            _print_published(results, name, protocol)
        _write_numbers(results, folder, model, embedder.step, request, checkpoint)
        evaluations += results
    if failed:
        raise UserError(f"{len(failed)} of {len(names)} benchmarks failed, see above: {', '.join(failed)}.")
    return evaluations


def _print_published(evaluations: list[Evaluation], name: str, protocol: ConfigDict) -> None:
    """Prints the papers' numbers of the benchmark `name` next to ours, which `protocol` gave."""
    metrics = {}
    for evaluation in evaluations:
        metrics.update(evaluation.metrics)
    text = compare(metrics, protocol)
    print(text or f"No paper's table holds numbers of {name}.")
    if text and any(evaluation.protocol.startswith("NOT COMPLETE") for evaluation in evaluations):
        print("Ours are NOT COMPLETE, as said above: they cannot be compared with the papers'.")
    print()


def _benchmarks_to_run(benchmark: str, data_dir: pathlib.Path, protocol: ConfigDict) -> list[str]:
    """Returns the names of the benchmarks to run, and for "all" prints them, and which benchmarks lack files.

    Raises `UserError` if files are missing, or if a benchmark by name does not read a changed option of the protocol.
    """
    if benchmark != benchmarks.ALL:
        benchmarks.check_options(benchmark, protocol)
        benchmarks.check_files(benchmark, data_dir)
        return [benchmark]
    ready, lacking = benchmarks.available(data_dir)
    for name, missing in lacking.items():
        print(f"No {name}: {data_dir} lacks {', '.join(missing)}. Get it: {benchmarks.BENCHMARKS[name].source}.")
    if not ready:
        raise UserError(f"{data_dir} holds the files of no benchmark; the files that each needs are listed above.")
    print(f"Running {', '.join(ready)}.\n")
    return ready


def _write_numbers(
    evaluations: list[Evaluation], folder, model: str, step: int | None, request: Request, checkpoint: str
) -> None:
    """Writes a benchmark's numbers into `folder` and prints where; if it is `None`, prints that nothing is kept."""
    if folder is None:
        print(f"{model} is not a workdir and stays as it is; give --output to keep the numbers.")
        return
    checkpoint_name = ""
    if isinstance(folder, pathlib.Path) and benchmarks.is_same_folder(folder, model):  # a store lists no checkpoints
        checkpoint_name = existing_name(folder, checkpoint)
    append_metrics(folder, metrics_row(evaluations, step, str(request.folder), checkpoint_name))
    origin = dict(model=str(model), data_dir=str(request.folder), step=step, options=request.protocol.to_dict())
    paths = [write_report(evaluation, folder, **origin) for evaluation in evaluations]
    print(f"Written: {folder / 'metrics.jsonl'} (one row), {', '.join(map(str, paths))}")


def _output_folder(model: str, output: str) -> pathlib.Path | RemotePath | None:
    """Makes and returns the folder for the numbers, or returns `None` if the numbers are not kept.

    Raises `UserError`, before the evaluation, which may take long, for a folder that cannot be written, or for the
    workdir of another model.
    """
    if not output and is_name(model):
        return None
    folder = as_path(output or model)
    if not output and not (folder / "checkpoints").is_dir():
        return None
    if isinstance(folder, RemotePath):
        _check_remote_folder(folder)
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"The output folder {folder} cannot be made: {error.strerror}.") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(f"The output folder {folder} cannot be written; name another with --output.")
    if (folder / "checkpoints").is_dir() and not benchmarks.is_same_folder(folder, model):
        raise UserError(
            f"--output={output} is a workdir, whose card shows the numbers in it: {model} is another model, so name "
            "another folder."
        )
    return folder


def _check_remote_folder(folder: RemotePath) -> None:
    """Raises `UserError` if a folder in a store cannot be written: a trial file is written and deleted.

    A folder that a run uses is refused, too: the run uploads its own metrics.jsonl, and a new row would be lost.
    """
    if (folder / LOCK).is_file():
        raise UserError(
            f"{folder} is in use by a run, which uploads its own metrics.jsonl: wait until it ends (or, killed, delete "
            f"{LOCK} there), or name another folder with --output."
        )
    trial = folder / "evaluation" / ".written"
    with storage_errors(folder):
        write_whole(trial, "")
        trial.unlink()
