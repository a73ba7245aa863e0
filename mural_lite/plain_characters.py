"""Characters that open_clip replaces by simpler characters: the tables of ftfy (Speer, 2019).

Curled quotes become straight, full-width forms narrow, half-width kana wide, ligatures letters, and the second row of
controls what Windows means by them; controls and U+FEFF go. The tables follow from Unicode's own names and widths. What
ftfy guesses, texts decoded by the wrong encoding and marks of HTML, is not among them.
"""

from __future__ import annotations

import functools
import re
import unicodedata

ESCAPE = "\x1b\\[[0-9;]*[a-zA-Z]"  # of a terminal's colours, for RE2 and Python
_WIDE = (0x3000, *range(0xFF01, 0xFFF0))  # full-width and half-width forms, and the wide space
_LIGATURES = "ĲĳŉǄǅǆǇǈǉǊǋǌǱǲǳﬀﬁﬂﬃﬄﬆ"
_CONTROLS = (
    *range(0x00, 0x09), 0x0B, *range(0x0E, 0x20), 0x7F, *range(0x206A, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFD)
)  # fmt: skip
_QUOTES = {**dict.fromkeys("ʼ‘’‚‛", "'"), **dict.fromkeys("“”„‟", '"')}


@functools.cache
def plain_characters() -> dict[int, str]:
    """Returns {code point: its replacement} for `str.translate`, "" for a character that goes."""
    replacements = dict.fromkeys(_CONTROLS, "")
    for character in map(chr, _WIDE):
        plain = unicodedata.normalize("NFKC", character)
        if plain != character:
            replacements[ord(character)] = plain
    for character in _LIGATURES:
        replacements[ord(character)] = unicodedata.normalize("NFKC", character)
    replacements[ord("ﬅ")] = "ſt"  # as ftfy has it; NFKC makes it "st"
    for code in range(0x80, 0xA0):  # controls, which Windows' encoding has characters for
        character = bytes([code]).decode("cp1252", "ignore")
        if character:
            replacements[code] = character
    straight = str.maketrans(_QUOTES)
    for code, plain in replacements.items():
        replacements[code] = plain.translate(straight)  # replacements may hold curled quotes
    return replacements | straight


def as_plain(text: str) -> str:
    """Returns a text in plain characters."""
    return re.sub(ESCAPE, "", text).translate(plain_characters())
