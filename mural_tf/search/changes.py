"""Rows that searches find no more, and the lock of who changes an index.

A row that is removed stays in the vectors until the index is updated: `items.sqlite` says that it is gone. So the
vectors and the approximate index need not be written again for a product that is sold out.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from mural_tf.errors import UserError
from mural_tf.files import exclusive_lock
from mural_tf.search.fields import Filter
from mural_tf.search.index import DESCRIPTION, Index, load_index, read_description

BUILDING, JOINED = "building", "joined"  # folders of an index that is being made


def changing(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Holds a complete index against other processes that change it; raises `UserError` if one has it."""
    return exclusive_lock(folder / DESCRIPTION, f"Another process is changing the index {folder}; wait for it.")


def remove(
    folder: pathlib.Path,
    names: Sequence[str] = (),
    filters: Sequence[Filter] = (),
    is_wanted: Callable[[Index, int], bool] = lambda index, row: True,
    dry_run: bool = False,
) -> tuple[int, int]:
    """Takes rows out of the index in a folder: those of these names, or that pass the filters; returns how many, of how
    many.

    A killed process has removed all of them or none.

    Args:
      names: as the index shows them; or none, and
      filters: see `Index.search`; none for all items.
      is_wanted: of these, tells which rows to remove.
      dry_run: count only.

    Raises:
      UserError: no such item, or nothing would be left; an index that is damaged, being changed, or was being changed
        when a process was killed.
    """
    read_description(folder)  # says that there is none
    with changing(folder):
        if (folder / BUILDING / JOINED).exists():
            raise UserError(f"An update of the index {folder} was interrupted; run that command again first.")
        index = load_index(folder, use_exact=True)
        rows = _named(index, names) if names else index.rows(filters)
        rows = np.arange(len(index)) if rows is None else rows
        rows = np.array([row for row in rows.tolist() if is_wanted(index, row)], np.int64)
        if len(rows) == index.count:
            raise UserError(f"Nothing of the {index.count:,} {index.kind} would be left: delete {folder} itself.")
        if len(rows) and not dry_run:
            index.table.remove(rows)
    return len(rows), index.count


def _named(index: Index, names: Sequence[str]) -> np.ndarray:
    """Returns the rows of items of these names; raises `UserError` for one that there is not."""
    wanted, removed = set(names), set(index.removed.tolist())
    rows = {row: name for row, name in enumerate(index.table.names()) if name in wanted and row not in removed}
    unknown = sorted(wanted - set(rows.values()))
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(f"The index has no {unknown[0]!r}{more}: names are as `search query` shows them. None removed.")
    return np.array(list(rows), np.int64)
