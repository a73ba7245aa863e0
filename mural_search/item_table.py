"""The items of an index, as questions ask for them: by rows, fields and words, from the database of the index.

database.py describes the database and its changes. An index of millions of items opens at once and reads only the
requested rows.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from mural_lite.errors import UserError
from mural_search import words
from mural_search.items import SEVERAL, Filter, Item, amount, fields_of, group_marks
from mural_search.sqlite import sqlite3

PATIENCE = 5.0  # seconds that a question waits for a process that changes the file
FORMAT = 4  # `PRAGMA user_version`; raised when an older file would be read wrongly
TOGETHER = 4096  # items that are in memory at a time
FEW = 50  # values of a field that are offered; a field with more is taken for texts or numbers
LONGEST_NUMBER = 40  # characters of a value that may be a number with its currency
FEW_NUMBERS = 8  # different numbers that are offered one by one; more are offered as a range
MOST_POSTINGS = 50_000  # texts of trigrams that a question looks at, each counted for every trigram that it holds
FEW_GRAMS = 4  # the rarest trigrams of a question, which are always looked up
COMPARE = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
# A row of `words`: its item, and its caption's language, NULL for names and fields.
OWNER = "iif(rowid & 1, rowid >> 1, (SELECT item FROM texts WHERE texts.id = words.rowid >> 1))"
LANGUAGE = "iif(rowid & 1, NULL, (SELECT language FROM texts WHERE texts.id = words.rowid >> 1))"
AMONG = "IN (SELECT value FROM json_each(?))"
TEXT = "CAST(? AS TEXT)"  # bytes are given, because names of files may not be UTF-8


FIELD_NAMES = "SELECT name FROM fields GROUP BY name ORDER BY min(rowid)"  # in the order of the first item with each


def unknown_field(flag: str, name: str, names: Sequence[str]) -> str:
    """Returns the message that no item has the field which `--flag=name` names, among all fields, `names`."""
    if not names:
        return f"--{flag}={name}: no item has this field; no item has fields."
    return f"--{flag}={name}: no item has this field; the fields are {', '.join(names)}."


def utf8(text: str) -> bytes:
    """Returns a text as UTF-8 for `TEXT`; a name of a file that is not UTF-8 keeps its bytes."""
    return text.encode("utf-8", "surrogatepass")


def _in_shown_language(hidden: Collection[str]) -> str:
    """Returns a condition of SQL, "AND …", that a row of `words` is a caption whose language is not hidden.

    Rows of names and fields fail it, too. Without hidden languages it is "": every row passes.
    """
    if not hidden:
        return ""
    marks = ", ".join("?" * len(hidden))
    return f"AND {LANGUAGE} NOT IN ({marks})"  # NULL for names and fields, which counts as false


def connect(path: str | os.PathLike, new: bool = False) -> sqlite3.Connection:
    """Opens the database of a file, or for ":memory:" a new database in memory; raises `sqlite3.Error`.

    A folder that may not be written, as a container mounts it, is read without the log. `new`: makes a missing file.
    """
    address = path
    if path != ":memory:":
        address = _address(pathlib.Path(path).absolute(), new)
    database = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None, timeout=PATIENCE)
    database.text_factory = lambda data: data.decode("utf-8", "surrogatepass")
    database.execute("PRAGMA synchronous = NORMAL")  # a power cut may undo the last transactions, never half of one
    return database


def _address(path: pathlib.Path, new: bool) -> str:
    """Returns the URI of a database with the mode in which this process may open it; `new` may make a missing file."""
    may_write_folder = os.access(path.parent, os.W_OK)  # in which SQLite keeps the log
    may_write_file = not path.exists() or os.access(path, os.W_OK)
    has_log = path.with_name(f"{path.name}-wal").exists()
    if may_write_folder and may_write_file:
        mode = "mode=rwc" if new else "mode=rw"
    elif has_log:
        mode = "mode=ro"
    else:
        # SQLite would make a log even to read, and fail. `immutable` says that nobody changes the file, so it needs
        # none; where a log exists, it would be ignored, and with it the last changes.
        mode = "mode=ro&immutable=1"
    return f"{path.as_uri()}?{mode}"


def problem(path: object, error: Exception) -> UserError:
    """Returns the `UserError` to raise for an error of SQLite, or `Damaged`, on the file `path`."""
    reason = str(error)
    if "locked" in reason or "busy" in reason:
        return UserError(f"{path} is busy: another process is changing it; try again when it has ended.")
    file = pathlib.Path(str(path))
    if file.exists() and not os.access(file, os.R_OK):
        return UserError(f"{path} may not be read: check its permissions.")
    if "readonly" in reason or "full" in reason or "I/O" in reason:
        return UserError(f"{path} cannot be written or read ({reason}): check its permissions and the free space.")
    return UserError(f"{path} is damaged ({reason}): delete its folder and make the index again.")


def meta_of(database: sqlite3.Connection) -> dict[str, object]:
    """Returns {key: value} of the table `meta`, of the whole index; raises `sqlite3.Error`, or `Damaged`."""
    meta = {}
    try:
        for key, value in database.execute("SELECT key, value FROM meta").fetchall():
            meta[key] = value if isinstance(value, bytes) else json.loads(value)
    except (ValueError, TypeError) as error:
        raise Damaged(str(error)) from None
    return meta


class Damaged(ValueError):
    """The database does not fit its schema."""


def read_items(ask, ids: str) -> list[tuple[int, bytes, Item]]:
    """Returns (id, key, `Item`) for each item of these ids, in the order of the ids.

    Args:
      ask: function from a query and its values to rows.
      ids: a JSON list; ids without an item are passed over.

    Raises `Damaged` for values of other types than the schema's.
    """
    condition = f"WHERE item {AMONG}"
    captions = collections.defaultdict(list)
    for item_id, language, text in ask(f"SELECT item, language, text FROM texts {condition} ORDER BY id", [ids]):
        captions[item_id].append((_text(language), _text(text)))
    values = collections.defaultdict(lambda: collections.defaultdict(list))  # id -> name -> values
    for item_id, name, value in ask(f"SELECT item, name, value FROM fields {condition} ORDER BY rowid", [ids]):
        values[item_id][_text(name)].append(_text(value))
    items = []
    columns = "id, key, offset, name, path, language, content, digest"
    for item_id, key, offset, *texts in ask(f"SELECT {columns} FROM items WHERE id {AMONG} ORDER BY id", [ids]):
        name, path, language, content, digest = map(_text, texts)
        if not isinstance(offset, int):
            raise Damaged(f"an offset {offset!r}")
        fields, several = fields_of(values[item_id])
        item = Item(name, path, offset, tuple(captions[item_id]), language, fields, content, digest, several)
        items.append((item_id, key, item))
    return items


def _text(value: object) -> str:
    """Returns a value of the database if it is a text; raises `Damaged` for another value."""
    if not isinstance(value, str):
        raise Damaged(f"{value!r} in place of a text")
    return value


def _open_twice(path: str | os.PathLike) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Opens a file twice; returns (a connection that keeps to the present state, another that sees later states).

    Raises `UserError` for a file that cannot be opened.
    """
    try:
        database = connect(path)
        watch = connect(path)
        database.execute("BEGIN")  # the first query takes the snapshot
    except sqlite3.Error as error:
        raise problem(path, error) from None
    return database, watch


class ItemTable:
    """The items of an index, read when they are asked for, by any thread; closed when nothing refers to it.

    Rows are the items in the order of their ids, from 0. All methods read the state when the table was opened. Every
    method raises `UserError`, one line, if the file is damaged.

    Args:
      source: a file, or a connection to a database in memory.
    """

    def __init__(self, source: str | os.PathLike | sqlite3.Connection):
        self._lock = threading.Lock()
        if isinstance(source, (str, os.PathLike)):
            self._path = source
            self._database, self._watch = _open_twice(source)
            weakref.finalize(self, self._watch.close)
        else:
            self._path = "The index in memory"
            self._database = self._watch = source
        weakref.finalize(self, self._database.close)
        self.postings = None  # a `Postings`, where many questions are asked
        self.schema = "main"  # SQLite's name of the database with the table `words`: "main" or "temp"
        self.meta: dict[str, object] = {}  # see `meta_of`
        self._group_marks: dict[str, str] = {}  # field -> its marks of thousands, as far as they were asked for
        self.ids = np.zeros(0, np.int64)  # of the rows' items, rising
        self.caption_ids = self.ids  # of all captions, int64 [T] rising
        ((version,),) = self._ask("PRAGMA user_version")
        if version not in (FORMAT, 0):
            raise UserError(f"{self._path} was made by another version: delete its folder and make the index again.")
        if version == 0:  # made by a process that was killed before its first transaction
            self._database.execute("ROLLBACK")  # nothing is read, and the next process may make it
            return
        try:
            self.meta = meta_of(self._database)
        except (sqlite3.Error, ValueError) as error:
            raise problem(self._path, error) from None
        self.ids = self._read_ids("items")
        self.caption_ids = self._read_ids("texts")

    def _read_ids(self, table: str) -> np.ndarray:
        """Returns the ids of the table `items` or `texts`, int64 [N] rising."""
        # Without subqueries SQLite would read all rows; in them it counts by pages and looks up the last row.
        query = f"SELECT (SELECT count(*) FROM {table}), (SELECT ifnull(max(id), 0) FROM {table})"
        ((count, last),) = self._ask(query)
        if not (isinstance(count, int) and isinstance(last, int)):
            raise problem(self._path, Damaged("ids are not numbers"))
        if count == last:  # ids begin at 1, and none is missing
            return np.arange(1, count + 1)
        return self._column(self.each(f"SELECT id FROM {table} ORDER BY id"))

    def is_current(self) -> bool:
        """Whether the opened state is still the last published state, as far as the file can be read."""
        try:
            published = self._watch.execute("SELECT value FROM meta WHERE key = 'published'").fetchone()
        except sqlite3.Error:
            return True  # the file is being changed, or cannot be read, and the opened state can
        return not published or json.loads(published[0]) == self.meta.get("published")

    def release(self) -> None:
        """Ends the snapshot, so that the file's log can be written anew; threads that still read see later states."""
        with self._lock:
            if self._database.in_transaction:
                self._database.execute("COMMIT")

    def merge_log(self) -> None:
        """Moves the log into the file and takes the same state from there, so that the log can be written anew.

        Nothing happens while an earlier snapshot is held, or if the state has changed meanwhile.
        """
        with self._lock, contextlib.suppress(sqlite3.Error, Damaged):
            self._watch.execute("PRAGMA wal_checkpoint(PASSIVE)")
            later = connect(self._path)
            later.execute("BEGIN")
            if meta_of(later).get("state") != self.meta.get("state"):
                later.close()
                return
            self._database.close()
            self._database = later
            weakref.finalize(self, later.close)

    def close(self) -> None:
        """Closes the file for a process that goes on without this table; nothing can be read from it afterwards."""
        with self._lock:
            self._watch.close()
            self._database.close()

    def products(self, rows: Sequence[int], name: str) -> dict[int, str]:
        """Returns {row: its product}, the value of the field `name`; rows without a value are left out."""
        query = f"SELECT item, value FROM main.fields WHERE name = {TEXT} AND item {AMONG}"
        ids = self.ids[list(rows)].tolist()
        products = dict(self._ask(query, [utf8(name), json.dumps(ids)]))
        return {row: products[number] for row, number in zip(rows, ids) if number in products}

    def first_rows(self, name: str) -> np.ndarray:
        """Returns for each row the first row with its value of the field `name`, or else the row itself; int64 [N]."""
        first_rows = np.arange(len(self))
        first_row_with = {}  # value -> row
        query = f"SELECT item, value FROM main.fields WHERE name = {TEXT} AND item IN (SELECT id FROM main.items)"
        pairs = self._ask(f"{query} ORDER BY item", [utf8(name)])
        rows = self.rows_of(self._column((item,) for item, _ in pairs)).tolist()
        for row, (_, value) in zip(rows, pairs):
            first_rows[row] = first_row_with.setdefault(value, row)
        return first_rows

    def field_names(self) -> list[str]:
        """Returns the names of all fields, in the order of the first item that has each."""
        return [name for (name,) in self._ask(FIELD_NAMES)]

    def _ask(self, query: str, values: Sequence = ()) -> list[tuple]:
        """Returns the result rows of a query; `values` take the places of "?"."""
        try:
            with self._lock:
                return self._database.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise problem(self._path, error) from None

    def each(self, query: str, values: Sequence = ()) -> Iterator[tuple]:
        """Yields the result rows of a query one by one, and holds the lock meanwhile; see `_ask`."""
        try:
            with self._lock:
                yield from self._database.execute(query, values)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise problem(self._path, error) from None

    def _column(self, rows: Iterable[tuple]) -> np.ndarray:
        """Returns the numbers in result rows of a single column, int64 [K]."""
        try:
            return np.fromiter((value for (value,) in rows), np.int64)
        except UserError:  # `each` cannot read a row; this is a `ValueError`, too
            raise
        except (TypeError, OverflowError, ValueError) as error:
            raise problem(self._path, error) from None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> Item:
        return self._items([self.ids[row]])[0]

    def __iter__(self) -> Iterator[Item]:
        for begin in range(0, len(self), TOGETHER):
            yield from self.at(slice(begin, begin + TOGETHER))

    def at(self, rows: slice | Sequence[int]) -> list[Item]:
        """Returns the items of rows, which must rise, in their order."""
        return self._items(self.ids[rows])

    def _items(self, ids: Sequence[int]) -> list[Item]:
        """Returns the items of ids, which must rise; raises `UserError` if an item is missing or damaged."""
        try:
            entries = read_items(self._ask, json.dumps(np.asarray(ids).tolist()))
        except Damaged as error:
            raise problem(self._path, error) from None
        if len(entries) != len(ids):
            raise problem(self._path, Damaged(f"{len(entries)} of {len(ids)} items are there"))
        return [item for _, _, item in entries]

    def key_hashes(self, rows: slice | Sequence[int]) -> np.ndarray:
        """Returns a hash of the key of each row's item, uint64 [K]; `rows` must rise.

        The index's salt is part of it: a key may be a number that the page hides, and people could try numbers until
        one has this hash.
        """
        query = f"SELECT key FROM main.items WHERE id {AMONG} ORDER BY id"
        hashes = []
        ids = self.ids[rows]
        for begin in range(0, len(ids), TOGETHER):
            for (key,) in self._ask(query, [json.dumps(ids[begin : begin + TOGETHER].tolist())]):
                digest = hashlib.blake2b(key, digest_size=8, key=self.meta["salt"]).digest()
                hashes.append(int.from_bytes(digest, "big"))
        return np.array(hashes, np.uint64)

    def names(self) -> Iterator[str]:
        """Yields the name of each row."""
        for begin in range(0, len(self), TOGETHER):
            ids = self.ids[begin : begin + TOGETHER].tolist()
            names = self._ask(f"SELECT name FROM items WHERE id {AMONG} ORDER BY id", [json.dumps(ids)])
            yield from self._checked_names(names, len(ids))

    def name(self, row: int) -> str:
        """Returns the name of a row."""
        names = self._ask("SELECT name FROM items WHERE id = ?", [int(self.ids[row])])
        return self._checked_names(names, 1)[0]

    def _checked_names(self, found_rows: Sequence[tuple], count: int) -> list[str]:
        """Returns the names in found rows of one cell each; raises `UserError` if one of `count` items has no name."""
        names = [name for (name,) in found_rows]
        if len(names) < count or not all(isinstance(name, str) for name in names):
            raise problem(self._path, Damaged("an item without a name"))
        return names

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows, int64, of ids, int64 [K]; ids without an item are left out."""
        return np.searchsorted(self.ids, ids[np.isin(ids, self.ids)])

    def has_fields(self) -> bool:
        """Whether any item has a field."""
        return bool(self._ask("SELECT 1 FROM fields LIMIT 1"))

    def rows_with(self, filters: Sequence[Filter]) -> np.ndarray:
        """Returns the rows, int64 [K] rising, that pass the filters on each field.

        Filters "=" on one field are alternatives: "size=36" and "size=37" find both. Other filters on one field are
        bounds: a row passes if one value of its field is a number or a date within all of them.
        """
        values_of = collections.defaultdict(list)
        limits_of = collections.defaultdict(list)
        for name, value, operator in filters:
            if operator == "=":
                values_of[name].append(value)
            else:
                limits_of[name].append((operator, value))
        id_sets = []
        for name, values in values_of.items():
            id_sets.append(np.concatenate([self._ids_with(name, value) for value in values]))
        for name, limits in limits_of.items():
            query = f"SELECT item FROM fields WHERE name = {TEXT} AND value {AMONG}"
            within = json.dumps(self._values_within(name, limits))
            id_sets.append(self._column(self._ask(query, [utf8(name), within])))
        if not id_sets:
            return np.arange(len(self))
        return functools.reduce(np.intersect1d, [np.unique(self.rows_of(ids)) for ids in id_sets])

    def _ids_with(self, name: str, value: str) -> np.ndarray:
        """Returns the ids, int64 [K], of the items whose field has this value, or each value in a joined "36, 37"."""
        query = f"SELECT item FROM fields WHERE name = {TEXT} AND value = {TEXT}"
        ids = self._column(self._ask(query, [utf8(name), utf8(value)]))
        parts = value.split(SEVERAL)
        if len(ids) or len(parts) == 1:
            return ids
        return functools.reduce(np.intersect1d, [self._ids_with(name, part) for part in parts])

    def group_marks(self, name: str) -> str:
        """Returns the marks that divide thousands in a field, as `items.group_marks` finds them in its short values."""
        if name not in self._group_marks:
            query = f"SELECT DISTINCT value FROM fields WHERE name = {TEXT} AND length(value) <= {LONGEST_NUMBER}"
            self._group_marks[name] = group_marks(str(value) for (value,) in self.each(query, [utf8(name)]))
        return self._group_marks[name]

    def _values_within(self, name: str, limits: Sequence[tuple[str, str]]) -> list[str]:
        """Returns the different values of a field that are numbers or dates within all limits.

        `limits`: pairs (operator, number or date), for example ("<", "20"). Raises `UserError` for another limit.
        """
        groups = self.group_marks(name)
        bounds = []
        for operator, limit in limits:
            bound = amount(limit, groups)
            if bound is None:
                raise UserError(f"{name}{operator}{limit}: {limit!r} is neither a number nor a date (2024-05-01).")
            bounds.append((COMPARE[operator], bound))
        within = []
        for (value,) in self._ask(f"SELECT DISTINCT value FROM fields WHERE name = {TEXT}", [utf8(name)]):
            number = amount(str(value), groups)
            if number is not None and all(compare(number, bound) for compare, bound in bounds):
                within.append(value)
        return within

    def amounts(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (the rows with a number or a date in the field `name`, int64 [K], their `amount`, float64 [K]).

        The least amount counts for a row with several.
        """
        pairs = self._ask(f"SELECT item, value FROM fields WHERE name = {TEXT} ORDER BY item", [utf8(name)])
        different_values = {value for _, value in pairs}  # mostly far fewer than rows
        groups = self.group_marks(name)
        amount_of = {value: amount(str(value), groups) for value in different_values}
        least = {}  # id -> amount
        for item_id, value in pairs:
            number = amount_of[value]
            if number is not None:
                least[item_id] = min(number, least.get(item_id, number))
        ids = self._column((item_id,) for item_id in least)
        amounts = np.array(list(least.values()), np.float64)
        return self.rows_of(ids), amounts[np.isin(ids, self.ids)]

    def facets(self, rows: np.ndarray | None = None) -> dict[str, dict]:
        """Returns {field: a description of its values} in these rows, int64 [K], or in all rows.

        The description is {"values": {value: count}} for few values, by frequency (numbers and dates in their order),
        {"least": text, "most": text} for many numbers or dates, and {} for many words.
        """
        query = "SELECT name, value, count(*) FROM fields"
        query_values = []
        if rows is not None:
            query += f" WHERE item {AMONG}"
            query_values = [json.dumps(self.ids[rows].tolist())]
        facets = {}
        names = [name for (name,) in self._ask("SELECT DISTINCT name FROM fields")]
        marks = {name: self.group_marks(name) for name in names}
        for name, value, count in self.each(f"{query} GROUP BY name, value", query_values):
            if name not in facets:
                facets[name] = _Facet(marks.get(name, ","))
            facets[name].add(str(value), count)
        return {name: facet.describe() for name, facet in facets.items()}

    def with_words(self, text: str) -> np.ndarray:
        """Returns the rows, int64 [K] rising, with these words one after another in a caption, the name or a value."""
        phrase = words.quoted(f" {words.spread(text)} ")
        return self._owners(f"SELECT {OWNER} FROM words WHERE words MATCH ?", [phrase])

    def rows_equal_to(self, text: str, hidden: Collection[str] = ()) -> np.ndarray:
        """Returns the rows, int64 [K] rising, whose name, or a caption or a value, is exactly the text.

        `hidden`: languages whose captions do not count; names and values then do not, either.
        """
        phrase = words.quoted(words.document([text]))
        query = f"SELECT {OWNER} FROM words WHERE words MATCH ? {_in_shown_language(hidden)}"
        return self._owners(query, [phrase, *hidden])

    def _owners(self, query: str, values: Sequence) -> np.ndarray:
        """Returns the rows, int64 [K] rising, of the items whose ids a query selects; NULL is left out."""
        ids = [(item_id,) for (item_id,) in self._ask(query, values) if item_id is not None]
        return np.unique(self.rows_of(self._column(ids)))

    def by_words(
        self, text: str, count: int, allowed: np.ndarray | None = None, hidden: Collection[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows that share most with a question, by the BM25 of its trigrams; a row's best text counts.

        Args:
          text: the question.
          count: how many rows to return at most.
          allowed: bool [N], the rows that may be found; None for all.
          hidden: languages whose captions are not searched; names and fields then are not, either.

        Returns:
          int64 rows [K], best first, and their float64 shares [K] in (0, 1]: their BM25, relative to a text of usual
          length with all trigrams of the question. Shares below a quarter of the best are left out.
        """
        grams = words.grams(text)
        if not grams:
            return np.zeros(0, np.int64), np.zeros(0)
        text_count = len(self.caption_ids) + len(self)
        counts = self._text_counts(grams, text_count)
        # The BM25 of a text of usual length with each trigram once, by FTS5's weights, see `postings.LEAST_IDF`.
        ideal = np.maximum(np.log((text_count - counts + 0.5) / (counts + 0.5)), 1e-6).sum()
        grams = _rarest(grams, counts)
        if self.postings is not None and not hidden:
            scored_items = self.postings.best(grams, count, allowed)
        else:
            condition = f"words MATCH ? {_in_shown_language(hidden)}"
            query = f"SELECT {OWNER}, -rank FROM words WHERE {condition} ORDER BY rank"
            scored_items = self.each(query, (" OR ".join(map(words.quoted, grams)), *hidden))
        shares = self._best_shares(scored_items, ideal, count, allowed)
        return np.array(list(shares), np.int64), np.array(list(shares.values()))

    def _text_counts(self, grams: Sequence[str], total: int) -> np.ndarray:
        """Returns the number of texts with each trigram, float64 [G] within [0, `total`]."""
        query = f"SELECT term, documents FROM trigrams WHERE term IN ({', '.join('?' * len(grams))})"
        count_of = {gram: count for gram, count in self._ask(query, grams) if isinstance(count, int)}
        return np.clip([count_of.get(gram, 0) for gram in grams], 0, total).astype(np.float64)

    def _best_shares(
        self, scored_items: Iterable[tuple[int | None, float]], ideal: float, count: int, allowed: np.ndarray | None
    ) -> dict[int, float]:
        """Returns {row: share of the score `ideal`}, best first, without shares below a quarter of the best.

        Args:
          scored_items: pairs (id of a text's item, the text's score), best first; an item may come several times, and
            the id is None for a text that has lost its item.
          count, allowed: see `by_words`.
        """
        shares = {}
        least_share = 0.0
        for item_id, score in scored_items:
            if item_id is None:
                continue
            row = int(np.searchsorted(self.ids, item_id))
            if row == len(self) or self.ids[row] != item_id or row in shares:
                continue
            if allowed is not None and not allowed[row]:
                continue
            share = min(1.0, score / ideal)
            if not shares:
                least_share = share / 4  # of the first, the best
            if share < least_share:
                break
            shares[row] = share
            if len(shares) == count:
                break
        return shares

    def caption_rows(self) -> np.ndarray:
        """Returns the row of each caption's item, int64 [T] rising."""
        return np.searchsorted(self.ids, self._column(self.each("SELECT item FROM texts ORDER BY id")))

    def captions_by_language(self) -> dict[str, np.ndarray]:
        """Returns {language: the numbers of its captions from 0, int64 [K] rising}."""
        by_language = collections.defaultdict(list)
        for number, (language,) in enumerate(self.each("SELECT language FROM texts ORDER BY id")):
            by_language[language].append(number)
        return {language: np.array(numbers, np.int64) for language, numbers in by_language.items()}

    def captions(self, count: int) -> dict[str, list[str]]:
        """Returns {language: up to `count` different captions}, in an order that is mixed, but always the same."""
        by_language = collections.defaultdict(list)
        # In the order of Knuth's multiplicative hash, by 2^32 divided by the golden ratio, modulo 2^32.
        shuffled = "row_number() OVER (PARTITION BY language ORDER BY min(id) * 2654435761 % 4294967296)"
        texts = f"SELECT language, text, {shuffled} AS place FROM texts GROUP BY language, text"
        for language, text in self._ask(f"SELECT language, text FROM ({texts}) WHERE place <= ?", [count]):
            by_language[language].append(text)
        return dict(by_language)

    def without_pictures(self) -> np.ndarray:
        """Returns the rows, int64 [K] rising, of items without a file of a picture; their vector may be a picture's."""
        return self.rows_of(self._column(self._ask("SELECT id FROM items WHERE path = '' ORDER BY id")))

    def vectors(self, of_captions: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yields (id, vector as bytes) of the items, or of the captions, in the order of these ids."""
        if of_captions:
            return self.each("SELECT text, vector FROM caption_vectors ORDER BY text")
        return self.each("SELECT item, vector FROM vectors ORDER BY item")


def _rarest(grams: Sequence[str], counts: np.ndarray) -> list[str]:
    """Returns the trigrams that the fewest texts hold: `FEW_GRAMS`, or more within `MOST_POSTINGS`.

    Trigrams of nearly every text would cost most and tell least. `counts`: the numbers of their texts, float64 [G].
    """
    order = np.argsort(counts, kind="stable")
    affordable = np.count_nonzero(np.cumsum(counts[order]) <= MOST_POSTINGS)
    return [grams[number] for number in order[: max(FEW_GRAMS, affordable)]]


class _Facet:
    """The values of a field with their counts, and the least and the most of them if all are numbers or dates.

    `groups`: the field's marks of thousands, see `items.group_marks`.
    """

    def __init__(self, groups: str):
        self._amount = functools.partial(amount, groups=groups)
        self._counts: dict[str, int] = {}
        self._least = (np.inf, "")  # (number, its text)
        self._most = (-np.inf, "")
        self._are_amounts = True

    def add(self, value: str, count: int) -> None:
        """Adds a new value, which `count` items have."""
        if len(self._counts) <= FEW:  # so `FEW` + 1 values are kept, which shows that there are more
            self._counts[value] = count
        number = self._amount(value)
        if number is None:
            self._are_amounts = False
        else:
            self._least = min(self._least, (number, value))
            self._most = max(self._most, (number, value))

    def describe(self) -> dict[str, object]:
        """Returns {"values": {value: count}} of few values, {"least", "most"} of many numbers or dates, else {}."""
        if self._are_amounts and len(self._counts) > FEW_NUMBERS:
            _, least = self._least
            _, most = self._most
            return {"least": least, "most": most}
        if len(self._counts) > FEW:
            return {}
        if self._are_amounts:
            values = sorted(self._counts, key=self._amount)
        else:
            values = sorted(self._counts, key=self._counts.get, reverse=True)
        return {"values": {value: self._counts[value] for value in values}}


class Names(Sequence[str]):
    """The names of the items of a table: `names[row]`."""

    def __init__(self, items: ItemTable):
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> str:
        return self._items.name(range(len(self))[row])  # IndexError outside; negative rows count from the end
