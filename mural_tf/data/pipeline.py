"""From records to training batches, deterministically from (seed, position).

Two streams, image-text records and text pairs, run side by side; every batch holds a part of each. A stream goes
through epochs without end. Each item carries its position, (epoch, offset after shuffling), so that a run that
stopped anywhere starts again at the very next item.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.data import records
from mural_tf.data.batching import fingerprint, of_size
from mural_tf.data.image_groups import image_group_batches
from mural_tf.data.image_inputs import finish_images, read_image
from mural_tf.data.parsing import TEXT_PAIR_SOURCES, parse_image_text, parse_img2dataset
from mural_tf.data.skipped import SkippedRecords, map_or_drop
from mural_tf.data.streams import drop_problems, stream_items
from mural_tf.text.language_words import tag_language


def training_batches(
    config: ConfigDict,
    tokenizer,
    skipped: SkippedRecords,
    position: np.ndarray | None = None,
    text_pairs: bool = True,
    pad: str = "max_length",
) -> tf.data.Dataset:
    """Returns endless global batches.

    Args:
      config: the whole configuration tree.
      tokenizer: `text.WordPieceTokenizer`.
      skipped: takes the counts of unusable records.
      position: int64 [2, 2], (epoch, offset) of the last item used of the image-text and the text-pair stream;
        `None` starts at the beginning.
      text_pairs: whether batches hold text pairs (MURAL) or not (ALIGN).
      pad: "max_length" for static shapes, or "longest" in the batch.

    Returns:
      A data set of {"image": uint8 [B, S, S, 3], "image_id": int64 [B], "caption": tokens, "caption_id": int64 [B],
      "image_text_position": int64 [B, 2]} and, with text pairs, {"text_a", "text_b": tokens, "text_a_id", "text_b_id":
      int64 [B'], "text_text_position": int64 [B', 2]}; tokens are dicts of int32 [B, T]. A tokenizer that takes
      languages adds `text_a_language_id` and `text_b_language_id`, and `data.captions_per_image` gives
      `image_group_batches`.
    """
    start = np.full([2, 2], -1, np.int64) if position is None else position
    image_text = image_group_batches if config.data.captions_per_image else _image_text_batches
    parts = [image_text(config, tokenizer, skipped, start[0], pad)]
    if text_pairs:
        parts.append(_text_pair_batches(config, tokenizer, skipped, start[1], pad))
    merged = tf.data.Dataset.zip(tuple(parts)).map(lambda *dicts: {k: v for part in dicts for k, v in part.items()})
    return _with_wait_time(merged.prefetch(4))


def _image_text_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    data, batch = config.data, config.train.image_text_batch
    files = records.list_files(data.directory, records.IMAGE_TEXT, "train")
    if data.format not in ("mural", "img2dataset"):
        raise ConfigurationError(f"Unknown data.format {data.format!r}; known: mural, img2dataset.")
    parse = parse_image_text if data.format == "mural" else parse_img2dataset(data.default_language)
    items = stream_items(files, parse, config, data.image_text_languages, "language", skipped, start, stream=0)

    def decode(item):
        return {**item, "image": read_image(item["image"], config.image_tower, tf.equal(item["problem"], ""))}

    def finish(items):
        return {
            "image": of_size(batch, finish_images(items["image"], config, items["position"][0])),
            "image_id": fingerprint(items["image_id"]),
            "caption": of_size(batch, tokenizer(items["caption"], pad=pad)),
            "caption_id": fingerprint(items["caption"]),
            "image_text_position": items["position"],
        }

    numbered = map_or_drop(items, decode, skipped, "image that does not decode")
    items = drop_problems(numbered, skipped, "image_id")
    return items.batch(batch, drop_remainder=True).map(finish, num_parallel_calls=2, deterministic=True)


def _text_pair_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    data, batch = config.data, config.train.text_text_batch
    if data.text_pairs not in TEXT_PAIR_SOURCES:
        raise ConfigurationError(f"Unknown data.text_pairs {data.text_pairs!r}; known: {', '.join(TEXT_PAIR_SOURCES)}.")
    kind, parse = TEXT_PAIR_SOURCES[data.text_pairs]
    files = records.list_files(data.directory, kind, "train")
    items = stream_items(files, parse, config, data.text_text_languages, "language_b", skipped, start, stream=1)
    items = drop_problems(items.enumerate(), skipped, "text_a")

    def finish(items):
        texts = [items["text_a"], items["text_b"]]
        if tokenizer.takes_languages:
            texts = [tag_language(text, items[f"language_{side}"]) for side, text in zip("ab", texts)]
        tokens = tokenizer(tf.concat(texts, axis=0), pad=pad)
        languages = tf.split(tokens["input_type_ids"][:, 0], 2) if tokenizer.takes_languages else ()
        return {
            **{f"text_{side}_language_id": value for side, value in zip("ab", languages)},
            "text_a": of_size(batch, {name: value[:batch] for name, value in tokens.items()}),
            "text_b": of_size(batch, {name: value[batch:] for name, value in tokens.items()}),
            "text_a_id": fingerprint(items["text_a"]),
            "text_b_id": fingerprint(items["text_b"]),
            "text_text_position": items["position"],
        }

    return items.batch(batch, drop_remainder=True).map(finish, num_parallel_calls=2, deterministic=True)


def _with_wait_time(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Adds `data_wait_seconds`, how long the consumer waited for each batch.

    The parts of a zip are produced in order when the consumer asks: clock, batch, clock.
    """
    clock = tf.data.Dataset.range(np.iinfo(np.int64).max).map(lambda _: tf.timestamp())
    timed = tf.data.Dataset.zip((clock, batches, clock))

    def add(before, batch, after):
        return {**batch, "data_wait_seconds": tf.cast(after - before, tf.float32)[None]}

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # it would make the clocks measure the prefetcher
    return timed.map(add).with_options(options)
