"""One ranking, its parts and the plain rivals, in ten languages: SQLite's FTS5 by trigrams, and BM25 of words.

    python -m benchmarks.ranking --model=WORKDIR --photos=FOLDER --data_dir=data/emoji_core --output=FILE

Emoji: the 1,000 drawings of the test with captions in 25 languages, asked by every fourth name while the captions in
its language are hidden. A shop: the stamps of Tux Paint (see `tux_paint.py`), each with one title, in German, French,
Arabic and Hindi by turns, asked by every third title in a language in which the stamp has no title. Others: see
`ranking_collections.py`. A cell is R@1 / R@10 in percent; of several right answers the first counts.
"""

from __future__ import annotations

import collections
import csv
import pathlib
import sqlite3
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.ranking_collections import COLLECTIONS, Questions
from benchmarks.stamps import read_stamps
from mural_lite import command_line as cli
from mural_search import ranking
from mural_search.collect import find
from mural_search.index import Index, index_in_memory
from mural_search.items import IMAGES, Item
from mural_search.words import quoted

LANGUAGES = "de fr ar hi en es ru ja sv sw".split()
TITLES = LANGUAGES[:4]  # of the shop, by turns
HEAD = ["collection and language", "questions", *ranking.RANKS, "FTS5, trigrams", "BM25, words"]
EMOJI = "emoji"
NAMES = "cldr-annotations-full", "cldr-annotations-derived-full"  # packages of emoji's names
STAMPS = "stamps"
FEW = 200  # titles: in a language with fewer, each title asks


class Plain:
    """A rival: SQLite's FTS5 with a row per caption, which finds captions with any word or trigram of a question.

    Args:
      items: the items, whose captions are kept.
      tokenizer: FTS5's tokenizer, "unicode61" for words or "trigram".
    """

    def __init__(self, items: Iterable[Item], tokenizer: str):
        self.captions: list[tuple[int, str, str]] = []  # row of the item, language, text
        for row, item in enumerate(items):
            self.captions += [(row, *caption) for caption in item.captions]
        self.trigrams = tokenizer == "trigram"
        self.database = sqlite3.connect(":memory:")
        self.database.execute(f"CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='{tokenizer}')")
        rows = ((number, text) for number, (_, _, text) in enumerate(self.captions))
        self.database.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", rows)

    def ask(self, text: str, hidden: Sequence[str]) -> list[int]:
        """Returns the rows of the ten best items by BM25, best first.

        `text`: the question; `hidden`: languages whose captions are passed over.
        """
        pieces = text.split()
        if self.trigrams:
            pieces = [text[begin : begin + 3] for begin in range(len(text) - 2)]
        condition = " OR ".join(map(quoted, pieces)) or '""'  # "" matches nothing
        query = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank"
        rows: list[int] = []
        for (number,) in self.database.execute(query, (condition,)):
            row, language, _ = self.captions[number]
            if language not in hidden and row not in rows:
                rows.append(row)
            if len(rows) == 10:
                break
        return rows


def emoji_collection(embedder, data_dir: str, packages: str) -> tuple[Index, Questions]:
    """Returns (the index of the test's drawings, the questions of `emoji_questions`).

    Args:
      embedder: the model.
      data_dir: the emoji benchmark's folder.
      packages: the folder of the packages that it was made of, which have the names.
    """
    from mural_tf.demo.emoji import read_emoji_names

    index = index_in_memory(embedder, find(IMAGES, [data_dir], "test"))
    tarballs = [next(pathlib.Path(packages).glob(f"{name}-[0-9]*.tgz")) for name in NAMES]
    return index, emoji_questions(index, read_emoji_names(*tarballs))


def emoji_questions(index: Index, names: dict[str, dict]) -> Questions:
    """Returns the questions {language: [(name of a drawing, [its row])]} for every fourth drawing of an index.

    `names`: {language: {emoji key: its names}}, see `read_emoji_names`.
    """
    questions: Questions = {language: [] for language in LANGUAGES}
    for row, item in list(enumerate(index.table))[::4]:
        _, _, key = item.name.rpartition("/")
        for language in LANGUAGES:
            name = names[language].get(key)
            if name:
                questions[language].append((name.name, [row]))
    return questions


def shop_collection(embedder, folder: pathlib.Path) -> tuple[Index, Questions]:
    """Returns (the index of Tux Paint's stamps with one title each, the questions of `shop_questions`).

    `embedder`: the model; `folder`: the folder of the stamps.
    """
    stamps = read_stamps(folder)
    times = collections.Counter()
    entries = []
    for row, (name, picture, texts) in enumerate(stamps):
        times[name] += 1
        if times[name] > 1:  # stamps in several folders may have one name, and items may not
            name = f"{name}#{times[name]}"
        entries.append((Item(name, captions=(title_of(row, texts),)), picture))
    index = index_in_memory(embedder, entries)
    assert len(index) == len(stamps), "a question's right answer is its stamp's row"
    return index, shop_questions([texts for _, _, texts in stamps])


def title_of(row: int, texts: dict[str, str]) -> tuple[str, str]:
    """Returns (language, title) of the title that the stamp in a row keeps: in the first language that it has.

    The languages are `TITLES`, from another one on in each row. `texts`: the stamp's titles, {language: title}.
    """
    turns = [*TITLES[row % len(TITLES) :], *TITLES]
    language = next(language for language in turns if texts.get(language))
    return language, texts[language]


def shop_questions(stamps: Sequence[dict[str, str]]) -> Questions:
    """Returns the questions {language: [(title, [its stamp's row])]} for every third stamp.

    Titles that stamps keep are left out. In a language with fewer than `FEW` titles every stamp has a question.
    `stamps`: the titles of each stamp, {language: title}.
    """
    questions: Questions = {}
    for language in LANGUAGES:
        titled = [(row, texts) for row, texts in enumerate(stamps) if texts.get(language)]
        every = 1 if len(titled) < FEW else 3
        questions[language] = []
        for row, texts in titled:
            own_language, _ = title_of(row, texts)
            if row % every == 0 and own_language != language:
                questions[language].append((texts[language], [row]))
    return questions


def measure(name: str, index: Index, embedder, questions: Questions, hide: bool) -> list[list[str]]:
    """Returns a collection's lines in the table, cells under `HEAD`: a line per language, and a line with their mean.

    Args:
      name: the collection's name.
      index: the index of its items.
      embedder: the model.
      questions: its questions.
      hide: whether captions in a question's language are hidden from it.
    """
    engines = [Plain(index.table, tokenizer) for tokenizer in ("trigram", "unicode61")]
    lines = []
    recalls = []  # of each language, float64 [columns, 2]
    for language, language_questions in questions.items():
        if not language_questions:
            continue
        texts, right_rows = zip(*language_questions)
        hidden = (language,) if hide else ()
        prompt = ranking.prompt_of(embedder, ranking.QUESTIONS)
        vectors = embedder.encode_text(list(texts), progress=False, **prompt)
        captions = index.captions.encode_questions(embedder, texts)
        answers = ranking.rank_all(index, texts, vectors, captions, hidden=hidden)
        ranked_rows = []  # of each column, the ranked rows for each question
        for way in ranking.WAYS:  # the parts of the ranking
            ranked_rows.append([list(answer.lists[way]) for answer in answers])
        ranked_rows.append([answer.rows.tolist() for answer in answers])
        for engine in engines:
            ranked_rows.append([engine.ask(text, hidden) for text in texts])
        ranks = np.array([list(map(_rank, right_rows, rows)) for rows in ranked_rows])  # [columns, questions]
        recalls.append(np.stack([np.mean(ranks <= k, axis=1) for k in (1, 10)], axis=1))
        lines.append([f"{name}, {language}", str(len(language_questions)), *map(_cell, recalls[-1])])
    total = sum(map(len, questions.values()))
    return [*lines, [f"{name}, mean", str(total), *map(_cell, np.mean(recalls, axis=0))]]


def _rank(right_rows: list[int], ranked_rows: list[int]) -> float:
    """Returns the rank, from 1 on, of the first right row among ranked rows; infinity if no right row is ranked."""
    for rank, row in enumerate(ranked_rows, 1):
        if row in right_rows:
            return rank
    return np.inf


def _cell(shares: Sequence[float]) -> str:
    """Returns shares in 0..1 as a cell in percent, "12.3 / 45.6"."""
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def build(name: str, embedder) -> tuple[Index, Questions]:
    """Returns (the index of a collection, its questions); the flags name the folders of its files."""
    if name == EMOJI:
        return emoji_collection(embedder, FLAG["data_dir"].value, FLAG["packages"].value)
    photos = pathlib.Path(FLAG["photos"].value)
    if name == STAMPS:
        return shop_collection(embedder, photos / "stamps/usr/share/tuxpaint/stamps")
    entries, questions = COLLECTIONS[name](photos)
    index = index_in_memory(embedder, entries)
    assert len(index) == len(entries), "a question's right answers are rows of the entries"
    return index, questions


def main(_) -> None:
    """Measures all collections; after each it writes the table and prints the collection's mean."""
    from mural_lite.models import open_model

    embedder = open_model(FLAG["model"].value)
    lines = [HEAD]
    for name in (EMOJI, STAMPS, *COLLECTIONS):
        index, questions = build(name, embedder)
        lines += measure(name, index, embedder, questions, hide=name == EMOJI)
        with open(FLAG["output"].value, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
        print(*lines[-1], sep="\t", flush=True)


if __name__ == "__main__":
    FLAG = cli.define(
        model=(None, "Workdir or export of a model with a text-text head.", cli.check_path),
        data_dir=("data/emoji_core", "Folder of the emoji data.", cli.check_path),
        packages=("data/emoji_packages", "Folder of the packages that the emoji data were made of.", cli.check_path),
        photos=(None, "Folder of docs/evaluation.md, with `openclipart` and Tux Paint's `stamps`.", cli.check_path),
        output=(None, "File of the table.", cli.check_path),
    )
    cli.run(main)
