"""Two text towers in one export: which way a text goes, and that it gets that tower's vector."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import toy_data

import mural_tf
from mural_tf.data import records
from mural_tf.errors import UserError
from mural_tf.export.serving import unlisted_operations
from mural_tf.metrics import ranking
from mural_tf.runs import two_towers
from mural_tf.runs.two_towers import (
    BUCKETS,
    Choice,
    TwoTowers,
    Ways,
    buckets_of,
    choose,
    export_two_towers,
    learn_ways,
)


def test_runs_of_a_text_by_hand():
    """ " ab " has 4 letters, 3 pairs and 2 triples; capital letters are small ones, in every script."""
    runs = buckets_of(tf.constant(["Ab", "AB", "", "ЖA"]))
    assert runs.row_lengths().numpy().tolist() == [9, 9, 3, 9]
    np.testing.assert_array_equal(runs[0], runs[1])
    expected = tf.strings.to_hash_bucket_fast([" ", "a", "b", " ", " a", "ab", "b ", " ab", "ab "], BUCKETS)
    np.testing.assert_array_equal(runs[0], expected)


def test_the_share_of_a_text_by_hand():
    """A single weight of 2 on "x", of six runs in " x ": the sum is 2 / sqrt(6) = 0.8165, and 1.3 or -1.4 beside it."""
    x = int(tf.strings.to_hash_bucket_fast(["x"], BUCKETS)[0])
    # 1 / (1 + exp(0.5835)) = 0.358; 1 / (1 + exp(2.2165)) = 0.098, below which the other tower is alone; and 0.893.
    for beside, share in ((-1.4, 0.35813), (-3.033, 0.0), (1.3, 1.0), (0.0, 0.69349)):
        weights = np.zeros(BUCKETS + 1, np.float32)
        weights[x], weights[-1] = 2.0, beside
        np.testing.assert_allclose(Ways(weights)(tf.constant(["x"])), [share], atol=1e-4)


def test_dev_chooses_what_it_can_tell_apart():
    """369 images, recalls of 5 on average: 0.8 sqrt(2 · 5 · 95 / 369) = 1.2836; at 25: 0.8 sqrt(2 · 25 · 75 / 369)."""
    assert choose(6.3, 3.7, 369) == Choice(1.0, pytest.approx(2.6))
    assert choose(3.7, 6.3, 369) == Choice(0.0, pytest.approx(2.6))
    assert choose(6.2, 3.8, 369) == Choice(0.5, pytest.approx(2.4))
    assert choose(5.0, 5.0, 369) == Choice(0.5, pytest.approx(1.2836, abs=1e-3))
    assert choose(27.5, 22.5, 369) == Choice(0.5, pytest.approx(5.0))
    assert choose(27.5, 22.5, 10_000).share == 1.0
    assert choose(0.0, 0.0, 369) == Choice(0.5, 0.0)


def mean_recall(images, texts):
    """Of images [N, D] and texts [N, D], both directions, percent."""
    own = np.arange(len(images))
    ranks = [ranking.ranks(*sides, own) for sides in ((images, texts), (texts, images))]
    return 100 * np.mean([(of_side <= k).mean() for of_side in ranks for k in (1, 5, 10)])


def test_no_language_is_far_below_its_better_tower():
    """Towers that are close in 20 languages: by dev's better one a language loses more than it does by the mean."""
    random = np.random.default_rng(0)

    def unit(vectors):
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    images = unit(random.normal(size=(1_369, 32)))
    dev, test = slice(0, 369), slice(369, None)
    behind, by_the_better_of_dev = [], []
    for noise in random.uniform(3.5, 7.0, 20):
        towers = [
            unit(images * np.sqrt(32) + noise * random.uniform(0.85, 1.15) * random.normal(size=images.shape))
            for _ in range(2)
        ]
        own, other = ([mean_recall(images[part], tower[part]) for part in (dev, test)] for tower in towers)
        share = choose(own[0], other[0], 369).share
        both = mean_recall(images[test], unit(share * towers[0] + (1 - share) * towers[1])[test])
        behind.append(max(own[1], other[1]) - both)
        by_the_better_of_dev.append(max(own[1], other[1]) - (own[1] if own[0] > other[0] else other[1]))
    assert max(behind) <= 0.5 < max(by_the_better_of_dev)


def test_texts_take_the_way_of_their_language_and_doubt_the_one_with_more_at_stake():
    languages = {
        "de": "Haus Hund Katze Schule Straße Tisch",
        "uz": "uy it mushuk maktab yoʻl oʻrik",
        "sw": "nyumba mbwa",
    }
    pairs = [(word, language) for language, words in languages.items() for word in words.split()]
    pairs += [("same", "de"), ("same", "uz")]
    texts, names = zip(*pairs)
    for stakes, way in (((9.0, 1.0), True), ((1.0, 9.0), False)):
        choices = {"de": Choice(1.0, stakes[0]), "uz": Choice(0.0, stakes[1])}
        ways = Ways(learn_ways(texts, names, choices))
        asked = ["Haus", "Schulhaus", "mushuk", "same"]
        assert (ways(tf.constant(asked)).numpy() > 0.5).tolist() == [True, True, False, way]
    choices = {"de": Choice(1.0, 1.0), "uz": Choice(0.0, 1.0), "sw": Choice(0.5, 1.0)}
    shares = Ways(learn_ways(texts, names, choices))(tf.constant(["Haus", "mushuk", "nyumba"])).numpy()
    assert shares[0] == 1.0 and shares[1] == 0.0 and abs(shares[2] - 0.5) < 0.2


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
    for letter, weight in (("a", 9.0), ("b", -9.0)):
        weights[int(tf.strings.to_hash_bucket_fast([letter], BUCKETS)[0])] = weight
    towers = TwoTowers(Tower(1.0), Tower(2.0), Ways(weights))
    found = towers.embed(tf.constant(texts, tf.string))["embedding"]
    np.testing.assert_array_equal(found, np.array([[len(t), 1.0 + ("b" in t)] for t in texts]).reshape(-1, 2))


def test_a_text_in_doubt_gets_the_mean_of_both_towers():
    towers = TwoTowers(Tower(1.0), Tower(2.0), Ways(np.zeros(BUCKETS + 1, np.float32)))
    found = towers.embed(tf.constant(["abc", "a"]))["embedding"]
    expected = np.array([[3.0, 1.5], [1.0, 1.5]])
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)


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
    monkeypatch.setattr(two_towers, "learn_ways", lambda texts, languages, choices: weights_by_parity())
    recalls = export_two_towers(other, own, str(data), str(tmp_path / "out"))
    texts = ["thing w1", "w 3", "another thing", ""]
    both, first, second = (mural_tf.load(path).encode_text(texts) for path in (tmp_path / "out", own, other))
    shares = Ways(weights_by_parity())(tf.constant(texts)).numpy()[:, None]
    assert shares.max() > 0.5 > shares.min()
    mixed = shares * first + (1 - shares) * second
    np.testing.assert_allclose(both, mixed / np.linalg.norm(mixed, axis=1, keepdims=True), atol=1e-6)
    assert json.loads((tmp_path / "out/model_card.json").read_text())["text_towers"] == recalls
    assert not unlisted_operations(tmp_path / "out/text_encoder/1")
    with pytest.raises(UserError, match="out exists: name another folder"):
        export_two_towers(other, own, str(data), str(tmp_path / "out"))


def weights_by_parity():
    return np.where(np.arange(BUCKETS + 1) % 2, 2.0, -2.0).astype(np.float32)
