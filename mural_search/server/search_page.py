"""The search page as HTML: the page of an answer, and the page of an item.

The page finds its place in its own address, behind a proxy too. Rows, never paths, come in by addresses, and no path of
the machine goes out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mural_lite import pages
from mural_search import TEMPLATES
from mural_search.items import TEXTS, Filter
from mural_search.results import ADDRESS
from mural_search.server.addresses import PAGE_PARAMETERS, RANGE_ENDS, Links, address, read_question, to_number
from mural_search.server.answers import DEFAULT_RESULTS, answer, item_of
from mural_search.server.served_index import ServedIndex

FEW_VALUES = 8  # of a filter, before "more"
COUNTED = 100_000  # items whose fields are counted for a page; for more items the page shows the index's counts


def page_html(served: ServedIndex, query: Mapping[str, str], language: str = "") -> str:
    """Returns the page of an answer, or of an item. Raises `ValueError` for a question that cannot be answered.

    Args:
      query: the parameters of the address, as `read_question` takes them.
      language: of captions and of names, where there are several.
    """
    links = Links(query)
    if "item" in query:
        values = _item_values(served, to_number("item", query["item"]), language)
        template = "item.html"
    else:
        values = _answer_values(served, query, language, links)
        template = "search.html"
    common = {"title": served.title, "index": served.index, "links": links, "is_address": ADDRESS.fullmatch}
    return pages.render(TEMPLATES / template, **common, **values)


def _item_values(served: ServedIndex, row: int, language: str) -> dict[str, object]:
    """Returns the values of the template item.html."""
    item = item_of(served.index, row)
    captions = sorted(item.captions, key=lambda caption: caption[0] != language)
    if served.index.kind == TEXTS:
        captions = [("", item.name)]
    return {"row": row, "item": item, "captions": captions, "as_filter": served.fields.filters}


def _answer_values(served: ServedIndex, query: Mapping[str, str], language: str, links: Links) -> dict[str, object]:
    """Returns the values of the template search.html."""
    index = served.index
    question = read_question(query, index.embeddings.shape[1], PAGE_PARAMETERS)
    answered = answer(index, served.embedder, dataclasses.replace(question, language=language))
    filters = question.filters
    facets = index.facets(tuple(filters) if answered.matching <= COUNTED else ())
    unknown = []
    if not answered.matching:
        unknown = [filter_.name for filter_ in filters if filter_.name not in index.facets()]
    return {
        "answer": answered,
        "facets": _facets(served, facets, filters, links),
        "sorts": _sorts(served, facets, links, question.sort),
        "unknown": unknown,
        "is_shown": not answered.nothing_fits or "closest" in query,
        "closest": {"closest": 1} if query.get("closest") else {},
        "examples": [] if question.is_ranked else served.examples,
        "before": max(0, question.offset - DEFAULT_RESULTS) if question.offset else None,
    }


def _facets(served: ServedIndex, facets: Mapping, filters: Sequence[Filter], links: Links) -> list[dict[str, object]]:
    """Returns the filters to offer: values with their counts and addresses, or the ends of a range."""
    offered = []
    for name in dict.fromkeys([*served.fields.filters, *(filter_.name for filter_ in filters)]):
        facet = facets.get(name, {})
        chosen = [filter_ for filter_ in filters if filter_.name == name]
        if "least" in facet:
            offered.append(_range(name, facet, chosen, links))
        elif facet.get("values"):
            values = [_value(Filter(name, value), count, chosen, links) for value, count in facet["values"].items()]
            offered.append({"name": name, "values": values[:FEW_VALUES], "further": values[FEW_VALUES:]})
    return offered


def _range(name: str, facet: Mapping, chosen: Sequence[Filter], links: Links) -> dict[str, object]:
    values = {filter_.operator: filter_.value for filter_ in chosen}
    ends = {prefix: values.get(operator, "") for prefix, operator in RANGE_ENDS.items()}
    others = links.without(pairs=[("filter", str(filter_)) for filter_ in chosen])
    return {"name": name, **facet, "ends": ends, "others": others}


def _value(filter_: Filter, count: int, chosen: Sequence[Filter], links: Links) -> dict[str, object]:
    """Returns a value to filter by, with the address that takes it, or takes it away if it is chosen."""
    pair = "filter", str(filter_)
    pairs = links.without(pairs=[pair])
    is_on = pair[1] in map(str, chosen)
    if not is_on:
        pairs.append(pair)
    return {"value": filter_.value, "count": count, "is_on": is_on, "to": address(pairs)}


def _sorts(served: ServedIndex, facets: Mapping, links: Links, current: str) -> list[tuple[str, str, bool]]:
    """Returns the ways to sort: words, address, and whether it is the current way."""
    sorts = [("best first", links.to("sort"), not current)]
    for name in served.fields.filters:
        if "least" in facets.get(name, {}):
            sorts.append((f"{name}, lowest first", links.to(sort=name), current == name))
            sorts.append((f"{name}, highest first", links.to(sort=f"-{name}"), current == f"-{name}"))
    return sorts
