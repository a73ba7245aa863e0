"""Emoji keys, languages and names of the emoji benchmark, out of the Unicode CLDR packages.

CLDR's annotations hold, per locale and emoji, `tts`, the short name that we use as caption, and `default`, keywords. A
locale is one folder there and keeps CLDR's tag as its language, whether it is a bare language ("sr"), a script of it
("sr-Latn", "zh-Hant", "pa-Arab") or a region ("pt-PT", "yo-BJ"). Every locale counts with the names it gives itself: a
region's folder holds only those that differ from its parent's, and nothing is inherited. By this count, 100 locales
name at least 90% of the emoji and 122 at least half.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

from mural_tf.data.datasets.emoji.npm_packages import read_members
from mural_tf.errors import UserError

WELL_RESOURCED = tuple("en de fr cs ja zh ru pl tr".split())  # MURAL (Jain et al., 2021) appendix A.3
# [MURAL]'s group where CLDR names emoji (tg uz ga be; not mg ceb ht war), and others with little text.
UNDER_RESOURCED = tuple("tg uz ga be am km si yo zu sw mt lb rw xh ka my".split())
CORE = WELL_RESOURCED + UNDER_RESOURCED
LANGUAGE_GROUPS = {"well-resourced": WELL_RESOURCED, "under-resourced": UNDER_RESOURCED}

_LOCALE_NAME_KINDS = ("languages", "territories", "scripts", "variants")
_VARIATION_SELECTOR = 0xFE0F  # "draw it as emoji"; packages disagree on where to write it, so keys never have it


@dataclasses.dataclass(frozen=True)
class EmojiName:
    """What one locale says about one emoji."""

    name: str
    keywords: tuple[str, ...]


@functools.cache  # every locale asks for the same few thousand
def key_of_text(emoji: str) -> str:
    """Returns the emoji's key: code points as lower-case hex, joined by "-", without U+FE0F ("2764" for ❤️)."""
    return "-".join(f"{ord(c):04x}" for c in emoji if ord(c) != _VARIATION_SELECTOR)


def key_of_code_points(code_points: str) -> str:
    """Returns the key of a file name or table entry like "0023-FE0F-20E3"."""
    return "-".join(f"{c:04x}" for c in (int(p, 16) for p in code_points.split("-")) if c != _VARIATION_SELECTOR)


def read_emoji_names(
    annotations: pathlib.Path, derived: pathlib.Path, languages: str = "all"
) -> dict[str, dict[str, EmojiName]]:
    """Returns locale -> emoji key -> names, from the tarballs of CLDR's annotations and derived annotations.

    `languages` "core" reads only the locales of the two groups, "all" every one.

    The first has the single emoji, the second the composed ones (flags, keycaps, families); none is in both.
    A name that CLDR's JSON holds in two pieces (it was written with "|" between them) is joined with ", ".
    """
    names: dict[str, dict[str, EmojiName]] = {}
    for tarball, folder in ((annotations, "annotations"), (derived, "annotationsDerived")):
        members = read_members(tarball, lambda path, top=folder: _is_locale_file(path, top, ("annotations.json",)))
        for path, content in members.items():
            locale = path.split("/")[1]
            if languages == "core" and locale not in CORE:
                continue
            of_locale = names.setdefault(locale, {})
            for emoji, entry in parse_json(content, tarball, path)[folder].get("annotations", {}).items():
                if entry.get("tts"):
                    keywords = tuple(entry.get("default", ()))
                    of_locale.setdefault(key_of_text(emoji), EmojiName(", ".join(entry["tts"]), keywords))
    return names


def read_locale_names(localenames: pathlib.Path, locales: list[str]) -> dict[str, dict[str, str]]:
    """Returns locale -> "languages:de" or the like -> name in that locale, for the locales asked for.

    Names of languages, territories, scripts and language variants. An entry that only repeats its code is not a name.
    """
    files = tuple(f"{kind}.json" for kind in _LOCALE_NAME_KINDS)
    members = read_members(localenames, lambda path: _is_locale_file(path, "main", files))
    names: dict[str, dict[str, str]] = {locale: {} for locale in locales}
    for path, content in sorted(members.items()):
        locale, kind = path.split("/")[1], path.split("/")[2].removesuffix(".json")
        if locale in names:
            entries = parse_json(content, localenames, path)["main"][locale]["localeDisplayNames"].get(kind, {})
            names[locale].update({f"{kind}:{code}": name for code, name in entries.items() if name != code})
    return names


def choose_languages(languages: str, names: dict[str, dict[str, EmojiName]], emoji: set[str]) -> list[str]:
    """Returns the build's languages in a fixed order: well-resourced, under-resourced, others by tag.

    "core" are the two groups; "all" adds every locale that itself names at least half of `emoji`.
    """
    if languages == "core":
        return list(CORE)
    if languages == "all":
        enough = {locale for locale, named in names.items() if 2 * len(emoji & named.keys()) >= len(emoji)}
        return [*CORE, *sorted(enough.difference(CORE))]
    raise UserError(f"languages must be 'core' or 'all', not {languages!r}.")


def parse_json(content: bytes, tarball: pathlib.Path, path: str) -> dict:
    """Returns the parsed member; raises `UserError` if it is not JSON."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise UserError(f"{tarball}: {path} is not valid JSON ({error}).") from None


def _is_locale_file(path: str, folder: str, names: tuple[str, ...]) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and parts[0] == folder and parts[2] in names
