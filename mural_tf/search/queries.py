"""What is asked, sentences in any language or images, and what is found: in lines, as JSON, and as a page of HTML.

On the page every text from outside is escaped and has its own direction, and its language where that is known, so that
browsers order right-to-left scripts and choose the right Han glyphs.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mural_tf import pages
from mural_tf.data.pictures import read_file, thumbnail_url
from mural_tf.errors import UserError
from mural_tf.files import as_path, write_whole
from mural_tf.search import confidence
from mural_tf.search.confidence import Sureness
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES, Filter, Item
from mural_tf.text_files import read_lines, visible

if TYPE_CHECKING:
    from mural_tf.embedder import Embedder


@dataclasses.dataclass(frozen=True)
class Query:
    """A sentence (`text`, in `language` if it is known, BCP 47) or an image file; `right`: names of right answers."""

    text: str = ""
    language: str = ""
    image: str = ""
    right: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to show: the sentence, or the image's path."""
        return self.text or self.image


def read_queries(path: str | os.PathLike) -> list[Query]:
    """Reads a table: a sentence a line, or language[TAB]sentence, and after that any number of right answers' names.

    Raises `UserError` for a missing file, a line without a sentence, or no line.
    """
    if not as_path(path).is_file():
        raise UserError(f"The queries {path} are not there: expected a file of language[TAB]text.")
    queries = []
    for number, line in read_lines(path):
        if line.strip():
            language, text, *right = line.split("\t") if "\t" in line else ("", line)
            if not text.strip():
                raise UserError(f"{path}, line {number}: no sentence; expected language[TAB]text.")
            queries.append(Query(text, language.strip(), right=tuple(name for name in right if name)))
    if not queries:
        raise UserError(f"{path} holds no queries: expected language[TAB]text on every line.")
    return queries


def check_queries(queries: Sequence[Query], top: int) -> None:
    """Raises `UserError` for no query, an empty one, a missing image or `top` below 1."""
    if not queries:
        raise UserError("Nothing asked: give a sentence in any language, --image=FILE or --queries=FILE.")
    for query in queries:
        if query.image and not as_path(query.image).is_file():
            raise UserError(f"The image {query.image} does not exist.")
        if not query.name.strip():
            raise UserError("The query is empty: give a sentence in any language.")
    if top < 1:
        raise UserError(f"top must be at least 1, got {top}.")


def check_filters(index: Index, filters: Sequence[Filter]) -> None:
    """Raises `UserError` for filters that no item passes, and says what there is."""
    if not filters or len(index.rows(filters)):
        return
    known = index.table.common_values()
    if any(name not in known for name, _ in filters):
        there_is = f"fields are {', '.join(known)}" if known else "no item has fields"
    else:
        there_is = "; ".join(f"{name} is {', '.join(known[name]) or 'of many values'}" for name, _ in filters)
    raise UserError(f"No item of the index has {', '.join(map(str, filters))}: {there_is}.")


def encode_queries(embedder: Embedder, queries: Sequence[Query]) -> np.ndarray:
    """Returns float32 [Q, D] of sentences and images mixed. Raises `UserError` for an unreadable image."""
    texts = [i for i, query in enumerate(queries) if not query.image]
    images = [i for i, query in enumerate(queries) if query.image]
    blocks = []
    if texts:
        blocks.append(embedder.encode_text([queries[i].text for i in texts]))
    if images:
        blocks.append(embedder.encode_image([as_path(queries[i].image) for i in images]))
    vectors = np.concatenate(blocks)
    return vectors[np.argsort(texts + images)]


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
    """A query and its hits, best first.

    `sure`: how sure the first hit is; None for an image, and where the index does not know. `left_out`: it was not sure
    enough, and no hit is shown.
    """

    query: Query
    hits: tuple[Hit, ...]
    sure: Sureness | None = None
    left_out: bool = False

    @property
    def first_right(self) -> int | None:
        """Rank of the first right answer among the hits."""
        return next((hit.rank for hit in self.hits if hit.right), None)


def search(
    index: Index, embedder: Embedder, queries: Sequence[Query], top: int = 10, filters: Sequence[Filter] = ()
) -> list[Result]:
    """Returns the `top` items closest to each query; `embedder` must be the model that made the index.

    Raises `UserError` for queries that cannot be asked.
    """
    check_queries(queries, top)
    return find(index, encode_queries(embedder, queries), queries, top, filters)


def find(
    index: Index, vectors: np.ndarray, queries: Sequence[Query], top: int = 10, filters: Sequence[Filter] = ()
) -> list[Result]:
    """Returns the `top` items closest to the vectors [Q, D] of queries, of those that pass the filters."""
    judged = index.confidence is not None and not filters  # it was learnt from answers from the whole index
    more = PICTURES_OF_PRODUCT if index.product else 1
    scores, rows = index.search(vectors, max(more * top, confidence.NEIGHBOURS if judged else 0), filters=filters)
    texts = [number for number, query in enumerate(queries) if judged and not query.image]
    sure: dict[int, Sureness] = {}
    if texts:
        sentences = [queries[number].text for number in texts]
        answers = confidence.describe(index, sentences, vectors[texts], scores[texts], rows[texts])
        sure = dict(zip(texts, index.confidence.judge(answers)))
    results = []
    for number, query in enumerate(queries):
        found = one_of_each_product(index, zip(scores[number].tolist(), rows[number].tolist()))
        hits = []
        for rank, (score, row) in enumerate(itertools.islice(found, top), start=1):
            name = index.items[row]
            hits.append(Hit(rank, score, name, row, name in query.right))
        results.append(Result(query, tuple(hits), sure.get(number)))
    return results


PICTURES_OF_PRODUCT = 8  # that are looked through for each hit


def one_of_each_product(index: Index, found: Iterable[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Yields (score, row) without further pictures of products that came before."""
    met = set()
    for score, row in found:
        product = index.describe(row).fields.get(index.product) if index.product else None
        if product is None or product not in met:
            yield score, row
        met.add(product)


def leave_out(results: Sequence[Result], least_precision: float) -> list[Result]:
    """Takes the hits from sentences whose first answer is less sure than that. Images keep theirs."""
    return [
        dataclasses.replace(result, hits=(), left_out=True)
        if result.sure is not None and not result.sure.reaches(least_precision)
        else result
        for result in results
    ]


def to_lines(index: Index, result: Result) -> list[str]:
    """Returns the lines to print: the query, and rank, score, name, caption and fields of each hit."""
    lines = [f"{result.query.name!r} in {index.count:,} {index.kind}{describe_sure(result)}:"]
    lines += [_line(index, hit, result.query.language) for hit in result.hits]
    if result.query.right and result.first_right is None and not result.left_out:
        lines.append("      none of the right answers")
    return lines


LONGEST_CAPTION = 80  # characters of a line


def _line(index: Index, hit: Hit, language: str) -> str:
    item = index.describe(hit.row)
    _, caption = item.caption(language or "en")
    shown = [f"{hit.rank:4}  {hit.score:+.3f}", hit.name]
    if caption:
        shown.append(caption if len(caption) <= LONGEST_CAPTION else f"{caption[: LONGEST_CAPTION - 1]}…")
    shown += [f"{name}={value}" for name, value in item.fields.items()]
    return "  ".join([*(" ".join(visible(part).split("\n")) for part in shown), *(["(right)"] if hit.right else [])])


def to_json(index: Index, results: Sequence[Result]) -> str:
    """Returns {"model", "kind", "count", "results": [{"query", "hits": [{"rank", "score", "row", "name", …}]}]}."""
    return json.dumps(
        {
            "model": str(index.model),
            "kind": index.kind,
            "count": index.count,
            "results": [
                {"query": _present(dataclasses.asdict(result.query)), **sure_as_json(result),
                 "first_right": result.first_right,
                 "hits": [describe_hit(index, hit) for hit in result.hits]}
                for result in results
            ],
        },
        ensure_ascii=False,
        indent=2,
    )  # fmt: skip


def describe_sure(result: Result) -> str:
    """Returns what is known of the first answer, as the end of a heading; "" if nothing is."""
    if result.sure is None:
        return ""
    share, precision = f"{result.sure.probability:.0%}", f"{result.sure.precision:.0%}"
    if result.left_out:
        return f", none sure enough: the first is right with {share}, answers as sure with {precision}"
    return f", the first right with {share}, answers as sure with {precision}"


def sure_as_json(result: Result) -> dict[str, object]:
    """Returns the probability that the first hit is right, the precision of answers as sure, "left_out": true."""
    if result.sure is None:
        return {}
    shown = {name: round(value, 4) for name, value in dataclasses.asdict(result.sure).items()}
    return {**shown, "left_out": True} if result.left_out else shown


def describe_hit(index: Index, hit: Hit) -> dict[str, object]:
    """Returns a hit as JSON values: rank, score, row, name, and what is known of path, language, captions, fields."""
    item = index.describe(hit.row)
    known = {"path": item.path, "language": item.language, "captions": [list(caption) for caption in item.captions]}
    known["fields"] = item.fields
    if item.offset >= 0:
        known["offset"] = item.offset
    shown = {"rank": hit.rank, "score": round(hit.score, 6), "row": hit.row, "name": hit.name, **_present(known)}
    return {**shown, "right": True} if hit.right else shown


def _present(values: dict) -> dict:
    return {key: value for key, value in values.items() if value not in ("", [], (), {})}


# The page: one HTML file with the pictures in it.

SIDE = 240  # pixels of the longer side of an image
ADDRESS = re.compile(r"https?://[^\s\"'<>`\\]+")


def write_gallery(path: str | os.PathLike, index: Index, results: Sequence[Result], links: Mapping = {}) -> None:
    """Writes the page whole or not at all; images that are gone leave an empty frame with their name."""
    write_whole(path, page_html(index, results, links))


def page_html(index: Index, results: Sequence[Result], links: Mapping[str, str] = {}) -> str:
    """Returns the page of all results, a section a query, with `links` {words: address} at its foot."""
    return pages.render(
        "results.html",
        title=results[0].query.name if len(results) == 1 else f"{len(results)} queries",
        kind=index.kind,
        count=index.count,
        model=index.model.describe(),
        results=[_section(index, result) for result in results],
        links=links,
        is_address=ADDRESS.fullmatch,
    )


def _section(index: Index, result: Result) -> dict[str, object]:
    query, notes = result.query, []
    if query.right:
        place = result.first_right
        notes.append(f"First right answer: rank {place}." if place else "No right answer among these.")
    if result.sure:
        notes.append(f"{describe_sure(result).removeprefix(', ').capitalize()}.")
    asked = thumbnail_url(read_file(query.image), SIDE) if query.image else None
    hits = [_hit(index, hit, query.language or "en") for hit in result.hits]
    return {"query": query, "asked": asked, "notes": notes, "hits": hits}


def _hit(index: Index, hit: Hit, language: str) -> dict[str, object]:
    """What is shown of an item: `words` are an image's caption, or the text that was found."""
    item = index.describe(hit.row)
    shown = {"rank": hit.rank, "score": hit.score, "right": hit.right, "fields": item.fields, "picture": "", "link": ""}
    if index.kind != IMAGES:
        return {**shown, "words": item.name, "language": item.language, "name": ""}
    caption_language, words = item.caption(language)
    try:
        shown["picture"] = thumbnail_url(index.read_image(hit.row), SIDE)
    except (OSError, ValueError):
        pass  # it is gone
    if shown["picture"]:
        shown["link"] = _link(item)
    return {**shown, "words": words, "language": caption_language, "name": item.name}


def _link(item: Item) -> str:
    """The address of an image's file, where it is one of its own on this machine; otherwise ""."""
    path = as_path(item.path)
    is_file = item.offset < 0 and isinstance(path, pathlib.Path) and path.is_absolute()
    return path.as_uri() if is_file else ""
