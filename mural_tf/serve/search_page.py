"""A small search page: plain functions that any HTTP server can mount, and their routes beside the encoders.

    GET <prefix>                         page_html(languages)
    GET <prefix>/answer?sentence=…&k=…   answer(index, embedder, sentence, k) as JSON
    GET <prefix>/thumbnail/<row>         thumbnail(index, row), image/jpeg

The page finds its prefix in its own address. Rows, never paths, come in by URLs, and no path of the machine goes out.
`python -m mural_tf serve --export=… --index=…` mounts the routes at /search.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import hashlib
import html
import json
import os
import pathlib
from collections.abc import Sequence

from mural_tf.data import pictures
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES, TEXTS
from mural_tf.search.pages import SIDE, language_attribute
from mural_tf.search.queries import Query, search
from mural_tf.serve.rest_json import BadRequest

LONGEST_SENTENCE = 2000  # characters; models read far fewer tokens
MOST_RESULTS = 100
TEMPLATE = pathlib.Path(__file__).with_name("search_page.html")


def page_html(languages: Sequence[str] = ()) -> str:
    """Returns the page; `languages` (BCP 47) can be chosen there, so that typed text gets the right fonts."""
    page = TEMPLATE.read_text(encoding="utf-8")
    codes = [code for code in languages if language_attribute(code)]
    options = "".join(f'<option value="{html.escape(code)}">{html.escape(code)}</option>' for code in codes)
    script = page[page.index("<script>") + len("<script>") : page.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return page.replace("{{script_hash}}", digest).replace("{{language_options}}", options)


def answer(index: Index, embedder, sentence: str, k: int = 20) -> dict[str, object]:
    """Returns the `k` items closest to a sentence in any language, as JSON values.

    Returns:
      {"sentence", "kind", "count", "hits": [{"rank", "score", "row", "name", "caption", "language", "has_image"}]}.

    Raises:
      ValueError: an empty sentence or one of more than 2,000 characters, k outside [1, 100].
    """
    if len(sentence) > LONGEST_SENTENCE:
        raise ValueError(f"The sentence has {len(sentence)} characters; at most {LONGEST_SENTENCE} are read.")
    if not 1 <= k <= MOST_RESULTS:
        raise ValueError(f"k must be between 1 and {MOST_RESULTS}, got {k}.")
    hits = []
    for hit in search(index, embedder, [Query(sentence)], k)[0].hits:
        item = index.describe(hit.row)
        language, caption = (item.language, item.name) if index.kind == TEXTS else item.caption()
        name = os.path.basename(item.name) if index.kind == IMAGES else ""
        shown = {"rank": hit.rank, "score": round(hit.score, 4), "row": hit.row, "name": name}
        hits.append({**shown, "caption": caption, "language": language, "has_image": item.has_image})
    return {"sentence": sentence, "kind": index.kind, "count": len(index), "hits": hits}


def thumbnail(index: Index, row: int) -> bytes:
    """Returns a small JPEG of the image of a row, or of the image that a text describes.

    Raises `IndexError` for a row that is not there, `OSError` or `ValueError` if its image is gone or damaged.
    """
    return pictures.thumbnail(index.read_image(row), SIDE)


DEFAULT_RESULTS = 20
# Thumbnails of one index do not change while it is served.
CACHED = {"Cache-Control": "private, max-age=3600"}


def search_routes(index: Index, embedder, languages: Sequence[str] = (), prefix: str = "/search") -> list:
    """Returns the routes of the search page, for `create_app(…, extra_routes=…)`.

    The functions run in a thread, one search at a time, so that other requests go on; thumbnails have threads of their
    own.

    Args:
      index: from `mural_tf.search.index.load_index`.
      embedder: the model that made it, `mural_tf.load(…)`.
      languages: BCP 47 codes that the page offers, so that typed text gets the right fonts.
      prefix: where the page is.

    Raises:
      UserError: another model made the index.
    """
    from aiohttp import web  # only now: the functions above serve others too

    index.check_model(embedder)
    page = page_html(languages)
    searching = concurrent.futures.ThreadPoolExecutor(1, "search")

    async def show(request: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    async def show_answer(request: web.Request) -> web.Response:
        sentence = request.query.get("sentence", "")
        try:
            count = int(request.query.get("k", DEFAULT_RESULTS))
        except ValueError:
            raise BadRequest(f"k must be a number, got {request.query['k']!r}.") from None
        try:
            found = await _in_thread(searching, answer, index, embedder, sentence, count)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        return web.Response(text=json.dumps(found), content_type="application/json")

    async def show_thumbnail(request: web.Request) -> web.Response:
        try:
            image = await _in_thread(None, thumbnail, index, int(request.match_info["row"]))
        except IndexError as error:
            raise web.HTTPNotFound(text=str(error)) from None
        except (OSError, ValueError):
            raise web.HTTPNotFound(text="The image of this row is gone or damaged.") from None
        return web.Response(body=image, content_type="image/jpeg", headers=CACHED)

    return [
        web.get(prefix, show),
        web.get(prefix + "/answer", show_answer),
        web.get(prefix + r"/thumbnail/{row:\d{1,18}}", show_thumbnail),
    ]


async def _in_thread(executor, function, *arguments):
    return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
