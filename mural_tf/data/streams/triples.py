"""An image and two of its captions that are translations: "image", "image_id", and of each text tokens and an id.

The texts are "text_a" and "text_b", in different languages. They come from records whose captions share image and
caption group (multilingual CC3M: 6 languages, so 15 triples for each image, 45M in all [ETCL §3.4]). `python -m
mural_tf translate` adds translations from files to records that lack them. An epoch holds every unordered pair of an
image's captions once; which of the two is text A is drawn for every batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.data.records import IMAGE_TEXT_FEATURES, either_problem, parse_image_text
from mural_tf.data.streams.stream import Settings, Stream, Texts, fingerprint, is_one_of

GROUP = {"caption_group": IMAGE_TEXT_FEATURES["caption_group"]}


class Triples(Stream):
    """Triples of `data.image_text_languages`, if any are named."""

    without = (
        "No image has two captions of one caption_group in different languages (of data.image_text_languages, "
        "if set). Add translations with python -m mural_tf translate."
    )

    def __init__(self, settings: Settings, texts: Texts):
        super().__init__(settings, texts)
        data = settings.data
        if data.format != "mural":
            raise UserError(
                f"data.format={data.format} has one caption per image; triples need two: see docs/methods.md."
            )
        self.parse = parse_triples(data.image_text_languages)
        self.languages = ()

    def make_batch(self, items, seed):
        items = swap_texts(items, seed)
        image_id = fingerprint(items["image_id"])
        return {**self.picture(items, seed), "image_id": image_id, **self.text_pair(items)}

    @classmethod
    def text_entries(cls, data):
        return ("text_a", "text_b")


def parse_triples(languages: Sequence[str] = ()):
    """Returns the function from one serialised image-text record to its triples, {name: string [triples]}.

    Names: `image_id`, `image`, `text_a`, `text_b`, `language` (of both, "de+en") and `problem`. Only captions in
    `languages` take part, if any are named. A caption without a group or language has no known translation.
    """

    def parse(serialized):
        item = parse_image_text(serialized)
        group = tf.sparse.to_dense(tf.io.parse_single_example(serialized, GROUP)["caption_group"])
        # A record may have fewer groups than captions; the captions beyond them have no known translation.
        count = tf.minimum(tf.size(group), tf.size(item["caption"]))
        group = group[:count]  # [captions], as all lists below
        text = item["caption"][:count]
        language = item["language"][:count]
        problem = item["problem"][:count]
        takes_part = tf.not_equal(group, "") & tf.not_equal(language, "")
        if languages:
            takes_part &= is_one_of(language, languages)
        row = tf.range(count)
        is_pair = takes_part[:, None] & takes_part[None, :]  # [captions, captions]
        is_pair &= tf.equal(group[:, None], group[None, :])
        is_pair &= tf.not_equal(language[:, None], language[None, :])
        is_pair &= row[:, None] < row[None, :]  # each unordered pair once
        first, second = tf.unstack(tf.where(is_pair), num=2, axis=1)  # [triples] each
        return {
            "image_id": tf.gather(item["image_id"], first),
            "image": tf.gather(item["image"], first),
            "text_a": tf.gather(text, first),
            "text_b": tf.gather(text, second),
            "language": tf.strings.join([tf.gather(language, first), tf.gather(language, second)], "+"),
            "problem": either_problem(tf.gather(problem, first), tf.gather(problem, second)),
        }

    return parse


def swap_texts(items: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Exchanges `text_a` and `text_b` of half of the items, string [B], drawn from `seed`, int [2]."""
    is_swapped = tf.random.stateless_uniform(tf.shape(items["text_a"]), seed) < 0.5  # [B]
    a = items["text_a"]
    b = items["text_b"]
    return {**items, "text_a": tf.where(is_swapped, b, a), "text_b": tf.where(is_swapped, a, b)}
