"""The settings of the search page: what its owner chooses, from the flags of `serve` to the routes."""

from __future__ import annotations

import base64
import dataclasses
import io
import os
import re

from PIL import Image

from mural_lite.errors import UserError
from mural_lite.pictures import BadImage, open_image, read_file, turned
from mural_search.item_table import unknown_field
from mural_search.ranking import parse_weights
from mural_search.server.labels import LANGUAGES

LOGO_BYTES = 2**20  # bytes of the logo's file; on the page it is smaller
LOGO_PIXELS = 16 * 10**6
LOGO_SIZE = (480, 96)  # pixels at most, for 240 x 48 of a page
CONTRAST = 4.5  # the least contrast of text, by WCAG 2.2, 1.4.3
Color = tuple[int, int, int]  # red, green and blue, 0 to 255
WHITE = (255, 255, 255)  # the background of the page
DARK = (18, 18, 18)  # the background that browsers give the page in the dark


@dataclasses.dataclass(frozen=True)
class PageSettings:
    """The choices of the owner of a search page.

    Attributes:
      title: the page's title; "": "Search" in the page's language.
      link: the field with the address of a product; "": it is found by its name, see `ShopFields.of`.
      hide: names of fields that are neither on the page nor in any answer.
      logo: the path of a picture; "" for no logo.
      color: the color of buttons and, as far as they stay readable, of links, "#rrggbb"; "" for blue.
      language: the page's language, one of `labels.LANGUAGES`; "": the browser's.
      weights: weights of the parts of the ranking, such as "pictures=4", see `ranking.parse_weights`.

    Raises:
      UserError: the color or language is not known, or `link` is among the hidden fields.
    """

    title: str = ""
    link: str = ""
    hide: tuple[str, ...] = ()
    logo: str = ""
    color: str = ""
    language: str = ""
    weights: tuple[str, ...] = ()

    def __post_init__(self):
        if self.color and not re.fullmatch("#[0-9a-fA-F]{6}", self.color):
            raise UserError(f"--color={self.color}: expected a color as #rrggbb, such as #b3261e.")
        if self.language and self.language not in LANGUAGES:
            raise UserError(f"--language={self.language}: the page speaks {', '.join(LANGUAGES)}.")
        if self.link and self.link in self.hide:
            raise UserError(f"--link={self.link} is hidden by --hide: a link shows its address.")

    def check(self, names: list[str]) -> None:
        """Raises `UserError` for weights or a logo that cannot be used, or fields that are not in `names`.

        Args:
          names: the names of an index's fields.
        """
        self.check_fields(names)
        parse_weights(self.weights)
        self.logo_address()

    def check_fields(self, names: list[str]) -> None:
        """Raises `UserError` for a field to hide or to link that is not among `names`, an index's fields."""
        fields = [("hide", name) for name in self.hide]
        if self.link:
            fields.append(("link", self.link))
        for flag, name in fields:
            if name not in names:
                raise UserError(unknown_field(flag, name, names))

    def logo_address(self) -> str:
        """Returns the logo as an address that holds it, "data:image/png;base64,…"; "" without a logo.

        The picture is scaled down to `LOGO_SIZE` and has no metadata. Raises `UserError` for a file that is missing,
        too large or not a picture.
        """
        if not self.logo:
            return ""
        try:
            if os.path.getsize(self.logo) > LOGO_BYTES:
                raise BadImage(f"it has more than {LOGO_BYTES:,} bytes")
            opened = open_image(read_file(self.logo), LOGO_PIXELS)
            image = turned(opened).convert("RGBA")
        except (OSError, ValueError, SyntaxError) as error:
            reason = getattr(error, "strerror", "") or error  # the whole `OSError` would repeat the path
            raise UserError(f"--logo={self.logo} cannot be used: {reason}.") from None
        image.thumbnail(LOGO_SIZE, Image.LANCZOS)
        buffer = io.BytesIO()
        without_metadata = Image.frombytes(image.mode, image.size, image.tobytes())
        without_metadata.save(buffer, "PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")

    def colors(self) -> dict[str, str]:
        """Returns {name: "#rrggbb"} of the colors that follow from the chosen color; {} without a chosen color.

        The names are "lead" for buttons, "on_lead" for the text on buttons, "link" for links on a light page, and
        "dark_link" for links on a dark page.
        """
        if not self.color:
            return {}
        color = tuple(bytes.fromhex(self.color[1:]))
        colors = {
            "lead": color,
            "on_lead": max(WHITE, (0, 0, 0), key=lambda text_color: contrast(text_color, color)),
            "link": readable(color, WHITE),
            "dark_link": readable(color, DARK),
        }
        return {name: f"#{bytes(channels).hex()}" for name, channels in colors.items()}


DEFAULTS = PageSettings()


def contrast(color: Color, other: Color) -> float:
    """Returns the contrast of two colors, 1 to 21 (WCAG 2.2, "contrast ratio")."""
    darker, lighter = sorted((_luminance(color), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    """Returns the relative luminance of a color, 0 to 1 (WCAG 2.2, "relative luminance")."""
    red, green, blue = map(_linear, color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: int) -> float:
    """Returns the linear light, 0 to 1, of a channel of sRGB, 0 to 255 (WCAG 2.2, "relative luminance")."""
    if channel <= 10:
        return channel / 3294.6  # 12.92 x 255; the bound is 0.04045 x 255
    return ((channel / 255 + 0.055) / 1.055) ** 2.4


def readable(color: Color, background: Color) -> Color:
    """Returns `color` with as little black, or white on a dark background, as makes it readable: see `CONTRAST`.

    The parts of black or white are tried in percent.
    """
    end = 0 if _luminance(background) > 0.5 else 255  # black or white
    for percent in range(101):  # 100 is black or white, which is always readable
        mixed = tuple(round(channel + (end - channel) * percent / 100) for channel in color)
        if contrast(mixed, background) >= CONTRAST:
            break
    return mixed
