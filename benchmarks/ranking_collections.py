"""Collections of public pictures that `ranking.py` asks: an album that is half named, a shop's titles, photographs.

docs/evaluation.md describes the folder. It has the drawings of `openclipart-png`, whose files have English names, with
GCompris' words in other languages, and Flickr8k's photographs with human captions. A collection is a list of items with
their pictures, and questions: language → texts and the rows of right answers.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
from collections.abc import Iterator

from benchmarks.photograph_folds import OTHERS, Photograph, read_photographs
from mural_lite.errors import UserError
from mural_search.items import Item
from mural_tf.evaluation.gcompris import WORDS, read_words

Entries = list[tuple[Item, bytes]]
Questions = dict[str, list[tuple[str, list[int]]]]

DRAWINGS = "openclipart"  # made by dpkg -x
LANGUAGES = {"en": "en", "de": "de", "fr": "fr", "es": "es", "ru": "ru", "ar": "ar", "hi": "hi", "tr": "tr",
             "zh": "zh-CN", "cs": "cs"}  # fmt: skip
OF_ONE_WORD = 3  # drawings at most
# A shop's titles say more than the name of a thing. Written before any model was asked.
TITLES = {
    "de": ["{} Modell S", "{} 4/4 mit Zubehör", "{} Automatik, schwarz", "Kinder-{} „Lotte“, 2er-Set", "{} 250 ml"],
    "fr": ["{} d'hiver à pompon", "{} en porcelaine", "{} de voyage, bleu marine", "Lot de 2 : {} Classic"],
    "es": ["{} de Murcia, malla de 1 kg", "{} Deluxe rojo", "{} para niños, talla M", "Pack {} + funda"],
    "en": ["{} Barnaby, soft cotton", "Canvas {} 42", "Grand {}, black lacquer", "{} Pro X200 (refurbished)"],
    "tr": ["{} Klasik 500 g", "Premium {} siyah"],
    "ru": ["{} Люкс, 3 шт.", "{} «Мечта» синий"],
}
TURNS = ("de", "de", "fr", "de", "es", "en", "de", "tr", "ru")  # of a German shop


def is_chosen(text: str) -> bool:
    """Whether a name is of the half that has captions, by a hash."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 2 == 1


def album(data: pathlib.Path) -> tuple[Entries, Questions]:
    """Half of the drawings are named in English, the others are numbered."""
    words = _words(data)
    entries: Entries = []
    rows: dict[str, list[int]] = {}  # name of a word → rows
    for path, word in _drawings(data, words):
        if len(rows.setdefault(word, [])) < OF_ONE_WORD:
            rows[word].append(len(entries))
            item = Item(f"{path.parent.name}-{path.name}", captions=(("en", _title(path)),))
            if not is_chosen(path.name):
                item = Item(f"DSC_{len(entries):04d}.png")
            entries.append((item, path.read_bytes()))
    return entries, _questions(words, rows)


def titles(data: pathlib.Path) -> tuple[Entries, Questions]:
    """Each drawing has one title in one language, asked in the others."""
    words = _words(data)
    entries: Entries = []
    rows: dict[str, list[int]] = {}
    for path, word in _drawings(data, words):
        if word not in rows:
            language = TURNS[len(entries) % len(TURNS)]
            if not words[language].get(word):
                language = "en"
            name = words[language][word]
            title = TITLES[language][len(entries) % len(TITLES[language])].format(name[0].upper() + name[1:])
            rows[word] = [len(entries)]
            entries.append((Item(str(3000 + len(entries)), captions=((language, title),)), path.read_bytes()))
    questions = _questions(words, rows)
    title_languages = [item.captions[0][0] for item, _ in entries]
    for language, asked in questions.items():
        questions[language] = [(text, right) for text, right in asked if title_languages[right[0]] != language]
    return entries, questions


def photographs(data: pathlib.Path, share: str = "all") -> tuple[Entries, Questions]:
    """Photographs with one English caption, asked by other captions; of `share` "half" half of them have a caption.

    Of "products": a name of three words, and three captions as a description.
    """
    pictures = read_photographs(data)
    entries: Entries = []
    for photograph in pictures:
        first, *others = photograph.english
        captions = [("en", first)]
        if share == "products":
            captions = [("en", " ".join(first.split()[:3])), ("en", " ".join(others[:3]))]
        elif share == "half" and not is_chosen(photograph.number):
            captions = []
        entries.append((Item(photograph.number, captions=tuple(captions)), photograph.picture))
    questions: Questions = {}
    for row, photograph in enumerate(pictures):
        for language, text in _asked(photograph, row % 3):
            questions.setdefault(language, []).append((text, [row]))
    return entries, questions


def _asked(photograph: Photograph, third: int) -> Iterator[tuple[str, str]]:
    if third == 0 and len(photograph.english) > 4:
        yield "en", photograph.english[4]
    if third == 1:
        yield from ((language, photograph.sentences[language]) for language in OTHERS if photograph.sentences)
    if third == 2 and photograph.arabic:
        yield "ar", photograph.arabic[0]


def _words(data: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns language → name of a word → word."""
    path = data / WORDS[0]
    if not path.is_file():
        raise UserError(f"{path} does not exist: docs/evaluation.md says how to get it.")
    by_tag = read_words(path)
    words = {}
    for language, tag in LANGUAGES.items():
        words[language] = {name: word.strip() for name, word in by_tag[tag].items()}
    return words


def _drawings(data: pathlib.Path, words: dict[str, dict[str, str]]) -> Iterator[tuple[pathlib.Path, str]]:
    """Yields the drawings whose names are an English word of GCompris, each with the word's name."""
    folder = data / DRAWINGS
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist: apt-get download openclipart-png, dpkg -x openclipart-png_*.deb it.")
    by_word: dict[str, str] = {}
    for name, word in words["en"].items():
        by_word.setdefault(re.sub("^(a|an|the) ", "", word.lower()), name)
    for path in sorted(folder.rglob("*.png")):
        if word := by_word.get(_title(path)):
            yield path, word


def _title(path: pathlib.Path) -> str:
    """Returns a file's name in words: "hammer_2.png" is "hammer"."""
    return re.sub(r"\s*\d.*", "", re.sub("[_-]+", " ", path.stem.lower())).strip()


def _questions(words: dict[str, dict[str, str]], rows: dict[str, list[int]]) -> Questions:
    questions = {}
    for language, texts in words.items():
        questions[language] = [(texts[word], right) for word, right in rows.items() if texts.get(word)]
    return questions


COLLECTIONS = {
    "album": album,
    "titles": titles,
    "photographs": photographs,
    "half of the photographs": lambda data: photographs(data, "half"),
    "products": lambda data: photographs(data, "products"),
}
