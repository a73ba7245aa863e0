"""Human-captioned image sets: MS-COCO, STAIR, YJ Captions, COCO-CN, Multi30K, Karpathy and Li's split files.

Captions of one image become one record, in all their files and languages: methods that learn from several captions of
an image need that. `caption_group` is shared by captions that translate each other and by no others.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Iterator
from typing import ClassVar

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.skipped import Tally
from mural_lite.text_files import MOST_PARTS, Unit
from mural_tf.data import caption_files
from mural_tf.data.caption_files import Caption
from mural_tf.ingest.source import Reading, Text, find_files
from mural_tf.ingest.sources.img2dataset import TYPICAL_IMAGE, CaptionedImages, ImageItem

RECORD_SPLITS = {"val": "dev", "restval": "train"}  # {a set's split: the records' split}; other splits keep their names
BYTES_FOR_AN_IMAGE = 600  # in the JSON and text files of such sets, for all captions of an image


class CaptionedSet(CaptionedImages):
    """Base of sources that collect all captions of an image; a family implements `captions`. They fit into memory.

    `NAME` is the name of the set of images, with which their ids begin.
    """

    NAME: ClassVar[str] = ""

    def captions(self, reading: Reading) -> Iterable[tuple[Caption, str, str]]:
        """Yields (caption, group, split) of all captions, in any order; `reading.tally` counts unusable captions.

        Captions of one group are translations of each other; a caption with the group "" shares its meaning with none.
        """
        raise NotImplementedError

    def units(self, unit_bytes: int) -> list[Unit]:
        """Returns units of about `unit_bytes` of records, each of which reads all captions and yields some images."""
        files = self.input_files()
        size = sum(path.stat().st_size for path in files)
        weight = size * TYPICAL_IMAGE // BYTES_FOR_AN_IMAGE
        parts = max(1, min(MOST_PARTS[""], weight // unit_bytes))  # as many as of a plain file, which has no ending
        return [Unit(str(files[0]), number, parts, size // parts, weight // parts) for number in range(parts)]

    def read(self, unit: Unit, reading: Reading) -> Iterator[ImageItem]:
        """Yields an item for each image of the unit; images come in the order of their first captions."""
        items, tally = self._items_of_all_units
        if unit.number == 0:  # so that each problem is counted once
            reading.tally.add(tally)
            reading.tally.places += tally.places
        for number in unit.share(len(items)):
            yield items[number]

    @functools.cached_property
    def _items_of_all_units(self) -> tuple[list[ImageItem], Tally]:
        """The items of all units, and the tally of problems; they are kept, because reading them takes long.

        An image has the same text in the same language only once.
        """
        reading = Reading()
        items: dict[tuple[str, str], ImageItem] = {}
        seen: set[tuple[str, str, str]] = set()
        for caption, group, split in self.captions(reading):
            key = (caption.image_id, caption.language, caption.caption)
            if key in seen:
                reading.tally.leave_out("caption that its image has already", caption.location)
                continue
            seen.add(key)
            image_id = f"{self.NAME}/{caption.image_id}"
            item = items.setdefault((split, image_id), ImageItem(caption.image_file, image_id, [], split))
            group = group or f"{image_id}:{caption.language}:{len(item.texts)}"
            item.texts.append(Text(caption.caption, caption.language, group, caption.location))
        return list(items.values()), reading.tally


@dataclasses.dataclass
class Coco(CaptionedSet):
    """MS-COCO's JSON schema: `coco:captions_train2014.json,images=train2014,also=ja@stair_captions_v1.2_train.json`.

    YJ Captions without COCO's own: `coco:yjcaptions.json,language=ja,images=train2014`.

    Attributes:
      images: folder of the images.
      language: the captions' language.
      also: further files on the same images, as LANGUAGE@FILE joined by "+"; images that only these name are kept.
      split: the records' split.
    """

    KIND: ClassVar[str] = "coco"
    NAME: ClassVar[str] = "coco"
    language: str = "en"
    also: tuple[str, ...] = ()
    split: str = "train"

    def input_files(self) -> list[pathlib.Path]:
        """Returns the caption files."""
        return [path for _, path in self._captions_files()]

    def _captions_files(self) -> list[tuple[str, pathlib.Path]]:
        """Returns (language, file) of each file of captions."""
        own_files = [(self.language, path) for path in self.files()]
        return own_files + further_files(self.also)

    def captions(self, reading: Reading) -> Iterator[tuple[Caption, str, str]]:
        """Yields (caption, "", split) of all captions, file by file."""
        for language, path in self._captions_files():
            for caption in caption_files.read_coco(path, language, reading.tally.skip):
                yield caption, "", self.split


def further_files(also: Iterable[str]) -> list[tuple[str, pathlib.Path]]:
    """Returns (language, file) of further files of captions.

    Args:
      also: an option's value, texts such as "ja@stair.json": a language and a file or a pattern of files.

    Raises:
      UserError: a text has another form, or its file is missing.
    """
    files = []
    for text in also:
        language, at, pattern = text.partition("@")
        if not at:
            raise UserError(f"also={text!r}: expected LANGUAGE@FILE, for example also=ja@stair.json.")
        for path in find_files(pattern):
            files.append((language, path))
    return files


@dataclasses.dataclass
class Karpathy(CaptionedSet):
    """Karpathy and Li's `dataset_coco.json` or `dataset_flickr30k.json`: `karpathy:dataset_coco.json,images=coco`.

    Attributes:
      images: folder of the images; for COCO with the sub-folders train2014 and val2014, or all in one.
      splits: some of train, restval, val and test, joined by "+". restval goes to the records' train, val to dev.
        MURAL and ETCL count 82K training images of COCO: train without restval.
      also: further files in COCO's schema on the same images (COCO only), as LANGUAGE@FILE joined by "+".
    """

    KIND: ClassVar[str] = "karpathy"
    splits: tuple[str, ...] = ("train",)
    also: tuple[str, ...] = ()

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the other families
        """The name of the set of images: "coco" if the file's name has it, otherwise "flickr30k"."""
        return "coco" if "coco" in pathlib.Path(self.path).name else "flickr30k"

    def input_files(self) -> list[pathlib.Path]:
        """Returns the split file and the further captions."""
        return self.files() + [path for _, path in further_files(self.also)]

    def captions(self, reading: Reading) -> Iterator[tuple[Caption, str, str]]:
        """Yields (caption, "", split) of the splits' captions, and then of further files on the same images."""
        file_and_split: dict[str, tuple[str, str]] = {}  # {image's id: (its file, its split)}
        for path in self.files():
            for split in self.splits:
                record_split = RECORD_SPLITS.get(split, split)
                for caption in caption_files.read_karpathy(path, split, "en", on_problem=reading.tally.skip):
                    file_and_split[caption.image_id] = (caption.image_file, record_split)
                    yield caption, "", record_split
        for language, path in further_files(self.also):
            for caption in caption_files.read_coco(path, language, reading.tally.skip):
                if caption.image_id in file_and_split:
                    image_file, record_split = file_and_split[caption.image_id]
                    yield caption._replace(image_file=image_file), "", record_split


@dataclasses.dataclass
class CocoCn(CaptionedSet):
    """COCO-CN: `coco_cn:coco-cn-version1805v1.1,images=train2014`; Chinese. Its val is the records' dev.

    Its test images are spread over COCO's training images: leave them out there with --evaluation_images.

    Attributes:
      images: folder with the images of train2014 and val2014 together.
    """

    KIND: ClassVar[str] = "coco_cn"
    NAME: ClassVar[str] = "coco"

    def files(self) -> list[pathlib.Path]:
        """Returns the caption file."""
        return find_files(str(as_path(self.path) / "imageid.human-written-caption.txt*"))

    def captions(self, reading: Reading) -> Iterator[tuple[Caption, str, str]]:
        """Yields (caption, "", split) of the captions of both splits."""
        for split in ("train", "val"):
            for caption in caption_files.read_coco_cn(self.path, split, on_problem=reading.tally.skip):
                yield caption, "", RECORD_SPLITS.get(split, split)


@dataclasses.dataclass
class Multi30k(CaptionedSet):
    """A clone of multi30k/dataset: `multi30k:dataset,images=flickr30k-images,splits=train+val`.

    Task 1 is one caption per language, translations of each other, which share their group; task 2 is five captions in
    English and in German, each with a group of its own. Task 1's English captions are among task 2's, and stay in the
    group of task 1.

    Attributes:
      images: folder of Flickr30K's images.
      splits: train, val (the records' dev), test_2016_flickr, …, joined by "+".
    """

    KIND: ClassVar[str] = "multi30k"
    NAME: ClassVar[str] = "flickr30k"
    splits: tuple[str, ...] = ("train",)

    def files(self) -> list[pathlib.Path]:
        """Returns the caption files of all splits."""
        return find_files(f"{as_path(self.path)}/**/task[12]/raw/*.*")

    def captions(self, reading: Reading) -> Iterator[tuple[Caption, str, str]]:
        """Yields for each split (caption, group, split) of task 1, and then (caption, "", split) of task 2."""
        for split in self.splits:
            record_split = RECORD_SPLITS.get(split, split)
            if split.startswith("test"):
                record_split = "test"
            for language in ("en", "de", "fr", "cs"):
                for caption in caption_files.read_multi30k(self.path, split, language, 1, reading.tally.skip):
                    yield caption, f"flickr30k/{caption.image_id}:translations", record_split
            if split.startswith(("test_2017", "test_2018")):  # only task 1 has these
                continue
            for language in ("en", "de"):
                for caption in caption_files.read_multi30k(self.path, split, language, 2, reading.tally.skip):
                    yield caption, "", record_split
