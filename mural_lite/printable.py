"""What a terminal and a page can show of texts and names that may hold anything."""

from __future__ import annotations

import unicodedata


def printable(name: object) -> str:
    """Returns a file's name, in which bytes that are not UTF-8 are written as \\udcff and the like."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def visible(text: str) -> str:
    """Returns a text as pages show it: "?" for lone surrogates, U+FFFD for control characters but \\t and \\n."""
    if text.isprintable():  # fast, also for a picture's data: URL of a megabyte
        return text
    characters = []
    for character in text.encode("utf-8", "replace").decode("utf-8"):
        is_control = unicodedata.category(character) == "Cc" and character not in "\t\n"
        characters.append("\ufffd" if is_control else character)
    return "".join(characters)
