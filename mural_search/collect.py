"""Where images and texts to index come from: folders, globs, single files, TFRecords and tables (TSV) of paths.

Every function yields (item, content) in an order that only the files determine, so that interrupted work can be
continued; `content` is the input of `Embedder`: a path or bytes for an image, a str for a text. Items that cannot be
read are yielded as `Unreadable`. Workers read pieces, files or parts of them; `find` reads everything.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import pathlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from mural_lite import tfrecord
from mural_lite.dataset_folder import DESCRIPTION
from mural_lite.errors import UserError
from mural_lite.files import as_path, open_path, read_json
from mural_lite.files import find as find_paths
from mural_lite.paths import RemotePath
from mural_lite.pictures import ENDINGS, BadImage, path_below
from mural_lite.progress import announce
from mural_lite.record_format import IMAGE_TEXT, TEXT_PAIRS, Example, missing_shards
from mural_lite.remote_folders import local_copy
from mural_lite.text_files import ALL_LINES, Unit, bounded_lines, cut, is_text, parse_object, read_lines, unpacked_size
from mural_search.items import IMAGES, KINDS, TEXTS, Item
from mural_search.picture_folders import picture_files
from mural_search.sqlite import sqlite3
from mural_search.stored_images import image_of_record

TABLE = ".tsv"
RECORDS = ".tfrecord"
# The first columns of a table with names.
OF_IMAGES = ("path", "caption", "language")
OF_TEXTS = ("language", "text")


class Unreadable(NamedTuple):
    """An item that a source names and that cannot be read.

    Attributes:
      name: the item's name, or the place in the source.
      reason: a sentence.
      key: as `key_of` returns it for items.
      count: how many records are lost there.
    """

    name: str
    reason: str
    key: tuple[str, ...]
    count: int = 1

    @property
    def kind(self) -> str:
        """The reason without the number of records and the full stop, by which reasons are counted."""
        return self.reason.removeprefix(f"{self.count} x ").rstrip(".")


File = tuple[str, str]  # a file, and the name to show
Say = Callable[[str], None]  # takes a line for the user
# The name to show and a file, or the part of a large one that is read at a time; its `weight` is about how many items.
Piece = tuple[str, Unit]
Found = tuple[Item, object] | Unreadable


def find(kind: str, sources: Sequence[str], split: str = "") -> Iterator[Found]:
    """Yields (item, content) for each item of the sources, or an `Unreadable` in its place.

    Args:
      kind: "images" or "texts": captions of records, rows of tables, lines of text files.
      sources: folders of image files or of TFRecords (the project's or img2dataset's), patterns 'photos/**/*.jpg',
        image files, `.tfrecord` files, and tables, `.tsv`: path[TAB]caption for images (relative to the table),
        language[TAB]text for texts. A table may have further columns, the fields, if its first line names all columns.
        For texts also other text files, one text per line.
      split: the split to read in folders of the project's TFRecords; "": every split.

    Raises:
      UserError: a source that does not exist or holds nothing of the kind, before anything is yielded.
    """
    files = list_files(kind, sources, split, announce)
    pieces = ((name, Unit(absolute(file), 0, 1, 0, 0)) for file, name in files)  # whole files of any size
    return read(kind, pieces)


def list_files(kind: str, sources: Sequence[str], split: str = "", say: Say = lambda line: None) -> list[File]:
    """Returns (file, name to show) for all files of the sources, in order; for arguments and errors see `find`.

    `say`: called with a line for the user about files that are not taken.
    """
    if kind not in KINDS:
        raise UserError(f"Unknown kind {kind!r}; known: {', '.join(KINDS)}.")
    if not sources:
        raise UserError("Nothing to index: name folders, globs, TFRecords or tables of paths.")
    files = []
    for source in sources:
        files += _files(kind, str(source), split, say)
    for path in side_files(file for file, _ in files):
        fields_by_id(path)  # raises for a damaged file, before anything is made
    return files


def product_field(sources: Iterable[str]) -> str:
    """Returns the name of the field whose value the pictures of one product share; "" without such a field.

    The first of the sources that is a data set names it.
    """
    for source in sources:
        description = as_path(source) / DESCRIPTION
        if description.is_file():
            return str(read_json(description).get("product") or "")  # it may be null
    return ""


def side_files(files: Iterable[str]) -> list[pathlib.Path]:
    """Returns the files of fields, see `fields_file`, of the data sets whose record files are among `files`, sorted."""
    file_of_folder = {as_path(file).parent: file for file in files if as_path(file).suffix.lower() == RECORDS}
    paths = set(map(fields_file, file_of_folder.values())) - {None}  # data sets without fields
    return sorted(paths, key=str)


# Bytes of a record with its image, and of a text, by which the number of items in a file is estimated.
RECORD_BYTES = 30_000
LINE_BYTES = 50


def cut_files(kind: str, files: Iterable[File], items: int) -> list[list[Piece]]:
    """Returns the pieces of files, in order, in groups of about `items` items, as estimated by the size of the files.

    `files`: (file, name to show).
    """
    groups: list[list[Piece]] = [[]]
    group_items = 0
    for file, name in files:
        for unit in _units(kind, file, items):
            if group_items and group_items + unit.weight > items:
                groups.append([])
                group_items = 0
            groups[-1].append((name, unit))
            group_items += unit.weight
    return groups


def _units(kind: str, file: str, items: int) -> list[Unit]:
    """Returns the parts of a file, estimated to have `items` items each; an image file is a single part."""
    path = as_path(file)
    ending = path.suffix.lower()
    if not path.is_file():  # `read` will yield it as unreadable
        return [Unit(absolute(file), 0, 1, 0, 1)]
    if kind != TEXTS and ending not in (RECORDS, TABLE):
        return [Unit(absolute(file), 0, 1, path.stat().st_size, 1)]
    most_parts = None
    if ending == RECORDS:
        count = path.stat().st_size // RECORD_BYTES
        if isinstance(path, RemotePath):
            most_parts = 1  # the records before a further part would be read one by one, each by a request
    else:
        count = unpacked_size(path) // LINE_BYTES
    return [unit._replace(path=absolute(file)) for unit in cut(path, max(1, count), items, most_parts)]


def _files(kind: str, source: str, split: str, say: Say) -> list[File]:
    """Returns (file, name to show) for all files of a source; raises `UserError` for a source that does not exist."""
    path = as_path(source)
    if path.is_dir():
        return _files_of_folder(kind, path, split, say)
    if path.is_file():
        return [(str(path), str(path))]
    matches = find_paths(source)
    if not matches:
        raise UserError(
            f"{source} does not exist. Expected a folder, a file or a pattern (quote it: 'photos/**/*.jpg')."
        )
    return [(str(match), str(match)) for match in matches if match.is_file()]


def _files_of_folder(kind: str, folder: pathlib.Path, split: str, say: Say) -> list[File]:
    """Returns (file, name to show) for a data set's records, or for the pictures and records in any other folder.

    Says which files are left out, if pictures are wanted. Raises `UserError` for a folder without files of the kind.
    """
    if split or (folder / IMAGE_TEXT).is_dir():  # a data set
        names = list(map(str, _shards(folder, split)))
        names += missing_shards(names)  # `read` yields them as unreadable
        files = [(name, name) for name in sorted(names)]
    else:
        paths, others = picture_files(folder, [RECORDS.removeprefix(".")])
        wanted_paths = [path for path in paths if _is_wanted(kind, path)]
        if kind == IMAGES and wanted_paths:
            for reason, left_out in others.items():
                say(f"Not taken: {len(left_out):,} x {reason}, first {left_out[0]}")
        files = [(str(path), str(path.relative_to(folder))) for path in sorted(wanted_paths, key=str)]
    if not files:
        expected = f"TFRecords ({IMAGE_TEXT}/{split or '<split>'}-*.tfrecord)"
        if kind == IMAGES:
            expected = f"files ending in .{', .'.join(ENDINGS)}, or {expected}"
        raise UserError(f"No {kind} in {folder}: expected {expected}, in it or below it.")
    return files


def _shards(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
    """Returns the record files of a split of a data set, sorted; of all splits for "".

    Raises `UserError` for a split without files.
    """
    pattern = f"{glob.escape(split)}-*{RECORDS}" if split else f"*{RECORDS}"
    shards = sorted((folder / IMAGE_TEXT).glob(pattern))
    if not shards and split == "train":
        shards = sorted(folder.glob(f"*{RECORDS}"))  # img2dataset's
    if not shards and split:
        raise UserError(
            f"No {IMAGE_TEXT} records of split {split!r} in {folder}: "
            f"expected {folder}/{IMAGE_TEXT}/{split}-*{RECORDS}."
        )
    return shards


def _is_wanted(kind: str, path: pathlib.Path) -> bool:
    """Whether a file, which is a picture or ends in `RECORDS`, may hold items of a kind."""
    if path.suffix.lower() == RECORDS:
        return path.parent.name != TEXT_PAIRS
    return kind == IMAGES


def read(kind: str, pieces: Iterable[Piece]) -> Iterator[Found]:
    """Yields (item, content) for each item of the pieces, in order, or an `Unreadable` in its place."""
    for name, unit in pieces:
        file = unit.path
        ending = as_path(file).suffix.lower()
        if "://" not in file and not os.path.isfile(file):  # a folder of that name, or a pipe, which would wait
            yield Unreadable(name, "Not a regular file, or a link that leads nowhere.", ("", file))
        elif ending == RECORDS:
            yield from _read_records(kind, unit)
        elif kind == TEXTS:
            yield from _read_texts(unit)
        elif ending == TABLE:
            yield from _read_table(unit)
        else:
            yield Item(name, file), as_path(file)


def absolute(file: str | os.PathLike) -> str:
    """Returns the absolute path of a file or folder; an address in a store, "gs://…", stays as it is."""
    file = str(file)
    if "://" in file:
        return file
    return os.path.abspath(file)


def _read_table(unit: Unit) -> Iterator[Found]:
    """Yields (item, path of its image) for each line path[TAB]caption[TAB]language of the caption[TAB]fields.

    A missing image is noticed only when it is read.
    """
    folder = as_path(unit.path).parent
    columns = _columns(unit, OF_IMAGES)
    for line in _lines(unit):
        if isinstance(line, Unreadable):
            yield line
            continue
        cells = line.split("\t")
        if cells == columns:  # the first line
            continue
        name, caption, language, *_ = [*cells, "", ""]  # a line may end with the path, or with the caption
        if not name.strip():
            yield Unreadable(caption or unit.path, "Row without a path.", (unit.path, line))
            continue
        try:
            path_below(folder, name)  # a foreign table's names will be shown
        except BadImage as error:
            yield Unreadable(name, f"{str(error).capitalize()}.", (unit.path, name))
            continue
        captions = ((language, caption),) if caption else ()
        path = folder / name
        yield Item(name, absolute(path), captions=captions, fields=_fields(columns, cells, OF_IMAGES)), path


def _read_texts(unit: Unit) -> Iterator[Found]:
    """Yields (item, text) for each line of a text file, or each row of a table."""
    if unit.path.lower().endswith(TABLE):
        yield from _read_table_of_texts(unit)
        return
    for line in _lines(unit):
        if isinstance(line, Unreadable):
            yield line
        else:
            yield Item(line), line


def _read_table_of_texts(unit: Unit) -> Iterator[Found]:
    """Yields (item, text) for each line language[TAB]text[TAB]fields; a line without a tab is a text."""
    columns = _columns(unit, OF_TEXTS)
    most_tabs = -1  # for `str.split`: all
    if not columns:
        most_tabs = 1  # without names of columns, further tabs are the text's
    for line in _lines(unit):
        if isinstance(line, Unreadable):
            yield line
            continue
        cells = ["", line]
        if "\t" in line:
            cells = line.split("\t", most_tabs)
        language, text = cells[:2]
        if text.strip() and cells != columns:
            yield Item(text, language=language, fields=_fields(columns, cells, OF_TEXTS)), text


def _columns(unit: Unit, first: Sequence[str]) -> list[str]:
    """Returns the names of a table's columns; [] if its first line does not name them.

    It names them if it begins with the names `first`, or consists of the first two names or more.
    """
    _, line = next(read_lines(unit.path, lambda *problem: None), (1, ""))  # `_lines` reports problems
    names = (line or "").split("\t")
    expected = list(first[: len(names)])  # a table may lack the last of them
    if len(names) < 2 or names[: len(first)] != expected:
        return []
    return names


def _fields(columns: Sequence[str], cells: Sequence[str], first: Sequence[str]) -> dict[str, str]:
    """Returns {name: cell} of the columns after the columns `first`, whose name and cell are not empty."""
    names = map(str.strip, columns[len(first) :])
    values = map(str.strip, cells[len(first) :])
    return {name: value for name, value in zip(names, values) if name and value}


def _lines(unit: Unit) -> Iterator[str | Unreadable]:
    """Yields the lines of a file, or of its part, that are not empty; lines that cannot be read as `Unreadable`."""
    unreadable = []  # lines that `read_lines` has reported, and that are not yielded yet

    def report(reason: str, location: str) -> None:
        unreadable.append(Unreadable(location, f"{reason[0].upper()}{reason[1:]}.", (unit.path, location)))

    part = ALL_LINES
    if unit.parts > 1:
        part = unit.part(unpacked_size(as_path(unit.path)))
    for _, line in read_lines(unit.path, report, part):
        if line is not None and line.strip():
            yield line
        yield from unreadable
        unreadable.clear()
    yield from unreadable


def _read_records(kind: str, unit: Unit) -> Iterator[Found]:
    """Yields the items of a file's records, or of its part's; where records are lost, an `Unreadable` says how many."""
    path = unit.path
    entries_of = fields_by_id(fields_file(path))
    lost = []  # records that `read_all` has reported, and that are not yielded yet

    def report(problem: str, location: str, count: int) -> None:
        lost.append(Unreadable(location, f"{count} x {problem}.", (path, location), count))

    begin, end = ALL_LINES
    if unit.parts > 1:
        begin, end = unit.part(as_path(path).stat().st_size)
    for offset, serialized in tfrecord.read_all(path, report, open_path, begin, end):
        yield from lost
        lost.clear()
        # An item keeps where its record begins, and `read_all` yields where the record's data begin.
        yield from _read_record(kind, path, offset - tfrecord.HEADER, serialized, entries_of)
    yield from lost


def _read_record(kind: str, path: str, offset: int, serialized: bytes, entries_of) -> Iterator[Found]:
    """Yields the items of a record: images with their captions, or each caption as a text.

    Args:
      kind: "images" or "texts".
      path, offset: the record's file and first byte there.
      serialized: the record, a `tf.train.Example`.
      entries_of: the function that `fields_by_id` returns; several items may share the image.
    """
    try:
        image = image_of_record(serialized, path)
    except ValueError as error:
        yield Unreadable(f"{path}#{offset}", str(error), (path, str(offset)))
        return
    feature = Example.FromString(serialized).features.feature
    texts = _texts_of(feature, "caption", "txt")
    languages = [*_texts_of(feature, "language"), *[""] * len(texts)]  # records may lack some or all of them
    captions_of_record = [(language, text) for language, text in zip(languages, texts) if text.strip()]
    ids = _texts_of(feature, "image_id", "key")
    name = f"{path}#{offset}"
    if ids and ids[0]:
        name = ids[0]
    for entry in entries_of(name):
        captions = tuple(map(tuple, entry.get("captions", captions_of_record)))
        if kind == IMAGES:
            yield Item(entry.get("name", name), path, offset, captions, fields=entry["fields"]), image
            continue
        for language, text in captions:
            yield Item(text, path, offset, language=language, fields=entry["fields"]), text


def _texts_of(feature, *names: str) -> list[str]:
    """Returns the texts under the first of the names that a record has, or []; img2dataset uses names of its own.

    `feature`: {name: `tf.train.Feature`}, all features of the record.
    """
    for name in names:
        if name in feature:
            return [value.decode("utf-8", "replace") for value in feature[name].bytes_list.value]
    return []


def key_of(kind: str, item: Item) -> tuple[str, str]:
    """Returns the key by which equal items are recognised, so that each is indexed once.

    The key of a text is (language, text), and of an image file ("", file). An image in records has (their folder, its
    id), because records may repeat it for every caption. An item of a table, or without a picture, has ("name", its
    name): two products may share a picture.
    """
    if kind == TEXTS:
        return item.language, item.name
    if item.digest or not item.path:
        return "name", item.name
    if item.offset >= 0:
        return os.path.dirname(item.path), item.name
    return "", item.path


# The fields of a data set.

# Next to dataset.json: one line {"image_id": …, "fields": {name: text}} per image. Items that share an image have a
# line each, with their own "name" and "captions": [[language, text], …].
FIELDS = "fields.jsonl"


def fields_file(record_file: str | os.PathLike) -> pathlib.Path | None:
    """Returns the file `FIELDS` of the data set that a file of records belongs to, `None` without such a file."""
    path = as_path(record_file).parent.parent / FIELDS  # of DATA/image_text/train-….tfrecord
    if not path.is_file():
        return None
    return path


def fields_by_id(path: pathlib.Path | None) -> Callable[[str], list[dict]]:
    """Returns a function from an image's id to the image's entries in a data set's file of fields.

    There is an entry per item of the image: {"fields": {name: text}}, with "name" and "captions" where several items
    share the image. An image that the file lacks has [{"fields": {}}]. The last of several lines of one id and name
    counts. Raises `UserError` for a line that is damaged.

    `path`: `fields_file` of the data set; None: as a file without lines.
    """
    if path is None:
        return lambda image_id: [{"fields": {}}]
    state = path.stat()
    return _fields_of_file(path, (state.st_size, getattr(state, "st_mtime_ns", 0)))


@functools.lru_cache(maxsize=4)
def _fields_of_file(path: pathlib.Path, state: tuple) -> Callable[[str], list[dict]]:
    """Returns `fields_by_id` of a file; `state`, its size and time, differs when the file must be read again."""
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # a temporary file where it is large
    table = "CREATE TABLE items (image, name, line, PRIMARY KEY (image, name))"
    database.executescript(f"PRAGMA journal_mode = OFF; {table}; BEGIN")  # never committed: nobody else reads it
    with open(local_copy(path), "rb") as file:
        database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", _rows_of_fields(path, file))

    def fields_of(image_id: str) -> list[dict]:
        lines = database.execute("SELECT line FROM items WHERE image = ? ORDER BY rowid", (image_id,)).fetchall()
        return [json.loads(line) for (line,) in lines] or [{"fields": {}}]

    weakref.finalize(fields_of, database.close)
    return fields_of


def _is_caption(value: object) -> bool:
    """Whether a JSON value is [language, text]."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_text, value))


def _rows_of_fields(path: pathlib.Path, file: Iterable[bytes]) -> Iterator[tuple[str, str, str]]:
    """Yields (id of the image, name of the item or "", entry as JSON) of each line in a file of fields.

    Raises `UserError` for a line that is damaged, or too long, for which `bounded_lines` yields None.
    """
    for number, line in enumerate(bounded_lines(file), start=1):
        if line is not None and not line.strip():
            continue
        try:
            values = parse_object(line or b"")
        except ValueError:
            values = {}
        if not _are_fields(values):
            expected = '{"image_id": text, "fields": {name: text, …}}'
            raise UserError(f"{path}, line {number}: expected a line {expected}; correct it, or make it again.")
        entry = {key: values[key] for key in ("name", "captions") if key in values}
        entry["fields"] = {name: text for name, text in values["fields"].items() if text}
        yield values["image_id"], entry.get("name", ""), json.dumps(entry)


def _are_fields(values: dict) -> bool:
    """Whether the JSON object of a line is as `FIELDS` says: an id, texts as fields, perhaps a name and captions."""
    fields = values.get("fields")
    captions = values.get("captions", [])
    if not (isinstance(fields, dict) and isinstance(captions, list)):
        return False
    has_names = is_text(values.get("image_id")) and is_text(values.get("name", ""))
    has_texts = all(isinstance(text, str) for text in fields.values())
    return has_names and has_texts and all(map(_is_caption, captions))
