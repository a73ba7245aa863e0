"""What `method.teacher` names, as a function of texts."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from mural_lite.errors import UserError
from mural_lite.models import open_model
from mural_lite.remote_folders import local_model
from mural_lite.trust import is_trusting
from mural_lite.vectors import TextVectors, model_digest, vector_files
from mural_tf.data.streams.columns import Embed
from mural_tf.models.dual_encoder import DualEncoder


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher from outside.

    digest: 16 hexadecimal digits that identify it; another teacher has others.
    embed: texts, UTF-8, to float32 [N, D]; a row of zeros where it has no vector. It is loaded when it is called.
    """

    digest: str
    embed: Embed


def open_teacher(path: str) -> Teacher:
    """Returns a teacher: a folder of vectors of texts as Parquet, or a model that `mural_tf.load` takes.

    Raises `UserError` where it is neither, when it is opened or when it is first asked.
    """
    folder = local_model(path)
    if vector_files(folder):
        vectors = TextVectors(folder)
        return Teacher(vectors.digest, vectors.look_up)
    if not folder.is_dir():
        raise UserError(
            f"method.teacher={path} does not exist: give a model, or a folder that python -m mural_tf embed wrote."
        )
    loaded, trust = functools.lru_cache(maxsize=1)(open_model), is_trusting()

    def embed(texts: list[bytes]) -> np.ndarray:
        strings = [text.decode("utf-8", "replace") for text in texts]
        return loaded(folder, trust=trust).encode_text(strings, progress=False)

    return Teacher(model_digest(folder), embed)


def give_teacher(model: DualEncoder) -> None:
    """Opens the teacher that a model's configuration names, if it names one."""
    path = model.options.get("teacher", "")
    if path:
        model.outside_teacher = open_teacher(path)
