"""Example inputs of the two encoders, and how a request carries them: JSON for REST, protos for gRPC."""

from __future__ import annotations

import base64

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

IMAGE_ENCODER = "image_encoder"
TEXT_ENCODER = "text_encoder"
ENCODERS = (IMAGE_ENCODER, TEXT_ENCODER)
SIGNATURE = "serving_default"


def example_inputs(encoder: str) -> dict[str, list]:
    """Returns {input: values} of the encoder's signature `SIGNATURE`."""
    if encoder == IMAGE_ENCODER:
        return {"image_bytes": [_picture()]}
    return {"text": ["a red heart", "moyo mwekundu", "心", ""]}


def _picture() -> bytes:
    """A PNG of 32 x 32 pixels: a red square on grey."""
    square = tf.pad(tf.ones([16, 16, 1]), [[8, 8], [8, 8], [0, 0]])
    return tf.io.encode_png(tf.cast(tf.round(153.0 + square * [77.0, -128.0, -128.0]), tf.uint8)).numpy()


def json_value(value: str | bytes) -> str | dict[str, str]:
    """As TensorFlow Serving's REST API takes a value: text as it is, bytes as {"b64": …}."""
    return {"b64": base64.b64encode(value).decode("ascii")} if isinstance(value, bytes) else value


def predict_request(model: str, inputs: dict, signature: str = SIGNATURE) -> predict_pb2.PredictRequest:
    """Returns the gRPC request for {input: array or list}; bytes and str become DT_STRING."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request
