"""Text pairs: "text_a", "text_b" (tokens of one width), "text_a_id", "text_b_id" and "text_group_id".

Pairs of one image or group, which say the same, share the last. A tokenizer that takes languages adds
"text_a_language_id" and "text_b_language_id". Pairs come from files of them, or are two captions of one image:

    files                          text-pair records
    co_captions                    each caption with the image's next one, in any languages ([MURAL] A.1)
    co_captions_across_languages   captions of different languages, for constraints between languages ([MULE] Eq. 1)

The captions of an image are often in few languages (Multi30K: five English, five German, one French, one Czech), so
that half of all co-captions have one language, and rare languages hardly meet. Across languages, every pair of an
image's languages is equally likely, and a caption of each is drawn, again in every epoch.
`data.language_temperature` changes nothing there.

With `method.pivot` the side "text_a" of every pair is in a pivot language; pairs without a pivot language are left out.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.data.records import (
    IMAGE_TEXT,
    TEXT_PAIRS,
    either_problem,
    parse_image_text,
    parse_text_pair,
)
from mural_tf.data.streams.epochs import NO_ITEM, SIDES, count_languages, stated_languages
from mural_tf.data.streams.mixture import sources_of
from mural_tf.data.streams.stream import Settings, Stream, Texts, caption_parser, fingerprint, is_one_of

FILES, CO_CAPTIONS, ACROSS_LANGUAGES = SOURCES = ("files", "co_captions", "co_captions_across_languages")
# Values of `method.pivot` for the frequent languages, which have at least half as many captions as the largest.
MOST_PAIRED = ""  # the frequent language with most text pairs
MEAN = "mean"  # all frequent languages


class TextText(Stream):
    """Text pairs of `data.text_pairs`; raises `UserError` for an unknown value, or if `method.pivot` excludes it."""

    fields = dict(pivot=None)  # see `pivot_languages`; `None`: any language
    batch_field = "text_text_batch"
    order = 1
    with_pictures = False
    language_key = "language_b"

    def __init__(self, settings: Settings, texts: Texts):
        super().__init__(settings, texts)
        source = settings.data.text_pairs
        pivot = settings.own.pivot
        if source not in SOURCES:
            raise UserError(f"Unknown data.text_pairs {source!r}; known: {', '.join(SOURCES)}.")
        if pivot is not None and source == ACROSS_LANGUAGES:
            raise UserError(
                f"data.text_pairs={source} draws languages, and a target is in method.pivot's languages: "
                f"use {FILES} or {CO_CAPTIONS}."
            )
        no_pairs = f"No image has two captions for data.text_pairs={source}: it needs images with several captions"
        languages = settings.data.text_text_languages
        self.without = f"{no_pairs}."
        self.languages = languages
        self.takes_many = source == FILES
        self.decode = None
        if source == FILES:
            self.parse = parse_text_pair
        elif source == CO_CAPTIONS:
            self.parse = parse_co_captions
        else:
            self.without = f"{no_pairs}, in different languages (one of data.text_text_languages, if set)."
            self.languages = ()  # the parser chooses them, because both texts of an item are drawn
            self.parse = across_languages_parser(languages)
            self.decode = self._draw
        if pivot is not None:
            pivots = pivots_of(settings.data, pivot)
            self.parse = with_pivot(self.parse, pivots)
            self.without = f"No text pair has one side in method.pivot={'+'.join(pivots)} and one in another language."

    @classmethod
    def record_type(cls, data):
        return TEXT_PAIRS if data.text_pairs == FILES else IMAGE_TEXT

    @classmethod
    def text_entries(cls, data):
        # An item of the last kind holds all captions of its picture and is still to be drawn from.
        return ("text_a",) if data.text_pairs == ACROSS_LANGUAGES else ("text_a", "text_b")

    def _draw(self, item, position):
        """Draws the two texts of an item of `across_languages_parser`; as `Stream.decode`."""
        return draw_across_languages(item, self.settings.data.text_text_languages, self.item_seed(position))

    def make_batch(self, items, seed):
        return {**self.text_pair(items), "text_group_id": fingerprint(items["group_id"])}


def parse_co_captions(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses an image-text record, a string scalar, into pairs of each caption and the next, the first after the last.

    Returns {name: string [captions]} with the names of `parse_text_pair`; "group_id" is the image's id. A record with
    one caption has no pairs.
    """
    captions = parse_image_text(serialized)
    caption_count = tf.size(captions["caption"])
    count = tf.where(caption_count > 1, caption_count, 0)  # a single caption has no partner
    first = {name: values[:count] for name, values in captions.items()}
    second = {name: tf.roll(first[name], -1, axis=0) for name in ("caption", "language", "problem")}
    return {
        "group_id": first["image_id"],
        "text_a": first["caption"],
        "language_a": first["language"],
        "text_b": second["caption"],
        "language_b": second["language"],
        "problem": either_problem(first["problem"], second["problem"]),
    }


def with_pivot(parse: Callable, pivots: Sequence[str]) -> Callable:
    """Returns `parse` for pairs with one text in a pivot language, which becomes "text_a", and one in another language.

    A pair of two pivot languages keeps its order. All other pairs get the problem `NO_ITEM`: if `parse` takes many
    records, each must still give an item.

    Args:
      parse: a function from a record to pairs, {name: string [pairs]}, or from records to a pair each.
      pivots: the pivot languages.
    """

    def parse_with_pivot(serialized):
        """Returns the pairs of `parse`, with a pivot language first and `NO_ITEM` for pairs to leave out."""
        items = parse(serialized)
        a_is_pivot = is_one_of(items["language_a"], pivots)  # bool [pairs], as all below
        b_is_pivot = is_one_of(items["language_b"], pivots)
        is_item = (a_is_pivot | b_is_pivot) & tf.not_equal(items["language_a"], items["language_b"])
        pivot_first = dict(items)
        for name in ("text", "language"):
            a = items[f"{name}_a"]
            b = items[f"{name}_b"]
            pivot_first[f"{name}_a"] = tf.where(a_is_pivot, a, b)
            pivot_first[f"{name}_b"] = tf.where(a_is_pivot, b, a)
        pivot_first["problem"] = tf.where(is_item, items["problem"], NO_ITEM)
        return pivot_first

    return parse_with_pivot


def across_languages_parser(languages: Sequence[str] = ()) -> Callable:
    """Returns a function that parses an image-text record, a string scalar, into pairs whose texts are drawn later.

    There are as many pairs as captions, {name: string [captions]}. "captions" of each pair holds all captions of the
    image and their languages, from which `draw_across_languages` draws; until then the languages are "".

    Args:
      languages: if any are given, the second text is in one of them; an image without such a pair gives no items.
    """

    def parse(serialized):
        """Returns the record's pairs."""
        items = parse_image_text(serialized)  # an item for each caption
        is_usable = tf.equal(items["problem"], "") & tf.not_equal(items["language"], "")  # [captions]
        captions = tf.boolean_mask(tf.stack([items["caption"], items["language"]]), is_usable, axis=1)  # [2, usable]
        has_pair = tf.size(language_pairs(tf.unique(captions[1]).y, languages)) > 0
        count = tf.where(has_pair, tf.size(items["caption"]), 0)
        unknown_languages = tf.zeros_like(items["language"])  # ""
        pairs = {
            "text_a": items["caption"],
            "language_a": unknown_languages,
            "language_b": unknown_languages,
            "group_id": items["image_id"],
            "captions": tf.fill(tf.shape(items["caption"]), tf.io.serialize_tensor(captions)),
            "problem": items["problem"],
        }
        return {name: values[:count] for name, values in pairs.items()}

    return parse


def draw_across_languages(
    item: dict[str, tf.Tensor], languages: Sequence[str], seed: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Draws the two texts of an item: evenly a pair of the image's languages, then a caption in each.

    Args:
      item: an item of `across_languages_parser`, {name: string scalar}.
      languages: as in `across_languages_parser`.
      seed: int [2]; the same seed draws the same texts.

    Returns:
      A text pair with the names of `parse_text_pair`, {name: string scalar}; an unusable item has empty texts.
    """

    def draw():
        """Returns two texts and their languages, string [2] both."""
        captions = tf.ensure_shape(tf.io.parse_tensor(item["captions"], tf.string), [2, None])
        texts, languages_of_texts = tf.unstack(captions)
        pairs = language_pairs(tf.unique(languages_of_texts).y, languages)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        number = tf.random.stateless_uniform([], seeds[0], 0, tf.shape(pairs)[0], tf.int32)
        pair = pairs[number]  # [2]
        # The text with the highest of random scores is a random one: for each language among its own texts.
        scores = tf.random.stateless_uniform([2, tf.size(texts)], seeds[1])
        is_in_language = tf.equal(languages_of_texts[None, :], pair[:, None])  # [2, texts]
        rows = tf.argmax(tf.where(is_in_language, scores, -1.0), axis=1)  # [2]; -1 is below all scores
        return tf.gather(texts, rows), pair

    nothing = tf.fill([2], "")
    texts, pair = tf.cond(tf.equal(item["problem"], ""), draw, lambda: (nothing, nothing))
    return {
        "text_a": texts[0],
        "text_b": texts[1],
        "language_a": pair[0],
        "language_b": pair[1],
        "group_id": item["group_id"],
        "problem": item["problem"],
    }


def language_pairs(languages: tf.Tensor, second: Sequence[str] = ()) -> tf.Tensor:
    """Returns all ordered pairs of different languages, string [L] → string [pairs, 2].

    `second`: if any languages are given, the second language of a pair is one of them.
    """
    is_pair = tf.not_equal(languages[:, None], languages[None, :])  # [L, L]
    if second:
        is_pair &= is_one_of(languages, second)[None, :]
    return tf.gather(languages, tf.where(is_pair))


# The languages of targets.


def pivots_of(data: ConfigDict, pivot: str) -> tuple[str, ...]:
    """Returns the languages that a method's `pivot` means for the data of a configuration's branch `data`.

    Values of `pivot` and errors are as in `pivot_languages`; also raises as `sources_of`.
    """

    def count_captions():
        """Returns {language: captions} of all sources, in the languages that are trained on."""
        counts = collections.Counter()
        for source, files in sources_of(data, IMAGE_TEXT):
            counts.update(_captions_by_language(tuple(files), source.format, data.default_language))
        trained_languages = data.image_text_languages or counts
        return {language: count for language, count in counts.items() if language in trained_languages}

    def count_pairs():
        """Returns {language: text pairs with a side in it} of all sources."""
        counts = collections.Counter()
        if data.text_pairs == FILES:  # other pairs are captions, which are counted above
            for _, files in sources_of(data, TEXT_PAIRS):
                counts.update(_pairs_by_language(tuple(files)))
        return counts

    return pivot_languages(pivot, count_captions, count_pairs)


def pivot_languages(pivot: str, count_captions: Callable[[], dict], count_pairs: Callable[[], dict]) -> tuple[str, ...]:
    """Returns the languages that a method's `pivot` means.

    Args:
      pivot: languages joined by "+", as "en+de"; `MEAN` for all frequent languages, which have at least half as many
        captions as the largest; or `MOST_PAIRED` for the frequent language with most text pairs.
      count_captions: a function that returns {language: captions}; called for `MEAN` and `MOST_PAIRED`.
      count_pairs: a function that returns {language: text pairs with a side in it}; called for `MOST_PAIRED` if
        several languages are frequent.

    Raises:
      UserError: `pivot` names no languages, and no caption says its language.
    """
    if pivot not in (MOST_PAIRED, MEAN):
        return tuple(dict.fromkeys(pivot.split("+")))
    caption_counts = {language: count for language, count in count_captions().items() if language}
    if not caption_counts:
        raise UserError("No caption says its language: name the targets' with --config.method.pivot=en.")
    most_captions = max(caption_counts.values())
    frequent = sorted(language for language, count in caption_counts.items() if 2 * count >= most_captions)
    if pivot == MEAN or len(frequent) == 1:
        return tuple(frequent)
    pair_counts = count_pairs()
    # With equally many pairs, the language with most captions, and then the first in the alphabet.
    return (max(frequent, key=lambda language: (pair_counts.get(language, 0), caption_counts[language])),)


@functools.lru_cache(maxsize=8)  # every start of the input asks again
def _captions_by_language(files: tuple[str, ...], format: str, default_language: str) -> dict[str, int]:
    """Returns {language: captions} of image-text files, stated or counted; other arguments as in `caption_parser`."""
    parse = caption_parser(format, default_language)
    return stated_languages(files, parse, "language") or count_languages(files, parse, "language")


@functools.lru_cache(maxsize=8)
def _pairs_by_language(files: tuple[str, ...]) -> dict[str, int]:
    """Returns {language: text pairs with a side in it} of text-pair files, stated or counted."""
    counts = collections.Counter()
    for key in SIDES:
        stated = stated_languages(files, parse_text_pair, key)
        if stated is None:
            return count_languages(files, parse_text_pair, *SIDES)
        counts.update(stated)
    return counts
