"""The encoders of an export, ready to answer: SavedModels of its newest version, warmed up. batches.py runs them."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
from mural_tf.encoders.saved_models import load_saved_model
from mural_tf.errors import UserError
from mural_tf.export.serving import BATCH_SIZES
from mural_tf.export.versions import newest_models
from mural_tf.progress import announce
from mural_tf.remote_folders import display_name, local_model
from mural_tf.search.server.batches import IMAGES, Arrays, ServedModel, Signature
from mural_tf.search.server.rest_json import BadRequest, Spec

# The graph's own errors for mistakes of a request.
REFUSALS = (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, tf.errors.FailedPreconditionError)


def load_models(export, loaded: Mapping[str, object] = {}) -> dict[str, ServedModel]:
    """Returns {name: `ServedModel`} of the newest version that all SavedModels of an export have.

    `loaded`: SavedModels of that version that are in memory already, by name. Raises `UserError` if the version is
    missing or damaged.
    """
    paths = newest_models(local_model(export), export)
    announce(f"Loading version {paths[0].name} of {display_name(export)} and warming it up …")
    return {path.parent.name: load_model(path, loaded.get(path.parent.name)) for path in paths}


def load_model(path: pathlib.Path, saved_model=None) -> ServedModel:
    """Loads the SavedModel in NAME/VERSION, unless it is `saved_model`, and runs all its signatures once.

    Raises `UserError` if it is damaged.
    """
    try:
        saved_model = saved_model or load_saved_model(path)
        functions = {key: value for key, value in saved_model.signatures.items() if not key.startswith("__")}
        inputs = [spec for function in functions.values() for spec in function.structured_input_signature[1].items()]
        has_pixels = any(spec.shape.rank == 4 for _, spec in inputs)  # [B, S, S, 3]; features are [B, F]
        signatures = {key: _signature(saved_model, function, has_pixels) for key, function in functions.items()}
        for signature in signatures.values():
            _warm_up(signature)
        return ServedModel(path.parent.name, int(path.name), signatures, _signature_definitions(path))
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged SavedModel raises anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} cannot be served: {reason}; export the model again.") from None


def _signature(saved_model, function, has_pixels: bool) -> Signature:
    specs: dict[str, tf.TensorSpec] = function.structured_input_signature[1]

    def run(inputs: Arrays) -> Arrays:
        assert saved_model is not None  # kept here: functions do not keep their variables alive
        tensors = {name: tf.constant(array, specs[name].dtype) for name, array in inputs.items()}
        try:
            return {name: value.numpy() for name, value in function(**tensors).items()}
        except REFUSALS as error:
            raise BadRequest(" ".join(error.message.split())) from None

    return Signature(run, {name: _spec(spec) for name, spec in specs.items()}, has_pixels and IMAGES in specs)


def _spec(spec: tf.TensorSpec) -> Spec:
    return Spec(np.dtype(object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype), tuple(spec.shape))


def _warm_up(signature: Signature) -> None:
    """Runs zeros, or empty strings, of all the sizes that an export warms up for."""
    for rows in BATCH_SIZES:
        inputs = {}
        for name, spec in signature.inputs.items():
            shape = [rows, *(size or 1 for size in spec.shape[1:])]
            inputs[name] = np.full(shape, b"" if spec.dtype == object else 0, spec.dtype)
        signature.run(inputs)


def _signature_definitions(path: pathlib.Path) -> dict:
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    definitions = saved_model.meta_graphs[0].signature_def
    # Protobuf 5 renamed the option.
    names = inspect.signature(json_format.MessageToDict).parameters
    defaults = "including_default_value_fields"
    defaults = defaults if defaults in names else "always_print_fields_with_no_presence"
    options = {"preserving_proto_field_name": True, defaults: True}
    return {name: json_format.MessageToDict(value, **options) for name, value in definitions.items()}
