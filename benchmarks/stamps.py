"""The stamps of Tux Paint, pictures with captions in up to eighty languages, for `tux_paint.py` and `ranking.py`."""

from __future__ import annotations

import io
import pathlib

from PIL import Image


def read_stamps(folder: pathlib.Path) -> list[tuple[str, bytes, dict[str, str]]]:
    """Returns each stamp: (file name of the picture, square PNG on white, {language: caption})."""
    stamps = []
    for path in sorted(folder.rglob("*.txt")):
        picture = path.with_suffix(".png")
        if not picture.is_file() or "symbols" in path.parts:
            continue
        with Image.open(picture) as image:
            image = image.convert("RGBA")
        square = Image.new("RGBA", (max(image.size),) * 2, "white")
        square.alpha_composite(image, tuple((square.width - side) // 2 for side in image.size))
        encoded = io.BytesIO()
        square.convert("RGB").save(encoded, "PNG")
        english, *others = path.read_text(encoding="utf-8").splitlines()
        captions = {"en": english.strip()}
        for line in others:
            language, _, caption = line.partition(".utf8=")
            captions[language] = caption.strip()
        stamps.append((picture.name, encoded.getvalue(), captions))
    return stamps
