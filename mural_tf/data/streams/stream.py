"""A stream: one kind of items, its way from records to the entries of a batch.

Each is a file of this folder, found by its name, whose class says what differs: how a record is parsed into items, what
decoding makes of one, what finishing makes of a batch of them. A method names the streams that feed its tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.skipped import UNREADABLE_IMAGE
from mural_tf.data.images import finish_images, read_image
from mural_tf.data.records import IMAGE_TEXT, parse_image_text, parse_img2dataset
from mural_tf.data.streams.columns import Column
from mural_tf.text.tokens import tag_language


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a stream needs to know of a configuration; `data`, `image_tower` and `augmentation` are its branches.

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
      batch_field: of `config.train`, the size of a batch.
      order: two streams that run side by side have two orders.
      without: the error where no record holds such an item.
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
        self.settings, self.texts = settings, texts
        data = settings.data
        self.languages: Sequence[str] = data.image_text_languages
        self.size = self.items_of(settings.batch, settings.own)
        self.parse: Callable = caption_parser(data.format, data.default_language)
        self.pictures = settings.columns.get("image")  # vectors in their place, `None` where pictures are decoded
        if self.pictures is not None and type(self).decode is Stream.decode:
            self.decode = None  # items stay as `read` gives them: no item needs a step of its own

    @classmethod
    def record_type(cls, data: ConfigDict) -> str:
        """The kind of records that hold its items."""
        return IMAGE_TEXT

    @classmethod
    def text_entries(cls, data: ConfigDict) -> tuple[str, ...]:
        """The entries of items that are texts to embed."""
        return ("caption",)

    @classmethod
    def items_of(cls, batch: int, own: ConfigDict) -> int:
        """Returns how many items hold `batch` texts."""
        return batch

    def read(self, serialized: tf.Tensor) -> dict:
        """The items of a record, {name: [items, …]}, as batches take them; without pictures that have vectors.

        A picture without a vector does not decode.
        """
        items = self.parse(serialized)
        if self.pictures is None or "image" not in items:
            return items
        ids = fingerprint(items["image_id"])[:, None]
        lacks_vector = tf.reduce_any(tf.equal(ids, self.pictures.without_vector[None, :]), axis=1)
        problem = tf.where(lacks_vector & tf.equal(items["problem"], ""), UNREADABLE_IMAGE, items["problem"])
        return {**{name: value for name, value in items.items() if name != "image"}, "problem": problem}

    def decode(self, item: dict, position: tf.Tensor) -> dict:
        """What an item, {name: scalar} of `read`, at a position, int64 [2], is in a batch; its image is decoded.

        A class where this is `None` takes items as they are.
        """
        if self.pictures is not None:
            return item
        usable = tf.equal(item["problem"], "")
        return {**item, "image": read_image(item["image"], self.settings.image_tower, usable)}

    def finish(self, items: dict, seed: tf.Tensor) -> dict:
        """Makes the entries of a batch of its items, {name: [B, …]}; `seed`, int64 [2], is the batch's."""
        return {**self.picture(items, seed), **self.caption(items)}

    # What several streams share.

    def item_seed(self, position: tf.Tensor) -> tf.Tensor:
        """int64 [2] for one item's draws, which differ in every epoch."""
        return tf.stack([tf.cast(self.settings.seed, tf.int64) * 2**20 + position[0], position[1]])

    def picture(self, items: dict, seed: tf.Tensor) -> dict:
        """Pixels, or features of the record; nothing where a column has them."""
        if self.pictures is not None:
            return {}
        images = finish_images(items["image"], self.settings.image_tower, self.settings.augmentation, seed)
        return {"image": with_rows(items["image"], images)}

    def caption(self, items: dict) -> dict:
        """Ids and tokens."""
        ids = {name: fingerprint(items[of]) for name, of in (("image_id", "image_id"), ("caption_id", "caption"))}
        return ids if "caption" in self.settings.columns else {**ids, "caption": self.texts.tokens(items["caption"])}

    def text_pair(self, items: dict) -> dict:
        """Tokens of one width, and ids, of the items' `text_a` and `text_b`."""
        sides, tagged = [items["text_a"], items["text_b"]], self.texts.tokenizer.takes_languages
        ids = {f"text_{side}_id": fingerprint(strings) for side, strings in zip("ab", sides)}
        if self.settings.columns.keys() & {"text_a", "text_b"}:
            return ids
        if tagged:
            sides = [tag_language(strings, items[f"language_{side}"]) for side, strings in zip("ab", sides)]
        tokens = self.texts.tokens(tf.concat(sides, axis=0))
        if tagged:
            languages = tf.split(tokens["input_type_ids"][:, 0], 2)
            ids.update({f"text_{side}_language_id": language for side, language in zip("ab", languages)})
        halves = {name: tf.split(value, 2) for name, value in tokens.items()}
        return {**ids, **{f"text_{side}": {n: half[i] for n, half in halves.items()} for i, side in enumerate("ab")}}


class Texts:
    """The tokenizer as one function for all streams: tracing it takes a large part of the start."""

    def __init__(self, tokenizer, pad: str):
        self.tokenizer = tokenizer
        self._tokens = tf.function(
            lambda texts: tokenizer(texts, pad=pad), [tf.TensorSpec([None], tf.string)], autograph=False
        )

    def tokens(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Tokenizes string [B]: int32 [B, T] each, B as static as it was."""
        return with_rows(texts, self._tokens(texts))


def caption_parser(format: str, default_language: str) -> Callable:
    """Returns the parser of a record of this `data.format` into an item for each caption."""
    return parse_image_text if format == "mural" else parse_img2dataset(default_language)


def with_rows(of: tf.Tensor, values):
    """States the number of rows, which tokenizing and resampling forget."""
    return tf.nest.map_structure(lambda v: tf.ensure_shape(v, of.shape[:1] + v.shape[1:]), values)


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    """Returns an int64 id for each string."""
    return tf.strings.to_hash_bucket_fast(strings, np.iinfo(np.int64).max)
