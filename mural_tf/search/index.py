"""An index: vectors of images or texts, what they are vectors of, and the model that made them.

    from mural_tf.search.index import Index, load_index

    index = Index.build("my_index", "workdirs/emoji_mural", ["photos"])  # or load_index("my_index")
    scores, rows = index.search(embedder.encode_text(["moyo mwekundu"]), k=10)  # float32 [1, 10], int64 [1, 10]
    index.items[rows[0, 0]]  # the path or id of the closest image

The folder of an index:

    index.sqlite   everything: see database.py
    vectors.npy    float32 or float16 [N, D], L2-normalised: the vectors of the items as a matrix
    captions.npy   float16 [T, D]: those of the captions
    skipped.tsv    name[TAB]reason of what could not be read

The matrices are caches of the database: whoever opens the index makes them again where the database is newer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mural_tf.errors import UserError
from mural_tf.files import as_path, exclusive_lock, forget, remove_partial, storage_errors, whole
from mural_tf.fingerprint import TEXTS, Fingerprint, take
from mural_tf.metrics import top_k
from mural_tf.remote_folders import local_copy
from mural_tf.search import changes, collect, confidence, database, ranking
from mural_tf.search.changes import DTYPES, Counts
from mural_tf.search.database import TOGETHER, ItemTable, Names
from mural_tf.search.items import IMAGES, Filter, Item, read_image
from mural_tf.sqlite import sqlite3

if TYPE_CHECKING:  # TensorFlow, which commands do without until they embed
    from mural_tf.embedder import Embedder

VECTORS, CAPTIONS, SKIPPED, LOCK = "vectors.npy", "captions.npy", "skipped.tsv", ".lock"
OLD = "index.json"  # of indexes before `database.FORMAT` 4


class Index:
    """Vectors [N, D] and their items, as they were when they were opened.

    Attributes:
      table: the `ItemTable` of the rows. items: their names (path, id or text).
      embeddings: float32 or float16 [N, D], L2-normalised, mostly memory-mapped; zeros where there is no picture.
      bare: int64, rising: rows without a picture, which are found by captions and words alone.
      model: the `Fingerprint` of the model that made them; `str` gives its identity.
      kind: "images" or "texts". sources, split, dtype: what it was made of, and how.
      skipped: how many images could not be read.
      created: when it was made or updated, "" in memory.
      counts: what the change that has just been made did, or None.
      confidence: a `Confidence`, or None: nothing is known about how sure answers are.
      product: the field whose value the pictures of one product share, "" if there is none.
      fields_wanted: names of the fields to show, None: they are chosen.
      facets: function of a tuple of filters: what the fields are of the items that pass, see `ItemTable.facets`.
      captions: the `ranking.Captions`, or None: nothing is found by them. weights: of the ways in one ranking.
    """

    def __init__(
        self, items: Sequence[Item] | ItemTable, embeddings: np.ndarray, model: Fingerprint, kind: str = IMAGES
    ):
        if len(items) != len(embeddings) or not len(items):
            raise ValueError(f"Expected as many items as vectors, at least one; got {len(items)}, {len(embeddings)}.")
        self.table = items if isinstance(items, ItemTable) else ItemTable(items)
        self.items = Names(self.table)
        self.embeddings, self.model, self.kind = embeddings, model, kind
        meta = self.table.meta
        self.sources, self.split = tuple(meta.get("sources", ())), meta.get("split", "")
        self.dtype, self.skipped, self.created = str(embeddings.dtype), meta.get("skipped", 0), meta.get("created", "")
        self.product, fields = meta.get("product", ""), meta.get("fields")
        self.fields_wanted = None if fields is None else tuple(fields)
        self.weights = meta.get("weights") or ranking.DEFAULT_WEIGHTS
        self.bare = self.table.without_pictures() if kind == IMAGES else np.zeros(0, np.int64)
        if self.bare.size and np.asarray(embeddings[self.bare[:1]], np.float32).any():
            self.bare = np.zeros(0, np.int64)  # items that were given with vectors alone
        self._find = functools.lru_cache(maxsize=8)(self.table.rows_with)
        self.facets = functools.lru_cache(maxsize=64)(self._facets)
        self.confidence: confidence.Confidence | None = None
        self.captions: ranking.Captions | None = None
        self.counts: Counts | None = None
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
        """Makes the index `folder`, or brings it to what its sources hold by now; see `sync`.

        Args:
          model: what `mural_tf.load` takes, or an `Embedder`.
          sources: folders, globs, TFRecords or tables, see `collect.find`; by default those that it was made of.
          kind: "images" or "texts". split: of data sets, "" for all.
          dtype: of the stored vectors, "float32" or "float16" (half the size; scores change by about 1e-4).
          prune: take out what the sources hold no more.
          batch_size: images per call of the model.
          fields: names of the fields to show; None: as before, or chosen.

        Raises:
          UserError: sources that hold nothing, a folder that is something else, an index of other sources, nothing that
            can be read, or what `sync` raises it for.
        """
        known = described(folder) if (as_path(folder) / database.NAME).is_file() else {}
        if not sources and not known:
            raise UserError(f"{folder} is no index yet: name folders, globs, TFRecords or tables of paths.")
        before = {name: known.get(name, default) for name, default in DEFAULTS.items()}
        given = {"kind": kind, "split": split, "dtype": dtype, "sources": list(map(collect.absolute, sources))}
        asked = {name: value or before[name] for name, value in given.items()}
        _check_asked(folder, known, asked)
        if asked["dtype"] not in DTYPES:
            raise UserError(f"Unknown dtype {asked['dtype']!r}; known: {', '.join(DTYPES)}.")
        names = asked["sources"] if not sources else list(map(str, sources))
        found = collect.find(asked["kind"], names, asked["split"])  # mistakes show before anything is written
        product = collect.product_field(names)
        if isinstance(model, (str, os.PathLike)):
            from mural_tf.loading import load

            model = load(model)
        about = dict(batch_size=batch_size, product=product, fields=fields, progress=progress)
        return sync(folder, model, found, prune, **asked, **about)

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def count(self) -> int:
        """How many items there are."""
        return len(self)

    def is_current(self) -> bool:
        """Tells whether the index in its folder is still what was opened."""
        if self._file is None:
            return True
        path, state = self._file
        return _state(path) in (state, None) and self.table.is_current()

    def rows(self, filters: Sequence[Filter] = (), without: Sequence[str] = ()) -> np.ndarray | None:
        """Returns the rows of the items that pass filters, int64 [K] rising; None for all N.

        `without`: words that none of the items may hold.
        """
        if not filters and not without:
            return None
        lacking = [np.zeros(0, np.int64), *(self.table.with_words(word) for word in without)]
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
        filters: Sequence[Filter] = (),
        among: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows closest to each vector, best first.

        Args:
          vectors: float32 [Q, D], of the model that made the index; L2-normalised for cosines.
          k: how many; at most the M items that pass the filters are returned. Items without a picture are not.
          filters: find only items with one of the values given for each field named.
          among: in place of filters the rows that may be found, as `rows` returns them.

        Returns:
          float32 scores (dot products) [Q, min(k, M)], falling, and int64 rows [Q, min(k, M)].

        Raises:
          ValueError: vectors of another size or not finite, k below 1.
          UserError: a row that was found is not of length 1.
        """
        among = self.rows(filters) if among is None else among
        if self.bare.size:
            among = np.setdiff1d(np.arange(len(self)) if among is None else among, self.bare)
        scores, rows = exact(vectors, self.embeddings, k, among)
        check_lengths(self.embeddings, np.unique(rows), self._named)
        return scores, rows

    @property
    def _named(self) -> str:
        place = self._file[0].parent / VECTORS if self._file else "The index"
        return f"{place} is damaged: delete this file, it is made again"

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


DEFAULTS = {"kind": IMAGES, "split": "", "dtype": "float32", "sources": []}


def exact(
    vectors: np.ndarray, embeddings: np.ndarray, k: int, among: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `top_k.top_k` does, with one block of memory-mapped embeddings in memory at a time.

    `among`: int64 [M] rising, the rows to find; None for all.
    """
    if among is None:
        return top_k.top_k(vectors, embeddings, k)
    found = [(np.zeros((len(vectors), 0), np.float32), np.zeros((len(vectors), 0), np.int64))]
    for begin in range(0, len(embeddings), _BLOCK):
        rows = among[slice(*np.searchsorted(among, [begin, begin + _BLOCK]))]
        if len(rows):
            scores, places = top_k.top_k(vectors, embeddings[begin : begin + _BLOCK][rows - begin], k)
            found.append((scores, rows[places]))
            forget(embeddings)
    scores, rows = (np.concatenate(part, axis=1) for part in zip(*found))
    order = np.lexsort((rows, -scores))[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


# Opening.


def load_index(folder: str | os.PathLike) -> Index:
    """Opens the index in a folder; vectors and items are read as they are needed.

    Raises `UserError` if there is none, it is damaged, busy, made by another version or may not be read.
    """
    folder = local_copy(folder)
    _check_is_index(folder)
    path = folder / database.NAME
    state = _state(path)
    index = _opened(ItemTable(path), folder)
    index._file = path, state
    return index


def _state(path: pathlib.Path) -> object:
    """Returns what changes when a file is replaced, or written where there is no log; None where there is no file."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino, None if os.access(path.parent, os.W_OK) else status.st_mtime_ns
    return None


def _check_is_index(folder: pathlib.Path) -> None:
    """Raises `UserError` for a folder that is no index."""
    path = folder / database.NAME
    if path.is_file() or (path.exists() and not os.access(path, os.R_OK)):
        return
    if (folder / OLD).is_file():
        raise UserError(f"The index {folder} was made by an earlier version: make it again.")
    with storage_errors(folder):
        is_hidden = folder.is_dir() and not os.access(folder, os.X_OK)
    if is_hidden:
        raise UserError(f"{folder} may not be read: check its permissions.")
    raise UserError(f"{folder} is not an index: it has no {database.NAME} (make it with: search index IMAGES…).")


def described(folder: str | os.PathLike) -> dict[str, object]:
    """Returns what is known of the whole of an index: kind, sources, split, dtype, model. Raises as `load_index`."""
    folder = local_copy(folder)
    _check_is_index(folder)
    return ItemTable(folder / database.NAME).meta


def model_of(folder: str | os.PathLike) -> Fingerprint | None:
    """Returns the model that made the index in a folder, finished or not; None where there is no index."""
    path = local_copy(folder) / database.NAME if as_path(folder).exists() else None
    if path is None or not path.is_file():
        return None
    meta = ItemTable(path).meta
    return changes.fingerprint_of(meta["probes"], meta["model"]) if "probes" in meta else None


def _opened(table: ItemTable, folder: pathlib.Path | None = None) -> Index:
    """Returns the index of a table, whose matrices lie in `folder`, or are in memory."""
    meta, what = table.meta, f"The index {folder}" if folder else "The index in memory"
    kinds = {"kind": str, "dtype": str, "model": dict, "state": str, "sources": list, "probes": bytes}
    wrong = [name for name, kind in kinds.items() if not isinstance(meta.get(name), kind)]
    if wrong or meta["dtype"] not in DTYPES:
        raise UserError(f"{what} is damaged (what it says of {', '.join(wrong) or 'dtype'}): make it again.")
    if not len(table):
        raise UserError(f"{what} holds nothing yet: run the command that makes it again.")
    model = changes.fingerprint_of(meta["probes"], meta["model"])
    width = model.probes.shape[1]
    embeddings = _matrix(table, folder and folder / VECTORS, table.ids, np.dtype(meta["dtype"]), width)
    index = Index(table, embeddings, model, meta["kind"])
    if "head" in meta and len(table.caption_ids()):
        vectors = _matrix(table, folder and folder / CAPTIONS, table.caption_ids(), np.dtype(np.float16), 0, True)
        index.captions = None if vectors is None else ranking.Captions(vectors, table, meta["head"])
    if isinstance(meta.get("confidence"), bytes) and meta.get("changed", 0) <= confidence.CHANGED * len(table):
        index.confidence = confidence.from_bytes(meta["confidence"], index.count)
    return index


CHECKED = 2**16  # vectors whose length is checked when a matrix is opened, evenly spread; others when they are found
_BLOCK = 2**12  # vectors that are in memory at a time
_LENGTH_TOLERANCE = 0.01  # float16 costs less
_STATE = 32  # bytes behind the numbers of a matrix: the state of the database that it was made of


def _matrix(
    table: ItemTable, path: pathlib.Path | None, ids: np.ndarray, dtype: np.dtype, width: int, of_captions: bool = False
) -> np.ndarray | None:
    """Returns the vectors of items or captions as a matrix, from the file `path` where it is of this state.

    Otherwise it is made of the database, and the file with it, where the folder may be written. `width`: 0 for any.
    None where captions have no vectors.
    """
    state = str(table.meta["state"]).encode()
    if path is not None:
        with contextlib.suppress(OSError, ValueError, EOFError, UserError):
            with path.open("rb") as file:
                file.seek(-_STATE, os.SEEK_END)
                is_current = file.read() == state
            matrix = np.load(path, mmap_mode="r", allow_pickle=False)
            if is_current and matrix.dtype == dtype and matrix.ndim == 2 and len(matrix) == len(ids):
                chosen = np.linspace(0, len(ids) - 1, min(len(ids), CHECKED), dtype=np.int64)
                check_lengths(matrix, chosen, "", may_be_zero=not of_captions)
                return matrix
    blocks = _vectors(table, ids, dtype, width, of_captions)
    if path is not None and os.access(path.parent, os.W_OK):
        with storage_errors(path), whole(path) as partial:
            if not _write_matrix(partial, blocks, len(ids), state):
                return None
        return np.load(path, mmap_mode="r")
    found = list(blocks)
    return np.concatenate(found) if sum(map(len, found)) == len(ids) else None


def _write_matrix(path: pathlib.Path, blocks: Iterator[np.ndarray], count: int, state: bytes) -> bool:
    written = 0
    with path.open("wb") as file:
        for block in blocks:
            if not written:
                shape = count, block.shape[1]
                header = {"descr": np.lib.format.dtype_to_descr(block.dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(block.tobytes())
            written += len(block)
        file.write(state)
    return written == count


def _vectors(table: ItemTable, ids: np.ndarray, dtype: np.dtype, width: int, of_captions: bool) -> Iterator[np.ndarray]:
    """Yields the vectors of ids, in order, a few thousand at a time: [B, D]; zeros for items that have none.

    Ends where a caption has none. Raises `UserError` for vectors of another length than 1.
    """
    what = f"The index is damaged ({database.NAME}): make it again"
    pairs = table.vectors(of_captions)
    known = next(pairs, None)
    for begin in range(0, len(ids), TOGETHER):
        rows, vectors = [], []
        block = ids[begin : begin + TOGETHER].tolist()
        for place, number in enumerate(block):
            if known is not None and known[0] == number:
                rows.append(place)
                vectors.append(known[1])
                known = next(pairs, None)
        if of_captions and len(rows) < len(block):
            return
        joined = b"".join(vectors)
        width = width or len(joined) // dtype.itemsize // len(rows)
        if len(joined) != len(rows) * width * dtype.itemsize:
            raise UserError(f"{what}: it holds vectors of another length than {width} numbers.")
        matrix = np.zeros((len(block), width), dtype)
        matrix[rows] = np.frombuffer(joined, dtype).reshape(len(rows), width)
        check_lengths(matrix, np.array(rows, np.int64), what)
        yield matrix


def check_lengths(embeddings: np.ndarray, rows: np.ndarray, what: str, may_be_zero: bool = False) -> None:
    """Raises `UserError` if one of these rows, int64 [K], is not of length 1: its products would be no cosines.

    `what`: the line to show. `may_be_zero`: rows of zeros are allowed.
    """
    for begin in range(0, len(rows), _BLOCK):
        chosen = rows[begin : begin + _BLOCK]
        lengths = np.linalg.norm(embeddings[chosen].astype(np.float32), axis=1)
        forget(embeddings)
        is_right = np.abs(lengths - 1.0) <= _LENGTH_TOLERANCE  # NaN is wrong, too
        wrong = np.flatnonzero(~(is_right | (lengths == 0.0) if may_be_zero else is_right))
        if wrong.size:
            row, length = chosen[wrong[0]], lengths[wrong[0]]
            raise UserError(f"{what}: the vector of row {row} has the length {length:.3g}, not 1.")


# Changing.


@contextlib.contextmanager
def changing(folder: str | os.PathLike, new: bool = False) -> Iterator[sqlite3.Connection]:
    """Gives the database of an index, which no other process changes meanwhile; `new`: makes it where there is none.

    Raises `UserError` if another process has it, the folder is something else, or it is damaged.
    """
    folder = as_path(folder)
    if not isinstance(folder, pathlib.Path):
        raise UserError(f"{folder}: an index is made on this machine: remote_folders.local_folder gives a folder.")
    path = folder / database.NAME
    if not new or (folder / OLD).is_file():
        _check_is_index(folder)
    elif folder.exists() and not path.exists() and not _is_free(folder):
        raise UserError(f"{folder} is neither empty nor an index; choose a new folder.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = exclusive_lock(folder / LOCK, f"Another process is changing the index {folder}; wait for it.")
        stack = contextlib.ExitStack()
        stack.enter_context(lock)
    with stack:
        remove_partial(folder)
        try:
            with contextlib.closing(database.connect(path, new)) as opened:
                if opened.execute("PRAGMA user_version").fetchone()[0] != database.FORMAT:
                    raise UserError(f"The index {folder} was made by another version: make it again.")
                yield opened
        except (sqlite3.Error, UnicodeDecodeError, database.Damaged) as error:
            raise database.problem(path, error) from None


def _is_free(folder: pathlib.Path) -> bool:
    own = (LOCK, database.NAME)
    return folder.is_dir() and all(path.name.startswith(own) for path in folder.iterdir())


def _check_asked(folder: str | os.PathLike, known: dict, asked: dict) -> None:
    """Raises `UserError` unless the index in `folder` is the one that was asked for."""
    changed = {name: value for name, value in asked.items() if known.get(name, value) != value}
    differing = [f"{name} {known[name]!r}, not {value!r}" for name, value in changed.items()]
    if differing:
        raise UserError(
            f"{folder} already holds an index of {'; '.join(differing)}: choose another folder, or delete this one."
        )


def sync(
    folder: str | os.PathLike,
    embedder,
    items: Iterable[collect.Found],
    prune: bool = False,
    *,
    model: Fingerprint | None = None,
    kind: str = IMAGES,
    dtype: str = "float32",
    sources: Sequence[str] = (),
    split: str = "",
    product: str = "",
    fields: Sequence[str] | None = None,
    batch_size: int = 64,
    progress: bool = False,
) -> Index:
    """Makes the index `folder`, or brings it to what `items` hold; encodes only what is new or has changed.

    Every block of items is a transaction: a process that is killed has made all but the last, and the same call again
    goes on with what is not there. What was taken out by hand stays out until its `Item.digest` is another one.

    Args:
      embedder: the model that made the index; None where every item comes with its vector, of the model `model`.
      items: (item, encoded image), see `changes.sync`; an item without a picture comes with None.
      prune: take out what is not among the items.
      kind, dtype, sources, split: what the index is of.
      product: the field whose value the pictures of one product share.
      fields: names of the fields to show; None: as before.

    Raises:
      UserError: another model, another kind or dtype than the index has, nothing that can be read, another process that
        changes the index, a folder that is something else, or a full disk.
    """
    model = model or take(embedder)
    with changing(folder, new=True) as opened:
        about = {"kind": kind, "dtype": dtype, "split": split}
        known = database.meta_of(opened)
        _check_asked(folder, known, about)
        changes.keep_model(opened, model, f"The index {folder}")
        about |= {"sources": list(sources), "product": product} | ({} if fields is None else {"fields": list(fields)})
        if any(known.get(name) != value for name, value in about.items()):
            database.publish(opened, **about)
        with storage_errors(as_path(folder)), whole(as_path(folder) / SKIPPED) as partial:
            with partial.open("w", encoding="utf-8", errors="backslashreplace") as skipped:
                options = dict(kind=kind, dtype=dtype, prune=prune, batch_size=batch_size)
                counts = changes.sync(opened, embedder, items, skipped=skipped, progress=progress, **options)
        if not opened.execute("SELECT 1 FROM items LIMIT 1").fetchone():
            raise UserError(f"None of the {counts.skipped:,} {kind} can be read." if counts.skipped else f"No {kind}.")
    index = load_index(folder)
    index.counts = counts
    return index


def index_in_memory(
    embedder, found: Iterable[collect.Found], kind: str = IMAGES, batch_size: int = 64, progress: bool | None = None
) -> Index:
    """Encodes what `collect.find` yields into an index that lives in memory.

    Raises `UserError` if nothing can be read.
    """
    opened = database.connect()
    changes.keep_model(opened, take(embedder), "The index in memory")
    database.keep(opened, kind=kind, dtype="float32", sources=[])
    counts = changes.sync(opened, embedder, found, kind=kind, batch_size=batch_size, progress=bool(progress))
    if not counts.added:
        raise UserError(f"None of the {counts.skipped} {kind} can be read.")
    return _opened(ItemTable(opened))


def keep(folder: str | os.PathLike, index: Index) -> None:
    """Keeps the weights of an index and how sure its answers are in its folder."""
    about: dict[str, object] = {"weights": index.weights}
    if index.confidence is not None:
        about |= {"confidence": confidence.to_bytes(index.confidence), "changed": 0}
    with changing(folder) as opened:
        database.publish(opened, **about)


def remove(
    folder: str | os.PathLike,
    names: Sequence[str] = (),
    filters: Sequence[Filter] = (),
    gone: bool = False,
    dry_run: bool = False,
) -> tuple[int, int]:
    """Takes items out of the index in a folder; returns how many, of how many. They stay out, see `sync`.

    Args:
      names: the items of these names, or of these products; a product's further pictures are NAME#2, NAME#3 …; or none,
      filters: those that pass, see `Index.search`; none for all items.
      gone: of these only items whose image is not there any more.
      dry_run: count only.

    Raises:
      UserError: no such item, or nothing would be left; an index that is damaged or being changed.
    """
    with changing(folder) as opened:
        index = load_index(folder)
        rows = _named(index, names) if names else index.rows(filters)
        rows = np.arange(len(index)) if rows is None else rows
        if gone:
            rows = np.array([row for row in rows.tolist() if _is_gone(index, row)], np.int64)
        if len(rows) == len(index):
            raise UserError(f"Nothing of the {len(index):,} {index.kind} would be left: delete {folder} itself.")
        if len(rows) and not dry_run:
            changes.delete(opened, index.table.ids[rows])
    return len(rows), len(index)


def _is_gone(index: Index, row: int) -> bool:
    """Tells whether the image of a row is not there any more; an item without one is not gone."""
    item = index.describe(row)
    if not item.has_image or item.offset < 0:
        return item.has_image and not as_path(item.path).is_file()
    try:
        return not index.read_image(row)
    except (OSError, ValueError):
        return True


def _named(index: Index, names: Sequence[str]) -> np.ndarray:
    """Returns the rows, int64 [K] rising, of items or products of these names; raises `UserError` for unknown ones."""
    unknown, rows = set(names), set()
    for row, name in enumerate(index.table.names()):
        main, mark, number = name.rpartition("#")
        for candidate in {name, main if mark and number.isdigit() else name} & set(names):
            rows.add(row)
            unknown.discard(candidate)
    if index.product:
        for name in names:
            found = index.table.rows_with([Filter(index.product, name)]).tolist()
            rows.update(found)
            unknown -= {name} if found else set()
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(
            f"The index has no {sorted(unknown)[0]!r}{more}: names are as `search query` shows them. None removed."
        )
    return np.array(sorted(rows), np.int64)
