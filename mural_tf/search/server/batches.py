"""What answers a request: signatures of encoders, run in batches.

Requests that wait together share one run of the model: while a batch runs, requests queue, and the next batch takes as
many as fit. A batch that fails, or whose rows have different shapes, is run again request by request, so that only the
request at fault gets the error. A large request is run part by part, and others come between the parts.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from mural_tf.search.server.rest_json import Spec

IMAGES = "image_bytes"  # the input that takes encoded images

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Signature:
    """One function of an encoder.

    run: {input: [B, …]} → {output: [B, …]}, NumPy arrays (strings as objects); raises `BadRequest` for inputs that the
    encoder refuses. inputs: their specs, whose first dimension is the batch. takes_images: whether `IMAGES` is an input
    of encoded images, not of features.
    """

    run: Callable[[Arrays], Arrays]
    inputs: Mapping[str, Spec]
    takes_images: bool = False


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A version of a model: its name and number as in the URL, signatures, and what /metadata says of them."""

    name: str
    version: int
    signatures: Mapping[str, Signature]
    metadata: Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class _Waiting:
    """Rows that wait for a run, and their total cost."""

    inputs: Arrays
    cost: int
    future: asyncio.Future


class Batcher:
    """Runs one signature: `await batcher({input: [B, …]})`.

    Args:
      run: {input: [B, …]} → {output: [B, …]}, row by row; called in a thread, never twice at once.
      most: the cost of a run, unless a single row costs more.
    """

    def __init__(self, run: Callable[[Arrays], Arrays], most: int = 64):
        self._run, self._most = run, most
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "batches")
        self._worker: asyncio.Task | None = None

    async def __call__(self, inputs: Arrays, costs: np.ndarray | None = None) -> Arrays:
        """Returns the outputs; a cancelled call leaves the queue. Raises what the run raises.

        `costs`: of each row, int [B]; None for 1 each.
        """
        costs = np.ones(len(next(iter(inputs.values()))), np.int64) if costs is None else costs
        outputs = []
        for rows in self._parts(costs):  # one after the other: other requests come between them
            part = {name: array[rows] for name, array in inputs.items()}
            waiting = _Waiting(part, int(costs[rows].sum()), asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())
            outputs.append(await waiting.future)
        return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}

    def _parts(self, costs: np.ndarray) -> Iterator[slice]:
        """Divides rows so that each part fits in a run; there is always one."""
        start = total = 0
        for row, cost in enumerate(costs):
            if row > start and total + cost > self._most:
                yield slice(start, row)
                start, total = row, 0
            total += cost
        yield slice(start, len(costs))

    async def _work(self) -> None:
        while self._waiting:
            if batch := self._take():
                await self._answer(batch)

    def _take(self) -> list[_Waiting]:
        """Takes the requests that have waited longest, as many as fit in one run; cancelled requests are dropped."""
        batch: list[_Waiting] = []
        while self._waiting:
            part = self._waiting[0]
            if batch and not part.future.done():
                if sum(taken.cost for taken in batch) + part.cost > self._most:
                    break
            self._waiting.popleft()
            batch += [] if part.future.done() else [part]
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            outputs = await loop.run_in_executor(self._thread, self._run_together, batch)
        except Exception as error:  # noqa: BLE001 - handed to the request
            for part in batch:
                if len(batch) > 1 and not part.future.done():
                    await self._answer([part])
                elif not part.future.done():
                    part.future.set_exception(error)
            return
        for part, output in zip(batch, outputs):
            if not part.future.done():
                part.future.set_result(output)

    def _run_together(self, batch: list[_Waiting]) -> list[Arrays]:
        joined = {name: np.concatenate([part.inputs[name] for part in batch]) for name in batch[0].inputs}
        bounds = np.cumsum([len(next(iter(part.inputs.values()))) for part in batch])[:-1]
        split = {name: np.split(array, bounds) for name, array in self._run(joined).items()}
        return [{name: arrays[number] for name, arrays in split.items()} for number in range(len(batch))]
