"""Pictures outside the graph: what is accepted, upright, bounded; files that are something else."""

import io
import os
import pathlib
import tracemalloc
import zlib

import numpy as np
import pytest
import tensorflow as tf
from odd_pictures import saved
from PIL import Image, PngImagePlugin
from smooth_pictures import image_bytes, picture

from mural_lite import pictures
from mural_lite.pictures import BadImage, for_the_encoder, open_image, path_below, read_file, read_picture
from mural_tf.data.images import decode_image
from mural_tf.ingest.filters import usable_bytes


def turned_bytes(orientation: int, image_format: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return image_bytes(0, 48, 32, image_format, exif=exif)


def difference(data: bytes, orientation: int) -> float:
    """The mean difference of levels between a decoded image and the picture as `orientation` shows it."""
    turns = {2: Image.Transpose.FLIP_LEFT_RIGHT, 6: Image.Transpose.ROTATE_270}
    expected = np.asarray(picture(0, 48, 32).transpose(turns[orientation]), float)
    return np.abs(decode_image(tf.constant(data)).numpy() - expected).mean()


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF"])
@pytest.mark.parametrize("orientation", [2, 6])
def test_encoders_and_records_get_upright_images(image_format, orientation):
    data = turned_bytes(orientation, image_format)
    assert difference(for_the_encoder(data), orientation) < 12
    record = usable_bytes(data, open_image(data))
    assert open_image(record).format == "JPEG" and pictures.orientation(open_image(record)) == 1
    assert difference(record, orientation) < 12
    shrunk = open_image(usable_bytes(data, open_image(data), image_size=16))
    assert shrunk.size == ((24, 16) if orientation == 2 else (16, 24)) and not shrunk.info.get("exif")


def test_upright_jpeg_and_png_stay_as_they_are():
    for data in (image_bytes(0), image_bytes(0, image_format="PNG"), turned_bytes(1), turned_bytes(6)):
        assert for_the_encoder(data) is data  # the graph turns a JPEG itself
    data = turned_bytes(1)
    assert usable_bytes(data, open_image(data)) is data


@pytest.mark.parametrize("image_format", ["GIF", "BMP", "JPEG2000", "PPM"])
def test_whatever_pillow_reads_is_accepted(image_format):
    assert decode_image(tf.constant(for_the_encoder(image_bytes(0, 48, 32, image_format)))).shape == (32, 48, 3)


@pytest.mark.parametrize("levels, grey", [
    (np.array([[0, 0x8000, 0xFFFF]], np.uint16), 128), (np.array([[0, 2**30, 2**31 - 1]], np.int32), 128),
    (np.array([[0, 100, 255]], np.int32), 100), (np.array([[-1.0, 0.5, 1.0]], np.float32), 127),
])  # fmt: skip
def test_grey_of_more_than_eight_bits_is_not_cut_off(levels, grey):
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "TIFF")
    assert np.asarray(read_picture(buffer.getvalue()))[0, :, 0].tolist() == [0, grey, 255]


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0", b"junk", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
def test_damaged_exif_data_are_none(exif):
    data = image_bytes(0, exif=exif)
    assert pictures.orientation(open_image(data)) == 1 and for_the_encoder(data) is data


def png_of(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be large."""
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    chunk = lambda content: len(content[4:]).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")  # noqa: E731
    return b"\x89PNG\r\n\x1a\n" + chunk(header) + chunk(b"IDAT" + zlib.compress(b"\0" * 99)) + chunk(b"IEND")


@pytest.mark.parametrize("side, bound", [(8193, "67,108,864"), (60_000, "67,108,864"), (16_385, "268,435,456")])
def test_too_many_pixels_are_refused_before_they_are_decoded(side, bound):
    """The second side is above Pillow's own bound; files may be larger than what clients send."""
    uses = (open_image,) if bound[0] == "6" else (for_the_encoder, lambda data: pictures.thumbnail(data, 10))
    for use in uses:
        with pytest.raises(BadImage, match=f"image of more than {bound} pixels"):
            use(png_of(side, side))
    assert open_image(png_of(8192, 8192)).size == (8192, 8192)


@pytest.mark.parametrize("image_format, mode", [("JPEG", "RGB"), ("PNG", "P"), ("TIFF", "L")])
def test_a_scan_is_shrunk_as_it_is_decoded(monkeypatch, image_format, mode):
    """A page of A3 at 600 dots per inch has 69 million pixels; here the bound is 1,000."""
    buffer = io.BytesIO()
    Image.new(mode, (48, 32), 0).save(buffer, image_format)
    for bound, size in ((1000, (24, 16)), (2000, (48, 32))):
        monkeypatch.setattr(pictures, "MAX_PIXELS", bound)
        assert read_picture(buffer.getvalue()).size == size
        assert Image.open(io.BytesIO(for_the_encoder(buffer.getvalue()))).size == size


def test_a_transparent_colour_of_a_png_is_white():
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (200, 30, 30)).save(buffer, "PNG", transparency=(200, 30, 30))
    data = buffer.getvalue()
    for made in (for_the_encoder(data), usable_bytes(data, open_image(data))):
        assert decode_image(tf.constant(made)).numpy().min() == 255


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"", "empty"), (b"RIFF", "not an image"), (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "EPS file"),
     (b"8BPS\0\1", "Photoshop"),
     (image_bytes(0, image_format="WEBP")[:200], "decode|not an image"), (b"\0\0\n\x18ftypheic", "install pillow-heif"),
     (b'<?xml version="1.0"?>\n<svg/>', "SVG drawing"), (b"%PDF-1.7", "PDF"), (b"\n<!DOCTYPE html>", "HTML page")],
)  # fmt: skip
def test_images_that_cannot_be_used_are_named(data, problem):
    with pytest.raises(BadImage, match=problem):
        for_the_encoder(data)


@pytest.mark.parametrize("image_format", ["TGA", "PCX", "ICO", "SGI", "DDS"])
def test_only_the_formats_that_are_meant_are_decoded(image_format):
    data = saved(Image.new("RGB", (16, 16)), image_format)
    assert Image.open(io.BytesIO(data)).format == image_format
    with pytest.raises(BadImage, match="not an image in a format that is read"):
        open_image(data)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(image_bytes(0, image_format="PNG"))
    monkeypatch.setattr(pictures, "MAX_BYTES", 100)
    for read in (read_file, lambda path: open_image(path.read_bytes())):
        with pytest.raises(BadImage, match="file of more than 100 bytes"):
            read(tmp_path / "a.png")


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")  # reading it would wait for ever
    (tmp_path / "folder.jpg").mkdir()
    for name in ("pipe.jpg", "folder.jpg"):
        with pytest.raises(BadImage, match="not a regular file"):
            read_file(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none.jpg")


def test_names_do_not_lead_out_of_their_folder(tmp_path):
    folder = tmp_path / "images"
    (folder / "a").mkdir(parents=True)
    (folder / "out").symlink_to("/etc")
    (folder / "circle").symlink_to(folder / "circle")
    (tmp_path / "link").symlink_to(folder)
    assert path_below(tmp_path / "link", "a/../b.jpg") == folder / "b.jpg"  # the folder itself may be a link
    for name in ("../secret.jpg", "/etc/passwd", "out/passwd", "a/../../x", str(pathlib.Path(folder, "..", "x"))):
        with pytest.raises(BadImage, match="leads out of its folder"):
            path_below(folder, name)
    for name in ("null\0.jpg", "circle/x"):
        with pytest.raises(BadImage, match="leads nowhere"):
            path_below(folder, name)


def test_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "small.jpg").write_bytes(b"x" * 1000)
    read_file(tmp_path / "small.jpg")  # what is imported or cached once
    tracemalloc.start()
    try:
        assert read_file(tmp_path / "small.jpg") == b"x" * 1000
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_thumbnails_are_small_upright_and_on_white():
    image = Image.new("RGBA", (1000, 500), (255, 0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    buffer = io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    encoded = buffer.getvalue()
    shown = Image.open(io.BytesIO(pictures.thumbnail(encoded, 240)))
    assert shown.size == (120, 240) and shown.format == "JPEG" and np.array(shown).min() > 250
    for data in (b"", b"no image", encoded[:45]):
        with pytest.raises(ValueError, match="empty|not an image|does not decode"):
            pictures.thumbnail(data, 240)


@pytest.mark.parametrize("image_format, length", [("JPEG", 60), ("PNG", 60), ("GIF", 60), ("GIF", 70_000)])
def test_thumbnails_have_no_comment_of_the_original(image_format, length):
    comment = b"supplier " * (length // 9)
    texts = PngImagePlugin.PngInfo()
    texts.add_text("comment", comment.decode())
    buffer = io.BytesIO()
    Image.new("P", (64, 48)).convert("RGB").save(buffer, image_format, comment=comment, pnginfo=texts)
    small = pictures.thumbnail(buffer.getvalue(), 240)
    assert b"supplier" not in small and "comment" not in open_image(small).info
    assert image_format != "GIF" or b"supplier" not in for_the_encoder(buffer.getvalue())


@pytest.mark.parametrize("count", [45, 100_000])
def test_comments_in_front_of_no_drawing_are_read_once(count):
    # A pattern that may divide comments in two ways has 2^45 ways to fail, about two months.
    with pytest.raises(BadImage):
        open_image(b"<!---->" * count + b"x")
    with pytest.raises(BadImage, match="SVG drawing"):
        open_image(b"<!-- one --> <!-- two -->" * count + b"<svg")
