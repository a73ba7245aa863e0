"""Where imported weights come from: kind, name, revision, licence and languages, one line in a model's configuration.

    siglip hf://google/siglip2-base-patch16-224 at 75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2, licence apache-2.0
    m_clip XLM-Roberta-Large-Vit-B-32, licence mit, languages af am ar

Licence and languages are what the weights' README.md says between its first two lines of "---", in YAML. A model of
several parts has a part for each, divided by "; ".
"""

from __future__ import annotations

import dataclasses
import pathlib
import re

from mural_lite.hugging_face import SCHEME, is_name, parse
from mural_lite.remote_folders import display_name

NOT_SAID = "not said in its folder"
_LINE = re.compile(
    r"(?P<kind>\S+) (?P<name>.+?)(?: at (?P<revision>[0-9a-f]{40}))?, licence (?P<licence>[^,;]+)"
    r"(?:, languages (?P<languages>[^,;]+))?"
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """One folder of weights.

    Attributes:
      family: a key of `importers.importers()`.
      name: the folder's, or `hf://ORG/NAME`.
      revision: the commit on the Hub, "" for a folder of this machine.
      licence: as its README.md names it, "" where that does not say.
      languages: as its README.md names them.
    """

    family: str
    name: str
    revision: str = ""
    licence: str = ""
    languages: tuple[str, ...] = ()

    def __str__(self) -> str:
        revision = f" at {self.revision}" if self.revision else ""
        languages = f", languages {' '.join(self.languages)}" if self.languages else ""
        return f"{self.family} {self.name}{revision}, licence {self.licence or NOT_SAID}{languages}"

    @property
    def repository(self) -> str:
        """ORG/NAME on the Hub, "" for a folder of this machine."""
        return self.name.removeprefix(SCHEME) if is_name(self.name) else ""


def origin_of(family: str, weights: str | pathlib.Path) -> Origin:
    """Returns what is known of a folder or file of weights."""
    weights = pathlib.Path(weights)
    said = front_matter(weights / "README.md")
    licence, languages = _texts(said.get("license")), _texts(said.get("language"))
    if licence == ["other"]:
        licence = _texts(said.get("license_name")) or licence
    name, revision = weights.name, ""
    if is_name(display_name(weights)):  # the Hub's cache calls the folder of a revision by it
        name = f"{SCHEME}{parse(display_name(weights)).repository}"
        revision = next(part for part in reversed(weights.parts) if re.fullmatch("[0-9a-f]{40}", part))
    plain = [re.sub(r"[^\w.+-]+", "-", text) for text in (*licence, *languages)]
    return Origin(family, name, revision, " ".join(plain[: len(licence)]), tuple(plain[len(licence) :]))


def origins(text: str) -> list[Origin]:
    """Returns the origins that a configuration's `origin` names; what is of another form is left out."""
    matches = filter(None, map(_LINE.match, text.split("; ")))
    return [
        Origin(
            match["kind"],
            match["name"],
            match["revision"] or "",
            "" if match["licence"] == NOT_SAID else match["licence"],
            tuple((match["languages"] or "").split()),
        )
        for match in matches
    ]


def front_matter(readme: pathlib.Path) -> dict[str, str | list[str]]:
    """Returns the plain values and lists of plain values at the top of a README.md; {} without values.

    Only this part of YAML is read, and everything as text: `no` is Norwegian.
    """
    text = readme.read_text(encoding="utf-8", errors="replace")[:100_000] if readme.is_file() else ""
    head = re.match(r"---\s*\n(.*?)^---\s*$", text, re.DOTALL | re.MULTILINE)
    values: dict[str, str | list[str]] = {}
    key = ""
    for line in head[1].splitlines() if head else ():
        if item := re.fullmatch(r"\s*-\s+(\S.*)", line):
            if key and isinstance(values[key], list):
                values[key].append(_plain(item[1]))
        elif entry := re.fullmatch(r"(\w+):\s*(.*)", line):
            key, value = entry.groups()
            inside = re.fullmatch(r"\[(.*)\]", _plain(value))
            values[key] = [_plain(part) for part in inside[1].split(",")] if inside else _plain(value) or []
    return values


def _plain(value: str) -> str:
    value = re.sub(r"\s+#.*$", "", value).strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _texts(value: str | list[str] | None) -> list[str]:
    return [text for text in ([value] if isinstance(value, str) else value or []) if text]
