"""What small functions answer: tests/snapshots/answers_of_ingest.txt has calls, and the whole answer of each."""
# ruff: noqa: F401 - the calls use what is imported

import io
from pathlib import Path

import numpy as np
from PIL import Image
from snapshots import assert_answers

import mural_tf.ingest
from mural_lite.text_files import Part, Unit, canonical_language
from mural_tf.ingest import build_vocabulary, convert, decide, filters, source, translated_captions
from mural_tf.ingest.convert import KINDS
from mural_tf.ingest.source import Captioned, Pair, Text
from mural_tf.ingest.sources import translations, wit


def parsed(text):
    return source.parse_source(text, KINDS)


def units(*weights, sources=2):
    return range(len(weights)), [(n % sources, Unit(f"{n}.tsv", 0, 1, 0, weight)) for n, weight in enumerate(weights)]


def skipped(content, count):
    reader = io.BufferedReader(io.BytesIO(content), 4)
    return translations.skip_lines(reader, count), reader.read()


def hashed(*values):
    """The perceptual hash of a grey picture of 32 x 32."""
    y, x = np.mgrid[:32, :32]
    waves = sum(factor * np.cos(np.pi * (k * (2 * y + 1) + j * (2 * x + 1)) / 64) for factor, k, j in values)
    return filters.perceptual_hash(Image.fromarray(np.uint8(np.clip(128 + waves, 0, 255))))


def pairs_of(image, *texts):
    return Captioned("i", image, [Text(text, "en", "", "p") for text in texts])


def held_out(everywhere, language, image_id):
    hashes = {name: np.array(sorted(map(wit.image_hash, ids)), np.uint64) for name, ids in HELD.items()}
    splits = {"de": {"test": hashes["a"], "dev": hashes["b"]}, "en": {"test": hashes["c"], "dev": hashes["none"]}}
    made = wit.HeldOut.from_json(wit.HeldOut(everywhere, splits).as_json())
    return made.split_of(language, image_id)


HELD = {"a": ["1", "2"], "b": ["3"], "c": ["4"], "none": []}


def divisions(pair):
    return list(translations._divisions(pair))


def keys_of(text):
    return list(translated_captions.keys_of(text))


def test_answers():
    assert_answers("answers_of_ingest", globals())
