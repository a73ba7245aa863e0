"""Counts that a run may have: batches that the replicas, the chunks and the captions of an image divide evenly."""

from __future__ import annotations

import math
from collections.abc import Collection

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.data.streams.pipeline import captions_per_image, stream_class
from mural_tf.models import method_class, streams_of, takes_steps

LEAST = {  # of the counts in the configuration's `train`
    **dict.fromkeys(("steps", "image_text_batch", "text_text_batch", "micro_batches", "steps_per_execution"), 1),
    **dict.fromkeys(("log_every", "checkpoint_every", "evaluate_every"), 0),
}


def check_losses(config: ConfigDict) -> None:
    """Raises `UserError` for a seed, a weight or a label smoothing out of its range."""
    if not 0 <= config.seed < 2**31:
        raise UserError(f"seed={config.seed}: expected a number from 0 to {2**31 - 1}.")
    for name in ("image_text_weight", "text_text_weight"):
        if not 0 <= config.loss[name] < math.inf:
            raise UserError(f"loss.{name}={config.loss[name]}: expected 0 or more.")
    if not 0 <= config.loss.label_smoothing < 1:
        raise UserError(f"loss.label_smoothing={config.loss.label_smoothing}: expected 0 or more, and less than 1.")


def check_train(config: ConfigDict, replicas: int, where: str) -> None:
    """Raises `UserError` for counts that are too small, and if the replicas cannot share the batches evenly.

    Args:
      config: a complete configuration.
      replicas: how many replicas share a batch.
      where: the machine that has them, for the message.
    """
    check_losses(config)
    train = config.train
    least = dict(LEAST)
    if not takes_steps(method_class(config.model)):
        least["steps"] = 0
    for name, smallest in least.items():
        if train[name] < smallest:
            hint = ""
            if name in ("steps", "image_text_batch", "text_text_batch"):
                hint = " Only fine-tuning (run_finetune.py --from=…) takes 0 for values that follow from the data."
            raise UserError(f"train.{name}={train[name]}: expected {smallest} or more.{hint}")
    for name, group in _batch_fields(config).items():
        multiple = replicas * group * train.micro_batches
        if train[name] % multiple:
            factors = "1 replica" if replicas == 1 else f"{replicas} replicas"
            if group > 1:
                factors += f", and method.captions_per_image={group}"
            if train.micro_batches > 1:
                factors += f", and train.micro_batches={train.micro_batches}"
            raise UserError(f"train.{name}={train[name]} must be a multiple of {multiple}: {where} has {factors}.")


def round_batches(config: ConfigDict, names: Collection[str], replicas: int) -> None:
    """Sets batches that follow from the data to a number that the replicas share evenly, and says so.

    It is the nearest number below, or, for little data, the least such number.

    Args:
      config: a complete configuration, which is changed.
      names: the fields of `config.train` that nobody gave, such as "image_text_batch".
      replicas: how many replicas share a batch.
    """
    for name, group in _batch_fields(config).items():
        multiple = replicas * group * config.train.micro_batches
        size = config.train[name]
        if name in names and size % multiple:
            config.train[name] = max(multiple, size // multiple * multiple)
            print(f"train.{name} is {config.train[name]}, not {size}: a multiple of {multiple}.", flush=True)


def _batch_fields(config: ConfigDict) -> dict[str, int]:
    """Returns {field of `config.train` that a stream of the method reads: captions that share an image in it}."""
    fields = {stream_class(stream).batch_field for stream in streams_of(config)}
    captions = dict.fromkeys(sorted(fields), 1)
    if "image_text_batch" in captions:
        captions["image_text_batch"] = max(captions_per_image(config), 1)
    return captions


def chunk_numbers(config: ConfigDict, replicas: int) -> list[int]:
    """Returns the numbers above `train.micro_batches` that divide a replica's part of all batches, increasing."""
    parts = [config.train[name] // group // replicas for name, group in _batch_fields(config).items()]
    divisor = math.gcd(*parts)  # every number of chunks divides it
    return [number for number in range(config.train.micro_batches + 1, divisor + 1) if divisor % number == 0]
