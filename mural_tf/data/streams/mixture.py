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
        """Returns the sorted names of its training files of a record type; raises as `records.list_files`."""
        return records.list_files(self.directory, record_type, "train")


def training_sources(data: ConfigDict) -> list[DataSource]:
    """Returns the sources that the configuration's `data` branch names, sorted by their names.

    Raises `UserError` for values of the branch that are out of range.
    """
    check_fraction(data.max_skipped_fraction, "data.max_skipped_fraction")
    if data.shuffle_buffer < 0:
        raise UserError(f"data.shuffle_buffer={data.shuffle_buffer}: expected a number of items, or 0: no shuffling.")
    if not 1 <= data.language_temperature < math.inf:
        raise UserError(
            f"data.language_temperature={data.language_temperature}: expected 1, as often as in the data, or more."
        )
    sources = [_parse_source(name, entry) for name, entry in sorted(data.sources.items())]
    if not sources:
        sources = [DataSource("", data.directory, 1.0, data.format)]
    for source in sources:
        if source.format not in FORMATS:
            field = f"data.sources.{source.name}.format" if source.name else "data.format"
            raise UserError(f"Unknown {field} {source.format!r}; known: {', '.join(FORMATS)}.")
    return sources


def sources_of(data: ConfigDict, record_type: str) -> list[tuple[DataSource, list[str]]]:
    """Returns [(source, its files)] for sources with training records of a type, in the order of places and tallies.

    Args:
      data: the configuration's `data` branch.
      record_type: `records.IMAGE_TEXT` or `records.TEXT_PAIRS`.

    Raises:
      UserError: no source has such files, a source's folder is missing, or as `training_sources`.
    """
    sources = training_sources(data)
    if len(sources) == 1:
        (source,) = sources
        return [(source, source.files(record_type))]
    sources_with_files = []
    for source in sources:
        files = records.find_files(source.directory, record_type, "train")
        if files:
            sources_with_files.append((source, files))
    if not sources_with_files:
        raise UserError(f"None of data.sources ({', '.join(data.sources)}) has {record_type} records of split 'train'.")
    return sources_with_files


def _parse_source(name: str, entry) -> DataSource:
    """Returns the source of an entry of `data.sources`, {"directory": …, "weight": 2.0, "format": "mural"}.

    Raises `UserError` for an entry of another form.
    """
    if isinstance(entry, ConfigDict):
        entry = entry.to_dict()
    try:
        source = DataSource(name, **{"weight": 1.0, "format": "mural", **entry})
        is_valid = isinstance(source.directory, str) and isinstance(source.format, str) and 0 < source.weight < math.inf
    except TypeError:  # no dictionary, another field, or a weight that is not a number
        is_valid = False
    if not is_valid:
        raise UserError(
            f"data.sources.{name} is {entry!r}: expected its directory, a weight above 0 (1 if not given) and a "
            f"format ({' or '.join(FORMATS)})."
        )
    return source._replace(weight=float(source.weight))


def mixed(
    usable: Sequence[tf.data.Dataset | None], weights: Sequence[float], used: int, seed: tuple[int, int], size: int
) -> tf.data.Dataset:
    """Returns batches of the usable items of several sources, drawn at random in proportion to the sources' weights.

    Args:
      usable: each source's blocks of items, as `usable_items` gives them; `None` for a source that gives no items.
      weights: each source's weight, above 0.
      used: how many items were drawn before.
      seed: the draws' seed; the second number, an input pipeline's, is below 2^20.
      size: items in a batch.

    Returns:
      A data set of {name: [size, …]}; with several sources also "source", int64 [size], the numbers of the sources.
    """
    if len(usable) == 1:
        return usable[0].rebatch(size, drop_remainder=True)
    with_items = [number for number, blocks in enumerate(usable) if blocks is not None]
    shares = _shares([weights[number] for number in with_items], DRAWS)
    # A cycle of draws has each source as often as its share says; cycles differ only in their order.
    cycle_of_draws = np.repeat(np.arange(len(with_items)), shares)

    def shuffled_cycle(cycle_number):
        seeds = tf.stack([seed[0] * 2**20 + seed[1], cycle_number])
        draws = tf.random.experimental.stateless_shuffle(tf.constant(cycle_of_draws, tf.int64), seeds)
        return tf.data.Dataset.from_tensor_slices(draws)

    cycle_numbers = tf.data.Dataset.range(used // DRAWS, np.iinfo(np.int64).max)
    draws = cycle_numbers.flat_map(shuffled_cycle).skip(used % DRAWS)
    items_by_source = []
    for number in with_items:
        numbers = tf.data.Dataset.from_tensors(np.int64(number)).repeat()
        items_by_source.append(tf.data.Dataset.zip({"source": numbers, "item": usable[number].unbatch()}))
    batches = tf.data.Dataset.choose_from_datasets(items_by_source, draws).batch(size, drop_remainder=True)
    return batches.map(lambda batch: {**batch["item"], "source": batch["source"]})


def _shares(weights: Sequence[float], total: int) -> np.ndarray:
    """Returns whole numbers of at least 1, int [N], whose sum is `total`, in proportion to N weights.

    The numbers are rounded by the largest remainders.
    """
    exact = np.asarray(weights) / np.sum(weights) * total
    counts = np.maximum(np.floor(exact), 1).astype(int)
    remaining = max(total - counts.sum(), 0)
    for index in np.argsort(counts - exact)[:remaining]:
        counts[index] += 1
    counts[np.argmax(counts)] -= counts.sum() - total  # the excess where sources got 1 in place of less
    return counts
