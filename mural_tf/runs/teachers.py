"""The teacher that `method.teacher` names, a model or a folder of vectors, as a function of texts."""

from __future__ import annotations

import array
import dataclasses
import functools
import hashlib
import pathlib
import tempfile

import numpy as np

from mural_lite.errors import UserError
from mural_lite.files import release_pages
from mural_lite.hashes import bytes_hash
from mural_lite.models import open_model
from mural_lite.remote_folders import local_model
from mural_lite.trust import is_trusting
from mural_lite.vectors import metadata_of, model_digest, read_rows, vector_files
from mural_tf.data.streams.columns import Embed
from mural_tf.models.dual_encoder import DualEncoder


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher from outside.

    Attributes:
      digest: 16 hexadecimal digits that identify it.
      embed: function from texts in UTF-8 to float32 [N, D], zeros for a text without a vector; its first call loads
        the teacher.
    """

    digest: str
    embed: Embed


class TextVectors:
    """A folder of vectors of texts, looked up by text; raises `UserError` where it holds other vectors, or is damaged.

    Args:
      folder: a folder with at least one Parquet file, as `python -m mural_tf embed` writes it.

    Attributes:
      width: D.
      digest: 16 hexadecimal digits of the name, the size and the first megabyte of each file.
    """

    def __init__(self, folder: pathlib.Path):
        self._files = vector_files(folder)
        content_hash = hashlib.blake2b(digest_size=8)
        for file in self._files:
            items = metadata_of(file).get("kind", "texts")
            if items != "texts":
                raise UserError(f"{folder} holds vectors of {items}: a teacher needs vectors of texts.")
            with open(file, "rb") as content:
                content_hash.update(f"{file.name} {file.stat().st_size} ".encode() + content.read(1 << 20))
        self.digest = content_hash.hexdigest()
        self.width = self._find_width()
        self._keys = None  # uint64 [N], hashes of the texts in their order; read by the first `look_up`

    def _find_width(self) -> int:
        """Returns how many numbers a vector has, by the first vectors; 0 where there are no vectors."""
        for file in self._files:
            for _, vectors in read_rows(file, ["name"]):
                return vectors.shape[1]
        return 0

    def _read(self) -> None:
        """Reads hashes of the texts into memory, and the vectors into a file that is mapped into memory."""
        keys = array.array("Q")
        dtype = None
        self._store = tempfile.TemporaryFile()
        for file in self._files:
            for rows, vectors in read_rows(file, ["name"]):
                dtype = dtype or vectors.dtype  # of the first rows; others are converted
                if vectors.shape[1] != self.width:
                    raise UserError(f"{file} holds vectors of {vectors.shape[1]} numbers, expected {self.width}.")
                if not all(isinstance(row["name"], str) for row in rows):
                    raise UserError(f"{file}: expected a text in the column name of each row.")
                keys.extend(bytes_hash(row["name"].encode()) for row in rows)
                self._store.write(np.ascontiguousarray(vectors, dtype).tobytes())
        self._store.flush()
        keys_of_rows = np.array(keys, np.uint64)
        self._rows = np.argsort(keys_of_rows, kind="stable")
        self._keys = keys_of_rows[self._rows]
        if len(keys):
            self._vectors = np.memmap(self._store, dtype, "r", shape=(len(keys), self.width))

    def look_up(self, texts: list[bytes]) -> np.ndarray:
        """Returns the vectors of UTF-8 texts, float32 [N, D]; zeros for a text that the folder does not have."""
        if self._keys is None:
            self._read()
        vectors = np.zeros([len(texts), self.width], np.float32)
        if not len(self._keys):
            return vectors
        keys = np.array([bytes_hash(text) for text in texts], np.uint64)
        positions = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)  # N for a hash above all
        text_numbers = np.flatnonzero(self._keys[positions] == keys)  # of texts that the folder has
        rows = self._rows[positions[text_numbers]]
        vectors[text_numbers] = self._vectors[rows]
        release_pages(self._vectors)
        return vectors


def open_teacher(path: str) -> Teacher:
    """Returns the teacher at a path.

    Args:
      path: a folder of vectors of texts as Parquet, or a model that `mural_tf.load` takes.

    Raises:
      UserError: the path is something else, which may show only when the teacher is first asked.
    """
    folder = local_model(path)
    if vector_files(folder):
        vectors = TextVectors(folder)
        return Teacher(vectors.digest, vectors.look_up)
    if not folder.is_dir():
        raise UserError(
            f"method.teacher={path} does not exist: give a model, or a folder that python -m mural_tf embed wrote."
        )
    open_once = functools.lru_cache(maxsize=1)(open_model)
    trust = is_trusting()

    def embed(texts: list[bytes]) -> np.ndarray:
        strings = [text.decode("utf-8", "replace") for text in texts]
        return open_once(folder, trust=trust).encode_text(strings, progress=False)

    return Teacher(model_digest(folder), embed)


def give_teacher(model: DualEncoder) -> None:
    """Sets a model's `outside_teacher` to the teacher that its configuration names, if there is a name."""
    path = model.options.get("teacher", "")
    if path:
        model.outside_teacher = open_teacher(path)
