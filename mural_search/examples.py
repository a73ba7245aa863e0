"""The page of examples of a table's search: a query per language with its answers; pictures where no captions are.

Queries are kept with their vectors in the index, so that the page follows prices and removed items without the model.
"""

from __future__ import annotations

import io
import json
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mural_search import changes
from mural_search.gallery import write_gallery
from mural_search.index import Index, described
from mural_search.known_model import KnownModel
from mural_search.queries import Page, Query, Result, encode, find
from mural_search.ranking import resolve

EXAMPLES = 12  # queries on the page
TOP = 10  # answers to a query


def write_examples(
    page: pathlib.Path,
    index: Index,
    folder: pathlib.Path,
    model: KnownModel,
    choose: Callable[[], Sequence[Query]],
    links: Mapping[str, str],
) -> None:
    """Writes the page.

    Args:
      page: the file to write.
      folder: of the index.
      model: opened only for queries that are not kept.
      choose: returns new queries, sentences.
      links: of the page.
    """
    with tempfile.TemporaryDirectory() as pictures:
        results = _answers(index, folder, model, choose) or _similar(index, pathlib.Path(pictures))
        write_gallery(page, index, results, links)


def _answers(
    index: Index, folder: pathlib.Path, model: KnownModel, choose: Callable[[], Sequence[Query]]
) -> list[Result]:
    if not len(index.table.caption_ids):
        return []
    rank = resolve(index, "")
    kept = None if model.is_open else _read(described(folder).get("examples"))
    if kept is None:
        queries = choose()
        if not queries:
            return []
        vectors, captions = encode(index, model, queries, rank)
        changes.keep_examples(folder, _written(queries, vectors, captions))
    else:
        queries, vectors, captions = kept
    return find(index, vectors, queries, Page(TOP), captions=captions, rank=rank)


def _written(queries: Sequence[Query], vectors: np.ndarray | None, captions: np.ndarray | None) -> bytes:
    content = io.BytesIO()
    arrays = {"vectors": vectors, "captions": captions}
    texts = json.dumps([[query.text, query.language, query.right] for query in queries])
    np.savez(content, queries=texts, **{name: array for name, array in arrays.items() if array is not None})
    return content.getvalue()


def _read(content: bytes | None) -> tuple[list[Query], np.ndarray | None, np.ndarray | None] | None:
    """Returns the queries of `_written` with their vectors for pictures and for captions; `None` if unreadable."""
    if content is None:
        return None
    try:
        with np.load(io.BytesIO(content)) as arrays:
            texts = json.loads(str(arrays["queries"]))
            vectors = arrays["vectors"] if "vectors" in arrays else None
            captions = arrays["captions"] if "captions" in arrays else None
    except (ValueError, KeyError, zipfile.BadZipFile):
        return None
    return [Query(text, language, right=tuple(right)) for text, language, right in texts], vectors, captions


def _similar(index: Index, folder: pathlib.Path) -> list[Result]:
    """Returns the answers to pictures of the index, which are written into `folder`."""
    rows = np.setdiff1d(np.arange(len(index)), index.bare)
    rows = rows[:: max(1, -(-len(rows) // EXAMPLES))]
    queries = []
    for row in rows.tolist():
        (folder / str(row)).write_bytes(index.read_image(row))
        queries.append(Query(f"Pictures like {index.items[row]}", image=str(folder / str(row))))
    if not queries:
        return []
    return find(index, index.vectors_of(rows), queries, Page(TOP))
