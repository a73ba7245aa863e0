"""The words of the search page in the languages that it speaks, from `templates/labels.tsv`."""

from __future__ import annotations

import csv
import functools
from collections.abc import Collection

from markupsafe import Markup, escape

from mural_lite.printable import visible
from mural_search import TEMPLATES

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "pl", "tr", "ja", "zh", "ar")
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
    wanted = []
    for part in header.split(",")[:20]:
        tag, _, parameter = part.partition(";")
        name, _, value = parameter.partition("=")
        try:
            quality = float(value) if name.strip().lower() == "q" else 1.0
        except ValueError:
            quality = 0.0
        if quality > 0:
            wanted.append((quality, tag.strip().lower()))
    known = {language.lower(): language for language in languages}
    for _, tag in sorted(wanted, key=lambda pair: -pair[0]):
        for code in (tag, tag.split("-")[0]):
            if code and code in known:
                return known[code]
    return ""
