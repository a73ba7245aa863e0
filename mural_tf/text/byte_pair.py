"""Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019): the pieces of [Globetrotter] §3.5.

A word is a sequence of UTF-8 bytes, and pieces are sequences of bytes: no character is unknown. Texts are cleaned and
split into words as for word pieces (`words.py`), and every word begins with the byte of a space. Pieces are written
with one printable character for each byte, as GPT-2 does ("Ġ" is the space), so that a vocabulary is a text file.

Only the vocabulary is kept, special pieces first, then the 256 bytes, then merged pieces in the order in which they
were learned. In a word the two neighbours whose joined piece was learned first are joined, again and again; that equals
the merging by a list of pairs, except where one piece can be made of two different pairs. SentencePiece's operation
does it (Kudo and Richardson, 2018), for which a piece scores the higher the earlier it was learned.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from mural_lite.byte_words import byte_characters
from mural_lite.errors import UserError
from mural_tf.text.byte_words import codes_of
from mural_tf.text.piece_models import BYTE_PAIR_SETTINGS, model_of
from mural_tf.text.sentence_pieces import PieceModel
from mural_tf.text.vocabulary_file import RESERVED_TOKENS
from mural_tf.text.word_pieces import WordPieceTokenizer
from mural_tf.text.words import split_words

LONGEST_WORD = 64  # bytes; longer words are cut into words of this length
UNKNOWN = RESERVED_TOKENS[1]


def written_in_bytes(word: str) -> list[str]:
    """Returns " " + word with a character for each byte, cut into parts of `LONGEST_WORD`: ["Ġein"] for "ein"."""
    characters = byte_characters()
    text = "".join(characters[byte] for byte in b" " + word.encode("utf-8"))
    return [text[begin : begin + LONGEST_WORD] for begin in range(0, len(text), LONGEST_WORD)]


class BytePairTokenizer(WordPieceTokenizer):
    """A `WordPieceTokenizer` whose pieces between [CLS] and [SEP] are byte-level pairs.

    Globetrotter's <txt> is [CLS]; its text has no [SEP]. Raises `UserError` as a `WordPieceTokenizer`, and for a
    vocabulary that lacks a byte.
    """

    def __init__(self, vocabulary: Sequence[str], **options):
        missing = set(byte_characters()) - set(vocabulary)
        if missing:
            raise UserError(
                f"The vocabulary lacks {len(missing)} of the 256 bytes: it is not made by vocabulary.builder=byte_pair."
            )
        types = dict.fromkeys(RESERVED_TOKENS, "control") | {UNKNOWN: "unknown"}
        # The score is minus the id: an earlier piece wins.
        pieces = [(piece, -number, types.get(piece, "normal")) for number, piece in enumerate(vocabulary)]
        self._model = model_of(pieces, BYTE_PAIR_SETTINGS)
        super().__init__(vocabulary, **options)

    def _use(self, table: tf.lookup.StaticHashTable) -> None:
        super()._use(table)
        self._merges = PieceModel(self._model)

    def for_lite(self) -> tuple[dict, bytes]:
        """Returns lite.json's settings and the SentencePiece model that divides words, see `Tokenizer.for_lite`."""
        settings, _ = super().for_lite()
        settings |= dict(kind="byte_pair", byte_characters="".join(byte_characters()), longest_word=LONGEST_WORD)
        return settings, self._model

    def _pieces(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of cleaned texts, string [B]: int32 [B, (words), (pieces)]."""
        words = split_words(texts, self._whole_chinese)  # [B, (words)]
        different_words, word_numbers = tf.unique(words.flat_values)
        return words.with_values(tf.gather(self._ids_of_words(different_words), word_numbers))

    def _ids_of_words(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of words, string [W], which are written and cut as by `written_in_bytes`: [W, (pieces)]."""
        data = tf.strings.bytes_split(tf.strings.join([" ", words]))  # [W, (bytes)]
        characters = tf.gather(tf.constant(byte_characters()), codes_of(data.flat_values))  # [all bytes]
        word_of_byte = data.value_rowids()
        offsets = tf.range(tf.size(characters, tf.int64)) - tf.gather(data.row_starts(), word_of_byte)  # in the word
        begins_part = tf.equal(offsets % LONGEST_WORD, 0)
        part_of_byte = tf.cumsum(tf.cast(begins_part, tf.int64)) - 1
        parts = tf.strings.reduce_join(tf.RaggedTensor.from_value_rowids(characters, part_of_byte), axis=1)  # [P]
        ids = self._merges.divide(parts)  # [P, (pieces)]
        word_of_part = tf.boolean_mask(word_of_byte, begins_part)
        by_word = tf.RaggedTensor.from_value_rowids(ids, word_of_part, tf.size(words, tf.int64))
        return by_word.merge_dims(1, 2)  # from [W, (parts), (pieces)]
