"""Files of pictures that say other sizes than they have, and forms that programs write."""

import io
import struct
import zlib

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
