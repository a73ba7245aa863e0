"""The word-piece tokenizer as a part of the graph: raw strings in, BERT's three integer tensors out.

One object serves the training pipeline (`tf.data`), evaluation and the exported models, so that casing, padding and
length cannot drift apart. Word pieces and input layout are BERT's (Devlin et al., 2019), the text tower's in [MURAL]
§3.2; vocabulary files of BERT and LaBSE work as they are. The ops are TensorFlow's and tensorflow_text's
WordpieceTokenizeWithOffsets (with `strip_accents` also NormalizeUTF8), all of which the stock TensorFlow Serving binary
links.

Departures, all where BERT's tokenizer would lose text: a word of any length is divided (BERT answers [UNK] beyond 100
bytes, that is, for most phrases in Thai, Lao, Burmese or Khmer), and a character outside the vocabulary becomes one
[UNK] instead of its whole word.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.backend import tf_text
from mural_tf.text.tokenizer import Tokenizer
from mural_tf.text.tokens import framed_rows
from mural_tf.text.vocabulary_file import (
    RESERVED_TOKENS,
    SUFFIX_INDICATOR,
    as_file,
    check_vocabulary,
    load_vocabulary,
)
from mural_tf.text.words import WHOLE_CHINESE, clean_text, split_words

BYTES_PER_CHARACTER = 8  # bytes read for each character of a row: UTF-8 has at most 4, and cleaning drops some


class WordPieceTokenizer(Tokenizer):
    """A tokenizer that divides words into BERT's word pieces.

    A row is `[CLS] pieces [SEP]` and then [PAD]; longer texts lose their last pieces, never [SEP]. Any bytes are
    answered: an empty text gives `[CLS] [SEP]`, invalid UTF-8 gives [UNK]s. Only the first bytes of a very long text
    are cleaned, eight for each character that a row can hold: text after a run of thousands of spaces, controls
    or dropped accents is not read.
    """

    def __init__(self, vocabulary: Sequence[str], *, max_length: int = 64, cleaning: Sequence[str] = (), **options):
        """Builds the tokenizer.

        Args:
          vocabulary: the pieces; a piece's index is its id. Pieces that continue a word start with "##".
          max_length: T, tokens in a row with [CLS] and [SEP].
          cleaning: () or (`WHOLE_CHINESE`,).
          **options: `Tokenizer`'s.

        Raises:
          UserError: a special piece is missing, a piece occurs twice, `max_length` is below 3, or an unknown cleaning.
        """
        if tuple(cleaning) not in ((), (WHOLE_CHINESE,)):
            raise UserError(f"vocabulary.cleaning={tuple(cleaning)}: word pieces take only {WHOLE_CHINESE!r}.")
        self._whole_chinese = bool(cleaning)
        if max_length < 3:
            raise UserError(f"max_length={max_length} leaves no room for text between [CLS] and [SEP].")
        check_vocabulary(vocabulary)
        self._pad, self._unknown, self._start, self._end = map(vocabulary.index, RESERVED_TOKENS[:4])  # not [MASK]
        super().__init__(vocabulary, unknown=self._unknown, max_length=max_length, **options)
        # No more than this can end up in a row: every piece takes at most `_longest_piece` characters and one space.
        self._max_characters = (max_length - 1) * (self._longest_piece + 1)
        self.max_bytes = BYTES_PER_CHARACTER * self._max_characters

    def _use(self, table: tf.lookup.StaticHashTable) -> None:
        super()._use(table)
        self._longest_piece = max(map(len, self._vocabulary))  # characters
        self._word_pieces = tf_text.WordpieceTokenizer(
            table,
            suffix_indicator=SUFFIX_INDICATOR,
            max_bytes_per_word=2**31 - 1,  # no word is too long
            max_chars_per_token=self._longest_piece,  # keeps the time for a long word linear
            token_out_type=tf.string,
            split_unknown_characters=True,
        )

    @classmethod
    def load(cls, path: str | pathlib.Path, **options) -> WordPieceTokenizer:
        """Builds the tokenizer on a vocabulary file; `options` are the constructor's."""
        return cls(load_vocabulary(path), vocabulary_file=path, **options)

    @property
    def special_ids(self) -> list[int]:
        """Ids of the special pieces, which match no text."""
        return [self._vocabulary.index(piece) for piece in RESERVED_TOKENS if piece in self._vocabulary]

    @property
    def mask_id(self) -> int:
        """Id of [MASK]; raises `UserError` if the vocabulary lacks it."""
        if "[MASK]" not in self._vocabulary:
            raise UserError("The vocabulary lacks [MASK], which the cloze task needs: set method.cloze_weight=0.")
        return self._vocabulary.index("[MASK]")

    def for_lite(self) -> tuple[dict, bytes]:
        """Returns lite.json's settings and the vocabulary file, see `Tokenizer.for_lite`."""
        settings = dict(
            kind="word_pieces",
            begin=[self._start],
            end=[self._end],
            pad=self._pad,
            unknown=self._unknown,
            max_bytes=self.max_bytes,
            max_characters=self._max_characters,
        )
        return settings, as_file(self._vocabulary)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of whole texts, string [B], without special tokens: int32 [B, (words), (pieces)]."""
        texts = tf.convert_to_tensor(texts, tf.string)
        return self._pieces(clean_text(texts, self.lower_case, self.strip_accents))

    def _row_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns as `tokenize`, of only the first `max_bytes` of each text: more bytes never fit into a row."""
        is_cut = tf.strings.length(texts) > self.max_bytes
        texts = tf.strings.substr(texts, 0, self.max_bytes)
        texts = clean_text(texts, self.lower_case, self.strip_accents)
        # A character that the cut divides is read as U+FFFD.
        texts = tf.where(is_cut, tf.strings.regex_replace(texts, "\ufffd$", ""), texts)
        return self._pieces(tf.strings.substr(texts, 0, self._max_characters, unit="UTF8_CHAR"))

    def _pieces(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of cleaned texts, string [B]: int32 [B, (words), (pieces)]."""
        pieces = self._word_pieces.tokenize(split_words(texts, self._whole_chinese))
        # Unknown characters come as "[UNK]" or "##[UNK]"; the latter is in no vocabulary, so the table's default.
        return tf.ragged.map_flat_values(lambda piece: tf.cast(self._table.lookup(piece), tf.int32), pieces)

    def pack(self, ids: tf.RaggedTensor, length: int | tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Returns rows with [CLS], [SEP] and padding, as `Tokenizer.pack`; `input_type_ids` is 0."""
        longest = self.max_length if length is None else length
        room = longest - 2  # without [CLS] and [SEP]
        return framed_rows([self._start], ids[:, :room], self._end, self._pad, length)
