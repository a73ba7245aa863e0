"""What towers and their layers refuse: the call, the words that must occur."""

import pytest
import tensorflow as tf
import test_bert
import test_by_length
import test_efficientnet

from mural_tf.encoders import build_image_encoder, build_text_encoder, kernels
from mural_tf.encoders.layers import BatchNormalization, parse_group
from mural_tf.errors import UserError


def normalize(group):
    return BatchNormalization(group)._normalize(tf.zeros([8, 2, 2, 1]))


def packed(length):
    tokens = {name: tf.constant(ids) for name, ids in test_by_length.tokens([3], length).items()}
    return test_by_length.tower().packed_states(tokens, 2, True)


REFUSALS = {
    "a text beyond max_length": (
        lambda: build_text_encoder(test_bert.tower_config(), 50)(test_bert.random_tokens(length=10)),
        ["10 tokens", "max_length=9"]),
    "a packed text beyond max_length": (lambda: packed(21), ["21 tokens", "max_length=20"]),
    "classes of a tower without them": (
        lambda: build_image_encoder(test_efficientnet.tower_config(classes=10)),
        ["class_names: only 'efficientnet_lite'"]),
    "an unknown group of BatchNorm": (lambda: parse_group("half"), ["local, global or a number"]),
    "groups that do not divide": (lambda: normalize(3), ["3 does not divide the 8 examples"]),
    "groups larger than a part": (lambda: normalize(12), ["12 is not a multiple of the 8 examples"]),
    "an unknown precision": (
        lambda: kernels.dtype_policy("half", "text"),
        ["'half'", "expected one of auto, float32, mixed_bfloat16, bfloat16"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, expected = REFUSALS[name]
    with pytest.raises(UserError) as error:
        call()
    assert all(part in str(error.value) for part in expected), str(error.value)  # Keras adds lines to it
