"""What a traced function costs: operations of its products, and the memory that it keeps for its gradient.

Both are read off TensorFlow's graph, so that no architecture needs a formula. Products (matrix products and
convolutions) are counted, two operations for a multiplication and an addition; everything else is cheap in comparison.
A tensor of the forward pass is kept if an operation of the gradient reads it. No value is computed: sizes may be too
large for this machine.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

SAME_MEMORY = {"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient"}
NOT_KEPT = {"Const", "ReadVariableOp", "Placeholder"}  # there anyway
CONVOLUTIONS = {  # which of (inputs, then the output) are the filters, and the values that they were moved over
    "Conv2D": (1, -1),
    "Conv2DBackpropInput": (1, 2),
    "Conv2DBackpropFilter": (-1, 2),
    "DepthwiseConv2dNative": (1, -1),
    "DepthwiseConv2dNativeBackpropInput": (1, 2),
    "DepthwiseConv2dNativeBackpropFilter": (-1, 2),
}
PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", *CONVOLUTIONS}


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of one call and its gradient.

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
    outputs, ends, gradients = {}, [], {}  # ends: operations after the forward pass, and after each group's gradient

    @tf.autograph.experimental.do_not_convert
    def run(*inputs):
        graph = tf.compat.v1.get_default_graph()
        wanted = list(variables) or [value for value in tf.nest.flatten(inputs) if value.dtype.is_floating]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([value for value in wanted if isinstance(value, tf.Tensor)])
            outputs.update(function(*inputs))
        ends.append(len(graph.get_operations()))
        for group, names in groups.items():
            computed = tape.gradient([outputs[name] for name in names], wanted)
            gradients[group] = [getattr(gradient, "values", gradient) for gradient in computed if gradient is not None]
            ends.append(len(graph.get_operations()))

    graph = tf.function(run, autograph=False).get_concrete_function(*specs).graph
    products = _Products(graph.as_graph_def(add_shapes=True))
    operations = graph.get_operations()
    weights = {tensor.op for tensor in graph.inputs if tensor.dtype == tf.resource}
    examples = {tensor.op for tensor in graph.inputs} - weights
    from_weights = _reached_from(weights, operations[: ends[0]]) - _reached_from(examples, operations[: ends[0]])
    costs = {}
    for group, begin, end in zip(groups, ends, ends[1:]):
        needed = _needed_by(outputs[name].op for name in groups[group])
        forward = {operation for operation in operations[: ends[0]] if operation in needed}
        needed = _needed_by(gradient.op for gradient in gradients[group])
        backward = [operation for operation in operations[begin:end] if operation in needed]
        read = {_source(value).ref() for each in backward for value in each.inputs if value.op in forward}
        kept = [value for value in (each.deref() for each in read) if value.op.type not in NOT_KEPT]
        copies = sum(_bytes(value) for value in kept if value.op in from_weights)
        whole = sum(map(_bytes, kept))
        costs[group] = Costs(products.of(forward), products.of(backward), whole - copies, copies)
    return costs


def _reached_from(sources: set, operations: Iterable) -> set:
    """Returns the operations that depend on `sources`, in the order of the graph."""
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


def _source(value: tf.Tensor) -> tf.Tensor:
    """Returns the tensor in whose memory this one lies."""
    while value.op.type in SAME_MEMORY:
        value = value.op.inputs[value.value_index if value.op.type == "IdentityN" else 0]
    return value


def _bytes(value: tf.Tensor) -> int:
    if value.dtype in (tf.resource, tf.variant, tf.string) or not value.shape.is_fully_defined():
        return 0
    return value.shape.num_elements() * value.dtype.size


class _Products:
    """Counts the products in a graph, with the products of the functions that it calls; loops turn once."""

    def __init__(self, graph_def):
        self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._nodes = {node.name: node for node in graph_def.node}
        self._shapes = _shapes(graph_def.node)

    def of(self, operations: Iterable) -> dict[str, float]:
        """Returns {dtype: operations} of operations of the graph."""
        return dict(self._count([self._nodes[operation.name] for operation in operations], self._shapes))

    def _count(self, nodes: Iterable, shapes: Mapping[str, list]) -> collections.Counter[str]:
        counts: collections.Counter[str] = collections.Counter()
        for node in nodes:
            inputs = [_of_input(name, shapes) for name in node.input if not name.startswith("^")]
            if node.op in PRODUCTS:
                count = 2.0 * _multiplications(node, [*inputs, *shapes[node.name][:1]])
                counts[tf.as_dtype(node.attr["T"].type).name] += count
                continue
            called = [name for a in node.attr.values() for name in (a.func.name, *(each.name for each in a.list.func))]
            for function in (self._functions[name] for name in called if name in self._functions):
                arguments = {a.name: [shape] for a, shape in zip(function.signature.input_arg, inputs)}
                counts.update(self._count(function.node_def, {**arguments, **_shapes(function.node_def)}))
        return counts


def _shapes(nodes: Iterable) -> dict[str, list]:
    """Returns {node: shapes of its outputs}, each a tuple; -1 for sizes that are not known."""
    return {n.name: [tuple(d.size for d in s.dim) for s in n.attr["_output_shapes"].list.shape] or [()] for n in nodes}


def _of_input(name: str, shapes: Mapping[str, list]) -> tuple[int, ...]:
    node, *port = name.split(":")  # "node:2" in a graph; "node:output:0" in a function, of which the first is taken
    return shapes.get(node, [()])[int(port[0]) if len(port) == 1 else 0]


def _multiplications(node, shapes: Sequence[tuple[int, ...]]) -> int:
    """The multiplications of a product with these shapes of inputs and output; 0 where a size depends on data."""
    output = shapes[-1]
    if -1 in output or any(-1 in shape or not shape for shape in shapes[:2]):
        return 0
    if node.op == "Einsum":
        letters = node.attr["equation"].s.decode().split("->")[0].split(",")
        sizes = {letter: size for term, shape in zip(letters, shapes) for letter, size in zip(term, shape)}
        return 0 if "." in sizes else math.prod(sizes.values())
    if node.op not in CONVOLUTIONS:
        transposed = node.attr["transpose_a"].b or node.attr["adj_x"].b
        return math.prod(output) * shapes[0][-2 if transposed else -1]
    filters, values = (shapes[index] for index in CONVOLUTIONS[node.op])
    if node.op.startswith("Depthwise"):  # [k, k, in, multiplier]: each filter sees one channel
        return math.prod(filters[:2]) * math.prod(values)
    return math.prod(filters) * math.prod(values[:-1])
