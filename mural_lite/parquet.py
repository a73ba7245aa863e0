"""Parquet files of any kind, read by row group, in bounded memory; pyarrow is imported with the first file."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.text_files import Problem, refuse_failure

ROWS = 1024  # rows that are read at a time


class UnreadableParquet(UserError):
    """A file that is not Parquet, or is damaged from its beginning; the message names it."""


def open_parquet(path: pathlib.Path):
    """Returns pyarrow's `ParquetFile`; raises `UnreadableParquet`, or `UserError` if pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"Reading {path} needs a package that is not installed: pip install pyarrow.") from None
    path = as_path(path)
    if not path.is_file():  # a pipe would wait for its other end
        raise UnreadableParquet(f"{path} is not a regular file.")
    try:
        file = path if isinstance(path, pathlib.Path) else path.open("rb")
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        refuse_failure(error, path)
        raise UnreadableParquet(f"{path} is not a Parquet file, or is damaged or cut off.") from None


def read_rows(
    path: pathlib.Path, columns: Sequence[str] | None, on_problem: Problem, groups: Sequence[int] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number of the row in the file, from 0, {column: value}), with at most `ROWS` rows in memory.

    `columns`, `groups`: names and numbers of the columns and the row groups to read, `None` for all. Values may be of
    any type. Text that is not UTF-8 costs its row, damage the rest of its row group, or the file where nothing can be
    read. Rows lost to damage are one call, `on_problem(problem, place, number of rows)`.

    Raises `UserError` if pyarrow is not installed, or the disk or the store fails.
    """
    try:
        file = open_parquet(path)
    except UnreadableParquet:
        on_problem("Parquet file that cannot be read", str(path))
        return
    import pyarrow

    end = 0  # number of the first row after the group
    for group in range(file.num_row_groups):
        number = end
        end += file.metadata.row_group(group).num_rows
        if groups is not None and group not in groups:
            continue
        try:
            for batch in file.iter_batches(batch_size=ROWS, columns=columns, row_groups=[group]):
                for row in _rows_of(batch):
                    if row is None:
                        on_problem("row with values that cannot be read", f"{path}, row {number}")
                    else:
                        yield number, row
                    number += 1
        except (pyarrow.ArrowException, OSError) as error:
            refuse_failure(error, path)
            # How many rows a group has is the file's own claim: no more rows than the file has bytes are believed.
            lost_rows = min(end - number, path.stat().st_size)
            on_problem("row in a damaged part of a Parquet file", f"{path}, row {number}", max(lost_rows, 1))


def _rows_of(batch) -> list[dict[str, Any] | None]:
    """Returns a batch's rows, `None` for a row with values that Python cannot hold: invalid UTF-8, odd dates."""
    try:
        return _in_microseconds(batch).to_pylist()
    except (ValueError, ArithmeticError):
        if batch.num_rows == 1:
            return [None]
        rows = []
        for index in range(batch.num_rows):
            rows += _rows_of(batch.slice(index, 1))
        return rows


def _in_microseconds(batch):
    """Returns a batch whose times and durations in nanoseconds are cut to microseconds, which Python's types hold."""
    from pyarrow import duration, timestamp

    columns = []
    for column in batch.columns:
        if str(column.type).startswith("timestamp[ns"):
            column = column.cast(timestamp("us", column.type.tz), safe=False)
        elif str(column.type) == "duration[ns]":
            column = column.cast(duration("us"), safe=False)
        columns.append(column)
    return batch.from_arrays(columns, names=batch.schema.names)
