"""A small search page: plain functions that any HTTP server can mount, and their routes beside the encoders.

    GET  /                                        leads to the page
    GET  /search                                         page_html(…)
    GET  /search/answer?sentence=…&k=…&offset=…          answer(index, embedder, sentence, …) as JSON
    GET  /search/answer?sentence=…&rank=words            by pictures, texts, words or all
    GET  /search/answer?sentence=…&least_precision=0.6   no hits unless so many of the answers as sure are right
    GET  /search/answer?like=<row>&filter=brand=acme&filter=price<20   closest to a row; filters may be repeated
    GET  /search/answer?filter=…&sort=-price             all that passes, by a field
    POST /search/answer?k=…                              the same for the picture that is the body
    GET  /search/facets?filter=…                         the fields' values and their counts, of what passes
    GET  /search/thumbnail/<row>, …/picture/<row>        thumbnail(index, row[, LARGE]), image/jpeg

The page finds its place in its own address, behind a proxy too. Rows, never paths, come in by URLs, and no path of the
machine goes out.
`python -m mural_tf serve --export=… --index=…` mounts the routes at /search.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from mural_tf import pages
from mural_tf.data import pictures
from mural_tf.errors import UserError
from mural_tf.files import as_path
from mural_tf.search.index import Index, load_index
from mural_tf.search.items import IMAGES, TEXTS, Filter, parse_filters
from mural_tf.search.queries import (
    SIDE,
    Hit,
    Query,
    Result,
    browse,
    find,
    in_words,
    search,
    sure_as_json,
)
from mural_tf.search.ranking import CannotBeAsked
from mural_tf.search.server.limits import Budget, Limits, claimed_pixels, read_body
from mural_tf.search.server.rest_json import BadRequest

LONGEST_SENTENCE = 2000  # characters; models read far fewer tokens
MOST_RESULTS = 1000
EXAMPLES = 4  # questions on the page
LARGE = 1600  # pixels of the longer side of a picture that is looked at alone


def page_html(languages: Sequence[str] = (), examples: Sequence[str] = (), knows_how_sure: bool = False) -> str:
    """Returns the page.

    Args:
      languages: BCP 47 codes that can be chosen there, so that typed text gets the right fonts.
      examples: sentences to begin with.
      knows_how_sure: whether the index does, so that only sure answers can be asked for.
    """
    codes = [code for code in languages if code]
    return pages.render("search.html", languages=codes, examples=examples, knows_how_sure=knows_how_sure)


def examples_of(index: Index) -> list[str]:
    """Returns captions of different languages, short ones, English first."""
    found = index.table.captions(8) if index.kind == IMAGES else {}
    order = sorted(found, key=lambda language: (language != "en", language))
    return [min(found[language], key=lambda text: abs(len(text) - 16)) for language in order[:EXAMPLES]]


def answer(
    index: Index,
    embedder,
    sentence: str = "",
    k: int = 20,
    filters: Sequence[Filter] = (),
    like: int | None = None,
    picture: bytes = b"",
    language: str = "",
    least_precision: float = 0.0,
    rank: str = "",
    offset: int = 0,
    sort: str = "",
) -> dict[str, object]:
    """Returns the `k` items closest to a sentence in any language, or to a row, or to a picture, as JSON values.

    Asked nothing, it returns all that passes the filters, in the order of the index.

    Args:
      index, embedder: the model made the index.
      sentence: at most 2,000 characters.
      k: 1 to 1,000. offset: of the first one; at most 1,000 are ranked.
      filters: see `Index.search`.
      like: a row of the index, which is not among the hits.
      picture: encoded.
      language: of the captions to show, where there are several; otherwise English ones, or the first.
      least_precision: leave out the hits of a sentence that is answered less surely, see `confidence.Sureness`.
      rank, sort: see `queries.search`.

    Returns:
      {"sentence", "kind", "count", "matching", "total", "index", "hits": [{"rank", "score", "row", "name", "caption",
      "language", "has_image", "fields", "found_by", "alike"}]}; `matching` items pass the filters, `total` can be paged
      through; `index` is another text when the rows have changed; see `queries.Hit`. Where nothing passes, "relax":
      {filter: how many pass without it}. For a sentence and without filters, where the index knows: "probability",
      "precision" and "in_words", and "left_out": true where these are too small and there are no hits.

    Raises:
      ValueError: an empty sentence, or what is outside of these bounds.
    """
    if len(sentence) > LONGEST_SENTENCE:
        raise ValueError(f"The sentence has {len(sentence)} characters; at most {LONGEST_SENTENCE} are read.")
    if not 1 <= k <= MOST_RESULTS:
        raise ValueError(f"k must be between 1 and {MOST_RESULTS}, got {k}.")
    if not 0 <= offset <= MOST_RESULTS - k and (sentence or picture or like is not None):
        raise ValueError(f"offset must be between 0 and {MOST_RESULTS} - k, got {offset}: no more are ranked.")
    if not 0.0 <= least_precision <= 1.0:
        raise ValueError(f"least_precision must be between 0 and 1, got {least_precision}.")
    if (rank or least_precision) and not sentence:
        raise ValueError("rank and least_precision are for sentences: give one, in any language.")
    if picture and (sentence or like is not None):
        raise ValueError("A picture is sent: give no sentence, and no row that results shall be like.")
    order, sure = dict(offset=offset, sort=sort), {}
    rows = index.rows(filters)
    sizes = {"count": index.count, "matching": index.count if rows is None else len(rows)}
    result = None
    if sentence.strip():
        (result,) = search(
            index, embedder, [Query(sentence)], k, filters, rank=rank, least_precision=least_precision, **order
        )
        sure = {**sure_as_json(result), "in_words": in_words(result.sure.probability)} if result.sure else {}
    elif sentence:
        raise ValueError("The sentence is empty: give one in any language.")
    elif like is not None:
        result = _like(index, like, k, filters, **order)
    elif picture:
        try:
            vector = embedder.encode_image([picture])
        except UserError:
            raise ValueError("The picture cannot be read: expected a whole JPEG, PNG or WebP.") from None
        result = find(index, vector, [Query(image="picture")], k, filters, **order)[0]
    hits = browse(index, k, filters, **order) if result is None else result.hits
    sizes["total"] = sizes["matching"] if result is None else min(result.total, MOST_RESULTS)
    described = {"sentence": sentence, "kind": index.kind, **sizes, "index": index.created, **sure}
    if not sizes["matching"]:
        others = {one: index.rows([other for other in filters if other != one]) for one in filters}
        described["relax"] = {str(one): len(index) if rows is None else len(rows) for one, rows in others.items()}
    return {**described, "hits": [_hit(index, hit, language or "en") for hit in hits]}


def _like(index: Index, row: int, k: int, filters: Sequence[Filter], offset: int, sort: str) -> Result:
    try:
        name = index.describe(row).name
    except IndexError as error:
        raise ValueError(str(error)) from None
    vector = index.embeddings[row][None].astype(np.float32)
    found = find(index, vector, [Query(image=name)], offset + k + 1, filters, sort=sort, fold=False)[0]
    others = [hit for hit in found.hits if hit.row != row]
    hits = [dataclasses.replace(hit, rank=rank) for rank, hit in enumerate(others, start=1)][offset : offset + k]
    return dataclasses.replace(found, hits=tuple(hits), total=found.total - (len(others) < len(found.hits)))


def _hit(index: Index, hit: Hit, language: str) -> dict[str, object]:
    item = index.describe(hit.row)
    language, caption = (item.language, item.name) if index.kind == TEXTS else item.caption(language)
    name = os.path.basename(item.name) if index.kind == IMAGES else ""
    shown = {"rank": hit.rank, "score": round(hit.score, 4), "row": hit.row, "name": name, "caption": caption}
    shown |= {"language": language, "has_image": item.has_image, "fields": item.fields}
    return {**shown, "found_by": hit.found_by, "alike": hit.alike}


def thumbnail(index: Index, row: int, side: int = SIDE) -> bytes:
    """Returns a small JPEG of the image of a row, or of the image that a text describes, without what is not pixels.

    Raises `IndexError` for a row that is not there, `OSError` or `ValueError` if its image is gone or damaged.
    """
    return pictures.thumbnail(index.read_image(row), side)


DEFAULT_RESULTS = 20
ASKED = ("sentence", "like", "k", "offset", "filter", "rank", "sort", "language", "least_precision")
LANGUAGE = re.compile(r"([A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*)?")
# A row's picture is another one when the index has changed; the page's addresses of thumbnails change with it.
CACHED = {"Cache-Control": "private, max-age=3600"}


class ServedIndex:
    """The index in a folder, opened again when the folder holds another one: rows were removed, or it was updated.

    Args:
      index: as it was opened first.
      embedder: the model that made it.
      languages: see `page_html`.
      folder: where it lies on this machine; "": it stays as it is.
    """

    def __init__(self, index: Index, embedder, languages: Sequence[str] = (), folder: str | os.PathLike = ""):
        index.check_model(embedder)
        self.embedder, self._languages = embedder, languages
        self._folder = pathlib.Path(folder) if folder and isinstance(as_path(folder), pathlib.Path) else None
        self._use(index)

    def _use(self, index: Index) -> None:
        self.index = index
        self.page = page_html(self._languages, examples_of(index), index.confidence is not None)

    def refresh(self) -> None:
        """Opens a changed index again; one that cannot be opened, or is another model's, leaves the former one."""
        if self._folder is None or self.index.is_current():
            return
        try:
            index = load_index(self._folder)
            index.check_model(self.embedder)
        except UserError as error:
            logging.warning("The index has changed and cannot be served; the former one is: %s", error)
        else:
            self._use(index)


def search_routes(
    index: Index,
    embedder,
    languages: Sequence[str] = (),
    limits: Limits | None = None,
    folder: str | os.PathLike = "",
) -> list:
    """Returns the routes of the search page, for `create_app(…, extra_routes=…)`.

    Sentences are answered in a thread, one at a time, so that other requests go on, and pictures in another, because
    one may take seconds; thumbnails have threads of their own.

    Args:
      index: from `mural_tf.search.index.load_index`.
      embedder: the model that made it, `mural_tf.load(…)`.
      languages: BCP 47 codes that the page offers, so that typed text gets the right fonts.
      limits: of pictures that are sent; defaults if None.
      folder: of the index, to notice that it has changed.

    Raises:
      UserError: another model made the index.
    """
    from aiohttp import web  # only now: the functions above serve others too

    served, limits = ServedIndex(index, embedder, languages, folder), limits or Limits()
    sentences, pictures = (concurrent.futures.ThreadPoolExecutor(1, name) for name in ("sentences", "pictures"))
    in_flight = Budget(limits.max_bytes_in_flight, "bytes")

    async def show(request: web.Request) -> web.Response:
        return web.Response(text=served.page, content_type="text/html")

    async def lead(request: web.Request) -> web.Response:
        raise web.HTTPFound("/search")

    async def show_answer(request: web.Request, picture: bytes = b"") -> web.Response:
        asked = _asked(request.query)

        def ask() -> dict[str, object]:
            served.refresh()
            return answer(served.index, embedder, picture=picture, **asked)

        try:
            found = await _in_thread(pictures if picture else sentences, ask)
        except CannotBeAsked as error:
            raise BadRequest(str(error)) from None
        except UserError:  # of whoever runs the server: a damaged index, and where it lies
            raise
        except ValueError as error:
            raise BadRequest(str(error)) from None
        return web.Response(text=json.dumps(found), content_type="application/json")

    async def show_answer_to_picture(request: web.Request) -> web.Response:
        with in_flight.share() as grow:
            picture = bytes((await read_body(request, limits, grow))[0])
            pixels = await _in_thread(None, claimed_pixels, [picture], limits)
            if not pixels[0]:
                raise BadRequest("The body is not a picture: expected a JPEG, PNG or WebP.")
            return await show_answer(request, picture)

    async def show_facets(request: web.Request) -> web.Response:
        filters = _asked(request.query, ("filter",))["filters"]
        found = await _in_thread(sentences, lambda: served.index.facets(filters))
        return web.Response(text=json.dumps(found), content_type="application/json")

    async def show_image(request: web.Request, side: int) -> web.Response:
        try:
            image = await _in_thread(None, thumbnail, served.index, int(request.match_info["row"]), side)
        except IndexError as error:
            raise web.HTTPNotFound(text=str(error)) from None
        except (OSError, ValueError):
            raise web.HTTPNotFound(text="The image of this row is gone or damaged.") from None
        return web.Response(body=image, content_type="image/jpeg", headers=CACHED)

    return [
        web.get("/", lead),
        web.get("/search", show),
        web.get("/search/answer", show_answer),
        web.get("/search/facets", show_facets),
        web.post("/search/answer", show_answer_to_picture),
        web.get(r"/search/thumbnail/{row:\d{1,18}}", functools.partial(show_image, side=SIDE)),
        web.get(r"/search/picture/{row:\d{1,18}}", functools.partial(show_image, side=LARGE)),
    ]


def _asked(query: Mapping[str, str], known: Sequence[str] = ASKED) -> dict[str, object]:
    """Returns what a request asks, as arguments of `answer`; raises `BadRequest`, which names what is wrong."""
    unknown = sorted(set(query) - set(known))
    if unknown:
        raise BadRequest(f"Nothing is known of {unknown[0]!r}; it takes {', '.join(known)}.")
    for name in known:
        if name != "filter" and len(query.getall(name, [])) > 1:
            raise BadRequest(f"{name} is given {len(query.getall(name))} times: give it once.")
    if query.get("sentence") and "like" in query:
        raise BadRequest("Give a sentence, or a row that results shall be like; not both.")
    if not LANGUAGE.fullmatch(query.get("language", "")):
        raise BadRequest(f"language must be a code like en or pt-BR, got {query['language']!r}.")
    try:
        asked = {"filters": parse_filters(query.getall("filter", []))}
    except UserError as error:
        raise BadRequest(str(error)) from None
    asked |= {name: query.get(name, "") for name in ("sentence", "language", "rank", "sort")}
    numbers = (("k", int, DEFAULT_RESULTS), ("offset", int, 0), ("like", int, None), ("least_precision", float, 0.0))
    for name, kind, default in numbers:
        try:
            asked[name] = kind(query[name]) if name in query else default
        except ValueError:
            raise BadRequest(f"{name} must be a number, got {query[name]!r}.") from None
    return asked


async def _in_thread(executor, function, *arguments):
    return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
