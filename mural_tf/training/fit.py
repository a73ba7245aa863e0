"""The loop that pretraining and fine-tuning share: restore, `fit` until the last step, save."""

from __future__ import annotations

import contextlib
import math
import pathlib
import re
from collections.abc import Iterator

import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict

from mural_lite.errors import UserError, is_out_of_memory
from mural_tf.data.records import describe_files, missing_shards
from mural_tf.data.skipped_records import SkippedRecords
from mural_tf.data.streams.epochs import ALL, Share, unusable
from mural_tf.data.streams.image_groups import captions_per_image
from mural_tf.data.streams.pipeline import batch_size, part_name, stream_class, stream_sources, training_batches
from mural_tf.models import method_class, streams_of, takes_steps
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.models.frozen import columns_of
from mural_tf.optimizers import build_optimizers
from mural_tf.training.callbacks import (
    AtChance,
    Forecast,
    Intervals,
    PeriodicEvaluation,
    Profile,
    SaveCheckpoints,
    StopAfterStep,
    StopSignals,
    TrainingLog,
)
from mural_tf.training.checkpoints import training_checkpoints
from mural_tf.training.data_progress import DataProgress
from mural_tf.training.strategy import (
    chief_first,
    compiles_steps,
    input_pipelines,
    is_chief,
    sum_over_workers,
    workers,
)
from mural_tf.training.workdir import data_changes, drop_metrics, note_data, read_metrics

LEAST = {  # of the counts in the configuration's `train`
    **dict.fromkeys(("steps", "image_text_batch", "text_text_batch", "micro_batches", "keep_checkpoints"), 1),
    **dict.fromkeys(("log_every", "checkpoint_every", "evaluate_every", "max_skipped_steps"), 0),
}

ENDS_OF_WORKERS = (  # as the others see them
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError,
    tf.errors.DeadlineExceededError,
)  # fmt: skip


def compile_model(model: DualEncoder, config: ConfigDict) -> None:
    """Gives the model its configured optimisers; call it in the strategy's scope."""
    train, optimizer = config.train, config.optimizer
    lengths = train.compiled_lengths if compiles_steps(config, tf.distribute.get_strategy()) else ()
    if tuple(lengths) != tuple(sorted(set(lengths))) or any(length < 1 for length in lengths):
        raise UserError(f"train.compiled_lengths={tuple(lengths)}: expected increasing numbers of tokens from 1 on.")
    model.compile(
        optimizers=build_optimizers(optimizer, train.steps or 1, model.variable_groups(), model.loss_weights()),
        clip_norm=optimizer.clip_norm,
        micro_batches=train.micro_batches,
        max_skipped_steps=train.max_skipped_steps,
        seed=config.seed,
        steps_per_execution=train.steps_per_execution,
        jit_compile=train.jit,
        compiled_lengths=tuple(lengths),
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
    profile: tuple[int, int] | None = None,
) -> bool:
    """Trains a compiled model from the workdir's latest usable checkpoint to `train.steps`.

    Args:
      signals: entered; while steps run they end training after the running one.
      evaluate: see `PeriodicEvaluation`; called every `train.evaluate_every` steps, if given.
      profile: see `Profile`.

    Returns:
      Whether the last step was reached; `False` if a signal stopped the run (its state is saved).

    Raises:
      UserError: unusable data, a checkpoint that does not fit, or a full disk.
      StopRequested: a signal during an evaluation; everything trained is saved.
    """
    train, writes = config.train, is_chief(strategy)
    intervals = Intervals.of(train)
    sources = {stream: stream_sources(config.data, stream) for stream in model.streams}
    with strategy.scope():
        pipelines = input_pipelines(strategy) if _reads_share(config) else 1
        model.progress = DataProgress({stream: len(parts) for stream, parts in sources.items()}, pipelines)
        checkpoints = training_checkpoints(model, workdir, train.keep_checkpoints, writes, model.progress.saved())
        restored = checkpoints.restore()
        reason = model.progress.restore(restored) if restored else ""
        step = _common_step(model, strategy)
        if reason and writes:
            print(f"Step {step:,}: {reason}. Training goes on with a new epoch of the data.", flush=True)
        _compare_data(model.progress, sources, workdir, step, writes)
    if writes:
        drop_metrics(workdir, lambda row: row["step"] <= step)
    skipped = _skipped_records(sources, workdir)
    pairs = sum(batch_size(config, stream) for stream in model.streams)
    log = TrainingLog(workdir, step, train.steps, pairs, skipped, writes)
    evaluate_every = train.evaluate_every if evaluate is not None else 0
    evaluation = PeriodicEvaluation(evaluate, log, checkpoints, signals, intervals, evaluate_every)
    # Saved before each evaluation too, which then may be interrupted.
    saving = SaveCheckpoints(checkpoints, log, intervals, (train.checkpoint_every, evaluate_every))
    callbacks = [log, StopAfterStep(signals, strategy), saving, evaluation, *_observers(model, config, log, strategy)]
    if profile:
        callbacks.append(Profile(profile, log))

    with log:
        first = train.evaluate_first and step == 0
        if first and not restored:
            checkpoints.save(0)  # what is evaluated, as before every evaluation
        evaluation.evaluate_if_due(step, first and evaluate is not None)  # also what an interrupted run had no time for
        if step >= train.steps:
            return True
        checkpoints.prepare()
        columns = chief_first(strategy, lambda: columns_of(model, config, tokenizer, workdir))

        def batches():
            skipped.begin()
            return _distribute(strategy, model, tokenizer, config, columns)

        try:
            with signals.after_the_step():
                _fit_intervals(model, batches, intervals.after(step), callbacks)
        except tf.errors.OpError as error:
            stream_and_tally = unusable(error)
            if stream_and_tally is not None:
                skipped.stop(*stream_and_tally, config.data.max_skipped_fraction)
            raise
        finally:
            checkpoints.wait()
    return log.step >= train.steps


def _observers(model: DualEncoder, config: ConfigDict, log: TrainingLog, strategy: tf.distribute.Strategy) -> list:
    """Returns what looks at the numbers of a run and speaks up."""
    chance = {task: batch_size(config, model.tasks[task].stream) for task in model.compared_pairs()}
    # Fine-tuning is something that people wait for; several workers cannot ask.
    asks = config.train.evaluate_first and workers(strategy) == 1
    return [Forecast(log, asks), AtChance(log, chance, config.optimizer.warmup_steps)]


def _reads_share(config: ConfigDict) -> bool:
    if config.data.read not in ("share", "all"):
        raise UserError(f"Unknown data.read {config.data.read!r}; known: share, all.")
    return config.data.read == "share"


def _compare_data(progress: DataProgress, sources, workdir: pathlib.Path, step: int, writes: bool) -> None:
    """Says how the data differs from the checkpoint's; places do not carry over."""
    parts = {source: set() for entries in sources.values() for source, _ in entries}
    for source, files in (entry for entries in sources.values() for entry in entries):
        parts[source].update(files)
    missing = [name for files in parts.values() for name in missing_shards(sorted(files))]
    if missing and writes:
        logging.warning("Training without %d files that others name: %s …", len(missing), missing[0])
    data = {"files": {}, "dataset": ""}
    for source, files in parts.items():
        described = describe_files(source.directory, sorted(files))
        inside = f"{source.name}/" if source.name else ""
        data["files"].update({inside + name: size for name, size in described["files"].items()})
        data["dataset"] += described["dataset"]
    changes = data_changes(workdir, step, data)
    if changes:
        if writes:
            shown = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
            print(
                f"The training data changed since step {step:,}: {shown}. Training goes on with a new epoch of the "
                "data as they are now.",
                flush=True,
            )
        progress.next_epochs()
    if writes:
        note_data(workdir, step, data)


def _skipped_records(sources, workdir: pathlib.Path) -> SkippedRecords:
    """Counts on from the records skipped before this start, as metrics.jsonl has them."""
    before = [row["train/skipped_records"] for row in read_metrics(workdir) if "train/skipped_records" in row]

    def place_of(files):
        return lambda file, byte: f"{files[file]}, byte {byte}"

    parts = {part_name(stream, source): place_of(files) for stream in sources for source, files in sources[stream]}
    return SkippedRecords(parts, int(before[-1]) if before else 0)


def _common_step(model: DualEncoder, strategy: tf.distribute.Strategy) -> int:
    """Returns the step that was restored; raises `UserError` if other workers restored another one."""
    step = int(model.steps_taken.numpy())
    if sum_over_workers(strategy, step) != step * workers(strategy):
        raise UserError(
            f"The workers restored different steps, this one {step}: --workdir must be one folder that all of them see."
        )
    return step


def _fit_intervals(model, batches, parts: list[tuple[int, int]], callbacks) -> None:
    for count, steps in parts:
        if not model.stop_training:
            # A data set, not an iterator: that one would take every batch through Python.
            model.fit(batches(), epochs=count, steps_per_epoch=steps, callbacks=callbacks, verbose=0)


def check_train(config: ConfigDict, replicas: int, where: str) -> None:
    """Raises `UserError` for counts that are too small, and if the replicas cannot share the batches evenly.

    Args:
      config: a complete configuration.
      replicas: that share a batch.
      where: what has them, for the message.
    """
    train = config.train
    for name, least in LEAST.items():
        least = 0 if name == "steps" and not takes_steps(method_class(config.model)) else least
        if train[name] < least:
            zero = " Only fine-tuning (run_finetune.py --from=…) takes 0 for values that follow from the data."
            hint = zero if name in ("steps", "image_text_batch", "text_text_batch") else ""
            raise UserError(f"train.{name}={train[name]}: expected {least} or more.{hint}")
    for name, group in _batch_fields(config).items():
        if train[name] % (replicas * group * train.micro_batches):
            shared = "1 replica" if replicas == 1 else f"{replicas} replicas"
            groups = f", and method.captions_per_image={group}" if group > 1 else ""
            chunks = f", and train.micro_batches={train.micro_batches}" if train.micro_batches > 1 else ""
            raise UserError(
                f"train.{name}={train[name]} must be a multiple of {replicas * group * train.micro_batches}: {where} "
                f"has {shared}{groups}{chunks}."
            )


def _batch_fields(config: ConfigDict) -> dict[str, int]:
    """Returns {field of `config.train` that a stream of the method reads: captions that share an image in it}."""
    fields = {stream_class(stream).batch_field for stream in streams_of(config)}
    return {name: max(captions_per_image(config), 1) if name == "image_text_batch" else 1 for name in sorted(fields)}


def chunk_numbers(config: ConfigDict, replicas: int) -> list[int]:
    """Returns the numbers above `train.micro_batches` that divide a replica's part of all batches, increasing."""
    parts = [config.train[name] // group // replicas for name, group in _batch_fields(config).items()]
    shared = math.gcd(*parts)
    return [number for number in range(config.train.micro_batches + 1, shared + 1) if shared % number == 0]


@contextlib.contextmanager
def failures_in_one_line(config: ConfigDict, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Raises `UserError` for what TensorFlow tells in a hundred lines: a full device, and the end of another worker."""
    try:
        yield
    except tf.errors.OpError as error:
        if is_out_of_memory(error):
            chunks, remedy = chunk_numbers(config, strategy.num_replicas_in_sync), "take smaller batches"
            if chunks:
                remedy = f"encode a batch in more chunks, with --config.train.micro_batches={chunks[0]}"
            raise UserError(
                f"A device of this machine has too little memory: {remedy}; --dry_run lists what a step needs. "
                "Evaluations take fewer images and texts at a time with --config.evaluation.batch_size."
            ) from None
        if workers(strategy) > 1 and isinstance(error, ENDS_OF_WORKERS):
            raise UserError(
                f"Another worker of this run ended or cannot be reached ({_reason(error)}); if it stopped by itself, "
                "its own message says why. The last checkpoint is intact: start all workers again by the same command."
            ) from None
        raise


def _reason(error: tf.errors.OpError) -> str:
    """What befell the connection to another worker, without the places in code that TensorFlow tells with it."""
    ends = r"heartbeat timeout|(connection|socket|channel)[\w ]* (closed|refused|reset|broken)"
    match = re.search(ends, error.message, re.IGNORECASE)
    return match[0] if match else type(error).__name__


def _distribute(strategy: tf.distribute.Strategy, model, tokenizer, config: ConfigDict, columns: dict):
    """Returns the batches from the model's data position on, with `columns_of` the run, split over the replicas."""
    replicas = strategy.num_replicas_in_sync
    one_cpu = replicas == 1 and not isinstance(strategy, tf.distribute.TPUStrategy)
    one_cpu = one_cpu and not (config.train.jit or tf.config.list_logical_devices("GPU"))
    pad = "longest" if one_cpu else "max_length"  # accelerators and replicas need static shapes

    def batches_of(number, pipelines):
        shares = _reads_share(config)
        places, share = model.progress.of_pipeline(number if shares else 0), Share(number, pipelines)
        share = share if shares else ALL
        batches = training_batches(config, tokenizer, places, model.streams, pad, share, columns)
        if replicas == 1:
            return batches
        if shares:
            return rows_of_replicas(batches, replicas // pipelines)
        return rows_of_replicas(batches, replicas, number, pipelines)

    if replicas == 1:
        return batches_of(0, 1)
    return strategy.distribute_datasets_from_function(
        lambda context: batches_of(context.input_pipeline_id, context.num_input_pipelines)
    )


def rows_of_replicas(batches: tf.data.Dataset, replicas: int, pipeline: int = 0, pipelines: int = 1) -> tf.data.Dataset:
    """Returns, for each batch, one element per replica of an input pipeline: its rows, in the replicas' order.

    `experimental_distribute_dataset` feeds the same rows, but guesses from shapes what to divide: it gives the waiting
    time to one replica only, and a shape that is not static.

    Args:
      batches: dictionaries of tensors [B, …], and some [1, …] that every replica gets: `data_wait_seconds`, places and
        tallies.
      replicas: that share a batch.
      pipeline: which rows are taken, where several input pipelines read the same batches.
      pipelines: how many pipelines do, each feeding as many replicas.
    """
    local = replicas // pipelines

    def rows(batch):
        parts = {}
        for name, values in batch.items():
            if name == "data_wait_seconds" or name.endswith(("_place", "_tally")):
                parts[name] = tf.repeat(values[None], local, axis=0)
                continue
            for_replicas = tf.nest.map_structure(
                lambda value: tf.reshape(value, [replicas, value.shape[0] // replicas, *value.shape[1:]]), values
            )
            begin = pipeline * local
            parts[name] = tf.nest.map_structure(lambda v, begin=begin: v[begin : begin + local], for_replicas)
        return tf.data.Dataset.from_tensor_slices(parts)

    return batches.flat_map(rows)
