"""The word-piece tokenizer as a part of the graph: raw strings in, BERT's three integer tensors out.

One object serves the training pipeline (`tf.data`), evaluation and the exported models, so that casing, padding and
length cannot drift apart. Word pieces and input layout are BERT's (Devlin et al., 2019), MURAL's text tower ([P]
§3.2); vocabulary files of BERT and LaBSE work as they are. The ops are TensorFlow's and tensorflow_text's
RegexSplitWithOffsets and WordpieceTokenizeWithOffsets (with `strip_accents` also NormalizeUTF8), all of which the
stock TensorFlow Serving binary links.

Departures, all where BERT's tokenizer would lose text: a word of any length is divided (BERT answers [UNK] beyond 100
bytes, that is, for most phrases in Thai, Lao, Burmese or Khmer), and a character outside the vocabulary becomes one
[UNK] instead of its whole word.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text as tf_text

from mural_tf.errors import UserError
from mural_tf.text.vocabulary_file import (
    RESERVED_TOKENS,
    SUFFIX_INDICATOR,
    check_vocabulary,
    load_vocabulary,
    save_vocabulary,
)
from mural_tf.text.words import clean_text, lookup_table, split_words

TOKENS = ("input_word_ids", "input_mask", "input_type_ids")  # what every tokenizer returns and text towers take
PADDINGS = ("max_length", "longest")


class WordPieceTokenizer(tf.Module):
    """`tokenizer(texts)` returns {"input_word_ids", "input_mask", "input_type_ids"}, each int32 [B, T].

    A row is `[CLS] pieces [SEP]` and then [PAD]; longer texts lose their last pieces, never [SEP]. Any bytes are
    answered: an empty text gives `[CLS] [SEP]`, invalid UTF-8 gives [UNK]s.
    """

    takes_languages = False  # texts do not begin with a tag, see language_words.py

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        max_length: int = 64,
        lower_case: bool = False,
        strip_accents: bool = False,
        vocabulary_file: str | pathlib.Path = "",
    ):
        """Builds the tokenizer.

        Args:
          vocabulary: the pieces; a piece's place is its id. Pieces that continue a word start with "##".
          max_length: T, tokens in a row with [CLS] and [SEP].
          lower_case, strip_accents: as in `clean_text`, and as when the vocabulary was built.
          vocabulary_file: a file that holds the same pieces. The graph then reads the file, and a SavedModel carries
            it as an asset instead of as constants; `load` uses it.

        Raises:
          UserError: a special piece is missing, a piece occurs twice, or `max_length` is below 3.
        """
        super().__init__(name="word_piece_tokenizer")
        if max_length < 3:
            raise UserError(f"max_length={max_length} leaves no room for text between [CLS] and [SEP].")
        self._vocabulary = tuple(vocabulary)
        check_vocabulary(self._vocabulary)
        self.max_length = max_length
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        self._pad, self._unknown, self._start, self._end = (
            self._vocabulary.index(piece) for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
        )
        longest_piece = max(len(piece) for piece in self._vocabulary)  # characters
        # No more than this can end up in a row: every piece takes at most `longest_piece` characters and one space.
        self._max_characters = (max_length - 1) * (longest_piece + 1)
        self._table = lookup_table(self._vocabulary, self._unknown, vocabulary_file)
        self._word_pieces = tf_text.WordpieceTokenizer(
            self._table,
            suffix_indicator=SUFFIX_INDICATOR,
            max_bytes_per_word=2**31 - 1,  # no word is too long
            max_chars_per_token=longest_piece,  # keeps the time for a long word linear
            token_out_type=tf.string,
            split_unknown_characters=True,
        )

    @classmethod
    def load(cls, path: str | pathlib.Path, **options) -> WordPieceTokenizer:
        """Builds the tokenizer on a vocabulary file; `options` are the constructor's."""
        return cls(load_vocabulary(path), vocabulary_file=path, **options)

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the vocabulary file that `load` reads (casing and length are not in it)."""
        save_vocabulary(self._vocabulary, path)

    @property
    def vocabulary(self) -> list[str]:
        """The pieces in the order of their ids."""
        return list(self._vocabulary)

    @property
    def vocabulary_size(self) -> int:
        """Number of pieces, reserved ones included."""
        return len(self._vocabulary)

    @property
    def special_ids(self) -> list[int]:
        """Ids of the special pieces, which stand for no text."""
        return [self._vocabulary.index(piece) for piece in RESERVED_TOKENS if piece in self._vocabulary]

    @property
    def mask_id(self) -> int:
        """Id of [MASK]; raises `UserError` if the vocabulary lacks it."""
        if "[MASK]" not in self._vocabulary:
            raise UserError("The vocabulary lacks [MASK], which the cloze task needs.")
        return self._vocabulary.index("[MASK]")

    def __call__(self, texts: tf.Tensor, pad: str = "max_length") -> dict[str, tf.Tensor]:
        """Tokenizes a batch.

        Args:
          texts: string [B].
          pad: "max_length": T is `max_length`, a static shape as TPUs and serving need; "longest": T is the longest
            row of this batch, which saves work on a CPU.

        Returns:
          int32 [B, T] each: "input_word_ids"; "input_mask", 1 on tokens and 0 on padding; "input_type_ids", all 0.
        """
        if pad not in PADDINGS:
            raise UserError(f"Unknown padding {pad!r}: expected one of {', '.join(PADDINGS)}.")
        texts = clean_text(tf.convert_to_tensor(texts, tf.string), self.lower_case, self.strip_accents)
        pieces = self._pieces(tf.strings.substr(texts, 0, self._max_characters, unit="UTF8_CHAR"))
        return self.pack(pieces.merge_dims(1, 2), self.max_length if pad == "max_length" else None)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns int32 [B, (words), (pieces)]: ids without special tokens, of the whole texts (string [B])."""
        texts = tf.convert_to_tensor(texts, tf.string)
        return self._pieces(clean_text(texts, self.lower_case, self.strip_accents))

    def _pieces(self, texts: tf.Tensor) -> tf.RaggedTensor:
        pieces = self._word_pieces.tokenize(split_words(texts))
        # Unknown characters come as "[UNK]" or "##[UNK]"; the latter is in no vocabulary, so the table's default.
        return tf.ragged.map_flat_values(lambda piece: tf.cast(self._table.lookup(piece), tf.int32), pieces)

    def pack(self, pieces: tf.RaggedTensor, length: int | tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Adds [CLS], [SEP] and padding to ids (int32 [B, (pieces)]).

        Args:
          length: tokens in a row; None: as many as the longest row needs, up to `max_length`.
        """
        pieces = pieces[:, : (self.max_length if length is None else length) - 2]
        column = tf.ones([pieces.nrows(out_type=tf.int32), 1], tf.int32)
        rows = tf.concat([self._start * column, pieces, self._end * column], axis=1)  # [B, (T)]
        if length is None:
            word_ids = rows.to_tensor(self._pad)  # [B, T]
        elif isinstance(length, int):
            word_ids = rows.to_tensor(self._pad, shape=[None, length])  # a static shape
        else:
            word_ids = rows.to_tensor(self._pad, shape=tf.stack([-1, length]))
        return {
            "input_word_ids": word_ids,
            "input_mask": tf.sequence_mask(rows.row_lengths(), tf.shape(word_ids)[1], tf.int32),
            "input_type_ids": tf.zeros_like(word_ids),
        }
