"""Counts that a run may have: batches that the replicas, the chunks and the captions of an image divide evenly."""

from __future__ import annotations

import math
from collections.abc import Collection

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.data.streams.pipeline import captions_per_image, stream_class
from mural_tf.models import method_class, streams_of, takes_steps

LEAST = {  # {count in the configuration's `train`: its smallest value}
    **dict.fromkeys(("steps", "image_text_batch", "text_text_batch", "micro_batches", "steps_per_execution"), 1),
    **dict.fromkeys(("log_every", "checkpoint_every", "evaluate_every"), 0),
}


def _check_ranges(config: ConfigDict) -> None:
    """Raises `UserError` for a seed, a weight or a label smoothing out of its range."""
    if not 0 <= config.seed < 2**31:
        raise UserError(f"seed={config.seed}: expected a number from 0 to {2**31 - 1}.")
    for name in ("image_text_weight", "text_text_weight"):
        if not 0 <= config.loss[name] < math.inf:
            raise UserError(f"loss.{name}={config.loss[name]}: expected 0 or more.")
    if not 0 <= config.loss.label_smoothing < 1:
        raise UserError(f"loss.label_smoothing={config.loss.label_smoothing}: expected 0 or more, and less than 1.")


def check_train(config: ConfigDict, replicas: int, where: str) -> None:
    """Raises `UserError` for numbers out of their range, and for batches that cannot be divided evenly.

    A batch is divided by the replicas, by the captions of an image that come together, and by `train.micro_batches`.

    Args:
      config: a complete configuration.
      replicas: how many replicas share a batch.
      where: the machine that has them, for the message.
    """
    _check_ranges(config)
    _check_least(config)
    train = config.train
    for name, captions in _captions_in_field(config).items():
        multiple = replicas * captions * train.micro_batches
        if train[name] % multiple == 0:
            continue
        factors = "1 replica" if replicas == 1 else f"{replicas} replicas"
        if captions > 1:
            factors += f", and method.captions_per_image={captions}"
        if train.micro_batches > 1:
            factors += f", and train.micro_batches={train.micro_batches}"
        raise UserError(f"train.{name}={train[name]} must be a multiple of {multiple}: {where} has {factors}.")


def _check_least(config: ConfigDict) -> None:
    """Raises `UserError` for a count of `config.train` below `LEAST`; a method may take no steps."""
    least = dict(LEAST)
    if not takes_steps(method_class(config.model)):
        least["steps"] = 0
    for name, smallest in least.items():
        if config.train[name] < smallest:
            hint = ""
            if name in ("steps", "image_text_batch", "text_text_batch"):
                hint = " Only fine-tuning (run_finetune.py --from=…) takes 0 for values that follow from the data."
            raise UserError(f"train.{name}={config.train[name]}: expected {smallest} or more.{hint}")


def round_batches(config: ConfigDict, names: Collection[str], replicas: int) -> None:
    """Rounds batch sizes that follow from the data to multiples that can be divided evenly, and prints the changes.

    It is the nearest multiple below or, for little data, the smallest multiple; see `check_train`.

    Args:
      config: a complete configuration, which is changed.
      names: the fields of `config.train` that the user left open, such as "image_text_batch".
      replicas: how many replicas share a batch.
    """
    for name, captions in _captions_in_field(config).items():
        multiple = replicas * captions * config.train.micro_batches
        size = config.train[name]
        if name in names and size % multiple:
            config.train[name] = max(multiple, size // multiple * multiple)
            print(f"train.{name} is {config.train[name]}, not {size}: a multiple of {multiple}.", flush=True)


def _captions_in_field(config: ConfigDict) -> dict[str, int]:
    """Returns {batch size in `config.train` that the method uses: how many captions of one image come together in it}.

    For example {"image_text_batch": 2, "text_text_batch": 1}; captions that come together go to the same replica.
    """
    fields = {stream_class(stream).batch_field for stream in streams_of(config)}
    captions = dict.fromkeys(sorted(fields), 1)
    if "image_text_batch" in captions:
        captions["image_text_batch"] = max(captions_per_image(config), 1)  # a 0 is refused later, by `build_model`
    return captions


def chunk_numbers(config: ConfigDict, replicas: int) -> list[int]:
    """Returns the values above `train.micro_batches` that divide a replica's part of every batch, increasing."""
    train = config.train
    sizes = []  # of a replica's part of each batch, in groups of captions of one image
    for name, captions in _captions_in_field(config).items():
        sizes.append(train[name] // captions // replicas)
    largest = math.gcd(*sizes)
    return [number for number in range(train.micro_batches + 1, largest + 1) if largest % number == 0]
