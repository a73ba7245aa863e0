"""Throughput and memory of `python -m mural_tf convert`, in one process, beside straightforward ways.

    python benchmarks/convert.py                                  # a minute
    python benchmarks/convert.py --pairs=1000000 --images=20000 --gigabytes=10

Three measurements: text pairs a second from a Moses zip; images a second from img2dataset's tar, beside copying the
file (the most any converter can reach) and beside decoding and encoding every image (what is avoided); and the peak
memory while a generator plays an input of many gigabytes, whose records are deleted as they are written. Seconds are
of processor time, in one process.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import pathlib
import pickle
import resource
import shutil
import tarfile
import tempfile
import time
import zipfile

import numpy as np
import PIL.Image
from mural_tf.ingest.blocks import read_blocks

from mural_tf.ingest.convert import KINDS, Converter, convert, part_path
from mural_tf.ingest.source import Settings, parse_source
from mural_tf.ingest.translations import PairsTsv


def converted_in(source: str, output: pathlib.Path) -> float:
    """Returns the seconds of processor time of a conversion in this process."""
    start = time.process_time()
    convert([parse_source(source, KINDS)], output, Settings(workers=0), progress=False)
    return time.process_time() - start


def measure_pairs(folder: pathlib.Path, pairs: int) -> None:
    with zipfile.ZipFile(folder / "de-en.txt.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for language, words in (("de", "Dies ist der Satz mit der Nummer"), ("en", "This is the sentence numbered")):
            with archive.open(f"Made.de-en.{language}", "w") as file:
                file.writelines(f"{words} {n}, {n * 7919 % 104729}.\n".encode() for n in range(pairs))
    seconds = converted_in(f"opus:{folder}/de-en.txt.zip", folder / "pairs")
    start = time.process_time()
    source = parse_source(f"opus:{folder}/de-en.txt.zip", KINDS)
    for block in read_blocks([source], Settings(), folder):
        pickle.dumps(block, pickle.HIGHEST_PROTOCOL)
    reading = time.process_time() - start
    print(f"text pairs: read and packed for workers, {pairs / reading:,.0f} a second", flush=True)
    print(f"text pairs: {pairs} in {seconds:.1f} s, {pairs / seconds:,.0f} a second and core", flush=True)


def measure_images(folder: pathlib.Path, images: int) -> None:
    contents = []
    for seed in range(20):
        coarse = np.random.default_rng(seed).integers(0, 256, [32, 32, 3], np.uint8)
        buffer = io.BytesIO()
        PIL.Image.fromarray(coarse).resize((512, 384)).save(buffer, "JPEG", quality=90)
        contents.append(buffer.getvalue())
    (folder / "downloads").mkdir()
    tar = folder / "downloads" / "00000.tar"
    with tarfile.open(tar, "w") as archive:
        for n, content in zip(range(images), itertools.cycle(contents)):
            metadata = json.dumps({"url": f"http://example.org/{n}.jpg", "key": f"{n:09d}"}).encode()
            for ending, data in (("jpg", content), ("txt", b"a caption"), ("json", metadata)):
                info = tarfile.TarInfo(f"{n:09d}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    start = time.process_time()
    shutil.copyfile(tar, folder / "copy.tar")
    copying = time.process_time() - start
    start = time.process_time()
    for content in contents:
        PIL.Image.open(io.BytesIO(content)).convert("RGB").save(io.BytesIO(), "JPEG", quality=95)
    encoding = (time.process_time() - start) / len(contents) * images
    seconds = converted_in(f"img2dataset:{folder}/downloads", folder / "images")
    megabytes = tar.stat().st_size / 1e6
    for what, took in (("copying the tar", copying), ("converting", seconds), ("decoding and encoding", encoding)):
        print(f"images: {what}: {images / took:,.0f} a second, {megabytes / took:,.0f} MB/s", flush=True)


class Played(PairsTsv):
    """A TSV of `megabytes` that is nowhere: lines of 2 kB, each another one."""

    megabytes = 0

    def read(self, reading):
        filler = "word " * 200
        for number in range(self.megabytes * 1000 // 2):
            yield f"{number} {filler}\t{filler} {number}", f"line {number}"


def measure_memory(folder: pathlib.Path, gigabytes: float) -> None:
    (folder / "any.tsv").write_text("x\ty\n")
    source = Played(path=str(folder / "any.tsv"), language_b="de")
    source.megabytes = int(gigabytes * 1000)
    settings = Settings(workers=0, block_sizes=(("pair", 10_000),))
    (folder / "parts").mkdir()
    converter = Converter([source], settings, folder)
    total = source.megabytes * 1000 // 2 // 10_000
    marks = {max(1, round(total * share)) for share in (0.05, 0.25, 0.5, 1.0)}
    for block in read_blocks([source], settings, folder):
        converter(block)
        part_path(folder, block.number, "text_pairs", "train").unlink()
        if block.number + 1 in marks:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # KiB -> MiB on Linux
            print(f"memory: after {(block.number + 1) * 0.02:.2f} GB the peak is {peak:,.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--gigabytes", type=float, default=0.4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_memory(pathlib.Path(folder), arguments.gigabytes)  # first: a process's peak never falls
        measure_pairs(pathlib.Path(folder), arguments.pairs)
        measure_images(pathlib.Path(folder), arguments.images)


if __name__ == "__main__":
    main()
