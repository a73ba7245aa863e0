"""Where imported weights come from: kind, name, revision, licence and languages, one line in a model's configuration.

    siglip hf://google/siglip2-base-patch16-224 at 75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2, licence apache-2.0
    m_clip XLM-Roberta-Large-Vit-B-32, licence mit, languages af am ar

A model of several parts has a part for each, divided by "; ". `front_matter.py` reads licence and languages.
"""

from __future__ import annotations

import dataclasses
import re

from mural_lite.hugging_face import SCHEME, is_name

NOT_SAID = "not said in its folder"
_ORIGIN = re.compile(
    r"(?P<family>\S+) (?P<name>.+?)(?: at (?P<revision>[0-9a-f]{40}))?, licence (?P<licence>[^,;]+)"
    r"(?:, languages (?P<languages>[^,;]+))?"
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """One folder of weights.

    Attributes:
      family: a name of `importers.families()`.
      name: the folder's name, or `hf://ORG/NAME`.
      revision: the commit on the Hub, "" for a folder of this machine.
      licence: as its README.md says, "" if it says nothing.
      languages: as its README.md says.
    """

    family: str
    name: str
    revision: str = ""
    licence: str = ""
    languages: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The line that `origins` reads, see above."""
        text = f"{self.family} {self.name}"
        if self.revision:
            text += f" at {self.revision}"
        text += f", licence {self.licence or NOT_SAID}"
        if self.languages:
            text += f", languages {' '.join(self.languages)}"
        return text

    @property
    def repository(self) -> str:
        """ORG/NAME on the Hub, "" for a folder of this machine."""
        return self.name.removeprefix(SCHEME) if is_name(self.name) else ""


def origins(text: str) -> list[Origin]:
    """Returns the origins that a configuration's `origin` names, divided by "; ".

    Parts of another form are left out, because earlier versions and people wrote sentences there.
    """
    parsed_origins = []
    for part in text.split("; "):
        match = _ORIGIN.match(part)
        if match:
            licence = "" if match["licence"] == NOT_SAID else match["licence"]
            languages = tuple((match["languages"] or "").split())
            parsed_origins.append(Origin(match["family"], match["name"], match["revision"] or "", licence, languages))
    return parsed_origins
