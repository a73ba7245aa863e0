"""Small JPEGs of found images, for pages."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageOps, UnidentifiedImageError

SIDE = 240  # pixels of the longer side


def thumbnail(data: bytes, side: int = SIDE) -> bytes:
    """Returns an encoded image as a JPEG of at most `side` x `side` pixels, turned upright, transparency on white.

    Raises `ValueError` if Pillow cannot read it.
    """
    try:
        image = Image.open(io.BytesIO(data))
        image.draft("RGB", (2 * side, 2 * side))  # JPEGs are decoded at a fraction of their size
        image = ImageOps.exif_transpose(image).convert("RGBA")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"Not an image that can be shown: {error}") from None
    image.thumbnail((side, side), Image.LANCZOS)
    paper = Image.new("RGBA", image.size, "white")
    buffer = io.BytesIO()
    Image.alpha_composite(paper, image).convert("RGB").save(buffer, "JPEG", quality=82)
    return buffer.getvalue()


def data_url(jpeg: bytes) -> str:
    """Returns the image as an URL that holds it, so that a page needs nothing else."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
