"""Hashes in place of texts: what is compared over all data is 64 bits."""

from __future__ import annotations

import hashlib

import numpy as np


def text_hash(text: str) -> int:
    """Returns a text's hash of 64 bits, the same on every machine."""
    return bytes_hash(text.encode("utf-8", "surrogatepass"))  # a file's name may be invalid UTF-8


def bytes_hash(data: bytes) -> int:
    """Returns a hash of 64 bits, 0 to 2^64 - 1, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def contains(sorted_hashes: np.ndarray, value: int) -> bool:
    """Whether the hash `value` is in `sorted_hashes`, uint64 [N] in rising order."""
    index = np.searchsorted(sorted_hashes, np.uint64(value))
    return bool(index < sorted_hashes.size and int(sorted_hashes[index]) == int(value))


def contains_text(sorted_hashes: np.ndarray, text: str) -> bool:
    """Whether the hash of a text is in `sorted_hashes`, uint64 [N] in rising order."""
    return sorted_hashes.size > 0 and contains(sorted_hashes, text_hash(text))
