"""Time, memory and recall of search: ours exactly, faiss's flat index, and both approximate structures.

    python benchmarks/search.py                                   # 1,000,000 x 512, 64 queries: 5 GB, half an hour
    python benchmarks/search.py --count=100000                    # a tenth of it
    python benchmarks/search.py --index=FOLDER                    # the real vectors of an index, see docs/search.md

Synthetic vectors are clustered, because uniformly random ones have no neighbours to find: 64-dimensional latents, drawn
around count/100 centres of unequal sizes (the i-th is drawn in proportion to 1/i) with a spread of 0.6, are mapped to
the full size by one random matrix, get noise of 0.3 there, and are L2-normalised. Image queries are drawn alike;
sentence queries are moved by one common vector (the gap between the modalities) and get noise of 0.6.

Our exact search and faiss's flat one are timed in turn in one process (of several runs the fastest); peak memory is the
maximum resident set of the process that holds only the structure it names, the vectors included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import resource
import tempfile
import time

import numpy as np

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


def real_vectors(folder: str, queries: int) -> dict[str, np.ndarray]:
    """Returns the vectors of an index and a sample of them as image queries, captions as sentence queries."""
    import mural_tf
    from mural_tf.search.index import load_index
    from mural_tf.search.recall import collect_queries

    index = load_index(folder, use_exact=True)
    groups = collect_queries(index, mural_tf.load(index.model.path), per_group=queries)
    sentences = [group.vectors for name, group in sorted(groups.items()) if name.startswith("text")]
    vectors = {"rows": np.asarray(index.embeddings, np.float32), "image": groups["image"].vectors}
    if sentences:
        order = np.random.default_rng(0).permutation(sum(map(len, sentences)))
        vectors["sentence"] = np.concatenate(sentences)[order[:queries]]
    return vectors


def fastest(function, runs: int = 5) -> float:
    """Returns the seconds of the fastest of several runs after one more."""
    function()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB -> GiB on Linux


def load(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def compare_exact(folder: pathlib.Path, results) -> None:
    """Times our exact search and faiss's flat index in turn."""
    import faiss

    from mural_tf.metrics import top_k

    vectors = load(folder)
    rows, queries = vectors["rows"], vectors["image"]
    flat = faiss.IndexFlatIP(rows.shape[1])
    flat.add(rows)
    ours, theirs = [], []
    for _ in range(5):
        ours.append(fastest(lambda: top_k.top_k(queries, rows, K), 1))
        theirs.append(fastest(lambda: flat.search(queries, K), 1))
    same = np.mean(top_k.top_k(queries, rows, K)[1] == flat.search(queries, K)[1])
    halves = rows.astype(np.float16)
    results.put((min(ours), min(theirs), fastest(lambda: top_k.top_k(queries, halves, K), 2), float(same)))


def exact_memory(folder: pathlib.Path, results) -> None:
    from mural_tf.metrics import top_k

    vectors = load(folder)
    top_k.top_k(vectors["image"], vectors["rows"], K)
    results.put(peak_gib())


def flat_memory(folder: pathlib.Path, results) -> None:
    import faiss

    rows = np.load(folder / "rows.npy", mmap_mode="r")
    flat = faiss.IndexFlatIP(rows.shape[1])
    for begin in range(0, len(rows), 65_536):
        flat.add(np.ascontiguousarray(rows[begin : begin + 65_536]))
    flat.search(np.load(folder / "image.npy"), K)
    results.put(flat.ntotal * rows.shape[1] * 4 / 2**30)  # its copy; the mapped file would count too


def build_approximate(folder: pathlib.Path, results, method: str) -> None:
    """Builds a structure and chooses its effort; the vectors stay in a mapped file, as in an index."""
    from mural_tf.search import approximate, recall

    rows = np.load(folder / "rows.npy", mmap_mode="r")
    start = time.perf_counter()
    built = approximate.build(rows, approximate.choose(len(rows), method))
    seconds, peak = time.perf_counter() - start, peak_gib()
    queries = {path.stem: np.load(path) for path in folder.glob("*.npy") if path.stem != "rows"}
    report = recall.choose_effort(built, rows, {name: recall.Group(vectors) for name, vectors in queries.items()})
    approximate.save(folder, built, report)
    results.put((seconds, peak, (folder / approximate.FILE).stat().st_size / 2**30, report))


def ask_approximate(folder: pathlib.Path, results) -> None:
    """Times a saved structure in a process that only asks, next to the exact search."""
    from mural_tf.metrics import top_k
    from mural_tf.search import approximate

    rows = np.load(folder / "rows.npy", mmap_mode="r")
    queries = {path.stem: np.load(path) for path in folder.glob("*.npy") if path.stem != "rows"}
    loaded = approximate.load(folder, len(rows))
    times = {}
    for name, vectors in queries.items():
        fast = fastest(lambda vectors=vectors: loaded.search(vectors, K, rows))
        single = fastest(lambda vectors=vectors: [loaded.search(vector[None], K, rows) for vector in vectors[:16]]) / 16
        times[name] = (fast, single)
    peak = peak_gib()  # the exact search below touches every mapped page
    slow = fastest(lambda: top_k.top_k(queries["image"], rows, K), 3)
    results.put((times, slow, peak))


def in_process(function, *arguments):
    """Runs `function(*arguments[:1], results, *arguments[1:])` in a process of its own and returns what it put."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=function, args=(arguments[0], results, *arguments[1:]))
    process.start()
    while True:
        try:
            value = results.get(timeout=5)
            break
        except Exception:  # noqa: BLE001 - queue.Empty; a dead child will never answer
            if not process.is_alive():
                raise SystemExit(f"{function.__name__} ended with exit code {process.exitcode}.") from None
    process.join()
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--index", default="", help="take the vectors of this index instead")
    parser.add_argument("--methods", default="inverted_lists,hnsw")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if arguments.index:
            vectors = real_vectors(arguments.index, arguments.queries)
        else:
            vectors = make_vectors(arguments.count, arguments.size, arguments.queries)
        count, size = vectors["rows"].shape
        for part, values in vectors.items():
            np.save(folder / f"{part}.npy", values)
        del vectors
        print(f"{count:,} x {size}, {arguments.queries} queries at once, top {K}, {os.cpu_count()} cores", flush=True)
        ours, theirs, halves, same = in_process(compare_exact, folder)
        print(f"exact, ours:        {1e3 * ours:9.1f} ms, peak {in_process(exact_memory, folder):.2f} GiB")
        print(f"exact, float16:     {1e3 * halves:9.1f} ms")
        print(f"exact, faiss flat:  {1e3 * theirs:9.1f} ms, its vectors {in_process(flat_memory, folder):.2f} GiB")
        print(f"ours / faiss flat:  {ours / theirs:9.2f}; {100 * same:.1f}% of the rows are the same", flush=True)
        for method in filter(None, arguments.methods.split(",")):
            show_approximate(folder, method)


def show_approximate(folder: pathlib.Path, method: str) -> None:
    seconds, build_peak, file_size, report = in_process(build_approximate, folder, method)
    times, slow, ask_peak = in_process(ask_approximate, folder)
    reached = "" if report["reached"] else " (the largest; the aimed recall was not reached)"
    print(f"{method}: built in {seconds:.0f} s, peak {build_peak:.2f} GiB, file {file_size:.2f} GiB, "
          f"asking {ask_peak:.2f} GiB, effort {report['tried'][-1]['effort']}{reached}")  # fmt: skip
    for name, (batch, single) in times.items():
        found = report["groups"][name]["recall"]
        print(f"  {name:10} recall@{K} {found:.3f}: {1e3 * batch:8.1f} ms for all ({slow / batch:.1f} x exact), "
              f"{1e3 * single:.2f} ms for one", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
