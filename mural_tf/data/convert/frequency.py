"""Texts on too many images and images with too many texts, found before anything is converted (ALIGN §3, ETCL §3.2).

Every caption becomes two 64-bit hashes, of its text and of its image, that are spread over files by text and by image.
Each file is small enough to be counted in memory; only the hashes above a bound remain.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from tqdm import tqdm

from mural_tf.config import PARTIAL
from mural_tf.data.convert.blocks import Block, read_blocks
from mural_tf.data.convert.hashing import text_hash
from mural_tf.data.convert.settings import Settings
from mural_tf.data.convert.source import PAIR, Source
from mural_tf.data.convert.spool import Spool
from mural_tf.data.convert.workers import map_blocks

PARTITIONS = 256
TEXTS, IMAGES = "frequent_texts.npy", "frequent_images.npy"


class HashCaptions:
    """Turns a block into hashes: uint64 [captions, 2], text and image."""

    def __init__(self, sources: Sequence[Source]):
        self.sources = sources

    def __call__(self, block: Block) -> np.ndarray:
        found = [
            (text_hash(text.text), text_hash(image_id))
            for index, item in block.items
            for image_id, text in self.sources[index].texts(item)
        ]
        return np.array(found, np.uint64).reshape(-1, 2)


def count_frequent(sources: Sequence[Source], settings: Settings, folder: pathlib.Path, progress: bool) -> None:
    """Writes the hashes of frequent texts and images into `folder`, if a filter asks for them; does so once."""
    filters = settings.filters
    if not (filters.max_images_per_text or filters.max_texts_per_image) or (folder / IMAGES).exists():
        return
    spools = [Spool(folder / "by_text", 2), Spool(folder / "by_image", 2)]
    blocks = map_blocks(_image_blocks(sources, settings, folder), settings.workers, HashCaptions, (list(sources),))
    for _, hashes in tqdm(blocks, unit="block", desc="Counting captions", disable=not progress):
        for column, spool in enumerate(spools):
            spool.add_rows(hashes[:, column] % np.uint64(PARTITIONS), hashes)
    for column, (spool, bound, name) in enumerate(
        zip(spools, (filters.max_images_per_text, filters.max_texts_per_image), (TEXTS, IMAGES))
    ):
        spool.close()
        frequent = [_above(spool.read(partition), column, bound) for partition in range(PARTITIONS) if bound]
        hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *frequent]))
        temporary = folder / (name + PARTIAL)
        with open(temporary, "wb") as file:
            np.save(file, hashes)
        temporary.replace(folder / name)
        spool.remove()


def _image_blocks(sources: Sequence[Source], settings: Settings, folder: pathlib.Path) -> Iterator[Block]:
    """Text pairs have no images: their sources are not read twice."""
    chosen = [source if source.ITEM != PAIR else None for source in sources]
    return read_blocks(chosen, settings, folder)


def _above(rows: np.ndarray, column: int, bound: int) -> np.ndarray:
    """Returns the values of `column` that occur with more than `bound` different values of the other column."""
    values, counts = np.unique(np.unique(rows, axis=0)[:, column], return_counts=True)
    return values[counts > bound]
