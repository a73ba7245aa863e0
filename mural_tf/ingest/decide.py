"""What can only be decided over all data, before the first record is written.

Frequent texts and images, duplicates, where an image with an address lies, translations of captions, and which images
of a data set are held out. Workers look through units and leave rows of hashes (`Look`; images are never among them),
DuckDB groups and joins the rows (`decide`), and each unit reads what concerns it (`Decided`). The same units give the
same decisions. Duplicates are decided last, among the captions that the other decisions leave.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from mural_lite.files import find, read_array, save_array, write_whole
from mural_lite.hashes import bytes_hash, contains, text_hash
from mural_lite.text_files import Unit
from mural_tf.ingest import rows
from mural_tf.ingest.filters import Screen
from mural_tf.ingest.source import PAIR, Captioned, Pair, Reading, Settings, Source, Text
from mural_tf.ingest.translated_captions import keys_of, read_translations

TEXTS, IMAGES = "frequent_texts", "frequent_images"
LOCATIONS, TRANSLATIONS, HELD_OUT = "locations", "translations", "held_out"
SAME_IMAGE, SAME_TEXT, SAME_PAIR = "duplicate image", "duplicate text", "duplicate pair"
UNIT = "unit"  # a kind of job, as LOCATIONS and TRANSLATIONS

# Tables of rows, {column: type}; keys are hashes.
KEY, NUMBER = "uint64", "uint32"
TABLES = {
    "texts": {"text": KEY, "image": KEY},
    "addresses": {"source": NUMBER, "key": KEY, "unit": NUMBER},  # that are looked for
    "places": {"source": NUMBER, "key": KEY, "shard": NUMBER, "start": KEY, "size": KEY},  # of addresses
    "captions": {"key": KEY, "unit": NUMBER},  # whose translations are looked for
    "sentences": {"key": KEY, "file": NUMBER, "line": KEY, "language": "string", "text": "string"},
    "divided": {"source": NUMBER, "language": "string", "image": KEY},  # images that may be held out
    "records": {"unit": NUMBER, "record": KEY, "image": KEY, "text": KEY, "pair": KEY},  # a row per caption or pair
}
WRITES = {TEXTS: "texts", IMAGES: "texts", LOCATIONS: "addresses", TRANSLATIONS: "captions", HELD_OUT: "divided"}


class Job(NamedTuple):
    """What one worker looks through: a unit, a shard of downloaded images, or a file of translations."""

    kind: str  # UNIT, LOCATIONS or TRANSLATIONS
    source: int  # or, of a file of translations, its number
    number: int  # of the unit or the shard

    @property
    def name(self) -> str:
        """Names its files of rows."""
        return f"{self.source:04d}-{self.number:06d}"


@dataclasses.dataclass
class Request:
    """Everything that a conversion reads and decides; travels to workers.

    Attributes:
      sources: in their canonical order.
      units: (source's number, unit), numbered in the order in which earlier units win over later units.
      settings: of the conversion.
      folder: keeps rows and decisions.
    """

    sources: Sequence[Source]
    units: Sequence[tuple[int, Unit]]
    settings: Settings
    folder: pathlib.Path

    def stages(self) -> list[list[str]]:
        """Returns the kinds of decisions; a stage depends on the decisions of the stages before."""
        filters = self.settings.filters
        first = [TEXTS] if filters.max_images_per_text else []
        first += [IMAGES] if filters.max_texts_per_image else []
        first += [LOCATIONS] if any(source.downloads() for source in self.sources) else []
        first += [TRANSLATIONS] if self.settings.translations else []
        first += [HELD_OUT] if any(source.is_divided for source in self.sources) else []
        return [stage for stage in (first, self.duplicates()) if stage]

    def duplicates(self) -> list[str]:
        """Returns what may occur once only, in the order in which it is decided."""
        kinds = {"text": [SAME_TEXT], "image": [SAME_IMAGE], "both": [SAME_IMAGE, SAME_TEXT], "pair": [SAME_PAIR]}
        return kinds.get(self.settings.drop_duplicates, [])

    def tables(self, stage: Sequence[str], job: Job) -> list[str]:
        """Returns the tables that a job of a stage writes."""
        if job.kind != UNIT:
            return ["places" if job.kind == LOCATIONS else "sentences"]
        return list(dict.fromkeys(WRITES.get(task, "records") for task in stage))

    def jobs(self, stage: Sequence[str]) -> list[Job]:
        """Returns what has still to be looked through for a stage; nothing where it is decided."""
        names = self.names()
        if self.marks(stage) <= names:
            return []
        jobs = [Job(UNIT, source, number) for number, (source, _) in enumerate(self.units)]
        if LOCATIONS in stage:
            for index, source in enumerate(self.sources):
                shards = downloads.shards if (downloads := source.downloads()) else ()
                jobs += [Job(LOCATIONS, index, number) for number in range(len(shards))]
        if TRANSLATIONS in stage:
            jobs += [Job(TRANSLATIONS, number, number) for number in range(len(self.translations()))]
        return [
            job
            for job in jobs
            if not {rows.path_of(self.folder, table, job.name).name for table in self.tables(stage, job)} <= names
        ]

    def marks(self, stage: Sequence[str]) -> set[str]:
        """Returns the names of the files that a stage's decisions are in."""
        divided = [index for index, source in enumerate(self.sources) if source.is_divided]
        names = {path_of(self.folder, task).name for task in stage if task != HELD_OUT}
        return names | {path_of(self.folder, HELD_OUT, index).name for index in divided if HELD_OUT in stage}

    def translations(self) -> list[pathlib.Path]:
        """Returns the files of translations."""
        return [path for pattern in self.settings.translations for path in find(pattern)]

    def names(self) -> set[str]:
        """Returns the names of the files of rows and decisions: looking for each would take a store longer."""
        return {path.name for path in self.folder.glob("*")}

    def decided(self, number: int, names: Collection[str]) -> Decided:
        """Returns what was decided about a unit, in the stages before `names` were looked up."""
        return Decided(self.folder, number, self.units[number][0], names)


# Looking.


class Look:
    """Looks through a job and writes rows; made once in every worker."""

    def __init__(self, request: Request, stage: Sequence[str]):
        self.request, self.stage = request, stage
        self.screen, self.names = Screen(request.settings, request.folder), request.names()

    def __call__(self, job: Job) -> None:
        """Writes the job's rows."""
        job, folder = Job(*job), self.request.folder
        with ExitStack() as stack:
            tables = {
                table: stack.enter_context(rows.write(folder, table, job.name, TABLES[table]))
                for table in self.request.tables(self.stage, job)
            }
            for table, row in self._rows(job, tables):
                tables[table](row)

    def _rows(self, job: Job, tables: Collection[str]) -> Iterator[tuple[str, tuple]]:
        if job.kind == LOCATIONS:
            for address, start, size in self.request.sources[job.source].downloads().addresses(job.number):
                yield "places", (job.source, text_hash(address), job.number, start, size)
        elif job.kind == TRANSLATIONS:
            languages = self.request.settings.translation_languages
            sentences = read_translations(self.request.translations()[job.number], languages)
            for line, (key, language, text) in enumerate(sentences):
                yield "sentences", (text_hash(key), job.number, line, language, text)
        else:
            source, unit = self.request.sources[job.source], self.request.units[job.number][1]
            reading = Reading(decided=self.request.decided(job.number, self.names))
            look = self._records if "records" in tables else self._captions
            yield from look(job, source, unit, reading, tables)

    def _captions(self, job: Job, source: Source, unit: Unit, reading: Reading, tables: Collection[str]) -> Iterator:
        """Yields rows of captions; their images are not read."""
        downloaded = source.downloads() is not None
        for item in source.read(unit, reading) if source.ITEM != PAIR else ():
            if "addresses" in tables and downloaded:
                yield "addresses", (job.source, text_hash(item.image_file), job.number)
            for image, text in source.texts(item):
                if "texts" in tables:
                    yield "texts", (text_hash(text.text), text_hash(image))
                if "captions" in tables:
                    yield from (("captions", (text_hash(key), job.number)) for key in keys_of(text))
                if "divided" in tables and source.is_divided:
                    yield "divided", (job.source, text.language, source.image_hash(image))

    def _records(self, job: Job, source: Source, unit: Unit, reading: Reading, tables: Collection[str]) -> Iterator:
        """Yields a row for each pair, and for each caption that passes the filters of texts."""
        del tables
        records = (item_record for item in source.read(unit, reading) for item_record in source.records(item, reading))
        for record, item_record in enumerate(records):
            if isinstance(item_record, Pair):
                key = key_of_pair(item_record)
                yield "records", (job.number, record, 0, key, key)
            elif (kept := self.screen.accepted_texts(item_record, reading)) is not None:
                (image,) = keys_of_captioned(SAME_IMAGE, kept)
                keys = zip(keys_of_captioned(SAME_TEXT, kept), keys_of_captioned(SAME_PAIR, kept))
                yield from (("records", (job.number, record, image, text, pair)) for text, pair in keys)


def key_of_text(text: Text) -> int:
    """Returns what equal captions in one language have in common."""
    return text_hash(f"text\t{text.language}\t{text.text}")


def key_of_pair(pair: Pair) -> int:
    """Returns what equal pairs have in common, in either direction."""
    sides = sorted([(pair.language_a, pair.text_a), (pair.language_b, pair.text_b)])
    return text_hash("pair\t" + "\t".join(part for side in sides for part in side))


def keys_of_captioned(decision: str, captioned: Captioned) -> list[int]:
    """Returns the keys of an image with its captions: of the image, of each text, or of each text with the image."""
    if decision == SAME_TEXT:
        return [key_of_text(text) for text in captioned.texts]
    image = bytes_hash(b"image\t" + captioned.image)
    return (
        [image] if decision == SAME_IMAGE else [text_hash(f"{image}\t{key_of_text(text)}") for text in captioned.texts]
    )


# Deciding.


def path_of(folder: pathlib.Path, task: str, source: int = -1) -> pathlib.Path:
    """Returns the file of a kind of decisions, HELD_OUT's about one source."""
    endings = {TEXTS: ".npy", IMAGES: ".npy", HELD_OUT: f"-{source:04d}.json"}
    return folder / f"decided_{task.replace(' ', '_')}{endings.get(task, '.parquet')}"


def decide(request: Request, stage: Sequence[str]) -> None:
    """Writes the decisions of a stage, whose rows are there."""
    names, filters, folder = request.names(), request.settings.filters, request.folder
    for task in stage:
        path = path_of(folder, task)
        if path.name in names:
            continue
        if task in (TEXTS, IMAGES):
            text_bound = "text", filters.max_images_per_text
            key, bound = text_bound if task == TEXTS else ("image", filters.max_texts_per_image)
            pairs = f"SELECT DISTINCT text, image FROM {rows.files(folder, 'texts')}"
            query = f"SELECT {key} FROM ({pairs}) GROUP BY {key} HAVING count(*) > {bound} ORDER BY {key}"
            save_array(path, rows.ask(folder, query).fetchnumpy()[key].astype(np.uint64))
        elif task == HELD_OUT:
            _hold_out(request)
        else:
            rows.save(path, _query(request, task))


def _query(request: Request, task: str) -> str:
    """Returns the query for (unit, key, …): what the unit finds, or the keys of duplicates that it drops."""
    table = {name: rows.files(request.folder, name) for name in TABLES}
    if task == LOCATIONS:  # the first place of each address
        first_place = "min(struct_pack(shard := shard, start := start, size := size)) AS place"
        return f"""SELECT unit, key, place.shard AS shard, place.start AS start, place.size AS size
            FROM (SELECT DISTINCT * FROM {table["addresses"]})
            JOIN (SELECT source, key, {first_place} FROM {table["places"]} GROUP BY ALL) USING (source, key)
            ORDER BY unit, key"""
    if task == TRANSLATIONS:
        return f"""SELECT unit, key, language, text FROM (SELECT DISTINCT * FROM {table["captions"]})
            JOIN {table["sentences"]} USING (key) ORDER BY unit, key, file, line"""
    records, column = table["records"], {SAME_IMAGE: "image", SAME_TEXT: "text", SAME_PAIR: "pair"}[task]
    keys = f"SELECT DISTINCT unit, {column} AS key FROM {records} WHERE {column} != 0"
    if request.duplicates() == [SAME_IMAGE, SAME_TEXT] and task == SAME_TEXT:  # of the images that stay
        first = f"SELECT unit, image, min(record) AS record FROM {records} WHERE image != 0 GROUP BY ALL"
        gone = f"SELECT unit, key AS image FROM {rows.file(path_of(request.folder, SAME_IMAGE))}"
        keys = f"""SELECT unit, text AS key FROM {records} WHERE image = 0 UNION
            SELECT unit, text AS key FROM {records} SEMI JOIN ({first}) USING (unit, image, record)
            ANTI JOIN ({gone}) USING (unit, image)"""
    return f"""WITH keys AS ({keys}), first AS (SELECT key, min(unit) AS keeps FROM keys GROUP BY key)
        SELECT unit, key FROM keys JOIN first USING (key) WHERE unit != keeps ORDER BY unit, key"""


def _hold_out(request: Request) -> None:
    divided = rows.files(request.folder, "divided")
    for index, source in enumerate(request.sources):
        path = path_of(request.folder, HELD_OUT, index)
        if source.is_divided and not path.exists():
            from_source = f"FROM {divided} WHERE source = {index}"
            languages = rows.ask(request.folder, f"SELECT DISTINCT language {from_source} ORDER BY language").fetchall()
            query = f"SELECT image {from_source} AND language = ?"
            hashes = {
                language: rows.ask(request.folder, query, [language]).fetchnumpy()["image"] for (language,) in languages
            }
            write_whole(path, source.hold_out(hashes).as_json())


class Decided:
    """What was decided about one unit; read when it is first asked for."""

    def __init__(self, folder: pathlib.Path, number: int, source: int, names: Collection[str]):
        self._folder, self._number, self._source, self._names = folder, number, source, names
        self._read: dict[str, Any] = {}

    def _get(self, task: str, read: Callable[[pathlib.Path], Any], without: Any) -> Any:
        if task not in self._read:
            path = path_of(self._folder, task, self._source)
            self._read[task] = read(path) if path.name in self._names else without
        return self._read[task]

    def _of_unit(self, path: pathlib.Path) -> dict[str, np.ndarray]:
        query = f"SELECT * FROM {rows.file(path)} WHERE unit = ?"
        return rows.ask(self._folder, query, [self._number]).fetchnumpy()

    @property
    def frequent_texts(self) -> np.ndarray:
        """Sorted hashes of texts on too many images, uint64 [N]."""
        return self._get(TEXTS, read_array, np.empty(0, np.uint64))

    @property
    def frequent_images(self) -> np.ndarray:
        """Sorted hashes of the ids of images with too many texts, uint64 [N]."""
        return self._get(IMAGES, read_array, np.empty(0, np.uint64))

    def location(self, address: str) -> tuple[int, int, int] | None:
        """Returns (shard, offset, size) of a downloaded image."""
        locations, value = self._get(LOCATIONS, self._of_unit, None), np.uint64(text_hash(address))
        index = int(np.searchsorted(locations["key"], value)) if locations else 0
        if not locations or index >= len(locations["key"]) or locations["key"][index] != value:
            return None
        return tuple(int(locations[name][index]) for name in ("shard", "start", "size"))

    def translations(self, key: str) -> list[tuple[str, str]]:
        """Returns (language, translation) of a caption's key."""
        return self._get(TRANSLATIONS, self._translations, {}).get(text_hash(key), [])

    def _translations(self, path: pathlib.Path) -> dict[int, list[tuple[str, str]]]:
        by_key: dict[int, list[tuple[str, str]]] = {}
        rows = self._of_unit(path)
        for key, *pair in zip(rows["key"].tolist(), rows["language"], rows["text"]):
            by_key.setdefault(key, []).append(tuple(pair))
        return by_key

    def split(self, language: str, image_id: str) -> str:
        """Returns the split of a caption of a data set that is divided here; "" for one that another language holds."""
        from mural_tf.ingest.sources.wit import HeldOut  # the family that asks

        held_out = self._get(HELD_OUT, lambda path: HeldOut.from_json(path.read_text("utf-8")), None)
        return held_out.split_of(language, image_id) if held_out else "train"

    def without_duplicates(self, captioned: Captioned, reading: Reading, kinds: Sequence[str]) -> Captioned | None:
        """Returns the image with those captions that another unit, or this one before, does not have."""
        for decision in kinds:
            drop = [self._is_duplicate(decision, key) for key in keys_of_captioned(decision, captioned)]
            if decision == SAME_IMAGE:
                drop *= len(captioned.texts)
            for text, dropped in zip(captioned.texts, drop):
                if dropped:
                    reading.tally.leave_out(decision, text.place)
            texts = [text for text, dropped in zip(captioned.texts, drop) if not dropped]
            if not texts:
                return None
            captioned = captioned._replace(texts=texts)
        return captioned

    def is_duplicate_pair(self, pair: Pair, decision: str) -> bool:
        """Whether another unit, or this one before, has the pair."""
        return self._is_duplicate(decision, key_of_pair(pair))

    def _is_duplicate(self, decision: str, key: int) -> bool:
        others = self._get(decision, lambda path: self._of_unit(path)["key"], np.empty(0, np.uint64))
        seen = self._read.setdefault(f"seen {decision}", set())
        if contains(others, key) or key in seen:
            return True
        seen.add(key)
        return False
