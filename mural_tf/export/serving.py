"""What TensorFlow Serving needs beside the SavedModels: model config, batching parameters, example requests."""

from __future__ import annotations

import base64
import json
import pathlib

import tensorflow as tf

IMAGE_ENCODER = "image_encoder"
TEXT_ENCODER = "text_encoder"

MODEL_CONFIG = """\
# tensorflow_model_server --model_config_file=/models/serving/models.config --enable_batching \\
#     --batching_parameters_file=/models/serving/batching_parameters.txt --rest_api_port=8501
# with this export mounted at /models.
model_config_list {
  config { name: "image_encoder" base_path: "/models/image_encoder" model_platform: "tensorflow" }
  config { name: "text_encoder" base_path: "/models/text_encoder" model_platform: "tensorflow" }
}
"""

BATCHING_PARAMETERS = """\
# Requests wait at most 5 ms for others to share a batch.
max_batch_size { value: 64 }
batch_timeout_micros { value: 5000 }
max_enqueued_batches { value: 128 }
num_batch_threads { value: 4 }
"""


def write_serving_files(directory: str | pathlib.Path) -> None:
    """Writes the files into `directory` (REST requests: POST to /v1/models/<name>:predict)."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    (directory / "models.config").write_text(MODEL_CONFIG, encoding="utf-8")
    (directory / "batching_parameters.txt").write_text(BATCHING_PARAMETERS, encoding="utf-8")
    picture = tf.io.encode_png(tf.cast(tf.fill([32, 32, 3], 200), tf.uint8)).numpy()
    requests = {
        IMAGE_ENCODER: [{"image_bytes": {"b64": base64.b64encode(picture).decode("ascii")}}],
        TEXT_ENCODER: [{"text": "a red heart"}, {"text": "moyo mwekundu"}],
    }
    for name, instances in requests.items():
        text = json.dumps({"signature_name": "serving_default", "instances": instances}, indent=1)
        (directory / f"{name}_request.json").write_text(text + "\n", encoding="utf-8")
