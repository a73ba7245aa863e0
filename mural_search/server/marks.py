"""The words of a question, marked in the texts of an answer: "Rote <mark>Geige</mark>"."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from markupsafe import Markup, escape

from mural_lite.printable import visible
from mural_search import words

SHORTEST = 3  # letters of a word of the question from which longer words that begin with it are marked


class Word(NamedTuple):
    """A word of a text; each character of Chinese, Japanese or Korean (CJK) is a word.

    Attributes:
      begin, end: its place, text[begin:end].
      letters: the word as `words.spread` writes it, without accents and in lower case.
      is_character: whether it is a character of CJK.
    """

    begin: int
    end: int
    letters: str
    is_character: bool


def mark(text: str, question: str) -> Markup:
    """Returns a text as escaped HTML with the words of a question marked: "Rote <mark>Geige</mark>"."""
    text = visible(text)
    sentence, _ = words.split(question)  # the question's excluded words, "-red", are in no answer
    parts = []
    last_end = 0
    for begin, end in _spans(words_of(text), words_of(sentence)):
        parts += [escape(text[last_end:begin]), Markup("<mark>{}</mark>").format(text[begin:end])]
        last_end = end
    return Markup("").join([*parts, escape(text[last_end:])])


def words_of(text: str) -> list[Word]:
    """Returns the words of a text in order; their accents and vowel marks lie within them."""
    text_words: list[Word] = []
    is_open = False  # whether the next letter may belong to the last word
    for position, letter in enumerate(text):
        plain, is_character, is_mark = _describe_letter(letter)
        if is_open and (is_mark or (plain and not is_character)):
            last = text_words[-1]
            text_words[-1] = last._replace(end=position + 1, letters=last.letters + plain)
        elif plain:
            text_words.append(Word(position, position + 1, plain, is_character))
            is_open = not is_character
        else:
            is_open = False
    return text_words


@functools.lru_cache(2**14)
def _describe_letter(letter: str) -> tuple[str, bool, bool]:
    """Returns (the letter as `words.spread` writes it, whether it is a character of CJK, whether it is a mark).

    The first is "" for a letter that belongs to no word, such as a space.
    """
    plain = words.spread(letter)
    # `words.spread` puts a space behind a character of CJK, because the character is a word.
    is_character = plain != "" and words.spread(f"{letter}a").startswith(f"{plain} ")
    is_mark = unicodedata.category(letter).startswith("M")
    return plain, is_character, is_mark


def _spans(text: list[Word], question: list[Word]) -> list[tuple[int, int]]:
    """Returns (begin, end) of each place in the text to mark; marked words without a space between are one place."""
    spans: list[tuple[int, int]] = []
    for word, is_marked in zip(text, _are_marked(text, question)):
        if not is_marked:
            continue
        begin = word.begin
        if spans and spans[-1][1] == begin:
            begin, _ = spans.pop()
        spans.append((begin, word.end))
    return spans


def _are_marked(text: list[Word], question: list[Word]) -> Iterator[bool]:
    """Yields for each word of a text whether the question has it, or, from `SHORTEST` letters on, its beginning."""
    is_single = len(question) == 1
    whole_words = {word.letters for word in question if is_single or len(word.letters) > 1}  # not "a" in "a red shoe"
    beginnings = tuple(word.letters for word in question if len(word.letters) >= SHORTEST and not word.is_character)
    pairs = {(word.letters, after.letters) for word, after in zip(question, question[1:]) if after.is_character}
    for number, word in enumerate(text):
        if word.is_character and len(question) > 1:
            # A single character is in many words, so it is marked only next to its neighbour in the question.
            ends_pair = number > 0 and (text[number - 1].letters, word.letters) in pairs
            begins_pair = number + 1 < len(text) and (word.letters, text[number + 1].letters) in pairs
            yield ends_pair or begins_pair
        else:
            yield word.letters in whole_words or word.letters.startswith(beginnings)
