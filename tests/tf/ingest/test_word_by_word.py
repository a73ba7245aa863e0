"""Texts translated word by word: the dictionary, what it makes of a text, and the data set of such pairs."""

import collections
import json

import numpy as np
import pytest
import toy_data
from ml_collections import ConfigDict

from benchmarks.word_by_word import (
    Sample,
    build_word_by_word,
    describe_word_by_word,
    learn_dictionary,
    translate_words,
)
from mural_lite.errors import UserError
from mural_tf.data import records

from mural_tf.configs import emoji_mural_translated, translated  # isort: skip

SWAHILI = [("red cat", "paka nyekundu"), ("red dog", "mbwa nyekundu"), ("blue cat", "paka buluu"),
           ("blue dog", "mbwa buluu"), ("cat", "paka")]  # fmt: skip


def naive_model(pairs, iterations=5):
    """p(f | e) by IBM Model 1 with NULL, {(f, e): p}, after the definition."""
    sides = [([None, *e.split()], f.split()) for e, f in pairs]
    foreign = {word for _, f in sides for word in f}
    table = {(f, e): 1 / len(foreign) for f in foreign for e in {word for e, _ in sides for word in e}}
    for _ in range(iterations):
        counts, totals = collections.Counter(), collections.Counter()
        for english, words in sides:
            for f in words:
                total = sum(table[f, e] for e in english)
                for e in english:
                    counts[f, e] += table[f, e] / total
                    totals[e] += table[f, e] / total
        table = {(f, e): counts[f, e] / totals[e] for f, e in table}
    return table


def test_equals_the_definition():
    dictionary = learn_dictionary(SWAHILI)
    forward, backward = naive_model(SWAHILI), naive_model([(f, e) for e, f in SWAHILI])
    expected = {(e, f): p * backward[e, f] for (f, e), p in forward.items() if e}
    found = {(e, f): weight for e, entry in dictionary.items() for f, weight in zip(*entry)}
    assert found.keys() == {pair for pair, weight in expected.items() if weight >= 0.05}
    np.testing.assert_allclose([found[pair] for pair in found], [expected[pair] for pair in found], atol=1e-6)
    assert {word: entry[0][0] for word, entry in dictionary.items()} == dict(
        red="nyekundu", blue="buluu", cat="paka", dog="mbwa"
    )


def test_translations_of_a_text():
    dictionary = {"red": (["nyekundu", "jekundu"], [0.6, 0.4]), "cat": (["paka"], [1.0])}
    found = translate_words("Red cat!", dictionary, 40, "0")
    assert set(found) == {"nyekundu paka", "paka nyekundu", "jekundu paka", "paka jekundu"} and len(found) == 4
    assert found == translate_words("Red cat!", dictionary, 40, "0")
    assert len({tuple(translate_words("red cat", dictionary, 1, str(seed))) for seed in range(40)}) == 4
    assert translate_words("a cat", dictionary, 3, "0") == ["paka"]  # half of the words
    assert translate_words("a grey cat", dictionary, 3, "0") == translate_words("!", dictionary, 3, "0") == []


def test_a_sample_does_not_depend_on_the_order():
    items = [(f"text {i}", "g") for i in range(2_000)]
    samples = [Sample(200), Sample(200)]
    for item in items:
        samples[0].add(item)
    for item in [*items[::-1], *items]:  # each twice
        samples[1].add(item)
    assert samples[0].items() == samples[1].items() and len(samples[0].items()) == 200
    assert set(samples[0].items()) < set(items) and 1_500 < samples[1].distinct_count() < 2_600
    whole = Sample(2_000)
    for item in items:
        whole.add(item)
    assert whole.items() == sorted(items) and whole.distinct_count() == 2_000


def pairs():
    colours, things = ("red", "blue", "green", "grey"), ("cat", "dog", "house", "tree", "star")
    swahili = dict(zip((*colours, *things), "nyekundu buluu kijani kijivu paka mbwa nyumba mti nyota".split()))
    names = [(colour, thing) for colour in colours for thing in things]
    for number, (colour, thing) in enumerate(names):
        yield records.TextPair(f"{colour} {thing}", "en", f"{colour}es {thing}", "de", f"g{number}")
        if number % 3:  # Swahili stands first in half of its pairs
            sides = (f"{colour} {thing}", "en"), (f"{swahili[thing]} {swahili[colour]}", "sw")
            yield records.TextPair(*(sides[0] + sides[1] if number % 2 else sides[1] + sides[0]), f"g{number}")


@pytest.fixture
def data(tmp_path):
    return toy_data.write_toy_data(tmp_path / "data", pairs=list(pairs()))


def test_names_without_a_translation_get_one(data, tmp_path):
    folder = build_word_by_word(data, tmp_path / "words", ["sw"], copies=16)  # so that both orders are among them
    found = list(records.read_records(folder, records.TEXT_PAIRS, "train"))
    assert {(pair.text_a, pair.language_a, pair.text_b, pair.language_b, pair.group_id) for pair in found} >= {
        ("red cat", "en", "paka nyekundu", "sw", "g0"), ("blue house", "en", "nyumba buluu", "sw", "g7"),
        ("grey cat", "en", "paka kijivu", "sw", "g15"),  # of which 0 and 15 have no pair
    }  # fmt: skip
    assert len({pair.text_a for pair in found}) == 20 and {pair.language_b for pair in found} == {"sw"}
    assert "9 words learnt from 13 pairs" in describe_word_by_word(folder)
    description = json.loads((folder / "dataset.json").read_text())
    assert description["counts"]["text_pairs"]["train"] == len(found)
    assert build_word_by_word(data, tmp_path / "words", ["swa"], copies=16) == folder  # is there
    with pytest.raises(UserError, match="holds another data set, with settings"):
        build_word_by_word(data, tmp_path / "words", ["de"])
    again = build_word_by_word(data, tmp_path / "again", ["sw"], copies=16)
    assert found == list(records.read_records(again, records.TEXT_PAIRS, "train"))


@pytest.mark.parametrize("module", [translated, emoji_mural_translated])
def test_configurations_take_the_folder(module):
    assert not module.get_config().data.sources
    config: ConfigDict = module.get_config("words=data/words")
    config.data.directory = "data/mine"  # as --config.data.directory sets it
    sources = config.copy_and_resolve_references().data.sources.to_dict()
    assert {name: source["directory"] for name, source in sources.items()} == dict(data="data/mine", words="data/words")
    with pytest.raises(UserError, match="Unknown argument 'word=x' of the configuration: translated takes words=…"):
        module.get_config("word=x")
