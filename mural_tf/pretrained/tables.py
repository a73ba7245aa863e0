"""Flat tables of names: which tensors of a file make up a variable, and how; and the check that all of it fits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.encoders.bert import TOKEN_TYPES
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained.weight_files import WeightFile

SHOWN = 5  # names of a kind in one message


def as_is(value: np.ndarray) -> np.ndarray:
    return value


def linear(weight: np.ndarray) -> np.ndarray:
    """PyTorch's [out, in] -> [in, out]."""
    return weight.T


def convolution(weight: np.ndarray) -> np.ndarray:
    """PyTorch's [out, in, H, W] -> [H, W, in, out]."""
    return weight.transpose(2, 3, 1, 0)


def depthwise(weight: np.ndarray) -> np.ndarray:
    """PyTorch's [channels, 1, H, W] -> [H, W, channels, 1]."""
    return weight.transpose(2, 3, 0, 1)


def side_by_side(*values: np.ndarray) -> np.ndarray:
    """Kernels [in, out] or biases [out] of several layers as one layer's."""
    return np.concatenate(values, axis=-1)


def linear_side_by_side(*weights: np.ndarray) -> np.ndarray:
    """PyTorch's [out, in] of several layers -> one [in, sum of out]."""
    return side_by_side(*map(linear, weights))


def first_rows(count: int) -> Callable[[np.ndarray], np.ndarray]:
    """Keeps the first rows of a table: positions that no text reaches are left out."""
    return rows_from(0, count)


def rows_from(first: int, count: int) -> Callable[[np.ndarray], np.ndarray]:
    """Keeps `count` rows of a table from `first` on."""
    return lambda table: table[first : first + count]


def only_row(table: np.ndarray) -> np.ndarray:
    """[1, N, hidden] -> [N, hidden]; a table without the 1 is as it is."""
    return table.reshape(table.shape[-2:])


def no_types(positions: np.ndarray) -> np.ndarray:
    """The table of token types, which a tower lacks, from the table of positions, [T, hidden]."""
    return np.zeros_like(positions[:TOKEN_TYPES])


@dataclasses.dataclass(frozen=True)
class Row:
    """One variable of ours, by its name without ":0", the names it comes from, and how they become it."""

    variable: str
    sources: tuple[str, ...]
    layout: Callable[..., np.ndarray] = as_is


def kernel_and_bias(ours: str, theirs: str) -> list[Row]:
    """A Dense layer's rows in PyTorch's names."""
    return [Row(f"{ours}/kernel", (f"{theirs}.weight",), linear), Row(f"{ours}/bias", (f"{theirs}.bias",))]


def norm_rows(ours: str, theirs: str) -> list[Row]:
    """A layer normalisation's rows in PyTorch's names."""
    return [Row(f"{ours}/gamma", (f"{theirs}.weight",)), Row(f"{ours}/beta", (f"{theirs}.bias",))]


def assign(
    table: Iterable[Row], variables: Iterable[tf.Variable], weights: WeightFile, ignored: str, what: str
) -> None:
    """Fills `variables` from a file; nothing is changed unless every name and shape fits.

    Args:
      table: one row for each of `variables`.
      weights: the file.
      ignored: a regular expression of names that may be in the file and have no place in the model.
      what: what the file should hold, for messages.

    Raises:
      UserError: names that are missing, unexpected or of another shape, all in one message; or a damaged file.
    """
    by_name = {variable.name.split(":")[0]: variable for variable in variables}
    rows = {row.variable: row for row in table}
    if rows.keys() != by_name.keys():
        raise ValueError(f"The table and the model differ in {sorted(rows.keys() ^ by_name.keys())}.")
    used = {name for row in rows.values() for name in row.sources}
    missing = sorted(used - weights.shapes.keys())
    unexpected = sorted(name for name in weights.shapes.keys() - used if not re.fullmatch(ignored, name))
    wrong = []
    for name, row in rows.items():
        if weights.shapes.keys() >= set(row.sources):
            shape, expected = _shape_after(row, weights), tuple(by_name[name].shape)
            if shape != expected:
                shapes = ", ".join(f"{source} {list(weights.shapes[source])}" for source in row.sources)
                wrong.append(f"{shapes} for {name} {list(expected)}")
    problems = [_listed("missing", missing), _listed("unexpected", unexpected), _listed("of another shape", wrong)]
    if any(problems):
        raise UserError(
            f"{weights.path} does not hold {what} of this architecture: {'; '.join(filter(None, problems))}."
        )
    by_sources: dict[tuple[str, ...], list[Row]] = {}  # each array is read once
    for row in rows.values():
        by_sources.setdefault(row.sources, []).append(row)
    for sources, same_sources in by_sources.items():
        row = same_sources[0]
        if len(same_sources) == 1 and row.layout is as_is and len(by_name[row.variable].shape) == 2:
            _assign_blocks(by_name[row.variable], weights.blocks(*sources))
            continue
        values = [weights.read(source) for source in sources]
        for row in same_sources:
            by_name[row.variable].assign(row.layout(*values))


def _assign_blocks(variable: tf.Variable, blocks: Iterable[np.ndarray]) -> None:
    """Fills a table from its rows, a block at a time: a vocabulary's can be half of a model."""
    first = 0
    for block in blocks:
        end = first + len(block)
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.handle, begin=[first], end=[end], strides=[1], value=tf.constant(block)
        )
        first = end


def assign_parts(
    tables: Mapping[str, Iterable[Row]],
    model: DualEncoder,
    parts: Collection[str],
    weights: WeightFile,
    ignored: str,
    what: str,
) -> None:
    """`assign` to those parts of a model, as `weights_by_part` calls them, that are asked for and that it has.

    `tables`: {part: its rows}. What the file holds of the others may be there.
    """  # fmt: skip
    by_part = model.weights_by_part()
    filled = [part for part in tables if part in parts and part in by_part]
    variables = [variable for part in filled for variable in getattr(by_part[part], "variables", [by_part[part]])]
    others = {name for part, rows in tables.items() if part not in filled for row in rows for name in row.sources}
    ignored = "|".join([*filter(None, [ignored]), *map(re.escape, sorted(others))])
    assign([row for part in filled for row in tables[part]], variables, weights, ignored, what)


def _shape_after(row: Row, weights: WeightFile) -> tuple[int, ...] | None:
    """The shape that a row's layout gives, without reading the file; `None` if it cannot be applied."""
    values = [np.broadcast_to(np.float32(0), weights.shapes[source]) for source in row.sources]  # takes no memory
    try:
        return tuple(row.layout(*values).shape)
    except ValueError:  # another rank
        return None


def _listed(heading: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {heading} ({', '.join(names[:SHOWN])}{more})" if names else ""
