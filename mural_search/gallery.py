"""The gallery of results: one HTML file with the pictures in it.

Every text from outside is escaped and has its own direction, and its language where that is known, so that browsers
order right-to-left scripts and choose the right Han glyphs.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence

from mural_lite import pages
from mural_lite.files import as_path, write_whole
from mural_lite.pictures import read_file, thumbnail_url
from mural_search import TEMPLATES
from mural_search.items import IMAGES, Item
from mural_search.queries import Result
from mural_search.results import ADDRESS, SIDE, Card, card_of


def write_gallery(path: str | os.PathLike, index, results: Sequence[Result], links: Mapping = {}) -> None:
    """Writes the results of queries as an HTML file, whole or not at all; for the arguments see `page_html`."""
    write_whole(path, page_html(index, results, links))


def page_html(index, results: Sequence[Result], links: Mapping[str, str] = {}) -> str:
    """Returns the HTML of a page with a section per query; a picture that is gone leaves an empty frame with its name.

    Args:
      index: the `Index` of the results.
      links: {words: address} at the foot of the page.
    """
    title = f"{len(results)} queries"
    if len(results) == 1:
        title = results[0].query.name
    return pages.render(
        TEMPLATES / "results.html",
        title=title,
        kind=index.kind,
        count=len(index),
        model=index.model.describe(),
        results=[_section(index, result) for result in results],
        links=links,
        is_address=ADDRESS.fullmatch,
    )


def _section(index, result: Result) -> dict[str, object]:
    """Returns the values that the template shows of a query: {"query", "query_picture", "notes", "cards"}.

    "query_picture" is a data address, or None for a sentence; "cards": [(card, picture, link)], `_picture_and_link`.
    """
    query = result.query
    notes = []
    if query.right and result.first_right:
        notes.append(f"The expected answer is number {result.first_right}.")
    elif query.right:
        notes.append("The expected answer is not among these.")
    if result.nothing_fits:
        notes.append("Nothing fits; the closest:")
    query_picture = None
    if query.image:
        query_picture = thumbnail_url(read_file(query.image), SIDE)
    cards = []
    for hit in result.hits:
        card = card_of(index, hit, index.describe(hit.row), query.language)
        cards.append((card, *_picture_and_link(index, card)))
    return {"query": query, "query_picture": query_picture, "notes": notes, "cards": cards}


def _picture_and_link(index, card: Card) -> tuple[str, str]:
    """Returns a card's picture as a data address, and `_link` of its file; ("", "") where there is no picture."""
    if index.kind != IMAGES:
        return "", ""
    try:
        return thumbnail_url(index.read_image(card.hit.row), SIDE), _link(card.item)
    except (OSError, ValueError):
        return "", ""  # the picture was removed or damaged after it was indexed


def _link(item: Item) -> str:
    """Returns the "file://" address of an image's file, "" for an image in a store or a TFRecord file."""
    path = as_path(item.path)
    is_file = item.offset < 0 and isinstance(path, pathlib.Path) and path.is_absolute()
    return path.as_uri() if is_file else ""
