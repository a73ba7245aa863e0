"""How much of the exact result approximate search finds, measured for every kind of query separately.

An index that finds nearly all neighbours of an image's vector may miss those of a sentence's: sentences lie elsewhere
in the space than the images that the structure was built on, and sentences of one language elsewhere than another's.
So recall is measured per modality and language, and the effort is chosen for the worst of them.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mural_tf.search import approximate as approximate_search
from mural_tf.search.approximate import ApproximateIndex, forget
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES
from mural_tf.search.queries import Query

K = 10
TARGET = 0.95
TOGETHER = 20  # queries that are measured together: the system maps 100 kB and more around each of their candidates
ENOUGH = 20  # groups of at least as many queries take part in the choice of the effort


@dataclasses.dataclass(frozen=True)
class Group:
    """Queries of one modality and language: vectors [Q, D]; `own`: int64 [Q], their own rows, which do not count."""

    vectors: np.ndarray
    own: np.ndarray | None = None


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
      JSON values: k, target, reached, groups -> {queries, recall}, the efforts tried with each group's recall, and
      milliseconds a query of the exact search (all of a group at once) and the approximate one (20 at once).
    """
    truth, exact_time = {}, 0.0
    for name, group in groups.items():
        start = time.perf_counter()
        scores, rows = approximate_search.exact(group.vectors, embeddings, _wanted(group))
        exact_time += time.perf_counter() - start
        truth[name] = _without_own(scores, rows, group.own)
    choosing = [name for name, group in groups.items() if len(group.vectors) >= ENOUGH] or list(groups)
    tried, measured = [], {}
    for effort in approximate.parameters.efforts:
        approximate.effort = effort
        start = time.perf_counter()
        measured = {name: _measure(approximate, embeddings, group, truth[name]) for name, group in groups.items()}
        seconds = time.perf_counter() - start
        worst = min(choosing, key=measured.get)
        recalls = {name: round(value, 4) for name, value in measured.items()}
        tried.append({"effort": effort, "worst": worst, "recall": recalls})
        if measured[worst] >= target:
            break
    queries = sum(len(group.vectors) for group in groups.values())
    return {
        "k": K,
        "target": target,
        "reached": measured[worst] >= target,
        "groups": {name: {"queries": len(group.vectors), "recall": recalls[name]} for name, group in groups.items()},
        "tried": tried,
        "milliseconds_per_query": {
            "exact": round(1e3 * exact_time / queries, 3),
            "approximate": round(1e3 * seconds / queries, 3),
        },
    }


def _measure(approximate: ApproximateIndex, embeddings: np.ndarray, group: Group, truth: np.ndarray) -> float:
    found = []
    for begin in range(0, len(group.vectors), TOGETHER):
        found.append(approximate.search(group.vectors[begin : begin + TOGETHER], _wanted(group), embeddings))
        forget(embeddings)
    scores, rows = map(np.concatenate, zip(*found))
    return recall(_without_own(scores, rows, group.own), truth)


def _wanted(group: Group) -> int:
    return K if group.own is None else K + 1


def _without_own(scores: np.ndarray, rows: np.ndarray, own: np.ndarray | None) -> np.ndarray:
    """Drops the query itself from its results, or the last result if it is not among them: [Q, K + 1] -> [Q, K]."""
    if own is None:
        return scores
    is_own = rows == own[:, None]
    is_own[~is_own.any(axis=1), -1] = True
    return scores[~is_own].reshape(len(scores), -1)


def to_lines(report: Mapping, approximate: ApproximateIndex) -> list[str]:
    """Returns the report as lines to print, the worst groups first."""
    parameters = approximate.parameters
    times = report["milliseconds_per_query"]
    lines = [
        f"Approximate: {parameters.method} of size {parameters.size}, effort {approximate.effort}; "
        f"{times['approximate']:.2f} ms a query, exact {times['exact']:.2f} ms.",
        f"Recall@{report['k']} against exact search (at least {report['target']} "
        + ("in every group):" if report["reached"] else "was not reached at the largest effort):"),
    ]
    for name, group in sorted(report["groups"].items(), key=lambda entry: entry[1]["recall"]):
        few = "  (too few to choose by)" if group["queries"] < ENOUGH else ""
        lines.append(f"  {name:20} {group['recall']:.3f}  of {group['queries']} queries{few}")
    return lines


PER_GROUP = 100  # queries: 1,000 neighbours to find


def collect_queries(
    index: Index, embedder, queries: Sequence[Query] = (), per_group: int = PER_GROUP
) -> dict[str, Group]:
    """Returns "image" and "text/<language>" ("text" where none is known) -> their queries.

    In an index of images the images ask for their neighbours, and captions from the records and `queries` for images;
    in one of texts, texts ask for their neighbours, and the images they describe for texts.
    """
    rows: dict[str, list[int]] = collections.defaultdict(list)
    texts: dict[str, list[str]] = collections.defaultdict(list)
    if index.kind == IMAGES:
        rows["image"] = _sample(range(len(index)), per_group)
        texts = _sample_texts((caption for item in index.table for caption in item.captions), per_group)
    else:
        by_language = collections.defaultdict(list)
        for row, item in enumerate(index.table):
            by_language[_name(item.language)].append(row)
        rows = {name: _sample(own, per_group) for name, own in by_language.items()}
    for query in queries:
        texts[_name(query.language)].append(query.text)
    groups = {name: Group(np.asarray(index.embeddings[own], np.float32), np.array(own)) for name, own in rows.items()}
    for name, sentences in sorted(texts.items()):
        groups[f"{name} (given)" if name in groups else name] = Group(embedder.encode_text(sentences))
    if index.kind != IMAGES:
        images = _described_images(index, per_group)
        if images:
            groups["image"] = Group(embedder.encode_image(images, on_error="skip")[0])
    return {name: group for name, group in groups.items() if len(group.vectors)}


def _name(language: str) -> str:
    return f"text/{language}" if language else "text"


def _sample(rows: Sequence[int], count: int) -> list[int]:
    """Returns up to `count` of the rows, spread evenly."""
    if len(rows) <= count:
        return list(rows)
    return [rows[i * len(rows) // count] for i in range(count)]


def _sample_texts(captions: Iterable[tuple[str, str]], count: int) -> dict[str, list[str]]:
    """Returns up to `count` texts per language: those with the smallest checksums, whatever their order."""
    smallest: dict[str, list[tuple[int, str]]] = collections.defaultdict(list)
    for language, text in captions:
        heap, entry = smallest[_name(language)], (-zlib.crc32(text.encode("utf-8", "replace")), text)
        if entry not in heap:
            if len(heap) < count:
                heapq.heappush(heap, entry)
            elif entry > heap[0]:
                heapq.heapreplace(heap, entry)
    chosen = {name: sorted(text for _, text in heap) for name, heap in smallest.items()}
    return collections.defaultdict(list, chosen)


def _described_images(index: Index, count: int) -> list[bytes]:
    """Returns the distinct images that a sample of the texts describes, as far as they can be read."""
    places, images = set(), []
    for row in _sample(range(len(index)), 4 * count):
        item = index.describe(row)
        if item.has_image and (item.path, item.offset) not in places and len(images) < count:
            places.add((item.path, item.offset))
            try:
                images.append(index.read_image(row))
            except (OSError, ValueError):
                continue
    return images
