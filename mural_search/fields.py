"""The fields of items that are shown: at most five on a card, some as filters, all of them in an item's own view.

A table has twenty columns and more, and most of them tell a customer nothing: flags, numbers of rows, the title again,
whole descriptions. A card shows the fields that distinguish products; a filter has few values, or a range of numbers or
dates. The maker of the index may name the fields instead.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mural_search.item_table import FEW, FEW_NUMBERS, ItemTable
from mural_search.items import Item, amount

ON_CARD = 5
MOST_FILTERS = 8
LOOKED_AT = 1000  # items, evenly spread
LONG = 40  # characters of a value, on average, above which a field is a text
ENDS = (".", "!", "?", "。", "！", "？", "।")  # of sentences
FEWEST = 0.05  # share of the items that must have another value than the most frequent value, or a value at all
ENOUGH = 10  # values that are needed to see that all of them differ, as numbers of articles do
FLAGS = frozenset("0 1 yes no true false y n ja nein oui non si sí no да нет はい いいえ".split())
OF_IDS = re.compile(r"(^|[\W_])(id|ids|sku|gtin|ean|upc|isbn|mpn|asin|handle|slug|code|barcode|uuid)([\W_]|$)", re.I)
OF_PRICES = re.compile(r"price|preis|prix|precio|prezzo|preço|prijs|pris\b|cena|цена|価格|价格|가격|سعر|कीमत", re.I)
CURRENCY = re.compile(r"[$€£¥₹₽₩₺]|\b[A-Z]{3}\b")
DECIMALS = re.compile(r"\d[.,]\d\d?$")
OPERATORS = re.compile("[<>=]")  # which end the name of a field in a filter
ADDRESS = re.compile(r"(https?://|www\.)\S+", re.I)
CODE = re.compile(r"\d+|(?=\S*[\d_-])[\w./-]+")
DATE = re.compile(r"\d{4}-\d\d?(-\d\d?)?|\d\d?\.\d\d?\.\d{4}")


class Fields(NamedTuple):
    """Names of fields in the order of the table: fields on a card, and fields that are offered as filters."""

    card: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()

    def of(self, item: Item) -> dict[str, str]:
        """Returns {name: value} of the fields on the card of an item."""
        return {name: item.fields[name] for name in self.card if name in item.fields}


@functools.lru_cache(maxsize=1)
def of_index(index) -> Fields:
    """Returns the fields that an index shows: the fields named when it was made, or chosen fields."""
    if not index.table.has_fields():
        return Fields()
    return choose(index.table, index.fields_wanted)


def choose(table: ItemTable | Sequence[Item], wanted: Sequence[str] | None = None) -> Fields:
    """Returns the fields of a table's items that are shown.

    A field is not shown if it is nearly constant, long, an id or an address, repeats the caption, or is a flag (which
    may be a filter). Among the others a card has prices and words that items share (brand, colour) before numbers
    (stock, weight) and texts, and among these the fields in which two items most probably differ.

    Args:
      table: the items; at most `LOOKED_AT` are read.
      wanted: the names of the fields to show instead of a choice. A name that no item has is passed over.
    """
    columns, count = _columns(table)
    if wanted is not None:
        card = [name for name in dict.fromkeys(wanted) if name in columns]
        filters = [name for name in card if columns[name].is_filter]
        return Fields(tuple(card), tuple(filters))

    def order_of_choice(column):
        return not column.is_property, -column.difference(count)

    useful = [column for column in columns.values() if not column.is_useless(count)]
    best = sorted(useful, key=order_of_choice)
    card = [column.name for column in best if not column.is_flag][:ON_CARD]
    filters = [column.name for column in best if column.is_filter][:MOST_FILTERS]
    order_of_table = list(columns).index
    card.sort(key=order_of_table)
    filters.sort(key=order_of_table)
    return Fields(tuple(card), tuple(filters))


def _columns(table: ItemTable | Sequence[Item]) -> tuple[dict[str, _Column], int]:
    """Returns ({name: field}, number of different items) of a sample of a table's items."""
    rows = np.linspace(0, len(table) - 1, min(len(table), LOOKED_AT), dtype=np.int64).tolist()
    if isinstance(table, ItemTable):
        items = table.at(rows)
    else:
        items = [table[row] for row in rows]
    item_of_product = {}  # all pictures of a product have its fields
    for item in items:
        product = tuple(item.fields.items()), item.captions or item.name
        item_of_product.setdefault(product, item)
    columns: dict[str, _Column] = {}
    for item in item_of_product.values():
        captions = [_letters(text) for _, text in item.captions] or [_letters(item.name)]
        for name, value in item.fields.items():
            column = columns.setdefault(name, _Column(name))
            column.values.append(value)
            column.parts += item.values(name)
            column.repeated_captions += any(_repeats(_letters(value), caption) for caption in captions)
    return columns, len(item_of_product)


def _letters(text: str) -> str:
    """Returns the letters and digits of a text in lower case."""
    return "".join(filter(str.isalnum, text.casefold()))


def _repeats(value: str, caption: str) -> bool:
    """Whether a value holds a caption, or most of one; a brand that begins a title does not."""
    if not caption:
        return False
    return caption in value or (value in caption and 2 * len(value) > len(caption))


class _Column:
    """The values of one field in the items that have it.

    Attributes:
      values: a text for each item, which joins the item's values.
      parts: all values of all items.
      repeated_captions: how many values repeat a caption.
    """

    def __init__(self, name: str):
        self.name = name
        self.values: list[str] = []
        self.parts: list[str] = []
        self.repeated_captions = 0

    @functools.cached_property
    def counts(self) -> Mapping[str, int]:
        """{value: how often it occurs}."""
        return collections.Counter(self.values)

    @functools.cached_property
    def part_counts(self) -> Mapping[str, int]:
        """{part: how often it occurs}."""
        return collections.Counter(self.parts)

    def difference(self, count: int) -> float:
        """Returns the probability that two of `count` items differ in this field; a missing value is a value, too."""
        shares = np.array([*self.counts.values(), count - len(self.values)]) / count
        return float(1.0 - np.sum(shares**2))

    def is_useless(self, count: int) -> bool:
        """Whether it says nothing about one of `count` items to somebody who looks at them."""
        return self.is_dull(count) or self.is_text or self.is_id

    def is_dull(self, count: int) -> bool:
        """Whether nearly all of `count` items have the same value, or have no value."""
        most = max(*self.counts.values(), count - len(self.values), 0)
        return count - most < max(1, FEWEST * count)

    @functools.cached_property
    def is_text(self) -> bool:
        """Whether it is long, or most values are sentences, addresses, or captions again."""
        addresses = sum(bool(ADDRESS.match(value)) for value in self.values)
        sentences = sum(value.rstrip().endswith(ENDS) and " " in value for value in self.values)
        length = sum(map(len, self.values)) / len(self.values)
        return length > LONG or 2 * max(addresses, sentences, self.repeated_captions) > len(self.values)

    @functools.cached_property
    def is_price(self) -> bool:
        """Whether its values are sums of money, by its name or their currency."""
        money = OF_PRICES.search(self.name) or all(map(CURRENCY.search, self.values))
        return bool(money) and self._are_amounts

    @functools.cached_property
    def _are_amounts(self) -> bool:
        return all(amount(value) is not None for value in self.part_counts)

    @functools.cached_property
    def is_id(self) -> bool:
        """Whether it identifies items: by its name, or because all values differ and look like codes."""
        count = len(self.parts)
        are_enough = count >= ENOUGH
        if self.is_price or (are_enough and all(map(DECIMALS.search, self.parts))):
            return False
        differing = len(self.part_counts) / count
        if OF_IDS.search(self.name) and (differing > 0.5 or not are_enough):
            return True
        codes = [value for value in self.parts if CODE.fullmatch(value) and not DATE.fullmatch(value)]
        return are_enough and differing > 0.9 and len(codes) > 0.9 * count

    @functools.cached_property
    def is_flag(self) -> bool:
        """Whether its values are yes and no."""
        return {value.strip().casefold() for value in self.part_counts} <= FLAGS

    @functools.cached_property
    def repeats(self) -> bool:
        """Whether several items share most values."""
        return len(self.parts) - len(self.part_counts) >= max(1, 0.2 * len(self.parts))

    @property
    def is_property(self) -> bool:
        """Whether people ask for it: a price, or words that several items share."""
        return self.is_price or (self.repeats and not self._are_amounts)

    @property
    def is_filter(self) -> bool:
        """Whether the field is offered as a filter: few values that items share, or a range of numbers or dates."""
        if OPERATORS.search(self.name):  # such a name could not be told from its value in --filter=NAME=VALUE
            return False
        value_count = len(self.part_counts)
        has_range = self._are_amounts and value_count > FEW_NUMBERS and not self.is_id
        has_shared_values = self.repeats and value_count <= FEW and not self.is_text
        return has_range or has_shared_values
