"""Where images and texts to index come from: folders, globs, single files, TFRecords and tables (TSV) of paths.

Every function yields (item, content) in an order that only the files determine, so that an interrupted index can be
continued; `content` is what `Embedder` encodes: a path or bytes for an image, a str for a text. What cannot be read is
yielded as `Unreadable`.
"""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Union

from mural_tf.data import records, tfrecord
from mural_tf.data.pictures import ENDINGS, BadImage, path_below
from mural_tf.errors import UserError
from mural_tf.ingest.text_files import read_lines
from mural_tf.search.items import IMAGES, KINDS, TEXTS, Item, image_of_record

TABLE, RECORDS = ".tsv", ".tfrecord"


class Unreadable(NamedTuple):
    """Something named by a source that cannot be indexed, why, and a key as `key_of` gives one to every item."""

    name: str
    reason: str
    key: tuple[str, ...]


Found = Union[tuple[Item, object], Unreadable]


def find(kind: str, sources: Sequence[str], split: str = "") -> Iterator[Found]:
    """Yields what the sources hold.

    Args:
      kind: "images" or "texts" (captions of records, lines of tables and text files).
      sources: folders of image files, folders of TFRecords (the project's or img2dataset's), globs, image files,
        `.tfrecord` files; `.tsv` files: path[TAB]caption for images (relative to the table), language[TAB]text for
        texts; other text files: a text a line.
      split: of folders of the project's TFRecords; "": every split.

    Raises:
      UserError: a source that does not exist or holds nothing of the kind, before anything is yielded.
    """
    if kind not in KINDS:
        raise UserError(f"Unknown kind {kind!r}; known: {', '.join(KINDS)}.")
    if not sources:
        raise UserError("Nothing to index: name folders, globs, TFRecords or tables of paths.")
    files = [file for source in sources for file in _files(kind, str(source), split)]
    return _read(kind, files)


def _files(kind: str, source: str, split: str) -> list[tuple[str, str]]:
    """Returns (file, name to show) of everything a source stands for."""
    path = pathlib.Path(source)
    if path.is_dir():
        found = _files_of_folder(kind, path, split)
    elif path.is_file():
        return [(source, source)]
    else:
        matches = sorted(glob.glob(source, recursive=True))
        if not matches:
            raise UserError(
                f"{source} does not exist. Expected a folder, a file or a pattern (quote it: 'photos/**/*.jpg')."
            )
        return [file for match in matches if os.path.isfile(match) for file in _files(kind, match, split)]
    if not found:
        raise UserError(
            f"No {kind} in {source}: expected "
            + (f"files ending in .{', .'.join(ENDINGS)}, or " if kind == IMAGES else "")
            + f"TFRecords ({records.IMAGE_TEXT}/{split or '<split>'}-*.tfrecord), in it or below it."
        )
    return found


def _files_of_folder(kind: str, folder: pathlib.Path, split: str) -> list[tuple[str, str]]:
    record_folder = folder / records.IMAGE_TEXT
    if split or record_folder.is_dir():
        pattern = f"{glob.escape(split)}-*{RECORDS}" if split else f"*{RECORDS}"
        shards = sorted(record_folder.glob(pattern))
        if not shards and split:
            records.list_files(folder, records.IMAGE_TEXT, split)  # says what is missing; img2dataset's are "train"
            shards = sorted(folder.glob(f"*{RECORDS}"))
        names = [str(shard) for shard in shards]
        return [(name, name) for name in sorted([*names, *records.missing_shards(names)])]  # `_read` names the missing
    endings = ENDINGS if kind == IMAGES else ()
    found = []
    for path in folder.rglob("*"):
        ending = path.suffix.lower()
        is_record_file = ending == RECORDS and path.parent.name != records.TEXT_PAIRS  # those hold no images
        if ending[1:] in endings or is_record_file:
            found.append((path.relative_to(folder).as_posix(), str(path)))
    return [(path, name) for name, path in sorted(found)]


def _read(kind: str, files: Iterable[tuple[str, str]]) -> Iterator[Found]:
    for file, name in files:
        ending = pathlib.Path(file).suffix.lower()
        if not os.path.isfile(file):  # a folder of that name; a pipe, which would wait for its other end
            yield Unreadable(name, "Not a regular file, or a link that leads nowhere.", ("", os.path.abspath(file)))
        elif ending == RECORDS:
            yield from _read_records(kind, file)
        elif kind == TEXTS:
            yield from _read_texts(file)
        elif ending == TABLE:
            yield from _read_table(file)
        else:
            yield Item(name, os.path.abspath(file)), pathlib.Path(file)


def _read_table(file: str) -> Iterator[Found]:
    """Lines of path[TAB]caption[TAB]language of the caption; a missing file shows when it is read."""
    folder = pathlib.Path(file).parent
    for line in _lines(file):
        if isinstance(line, Unreadable):
            yield line
            continue
        name, caption, language = [*line.split("\t"), "", ""][:3]
        path = folder / name
        captions = ((language, caption),) if caption else ()
        try:
            path_below(folder, name)  # the table may be anybody's, and what it names will be shown
        except BadImage as error:
            yield Unreadable(name, f"{str(error).capitalize()}.", (file, name))
        else:
            yield Item(name, os.path.abspath(path), captions=captions), path


def _read_texts(file: str) -> Iterator[Found]:
    """Lines of text, or of language[TAB]text in a table."""
    table = file.endswith(TABLE)
    for line in _lines(file):
        if isinstance(line, Unreadable):
            yield line
            continue
        language, _, text = line.partition("\t") if table and "\t" in line else ("", "", line)
        if text.strip():
            yield Item(text, language=language), text


def _lines(file: str) -> Iterator[str | Unreadable]:
    """Yields the lines that hold something, and those that cannot be read."""
    problems: list[tuple[str, str]] = []
    for _, line in read_lines(file, lambda *problem: problems.append(problem)):
        if line is not None and line.strip():
            yield line
        for reason, place in problems:
            yield Unreadable(place, f"{reason[0].upper()}{reason[1:]}.", (file, place))
        problems.clear()


def _read_records(kind: str, file: str) -> Iterator[Found]:
    """Items of the records that are whole; what is lost between them stands, with its number, where it was."""
    path, lost = os.path.abspath(file), []
    for index, (offset, serialized) in enumerate(tfrecord.read_all(path, lambda *problem: lost.append(problem))):
        yield from _unreadable_records(path, lost)
        yield from _read_record(kind, path, offset - tfrecord.HEADER, index, serialized)
    yield from _unreadable_records(path, lost)


def _unreadable_records(path: str, lost: list[tuple[str, str, int]]) -> Iterator[Unreadable]:
    """Yields what `tfrecord.read_all` has reported since the last call."""
    for problem, place, count in lost:
        yield Unreadable(place, f"{count} x {problem}.", (path, place))
    lost.clear()


def _read_record(kind: str, path: str, offset: int, index: int, serialized: bytes) -> Iterator[Found]:
    import tensorflow as tf

    try:
        image = image_of_record(serialized, path)
    except ValueError as error:
        yield Unreadable(f"{path}#{index}", str(error), (path, str(offset)))
        return
    feature = tf.train.Example.FromString(serialized).features.feature

    def strings(*names: str) -> list[str]:
        name = next((name for name in names if name in feature), names[0])
        return [value.decode("utf-8", "replace") for value in feature[name].bytes_list.value]

    texts, languages = strings("caption", "txt"), strings("language")
    captions = [(a, text) for a, text in zip([*languages, *[""] * len(texts)], texts) if text.strip()]
    name = (strings("image_id", "key") or [""])[0] or f"{path}#{index}"
    if kind == IMAGES:
        yield Item(name, path, offset, tuple(captions)), image
    else:
        for language, text in captions:
            yield Item(text, path, offset, language=language), text


def key_of(kind: str, item: Item) -> tuple[str, str]:
    """Returns what makes two items the same: an image's file, or its id in one folder of records; a text, its language.

    Image-text records may repeat their image for every caption; it is indexed once.
    """
    if kind == TEXTS:
        return item.language, item.name
    return (os.path.dirname(item.path), item.name) if item.offset >= 0 else ("", item.path)
