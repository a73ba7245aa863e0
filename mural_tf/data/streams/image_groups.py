"""Batches of distinct images with several captions each, in several languages: MULE's image-text stream.

An item is a record, one image with all its captions. In every epoch each image draws `method.captions_per_image` of
them, no caption twice and at most `method.captions_per_language` in a language; an image with fewer
leaves places empty.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data import records
from mural_tf.data.images import finish_images, read_image
from mural_tf.data.records import parse_image_text, untuned
from mural_tf.data.streams.epochs import (
    SkippedRecords,
    drop_problems,
    fingerprint,
    map_or_drop,
    of_size,
    stream_items,
)
from mural_tf.errors import UserError
from mural_tf.text.language_words import tag_language


def image_group_batches(config: ConfigDict, tokenizer, skipped: SkippedRecords, start, pad: str) -> tf.data.Dataset:
    """Returns endless batches of I = train.image_text_batch / N images with N = method.captions_per_image places each.

    {"image": [I, …], "image_id": int64 [I], "caption": tokens, int32 [I N, T], an image's in succession,
    "caption_id": int64 [I N], "caption_language_id": int32 [I N], -1 in empty places, "image_groups_position":
    int64 [I, 2]}. The language ids are the tokenizer's.
    """
    data, train = config.data, config.train
    slots = config.method.captions_per_image
    if train.image_text_batch % slots or not tokenizer.takes_languages or data.format != "mural":
        raise UserError(
            f"method.captions_per_image={slots} must divide train.image_text_batch={train.image_text_batch}, and needs "
            "text_tower.name='words' and data.format='mural'."
        )
    images = train.image_text_batch // slots
    languages = tuple(data.image_text_languages) or tokenizer.languages
    files = records.list_files(data.directory, records.IMAGE_TEXT, "train")
    parse = group_parser(languages)
    items = stream_items(files, parse, config, (), "language", skipped, start, stream=0)
    _check_has_groups(files, parse, languages)

    def decode(item):
        image, texts, of = _read(item, config)
        seed = tf.stack([tf.cast(config.seed, tf.int64) * 2**20 + item["position"][0], item["position"][1]])
        texts, of = draw_captions(texts, of, slots, config.method.captions_per_language, seed)
        return {**{key: item[key] for key in ("image_id", "problem", "position")}, "image": image, "caption": texts,
                "language": of}  # fmt: skip

    def finish(items):
        first = items["position"][0]
        seed = tf.stack([tf.cast(config.seed, tf.int64) + first[0], first[1]])
        texts = tf.reshape(items["caption"], [-1])  # [I N]
        present = tf.not_equal(texts, "")
        tokens = tokenizer(tag_language(texts, tf.reshape(items["language"], [-1])), pad=pad)
        return {
            "image": of_size(images, finish_images(items["image"], config, seed)),
            "image_id": fingerprint(items["image_id"]),
            "caption": of_size(images * slots, tokens),
            "caption_id": fingerprint(texts),
            "caption_language_id": tf.where(present, tokens["input_type_ids"][:, 0], -1),
            "image_groups_position": items["position"],
        }

    numbered = map_or_drop(items, decode, skipped, "image that does not decode")
    items = drop_problems(numbered, skipped, "image_id")
    return items.batch(images, drop_remainder=True).map(finish, num_parallel_calls=2, deterministic=True)


def group_parser(languages: tuple[str, ...]):
    """Returns the parser of a record into one item, or none, with the captions in `languages` as one string."""

    def parse(serialized):
        item = parse_image_text(serialized)
        usable = tf.reduce_any(tf.equal(item["language"][:, None], tf.constant(languages)[None, :]), axis=1)
        chosen = tf.logical_and(usable, tf.equal(item["problem"], ""))
        captions = tf.stack([tf.boolean_mask(item[key], chosen) for key in ("caption", "language")])  # [2, captions]
        group = {
            "image_id": item["image_id"][:1],
            "image": item["image"][:1],
            "captions": tf.io.serialize_tensor(captions)[None],
            "language": tf.constant([""]),
            "problem": tf.where(tf.reduce_any(chosen), "", tf.boolean_mask(item["problem"], usable)[:1]),
        }
        count = tf.cast(tf.reduce_any(usable), tf.int32)  # an image without these languages is no item
        return {name: value[:count] for name, value in group.items()}

    return parse


def _check_has_groups(files: list[str], parse, languages: tuple[str, ...]) -> None:
    """Raises `UserError` if no record has a caption in these languages: the stream would never end."""
    sizes = tf.data.TFRecordDataset(files).map(lambda serialized: tf.size(parse(serialized)["image_id"]))
    if not any(untuned(sizes.ignore_errors()).as_numpy_iterator()):
        raise UserError(f"No training image has a caption in {', '.join(languages)}.")


def draw_captions(
    captions: tf.Tensor, languages: tf.Tensor, slots: int, per_language: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws `slots` of the captions, string [N], at most `per_language` in each language, without repetition.

    Returns captions and their languages, string [slots] both, "" in places that stay empty. The same seed, int [2],
    draws the same.
    """
    order = tf.argsort(tf.random.stateless_uniform(tf.shape(captions), seed))
    captions, languages = tf.gather(captions, order), tf.gather(languages, order)
    place = tf.range(tf.size(order))
    before = tf.logical_and(place[None, :] < place[:, None], tf.equal(languages[:, None], languages[None, :]))
    kept = tf.reduce_sum(tf.cast(before, tf.int32), axis=1) < per_language
    empty = tf.fill([slots], "")
    return tuple(
        tf.ensure_shape(tf.concat([tf.boolean_mask(values, kept), empty], axis=0)[:slots], [slots])
        for values in (captions, languages)
    )


def _read(item, config: ConfigDict):
    """Returns the image and the captions and their languages; nothing real where the item has a problem."""
    usable = tf.equal(item["problem"], "")
    image = read_image(item["image"], config.image_tower, usable)
    captions = tf.cond(
        usable,
        lambda: tf.ensure_shape(tf.io.parse_tensor(item["captions"], tf.string), [2, None]),
        lambda: tf.fill([2, 1], ""),
    )
    return image, captions[0], captions[1]
