"""Runs benchmarks on a model; prints tables, keeps rows for `metrics.jsonl` and a JSON file for each evaluation."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError, write_whole
from mural_tf.evaluation import registry
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.published import compare
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.result import Evaluation
from mural_tf.evaluation.tables import group_table, table
from mural_tf.loading import load
from mural_tf.training.workdir import append_metrics

__all__ = ["Evaluation", "evaluate_and_report", "group_table", "table", "write_report"]


def evaluate_and_report(
    model: str,
    data_dir: str,
    split: str = "",
    languages: Sequence[str] | None = None,
    benchmark: str = "retrieval",
    output: str = "",
    batch_size: int = 128,
    checkpoint: str = "latest",
    protocol: ConfigDict | None = None,
    published: bool = False,
) -> list[Evaluation]:
    """Loads a model (of a workdir, its "latest" or "best" checkpoint), evaluates it, prints and keeps the numbers.

    They go to `output`, or, if that is empty and the model is a workdir, to it: one row in metrics.jsonl for each
    benchmark and evaluation/<name>-<split>.json, which a later evaluation of the same name and split replaces.

    Args:
      model: workdir or export.
      data_dir: folder of the benchmark's files, or of folders named after benchmarks.
      split: empty: the benchmark's own default.
      languages: evaluate these only; None or empty: all.
      benchmark: a name in the catalogue; "all": every one whose files `data_dir` holds.
      protocol: see `evaluation/protocol.py`; None: the defaults.
      published: whether to print the papers' numbers beside ours.

    Raises:
      ConfigurationError: see `registry.run_benchmark`. With "all", one that fails does not keep the others from
        running, and the error comes at the end.
    """
    folder = _output_folder(model, output)
    protocol = protocol or default_protocol()
    names = _chosen(benchmark, pathlib.Path(data_dir), protocol)
    embedder = load(model, checkpoint)
    evaluations, failed = [], []
    for name in names:
        request = Request(
            embedder, pathlib.Path(data_dir), split, protocol, tuple(languages or ()), batch_size, progress=True
        )
        try:
            made = registry.run_benchmark(name, request)
        except ConfigurationError as error:
            if len(names) == 1:
                raise
            failed.append(name)
            print(f"{name} failed: {error}\n")
            continue
        for evaluation in made:
            print(table(evaluation), end="\n\n")
        if published:
            _print_published(made, name)
        _keep(made, folder, model, embedder.step, request)
        evaluations += made
    if failed:
        raise ConfigurationError(f"{len(failed)} of {len(names)} benchmarks failed, see above: {', '.join(failed)}.")
    return evaluations


def _print_published(made: list[Evaluation], name: str) -> None:
    text = compare({key: value for one in made for key, value in one.metrics.items()})
    print(text or f"No paper's table holds numbers of {name}.")
    if text and any(one.protocol.startswith("NOT COMPLETE") for one in made):
        print("Ours are NOT COMPLETE, as said above: they cannot be compared with the papers'.")
    print()


def _chosen(benchmark: str, data_dir: pathlib.Path, protocol: ConfigDict) -> list[str]:
    """Returns the benchmarks to run, before a model is loaded; for "all" it prints what the folder lacks."""
    if benchmark != registry.ALL:
        registry.check_options(benchmark, protocol)
        registry.check_files(benchmark, data_dir)
        return [benchmark]
    ready, lacking = registry.available(data_dir)
    for name, missing in lacking.items():
        print(f"No {name}: {data_dir} lacks {', '.join(missing)}. Get it: {registry.CATALOGUE[name].source}.")
    if not ready:
        raise ConfigurationError(f"{data_dir} holds the files of no benchmark; what each needs is listed above.")
    print(f"Running {', '.join(ready)}.\n")
    return ready


def _keep(made: list[Evaluation], folder: pathlib.Path | None, model: str, step: int | None, request: Request) -> None:
    if folder is None:
        print(f"{model} is an export and stays as it is; give --output to keep the numbers.")
        return
    append_metrics(folder, {"step": step, **{key: value for one in made for key, value in one.metrics.items()}})
    origin = dict(model=str(model), data_dir=str(request.folder), step=step, options=request.protocol.to_dict())
    paths = [write_report(evaluation, folder, **origin) for evaluation in made]
    print(f"Written: {folder / 'metrics.jsonl'} (one row), {', '.join(map(str, paths))}")


def write_report(evaluation: Evaluation, folder: str | os.PathLike, **origin) -> pathlib.Path:
    """Writes the evaluation with `origin` (model, data_dir, step) to <folder>/evaluation/<name>-<split>.json."""
    path = pathlib.Path(folder) / "evaluation" / f"{evaluation.name}-{evaluation.split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {**origin, **dataclasses.asdict(evaluation)}
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
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
