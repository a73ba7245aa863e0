"""Two views of an image, and masked tokens: what is drawn, how much of it, and that a seed repeats it."""

import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_lite.config import base_config
from mural_tf.data.streams.captions import mask_tokens
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.data.streams.views import ASPECT, augment_views, blur, random_crop

SEED = tf.constant([1, 2], tf.int64)


def settings(**changes):
    config = base_config().augmentation
    config.flip = False
    config.update(changes)
    return config


def gradient_images(count, side):
    """Pictures whose red and green say where each pixel is."""
    line = np.linspace(0, 255, side).astype(np.uint8)
    image = np.stack([np.tile(line, (side, 1)), np.tile(line[:, None], (1, side)), np.zeros((side, side))], axis=-1)
    return tf.constant(np.tile(image[None], (count, 1, 1, 1)).astype(np.uint8))


def test_views_differ_and_repeat():
    images = tf.random.stateless_uniform([4, 40, 40, 3], [1, 1], 0, 255, tf.int32)
    config = settings(crop_area=(0.3, 0.8), color=0.5, blur=1.0)
    images = tf.cast(images, tf.uint8)
    first, second = augment_views(images, 32, config, SEED)
    assert first.shape == second.shape == (4, 32, 32, 3) and first.dtype == tf.uint8
    assert np.abs(first.numpy().astype(int) - second.numpy()).mean() > 5
    for one, other in zip((first, second), augment_views(images, 32, config, SEED)):
        np.testing.assert_array_equal(one, other)


def test_without_settings_views_are_the_picture():
    images = gradient_images(2, 32)
    for view in augment_views(images, 32, settings(), SEED):
        np.testing.assert_array_equal(view, images)


def test_a_crop_is_a_rectangle_of_the_area_asked_for():
    crops = random_crop(gradient_images(200, 100), 100, (0.25, 0.5), SEED).numpy().astype(float)
    width = (crops[:, 50, -1, 0] - crops[:, 50, 0, 0]) / 255  # of the picture
    height = (crops[:, -1, 50, 1] - crops[:, 0, 50, 1]) / 255
    area, aspect = width * height, width / height
    assert 0.22 < area.min() < 0.29 and 0.45 < area.max() < 0.53  # to a pixel at either end
    assert 0.70 < aspect.min() < 0.85 and 1.2 < aspect.max() < 1.4
    whole = random_crop(gradient_images(3, 40), 40, (1.0, 1.0), SEED)  # the aspect alone remains
    assert np.abs(whole.numpy().astype(int) - gradient_images(3, 40).numpy()).mean() < 20


def test_blur_keeps_the_mean_and_spreads_a_point():
    point = np.zeros((64, 21, 21, 3), np.uint8)
    point[:, 10, 10] = 255
    found = blur(tf.constant(point), 2.0, SEED).numpy().astype(float)
    centre = found[:, 10, 10, 0] / 255
    assert centre.min() < 0.1 and centre.max() > 0.95  # deviations from nearly 2 to nearly 0
    spread = int(np.argmin(centre))
    # A Gaussian of deviation s has 1 / (2 π s²) at its centre and e^(-1 / (2 s²)) of that beside it.
    deviation = np.sqrt(1 / (2 * np.pi * centre[spread]))
    np.testing.assert_allclose(
        found[spread, 10, 11, 0] / found[spread, 10, 10, 0], np.exp(-0.5 / deviation**2), atol=0.06
    )
    flat = tf.fill([2, 16, 16, 3], tf.constant(200, tf.uint8))
    np.testing.assert_array_equal(blur(flat, 2.0, SEED), flat)  # also at the edges


def many_tokens(tokenizer, rows=400, length=20):
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, length - 1, rows)
    pieces = tf.RaggedTensor.from_row_lengths(
        tf.constant(generator.integers(5, tokenizer.vocabulary_size, lengths.sum()), tf.int32), lengths
    )
    tokenizer.max_length = length
    return tokenizer.pack(pieces, length), lengths


def test_masking_is_berts():
    tokenizer = toy_data.toy_tokenizer()
    tokens, lengths = many_tokens(tokenizer)
    masked = mask_tokens(tokens, tokenizer, 0.15, SEED)
    before, after = tokens["input_word_ids"].numpy(), masked["input_word_ids"].numpy()
    places, targets, weights = (masked[name].numpy() for name in ("places", "targets", "weights"))
    assert places.shape == (400, 3)  # ceil(0.15 * 18)
    expected = np.where(lengths > 0, np.maximum(np.round(0.15 * np.minimum(lengths, 18)), 1), 0)
    np.testing.assert_array_equal(weights.sum(axis=1), expected)
    rows, columns = np.nonzero(weights)
    chosen = places[rows, columns]
    np.testing.assert_array_equal(targets[rows, columns], before[rows, chosen])
    assert not set(before[rows, chosen]) & {0, 2, 3}  # neither padding nor [CLS] nor [SEP]
    assert len({*zip(rows, chosen)}) == len(rows)  # no place twice
    untouched = np.ones_like(before, bool)
    untouched[rows, chosen] = False
    np.testing.assert_array_equal(before[untouched], after[untouched])
    new = after[rows, chosen]
    shares = np.mean(new == tokenizer.mask_id), np.mean(new == targets[rows, columns])
    assert abs(shares[0] - 0.8) < 0.06 and abs(shares[1] - 0.1) < 0.05
    again = mask_tokens(tokens, tokenizer, 0.15, SEED)
    np.testing.assert_array_equal(again["input_word_ids"], after)
    assert not np.array_equal(mask_tokens(tokens, tokenizer, 0.15, SEED + 1)["input_word_ids"], after)


def test_masking_works_where_the_width_is_not_known():
    tokenizer = toy_data.toy_tokenizer()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def run(texts):
        return mask_tokens(tokenizer(texts, pad="longest"), tokenizer, 0.5, SEED)

    found = run(tf.constant(["thing w3", "ding v4 w5 thing"]))
    assert found["places"].shape == (2, 3) and found["weights"].numpy().sum(axis=1).tolist() == [2.0, 3.0]
    assert run(tf.constant(["", ""]))["weights"].numpy().sum() == 0.0


def prepared(folder):
    config = toy_data.toy_config(toy_data.write_toy_data(folder, count=20), "globetrotter")
    config.augmentation.update(dict(crop_area=(0.5, 1.0), color=0.5, blur=1.0))
    return config


@pytest.mark.parametrize("stream,drawn", [
    ("views", "view_0"), pytest.param("captions", "cloze", marks=pytest.mark.slow),
    pytest.param("triples", "text_a_id", marks=pytest.mark.slow),
])  # fmt: skip
def test_what_is_drawn_for_a_batch_follows_from_its_place(tmp_path, stream, drawn):
    config = prepared(tmp_path)
    first, again, later = (toy_data.stream_batch(config, toy_data.toy_tokenizer(), stream, epoch=n) for n in (0, 0, 1))
    tf.nest.map_structure(np.testing.assert_array_equal, first, again)
    pairs = zip(tf.nest.flatten(first[drawn]), tf.nest.flatten(later[drawn]))
    assert any(np.any(one != other) for one, other in pairs)


@pytest.mark.slow
def test_batches_of_views_and_masked_texts(tmp_path):
    """test_etcl.py and test_translation_distillation.py read batches of the other streams."""
    dataset = training_batches(prepared(tmp_path), toy_data.toy_tokenizer(), streams=("views",))
    assert all(None not in part.shape for part in tf.nest.flatten(dataset.element_spec))
    batch = next(dataset.as_numpy_iterator())
    for name in ("view_0", "view_1"):
        assert batch[name].shape == (16, toy_data.SIDE, toy_data.SIDE, 3) and batch[name].dtype == np.uint8
    assert np.mean(batch["view_0"] != batch["view_1"]) > 0.5
    masked = batch["cloze"]["weights"].sum(axis=1)
    assert np.all(masked > 0) and np.any(batch["cloze"]["input_word_ids"] != batch["caption"]["input_word_ids"])


def test_a_crop_is_where_it_was_drawn():
    """On a ramp a pixel's value says where it was: its centre, left + scale (x + 1/2), less the half of the ramp's."""
    side, size, area, seed = 64, 16, (0.2, 0.4), tf.constant([3, 5])
    ramp = np.arange(side) * 2.0
    images = np.stack([ramp[None, :] + 0 * ramp[:, None], ramp[:, None] + 0 * ramp[None, :]], axis=-1)
    images = np.concatenate([images, images[..., :1]], axis=-1)[None].repeat(5, axis=0).astype(np.uint8)
    crops = random_crop(tf.constant(images), size, area, seed).numpy().astype(float)
    draws = tf.random.stateless_uniform([4, 5], seed).numpy()
    share = 0.2 + draws[0] * 0.2
    aspect = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** draws[1]
    for channel, lengths, place in ((0, np.sqrt(share * aspect), draws[2]), (1, np.sqrt(share / aspect), draws[3])):
        length = np.minimum(lengths, 1)[:, None] * side
        begin = place[:, None] * (side - length)
        centres = begin + length / size * (np.arange(size) + 0.5)
        seen = crops[..., channel].mean(axis=1 + channel)  # along the axis on which the ramp is the same
        inside = (centres > 1) & (centres < side - 1)
        assert inside.sum() > 40
        assert np.abs(seen - 2 * (centres - 0.5))[inside].max() < 1.1  # levels are whole numbers
