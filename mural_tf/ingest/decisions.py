"""What can only be decided over all data, before the first record is written.

Frequent texts and images, duplicates, where an image with an address lies, translations of captions, and which images
of a data set are held out. Every unit *asks* with rows of hashes, 12 to 32 bytes each, packed into blocks by the hash's
partition; each partition *decides*; what it decides is *kept* in a file for each unit that it concerns, or in one for
all. Images are never among the rows. The same units give the same decisions, in whatever order their rows arrive.

What is asked later may depend on what was decided before: there are stages (`stages`), and a stage whose files are
complete is not gone through again.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mural_tf.files import find, read_array, save_array, write_whole
from mural_tf.hashes import bytes_hash, contains, text_hash
from mural_tf.ingest.filters import Screen
from mural_tf.ingest.source import PAIR, Captioned, Pair, Reading, Settings, Source, Text
from mural_tf.ingest.sources.img2dataset import CaptionedImages, DownloadedImages
from mural_tf.ingest.sources.wit import HeldOut, Wit, image_hash
from mural_tf.ingest.translated_captions import keys_of, read_translations
from mural_tf.text_files import Unit

TEXTS, IMAGES = "frequent_texts", "frequent_images"
LOCATIONS, TRANSLATIONS, HELD_OUT = "locations", "translations", "held_out"
SAME_IMAGE, SAME_TEXT, SAME_PAIR = "duplicate image", "duplicate text", "duplicate pair"
CAPTIONS = "captions"  # hashes of a unit's captions, kept from one stage to the next
EVERYWHERE = -1  # in place of a unit's number: concerns all of them
ROWS_IN_A_PARTITION = 250_000  # about; a partition is decided in memory

_TWO = np.dtype([("key", "<u8"), ("other", "<u4")])  # half a hash tells the few others of one key apart
_ASKED = np.dtype([("key", "<u8"), ("unit", "<u4")])
_HALF = 2**32 - 1
_CAPTION = np.dtype([("record", "<u4"), ("image", "<u8"), ("text", "<u8"), ("pair", "<u8"), ("text_hash", "<u8")])
_PLACE = np.dtype([("key", "<u8"), ("shard", "<u4"), ("offset", "<u8"), ("size", "<u8")])


class Job(NamedTuple):
    """What one worker looks through to ask: a unit, a shard of downloaded images, or a file of translations."""

    kind: str  # "unit", LOCATIONS or TRANSLATIONS
    source: int  # or, of a file of translations, its number
    number: int  # of the unit or the shard


@dataclasses.dataclass
class Request:
    """Everything that a conversion reads and asks; travels to workers.

    Attributes:
      sources: in their canonical order.
      units: (source's number, unit), numbered in the order in which earlier ones win over later ones.
      settings: of the conversion.
      folder: keeps the decisions.
      partitions: of the rows.
    """

    sources: Sequence[Source]
    units: Sequence[tuple[int, Unit]]
    settings: Settings
    folder: pathlib.Path
    partitions: int = 1

    def stages(self) -> list[list[str]]:
        """Returns the kinds of decisions, those of a stage depending on those of the stages before."""
        filters = self.settings.filters
        images = [source for source in self.sources if isinstance(source, CaptionedImages)]
        first = [TEXTS] if filters.max_images_per_text else []
        first += [IMAGES] if filters.max_texts_per_image else []
        first += [LOCATIONS] if any(map(_is_downloaded, images)) else []
        first += [TRANSLATIONS] if self.settings.translations else []
        first += [HELD_OUT] if any(isinstance(source, Wit) and source.is_divided for source in self.sources) else []
        return [*([first] if first else []), *([kind] for kind in self.duplicates())]

    def duplicates(self) -> list[str]:
        """Returns what may occur once only, in the order in which it is decided."""
        kinds = {"text": [SAME_TEXT], "image": [SAME_IMAGE], "both": [SAME_IMAGE, SAME_TEXT], "pair": [SAME_PAIR]}
        return kinds.get(self.settings.drop_duplicates, [])

    def jobs(self, stage: Sequence[str]) -> list[Job]:
        """Returns what has to be looked through for a stage."""
        jobs = [Job("unit", source, number) for number, (source, _) in enumerate(self.units)]
        if LOCATIONS in stage:
            for index, source in enumerate(self.sources):
                if _is_downloaded(source):
                    jobs += [Job(LOCATIONS, index, number) for number in range(len(source.store().shards))]
        if TRANSLATIONS in stage:
            jobs += [Job(TRANSLATIONS, number, number) for number in range(len(self.translations()))]
        return jobs

    def translations(self) -> list[pathlib.Path]:
        """Returns the files of translations."""
        return [path for pattern in self.settings.translations for path in find(pattern)]

    def names(self) -> set[str]:
        """Returns the names of the files of decisions: looking for each would take a store longer than reading all."""
        return {path.name for path in self.folder.glob("*")}

    def decided(self, number: int, names: Collection[str]) -> Decided:
        """Returns what was decided about a unit, in the stages before `names` were looked up."""
        return Decided(self.folder, number, self.units[number][0], names)

    def partition(self, keys: np.ndarray) -> np.ndarray:
        """Returns the partitions of hashes."""
        return keys % np.uint64(self.partitions)


# Asking.


class Ask:
    """Looks through a job and returns rows of hashes; made once in every worker.

    For duplicates a unit is read once: what the last stage needs of its captions is kept as hashes (`_captions`).
    """

    def __init__(self, request: Request, stage: Sequence[str]):
        self.request, self.stage = request, stage
        self.screen, self.names = Screen(request.settings, request.folder), request.names()

    def __call__(self, job: Job) -> Iterator[tuple[tuple[str, int, int], tuple[bool, bytes]]]:
        """Yields ((kind, source where each has its own images or division, partition), (is an answer, packed rows))."""
        ask = {LOCATIONS: self._locations, TRANSLATIONS: self._translations}.get(job[0], self._unit)
        yield from ask(Job(*job))

    def _unit(self, job: Job) -> Iterator:
        if set(self.stage) & {SAME_IMAGE, SAME_TEXT, SAME_PAIR}:
            (kind,) = self.stage
            yield from self._asked(kind, 0, self._keys(kind, job), job)
            return
        source, unit = self.request.sources[job.source], self.request.units[job.number][1]
        rows: dict[str, list] = {kind: [] for kind in self.stage}
        by_language: dict[str, list[int]] = {}
        downloaded, reading = _is_downloaded(source), Reading()
        for item in source.read(unit, reading):
            if source.ITEM == PAIR:
                continue
            texts = list(source.texts(item))
            if HELD_OUT in rows and isinstance(source, Wit) and source.is_divided:
                for image, text in texts:
                    by_language.setdefault(text.language, []).append(int(image_hash(source.salt, image)))
            if LOCATIONS in rows and downloaded:
                rows[LOCATIONS].append(text_hash(item.image_file))
            if TEXTS in rows or IMAGES in rows:
                pairs = [(text_hash(text.text), text_hash(image)) for image, text in texts]
                rows.get(TEXTS, []).extend((text, image & _HALF) for text, image in pairs)
                rows.get(IMAGES, []).extend((image, text & _HALF) for text, image in pairs)
            if TRANSLATIONS in rows:
                rows[TRANSLATIONS] += [text_hash(key) for _, text in texts for key in keys_of(text)]
        for language, hashes in by_language.items():
            block = json.dumps(language).encode() + b"\n" + np.array(hashes, "<u8").tobytes()
            yield (HELD_OUT, job.source, 0), (False, block)
        for kind in (TEXTS, IMAGES):
            if kind in rows:
                yield from self._packed(kind, 0, np.unique(np.array(rows[kind], _TWO)), answer=False)
        for kind, of in ((LOCATIONS, job.source), (TRANSLATIONS, 0)):
            if kind in rows:
                yield from self._asked(kind, of, np.array(rows[kind], "<u8"), job)

    def _asked(self, kind: str, source: int, keys: np.ndarray, job: Job) -> Iterator:
        keys = np.unique(keys)
        table = np.zeros(keys.size, _ASKED)
        table["key"], table["unit"] = keys, job.number
        yield from self._packed(kind, source, table, answer=False)

    def _keys(self, kind: str, job: Job) -> np.ndarray:
        """Returns the keys of what a unit's records would be duplicates by, of those that pass the filters of texts."""
        decided = self.request.decided(job.number, self.names)
        rows = self._captions(job)
        wanted = (rows["image"] == 0) | ~np.isin(rows["text_hash"], decided.frequent_texts)
        rows = rows[wanted]
        if kind == SAME_IMAGE:
            return rows["image"][rows["image"] != 0]
        if self.request.settings.drop_duplicates == "both":
            rows = rows[_is_first(rows) & ~np.isin(rows["image"], decided.others(SAME_IMAGE))]
        return rows["pair" if kind == SAME_PAIR else "text"]

    def _captions(self, job: Job) -> np.ndarray:
        """Returns the hashes of a unit's captions, which are kept for a later stage."""
        path = path_of(self.request.folder, CAPTIONS, job.number)
        if path.name in self.names:
            return read_array(path)
        source, unit = self.request.sources[job.source], self.request.units[job.number][1]
        reading = Reading(decided=self.request.decided(job.number, self.names))
        found = (one for item in source.read(unit, reading) for one in source.records(item, reading))
        rows = [row for record, one in enumerate(found) for row in self._rows_of(one, reading, record)]
        rows = np.array(rows, _CAPTION)
        save_array(path, rows)
        return rows

    def _rows_of(self, found: Pair | Captioned, reading: Reading, record: int) -> list[tuple[int, int, int, int, int]]:
        """Returns a row of `_CAPTION` for each caption that passes the filters of texts."""
        if isinstance(found, Pair):
            key = key_of_pair(found)
            return [(record, 0, key, key, 0)]
        kept = self.screen.accepted_texts(found, reading)
        if kept is None:
            return []
        (image,) = keys_of_captioned(SAME_IMAGE, kept)
        keys = zip(keys_of_captioned(SAME_TEXT, kept), keys_of_captioned(SAME_PAIR, kept), kept.texts)
        return [(record, image, text, pair, text_hash(caption.text)) for text, pair, caption in keys]

    def _locations(self, job: Job) -> Iterator:
        store = self.request.sources[job.source].store()
        found = [(text_hash(a), job.number, offset, size) for a, offset, size in store.addresses(job.number)]
        yield from self._packed(LOCATIONS, job.source, np.array(found, _PLACE), answer=True)

    def _translations(self, job: Job) -> Iterator:
        path = self.request.translations()[job.number]
        lines: dict[int, list[str]] = {}
        size = 0
        found = read_translations(path, self.request.settings.translation_languages)
        for order, (key, language, target) in enumerate(found):
            value = text_hash(key)
            line = json.dumps([value, job.number, order, language, target], ensure_ascii=False)
            lines.setdefault(value % self.request.partitions, []).append(line)
            size += len(line)
            if size > 1 << 26:
                yield from self._lines(lines)
                lines, size = {}, 0
        yield from self._lines(lines)

    def _lines(self, lines: dict[int, list[str]]) -> Iterator:
        for partition, some in lines.items():
            yield (TRANSLATIONS, 0, partition), (True, "\n".join(some).encode())

    def _packed(self, kind: str, source: int, table: np.ndarray, answer: bool) -> Iterator:
        parts = self.request.partition(table["key"])
        for partition in np.unique(parts):
            yield (kind, source, int(partition)), (answer, table[parts == partition].tobytes())


def _is_first(rows: np.ndarray) -> np.ndarray:
    """Tells of a unit's captions whether their record is the first with its image; text pairs have none."""
    _, first, group = np.unique(rows["image"], return_index=True, return_inverse=True)
    return (rows["image"] == 0) | (rows["record"] == rows["record"][first][group])


def _is_downloaded(source: Source) -> bool:
    return isinstance(source, CaptionedImages) and isinstance(source.store(), DownloadedImages)


def key_of_text(text: Text) -> int:
    """Returns what equal captions in one language have in common."""
    return text_hash(f"text\t{text.language}\t{text.text}")


def key_of_pair(pair: Pair) -> int:
    """Returns what equal pairs have in common, in either direction."""
    sides = sorted([(pair.language_a, pair.text_a), (pair.language_b, pair.text_b)])
    return text_hash("pair\t" + "\t".join(part for side in sides for part in side))


def keys_of_captioned(kind: str, found: Captioned) -> list[int]:
    """Returns the keys of an image with its captions: of the image, of each text, or of each text with the image."""
    if kind == SAME_TEXT:
        return [key_of_text(text) for text in found.texts]
    image = bytes_hash(b"image\t" + found.image)
    return [image] if kind == SAME_IMAGE else [text_hash(f"{image}\t{key_of_text(text)}") for text in found.texts]


# Deciding.


class Decide:
    """Decides over all rows of a key."""

    def __init__(self, request: Request):
        self.request = request

    def __call__(self, element: tuple[tuple[str, int, int], Iterable]) -> Iterator[tuple[tuple[str, int], bytes]]:
        """Takes all that `Ask` yields for a key; yields ((kind, unit or source or EVERYWHERE), rows)."""
        (kind, source, _), blocks = element[0], list(element[1])
        asked, answers = ([data for is_answer, data in blocks if is_answer is wanted] for wanted in (False, True))
        filters = self.request.settings.filters
        if kind in (TEXTS, IMAGES):
            bound = filters.max_images_per_text if kind == TEXTS else filters.max_texts_per_image
            yield (kind, EVERYWHERE), _above(_table(asked, _TWO), bound).tobytes()
        elif kind == LOCATIONS:
            yield from self._places(_table(asked, _ASKED), _table(answers, _PLACE))
        elif kind == TRANSLATIONS:
            yield from self._translations(_table(asked, _ASKED), answers)
        elif kind == HELD_OUT:
            yield (HELD_OUT, source), self._held_out(source, asked)
        else:
            yield from self._losers(kind, _table(asked, _ASKED))

    def _losers(self, kind: str, rows: np.ndarray) -> Iterator:
        """Of equal keys, the first unit's stays: the others are told to drop theirs."""
        rows = np.sort(rows, order=("key", "unit"))
        repeated = np.concatenate([[False], rows["key"][1:] == rows["key"][:-1]])
        yield from _by_unit(kind, rows[repeated], rows[repeated]["key"])

    def _places(self, rows: np.ndarray, places: np.ndarray) -> Iterator:
        places = np.sort(places, order=("key", "shard", "offset"))
        places = places[np.unique(places["key"], return_index=True)[1]]
        found, index = _lookup(places["key"], rows["key"])
        yield from _by_unit(LOCATIONS, rows[found], places[index[found]])

    def _translations(self, rows: np.ndarray, answers: Sequence[bytes]) -> Iterator:
        wanted = np.unique(rows["key"])
        lines = [json.loads(line) for block in answers for line in block.decode().split("\n")]
        known: dict[int, list] = {}
        for value, _, _, language, target in sorted(lines):
            if contains(wanted, value):
                known.setdefault(value, []).append([language, target])
        units: dict[int, list[str]] = {}
        for value, unit in np.sort(rows, order=("key", "unit")).tolist():
            if value in known:
                units.setdefault(unit, []).append(json.dumps([value, known[value]], ensure_ascii=False))
        for unit, found in units.items():
            yield (TRANSLATIONS, unit), "\n".join(found).encode()

    def _held_out(self, source: int, blocks: Sequence[bytes]) -> bytes:
        hashes: dict[str, list[np.ndarray]] = {}
        for block in blocks:
            name, _, data = block.partition(b"\n")
            hashes.setdefault(json.loads(name), []).append(np.frombuffer(data, "<u8"))
        joined = {language: np.concatenate(parts) for language, parts in sorted(hashes.items())}
        return self.request.sources[source].hold_out(joined).as_json().encode()


def _table(blocks: Sequence[bytes], dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(b"".join(blocks), dtype)


def _above(rows: np.ndarray, bound: int) -> np.ndarray:
    """Returns the keys that occur with more than `bound` different other values."""
    keys, counts = np.unique(np.unique(rows)["key"], return_counts=True)
    return keys[counts > bound]


def _lookup(sorted_keys: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether each key is among the sorted ones, and where."""
    if not sorted_keys.size:
        return np.zeros(keys.shape, bool), np.zeros(keys.shape, np.int64)
    index = np.minimum(np.searchsorted(sorted_keys, keys), sorted_keys.size - 1)
    return sorted_keys[index] == keys, index


def _by_unit(kind: str, rows: np.ndarray, values: np.ndarray) -> Iterator[tuple[tuple[str, int], bytes]]:
    for unit in np.unique(rows["unit"]):
        yield (kind, int(unit)), values[rows["unit"] == unit].tobytes()


# Keeping.


class Keep:
    """Writes what all partitions decided about a unit to its file."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def __call__(self, element: tuple[tuple[str, int], Iterable[bytes]]) -> Iterator[str]:
        """Yields the file's name."""
        (kind, number), blocks = element[0], list(element[1])
        path = path_of(self.folder, kind, number)
        if kind in (TRANSLATIONS, HELD_OUT):
            write_whole(path, "\n".join(sorted(block.decode() for block in blocks)))
        elif kind == LOCATIONS:
            save_array(path, np.sort(_table(blocks, _PLACE), order="key"))
        else:
            save_array(path, np.sort(_table(blocks, np.dtype("<u8"))))
        yield path.name


def path_of(folder: pathlib.Path, kind: str, number: int) -> pathlib.Path:
    """Returns the file of a kind of decisions about a unit, or about all."""
    ending = "json" if kind in (TRANSLATIONS, HELD_OUT) else "npy"
    name = kind.replace(" ", "_") + ("" if number == EVERYWHERE else f"-{number:06d}")
    return folder / f"{name}.{ending}"


class Decided:
    """What was decided about one unit; read when it is first asked for."""

    def __init__(self, folder: pathlib.Path, number: int, source: int, names: Collection[str]):
        self._folder, self._number, self._source, self._names = folder, number, source, names
        self._read: dict[str, Any] = {}

    def _get(self, kind: str, number: int, read: Callable[[pathlib.Path], Any], without: Any) -> Any:
        if kind not in self._read:
            path = path_of(self._folder, kind, number)
            self._read[kind] = read(path) if path.name in self._names else without
        return self._read[kind]

    @property
    def frequent_texts(self) -> np.ndarray:
        """Sorted hashes of texts on too many images, uint64 [N]."""
        return self._get(TEXTS, EVERYWHERE, read_array, np.empty(0, np.uint64))

    @property
    def frequent_images(self) -> np.ndarray:
        """Sorted hashes of the ids of images with too many texts, uint64 [N]."""
        return self._get(IMAGES, EVERYWHERE, read_array, np.empty(0, np.uint64))

    def location(self, address: str) -> tuple[int, int, int] | None:
        """Returns (shard, offset, size) of a downloaded image."""
        places = self._get(LOCATIONS, self._number, lambda path: np.array(read_array(path)), np.empty(0, _PLACE))
        value = np.uint64(text_hash(address))
        index = int(np.searchsorted(places["key"], value))
        if index >= len(places) or places["key"][index] != value:
            return None
        return tuple(int(places[name][index]) for name in ("shard", "offset", "size"))

    def translations(self, key: str) -> list[tuple[str, str]]:
        """Returns (language, translation) of a caption's key."""
        known = self._get(TRANSLATIONS, self._number, _read_translations, {})
        return known.get(text_hash(key), []) if known else []

    def split(self, language: str, image_id: str) -> str:
        """Returns the split of a caption of a data set that is divided here; "" for one that another language holds."""
        held_out = self._get(HELD_OUT, self._source, lambda path: HeldOut.from_json(path.read_text("utf-8")), None)
        return held_out.split_of(language, image_id) if held_out else "train"

    def without_duplicates(self, found: Captioned, reading: Reading, kinds: Sequence[str]) -> Captioned | None:
        """Returns the image with those captions that another unit, or this one before, does not have."""
        for kind in kinds:
            drop = [self._is_duplicate(kind, key) for key in keys_of_captioned(kind, found)]
            if kind == SAME_IMAGE:
                drop *= len(found.texts)
            for text, dropped in zip(found.texts, drop):
                if dropped:
                    reading.tally.leave_out(kind, text.place)
            texts = [text for text, dropped in zip(found.texts, drop) if not dropped]
            if not texts:
                return None
            found = found._replace(texts=texts)
        return found

    def others(self, kind: str) -> np.ndarray:
        """Sorted keys of duplicates that other units keep, uint64 [N]."""
        return self._get(kind, self._number, read_array, np.empty(0, np.uint64))

    def is_duplicate_pair(self, pair: Pair, kind: str) -> bool:
        """Tells whether another unit, or this one before, has the pair."""
        return self._is_duplicate(kind, key_of_pair(pair))

    def _is_duplicate(self, kind: str, key: int) -> bool:
        others = self.others(kind)
        seen = self._read.setdefault(f"seen {kind}", set())
        if contains(others, key) or key in seen:
            return True
        seen.add(key)
        return False


def _read_translations(path: pathlib.Path) -> dict[int, list[tuple[str, str]]]:
    lines = (json.loads(line) for line in path.read_text("utf-8").split("\n"))
    return {value: [tuple(pair) for pair in pairs] for value, pairs in lines}
