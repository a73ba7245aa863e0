"""The page of what was found: one HTML file with the pictures in it.

Every text from outside is escaped and has its own direction, and its language where that is known, so that browsers
order right-to-left scripts and choose the right Han glyphs.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from mural_tf import pages
from mural_tf.data.pictures import read_file, thumbnail_url
from mural_tf.files import as_path, write_whole
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES, Item
from mural_tf.search.queries import Hit, Result, describe_sure

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
