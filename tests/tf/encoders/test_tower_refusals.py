"""What towers and their layers refuse."""

import pytest
import tensorflow as tf
import test_bert
import test_by_length
import test_efficientnet
from snapshots import assert_refusals

from mural_lite.errors import UserError
from mural_tf.encoders import build_image_encoder, build_text_encoder, kernels
from mural_tf.encoders.layers import BatchNormalization, parse_group


def image(**fields):
    return lambda _: build_image_encoder(test_efficientnet.tower_config(**fields))


def text(**fields):
    return lambda _: build_text_encoder(test_bert.tower_config(**fields), 50)


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
    **{f"{name}={value}": tower(**{name: value}) for tower, fields in OUT_OF_RANGE.items()
       for name, value in fields.items()},
    "more blocks than letters": image(depth=7.0),
    "a resnet's rate": image(name="resnet", drop_connect_rate=1.0),
    "an unknown image tower": image(name="vgg"),
    "an unknown text tower": text(name="gru"),
    "heads that do not divide": text(hidden_size=1024, heads=24),
    "an unknown way to resize": image(resize_mode="crop"),
    "an unknown interpolation": image(interpolation="nearest"),
    "an unknown decoder": image(jpeg="slow"),
    "an unknown normalization": image(normalization="mean"),
    "a mean of one colour": image(normalization="given", pixel_mean=(0.5,)),
    "a deviation of 0": image(normalization="given", pixel_deviation=(1.0, 0.0, 1.0)),
    "classes of a tower without them": image(classes=10),
    "a packed text beyond max_length": lambda _: packed(21),
    "an unknown group of BatchNorm": lambda _: parse_group("half"),
    "groups that do not divide": lambda _: normalize(3),
    "groups larger than a part": lambda _: normalize(12),
    "an unknown precision": lambda _: kernels.dtype_policy("half", "text"),
}  # fmt: skip


def test_a_text_beyond_max_length():
    with pytest.raises(UserError, match="Texts of 10 tokens for a text tower with text_tower.max_length=9"):
        text()(None)(test_bert.random_tokens(length=10))


def test_refusals(tmp_path):
    assert_refusals("refusals_of_towers", REFUSALS, tmp_path)
