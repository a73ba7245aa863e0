"""An index of a million vectors: building, opening, asking, memory.

    python -m benchmarks.search                                # 1,000,000 x 256, float16: 2 GB, some minutes
    python -m benchmarks.search --count=100000                 # a tenth of it

Synthetic vectors are clustered like vectors of pictures: latents of 64 numbers around count/100 centres, mapped to the
full size, with noise, L2-normalised. Each item has a field and, with `--captions`, a caption of four words. No model
encodes anything: what is measured is the store. Each step runs in a process of its own, and peak memory is its maximum
resident set, mapped pages that were read included.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import multiprocessing
import pathlib
import resource
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from mural_tf.fingerprint import TEXTS, Fingerprint
from mural_tf.search.index import load_index, sync
from mural_tf.search.items import Item, parse_filters

COLOURS = ("red", "green", "blue", "yellow", "black", "white", "orange", "violet")
THINGS = ("balloon", "shoe", "heart", "lamp", "guitar", "umbrella", "mug", "candle", "cushion", "hat")


def make_vectors(count: int, size: int, seed: int = 0) -> np.ndarray:
    """Returns float16 [count, size], L2-normalised."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(1, count // 100), 64), dtype=np.float32)
    matrix = random.standard_normal((64, size), dtype=np.float32) / 8.0
    drawn = np.empty((count, size), np.float16)
    for begin in range(0, count, 50_000):
        block = drawn[begin : begin + 50_000]
        latents = centres[random.integers(len(centres), size=len(block))]
        latents = latents + 0.6 * random.standard_normal(latents.shape, dtype=np.float32)
        vectors = latents @ matrix + 0.3 * random.standard_normal(block.shape, dtype=np.float32)
        block[:] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return drawn


@contextlib.contextmanager
def reported(what: str) -> Iterator[None]:
    """Prints how long a step took, its processor seconds, and the most memory that its process had."""
    begun, used = time.perf_counter(), time.process_time()
    yield
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    print(f"{what}: {seconds:.2f} s, {used:.2f} processor seconds, peak {peak:.2f} GiB", flush=True)


def build(folder: pathlib.Path, captions: bool) -> None:
    """Makes the index, and again, which changes nothing."""
    vectors = np.load(folder / "rows.npy", mmap_mode="r")
    model = Fingerprint(np.eye(len(TEXTS) + 2, vectors.shape[1], dtype=np.float32), "synthetic")

    def items():
        for n, vector in enumerate(vectors):
            text = f"a {COLOURS[n % 8]} {THINGS[n // 8 % 10]} {n:x}"
            fields = {"price": str(n % 1000)}
            yield Item(f"{n}.jpg", captions=(("en", text),) if captions else (), fields=fields), vector

    for what in ("built", "the same again"):
        with reported(what):
            sync(folder / "index", None, items(), model=model, dtype="float16")


def ask(folder: pathlib.Path, captions: bool) -> None:
    """Opens the index and asks."""
    with reported("opened"):
        index = load_index(folder / "index")
    query = np.asarray(index.embeddings[:1], np.float32)
    for what, where in (("a question", ()), ("a question, warm", ()), ("a tenth passes a filter", ["price<100"])):
        with reported(what):
            index.search(query, 10, where)
    if captions:
        with reported("by words"):
            index.table.by_words("red umbrella", 200)
    with reported("rows of a field"):
        index.rows(parse_filters(["price=7"]))


def forget_matrix(folder: pathlib.Path, captions: bool) -> None:
    """Opens the index whose matrix is gone."""
    (folder / "index" / "vectors.npy").unlink()
    with reported("opened, the matrix made again"):
        load_index(folder / "index")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--captions", action="store_true")
    parser.add_argument("--folder", default=None, help="Where the files lie meanwhile.")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.folder) as name:
        folder = pathlib.Path(name)
        np.save(folder / "rows.npy", make_vectors(flags.count, flags.size))
        for work in (build, ask, forget_matrix):
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(work, folder, flags.captions).result()
        for path in sorted((folder / "index").iterdir()):
            print(f"{path.name}: {path.stat().st_size / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
