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
    """Returns the lines to print: the query, whether nothing fits, and each hit in a line."""
    heading = f"{result.query.name!r} in {len(index):,} {index.kind}:"
    if result.nothing_fits:
        heading += " Nothing fits; the closest:"
    lines = [heading]
    lines += [_line(index, hit, result.query.language) for hit in result.hits]
    if result.query.right and result.first_right is None:
        lines.append("      none of the right answers")
    return lines


def _line(index, hit: Hit, language: str) -> str:
    """Returns a hit in a line, with its caption in `language` if it has one, and the fields that the index shows."""
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
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…"


def to_json(index, results: Sequence[Result]) -> str:
    """Returns {"model", "kind", "count", "results": [{"query", "hits": [{"rank", "score", "row", "name", …}]}]}."""
    result_values = []
    for result in results:
        values = {"query": _present(dataclasses.asdict(result.query))}
        if result.nothing_fits:
            values["nothing_fits"] = True
        hits = [_hit_values(index.describe(hit.row), hit) for hit in result.hits]
        result_values.append({**values, "first_right": result.first_right, "hits": hits})
    values = {"model": str(index.model), "kind": index.kind, "count": len(index), "results": result_values}
    return json.dumps(values, ensure_ascii=False, indent=2)


def _hit_values(item: Item, hit: Hit) -> dict[str, object]:
    """Returns a hit as JSON values: {"rank", "score", "row", "name"} and the known values of its item."""
    details = {
        "path": item.path,
        "language": item.language,
        "captions": [list(caption) for caption in item.captions],
        "offset": item.offset if item.offset >= 0 else "",
        "fields": item.fields,
        "found_by": hit.found_by,
        "alike": hit.alike or "",
        "right": hit.right or "",
    }
    return {"rank": hit.rank, "score": round(hit.score, 6), "row": hit.row, "name": hit.name, **_present(details)}


def _present(values: dict) -> dict:
    """Returns the values that are not empty; 0 and False stay."""
    return {key: value for key, value in values.items() if value not in ("", [], (), {})}


class Card(NamedTuple):
    """A hit as pages show it.

    Attributes:
      language, caption: a caption and its language, "" without a caption.
      fields: the fields that the card shows; an item may have more.
    """

    hit: Hit
    item: Item
    language: str
    caption: str
    fields: dict[str, str]

    @property
    def further_fields(self) -> dict[str, str]:
        """The fields that the card does not show."""
        return {name: value for name, value in self.item.fields.items() if name not in self.fields}


def card_of(index, hit: Hit, item: Item, language: str) -> Card:
    """Returns the card of a hit, with the item's caption in `language` if it has one; a text is its own caption."""
    if index.kind == TEXTS:
        language = item.language
        caption = item.name
    else:
        language, caption = item.caption(language)
    return Card(hit, item, language, caption, fields.of_index(index).of(item))
