"""SentencePiece's table of normalisation (`precompiled_charsmap`), checked before its operation walks it unguarded.

Four bytes say how long the trie is; the trie is a double array of 32-bit units (Yata's `darts-clone`), by which the
operation goes from a node's base to base XOR byte; the rest are the replacements, each ended by a zero byte. The
operation trusts every number, so a table that lies would read any memory.
"""

from __future__ import annotations

import functools

import numpy as np

_LABEL = 0x800000FF  # of a unit: the byte that leads to it, and a bit that no byte has


@functools.lru_cache(maxsize=4)  # one table is read several times while a model is loaded
def problem_of(table: bytes) -> str:
    """Returns the problem of a table, "" for a correct table; the empty table is correct."""
    if not table:
        return ""
    size = int.from_bytes(table[:4], "little")
    if size % 4 or not 4 <= size < len(table) - 4:
        return f"its trie is said to have {size} of {len(table)} bytes"
    units = np.frombuffer(table, "<u4", size // 4, offset=4)
    replacements = table[4 + size :]
    if replacements[-1]:
        return "its replacements have no end"
    bases = _bases(units[:1])
    seen = np.zeros(len(units), bool)
    while len(bases):
        if np.any((bases | 0xFF) >= len(units)):  # any byte may follow
            return "its trie leads out of itself"
        seen[bases] = True
        ways = bases[:, None] ^ np.arange(256)  # [N, 256]
        ways = ways[(units[ways] & _LABEL) == np.arange(256)]
        bases = _bases(units[ways]) ^ ways
        leaves = bases[(units[ways] >> 8) & 1 == 1]  # such a node ends a string, and its base holds its replacement
        if np.any(leaves >= len(units)) or np.any((units[leaves] & 0x7FFFFFFF) >= len(replacements)):
            return "a replacement lies beyond its end"
        bases = np.unique(bases)
        bases = bases[(bases >= len(units)) | ~seen[np.minimum(bases, len(units) - 1)]]
    return ""


def _bases(units: np.ndarray) -> np.ndarray:
    """Returns each unit's offset, int64: how far from it its children lie."""
    units = units.astype(np.int64)
    return (units >> 10) << ((units & 0x200) >> 6)
