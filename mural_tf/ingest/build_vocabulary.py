"""Builds a vocabulary from any sources that can be converted, and from converted data sets (docs/convert.md).

    python -m mural_tf vocabulary records:data/mine opus:de-en.txt.zip --output=words.txt --size=250000

The sources are those of `python -m mural_tf convert --list`; images are not needed. Words are counted by parallel
workers in bounded memory, by language.
"""

from __future__ import annotations

import collections
import math
import pathlib
import tempfile
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from mural_tf.errors import UserError
from mural_tf.ingest.blocks import Block, map_blocks, read_blocks
from mural_tf.ingest.source import PAIR, Settings, Source, Tally


class CountBlock:
    """Counts the words of a block's texts; made once in every worker."""

    def __init__(self, sources: Sequence[Source], lower_case: bool, strip_accents: bool):
        from mural_tf.text.word_counts import WordSplitter

        self.sources, self.splitter = sources, WordSplitter(lower_case, strip_accents)

    def __call__(self, block: Block) -> tuple[dict[str, collections.Counter], Tally, int]:
        """Returns {language: {word: count}}, what could not be used, and the block's position."""
        from mural_tf.text.word_counts import count_by_language

        counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        for language, words in count_by_language(self._texts(block), self.splitter):
            counts[language].update(words)
        block.tally.places.clear()
        return dict(counts), block.tally, block.position

    def _texts(self, block: Block) -> Iterator[tuple[str, str]]:
        for index, item in block.items:
            source = self.sources[index]
            if source.ITEM == PAIR:
                for pair in source.records(item, block.tally):
                    block.tally.written += 1
                    yield pair.language_a, pair.text_a
                    yield pair.language_b, pair.text_b
            else:
                for _, text in source.texts(item):
                    block.tally.written += 1
                    yield text.language, text.text


def count_sources(
    sources: Sequence[Source],
    settings: Settings,
    lower_case: bool = False,
    strip_accents: bool = False,
    max_words_in_memory: int | None = None,
    progress: bool = True,
):
    """Counts the words of all sources.

    Args:
      sources: not prepared; their images are not looked at.
      settings: `workers`, `block_sizes` and `max_skipped_fraction` are used.
      lower_case, strip_accents: as for the tokenizer.
      max_words_in_memory: distinct words that are held; default `word_counts.MAX_WORDS`.
      progress: whether to show a bar.

    Returns:
      (`text.word_counts.WordCounts`, `Tally`); the same for any number of workers.

    Raises:
      UserError: too much of the sources is unusable.
    """
    from mural_tf.text.word_counts import MAX_WORDS, WordCounts

    counts, tally = WordCounts(max_words_in_memory or MAX_WORDS), Tally()
    total = sum(source.size() for source in sources)
    arguments = (list(sources), lower_case, strip_accents)
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=total, unit="B", unit_scale=True, desc="Counting words", disable=not progress) as bar,
    ):
        blocks = read_blocks(sources, settings, pathlib.Path(folder))
        for found, of_block, position in in_order(map_blocks(blocks, settings.workers, CountBlock, arguments)):
            for language, words in found.items():
                counts.add(language, words)
            tally.add(of_block)
            tally.check(settings.max_skipped_fraction)
            bar.update(max(0, position - bar.n))
    tally.check(settings.max_skipped_fraction, at_end=True)
    return counts, tally


def in_order(results: Iterator[tuple[int, object]]) -> Iterator:
    """Yields results by their numbers 0, 1, 2, …; few are waiting at a time, because blocks are handed out in order."""
    waiting, following = {}, 0
    for number, result in results:
        waiting[number] = result
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def build_vocabulary(
    sources: Sequence[Source],
    output: str | pathlib.Path,
    settings: Settings,
    size: int = 250_000,
    builder: str = "tensorflow_text",
    temperature: float = 1.0,
    lower_case: bool = False,
    strip_accents: bool = False,
    max_words_in_memory: int | None = None,
) -> None:
    """Learns word pieces from all texts of the sources, writes them to the file `output` and prints a report.

    Args:
      sources, settings, lower_case, strip_accents, max_words_in_memory: as `count_sources` takes them.
      size: word pieces with the reserved ones, at most.
      builder: "tensorflow_text" or "tokenizers".
      temperature: a language with share p of all words counts as p^(1/temperature); `math.inf` gives all one share.

    Raises:
      UserError: a missing source, too much that is unusable, or a `temperature` below 1.
    """
    if not 1.0 <= temperature <= math.inf:
        raise UserError(f"--temperature={temperature}: expected 1 or more; inf gives languages one share.")
    for source in sources:
        source.files()  # raises before words are counted
    from mural_tf.text.learning import learn_vocabulary
    from mural_tf.text.vocabulary_file import save_vocabulary

    counts, tally = count_sources(sources, settings, lower_case, strip_accents, max_words_in_memory)
    print("\n".join(tally.lines()))
    combined = counts.combined(temperature)
    print(f"{sum(counts.totals.values())} words, {len(combined)} distinct ones, in {len(counts.totals)} languages")
    forgotten = {language: error for language, error in counts.error.items() if error}
    if forgotten:
        print(f"Rare words were forgotten; counts may be too large by {forgotten}. See --max_words_in_memory.")
    pieces = learn_vocabulary(combined, size, builder)
    save_vocabulary(pieces, output)
    print(f"{len(pieces)} word pieces in {output}")
