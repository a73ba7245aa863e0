"""Answers to the page's questions: a sentence, a picture, a row that results shall be like, or nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from mural_lite.files import release_pages
from mural_search.index import Index
from mural_search.items import IMAGES, Filter, Item
from mural_search.queries import LONGEST_SENTENCE, SORTED, Hit, Page, Query, Result, browse, find, search
from mural_search.results import Card, card_of
from mural_search.server.shop import ShopFields

MOST_RESULTS = 1000  # hits that are ranked for a question, on all pages together
DEFAULT_RESULTS = 20  # on a page


@dataclasses.dataclass(frozen=True)
class Question:
    """A question to an index: a sentence, a row that results shall be like, a picture, or nothing.

    Args:
      sentence: at most 2,000 characters, in any language.
      k: how many hits to return, 1 to 1,000.
      filters: conditions that every hit meets.
      like: a row of the index, which is not among the hits.
      picture: the vector of a picture, float32 [D].
      language: the language of the captions to show, where an item has several; "": English, or the first caption.
      rank: the ranking, by pictures, words or both, see `queries.search`; only with a sentence.
      offset: how many better hits are left out; at most 1,000 hits are ranked, so `offset + k` is at most 1,000.
      sort: the field by which hits are sorted, see `queries.search`; "": by their similarity.
      facets: whether to count the values of the fields of all items that pass the filters.
    """

    sentence: str = ""
    k: int = DEFAULT_RESULTS
    filters: Sequence[Filter] = ()
    like: int | None = None
    picture: np.ndarray | None = None
    language: str = ""
    rank: str = ""
    offset: int = 0
    sort: str = ""
    facets: bool = False

    @property
    def is_ranked(self) -> bool:
        """Whether items come in the order of their similarity, not in the index's order."""
        return bool(self.sentence) or self.like is not None or self.picture is not None

    def check(self) -> None:
        """Raises `ValueError` for a sentence of spaces, a value out of bounds, or arguments that exclude each other."""
        if len(self.sentence) > LONGEST_SENTENCE:
            raise ValueError(f"The sentence has {len(self.sentence)} characters; at most {LONGEST_SENTENCE} are read.")
        if not 1 <= self.k <= MOST_RESULTS:
            raise ValueError(f"k must be between 1 and {MOST_RESULTS}, got {self.k}.")
        is_too_far = self.is_ranked and self.offset > MOST_RESULTS - self.k
        if self.offset < 0 or is_too_far:
            raise ValueError(
                f"offset must be between 0 and {MOST_RESULTS} - k, got {self.offset}: further hits are not ranked."
            )
        if self.rank and not self.sentence:
            raise ValueError("rank is for sentences: give one, in any language.")
        are_given = [bool(self.sentence), self.picture is not None, self.like is not None]
        if are_given.count(True) > 1:
            raise ValueError("Give a sentence, or a picture, or a row that results shall be like; only one of them.")
        if self.sentence and not self.sentence.strip():
            raise ValueError("The sentence is empty: give one in any language.")


@dataclasses.dataclass(frozen=True)
class Answer:
    """The `k` items closest to a question; without a question the items that pass the filters, in the index's order.

    Attributes:
      question: the question that is answered.
      kind: the index's kind, `items.IMAGES` or `items.TEXTS`.
      state: a text that changes with the rows of the index.
      count: the number of items in the index.
      matching: the number of items that pass the filters.
      total: the number of items that can be paged through; several pictures of a product are one item here.
      cards: the hits of this page, best first.
      nothing_fits: whether even the best hits are too far from the question to fit it.
      relaxed: {filter: number of items that pass all other filters}, where no item passes all filters; otherwise None.
      facets: {field: its values or its range}, see `ItemTable.facets`; None if the question did not ask for them.
    """

    question: Question
    kind: str
    state: str
    count: int
    matching: int
    total: int
    cards: Sequence[Card]
    nothing_fits: bool = False
    relaxed: Mapping[str, int] | None = None
    facets: Mapping[str, dict] | None = None

    @property
    def next_offset(self) -> int | None:
        """The `offset` of the next page's question; None on the last page."""
        offset = self.question.offset + DEFAULT_RESULTS  # the page never asks for another number
        if not self.cards or offset >= self.total:
            return None
        return offset

    def to_json(self, shop: ShopFields) -> dict[str, object]:
        """Returns the answer as JSON values: {"sentence", "kind", "count", "matching", "total", "index", "hits"}.

        "index" is `state`, and "hits" is a list of {"rank", "score", "row", "name", …}, see `_hit_values`. The keys
        "nothing_fits", "relax" (`relaxed`) and "facets" are only there where they apply.

        Args:
          shop: the index's fields that customers know by a meaning, such as a product's number.
        """
        values = {"sentence": self.question.sentence, "kind": self.kind, "count": self.count}
        values |= {"matching": self.matching, "total": self.total, "index": self.state}
        if self.nothing_fits:
            values["nothing_fits"] = True
        if self.relaxed is not None:
            values["relax"] = self.relaxed
        if self.facets is not None:
            values["facets"] = self.facets
        return {**values, "hits": [self._hit_values(card, shop) for card in self.cards]}

    def _hit_values(self, card: Card, shop: ShopFields) -> dict[str, object]:
        """Returns a hit as JSON values, {"rank", "score", …}, without paths of this machine.

        The key "number", by which the shop knows a product, is only there if a field of the item has it.
        """
        hit = card.hit
        item = card.item
        number = shop.product_of(item).number
        shop_values = {"number": number} if number else {}
        return {
            **shop_values,
            "rank": hit.rank,
            "score": round(hit.score, 4),
            "row": hit.row,
            "name": item.file_name if self.kind == IMAGES else "",
            "caption": card.caption,
            "language": card.language,
            "has_image": item.has_image,
            "fields": item.fields,
            "found_by": hit.found_by,
            "alike": hit.alike,
        }


def answer(index: Index, embedder, question: Question) -> Answer:
    """Returns the answer of an index to a question.

    Args:
      index: the index to search.
      embedder: the model that made the index, which embeds the question's sentence.
      question: the question.

    Raises:
      ValueError: the question is not allowed, see `Question.check`; its row `like` does not exist, or has no picture.
    """
    question.check()
    matching = _count(index, question.filters)
    result = _result(index, embedder, question)
    total = result.total
    if question.is_ranked:
        total = min(total, MOST_RESULTS)
    relaxed = None
    if not matching:  # which filter to drop
        relaxed = _relaxed_counts(index, question.filters)
    facets = None
    if question.facets:
        facets = index.facets(tuple(question.filters))
    return Answer(
        question=question,
        kind=index.kind,
        state=index.state,
        count=len(index),
        matching=matching,
        total=total,
        cards=_cards(index, result.hits, question.language),
        nothing_fits=result.nothing_fits,
        relaxed=relaxed,
        facets=facets,
    )


def _count(index: Index, filters: Sequence[Filter]) -> int:
    """Returns the number of items that pass all filters."""
    rows = index.rows(filters)
    if rows is None:
        return len(index)
    return len(rows)


def _relaxed_counts(index: Index, filters: Sequence[Filter]) -> dict[str, int]:
    """Returns {filter: number of items that pass all other filters}."""
    counts = {}
    for dropped_filter in filters:
        other_filters = [filter_ for filter_ in filters if filter_ != dropped_filter]
        counts[str(dropped_filter)] = _count(index, other_filters)
    return counts


def _cards(index: Index, hits: Sequence[Hit], language: str) -> list[Card]:
    """Returns a card for each hit, with its caption in `language` if it has one; releases the vectors' memory."""
    rows = sorted({hit.row for hit in hits})
    items = dict(zip(rows, index.table.at(rows)))  # one query for all
    release_pages(index.embeddings)  # the question is ranked: the memory of the vectors can go to other programs
    return [card_of(index, hit, items[hit.row], language) for hit in hits]


def _result(index: Index, embedder, question: Question) -> Result:
    """Returns the hits on the page that a question asks for, by its sentence, row, picture, or in the index's order."""
    page = Page(question.k, question.offset, question.sort)
    filters = question.filters
    if question.sentence:
        query = Query(question.sentence)
        (result,) = search(
            index, embedder, [query], page.top, filters, rank=question.rank, offset=page.offset, sort=page.sort
        )
        return result
    if question.like is not None:
        return _items_like(index, question.like, page, filters)
    if question.picture is not None:
        (result,) = find(index, question.picture[None], [Query(image="picture")], page, filters)
        return result
    return browse(index, page, filters)


def _items_like(index: Index, row: int, page: Page, filters: Sequence[Filter]) -> Result:
    """Returns the hits closest to the item of a row, without this item and without other pictures of its product.

    Raises `ValueError` for a row that does not exist or has no picture.
    """
    query = Query(image=item_of(index, row).name)
    if row in index.bare:
        raise ValueError(f"Row {row} has no picture, so that nothing is known to look like it: ask by a sentence.")
    vector = index.embeddings[row][None].astype(np.float32)
    # From the best hit on, because the item and its product's pictures, which are taken out below, come before the
    # page. One hit more, because the item finds itself; at least `SORTED`, because sorting may put it anywhere there.
    whole_page = Page(max(page.offset + page.top + 1, SORTED), sort=page.sort)
    (result,) = find(index, vector, [query], whole_page, filters, fold=False)
    other_hits = [hit for hit in result.hits if hit.row != row]
    product_by_row = index.table.products([row, *(hit.row for hit in other_hits)], index.product)
    product = product_by_row.get(row)
    if product is not None:
        other_hits = [hit for hit in other_hits if product_by_row.get(hit.row) != product]
    hits = tuple(dataclasses.replace(hit, rank=rank) for rank, hit in page.cut(other_hits))
    total = result.total - (len(result.hits) - len(other_hits))
    return dataclasses.replace(result, hits=hits, total=total)


def item_of(index: Index, row: int) -> Item:
    """Returns the item of a row; raises `ValueError` for a row that does not exist."""
    try:
        return index.describe(row)
    except IndexError as error:
        raise ValueError(str(error)) from None
