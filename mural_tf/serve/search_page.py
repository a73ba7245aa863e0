"""The search page of an index beside the encoders: `python -m mural_tf serve --export=… --index=…`, then /search.

The functions behind it are `mural_tf.search.web`'s. They run in a thread, one search at a time, so that other requests
go on; thumbnails have threads of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import Sequence

from aiohttp import web

from mural_tf.search import web as search_web
from mural_tf.search.index import Index
from mural_tf.serve.rest_json import BadRequest

DEFAULT_RESULTS = 20
# Thumbnails of one index do not change while it is served.
CACHED = {"Cache-Control": "private, max-age=3600"}


def search_routes(index: Index, embedder, languages: Sequence[str] = (), prefix: str = "/search") -> list[web.RouteDef]:
    """Returns the routes of the search page, for `create_app(…, extra_routes=…)`.

    Args:
      index: from `mural_tf.search.index.load_index`.
      embedder: the model that made it, `mural_tf.load(…)`.
      languages: BCP 47 codes that the page offers, for the right fonts of what is typed.
      prefix: where the page is.

    Raises:
      UserError: another model made the index.
    """
    index.check_model(embedder)
    page = search_web.page_html(languages)
    searching = concurrent.futures.ThreadPoolExecutor(1, "search")

    async def show(request: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    async def answer(request: web.Request) -> web.Response:
        sentence = request.query.get("sentence", "")
        try:
            count = int(request.query.get("k", DEFAULT_RESULTS))
        except ValueError:
            raise BadRequest(f"k must be a number, got {request.query['k']!r}.") from None
        try:
            found = await _in_thread(searching, search_web.answer, index, embedder, sentence, count)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        return web.Response(text=json.dumps(found), content_type="application/json")

    async def thumbnail(request: web.Request) -> web.Response:
        try:
            image = await _in_thread(None, search_web.thumbnail, index, int(request.match_info["row"]))
        except IndexError as error:
            raise web.HTTPNotFound(text=str(error)) from None
        except (OSError, ValueError):
            raise web.HTTPNotFound(text="The image of this row is gone or damaged.") from None
        return web.Response(body=image, content_type="image/jpeg", headers=CACHED)

    return [
        web.get(prefix, show),
        web.get(prefix + "/answer", answer),
        web.get(prefix + r"/thumbnail/{row:\d{1,18}}", thumbnail),
    ]


async def _in_thread(executor, function, *arguments):
    return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
