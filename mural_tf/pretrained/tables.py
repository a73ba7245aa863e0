"""Flat tables of names: which tensors of a file make up a variable, and how; and the check that all of it fits.

In all tables "ours" is a name in this project's model, "theirs" a name in the file. A layout is a function from tensors
of the file to a variable's value.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.encoders.bert import TOKEN_TYPES
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained.weight_files import WeightFile

SHOWN = 5  # names of a kind in one message


def as_is(tensor: np.ndarray) -> np.ndarray:
    """The layout of a tensor that is the variable's value."""
    return tensor


def linear(weight: np.ndarray) -> np.ndarray:
    """The layout of PyTorch's linear layers: [out, in] -> [in, out]."""
    return weight.T


def convolution(weight: np.ndarray) -> np.ndarray:
    """The layout of PyTorch's convolutions: [out, in, H, W] -> [H, W, in, out]."""
    return weight.transpose(2, 3, 1, 0)


def depthwise(weight: np.ndarray) -> np.ndarray:
    """The layout of PyTorch's depthwise convolutions: [channels, 1, H, W] -> [H, W, channels, 1]."""
    return weight.transpose(2, 3, 0, 1)


def side_by_side(*values: np.ndarray) -> np.ndarray:
    """Returns the kernels [in, out] or biases [out] of several layers as one layer's."""
    return np.concatenate(values, axis=-1)


def linear_side_by_side(*weights: np.ndarray) -> np.ndarray:
    """The layout of several of PyTorch's linear layers as one: [out, in] each -> [in, sum of out]."""
    return side_by_side(*map(linear, weights))


def first_rows(count: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a layout that keeps the first rows of a table: positions that no text reaches are left out."""
    return rows_from(0, count)


def rows_from(first: int, count: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a layout that keeps `count` rows of a table from `first` on."""
    return operator.itemgetter(slice(first, first + count))


def only_row(table: np.ndarray) -> np.ndarray:
    """The layout of a table with an axis of size 1 in front: [1, N, hidden] -> [N, hidden]; [N, hidden] stays."""
    return table.reshape(table.shape[-2:])


def no_types(positions: np.ndarray) -> np.ndarray:
    """The layout of token types that a file lacks: zeros [TOKEN_TYPES, hidden], by its positions [T, hidden]."""
    return np.zeros_like(positions[:TOKEN_TYPES])


@dataclasses.dataclass(frozen=True)
class Row:
    """How one variable of ours is made.

    Attributes:
      variable: its name without ":0".
      sources: the names of the tensors in the file that it is made of.
      layout: the function from these tensors to its value.
    """

    variable: str
    sources: tuple[str, ...]
    layout: Callable[..., np.ndarray] = as_is


def kernel_and_bias(ours: str, theirs: str) -> list[Row]:
    """Returns a Dense layer's two rows, by PyTorch's name of the layer."""
    return [Row(f"{ours}/kernel", (f"{theirs}.weight",), linear), Row(f"{ours}/bias", (f"{theirs}.bias",))]


def kernel_without_bias(ours: str, theirs: str, size: int, layout: Callable[..., np.ndarray] = linear) -> list[Row]:
    """Returns the two rows of a layer whose bias, of this size, the file lacks: it is zeros.

    `theirs` is the full name of the kernel's tensor.
    """
    return [Row(f"{ours}/kernel", (theirs,), layout), zeros_for(f"{ours}/bias", theirs, size)]


def norm_rows(ours: str, theirs: str) -> list[Row]:
    """Returns a layer normalisation's two rows, by PyTorch's name of the layer."""
    return [Row(f"{ours}/gamma", (f"{theirs}.weight",)), Row(f"{ours}/beta", (f"{theirs}.bias",))]


def qkv_rows(ours: str, projections: list[str]) -> list[Row]:
    """Returns the rows of a layer's fused kernel and bias, by PyTorch's names of its projections (q, k, v)."""
    return [
        Row(f"{ours}/qkv/kernel", tuple(f"{name}.weight" for name in projections), linear_side_by_side),
        Row(f"{ours}/qkv/bias", tuple(f"{name}.bias" for name in projections), side_by_side),
    ]


def zeros_for(ours: str, theirs: str, size: int) -> Row:
    """Returns the row of a bias [size] that the file lacks: zeros; `theirs`, any tensor, is the row's source."""
    return Row(ours, (theirs,), lambda value: np.zeros(size, np.float32))


def identity_head(head: str, theirs: str, size: int) -> list[Row]:
    """Returns the two rows of a head [size, size] that the file lacks: the identity, without bias.

    `theirs` is the name of any tensor of the file, because a row must have a source.
    """
    return kernel_without_bias(head, theirs, size, lambda value: np.eye(size, dtype=np.float32))


def assign(
    table: Iterable[Row], variables: Iterable[tf.Variable], weights: WeightFile, ignored: str, expected: str
) -> None:
    """Fills variables from a file of weights; nothing is changed unless every name and shape fits.

    Args:
      table: one row for each of `variables`.
      variables: the variables.
      weights: the file.
      ignored: a regular expression of names that may be in the file and have no place in the model.
      expected: the model of such a file, for messages, for example "a BERT".

    Raises:
      UserError: names that are missing, unexpected or of another shape, all in one message; or a damaged file.
      ValueError: the table and the model differ.
    """
    variables_by_name = {variable.name.split(":")[0]: variable for variable in variables}
    rows = {row.variable: row for row in table}
    if rows.keys() != variables_by_name.keys():
        raise ValueError(f"The table and the model differ in {sorted(rows.keys() ^ variables_by_name.keys())}.")
    problems = _problems(rows, variables_by_name, weights, ignored)
    if problems:
        raise UserError(f"{weights.path} does not hold {expected} of this architecture: {'; '.join(problems)}.")
    _fill(variables_by_name, rows.values(), weights)


def _fill(variables: Mapping[str, tf.Variable], rows: Iterable[Row], weights: WeightFile) -> None:
    """Assigns each row's variable in {name: variable}; sources that several rows share are read once."""
    rows_of_sources: dict[tuple[str, ...], list[Row]] = collections.defaultdict(list)
    for row in rows:
        rows_of_sources[row.sources].append(row)
    for sources, sharing_rows in rows_of_sources.items():
        if len(sharing_rows) == 1 and _is_plain_table(sharing_rows[0], variables):
            (source,) = sources
            _assign_blocks(variables[sharing_rows[0].variable], weights.blocks(source))
            continue
        tensors = [weights.read(source) for source in sources]
        for row in sharing_rows:
            variables[row.variable].assign(row.layout(*tensors))


def _is_plain_table(row: Row, variables: Mapping[str, tf.Variable]) -> bool:
    """Whether a row's variable is a table of the file as it is, a vocabulary's for example, to be read in blocks."""
    return row.layout is as_is and len(variables[row.variable].shape) == 2


def _problems(
    rows: Mapping[str, Row], variables: Mapping[str, tf.Variable], weights: WeightFile, ignored: str
) -> list[str]:
    """Returns how a file differs from the names and shapes that a table needs, [] if it does not.

    For example ["3 missing (a, b, c)", "1 of another shape (d [2] for e [3])"].

    Args:
      rows: {variable's name: its row}.
      variables: {name: variable}.
      weights, ignored: as in `assign`.
    """
    used = _sources(rows.values())
    names_in_file = weights.shapes.keys()
    missing = sorted(used - names_in_file)
    unexpected = sorted(name for name in names_in_file - used if not re.fullmatch(ignored, name))
    wrong_shapes = []
    for name, row in rows.items():
        shape = tuple(variables[name].shape)
        if names_in_file >= set(row.sources) and _shape_after(row, weights) != shape:
            shapes = ", ".join(f"{source} {list(weights.shapes[source])}" for source in row.sources)
            wrong_shapes.append(f"{shapes} for {name} {list(shape)}")
    problems = []
    for heading, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", wrong_shapes)):
        if not names:
            continue
        shown = ", ".join(names[:SHOWN])
        if len(names) > SHOWN:
            shown += f" and {len(names) - SHOWN} more"
        problems.append(f"{len(names)} {heading} ({shown})")
    return problems


def _sources(rows: Iterable[Row]) -> set[str]:
    """Returns the names of all tensors that rows are made of."""
    return set().union(*(row.sources for row in rows))


def _assign_blocks(variable: tf.Variable, blocks: Iterable[np.ndarray]) -> None:
    """Assigns blocks of rows, in order, to a table [N, D]; a vocabulary's whole table would take much memory."""
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
    expected: str,
) -> None:
    """Fills parts of a model from a file, as `assign` does.

    Args:
      tables: {part: its rows}, for all parts that the file holds.
      model: the model.
      parts: the parts that are filled, as `DualEncoder.weights_by_part` names them; parts that `tables` or the model
        lack are passed over.
      weights, ignored, expected: as in `assign`.
    """
    weights_by_part = model.weights_by_part()
    table: list[Row] = []
    variables: list[tf.Variable] = []
    ignored_patterns = [ignored] if ignored else []
    for part, rows in tables.items():
        if part in parts and part in weights_by_part:
            table += rows
            # A part is a layer with variables, or itself a variable, such as the temperature.
            variables += getattr(weights_by_part[part], "variables", [weights_by_part[part]])
        else:
            ignored_patterns += map(re.escape, sorted(_sources(rows)))
    assign(table, variables, weights, "|".join(ignored_patterns), expected)


def _shape_after(row: Row, weights: WeightFile) -> tuple[int, ...] | None:
    """Returns the shape that a row's layout gives, without reading the file; `None` if it cannot be applied."""
    zeros = [np.broadcast_to(np.float32(0), weights.shapes[source]) for source in row.sources]  # takes no memory
    try:
        return tuple(row.layout(*zeros).shape)
    except ValueError:  # another rank
        return None
