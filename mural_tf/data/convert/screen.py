"""Decides what of a source becomes a record: usable images, and the filters that were chosen."""

from __future__ import annotations

import hashlib
import pathlib
import re

import numpy as np

from mural_tf.data.caption_files import clean, read_lines
from mural_tf.data.convert.image_files import BadImage, examine, usable_bytes
from mural_tf.data.convert.settings import Settings
from mural_tf.data.convert.source import Captioned, Pair, Text, find_files
from mural_tf.data.convert.tally import Tally
from mural_tf.data.records import ImageTextRecord

# In these scripts words are not set apart, so each of their characters counts as a unigram: Thai, Lao, Tibetan,
# Burmese, Khmer, Japanese, Chinese.
_UNSPACED = r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNIGRAM = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def count_unigrams(text: str) -> int:
    """Counts what white space separates, and every character of scripts without spaces between words."""
    return len(_UNIGRAM.findall(text))


def text_hash(text: str) -> int:
    """Returns 64 bits that stand for a text (or an image id)."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


class Screen:
    """The filters of one conversion, with what they learned beforehand in `folder`."""

    def __init__(self, settings: Settings, folder: pathlib.Path):
        self.settings, self.filters = settings, settings.filters
        self.excluded = _read_excluded(settings.exclude_texts)

    def accepts_pair(self, pair: Pair, tally: Tally) -> bool:
        """Tells whether a text pair is wanted."""
        if self._is_excluded(pair.text_a) or self._is_excluded(pair.text_b):
            tally.leave_out("text of the --exclude_texts files", pair.place)
            return False
        return True

    def image_text_record(self, found: Captioned, tally: Tally) -> ImageTextRecord | None:
        """Returns the record of an image and its wanted captions, `None` if nothing is left."""
        place = found.texts[0].place
        texts = [text for text in found.texts if self._accepts_text(text, tally)]
        if not texts:
            return None
        try:
            opened, size = examine(found.image)
            reason = self._reason_against_image(size)
            if reason:
                tally.leave_out(reason, place, len(texts))
                return None
            image = usable_bytes(found.image, opened, self.settings.image_size)
        except BadImage as error:
            tally.skip(str(error), f"{place} ({found.image_id})", len(texts))
            return None
        captions, languages, groups, _ = zip(*texts)
        return ImageTextRecord(found.image_id, image, captions, languages, groups)

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
        if reason:
            tally.leave_out(reason, text.place)
        return not reason

    def _reason_against_image(self, size: tuple[int, int]) -> str:
        filters = self.filters
        if filters.above_shorter_side and min(size) <= filters.above_shorter_side:
            return f"image whose shorter side is not above {filters.above_shorter_side} pixels"
        if filters.max_aspect_ratio and max(size) > filters.max_aspect_ratio * min(size):
            return f"image of an aspect ratio above {filters.max_aspect_ratio:g}"
        return ""

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


def _contains(sorted_hashes: np.ndarray, value: int) -> bool:
    index = np.searchsorted(sorted_hashes, np.uint64(value))
    return index < sorted_hashes.size and int(sorted_hashes[index]) == value
