"""The stamps of Tux Paint, pictures with captions in up to eighty languages, for `tux_paint.py` and `ranking.py`."""

from __future__ import annotations

import io
import pathlib

from PIL import Image


def read_stamps(folder: pathlib.Path) -> list[tuple[str, bytes, dict[str, str]]]:
    """Returns (file name of the picture, bytes of a square PNG on white, {language: caption}) of each stamp.

    `folder` holds a .txt file next to each .png file, its first line the English caption and the others as in
    "de.utf8=Ein Apfel". Letters, coins and signs, in folders "symbols", are left out.
    """
    stamps = []
    for path in sorted(folder.rglob("*.txt")):
        picture = path.with_suffix(".png")
        if not picture.is_file() or "symbols" in path.parts:
            continue
        with Image.open(picture) as image:
            image = image.convert("RGBA")
        side = max(image.size)
        square = Image.new("RGBA", (side, side), "white")
        square.alpha_composite(image, ((side - image.width) // 2, (side - image.height) // 2))
        encoded = io.BytesIO()
        square.convert("RGB").save(encoded, "PNG")
        english, *others = path.read_text(encoding="utf-8").splitlines()
        captions = {"en": english.strip()}
        for line in others:
            language, _, caption = line.partition(".utf8=")
            captions[language] = caption.strip()
        stamps.append((picture.name, encoded.getvalue(), captions))
    return stamps
