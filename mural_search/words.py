"""Words as SQLite's FTS5 finds them: trigrams, with the borders of words among them.

`spread` makes texts and questions alike, so that a trigram of " red " tells a word from a part of one, and a character
of Chinese, Japanese or Korean is found alone: 赤い風船 is kept as "赤 い 風 船", whose trigrams are single characters
(" 風 ") and pairs of them ("風 船"). So a word of one or two characters is found, too. A question is never read as
FTS5's syntax.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable

BORDER = "|"  # around each caption, name and value; no text holds it
MOST_GRAMS = 64  # trigrams of a question; a longer text gives its first
# Accents, variants, and marks of Hebrew and Arabic above and below letters: few people type vowels or a hamza there.
# Vowel signs of other scripts stay. 0x640 only makes an Arabic word longer.
_MARKS = {*range(0x300, 0x370), *range(0xFE00, 0xFE10)}
_MARKS |= {0x640, *(c for c in range(0x591, 0x6EE) if unicodedata.category(chr(c)) == "Mn")}
# Two letters have a mark that cannot be taken away as a character.
_PLAIN_LETTERS = str.maketrans({**dict.fromkeys(_MARKS), "ı": "i", "ٱ": "ا"})
_CJK = (range(0x2E80, 0xA000), range(0xAC00, 0xD7B0), range(0xF900, 0xFB00), range(0x20000, 0x40000))
_UNWANTED = re.compile(r"(?<!\S)-([^\W\d_]\S*)")


def spread(text: str) -> str:
    """Returns a text in small letters without accents, vowel marks and punctuation: "Crème-Brûlée" as "creme brulee".

    Chinese, Japanese and Korean characters have spaces around them.
    """
    letters = unicodedata.normalize("NFKD", text.casefold())
    letters = unicodedata.normalize("NFC", letters.translate(_PLAIN_LETTERS))
    spaced = "".join(map(_spaced, letters))
    return " ".join(spaced.split())


@functools.lru_cache(2**16)
def _spaced(letter: str) -> str:
    """Returns a space for punctuation, spaces around a Chinese, Japanese or Korean character, or the letter itself."""
    category = unicodedata.category(letter)
    if letter == BORDER or category[0] in "PZ" or category in ("Cc", "Cf", "Cs"):
        return " "
    if any(ord(letter) in block for block in _CJK):
        return f" {letter} "
    return letter


def document(texts: Iterable[str]) -> str:
    """Returns one text to index for several texts, with `BORDER` between them, so that each can be found exactly."""
    return "".join(f"{BORDER} {spread(text)} " for text in texts) + BORDER


def grams(text: str) -> list[str]:
    """Returns the different trigrams of a question, `MOST_GRAMS` at most; [] if it holds no letter, digit or sign."""
    spaced = f" {spread(text)} "  # the borders of words belong to trigrams
    different = dict.fromkeys(spaced[begin : begin + 3] for begin in range(len(spaced) - 2))  # in order
    return list(different)[:MOST_GRAMS]


def quoted(text: str) -> str:
    """Returns a text as a string in FTS5's queries, which is taken literally."""
    return '"' + text.replace('"', '""').replace("\0", " ") + '"'


def split(sentence: str) -> tuple[str, list[str]]:
    """Returns (a sentence without its -words, the words that shall not be found): ("a shoe", ["red"]) of "a shoe -red".

    A -word that `spread` leaves empty is dropped, because nothing could be looked up.
    """
    unwanted = _UNWANTED.findall(sentence)
    if unwanted:
        sentence = " ".join(_UNWANTED.sub(" ", sentence).split())
    return sentence, [word for word in unwanted if spread(word)]
