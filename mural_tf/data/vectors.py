"""Vectors of texts on disk, as `embed` writes them and as any program can: what a teacher in a folder is.

embeddings.json                {"kind": "texts", "embedding_size": D, "shards": S}, and more of `embed`'s
vectors-00000-of-00012.npy     float32 or float16 [n, D]
items-00000-of-00012.jsonl     a line {"name": text} for each row
"""

from __future__ import annotations

import array
import hashlib
import json
import os
import pathlib

import numpy as np

from mural_tf.errors import UserError
from mural_tf.files import as_path, forget, json_field, read_array, read_json
from mural_tf.hashes import bytes_hash

DESCRIPTION = "embeddings.json"
ENDINGS = {"vectors": "npy", "items": "jsonl", "manifest": "json"}  # of a shard's files


def shard_name(kind: str, number: int, count: int) -> str:
    """Returns the name of one of the files of `ENDINGS`."""
    return f"{kind}-{number:05d}-of-{count:05d}.{ENDINGS[kind]}"


_PARTS_OF_MODELS = (  # names, with * for any
    *("config.json", "vocabulary.txt", "vocab.txt", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json"),
    *("vocab.json", "merges.txt"),
    *("*.model", "*processor_config.json", "open_clip_config.json", "modules.json", "sentence_bert_config.json"),
    *("[0-9]_*", "checkpoints", "image_encoder", "text_preprocessor", "text_encoder"),
)


def model_digest(model: str | os.PathLike) -> str:
    """Returns 16 hexadecimal digits that stand for the files that `mural_tf.load` may read in a model's folder."""
    summed = hashlib.blake2b(digest_size=8)
    for name in _PARTS_OF_MODELS:
        found = [part for one in as_path(model).glob(name) for part in (one, *one.rglob("*"))]
        for file in sorted(file for file in found if file.is_file()):
            summed.update(f"{file.relative_to(model)}\0{file.stat().st_size}\0".encode())
            with open(file, "rb") as content:
                while chunk := content.read(1 << 20):
                    summed.update(chunk)
    return summed.hexdigest()


class TextVectors:
    """A folder of vectors of texts, looked up by text.

    Raises `UserError` where it holds something else, or is damaged. Attributes: `width`, D; `digest`, 16 hexadecimal
    digits of the description and of the size and the first megabyte of each file.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder, path = folder, folder / DESCRIPTION
        described = read_json(path)
        kind, self.width = json_field(described, "kind", str, path), json_field(described, "embedding_size", int, path)
        if kind != "texts":
            raise UserError(f"{folder} holds vectors of {kind}: a teacher's are of texts.")
        self._shards = json_field(described, "shards", int, path)
        summed = hashlib.blake2b(path.read_bytes(), digest_size=8)
        for number in range(self._shards):
            for file in (self._file("items", number), self._file("vectors", number)):
                if not file.is_file():
                    raise UserError(f"{file} does not exist: {path} names {self._shards} shards.")
                with open(file, "rb") as content:
                    summed.update(str(file.stat().st_size).encode() + content.read(1 << 20))
        self.digest = summed.hexdigest()
        self._keys: np.ndarray | None = None

    def _file(self, kind: str, number: int) -> pathlib.Path:
        return self._folder / shard_name(kind, number, self._shards)

    def _read(self) -> None:
        """Reads the texts, of which 64 bits each stay, and maps the vectors."""
        keys = array.array("Q")
        self._vectors = [read_array(self._file("vectors", number)) for number in range(self._shards)]
        for number, vectors in enumerate(self._vectors):
            file, before = self._file("items", number), len(keys)
            try:
                with open(file, "rb") as lines:
                    keys.extend(bytes_hash(json.loads(line)["name"].encode()) for line in lines)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(f"{file}, line {len(keys) - before + 1}: expected an object with a name.") from None
            if vectors.shape != (len(keys) - before, self.width):
                raise UserError(
                    f"{self._file('vectors', number)} is {list(vectors.shape)}, expected [{len(keys) - before}, "
                    f"{self.width}]: a row for each line of {file.name}."
                )
        unsorted = np.array(keys, np.uint64)
        self._rows = np.argsort(unsorted, kind="stable")
        self._keys = unsorted[self._rows]
        self._ends = np.cumsum([len(vectors) for vectors in self._vectors])

    def look_up(self, texts: list[bytes]) -> np.ndarray:
        """Returns float32 [N, D] of UTF-8 texts; a row of zeros where the folder has no such text."""
        if self._keys is None:
            self._read()
        found = np.zeros([len(texts), self.width], np.float32)
        if not len(self._keys):
            return found
        wanted = np.array([bytes_hash(text) for text in texts], np.uint64)
        places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        known = np.flatnonzero(self._keys[places] == wanted)
        rows = self._rows[places[known]]
        shards = np.searchsorted(self._ends, rows, side="right")
        for number, vectors in enumerate(self._vectors):
            mine = np.flatnonzero(shards == number)
            found[known[mine]] = vectors[rows[mine] - (self._ends[number] - len(vectors))]
            forget(vectors)
        return found
