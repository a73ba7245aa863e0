"""Builds a vocabulary from any sources that can be converted, and from converted data sets (docs/data.md).

    python -m mural_tf vocabulary records:data/mine opus:de-en.txt.zip --output=words.txt --size=250000

The sources are the sources of `python -m mural_tf convert --list`; images are not needed. Words are counted
exactly, by language: every worker counts its units, and DuckDB adds up.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator, Sequence

from mural_lite.errors import UserError
from mural_lite.files import as_path, remove_tree, write_whole
from mural_lite.progress import tqdm
from mural_lite.skipped import Tally
from mural_lite.text_files import Unit
from mural_lite.work import Step
from mural_tf.ingest import rows
from mural_tf.ingest.convert import in_order
from mural_tf.ingest.source import PAIR, Reading, Settings, Source

MOST_WORDS = 20_000_000  # distinct words that a vocabulary is learned from; about 100 bytes each
WORDS_AT_A_TIME = 1_000_000  # distinct words that a worker holds
# Columns of the tables.
COUNTS = {"language": "string", "word": "string", "count": "int64"}
FACTORS = {"language": "string", "factor": "double"}


class CountUnit:
    """Counts the words of a unit's texts; made once in every worker, which needs TensorFlow, as the tokenizer does.

    Args:
      sources: all sources.
      lower_case, strip_accents: as for the tokenizer.
      folder: the folder of the counts.
    """

    def __init__(self, sources: Sequence[Source], lower_case: bool, strip_accents: bool, folder: pathlib.Path):
        from mural_lite.quiet import quiet_imports

        quiet_imports()
        from mural_tf.text.words import WordSplitter

        self.sources = sources
        self.folder = folder
        self.splitter = WordSplitter(lower_case, strip_accents)

    def __call__(self, job: tuple[int, int, Unit]) -> None:
        """Counts the words of a unit, and writes the counts and, last, the tally, into `folder`.

        Args:
          job: (number of the job, number of the source, unit).
        """
        from mural_tf.text.words import count_by_language

        number, source_number, unit = job
        reading = Reading()
        counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        distinct_words = 0
        texts = self._texts(self.sources[source_number], unit, reading)
        with rows.write(self.folder, "counts", number, COUNTS) as add:
            for language, words in count_by_language(texts, self.splitter):
                distinct_words -= len(counts[language])
                counts[language].update(words)
                distinct_words += len(counts[language])
                if distinct_words > WORDS_AT_A_TIME:  # a word may have several rows, which are added up later
                    _write_counts(counts, add)
                    counts.clear()
                    distinct_words = 0
            _write_counts(counts, add)
        reading.tally.places.clear()  # many, of which only the counts are reported
        write_whole(self.folder / f"tally-{number:06d}.json", json.dumps(dataclasses.asdict(reading.tally)))

    def _texts(self, source: Source, unit: Unit, reading: Reading) -> Iterator[tuple[str, str]]:
        """Yields (language, text) of each text of a unit, and counts pairs and captions in `reading.tally.written`."""
        for item in source.read(unit, reading):
            if source.ITEM == PAIR:
                for pair in source.records(item, reading):
                    reading.tally.written += 1
                    yield pair.language_a, pair.text_a
                    yield pair.language_b, pair.text_b
            else:
                for _, text in source.texts(item):
                    reading.tally.written += 1
                    yield text.language, text.text


def _write_counts(counts: dict[str, collections.Counter], add: Callable) -> None:
    """Writes {language: {word: count}} as rows, each by a call of `add`."""
    for language, words in counts.items():
        for word, count in words.items():
            add((language, word, count))


class WordCounts:
    """The exact counts of a corpus, in files.

    Args:
      folder: the folder in which `CountUnit` has written the counts.

    Attributes:
      totals: {language: number of words}.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._counts = rows.files(folder, "counts")
        query = f"SELECT language, sum(count)::BIGINT FROM {self._counts} GROUP BY language ORDER BY language"
        totals = dict(rows.ask(folder, query).fetchall())
        self.totals: collections.Counter[str] = collections.Counter(totals)

    def combined(self, temperature: float = 1.0, most: int = MOST_WORDS) -> tuple[collections.Counter, int]:
        """Returns ({word: count} of the most frequent words over all languages, number of the other distinct words).

        With temperature T a language with the share p of all words gets a share in proportion to p^(1/T) (Devlin et
        al.'s multilingual BERT takes p^0.7, that is T = 1.43): its counts are multiplied so, and rounded. The largest
        language keeps its counts, so no word is lost.

        Args:
          temperature: at least 1; 1 leaves the counts as they are, infinity gives every language the same share.
          most: the most words that are returned; words with equal counts come in the order of the alphabet.
        """
        with rows.write(self._folder, "factors", 0, FACTORS) as add:
            for factor in temperature_factors(self.totals, temperature).items():  # in a file, for DuckDB
                add(factor)
        sums = f"SELECT language, word, sum(count)::DOUBLE AS count FROM {self._counts} GROUP BY ALL"
        words = f"""SELECT word, sum(round_even(count * factor, 0))::BIGINT AS count FROM ({sums})
            JOIN {rows.files(self._folder, "factors")} USING (language) GROUP BY word"""
        ((distinct_words,),) = rows.ask(self._folder, f"SELECT count(*) FROM ({words})").fetchall()
        answer = rows.ask(self._folder, f"{words} ORDER BY count DESC, word LIMIT {most}")
        frequent = collections.Counter()
        while block := answer.fetchmany(100_000):  # rows, so that they do not lie in memory twice
            frequent.update(dict(block))
        return frequent, distinct_words - len(frequent)


def temperature_factors(totals: collections.Counter, temperature: float) -> dict[str, float]:
    """Returns {language: factor of its counts}: (largest total / its total)^(1 - 1/T), see `WordCounts.combined`.

    Args:
      totals: {language: number of words}.
      temperature: T, at least 1.
    """
    largest_total = max(totals.values(), default=0)
    exponent = 1.0 - 1.0 / temperature
    return {language: (largest_total / max(1, total)) ** exponent for language, total in totals.items()}


def count_sources(
    sources: Sequence[Source],
    settings: Settings,
    folder: pathlib.Path,
    lower_case: bool = False,
    strip_accents: bool = False,
    progress: bool = True,
) -> tuple[WordCounts, Tally]:
    """Counts the words of all sources by language, and writes the counts to files in `folder`.

    Args:
      sources: the sources; they are not checked, and their images are not looked at.
      settings: `workers`, `beam`, `unit_bytes` and `max_skipped_fraction` are used.
      folder: the folder for the counts, which all workers see.
      lower_case, strip_accents: as for the tokenizer.
      progress: whether to show a bar.

    Returns:
      The counts, which are the same for any number of workers, and the tally of unusable items.

    Raises:
      UserError: too much of the sources is unusable.
    """
    sources = in_order(sources)
    jobs = []
    for source_number, source in enumerate(sources):
        for unit in source.units(settings.unit_bytes):
            jobs.append((len(jobs), source_number, unit))
    step = Step("Count words", CountUnit, (sources, lower_case, strip_accents, folder))
    with tqdm(desc="Counting words", unit=" units", total=len(jobs), disable=not progress) as bar:

        def update_bar() -> None:
            finished_jobs = len(list(folder.glob("tally-*")))
            bar.update(finished_jobs - bar.n)

        settings.engine().map(step, jobs, folder, update_bar)
    tally = Tally()
    for path in sorted(folder.glob("tally-*")):
        values = json.loads(path.read_text(encoding="utf-8"))
        tally.add(Tally(**values))
    tally.check(settings.max_skipped_fraction)
    return WordCounts(folder), tally


def build_vocabulary(
    sources: Sequence[Source],
    output: str | os.PathLike,
    settings: Settings,
    size: int = 250_000,
    temperature: float = 1.0,
    lower_case: bool = False,
    strip_accents: bool = False,
) -> None:
    """Learns word pieces from all texts of the sources, writes them to the file `output` and prints a report.

    Args:
      sources, settings, lower_case, strip_accents: as `count_sources` takes them.
      output: the file of the vocabulary, a word piece on each line.
      size: the most word pieces, with the reserved pieces.
      temperature: at least 1, see `WordCounts.combined`; `math.inf` gives all languages one share.

    Raises:
      UserError: a source without files, too much that is unusable, or a `temperature` below 1.
    """
    if not 1.0 <= temperature <= math.inf:
        raise UserError(f"--temperature={temperature}: expected 1 or more; inf gives languages one share.")
    for source in sources:
        source.files()  # raises before words are counted
    from mural_tf.text.learning import learn_vocabulary
    from mural_tf.text.vocabulary_file import save_vocabulary

    output = as_path(output)
    folder = output.parent / f".{output.name}.{secrets.token_hex(4)}.counting"
    folder.mkdir(parents=True)
    try:
        counts, tally = count_sources(sources, settings, folder, lower_case, strip_accents)
        print("\n".join(tally.lines()))
        frequent, rare_words = counts.combined(temperature, MOST_WORDS)
    finally:
        remove_tree(folder)
    totals = counts.totals
    print(f"{sum(totals.values())} words, {len(frequent) + rare_words} of them distinct, in {len(totals)} languages")
    if rare_words:
        print(f"{rare_words} of the rarest are not learned from.")
    pieces = learn_vocabulary(frequent, size)
    save_vocabulary(pieces, output)
    print(f"{len(pieces)} word pieces in {output}")
