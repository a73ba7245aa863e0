"""The routes of the search page, for any server of aiohttp.

GET  /search?sentence=…&filter=brand=acme       the page of an answer; without a question of all items
GET  /search?item=<row>                         the page of one item with all of its fields
GET  /search/answer?sentence=…&k=…&offset=…     the answer as JSON, see `Answer.to_json`
POST /search/answer                             the same for the picture that is the body; from the page's form,
                                                where it is a part of the body, leads to its answer's page
GET  /search/picture/<row>[?side=240]           a JPEG of at most 1,600, or 240, pixels a side
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import json
import os
from collections.abc import Callable

import numpy as np
from aiohttp import web

from mural_lite.errors import UserError
from mural_search.index import Index
from mural_search.ranking import CannotBeAsked
from mural_search.results import SIDE
from mural_search.server.addresses import address, ranges_as_filters, read_question, to_number, vector_code
from mural_search.server.answers import answer
from mural_search.server.lasting_rows import row_of
from mural_search.server.limits import BadRequest, check_picture
from mural_search.server.search_page import page_html
from mural_search.server.served_index import ServedIndex, thumbnail
from mural_search.server.settings import DEFAULTS, PageSettings

LARGE = 1600  # pixels of the longer side of a picture that is shown by itself
IN_LANGUAGES = {"Vary": "Accept-Language"}  # headers of a page, whose language the browser's header chooses
# A row's picture is another one when the index has changed; the page's addresses of pictures change with it.
CACHED = {"Cache-Control": "private, max-age=3600"}


def search_routes(
    index: Index, embedder, settings: PageSettings = DEFAULTS, folder: str | os.PathLike = ""
) -> list[web.RouteDef]:
    """Returns the routes of the search page, for `create_app`.

    Args:
      index, embedder, settings, folder: as `ServedIndex` takes them.

    Raises:
      UserError: the index, the model and the settings do not fit each other.
    """
    search = _Search(ServedIndex(index, embedder, settings, folder))
    return [
        web.get("/{page:(search)?}", search.show_page),  # also /, which leads to the page
        web.get("/search/answer", search.show_answer),
        web.post("/search/answer", search.show_answer_to_picture),
        web.get(r"/search/picture/{row:\d{1,18}}", search.show_picture),
    ]


class _Search:
    """Handlers of the routes: one thread answers questions, and two threads read pictures, so that requests go on."""

    def __init__(self, served: ServedIndex):
        self._served = served
        self._answering = concurrent.futures.ThreadPoolExecutor(1, "questions")
        self._answering.submit(served.refresh)  # before the first question, which would take longer
        self._reading = concurrent.futures.ThreadPoolExecutor(2, "pictures")

    async def show_page(self, request: web.Request) -> web.Response:
        """Answers GET /search with the page of an answer or of an item; redirects addresses of other forms there."""
        if not request.match_info["page"]:
            raise web.HTTPFound("search")
        address_with_filters = ranges_as_filters(request.query)
        if address_with_filters:
            raise web.HTTPFound(address_with_filters)
        page = await _in_thread(self._answering, self._page, request)
        return web.Response(text=page, content_type="text/html", headers=IN_LANGUAGES)

    def _page(self, request: web.Request) -> str:
        """Returns the page of an answer or of an item as HTML, from the newest index."""
        self._served.refresh()
        return page_html(self._served, request.query, request.headers.get("Accept-Language", ""))

    async def show_answer(self, request: web.Request, picture: np.ndarray | None = None) -> web.Response:
        """Answers /search/answer with the answer as JSON; `picture` is the vector of a picture in the question."""
        text = await _in_thread(self._answering, self._answer, request, picture)
        return web.Response(text=text, content_type="application/json")

    def _answer(self, request: web.Request, picture: np.ndarray | None) -> str:
        """Returns the answer to the question in a request and a picture's vector, float32 [D], as a text of JSON."""
        served = self._served
        served.refresh()
        find_row = functools.partial(row_of, served.index)
        question = read_question(request.query, served.index.embeddings.shape[1], find_row)
        question = dataclasses.replace(question, picture=picture)
        return json.dumps(answer(served.index, served.embedder, question).to_json(served.shop))

    async def show_answer_to_picture(self, request: web.Request) -> web.Response:
        """Answers POST /search/answer: a picture as the body with JSON; redirects the page's form to a page."""
        if request.content_type != "multipart/form-data":
            vector = await _in_thread(self._reading, self._encode, await request.read())
            return await self.show_answer(request, vector)
        vector = await _in_thread(self._reading, self._encode, await _picture_of_form(request))
        raise web.HTTPSeeOther(f"../{address([('picture', vector_code(vector))])}")

    def _encode(self, picture: bytes) -> np.ndarray:
        """Returns the vector of an encoded picture, float32 [D]; raises `BadRequest` for a picture that is refused."""
        self._served.check_pictures()  # raises `UserError` for an index that cannot answer pictures
        check_picture(picture)
        try:
            (vector,) = self._served.embedder.encode_image([picture])
            return vector
        except UserError:
            raise BadRequest("The picture cannot be read: expected a whole JPEG, PNG or WebP.") from None

    async def show_picture(self, request: web.Request) -> web.Response:
        """Answers GET /search/picture/<row> with the row's picture as a JPEG, of the size that `side` asks for."""
        side = to_number("side", request.query.get("side", str(LARGE)))
        if side not in (LARGE, SIDE):
            raise BadRequest(f"side must be one of {LARGE}, {SIDE}, got {side}.")
        make_thumbnail = functools.partial(thumbnail, self._served.index, side=side)
        if side == SIDE:
            make_thumbnail = self._served.thumbnail  # which keeps small pictures in memory
        try:
            row = int(request.match_info["row"])
            image = await asyncio.get_running_loop().run_in_executor(self._reading, make_thumbnail, row)
        except IndexError as error:
            raise web.HTTPNotFound(text=str(error)) from None
        except (OSError, ValueError):
            raise web.HTTPNotFound(text="The image of this row is gone or damaged.") from None
        return web.Response(body=image, content_type="image/jpeg", headers=CACHED)


async def _in_thread(threads: concurrent.futures.Executor, function: Callable, *arguments):
    """Returns the result of `function(*arguments)`, called in one of the threads.

    A `ValueError` of the function is a mistake of the client and becomes a `BadRequest` with its message. The
    `UserError` of a damaged index, which names the index's folder, is raised as it is: it is for the server's owner.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)
    except CannotBeAsked as error:  # a `UserError` about the question
        raise BadRequest(str(error)) from None
    except (BadRequest, UserError):
        raise
    except ValueError as error:
        raise BadRequest(str(error)) from None


async def _picture_of_form(request: web.Request) -> bytes:
    """Returns the encoded picture in the form of the page; raises `BadRequest` for a form without a picture."""
    try:
        file = (await request.post()).get("picture")
    except (ValueError, AssertionError, RuntimeError) as error:  # aiohttp's, of a damaged form
        raise BadRequest(f"The form cannot be read: {error}.") from None
    if not isinstance(file, web.FileField):
        raise BadRequest("The form has no picture: expected a file in its part 'picture'.")
    return file.file.read()
