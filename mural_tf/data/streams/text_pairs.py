"""Text pairs: from files of them, or two captions of one image.

    files                          text-pair records
    co_captions                    each caption with the image's next one, whatever their languages ([MURAL] A.1)
    co_captions_across_languages   captions of different languages, for constraints between languages ([MULE] Eq. 1)

The captions of an image are often in few languages (Multi30K: five English, five German, one French, one Czech), so
that half of all co-captions have one language, and rare languages hardly meet. Across languages every pair of languages
that an image has is as likely as another, and of each a caption is drawn, anew in every epoch.
`data.language_temperature` changes nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from mural_tf.data.records import parse_image_text

FILES, CO_CAPTIONS, ACROSS_LANGUAGES = SOURCES = ("files", "co_captions", "co_captions_across_languages")


def parse_co_captions(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one image-text record into text pairs: each caption with the image's next one, {name: [captions]}."""
    item = parse_image_text(serialized)
    several = tf.size(item["caption"]) > 1
    count = tf.where(several, tf.size(item["caption"]), 0)  # a single caption has no partner
    one = {name: item[name][:count] for name in ("caption", "language", "problem")}
    pair = {"group_id": _image(item)[:count]}
    for side, shift in (("a", 0), ("b", -1)):
        pair[f"text_{side}"] = tf.roll(one["caption"], shift, axis=0)
        pair[f"language_{side}"] = tf.roll(one["language"], shift, axis=0)
    return {**pair, "problem": tf.strings.join([one["problem"], tf.roll(one["problem"], -1, axis=0)])}


def across_languages_parser(languages: Sequence[str] = ()):
    """Returns the parser of an image-text record into as many pairs, still to be drawn, as there are captions.

    An item holds all of the image's captions and their languages as one string. `languages` are those of the second
    text, if any are named; an image without such a pair is no item.
    """

    def parse(serialized):
        item = parse_image_text(serialized)
        named = tf.logical_and(tf.equal(item["problem"], ""), tf.not_equal(item["language"], ""))
        captions = tf.stack([tf.boolean_mask(item[name], named) for name in ("caption", "language")])  # [2, named]
        has_pair = tf.size(language_pairs(tf.unique(captions[1]).y, languages)) > 0
        count = tf.where(has_pair, tf.size(item["caption"]), 0)
        pair = {"text_a": item["caption"], "problem": item["problem"], "group_id": _image(item)}
        pair["language_b"] = tf.zeros_like(item["language"])  # not yet known
        pair["captions"] = tf.fill(tf.shape(item["caption"]), tf.io.serialize_tensor(captions))
        return {name: value[:count] for name, value in pair.items()}

    return parse


def draw_across_languages(
    item: dict[str, tf.Tensor], languages: Sequence[str], seed: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Draws the two texts of an item of `across_languages_parser`, deterministically in `seed`, int [2].

    The pair of languages is drawn first, evenly among those of the image, then a caption of each.
    """

    def draw():
        captions, of = tf.unstack(tf.ensure_shape(tf.io.parse_tensor(item["captions"], tf.string), [2, None]))
        pairs = language_pairs(tf.unique(of).y, languages)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        chosen = pairs[tf.random.stateless_uniform([], seeds[0], 0, tf.shape(pairs)[0], tf.int32)]  # [2]
        scores = tf.random.stateless_uniform([2, tf.size(of)], seeds[1])
        rows = tf.argmax(tf.where(tf.equal(of[None, :], chosen[:, None]), scores, -1.0), axis=1)
        return tf.gather(captions, rows), chosen

    nothing = tf.fill([2], "")
    texts, of = tf.cond(tf.equal(item["problem"], ""), draw, lambda: (nothing, nothing))
    drawn = {"text_a": texts[0], "text_b": texts[1], "language_a": of[0], "language_b": of[1]}
    return {**drawn, "group_id": item["group_id"], "problem": item["problem"]}


def language_pairs(languages: tf.Tensor, second: Sequence[str] = ()) -> tf.Tensor:
    """Returns all ordered pairs of different languages, string [L] → string [pairs, 2], the second among `second`."""
    is_pair = tf.not_equal(languages[:, None], languages[None, :])
    if second:
        among = tf.reduce_any(tf.equal(languages[:, None], tf.constant(list(second))[None, :]), axis=1)
        is_pair = tf.logical_and(is_pair, among[None, :])
    return tf.gather(languages, tf.where(is_pair))


def _image(item: dict[str, tf.Tensor]) -> tf.Tensor:
    """What captions of one image have in common, string [captions]: its id, or all of them where it has none."""
    together = tf.strings.reduce_join(item["caption"], separator="\t")
    return tf.where(tf.equal(item["image_id"], ""), together, item["image_id"])
