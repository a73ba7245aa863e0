"""What the tests of search share: images of one colour, a model that knows the colours' names, a shop's items."""

import hashlib
import io
import pathlib

import numpy as np
from PIL import Image

from mural_lite.errors import UserError
from mural_lite.record_format import IMAGE_TEXT, ImageTextRecord, serialize
from mural_lite.tfrecord import framed
from mural_search.items import Item
from mural_search.queries import Query, search
from mural_search.ranking import Captions, Ranked

WORDS = {
    "red": (1, 0, 0),
    "rot": (1, 0, 0),
    "أحمر": (1, 0, 0),
    "青い風船": (0, 0, 1),
    "green": (0, 1, 0),
    "purple": (0.6, 0, 0.8),
}
# Cosines with red: red 1, orange (4, 3, 0)/5: 0.8, violet (3, 0, 4)/5: 0.6, blue 0.
COLORS = {"a/orange.PNG": (200, 150, 0), "blue.png": (0, 0, 250), "red.png": (250, 0, 0), "violet.png": (150, 0, 200)}


class ColorEmbedder:
    """An image is its mean colour, a text the colour it names (any other text some colour); L2-normalised.

    `seed` makes it another model for texts without a known colour.
    """

    path, step = "colors", 7

    def __init__(self, seed=0):
        self.seed, self.encoded = seed, 0

    def encode_image(self, images, batch_size=64, on_error="raise", progress=None):
        vectors, kept = [np.zeros((0, 3))], []
        for index, image in enumerate(images):
            try:
                color = self._color(image)
            except OSError:
                if on_error == "raise":
                    raise UserError(f"Image {index} cannot be read.") from None
                continue
            self.encoded += not isinstance(image, np.ndarray)  # the pictures of the fingerprint do not count
            vectors.append(color[None] / np.linalg.norm(color))
            kept.append(index)
        vectors = np.concatenate(vectors).astype(np.float32)
        return (vectors, np.array(kept, np.int64)) if on_error == "skip" else vectors

    def _color(self, image):
        if not isinstance(image, np.ndarray):
            data = image if isinstance(image, bytes) else pathlib.Path(image).read_bytes()
            image = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        return image.astype(np.float64).mean((0, 1))

    def encode_text(self, texts, batch_size=256, progress=None):
        return np.array([WORDS.get(text) or self._some_color(text) for text in texts], np.float32).reshape(-1, 3)

    def _some_color(self, text):
        digest = hashlib.sha256(f"{self.seed}{text}".encode("utf-8", "replace")).digest()
        color = np.frombuffer(digest[:3], np.uint8) + 1.0
        return tuple(color / np.linalg.norm(color))


def png(color, size=(8, 6)):
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, format="PNG")
    return buffer.getvalue()


def write_folder(folder):
    """Four images, one below, a broken one, one of an unknown format and a text file; returns the folder."""
    (folder / "a").mkdir(parents=True)
    for name, color in COLORS.items():
        (folder / name).write_bytes(png(color))
    (folder / "broken.png").write_bytes(b"broken")
    (folder / "photo.webp").write_bytes(b"RIFF")
    (folder / "notes.txt").write_text("no image")
    return folder


def image_records(captions, colors=COLORS):
    """Records of images of these colours, whose captions are `captions(name)`: texts by their languages."""
    for name, color in colors.items():
        of = captions(name)
        yield ImageTextRecord(name, png(color), list(of.values()), list(of), [""] * len(of))


def write_records(folder, split, rows, shards=1, record_type=IMAGE_TEXT):
    """Writes a split of a folder of records, round robin into `shards` files."""
    rows = list(rows)
    (folder / record_type).mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        file = folder / record_type / f"{split}-{number:05d}-of-{shards:05d}.tfrecord"
        file.write_bytes(b"".join(framed(serialize(row)) for row in rows[number::shards]))


def names(index, query="red", *filters):
    """The names of all that a sentence finds, best first."""
    return [hit.name for hit in search(index, ColorEmbedder(), [Query(query)], 99, filters)[0].hits]


def with_captions(index, encoder, head=""):
    """Gives an index its captions' vectors, by a model or by its head of this name; returns the index."""
    texts = [text for item in index.table for _, text in item.captions]
    index.captions = Captions(encoder.encode_text(texts).astype(np.float16), index.table, head)
    return index


BRANDS, COLOURS = ["Acme", "Bolt", "Cero", "Dune"], ["red", "blue", "green", "white", "black"]


def shop(count=242):
    """Products as WooCommerce exports them: twenty columns, of which five tell them apart."""
    return [
        Item(f"{4000 + n}", "", captions=(("en", f"{COLOURS[n % 5]} shoe number {n} by {BRANDS[n % 4]}"),), fields={
            "ID": f"{4000 + 37 * n}", "Type": "simple", "SKU": f"WOO-{n}-X", "Published": "1",
            "Is featured?": "1" if n % 100 == 0 else "0", "Visibility in catalog": "visible",
            "Short description": f"{COLOURS[n % 5]} shoe number {n} by {BRANDS[n % 4]}, new",
            "Description": "A shoe that is made to be worn every day, in the rain and in the sun, for years.",
            "Tax status": "taxable", "In stock?": str(n % 2), "Stock": str(n * 7 % 60), "Backorders allowed?": "0",
            "Weight (kg)": f"{n % 90 / 10 + 0.15:.2f}", "Allow customer reviews?": "1", "Brand": BRANDS[n % 4],
            "Colour": COLOURS[n % 5], "Regular price": f"{10 + n}.90", "Categories": "Shoes > " + "ABC"[n % 3],
            "Images": f"https://shop.example/{n}.jpg", "Position": str(n),
        })
        for n in range(count)
    ]  # fmt: skip


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def ranked(rows=(), exact_rows=(), **lists):
    """`Ranked` of {row: value} by way, best first."""
    placed = {way: {row: (n, v) for n, (row, v) in enumerate(of.items(), start=1)} for way, of in lists.items()}
    return Ranked(np.array(rows, np.int64), placed, frozenset(exact_rows), {"pictures": 0.1, "texts": 0.1})
