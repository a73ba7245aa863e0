"""The two encoders as files of TensorFlow Lite (LiteRT), float32: from pixels and ids to L2-normalised vectors.

    image   `image` float32 [1, S, S, 3] RGB in [0, 1], or features [1, F] → `embedding` float32 [1, D]
    text    `input_word_ids`, `input_mask`, `input_type_ids` int32 [1, T] → `embedding`, and `<head>_embedding` of each
            further head

T is free: the program that runs the encoder resizes its inputs to the text, up to the tower's length. A tower that
attends to padding takes only that length. Bytes and strings stay outside, see `mural_lite/litert/`: TensorFlow Lite
has no DecodeImage and none of the tokenizers' operations.
"""

from __future__ import annotations

import re

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.backend import without_noise
from mural_tf.encoders.layers import unit_range
from mural_tf.export.int8 import without_copies
from mural_tf.export.signatures import fold_batch_norm, text_variables
from mural_tf.models.dual_encoder import DualEncoder, image_embeddings
from mural_tf.text.tokens import TOKENS


def convert_image_encoder(model: DualEncoder) -> bytes:
    """Returns a model's image encoder as a file of TensorFlow Lite (see the module).

    Raises `UserError` if TensorFlow Lite lacks operations that the encoder needs, and names them.
    """
    tower = fold_batch_norm(model.image_encoder)

    @tf.function(input_signature=[tf.TensorSpec([1, *model.image_shape], tf.float32, name="image")], autograph=False)
    def embed(image):
        return {"embedding": image_embeddings(tower, unit_range(image))}

    return _convert(embed, tower.variables, "image encoder")


def convert_text_encoder(model: DualEncoder, max_length: int) -> bytes:
    """Returns a model's text encoder with all heads as a file of TensorFlow Lite; raises as `convert_image_encoder`.

    `max_length` is the tower's length in tokens; a tower that attends to padding takes only texts padded to it.
    """
    length = None  # any
    if getattr(model.text_encoder, "attends_to_padding", False):
        length = max_length

    @tf.function(input_signature=[tf.TensorSpec([1, length], tf.int32, name=name) for name in TOKENS], autograph=False)
    def embed(input_word_ids, input_mask, input_type_ids):
        """Returns {output: float32 [1, D]} for all heads."""
        tokens = dict(zip(TOKENS, (input_word_ids, input_mask, input_type_ids)))
        states = model.text_encoder(tokens, training=False)
        first_head, *further_heads = model.head_names
        head_of_output = {f"{head}_embedding": head for head in further_heads} | {"embedding": first_head}
        return {output: model.project_texts(states, head) for output, head in head_of_output.items()}

    return _convert(embed, text_variables(model), "text encoder")


def _convert(function, variables, name: str) -> bytes:
    """Returns a `tf.function` with its input signature, and the variables it uses, as a file of TensorFlow Lite.

    Raises `UserError` with the operations that TensorFlow Lite lacks; `name` is the encoder's in the message.
    """
    module = tf.Module()  # holds only the variables: a Keras model would be saved with every layer's functions
    module.model_variables = list(variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], module)
    try:
        with without_noise():
            return without_copies(converter.convert())
    except Exception as error:  # noqa: BLE001 - the converter's own class is not public
        operations = ", ".join(re.findall(r"(?:TF Select|Custom) ops: (.+)", str(error)))
        if not operations:
            raise
        raise UserError(f"TensorFlow Lite has no {operations}, which this {name} needs.") from None
