"""Where images and texts to index come from: folders, globs, single files, TFRecords and tables (TSV) of paths.

Every function yields (item, content) in an order that only the files determine, so that interrupted work can be
continued; `content` is what `Embedder` encodes: a path or bytes for an image, a str for a text. What cannot be read is
yielded as `Unreadable`. Workers read pieces, files or parts of them; `find` reads everything.
"""

from __future__ import annotations

import functools
import glob
import itertools
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

TABLE, RECORDS = ".tsv", ".tfrecord"
OF_IMAGES, OF_TEXTS = ("path", "caption", "language"), ("language", "text")  # the first columns of a table with names


class Unreadable(NamedTuple):
    """Something named by a source that cannot be indexed, why, and a key as `key_of` gives one to every item."""

    name: str
    reason: str
    key: tuple[str, ...]
    count: int = 1  # of the records that are lost there

    @property
    def kind(self) -> str:
        """The reason without the details of this place."""
        return self.reason.removeprefix(f"{self.count} x ").rstrip(".")


# The name to show and a file, or the part of a large one that is read at a time; its `weight` is about how many items.
Piece = tuple[str, Unit]
Found = tuple[Item, object] | Unreadable


def find(kind: str, sources: Sequence[str], split: str = "") -> Iterator[Found]:
    """Yields what the sources hold.

    Args:
      kind: "images" or "texts" (captions of records, lines of tables and text files).
      sources: folders of image files, folders of TFRecords (the project's or img2dataset's), globs, image files,
        `.tfrecord` files; `.tsv` files: path[TAB]caption for images (relative to the table), language[TAB]text for
        texts; other text files: one text per line. A table whose first line names its columns may have further columns.
      split: of folders of the project's TFRecords; "": every split.

    Raises:
      UserError: a source that does not exist or holds nothing of the kind, before anything is yielded.
    """
    return read_files(kind, list_files(kind, sources, split, announce))


def list_files(
    kind: str, sources: Sequence[str], split: str = "", say: Callable[[str], None] = lambda line: None
) -> list[tuple[str, str]]:
    """Returns (file, name to show) of all files of the sources; takes and raises what `find` does.

    `say`: is called with a line on files that are not taken.
    """
    if kind not in KINDS:
        raise UserError(f"Unknown kind {kind!r}; known: {', '.join(KINDS)}.")
    if not sources:
        raise UserError("Nothing to index: name folders, globs, TFRecords or tables of paths.")
    files = [file for source in sources for file in _files(kind, str(source), split, say)]
    for path in side_files(file for file, _ in files):
        fields_by_id(path)  # damage shows before anything is made
    return files


def product_field(sources: Iterable[str]) -> str:
    """Returns the field whose value pictures of one product share, as a data set made of a table says; "" of others."""
    paths = (as_path(source) / DESCRIPTION for source in sources)
    return next((str(read_json(path).get("product") or "") for path in paths if path.is_file()), "")


def side_files(files: Iterable[str]) -> list[pathlib.Path]:
    """Returns the files of fields of the data sets that these files belong to."""
    folders = {as_path(file).parent: file for file in files if as_path(file).suffix.lower() == RECORDS}
    return sorted({path for file in folders.values() if (path := fields_file(file))}, key=str)


RECORD_BYTES, LINE_BYTES = 30_000, 50  # of a record with its image, of a text: how many items a file holds, about


def cut_files(kind: str, files: Iterable[tuple[str, str]], items: int) -> list[list[Piece]]:
    """Cuts files into pieces and groups these, in order, so that each group holds about `items` items."""
    groups: list[list[Piece]] = [[]]
    held = 0
    for file, name in files:
        for unit in _units(kind, file, items):
            if held and held + unit.weight > items:
                groups.append([])
                held = 0
            groups[-1].append((name, unit))
            held += unit.weight
    return groups


def _units(kind: str, file: str, items: int) -> list[Unit]:
    path = as_path(file)
    ending = path.suffix.lower()
    if not path.is_file() or not (kind == TEXTS or ending in (RECORDS, TABLE)):
        return [Unit(absolute(file), 0, 1, path.stat().st_size if path.is_file() else 0, 1)]
    if ending == RECORDS:
        # Only files of this machine are cut: the lengths before a part are read one by one.
        size, most = path.stat().st_size // RECORD_BYTES, 1 if isinstance(path, RemotePath) else None
    else:
        size, most = unpacked_size(path) // LINE_BYTES, None
    return [unit._replace(path=absolute(file)) for unit in cut(path, max(1, size), items, most)]


def _files(kind: str, source: str, split: str, say: Callable[[str], None]) -> list[tuple[str, str]]:
    """Returns (file, name to show) of all files of a source."""
    path = as_path(source)
    if path.is_dir():
        files = _files_of_folder(kind, path, split, say)
    elif path.is_file():
        return [(str(path), str(path))]
    else:
        matches = find_paths(source)
        if not matches:
            raise UserError(
                f"{source} does not exist. Expected a folder, a file or a pattern (quote it: 'photos/**/*.jpg')."
            )
        return [file for match in matches if match.is_file() for file in _files(kind, str(match), split, say)]
    if not files:
        raise UserError(
            f"No {kind} in {source}: expected "
            + (f"files ending in .{', .'.join(ENDINGS)}, or " if kind == IMAGES else "")
            + f"TFRecords ({IMAGE_TEXT}/{split or '<split>'}-*.tfrecord), in it or below it."
        )
    return files


def _files_of_folder(kind: str, folder: pathlib.Path, split: str, say: Callable[[str], None]) -> list[tuple[str, str]]:
    record_folder = folder / IMAGE_TEXT
    if split or record_folder.is_dir():
        pattern = f"{glob.escape(split)}-*{RECORDS}" if split else f"*{RECORDS}"
        shards = sorted(record_folder.glob(pattern))
        if not shards and split:
            shards = sorted(folder.glob(f"*{RECORDS}")) if split == "train" else []  # img2dataset's are "train"
            if not shards:
                raise UserError(
                    f"No {IMAGE_TEXT} records of split {split!r} in {folder}: "
                    f"expected {folder}/{IMAGE_TEXT}/{split}-*{RECORDS}."
                )
        names = [str(shard) for shard in shards]
        return [(name, name) for name in sorted([*names, *missing_shards(names)])]  # `_read` names the missing
    files, others = picture_files(folder, [RECORDS.removeprefix(".")])
    is_wanted = (RECORDS,) if kind == TEXTS else (RECORDS, *(f".{ending}" for ending in ENDINGS))
    kept = [path for path in files if path.suffix.lower() in is_wanted]
    kept = [path for path in kept if not (path.suffix.lower() == RECORDS and path.parent.name == TEXT_PAIRS)]
    for reason, paths in others.items() if kind == IMAGES and kept else ():
        say(f"Not taken: {len(paths):,} x {reason}, first {paths[0]}")
    return [(str(path), str(path.relative_to(folder))) for path in sorted(kept, key=lambda path: str(path))]


def read_files(kind: str, files: Iterable[tuple[str, str]]) -> Iterator[Found]:
    """Yields what the files of `list_files` hold."""
    return read(kind, ((name, Unit(absolute(file), 0, 1, 0, 0)) for file, name in files))


def read(kind: str, pieces: Iterable[Piece]) -> Iterator[Found]:
    """Yields what pieces hold."""
    for name, unit in pieces:
        file = unit.path
        ending = as_path(file).suffix.lower()
        if "://" not in file and not os.path.isfile(file):  # a folder of that name; a pipe, which would wait
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
    """Returns the name of a file or folder from anywhere."""
    file = str(file)
    return file if "://" in file else os.path.abspath(file)


def _read_table(unit: Unit) -> Iterator[Found]:
    """Lines of path[TAB]caption[TAB]language of the caption[TAB]fields; a missing file shows when it is read."""
    folder, columns = as_path(unit.path).parent, _columns(unit, OF_IMAGES)
    for line in _lines(unit):
        cells = [] if isinstance(line, Unreadable) else line.split("\t")
        if not cells:
            yield line
        elif cells != columns:
            name, caption, language = [*cells, "", ""][:3]
            path, captions = folder / name, ((language, caption),) if caption else ()
            try:
                path_below(folder, name)  # a foreign table's names will be shown
            except BadImage as error:
                yield Unreadable(name, f"{str(error).capitalize()}.", (unit.path, name))
            else:
                fields = _fields(columns, cells, OF_IMAGES)
                yield Item(name, absolute(str(path)), captions=captions, fields=fields), path


def _read_texts(unit: Unit) -> Iterator[Found]:
    """Lines of text, or of language[TAB]text[TAB]fields in a table."""
    table = unit.path.endswith(TABLE)
    columns = _columns(unit, OF_TEXTS) if table else []
    for line in _lines(unit):
        if isinstance(line, Unreadable):
            yield line
            continue
        cells = line.split("\t", -1 if columns else 1) if table and "\t" in line else ["", line]
        language, text = cells[:2]
        if text.strip() and cells != columns:
            yield Item(text, language=language, fields=_fields(columns, cells, OF_TEXTS)), text


def _columns(unit: Unit, first: Sequence[str]) -> list[str]:
    """Returns the names of a table's columns, [] if its first line is not one of names that begins with these."""
    for _, line in read_lines(unit.path, lambda *problem: None):
        names = (line or "").split("\t")
        return names if names[: len(first)] == [*first] else []
    return []


def _fields(columns: Sequence[str], cells: Sequence[str], first: Sequence[str]) -> dict[str, str]:
    """Returns the cells of further columns that have a name and are not empty."""
    named = zip(columns[len(first) :], cells[len(first) :])
    return {name.strip(): cell.strip() for name, cell in named if name.strip() and cell.strip()}


def _lines(unit: Unit) -> Iterator[str | Unreadable]:
    """Yields the lines that are not empty, and the lines that cannot be read."""
    problems: list[tuple[str, str]] = []
    part = unit.part(unpacked_size(as_path(unit.path))) if unit.parts > 1 else ALL_LINES
    lines = read_lines(unit.path, lambda *problem: problems.append(problem), part)
    for _, line in itertools.chain(lines, [(0, None)]):
        if line is not None and line.strip():
            yield line
        for reason, location in problems:
            yield Unreadable(location, f"{reason[0].upper()}{reason[1:]}.", (unit.path, location))
        problems.clear()


def _read_records(kind: str, unit: Unit) -> Iterator[Found]:
    """Yields items of the whole records; a loss between them is yielded at its place, with its number."""
    path, lost, fields_of = unit.path, [], fields_by_id(fields_file(unit.path))
    part = unit.part(as_path(path).stat().st_size) if unit.parts > 1 else ALL_LINES
    framed = tfrecord.read_all(path, lambda *problem: lost.append(problem), open_path, *part)
    for offset, serialized in itertools.chain(framed, [(0, None)]):
        for problem, location, count in lost:
            yield Unreadable(location, f"{count} x {problem}.", (path, location), count)
        lost.clear()
        if serialized is not None:
            yield from _read_record(kind, path, offset - tfrecord.HEADER, serialized, fields_of)


def _read_record(kind: str, path: str, offset: int, serialized: bytes, fields_of) -> Iterator[Found]:
    try:
        image = image_of_record(serialized, path)
    except ValueError as error:
        yield Unreadable(f"{path}#{offset}", str(error), (path, str(offset)))
        return
    feature = Example.FromString(serialized).features.feature

    def strings(*names: str) -> list[str]:
        name = next((name for name in names if name in feature), names[0])
        return [value.decode("utf-8", "replace") for value in feature[name].bytes_list.value]

    texts, languages = strings("caption", "txt"), strings("language")
    captions = [(a, text) for a, text in zip([*languages, *[""] * len(texts)], texts) if text.strip()]
    name = (strings("image_id", "key") or [""])[0] or f"{path}#{offset}"
    for described in fields_of(name):  # several items may share the image
        own = [(language, text) for language, text in described.get("captions", captions)]
        if kind == IMAGES:
            yield Item(described.get("name", name), path, offset, tuple(own), fields=described["fields"]), image
        else:
            for language, text in own:
                yield Item(text, path, offset, language=language, fields=described["fields"]), text


def key_of(kind: str, item: Item) -> tuple[str, str]:
    """Returns what makes two items the same: an image's file, or its id in one folder of records; a text, its language.

    Image-text records may repeat their image for every caption; it is indexed once. What came from a table, or has no
    picture, is known by its name: two products may share a picture.
    """
    if kind == TEXTS:
        return item.language, item.name
    if item.digest or not item.path:
        return "name", item.name
    return (os.path.dirname(item.path), item.name) if item.offset >= 0 else ("", item.path)


# The fields of a data set.

# Next to dataset.json: one line {"image_id": …, "fields": {name: text}} per image. Items that share an image have a
# line each, with their own "name" and "captions": [[language, text], …].
FIELDS = "fields.jsonl"


def fields_file(record_file: str | os.PathLike) -> pathlib.Path | None:
    """Returns the file of fields of the data set that a file of records belongs to, None without such a file."""
    path = as_path(record_file).parent.parent / FIELDS
    return path if path.is_file() else None


def fields_by_id(path: pathlib.Path | None) -> Callable[[str], list[dict]]:
    """Returns a function from an image's id to its items' entries in a data set's file of fields, if that exists.

    Each has "fields", and "name" and "captions" where several items share the image. The last of several lines of one
    id and name counts. Raises `UserError` for a line that is damaged.
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
        lines = database.execute("SELECT line FROM items WHERE image = ? ORDER BY rowid", (image_id,)).fetchall()
        return [json.loads(line) for (line,) in lines] or [{"fields": {}}]

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
