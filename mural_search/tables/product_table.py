"""A table of products, inspected: its form, the roles of its columns and the place of its pictures.

`inspect_table` finds these in the first rows, by `own_tables.open_table`, `table_columns.find_columns` and
`table_pictures.Pictures`. `ProductTable.describe` shows them before anything is done.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import html
import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json, write_whole
from mural_lite.skipped import check_fraction
from mural_lite.text_files import canonical_language, clean, known_language
from mural_search.items import group_marks
from mural_search.tables.own_tables import (
    DOWNLOADS,
    PICTURES,
    OwnTable,
    language_of_caption,
    open_table,
)
from mural_search.tables.table_columns import (
    IDENTITIES,
    SAMPLE,
    Columns,
    Guess,
    find_columns,
    language_named,
    parse_choices,
    plain,
)
from mural_search.tables.table_pictures import Pictures, pictures_of
from mural_search.tables.table_rows import Row, Value, columns_of_lists, names_picture, texts_of, with_lists

ID = "id:"  # WooCommerce's mark of an id where an article number may be, too
IDS = ("id", "productid")  # plain names of columns with ids
TABLES = (".csv", ".tsv", ".xlsx", ".jsonl")  # endings of tables that may lie next to pictures
CHECKED = 50  # first rows whose pictures are looked for


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """A table, and the user's instructions for reading it.

    Attributes:
      table: the path of a file or folder, or a pattern of files, see `own_tables.open_table`.
      images: the folder of the pictures, or of img2dataset's downloads; "": the table's own folder.
      columns: the user's choice of columns, ["image=foto", …], see `table_columns.parse_choices`.
      language: a code or an English name of the language of captions that do not say theirs; "": it is guessed.
      encoding: the text's encoding; "": it is found.
      captions: where a folder of pictures has its captions: "inside", "names" or "texts", see `open_table`.
      where: {column: conditions} that each row must meet. A condition is called with the column's text, "" in a row
        that lacks it, and with the column's marks of thousands, see `items.group_marks`.
      all_rows: whether rows that are not for sale are used, too.
      guesses: the file that keeps guessed languages, so that equal captions are guessed once; "": they are not kept.
      max_skipped_fraction: the share of the rows, 0 to 1, that may be skipped; above it reading stops.
    """

    table: str
    images: str = ""
    columns: Sequence[str] = ()
    language: str = ""
    encoding: str = ""
    captions: str = ""
    where: Mapping[str, Sequence[Callable[[str, str], bool]]] = dataclasses.field(default_factory=dict)
    all_rows: bool = False
    guesses: str = ""
    max_skipped_fraction: float = 0.5

    def __post_init__(self):
        check_fraction(self.max_skipped_fraction, "max_skipped_fraction")


class RowContent(NamedTuple):
    """The content of a row.

    Attributes:
      place: where the row is, for messages.
      pictures: names, addresses or bytes of pictures, as `Pictures.file` takes them.
      captions: (language, text, whether the language is guessed) of each caption. Where the language is guessed, the
        caption's column is in its place until `ProductTable.with_languages` has seen all rows.
      product: the id of the product, "" in a row that names no product.
      names: the names by which other rows may call this row's product: "id:10" for its id, "W0" for its article number;
        first the name in the column with the product's id.
      parent: the name by which the row calls the product that it is a variation of, or "".
      fields: {name: values}.
    """

    place: str
    pictures: Sequence[str | bytes]
    captions: Sequence[tuple[str, str, bool]]
    product: str
    names: Sequence[str]
    parent: str
    fields: Mapping[str, Sequence[str]]


class Unusable(Exception):
    """A row that cannot be used.

    Attributes:
      problem: why it cannot be used.
      value: the wrong value, "" if a value is missing.
    """

    def __init__(self, problem: str, value: str = ""):
        super().__init__(problem)
        self.problem = problem
        self.value = value


@dataclasses.dataclass
class ProductTable:
    """A table with the roles of its columns and the place of its pictures.

    Attributes:
      request: the user's instructions.
      table: the opened table.
      columns: the roles of the columns.
      pictures: the table's pictures.
      fields: names of the columns of the first rows that have no role.
      guesses: {column of captions: its guessed languages}.
      presence: how many of the first pictures exist, in words.
      notes: further remarks on the first rows, in words.
      group_marks: {column: its marks of thousands} of columns with conditions, see `items.group_marks`.
    """

    request: TableRequest
    table: OwnTable
    columns: Columns
    pictures: Pictures
    fields: Sequence[str]
    guesses: Mapping[str, Guess] = dataclasses.field(default_factory=dict)
    presence: str = ""
    notes: Sequence[str] = ()
    group_marks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def describe(self) -> str:
        """Returns lines that tell the user how the table is read: its form, and the roles of its columns."""
        columns = self.columns
        images = ", ".join(columns.images)
        if self.table.file_type != DOWNLOADS:
            images += f", files of {self.pictures.folder}; {self.presence}"
        captions = ", ".join(f"{name} ({self._language_in_words(name)})" for name in columns.captions)
        lines = [
            self.table.describe(),
            f"  pictures: {images}",
            f"  captions: {captions or self._without_captions()}",
            f"  language: {columns.language or 'no column'}",
            f"  id: {columns.identity or 'no column: a product is a picture'}",
        ]
        if columns.parent:
            lines.append(f"  variations: rows whose {columns.parent} is another product")
        lines.append(f"  fields: {', '.join(self.fields) or 'none'}")
        lines += [f"  {note}" for note in self.notes]
        lines.append(
            "  If a column is something else: --columns=image=…,caption=…,caption.de=…,language=…,id=…, + takes more."
        )
        return "\n".join(lines)

    def _language_in_words(self, name: str) -> str:
        """Returns the language of a column of captions, or how it is found, in words."""
        if self.columns.captions[name]:
            return self.columns.captions[name]
        ways = []
        if self.columns.language:
            ways.append(f"by {self.columns.language}")
        if self.request.language:
            ways.append(self.request.language)
        if ways:
            return " or ".join(ways)
        return self.guesses[name].describe() if name in self.guesses else "no language"

    def _without_captions(self) -> str:
        """Returns words that say that the table has no captions, and how it may get them."""
        if self.table.file_type != PICTURES:
            return "none, pictures are found by their contents; --columns=caption=NAME names a column of captions"
        hint = "none, pictures are found by their contents; --captions=names takes the names of the files"
        tables = [path for path in sorted(self.table.folder.iterdir()) if path.suffix.lower() in TABLES]
        if tables:
            hint += f", `catalogue {tables[0]}` that table"
        return hint

    def content_of(self, row: Row) -> RowContent:
        """Returns the content of a row; raises `Unusable` as `_captions` does, for the language of a caption."""
        columns = self.columns
        values = row.values
        pictures: list[str | bytes] = []
        for name in columns.images:
            pictures += pictures_of(values.get(name, ()))
        fields = {name: _texts_in(values, name) for name in values if columns.is_field(name)}
        fields = {name: texts for name, texts in fields.items() if texts}
        product = _text_in(values, columns.identity)
        names = []
        if product:
            fields[columns.identity] = (product,)
            names = self._names_of_product(values)
        return RowContent(
            place=row.place,
            pictures=pictures,
            captions=self._captions(values),
            product=product,
            names=names,
            parent=_text_in(values, columns.parent),
            fields=fields,
        )

    def _names_of_product(self, values: Mapping[str, Value]) -> list[str]:
        """Returns the names by which other rows may call a row's product, see `RowContent`."""
        identity = self.columns.identity
        other_columns = [name for name in values if plain(name) in IDENTITIES and name != identity]
        names = []
        for column in (identity, *other_columns):
            text = _text_in(values, column)
            if text and plain(column) in IDS:
                names.append(f"{ID}{text}")  # marked, because it may equal the article number of another product
            elif text:
                names.append(text)
        return names

    def _captions(self, values: Mapping[str, Value]) -> list[tuple[str, str, bool]]:
        """Returns the captions of a row, see `RowContent.captions`.

        A caption's language is the language of its column, of the row, or of the request, or it is guessed. Raises
        `Unusable` for a caption without any of these, or an unknown language of the row or the request.
        """
        captions = []
        row_language = _text_in(values, self.columns.language) or self.request.language
        for name, value in values.items():
            column_language = self.columns.caption_language(name)
            if column_language is None:
                continue
            for text in filter(None, map(plain_text, texts_of(value))):
                if column_language:
                    captions.append((column_language, text, False))
                elif row_language:
                    captions.append((_tag(row_language), text, False))
                elif self.guesses or self.table.file_type == PICTURES:  # whose first pictures may lack captions
                    captions.append((name, text, True))
                else:
                    raise Unusable("caption without a language")
        return captions

    def with_languages(self, contents: Sequence[RowContent], has_further_rows: bool) -> list[RowContent]:
        """Returns the contents of all rows with guessed languages in the place of columns, see `RowContent.captions`.

        Sets `guesses` anew if there are further rows.

        Args:
          contents: the content of each wanted row.
          has_further_rows: whether the table has more rows than the first rows, by which languages were estimated. Then
            they are estimated again: the end of a table may have another language than its beginning.
        """
        if has_further_rows and self.guesses:
            self._estimate_languages(contents)
        with_languages = []
        for content in contents:
            captions = []
            for language, text, is_guessed in content.captions:
                if is_guessed:  # until here `language` holds the column
                    language = self._guessed_language(language, text)
                captions.append((language, text, is_guessed))
            with_languages.append(content._replace(captions=captions))
        return with_languages

    def _estimate_languages(self, contents: Sequence[RowContent]) -> None:
        """Sets `guesses` by the captions of all rows, or by the file of earlier guesses if it has these captions."""
        texts: dict[str, list[str]] = collections.defaultdict(list)  # {column: captions whose languages are guessed}
        for content in contents:
            for column, text, is_guessed in content.captions:
                if is_guessed:
                    texts[column].append(text)
        earlier = _earlier_guesses(self.request.guesses)
        self.guesses = {name: Guess(captions, earlier) for name, captions in texts.items()}

    def _guessed_language(self, column: str, text: str) -> str:
        """Returns the BCP 47 tag that is guessed for a caption in a column; "und" if no column has a guess."""
        if not self.guesses:  # no caption was there when languages were estimated: pictures without words inside
            return "und"
        first_guess, *_ = self.guesses.values()  # for a column that only later rows have
        guess_language = self.guesses.get(column, first_guess)
        return guess_language(text)

    def reason_against(self, values: Mapping[str, Value]) -> str:
        """Returns why a row, {column: value}, is left out; "" if it is kept."""
        where = self.request.where
        if not self.request.all_rows:
            for column in self.columns.sold:
                if column in where:  # the user's own condition decides
                    continue
                text = _text_in(values, column).casefold().removesuffix(".0")  # pandas writes 0 as 0.0
                if text in NOT_FOR_SALE:
                    return f"row that is not for sale ({column}: {text}); --where=all takes these, too"
        for column, conditions in where.items():
            text = _text_in(values, column)
            if not all(is_met(text, self.group_marks[column]) for is_met in conditions):
                return f"row that --where leaves out ({column})"
        return ""


NOT_FOR_SALE = set(
    "0 -1 false no draft archived inactive disabled hidden private trash unpublished pending discontinued "
    "nein falsch entwurf archiviert inaktiv non faux brouillon archivé borrador archivado bozza nie".split()
)


@functools.lru_cache(maxsize=4096)
def _tag(language: str) -> str:
    """Returns the BCP 47 tag of a language's code or English name; raises `Unusable` if it is unknown."""
    tag = known_language(language) or language_named(language)
    if not tag:
        raise Unusable("unknown language", language)
    return tag


def _texts_in(values: Mapping[str, Value], name: str) -> tuple[str, ...]:
    """Returns the texts of a row's column, each in one line; () for a picture or a row without the column."""
    return tuple(filter(None, map(plain_text, texts_of(values.get(name, "")))))


def _text_in(values: Mapping[str, Value], name: str) -> str:
    """Returns the texts of a row's column in one line; "" for a picture, for a row without the column, or no name."""
    return ", ".join(_texts_in(values, name)) if name else ""


_INLINE = "a|abbr|b|big|em|font|i|mark|s|small|span|strike|strong|sub|sup|u"
_BLOCKS = "br|dd|div|dl|dt|h[1-6]|hr|iframe|img|li|ol|p|pre|section|table|tbody|td|th|thead|tr|ul"
_HIDDEN = re.compile(r"<(script|style)\b.{0,4000}?</\1\s*>|<!--.{0,4000}?-->", re.I | re.S)  # bounded in time
_TAG = re.compile(rf"</?(?:(?P<inline>{_INLINE})|{_BLOCKS})(?:\s[^<>]*)?/?>", re.I)
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.I)
_LINE_BREAK = re.compile(r"\\[nr]")  # as WooCommerce writes it


def has_html(text: str) -> bool:
    """Whether a text holds tags or entities of HTML."""
    return ("<" in text or "&" in text) and any(pattern.search(text) for pattern in (_HIDDEN, _TAG, _ENTITY))


def plain_text(text: str) -> str:
    """Returns a text in one line; if it is HTML, the text that a browser would show."""
    if has_html(text):
        text = _HIDDEN.sub(" ", _LINE_BREAK.sub(" ", text))
        text = _TAG.sub(lambda tag: "" if tag["inline"] else " ", text)
        text = html.unescape(text)
    return clean(text)


def inspect_table(request: TableRequest) -> ProductTable:
    """Returns the table of a request with the roles of its columns, found by its first rows.

    Raises:
      UserError: the table cannot be opened, has no rows, or its columns cannot be found; a column, a language or a
        folder of the request does not exist; languages must be guessed, and lingua is not installed.
    """
    if request.language and not language_named(request.language):
        canonical_language(request.language)  # raises for a code that no language has
    choices = parse_choices(request.columns)
    own_table = open_table(request.table, request.encoding, request.captions)
    pictures = Pictures(own_table, request.images)
    own_table, rows = _first_rows(own_table, request.table)
    names = dict.fromkeys(itertools.chain.from_iterable(row.values for row in rows))  # in order, each once
    # Columns without a name, "column 5", are not worth a note.
    empty_names = [name for name in own_table.heading.names if name not in names and not name.startswith("column ")]
    if empty_names:
        own_table.heading.say(f"columns without a value in the first {len(rows)} rows: {', '.join(empty_names)}")
    if own_table.file_type == PICTURES and not choices:
        columns = _columns_of_folder(names)
    else:
        columns = find_columns(rows, choices, pictures.is_there, own_table.heading.notes)
    for name in request.where:
        if name not in names:
            raise UserError(f"--where: the table's first rows have no column {name!r}; they have {', '.join(names)}.")
    table = ProductTable(request, own_table, columns, pictures, [name for name in names if columns.is_field(name)])
    table.group_marks = {name: group_marks(_text_in(row.values, name) for row in rows) for name in request.where}
    table.presence = _presence(pictures, _first_values(rows, columns.images[0]))
    table.notes = _notes(table, rows, names)
    if not request.language:
        table.guesses = _guesses(columns, rows, _earlier_guesses(request.guesses))
    return table


def _first_rows(own_table: OwnTable, path: str) -> tuple[OwnTable, list[Row]]:
    """Returns (the table with its columns of lists, the first `SAMPLE` rows except empty rows).

    Raises `UserError` for a table without rows; `path` is the table as the user named it, for the message.
    """
    problems: list[tuple] = []  # (reason, place, …) of rows that cannot be read; Parquet's reader adds a count of rows
    all_rows = own_table.rows(lambda *problem: problems.append(problem))
    rows = list(itertools.islice(all_rows, SAMPLE))
    own_table = dataclasses.replace(own_table, lists=columns_of_lists(rows))
    rows = [with_lists(row, own_table.lists) for row in rows]
    rows = [row for row in rows if row.values]
    if rows:
        return own_table, rows
    if problems:
        reason, location, *_ = problems[0]
        message = f"{path} holds no rows that can be read: {reason}, at {location}"
    else:
        message = f"{path} holds no rows that can be read, below its names of columns if it has any"
    clauses = "; ".join([message, *own_table.heading.notes])
    raise UserError(f"{clauses}.")


def _columns_of_folder(names: Iterable[str]) -> Columns:
    """Returns the roles of the columns that `own_tables` gives the pictures of a folder: "image", "caption.de", …"""
    captions = {}
    for name in names:
        language = language_of_caption(name)
        if language is not None:
            captions[name] = language
    return Columns(("image",), captions, language_of_others=language_of_caption)


def _earlier_guesses(path: str) -> Collection[Mapping]:
    """Returns the guesses in a file, each as `Guess.to_json` returns it; () for a missing or damaged file."""
    if not path or not as_path(path).is_file():
        return ()
    try:
        values = read_json(path)
        for guess in values.values():
            json_field(guess, "shares", dict[str, float], path)
            json_field(guess, "certainty", float, path)
            json_field(guess, "scripts", list[str], path)
            json_field(guess, "languages", dict[str, str], path)
    except (UserError, TypeError, AttributeError):
        return ()
    return values.values()


def keep_guesses(table: ProductTable) -> None:
    """Writes a table's guesses of languages into the file `request.guesses`, unless there are no guesses."""
    guesses = {name: guess.to_json() for name, guess in table.guesses.items()}
    if not guesses:
        return
    write_whole(table.request.guesses, json.dumps(guesses, ensure_ascii=False, indent=1) + "\n")


def _first_values(rows: Sequence[Row], name: str) -> list[Value]:
    """Returns the values of a column in the first `CHECKED` rows, whose pictures are looked for."""
    return [row.values[name] for row in rows[:CHECKED] if name in row.values]


def _presence(pictures: Pictures, values: Sequence[Value]) -> str:
    """Returns in words how many pictures of a column exist, and how others can be found.

    For example "2 of the first 50 are there, with --images=photos 50 are". `values` are from `_first_values`.
    """
    count = sum(map(pictures.is_there, values))
    presence = f"{count} of the first {len(values)} are there"
    names = []  # of the first picture of each value
    for value in values:
        first_pictures = pictures_of(value)[:1]
        names += [picture.strip() for picture in first_pictures if isinstance(picture, str)]
    other_folders = [os.path.dirname(name) for name in names if os.path.isfile(name)]
    if len(other_folders) > count:
        folder = "."
        if all(map(os.path.isabs, other_folders)):
            folder = os.path.commonpath(other_folders)
        return f"{presence}, with --images={shlex.quote(folder)} {len(other_folders)} are"
    if 2 * count < len(values) and any("://" in name for name in names):  # most are not there
        return f"{presence}; addresses are not fetched here: download them with img2dataset, then --images=ITS_FOLDER"
    return presence


def _notes(table: ProductTable, rows: Sequence[Row], names: Collection[str]) -> list[str]:
    """Returns notes for the user on a table.

    They are on parts that are not read, further columns of pictures, rows that are left out, repeated ids, and columns
    of one name. `rows` are the first rows, and `names` the columns that have values there.
    """
    notes = [*table.table.heading.notes]
    notes += [f"left out: {len(paths)} x {reason}" for reason, paths in table.table.unread_files.items()]
    notes += table.table.inside.describe()
    for name in table.fields:
        values = _first_values(rows, name)
        if 2 * sum(map(names_picture, values)) > len(values):
            notes.append(f"{name} names pictures, too; {_presence(table.pictures, values)}: --columns=image={name}")
    reason_counts = collections.Counter(table.reason_against(row.values) for row in rows)
    for reason, count in reason_counts.items():
        if reason:
            notes.append(f"left out of the first {len(rows)} rows: {count} x {reason}")
    ids = list(filter(None, [_text_in(row.values, table.columns.identity) for row in rows]))
    repetitions = len(ids) - len(set(ids))
    if repetitions:
        notes.append(f"{repetitions} of the first {len(rows)} rows repeat an id: rows with one id are one product")
    repeated_names = []  # "price (5)" next to "price"
    for name in names:
        is_numbered = re.fullmatch(r".+ \(\d+\)", name) is not None
        if is_numbered and name.rpartition(" (")[0] in names and name not in table.columns.images:
            repeated_names.append(name)
    if repeated_names:
        notes.append(f"columns with the name of an earlier one, and their numbers: {', '.join(repeated_names)}")
    return notes


def _guesses(columns: Columns, rows: Sequence[Row], earlier: Collection[Mapping]) -> dict[str, Guess]:
    """Returns {column: guess} of the columns of captions whose language neither the column nor the row says.

    `rows` are the first rows; `earlier` guesses, see `_earlier_guesses`, are taken over if they know all captions.
    """
    texts: dict[str, list[str]] = collections.defaultdict(list)
    for row in rows:
        if columns.language and row.values.get(columns.language):
            continue
        for name, value in row.values.items():
            if columns.caption_language(name) == "":  # captions of an unknown language
                texts[name] += map(plain_text, texts_of(value))
    return {name: Guess(captions, earlier) for name, captions in texts.items() if captions}
