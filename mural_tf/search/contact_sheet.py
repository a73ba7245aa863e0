"""A contact sheet of search results: the query as the title, thumbnails with rank, score and name, as one PNG."""

from __future__ import annotations

import functools
import io
import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

from mural_tf.config import ConfigurationError

COLUMNS = 5
THUMBNAIL, MARGIN = 180, 16  # pixels
TITLE_SIZE, LABEL_SIZE = 24, 13  # pixels of font height
INK, GREY, PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)


def write_contact_sheet(
    path: str | os.PathLike, query: str, hits: Sequence, images: Mapping[str, bytes], columns: int = COLUMNS
) -> str:
    """Draws the sheet and saves it as PNG.

    Text of any script is drawn with an installed font that has its characters; where none has, boxes stand for them.

    Args:
      path: of the PNG.
      hits: `search.exact.Hit`s, best first.
      images: name -> encoded image of every hit; one that Pillow cannot read leaves an empty frame.

    Returns:
      A note for the user about characters that no font has, mostly "".

    Raises:
      ConfigurationError: the file cannot be written.
    """
    columns = max(1, min(columns, len(hits)))
    rows = -(-len(hits) // columns)
    cell_width, cell_height = THUMBNAIL + MARGIN, THUMBNAIL + 2 * (LABEL_SIZE + 6) + MARGIN
    top = TITLE_SIZE + 3 * MARGIN
    width = max(columns * cell_width + MARGIN, 2 * cell_width + MARGIN)
    sheet = Image.new("RGB", (width, top + rows * cell_height), PAPER)
    draw = ImageDraw.Draw(sheet)
    lacking: set[str] = set()
    _write(draw, (MARGIN, MARGIN), query, TITLE_SIZE, INK, sheet.width - 2 * MARGIN, lacking)
    for place, hit in enumerate(hits):
        row, column = divmod(place, columns)
        left, upper = MARGIN + column * cell_width, top + row * cell_height
        frame = (left, upper, left + THUMBNAIL, upper + THUMBNAIL)
        thumbnail = _thumbnail(images[hit.name])
        if thumbnail is None:
            draw.rectangle(frame, outline=GREY)
        else:
            offset = ((THUMBNAIL - thumbnail.width) // 2, (THUMBNAIL - thumbnail.height) // 2)
            sheet.paste(thumbnail, (left + offset[0], upper + offset[1]))
        below = upper + THUMBNAIL + 4
        _write(draw, (left, below), f"{hit.rank}   {hit.score:+.3f}", LABEL_SIZE, INK, THUMBNAIL, lacking)
        _write(draw, (left, below + LABEL_SIZE + 5), hit.name, LABEL_SIZE, GREY, THUMBNAIL, lacking)
    try:
        sheet.save(path, format="PNG")
    except OSError as error:
        raise ConfigurationError(f"The contact sheet {path} cannot be written: {error.strerror or error}.") from None
    return f"No installed font has {' '.join(sorted(lacking))}: boxes stand for them." if lacking else ""


def _thumbnail(data: bytes) -> Image.Image | None:
    """Fits an encoded image into the frame; transparent pixels go on white. None if it cannot be read."""
    try:
        image = Image.open(io.BytesIO(data)).convert("RGBA")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
        return None
    scale = min(THUMBNAIL / image.width, THUMBNAIL / image.height)
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.LANCZOS)
    paper = Image.new("RGBA", image.size, (*PAPER, 255))
    return Image.alpha_composite(paper, image).convert("RGB")


def _write(draw: ImageDraw.ImageDraw, position, text: str, size: int, color, width: int, lacking: set[str]) -> None:
    """Writes one line, shortened to `width` pixels."""
    text = " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")
    path, missing = _font_for("".join(sorted({c for c in text if not c.isspace()})))
    lacking.update(missing)
    font = ImageFont.truetype(path, size) if path else _default_font(size)
    if not isinstance(font, ImageFont.FreeTypeFont):  # Pillow without FreeType has one Latin-1 bitmap font
        text = text.encode("latin-1", "replace").decode("latin-1")
    shown = text
    while shown and draw.textlength(shown, font=font) > width:
        shown = shown[:-2] + "…" if len(shown) > 2 else ""
    draw.text(position, shown, fill=color, font=font)


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
