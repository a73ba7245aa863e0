"""Training images that look like evaluation images, found by perceptual hash (ALIGN §3 removes these).

The hash is `imagehash.phash`: 64 bits, the signs of an image's lowest frequencies. Copies of one picture in another
size or JPEG quality differ in a few bits, different pictures in about half of them.
"""

from __future__ import annotations

import collections
import io
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np
import PIL.Image
from tqdm import tqdm

from mural_tf.config import PARTIAL, ConfigurationError
from mural_tf.data.convert.source import find_files
from mural_tf.data.text_files import read_lines

HASHES = "evaluation_hashes.npy"
BITS = 64
_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
_ENOUGH = 256  # pixels a side that a JPEG is decoded to at least: the hash looks at 32


def perceptual_hash(image: PIL.Image.Image) -> int:
    """Returns the image's 64 bits; raises whatever Pillow does where it does not decode."""
    try:
        import imagehash
    except ImportError:
        raise ConfigurationError(
            "Comparing images with evaluation images needs a package that is not installed: pip install ImageHash "
            "(or mural-tf[convert])."
        ) from None
    image.draft("L", (_ENOUGH, _ENOUGH))
    bits = imagehash.phash(image).hash.ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def hash_evaluation_images(patterns: Iterable[str], folder: pathlib.Path, progress: bool = False) -> None:
    """Writes the hashes of all evaluation images into `folder`, unless they are there.

    Raises:
      ConfigurationError: an evaluation image does not decode (its copies would stay in the training data), a pattern
        fits no image.
    """
    path = folder / HASHES
    if path.exists():
        return
    hashes = set()
    for name in tqdm(list(_image_files(patterns)), unit="image", desc="Evaluation images", disable=not progress):
        try:
            with PIL.Image.open(name) as image:
                hashes.add(perceptual_hash(image))
        except (OSError, ValueError, SyntaxError) as error:
            raise ConfigurationError(f"The evaluation image {name} cannot be read: {error}.") from None
    temporary = path.with_name(path.name + PARTIAL)
    with open(temporary, "wb") as file:
        np.save(file, np.array(sorted(hashes), np.uint64))
    temporary.replace(path)


def _image_files(patterns: Iterable[str]) -> Iterator[pathlib.Path]:
    for pattern in patterns:
        for path in find_files(pattern):
            if path.suffix == ".txt":  # a list of files, relative to its folder
                yield from (path.parent / line.strip() for _, line in read_lines(path) if line.strip())
            elif path.is_dir():
                files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _IMAGE_ENDINGS)
                if not files:
                    raise ConfigurationError(f"The folder {path} of evaluation images holds no image file.")
                yield from files
            else:
                yield path


class NearDuplicates:
    """Finds hashes within some bits of a known one.

    Two hashes that differ in at most d bits agree in one of d + 1 groups of bits at least: only those that do are
    compared.
    """

    def __init__(self, hashes: Iterable[int], distance: int):
        self.distance = distance
        edges = [BITS * i // (distance + 1) for i in range(distance + 2)]
        self._groups = [(low, (1 << (high - low)) - 1) for low, high in zip(edges, edges[1:])]
        self._tables: list[dict[int, list[int]]] = [collections.defaultdict(list) for _ in self._groups]
        for value in map(int, hashes):
            for (low, mask), table in zip(self._groups, self._tables):
                table[value >> low & mask].append(value)

    def contains(self, value: int) -> bool:
        """Tells whether a known hash differs from `value` in at most `distance` bits."""
        for (low, mask), table in zip(self._groups, self._tables):
            for candidate in table.get(value >> low & mask, ()):
                if bin(candidate ^ value).count("1") <= self.distance:
                    return True
        return False


def load_near_duplicates(folder: pathlib.Path, distance: int) -> NearDuplicates | None:
    """Returns what `hash_evaluation_images` wrote, `None` if it was not asked to."""
    path = folder / HASHES
    return NearDuplicates(np.load(path), distance) if path.exists() else None


def hash_bytes(image: bytes) -> int:
    """Returns the perceptual hash of an image file's content."""
    with PIL.Image.open(io.BytesIO(image)) as opened:
        return perceptual_hash(opened)
