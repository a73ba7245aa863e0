"""What the images of a request claim to be, read from their headers before anything is decoded."""

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
DAMAGED = (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error)


def claimed_pixels(data: bytes) -> int:
    """Returns the pixels of an image by its header, transparent ones `TRANSPARENT` times; 0 if there is no header."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        return 2 * Image.MAX_IMAGE_PIXELS  # at least
    except DAMAGED:
        return 0
    is_transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return image.width * image.height * (TRANSPARENT if is_transparent else 1)


def check_claims(images: Sequence[bytes], limits: Limits) -> np.ndarray:
    """Returns the `claimed_pixels` of each image, int64 [B]; raises `BadRequest` if one, or all, are too many."""
    pixels, total = np.zeros(len(images), np.int64), 0
    for row, data in enumerate(images):
        pixels[row] = claimed_pixels(data)
        total += pixels[row]
        for count, most, whose in (
            (pixels[row], limits.max_image_pixels, "of one image"),
            (total, limits.max_request_pixels, "of all images of a request"),
        ):
            if count > most:
                raise BadRequest(
                    f"Row {row} (the first is 0) brings it to {count / 1e6:.1f} million pixels {whose}, by its header "
                    f"(transparent ones count {TRANSPARENT} times); at most {most / 1e6:g} million are taken."
                )
    return pixels


def unreadable(row: int) -> BadRequest:
    """Returns the error for an image that does not decode."""
    return BadRequest(
        f"Row {row} (the first is 0) is not an image that can be read: expected a whole JPEG, PNG, BMP or GIF. "
        '"on_error": "zeros" in the request gives such rows zeros.'
    )
