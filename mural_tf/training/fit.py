"""The loop that pretraining and fine-tuning share: restore, `fit` until the last step, save."""

from __future__ import annotations

import pathlib

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.pipeline import training_batches
from mural_tf.data.skipped import SkippedRecords
from mural_tf.models import ContrastiveModel
from mural_tf.optimizers import build_optimizers
from mural_tf.training.callbacks import PeriodicEvaluation, SaveCheckpoints, StopOnSignal, TrainingLog
from mural_tf.training.checkpoints import Checkpoints
from mural_tf.training.workdir import drop_metrics_after


def compile_model(model: ContrastiveModel, config: ConfigDict) -> None:
    """Gives the model its configured optimisers; call it in the strategy's scope."""
    optimizers = build_optimizers(config.optimizer, config.train.steps, model.variable_groups())
    tasks = model.loss_weights()
    if "joint" not in optimizers:
        optimizers = {name: optimizer for name, optimizer in optimizers.items() if name in tasks}
    model.compile(optimizers, steps_per_execution=config.train.steps_per_execution)


def fit(model: ContrastiveModel, tokenizer, config: ConfigDict, workdir: pathlib.Path, strategy, evaluate=None) -> bool:
    """Trains a compiled model from the workdir's latest checkpoint to `train.steps`.

    Args:
      evaluate: called with the step every `train.evaluate_every` steps, if given.

    Returns:
      Whether the last step was reached; `False` if a signal stopped the run (its state is saved).

    Raises:
      ConfigurationError: unusable data, a checkpoint that does not fit, or a full disk.
    """
    train = config.train
    checkpoints = Checkpoints(model, workdir, train.keep_checkpoints)
    checkpoints.restore()
    step = int(next(iter(model.optimizers.values())).iterations)
    if step >= train.steps:
        return True
    drop_metrics_after(workdir, step)
    skipped = SkippedRecords(config.data.max_skipped_fraction)
    batches = _distribute(strategy, model, tokenizer, config, skipped)
    pairs = train.image_text_batch + (train.text_text_batch if "text_text" in model.loss_weights() else 0)
    log = TrainingLog(workdir, train.steps, train.log_every, pairs, skipped)
    signals = StopOnSignal()
    callbacks = [log, signals]
    if evaluate is not None and train.evaluate_every:  # before saving: a run killed meanwhile evaluates again
        callbacks.append(PeriodicEvaluation(evaluate, log, train.evaluate_every))
    callbacks.append(SaveCheckpoints(checkpoints, log, train.checkpoint_every))
    try:
        _fit_intervals(model, batches, step, train, callbacks)
    except tf.errors.OpError:
        skipped.check()  # if unusable data ended training, say that instead
        raise
    return not signals.received


def _fit_intervals(model, batches, step: int, train: ConfigDict, callbacks) -> None:
    """Runs `fit` over whole log intervals and, where they do not divide the steps, one shorter one."""
    whole, rest = divmod(train.steps - step, train.log_every)
    iterator = iter(batches)
    if whole:
        model.fit(iterator, epochs=whole, steps_per_epoch=train.log_every, callbacks=callbacks, verbose=0)
    if rest and not model.stop_training:
        model.fit(iterator, epochs=1, steps_per_epoch=rest, callbacks=callbacks, verbose=0)


def _distribute(strategy, model, tokenizer, config, skipped) -> tf.data.Dataset:
    text_pairs = "text_text" in model.loss_weights()
    position = model.data_position.numpy()
    one_cpu = strategy.num_replicas_in_sync == 1 and not isinstance(strategy, tf.distribute.TPUStrategy)
    pad = "longest" if one_cpu else "max_length"  # accelerators and replicas need static shapes
    dataset = training_batches(config, tokenizer, skipped, position, text_pairs, pad)
    if strategy.num_replicas_in_sync == 1:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return strategy.experimental_distribute_dataset(dataset.with_options(options))
