"""Times our image tower against Keras' own EfficientNet of the same size: forward and backward, same inputs.

    python -m benchmarks.image_tower --size=B0 --batch=16 --pixels=128
    python -m benchmarks.image_tower --width=0.5 --depth=0.5 --batch=256 --pixels=48

Both end before the top convolution, hold the same weights and run in training mode (BatchNorm statistics updated,
gradients of every variable). Rounds alternate between the two, so that a busy machine slows both alike; the ratios
are medians of the rounds' ratios. Processor time counts all threads and is the steadier of the two on a busy machine.
"""

from __future__ import annotations

import inspect
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from mural_tf.backend import keras
from mural_tf.config import base_config
from mural_tf.encoders import build_image_encoder
from mural_tf.encoders.efficientnet import COEFFICIENTS

FLAGS = flags.FLAGS
flags.DEFINE_enum("size", "B0", sorted(COEFFICIENTS), "Published size; --width and --depth override it.")
flags.DEFINE_float("width", None, "Width coefficient.")
flags.DEFINE_float("depth", None, "Depth coefficient.")
flags.DEFINE_integer("batch", 16, "Images a step.")
flags.DEFINE_integer("pixels", 128, "Side of the square images.")
flags.DEFINE_integer("rounds", 10, "Timed steps of each.")
flags.DEFINE_float("drop_connect", 0.2, "Stochastic depth of both.")


def keras_tower(width: float, depth: float, drop_connect_rate: float) -> keras.Model:
    """Returns Keras' EfficientNet up to the last block, averaged over space; images in [0, 255]."""
    # Keras exports the published sizes only; the function of any size stands beside them.
    any_size = inspect.getmodule(keras.applications.EfficientNetB0).EfficientNet
    full = any_size(
        width, depth, default_size=224, drop_connect_rate=drop_connect_rate, include_top=False, weights=None
    )
    last = [layer for layer in full.layers if layer.name.startswith("block7")][-1]
    return keras.Model(full.input, keras.layers.GlobalAveragePooling2D()(last.output))


def train_step(model: keras.Model, images: tf.Tensor):
    """Returns a compiled function of one forward and backward pass, without an optimiser."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        return loss, tf.linalg.global_norm(gradients)

    return step


def milliseconds(step) -> tuple[float, float]:
    """Returns (elapsed, processor) time of one call that waits for its result."""
    start, start_processor = time.perf_counter(), time.process_time()
    loss, _ = step()
    loss.numpy()
    return 1000 * (time.perf_counter() - start), 1000 * (time.process_time() - start_processor)


def main(_) -> None:
    width, depth = COEFFICIENTS[FLAGS.size]
    width = FLAGS.width if FLAGS.width is not None else width
    depth = FLAGS.depth if FLAGS.depth is not None else depth
    config = base_config().image_tower
    config.update(dict(width=width, depth=depth, drop_connect_rate=FLAGS.drop_connect))
    images = tf.random.stateless_uniform((FLAGS.batch, FLAGS.pixels, FLAGS.pixels, 3), seed=(0, 1))
    ours = train_step(build_image_encoder(config), images)
    keras = train_step(keras_tower(width, depth, FLAGS.drop_connect), images * 255.0)
    for step in (ours, keras, ours, keras):  # trace and warm up
        milliseconds(step)
    times = np.array([(milliseconds(ours), milliseconds(keras)) for _ in range(FLAGS.rounds)])  # [rounds, 2, 2]
    print(f"EfficientNet width {width} depth {depth}, batch {FLAGS.batch}, {FLAGS.pixels} x {FLAGS.pixels} pixels")
    print("ms a step                elapsed (fastest)   processor (fastest)")
    for name, (elapsed, processor) in zip(("ours", "Keras"), times.transpose(1, 2, 0)):
        cells = [f"{np.median(values):9.1f} ({values.min():7.1f})" for values in (elapsed, processor)]
        print(f"{name:20s}", *cells)
    ratios = times[:, 0] / times[:, 1]  # [rounds, 2]
    print(f"ours / Keras         {np.median(ratios[:, 0]):9.3f} {np.median(ratios[:, 1]):19.3f}")


if __name__ == "__main__":
    app.run(main)
