"""Tiny npm packages in the layout of the emoji benchmark's real ones, and a `Mirror` that hands them out.

They hold eight listed emoji, of which the six of `KEYS` qualify: `MISSING` has no OpenMoji drawing and 1f3fb is a
Component. Five of the six have an EmojiOne drawing (1f9ea has none). Every core locale names all six; of three
further locales "aa" names all, "sr-Latn" three (half) and "bb" two (below half).
"""

import collections
import io
import json
import tarfile

from PIL import Image

from mural_tf.demo.emoji import UNDER_RESOURCED, WELL_RESOURCED, key_of_code_points
from mural_tf.demo.npm_packages import Package, integrity_of

FAMILY = "1F468-200D-1F469-200D-1F467"
MISSING = "1F300"
UNIFIED = ["1F600", "2764-FE0F", FAMILY, "0023-FE0F-20E3", "1F1E9-1F1EA", "1F9EA", MISSING]
KEYS = ["1f600", "2764", FAMILY.lower(), "0023-20e3", "1f1e9-1f1ea", "1f9ea"]
CORE = [*WELL_RESOURCED, *UNDER_RESOURCED]
COLORS = {"google": (255, 0, 0), "twitter": (0, 128, 0), "openmoji": (0, 0, 255), "emojione": (255, 255, 0)}


def characters(unified):
    return "".join(chr(int(p, 16)) for p in unified.split("-"))


def png(color):
    """A transparent picture with a coloured square in the middle."""
    image = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    image.paste((*color, 255), (16, 16, 48, 48))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


SVG = b"""<svg viewBox="0 0 72 72" xmlns="http://www.w3.org/2000/svg">
<rect x="18" y="18" width="36" height="36" fill="#0000ff"/></svg>"""


def annotations(top, locale, emoji):
    entries = {
        characters(u).replace("\ufe0f", ""): {"tts": [f"{locale} {key_of_code_points(u)}"], "default": ["k", "l"]}
        for u in emoji
    }
    content = {top: {"identity": {"language": locale}, "annotations": entries}}
    return {f"package/{top}/{locale}/annotations.json": json.dumps(content).encode()}


def locale_names(locale):
    """Two names: a language that every locale translates, a territory that none but "de" does, one bare code."""
    kinds = {
        "languages": {"de": f"{locale} German", "xx": "xx"},
        "territories": {"DE": "Land" if locale == "de" else "D"},
    }
    return {
        f"package/main/{locale}/{kind}.json": json.dumps(
            {"main": {locale: {"localeDisplayNames": {kind: entries}}}}
        ).encode()
        for kind, entries in kinds.items()
    }


def fake_contents():
    """Returns package name -> path -> bytes."""
    listed = [{"unified": u, "category": "Symbols"} for u in UNIFIED] + [{"unified": "1F3FB", "category": "Component"}]
    contents = collections.defaultdict(dict)
    for brand in ("google", "twitter"):
        package = contents[f"emoji-datasource-{brand}"]
        package["package/emoji.json"] = json.dumps(listed).encode()
        for unified in [*UNIFIED, "1F3FB", "1F44B-1F3FB"]:  # with a skin-tone variant, which no list has
            package[f"package/img/{brand}/64/{unified.lower()}.png"] = png(COLORS[brand])
        package[f"package/img/{brand}/sheets/1f600.png"] = b"not to be read"
    for unified in [*UNIFIED[:-1], "1F3FB"]:
        contents["openmoji"][f"package/color/svg/{unified}.svg"] = SVG
    contents["openmoji"]["package/color/svg/notes-on-1F600.svg"] = b"not to be read"
    for name in ("1f600", "2764", "1f468-1f469-1f467", "0023-20e3", "1f1e9-1f1ea"):  # no joiner, no FE0F
        contents["emojione"][f"package/assets/png/{name}.png"] = png(COLORS["emojione"])
    simple, composed = ["1F600", "2764-FE0F", "1F9EA", MISSING, "1F3FB"], [FAMILY, "0023-FE0F-20E3", "1F1E9-1F1EA"]
    for locale in [*CORE, "aa", "bb", "sr-Latn"]:
        few = {"bb": 2, "sr-Latn": 3}.get(locale, 5)
        contents["cldr-annotations-full"].update(annotations("annotations", locale, simple[:few]))
        derived = [] if few < 5 else composed
        contents["cldr-annotations-derived-full"].update(annotations("annotationsDerived", locale, derived))
        contents["cldr-localenames-full"].update(locale_names(locale))
    return contents


def write_tarball(path, members):
    """Writes a gzipped tar of path -> bytes."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


class Mirror:
    """Hands out the fake packages in place of npm."""

    def __init__(self, folder):
        self.folder, self.fetched = folder, []
        folder.mkdir()
        self.packages = []
        for name, members in fake_contents().items():
            path = folder / f"{name}-1.tgz"
            write_tarball(path, members)
            self.packages.append(Package(name, "1", integrity_of(path), path.stat().st_size, "some licence"))

    def __call__(self, package, folder):
        self.fetched.append(package.name)
        target = folder / package.tarball_name
        target.write_bytes((self.folder / package.tarball_name).read_bytes())
        return target
