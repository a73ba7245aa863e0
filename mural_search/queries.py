"""Queries, sentences in any language or images, and their answers."""

from __future__ import annotations

import dataclasses
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
MOST_LACKING = 8  # words that shall not be found; each is looked up


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
        sentence, lacking = words.split(query.text)
        if not query.image and not sentence.strip():
            raise CannotBeAsked(f"{query.text!r} says only what shall not be found: give a sentence before the -words.")
        if len(set(lacking)) > MOST_LACKING:
            raise CannotBeAsked(f"The sentence has {len(set(lacking))} -words; at most {MOST_LACKING} are read.")
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
    """Raises `UserError` for filters that no item passes, and names the fields or values of the index."""
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
    """Returns the values of a field, as `ItemTable.facets` gives them, in words."""
    if "least" in facet:
        return f"{facet['least']} to {facet['most']}"
    return ", ".join(facet.get("values", ())) or "of many values"


def encode_queries(embedder: Embedder, queries: Sequence[Query]) -> np.ndarray:
    """Returns the vectors, float32 [Q, D], of images, or of sentences without their -words.

    Raises `UserError` for an unreadable image.
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


WHY = {EXACT: "exact", WORDS: "words", TEXTS: "meaning", PICTURES: "picture"}


@dataclasses.dataclass(frozen=True)
class Hit:
    """One result.

    Attributes:
      rank: from 1.
      score: the cosine of the picture (in an index of texts, of the text). Ranked by texts only, the cosine of the
        closest caption; ranked by words only, the share of the question.
      name, row: the item's name and its row in the index.
      right: whether it is a right answer.
      found_by: see `Ranked.found_by`; {} where only pictures are compared.
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
        """Rank of the first right answer among the hits."""
        return next((hit.rank for hit in self.hits if hit.right), None)


SORTED = 40  # hits that are sorted by a field; farther hits fit too badly


class Page(NamedTuple):
    """Which hits to return: `top` hits after the best `offset`, in the order of `sort`, see `search`."""

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
      rank: one of `ranking.RANKS`, "all" by default. "words" does not run the model. Images are compared with pictures.
      filters: see `Index.search`.
      offset: how many of the best items are left out.
      sort: a field with numbers or dates, by which the best `SORTED` items are sorted; with "-" before it the largest
        first.

    Raises `UserError` for queries that cannot be asked, or a ranking that the index lacks.
    """
    check_queries(queries, top)
    rank = ranking.resolve(index, rank)
    page = Page(top, offset, sort)
    if rank in (TEXTS, WORDS) and any(query.image for query in queries):
        raise CannotBeAsked(f"rank={rank} is for sentences; an image is compared with pictures.")
    results: dict[int, Result] = {}
    for is_image, way in ((False, rank), (True, PICTURES)):
        group = {number: query for number, query in enumerate(queries) if bool(query.image) == is_image}
        if group:
            answers = _search(index, embedder, list(group.values()), page, filters, way)
            results.update(zip(group, answers))
    return [results[number] for number in range(len(queries))]


def _search(
    index, embedder: Embedder, queries: Sequence[Query], page: Page, filters: Sequence[Filter], rank: str
) -> list[Result]:
    """Does the work of `search` for queries that are all sentences or all images."""
    vectors, captions = encode(index, embedder, queries, rank)
    return find(index, vectors, queries, page, filters, captions=captions, rank=rank)


def encode(
    index, embedder: Embedder, queries: Sequence[Query], rank: str
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the vectors [Q, D] to compare with pictures and with captions; None where `find` does not need them."""
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
    """Returns the results of queries, all sentences or all images, by their vectors [Q, D].

    `captions`: the sentences' vectors to compare with captions, see `Captions.encode_questions`. `fold`: whether only
    one of several pictures that look the same is shown; only one picture of a product is shown in any case.
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
        for position, (row, *alike) in page.cut(groups):
            found_by = {}
            if rank != PICTURES:
                found_by = answer.found_by(row)
            hit = Hit(
                rank=position,
                score=_score(index, answer, vector, rank, row),
                name=index.items[row],
                row=row,
                right=bool(query.right) and any(index.items[other] in query.right for other in (row, *alike)),
                found_by=found_by,
                alike=len(alike),
            )
            hits.append(hit)
        nothing_fits = is_judged and _nothing_fits(index, texts[number], answer)
        results.append(Result(query, tuple(hits), nothing_fits, len(groups)))
    return results


def _asks_whole_index(texts: Sequence[str], page: Page, filters: Sequence[Filter]) -> bool:
    """Whether queries are sentences whose answers come from the whole index, so that they compare with its noise.

    Filters, -words and sorting leave a part of the index.
    """
    if filters or page.sort or not all(texts):
        return False
    for text in texts:
        _, unwanted_words = words.split(text)
        if unwanted_words:
            return False
    return True


def _score(index, answer: Ranked, vector: np.ndarray | None, rank: str, row: int) -> float:
    """Returns the score of a row, see `Hit`; `vector`: the query's, [D], None where `rank` needs none."""
    if vector is None:
        _, share = answer.lists[rank].get(row, (0, 1.0))  # an exact row may be missing in the list
        return share
    by_pictures = answer.lists.get(PICTURES, {})  # an index of texts has no pictures
    if row in by_pictures:
        _, cosine = by_pictures[row]
        return cosine
    return float(np.asarray(index.embeddings[row], np.float32) @ vector)


def _nothing_fits(index, text: str, answer: Ranked) -> bool:
    """Whether nothing fits a sentence, by the noise level and the words of the best item."""
    if not index.noise.nothing_fits(answer):
        return False
    # An answer whose caption, name or value has the sentence's words fits.
    return not len(answer.rows) or int(answer.rows[0]) not in index.table.with_words(text)


def browse(index, page: Page, filters: Sequence[Filter] = ()) -> Result:
    """Returns a page of all products that pass the filters, in their order or sorted by a field, see `search`."""
    rows = index.rows(filters)
    if rows is None:
        rows = np.arange(len(index))
    groups = _single(rows)
    if index.product:
        by_product: dict[int, list[int]] = {}
        for row, first_row in zip(rows.tolist(), index.first_rows[rows].tolist()):
            by_product.setdefault(first_row, []).append(row)
        groups = list(by_product.values())
    if page.sort:
        groups = _sorted(index, groups, page.sort)
    hits = []
    for position, (row, *alike) in page.cut(groups):
        hits.append(Hit(position, 0.0, index.items[row], row, alike=len(alike)))
    return Result(Query(), tuple(hits), total=len(groups))


def _single(rows: np.ndarray) -> list[list[int]]:
    """Returns a group of its own for each row."""
    return [[row] for row in rows.tolist()]


def _folded(index, rows: np.ndarray, fold: bool) -> list[list[int]]:
    """Returns rows, best first, in groups: rows of one product, or that look the same and have the same captions.

    `fold`: whether rows that look the same are a group.
    """
    if index.kind != IMAGES or len(rows) < 2:
        return _single(rows)
    if fold:
        firsts = _first_alike(index.vectors_of(rows))
    else:
        firsts = list(range(len(rows)))
    groups: dict[int, list[int]] = {}  # position of the first row -> rows
    product_of = index.table.products(rows.tolist(), index.product)
    products: dict[str, int] = {}
    for position, row in enumerate(rows.tolist()):
        first = firsts[position]
        if row in product_of:
            first = products.setdefault(product_of[row], position)
        elif first < position and index.describe(row).captions != index.describe(int(rows[first])).captions:
            first = position
        if first in groups:
            groups[first].append(row)
        else:
            groups[position] = [row]
    return list(groups.values())


def _first_alike(vectors: np.ndarray) -> list[int]:
    """Returns for each of the vectors, [N, D], the number of the first vector that looks the same, perhaps itself."""
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
    """Raises `CannotBeAsked` for a field without numbers or dates; "" passes."""
    if not sort:
        return
    name = sort.removeprefix("-")
    rows, _ = index.table.amounts(name)
    if not len(rows):
        raise CannotBeAsked(f"sort={sort}: no item has numbers or dates in a field {name!r}.")


def _sorted(index, groups: list[list[int]], sort: str) -> list[list[int]]:
    """Returns groups ordered by a field of their first rows; groups without a number or date come last."""
    check_sort(index, sort)
    rows, values = index.table.amounts(sort.removeprefix("-"))
    amounts = dict(zip(rows.tolist(), values.tolist()))
    sign = -1 if sort.startswith("-") else 1
    return sorted(groups, key=lambda group: (group[0] not in amounts, sign * amounts.get(group[0], 0.0)))
