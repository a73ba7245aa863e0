"""A page of results: one HTML file with everything in it, for any script and for screen readers.

Every text from outside is escaped and carries `dir="auto"`, and `lang` where its language is known, so that browsers
order right-to-left scripts and choose the right Han glyphs. Nothing is loaded from elsewhere, and no script runs.
"""

from __future__ import annotations

import html
import os
import pathlib
import re
from collections.abc import Sequence

from mural_tf.config import write_whole
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES
from mural_tf.search.results import Hit, Result
from mural_tf.search.thumbnails import data_url, thumbnail

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
    write_whole(pathlib.Path(path), page_html(index, results))


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
        heading += f"<p>{_image(pathlib.Path(query.image).read_bytes(), 'The image that was asked for', 'en')}</p>"
    known = ""
    if query.right:
        place = result.first_right
        known = f"<p>{f'First right answer: rank {place}.' if place else 'No right answer among these.'}</p>"
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
    return f'<img src="{data_url(thumbnail(data))}" alt="{label}" dir="auto"{language_attribute(language)}>'


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
