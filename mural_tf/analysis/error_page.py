"""The HTML of the page of errors: one file without anything outside it, images inside as small PNGs."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
from collections.abc import Sequence

from PIL import Image, UnidentifiedImageError

THUMBNAIL = 96  # pixels, the longer side
TITLES = {"text_to_image": "text to image", "image_to_text": "image to text"}
STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; color: #222; }
h2 { margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; width: 100%; }
td, th { vertical-align: top; text-align: start; padding: 8px; border-bottom: 1px solid #eee; }
td.query { width: 22%; font-size: 16px; }
ol { list-style: none; display: flex; gap: 6px; margin: 4px 0; padding: 0; flex-wrap: wrap; }
ol.texts { display: block; }
li { border: 3px solid transparent; padding: 2px; border-radius: 4px; }
li.right { border-color: #1a9641; background: #e8f6ec; }
img { max-width: 96px; max-height: 96px; display: block; }
.rank { color: #666; }
.rank.found { color: #1a9641; font-weight: bold; }
"""


@dataclasses.dataclass
class Section:
    """One language and direction: the queries shown, of how many, and the language's captions."""

    language: str
    direction: str
    queries: list
    total: int
    texts: list[str]


def render_page(models: Sequence[str], sections: Sequence[Section], images: Sequence[bytes], source: str) -> str:
    """Returns the page; `images` are encoded ones, and the queries' numbers refer to them and to `Section.texts`."""
    contents = "".join(f'<li><a href="#{_anchor(s)}">{_heading(s)}</a></li>' for s in sections)
    body = "".join(_section(section, models, images) for section in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Errors</title><style>{STYLE}</style>'
        f"</head><body><h1>What was found</h1><p>{html.escape(source)}. The right answer is framed in green; where it "
        f"is not among the first five, its rank says how far it is.</p><ul>{contents}</ul>{body}</body></html>\n"
    )


def _anchor(section: Section) -> str:
    return html.escape(f"{section.language}-{section.direction}", quote=True)


def _heading(section: Section) -> str:
    count = f"{len(section.queries)} of {section.total:,} queries"
    return f"{html.escape(section.language)}, {TITLES[section.direction]}: {count}"


def _section(section: Section, models: Sequence[str], images: Sequence[bytes]) -> str:
    heads = "".join(f"<th>{html.escape(model)}</th>" for model in models)
    rows = "".join(_row(query, section, images) for query in section.queries)
    return f'<h2 id="{_anchor(section)}">{_heading(section)}</h2><table><tr><th>query</th>{heads}</tr>{rows}</table>'


def _row(query, section: Section, images: Sequence[bytes]) -> str:
    by_text = section.direction == "text_to_image"
    asked = _text(section, query.number) if by_text else _image(images[query.number])
    answers = "".join(_image(images[i]) if by_text else _text(section, i) for i in sorted(query.right))
    cells = [f'<td class="query">{asked}<p class="rank">right:</p>{answers}</td>']
    for found in query.found:
        items = [
            f"<li{' class=right' if i in query.right else ''}>"
            f"{_image(images[i]) if by_text else _text(section, i)}</li>"
            for i in found.top
        ]
        seen = any(i in query.right for i in found.top)
        rank = f'<span class="rank{" found" if seen else ""}">rank {found.rank:g}</span>'
        cells.append(f"<td>{rank}<ol{'' if by_text else ' class=texts'}>{''.join(items)}</ol></td>")
    return f"<tr>{''.join(cells)}</tr>"


def _text(section: Section, number: int) -> str:
    language = html.escape(section.language, quote=True)
    return f'<span dir="auto" lang="{language}">{html.escape(section.texts[number])}</span> '


def _image(data: bytes) -> str:
    """Returns an <img> with the image inside it, shrunk; transparent pixels go on white."""
    try:
        image = Image.open(io.BytesIO(data)).convert("RGBA")
    except (UnidentifiedImageError, OSError, ValueError):
        return "<em>unreadable image</em>"
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    paper = Image.new("RGBA", image.size, (255, 255, 255, 255))
    buffer = io.BytesIO()
    Image.alpha_composite(paper, image).convert("RGB").save(buffer, "PNG", optimize=True)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
