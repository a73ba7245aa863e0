"""How an index follows its sources, and how items are removed by hand.

`bring` goes through all items once, block by block. It encodes only new items and items with another picture, and each
block is a transaction with everything that an answer needs: items, captions, fields, words, and the vectors of both. So
a process that is killed has made all blocks but the last, and the same call again encodes the missing items.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import io
import itertools
import json
import os
import pathlib
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import numpy as np

from mural_lite import pictures
from mural_lite.errors import UserError
from mural_lite.files import as_path, atomic_file, exclusive_lock, remove_partial, storage_errors
from mural_lite.fingerprint import Fingerprint, take_fingerprint
from mural_lite.progress import announce, tqdm
from mural_lite.remote_folders import display_name
from mural_search import collect
from mural_search import database as index_database
from mural_search.collect import Found, Unreadable
from mural_search.item_table import (
    AMONG,
    FIELD_NAMES,
    FORMAT,
    Damaged,
    ItemTable,
    connect,
    meta_of,
    problem,
    read_items,
    unknown_field,
)
from mural_search.items import IMAGES, Filter, Item
from mural_search.noise_level import NoiseLevel
from mural_search.ranking import CAPTIONS, HEAD, prompt_of
from mural_search.sqlite import sqlite3
from mural_search.stored_images import content_of, read_image

SKIPPED = "skipped.tsv"
LOCK = ".lock"
BLOCK = {"images": 1024, "texts": 4096}  # items in a transaction; the encoder sorts texts by length
MANY = 1_000  # captions that take seconds
BLOCK_BYTES = 2**26  # about how many bytes of encoded images are in a block
TOGETHER = 8  # images that are read at a time, each by a thread; more of large ones would fill the memory
ABANDONED = 3600.0  # seconds; a younger partial file may be a matrix that a process which only asks is writing


@dataclasses.dataclass
class Counts:
    """The numbers of items that one change of an index has met, by their outcome.

    Attributes:
      added, changed, kept: items that are new, changed or unchanged.
      repeated: entries whose key an earlier entry has.
      deleted: items that were removed by hand and stay out.
      skipped: items that cannot be read.
      gone: items that are no longer in the sources, and stay in the index.
      pruned: such items that were removed.
    """

    added: int = 0
    changed: int = 0
    kept: int = 0
    repeated: int = 0
    deleted: int = 0
    skipped: int = 0
    gone: int = 0
    pruned: int = 0


@dataclasses.dataclass
class Entry:
    """An item of a block.

    Attributes:
      key: see `key_of`.
      content: the image's bytes, or the text, to encode; None if `vector` is known, or the item has no picture.
      vector: [D] as bytes, None as long as it is not known.
      before_id, before_item: the id and the item that this key has in the database; None for a new key.
    """

    key: bytes
    item: Item
    content: object = None
    vector: bytes | None = None
    before_id: int | None = None
    before_item: Item | None = None

    def keeps_vector(self, stored: bytes | None) -> bool:
        """Whether the vector that is stored for the key is still the entry's, so that nothing is encoded.

        It is if it equals the vector that came with the entry, or without such a vector if the image is the same.
        `stored`: [D] as bytes, None without a vector.
        """
        if self.before_item is None:
            return False
        if self.vector is not None:
            return stored == self.vector
        is_same_image = self.before_item.content == self.item.content
        return is_same_image and (self.content is None) == (stored is None)  # or neither has a picture


def digest_of(item: Item) -> str:
    """Returns the digest of an item's row in a table, or else a hash of its language, image, captions and fields."""
    if item.digest:
        return item.digest
    values = [item.language, item.content, item.captions, sorted(item.fields.items())]
    content = json.dumps(values).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def bring(
    database: sqlite3.Connection,
    embedder,
    entries: Iterable[Found],
    *,
    kind: str = IMAGES,
    dtype: str = "float32",
    prune: bool = False,
    batch_size: int = 64,
    skipped: TextIO | None = None,
    progress: bool = False,
) -> Counts:
    """Brings a database to the content of `entries`, and returns the `Counts` of its new, changed and other items.

    Args:
      database: of an index, in which `keep_model` has stored the model.
      embedder: anything with `Embedder`'s `encode_image` and `encode_text`; None if every entry has its vector. Then
        captions get no vectors.
      entries: (item, content), where content is an encoded image or its path, a text, a ready vector [D], or None (no
        picture). Duplicate keys (`collect.key_of`): the first wins. An `Unreadable` leaves its item unchanged.
      kind: "images" or "texts".
      dtype: the stored vectors' type, "float32" or "float16".
      prune: take out the items that are not among the entries.
      batch_size: images or texts per run of the encoder.
      skipped: a file that gets a line, name[TAB]reason, for each entry that cannot be read.
      progress: whether to show a bar.

    Raises `UserError` for a vector of another length than 1, and raises as the encoder does.
    """
    changes = _Changes(database, embedder, kind, np.dtype(dtype), batch_size, skipped)
    database.executescript("CREATE TEMP TABLE IF NOT EXISTS met (key BLOB PRIMARY KEY) WITHOUT ROWID; DELETE FROM met")
    with tqdm(desc=f"Indexing {kind}", unit=f" {kind}", disable=not progress) as bar:
        for block in changes.blocks(entries):
            changes.make(block, bar)
    changes.publish(prune)
    return changes.counts


class _Changes:
    """One pass over all entries: `make` for each of its `blocks`, and then `publish`.

    Attributes:
      counts: what was done so far.
      has_changed: whether any block changed the database.
      encodes_captions: whether captions get vectors.
    """

    def __init__(self, database, embedder, kind: str, dtype: np.dtype, batch_size: int, skipped: TextIO | None):
        self.database = database
        self.embedder = embedder
        self.kind = kind
        self.dtype = dtype
        self.batch_size = batch_size
        self.skipped = skipped
        self.counts = Counts()
        self.has_changed = False
        self.encodes_captions = embedder is not None and kind == IMAGES

    @functools.cached_property
    def head(self) -> str:
        """The head that encodes captions, "" for pictures' head; an index keeps the head of its first captions."""
        head = meta_of(self.database).get("head")
        if head is not None:
            return head
        return HEAD if HEAD in getattr(self.embedder, "text_heads", ()) else ""

    def blocks(self, entries: Iterable[Found]) -> Iterator[list[Entry]]:
        """Yields the readable entries in blocks, with the bytes of images; counts unreadable and repeated entries."""
        entries = iter(entries)
        block = []
        block_bytes = 0  # of its images
        read = functools.partial(read_entry, self.kind, dtype=self.dtype)
        with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
            read_all = map
            if self.kind == IMAGES and self.embedder is not None:  # images are files, for which threads wait
                read_all = pool.map
            while batch := list(itertools.islice(entries, TOGETHER)):
                for entry in read_all(read, self._drop_repeated(batch)):
                    if isinstance(entry, Unreadable):
                        self._skip(entry)
                        continue
                    block.append(entry)
                    if isinstance(entry.content, bytes):
                        block_bytes += len(entry.content)
                if len(block) >= BLOCK[self.kind] or block_bytes >= BLOCK_BYTES:
                    yield block
                    block = []
                    block_bytes = 0
        if block:
            yield block

    def _drop_repeated(self, batch: Sequence[Found]) -> list[Found]:
        """Returns the entries whose keys are new in this pass, and records these keys; counts the repeated entries."""
        new_entries = []
        for entry in batch:
            key = key_of(self.kind, entry)
            if self.database.execute("INSERT OR IGNORE INTO temp.met VALUES (?)", (key,)).rowcount:
                new_entries.append(entry)
        self.counts.repeated += len(batch) - len(new_entries)
        return new_entries

    def _skip(self, entry: Unreadable) -> None:
        """Counts an unreadable entry, and writes its line, name[TAB]reason, into the file `skipped`."""
        self.counts.skipped += entry.count
        if self.skipped is not None:
            name = entry.name.replace("\t", " ").replace("\n", " ")
            self.skipped.write(f"{name}\t{entry.reason.rstrip('.')}.\n")

    def make(self, block: list[Entry], bar: tqdm) -> None:
        """Encodes the new and changed entries of a block, and writes them in one transaction; counts all entries."""
        changed = self._select_changed(block)
        encoded_count = sum(entry.content is not None for entry in changed)
        bar.update(len(block) - encoded_count)  # `_contents` counts the others while they are encoded
        entries = self._encode_contents(changed, bar)
        if not entries:
            return
        replaced_ids = [entry.before_id for entry in entries if entry.before_id is not None]
        vector_of_caption = self._caption_vectors(entries, replaced_ids)
        with index_database.transaction(self.database):
            index_database.take_out(self.database, replaced_ids)
            for entry in entries:
                vectors = []
                if vector_of_caption is not None:
                    vectors = [vector_of_caption[caption] for _, caption in entry.item.captions]
                index_database.put(self.database, entry.key, entry.item, entry.vector, vectors)
            self.database.executemany("DELETE FROM deleted WHERE key = ?", [(entry.key,) for entry in entries])
            if vector_of_caption:
                index_database.keep(self.database, head=self.head)
        self.counts.changed += len(replaced_ids)
        self.counts.added += len(entries) - len(replaced_ids)
        self.has_changed = True

    def _select_changed(self, block: list[Entry]) -> list[Entry]:
        """Returns the new and changed entries, and counts the others as deleted or kept.

        Sets `before_id` and `before_item`; where the picture is the same, also the stored vector, without a content.
        """
        keys = [entry.key for entry in block]
        marks = ", ".join("?" * len(keys))
        ask = self.database.execute
        deleted = dict(ask(f"SELECT key, digest FROM deleted WHERE key IN ({marks})", keys))
        ids = json.dumps([item_id for (item_id,) in ask(f"SELECT id FROM items WHERE key IN ({marks})", keys)])
        stored = {key: (item_id, item) for item_id, key, item in read_items(ask, ids)}
        stored_vectors = dict(ask(f"SELECT item, vector FROM vectors WHERE item {AMONG}", (ids,)))
        changed = []
        for entry in block:
            if deleted.get(entry.key) == entry.item.digest:
                self.counts.deleted += 1
                continue
            entry.before_id, entry.before_item = stored.get(entry.key, (None, None))
            stored_vector = stored_vectors.get(entry.before_id)
            keeps_vector = entry.keeps_vector(stored_vector)
            if keeps_vector and entry.before_item == entry.item:
                self.counts.kept += 1
                continue
            if keeps_vector:
                entry.vector = stored_vector
                entry.content = None
            changed.append(entry)
        return changed

    def _encode_contents(self, entries: list[Entry], bar: tqdm) -> list[Entry]:
        """Replaces the contents of entries by their vectors; returns the usable entries, and skips the others."""
        to_encode = [entry for entry in entries if entry.content is not None]
        if not to_encode:
            return entries
        vectors, usable = encode(self.embedder, self.kind, _contents(to_encode, bar), self.batch_size)
        for vector, number in zip(vectors.astype(self.dtype), usable.tolist()):
            to_encode[number].vector = vector.tobytes()
        unusable_keys = set()
        for entry in to_encode:
            entry.content = None
            if entry.vector is None:
                unusable_keys.add(entry.key)
                self._skip(unreadable(self.kind, entry.item))
        return [entry for entry in entries if entry.key not in unusable_keys]

    def _caption_vectors(self, entries: Sequence[Entry], replaced_ids: Sequence[int]) -> dict[str, bytes] | None:
        """Returns {caption: vector} for all entries, float16 [D] as bytes; None if captions get no vectors.

        Captions of the replaced items are not encoded again.
        """
        if not self.encodes_captions:
            return None
        query = (
            "SELECT texts.text, caption_vectors.vector FROM texts, caption_vectors "
            f"WHERE texts.id = caption_vectors.text AND texts.item {AMONG}"
        )
        vectors = dict(self.database.execute(query, (json.dumps(replaced_ids),)))
        captions = itertools.chain.from_iterable(entry.item.captions for entry in entries)
        new_captions = dict.fromkeys(caption for _, caption in captions if caption not in vectors)  # in order
        return vectors | self._encode_captions(list(new_captions))

    def _encode_captions(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Returns {text: its vector as a caption, float16 [D] as bytes}."""
        if not texts:
            return {}
        if len(texts) >= MANY:
            announce(f"Encoding {len(texts):,} captions …")
        embedder = self.embedder.with_text_head(self.head) if self.head else self.embedder
        vectors = embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, CAPTIONS))
        return {text: vector.tobytes() for text, vector in zip(texts, vectors.astype(np.float16))}

    def publish(self, prune: bool) -> None:
        """Encodes captions without vectors, removes items that were not met if `prune`, and publishes what has changed.

        Trigrams are counted if many items changed. If no item of the index was met, all stay, and `sync` raises: a
        folder that cannot be read for a while empties no index.
        """
        self._encode_missing_captions()
        query = "SELECT id FROM items WHERE key NOT IN (SELECT key FROM temp.met)"
        gone_ids = [number for (number,) in self.database.execute(query)]
        counts = self.counts
        (total_before,) = self.database.execute("SELECT count(*) FROM items").fetchone()
        if prune and len(gone_ids) < total_before:
            counts.pruned = len(gone_ids)
        else:
            counts.gone = len(gone_ids)
        meta = meta_of(self.database)
        was_killed = not str(meta.get("published", "")).startswith(meta["state"])  # the last block was not published
        if not (self.has_changed or counts.pruned or was_killed or meta.get("skipped") != counts.skipped):
            return
        change_count = counts.added + counts.changed + counts.pruned
        with index_database.transaction(self.database, published=True):
            if counts.pruned:
                index_database.take_out(self.database, gone_ids)
            (total,) = self.database.execute("SELECT count(*) FROM items").fetchone()
            if was_killed or change_count > index_database.RECOUNTED * total:
                index_database.count_trigrams(self.database)
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            changed = meta.get("changed", 0) + change_count
            index_database.keep(self.database, created=now, skipped=counts.skipped, changed=changed)
        self.database.execute("PRAGMA busy_timeout = 0")  # a process that reads may hold the log, which then stays
        with contextlib.suppress(sqlite3.Error):
            self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _encode_missing_captions(self) -> None:
        """Encodes the captions of the index that have no vectors: their items came without a model, see `embed`."""
        if not self.encodes_captions:
            return
        last_id = 0
        condition = "id > ? AND id NOT IN (SELECT text FROM caption_vectors)"
        query = f"SELECT id, text FROM texts WHERE {condition} ORDER BY id LIMIT {BLOCK['texts']}"
        while rows := self.database.execute(query, (last_id,)).fetchall():
            vectors = self._encode_captions(list(dict.fromkeys(text for _, text in rows)))
            with index_database.transaction(self.database):
                values = [(text_id, vectors[text]) for text_id, text in rows]
                self.database.executemany("INSERT INTO caption_vectors VALUES (?, ?)", values)
                index_database.keep(self.database, head=self.head)
            last_id, _ = rows[-1]
            self.has_changed = True


def key_of(kind: str, entry: Found) -> bytes:
    """Returns the key of an entry, which equal entries share, as bytes; see `collect.key_of`."""
    if isinstance(entry, Unreadable):
        key = entry.key
    else:
        item, _ = entry
        key = collect.key_of(kind, item)
    return "\0".join(key).encode("utf-8", "surrogatepass")


def read_entry(kind: str, collected: Found, dtype: str | np.dtype = "float32") -> Entry | Unreadable:
    """Returns the `Entry` of an item and its content, or the `Unreadable` of an item whose image cannot be read.

    An image is read into bytes, whose hash the item gets; a vector becomes bytes of `dtype`. Raises `UserError` for a
    vector whose length is not 1.

    Args:
      kind: "images" or "texts".
      collected: (item, content), see `bring`, or an `Unreadable`, which is returned as it is.
    """
    if isinstance(collected, Unreadable):
        return collected
    item, content = collected
    vector = None
    if isinstance(content, np.ndarray):
        _check_length(item, content)
        if item.path or kind != IMAGES or content.any():  # zeros: an item without a picture
            vector = content.astype(dtype).tobytes()
        content = None
    elif content is None:
        item = dataclasses.replace(item, path="", content="")
    elif kind == IMAGES:
        try:
            if not isinstance(content, bytes):
                content = pictures.read_file(content)
        except (OSError, ValueError) as error:
            return unreadable(kind, item, error)
        item = dataclasses.replace(item, content=content_of(content))
    return Entry(key_of(kind, collected), dataclasses.replace(item, digest=digest_of(item)), content, vector)


def _contents(entries: list[Entry], bar: tqdm) -> Iterator:
    """Yields the contents of entries, and moves the bar on for each."""
    for entry in entries:
        bar.update()
        yield entry.content


def _check_length(item: Item, vector: np.ndarray) -> None:
    """Raises `UserError` unless the length of a vector that came with its item is 1, or 0 for no picture."""
    length = float(np.linalg.norm(vector.astype(np.float32)))
    has_no_picture = length == 0.0 and not item.path
    if not abs(length - 1.0) <= 0.01 and not has_no_picture:  # as `index.check_lengths`; NaN is wrong, too
        raise UserError(f"The vector of {item.name!r} has the length {length:.3g}: expected 1, divide it by that.")


def encode(embedder, kind: str, contents: Iterable, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of the usable images or texts, float32 [K, D], and their numbers in `contents`, int64 [K].

    Args:
      kind: "images" or "texts", which are all usable.
      contents: encoded images or their paths, or texts.
      batch_size: images or texts per run of the encoder.
    """
    if kind == IMAGES:
        return embedder.encode_image(contents, batch_size=batch_size, on_error="skip", progress=False)
    texts = list(contents)
    prompt = prompt_of(embedder, CAPTIONS)
    return embedder.encode_text(texts, batch_size=batch_size, progress=False, **prompt), np.arange(len(texts))


def unreadable(kind: str, item: Item, error: Exception | None = None) -> Unreadable:
    """Returns the `Unreadable` of an item whose image cannot be used.

    `error`: of reading the image; None: it is read again for its error.
    """
    if error is None:
        error = ValueError("damaged: it does not decode")  # if it can be read, but the encoder could not use it
        try:
            pictures.for_the_encoder(read_image(item))
        except (OSError, ValueError) as error_of_reading:
            error = error_of_reading
    reason = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    return Unreadable(item.name, f"{reason[0].upper()}{reason[1:]}.", collect.key_of(kind, item))


# The model.


def keep_model(database: sqlite3.Connection, model: Fingerprint, index: str) -> None:
    """Stores the fingerprint of a model in a new database, or checks that it made the vectors of an older database.

    Raises `UserError` if another model or other encoders made them, or the record is damaged. `index`: the beginning
    of the message, "The index FOLDER".
    """
    stored = dict(database.execute("SELECT key, value FROM meta WHERE key IN ('probes', 'model')"))
    if stored:
        recorded = index_database.parse_fingerprint(stored["probes"], json.loads(stored["model"]))
        recorded.check(model, index)
        if recorded.encoder != model.encoder:
            raise UserError(
                f"{index} was made by {recorded.describe()}, and {model.describe()} gives its pictures other vectors: "
                "go on with the encoders that made it, or delete the index and make it again."
            )
        return
    probes = io.BytesIO()
    np.save(probes, model.probes)
    path = collect.absolute(model.path) if model.path else ""
    origin = {"path": path, "step": model.step, "encoder": model.encoder}
    with index_database.transaction(database):
        index_database.keep(database, probes=probes.getvalue(), model=origin)


# A folder.


@contextlib.contextmanager
def changing(folder: str | os.PathLike, new: bool = False) -> Iterator[sqlite3.Connection]:
    """Locks the folder of an index and opens its database for the block; removes partial files of killed processes.

    Args:
      folder: the index's folder, on this machine.
      new: whether a missing index is made.

    Raises:
      UserError: another process has the index; the folder is in a store, is something else or cannot be written; the
        database is damaged or of another version.
    """
    folder = as_path(folder)
    if not isinstance(folder, pathlib.Path):
        raise UserError(
            f"{folder} is in a store, and an index is made on this machine: remote_folders.local_folder gives a folder."
        )
    path = folder / index_database.NAME
    if new:
        check_free(folder)
    else:
        index_database.check_place(folder)
    with _make_and_lock(folder):
        remove_partial(folder, min_age=ABANDONED)
        try:
            database = index_database.make(path) if new else connect(path)
            with contextlib.closing(database):
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version != FORMAT:
                    raise UserError(f"The index {folder} was made by another version: delete it and make it again.")
                if display_name(folder) != str(folder):  # a store gets the file at the end
                    database.execute("PRAGMA wal_autocheckpoint = 0")
                yield database
        except (sqlite3.Error, UnicodeDecodeError, Damaged) as error:
            raise problem(path, error) from None


def _make_and_lock(folder: pathlib.Path) -> contextlib.ExitStack:
    """Makes a folder if it is missing, and locks it; returns a context whose end gives the lock back.

    Raises `UserError` if another process has the lock, or the folder cannot be written.
    """
    stack = contextlib.ExitStack()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        busy = f"Another process is changing the index {folder}; wait for it."
        stack.enter_context(exclusive_lock(folder / LOCK, busy))
    return stack


def check_free(folder: pathlib.Path) -> None:
    """Raises `UserError` for a folder that is neither empty nor an index, or is an index of an earlier version."""
    if (folder / index_database.OLD).is_file():
        index_database.check_place(folder)  # raises for an index of an earlier version
    if folder.exists() and not (folder / index_database.NAME).exists() and not _is_empty(folder):
        raise UserError(f"{folder} is neither empty nor an index; choose a new folder.")


def _is_empty(folder: pathlib.Path) -> bool:
    """Whether a folder holds no more than the lock and the files of a database, such as "index.sqlite-wal"."""
    return folder.is_dir() and all(path.name.startswith((LOCK, index_database.NAME)) for path in folder.iterdir())


def check_settings(folder: str | os.PathLike, stored: dict, settings: dict) -> None:
    """Raises `UserError` if the index in `folder` has other settings than requested.

    Args:
      stored: {name: value} of the index; {} for a new index.
      settings: {name: value}, requested; names that `stored` lacks pass.
    """
    differing = []
    for name, value in settings.items():
        if stored.get(name, value) != value:
            differing.append(f"{name} {stored[name]!r}, not {value!r}")
    if differing:
        raise UserError(
            f"{folder} already holds an index of {'; '.join(differing)}: choose another folder, or delete this one."
        )


def check_not_of_catalogue(folder: str | os.PathLike, stored: dict) -> None:
    """Raises `UserError` for an index that `catalogue` made, whose table only that command can read."""
    if stored.get("by_catalogue"):
        raise UserError(
            f"The index {display_name(folder)} follows a table: bring it up to date with the command `catalogue` that "
            "made it, or choose another folder."
        )


def clear(folder: str | os.PathLike) -> None:
    """Empties the index in a folder, so that another model can fill it.

    Items that were taken out by hand stay out, and items keep their addresses, which depend on the salt.
    """
    emptied = ("items", "vectors", "texts", "caption_vectors", "fields", "trigrams", "sqlite_sequence")
    with changing(folder) as database, index_database.transaction(database):
        database.execute("INSERT INTO words (words) VALUES ('delete-all')")  # FTS5's command to empty a table
        for table in emptied:
            database.execute(f"DELETE FROM {table}")
        database.execute("DELETE FROM meta WHERE key NOT IN ('by_catalogue', 'salt')")


def sync(
    folder: str | os.PathLike,
    embedder,
    items: Iterable[Found],
    prune: bool = False,
    *,
    kind: str = IMAGES,
    dtype: str = "float32",
    sources: Sequence[str] = (),
    split: str = "",
    product: str = "",
    by_catalogue: bool = False,
    fields: Sequence[str] | None = None,
    model: Fingerprint | None = None,
    stamp: str = "",
    batch_size: int = 64,
    progress: bool = False,
) -> Counts:
    """Makes the index `folder`, or updates it by `items`; encodes only new and changed items, and returns the counts.

    Writes the names of items that cannot be read into skipped.tsv. Every block of items is a transaction: a process
    that is killed has made all but the last, and the same call again continues with the missing items. Items removed by
    hand stay out until their `Item.digest` changes, which for a row of a table is not a digest of the picture.

    Args:
      embedder: the model that made the index; None if every item comes with its vector, of the model `model`.
      items: (item, encoded image), see `bring`; an item without a picture comes with None.
      prune: take out the items of the index that `items` lacks.
      kind, dtype, sources, split: see `Index.build`.
      product: the field whose value the pictures of one product share; "" without such a field.
      by_catalogue: whether `catalogue` reads the sources, a table; others would take its rows for pictures.
      fields: names of the fields to show; None: as before.
      model: the model's fingerprint; None: it is taken from `embedder`.
      stamp: of the model's files, by which it is known without being opened: `vectors.model_stamp`.
      batch_size, progress: see `bring`.

    Raises:
      UserError: another model, another kind or dtype than the index has, an index that `catalogue` made, nothing that
        can be read, another process that changes the index, a folder that is something else, a full disk, or a name in
        `fields` that no item has.
    """
    model = model or take_fingerprint(embedder)
    with changing(folder, new=True) as database:
        settings = {"kind": kind, "dtype": dtype, "split": split}
        stored = meta_of(database)
        check_settings(folder, stored, settings)
        if not by_catalogue:
            check_not_of_catalogue(folder, stored)
        keep_model(database, model, f"The index {folder}")
        settings |= {"sources": list(sources), "product": product}
        if by_catalogue:
            settings["by_catalogue"] = True
        _keep_settings(database, stored, settings, stamp)
        with storage_errors(as_path(folder)), atomic_file(as_path(folder) / SKIPPED) as partial:
            with partial.open("w", encoding="utf-8", errors="backslashreplace") as skipped:
                options = dict(kind=kind, dtype=dtype, prune=prune, batch_size=batch_size, progress=progress)
                counts = bring(database, embedder, items, skipped=skipped, **options)
        would_be_empty = prune and counts.gone  # `publish` removed nothing, because no item was met
        if would_be_empty or not database.execute("SELECT 1 FROM items LIMIT 1").fetchone():
            kept = "; the index keeps its items" if would_be_empty else ""
            if counts.skipped:
                raise UserError(f"None of the {counts.skipped:,} {kind} can be read{kept}.")
            raise UserError(f"No {kind}{kept}.")
        if fields is not None:
            _keep_fields(database, list(fields))
    return counts


def _keep_settings(database: sqlite3.Connection, stored: dict, settings: dict, stamp: str) -> None:
    """Writes the settings of an index, the stamp of its model unless that is "", and the salt of a new index.

    Readers must open the index again only if settings differ from `stored`, the settings before, {name: value}.
    """
    if stamp and stored.get("stamp") != stamp:
        index_database.keep(database, stamp=stamp)
    if "salt" not in stored:
        index_database.keep(database, salt=secrets.token_bytes(16))  # 128 bits, see `ItemTable.key_hashes`
    if any(stored.get(name) != value for name, value in settings.items()):
        index_database.publish(database, **settings)


def _keep_fields(database: sqlite3.Connection, names: list[str]) -> None:
    """Writes the names of the fields to show; raises `UserError` for a name that no item has as a field."""
    all_names = [name for (name,) in database.execute(FIELD_NAMES)]
    for name in names:
        if name not in all_names:
            raise UserError(f"{unknown_field('fields', name, all_names)} The items are in the index.")
    if meta_of(database).get("fields") != names:
        index_database.publish(database, fields=names)


def keep_noise(folder: str | os.PathLike, noise: NoiseLevel) -> None:
    """Writes the noise level of the index in a folder, and sets the count of its changes to 0."""
    with changing(folder) as database:
        index_database.publish(database, noise=dataclasses.asdict(noise), changed=0)


def keep_examples(folder: str | os.PathLike, examples: bytes) -> None:
    """Writes the queries of an index's page of examples, a .npz file, see `examples.py`."""
    with changing(folder) as database:
        index_database.keep(database, examples=examples)


# Taken out by hand.


def remove(
    folder: str | os.PathLike,
    names: Sequence[str] = (),
    filters: Sequence[Filter] = (),
    dry_run: bool = False,
) -> tuple[int, int]:
    """Takes items out of the index in a folder; returns (number of items taken out, number of items before).

    They stay out, see `sync`.

    Args:
      names: the names of the items or their products; a product's further pictures are NAME#2, NAME#3 ….
      filters: without names, the filters that the items pass, see `Index.search`.
      dry_run: take nothing out, only count.

    Raises:
      UserError: a name without an item, or nothing would be left; an index that is damaged or being changed.
    """
    with changing(folder) as database:
        table = ItemTable(pathlib.Path(folder) / index_database.NAME)
        rows = _rows_of_names(table, names) if names else table.rows_with(filters)
        if len(rows) == len(table):
            raise UserError(
                f"All {len(table):,} {table.meta['kind']} would be removed: delete the folder {folder} instead."
            )
        if len(rows) and not dry_run:
            delete(database, table.ids[rows])
    return len(rows), len(table)


def _rows_of_names(table: ItemTable, names: Sequence[str]) -> np.ndarray:
    """Returns the rows, int64 [K] rising, of items or products of these names; raises `UserError` for unknown names.

    A name is an item's, a name without its number ("shoe" of "shoe#2"), or a value of the products' field.
    """
    rows_of = {name: set() for name in names}
    for row, item_name in enumerate(table.names()):
        product_name = re.sub(r"#\d+$", "", item_name)
        for name in {item_name, product_name} & rows_of.keys():
            rows_of[name].add(row)
    product = table.meta.get("product")
    if product:
        for name, rows in rows_of.items():
            rows_of_product = table.rows_with([Filter(product, name)])
            rows.update(rows_of_product.tolist())
    unknown = sorted(name for name, rows in rows_of.items() if not rows)
    if unknown:
        missing = repr(unknown[0])
        if len(unknown) > 1:
            missing += f" and {len(unknown) - 1} more"
        raise UserError(f"The index has no {missing}: names are as `search query` shows them. None removed.")
    named = set().union(*rows_of.values())
    return np.array(sorted(named), np.int64)


def delete(database: sqlite3.Connection, ids: Sequence[int]) -> None:
    """Takes items out by their ids in one transaction; they stay out until their rows in the sources change."""
    ids_as_json = json.dumps([int(number) for number in ids])
    with index_database.transaction(database, published=True):
        query = f"INSERT OR REPLACE INTO deleted SELECT key, digest FROM items WHERE id {AMONG}"
        database.execute(query, (ids_as_json,))
        index_database.take_out(database, ids)
        index_database.keep(database, changed=meta_of(database).get("changed", 0) + len(ids))
