"""The training data of somebody's own table: a record for each picture, translation pairs, and splits by product.

Equal pictures are recognised by a hash of their content, so that no picture is in two splits. The result is a data set
as any other: dataset_builder.py.
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
WITHOUT_CAPTIONS = "uncaptioned"  # the split of pictures without captions, which are only searched
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
        """Returns its captions; captions of one group mean the same.

        If no language has two captions, all captions are one group. Otherwise a row with at most one caption per
        language is a group, and any other caption is a group by itself.
        """
        first_rows = self._first_rows()
        if _all_differ([language for language, _ in first_rows]):
            return [Caption(text, language, 0) for language, text in first_rows]
        row_languages = collections.defaultdict(list)  # {row: languages of its captions}
        for (language, _), row in first_rows.items():
            row_languages[row].append(language)
        row_groups = {row: group for group, row in enumerate(row_languages)}
        captions = []
        for number, ((language, text), row) in enumerate(first_rows.items()):
            group = len(row_groups) + number  # of a single caption: no row's
            if _all_differ(row_languages[row]):
                group = row_groups[row]
            captions.append(Caption(text, language, group))
        return captions

    def _first_rows(self) -> dict[tuple[str, str], int]:
        """Returns {(language, text) of a caption: the number of the first row that has it}."""
        first_rows = {}
        for entry in self.entries:
            for key, (row, _) in entry.captions.items():
                first_rows[key] = min(row, first_rows.get(key, row))
        return first_rows


def _all_differ(values: Sequence[str]) -> bool:
    """Whether no value comes twice."""
    return len(set(values)) == len(values)


class Caption(NamedTuple):
    """A caption; captions of one group mean the same."""

    text: str
    language: str
    group: int


def pictures_of(entries: Sequence[Entry], tally: RowTally, progress: bool = True) -> list[Picture]:
    """Reads the pictures of entries and returns the different pictures, which hold the entries that show them.

    Pictures that do not decode are added to `tally.places`. `progress`: whether to show a bar.
    """
    by_file = {}  # {file: entries}
    for entry in entries:
        if entry.file is not None:
            by_file.setdefault(entry.file, []).append(entry)
    pictures = {}  # {digest: picture}
    files = list(by_file)
    bar = tqdm(desc="Reading pictures", total=len(files), unit=" pictures", disable=not progress)
    with bar, concurrent.futures.ThreadPoolExecutor(max(4, os.cpu_count() or 1)) as pool:  # 4: reading waits
        for start in range(0, len(files), AT_ONCE):
            block = files[start : start + AT_ONCE]
            for file, (digest, problem) in zip(block, pool.map(_digest_or_problem, block)):
                if problem:
                    tally.places.append((problem, str(file)))
                else:
                    picture = pictures.setdefault(digest, Picture(file, digest))
                    picture.entries += by_file[file]
            bar.update(len(block))
    return list(pictures.values())


def _digest_or_problem(file: pathlib.Path) -> tuple[bytes, str]:
    """Returns the hash of a picture's file, and ""; or b"" and the problem with a picture that does not decode."""
    try:
        data = read_file(file)
        opened = open_image(data, MAX_SCAN)
        opened.draft("L", (32, 32))  # a JPEG is decoded at a small size, which is faster
        turned(opened)  # decodes the picture; the result is not needed
    except BadImage as error:
        return b"", str(error)
    except (OSError, Image.DecompressionBombError):
        return b"", "picture that cannot be read"
    return hashlib.blake2b(data, digest_size=16).digest(), ""


@dataclasses.dataclass
class Group:
    """The pictures of one product, or of products that share pictures; groups are split in the order of `key`."""

    key: int
    pictures: list[Picture]


def find_groups(pictures: Sequence[Picture]) -> list[Group]:
    """Returns the pictures in groups that share no product, sorted by hashes of products' ids: in a stable order."""
    leader = list(range(len(pictures)))  # a forest: pictures of one group lead to the same picture (union-find)

    def root(number: int) -> int:
        """Returns the picture to which all pictures of a picture's group lead."""
        while leader[number] != number:
            leader[number] = leader[leader[number]]  # shortens the way for the next call
            number = leader[number]
        return number

    first_pictures = {}  # {product: its first picture}
    keys = []
    for number, picture in enumerate(pictures):
        products = {entry.product for entry in picture.entries if entry.product}
        # The ids of products decide, if there are any: a product that gets another picture then stays in its split.
        # Else 64 bits of the picture's hash, as many as `text_hash` has.
        keys.append(min(map(text_hash, products), default=int.from_bytes(picture.digest[:8], "little")))
        for product in products:
            first_picture = first_pictures.setdefault(product, number)
            leader[root(number)] = root(first_picture)
    groups = {}  # {root: group}
    for number, picture in enumerate(pictures):
        group = groups.setdefault(root(number), Group(keys[number], []))
        group.key = min(group.key, keys[number])
        group.pictures.append(picture)
    return sorted(groups.values(), key=lambda group: (group.key, group.pictures[0].name))


LARGEST_SPLIT = 1000  # products in dev, and in test
SHARE = 0.1  # share of the products in dev, and in test


def held_out(count: int) -> int:
    """Returns how many of `count` products go to dev, and as many to test.

    A fifth of up to 250 products, 50 of up to 500, and above this a tenth, but at most `LARGEST_SPLIT`; 1 of 3 or 4.
    """
    if count <= 2:
        return 0
    few = min(50, count // 5)
    return min(LARGEST_SPLIT, max(1, few, round(SHARE * count)))


def make_data_set(
    entries: Sequence[Entry],
    output: str | os.PathLike,
    tally: RowTally,
    image_size: int = 512,
    progress: bool = True,
    trained_on: Callable[[], Collection[str]] = frozenset,
) -> pathlib.Path:
    """Makes the data set of a table, unless it exists, and returns its folder.

    Args:
      entries: the entries of `products.read`.
      output: a folder; it appears when it is complete, and replaces the data set of an earlier state of the table.
      tally: counts of the rows, to whose `places` pictures that do not decode are added.
      image_size: pixels; pictures whose shorter side is longer are shrunk to this side. 0 keeps them.
      progress: whether to show a bar.
      trained_on: a function without arguments that returns the ids of pictures that a model was trained on: their
        products stay in train.

    Raises:
      UserError: `output` holds something else, or the disk is full.
    """

    def write(folder: pathlib.Path) -> dict:
        """Writes the records and the list of skipped rows into a folder; returns their values of `dataset.json`."""
        pictures = pictures_of(entries, tally, progress)
        _write_records(pictures, folder, image_size, trained_on(), tally)
        if tally.places:
            write_whole(folder / SKIPPED, "".join(f"{problem}\t{location}\n" for problem, location in tally.places))
        paths = [*sorted(folder.glob(f"{IMAGE_TEXT}/*")), *sorted(folder.glob(f"{TEXT_PAIRS}/*"))]
        shards = {f"{path.parent.name}/{path.name}": _describe_shard(path) for path in paths}
        languages = {language: counts._asdict() for language, counts in languages_of(entries).items()}
        return {**counts_of(shards), **tally.described(), "captions": languages, "shards": shards}

    contents = json.dumps([[entry.name, entry.digest(), *_size_and_time(entry.file)] for entry in entries])
    digest = hashlib.blake2b(contents.encode(), digest_size=16).hexdigest()
    identity = {"name": NAME, "format": FORMAT, "image_size": image_size, "entries": digest}
    return build_folder(output, identity, write, follows=True)


def _size_and_time(file: pathlib.Path | None) -> tuple[int, ...]:
    """Returns a picture's size in bytes and the time of its last change in ns; () without a file, or in a store.

    An entry's digest has only the file's name, and a picture may be replaced in its place. A store would be asked once
    per picture.
    """
    if not isinstance(file, pathlib.Path):
        return ()
    try:
        status = file.stat()
    except OSError:
        return ()  # `pictures_of` says that it cannot be read
    return status.st_size, status.st_mtime_ns


def _write_records(
    pictures: Sequence[Picture], folder: pathlib.Path, image_size: int, seen: Collection[str], tally: RowTally
) -> None:
    """Writes the records of pictures, by split, and of the translations among train's captions into a folder.

    Args:
      pictures: the pictures with their captions.
      folder: the data set's folder.
      image_size: as `make_data_set` takes it.
      seen: the ids of pictures that a model was trained on.
      tally: pictures that can no longer be read are added to its `places`.
    """
    from mural_tf.data.records import write_records  # with TensorFlow

    by_split = _split(pictures, seen)
    for split, split_pictures in by_split.items():
        shards = 1 + len(split_pictures) // 1000  # a thousand pictures are some 64 MB
        write_records(folder, IMAGE_TEXT, split, _records(split_pictures, image_size, tally), shards)
    train = by_split.get("train", [])
    has_pairs = any(True for _ in _pairs(train, pictures))  # which yields them anew below
    if has_pairs:
        write_records(folder, TEXT_PAIRS, "train", _pairs(train, pictures))


def _split(pictures: Sequence[Picture], seen: Collection[str]) -> dict[str, list[Picture]]:
    """Returns {split: pictures}; pictures without captions are in `WITHOUT_CAPTIONS` in place of their group's split.

    The first groups without a seen picture go to dev and test, all other groups to train. `seen` holds the ids of
    pictures that a model was trained on.
    """
    new_groups = []
    seen_groups = []
    for group in find_groups(pictures):
        if any(_is_seen(picture, seen) for picture in group.pictures):
            seen_groups.append(group)
        else:
            new_groups.append(group)
    product_count = len(new_groups) + len(seen_groups)
    held_out_count = min(2 * held_out(product_count), len(new_groups))  # of dev and test together
    dev_count = (held_out_count + 1) // 2  # an odd group goes to dev
    groups_of = {
        "dev": new_groups[:dev_count],
        "test": new_groups[dev_count:held_out_count],
        "train": new_groups[held_out_count:] + seen_groups,
    }
    by_split = {}
    for split, groups in groups_of.items():
        for group in groups:
            for picture in group.pictures:
                picture_split = split if picture.captions() else WITHOUT_CAPTIONS
                by_split.setdefault(picture_split, []).append(picture)
    return by_split


def _is_seen(picture: Picture, seen: Collection[str]) -> bool:
    """Whether the name of any entry of a picture is in `seen`."""
    return any(entry.name in seen for entry in picture.entries)


def _records(pictures: Iterable[Picture], image_size: int, tally: RowTally) -> Iterator[ImageTextRecord]:
    """Yields the record of each picture that can still be read; `image_size` as in `make_data_set`.

    Pictures that went away, or were damaged, since `pictures_of` read them are added to `tally.places`.
    """
    for picture in pictures:
        try:
            data = read_file(picture.file)
            image = usable_bytes(data, open_image(data, MAX_SCAN), image_size)
        except (OSError, ValueError, Image.DecompressionBombError):
            tally.places.append(("picture that cannot be read", str(picture.file)))
            continue
        captions = picture.captions()
        texts = [caption.text for caption in captions]
        languages = [caption.language for caption in captions]
        groups = [f"{picture.name}/{caption.group}" for caption in captions]
        yield ImageTextRecord(picture.name, image, texts, languages, groups)


def _pairs(train: Iterable[Picture], pictures: Iterable[Picture]) -> Iterator[TextPair]:
    """Yields translations of `train`: each caption of a group with its English caption, else the commonest language's.

    Captions of all `pictures` are counted to find the commonest language.
    """
    counts = collections.Counter()  # by language
    for picture in pictures:
        counts.update(caption.language for caption in picture.captions())
    order = sorted(counts, key=lambda tag: (tag != "en", -counts[tag], tag))  # English first, then the commonest
    yielded = set()  # hashes of pairs
    for picture in train:
        for group in _translations(picture.captions()):
            first, *others = sorted(group, key=lambda caption: order.index(caption.language))
            for other in others:
                values = (first.text, first.language, other.text, other.language)
                key = text_hash("\t".join(values))
                if key not in yielded:
                    yielded.add(key)
                    yield TextPair(*values, picture.name)


def _translations(captions: Sequence[Caption]) -> list[list[Caption]]:
    """Returns the groups of two captions or more; without such a group, the first caption of each language as a group.

    Without two languages there is no group.
    """
    groups = {}  # {number of a group: its captions}
    for caption in captions:
        groups.setdefault(caption.group, []).append(caption)
    translated_groups = [group for group in groups.values() if len(group) > 1]
    if translated_groups:
        return translated_groups
    first_of_language = {caption.language: caption for caption in reversed(captions)}  # the first is written last
    if len(first_of_language) > 1:
        return [list(first_of_language.values())]
    return []


def _describe_shard(path: pathlib.Path) -> dict:
    """Returns the entry of `dataset.json` for a file of records: {"bytes", "crc32c", "records", "languages"}."""
    languages = collections.Counter()
    count = 0
    for _, serialized in tfrecord.read_all(path, refuse, open_path):
        record = parse_record(serialized, str(path), count)
        count += 1
        if isinstance(record, ImageTextRecord):
            languages.update(record.languages)
        else:
            languages[f"{record.language_a} {record.language_b}"] += 1
    data = path.read_bytes()
    checksum = f"{google_crc32c.value(data):08x}"
    return {"bytes": len(data), "crc32c": checksum, "records": count, "languages": dict(sorted(languages.items()))}
