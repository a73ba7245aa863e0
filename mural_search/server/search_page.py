"""The search page as HTML: the page of an answer, and the page of an item.

The page finds its place in its own address, behind a proxy too. Rows, never paths, come in by addresses, and no path of
the machine goes out.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from mural_lite import pages
from mural_lite.printable import visible
from mural_search import TEMPLATES
from mural_search.items import TEXTS, Filter
from mural_search.results import ADDRESS
from mural_search.server.addresses import PAGE_PARAMETERS, RANGE_ENDS, Links, address, read_question
from mural_search.server.answers import DEFAULT_RESULTS, answer, item_of
from mural_search.server.labels import LANGUAGES, Labels, preferred
from mural_search.server.lasting_rows import lasting_row, row_of
from mural_search.server.marks import mark
from mural_search.server.served_index import ServedIndex

FEW_VALUES = 8  # values of a filter that are shown before "more"
SCRIPT = (TEMPLATES / "search.js").read_text(encoding="utf-8").strip()  # answers while typing; the page does without
_DIGEST = hashlib.sha256(SCRIPT.encode("utf-8")).digest()
SCRIPT_HASH = base64.b64encode(_DIGEST).decode("ascii")
COUNTED = 100_000  # items whose fields are counted for a page; for more items the page shows the index's counts


def page_html(served: ServedIndex, query: Mapping[str, str], accepted: str = "") -> str:
    """Returns the HTML of an item's page, if the address has the parameter `item`, and otherwise of an answer's page.

    Args:
      served: the index that answers, with its settings.
      query: the parameters of the address, as `read_question` takes them.
      accepted: the browser's header Accept-Language, which chooses the language of the page's words, and of captions
        where there are several, unless the settings choose the language.

    Raises:
      ValueError: the question cannot be answered.
      web.HTTPNotFound: the item is no longer in the index.
    """
    settings = served.settings
    links = Links(query)
    labels = Labels(settings.language or preferred(accepted, LANGUAGES) or "en")
    header = f"{settings.language},{accepted}" if settings.language else accepted  # the settings' wish comes first
    caption_language = preferred(header, served.languages)
    if "item" in query:
        values = _item_values(served, row_of(served.index, "item", query["item"]), caption_language)
        template = "item.html"
    else:
        values = _answer_values(served, query, caption_language, links, labels)
        template = "search.html"
    return pages.render(
        TEMPLATES / template,
        title=settings.title or labels("title"),
        logo=served.logo,
        colors=settings.colors(),
        t=labels,
        index=served.index,
        links=links,
        lasting_row=functools.partial(lasting_row, served.index),
        is_address=ADDRESS.fullmatch,
        product_of=served.shop.product_of,
        number_field=served.shop.number,
        **values,
    )


def _item_values(served: ServedIndex, row: int, language: str) -> dict[str, object]:
    """Returns {variable: value} of the template item.html; captions in `language` come first."""
    item = item_of(served.index, row)
    captions = sorted(item.captions, key=lambda caption: caption[0] != language)  # of (language, text)
    if served.index.kind == TEXTS:  # whose items are their own captions
        captions = [("", item.name)]
    return {"row": row, "item": item, "captions": captions, "as_filter": served.fields.filters}


def _answer_values(
    served: ServedIndex, query: Mapping[str, str], language: str, links: Links, labels: Labels
) -> dict[str, object]:
    """Returns {variable: value} of the template search.html for the question in an address.

    Args:
      served: the index that answers.
      query: the parameters of the address.
      language: the language of the captions to show.
      links: addresses that differ from this address.
      labels: the page's words.
    """
    index = served.index
    find_row = functools.partial(row_of, index)
    question = read_question(query, index.embeddings.shape[1], find_row, PAGE_PARAMETERS)
    answered = answer(index, served.embedder, dataclasses.replace(question, language=language))
    filters = question.filters
    counted_filters = ()  # without filters the index has its counts at hand
    if answered.matching <= COUNTED:
        counted_filters = tuple(filters)
    facets = index.facets(counted_filters)
    unknown_fields = []
    if not answered.matching:
        unknown_fields = [filter_.name for filter_ in filters if filter_.name not in index.facets()]
    return {
        "answer": answered,
        "facets": _facets(served, facets, filters, links),
        "sorts": _sorts(served, facets, links, question.sort, labels),
        "things": labels(answered.kind, count=labels.number(answered.matching)),
        "asked": Markup("<bdi>{}</bdi>").format(visible(question.sentence)),
        "mark": functools.partial(mark, question=question.sentence),
        "script": Markup(SCRIPT),
        "script_hash": SCRIPT_HASH,
        "unknown": unknown_fields,  # fields of filters that no item has
        "is_shown": not answered.nothing_fits or "closest" in query,
        "closest": {"closest": 1} if query.get("closest") else {},  # kept in further addresses
        "examples": [] if question.is_ranked else served.examples,
        "before": max(0, question.offset - DEFAULT_RESULTS) if question.offset else None,  # `offset` of the page before
    }


def _facets(served: ServedIndex, facets: Mapping, filters: Sequence[Filter], links: Links) -> list[dict[str, object]]:
    """Returns the fields by which the page offers to filter, without numbers in stock, as the template takes them.

    A field of few values is {"name", "values", "further"}, see `_value`; a field of many numbers is a `_range`.

    Args:
      served: the index that answers.
      facets: {field: its contents}, see `ItemTable.facets`.
      filters: the chosen filters, whose fields are offered as well.
      links: addresses that differ from the page's address.
    """
    offered_fields = []
    names = [*served.fields.filters]
    names += [filter_.name for filter_ in filters]
    for name in dict.fromkeys(names):  # each name once
        facet = facets.get(name, {})
        chosen = [filter_ for filter_ in filters if filter_.name == name]
        if "least" in facet:  # many numbers or dates
            offered_fields.append(_range(name, facet, chosen, links))
        elif facet.get("values") and not served.shop.counts_stock(name, facet["values"]):
            values = []
            for value, count in facet["values"].items():
                words = served.shop.in_words(name, value)
                values.append({"words": words, **_value(Filter(name, value), count, chosen, links)})
            offered_fields.append({"name": name, "values": values[:FEW_VALUES], "further": values[FEW_VALUES:]})
    return offered_fields


def _range(name: str, facet: Mapping, chosen: Sequence[Filter], links: Links) -> dict[str, object]:
    """Returns a field with a range to filter by: {"name", "least", "most", "ends", "others"}.

    "ends" has the chosen ends of the range, {"from.": text, "to.": text}; "others" are the (name, text) of the
    parameters that the range's form sends besides.
    """
    bounds = {filter_.operator: filter_.value for filter_ in chosen}
    ends = {prefix: bounds.get(operator, "") for prefix, operator in RANGE_ENDS.items()}
    others = links.without(pairs=[("filter", str(filter_)) for filter_ in chosen])
    return {"name": name, **facet, "ends": ends, "others": others}


def _value(filter_: Filter, count: int, chosen: Sequence[Filter], links: Links) -> dict[str, object]:
    """Returns a value to filter by, {"value", "count", "is_on", "to"}.

    "is_on" says whether the filter is among the `chosen` filters; "to" is the address that adds it, or else removes it.
    """
    pair = "filter", str(filter_)
    pairs = links.without(pairs=[pair])
    is_on = str(filter_) in map(str, chosen)
    if not is_on:
        pairs.append(pair)
    return {"value": filter_.value, "count": count, "is_on": is_on, "to": address(pairs)}


def _sorts(
    served: ServedIndex, facets: Mapping, links: Links, current: str, labels: Labels
) -> list[tuple[str, str, bool]]:
    """Returns (words, address, whether it is the current way) of each way to sort.

    `current` is the question's `sort`: the name of a field, "-" and a name for the largest first, or "" for the best
    first.
    """
    sorts = [(labels("best_first"), links.to("sort"), not current)]
    for name in served.fields.filters:
        if "least" in facets.get(name, {}):  # a field of many numbers or dates
            sorts.append((labels("lowest", name=name), links.to(sort=name), current == name))
            sorts.append((labels("highest", name=name), links.to(sort=f"-{name}"), current == f"-{name}"))
    return sorts
