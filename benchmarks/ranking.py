"""Time and peak memory of `mural_tf.metrics.ranking.ranks` beside the straightforward way, a full sort.

    python benchmarks/ranking.py                                  # MS-COCO 5K: 5,000 images, 25,000 captions, D = 512
    python benchmarks/ranking.py --images=100000 --captions=100000 --skip_sort   # the full sort would need 120 GB

Every way runs in a process of its own, on the same random embeddings; a caption is its image plus noise. Peak memory
is that process's maximum resident set, the embeddings included. The last column counts the ranks that differ from the
full sort's; they can differ only where two scores lie within float32 rounding of each other.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import numpy as np

from mural_tf.metrics import ranking


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
        embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return image_embeddings, caption_embeddings, owners


def full_sort_ranks(queries: np.ndarray, candidates: np.ndarray, positives) -> np.ndarray:
    """Ranks from the whole score matrix and its argsort; ties by candidate order."""
    order = np.argsort(-(queries @ candidates.T), axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(candidates))[None], axis=1)
    return np.array([1 + place[i, np.atleast_1d(p)].min() for i, p in enumerate(positives)], np.float64)


def measure(method: str, arguments: argparse.Namespace, results) -> None:
    images, captions, owners = make_embeddings(arguments.images, arguments.captions, arguments.size)
    bounds = np.searchsorted(owners, np.arange(arguments.images + 1))
    captions_of = [np.arange(a, b) for a, b in zip(bounds[:-1], bounds[1:])]
    function = {"counting": ranking.ranks, "full sort": full_sort_ranks}[method]
    times, values = [], []
    for queries, candidates, positives in ((images, captions, captions_of), (captions, images, owners)):
        start = time.perf_counter()
        values.append(function(queries, candidates, positives))
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB -> GiB on Linux
    results.put((times, peak, values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--captions", type=int, default=25_000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--skip_sort", action="store_true")
    arguments = parser.parse_args()
    print(f"{arguments.images:,} images, {arguments.captions:,} captions, D = {arguments.size}")
    print(f"{'':10}  image->text s  text->image s  peak GiB  ranks unlike the sort's  mean recall")
    context = multiprocessing.get_context("spawn")
    reference = None
    for method in ["counting"] if arguments.skip_sort else ["full sort", "counting"]:
        results = context.Queue()
        process = context.Process(target=measure, args=(method, arguments, results))
        process.start()
        times, peak, values = results.get()
        process.join()
        reference = reference or values
        differing = sum(int(np.count_nonzero(a != b)) for a, b in zip(values, reference))
        recall = ranking.mean_recall(*values)
        print(f"{method:10}  {times[0]:13.2f}  {times[1]:13.2f}  {peak:8.2f}  {differing:23,}  {recall:11.4f}")


if __name__ == "__main__":
    main()
