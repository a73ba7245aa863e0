"""What small functions answer: tests/snapshots/answers_of_search.txt has calls, and the whole answer of each."""
# ruff: noqa: F401 - the calls use what is imported

from pathlib import Path

from snapshots import assert_answers

from mural_search import fields, items, words, words_inside
from mural_search.items import Item
from mural_search.server import addresses, labels, marks, settings, shop
from mural_search.tables import own_tables, product_table, table_columns, table_pictures, table_rows
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
    """A product's fields on the page."""
    return shop.ShopFields.of(values, "ID", link).product_of(Item("a", fields=values))


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


def test_answers():
    assert_answers("answers_of_search", globals())
