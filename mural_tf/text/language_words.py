"""Words of several languages as ids: the tokenizer of methods with word vectors per language (MULE, EmbN).

The same spelling in two languages is two words, as in FastText's monolingual vectors. A text says its language with a
tag, "<de> ein Haus"; without a tag, or with one that names none of the tokenizer's languages, the tokenizer takes the
language under which the words are likeliest. So a query needs no tag, and an exported model takes plain strings.

A vocabulary file holds one word on each line, "de\\tHaus", by language and there from frequent to rare. Line 0 is
[PAD]; then each language has a line "de\\t[UNK]", for words that are not in the list.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.text.tokenizer import Tokenizer
from mural_tf.text.tokens import fill_rows
from mural_tf.text.vocabulary_file import as_file
from mural_tf.text.words import WordSplitter, clean_text, count_by_language, most_frequent, split_words

PAD = "[PAD]"
UNKNOWN = "[UNK]"
SEPARATOR = "\t"
MAX_BYTES = 2**16  # bytes of a text from which its words and its language are taken
TAG = r"^<([A-Za-z0-9-]+)> "


def build_words(
    texts: Iterable[tuple[str, str]], languages: Sequence[str], size: int, lower_case: bool, strip_accents: bool
) -> list[str]:
    """Returns the lines of the vocabulary of (language, text) pairs; the same texts give the same list.

    Args:
      texts: pairs that are read once; texts in other languages are left out.
      languages: the languages in the order of their ids.
      size: the most lines of the list, shared equally by the languages for their most frequent words.
      lower_case, strip_accents: as in `clean_text`; give the tokenizer the same values.

    Raises:
      UserError: no room for a word of each language, or a language without any text.
    """
    share = (size - 1 - len(languages)) // max(len(languages), 1)  # without [PAD] and the lines of [UNK]
    if share < 1:
        raise UserError(f"vocabulary.size={size} has no room for words of {len(languages)} languages.")
    counts = {language: collections.Counter() for language in languages}
    texts_in_languages = ((language, text) for language, text in texts if language in counts)
    for language, words in count_by_language(texts_in_languages, WordSplitter(lower_case, strip_accents)):
        counts[language].update(words)
    missing = [language for language, word_counts in counts.items() if not word_counts]
    if missing:
        raise UserError(
            f"No training texts in {', '.join(missing)}: leave them out of text_tower.languages, or add their data."
        )
    lines = [PAD, *(f"{language}{SEPARATOR}{UNKNOWN}" for language in languages)]
    for language, word_counts in counts.items():
        lines += [f"{language}{SEPARATOR}{word}" for word in most_frequent(word_counts, share)]
    return lines


class WordTokenizer(Tokenizer):
    """A tokenizer that takes a text's words as words of the language that its tag names, or of the likeliest language.

    A row is a text's words and then [PAD]; `input_type_ids` is the language's number, the same in the whole row. Longer
    texts lose their last words; a text without any word is one [UNK]. Only the first `MAX_BYTES` of a text are read.
    """

    takes_languages = True

    def __init__(self, vocabulary: Sequence[str], languages: Sequence[str], **options):
        """Builds the tokenizer.

        Args:
          vocabulary: the lines of a vocabulary file.
          languages: the languages in the order of their ids.
          **options: `Tokenizer`'s.

        Raises:
          UserError: not a vocabulary of these languages.
        """
        super().__init__(vocabulary, unknown=-1, **options)
        self.languages = tuple(languages)
        self._starts = _language_starts(self._vocabulary, self.languages)

    def for_lite(self) -> tuple[dict, bytes]:
        """Returns lite.json's settings and the vocabulary file, see `Tokenizer.for_lite`."""
        settings = dict(kind="words", begin=[], end=[], pad=0, max_bytes=MAX_BYTES)
        settings |= dict(languages=list(self.languages), starts=self._starts)
        return settings, as_file(self._vocabulary)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of whole texts, string [B]: int32 [B, (words), 1]; a word is one piece."""
        texts = tf.convert_to_tensor(texts, tf.string)
        untagged = tf.strings.regex_replace(texts, TAG, "")
        cleaned = clean_text(untagged, self.lower_case, self.strip_accents)
        words = split_words(cleaned)  # [B, (words)]
        tagged = self._tagged_languages(texts)
        languages = tf.cond(  # the likeliest languages are not computed where every text has a tag
            tf.reduce_all(tagged >= 0),
            lambda: tagged,
            lambda: tf.where(tagged >= 0, tagged, self.likeliest_languages(words)),
        )
        is_empty = words.row_lengths() == 0
        # A text without words becomes its language's [UNK], whose line follows [PAD].
        unknown = tf.RaggedTensor.from_tensor(1 + languages[:, None], lengths=tf.cast(is_empty, tf.int64))
        return tf.concat([self._word_ids(words, languages), unknown], axis=1)[:, :, None]

    def _tagged_languages(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns the number of the language that each text's tag names, int32 [B]; -1 without such a tag."""
        pattern = f"(?s){TAG}.*"
        has_tag = tf.strings.regex_full_match(texts, pattern)
        tags = tf.strings.regex_replace(texts, pattern, r"\1")
        return self._language_numbers(tf.where(has_tag, tags, ""))

    def _word_ids(self, words: tf.RaggedTensor, languages: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of words, int32 [B, (words)], in languages, int32 [B]; unknown words are their [UNK]."""
        numbers = tf.gather(languages, words.value_rowids())  # each word's language
        ids = self._lookup(tf.gather(tf.constant(self.languages), numbers), words.flat_values)
        unknown = 1 + tf.cast(numbers, tf.int64)  # lines of [UNK] follow [PAD]
        ids = tf.where(ids >= 0, ids, unknown)
        return words.with_flat_values(tf.cast(ids, tf.int32))

    def _row_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.tokenize(tf.strings.substr(texts, 0, MAX_BYTES))

    def pack(self, ids: tf.RaggedTensor, length: int | tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Returns rows of ids, cut and padded, as `Tokenizer.pack`; `input_type_ids` is the first word's language."""
        longest = self.max_length if length is None else length
        word_ids, mask = fill_rows(ids[:, :longest], 0, length)
        languages = tf.zeros_like(word_ids) + self._language_of(word_ids[:, :1])  # [B, T] of [B, 1]
        return {"input_word_ids": word_ids, "input_mask": mask, "input_type_ids": languages}

    def likeliest_languages(self, words: tf.RaggedTensor) -> tf.Tensor:
        """Returns the number of the likeliest language of each text, int32 [B], by its words, string [B, (words)].

        Words count as independent. The r-th most frequent word of a language has a probability in proportion to
        1 / (r + 1) (near Zipf's law), and an unknown word to 1 / (10 n), where n is the most words of a language.
        """
        word_counts = np.diff([*self._starts, len(self._vocabulary)])
        unknown_score = -math.log(10.0 * max(word_counts))
        scores = []
        for language, start in zip(self.languages, self._starts):
            ids = self._lookup(tf.fill(tf.shape(words.flat_values), language), words.flat_values)
            rank = tf.cast(ids - start + 2, tf.float32)  # r + 1, which is 2 for the most frequent word
            score = tf.where(ids >= start, -tf.math.log(tf.maximum(rank, 1.0)), unknown_score)
            scores.append(tf.reduce_sum(words.with_flat_values(score), axis=1))
        return tf.argmax(tf.stack(scores, axis=1), axis=1, output_type=tf.int32)

    def _lookup(self, languages: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """Returns the ids of words, int64 [W], in languages, string [W]; -1 for a word that is not in the list."""
        lines = tf.strings.join([languages, words], separator=SEPARATOR)
        return self._table.lookup(lines)

    def _language_numbers(self, tags: tf.Tensor) -> tf.Tensor:
        """Returns the number of the language that each tag names, int32 [B], or -1."""
        is_named = tf.equal(tags[:, None], tf.constant(self.languages)[None, :])  # [B, languages]
        index = tf.argmax(tf.cast(is_named, tf.int32), axis=1, output_type=tf.int32)
        return tf.where(tf.reduce_any(is_named, axis=1), index, -1)

    def _language_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the number of the language of each id, int32 of any shape; 0 for [PAD]."""
        flat_ids = tf.reshape(ids, [-1])
        language_of_word = tf.searchsorted(tf.constant(self._starts), flat_ids, side="right") - 1
        is_unknown = flat_ids < self._starts[0]  # [PAD], then an [UNK] per language
        languages = tf.where(is_unknown, flat_ids - 1, language_of_word)
        return tf.reshape(tf.maximum(languages, 0), tf.shape(ids))


def _language_starts(vocabulary: Sequence[str], languages: Sequence[str]) -> list[int]:
    """Returns the id of each language's first word; raises `UserError` for lines in another order than above."""
    expected = [PAD, *(f"{language}{SEPARATOR}{UNKNOWN}" for language in languages)]
    if not languages or list(vocabulary[: len(expected)]) != expected:
        raise UserError(
            f"The vocabulary is not one of words in the languages {', '.join(languages) or '(none)'}: expected its "
            f"first lines to be {expected[:2]} …; see text_tower.languages."
        )
    starts = []
    position = len(expected)
    for language in languages:
        starts.append(position)
        while position < len(vocabulary) and vocabulary[position].startswith(f"{language}{SEPARATOR}"):
            position += 1
    if position != len(vocabulary):
        raise UserError(f"Line {position} of the vocabulary, {vocabulary[position]!r}, is out of order.")
    return starts
