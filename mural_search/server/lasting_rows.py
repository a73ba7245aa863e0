"""Rows in addresses that people keep and send to others: a row's number and a hash of its item's key.

Rows get other numbers when an item changes or goes. Then the hash finds the item, and no other item is shown in its
place. A number alone is taken, too, as the JSON of an answer has it.
"""

from __future__ import annotations

import re

import numpy as np
from aiohttp import web

from mural_search.index import Index
from mural_search.server.addresses import to_number


def lasting_row(index: Index, row: int) -> str:
    """Returns a row as a text for an address, "5-1a2b3c4d5e6f7081"; "5" for an index of an earlier version."""
    if "salt" not in index.table.meta:
        return str(row)
    (key_hash,) = index.table.key_hashes([row]).tolist()
    return f"{row}-{key_hash:016x}"


def row_of(index: Index, name: str, text: str) -> int:
    """Returns the row that a text in an address means.

    Args:
      index: the index.
      name: the name of the address's parameter, for a message.
      text: a text of `lasting_row`, or only a row's number.

    Raises:
      BadRequest: the text is neither.
      web.HTTPNotFound: the text's item is no longer in the index.
    """
    match = re.fullmatch("([0-9]{1,15})-([0-9a-f]{16})", text)  # no index has more rows; 64 bits of a hash
    if not match:
        return to_number(name, text)
    row = int(match[1])
    key_hash = np.uint64(int(match[2], 16))
    if "salt" in index.table.meta:  # an index of an earlier version has other hashes
        if row < len(index) and index.table.key_hashes([row])[0] == key_hash:
            return row
        rows = np.flatnonzero(index.key_hashes == key_hash)
        if rows.size:
            return int(rows[0])
    raise web.HTTPNotFound(text="This item is no longer here.")
