"""Records of TFRecord files in `tf.data`'s graph, also those behind damage.

`tf.data.TFRecordDataset` ends a file at its first bad checksum. Here that is only the fast way through a file: where it
stops before the file's end, the rest is read record by record, by the rules of `tfrecord.py`. A lost stretch becomes an
element with a `problem`, so that it is shuffled, counted and bounded like everything else. Nothing calls Python: a
pipeline may run in another process.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mural_lite.skipped import DAMAGED_FILE, DAMAGED_RECORD, UNREADABLE_FILE
from mural_lite.tfrecord import CRC_MASK, FRAME, HEADER, WINDOW
from mural_tf.data import records

AT_ONCE = 8  # records that the fast way hands on together
CYCLE = 16  # files read in turn
BUFFER = 1 << 18  # bytes read from a file at a time
REMOTE_BUFFER = 1 << 22  # the same where every read is a request


class FileInSlot(NamedTuple):
    """A file of a group, as scalars of a graph.

    Attributes:
      name: string.
      size: in bytes, int64.
      number: among all files, int64.
      slot: the file's place in the group, int64.
    """

    name: tf.Tensor
    size: tf.Tensor
    number: tf.Tensor
    slot: tf.Tensor

    def element(self, serialized, problem, byte, lost, end, count) -> dict:
        """Returns an element of `read_group`, {name: scalar}, for a record or a problem of this file.

        The arguments are the entries that `read_group` describes under their names.
        """
        element = {"serialized": serialized, "problem": problem, "byte": byte, "lost": lost, "end": end, "count": count}
        return {**element, "file": self.number, "slot": self.slot}


TEXT = tf.TensorSpec([], tf.string)
NUMBER = tf.TensorSpec([], tf.int64)
RECORD_SPEC = {
    "serialized": TEXT,
    "problem": TEXT,
    **dict.fromkeys(("file", "byte", "lost", "slot", "end", "count"), NUMBER),
}
ONE = np.int64(1)  # the type of the numbers in a graph
NONE = np.int64(-1)  # a record's length that is not known


class RecordFiles(NamedTuple):
    """The record files of a stream as tensors.

    Attributes:
      names: string [files].
      sizes: in bytes, int64 [files].
      remote: whether they are in an object store.
    """

    names: tf.Tensor
    sizes: tf.Tensor
    remote: bool

    @classmethod
    def of(cls, files: Sequence[str]) -> RecordFiles:
        """Returns the `RecordFiles` of file names; raises `UserError` for a file that cannot be read."""
        sizes = list(records.file_sizes(files).values())
        return cls(tf.constant(files), tf.constant(sizes, tf.int64), "://" in files[0])


@tf.autograph.experimental.do_not_convert  # saves seconds; nothing here needs it
def read_group(files: RecordFiles, group: tf.Tensor, turn=0, begins=None, counts=None) -> tf.data.Dataset:
    """Returns the records of a group of up to `CYCLE` files, one record of each file in turn.

    Args:
      files: all files, among them the group's.
      group: the numbers of the group's files in `files`, int64 [slots]; a file's slot is its place here.
      turn: the slot of the file whose turn is first.
      begins: int64 [CYCLE], the byte at which reading begins in each slot's file; `None`: at 0.
      counts: int64 [CYCLE], how many records precede that byte; given with `begins`.

    Returns:
      A data set of {name: scalar}, an element for each record and each damaged stretch of a file:

        serialized   the record, "" for a problem
        problem      "", or one of `skipped.KINDS`
        file, slot   the file's number in `files` and its place in `group`
        byte, end    where the element begins in the file, and where the next one begins
        count        how many records precede `end`
        lost         how many records are lost with the element: 1, or more for a damaged stretch
    """
    if begins is None:
        begins = counts = tf.zeros([CYCLE], tf.int64)

    def read(slot):
        """Returns the elements of the file in a slot."""
        file = tf.gather(group, slot)
        first = tf.stack([tf.gather(begins, slot), tf.gather(counts, slot)])
        return _read_file(tf.gather(files.names, file), tf.gather(files.sizes, file), file, slot, first)

    slots = tf.range(tf.size(group, tf.int64))
    slots_in_turn = tf.data.Dataset.from_tensor_slices(tf.roll(slots, -turn, axis=0))
    cycle = min(CYCLE, files.names.shape[0])
    if files.remote:  # waits for several answers at once; the order is the same
        return slots_in_turn.interleave(read, cycle_length=cycle, num_parallel_calls=cycle, deterministic=True)
    return slots_in_turn.interleave(read, cycle_length=cycle)


@functools.partial(  # traced once for all streams
    tf.function,
    autograph=False,
    input_signature=[TEXT, NUMBER, NUMBER, NUMBER, tf.TensorSpec([2], tf.int64)],
)
def _read_file(
    name: tf.Tensor, size: tf.Tensor, number: tf.Tensor, slot: tf.Tensor, first: tf.Tensor
) -> tf.data.Dataset:
    """Returns the elements of `read_group` for one file, from a byte on.

    Args:
      name, size, number, slot: the file, as in `FileInSlot`.
      first: (the byte, how many records precede it), int64 [2].
    """
    file = FileInSlot(name, size, number, slot)
    first_byte, _ = tf.unstack(first)
    buffer = tf.where(tf.strings.regex_full_match(name, ".*://.*"), REMOTE_BUFFER, BUFFER)
    # A file that cannot even be opened would make `ignore_errors` try for ever.
    last_byte = _bytes(file, size - 1, ONE)
    can_be_read = tf.equal(tf.strings.length(last_byte), 1)
    names = tf.repeat(name, tf.cast(can_be_read, tf.int32))
    blocks = _records(names, first_byte, buffer).ignore_errors().batch(AT_ONCE)
    blocks = blocks.concatenate(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string)))  # the end of the fast way

    def elements(block, bounds, count):
        return _elements_of_block(file, can_be_read, block, bounds, count)

    return blocks.scan(first, _locate_block).flat_map(elements)


def _locate_block(position_and_count: tf.Tensor, block: tf.Tensor) -> tuple[tf.Tensor, tuple]:
    """Finds where the records of a block lie in their file: a step of `scan`.

    Args:
      position_and_count: the byte where the block begins, and how many records precede it, int64 [2].
      block: records, string [N], one behind the other.

    Returns:
      `position_and_count` behind the block, and (the block, the bytes where its records begin and where the last one
      ends, int64 [N + 1], the count before the block).
    """
    position, count = tf.unstack(position_and_count)
    ends = position + tf.cumsum(tf.cast(tf.strings.length(block), tf.int64) + FRAME)  # [N]
    bounds = tf.concat([[position], ends], axis=0)  # [N + 1]
    count_after = count + tf.size(block, tf.int64)
    return tf.stack([bounds[-1], count_after]), (block, bounds, count)


def _elements_of_block(
    file: FileInSlot, can_be_read: tf.Tensor, block: tf.Tensor, bounds: tf.Tensor, count: tf.Tensor
) -> tf.data.Dataset:
    """Returns the elements of `read_group` for a block of records.

    An empty block before the file's end means that the fast way could not go on there: the file is damaged, or cannot
    be read at all.

    Args:
      file: the block's file.
      can_be_read: whether the file can be opened, a bool scalar.
      block, bounds, count: as `_locate_block` returns them.
    """
    to_variant = tf.data.experimental.to_variant  # conditions in a graph give tensors, not data sets
    position = bounds[0]

    def records_of_block():
        """Returns an element for each record, as a variant."""
        counts = count + 1 + tf.range(tf.size(block, tf.int64))
        lost = tf.ones_like(counts)
        content = file.element(block, tf.zeros_like(block), bounds[:-1], lost, bounds[1:], counts)
        content["file"] = tf.fill(tf.shape(block), file.number)
        content["slot"] = tf.fill(tf.shape(block), file.slot)
        return to_variant(tf.data.Dataset.from_tensor_slices(content))

    def records_behind_damage():
        return to_variant(_read_rest(file, position, count))

    def unreadable_file():
        content = file.element("", UNREADABLE_FILE, position, ONE, file.size, count + 1)
        return to_variant(tf.data.Dataset.from_tensors(content))

    def after_fast_way():
        return tf.cond(can_be_read, records_behind_damage, unreadable_file)

    is_cut_off = tf.logical_and(tf.equal(tf.size(block), 0), position < file.size)
    variant = tf.cond(is_cut_off, after_fast_way, records_of_block)
    return tf.data.experimental.from_variant(variant, RECORD_SPEC)


def _read_rest(file: FileInSlot, position: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    """Returns the elements of `read_group` from `position` on, where the fast way ended behind `count` records."""

    def step(position_and_count, _):
        """Returns (position, count) behind a record or a damaged stretch, and the arguments of `read` for it."""
        position, count = tf.unstack(position_and_count)
        header, length = _next_header(file, position)
        is_record = tf.equal(header, position)  # otherwise the stretch up to the header is damaged
        stated = tf.cond(is_record, lambda: length, lambda: _stated_length(file, position))
        lost = tf.where(is_record, ONE, _lost_records(stated, header - position, position, count))
        after = tf.where(is_record, position + FRAME + length, header)
        return tf.stack([after, count + lost]), (position, is_record, lost, after, count + lost)

    def read(position, is_record, lost, after, count):
        """Returns one element: the record at `position`, or a problem if it cannot be read."""

        def element(serialized, problem):
            return file.element(serialized, problem, position, lost, after, count)

        # Reading fails where the record is damaged, and where there is no file to read because no record begins here.
        # `ignore_errors` leaves an empty data set then, so that the problem, which is put behind, comes first.
        names = tf.repeat(file.name, tf.cast(is_record, tf.int32))
        record = tf.data.Dataset.from_tensors(position).map(lambda begin: _first(_records(names, begin)))
        record_or_nothing = record.ignore_errors().map(lambda serialized: element(serialized, ""))
        problem = element("", tf.where(is_record, DAMAGED_RECORD, DAMAGED_FILE))
        return record_or_nothing.concatenate(tf.data.Dataset.from_tensors(problem)).take(1)

    endless = tf.data.Dataset.range(np.iinfo(np.int64).max)
    steps = endless.scan(tf.stack([position, count]), step)
    return steps.take_while(lambda position, *_: position < file.size).flat_map(read)


def _first(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns the first element of a data set, which must have an element."""
    return dataset.take(1).get_single_element()


def _records(names: tf.Tensor, position: tf.Tensor, buffer: int | tf.Tensor = 0) -> tf.data.Dataset:
    """Returns the records of a file from a byte on, string scalars; reading them ends with an error at damage.

    `tf.data.TFRecordDataset` knows no position, and makes a function of its own for every use.

    Args:
      names: string [1], or [0] for no records.
      position: the byte, int64.
      buffer: bytes that are read at a time; 0: TensorFlow's default.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=names,
        compression_type="",
        buffer_size=tf.cast(buffer, tf.int64),
        byte_offsets=tf.fill(tf.shape(names), position),
    )
    return tf.data.experimental.from_variant(variant, TEXT)


def _next_header(file: FileInSlot, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (where the next record begins from `position` on, its length in bytes), int64 scalars.

    Where no record follows, they are the file's size and 0.
    """
    size = file.size

    def search_window(begin, window, _):
        """Returns (the first header in a window, or the window's end; the next window's bytes; the length or -1)."""
        data = _bytes(file, begin, window + HEADER - 1)
        lengths = _lengths(tf.io.decode_raw(data, tf.uint8))
        fits = lengths <= size - FRAME - begin - tf.range(tf.size(lengths, tf.int64), dtype=tf.int64)
        offsets = tf.where(tf.logical_and(lengths >= 0, fits))[:1, 0]  # [1], the first header's, or [0]
        has_header = tf.size(offsets) > 0
        after = tf.where(has_header, begin + tf.reduce_sum(offsets), tf.minimum(begin + window, size))
        length = tf.reduce_sum(tf.gather(lengths, offsets))
        length = tf.where(has_header, length, NONE)
        return after, tf.constant(WINDOW, tf.int64), length

    def goes_on(begin, _, length):
        return (length < 0) & (begin < size)

    # The first window is one byte: nearly always there is a header at `position` itself.
    header, _, length = tf.while_loop(goes_on, search_window, (position, ONE, NONE))
    return header, tf.maximum(length, 0)


def _bytes(file: FileInSlot, begin: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns up to `count` bytes of a file from byte `begin` on, a string scalar; "" if they cannot be read."""
    count = tf.minimum(count, file.size - begin)

    def read(begin):
        """Returns the bytes, as the only record of a data set whose header and footer are the rest of the file."""
        variant = tf.raw_ops.FixedLengthRecordDatasetV2(
            filenames=file.name[None],
            header_bytes=begin,
            record_bytes=count,
            footer_bytes=file.size - begin - count,
            buffer_size=tf.constant(BUFFER, tf.int64),
            compression_type="",
        )
        return _first(tf.data.experimental.from_variant(variant, TEXT))

    # In a function, whose error ends it: the data set itself would fail again at every call.
    data = tf.data.Dataset.from_tensors(begin).map(read).ignore_errors()
    return _first(data.concatenate(tf.data.Dataset.from_tensors(tf.constant(""))))


def _lengths(data: tf.Tensor) -> tf.Tensor:
    """Returns the record length that a header at each byte of `data`, uint8 [M], would state: int64 [M - HEADER + 1].

    -1 where no header begins, because the checksum does not agree.
    """
    offsets = tf.range(tf.maximum(tf.size(data) - HEADER + 1, 0))  # [N], where a whole header fits
    headers = tf.gather(data, offsets[:, None] + tf.range(HEADER))  # [N, 12], the header that begins at each byte
    length, stored_crc = tf.split(headers, [8, 4], axis=1)
    rows = tf.cast(length, tf.int32) + tf.range(0, 8 * 256, 256)  # [N, 8], a table for each byte of the length
    summands = tf.gather(_CRC_TABLES, rows)  # [N, 8]
    crc = functools.reduce(tf.bitwise.bitwise_xor, tf.unstack(summands, axis=1))  # [N]
    # TFRecord stores the checksum masked: rotated by 15 bits, plus a constant modulo 2^32.
    rotated = tf.bitwise.bitwise_or(tf.bitwise.right_shift(crc, 15), tf.bitwise.left_shift(crc, 17))
    agrees = tf.equal(rotated + CRC_MASK, tf.bitcast(stored_crc, tf.uint32))
    return tf.where(agrees, tf.bitcast(length, tf.int64), -1)


def _stated_length(file: FileInSlot, position: tf.Tensor) -> tf.Tensor:
    """Returns the record length stored at byte `position`, plausible or not, int64; -1 where the file ends before."""
    data = _bytes(file, position, tf.constant(8, tf.int64))
    length = tf.reshape(tf.io.decode_raw(data, tf.int64, fixed_length=8), [])
    return tf.where(tf.equal(tf.strings.length(data), 8), length, NONE)


def _lost_records(stated: tf.Tensor, size: tf.Tensor, before: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns how many records a damaged stretch held, int64: `tfrecord.lost_records` in the graph.

    Args:
      stated: the length that the stretch begins with, -1 if it is not known.
      size: bytes of the stretch.
      before: bytes before it.
      count: records in the bytes before it.
    """
    # One record, of which up to two bits of the length changed, or else as many as in the bytes before.
    changed = tf.bitwise.bitwise_xor(stated, tf.maximum(size - FRAME, 0))
    shifted = tf.bitwise.right_shift(changed, tf.range(64, dtype=tf.int64))
    changed_bits = tf.bitwise.bitwise_and(shifted, 1)
    is_one_record = (stated >= 0) & (tf.reduce_sum(changed_bits) <= 2)
    bytes_before = tf.cast(tf.maximum(before, 1), tf.float64)
    estimate = tf.round(tf.cast(size * count, tf.float64) / bytes_before)
    at_least_one = tf.maximum(tf.cast(estimate, tf.int64), 1)
    return tf.where(is_one_record, ONE, at_least_one)


def _crc_tables() -> np.ndarray:
    """Returns tables by which a header's CRC-32C is the exclusive or of 8 numbers, one for each byte of its length.

    Number 256 i + b, uint32 [8 * 256], is for value b of byte i. The checksum (Castagnoli's) is linear in the bytes but
    for a constant, which the numbers of byte 0 contain.
    """
    step = np.arange(256, dtype=np.uint32)  # the checksum's change by the byte in its lowest place
    for _ in range(8):
        # 0x82F63B78 is Castagnoli's polynomial with its bits reversed.
        step = (step >> 1) ^ np.where(step & 1, np.uint32(0x82F63B78), np.uint32(0))
    tables = [step]
    constant = np.uint32(0xFFFFFFFF)  # how a checksum begins; the loop adds 8 bytes 0
    for _ in range(8):
        constant = step[constant & 0xFF] ^ (constant >> 8)
    while len(tables) < 8:  # a byte further in front passes through one more step
        tables.insert(0, step[tables[0] & 0xFF] ^ (tables[0] >> 8))
    tables[0] = tables[0] ^ constant ^ np.uint32(0xFFFFFFFF)
    return np.concatenate(tables)


_CRC_TABLES = _crc_tables()
