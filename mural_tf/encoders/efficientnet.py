"""EfficientNet (Tan and Le, 2019) without the 1x1 top convolution: MURAL's image tower ([MURAL] §3.2 and A.1).

MURAL averages the last block over space, so that its width is the embedding size: 512 in B5, 640 in B7, 1376 in L2.
Layers, their names and the shapes of their variables are as in `keras.applications.efficientnet`, so that
ImageNet weights can be copied by name; only preprocessing differs: images arrive in [0, 1], not [0, 255].
Stride-2 convolutions pad with "same", which for these kernels equals Keras' explicit padding and is faster. Weights
that were trained with a fixed padding (Keras' for an unknown image size, Hugging Face's ALIGN) take `padding="even"`:
for any size the padding of "same" for even sizes.
Left out: the top convolution and, but for Lite where `classes` asks for it, the classifier.

EfficientNet-Lite (Liu et al., 2020, tensorflow/tpu), for processors of phones, differs in four things: no
squeeze-and-excitation; ReLU6 in place of swish; the stem, the top convolution, and the number of blocks in the first
and last stage are as in Lite0 in every size; and the top convolution is a part of the tower here, so that the
embedding is 1280 wide.
"""

from __future__ import annotations

import math
import string
from typing import NamedTuple

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.kernels import DepthwiseConvolution, PointwiseConvolution, dtype_policy, fused, silu
from mural_tf.encoders.layers import BatchNormalization, Dropout
from mural_tf.encoders.towers import image_input, tower_with_projection

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # RGB, of images in [0, 1]
IMAGENET_STANDARD_DEVIATION = (0.229, 0.224, 0.225)
STATISTICS = {
    "imagenet": (IMAGENET_MEAN, IMAGENET_STANDARD_DEVIATION),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}
NORMALIZATIONS = (*STATISTICS, "symmetric", "none", "given")
PADDINGS = ("same", "even")
STEM_WIDTH = 32
TOP_WIDTH = 1280  # of Lite's top convolution
CLASSIFIER = "predictions"  # Keras' name of the layer
WIDTH_DIVISOR = 8  # channel counts are multiples of it
SQUEEZE_RATIO = 0.25  # of the block's input width


class Stage(NamedTuple):
    """Blocks in succession, of one kernel size, output width and expansion; the first of them has the stride."""

    kernel: int
    blocks: int
    width: int
    expansion: int
    stride: int


STAGES = (  # of B0 (Tan and Le, table 1)
    Stage(3, 1, 16, 1, 1),
    Stage(3, 2, 24, 6, 2),
    Stage(5, 2, 40, 6, 2),
    Stage(3, 3, 80, 6, 2),
    Stage(5, 3, 112, 6, 1),
    Stage(5, 4, 192, 6, 2),
    Stage(3, 1, 320, 6, 1),
)
# Width and depth coefficients of the published sizes; L2 is from Xie et al. (2020), Noisy Student.
COEFFICIENTS = {
    "B0": (1.0, 1.0),
    "B1": (1.0, 1.1),
    "B2": (1.1, 1.2),
    "B3": (1.2, 1.4),
    "B4": (1.4, 1.8),
    "B5": (1.6, 2.2),
    "B6": (1.8, 2.6),
    "B7": (2.0, 3.1),
    "L2": (4.3, 5.3),
}
LITE_COEFFICIENTS = {
    "Lite0": (1.0, 1.0),
    "Lite1": (1.0, 1.1),
    "Lite2": (1.1, 1.2),
    "Lite3": (1.2, 1.4),
    "Lite4": (1.4, 1.8),
}


def scaled_width(channels: int, width: float) -> int:
    """Returns `channels` times `width` rounded to a multiple of 8, at least 8, at most 10% below the product."""
    scaled = channels * width
    rounded = max(WIDTH_DIVISOR, int(scaled + WIDTH_DIVISOR / 2) // WIDTH_DIVISOR * WIDTH_DIVISOR)
    if rounded < 0.9 * scaled:
        rounded += WIDTH_DIVISOR
    return rounded


def scaled_depth(blocks: int, depth: float) -> int:
    """Returns the number of blocks of a stage that has `blocks` blocks in B0; `depth` is the depth coefficient."""
    return math.ceil(blocks * depth)


def blocks_by_stage(depth: float, lite: bool) -> list[int]:
    """Returns the number of blocks of each of the seven stages; Lite's first and last stage are not deepened."""
    counts = [scaled_depth(stage.blocks, depth) for stage in STAGES]
    if lite:
        counts[0] = STAGES[0].blocks
        counts[-1] = STAGES[-1].blocks
    return counts


def kernel_initializer() -> keras.initializers.Initializer:
    """Returns a new initialiser, which every kernel needs: the same instance would give the same values again."""
    return keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="truncated_normal")


@fused
def swish_squeeze_excite(x, reduce_kernel, reduce_bias, expand_kernel, expand_bias):
    """Returns swish(x) with each channel scaled by a gate: [B, H, W, C] -> [B, H, W, C] (Hu et al., 2018).

    The gate is computed from the channels' means over space, by kernels [1, 1, C, R] and [1, 1, R, C] and biases [R]
    and [C]. It is one function, so that the three uses of swish(x) cost one pass over memory each.
    """
    x = x * tf.sigmoid(x)
    means = tf.cast(tf.reduce_mean(tf.cast(x, tf.float32), axis=[1, 2]), x.dtype)  # [B, C]
    squeezed = tf.matmul(means, tf.reshape(reduce_kernel, reduce_kernel.shape[2:])) + reduce_bias  # [B, R]
    squeezed = squeezed * tf.sigmoid(squeezed)
    gate = tf.sigmoid(tf.matmul(squeezed, tf.reshape(expand_kernel, expand_kernel.shape[2:])) + expand_bias)  # [B, C]
    return x * gate[:, tf.newaxis, tf.newaxis, :]


class PixelNormalization(keras.layers.Layer):
    """Pixels, float32 [B, H, W, 3] in [0, 1], normalised as `config.normalization` of an image tower says.

    "imagenet", "clip", "given": minus a mean, divided by a deviation, per colour; "symmetric": scaled to [-1, 1];
    "none": unchanged. Raises `UserError` for another name, or where mean and deviation are not three numbers each, the
    deviations above 0.
    """

    def __init__(self, config: ConfigDict, **options):
        super().__init__(**options)
        self.normalization = config.normalization
        if self.normalization not in NORMALIZATIONS:
            expected = ", ".join(NORMALIZATIONS)
            raise UserError(f"Unknown image_tower.normalization {self.normalization!r}: expected {expected}.")
        mean, deviation = STATISTICS.get(self.normalization, (config.pixel_mean, config.pixel_deviation))
        if (len(mean), len(deviation)) != (3, 3) or not min(deviation) > 0:
            raise UserError(
                f"image_tower.pixel_mean={tuple(mean)} and pixel_deviation={tuple(deviation)}: expected three numbers "
                "each, of red, green and blue, and deviations above 0."
            )

        @fused
        def standardize(images: tf.Tensor) -> tf.Tensor:
            return (images - tf.constant(mean)) / tf.constant(deviation)

        self.standardize = standardize

    def call(self, images, training=None):
        if self.normalization == "symmetric":
            return images * 2.0 - 1.0
        if self.normalization == "none":
            return images
        return self.standardize(images, training=training)


class Swish(keras.layers.Layer):
    """The activation after the stem's and the expansion's BatchNorm."""

    def call(self, x, training=None):
        return silu(x, training=training)


class ReluSix(keras.layers.Layer):
    """Lite's activation: x cut off at 0 and 6, which 8-bit integers hold well."""

    def call(self, x, training=None):
        return tf.nn.relu6(x)


class SwishSqueezeExcite(keras.layers.Layer):
    """The activation after a depthwise convolution's BatchNorm, with squeeze-and-excitation (Hu et al., 2018).

    Args:
      squeezed: R, the channels between the two convolutions.
      prefix: the beginning of the variables' names, which end as the names of Keras' layers do.
    """

    def __init__(self, squeezed: int, prefix: str, **options):
        super().__init__(**options)
        self.squeezed = squeezed
        self.prefix = prefix

    def build(self, shape):
        def convolution(name, inputs, outputs):
            kernel = self.add_weight(f"{name}/kernel", (1, 1, inputs, outputs), initializer=kernel_initializer())
            return [kernel, self.add_weight(f"{name}/bias", (outputs,), initializer="zeros")]

        self.reduce = convolution(self.prefix + "reduce", shape[-1], self.squeezed)
        self.expand = convolution(self.prefix + "expand", self.squeezed, shape[-1])

    def call(self, x, training=None):
        weights = [tf.cast(weight, self.compute_dtype) for weight in self.reduce + self.expand]
        return swish_squeeze_excite(x, *weights, training=training)


@tf.autograph.experimental.do_not_convert  # saves a second of every start; no layer needs it
def build_efficientnet(config: ConfigDict) -> keras.Model:
    """Builds the tower that `config`, an `image_tower`, describes: float32 [B, S, S, 3] RGB in [0, 1] -> [B, D].

    `name` "efficientnet" or "efficientnet_lite" chooses the family; S is any size. The embedding joins, in this order:
    with `pooled_stages`, the means over space of each stage's output (our choice, after the hypercolumns of Hariharan
    et al., 2015): colours, lines and textures, which the last layer of a classifier drops; the means of the last
    layer's output; with `classes`, the classifier's probabilities. D is the sum of their sizes, see `output_width`, or
    with `projection` the size of a Dense layer on top; the output is float32. A frozen tower runs without stochastic
    depth and with fixed BatchNorm statistics even in training. Raises `UserError` for values that cannot be built.
    """
    _check(config)
    builder = _Builder(config)
    images = image_input()
    x = PixelNormalization(config, name="normalization", dtype="float32")(images)
    stem_width = STEM_WIDTH if builder.lite else scaled_width(STEM_WIDTH, config.width)
    x = builder.stem(x, stem_width)
    x = builder.normalize(x, "stem_bn", activate="stem_activation")

    block_counts = blocks_by_stage(config.depth, builder.lite)
    blocks_before = 0
    parts = []  # of the embedding, [B, …] each
    for stage_number, (stage, block_count) in enumerate(zip(STAGES, block_counts), start=1):
        for block in range(block_count):
            x = builder.block(
                x,
                name=f"block{stage_number}{string.ascii_lowercase[block]}_",  # "block1a_", as in Keras
                kernel=stage.kernel,
                channels=scaled_width(stage.width, config.width),
                expansion=stage.expansion,
                stride=stage.stride if block == 0 else 1,
                drop_rate=builder.drop_connect_rate * blocks_before / sum(block_counts),  # grows with depth
            )
            blocks_before += 1
        # Without Lite's top convolution the last stage is the last layer, whose means are joined below.
        if config.pooled_stages and (builder.lite or stage_number < len(STAGES)):
            parts.append(average_over_space(f"stage{stage_number}_pool")(x))

    if builder.lite:
        x = builder.normalize(builder.pointwise(x, TOP_WIDTH, "top_conv"), "top_bn", activate="top_activation")
    embeddings = average_over_space("avg_pool")(x)
    parts.append(embeddings)
    if config.classes:
        classifier = keras.layers.Dense(config.classes, "softmax", name=CLASSIFIER, dtype="float32")
        parts.append(classifier(embeddings))
    if len(parts) > 1:
        embeddings = keras.layers.Concatenate(name="state", dtype="float32")(parts)  # [B, D]
    return tower_with_projection(images, embeddings, config)


def _check(config: ConfigDict) -> None:
    """Raises `UserError` for values of an `image_tower` that cannot be built as an EfficientNet."""
    check_rates(config)
    if config.padding not in PADDINGS:
        raise UserError(f"Unknown image_tower.padding {config.padding!r}: expected {', '.join(PADDINGS)}.")
    if config.classes and config.name != "efficientnet_lite":
        raise UserError(f"image_tower.class_names with {config.name}: only efficientnet_lite keeps its classifier.")
    most_blocks = max(blocks_by_stage(config.depth, config.name == "efficientnet_lite"))
    if most_blocks > len(string.ascii_lowercase):  # Keras names the blocks of a stage by letters
        raise UserError(
            f"image_tower.depth={config.depth} gives a stage {most_blocks} blocks, expected at most "
            f"{len(string.ascii_lowercase)}: EfficientNet-B7 has depth 3.1."
        )


def average_over_space(name: str) -> keras.layers.Layer:
    """Returns a layer of this name that takes the mean over height and width: [B, H, W, C] -> float32 [B, C]."""
    return keras.layers.GlobalAveragePooling2D(name=name, dtype="float32")


def output_width(config: ConfigDict) -> int:
    """Returns the width of the embedding that `build_efficientnet` gives without a projection."""
    widths = [scaled_width(stage.width, config.width) for stage in STAGES]
    if config.name == "efficientnet_lite":
        widths.append(TOP_WIDTH)
    width = sum(widths) if config.pooled_stages else widths[-1]
    return width + config.classes


class _Builder:
    """Adds layers with the configuration's precision, padding and BatchNorm, and Keras' EfficientNet initialisation."""

    def __init__(self, config: ConfigDict):
        self.lite = config.name == "efficientnet_lite"
        self.policy = dtype_policy(config.precision, "image")
        self.momentum = config.batch_norm_momentum
        self.group = config.batch_norm_group
        self.padding = config.padding
        self.drop_connect_rate = 0.0 if config.frozen else config.drop_connect_rate

    def stem(self, x, channels: int):
        """Adds the first convolution, 3x3: [B, H, W, 3] -> [B, H / 2, W / 2, channels]."""
        x, padding = self.pad(x, 3, "stem_conv_pad")
        return keras.layers.Conv2D(
            channels,
            3,
            strides=2,
            padding=padding,
            use_bias=False,
            kernel_initializer=kernel_initializer(),
            name="stem_conv",
            dtype=self.policy,
        )(x)

    def pad(self, x, kernel: int, name: str):
        """Returns x for a stride-2 convolution, padded if padding is "even", and the convolution's own `padding`."""
        if self.padding == "same":
            return x, "same"
        sides = (kernel // 2 - 1, kernel // 2)  # before and after
        return keras.layers.ZeroPadding2D((sides, sides), name=name, dtype=self.policy)(x), "valid"

    def pointwise(self, x, channels: int, name: str):
        """Adds a 1x1 convolution: [B, H, W, C] -> [B, H, W, channels]."""
        return PointwiseConvolution(
            channels, use_bias=False, kernel_initializer=kernel_initializer(), name=name, dtype=self.policy
        )(x)

    def normalize(self, x, name: str, activate: str = ""):
        """Adds BatchNorm and, if `activate` is not empty, an activation layer of this name; shapes stay."""
        x = BatchNormalization(self.group, momentum=self.momentum, name=name, dtype=self.policy)(x)
        if activate:
            activation = ReluSix if self.lite else Swish
            x = activation(name=activate, dtype=self.policy)(x)
        return x

    def block(self, inputs, name: str, kernel: int, channels: int, expansion: int, stride: int, drop_rate: float):
        """Adds a mobile inverted bottleneck: [B, H, W, C] -> [B, H / stride, W / stride, channels].

        Layers' names begin with `name`. `kernel` is the depthwise convolution's size, `expansion` times C its width,
        `drop_rate` the rate of stochastic depth. Lite has no squeeze-and-excitation.
        """
        width = inputs.shape[-1]
        x = inputs
        if expansion != 1:
            x = self.pointwise(x, width * expansion, name + "expand_conv")
            x = self.normalize(x, name + "expand_bn", activate=name + "expand_activation")
        padding = "same"
        if stride == 2:
            x, padding = self.pad(x, kernel, name + "dwconv_pad")
        x = DepthwiseConvolution(
            kernel, stride, padding, depthwise_initializer=kernel_initializer(), name=name + "dwconv", dtype=self.policy
        )(x)
        if self.lite:
            x = self.normalize(x, name + "bn", activate=name + "activation")
        else:
            x = self.normalize(x, name + "bn")
            squeezed = max(1, int(width * SQUEEZE_RATIO))
            x = SwishSqueezeExcite(squeezed, name + "se_", name=name + "squeeze_excite", dtype=self.policy)(x)
        x = self.pointwise(x, channels, name + "project_conv")
        x = self.normalize(x, name + "project_bn")
        if stride == 1 and width == channels:
            x = drop_blocks(x, drop_rate, name + "drop", self.policy)
            x = keras.layers.Add(name=name + "add", dtype=self.policy)([x, inputs])
        return x


def drop_blocks(x: tf.Tensor, rate: float, name: str, policy) -> tf.Tensor:
    """Adds stochastic depth (Huang et al., 2016): a residual block's output, [B, H, W, C], is 0 for some examples.

    `rate` is the share of these examples, in training; at 0 no layer is added.
    """
    if rate <= 0:
        return x
    return Dropout(rate, noise_shape=(None, 1, 1, 1), name=name, dtype=policy)(x)


def check_rates(config: ConfigDict) -> None:
    """Raises `UserError` if `drop_connect_rate` or `batch_norm_momentum` of an `image_tower` is not in [0, 1)."""
    for name in ("drop_connect_rate", "batch_norm_momentum"):
        if not 0 <= config[name] < 1:
            raise UserError(f"image_tower.{name}={config[name]} must be at least 0 and below 1.")
