"""The four drawing styles of the emoji benchmark, as 64 x 64 RGB PNGs on white.

Noto, Twemoji and OpenMoji are for training; EmojiOne, a style never seen there, for dev and test.
"""

from __future__ import annotations

import dataclasses
import io
import pathlib

from PIL import Image
from tqdm import tqdm

from mural_tf.data.datasets.emoji.names import key_of_code_points
from mural_tf.data.datasets.emoji.npm_packages import read_members
from mural_tf.data.pictures import on_white
from mural_tf.errors import UserError, install_extra

IMAGE_SIZE = 64  # pixels
_ZERO_WIDTH_JOINER = "200d"


@dataclasses.dataclass(frozen=True)
class DrawingStyle:
    """Where a package keeps one style's drawings: `folder`/<code points>`suffix`."""

    name: str
    package: str
    folder: str
    suffix: str
    joined: bool = True  # False: file names leave out the zero width joiner as well


TRAINING_STYLES = (
    DrawingStyle("noto", "emoji-datasource-google", "img/google/64", ".png"),
    DrawingStyle("twemoji", "emoji-datasource-twitter", "img/twitter/64", ".png"),
    DrawingStyle("openmoji", "openmoji", "color/svg", ".svg"),
)
TEST_STYLE = DrawingStyle("emojione", "emojione", "assets/png", ".png", joined=False)


def read_drawings(style: DrawingStyle, tarball: pathlib.Path, emoji: set[str]) -> dict[str, bytes]:
    """Returns emoji key -> the drawing's file, PNG or SVG, for those of `emoji` that the package draws."""
    by_file_key = {key if style.joined else _without_joiner(key): key for key in emoji}

    def file_key(path: str) -> str | None:
        folder, _, name = path.rpartition("/")
        if folder != style.folder or not name.endswith(style.suffix):
            return None
        try:
            return key_of_code_points(name[: -len(style.suffix)])
        except ValueError:  # a name that is not code points, like 2764-red.svg
            return None

    members = read_members(tarball, lambda path: file_key(path) in by_file_key)
    return {by_file_key[file_key(path)]: content for path, content in members.items()}


def draw_all(
    styles: list[tuple[DrawingStyle, pathlib.Path]], emoji: set[str], progress: bool = True
) -> dict[str, dict[str, bytes]]:
    """Returns style name -> emoji key -> PNG bytes for every (style, tarball).

    One process does: the 7,087 drawings take a few seconds.
    """
    found = {style.name: read_drawings(style, tarball, emoji) for style, tarball in styles}
    drawings: dict[str, dict[str, bytes]] = {}
    total = sum(len(files) for files in found.values())
    with tqdm(total=total, desc="Drawing emoji", unit="drawing", disable=not progress) as bar:
        for style, tarball in styles:
            drawings[style.name] = {}
            for key, content in found[style.name].items():
                try:
                    drawings[style.name][key] = draw(content, style.suffix)
                except (OSError, ValueError) as error:
                    raise UserError(f"{tarball}: the drawing of {key} cannot be read ({error}).") from None
                bar.update()
    return drawings


def draw(content: bytes, suffix: str) -> bytes:
    """Returns a ".png" or ".svg" drawing as a 64 x 64 RGB PNG, its transparent pixels on white."""
    if suffix == ".svg":
        content = _render_svg(content)
    with Image.open(io.BytesIO(content)) as image:
        rgba = image.convert("RGBA")  # also from palettes and grey with transparency
    if rgba.size != (IMAGE_SIZE, IMAGE_SIZE):
        rgba = rgba.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    on_white(rgba).save(buffer, format="PNG")
    return buffer.getvalue()


def _render_svg(content: bytes) -> bytes:
    try:
        import resvg_py
    except ImportError:
        raise UserError(
            f"Drawing OpenMoji's SVG files needs resvg-py, which is not installed: run {install_extra('demo')}."
        ) from None
    svg = content.decode("utf-8")
    rendered = resvg_py.svg_to_bytes(svg_string=svg, width=IMAGE_SIZE, height=IMAGE_SIZE, skip_system_fonts=True)
    return bytes(rendered)  # early releases return a list of integers


def _without_joiner(key: str) -> str:
    return "-".join(part for part in key.split("-") if part != _ZERO_WIDTH_JOINER)
