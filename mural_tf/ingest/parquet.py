"""Parquet files, read by row group, in bounded memory."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from mural_tf.errors import UserError
from mural_tf.ingest.text_files import Problem

ROWS = 1024  # that are read at a time


def open_parquet(path: pathlib.Path):
    """Returns the file as pyarrow sees it; raises `UserError` if it cannot be read."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"Reading {path} needs a package that is not installed: pip install pyarrow (or mural-tf[convert])."
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not a readable Parquet file: {error}") from None


def column_names(path: pathlib.Path) -> list[str]:
    """Returns the names of a file's columns."""
    return open_parquet(path).schema_arrow.names


def read_rows(
    path: pathlib.Path, columns: Sequence[str] | None, on_problem: Problem
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 0, row) in memory bounded by the rows read at a time."""
    import pyarrow

    file = open_parquet(path)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=ROWS, columns=columns):
            for row in batch.to_pylist():
                yield number, row
                number += 1
    except (pyarrow.ArrowException, OSError):
        on_problem("Parquet file that is damaged: what follows is lost", f"{path}, row {number}")
