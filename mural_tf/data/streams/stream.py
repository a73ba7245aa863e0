"""A stream: one kind of items, its way from records to the entries of a batch.

Each stream is a file of this folder, found by its name, whose class has the three steps that differ: `read` parses a
record into items, `decode` decodes an item, `make_batch` makes a batch of items. A method names the streams of its
tasks.

An item is {name: string scalar}, for example {"image_id", "image", "caption", "language", "problem"}; items of a record
or a batch are {name: string [items]}.
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
    """The settings that a stream reads.

    Attributes:
      data, image_tower, augmentation: these branches of the configuration.
      seed: the seed of the draws for single items.
      batch: texts, or text pairs, in a batch.
      own: the stream's `fields` as the method has them; the stream's defaults where the method has no such field.
      columns: {entry of a batch: the column that has its vectors}, for entries that are vectors made before.
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
      order: 0 or 1; two streams that run side by side have different numbers, so that their orders differ.
      without: the error message if no record holds an item of the stream.
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
        self.picture_column = settings.columns.get("image")  # `None` where pictures are decoded
        if self.picture_column is not None and type(self).decode is Stream.decode:
            self.decode = None  # items stay as `read` gives them: no item needs a step of its own

    @classmethod
    def record_type(cls, data: ConfigDict) -> str:
        """Returns the type of the records that hold the stream's items, `IMAGE_TEXT` or `TEXT_PAIRS`."""
        return IMAGE_TEXT

    @classmethod
    def text_entries(cls, data: ConfigDict) -> tuple[str, ...]:
        """Returns the names of the items' entries that are texts to embed."""
        return ("caption",)

    @classmethod
    def items_of(cls, batch: int, own: ConfigDict) -> int:
        """Returns how many items a batch of `batch` texts has; `own` are the stream's settings."""
        return batch

    def read(self, serialized: tf.Tensor) -> dict:
        """Parses a record, a string scalar, into items, {name: string [items]}.

        Items lack "image" where no batch takes pictures, or a column has their vectors. With a column, items whose
        picture has no vector get the problem `UNREADABLE_IMAGE`: only pictures that do not decode lack a vector.
        """
        items = dict(self.parse(serialized))
        if self.picture_column is not None or not self.with_pictures:
            items.pop("image", None)
        if self.picture_column is None or "image_id" not in items:
            return items
        ids = fingerprint(items["image_id"])[:, None]
        lacks_vector = tf.reduce_any(tf.equal(ids, self.picture_column.without_vector[None, :]), axis=1)
        is_unreadable = lacks_vector & tf.equal(items["problem"], "")
        return {**items, "problem": tf.where(is_unreadable, UNREADABLE_IMAGE, items["problem"])}

    def decode(self, item: dict, position: tf.Tensor) -> dict:
        """Returns an item with its image decoded, as `read_image` returns it; the same item for a column of vectors.

        A class where this is `None` takes items as `read` gives them.

        Args:
          item: {name: string scalar}, one of the items of `read`.
          position: (epoch, offset in the epoch), int64 [2].
        """
        if self.picture_column is not None:
            return item
        usable = tf.equal(item["problem"], "")
        return {**item, "image": read_image(item["image"], self.settings.image_tower, usable)}

    def make_batch(self, items: dict, seed: tf.Tensor) -> dict:
        """Returns the entries of a batch, {name: [B, …]}.

        Args:
          items: the batch's items, as `decode` returns them, {name: [B, …]}.
          seed: int64 [2], of the batch's draws.
        """
        return {**self.picture(items, seed), **self.caption(items)}

    # Shared by several streams.

    def item_seed(self, position: tf.Tensor) -> tf.Tensor:
        """Returns the seed, int64 [2], of the draws for the item at `position`, (epoch, offset), int64 [2]."""
        epoch, offset = tf.unstack(position)
        seed = tf.cast(self.settings.seed, tf.int64)
        return tf.stack([seed * 2**20 + epoch, offset])  # apart for fewer than 2^20 epochs

    def picture(self, items: dict, seed: tf.Tensor) -> dict:
        """Returns {"image": uint8 [B, S, S, 3], augmented, or features, float32 [B, F]}; {} for a column of vectors.

        Arguments are as in `make_batch`.
        """
        if self.picture_column is not None:
            return {}
        images = items["image"]
        tower = self.settings.image_tower
        if not takes_features(tower):
            augmented = augment_images(images, tower.image_size, self.settings.augmentation, seed)
            images = with_static_batch_size(images, augmented)
        return {"image": images}

    def caption(self, items: dict) -> dict:
        """Returns {"image_id": int64 [B], "caption_id": int64 [B], "caption": tokens, {name: int32 [B, T]}}.

        Without "caption" where a column has the captions' vectors. `items` are {name: string [B]}.
        """
        entries = {"image_id": fingerprint(items["image_id"]), "caption_id": fingerprint(items["caption"])}
        if "caption" not in self.settings.columns:
            entries["caption"] = self.texts.tokens(items["caption"])
        return entries

    def text_pair(self, items: dict) -> dict:
        """Returns the entries of a batch of text pairs.

        They are "text_a_id" and "text_b_id", int64 [B]; unless a column has vectors of the texts, also the tokens
        "text_a" and "text_b", {name: int32 [B, T]}, of one width T, and with a tokenizer that takes languages
        "text_a_language_id" and "text_b_language_id", int32 [B].

        Args:
          items: {name: string [B]}, with "text_a", "text_b" and their languages, "language_a" and "language_b".
        """
        texts = [items["text_a"], items["text_b"]]
        entries = {"text_a_id": fingerprint(texts[0]), "text_b_id": fingerprint(texts[1])}
        if self.settings.columns.keys() & {"text_a", "text_b"}:
            return entries
        takes_languages = self.texts.tokenizer.takes_languages
        if takes_languages:
            texts = [tag_language(items[f"text_{side}"], items[f"language_{side}"]) for side in "ab"]
        tokens = self.texts.tokens(tf.concat(texts, axis=0))  # [2 B, T]: one call, so that T is the same
        if takes_languages:
            language_a, language_b = tf.split(tokens["input_type_ids"][:, 0], 2)
            entries["text_a_language_id"] = language_a
            entries["text_b_language_id"] = language_b
        entries["text_a"] = {}
        entries["text_b"] = {}
        for name, ids in tokens.items():
            entries["text_a"][name], entries["text_b"][name] = tf.split(ids, 2)
        return entries


class Texts:
    """The tokenizer as one traced function for all streams: tracing it takes a large part of the start.

    Args:
      tokenizer: a `Tokenizer`.
      pad: "max_length" or "longest", as in `training_batches`.
    """

    def __init__(self, tokenizer, pad: str):
        self.tokenizer = tokenizer
        self._tokens = tf.function(
            lambda texts: tokenizer(texts, pad=pad), [tf.TensorSpec([None], tf.string)], autograph=False
        )

    def tokens(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the tokens of texts, string [B]: {name: int32 [B, T]}; a static B stays static."""
        return with_static_batch_size(texts, self._tokens(texts))


def caption_parser(format: str, default_language: str) -> Callable:
    """Returns the function that parses a record, a string scalar, into an item for each caption.

    Args:
      format: `data.format`, "mural" or "img2dataset".
      default_language: the language of img2dataset's captions, whose records do not say it.
    """
    if format == "mural":
        return parse_image_text
    return parse_img2dataset(default_language)


def with_static_batch_size(reference: tf.Tensor, tensors):
    """Returns `tensors` with the static number of rows that `reference` has, which tokenizing and resampling lose.

    Args:
      reference: a tensor [B, …].
      tensors: a tensor [B, …], or a dictionary, list or tuple of such tensors.
    """

    def with_batch_size(tensor):
        return tf.ensure_shape(tensor, reference.shape[:1] + tensor.shape[1:])

    return tf.nest.map_structure(with_batch_size, tensors)


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    """Returns an id, a hash, for each of `strings`: int64 of their shape."""
    return tf.strings.to_hash_bucket_fast(strings, np.iinfo(np.int64).max)


def fingerprints(strings: Sequence[bytes] | np.ndarray) -> np.ndarray:
    """Returns `fingerprint`'s ids of N strings, outside of a graph: int64 [N]."""
    return fingerprint(tf.constant(strings, tf.string)).numpy()


def is_one_of(strings: tf.Tensor, names: Sequence[str]) -> tf.Tensor:
    """Returns whether each of `strings`, string [N], is one of `names`: bool [N]."""
    is_same = tf.equal(strings[:, None], tf.constant(list(names))[None, :])  # [N, names]
    return tf.reduce_any(is_same, axis=1)
