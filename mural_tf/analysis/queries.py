"""Queries of a test set with the first results of one or more models, and a choice of them for people to look at."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mural_lite.top_k import top_k
from mural_tf.metrics.ranking import ranks_both_ways

TOP = 5  # results for each query


@dataclasses.dataclass
class Found:
    """One model's results for one query.

    Attributes:
      top: the numbers of the first `TOP` candidates, best first.
      rank: the rank of the best right candidate, from 1; halves come from ties.
    """

    top: list[int]
    rank: float


@dataclasses.dataclass
class Searched:
    """A query and each model's results for it.

    Attributes:
      number: the query's number, of an image or a caption.
      right: the candidates that answer it.
      found: each model's results.
    """

    number: int
    right: set[int]
    found: list[Found]


def find_queries(
    direction: str, embeddings: Sequence[tuple[np.ndarray, np.ndarray]], owners: np.ndarray
) -> list[Searched]:
    """Returns a query for every image that has a caption, or for every caption, with the results of each model.

    Candidates are all captions, or the images that have a caption, as in the benchmark.

    Args:
      direction: "image_to_text" or "text_to_image".
      embeddings: for each model its images and texts, float32 [I, D] and [C, D], L2-normalised.
      owners: the number of each caption's image, int [C].
    """
    # The numbers of the images with a caption, [P], and each caption's row among them, [C].
    pool, rows_in_pool = np.unique(owners, return_inverse=True)
    searched = []
    if direction == "text_to_image":
        for number, owner in enumerate(owners):
            searched.append(Searched(number, {int(owner)}, []))
    else:
        for row, number in enumerate(pool):
            right = set(np.flatnonzero(rows_in_pool == row).tolist())
            searched.append(Searched(int(number), right, []))
    for images, texts in embeddings:
        to_text, to_image = ranks_both_ways(images[pool], texts, (rows_in_pool, np.arange(len(texts))))
        if direction == "text_to_image":
            _, rows = top_k(texts, images[pool], TOP)
            top = pool[rows]  # [C, TOP]
            ranks = to_image
        else:
            _, top = top_k(images[pool], texts, TOP)
            ranks = to_text
        for query, nearest, rank in zip(searched, top, ranks):
            query.found.append(Found(nearest.tolist(), float(rank)))
    return searched


def choose_queries(searched: list[Searched], count: int, show: str, seed: int = 0) -> list[Searched]:
    """Returns at most `count` queries: misses, queries where the first model falls behind, or any queries.

    Args:
      searched: queries with the results of one or two models.
      count: the most queries.
      show: "wrong", for queries from near to far misses of the first model; "worse", for the queries where it falls
        behind the second model most, the worst first; or "all", for any queries.
      seed: chooses the queries for "all".
    """
    if show == "all":
        chosen_numbers = np.random.default_rng(seed).permutation(len(searched))[:count]
        return [searched[number] for number in sorted(chosen_numbers)]
    if show == "worse":
        behind = [query for query in searched if query.found[0].rank > query.found[1].rank]
        return sorted(behind, key=lambda query: query.found[1].rank / query.found[0].rank)[:count]
    misses = [query for query in searched if query.found[0].rank > 1]
    return evenly(sorted(misses, key=lambda query: query.found[0].rank), count)


def evenly(values: Sequence, count: int) -> list:
    """Returns at most `count` of the values: the first, the last, and others at even distances between them."""
    spaced = np.linspace(0, len(values) - 1, min(count, len(values)))
    indices = np.unique(spaced.round().astype(int))
    return [values[index] for index in indices]
