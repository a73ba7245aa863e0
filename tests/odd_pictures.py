"""Files of pictures that say other sizes than they have, and forms that programs write."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_of_size(width, height, color=2):
    """A PNG's header, and too little after it."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def gif_of_size(side):
    """A GIF whose header says 40 x 30 and whose frame says more."""
    data = bytearray(saved(Image.new("P", (40, 30)), "GIF"))
    at = data.index(b",\0\0\0\0")  # where its description begins
    data[at + 5 : at + 9] = 2 * side.to_bytes(2, "little")
    return bytes(data)


def bitmap(image, bits):
    """A BMP of 8 bits, with a palette, or of 32, whose fourth byte is 0, as screenshots have it."""
    if bits == 8:
        return saved(image.convert("P"), "BMP")
    rows = np.dstack([np.asarray(image)[::-1, :, ::-1], np.zeros(image.size[::-1], np.uint8)])  # BGR and 0, from below
    sizes = struct.pack("<iiiHHIIiiII", 40, *image.size, 1, 32, 0, rows.size, 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + rows.size, 0, 0, 54) + sizes + rows.tobytes()
