"""What a terminal and a page can show of texts and names that may hold anything."""

from __future__ import annotations

import unicodedata


def printable(name: object) -> str:
    """Returns the name of a file or place with \\udcff and the like for bytes that are not UTF-8."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def visible(text: str) -> str:
    """Replaces what neither a page nor a terminal can show: lone surrogates, and control characters but \\t and \\n."""
    if text.isprintable():  # at once, also for a picture's address of a megabyte
        return text
    characters = []
    for character in text.encode("utf-8", "replace").decode("utf-8"):
        is_control = unicodedata.category(character) == "Cc" and character not in "\t\n"
        characters.append("\ufffd" if is_control else character)
    return "".join(characters)
