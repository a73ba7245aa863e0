"""The model of a workdir, as its training left it or has it so far."""

from __future__ import annotations

import pathlib

from ml_collections import ConfigDict

from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_lite.trust import check_stored
from mural_tf.encoders.adapters import embed_class_names
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.text import build_tokenizer
from mural_tf.text.word_pieces import WordPieceTokenizer
from mural_tf.training.checkpoints import restore_for_inference, step_of


def load_trained(
    workdir: str | pathlib.Path, which: str = "result"
) -> tuple[DualEncoder, WordPieceTokenizer, ConfigDict, int]:
    """Returns a workdir's model, its tokenizer, its configuration, and the step of the weights.

    Args:
      workdir: a run's folder.
      which: the checkpoint: "result", "latest" or "best", as `restore_for_inference` takes it.

    Raises:
      UserError: a part is missing or damaged, or they do not fit together.
    """
    workdir = pathlib.Path(workdir)
    if not workdir.is_dir():
        raise UserError(f"The workdir {workdir} does not exist.")
    config = load_config(workdir / "config.json")
    check_stored(config, workdir / "config.json")
    tokenizer = build_tokenizer(config, workdir / "vocabulary.txt")
    model = build_model(config, tokenizer.vocabulary_size)
    step = step_of(restore_for_inference(model, workdir, which))
    embed_class_names(model.image_encoder, model.text_head(model.head_names[0]))
    return model, tokenizer, config, step
