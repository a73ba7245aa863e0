"""What changes in an index: which of its sources' items are new or other ones, and rows that searches find no more.

A row that is removed stays in the files until the index is made again or updated: `removed.npy` says that it is gone.
So the vectors and the approximate index need not be written again for a product that is sold out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from mural_tf.data.pictures import read_file
from mural_tf.errors import UserError
from mural_tf.files import exclusive_lock, save_array
from mural_tf.search import collect, fields
from mural_tf.search.collect import Found, Unreadable
from mural_tf.search.index import DESCRIPTION, REMOVED, Index, load_index
from mural_tf.search.items import IMAGES, content_of

BUILDING, JOINED = "building", "joined"  # folders of an index that is being made


class KnownRows:
    """The rows of an index, without the removed ones, by the keys of their items; 16 bytes a row."""

    def __init__(self, index: Index):
        rows = index.rows()
        rows = np.arange(len(index)) if rows is None else rows
        keys = (collect.key_of(index.kind, index.describe(row)) for row in rows)
        hashes = np.fromiter(map(collect.hash_of, keys), np.uint64, len(rows))
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._rows = hashes[order], rows[order]

    def rows(self, hashes: np.ndarray) -> np.ndarray:
        """Returns the rows of keys with these hashes, uint64 [N], as int64 [N]; -1 for keys that have none."""
        if not len(self._rows):
            return np.full(len(hashes), -1)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[places] == hashes, self._rows[places], -1)

    def absent(self, seen: collect.Seen) -> np.ndarray:
        """Returns the rows whose keys were not seen, int64 [K]; `seen` gets them."""
        return self._rows[seen.add_all(self._hashes)]


def with_content(found: Iterable[Found], files=None) -> Iterator[Found]:
    """Yields what was found, the images read and with their `content`, as far as they can be read."""
    for entry in found:
        if not isinstance(entry, Unreadable) and not isinstance(entry[1], str):
            with contextlib.suppress(OSError, ValueError):  # the encoder will say why
                item, content = entry
                data = content if isinstance(content, bytes) else read_file(content)
                entry = dataclasses.replace(item, content=content_of(data)), data
        yield entry


class Changes:
    """Of what the sources of a complete index hold, yields what is to be encoded, because it is new or another image.

    What has the image it had, but other captions, fields or another place, goes to the shard's files with its vector.
    """

    def __init__(self, index: Index):
        self._index, self._known = index, KnownRows(index)

    def __call__(self, found: Iterable[Found], files) -> Iterator[Found]:
        """Takes what `collect.read` yields; `files`: the shard's `embed.ShardFiles`."""
        for entry in with_content(found):
            before = None if isinstance(entry, Unreadable) else self._before(entry[0])
            if before is None:
                yield entry
            elif self._index.describe(before) != entry[0]:
                files.add([entry[0]], self._index.embeddings[before][None])

    def _before(self, item) -> int | None:
        """Returns the row whose vector is that of an item, None if there is none."""
        key = collect.hash_of(collect.key_of(self._index.kind, item))
        row = int(self._known.rows(np.array([key], np.uint64))[0])
        if row < 0 or (self._index.kind == IMAGES and not item.content):
            return None
        return row if self._index.describe(row).content == item.content else None


def changing(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Holds a complete index against other processes that change it; raises `UserError` if one has it."""
    return exclusive_lock(folder / DESCRIPTION, f"Another process is changing the index {folder}; wait for it.")


def remove(
    folder: pathlib.Path,
    names: Sequence[str] = (),
    filters: Sequence[fields.Filter] = (),
    is_wanted: Callable[[Index, int], bool] = lambda index, row: True,
    dry_run: bool = False,
) -> tuple[int, int]:
    """Takes rows out of the index in a folder: those of these names, or that pass the filters; returns how many, of how
    many.

    The file of removed rows is replaced at once: a killed process has removed all of them or none.

    Args:
      names: as the index shows them; or none, and
      filters: see `Index.search`; none for all items.
      is_wanted: of these, tells which rows to remove.
      dry_run: count only.

    Raises:
      UserError: no such item, or nothing would be left; an index that is damaged, being changed, or was being changed
        when a process was killed.
    """
    load_index(folder, use_exact=True)  # says what is wrong with it
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
            save_array(folder / REMOVED, np.union1d(index.removed, rows))
    return len(rows), index.count


def _named(index: Index, names: Sequence[str]) -> np.ndarray:
    """Returns the rows of items of these names; raises `UserError` for one that there is not."""
    wanted, rows = set(names), index.rows()
    rows = [row for row in (range(len(index)) if rows is None else rows.tolist()) if index.items[row] in wanted]
    unknown = sorted(wanted - {index.items[row] for row in rows})
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(f"The index has no {unknown[0]!r}{more}: names are as `search query` shows them. None removed.")
    return np.array(rows, np.int64)
