"""What towers and their layers refuse: the call, the words that must occur."""

import pytest
import tensorflow as tf
import test_bert
import test_by_length
import test_efficientnet

from mural_lite.errors import UserError
from mural_tf.encoders import build_image_encoder, build_text_encoder, kernels
from mural_tf.encoders.layers import BatchNormalization, parse_group


def image(**fields):
    return lambda: build_image_encoder(test_efficientnet.tower_config(**fields))


def text(**fields):
    return lambda: build_text_encoder(test_bert.tower_config(**fields), 50)


def normalize(group):
    return BatchNormalization(group)._normalize(tf.zeros([8, 2, 2, 1]))


def packed(length):
    tokens = {name: tf.constant(ids) for name, ids in test_by_length.tokens([3], length).items()}
    return test_by_length.tower().packed_states(tokens, 2, True)


OUT_OF_RANGE = {
    image: dict(width=0.0, drop_connect_rate=1.0, batch_norm_momentum=1.0, projection=-1),
    text: dict(layers=0, token_embedding_size=-1, dropout=1.0),
}
REFUSALS = {
    **{f"{name}={value}": (tower(**{name: value}), [f"_tower.{name}={value}"])
       for tower, fields in OUT_OF_RANGE.items() for name, value in fields.items()},
    "a resnet's rate": (image(name="resnet", drop_connect_rate=1.0), ["image_tower.drop_connect_rate=1.0"]),
    "an unknown image tower": (image(name="vgg"), ["'vgg'", "one of efficientnet, efficientnet_lite, resnet"]),
    "an unknown text tower": (text(name="gru"), ["'gru'", "one of bert, modernbert, hub"]),
    "heads that do not divide": (text(hidden_size=1024, heads=24), ["hidden_size=1024", "heads=24", "divides it is"]),
    "an unknown way to resize": (image(resize_mode="crop"), ["resize_mode 'crop'", "squash, shorter_side"]),
    "an unknown interpolation": (image(interpolation="nearest"), ["interpolation 'nearest'", "bilinear, bicubic"]),
    "an unknown decoder": (image(jpeg="slow"), ["image_tower.jpeg 'slow'", "fast, accurate"]),
    "an unknown normalization": (
        image(normalization="mean"), ["normalization 'mean'", "imagenet, clip, symmetric"]),
    "a mean of one colour": (
        image(normalization="given", pixel_mean=(0.5,)), ["pixel_mean=(0.5,)", "three numbers"]),
    "a deviation of 0": (
        image(normalization="given", pixel_deviation=(1.0, 0.0, 1.0)), ["(1.0, 0.0, 1.0)", "deviations above 0"]),
    "classes of a tower without them": (image(classes=10), ["names with efficientnet", "efficientnet_lite keeps"]),
    "a text beyond max_length": (
        lambda: text()()(test_bert.random_tokens(length=10)), ["10 tokens", "max_length=9"]),
    "a packed text beyond max_length": (lambda: packed(21), ["21 tokens", "max_length=20"]),
    "an unknown group of BatchNorm": (lambda: parse_group("half"), ["local, global or a number"]),
    "groups that do not divide": (lambda: normalize(3), ["3 does not divide the 8 examples"]),
    "groups larger than a part": (lambda: normalize(12), ["12 is not a multiple of the 8 examples"]),
    "an unknown precision": (
        lambda: kernels.dtype_policy("half", "text"),
        ["'half'", "one of auto, float32, mixed_bfloat16, bfloat16"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, expected = REFUSALS[name]
    with pytest.raises(UserError) as error:
        call()
    assert all(part in str(error.value) for part in expected), str(error.value)  # Keras adds lines to it
