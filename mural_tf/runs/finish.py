"""The end of a run, after its last training step: evaluation, export, a search, and a summary of the files."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ml_collections import ConfigDict

from mural_lite.config import base_config, has_images
from mural_lite.config_file import load_config
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json, write_whole
from mural_lite.remote_folders import display_name
from mural_lite.trust import names_code
from mural_lite.versions import VERSIONS
from mural_tf.data import records
from mural_tf.encoders.adapters import embed_class_names
from mural_tf.evaluation.retrieval import Evaluation, measure_retrieval
from mural_tf.evaluation.tables import group_table, metrics_row, write_report
from mural_tf.export.saved_model import export_model
from mural_tf.models import method_class, takes_steps
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.models.embedder import embedder_of
from mural_tf.models.frozen import known_texts
from mural_tf.models.states import KnownStates
from mural_tf.runs.finished import SUMMARY
from mural_tf.runs.report_page import NAME as REPORT_PAGE
from mural_tf.runs.report_page import find_examples, training_seconds, write_report_page
from mural_tf.training.checkpoints import existing_name, restore_for_inference
from mural_tf.training.evaluated import evaluations_of
from mural_tf.training.metrics_file import append_metrics, has_evaluation, keep_metrics, read_metrics


class MeasuredModel:
    """The model to evaluate and export: the trained one, or a copy if there are several replicas or averaged weights.

    The copy is on one device and has the weights of the latest checkpoint. So one process evaluates, with the BatchNorm
    statistics of a checkpoint, which are averaged over the replicas. Weights that are averaged over steps replace the
    latest weights.

    Args:
      model: the model that is trained.
      tokenizer: the run's tokenizer.
      config: the run's configuration.
      workdir: the run's folder.
      alone: whether only one replica trains.
    """

    def __init__(self, model: DualEncoder, tokenizer, config: ConfigDict, workdir: pathlib.Path, alone: bool):
        self._average = model.step.average
        self._is_original = alone and self._average is None
        self._model = model.towers if self._is_original else None
        self._config = config
        self._workdir = workdir
        self.tokenizer = tokenizer
        self._restored_step = None  # the step of the copy's weights
        self._embedder = None

    def at(self, step: int) -> DualEncoder:
        """Returns the model at `step`; restores a copy from the latest checkpoint, which must be of the same step."""
        if self._model is None:
            # Keras calls back in the strategy's scope, where all workers would have to make the copy's variables;
            # another thread is outside that scope.
            with concurrent.futures.ThreadPoolExecutor(1) as outside:
                self._model = outside.submit(build_model, self._config, self.tokenizer.vocabulary_size).result()
        if not self._is_original and self._restored_step != step:
            restore_for_inference(self._model, self._workdir, "latest")
            if self._average is not None:
                for weight, average in zip(self._model.trainable_variables, self._average.values):
                    weight.assign(average.read_value())
            self._restored_step = step
        embed_class_names(self._model.image_encoder, self._model.text_head(self._model.head_names[0]))
        return self._model

    def embedder(self, step: int, made_texts: KnownStates | None = None) -> Embedder:
        """Returns the embedder of `at(step)`; the first call makes it for all others, because it is slow to trace.

        Args:
          step: the step that training has reached.
          made_texts: of the first call: texts that skip the text tower; `None`: texts whose states runs have made.
        """
        model = self.at(step)
        if self._embedder is None:
            made_texts = made_texts or known_texts(model, self._config, self._workdir)
            name = display_name(self._workdir)
            self._embedder = embedder_of(model, self.tokenizer, self._config, name, made_texts=made_texts)
        self._embedder.step = step
        return self._embedder


class SplitEvaluation:
    """Measures image-text retrieval on one split; `training.callbacks.PeriodicEvaluation` calls it.

    Attributes:
      name: begins the keys of its metrics, such as "retrieval" or "retrieval_dev".
      model: returns the model after a step.
      split: the split that is measured.
    """

    def __init__(self, measured: MeasuredModel, config: ConfigDict, split: str):
        name = "emoji" if config.data.source == "emoji" else "retrieval"
        self.name = name if split == config.evaluation.split else f"{name}_{split}"  # one metrics.jsonl holds both
        self.model = measured.at
        self.split = split
        self._measured = measured
        self._config = config
        self._last_line = ""

    def __call__(self, step: int) -> Evaluation | None:
        """Returns the evaluation, or prints why it is missing and returns `None`.

        So it is for a model without image tower, and for data without this split: often there is only training data.
        """
        data = self._config.data.directory
        if not has_images(self._config.image_tower):
            self._print_once("No evaluation with images: the model has no image tower.")
            return None
        try:
            records.list_files(data, records.IMAGE_TEXT, self.split)
        except UserError as error:
            self._print_once(f"No evaluation: {error}")
            return None
        embedder = self._measured.embedder(step)
        groups = self._config.evaluation.groups.to_dict()
        if groups == base_config().evaluation.groups.to_dict():
            groups = None  # not chosen: the data's own
        return measure_retrieval(embedder, data, self.split, name=self.name, groups=groups)

    def _print_once(self, line: str) -> None:
        """Prints a line, once for all evaluations of a run."""
        if line != self._last_line:
            print(line, flush=True)
        self._last_line = line


EXPORT = "export"


def _is_exported(export: pathlib.Path, steps: int) -> bool:
    """Whether a folder holds the export of step `steps`, and not of the run before it was lengthened."""
    config = export / "config.json"
    return config.exists() and load_config(config).train.steps == steps


def finish_run(
    measured: MeasuredModel, config: ConfigDict, workdir: pathlib.Path, make_evaluator: Callable = SplitEvaluation
) -> None:
    """Evaluates, exports, searches, writes the report and summary.json, and prints the summary.

    Each file appears when it is complete, and the summary last: an interrupted end of a run can be repeated.

    Args:
      measured: the trained model.
      config: the run's configuration.
      workdir: the run's folder.
      make_evaluator: called with (measured, config, split); returns an evaluator such as `SplitEvaluation`.
    """
    step = config.train.steps
    seconds = {"training": training_seconds(read_metrics(workdir))}
    print(f"Evaluating on {config.evaluation.split} …", flush=True)
    evaluator = make_evaluator(measured, config, config.evaluation.split)
    with _timed(seconds, "evaluation"):
        evaluation = evaluator(step)
    if evaluation is not None:
        _save_evaluation(evaluation, evaluator.name, config, workdir)
    if config.train.export and _needs_export(workdir / EXPORT, step):
        print("Exporting …", flush=True)
        with _timed(seconds, "export"):
            _export(measured, config, workdir)
    embedder = None
    if evaluation is not None:
        embedder = measured.embedder(step)
    print("Writing the report …", flush=True)
    searches = {}
    with _timed(seconds, "search"):
        if embedder is not None:
            searches = find_examples(evaluation, embedder, config)
    write_report_page(workdir, config, evaluation, embedder, seconds, searches)
    summary = _summary(config, workdir, evaluation, searches)
    write_whole(workdir / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    describe(config, workdir)


def _save_evaluation(evaluation: Evaluation, name: str, config: ConfigDict, workdir: pathlib.Path) -> None:
    """Writes the last step's evaluation to metrics.jsonl, in place of an earlier row, and to its report."""
    step = config.train.steps
    data = config.data.directory
    # A run that was killed after its evaluation has the row already.
    keep_metrics(workdir, lambda row: not has_evaluation(row, name, step))
    append_metrics(workdir, metrics_row([evaluation], step, data, existing_name(workdir, "result")))
    write_report(evaluation, workdir, model=display_name(workdir), data_dir=data, step=step)


def _needs_export(export: pathlib.Path, steps: int) -> bool:
    """Whether a folder lacks the export of this step; False, and a printed line, if it has versions, which stay."""
    if (export / VERSIONS).is_dir():
        print(f"{export} has versions and stays as it is; `python -m mural_tf export --version=N` adds another one.")
        return False
    return not _is_exported(export, steps)


def _export(measured: MeasuredModel, config: ConfigDict, workdir: pathlib.Path) -> None:
    """Exports the run's result, with its evaluations on the model card."""
    step = config.train.steps
    evaluations = evaluations_of(workdir, step, True, existing_name(workdir, "result"))
    export_model(measured.at(step), measured.tokenizer, config, workdir / EXPORT, evaluations, overwrite=True)


def _summary(
    config: ConfigDict, workdir: pathlib.Path, evaluation: Evaluation | None, searches: Mapping[str, Sequence]
) -> dict[str, object]:
    """Returns the values of summary.json, by which `describe` prints a finished run.

    Args:
      config: the run's configuration.
      workdir: the run's folder.
      evaluation: the evaluation of its last step; `None`: nothing was evaluated.
      searches: the result of `find_examples`.
    """
    metrics = {}
    table = ""
    if evaluation is not None:
        metrics = evaluation.metrics
        table = group_table(metrics, evaluation.name, evaluation.groups, len(evaluation.sizes))
    searched = []
    for sentence, pictures in searches.items():
        names = [name for name, _ in pictures[:3]]  # as many as fit a line
        searched.append(f"{sentence!r}: {', '.join(names)}, …")
    parameter_counts = [row["train/parameters"] for row in read_metrics(workdir) if "train/parameters" in row]
    return {
        "step": config.train.steps,
        "data": config.data.directory,
        "split": config.evaluation.split,
        "table": table,
        "metrics": metrics,
        "search": searched,
        "parameters": int(parameter_counts[-1]) if parameter_counts else None,  # that the losses reach
    }


@contextlib.contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Sets `seconds[stage]` to the time that the block takes."""
    begun = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - begun


def describe(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Prints the summary of a finished run, and commands that use its model."""
    path = workdir / SUMMARY
    summary = read_json(path)
    table = json_field(summary, "table", str, path)
    data = json_field(summary, "data", str, path, config.data.directory)  # earlier summaries lack it
    split = json_field(summary, "split", str, path)
    export = workdir / EXPORT
    lines = [""]
    if table:
        lines += [f"Mean recall on {data}, split {split}:", table, ""]
    lines += [f"Found for {line}" for line in json_field(summary, "search", list[str], path)]
    lines += ["Written:", f"  {workdir / 'checkpoints'}  weights and optimiser"]
    if export.exists():
        lines.append(f"  {export}  both encoders as SavedModels")
    lines += [
        f"  {workdir / 'metrics.jsonl'}, {workdir / 'tensorboard'}  numbers of every step",
        f"  {workdir / REPORT_PAGE}  a page of all this, to look at or to mail",
        "Next:",
    ]
    lines += [f"  {command}" for command in _next_commands(config, workdir, split, bool(table))]
    print(display_name("\n".join(lines)))


def _next_commands(config: ConfigDict, workdir: pathlib.Path, split: str, is_evaluated: bool) -> list[str]:
    """Returns the commands that search, evaluate and fine-tune the model of a finished run."""
    data = config.data.directory
    export = workdir / EXPORT
    method = method_class(config.model)
    trust = ["--trust"] if names_code(config) else []  # a workdir whose configuration names code is not loaded without
    commands = []  # lists of arguments
    if has_images(config.image_tower):
        # A workdir has the states of texts that training made, so that an index takes half of the time.
        model = workdir
        if names_code(config) and export.exists():
            model = export  # needs no --trust
        index = ["search", "index", data]
        if is_evaluated:
            index.append(f"--split={split}")
        commands.append([*index, f"--model={model}", "--output=my_index"])
    if is_evaluated:
        commands.append(["evaluate", f"--model={workdir}", *trust, f"--data_dir={data}", f"--split={split}"])
    if takes_steps(method):
        finetune = ["finetune", "--config=finetune"]
        if method.starts_from:
            # Fine-tuning on captions follows a stage only if it is told to; otherwise the stage goes on as itself.
            finetune.append("--config.other_method=True")
        finetune += [f"--from={workdir}", *trust, f"--workdir={display_name(workdir)}_tuned"]
        commands.append([*finetune, f"--config.data.directory={data}"])
    return [" ".join(["python -m mural_tf", *arguments]) for arguments in commands]
