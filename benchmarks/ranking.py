"""One ranking beside its parts and beside FTS5 alone: a catalogue with captions in nine languages, asked in others.

    python -m benchmarks.ranking --model=WORKDIR --data_dir=data/emoji_core --split=test --output=FILE
    python -m benchmarks.ranking --model=WORKDIR --data_dir=stamps_search/data --output=FILE

The pictures of a split, or all, are the index, with captions in the nine well-resourced languages of `emoji_mural`. It
is asked with every second caption in any other language, and in each of the nine while its own captions are hidden.
Weights are chosen on dev, with captions in the nine. A cell is recall@10 in percent, of languages with `FEWEST`
questions. The last lines ask article numbers and brands (all must stand first), pairs of Chinese and Japanese
characters (of the first ten, the share that holds the pair), and how many of 40 business phrases and of 40 nouns seem
right with 0.5 at least; none of the phrases is among those that the calibration learns from.
"""

from __future__ import annotations

import csv
import dataclasses
import sqlite3

import numpy as np

from mural_tf import cli
from mural_tf.data.datasets.emoji import WELL_RESOURCED
from mural_tf.search import confidence, ranking
from mural_tf.search.collect import find
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES, Item
from mural_tf.search.queries import Query, search
from mural_tf.search.words import quoted

HEAD = ["asked in", *ranking.RANKS, "FTS5, words", "FTS5, trigrams"]
BRANDS, EVERY, FEWEST = 40, 2, 50  # items of one brand; every second caption asks
PHRASES = """foreign exchange reserves; the annual general meeting; corporate income tax; balance sheet total;
liquidity coverage ratio; termination for convenience; outstanding invoices; venture capital funding; hostile takeover
bid; the board of trustees; intellectual property rights; marketing budget for next year; net operating loss; payment
due within thirty days; non-disclosure agreement; customer relationship management; gross domestic product; the
auditor's opinion; dividend policy; hedge fund manager; initial public offering; collective bargaining agreement;
market share analysis; cost of goods sold; working capital loan; tender documents; performance review of employees;
breach of contract; letter of credit; insolvency proceedings; purchase order number; return on investment; value added
tax refund; stakeholder engagement plan; service level agreement; bond yield curve; monetary policy decision;
quarterly earnings call; property lease renewal; strategic partnership"""
NOUNS = """tiger door hat umbrella apple banana dog cat horse fish rocket car bicycle train airplane guitar violin
trumpet book pencil scissors key lock bell candle camera telephone clock moon sun cloud snowman tree rose tulip
mushroom pizza hamburger bread cheese"""


def catalogue(embedder, data_dir: str, split: str) -> tuple[Index, list[Item]]:
    """Returns an index with captions in the nine languages, numbers and brands, and the items with all captions."""
    from mural_tf.search.index import index_in_memory

    made = index_in_memory(embedder, find(IMAGES, [data_dir], split))
    everything = list(made.table)
    items = []
    for row, item in enumerate(everything):
        captions = tuple(caption for caption in item.captions if caption[0] in WELL_RESOURCED)
        fields = {"sku": f"AB-{row:05d}/{row % 7}", "brand": f"Brand {row // BRANDS} & Co"}
        items.append(dataclasses.replace(item, name=f"{row}.png", captions=captions, fields=fields))
    index = Index(items, made.embeddings, made.model)
    index.captions = ranking.Captions(np.zeros((0, 0), np.float16), index.table, ranking.HEAD)
    texts = [text for item in items for _, text in item.captions]
    index.captions.vectors = index.captions.encode(embedder, texts).astype(np.float16)
    return index, everything


class Plain:
    """FTS5 alone, a row a caption: words of the sentence, or its trigrams, any of them."""

    def __init__(self, items: list[Item], tokenizer: str):
        self.captions = [(row, *caption) for row, item in enumerate(items) for caption in item.captions]
        self.trigrams, self.database = tokenizer == "trigram", sqlite3.connect(":memory:")
        self.database.execute(f"CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='{tokenizer}')")
        rows = ((number, text) for number, (_, _, text) in enumerate(self.captions))
        self.database.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", rows)

    def ask(self, text: str, hidden: str) -> list[int]:
        """Returns ten rows."""
        pieces = [text[i : i + 3] for i in range(len(text) - 2)] if self.trigrams else text.split()
        found: dict[int, None] = {}
        asked = " OR ".join(map(quoted, pieces)) or '""'
        for (number,) in self.database.execute("SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank", (asked,)):
            row, language, _ = self.captions[number]
            if language != hidden and len(found) < 10:
                found[row] = None
        return list(found)


def measure(embedder, data_dir: str, split: str) -> list[list[str]]:
    """Returns the lines of the table."""
    (index, everything), (pictures, _) = (catalogue(embedder, data_dir, one) for one in (split, "dev"))
    strangers = ranking.ask_as_strangers(index, pictures, embedder)
    index.weights, _ = ranking.choose_weights(strangers)
    strangers = [one.weighted(index.weights) for one in strangers]
    index.confidence = confidence.learn(index, embedder, pictures, (), strangers)
    print(f"Weights chosen on dev: {index.weights}")
    items = list(index.table)
    plain = [Plain(items, tokenizer) for tokenizer in ("unicode61", "trigram")]
    lines, languages = [], dict.fromkeys(language for item in everything for language, _ in item.captions)
    for language in sorted(languages, key=lambda language: (language in WELL_RESOURCED, language)):
        asked = [(text, row) for row, item in enumerate(everything) for a, text in item.captions if a == language]
        asked = asked[::EVERY]
        if len(asked) < FEWEST:
            continue
        texts, rows = zip(*asked)
        vectors, captions = embedder.encode_text(texts, progress=False), index.captions.encode(embedder, texts)
        found = ranking.rank_all(index, texts, vectors, captions, hidden=language)
        hits = [[row in list(one.lists[way])[:10] for row, one in zip(rows, found)] for way in ranking.WAYS]
        hits.append([row in one.rows[:10] for row, one in zip(rows, found)])
        hits += [[row in one.ask(text, language) for text, row in asked] for one in plain]
        name = f"{language}, its captions hidden" if language in WELL_RESOURCED else language
        lines.append([name, *(f"{100 * np.mean(hit):.1f}" for hit in hits)])
    return [*lines, *first_ones(index, embedder, items), pairs(index, items, plain), *sure(index, embedder)]


def first_ones(index: Index, embedder, items: list[Item]) -> list[list[str]]:
    """Returns the lines of article numbers and brands, asked in small letters as people type."""
    lines = []
    for name, field in (("article numbers", "sku"), ("brands", "brand")):
        values = list(dict.fromkeys(item.fields[field] for item in items))
        texts = [value.lower() for value in values]
        vectors, captions = embedder.encode_text(texts, progress=False), index.captions.encode(embedder, texts)
        cells = []
        for rank in ranking.RANKS:
            found = ranking.rank_all(index, texts, vectors, captions, rank=rank)
            right = [{row for row, item in enumerate(items) if item.fields[field] == value} for value in values]
            shares = [set(one.rows[: len(own)].tolist()) == own for one, own in zip(found, right)]
            cells.append(f"{100 * np.mean(shares):.1f}")
        lines.append([name, *cells, "", ""])
    return lines


def pairs(index: Index, items: list[Item], plain: list[Plain]) -> list[str]:
    """Returns the line of pairs of characters."""
    asked = [text[:2] for item in items[::4] for language, text in item.captions if language in ("ja", "zh")]
    asked = [text for text in dict.fromkeys(asked) if text.isalpha()]
    if not asked:
        return ["pairs of characters", *[""] * 6]
    holds = [
        {row for row, item in enumerate(items) if any(text in caption for _, caption in item.captions)}
        for text in asked
    ]
    ours = [index.table.by_words(text, 10)[0].tolist() for text in asked]
    found = [ours, *([one.ask(text, "-") for text in asked] for one in plain)]
    cells = [
        f"{100 * np.mean([len(own & set(rows)) / min(10, len(own)) for own, rows in zip(holds, answers)]):.1f}"
        for answers in found
    ]
    return ["pairs of characters", "", "", cells[0], "", *cells[1:]]


def sure(index: Index, embedder) -> list[list[str]]:
    """Returns the lines of phrases and nouns that seem right."""
    lines = []
    for name, texts in (("business phrases", " ".join(PHRASES.split()).split("; ")), ("nouns", NOUNS.split())):
        assert len(texts) == 40 and not set(texts) & set(confidence.DOMAINS.read_text("utf-8").splitlines())
        found = search(index, embedder, [Query(text) for text in texts])
        seem = sum(one.sure.probability >= 0.5 for one in found)
        lines.append([f"{name} at 0.5 or more, of 40", "", "", "", str(seem), "", ""])
    return lines


def main(_) -> None:
    from mural_tf.loading import load

    lines = [HEAD, *measure(load(FLAG["model"].value), FLAG["data_dir"].value, FLAG["split"].value)]
    with open(FLAG["output"].value, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    print("\n".join("\t".join(line) for line in lines))


if __name__ == "__main__":
    FLAG = cli.define(
        model=(None, "Workdir or export of a model with a text-text head.", cli.place),
        data_dir=(None, "Folder of the emoji data, or what `catalogue` made of a table.", cli.place),
        split=("", "Of the pictures to index; all by default."),
        output=(None, "File of the table.", cli.place),
    )
    cli.run(main)
