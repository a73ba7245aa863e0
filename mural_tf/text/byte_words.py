"""Texts as words of bytes, a printable character for each byte, for byte-level byte pairs.

GPT-2's characters (Radford et al., 2019): a byte that is printable Latin-1 is itself, the others are U+0100 and so on.
CLIP's words (Radford et al., 2021) end in a byte of a second alphabet, where its files write "</w>" behind the word:
"red</w>" is here "re" and the last letter's other character. So a piece never reaches beyond its word, all words of a
text follow each other, and SentencePiece's operation divides them in one call.
"""

from __future__ import annotations

import tensorflow as tf

END = 0x2800  # how far the second alphabet is from the first
END_OF_WORD = "</w>"  # its mark in CLIP's files
# CLIP's: an English ending, letters, one digit, or other marks; everything between is space.
_CLIP_WORDS = r"('s|'t|'re|'ve|'m|'ll|'d|\pL+|\pN|[^\s\pL\pN]+)"


def byte_characters() -> list[str]:
    """The printable character of every byte, 0 to 255: itself if it is printable Latin-1, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def ended(piece: str) -> str:
    """Returns a piece of CLIP's files, "red</w>", in this alphabet."""
    if not piece.endswith(END_OF_WORD) or piece == END_OF_WORD:
        return piece
    word = piece.removesuffix(END_OF_WORD)
    return word[:-1] + chr(ord(word[-1]) + END)


def is_end(piece: str) -> bool:
    """Whether a piece ends a word of CLIP's."""
    return ord(piece[-1]) >= END


def clip_words(texts: tf.Tensor) -> tf.Tensor:
    """Returns the words of texts, string [B] in UTF-8 and in lower case, in bytes: string [B] without spaces."""
    words = tf.strings.split(tf.strings.regex_replace(texts, _CLIP_WORDS, r"\1 "))  # [B, (words)]
    data = tf.strings.bytes_split(words.flat_values)  # [W, (bytes)]
    codes = tf.cast(tf.io.decode_raw(data.flat_values, tf.uint8, fixed_length=1)[:, 0], tf.int32)
    limits = data.row_limits()[:, tf.newaxis]
    marks = tf.ones_like(limits[:, 0], tf.int32)
    is_last = tf.scatter_nd(limits - 1, marks, tf.shape(codes, tf.int64))
    alphabet = byte_characters()
    endings = [chr(ord(letter) + END) for letter in alphabet]
    characters = tf.gather(tf.constant(alphabet + endings), codes + 256 * is_last)
    by_text = words.with_values(data.with_values(characters)).merge_dims(1, 2)
    return tf.strings.reduce_join(by_text, axis=1)
