"""Endless, deterministic streams of items from record files, each item with its position.

The order follows from (seed, epoch). An item's position is (epoch, offset after shuffling), so that a run that
stopped anywhere starts again at the very next item. Work on single items is kept to parsing and decoding; the rest is
done in blocks, because calling a function costs more than what it does here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from mural_tf.data.records import untuned
from mural_tf.data.skipped import SkippedRecords
from mural_tf.data.tfrecord import find_damage
from mural_tf.errors import UserError

PARALLEL = os.cpu_count() or 1  # elements at a time


def map_or_drop(dataset: tf.data.Dataset, function, skipped: SkippedRecords, kind: str) -> tf.data.Dataset:
    """Maps `function` over `dataset`, in order, dropping the elements on which it fails; yields (number, result).

    A failing element leaves a gap in the numbering, which the next good one reveals: that is how it is counted.
    """
    numbered = dataset.enumerate().map(
        lambda index, element: (index, function(element)), num_parallel_calls=PARALLEL, deterministic=True
    )

    def note(missing, index):
        skipped.add(kind, f"record {index - missing} of the stream", int(missing))
        return missing

    def count_gap(previous, index_and_element):
        index, element = index_and_element
        missing = index - previous - 1

        def report():
            return tf.numpy_function(note, [missing, index], tf.int64)

        with tf.control_dependencies([tf.cond(missing > 0, report, lambda: missing)]):
            return tf.identity(index), (index, element)

    return numbered.ignore_errors().scan(tf.constant(-1, tf.int64), count_gap)


END_OF_EPOCH = "end of epoch"


def stream_items(files, parse, config, languages, language_key, skipped, start, stream: int) -> tf.data.Dataset:
    """Shuffled items of endless epochs, each with its `position`, from just after `start`."""
    data = config.data
    for name in files:
        damage = find_damage(name)
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


def _end_marker(element_spec: Mapping) -> dict:
    marker = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in element_spec.items() if spec.dtype != tf.string}
    marker.update({name: tf.constant("") for name, spec in element_spec.items() if spec.dtype == tf.string})
    return {**marker, "problem": tf.constant(END_OF_EPOCH)}


def _int_seed(seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform([], seed, 0, np.iinfo(np.int64).max, tf.int64)


def _in_blocks(dataset: tf.data.Dataset, function) -> tf.data.Dataset:
    """Maps `function` over blocks of elements instead of single ones: calling a function costs more than its work."""
    return dataset.batch(32).map(function).unbatch()


def drop_problems(numbered: tf.data.Dataset, skipped: SkippedRecords, name_key: str) -> tf.data.Dataset:
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
    """Raises `UserError` if a file's first record is not of the expected kind, as then none will be."""
    for serialized in untuned(tf.data.TFRecordDataset(name).ignore_errors().take(1)):
        try:
            parse(serialized)
        except tf.errors.InvalidArgumentError as error:
            reason = error.message.splitlines()[0]
            raise UserError(
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
        raise UserError(f"No records in language {', '.join(unknown)}; the data has {', '.join(sorted(counts))}.")
    chosen = {name: n for name, n in counts.items() if not languages or name in languages}
    most = max(chosen.values())
    copies = {
        name: (most / n) ** (1.0 - 1.0 / temperature) if temperature != math.inf else most / n
        for name, n in chosen.items()
    }
    keys, values = tf.constant(list(copies)), tf.constant(list(copies.values()), tf.float32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default_value=0.0)


def count_languages(files, parse, key: str) -> dict[str, int]:
    """Counts items by language in one pass over the files."""
    table: dict[str, int] = {}
    dataset = tf.data.TFRecordDataset(files).ignore_errors().map(lambda s: parse(s)[key], tf.data.AUTOTUNE)
    for batch in untuned(dataset.ignore_errors().unbatch().batch(4096)).as_numpy_iterator():
        for name, n in zip(*np.unique(batch, return_counts=True)):
            name = name.decode("utf-8", "replace")
            table[name] = table.get(name, 0) + int(n)
    return table


def _repeat(item, copies, key, seed, index) -> tf.data.Dataset:
    wanted = copies.lookup(item[key])
    draw = tf.random.stateless_uniform([], tf.stack([seed[0] + 7919 * seed[1], index]))
    return tf.data.Dataset.from_tensors(item).repeat(tf.cast(tf.floor(wanted + draw), tf.int64))


# What all streams of batches do with a finished batch.


def of_size(batch: int, values):
    """States the batch's size, which tokenisation and resampling forget."""
    return tf.nest.map_structure(lambda v: tf.ensure_shape(v, [batch] + [None] * (v.shape.rank - 1)), values)


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    """Returns an int64 id for each string."""
    return tf.strings.to_hash_bucket_fast(strings, np.iinfo(np.int64).max)
