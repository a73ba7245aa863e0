"""The folders that training reads: one, or several in proportions that the configuration names.

`data.sources` holds {name: {"directory", "weight", "format"}}; without sources, `data.directory` is the only source. A
source gives the share weight / sum of weights of each stream's items; the sum is over the sources that have such items,
in the languages that a configuration chooses.
Draws follow from the seed and from how many items were used, so that a run goes on with the next draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.skipped import check_fraction
from mural_tf.data import records

FORMATS = ("mural", "img2dataset")
DRAWS = 10_000  # after so many draws every source has had its share, to the nearest draw


class DataSource(NamedTuple):
    """A data folder with the proportion in which its items are drawn; the only one has the name ""."""

    name: str
    directory: str
    weight: float
    format: str

    def files(self, record_type: str) -> list[str]:
        """Returns its training files of a kind; raises `UserError` if there are not any."""
        return records.list_files(self.directory, record_type, "train")


def training_sources(data: ConfigDict) -> list[DataSource]:
    """Returns the sources that the configuration's `data` branch names; raises `UserError` for values out of range."""
    check_fraction(data.max_skipped_fraction, "data.max_skipped_fraction")
    if data.shuffle_buffer < 0:
        raise UserError(f"data.shuffle_buffer={data.shuffle_buffer}: expected a number of items, or 0: no shuffling.")
    if not 1 <= data.language_temperature < math.inf:
        raise UserError(
            f"data.language_temperature={data.language_temperature}: expected 1, as often as in the data, or more."
        )
    sources = [_parse_source(name, value) for name, value in sorted(data.sources.items())]
    if not sources:
        sources = [DataSource("", data.directory, 1.0, data.format)]
    for source in sources:
        if source.format not in FORMATS:
            field = f"data.sources.{source.name}.format" if source.name else "data.format"
            raise UserError(f"Unknown {field} {source.format!r}; known: {', '.join(FORMATS)}.")
    return sources


def sources_of(data: ConfigDict, record_type: str) -> list[tuple[DataSource, list[str]]]:
    """Returns (source, its files in the order in which tallies number them) of sources with training records of a kind.

    Raises `UserError` if no source has files of this kind, or one has no training data of any kind.
    """
    sources = training_sources(data)
    if len(sources) == 1:
        return [(sources[0], sources[0].files(record_type))]
    with_files = [(source, records.find_files(source.directory, record_type, "train")) for source in sources]
    if not any(files for _, files in with_files):
        raise UserError(f"None of data.sources ({', '.join(data.sources)}) has {record_type} records of split 'train'.")
    return [(source, files) for source, files in with_files if files]


def _parse_source(name: str, value) -> DataSource:
    """Returns an entry of `data.sources` as a source; raises `UserError` for an entry of another form."""
    entry = value.to_dict() if isinstance(value, ConfigDict) else value
    try:
        source = DataSource(name, **{"weight": 1.0, "format": "mural", **entry})
        fits = isinstance(source.directory, str) and isinstance(source.format, str) and 0 < source.weight < math.inf
    except TypeError:  # no dictionary, another field, or a weight that is not a number
        fits = False
    if not fits:
        raise UserError(
            f"data.sources.{name} is {entry!r}: expected its directory, a weight above 0 (1 if not given) and a "
            f"format ({' or '.join(FORMATS)})."
        )
    return source._replace(weight=float(source.weight))


def mixed(
    usable: Sequence[tf.data.Dataset | None], weights: Sequence[float], used: int, seed: tuple[int, int], size: int
) -> tf.data.Dataset:
    """Returns batches of the usable items of several sources, each with its "source", int64 [size].

    Args:
      usable: each source's blocks of items, as `usable_items` gives them; `None`: other sources get its share.
      weights: each source's weight; items are drawn in proportion to the weights.
      used: how many items were drawn before.
      seed: the draws' seed.
      size: items in a batch.
    """
    if len(usable) == 1:
        return usable[0].rebatch(size, drop_remainder=True)
    with_items = [number for number, blocks in enumerate(usable) if blocks is not None]
    shares = _shares([weights[number] for number in with_items], DRAWS)
    slots = np.repeat(np.arange(len(with_items)), shares)

    def draws(cycle):
        seeds = tf.stack([seed[0] * 2**20 + seed[1], cycle])
        shuffled = tf.random.experimental.stateless_shuffle(tf.constant(slots, tf.int64), seeds)
        return tf.data.Dataset.from_tensor_slices(shuffled)

    cycles = tf.data.Dataset.range(used // DRAWS, np.iinfo(np.int64).max)
    source_numbers = cycles.flat_map(draws).skip(used % DRAWS)
    numbered = []
    for number in with_items:
        source = tf.data.Dataset.from_tensors(np.int64(number)).repeat()
        numbered.append(tf.data.Dataset.zip({"source": source, "item": usable[number].unbatch()}))
    drawn = tf.data.Dataset.choose_from_datasets(numbered, source_numbers).batch(size, drop_remainder=True)
    return drawn.map(lambda batch: {**batch["item"], "source": batch["source"]})


def _shares(weights: Sequence[float], total: int) -> np.ndarray:
    """Returns whole numbers that sum to `total` in proportion to weights, at least 1 each: largest remainders."""
    exact = np.asarray(weights) / np.sum(weights) * total
    counts = np.maximum(np.floor(exact), 1).astype(int)
    for index in np.argsort(counts - exact)[: max(total - counts.sum(), 0)]:
        counts[index] += 1
    counts[np.argmax(counts)] -= counts.sum() - total  # the excess where sources got 1 in place of less
    return counts
