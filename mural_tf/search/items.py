"""What an index finds: images in files or TFRecords, and texts. Items know where their image lies, not its bytes.

`ItemTable` keeps those of an index in one SQLite file, so that an index of millions of items opens at once and reads
only what is asked for. Its tables are to be asked by others too: `items` (a row each, in the order of the vectors),
`texts` (captions), `fields` (a name and a value each), `removed` (rows that no search finds), `words` (see `words.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from mural_tf.data import tfrecord
from mural_tf.data.pictures import read_file
from mural_tf.data.record_format import Example
from mural_tf.errors import UserError
from mural_tf.files import as_path
from mural_tf.hashes import bytes_hash
from mural_tf.remote_folders import local_copy
from mural_tf.search import words
from mural_tf.sqlite import sqlite3
from mural_tf.text_files import bounded_lines, is_text, parse_object

KINDS = IMAGES, TEXTS = "images", "texts"
IMAGE_FEATURES = ("image", "jpg")  # of the project's records and of img2dataset's


@dataclasses.dataclass(frozen=True)
class Item:
    """One image or one text.

    `name`: what is shown, a path, an image id or the text itself. `path`: the file of the image, absolute, "" for a
    text without one. `offset`: where its record begins in the TFRecord file `path`; -1 if the file is the image.
    `captions`: (language, text) of an image. `language`: of a text, BCP 47 or "". `fields`: what else is known, a
    product's brand or price. `content`: of an image, 16 hexadecimal digits that stand for its bytes, "" if not known.
    """

    name: str
    path: str = ""
    offset: int = -1
    captions: tuple[tuple[str, str], ...] = ()
    language: str = ""
    fields: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    content: str = ""

    @property
    def has_image(self) -> bool:
        """Whether there is an image to show: itself, or the one that a text describes."""
        return bool(self.path)

    def caption(self, language: str = "en") -> tuple[str, str]:
        """Returns (language, text) of the caption in `language`, else of the first one, else ("", "")."""
        return next((c for c in self.captions if c[0] == language), self.captions[0] if self.captions else ("", ""))


def read_image(item: Item) -> bytes:
    """Returns the encoded image of an item. Raises `OSError` or `ValueError` if it is not there any more."""
    if not item.path:
        raise ValueError(f"{item.name!r} is a text without an image.")
    if item.offset < 0:
        return read_file(item.path)
    image = image_of_record(tfrecord.read_at(item.path, item.offset), item.path)
    if item.content and content_of(image) != item.content:
        raise ValueError(f"{item.path} holds another image at byte {item.offset} by now: update the index.")
    return image


def content_of(image: bytes) -> str:
    """Returns 16 hexadecimal digits that stand for the bytes of an image."""
    return f"{bytes_hash(image):016x}"


def image_of_record(serialized: bytes, path: str) -> bytes:
    """Returns the encoded image of a serialised image-text `tf.train.Example`. Raises `ValueError` if it has none."""
    try:
        feature = Example.FromString(serialized).features.feature
    except DecodeError:
        raise ValueError(f"{path} holds something else than tf.train.Examples.") from None
    for name in IMAGE_FEATURES:
        if name in feature and feature[name].bytes_list.value:
            return feature[name].bytes_list.value[0]
    raise ValueError(f"{path} holds records without an image (feature {' or '.join(IMAGE_FEATURES)}).")


_DEFAULTS = vars(Item(""))


def to_json(item: Item) -> bytes:
    """Returns the item as one line of JSON, without the fields that have their default."""
    values = {name: value for name, value in vars(item).items() if value != _DEFAULTS[name]}
    return json.dumps(values, ensure_ascii=True).encode() + b"\n"


def from_json(line: bytes) -> Item:
    """Reads a line of `to_json`; raises `ValueError` for anything else."""
    try:
        values = parse_object(line)
        captions = tuple((language, text) for language, text in values.pop("captions", ()))
        return Item(captions=captions, **values)
    except TypeError as error:
        raise ValueError(f"not an item: {error}") from None


# Fields.

# Beside dataset.json: a line {"image_id": …, "fields": {name: text}} an image. Of items that share one each has a line,
# with its own "name" and "captions": [[language, text], …].
FIELDS = "fields.jsonl"


class Filter(NamedTuple):
    """Finds only items whose field `name` is `value`, or is below or above it: `operator` is one of =, <, <=, >, >=."""

    name: str
    value: str
    operator: str = "="

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"


FILTER = re.compile(r"([^<>=]+)(<=|>=|<|>|=)(.*)", re.DOTALL)  # of one pass, however long the text is
LONGEST_FILTER = 500  # characters


def parse_filters(texts: Iterable[str]) -> tuple[Filter, ...]:
    """Returns the filters that "name=value" and "name<20" stand for; raises `UserError` for anything else."""
    filters = []
    for text in texts:
        if len(text) > LONGEST_FILTER:
            raise UserError(f"A filter has {len(text):,} characters; at most {LONGEST_FILTER} are read.")
        found = FILTER.fullmatch(text)
        name, operator, value = (part.strip() for part in found.groups()) if found else ("", "", "")
        if not name:
            raise UserError(f"The filter {text!r} is not of the form name=value, such as brand=acme, or price<20.")
        if operator != "=" and amount(value) is None:
            raise UserError(f"The filter {text!r} compares with {value!r}: expected a number or a date, 2026-05-31.")
        filters.append(Filter(name, value, operator))
    return tuple(dict.fromkeys(filters))


# A currency before it, by its sign or code, and a short unit after it.
NUMBER = re.compile(r"(?:[^\w\s.,+-]\s*|[A-Z]{3}\s+)?([-+]?\d[\d\s.,']*)[^\d]{0,6}")
DATE = re.compile(r"(\d{4})-(\d\d?)(?:-(\d\d?))?(?:[T ].*)?|(\d\d?)\.(\d\d?)\.(\d{4})")


def amount(text: str) -> float | None:
    """Returns what a field's value is ordered by, None for words: a number ("19,90 EUR"), or a date as years.

    Dates are 2026-05-31, 2026-05 or 31.5.2026; so `year<2026` takes dates, too. Of two kinds of marks in a number the
    last one is the decimal one, and a comma before three digits is none.
    """
    if found := DATE.fullmatch(text.strip()):
        year, month, day = (found[1], found[2], found[3]) if found[1] else (found[6], found[5], found[4])
        return int(year) + (int(month) - 1) / 12 + (int(day or 1) - 1) / 372
    found = NUMBER.fullmatch(text.strip())
    if not found:
        return None
    digits = re.sub(r"[\s']", "", found[1]).rstrip(".,")
    if re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+", digits) or digits.rfind(".") > digits.rfind(",") >= 0:
        digits = digits.replace(",", "")
    elif "," in digits:
        digits = digits.replace(".", "").replace(",", ".")
    try:
        value = float(digits)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def fields_file(record_file: str | os.PathLike) -> pathlib.Path | None:
    """Returns the file of fields of the data set that a file of records belongs to, None if it has none."""
    path = as_path(record_file).parent.parent / FIELDS
    return path if path.is_file() else None


def fields_by_id(path: pathlib.Path | None) -> Callable[[str], list[dict]]:
    """Returns a function from an image's id to what a data set's file of fields, if it has one, says of its items.

    Each has "fields", and "name" and "captions" where several items share the image. Of several lines of one id and
    name the last counts. Raises `UserError` for a line that is damaged.
    """
    if path is None:
        return lambda image_id: [{"fields": {}}]
    state = path.stat()
    return _fields_of_file(path, (state.st_size, getattr(state, "st_mtime_ns", 0)))


@functools.lru_cache(maxsize=4)
def _fields_of_file(path: pathlib.Path, state: tuple) -> Callable[[str], list[dict]]:
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # a temporary file where it is large
    table = "CREATE TABLE items (image, name, line, PRIMARY KEY (image, name))"
    database.executescript(f"PRAGMA journal_mode = OFF; {table}; BEGIN")
    with open(local_copy(path), "rb") as file:
        database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", _lines_of_fields(path, file))

    def fields_of(image_id: str) -> list[dict]:
        found = database.execute("SELECT line FROM items WHERE image = ? ORDER BY rowid", (image_id,)).fetchall()
        return [json.loads(line) for (line,) in found] or [{"fields": {}}]

    weakref.finalize(fields_of, database.close)
    return fields_of


def _is_caption(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_text, value))


def _lines_of_fields(path: pathlib.Path, file: Iterable[bytes]) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(bounded_lines(file), start=1):
        if line is None or line.strip():
            try:
                values = parse_object(line or b"")
            except ValueError:
                values = {}
            image_id, fields = values.get("image_id"), values.get("fields")
            own = {key: values[key] for key in ("name", "captions") if key in values}
            captions = own.get("captions", [])
            is_fine = is_text(image_id) and isinstance(fields, dict) and is_text(own.get("name", ""))
            is_fine = is_fine and isinstance(captions, list) and all(map(_is_caption, captions))
            if not (is_fine and all(isinstance(text, str) for text in fields.values())):
                expected = '{"image_id": text, "fields": {name: text, …}}'
                raise UserError(f"{path}, line {number}: expected a line {expected}; correct it, or make it again.")
            own["fields"] = {name: text for name, text in fields.items() if text}
            yield image_id, own.get("name", ""), json.dumps(own)


# The table.

SCHEMA = """
CREATE TABLE items (row INTEGER PRIMARY KEY, name TEXT, path TEXT, offset INTEGER, language TEXT, content TEXT);
CREATE TABLE texts (item INTEGER, language TEXT, text TEXT);
CREATE TABLE fields (item INTEGER, name TEXT, value TEXT);
CREATE TABLE removed (row INTEGER PRIMARY KEY);
CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='trigram case_sensitive 1');
CREATE TABLE trigrams (term TEXT PRIMARY KEY, documents INTEGER) WITHOUT ROWID;
CREATE INDEX texts_of_items ON texts (item);
CREATE INDEX fields_of_items ON fields (item);
CREATE INDEX items_by_field ON fields (name, value, item);
"""
TOGETHER = 4096  # items that are in memory at a time
FEW = 50  # values of a field that are offered; one of more is taken for a text or a number
FEW_NUMBERS = 8  # different numbers that are offered one by one
MOST_POSTINGS, FEW_GRAMS = 50_000, 4  # places of trigrams that a question looks at; trigrams that it always asks
COMPARE = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
# Of a row of `words`: the item it is of, and the language of the caption, NULL for what is none.
OWNER = "iif(rowid & 1, rowid >> 1, (SELECT item FROM texts WHERE texts.rowid = words.rowid >> 1))"
LANGUAGE = "iif(rowid & 1, NULL, (SELECT language FROM texts WHERE texts.rowid = words.rowid >> 1))"


def write_items(path: str | os.PathLike, items: Iterable[Item]) -> sqlite3.Connection:
    """Writes a new file for `ItemTable`, ":memory:" for one that is in memory, and returns the connection to it.

    A file is not complete before the connection is closed: it needs a temporary name, see `files.whole`.
    """
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    if sqlite3.sqlite_version_info < (3, 34):
        raise UserError(f"SQLite {sqlite3.sqlite_version} has no trigrams: use a Python with SQLite 3.34 or newer.")
    database.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {SCHEMA} BEGIN")
    text, captions = "CAST(? AS TEXT)", 0  # bytes, because names of files may hold what is no UTF-8
    for row, item in enumerate(items):
        values = row, _utf8(item.name), _utf8(item.path), item.offset, _utf8(item.language), item.content
        database.execute(f"INSERT INTO items VALUES (?, {text}, {text}, ?, {text}, ?)", values)
        for table, pairs in (("texts", item.captions), ("fields", item.fields.items())):
            rows = ((row, _utf8(first), _utf8(second)) for first, second in pairs)
            database.executemany(f"INSERT INTO {table} VALUES (?, {text}, {text})", rows)
        # Captions by their own numbers, doubled; what else an item has between these.
        values = [value for value in item.fields.values() if "://" not in value]
        names = dict.fromkeys([os.path.splitext(os.path.basename(item.name))[0], item.name])
        documents = [(2 * row + 1, words.document([*names, *values]))]
        documents += [(2 * (captions + n), words.document([t])) for n, (_, t) in enumerate(item.captions, start=1)]
        captions += len(item.captions)
        database.executemany(
            f"INSERT INTO words (rowid, text) VALUES (?, {text})", ((n, _utf8(t)) for n, t in documents)
        )
    database.execute("COMMIT")
    # FTS5 counts the documents of a trigram one by one whenever it is asked: here it is done once.
    database.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, words, row)")
    database.execute("INSERT INTO trigrams SELECT term, doc FROM temp.vocabulary")
    database.execute("DROP TABLE temp.vocabulary")
    return database


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class ItemTable:
    """The items of an index, read when they are asked for, by any thread; closed when nothing refers to it.

    Every method raises `UserError`, one line, if the file is damaged.

    Args:
      source: a file that `write_items` made; several processes may read it while one removes rows. Or items.
    """

    def __init__(self, source: str | os.PathLike | Sequence[Item]):
        self._lock = threading.Lock()
        self._path = source if isinstance(source, (str, os.PathLike)) else "The index in memory"
        try:
            if isinstance(source, (str, os.PathLike)):
                # Not read-only: what a process that was killed while it removed rows has left is undone by the next.
                uri = f"{pathlib.Path(source).absolute().as_uri()}?mode=rw"
                self._database = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
            else:
                self._database = write_items(":memory:", source)
        except sqlite3.Error as error:
            raise self._problem(error) from None
        weakref.finalize(self, self._database.close)
        self._database.text_factory = lambda data: data.decode("utf-8", "surrogatepass")
        self._count = self._ask("SELECT ifnull(max(row), -1) + 1 FROM items")[0][0]

    def _problem(self, error: Exception) -> UserError:
        return UserError(f"{self._path} is damaged, or may not be read or written ({error}): make the index again.")

    def _ask(self, question: str, *values) -> list[tuple]:
        try:
            with self._lock:
                return self._database.execute(question, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._problem(error) from None

    def _each(self, question: str, *values) -> Iterator[tuple]:
        """Yields rows as far as they are asked for; nobody else asks meanwhile."""
        try:
            with self._lock:
                yield from self._database.execute(question, values)
        except sqlite3.Error as error:
            raise self._problem(error) from None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Item:
        return self.block(row, row + 1)[0]

    def __iter__(self) -> Iterator[Item]:
        for begin in range(0, self._count, TOGETHER):
            yield from self.block(begin, begin + TOGETHER)

    def block(self, begin: int, end: int) -> list[Item]:
        """Returns the items of the rows from `begin` to before `end`, in order."""
        of_rows = "WHERE item >= ? AND item < ? ORDER BY item, rowid", int(begin), int(end)
        captions, fields = collections.defaultdict(list), collections.defaultdict(dict)
        for row, language, text in self._ask(f"SELECT item, language, text FROM texts {of_rows[0]}", *of_rows[1:]):
            captions[row].append((language, text))
        for row, name, value in self._ask(f"SELECT item, name, value FROM fields {of_rows[0]}", *of_rows[1:]):
            fields[row][name] = value
        found = self._ask("SELECT * FROM items WHERE row >= ? AND row < ? ORDER BY row", *of_rows[1:])
        return [
            Item(name, path, offset, tuple(captions[row]), language, fields[row], content)
            for row, name, path, offset, language, content in found
        ]

    def names(self) -> Iterator[str]:
        """Yields what is shown of each row."""
        for begin in range(0, self._count, TOGETHER):
            rows = begin, begin + TOGETHER
            yield from (name for (name,) in self._ask("SELECT name FROM items WHERE row >= ? AND row < ?", *rows))

    def name(self, row: int) -> str:
        """Returns what is shown of a row."""
        return self._ask("SELECT name FROM items WHERE row = ?", int(row))[0][0]

    def rows_with(self, filters: Sequence[Filter]) -> np.ndarray:
        """Returns the rows, int64 [K] rising, that have one of the values wanted of every field that is named.

        Where a field is compared, its value is a number or a date on the right side of each bound.
        """
        wanted = collections.defaultdict(list)
        for name, value, operator in filters:
            wanted[name, operator].append(value)
        found = []
        for (name, operator), values in wanted.items():
            if operator != "=":
                rows, amounts = self.amounts(name)
                found += [np.sort(rows[COMPARE[operator](amounts, amount(value))]) for value in values]
                continue
            texts = ", ".join(["CAST(? AS TEXT)"] * len(values))
            question = f"SELECT item FROM fields WHERE name = CAST(? AS TEXT) AND value IN ({texts})"
            found.append(np.sort(_column(self._ask(question, _utf8(name), *map(_utf8, values)))))
        return functools.reduce(np.intersect1d, found) if found else np.arange(self._count)

    def amounts(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows, int64 [K], whose field is a number or a date, and `amount` of it, float64 [K]."""
        found = self._ask("SELECT item, value FROM fields WHERE name = CAST(? AS TEXT)", _utf8(name))
        known = [(row, number) for row, value in found if (number := amount(value)) is not None]
        return np.array([row for row, _ in known], np.int64), np.array([number for _, number in known], np.float64)

    def facets(self, rows: np.ndarray | None = None) -> dict[str, dict]:
        """Returns what the fields of rows, None for all, are: {"values": {value: count}} of few, frequent ones first.

        Of many numbers or dates {"least": text, "most": text}, of many words {}.
        """
        among = "" if rows is None else "WHERE item IN (SELECT value FROM json_each(?))"
        question = f"SELECT name, value, count(*) FROM fields {among} GROUP BY name, value"
        counts, ends = collections.defaultdict(dict), {}
        for name, value, count in self._each(question, *([] if rows is None else [json.dumps(rows.tolist())])):
            if len(counts[name]) <= FEW:
                counts[name][value] = count
            number = amount(value)
            if number is None or ends.get(name, 0) is None:
                ends[name] = None
            else:
                low, high = ends.get(name, ((number, value), (number, value)))
                ends[name] = min(low, (number, value)), max(high, (number, value))
        shown: dict[str, dict] = {}
        for name, values in counts.items():
            if ends[name] is not None and len(values) > FEW_NUMBERS:
                shown[name] = {"least": ends[name][0][1], "most": ends[name][1][1]}
            elif len(values) <= FEW:
                shown[name] = {"values": dict(sorted(values.items(), key=lambda item: -item[1]))}
            else:
                shown[name] = {}
        return shown

    def with_words(self, text: str) -> np.ndarray:
        """Returns the rows, int64 [K] rising, that hold these words somewhere, one after another."""
        phrase = words.quoted(f" {words.spread(text)} ")
        return np.unique(_column(self._ask(f"SELECT {OWNER} FROM words WHERE words MATCH ?", phrase)))

    def whole(self, text: str, hidden: str | None = None) -> np.ndarray:
        """Returns the rows, int64 [K] rising, of which a caption, the name or a value is the text and nothing more.

        `hidden`: a language whose captions do not count.
        """
        phrase = words.quoted(words.document([text]))
        question = f"SELECT {OWNER} FROM words WHERE words MATCH ? AND {LANGUAGE} IS NOT CAST(? AS TEXT)"
        return np.unique(_column(self._ask(question, phrase, _utf8(hidden) if hidden is not None else "-")))

    def by_words(
        self, text: str, count: int, allowed: np.ndarray | None = None, hidden: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows that share most with a question, by the BM25 of its trigrams; a row's best text counts.

        Args:
          text: any.
          count: of rows, at most.
          allowed: bool [N], the rows that may be found; None for all.
          hidden: a language whose captions are not searched.

        Returns:
          int64 rows [K], best first, and their float64 shares [K] in (0, 1]: what their BM25 is of that of a text of
          usual length that holds all trigrams of the question. Shares below a quarter of the best are left out.
        """
        asked = words.grams(text)
        if not asked:
            return np.zeros(0, np.int64), np.zeros(0)
        total = self._ask("SELECT ifnull(max(rowid), 0) FROM texts")[0][0] + self._count
        held = f"SELECT term, documents FROM trigrams WHERE term IN ({', '.join('?' * len(asked))})"
        of_terms = dict(self._ask(held, *asked))
        counts = np.array([of_terms.get(gram, 0) for gram in asked], np.float64)
        ideal = np.maximum(np.log((total - counts + 0.5) / (counts + 0.5)), 1e-6).sum()
        rare = np.argsort(counts, kind="stable")  # trigrams of nearly every text would cost most and tell least
        asked = [asked[n] for n in rare[: max(FEW_GRAMS, int(np.sum(np.cumsum(counts[rare]) <= MOST_POSTINGS)))]]
        found: dict[int, float] = {}
        question = f"SELECT {OWNER}, -rank FROM words WHERE words MATCH ? AND {LANGUAGE} IS NOT CAST(? AS TEXT)"
        values = " OR ".join(map(words.quoted, asked)), _utf8(hidden) if hidden is not None else "-"
        for row, score in self._each(f"{question} ORDER BY rank", *values):
            if row not in found and (allowed is None or allowed[row]):
                found[row] = min(1.0, score / ideal)
                if len(found) == count or found[row] < next(iter(found.values())) / 4:
                    break
        found = {row: share for row, share in found.items() if share >= max(found.values()) / 4}
        return np.array(list(found), np.int64), np.array(list(found.values()))

    def caption_rows(self) -> np.ndarray:
        """Returns the row that each caption is of, int64 [T] rising."""
        return _column(self._ask("SELECT item FROM texts ORDER BY rowid"))

    def caption_texts(self, begin: int, end: int) -> list[tuple[str, str]]:
        """Returns (language, text) of the captions from number `begin` to before `end`."""
        return self._ask("SELECT language, text FROM texts WHERE rowid > ? AND rowid <= ? ORDER BY rowid", begin, end)

    def captions_in(self, language: str) -> np.ndarray:
        """Returns the numbers of the captions in a language, int64 [K] rising."""
        question = "SELECT rowid - 1 FROM texts WHERE language = CAST(? AS TEXT) ORDER BY rowid"
        return _column(self._ask(question, _utf8(language)))

    def captions(self, count: int) -> dict[str, list[str]]:
        """Returns up to `count` different captions of each language, always the same ones."""
        found = collections.defaultdict(list)
        shuffled = "row_number() OVER (PARTITION BY language ORDER BY min(rowid) * 2654435761 % 4294967296)"
        texts = f"SELECT language, text, {shuffled} AS place FROM texts GROUP BY language, text"
        for language, text in self._ask(f"SELECT language, text FROM ({texts}) WHERE place <= ?", count):
            found[language].append(text)
        return dict(found)

    def rows_by_language(self) -> dict[str, np.ndarray]:
        """Returns the rows of each language, int64 [K] rising."""
        languages = self._ask("SELECT DISTINCT language FROM items")
        question = "SELECT row FROM items WHERE language = CAST(? AS TEXT) ORDER BY row"
        return {language: _column(self._ask(question, _utf8(language))) for (language,) in languages}

    def removed(self) -> np.ndarray:
        """Returns the rows that no search finds, int64 [K] rising."""
        return _column(self._ask("SELECT row FROM removed ORDER BY row"))

    def remove(self, rows: np.ndarray) -> None:
        """Lets no search find these rows, int64 [K]; a process that is killed meanwhile has removed all or none."""
        self._ask("INSERT OR IGNORE INTO removed SELECT value FROM json_each(?)", json.dumps(rows.tolist()))


def _column(found: list[tuple]) -> np.ndarray:
    return np.fromiter((value for (value,) in found), np.int64, len(found))


class Names(Sequence[str]):
    """The names of the items of a table: `names[row]`."""

    def __init__(self, items: ItemTable):
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> str:
        return self._items.name(range(len(self))[row])  # IndexError outside; negative rows count from the end
