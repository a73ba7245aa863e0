"""Which model an index belongs to, told by what the model does: its vectors of a few fixed texts and pictures.

A hash of files would call a workdir, its export and the same weights on another machine three models. Vectors of
two models that agree on every probe can be searched with each other, and those of others cannot.
"""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from mural_tf.config import ConfigurationError
from mural_tf.data.image_inputs import uses_features

TEXTS = ("a red balloon", "Zwei Hunde im Schnee", "赤い風船", "نجمة زرقاء", "moyo mwekundu", "नीला तारा", "")
# 1 - cosine that rounding, another machine or a lower precision may cost; other weights cost more.
TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """`probes`: float32 [P, D], the vectors of the probes. `path`, `step`: where the model was loaded from."""

    probes: np.ndarray
    path: str = ""
    step: int | None = None

    @property
    def identity(self) -> str:
        """Twelve hexadecimal digits to show to people; `distance` is what decides."""
        return hashlib.sha256(np.round(self.probes, 2).astype("<f4").tobytes()).hexdigest()[:12]

    def __str__(self) -> str:
        return self.identity

    def distance(self, other: Fingerprint) -> float:
        """Returns the largest 1 - cosine of two models' vectors of a probe; 2 if their sizes differ."""
        if self.probes.shape != other.probes.shape:
            return 2.0
        norms = np.linalg.norm(self.probes, axis=1) * np.linalg.norm(other.probes, axis=1)
        return float(np.max(1.0 - np.sum(self.probes * other.probes, axis=1) / np.maximum(norms, 1e-12)))

    def check(self, other: Fingerprint, what: str) -> None:
        """Raises `ConfigurationError` if `other` is not the model that made `what`."""
        distance = self.distance(other)
        if not distance <= TOLERANCE:
            raise ConfigurationError(
                f"{what} was made by the model {self.describe()}, not by {other.describe()}: their vectors differ by "
                f"1 - cosine = {distance:.2g}. Use that model, or index again with this one."
            )

    def describe(self) -> str:
        """Returns where the model was, for messages."""
        step = f" at step {self.step}" if self.step is not None else ""
        return f"{self.path or '(in memory)'}{step} [{self.identity}]"


def take(embedder) -> Fingerprint:
    """Encodes the probes with anything that has `encode_text` and `encode_image`."""
    probes = embedder.encode_text(list(TEXTS))
    tower = embedder.config.image_tower if hasattr(embedder, "config") else None
    if tower is None or tower.name != "none":  # a model of texts alone
        images = _features(tower.feature_size) if tower is not None and uses_features(tower) else _pictures()
        probes = np.concatenate([probes, embedder.encode_image(images)])
    probes = probes.astype(np.float32)
    return Fingerprint(probes, str(getattr(embedder, "path", "")), getattr(embedder, "step", None))


def _features(size: int) -> list[bytes]:
    """Two fixed records of a model that takes features in place of pictures."""
    return [row.astype("<f4").tobytes() for row in np.random.default_rng(0).standard_normal((2, size))]


def _pictures() -> list[np.ndarray]:
    """A colour gradient and a disc on white, uint8 [64, 64, 3]."""
    line = np.arange(64)
    x, y = np.meshgrid(line, line)
    gradient = np.stack([4 * x, 4 * y, 255 - 2 * x - 2 * y], axis=-1)
    inside = ((x - 31.5) ** 2 + (y - 31.5) ** 2 < 24**2)[..., None]
    disc = np.where(inside, [220, 30, 40], [255, 255, 255])
    return [gradient.astype(np.uint8), disc.astype(np.uint8)]
