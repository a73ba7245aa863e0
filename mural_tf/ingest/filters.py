"""The filters between sources and records: usable images, and the filters that a conversion chooses.

The filters are the filters of ALIGN (Jia et al., 2021, §3) and [ETCL] §3.4: sizes of images, lengths of texts, texts on
too many images and images with too many texts, and images that look like evaluation images.

Similar images are found by a perceptual hash: 64 bits, the signs of an image's lowest frequencies. Copies of one
picture in another size or JPEG quality differ in a few bits, different pictures in about half of them.

Decisions over all data (frequent texts and images, duplicates) are taken before, see decide.py.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator

import numpy as np
import PIL.Image

from mural_lite.errors import UserError
from mural_lite.files import read_array, save_array
from mural_lite.hashes import contains_text, text_hash
from mural_lite.pictures import (
    ENDINGS,
    BadImage,
    encode_jpeg,
    is_plain,
    open_image,
    orientation,
    read_file,
    turned,
    upright,
)
from mural_lite.progress import tqdm
from mural_lite.skipped import Tally
from mural_lite.text_files import clean, read_lines
from mural_tf.ingest.source import Captioned, Pair, Reading, Settings, find_files
from mural_tf.ingest.translated_captions import add_translations

# Image files: checked without decoding, copied where the record format allows it.

COPIED = ("JPEG", "PNG")  # the formats of images in records, which the input pipeline decodes
_END_MARKS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
_TAIL = 4096  # bytes at a file's end where its end mark is looked for: cameras and servers append a little


def usable_bytes(image: bytes, opened: PIL.Image.Image, image_size: int = 0) -> bytes:
    """Returns an image for a record: the file's content, undecoded, if it is an upright JPEG or PNG, small enough.

    Every other image becomes an upright JPEG, with white in place of transparency.

    Args:
      image: the file's content.
      opened: the same image as `open_image` returns it, not decoded yet.
      image_size: the longest shorter side in pixels; a larger image is shrunk to it. 0 leaves the size.

    Raises:
      BadImage: the file is cut off, or does not decode where decoding is needed.
    """
    is_too_large = image_size > 0 and min(opened.size) > image_size
    if opened.format in COPIED and is_plain(opened) and not is_too_large:
        if _END_MARKS[opened.format] not in image[-_TAIL:]:
            raise BadImage("image that is cut off")
        if orientation(opened) == 1:  # EXIF's number of an upright image
            return image
    if not is_too_large:
        return encode_jpeg(upright(opened))
    was_wide = opened.width > opened.height
    scale = image_size / min(opened.size)
    size = tuple(max(image_size, round(side * scale)) for side in opened.size)
    opened.draft("RGB", size)  # JPEG: decode at an eighth, a quarter or half the size where that is enough
    decoded = upright(opened)
    is_wide = decoded.width > decoded.height
    if is_wide != was_wide:  # turning it upright has exchanged its sides
        size = size[::-1]
    return encode_jpeg(decoded.resize(size, PIL.Image.Resampling.BICUBIC))


# Images that look like evaluation images.

HASHES = "evaluation_hashes.npy"
_ENOUGH = 256  # a JPEG is decoded to at least as many pixels per side: the hash looks at 32
_SIDE = 32
_COSINES = np.cos(np.pi * np.outer(np.arange(8), 2 * np.arange(_SIDE) + 1) / (2 * _SIDE))  # [8, 32]


def perceptual_hash(image: PIL.Image.Image) -> int:
    """Returns the perceptual hash, 64 bits as a number, of an image that is opened but not decoded, turned upright.

    With 32 x 32 grey values G and C[k, j] = cos(π k (2j + 1) / 64), a bit says whether one of the 8 x 8 lowest
    frequencies C G Cᵀ is above their median. ImageHash's `phash` gives the same, with SciPy and PyWavelets. Raises
    `BadImage` for an image that does not decode.
    """
    image.draft("L", (_ENOUGH, _ENOUGH))
    small = turned(image).convert("L").resize((_SIDE, _SIDE), PIL.Image.Resampling.LANCZOS)
    frequencies = np.round(_COSINES @ np.asarray(small, np.float64) @ _COSINES.T, 6)  # [8, 8], exact zeros where flat
    bits = frequencies > np.median(frequencies)
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def hash_evaluation_images(patterns: Iterable[str], folder: pathlib.Path, progress: bool = False) -> None:
    """Writes the sorted perceptual hashes of all evaluation images to a file, uint64 [N], unless it is there.

    Args:
      patterns: files, folders and lists of evaluation images, see `image_files`.
      folder: the folder of the file `HASHES`.
      progress: whether to show a bar.

    Raises:
      UserError: an evaluation image does not decode (its copies would stay in the training data), or a pattern fits
        no image.
    """
    path = folder / HASHES
    if path.exists():
        return
    hashes = set()
    for name in tqdm(list(image_files(patterns)), unit="image", desc="Evaluation images", disable=not progress):
        try:
            hashes.add(perceptual_hash(open_image(read_file(name))))
        except (OSError, BadImage) as error:
            raise UserError(f"The evaluation image {name} cannot be read: {error}.") from None
    save_array(path, np.array(sorted(hashes), np.uint64))


def image_files(patterns: Iterable[str]) -> Iterator[pathlib.Path]:
    """Yields the image files that patterns mean: image files, all images in folders, and the files that lists name.

    A list is a file .txt with a path on each line, relative to its folder. Raises `UserError` for a pattern without
    files.
    """
    for pattern in patterns:
        for path in find_files(pattern):
            if path.suffix == ".txt":
                yield from (path.parent / line.strip() for _, line in read_lines(path) if line.strip())
            elif path.is_dir():
                files = sorted(file for file in path.rglob("*") if file.suffix.lower()[1:] in ENDINGS)
                if not files:
                    raise UserError(f"The folder {path} of evaluation images holds no image file.")
                yield from files
            else:
                yield path


_ONES = np.array([bin(number).count("1") for number in range(1 << 16)], np.uint8)  # bits that are 1, by the number


def is_near(hashes: np.ndarray, value: int, distance: int) -> bool:
    """Whether any of the hashes, uint64 [N], differs from the hash `value` in at most `distance` bits."""
    differences = hashes ^ np.uint64(value)
    different_bits = _ONES[differences.view(np.uint16)].reshape(-1, 4)  # [N, 4]: a hash is four numbers of 16 bits
    return bool((different_bits.sum(axis=1) <= distance).any())


# In these scripts words are not set apart, so each of their characters counts as a unigram: Thai, Lao, Tibetan,
# Burmese, Khmer, Japanese, Chinese.
_UNSPACED = r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNIGRAM = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def count_unigrams(text: str) -> int:
    """Returns the number of words; in scripts without spaces between words every character counts."""
    return len(_UNIGRAM.findall(text))


EXCLUDED_TEXTS = "excluded_texts.npy"
EXCLUDED = "text of the --exclude_texts files"


class Screen:
    """The filters of one conversion.

    Args:
      settings: the settings of the conversion, with its filters.
      folder: the folder with the hashes that all workers share, see `hash_evaluation_images` and `hash_excluded`.
    """

    def __init__(self, settings: Settings, folder: pathlib.Path):
        self.settings = settings
        self.filters = settings.filters
        self.excluded = _load_hashes(folder / EXCLUDED_TEXTS)
        self.evaluation_hashes = _load_hashes(folder / HASHES)

    def accepts_pair(self, pair: Pair, tally: Tally) -> bool:
        """Whether a text pair is wanted; `tally` counts an unwanted pair."""
        is_excluded = self._is_excluded(pair.text_a) or self._is_excluded(pair.text_b)
        if is_excluded:
            tally.leave_out(EXCLUDED, pair.place)
        return not is_excluded

    def accepted_texts(self, captioned: Captioned, reading: Reading) -> Captioned | None:
        """Returns an image with its wanted captions, `None` if no caption is left; the image is not opened.

        The tally of `reading` counts the unwanted captions.
        """
        texts = []
        for text in captioned.texts:
            reason = self.reason_against(text.text, reading.decided)
            if reason:
                reading.tally.leave_out(reason, text.place)
            else:
                texts.append(text)
        if not texts:
            return None
        return captioned._replace(texts=texts)

    def accepts_image(self, captioned: Captioned, reading: Reading) -> bool:
        """Whether an image can be opened and is wanted; the tally of `reading` counts any other image.

        Where duplicates are dropped the whole image is checked: if a damaged image counted as the first of its
        duplicates, all of them would be left out.
        """
        try:
            reason = self._reason_against_image(captioned, reading.decided)
            if not reason and self.settings.drop_duplicates:
                usable_bytes(captioned.image, open_image(captioned.image), self.settings.image_size)
        except BadImage as error:
            reading.tally.skip(str(error), _location(captioned), len(captioned.texts))
            return False
        if reason:
            reading.tally.leave_out(reason, _location(captioned), len(captioned.texts))
        return not reason

    def record_of(self, captioned: Captioned, reading: Reading) -> Captioned | None:
        """Returns an accepted image as a record holds it, with the captions' translations; `None` if it is damaged.

        The tally of `reading` counts a damaged image.
        """
        texts = captioned.texts
        try:
            image = usable_bytes(captioned.image, open_image(captioned.image), self.settings.image_size)
        except BadImage as error:
            reading.tally.skip(str(error), _location(captioned), len(texts))
            return None
        if self.settings.translations:
            texts = add_translations(captioned.image_id, texts, reading.decided.translations)
        return captioned._replace(image=image, texts=texts)

    def _reason_against_image(self, captioned: Captioned, decided) -> str:
        """Returns why an image is not wanted, "" if it is; raises `BadImage` if it cannot be opened.

        `decided` are the decisions about its unit, `Reading.decided`.
        """
        filters = self.filters
        if contains_text(decided.frequent_images, captioned.image_id):
            return f"image with more than {filters.max_texts_per_image} texts"
        size = open_image(captioned.image).size
        if filters.above_shorter_side and min(size) <= filters.above_shorter_side:
            return f"image whose shorter side is not above {filters.above_shorter_side} pixels"
        if filters.max_aspect_ratio and max(size) > filters.max_aspect_ratio * min(size):
            return f"image of an aspect ratio above {filters.max_aspect_ratio:g}"
        if self.evaluation_hashes.size:
            image_hash = perceptual_hash(open_image(captioned.image))
            if is_near(self.evaluation_hashes, image_hash, self.settings.hash_distance):
                return "image that looks like an evaluation image"
        return ""

    def reason_against(self, text: str, decided) -> str:
        """Returns why a caption is not wanted, "" if it is; `decided` are the decisions about its unit."""
        filters = self.filters
        if filters.max_characters and len(text) > filters.max_characters:
            return f"caption of more than {filters.max_characters} characters"
        if filters.min_words or filters.max_words:
            unigrams = count_unigrams(text)
            if unigrams < filters.min_words:
                return f"caption of fewer than {filters.min_words} words"
            if filters.max_words and unigrams > filters.max_words:
                return f"caption of more than {filters.max_words} words"
        if self._is_excluded(text):
            return EXCLUDED
        if contains_text(decided.frequent_texts, text):
            return f"text on more than {filters.max_images_per_text} images"
        return ""

    def _is_excluded(self, text: str) -> bool:
        """Whether a text is in the files of excluded texts, in any case of its letters."""
        return contains_text(self.excluded, text.casefold())


def _location(captioned: Captioned) -> str:
    """Returns where an image with captions is, for the tally: "captions.tsv:3 (its id)"."""
    return f"{captioned.texts[0].place} ({captioned.image_id})"


def hash_excluded(patterns: tuple[str, ...], folder: pathlib.Path) -> None:
    """Writes the sorted hashes of excluded texts to the file `EXCLUDED_TEXTS` in `folder`, unless it is there.

    The texts are the tab-separated fields of all lines of the files that match the patterns. Raises `UserError` for a
    pattern without files, and for lines that cannot be read.
    """
    if (folder / EXCLUDED_TEXTS).exists():
        return
    hashes = set()
    for pattern in patterns:
        for path in find_files(pattern):
            for _, line in read_lines(path):  # raises: a text that is not excluded would be trained on
                for field in line.split("\t"):
                    if clean(field):
                        hashes.add(text_hash(clean(field).casefold()))
    save_array(folder / EXCLUDED_TEXTS, np.array(sorted(hashes), np.uint64))


def _load_hashes(path: pathlib.Path) -> np.ndarray:
    """Returns the hashes in a file, uint64 [N]; no hashes if there is no such file."""
    if not path.exists():
        return np.empty(0, np.uint64)
    return read_array(path)
