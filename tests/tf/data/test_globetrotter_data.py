"""Two views of an image, and masked tokens: what is drawn, how much of it, and that a seed repeats it."""

import numpy as np
import tensorflow as tf
import toy_data

from mural_lite.config import base_config
from mural_tf.data.streams.captions import mask_tokens
from mural_tf.data.streams.views import ASPECT, random_crop

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

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def run(texts):
        return mask_tokens(tokenizer(texts, pad="longest"), tokenizer, 0.5, SEED)

    found = run(tf.constant(["thing w3", "ding v4 w5 thing"]))
    assert found["places"].shape == (2, 3) and found["weights"].numpy().sum(axis=1).tolist() == [2.0, 3.0]
    assert run(tf.constant(["", ""]))["weights"].numpy().sum() == 0.0


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
