"""How often each word occurs in texts that one process reads, in bounded memory; what vocabularies are learned from.

Most words are rare, and a large corpus has more than fit into memory. When there are too many, the rarest are forgotten
(the lossy counting of Manku and Motwani, 2002). A word that is seen again afterwards starts at the count up to which
words were forgotten, which is the most it can have had: counts are never too small, and too large by at most `error`.
`python -m mural_tf vocabulary` counts exactly, on disk, in many processes (ingest/build_vocabulary.py).
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping

import tensorflow as tf

from mural_tf.text.words import clean_text, split_words

BATCH = 10_000  # texts that are split at a time
MAX_WORDS = 20_000_000  # distinct words held; about 100 bytes each


def count_words(
    texts: Iterable[str], lower_case: bool = False, strip_accents: bool = False, max_words: int = MAX_WORDS
) -> collections.Counter:
    """Returns how often each word occurs, with the tokenizer's own splitting. Counts 300,000 captions a second."""
    counts = BoundedCounts(max_words)
    for _, words in count_by_language((("", text) for text in texts), WordSplitter(lower_case, strip_accents)):
        counts.add(words)
    return counts.counts


def count_by_language(
    texts: Iterable[tuple[str, str]], splitter: WordSplitter
) -> Iterator[tuple[str, collections.Counter]]:
    """Yields (language, {word: count}) of (language, text) pairs, `BATCH` texts of a language at a time."""
    waiting: dict[str, list[str]] = collections.defaultdict(list)
    for language, text in texts:
        waiting[language].append(text)
        if len(waiting[language]) == BATCH:
            yield language, splitter.count(waiting.pop(language))
    for language, rest in waiting.items():
        yield language, splitter.count(rest)


class WordSplitter:
    """Splits and counts, as the tokenizer with the same settings splits."""

    def __init__(self, lower_case: bool = False, strip_accents: bool = False):
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
        def split(batch):
            return split_words(clean_text(batch, lower_case, strip_accents)).flat_values

        self._split = split

    def count(self, texts: list[str]) -> collections.Counter:
        """Returns the words of the texts with their counts."""
        counts = collections.Counter(self._split(tf.constant(texts, tf.string)).numpy().tolist())
        return collections.Counter({word.decode("utf-8"): count for word, count in counts.items()})


class BoundedCounts:
    """Counts of at most `max_words` distinct words."""

    def __init__(self, max_words: int = MAX_WORDS):
        if max_words < 1:
            raise ValueError(f"max_words is {max_words}; expected at least 1.")
        self.max_words, self.error = max_words, 0
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, counts: Mapping[str, int]) -> None:
        """Adds the counts of some texts; the result depends on the order only once words were forgotten."""
        for word, count in counts.items():
            self.counts[word] = self.counts.get(word, self.error) + count
        while len(self.counts) > self.max_words:  # half of them are forgotten
            self.error = sorted(self.counts.values())[len(self.counts) // 2]
            self.counts = collections.Counter({word: n for word, n in self.counts.items() if n > self.error})
