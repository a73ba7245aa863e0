"""What the stock TensorFlow Serving binary can run, and whether an encoder asks for more.

`tensorflow_model_server` links every operation of TensorFlow's core and, through `SUPPORTED_TENSORFLOW_OPS` in its
`tensorflow_serving/model_servers/BUILD`, tensorflow_text's `ops_lib` (and decision forests, of no use here). Both
lists below name operations one by one, those that our graphs use, so that a new one is noticed, looked up and added
on purpose. XLA is not linked in, nor are Python functions of the exporting process.
"""

from __future__ import annotations

import pathlib

from tensorflow.core.protobuf import saved_model_pb2

# In the rule `ops_lib` of tensorflow_text 2.15.
TEXT_OPS = frozenset(
    """
    NormalizeUTF8 RegexSplitWithOffsets WordpieceTokenizeWithOffsets
    """.split()
)
# In the core of TensorFlow 2.15, all of them in `tf.raw_ops`.
CORE_OPS = frozenset(
    """
    AddV2 All Any ArgMax Assert AssignVariableOp BatchDatasetV2 BatchMatMulV2 BiasAdd BroadcastTo Cast ConcatV2
    ConcatenateDataset Const Conv2D Cumsum DatasetToSingleElement DecodeImage DecodeRaw DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropInput DisableCopyOnRead EnsureShape Equal Erf ExpandDims ExtractJpegShape Fill
    FloorDiv FloorMod FusedBatchNormV3 GatherNd GatherV2 Greater GreaterEqual HashTableV2 Identity IdentityN If
    IgnoreErrorsDataset InitializeTableFromTextFileV2 Less LessEqual Log LogicalAnd LookupTableFindV2 MatMul Max
    Maximum Mean MergeV2Checkpoints Minimum Mul Neg NoOp OneHot OptionsDataset Pack ParallelMapDatasetV2
    PartitionedCall Placeholder Prod RaggedGather RaggedRange RaggedTensorToTensor Range ReadVariableOp RealDiv Relu
    Reshape ResourceGather RestoreV2 Round Rsqrt SaveV2 ScaleAndTranslate ScatterNd Select SelectV2 Shape
    ShardedFilename Sigmoid Size Softmax Split SplitV Square Squeeze StatefulPartitionedCall StatelessIf
    StaticRegexFullMatch StaticRegexReplace StridedSlice StringJoin StringLength StringLower StringStrip Sub Substr
    Sum Tanh TensorDataset TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem
    TensorListStack TensorScatterUpdate TensorSliceDataset Tile TopKV2 Transpose UnicodeTranscode Unpack
    UnsortedSegmentSum UpperBound VarHandleOp VarIsInitializedOp Where While ZerosLike
    """.split()
)


def operations(folder: str | pathlib.Path) -> set[str]:
    """Returns the names of all operations in a SavedModel, those in its functions included."""
    graph, functions = _parse(folder)
    nodes = [*graph.node, *(node for function in functions for node in function.node_def)]
    return {node.op for node in nodes} - {function.signature.name for function in functions}


def unlisted_operations(folder: str | pathlib.Path) -> set[str]:
    """Returns the operations of a SavedModel that are not known to be linked, and "XlaMustCompile" if XLA is needed."""
    found = operations(folder) - CORE_OPS - TEXT_OPS
    _, functions = _parse(folder)
    if any(function.attr["_XlaMustCompile"].b for function in functions):
        found.add("XlaMustCompile")
    return found


def _parse(folder: str | pathlib.Path):
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((pathlib.Path(folder) / "saved_model.pb").read_bytes())
    graph = saved_model.meta_graphs[0].graph_def
    return graph, graph.library.function
