"""Addresses of the search page: the parameters of a question, and links that change some of them.

The page is only HTML: every question, filter and page of results is an address, to which people can go back and which
they can send to others. Even a question with a picture is an address, which holds the picture's vector.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from urllib.parse import urlencode

import numpy as np

from mural_lite.errors import UserError
from mural_search.items import Filter, parse_filters
from mural_search.server.answers import DEFAULT_RESULTS, Question
from mural_search.server.limits import BadRequest

PARAMETERS = ("sentence", "like", "k", "offset", "filter", "rank", "sort", "language", "facets")
PAGE_PARAMETERS = ("sentence", "like", "picture", "offset", "filter", "sort", "item", "closest")
MOST_FILTERS = 32  # each is counted without the others
LANGUAGE = re.compile(r"([A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*)?")
RANGE_ENDS = {"from.": ">=", "to.": "<="}  # how the form of a range names its ends


def read_question(
    query: Mapping[str, str],
    size: int,
    row_of: Callable[[str, str], int],
    parameters: Sequence[str] = PARAMETERS,
) -> Question:
    """Returns the question in an address; raises `BadRequest`, which names the mistake.

    Args:
      query: the parameters of the address, each perhaps several times, as `aiohttp` gives them.
      size: numbers per vector of the index.
      row_of: returns the row that a parameter, (its name, its value), holds, see `lasting_rows.row_of`.
      parameters: the names that are known.
    """
    _check_names(query, parameters)
    language = query.get("language", "")
    if not LANGUAGE.fullmatch(language):
        raise BadRequest(f"language must be a code like en or pt-BR, got {language!r}.")
    filters = _filters_of(query)
    k = to_number("k", query.get("k") or str(DEFAULT_RESULTS))
    like = None
    if query.get("like"):
        like = row_of("like", query["like"])
    picture = None
    if query.get("picture"):
        picture = vector_of(query["picture"], size)
    return Question(
        sentence=query.get("sentence", ""),
        k=k,
        filters=filters,
        like=like,
        picture=picture,
        language=language,
        rank=query.get("rank", ""),
        offset=to_number("offset", query.get("offset") or "0"),
        sort=query.get("sort", ""),
        facets=bool(query.get("facets")),
    )


def _check_names(query: Mapping[str, str], parameters: Sequence[str]) -> None:
    """Raises `BadRequest` for a parameter that is unknown, or given several times; only `filter` may be repeated."""
    unknown = sorted(set(query) - set(parameters))
    if unknown:
        raise BadRequest(f"Unknown parameter {unknown[0]!r}; expected {', '.join(parameters)}.")
    for name in parameters:
        count = len(query.getall(name, []))
        if name != "filter" and count > 1:
            raise BadRequest(f"{name} is given {count} times: give it once.")


def _filters_of(query: Mapping[str, str]) -> list[Filter]:
    """Returns the filters in an address; raises `BadRequest` for too many, or for a text that is not a filter."""
    conditions = query.getall("filter", [])
    if len(conditions) > MOST_FILTERS:
        raise BadRequest(f"filter is given {len(conditions)} times: at most {MOST_FILTERS} are read.")
    try:
        return parse_filters(conditions)
    except UserError as error:
        raise BadRequest(str(error)) from None


def to_number(name: str, text: str) -> int:
    """Returns the number in a parameter of plain digits; raises `BadRequest` for another text.

    Python's `int` also takes 1_0 and other scripts' digits.
    """
    if not re.fullmatch("-?[0-9]{1,18}", text):
        raise BadRequest(f"{name} must be a number, got {text[:40]!r}.")
    return int(text)


# A picture as a part of an address: its vector in whole numbers from -127 to 127. Cosines change by less than 0.001.


def vector_code(vector: np.ndarray) -> str:
    """Returns a vector [D] as a text for an address."""
    numbers = np.round(vector / np.abs(vector).max() * 127)
    data = numbers.astype(np.int8).tobytes()
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def vector_of(code: str, size: int) -> np.ndarray:
    """Returns the vector, float32 [size] of length 1, of `vector_code`; raises `BadRequest` for another text."""
    padding = "=" * (-len(code) % 4)
    try:
        data = base64.urlsafe_b64decode(code + padding)
    except (binascii.Error, ValueError):
        data = b""
    vector = np.frombuffer(data, np.int8).astype(np.float32)
    if len(vector) != size or not vector.any():
        raise BadRequest("This is not a picture of this search: choose the picture again.")
    return vector / np.linalg.norm(vector)


# Links.

Pairs = list[tuple[str, str]]


class Links:
    """Addresses of the page that differ from the requested address."""

    def __init__(self, query: Mapping[str, str]):
        self._pairs: Pairs = [(name, value) for name, value in query.items() if value]

    def without(self, *names: str, pairs: Collection[tuple[str, str]] = ()) -> Pairs:
        """Returns the parameters (name, value) without these names, these pairs, and the place in the results."""
        dropped_names = {*names, "offset", "item", "closest"}
        kept_pairs = [pair for pair in self._pairs if pair not in pairs]
        return [(name, value) for name, value in kept_pairs if name not in dropped_names]

    def to(self, *names: str, pairs: Collection[tuple[str, str]] = (), **added: object) -> str:
        """Returns the address without some parameters and with others."""
        return address([*self.without(*names, *added, pairs=pairs), *added.items()])


def address(pairs: Sequence[tuple[str, object]]) -> str:
    """Returns an address of the page, relative to itself."""
    if not pairs:
        return "search"
    return f"search?{urlencode(pairs, errors='replace')}"


def ranges_as_filters(query: Mapping[str, str]) -> str:
    """Returns the address with filters in place of the ends of ranges in the page's form, "" without such ends."""
    other_pairs: Pairs = []
    filters: Pairs = []
    has_ends = False
    for name, text in query.items():
        prefix = next((prefix for prefix in RANGE_ENDS if name.startswith(prefix)), "")
        bound = text.strip()
        if prefix:
            has_ends = True
            if bound:  # an end that is left empty bounds nothing
                filters.append(("filter", f"{name.removeprefix(prefix)}{RANGE_ENDS[prefix]}{bound}"))
        elif name != "offset":  # other filters have other results, which begin with the first
            other_pairs.append((name, text))
    if not has_ends:
        return ""
    return address(other_pairs + filters)
