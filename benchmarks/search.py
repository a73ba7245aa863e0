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
import pathlib
import resource
import tempfile
import timeit

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


def milliseconds(function) -> float:
    """Returns those of the fastest of several runs after one more."""
    return 1e3 * min(timeit.repeat(function, number=1, repeat=6)[1:])


def peak() -> str:
    return f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"  # KiB on Linux


def load(folder: pathlib.Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the rows, mapped, and the queries of each kind."""
    return np.load(folder / "rows.npy", mmap_mode="r"), {n: np.load(folder / f"{n}.npy") for n in ("image", "sentence")}


def build(folder: pathlib.Path) -> None:
    """Builds a structure and chooses its effort; the vectors stay in a mapped file, as in an index."""
    (rows, queries), begun = load(folder), timeit.default_timer()
    built = approximate.build(rows, approximate.choose(len(rows), approximate.LISTS))
    print(f"inverted lists: built in {timeit.default_timer() - begun:.0f} s, {peak()}", flush=True)
    groups = {name: approximate.Group(vectors) for name, vectors in queries.items()}
    report = approximate.choose_effort(built, rows, groups)
    approximate.save(folder, built, report)
    recalls = ", ".join(f"{name} {group['recall']:.3f}" for name, group in report["groups"].items())
    print(f"  file {(folder / approximate.FILE).stat().st_size / 2**30:.2f} GiB; recall@{K}: {recalls}", flush=True)


def ask(folder: pathlib.Path) -> None:
    """Times a saved structure, then the exact search, which touches every mapped page."""
    rows, queries = load(folder)
    loaded = approximate.load(folder, len(rows))
    for name, vectors in queries.items():
        print(f"  {name}: {milliseconds(lambda vectors=vectors: loaded.search(vectors, K, rows)):.1f} ms, {peak()}")
    print(f"exact: {milliseconds(lambda: top_k.top_k(queries['image'], rows, K)):.1f} ms, {peak()}", flush=True)


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
        for work in (build, ask):
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(work, folder).result()


if __name__ == "__main__":
    main()
