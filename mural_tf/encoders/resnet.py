"""ResNet with basic blocks (He et al., 2016): Globetrotter's image tower is ResNet-18, width and depth 1.

The stem is a 7x7 convolution and a 3x3 max-pooling, then four stages of two blocks. Left out: the classifier.
Departure: convolutions pad with "same", which shifts stride-2 convolutions by half a pixel from the published model's,
and the weights start at random (Globetrotter starts from ImageNet's, which Keras does not have for this size).
"""

from __future__ import annotations

import math

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.encoders.efficientnet import PixelNormalization, check_rates, drop_blocks, scaled_width
from mural_tf.encoders.kernels import dtype_policy
from mural_tf.encoders.layers import BatchNormalization
from mural_tf.encoders.towers import image_input, tower_with_projection

STAGE_WIDTHS = (64, 128, 256, 512)
BLOCKS = 2  # per stage, at depth 1
EPSILON = 1e-5  # of batch normalisation


@tf.autograph.experimental.do_not_convert  # saves a second of every start; no layer needs it
def build_resnet(config: ConfigDict) -> keras.Model:
    """Builds the tower that `config`, an `image_tower`, describes: float32 [B, S, S, 3] RGB in [0, 1] -> [B, D].

    The output is float32, S any size. D is 512 times `width`, rounded to a multiple of 8, or with `projection` the size
    of a Dense layer after pooling. A stage has 2 times `depth` blocks, rounded up. A frozen tower keeps its BatchNorm
    statistics and drops no block even in training.
    Raises `UserError` for values that cannot be built.
    """
    check_rates(config)
    builder = _Builder(config)
    images = image_input()
    x = PixelNormalization(config, name="normalization", dtype="float32")(images)
    x = builder.convolve(x, scaled_width(STAGE_WIDTHS[0], config.width), 7, 2, "stem_conv")
    x = builder.activate(builder.normalize(x, "stem_bn"), "stem_activation")
    x = keras.layers.MaxPooling2D(3, 2, padding="same", name="stem_pool", dtype=builder.policy)(x)
    blocks = math.ceil(BLOCKS * config.depth)  # of each stage
    for stage, channels in enumerate(STAGE_WIDTHS):
        for block in range(blocks):
            x = builder.block(
                x,
                f"stage{stage + 1}_block{block + 1}_",
                scaled_width(channels, config.width),
                stride=2 if stage > 0 and block == 0 else 1,
                # The rate grows with the number of blocks before.
                drop_rate=builder.drop_connect_rate * (stage * blocks + block) / (len(STAGE_WIDTHS) * blocks),
            )
    embeddings = keras.layers.GlobalAveragePooling2D(name="avg_pool", dtype="float32")(x)  # [B, D]
    return tower_with_projection(images, embeddings, config)


class _Builder:
    """Adds layers with the configuration's precision and BatchNorm; `x` and results are symbolic tensors of Keras."""

    def __init__(self, config: ConfigDict):
        self.policy = dtype_policy(config.precision, "image")
        self.group = config.batch_norm_group
        self.momentum = config.batch_norm_momentum
        self.drop_connect_rate = 0.0 if config.frozen else config.drop_connect_rate

    def convolve(self, x, channels: int, size: int, stride: int, name: str):
        """Adds a convolution with a `size` x `size` kernel: [B, H, W, C] -> [B, H / stride, W / stride, channels]."""
        return keras.layers.Conv2D(
            channels,
            size,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer=keras.initializers.VarianceScaling(2.0, mode="fan_out"),  # He et al. (2015)
            name=name,
            dtype=self.policy,
        )(x)

    def normalize(self, x, name: str):
        return BatchNormalization(self.group, momentum=self.momentum, epsilon=EPSILON, name=name, dtype=self.policy)(x)

    def activate(self, x, name: str):
        return keras.layers.ReLU(name=name, dtype=self.policy)(x)

    def block(self, inputs, name: str, channels: int, stride: int, drop_rate: float):
        """Adds two 3x3 convolutions with a shortcut: [B, H, W, C] -> [B, H / stride, W / stride, channels]."""
        x = self.normalize(self.convolve(inputs, channels, 3, stride, name + "conv1"), name + "bn1")
        x = self.activate(x, name + "activation1")
        x = self.normalize(self.convolve(x, channels, 3, 1, name + "conv2"), name + "bn2")
        shortcut = inputs
        if stride != 1 or inputs.shape[-1] != channels:
            shortcut = self.convolve(inputs, channels, 1, stride, name + "shortcut_conv")
            shortcut = self.normalize(shortcut, name + "shortcut_bn")
        x = drop_blocks(x, drop_rate, name + "drop", self.policy)
        x = keras.layers.Add(name=name + "add", dtype=self.policy)([x, shortcut])
        return self.activate(x, name + "activation2")
