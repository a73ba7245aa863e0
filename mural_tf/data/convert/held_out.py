"""Divides each language's pairs into train, dev and test by a salted hash of the image.

The order of images is that of their hashes, the same in all languages. A language's test set is the images with the
lowest hashes, its dev set those with the highest, so that languages that share images mostly agree on where these go.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from mural_tf.config import PARTIAL
from mural_tf.data.convert.hashing import text_hash
from mural_tf.data.convert.spool import Spool

TEST, DEV = "test", "dev"


class HeldOut:
    """Which images are held out: sorted hashes per language and split."""

    def __init__(self, salt: str, everywhere: bool, splits: dict[str, dict[str, np.ndarray]]):
        self.salt, self.everywhere, self.splits = salt, everywhere, splits
        none = [np.empty(0, np.uint64)]
        self.images = np.unique(np.concatenate(none + [a for s in splits.values() for a in s.values()]))

    def split_of(self, language: str, image_id: str) -> str:
        """Returns train, dev or test; "" if the image is held out in another language only."""
        value = image_hash(self.salt, image_id)
        for split, hashes in self.splits.get(language, {}).items():
            if _contains(hashes, value):
                return split
        return "" if self.everywhere and _contains(self.images, value) else "train"


def image_hash(salt: str, image_id: str) -> np.uint64:
    """Returns the hash that places an image."""
    return np.uint64(text_hash(f"{salt}\t{image_id}"))


def hold_out(
    rows: Iterable[tuple[str, str]],
    folder: pathlib.Path,
    salt: str,
    sizes: Sequence[int],
    fraction: float,
    everywhere: bool,
) -> HeldOut:
    """Chooses the images that are held out, or reads a choice made before.

    Memory is bounded by the largest language: 8 bytes a pair.

    Args:
      rows: (language, image id) of every pair.
      folder: keeps hashes and choice.
      salt: of the hash.
      sizes: of dev and of test in pairs, largest first; a language gets the first of which both together are at most
        `fraction` of its pairs, or else the last, shrunk to that fraction.
      fraction: see sizes.
      everywhere: no image of a test set is in another language's dev set or training data, and so on.
    """
    chosen = folder / "chosen.json"
    if not chosen.exists():
        spool = Spool(folder / "hashes")
        names: dict[str, int] = {}
        for language, image_id in rows:
            spool.add(names.setdefault(language, len(names)), image_hash(salt, image_id))
        spool.close()
        splits = _choose({name: spool.read(number) for name, number in names.items()}, sizes, fraction, everywhere)
        content = {name: {s: [int(h) for h in a] for s, a in by_split.items()} for name, by_split in splits.items()}
        temporary = chosen.with_name(chosen.name + PARTIAL)
        temporary.write_text(json.dumps(content), encoding="utf-8")
        os.replace(temporary, chosen)
    content = json.loads(chosen.read_text(encoding="utf-8"))
    splits = {name: {s: np.array(h, np.uint64) for s, h in by_split.items()} for name, by_split in content.items()}
    return HeldOut(salt, everywhere, splits)


def _choose(hashes: dict[str, np.ndarray], sizes, fraction: float, everywhere: bool) -> dict:
    nothing = np.empty(0, np.uint64)
    splits: dict[str, dict[str, np.ndarray]] = {language: {} for language in sorted(hashes)}
    taken = {TEST: nothing, DEV: nothing}
    for split, other, from_top in ((TEST, DEV, False), (DEV, TEST, True)):
        for language, by_split in splits.items():
            images, counts = np.unique(hashes[language], return_counts=True)
            size = _size(int(counts.sum()), sizes, fraction)
            free = np.isin(images, taken[other] if everywhere else by_split.get(other, nothing), invert=True)
            by_split[split] = _first_pairs(images[free], counts[free], size, from_top)
        taken[split] = np.unique(np.concatenate([by_split[split] for by_split in splits.values()]))
    return splits


def _size(pairs: int, sizes: Sequence[int], fraction: float) -> int:
    for size in sizes:
        if 2 * size <= fraction * pairs:
            return size
    return int(fraction * pairs / 2)


def _first_pairs(images: np.ndarray, counts: np.ndarray, size: int, from_top: bool) -> np.ndarray:
    """Takes images in order while their pairs fit into `size`; one with too many pairs is passed over."""
    order = range(len(images) - 1, -1, -1) if from_top else range(len(images))
    found, total = [], 0
    for index in order:
        if total == size:
            break
        if total + counts[index] <= size:
            found.append(images[index])
            total += counts[index]
    return np.array(sorted(found), np.uint64)


def _contains(sorted_hashes: np.ndarray, value: np.uint64) -> bool:
    index = np.searchsorted(sorted_hashes, value)
    return bool(index < sorted_hashes.size and sorted_hashes[index] == value)
