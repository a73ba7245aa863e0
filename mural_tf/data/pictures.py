"""Pictures outside TensorFlow's graph, by Pillow: upright, transparency on white, small ones for pages.

What a model sees is decoded by `data/images.py`.
"""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageOps, UnidentifiedImageError

# More are not decoded, whoever asks: a few kilobytes can hold gigabytes of one colour.
MAX_PIXELS = 2**26


def on_white(image: Image.Image) -> Image.Image:
    """Returns the image as RGB, its transparent pixels on white, for any mode and palette."""
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def read_picture(data: bytes, side: int = 0) -> Image.Image:
    """Decodes an image, turned upright as its EXIF data say, to RGB on white.

    Args:
      data: the encoded image.
      side: pixels; a JPEG may be decoded at a fraction of its size as long as it stays twice as large. 0: at its own.

    Raises:
      ValueError: Pillow cannot read it.
    """
    try:
        image = Image.open(io.BytesIO(data))
        if side:
            image.draft("RGB", (2 * side, 2 * side))
        return on_white(ImageOps.exif_transpose(image))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"Not an image that can be shown: {error}") from None


def thumbnail(data: bytes, side: int) -> bytes:
    """Returns an encoded image as a JPEG of at most `side` x `side` pixels; raises as `read_picture`."""
    image = read_picture(data, side)
    image.thumbnail((side, side), Image.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return buffer.getvalue()


def thumbnail_url(data: bytes, side: int) -> str:
    """Returns the thumbnail as an URL that holds it, so that a page needs nothing else; raises as `read_picture`."""
    return "data:image/jpeg;base64," + base64.b64encode(thumbnail(data, side)).decode("ascii")
