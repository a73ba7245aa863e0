"""What small functions answer: tests/snapshots/answers_of_search.txt has calls, and the whole answer of each."""
# ruff: noqa: F401 - the calls use what is imported

from pathlib import Path

import numpy as np
from snapshots import assert_answers

import mural_search
from mural_search import catalogue, fields, items, noise_level, queries, ranking, results, words, words_inside
from mural_search.items import Item
from mural_search.queries import Hit
from mural_search.server import addresses, labels, marks, served_index, settings, shop
from mural_search.tables import own_tables, product_table, table_columns, table_pictures, table_rows
from mural_search.tables.products import Entry
from mural_search.tables.table_rows import Row

NAMES = ("a.xmp", "a.jpg.xmp", "a.jpg.json", "a.jpg.supplemental-metadata.json", "b.jpg.supplemental-me.json",
         "c.jpg.supplemental-metadata(1).json", "d.json", "d.jpg.json", "e.xmp")  # fmt: skip
SIDECARS = dict(zip(NAMES, NAMES))


def roles(*every):
    """The roles of the columns of rows; no picture is there."""
    rows = [Row("", values) for values in every]
    found = table_columns.find_columns(rows, {}, lambda value: False)
    return found.images, dict(found.captions), found.language, found.identity, found.parent, found.sold


def chosen(role, name):
    """The column that a user means."""
    return table_columns._column(role, name, {"Photo": ["p.jpg"], "title_de": ["x"], "title": ["y"], "foto": ["z"]})


def file_names(value):
    return list(table_pictures._names(value, "/data/shop"))


def amounts(values):
    """The numbers of a column's values."""
    marks_of_groups = items.group_marks(values)
    return [items.amount(value, marks_of_groups) for value in values]


def shown(values, link=""):
    """A product's fields on the page; a text is of several rows, the text in a list of one."""
    rows = {name: value if isinstance(value, list) else value.split(", ") for name, value in values.items()}
    texts, several = items.fields_of(rows)
    shop_fields = shop.ShopFields.of(rows, "ID", link, lambda name: items.group_marks(rows[name]))
    return shop_fields.product_of(Item("a", fields=texts, several=several))


def link(query, *names):
    return addresses.Links(query).to(*names)


def written(language, number):
    return labels.Labels(language).number(number)


def marked(text, question):
    return str(marks.mark(text, question))


def colors(color):
    return settings.PageSettings(color=color).colors()


def captions(texts):
    return words_inside.captions_of(texts, Path("IMG_1.jpg"))


def examples(captions_of, held_out=None):
    """The example queries of entries, name -> {language: text}; of products named before the first "#"."""
    entries = []
    for name, texts in captions_of.items():
        captions = {caption: (0, False) for caption in texts.items()}
        entries.append(Entry(name.partition("#")[0] if "#" in name else "", name, None, captions))
    asked = catalogue._examples(entries, None if held_out is None else lambda: held_out)
    return [(query.language, query.text, query.right) for query in asked]


def best(found, count=3):
    """The order in which two ways' lists, {way: {row: value}}, are fused, and where rows were found."""
    lists = {
        way: ranking._entries(np.array(list(values)), np.array(list(values.values()))) for way, values in found.items()
    }
    ranked = ranking.Ranked(np.arange(count), lists, frozenset([9]), {"pictures": 0.1, "texts": 0.2}, {"pictures": 8})
    rows = ranked.fused(ranking.DEFAULT_WEIGHTS).rows.tolist()
    return rows, [ranked.found_by(row) for row in rows]


def test_answers():
    assert_answers("answers_of_search", globals())
