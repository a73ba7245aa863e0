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

import pathlib

import numpy as np
from absl import flags

import mural_tf
from benchmarks.first_answers import MODEL, print_and_write
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


def recall_rows(embedder, stamps: list, images: np.ndarray) -> list[tuple]:
    """Returns the table's row for each language, R@10 of its captions only by pictures, and the row of their mean.

    Args:
      embedder: the model.
      stamps: N stamps, see `read_stamps`.
      images: the vectors of their pictures, float32 [N, D].
    """
    rows = []
    recalls = []
    for language in LANGUAGES:
        texts = []
        captioned = []  # rows of the stamps that have a caption in the language
        for row, (_, _, captions) in enumerate(stamps):
            if captions.get(language):
                texts.append(captions[language])
                captioned.append(row)
        cosines = embedder.encode_text(texts, progress=False) @ images[captioned].T  # [T, T]
        right_cosines = np.diag(cosines)[:, np.newaxis]  # [T, 1]
        better = (cosines > right_cosines).sum(axis=1)  # [T], pictures before the right one
        recall = round(100 * float((better < 10).mean()), 1)
        recalls.append(recall)
        rows.append(("R@10", language, len(captioned), recall, ""))
    mean = round(float(np.mean(recalls)), 1)
    return [*rows, ("R@10", f"mean of {len(LANGUAGES)}", len(stamps), mean, "")]


def question_rows(embedder, stamps: list, images: np.ndarray) -> tuple[list[tuple], dict[str, int]]:
    """Returns (the table's row for each question and way of ranking, {way: questions whose first answer is right}).

    For the arguments see `recall_rows`.
    """
    file_names = [name for name, _, _ in stamps]
    entries = []
    for row, (name, picture, captions) in enumerate(stamps):  # with the row, because stamps may share a name
        entries.append((Item(f"{row}/{name}", captions=(("en", captions["en"]),)), picture))
    index = index_in_memory(embedder, entries)
    rows = []
    right_at_once = {"pictures alone": 0, "the one ranking": 0}
    for language, question, beginnings in QUESTIONS:
        order = np.argsort(-(images @ embedder.encode_text(question)))  # [N]
        (result,) = search(index, embedder, [Query(question, language)], len(stamps))
        answers = {
            "pictures alone": [file_names[row] for row in order],
            "the one ranking": [hit.name.partition("/")[2] for hit in result.hits],
        }
        for way, names in answers.items():
            ranks = [rank for rank, name in enumerate(names, 1) if name.startswith(beginnings)]
            first_rank = min(ranks, default=0)  # 0: no right file is among the answers
            if first_rank == 1:
                right_at_once[way] += 1
            rows.append((f"{question}, {way}", language, len(stamps), first_rank, names[0]))
    return rows, right_at_once


def main(_) -> None:
    """Measures the model on the stamps, and prints and writes the table."""
    stamps = read_stamps(pathlib.Path(FOLDER.value))
    embedder = mural_tf.load(MODEL.value)
    images = embedder.encode_image([picture for _, picture, _ in stamps])  # [N, D]
    rows = [("measure or question", "language", "pictures", "R@10 or rank", "first answer")]
    rows += recall_rows(embedder, stamps, images)
    rows_of_questions, right_at_once = question_rows(embedder, stamps, images)
    rows += rows_of_questions
    print_and_write(rows)
    for way, right in right_at_once.items():
        print(f"Right at once by {way}: {right} of {len(QUESTIONS)}")


if __name__ == "__main__":
    cli.run(main)
