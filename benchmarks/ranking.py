"""Time and peak memory of ranking both ways, `mural_tf.metrics.ranking.ranks_both_ways`, beside a full sort in NumPy.

    python benchmarks/ranking.py                                   # MS-COCO 5K: 5,000 images, 25,000 captions, D = 512
    python benchmarks/ranking.py --images=100000 --captions=500000 --skip_sort      # the full sort would need a TB

Every way runs in a process of its own, on the same random embeddings; a caption is its image plus noise. Peak memory
is that process's maximum resident set, the embeddings included. "One way at a time" is `ranks`, called twice. The last
column counts the ranks that differ from those of the full sort, whose scores are float64 products: there must be none.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import numpy as np

from mural_tf.metrics import ranking

SORT_ROWS = 500  # queries sorted at a time in the exact reference, which is not timed


def make_embeddings(images: int, captions: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns image embeddings [I, D], caption embeddings [C, D] and the image index of every caption [C]."""
    random = np.random.default_rng(0)
    image_embeddings = random.standard_normal((images, size), dtype=np.float32)
    owners = np.arange(captions) * images // captions
    caption_embeddings = random.standard_normal((captions, size), dtype=np.float32)
    caption_embeddings *= 6.0  # so much noise that ranks spread over the pool
    for begin in range(0, captions, 10_000):
        caption_embeddings[begin : begin + 10_000] += image_embeddings[owners[begin : begin + 10_000]]
    for embeddings in (image_embeddings, caption_embeddings):
        embeddings /= np.sqrt(np.einsum("nd,nd->n", embeddings, embeddings))[:, None]
    return image_embeddings, caption_embeddings, owners


def full_sort_ranks(queries: np.ndarray, candidates: np.ndarray, positives) -> np.ndarray:
    """The straightforward way: the whole score matrix, its argsort, and the best place of a positive."""
    order = np.argsort(-(queries @ candidates.T), axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(candidates))[None], axis=1)
    return np.array([1 + place[i, np.atleast_1d(p)].min() for i, p in enumerate(positives)], np.float64)


def exact_ranks(queries: np.ndarray, candidates: np.ndarray, positives) -> np.ndarray:
    """A full sort of float64 scores, in blocks of queries: right to the last bit that matters, and slow."""
    wide = candidates.astype(np.float64)
    blocks = [slice(begin, begin + SORT_ROWS) for begin in range(0, len(queries), SORT_ROWS)]
    return np.concatenate(
        [full_sort_ranks(queries[block].astype(np.float64), wide, positives[block]) for block in blocks]
    )


def measure(method: str, arguments: argparse.Namespace, results) -> None:
    """Puts (seconds, GiB at the most, the ranks of both directions) into `results`."""
    images, captions, owners = make_embeddings(arguments.images, arguments.captions, arguments.size)
    bounds = np.searchsorted(owners, np.arange(arguments.images + 1))
    captions_of = [np.arange(a, b) for a, b in zip(bounds[:-1], bounds[1:])]
    start = time.perf_counter()
    if method == "both ways":
        values = ranking.ranks_both_ways(images, captions, (owners, np.arange(len(captions))))
    else:
        ways = {"one way at a time": ranking.ranks, "full sort": full_sort_ranks, "exact reference": exact_ranks}
        values = (ways[method](images, captions, captions_of), ways[method](captions, images, owners))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB -> GiB on Linux
    results.put((seconds, peak, values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--captions", type=int, default=25_000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--skip_sort", action="store_true")
    arguments = parser.parse_args()
    print(f"{arguments.images:,} images, {arguments.captions:,} captions, D = {arguments.size}")
    print(f"{'':17}  seconds  peak GiB  times as fast  ranks unlike the exact ones  mean recall")
    context = multiprocessing.get_context("spawn")
    exact, slowest = None, None
    methods = [] if arguments.skip_sort else ["exact reference", "full sort", "one way at a time"]
    for method in [*methods, "both ways"]:
        results = context.Queue()
        process = context.Process(target=measure, args=(method, arguments, results))
        process.start()
        seconds, peak, values = results.get()
        process.join()
        if method == "exact reference":
            exact = values
            continue
        slowest = slowest or seconds
        differing = sum(int(np.count_nonzero(a != b)) for a, b in zip(values, exact)) if exact else "not compared"
        recall = ranking.mean_recall(*values)
        print(f"{method:17}  {seconds:7.2f}  {peak:8.2f}  {slowest / seconds:13.1f}  {differing:>27}  {recall:11.4f}")


if __name__ == "__main__":
    main()
