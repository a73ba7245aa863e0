"""The SavedModels of an export, ready to answer: the newest version of all, warmed up, run in batches.

Requests that arrive together share one run of the model. While a batch runs, requests queue; the next batch takes as
many as fit. The first request waits a short time for others. A batch that fails is run again request by request, so
that only the one at fault gets the error. A large request is run part by part, in a line of its own: small ones never
wait for it.

A newer version is loaded beside the one that answers, in a thread; then all models change at once, between two
requests. A request keeps the version with which its work began; after the last one its memory is freed.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import gc
import inspect
import pathlib
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import prometheus_client
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
from mural_tf.search.server.limits import Limits, Overloaded

IMAGES = "image_bytes"  # the input that takes encoded images
ROWS = prometheus_client.Histogram(
    "mural_batch_rows", "Rows in one run.", ["model", "signature"], buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)

LONG_TEXT = 2**16  # bytes; models read a few hundred, but every byte is looked at

Arrays = dict[str, np.ndarray]


class Signature:
    """One function of a SavedModel: {input: [B, …]} → {output: [B, …]}, NumPy arrays (strings as objects).

    Attributes:
      inputs: their specs; the first dimension of each is the batch.
      takes_images: whether `IMAGES` is an input of encoded images (and not of features).
      row_bytes: of one row of the outputs.
    """

    def __init__(self, saved_model, function, takes_images: bool = False):
        self.saved_model = saved_model  # kept: signatures do not keep variables alive
        self._function, self.takes_images = function, takes_images
        self.inputs: dict[str, tf.TensorSpec] = function.structured_input_signature[1]
        outputs = function.structured_outputs.values()
        self.row_bytes = sum(spec.dtype.size * (spec.shape[1:].num_elements() or 1) for spec in outputs)

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Raises a TensorFlow error if the graph refuses the inputs."""
        tensors = {name: tf.constant(array, self.inputs[name].dtype) for name, array in inputs.items()}
        return {name: value.numpy() for name, value in self._function(**tensors).items()}


class ServedModel:
    """One version of one model.

    Args:
      name, version: as in the URL.
      signatures: {name: `Signature`}.
      metadata: what /metadata answers with, {name of a signature: its definition}.
      limits: the server's.
    """

    def __init__(self, name: str, version: int, signatures: dict[str, Signature], metadata: dict, limits: Limits):
        self.name, self.version, self.signatures, self.metadata = name, version, signatures, metadata
        self._limits = limits
        self._lines = {
            (key, is_large): Batcher(signature.run, limits, ROWS.labels(name, key).observe)
            for key, signature in signatures.items()
            for is_large in (False, True)
        }

    async def run(self, signature: str, inputs: Arrays, pixels: np.ndarray | None = None) -> Arrays:
        """Runs the inputs of a request, in a batch with others; arguments and errors as `Batcher` has them."""
        rows, pixel_count = _count(inputs), 0 if pixels is None else int(pixels.sum())
        texts = () if pixels is not None else [array for array in inputs.values() if array.dtype == object]
        length = max((len(text) for array in texts for text in array.flat), default=0)
        is_large = self._limits.is_large(rows, pixel_count) or length > LONG_TEXT
        return await self._lines[signature, is_large](inputs, pixels)


def load_model(path: pathlib.Path, limits: Limits) -> ServedModel:
    """Loads a SavedModel from NAME/VERSION and runs all its signatures once; raises `UserError` if it is damaged."""
    saved_model = load_saved_model(path)
    functions = {key: value for key, value in saved_model.signatures.items() if not key.startswith("__")}
    inputs = [spec for function in functions.values() for spec in function.structured_input_signature[1].items()]
    has_pixels = any(spec.shape.rank == 4 for _, spec in inputs)  # [B, S, S, 3]; features are [B, F]
    signatures = {
        key: Signature(saved_model, function, has_pixels and IMAGES in function.structured_input_signature[1])
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
            inputs[name] = np.full(shape, b"" if spec.dtype == tf.string else 0, spec.dtype.as_numpy_dtype)
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


@dataclasses.dataclass
class _Waiting:
    """Rows that wait for a run, and how many pixels their images have."""

    inputs: Arrays
    pixels: int
    future: asyncio.Future

    @property
    def rows(self) -> int:
        return _count(self.inputs)

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """Of a row; only equal ones can be concatenated."""
        return {name: array.shape[1:] for name, array in self.inputs.items()}


def _count(inputs: Arrays) -> int:
    return len(next(iter(inputs.values())))


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
        self._executor = concurrent.futures.ThreadPoolExecutor(1)  # ends with its last reference
        self._worker: asyncio.Task | None = None

    async def __call__(self, inputs: Arrays, pixels: np.ndarray | None = None) -> Arrays:
        """Returns the outputs of `inputs`.

        Who cancels the call, because a client went away or a deadline passed, leaves nothing in the queue.

        Args:
          inputs: of a request; `max_batch` rows at most are run at a time.
          pixels: of the image in each row, int [B]; None if there are none. `max_image_pixels` at most are run at a
            time.

        Raises:
          Overloaded: too many wait.
          Exception: what the run raises.
        """
        if len(self._waiting) >= self._limits.max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests wait already; try again later.")
        pixels = np.zeros(_count(inputs), np.int64) if pixels is None else pixels
        outputs = []
        for rows in self._parts(pixels):  # one after the other: others come between them
            part = {name: array[rows] for name, array in inputs.items()}
            outputs.append(await self._in_line(part, int(pixels[rows].sum())))
        return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}

    def _parts(self, pixels: np.ndarray) -> Iterator[slice]:
        """Divides rows so that each part fits in a run; there is always one."""
        start = total = 0
        for row, count in enumerate(pixels):
            if row - start == self._limits.max_batch or (row > start and total + count > self._limits.max_image_pixels):
                yield slice(start, row)
                start, total = row, 0
            total += count
        yield slice(start, len(pixels))

    async def _in_line(self, inputs: Arrays, pixels: int) -> Arrays:
        waiting = _Waiting(inputs, pixels, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await waiting.future  # which a cancelled call cancels

    async def _work(self) -> None:
        while self._waiting:
            if self._limits.window and sum(part.rows for part in self._waiting) < self._limits.max_batch:
                await asyncio.sleep(self._limits.window)
            if batch := self._take():
                await self._answer(batch)

    def _take(self) -> list[_Waiting]:
        """Takes the first request that still has a client, and those after it that fit in one run with it."""
        batch, rows, pixels, left = [], 0, 0, collections.deque()
        for part in self._waiting:
            rows_with, pixels_with = rows + part.rows, pixels + part.pixels
            if part.future.done():
                continue
            if not batch or (
                rows_with <= self._limits.max_batch
                and pixels_with <= self._limits.max_image_pixels
                and part.shape == batch[0].shape
            ):
                batch.append(part)
                rows, pixels = rows_with, pixels_with
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
                    if not part.future.done():
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
