"""Image files as they come from the web: checked without decoding, copied where the record format allows it."""

from __future__ import annotations

import io

import PIL.Image

COPIED = ("JPEG", "PNG")  # what records hold and the input pipeline decodes
JPEG_QUALITY = 95
_END_OF_JPEG, _END_OF_PNG = b"\xff\xd9", b"IEND\xaeB`\x82"
_TAIL = 4096  # bytes at a file's end where its end mark is looked for: cameras and servers append a little


class BadImage(ValueError):
    """An image that cannot be used; the message is the kind of problem."""


def examine(image: bytes) -> tuple[PIL.Image.Image, tuple[int, int]]:
    """Opens an image, reading its header only; returns it and (width, height); raises `BadImage`."""
    if not image:
        raise BadImage("empty image file")
    try:
        opened = PIL.Image.open(io.BytesIO(image))
    except PIL.Image.DecompressionBombError:
        raise BadImage("image of too many pixels") from None
    except Exception:  # noqa: BLE001 - Pillow's readers raise many classes on damaged headers
        raise BadImage("file that is no image") from None
    return opened, opened.size


def usable_bytes(image: bytes, opened: PIL.Image.Image, image_size: int = 0) -> bytes:
    """Returns what a record may hold: the file itself, undecoded, if it is JPEG or PNG and small enough.

    Args:
      image: the file's content.
      opened: what `examine` returned.
      image_size: a longer shorter side is shrunk to this many pixels; 0 leaves the size.

    Raises:
      BadImage: the file is cut off, or does not decode where it has to be.
    """
    shrink = image_size and min(opened.size) > image_size
    if opened.format in COPIED and not shrink:
        mark = _END_OF_JPEG if opened.format == "JPEG" else _END_OF_PNG
        if mark not in image[-_TAIL:]:
            raise BadImage("image that is cut off")
        return image
    try:
        if shrink:
            scale = image_size / min(opened.size)
            size = tuple(max(image_size, round(side * scale)) for side in opened.size)
            opened.draft("RGB", size)  # JPEG: decode at an eighth, a quarter or half the size where that is enough
            opened = opened.resize(size, PIL.Image.Resampling.BICUBIC)
        return _encode(opened)
    except Exception:  # noqa: BLE001 - as above
        raise BadImage("image that does not decode") from None


def _encode(image: PIL.Image.Image) -> bytes:
    """Encodes as JPEG; transparent pixels go on white, as everywhere in the project."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = PIL.Image.alpha_composite(white, image)
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()
