"""The README.md of weights: licence and languages, between its first two lines of "---", in YAML."""

from __future__ import annotations

import pathlib
import re

from mural_lite.hugging_face import SCHEME, is_name, parse
from mural_lite.remote_folders import display_name
from mural_tf.pretrained.origin import Origin


def origin_of(family: str, weights: str | pathlib.Path) -> Origin:
    """Returns the origin of a folder or file of weights."""
    weights = pathlib.Path(weights)
    metadata = front_matter(weights / "README.md")
    licence = _texts(metadata.get("license"))
    if licence == ["other"]:
        licence = _texts(metadata.get("license_name")) or licence
    languages = _texts(metadata.get("language"))
    name = weights.name
    revision = ""
    if is_name(display_name(weights)):  # the Hub's cache calls the folder of a revision by it
        name = f"{SCHEME}{parse(display_name(weights)).repository}"
        revision = next(part for part in reversed(weights.parts) if re.fullmatch("[0-9a-f]{40}", part))
    return Origin(family, name, revision, " ".join(map(_plain_word, licence)), tuple(map(_plain_word, languages)))


def _plain_word(text: str) -> str:
    """Returns a text without the separators in the line of an `Origin`."""
    return re.sub(r"[^\w.+-]+", "-", text)


def front_matter(readme: pathlib.Path) -> dict[str, str | list[str]]:
    """Returns {key: value, or list of values} from the top of a README.md; {} without values.

    Only this part of YAML is read, and everything as text: `no` is Norwegian.
    """
    if not readme.is_file():
        return {}
    text = readme.read_text(encoding="utf-8", errors="replace")[:100_000]
    head = re.match(r"---\s*\n(.*?)^---\s*$", text, re.DOTALL | re.MULTILINE)
    if not head:
        return {}
    values: dict[str, str | list[str]] = {}
    key = ""
    for line in head[1].splitlines():
        item = re.fullmatch(r"\s*-\s+(\S.*)", line)
        entry = re.fullmatch(r"(\w+):\s*(.*)", line)
        if item:
            if key and isinstance(values[key], list):
                values[key].append(_plain(item[1]))
        elif entry:
            key = entry[1]
            value = _plain(entry[2])
            values[key] = value or []  # a list may follow
            bracketed = re.fullmatch(r"\[(.*)\]", value)
            if bracketed:
                values[key] = [_plain(part) for part in bracketed[1].split(",")]
    return values


def _plain(value: str) -> str:
    """Returns a value without its comment and its quotation marks."""
    value = re.sub(r"\s+#.*$", "", value).strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _texts(value: str | list[str] | None) -> list[str]:
    """Returns the texts of a value or a list of values; [] where the key is missing."""
    texts = [value] if isinstance(value, str) else value or []
    return [text for text in texts if text]
