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
import math
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
    """A vector for each key.

    A vector of zeros teaches nothing: its cosine with any vector is 0, and so is the cosine's gradient.

    Args:
      keys: int64 [N], all different.
      vectors: float16 or float32 [N, D], in memory or mapped.
      as_stored: whether vectors keep their lengths; otherwise they are scaled to length 1.
    """

    def __init__(self, keys: np.ndarray, vectors: np.ndarray, as_stored: bool = False):
        self._rows = np.argsort(keys, kind="stable")
        self._keys = keys[self._rows]
        self._vectors = vectors
        self._as_stored = as_stored

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Returns which of `keys`, int64 [B], the column holds: bool [B]."""
        return _is_among(self._keys, keys)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns the vectors of `keys`, int64 [B], as float32 [B, D], of length 1 or 0, or as stored.

        Raises `UserError` with the text `CHANGED` for unknown keys, and `ValueError` if the column is empty.
        """
        if not len(self._keys):
            raise ValueError("There are no vectors.")
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        if not np.array_equal(self._keys[places], keys):
            raise UserError(CHANGED)
        vectors = self._vectors[self._rows[places]].astype(np.float32)
        if self._vectors.nbytes > RESIDENT:
            release_pages(self._vectors)
        if self._as_stored:
            return vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)

    def sample(self, keys: np.ndarray, most: int = BLOCK) -> np.ndarray:
        """Returns vectors, float32 [S, D], of at most `most` of `keys`, int64 [B]: every n-th key, without zeros."""
        every = max(1, math.ceil(len(keys) / most))
        vectors = self.find(keys[::every])
        return vectors[np.any(vectors, axis=1)]

    @functools.cached_property
    def without_vector(self) -> np.ndarray:
        """The keys whose vectors are zeros, int64 [K]."""
        is_zero = np.zeros(len(self._keys), bool)
        for begin in range(0, len(self._keys), BLOCK):
            block = slice(begin, begin + BLOCK)
            is_zero[block] = ~np.any(self._vectors[block], axis=1)
        return self._keys[is_zero[self._rows]]

    def look_up(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns `find`'s vectors of `keys`, int64 [B], in a graph: float32 [B, D].

        For an unknown key the run of the graph raises `tf.errors.InvalidArgumentError` with the text `CHANGED`.
        """
        vectors = tf.numpy_function(self.find, [keys], tf.float32, stateful=False)
        return tf.ensure_shape(vectors, [*keys.shape, self._vectors.shape[1]])


class ColumnFolder:
    """The folder of a column, made if it is missing.

    Args:
      folder: a folder of this machine.
      width: D, how many numbers a vector holds.
      dtype: the stored vectors' type, "float16" or "float32".
      teacher: hexadecimal digits that identify the teacher or tower.
      vector_name: a vector's name in messages.

    Attributes:
      state: the content of `targets.json`.

    Raises:
      UserError: the folder is damaged, or holds the vectors of another teacher.
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
        """Updates `state` by `targets.json`, if the folder has it."""
        if self._path.is_file():
            stored = read_json(self._path)
            zeros = stored.get("missing", 0)  # for folders that were made before "zeros" was counted
            self.state |= {"zeros": zeros, **stored}

    def _write_state(self) -> None:
        """Writes `state` to `targets.json`."""
        write_whole(self._path, json.dumps(self.state, indent=1) + "\n")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from changing the folder meanwhile, and reads the state that they left in it."""
        with exclusive_lock(self.folder / "lock"):
            self._read_state()
            yield

    def is_made_for(self, data_digest: str) -> bool:
        """Whether the folder has all vectors for the data with this digest, as `mark_complete` noted it."""
        return self.state["made_for"] == data_digest

    def _keys(self, prefix: str = "") -> np.ndarray:
        """Returns the texts' keys, int64 [N], or with the prefix "group_" the groups'; [0] without such a file."""
        path = self.folder / f"{prefix}keys"
        if not path.is_file():
            return np.zeros(0, np.int64)
        return np.fromfile(path, np.int64)

    def _vectors(self, prefix: str, count: int) -> np.ndarray:
        """Returns the first `count` vectors, mapped, [count, D]; `prefix` as in `_keys`."""
        if not count:
            return np.zeros([0, self._width], self._dtype)  # an empty file cannot be mapped
        return np.memmap(self.folder / f"{prefix}vectors", self._dtype, "r", shape=(count, self._width))

    def column(self, prefix: str = "", as_stored: bool = False) -> Column:
        """Returns the column of the texts' vectors, or with the prefix "group_" of the groups' mean vectors.

        `as_stored` is as in `Column`.
        """
        keys = self._keys(prefix)
        return Column(keys, self._vectors(prefix, len(keys)), as_stored)

    def extend(self, texts: Iterable[tuple[np.ndarray, Sequence[bytes]]], embed: Embed, block: int = 0) -> None:
        """Embeds texts that have no vector in the folder, or a vector of zeros; stores the vectors and prints progress.

        Args:
          texts: blocks of (the texts' keys, int64 [B], the texts); a text may come again.
          embed: a function from B texts to their vectors, float32 [B, D], zeros in place of a missing vector.
          block: about how many texts are embedded and stored at a time; 0: `BLOCK`.

        Raises:
          UserError: the vectors of `embed` are not of the folder's width.
        """
        max_waiting = block or BLOCK
        self._drop_unfinished_block()
        self._zero_rows = self._find_zero_rows()
        self._missing = 0
        if self.state["count"]:
            print(f"{self.state['count']:,} are embedded already; reading the data up to the new texts …", flush=True)
        # The keys of vectors of zeros count as new, so that their texts are tried again.
        old_keys = np.setdiff1d(self._keys(), np.array(list(self._zero_rows), np.int64))  # [E], sorted
        all_keys = old_keys  # and the keys that this call adds, sorted
        is_present = np.zeros(len(old_keys), bool)  # which of `old_keys` the data still have
        waiting: dict[int, bytes] = {}  # {key: text} of the next block
        for keys, texts_of_keys in texts:
            present_keys = keys[_is_among(old_keys, keys)]
            is_present[np.searchsorted(old_keys, present_keys)] = True
            for row in np.flatnonzero(~_is_among(all_keys, keys)):
                waiting.setdefault(int(keys[row]), texts_of_keys[row])
            if len(waiting) >= max_waiting:
                all_keys = self._add(all_keys, waiting, embed)
                waiting = {}
                print(f"{self.state['count']:,} are embedded …", flush=True)
        if waiting:
            all_keys = self._add(all_keys, waiting, embed)
        self._present = int(is_present.sum()) + len(all_keys) - len(old_keys)

    def _find_zero_rows(self) -> dict[int, int]:
        """Returns {key: row} of the vectors in the folder that are zeros."""
        if not self.state["zeros"]:
            return {}  # reading all vectors takes long, and few folders hold a vector of zeros
        keys = self._keys()
        rows = np.flatnonzero(np.isin(keys, self.column().without_vector))
        return dict(zip(keys[rows].tolist(), rows.tolist()))

    def _drop_unfinished_block(self) -> None:
        """Cuts off the keys and vectors that a killed run wrote and did not count."""
        bytes_per_vector = self._width * np.dtype(self._dtype).itemsize
        for name, size in (("keys", 8), ("vectors", bytes_per_vector)):  # a key is an int64
            if (self.folder / name).is_file():
                os.truncate(self.folder / name, self.state["count"] * size)

    def _add(self, sorted_keys: np.ndarray, waiting: dict[int, bytes], embed: Embed) -> np.ndarray:
        """Embeds the texts of `waiting`, {key: text}, stores their vectors, and returns `sorted_keys` with their keys.

        A vector of zeros is replaced in its place, where another run may just read it; other vectors are appended.
        Raises `UserError` if the vectors are not of the folder's width.
        """
        texts = list(waiting.values())
        keys = np.array(list(waiting), np.int64)
        vectors = embed_all(texts, embed)  # float32 [W, D]
        if vectors.shape[1] != self._width:
            raise UserError(f"The teacher's vectors hold {vectors.shape[1]} numbers, images' {self._width}.")
        vectors = vectors.astype(self._dtype)
        is_zero = ~vectors.any(axis=1)
        rows = np.array([self._zero_rows.get(key, -1) for key in waiting], np.int64)  # -1: has no row yet
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
        """Appends an array to the file `name` of the folder; it is on the disk when this returns."""
        with open(self.folder / name, "ab") as file:
            file.write(np.ascontiguousarray(values))
            file.flush()
            os.fsync(file.fileno())

    def _replace(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Replaces the vectors in `rows`, int64 [N], by `vectors` [N, D], which are on the disk when this returns."""
        if not len(rows):
            return
        with open(self.folder / "vectors", "r+b") as file:
            for row, vector in zip(rows.tolist(), vectors):
                file.seek(row * vector.nbytes)
                file.write(vector.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def write_means(self, groups: np.ndarray, members: np.ndarray) -> None:
        """Replaces the folder's mean vectors, which `column("group_")` reads, by the mean of each of these groups.

        Args:
          groups: int64 [M], the groups' keys.
          members: int64 [M], keys of texts in the folder; `members[i]` is in group `groups[i]`; repeats count once.
        """
        keys = self._keys()
        order = np.argsort(keys, kind="stable")
        rows = order[np.searchsorted(keys[order], members)]
        vectors = self._vectors("", len(keys))
        sorted_groups, rows = np.unique([groups, rows], axis=1)  # sorted by group, then by row
        group_keys, begins = np.unique(sorted_groups, return_index=True)  # a group's members begin in `rows` there
        bounds = np.append(begins, len(rows))
        for name in ("group_keys", "group_vectors"):
            (self.folder / name).unlink(missing_ok=True)
        for first in range(0, len(group_keys), BLOCK):
            block_bounds = bounds[first : first + BLOCK + 1]
            block_rows = rows[block_bounds[0] : block_bounds[-1]]
            begins_in_block = block_bounds[:-1] - block_bounds[0]
            # A sum serves as the mean, because `Column.find` scales both to length 1.
            sums = np.add.reduceat(vectors[block_rows].astype(np.float32), begins_in_block)
            release_pages(vectors)
            self._append("group_vectors", sums.astype(self._dtype))
        self._append("group_keys", group_keys)

    def mark_complete(self, data_digest: str, max_missing_fraction: float) -> None:
        """Notes in `targets.json` that `extend` has read all of some data; prints how many texts have no vector.

        Args:
          data_digest: identifies the data for `is_made_for`.
          max_missing_fraction: the share of the texts, in [0, 1], that may lack a vector; `data.max_skipped_fraction`.

        Raises:
          UserError: more of the texts have no vector.
        """
        example = ""
        if self._missing:
            example = self._first_missing[:80].decode("utf-8", "replace")  # enough to find the text
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
    """Returns the vectors of N texts, float32 [N, D], in their order; N must be above 0.

    `embed` gets `TEXTS` texts of similar length at a time, which take the least padding.
    """
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
    """Returns which of `keys`, int64 [B], are among `sorted_keys`: bool [B]; faster than `np.isin`, which sorts."""
    if not len(sorted_keys):
        return np.zeros(len(keys), bool)
    nearest = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[nearest] == keys
