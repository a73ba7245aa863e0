"""Results of queries in lines, as JSON, and as cards for pages."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from mural_lite.printable import visible
from mural_search import fields
from mural_search.items import TEXTS, Item
from mural_search.queries import Hit, Result

# Characters of a line.
LONGEST_CAPTION = 80
LONGEST_VALUE = 30
SIDE = 240  # pixels of the longer side of a card's image
ADDRESS = re.compile(r"https?://[^\s\"'<>`\\]+")


def to_lines(index, result: Result) -> list[str]:
    """Returns the lines to print for a query: its name, whether nothing fits, and a line per hit, best first."""
    heading = f"{result.query.name!r} in {len(index):,} {index.kind}:"
    if result.nothing_fits:
        heading += " Nothing fits; the closest:"
    lines = [heading]
    lines += [_line(index, hit, result.query.language) for hit in result.hits]
    if result.query.right and result.first_right is None:
        lines.append("      none of the right answers")
    return lines


def _line(index, hit: Hit, language: str) -> str:
    """Returns a hit as a line: rank, score, name, a caption, the fields that the index shows, and notes in brackets.

    `language`: the preferred language of the caption, "" for English.
    """
    item = index.describe(hit.row)
    _, caption = item.caption(language)
    parts = [f"{hit.rank:4}  {hit.score:+.3f}", hit.name]
    if caption:
        parts.append(_shortened(caption, LONGEST_CAPTION))
    for name, value in fields.of_index(index).of(item).items():
        parts.append(f"{name}={_shortened(value, LONGEST_VALUE)}")
    if hit.alike:
        parts.append(f"(and {hit.alike} alike)")
    if hit.why:
        parts.append(f"[{hit.why}]")
    if hit.right:
        parts.append("(right)")
    return "  ".join(visible(part).replace("\n", " ") for part in parts)


def _shortened(text: str, most: int) -> str:
    """Returns a text of at most `most` characters; a longer text ends in "…"."""
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…"


def to_json(index, results: Sequence[Result]) -> str:
    """Returns the results of queries as JSON text.

    It is {"model", "kind", "count", "results": [result, …]}; "count" is the number of items in the index. A result
    is {"query", "first_right", "hits": [{"rank", "score", "row", "name", …}]}, and has "nothing_fits" if that is true.
    """
    json_results = []
    for result in results:
        json_result = {"query": _without_empty(dataclasses.asdict(result.query))}
        if result.nothing_fits:
            json_result["nothing_fits"] = True
        json_result["first_right"] = result.first_right
        json_result["hits"] = [_json_hit(index.describe(hit.row), hit) for hit in result.hits]
        json_results.append(json_result)
    values = {"model": str(index.model), "kind": index.kind, "count": len(index), "results": json_results}
    return json.dumps(values, ensure_ascii=False, indent=2)


def _json_hit(item: Item, hit: Hit) -> dict[str, object]:
    """Returns a hit as JSON values: {"rank", "score", "row", "name"}, and further values that it and its item have."""
    json_hit = {"rank": hit.rank, "score": round(hit.score, 6), "row": hit.row, "name": hit.name}
    captions = [list(caption) for caption in item.captions]
    json_hit |= _without_empty({"path": item.path, "language": item.language, "captions": captions})
    if item.offset >= 0:
        json_hit["offset"] = item.offset
    json_hit |= _without_empty({"fields": item.fields, "found_by": hit.found_by})
    if hit.alike:
        json_hit["alike"] = hit.alike
    if hit.right:
        json_hit["right"] = True
    return json_hit


def _without_empty(values: dict) -> dict:
    """Returns the values that are not an empty text, list, tuple or dictionary; 0 and False stay."""
    return {key: value for key, value in values.items() if value not in ("", [], (), {})}


class Card(NamedTuple):
    """A hit as pages show it.

    Attributes:
      language: the caption's language, "" without a caption.
      caption: the caption to show, "" without a caption.
      fields: {name: value} of the fields that the card shows; the item may have more.
    """

    hit: Hit
    item: Item
    language: str
    caption: str
    fields: dict[str, str]

    @property
    def further_fields(self) -> dict[str, str]:
        """{name: value} of the item's fields that the card does not show."""
        return {name: value for name, value in self.item.fields.items() if name not in self.fields}


def card_of(index, hit: Hit, item: Item, language: str) -> Card:
    """Returns the card of a hit in an index; `item` is the hit's.

    Its caption is in `language`, if the item has such a caption; in an index of texts it is the text itself.
    """
    if index.kind == TEXTS:
        language = item.language
        caption = item.name
    else:
        language, caption = item.caption(language)
    return Card(hit, item, language, caption, fields.of_index(index).of(item))
