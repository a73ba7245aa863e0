"""Results as pictures: a page, one HTML file with everything in it, and a contact sheet, one PNG.

Every text from outside is escaped and carries `dir="auto"`, and `lang` where its language is known, so that browsers
order right-to-left scripts and choose the right Han glyphs. Nothing is loaded from elsewhere, and no script runs.
"""

from __future__ import annotations

import html
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw

from mural_tf.data.pictures import read_file, read_picture, thumbnail_url
from mural_tf.errors import UserError
from mural_tf.files import as_path, whole, write_whole
from mural_tf.search.fonts import draw_line
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES, Item
from mural_tf.search.queries import Hit, Result, describe_sure, visible

SIDE = 240  # pixels of the longer side of an image
ADDRESS = re.compile(r"https?://[^\s\"'<>`\\]+")
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
.field { font-size: .85rem; }
.name, footer { font-size: .85rem; opacity: .75; }
@media (prefers-color-scheme: dark) { .mark { color: #7bd88f; } }
"""


def write_gallery(path: str | os.PathLike, index: Index, results: Sequence[Result], links: Mapping = {}) -> None:
    """Writes the page whole or not at all; images that are gone leave an empty frame with their name."""
    write_whole(path, page_html(index, results, links))


def page_html(index: Index, results: Sequence[Result], links: Mapping[str, str] = {}) -> str:
    """Returns the page of all results, a section a query, with `links` {words: address} at its foot."""
    pages = "".join(f'<p><a href="{html.escape(to)}">{html.escape(words)}</a></p>' for words, to in links.items())
    found = "images" if index.kind == IMAGES else "texts"
    title = results[0].query.name if len(results) == 1 else f"{len(results)} queries"
    sections = "\n".join(_section(index, result) for result in results)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{html.escape(visible(title))}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Found among {index.count:,} {found}</h1>
{sections}
</main>
<footer><p>Model {html.escape(index.model.describe())}. Numbers are cosines, larger is closer.</p>{pages}</footer>
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
    fields = _fields(item)
    if index.kind != IMAGES:
        body = score + _block("p", item.name, item.language) + fields
    else:
        caption_language, caption = item.caption(language or "en")
        try:
            picture = _image(index.read_image(hit.row), caption or item.name, caption_language)
            picture = _linked(item, picture)
        except (OSError, ValueError):
            picture = '<div class="missing">not available</div>'
        described = _block("p", caption, caption_language) if caption else ""
        name = _block("p", item.name, kind="name")
        body = f"<figure>{picture}<figcaption>{score}{described}{fields}{name}</figcaption></figure>"
    return f'<li class="{"right" if hit.right else "other"}">{body}</li>'


def _linked(item: Item, picture: str) -> str:
    """Links a picture to its file, where it is one of its own."""
    path = as_path(item.path)
    if item.offset >= 0 or not isinstance(path, pathlib.Path) or not path.is_absolute():
        return picture
    return f'<a href="{html.escape(path.as_uri())}">{picture}</a>'


def _fields(item: Item) -> str:
    """Returns what else is known of an item; addresses become links."""
    return "".join(_field(name, value) for name, value in item.fields.items())


def _field(name: str, value: str) -> str:
    if ADDRESS.fullmatch(value):
        link = f'<a href="{html.escape(value)}" rel="noopener noreferrer">{html.escape(visible(name))}</a>'
        return f'<p class="field" dir="auto">{link}</p>'
    return _block("p", f"{name}: {value}", kind="field")


def _image(data: bytes, alternative: str, language: str) -> str:
    """Returns an <img>; raises `ValueError` if the image cannot be shown."""
    label = html.escape(visible(alternative))
    return f'<img src="{thumbnail_url(data, SIDE)}" alt="{label}" dir="auto"{language_attribute(language)}>'


def _block(tag: str, text: str, language: str = "", kind: str = "text") -> str:
    """Returns an element of its own direction: right-to-left text begins at the right."""
    return f'<{tag} class="{kind}" dir="auto"{language_attribute(language)}>{html.escape(visible(text))}</{tag}>'


def language_attribute(language: str) -> str:
    """Returns ' lang="…"', or "" for what is not a language tag."""
    return f' lang="{language}"' if LANGUAGE_TAG.fullmatch(language) else ""


COLUMNS = 5
THUMBNAIL, MARGIN = 180, 16  # pixels
TITLE_SIZE, LABEL_SIZE = 24, 13  # pixels of font height
INK, GREY, PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)


def write_contact_sheet(
    path: str | os.PathLike, query: str, hits: Sequence, images: Mapping[str, bytes], columns: int = COLUMNS
) -> str:
    """Draws the sheet and saves it as PNG.

    Text of any script is drawn with installed fonts that have its characters; where none has, boxes stand for them.

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
    lacking |= draw_line(draw, (MARGIN, MARGIN), query, TITLE_SIZE, INK, sheet.width - 2 * MARGIN)
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
        draw_line(draw, (left, below), f"{hit.rank}   {hit.score:+.3f}", LABEL_SIZE, INK, THUMBNAIL)
        lacking |= draw_line(draw, (left, below + LABEL_SIZE + 5), hit.name, LABEL_SIZE, GREY, THUMBNAIL)
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
