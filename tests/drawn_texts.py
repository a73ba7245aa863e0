"""Texts of letters of many scripts, drawn: what tokenizers are compared on."""

import numpy as np

LETTERS = "".join(map(chr, [*range(0x20, 0x7F), *range(0xA1, 0x180), *range(0x391, 0x3CA), *range(0x410, 0x450)]))
LETTERS += "".join(map(chr, [*range(0x5D0, 0x5EB), *range(0x620, 0x64B), *range(0x905, 0x93A), *range(0xE01, 0xE30)]))
LETTERS += "".join(
    map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30FB), *range(0x4E00, 0x4F00), *range(0xAC00, 0xAD00)])
)
LETTERS += "ｆｕｌｌ①ﬁ\u3000\u00a0" + 60 * " "


def drawn_texts(count=2000):
    """Texts of letters of many scripts, drawn."""
    draw = np.random.default_rng(0)
    return ["".join(draw.choice(list(LETTERS), draw.integers(1, 60))) for _ in range(count)]
