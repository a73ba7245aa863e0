"""What the server gives at most: to one request, to its images, and to all requests that are in flight together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

try:
    from asyncio import timeout  # not `wait_for`: until 3.11 it may forget that a client went away
except ImportError:  # Python 3.10, to which aiohttp brings it
    from async_timeout import timeout

from mural_tf.data.pictures import MAX_PIXELS, BadImage, for_the_encoder, open_image
from mural_tf.errors import UserError
from mural_tf.search.server.rest_json import MARKS, BadRequest


@dataclasses.dataclass(frozen=True)
class Limits:
    """Settings of the server; raises `UserError` if one makes no sense."""

    max_batch: int = 64  # rows in one run of a model
    window: float = 0.002  # seconds that a request waits for others to share a run
    max_request_bytes: int = 32 * 2**20  # of a body, unpacked; more is answered with 413
    max_bytes_in_flight: int = 96 * 2**20  # of all bodies and answers that are held; more is answered with 503
    max_values: int = 10**6  # numbers, texts, lists and objects in one body; more is answered with 413
    max_rows: int = 1024  # of one request; more is answered with 400
    max_image_pixels: int = 64 * 10**6  # of one image, by its header; more is answered with 400
    max_request_pixels: int = 128 * 10**6  # of one request; twice as many are in flight, beyond that 503
    max_waiting: int = 1024  # requests waiting for one signature; more are answered with 503
    max_connections: int = 512  # open at once; more are answered with 503 and closed
    idle_timeout: float = 75.0  # seconds that a connection is kept without a request
    body_timeout: float = 60.0  # seconds that a client may take to send a body (408), or to take an answer
    request_timeout: float = 60.0  # seconds from the body to the answer; more is answered with 503
    shutdown_timeout: float = 20.0  # seconds that running requests get at the end

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value >= 0 or (value == 0 and field.name != "window"):
                raise UserError(f"The server's {field.name}={value} must be above 0.")
        if self.max_bytes_in_flight < 2 * self.max_request_bytes:
            raise UserError(
                f"The server's max_bytes_in_flight={self.max_bytes_in_flight} must be at least twice "
                f"max_request_bytes={self.max_request_bytes}: otherwise the largest request is never taken."
            )
        if self.max_request_pixels < self.max_image_pixels:
            raise UserError(
                f"The server's max_request_pixels={self.max_request_pixels} must not be below "
                f"max_image_pixels={self.max_image_pixels}."
            )

    def is_large(self, rows: int, pixels: int) -> bool:
        """Whether a request of so many rows and pixels waits apart from the small ones."""
        return 4 * rows > self.max_batch or 4 * pixels > self.max_image_pixels


class Overloaded(Exception):
    """The server has no room or time for a request now."""

    status = 503  # of HTTP


class Budget:
    """An amount that all requests in flight share; used in the event loop only.

    A request that takes n must leave n to the others. So the large ones are refused first, and a few of them cannot
    shut out the small ones.

    Args:
      limit: the amount; a single request gets half of it at most.
      what: its name in the plural, for the error.
    """

    def __init__(self, limit: int, what: str):
        self._limit, self._what, self.used = limit, what, 0

    @contextlib.contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yields `grow(amount)`, which takes more for one request or raises `Overloaded`; at the end all goes back."""
        held = 0

        def grow(amount: int) -> None:
            nonlocal held
            others = self.used - held
            if others + 2 * (held + amount) > self._limit:
                raise Overloaded(f"Requests in flight hold {others} {self._what} already; try again later.")
            held, self.used = held + amount, self.used + amount

        try:
            yield grow
        finally:
            self.used -= held


async def read_body(request, limits: Limits, grow: Callable[[int], None]) -> tuple[bytearray, int]:
    """Returns the body of aiohttp's `request`, unpacked, and how many values it holds at most.

    `grow` of a `Budget` is called with its bytes as they come.

    JSON of tiny values takes up to thirty times its size as Python's objects, so they are bounded before they are made:
    by the commas, colons and opening brackets that come before them, those in texts included.

    Raises:
      BadRequest: the body is too large, or does not arrive in time.
      Overloaded: others hold too much.
    """
    _check(request.content_length or 0, limits.max_request_bytes, "bytes")
    body, values = bytearray(), 0
    try:
        async with timeout(limits.body_timeout):
            async for piece in request.content.iter_any():
                values += sum(map(piece.count, MARKS))
                _check(len(body) + len(piece), limits.max_request_bytes, "bytes")
                _check(values, limits.max_values, "numbers, texts, lists and objects, by commas, colons and brackets")
                grow(len(piece))
                body += piece
        return body, values
    except asyncio.TimeoutError:
        raise BadRequest(f"The body did not arrive within {limits.body_timeout:g} seconds.", 408) from None


def _check(count: int, most: int, what: str) -> None:
    if count > most:
        words = f"The body has {count} {what}, or more; at most {most} are taken. Send it in several requests."
        raise BadRequest(words, 413)


# Images.

OF_THE_GRAPH = (b"\xff\xd8\xff", b"\x89PNG")  # how the files begin that the exported graph gets as they are
# Putting transparent pixels on white takes this many times the memory of the same pixels without transparency.
TRANSPARENT = 4
# A progressive JPEG has about ten scans. A scan of nothing is 14 bytes, and every scan goes over all pixels.
MOST_SCANS = 100
SCAN = b"\xff\xda"  # how one begins; never in the compressed data itself


def claimed_pixels(images: Sequence[bytes], limits: Limits) -> np.ndarray:
    """Returns how many pixels decoding the images of a request takes, by their headers, int64 [B].

    0 is what cannot be read. Raises `BadRequest` if an image, or all of them, would take too much; names the row.
    """
    pixels = np.zeros(len(images), np.int64)
    for row, data in enumerate(images):
        pixels[row] = _pixels_of(data)
        if data.startswith(b"\xff\xd8") and data.count(SCAN) > MOST_SCANS:
            scans = data.count(SCAN)
            raise BadRequest(f"Row {row} (the first is 0) is a JPEG of {scans} scans; at most {MOST_SCANS} are taken.")
        for count, most, whose in (
            (pixels[row], limits.max_image_pixels, "of one image"),
            (pixels.sum(), limits.max_request_pixels, "of all images of a request"),
        ):
            if count > most:
                raise BadRequest(
                    f"Row {row} (the first is 0) brings it to {count / 1e6:.1f} million pixels {whose}, by its header "
                    f"(transparent ones count {TRANSPARENT} times); at most {most / 1e6:g} million are taken."
                )
    return pixels


def _pixels_of(data: bytes) -> int:
    try:
        image = open_image(data)
    except BadImage as error:
        return MAX_PIXELS + 1 if "pixels" in str(error) else 0
    is_transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return image.width * image.height * (TRANSPARENT if is_transparent else 1)


def check_read(*arrays: np.ndarray) -> None:
    """Raises `BadRequest` for the first row [B, …] of nothing but zeros: an image that could not be read."""
    for array in arrays:
        is_read = array.reshape(len(array), -1).any(axis=1)
        if not is_read.all():
            raise BadRequest(
                f"Row {int(np.argmin(is_read))} (the first is 0) is not an image that can be read: expected a whole "
                "JPEG, PNG, WebP or another format that Pillow reads. "
                '"on_error": "zeros" in the request gives such rows zeros.'
            )


def is_foreign(data: bytes) -> bool:
    """Tells whether an image is to be decoded by Pillow before the exported graph gets it."""
    return bool(data) and not data.startswith(OF_THE_GRAPH)


def decodable(images: Sequence[bytes]) -> np.ndarray:
    """Returns images as the exported graph gets them, objects [B]; what does not decode becomes empty.

    WebP, BMP, the first frame of a GIF and others become JPEG. This decodes; it is for a thread.
    """
    made = np.empty(len(images), object)
    for row, data in enumerate(images):
        try:
            made[row] = data
            if is_foreign(data):
                made[row] = for_the_encoder(data)
        except BadImage:
            made[row] = b""
    return made
