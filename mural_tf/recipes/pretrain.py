"""Pretraining in one command: data, training, evaluation, export, and a search to look at."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.encoders.fused import enable_fusion
from mural_tf.models import ContrastiveModel, build_model
from mural_tf.recipes.finish import evaluate_split, finish, is_finished
from mural_tf.training.fit import compile_model, fit
from mural_tf.training.sources import prepare_data, prepare_tokenizer
from mural_tf.training.strategy import build_strategy
from mural_tf.training.workdir import open_workdir


def pretrain(config: ConfigDict, workdir: str | pathlib.Path, tpu: str = "", debug_nans: bool = False) -> None:
    """Trains from scratch, or from where the same command stopped, then evaluates, exports and shows a search.

    Args:
      config: the resolved configuration.
      workdir: the run's folder; made if missing. A finished run says so and changes nothing.
      tpu: as `build_strategy` takes it.
      debug_nans: stop at the first operation that yields NaN or infinity.

    Raises:
      ConfigurationError: anything the user can put right: data, configuration, workdir, disk.
    """
    train_and_finish(config, open_workdir(workdir, config), tpu, debug_nans)


def train_and_finish(
    config: ConfigDict,
    workdir: pathlib.Path,
    tpu: str,
    debug_nans: bool,
    initialize: Callable[[ContrastiveModel], None] | None = None,
) -> None:
    """The part that pretraining and fine-tuning share; `initialize` sets the weights of a run's first start."""
    if is_finished(workdir):
        print(f"{workdir} is finished: all {config.train.steps:,} steps are trained, evaluated and exported.")
        finish(None, None, config, workdir)
        return
    if debug_nans:
        enable_fusion(False)  # the check cannot look into compiled functions
        tf.debugging.enable_check_numerics()
    tf.keras.utils.set_random_seed(config.seed)
    prepare_data(config)
    tokenizer = prepare_tokenizer(config, workdir)
    strategy = build_strategy(tpu)
    with strategy.scope():
        model = build_model(config, tokenizer.vocabulary_size)
        if initialize is not None:
            initialize(model)
        compile_model(model, config)
    size = f"{config.model} ({model.count_params():,} parameters)"
    print(f"Training {size} for {config.train.steps:,} steps in {workdir}.", flush=True)
    evaluate = evaluate_split(model, tokenizer, config, workdir, "dev")
    if not fit(model, tokenizer, config, workdir, strategy, evaluate):
        print(f"Stopped by a signal; everything is saved in {workdir}. The same command goes on from there.")
        return
    finish(model, tokenizer, config, workdir)
