"""Queries, sentences in any language or images, and their answers."""

from __future__ import annotations

import dataclasses
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_search import ranking, words
from mural_search.items import IMAGES, Filter
from mural_search.ranking import ALL, DEPTH, EXACT, PICTURES, TEXTS, WORDS, CannotBeAsked, Ranked

if TYPE_CHECKING:
    from mural_lite.embedder import Embedder


LONGEST_SENTENCE = 2000  # characters; models read far fewer tokens
MOST_UNWANTED = 8  # words that shall not be found; each is looked up


@dataclasses.dataclass(frozen=True)
class Query:
    """A sentence, or an image file.

    Attributes:
      text: the sentence, "" for an image.
      language: the sentence's language, BCP 47, "" if it is not known.
      image: the image's path, "" for a sentence.
      right: the names of the right answers, if they are known.
    """

    text: str = ""
    language: str = ""
    image: str = ""
    right: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The sentence, or the image's path."""
        return self.text or self.image


def check_queries(queries: Sequence[Query], top: int) -> None:
    """Raises `UserError` for queries that cannot be asked, no queries, or `top` below 1.

    A query must be an image that opens, or a sentence that is not too long, with a word besides few -words.
    """
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
        sentence, unwanted_words = words.split(query.text)
        if not query.image and not sentence.strip():
            raise CannotBeAsked(f"{query.text!r} says only what shall not be found: give a sentence before the -words.")
        count = len(set(unwanted_words))
        if count > MOST_UNWANTED:
            raise CannotBeAsked(f"The sentence has {count} -words; at most {MOST_UNWANTED} are read.")
    if top < 1:
        raise UserError(f"top must be at least 1, got {top}.")


def _check_image(name: str) -> None:
    """Raises `UserError` for an image that is missing or whose header is wrong, before a model is loaded."""
    from mural_lite.pictures import MAX_SCAN, BadImage, open_image, read_file  # here, because sentences do without

    if not as_path(name).is_file():
        raise UserError(f"The image {name} is not there, or is a folder: expected a file.")
    try:
        open_image(read_file(name), MAX_SCAN)
    except BadImage as error:
        raise UserError(f"The image {name} cannot be used: {error}.") from None


def check_filters(index, filters: Sequence[Filter]) -> None:
    """Raises `UserError` for filters that no item passes; the message names the fields or values of the index."""
    if not filters or len(index.rows(filters)):
        return
    facets = index.facets()
    if all(filter_.name in facets for filter_ in filters):
        hint = "; ".join(f"{filter_.name} is {_values_in_words(facets[filter_.name])}" for filter_ in filters)
    elif facets:
        hint = f"fields are {', '.join(facets)}"
    else:
        hint = "no item has fields"
    raise UserError(f"No item of the index has {', '.join(map(str, filters))}: {hint}.")


def _values_in_words(facet: Mapping) -> str:
    """Returns the values of a field for a message: "5 to 90", "red, blue" or "of many values"."""
    if "least" in facet:
        return f"{facet['least']} to {facet['most']}"
    return ", ".join(facet.get("values", ())) or "of many values"


def encode_queries(embedder: Embedder, queries: Sequence[Query]) -> np.ndarray:
    """Returns the vectors, float32 [Q, D], of images, or of sentences without their -words.

    `queries`: all images, or all sentences. Raises `UserError` for an unreadable image.
    """
    if queries[0].image:
        return embedder.encode_image([as_path(query.image) for query in queries])
    return embedder.encode_text(_sentences(queries), **ranking.prompt_of(embedder, ranking.QUESTIONS))


def _sentences(queries: Sequence[Query]) -> list[str]:
    """Returns the sentences of queries without their -words, composed (NFC) and with single spaces.

    To some models a space more, or an accent of its own, is another sentence.
    """
    sentences = []
    for query in queries:
        sentence, _ = words.split(query.text)
        sentences.append(" ".join(unicodedata.normalize("NFC", sentence).split()))
    return sentences


# Way -> the word for it; the first way counts where several rank a hit equally.
WHY = {EXACT: "exact", WORDS: "words", TEXTS: "meaning", PICTURES: "picture"}


@dataclasses.dataclass(frozen=True)
class Hit:
    """An item that answers a query.

    Attributes:
      rank: from 1.
      score: the cosine of the picture (in an index of texts, of the text). Ranked only by texts, the cosine of the
        closest caption; ranked only by words, the share of the question in (0, 1].
      name, row: the item's name and its row in the index, -1 if it is not known.
      right: whether it is a right answer.
      found_by: {way: rank in it}, see `Ranked.found_by`; {} where only pictures are compared.
      alike: number of further pictures that look the same and have the same captions.
    """

    rank: int
    score: float
    name: str
    row: int = -1
    right: bool = False
    found_by: dict[str, int] = dataclasses.field(default_factory=dict)
    alike: int = 0

    @property
    def why(self) -> str:
        """One word for the way that ranks it best, for example "meaning"; "" where only pictures are compared."""
        ways = [way for way in WHY if way in self.found_by]
        if not ways:
            return ""
        return WHY[min(ways, key=self.found_by.__getitem__)]


@dataclasses.dataclass(frozen=True)
class Result:
    """A query and its hits, best first.

    Attributes:
      nothing_fits: whether nothing fits and the hits are only the closest items, see `NoiseLevel`.
      total: how many hits are ranked; `hits` is a page of them.
    """

    query: Query
    hits: tuple[Hit, ...]
    nothing_fits: bool = False
    total: int = 0

    @property
    def first_right(self) -> int | None:
        """The rank of the first right answer among the hits; None without a right answer."""
        right_ranks = [hit.rank for hit in self.hits if hit.right]
        return min(right_ranks, default=None)


SORTED = 40  # hits that are sorted by a field; farther hits fit too badly


class Page(NamedTuple):
    """The hits to return: `top` hits after the best `offset`, in the order of `sort`, see `search`."""

    top: int = 10
    offset: int = 0
    sort: str = ""

    def cut(self, groups: Sequence[list[int]]) -> Iterator[tuple[int, list[int]]]:
        """Yields (rank from 1, group of rows) for the groups on this page."""
        return enumerate(groups[self.offset : self.offset + self.top], start=self.offset + 1)


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
    """Returns the result of each query, with the best `top` items; `embedder` must be the model that made the index.

    Args:
      filters: the conditions that all hits meet.
      rank: one of `ranking.RANKS`, "all" by default. "words" does not run the model. Images are compared with pictures.
      offset: how many of the best items are left out.
      sort: a field with numbers or dates, by which the best `SORTED` items are sorted; with "-" before it the largest
        first.

    Raises `UserError` for queries that cannot be asked, a ranking that the index lacks, or a field without numbers.
    """
    check_queries(queries, top)
    rank = ranking.resolve(index, rank)
    page = Page(top, offset, sort)
    if rank in (TEXTS, WORDS) and any(query.image for query in queries):
        raise CannotBeAsked(f"rank={rank} is for sentences; an image is compared with pictures.")
    result_of = {}  # number of the query -> its result
    for is_image, rank_of_group in ((False, rank), (True, PICTURES)):
        numbers = [number for number, query in enumerate(queries) if bool(query.image) == is_image]
        if numbers:
            group = [queries[number] for number in numbers]
            vectors, captions = encode(index, embedder, group, rank_of_group)
            results = find(index, vectors, group, page, filters, captions=captions, rank=rank_of_group)
            result_of.update(zip(numbers, results))
    return [result_of[number] for number in range(len(queries))]


def encode(
    index, embedder: Embedder, queries: Sequence[Query], rank: str
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the vectors of queries, all sentences or all images, to compare with pictures and with captions.

    Both are float32 [Q, D], or None where `find` does not need them for this `rank`.
    """
    vectors = None
    if ranking.needs_vectors(index, rank):
        vectors = encode_queries(embedder, queries)
    captions = None
    if rank in (TEXTS, ALL) and index.captions is not None:
        captions = index.captions.encode_questions(embedder, _sentences(queries), vectors)
    return vectors, captions


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
    """Returns the results of queries, all sentences or all images, by their vectors.

    Args:
      vectors, captions: float32 [Q, D], as `encode` returns them for `rank`.
      page: the hits to return.
      filters, rank: see `search`.
      fold: whether pictures that look the same are one hit; the pictures of a product always are.
    """
    texts = ["" if query.image else query.text for query in queries]
    ranked = ranking.rank_all(index, texts, vectors, captions, max(DEPTH, page.offset + page.top), filters, rank)
    is_judged = index.noise is not None and rank == ALL and _asks_whole_index(texts, page, filters)
    results = []
    for number, (query, answer) in enumerate(zip(queries, ranked)):
        groups = _folded(index, answer.rows, fold)
        if page.sort:
            groups = _sorted(index, groups[:SORTED], page.sort)
        vector = None if vectors is None else vectors[number]
        hits = []
        for position, group in page.cut(groups):
            row = group[0]  # the best
            hit = Hit(
                rank=position,
                score=_score(index, answer, vector, rank, row),
                name=index.items[row],
                row=row,
                right=bool(query.right) and any(index.items[member] in query.right for member in group),
                found_by={} if rank == PICTURES else answer.found_by(row),
                alike=len(group) - 1,
            )
            hits.append(hit)
        nothing_fits = is_judged and _nothing_fits(index, texts[number], answer)
        results.append(Result(query, tuple(hits), nothing_fits, len(groups)))
    return results


def _asks_whole_index(texts: Sequence[str], page: Page, filters: Sequence[Filter]) -> bool:
    """Whether queries are sentences whose answers come from the whole index, as its noise level does.

    Filters, -words and sorting leave a part of the index.
    """
    if filters or page.sort or not all(texts):
        return False
    return not any(unwanted_words for _, unwanted_words in map(words.split, texts))


def _score(index, answer: Ranked, vector: np.ndarray | None, rank: str, row: int) -> float:
    """Returns the score of a row, see `Hit`; `vector`: the query's, float32 [D], None where `rank` needs no vector."""
    if vector is None:
        _, cosine_or_share = answer.lists[rank].get(row, (0, 1.0))  # an exact row may be missing in the list
        return cosine_or_share
    by_pictures = answer.lists.get(PICTURES, {})  # an index of texts has no pictures
    if row in by_pictures:
        _, cosine = by_pictures[row]
        return cosine
    return float(np.asarray(index.embeddings[row], np.float32) @ vector)


def _nothing_fits(index, text: str, answer: Ranked) -> bool:
    """Whether nothing fits a sentence: its answers are within the noise, and the best item lacks its words."""
    if not index.noise.nothing_fits(answer):
        return False
    return not len(answer.rows) or int(answer.rows[0]) not in index.table.with_words(text)


def browse(index, page: Page, filters: Sequence[Filter] = ()) -> Result:
    """Returns a page of all products that pass the filters, in the index's order or sorted by `page.sort`.

    There is a hit for each product, its first row, with the score 0.
    """
    rows = index.rows(filters)
    if rows is None:
        rows = np.arange(len(index))
    first_rows = rows
    if index.product:
        first_rows = index.first_rows[rows]
    rows_of_product = {}  # first row of a product -> its rows
    for row, first_row in zip(rows.tolist(), first_rows.tolist()):
        rows_of_product.setdefault(first_row, []).append(row)
    groups = list(rows_of_product.values())
    if page.sort:
        groups = _sorted(index, groups, page.sort)
    hits = []
    for position, (row, *further_rows) in page.cut(groups):
        hits.append(Hit(position, 0.0, index.items[row], row, alike=len(further_rows)))
    return Result(Query(), tuple(hits), total=len(groups))


def _folded(index, rows: np.ndarray, fold: bool) -> list[list[int]]:
    """Returns rows, best first, in groups, each at the place of its first row.

    The rows of a product are a group. With `fold` so are other rows that look the same and have the same captions.
    """
    if index.kind != IMAGES or len(rows) < 2:
        return [[row] for row in rows.tolist()]
    firsts = list(range(len(rows)))
    if fold:
        firsts = _first_alike(index.vectors_of(rows))
    groups = {}  # position of the first row -> rows
    product_of = index.table.products(rows.tolist(), index.product)
    first_of_product = {}  # product -> position of its first row
    for position, row in enumerate(rows.tolist()):
        first = firsts[position]
        if row in product_of:
            first = first_of_product.setdefault(product_of[row], position)
        elif first < position and index.describe(row).captions != index.describe(int(rows[first])).captions:
            first = position
        if first not in groups:  # a new group, also where the first row that looks the same is in its product's group
            first = position
        groups.setdefault(first, []).append(row)
    return list(groups.values())


def _first_alike(vectors: np.ndarray) -> list[int]:
    """Returns for each of the vectors, [N, D], the number of the first vector that looks the same, perhaps its own."""
    firsts = []
    for begin in range(0, len(vectors), COMPARED):
        block = vectors[begin : begin + COMPARED]
        are_alike = block @ vectors.T >= ALIKE  # [B, N]
        rows = np.arange(len(block))
        are_alike[rows, begin + rows] = True  # zeros, the vector of an item without a picture, are unlike themselves
        first_alike = np.argmax(are_alike, axis=1)  # of booleans: the first that is true
        firsts += first_alike.tolist()
    return firsts


COMPARED = 2**10  # vectors that are compared with all vectors at a time
ALIKE = 0.99  # cosine from which two pictures look the same; it tells copies better than a dHash of 64 bits


def check_sort(index, sort: str) -> None:
    """Raises `CannotBeAsked` for a field without numbers or dates; `sort`: a field, "-" and a field, or "" (passes)."""
    if not sort:
        return
    name = sort.removeprefix("-")
    rows, _ = index.table.amounts(name)
    if not len(rows):
        raise CannotBeAsked(f"sort={sort}: no item has numbers or dates in a field {name!r}.")


def _sorted(index, groups: list[list[int]], sort: str) -> list[list[int]]:
    """Returns groups of rows ordered by a field of their first rows, see `search`; groups without a number come last.

    Raises `CannotBeAsked` for a field without numbers.
    """
    check_sort(index, sort)
    rows, amounts = index.table.amounts(sort.removeprefix("-"))
    sign = -1.0 if sort.startswith("-") else 1.0
    sort_key = dict(zip(rows.tolist(), (sign * amounts).tolist()))
    return sorted(groups, key=lambda group: sort_key.get(group[0], math.inf))
