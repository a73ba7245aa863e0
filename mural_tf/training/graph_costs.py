"""What a traced function costs: operations of its products, and what it keeps in memory for its gradient.

Both are read off TensorFlow's graph, so that no architecture needs a formula. Products (matrix products and
convolutions) are counted, two operations for a multiplication and an addition; everything else is cheap beside them. A
tensor of the forward pass that an operation of the gradient reads is one that is kept. Nothing is computed: sizes may
be those of a machine that is not there.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Costs:
    """Of one call and its gradient.

    forward, backward: {dtype: operations}.
    kept: bytes of the tensors of examples that are kept for the gradient.
    copies: bytes of others that are: of weights, in another precision or form.
    """

    forward: Mapping[str, float]
    backward: Mapping[str, float]
    kept: int = 0
    copies: int = 0


def gradient_costs(
    function: Callable[..., Mapping[str, tf.Tensor]],
    specs: Sequence,
    groups: Mapping[str, Sequence[str]],
    variables: Sequence[tf.Variable] = (),
) -> dict[str, Costs]:
    """Returns {group: its costs}.

    Args:
      function: from `specs` (nests of `tf.TensorSpec`) to outputs {name: tensor}.
      groups: {group: names of outputs}; what several groups need counts in each.
      variables: for which gradients are taken; none: for the inputs of a floating type.
    """
    graph, outputs, ends, gradients = _trace(function, specs, groups, variables)
    library = {each.signature.name: each for each in graph.as_graph_def(add_shapes=True).library.function}
    forward = graph.get_operations()[: ends[0]]
    weights = {tensor.op for tensor in graph.inputs if tensor.dtype == tf.resource}
    inputs = {tensor.op for tensor in graph.inputs} - weights
    of_weights = _reached_from(weights, forward) - _reached_from(inputs, forward)
    costs = {}
    for place, (group, names) in enumerate(groups.items()):
        needed = _needed_by([outputs[name].op for name in names])
        mine = [operation for operation in forward if operation in needed]
        needed = _needed_by([gradient.op for gradient in gradients[group]])
        after = [each for each in graph.get_operations()[ends[place] : ends[place + 1]] if each in needed]
        kept, copies = _kept(set(mine), after, of_weights)
        costs[group] = Costs(_products(mine, library), _products(after, library), kept, copies)
    return costs


def _trace(function, specs, groups, variables):
    """Returns the graph, outputs, the number of operations after the forward pass and each group, and gradients."""
    outputs, ends, gradients = {}, [], {}

    @tf.autograph.experimental.do_not_convert
    def run(*inputs):
        graph = tf.compat.v1.get_default_graph()
        wanted = list(variables) or [value for value in tf.nest.flatten(inputs) if value.dtype.is_floating]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([value for value in wanted if isinstance(value, tf.Tensor)])
            outputs.update(function(*inputs))
        ends.append(len(graph.get_operations()))
        for group, names in groups.items():
            found = tape.gradient([outputs[name] for name in names], wanted)
            gradients[group] = [getattr(gradient, "values", gradient) for gradient in found if gradient is not None]
            ends.append(len(graph.get_operations()))

    graph = tf.function(run, autograph=False).get_concrete_function(*specs).graph
    return graph, outputs, ends, gradients


# What is kept.


def _reached_from(sources: set, operations: Iterable) -> set:
    """Returns those of operations, in the order of the graph, that depend on `sources`."""
    reached = set(sources)
    for operation in operations:
        if any(value.op in reached for value in operation.inputs):
            reached.add(operation)
    return reached


def _needed_by(targets: Iterable) -> set:
    """Returns the operations that `targets` need, themselves included."""
    needed, left = set(), list(targets)
    while left:
        operation = left.pop()
        if operation not in needed:
            needed.add(operation)
            left += [value.op for value in operation.inputs]
    return needed


def _kept(forward: set, backward: Iterable, of_weights: set) -> tuple[int, int]:
    """Returns bytes of the tensors of `forward` that `backward` reads: of those of examples, and of weights alone."""
    read = {_source(value).ref() for operation in backward for value in operation.inputs if value.op in forward}
    values = [reference.deref() for reference in read]
    values = [value for value in values if value.op.type not in NOT_KEPT]
    copies = sum(_bytes(value) for value in values if value.op in of_weights)
    return sum(map(_bytes, values)) - copies, copies


SAME_MEMORY = {"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient"}
NOT_KEPT = {"Const", "ReadVariableOp", "Placeholder"}  # there anyway


def _source(value: tf.Tensor) -> tf.Tensor:
    """Returns the tensor in whose memory this one lies."""
    while value.op.type in SAME_MEMORY:
        value = value.op.inputs[value.value_index if value.op.type == "IdentityN" else 0]
    return value


def _bytes(value: tf.Tensor) -> int:
    if value.dtype in (tf.resource, tf.variant, tf.string) or None in (value.shape.rank, *(value.shape or ())):
        return 0
    return value.shape.num_elements() * value.dtype.size


# Operations.


def _products(operations: Sequence, library: Mapping) -> dict[str, float]:
    """Returns {dtype: operations} of the products among operations of a graph, those in functions included."""
    found: collections.Counter[str] = collections.Counter()
    for operation in operations:
        inputs = [tuple(value.shape) if value.shape.rank is not None else () for value in operation.inputs]
        output = operation.outputs[0].shape if operation.outputs else ()
        found.update(_of_node(operation.node_def, inputs, output, library))
    return dict(found)


def _of_node(node, inputs: Sequence[Shape], output: Iterable[int], library: Mapping) -> dict[str, float]:
    """Returns a node's operations by dtype, or those of the functions that it names; loops count as one turn."""
    if node.op in FACTORS:
        return {tf.as_dtype(node.attr["T"].type).name: _count(node, inputs, output)}
    found: collections.Counter[str] = collections.Counter()
    for value in node.attr.values():
        for name in (value.func.name, *(each.name for each in value.list.func)):
            if name in library:
                found.update(_of_function(library[name], inputs, library))
    return found


def _of_function(function, inputs: Sequence[Shape], library: Mapping) -> collections.Counter[str]:
    shapes = dict(zip((argument.name for argument in function.signature.input_arg), inputs))
    shapes.update({node.name: _shape(node.attr) for node in function.node_def})
    found: collections.Counter[str] = collections.Counter()
    for node in function.node_def:
        taken = [shapes.get(name.split(":")[0], ()) for name in node.input if not name.startswith("^")]
        found.update(_of_node(node, taken, _shape(node.attr), library))
    return found


def _shape(attributes) -> Shape:
    """Returns what TensorFlow wrote of the first output's shape; `None` for sizes that are not known."""
    shapes = attributes["_output_shapes"].list.shape
    return tuple(each.size if each.size >= 0 else None for each in shapes[0].dim) if shapes else ()


def _count(node, inputs: Sequence[Shape], output: Iterable[int]) -> float:
    output = tuple(output)
    if None in output or any(None in shape or not shape for shape in inputs[:2]):
        return 0.0  # a size that depends on data
    return 2.0 * FACTORS[node.op](node, inputs, output)


def _matrix_product(node, inputs, output) -> int:
    transposed = node.attr["transpose_a"].b or node.attr["adj_x"].b
    return math.prod(output) * inputs[0][-2 if transposed else -1]


def _convolution(filters: int, positions: int):
    """Multiplications of a convolution with filters [k, k, in, out]: one of each for every output position.

    The arguments say which of (inputs, then the output) are the filters and the output's values.
    """

    def count(node, inputs, output) -> int:
        shapes = [*inputs, output]
        return math.prod(shapes[filters]) * math.prod(shapes[positions][:-1])

    return count


def _depthwise(filters: int, positions: int):
    """The same of filters [k, k, in, multiplier], each of which sees one channel."""

    def count(node, inputs, output) -> int:
        shapes = [*inputs, output]
        return math.prod(shapes[filters][:2]) * math.prod(shapes[positions])

    return count


def _einsum(node, inputs, output) -> int:
    letters = node.attr["equation"].s.decode().split("->")[0].split(",")
    if "..." in "".join(letters):
        return 0
    sizes = {letter: size for term, shape in zip(letters, inputs) for letter, size in zip(term, shape)}
    return math.prod(sizes.values())


FACTORS = {  # multiplications of each kind of product: of (node, shapes of inputs, shape of output)
    "MatMul": _matrix_product,
    "BatchMatMul": _matrix_product,
    "BatchMatMulV2": _matrix_product,
    "BatchMatMulV3": _matrix_product,
    "Einsum": _einsum,
    "Conv2D": _convolution(1, -1),
    "Conv2DBackpropInput": _convolution(1, 2),
    "Conv2DBackpropFilter": _convolution(-1, 2),
    "DepthwiseConv2dNative": _depthwise(1, -1),
    "DepthwiseConv2dNativeBackpropInput": _depthwise(1, 2),
    "DepthwiseConv2dNativeBackpropFilter": _depthwise(-1, 2),
}
