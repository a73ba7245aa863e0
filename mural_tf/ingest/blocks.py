"""Cuts the sources' items into blocks, always the same ones, and works on them in several processes, in bounded memory.

Sources of one kind are read side by side. The next item is from the source that has read the smallest share of its
files, so that every block, and so every shard, mixes them in proportion to their sizes. At most `MOST_OPEN` are open at
once.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import dataclasses
import heapq
import multiprocessing
import os
import pathlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from mural_tf.errors import UserError
from mural_tf.ingest.source import Reading, Settings, Source, Tally

MOST_OPEN = 100
CHUNK = 100  # items that are taken from a source at a time
AHEAD = 2  # blocks that wait for a worker: reading rarely stops, and memory stays bounded


@dataclasses.dataclass
class Block:
    """Items for one worker.

    Attributes:
      number: from 0, in the order of reading.
      items: (source's number, item).
      tally: what the reader could not make items of.
      position: bytes of all sources read when the block was full.
    """

    number: int
    items: list[tuple[int, object]]
    tally: Tally
    position: int


def read_blocks(sources: Sequence[Source | None], settings: Settings, folder: pathlib.Path) -> Iterator[Block]:
    """Yields all blocks of all sources but those that are `None`; images, files and text pairs are not mixed."""
    number, before = 0, 0
    for kind, size in settings.block_sizes:
        chosen = [index for index, source in enumerate(sources) if source is not None and source.ITEM == kind]
        for first in range(0, len(chosen), MOST_OPEN):
            group = chosen[first : first + MOST_OPEN]
            block = Block(number, [], Tally(), before)
            for block in _read_group({index: sources[index] for index in group}, size, folder, number, before):
                yield block
                number = block.number + 1
            before = block.position


def _read_group(sources: dict[int, Source], size: int, folder: pathlib.Path, number: int, before: int):
    sizes = {index: max(1, source.size()) for index, source in sources.items()}
    readings = {index: Reading(folder / f"source-{index}") for index in sources}
    streams = {index: source.read(readings[index]) for index, source in sources.items()}
    block = Block(number, [], Tally(), before)
    queue = [(0.0, index) for index in sources]
    while queue:
        _, index = heapq.heappop(queue)
        readings[index].tally = block.tally
        count = 0
        for item in streams[index]:
            block.items.append((index, item))
            count += 1
            if len(block.items) >= size:
                block.position = before + sum(reading.position for reading in readings.values())
                yield block
                block = Block(block.number + 1, [], Tally(), block.position)
                readings[index].tally = block.tally
            if count >= CHUNK:
                heapq.heappush(queue, (readings[index].position / sizes[index], index))
                break
    block.position = before + sum(sizes.values())
    if block.items or block.tally.read:
        yield block


def map_blocks(
    blocks: Iterator[Block], workers: int, make: Callable[..., Callable[[Block], Any]], arguments: tuple
) -> Iterator[tuple[int, Any]]:
    """Yields (block's number, result) for every block, as they are done.

    Args:
      blocks: read only as fast as they are worked on.
      workers: processes; 0 works in this one.
      make: called once in each process with `arguments`; returns what is called with blocks. Both travel to the
        processes, so `make` is a class or function of a module.
      arguments: see make.

    Raises:
      UserError: a process was killed.
    """
    if workers == 0:
        work = make(*arguments)
        for block in blocks:
            yield block.number, work(block)
        return
    # A server process imports TensorFlow once (with the records), and workers are forked from it: forking this
    # process, whose TensorFlow may be at work, could leave them with locks that nobody releases.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mural_tf.ingest.convert", "mural_tf.data.records"])
    with concurrent.futures.ProcessPoolExecutor(workers, context, _start, (make, arguments)) as pool:
        waiting: dict[concurrent.futures.Future, int] = {}
        try:
            for block in blocks:
                waiting[pool.submit(_work, block)] = block.number
                if len(waiting) >= workers + AHEAD:
                    yield from _done(waiting, concurrent.futures.FIRST_COMPLETED)
            yield from _done(waiting, concurrent.futures.ALL_COMPLETED)
        except concurrent.futures.process.BrokenProcessPool:
            raise UserError(
                "A worker was killed, most likely for want of memory: run the same command again with fewer --workers. "
                "What is converted already is kept."
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def _done(waiting: dict[concurrent.futures.Future, int], until: str) -> Iterator[tuple[int, Any]]:
    for future in concurrent.futures.wait(waiting, return_when=until).done:
        yield waiting.pop(future), future.result()


_worker: Callable[[Block], Any] | None = None  # of a worker process


def _start(make: Callable, arguments: tuple) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the main one decides
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _worker = make(*arguments)


def _die_with_parent() -> None:
    """Ends this process when the main one is killed: it would wait for blocks for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(block: Block) -> Any:
    return _worker(block)
