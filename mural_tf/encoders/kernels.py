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
    """Inside, everything is built and traced as for a TPU, on a machine without a TPU."""
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
    """Sets whether chains are compiled in functions traced from now on; returns the setting before.

    "auto": on CPUs, where it was measured. A GPU has fused kernels of its own for most of them, and each new shape
    costs a compilation. `tf.debugging.enable_check_numerics` cannot look into compiled functions and fails on them:
    turn it "off" before. Raises `UserError` for anything else.
    """
    global _fusion
    if fusion not in FUSION:
        raise UserError(f"Unknown train.fused={fusion!r}: expected one of {', '.join(FUSION)}.")
    before = _fusion
    _fusion = fusion
    return before


def compiles_fused() -> bool:
    """Returns whether chains are compiled here and now: never on a TPU, where the whole step is."""
    if on_tpu():
        return False
    if _fusion == "auto":
        return not tf.config.list_logical_devices("GPU")
    return _fusion == "on"


in_one_loop = functools.partial(tf.function, jit_compile=True, autograph=False)


def compile_first_quietly() -> None:
    """Compiles something small; TensorFlow 2.15 says on stderr when a process first does, at any log level."""
    with without_noise():
        add_one = in_one_loop(lambda x: x + 1.0)
        add_one(tf.constant(0.0))


def fused(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns `function` with a keyword `training`: when `True`, it and its gradient run as one compiled loop each.

    `function` maps float tensors to one tensor and must be differentiable in each of them and free of randomness
    and variables. Each new shape is compiled once, some tens of milliseconds.
    """

    @functools.cache
    def compiled(*signature):
        """New functions for every signature; a shared one would warn of retracing."""

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
    def run(*inputs):
        signature = [(x.dtype, tuple(x.shape)) for x in inputs]
        forward, backward = compiled(*signature)
        return forward(*inputs), lambda upstream: backward(inputs, upstream)

    @functools.wraps(function)
    def call(*inputs, training=False):
        if training is True and compiles_fused():
            return run(*inputs)
        return function(*inputs)

    return call


# BERT's cheap functions (Devlin et al., 2019).
LAYER_NORM_EPSILON = 1e-12
MASKED = -1e9  # added to the attention logits of padding


@fused
def gelu(x: tf.Tensor) -> tf.Tensor:
    """x times the standard normal's distribution function at x (exact, by erf)."""
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


@fused
def gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    """GELU by a hyperbolic tangent (Hendrycks and Gimpel, 2016, section 2), as big_vision's models have it."""
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


@fused
def quick_gelu(x: tf.Tensor) -> tf.Tensor:
    """GELU by a sigmoid, x sigmoid(1.702 x) (the same), as OpenAI's CLIP has it."""
    return x * tf.sigmoid(1.702 * x)


@fused
def silu(x: tf.Tensor) -> tf.Tensor:
    """x sigmoid(x) (Hendrycks and Gimpel, 2016), in the gates of smaller ModernBERTs."""
    return x * tf.sigmoid(x)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu, "silu": silu}


@functools.cache
def layer_norm(epsilon: float) -> Callable[..., tf.Tensor]:
    """Returns the fused function of one or two tensors, gamma and beta that normalises the sum over the last axis.

    It computes in float32, as gamma and beta are, for any dtype of the tensors.
    """

    @fused
    def add_and_normalize(*inputs):
        *terms, gamma, beta = inputs
        total = tf.cast(sum(terms[1:], terms[0]), tf.float32)
        centred = total - tf.reduce_mean(total, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        return tf.cast(centred * tf.math.rsqrt(variance + epsilon) * gamma + beta, terms[0].dtype)

    return add_and_normalize


def softmax(logits: tf.Tensor, *mask: tf.Tensor, training=False) -> tf.Tensor:
    """Returns attention weights: the softmax over the last axis of [B, heads, Q, T], over tokens that are in each mask.

    A mask, 1 or 0, is [B, T], or [B, Q, T] where each query has its own; without masks all tokens count.

    In float32; where nothing is compiled TensorFlow's own kernel does that inside, and a pass over memory is saved.
    """
    if training or not compiles_fused():
        return _softmax_in_float32(logits, *mask, training=training)
    return tf.nn.softmax(_masked(logits, *mask))


@fused
def _softmax_in_float32(logits, *mask):
    masked = _masked(tf.cast(logits, tf.float32), *mask)
    return tf.cast(tf.nn.softmax(masked), logits.dtype)


def _masked(logits, *mask):
    """Returns the logits with `MASKED` added where a mask, [B, T] or [B, Q, T], is 0."""
    for token_mask in mask:
        for_queries = token_mask if token_mask.shape.rank == 3 else tf.expand_dims(token_mask, 1)
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
    """A depthwise convolution without bias: [B, H, W, C] -> with "same" padding [B, H / stride, W / stride, C]."""

    def __init__(self, kernel_size: int, stride: int, padding: str = "same", **options):
        super().__init__(kernel_size, strides=stride, padding=padding, use_bias=False, **options)

    def call(self, x):
        kernel = tf.cast(self.depthwise_kernel, self.compute_dtype)
        stride = self.strides[0]
        if self.padding == "same" and _prefers_products(x, kernel.shape[0], stride):
            return _same_depthwise(stride)(x, kernel)
        return tf.nn.depthwise_conv2d(x, kernel, [1, stride, stride, 1], self.padding.upper())


def _prefers_products(x: tf.Tensor, kernel_size: int, stride: int) -> bool:
    """Whether matrix products take the gradient of a depthwise kernel on x, [B, H, W, C], faster."""
    if None in x.shape[1:3] or on_tpu():
        return False
    inputs = x.shape[1] * x.shape[2]
    outputs = -(-x.shape[1] // stride) * -(-x.shape[2] // stride)
    if kernel_size < 5:
        return outputs <= TINY_MAP
    return outputs <= TINY_MAP or inputs * outputs <= MAX_POSITION_PAIRS


def _same_depthwise(stride: int):
    """Returns a depthwise convolution with "same" padding; matrix products over the batch make its kernel gradient."""
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

    Sums x[b, p, c] * upstream[b, q, c] over the batch for every input position p and output position q, then adds
    up, for each kernel tap, the pairs (p, q) that this tap connects.
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
    taps = np.einsum("aio,bjp->abijop", rows, columns).reshape(kernel_size**2, inputs * outputs)
    gradient = tf.matmul(tf.constant(taps, products.dtype), products, transpose_b=True)  # [k * k, C]
    return tf.reshape(gradient, [kernel_size, kernel_size, channels, 1])


def tap_connections(inputs: int, outputs: int, kernel_size: int, stride: int) -> np.ndarray:
    """Returns [k, inputs, outputs], 1 where the tap reads that input for that output under "same" padding."""
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
    """Returns the Keras policy of the name `precision`: "mixed_bfloat16" computes in bfloat16 with float32 weights.

    With "bfloat16", for exports, weights are bfloat16 too: they take half the memory and no time to be rounded.

    `tower` is "image" or "text"; "auto" depends on it, on this machine and on the distribution strategy in scope. The
    policy is set layer by layer, so that the process-wide Keras policy stays untouched.
    Raises `UserError` for any other name.
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
    """Returns the lowest compute capability, (major, minor), of this machine's cards; (0, 0) for cards without it."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return min((detail.get("compute_capability", (0, 0)) for detail in details), default=(0, 0))


def fast_precision(tower: str, on_matrix_unit: bool, on_fast_processor: bool) -> str:
    """Returns the precision of "auto": bfloat16 only where products are faster in it.

    A TPU's matrix unit and the tensor cores of NVIDIA's Ampere and later multiply bfloat16 (read, not measured); on
    processors whose products are fast in it (see `multiplies_bfloat16`) convolutions are not, and all others emulate
    it. docs/speed.md has the measurements.
    """
    if on_matrix_unit or (on_fast_processor and tower == "text"):
        return "mixed_bfloat16"
    return "float32"


@functools.cache
def multiplies_bfloat16(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Whether the processor's bfloat16 products are faster than float32; `False` where the system does not say.

    They are with AMX, and with `avx512_bf16` of AMD; with Intel's `avx512_bf16` but without AMX float32 is faster.
    """
    try:
        words = pathlib.Path(cpuinfo).read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return "amx_bf16" in words or ("avx512_bf16" in words and "AuthenticAMD" in words)
