"""Saving and restoring a run: weights, optimiser slots and step, temperature, data position."""

from __future__ import annotations

import pathlib

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError, load_config
from mural_tf.models import ContrastiveModel, build_model
from mural_tf.text.tokenizer import WordPieceTokenizer, build_tokenizer

FOLDER = "checkpoints"


class Checkpoints:
    """The last `keep` checkpoints of a compiled model in `workdir/checkpoints`."""

    def __init__(self, model: ContrastiveModel, workdir: str | pathlib.Path, keep: int):
        optimizers = {f"optimizer_{name}": optimizer for name, optimizer in model.optimizers.items()}
        self._checkpoint = tf.train.Checkpoint(model=_weights(model), data_position=model.data_position, **optimizers)
        self._manager = tf.train.CheckpointManager(self._checkpoint, str(pathlib.Path(workdir) / FOLDER), keep)

    def save(self, step: int) -> str:
        """Saves at `step`; raises `ConfigurationError` if the disk is full, leaving earlier checkpoints intact."""
        try:
            return self._manager.save(checkpoint_number=step)
        except (tf.errors.ResourceExhaustedError, tf.errors.UnknownError, tf.errors.PermissionDeniedError) as error:
            raise ConfigurationError(
                f"Saving the checkpoint of step {step} failed: {error.message}. Earlier checkpoints are intact; free "
                "some space and run the same command again."
            ) from None

    def restore(self) -> bool:
        """Restores the latest checkpoint, if there is one; returns whether there was."""
        latest = self._manager.latest_checkpoint
        if latest is None:
            return False
        _restore(self._checkpoint, latest)
        return True


def restore_for_inference(model: ContrastiveModel, workdir: str | pathlib.Path) -> str:
    """Restores a model's weights from a workdir's latest checkpoint and returns the checkpoint's path.

    Raises `ConfigurationError` if there is none or it belongs to another architecture or vocabulary.
    """
    latest = tf.train.latest_checkpoint(str(pathlib.Path(workdir) / FOLDER))
    if latest is None:
        raise ConfigurationError(f"{workdir} has no checkpoint yet: expected one in {workdir}/{FOLDER}.")
    _restore(tf.train.Checkpoint(model=_weights(model)), latest)
    return latest


def load_trained(workdir: str | pathlib.Path) -> tuple[ContrastiveModel, WordPieceTokenizer, ConfigDict, int]:
    """Returns a workdir's model with its latest weights, its tokenizer, its configuration, and their step.

    Raises `ConfigurationError` if a part is missing or damaged, or they do not fit together.
    """
    workdir = pathlib.Path(workdir)
    if not workdir.is_dir():
        raise ConfigurationError(f"The workdir {workdir} does not exist.")
    config = load_config(workdir / "config.json")
    tokenizer = build_tokenizer(config, workdir / "vocabulary.txt")
    model = build_model(config, tokenizer.vocabulary_size)
    checkpoint = restore_for_inference(model, workdir)
    return model, tokenizer, config, int(checkpoint.rsplit("-", 1)[1])


def _weights(model: ContrastiveModel) -> tf.train.Checkpoint:
    # Not the Keras model itself: it would hand a checkpoint's optimiser state to whatever it is compiled with later.
    return tf.train.Checkpoint(**model.weights_by_part())


def _restore(checkpoint: tf.train.Checkpoint, path: str) -> None:
    try:
        checkpoint.restore(path).assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise ConfigurationError(
            f"The checkpoint {path} does not fit the model of this configuration and vocabulary: {reason}"
        ) from None
    except (IndexError, tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.OutOfRangeError) as error:
        raise ConfigurationError(f"The checkpoint {path} is damaged: {error}") from None
