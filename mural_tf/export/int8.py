"""Weights of a TensorFlow Lite file in int8, one scale per channel, activations quantised on the fly or float32.

Jacob et al., 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
symmetric and only for weights: w ≈ scale[c] * q with q in [-127, 127] and scale[c] = max |w[c]| / 127.

    FULLY_CONNECTED, CONV_2D   the weights become int8 per output channel; kernels quantise each row of the input
    GATHER of a table          int8 rows and a scale per row: two gathers, a cast and a product

Depthwise convolutions stay float32: no fast kernel takes them, and they hold few weights. TensorFlow's own converter
does the same with one scale for a whole matrix or table, which costs more (see docs/speed.md).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from mural_lite.errors import UserError, install_extra

SMALLEST = 1024  # weights; smaller tables stay float32, as in TensorFlow's converter
TABLE = "table"  # the name of a gathered table's layer
ALIGNMENT = 16  # bytes, of every buffer of a file: kernels read weights where they lie


def _schema():
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError:
        raise UserError(f"Writing LiteRT's files needs ai-edge-litert: {install_extra('lite')}.") from None
    return schema_py_generated


def layers_of(content: bytes) -> list[str]:
    """Returns the names of the layers that `to_int8` quantises, in the order in which they are computed."""
    schema = _schema()
    return list(dict.fromkeys(name for _, _, name in _weights(schema, _read(content))))


def to_int8(content: bytes, in_float: Collection[str] = ()) -> bytes:
    """Returns a file of float32 weights in int8, except for the layers of `layers_of` that `in_float` names."""
    schema = _schema()
    model = _read(content)
    for operator, tensor, name in list(_weights(schema, model)):
        if name in in_float:
            continue
        weights = model.buffers[tensor.buffer].data.view("<f4").reshape(tensor.shape)
        rows = weights.reshape(len(weights), -1)
        scales = np.maximum(np.abs(rows).max(axis=1), 1e-12).astype(np.float32) / 127.0  # [C]
        quantised = np.rint(rows / scales[:, np.newaxis]).astype(np.int8)
        tensor.type = schema.TensorType.INT8
        tensor.buffer = _add_buffer(schema, model, quantised)
        if name == TABLE:
            _scale_after_gather(schema, model, operator, tensor, scales)
            continue
        tensor.quantization = schema.QuantizationParametersT(
            scale=scales, zeroPoint=np.zeros(len(scales), np.int64), quantizedDimension=0
        )
        if isinstance(operator.builtinOptions, schema.FullyConnectedOptionsT):
            operator.builtinOptions.asymmetricQuantizeInputs = True
    return _write(schema, model)


def to_float16(content: bytes) -> bytes:
    """Returns a file of float32 weights in float16, which are unpacked to float32 when it is loaded."""
    schema = _schema()
    model = _read(content)
    graph = model.subgraphs[0]
    unpacked = {}
    for operator, tensor, _ in list(_weights(schema, model, depthwise=True)):
        index = next(i for i in operator.inputs if i >= 0 and graph.tensors[i] is tensor)
        if index not in unpacked:
            packed = model.buffers[tensor.buffer].data.view("<f4").astype("<f2")
            source = _add_tensor(schema, model, tensor.shape, schema.TensorType.FLOAT16, tensor.name + b"/float16")
            graph.tensors[source].buffer = _add_buffer(schema, model, packed)
            tensor.buffer = 0
            unpacked[index] = _operator(schema, model, "DEQUANTIZE", [source], index, schema.DequantizeOptionsT())
    graph.operators = [*unpacked.values(), *graph.operators]
    return _write(schema, model)


def without_copies(content: bytes) -> bytes:
    """Returns a float32 file that computes once what the converter computes several times.

    An activation that takes a product x twice, as x sigmoid(1.702 x) does, gets a copy of the product for each of its
    constants, which is in the copy's weights. Here a copy becomes the first product times the constant.
    """
    schema = _schema()
    model = _read(content)
    graph = model.subgraphs[0]
    tensors = len(graph.tensors)
    firsts = {}  # input, shapes -> a product's operator and its weights and bias
    for operator, tensor, _ in list(_weights(schema, model)):
        options = operator.builtinOptions
        data = [model.buffers[graph.tensors[index].buffer].data for index in operator.inputs[1:] if index >= 0]
        is_product = isinstance(options, schema.FullyConnectedOptionsT) and not options.fusedActivationFunction
        if not is_product or any(part is None for part in data):
            continue
        values = [part.view("<f4") for part in data]
        key = operator.inputs[0], tuple(graph.tensors[operator.outputs[0]].shape), tuple(tensor.shape), len(values)
        first, weights = firsts.setdefault(key, (operator, values))
        factor = np.vdot(weights[0], values[0]) / (np.vdot(weights[0], weights[0]) or 1.0)
        is_copy = all(np.allclose(ours, factor * theirs, rtol=1e-4) for theirs, ours in zip(weights, values))
        if first is operator or not is_copy:
            continue
        constant = _add_tensor(schema, model, [], schema.TensorType.FLOAT32, b"constant/%d" % len(graph.tensors))
        graph.tensors[constant].buffer = _add_buffer(schema, model, np.float32(factor))
        inputs = [first.outputs[0], constant]
        product = _operator(schema, model, "MUL", inputs, operator.outputs[0], schema.MulOptionsT())
        graph.operators[graph.operators.index(operator)] = product
    if len(graph.tensors) == tensors:
        return content
    taken = set()
    for operator in graph.operators:
        taken.update(operator.inputs, operator.outputs)
    for index, tensor in enumerate(graph.tensors):
        if index not in taken and index not in graph.inputs:
            tensor.buffer = 0
    return _write(schema, model)


def _read(content: bytes):
    return _schema().ModelT.InitFromPackedBuf(content, 0)


def _weights(schema, model, depthwise: bool = False):
    """Yields (operator, tensor of weights, layer) of every large product, convolution and gathered table."""
    codes = schema.BuiltinOperator
    graph = model.subgraphs[0]
    products = {codes.FULLY_CONNECTED, codes.CONV_2D}
    if depthwise:
        products.add(codes.DEPTHWISE_CONV_2D)
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex].builtinCode
        if code not in products and code != codes.GATHER:
            continue
        is_table = code == codes.GATHER
        tensor = graph.tensors[operator.inputs[0 if is_table else 1]]
        data = model.buffers[tensor.buffer].data
        is_float = tensor.type == schema.TensorType.FLOAT32 and data is not None
        if not is_float or len(data) < 4 * SMALLEST or (is_table and len(tensor.shape) != 2):
            continue
        name = graph.tensors[operator.outputs[0]].name.decode("utf-8", "replace").split(";")[0]
        yield operator, tensor, TABLE if is_table else "/".join(name.split("/")[:2])


def _scale_after_gather(schema, model, operator, table, scales: np.ndarray) -> None:
    """Makes rows = table[ids] into float32(table[ids]) * scales[ids]."""
    graph = model.subgraphs[0]
    rows = operator.outputs[0]
    shape = graph.tensors[rows].shape
    name = graph.tensors[rows].name
    int8, float32 = schema.TensorType.INT8, schema.TensorType.FLOAT32
    column = _add_tensor(schema, model, [len(scales), 1], float32, table.name + b"/scales")
    graph.tensors[column].buffer = _add_buffer(schema, model, scales)
    in_int8 = _add_tensor(schema, model, shape, int8, name + b"/int8")
    in_float = _add_tensor(schema, model, shape, float32, name + b"/float")
    scale = _add_tensor(schema, model, [*shape[:-1], 1], float32, name + b"/scale")
    signature = graph.tensors[rows].shapeSignature
    if signature is not None:
        graph.tensors[in_int8].shapeSignature = signature
        graph.tensors[in_float].shapeSignature = signature
        graph.tensors[scale].shapeSignature = np.array([*signature[:-1], 1], np.int32)
    operator.outputs = np.array([in_int8], np.int32)
    cast = _operator(schema, model, "CAST", [in_int8], in_float, schema.CastOptionsT())
    cast.builtinOptions.inDataType = int8
    cast.builtinOptions.outDataType = float32
    gather_scales = _operator(schema, model, "GATHER", [column, operator.inputs[1]], scale, operator.builtinOptions)
    product = _operator(schema, model, "MUL", [in_float, scale], rows, schema.MulOptionsT())
    index = graph.operators.index(operator) + 1
    graph.operators[index:index] = [cast, gather_scales, product]


def _operator(schema, model, code: str, inputs, output: int, options):
    number = getattr(schema.BuiltinOperator, code)
    codes = [row.builtinCode for row in model.operatorCodes]
    if number not in codes:
        model.operatorCodes.append(schema.OperatorCodeT(deprecatedBuiltinCode=min(number, 127), builtinCode=number))
        codes.append(number)
    return schema.OperatorT(
        opcodeIndex=codes.index(number),
        inputs=np.array(inputs, np.int32),
        outputs=np.array([output], np.int32),
        builtinOptionsType=getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T")),
        builtinOptions=options,
    )


def _add_tensor(schema, model, shape, data_type: int, name: bytes) -> int:
    tensors = model.subgraphs[0].tensors
    tensors.append(schema.TensorT(shape=np.array(shape, np.int32), type=data_type, name=name, hasRank=True))
    return len(tensors) - 1


def _add_buffer(schema, model, values: np.ndarray) -> int:
    model.buffers.append(schema.BufferT(data=np.frombuffer(values.tobytes(), np.uint8)))
    return len(model.buffers) - 1


def _write(schema, model) -> bytes:
    import flatbuffers

    used = {0}
    for graph in model.subgraphs:
        used.update(tensor.buffer for tensor in graph.tensors)
    used.update(entry.buffer for entry in model.metadata or [])
    size = 2**20
    for index, buffer in enumerate(model.buffers):
        if index not in used:
            buffer.data = None
        elif buffer.data is not None:
            buffer.Pack = _aligned(buffer)
            size += len(buffer.data)
    builder = flatbuffers.Builder(size)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _aligned(buffer):
    """The buffer's own `Pack`, on a multiple of `ALIGNMENT`, which Python's flatbuffers leave out."""
    pack = type(buffer).Pack

    def aligned(builder):
        builder.Prep(ALIGNMENT, len(buffer.data))
        return pack(buffer, builder)

    return aligned
