"""An index: images or texts, their vectors, and the model that made these.

    from mural_search.index import Index, load_index

    index = Index.build("my_index", "workdirs/emoji_mural", ["photos"])  # or load_index("my_index")
    for hit in index.search("moyo mwekundu", where="price<20", k=10):
        print(hit.rank, hit.name, index.describe(hit.row).fields)

The folder of an index:

    index.sqlite   everything: see database.py
    vectors.npy    float32 or float16 [N, D], L2-normalised: the vectors of the items as a matrix
    captions.npy   float16 [T, D]: the captions' vectors
    skipped.tsv    name[TAB]reason of items that could not be read

The matrices are caches of the database: they are made again when the database is newer.
"""

from __future__ import annotations

import functools
import math
import os
import pathlib
import typing
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mural_lite import top_k
from mural_lite.errors import UserError
from mural_lite.files import as_path, atomic_file, release_pages, storage_errors
from mural_lite.fingerprint import TEXTS, Fingerprint, take_fingerprint
from mural_lite.models import open_model, open_to_ask
from mural_lite.remote_folders import local_copy, model_place
from mural_search import database, noise_level, ranking
from mural_search.database import DTYPES
from mural_search.item_table import TOGETHER, ItemTable, Names
from mural_search.items import IMAGES, Filter, Item, parse_filters

if typing.TYPE_CHECKING:
    from mural_lite.embedder import Embedder
    from mural_search.queries import Hit

Where: typing.TypeAlias = "str | Sequence[str | Filter]"

VECTORS = "vectors.npy"
CAPTIONS = "captions.npy"


def _as_filters(where: Where) -> list[Filter]:
    """Returns the filters of conditions: a text "price<20", or a sequence of texts and filters.

    Raises `UserError` for a text that is not a condition.
    """
    conditions = (where,) if isinstance(where, str) else where
    filters = []
    for condition in conditions:
        if isinstance(condition, Filter):
            filters.append(condition)
        else:
            filters += parse_filters([condition])
    return filters


class Index:
    """Vectors [N, D] and their items, in the state that was opened.

    Attributes:
      table: the `ItemTable` of the rows. items: their names (path, id or text).
      embeddings: float32 or float16 [N, D], L2-normalised, mostly memory-mapped; zeros where there is no picture.
      bare: int64 [K] rising, the rows without a picture, which only captions and words find.
      model: the `Fingerprint` of the model that made them; `str` gives its identity.
      kind: "images" or "texts".
      sources, split, dtype: see `build`.
      skipped: how many images could not be read.
      created: when it was made or updated, "" in memory.
      state: another text after every change, also a removal; "" in memory.
      counts: the `Counts` of the change that opened it, or None.
      noise: a `NoiseLevel`, by which nothing may fit a question, or None: it was not measured.
      product: the field whose value the pictures of one product share, or "".
      fields_wanted: names of the fields to show; None: they are chosen.
      facets: `_facets` with a memory of its last answers.
      captions: the `ranking.Captions`, or None: nothing is found by captions' vectors.
      weights: {way: weight} for the one ranking, see `ranking.DEFAULT_WEIGHTS`.
      codes: a `Codes` of the embeddings, where many questions are asked.

    Raises `ValueError` unless there are as many items as vectors, and at least one.
    """

    def __init__(
        self, items: Sequence[Item] | ItemTable, embeddings: np.ndarray, model: Fingerprint, kind: str = IMAGES
    ):
        if len(items) != len(embeddings) or not len(items):
            raise ValueError(f"Expected as many items as vectors, at least one; got {len(items)}, {len(embeddings)}.")
        if not isinstance(items, ItemTable):
            items = database.table_of(items)
        self.table = items
        self.items = Names(self.table)
        self.embeddings = embeddings
        self.model = model
        self.kind = kind
        self.dtype = str(embeddings.dtype)
        meta = self.table.meta
        self.sources = tuple(meta.get("sources", ()))
        self.split = meta.get("split", "")
        self.skipped = meta.get("skipped", 0)
        self.created = meta.get("created", "")
        self.state = str(meta.get("published", ""))[-16:]  # the end is drawn anew for each published state
        self.product = meta.get("product", "")
        self.fields_wanted = tuple(meta["fields"]) if "fields" in meta else None
        self.bare = np.zeros(0, np.int64)
        if kind == IMAGES:
            self.bare = _without_picture(self.table, embeddings)
        self._find = functools.lru_cache(maxsize=8)(self.table.rows_with)
        self.facets = functools.lru_cache(maxsize=64)(self._facets)
        self.noise: noise_level.NoiseLevel | None = None
        self.captions: ranking.Captions | None = None
        self.codes = None
        self.measured_units: tuple | None = None  # the memory of `ranking.units_of`
        self.weights = ranking.DEFAULT_WEIGHTS
        self.counts = None
        self._file: tuple[pathlib.Path, object] | None = None

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike,
        model,
        sources: Sequence[str | os.PathLike] = (),
        *,
        kind: str = "",
        split: str = "",
        dtype: str = "",
        prune: bool = False,
        batch_size: int = 64,
        fields: Sequence[str] | None = None,
        progress: bool = False,
    ) -> Index:
        """Makes the index `folder`, or brings it up to date with its sources; returns it, opened; see `sync`.

        Args:
          model: an `Embedder`, or a folder as `mural_lite.open_model` takes it.
          sources: folders, globs, TFRecords or tables, see `collect.find`; by default the index's own.
          kind: "images" or "texts"; "" as before, for a new index "images".
          split: the split to read in data sets; "" as before, for a new index all.
          dtype: the stored vectors' type, "float32" or "float16" (half the size; scores change by about 1e-4); "" as
            before, for a new index "float32".
          prune: remove items that are no longer in the sources.
          batch_size: images per call of the model.
          fields: names of the fields to show; None: as before, or chosen.
          progress: whether to show a bar.

        Raises:
          UserError: as `sync`; an unknown kind or dtype, sources that hold nothing, a folder that is something else, an
            index of other sources, nothing that can be read.
        """
        from mural_search import changes, collect  # only now: a search does not need them

        recorded = {}
        if (as_path(folder) / database.NAME).is_file():
            recorded = described(folder)
        if not sources and not recorded:
            raise UserError(f"{folder} is not an index yet: name folders, globs, TFRecords or tables of paths.")
        absolute = list(map(collect.absolute, sources))
        requested = {"kind": kind, "split": split, "dtype": dtype, "sources": absolute}
        # An empty argument asks for nothing: the index stays as it is.
        settings = {name: value or recorded.get(name, DEFAULTS[name]) for name, value in requested.items()}
        changes.check_settings(folder, recorded, settings)
        if settings["dtype"] not in DTYPES:
            raise UserError(f"Unknown dtype {settings['dtype']!r}; known: {', '.join(DTYPES)}.")
        names = list(map(str, sources or settings["sources"]))
        entries = collect.find(settings["kind"], names, settings["split"])  # mistakes show before anything is written
        product = collect.product_field(names)
        if isinstance(model, (str, os.PathLike)):
            model = open_model(model)
        settings |= {"batch_size": batch_size, "product": product, "fields": fields, "progress": progress}
        return sync(folder, model, entries, prune, **settings)

    def __len__(self) -> int:
        return len(self.embeddings)

    def is_current(self) -> bool:
        """Whether the index in the folder has not changed since it was opened; always for an index in memory."""
        if self._file is None:
            return True
        path, state = self._file
        return _state(path) in (state, None) and self.table.is_current()  # None: no newer file can be read

    def rows(self, filters: Sequence[Filter] = (), without: Sequence[str] = ()) -> np.ndarray | None:
        """Returns the rows of the items that pass filters, int64 [K] rising; None for all N.

        `without`: words; items whose captions, name or fields hold one of them do not pass.
        """
        if not filters and not without:
            return None
        rows = self._find(tuple(filters)).copy()  # `_find` keeps its own
        for word in dict.fromkeys(without):
            rows = np.setdiff1d(rows, self.table.with_words(word))
        return rows

    def _facets(self, filters: tuple[Filter, ...] = ()) -> dict[str, dict]:
        """Returns {field: a description of its values}, see `ItemTable.facets`, in the items that pass filters.

        For a field with a filter the items count that pass the filters on other fields; so its other values are seen.
        """
        facets = self.table.facets(self.rows(filters))
        for name in {filter_.name for filter_ in filters}:
            other_filters = [filter_ for filter_ in filters if filter_.name != name]
            facets_by_others = self.table.facets(self.rows(other_filters))
            if name in facets_by_others:
                facets[name] = facets_by_others[name]
        return facets

    @typing.overload
    def search(self, question: str, k: int = 10, where: Where = (), among: None = None) -> tuple[Hit, ...]: ...

    @typing.overload
    def search(
        self, question: np.ndarray, k: int = 10, where: Where = (), among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]: ...

    def search(self, question, k=10, where=(), among=None):
        """Returns the items that are closest to a question, best first.

        Args:
          question: a sentence in any language, ranked as `queries.search` does by the model that made the index; or
            float32 [Q, D], vectors of that model, which are only compared with the pictures (L2-normalised for
            cosines).
          k: how many; at most the M items that pass are returned. Vectors find no item without a picture.
          where: the conditions that items must meet: "price<20", or several such texts or `Filter`s. Of several values
            "=" for one field any is enough.
          among: for vectors, in place of `where` the rows that may be found, as `rows` returns them.

        Returns:
          For a sentence `queries.Hit`s, with rank, score, name and row. For vectors float32 scores (dot products)
          [Q, min(k, M)], falling, and int64 rows [Q, min(k, M)].

        Raises:
          ValueError: vectors of another size or not finite, k below 1.
          UserError: a question that cannot be asked, a model that is not there; a row of another length than 1.
        """
        filters = _as_filters(where)
        if isinstance(question, str):
            from mural_search.queries import Query, check_filters, search  # they ask an index

            check_filters(self, filters)
            (answer,) = search(self, self.embedder, [Query(question)], k, filters)
            return answer.hits
        if among is None:
            among = self.rows(filters)
        return self._closest(question, k, among)

    def _closest(self, vectors: np.ndarray, k: int, among: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns (scores, rows), as `search`, of the pictures closest to vectors, float32 [Q, D].

        `among`: int64 [M] rising, the rows that may be found; None for all. Raises `UserError` for damaged vectors.
        """
        if self.bare.size:
            if among is None:
                among = np.arange(len(self))
            among = np.setdiff1d(among, self.bare)
        if self.codes is not None and len(vectors) == 1:
            among = self.codes.candidates(vectors[0], k, among)  # fewer rows, with the same results
        scores, rows = exact(vectors, self.embeddings, k, among)
        if not np.isfinite(scores).all():
            raise UserError(f"{self._damage}: some of its numbers are not finite.")
        check_lengths(self.embeddings, np.unique(rows), self._damage)
        return scores, rows

    @functools.cached_property
    def first_rows(self) -> np.ndarray:
        """The first row of each row's product, int64 [N]."""
        return self.table.first_rows(self.product)

    @functools.cached_property
    def key_hashes(self) -> np.ndarray:
        """A hash of each row's key, uint64 [N], by which an item is found again when its row has changed."""
        return self.table.key_hashes(slice(None))

    @functools.cached_property
    def embedder(self) -> Embedder:
        """The `Embedder` of the model that made the index, loaded from the recorded folder at its first use.

        A model in another folder is set by `index.embedder = …`. Raises `UserError` if the folder is gone.
        """
        path = self.model.path
        if not path or not model_place(path).is_dir():
            raise UserError(f"The index was made by the model {path or 'of a process'}, which is not there: load it.")
        return open_to_ask(path, functools.partial(self.check_model, by_pictures=False))

    @property
    def _damage(self) -> str:
        """The beginning of the message on damaged vectors, which names their file."""
        matrix = "The index"
        if self._file is not None:
            path, _ = self._file
            matrix = path.parent / VECTORS
        return f"{matrix} is damaged: delete this file, it is made again"

    def blocks(self) -> Iterator[tuple[list[Item], np.ndarray]]:
        """Yields (items, their vectors, float32 or float16 [B, D]) of all rows in order, `TOGETHER` at a time."""
        for begin in range(0, len(self), TOGETHER):
            yield self.table.at(slice(begin, begin + TOGETHER)), self.embeddings[begin : begin + TOGETHER]
            release_pages(self.embeddings)

    def vectors_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the vectors of rows, int64 [K], as float32 [K, D]; their pages of memory are given back."""
        return ranking.vectors_at(self.embeddings, rows)

    def describe(self, row: int) -> Item:
        """Returns the item of a row, with its captions and fields. Raises `IndexError` outside [0, N)."""
        if not 0 <= row < len(self):
            raise IndexError(f"The index has rows 0 to {len(self) - 1}, not {row}.")
        return self.table[int(row)]

    def read_image(self, row: int) -> bytes:
        """Returns the encoded image of a row: the bytes of its file or record.

        Raises `IndexError` outside [0, N), and `OSError` or `ValueError` for an item without an image or an image that
        is gone.
        """
        from mural_search.stored_images import read_image  # here, because Pillow and Protocol Buffers come with it

        return read_image(self.describe(row))

    def check_model(self, embedder: Embedder, by_pictures: bool = True) -> None:
        """Raises `UserError` if the vectors of `embedder` cannot be compared with the vectors of the index.

        `by_pictures`: whether questions may be pictures. If not, a model with the same vectors of texts passes, and its
        image encoder is not asked.
        """
        if by_pictures or not self.model.has_texts_of(take_fingerprint(embedder, pictures=False)):
            # An index of pictures without texts may be asked by another text tower than the model's: only the probes
            # that are pictures, which come after `TEXTS`, must agree.
            has_texts = self.kind != IMAGES or self.captions is not None or self.noise is not None
            first_probe = 0 if has_texts else len(TEXTS)
            self.model.check(take_fingerprint(embedder), "The index", first_probe)
        head = "" if self.captions is None else self.captions.head
        if head and head not in getattr(embedder, "text_heads", ()):
            raise UserError(f"The index compares captions by the head {head}, which this export lacks: export again.")


def _without_picture(table: ItemTable, embeddings: np.ndarray) -> np.ndarray:
    """Returns the rows, int64 [K] rising, of items without a picture: they name no file, and their vector is zero.

    An item without a file has a picture all the same if it came with the picture's vector.
    """
    without_file = table.without_pictures()
    blocks = []
    for rows in np.array_split(without_file, len(without_file) // _BLOCK + 1):  # a block at a time is in memory
        blocks.append(rows[~np.any(embeddings[rows], axis=1)])
        release_pages(embeddings)
    return np.concatenate(blocks)


DEFAULTS = {"kind": IMAGES, "split": "", "dtype": "float32", "sources": []}  # of a new index, see `Index.build`


def exact(
    vectors: np.ndarray, embeddings: np.ndarray, k: int, among: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (scores, rows) of the embeddings with the largest products with each vector, best first.

    One block of memory-mapped embeddings is in memory at a time.

    Args:
      vectors: float32 [Q, D].
      embeddings: float32 or float16 [N, D].
      k: how many embeddings per vector.
      among: int64 [M] rising, the rows that may be found; None for all N.

    Returns:
      float32 scores and int64 rows, [Q, min(k, M)]. Where scores are not finite, rows mean nothing.
    """
    all_scores = [np.zeros((len(vectors), 0), np.float32)]
    all_rows = [np.zeros((len(vectors), 0), np.int64)]
    if among is None:
        blocks = [slice(begin, begin + _MAPPED) for begin in range(0, len(embeddings), _MAPPED)]
    else:
        blocks = [among[begin : begin + _BLOCK] for begin in range(0, len(among), _BLOCK)]
    for block in blocks:
        scores, columns = top_k.top_k(vectors, embeddings[block], k)
        rows = block
        if among is None:
            rows = np.arange(*block.indices(len(embeddings)))
        all_scores.append(scores)
        all_rows.append(rows[np.minimum(columns, len(rows) - 1)])  # beyond the last where products are not finite
        release_pages(embeddings)
    scores = np.concatenate(all_scores, axis=1)
    rows = np.concatenate(all_rows, axis=1)
    order = np.lexsort((rows, -scores))[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


# Opening.


def load_index(folder: str | os.PathLike) -> Index:
    """Opens the index in a folder, and makes its matrices if they are out of date; items are read as they are needed.

    Raises `UserError` if it is missing, damaged, busy, made by another version or may not be read.
    """
    folder = local_copy(folder)
    database.check_place(folder)
    path = folder / database.NAME
    state = _state(path)  # before it is read, so that no change is missed
    index = _open(ItemTable(path), folder)
    index._file = path, state
    return index


def _state(path: pathlib.Path) -> tuple | None:
    """Returns a tuple that changes when a database's file is replaced, or changed without a log; None without a file.

    In a folder that may be written, changes go into a log: `ItemTable.is_current` sees them.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    if os.access(path.parent, os.W_OK):
        return status.st_dev, status.st_ino
    return status.st_dev, status.st_ino, status.st_mtime_ns


def described(folder: str | os.PathLike) -> dict[str, object]:
    """Returns the settings of an index: {"kind", "sources", "split", "dtype", "model", …}. Raises as `load_index`."""
    folder = local_copy(folder)
    database.check_place(folder)
    return ItemTable(folder / database.NAME).meta


# Settings that every index has, with their types, and settings that an index may have.
NEEDED = {"kind": str, "dtype": str, "model": dict, "state": str, "sources": list, "probes": bytes}
FURTHER = {"split": str, "product": str, "fields": list, "skipped": int, "changed": int, "created": str, "head": str,
           "noise": dict, "stamp": str, "examples": bytes, "salt": bytes,
           "by_catalogue": bool}  # fmt: skip


def model_of(folder: str | os.PathLike) -> Fingerprint | None:
    """Returns the fingerprint of the model that made the index in a folder, finished or not; None without an index."""
    if not (as_path(folder) / database.NAME).is_file():
        return None
    meta = ItemTable(local_copy(folder) / database.NAME).meta
    if "probes" not in meta:
        return None
    return database.parse_fingerprint(meta["probes"], meta["model"])


def _open(table: ItemTable, folder: pathlib.Path | None = None) -> Index:
    """Opens the index of a table; its matrices are files in `folder`, made if needed, or without a folder in memory.

    Raises `UserError` for an index without items, or with damaged settings or vectors.
    """
    _check_meta(table, f"The index {folder}" if folder else "The index in memory")
    meta = table.meta
    model = database.parse_fingerprint(meta["probes"], meta["model"])
    width = model.probes.shape[1]
    embeddings = _matrix(table, folder, VECTORS, table.ids, np.dtype(meta["dtype"]), width)
    index = Index(table, embeddings, model, meta["kind"])
    if "head" in meta and len(table.caption_ids):
        dtype = np.dtype(np.float16)  # of any width, because captions may have another head than pictures
        vectors = _matrix(table, folder, CAPTIONS, table.caption_ids, dtype, width=0)
        if vectors is not None:
            index.captions = ranking.Captions(vectors, table, meta["head"])
    if "noise" in meta and meta.get("changed", 0) <= noise_level.CHANGED * len(table):
        index.noise = noise_level.from_meta(meta["noise"], len(index))
    return index


def _check_meta(table: ItemTable, index_name: str) -> None:
    """Raises `UserError` for a table without items, or with settings that are missing, of another type or unknown."""
    meta = table.meta
    wrong = [key for key, value_type in NEEDED.items() if not isinstance(meta.get(key), value_type)]
    # `value_type()` is of the right type, so that settings which are missing pass.
    wrong += [key for key, value_type in FURTHER.items() if not isinstance(meta.get(key, value_type()), value_type)]
    if not len(table):
        raise UserError(f"{index_name} holds nothing yet: run the command that makes it again.")
    if wrong or meta["dtype"] not in DTYPES:
        damaged = ", ".join(wrong) or "dtype"
        raise UserError(f"{index_name} is damaged (its {damaged}): delete it and make it again.")


CHECKED = 2**10  # vectors whose length is checked when a matrix is opened, evenly spread; others when they are found
_BLOCK = 2**10  # vectors that are in memory at a time
_MAPPED = 2**14  # vectors of a file whose pages are in memory at a time
_LENGTH_TOLERANCE = 0.01  # of the length 1; rounding to float16 changes it by less
_STATE = 32  # bytes behind the numbers of a matrix: the state, see `database.transaction`, that it was made of


def _matrix(
    table: ItemTable, folder: pathlib.Path | None, name: str, ids: np.ndarray, dtype: np.dtype, width: int
) -> np.ndarray | None:
    """Returns the vectors of items or captions, [N, D], from the file `name` if it has the database's state.

    Otherwise they are read from the database, and the file is made, if its folder may be written. Returns None if a
    caption has no vector.

    Args:
      folder: the folder of the file; None: only in memory.
      name: `VECTORS` for vectors of items, or `CAPTIONS`.
      ids: int64 [N] rising, of the items or captions.
      dtype: of the vectors.
      width: D, 0 for any.
    """
    state = str(table.meta["state"]).encode()
    of_captions = name == CAPTIONS
    if folder is not None:
        path = folder / name
        matrix = _read_matrix(path, state, len(ids), dtype, may_be_zero=not of_captions)
        if matrix is not None:
            return matrix
    blocks = _vectors(table, ids, dtype, width, of_captions)
    if folder is None or not os.access(folder, os.W_OK):
        parts = list(blocks)
        has_all = sum(map(len, parts)) == len(ids)
        return np.concatenate(parts) if has_all else None
    try:
        with storage_errors(path), atomic_file(path) as partial:
            if not _write_matrix(partial, blocks, len(ids), state):
                raise _LacksVectors  # so that the file does not appear
    except _LacksVectors:
        return None
    return np.load(path, mmap_mode="r")


def _read_matrix(path: pathlib.Path, state: bytes, count: int, dtype: np.dtype, may_be_zero: bool) -> np.ndarray | None:
    """Returns the matrix of a .npy file, [count, D], memory-mapped; `None` if it is missing, damaged or out of date.

    Args:
      state: the database's state, which the end of the file must have.
      count, dtype: of the vectors that the matrix must hold.
      may_be_zero: whether rows of zeros are allowed.
    """
    try:
        with path.open("rb") as file:
            file.seek(-_STATE, os.SEEK_END)
            is_current = file.read() == state
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
        if not is_current or matrix.dtype != dtype or matrix.ndim != 2 or len(matrix) != count:
            return None
        check_lengths(matrix, ranking.spread(np.arange(count), CHECKED), "", may_be_zero)
    except Exception:  # noqa: BLE001 - NumPy's reader raises many classes on damaged headers
        return None
    return matrix


class _LacksVectors(Exception):
    """A caption has no vector."""


def _write_matrix(path: pathlib.Path, blocks: Iterator[np.ndarray], count: int, state: bytes) -> bool:
    """Writes blocks [B, D] as a .npy file of `count` rows, and the state behind them.

    Returns whether the blocks had `count` rows, as the header says; otherwise the file is of no use.
    """
    written = 0
    with path.open("wb") as file:
        for block in blocks:
            if not written:  # only now D is known
                shape = count, block.shape[1]
                header = {"descr": np.lib.format.dtype_to_descr(block.dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(block.tobytes())
            written += len(block)
        file.write(state)
    return written == count


def _vectors(table: ItemTable, ids: np.ndarray, dtype: np.dtype, width: int, of_captions: bool) -> Iterator[np.ndarray]:
    """Yields blocks of the vectors of ids, in order, [B, D], B = `TOGETHER` or fewer; zeros for items without a vector.

    Ends before a block with a caption without a vector. Raises `UserError` for vectors whose length is not 1, or that
    have not `width` numbers (0: as many as the first vector).
    """
    damage = f"The index is damaged ({database.NAME}): delete it and make it again"
    pairs = table.vectors(of_captions)
    for block_ids, stored in _in_blocks(ids, pairs):
        if of_captions and len(stored) < len(block_ids):
            return
        if not width:  # of captions, each of which has a vector
            width = len(stored[0]) // dtype.itemsize
        if any(len(vector) != width * dtype.itemsize for vector in stored.values()):
            raise UserError(f"{damage}: it holds vectors that have not {width} numbers.")
        rows = np.array(list(stored), np.int64)
        matrix = np.zeros((len(block_ids), width), dtype)
        matrix[rows] = np.frombuffer(b"".join(stored.values()), dtype).reshape(len(rows), width)
        check_lengths(matrix, rows, damage)
        yield matrix


def _in_blocks(ids: np.ndarray, pairs: Iterator[tuple[int, bytes]]) -> Iterator[tuple[list[int], dict[int, bytes]]]:
    """Yields (ids of a block, {row in the block: vector} of the ids that have a vector), `TOGETHER` ids at a time.

    Args:
      ids: int64 [N], rising.
      pairs: (id, vector) in the order of the ids; ids may lack a vector.
    """
    no_pair = (math.inf, b"")  # after the last pair
    vector_id, vector = next(pairs, no_pair)
    for begin in range(0, len(ids), TOGETHER):
        block_ids = ids[begin : begin + TOGETHER].tolist()
        stored = {}
        for row, item_id in enumerate(block_ids):
            while vector_id < item_id:  # the vector of an item that another program has deleted
                vector_id, vector = next(pairs, no_pair)
            if vector_id == item_id:
                stored[row] = vector
                vector_id, vector = next(pairs, no_pair)
        yield block_ids, stored


def check_lengths(embeddings: np.ndarray, rows: np.ndarray, damage: str, may_be_zero: bool = False) -> None:
    """Raises `UserError` if the vector of a row has not the length 1, so that its products are not cosines.

    Args:
      embeddings: float32 or float16 [N, D].
      rows: int64 [K], the rows to check.
      damage: the beginning of the message.
      may_be_zero: whether rows of zeros are allowed.
    """
    for begin in range(0, len(rows), _BLOCK):
        chosen = rows[begin : begin + _BLOCK]
        lengths = np.linalg.norm(ranking.vectors_at(embeddings, chosen), axis=1)
        is_right = np.abs(lengths - 1.0) <= _LENGTH_TOLERANCE  # NaN is wrong, too
        if may_be_zero:
            is_right |= lengths == 0.0
        if not is_right.all():
            first = np.argmin(is_right)  # of booleans: the first that is false
            raise UserError(f"{damage}: the vector of row {chosen[first]} has the length {lengths[first]:.3g}, not 1.")


# Changing.


def sync(
    folder: str | os.PathLike, embedder, items: Iterable[tuple[Item, object]], prune: bool = False, **options
) -> Index:
    """Makes the index `folder`, or brings it up to date with `items`; returns it, opened.

    A killed process has made all blocks of items but the last; the same call again continues with the missing items.

    Args:
      embedder, items, prune: see `changes.sync`.
      options: further arguments of `changes.sync`.

    Raises `UserError` as `changes.sync` and `load_index`.
    """
    from mural_search import changes  # only now: a search does not need it

    counts = changes.sync(folder, embedder, items, prune, **options)
    index = load_index(folder)
    index.counts = counts
    if embedder is not None:
        index.embedder = embedder
    return index


def index_in_memory(
    embedder,
    entries: Iterable[tuple[Item, object]],
    kind: str = IMAGES,
    batch_size: int = 64,
    progress: bool | None = None,
) -> Index:
    """Encodes entries into an index in memory, and returns it.

    Args:
      entries: (item, content) as `collect.find` yields them.
      kind: "images" or "texts".
      batch_size: images or texts per call of the model.
      progress: whether to show a bar.

    Raises `UserError` if nothing can be read.
    """
    from mural_search import changes

    connection = database.make()
    changes.keep_model(connection, take_fingerprint(embedder), "The index in memory")
    database.keep(connection, kind=kind, dtype="float32", sources=[])
    counts = changes.bring(connection, embedder, entries, kind=kind, batch_size=batch_size, progress=bool(progress))
    if not counts.added:
        raise UserError(f"None of the {counts.skipped} {kind} can be read.")
    index = _open(ItemTable(connection))
    index.created = ""
    index.state = ""
    index.counts = counts
    index.embedder = embedder
    return index
