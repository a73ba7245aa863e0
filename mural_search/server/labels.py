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
        """Returns words as HTML, with values in their places, for example "{count} pictures" of `count`; escaped."""
        shown = {key: visible(value) if type(value) is str else value for key, value in values.items()}
        return escape(self._words[label]).format(**shown)

    def number(self, value: int) -> str:
        """Returns a whole number with the marks of thousands that the language uses."""
        return f"{value:,}".replace(",", self._words["thousands"].replace("space", "\u202f"))


@functools.cache
def _catalogue() -> dict[str, dict[str, str]]:
    """Returns {language: {name: words}}."""
    with (TEMPLATES / "labels.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {language: {row["name"]: row[language] for row in rows} for language in LANGUAGES}


def preferred(header: str, languages: Collection[str]) -> str:
    """Returns the language that a browser likes best by its header Accept-Language, or "" if it names none of them."""
    codes = {language.lower(): language for language in languages}
    wanted = [(float(quality or 1), tag.lower()) for tag, quality in WISH.findall(header[:1000])]
    for quality, tag in sorted(wanted, key=lambda pair: -pair[0]):
        for code in (tag, tag.split("-")[0]):
            if quality and code in codes:
                return codes[code]
    return ""
