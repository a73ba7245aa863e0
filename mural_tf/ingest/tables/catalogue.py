"""A data set from somebody's own table of pictures and captions: `python -m mural_tf catalogue`.

First the table is understood (`understand`): its form (`own_tables.open_table`), what its columns are
(`table_columns.find_columns`) and where its pictures lie, which can be shown before anything is done. Then
`make_data_set` reads it once (`fill`): each row's pictures and captions go into a database (`Store`) beside the
records, where equal pictures meet by a hash of their content. From there come one record for each picture, with all its
captions; translation pairs; and splits by product (`Writer`). Every row is used or reported: what is read, used,
skipped and left out is counted in rows.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import html
import itertools
import json
import os
import pathlib
import re
import shlex
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

import google_crc32c
from PIL import Image

from mural_tf.data import tfrecord
from mural_tf.data.dataset_folder import DESCRIPTION, build_folder, counts_of
from mural_tf.data.pictures import ENDINGS, BadImage, open_image, path_below, read_file, turned
from mural_tf.data.record_format import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair, parse_record
from mural_tf.data.skipped import Tally, check_fraction
from mural_tf.errors import UserError
from mural_tf.files import as_path, json_field, open_path, read_json, write_whole
from mural_tf.hashes import text_hash
from mural_tf.ingest.filters import usable_bytes
from mural_tf.ingest.source import known_language, language_tag
from mural_tf.ingest.sources.img2dataset import DownloadedImages, is_download
from mural_tf.ingest.tables.own_tables import (
    DOWNLOADS,
    PICTURES,
    OwnTable,
    Row,
    Value,
    language_of_caption,
    names_picture,
    open_table,
    texts_of,
)
from mural_tf.ingest.tables.table_columns import SAMPLE, Columns, Guess, find_columns, language_named, parse_choices
from mural_tf.progress import tell, tqdm
from mural_tf.sqlite import sqlite3
from mural_tf.text_files import Problem, clean, refuse

FORMAT = 2  # raised when the same table would give other records than before
NAME = "catalogue"
FIELDS, SKIPPED = "fields.jsonl", "skipped.tsv"
HASHES = "hashes.jsonl"  # [hash of a picture's file, id of its record]: what is there already need not be made again
WITHOUT_CAPTIONS = "uncaptioned"  # the split of pictures that can be found, and that nothing is learned from


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """What the user says of a table.

    Attributes:
      table: a file, files alike (a pattern) or a folder.
      captions: "names": those of a folder of pictures are the names of its files, where no text lies beside them.
      images: folder of the pictures, or what img2dataset downloaded; by default the table's own folder.
      columns: what is what, see `table_columns.parse_choices`.
      language: of captions that name none; "": it is guessed.
      encoding: of text; "": it is found.
      image_size: pictures whose shorter side is longer are shrunk to it, in pixels; 0 keeps them.
      max_skipped_fraction: of the rows; above it nothing is made.
    """

    table: str
    images: str = ""
    columns: Sequence[str] = ()
    language: str = ""
    encoding: str = ""
    captions: str = ""
    image_size: int = 512
    max_skipped_fraction: float = 0.5

    def __post_init__(self):
        check_fraction(self.max_skipped_fraction, "max_skipped_fraction")


class Pictures:
    """The pictures of a table: files by name below a folder, downloads by address, or what the table itself holds."""

    def __init__(self, folder: pathlib.Path, downloads: DownloadedImages | None = None):
        self.folder, self._downloads = folder, downloads
        self._places: dict[int, tuple[int, int, int]] | None = None
        self._by_name: dict[str, pathlib.Path | None] | None = None

    @classmethod
    def of(cls, table: OwnTable, images: str) -> Pictures:
        """Returns those of `--images`, or those beside the table; raises `UserError` if there is no such folder."""
        folder = as_path(images) if images else table.folder
        if not folder.is_dir():
            raise UserError(f"--images={images}: there is no such folder.")
        named = table.kind != DOWNLOADS and is_download(folder)  # its own pictures come with its rows
        return cls(folder, DownloadedImages(folder) if named else None)

    def is_there(self, value: Value) -> bool:
        """Tells whether a value leads to a picture."""
        try:
            return any(self.read(one) is not None for one in _pictures_of(value))
        except BadImage:
            return False

    def read(self, value: str | bytes) -> bytes | None:
        """Returns the file that a value is or names, None if there is none; raises `BadImage` if it may not be read."""
        if isinstance(value, bytes):
            return value or None
        value = value.strip()
        if self._downloads is not None:
            return self._downloads.get(value, self)
        refused = None
        for name in _names(value, self.folder):
            try:
                return read_file(path_below(self.folder, name))
            except BadImage as error:
                refused = refused or error
            except (OSError, ValueError):
                continue
        found = self._named().get(_plain_stem(value))
        if found is None and refused is not None:
            raise refused
        try:
            return None if found is None else read_file(path_below(self.folder, str(found)))
        except OSError:
            return None

    def location(self, address: str) -> tuple[int, int, int] | None:
        """Returns (shard, offset, size) of a downloaded picture."""
        if self._places is None:
            self._places = {}
            for number in range(len(self._downloads.shards)):
                for name, offset, size in self._downloads.addresses(number):
                    self._places.setdefault(text_hash(name), (number, offset, size))
        return self._places.get(text_hash(address))

    def _named(self) -> Mapping[str, pathlib.Path | None]:
        """Name as `_plain_stem` makes it -> file; None where several have it."""
        if self._by_name is None:
            self._by_name = {}
            for path in self.folder.rglob("*"):
                if path.suffix.lower()[1:] in ENDINGS:
                    stem = _plain_stem(path.name)
                    self._by_name[stem] = None if stem in self._by_name else path.relative_to(self.folder)
        return self._by_name


def _names(value: str, folder: pathlib.Path) -> Iterator[str]:
    """Yields below which names a picture may lie in its folder, the likeliest first."""
    if "://" in value:
        with contextlib.suppress(ValueError):
            yield os.path.basename(unquote(urlsplit(value).path))
        return
    value = value.replace("\\", "/")
    if os.path.isabs(value):
        yield os.path.relpath(value, str(folder))
    else:
        yield value
    yield os.path.basename(value)


def _plain_stem(value: str) -> str:
    """Returns a picture's name without its ending, in lower case; some systems write é as two characters."""
    base = os.path.basename(value.replace("\\", "/"))
    stem, ending = os.path.splitext(base)
    return unicodedata.normalize("NFC", stem if ending.lower()[1:] in ENDINGS else base).casefold()


# Understanding a table.


class RowContent(NamedTuple):
    """What a row says.

    Attributes:
      pictures: as `Pictures.read` takes them.
      captions: (language, text, whether the language is guessed).
      product: "" where the row names none.
      fields: name -> value.
    """

    pictures: Sequence[str | bytes]
    captions: Sequence[tuple[str, str, bool]]
    product: str
    fields: Mapping[str, str]


class Unusable(Exception):
    """A row that cannot be used, because of a `kind` of problem; `value`: what is wrong, "" where nothing stands."""

    def __init__(self, kind: str, value: str = ""):
        super().__init__(kind)
        self.kind, self.value = kind, value


@dataclasses.dataclass
class Understood:
    """A table, what its columns are, and where its pictures lie.

    Attributes:
      guesses: column of captions -> the languages that are guessed for it.
      fields: names of further columns of the first rows.
      there: how many of the first pictures there are, in words.
      notes: what else was found in the first rows, in words.
    """

    request: TableRequest
    table: OwnTable
    columns: Columns
    pictures: Pictures
    guesses: Mapping[str, Guess]
    fields: Sequence[str]
    there: str = ""
    notes: Sequence[str] = ()

    def describe(self) -> str:
        """Returns in plain lines what was understood."""
        columns = self.columns
        guessed = "; ".join(guess.describe() for guess in self.guesses.values())
        said = " or ".join(filter(None, [columns.language and f"by {columns.language}", self.request.language]))
        named = [
            f"{name} ({language or said or guessed or 'no language'})" for name, language in columns.captions.items()
        ]
        at = f", files of {self.pictures.folder}; {self.there}" if self.table.kind != DOWNLOADS else ""
        lines = [
            self.table.describe(),
            f"  pictures: {columns.image}{at}",
            f"  captions: {', '.join(named) or self._without_captions()}",
            f"  language: {columns.language or 'no column'}",
            f"  id: {columns.identity or 'no column: a product is a picture'}",
            f"  fields: {', '.join(self.fields) or 'none'}",
            *(f"  {note}" for note in self.notes),
            "  If a column is something else: --columns=image=…,caption=…,caption.de=…,language=…,id=…, + joins names.",
        ]
        return "\n".join(lines)

    def _without_captions(self) -> str:
        if self.table.kind != PICTURES:
            return "none, pictures are found by what they show; --columns=caption=NAME names a column of them"
        hint = "none, pictures are found by what they show; --captions=names takes the names of the files"
        near = next((path for path in sorted(self.table.folder.iterdir()) if path.suffix.lower() in TABLES), None)
        return f"{hint}, `catalogue {near}` that table" if near else hint

    def identity(self) -> dict:
        """Returns what makes the data set this one, as JSON values."""
        # Where table and pictures lie is no difference.
        values = {name: getattr(self.request, name) for name in ("columns", "language", "encoding", "image_size")}
        values["captions_are"] = self.request.captions
        identity = {"name": NAME, "format": FORMAT, **values, "files": self.table.identity()}
        return json.loads(json.dumps(identity))

    def content_of(self, row: Row) -> RowContent:
        """Returns what a row says; raises `Unusable`."""
        columns, values = self.columns, row.values
        pictures = _pictures_of(values.get(columns.image, ()))
        fields = {name: _text(value) for name, value in values.items() if columns.is_field(name)}
        product = _text(values.get(columns.identity, "")) if columns.identity else ""
        if product:
            fields[columns.identity] = product
        return RowContent(
            pictures, self._captions(values), product, {name: text for name, text in fields.items() if text}
        )

    def _captions(self, values: Mapping[str, Value]) -> list[tuple[str, str, bool]]:
        found = []
        said = _text(values.get(self.columns.language, "")) if self.columns.language else ""
        for name, value in values.items():
            language = self.columns.caption_language(name)
            for text in () if language is None else filter(None, map(plain_text, texts_of(value))):
                tag, guessed = self._language(language, said, name, text)
                found.append((tag, text, guessed))
        return found

    def _language(self, of_column: str, said: str, name: str, text: str) -> tuple[str, bool]:
        """Returns the language of a caption and whether it is guessed."""
        if of_column or said or self.request.language:
            return of_column or _tag(said or self.request.language), False
        guess = self.guesses.get(name) or next(iter(self.guesses.values()), None)
        if guess is None:
            raise Unusable("caption without a language")
        return guess(text), True


def _tag(language: str) -> str:
    """Returns the BCP 47 tag of a code or an English name; raises `Unusable`."""
    found = known_language(language) or language_named(language)
    if not found:
        raise Unusable("unknown language", language)
    return found


def _text(value: Value) -> str:
    """Returns a value in one line, "" for what is no text."""
    return ", ".join(filter(None, map(plain_text, texts_of(value))))


_INLINE = "a|abbr|b|big|em|font|i|mark|s|small|span|strike|strong|sub|sup|u"
_BLOCKS = "br|dd|div|dl|dt|h[1-6]|hr|iframe|img|li|ol|p|pre|section|table|tbody|td|th|thead|tr|ul"
_HIDDEN = re.compile(r"<(script|style)\b.{0,4000}?</\1\s*>|<!--.{0,4000}?-->", re.I | re.S)
_TAG = re.compile(rf"</?(?:(?P<inline>{_INLINE})|{_BLOCKS})(?:\s[^<>]*)?/?>", re.I)
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.I)


def has_html(text: str) -> bool:
    """Tells whether a text holds tags or entities of HTML."""
    return ("<" in text or "&" in text) and any(pattern.search(text) for pattern in (_HIDDEN, _TAG, _ENTITY))


def plain_text(text: str) -> str:
    """Returns a text in one line, of HTML what a browser would show."""
    if has_html(text):
        text = _TAG.sub(lambda tag: "" if tag["inline"] else " ", _HIDDEN.sub(" ", text))
        text = html.unescape(text)
    return clean(text)


def _pictures_of(value: Value) -> Sequence[str | bytes]:
    """Returns the pictures of a value; a text may name several: "a.jpg|b.jpg"."""
    if isinstance(value, bytes):
        return (value,)
    return tuple(part for text in texts_of(value) for part in _divided(text))


def _divided(text: str) -> Sequence[str]:
    parts = [part for part in map(str.strip, re.split(r"[|;,\n]", text)) if part]
    return parts if len(parts) > 1 and all(map(names_picture, parts)) else (text,)


TABLES = (".csv", ".tsv", ".xlsx", ".jsonl")  # that may lie beside pictures
LOOKED_FOR = 50  # of the first rows: whether their pictures are there


def understand(request: TableRequest) -> Understood:
    """Looks at a table's first rows; raises `UserError` where they do not say enough."""
    if request.language and not language_named(request.language):
        language_tag(request.language)
    choices = parse_choices(request.columns)
    table = open_table(request.table, request.encoding, request.captions == "names")
    pictures = Pictures.of(table, request.images)
    rows = list(itertools.islice(table.rows(lambda *problem: None), SAMPLE))
    names = dict.fromkeys(name for row in rows for name in row.values)
    if table.kind == PICTURES and not choices:
        named = {name: language_of_caption(name) for name in names if name != "image"}
        columns = Columns("image", named, language_of_others=language_of_caption)
    else:
        columns = find_columns(rows, choices, pictures.is_there)
    found = Understood(request, table, columns, pictures, {}, [name for name in names if columns.is_field(name)])
    named = [row.values[columns.image] for row in rows[:LOOKED_FOR] if columns.image in row.values]
    found.there, found.notes = _there(pictures, named), _notes(columns, rows, names)
    if not request.language:
        found.guesses = _guesses(columns, rows)
    return found


def _there(pictures: Pictures, values: Sequence[Value]) -> str:
    """Returns how many of some pictures are there, and where others are, as far as the values say it."""
    count = sum(map(pictures.is_there, values))
    said = f"{count} of the first {len(values)} are there"
    names = [name for value in values for name in _pictures_of(value)[:1] if isinstance(name, str)]
    elsewhere = [os.path.dirname(name) for name in map(str.strip, names) if os.path.isfile(name)]
    if len(elsewhere) > count:
        folder = os.path.commonpath(elsewhere) if all(map(os.path.isabs, elsewhere)) else "."
        return f"{said}, with --images={shlex.quote(folder)} {len(elsewhere)} are"
    if count < len(values) and any("://" in name for name in names):
        return f"{said}; addresses are not fetched here: download them with img2dataset, then --images=ITS_FOLDER"
    return said


def _notes(columns: Columns, rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """Returns lines: columns of one name, HTML."""
    again = [name for name in names if re.fullmatch(r".+ \(\d+\)", name) and name.rpartition(" (")[0] in names]
    notes = [f"columns with the name of an earlier one, and their numbers: {', '.join(again)}"] if again else []
    with_html = sum(any(has_html(text) for value in row.values.values() for text in texts_of(value)) for row in rows)
    return [*notes, f"HTML in {with_html} of the first {len(rows)} rows is read as text"] if with_html else notes


def _guesses(columns: Columns, rows: Sequence[Row]) -> dict[str, Guess]:
    """Returns the guess for each column with captions whose language nothing says."""
    texts: dict[str, list[str]] = collections.defaultdict(list)
    for row in rows:
        if columns.language and row.values.get(columns.language):
            continue
        for name, value in row.values.items():
            for text in texts_of(value) if columns.caption_language(name) == "" else ():
                texts[name].append(plain_text(text))
    if texts:
        tell("Guessing the languages of captions …")
    return {name: Guess(some) for name, some in texts.items()}


# Reading it.


class RowTally(Tally):
    """What became of the rows; `written` are those that were used."""

    THINGS: ClassVar[str] = "rows"

    def leave_out(self, kind: str, place: str, count: int = 1) -> None:
        """Counts what is not wanted, and keeps its place as of what is skipped."""
        super().leave_out(kind, place, count)
        self.places.append((kind, " ".join(place.split())))


DUPLICATE = "row that repeats an earlier one: same picture, caption and language"
SEVERAL = "SELECT product FROM items WHERE product != '' GROUP BY product HAVING count(*) > 1"  # pictures
AT_ONCE = 64  # rows whose pictures are read side by side
_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE pictures (number INTEGER PRIMARY KEY, hash BLOB UNIQUE, image BLOB, name TEXT);
CREATE TABLE names (name BLOB PRIMARY KEY, picture INTEGER, problem TEXT) WITHOUT ROWID;
CREATE TABLE items (
  number INTEGER PRIMARY KEY, picture INTEGER, product TEXT, fields TEXT DEFAULT '{}', UNIQUE (picture, product)
);
CREATE INDEX items_of_products ON items (product);
CREATE TABLE captions (
  item INTEGER, language TEXT, text TEXT, row INTEGER, guessed INTEGER, UNIQUE (item, language, text)
);
"""


class Store:
    """What the rows so far say: on disk, because it may be more than the memory holds.

    An item is a picture of a product, or of rows that name none: products that share a picture are items of their own.
    """

    def __init__(self, path: pathlib.Path):
        self.database = sqlite3.connect(path)
        self.database.executescript(_TABLES)
        self.rows, self.recalled = 0, set()

    def close(self) -> None:
        """Lets go of the file."""
        self.database.close()

    def select(self, query: str, *values) -> Iterator[tuple]:
        """Yields rows of the database."""
        return self.database.execute(query, values)

    def named(self, name: bytes) -> tuple[int | None, str] | None:
        """Returns (number, problem) of the picture that was met under a name, None if there was none."""
        return next(self.select("SELECT picture, problem FROM names WHERE name = ?", name), None)

    def add_picture(self, name: bytes, shown: str, found: tuple[bytes, bytes] | str) -> None:
        """Keeps what `_load` found under a name, unless the picture is there already under another."""
        number, problem = None, found
        if not isinstance(found, str):
            self.select("INSERT OR IGNORE INTO pictures (hash, image) VALUES (?, ?)", *found)
            self.select("UPDATE pictures SET name = ? WHERE hash = ? AND name IS NULL", shown, found[0])
            ((number,),) = self.select("SELECT number FROM pictures WHERE hash = ?", found[0])
            problem = ""
        self.select("INSERT INTO names VALUES (?, ?, ?)", name, number, problem)

    def recall(self, data: pathlib.Path, image_size: int) -> None:
        """Takes the pictures of an earlier state of the data set, if there is one of pictures of this size."""
        from mural_tf.data import records

        description = read_json(data / DESCRIPTION) if (data / HASHES).is_file() else {}
        if (description.get("format"), description.get("image_size")) != (FORMAT, image_size):
            return
        lines = map(json.loads, (data / HASHES).read_text("utf-8").splitlines())
        hashes = {name: bytes.fromhex(found) for found, name in lines}
        for split in json_field(description, "counts.image_text", dict, data / DESCRIPTION):
            for record in records.read_records(data, IMAGE_TEXT, split):
                if record.image_id in hashes:
                    values = hashes[record.image_id], record.image
                    self.select("INSERT OR IGNORE INTO pictures (hash, image) VALUES (?, ?)", *values)
        self.recalled = set(hashes.values())

    def add_row(self, pictures: Iterable[int], content: RowContent) -> bool:
        """Keeps what a row says of its pictures; tells whether that was anything new."""
        self.rows += 1
        news = 0
        for picture in pictures:
            key = picture, content.product
            news += self.select("INSERT OR IGNORE INTO items (picture, product) VALUES (?, ?)", *key).rowcount
            ((item, known),) = self.select("SELECT number, fields FROM items WHERE picture = ? AND product = ?", *key)
            fields = json.loads(known)
            for name, value in content.fields.items():  # a product may have several rows
                fields[name] = list(dict.fromkeys([*fields.get(name, ()), value]))
            news += self._set_fields(item, known, fields)
            for language, text, guessed in content.captions:
                values = (item, language, text, self.rows, guessed)
                news += self.select("INSERT OR IGNORE INTO captions VALUES (?, ?, ?, ?, ?)", *values).rowcount
        return news > 0

    def _set_fields(self, item: int, known: str, fields: Mapping) -> bool:
        text = json.dumps(fields, ensure_ascii=False)
        if text != known:
            self.select("UPDATE items SET fields = ? WHERE number = ?", text, item)
        return text != known

    def pictures_of(self, product: str) -> list[int]:
        """Returns the pictures of a product's rows so far."""
        found = self.select("SELECT picture FROM items WHERE product = ? AND product != '' ORDER BY number", product)
        return [number for (number,) in found]

    def complete(self) -> None:
        """Gives a product's further pictures, of rows that say nothing else, its captions and fields."""
        self.select(
            "INSERT OR IGNORE INTO captions SELECT items.number, language, text, row, guessed FROM items "
            "JOIN items AS others USING (product) JOIN captions ON item = others.number "
            "WHERE product != '' AND items.number NOT IN (SELECT item FROM captions) ORDER BY captions.rowid"
        )
        for (product,) in self.select(SEVERAL).fetchall():
            rows = self.select("SELECT number, fields FROM items WHERE product = ? ORDER BY number", product).fetchall()
            together: dict[str, list[str]] = {}
            for _, known in rows:
                together = {**json.loads(known), **together}
            for item, known in rows:
                self._set_fields(item, known, {**together, **json.loads(known)})


def _load(
    pictures: Pictures, image_size: int, recalled: Collection[bytes], value: str | bytes
) -> tuple[bytes, bytes] | str:
    """Returns the hash of a picture's file and the picture as a record holds it, or why it cannot be used."""
    try:
        data = pictures.read(value)
        if data is None:
            return "picture that is not there"
        if _hash(data) in recalled:
            return _hash(data), b""
        image = usable_bytes(data, open_image(data), image_size)
        if image is data:  # what has been encoded again does decode
            opened = open_image(data)
            opened.draft("L", (32, 32))
            turned(opened)
    except (BadImage, OSError, Image.DecompressionBombError) as error:
        return str(error) if isinstance(error, BadImage) else "picture that cannot be read"
    return _hash(data), image


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def fill(understood: Understood, store: Store, tally: RowTally, bar: tqdm) -> None:
    """Reads the table into the store; raises `UserError` if too many rows are unusable."""
    load = functools.partial(_load, understood.pictures, understood.request.image_size, store.recalled)
    with concurrent.futures.ThreadPoolExecutor(max(4, os.cpu_count() or 1)) as pool:
        rows = understood.table.rows(tally.skip)
        while block := list(itertools.islice(rows, AT_ONCE)):
            contents = list(_contents(understood, block, tally.skip))
            values = {_name(value): value for _, content in contents for value in content.pictures}
            new = {name: value for name, value in values.items() if store.named(name) is None}
            loaded = pool.map(load, new.values())
            for (name, value), found in zip(new.items(), loaded):
                store.add_picture(name, value.strip() if isinstance(value, str) else "", found)
            for place, content in contents:
                _add(store, place, content, tally)
            bar.update(tally.read - bar.n)
    store.complete()
    tally.check(understood.request.max_skipped_fraction)
    if not tally.written:
        raise UserError(f"{understood.request.table}: no row can be used ({'; '.join(tally.skipped.lines())}).")


def _contents(understood: Understood, rows: Iterable[Row], on_problem: Problem) -> Iterator[tuple[str, RowContent]]:
    for row in rows:
        try:
            yield row.place, understood.content_of(row)
        except Unusable as error:
            on_problem(error.kind, f"{row.place} ({error.value})" if error.value else row.place)


def _name(value: str | bytes) -> bytes:
    return _hash(value if isinstance(value, bytes) else f"name\t{value.strip()}".encode())


def _add(store: Store, place: str, content: RowContent, tally: RowTally) -> None:
    """Keeps what a row says, and counts what became of it."""
    found = [store.named(_name(value)) for value in content.pictures]
    numbers = list(dict.fromkeys(number for number, _ in found if number is not None))
    numbers = numbers if content.pictures else store.pictures_of(content.product)
    if not numbers and not content.pictures:
        tally.skip("row without a picture", place)
    elif not numbers:
        value = next((value for value in content.pictures if isinstance(value, str)), "")
        tally.skip(found[0][1], f"{place} ({value})" if value else place)
    elif store.add_row(numbers, content):
        tally.written += 1
        tally.places += [(f"picture of a row that is used with others: {kind}", place) for _, kind in found if kind]
    else:
        tally.leave_out(DUPLICATE, place)


# Making records of it.


@dataclasses.dataclass
class Group:
    """The pictures of one product, or of products that share one."""

    key: int  # in whose order groups are dealt out
    pictures: list[int]


def find_groups(store: Store) -> list[Group]:
    """Returns the products with their pictures, in an order that only their names decide."""
    leader: dict[int, int] = {}

    def find(number: int) -> int:
        while leader.setdefault(number, number) != number:
            leader[number] = number = leader[leader[number]]
        return number

    names: dict[int, int] = {}
    for number, digest in store.select("SELECT number, hash FROM pictures WHERE number IN (SELECT picture FROM items)"):
        names[number] = int.from_bytes(digest[:8], "little")
    last = (None, 0)
    for product, number in store.select("SELECT product, picture FROM items WHERE product != '' ORDER BY product"):
        names[number] = min(names[number], text_hash(product))
        if product == last[0]:
            leader[find(number)] = find(last[1])
        last = (product, number)
    groups: dict[int, Group] = {}
    for number, key in sorted(names.items()):
        group = groups.setdefault(find(number), Group(key, []))
        group.key = min(group.key, key)
        group.pictures.append(number)
    return sorted(groups.values(), key=lambda group: (group.key, group.pictures))


LARGEST_SPLIT, SHARE = 1000, 0.1  # products in dev, and in test


def held_out(count: int) -> int:
    """Returns how many of `count` products go to dev, and as many to test: a tenth, of few products a fifth."""
    return min(LARGEST_SPLIT, max(round(SHARE * count), min(50, count // 5), int(count > 2)))


class Writer:
    """Writes records, translation pairs and fields of what is in a store, in the order of its groups."""

    def __init__(self, store: Store, folder: pathlib.Path, known: Collection[str] = ()):
        self.store, self.folder, self.known = store, folder, known
        self._names: collections.Counter = collections.Counter()
        self._ids: dict[int, str] = {}
        counts = store.select(
            "SELECT language, count(*) FROM captions GROUP BY language ORDER BY count(*) DESC, language"
        )
        order = [language for language, _ in counts]
        self._rank = {language: place for place, language in enumerate(sorted(order, key=lambda tag: tag != "en"))}

    def write(self) -> None:
        """Writes everything."""
        from mural_tf.data.records import write_records  # with TensorFlow

        groups = find_groups(self.store)
        held = held_out(len(groups))
        groups = sorted(groups, key=self._is_known)
        free = min(2 * held, sum(not self._is_known(group) for group in groups))
        parts = {"dev": groups[: (free + 1) // 2], "test": groups[(free + 1) // 2 : free], "train": groups[free:]}
        query = "SELECT DISTINCT picture FROM captions JOIN items ON number = item"
        captioned = {number for (number,) in self.store.select(query)}
        bare = []
        with (
            (self.folder / FIELDS).open("w", encoding="utf-8") as fields,
            (self.folder / HASHES).open("w", encoding="utf-8") as self._hashes,
        ):
            for split, of_split in parts.items():
                numbers = [number for group in of_split for number in group.pictures]
                bare += [number for number in numbers if number not in captioned]
                numbers = [number for number in numbers if number in captioned]
                if numbers:
                    write_records(self.folder, IMAGE_TEXT, split, self._records(numbers, fields), self._shards(numbers))
            if bare:
                records = self._records(bare, fields)
                write_records(self.folder, IMAGE_TEXT, WITHOUT_CAPTIONS, records, self._shards(bare))
        train = [number for group in parts["train"] for number in group.pictures if number in captioned]
        if any(True for _ in self._pairs(train)):
            write_records(self.folder, TEXT_PAIRS, "train", self._pairs(train))

    def _is_known(self, group: Group) -> bool:
        """Tells whether a model was trained on a picture of a group."""
        query = "SELECT product, name FROM items JOIN pictures ON pictures.number = picture WHERE picture = ?"
        found = (names for number in group.pictures for names in self.store.select(query, number)) if self.known else ()
        return any(product in self.known or name in self.known for product, name in found)

    def _shards(self, numbers: Sequence[int]) -> int:
        """Returns into how many files records go: of some 64 MB."""
        query = "SELECT count(*), sum(length(image)) FROM pictures WHERE name IS NOT NULL"
        ((count, size),) = self.store.select(query)
        return max(1, round(size / max(1, count) * len(numbers) / 64_000_000))

    def _records(self, numbers: Sequence[int], fields) -> Iterator[ImageTextRecord]:
        for number in numbers:
            query = "SELECT image, name, hash FROM pictures WHERE number = ?"
            ((image, shown, digest),) = self.store.select(query, number)
            query = "SELECT number, product, fields FROM items WHERE picture = ? ORDER BY product = '', product"
            items = self.store.select(query, number).fetchall()
            names = [self._new_name(product or shown or f"picture {number}") for _, product, _ in items]
            name = self._ids[number] = names[0]
            self._hashes.write(json.dumps([digest.hex(), name]) + "\n")
            captions = self._captions(number)
            for item_name, (item, _, text) in zip(names, items):
                values = {field: ", ".join(texts) for field, texts in json.loads(text).items()}
                line = {"image_id": name, "fields": values}
                if len(items) > 1:  # products that share the picture
                    of_item = "SELECT language, text FROM captions WHERE item = ? ORDER BY rowid"
                    line |= {"name": item_name, "captions": self.store.select(of_item, item).fetchall()}
                if values or len(items) > 1:
                    fields.write(json.dumps(line, ensure_ascii=False) + "\n")
            texts, languages, groups = zip(*captions) if captions else ((), (), ())
            yield ImageTextRecord(name, image, texts, languages, [f"{name}/{group}" for group in groups])

    def _new_name(self, name: str) -> str:
        """Returns the name of a product, or else of a picture, with a number where that is taken."""
        key = text_hash(name)
        self._names[key] += 1
        return name if self._names[key] == 1 else f"{name}#{self._names[key]}"

    def _captions(self, number: int) -> list[Caption]:
        """Returns a picture's captions; a group says the same: those of a row, or all if each language has one."""
        query = (
            "SELECT text, language, min(row) FROM items JOIN captions ON item = items.number WHERE picture = ? "
            "GROUP BY language, text ORDER BY min(captions.rowid)"
        )
        found = [Caption(*values) for values in self.store.select(query, number)]
        rows: dict[int, list[str]] = {}
        for caption in found:
            rows.setdefault(caption.group, []).append(caption.language)
        if len({caption.language for caption in found}) == len(found):
            return [caption._replace(group=0) for caption in found]
        places = {row: place for place, row in enumerate(rows)}
        one_each = {row for row, languages in rows.items() if len(set(languages)) == len(languages)}
        return [
            caption._replace(group=places[caption.group] if caption.group in one_each else len(rows) + place)
            for place, caption in enumerate(found)
        ]

    def _pairs(self, numbers: Iterable[int]) -> Iterator[TextPair]:
        """Yields translations: of each group the captions, each with the one in the language that most have."""
        seen: set[int] = set()
        for number in numbers:
            for group in self._translations(number):
                first, *others = sorted(group, key=lambda caption: self._rank[caption.language])
                for other in others:
                    values = (first.text, first.language, other.text, other.language)
                    if (key := text_hash("\t".join(values))) not in seen:
                        seen.add(key)
                        yield TextPair(*values, self._ids.get(number, str(number)))

    def _translations(self, number: int) -> list[list[Caption]]:
        captions = self._captions(number)
        groups: dict[int, list[Caption]] = {}
        for caption in captions:
            groups.setdefault(caption.group, []).append(caption)
        several = [group for group in groups.values() if len(group) > 1]
        first_of_each = list({caption.language: caption for caption in reversed(captions)}.values())
        return several or ([first_of_each] if len(first_of_each) > 1 else [])


class Caption(NamedTuple):
    """A caption; those of one group say the same."""

    text: str
    language: str
    group: int


Examine = Callable[[Sequence[str]], Mapping[str, int]]


def make_data_set(
    understood: Understood,
    output: str | os.PathLike,
    examine: Examine | None = None,
    progress: bool = True,
    known: Callable[[], Collection[str]] = frozenset,
) -> pathlib.Path:
    """Makes the data set `output` of a table, unless it is there, and returns it.

    Args:
      understood: the table.
      output: a folder; it appears when it is complete, in place of one that was made of an earlier state of the table.
      examine: counts something in texts (what a model would cut off), to be added up for each language.
      progress: whether to show a bar.
      known: returns the ids of pictures that a model was trained on: their products stay in train.

    Raises:
      UserError: too many rows are unusable, `output` holds something else, or the disk is full.
    """

    def write(folder: pathlib.Path) -> dict:
        tally = RowTally()
        try:
            with contextlib.closing(Store(folder / "rows.sqlite")) as store:
                with tqdm(desc="Reading", unit=" rows", disable=not progress) as bar:
                    store.recall(as_path(output), understood.request.image_size)
                    fill(understood, store, tally, bar)
                Writer(store, folder, known()).write()
                languages = _languages(store, examine)
                product = understood.columns.identity if next(store.select(SEVERAL), None) else ""
        except sqlite3.Error as error:
            raise UserError(f"Cannot write to {output}: {error}. Check the free space, then run again.") from None
        (folder / "rows.sqlite").unlink()
        if tally.places:
            lines = "".join(f"{kind}\t{place}\n" for kind, place in tally.places)
            write_whole(folder / SKIPPED, lines)
        if not (folder / FIELDS).stat().st_size:
            (folder / FIELDS).unlink()
        files = [*sorted(folder.glob(f"{IMAGE_TEXT}/*")), *sorted(folder.glob(f"{TEXT_PAIRS}/*"))]
        shards = {f"{path.parent.name}/{path.name}": _counted(path) for path in files}
        rows = {"read": tally.read, "used": tally.written, "skipped": tally.skipped.total}
        rows["left_out"] = tally.left_out.total
        described = {"product": product, "rows": rows, "captions": languages, "shards": shards}
        return {**counts_of(shards), **tally.described(), **described}

    return build_folder(output, understood.identity(), write, follows=True)


def _counted(path: pathlib.Path) -> dict:
    """Returns what a description says of a file of records."""
    languages, records = collections.Counter(), 0
    for records, (_, serialized) in enumerate(tfrecord.read_all(path, refuse, open_path), start=1):
        record = parse_record(serialized, str(path), records - 1)
        is_image = isinstance(record, ImageTextRecord)
        languages.update(record.languages if is_image else [f"{record.language_a} {record.language_b}"])
    data = path.read_bytes()
    checksum = f"{google_crc32c.value(data):08x}"
    return {"bytes": len(data), "crc32c": checksum, "records": records, "languages": dict(sorted(languages.items()))}


def _languages(store: Store, examine: Examine | None) -> dict[str, dict[str, int]]:
    """Returns language -> captions, those whose language is guessed, pictures, and what `examine` counts."""
    of_pictures = "SELECT DISTINCT picture, language, text, guessed FROM captions JOIN items ON number = item"
    query = f"SELECT language, count(*), sum(guessed), count(DISTINCT picture) FROM ({of_pictures}) GROUP BY language"
    found = {}
    for language, captions, guessed, pictures in store.select(query).fetchall():
        counts: collections.Counter = collections.Counter()
        texts = (text for (text,) in store.select("SELECT text FROM captions WHERE language = ?", language))
        while examine is not None and (block := list(itertools.islice(texts, 4096))):
            counts.update(examine(block))
        found[language] = {"captions": captions, "guessed": int(guessed), "pictures": pictures, **counts}
    return found
