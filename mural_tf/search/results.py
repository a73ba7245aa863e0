"""What was found, as a ranked list for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from mural_tf.search.index import Index
from mural_tf.search.queries import Query, check_queries, encode_queries


@dataclasses.dataclass(frozen=True)
class Hit:
    """One result: `rank` from 1, `score` the cosine, `name` and `row` of the item, `right` if it is a right answer."""

    rank: int
    score: float
    name: str
    row: int = -1
    right: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """A query and its hits, best first."""

    query: Query
    hits: tuple[Hit, ...]

    @property
    def first_right(self) -> int | None:
        """Rank of the first right answer among the hits."""
        return next((hit.rank for hit in self.hits if hit.right), None)


def search(index: Index, embedder, queries: Sequence[Query], top: int = 10) -> list[Result]:
    """Returns the `top` items closest to each query; `embedder` must be the model that made the index.

    Raises `ConfigurationError` for queries that cannot be asked.
    """
    check_queries(queries, top)
    scores, rows = index.search(encode_queries(embedder, queries), top)
    results = []
    for query, query_scores, query_rows in zip(queries, scores, rows):
        names = [index.items[row] for row in query_rows]
        hits = (
            Hit(rank, float(score), name, int(row), name in query.right)
            for rank, (score, row, name) in enumerate(zip(query_scores, query_rows, names), start=1)
        )
        results.append(Result(query, tuple(hits)))
    return results


def to_lines(result: Result, size: int, what: str) -> list[str]:
    """Returns the lines to print: the query, and rank, score and name of each hit, right answers marked."""
    lines = [f"{result.query.name!r} in {size:,} {what}:"]
    lines += [f"{hit.rank:4}  {hit.score:+.3f}  {hit.name}{'  (right)' if hit.right else ''}" for hit in result.hits]
    if result.query.right and result.first_right is None:
        lines.append("      none of the right answers")
    return lines


def to_json(index: Index, results: Sequence[Result]) -> str:
    """Returns {"model", "kind", "count", "results": [{"query", "hits": [{"rank", "score", "row", "name", …}]}]}."""
    return json.dumps(
        {
            "model": str(index.model),
            "kind": index.kind,
            "count": len(index),
            "results": [
                {"query": _present(dataclasses.asdict(result.query)), "first_right": result.first_right,
                 "hits": [describe_hit(index, hit) for hit in result.hits]}
                for result in results
            ],
        },
        ensure_ascii=False,
        indent=2,
    )  # fmt: skip


def describe_hit(index: Index, hit: Hit) -> dict[str, object]:
    """Returns a hit as JSON values: rank, score, row, name, and what is known of path, record, language, captions."""
    item = index.describe(hit.row)
    known = {"path": item.path, "language": item.language, "captions": [list(caption) for caption in item.captions]}
    if item.offset >= 0:
        known["offset"] = item.offset
    shown = {"rank": hit.rank, "score": round(hit.score, 6), "row": hit.row, "name": hit.name, **_present(known)}
    return {**shown, "right": True} if hit.right else shown


def _present(values: dict) -> dict:
    return {key: value for key, value in values.items() if value not in ("", [], ())}
