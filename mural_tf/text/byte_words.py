"""Texts as words of bytes, a printable character for each byte, for byte-level byte pairs.

GPT-2's characters (Radford et al., 2019): a byte that is printable Latin-1 is itself, the others are U+0100 and so on.
CLIP's words (Radford et al., 2021) end in a byte of a second alphabet, where its files write "</w>" behind the word:
"red</w>" is here "re" and the last letter's other character. So a piece never reaches beyond its word, all words of a
text follow each other, and SentencePiece's operation divides them in one call.

GPT-2's and GPT-4o's words have no such mark, and a piece may begin or end a word or not. Here each is written between
two characters of the byte 255, which UTF-8 never has, so that pairs end there, too; their ids are dropped again.
"""

from __future__ import annotations

import tensorflow as tf

END = 0x2800  # how far the second alphabet is from the first
END_OF_WORD = "</w>"  # its mark in CLIP's files
# CLIP's: an English ending, letters, one digit, or other marks; everything between is space.
_CLIP_WORDS = r"('s|'t|'re|'ve|'m|'ll|'d|\pL+|\pN|[^\s\pL\pN]+)"


GPT2, GPT4O = "gpt2_words", "gpt4o_words"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LARGE = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_REST = r"\s+(?!\S)|\s+"  # white space: all but the last, which belongs to the word after it
# Tokenizers' expressions, and white space of which the last belongs to the next word: RE2 cannot look ahead.
EXPRESSIONS = {
    GPT2: (
        rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_REST}",
        r"(\s+)(\s)(\S)",
    ),
    GPT4O: (
        rf"{_BEFORE}{_LARGE}*{_SMALL}+{_ENDING}|{_BEFORE}{_LARGE}+{_SMALL}*{_ENDING}|"
        rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_REST}",
        r"(\s+)([^\S\r\n])(\S)",
    ),
}
_WHITE = r"\t-\r \x{85}\p{Z}"  # \s of all scripts, within brackets
SEPARATOR, BARRIER = b"\xff", b"\xfe"  # bytes that UTF-8 never has


def byte_characters() -> list[str]:
    """The printable character of every byte, 0 to 255: itself if it is printable Latin-1, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def codes_of(data: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of single bytes, string [N] -> int32 [N]."""
    return tf.cast(tf.io.decode_raw(data, tf.uint8, fixed_length=1)[:, 0], tf.int32)


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
    codes = codes_of(data.flat_values)
    limits = data.row_limits()[:, tf.newaxis]
    marks = tf.ones_like(limits[:, 0], tf.int32)
    is_last = tf.scatter_nd(limits - 1, marks, tf.shape(codes, tf.int64))
    alphabet = byte_characters()
    endings = [chr(ord(letter) + END) for letter in alphabet]
    characters = tf.gather(tf.constant(alphabet + endings), codes + 256 * is_last)
    by_text = words.with_values(data.with_values(characters)).merge_dims(1, 2)
    return tf.strings.reduce_join(by_text, axis=1)


def separator() -> str:
    """Returns the character before and after a word of `separated_words`."""
    return byte_characters()[SEPARATOR[0]]


def separated_words(texts: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the words of texts, string [B] in UTF-8, in bytes between separators: string [B] without spaces.

    `name`: of `EXPRESSIONS`.
    """
    expression, spaces = EXPRESSIONS[name]
    texts = tf.strings.regex_replace(texts, _of_all_scripts(spaces), rb"\1" + BARRIER + rb"\2\3")
    expression = _of_all_scripts(expression.replace(_REST, r"\s+"))
    texts = tf.strings.regex_replace(texts, expression, SEPARATOR + rb"\0" + SEPARATOR)
    data = tf.strings.bytes_split(texts)  # [B, (bytes)]
    alphabet = byte_characters()
    alphabet[BARRIER[0]] = ""
    characters = tf.gather(tf.constant(alphabet), codes_of(data.flat_values))
    return tf.strings.reduce_join(data.with_values(characters), axis=1)


def _of_all_scripts(expression: str) -> str:
    r"""RE2's \s and \S are of ASCII only."""
    expression = expression.replace(r"[^\S\r\n]", r"[\t\x0B\f \x{85}\p{Z}]").replace(r"[^\s", f"[^{_WHITE}")
    return expression.replace(r"\s", f"[{_WHITE}]").replace(r"\S", f"[^{_WHITE}]")
