"""Time, memory and recall of approximate search beside the exact one.

    python -m benchmarks.search                                # 1,000,000 x 512, 64 queries: 5 GB, half an hour
    python -m benchmarks.search --count=100000                 # a tenth of it

Synthetic vectors are clustered, because uniformly random ones have no neighbours to find: 64-dimensional latents, drawn
around count/100 centres of unequal sizes (the i-th is drawn in proportion to 1/i) with a spread of 0.6, are mapped to
the full size by one random matrix, get noise of 0.3 there, and are L2-normalised. Image queries are drawn alike;
sentence queries are moved by one common vector (the gap between the modalities) and get noise of 0.6.

Building and asking are measured in processes of their own, the fastest of several runs; peak memory is the maximum
resident set, the vectors included.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import pathlib
import resource
import tempfile
import time

import numpy as np

from mural_tf.metrics import top_k
from mural_tf.search import approximate

K = 10


def make_vectors(count: int, size: int, queries: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns "rows" [count, size] and "image" and "sentence" queries [queries, size], float32, L2-normalised."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(1, count // 100), 64), dtype=np.float32)
    weights = 1.0 / np.arange(1, len(centres) + 1)
    weights /= weights.sum()
    matrix = random.standard_normal((64, size), dtype=np.float32) / 8.0  # keeps the variance
    gap = random.standard_normal(size, dtype=np.float32)

    def draw(number: int, noise: float, shift: float) -> np.ndarray:
        drawn = np.empty((number, size), np.float32)
        for begin in range(0, number, 50_000):
            block = drawn[begin : begin + 50_000]
            latents = centres[random.choice(len(centres), len(block), p=weights)]
            latents = latents + 0.6 * random.standard_normal(latents.shape, dtype=np.float32)
            block[:] = latents @ matrix + noise * random.standard_normal(block.shape, dtype=np.float32) + shift * gap
            block /= np.linalg.norm(block, axis=1, keepdims=True)
        return drawn

    return {"rows": draw(count, 0.3, 0.0), "image": draw(queries, 0.3, 0.0), "sentence": draw(queries, 0.6, 0.7)}


def fastest(function, runs: int = 5) -> float:
    """Returns the milliseconds of the fastest of several runs after one more."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB -> GiB on Linux


def apart(function, *arguments):
    """Returns what `function(*arguments)` returns in a process of its own."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def load(folder: pathlib.Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the rows, mapped, and the queries of each kind."""
    queries = {path.stem: np.load(path) for path in folder.glob("*.npy") if path.stem != "rows"}
    return np.load(folder / "rows.npy", mmap_mode="r"), queries


def build_approximate(folder: pathlib.Path) -> tuple[float, float, float, dict]:
    """Builds a structure and chooses its effort; the vectors stay in a mapped file, as in an index."""
    rows, queries = load(folder)
    start = time.perf_counter()
    built = approximate.build(rows, approximate.choose(len(rows), approximate.LISTS))
    seconds, peak = time.perf_counter() - start, peak_gib()
    report = approximate.choose_effort(
        built, rows, {name: approximate.Group(vectors) for name, vectors in queries.items()}
    )
    approximate.save(folder, built, report)
    return seconds, peak, (folder / approximate.FILE).stat().st_size / 2**30, report


def ask_approximate(folder: pathlib.Path) -> tuple[dict[str, tuple[float, float]], float, float]:
    """Times a saved structure in a process that only asks, next to the exact search."""
    rows, queries = load(folder)
    loaded = approximate.load(folder, len(rows))
    times = {}
    for name, vectors in queries.items():
        fast = fastest(lambda vectors=vectors: loaded.search(vectors, K, rows))
        single = fastest(lambda vectors=vectors: [loaded.search(vector[None], K, rows) for vector in vectors[:16]]) / 16
        times[name] = (fast, single)
    peak = peak_gib()  # the exact search below touches every mapped page
    return times, fastest(lambda: top_k.top_k(queries["image"], rows, K), 3), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--queries", type=int, default=64)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part, values in make_vectors(flags.count, flags.size, flags.queries).items():
            np.save(folder / f"{part}.npy", values)
        print(f"{flags.count:,} x {flags.size}, {flags.queries} queries, {os.cpu_count()} cores", flush=True)
        show(folder)


def show(folder: pathlib.Path) -> None:
    seconds, build_peak, file_size, report = apart(build_approximate, folder)
    times, slow, ask_peak = apart(ask_approximate, folder)
    reached = "" if report["reached"] else " (the largest; the aimed recall was not reached)"
    print(f"inverted lists: built in {seconds:.0f} s, peak {build_peak:.2f} GiB, file {file_size:.2f} GiB, "
          f"asking {ask_peak:.2f} GiB, effort {report['tried'][-1]['effort']}{reached}")  # fmt: skip
    for name, (batch, single) in times.items():
        found = report["groups"][name]["recall"]
        print(f"  {name:10} recall@{K} {found:.3f}: {batch:8.1f} ms for all ({slow / batch:.1f} x exact), "
              f"{single:.2f} ms for one", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
