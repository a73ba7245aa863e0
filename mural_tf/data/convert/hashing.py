"""Short stand-ins for texts."""

from __future__ import annotations

import hashlib


def text_hash(text: str) -> int:
    """Returns 64 bits that stand for a text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")
