"""An image and two of its captions that are translations: "image", "image_id", and of each text tokens and an id.

The texts are "text_a" and "text_b", in different languages. They come from records whose captions share image and
caption group (multilingual CC3M: 6 languages, so 15 triples for each image, 45M in all [ETCL §3.4]). `python -m
mural_tf translate` adds translations from files to records that lack them. An epoch holds every unordered pair of an
image's captions once; which of the two is text A is drawn for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.data.records import IMAGE_TEXT_FEATURES, either_problem, parse_image_text
from mural_tf.data.streams.stream import Settings, Stream, Texts, fingerprint, is_one_of

GROUP = {"caption_group": IMAGE_TEXT_FEATURES["caption_group"]}


class Triples(Stream):
    """Triples of `data.image_text_languages`, if any are named; raises `UserError` for img2dataset's records."""

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


def parse_triples(languages: Sequence[str] = ()) -> Callable:
    """Returns a function that parses an image-text record, a string scalar, into triples of an image and two captions.

    Triples are {name: string [triples]} with "image_id", "image", "text_a", "text_b", "language" (of both texts,
    "de+en") and "problem". A caption without a group or language has no known translation, so it is in no triple.

    Args:
      languages: if any are given, only captions in them are in triples.
    """

    def parse(serialized):
        """Returns the record's triples."""
        items = parse_image_text(serialized)  # an item for each caption
        groups = tf.sparse.to_dense(tf.io.parse_single_example(serialized, GROUP)["caption_group"])
        # A record may have fewer groups than captions; the captions beyond them have no known translation.
        count = tf.minimum(tf.size(groups), tf.size(items["caption"]))
        groups = groups[:count]  # [captions], as all lists below
        captions = items["caption"][:count]
        languages_of_captions = items["language"][:count]
        problems = items["problem"][:count]
        takes_part = tf.not_equal(groups, "") & tf.not_equal(languages_of_captions, "")
        if languages:
            takes_part &= is_one_of(languages_of_captions, languages)
        row = tf.range(count)
        is_pair = takes_part[:, None] & takes_part[None, :]  # [captions, captions]
        is_pair &= tf.equal(groups[:, None], groups[None, :])
        is_pair &= tf.not_equal(languages_of_captions[:, None], languages_of_captions[None, :])
        is_pair &= row[:, None] < row[None, :]  # each unordered pair once
        first, second = tf.unstack(tf.where(is_pair), num=2, axis=1)  # [triples] each
        language_a = tf.gather(languages_of_captions, first)
        language_b = tf.gather(languages_of_captions, second)
        return {
            "image_id": tf.gather(items["image_id"], first),
            "image": tf.gather(items["image"], first),
            "text_a": tf.gather(captions, first),
            "text_b": tf.gather(captions, second),
            "language": tf.strings.join([language_a, language_b], "+"),
            "problem": either_problem(tf.gather(problems, first), tf.gather(problems, second)),
        }

    return parse


def swap_texts(items: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns items, {name: [B, …]}, with "text_a" and "text_b" exchanged in about half of them.

    `seed`, int [2], draws which items; "language" keeps its order.
    """
    is_swapped = tf.random.stateless_uniform(tf.shape(items["text_a"]), seed) < 0.5  # [B]
    a = items["text_a"]
    b = items["text_b"]
    return {**items, "text_a": tf.where(is_swapped, b, a), "text_b": tf.where(is_swapped, a, b)}
