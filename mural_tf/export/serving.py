"""TensorFlow Serving: the files it takes besides the SavedModels, requests that warm it up, operations it can run.

models.config              both encoders, for --model_config_file
batching_parameters.txt    for --batching_parameters_file
<encoder>_request.json     the body of a REST request in row form, for `curl --data @…`
rest_client.py             compares an image with texts, without dependencies
grpc_client.py             the same over gRPC

The stock `tensorflow_model_server` links every operation of TensorFlow's core. `SUPPORTED_TENSORFLOW_OPS` in its
`tensorflow_serving/model_servers/BUILD` adds tensorflow_text's `ops_lib` and decision forests, which we do not use. XLA
and Python functions of the exporting process are not available. `TEXT_OPS` and `CORE_OPS` name the operations that our
graphs use, one by one, so that a new one is noticed, looked up and added on purpose.
"""

from __future__ import annotations

import base64
import itertools
import json
import pathlib
import shutil
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

IMAGE_ENCODER = "image_encoder"
TEXT_ENCODER = "text_encoder"
ENCODERS = (IMAGE_ENCODER, TEXT_ENCODER)
SIGNATURE = "serving_default"


def example_inputs(encoder: str) -> dict[str, list]:
    """Returns {input: [values]} for the signature `SIGNATURE` of an encoder of `ENCODERS`: bytes of a PNG, or texts."""
    if encoder == IMAGE_ENCODER:
        return {"image_bytes": [_picture()]}
    return {"text": ["a red heart", "moyo mwekundu", "心", ""]}


def _picture() -> bytes:
    """Returns a PNG of 32 x 32 pixels: a red square on grey."""
    square = tf.pad(tf.ones([16, 16, 1]), [[8, 8], [8, 8], [0, 0]])
    pixels = 153.0 + square * [77.0, -128.0, -128.0]
    return tf.io.encode_png(tf.cast(pixels, tf.uint8)).numpy()


def json_value(value: str | bytes) -> str | dict[str, str]:
    """Returns a value as TensorFlow Serving's REST API takes it: text as it is, bytes as {"b64": their base64}."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    return value


def predict_request(model: str, inputs: dict, signature: str = SIGNATURE) -> predict_pb2.PredictRequest:
    """Returns the gRPC request to a model, by its name in models.config.

    Args:
      model: the model's name.
      inputs: {input: array or list}; bytes and texts become DT_STRING.
      signature: the name of the model's signature.
    """
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


CLIENTS = ("rest_client.py", "grpc_client.py")
MAX_BATCH = 64  # rows in one run of the model
MAX_ROWS = 1024  # rows in one request

MODEL_CONFIG = """\
# tensorflow_model_server --model_config_file=/models/serving/models.config --enable_batching \\
#     --batching_parameters_file=/models/serving/batching_parameters.txt --port=8500 --rest_api_port=8501
# with this export mounted at /models.
model_config_list {
  config { name: "image_encoder" base_path: "/models/image_encoder" model_platform: "tensorflow" }
  config { name: "text_encoder" base_path: "/models/text_encoder" model_platform: "tensorflow" }
}
"""

BATCHING_PARAMETERS = f"""\
# Requests wait at most 5 ms for others to share a run of at most {MAX_BATCH} rows; larger requests, of up to {MAX_ROWS}
# rows, are split. Without allowed_batch_sizes nothing is padded: texts and images cost what they are.
max_batch_size {{ value: {MAX_ROWS} }}
enable_large_batch_splitting {{ value: true }}
max_execution_batch_size {{ value: {MAX_BATCH} }}
batch_timeout_micros {{ value: 5000 }}
max_enqueued_batches {{ value: 128 }}
num_batch_threads {{ value: 4 }}
"""


def write_serving_files(directory: str | pathlib.Path) -> None:
    """Makes `directory`, and writes the server's settings, a request for each encoder and the clients into it.

    Raises `FileExistsError` for a folder that is there.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    (directory / "models.config").write_text(MODEL_CONFIG, encoding="utf-8")
    (directory / "batching_parameters.txt").write_text(BATCHING_PARAMETERS, encoding="utf-8")
    for model in ENCODERS:
        ((name, values),) = example_inputs(model).items()
        body = {"signature_name": SIGNATURE, "instances": [{name: json_value(value)} for value in values]}
        text = json.dumps(body, indent=1, ensure_ascii=False)
        (directory / f"{model}_request.json").write_text(text + "\n", encoding="utf-8")
    for client in CLIENTS:
        shutil.copyfile(pathlib.Path(__file__).parent / "clients" / client, directory / client)


WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
BATCH_SIZES = (1, 2, 16, 64)  # every size takes its own path through the allocator; the last is a full server batch


def write_warmup_requests(folder: pathlib.Path, model: str) -> None:
    """Writes one request for each of `BATCH_SIZES` into the SavedModel `folder` of the encoder `model`.

    TensorFlow Serving runs them before a version takes traffic
    (https://www.tensorflow.org/tfx/serving/saved_model_warmup); without them the first requests of every new version
    wait for lazy initialisation.
    """
    path = folder / WARMUP_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    ((name, examples),) = example_inputs(model).items()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for size in BATCH_SIZES:
            values = list(itertools.islice(itertools.cycle(examples), size))
            log = prediction_log_pb2.PredictLog(request=predict_request(model, {name: values}))
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


# Operations in the rule `ops_lib` of tensorflow_text 2.15.
TEXT_OPS = frozenset({"NormalizeUTF8", "SentencepieceOp", "SentencepieceTokenizeOp", "WordpieceTokenizeWithOffsets"})
# Operations in the core of TensorFlow 2.15, all of them in `tf.raw_ops`.
CORE_OPS = frozenset(
    """
    Abs AddV2 All Any ArgMax Assert AssignVariableOp BatchDatasetV2 BatchMatMulV2 BiasAdd BitwiseAnd BroadcastTo Cast
    Ceil ConcatV2 ConcatenateDataset Const Conv2D Cos Cumsum DatasetToSingleElement DecodeImage DecodeJpeg
    DecodePaddedRaw DecodePng DecodeRaw DenseBincount DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput
    DisableCopyOnRead DivNoNan EnsureShape Equal Erf Erfc ExpandDims ExtractJpegShape Fill Floor FloorDiv FloorMod
    FusedBatchNormV3 GatherNd GatherV2 Greater GreaterEqual HashTableV2 Identity IdentityN If IgnoreErrorsDataset
    InitializeTableFromTextFileV2 Less LessEqual Log LogicalAnd LogicalNot LogicalOr LookupTableFindV2 LowerBound MatMul
    Max MaxPool Maximum Mean MergeV2Checkpoints Minimum Mul Neg NoOp NotEqual OneHot OnesLike OptionsDataset Pack Pad
    ParallelMapDatasetV2 PartitionedCall Placeholder Prod RaggedGather RaggedRange RaggedTensorToTensor Range
    ReadVariableOp RealDiv Relu Relu6 Reshape ResizeBilinear ResourceGather RestoreV2 ReverseV2 Round Rsqrt SaveV2
    ScaleAndTranslate ScatterNd Select SelectV2 Shape ShardedFilename Sigmoid Sin Size Softmax SpaceToDepth Split SplitV
    Sqrt Square Squeeze StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch StaticRegexReplace
    StridedSlice StringJoin StringLength StringLower StringNGrams StringSplit StringSplitV2 StringStrip
    StringToHashBucketFast Sub Substr Sum Tanh TensorDataset TensorListFromTensor TensorListGetItem TensorListReserve
    TensorListSetItem TensorListStack TensorScatterUpdate TensorSliceDataset Tile TopKV2 Transpose UnicodeDecode
    UnicodeEncode UnicodeTranscode Unpack UnsortedSegmentJoin UnsortedSegmentSum UpperBound VarHandleOp
    VarIsInitializedOp Where While ZerosLike
    """.split()
)


def operations(folder: str | pathlib.Path) -> set[str]:
    """Returns the names of all TensorFlow operations in a SavedModel's folder, its functions' included."""
    graph = _graph(folder)
    functions = {function.signature.name for function in graph.library.function}  # called as operations are
    return {node.op for node in nodes_of(graph)} - functions


def unlisted_operations(folder: str | pathlib.Path) -> set[str]:
    """Returns a SavedModel's operations that the stock model server is not known to have.

    "XlaMustCompile" is among them if the SavedModel needs XLA.
    """
    unlisted = operations(folder) - CORE_OPS - TEXT_OPS
    if any(function.attr["_XlaMustCompile"].b for function in _graph(folder).library.function):
        unlisted.add("XlaMustCompile")
    return unlisted


def nodes_of(graph: graph_pb2.GraphDef) -> Iterator[node_def_pb2.NodeDef]:
    """Yields the nodes of a graph and of its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _graph(folder: str | pathlib.Path) -> graph_pb2.GraphDef:
    """Returns the only graph of the SavedModel in a folder."""
    content = (pathlib.Path(folder) / "saved_model.pb").read_bytes()
    return saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def
