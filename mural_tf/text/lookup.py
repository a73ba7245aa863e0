"""From an entry of a vocabulary to its place, in the graph: what all tokenizers end in."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import tensorflow as tf


def lookup_table(vocabulary: Sequence[str], unknown: int, file: str | pathlib.Path = "") -> tf.lookup.StaticHashTable:
    """Returns the table from an entry, string, to its place, int64, or `unknown`.

    With `file`, which holds the same entries, the graph reads the file, and a SavedModel carries it as an asset.
    """
    if file:
        entries = tf.lookup.TextFileInitializer(
            str(file),
            key_dtype=tf.string,
            key_index=tf.lookup.TextFileIndex.WHOLE_LINE,
            value_dtype=tf.int64,
            value_index=tf.lookup.TextFileIndex.LINE_NUMBER,
            vocab_size=len(vocabulary),
        )
    else:
        places = tf.range(len(vocabulary), dtype=tf.int64)
        entries = tf.lookup.KeyValueTensorInitializer(tf.constant(vocabulary, tf.string), places)
    return tf.lookup.StaticHashTable(entries, unknown)
