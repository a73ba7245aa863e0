"""The limits of the server: settings, and the check of pictures before they are decoded."""

from __future__ import annotations

import dataclasses

from mural_lite.pictures import MAX_PIXELS, BadImage, open_image


@dataclasses.dataclass(frozen=True)
class Limits:
    """Settings of the server, all above 0."""

    max_request_bytes: int = 32 * 2**20  # bytes of an unpacked body; a larger body is answered with 413
    timeout: float = 60.0  # seconds for an answer (503)


REQUESTS = 256  # requests that are answered at a time
LARGE_BODIES = 4  # requests among them that may have a body of more than LARGE bytes
LARGE = 2**20
IMAGE_PIXELS = 64 * 10**6  # pixels of a picture by its header, at most
# A progressive JPEG has about ten scans. A scan of nothing is 14 bytes, and every scan goes over all pixels.
MOST_SCANS = 100
SCAN = b"\xff\xda"  # the marker with which a scan of a JPEG begins
TRANSPARENT = 4  # a transparent pixel takes so many times the memory of another pixel, because it is put on white


class BadRequest(ValueError):
    """A mistake in a request, in words for its sender, with the status that HTTP has for it, 400 to 499."""

    def __init__(self, words: str, status: int = 400):
        super().__init__(words)
        self.status = status


class Overloaded(Exception):
    """The server has no room or time for a request now."""

    status = 503  # of HTTP


def check_picture(data: bytes) -> None:
    """Raises `BadRequest` for an encoded picture that would take too much memory or time to decode.

    Pictures that cannot be read pass: the encoder refuses them.
    """
    if data.startswith(b"\xff\xd8") and data.count(SCAN) > MOST_SCANS:
        raise BadRequest(f"The picture is a JPEG of {data.count(SCAN)} scans; at most {MOST_SCANS} are taken.")
    pixels = _pixels_of(data)
    if pixels > IMAGE_PIXELS:
        raise BadRequest(
            f"The picture has {pixels / 1e6:.1f} million pixels by its header (transparent pixels count {TRANSPARENT} "
            f"times); at most {IMAGE_PIXELS / 1e6:g} million are taken."
        )


def _pixels_of(data: bytes) -> int:
    """Returns the number of a picture's pixels by its header; 0 if the header cannot be read.

    Pixels of a picture with transparency count `TRANSPARENT` times. For more than `MAX_PIXELS`, which are not opened,
    it returns one more than these.
    """
    try:
        image = open_image(data)
    except BadImage as error:
        if "pixels" in str(error):  # `open_image`'s message about too many pixels
            return MAX_PIXELS + 1
        return 0
    pixels = image.width * image.height
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        pixels *= TRANSPARENT
    return pixels
