"""Approximate search with faiss: a few candidates are found by compressed vectors, then scored exactly.

Two structures, both over 8-bit codes of the vectors (a quarter of float32):

- inverted lists: k-means cells, of which each query visits the closest `effort` (faiss's `nprobe`);
- hnsw (Malkov and Yashunin, 2018): a graph of neighbours, walked with a queue of length `effort` (`efSearch`).

The candidates, four times as many as asked for, are scored again with the stored vectors: scores are exact, and only
the candidates approximate. What recall an `effort` gives is measured in `mural_tf.search.recall`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import mmap
import os
import pathlib

import numpy as np

from mural_tf.errors import UserError, install_extra
from mural_tf.files import whole, write_whole
from mural_tf.metrics import top_k

FILE, REPORT = "approximate.faiss", "recall.json"
LISTS, HNSW = "inverted_lists", "hnsw"
METHODS = ("none", "auto", LISTS, HNSW)
SMALL = 20_000  # items up to which an exact search takes milliseconds and "auto" builds nothing
LARGE = 500_000  # with more items "auto" takes inverted lists: a graph takes longer to build
SMALLEST_LIST = 39  # vectors in a cell on average, the fewest that faiss's k-means takes without a warning
TRAINING_PER_LIST = 64  # vectors that k-means sees per cell; faiss advises up to 256
OVERSAMPLING = 4  # candidates scored again per result
BLOCK = 65_536  # vectors added at a time
SAMPLED = 1024  # vectors of the sample read at a time: the system maps 64 kB around each


@dataclasses.dataclass(frozen=True)
class Parameters:
    """`size`: cells of inverted lists, or links per node of a graph. `construction`: the graph's queue while built."""

    method: str
    size: int
    construction: int = 0

    @property
    def efforts(self) -> list[int]:
        """The values of `effort` to try, rising: powers of two times the first one, and the middle between them.

        Those of inverted lists end with all cells; those of a graph begin with the candidates of ten results, because a
        queue cannot be shorter than the result.
        """
        first, last = (1, self.size) if self.method == LISTS else (10 * OVERSAMPLING, 5120)
        doubled = [first << i for i in range(int(math.log2(last / first)) + 1)]
        return sorted({*doubled, *(effort * 3 // 2 for effort in doubled[:-1])})


def choose(count: int, method: str = "auto") -> Parameters | None:
    """Returns parameters for an index of `count` vectors, None where exact search is best.

    Cells are the power of two nearest to 4 sqrt(count), as in faiss's guidelines, fewer for small indexes; a
    graph has 32 links per node.
    Raises `UserError` for an unknown method, or fewer vectors than inverted lists can be learnt from.
    """
    if method not in METHODS:
        raise UserError(f"Unknown approximate method {method!r}; known: {', '.join(METHODS)}.")
    if method == "none" or count < 2 or (method == "auto" and count <= SMALL):
        return None
    if method == HNSW or (method == "auto" and count < LARGE):
        return Parameters(HNSW, 32, 100)
    if count < 1000:
        raise UserError(f"{count} items are too few for inverted lists (1,000): search them exactly.")
    most = math.floor(math.log2(count / SMALLEST_LIST))
    return Parameters(LISTS, 2 ** min(most, round(math.log2(4 * math.sqrt(count)))))


class ApproximateIndex:
    """A faiss index and how hard to look in it.

    Attributes:
      parameters: how it was built.
      effort: cells visited, or length of the queue.
    """

    def __init__(self, index, parameters: Parameters, effort: int):
        self.index, self.parameters, self.effort = index, parameters, effort

    def search(
        self, vectors: np.ndarray, k: int, embeddings: np.ndarray, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores and rows as `top_k.top_k` does; a query that finds less than k is searched exactly.

        `among`: int64 [M] rising, the rows to find, None for all. Where they are few, or half of all at most, they are
        searched exactly: they may lie far from where the others are close. Of more, the effort grows as their share
        falls.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != embeddings.shape[1]:
            raise ValueError(f"Expected vectors [Q, {embeddings.shape[1]}]; got {vectors.shape}.")
        if k < 1 or not np.isfinite(vectors).all():
            raise ValueError(f"k must be at least 1 and the vectors finite; k is {k}.")
        count = len(embeddings) if among is None else len(among)
        if among is not None and count <= max(SMALL, len(embeddings) // 2):
            return exact(vectors, embeddings, k, among)
        k = min(k, count)
        candidates = min(OVERSAMPLING * k, count)
        parameters = self._search_parameters(candidates, len(embeddings), among)
        _, rows = self.index.search(vectors, candidates, params=parameters)  # [Q, C]
        scores = np.empty(rows.shape, np.float32)
        for query, found in enumerate(rows):
            scores[query] = embeddings[found].astype(np.float32) @ vectors[query]
        scores[rows < 0] = -np.inf
        order = np.lexsort((rows, -scores))[:, :k]
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        lacking = np.flatnonzero(rows.min(axis=1, initial=0) < 0)
        if len(lacking):
            scores[lacking], rows[lacking] = exact(vectors[lacking], embeddings, k, among)
        return scores, rows

    def _search_parameters(self, candidates: int, count: int, among: np.ndarray | None):
        faiss = import_faiss()
        effort, only = self.effort, {}
        if among is not None:
            share = len(among) / count
            effort = math.ceil(effort / share * (1 + 6 * (1 - share)))  # measured: docs/search.md
            wanted = np.zeros(count, bool)
            wanted[among] = True
            only["sel"] = faiss.IDSelectorBitmap(np.packbits(wanted, bitorder="little"))
        if self.parameters.method == LISTS:
            return faiss.SearchParametersIVF(nprobe=min(effort, self.parameters.size), **only)
        return faiss.SearchParametersHNSW(efSearch=max(effort, candidates), **only)


def exact(
    vectors: np.ndarray, embeddings: np.ndarray, k: int, among: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `top_k.top_k` does, with one block of memory-mapped embeddings in memory at a time.

    `among`: int64 [M] rising, the rows to find; None for all.
    """
    found = [(np.zeros((len(vectors), 0), np.float32), np.zeros((len(vectors), 0), np.int64))]
    for begin in range(0, len(embeddings), BLOCK):
        block = embeddings[begin : begin + BLOCK]
        rows = np.arange(begin, begin + len(block))
        if among is not None:
            rows = among[slice(*np.searchsorted(among, [begin, begin + BLOCK]))]
            block = block if len(rows) == len(block) else block[rows - begin]
        if len(rows):
            scores, places = top_k.top_k(vectors, block, k)
            found.append((scores, rows[places]))
        forget(embeddings)
    scores, rows = (np.concatenate(part, axis=1) for part in zip(*found))
    order = np.lexsort((rows, -scores))[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def forget(array: np.ndarray) -> None:
    """Gives the pages of a memory-mapped array back to the system, which reads them again where they are needed."""
    mapped = getattr(array, "base", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


def build(embeddings: np.ndarray, parameters: Parameters, tell=lambda count: None) -> ApproximateIndex:
    """Builds over L2-normalised embeddings [N, D]; deterministic sample.

    Memory, beyond the structure itself: the sample, and one block of embeddings that are memory-mapped.

    `tell(count)` hears of vectors added.
    """
    faiss = import_faiss()
    count, size = embeddings.shape
    metric = faiss.METRIC_INNER_PRODUCT
    if parameters.method == LISTS:
        index = faiss.index_factory(size, f"IVF{parameters.size},SQ8", metric)
        index.cp.niter = 10
        wanted = TRAINING_PER_LIST * parameters.size
    else:
        index = faiss.index_factory(size, f"HNSW{parameters.size}_SQ8", metric)
        index.hnsw.efConstruction = parameters.construction
        wanted = BLOCK
    chosen = np.sort(np.random.default_rng(0).permutation(count)[:wanted])
    sample = np.empty((len(chosen), size), np.float32)
    for begin in range(0, len(chosen), SAMPLED):
        rows = chosen[begin : begin + SAMPLED]
        sample[begin : begin + len(rows)] = embeddings[rows]
        forget(embeddings)
    index.train(sample)
    del sample, chosen
    for begin in range(0, count, BLOCK):
        block = np.asarray(embeddings[begin : begin + BLOCK], np.float32)
        index.add(block)
        forget(embeddings)
        tell(len(block))
    return ApproximateIndex(index, parameters, parameters.efforts[-1])


def save(folder: str | os.PathLike, approximate: ApproximateIndex, report: dict) -> None:
    """Writes the faiss file and the report of its recall, which also holds what `load` needs."""
    folder = pathlib.Path(folder)
    with whole(folder / FILE) as partial:
        import_faiss().write_index(approximate.index, str(partial))
    values = {**dataclasses.asdict(approximate.parameters), "effort": approximate.effort, **report}
    write_whole(folder / REPORT, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def load(folder: str | os.PathLike, count: int) -> ApproximateIndex | None:
    """Returns what `save` wrote, None if there is none. Raises `UserError` if it is damaged."""
    folder = pathlib.Path(folder)
    if not (folder / REPORT).exists():
        return None
    faiss = import_faiss()
    try:
        values = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        index = faiss.read_index(str(folder / FILE))
        parameters = Parameters(values["method"], int(values["size"]), int(values["construction"]))
        effort = int(values["effort"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(
            f"The approximate index in {folder} is damaged ({reason}); delete {FILE} and {REPORT} and index again."
        ) from None
    if index.ntotal != count:
        raise UserError(f"{folder / FILE} holds {index.ntotal} vectors, the index {count}; index again.")
    return ApproximateIndex(index, parameters, effort)


def has_faiss() -> bool:
    """Tells whether faiss can be imported."""
    try:
        import_faiss()
    except UserError:
        return False
    return True


def import_faiss():
    """Imports faiss, or raises `UserError` that says how to install it."""
    logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it logs which of its libraries it looks for
    try:
        import faiss
    except ImportError:
        raise UserError(
            f"Approximate search needs faiss, which is not installed: {install_extra('search')}. To search exactly "
            "give --approximate=none to `index`, --exact to `query`."
        ) from None
    return faiss
