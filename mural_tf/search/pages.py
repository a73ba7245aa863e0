"""Results as pictures: a page, one HTML file with everything in it, and a contact sheet, one PNG.

Every text from outside is escaped and carries `dir="auto"`, and `lang` where its language is known, so that browsers
order right-to-left scripts and choose the right Han glyphs. Nothing is loaded from elsewhere, and no script runs.
"""

from __future__ import annotations

import functools
import html
import os
import pathlib
import re
import subprocess
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

from mural_tf.data.pictures import read_file, read_picture, thumbnail_url
from mural_tf.errors import UserError
from mural_tf.files import whole, write_whole
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES
from mural_tf.search.queries import Hit, Result, describe_sure

SIDE = 240  # pixels of the longer side of an image
LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")  # BCP 47's form

STYLE = """
:root { color-scheme: light dark; }
body { font-family: system-ui, sans-serif; margin: 1.5rem auto; max-width: 76rem; padding: 0 1rem; line-height: 1.4; }
h1 { font-size: 1.3rem; }
h2 { font-size: 1.15rem; margin-top: 2.5rem; overflow-wrap: anywhere; }
section > p img { max-height: 8rem; }
ol { list-style: none; margin: 0; padding: 0; display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); }
ol.texts { grid-template-columns: 1fr; gap: .4rem; }
li { border: 1px solid #8886; border-radius: .5rem; padding: .6rem; }
li.right { border: 3px solid #2a8a3c; }
figure { margin: 0; }
figure img, .missing { width: 100%; height: 10rem; object-fit: contain; background: #fff; border-radius: .3rem; }
.missing { display: grid; place-items: center; color: #555; }
p { margin: .3rem 0 0; overflow-wrap: anywhere; }
.score { font-variant-numeric: tabular-nums; font-weight: 600; }
.mark { color: #2a8a3c; }
.name, footer { font-size: .85rem; opacity: .75; }
@media (prefers-color-scheme: dark) { .mark { color: #7bd88f; } }
"""


def write_gallery(path: str | os.PathLike, index: Index, results: Sequence[Result]) -> None:
    """Writes the page whole or not at all; images that are gone leave an empty frame with their name."""
    write_whole(path, page_html(index, results))


def page_html(index: Index, results: Sequence[Result]) -> str:
    """Returns the page of all results, a section a query."""
    found = "images" if index.kind == IMAGES else "texts"
    title = results[0].query.name if len(results) == 1 else f"{len(results)} queries"
    sections = "\n".join(_section(index, result) for result in results)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{html.escape(_visible(title))}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Found among {len(index):,} {found}</h1>
{sections}
</main>
<footer><p>Model {html.escape(index.model.describe())}. Numbers are cosines, larger is closer.</p></footer>
</body>
</html>
"""


def _section(index: Index, result: Result) -> str:
    query = result.query
    heading = _block("h2", query.name, query.language)
    if query.image:
        heading += f"<p>{_image(read_file(query.image), 'The image that was asked for', 'en')}</p>"
    known = ""
    if query.right:
        place = result.first_right
        known = f"<p>{f'First right answer: rank {place}.' if place else 'No right answer among these.'}</p>"
    if result.sure:
        known += f"<p>{describe_sure(result).removeprefix(', ').capitalize()}.</p>"
    hits = "\n".join(_hit(index, hit, query.language) for hit in result.hits)
    return f'<section>\n{heading}{known}\n<ol class="{index.kind}">\n{hits}\n</ol>\n</section>'


def _hit(index: Index, hit: Hit, language: str) -> str:
    item = index.describe(hit.row)
    score = f'<p><span class="score">{hit.rank}. {hit.score:+.3f}</span>'
    score += ' <span class="mark">✓ right</span></p>' if hit.right else "</p>"
    if index.kind != IMAGES:
        body = score + _block("p", item.name, item.language)
    else:
        caption_language, caption = item.caption(language or "en")
        try:
            picture = _image(index.read_image(hit.row), caption or item.name, caption_language)
        except (OSError, ValueError):
            picture = '<div class="missing">not available</div>'
        described = _block("p", caption, caption_language) if caption else ""
        name = _block("p", item.name, kind="name")
        body = f"<figure>{picture}<figcaption>{score}{described}{name}</figcaption></figure>"
    return f'<li class="{"right" if hit.right else "other"}">{body}</li>'


def _image(data: bytes, alternative: str, language: str) -> str:
    """Returns an <img>; raises `ValueError` if the image cannot be shown."""
    label = html.escape(_visible(alternative))
    return f'<img src="{thumbnail_url(data, SIDE)}" alt="{label}" dir="auto"{language_attribute(language)}>'


def _block(tag: str, text: str, language: str = "", kind: str = "text") -> str:
    """Returns an element of its own direction: right-to-left text begins at the right."""
    return f'<{tag} class="{kind}" dir="auto"{language_attribute(language)}>{html.escape(_visible(text))}</{tag}>'


def language_attribute(language: str) -> str:
    """Returns ' lang="…"', or "" for what is not a language tag."""
    return f' lang="{language}"' if LANGUAGE_TAG.fullmatch(language) else ""


def _visible(text: str) -> str:
    """Replaces what UTF-8 and HTML cannot hold: lone surrogates and control characters."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c >= " " or c in "\t\n" else "\ufffd" for c in text)


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
      hits: `search.queries.Hit`s, best first.
      images: name -> encoded image of every hit; one that Pillow cannot read leaves an empty frame.

    Returns:
      A note for the user about characters that no font has, mostly "".

    Raises:
      UserError: the file cannot be written.
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
        with whole(path) as partial:
            sheet.save(partial, format="PNG")
    except OSError as error:
        raise UserError(f"The contact sheet {path} cannot be written: {error.strerror or error}.") from None
    return f"No installed font has {' '.join(sorted(lacking))}: boxes stand for them." if lacking else ""


def _thumbnail(data: bytes) -> Image.Image | None:
    """Fits an encoded image into the frame, enlarged where it is small. None if it cannot be read."""
    try:
        image = read_picture(data, THUMBNAIL)
    except ValueError:
        return None
    scale = min(THUMBNAIL / image.width, THUMBNAIL / image.height)
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.LANCZOS)


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
