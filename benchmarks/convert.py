"""Seconds and memory of `python -m mural_tf convert`, in numbers of records that tell whether memory grows with them.

    python -m benchmarks.convert                                          # 50,000 and 200,000 images, ten minutes
    python -m benchmarks.convert --images 1800000 --settings both --workers 2 --pairs 1000000

Images are 4.2 kB JPEGs with captions in img2dataset's tars, with and without looking for duplicates; text pairs come
from a Moses zip. Each row is a whole command. Processor seconds are of all its processes, memory is the largest sum of
what they hold, shared pages divided among those who share them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

import numpy as np
import PIL.Image

SETTINGS = {
    "plain": [],
    "both": ["--max_images_per_text=10", "--max_texts_per_image=100", "--drop_duplicates=both"],
}


def measure(command: list[str]) -> tuple[float, float, float]:
    """Runs a command; returns its processor seconds, its seconds, and the most MiB that its processes held at once."""
    start, most = time.perf_counter(), 0.0
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while True:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        most = max(most, sum(map(proportional_memory, family(process.pid))) / 2**10)
        time.sleep(0.1)
    if status:
        raise SystemExit(process.stderr.read())
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start, most


def family(process: int) -> list[int]:
    """Returns a process and all below it, by Linux's /proc."""
    below: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            below.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [process]
    for number in found:
        found += below.get(number, [])
    return found


def proportional_memory(process: int) -> int:
    """Returns a process's memory in KiB."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def convert(source: str, output: pathlib.Path, count: int, workers: int, settings: str) -> None:
    """Prints what a conversion takes."""
    flags = [f"--output={output}", f"--workers={workers}", *SETTINGS[settings]]
    processor, seconds, memory = measure([sys.executable, "-m", "mural_tf", "convert", source, *flags])
    print(
        f"{count:>9,} {source.partition(':')[0]:11} {settings:7} {workers} workers {seconds:7.1f} s "
        f"{processor:7.1f} processor s {memory:7,.0f} MiB",
        flush=True,
    )


def write_tars(folder: pathlib.Path, images: int) -> None:
    """Writes tars of 10,000 images each with a caption; every twentieth repeats an earlier one."""
    draw, contents = random.Random(0), []
    for seed in range(20):
        coarse = np.random.default_rng(seed).integers(0, 256, [8, 8, 3], np.uint8)
        buffer = io.BytesIO()
        PIL.Image.fromarray(coarse).resize((256, 224)).save(buffer, "JPEG", quality=50)
        contents.append(buffer.getvalue())
    folder.mkdir()
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


def write_zip(path: pathlib.Path, pairs: int) -> None:
    """Writes sentences that say their number in two languages."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for language, words in (("de", "Dies ist der Satz mit der Nummer"), ("en", "This is the sentence numbered")):
            with archive.open(f"Made.de-en.{language}", "w") as file:
                file.writelines(f"{words} {n}, {n * 7919 % 104729}.\n".encode() for n in range(pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="*", default=[50_000, 200_000])
    parser.add_argument("--pairs", type=int, nargs="*", default=[200_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--settings", nargs="+", default=["plain", "both"], choices=[*SETTINGS])
    parser.add_argument("--folder", help="for the files, about 16 kB for each image")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        for count in arguments.images:
            folder = pathlib.Path(name, f"images-{count}")
            write_tars(folder, count)
            for settings, workers in itertools.product(arguments.settings, arguments.workers):
                convert(f"img2dataset:{folder}", folder / f"{settings}-{workers}", count, workers, settings)
        for count in arguments.pairs:
            write_zip(pathlib.Path(name, f"{count}.de-en.txt.zip"), count)
            for workers in arguments.workers:
                source = f"opus:{name}/{count}.de-en.txt.zip"
                convert(source, pathlib.Path(name, f"pairs-{count}-{workers}"), count, workers, "plain")


if __name__ == "__main__":
    main()
