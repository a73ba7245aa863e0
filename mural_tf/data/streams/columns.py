"""A column of vectors beside the records: one for each text or picture, made once, read from a memory map.

Frozen towers' states are such columns, and so are the vectors that a teacher gives of texts. Batches get them by ids.

    targets.json    a digest of the tower or teacher, the vectors' size and type, their number, and for which data
    keys            int64 [N], 64 bits of each text, in the order in which the data first has them
    vectors         float16 or float32 [N, D]; zeros where there is no vector
    group_keys, group_vectors    the same of groups, where the vector that is taught is a mean

Texts are embedded a block at a time, and a block that is complete is appended: a run that was killed goes on after the
last one, with the very same blocks. Where the data grew, new texts are appended, and pictures without a vector, which
may have been mended, are tried again. With several pivot languages a whole group of pairs ("say all the same") is
taught one vector, the mean of the group's texts in them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from mural_lite.errors import UserError
from mural_lite.files import exclusive_lock, read_json, release_pages, write_whole

TEXTS = 2048  # embedded at a time
RESIDENT = 2**30  # bytes of a table that stay in memory; pages of a larger one are given back after each batch
BLOCK = 2**16  # texts, or groups, in memory at a time; a killed run embeds one block again
CHANGED = (
    "The data changed after training began: a text or picture has no vector. Start again; if the files kept their "
    "sizes, remove the vectors first: the folder .states next to the data, or .targets in the workdir."
)
Embed = Callable[[list[bytes]], np.ndarray]  # texts to float32 [N, D], zeros in place of a missing vector


class Column:
    """A vector for each key: int64 [N], all different; float16 or float32 [N, D], in memory or mapped.

    A vector of zeros teaches nothing: its cosine with anything is 0, and so is the gradient of that. With `as_stored`
    vectors keep their lengths.
    """

    def __init__(self, keys: np.ndarray, vectors: np.ndarray, as_stored: bool = False):
        self._rows = np.argsort(keys, kind="stable")
        self._keys = keys[self._rows]
        self._vectors = vectors
        self._as_stored = as_stored

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Returns bool [B]: which of `keys`, int64 [B], the column holds."""
        return _is_among(self._keys, keys)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns the vectors of `keys`, int64 [B]: float32 [B, D], of length 1 or 0, or as stored.

        Raises `UserError` for unknown keys, which in a graph is an `InvalidArgumentError` with `CHANGED`.
        """
        if not len(self._keys):
            raise ValueError("There are no vectors.")
        nearest = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        if not np.array_equal(self._keys[nearest], keys):
            raise UserError(CHANGED)
        vectors = self._vectors[self._rows[nearest]].astype(np.float32)
        if self._vectors.nbytes > RESIDENT:
            release_pages(self._vectors)
        if self._as_stored:
            return vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)

    def sample(self, keys: np.ndarray, most: int = BLOCK) -> np.ndarray:
        """Returns float32 [N, D] of up to `most` of these keys, evenly among all, without vectors of zeros."""
        vectors = self.find(keys[:: max(1, -(-len(keys) // most))])
        return vectors[np.any(vectors, axis=1)]

    @functools.cached_property
    def without_vector(self) -> np.ndarray:
        """The keys, int64 [K], whose vectors are zeros."""
        is_zero = np.zeros(len(self._keys), bool)
        for begin in range(0, len(self._keys), BLOCK):
            block = slice(begin, begin + BLOCK)
            is_zero[block] = ~np.any(self._vectors[block], axis=1)
        return self._keys[is_zero[self._rows]]

    def look_up(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of `keys`, float32 [B, D], as `find`, in a graph, whose run fails for an unknown key."""
        vectors = tf.numpy_function(self.find, [keys], tf.float32, stateful=False)
        return tf.ensure_shape(vectors, [*keys.shape, self._vectors.shape[1]])


class ColumnFolder:
    """The folder of a column, made if missing.

    Args:
      folder: a folder of this machine.
      width: D.
      dtype: the stored vectors' type, "float16" or "float32".
      teacher: hexadecimal digits that identify the teacher or tower.
      vector_name: a vector's name in messages.

    Raises `UserError` for a folder of another teacher, or a damaged one.
    """

    def __init__(
        self, folder: pathlib.Path, width: int, dtype: str, teacher: str, vector_name: str = "vector of the teacher's"
    ):
        self.folder = folder
        self._width = width
        self._dtype = dtype
        self._vector_name = vector_name
        self._path = folder / "targets.json"
        maker = dict(teacher=teacher, width=width, dtype=dtype)
        # zeros: how many of all vectors are zeros; missing: how many are of the data in `made_for`.
        self.state = {**maker, "count": 0, "zeros": 0, "missing": 0, "first_missing": "", "made_for": ""}
        self._zero_rows: dict[int, int] = {}  # {key: row} of vectors of zeros, which `extend` may replace
        # Of the data that `extend` read:
        self._present = 0  # different texts
        self._missing = 0  # texts without a vector
        self._first_missing = b""
        folder.mkdir(parents=True, exist_ok=True)
        self._read_state()
        for name, value in maker.items():
            if self.state[name] != value:
                raise UserError(
                    f"{folder} holds targets of {name} {self.state[name]}, and the teacher's is {value}: give the run "
                    "the teacher that it began with, or name another --workdir."
                )

    def _read_state(self) -> None:
        if self._path.is_file():
            state = read_json(self._path)
            self.state |= {"zeros": state.get("missing", 0), **state}  # folders that were made before it was counted

    def _write_state(self) -> None:
        write_whole(self._path, json.dumps(self.state, indent=1) + "\n")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the folder against other processes, and reads again what another one may have added."""
        with exclusive_lock(self.folder / "lock"):
            self._read_state()
            yield

    def is_made_for(self, data_digest: str) -> bool:
        """Whether the folder has all vectors for the data whose digest `mark_complete` noted."""
        return self.state["made_for"] == data_digest

    def _keys(self, prefix: str = "") -> np.ndarray:
        """Returns int64 [N]; [0] where the folder has no keys yet."""
        path = self.folder / f"{prefix}keys"
        if not path.is_file():
            return np.zeros(0, np.int64)
        return np.fromfile(path, np.int64)

    def _vectors(self, prefix: str, count: int) -> np.ndarray:
        """Returns the vectors [count, D], mapped."""
        if not count:
            return np.zeros([0, self._width], self._dtype)
        return np.memmap(self.folder / f"{prefix}vectors", self._dtype, "r", shape=(count, self._width))

    def column(self, prefix: str = "", as_stored: bool = False) -> Column:
        """Returns the vectors by text; with the prefix "group_" the means by group."""
        keys = self._keys(prefix)
        return Column(keys, self._vectors(prefix, len(keys)), as_stored)

    def extend(self, texts: Iterable[tuple[np.ndarray, Sequence[bytes]]], embed: Embed, block: int = 0) -> None:
        """Adds the texts that have no vector yet, or a vector of zeros.

        Args:
          texts: blocks of (the texts' keys, int64 [B], the texts); a text may come again.
          embed: returns the vectors of texts.
          block: how many texts are embedded and stored at a time; 0: `BLOCK`.
        """
        max_waiting = block or BLOCK
        self._trim()
        self._zero_rows = self._find_zero_rows()
        self._missing = 0
        if self.state["count"]:
            print(f"{self.state['count']:,} are embedded already; reading the data up to the new texts …", flush=True)
        # The keys of vectors of zeros count as new, so that their texts are tried again.
        embedded_before = np.setdiff1d(self._keys(), np.array(list(self._zero_rows), np.int64))  # [E], sorted
        sorted_keys = embedded_before  # and the keys that this call adds
        is_present = np.zeros(len(embedded_before), bool)  # which of `embedded_before` the data still have
        waiting: dict[int, bytes] = {}  # {key: text} of the next block
        for keys, keyed_texts in texts:
            old_keys = keys[_is_among(embedded_before, keys)]
            is_present[np.searchsorted(embedded_before, old_keys)] = True
            for row in np.flatnonzero(~_is_among(sorted_keys, keys)):
                waiting.setdefault(int(keys[row]), keyed_texts[row])
            if len(waiting) >= max_waiting:
                sorted_keys = self._add(sorted_keys, waiting, embed)
                waiting = {}
                print(f"{self.state['count']:,} are embedded …", flush=True)
        if waiting:
            sorted_keys = self._add(sorted_keys, waiting, embed)
        self._present = int(is_present.sum()) + len(sorted_keys) - len(embedded_before)

    def _find_zero_rows(self) -> dict[int, int]:
        """Returns {key: row} of the vectors of zeros."""
        if not self.state["zeros"]:
            return {}  # reading all vectors takes long, and few folders hold a vector of zeros
        keys = self._keys()
        zero_keys = Column(keys, self._vectors("", len(keys))).without_vector
        rows = np.flatnonzero(np.isin(keys, zero_keys))
        return dict(zip(keys[rows].tolist(), rows.tolist()))

    def _trim(self) -> None:
        """Removes the begun block of a killed run."""
        bytes_per_vector = self._width * np.dtype(self._dtype).itemsize
        for name, size in (("keys", 8), ("vectors", bytes_per_vector)):
            if (self.folder / name).is_file():
                os.truncate(self.folder / name, self.state["count"] * size)

    def _add(self, sorted_keys: np.ndarray, waiting: dict[int, bytes], embed: Embed) -> np.ndarray:
        """Stores the vectors of {key: text} and returns `sorted_keys` with their keys.

        A vector of zeros is replaced in its place, where another run may just read it; other vectors are appended.
        """
        texts = list(waiting.values())
        keys = np.array(list(waiting), np.int64)
        vectors = embed_all(texts, embed)
        if vectors.shape[1] != self._width:
            raise UserError(f"The teacher's vectors hold {vectors.shape[1]} numbers, images' {self._width}.")
        vectors = vectors.astype(self._dtype)
        is_zero = ~vectors.any(axis=1)
        rows = np.array([self._zero_rows.get(key, -1) for key in waiting], np.int64)
        is_new = rows < 0
        self._replace(rows[~is_new], vectors[~is_new])
        self._append("vectors", vectors[is_new])
        self._append("keys", keys[is_new])
        if is_zero.any() and not self._missing:
            self._first_missing = texts[np.argmax(is_zero)]
        self._missing += int(is_zero.sum())
        self.state["zeros"] += int(is_zero.sum()) - int((~is_new).sum())
        self.state["count"] += int(is_new.sum())
        self._write_state()
        return np.sort(np.concatenate([sorted_keys, keys]), kind="stable")

    def _append(self, name: str, values: np.ndarray) -> None:
        """Appends values to a file of the folder; they are on the disk when this returns."""
        with open(self.folder / name, "ab") as file:
            file.write(np.ascontiguousarray(values))
            file.flush()
            os.fsync(file.fileno())

    def _replace(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Writes vectors [N, D] at these rows, int64 [N]; they are on the disk when this returns."""
        if not len(rows):
            return
        with open(self.folder / "vectors", "r+b") as file:
            for row, vector in zip(rows.tolist(), vectors):
                file.seek(row * vector.nbytes)
                file.write(vector.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def write_means(self, groups: np.ndarray, members: np.ndarray) -> None:
        """Writes the sum of each group's different members; member i, int64 [M], is in group i, int64 [M].

        A sum serves as the mean, because `Column.find` scales both to length 1.
        """
        keys = self._keys()
        order = np.argsort(keys, kind="stable")
        rows = order[np.searchsorted(keys[order], members)]
        vectors = self._vectors("", len(keys))
        groups, rows = np.unique([groups, rows], axis=1)  # sorted by group, then by row
        ids, first = np.unique(groups, return_index=True)
        ends = np.append(first[1:], len(rows))
        for name in ("group_keys", "group_vectors"):
            (self.folder / name).unlink(missing_ok=True)
        for begin in range(0, len(ids), BLOCK):
            block = slice(first[begin], ends[min(begin + BLOCK, len(ids)) - 1])
            group_begins = first[begin : begin + BLOCK] - block.start  # within the block
            sums = np.add.reduceat(vectors[rows[block]].astype(np.float32), group_begins)
            release_pages(vectors)
            self._append("group_vectors", sums.astype(self._dtype))
        self._append("group_keys", ids)

    def mark_complete(self, data_digest: str, max_missing_fraction: float) -> None:
        """Notes that the folder has all vectors for the data with this digest, whose texts `extend` was given.

        Raises `UserError` if more than `max_missing_fraction` of these texts have no vector.
        """
        example = ""
        if self._missing:
            example = self._first_missing[:80].decode("utf-8", "replace")
            text_count = self._present
            problem = f"{self._missing:,} of {text_count:,} have no {self._vector_name}, such as {example!r}"
            if self._missing > max_missing_fraction * text_count:
                raise UserError(
                    f"{problem}: more than data.max_skipped_fraction={max_missing_fraction:g}. For a teacher, embed "
                    "the texts of the data to train on, in the languages of method.pivot and "
                    "data.image_text_languages; for a tower, repair or remove the pictures that cannot be decoded."
                )
            print(f"{problem}: they are not used in training.", flush=True)
        self.state.update(missing=self._missing, first_missing=example, made_for=data_digest)
        self._write_state()


def embed_all(texts: Sequence[bytes], embed: Embed) -> np.ndarray:
    """Returns float32 [N, D] of texts, by blocks of texts of similar length."""
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    vectors = None
    for begin in range(0, len(order), TEXTS):
        rows = order[begin : begin + TEXTS]
        embedded = embed([texts[row] for row in rows])
        if vectors is None:
            vectors = np.zeros([len(texts), embedded.shape[1]], np.float32)
        vectors[rows] = embedded
    return vectors


def _is_among(sorted_keys: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns bool [B], which of `keys`, int64 [B], are among sorted keys: faster than `np.isin`, which sorts."""
    if not len(sorted_keys):
        return np.zeros(len(keys), bool)
    nearest = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[nearest] == keys
