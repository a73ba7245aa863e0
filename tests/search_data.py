"""What the tests of search share: images of one colour, and a model that knows the colours' names."""

import hashlib
import io
import pathlib

import numpy as np
from PIL import Image

from mural_tf.errors import UserError

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

    `seed` makes it another model for texts without a known colour; `fail_after` images it stops like a killed run.
    """

    path, step = "colors", 7

    def __init__(self, seed=0, fail_after=None):
        self.seed, self.fail_after, self.encoded = seed, fail_after, 0

    def use_training_states(self):
        """Has no such states."""

    def encode_image(self, images, batch_size=64, on_error="raise", progress=None):
        vectors, kept = [np.zeros((0, 3))], []
        for index, image in enumerate(images):
            if self.fail_after is not None and self.encoded >= self.fail_after:
                raise KeyboardInterrupt
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
