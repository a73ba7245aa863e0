"""Tables of queries: a sentence on each line, perhaps with its language and right answers."""

from __future__ import annotations

import os

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.text_files import read_lines
from mural_search.queries import Query


def read_queries(path: str | os.PathLike) -> list[Query]:
    """Returns the queries of a text file: a sentence per line, or language[TAB]sentence[TAB]names of right answers.

    The names have tabs between them, for example "sw[TAB]puto jekundu[TAB]red.png[TAB]balloon.png".

    Raises `UserError` for a missing file, a line without a sentence, or a file without queries.
    """
    if not as_path(path).is_file():
        raise UserError(f"The queries {path} are not there: expected a file of language[TAB]text.")
    queries = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        language, text, *names = line.split("\t") if "\t" in line else ("", line)
        if not text.strip():
            raise UserError(f"{path}, line {number}: no sentence; expected language[TAB]text.")
        queries.append(Query(text, language.strip(), right=tuple(filter(None, names))))
    if not queries:
        raise UserError(f"{path} holds no queries: expected language[TAB]text on every line.")
    return queries
