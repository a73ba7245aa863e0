"""What answers a request: signatures of encoders, run in batches.

Requests that arrive together share one run of the model. While a batch runs, requests queue; the next batch takes as
many as fit. The first request waits a short time for others. A batch that fails is run again request by request, so
that only the one at fault gets the error. A large request is run part by part, in a line of its own: small ones never
wait for it.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import prometheus_client

from mural_tf.search.server.limits import Limits, Overloaded
from mural_tf.search.server.rest_json import Spec

IMAGES = "image_bytes"  # the input that takes encoded images
ROWS = prometheus_client.Histogram(
    "mural_batch_rows", "Rows in one run.", ["model", "signature"], buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)

LONG_TEXT = 2**16  # bytes; models read a few hundred, but every byte is looked at

Arrays = dict[str, np.ndarray]


class Signature:
    """One function of an encoder: {input: [B, …]} → {output: [B, …]}, NumPy arrays (strings as objects).

    Attributes:
      inputs: their specs; the first dimension of each is the batch. outputs: their shapes.
      takes_images: whether `IMAGES` is an input of encoded images (and not of features).
      row_bytes: of one row of the outputs.
    """

    def __init__(
        self,
        run: Callable[[Arrays], Arrays],
        inputs: Mapping[str, Spec],
        outputs: Mapping[str, tuple[int | None, ...]],
        takes_images: bool = False,
    ):
        self._run, self.inputs, self.outputs, self.takes_images = run, dict(inputs), dict(outputs), takes_images
        self.row_bytes = sum(4 * math.prod(size or 1 for size in shape[1:]) for shape in outputs.values())

    def run(self, inputs: Arrays) -> Arrays:
        """Raises `BadRequest` for what the encoder refuses."""
        return self._run(inputs)


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


