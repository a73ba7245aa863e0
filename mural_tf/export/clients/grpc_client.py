"""The same over gRPC: `pip install tensorflow-serving-api`, then `python grpc_client.py photo.jpg "a red heart" …`."""

import os
import sys

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

SERVER = prediction_service_pb2_grpc.PredictionServiceStub(
    grpc.insecure_channel(os.environ.get("SERVER", "localhost:8500"))
)


def predict(model, name, values):
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, "serving_default"
    request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return tf.make_ndarray(SERVER.Predict(request, timeout=30).outputs["embedding"])


with open(sys.argv[1], "rb") as file:
    image = predict("image_encoder", "image_bytes", [file.read()])[0]
for text, vector in zip(sys.argv[2:], predict("text_encoder", "text", sys.argv[2:])):
    print(f"{image @ vector:.4f}  {text}")
