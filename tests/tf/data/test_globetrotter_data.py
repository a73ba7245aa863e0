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
