"""An image and several of its captions, in several languages, as one item.

A batch has I = train.image_text_batch / N images and N slots for captions of each: "image", "image_id", and for the I N
slots, an image's in succession, "caption" (tokens), "caption_id" and "caption_language_id", the tokenizer's, -1 for an
empty slot.

In every epoch each image draws N of its captions, no caption twice and at most `captions_per_language` in a language;
an image with fewer captions leaves slots empty.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.data.records import parse_image_text
from mural_tf.data.streams.stream import Settings, Stream, Texts, fingerprint, is_one_of
from mural_tf.text.tokens import tag_language


class ImageGroups(Stream):
    """Groups of captions in `data.image_text_languages`, or else in the tokenizer's languages.

    Raises `UserError` for a tokenizer or records without languages, or a batch that groups do not divide.
    """

    fields = dict(
        captions_per_image=0,  # captions of each image in a batch; they are drawn again in every epoch
        captions_per_language=1,  # at most so many of them in one language; 2 en, 2 de, 1 fr, 1 cs in [MULE]
    )

    def __init__(self, settings: Settings, texts: Texts):
        captions = settings.own.captions_per_image
        batch = settings.batch
        tokenizer = texts.tokenizer
        knows_languages = tokenizer.takes_languages and settings.data.format == "mural"
        if batch % captions or not knows_languages:
            raise UserError(
                f"method.captions_per_image={captions} must divide train.image_text_batch={batch}, and needs "
                "text_tower.name='words' and data.format='mural'."
            )
        super().__init__(settings, texts)
        languages = tuple(settings.data.image_text_languages) or tokenizer.languages
        self.parse = group_parser(languages)
        self.languages = ()
        self.without = f"No training image has a caption in {', '.join(languages)}."

    @classmethod
    def items_of(cls, batch, own):
        return batch // own.captions_per_image

    def decode(self, item, position):
        """Returns an item with its image decoded, and N drawn captions and their languages, string [N]."""
        own = self.settings.own
        seed = self.item_seed(position)
        captions, languages = draw_captions(*captions_of(item), own.captions_per_image, own.captions_per_language, seed)
        return {**super().decode(item, position), "caption": captions, "language": languages}

    def make_batch(self, items, seed):
        """Returns the entries that the module lists, for I items as `decode` returns them, {name: [I, …]}."""
        captions = tf.reshape(items["caption"], [-1])  # [I N]
        languages = tf.reshape(items["language"], [-1])
        tokens = self.texts.tokens(tag_language(captions, languages))
        return {
            **self.picture(items, seed),
            "image_id": fingerprint(items["image_id"]),
            "caption": tokens,
            "caption_id": fingerprint(captions),
            "caption_language_id": tf.where(tf.not_equal(captions, ""), tokens["input_type_ids"][:, 0], -1),
        }


def group_parser(languages: tuple[str, ...]) -> Callable:
    """Returns a function that parses an image-text record, a string scalar, into one item, {name: string [1]}.

    The item's "captions" are all usable captions in `languages`, as `captions_of` reads them. A record without captions
    in these languages gives no item, {name: string [0]}.
    """

    def parse(serialized):
        """Returns the record's item, or no item."""
        items = parse_image_text(serialized)  # an item for each caption
        is_in_languages = is_one_of(items["language"], languages)
        is_chosen = is_in_languages & tf.equal(items["problem"], "")
        captions = tf.boolean_mask(tf.stack([items["caption"], items["language"]]), is_chosen, axis=1)  # [2, captions]
        first_problem = tf.boolean_mask(items["problem"], is_in_languages)[:1]
        group = {
            "image_id": items["image_id"][:1],
            "image": items["image"][:1],
            "captions": tf.io.serialize_tensor(captions)[None],
            "language": tf.constant([""]),
            "problem": tf.where(tf.reduce_any(is_chosen), "", first_problem),
        }
        count = tf.cast(tf.reduce_any(is_in_languages), tf.int32)  # of items: 1 or 0
        return {name: values[:count] for name, values in group.items()}

    return parse


def captions_of(item: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (captions, their languages), string [N] each, of an item of `group_parser`, {name: string scalar}.

    An unusable item has one empty caption.
    """
    captions = tf.cond(
        tf.equal(item["problem"], ""),
        lambda: tf.ensure_shape(tf.io.parse_tensor(item["captions"], tf.string), [2, None]),
        lambda: tf.fill([2, 1], ""),
    )
    return captions[0], captions[1]


def draw_captions(
    captions: tf.Tensor, languages: tf.Tensor, slots: int, per_language: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws captions of an image at random, no caption twice.

    Args:
      captions: string [N].
      languages: their languages, string [N].
      slots: how many captions are drawn, at most.
      per_language: how many of them may be in one language.
      seed: int [2]; the same seed draws the same captions.

    Returns:
      The drawn captions and their languages, string [slots] both, "" in slots that stay empty.
    """
    order = tf.argsort(tf.random.stateless_uniform(tf.shape(captions), seed))
    captions = tf.gather(captions, order)
    languages = tf.gather(languages, order)
    rank = tf.range(tf.size(order))
    comes_before = rank[None, :] < rank[:, None]  # [N, N]
    same_language = tf.equal(languages[:, None], languages[None, :])
    count_before = tf.reduce_sum(tf.cast(comes_before & same_language, tf.int32), axis=1)
    is_allowed = count_before < per_language
    empty = tf.fill([slots], "")

    def in_slots(texts):
        allowed_then_empty = tf.concat([tf.boolean_mask(texts, is_allowed), empty], axis=0)
        return tf.ensure_shape(allowed_then_empty[:slots], [slots])

    return in_slots(captions), in_slots(languages)
