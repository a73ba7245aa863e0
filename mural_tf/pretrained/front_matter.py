"""The README.md of weights: licence and languages, between its first two lines of "---", in YAML."""

from __future__ import annotations

import pathlib
import re

from mural_lite.hugging_face import SCHEME, is_name, parse
from mural_lite.remote_folders import display_name
from mural_tf.pretrained.origin import Origin


def origin_of(family: str, weights: str | pathlib.Path) -> Origin:
    """Returns the origin of a folder or file of weights, with licence and languages by its README.md.

    `family` is a name of `importers.families()`.
    """
    weights = pathlib.Path(weights)
    metadata = front_matter(weights / "README.md")
    licences = _texts(metadata.get("license"))
    if licences == ["other"]:
        licences = _texts(metadata.get("license_name")) or licences
    languages = _texts(metadata.get("language"))
    name = weights.name
    revision = ""
    if is_name(display_name(weights)):  # a folder of the Hub's cache, in which a folder is named by its revision
        name = f"{SCHEME}{parse(display_name(weights)).repository}"
        revision = next(part for part in reversed(weights.parts) if re.fullmatch("[0-9a-f]{40}", part))
    return Origin(family, name, revision, " ".join(map(_plain_word, licences)), tuple(map(_plain_word, languages)))


def _plain_word(text: str) -> str:
    """Returns a text with "-" in place of characters that the line of an `Origin` has between its parts."""
    return re.sub(r"[^\w.+-]+", "-", text)


def front_matter(readme: pathlib.Path) -> dict[str, str | list[str]]:
    """Returns {key: text, or list of texts} from the YAML at the top of a README.md; {} without the file or the YAML.

    Only lines `key: value`, `key: [value, value]`, and `- value` below a key are read, all values as texts: `no` is
    Norwegian.
    """
    if not readme.is_file():
        return {}
    text = readme.read_text(encoding="utf-8", errors="replace")[:100_000]  # a head is far shorter
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
    """Returns a YAML value without its comment and its quotation marks."""
    value = re.sub(r"\s+#.*$", "", value).strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _texts(value: str | list[str] | None) -> list[str]:
    """Returns the texts that are not empty in a value of `front_matter`; [] where the key is missing."""
    if value is None:
        return []
    texts = [value] if isinstance(value, str) else value
    return [text for text in texts if text]
