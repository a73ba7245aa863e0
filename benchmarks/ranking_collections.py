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

Entries = list[tuple[Item, bytes]]  # items with their pictures
Questions = dict[str, list[tuple[str, list[int]]]]  # {language: [(text, rows of the right answers)]}

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
    """Whether a picture's name belongs to the half of the pictures with captions, which a hash decides."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 2 == 1


def album(data: pathlib.Path) -> tuple[Entries, Questions]:
    """Returns (drawings, half of which are named in English and the others numbered; all words as questions).

    `data` is the folder of docs/evaluation.md. A word has at most `OF_ONE_WORD` drawings. Raises `UserError` if files
    are missing.
    """
    words = _words(data)
    entries: Entries = []
    rows: dict[str, list[int]] = {}  # {name of a word: rows}
    for path, name in _drawings(data, words):
        if len(rows.setdefault(name, [])) < OF_ONE_WORD:
            row = len(entries)
            rows[name].append(row)
            item = Item(f"DSC_{row:04d}.png")
            if is_chosen(path.name):
                item = Item(f"{path.parent.name}-{path.name}", captions=(("en", _title(path)),))
            entries.append((item, path.read_bytes()))
    return entries, _questions(words, rows)


def titles(data: pathlib.Path) -> tuple[Entries, Questions]:
    """Returns (drawings with one title in one language each, their words in the other languages as questions).

    `data` is the folder of docs/evaluation.md. A word has one drawing. Raises `UserError` if files are missing.
    """
    words = _words(data)
    entries: Entries = []
    rows: dict[str, list[int]] = {}  # {name of a word: [its drawing's row]}
    title_languages = []  # of each row
    for path, name in _drawings(data, words):
        if name in rows:
            continue
        row = len(entries)
        language = TURNS[row % len(TURNS)]
        if not words[language].get(name):
            language = "en"
        word = words[language][name]
        pattern = TITLES[language][row % len(TITLES[language])]
        title = pattern.format(word[0].upper() + word[1:])
        rows[name] = [row]
        title_languages.append(language)
        # From 3000 on: a number, as articles of a shop have.
        entries.append((Item(str(3000 + row), captions=((language, title),)), path.read_bytes()))
    questions: Questions = {}
    for language, word_questions in _questions(words, rows).items():
        questions[language] = []
        for word, right_rows in word_questions:
            (row,) = right_rows
            if title_languages[row] != language:
                questions[language].append((word, right_rows))
    return entries, questions


def photographs(data: pathlib.Path, share: str = "all") -> tuple[Entries, Questions]:
    """Returns (photographs with English captions, other captions as questions).

    Args:
      data: the folder of docs/evaluation.md.
      share: the captions of the photographs. "all": the first caption of each; "half": of half of the photographs;
        "products": the caption's first three words as a product's name, and three other captions as its description.

    Raises:
      UserError: files are missing.
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
        for language, text in _question_captions(photograph, third=row % 3):
            questions.setdefault(language, []).append((text, [row]))
    return entries, questions


def _question_captions(photograph: Photograph, third: int) -> Iterator[tuple[str, str]]:
    """Yields (language, caption) of a photograph's questions.

    `third`: the third of the photographs to which it belongs: 0 is asked in English, 1 in `OTHERS`, 2 in Arabic.
    """
    if third == 0 and len(photograph.english) > 4:
        yield "en", photograph.english[4]  # the fifth, because items may have the first four
    if third == 1 and photograph.sentences:
        for language in OTHERS:
            yield language, photograph.sentences[language]
    if third == 2 and photograph.arabic:
        yield "ar", photograph.arabic[0]


def _words(data: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns GCompris' words, {language: {name of a word: word}}; raises `UserError` if their file is missing."""
    path = data / WORDS[0]
    if not path.is_file():
        raise UserError(f"{path} does not exist: docs/evaluation.md says how to get it.")
    by_tag = read_words(path)
    words = {}
    for language, tag in LANGUAGES.items():
        words[language] = {name: word.strip() for name, word in by_tag[tag].items()}
    return words


def _drawings(data: pathlib.Path, words: dict[str, dict[str, str]]) -> Iterator[tuple[pathlib.Path, str]]:
    """Yields (path, name of the word) of each drawing whose title is an English word of GCompris.

    `words`: see `_words`. Raises `UserError` if the drawings are missing.
    """
    folder = data / DRAWINGS
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist: apt-get download openclipart-png, dpkg -x openclipart-png_*.deb it.")
    names: dict[str, str] = {}  # {word without its article: name}; the first name of equal words
    for name, word in words["en"].items():
        names.setdefault(re.sub("^(a|an|the) ", "", word.lower()), name)
    for path in sorted(folder.rglob("*.png")):
        name = names.get(_title(path))
        if name:
            yield path, name


def _title(path: pathlib.Path) -> str:
    """Returns the title that a drawing's file name says: "hammer" for "hammer_2.png"."""
    return re.sub(r"\s*\d.*", "", re.sub("[_-]+", " ", path.stem.lower())).strip()


def _questions(words: dict[str, dict[str, str]], rows: dict[str, list[int]]) -> Questions:
    """Returns the words that have drawings, in all languages, as questions.

    `words`: see `_words`; `rows`: {name of a word: rows of its drawings}.
    """
    questions = {}
    for language, texts in words.items():
        questions[language] = [(texts[name], right_rows) for name, right_rows in rows.items() if texts.get(name)]
    return questions


COLLECTIONS = {
    "album": album,
    "titles": titles,
    "photographs": photographs,
    "half of the photographs": lambda data: photographs(data, "half"),
    "products": lambda data: photographs(data, "products"),
}
