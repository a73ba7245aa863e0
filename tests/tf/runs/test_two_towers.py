"""Two text towers in one export: which way a text goes, and that it gets that tower's vector."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import toy_data

import mural_tf
from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.export.serving import unlisted_operations
from mural_tf.runs import two_towers
from mural_tf.runs.two_towers import (
    BUCKETS,
    TowerChoice,
    TwoTowers,
    buckets_of,
    dev_recalls,
    export_two_towers,
    learn_choice,
)


def test_runs_of_a_text_by_hand():
    """ " ab " has 4 letters, 3 pairs and 2 triples; capital letters are small ones, in every script."""
    runs = buckets_of(tf.constant(["Ab", "AB", "", "ЖA"]))
    assert runs.row_lengths().numpy().tolist() == [9, 9, 3, 9]
    np.testing.assert_array_equal(runs[0], runs[1])
    expected = tf.strings.to_hash_bucket_fast([" ", "a", "b", " ", " a", "ab", "b ", " ab", "ab "], BUCKETS)
    np.testing.assert_array_equal(runs[0], expected)


def test_the_weight_of_a_text_by_hand():
    """A single weight of 2 on "a" of three runs, 2 / sqrt(9) for " a ", passes a threshold of 0.6 and not of 0.7."""
    a = int(tf.strings.to_hash_bucket_fast(["x"], BUCKETS)[0])
    for threshold, way in ((-0.8, True), (-0.9, False)):
        weights = np.zeros(BUCKETS + 1, np.float32)
        weights[a], weights[-1] = 2.0, threshold  # " x ": 3 letters, 2 pairs, 1 triple; 2 / sqrt(6) = 0.816
        assert TowerChoice(weights)(tf.constant(["x"])).numpy().tolist() == [way]


def test_texts_take_the_way_of_their_language_and_doubt_the_one_with_more_at_stake():
    languages = {
        "de": "Haus Hund Katze Schule Straße Tisch",
        "uz": "uy it mushuk maktab yoʻl oʻrik",
        "sw": "nyumba mbwa",
    }
    pairs = [(word, language) for language, words in languages.items() for word in words.split()]
    pairs += [("same", "de"), ("same", "uz")]
    texts, names = zip(*pairs)
    for stakes, way in (((9.0, -1.0), True), ((1.0, -9.0), False)):
        choice = TowerChoice(learn_choice(texts, names, dict(zip(("de", "uz"), stakes))))
        asked = ["Haus", "Schulhaus", "mushuk", "same"]
        assert choice(tf.constant(asked)).numpy().tolist() == [True, True, False, way]


class Vectors:
    """Picture k is unit vector k, and a text the row of its name: its cosines with all pictures."""

    def __init__(self, names, rows):
        self.rows = dict(zip(names, rows.astype(np.float32)))

    def encode_image(self, images, **options):
        count = len(list(images))
        return np.eye(count, dtype=np.float32), np.arange(count)

    def encode_text(self, texts, **options):
        return np.stack([self.rows[text] for text in texts])


def mean_recall(rows, firsts):
    """Of texts that have these cosines with pictures, both directions, percent."""
    ranks = [(side > np.diag(side)[:, None]).sum(axis=1) + 1 for side in (rows, rows.T)]
    return 100 * np.mean([(of_side <= first).mean() for of_side in ranks for first in firsts])


def test_recalls_are_those_among_a_thousand_pictures(tmp_path, monkeypatch):
    """Ten pictures for a gallery of twenty: the first 1, 5 and 10 of twenty are the first 1, 2 and 5 of ten."""
    monkeypatch.setattr(two_towers, "GALLERY", 20)
    names, rows = [f"name {number}" for number in range(10)], np.eye(10)
    for number, rank in ((1, 2), (2, 3), (3, 6)):  # so many texts stand before the own one
        rows[number, [other for other in range(10) if other != number][: rank - 1]] = 2.0
    assert ((rows > np.diag(rows)[:, None]).sum(axis=1) + 1)[:5].tolist() == [1, 2, 3, 6, 1]
    made = [
        records.ImageTextRecord(f"{number:04}", toy_data.picture(number), [name], ["xx"], [name])
        for number, name in enumerate(names)
    ]
    records.write_records(tmp_path, records.IMAGE_TEXT, "dev", made)
    found = dev_recalls(Vectors(names, rows), str(tmp_path))
    assert found == {"xx": pytest.approx(mean_recall(rows, (1, 2, 5)))}
    assert mean_recall(rows, (1, 2, 5)) < mean_recall(rows, (1, 5, 10))


class Tower(tf.Module):
    """Gives the length of a text, and 1 or 2."""

    def __init__(self, number):
        super().__init__()
        self.signatures = {"serving_default": self.embed}
        self.number = number

    def embed(self, text):
        return {
            "embedding": tf.stack(
                [tf.cast(tf.strings.length(text), tf.float32), tf.fill(tf.shape(text), self.number)], 1
            )
        }


@pytest.mark.parametrize("texts", [["a", "bbb", "aa", "bb"], ["a"], ["b"], []])
def test_each_text_gets_the_vector_of_its_tower(texts):
    weights = np.zeros(BUCKETS + 1, np.float32)
    for letter, weight in (("a", 1.0), ("b", -1.0)):
        weights[int(tf.strings.to_hash_bucket_fast([letter], BUCKETS)[0])] = weight
    towers = TwoTowers(Tower(1.0), Tower(2.0), TowerChoice(weights))
    found = towers.embed(tf.constant(texts, tf.string))["embedding"]
    np.testing.assert_array_equal(found, np.array([[len(t), 1.0 + ("b" in t)] for t in texts]).reshape(-1, 2))


@pytest.mark.slow
def test_two_exports_become_one(tmp_path, monkeypatch):
    """And its graph has only operations that a stock server links."""
    from mural_tf.runs.pretrain import pretrain

    data = toy_data.write_toy_data(tmp_path / "data", count=16)
    records.write_records(data, records.IMAGE_TEXT, "dev", toy_data.image_text_records(6))
    for seed in (0, 1):
        config = toy_data.toy_config(data, "align")
        config.seed = seed
        config.train.update(dict(steps=1, image_text_batch=4, text_text_batch=4, fused="off", export=True))
        pretrain(config, tmp_path / f"{seed}")
    own, other = (str(tmp_path / f"{seed}/export") for seed in (0, 1))
    with pytest.raises(UserError, match="apart: give a model and its bridge"):
        export_two_towers(other, own, str(data), str(tmp_path / "out"))
    shutil.rmtree(f"{other}/image_encoder")
    shutil.copytree(f"{own}/image_encoder", f"{other}/image_encoder")
    monkeypatch.setattr(two_towers, "learn_choice", lambda texts, languages, gains: weights_by_parity())
    recalls = export_two_towers(other, own, str(data), str(tmp_path / "out"))
    texts = ["thing w1", "w 3", "another thing", ""]
    both, first, second = (mural_tf.load(path).encode_text(texts) for path in (tmp_path / "out", own, other))
    is_own = TowerChoice(weights_by_parity())(tf.constant(texts)).numpy()
    assert is_own.any() and not is_own.all()
    np.testing.assert_allclose(both, np.where(is_own[:, None], first, second), atol=1e-6)
    assert json.loads((tmp_path / "out/model_card.json").read_text())["text_towers"] == recalls
    assert not unlisted_operations(tmp_path / "out/text_encoder/1")
    with pytest.raises(UserError, match="out exists: name another folder"):
        export_two_towers(other, own, str(data), str(tmp_path / "out"))


def test_a_folder_without_training_texts_is_one_line(tmp_path):
    records.write_records(tmp_path, records.IMAGE_TEXT, "dev", toy_data.image_text_records(6))
    with pytest.raises(UserError, match="has no training texts"):
        two_towers.training_texts(str(tmp_path))


def weights_by_parity():
    return np.where(np.arange(BUCKETS + 1) % 2, 1.0, -1.0).astype(np.float32)
