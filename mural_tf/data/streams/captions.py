"""Several captions of one image as training items: text pairs, ETCL's triples, MULE's images with captions.

Text pairs come from files of them, or are two captions of one image:

    files                          text-pair records
    co_captions                    each caption with the image's next one, in any languages ([MURAL] A.1)
    co_captions_across_languages   captions of different languages, for constraints between languages ([MULE] Eq. 1)

The captions of an image are often in few languages (Multi30K: five English, five German, one French, one Czech), so
that half of all co-captions have one language, and rare languages hardly meet. Across languages, every pair of an
image's languages is equally likely, and a caption of each is drawn, again in every epoch.
`data.language_temperature` changes nothing there.

Triples (image, text A, text B) are two captions of one image that say the same in different languages. They come from
records whose captions share image and caption group (multilingual CC3M: 6 languages, so 15 triples for each image, 45M
in all [ETCL §3.4]). `python -m mural_tf translate` adds translations from files to records that lack them. An epoch
holds every unordered pair of an image's captions once; which of the two is text A is drawn for every batch.

Groups hold an image with all its captions as one item. In every epoch each image draws `captions_per_image` of its
captions, no caption twice and at most `captions_per_language` in a language; an image with fewer leaves places empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from mural_tf.data.records import IMAGE_TEXT_FEATURES, either_problem, parse_image_text

FILES, CO_CAPTIONS, ACROSS_LANGUAGES = SOURCES = ("files", "co_captions", "co_captions_across_languages")
GROUP = {"caption_group": IMAGE_TEXT_FEATURES["caption_group"]}


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
    return {**pair, "problem": either_problem(one["problem"], tf.roll(one["problem"], -1, axis=0))}


def with_pivot(parse: Callable, pivots: Sequence[str]) -> Callable:
    """Returns the parser of those pairs of `parse` with a side in one of the languages `pivots`, which is `text_a`.

    The two sides differ in language; where both are pivots the pair stays as it is.
    """

    def parse_with_pivot(serialized):
        items = parse(serialized)
        sides = [items[f"language_{side}"] for side in "ab"]
        is_pivot = [tf.reduce_any(tf.equal(side[:, None], tf.constant(list(pivots))), axis=1) for side in sides]
        swapped = dict(items)
        for name in ("text", "language"):
            a, b = items[f"{name}_a"], items[f"{name}_b"]
            swapped[f"{name}_a"] = tf.where(is_pivot[0], a, b)
            swapped[f"{name}_b"] = tf.where(is_pivot[0], b, a)
        kept = tf.logical_and(tf.logical_or(*is_pivot), tf.not_equal(*sides))
        return {name: tf.boolean_mask(values, kept) for name, values in swapped.items()}

    return parse_with_pivot


def across_languages_parser(languages: Sequence[str] = ()):
    """Returns the parser of an image-text record into as many pairs, still to be drawn, as there are captions.

    An item holds all of the image's captions and their languages as one string. `languages` are those of the second
    text, if any are named; an image without such a pair is left out.
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


def parse_triples(languages: Sequence[str] = ()):
    """Returns the function from one serialised image-text record to its triples, {name: string [triples]}.

    Names: `image_id`, `image`, `text_a`, `text_b`, `language` (of both, "de+en") and `problem`. Only captions in
    `languages` take part, if any are named. A caption without a group or language has no known translation.
    """

    def parse(serialized):
        item = parse_image_text(serialized)
        group = tf.sparse.to_dense(tf.io.parse_single_example(serialized, GROUP)["caption_group"])
        count = tf.minimum(tf.size(group), tf.size(item["caption"]))
        group, text, language = group[:count], item["caption"][:count], item["language"][:count]
        takes_part = tf.logical_and(tf.not_equal(group, ""), tf.not_equal(language, ""))
        if languages:
            named = tf.reduce_any(tf.equal(language[:, None], tf.constant(list(languages))[None, :]), axis=1)
            takes_part = tf.logical_and(takes_part, named)
        is_pair = tf.logical_and(takes_part[:, None], takes_part[None, :])
        is_pair = tf.logical_and(is_pair, tf.equal(group[:, None], group[None, :]))
        is_pair = tf.logical_and(is_pair, tf.not_equal(language[:, None], language[None, :]))
        is_pair = tf.logical_and(is_pair, tf.range(count)[:, None] < tf.range(count)[None, :])
        first, second = tf.unstack(tf.where(is_pair), num=2, axis=1)

        return {
            **{name: tf.gather(item[name], first) for name in ("image_id", "image")},
            "text_a": tf.gather(text, first),
            "text_b": tf.gather(text, second),
            "language": tf.strings.join([tf.gather(language, first), tf.gather(language, second)], "+"),
            "problem": either_problem(*(tf.gather(item["problem"][:count], side) for side in (first, second))),
        }

    return parse


def swap_texts(items: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Exchanges `text_a` and `text_b` of half of the items, string [B], drawn from `seed`, int [2]."""
    swapped = tf.random.stateless_uniform(tf.shape(items["text_a"]), seed) < 0.5
    a, b = items["text_a"], items["text_b"]
    return {**items, "text_a": tf.where(swapped, b, a), "text_b": tf.where(swapped, a, b)}


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
        count = tf.cast(tf.reduce_any(usable), tf.int32)  # an image without these languages is left out
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
