"""Requests that TensorFlow Serving runs by itself before a version takes traffic.

The server reads `assets.extra/tf_serving_warmup_requests`, a TFRecord file of at most 1,000 `PredictionLog` protos
(https://www.tensorflow.org/tfx/serving/saved_model_warmup). Without it the first requests of every new version wait
for lazy initialisation. The protos are those of the `tensorflow-serving-api` package.
"""

from __future__ import annotations

import pathlib

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from mural_tf.export.example_requests import example_inputs, predict_request

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
BATCH_SIZES = (1, 2, 16, 64)  # every size takes its own path through the allocator; the last is a full server batch


def write_warmup_requests(folder: pathlib.Path, model: str) -> None:
    """Writes one request for each of `BATCH_SIZES` into the SavedModel `folder` of the encoder `model`."""
    path = folder / WARMUP_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    ((name, examples),) = example_inputs(model).items()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for size in BATCH_SIZES:
            values = [examples[i % len(examples)] for i in range(size)]
            log = prediction_log_pb2.PredictLog(request=predict_request(model, {name: values}))
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())
