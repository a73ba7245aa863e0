"""From text to words, in the graph: the step before word pieces, shared by vocabulary building and tokenizing; and
counts of words.

A vocabulary is only right for texts that were split the same way, so both call `split_words`. It is BERT's rule
(Devlin et al., 2019): words end at white space, every punctuation mark and every Chinese character is a word of its
own. Scripts written without spaces (Thai, Lao, Burmese, Khmer) give one long word, which the word pieces divide.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping

import tensorflow as tf

from mural_tf.backend import tf_text

# Soft hyphen and the zero-width (non-)joiners shape letters inside a word: deleting them keeps the word whole
# (Sinhala writes most consonant clusters with a joiner). The zero-width space is not among them: it ends a word.
_JOINERS = r"[\x{00AD}\x{200C}\x{200D}]"
_SPACES = r"[\s\p{Z}\p{Cc}\p{Cf}]+"
_SYMBOLS_AND_PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"
_CHINESE = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)
_ONE_CHARACTER_WORDS = f"{_SYMBOLS_AND_PUNCTUATION}|{_CHINESE}"
WHOLE_CHINESE = "whole_chinese"  # of `vocabulary.cleaning`: Chinese characters end no word


def clean_text(texts: tf.Tensor, lower_case: bool = False, strip_accents: bool = False) -> tf.Tensor:
    """Returns texts as valid UTF-8 with single spaces, string [B].

    Control characters, format characters and all Unicode spaces count as space. (tensorflow_text's own BERT tokenizer
    keeps no-break and ideographic spaces inside words and splits at joiners.) BERT's "uncased" takes both options.

    Args:
      texts: string [B], any bytes; every byte sequence that is not UTF-8 becomes one U+FFFD.
      lower_case: whether letters become Unicode lower case; accents and vowel signs stay.
      strip_accents: whether non-spacing marks are dropped: é becomes e, but Indic and Arabic vowel signs go, too.
    """
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    if lower_case:
        texts = tf.strings.lower(texts, encoding="utf-8")
    if strip_accents:
        texts = tf.strings.regex_replace(tf_text.normalize_utf8(texts, "NFD"), r"\p{Mn}", "")
    texts = tf.strings.regex_replace(texts, _JOINERS, "")
    return tf.strings.strip(tf.strings.regex_replace(texts, _SPACES, " "))


def split_words(texts: tf.Tensor, whole_chinese: bool = False) -> tf.RaggedTensor:
    """Returns the words of texts, string [B], that `clean_text` cleaned: string [B, (words)].

    With `whole_chinese`, as in a few tokenizers, Chinese characters are letters like others.
    """
    one_character_words = _SYMBOLS_AND_PUNCTUATION if whole_chinese else _ONE_CHARACTER_WORDS
    # tensorflow_text's regex_split answers the same, but builds a graph of ten times the size around its operation.
    return tf.strings.split(tf.strings.regex_replace(texts, f"({one_character_words})", r" \1 "))


# Counts of words in texts that one process reads, in bounded memory, from which vocabularies are learned.
#
# Most words are rare, and a large corpus has more than fit into memory. When there are too many, the rarest are
# forgotten (the lossy counting of Manku and Motwani, 2002). A word that is seen again afterwards starts at the count up
# to which words were forgotten, which is the most it can have had: counts are never too small, and too large by at most
# `error`. `python -m mural_tf vocabulary` counts exactly, on disk, in many processes (ingest/build_vocabulary.py).

BATCH = 10_000  # texts that are split at a time
MAX_WORDS = 20_000_000  # distinct words held; about 100 bytes each


def count_words(
    texts: Iterable[str], lower_case: bool = False, strip_accents: bool = False, max_words: int = MAX_WORDS
) -> collections.Counter:
    """Returns {word: count} of texts, cleaned and split as the tokenizer does it, by `BoundedCounts` of `max_words`."""
    counts = BoundedCounts(max_words)
    for _, words in count_by_language((("", text) for text in texts), WordSplitter(lower_case, strip_accents)):
        counts.add(words)
    return counts.counts


def count_by_language(
    texts: Iterable[tuple[str, str]], splitter: WordSplitter
) -> Iterator[tuple[str, collections.Counter]]:
    """Yields (language, {word: count}) of (language, text) pairs, for each `BATCH` texts of a language and the rest."""
    batches: dict[str, list[str]] = collections.defaultdict(list)
    for language, text in texts:
        batches[language].append(text)
        if len(batches[language]) == BATCH:
            yield language, splitter.count(batches.pop(language))
    for language, last_batch in batches.items():
        yield language, splitter.count(last_batch)


def most_frequent(counts: Mapping[str, int], limit: int) -> list[str]:
    """Returns at most `limit` words of {word: count}, most frequent first, ties in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:limit]


class WordSplitter:
    """Splits texts into words, as the tokenizer with the same settings does, and counts the words."""

    def __init__(self, lower_case: bool = False, strip_accents: bool = False):
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
        def split(batch):
            return split_words(clean_text(batch, lower_case, strip_accents)).flat_values

        self._split = split

    def count(self, texts: list[str]) -> collections.Counter:
        """Returns {word: count} of the texts."""
        counts = collections.Counter(self._split(tf.constant(texts, tf.string)).numpy().tolist())
        return collections.Counter({word.decode("utf-8"): count for word, count in counts.items()})


class BoundedCounts:
    """Counts of at most `max_words` different words, which are too large by at most `error`, as said above."""

    def __init__(self, max_words: int = MAX_WORDS):
        if max_words < 1:
            raise ValueError(f"max_words is {max_words}; expected at least 1.")
        self.max_words = max_words
        self.error = 0
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, counts: Mapping[str, int]) -> None:
        """Adds {word: count}, then forgets the rarer half of all words, raising `error`, until `max_words` are left."""
        for word, count in counts.items():
            self.counts[word] = self.counts.get(word, self.error) + count
        while len(self.counts) > self.max_words:
            self.error = sorted(self.counts.values())[len(self.counts) // 2]  # the median
            frequent = {word: count for word, count in self.counts.items() if count > self.error}
            self.counts = collections.Counter(frequent)
