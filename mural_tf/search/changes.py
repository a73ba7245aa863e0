"""How an index follows what its sources hold, and what is taken out of it by hand.

`sync` goes through all items once, block by block. Only what is new or has another picture is encoded, and each block
is a transaction with everything that an answer needs: items, captions, fields, words, and the vectors of both. So a
process that is killed has made all blocks but the last, and the same call again encodes what is not there.
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
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import numpy as np

from mural_tf.data import pictures
from mural_tf.errors import UserError
from mural_tf.fingerprint import Fingerprint
from mural_tf.progress import tqdm
from mural_tf.search import collect
from mural_tf.search import database as files
from mural_tf.search.collect import Found, Unreadable
from mural_tf.search.items import IMAGES, Item, content_of, read_image
from mural_tf.search.ranking import CAPTIONS, HEAD, prompt_of
from mural_tf.sqlite import sqlite3

DTYPES = ("float32", "float16")
BLOCK = {"images": 1024, "texts": 4096}  # items in a transaction; the encoder sorts texts by length
BLOCK_BYTES = 2**26  # of encoded images in a block, about
TOGETHER = 64  # images that are read at a time, by
READERS = 8  # threads


@dataclasses.dataclass
class Counts:
    """What became of the items: new ones, changed ones, and the same as before; repeated keys; removed by hand.

    `gone`: items that the sources hold no more and that stayed. `pruned`: those that were taken out.
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
    """An item of a block. `content`: what is to be encoded; None where `vector`, as bytes, is known or none is."""

    key: bytes
    item: Item
    content: object = None
    vector: bytes | None = None
    before: tuple[int, Item] | None = None


def digest_of(item: Item) -> str:
    """Returns what stands for the row that an item came from: its own digest, or one of all that is known of it."""
    known = [item.language, item.content, item.captions, sorted(item.fields.items())]
    return item.digest or hashlib.blake2b(json.dumps(known).encode(), digest_size=8).hexdigest()


def sync(
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
    """Brings a database to what `entries` hold.

    Args:
      embedder: anything with `Embedder`'s `encode_image` and `encode_text`; None where every entry has its vector:
        captions get none then.
      entries: an `Item` each with what the encoder takes, bytes or a path of an image, the text itself; or its vector,
        float [D]; or None for an item without a picture. Of items with one key (`collect.key_of`) the first counts.
        An `Unreadable` stays what it was.
      kind, dtype: of the items, of their vectors.
      prune: take out what was not among the entries.
      skipped: gets a line, name[TAB]reason, for each entry that cannot be read.
    """
    changes = _Changes(database, embedder, kind, np.dtype(dtype), batch_size, skipped)
    database.executescript("CREATE TEMP TABLE IF NOT EXISTS met (key BLOB PRIMARY KEY) WITHOUT ROWID; DELETE FROM met")
    with tqdm(desc=f"Indexing {kind}", unit=f" {kind}", disable=not progress) as bar:
        for block in changes.blocks(entries):
            changes.make(block, bar)
    changes.finish(prune)
    return changes.counts


class _Changes:
    def __init__(self, database, embedder, kind: str, dtype: np.dtype, batch_size: int, skipped: TextIO | None):
        self.database, self.embedder, self.kind, self.dtype = database, embedder, kind, dtype
        self.batch_size, self.skipped, self.counts = batch_size, skipped, Counts()
        self.has_changed = False
        self.head = None  # of captions; None: they are not encoded
        if embedder is not None and kind == IMAGES:
            own = HEAD if HEAD in getattr(embedder, "text_heads", ()) else ""
            self.head = files.meta_of(database).get("head", own)

    def blocks(self, entries: Iterable[Found]) -> Iterator[list[Entry]]:
        """Yields what is to be looked at, each key once, with images read."""
        entries, block, size = iter(entries), [], 0
        read = functools.partial(read_entry, self.kind, dtype=self.dtype)
        with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
            while some := list(itertools.islice(entries, TOGETHER)):
                for entry in pool.map(read, filter(self._is_new, some)):
                    if isinstance(entry, Unreadable):
                        self._skip(entry)
                        continue
                    block.append(entry)
                    size += len(entry.content) if isinstance(entry.content, bytes) else 0
                if len(block) >= BLOCK[self.kind] or size >= BLOCK_BYTES:
                    yield block
                    block, size = [], 0
        if block:
            yield block

    def _is_new(self, entry: Found) -> bool:
        values = (key_of(self.kind, entry),)
        is_new = self.database.execute("INSERT OR IGNORE INTO temp.met VALUES (?)", values).rowcount > 0
        self.counts.repeated += not is_new
        return is_new

    def _skip(self, entry: Unreadable) -> None:
        self.counts.skipped += entry.count
        if self.skipped is not None:
            name = " ".join(entry.name.split("\t")).replace("\n", " ")
            self.skipped.write(f"{name}\t{entry.reason.rstrip('.')}.\n")

    def make(self, block: list[Entry], bar: tqdm) -> None:
        """Encodes what is to be encoded of a block, and writes it in one transaction."""
        keys = [entry.key for entry in block]
        marks = ", ".join("?" * len(keys))
        ask = self.database.execute
        deleted = dict(ask(f"SELECT key, digest FROM deleted WHERE key IN ({marks})", keys))
        numbers = [number for (number,) in ask(f"SELECT id FROM items WHERE key IN ({marks})", keys)]
        before = {key: (number, item) for number, key, item in files.read_items(ask, json.dumps(numbers))}
        wanted = []
        for entry in block:
            if deleted.get(entry.key) == entry.item.digest:
                self.counts.deleted += 1
                continue
            entry.before = before.get(entry.key)
            if entry.before is not None:
                was = self._vector_of(entry.before[0])
                is_same = entry.before[1].content == entry.item.content and (entry.content is None) == (was is None)
                is_same = was == entry.vector if entry.vector is not None else is_same
                if is_same and entry.before[1] == entry.item:
                    self.counts.kept += 1
                    continue
                if is_same:
                    entry.vector, entry.content = was, None
            wanted.append(entry)
        bar.update(len(block) - sum(entry.content is not None for entry in wanted))
        wanted = self._encoded(wanted, bar)
        captions = self._captions_of(wanted)
        if not wanted:
            return
        with files.transaction(self.database):
            files.take_out(self.database, [entry.before[0] for entry in wanted if entry.before])
            for entry in wanted:
                own = [captions[text] for _, text in entry.item.captions] if captions is not None else ()
                files.put(self.database, entry.key, entry.item, entry.vector, own)
            self.database.executemany("DELETE FROM deleted WHERE key = ?", [(entry.key,) for entry in wanted])
            if captions and self.head is not None:
                files.keep(self.database, head=self.head)
        replaced = sum(entry.before is not None for entry in wanted)
        self.counts.changed += replaced
        self.counts.added += len(wanted) - replaced
        self.has_changed = True

    def _vector_of(self, number: int) -> bytes | None:
        found = self.database.execute("SELECT vector FROM vectors WHERE item = ?", (number,)).fetchone()
        return found and found[0]

    def _encoded(self, wanted: list[Entry], bar: tqdm) -> list[Entry]:
        """Gives entries with a content their vectors; returns those that can be used."""
        fresh = [entry for entry in wanted if entry.content is not None]
        if not fresh:
            return wanted
        contents = (bar.update() or entry.content for entry in fresh)
        vectors, kept = encode(self.embedder, self.kind, contents, self.batch_size)
        for vector, place in zip(vectors.astype(self.dtype), kept.tolist()):
            fresh[place].vector = vector.tobytes()
        for entry in fresh:
            if entry.vector is None:
                self._skip(unreadable(self.kind, entry.item))
            entry.content = None
        lost = {entry.key for entry in fresh if entry.vector is None}
        return [entry for entry in wanted if entry.key not in lost]

    def _captions_of(self, wanted: Sequence[Entry]) -> dict[str, bytes] | None:
        """Returns {text: vector} of all captions; those that an item had before are not encoded again."""
        if self.head is None:
            return None
        known: dict[str, bytes] = {}
        numbers = json.dumps([entry.before[0] for entry in wanted if entry.before])
        question = "SELECT texts.text, vector FROM texts, caption_vectors v WHERE texts.id = v.text AND item"
        known.update(self.database.execute(f"{question} {files.AMONG}", (numbers,)))
        fresh = dict.fromkeys(text for entry in wanted for _, text in entry.item.captions if text not in known)
        return known | self._encode_captions(list(fresh))

    def _encode_captions(self, texts: Sequence[str]) -> dict[str, bytes]:
        if not texts:
            return {}
        embedder = self.embedder.with_text_head(self.head) if self.head else self.embedder
        vectors = embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, CAPTIONS))
        return {text: vector.tobytes() for text, vector in zip(texts, vectors.astype(np.float16))}

    def finish(self, prune: bool) -> None:
        """Takes out what was not met, counts what searches need, and shows everything to those who have it open."""
        self._encode_missing_captions()
        gone = "SELECT id FROM items WHERE key NOT IN (SELECT key FROM temp.met)"
        numbers = [number for (number,) in self.database.execute(gone)]
        count, meta = self.counts, files.meta_of(self.database)
        count.gone, count.pruned = (0, len(numbers)) if prune else (len(numbers), 0)
        moved = count.added + count.changed + count.pruned
        was_killed = not str(meta.get("published", "")).startswith(meta["state"])  # whoever wrote the last block
        if not (self.has_changed or count.pruned or was_killed or meta.get("skipped") != count.skipped):
            return
        with files.transaction(self.database, published=True):
            if prune:
                files.take_out(self.database, numbers)
            (total,) = self.database.execute("SELECT count(*) FROM items").fetchone()
            if was_killed or moved > files.RECOUNTED * total:
                files.count_trigrams(self.database)
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            files.keep(self.database, created=now, skipped=count.skipped, changed=meta.get("changed", 0) + moved)
        with contextlib.suppress(sqlite3.Error):  # one who reads may hold it
            self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _encode_missing_captions(self) -> None:
        """Encodes captions whose items came without a model, see `embed`."""
        if self.head is None:
            return
        last, missing = 0, "id > ? AND id NOT IN (SELECT text FROM caption_vectors)"
        question = f"SELECT id, text FROM texts WHERE {missing} ORDER BY id LIMIT {BLOCK['texts']}"
        while rows := self.database.execute(question, (last,)).fetchall():
            vectors = self._encode_captions(list(dict.fromkeys(text for _, text in rows)))
            with files.transaction(self.database):
                values = [(number, vectors[text]) for number, text in rows]
                self.database.executemany("INSERT INTO caption_vectors VALUES (?, ?)", values)
                files.keep(self.database, head=self.head)
            last, self.has_changed = rows[-1][0], True


def key_of(kind: str, entry: Found) -> bytes:
    """Returns what makes two entries the same, see `collect.key_of`."""
    parts = entry.key if isinstance(entry, Unreadable) else collect.key_of(kind, entry[0])
    return "\0".join(parts).encode("utf-8", "surrogatepass")


def read_entry(kind: str, found: Found, dtype: str | np.dtype = "float32") -> Entry | Unreadable:
    """Returns an entry with its image's bytes, and what stands for them, or why they cannot be read."""
    if isinstance(found, Unreadable):
        return found
    item, content = found
    key, vector = key_of(kind, found), None
    if isinstance(content, np.ndarray):
        content, vector = None, content.astype(dtype).tobytes()
    elif content is None:
        item = dataclasses.replace(item, path="", content="")
    elif kind == IMAGES:
        try:
            content = content if isinstance(content, bytes) else pictures.read_file(content)
        except (OSError, ValueError) as error:
            return unreadable(kind, item, error)
        item = dataclasses.replace(item, content=content_of(content))
    return Entry(key, dataclasses.replace(item, digest=digest_of(item)), content, vector)


def encode(embedder, kind: str, contents: Iterable, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors, float32 [K, D], of images or texts, and the places of those that can be used, int64 [K]."""
    if kind == IMAGES:
        return embedder.encode_image(contents, batch_size=batch_size, on_error="skip", progress=False)
    texts = list(contents)
    prompt = prompt_of(embedder, CAPTIONS)
    return embedder.encode_text(texts, batch_size=batch_size, progress=False, **prompt), np.arange(len(texts))


def unreadable(kind: str, item: Item, error: Exception | None = None) -> Unreadable:
    """Returns why an image cannot be used: `error`, or what its bytes say."""
    reason = "damaged: it does not decode"
    try:
        if error is not None:
            raise error
        pictures.for_the_encoder(read_image(item))
    except OSError as failed:
        reason = failed.strerror or str(failed)
    except ValueError as failed:
        reason = str(failed)
    return Unreadable(item.name, f"{reason[0].upper()}{reason[1:]}.", collect.key_of(kind, item))


# The model.


def keep_model(database: sqlite3.Connection, model: Fingerprint, what: str) -> None:
    """Says which model makes the vectors; raises `UserError` if another one made those that are there."""
    known = dict(database.execute("SELECT key, value FROM meta WHERE key IN ('probes', 'model')"))
    if known:
        fingerprint_of(known["probes"], json.loads(known["model"])).check(model, what)
        return
    content = io.BytesIO()
    np.save(content, model.probes)
    with files.transaction(database):
        files.keep(database, probes=content.getvalue(), model={"path": model.path, "step": model.step})


def fingerprint_of(probes: bytes, model: dict) -> Fingerprint:
    """Returns the model that `keep_model` wrote; raises `UserError` if it is damaged."""
    try:
        vectors = np.load(io.BytesIO(probes), allow_pickle=False).astype(np.float32)
        return Fingerprint(vectors, str(model["path"]), model["step"])
    except (ValueError, TypeError, KeyError, EOFError, OSError) as error:
        raise UserError(f"The index is damaged (of its model: {error}): make it again.") from None


# Taken out by hand.


def delete(database: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Takes items out by their ids; they stay out until their row in the sources is another one."""
    block = json.dumps([int(number) for number in numbers])
    with files.transaction(database, published=True):
        database.execute(
            f"INSERT OR REPLACE INTO deleted SELECT key, digest FROM items WHERE id {files.AMONG}", (block,)
        )
        files.take_out(database, numbers)
        files.keep(database, changed=files.meta_of(database).get("changed", 0) + len(numbers))
