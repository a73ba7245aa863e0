"""The words of the search page in the languages that it speaks, from `templates/labels.tsv`."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Collection

from markupsafe import Markup, escape

from mural_lite.printable import visible
from mural_search import TEMPLATES

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "pl", "tr", "ja", "zh", "ar")
WISH = re.compile(r"([A-Za-z][\w-]*)(?:\s*;\s*q=([01](?:\.\d*)?))?")  # a part of Accept-Language: "de-AT;q=0.8"
RIGHT_TO_LEFT = frozenset({"ar"})


class Labels:
    """The page's words in a language, one of `LANGUAGES`."""

    def __init__(self, language: str):
        self.language = language
        self.direction = "rtl" if language in RIGHT_TO_LEFT else "ltr"
        self._words = _catalogue()[language]

    def __call__(self, label: str, /, **values: object) -> Markup:
        """Returns the words of a label, a name in `templates/labels.tsv`, as HTML.

        The escaped values are put in the places of their names, for example `count=3` in "{count} pictures".
        """
        for name, value in values.items():
            if type(value) is str:  # `Markup` is HTML already
                values[name] = visible(value)
        return escape(self._words[label]).format(**values)

    def number(self, value: int) -> str:
        """Returns a whole number with the marks of thousands that the language uses: "12,345", "12.345"."""
        return f"{value:,}".replace(",", self._words["thousands"].replace("space", "\u202f"))  # a narrow space


@functools.cache
def _catalogue() -> dict[str, dict[str, str]]:
    """Returns {language: {label's name: words}} of all languages of the page."""
    with (TEMPLATES / "labels.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    catalogue = {}
    for language in LANGUAGES:
        catalogue[language] = {row["name"]: row[language] for row in rows}
    return catalogue


def preferred(header: str, languages: Collection[str]) -> str:
    """Returns the language among `languages` that a browser prefers; "" if it asks for other languages only.

    Args:
      header: the browser's header Accept-Language, for example "de-AT,en;q=0.8": Austrian German, or else English.
      languages: BCP 47 tags. "de" serves a wish for "de-AT".
    """
    languages_by_code = {language.lower(): language for language in languages}
    # A wish without a quality has the quality 1. No browser sends longer headers.
    wishes = [(float(quality or 1), tag.lower()) for tag, quality in WISH.findall(header[:1000])]
    for quality, tag in sorted(wishes, key=lambda wish: -wish[0]):  # equal qualities stay in the header's order
        base, _, _ = tag.partition("-")
        for code in (tag, base):
            if quality and code in languages_by_code:  # the quality 0 refuses a language
                return languages_by_code[code]
    return ""
