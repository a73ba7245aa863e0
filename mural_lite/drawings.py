"""SVG drawings as pictures, by resvg. They are taken only from files, not from clients of a server."""

from __future__ import annotations

import re

SIDE = 512  # pixels of the longer side
# A drawing may name any file of this machine as a part of itself, also through its own entities.
_SHOWS_FILES = re.compile(rb"<(\w+:)?(fe)?image\b[^>]*href\s*=\s*[\"'](?!\s*(data:|#))|<!ENTITY", re.I)
_PLAIN_ENTITY = re.compile(rb"<!ENTITY\s+[\w.-]+\s+([\"'])[^\"'<>&%]*\1\s*>")  # as Illustrator writes


def draw(drawing: bytes) -> bytes:
    """Returns what an SVG draws, as PNG of at most `SIDE` pixels a side; raises `ValueError`, why not."""
    try:
        import resvg_py
    except ImportError:
        raise ValueError("SVG drawing: `pip install resvg-py` makes it readable") from None
    if _SHOWS_FILES.search(_PLAIN_ENTITY.sub(b"", drawing)):
        raise ValueError("SVG drawing that shows other files: save it as PNG")
    try:
        side = dict(width=SIDE, height=SIDE)
        return bytes(resvg_py.svg_to_bytes(svg_string=drawing.decode("utf-8-sig"), skip_system_fonts=True, **side))
    except (ValueError, UnicodeDecodeError):
        raise ValueError("SVG drawing that cannot be drawn") from None
