"""Decides what of a source becomes a record: usable images, and the filters that were chosen."""

from __future__ import annotations

import pathlib
import re

import numpy as np

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.frequency import IMAGES, TEXTS
from mural_tf.data.convert.hashing import text_hash
from mural_tf.data.convert.image_files import BadImage, examine, usable_bytes
from mural_tf.data.convert.near_duplicates import hash_bytes, load_near_duplicates
from mural_tf.data.convert.settings import Settings
from mural_tf.data.convert.source import Captioned, Pair, Text, find_files
from mural_tf.data.convert.tally import Tally
from mural_tf.data.convert.translate_train import Translations
from mural_tf.data.records import ImageTextRecord
from mural_tf.data.text_files import clean, read_lines

# In these scripts words are not set apart, so each of their characters counts as a unigram: Thai, Lao, Tibetan,
# Burmese, Khmer, Japanese, Chinese.
_UNSPACED = r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNIGRAM = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def count_unigrams(text: str) -> int:
    """Counts what white space separates, and every character of scripts without spaces between words."""
    return len(_UNIGRAM.findall(text))


class Screen:
    """The filters of one conversion, with what they learned beforehand in `folder`."""

    def __init__(self, settings: Settings, folder: pathlib.Path):
        self.settings, self.filters = settings, settings.filters
        self.excluded = _read_excluded(settings.exclude_texts)
        self.frequent_texts, self.frequent_images = (_load_hashes(folder / name) for name in (TEXTS, IMAGES))
        self.near_duplicates = load_near_duplicates(folder, settings.hash_distance)
        self.translations = Translations(folder)

    def accepts_pair(self, pair: Pair, tally: Tally) -> bool:
        """Tells whether a text pair is wanted."""
        if self._is_excluded(pair.text_a) or self._is_excluded(pair.text_b):
            tally.leave_out("text of the --exclude_texts files", pair.place)
            return False
        return True

    def image_text_record(self, found: Captioned, tally: Tally) -> ImageTextRecord | None:
        """Returns the record of an image and its wanted captions, `None` if nothing is left."""
        texts = [text for text in found.texts if self._accepts_text(text, tally)]
        if not texts:
            return None
        place = f"{found.texts[0].place} ({found.image_id})"
        try:
            image, reason = self._image_or_reason(found)
        except BadImage as error:
            tally.skip(str(error), place, len(texts))
            return None
        if reason:
            tally.leave_out(reason, place, len(texts))
            return None
        captions, languages, groups, _ = zip(*self.translations.add_to(found.image_id, texts))
        return ImageTextRecord(found.image_id, image, captions, languages, groups)

    def _image_or_reason(self, found: Captioned) -> tuple[bytes, str]:
        """Returns what the record holds, or why the image is not wanted; raises `BadImage`."""
        filters = self.filters
        if self.frequent_images.size and _contains(self.frequent_images, text_hash(found.image_id)):
            return b"", f"image with more than {filters.max_texts_per_image} texts"
        opened, size = examine(found.image)
        if filters.above_shorter_side and min(size) <= filters.above_shorter_side:
            return b"", f"image whose shorter side is not above {filters.above_shorter_side} pixels"
        if filters.max_aspect_ratio and max(size) > filters.max_aspect_ratio * min(size):
            return b"", f"image of an aspect ratio above {filters.max_aspect_ratio:g}"
        if self.near_duplicates and self.near_duplicates.contains(_perceptual_hash(found.image)):
            return b"", "image that looks like an evaluation image"
        return usable_bytes(found.image, opened, self.settings.image_size), ""

    def _accepts_text(self, text: Text, tally: Tally) -> bool:
        filters = self.filters
        reason = ""
        if filters.max_characters and len(text.text) > filters.max_characters:
            reason = f"caption of more than {filters.max_characters} characters"
        elif filters.min_words or filters.max_words:
            unigrams = count_unigrams(text.text)
            if unigrams < filters.min_words:
                reason = f"caption of fewer than {filters.min_words} words"
            elif filters.max_words and unigrams > filters.max_words:
                reason = f"caption of more than {filters.max_words} words"
        if not reason and self._is_excluded(text.text):
            reason = "text of the --exclude_texts files"
        if not reason and self.frequent_texts.size and _contains(self.frequent_texts, text_hash(text.text)):
            reason = f"text on more than {filters.max_images_per_text} images"
        if reason:
            tally.leave_out(reason, text.place)
        return not reason

    def _is_excluded(self, text: str) -> bool:
        return self.excluded.size > 0 and _contains(self.excluded, text_hash(text.casefold()))


def _read_excluded(patterns: tuple[str, ...]) -> np.ndarray:
    """Returns the sorted hashes of all lines of the files, and of the tab-separated fields of each."""
    hashes = set()
    for pattern in patterns:
        for path in find_files(pattern):
            for _, line in read_lines(path, lambda kind, place: None):
                for field in (line or "").split("\t"):
                    if clean(field):
                        hashes.add(text_hash(clean(field).casefold()))
    return np.array(sorted(hashes), np.uint64)


def _load_hashes(path: pathlib.Path) -> np.ndarray:
    return np.load(path, mmap_mode="r") if path.exists() else np.empty(0, np.uint64)


def _perceptual_hash(image: bytes) -> int:
    try:
        return hash_bytes(image)
    except ConfigurationError:
        raise
    except Exception:  # noqa: BLE001 - Pillow's decoders raise many classes
        raise BadImage("image that does not decode") from None


def _contains(sorted_hashes: np.ndarray, value: int) -> bool:
    index = np.searchsorted(sorted_hashes, np.uint64(value))
    return index < sorted_hashes.size and int(sorted_hashes[index]) == value
