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
    """The tally of rows; `written` counts the rows that were used."""

    THINGS: ClassVar[str] = "rows"
    FLAG: ClassVar[str] = ""

    def leave_out(self, problem: str, location: str, count: int = 1) -> None:
        """Counts an unwanted row, and keeps its place as a skipped row's."""
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
      captions: {(language, text): (number of its row, whether the language is guessed)}.
      fields: {name: values}.
    """

    product: str
    name: str
    file: pathlib.Path | None
    captions: dict[tuple[str, str], tuple[int, bool]] = dataclasses.field(default_factory=dict)
    fields: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def add(self, number: int, content: RowContent) -> bool:
        """Adds the content of a row; returns whether any of it was new."""
        size_before = self._size()
        for language, text, is_guessed in content.captions:
            self.captions.setdefault((language, text), (number, is_guessed))
        for name, values in content.fields.items():  # a product may have several rows
            self.fields[name] = list(dict.fromkeys([*self.fields.get(name, ()), *values]))  # each value once
        return self._size() > size_before

    def _size(self) -> int:
        return len(self.captions) + sum(map(len, self.fields.values()))

    def digest(self) -> str:
        """Returns a hash of the entry's content, which changes with its rows in the table."""
        values = [self.product, self.file and self.file.name, list(self.captions), self.fields]
        content = json.dumps(values).encode()
        return hashlib.blake2b(content, digest_size=12).hexdigest()


def _without_lists(values: Sequence[str]) -> list[str]:
    """Returns the values of a field without a list "36, 37" of other values: a product's, next to its sizes' rows."""
    others = []
    for value in values:
        parts = value.split(SEVERAL)
        is_list = len(parts) > 1 and set(parts) <= set(values)
        if not is_list:
            others.append(value)
    return others


def read(table: ProductTable, tally: RowTally, keep: pathlib.Path, bar=None) -> list[Entry]:
    """Returns the entries of a table, in the order of its rows, and counts its rows.

    Args:
      tally: counts the rows.
      keep: folder for pictures that lie in no file of their own; it is made with the first picture.
      bar: a bar of progress, whose `update` is called for each row.

    Raises:
      UserError: no row can be used, or too many are unusable.
    """
    for reason, paths in table.table.others.items():
        for path in paths:
            tally.leave_out(reason, str(path))
    rows = list(_wanted_rows(table, tally, keep, bar))
    has_further_rows = len(rows) + tally.read > SAMPLE  # `tally` has the rows that are not wanted
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
    """Returns the entries of rows, and counts each row as used or not.

    Args:
      contents: of each row.
      files_of_rows: {picture's file: its name} of each row.
      columns: the table's columns.
      tally: counts rows.
    """
    products = _products_of(contents, columns)
    entries = _Entries()
    # Rows with pictures come first, because rows without, of translations or sizes, add to all pictures of a product.
    with_pictures = [number for number, files in enumerate(files_of_rows) if files]
    without_pictures = [number for number, files in enumerate(files_of_rows) if not files]
    for number in with_pictures + without_pictures:
        files = files_of_rows[number]
        product = products[number]
        content = _of_product(contents[number], product, entries.by_product[product], columns)
        if not (files or product or content.captions):
            tally.skip("row without a picture, an id or words", content.place)
        elif entries.add(number, content, product, files):
            tally.written += 1
        else:
            tally.leave_out(DUPLICATE, content.place)
    return entries


class _Entries:
    """Entries by product, file, and name of an entry without a file."""

    def __init__(self):
        self.by_key: dict[tuple, Entry] = {}
        self.by_product: dict[str, list[Entry]] = collections.defaultdict(list)
        self._counts: collections.Counter = collections.Counter()
        self._names: set[str] = set()

    def add(self, number: int, content: RowContent, product: str, files: Mapping[pathlib.Path, str]) -> bool:
        """Adds a row to the entries of its pictures or its product; returns whether any of it was new."""
        count_before = len(self.by_key)
        if files:
            entries = [self._entry(product, file, product or name) for file, name in files.items()]
        elif product and self.by_product[product]:
            entries = self.by_product[product]
        elif product:
            entries = [self._entry(product, None, product)]
        else:
            _, first_caption, _ = content.captions[0]
            entries = [self._entry(product, None, first_caption)]
        are_new = [entry.add(number, content) for entry in entries]
        return any(are_new) or len(self.by_key) > count_before

    def _entry(self, product: str, file: pathlib.Path | None, name: str) -> Entry:
        """Returns the entry of a product's picture, or of a name without a picture; makes it if it is new."""
        key = product, file, "" if file else name
        if key not in self.by_key:
            self.by_key[key] = Entry(product, self._new_name(name), file)
            self.by_product[product].append(self.by_key[key])
        return self.by_key[key]

    def _new_name(self, name: str) -> str:
        """Returns a name that no entry has: "A", then "A#2", unless a product of the table is called so."""
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
    """Yields the content of each wanted row, and {file: name to show} of its pictures."""
    finder = _FileFinder(table.pictures, keep)
    reasons: dict[str, str] = {}  # name of a product -> why it is not wanted, or ""
    for row in table.table.rows(tally.skip):
        if bar is not None:
            bar.update()
        try:
            content = table.content_of(row)
        except Unusable as error:
            tally.skip(error.problem, _place(row, error.value))
            continue
        reason = _reason_against(table, row, content, reasons)
        if reason:
            tally.leave_out(reason, row.place)
            continue
        names, problems = finder.find(content.pictures)
        if problems and not names:
            first_name = next((value for value in content.pictures if isinstance(value, str)), "")
            tally.skip(problems[0], _place(row, first_name))
            continue
        for problem in problems:
            tally.places.append((f"picture of a row that is used with others: {problem}", row.place))
        yield content._replace(pictures=()), names


class _FileFinder:
    """Finds the files of pictures; pictures without a file of their own are written into the folder `keep`."""

    def __init__(self, pictures: Pictures, keep: pathlib.Path):
        self._find = functools.partial(_file_of, pictures, keep)
        self._find_by_name = functools.cache(self._find)  # each name is looked for once; bytes would fill the memory

    def find(self, values: Sequence[str | bytes]) -> tuple[dict[pathlib.Path, str], list[str]]:
        """Returns ({file: name to show} of pictures as `Pictures.file` takes them, reasons why others are missing)."""
        names: dict[pathlib.Path, str] = {}
        problems = []
        for value in values:
            if isinstance(value, str):
                file, problem = self._find_by_name(value)
                name = value
            else:
                file, problem = self._find(value)
                name = file.name if file else ""
            if file is None:
                problems.append(problem)
            else:
                names.setdefault(file, name)
        return names, problems


def _place(row: Row, value: str) -> str:
    """Returns the place of a row, and the wrong value if it is not empty."""
    if not value:
        return row.place
    return f"{row.place} ({value[:LONGEST_NAME]})"


def _reason_against(table: ProductTable, row: Row, content: RowContent, reasons: dict[str, str]) -> str:
    """Returns why a row is not wanted, or ""; notes in `reasons` the products that a row names."""
    reason = table.reason_against(row.values)
    if not reason:  # a further row of a product goes with the product
        reason = _first_of(reasons, content.names[:1])
    if not reason:  # and so does a variation
        reason = _first_of(reasons, _names_of_parent(content, table.columns))
    if not content.parent:
        for name in content.names:
            reasons[name] = reasons.get(name) or reason
    return reason


def _names_of_parent(content: RowContent, columns: Columns) -> Sequence[str]:
    """Returns the names that a row may mean by its parent: "id:10" is an id, "10" an article number before an id."""
    parent = content.parent
    if not parent or parent.startswith(ID):
        return (parent,)
    if plain(columns.parent) == "parentid":
        return f"{ID}{parent}", parent
    return parent, f"{ID}{parent}"


def _first_of(values: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns the value of the first name that has a value, or ""."""
    return next((values[name] for name in names if name in values), "")


def _file_of(pictures: Pictures, keep: pathlib.Path, value: str | bytes) -> tuple[pathlib.Path | None, str]:
    """Returns (file of a picture, or None, the reason if there is no file)."""
    try:
        return pictures.file(value, keep), "picture that is not there"
    except BadImage as error:
        return None, str(error)


def _products_of(contents: Sequence[RowContent], columns: Columns) -> list[str]:
    """Returns the id of each row's product; a variation has its parent's product."""
    product_of: dict[str, str] = {}  # by each name of a product
    for content in reversed(contents):
        product_of.update(dict.fromkeys(content.names, content.product))
    has_groups = plain(columns.parent) in GROUPS
    products = []
    for content in contents:
        parent = content.parent.removeprefix(ID)
        product = _first_of(product_of, _names_of_parent(content, columns))
        if not product:
            product = parent if has_groups and parent else content.product
        products.append(product)
    return products


def _of_product(content: RowContent, product: str, entries: Sequence[Entry], columns: Columns) -> RowContent:
    """Returns the content of a variation beyond its product: no name that only adds a size, no id of its own."""
    if content.product == product:
        return content
    names: tuple[str, ...] = ()
    for entry in entries:
        names += tuple(text for _, text in entry.captions)
    captions = []
    for language, text, is_guessed in content.captions:
        if not text.startswith(names):
            captions.append((language, text, is_guessed))
    fields = dict(content.fields)
    if content.product:
        fields[VARIATIONS] = (content.product,)
    fields[columns.identity] = (product,)
    return content._replace(captions=captions, fields=fields)


def _share_within_products(by_product: Mapping[str, Sequence[Entry]]) -> None:
    """Gives each picture of a product the fields that it lacks, and, if it lacks captions, all the product's captions.

    Shops often describe a product in its first row, and name only a file in the rows of its further pictures.
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
    """A language's captions, its captions whose language is guessed, and its captioned pictures."""

    captions: int
    guessed: int
    pictures: int


def languages_of(entries: Sequence[Entry]) -> dict[str, LanguageCounts]:
    """Returns {BCP 47 tag: counts} of the captions' languages, the most frequent first."""
    captions, guesses, pictures = (collections.Counter() for _ in LanguageCounts._fields)
    for entry in entries:
        for (language, _), (_, is_guessed) in entry.captions.items():
            captions[language] += 1
            guesses[language] += is_guessed
        pictures.update({language for language, _ in entry.captions})
    return {tag: LanguageCounts(count, guesses[tag], pictures[tag]) for tag, count in captions.most_common()}
