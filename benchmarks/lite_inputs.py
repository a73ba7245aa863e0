"""How far a `lite/` is from the graph before its encoders: ids of texts, pixels of pictures.

python -m benchmarks.lite_inputs EXPORT [--texts=FILE] [--pictures=FOLDER] [--count=100000]

EXPORT has a `lite/`. Texts are lines of a file, or the captions of an emoji data folder's TFRecords in every language;
to them come lines with control characters, invalid UTF-8 and doubled spaces. Prints how many lines have other ids, with
an example of each kind of difference, and the difference of pixels in 255ths.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import random
import time
import unicodedata

import numpy as np
import tensorflow as tf

from mural_lite.config_file import load_config
from mural_lite.files import read_json
from mural_lite.litert.model import DESCRIPTION
from mural_lite.litert.pieces import pieces_of
from mural_lite.litert.pixels import prepare
from mural_lite.pictures import BadImage, for_the_encoder
from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
from mural_tf.data.images import prepare_image
from mural_tf.text import build_tokenizer

# Byte sequences and characters that a tokenizer may treat in its own way.
ODD = [b"\x00", b"\x01", b"\x1b", b"\x7f", b"\xc2\x85", b"\xff", b"\xc3", b"\xed\xa0\x80", b"  ", b"\t", b"\n"]
ODD += [character.encode() for character in "\xa0\u200b\u200d\u2028\ufeffİΣ"]


def odd_texts(texts: list[bytes], count: int) -> list[bytes]:
    """Returns `count` texts drawn at random, each with one of `ODD` put in anywhere, even within a character."""
    generator = random.Random(0)
    odd = []
    for text in generator.choices(texts, k=count):
        position = generator.randrange(len(text) + 1)
        odd.append(text[:position] + generator.choice(ODD) + text[position:])
    return odd


def kind_of(text: bytes) -> str:
    """Returns what is odd in a text: "invalid UTF-8", "a control character", "a format character", …, or "other"."""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        return "invalid UTF-8"
    categories = {unicodedata.category(character) for character in decoded}
    names = {"Cn": "an unassigned", "Cc": "a control", "Cf": "a format", "Co": "a private"}
    for category, name in names.items():
        if category in categories:
            return f"{name} character"
    return "other"


def compare_texts(export: pathlib.Path, texts: list[bytes]) -> None:
    """Prints how many texts have other ids in `lite/` than in the graph, and the speed of both.

    `export`: the export's folder; `texts`: UTF-8, or bytes that are meant to be.
    """
    config = load_config(export / "config.json")
    lite = export / "lite"
    tokenizer = build_tokenizer(config, export / "vocabulary.txt")
    pieces = pieces_of(lite, config, read_json(lite / DESCRIPTION)["text"])
    tokenize = tf.function(lambda batch: tokenizer(batch), [tf.TensorSpec([None], tf.string)], autograph=False)
    different = collections.defaultdict(list)  # {kind of odd character: [(text, ids in lite/, ids in the graph)]}
    graph_seconds = 0.0
    lite_seconds = 0.0
    for begin in range(0, len(texts), 1000):
        batch = texts[begin : begin + 1000]
        start = time.process_time()
        graph_tokens = {name: tokens.numpy() for name, tokens in tokenize(tf.constant(batch)).items()}
        middle = time.process_time()
        rows = pieces.rows(batch)
        graph_seconds += middle - start
        lite_seconds += time.process_time() - middle
        padded_rows = zip(graph_tokens["input_word_ids"], graph_tokens["input_mask"])
        for text, (ids, _), (padded_ids, mask) in zip(batch, rows, padded_rows):
            graph_ids = padded_ids[: mask.sum()].tolist()
            if ids != graph_ids:
                different[kind_of(text)].append((text, ids, graph_ids))
    count = sum(map(len, different.values()))
    speed = f"{1e6 * graph_seconds / len(texts):.1f} and {1e6 * lite_seconds / len(texts):.1f}"
    print(f"{len(texts):,} texts, {count} with other ids; processor microseconds per text, graph and here: {speed}")
    for character, examples in different.items():
        print(f"  {character}: {len(examples)}, such as {examples[0]}")


def compare_pictures(export: pathlib.Path, folder: pathlib.Path, most: int) -> None:
    """Prints the largest and the mean difference between pixels of `lite/` and of the graph, for each image format.

    Args:
      export: the export's folder.
      folder: the pictures' folder; pictures that cannot be read are left out.
      most: how many of its files are read at most.
    """
    tower = load_config(export / "config.json").image_tower
    differences = collections.defaultdict(list)  # {format: [(largest, mean)] of the pictures}
    for path in sorted(path for path in folder.rglob("*") if path.is_file())[:most]:
        try:
            data = for_the_encoder(path.read_bytes())
            lite_pixels = prepare(data, tower)
            graph_pixels = prepare_image(tf.constant(data), tower).numpy()
        except (BadImage, tf.errors.OpError):
            continue
        difference = np.abs(lite_pixels.astype(int) - graph_pixels)
        image_format = "JPEG" if data.startswith(b"\xff\xd8") else "PNG"
        differences[image_format].append((difference.max(), difference.mean()))
    for image_format, rows in differences.items():
        largest = max(largest for largest, _ in rows)
        means = [mean for _, mean in rows]
        print(f"{len(rows)} pictures as {image_format}: largest difference {largest:.0f} of 255, "
              f"mean {np.mean(means):.3f}, largest mean of one {max(means):.3f}")  # fmt: skip


def main() -> None:
    """Compares the texts and the pictures that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("export", type=pathlib.Path)
    parser.add_argument("--texts", type=pathlib.Path, help="a text per line")
    parser.add_argument("--pictures", type=pathlib.Path, help="a folder")
    parser.add_argument("--count", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.texts:
        texts = list(dict.fromkeys(arguments.texts.read_bytes().split(b"\n")))[: arguments.count]
        compare_texts(arguments.export, texts)
        compare_texts(arguments.export, odd_texts(texts, arguments.count // 10))
    if arguments.pictures:
        compare_pictures(arguments.export, arguments.pictures, arguments.count)


if __name__ == "__main__":
    main()
