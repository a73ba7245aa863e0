"""Endless, deterministic streams of items from record files, which go on from any place.

    an epoch's files, in its order   a b c d e f …           16 at a time, read in turn       `read_group`
    records, in blocks of 32         a b c d a b c d a b …   parsed to items                  `_blocks`, `_parse_block`
    items, in their copies           0 1 2 3 4 5 | 6 7 8 …   windows of data.shuffle_buffer   `_place_block`
    each window shuffled             4 0 5 2 1 3 | 8 6 7 …                                    `_items_of_window`
    decoded, dropped or counted      4 0   2 1 3 | 8 6 7 …   in blocks                        `usable_items`
                                           ^ a place: epoch, offset 3, items used, the window's `Begin`

- The order follows from (seed, epoch) and nothing else: neither from time nor from the number of threads.
- A window is shuffled by itself, so that it can be made again from its `Begin`: a byte in each of the 16 files.
- A run that stopped anywhere reads one window again, skips its used items and goes on with the next item.
- Several input pipelines each read every n-th file of the epoch's order, their `Share`; each has a place of its own.
- A record that cannot be read or parsed is an item with a `problem` up to the last step, so that it has an offset.
- There it is dropped and counted by its kind; above `data.max_skipped_fraction` of an epoch the pipeline fails.
- An epoch ends with an empty item, `END_OF_EPOCH`; the next one begins with the files in another order, and its first
  window fills while the last one is used.
- Work is done in blocks, because in `tf.data` the call of a function costs more than its work here.
- `scan` is `map` with a state that goes from block to block: the next block's `Begin`, or the tally of problems.
- Inside a pipeline epoch and offset are one number, epoch · 2^40 + offset.
"""

from __future__ import annotations

import collections
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.skipped import KINDS, NOT_AN_EXAMPLE, SURELY, UNREADABLE_IMAGE, CountsByKind
from mural_tf.data import records
from mural_tf.data.streams.record_files import CYCLE, RecordFiles, read_group

PARALLEL = os.cpu_count() or 1  # elements at a time
BLOCK = 32  # records parsed, items decoded or looked at in one call
EPOCH = 2**40  # places in an epoch, more than any data set has items
ENDLESS = np.iinfo(np.int64).max
END_OF_EPOCH = "end of epoch"
NO_ITEM = "no item"  # of a record that holds none, which is not a fault
UNSHUFFLED = 1024  # items of a window that is not shuffled
FIRST_RECORDS = 100  # looked at before training


# Places.


class Begin(NamedTuple):
    """Where a block of records begins, in the group of files that an input pipeline reads.

    Attributes:
      items: how many items of the epoch come before.
      group: the group's number in the epoch.
      turn: the slot, a file of the group, whose turn is first.
      begins: int64 [CYCLE], the byte in each slot.
      counts: int64 [CYCLE], how many records precede that byte.
    """

    items: tf.Tensor
    group: tf.Tensor
    turn: tf.Tensor
    begins: tf.Tensor
    counts: tf.Tensor

    @classmethod
    def of(cls, numbers: tf.Tensor) -> Begin:
        """Returns the `Begin` whose `numbers()` are these, int64 [BEGIN]."""
        return cls(*tf.unstack(numbers[:3]), *tf.split(numbers[3:], 2))

    def in_group(self, group: tf.Tensor) -> Begin:
        """Returns where reading of the group with this number, an int64 scalar, begins.

        That is here for the block's own group, and the start of its files for a later group.
        """
        is_own_group = tf.equal(group, self.group)
        turn = tf.where(is_own_group, self.turn, 0)
        begins = tf.where(is_own_group, self.begins, 0)
        counts = tf.where(is_own_group, self.counts, 0)
        return Begin(self.items, group, turn, begins, counts)

    def numbers(self) -> tf.Tensor:
        """Returns all fields in one tensor, int64 [BEGIN]."""
        numbers = tf.stack([self.items, self.group, self.turn])
        return tf.concat([numbers, self.begins, self.counts], axis=0)


BEGIN = 3 + 2 * CYCLE  # numbers of a `Begin`: items, group, turn, and two for each slot
PLACE = 3 + BEGIN  # epoch, offset, how many items were used so far, and where the item's window begins


def start_of(epoch: int) -> np.ndarray:
    """Returns the place before the first item of an epoch, with the offset -1: int64 [PLACE]."""
    return np.array([epoch, -1, 0] + [0] * BEGIN)


# From files to items in the order of their epochs.


class Share(NamedTuple):
    """The part of the files that an input pipeline reads: every `pipelines`-th of an epoch's order."""

    pipeline: int = 0
    pipelines: int = 1


ALL = Share()


@tf.autograph.experimental.do_not_convert  # saves seconds; nothing here needs it
def endless_items(
    files: Sequence[str],
    parse: Callable,
    data: ConfigDict,
    seed: int,
    after: np.ndarray,
    languages: Sequence[str] = (),
    language_key: str = "language",
    share: Share = ALL,
    counts: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
    """Returns the shuffled items of endless epochs, in blocks, from just after a place.

    Args:
      files: TFRecord files.
      parse: a function from a serialised record, string scalar, to its items, {name: [items]}; a usable item has the
        "problem" "". A function with a true `takes_many`, see `parser`, maps records, string [N], to an item each.
      data: the configuration's `data` branch, of which this reads shuffle_buffer and language_temperature.
      seed: the order's seed.
      after: the place of the last item used, int64 [PLACE], or `start_of` an epoch.
      languages: the languages of the items to take; empty: all.
      language_key: the entry with an item's language, for text pairs "language_b".
      share: the part of the files that is read.
      counts: {language: items} as `balanced_languages` returns it; `None`: counted here if it is needed.

    Returns:
      A data set of blocks (places, (begins, items)). A place is epoch · 2^40 + offset, int64 [items]; a begin is the
      `Begin` of the item's window, serialised, string [items]. Items, {name: [items]}, have besides `parse`'s entries
      "file", "byte" and "lost" of `read_group`, and "in_epoch", how many items this epoch has, as far as the bytes that
      were read tell. Each epoch ends with an empty item whose problem is `END_OF_EPOCH`.

    Raises:
      UserError: a file cannot be read, or there are fewer files than input pipelines.
    """
    _check_share(share, files)
    copies = None
    if data.language_temperature != 1.0 or languages:
        if counts is None:
            counts = balanced_languages(files, parse, language_key)
        copies = _copies_per_language(counts, language_key, languages, data.language_temperature)
    record_files = RecordFiles.of(files)
    window_size = data.shuffle_buffer or UNSHUFFLED
    is_shuffled = data.shuffle_buffer > 0
    first_epoch = int(after[0])
    last_offset = int(after[1])  # -1 before the first item of an epoch
    first_window_number = np.int64(max(last_offset, 0) // window_size)  # of the window with the last item used
    first_begin = tf.constant(after[3:], tf.int64)
    first_unused = first_epoch * EPOCH + last_offset + 1

    def windows_of_epoch(epoch):
        """Returns a data set of (epoch · 2^40 + window's number, its items); the last item is `END_OF_EPOCH`."""
        tf.compat.v1.set_random_seed(None)  # of this function's graph: order must not depend on the program's seed
        seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
        is_first_epoch = tf.equal(epoch, first_epoch)
        begin = tf.where(is_first_epoch, first_begin, 0)
        window_number = tf.where(is_first_epoch, first_window_number, 0)
        order = tf.random.experimental.stateless_shuffle(tf.range(len(files), dtype=tf.int64), seeds)
        order = order[share.pipeline :: share.pipelines]
        blocks = _blocks(record_files, parse, order, Begin.of(begin))

        def next_block(begin, block):
            return _place_block(begin, block, copies, language_key, seeds, window_size, window_number * window_size)

        blocks = blocks.scan(begin, next_block)
        end = tf.data.Dataset.from_tensors(_blank(blocks.element_spec, [1], END_OF_EPOCH))
        return blocks.concatenate(end).rebatch(window_size).enumerate(epoch * EPOCH + window_number)

    def items_of_window(number, items):
        return _items_of_window(number, items, window_size, seed, first_unused, is_shuffled)

    windows = tf.data.Dataset.range(first_epoch, ENDLESS).flat_map(windows_of_epoch)
    # The next window, also of the next epoch, fills while one is used.
    return windows.prefetch(1).flat_map(items_of_window)


def _check_share(share: Share, files: Sequence[str]) -> None:
    """Raises `UserError` if an input pipeline would have no file to read."""
    if share.pipelines > len(files):
        raise UserError(
            f"{share.pipelines} input pipelines share {len(files)} files of {files[0].rsplit('/', 1)[0]}, and each "
            "needs one: set --config.data.read=all, with which each reads everything, or write smaller files with "
            "python -m mural_tf convert records:FOLDER --output=OTHER --shard_megabytes=N."
        )


def positions(places: tf.Tensor) -> tf.Tensor:
    """Returns (epoch, offset) for places epoch · 2^40 + offset: int64 […] → int64 […, 2]."""
    return tf.stack([places // EPOCH, places % EPOCH], axis=-1)


def _blocks(files: RecordFiles, parse: Callable, order: tf.Tensor, begin: Begin) -> tf.data.Dataset:
    """Returns the items of up to `BLOCK` records at a time, {name: [items]}, for all records from a place on.

    A record that cannot be parsed is an item, too. A block also has two entries for `_place_block`: "group", the
    group of files, and "ends", {name: [records]}, where its records end.

    Args:
      files: all files.
      parse: as in `endless_items`.
      order: the numbers of the files that are read, in their order, int64 [read].
      begin: the place.
    """

    sizes = tf.gather(files.sizes, order)

    def blocks_of_group(group_number):
        """Returns (the group, a block of its records) for each block.

        The group has sums of bytes, because `_place_block` guesses from them how many items the rest of an epoch has.
        """
        first = group_number * CYCLE
        files_of_group = order[first : first + CYCLE]
        start = begin.in_group(group_number)
        blocks = read_group(files, files_of_group, start.turn, start.begins, start.counts).batch(BLOCK)
        group = {
            "number": group_number,
            "slots": tf.size(files_of_group, tf.int64),
            "bytes_before": tf.reduce_sum(sizes[:first]),
            "bytes_in_all": tf.reduce_sum(sizes),
        }
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(group).repeat(), blocks))

    def parse_block(group, block):
        ends = {name: block[name] for name in ("slot", "end", "count")}
        return {**_parse_block(block, parse), "group": group, "ends": ends}

    group_count = (tf.size(order, tf.int64) + CYCLE - 1) // CYCLE
    blocks = tf.data.Dataset.range(begin.group, group_count).flat_map(blocks_of_group)
    return blocks.map(parse_block, num_parallel_calls=PARALLEL, deterministic=True)


def _place_block(numbers: tf.Tensor, block: dict, copies, language_key: str, seeds: tf.Tensor, window: int, first=0):
    """Returns where the next block begins, int64 [BEGIN], and a block's items with their "begin" and "in_epoch".

    "begin" is the window's `Begin`, serialised, for the first item of a window, and "" for other items; "in_epoch" is
    how many items the epoch has, as `_estimate_items` says.

    Args:
      numbers: `Begin.numbers()` of the block, int64 [BEGIN].
      block: a block of `_blocks`.
      copies: the table from a language to the mean number of copies of its items; `None`: one of each.
      language_key: as in `endless_items`.
      seeds: (the order's seed, epoch), int64 [2].
      window: items in a window.
      first: the number in the epoch of the first item that is kept; items before it are left out.
    """
    block = dict(block)
    group = block.pop("group")
    ends = block.pop("ends")
    begin = Begin.of(numbers).in_group(group["number"])
    if copies is not None:
        seed = tf.stack([seeds[0] + 7919 * seeds[1], begin.items])  # the prime keeps (seed, epoch) pairs apart
        block = _in_copies(block, copies, language_key, seed)
    count = tf.size(block["problem"], tf.int64)
    begins_window = tf.equal((begin.items + tf.range(count)) % window, 0)  # [items]
    block["begin"] = tf.where(begins_window, tf.io.serialize_tensor(begin.numbers()), "")
    slots = ends["slot"][:, None]  # [records, 1]
    next_begin = Begin(
        items=begin.items + count,
        group=group["number"],
        turn=(ends["slot"][-1] + 1) % group["slots"],
        begins=tf.tensor_scatter_nd_max(begin.begins, slots, ends["end"]),
        counts=tf.tensor_scatter_nd_max(begin.counts, slots, ends["count"]),
    )
    block["in_epoch"] = tf.fill([count], _estimate_items(next_begin, group))
    skipped = tf.maximum(first - begin.items, 0)
    return next_begin.numbers(), {name: values[skipped:] for name, values in block.items()}


def _estimate_items(begin: Begin, group: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns how many items an epoch has, int64, if all its bytes have as many items as the bytes before `begin`.

    `group` is the "group" of a block of `_blocks`.
    """
    bytes_read = tf.cast(group["bytes_before"] + tf.reduce_sum(begin.begins), tf.float64)
    bytes_in_all = tf.cast(group["bytes_in_all"], tf.float64)
    items = tf.cast(begin.items, tf.float64) * bytes_in_all / tf.maximum(bytes_read, 1.0)
    return tf.cast(items, tf.int64)


def _in_copies(block: dict, copies: tf.lookup.StaticHashTable, language_key: str, seed: tf.Tensor) -> dict:
    """Returns a block's items, {name: [items]}, in copies by their language.

    2.3 copies of an item are two, and with probability 0.3 a third.

    Args:
      block: the items.
      copies: the table from a language to the mean number of copies.
      language_key: as in `endless_items`.
      seed: int64 [2], of the draws.
    """
    draw = tf.random.stateless_uniform(tf.shape(block["problem"]), seed)
    languages = tf.strings.join([block[name] for name in _counted_key(language_key).split(" ")], separator=" ")
    mean_copies = tf.where(_is_lost(block, language_key), 1.0, copies.lookup(languages))
    counts = tf.cast(tf.floor(mean_copies + draw), tf.int32)
    return _rows(block, tf.repeat(tf.range(tf.size(draw)), counts))


def _items_of_window(
    number: tf.Tensor, items: dict[str, tf.Tensor], size: int, seed: int, first_unused: int, is_shuffled: bool
) -> tf.data.Dataset:
    """Returns the items of a window in the blocks that `endless_items` describes.

    Args:
      number: epoch · 2^40 + the window's number in the epoch.
      items: the window's items, {name: [items]}; an `END_OF_EPOCH` is the last and stays there.
      size: items in a window.
      seed: the order's seed.
      first_unused: the first place whose item is taken, because the run has used the items before it.
      is_shuffled: whether items are shuffled; otherwise they keep their order.
    """
    tf.compat.v1.set_random_seed(None)  # as in `windows_of_epoch`
    items = dict(items)
    begin = items.pop("begin")[0]
    count = tf.size(items["problem"], tf.int64)
    end_count = tf.cast(tf.equal(items["problem"][-1], END_OF_EPOCH), tf.int64)  # 0 or 1
    rows = tf.data.Dataset.range(count - end_count)
    if is_shuffled:
        rows = rows.shuffle(size, _order_seed(seed, number), reshuffle_each_iteration=False)
    rows = rows.concatenate(tf.data.Dataset.range(count - end_count, count))
    number_in_epoch = number % EPOCH
    first_place = number - number_in_epoch + number_in_epoch * size
    placed_rows = rows.enumerate(first_place).skip(tf.maximum(first_unused - first_place, 0))

    def block(item_places, rows):
        return item_places, (tf.fill(tf.shape(rows), begin), _rows(items, rows))

    return placed_rows.batch(BLOCK).map(block, num_parallel_calls=PARALLEL, deterministic=True)


def _order_seed(seed: int, number: tf.Tensor) -> tf.Tensor:
    """Returns the seed, an int64 scalar, of the order in a window; `number` as in `_items_of_window`."""
    epoch_seed = tf.stack([tf.cast(seed, tf.int64), number // EPOCH])
    number_in_epoch = number % EPOCH
    further_seed = tf.random.experimental.stateless_fold_in(epoch_seed, number_in_epoch)
    window_seed = tf.where(number_in_epoch > 0, further_seed, epoch_seed)  # the first window has the epoch's
    return tf.random.stateless_uniform([], window_seed, 0, ENDLESS, tf.int64)


def parser(read: Callable, takes_many: bool) -> Callable:
    """Returns `read` as the `parse` of `endless_items`, traced once for all uses, with the attribute `takes_many`.

    Args:
      read: a function from a record, string scalar, or from records, string [N], to items.
      takes_many: whether it takes records, and gives an item for each.
    """
    shape = [None] if takes_many else []
    traced = tf.function(read, [tf.TensorSpec(shape, tf.string)], autograph=False)
    traced.takes_many = takes_many
    return traced


def _takes_many(parse: Callable) -> bool:
    """Whether `parse` takes records, string [N], and gives an item for each; otherwise it takes one record."""
    return parse is records.parse_text_pair or getattr(parse, "takes_many", False)  # also without `parser`


def _parse_one(parse: Callable, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the items of one record, a string scalar: {name: [items]}."""
    if _takes_many(parse):
        serialized = tf.reshape(serialized, [1])
    return parse(serialized)


def _parse_block(block: dict[str, tf.Tensor], parse: Callable) -> dict[str, tf.Tensor]:
    """Returns the items of a block of records, {name: [items]}, with their "file", "byte" and "lost" of `read_group`.

    A record that failed, when it was read or when it is parsed here, is an item with a "problem".

    Args:
      block: elements of `read_group`, {name: [records]}.
      parse: as in `endless_items`.
    """
    record_count = tf.size(block["problem"])
    if _takes_many(parse):
        items = _parse_at_once(block["serialized"], parse)
    else:
        items = _parse_one_by_one(block["serialized"], parse)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(items["number"]), items["number"], record_count)  # [records]
    failed = tf.where(tf.equal(counts, 0))[:, 0]  # [failures]
    all_parsed = tf.reduce_all(counts > 0)
    all_are_items = tf.reduce_all(tf.not_equal(items["problem"], NO_ITEM))
    items = tf.cond(
        all_parsed & all_are_items,
        lambda: items,
        lambda: _with_failures(items, failed, block["problem"]),
    )
    number = items.pop("number")
    origins = {name: block[name] for name in ("file", "byte", "lost")}
    return {**items, **_rows(origins, number)}


def _parse_at_once(serialized: tf.Tensor, parse: Callable) -> dict[str, tf.Tensor]:
    """Returns the items of all records, as `_parse_one_by_one`, by one call of a `parse` that takes many records.

    If a record has a fault, it calls `parse` for each record, which takes ten times as long.
    """

    def parse_many(many):
        return {**parse(many), "number": tf.range(tf.size(serialized))}

    # If the one call fails, its data set is empty, and the first element comes from the other data set.
    at_once = tf.data.Dataset.from_tensors(serialized).map(parse_many).ignore_errors()
    one_by_one = tf.data.Dataset.from_tensors(0).map(lambda _: _parse_one_by_one(serialized, parse))
    return at_once.concatenate(one_by_one).take(1).get_single_element()


def _parse_one_by_one(serialized: tf.Tensor, parse: Callable) -> dict[str, tf.Tensor]:
    """Returns the items of all records that can be parsed, {name: [items]}.

    An item's "number" is its record's place in `serialized`, string [records]. A record without items has an item
    with the problem `NO_ITEM`.
    """

    def parse_numbered(number, record):
        items = _parse_one(parse, record)
        has_items = tf.size(items["problem"]) > 0
        items = tf.cond(has_items, lambda: items, lambda: _blank(items, [1], NO_ITEM))
        return {**items, "number": tf.fill(tf.shape(items["problem"]), number)}

    numbered = tf.data.Dataset.from_tensor_slices((tf.range(tf.size(serialized)), serialized))
    return _together(numbered.map(parse_numbered).ignore_errors().unbatch())


def _with_failures(items: dict[str, tf.Tensor], failed: tf.Tensor, problems: tf.Tensor) -> dict[str, tf.Tensor]:
    """Adds an item for each record that failed, and drops items with the problem `NO_ITEM`.

    Args:
      items: {name: [items]}, as `_parse_one_by_one` returns them.
      failed: the numbers of the records that failed, int64 [failures].
      problems: the problem with which each record was read, or "": string [records].

    Returns:
      The items in the order of their records, {name: [items]}.
    """
    problem = tf.gather(problems, failed)
    problem = tf.where(tf.equal(problem, ""), NOT_AN_EXAMPLE, problem)
    failed_items = _blank(items, tf.shape(failed))
    failed_items.update(problem=problem, number=tf.cast(failed, tf.int32))
    all_items = {name: tf.concat([values, failed_items[name]], axis=0) for name, values in items.items()}
    order = tf.argsort(all_items["number"], stable=True)
    is_item = tf.gather(tf.not_equal(all_items["problem"], NO_ITEM), order)
    return _rows(all_items, tf.boolean_mask(order, is_item))


def _together(elements: tf.data.Dataset) -> dict[str, tf.Tensor]:
    """Returns all elements of a data set, {name: […]}, as one, {name: [elements, …]}; [0, …] for an empty data set."""
    blocks = elements.batch(ENDLESS)

    def no_rows(spec):
        return tf.zeros([0, *spec.shape[1:]], spec.dtype)

    nothing = tf.data.Dataset.from_tensors(tf.nest.map_structure(no_rows, blocks.element_spec))
    return blocks.concatenate(nothing).take(1).get_single_element()


def _rows(items: dict[str, tf.Tensor], rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the items in `rows`, int [R]: {name: [items, …]} → {name: [R, …]}."""
    return {name: tf.gather(values, rows) for name, values in items.items()}


def _blank(reference: Mapping, shape, problem: str = "") -> dict[str, tf.Tensor]:
    """Returns items without content, {name: zeros or "" of `shape`}, with the names and types of `reference`.

    Their "problem" is `problem`.
    """
    blank = {name: tf.zeros(shape, values.dtype) for name, values in reference.items()}
    return {**blank, "problem": tf.fill(shape, problem)}


# Unusable items.


def usable_items(
    items: tf.data.Dataset, decode: Callable | None, stream: str, max_skipped_fraction: float, used: int = 0
) -> tf.data.Dataset:
    """Decodes items, drops and counts items that do not decode or have a problem, and fails once these are too many.

    Args:
      items: blocks of `endless_items`.
      decode: a function from (item, position) to the decoded item, as `Stream.decode`; `None`: items stay as they are.
      stream: the stream's name, for the error, from which `unusable` reads it.
      max_skipped_fraction: the share of an epoch that may be skipped; see `_too_many`.
      used: how many items were used before.

    Returns:
      A data set of blocks of up to `BLOCK` items, {name: [items, …]}. Besides `decode`'s entries they have "position",
      (epoch, offset), int64 [items, 2]; "tally", up to each item, int64 [items, 1 + kinds, 3], see
      `skipped_records.py`; and "begin" and "used" for `place_of_last`.

    Raises:
      tf.errors.InvalidArgumentError: while the data set is read, by `_stop`, if too many items are skipped.
    """

    def decode_block(places, begins_and_items):
        begins, items = begins_and_items
        return *_decode_block(places, items, decode), begins

    def keep_usable(state, block):
        """Returns the state after a block, (its last tally, how many items were used), and the block's usable items."""
        tally, used_before = state
        decoded, rows, origins, begins = block
        tallies = _tallies(tally, origins)
        check = _check_skipped(tallies, origins["problem"], stream, max_skipped_fraction)
        with tf.control_dependencies([check]):  # otherwise the graph would leave the check out
            rows = tf.identity(rows)
        usable = tf.where(tf.equal(decoded.pop("problem"), ""))[:, 0]
        rows = tf.gather(rows, usable)
        count = tf.size(rows, tf.int64)
        usable_block = {
            **_rows(decoded, usable),
            "position": positions(tf.gather(origins["place"], rows)),
            "tally": tf.gather(tallies, rows),
            "begin": tf.gather(begins, rows),
            "used": used_before + 1 + tf.range(count),
        }
        return (tallies[-1], used_before + count), usable_block

    blocks = items.map(decode_block, num_parallel_calls=PARALLEL, deterministic=True)
    no_tally = tf.zeros([1 + len(KINDS), 3], tf.int64)
    start = no_tally, tf.constant(used, tf.int64)
    return blocks.scan(start, keep_usable)


def place_of_last(items: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the place of the last of some items of `usable_items`, {name: [items, …]}: int64 [PLACE]."""
    begin = tf.ensure_shape(tf.io.parse_tensor(items["begin"][-1], tf.int64), [BEGIN])
    return tf.concat([items["position"][-1], items["used"][-1:], begin], axis=0)


def _decode_block(
    places: tf.Tensor, items: dict[str, tf.Tensor], decode: Callable | None
) -> tuple[dict[str, tf.Tensor], tf.Tensor, dict[str, tf.Tensor]]:
    """Decodes the items of a block.

    Args:
      places: int64 [items].
      items: {name: [items]}.
      decode: as in `usable_items`.

    Returns:
      (The items that decode, {name: [decoded, …]}; their rows in the block, int32 [decoded]; and for all items of the
      block "file", "byte", "lost", "in_epoch", "place" and "problem", {name: [items]}, which are counted.)
    """
    origins = {name: items[name] for name in ("file", "byte", "lost", "in_epoch")}
    origins["place"] = places
    if decode is None:
        rows = tf.range(tf.size(places))
        return dict(items), rows, {**origins, "problem": items["problem"]}

    def decode_one(row, place, item):
        return {**decode(item, positions(place)), "row": row}

    numbered = tf.data.Dataset.from_tensor_slices((tf.range(tf.size(places)), places, items))
    decoded = _together(numbered.map(decode_one).ignore_errors())
    rows = decoded.pop("row")
    problem = tf.fill(tf.shape(places), UNREADABLE_IMAGE)  # kept by items that do not decode
    problem = tf.tensor_scatter_nd_update(problem, rows[:, None], decoded["problem"])
    return decoded, rows, {**origins, "problem": problem}


def _tallies(before: tf.Tensor, origins: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the tally after each item of a block, int64 [items, 1 + kinds, 3], as `skipped_records.py` describes it.

    Args:
      before: the tally before the block, int64 [1 + kinds, 3].
      origins: {name: [items]}, where the items come from, as `_decode_block` returns them.
    """
    is_kind = tf.equal(origins["problem"][:, None], tf.constant(KINDS)[None, :])  # [items, kinds]
    is_end = tf.equal(origins["problem"], END_OF_EPOCH)
    records_read = tf.where(is_end, np.int64(0), origins["lost"])  # an item counts as many as are lost with it
    in_epoch = tf.where(is_end, origins["place"] % EPOCH, origins["in_epoch"])  # at the end the offset is exact
    skipped = tf.where(is_kind, records_read[:, None], 0)  # [items, kinds]
    read_and_skipped = tf.stack([records_read, tf.reduce_sum(skipped, axis=1)], axis=1)  # [items, 2]
    sums = before[0, :2] + tf.cumsum(read_and_skipped)  # [2] + [items, 2]
    sums = tf.concat([sums, in_epoch[:, None]], axis=1)  # [items, 3]
    counts = before[1:, 0] + tf.cumsum(skipped)  # [kinds] + [items, kinds]
    first = tf.argmax(is_kind, axis=0)  # [kinds]
    first_places = tf.stack([tf.gather(origins[name], first) for name in ("file", "byte")], axis=1)  # [kinds, 2]
    # The first place of a kind stays; without an item of the kind, `first` is 0 and names another item.
    first_places = tf.where(tf.reduce_any(is_kind, axis=0)[:, None], first_places, 0)
    first_places = tf.where(before[1:, :1] > 0, before[1:, 1:], first_places)
    first_places = tf.broadcast_to(first_places, tf.concat([tf.shape(counts), [2]], axis=0))  # [items, kinds, 2]
    by_kind = tf.concat([counts[..., None], first_places], axis=2)  # [items, kinds, 3]
    return tf.concat([sums[:, None], by_kind], axis=1)  # [items, 1 + kinds, 3]


def _check_skipped(tallies: tf.Tensor, problems: tf.Tensor, stream: str, max_fraction: float) -> tf.Tensor:
    """Fails as `_stop` if too many records are skipped up to the end of a block, or of an epoch that ends in it.

    Args:
      tallies: the tally after each item of the block, int64 [items, 1 + kinds, 3].
      problems: each item's problem, string [items].
      stream, max_fraction: as in `usable_items`.

    Returns:
      False, a scalar for control dependencies.
    """
    is_end = tf.equal(problems, END_OF_EPOCH)
    last_row = tf.size(is_end, tf.int64) - 1
    row = tf.where(tf.reduce_any(is_end), tf.argmax(is_end), last_row)
    too_many = _too_many(tallies[row, 0], is_end[row], max_fraction)
    return tf.cond(too_many, lambda: _stop(stream, tallies[row]), lambda: False)


def _too_many(sums: tf.Tensor, is_end: tf.Tensor, max_fraction: float) -> tf.Tensor:
    """Returns whether more than `max_fraction` of an epoch is skipped, or all of it: a bool scalar.

    Args:
      sums: (records read, records skipped, records of the epoch), int64 [3], row 0 of a tally.
      is_end: whether the epoch ends here: how many records it has is known then, and an estimate before.
      max_fraction: in [0, 1].
    """
    read, skipped, in_epoch = tf.unstack(tf.cast(sums, tf.float64))
    margin = tf.where(is_end, np.float64(1.0), SURELY)  # an estimate may be too low
    bound = max_fraction * tf.maximum(read, in_epoch) * margin
    # No batch would ever come, at any bound. If the files were empty, the next epoch's are other files.
    all_skipped = is_end & (read >= in_epoch) & (skipped >= read) & (read > 0)
    return (skipped > bound) | all_skipped


def _stop(stream: str, tally: tf.Tensor) -> tf.Tensor:
    """Fails with a message from which `unusable` reads the stream and its tally, int64 [1 + kinds, 3].

    An error carries nothing but its message out of a graph.
    """
    numbers = tf.strings.as_string(tf.reshape(tally, [-1]))
    numbers = tf.strings.reduce_join(numbers, separator=",")
    message = tf.strings.join([f"unusable records: {stream} ", numbers])
    with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
        return tf.constant(True)


def unusable(error: tf.errors.OpError) -> tuple[str, np.ndarray] | None:
    """Returns (stream, its tally, int64 [1 + kinds, 3]) of an error of `_stop`; `None` for any other error."""
    match = re.search(r"unusable records: (\S+) ([\d,-]+)", error.message)
    if match is None:
        return None
    numbers = np.array(match[2].split(","), np.int64)
    return match[1], numbers.reshape([1 + len(KINDS), 3])


# Before the first epoch.


def has_first_item(files: Sequence[str], parse: Callable) -> bool:
    """Whether any record in the files has an item: without an item no batch would ever come.

    Args:
      files: TFRecord files.
      parse: as in `endless_items`.

    Raises:
      UserError: no record can be parsed, of the first `FIRST_RECORDS` and the first in each further file, or no record
        can be read.
    """
    record_count = 0
    failed_count = 0
    first_reason = ""  # why a record could not be parsed
    problems = CountsByKind()
    for name in files:
        for _, serialized in records.read_serialized(name, problems.add):
            record_count += 1
            try:
                if _has_item(parse, serialized):
                    return True
            except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:  # TensorFlow's message quotes bytes
                failed_count += 1
                first_reason = first_reason or _reason_of(error)
            if failed_count == record_count >= FIRST_RECORDS:
                break  # enough failed; of each further file only the first record is looked at
    if failed_count and failed_count == record_count:
        raise UserError(
            f"{files[0]} does not hold records of the expected kind ({first_reason}). See docs/data.md, and "
            "data.format for img2dataset's records."
        )
    if problems and not record_count:
        raise UserError(f"No usable record in {len(files)} files: {problems.lines()[0]}.")
    return False


def _has_item(parse: Callable, serialized: tf.Tensor) -> bool:
    """Whether `parse` finds an item, usable or not, in a record, a string scalar."""
    items = _parse_one(parse, serialized)
    return bool(tf.reduce_any(tf.not_equal(items["problem"], NO_ITEM)))


def _reason_of(error: Exception) -> str:
    """Returns the last line of an error's message before TensorFlow's list of nodes; "garbage" without a message."""
    message = getattr(error, "message", "") or "garbage"
    return message.split("\n\t [[")[0].splitlines()[-1]


SIDES = {"language_a": 0, "language_b": -1}  # the place of each side's language in a description's "de en"
PAIR = " ".join(SIDES)  # the key of both sides' languages, as a description has them


def stated_languages(files: Sequence[str], parse: Callable, key: str) -> dict[str, int] | None:
    """Returns {language: items} as the folder's `dataset.json` states it; `None` where it does not describe the files.

    Conversions write there how many texts in each language a file has, and its size: a file of another size has changed
    since, and is not described. Raises `UserError` for a damaged `dataset.json`.

    Args:
      files: record files of one type, in one data folder.
      parse: a function that parses records; only `parse_image_text`'s and `parse_text_pair`'s items are described.
      key: "language" for captions; "language_a" or "language_b" for text pairs, or `PAIR`, which counts "de en".
    """
    if parse not in (records.parse_image_text, records.parse_text_pair):
        return None
    folder = files[0].rsplit("/", 2)[0]  # "data" for "data/image_text/train-00000-of-00001.tfrecord"
    shards = records.describe_shards(folder)
    counts: collections.Counter[str] = collections.Counter()
    for name in files:
        shard = shards.get(name[len(folder) + 1 :])  # the name below the folder
        if shard is None or shard.get("bytes") != tf.io.gfile.stat(name).length:
            return None
        for languages, count in shard["languages"].items():
            language = languages.split(" ")[SIDES[key]] if key in SIDES else languages
            counts[language] += count
    return dict(counts)


def count_languages(files: Sequence[str], parse: Callable, *keys: str) -> dict[str, int]:
    """Prints that the files are read, and returns {language: items}, where an item counts once for each key.

    Args:
      files: record files of one type, in one data folder.
      parse: as in `endless_items`.
      keys: entries with a language, for example "language", or both of `SIDES`; `PAIR` counts pairs, "de en".
    """
    folder = files[0].rsplit("/", 2)[0]
    print(
        f"Reading {len(files)} files to count languages; `python -m mural_tf convert records:{folder}` keeps counts.",
        flush=True,
    )
    counts: collections.Counter[str] = collections.Counter()
    entries_of_keys = [key.split(" ") for key in keys]  # two entries of `PAIR`, one entry of any other key
    entries = set(itertools.chain(*entries_of_keys))
    for block in one_pass(files, parse, ("problem", *entries)):
        # As `_is_lost`: a record that was not parsed has a problem, and no language in any entry.
        is_lost = (block["problem"] != b"") & (block[entries_of_keys[0][-1]] == b"")
        for names in entries_of_keys:
            languages = [block[name][~is_lost] for name in names]
            counts.update(b" ".join(sides).decode("utf-8", "replace") for sides in zip(*languages))
    return dict(counts)


def _counted_key(language_key: str) -> str:
    """Returns the key by which languages are counted for `data.language_temperature`: `PAIR` for text pairs.

    English may be either side, often by the order of the alphabet: a single side says little of a pair.
    """
    return PAIR if language_key in SIDES else language_key


def one_pass(files: Sequence[str], parse: Callable, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yields blocks of the items of all records, {name: [items]}, in file order, with the entries `names`.

    `parse` is as in `endless_items`.
    """
    begin = Begin.of(tf.constant(start_of(0)[3:]))
    order = tf.range(len(files), dtype=tf.int64)
    blocks = _blocks(RecordFiles.of(files), parse, order, begin)
    blocks = blocks.map(lambda block: {name: block[name] for name in names})
    yield from records.untuned(blocks.prefetch(PARALLEL)).as_numpy_iterator()


def _is_lost(items: dict[str, tf.Tensor], language_key: str) -> tf.Tensor:
    """Returns whether each item could not be read or parsed, so that its language is not known: bool [items]."""
    return tf.not_equal(items["problem"], "") & tf.equal(items[language_key], "")


def balanced_languages(
    files: Sequence[str], parse: Callable, language_key: str, described: Callable | None = None
) -> dict[str, int]:
    """Returns {language: items}, for text pairs {"de en": items}, from `dataset.json`, or else by `count_languages`.

    Args:
      files, language_key: as in `endless_items`.
      parse: as in `endless_items`, for the pass.
      described: the function that `parse` traces, by which `stated_languages` knows the items; `None`: `parse` itself.
    """
    key = _counted_key(language_key)
    return stated_languages(files, described or parse, key) or count_languages(files, parse, key)


def _sides(counts: Mapping[str, int], language_key: str) -> dict[str, list[str]]:
    """Returns {language: [language]}, for text pairs {"de en": ["de", "en"]}, for the keys of `balanced_languages`."""
    is_pair = language_key in SIDES
    return {name: name.split(" ") if is_pair else [name] for name in counts}


def without_languages(counts: Sequence[Mapping[str, int]], language_key: str, languages: Sequence[str]) -> list[bool]:
    """Returns a bool for each source: whether it has no item in `languages`; False if no languages are given.

    Args:
      counts: `balanced_languages` of each source.
      language_key: as in `endless_items`.
      languages: the languages of captions, or the second languages of text pairs.

    Raises:
      UserError: no source has an item in one of `languages`.
    """
    languages_of_sources = []
    for counts_of_source in counts:
        languages_of_sources.append({names[-1] for names in _sides(counts_of_source, language_key).values()})
    in_data = set().union(*languages_of_sources)
    unknown = sorted(set(languages) - in_data)
    if unknown:
        raise UserError(f"No records in language {', '.join(unknown)}; the data has {', '.join(sorted(in_data))}.")
    return [bool(languages) and in_source.isdisjoint(languages) for in_source in languages_of_sources]


def _copies_per_language(
    counts: Mapping[str, int], language_key: str, languages: Sequence[str], temperature: float
) -> tf.lookup.StaticHashTable:
    """Returns the table from a language to the mean number of copies of its items in an epoch, float32.

    With temperature T a language with share p of the items gets the share p^(1/T) (normalised); the most frequent
    language keeps one copy of an item, so no item is left out. Text pairs are in two languages, "de en" in the table,
    and pairs of the same two languages in either order count together.

    Args:
      counts: {language: items}, as `balanced_languages` returns it.
      language_key: as in `endless_items`.
      languages: the languages to take, for text pairs the second languages; empty: all. Others get 0 copies.
      temperature: T, at least 1.
    """
    sides = _sides(counts, language_key)
    taken = {name: count for name, count in counts.items() if not languages or sides[name][-1] in languages}
    in_either_order: collections.Counter[tuple[str, ...]] = collections.Counter()
    for name, count in taken.items():
        in_either_order[tuple(sorted(sides[name]))] += count
    most_frequent = max(in_either_order.values(), default=0)
    copies = []
    for name in taken:
        frequency = in_either_order[tuple(sorted(sides[name]))]
        copies.append((most_frequent / frequency) ** (1.0 - 1.0 / temperature))
    table = tf.lookup.KeyValueTensorInitializer(tf.constant(list(taken), tf.string), tf.constant(copies, tf.float32))
    return tf.lookup.StaticHashTable(table, default_value=0.0)
