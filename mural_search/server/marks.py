"""The words of a question, marked in the texts of an answer: "Rote <mark>Geige</mark>"."""

from __future__ import annotations

import functools
import unicodedata
from typing import NamedTuple

from markupsafe import Markup, escape

from mural_lite.printable import visible
from mural_search import words

SHORTEST = 3  # letters of a question's word that is marked where a longer word begins with it


class Word(NamedTuple):
    """A word of a text, text[begin:end], as `words.spread` writes it; characters of CJK are words."""

    begin: int
    end: int
    letters: str
    is_character: bool


def mark(text: str, question: str) -> Markup:
    """Returns a text as HTML, escaped, with the words of a question in <mark>."""
    text = visible(text)
    parts = []
    done = 0
    for begin, end in _spans(words_of(text), words_of(words.split(question)[0])):
        parts += [escape(text[done:begin]), Markup("<mark>"), escape(text[begin:end]), Markup("</mark>")]
        done = end
    return Markup("").join([*parts, escape(text[done:])])


def words_of(text: str) -> list[Word]:
    """Returns the words of a text, with their accents and vowel marks where they have any."""
    found: list[Word] = []
    is_open = False  # whether the last word may go on
    for position, letter in enumerate(text):
        plain, is_character, is_mark = _described(letter)
        if is_open and (is_mark or (plain and not is_character)):
            last = found[-1]
            found[-1] = last._replace(end=position + 1, letters=last.letters + plain)
        elif plain:
            found.append(Word(position, position + 1, plain, is_character))
            is_open = not is_character
        else:
            is_open = False
    return found


@functools.lru_cache(2**14)
def _described(letter: str) -> tuple[str, bool, bool]:
    """Returns a letter as `words.spread` writes it, whether it is a word by itself, and whether it is a mark."""
    plain = words.spread(letter)
    is_character = plain != "" and words.spread(f"{letter}a").startswith(f"{plain} ")
    return plain, is_character, unicodedata.category(letter)[0] == "M"


def _spans(text: list[Word], question: list[Word]) -> list[tuple[int, int]]:
    """Returns the places to mark, as few as possible: (begin, end)."""
    asked = {word.letters for word in question if len(word.letters) > 1 or len(question) == 1}  # not "a" of "a mug"
    beginnings = tuple(word.letters for word in question if len(word.letters) >= SHORTEST and not word.is_character)
    pairs = {(word.letters, after.letters) for word, after in zip(question, question[1:]) if after.is_character}
    spans: list[tuple[int, int]] = []
    for number, word in enumerate(text):
        if word.is_character and len(question) > 1:  # one character of several is in many words
            before = number > 0 and (text[number - 1].letters, word.letters) in pairs
            after = number + 1 < len(text) and (word.letters, text[number + 1].letters) in pairs
            is_marked = before or after
        else:
            is_marked = word.letters in asked or (bool(beginnings) and word.letters.startswith(beginnings))
        if is_marked and spans and spans[-1][1] == word.begin:
            spans[-1] = spans[-1][0], word.end
        elif is_marked:
            spans.append((word.begin, word.end))
    return spans
