r"""Texts as words of bytes, a printable character for each byte, for byte-level byte pairs.

GPT-2's characters (Radford et al., 2019): a byte that is printable Latin-1 is itself, the others are U+0100 and so on.
CLIP's words (Radford et al., 2021) end in a byte of a second alphabet, where its files write "</w>" behind the word:
"red</w>" is here "re" and the last letter's other character. So a piece never reaches beyond its word, all words of a
text follow each other, and SentencePiece divides them in one call.

GPT-2's and GPT-4o's words have no such mark, and a piece may begin or end a word or not. Here each is written between
two characters of the byte 255, which UTF-8 never has, so that pairs end there, too; their ids are dropped again.

Python's `re` has no \p{L}: classes of characters are written out for it. `mural_tf/text/byte_words.py` is for graphs.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
import unicodedata

END = 0x2800  # how far the second alphabet is from the first
SEPARATOR = 0xFF  # a byte that UTF-8 never has
# CLIP's: an English ending, letters, one digit, or other marks; everything between is space.
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
GPT2 = "gpt2_words"
GPT4O = "gpt4o_words"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LARGE = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
REST = r"\s+(?!\S)|\s+"  # white space: all but the last, which belongs to the word after it
EXPRESSIONS = {
    GPT2: rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{REST}",
    GPT4O: rf"{_BEFORE}{_LARGE}*{_SMALL}+{_ENDING}|{_BEFORE}{_LARGE}+{_SMALL}*{_ENDING}|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{REST}",
}
_WITH_CATEGORIES = (range(0x33480), range(0xE0100, 0xE01F0))  # other characters are unassigned or private


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """Returns the printable characters of the bytes 0 to 255: Latin-1's if it is printable, others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    codes = {byte: byte for byte in printable} | {byte: 0x100 + number for number, byte in enumerate(others)}
    return tuple(chr(codes[byte]) for byte in range(256))


def clip_words(text: str) -> str:
    """Returns a lower-case text's words as byte characters, each word's last byte marked: "a red" becomes "⡡re⡤"."""
    words = []
    for match in _compiled(CLIP_WORDS).finditer(text):
        word = _in_bytes(match.group())
        marked_end = chr(ord(word[-1]) + END)
        words.append(word[:-1] + marked_end)
    return "".join(words)


def separated_words(text: str, name: str) -> str:
    """Returns a text's words as byte characters, each between two separators; `EXPRESSIONS[name]` divides the text."""
    separator = byte_characters()[SEPARATOR]
    words = [_in_bytes(match.group()) for match in _compiled(EXPRESSIONS[name]).finditer(text)]
    return "".join(f"{separator}{word}{separator}" for word in words)


def _in_bytes(word: str) -> str:
    """Returns the byte characters of a word's bytes in UTF-8: "é" becomes "Ã©"."""
    return word.encode("utf-8").decode("latin-1").translate(byte_characters())  # Latin-1: character N for byte N


@functools.cache
def _compiled(expression: str) -> re.Pattern:
    r"""Returns the pattern of an expression whose \p{L} and \s mean the characters of all scripts."""

    def in_brackets(match: re.Match) -> str:
        r"""Returns "[^\p{L}]" and the like with ranges, and a single \p{L}, \s or \S as such a class."""
        characters = match.group().replace(r"\S", r"^\s")
        if not characters.startswith("["):
            characters = f"[{characters}]"
        return _with_ranges(characters)

    return re.compile(re.sub(r"\[[^]]*\]|\\p\{\w+\}|\\[sS]", in_brackets, expression))


def _with_ranges(characters: str) -> str:
    r"""Returns a class of characters with ranges in place of \p{L} and \s.

    For example "[^\p{Zl}]" becomes "[^\U00002028-\U00002028]".
    """
    characters = characters.replace(r"\s", r"\t-\r \x85\p{Z}")
    return re.sub(r"\\p\{(\w+)\}", lambda match: _ranges()[match[1]], characters)


@functools.cache
def _ranges() -> dict[str, str]:
    r"""Returns {"Lu": "\U00000041-\U0000005a…", …}, the ranges of each category; "L" has the ranges of "Lu", "Ll", …"""
    ranges: dict[str, str] = collections.defaultdict(str)
    all_codes = itertools.chain(*_WITH_CATEGORIES)
    for category, group in itertools.groupby(all_codes, key=lambda code: unicodedata.category(chr(code))):
        codes = list(group)
        for name in (category, category[0]):
            ranges[name] += f"\\U{codes[0]:08x}-\\U{codes[-1]:08x}"
    return ranges
