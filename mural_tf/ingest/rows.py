"""Rows that many workers write, as Parquet, and that DuckDB groups and joins in bounded memory.

A worker writes a file per table and job, which appears when it is whole: a job that is done is known by its files.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fsspec

from mural_lite.errors import UserError, install_extra
from mural_lite.files import atomic_file
from mural_lite.paths import RemotePath

MEMORY = "1GB"  # the most memory that DuckDB takes before it goes on in files
AT_ONCE = 50_000  # rows that are held until they are written


@functools.cache
def _packages() -> tuple:
    """Returns the modules duckdb and pyarrow; raises `UserError` if one is missing."""
    try:
        import duckdb
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f"Decisions over all data, such as duplicates, need DuckDB ({error}): {install_extra('convert')}."
        ) from None
    return duckdb, pyarrow


def path_of(folder: pathlib.Path, table: str, job: str | int) -> pathlib.Path:
    """Returns the file of a table that a job writes."""
    return folder / f"{table}-{job}.parquet"


@contextlib.contextmanager
def write(folder: pathlib.Path, table: str, job: str | int, columns: dict[str, str]) -> Iterator[Callable]:
    """Gives a function that adds a row, a tuple, to a table.

    Args:
      columns: {name: type as pyarrow calls it}.
    """
    _, pyarrow = _packages()
    types = {name: pyarrow.type_for_alias(type_name) for name, type_name in columns.items()}
    rows: list[tuple] = []
    with atomic_file(path_of(folder, table, job)) as partial:
        with pyarrow.parquet.ParquetWriter(partial, pyarrow.schema(types.items())) as file:

            def flush() -> None:
                columns_of_rows = zip(*rows)
                arrays = [pyarrow.array(values, type_) for values, type_ in zip(columns_of_rows, types.values())]
                file.write_table(pyarrow.table(arrays, list(types)))
                rows.clear()

            def add(row: tuple) -> None:
                rows.append(row)
                if len(rows) == AT_ONCE:
                    flush()

            yield add
            if rows:
                flush()


def files(folder: pathlib.Path, table: str) -> str:
    """Returns the SQL name of the rows of a table that all jobs have written."""
    return f"'{_quoted(folder)}/{table}-*.parquet'"


def file(path: pathlib.Path) -> str:
    """Returns the SQL name of a file."""
    return f"'{_quoted(path)}'"


def _quoted(path: pathlib.Path) -> str:
    """Returns a path for SQL's quotation marks, in which DuckDB sees no wildcards."""
    return glob.escape(str(path)).replace("'", "''")


def ask(folder: pathlib.Path, query: str, parameters: Sequence[Any] = ()) -> Any:
    """Returns DuckDB's answer to a query about files in `folder`, which is also where it spills."""
    database = _database(folder, os.getpid())
    return database.cursor().execute(query, parameters)


@functools.lru_cache(maxsize=1)
def _database(folder: pathlib.Path, process: int) -> Any:
    """Returns DuckDB's connection of a process, because processes cannot share one."""
    duckdb, _ = _packages()
    is_remote = isinstance(folder, RemotePath)
    local = folder
    if is_remote:
        local = tempfile.gettempdir()
    spilled = os.path.join(local, f"spilled-{process}")
    database = duckdb.connect(config={"threads": 1, "memory_limit": MEMORY, "temp_directory": spilled})
    if is_remote:
        scheme, _, _ = str(folder).partition("://")
        database.register_filesystem(fsspec.filesystem(scheme, use_listings_cache=False))
    return database


def save(path: pathlib.Path, query: str) -> None:
    """Writes the rows of a query about files next to `path` to the Parquet file `path`."""
    with atomic_file(path) as partial:
        name = str(partial).replace("'", "''")
        ask(path.parent, f"COPY ({query}) TO '{name}' (FORMAT parquet)")
