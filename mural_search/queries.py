"""Queries, sentences in any language or images, and their results in lines, as JSON, and as a page of HTML.

On the page every text from outside is escaped and has its own direction, and its language where that is known, so that
browsers order right-to-left scripts and choose the right Han glyphs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mural_lite import pages
from mural_lite.errors import UserError
from mural_lite.files import as_path, write_whole
from mural_lite.printable import visible
from mural_search import TEMPLATES, fields, ranking, words
from mural_search.items import IMAGES, Filter, Item
from mural_search.ranking import ALL, DEPTH, PICTURES, TEXTS, WORDS, CannotBeAsked

if TYPE_CHECKING:
    from mural_lite.embedder import Embedder


LONGEST_SENTENCE = 2000  # characters; models read far fewer tokens


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


def check_queries(queries: Sequence[Query], top: int) -> None:
    """Raises `UserError` for no query, an empty or very long one, a missing image or `top` below 1."""
    if not queries:
        raise UserError("Nothing asked: give a sentence in any language, --image=FILE or --queries=FILE.")
    for query in queries:
        if query.image:
            _check_image(query.image)
        if not query.name.strip():
            raise UserError("The query is empty: give a sentence in any language.")
        if len(query.text) > LONGEST_SENTENCE:
            length = len(query.text)
            raise CannotBeAsked(f"The sentence has {length:,} characters; at most {LONGEST_SENTENCE:,} are read.")
        if not query.image and not words.split(query.text)[0].strip():
            raise CannotBeAsked(f"{query.text!r} says only what shall not be found: give a sentence before the -words.")
    if top < 1:
        raise UserError(f"top must be at least 1, got {top}.")


def _check_image(name: str) -> None:
    """Reads the header: a file that is something else shows before a model is loaded."""
    from mural_lite.pictures import MAX_SCAN, BadImage, open_image, read_file  # here, because sentences do without

    if not as_path(name).is_file():
        raise UserError(f"The image {name} does not exist.")
    try:
        open_image(read_file(name), MAX_SCAN)
    except BadImage as error:
        raise UserError(f"The image {name} cannot be used: {error}.") from None


def check_filters(index, filters: Sequence[Filter]) -> None:
    """Raises `UserError` for filters that no item passes, and says what there is."""
    if not filters or len(index.rows(filters)):
        return
    fields = index.facets()
    if any(filter_.name not in fields for filter_ in filters):
        there_is = f"fields are {', '.join(fields)}" if fields else "no item has fields"
    else:
        there_is = "; ".join(f"{filter_.name} is {_known(fields[filter_.name])}" for filter_ in filters)
    raise UserError(f"No item of the index has {', '.join(map(str, filters))}: {there_is}.")


def _known(facet: Mapping) -> str:
    if "least" in facet:
        return f"{facet['least']} to {facet['most']}"
    return ", ".join(facet.get("values", ())) or "of many values"


def encode_queries(embedder: Embedder, queries: Sequence[Query]) -> np.ndarray:
    """Returns float32 [Q, D] of sentences without -words and images. Raises `UserError` for an unreadable image."""
    texts = [i for i, query in enumerate(queries) if not query.image]
    images = [i for i, query in enumerate(queries) if query.image]
    blocks = []
    if texts:
        sentences = [words.split(queries[i].text)[0] for i in texts]
        blocks.append(embedder.encode_text(sentences, **ranking.prompt_of(embedder, ranking.QUESTIONS)))
    if images:
        blocks.append(embedder.encode_image([as_path(queries[i].image) for i in images]))
    vectors = np.concatenate(blocks)
    return vectors[np.argsort(texts + images)]


@dataclasses.dataclass(frozen=True)
class Hit:
    """One result.

    `rank`: from 1. `score`: the cosine of the picture (of an index of texts, the text); ranked by texts the closest
    caption's, by words the share of the question. `name` and `row`: of the item. `right`: it is a right answer.
    `found_by`: what found it, and its rank there, see `Ranked.found_by`; of pictures alone nothing. `alike`: how many
    further pictures look the same and have the same captions.
    """

    rank: int
    score: float
    name: str
    row: int = -1
    right: bool = False
    found_by: dict[str, int] = dataclasses.field(default_factory=dict)
    alike: int = 0


@dataclasses.dataclass(frozen=True)
class Result:
    """A query and its hits, best first.

    `nothing_fits`: the hits are only the closest, see `NoiseLevel`. `total`: ranked hits; `hits` is a page of them.
    """

    query: Query
    hits: tuple[Hit, ...]
    nothing_fits: bool = False
    total: int = 0

    @property
    def first_right(self) -> int | None:
        """Rank of the first right answer among the hits."""
        return next((hit.rank for hit in self.hits if hit.right), None)


def search(
    index,
    embedder: Embedder,
    queries: Sequence[Query],
    top: int = 10,
    filters: Sequence[Filter] = (),
    *,
    rank: str = "",
    offset: int = 0,
    sort: str = "",
) -> list[Result]:
    """Returns the best `top` items for each query; `embedder` must be the model that made the index.

    Args:
      rank: one of `ranking.RANKS`, "all" by default. For "words" the model is not asked. Images are compared with
        pictures.
      filters: see `Index.search`.
      offset: how many of the best are left out.
      sort: a field with numbers or dates, by which the best `SORTED` are sorted; with "-" before it the largest first.

    Raises `UserError` for queries that cannot be asked, or a ranking that the index lacks.
    """
    check_queries(queries, top)
    rank = ranking.resolve(index, rank)
    texts = [number for number, query in enumerate(queries) if not query.image]
    images = [number for number, query in enumerate(queries) if query.image]
    if images and rank in (TEXTS, WORDS):
        raise CannotBeAsked(f"rank={rank} is for sentences; an image is compared with pictures.")
    results: list[Result | None] = [None] * len(queries)
    for numbers, way in ((texts, rank), (images, PICTURES)):
        if numbers:
            same_rank = [queries[number] for number in numbers]
            vectors = encode_queries(embedder, same_rank) if ranking.needs_vectors(index, way) else None
            captions = None
            if way in (TEXTS, ALL) and index.captions is not None:
                sentences = [words.split(query.text)[0] for query in same_rank]
                captions = index.captions.encode_questions(embedder, sentences, vectors)
            ranked = find(index, vectors, same_rank, Page(top, offset, sort), filters, captions=captions, rank=way)
            for number, result in zip(numbers, ranked):
                results[number] = result
    return results


SORTED = 40  # hits that are sorted by a field; farther hits fit too badly


class Page(NamedTuple):
    """The hits to return: `top` after the best `offset`; `sort`: see `search`."""

    top: int = 10
    offset: int = 0
    sort: str = ""


def find(
    index,
    vectors: np.ndarray | None,
    queries: Sequence[Query],
    page: Page,
    filters: Sequence[Filter] = (),
    *,
    captions: np.ndarray | None = None,
    rank: str = PICTURES,
    fold: bool = True,
) -> list[Result]:
    """Returns what `search` does for the vectors [Q, D] of queries, which are all sentences or all images.

    `captions`: the vectors of sentences as `Captions.encode` gives them. `fold`: whether of like pictures one is shown.
    """
    (top, offset, sort), texts = page, ["" if query.image else query.text for query in queries]
    ranked = ranking.rank_all(index, texts, vectors, captions, max(DEPTH, offset + top), filters, rank)
    # Noise was measured by answers from the whole index.
    judged = index.noise is not None and not filters and not sort and rank == ALL
    judged = judged and all(texts) and not any(words.split(text)[1] for text in texts)
    results = []
    for number, (query, answer) in enumerate(zip(queries, ranked)):
        groups = _folded(index, answer.rows) if fold else [[row] for row in answer.rows.tolist()]
        if sort:
            groups = _sorted(index, groups[:SORTED], sort)
        hits = []
        for position, (row, *alike) in enumerate(groups[offset : offset + top], start=offset + 1):
            if vectors is not None:
                score = float(np.asarray(index.embeddings[row], np.float32) @ vectors[number])
                score = answer.lists.get(PICTURES, {}).get(row, (0, score))[1]  # an index of texts has no pictures
            else:
                score = answer.lists[rank].get(row, (0, 1.0))[1]
            name, by = index.items[row], answer.found_by(row) if rank != PICTURES else {}
            right = name in query.right or any(index.items[other] in query.right for other in alike if query.right)
            hits.append(Hit(position, score, name, row, right, by, len(alike)))
        nothing_fits = judged and index.noise.nothing_fits(answer)
        if nothing_fits and len(answer.rows):  # not of an answer whose caption, name or value has the sentence's words
            nothing_fits = int(answer.rows[0]) not in index.table.with_words(texts[number])
        results.append(Result(query, tuple(hits), nothing_fits, len(groups)))
    return results


def browse(index, page: Page, filters: Sequence[Filter] = ()) -> list[Hit]:
    """Returns a page of all items that pass the filters, in their order or sorted by a field, see `search`."""
    (top, offset, sort), rows = page, index.rows(filters)
    groups = [[row] for row in (np.arange(len(index)) if rows is None else rows).tolist()]
    shown = (_sorted(index, groups, sort) if sort else groups)[offset : offset + top]
    return [Hit(position, 0.0, index.items[row], row) for position, (row,) in enumerate(shown, start=offset + 1)]


def _folded(index, rows: np.ndarray) -> list[list[int]]:
    """Returns rows, best first, in groups: of one product, or that look the same and have the same captions."""
    groups: list[list[int]] = []
    if index.kind != IMAGES or len(rows) < 2:
        return [[row] for row in rows.tolist()]
    vectors = index.vectors_of(rows)
    of: dict[int, list[int]] = {}
    products: dict[str, int] = {}
    firsts = np.argmax(vectors @ vectors.T >= ALIKE, axis=1).tolist()  # of each itself, if no other
    for position, row in enumerate(rows.tolist()):
        product = index.describe(row).fields.get(index.product) if index.product else None
        first = firsts[position]
        same = first < position and index.describe(row).captions == index.describe(int(rows[first])).captions
        if product is not None:
            first = products.setdefault(product, position)
            same = first < position
        if same and first in of:
            of[first].append(row)
        else:
            of[position] = [row]
            groups.append(of[position])
    return groups


ALIKE = 0.99  # cosine from which two pictures look the same; it tells copies better than a dHash of 64 bits


def _sorted(index, groups: list[list[int]], sort: str) -> list[list[int]]:
    """Returns groups by the field of their first row; those without a number or date come last, in their order."""
    amounts = dict(zip(*(part.tolist() for part in index.table.amounts(sort.removeprefix("-")))))
    if not amounts:
        raise CannotBeAsked(f"sort={sort}: no item has numbers or dates in a field {sort.removeprefix('-')!r}.")
    sign = -1 if sort.startswith("-") else 1
    return sorted(groups, key=lambda group: (group[0] not in amounts, sign * amounts.get(group[0], 0.0)))


def to_lines(index, result: Result) -> list[str]:
    """Returns the lines to print: the query, whether nothing fits, and each hit in a line."""
    heading = f"{result.query.name!r} in {index.count:,} {index.kind}"
    lines = [f"{heading}: Nothing fits; the closest:" if result.nothing_fits else f"{heading}:"]
    lines += [_line(index, hit, result.query.language) for hit in result.hits]
    if result.query.right and result.first_right is None:
        lines.append("      none of the right answers")
    return lines


LONGEST_CAPTION, LONGEST_VALUE = 80, 30  # characters of a line
WHY = {"exact": "exact", "words": "words", TEXTS: "meaning", PICTURES: "picture"}


def why(found_by: Mapping[str, int]) -> str:
    """Returns in one word why a hit was found, by the way that ranks it best; "" where only pictures are compared."""
    return WHY[min(found_by, key=lambda way: (found_by[way], list(WHY).index(way)))] if found_by else ""


def _line(index, hit: Hit, language: str) -> str:
    item = index.describe(hit.row)
    _, caption = item.caption(language or "en")
    shown = [f"{hit.rank:4}  {hit.score:+.3f}", hit.name]
    shown += [_shortened(caption, LONGEST_CAPTION)] if caption else []
    shown += [f"{name}={_shortened(value, LONGEST_VALUE)}" for name, value in fields.of_index(index).of(item).items()]
    shown += [f"(and {hit.alike} alike)"] if hit.alike else []
    shown += [f"[{why(hit.found_by)}]"] if hit.found_by else []
    return "  ".join([*(" ".join(visible(part).split("\n")) for part in shown), *(["(right)"] if hit.right else [])])


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def to_json(index, results: Sequence[Result]) -> str:
    """Returns {"model", "kind", "count", "results": [{"query", "hits": [{"rank", "score", "row", "name", …}]}]}."""
    return json.dumps(
        {
            "model": str(index.model),
            "kind": index.kind,
            "count": index.count,
            "results": [
                {"query": _present(dataclasses.asdict(result.query)),
                 **({"nothing_fits": True} if result.nothing_fits else {}),
                 "first_right": result.first_right,
                 "hits": [describe_hit(index, hit) for hit in result.hits]}
                for result in results
            ],
        },
        ensure_ascii=False,
        indent=2,
    )  # fmt: skip


def describe_hit(index, hit: Hit) -> dict[str, object]:
    """Returns a hit as JSON values: rank, score, row, name, and, if known, path, language, captions, fields."""
    item = index.describe(hit.row)
    details = {"path": item.path, "language": item.language, "captions": [list(caption) for caption in item.captions]}
    if item.offset >= 0:
        details["offset"] = item.offset
    details |= {"fields": item.fields, "found_by": hit.found_by, "alike": [] if not hit.alike else hit.alike}
    shown = {"rank": hit.rank, "score": round(hit.score, 6), "row": hit.row, "name": hit.name, **_present(details)}
    return {**shown, "right": True} if hit.right else shown


def _present(values: dict) -> dict:
    return {key: value for key, value in values.items() if value not in ("", [], (), {})}


# The page: one HTML file with the pictures in it.

SIDE = 240  # pixels of the longer side of an image
ADDRESS = re.compile(r"https?://[^\s\"'<>`\\]+")


def write_gallery(path: str | os.PathLike, index, results: Sequence[Result], links: Mapping = {}) -> None:
    """Writes the page whole or not at all; images that are gone leave an empty frame with their name."""
    write_whole(path, page_html(index, results, links))


def page_html(index, results: Sequence[Result], links: Mapping[str, str] = {}) -> str:
    """Returns the page of all results, a section a query, with `links` {words: address} at its foot."""
    return pages.render(
        TEMPLATES / "results.html",
        title=results[0].query.name if len(results) == 1 else f"{len(results)} queries",
        kind=index.kind,
        count=index.count,
        model=index.model.describe(),
        results=[_section(index, result) for result in results],
        links=links,
        is_address=ADDRESS.fullmatch,
    )


def _section(index, result: Result) -> dict[str, object]:
    from mural_lite.pictures import read_file, thumbnail_url

    query, notes = result.query, []
    if query.right:
        rank = result.first_right
        notes.append(f"The expected answer is number {rank}." if rank else "The expected answer is not among these.")
    if result.nothing_fits:
        notes.append("Nothing fits; the closest:")
    query_picture = thumbnail_url(read_file(query.image), SIDE) if query.image else None
    hits = [_hit(index, hit, query.language or "en") for hit in result.hits]
    return {"query": query, "query_picture": query_picture, "notes": notes, "hits": hits}


def _hit(index, hit: Hit, language: str) -> dict[str, object]:
    """What is shown of an item: `words` are an image's caption, or its name, or the text that was found."""
    from mural_lite.pictures import thumbnail_url

    item = index.describe(hit.row)
    shown = {"rank": hit.rank, "right": hit.right, "why": why(hit.found_by), "alike": hit.alike}
    card = fields.of_index(index).of(item)
    further = {name: value for name, value in item.fields.items() if name not in card}
    shown |= {"fields": card, "further": further, "picture": "", "link": ""}
    if index.kind != IMAGES:
        return {**shown, "words": item.name, "language": item.language}
    caption_language, words = item.caption(language)
    try:
        shown["picture"] = thumbnail_url(index.read_image(hit.row), SIDE)
    except (OSError, ValueError):
        pass  # it is gone
    if shown["picture"]:
        shown["link"] = _link(item)
    return {**shown, "words": words or item.name, "language": caption_language}


def _link(item: Item) -> str:
    """The address of an image's file, where it is one of its own on this machine; otherwise ""."""
    path = as_path(item.path)
    is_file = item.offset < 0 and isinstance(path, pathlib.Path) and path.is_absolute()
    return path.as_uri() if is_file else ""
