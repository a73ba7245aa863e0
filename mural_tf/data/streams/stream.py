"""A stream: one kind of items, its way from records to the entries of a batch.

Each is a file of this folder, found by its name, whose class has the three steps that differ: `read` parses a record
into items, `decode` decodes an item, `make_batch` makes a batch of items. A method names the streams of its tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.config import takes_features
from mural_lite.skipped import UNREADABLE_IMAGE
from mural_tf.data.images import augment_images, read_image
from mural_tf.data.records import IMAGE_TEXT, parse_image_text, parse_img2dataset
from mural_tf.data.streams.columns import Column
from mural_tf.text.tokens import tag_language


@dataclasses.dataclass(frozen=True)
class Settings:
    """The part of a configuration that a stream reads; `data`, `image_tower` and `augmentation` are its branches.

    batch: texts, or pairs of them, in a batch.
    own: the stream's `fields` as the method has them; the stream's defaults where the method has no such field.
    columns: entries of a batch that are vectors made before, and the columns that have them.
    """

    data: ConfigDict
    image_tower: ConfigDict
    augmentation: ConfigDict
    seed: int
    batch: int
    own: ConfigDict
    columns: Mapping[str, Column] = dataclasses.field(default_factory=dict)


class Stream:
    """Base of all streams; by itself, an image and one of its captions.

    Attributes:
      fields: {name: default} of a method's settings that the stream reads; the method has them among its own.
      batch_field: the field of `config.train` that holds the size of a batch.
      order: a number that differs between two streams that run side by side, so that their orders differ.
      without: the error's text where no record holds such an item.
      languages: the languages of the items to take; empty: all.
      language_key: the entry with an item's language.
      size: items in a batch.
      takes_many: whether `read` takes records, string [N], and gives an item for each.
      with_pictures: whether items hold "image" and "image_id".
    """

    fields: ClassVar[Mapping] = {}
    batch_field: ClassVar[str] = "image_text_batch"
    order: ClassVar[int] = 0
    without = "There is no record."
    language_key = "language"
    takes_many = False
    with_pictures: ClassVar[bool] = True

    def __init__(self, settings: Settings, texts: Texts):
        self.settings = settings
        self.texts = texts
        data = settings.data
        self.languages: Sequence[str] = data.image_text_languages
        self.size = self.items_of(settings.batch, settings.own)
        self.parse: Callable = caption_parser(data.format, data.default_language)
        self.pictures = settings.columns.get("image")  # vectors in their place, `None` where pictures are decoded
        if self.pictures is not None and type(self).decode is Stream.decode:
            self.decode = None  # items stay as `read` gives them: no item needs a step of its own

    @classmethod
    def record_type(cls, data: ConfigDict) -> str:
        """Returns the kind of records that hold its items."""
        return IMAGE_TEXT

    @classmethod
    def text_entries(cls, data: ConfigDict) -> tuple[str, ...]:
        """Returns the names of the items' entries that are texts to embed."""
        return ("caption",)

    @classmethod
    def items_of(cls, batch: int, own: ConfigDict) -> int:
        """Returns how many items hold `batch` texts."""
        return batch

    def read(self, serialized: tf.Tensor) -> dict:
        """Returns the items of a record, {name: [items, …]}, as batches take them; without pictures that have vectors.

        A picture without a vector does not decode. Pictures that no batch takes are left out, too.
        """
        items = dict(self.parse(serialized))
        if self.pictures is not None or not self.with_pictures:
            items.pop("image", None)
        if self.pictures is None or "image_id" not in items:
            return items
        ids = fingerprint(items["image_id"])[:, None]
        lacks_vector = tf.reduce_any(tf.equal(ids, self.pictures.without_vector[None, :]), axis=1)
        is_unreadable = lacks_vector & tf.equal(items["problem"], "")
        return {**items, "problem": tf.where(is_unreadable, UNREADABLE_IMAGE, items["problem"])}

    def decode(self, item: dict, position: tf.Tensor) -> dict:
        """Returns an item, {name: scalar} of `read`, with its image decoded.

        A class where this is `None` takes items as they are.

        Args:
          position: int64 [2].
        """
        if self.pictures is not None:
            return item
        usable = tf.equal(item["problem"], "")
        return {**item, "image": read_image(item["image"], self.settings.image_tower, usable)}

    def make_batch(self, items: dict, seed: tf.Tensor) -> dict:
        """Makes the entries of a batch of its items, {name: [B, …]}; `seed`, int64 [2], is the batch's."""
        return {**self.picture(items, seed), **self.caption(items)}

    # Shared by several streams.

    def item_seed(self, position: tf.Tensor) -> tf.Tensor:
        """Returns the seed of one item's draws, int64 [2], which differs in every epoch; `position` as in `decode`."""
        epoch, offset = tf.unstack(position)
        seed = tf.cast(self.settings.seed, tf.int64)
        return tf.stack([seed * 2**20 + epoch, offset])

    def picture(self, items: dict, seed: tf.Tensor) -> dict:
        """Returns {"image": pixels or features, [B, …]}; {} where a column has the images' vectors."""
        if self.pictures is not None:
            return {}
        images = items["image"]
        tower = self.settings.image_tower
        if not takes_features(tower):
            augmented = augment_images(images, tower.image_size, self.settings.augmentation, seed)
            images = with_static_batch_size(images, augmented)
        return {"image": images}

    def caption(self, items: dict) -> dict:
        """Returns "image_id", "caption_id", int64 [B], and the tokens "caption" unless a column has their vectors."""
        entries = {"image_id": fingerprint(items["image_id"]), "caption_id": fingerprint(items["caption"])}
        if "caption" not in self.settings.columns:
            entries["caption"] = self.texts.tokens(items["caption"])
        return entries

    def text_pair(self, items: dict) -> dict:
        """Returns ids of the items' `text_a` and `text_b`, and their tokens, of one width, unless columns have vectors.

        Ids are int64 [B], such as "text_a_id"; a tokenizer that takes languages adds "text_a_language_id".
        """
        sides = [items["text_a"], items["text_b"]]
        entries = {"text_a_id": fingerprint(sides[0]), "text_b_id": fingerprint(sides[1])}
        if self.settings.columns.keys() & {"text_a", "text_b"}:
            return entries
        takes_languages = self.texts.tokenizer.takes_languages
        if takes_languages:
            sides = [tag_language(items[f"text_{side}"], items[f"language_{side}"]) for side in "ab"]
        tokens = self.texts.tokens(tf.concat(sides, axis=0))
        if takes_languages:
            language_a, language_b = tf.split(tokens["input_type_ids"][:, 0], 2)
            entries["text_a_language_id"] = language_a
            entries["text_b_language_id"] = language_b
        entries["text_a"] = {}
        entries["text_b"] = {}
        for name, values in tokens.items():
            entries["text_a"][name], entries["text_b"][name] = tf.split(values, 2)
        return entries


class Texts:
    """The tokenizer as one function for all streams: tracing it takes a large part of the start."""

    def __init__(self, tokenizer, pad: str):
        self.tokenizer = tokenizer
        self._tokens = tf.function(
            lambda texts: tokenizer(texts, pad=pad), [tf.TensorSpec([None], tf.string)], autograph=False
        )

    def tokens(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Tokenizes texts, string [B]: {name: int32 [B, T]}; a static B stays static."""
        return with_static_batch_size(texts, self._tokens(texts))


def caption_parser(format: str, default_language: str) -> Callable:
    """Returns the parser of a record of this `data.format` into an item for each caption."""
    if format == "mural":
        return parse_image_text
    return parse_img2dataset(default_language)


def with_static_batch_size(reference: tf.Tensor, tensors):
    """Returns a nest of tensors, [B, …] each, whose static B is the first dimension of `reference`.

    Tokenizing and resampling lose it.
    """

    def with_batch_size(tensor):
        return tf.ensure_shape(tensor, reference.shape[:1] + tensor.shape[1:])

    return tf.nest.map_structure(with_batch_size, tensors)


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    """Returns an int64 id for each string."""
    return tf.strings.to_hash_bucket_fast(strings, np.iinfo(np.int64).max)


def fingerprints(strings: Sequence[bytes] | np.ndarray) -> np.ndarray:
    """Returns an int64 id for each string, [N], the same as `fingerprint`'s, outside of a graph."""
    return fingerprint(tf.constant(strings, tf.string)).numpy()


def is_one_of(strings: tf.Tensor, names: Sequence[str]) -> tf.Tensor:
    """Whether each string, [N], is one of `names`: bool [N]."""
    is_same = tf.equal(strings[:, None], tf.constant(list(names))[None, :])
    return tf.reduce_any(is_same, axis=1)
