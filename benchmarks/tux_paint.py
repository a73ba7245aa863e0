"""Photographs asked in many languages: the stamps of Tux Paint, each with a caption in up to eighty languages.

    apt-get download tuxpaint-stamps-default && dpkg -x tuxpaint-stamps-default_*.deb stamps
    python -m benchmarks.tux_paint --model=WORKDIR --folder=stamps/usr/share/tuxpaint/stamps [--output=FILE.csv]

538 pictures, most of them photographs cut out of their background; letters, coins and signs (`symbols`) are left out.
Prints R@10 of each language only by pictures, and ten plain questions in ten languages, which were written down before
they were tried: only by pictures, and by the ranking of `search query` in an index where each stamp has its English
caption, as a shop has one title for a product. The
stamps' licences (GPL and others) are in the package; nothing of it lies here.
"""

from __future__ import annotations

import csv
import pathlib

import numpy as np
from absl import flags

import mural_tf
from benchmarks.first_answers import MODEL, OUTPUT
from benchmarks.stamps import read_stamps
from mural_lite import command_line as cli
from mural_search.index import index_in_memory
from mural_search.items import Item
from mural_search.queries import Query, search

FOLDER = flags.DEFINE_string("folder", "", "Tux Paint's stamps.")
LANGUAGES = "en de fr es it pt nl pl ru uk cs sk sl hr sr bg el sv da nb fi hu ro lv ja ko zh_CN hi ar th tr vi".split()
QUESTIONS = (  # language, question, how the names of the right files begin
    ("en", "a zebra", ("zebra",)),
    ("de", "ein roter Apfel", ("apple_red", "apple_fuji", "apple.")),
    ("fr", "une guitare", ("guitar",)),
    ("ja", "ライオン", ("lion.", "lion-2")),
    ("ru", "пожарная машина", ("firetruck",)),  # a fire engine
    ("sw", "ndizi", ("banana",)),
    ("tr", "çilek", ("strawberry", "Strawberry")),
    ("zh", "企鹅", ("penguin", "little-penguin", "magellanic_penguin")),
    ("uk", "слон", ("elephant",)),
    ("hi", "ऊंट", ("camel", "dromedary")),
)


def main(_) -> None:
    stamps = read_stamps(pathlib.Path(FOLDER.value))
    embedder = mural_tf.load(MODEL.value)
    images = embedder.encode_image([picture for _, picture, _ in stamps])  # [N, D]
    rows = []
    for language in LANGUAGES:
        captioned = [row for row, (_, _, captions) in enumerate(stamps) if captions.get(language)]
        texts = embedder.encode_text([stamps[row][2][language] for row in captioned], progress=False)
        cosines = texts @ images[captioned].T
        ranks = (cosines > np.diag(cosines)[:, np.newaxis]).sum(axis=1)
        rows.append(("R@10", language, len(captioned), round(100 * float((ranks < 10).mean()), 1), ""))
    mean = round(float(np.mean([row[3] for row in rows])), 1)
    rows.append(("R@10", f"mean of {len(LANGUAGES)}", len(stamps), mean, ""))
    names = [f"{row}/{name}" for row, (name, _, _) in enumerate(stamps)]  # stamps in several folders may have one name
    items = (Item(name, captions=(("en", captions["en"]),)) for name, (_, _, captions) in zip(names, stamps))
    index = index_in_memory(embedder, zip(items, (picture for _, picture, _ in stamps)))
    for language, question, beginnings in QUESTIONS:
        by_pictures = [stamps[row][0] for row in np.argsort(-(images @ embedder.encode_text(question)))]
        (result,) = search(index, embedder, [Query(question, language)], len(stamps))
        ranked = [hit.name.partition("/")[2] for hit in result.hits]
        for way, names in (("pictures alone", by_pictures), ("the one ranking", ranked)):
            ranks = [rank for rank, name in enumerate(names, 1) if name.startswith(beginnings)]
            rows.append((f"{question}, {way}", language, len(stamps), ranks[0] if ranks else 0, names[0]))
    header = ("measure or question", "language", "pictures", "R@10 or rank", "first answer")
    for row in (header, *rows):
        print("  ".join(map(str, row)))
    for first, way in enumerate(("pictures alone", "the one ranking")):
        right = sum(row[3] == 1 for row in rows[len(LANGUAGES) + 1 + first :: 2])
        print(f"Right at once by {way}: {right} of {len(QUESTIONS)}")
    if OUTPUT.value:
        with open(OUTPUT.value, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    cli.run(main)
