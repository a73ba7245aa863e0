"""What the images of a request claim to be, read before anything is decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mural_tf.data.pictures import MAX_PIXELS, BadImage, for_the_encoder, open_image
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.rest_json import BadRequest

OF_THE_GRAPH = (b"\xff\xd8", b"\x89PNG", b"GIF8", b"BM")  # how the files begin that the exported graph decodes
# Putting transparent pixels on white takes this many times the memory of the same pixels without transparency.
TRANSPARENT = 4
# A progressive JPEG has about ten scans. A scan of nothing is 14 bytes, and every scan goes over all pixels.
MOST_SCANS = 100
SCAN = b"\xff\xda"  # how one begins; never in the compressed data itself


def check_claims(images: Sequence[bytes], limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    """Checks the images of a request.

    Args:
      images: encoded.
      limits: the server's.

    Returns:
      What is to be decoded, objects [B], and the pixels that this takes, int64 [B]: 0 for what cannot be read. Not all
      of it is what the graph decodes: see `decodable`.

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


def decodable(images: np.ndarray) -> np.ndarray:
    """Returns `images` of `check_claims` as the exported graph decodes them: WebP, AVIF, TIFF and others become JPEG.

    This decodes them; it is for a thread. What does not decode becomes empty.
    """
    made = images.copy()
    for row in np.flatnonzero([is_foreign(data) for data in images]):
        try:
            made[row] = for_the_encoder(images[row])
        except BadImage:
            made[row] = b""
    return made


def is_foreign(data: bytes) -> bool:
    """Tells whether an image is of a format that the exported graph does not decode."""
    return bool(data) and not data.startswith(OF_THE_GRAPH)


def _checked(data: bytes) -> tuple[bytes, int]:
    try:
        image = open_image(data)
        pixels = image.width * image.height
        if image.format == "GIF":
            data, of_frame = first_frame(data)
            pixels = max(pixels, of_frame)
    except BadImage as error:
        return (data, MAX_PIXELS + 1) if "pixels" in str(error) else (b"", 0)
    except IndexError:  # a GIF that is cut off
        return b"", 0
    is_transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return data, pixels * (TRANSPARENT if is_transparent else 1)


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


def first_frame(data: bytes) -> tuple[bytes, int]:
    """Returns a GIF without what follows its first image, and the pixels of this one.

    The decoder would unpack every one of them, and an image may be larger than what the header says of all. The form is
    CompuServe's GIF89a, §15 to 27. Raises `IndexError` if the first image is cut off.
    """
    position = 13 + _color_table(data[10])
    while data[position] == ord("!"):
        position = _after_blocks(data, position + 2)
    width, height = (int.from_bytes(data[position + at : position + at + 2], "little") for at in (5, 7))
    position = _after_blocks(data, position + 11 + _color_table(data[position + 9]))
    return data[:position] + b";", width * height


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
        f"Row {row} (the first is 0) is not an image that can be read: expected a whole JPEG, PNG, WebP or another "
        "format that Pillow reads. "
        '"on_error": "zeros" in the request gives such rows zeros.'
    )
