"""Approximate search with faiss: a few candidates are found by compressed vectors, then scored exactly.

Inverted lists over 8-bit codes of the vectors (a quarter of float32): k-means cells, of which each query visits the
closest `effort` (faiss's `nprobe`). The candidates, four times as many as asked for, are scored again with the stored
vectors: scores are exact, and only the candidates approximate.

What recall an `effort` gives is measured for every kind of query separately. An index that finds nearly all neighbours
of an image's vector may miss those of a sentence's: sentences lie elsewhere in the space than the images that the
structure was built on, and sentences of one language elsewhere than another's. So the effort is chosen for the worst.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mural_tf.errors import UserError, install_extra
from mural_tf.files import forget, whole, write_whole
from mural_tf.metrics import top_k
from mural_tf.progress import tqdm
from mural_tf.search.items import IMAGES, read_image

FILE, REPORT = "approximate.faiss", "recall.json"
LISTS = "inverted_lists"
# Items up to which an exact search takes about ten milliseconds. There "auto" builds nothing: a structure would save
# some of them, and be built again with every update.
SMALL = 50_000
SMALLEST_LIST = 39  # vectors in a cell on average, the fewest that faiss's k-means takes without a warning
TRAINING_PER_LIST = 64  # vectors that k-means sees per cell; faiss advises up to 256
OVERSAMPLING = 4  # candidates scored again per result
BLOCK = 65_536  # vectors added at a time
SAMPLED = 1024  # vectors of the sample read at a time: the system maps 64 kB around each


def choose(count: int, method: str = "auto") -> int | None:
    """Returns how many cells suit an index of `count` vectors, None where exact search is best.

    They are the power of two nearest to 4 sqrt(count), as in faiss's guidelines, fewer for small indexes.

    `method`: "none", "auto" or `LISTS`.
    """
    if method == "none" or count < 2 or (method == "auto" and count <= SMALL):
        return None
    most = math.floor(math.log2(max(1, count / SMALLEST_LIST)))
    return 2 ** min(most, round(math.log2(4 * math.sqrt(count))))


def efforts(cells: int) -> list[int]:
    """Returns the values of `effort` to try, rising to all cells: powers of two, and the middle between them."""
    doubled = [1 << i for i in range(cells.bit_length())]
    return sorted({*doubled, *(effort * 3 // 2 for effort in doubled[:-1])})


@dataclasses.dataclass
class ApproximateIndex:
    """A faiss index and how hard to look in it.

    Attributes:
      index: of faiss.
      cells: how many it has.
      effort: cells visited.
    """

    index: Any
    cells: int
    effort: int

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
        parameters = self._search_parameters(len(embeddings), among)
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

    def _search_parameters(self, count: int, among: np.ndarray | None):
        faiss = import_faiss()
        effort, only = self.effort, {}
        if among is not None:
            share = len(among) / count
            effort = math.ceil(effort / share * (1 + 6 * (1 - share)))  # measured: docs/search.md
            wanted = np.zeros(count, bool)
            wanted[among] = True
            only["sel"] = faiss.IDSelectorBitmap(np.packbits(wanted, bitorder="little"))
        return faiss.SearchParametersIVF(nprobe=min(effort, self.cells), **only)


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


def build(embeddings: np.ndarray, cells: int, progress: bool = False) -> ApproximateIndex:
    """Builds over L2-normalised embeddings [N, D]; deterministic sample.

    Memory, beyond the structure itself: the sample, and one block of embeddings that are memory-mapped.
    """
    faiss = import_faiss()
    count, size = embeddings.shape
    index = faiss.index_factory(size, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 10
    chosen = np.sort(np.random.default_rng(0).permutation(count)[: TRAINING_PER_LIST * cells])
    sample = np.empty((len(chosen), size), np.float32)
    for begin in range(0, len(chosen), SAMPLED):
        rows = chosen[begin : begin + SAMPLED]
        sample[begin : begin + len(rows)] = embeddings[rows]
        forget(embeddings)
    index.train(sample)
    del sample, chosen
    for begin in tqdm(range(0, count, BLOCK), "Building inverted lists", disable=not progress):
        index.add(np.asarray(embeddings[begin : begin + BLOCK], np.float32))
        forget(embeddings)
    return ApproximateIndex(index, cells, cells)


def save(folder: str | os.PathLike, approximate: ApproximateIndex, report: dict) -> None:
    """Writes the faiss file and the report of its recall, which also holds what `load` needs."""
    folder = pathlib.Path(folder)
    with whole(folder / FILE) as partial:
        import_faiss().write_index(approximate.index, str(partial))
    values = {"lists": approximate.cells, "effort": approximate.effort, **report}
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
        cells, effort = int(values["lists"]), int(values["effort"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(
            f"The approximate index in {folder} is damaged ({reason}); delete {FILE} and {REPORT} and index again."
        ) from None
    if index.ntotal != count:
        raise UserError(f"{folder / FILE} holds {index.ntotal} vectors, the index {count}; index again.")
    return ApproximateIndex(index, cells, effort)


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


# Recall.

K = 10
TARGET = 0.95
ENOUGH = 20  # groups of at least as many queries take part in the choice of the effort


@dataclasses.dataclass(frozen=True)
class Group:
    """Queries of one modality and language: vectors [Q, D]; `own`: int64 [Q], their own rows, which do not count."""

    vectors: np.ndarray
    own: np.ndarray | None = None

    @property
    def wanted(self) -> int:
        """How many results are asked for."""
        return K if self.own is None else K + 1

    def others(self, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Drops a query itself from its results, or the last result if it is not among them: scores [Q, K]."""
        if self.own is None:
            return scores
        is_own = rows == self.own[:, None]
        is_own[~is_own.any(axis=1), -1] = True
        return scores[~is_own].reshape(len(scores), -1)


def recall(scores: np.ndarray, exact_scores: np.ndarray) -> float:
    """Returns the mean share of the exact results that were found, 0..1.

    A result counts if it scores at least what the last exact one does, so that one tied row is as good as another.

    Args:
      scores: exact dot products of what was found, [Q, K].
      exact_scores: those of the exact results, [Q, K], falling.
    """
    rounding = 1e-6  # the same product, taken in another order
    return float(np.mean(scores >= exact_scores[:, -1:] - rounding))


def choose_effort(
    approximate: ApproximateIndex, embeddings: np.ndarray, groups: Mapping[str, Group], target: float = TARGET
) -> dict[str, object]:
    """Sets the smallest effort whose recall@10 reaches `target` in every group, and returns a report.

    Args:
      approximate: its `effort` is changed.
      embeddings: [N, D], what it was built on.
      groups: name ("image", "text/sw") -> queries; groups of fewer than 20 are reported, but do not choose.
      target: 0..1.

    Returns:
      JSON values: k, target, reached, groups -> {queries, recall}, and the efforts tried with each group's recall.
    """
    truth = {name: group.others(*exact(group.vectors, embeddings, group.wanted)) for name, group in groups.items()}
    choosing = [name for name, group in groups.items() if len(group.vectors) >= ENOUGH] or list(groups)
    tried, measured = [], {}
    for effort in efforts(approximate.cells):
        approximate.effort = effort
        measured = {}
        for name, group in groups.items():
            found = group.others(*approximate.search(group.vectors, group.wanted, embeddings))
            measured[name] = recall(found, truth[name])
            forget(embeddings)
        worst = min(choosing, key=measured.get)
        recalls = {name: round(value, 4) for name, value in measured.items()}
        tried.append({"effort": effort, "worst": worst, "recall": recalls})
        if measured[worst] >= target:
            break
    return {
        "k": K,
        "target": target,
        "reached": measured[worst] >= target,
        "groups": {name: {"queries": len(group.vectors), "recall": recalls[name]} for name, group in groups.items()},
        "tried": tried,
    }


def to_lines(report: Mapping, approximate: ApproximateIndex) -> list[str]:
    """Returns the report as lines to print, the worst groups first."""
    lines = [
        f"Approximate: {approximate.effort} of {approximate.cells} inverted lists are visited.",
        f"Recall@{report['k']} against exact search (at least {report['target']} "
        + ("in every group):" if report["reached"] else "was not reached at the largest effort):"),
    ]
    for name, group in sorted(report["groups"].items(), key=lambda entry: entry[1]["recall"]):
        few = "  (too few to choose by)" if group["queries"] < ENOUGH else ""
        lines.append(f"  {name:20} {group['recall']:.3f}  of {group['queries']} queries{few}")
    return lines


PER_GROUP = 100  # queries: 1,000 neighbours to find


def collect_queries(index, embedder, queries: Sequence = (), per_group: int = PER_GROUP) -> dict[str, Group]:
    """Returns "image" and "text/<language>" ("text" where none is known) -> their queries.

    In an index of images the images ask for their neighbours, and captions from the records and `queries` for images;
    in one of texts, texts ask for their neighbours, and the images they describe for texts.
    """
    rows, texts = {}, {}
    if index.kind == IMAGES:
        rows["image"] = _sample(np.arange(len(index)), per_group)
        texts = {_name(language): found for language, found in index.table.captions(per_group).items()}
    else:
        rows = {_name(language): _sample(own, per_group) for language, own in index.table.rows_by_language().items()}
    for query in queries:
        texts.setdefault(_name(query.language), []).append(query.text)
    groups = {name: Group(np.asarray(index.embeddings[own], np.float32), own) for name, own in rows.items()}
    for name, sentences in sorted(texts.items()):
        groups[f"{name} (given)" if name in groups else name] = Group(embedder.encode_text(sentences))
    if index.kind != IMAGES:
        images = _described_images(index, per_group)
        if images:
            groups["image"] = Group(embedder.encode_image(images, on_error="skip")[0])
    return {name: group for name, group in groups.items() if len(group.vectors)}


def _name(language: str) -> str:
    return f"text/{language}" if language else "text"


def _sample(rows: np.ndarray, count: int) -> np.ndarray:
    """Returns up to `count` of the rows, spread evenly."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), count), dtype=np.int64)]


def _described_images(index, count: int) -> list[bytes]:
    """Returns the distinct images that a sample of the texts describes, as far as they can be read."""
    items = [index.describe(row) for row in _sample(np.arange(len(index)), 4 * count)]
    distinct = {(item.path, item.offset): item for item in items if item.has_image}
    images = []
    for item in itertools.islice(distinct.values(), count):
        with contextlib.suppress(OSError, ValueError):
            images.append(read_image(item))
    return images
