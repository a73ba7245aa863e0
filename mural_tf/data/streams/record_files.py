"""Records of TFRecord files in `tf.data`'s graph, also those behind damage.

`tf.data.TFRecordDataset` ends a file at its first bad checksum. Here that is only the fast way through a file: where it
stops before the file's end, the rest is read record by record, by the rules of `tfrecord.py`. What is lost becomes an
element with a `problem`, so that it is shuffled, counted and bounded like everything else. Nothing calls Python: a
pipeline may run in another process.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mural_tf.data.skipped import DAMAGED_FILE, DAMAGED_RECORD
from mural_tf.data.tfrecord import CRC_MASK, FRAME, HEADER, WINDOW

AT_ONCE = 8  # records that the fast way hands on together
CYCLE = 16  # files read in turn

RECORD_SPEC = {
    "serialized": tf.TensorSpec([], tf.string),
    "problem": tf.TensorSpec([], tf.string),
    "file": tf.TensorSpec([], tf.int64),
    "byte": tf.TensorSpec([], tf.int64),
    "lost": tf.TensorSpec([], tf.int64),
}


@tf.autograph.experimental.do_not_convert  # saves seconds; nothing here needs it
def read_files(files: Sequence[str], order: tf.Tensor | None = None) -> tf.data.Dataset:
    """Returns the records of files, taken from up to `CYCLE` of them in turn.

    Args:
      files: their names.
      order: int64 [files], in which they are read; `None`: as they stand.

    Returns:
      Dictionaries of scalars: "serialized", a record; "problem", "" or one of `skipped.KINDS`; "file", the number of
      its file, and "byte", where it begins there; "lost", how many records the element stands for, 1 but for a stretch
      that is damaged.
    """
    names = tf.constant(files)
    sizes = tf.constant([tf.io.gfile.stat(name).length for name in files], tf.int64)
    order = tf.range(len(files), dtype=tf.int64) if order is None else order

    def read(file):
        return _read_file(names[file], sizes[file], file)

    return tf.data.Dataset.from_tensor_slices(order).interleave(read, cycle_length=min(CYCLE, len(files)))


def _read_file(name: tf.Tensor, size: tf.Tensor, file: tf.Tensor) -> tf.data.Dataset:
    blocks = tf.data.TFRecordDataset(name).ignore_errors().batch(AT_ONCE)
    blocks = blocks.concatenate(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string)))  # the end of the fast way

    def place(position_and_count, block):
        position, count = tf.unstack(position_and_count)
        ends = position + tf.cumsum(tf.cast(tf.strings.length(block), tf.int64) + FRAME)
        after = tf.concat([[position], ends], axis=0)
        return tf.stack([after[-1], count + tf.size(block, tf.int64)]), (block, after[:-1], position, count)

    def elements(block, begins, position, count):
        whole = {
            "serialized": block,
            "problem": tf.zeros_like(block),
            "file": tf.fill(tf.shape(block), file),
            "byte": begins,
            "lost": tf.ones_like(begins),
        }
        # What is not taken is not even instantiated, which matters: nearly all files are whole.
        is_end = tf.logical_and(tf.equal(tf.size(block), 0), position < size)
        rest = tf.data.Dataset.from_tensors((position, count)).flat_map(
            lambda position, count: _read_rest(name, size, file, position, count)
        )
        return tf.data.Dataset.from_tensor_slices(whole).concatenate(rest.take(tf.where(is_end, np.int64(-1), 0)))

    placed = blocks.scan(tf.zeros([2], tf.int64), place)
    return placed.flat_map(elements)


@functools.partial(  # traced once for all files and streams
    tf.function,
    autograph=False,
    input_signature=[tf.TensorSpec([], tf.string), *[tf.TensorSpec([], tf.int64)] * 4],
)
def _read_rest(
    name: tf.Tensor, size: tf.Tensor, file: tf.Tensor, position: tf.Tensor, count: tf.Tensor
) -> tf.data.Dataset:
    """Returns what stands behind the place where the fast way ended, which is the end of most files: nothing."""

    def step(position_and_count, _):
        position, count = tf.unstack(position_and_count)
        found, length = _next_header(name, size, position)
        is_record = tf.equal(found, position)
        stated = tf.cond(is_record, lambda: length, lambda: _stated(name, size, position))
        lost = tf.where(is_record, tf.constant(1, tf.int64), _lost(stated, found - position, position, count))
        after = tf.where(is_record, position + FRAME + length, found)
        return tf.stack([after, count + lost]), (position, is_record, lost)

    def element(serialized, problem, byte, lost):
        return {"serialized": serialized, "problem": problem, "file": file, "byte": byte, "lost": lost}

    def read(position, is_record, lost):
        damaged = tf.where(is_record, DAMAGED_RECORD, DAMAGED_FILE)
        record = _records_from(name, position, is_record).map(lambda data: element(data, "", position, lost))
        return record.concatenate(tf.data.Dataset.from_tensors(element("", damaged, position, lost))).take(1)

    steps = tf.data.Dataset.range(np.iinfo(np.int64).max).scan(tf.stack([position, count]), step)
    return steps.take_while(lambda position, *_: position < size).flat_map(read)


def _records_from(name: tf.Tensor, position: tf.Tensor, wanted: tf.Tensor) -> tf.data.Dataset:
    """Returns the record at a position; nothing if its checksum does not agree or it is not `wanted`."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=name[None],
        compression_type="",
        buffer_size=tf.constant(0, tf.int64),
        byte_offsets=position[None],
    )
    dataset = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    return dataset.ignore_errors().take(tf.cast(wanted, tf.int64))


def _next_header(name: tf.Tensor, size: tf.Tensor, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where the next record begins, from `position` on, and its length; (`size`, 0) if none does."""

    def look(begin, window, _):
        data = _bytes(name, size, begin, window + HEADER - 1)
        lengths = _lengths(data)
        fits = lengths <= size - FRAME - begin - tf.range(tf.size(lengths, tf.int64), dtype=tf.int64)
        places = tf.where(tf.logical_and(lengths >= 0, fits))[:, 0]
        found = tf.size(places) > 0
        length = tf.cond(found, lambda: lengths[places[0]], lambda: tf.constant(-1, tf.int64))
        after = tf.cond(found, lambda: begin + places[0], lambda: tf.minimum(begin + window, size))
        return after, tf.constant(WINDOW, tf.int64), length

    # Nearly always there is one at `position` itself.
    start = position, tf.constant(1, tf.int64), tf.constant(-1, tf.int64)
    found, _, length = tf.while_loop(lambda begin, _, length: (length < 0) & (begin < size), look, start)
    return found, tf.maximum(length, 0)


def _bytes(name: tf.Tensor, size: tf.Tensor, begin: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns up to `count` bytes of a file from `begin` on, int64 [N]; none where they cannot be read."""
    count = tf.minimum(count, size - begin)
    data = tf.data.FixedLengthRecordDataset(
        name, record_bytes=count, header_bytes=begin, footer_bytes=size - begin - count
    )
    data = data.ignore_errors().concatenate(tf.data.Dataset.from_tensors(tf.constant(""))).take(1)
    return tf.cast(tf.io.decode_raw(data.get_single_element(), tf.uint8), tf.int64)


def _lengths(data: tf.Tensor) -> tf.Tensor:
    """Returns the length that stands at each place of `data`, int64 [N], where its checksum agrees; elsewhere -1."""
    places = tf.maximum(tf.size(data) - HEADER + 1, 0)
    columns = [data[i : i + places] for i in range(HEADER)]  # the bytes of the header that begins at each place
    crc = tf.fill([places], tf.constant(0xFFFFFFFF, tf.int64))
    for column in columns[:8]:
        index = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_and(crc, 0xFF), column)
        crc = tf.bitwise.bitwise_xor(tf.gather(_CRC_TABLE, index), tf.bitwise.right_shift(crc, 8))
    crc = tf.bitwise.bitwise_xor(crc, 0xFFFFFFFF)
    rotated = tf.bitwise.bitwise_or(tf.bitwise.right_shift(crc, 15), tf.bitwise.left_shift(crc, 17))
    masked = tf.bitwise.bitwise_and(tf.bitwise.bitwise_and(rotated, 0xFFFFFFFF) + CRC_MASK, 0xFFFFFFFF)
    return tf.where(tf.equal(masked, _little_endian(columns[8:])), _little_endian(columns[:8]), -1)


def _little_endian(columns: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.bitwise.left_shift(column, 8 * place) for place, column in enumerate(columns)])


def _stated(name: tf.Tensor, size: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
    """The length that stands at `position`, whether or not it can be one; -1 where the file ends before."""
    data = _bytes(name, size, position, tf.constant(8, tf.int64))
    return tf.cond(
        tf.equal(tf.size(data), 8),
        lambda: _little_endian(tf.unstack(tf.ensure_shape(data, [8]))),
        lambda: tf.constant(-1, tf.int64),
    )


def _lost(stated: tf.Tensor, lost: tf.Tensor, before: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """`tfrecord.lost_records` in the graph."""
    changed = tf.bitwise.bitwise_xor(stated, tf.maximum(lost - FRAME, 0))
    bits = tf.reduce_sum(tf.bitwise.bitwise_and(tf.bitwise.right_shift(changed, tf.range(64, dtype=tf.int64)), 1))
    about = tf.cast(tf.round(tf.cast(lost * count, tf.float64) / tf.cast(tf.maximum(before, 1), tf.float64)), tf.int64)
    is_one = tf.logical_and(stated >= 0, bits <= 2)
    return tf.where(is_one, tf.constant(1, tf.int64), tf.maximum(about, 1))


def _crc_table() -> np.ndarray:
    """The CRC-32C (Castagnoli) of each byte, int64 [256]."""
    values = np.arange(256, dtype=np.int64)
    for _ in range(8):
        values = (values >> 1) ^ np.where(values & 1, 0x82F63B78, 0)
    return values


_CRC_TABLE = _crc_table()
