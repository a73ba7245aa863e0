"""Fields that nobody shall see, taken out of an opened table of items; the file of the index stays as it is.

The connection gets tables and views of its own, in SQLite's schema `temp`, which questions find before the file's. So
no question has to know what is hidden.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Collection

from mural_search.database import WORDS_TABLE, documents
from mural_search.item_table import AMONG, TEXT, TOGETHER, ItemTable, read_items, utf8
from mural_search.server.shop import VARIATIONS

FIELDS = "SELECT rowid, item, name, value FROM main.fields WHERE name NOT IN (SELECT name FROM temp.hidden)"
ITEMS = "SELECT id, key, '' AS name, path, offset, language, content, digest FROM main.items"


def hide_fields(table: ItemTable, names: Collection[str]) -> None:
    """Makes a table answer as if no item had these fields: they are neither shown, filtered, sorted by nor searched.

    Where the names of the items are values of such a field, the ids of products, the names are "" from now on, and the
    ids of variations are hidden, too; `ItemTable.products` still reads the ids of products.
    """
    are_ids_hidden = table.meta.get("product") in names
    hidden_names = list(names)
    if are_ids_hidden:
        hidden_names.append(VARIATIONS)
    _ask(table, "CREATE TEMP TABLE hidden (name TEXT)")
    for name in hidden_names:
        _ask(table, f"INSERT INTO temp.hidden VALUES ({TEXT})", utf8(name))
    _ask(table, f"CREATE TEMP VIEW fields AS {FIELDS}")
    if are_ids_hidden:
        _ask(table, f"CREATE TEMP VIEW items AS {ITEMS}")
    _index_words(table)


def _ask(table: ItemTable, query: str, *values: object) -> list[tuple]:
    """Returns the rows of a query; one without rows runs as well, since `each` alone would wait for its reader."""
    return list(table.each(query, values))


def _index_words(table: ItemTable) -> None:
    """Makes the tables `words` and `trigrams` of a connection from the fields and names that it shows."""
    _ask(table, f"CREATE VIRTUAL TABLE temp.words USING {WORDS_TABLE}")
    for begin in range(0, len(table), TOGETHER):
        block = json.dumps(table.ids[begin : begin + TOGETHER].tolist())
        text_ids = collections.defaultdict(list)  # item -> its captions, in order
        for text, item in _ask(table, f"SELECT id, item FROM texts WHERE item {AMONG} ORDER BY id", block):
            text_ids[item].append(text)
        for number, _, item in read_items(table.each, block):
            for rowid, words in documents(number, item, text_ids[number]):
                _ask(table, f"INSERT INTO temp.words (rowid, text) VALUES (?, {TEXT})", rowid, words)
    _ask(table, "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(temp, words, row)")
    _ask(table, "CREATE TEMP TABLE trigrams (term TEXT PRIMARY KEY, documents INTEGER) WITHOUT ROWID")
    _ask(table, "INSERT INTO temp.trigrams SELECT term, doc FROM temp.vocabulary")
    table.schema = "temp"  # where `Postings` finds `words`
