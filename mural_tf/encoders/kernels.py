"""Fast kernels of towers: fused elementwise chains, convolutions as matrix products, and each tower's precision.

Chains of cheap operations are compiled into one pass over memory, forward and backward. TensorFlow runs `x *
sigmoid(x)` and its gradient as eight operations that each read and write the whole tensor; on a CPU these passes cost
more than many convolutions. XLA compiles each direction into one loop. The mathematics is unchanged. The gradient
recomputes the function from its inputs, so only those are kept in memory.

Only training uses it: graphs traced for inference stay free of XLA, which TensorFlow Serving does not link. On a TPU
the whole step is compiled already, and the plain function is used.
"""

from __future__ import annotations

import contextlib
import functools
import math
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.backend import keras, without_noise

FUSION = ("auto", "on", "off")
_fusion = "auto"
_for_tpu = False


@contextlib.contextmanager
def for_tpu() -> Iterator[None]:
    """Within this context, layers are built and traced as for a TPU, on a machine without a TPU."""
    global _for_tpu
    before = _for_tpu
    _for_tpu = True
    try:
        yield
    finally:
        _for_tpu = before


def on_tpu() -> bool:
    """Whether layers are built and traced for a TPU: under TPUStrategy, or in `for_tpu`."""
    return _for_tpu or isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def set_fusion(fusion: str) -> str:
    """Sets whether functions traced from now on compile chains: "on", "off" or "auto"; returns the setting before.

    "auto" compiles on CPUs, where it was measured to be faster. A GPU has fused kernels of its own for most chains, and
    each new shape costs a compilation. Set "off" before `tf.debugging.enable_check_numerics`, which fails on compiled
    functions. Raises `UserError` for another setting.
    """
    global _fusion
    if fusion not in FUSION:
        raise UserError(f"Unknown train.fused={fusion!r}: expected one of {', '.join(FUSION)}.")
    before = _fusion
    _fusion = fusion
    return before


def compiles_fused() -> bool:
    """Whether functions traced now compile chains; never on a TPU, where the whole step is compiled."""
    if on_tpu():
        return False
    if _fusion == "auto":
        return not tf.config.list_logical_devices("GPU")
    return _fusion == "on"


in_one_loop = functools.partial(tf.function, jit_compile=True, autograph=False)


def compile_first_quietly() -> None:
    """Compiles a small function with stderr hidden: TensorFlow 2.15 prints a line there at the first compilation."""
    with without_noise():
        add_one = in_one_loop(lambda x: x + 1.0)
        add_one(tf.constant(0.0))


def fused(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Decorates a function: with `training=True`, it and its gradient run as one loop each, where `compiles_fused`.

    `function` maps float tensors to one tensor and must be differentiable in each of them and free of randomness
    and variables. Each new shape is compiled once, which takes some tens of milliseconds.
    """

    @functools.cache
    def compile_both_ways(*signature):
        """Returns new functions for each signature; functions for all signatures would warn of retracing."""

        @in_one_loop
        def forward(*inputs):
            return function(*inputs)

        @in_one_loop
        def backward(inputs, upstream):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = function(*inputs)
            return tape.gradient(output, inputs, upstream)

        return forward, backward

    @tf.custom_gradient
    def run_compiled(*inputs):
        signature = [(x.dtype, tuple(x.shape)) for x in inputs]
        forward, backward = compile_both_ways(*signature)
        return forward(*inputs), lambda upstream: backward(inputs, upstream)

    @functools.wraps(function)
    def run(*inputs, training=False):
        if training is True and compiles_fused():
            return run_compiled(*inputs)
        return function(*inputs)

    return run


# BERT's cheap functions (Devlin et al., 2019).
LAYER_NORM_EPSILON = 1e-12
MASKED = -1e9  # added to the attention logits of padding


@fused
def gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns x times the standard normal distribution function at x, computed exactly by erf."""
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


@fused
def gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    """Returns GELU approximated by tanh (Hendrycks and Gimpel, 2016, section 2), as in big_vision's models."""
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


@fused
def quick_gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns GELU approximated by x sigmoid(1.702 x) (the same section), as in OpenAI's CLIP."""
    return x * tf.sigmoid(1.702 * x)


@fused
def silu(x: tf.Tensor) -> tf.Tensor:
    """Returns x sigmoid(x) (Hendrycks and Gimpel, 2016): EfficientNet's swish, and in gates of smaller ModernBERTs."""
    return x * tf.sigmoid(x)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu, "silu": silu}


@functools.cache
def layer_norm(epsilon: float) -> Callable[..., tf.Tensor]:
    """Returns the fused function (x, gamma, beta) or (x, y, gamma, beta) that normalises x, or x + y, over axis -1.

    x, y and the result are [..., C] of any float dtype; gamma and beta are float32 [C], and so is the computation.
    """

    @fused
    def add_and_normalize(*inputs):
        x, *others, gamma, beta = inputs
        total = tf.cast(sum(others, x), tf.float32)
        centred = total - tf.reduce_mean(total, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        return tf.cast(centred * tf.math.rsqrt(variance + epsilon) * gamma + beta, x.dtype)

    return add_and_normalize


def softmax(logits: tf.Tensor, *masks: tf.Tensor, training=False) -> tf.Tensor:
    """Returns attention weights: the softmax of logits, [B, heads, Q, T], over the tokens that are 1 in every mask.

    A mask of 1 and 0 is float [B, T], or [B, Q, T] where each query has its own; without masks all tokens count. The
    softmax is computed in float32: where nothing is compiled TensorFlow's kernel casts inside, which saves a pass.
    """
    if training or not compiles_fused():
        return _softmax_in_float32(logits, *masks, training=training)
    return tf.nn.softmax(_masked(logits, *masks))


@fused
def _softmax_in_float32(logits, *masks):
    """Returns `softmax` in the logits' own dtype, computed in float32."""
    masked = _masked(tf.cast(logits, tf.float32), *masks)
    return tf.cast(tf.nn.softmax(masked), logits.dtype)


def _masked(logits, *masks):
    """Returns logits, [B, heads, Q, T], with `MASKED` added where a mask, float [B, T] or [B, Q, T], is 0."""
    for mask in masks:
        for_queries = mask if mask.shape.rank == 3 else tf.expand_dims(mask, 1)
        logits += tf.cast(tf.expand_dims(1.0 - for_queries, 1) * MASKED, logits.dtype)  # [B, 1, Q or 1, T]
    return logits


# Keras' 1x1 and depthwise convolutions with the same variables and numbers, computed the way CPUs are fast at: 1x1
# kernels as matrix products, without a convolution's set-up cost, and so the gradients of 5x5 depthwise kernels on
# small maps: these take 13% off a batch through `emoji_mural`'s image tower (0.251 to 0.218 processor s, median of 8).

# A 5x5 kernel's gradient is taken by matrix products when (input positions) x (output positions) is at most this.
MAX_POSITION_PAIRS = 6000
TINY_MAP = 4  # output positions; below it even a 3x3 kernel's gradient is slow


class PointwiseConvolution(keras.layers.Conv2D):
    """A 1x1 convolution of stride 1 as one matrix product: [B, H, W, C] -> [B, H, W, filters]."""

    def __init__(self, filters: int, **options):
        super().__init__(filters, 1, **options)

    def call(self, x):
        if on_tpu():  # whose compiler chooses the layouts of convolutions, and copies where it finds products
            return super().call(x)
        y = tf.tensordot(x, tf.reshape(self.kernel, self.kernel.shape[2:]), axes=1)
        if self.use_bias:
            y = y + self.bias
        return self.activation(y)


class DepthwiseConvolution(keras.layers.DepthwiseConv2D):
    """A depthwise convolution without bias: [B, H, W, C] -> [B, H / stride, W / stride, C] with "same" padding."""

    def __init__(self, kernel_size: int, stride: int, padding: str = "same", **options):
        super().__init__(kernel_size, strides=stride, padding=padding, use_bias=False, **options)

    def call(self, x):
        kernel = tf.cast(self.depthwise_kernel, self.compute_dtype)
        stride = self.strides[0]
        if self.padding == "same" and _prefers_products(x, kernel.shape[0], stride):
            return _same_depthwise(stride)(x, kernel)
        return tf.nn.depthwise_conv2d(x, kernel, [1, stride, stride, 1], self.padding.upper())


def _prefers_products(x: tf.Tensor, kernel_size: int, stride: int) -> bool:
    """Whether the gradient of a depthwise kernel on x, [B, H, W, C], is faster by matrix products, as measured."""
    height, width = x.shape[1:3]
    if height is None or width is None or on_tpu():
        return False
    outputs = math.ceil(height / stride) * math.ceil(width / stride)
    if outputs <= TINY_MAP:
        return True
    return kernel_size >= 5 and height * width * outputs <= MAX_POSITION_PAIRS


def _same_depthwise(stride: int):
    """Returns a depthwise convolution, (x, kernel) -> y, with "same" padding, whose kernel's gradient is products."""
    strides = [1, stride, stride, 1]

    @tf.custom_gradient
    def convolve(x, kernel):
        def gradient(upstream):
            input_gradient = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                input_sizes=tf.shape(x), filter=kernel, out_backprop=upstream, strides=strides, padding="SAME"
            )
            return input_gradient, kernel_gradient(x, upstream, kernel.shape[0], stride)

        return tf.nn.depthwise_conv2d(x, kernel, strides, "SAME"), gradient

    return convolve


def kernel_gradient(x: tf.Tensor, upstream: tf.Tensor, kernel_size: int, stride: int) -> tf.Tensor:
    """Returns the gradient of a depthwise kernel: x [B, H, W, C] and upstream [B, h, w, C] -> [k, k, C, 1].

    First x[b, p, c] * upstream[b, q, c] is summed over the batch for every input position p and output position q. Then
    each tap, a position in the kernel, adds up the pairs (p, q) that it connects.
    """
    _, height, width, channels = x.shape
    out_height, out_width = upstream.shape[1:3]
    inputs = height * width
    outputs = out_height * out_width
    x = tf.transpose(tf.reshape(x, [-1, inputs, channels]), [2, 1, 0])  # [C, p, B]
    upstream = tf.transpose(tf.reshape(upstream, [-1, outputs, channels]), [2, 0, 1])  # [C, B, q]
    products = tf.reshape(tf.matmul(x, upstream), [channels, inputs * outputs])
    rows = tap_connections(height, out_height, kernel_size, stride)  # [k, H, h]
    columns = tap_connections(width, out_width, kernel_size, stride)  # [k, W, w]
    # A tap (a, b) connects an input pixel (i, j) with an output pixel (o, p) if it connects their rows and columns.
    taps = np.einsum("aio,bjp->abijop", rows, columns).reshape(kernel_size**2, inputs * outputs)
    gradient = tf.matmul(tf.constant(taps, products.dtype), products, transpose_b=True)  # [k * k, C]
    return tf.reshape(gradient, [kernel_size, kernel_size, channels, 1])


def tap_connections(inputs: int, outputs: int, kernel_size: int, stride: int) -> np.ndarray:
    """Returns float32 [kernel_size, inputs, outputs]: 1 where a tap reads an input for an output in "same" padding."""
    padding = max((outputs - 1) * stride + kernel_size - inputs, 0) // 2
    connections = np.zeros((kernel_size, inputs, outputs), np.float32)
    for output in range(outputs):
        for tap in range(kernel_size):
            position = output * stride + tap - padding
            if 0 <= position < inputs:
                connections[tap, position, output] = 1
    return connections


TENSOR_CORES = (8, 0)  # compute capability from which NVIDIA's tensor cores multiply bfloat16
PRECISIONS = ("auto", "float32", "mixed_bfloat16", "bfloat16")


def dtype_policy(precision: str, tower: str) -> keras.mixed_precision.Policy:
    """Returns the Keras policy for the layers of an "image" or "text" `tower`; the process-wide policy stays as it is.

    "mixed_bfloat16" computes in bfloat16 with float32 weights. With "bfloat16", for exports, weights are bfloat16 too,
    which takes half the memory and no time for rounding. "auto" is "float32" or "mixed_bfloat16": the faster for this
    tower, this machine and the distribution strategy in scope. Raises `UserError` for another precision.
    """
    if precision not in PRECISIONS:
        raise UserError(f"Unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}.")
    if precision == "auto":
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        on_tensor_cores = on_gpu and compute_capability() >= TENSOR_CORES
        on_fast_processor = multiplies_bfloat16() and not on_gpu
        precision = fast_precision(tower, on_tpu() or on_tensor_cores, on_fast_processor)
    return keras.mixed_precision.Policy(precision)


def compute_capability() -> tuple[int, int]:
    """Returns the lowest compute capability, (major, minor), of the GPUs; (0, 0), the lowest, where it is unknown."""
    cards = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return min((card.get("compute_capability", (0, 0)) for card in cards), default=(0, 0))


def fast_precision(tower: str, on_matrix_unit: bool, on_fast_processor: bool) -> str:
    """Returns the precision that "auto" means: "mixed_bfloat16" only where it is faster, else "float32".

    A TPU's matrix unit and the tensor cores of NVIDIA's Ampere and later multiply bfloat16 (read, not measured). A fast
    processor, which `multiplies_bfloat16`, has slow convolutions in it, and all other processors emulate it.
    docs/speed.md has the measurements. `tower` is "image" or "text".
    """
    if on_matrix_unit or (on_fast_processor and tower == "text"):
        return "mixed_bfloat16"
    return "float32"


@functools.cache
def multiplies_bfloat16(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Whether the processor multiplies bfloat16 faster than float32; `False` where the system does not say.

    AMX and AMD's `avx512_bf16` are faster than float32; Intel's `avx512_bf16` without AMX is slower.
    """
    try:
        words = pathlib.Path(cpuinfo).read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return "amx_bf16" in words or ("avx512_bf16" in words and "AuthenticAMD" in words)
