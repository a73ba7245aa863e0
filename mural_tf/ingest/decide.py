"""Decisions over all data, before the first record is written.

They are: frequent texts and images, duplicates, the positions of downloaded images, translations of captions, and the
images of a data set that are held out. Workers look through units and write rows of hashes (`Look`), DuckDB groups and
joins the rows (`decide`), and each unit reads its own decisions (`Decided`). The same units give the same decisions.
Duplicates are decided last, among the captions that the other decisions leave.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
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

TEXTS = "frequent_texts"
IMAGES = "frequent_images"
LOCATIONS = "locations"
TRANSLATIONS = "translations"
HELD_OUT = "held_out"
SAME_IMAGE = "duplicate image"
SAME_TEXT = "duplicate text"
SAME_PAIR = "duplicate pair"
UNIT = "unit"  # a type of job, as LOCATIONS and TRANSLATIONS

# {table: {column: type}} of the rows; a key is a hash.
KEY = "uint64"
NUMBER = "uint32"
TABLES = {
    "texts": {"text": KEY, "image": KEY},
    "addresses": {"source": NUMBER, "key": KEY, "unit": NUMBER},  # addresses whose places are looked for
    "places": {"source": NUMBER, "key": KEY, "shard": NUMBER, "start": KEY, "size": KEY},  # places of addresses
    "captions": {"key": KEY, "unit": NUMBER},  # captions whose translations are looked for
    "sentences": {"key": KEY, "file": NUMBER, "line": KEY, "language": "string", "text": "string"},
    "divided": {"source": NUMBER, "language": "string", "image": KEY},  # images that may be held out
    "records": {"unit": NUMBER, "record": KEY, "image": KEY, "text": KEY, "pair": KEY},  # a row per caption or pair
}
WRITES = {TEXTS: "texts", IMAGES: "texts", LOCATIONS: "addresses", TRANSLATIONS: "captions", HELD_OUT: "divided"}


class Job(NamedTuple):
    """A unit, a shard of downloaded images, or a file of translations, that a worker looks through.

    Attributes:
      kind: UNIT, LOCATIONS or TRANSLATIONS.
      source: the number of the source; for a file of translations the number of the file.
      number: the number of the unit, shard or file.
    """

    kind: str
    source: int
    number: int

    @property
    def name(self) -> str:
        """The job's name in the names of its files of rows: "0003-000012" for unit 12, of source 3."""
        return f"{self.source:04d}-{self.number:06d}"


@dataclasses.dataclass
class Request:
    """The input of a conversion and the place of its decisions; workers get a copy.

    Attributes:
      sources: the sources in their canonical order.
      units: (source's number, unit), numbered in the order in which earlier units win over later units.
      settings: the conversion's settings.
      folder: the folder of rows and decisions.
    """

    sources: Sequence[Source]
    units: Sequence[tuple[int, Unit]]
    settings: Settings
    folder: pathlib.Path

    def stages(self) -> list[list[str]]:
        """Returns the kinds of decisions that are needed, in stages: the second depends on the first's decisions."""
        filters = self.settings.filters
        is_needed = {
            TEXTS: filters.max_images_per_text > 0,
            IMAGES: filters.max_texts_per_image > 0,
            LOCATIONS: any(source.downloads() for source in self.sources),
            TRANSLATIONS: bool(self.settings.translations),
            HELD_OUT: any(source.is_divided for source in self.sources),
        }
        first_stage = [decision for decision in is_needed if is_needed[decision]]
        return [stage for stage in (first_stage, self.duplicates()) if stage]

    def duplicates(self) -> list[str]:
        """Returns the kinds of duplicates that are dropped, in the order in which they are decided."""
        kinds = {"text": [SAME_TEXT], "image": [SAME_IMAGE], "both": [SAME_IMAGE, SAME_TEXT], "pair": [SAME_PAIR]}
        return kinds.get(self.settings.drop_duplicates, [])

    def tables(self, stage: Sequence[str], job: Job) -> list[str]:
        """Returns the names in `TABLES` of the tables that a job of a stage writes."""
        if job.kind == LOCATIONS:
            return ["places"]
        if job.kind == TRANSLATIONS:
            return ["sentences"]
        # Each once. Duplicates of all kinds are decided by "records".
        return list(dict.fromkeys(WRITES.get(decision, "records") for decision in stage))

    def jobs(self, stage: Sequence[str]) -> list[Job]:
        """Returns the jobs of a stage that are not done; [] if the stage is decided."""
        names = self.names()
        if self.decision_names(stage) <= names:
            return []
        jobs = [Job(UNIT, source_number, number) for number, (source_number, _) in enumerate(self.units)]
        if LOCATIONS in stage:  # a job for each shard of downloads
            for source_number, source in enumerate(self.sources):
                downloads = source.downloads()
                if downloads:
                    jobs += [Job(LOCATIONS, source_number, number) for number in range(len(downloads.shards))]
        if TRANSLATIONS in stage:  # and for each file of translations
            jobs += [Job(TRANSLATIONS, number, number) for number in range(len(self.translations()))]
        return [job for job in jobs if not self._is_done(job, stage, names)]

    def _is_done(self, job: Job, stage: Sequence[str], names: Collection[str]) -> bool:
        """Whether all files of rows that the job writes are among `names`."""
        paths = [rows.path_of(self.folder, table, job.name) for table in self.tables(stage, job)]
        return all(path.name in names for path in paths)

    def decision_names(self, stage: Sequence[str]) -> set[str]:
        """Returns the names of the files of a stage's decisions; they are all there if the stage is decided."""
        names = {path_of(self.folder, decision).name for decision in stage if decision != HELD_OUT}
        if HELD_OUT in stage:
            for source_number, source in enumerate(self.sources):
                if source.is_divided:
                    names.add(path_of(self.folder, HELD_OUT, source_number).name)
        return names

    def translations(self) -> list[pathlib.Path]:
        """Returns the files of translations."""
        return list(itertools.chain.from_iterable(map(find, self.settings.translations)))

    def names(self) -> set[str]:
        """Returns the names of all files of rows and decisions that are there, by one request to a store."""
        return {path.name for path in self.folder.glob("*")}

    def decided(self, number: int, names: Collection[str]) -> Decided:
        """Returns the decisions about the unit `number`, as far as their files are among `names`."""
        source_number, _ = self.units[number]
        return Decided(self.folder, number, source_number, names)


# Looking.


class Look:
    """Looks through the unit or file of a job, and writes rows for a stage's decisions; made once in every worker."""

    def __init__(self, request: Request, stage: Sequence[str]):
        self.request = request
        self.stage = stage
        self.screen = Screen(request.settings, request.folder)
        self.names = request.names()

    def __call__(self, job: Job) -> None:
        """Writes a file of rows for each of the job's tables."""
        job = Job(*job)  # an engine may have turned it into a plain tuple
        with ExitStack() as stack:
            add_row = {}  # {table: function that adds a row}
            for table in self.request.tables(self.stage, job):
                table_writer = rows.write(self.request.folder, table, job.name, TABLES[table])
                add_row[table] = stack.enter_context(table_writer)
            for table, row in self._rows(job, add_row.keys()):
                add_row[table](row)

    def _rows(self, job: Job, tables: Collection[str]) -> Iterator[tuple[str, tuple]]:
        """Yields (table, row) of a job, for the tables that it writes."""
        if job.kind == LOCATIONS:
            for address, start, size in self.request.sources[job.source].downloads().addresses(job.number):
                yield "places", (job.source, text_hash(address), job.number, start, size)
        elif job.kind == TRANSLATIONS:
            languages = self.request.settings.translation_languages
            sentences = read_translations(self.request.translations()[job.number], languages)
            for line, (key, language, text) in enumerate(sentences):
                yield "sentences", (text_hash(key), job.number, line, language, text)
        else:
            source = self.request.sources[job.source]
            _, unit = self.request.units[job.number]
            reading = Reading(decided=self.request.decided(job.number, self.names))
            if "records" in tables:
                yield from self._records(job, source, unit, reading)
            elif source.ITEM != PAIR:
                yield from self._captions(job, source, unit, reading, tables)

    def _captions(self, job: Job, source: Source, unit: Unit, reading: Reading, tables: Collection[str]) -> Iterator:
        """Yields (table, row) of a unit's captions, for the tables that the job writes; images are not read."""
        has_downloads = source.downloads() is not None
        for item in source.read(unit, reading):
            if "addresses" in tables and has_downloads:
                yield "addresses", (job.source, text_hash(item.image_file), job.number)
            for image, text in source.texts(item):
                if "texts" in tables:
                    yield "texts", (text_hash(text.text), text_hash(image))
                if "captions" in tables:
                    for key in keys_of(text):
                        yield "captions", (text_hash(key), job.number)
                if "divided" in tables and source.is_divided:
                    yield "divided", (job.source, text.language, source.image_hash(image))

    def _records(self, job: Job, source: Source, unit: Unit, reading: Reading) -> Iterator:
        """Yields ("records", row) of each pair, and of each caption that passes the filters together with its image.

        An image that is left out must not count as the first of its duplicates, which would be left out, too.
        """
        items = source.read(unit, reading)
        records = itertools.chain.from_iterable(source.records(item, reading) for item in items)
        for number, record in enumerate(records):
            if isinstance(record, Pair):
                key = key_of_pair(record)
                yield "records", (job.number, number, 0, key, key)  # 0 for no image
                continue
            accepted = self.screen.accepted_texts(record, reading)
            if accepted is None or not self.screen.accepts_image(accepted, reading):
                continue
            (image,) = keys_of_captioned(SAME_IMAGE, accepted)
            texts = keys_of_captioned(SAME_TEXT, accepted)
            pairs = keys_of_captioned(SAME_PAIR, accepted)
            for text, pair in zip(texts, pairs):
                yield "records", (job.number, number, image, text, pair)


def key_of_text(text: Text) -> int:
    """Returns a hash that equal captions in one language share."""
    return text_hash(f"text\t{text.language}\t{text.text}")


def key_of_pair(pair: Pair) -> int:
    """Returns a hash that equal pairs share, in either direction."""
    first_side, second_side = sorted([(pair.language_a, pair.text_a), (pair.language_b, pair.text_b)])
    return text_hash("\t".join(["pair", *first_side, *second_side]))


def keys_of_captioned(decision: str, captioned: Captioned) -> list[int]:
    """Returns the keys by which an image with captions, or each of its captions, is a duplicate.

    Args:
      decision: SAME_IMAGE for the only key of the image; SAME_TEXT for a key of each text; SAME_PAIR for a key of each
        text together with the image.
      captioned: the image with its captions.
    """
    if decision == SAME_TEXT:
        return [key_of_text(text) for text in captioned.texts]
    image = bytes_hash(b"image\t" + captioned.image)
    if decision == SAME_IMAGE:
        return [image]
    return [text_hash(f"{image}\t{key_of_text(text)}") for text in captioned.texts]


# Deciding.


def path_of(folder: pathlib.Path, decision: str, source: int = -1) -> pathlib.Path:
    """Returns the file of a kind of decisions; HELD_OUT has a file for each source, by the source's number."""
    endings = {TEXTS: ".npy", IMAGES: ".npy", HELD_OUT: f"-{source:04d}.json"}
    return folder / f"decided_{decision.replace(' ', '_')}{endings.get(decision, '.parquet')}"


def decide(request: Request, stage: Sequence[str]) -> None:
    """Writes the decisions of a stage, whose rows are complete, unless they are there.

    Args:
      request: the conversion's input and folder.
      stage: the kinds of decisions, a list of `Request.stages`.
    """
    names = request.names()
    filters = request.settings.filters
    for decision in stage:
        path = path_of(request.folder, decision)
        if path.name in names:
            continue
        if decision == TEXTS:
            save_array(path, _frequent(request, "text", filters.max_images_per_text))
        elif decision == IMAGES:
            save_array(path, _frequent(request, "image", filters.max_texts_per_image))
        elif decision == HELD_OUT:
            _hold_out(request)
        else:
            rows.save(path, _query(request, decision))


def _frequent(request: Request, key: str, bound: int) -> np.ndarray:
    """Returns the sorted hashes of texts on more than `bound` images (`key` is "text"), uint64 [N].

    With the `key` "image" they are the hashes of images with more than `bound` texts.
    """
    pairs = f"SELECT DISTINCT text, image FROM {rows.files(request.folder, 'texts')}"
    query = f"SELECT {key} FROM ({pairs}) GROUP BY {key} HAVING count(*) > {bound} ORDER BY {key}"
    return rows.ask(request.folder, query).fetchnumpy()[key].astype(np.uint64)


def _query(request: Request, decision: str) -> str:
    """Returns the SQL query for a decision's rows, in which a unit looks up its keys.

    The columns are unit, key, shard, start and size for LOCATIONS; unit, key, language and text for TRANSLATIONS; and
    for duplicates unit and key, where the unit drops the key.
    """
    sql_names = {name: rows.files(request.folder, name) for name in TABLES}
    if decision == LOCATIONS:  # the first place of each address
        first_place = "min(struct_pack(shard := shard, start := start, size := size)) AS place"
        return f"""SELECT unit, key, place.shard AS shard, place.start AS start, place.size AS size
            FROM (SELECT DISTINCT * FROM {sql_names["addresses"]})
            JOIN (SELECT source, key, {first_place} FROM {sql_names["places"]} GROUP BY ALL) USING (source, key)
            ORDER BY unit, key"""
    if decision == TRANSLATIONS:
        return f"""SELECT unit, key, language, text FROM (SELECT DISTINCT * FROM {sql_names["captions"]})
            JOIN {sql_names["sentences"]} USING (key) ORDER BY unit, key, file, line"""
    return _duplicates_query(request, decision, sql_names["records"])


def _duplicates_query(request: Request, decision: str, records: str) -> str:
    """Returns the SQL query for (unit, key) of duplicates: the first unit with a key keeps it, the others drop it.

    `records` is the SQL name of the table "records".
    """
    column = {SAME_IMAGE: "image", SAME_TEXT: "text", SAME_PAIR: "pair"}[decision]
    keys = f"SELECT DISTINCT unit, {column} AS key FROM {records} WHERE {column} != 0"
    if request.duplicates() == [SAME_IMAGE, SAME_TEXT] and decision == SAME_TEXT:  # only texts of the images that stay
        first = f"SELECT unit, image, min(record) AS record FROM {records} WHERE image != 0 GROUP BY ALL"
        dropped = f"SELECT unit, key AS image FROM {rows.file(path_of(request.folder, SAME_IMAGE))}"
        keys = f"""SELECT unit, text AS key FROM {records} WHERE image = 0 UNION
            SELECT unit, text AS key FROM {records} SEMI JOIN ({first}) USING (unit, image, record)
            ANTI JOIN ({dropped}) USING (unit, image)"""
    return f"""WITH keys AS ({keys}), first AS (SELECT key, min(unit) AS keeps FROM keys GROUP BY key)
        SELECT unit, key FROM keys JOIN first USING (key) WHERE unit != keeps ORDER BY unit, key"""


def _hold_out(request: Request) -> None:
    """Writes the images that each divided source holds out, a file for each source, unless they are there."""
    divided = rows.files(request.folder, "divided")
    for source_number, source in enumerate(request.sources):
        path = path_of(request.folder, HELD_OUT, source_number)
        if source.is_divided and not path.exists():
            from_source = f"FROM {divided} WHERE source = {source_number}"
            languages = rows.ask(request.folder, f"SELECT DISTINCT language {from_source} ORDER BY language").fetchall()
            query = f"SELECT image {from_source} AND language = ?"
            hashes = {}
            for (language,) in languages:
                hashes[language] = rows.ask(request.folder, query, [language]).fetchnumpy()["image"]
            write_whole(path, source.hold_out(hashes).as_json())


class Decided:
    """The decisions about one unit, each read when it is first needed.

    Args:
      folder: the folder of decisions.
      number: the number of the unit.
      source: the number of the unit's source.
      names: the names of the files that are there, see `Request.names`; other decisions were not needed.
    """

    def __init__(self, folder: pathlib.Path, number: int, source: int, names: Collection[str]):
        self._folder = folder
        self._number = number
        self._source = source
        self._names = names
        self._read_decisions: dict[str, Any] = {}
        self._seen_keys: dict[str, set[int]] = collections.defaultdict(set)  # {kind of duplicates: keys so far}

    def _get(self, decision: str, read: Callable[[pathlib.Path], Any], default: Any) -> Any:
        """Returns `read(file)` of a kind of decisions, or `default` if nothing had to be decided."""
        if decision not in self._read_decisions:
            path = path_of(self._folder, decision, self._source)
            self._read_decisions[decision] = read(path) if path.name in self._names else default
        return self._read_decisions[decision]

    def _rows_of_unit(self, path: pathlib.Path) -> dict[str, np.ndarray]:
        """Returns {column: values [N]} of the unit's rows of a file, in the order of their keys."""
        query = f"SELECT * FROM {rows.file(path)} WHERE unit = ?"
        return rows.ask(self._folder, query, [self._number]).fetchnumpy()

    def _keys_of_unit(self, path: pathlib.Path) -> np.ndarray:
        """Returns the keys of the unit's rows of a file, sorted, uint64 [N]."""
        return self._rows_of_unit(path)["key"]

    @property
    def frequent_texts(self) -> np.ndarray:
        """The sorted hashes of texts on too many images, uint64 [N]."""
        return self._get(TEXTS, read_array, np.empty(0, np.uint64))

    @property
    def frequent_images(self) -> np.ndarray:
        """The sorted hashes of the ids of images with too many texts, uint64 [N]."""
        return self._get(IMAGES, read_array, np.empty(0, np.uint64))

    def location(self, address: str) -> tuple[int, int, int] | None:
        """Returns (number of the shard, offset and size in bytes) of a downloaded image; `None` if no shard has it."""
        locations = self._get(LOCATIONS, self._rows_of_unit, None)
        if locations is None:
            return None
        keys = locations["key"]
        key = np.uint64(text_hash(address))
        index = int(np.searchsorted(keys, key))
        if index == len(keys) or keys[index] != key:
            return None
        return int(locations["shard"][index]), int(locations["start"][index]), int(locations["size"][index])

    def translations(self, key: str) -> list[tuple[str, str]]:
        """Returns the (language, translation) of a caption, by one of its `keys_of`."""
        return self._get(TRANSLATIONS, self._translations, {}).get(text_hash(key), [])

    def _translations(self, path: pathlib.Path) -> dict[int, list[tuple[str, str]]]:
        """Returns {hash of a caption's key: its (language, translation)} for the unit's rows of a file."""
        translations: dict[int, list[tuple[str, str]]] = {}
        columns = self._rows_of_unit(path)
        for key, language, text in zip(columns["key"].tolist(), columns["language"], columns["text"]):
            translations.setdefault(key, []).append((language, text))
        return translations

    def split(self, language: str, image_id: str) -> str:
        """Returns a caption's split: "train" if nothing was divided, "" if another language holds the image out."""
        from mural_tf.ingest.sources.wit import HeldOut  # the only family of sources that are divided

        held_out = self._get(HELD_OUT, lambda path: HeldOut.from_json(path.read_text("utf-8")), None)
        if held_out is None:
            return "train"
        return held_out.split_of(language, image_id)

    def without_duplicates(self, captioned: Captioned, reading: Reading, kinds: Sequence[str]) -> Captioned | None:
        """Returns the image with the captions that are not duplicates; `None` if no caption is left.

        A duplicate is in an earlier unit, or in an earlier record of this unit.

        Args:
          captioned: the image with its captions.
          reading: its tally counts the duplicates.
          kinds: the kinds of duplicates, see `Request.duplicates`.
        """
        for decision in kinds:
            are_duplicates = [self._is_duplicate(decision, key) for key in keys_of_captioned(decision, captioned)]
            if decision == SAME_IMAGE:  # one key, which decides about all texts
                are_duplicates *= len(captioned.texts)
            texts = []
            for text, is_duplicate in zip(captioned.texts, are_duplicates):
                if is_duplicate:
                    reading.tally.leave_out(decision, text.place)
                else:
                    texts.append(text)
            if not texts:
                return None
            captioned = captioned._replace(texts=texts)
        return captioned

    def is_duplicate_pair(self, pair: Pair, decision: str) -> bool:
        """Whether an earlier unit, or an earlier record of this unit, has the pair."""
        return self._is_duplicate(decision, key_of_pair(pair))

    def _is_duplicate(self, decision: str, key: int) -> bool:
        """Whether an earlier unit, or an earlier call for this unit, has the key; keeps the key for later calls."""
        keys_of_earlier_units = self._get(decision, self._keys_of_unit, np.empty(0, np.uint64))
        seen_keys = self._seen_keys[decision]
        if contains(keys_of_earlier_units, key) or key in seen_keys:
            return True
        seen_keys.add(key)
        return False
