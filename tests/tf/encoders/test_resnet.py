"""ResNet-18 has the published parameters and shapes; it learns; its head and the absent tower do what they say."""

import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders import build_image_encoder
from mural_tf.encoders.layers import BatchNormalization


def tower(**settings):
    config = base_config().image_tower
    config.update({"name": "resnet", "width": 1.0, "depth": 1.0, "drop_connect_rate": 0.0, "precision": "float32"})
    config.update(settings)
    keras.utils.set_random_seed(0)
    return build_image_encoder(config)


def trainable(model):
    return sum(weight.shape.num_elements() for weight in model.trainable_weights)


def norms(model):
    return sum(isinstance(x, BatchNormalization) for x in model._flatten_layers(include_self=False))


def test_resnet_18_has_the_published_parameters():
    # He et al. (2016), as commonly counted: 11,689,512, of which the classifier, left out here, has 513 * 1000.
    model = tower()
    assert trainable(model) == 11_689_512 - 513_000
    assert model.embedding_size == 512
    layers = [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    assert len(layers) == norms(model) == 1 + 16 + 3  # 18 layers less the classifier, and three shortcuts


def test_a_head_on_top():
    # Globetrotter's is Dense 512, layer normalisation, Dense 128 on a projection to 512; here an eighth as wide.
    projected = tower(width=0.125, depth=0.5, projection=48)
    headed = tower(width=0.125, depth=0.5, projection=48, head_size=16)
    assert projected.get_layer("projection").count_params() == 65 * 48
    assert trainable(headed) - trainable(projected) == 49 * 48 + 2 * 48 + 49 * 16
    assert headed.embedding_size == 16 and headed(tf.zeros([2, 32, 32, 3])).shape == (2, 16)
    assert norms(headed) == 1 + 8 + 3
    frozen = tower(width=0.125, depth=0.5, frozen=True, head_size=16)
    assert trainable(frozen) == 65 * 64 + 2 * 64 + 65 * 16


def test_no_image_tower():
    model = tower(name="none", projection=7)
    assert not model.variables and not model(tf.ones([3, 16, 16, 3])).numpy().any()
    assert model(tf.ones([3, 16, 16, 3])).shape == (3, 7)
    with pytest.raises(UserError, match="set it to embedding_size"):
        tower(name="none")
