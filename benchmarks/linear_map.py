"""A linear map from a student's vectors of texts to a teacher's, beside the bridge's depths.

    python -m benchmarks.linear_map STUDENT TEACHER DATA

Ridge regression with an offset on the texts that the bridge knows, English alone and with pairs; the penalty is the one
that dev prefers. Prints the mean recall on test, images by the teacher.
"""

from __future__ import annotations

import statistics
import sys

import numpy as np

import mural_tf
from mural_tf.data import records
from mural_tf.data.datasets.emoji import UNDER_RESOURCED, WELL_RESOURCED
from mural_tf.evaluation.retrieval import measure_retrieval

PENALTIES = (1e-3, 1e-1, 1.0, 10.0, 100.0)


class Mapped:
    """An embedder of the teacher's images and the student's texts."""

    def __init__(self, student, teacher, weights: np.ndarray):
        self.student, self.weights, self.encode_image = student, weights, teacher.encode_image
        self.config, self.path, self.step = teacher.config, "", 0

    def encode_text(self, texts, **options) -> np.ndarray:
        found = with_offset(self.student.encode_text(texts, **options)) @ self.weights
        return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def with_offset(vectors: np.ndarray) -> np.ndarray:
    """Returns [N, D + 1], the last column of ones."""
    return np.concatenate([vectors, np.ones_like(vectors[:, :1])], axis=1)


def known_texts(data: str) -> dict[str, list[tuple[str, str]]]:
    """Returns (text, the English text whose vector it is taught), each once: English alone, and with pairs."""
    english, translated = set(), set()
    for record in records.read_records(data, records.IMAGE_TEXT, "train"):
        english |= {(text, text) for text, name in zip(record.captions, record.languages) if name == "en"}
    for record in records.read_records(data, records.TEXT_PAIRS, "train"):
        sides = {record.language_a: record.text_a, record.language_b: record.text_b}
        if "en" in sides:
            text = sides.pop("en")
            english.add((text, text))
            translated |= {(other, text) for other in sides.values()}
    return {"English texts": sorted(english), "pairs": sorted(english | translated)}


def main(student: str, teacher: str, data: str) -> None:
    student, teacher = mural_tf.load(student), mural_tf.load(teacher)
    for name, known in known_texts(data).items():
        sides = (student.encode_text([text for text, _ in known]), teacher.encode_text([text for _, text in known]))
        inputs, found = with_offset(sides[0]), []
        for penalty in PENALTIES:
            square = inputs.T @ inputs + penalty * np.eye(inputs.shape[1])
            mapped = Mapped(student, teacher, np.linalg.solve(square, inputs.T @ sides[1]))
            found.append((measure_retrieval(mapped, data, "dev").metrics["retrieval/all/mean_recall"], penalty, mapped))
        metrics = measure_retrieval(max(found, key=lambda one: one[0])[2], data, "test").metrics
        means = [
            statistics.mean(metrics[f"retrieval/{language}/mean_recall"] for language in group)
            for group in (WELL_RESOURCED, UNDER_RESOURCED, ("en",))
        ]
        print(f"{name}: {len(known):,} texts; nine, sixteen, English: {', '.join(f'{mean:.1f}' for mean in means)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
