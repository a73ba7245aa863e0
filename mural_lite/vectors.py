"""Vectors on disk as Parquet, which pandas, DuckDB, Spark and databases read: what `embed` and `search export` write.

A folder of files *.parquet. Columns that every file needs:

    name      a text: a path, an id, or the text itself
    vector    a list of D numbers, float16 or float32

An item's record has further fields, where they are known:

    path, offset, language, content   see mural_search/items.py; `path` as bytes, because names of files may be no UTF-8
    captions, fields                  JSON: [[language, text], …] and {name: value}

The files' metadata say under "mural_tf" which kind the items are and which model made the vectors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mural_lite.errors import UserError, install_extra
from mural_lite.files import as_path

ENDING = ".parquet"
METADATA = b"mural_tf"
ROWS = 4096  # read, and written, at a time


_PARTS_OF_MODELS = (  # patterns of files and folders
    "config.json", "vocabulary.txt", "vocab.txt", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.model", "*processor_config.json",
    "open_clip_config.json", "modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "[0-9]_*",
    "checkpoints", "image_encoder", "text_preprocessor", "text_encoder", "lite.json", "model_probes.npy", "*.tflite",
)  # fmt: skip
SMALL = 2**20  # bytes of a file that is read for a stamp


def model_digest(model: str | os.PathLike) -> str:
    """Returns a hash, 16 hexadecimal digits, of the files that a model in a folder consists of, with their contents."""
    folder = as_path(model)
    digest = hashlib.blake2b(digest_size=8)
    for file in _files_of(folder):
        digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
        with open(file, "rb") as content:
            while chunk := content.read(2**20):  # files may be larger than the memory
                digest.update(chunk)
    return digest.hexdigest()


def model_stamp(model: str | os.PathLike) -> str:
    """Returns 16 hexadecimal digits that change with a model's files, in some milliseconds; "" for a model in a store.

    Small files count with their contents, among them the indexes of TensorFlow's weights, which hold a checksum of
    every tensor, and the probes of a `lite/`; large files with the time of their last change. So a copied model may
    have another stamp: then its vectors decide whether it is the same.
    """
    folder = as_path(model)
    if not isinstance(folder, pathlib.Path):
        return ""
    files = _files_of(folder)
    if not files:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        status = file.stat()
        if status.st_size <= SMALL:
            content = file.read_bytes()
        else:
            content = str(status.st_mtime_ns).encode()
        digest.update(f"{file.relative_to(folder)}\0{status.st_size}\0".encode() + content)
    return digest.hexdigest()


def _files_of(model: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files that a model in a folder consists of, in an order that only their names determine."""
    files: list[pathlib.Path] = []
    for pattern in _PARTS_OF_MODELS:
        paths: list[pathlib.Path] = []
        for path in model.glob(pattern):
            paths += [path, *path.rglob("*")]  # a file, or a folder with everything in it
        files += sorted(path for path in paths if path.is_file())
    return files


def _import_pyarrow():
    """Returns the package pyarrow; raises `UserError` if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"Parquet needs pyarrow: {install_extra('convert')}.") from None
    return pyarrow


def vector_files(folder: str | os.PathLike) -> list:
    """Returns the Parquet files in a folder, in the order of their names; [] for a file or a missing folder."""
    folder = as_path(folder)
    if not folder.is_dir():
        return []
    return sorted(folder.glob(f"*{ENDING}"))


class VectorFile:
    """Writes a file of vectors block by block: `with VectorFile(path, width, dtype, metadata) as file: file.add(…)`.

    `width`: D; `dtype`: "float16" or "float32"; `metadata`: a dictionary that JSON can hold, which `metadata_of` reads.
    """

    def __init__(self, path: str | os.PathLike, width: int, dtype: str, metadata: Mapping):
        arrow = _import_pyarrow()
        self._arrow = arrow
        self._width = width
        self._dtype = np.dtype(dtype)
        types = {name: arrow.string() for name in ("name", "language", "content", "captions", "fields")}
        types["path"] = arrow.binary()
        types["offset"] = arrow.int64()
        types["vector"] = arrow.list_(arrow.from_numpy_dtype(self._dtype), width)
        stored_metadata = {METADATA: json.dumps(dict(metadata)).encode()}
        self._schema = arrow.schema(types.items(), metadata=stored_metadata)
        # Each page has a checksum, so that a bit that flipped is noticed.
        self._writer = arrow.parquet.ParquetWriter(os.fspath(path), self._schema, write_page_checksum=True)

    def __enter__(self) -> VectorFile:
        return self

    def __exit__(self, *_) -> None:
        self._writer.close()

    def add(self, rows: Sequence[Mapping], vectors: np.ndarray) -> None:
        """Writes N rows, {column: value} of every column but "vector", and their vectors, float [N, D]."""
        columns = []
        for field in self._schema:
            if field.name != "vector":
                columns.append(self._arrow.array([row[field.name] for row in rows], field.type))
        numbers = self._arrow.array(np.ascontiguousarray(vectors, self._dtype).ravel())
        columns.append(self._arrow.FixedSizeListArray.from_arrays(numbers, self._width))  # the last column
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))


def metadata_of(path: str | os.PathLike) -> dict:
    """Returns the metadata of a file of `VectorFile`, {} for another program's; raises `UserError` if it is damaged."""
    with _opened(path) as file:
        metadata = file.schema_arrow.metadata or {}
        return json.loads(metadata.get(METADATA, b"{}"))


@contextlib.contextmanager
def _opened(path: str | os.PathLike) -> Iterator:
    """Gives pyarrow's `ParquetFile`; turns its errors, also while it is read in the block, into `UserError`s."""
    arrow = _import_pyarrow()
    try:
        with as_path(path).open("rb") as content:
            yield arrow.parquet.ParquetFile(content, page_checksum_verification=True)
    except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged, or no Parquet of name and vector ({reason}): make it again.") from None


def read_rows(path: str | os.PathLike, names: Sequence[str] = ()) -> Iterator[tuple[list[dict], np.ndarray]]:
    """Yields (rows, vectors, float16 or float32 [B, D]) in blocks of up to `ROWS`; a row is {column: value}.

    `names`: only these columns; () for all but "vector". Raises `UserError` for a file that is damaged, or that holds
    no vectors or vectors of different lengths.
    """
    with _opened(path) as file:
        stored_names = file.schema_arrow.names
        columns = [name for name in stored_names if name != "vector" and (not names or name in names)]
        if not {"name", "vector"} <= set(stored_names):
            raise UserError(f"{path} has the columns {', '.join(stored_names)}: expected name and vector.")
        row_count = 0
        for batch in file.iter_batches(ROWS, columns=[*columns, "vector"]):
            row_count += len(batch)
            vectors = _matrix_of(batch.column(batch.schema.get_field_index("vector")), path)
            yield batch.drop_columns(["vector"]).to_pylist(), vectors
        if row_count != file.metadata.num_rows:  # pyarrow passes over a page whose header is damaged
            raise UserError(
                f"{path} is damaged: {row_count} of its {file.metadata.num_rows} rows can be read. Make it again."
            )


def _matrix_of(column, path: str | os.PathLike) -> np.ndarray:
    """Returns a column of B lists of D numbers as float16 or float32 [B, D]; raises `UserError` for other lists."""
    if column.null_count:
        raise UserError(f"{path} holds rows without a vector: leave them out.")
    numbers = column.flatten().to_numpy(zero_copy_only=False)
    if numbers.dtype != np.float16:
        numbers = numbers.astype(np.float32)
    lengths = set(column.value_lengths().to_pylist())
    if len(numbers) % len(column) or len(lengths) > 1:
        raise UserError(f"{path} holds vectors of different lengths: expected D numbers each.")
    return numbers.reshape(len(column), -1)
