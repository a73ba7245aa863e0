"""How a conversion runs and what it leaves out; the command line's flags in one place."""

from __future__ import annotations

import dataclasses

from mural_tf.config import ConfigurationError

BLOCK_SIZES = {"pair": 100_000, "image": 1_000, "file": 1}


@dataclasses.dataclass(frozen=True)
class Filters:
    """What may be left out of web data; 0 or an empty tuple means no such filter.

    Attributes:
      above_shorter_side: keep images whose shorter side is longer than this, in pixels.
      max_aspect_ratio: longer side divided by shorter side, at most.
      max_texts_per_image: images with more texts are left out, counted over all sources.
      max_images_per_text: texts on more images are left out, counted over all sources.
      min_words, max_words: unigrams in a caption; in scripts without spaces every character counts as one.
      max_characters: in a caption.
    """

    above_shorter_side: int = 0
    max_aspect_ratio: float = 0.0
    max_texts_per_image: int = 0
    max_images_per_text: int = 0
    min_words: int = 0
    max_words: int = 0
    max_characters: int = 0


FILTERS = {
    "none": Filters(),
    # Jia et al. (2021), §3. Left out: its list of rare tokens, which needs the unigrams of the whole web crawl.
    "align": Filters(200, 3.0, 1000, 10, 3, 20, 0),
    # ETCL, §3.2. Left out: its language identification by cld3, which only serves an English model.
    "etcl": Filters(200, 3.0, 100, 10, 3, 100, 1000),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """One conversion. The fields of `identity` decide the bytes written; the others do not.

    Attributes:
      filters: see `Filters`.
      evaluation_images: files, folders or patterns; training images that look like one of these are left out.
      hash_distance: bits (of 64) by which perceptual hashes of the same picture may differ.
      exclude_texts: text files or patterns; a pair or caption that has one of their lines as a text is left out.
      translations: files of translations of English captions, see `translate_train`.
      translation_languages: those that are used; empty for all.
      image_size: images whose shorter side is longer are shrunk to it, in pixels; 0 copies them as they are.
      block_sizes: items a block holds, by kind of item.
      shard_megabytes: parts are joined to files of at least this size.
      workers: processes; 0 converts in the calling process.
      max_skipped_fraction: of the items read; above it the conversion stops.
    """

    filters: Filters = Filters()
    evaluation_images: tuple[str, ...] = ()
    hash_distance: int = 4
    exclude_texts: tuple[str, ...] = ()
    translations: tuple[str, ...] = ()
    translation_languages: tuple[str, ...] = ()
    image_size: int = 0
    block_sizes: tuple[tuple[str, int], ...] = tuple(BLOCK_SIZES.items())
    shard_megabytes: int = 64
    workers: int = 1
    max_skipped_fraction: float = 0.01

    def __post_init__(self):
        if self.workers < 0 or self.shard_megabytes < 0 or not 0 <= self.max_skipped_fraction <= 1:
            raise ConfigurationError("Expected workers ≥ 0, shard_megabytes ≥ 0 and 0 ≤ max_skipped_fraction ≤ 1.")
        if not 0 <= self.hash_distance <= 16:
            raise ConfigurationError(
                f"hash_distance is {self.hash_distance}: expected 0 to 16 of 64 bits; unlike images differ by about 32."
            )

    def identity(self) -> dict:
        """Returns what decides the bytes, as JSON values."""
        values = dataclasses.asdict(self)
        del values["workers"], values["max_skipped_fraction"]
        return {key: _as_json(value) for key, value in values.items()}


def _as_json(value):
    if isinstance(value, (list, tuple)):
        return [_as_json(v) for v in value]
    return value
