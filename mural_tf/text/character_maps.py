"""SentencePiece's table of normalisation (`precompiled_charsmap`), checked before its operation walks it unguarded.

Four bytes say how long the trie is; the trie is a double array of 32-bit units (Yata's `darts-clone`), by which the
operation goes from a node's base to base XOR byte; the rest are the replacements, each ended by a zero byte. The
operation trusts every number, so a table that lies would read any memory.
"""

from __future__ import annotations

import functools

import numpy as np

_LABEL = 0x800000FF  # bits of a unit: the byte that leads to it, and a bit that no byte has
_ENDS_STRING = 0x100  # a bit of a unit
_POSITION = 0x7FFFFFFF  # bits of a leaf: where its replacement begins


@functools.lru_cache(maxsize=4)  # one table is read several times while a model is loaded
def problem_of(table: bytes) -> str:
    """Returns an error message about a damaged table, or "" for a correct table; the empty table is correct."""
    if not table:
        return ""
    size = int.from_bytes(table[:4], "little")
    if size % 4 or not 4 <= size < len(table) - 4:
        return f"its trie is said to have {size} of {len(table)} bytes"
    units = np.frombuffer(table, "<u4", size // 4, offset=4)
    replacements = table[4 + size :]
    if replacements[-1]:  # not a zero byte
        return "its replacements have no end"
    return _problem_of_trie(units, len(replacements))


def _problem_of_trie(units: np.ndarray, replacements_size: int) -> str:
    """Returns an error message about a trie of uint32 units, or ""; walks over its nodes from the root, by level."""
    bases = _offsets(units[:1])  # of the nodes of a level: their children are at base XOR byte
    is_visited = np.zeros(len(units), bool)
    while len(bases):
        if np.any((bases | 0xFF) >= len(units)):  # any byte may follow
            return "its trie leads out of itself"
        is_visited[bases] = True
        children = bases[:, None] ^ np.arange(256)  # [N, 256]
        children = children[(units[children] & _LABEL) == np.arange(256)]  # the others belong to other nodes
        bases = _offsets(units[children]) ^ children
        leaves = bases[units[children] & _ENDS_STRING != 0]  # their base holds the position of a replacement
        if np.any(leaves >= len(units)) or np.any((units[leaves] & _POSITION) >= replacements_size):
            return "a replacement lies beyond its end"
        bases = np.unique(bases)
        is_outside = bases >= len(units)  # which the next round refuses
        bases = bases[is_outside | ~is_visited[np.minimum(bases, len(units) - 1)]]
    return ""


def _offsets(units: np.ndarray) -> np.ndarray:
    """Returns the offset, int64, that each unit stores: bits 10 to 31, times 256 if bit 9 is set."""
    units = units.astype(np.int64)
    return (units >> 10) << ((units & 0x200) >> 6)  # bit 9 set: shifted by 8, which is times 256
