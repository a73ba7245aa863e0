"""Addresses of the search page: the parameters of a question, and links that change some of them.

The page is only HTML: every question, filter and page of results is an address, to which people can go back and which
they can send to others. Even a question with a picture is an address, which holds the picture's vector.
"""

from __future__ import annotations

import base64
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
# The page's form of a range sends "from.price=10" and "to.price=20"; {the name's beginning: the filter's operator}.
RANGE_ENDS = {"from.": ">=", "to.": "<="}


def read_question(
    query: Mapping[str, str],
    size: int,
    row_of: Callable[[str, str], int],
    parameters: Sequence[str] = PARAMETERS,
) -> Question:
    """Returns the question in an address, for example in "search?sentence=red+shoes&k=10&filter=brand=acme".

    Args:
      query: the parameters of the address, {name: text}, as `aiohttp` gives them: a name may occur several times.
      size: the number of dimensions of the index's vectors.
      row_of: a function that is called with the name and the text of a parameter, ("like", "5-1a2b3c4d5e6f7081"), and
        returns the row that the text means; see `lasting_rows.row_of`.
      parameters: the names that the address may have.

    Raises:
      BadRequest: a parameter is unknown, repeated or cannot be read; the message names the mistake.
      web.HTTPNotFound: raised by `row_of`.
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
    """Raises `BadRequest` for an unknown parameter, and for a repeated parameter other than `filter`."""
    unknown = sorted(set(query) - set(parameters))
    if unknown:
        raise BadRequest(f"Unknown parameter {unknown[0]!r}; expected {', '.join(parameters)}.")
    for name in parameters:
        count = len(query.getall(name, []))
        if name != "filter" and count > 1:
            raise BadRequest(f"{name} is given {count} times: give it once.")


def _filters_of(query: Mapping[str, str]) -> list[Filter]:
    """Returns the filters in an address; raises `BadRequest` for too many filters, or a text that is not a filter."""
    conditions = query.getall("filter", [])
    if len(conditions) > MOST_FILTERS:
        raise BadRequest(f"filter is given {len(conditions)} times: at most {MOST_FILTERS} are read.")
    try:
        return parse_filters(conditions)
    except UserError as error:
        raise BadRequest(str(error)) from None


def to_number(name: str, text: str) -> int:
    """Returns the whole number that a parameter holds, of at most 18 digits; raises `BadRequest` for any other text.

    Args:
      name: the parameter's name, for the message.
      text: the parameter's text, for example "20" or "-1".
    """
    if not re.fullmatch("-?[0-9]{1,18}", text):  # `int` would also take 1_0 and digits of other scripts
        raise BadRequest(f"{name} must be a number, got {text[:40]!r}.")
    return int(text)


# A picture as a part of an address: its vector in whole numbers from -127 to 127. Cosines change by less than 0.001.


def vector_code(vector: np.ndarray) -> str:
    """Returns a vector, float32 [D], as a text for an address: base64 of D bytes, which `vector_of` reads."""
    numbers = np.round(vector / np.abs(vector).max() * 127)
    data = numbers.astype(np.int8).tobytes()
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def vector_of(code: str, size: int) -> np.ndarray:
    """Returns the vector that a text of `vector_code` holds, float32 [size] of length 1.

    Raises `BadRequest` for any other text, and for a vector with another number of dimensions than `size`.
    """
    padding = "=" * (-len(code) % 4)  # base64 comes in groups of four characters; `vector_code` leaves the "=" out
    try:
        data = base64.urlsafe_b64decode(code + padding)
    except ValueError:
        data = b""  # has no dimensions, and is refused below
    vector = np.frombuffer(data, np.int8).astype(np.float32)
    if len(vector) != size or not vector.any():
        raise BadRequest("This is not a picture of this search: choose the picture again.")
    return vector / np.linalg.norm(vector)


# Links.

Pairs = list[tuple[str, str]]  # (name, text) of an address's parameters


class Links:
    """Addresses of the page that differ from the requested address in some parameters.

    Args:
      query: the parameters of the requested address, {name: text}, as `read_question` takes them.
    """

    def __init__(self, query: Mapping[str, str]):
        self._pairs: Pairs = [(name, text) for name, text in query.items() if text]

    def without(self, *names: str, pairs: Collection[tuple[str, str]] = ()) -> Pairs:
        """Returns the (name, text) of the requested address's parameters, except some.

        Left out are the parameters with one of `names`, the parameters in `pairs`, and always the parameters that say
        which part of the results is shown: another address has other results.
        """
        dropped_names = {*names, "offset", "item", "closest"}
        kept_pairs = [pair for pair in self._pairs if pair not in pairs]
        return [(name, text) for name, text in kept_pairs if name not in dropped_names]

    def to(self, *names: str, pairs: Collection[tuple[str, str]] = (), **added: object) -> str:
        """Returns the address with the parameters of `without(*names, pairs=pairs)` and the `added` parameters.

        For example `to("like", sentence="red shoes")`. An added parameter takes the place of the requested one.
        """
        return address([*self.without(*names, *added, pairs=pairs), *added.items()])


def address(pairs: Sequence[tuple[str, object]]) -> str:
    """Returns the page's address with the parameters (name, value), relative to itself: "search?sentence=red"."""
    if not pairs:
        return "search"
    return f"search?{urlencode(pairs, errors='replace')}"


def ranges_as_filters(query: Mapping[str, str]) -> str:
    """Returns the address with filters in place of the ends of ranges that the page's form sent; "" without such ends.

    For example "search?sentence=shoes&filter=price>=10", with its signs quoted, for "sentence=shoes&from.price=10".
    """
    other_pairs: Pairs = []
    filters: Pairs = []
    has_ends = False
    for name, text in query.items():
        end, dot, field = name.partition(".")
        operator = RANGE_ENDS.get(end + dot)
        bound = text.strip()
        if operator is not None:
            has_ends = True
            if bound:  # an end that is left empty bounds nothing
                filters.append(("filter", f"{field}{operator}{bound}"))
        elif name != "offset":  # other filters have other results, which begin with the first
            other_pairs.append((name, text))
    if not has_ends:
        return ""
    return address(other_pairs + filters)
