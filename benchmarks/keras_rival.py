"""MURAL-base as a plain Keras 3 program on JAX: its training step, lowered for a TPU; the side of `tpu_rival.py`.

    python -m benchmarks.keras_rival STEP.hlo --pairs=16    # jax and keras 3; no TensorFlow

[MURAL] (Jain et al., 2021) §3 with Keras' own layers and JAX' own random numbers: EfficientNet-B5 of keras.applications
at 289 pixels up to its last block, with its default stochastic depth 0.2; BERT-base on 64 tokens with 250,000 pieces
and dropout 0.1 in the places of ours; one head for captions and one for text pairs; both softmax losses, similarities
in float32 with the highest precision; LAMB with weight decay; towers in mixed_bfloat16. Images are uint8, and the old
weights and slots are donated.

What our step does besides: it knows which texts are the same, guards against steps that are not finite, reports
gradient norms and tallies of the data, has learning rates by group and warms them up, and adds token types. Ours also
computes BERT's last layer for [CLS] only, where this program computes it for all tokens.
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
from keras import layers

SIZES = {  # keras.applications' network, pixels of a side, layers of BERT, word pieces
    "base": ("EfficientNetB5", 289, 12, 250_000),
    "small": ("EfficientNetB0", 64, 2, 1_000),
}
TOKENS = 64
HIDDEN = 768
HEADS = 12
DROPOUT = 0.1
EPSILON = 1e-12  # of layer normalisation
TEXT_TEXT_WEIGHT = 0.1
TEXT_TEXT_TEMPERATURE = 0.01
TEXT_TEXT_MARGIN = 0.3


def image_encoder(network: str, pixels: int) -> keras.Model:
    """Returns the image tower: float [B, pixels, pixels, 3] in 0..255 -> float32 [B, width of the last block].

    `network` is the name of an EfficientNet in `keras.applications`, which normalises the pixels itself.
    """
    whole = getattr(keras.applications, network)(include_top=False, weights=None, input_shape=(pixels, pixels, 3))
    last_block = whole.get_layer("top_conv").input
    pooled = layers.GlobalAveragePooling2D(dtype="float32")(last_block)
    return keras.Model(whole.input, pooled, name="image_encoder")


class PositionEmbeddings(layers.Layer):
    """Adds a learned vector to each position: [B, T, hidden] -> [B, T, hidden]."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="random_normal", name="table")

    def call(self, x):
        return x + self.table


def text_encoder(count: int, pieces: int) -> keras.Model:
    """Returns BERT: ids int32 [B, TOKENS], in which 0 is padding -> float32 [B, HIDDEN], the state of [CLS].

    `count` is the number of layers, and `pieces` the size of the vocabulary.
    """
    word_ids = keras.Input((TOKENS,), dtype="int32")
    mask = keras.ops.expand_dims(keras.ops.not_equal(word_ids, 0), 1)  # [B, 1, T]
    x = layers.Embedding(pieces, HIDDEN)(word_ids)
    x = PositionEmbeddings()(x)
    x = layers.LayerNormalization(epsilon=EPSILON)(x)
    x = layers.Dropout(DROPOUT)(x)
    for _ in range(count):
        x = transformer_layer(x, mask)
    cls_state = layers.Lambda(lambda states: states[:, 0], dtype="float32")(x)
    return keras.Model(word_ids, cls_state, name="text_encoder")


def transformer_layer(x, mask):
    """Returns the states after a layer of BERT, [B, T, HIDDEN], from states `x` and a mask, bool [B, 1, T]."""
    attended = layers.MultiHeadAttention(HEADS, HIDDEN // HEADS, dropout=DROPOUT)(x, x, attention_mask=mask)
    attended = layers.Dropout(DROPOUT)(attended)
    x = layers.LayerNormalization(epsilon=EPSILON)(x + attended)
    y = layers.Dense(4 * HIDDEN, activation="gelu")(x)
    y = layers.Dense(HIDDEN)(y)
    y = layers.Dropout(DROPOUT)(y)
    return layers.LayerNormalization(epsilon=EPSILON)(x + y)


class Mural(keras.Model):
    """Both towers, the text heads and the learned temperature; its output is the weighted loss of a batch.

    Args:
      size: the sizes of the towers, a name in `SIZES`.
    """

    def __init__(self, size: str):
        super().__init__()
        network, pixels, count, pieces = SIZES[size]
        self.pixels = pixels
        self.image_encoder = image_encoder(network, pixels)
        self.text_encoder = text_encoder(count, pieces)
        width = self.image_encoder.output_shape[-1]
        self.image_text_head = layers.Dense(width, dtype="float32")
        self.text_text_head = layers.Dense(width, dtype="float32")
        start = keras.initializers.Constant(1.0)
        self.temperature = self.add_weight(shape=(), initializer=start, dtype="float32", name="temperature")

    def call(self, batch, training=None):
        """Returns [MURAL] Eq. 1, a float32 scalar.

        Args:
          batch: (images, captions, first texts, second texts): uint8 [N, S, S, 3] and int32 [N, TOKENS] each.
          training: whether dropout draws and BatchNorm uses the batch's statistics.
        """
        images, captions, texts_a, texts_b = batch
        count = captions.shape[0]
        image_vectors = self.image_encoder(keras.ops.cast(images, "float32"), training=training)
        states = self.text_encoder(keras.ops.concatenate([captions, texts_a, texts_b]), training=training)
        caption_vectors = self.image_text_head(states[:count])
        text_vectors = self.text_text_head(states[count:])
        image_text = matching_loss(image_vectors, caption_vectors, self.temperature.value)
        text_text = matching_loss(
            text_vectors[:count], text_vectors[count:], TEXT_TEXT_TEMPERATURE, margin=TEXT_TEXT_MARGIN
        )
        return image_text + TEXT_TEXT_WEIGHT * text_text


def matching_loss(left, right, temperature, margin: float = 0.0):
    """Returns the softmax loss of N pairs in both directions, [MURAL] Eq. 2, a float32 scalar.

    Args:
      left, right: float32 [N, D]; row i of both is a pair.
      temperature: a scalar above 0 that divides the cosines.
      margin: subtracted from the pairs' cosines.
    """
    left = left / jnp.linalg.norm(left, axis=1, keepdims=True)
    right = right / jnp.linalg.norm(right, axis=1, keepdims=True)
    cosines = jnp.matmul(left, right.T, precision="highest")  # [N, N]
    logits = (cosines - margin * jnp.eye(len(cosines))) / temperature
    left_to_right = -jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits, axis=1)))
    right_to_left = -jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits, axis=0)))
    return left_to_right + right_to_left


def example(pixels: int, pairs: int) -> tuple:
    """Returns the shapes and types of a batch as `Mural.call` takes it, with `pairs` images and as many text pairs."""
    texts = jax.ShapeDtypeStruct((pairs, TOKENS), jnp.int32)
    return (jax.ShapeDtypeStruct((pairs, pixels, pixels, 3), jnp.uint8), texts, texts, texts)


def shapes_of(variables) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes and types of variables."""
    return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]


def lower_step(size: str, pairs: int) -> bytes:
    """Returns the serialized HLO module of a training step for a TPU.

    Args:
      size: one of SIZES.
      pairs: images with captions, and as many text pairs.
    """
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = Mural(size)
    # Both towers are built; a batch of two builds the heads without compiling anything.
    jax.eval_shape(lambda batch: model(batch, training=False), example(model.pixels, 2))
    # As `mural_lite/config.py` has it.
    optimizer = keras.optimizers.Lamb(1e-3, epsilon=1e-6, weight_decay=1e-5)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "temperature"])
    optimizer.build(model.trainable_variables)

    def loss_of(weights, statistics, batch):
        """Returns (the loss, the new statistics of BatchNorm and random numbers)."""
        return model.stateless_call(weights, statistics, batch, training=True)

    def step(weights, statistics, slots, batch):
        """Returns (the loss, new weights, new statistics, new slots of the optimiser)."""
        (loss, new_statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, statistics, batch)
        with jax.named_scope("optimizer"):
            new_weights, new_slots = optimizer.stateless_apply(slots, gradients, weights)
        return loss, new_weights, new_statistics, new_slots

    weights = shapes_of(model.trainable_variables)
    statistics = shapes_of(model.non_trainable_variables)
    slots = shapes_of(optimizer.variables)
    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    traced = compiled.trace(weights, statistics, slots, example(model.pixels, pairs))
    lowered = traced.lower(lowering_platforms=("tpu",))
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def main() -> None:
    """Writes the module of the step that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=pathlib.Path, help="file to write: a serialized HLO module")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--size", choices=SIZES, default="base")
    arguments = parser.parse_args()
    arguments.module.write_bytes(lower_step(arguments.size, arguments.pairs))


if __name__ == "__main__":
    main()
