"""The loop that pretraining and fine-tuning share: restore, `fit` until the last step, save."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.data.records import describe_files, missing_shards
from mural_tf.data.skipped_records import SkippedRecords
from mural_tf.data.streams.epochs import ALL, Share, unusable
from mural_tf.data.streams.pipeline import batch_size, part_name, stream_sources, training_batches
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.optimizers import build_optimizers
from mural_tf.training.callbacks import (
    Intervals,
    PeriodicEvaluation,
    SaveCheckpoints,
    StopAfterStep,
    StopSignals,
    TrainingLog,
)
from mural_tf.training.checkpoints import Checkpoints, training_checkpoints
from mural_tf.training.data_progress import DataProgress
from mural_tf.training.metrics_file import keep_metrics, read_metrics
from mural_tf.training.trained_on import data_changes, note_data
from mural_tf.training.workers import chief_first, compiles_steps, input_pipelines, is_chief, sum_over_workers, workers

# Tokens. Where XLA compiles a step, each of `text_tower.length_groups` runs at one of these or at `max_length`: a third
# and a fourth length would make each compilation longer, and most captions are shorter than 32.
COMPILED_LENGTHS = (16, 32)
KEPT_CHECKPOINTS = 3  # the latest; two more than needed, for a disk that damages one
SHOWN_CHANGES = 3  # of the data, in a message


def compile_model(model: DualEncoder, config: ConfigDict) -> None:
    """Compiles the model with its configured optimisers and settings of a step; call it in the strategy's scope."""
    train = config.train
    optimizer = config.optimizer
    lengths = ()
    if compiles_steps(config, tf.distribute.get_strategy()):
        lengths = COMPILED_LENGTHS
    steps = train.steps or 1  # a method that takes no steps has 0, and a schedule needs 1 at least
    model.compile(
        optimizers=build_optimizers(optimizer, steps, model.variable_groups(), model.loss_weights()),
        clip_norm=optimizer.clip_norm,
        micro_batches=train.micro_batches,
        seed=config.seed,
        steps_per_execution=train.steps_per_execution,
        jit_compile=train.jit,
        compiled_lengths=lengths,
        average_decay=train.average_decay,
    )


def fit(
    model: DualEncoder,
    tokenizer,
    config: ConfigDict,
    workdir: pathlib.Path,
    strategy: tf.distribute.Strategy,
    signals: StopSignals,
    evaluate=None,
    make_columns: Callable[..., dict] | None = None,
    make_observers: Callable[..., list] | None = None,
) -> bool:
    """Trains a compiled model from the workdir's latest usable checkpoint to `train.steps`, and saves it there.

    Args:
      model: compiled by `compile_model`.
      tokenizer: the run's tokenizer.
      config: the run's configuration.
      workdir: the run's folder.
      strategy: the strategy of the run.
      signals: entered; while steps run they end training after the running one.
      evaluate: see `PeriodicEvaluation`; called every `train.evaluate_every` steps, if given.
      make_columns: returns the columns of batches, as `models.frozen.columns_of` does; called before the first step,
        once a checkpoint is restored. `None`: the method's own.
      make_observers: returns further callbacks, as `observers.observers` does; `None`: there are only this loop's own.

    Returns:
      Whether the last step was reached; `False` if a signal stopped the run (its state is saved).

    Raises:
      UserError: unusable data, a checkpoint that does not fit, or a full disk.
      StopRequested: a signal during an evaluation; everything trained is saved.
    """
    train = config.train
    writes = is_chief(strategy)
    intervals = Intervals.of(train)
    sources = {stream: stream_sources(config.data, stream) for stream in model.streams}
    with strategy.scope():
        checkpoints, is_restored, step = _restore(model, config, workdir, strategy, sources)
    if writes:
        keep_metrics(workdir, lambda row: row["step"] <= step)
    skipped = _skipped_records(sources, workdir)
    pairs = sum(batch_size(config, stream) for stream in model.streams)
    log = TrainingLog(workdir, step, train.steps, pairs, skipped, writes)
    evaluate_every = 0
    if evaluate is not None:
        evaluate_every = train.evaluate_every
    evaluation = PeriodicEvaluation(evaluate, log, checkpoints, signals, intervals, evaluate_every)
    # Saved before each evaluation too, which then may be interrupted.
    saving = SaveCheckpoints(checkpoints, log, intervals, (train.checkpoint_every, evaluate_every))
    callbacks = [log, StopAfterStep(signals, strategy), saving, evaluation]
    if make_observers is not None:
        callbacks += make_observers(model, config, log, strategy)

    with log:
        evaluates_first = train.evaluate_first and step == 0
        if evaluates_first and not is_restored:
            checkpoints.save(0)  # as before every evaluation
        # Due are the first evaluation, and one that an interrupted run left out.
        evaluation.evaluate_if_due(step, evaluates_first and evaluate is not None)
        if step >= train.steps:
            checkpoints.wait()  # a full disk shows here
            return True
        checkpoints.prepare()
        make_columns = make_columns or type(model).columns
        columns = chief_first(strategy, lambda: make_columns(model, config, tokenizer, workdir))

        def batches():
            skipped.begin()
            return _distribute(strategy, model, tokenizer, config, columns)

        try:
            with signals.after_the_step(), _unusable_data(skipped, config.data.max_skipped_fraction):
                _fit_intervals(model, batches, intervals.after(step), callbacks)
        finally:
            checkpoints.wait()
    return log.step >= train.steps


@contextlib.contextmanager
def _unusable_data(skipped: SkippedRecords, max_fraction: float) -> Iterator[None]:
    """Inside, `UserError` takes the place of TensorFlow's error for a source that skips too many records."""
    try:
        yield
    except tf.errors.OpError as error:
        part_and_tally = unusable(error)
        if part_and_tally is not None:
            skipped.stop(*part_and_tally, max_fraction)  # raises the `UserError`
        raise


def _restore(
    model: DualEncoder,
    config: ConfigDict,
    workdir: pathlib.Path,
    strategy: tf.distribute.Strategy,
    sources: dict[str, list],
) -> tuple[Checkpoints, bool, int]:
    """Restores the model and its place in the data, and prints why a new epoch begins if the data changed.

    Call it in the strategy's scope. Returns the workdir's checkpoints, whether one was restored, and its step or 0.

    Args:
      model, config, workdir, strategy: as in `fit`.
      sources: {stream: (source, its files) of each source}.
    """
    writes = is_chief(strategy)
    pipelines = 1
    if _reads_share(config):
        pipelines = input_pipelines(strategy)
    source_counts = {stream: len(sources_of_stream) for stream, sources_of_stream in sources.items()}
    model.progress = DataProgress(source_counts, pipelines)
    checkpoints = training_checkpoints(model, workdir, KEPT_CHECKPOINTS, writes, model.progress.saved())
    path = checkpoints.restore()
    misfit = ""
    if path:
        misfit = model.progress.restore(path)
    step = _common_step(model, strategy)
    if misfit and writes:
        print(f"Step {step:,}: {misfit}. Training goes on with a new epoch of the data.", flush=True)
    _adapt_to_data(model.progress, sources, workdir, step, writes)
    return checkpoints, bool(path), step


def _reads_share(config: ConfigDict) -> bool:
    """Whether each input pipeline reads only its share of the data; raises `UserError` for an unknown `data.read`."""
    if config.data.read not in ("share", "all"):
        raise UserError(f"Unknown data.read {config.data.read!r}; known: share, all.")
    return config.data.read == "share"


def _adapt_to_data(progress: DataProgress, sources, workdir: pathlib.Path, step: int, writes: bool) -> None:
    """Begins a new epoch if the data changed since the checkpoint of `step`, prints how, and notes the present data."""
    data = _describe_data(sources, writes)
    changes = data_changes(workdir, step, data)
    if changes:
        progress.next_epochs()
    if changes and writes:
        summary = "; ".join(changes[:SHOWN_CHANGES])
        if len(changes) > SHOWN_CHANGES:
            summary += f"; and {len(changes) - SHOWN_CHANGES} more"
        print(
            f"The training data changed since step {step:,}: {summary}. Training goes on with a new epoch of the "
            "data as they are now.",
            flush=True,
        )
    if writes:
        note_data(workdir, step, data)


def _describe_data(sources: dict[str, list], warns: bool) -> dict:
    """Returns {"files": {name: bytes}, "dataset": digest} of all streams; a source's name comes before its files'.

    Args:
      sources: {stream: (source, its files) of each source}.
      warns: whether to warn of missing files.
    """
    files_of = collections.defaultdict(set)
    for source, files in itertools.chain(*sources.values()):
        files_of[source].update(files)
    data = {"files": {}, "dataset": ""}
    missing = []
    for source, files in files_of.items():
        missing += missing_shards(sorted(files))
        description = describe_files(source.directory, sorted(files))
        folder = f"{source.name}/" if source.name else ""
        for name, size in description["files"].items():
            data["files"][folder + name] = size
        data["dataset"] += description["dataset"]
    if missing and warns:
        logging.warning("Training without %d files that others name: %s …", len(missing), missing[0])
    return data


def _skipped_records(sources: dict[str, list], workdir: pathlib.Path) -> SkippedRecords:
    """Returns the counts of skipped records, which go on from the last count of this run in metrics.jsonl.

    Args:
      sources: {stream: (source, its files) of each source}.
      workdir: the run's folder.
    """
    skipped_before = 0
    for row in read_metrics(workdir):
        skipped_before = int(row.get("train/skipped_records", skipped_before))
    locations = {}
    for stream, sources_of_stream in sources.items():
        for source, files in sources_of_stream:
            locations[part_name(stream, source)] = functools.partial(_location, files)
    return SkippedRecords(locations, skipped_before)


def _location(files: list[str], file_number: int, byte: int) -> str:
    """Returns in words where a record begins."""
    return f"{files[file_number]}, byte {byte}"


def _common_step(model: DualEncoder, strategy: tf.distribute.Strategy) -> int:
    """Returns the step that was restored; raises `UserError` if other workers restored another one."""
    step = int(model.steps_taken.numpy())
    if sum_over_workers(strategy, step) != step * workers(strategy):
        raise UserError(
            f"The workers restored different steps, this one {step}: --workdir must be one folder that all of them see."
        )
    return step


def _fit_intervals(model, batches: Callable, interval_runs: list[tuple[int, int]], callbacks) -> None:
    """Runs Keras' `fit` for each (number of intervals, steps in each) of `interval_runs`, until training is stopped.

    `batches` returns a new data set for each run.
    """
    for count, steps in interval_runs:
        if not model.stop_training:
            # Not an iterator, which would take every batch through Python.
            model.fit(batches(), epochs=count, steps_per_epoch=steps, callbacks=callbacks, verbose=0)


def _distribute(strategy: tf.distribute.Strategy, model, tokenizer, config: ConfigDict, columns: dict):
    """Returns the batches from the model's data position on, with the run's columns, split over the replicas."""
    replicas = strategy.num_replicas_in_sync
    pad = "longest"
    if replicas > 1 or _has_accelerator(strategy) or config.train.jit:
        pad = "max_length"  # accelerators, replicas and XLA need static shapes

    def batches_of(share, pipeline):
        places = model.progress.of_pipeline(pipeline)
        return training_batches(config, tokenizer, places, model.streams, pad, share, columns)

    if replicas == 1:
        return batches_of(ALL, 0)

    def batches_of_pipeline(context):
        pipeline = context.input_pipeline_id
        pipelines = context.num_input_pipelines
        if _reads_share(config):
            share = Share(pipeline, pipelines)
            return rows_of_replicas(batches_of(share, pipeline), replicas // pipelines)
        return rows_of_replicas(batches_of(ALL, 0), replicas, pipeline, pipelines)

    return strategy.distribute_datasets_from_function(batches_of_pipeline)


def _has_accelerator(strategy: tf.distribute.Strategy) -> bool:
    """Whether steps run on a TPU or a GPU."""
    return isinstance(strategy, tf.distribute.TPUStrategy) or bool(tf.config.list_logical_devices("GPU"))


def rows_of_replicas(batches: tf.data.Dataset, replicas: int, pipeline: int = 0, pipelines: int = 1) -> tf.data.Dataset:
    """Returns, for each batch, one element per replica of an input pipeline: its rows, in the replicas' order.

    `experimental_distribute_dataset` feeds the same rows, but guesses from shapes what to divide: it gives the waiting
    time to one replica only, and a shape that is not static.

    Args:
      batches: dictionaries of tensors [B, …]; every replica gets the whole of `data_wait_seconds`, places and tallies,
        [1, …].
      replicas: how many replicas share a batch.
      pipeline: the number of this input pipeline, where several read the same batches.
      pipelines: how many pipelines read them, each for as many replicas.
    """
    local_replicas = replicas // pipelines
    begin = pipeline * local_replicas

    def local_rows(values):
        """Returns this pipeline's rows of values [B, …], as [local replicas, rows per replica, …]."""
        rows_per_replica = values.shape[0] // replicas
        by_replica = tf.reshape(values, [replicas, rows_per_replica, *values.shape[1:]])
        return by_replica[begin : begin + local_replicas]

    def elements_of(batch):
        elements = {}
        for name, values in batch.items():
            if name == "data_wait_seconds" or name.endswith(("_place", "_tally")):
                elements[name] = tf.repeat(values[None], local_replicas, axis=0)  # [local replicas, 1, …]
            else:
                elements[name] = tf.nest.map_structure(local_rows, values)
        return tf.data.Dataset.from_tensor_slices(elements)

    return batches.flat_map(elements_of)
