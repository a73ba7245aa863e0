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
    """Returns the file `TABLE-JOB.parquet` of the rows that a job writes for a table."""
    return folder / f"{table}-{job}.parquet"


@contextlib.contextmanager
def write(folder: pathlib.Path, table: str, job: str | int, columns: dict[str, str]) -> Iterator[Callable]:
    """Gives a function that adds a row, a tuple, to the file of a table that a job writes.

    The file appears at the end of the `with` block, unless an exception ends it.

    Args:
      folder: the folder of the file, see `path_of`.
      table: the name of the table.
      job: the name or number of the job.
      columns: {name: type as pyarrow calls it}, in the order of the values of a row.
    """
    _, pyarrow = _packages()
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(type_name)) for name, type_name in columns.items()])
    with atomic_file(path_of(folder, table, job)) as partial:
        with pyarrow.parquet.ParquetWriter(partial, schema) as file:
            writer = _RowWriter(file)
            yield writer.add
            writer.flush()


class _RowWriter:
    """Writes rows to a `ParquetWriter`, `AT_ONCE` rows at a time."""

    def __init__(self, file):
        self._file = file
        self._rows: list[tuple] = []

    def add(self, row: tuple) -> None:
        """Holds a row, and writes all rows that are held as soon as these are `AT_ONCE`."""
        self._rows.append(row)
        if len(self._rows) == AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that are held."""
        if not self._rows:
            return
        _, pyarrow = _packages()
        schema = self._file.schema
        columns = dict(zip(schema.names, zip(*self._rows)))
        self._file.write_table(pyarrow.table(columns, schema))
        self._rows.clear()


def files(folder: pathlib.Path, table: str) -> str:
    """Returns the SQL name of the rows of a table that all jobs have written, a pattern of files in quotation marks."""
    return f"'{_quoted(folder)}/{table}-*.parquet'"


def file(path: pathlib.Path) -> str:
    """Returns the SQL name of the rows of a file, its path in quotation marks."""
    return f"'{_quoted(path)}'"


def _quoted(path: pathlib.Path) -> str:
    """Returns a path for SQL's quotation marks, in which DuckDB sees no wildcards."""
    return glob.escape(str(path)).replace("'", "''")


def ask(folder: pathlib.Path, query: str, parameters: Sequence[Any] = ()) -> Any:
    """Returns DuckDB's cursor with the answer to a query of SQL, whose rows its `fetch…` methods return.

    Args:
      folder: the folder of the files that the query names, where DuckDB also writes rows that are too many for memory.
      query: the query, with "?" in the places of parameters.
      parameters: the values of the parameters.
    """
    database = _database(folder, os.getpid())
    return database.cursor().execute(query, parameters)


@functools.lru_cache(maxsize=1)
def _database(folder: pathlib.Path, process: int) -> Any:
    """Returns the connection to DuckDB of the process with this number, which no other process can share.

    Rows that are too many for memory go into `folder`, or, if it is in a store, into a temporary folder.
    """
    duckdb, _ = _packages()
    is_remote = isinstance(folder, RemotePath)
    local_folder = tempfile.gettempdir() if is_remote else folder
    spill_folder = os.path.join(local_folder, f"spilled-{process}")
    database = duckdb.connect(config={"threads": 1, "memory_limit": MEMORY, "temp_directory": spill_folder})
    if is_remote:
        scheme, _, _ = str(folder).partition("://")
        database.register_filesystem(fsspec.filesystem(scheme, use_listings_cache=False))
    return database


def save(path: pathlib.Path, query: str) -> None:
    """Writes the rows of a query about files in the folder of `path` to the Parquet file `path`."""
    with atomic_file(path) as partial:
        name = str(partial).replace("'", "''")
        ask(path.parent, f"COPY ({query}) TO '{name}' (FORMAT parquet)")
