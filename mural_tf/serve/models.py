"""The SavedModels of an export, ready to answer: newest version, all signatures, warmed up, run in batches.

Requests that arrive together share one run of the model. While a batch runs, requests queue; the next batch takes as
many as fit. The first request waits a short time for others. A batch that fails is run again request by request, so
that only the one at fault gets the error.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import inspect
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
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
        raise UserError(f"{export} is not an export: expected SavedModels such as {export}/text_encoder/1.")
    return {folder.name: ServedModel(folder.name, folder) for folder in folders}


def _signature_definitions(path: pathlib.Path) -> dict:
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    definitions = saved_model.meta_graphs[0].signature_def
    # Protobuf 5 renamed the option.
    names = inspect.signature(json_format.MessageToDict).parameters
    defaults = "including_default_value_fields"
    defaults = defaults if defaults in names else "always_print_fields_with_no_presence"
    options = {"preserving_proto_field_name": True, defaults: True}
    return {name: json_format.MessageToDict(value, **options) for name, value in definitions.items()}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Settings of the server; raises `UserError` if one makes no sense."""

    max_batch: int = 64  # rows in one run of a model
    window: float = 0.002  # seconds that a request waits for others to share a run
    max_request_bytes: int = 32 * 2**20  # of a body, unpacked; more is answered with 413
    max_rows: int = 1024  # of one request; more is answered with 400
    max_waiting: int = 1024  # requests waiting for one signature; more are answered with 503
    body_timeout: float = 60.0  # seconds that a client may take to send a body; more is answered with 408
    shutdown_timeout: float = 20.0  # seconds that running requests get at the end

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name != "window"):
                raise UserError(f"The server's {field.name}={value} must be above 0.")


Arrays = "dict[str, np.ndarray]"


class Overloaded(Exception):
    """More requests wait than may."""


class _Waiting:
    def __init__(self, inputs: Arrays, future: asyncio.Future):
        self.inputs, self.future = inputs, future
        self.rows = len(next(iter(inputs.values())))
        self.shape = {name: array.shape[1:] for name, array in inputs.items()}  # only equal ones can be concatenated


class Batcher:
    """Runs one signature.

    Args:
      run: {input: [B, …]} → {output: [B, …]}, row by row; called in a thread, never twice at once.
      limits: the server's.
      observe: called with the rows of every run.
    """

    def __init__(self, run: Callable[[Arrays], Arrays], limits: Limits, observe: Callable[[int], None]):
        self._run, self._limits, self._observe = run, limits, observe
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._arrived = asyncio.Event()
        self._executor = concurrent.futures.ThreadPoolExecutor(1)
        self._worker: asyncio.Task | None = None

    async def __call__(self, inputs: Arrays) -> Arrays:
        """Returns the outputs of `inputs`; raises what the run raises, or `Overloaded`."""
        if len(self._waiting) >= self._limits.max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests wait already; try again later.")
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        step = self._limits.max_batch
        rows = len(next(iter(inputs.values())))
        parts = [{name: x[i : i + step] for name, x in inputs.items()} for i in range(0, max(rows, 1), step)]
        waiting = [_Waiting(part, asyncio.get_running_loop().create_future()) for part in parts]
        self._waiting.extend(waiting)
        self._arrived.set()
        try:
            outputs = await asyncio.gather(*(part.future for part in waiting))
        finally:
            for part in waiting:
                part.future.cancel()  # of a client that went away, or after another part failed
        return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}

    async def close(self) -> None:
        """Stops the worker; to be called when no request waits."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._executor.shutdown()

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            if self._limits.window and sum(part.rows for part in self._waiting) < self._limits.max_batch:
                await asyncio.sleep(self._limits.window)
            batch = self._take()
            if batch:
                await self._answer(batch)
            if not self._waiting:
                self._arrived.clear()

    def _take(self) -> list[_Waiting]:
        """Takes the first request that still has a client, and those after it that fit in one run with it."""
        batch, rows, left = [], 0, collections.deque()
        while self._waiting:
            part = self._waiting.popleft()
            if part.future.done():
                continue
            if not batch or (rows + part.rows <= self._limits.max_batch and part.shape == batch[0].shape):
                batch.append(part)
                rows += part.rows
            else:
                left.append(part)
        self._waiting = left
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            outputs = await loop.run_in_executor(self._executor, self._run_together, batch)
        except Exception as error:  # noqa: BLE001 - handed to the request
            if len(batch) > 1:
                for part in batch:
                    await self._answer([part])
            elif not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for part, output in zip(batch, outputs):
            if not part.future.done():
                part.future.set_result(output)

    def _run_together(self, batch: list[_Waiting]) -> list[Arrays]:
        inputs = {name: np.concatenate([part.inputs[name] for part in batch]) for name in batch[0].inputs}
        self._observe(sum(part.rows for part in batch))
        outputs = self._run(inputs)
        bounds = np.cumsum([part.rows for part in batch])[:-1]
        split = {name: np.split(array, bounds) for name, array in outputs.items()}
        return [{name: arrays[i] for name, arrays in split.items()} for i in range(len(batch))]
