"""The items of an index: images in files or TFRecords, and texts. An item holds its image's place, not its bytes."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mural_lite.errors import UserError

KINDS = IMAGES, TEXTS = "images", "texts"


@dataclasses.dataclass(frozen=True)
class Item:
    """One image or one text. In an index of images an item without `path` has no picture: captions and words find it.

    Attributes:
      name: the name to show: a path, an image id or the text itself.
      path: the file of the image, absolute, "" for a text without an image.
      offset: where the image's record begins in the TFRecord file `path`; -1 if the file is the image.
      captions: (language, text) of each caption of an image.
      language: a text's language, BCP 47 or "".
      fields: further values, such as a product's brand or price.
      content: 16 hexadecimal digits, a hash of an image's bytes, "" if not known.
      digest: a hash of the item's row in a table; the name is the key of such an item.
      several: the values of those fields that have several, as a product of several sizes; `fields` joins them by ", ".
    """

    name: str
    path: str = ""
    offset: int = -1
    captions: tuple[tuple[str, str], ...] = ()
    language: str = ""
    fields: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    content: str = ""
    digest: str = ""
    several: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, hash=False, repr=False)

    @property
    def has_image(self) -> bool:
        """Whether there is an image to show: itself, or the image that a text describes."""
        return bool(self.path)

    @property
    def file_name(self) -> str:
        """The name without folders."""
        return os.path.basename(self.name)

    def values(self, name: str) -> tuple[str, ...]:
        """Returns the values of a field, whose name must be in `fields`; mostly a single value."""
        return self.several.get(name, (self.fields[name],))

    def caption(self, language: str = "") -> tuple[str, str]:
        """Returns (language, text) of a caption: in `language`, by default English, or else the first; or ("", "")."""
        for caption in self.captions:
            if caption[0] == (language or "en"):
                return caption
        return self.captions[0] if self.captions else ("", "")


# Fields.

SEVERAL = ", "  # between the values of a field that has several


def fields_of(values: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Returns (`Item.fields`, `Item.several`) for {name: values}: values joined, and the fields with several values."""
    fields = {name: SEVERAL.join(texts) for name, texts in values.items()}
    several = {name: tuple(texts) for name, texts in values.items() if len(texts) > 1}
    return fields, several


class Filter(NamedTuple):
    """A condition on items: the field `name` is, or is below or above, `value`; `operator` is =, <, <=, > or >=."""

    name: str
    value: str
    operator: str = "="

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"


FILTER = re.compile(r"([^<>=]+)(<=|>=|<|>|=)(.*)", re.DOTALL)  # takes one pass, however long the text is
LONGEST_FILTER = 500  # characters


def parse_filters(texts: Iterable[str]) -> tuple[Filter, ...]:
    """Returns the different filters in texts "name=value" or "name<20"; raises `UserError` for other texts."""
    filters = []
    for text in texts:
        if len(text) > LONGEST_FILTER:
            raise UserError(f"A filter has {len(text):,} characters; at most {LONGEST_FILTER} are read.")
        name = ""
        match = FILTER.fullmatch(text)
        if match:
            name, operator, value = map(str.strip, match.groups())
        if not name:
            raise UserError(f"The filter {text!r} is not of the form name=value, such as brand=acme, or price<20.")
        if operator != "=" and amount(value) is None:
            raise UserError(f"The filter {text!r} compares with {value!r}: expected a number or a date, 2026-05-31.")
        filters.append(Filter(name, value, operator))
    return tuple(dict.fromkeys(filters))


# A currency before it, by its sign, code or abbreviation ("US$", "CHF ", "Rp", "kr. "), and a short unit after it.
CURRENCY = r"[^\W\d_]{0,3}[^\w\s.,+-]\s*|[^\W\d_]{2,3}\.?\s+|Rp\.?"
NUMBER = re.compile(rf"([-+]?)(?:{CURRENCY})?([-+]?\d(?:[\d\s']|[.,](?!\s+\d))*)\D{{0,6}}")
RANGE = re.compile(r"\s*[–—]\s*|\s+-\s+")  # between the prices of a product's sizes
SIGNS = str.maketrans("\u2212\u2019\u066b\u066c", "-'.'")  # minus, apostrophe, Arabic marks of decimals and thousands
GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}([.,]\d{2,3})*[.,]\d{3}")  # ₹1,29,999, too
ISO_DATE = re.compile(r"(\d{4})-(\d\d?)(?:-(\d\d?))?(?:[T ].*)?")  # 2026-05-31, 2026-05, or with a time
POINT_DATE = re.compile(r"(\d\d?)\.(\d\d?)\.(\d{4})")  # 31.5.2026


def group_marks(texts: Iterable[str]) -> str:
    """Returns the marks that divide thousands in the values of a field, its `texts`: "", ",", "." or ",.".

    "1.299" by itself may be read both ways, so the other values decide: it is 1299 if all values have three digits
    behind the point, or one is "1.299.000", and 1.299 if one is "2.5".
    """
    decimal = set()
    grouping = set()
    for text in texts:
        digits, marks = _digits(text)
        is_grouped = GROUPED.fullmatch(digits) is not None
        if len(marks) == 2:  # "1.299,50"
            grouping.add(marks[0])
            decimal.add(marks[1])
        elif not is_grouped:
            decimal.update(marks)
        elif digits.count(marks[0]) > 1:
            grouping.add(marks[0])
    groups = ""
    # A comma may divide thousands in "1,299.50" and be decimal in "2,5"; a point that is decimal divides none.
    if "," not in decimal or "," in grouping:
        groups += ","
    if "." not in decimal:
        groups += "."
    return groups


def _digits(text: str) -> tuple[str, list[str]]:
    """Returns (a number without its unit, the kinds of its marks in their order), or ("", []) for another text.

    "1.299,50 €" gives ("1.299,50", [".", ","]); a range of numbers gives its first number.
    """
    ends = RANGE.split(text.translate(SIGNS).strip(), maxsplit=1)
    matches = [NUMBER.fullmatch(end) for end in ends]
    if not all(matches):
        return "", []
    sign, number = matches[0].groups()
    digits = sign + re.sub(r"[\s']", "", number).rstrip(".,")
    marks = {",", "."}.intersection(digits)
    return digits, sorted(marks, key=digits.rfind)


def _years(text: str) -> float | None:
    """Returns a date in years, 2026-07-01 as 2026.5; `None` for another text."""
    iso = ISO_DATE.fullmatch(text)
    with_points = POINT_DATE.fullmatch(text)
    if iso:
        year, month, day = iso.groups("1")  # a month without a day begins with its first
    elif with_points:
        day, month, year = with_points.groups()
    else:
        return None
    return int(year) + (int(month) - 1) / 12 + (int(day) - 1) / 372  # 12 months of 31 days


def amount(text: str, groups: str = ",") -> float | None:
    """Returns the number by which a field's value is ordered, or None for a text that is neither a number nor a date.

    "19,90 EUR" gives 19.9, a range of numbers its first number, and a date (2026-05-31, 2026-05, 31.5.2026) years, so
    that `year<2026` takes dates, too. If a number has two kinds of marks, the last is the decimal mark.

    `groups`: the marks that divide thousands where they are before three last digits, see `group_marks`.
    """
    years = _years(text.strip())
    if years is not None:
        return years
    digits, marks = _digits(text)
    group_mark = ""
    decimal_mark = ""
    if len(marks) == 2:
        group_mark, decimal_mark = marks
    elif marks:
        (mark,) = marks
        is_grouped = GROUPED.fullmatch(digits) is not None
        if is_grouped and (mark in groups or digits.count(mark) > 1):
            group_mark = mark
        else:
            decimal_mark = mark
    if group_mark:
        digits = digits.replace(group_mark, "")
    if decimal_mark:
        digits = digits.replace(decimal_mark, ".")
    try:
        value = float(digits)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
