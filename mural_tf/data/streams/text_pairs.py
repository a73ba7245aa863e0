"""Text pairs: from files of them, or co-captions, two captions of one image ([MURAL] A.1)."""

from __future__ import annotations

import tensorflow as tf

from mural_tf.data.records import IMAGE_TEXT, TEXT_PAIRS, parse_image_text, parse_text_pair


def parse_co_captions(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one image-text record into text pairs: each caption with the image's next one, {name: [captions]}."""
    item = parse_image_text(serialized)
    several = tf.size(item["caption"]) > 1
    count = tf.where(several, tf.size(item["caption"]), 0)  # a single caption has no partner
    one = {name: item[name][:count] for name in ("caption", "language", "problem", "image_id")}
    together = tf.strings.reduce_join(one["caption"], separator="\t")
    pair = {"group_id": tf.where(tf.equal(one["image_id"], ""), together, one["image_id"])}
    for side, shift in (("a", 0), ("b", -1)):
        pair[f"text_{side}"] = tf.roll(one["caption"], shift, axis=0)
        pair[f"language_{side}"] = tf.roll(one["language"], shift, axis=0)
    return {**pair, "problem": tf.strings.join([one["problem"], tf.roll(one["problem"], -1, axis=0)])}


TEXT_PAIR_SOURCES = {
    "files": (TEXT_PAIRS, parse_text_pair),
    "co_captions": (IMAGE_TEXT, parse_co_captions),
}
