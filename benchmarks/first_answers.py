"""The first answer that a stranger gets: ten plain questions in ten languages, written down before they were tried.

    python -m benchmarks.first_answers --model=WORKDIR [--data_dir=data/emoji_core] [--index=INDEX] [--output=FILE.csv]

Each has a right answer among the 1,000 drawings of the emoji benchmark's test, a style that training never sees. A
question is answered only by pictures, which shows what the model itself knows, and, with an index of these drawings
(`search index DATA_DIR --split=test`), by the ranking of pictures, captions and words that `search query` shows.
"""

from __future__ import annotations

import csv

import numpy as np
from absl import flags

import mural_tf
from mural_lite import command_line as cli
from mural_lite.embedder import Embedder
from mural_search.index import load_index
from mural_search.queries import Query, search
from mural_tf.data import records

MODEL = flags.DEFINE_string("model", "workdirs/emoji", "Workdir or export.")
DATA = flags.DEFINE_string("data_dir", "data/emoji_core", "The emoji benchmark.")
INDEX = flags.DEFINE_string("index", "", "An index of the test's drawings, made with the model.")
OUTPUT = flags.DEFINE_string("output", "", "A .csv file of the table.")
QUESTIONS = (  # language, question, the emoji that is right
    ("en", "a yellow banana", "1f34c"),
    ("de", "ein Elefant", "1f418"),
    ("fr", "un avion dans le ciel", "2708"),  # an aeroplane in the sky
    ("ja", "ギター", "1f3b8"),  # guitar
    ("ru", "радуга после дождя", "1f308"),  # a rainbow after the rain
    ("sw", "samaki", "1f41f"),  # fish
    ("tr", "kırmızı bir gül", "1f339"),  # a red rose
    ("zh", "一只企鹅", "1f427"),  # a penguin
    ("uz", "ilon", "1f40d"),  # snake
    ("am", "አምቡላንስ", "1f691"),  # ambulance
)


def ranks(embedder: Embedder, pictures: dict[str, bytes]) -> list[tuple[int, str]]:
    """Returns (rank of the right picture, from 1 on, emoji of the first answer) for each question, only by pictures.

    `pictures`: {emoji, such as "1f34c": bytes of its PNG or JPEG file}.
    """
    emoji = list(pictures)
    images = embedder.encode_image(list(pictures.values()), progress=False)  # [N, D]
    answers = []
    for _, question, right in QUESTIONS:
        cosines = images @ embedder.encode_text(question)  # [N]
        better = int((cosines > cosines[emoji.index(right)]).sum())
        answers.append((1 + better, emoji[int(np.argmax(cosines))]))
    return answers


def ranks_in(index: str, embedder: Embedder, top: int = 100) -> list[tuple[int, str]]:
    """Returns (rank of the right picture, emoji of the first answer) for each question, by the ranking of an index.

    Args:
      index: the index's folder.
      embedder: the model that the index was made with.
      top: how many answers are looked at; a rank is 0 if the right picture is not among them.
    """
    opened = load_index(index)
    answers = []
    for language, question, right in QUESTIONS:
        (result,) = search(opened, embedder, [Query(question, language)], top)
        emoji = [hit.name.rpartition("/")[2] for hit in result.hits]
        rank = 1 + emoji.index(right) if right in emoji else 0
        answers.append((rank, emoji[0]))
    return answers


def main(_) -> None:
    """Asks the questions, and prints and writes the ranks and first answers."""
    pictures = {
        record.image_id.rpartition("/")[2]: record.image
        for record in records.read_records(DATA.value, records.IMAGE_TEXT, "test")
    }
    embedder = mural_tf.load(MODEL.value)
    ways = {"pictures alone": ranks(embedder, pictures)}
    if INDEX.value:
        ways["the one ranking"] = ranks_in(INDEX.value, embedder)
    names = ("language", "question", "right answer")
    for way in ways:
        names += (f"its rank, {way}", f"first answer, {way}")
    rows = []
    for row, *answers in zip(QUESTIONS, *ways.values()):
        for answer in answers:
            row += answer
        rows.append(row)
    print_and_write([names, *rows])
    for way, answers in ways.items():
        print(f"Right at once by {way}: {sum(rank == 1 for rank, _ in answers)} of {len(answers)}")


def print_and_write(rows: list[tuple]) -> None:
    """Prints the rows of a table, the first of which has the titles, and writes them to --output if it is given."""
    for row in rows:
        print("  ".join(map(str, row)))
    if OUTPUT.value:
        with open(OUTPUT.value, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)


if __name__ == "__main__":
    cli.run(main)
