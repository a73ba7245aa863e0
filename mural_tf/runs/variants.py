"""Smaller variants of a trained model's encoders, with what they save and what they cost."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.images import prepare_image, unit_range
from mural_tf.errors import UserError
from mural_tf.evaluation.retrieval import measure_retrieval
from mural_tf.export.saved_model import in_precision
from mural_tf.export.tflite import KINDS, LiteEncoder, convert_image_encoder, convert_text_encoder
from mural_tf.files import whole_folder
from mural_tf.training.checkpoints import load_trained

FOLDER = "tflite"
REPORT = "report.json"


def export_variants(
    workdir: str | pathlib.Path,
    export: str | pathlib.Path,
    kinds: Sequence[str],
    checkpoint: str = "latest",
    languages: Sequence[str] | None = None,
) -> dict:
    """Writes `export/tflite/<encoder>_<kind>.tflite` and report.json, and returns the report.

    Args:
      workdir: whose checkpoint; its data (`data.directory`, `evaluation.split`) measures the recall.
      export: an export's folder; the sub-folder appears when it is complete.
      kinds: of `tflite.KINDS`; float32 is always measured too.
      checkpoint: "latest" or "best".
      languages: to measure in; None: all that the split holds.

    Raises:
      UserError: an unknown kind, an operation that TensorFlow Lite lacks, or a workdir or data that cannot be
        read.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise UserError(f"Unknown variants {', '.join(unknown) or '(none)'}: choose of {', '.join(KINDS)}.")
    model, tokenizer, config, _ = load_trained(workdir, checkpoint)
    model = in_precision(model, config, tokenizer.vocabulary_size)
    with whole_folder(pathlib.Path(export) / FOLDER) as partial:
        report = {}
        for kind in ("float32", *(kind for kind in KINDS[1:] if kind in kinds)):
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
