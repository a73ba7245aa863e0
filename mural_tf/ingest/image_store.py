"""Images by file name or address, and the common part of sources with separate captions and images."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from tqdm import tqdm

from mural_tf.data.pictures import ENDINGS, BadImage, path_below, read_file
from mural_tf.errors import UserError
from mural_tf.ingest.img2dataset import find_shards, parse_example, read_samples
from mural_tf.ingest.source import IMAGE, Captioned, Source, Tally, Text
from mural_tf.ingest.tables import DiskTable, build_table
from mural_tf.ingest.text_files import canonical_language, is_text

_WHERE = struct.Struct("<IQQ")  # shard, offset, size


class ImageFolder:
    """Image files by name: below the folder as named, or directly in it."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory

    def get(self, name: str) -> bytes | None:
        """Returns the file's content, `None` if there is none; raises `BadImage` if it may not be read."""
        for candidate in (name, os.path.basename(name)):
            try:
                return read_file(path_below(self.directory, candidate.lstrip("/")))
            except OSError:
                continue
        return None


class DownloadedImages:
    """Images by the address that img2dataset downloaded them from (formats webdataset, files and tfrecord)."""

    def __init__(self, directory: pathlib.Path, index: pathlib.Path, progress: bool = False):
        self.shards = find_shards(directory)
        if self.shards[0].suffix == ".parquet":
            raise UserError(
                f"{directory}: img2dataset's Parquet output cannot be searched by address. Use it by itself "
                f"(img2dataset:{directory}), or download as webdataset."
            )
        build_table(index, self._rows(progress))
        self.index = DiskTable(index)

    def _rows(self, progress: bool) -> Iterator[tuple[str, bytes]]:
        shards = tqdm(self.shards, unit="shard", desc="Indexing images", disable=not progress)
        for number, shard in enumerate(shards):
            # Damage shows when the images are looked for: they will be missing.
            for sample in read_samples(shard, lambda kind, place: None, images=False):
                address = sample.metadata.get("url")
                if address and is_text(address):
                    name = sample.key.encode() if shard.is_dir() else b""
                    yield address, _WHERE.pack(number, *sample.where) + name

    def get(self, name: str) -> bytes | None:
        """Returns the image's content, `None` if it was not downloaded; raises `BadImage` if it may not be read."""
        found = self.index.get(name)
        if not found:
            return None
        number, offset, size = _WHERE.unpack(found[0][: _WHERE.size])
        shard = self.shards[number]
        if shard.is_dir():
            stem = found[0][_WHERE.size :].decode()
            names = (f"{stem}.{ending}" for ending in ENDINGS)
            return next((read_file(path_below(shard, name)) for name in names if (shard / name).exists()), None)
        with open(shard, "rb") as file:
            file.seek(offset)
            content = file.read(size)
        return content if shard.suffix == ".tar" else parse_example(content)[0].get("image")


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

    def prepare(self, folder: pathlib.Path, progress: bool) -> None:
        """Finds the images: a folder of files is used as it is, of img2dataset's output an index is built."""
        directory = pathlib.Path(self.images).expanduser()
        if not self.images or not directory.is_dir():
            raise UserError(
                f"{self.KIND}:{self.path} needs images=FOLDER, with image files or img2dataset's output"
                + (f"; {self.images} is not a folder." if self.images else ".")
            )
        if hasattr(self, "language"):
            canonical_language(self.language)
        self._store = _open_images(directory, folder / "images.sqlite", progress)

    def records(self, item: ImageItem, tally: Tally) -> Iterable[Captioned]:
        """Yields the image with its captions, if it is there."""
        try:
            image, problem = self._store.get(item.image_file), "missing image"
        except BadImage as error:
            image, problem = None, str(error)
        if image is None:
            tally.skip(problem, f"{item.texts[0].place} ({item.image_file})", len(item.texts))
        else:
            yield Captioned(item.image_id, image, item.texts, item.split)

    def texts(self, item: ImageItem) -> Iterable[tuple[str, Text]]:
        """Yields (image id, caption)."""
        return ((item.image_id, text) for text in item.texts)


def _open_images(directory: pathlib.Path, index: pathlib.Path, progress: bool):
    is_download = any(next(directory.glob(pattern), None) for pattern in ("*.tar", "*.tfrecord", "*_stats.json"))
    return DownloadedImages(directory, index, progress) if is_download else ImageFolder(directory)
