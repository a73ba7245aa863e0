"""Cuts the sources' items into blocks, always the same ones, in bounded memory.

Sources of one kind are read side by side, always the one next that is least far through its files, so that every
block, and so every shard, mixes them in the proportion of their sizes. At most `MOST_OPEN` are open at once.
"""

from __future__ import annotations

import dataclasses
import heapq
import pathlib
from collections.abc import Iterator, Sequence

from mural_tf.data.convert.settings import Settings
from mural_tf.data.convert.source import Reading, Source
from mural_tf.data.convert.tally import Tally

MOST_OPEN = 100
CHUNK = 100  # items that are taken from a source at a time


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
