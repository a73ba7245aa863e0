"""Which model made vectors: a model is known by its vectors of a few fixed texts and pictures."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from mural_lite.errors import UserError

TEXTS = ("a red balloon", "Zwei Hunde im Schnee", "赤い風船", "نجمة زرقاء", "moyo mwekundu", "नीला तारा", "")
FEW = 2  # texts by which encoders that carry their model's probes show that they are the model's
# 1 - cosine that rounding, another machine or a lower precision may cost; other weights cost more.
TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Which model an index belongs to, known by the model's vectors of a few fixed texts and pictures.

    A hash of files would call a workdir, its export and the same weights on another machine three models. Vectors of
    two models that agree on every probe can be searched with each other, and other models' vectors cannot.
    """

    probes: np.ndarray  # float32 [P, D], the vectors of the probes, of `TEXTS` first
    path: str = ""  # the folder that the model was loaded from
    step: int | None = None  # the training step of its weights
    encoder: str = ""  # the name of smaller encoders of the model, see `models.encoder_of`; "" for the model's own

    @property
    def of_texts(self) -> np.ndarray:
        """The vectors of `TEXTS`, float32 [T, D]."""
        return self.probes[: len(TEXTS)]

    def __str__(self) -> str:
        """Twelve hexadecimal digits to show to people; `distance` is what decides."""
        rounded = np.round(self.probes, 2).astype("<f4")
        digest = hashlib.sha256(rounded.tobytes()).hexdigest()
        return digest[:12]

    def distance(self, other: Fingerprint, first: int = 0) -> float:
        """Returns the largest 1 - cosine of two models' vectors of a probe, or 2 if their shapes differ.

        `first`: the number of the first probe that counts; `len(TEXTS)` leaves the texts out.
        """
        if self.probes.shape != other.probes.shape:
            return 2.0  # as far as vectors can be
        ours = self.probes[first:]
        theirs = other.probes[first:]
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)  # [P]
        cosines = np.sum(ours * theirs, axis=1) / np.maximum(norms, 1e-12)  # 0 for a vector of zeros
        return float(np.max(1.0 - cosines))

    def has_texts_of(self, other: Fingerprint) -> bool:
        """Whether two models' vectors of the texts agree; `other` need not have any pictures' vectors."""
        return Fingerprint(self.of_texts).distance(Fingerprint(other.of_texts)) <= TOLERANCE

    def check(self, other: Fingerprint, product: str, first: int = 0) -> None:
        """Raises `UserError` if `other` is another model than this one, which made the `product`, "The index".

        `first`: as in `distance`.
        """
        distance = self.distance(other, first)
        if not distance <= TOLERANCE:  # also for NaN
            raise UserError(
                f"{product} was made by the model {self.describe()}, not by {other.describe()}: their vectors differ "
                f"by 1 - cosine = {distance:.2g}. Use that model, or index again with this one."
            )

    def describe(self) -> str:
        """Returns "PATH at step STEP [DIGITS]", as far as they are known, for messages."""
        source = self.path or "(in memory)"
        if self.step is not None:
            source += f" at step {self.step}"
        return f"{source} [{self}]"


def take_fingerprint(embedder, pictures: bool = True) -> Fingerprint:
    """Returns the fingerprint of an `Embedder`, or of anything with `encode_text` and `encode_image`.

    The probes are encoded, without `pictures` only the texts. Encoders in int8 differ from their model by more than
    another machine does, so they carry the model's own probes, which are returned, and a bound on their distance from
    the model. Without `pictures` these encoders encode only `FEW` texts, so that a single question is answered soon.

    Raises `UserError` if encoders are farther from the model that they name than their bound.
    """
    path = str(getattr(embedder, "path", None) or "")
    step = getattr(embedder, "step", None)
    original = getattr(embedder, "original", None)
    if original is None:
        return Fingerprint(encode_probes(embedder, pictures), path, step)
    texts = TEXTS if pictures else TEXTS[:FEW]
    probes = encode_probes(embedder, pictures, texts)
    original_probes = Fingerprint(original.probes[: len(probes)])
    distance = original_probes.distance(Fingerprint(probes))
    if not distance <= original.bound:  # also for NaN
        raise UserError(
            f"The encoders in {path} are not the encoders of the model that they name: 1 - cosine is {distance:.2g}, "
            f"expected at most {original.bound:.2g}. They are damaged, or of another model: export it again."
        )
    return Fingerprint(original.probes, path, step, getattr(embedder, "encoder", ""))


@dataclasses.dataclass(frozen=True)
class Original:
    """The model that smaller encoders were made of."""

    probes: np.ndarray  # float32 [P, D], the model's own vectors of the probes
    bound: float  # the largest 1 - cosine that the encoders' vectors may have with the model's


def encode_probes(embedder, pictures: bool = True, texts: Sequence[str] = TEXTS) -> np.ndarray:
    """Returns the vectors of the probes, float32 [P, D]: of `texts`, then of two pictures unless `pictures` is false.

    A model that takes computed features gets random features in place of pictures.
    """
    from mural_lite.config import has_images, takes_features  # they come with every model

    vectors = embedder.encode_text(list(texts))
    tower = None
    if hasattr(embedder, "config"):
        tower = embedder.config.image_tower
    if pictures and (tower is None or has_images(tower)):
        images = _pictures()
        if tower is not None and takes_features(tower):
            features = np.random.default_rng(0).standard_normal((2, tower.feature_size))
            images = [row.astype("<f4").tobytes() for row in features]
        vectors = np.concatenate([vectors, embedder.encode_image(images)])
    return vectors.astype(np.float32)


def _pictures() -> list[np.ndarray]:
    """Returns a colour gradient and a disc on white, uint8 [64, 64, 3] each."""
    line = np.arange(64)
    x, y = np.meshgrid(line, line)  # [64, 64]
    gradient = np.stack([4 * x, 4 * y, 255 - 2 * x - 2 * y], axis=-1)  # [64, 64, 3]
    is_inside = (x - 31.5) ** 2 + (y - 31.5) ** 2 < 24**2  # [64, 64]
    disc = np.where(is_inside[..., None], [220, 30, 40], [255, 255, 255])  # [64, 64, 3], red on white
    return [gradient.astype(np.uint8), disc.astype(np.uint8)]
