"""What goes with the SavedModels for TensorFlow Serving: its configuration, example requests and clients.

models.config              both encoders, for --model_config_file
batching_parameters.txt    for --batching_parameters_file
<encoder>_request.json     the body of a REST request in row form, for `curl --data @…`
<encoder>_columns.json     the same in columnar form
<encoder>_request.pb       the same as a serialised gRPC `PredictRequest`
rest_client.py             compares an image with texts, without dependencies
grpc_client.py             the same over gRPC
"""

from __future__ import annotations

import json
import pathlib
import shutil

from mural_tf.export.example_requests import ENCODERS, SIGNATURE, example_inputs, json_value, predict_request

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
# Requests wait at most 5 ms for others to share a run of at most {MAX_BATCH} rows; larger ones, of up to {MAX_ROWS}
# rows, are split. Without allowed_batch_sizes nothing is padded: texts and images cost what they are.
max_batch_size {{ value: {MAX_ROWS} }}
enable_large_batch_splitting {{ value: true }}
max_execution_batch_size {{ value: {MAX_BATCH} }}
batch_timeout_micros {{ value: 5000 }}
max_enqueued_batches {{ value: 128 }}
num_batch_threads {{ value: 4 }}
"""


def write_serving_files(directory: str | pathlib.Path) -> None:
    """Writes the files into `directory`, which is made."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    (directory / "models.config").write_text(MODEL_CONFIG, encoding="utf-8")
    (directory / "batching_parameters.txt").write_text(BATCHING_PARAMETERS, encoding="utf-8")
    for model in ENCODERS:
        ((name, values),) = example_inputs(model).items()
        encoded = [json_value(value) for value in values]
        rows = {"signature_name": SIGNATURE, "instances": [{name: value} for value in encoded]}
        columns = {"signature_name": SIGNATURE, "inputs": {name: encoded}}
        for suffix, body in (("request", rows), ("columns", columns)):
            text = json.dumps(body, indent=1, ensure_ascii=False)
            (directory / f"{model}_{suffix}.json").write_text(text + "\n", encoding="utf-8")
        (directory / f"{model}_request.pb").write_bytes(predict_request(model, {name: values}).SerializeToString())
    for client in CLIENTS:
        shutil.copyfile(pathlib.Path(__file__).parent / "clients" / client, directory / client)
