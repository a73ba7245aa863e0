"""Somebody's own table of pictures and captions, understood and read: from rows to the things that a search finds.

First the table is understood (`understand`): its form (`own_tables.open_table`), what its columns are
(`table_columns.find_columns`) and where its pictures lie (`table_pictures.Pictures`), which can be shown before
anything is done. Then `read` reads it whole: rows of one product, its variations and translations come together, and
each picture of a product becomes an `Entry`. Every row is used or reported.
"""

from __future__ import annotations

import collections
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from mural_lite.errors import UserError
from mural_lite.pictures import BadImage
from mural_lite.progress import announce
from mural_lite.skipped import Tally, check_fraction
from mural_lite.text_files import canonical_language, clean
from mural_search.tables.own_tables import (
    DOWNLOADS,
    PICTURES,
    OwnTable,
    Row,
    Value,
    known_language,
    language_of_caption,
    names_picture,
    open_table,
    texts_of,
)
from mural_search.tables.table_columns import (
    GROUPS,
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


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """What the user says of a table.

    Attributes:
      table: a file, files alike (a pattern) or a folder.
      captions: "names": pictures of a folder without text files have their file names as captions.
      images: folder of the pictures, or what img2dataset downloaded; by default the table's own folder.
      columns: what is what, see `table_columns.parse_choices`.
      language: of captions that name none; "": it is guessed.
      encoding: of text; "": it is found.
      where: column -> conditions that its text must meet, column by column; "" of a column that a row lacks.
      all_rows: also rows that are not for sale.
      max_skipped_fraction: of the rows; above it nothing is made.
    """

    table: str
    images: str = ""
    columns: Sequence[str] = ()
    language: str = ""
    encoding: str = ""
    captions: str = ""
    where: Mapping[str, Sequence[Callable[[str], bool]]] = dataclasses.field(default_factory=dict)
    all_rows: bool = False
    max_skipped_fraction: float = 0.5

    def __post_init__(self):
        check_fraction(self.max_skipped_fraction, "max_skipped_fraction")


class RowContent(NamedTuple):
    """What a row says.

    Attributes:
      place: of the row, for messages.
      pictures: as `Pictures.file` takes them.
      captions: (language, text, whether the language is guessed).
      product: "" where the row names none.
      names: what other rows may call this row's product: its id, its article number.
      parent: how the row calls the product that it is a variation of.
      fields: name -> value.
    """

    place: str
    pictures: Sequence[str | bytes]
    captions: Sequence[tuple[str, str, bool]]
    product: str
    names: Sequence[str]
    parent: str
    fields: Mapping[str, str]


class Unusable(Exception):
    """A row that cannot be used, because of a `problem`; `value`: what is wrong, "" where it is empty."""

    def __init__(self, problem: str, value: str = ""):
        super().__init__(problem)
        self.problem, self.value = problem, value


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
        said = " or ".join(filter(None, [columns.language and f"by {columns.language}", self.request.language]))
        guessed = {name: self.guesses[name].describe() for name in columns.captions if name in self.guesses}
        named = [
            f"{name} ({language or said or guessed.get(name) or 'no language'})"
            for name, language in columns.captions.items()
        ]
        at = f", files of {self.pictures.folder}; {self.there}" if self.table.file_type != DOWNLOADS else ""
        lines = [
            self.table.describe(),
            f"  pictures: {', '.join(columns.images)}{at}",
            f"  captions: {', '.join(named) or self._without_captions()}",
            f"  language: {columns.language or 'no column'}",
            f"  id: {columns.identity or 'no column: a product is a picture'}",
            *([f"  variations: rows whose {columns.parent} is another product"] if columns.parent else []),
            f"  fields: {', '.join(self.fields) or 'none'}",
            *(f"  {note}" for note in self.notes),
            "  If a column is something else: --columns=image=…,caption=…,caption.de=…,language=…,id=…, + takes more.",
        ]
        return "\n".join(lines)

    def _without_captions(self) -> str:
        if self.table.file_type != PICTURES:
            return "none, pictures are found by their contents; --columns=caption=NAME names a column of captions"
        hint = "none, pictures are found by their contents; --captions=names takes the names of the files"
        near = next((path for path in sorted(self.table.folder.iterdir()) if path.suffix.lower() in TABLES), None)
        return f"{hint}, `catalogue {near}` that table" if near else hint

    def content_of(self, row: Row) -> RowContent:
        """Returns what a row says; raises `Unusable`."""
        columns, values = self.columns, row.values
        pictures = [picture for name in columns.images for picture in pictures_of(values.get(name, ()))]
        fields = {name: _text(value) for name, value in values.items() if columns.is_field(name)}
        product = _text(values.get(columns.identity, "")) if columns.identity else ""
        if product:
            fields[columns.identity] = product
        named = [_text(value) for name, value in values.items() if plain(name) in IDENTITIES]
        parent = _text(values.get(columns.parent, "")) if columns.parent else ""
        fields = {name: text for name, text in fields.items() if text}
        names = [product, *named] if product else []
        return RowContent(row.place, pictures, self._captions(values), product, names, parent, fields)

    def _captions(self, values: Mapping[str, Value]) -> list[tuple[str, str, bool]]:
        captions = []
        said = _text(values.get(self.columns.language, "")) if self.columns.language else ""
        for name, value in values.items():
            language = self.columns.caption_language(name)
            for text in () if language is None else filter(None, map(plain_text, texts_of(value))):
                tag, guessed = self._language(language, said, name, text)
                captions.append((tag, text, guessed))
        return captions

    def _language(self, column_language: str, said: str, name: str, text: str) -> tuple[str, bool]:
        """Returns the language of a caption and whether it is guessed."""
        if column_language or said or self.request.language:
            return column_language or _tag(said or self.request.language), False
        guess = self.guesses.get(name) or next(iter(self.guesses.values()), None)
        if guess is None:
            raise Unusable("caption without a language")
        return guess(text), True

    def reason_against(self, values: Mapping[str, Value]) -> str:
        """Returns why a row is not wanted, or ""."""
        for name in () if self.request.all_rows else self.columns.sold:
            text = _text(values.get(name, "")).casefold()
            if name not in self.request.where and text in NOT_FOR_SALE:
                return f"row that is not for sale ({name}: {text}); --where=all takes these, too"
        for name, conditions in self.request.where.items():
            text = _text(values.get(name, ""))
            if not all(fits(text) for fits in conditions):
                return f"row that --where leaves out ({name})"
        return ""


NOT_FOR_SALE = set(
    "0 -1 false no draft archived inactive disabled hidden private trash unpublished pending discontinued "
    "nein falsch entwurf archiviert inaktiv non faux brouillon archivé borrador archivado bozza nie".split()
)


@functools.lru_cache(maxsize=4096)
def _tag(language: str) -> str:
    """Returns the BCP 47 tag of a code or an English name; raises `Unusable`."""
    tag = known_language(language) or language_named(language)
    if not tag:
        raise Unusable("unknown language", language)
    return tag


def _text(value: Value) -> str:
    """Returns a value in one line, "" for a value that is not text."""
    return ", ".join(filter(None, map(plain_text, texts_of(value))))


_INLINE = "a|abbr|b|big|em|font|i|mark|s|small|span|strike|strong|sub|sup|u"
_BLOCKS = "br|dd|div|dl|dt|h[1-6]|hr|iframe|img|li|ol|p|pre|section|table|tbody|td|th|thead|tr|ul"
_HIDDEN = re.compile(r"<(script|style)\b.{0,4000}?</\1\s*>|<!--.{0,4000}?-->", re.I | re.S)
_TAG = re.compile(rf"</?(?:(?P<inline>{_INLINE})|{_BLOCKS})(?:\s[^<>]*)?/?>", re.I)
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.I)
_LINE_BREAK = re.compile(r"\\[nr]")  # as WooCommerce writes it


def has_html(text: str) -> bool:
    """Whether a text holds tags or entities of HTML."""
    return ("<" in text or "&" in text) and any(pattern.search(text) for pattern in (_HIDDEN, _TAG, _ENTITY))


def plain_text(text: str) -> str:
    """Returns a text in one line, of HTML what a browser would show."""
    if has_html(text):
        text = _TAG.sub(lambda tag: "" if tag["inline"] else " ", _HIDDEN.sub(" ", _LINE_BREAK.sub(" ", text)))
        text = html.unescape(text)
    return clean(text)


TABLES = (".csv", ".tsv", ".xlsx", ".jsonl")  # that may lie next to pictures
LOOKED_FOR = 50  # of the first rows: whether their pictures are there


def understand(request: TableRequest) -> Understood:
    """Looks at a table's first rows; raises `UserError` where they do not say enough."""
    if request.language and not language_named(request.language):
        canonical_language(request.language)
    choices = parse_choices(request.columns)
    table = open_table(request.table, request.encoding, request.captions == "names")
    pictures, problems = Pictures.of(table, request.images), []
    rows = list(itertools.islice(table.rows(lambda *problem: problems.append(problem)), SAMPLE))
    if not rows:
        said = f": {problems[0][0]}, at {problems[0][1]}" if problems else ", below its names of columns if it has any"
        raise UserError(f"{request.table} holds no rows that can be read{said}.")
    names = dict.fromkeys(name for row in rows for name in row.values)
    if table.file_type == PICTURES and not choices:
        named = {name: language_of_caption(name) for name in names if name != "image"}
        columns = Columns(("image",), named, language_of_others=language_of_caption)
    else:
        columns = find_columns(rows, choices, pictures.is_there)
    for name in request.where:
        if name not in names:
            raise UserError(f"--where: the table's first rows have no column {name!r}; they have {', '.join(names)}.")
    understood = Understood(request, table, columns, pictures, {}, [name for name in names if columns.is_field(name)])
    values = [row.values[columns.images[0]] for row in rows[:LOOKED_FOR] if columns.images[0] in row.values]
    understood.there, understood.notes = _there(pictures, values), _notes(understood, rows, names)
    if not request.language:
        understood.guesses = _guesses(columns, rows)
    return understood


def _there(pictures: Pictures, values: Sequence[Value]) -> str:
    """Returns how many of some pictures are there, and where others are, as far as the values say it."""
    count = sum(map(pictures.is_there, values))
    said = f"{count} of the first {len(values)} are there"
    names = [name for value in values for name in pictures_of(value)[:1] if isinstance(name, str)]
    elsewhere = [os.path.dirname(name) for name in map(str.strip, names) if os.path.isfile(name)]
    if len(elsewhere) > count:
        folder = os.path.commonpath(elsewhere) if all(map(os.path.isabs, elsewhere)) else "."
        return f"{said}, with --images={shlex.quote(folder)} {len(elsewhere)} are"
    if 2 * count < len(values) and any("://" in name for name in names):
        return f"{said}; addresses are not fetched here: download them with img2dataset, then --images=ITS_FOLDER"
    return said


def _notes(understood: Understood, rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """Returns lines: another column of pictures, rows that are not for sale, columns of one name, HTML."""
    columns = understood.columns
    notes = [f"left out: {len(paths)} x {reason}" for reason, paths in understood.table.others.items()]
    for name in understood.fields:
        values = [row.values[name] for row in rows[:LOOKED_FOR] if name in row.values]
        if values and 2 * sum(map(names_picture, values)) > len(values):
            notes.append(f"{name} names pictures, too; {_there(understood.pictures, values)}: --columns=image={name}")
    unwanted = collections.Counter(filter(None, (understood.reason_against(row.values) for row in rows)))
    notes += [f"left out of the first {len(rows)} rows: {count} x {reason}" for reason, count in unwanted.items()]
    again = [name for name in names if re.fullmatch(r".+ \(\d+\)", name) and name.rpartition(" (")[0] in names]
    if again := [name for name in again if name not in columns.images]:
        notes.append(f"columns with the name of an earlier one, and their numbers: {', '.join(again)}")
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
        announce("Guessing the languages of captions …")
    return {name: Guess(some) for name, some in texts.items()}


# Reading it.


class RowTally(Tally):
    """The tally of rows; `written` counts the rows that were used."""

    THINGS: ClassVar[str] = "rows"
    FLAG: ClassVar[str] = ""

    def leave_out(self, problem: str, location: str, count: int = 1) -> None:
        """Counts an unwanted row, and keeps its place as a skipped row's."""
        super().leave_out(problem, location, count)
        self.places.append((problem, " ".join(location.split())))


VARIATIONS = "variations"  # the field with the ids of a product's variations
DUPLICATE = "row that repeats an earlier one: same picture, caption and language"


@dataclasses.dataclass
class Entry:
    """What is found: a picture of a product, or a product without one.

    Attributes:
      product: its id, "" of a picture that is by itself.
      name: unique among the entries.
      file: the picture's, `None` of a product without one.
      captions: (language, text) -> (number of its row, whether the language is guessed).
      fields: name -> values.
    """

    product: str
    name: str
    file: pathlib.Path | None
    captions: dict[tuple[str, str], tuple[int, bool]] = dataclasses.field(default_factory=dict)
    fields: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def add(self, number: int, content: RowContent) -> bool:
        """Adds what a row says; returns whether that was anything new."""
        before = len(self.captions), sum(map(len, self.fields.values()))
        for language, text, guessed in content.captions:
            self.captions.setdefault((language, text), (number, guessed))
        for name, value in content.fields.items():  # a product may have several rows
            self.fields[name] = list(dict.fromkeys([*self.fields.get(name, ()), value]))
        return before != (len(self.captions), sum(map(len, self.fields.values())))

    def texts(self) -> dict[str, str]:
        """Returns the fields as an index shows them."""
        return {name: ", ".join(values) for name, values in self.fields.items()}

    def digest(self) -> str:
        """Returns what changes when the table says something else of this entry."""
        said = [self.product, self.file and self.file.name, list(self.captions), self.fields]
        return hashlib.blake2b(json.dumps(said).encode(), digest_size=12).hexdigest()


def read(understood: Understood, tally: RowTally, keep: pathlib.Path, bar=None) -> list[Entry]:
    """Returns what a table holds, in the order of its rows, and counts its rows.

    Args:
      understood: the table.
      tally: to count in.
      keep: folder for pictures that lie in no file of their own; it is made with the first one.
      bar: of progress, has `update`.

    Raises:
      UserError: no row can be used, or too many are unusable.
    """
    contents = list(_contents(understood, tally, keep, bar))
    products = _products_of(contents, understood.columns)
    entries: dict[tuple, Entry] = {}
    by_product: dict[str, list[Entry]] = collections.defaultdict(list)
    taken: collections.Counter = collections.Counter()
    # Rows with pictures first: rows without, of translations or sizes, then add to all pictures of their product.
    for number, (content, files) in sorted(enumerate(contents), key=lambda row: not row[1][1]):
        product = products[number]
        content = _of_product(content, product, by_product[product], understood.columns)
        named: dict[pathlib.Path | None, str] = {file: product or name for file, name in files.items()}
        if not files and not by_product[product] or not files and not product:
            named = {None: product or content.captions[0][1]} if content.captions or product else {}
            if not named:
                tally.skip("row without a picture, an id or words", content.place)
                continue
        news = False
        for file, name in named.items():
            key = product, file, "" if file else name
            if key not in entries:
                taken[name] += 1
                numbered = name if taken[name] == 1 else f"{name}#{taken[name]}"
                entries[key] = Entry(product, numbered, file)
                by_product[product].append(entries[key])
                news = True
            news = entries[key].add(number, content) or news
        for entry in () if named else by_product[product]:
            news = entry.add(number, content) or news
        if news:
            tally.written += 1
        else:
            tally.leave_out(DUPLICATE, content.place)
    _complete(by_product)
    tally.check(understood.request.max_skipped_fraction)
    if not entries:
        raise UserError(f"{understood.request.table}: no row can be used ({'; '.join(tally.skipped.lines())}).")
    return list(entries.values())


def _contents(
    understood: Understood, tally: RowTally, keep: pathlib.Path, bar
) -> Iterator[tuple[RowContent, dict[pathlib.Path, str]]]:
    """Yields what each wanted row says, and {file: name to show} of its pictures."""
    for reason, paths in understood.table.others.items():
        for path in paths:
            tally.leave_out(reason, str(path))
    files: dict[str, tuple[pathlib.Path | None, str]] = {}
    unwanted: dict[str, str] = {}
    for row in understood.table.rows(tally.skip):
        if bar is not None:
            bar.update()
        try:
            content = understood.content_of(row)
        except Unusable as error:
            tally.skip(error.problem, f"{row.place} ({error.value})" if error.value else row.place)
            continue
        # A variation, or a further row of a product, goes with the product.
        reason = understood.reason_against(row.values) or next(filter(None, map(unwanted.get, _owners(content))), "")
        if reason:
            unwanted.update(dict.fromkeys(() if content.parent else content.names, reason))
            tally.leave_out(reason, row.place)
            continue
        by_name, problems = {}, []
        for value in content.pictures:
            file, problem = _file_of(understood, value, keep, files)
            if file is None:
                problems.append(problem)
            else:
                by_name.setdefault(file, value if isinstance(value, str) else file.name)
        if problems and not by_name:
            value = next((value for value in content.pictures if isinstance(value, str)), "")
            tally.skip(problems[0], f"{row.place} ({value})" if value else row.place)
        else:
            used = "picture of a row that is used with others"
            tally.places += [(f"{used}: {problem}", row.place) for problem in problems]
            yield content._replace(pictures=()), by_name


def _owners(content: RowContent) -> list[str]:
    """Returns how a row calls the products that it belongs to."""
    return [name for name in (content.product, content.parent, content.parent.removeprefix("id:")) if name]


def _file_of(
    understood: Understood, value: str | bytes, keep: pathlib.Path, outcomes: dict[str, tuple[pathlib.Path | None, str]]
) -> tuple[pathlib.Path | None, str]:
    """Returns the file of a picture, or the reason for its absence."""
    if isinstance(value, str) and value in outcomes:
        return outcomes[value]
    try:
        outcome = understood.pictures.file(value, keep), "picture that is not there"
    except BadImage as error:
        outcome = None, str(error)
    if isinstance(value, str):
        outcomes[value] = outcome
    return outcome


def _products_of(contents: Sequence[tuple[RowContent, Mapping]], columns: Columns) -> list[str]:
    """Returns the product of each row; a variation has its parent's product."""
    product_of = {name: content.product for content, _ in reversed(contents) for name in content.names if name}
    products = []
    for content, _ in contents:
        parent = content.parent.removeprefix("id:")
        parent_product = product_of.get(content.parent) or product_of.get(parent)
        in_group = plain(columns.parent) in GROUPS and parent
        products.append(parent_product or (parent if in_group else content.product))
    return products


def _of_product(content: RowContent, product: str, entries: Sequence[Entry], columns: Columns) -> RowContent:
    """Returns what a variation says beyond its product: no name that only adds a size, no id of its own."""
    if content.product == product:
        return content
    names = [text for entry in entries for _, text in entry.captions]
    captions = [caption for caption in content.captions if not any(caption[1].startswith(name) for name in names)]
    own = {VARIATIONS: content.product} if content.product else {}
    return content._replace(captions=captions, fields={**content.fields, **own, columns.identity: product})


def _complete(by_product: Mapping[str, Sequence[Entry]]) -> None:
    """Gives a product's further pictures, of rows that say nothing else, its captions and fields."""
    for product, entries in by_product.items():
        if not product or len(entries) < 2:
            continue
        captions = {key: where for entry in reversed(entries) for key, where in entry.captions.items()}
        ordered = dict(sorted(captions.items(), key=lambda item: item[1][0]))
        together: dict[str, list[str]] = {}
        for entry in entries:
            together = {**entry.fields, **together}
        for entry in entries:
            entry.captions = entry.captions or dict(ordered)
            entry.fields = {**together, **entry.fields}


class LanguageCounts(NamedTuple):
    """A language's captions, its captions whose language is guessed, and its captioned pictures."""

    captions: int
    guessed: int
    pictures: int


def languages_of(entries: Sequence[Entry]) -> dict[str, LanguageCounts]:
    """Returns the languages of captions, the most frequent first."""
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for entry in entries:
        for (language, _), (_, guessed) in entry.captions.items():
            counts[language][0] += 1
            counts[language][1] += guessed
        for language in {language for language, _ in entry.captions}:
            counts[language][2] += 1
    ordered = sorted(counts.items(), key=lambda item: -item[1][0])
    return {language: LanguageCounts(*numbers) for language, numbers in ordered}
