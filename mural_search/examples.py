"""The page of examples of a table's search: a query per language with its answers; pictures where no captions are.

Queries are kept with their vectors in the index, so that the page follows prices and removed items without the model.
"""

from __future__ import annotations

import io
import json
import math
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
    """Writes the page of examples: answers to sentences, or, without sentences, to pictures of the index.

    New sentences are kept in the index with their vectors.

    Args:
      page: the file to write.
      folder: the index's folder.
      model: the index's model, opened only for queries whose vectors the index has not kept.
      choose: returns new queries, sentences; called only where the index has captions.
      links: {words: address} at the foot of the page.
    """
    with tempfile.TemporaryDirectory() as pictures:
        results = _ask_with_sentences(index, folder, model, choose)
        if not results:
            results = _ask_with_pictures(index, pathlib.Path(pictures))
        write_gallery(page, index, results, links)


def _ask_with_sentences(
    index: Index, folder: pathlib.Path, model: KnownModel, choose: Callable[[], Sequence[Query]]
) -> list[Result]:
    """Returns the results of the index's kept queries, or of new queries; [] without queries, or without captions.

    New queries are chosen, encoded and kept if no queries are kept, or the model is open: then items may be new.
    """
    if not len(index.table.caption_ids):
        return []
    rank = resolve(index, "")
    asked = None
    if not model.is_open:
        asked = _parsed(described(folder).get("examples"))
    if asked is None:
        queries = choose()
        if not queries:
            return []
        asked = queries, *encode(index, model, queries, rank)
        changes.keep_examples(folder, _serialized(*asked))
    queries, vectors, captions = asked
    return find(index, vectors, queries, Page(TOP), captions=captions, rank=rank)


def _serialized(queries: Sequence[Query], vectors: np.ndarray | None, captions: np.ndarray | None) -> bytes:
    """Returns the bytes of a .npz file of queries and their vectors, [Q, D], for pictures and for captions."""
    texts = json.dumps([[query.text, query.language, query.right] for query in queries])
    arrays = {"queries": texts}
    if vectors is not None:
        arrays["vectors"] = vectors
    if captions is not None:
        arrays["captions"] = captions
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def _parsed(content: bytes | None) -> tuple[list[Query], np.ndarray | None, np.ndarray | None] | None:
    """Returns (queries, vectors for pictures, vectors for captions) of `_serialized`'s file; `None` if unreadable."""
    if content is None:
        return None
    try:
        with np.load(io.BytesIO(content)) as arrays:
            texts = json.loads(str(arrays["queries"]))
            vectors = arrays.get("vectors")
            captions = arrays.get("captions")
    except (ValueError, KeyError, zipfile.BadZipFile):
        return None
    return [Query(text, language, right=tuple(right)) for text, language, right in texts], vectors, captions


def _ask_with_pictures(index: Index, folder: pathlib.Path) -> list[Result]:
    """Returns the results of asking with up to `EXAMPLES` pictures of the index, evenly spread; [] without pictures.

    The pictures are written into `folder`, because a query names a file. Unreadable pictures are left out.
    """
    rows = np.setdiff1d(np.arange(len(index)), index.bare)
    step = max(1, math.ceil(len(rows) / EXAMPLES))
    queries = []
    readable_rows = []
    for row in rows[::step].tolist():
        try:
            picture = index.read_image(row)
        except (OSError, ValueError):
            continue
        file = folder / str(row)
        file.write_bytes(picture)
        queries.append(Query(f"Pictures like {index.items[row]}", image=str(file)))
        readable_rows.append(row)
    if not queries:
        return []
    return find(index, index.vectors_of(np.array(readable_rows)), queries, Page(TOP))
