"""What the server takes at most: settings, bodies, and the pictures of a request, checked before they are decoded."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import numpy as np
from aiohttp import web

try:
    from asyncio import timeout  # not `wait_for`: until 3.11 it may forget that a client went away
except ImportError:  # Python 3.10, to which aiohttp brings it
    from async_timeout import timeout

from mural_tf.data.pictures import MAX_PIXELS, BadImage, for_the_encoder, open_image
from mural_tf.search.server.rest_json import RAISE, BadRequest


@dataclasses.dataclass(frozen=True)
class Limits:
    """Settings of the server, all above 0."""

    max_batch: int = 64  # rows in one run of a model; a picture counts one more per million pixels
    max_request_bytes: int = 32 * 2**20  # of a body, unpacked; more is answered with 413
    timeout: float = 60.0  # seconds for an answer (503), half of them for the body to arrive (408)


ROWS = 1024  # of one request; more are answered with 400
VALUES = 10**6  # numbers, texts, lists and objects in one body: as objects of Python they take up to 100 bytes each
REQUESTS, LARGE_BODIES, LARGE = 256, 4, 2**20  # at once; how many bodies of more than so many bytes are among them
IMAGE_PIXELS, REQUEST_PIXELS = 64 * 10**6, 128 * 10**6  # by the headers of one image, and of all of a request
# A progressive JPEG has about ten scans. A scan of nothing is 14 bytes, and every scan goes over all pixels.
MOST_SCANS, SCAN = 100, b"\xff\xda"
TRANSPARENT = 4  # putting transparent pixels on white takes so many times the memory of others


class Overloaded(Exception):
    """The server has no room or time for a request now."""

    status = 503  # of HTTP


async def read_body(request: web.Request, limits: Limits) -> bytes:
    """Returns the body, unpacked; aiohttp's bound answers a longer one with 413, a slow one gets 408."""
    try:
        async with timeout(limits.timeout / 2):
            return await request.read()
    except asyncio.TimeoutError:
        raise BadRequest(f"The body did not arrive within {limits.timeout / 2:g} seconds.", 408) from None


def prepare_images(images: Sequence[bytes], on_error: str = RAISE) -> tuple[np.ndarray, np.ndarray]:
    """Makes the encoded images of a request ready for the encoder; this may decode, it is for a thread.

    JPEG and upright PNG stay as they are, other formats become JPEG.

    Returns:
      objects [B], b"" for an image that cannot be read, and int64 [B], what each row costs: see `Limits.max_batch`.

    Raises:
      BadRequest: names the row of an image that claims too much, or cannot be read unless `on_error` is "zeros".
    """
    pixels = np.zeros(len(images), np.int64)
    for row, data in enumerate(images):
        pixels[row] = _pixels_of(data)
        if data.startswith(b"\xff\xd8") and data.count(SCAN) > MOST_SCANS:
            scans = data.count(SCAN)
            raise BadRequest(f"Row {row} (the first is 0) is a JPEG of {scans} scans; at most {MOST_SCANS} are taken.")
        for count, most, whose in (
            (pixels[row], IMAGE_PIXELS, "of one image"),
            (pixels.sum(), REQUEST_PIXELS, "of all images of a request"),
        ):
            if count > most:
                raise BadRequest(
                    f"Row {row} (the first is 0) brings it to {count / 1e6:.1f} million pixels {whose}, by its header "
                    f"(transparent pixels count {TRANSPARENT} times); at most {most / 1e6:g} million are taken."
                )
    ready = np.empty(len(images), object)
    for row, data in enumerate(images):
        try:
            ready[row] = for_the_encoder(data)
        except BadImage:
            ready[row] = b""
            if on_error == RAISE:
                raise unreadable(row) from None
    return ready, 1 + pixels // 10**6


def _pixels_of(data: bytes) -> int:
    try:
        image = open_image(data)
    except BadImage as error:
        return MAX_PIXELS + 1 if "pixels" in str(error) else 0
    is_transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return image.width * image.height * (TRANSPARENT if is_transparent else 1)


def unreadable(row: int) -> BadRequest:
    """Returns the error for the image of a row that cannot be read."""
    return BadRequest(
        f"Row {row} (the first is 0) is not an image that can be read: expected a whole JPEG, PNG, WebP or another "
        'format that Pillow reads. "on_error": "zeros" in the request gives such rows zeros.'
    )


def check_read(outputs: np.ndarray) -> None:
    """Raises `BadRequest` for the first row [B, …] of nothing but zeros: an image that the encoder could not read."""
    is_read = outputs.reshape(len(outputs), -1).any(axis=1)
    if not is_read.all():
        raise unreadable(int(np.argmin(is_read)))
