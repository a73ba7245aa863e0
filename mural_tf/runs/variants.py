"""Smaller variants of a trained model's encoders for TensorFlow Lite, with what they save and what they cost.

Weights are float16 or int8, embeddings still float32:

    float32    as exported; to compare with
    float16    half the size; weights are unpacked to float32 (on a GPU computed in float16)
    int8       a quarter; weights of convolutions, products and tables in int8 with a scale per channel, activations
               float32 or, in products, quantised on the fly ("dynamic range")

TensorFlow Lite's own operations cover both encoders from decoded images and tokens on, with fixed shapes: one image
[1, S, S, 3], one text [1, T]. Raw bytes and strings stay outside: it has no DecodeImage, and lacks the tokenizer's
WordpieceTokenizeWithOffsets, LookupTableFindV2, UnicodeTranscode, StaticRegexReplace, StringSplitV2, StringStrip,
Substr, RaggedGather, RaggedRange and RaggedTensorToTensor. Fully quantised activations are left out: they need examples
to calibrate on.
"""

from __future__ import annotations

import json
import pathlib
import re
import time
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.images import prepare_image
from mural_tf.encoders.layers import unit_range
from mural_tf.errors import UserError
from mural_tf.evaluation.retrieval import measure_retrieval
from mural_tf.export.saved_model import in_precision
from mural_tf.files import as_path, whole_folder
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.progress import tell
from mural_tf.remote_folders import local_copy
from mural_tf.text.tokens import TOKENS
from mural_tf.training.trained_model import load_trained

KINDS = ("float32", "float16", "int8")
FOLDER = "tflite"
REPORT = "report.json"


def export_variants(
    workdir: str | pathlib.Path,
    export: str | pathlib.Path,
    kinds: Sequence[str],
    checkpoint: str = "result",
    languages: Sequence[str] | None = None,
) -> dict:
    """Writes `export/tflite/<encoder>_<kind>.tflite` and report.json, and returns the report.

    Args:
      workdir: whose checkpoint; its data (`data.directory`, `evaluation.split`) measures the recall.
      export: an export's folder; the sub-folder appears when it is complete.
      kinds: of `KINDS`; float32 is always measured too.
      checkpoint: "result", "latest" or "best".
      languages: to measure in; None: all that the split holds.

    Raises:
      UserError: an unknown kind, an operation that TensorFlow Lite lacks, or a workdir or data that cannot be
        read.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise UserError(f"Unknown variants {', '.join(unknown) or '(none)'}: choose of {', '.join(KINDS)}.")
    model, tokenizer, config, _ = load_trained(local_copy(workdir), checkpoint)
    model = in_precision(model, config, tokenizer.vocabulary_size)
    with whole_folder(as_path(export) / FOLDER, REPORT) as partial:
        report = {}
        for kind in ("float32", *(kind for kind in KINDS[1:] if kind in kinds)):
            tell(f"Converting to {kind} and measuring …")
            contents = {
                "image_encoder": convert_image_encoder(model, kind),
                "text_encoder": convert_text_encoder(model, tokenizer.max_length, kind),
            }
            report[kind] = measure(contents, tokenizer, config, languages)
            if kind in kinds:
                for name, content in contents.items():
                    (partial / f"{name}_{kind}.tflite").write_bytes(content)
        for row in report.values():
            row["mean_recall_lost"] = report["float32"]["mean_recall"] - row["mean_recall"]
        (partial / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def measure(contents: dict[str, bytes], tokenizer, config: ConfigDict, languages: Sequence[str] | None) -> dict:
    """Returns sizes in bytes, milliseconds an item on one thread, and the mean recall over all languages."""
    embedder = LiteEmbedder(contents["image_encoder"], contents["text_encoder"], tokenizer, config)
    metrics = measure_retrieval(embedder, config.data.directory, config.evaluation.split, languages).metrics
    return {
        "bytes": {name: len(content) for name, content in contents.items()},
        "milliseconds": {name: 1000.0 * embedder.seconds[name] / embedder.items[name] for name in contents},
        "mean_recall": metrics["retrieval/all/mean_recall"],
    }


def convert_image_encoder(model: DualEncoder, kind: str) -> bytes:
    """Returns a model float32 [1, S, S, 3] RGB in [0, 1] `image` → float32 [1, D], L2-normalised.

    Raises `UserError` with the operation that TensorFlow Lite lacks.
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
        details = self._interpreter.get_input_details()  # "image" or "serving_default_image:0": as converters call it
        self._inputs = {one["name"].removeprefix("serving_default_").split(":")[0]: one["index"] for one in details}
        self._output = self._interpreter.get_output_details()[0]["index"]

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        """Maps arrays [B, …] to float32 [B, D]."""
        rows = []
        for i in range(len(next(iter(inputs.values())))):
            for name, values in inputs.items():
                self._interpreter.set_tensor(self._inputs[name], values[i : i + 1])
            self._interpreter.invoke()
            rows.append(self._interpreter.get_tensor(self._output)[0])
        return np.array(rows, np.float32)


class LiteEmbedder:
    """What evaluators know of an `Embedder`, over two converted encoders; counts the time spent in them."""

    def __init__(self, image_encoder: bytes, text_encoder: bytes, tokenizer, config: ConfigDict):
        self._encoders = {"image_encoder": LiteEncoder(image_encoder), "text_encoder": LiteEncoder(text_encoder)}
        self._tokenizer, self._tower = tokenizer, config.image_tower
        self.seconds, self.items = dict.fromkeys(self._encoders, 0.0), dict.fromkeys(self._encoders, 0)

    def encode_image(self, images: Iterable[bytes], on_error: str = "skip", **_) -> tuple[np.ndarray, np.ndarray]:
        """Returns [K, D] of the images that decode, and their places."""
        rows, kept = [], []
        for i, data in enumerate(images):
            try:
                image = prepare_image(data, self._tower)
            except tf.errors.InvalidArgumentError:
                continue
            rows.append(self._run("image_encoder", image=unit_range(image)[tf.newaxis].numpy()))
            kept.append(i)
        return np.concatenate(rows) if rows else np.zeros([0, 0], np.float32), np.array(kept, np.int64)

    def encode_text(self, texts: Sequence[str], **_) -> np.ndarray:
        """Returns [N, D]."""
        tokens = {name: ids.numpy() for name, ids in self._tokenizer(tf.constant(list(texts))).items()}
        return self._run("text_encoder", **tokens)

    def _run(self, name: str, **inputs) -> np.ndarray:
        start = time.perf_counter()
        rows = self._encoders[name](**inputs)
        self.seconds[name] += time.perf_counter() - start
        self.items[name] += len(rows)
        return rows


def describe(report: dict) -> str:
    """Returns the report as a table."""
    lines = ["variant   image MB  text MB  ms/image  ms/text  mean recall   lost"]
    for kind, row in report.items():
        sizes = [row["bytes"][name] / 1e6 for name in ("image_encoder", "text_encoder")]
        times = [row["milliseconds"][name] for name in ("image_encoder", "text_encoder")]
        lines.append(
            f"{kind:9} {sizes[0]:8.2f} {sizes[1]:8.2f} {times[0]:9.2f} {times[1]:8.2f} {row['mean_recall']:12.2f} "
            f"{row['mean_recall_lost']:6.2f}"
        )
    return "\n".join(lines)
