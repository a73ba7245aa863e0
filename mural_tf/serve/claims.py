"""What the images of a request claim to be, read before anything is decoded."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import numpy as np
from PIL import Image, UnidentifiedImageError

from mural_tf.serve.limits import Limits
from mural_tf.serve.rest_json import BadRequest

FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # what the exported graph decodes
# Putting transparent pixels on white takes this many times the memory of the same pixels without transparency.
TRANSPARENT = 4
# A progressive JPEG has about ten scans. A scan of nothing is 14 bytes, and every scan goes over all pixels.
MOST_SCANS = 100
SCAN = b"\xff\xda"  # how one begins; never in the compressed data itself
DAMAGED = (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error)


def check_claims(images: Sequence[bytes], limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    """Checks the images of a request.

    Args:
      images: encoded.
      limits: the server's.

    Returns:
      What is to be decoded, objects [B], and the pixels that this takes, int64 [B]: 0 for what cannot be read.

    Raises:
      BadRequest: an image, or all of them, would take too much; names the row.
    """
    checked, pixels = np.empty(len(images), object), np.zeros(len(images), np.int64)
    for row, data in enumerate(images):
        checked[row], pixels[row] = _checked(data)
        words = _too_much(checked[row], pixels[row], pixels.sum(), limits)
        if words:
            raise BadRequest(f"Row {row} (the first is 0) {words}.")
    return checked, pixels


def _checked(data: bytes) -> tuple[bytes, int]:
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        is_transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
        pixels = image.width * image.height * (TRANSPARENT if is_transparent else 1)
        return first_frame(data) if image.format == "GIF" else data, pixels
    except Image.DecompressionBombError:
        return data, 2 * Image.MAX_IMAGE_PIXELS  # at least
    except DAMAGED:
        return b"", 0


def _too_much(data: bytes, pixels: int, total: int, limits: Limits) -> str:
    if data.startswith(b"\xff\xd8") and data.count(SCAN) > MOST_SCANS:
        return f"is a JPEG of {data.count(SCAN)} scans; at most {MOST_SCANS} are taken"
    for count, most, whose in (
        (pixels, limits.max_image_pixels, "of one image"),
        (total, limits.max_request_pixels, "of all images of a request"),
    ):
        if count > most:
            return (
                f"brings it to {count / 1e6:.1f} million pixels {whose}, by its header (transparent ones count "
                f"{TRANSPARENT} times); at most {most / 1e6:g} million are taken"
            )
    return ""


def first_frame(data: bytes) -> bytes:
    """Returns a GIF without what follows its first image: the decoder would unpack every one of them.

    The form is CompuServe's GIF89a, §15 to 27. Raises `IndexError` if the first image is cut off.
    """
    position = 13 + _color_table(data[10])
    while data[position] == ord("!"):
        position = _after_blocks(data, position + 2)
    position = _after_blocks(data, position + 11 + _color_table(data[position + 9]))
    return data[:position] + b";"


def _color_table(flags: int) -> int:
    """Its size in bytes."""
    return 3 * 2 ** (flags % 8 + 1) if flags >= 128 else 0


def _after_blocks(data: bytes, position: int) -> int:
    """Where a list of blocks ends: each its size in a byte and its content, the last empty."""
    while data[position]:
        position += 1 + data[position]
    return position + 1


def unreadable(row: int) -> BadRequest:
    """Returns the error for an image that does not decode."""
    return BadRequest(
        f"Row {row} (the first is 0) is not an image that can be read: expected a whole JPEG, PNG, BMP or GIF. "
        '"on_error": "zeros" in the request gives such rows zeros.'
    )
