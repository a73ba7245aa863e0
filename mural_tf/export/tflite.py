"""Smaller encoders for TensorFlow Lite: weights in float16 or int8, embeddings still float32.

    float32    as exported; to compare with
    float16    half the size; weights are unpacked to float32 (on a GPU computed in float16)
    int8       a quarter; weights of convolutions, products and tables in int8 with a scale a channel, activations
               float32 or, in products, quantised on the fly ("dynamic range")

TensorFlow Lite's own operations cover both encoders from decoded images and tokens on, with fixed shapes: one image
[1, S, S, 3], one text [1, T]. Raw bytes and strings stay outside: it has no DecodeImage, and of the tokenizer none of
RegexSplitWithOffsets, WordpieceTokenizeWithOffsets, LookupTableFindV2, UnicodeTranscode, StaticRegexReplace,
StringStrip, Substr, RaggedGather, RaggedRange and RaggedTensorToTensor. Fully quantised activations are left out: they
need examples to calibrate on.
"""

from __future__ import annotations

import re

import numpy as np
import tensorflow as tf

from mural_tf.errors import UserError
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.text.word_pieces import TOKENS

KINDS = ("float32", "float16", "int8")


def convert_image_encoder(model: DualEncoder, kind: str) -> bytes:
    """Returns a model float32 [1, S, S, 3] RGB in [0, 1] `image` → float32 [1, D], L2-normalised.

    Raises `UserError` for an unknown kind, or with the operation that TensorFlow Lite lacks.
    """

    @tf.function(input_signature=[tf.TensorSpec([1, *model.image_shape], tf.float32, name="image")])
    def embed(image):
        return {"embedding": model.embed_images(image)}

    return _convert(embed, kind, "image encoder")


def convert_text_encoder(model: DualEncoder, length: int, kind: str) -> bytes:
    """Returns a model of int32 [1, length] tokens, named as everywhere → float32 [1, D], L2-normalised.

    Raises as `convert_image_encoder`.
    """

    @tf.function(input_signature=[tf.TensorSpec([1, length], tf.int32, name=name) for name in TOKENS])
    def embed(input_word_ids, input_mask, input_type_ids):
        tokens = dict(zip(TOKENS, (input_word_ids, input_mask, input_type_ids)))
        return {"embedding": model.embed_texts(tokens)}

    return _convert(embed, kind, "text encoder")


def _convert(function, kind: str, name: str) -> bytes:
    if kind not in KINDS:
        raise UserError(f"Unknown variant {kind!r}: expected one of {', '.join(KINDS)}.")
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], tf.Module())
    if kind != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "float16":
        converter.target_spec.supported_types = [tf.float16]
    try:
        return converter.convert()
    except Exception as error:  # noqa: BLE001 - the converter's own class is not public
        lacking = re.findall(r"TF Select ops: (.*)|Custom ops: (.*)", str(error))
        operations = ", ".join(part for parts in lacking for part in parts if part)
        if not operations:
            raise
        raise UserError(f"TensorFlow Lite has no {operations}, which this {name} needs.") from None


class LiteEncoder:
    """Runs a converted encoder on one thread, one example after the other."""

    def __init__(self, content: bytes):
        self._interpreter = tf.lite.Interpreter(model_content=content, num_threads=1)
        self._interpreter.allocate_tensors()
        # "image" or "serving_default_image:0", depending on the converter
        self._inputs = {_plain(details["name"]): details for details in self._interpreter.get_input_details()}
        self._output = self._interpreter.get_output_details()[0]["index"]

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        """Maps arrays [B, …] to float32 [B, D]."""
        count = len(next(iter(inputs.values())))
        rows = np.empty([count, self.embedding_size], np.float32)
        for i in range(count):
            for name, values in inputs.items():
                self._interpreter.set_tensor(self._inputs[name]["index"], values[i : i + 1])
            self._interpreter.invoke()
            rows[i] = self._interpreter.get_tensor(self._output)[0]
        return rows

    @property
    def embedding_size(self) -> int:
        """D."""
        return int(self._interpreter.get_output_details()[0]["shape"][-1])


def _plain(name: str) -> str:
    return name.removeprefix("serving_default_").split(":")[0]
