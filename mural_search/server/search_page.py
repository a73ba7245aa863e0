"""The search page and its answers: plain functions that any HTTP server can mount, and their routes.

    GET  /search?sentence=…&filter=brand=acme       the page of an answer; without a question of all items
    GET  /search?item=<row>                         the page of one item with all of its fields
    GET  /search/answer?sentence=…&k=…&offset=…     answer(index, embedder, sentence, …) as JSON
    POST /search/answer                             the same for the picture that is the body; from the page's form,
                                                    where it is a part of the body, leads to its answer's page
    GET  /search/picture/<row>[?side=240]           a JPEG of at most 1,600, or 240, pixels a side

The page is HTML alone: every question, filter and page of results is an address, which can be gone back to and sent to
others, of a picture too: it is its vector. The page finds its place in its own address, behind a proxy too. Rows, never
paths, come in by addresses, and no path of the machine goes out.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlencode

import numpy as np
from absl import logging
from aiohttp import web

from mural_lite import pages, pictures
from mural_lite.errors import UserError
from mural_lite.files import as_path, release_pages
from mural_search import TEMPLATES, fields
from mural_search.index import Index, load_index
from mural_search.items import IMAGES, TEXTS, Filter, Item, parse_filters
from mural_search.queries import (
    ADDRESS,
    LONGEST_SENTENCE,
    SIDE,
    SORTED,
    Hit,
    Page,
    Query,
    Result,
    browse,
    find,
    search,
    why,
)
from mural_search.ranking import CannotBeAsked
from mural_search.server.limits import BadRequest, check_picture

MOST_RESULTS = 1000
DEFAULT_RESULTS = 20  # on a page
EXAMPLES = 4  # questions on the page
FEW_VALUES = 8  # of a filter, before "more"
COUNTED = 100_000  # items whose fields are counted for a page; of more the counts of the whole index are shown
SIDES = (LARGE, SIDE) = 1600, SIDE  # pixels of the longer side of a picture
KEPT = 4096  # thumbnails in memory, of about 8 kB each
TITLE = "Search"
STRAY = " \t\r\n|.,;:·•*#_~\\/\"'`«»“”…-–—()[]{}。、،؛।"  # what a table leaves around a text


def examples_of(captions: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a short caption of some languages, English first, without a table's stray signs."""
    order = sorted(captions, key=lambda language: (language != "en", language))
    texts = [[text.strip(STRAY) for text in captions[language]] for language in order]
    plain = [[text for text in own if text and "|" not in text] for own in texts]
    return [min(own, key=lambda text: abs(len(text) - 16)) for own in plain if own][:EXAMPLES]


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of an index: a sentence, a row that results shall be like, a picture, or nothing.

    Args:
      sentence: at most 2,000 characters, in any language.
      k: 1 to 1,000. offset: of the first one; at most 1,000 are ranked.
      filters: see `Index.search`.
      like: a row of the index, which is not among the hits.
      picture: the vector of a picture, float32 [D].
      language: of the captions to show, where there are several; otherwise English, or the first.
      rank, sort: see `queries.search`.
      facets: whether to tell what the fields are of the items that pass.
    """

    sentence: str = ""
    k: int = DEFAULT_RESULTS
    filters: Sequence[Filter] = ()
    like: int | None = None
    picture: np.ndarray | None = None
    language: str = ""
    rank: str = ""
    offset: int = 0
    sort: str = ""
    facets: bool = False

    def check(self) -> None:
        """Raises `ValueError` for an empty sentence, or a value outside of these bounds."""
        sentence, k, offset = self.sentence, self.k, self.offset
        if len(sentence) > LONGEST_SENTENCE:
            raise ValueError(f"The sentence has {len(sentence)} characters; at most {LONGEST_SENTENCE} are read.")
        if not 1 <= k <= MOST_RESULTS:
            raise ValueError(f"k must be between 1 and {MOST_RESULTS}, got {k}.")
        ways = bool(sentence) + (self.picture is not None) + (self.like is not None)
        if offset < 0 or (ways and offset > MOST_RESULTS - k):
            raise ValueError(
                f"offset must be between 0 and {MOST_RESULTS} - k, got {offset}: further hits are not ranked."
            )
        if self.rank and not sentence:
            raise ValueError("rank is for sentences: give one, in any language.")
        if ways > 1:
            raise ValueError("Give a sentence, or a picture, or a row that results shall be like; only one of them.")
        if sentence and not sentence.strip():
            raise ValueError("The sentence is empty: give one in any language.")


def answer(index: Index, embedder, asked: Question) -> dict[str, object]:
    """Returns the `k` items closest to a question, as JSON values; `embedder` is the model that made the index.

    Asked nothing, it returns all that passes the filters, in the order of the index.

    Returns:
      {"sentence", "kind", "count", "matching", "total", "index", "hits": [{"rank", "score", "row", "name", "caption",
      "language", "has_image", "fields", "found_by", "alike"}]}; `matching` items pass the filters, `total` can be paged
      through; `index` is another text when the rows have changed; see `queries.Hit`. Where no item passes, "relax":
      {filter: how many pass without it}. "nothing_fits": true where the hits are only the closest. "facets": see
      `ItemTable.facets`.

    Raises:
      ValueError: as `Question.check`, or a row that is not there.
    """
    asked.check()
    sentence, k, filters = asked.sentence, asked.k, asked.filters
    page = Page(k, asked.offset, asked.sort)
    rows = index.rows(filters)
    sizes = {"count": index.count, "matching": index.count if rows is None else len(rows)}
    result = None
    if sentence:
        (result,) = search(
            index, embedder, [Query(sentence)], k, filters, rank=asked.rank, offset=asked.offset, sort=asked.sort
        )
    elif asked.like is not None:
        result = _like(index, asked.like, page, filters)
    elif asked.picture is not None:
        result = find(index, asked.picture[None], [Query(image="picture")], page, filters)[0]
    hits = browse(index, page, filters) if result is None else result.hits
    sizes["total"] = sizes["matching"] if result is None else min(result.total, MOST_RESULTS)
    described = {"sentence": sentence, "kind": index.kind, **sizes, "index": index.created}
    if result is not None and result.nothing_fits:
        described["nothing_fits"] = True
    if not sizes["matching"]:
        others = {kept: index.rows([other for other in filters if other != kept]) for kept in filters}
        described["relax"] = {str(kept): len(index) if rows is None else len(rows) for kept, rows in others.items()}
    described |= {"facets": index.facets(tuple(filters))} if asked.facets else {}
    rows = sorted({hit.row for hit in hits})
    items = dict(zip(rows, index.table.at(rows)))
    release_pages(index.embeddings)
    return {**described, "hits": [_hit(index.kind, items[hit.row], hit, asked.language or "en") for hit in hits]}


def _like(index: Index, row: int, page: Page, filters: Sequence[Filter]) -> Result:
    name = _item(index, row).name
    vector = index.embeddings[row][None].astype(np.float32)
    ranked = Page(max(page.offset + page.top + 1, SORTED), sort=page.sort)  # itself is anywhere among the sorted
    found = find(index, vector, [Query(image=name)], ranked, filters, fold=False)[0]
    others = [hit for hit in found.hits if hit.row != row]
    hits = [dataclasses.replace(hit, rank=rank) for rank, hit in enumerate(others, start=1)][page.offset :][: page.top]
    return dataclasses.replace(found, hits=tuple(hits), total=found.total - (len(others) < len(found.hits)))


def _item(index: Index, row: int) -> Item:
    """Returns the item of a row; raises `ValueError` for one that is not there."""
    try:
        return index.describe(row)
    except IndexError as error:
        raise ValueError(str(error)) from None


def _hit(kind: str, item: Item, hit: Hit, language: str) -> dict[str, object]:
    language, caption = (item.language, item.name) if kind == TEXTS else item.caption(language)
    name = os.path.basename(item.name) if kind == IMAGES else ""
    shown = {"rank": hit.rank, "score": round(hit.score, 4), "row": hit.row, "name": name, "caption": caption}
    shown |= {"language": language, "has_image": item.has_image, "fields": item.fields}
    return {**shown, "found_by": hit.found_by, "alike": hit.alike}


def thumbnail(index: Index, row: int, side: int = SIDE) -> bytes:
    """Returns a small JPEG of the image of a row, or of the image that a text describes, without metadata.

    Raises `IndexError` for a row that is not there, `OSError` or `ValueError` if its image is gone or damaged.
    """
    return pictures.thumbnail(index.read_image(row), side)


# A picture as a part of an address: its vector in whole numbers from -127 to 127. Cosines change by less than 0.001.


def vector_code(vector: np.ndarray) -> str:
    """Returns a vector [D] as a text for an address."""
    numbers = np.round(vector / np.abs(vector).max() * 127).astype(np.int8)
    return base64.urlsafe_b64encode(numbers.tobytes()).decode("ascii").rstrip("=")


def vector_of(code: str, size: int) -> np.ndarray:
    """Returns the vector, float32 [size] of length 1, of `vector_code`; raises `BadRequest` for another text."""
    try:
        numbers = np.frombuffer(base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)), np.int8).astype(np.float32)
    except (binascii.Error, ValueError):
        numbers = np.zeros(0, np.float32)
    if len(numbers) != size or not numbers.any():
        raise BadRequest("This is not a picture of this search: choose the picture again.")
    return numbers / np.linalg.norm(numbers)


class ServedIndex:
    """The index in a folder, opened again when the folder holds another one: rows were removed, or it was updated.

    Args:
      index: as it was opened first.
      embedder: the model that made it.
      title: of the page.
      folder: where it lies on this machine; "": it stays as it is.
    """

    def __init__(self, index: Index, embedder, title: str = "", folder: str | os.PathLike = ""):
        self.embedder, self.title = embedder, title or TITLE
        self._by_pictures = getattr(embedder, "original", None) is None  # small encoders: when the first picture comes
        index.check_model(embedder, self._by_pictures)
        self._folder = pathlib.Path(folder) if folder and isinstance(as_path(folder), pathlib.Path) else None
        self._use(index)

    def _use(self, index: Index) -> None:
        self.index, self.fields = index, fields.of_index(index)
        captions = index.table.captions(8) if index.kind == IMAGES else {}
        self.examples, self.languages = examples_of(captions), captions.keys()
        index.facets()  # counted once, before the first question
        self.check_pictures = functools.cache(functools.partial(index.check_model, self.embedder))
        self.thumbnail = functools.lru_cache(KEPT)(functools.partial(thumbnail, index))

    def refresh(self) -> None:
        """Opens a changed index again; one that cannot be opened, or is another model's, leaves the former one."""
        if self.index.codes is None:
            from mural_search.codes import quicken  # one question does not need it

            quicken(self.index)
        if self._folder is None or self.index.is_current():
            return
        try:
            index = load_index(self._folder)
            index.check_model(self.embedder, self._by_pictures)
        except UserError as error:
            logging.warning("The index has changed and cannot be served; the former one is: %s", error)
        else:
            self._use(index)


# The page.

Pairs = list[tuple[str, str]]
WITH_QUESTION = ("sentence", "like", "picture")


class Links:
    """Addresses of the page that differ from the requested address."""

    def __init__(self, query: Mapping[str, str]):
        self._pairs: Pairs = [pair for pair in query.items() if pair[1]]

    def without(self, *names: str, pairs: Collection[tuple[str, str]] = ()) -> Pairs:
        """Returns the parameters but some, by name or by name and value; the page of results begins anew."""
        dropped = {*names, "offset", "item", "closest"}
        return [pair for pair in self._pairs if pair[0] not in dropped and pair not in pairs]

    def to(self, *names: str, pairs: Collection[tuple[str, str]] = (), **added: object) -> str:
        """Returns the address without some parameters and with others."""
        return address([*self.without(*names, *added, pairs=pairs), *added.items()])


def address(pairs: Sequence[tuple[str, object]]) -> str:
    """Returns an address of the page, relative to itself."""
    return f"search?{urlencode(pairs, errors='replace')}" if pairs else "search"


def page_html(served: ServedIndex, query: Mapping[str, str], language: str = "") -> str:
    """Returns the page of an answer, or of an item. Raises `ValueError` for what cannot be asked.

    Args:
      served: what is asked.
      query: the parameters of the address, each perhaps several times, as `aiohttp` gives them.
      language: of captions and of names, where there are several.
    """
    index, links = served.index, Links(query)
    common = dict(title=served.title, index=index, links=links, is_address=ADDRESS.fullmatch, query=query)
    if "item" in query:
        row = _number("item", query["item"])
        item = _item(index, row)
        captions = [("", item.name)] if index.kind == TEXTS else sorted(item.captions, key=lambda c: c[0] != language)
        shown = dict(row=row, item=item, captions=captions, name=os.path.basename(item.name))
        return pages.render(TEMPLATES / "item.html", **common, **shown, as_filter=served.fields.filters)
    asked = read_query(query, index.embeddings.shape[1], PAGE_TAKES)
    answered = answer(index, served.embedder, Question(language=language, **asked))
    facets = index.facets(tuple(asked["filters"]) if answered["matching"] <= COUNTED else ())
    return pages.render(
        TEMPLATES / "search.html",
        **common,
        asked=asked,
        answer=answered,
        cards=[_card(served, hit) for hit in answered["hits"]],
        facets=_facets(served, facets, asked["filters"], links),
        sorts=_sorts(served, facets, links, asked["sort"]),
        unknown=[x.name for x in asked["filters"] if not answered["matching"] and x.name not in index.facets()],
        is_shown=not answered.get("nothing_fits") or "closest" in query,
        examples=[] if any(query.get(name) for name in WITH_QUESTION) else served.examples,
        before=max(0, asked["offset"] - DEFAULT_RESULTS) if asked["offset"] else None,
        after=asked["offset"] + DEFAULT_RESULTS if _has_more(asked["offset"], answered) else None,
    )


def _has_more(offset: int, answered: Mapping) -> bool:
    most = answered["total"] if not answered["sentence"] else min(answered["total"], MOST_RESULTS)
    return offset + DEFAULT_RESULTS < most and bool(answered["hits"])


def _card(served: ServedIndex, hit: Mapping) -> dict[str, object]:
    shown = {name: hit["fields"][name] for name in served.fields.card if name in hit["fields"]}
    pictures_of_it = f"{hit['alike'] + 1} pictures" if hit["alike"] else ""
    notes = [note for note in (why(hit["found_by"]), pictures_of_it) if note]
    return {**hit, "fields": shown, "notes": notes, "caption": hit["caption"] or hit["name"]}


def _facets(served: ServedIndex, facets: Mapping, filters: Sequence[Filter], links: Links) -> list[dict[str, object]]:
    """Returns the filters that are offered: values with their counts and addresses, or the ends of a range."""
    offered = []
    for name in dict.fromkeys([*served.fields.filters, *(filter_.name for filter_ in filters)]):
        facet, own = facets.get(name, {}), {str(filter_) for filter_ in filters if filter_.name == name}
        if "least" in facet:
            ends = {sign: next((t[len(name + sign) :] for t in own if t.startswith(name + sign)), "") for sign in SIGNS}
            mine = [("filter", text) for text in own]
            offered.append({"name": name, **facet, "ends": ends, "others": links.without(pairs=mine)})
        elif facet.get("values"):
            values = []
            for value, count in facet["values"].items():
                pair = "filter", f"{name}={value}"
                is_on = pair[1] in own
                to = address([*links.without(pairs=[pair]), *([] if is_on else [pair])])
                values.append({"value": value, "count": count, "is_on": is_on, "to": to})
            offered.append({"name": name, "values": values[:FEW_VALUES], "further": values[FEW_VALUES:]})
    return offered


SIGNS = {">=": "from.", "<=": "to."}  # how the form of a range names its ends


def _sorts(served: ServedIndex, facets: Mapping, links: Links, current: str) -> list[tuple[str, str, bool]]:
    names = [name for name in served.fields.filters if "least" in facets.get(name, {})]
    ways = [("best first", "")]
    ways += [way for name in names for way in ((f"{name}, lowest first", name), (f"{name}, highest first", f"-{name}"))]
    return [(words, links.to("sort", **({"sort": sort} if sort else {})), sort == current) for words, sort in ways]


def ranges_as_filters(query: Mapping[str, str]) -> str:
    """Returns the address that says the same with filters, "" if no end of a range was given in the page's form."""
    marks = {mark: sign for sign, mark in SIGNS.items()}
    ends = [(name, text) for name, text in query.items() if name.startswith(tuple(marks))]
    if not ends:
        return ""
    filters = [
        ("filter", f"{name.removeprefix(mark)}{sign}{text.strip()}")
        for name, text in ends
        for mark, sign in marks.items()
        if name.startswith(mark) and text.strip()
    ]
    return address([pair for pair in query.items() if pair not in ends and pair[0] != "offset"] + filters)


# What is asked.

TAKES = ("sentence", "like", "k", "offset", "filter", "rank", "sort", "language", "facets")
PAGE_TAKES = (*WITH_QUESTION, "offset", "filter", "sort", "item", "closest")
LANGUAGE = re.compile(r"([A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*)?")


def read_query(query: Mapping[str, str], size: int, taken: Sequence[str] = TAKES) -> dict[str, object]:
    """Returns the parameters of an address as arguments of `answer`; raises `BadRequest`, which names what is wrong.

    `size`: of the index's vectors. `taken`: the known parameters.
    """
    unknown = sorted(set(query) - set(taken))
    if unknown:
        raise BadRequest(f"Unknown parameter {unknown[0]!r}; expected {', '.join(taken)}.")
    for name in taken:
        if name != "filter" and len(query.getall(name, [])) > 1:
            raise BadRequest(f"{name} is given {len(query.getall(name))} times: give it once.")
    if not LANGUAGE.fullmatch(query.get("language", "")):
        raise BadRequest(f"language must be a code like en or pt-BR, got {query['language']!r}.")
    try:
        asked: dict[str, object] = {"filters": parse_filters(query.getall("filter", []))}
    except UserError as error:
        raise BadRequest(str(error)) from None
    asked |= {name: query.get(name, "") for name in ("sentence", "language", "rank", "sort") if name in taken}
    asked |= {"offset": _number("offset", query.get("offset") or "0")}
    asked |= {name: _number(name, query[name]) for name in ("like", "k") if query.get(name)}
    asked |= {"picture": vector_of(query["picture"], size)} if query.get("picture") else {}
    return {**asked, "facets": True} if query.get("facets") else asked


def _number(name: str, text: str) -> int:
    """Returns a number of plain digits; Python's `int` takes 1_0 and other scripts' digits, too."""
    if not re.fullmatch("-?[0-9]{1,18}", text):
        raise BadRequest(f"{name} must be a number, got {text[:40]!r}.")
    return int(text)


# The routes.

# A row's picture is another one when the index has changed; the page's addresses of pictures change with it.
CACHED = {"Cache-Control": "private, max-age=3600"}


def search_routes(index: Index, embedder, title: str = "", folder: str | os.PathLike = "") -> list[web.RouteDef]:
    """Returns the routes of the search page, for `create_app`.

    Sentences are answered in a thread, one at a time, so that other requests go on; pictures are read in two others.
    Takes what `ServedIndex` does. Raises `UserError` if another model made the index.
    """
    served = ServedIndex(index, embedder, title, folder)
    asking = concurrent.futures.ThreadPoolExecutor(1, "questions")
    asking.submit(served.refresh)  # the first question finds it done, or waits for it
    reading = concurrent.futures.ThreadPoolExecutor(2, "pictures")

    async def in_thread(threads, function, *arguments):
        """Calls a function, whose `ValueError`s are the client's unless they are the index's."""
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)
        except UserError as error:  # for the server's owner: a damaged index, and its folder
            if not isinstance(error, CannotBeAsked):
                raise
            raise BadRequest(str(error)) from None
        except ValueError as error:
            raise error if isinstance(error, BadRequest) else BadRequest(str(error)) from None

    async def show(request: web.Request) -> web.Response:
        if not request.match_info["page"]:
            raise web.HTTPFound("search")
        if to := ranges_as_filters(request.query):
            raise web.HTTPFound(to)

        def render() -> str:
            served.refresh()
            return page_html(served, request.query, _language(request, served.languages))

        page = await in_thread(asking, render)
        return web.Response(text=page, content_type="text/html")

    async def show_answer(request: web.Request, picture: np.ndarray | None = None) -> web.Response:
        def ask() -> str:
            served.refresh()
            asked = read_query(request.query, served.index.embeddings.shape[1])
            return json.dumps(answer(served.index, embedder, Question(**asked, picture=picture)))

        return web.Response(text=await in_thread(asking, ask), content_type="application/json")

    def encode(picture: bytes) -> np.ndarray:
        served.check_pictures()
        check_picture(picture)
        try:
            return embedder.encode_image([picture])[0]
        except UserError:
            raise BadRequest("The picture cannot be read: expected a whole JPEG, PNG or WebP.") from None

    async def show_answer_to_picture(request: web.Request) -> web.Response:
        is_form = request.content_type == "multipart/form-data"
        if is_form:
            try:
                file = (await request.post()).get("picture")
            except (ValueError, AssertionError, RuntimeError) as error:  # aiohttp's, of a damaged form
                raise BadRequest(f"The form cannot be read: {error}.") from None
            if not isinstance(file, web.FileField):
                raise BadRequest("The form has no picture: expected a file in its part 'picture'.")
            picture = file.file.read()
        else:
            picture = await request.read()
        vector = await in_thread(reading, encode, picture)
        if is_form:
            raise web.HTTPSeeOther(f"../{address([('picture', vector_code(vector))])}")
        return await show_answer(request, vector)

    async def show_picture(request: web.Request) -> web.Response:
        row, side = int(request.match_info["row"]), _number("side", request.query.get("side", str(LARGE)))
        if side not in SIDES:
            raise BadRequest(f"side must be one of {', '.join(map(str, SIDES))}, got {side}.")
        read = served.thumbnail if side == SIDE else functools.partial(thumbnail, served.index, side=side)
        try:
            image = await asyncio.get_running_loop().run_in_executor(reading, read, row)
        except IndexError as error:
            raise web.HTTPNotFound(text=str(error)) from None
        except (OSError, ValueError):
            raise web.HTTPNotFound(text="The image of this row is gone or damaged.") from None
        return web.Response(body=image, content_type="image/jpeg", headers=CACHED)

    return [
        web.get("/{page:(search)?}", show),
        web.get("/search/answer", show_answer),
        web.post("/search/answer", show_answer_to_picture),
        web.get(r"/search/picture/{row:\d{1,18}}", show_picture),
    ]


def _language(request: web.Request, languages: Collection[str]) -> str:
    """Returns the first language that a browser asks for and a caption may have, or ""."""
    wanted = [part.split(";")[0].strip() for part in request.headers.get("Accept-Language", "").split(",")]
    return next((code for tag in wanted[:10] for code in (tag, tag.split("-")[0]) if code in languages), "")
