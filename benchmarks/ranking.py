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
EMOJI, STAMPS = "emoji", "stamps"
FEW = 200  # titles of a language that all ask


class Plain:
    """Only FTS5, one row per caption: any of the words of the sentence, or of its trigrams."""

    def __init__(self, items: Iterable[Item], tokenizer: str):
        self.captions: list[tuple[int, str, str]] = []
        for row, item in enumerate(items):
            self.captions += [(row, *caption) for caption in item.captions]
        self.trigrams = tokenizer == "trigram"
        self.database = sqlite3.connect(":memory:")
        self.database.execute(f"CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='{tokenizer}')")
        rows = ((number, text) for number, (_, _, text) in enumerate(self.captions))
        self.database.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", rows)

    def ask(self, text: str, hidden: Sequence[str]) -> list[int]:
        """Returns ten rows."""
        pieces = [text[i : i + 3] for i in range(len(text) - 2)] if self.trigrams else text.split()
        rows: dict[int, None] = {}
        condition = " OR ".join(map(quoted, pieces)) or '""'
        question = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank"
        for (number,) in self.database.execute(question, (condition,)):
            row, language, _ = self.captions[number]
            if language not in hidden and len(rows) < 10:
                rows[row] = None
        return list(rows)


def emoji(embedder, data_dir: str, packages: str) -> tuple[Index, Questions]:
    """Returns the index of the test's drawings, and the questions."""
    from mural_tf.demo.emoji import read_emoji_names

    index = index_in_memory(embedder, find(IMAGES, [data_dir], "test"))
    tarballs = [next(pathlib.Path(packages).glob(f"{name}-[0-9]*.tgz")) for name in NAMES]
    return index, emoji_questions(index, read_emoji_names(*tarballs))


NAMES = "cldr-annotations-full", "cldr-annotations-derived-full"


def emoji_questions(index: Index, names: dict[str, dict]) -> Questions:
    """Returns the name of every fourth drawing in each language."""
    questions: Questions = {language: [] for language in LANGUAGES}
    for row, item in list(enumerate(index.table))[::4]:
        for language in LANGUAGES:
            name = names[language].get(item.name.rpartition("/")[2])
            if name:
                questions[language].append((name.name, [row]))
    return questions


def shop(embedder, folder: pathlib.Path) -> tuple[Index, Questions]:
    """Returns the index of the stamps, each with one title, and the questions."""
    stamps, times = read_stamps(folder), collections.Counter()
    items = []
    for row, (name, _, texts) in enumerate(stamps):  # stamps in several folders may have one name
        times[name] += 1
        items.append(Item(name if times[name] == 1 else f"{name}#{times[name]}", captions=(title_of(row, texts),)))
    index = index_in_memory(embedder, ((item, picture) for item, (_, picture, _) in zip(items, stamps)))
    assert len(index) == len(stamps), "a question's right answer is its stamp's row"
    return index, shop_questions([texts for *_, texts in stamps])


def title_of(row: int, texts: dict[str, str]) -> tuple[str, str]:
    """Returns language and text of a stamp's one title."""
    language = next(language for language in [*TITLES[row % 4 :], *TITLES] if texts.get(language))
    return language, texts[language]


def shop_questions(stamps: Sequence[dict[str, str]]) -> Questions:
    """Returns every third title in a language that is not its stamp's one."""
    questions: Questions = {}
    for language in LANGUAGES:
        asked = [(row, texts) for row, texts in enumerate(stamps) if texts.get(language)]
        every = 1 if len(asked) < FEW else 3
        questions[language] = [
            (texts[language], [row]) for row, texts in asked if row % every == 0 and title_of(row, texts)[0] != language
        ]
    return questions


def measure(name: str, index: Index, embedder, questions: Questions, hide: bool) -> list[list[str]]:
    """Returns the lines of a collection in the table; `hide`: the captions in the language that is asked in."""
    plain = [Plain(index.table, tokenizer) for tokenizer in ("trigram", "unicode61")]
    lines = []
    ranks_of_all = []
    for language, asked in questions.items():
        if not asked:
            continue
        texts, right = zip(*asked)
        hidden = (language,) if hide else ()
        prompt = ranking.prompt_of(embedder, ranking.QUESTIONS)
        vectors = embedder.encode_text(list(texts), progress=False, **prompt)
        captions = index.captions.encode_questions(embedder, texts)
        ranked = ranking.rank_all(index, texts, vectors, captions, hidden=hidden)
        ranks = []
        for way in ranking.WAYS:
            ranks.append([_place(rows, list(answer.lists[way])) for rows, answer in zip(right, ranked)])
        ranks.append([_place(rows, answer.rows.tolist()) for rows, answer in zip(right, ranked)])
        for engine in plain:
            ranks.append([_place(rows, engine.ask(text, hidden)) for text, rows in asked])
        recalls = [np.mean(np.array(ranks) <= first, axis=1) for first in (1, 10)]
        ranks_of_all.append(np.stack(recalls, axis=1))
        lines.append([f"{name}, {language}", str(len(asked)), *map(_cell, ranks_of_all[-1])])
    total = sum(map(len, questions.values()))
    return [*lines, [f"{name}, mean", str(total), *map(_cell, np.mean(ranks_of_all, axis=0))]]


def _place(right: list[int], ranked: list[int]) -> float:
    return min((ranked.index(row) + 1 for row in right if row in ranked), default=np.inf)


def _cell(shares: Sequence[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def build(name: str, embedder) -> tuple[Index, Questions]:
    """Returns the index of a collection, and its questions."""
    if name == EMOJI:
        return emoji(embedder, FLAG["data_dir"].value, FLAG["packages"].value)
    photos = pathlib.Path(FLAG["photos"].value)
    if name == STAMPS:
        return shop(embedder, photos / "stamps/usr/share/tuxpaint/stamps")
    entries, questions = COLLECTIONS[name](photos)
    index = index_in_memory(embedder, entries)
    assert len(index) == len(entries), "a question's right answers are rows of the entries"
    return index, questions


def main(_) -> None:
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
