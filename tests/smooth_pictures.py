"""Pictures as photographs are, smooth: encoding keeps their colours."""

import io

import numpy as np
import PIL.Image


def picture(seed: int, width: int = 48, height: int = 40) -> PIL.Image.Image:
    """A smooth picture, different for every seed, the same in every size."""
    coarse = np.random.default_rng(seed).integers(0, 256, [6, 6, 3], np.uint8)
    return PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.Resampling.BICUBIC)


def image_bytes(seed: int, width: int = 48, height: int = 40, image_format: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    picture(seed, width, height).save(buffer, image_format, **options)
    return buffer.getvalue()
