"""The SavedModels of an export, ready to answer: the newest version of all, warmed up; batches.py runs them.

A newer version is loaded beside the one that answers, in a thread; then all models change at once, between two
requests. A request keeps the version with which its work began; after the last one its memory is freed.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import pathlib
import weakref

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
from mural_tf.encoders.saved_models import load_saved_model
from mural_tf.errors import UserError
from mural_tf.export.serving import BATCH_SIZES
from mural_tf.export.versions import follow, models_of
from mural_tf.paths import RemotePath
from mural_tf.progress import tell
from mural_tf.remote_folders import local_model, model_place
from mural_tf.search.server.batches import IMAGES, Arrays, ServedModel, Signature
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.rest_json import BadRequest, Spec


class SavedSignature(Signature):
    """One function of a SavedModel."""

    def __init__(self, saved_model, function, takes_images: bool = False):
        self.saved_model = saved_model  # kept: signatures do not keep variables alive
        self._specs: dict[str, tf.TensorSpec] = function.structured_input_signature[1]

        def call(inputs: Arrays) -> Arrays:
            tensors = {name: tf.constant(array, self._specs[name].dtype) for name, array in inputs.items()}
            try:
                return {name: value.numpy() for name, value in function(**tensors).items()}
            except REFUSALS as error:
                raise BadRequest(" ".join(error.message.split())) from None

        inputs = {name: _spec(spec) for name, spec in self._specs.items()}
        outputs = {name: tuple(spec.shape) for name, spec in function.structured_outputs.items()}
        super().__init__(call, inputs, outputs, takes_images)


# The graph's own words for what a request may get wrong.
REFUSALS = (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, tf.errors.FailedPreconditionError)


def _spec(spec: tf.TensorSpec) -> Spec:
    return Spec(np.dtype(object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype), tuple(spec.shape))


def load_model(path: pathlib.Path, limits: Limits) -> ServedModel:
    """Loads a SavedModel from NAME/VERSION and runs all its signatures once; raises `UserError` if it is damaged."""
    saved_model = load_saved_model(path)
    functions = {key: value for key, value in saved_model.signatures.items() if not key.startswith("__")}
    inputs = [spec for function in functions.values() for spec in function.structured_input_signature[1].items()]
    has_pixels = any(spec.shape.rank == 4 for _, spec in inputs)  # [B, S, S, 3]; features are [B, F]
    signatures = {
        key: SavedSignature(saved_model, function, has_pixels and IMAGES in function.structured_input_signature[1])
        for key, function in functions.items()
    }
    for signature in signatures.values():
        _warm_up(signature)
    return ServedModel(path.parent.name, int(path.name), signatures, _signature_definitions(path), limits)


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


class Versions:
    """The newest version of an export, which both encoders have and which can be loaded.

    A number that cannot be loaded is left out, in one line of the log, until its files change.

    Args:
      export: the folder, here or in a store: there, new versions are copied to this machine as they appear.
      limits: the server's.

    Attributes:
      models: {name: `ServedModel`}, all of one version.

    Raises:
      UserError: there is no such folder, or no version in it that can be loaded.
    """

    def __init__(self, export: str | pathlib.Path, limits: Limits):
        self._place, self._folder, self._limits = model_place(export), local_model(export), limits
        if not self._folder.is_dir():
            raise UserError(f"The export {export} does not exist; `python -m mural_tf export` makes one of a workdir.")
        self.models: dict[str, ServedModel] = {}
        self._failed: dict[int, tuple[tuple, str]] = {}  # number: its files when they could not be loaded, and why
        self._former: list[weakref.ref] = []  # SavedModels that are no longer served
        self.models = self._load_newer()
        if not self.models:
            below = f"; it is a workdir, whose export is {export}/export" if (self._place / "export").is_dir() else ""
            expected = f"expected SavedModels such as {export}/text_encoder/1, of one number for all"
            reasons = [reason for _, reason in self._failed.values()]
            raise UserError(reasons[0] if reasons else f"{export} is not an export: {expected}{below}.")

    async def watch(self, seconds: float) -> None:
        """Looks for another version without end."""
        trouble = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._refresh()
                trouble = ""
            except Exception as error:  # noqa: BLE001 - a disk or a store that does not answer; what is loaded goes on
                if str(error) != trouble:
                    logging.warning("Cannot look for new versions, what is loaded goes on: %s", error)
                trouble = str(error)

    async def _refresh(self) -> None:
        models = await asyncio.get_running_loop().run_in_executor(None, self._load_newer)
        if models:
            for model in self.models.values():
                self._former += [weakref.ref(signature.saved_model) for signature in model.signatures.values()]
            self.models = models
            logging.warning("%s: version %d is served now.", self._place, next(iter(models.values())).version)

    def _load_newer(self) -> dict[str, ServedModel]:
        """Loads the newest version that can be loaded and warms it up; {} if it is served already, or there is none."""
        if any(former() for former in self._former):
            gc.unfreeze()  # see `app.run`
            gc.collect()  # TensorFlow's objects refer to each other in circles
            gc.freeze()
        self._former = [former for former in self._former if former()]
        served = {name: model.version for name, model in self.models.items()}
        names, numbers = self._look()
        for number in numbers:
            if served == dict.fromkeys(names, number):
                return {}
            files, found = self._files(number), {}
            if number in self._failed and self._failed[number][0] == files:
                continue
            tell(f"Loading version {number} of {self._place} and warming it up …")
            try:
                for name in names:
                    found[name] = load_model(self._folder / name / str(number), self._limits)
                return found
            except Exception as error:  # noqa: BLE001 - whatever a damaged SavedModel raises
                reason = " ".join(str(error).split()) or type(error).__name__
                # Not what was away, or still written, while it was loaded: that is tried again.
                self._failed[number] = files if files == self._files(number) else (), reason
                logging.error("Version %d of %s cannot be served and is left out: %s", number, name, reason)
        return {}

    def _look(self) -> tuple[list[str], list[int]]:
        """Returns the models and the numbers that all of them have, the newest first; none when the folder is away."""
        if isinstance(self._place, RemotePath):
            follow(self._place, self._folder)
        found = models_of(self._folder)
        numbers = [set(found.get(name, ())) for name in found.keys() | self.models.keys()]
        return list(found), sorted(set.intersection(*numbers), reverse=True) if numbers else []

    def _files(self, number: int) -> tuple:
        """Returns something that changes when a file of a version does."""
        paths = sorted(self._folder.glob(f"*/{number}/**/*"))
        return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file())
