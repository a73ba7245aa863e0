"""Endless, deterministic streams of items and their places from record files.

The order follows from (seed, epoch). An item's place is one number, epoch · 2^40 + offset after shuffling, so that a
run that stopped anywhere continues with the very next item. Items that cannot be used are dropped and counted: training
goes on after a corrupt image or an empty caption, but stops if there are too many. Single items are only parsed and
decoded; everything else is done in blocks, because here a function's call costs more than its work.
"""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data import records
from mural_tf.data.skipped import SkippedRecords
from mural_tf.data.tfrecord import find_damage
from mural_tf.errors import UserError

PARALLEL = os.cpu_count() or 1  # elements at a time
BLOCK = 32  # items looked at in one call
EPOCH = 2**40  # places in an epoch, more than any data set has items
END_OF_EPOCH = "end of epoch"


# From files to items in the order of their epochs.


def endless_items(
    files: Sequence[str],
    parse: Callable,
    data: ConfigDict,
    seed: int,
    skipped: SkippedRecords,
    after: Sequence[int],
    languages: Sequence[str] = (),
    language_key: str = "language",
) -> tf.data.Dataset:
    """Returns the shuffled items of endless epochs as (place, item), from just after a position.

    Args:
      files: of TFRecords.
      parse: from a serialised record, string scalar, to items {name: [items]}; "problem" is "" where one can be used.
      data: the configuration's `data` branch, of which this reads shuffle_buffer, cache and language_temperature.
      seed: of the order.
      skipped: counts records that are damaged.
      after: (epoch, offset) of the last item used; (-1, -1) starts at the beginning.
      languages: items in these alone; empty: in all.
      language_key: the name under which an item has its language.

    Each epoch ends with an empty item whose problem is `END_OF_EPOCH`.
    """
    for name in files:
        damage = find_damage(name)
        if damage:
            skipped.add("file that is truncated: what follows is lost", f"{name}, {damage}")
    copies = _copies_per_language(files, parse, language_key, languages, data.language_temperature)
    first_epoch = max(int(after[0]), 0)

    def read(names):
        raw = tf.data.Dataset.from_tensor_slices(names).interleave(
            lambda name: tf.data.TFRecordDataset(name).ignore_errors(), cycle_length=min(16, len(files))
        )
        return _parsed(raw, parse, skipped).flat_map(tf.data.Dataset.from_tensor_slices)

    cached = read(tf.constant(files)).cache() if data.cache else None

    def one_epoch(epoch):
        tf.compat.v1.set_random_seed(None)  # of this function's graph: order must not depend on the program's seed
        seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
        items = cached or read(tf.random.experimental.stateless_shuffle(tf.constant(files), seeds))
        if copies is not None:
            items = items.enumerate().flat_map(lambda i, item: _repeat(item, copies, language_key, seeds, i))
        items = items.shuffle(data.shuffle_buffer, seed=_int_seed(seeds), reshuffle_each_iteration=False)
        end = tf.data.Dataset.from_tensors(_end_marker(items.element_spec))
        used = tf.where(tf.equal(epoch, first_epoch), tf.constant(after[1] + 1, tf.int64), 0)
        return items.concatenate(end).enumerate(epoch * EPOCH).skip(used)

    return tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max).flat_map(one_epoch)


def positions(places: tf.Tensor) -> tf.Tensor:
    """Returns (epoch, offset) of places: int64 […] → int64 […, 2]."""
    return tf.stack([places // EPOCH, places % EPOCH], axis=-1)


def _parsed(raw: tf.data.Dataset, parse, skipped: SkippedRecords) -> tf.data.Dataset:
    """Parses records in order; leaves out and counts those from which `parse` makes nothing."""
    numbered = raw.enumerate().map(
        lambda index, serialized: (index, parse(serialized)), num_parallel_calls=PARALLEL, deterministic=True
    )

    def note(missing, index):
        kind = "record that is not a tf.train.Example of the expected kind"
        skipped.add(kind, f"record {index - missing} of the stream", int(missing))
        return missing

    def count_gap(previous, index_and_items):
        index, items = index_and_items
        missing = index - previous - 1  # a record that failed leaves a gap in the numbering
        noted = tf.cond(missing > 0, lambda: tf.numpy_function(note, [missing, index], tf.int64), lambda: missing)
        with tf.control_dependencies([noted]):
            return tf.identity(index), items

    return numbered.ignore_errors().scan(tf.constant(-1, tf.int64), count_gap)


def _end_marker(element_spec: Mapping) -> dict:
    marker = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in element_spec.items() if spec.dtype != tf.string}
    marker.update({name: tf.constant("") for name, spec in element_spec.items() if spec.dtype == tf.string})
    return {**marker, "problem": tf.constant(END_OF_EPOCH)}


def _int_seed(seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform([], seed, 0, np.iinfo(np.int64).max, tf.int64)


# What is dropped, and what is looked at before the first epoch.


def usable_blocks(
    items: tf.data.Dataset, decode: Callable | None, skipped: SkippedRecords, name_key: str
) -> tf.data.Dataset:
    """Drops and counts items on which `decode` fails or that have a problem; stops once there are too many.

    Args:
      items: (place, item), of `endless_items`.
      decode: from (item, position), int64 [2], to what the item becomes; `None`: it stays.
      skipped: takes the counts.
      name_key: the item's entry that the log names it by.

    Returns:
      Blocks of up to `BLOCK` items, {name: [items, …]}, with their "position", int64 [items, 2].
    """
    numbered = items.enumerate()
    if decode is not None:
        numbered = numbered.map(
            lambda number, placed: (number, (placed[0], decode(placed[1], positions(placed[0])))),
            num_parallel_calls=PARALLEL,
            deterministic=True,
        ).ignore_errors()

    def note(missing, numbers, problems, names):
        for gap, number, problem, name in zip(missing, numbers, problems, names):
            if gap:
                skipped.add("image that does not decode", f"record {number - gap} of the stream", int(gap))
            if problem:
                at_end = problem.decode() == END_OF_EPOCH
                if not at_end:
                    skipped.add(problem.decode(), name.decode("utf-8", "replace") or f"item {number}")
                if skipped.exceeded(int(number) + 1, at_end):
                    raise ValueError("too many unusable records")  # ends training, which then calls `skipped.check`
        return np.bool_(True)

    def keep(previous, block):
        numbers, (places, items) = block
        missing = numbers - tf.concat([[previous], numbers[:-1]], axis=0) - 1  # what failed left a gap
        usable = tf.equal(items["problem"], "")
        fine = tf.reduce_all(tf.logical_and(usable, tf.equal(missing, 0)))
        to_note = [missing, numbers, items["problem"], items[name_key]]
        noted = tf.cond(fine, lambda: True, lambda: tf.numpy_function(note, to_note, tf.bool))
        with tf.control_dependencies([noted]):
            rows = tf.where(usable)[:, 0]
        kept = {name: tf.gather(value, rows) for name, value in {**items, "position": positions(places)}.items()}
        return numbers[-1], kept

    return numbered.batch(BLOCK).scan(tf.constant(-1, tf.int64), keep)


def check_first_item(files: Sequence[str], parse: Callable, without: str) -> None:
    """Raises `UserError` if the first record is of another kind, as then all will be, or if no record has an item.

    `without` says what it means that no record has one: no batch would ever come.
    """
    for index, serialized in enumerate(_readable(files)):
        try:
            if tf.size(parse(serialized)["problem"]):
                return
        except tf.errors.InvalidArgumentError as error:
            if index == 0:
                reason = error.message.split("\n\t [[")[0].splitlines()[-1]
                raise UserError(
                    f"{files[0]} does not hold records of the expected kind ({reason}). See docs/data.md, and "
                    "data.format for img2dataset's records."
                ) from None
    raise UserError(without)


def count_languages(files: Sequence[str], parse: Callable, key: str) -> dict[str, int]:
    """Counts items by language in one pass over the files."""
    table: collections.Counter[str] = collections.Counter()
    dataset = tf.data.TFRecordDataset(files).ignore_errors().map(lambda s: parse(s)[key], tf.data.AUTOTUNE)
    for batch in records.untuned(dataset.ignore_errors().unbatch().batch(4096)).as_numpy_iterator():
        for name, count in zip(*np.unique(batch, return_counts=True)):
            table[name.decode("utf-8", "replace")] += int(count)
    return dict(table)


def _readable(files: Sequence[str]) -> Iterator[bytes]:
    return records.untuned(tf.data.TFRecordDataset(list(files)).ignore_errors()).as_numpy_iterator()


def _copies_per_language(files, parse, key, languages, temperature) -> tf.lookup.StaticHashTable | None:
    """How often an item of each language appears in an epoch; `None`: every item once.

    With temperature T a language with share p of the items gets the share p^(1/T) (normalised); the most frequent
    language keeps one copy of an item, so no item is left out.
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


def _repeat(item, copies, key, seed, index) -> tf.data.Dataset:
    wanted = copies.lookup(item[key])
    draw = tf.random.stateless_uniform([], tf.stack([seed[0] + 7919 * seed[1], index]))
    return tf.data.Dataset.from_tensors(item).repeat(tf.cast(tf.floor(wanted + draw), tf.int64))
