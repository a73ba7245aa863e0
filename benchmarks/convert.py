"""Throughput and memory of `python -m mural_tf convert`, beside straightforward ways.

    python -m benchmarks.convert                                  # two minutes
    python -m benchmarks.convert --pairs=1000000 --images=200000 --captions=10000000

Text pairs a second from a Moses zip, with one worker and with all cores; images a second from img2dataset's tars, with
and without looking for duplicates, beside copying the files (the most any converter can reach) and beside decoding and
encoding every image (what is avoided); and the memory of deciding over many captions. Seconds are of processor time of
all processes, memory is the largest sum of what they do not share.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import os
import pathlib
import random
import resource
import shutil
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import PIL.Image

from mural_tf.ingest import convert as conversion
from mural_tf.ingest.convert import KINDS, ConversionGraph, convert
from mural_tf.ingest.source import FILE, Captioned, Filters, Settings, Source, Text, parse_source
from mural_tf.text_files import Unit
from mural_tf.work import run

CORES = os.cpu_count() or 1


@contextlib.contextmanager
def measured(found: dict) -> Iterator[None]:
    """Fills in elapsed and processor seconds and the largest memory, in MiB, of this process and those below it."""
    stop = threading.Event()

    def watch():
        while not stop.wait(0.3):
            found["memory"] = max(found.get("memory", 0), sum(map(private_memory, processes(os.getpid()))) / 2**10)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    start = time.perf_counter()
    yield
    found["elapsed"] = time.perf_counter() - start
    stop.set()
    watcher.join()
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found["processor"] = sum(a.ru_utime + a.ru_stime - b.ru_utime - b.ru_stime for a, b in zip(after, before))


def processes(root: int) -> list[int]:
    """A process and all below it, by Linux's /proc."""
    below: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            below.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [root]
    for number in found:
        found += below.get(number, [])
    return found


def private_memory(number: int) -> int:
    """Proportional memory of a process in KiB."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def conversion_of(source: str, output: pathlib.Path, **settings) -> dict:
    """Runs a conversion and returns what it took."""
    found: dict = {}
    with measured(found):
        convert([parse_source(source, KINDS)], output, Settings(**settings), progress=False)
    return found


def measure_pairs(folder: pathlib.Path, pairs: int) -> None:
    with zipfile.ZipFile(folder / "de-en.txt.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for language, words in (("de", "Dies ist der Satz mit der Nummer"), ("en", "This is the sentence numbered")):
            with archive.open(f"Made.de-en.{language}", "w") as file:
                file.writelines(f"{words} {n}, {n * 7919 % 104729}.\n".encode() for n in range(pairs))
    alone = conversion_of(f"opus:{folder}/de-en.txt.zip", folder / "one", workers=1)
    many = conversion_of(f"opus:{folder}/de-en.txt.zip", folder / "many", workers=CORES)
    for workers, took in ((1, alone), (CORES, many)):
        report(f"text pairs: {workers} workers", pairs, took)
    print(f"text pairs: {CORES} workers are {alone['elapsed'] / many['elapsed']:.2f} times as fast as 1")


def report(what: str, count: int, took: dict) -> None:
    """Prints one line."""
    print(
        f"{what}: {count / took['elapsed']:,.0f} a second, {count / took['processor']:,.0f} a processor second; "
        f"{took['processor']:.1f} processor s, {took['memory']:,.0f} MiB",
        flush=True,
    )


def write_tars(folder: pathlib.Path, images: int) -> list[bytes]:
    """Writes tars of 10,000 images each with a caption; every twentieth repeats an earlier one."""
    draw, contents = random.Random(0), []
    for seed in range(20):
        coarse = np.random.default_rng(seed).integers(0, 256, [8, 8, 3], np.uint8)
        buffer = io.BytesIO()
        PIL.Image.fromarray(coarse).resize((256, 224)).save(buffer, "JPEG", quality=50)
        contents.append(buffer.getvalue())
    for shard, numbers in itertools.groupby(range(images), lambda n: n // 10_000):
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as archive:
            for n in numbers:
                shown = draw.randrange(n) if n % 20 == 19 else n
                comment = b"\xff\xfe\x00\x0a" + f"{shown:08d}".encode()  # makes each file another one
                image = contents[shown % 20]
                metadata = json.dumps({"url": f"http://example.org/{n}.jpg", "key": f"{n:09d}"}).encode()
                parts = (("jpg", image[:2] + comment + image[2:]), ("txt", b"caption %d" % shown), ("json", metadata))
                for ending, data in parts:
                    info = tarfile.TarInfo(f"{n:09d}.{ending}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    return contents


def measure_images(folder: pathlib.Path, images: int) -> None:
    (folder / "downloads").mkdir()
    contents = write_tars(folder / "downloads", images)
    start = time.process_time()
    shutil.copytree(folder / "downloads", folder / "copy")
    copying = {"elapsed": 1e-9 + time.process_time() - start}
    copying |= {"processor": copying["elapsed"], "memory": 0}
    start = time.process_time()
    for content in contents:
        PIL.Image.open(io.BytesIO(content)).convert("RGB").save(io.BytesIO(), "JPEG", quality=95)
    encoding = (time.process_time() - start) / len(contents) * images
    report("images: copying the tars", images, copying)
    report("images: decoding and encoding", images, {"elapsed": encoding, "processor": encoding, "memory": 0})
    for same in ("", "pair", "both"):
        name = f"images, {same or 'no'} duplicates dropped"
        settings = {"filters": Filters(max_images_per_text=10, max_texts_per_image=100), "drop_duplicates": same}
        took = conversion_of(f"img2dataset:{folder}/downloads", folder / f"images-{same}", workers=CORES, **settings)
        report(name, images, took)


@dataclasses.dataclass
class Played(Source):
    """Captions that are nowhere, each twentieth a repeat: what deciding over them takes, without reading."""

    KIND: ClassVar[str] = "played"
    ITEM: ClassVar[str] = FILE
    count: int = 0
    AT_A_TIME: ClassVar[int] = 100_000

    def input_files(self):
        return []

    def units(self, unit_bytes):
        parts = -(-self.count // self.AT_A_TIME)
        return [Unit("", number, parts, self.AT_A_TIME, self.AT_A_TIME * 100) for number in range(parts)]

    def read(self, unit, reading):
        yield from unit.share(self.count)

    def records(self, item, reading):
        number = item * 7919 % (item + 1) if item % 20 == 19 else item
        text = Text(f"a caption with the number {number}", "en", "", "")
        yield Captioned(str(number), str(number).encode(), [text])


def measure_captions(folder: pathlib.Path, captions: int) -> None:
    source, work = Played("", captions), folder / "work"
    settings = Settings(filters=Filters(max_images_per_text=10, max_texts_per_image=100), drop_duplicates="both")
    (work / "decided").mkdir(parents=True)
    plan = conversion.make_plan([source], settings, work)
    found: dict = {}
    with measured(found):
        run(ConversionGraph(plan, []), Settings(workers=CORES).engine(), work)
    report("captions decided over (frequent ones, duplicates of both)", captions, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--captions", type=int, default=500_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_captions(pathlib.Path(folder), arguments.captions)
        measure_pairs(pathlib.Path(folder), arguments.pairs)
        measure_images(pathlib.Path(folder), arguments.images)


if __name__ == "__main__":
    from benchmarks import convert as benchmark  # under the name that workers find `Played` by

    benchmark.main()
