"""Images by file name or address, and the common part of sources with separate captions and images."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from mural_tf.data.pictures import ENDINGS, BadImage, path_below, read_file
from mural_tf.errors import UserError
from mural_tf.files import as_path
from mural_tf.ingest.source import IMAGE, Captioned, Reading, Source, Text
from mural_tf.ingest.sources.img2dataset import find_shards, is_download, parse_example, read_samples
from mural_tf.text_files import canonical_language, is_text, unpacked_size

# Bytes of an image as img2dataset stores it, about: how much a caption's record will weigh.
TYPICAL_IMAGE = 32_000


class ImageFolder:
    """Image files by name: below the folder as named, or directly in it."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory

    def get(self, name: str, decided: Any = None) -> bytes | None:
        """Returns the file's content, `None` if there is none; raises `BadImage` if it may not be read."""
        del decided
        for candidate in (name, os.path.basename(name)):
            try:
                return read_file(path_below(self.directory, candidate.lstrip("/")))
            except OSError:
                continue
        return None


class DownloadedImages:
    """Images by the address that img2dataset downloaded them from (formats webdataset, files and tfrecord).

    Where an image lies is decided over all shards (decisions.py): by the first one that has its address.
    """

    def __init__(self, directory: pathlib.Path):
        self.shards = find_shards(directory)
        if self.shards[0].suffix == ".parquet":
            raise UserError(
                f"{directory}: img2dataset's Parquet output cannot be searched by address. Use it by itself "
                f"(img2dataset:{directory}), or download as webdataset."
            )

    def addresses(self, number: int) -> Iterator[tuple[str, int, int]]:
        """Yields (address, offset, size) of what a shard holds; in a folder the offset is the file's number."""
        shard = self.shards[number]
        # Damage shows when the images are looked for: they will be missing.
        for order, sample in enumerate(read_samples(shard, lambda kind, place, count=1: None, images=False)):
            address = sample.metadata.get("url")
            if address and is_text(address):
                yield address, *(sample.where if shard.suffix else (_number_of(shard, sample.key, order), 0))

    def get(self, name: str, decided: Any) -> bytes | None:
        """Returns the image's content, `None` if it was not downloaded; raises `BadImage` if it may not be read."""
        found = decided.location(name)
        if found is None:
            return None
        number, offset, size = found
        shard = self.shards[number]
        if shard.is_dir():
            return read_file(path_below(shard, _images_of(shard)[offset].name))
        with shard.open("rb") as file:
            file.seek(offset)
            content = file.read(size)
        return content if shard.suffix == ".tar" else parse_example(content)[0].get("image")


@functools.lru_cache(maxsize=16)
def _images_of(shard: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in shard.iterdir() if path.suffix.lower()[1:] in ENDINGS)


def _number_of(shard: pathlib.Path, key: str, order: int) -> int:
    """The place of a sample's image among the images of its folder; those without metadata have no sample."""
    images = _images_of(shard)
    return next((i for i in range(order, len(images)) if images[i].stem == key), order)


class ImageItem(NamedTuple):
    """An image to look for, with its captions."""

    image_file: str
    image_id: str
    texts: Sequence[Text]
    split: str = "train"


@dataclasses.dataclass
class CaptionedImages(Source):
    """Base of sources whose captions name images that lie elsewhere; a family gives `read`."""

    ITEM: ClassVar[str] = IMAGE
    images: str = ""
    split: str = "train"

    def check(self) -> None:
        """Finds the images: files of a folder, or img2dataset's output."""
        if not self.images or not as_path(self.images).is_dir():
            raise UserError(
                f"{self.KIND}:{self.path} needs images=FOLDER, with image files or img2dataset's output"
                + (f"; {self.images} is not a folder." if self.images else ".")
            )
        if hasattr(self, "language"):
            canonical_language(self.language)
        self._store = None
        self.store()

    def store(self) -> ImageFolder | DownloadedImages:
        """Returns where the images are."""
        if getattr(self, "_store", None) is None:
            self._store = _open_images(as_path(self.images))
        return self._store

    def weight(self, path: pathlib.Path) -> int:
        """A line has some 150 bytes, and an image."""
        return unpacked_size(path) * TYPICAL_IMAGE // 150

    def records(self, item: ImageItem, reading: Reading) -> Iterable[Captioned]:
        """Yields the image with its captions, if it is there."""
        try:
            image, problem = self.store().get(item.image_file, reading.decided), "missing image"
        except BadImage as error:
            image, problem = None, str(error)
        if image is None:
            reading.tally.skip(problem, f"{item.texts[0].place} ({item.image_file})", len(item.texts))
        else:
            yield Captioned(item.image_id, image, item.texts, item.split)

    def texts(self, item: ImageItem) -> Iterable[tuple[str, Text]]:
        """Yields (image id, caption)."""
        return ((item.image_id, text) for text in item.texts)


def _open_images(directory: pathlib.Path) -> ImageFolder | DownloadedImages:
    return DownloadedImages(directory) if is_download(directory) else ImageFolder(directory)
