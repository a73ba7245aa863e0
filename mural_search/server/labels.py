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
WISH = re.compile(r"([A-Za-z][\w-]*)(?:\s*;\s*q=([01](?:\.\d*)?))?")  # of Accept-Language: "de-AT;q=0.8"
RIGHT_TO_LEFT = frozenset({"ar"})


class Labels:
    """The page's words in a language."""

    def __init__(self, language: str):
        self.language = language
        self.direction = "rtl" if language in RIGHT_TO_LEFT else "ltr"
        self._words = _catalogue()[language]

    def __call__(self, label: str, /, **values: object) -> Markup:
        """Returns a label's words as HTML, with escaped values in their places, as `count` in "{count} pictures"."""
        visible_values = {key: visible(value) if type(value) is str else value for key, value in values.items()}
        return escape(self._words[label]).format(**visible_values)

    def number(self, value: int) -> str:
        """Returns a whole number with the marks of thousands that the language uses."""
        return f"{value:,}".replace(",", self._words["thousands"].replace("space", "\u202f"))


@functools.cache
def _catalogue() -> dict[str, dict[str, str]]:
    """Returns {language: {name: words}}."""
    with (TEMPLATES / "labels.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    catalogue = {}
    for language in LANGUAGES:
        catalogue[language] = {row["name"]: row[language] for row in rows}
    return catalogue


def preferred(header: str, languages: Collection[str]) -> str:
    """Returns the language that a browser likes best by its header Accept-Language, or "" if it names none of them."""
    languages_by_code = {language.lower(): language for language in languages}
    wishes = [(float(quality or 1), tag.lower()) for tag, quality in WISH.findall(header[:1000])]
    for quality, tag in sorted(wishes, key=lambda wish: -wish[0]):  # of equal qualities the first in the header
        base, _, _ = tag.partition("-")
        for code in (tag, base):
            if quality and code in languages_by_code:
                return languages_by_code[code]
    return ""
