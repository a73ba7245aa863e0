"""From records to training batches, deterministically from (seed, position).

Two streams, image-text records and text pairs, run side by side; every batch holds a part of each. A stream goes
through epochs without end. Each item carries its position, (epoch, offset after shuffling), so that a run that
stopped anywhere starts again at the very next item.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.data import records
from mural_tf.data.images import augment_images, decode_image, resize_image
from mural_tf.data.skipped import SkippedRecords, map_or_drop

END_OF_EPOCH = "end of epoch"


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
      int64 [B'], "text_text_position": int64 [B', 2]}; tokens are dicts of int32 [B, T].
    """
    start = np.full([2, 2], -1, np.int64) if position is None else position
    parts = [_image_text_batches(config, tokenizer, skipped, start[0], pad)]
    if text_pairs:
        parts.append(_text_pair_batches(config, tokenizer, skipped, start[1], pad))
    merged = tf.data.Dataset.zip(tuple(parts)).map(lambda *dicts: {k: v for part in dicts for k, v in part.items()})
    return _with_wait_time(merged.prefetch(4))


def _image_text_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    data, tower = config.data, config.image_tower
    batch = config.train.image_text_batch
    files = records.list_files(data.directory, records.IMAGE_TEXT, "train")
    if data.format not in ("mural", "img2dataset"):
        raise ConfigurationError(f"Unknown data.format {data.format!r}; known: mural, img2dataset.")
    parse = parse_image_text if data.format == "mural" else _parse_img2dataset(data.default_language)
    items = _stream(files, parse, config, data.image_text_languages, "language", skipped, start, stream=0)

    def decode(item):
        usable = tf.equal(item["problem"], "")
        image = tf.cond(
            usable,
            lambda: resize_image(decode_image(item["image"]), tower.resize),
            lambda: tf.zeros([tower.resize, tower.resize, 3], tf.uint8),
        )
        return {**item, "image": image}

    def finish(items):
        first = items["position"][0]
        seed = tf.stack([tf.cast(config.seed, tf.int64) + first[0], first[1]])
        return {
            "image": augment_images(items["image"], tower.image_size, config.augmentation, seed),
            "image_id": _fingerprint(items["image_id"]),
            "caption": tokenizer(items["caption"], pad=pad),
            "caption_id": _fingerprint(items["caption"]),
            "image_text_position": items["position"],
        }

    numbered = map_or_drop(items, decode, skipped, "image that does not decode")
    items = _drop_problems(numbered, skipped, "image_id")
    return items.batch(batch, drop_remainder=True).map(finish, num_parallel_calls=2, deterministic=True)


def _text_pair_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    data, batch = config.data, config.train.text_text_batch
    if data.text_pairs not in TEXT_PAIR_SOURCES:
        raise ConfigurationError(
            f"Unknown data.text_pairs {data.text_pairs!r}; known: {', '.join(TEXT_PAIR_SOURCES)}."
        )
    kind, parse = TEXT_PAIR_SOURCES[data.text_pairs]
    files = records.list_files(data.directory, kind, "train")
    items = _stream(files, parse, config, data.text_text_languages, "language_b", skipped, start, stream=1)
    items = _drop_problems(items.enumerate(), skipped, "text_a")

    def finish(items):
        tokens = tokenizer(tf.concat([items["text_a"], items["text_b"]], axis=0), pad=pad)
        return {
            "text_a": {name: value[:batch] for name, value in tokens.items()},
            "text_b": {name: value[batch:] for name, value in tokens.items()},
            "text_a_id": _fingerprint(items["text_a"]),
            "text_b_id": _fingerprint(items["text_b"]),
            "text_text_position": items["position"],
        }

    return items.batch(batch, drop_remainder=True).map(finish, num_parallel_calls=2, deterministic=True)


def _stream(files, parse, config, languages, language_key, skipped, start, stream: int) -> tf.data.Dataset:
    """Shuffled items of endless epochs, each with its `position`, from just after `start`."""
    data = config.data
    for name in files:
        damage = records.find_damage(name)
        if damage:
            skipped.add("file that is truncated: what follows is lost", f"{name}, {damage}")
    _check_first_record(files[0], parse)
    copies = _copies_per_language(files, parse, language_key, languages, data.language_temperature)

    def read(names):
        raw = tf.data.Dataset.from_tensor_slices(names).interleave(
            lambda name: tf.data.TFRecordDataset(name).ignore_errors(), cycle_length=min(16, len(files))
        )
        parsed = map_or_drop(raw, parse, skipped, "record that is not a tf.train.Example of the expected kind")
        return parsed.flat_map(lambda _, items: tf.data.Dataset.from_tensor_slices(items))

    cached = read(tf.constant(files)).cache() if data.cache else None

    def one_epoch(epoch):
        tf.compat.v1.set_random_seed(None)  # of this function's graph: order must not depend on the program's seed
        seed = tf.stack([tf.cast(config.seed, tf.int64) * 2 + stream, epoch])
        items = cached or read(tf.random.experimental.stateless_shuffle(tf.constant(files), seed))
        if copies is not None:
            items = items.enumerate().flat_map(lambda i, item: _repeat(item, copies, language_key, seed, i))
        items = items.shuffle(data.shuffle_buffer, seed=_int_seed(seed), reshuffle_each_iteration=False)
        end = tf.data.Dataset.from_tensors(_end_marker(items.element_spec))
        items = items.concatenate(end).enumerate().skip(tf.where(tf.equal(epoch, first_epoch), start[1] + 1, 0))
        return _in_blocks(
            items, lambda offset, item: {**item, "position": tf.stack([tf.fill(tf.shape(offset), epoch), offset], 1)}
        )

    first_epoch = max(int(start[0]), 0)
    return tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max).flat_map(one_epoch)


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


def _parse_img2dataset(language: str):
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


def _end_marker(element_spec: Mapping) -> dict:
    marker = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in element_spec.items() if spec.dtype != tf.string}
    marker.update({name: tf.constant("") for name, spec in element_spec.items() if spec.dtype == tf.string})
    return {**marker, "problem": tf.constant(END_OF_EPOCH)}


def _in_blocks(dataset: tf.data.Dataset, function) -> tf.data.Dataset:
    """Maps `function` over blocks of elements instead of single ones: calling a function costs more than its work."""
    return dataset.batch(32).map(function).unbatch()


def _drop_problems(numbered: tf.data.Dataset, skipped: SkippedRecords, name_key: str) -> tf.data.Dataset:
    """Drops and counts unusable items, and stops the stream once there are too many."""

    def note(problems, names, numbers):
        for problem, name, number in zip(problems, names, numbers):
            at_end = problem.decode() == END_OF_EPOCH
            if not at_end:
                skipped.add(problem.decode(), name.decode("utf-8", "replace") or f"item {number}")
            if skipped.exceeded(int(number) + 1, at_end):
                raise ValueError("too many unusable records")  # ends training, which then calls `skipped.check`
        return np.bool_(True)

    def keep(numbers, items):
        usable = tf.equal(items["problem"], "")
        unusable = [tf.boolean_mask(x, ~usable) for x in (items["problem"], items[name_key], numbers)]
        noted = tf.cond(tf.reduce_all(usable), lambda: True, lambda: tf.numpy_function(note, unusable, tf.bool))
        with tf.control_dependencies([noted]):
            return {name: tf.boolean_mask(value, usable) for name, value in items.items()}

    return _in_blocks(numbered, keep)


def _check_first_record(name: str, parse) -> None:
    """Raises `ConfigurationError` if a file's first record is not of the expected kind, as then none will be."""
    for serialized in tf.data.TFRecordDataset(name).ignore_errors().take(1):
        try:
            parse(serialized)
        except tf.errors.InvalidArgumentError as error:
            reason = error.message.splitlines()[0]
            raise ConfigurationError(
                f"{name} does not hold records of the expected kind ({reason}). See docs/data.md, and data.format for "
                "img2dataset's records."
            ) from None


def _copies_per_language(files, parse, key, languages, temperature) -> tf.lookup.StaticHashTable | None:
    """How often an item of each language appears in an epoch; `None`: every item once.

    With temperature T a language with share p of the items gets the share p^(1/T) (normalised); the most frequent
    language keeps one copy an item, so no item is left out.
    """
    if temperature == 1.0 and not languages:
        return None
    counts = count_languages(files, parse, key)
    unknown = sorted(set(languages) - set(counts))
    if unknown:
        raise ConfigurationError(
            f"No records in language {', '.join(unknown)}; the data has {', '.join(sorted(counts))}."
        )
    chosen = {name: n for name, n in counts.items() if not languages or name in languages}
    most = max(chosen.values())
    copies = {name: (most / n) ** (1.0 - 1.0 / temperature) if temperature != math.inf else most / n for name, n in chosen.items()}
    keys, values = tf.constant(list(copies)), tf.constant(list(copies.values()), tf.float32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default_value=0.0)


def count_languages(files, parse, key: str) -> dict[str, int]:
    """Counts items by language in one pass over the files."""
    table: dict[str, int] = {}
    dataset = tf.data.TFRecordDataset(files).ignore_errors().map(lambda s: parse(s)[key], tf.data.AUTOTUNE)
    for batch in dataset.ignore_errors().unbatch().batch(4096).as_numpy_iterator():
        for name, n in zip(*np.unique(batch, return_counts=True)):
            name = name.decode("utf-8", "replace")
            table[name] = table.get(name, 0) + int(n)
    return table


def _repeat(item, copies, key, seed, index) -> tf.data.Dataset:
    wanted = copies.lookup(item[key])
    draw = tf.random.stateless_uniform([], tf.stack([seed[0] + 7919 * seed[1], index]))
    return tf.data.Dataset.from_tensors(item).repeat(tf.cast(tf.floor(wanted + draw), tf.int64))


def _fingerprint(strings: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(strings, np.iinfo(np.int64).max)


def _int_seed(seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform([], seed, 0, np.iinfo(np.int64).max, tf.int64)


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
