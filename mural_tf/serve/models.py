"""The SavedModels of an export, ready to answer: newest version, all signatures, warmed up."""

from __future__ import annotations

import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 - registers the tokenizer's operations
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from mural_tf.data.records import untuned
from mural_tf.errors import UserError
from mural_tf.export.serving import WARMUP_FILE
from mural_tf.loading import load_saved_model, newest_version


class Signature:
    """One function of a SavedModel: {input: [B, …]} → {output: [B, …]}, NumPy arrays (strings as objects)."""

    def __init__(self, function):
        self._function = function
        self.inputs: dict[str, tf.TensorSpec] = function.structured_input_signature[1]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Raises a TensorFlow error if the graph refuses the inputs."""
        tensors = {name: tf.constant(array, self.inputs[name].dtype) for name, array in inputs.items()}
        return {name: value.numpy() for name, value in self._function(**tensors).items()}


class ServedModel:
    """The newest version of one model.

    Args:
      name: as in the URL.
      folder: holds one SavedModel a version, in folders named by numbers.

    Raises:
      UserError: there is no version, or it cannot be loaded.
    """

    def __init__(self, name: str, folder: pathlib.Path):
        self.name = name
        path = newest_version(folder)
        self.version = int(path.name)
        self._saved_model = load_saved_model(path)  # kept: signatures do not keep variables alive
        functions = self._saved_model.signatures.items()
        self.signatures = {key: Signature(function) for key, function in functions if not key.startswith("__")}
        self.metadata = _signature_definitions(path)
        self._warm_up(path / WARMUP_FILE)

    def _warm_up(self, path: pathlib.Path) -> None:
        """Runs what the export says TensorFlow Serving should run first."""
        if not path.is_file():
            return
        for record in untuned(tf.data.TFRecordDataset(str(path))).as_numpy_iterator():
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
            self.signatures[request.model_spec.signature_name].run(inputs)


def load_models(export: str | pathlib.Path) -> dict[str, ServedModel]:
    """Loads every versioned SavedModel of an export; raises `UserError` if there is none."""
    export = pathlib.Path(export)
    if not export.is_dir():
        raise UserError(f"The export {export} does not exist; run_export.py makes one of a workdir.")
    folders = sorted({path.parents[1] for path in export.glob("*/*/saved_model.pb") if path.parent.name.isdigit()})
    if not folders:
        raise UserError(f"{export} is no export: expected SavedModels such as {export}/text_encoder/1.")
    return {folder.name: ServedModel(folder.name, folder) for folder in folders}


def _signature_definitions(path: pathlib.Path) -> dict:
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    definitions = saved_model.meta_graphs[0].signature_def
    options = dict(preserving_proto_field_name=True, including_default_value_fields=True)
    return {name: json_format.MessageToDict(value, **options) for name, value in definitions.items()}
