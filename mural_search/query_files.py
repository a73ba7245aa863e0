"""Tables of queries: a sentence on each line, perhaps with its language and right answers."""

from __future__ import annotations

import os

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.text_files import read_lines
from mural_search.queries import Query


def read_queries(path: str | os.PathLike) -> list[Query]:
    """Returns the queries of a table: a sentence per line, or language[TAB]sentence[TAB]names of right answers.

    Raises `UserError` for a missing file, a line without a sentence, or no line.
    """
    if not as_path(path).is_file():
        raise UserError(f"The queries {path} are not there: expected a file of language[TAB]text.")
    queries = []
    for number, line in read_lines(path):
        if line.strip():
            cells = ["", line]
            if "\t" in line:
                cells = line.split("\t")
            language, text, *right = cells
            if not text.strip():
                raise UserError(f"{path}, line {number}: no sentence; expected language[TAB]text.")
            queries.append(Query(text, language.strip(), right=tuple(name for name in right if name)))
    if not queries:
        raise UserError(f"{path} holds no queries: expected language[TAB]text on every line.")
    return queries
