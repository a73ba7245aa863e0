"""Parsing of serialised records into items: dicts of parallel lists, one entry a training item.

Every item has a `problem`, "" where it can be used.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.data import records


def parse_image_text(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one image-text record into one item per caption: {name: [captions]}."""
    parsed = tf.io.parse_single_example(serialized, records.IMAGE_TEXT_FEATURES)
    captions = tf.sparse.to_dense(parsed["caption"])
    count = tf.maximum(tf.size(captions), 1)  # a record without captions is one item with an empty caption
    captions = tf.cond(tf.size(captions) > 0, lambda: captions, lambda: tf.constant([""]))
    item = {
        "image_id": tf.repeat(parsed["image_id"], count),
        "image": tf.repeat(parsed["image"], count),
        "caption": captions,
        "language": _padded(tf.sparse.to_dense(parsed["language"]), count),
    }
    return {**item, "problem": _text_problem(captions, "caption")}


def parse_text_pair(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one text pair into one item: {name: [1]}."""
    parsed = tf.io.parse_single_example(serialized, records.TEXT_PAIR_FEATURES)
    item = {name: value[None] for name, value in parsed.items() if name != "group_id"}
    problem = tf.strings.join([_text_problem(item["text_a"], "text"), _text_problem(item["text_b"], "text")])
    return {**item, "problem": problem}


def parse_co_captions(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one image-text record into text pairs: each caption with the image's next one, {name: [captions]}."""
    item = parse_image_text(serialized)
    several = tf.size(item["caption"]) > 1
    count = tf.where(several, tf.size(item["caption"]), 0)  # a single caption has no partner
    one = {name: item[name][:count] for name in ("caption", "language", "problem")}
    pair = {}
    for side, shift in (("a", 0), ("b", -1)):
        pair[f"text_{side}"] = tf.roll(one["caption"], shift, axis=0)
        pair[f"language_{side}"] = tf.roll(one["language"], shift, axis=0)
    return {**pair, "problem": tf.strings.join([one["problem"], tf.roll(one["problem"], -1, axis=0)])}


TEXT_PAIR_SOURCES = {
    "files": (records.TEXT_PAIRS, parse_text_pair),
    "co_captions": (records.IMAGE_TEXT, parse_co_captions),
}


def parse_img2dataset(language: str):
    """img2dataset's TFRecords: `jpg` and `txt`, with `key` as the image's id."""
    features = {
        "jpg": tf.io.FixedLenFeature([], tf.string),
        "txt": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "key": tf.io.FixedLenFeature([], tf.string, default_value=""),
    }

    def parse(serialized):
        parsed = {name: value[None] for name, value in tf.io.parse_single_example(serialized, features).items()}
        item = {"image_id": parsed["key"], "image": parsed["jpg"], "caption": parsed["txt"]}
        return {**item, "language": tf.constant([language]), "problem": _text_problem(parsed["txt"], "caption")}

    return parse


def _text_problem(texts: tf.Tensor, what: str) -> tf.Tensor:
    """Returns "" for each usable text [N], else what is wrong with it."""
    repaired = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace", replace_control_characters=False)
    problem = tf.where(tf.equal(repaired, texts), "", f"{what} that is not UTF-8")
    return tf.where(tf.equal(tf.strings.strip(texts), ""), f"empty {what}", problem)


def _padded(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    return tf.concat([values, tf.fill([count], "")], axis=0)[:count]
