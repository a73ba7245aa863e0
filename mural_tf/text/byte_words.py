"""Texts as words of bytes in the graph, a printable character for each byte, as `mural_lite/byte_words.py` has them."""

from __future__ import annotations

import tensorflow as tf

from mural_lite.byte_words import CLIP_WORDS, END, EXPRESSIONS, GPT2, GPT4O, REST, byte_characters
from mural_lite.byte_words import SEPARATOR as SEPARATOR_BYTE

END_OF_WORD = "</w>"  # its mark in CLIP's files
# White space of which the last belongs to the next word: RE2 cannot look ahead.
_SPACES = {GPT2: r"(\s+)(\s)(\S)", GPT4O: r"(\s+)([^\S\r\n])(\S)"}
_WHITE = r"\t-\r \x{85}\p{Z}"  # \s of all scripts, within brackets
# Bytes that UTF-8 never has.
SEPARATOR = bytes([SEPARATOR_BYTE])
BARRIER = b"\xfe"


def codes_of(data: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of single bytes, string [N] -> int32 [N]."""
    return tf.cast(tf.io.decode_raw(data, tf.uint8, fixed_length=1)[:, 0], tf.int32)


def with_end_mark(piece: str) -> str:
    """Returns a piece of CLIP's files in this alphabet: in place of "</w>" its last character is marked."""
    if not piece.endswith(END_OF_WORD) or piece == END_OF_WORD:
        return piece
    word = piece.removesuffix(END_OF_WORD)
    return word[:-1] + chr(ord(word[-1]) + END)


def is_end(piece: str) -> bool:
    """Whether a piece ends a word of CLIP's."""
    return ord(piece[-1]) >= END


def clip_words(texts: tf.Tensor) -> tf.Tensor:
    """Returns the words of texts, string [B] in UTF-8 and in lower case, in bytes: string [B] without spaces."""
    words = tf.strings.split(tf.strings.regex_replace(texts, f"({CLIP_WORDS})", r"\1 "))  # [B, (words)]
    data = tf.strings.bytes_split(words.flat_values)  # [W, (bytes)]
    codes = codes_of(data.flat_values)
    limits = data.row_limits()[:, tf.newaxis]
    marks = tf.ones_like(limits[:, 0], tf.int32)
    is_last = tf.scatter_nd(limits - 1, marks, tf.shape(codes, tf.int64))
    alphabet = list(byte_characters())
    endings = [chr(ord(letter) + END) for letter in alphabet]
    characters = tf.gather(tf.constant(alphabet + endings), codes + 256 * is_last)
    by_text = words.with_values(data.with_values(characters)).merge_dims(1, 2)
    return tf.strings.reduce_join(by_text, axis=1)


def separator() -> str:
    """Returns the character before and after a word of `separated_words`."""
    return byte_characters()[SEPARATOR[0]]


def separated_words(texts: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the words of texts, string [B] in UTF-8, in bytes between separators: string [B] without spaces.

    Args:
      name: a key of `EXPRESSIONS`.
    """
    texts = tf.strings.regex_replace(texts, _with_all_spaces(_SPACES[name]), rb"\1" + BARRIER + rb"\2\3")
    expression = _with_all_spaces(EXPRESSIONS[name].replace(REST, r"\s+"))
    texts = tf.strings.regex_replace(texts, expression, SEPARATOR + rb"\0" + SEPARATOR)
    data = tf.strings.bytes_split(texts)  # [B, (bytes)]
    alphabet = list(byte_characters())
    alphabet[BARRIER[0]] = ""
    characters = tf.gather(tf.constant(alphabet), codes_of(data.flat_values))
    return tf.strings.reduce_join(data.with_values(characters), axis=1)


def _with_all_spaces(expression: str) -> str:
    r"""Returns an expression whose \s and \S know the white space of all scripts; RE2's know only ASCII's."""
    expression = expression.replace(r"[^\S\r\n]", r"[\t\x0B\f \x{85}\p{Z}]").replace(r"[^\s", f"[^{_WHITE}")
    return expression.replace(r"\s", f"[{_WHITE}]").replace(r"\S", f"[^{_WHITE}]")
