"""Products of somebody's own table: its rows, brought together into the entries that a search finds.

Rows of one product, its variations and translations come together, and each picture of a product becomes an `Entry`.
Every row is used or reported.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from mural_lite.errors import UserError
from mural_lite.pictures import BadImage
from mural_lite.skipped import Tally
from mural_search.items import SEVERAL
from mural_search.tables.product_table import ID, ProductTable, RowContent, Unusable
from mural_search.tables.table_columns import GROUPS, SAMPLE, Columns, plain
from mural_search.tables.table_pictures import Pictures
from mural_search.tables.table_rows import Row


class RowTally(Tally):
    """The tally of a table's rows; `written` counts the rows that are used."""

    THINGS: ClassVar[str] = "rows"
    FLAG: ClassVar[str] = ""

    def leave_out(self, problem: str, location: str, count: int = 1) -> None:
        """Counts an unwanted row, and keeps its problem and place, as `skip` does for an unusable row."""
        super().leave_out(problem, location, count)
        self.places.append((problem, " ".join(location.split())))


LONGEST_NAME = 120  # characters of a picture's name in a message
VARIATIONS = "variations"  # the field with the ids of a product's variations
DUPLICATE = "row that repeats an earlier one: same picture, caption and language"


@dataclasses.dataclass
class Entry:
    """One thing to find: a picture of a product, or a product without a picture.

    Attributes:
      product: the product's id, "" for a picture without a product.
      name: a name that no other entry has.
      file: the picture's file; `None` for a product without a picture.
      captions: {(language, text): (number of its row, from 0, whether the language is guessed)}.
      fields: {name: values}.
    """

    product: str
    name: str
    file: pathlib.Path | None
    captions: dict[tuple[str, str], tuple[int, bool]] = dataclasses.field(default_factory=dict)
    fields: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def add(self, number: int, content: RowContent) -> bool:
        """Adds the content of the row `number`; returns whether the entry lacked any of it."""
        size_before = self._size()
        for language, text, is_guessed in content.captions:
            self.captions.setdefault((language, text), (number, is_guessed))
        for name, values in content.fields.items():  # a product may have several rows
            self.fields[name] = list(dict.fromkeys([*self.fields.get(name, ()), *values]))  # each value once
        return self._size() > size_before

    def _size(self) -> int:
        """Returns the number of captions and of values of fields."""
        return len(self.captions) + sum(map(len, self.fields.values()))

    def digest(self) -> str:
        """Returns a hash of the entry's product, captions, fields and the name of its file, 24 hexadecimal digits."""
        values = [self.product, self.file and self.file.name, list(self.captions), self.fields]
        content = json.dumps(values).encode()
        return hashlib.blake2b(content, digest_size=12).hexdigest()


def _without_lists(values: Sequence[str]) -> list[str]:
    """Returns the values of a field without the values that list other values: ["36", "37"] for ["36, 37", "36", "37"].

    A product's row lists its sizes, and the rows of its variations have a size each.
    """
    other_values = []
    for value in values:
        parts = value.split(SEVERAL)
        is_list = len(parts) > 1 and set(parts) <= set(values)
        if not is_list:
            other_values.append(value)
    return other_values


def read(table: ProductTable, tally: RowTally, keep: pathlib.Path, bar=None) -> list[Entry]:
    """Returns the entries of a table, in the order of its rows, and writes pictures from cells into files.

    Args:
      table: the table; its guesses of languages may be estimated again, see `ProductTable.with_languages`.
      tally: counts each row as used, unwanted or unusable.
      keep: the folder for pictures that lie in no file of their own; it is made with the first picture.
      bar: a bar of progress, whose `update` is called for each row; None for no bar.

    Raises:
      UserError: no row can be used, or more rows are unusable than the request allows.
    """
    for reason, paths in table.table.unread_files.items():
        for path in paths:
            tally.leave_out(reason, str(path))
    rows = list(_wanted_rows(table, tally, keep, bar))
    has_further_rows = len(rows) + tally.read > SAMPLE  # so far `tally` has counted only the other rows
    contents = table.with_languages([content for content, _ in rows], has_further_rows)
    tally.places += table.table.inside.problems
    entries = _entries_of(contents, [files for _, files in rows], table.columns, tally)
    _share_within_products(entries.by_product)
    for entry in entries.by_key.values():
        entry.fields = {name: _without_lists(values) for name, values in entry.fields.items()}
    tally.check(table.request.max_skipped_fraction)
    if not entries.by_key:
        raise UserError(f"{table.request.table}: no row can be used ({'; '.join(tally.skipped.lines())}).")
    return list(entries.by_key.values())


def _entries_of(
    contents: Sequence[RowContent],
    files_of_rows: Sequence[Mapping[pathlib.Path, str]],
    columns: Columns,
    tally: RowTally,
) -> _Entries:
    """Returns the entries of wanted rows, and counts each row as used, unusable or repeated.

    Args:
      contents: the content of each row.
      files_of_rows: for each row {file of a picture: the picture's name}.
      columns: the roles of the table's columns.
      tally: counts the rows.
    """
    products = _products_of(contents, columns)
    entries = _Entries()
    # Rows with pictures come first, because rows without, of translations or sizes, add to all pictures of a product.
    with_pictures = [number for number, files in enumerate(files_of_rows) if files]
    without_pictures = [number for number, files in enumerate(files_of_rows) if not files]
    for number in with_pictures + without_pictures:
        files = files_of_rows[number]
        product = products[number]
        content = _content_for_product(contents[number], product, entries.by_product[product], columns)
        if not (files or product or content.captions):
            tally.skip("row without a picture, an id or words", content.place)
        elif entries.add(number, content, product, files):
            tally.written += 1
        else:
            tally.leave_out(DUPLICATE, content.place)
    return entries


class _Entries:
    """The entries of a table, in the order in which they are made.

    Attributes:
      by_key: {(product, file, "") or (product, None, name): entry}.
      by_product: {product: its entries}, with "" for entries without a product.
    """

    def __init__(self):
        self.by_key: dict[tuple, Entry] = {}
        self.by_product: dict[str, list[Entry]] = collections.defaultdict(list)
        self._counts: collections.Counter = collections.Counter()  # how often each name was wanted
        self._names: set[str] = set()  # the names of all entries

    def add(self, number: int, content: RowContent, product: str, files: Mapping[pathlib.Path, str]) -> bool:
        """Adds a row to the entries of its pictures; returns whether these lacked any of it.

        A row without pictures is added to all entries of its product, or gets an entry of its own, which is named by
        the product or else by the row's first caption.

        Args:
          number: the number of the row, from 0.
          content: the content of the row.
          product: the id of the row's product, "" without a product.
          files: {file of a picture: the picture's name} of the row.
        """
        count_before = len(self.by_key)
        if files:
            entries = [self._find_or_make(product, file, product or name) for file, name in files.items()]
        elif product and self.by_product[product]:
            entries = self.by_product[product]
        elif product:
            entries = [self._find_or_make(product, None, product)]
        else:
            _, first_caption, _ = content.captions[0]
            entries = [self._find_or_make(product, None, first_caption)]
        are_new = [entry.add(number, content) for entry in entries]
        return any(are_new) or len(self.by_key) > count_before

    def _find_or_make(self, product: str, file: pathlib.Path | None, name: str) -> Entry:
        """Returns the entry of a product's picture, or of a name without a picture; makes it if it is not there.

        The name of a new entry is `name`, or `name` with a number.
        """
        key = (product, file, "") if file else (product, None, name)
        if key not in self.by_key:
            self.by_key[key] = Entry(product, self._new_name(name), file)
            self.by_product[product].append(self.by_key[key])
        return self.by_key[key]

    def _new_name(self, name: str) -> str:
        """Returns a name that no entry has: `name` itself, "A", or the first free name among "A#2", "A#3", …"""
        while True:
            self._counts[name] += 1
            count = self._counts[name]
            numbered = name if count == 1 else f"{name}#{count}"
            if numbered not in self._names:
                self._names.add(numbered)
                return numbered


def _wanted_rows(
    table: ProductTable, tally: RowTally, keep: pathlib.Path, bar
) -> Iterator[tuple[RowContent, dict[pathlib.Path, str]]]:
    """Yields (content without pictures, {file of a picture: the picture's name}) of each wanted row.

    `keep`, into which pictures are written, and `bar` are as in `read`; `tally` counts the other rows.
    """
    finder = _FileFinder(table.pictures, keep)
    selection = _Selection(table)
    for row in table.table.rows(tally.skip):
        if bar is not None:
            bar.update()
        try:
            content = table.content_of(row)
        except Unusable as error:
            tally.skip(error.problem, _place(row, error.value))
            continue
        reason = selection.reason_against(row, content)
        if reason:
            tally.leave_out(reason, row.place)
            continue
        names, problems = finder.find(content.pictures)
        if problems and not names:
            problem, picture_name = problems[0]
            tally.skip(problem, _place(row, picture_name))
            continue
        for problem, _ in problems:
            tally.places.append((f"picture of a row that is used with others: {problem}", row.place))
        yield content._replace(pictures=()), names  # bytes of pictures would fill the memory


class _FileFinder:
    """Finds the files of pictures; pictures without a file of their own are written into the folder `keep`."""

    def __init__(self, pictures: Pictures, keep: pathlib.Path):
        self._find = functools.partial(_file_of, pictures, keep)
        self._find_by_name = functools.cache(self._find)  # each name is looked for once; bytes would fill the memory

    def find(self, row_pictures: Sequence[str | bytes]) -> tuple[dict[pathlib.Path, str], list[tuple[str, str]]]:
        """Returns ({file: the picture's name} of a row's pictures, (problem, name) of pictures without a file).

        `row_pictures`: the names, addresses or bytes of the pictures, as `Pictures.file` takes them.
        """
        names: dict[pathlib.Path, str] = {}
        problems = []
        for picture in row_pictures:
            if isinstance(picture, bytes):  # always has a file, which is written now
                file, _ = self._find(picture)
                names.setdefault(file, file.name)
                continue
            file, problem = self._find_by_name(picture)
            if file is None:
                problems.append((problem, picture))
            else:
                names.setdefault(file, picture)
        return names, problems


def _place(row: Row, value: str) -> str:
    """Returns the place of a row for a message: "hats.csv:3", or "hats.csv:3 (hat.jpg)" with a wrong value."""
    if not value:
        return row.place
    return f"{row.place} ({value[:LONGEST_NAME]})"


class _Selection:
    """Says which rows of a table are wanted: further rows and variations of an unwanted product are unwanted, too."""

    def __init__(self, table: ProductTable):
        self._table = table
        self._reasons = {}  # {name of a product: why its rows are not wanted, or ""}

    def reason_against(self, row: Row, content: RowContent) -> str:
        """Returns why a row is not wanted, "" if it is, and keeps the answer for later rows of its product.

        To be called once for each row, in the order of the table.
        """
        reason = self._table.reason_against(row.values)
        if not reason:  # perhaps an earlier row of the product is not wanted
            reason = _first_of(self._reasons, content.names[:1])  # the first name is the product's id
        if not reason:
            reason = _first_of(self._reasons, _names_of_parent(content, self._table.columns))
        if not content.parent:  # a single unwanted variation does not make its product unwanted
            for name in content.names:
                self._reasons[name] = self._reasons.get(name) or reason
        return reason


def _names_of_parent(content: RowContent, columns: Columns) -> Sequence[str]:
    """Returns the names that a row may mean by its parent, the likeliest first.

    For example, "id:10" is an id, and "10" is an article number or else an id, unless the column is called "parent id".
    For a row without a parent the only name is "", which no product has.
    """
    parent = content.parent
    if not parent or parent.startswith(ID):
        return (parent,)
    if plain(columns.parent) == "parentid":
        return f"{ID}{parent}", parent
    return parent, f"{ID}{parent}"


def _first_of(values: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns the value of the first name that is a key of `values`, "" if no name is."""
    for name in names:
        if name in values:
            return values[name]
    return ""


def _file_of(pictures: Pictures, keep: pathlib.Path, value: str | bytes) -> tuple[pathlib.Path | None, str]:
    """Returns (file, "") of a picture, or (`None`, why it has no file); writes files as `Pictures.file` does."""
    try:
        file = pictures.file(value, keep)
    except BadImage as error:
        return None, str(error)
    if file is None:
        return None, "picture that is not there"
    return file, ""


def _products_of(contents: Sequence[RowContent], columns: Columns) -> list[str]:
    """Returns the id of each row's product, "" without a product; for a variation it is the parent's id."""
    product_of: dict[str, str] = {}  # {each name of a product: its id}
    for content in reversed(contents):  # the first row with a name wins
        product_of.update(dict.fromkeys(content.names, content.product))
    has_groups = plain(columns.parent) in GROUPS  # whose parents need no row of their own
    products = []
    for content in contents:
        group = content.parent.removeprefix(ID) if has_groups else ""
        parent_product = _first_of(product_of, _names_of_parent(content, columns))
        products.append(parent_product or group or content.product)
    return products


def _content_for_product(content: RowContent, product: str, entries: Sequence[Entry], columns: Columns) -> RowContent:
    """Returns the content that a row adds to its product: the row's own, changed if the row is a variation.

    Captions of a variation that begin with a caption of the product are dropped: they only add a size. The variation's
    id goes into the field `VARIATIONS`, and the product's id takes its place.

    Args:
      content: the content of the row.
      product: the id of the row's product.
      entries: the entries of this product so far.
      columns: the roles of the table's columns.
    """
    if content.product == product:
        return content
    product_captions: tuple[str, ...] = ()
    for entry in entries:
        product_captions += tuple(text for _, text in entry.captions)
    captions = []
    for language, text, is_guessed in content.captions:
        if not text.startswith(product_captions):
            captions.append((language, text, is_guessed))
    fields = dict(content.fields)
    if content.product:
        fields[VARIATIONS] = (content.product,)
    fields[columns.identity] = (product,)
    return content._replace(captions=captions, fields=fields)


def _share_within_products(by_product: Mapping[str, Sequence[Entry]]) -> None:
    """Adds the fields that an entry lacks, and captions to an entry without captions, from its product's other entries.

    Shops often describe a product in its first row, and name only a file in the rows of its further pictures.

    Args:
      by_product: {product: its entries}; the entries are changed.
    """
    for product, entries in by_product.items():
        if not product or len(entries) < 2:
            continue
        captions: dict[tuple[str, str], tuple[int, bool]] = {}
        fields: dict[str, list[str]] = {}
        for entry in reversed(entries):  # the first entry comes last, because its values win where entries differ
            captions.update(entry.captions)
            fields.update(entry.fields)
        row_numbers = {caption: number for caption, (number, _) in captions.items()}
        in_table_order = sorted(captions, key=row_numbers.get)
        for entry in entries:
            if not entry.captions:
                entry.captions = {caption: captions[caption] for caption in in_table_order}
            entry.fields = {**fields, **entry.fields}


class LanguageCounts(NamedTuple):
    """Counts of a language: its captions, the captions among them whose language is guessed, and captioned entries."""

    captions: int
    guessed: int
    pictures: int


def languages_of(entries: Sequence[Entry]) -> dict[str, LanguageCounts]:
    """Returns {BCP 47 tag: counts} of the captions' languages, the most frequent first."""
    captions, guesses, pictures = (collections.Counter() for _ in LanguageCounts._fields)  # {language: count} each
    for entry in entries:
        for (language, _), (_, is_guessed) in entry.captions.items():
            captions[language] += 1
            if is_guessed:
                guesses[language] += 1
        pictures.update({language for language, _ in entry.captions})
    return {tag: LanguageCounts(count, guesses[tag], pictures[tag]) for tag, count in captions.most_common()}
