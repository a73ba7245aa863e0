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
    """Returns the numbers, int32 [N] from 0 to 255, of strings of a single byte each, string [N]."""
    return tf.cast(tf.io.decode_raw(data, tf.uint8, fixed_length=1)[:, 0], tf.int32)


def with_end_mark(piece: str) -> str:
    """Returns a piece of CLIP's files; if "</w>" ends it, the last character before is marked instead, by `END`."""
    if not piece.endswith(END_OF_WORD) or piece == END_OF_WORD:
        return piece
    return _with_marked_end(piece.removesuffix(END_OF_WORD))


def _with_marked_end(word: str) -> str:
    """Returns a word whose last character is replaced by the character `END` code points after it."""
    return word[:-1] + chr(ord(word[-1]) + END)


def is_end(piece: str) -> bool:
    """Whether a piece ends a word: its last character is marked."""
    return ord(piece[-1]) >= END


def clip_words(texts: tf.Tensor) -> tf.Tensor:
    """Returns lower-case texts, string [B], in characters for bytes; spaces go, and each word's last byte is marked."""
    words = tf.strings.split(tf.strings.regex_replace(texts, f"({CLIP_WORDS})", r"\1 "))  # [B, (words)]
    data = tf.strings.bytes_split(words.flat_values)  # [W, (bytes)]
    codes = codes_of(data.flat_values)
    last_places = data.row_limits()[:, tf.newaxis] - 1  # [W, 1], of each word's last byte among all bytes
    is_last = tf.scatter_nd(last_places, tf.ones([data.nrows()], tf.int32), tf.shape(codes, tf.int64))
    alphabet = list(byte_characters())
    marked_alphabet = [_with_marked_end(letter) for letter in alphabet]
    # The second half of the table holds the marked letters.
    characters = tf.gather(tf.constant(alphabet + marked_alphabet), codes + len(alphabet) * is_last)
    by_text = words.with_values(data.with_values(characters)).merge_dims(1, 2)
    return tf.strings.reduce_join(by_text, axis=1)


def separator() -> str:
    """Returns the character before and after a word of `separated_words`."""
    return byte_characters()[SEPARATOR[0]]


def separated_words(texts: tf.Tensor, name: str) -> tf.Tensor:
    """Returns texts, string [B] in UTF-8, in characters for bytes, with the `separator` before and after each word.

    The expression of this `name` in `EXPRESSIONS` says where words begin and end.
    """
    # The barrier, a byte that no expression joins to a word, ends a run of spaces before its last space.
    texts = tf.strings.regex_replace(texts, _with_all_spaces(_SPACES[name]), rb"\1" + BARRIER + rb"\2\3")
    expression = _with_all_spaces(EXPRESSIONS[name].replace(REST, r"\s+"))
    texts = tf.strings.regex_replace(texts, expression, SEPARATOR + rb"\0" + SEPARATOR)
    data = tf.strings.bytes_split(texts)  # [B, (bytes)]
    alphabet = list(byte_characters())
    alphabet[BARRIER[0]] = ""
    characters = tf.gather(tf.constant(alphabet), codes_of(data.flat_values))
    return tf.strings.reduce_join(data.with_values(characters), axis=1)


def _with_all_spaces(expression: str) -> str:
    r"""Returns a regular expression in which \s and \S mean the white space of all scripts; RE2's know only ASCII's."""
    spaces_in_line = r"[\t\x0B\f \x{85}\p{Z}]"
    expression = expression.replace(r"[^\S\r\n]", spaces_in_line)
    expression = expression.replace(r"[^\s", f"[^{_WHITE}")  # before the next line, whose brackets would nest
    return expression.replace(r"\s", f"[{_WHITE}]").replace(r"\S", f"[^{_WHITE}]")
