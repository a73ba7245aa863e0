"""Image-text pairs that img2dataset downloaded, as a source, and captions whose images it downloaded or a folder holds.

`mural_lite/img2dataset.py` reads its output, in any of its formats.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.img2dataset import DownloadedImages, Sample, find_shards, is_download, read_samples
from mural_lite.pictures import BadImage, path_below, read_file
from mural_lite.printable import printable
from mural_lite.skipped import Tally
from mural_lite.text_files import clean, is_text, known_language, refuse_failure, unpacked_size
from mural_tf.ingest.source import IMAGE, Captioned, Reading, ShardSource, Source, Text


@dataclasses.dataclass
class Img2dataset(ShardSource):
    """The output folder of img2dataset in any format: `img2dataset:downloads/cc12m,language=en`.

    Attributes:
      language: the captions' language.
      language_column: the field of the saved metadata with each caption's language (LAION-2B-multi: LANGUAGE).
    """

    KIND: ClassVar[str] = "img2dataset"
    language: str = "en"
    language_column: str = ""

    def files(self) -> list[pathlib.Path]:
        """Returns the shards."""
        return find_shards(self.path)

    def records(self, item: pathlib.Path, reading: Reading) -> Iterable[Captioned]:
        """Yields each usable image of a shard with its only caption; `reading.tally` counts the others."""
        tally = reading.tally
        for sample in read_samples(item, tally.skip):
            text = self._text(sample, item, tally)
            if text is not None:
                yield Captioned(self._image_id(sample), sample.image, [text], "train")

    def texts(self, item: pathlib.Path) -> Iterable[tuple[str, Text]]:
        """Yields (image id, caption) of a shard; problems are not counted here, but by `records`."""
        ignored = Tally()
        for sample in read_samples(item, ignored.skip, images=False):
            text = self._text(sample, item, ignored)
            if text is not None:
                yield self._image_id(sample), text

    def _image_id(self, sample: Sample) -> str:
        """Returns a sample's address, by which other data sets know the image, too, or else its folder and key."""
        return sample.metadata.get("url") or f"{printable(as_path(self.path).name)}/{sample.key}"

    def _text(self, sample: Sample, shard: pathlib.Path, tally: Tally) -> Text | None:
        """Returns a sample's caption; `None` if it is unusable, which `tally` counts."""
        location = f"{shard}, {sample.key}"
        if not is_text(sample.metadata.get("url") or ""):
            tally.skip("address that is not text", location)
            return None
        code = self.language
        if self.language_column:
            code = sample.metadata.get(self.language_column) or ""
        language = known_language(code)
        if not language:
            tally.skip("unknown language", f"{location}: {code!r}")
            return None
        if not is_text(sample.caption):
            tally.skip("caption that is not text", location)
            return None
        caption = clean(sample.caption)
        if not caption:
            tally.skip("empty caption", location)
            return None
        return Text(caption, language, "", location)


# Images by file name or address, for sources whose captions name them.

TYPICAL_IMAGE = 32_000  # bytes of an image as img2dataset stores it, about


class ImageFolder:
    """Image files below a folder, found by their names."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory

    def get(self, name: str, decisions: Any = None) -> bytes | None:
        """Returns the content of the file `name` in the folder, or of a file of this name directly in the folder.

        Returns `None` if neither is there; raises `BadImage` if the file is not an image or is outside of the folder.
        """
        del decisions  # by which `DownloadedImages.get` finds an image
        for candidate in (name, os.path.basename(name)):
            try:
                return read_file(path_below(self.directory, candidate.lstrip("/")))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                refuse_failure(error, self.directory / candidate.lstrip("/"))
                raise
        return None


class ImageItem(NamedTuple):
    """An image to look for, by its file's name or its address, with its captions."""

    image_file: str
    image_id: str
    texts: Sequence[Text]
    split: str = "train"


@dataclasses.dataclass
class CaptionedImages(Source):
    """Base of sources whose captions name images that are elsewhere; a family implements `read`.

    `images` is the folder of the images' files, or img2dataset's output.
    """

    ITEM: ClassVar[str] = IMAGE
    images: str = ""

    def check(self) -> None:
        """Raises `UserError` if the folder of images is not there or cannot be read, or as `Source.check` does."""
        if not self.images or not as_path(self.images).is_dir():
            problem = f"; {self.images} is not a folder" if self.images else ""
            raise UserError(
                f"{self.KIND}:{self.path} needs images=FOLDER, with image files or img2dataset's output{problem}."
            )
        super().check()
        self._store = None  # opened anew below
        self.store()  # raises for a download that cannot be read

    def store(self) -> ImageFolder | DownloadedImages:
        """Returns the images, downloads or files of a folder, which are opened at the first call and kept."""
        if getattr(self, "_store", None) is None:  # no field, which would be an option of the source
            folder = as_path(self.images)
            if is_download(folder):
                self._store = DownloadedImages(folder)
            else:
                self._store = ImageFolder(folder)
        return self._store

    def downloads(self) -> DownloadedImages | None:
        """Returns the images if they were downloaded by img2dataset; `None` for files of a folder."""
        store = self.store()
        if not isinstance(store, DownloadedImages):
            return None
        return store

    def weight(self, path: pathlib.Path) -> int:
        """Returns about how many bytes the records of a file will have: a line has some 150 bytes, and one image."""
        return unpacked_size(path) * TYPICAL_IMAGE // 150

    def records(self, item: ImageItem, reading: Reading) -> Iterable[Captioned]:
        """Yields the image with its captions; `reading.tally` counts a missing or damaged image, once per caption."""
        problem = "missing image"
        try:
            image = self.store().get(item.image_file, reading.decided)
        except BadImage as error:
            image = None
            problem = str(error)
        if image is None:
            reading.tally.skip(problem, f"{item.texts[0].place} ({item.image_file})", len(item.texts))
        else:
            yield Captioned(item.image_id, image, item.texts, item.split)

    def texts(self, item: ImageItem) -> Iterable[tuple[str, Text]]:
        """Yields (image id, caption) of each caption of the image."""
        for text in item.texts:
            yield item.image_id, text
