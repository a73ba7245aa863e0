"""The first answer that a stranger gets: ten plain questions in ten languages, written down before they were tried.

    python -m benchmarks.first_answers --model=WORKDIR [--data_dir=data/emoji_core] [--output=FILE.csv]

Each has a right answer among the 1,000 drawings of the emoji benchmark's test, a style that training never sees. A
question is answered by pictures alone, which is what the model itself knows: an index with captions would find a name.
"""

from __future__ import annotations

import csv

import numpy as np
from absl import app, flags

import mural_tf
from mural_tf.data import records
from mural_tf.embedder import Embedder

MODEL = flags.DEFINE_string("model", "workdirs/emoji", "Workdir or export.")
DATA = flags.DEFINE_string("data_dir", "data/emoji_core", "The emoji benchmark.")
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
    """Returns, for each question, the rank of the right picture from 1 on, and the first answer's emoji.

    `pictures`: encoded pictures by emoji, such as "1f34c".
    """
    emoji, images = list(pictures), embedder.encode_image(list(pictures.values()), progress=False)
    answers = []
    for _, question, right in QUESTIONS:
        cosines = images @ embedder.encode_text(question)  # [N]
        place = emoji.index(right)
        answers.append((1 + int((cosines > cosines[place]).sum()), emoji[int(np.argmax(cosines))]))
    return answers


def main(_) -> None:
    pictures = {
        record.image_id.rpartition("/")[2]: record.image
        for record in records.read_records(DATA.value, records.IMAGE_TEXT, "test")
    }
    answers = ranks(mural_tf.load(MODEL.value), pictures)
    rows = [(*question, rank, first) for question, (rank, first) in zip(QUESTIONS, answers)]
    names = ("language", "question", "right answer", "its rank", "first answer")
    for row in (names, *rows):
        print("  ".join(map(str, row)))
    print(f"Right at once: {sum(rank == 1 for rank, _ in answers)} of {len(answers)}")
    if OUTPUT.value:
        with open(OUTPUT.value, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *rows])


if __name__ == "__main__":
    app.run(main)
