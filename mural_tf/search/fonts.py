"""Lines of text in any script, drawn with the installed fonts: each script of a line with a font that has it.

Pillow draws a string with one font. So a line is cut into runs of one font and one direction, which stand in the order
in which they are read; with libraqm, which Pillow's wheels bring, letters are joined and stacked inside a run.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
import pathlib
import subprocess
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from PIL import ImageDraw, ImageFont


def draw_line(
    draw: ImageDraw.ImageDraw, position: tuple[float, float], text: str, size: int, color: tuple, width: int
) -> set[str]:
    """Draws a text in one line, shortened to `width` pixels; returns the characters that no font has."""
    text = " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")
    fits, too_long = 0, len(text) + 1  # characters; all of them may fit
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        is_short = sum(draw.textlength(part, **how) for part, how in _parts(_cut(text, middle), size)) <= width
        fits, too_long = (middle, too_long) if is_short else (fits, middle)
    left, upper = position
    for part, how in _parts(_cut(text, fits), size):
        if isinstance(how["font"], ImageFont.FreeTypeFont):
            draw.text((left, upper + size), part, fill=color, anchor="ls", **how)  # all on one baseline
        else:
            draw.text((left, upper), part, fill=color, **how)
        left += draw.textlength(part, **how)
    return {c for run in runs_of(text) for c in _missing(run.font, "".join(set(run.text) - _IGNORED - {" "}))}


def _cut(text: str, count: int) -> str:
    return text if count >= len(text) else f"{text[:count]}…" if count else ""


class Run(NamedTuple):
    """A part of a line that is drawn with one font file ("": Pillow's own) in one direction."""

    text: str
    font: str
    direction: str  # "right", "left", or "" where the characters have none


def runs_of(text: str) -> list[Run]:
    """Cuts a line where another font is needed, in the order of drawing, from the left.

    The letters of one script share a font, because they are joined or stacked. Others (punctuation, digits, symbols)
    stay with what is before them, if that font has them.
    """
    fonts = {script: _font_of_script(script, "".join(sorted(of))) for script, of in _by_script(text).items()}
    runs: list[Run] = []
    for character in text:
        script, font = _script(character), runs[-1].font if runs else ""
        if script:
            font = fonts[script]
        elif character not in _IGNORED and not character.isspace() and _missing(font, character):
            font, _ = _font_for(character)
        direction = {"L": "right", "R": "left", "AL": "left"}.get(unicodedata.bidirectional(character), "")
        if runs and runs[-1].font == font and (not direction or runs[-1].direction in ("", direction)):
            before = runs.pop()
            runs.append(Run(before.text + character, font, before.direction or direction))
        else:
            runs.append(Run(character, font, direction))
    return _in_order_of_drawing(runs)


def _in_order_of_drawing(runs: list[Run]) -> list[Run]:
    """Puts runs from left to right, after the rules for text of both directions (UAX #9, L2), at two levels."""
    main = next((run.direction for run in runs if run.direction), "right")
    for place, run in enumerate(runs):
        if not run.direction:  # it goes with its neighbours, where these agree
            before = runs[place - 1].direction if place else main
            after = next((later.direction for later in runs[place:] if later.direction), main)
            runs[place] = run._replace(direction=before if before == after else main)
    groups = [(key, list(of)) for key, of in itertools.groupby(runs, lambda run: run.direction)]
    if main == "left":
        groups.reverse()
    return [run for direction, of in groups for run in (of if direction == "right" else of[::-1])]


def _by_script(text: str) -> dict[str, set[str]]:
    found = collections.defaultdict(set)
    for character in text:
        if _script(character):
            found[_script(character)].add(character)
    return found


# Variation selectors and joiners: they change others, and a font without them is none the worse.
_IGNORED = frozenset(map(chr, (*range(0xFE00, 0xFE10), 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF)))
_NO_SCRIPT = ("COMBINING", "DIGIT", "MODIFIER", "SUPERSCRIPT", "VARIATION")  # how names of shared letters begin
_OF_HAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC")


def _script(character: str) -> str:
    """Returns the script of a letter, by the first word of its Unicode name; "" for what many scripts share."""
    word = unicodedata.name(character, "").partition(" ")[0]
    if unicodedata.category(character)[0] not in "LMN" or word in _NO_SCRIPT:
        return ""
    return "CJK" if word in _OF_HAN else word


_fonts_of_scripts: dict[str, str] = {}  # that served before: looking through all takes long


def _font_of_script(script: str, characters: str) -> str:
    font = _fonts_of_scripts.get(script)
    if font is None or _missing(font, characters):
        font = _fonts_of_scripts[script] = _font_for(characters)[0]
    return font


def _parts(text: str, size: int) -> Iterator[tuple[str, dict]]:
    """Yields (text, font and direction) of runs, as Pillow draws and measures them."""
    for run in runs_of(text):
        how = {"font": _font(run.font, size)}
        part = "".join(character for character in run.text if not "\ufe00" <= character <= "\ufe0f")
        if not isinstance(how["font"], ImageFont.FreeTypeFont):  # Pillow without FreeType has one Latin-1 bitmap font
            part = part.encode("latin-1", "replace").decode("latin-1")
        elif how["font"].layout_engine == ImageFont.Layout.RAQM:  # the other one knows no directions
            how["direction"] = "rtl" if run.direction == "left" else "ltr"
        yield part, how


@functools.lru_cache(maxsize=64)
def _font(path: str, size: int) -> ImageFont.ImageFont:
    return ImageFont.truetype(path, size) if path else _default_font(size)


@functools.lru_cache(maxsize=256)
def _font_for(characters: str) -> tuple[str, tuple[str, ...]]:
    """Returns (font file or "" for Pillow's own, the characters it lacks): the font that lacks fewest."""
    best, lacking = "", _missing("", characters)
    for path in _installed_fonts():
        if not lacking:
            break
        missing = _missing(path, characters)
        if len(missing) < len(lacking):
            best, lacking = path, missing
    return best, lacking


@functools.lru_cache(maxsize=4096)
def _missing(path: str, characters: str) -> tuple[str, ...]:
    """The characters that a font draws as it draws one that no font has."""
    try:
        # Basic layout: the shaping one would draw a lone vowel sign on a dotted circle, absent or not.
        font = ImageFont.truetype(path, 16, layout_engine=ImageFont.Layout.BASIC) if path else _default_font(16)
    except OSError:
        return tuple(characters)
    if not isinstance(font, ImageFont.FreeTypeFont):
        return tuple(c for c in characters if ord(c) > 255)
    absent = bytes(font.getmask("\uffff"))
    return tuple(c for c in characters if bytes(font.getmask(c)) == absent)


def _default_font(size: int):
    try:
        return ImageFont.load_default(size)
    except TypeError:  # Pillow < 10.1
        return ImageFont.load_default()


@functools.lru_cache(maxsize=1)
def _installed_fonts() -> tuple[str, ...]:
    """Font files, regular sans-serif ones first: from fontconfig, or else the usual folders."""
    try:
        listed = subprocess.run(["fc-list", "--format=%{file}\n"], capture_output=True, text=True, timeout=20)
        files = listed.stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        files = []
    if not files:
        folders = ("/usr/share/fonts", "/Library/Fonts", "/System/Library/Fonts", "C:/Windows/Fonts")
        files = [str(path) for folder in folders for path in pathlib.Path(folder).rglob("*")]
    files = {file for file in files if file.lower().endswith((".ttf", ".otf", ".ttc"))}
    unusual = ("bold", "italic", "oblique", "mono", "serif", "light", "condensed", "thin", "math")

    def oddity(file: str) -> tuple[int, str]:
        name = os.path.basename(file).lower().replace("sansserif", "sans")
        return sum(word in name for word in unusual), file

    return tuple(sorted(files, key=oddity))
