"""An index: vectors of images or texts, what they are vectors of, and the model that made them.

    from mural_tf.search.index import load_index

    index = load_index("folder")
    scores, rows = index.search(embedder.encode_text(["moyo mwekundu"]), k=10)  # float32 [1, 10], int64 [1, 10]
    index.items[rows[0, 0]]  # the path or id of the closest image

A folder of an index, complete when it has `index.json`:

    index.json             kind, count, sources, the model's identity
    vectors.npy            float32 or float16 [N, D], L2-normalised
    items.sqlite           the items, their captions, fields and words, and which rows were removed: see `ItemTable`
    captions.npy           only if there are captions: float16 [T, D]; ranking.json: by which head, and weights
    model_probes.npy       the model's `Fingerprint`
    skipped.tsv            name[TAB]reason of what could not be read
    approximate.faiss      only if asked for; recall.json: its parameters and measured recall
    confidence.npz         only if captions were there to fit it on: how sure answers are
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mural_tf import files
from mural_tf.errors import UserError
from mural_tf.files import as_path, exclusive_lock, forget, json_field, read_json
from mural_tf.fingerprint import TEXTS, Fingerprint, take
from mural_tf.metrics import top_k
from mural_tf.remote_folders import local_copy
from mural_tf.search import approximate, confidence, ranking
from mural_tf.search.items import IMAGES, TOGETHER, Filter, Item, ItemTable, Names, read_image

if TYPE_CHECKING:  # TensorFlow, which commands do without until they embed
    from mural_tf.embedder import Embedder

DESCRIPTION, VECTORS, ITEMS, PROBES = "index.json", "vectors.npy", "items.sqlite", "model_probes.npy"
SKIPPED = "skipped.tsv"
FORMAT = 3


class Index:
    """Vectors [N, D] and their items; made by `load_index`, or by `build.index_in_memory`.

    Attributes:
      table: the `ItemTable` of the rows. items: their names (path, id or text).
      embeddings: float32 or float16 [N, D], L2-normalised, mostly memory-mapped.
      model: the `Fingerprint` of the model that made them; `str` gives its identity.
      kind: "images" or "texts".
      approximate: an `ApproximateIndex`, or None: every search is exact.
      skipped: how many images could not be read.
      removed: int64, rising: rows that no search finds.
      created: when it was made or updated, "" in memory.
      gone: how many rows the update that has just been had kept although no source holds them any more.
      confidence: a `Confidence`, or None: nothing is known about how sure answers are.
      product: the field whose value the pictures of one product share, "" if there is none.
      facets: function of a tuple of filters: what the fields are of the items that pass, see `ItemTable.facets`.
      captions: the `ranking.Captions`, or None: nothing is found by them. weights: of the ways in one ranking.
    """

    def __init__(
        self,
        items: Sequence[Item] | ItemTable,
        embeddings: np.ndarray,
        model: Fingerprint,
        kind: str = IMAGES,
        *,
        approximate_index: approximate.ApproximateIndex | None = None,
        skipped: int = 0,
        removed: np.ndarray | None = None,
        created: str = "",
    ):
        if len(items) != len(embeddings) or not len(items):
            raise ValueError(f"Expected as many items as vectors, at least one; got {len(items)}, {len(embeddings)}.")
        self.table = items if isinstance(items, ItemTable) else ItemTable(items)
        self.items = Names(self.table)
        self.embeddings, self.model, self.kind = embeddings, model, kind
        self.approximate, self.skipped, self.created, self.gone = approximate_index, skipped, created, 0
        self.removed = self.table.removed() if removed is None else removed
        self._find = functools.lru_cache(maxsize=8)(self.table.rows_with)
        self.facets = functools.lru_cache(maxsize=64)(self._facets)
        self.confidence: confidence.Confidence | None = None
        self.product = ""
        self.captions: ranking.Captions | None = None
        self.weights = ranking.DEFAULT_WEIGHTS

    def __len__(self) -> int:
        """How many rows there are, the removed ones too."""
        return len(self.embeddings)

    @property
    def count(self) -> int:
        """How many items searches find."""
        return len(self) - len(self.removed)

    def rows(self, filters: Sequence[Filter] = (), without: Sequence[str] = ()) -> np.ndarray | None:
        """Returns the rows of the items that pass filters and are not removed, int64 [K] rising; None for all N.

        `without`: words that none of the items may hold.
        """
        if not filters and not len(self.removed) and not without:
            return None
        lacking = [self.removed, *(self.table.with_words(word) for word in without)]
        return np.setdiff1d(self._find(tuple(filters)), np.concatenate(lacking))

    def _facets(self, filters: tuple[Filter, ...] = ()) -> dict[str, dict]:
        """Returns `ItemTable.facets` of what passes filters; of each field by the filters of the others."""
        found = self.table.facets(self.rows(filters))
        for name in {one.name for one in filters}:
            others = self.table.facets(self.rows([one for one in filters if one.name != name]))
            found.update({name: others[name]} if name in others else {})
        return found

    def search(
        self,
        vectors: np.ndarray,
        k: int,
        use_exact: bool = False,
        filters: Sequence[Filter] = (),
        among: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows closest to each vector, best first.

        Args:
          vectors: float32 [Q, D], of the model that made the index; L2-normalised for cosines.
          k: how many; at most the M items that pass the filters are returned.
          use_exact: compare with every row although there is an approximate index.
          filters: find only items with one of the values given for each field named.
          among: in place of filters the rows that may be found, as `rows` returns them.

        Returns:
          float32 scores (dot products) [Q, min(k, M)], falling, and int64 rows [Q, min(k, M)].

        Raises:
          ValueError: vectors of another size or not finite, k below 1.
          UserError: a row that was found is not of length 1.
        """
        among = self.rows(filters) if among is None else among
        if self.approximate is not None and not use_exact:
            scores, rows = self.approximate.search(vectors, k, self.embeddings, among)
        elif among is None:
            scores, rows = top_k.top_k(vectors, self.embeddings, k)
        else:
            scores, rows = approximate.exact(vectors, self.embeddings, k, among)
        check_lengths(self.embeddings, np.unique(rows))
        return scores, rows

    def blocks(self) -> Iterator[tuple[list[Item], np.ndarray]]:
        """Yields the items and vectors of all rows, a few thousand at a time."""
        for begin in range(0, len(self), TOGETHER):
            yield self.table.block(begin, begin + TOGETHER), self.embeddings[begin : begin + TOGETHER]
            forget(self.embeddings)

    def describe(self, row: int) -> Item:
        """Returns the item of a row: where its image lies, its captions. Raises `IndexError` outside [0, N)."""
        if not 0 <= row < len(self):
            raise IndexError(f"The index has rows 0 to {len(self) - 1}, not {row}.")
        return self.table[int(row)]

    def read_image(self, row: int) -> bytes:
        """Returns the encoded image of a row. Raises `IndexError`, or `OSError` or `ValueError` if it is gone."""
        return read_image(self.describe(row))

    def check_model(self, embedder: Embedder) -> None:
        """Raises `UserError` if the vectors of `embedder` cannot be compared with those of the index."""
        of_pictures = self.kind == IMAGES and self.captions is None and self.confidence is None
        self.model.check(take(embedder), "The index", len(TEXTS) if of_pictures else 0)  # any text tower may ask these
        head = self.captions.head if self.captions is not None else ""
        if head and head not in getattr(embedder, "text_heads", ()):
            raise UserError(
                f"The index compares captions by the head {head}, which this export lacks: export it again."
            )


def load_index(folder: str | os.PathLike, use_exact: bool = False) -> Index:
    """Opens the index in a folder; vectors and items are read as they are needed.

    With `use_exact` its approximate part is left alone: every search is exact and faiss is not needed.
    Raises `UserError` if there is none, it is not complete, damaged or of another format.
    """
    folder = local_copy(folder)
    description = read_description(folder)
    embeddings = read_array(folder / VECTORS)
    probes = read_array(folder / PROBES)
    items = ItemTable(folder / ITEMS)
    size, count = description["embedding_size"], description["count"]
    fine = [a.shape[1:] == (size,) and a.dtype in (np.float32, np.float16) for a in (embeddings, probes)]
    if not (all(fine) and len(items) == len(embeddings) == count > 0):
        raise UserError(
            f"The index {folder} is damaged or put together of several: {count} items with vectors of {size} numbers "
            f"were written; {len(items)} items, vectors {embeddings.dtype} {list(embeddings.shape)} and probes "
            f"{probes.dtype} {list(probes.shape)} are there. Make it again."
        )
    check_lengths(embeddings, np.linspace(0, len(embeddings) - 1, min(len(embeddings), CHECKED), dtype=np.int64))
    made_by = description["model"]
    index = Index(
        items,
        embeddings,
        Fingerprint(probes.astype(np.float32, copy=False), made_by["path"], made_by.get("step")),
        description["kind"],
        approximate_index=None if use_exact else approximate.load(folder, len(embeddings)),
        skipped=description["skipped"],
        created=description["created"],
    )
    index.confidence = confidence.load(folder, index.count, size)
    index.product = json_field(description, "product", str, folder / DESCRIPTION, "")
    index.captions, index.weights = ranking.load(folder, items), ranking.load_weights(folder)
    return index


def read_array(path: pathlib.Path) -> np.ndarray:
    """Returns an array of a .npy file, mapped where it is on this machine; raises `UserError` if there is none."""
    try:
        return np.asanyarray(files.read_array(path))
    except Exception as error:  # noqa: BLE001 - NumPy's reader raises many classes on damaged headers
        raise UserError(f"{path} is damaged ({str(error) or type(error).__name__}); make the index again.") from None


CHECKED = 2**16  # vectors whose length is checked when an index is opened, evenly spread; others when they are found
_BLOCK = 2**10  # vectors that are in memory at a time, with 64 kB around each
_LENGTH_TOLERANCE = 0.01  # float16 costs less


def check_lengths(embeddings: np.ndarray, rows: np.ndarray) -> None:
    """Raises `UserError` if one of these rows, int64 [K], is not of length 1: its products would be no cosines."""
    for begin in range(0, len(rows), _BLOCK):
        chosen = rows[begin : begin + _BLOCK]
        lengths = np.linalg.norm(embeddings[chosen].astype(np.float32), axis=1)
        forget(embeddings)
        wrong = np.flatnonzero(~(np.abs(lengths - 1.0) <= _LENGTH_TOLERANCE))  # NaN is wrong, too
        if wrong.size:
            raise UserError(
                f"The vector of row {chosen[wrong[0]]} has the length {lengths[wrong[0]]:.3g} instead of 1: the index "
                "is damaged; make it again."
            )


def read_description(folder: str | os.PathLike) -> dict[str, object]:
    """Returns index.json. Raises `UserError` as `load_index` does."""
    path = pathlib.Path(folder) / DESCRIPTION
    if not path.exists():
        begun = (path.parent / BUILDING).is_dir()
        hint = "its indexing was interrupted; run the same command again" if begun else "make it with: index IMAGES…"
        raise UserError(f"{path.parent} is not an index: it has no {DESCRIPTION} ({hint}).")
    description = read_json(path)
    if description.get("format") != FORMAT:
        raise UserError(f"{path} is of another format than {FORMAT}, which this version reads; index again.")
    numbers = dict.fromkeys(("count", "skipped", "embedding_size"), int)
    texts = dict.fromkeys(("kind", "split", "dtype", "model.path", "created"), str)
    for name, kind in {**numbers, **texts, "sources": list[str]}.items():
        json_field(description, name, kind, path)
    return description


# Rows that searches find no more.

BUILDING, JOINED = "building", "joined"  # folders of an index that is being made


def changing(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Holds a complete index against other processes that change it; raises `UserError` if one has it."""
    return exclusive_lock(folder / DESCRIPTION, f"Another process is changing the index {folder}; wait for it.")


def remove(
    folder: pathlib.Path,
    names: Sequence[str] = (),
    filters: Sequence[Filter] = (),
    gone: bool = False,
    dry_run: bool = False,
) -> tuple[int, int]:
    """Takes rows out of the index in a folder; returns how many, of how many.

    A row that is removed stays in the vectors until the index is updated: `items.sqlite` says that it is gone. So
    neither the vectors nor the approximate index need be written again for a product that is sold out. A killed
    process has removed all rows or none.

    Args:
      names: the rows of these names; or none, and
      filters: those that pass, see `Index.search`; none for all items.
      gone: of these only rows whose image is not there any more.
      dry_run: count only.

    Raises:
      UserError: no such item, or nothing would be left; an index that is damaged, being changed, or was being changed
        when a process was killed.
    """
    read_description(folder)  # says that there is none
    with changing(folder):
        if (folder / BUILDING / JOINED).exists():
            raise UserError(f"An update of the index {folder} was interrupted; run that command again first.")
        index = load_index(folder, use_exact=True)
        rows = _named(index, names) if names else index.rows(filters)
        rows = np.arange(len(index)) if rows is None else rows
        if gone:
            rows = np.array([row for row in rows.tolist() if _is_gone(index, row)], np.int64)
        if len(rows) == index.count:
            raise UserError(f"Nothing of the {index.count:,} {index.kind} would be left: delete {folder} itself.")
        if len(rows) and not dry_run:
            index.table.remove(rows)
    return len(rows), index.count


def _is_gone(index: Index, row: int) -> bool:
    """Tells whether the image of a row is not there any more; a text without one is not gone."""
    item = index.describe(row)
    if not item.has_image or item.offset < 0:
        return item.has_image and not as_path(item.path).is_file()
    try:
        return not index.read_image(row)
    except (OSError, ValueError):
        return True


def _named(index: Index, names: Sequence[str]) -> np.ndarray:
    """Returns the rows of items of these names; raises `UserError` for one that there is not."""
    wanted, removed = set(names), set(index.removed.tolist())
    rows = {row: name for row, name in enumerate(index.table.names()) if name in wanted and row not in removed}
    unknown = sorted(wanted - set(rows.values()))
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(f"The index has no {unknown[0]!r}{more}: names are as `search query` shows them. None removed.")
    return np.array(list(rows), np.int64)
