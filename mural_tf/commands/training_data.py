"""What a model is trained on of somebody's own table: a record for each picture, translation pairs, splits by product.

Equal pictures meet by a hash of their content, so that none of them is in two splits. It is a data set as any other:
dataset_builder.py.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c
from PIL import Image

from mural_lite import tfrecord
from mural_lite.files import open_path, write_whole
from mural_lite.hashes import text_hash
from mural_lite.pictures import MAX_SCAN, BadImage, open_image, read_file, turned
from mural_lite.progress import tqdm
from mural_lite.record_format import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair, parse_record
from mural_lite.text_files import refuse
from mural_search.tables.products import Entry, RowTally, languages_of
from mural_tf.data.dataset_builder import build_folder, counts_of
from mural_tf.ingest.filters import usable_bytes

FORMAT = 3  # raised when the same table would give other records than before
NAME = "catalogue"
SKIPPED = "skipped.tsv"
WITHOUT_CAPTIONS = "uncaptioned"  # the split of pictures that nothing is learned from
AT_ONCE = 256  # pictures that are read side by side


@dataclasses.dataclass
class Picture:
    """A picture: its file, the hash of its content, and the entries that show it."""

    file: pathlib.Path
    digest: bytes
    entries: list[Entry] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The id of its record."""
        return self.entries[0].name

    def captions(self) -> list[Caption]:
        """Returns its captions; captions of a group mean the same: a row's, or all if each language has one."""
        rows = {}
        for entry in self.entries:
            for key, (row, _) in entry.captions.items():
                rows[key] = min(row, rows.get(key, row))
        captions = [Caption(text, language, row) for (language, text), row in rows.items()]
        if len({caption.language for caption in captions}) == len(captions):
            return [caption._replace(group=0) for caption in captions]
        languages: dict[int, list[str]] = collections.defaultdict(list)
        for caption in captions:
            languages[caption.group].append(caption.language)
        number_of = {row: number for number, row in enumerate(languages)}
        one_each = {row for row, row_languages in languages.items() if len(set(row_languages)) == len(row_languages)}
        return [
            caption._replace(group=number_of[caption.group] if caption.group in one_each else len(number_of) + number)
            for number, caption in enumerate(captions)
        ]


class Caption(NamedTuple):
    """A caption; captions of one group mean the same."""

    text: str
    language: str
    group: int


def pictures_of(entries: Sequence[Entry], tally: RowTally, progress: bool = True) -> list[Picture]:
    """Returns the different pictures of entries; `tally` counts pictures that do not decode."""
    by_file: dict[pathlib.Path, list[Entry]] = {}
    for entry in entries:
        if entry.file is not None:
            by_file.setdefault(entry.file, []).append(entry)
    pictures: dict[bytes, Picture] = {}
    files = list(by_file)
    bar = tqdm(desc="Reading pictures", total=len(files), unit=" pictures", disable=not progress)
    with bar, concurrent.futures.ThreadPoolExecutor(max(4, os.cpu_count() or 1)) as pool:
        for start in range(0, len(files), AT_ONCE):
            block = files[start : start + AT_ONCE]
            for file, (digest, problem) in zip(block, pool.map(_looked_at, block)):
                if problem:
                    tally.places.append((problem, str(file)))
                else:
                    pictures.setdefault(digest, Picture(file, digest)).entries += by_file[file]
            bar.update(len(block))
    return list(pictures.values())


def _looked_at(file: pathlib.Path) -> tuple[bytes, str]:
    """Returns the hash of a picture's file, and why it cannot be used or ""."""
    try:
        data = read_file(file)
        opened = open_image(data, MAX_SCAN)
        opened.draft("L", (32, 32))
        turned(opened)
    except (BadImage, OSError, Image.DecompressionBombError) as error:
        return b"", str(error) if isinstance(error, BadImage) else "picture that cannot be read"
    return hashlib.blake2b(data, digest_size=16).digest(), ""


@dataclasses.dataclass
class Group:
    """The pictures of one product, or of products that share one; `key`: in whose order groups are dealt out."""

    key: int
    pictures: list[Picture]


def find_groups(pictures: Sequence[Picture]) -> list[Group]:
    """Returns the products with their pictures, in an order that only their names decide."""
    leader = list(range(len(pictures)))

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = number = leader[leader[number]]
        return number

    first: dict[str, int] = {}
    keys = []
    for number, picture in enumerate(pictures):
        products = {entry.product for entry in picture.entries if entry.product}
        # Ids decide where there are some, so that a product with another picture stays in its split.
        keys.append(min(map(text_hash, products), default=int.from_bytes(picture.digest[:8], "little")))
        for product in products:
            leader[find(number)] = find(first.setdefault(product, number))
    groups: dict[int, Group] = {}
    for number, picture in enumerate(pictures):
        group = groups.setdefault(find(number), Group(keys[number], []))
        group.key = min(group.key, keys[number])
        group.pictures.append(picture)
    return sorted(groups.values(), key=lambda group: (group.key, group.pictures[0].name))


LARGEST_SPLIT, SHARE = 1000, 0.1  # products in dev, and in test


def held_out(count: int) -> int:
    """Returns how many of `count` products go to dev, and as many to test: a tenth, of few products a fifth."""
    return min(LARGEST_SPLIT, max(round(SHARE * count), min(50, count // 5), int(count > 2)))


def make_data_set(
    entries: Sequence[Entry],
    output: str | os.PathLike,
    tally: RowTally,
    image_size: int = 512,
    progress: bool = True,
    trained_on: Callable[[], Collection[str]] = frozenset,
) -> pathlib.Path:
    """Makes the data set `output` of a table, unless it exists, and returns it.

    Args:
      entries: of `products.read`.
      output: a folder; it appears when it is complete, in place of one that was made of an earlier state of the table.
      tally: of the rows; pictures that do not decode are told to it.
      image_size: pictures whose shorter side is longer are shrunk to it, in pixels; 0 keeps them.
      progress: whether to show a bar.
      trained_on: returns the ids of pictures that a model was trained on: their products stay in train.

    Raises:
      UserError: `output` holds something else, or the disk is full.
    """

    def write(folder: pathlib.Path) -> dict:
        pictures = pictures_of(entries, tally, progress)
        _write_records(pictures, folder, image_size, trained_on())
        if tally.places:
            write_whole(folder / SKIPPED, "".join(f"{problem}\t{location}\n" for problem, location in tally.places))
        files = [*sorted(folder.glob(f"{IMAGE_TEXT}/*")), *sorted(folder.glob(f"{TEXT_PAIRS}/*"))]
        shards = {f"{path.parent.name}/{path.name}": _counted(path) for path in files}
        languages = {language: counts._asdict() for language, counts in languages_of(entries).items()}
        return {**counts_of(shards), **tally.described(), "captions": languages, "shards": shards}

    said = hashlib.blake2b(json.dumps([[entry.name, entry.digest()] for entry in entries]).encode(), digest_size=16)
    identity = {"name": NAME, "format": FORMAT, "image_size": image_size, "entries": said.hexdigest()}
    return build_folder(output, identity, write, follows=True)


def _write_records(pictures: Sequence[Picture], folder: pathlib.Path, image_size: int, seen: Collection[str]) -> None:
    from mural_tf.data.records import write_records  # with TensorFlow

    def is_known(group: Group) -> bool:
        return any(entry.name in seen for picture in group.pictures for entry in picture.entries)

    groups = find_groups(pictures)
    held = held_out(len(groups))
    groups = sorted(groups, key=is_known)
    free = min(2 * held, sum(not is_known(group) for group in groups))
    parts = {"dev": groups[: (free + 1) // 2], "test": groups[(free + 1) // 2 : free], "train": groups[free:]}
    by_split: dict[str, list[Picture]] = {}
    for split, split_items in parts.items():
        for picture in (picture for group in split_items for picture in group.pictures):
            by_split.setdefault(split if picture.captions() else WITHOUT_CAPTIONS, []).append(picture)
    for split, split_items in by_split.items():
        shards = 1 + len(split_items) // 1000  # of some 64 MB
        write_records(folder, IMAGE_TEXT, split, _records(split_items, image_size), shards)
    train = by_split.get("train", [])
    if any(True for _ in _pairs(train, pictures)):
        write_records(folder, TEXT_PAIRS, "train", _pairs(train, pictures))


def _records(pictures: Iterable[Picture], image_size: int) -> Iterator[ImageTextRecord]:
    for picture in pictures:
        data = read_file(picture.file)
        image = usable_bytes(data, open_image(data, MAX_SCAN), image_size)
        texts, languages, groups = zip(*picture.captions()) if picture.captions() else ((), (), ())
        yield ImageTextRecord(picture.name, image, texts, languages, [f"{picture.name}/{group}" for group in groups])


def _pairs(train: Iterable[Picture], pictures: Iterable[Picture]) -> Iterator[TextPair]:
    """Yields translations: each caption of a group with its English caption, else with the commonest language's."""
    counts = collections.Counter(caption.language for picture in pictures for caption in picture.captions())
    order = sorted(counts, key=lambda tag: (tag != "en", -counts[tag], tag))
    seen: set[int] = set()
    for picture in train:
        for group in _translations(picture.captions()):
            first, *others = sorted(group, key=lambda caption: order.index(caption.language))
            for other in others:
                values = (first.text, first.language, other.text, other.language)
                key = text_hash("\t".join(values))
                if key not in seen:
                    seen.add(key)
                    yield TextPair(*values, picture.name)


def _translations(captions: Sequence[Caption]) -> list[list[Caption]]:
    groups: dict[int, list[Caption]] = {}
    for caption in captions:
        groups.setdefault(caption.group, []).append(caption)
    several = [group for group in groups.values() if len(group) > 1]
    first_of_each = list({caption.language: caption for caption in reversed(captions)}.values())
    return several or ([first_of_each] if len(first_of_each) > 1 else [])


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
