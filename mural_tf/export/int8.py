"""Weights of a TensorFlow Lite file in int8, one scale per channel, activations quantised on the fly or float32.

Jacob et al., 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
symmetric and only for weights: w ≈ scale[c] * q with q in [-127, 127] and scale[c] = max |w[c]| / 127.

    FULLY_CONNECTED, CONV_2D   the weights become int8 per output channel; kernels quantise each row of the input
    GATHER of a table          int8 rows and a scale per row: two gathers, a cast and a product

Depthwise convolutions stay float32: no fast kernel takes them, and they hold few weights. TensorFlow's own converter
does the same with one scale for a whole matrix or table, which costs more (see docs/speed.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from mural_lite.errors import UserError, install_extra

SMALLEST = 1024  # weights; smaller tables stay float32, as in TensorFlow's converter
TABLE = "table"  # the name of a gathered table's layer
ALIGNMENT = 16  # bytes, of every buffer of a file: kernels read weights where they lie


def _schema():
    """Returns the module of the format's generated classes; raises `UserError` where its package is not installed."""
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError:
        raise UserError(f"Writing LiteRT's files needs ai-edge-litert: {install_extra('lite')}.") from None
    return schema_py_generated


class LiteFile:
    """A file of TensorFlow Lite, to be changed and written again; raises `UserError` without ai-edge-litert.

    Attributes:
      schema: the generated classes of the format, whose names its attributes have.
      graph: the file's only graph, with `tensors` and `operators` in the order in which they are computed.
    """

    def __init__(self, content: bytes):
        self.schema = _schema()
        self.model = self.schema.ModelT.InitFromPackedBuf(content, 0)
        self.graph = self.model.subgraphs[0]
        self.tensors = self.graph.tensors

    def weights(self, depthwise: bool = False) -> Iterator[tuple]:
        """Yields (operator, its tensor of float32 weights, its layer's name) for each large product and table.

        Products are fully connected layers, convolutions and, if `depthwise` is true, depthwise convolutions; a table,
        whose rows are gathered, has the name `TABLE`. Large means `SMALLEST` weights or more.
        """
        codes = self.schema.BuiltinOperator
        products = {codes.FULLY_CONNECTED, codes.CONV_2D}
        if depthwise:
            products.add(codes.DEPTHWISE_CONV_2D)
        for operator in list(self.graph.operators):  # a copy, because the caller may change the graph
            code = self.model.operatorCodes[operator.opcodeIndex].builtinCode
            if code == codes.GATHER and len(self.tensors[operator.inputs[0]].shape) == 2:
                tensor = self.tensors[operator.inputs[0]]
                layer = TABLE
            elif code in products:
                tensor = self.tensors[operator.inputs[1]]
                layer = self._layer_of(operator)
            else:
                continue
            data = self.data_of(tensor)
            if tensor.type == self.schema.TensorType.FLOAT32 and data is not None and len(data) >= 4 * SMALLEST:
                yield operator, tensor, layer

    def _layer_of(self, operator) -> str:
        """Returns the layer that computes an operator, "vit/block_3" for the output "vit/block_3/qkv/MatMul;…"."""
        name, *_ = self.tensors[operator.outputs[0]].name.decode("utf-8", "replace").split(";")
        return "/".join(name.split("/")[:2])

    def data_of(self, tensor) -> np.ndarray | None:
        """Returns a constant tensor's bytes, uint8 [bytes]; `None` for a tensor that is computed."""
        return self.model.buffers[tensor.buffer].data

    def set_data(self, tensor, values: np.ndarray) -> None:
        """Gives a tensor the constant `values`, whose type and shape must be the tensor's."""
        data = np.frombuffer(values.tobytes(), np.uint8)
        self.model.buffers.append(self.schema.BufferT(data=data))
        tensor.buffer = len(self.model.buffers) - 1

    def add_tensor(self, name: bytes, data_type: int, shape: Sequence[int], values: np.ndarray | None = None) -> int:
        """Adds a tensor, constant if `values` are given, and returns its number in `tensors`.

        `data_type` is a number of the format's `TensorType`.
        """
        tensor = self.schema.TensorT(name=name, type=data_type, shape=np.array(shape, np.int32), hasRank=True)
        if values is not None:
            self.set_data(tensor, values)
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def operator(self, code: str, inputs: Sequence[int], output: int, options):
        """Returns a new operator, which is not in the graph yet; adds its code to the file's codes if it is new.

        Args:
          code: its name in the format's `BuiltinOperator`, for example "MUL".
          inputs: the numbers of its input tensors.
          output: the number of its output tensor.
          options: an object of the format's class of this operator's options.
        """
        code_number = getattr(self.schema.BuiltinOperator, code)
        codes = [row.builtinCode for row in self.model.operatorCodes]
        if code_number not in codes:
            older_code = min(code_number, 127)  # the older field has one byte; 127 refers to the newer field
            row = self.schema.OperatorCodeT(deprecatedBuiltinCode=older_code, builtinCode=code_number)
            self.model.operatorCodes.append(row)
            codes.append(code_number)
        options_type = type(options).__name__.removesuffix("T")
        return self.schema.OperatorT(
            opcodeIndex=codes.index(code_number),
            inputs=np.array(inputs, np.int32),
            outputs=np.array([output], np.int32),
            builtinOptionsType=getattr(self.schema.BuiltinOptions, options_type),
            builtinOptions=options,
        )

    def to_bytes(self) -> bytes:
        """Drops the data that no tensor uses, and returns the file's bytes."""
        import flatbuffers

        used = {0}  # the empty buffer, which every file begins with
        for graph in self.model.subgraphs:
            used.update(tensor.buffer for tensor in graph.tensors)
        used.update(entry.buffer for entry in self.model.metadata or [])
        size = 2**20  # bytes that the builder begins with, beyond the data
        for index, buffer in enumerate(self.model.buffers):
            if index not in used:
                buffer.data = None
            elif buffer.data is not None:
                buffer.Pack = _aligned(buffer)
                size += len(buffer.data)
        builder = flatbuffers.Builder(size)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _aligned(buffer):
    """Returns a buffer's method `Pack` that places its data at a multiple of `ALIGNMENT`.

    Python's flatbuffers leave the alignment out, which the format's schema asks for.
    """
    pack = type(buffer).Pack

    def aligned(builder):
        builder.Prep(ALIGNMENT, len(buffer.data))
        return pack(buffer, builder)

    return aligned


def layers_of(content: bytes) -> list[str]:
    """Returns the names of the layers in a file, its bytes, that `to_int8` quantises, in the order of computation."""
    file = LiteFile(content)
    return list(dict.fromkeys(layer for _, _, layer in file.weights()))


def to_int8(content: bytes, in_float: Collection[str] = ()) -> bytes:
    """Returns a file with its weights in int8, a scale for each output channel or table row; raises as `LiteFile`.

    Args:
      content: the bytes of a file with float32 weights.
      in_float: names of layers, as `layers_of` returns them, whose weights stay float32.
    """
    file = LiteFile(content)
    schema = file.schema
    for operator, tensor, layer in file.weights():
        if layer in in_float:
            continue
        channels = file.data_of(tensor).view("<f4").reshape(tensor.shape[0], -1)  # [C, weights of a channel]
        largest = np.maximum(np.abs(channels).max(axis=1), 1e-12)  # [C]; above 0, because it is divided by
        scales = largest.astype(np.float32) / 127.0
        tensor.type = schema.TensorType.INT8
        file.set_data(tensor, np.rint(channels / scales[:, np.newaxis]).astype(np.int8))
        if layer == TABLE:
            _scale_after_gather(file, operator, tensor, scales)
            continue
        tensor.quantization = schema.QuantizationParametersT(
            scale=scales, zeroPoint=np.zeros(len(scales), np.int64), quantizedDimension=0
        )
        if isinstance(operator.builtinOptions, schema.FullyConnectedOptionsT):
            operator.builtinOptions.asymmetricQuantizeInputs = True
    return file.to_bytes()


def _scale_after_gather(file: LiteFile, operator, table, scales: np.ndarray) -> None:
    """Replaces rows = table[ids] in a file by float32(table[ids]) * scales[ids].

    Args:
      file: the file, which is changed.
      operator: the gathering of rows.
      table: the tensor of the table, int8 already.
      scales: float32 [rows of the table].
    """
    schema = file.schema
    (rows,) = operator.outputs
    tensor = file.tensors[rows]
    name = tensor.name
    shape = tensor.shape
    int8 = schema.TensorType.INT8
    float32 = schema.TensorType.FLOAT32
    all_scales = file.add_tensor(table.name + b"/scales", float32, [len(scales), 1], scales)
    rows_in_int8 = file.add_tensor(name + b"/int8", int8, shape)
    rows_in_float = file.add_tensor(name + b"/float", float32, shape)
    row_scales = file.add_tensor(name + b"/scale", float32, [*shape[:-1], 1])
    signature = tensor.shapeSignature  # the shape with -1 for a free size, if there is any
    if signature is not None:
        file.tensors[rows_in_int8].shapeSignature = signature
        file.tensors[rows_in_float].shapeSignature = signature
        file.tensors[row_scales].shapeSignature = np.array([*signature[:-1], 1], np.int32)
    operator.outputs = np.array([rows_in_int8], np.int32)
    cast = file.operator("CAST", [rows_in_int8], rows_in_float, schema.CastOptionsT())
    cast.builtinOptions.inDataType = int8
    cast.builtinOptions.outDataType = float32
    gather_scales = file.operator("GATHER", [all_scales, operator.inputs[1]], row_scales, operator.builtinOptions)
    product = file.operator("MUL", [rows_in_float, row_scales], rows, schema.MulOptionsT())
    index = file.graph.operators.index(operator) + 1
    file.graph.operators[index:index] = [cast, gather_scales, product]


def to_float16(content: bytes) -> bytes:
    """Returns a file with its weights in float16, which are unpacked to float32 when the file is loaded.

    `content` are the bytes of a file with float32 weights; raises as `LiteFile`.
    """
    file = LiteFile(content)
    schema = file.schema
    dequantizers = {}  # {number of a tensor of weights: the operator that computes it}
    for operator, tensor, _ in file.weights(depthwise=True):
        number = next(index for index in operator.inputs if index >= 0 and file.tensors[index] is tensor)
        if number not in dequantizers:
            values = file.data_of(tensor).view("<f4").astype("<f2")
            packed = file.add_tensor(tensor.name + b"/float16", schema.TensorType.FLOAT16, tensor.shape, values)
            tensor.buffer = 0  # the empty buffer: the tensor is computed now
            dequantizers[number] = file.operator("DEQUANTIZE", [packed], number, schema.DequantizeOptionsT())
    file.graph.operators = [*dequantizers.values(), *file.graph.operators]
    return file.to_bytes()


def without_copies(content: bytes) -> bytes:
    """Returns a LiteRT file without the copies of fully connected layers that the converter makes.

    For an activation that takes a layer's output x twice, as x sigmoid(1.702 x) does, the converter writes a second
    layer, whose weights are the first layer's times 1.702. Here its output becomes the first layer's, times 1.702.

    `content` is a flatbuffer with float32 weights; it is returned itself if it has no copies. Raises as `LiteFile`.
    """
    file = LiteFile(content)
    operators = file.graph.operators
    first_layers: dict[tuple, tuple] = {}  # {(input, shapes): (the first operator, its weights and bias)}
    has_copies = False
    for operator, tensor, _ in file.weights():
        constants = _weights_and_bias(file, operator)
        if constants is None:
            continue
        output = file.tensors[operator.outputs[0]]
        key = operator.inputs[0], tuple(output.shape), tuple(tensor.shape), len(constants)
        if key not in first_layers:
            first_layers[key] = operator, constants
            continue
        first, first_constants = first_layers[key]
        factor = _constant_factor(first_constants, constants)
        if factor is None:
            continue
        name = b"constant/%d" % len(file.tensors)
        factor_tensor = file.add_tensor(name, file.schema.TensorType.FLOAT32, [], np.float32(factor))
        factors = [first.outputs[0], factor_tensor]
        operators[operators.index(operator)] = file.operator(
            "MUL", factors, operator.outputs[0], file.schema.MulOptionsT()
        )
        has_copies = True
    if not has_copies:
        return content
    _drop_unused(file)
    return file.to_bytes()


def _constant_factor(first: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float | None:
    """Returns the number that `first` must be multiplied by to give `others`; `None` if there is no such number.

    Both are the weights and, if it has one, the bias of a product, float32.
    """
    first_weights = first[0]
    square = np.vdot(first_weights, first_weights)
    if square == 0.0:
        square = 1.0  # all weights are 0: avoids a division by 0
    factor = np.vdot(first_weights, others[0]) / square  # of the least squares
    if all(np.allclose(other, factor * array, rtol=1e-4) for array, other in zip(first, others)):
        return factor
    return None


def _weights_and_bias(file: LiteFile, operator) -> list[np.ndarray] | None:
    """Returns [weights, bias], float32, of a product, or only its weights if it has no bias.

    `None` for other operators, for a product with an activation, and for weights that are computed.
    """
    options = operator.builtinOptions
    if not isinstance(options, file.schema.FullyConnectedOptionsT) or options.fusedActivationFunction:
        return None
    constants = [file.data_of(file.tensors[index]) for index in operator.inputs[1:] if index >= 0]  # -1: no bias
    if any(data is None for data in constants):
        return None
    return [data.view("<f4") for data in constants]


def _drop_unused(file: LiteFile) -> None:
    """Takes the data off a file's tensors that no operator reads or writes, so that `to_bytes` leaves it out."""
    used = set(file.graph.inputs)
    for operator in file.graph.operators:
        used.update(operator.inputs, operator.outputs)
    for index, tensor in enumerate(file.tensors):
        if index not in used:
            tensor.buffer = 0  # the empty buffer
