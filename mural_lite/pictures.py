"""Pictures outside TensorFlow's graph, by Pillow: checked, upright, transparency on white, thumbnails for pages.

What a model sees is decoded by `data/images.py`. It decodes JPEG and PNG: `for_the_encoder` makes these of all
formats that Pillow reads, wherever Python has an image in its hands.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import os
import pathlib
import re
import stat
import threading
import warnings

import numpy as np
from PIL import ExifTags, Image

from mural_lite.errors import UserError
from mural_lite.files import MAX_PIXELS, as_path
from mural_lite.paths import RemotePath, failures_of

with contextlib.suppress(ImportError):  # phones' HEIC, where this is installed
    import pillow_heif

    pillow_heif.register_heif_opener()
warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound below is a stricter one
MAX_BYTES = 2**28  # bytes of an encoded image: `MAX_PIXELS` without any compression
MAX_SCAN = 2**28  # pixels of a picture in a file, which Pillow shrinks before anybody else gets it: a gigabyte
# Endings of image files, in folders and archives; HEIC is here to be named, though Pillow alone does not read it.
ENDINGS = ("jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "webp", "avif", "tif", "tiff", "jp2", "heic", "svg")
JPEG_QUALITY = 95  # the quality of pictures that are encoded again
# Pillow reads thirty formats more. Their decoders have had most of its holes, and an EPS starts another program.
# HEIF is there where pillow-heif is.
Image.init()
_MEANT = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "AVIF", "TIFF", "JPEG2000", "PPM", "HEIF")
FORMATS = tuple(name for name in _MEANT if name in Image.OPEN)


# A document type may name entities, as Illustrator writes. Each byte can be matched in one way only: the pattern meets
# the files of strangers, and no two ways may multiply.
_DRAWING = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?"
    rb"((<!--(?:(?!-->).)*-->|<!doctype svg[^>\[]*(\[[^\]]*\]\s*)?>)\s*)*<(\w+:)?svg\b",
    re.S | re.I,
)
_OTHERS = {  # start of an unreadable file -> the problem
    rb"....ftyp(heic|heix|heim|heis|hevc|mif1|msf1)": "HEIC picture: `pip install pillow-heif` makes it readable",
    _DRAWING.pattern: "SVG drawing, which is taken from files alone: save it as PNG",
    rb"%PDF": "PDF file: save its pictures as PNG or JPEG",
    rb"%!PS": "EPS file: save it as PNG",
    rb"8BPS": "Photoshop file: save it as PNG",
    rb"\s*(<!doctype html|<html)": "HTML page in place of a picture",
}


class BadImage(UserError):
    """An image that cannot be used; the message is the kind of problem, in a few words."""


def open_image(data: bytes, most_pixels: int = MAX_PIXELS) -> Image.Image:
    """Returns Pillow's image of encoded data, of which it reads only the header; raises `BadImage` for bad data."""
    if not data:
        raise BadImage("empty image file")
    if len(data) > MAX_BYTES:
        raise BadImage(f"file of more than {MAX_BYTES:,} bytes")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except MemoryError:  # says nothing of the image
        raise
    except Image.DecompressionBombError:  # Pillow's own bound is a larger one
        raise BadImage(f"image of more than {most_pixels:,} pixels") from None
    except Exception:  # noqa: BLE001 - Pillow's readers raise many classes on damaged headers
        known_problems = [problem for start, problem in _OTHERS.items() if re.match(start, data, re.S | re.I)]
        problem = known_problems[0] if known_problems else "file that is not an image in a format that is read"
        raise BadImage(problem) from None
    if image.width * image.height > most_pixels:
        raise BadImage(f"image of more than {most_pixels:,} pixels")
    return image


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation of an opened image, 1 (upright) to 8; 1 if its EXIF data are damaged.

    Pillow itself turns a TIFF by its tag when it decodes the image.
    """
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif") or b"")
        stored = exif.get(ExifTags.Base.Orientation, 1)
    except Exception:  # noqa: BLE001 - Pillow raises many classes on damaged EXIF data
        return 1
    return stored if stored in _TURNS else 1


def turned(image: Image.Image) -> Image.Image:
    """Returns an opened image decoded and turned upright, as its EXIF data say; raises `BadImage`."""
    try:
        image.load()
        turn = _TURNS.get(orientation(image))
        if turn is None:
            return image
        return image.transpose(turn)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - Pillow's decoders raise many classes
        raise BadImage("image that does not decode") from None


def on_white(image: Image.Image) -> Image.Image:
    """Returns an image of any mode and palette as RGB, its transparent pixels on white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):  # Pillow would cut levels above 255 off
        image = _eight_bits(image)
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Returns a grey image in 256 levels; white is the end of the smallest usual range that holds all its levels."""
    levels = np.nan_to_num(np.asarray(image).astype(np.float32))
    ends = (1, 2**8 - 1, 2**16 - 1, 2**31 - 1)
    if image.mode.startswith("I;16"):
        ends = (2**16 - 1,)
    white = min([end for end in ends if levels.max() <= end], default=levels.max())
    factor = 255  # of fractions, 0..1
    if white > 1:
        factor = 256 / (white + 1)  # each of the 256 levels holds equally many
    in_range = np.clip(levels * factor, 0, 255)
    return Image.fromarray(in_range.astype(np.uint8))


def is_plain(image: Image.Image) -> bool:
    """Whether the graph decodes an opened image as Pillow does, except for its orientation: JPEG, most of PNG."""
    if _is_scan(image):
        return False
    # Graphs of earlier exports show the colour that a PNG without an alpha channel names as its transparent one.
    names_a_color = image.mode not in ("RGBA", "LA", "P") and "transparency" in image.info
    if image.format == "PNG":
        return not names_a_color
    return image.format in ("JPEG", "MPO")  # MPO: a JPEG with further JPEGs behind it, as phones write them


_one_scan = threading.Lock()  # memory is held for one picture of more than MAX_PIXELS at a time


def upright(image: Image.Image) -> Image.Image:
    """Returns `image` as RGB, upright, on white, halved above `MAX_PIXELS`; may change it (draft); raises BadImage."""
    try:
        if not _is_scan(image):
            return on_white(turned(image))
        with _one_scan:
            image.draft("RGB", (image.width // 2, image.height // 2))  # changes a JPEG: decoded at half its size
            image.load()
            if image.mode in ("L", "RGB", "RGBA", "CMYK"):  # before copies of it are made; others are reduced as RGB
                image = _without_excess(image)
            return _without_excess(on_white(turned(image)))
    except BadImage:
        raise
    except (ValueError, OSError):
        raise BadImage("image that does not decode") from None


def _is_scan(image: Image.Image) -> bool:
    """Whether an image has more than `MAX_PIXELS`, so that it must be reduced."""
    return image.width * image.height > MAX_PIXELS


def _without_excess(image: Image.Image) -> Image.Image:
    """Returns an image of more than `MAX_PIXELS` at half its width and height, another as it is."""
    return image.reduce(2) if _is_scan(image) else image


def encode_jpeg(image: Image.Image, quality: int = JPEG_QUALITY) -> bytes:
    """Returns an RGB image as JPEG, without EXIF data and comments."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, comment=b"")  # by default Pillow writes the original's comment
    return buffer.getvalue()


def encode_png(pixels: np.ndarray) -> bytes:
    """Returns uint8 [H, W, 3] as PNG, compressed little because that is fast."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def for_the_encoder(data: bytes) -> bytes:
    """Returns an encoded image as a JPEG or PNG that `data/images.py` and exported encoders decode as Pillow does.

    Most JPEG and PNG are returned undecoded; the encoder's graph turns a JPEG by its EXIF data. An upright JPEG on
    white replaces Pillow's other formats (WebP, AVIF, TIFF, GIF, …), a PNG with an orientation or a transparent colour,
    and an image of more than `MAX_PIXELS`.

    Raises `BadImage` if Pillow does not read it, it is larger than `MAX_SCAN` or `MAX_BYTES`, or it does not decode.
    """
    image = open_image(data, MAX_SCAN)
    if is_plain(image) and (image.format != "PNG" or orientation(image) == 1):
        return data
    return encode_jpeg(upright(image))


def read_picture(data: bytes, side: int = 0) -> Image.Image:
    """Returns an encoded image decoded to RGB, upright and on white; raises `BadImage`.

    `side`: a JPEG may be decoded at a fraction of its size whose sides have at least 2 * `side` pixels; 0: full size.
    """
    image = open_image(data, MAX_SCAN)
    if side:
        image.draft("RGB", (2 * side, 2 * side))
    return upright(image)


def thumbnail(data: bytes, side: int) -> bytes:
    """Returns an encoded image as a JPEG of at most `side` x `side` pixels; raises as `read_picture`."""
    image = read_picture(data, side)
    image.thumbnail((side, side), Image.LANCZOS)
    return encode_jpeg(image, quality=82)  # small files, because a page has many


def thumbnail_url(data: bytes, side: int) -> str:
    """Returns the thumbnail of an encoded image as a data: URL, for pages of one file; "" if it cannot be read."""
    try:
        jpeg = thumbnail(data, side)
    except (BadImage, OSError):
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode('ascii')}"


# Image files.


def read_file(path: str | os.PathLike) -> bytes:
    """Returns the content of an image file; an SVG is drawn as a PNG.

    Raises:
      BadImage: a folder, a pipe or the like, more than `MAX_BYTES`, or an SVG that cannot be drawn or names files.
      OSError: the file is missing or cannot be read.
    """
    path = as_path(path)
    if isinstance(path, pathlib.Path) and not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait
        raise BadImage("not a regular file")
    with failures_of(str(path)), path.open("rb") as file:
        size = MAX_BYTES
        if not isinstance(path, RemotePath):  # Python allocates as much memory as is asked for
            size = min(os.fstat(file.fileno()).st_size, MAX_BYTES)
        content = file.read(size + 1)  # one more byte shows a file that is too large
    if len(content) > MAX_BYTES:
        raise BadImage(f"file of more than {MAX_BYTES:,} bytes")
    if not _DRAWING.match(content):
        return content
    from mural_lite.drawings import draw

    try:
        return draw(content)
    except ValueError as error:
        raise BadImage(str(error)) from None


def path_below(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the path of a file that others named, links followed; raises `BadImage` if it is not below `folder`.

    The author of a table of names could otherwise read any file of this machine: "../../home/…" or "/home/…".
    """
    if isinstance(folder, RemotePath):
        path = folder / name
        if not str(path).startswith(f"{folder}/"):
            raise BadImage("file name that leads out of its folder")
        return path
    try:
        path = (folder / name).resolve()
        _refuse_impossible(path)
    except (OSError, RuntimeError, ValueError):  # links in a circle, a null character, thousands of characters
        raise BadImage("file name that leads nowhere") from None
    below = folder.resolve()
    if path.is_relative_to(below):
        return path
    if os.path.abspath(folder / name).startswith(f"{os.path.abspath(folder)}/"):
        common_folder = os.path.commonpath([below, path.parent])
        raise BadImage(f"link that leads out of its folder (--images={common_folder} holds its target, too)")
    raise BadImage("file name that leads out of its folder")


def _refuse_impossible(path: pathlib.Path) -> None:
    """Raises `OSError` for links in a circle, which Python finds by itself up to 3.12, and for too long a name."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise
