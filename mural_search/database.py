"""The database of an index, one SQLite file: the only state that an index has.

Its tables are to be asked by others, too:

    items            a row each, in the order of `id`, which is never used again
    vectors          of an item: float16 or float32 [D], as bytes; an item without a picture has no vector
    texts            captions, in the order of their items; caption_vectors: float16 [D], as bytes
    fields           a name and a value each; a field with several values has a row for each
    deleted          keys that were taken out by hand, and the digests of their rows: see `changes.sync`
    words, trigrams  full-text search over captions, names and fields: see words.py
    meta             of the whole index: kind, sources, model, noise level, …

Every change is a transaction, so that a process that is killed has made it or not. Readers keep seeing the state that
they opened (SQLite's write-ahead log).
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import pathlib
import secrets
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mural_lite.errors import UserError
from mural_lite.files import storage_errors
from mural_lite.fingerprint import Fingerprint
from mural_search import words
from mural_search.item_table import AMONG, FORMAT, TEXT, TOGETHER, ItemTable, connect, meta_of, read_items, utf8
from mural_search.items import Item
from mural_search.sqlite import sqlite3

NAME = "index.sqlite"
DTYPES = ("float32", "float16")  # of vectors
OLD = "index.json"  # of indexes before format 4
WORDS_TABLE = "fts5(text, content='', tokenize='trigram case_sensitive 1')"
SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value);
CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, name TEXT, path TEXT, offset INTEGER,
                    language TEXT, content TEXT, digest TEXT);
CREATE TABLE vectors (item INTEGER PRIMARY KEY, vector BLOB);
CREATE TABLE texts (id INTEGER PRIMARY KEY AUTOINCREMENT, item INTEGER, language TEXT, text TEXT);
CREATE TABLE caption_vectors (text INTEGER PRIMARY KEY, vector BLOB);
CREATE TABLE fields (item INTEGER, name TEXT, value TEXT);
CREATE TABLE deleted (key BLOB PRIMARY KEY, digest TEXT) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING {WORDS_TABLE};
CREATE TABLE trigrams (term TEXT PRIMARY KEY, documents INTEGER) WITHOUT ROWID;
CREATE INDEX texts_of_items ON texts (item);
CREATE INDEX fields_of_items ON fields (item);
CREATE INDEX items_by_field ON fields (name, value, item);
CREATE INDEX items_without_pictures ON items (id) WHERE path = '';
PRAGMA user_version = {FORMAT};
"""
RECOUNTED = 0.01  # share of the items that may change before trigrams are counted again


def check_place(folder: pathlib.Path) -> None:
    """Raises `UserError` for a folder that is not an index, is an index of an earlier version, or may not be read."""
    path = folder / NAME
    if path.is_file():
        return
    if path.exists() and not os.access(path, os.R_OK):
        return  # the error comes when it is read
    if (folder / OLD).is_file():
        raise UserError(f"The index {folder} was made by an earlier version: delete it and make it again.")
    with storage_errors(folder):
        is_hidden = folder.is_dir() and not os.access(folder, os.X_OK)
    if is_hidden:
        raise UserError(f"{folder} may not be read: check its permissions.")
    raise UserError(
        f"{folder} is not an index: it has no {NAME} (`search index IMAGES…` makes one; `catalogue` makes it in "
        f"{folder}/index)."
    )


def make(path: str | os.PathLike = ":memory:") -> sqlite3.Connection:
    """Opens the database of an index in a file, which is made if it is missing, or with ":memory:" a new database.

    Raises `sqlite3.Error`, and `UserError` for a SQLite that is too old.
    """
    database = connect(path, new=True)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if not version:  # a new file
        if sqlite3.sqlite_version_info < (3, 34):
            raise UserError(f"SQLite {sqlite3.sqlite_version} has no trigrams: use a Python with SQLite 3.34 or newer.")
        database.executescript(f"PRAGMA journal_mode = WAL; BEGIN; {SCHEMA} COMMIT;")
    return database


@contextlib.contextmanager
def transaction(database: sqlite3.Connection, published: bool = False) -> Iterator[None]:
    """Commits all changes of the block at once, or undoes them if it raises. Earlier matrices then are out of date.

    `published`: whether processes that have the index open must open it again.
    """
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        state = secrets.token_hex(16)
        keep(database, state=state)
        if published:
            keep(database, published=state)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def publish(database: sqlite3.Connection, **values) -> None:
    """Writes {key: value} into `meta`, as `keep`; processes that have the index open must open it again."""
    state = meta_of(database).get("state", "")
    # `_Changes.publish` compares its beginning with the state, and `Index.state` is its last 16 digits.
    keep(database, published=f"{state} {secrets.token_hex(8)}", **values)


def parse_fingerprint(probes: bytes, record: dict) -> Fingerprint:
    """Returns the fingerprint that `changes.keep_model` stored; raises `UserError` if it is damaged.

    Args:
      probes: the model's vectors of the probes, [P, D], as the content of a .npy file.
      record: {"path", "step", "encoder"} of its model.
    """
    try:
        vectors = np.load(io.BytesIO(probes), allow_pickle=False).astype(np.float32)
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise ValueError(f"vectors {list(vectors.shape)}")
        return Fingerprint(vectors, str(record["path"]), record["step"], str(record.get("encoder", "")))
    # SyntaxError, because NumPy reads the header of a .npy file as Python.
    except (ValueError, TypeError, KeyError, EOFError, OSError, SyntaxError) as error:
        raise UserError(
            f"The index is damaged (the record of its model: {error}): delete it and make it again."
        ) from None


def keep(database: sqlite3.Connection, **values) -> None:
    """Writes {key: value} into `meta`: bytes as they are, every other value as JSON."""
    rows = []
    for key, value in values.items():
        content = value if isinstance(value, bytes) else json.dumps(value)
        rows.append((key, content))
    database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


def put(
    database: sqlite3.Connection, key: bytes, item: Item, vector: bytes | None = None, captions: Sequence[bytes] = ()
) -> None:
    """Adds an item with its captions, fields, words and vectors.

    Args:
      key: see `changes.key_of`.
      vector: [D] as bytes; None for an item without a picture.
      captions: the vector of each caption, float16 [D] as bytes; () if they are not known.
    """
    insert_item = f"INSERT INTO items VALUES (NULL, ?, {TEXT}, {TEXT}, ?, {TEXT}, ?, ?)"
    columns = key, utf8(item.name), utf8(item.path), item.offset, utf8(item.language), item.content, item.digest
    item_id = database.execute(insert_item, columns).lastrowid
    if vector is not None:
        database.execute("INSERT INTO vectors VALUES (?, ?)", (item_id, vector))
    insert_text = f"INSERT INTO texts VALUES (NULL, ?, {TEXT}, {TEXT})"
    text_ids = []
    for language, text in item.captions:
        text_ids.append(database.execute(insert_text, (item_id, utf8(language), utf8(text))).lastrowid)
    database.executemany("INSERT INTO caption_vectors VALUES (?, ?)", zip(text_ids, captions))
    insert_field = f"INSERT INTO fields VALUES (?, {TEXT}, {TEXT})"
    for name in item.fields:
        database.executemany(insert_field, [(item_id, utf8(name), utf8(value)) for value in item.values(name)])
    database.executemany(f"INSERT INTO words (rowid, text) VALUES (?, {TEXT})", documents(item_id, item, text_ids))


def take_out(database: sqlite3.Connection, ids: Sequence[int]) -> None:
    """Removes items by their ids, with all their captions, fields, words and vectors."""
    for begin in range(0, len(ids), TOGETHER):
        block = json.dumps([int(item_id) for item_id in ids[begin : begin + TOGETHER]])
        text_ids = collections.defaultdict(list)  # id of an item -> ids of its captions, in order
        pairs = database.execute(f"SELECT id, item FROM texts WHERE item {AMONG} ORDER BY id", (block,))
        for text_id, item_id in pairs:
            text_ids[item_id].append(text_id)
        for item_id, _, item in read_items(database.execute, block):
            # A table without its contents must be told which text to forget.
            removal = f"INSERT INTO words (words, rowid, text) VALUES ('delete', ?, {TEXT})"
            database.executemany(removal, documents(item_id, item, text_ids[item_id]))
        texts_of_items = f"(SELECT id FROM texts WHERE item {AMONG})"
        database.execute(f"DELETE FROM caption_vectors WHERE text IN {texts_of_items}", (block,))
        for table in ("texts", "fields", "vectors"):
            database.execute(f"DELETE FROM {table} WHERE item {AMONG}", (block,))
        database.execute(f"DELETE FROM items WHERE id {AMONG}", (block,))


def documents(item_id: int, item: Item, text_ids: Sequence[int]) -> list[tuple[int, bytes]]:
    """Returns the rows of `words` for an item, (rowid, text): its names and fields together, and each caption.

    The rowid is twice the item's id plus 1 for the names and fields, and twice the caption's id for a caption.
    `text_ids`: the ids of the item's captions.
    """
    values = [value for value in item.fields.values() if "://" not in value]  # nobody searches for an address
    names = [_stem(item.name), item.name]
    if item.offset < 0:  # a file of its own, whose name may say more than the item's
        names.insert(1, _stem(item.path))
    different_names = filter(None, dict.fromkeys(names))
    rows = [(2 * item_id + 1, utf8(words.document([*different_names, *values])))]
    for text_id, (_, caption) in zip(text_ids, item.captions):
        rows.append((2 * text_id, utf8(words.document([caption]))))
    return rows


def _stem(file: str) -> str:
    """Returns the name of a file without its folder and ending."""
    stem, _ = os.path.splitext(os.path.basename(file))
    return stem


def count_trigrams(database: sqlite3.Connection) -> None:
    """Fills the table `trigrams` with the number of texts that hold each; FTS5 would count texts at each question."""
    database.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, words, row)")
    database.execute("DELETE FROM trigrams")
    database.execute("INSERT INTO trigrams SELECT term, doc FROM temp.vocabulary")
    database.execute("DROP TABLE temp.vocabulary")


def table_of(items: Iterable[Item]) -> ItemTable:
    """Returns an `ItemTable` of these items, in a new database in memory, without vectors."""
    database = make()
    for number, item in enumerate(items):
        put(database, b"%d" % number, item)
    count_trigrams(database)
    return ItemTable(database)
