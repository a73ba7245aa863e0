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

    If the field of the products' ids is hidden, the items' names, which hold these ids, are "" from now on, and the
    ids of variations are hidden, too. `ItemTable.products` still reads the ids of products.

    Args:
      table: the opened table of an index; its connection is changed, and its file is not.
      names: names of fields; unknown names hide nothing.
    """
    are_ids_hidden = table.meta.get("product") in names
    hidden_names = list(names)
    if are_ids_hidden:
        hidden_names.append(VARIATIONS)
    _execute(table, "CREATE TEMP TABLE hidden (name TEXT)")
    for name in hidden_names:
        _execute(table, f"INSERT INTO temp.hidden VALUES ({TEXT})", utf8(name))
    _execute(table, f"CREATE TEMP VIEW fields AS {FIELDS}")
    if are_ids_hidden:
        _execute(table, f"CREATE TEMP VIEW items AS {ITEMS}")
    _index_words(table)


def _execute(table: ItemTable, query: str, *values: object) -> list[tuple]:
    """Executes a statement of SQL and returns its rows, [] for a statement that only changes something."""
    return list(table.each(query, values))  # `each` is a generator, which runs nothing before it is read


def _index_words(table: ItemTable) -> None:
    """Makes tables for the search by words from the fields and names that are not hidden, and points `table` there."""
    _execute(table, f"CREATE VIRTUAL TABLE temp.words USING {WORDS_TABLE}")
    for begin in range(0, len(table), TOGETHER):
        block = json.dumps(table.ids[begin : begin + TOGETHER].tolist())  # as the condition `AMONG` takes it
        caption_ids = collections.defaultdict(list)  # {item's id: its captions' ids, in order}
        for caption_id, item_id in _execute(table, f"SELECT id, item FROM texts WHERE item {AMONG} ORDER BY id", block):
            caption_ids[item_id].append(caption_id)
        for item_id, _, item in read_items(table.each, block):
            for document_id, words in documents(item_id, item, caption_ids[item_id]):
                _execute(table, f"INSERT INTO temp.words (rowid, text) VALUES (?, {TEXT})", document_id, words)
    _execute(table, "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(temp, words, row)")
    _execute(table, "CREATE TEMP TABLE trigrams (term TEXT PRIMARY KEY, documents INTEGER) WITHOUT ROWID")
    _execute(table, "INSERT INTO temp.trigrams SELECT term, doc FROM temp.vocabulary")
    table.schema = "temp"  # where `Postings` finds `words`
