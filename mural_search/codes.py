"""Vectors as whole numbers of 8 bits, which quickly exclude rows that cannot be among the best.

    x = scale · code + e,  so that  |q·x - scale · q·code| <= |q| |e|

The codes of a row are its numbers divided by a 127th of the largest, rounded; |e| is measured. Rows whose upper bound
is below the k-th best lower bound are not among the k best. The others, a few hundred of 100,000, are compared as they
are, so that the results are the same. Codes take a quarter of float32's memory, and a question a third of the time that
float16 takes: NumPy makes float32 of 8 bits in one step.

A server keeps them in memory (`served_index.ServedIndex`); a command that asks once does not need them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import typing
from collections.abc import Callable

import numpy as np

from mural_lite.errors import UserError
from mural_lite.files import release_pages
from mural_lite.top_k import as_float32
from mural_search.postings import Postings

BLOCK = 512  # rows at a time, which stay in the cache as float32
PART = 2**13  # rows per task of a thread
FEW = 8  # a divisor: up to an eighth of the rows are compared without codes
ROUNDING = 1e-5  # of float32's sums, relative to |q| |x|


class Codes:
    """Codes of vectors, int8 [N, D], with the scale and the error of each row.

    Args:
      vectors: float32 or float16 [N, D]; the pages of a memory-mapped file are given back.
    """

    def __init__(self, vectors: np.ndarray):
        self._codes = np.empty(vectors.shape, np.int8)
        self._scales = np.empty(len(vectors), np.float32)
        self._errors = np.empty(len(vectors), np.float32)
        for begin in range(0, len(vectors), BLOCK):
            rows = slice(begin, begin + BLOCK)
            self._encode(rows, as_float32(vectors[rows]))
            release_pages(vectors)

    @np.errstate(all="ignore")  # vectors may hold infinities and NaN: their rows are compared as they are
    def _encode(self, rows: slice, block: np.ndarray) -> None:
        """Sets the codes, scales and errors of rows, whose vectors are `block`, float32 [B, D]."""
        scales = np.abs(block).max(axis=1, keepdims=True) / 127
        scales[~np.isfinite(scales)] = 0.0  # such a row is always compared as it is: its error is infinite
        codes = np.where(scales > 0, np.rint(block / scales), 0.0)
        error_lengths = np.linalg.norm(block - codes * scales, axis=1)
        errors = error_lengths + ROUNDING * np.linalg.norm(block, axis=1)
        self._codes[rows] = codes
        self._scales[rows] = scales[:, 0]
        self._errors[rows] = np.where(np.isfinite(errors), errors, np.inf)

    def bounds(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (lower, upper) bounds, float32 [N], of all rows' products with a vector, float32 [D]."""
        begins = range(0, len(self._codes), PART)
        parts = threads().map(functools.partial(self._products, vector), begins)
        products = np.concatenate(list(parts)) * self._scales
        margins = np.linalg.norm(vector) * self._errors
        return products - margins, products + margins

    def _products(self, vector: np.ndarray, begin: int) -> np.ndarray:
        """Returns the products of a vector, float32 [D], with the codes of `PART` rows from `begin` on, float32 [P]."""
        codes = self._codes[begin : begin + PART]
        products = np.empty(len(codes), np.float32)
        buffer = np.empty((min(BLOCK, len(codes)), len(vector)), np.float32)  # stays in the cache
        for first in range(0, len(codes), BLOCK):
            rows = slice(first, first + BLOCK)
            block = buffer[: len(codes[rows])]
            np.copyto(block, codes[rows])
            np.dot(block, vector, out=products[rows])
        return products

    def candidates(self, vector: np.ndarray, k: int, among: np.ndarray | None = None) -> np.ndarray | None:
        """Returns rows, int64 [K] rising, that include the `k` rows with the largest products with a vector.

        Args:
          vector: float32 [D].
          among: int64 [M] rising, the rows that may be found; None for all. It is returned as it is, also None, where
            `k` rows may be found at most, or where comparing so few rows takes no longer than excluding some.
        """
        if among is not None and len(among) <= max(k, len(self._codes) // FEW):
            return among
        lower, upper = self.bounds(vector)
        if among is not None:
            lower = lower[among]
            upper = upper[among]
        if k >= len(lower):
            return among
        kth_lower = np.partition(lower, -k)[-k]
        candidates = np.flatnonzero(upper >= kth_lower)
        if among is None:
            return candidates
        return among[candidates]

    def candidates_of_items(
        self, vector: np.ndarray, count: int, items: np.ndarray, shifts: np.ndarray, excluded: np.ndarray
    ) -> np.ndarray:
        """Returns rows, int64 [K] rising, that include the best row of each of the `count` best items.

        Args:
          vector: float32 [D].
          items: int64 [N] rising, each row's item.
          shifts: float32 [N], the number that is subtracted from each row's product.
          excluded: bool [N], the rows that do not count.
        """
        lower, upper = self.bounds(vector)
        lower -= shifts
        upper -= shifts
        lower[excluded] = -np.inf
        firsts = np.flatnonzero(np.diff(items, prepend=-1))  # rows of one item are adjacent
        lower_of_items = np.maximum.reduceat(lower, firsts)
        least = -np.inf
        if count < len(lower_of_items):
            least = np.partition(lower_of_items, -count)[-count]
        return np.flatnonzero((upper >= least) & ~excluded)

    def meanwhile(self, function: Callable[[], typing.Any]) -> Callable[[], typing.Any]:
        """Starts a function in another thread; returns a function that waits for its result and returns it."""
        return threads().submit(function).result


@functools.cache
def threads() -> concurrent.futures.ThreadPoolExecutor:
    """Returns the threads, four at most, in which parts of this process's questions are computed."""
    return concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1), "question")


def quicken(index) -> None:
    """Sets codes and postings of an `Index`, so that it answers many questions fast; damaged words get no postings."""
    with contextlib.suppress(UserError, TypeError, ValueError, OverflowError):  # damage is reported to questions
        index.table.postings = Postings(index.table.each, index.table.ids, index.table.schema)
    if index.captions is not None:
        index.captions.codes = Codes(index.captions.vectors)
    index.codes = Codes(index.embeddings)
