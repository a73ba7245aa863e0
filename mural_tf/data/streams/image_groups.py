"""An image with all its captions as one item, and the draw of some of them: MULE's image-text stream.

In every epoch each image draws `captions_per_image` of its captions, no caption twice and at most
`captions_per_language` in a language; an image with fewer leaves places empty.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.data.records import parse_image_text


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


def captions_of(item: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the captions of an item and their languages, string [N] each; one empty caption of an unusable item."""
    captions = tf.cond(
        tf.equal(item["problem"], ""),
        lambda: tf.ensure_shape(tf.io.parse_tensor(item["captions"], tf.string), [2, None]),
        lambda: tf.fill([2, 1], ""),
    )
    return captions[0], captions[1]


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
