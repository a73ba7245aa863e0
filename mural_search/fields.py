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

ON_CARD = 5  # fields of a card at most
MOST_FILTERS = 8  # fields that are offered as filters at most
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
    """The names of the fields on a card, and of the fields that are offered as filters, in the order of the table."""

    card: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()

    def of(self, item: Item) -> dict[str, str]:
        """Returns {name: value} of the fields that an item's card shows."""
        return {name: item.fields[name] for name in self.card if name in item.fields}


@functools.lru_cache(maxsize=1)
def of_index(index) -> Fields:
    """Returns the fields that an index shows: named when it was made, or chosen; the last index's are remembered."""
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
    items = _different_items(table)
    columns = _columns(items)
    if wanted is not None:
        card = [name for name in dict.fromkeys(wanted) if name in columns]
        filters = [name for name in card if columns[name].is_filter]
        return Fields(tuple(card), tuple(filters))
    count = len(items)

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


def _different_items(table: ItemTable | Sequence[Item]) -> list[Item]:
    """Returns the items of an even sample of a table, each with other fields and captions.

    All pictures of a product have its fields, which count once.
    """
    rows = np.linspace(0, len(table) - 1, min(len(table), LOOKED_AT), dtype=np.int64).tolist()
    if isinstance(table, ItemTable):
        items = table.at(rows)
    else:
        items = [table[row] for row in rows]
    item_of_product = {}
    for item in items:
        product = tuple(item.fields.items()), item.captions or item.name
        item_of_product.setdefault(product, item)
    return list(item_of_product.values())


def _columns(items: Sequence[Item]) -> dict[str, _Column]:
    """Returns {name of a field: its `_Column`} of all fields that the items have, in the order of the table."""
    columns: dict[str, _Column] = {}
    for item in items:
        captions = [_letters(text) for _, text in item.captions] or [_letters(item.name)]
        for name, value in item.fields.items():
            column = columns.setdefault(name, _Column(name))
            column.values.append(value)
            column.parts += item.values(name)
            if any(_repeats(_letters(value), caption) for caption in captions):
                column.repeated_captions += 1
    return columns


def _letters(text: str) -> str:
    """Returns the letters and digits of a text in lower case."""
    return "".join(filter(str.isalnum, text.casefold()))


def _repeats(value: str, caption: str) -> bool:
    """Whether a value holds a caption, or more than half of it, both as `_letters`; a brand in a title is less."""
    if not caption:
        return False
    return caption in value or (value in caption and 2 * len(value) > len(caption))


class _Column:
    """The values of one field in the items that have it.

    Attributes:
      values: a text per item, which joins the item's values.
      parts: all values of all items, one by one.
      repeated_captions: number of items whose value repeats a caption.
    """

    def __init__(self, name: str):
        self.name = name
        self.values: list[str] = []
        self.parts: list[str] = []
        self.repeated_captions = 0

    @functools.cached_property
    def counts(self) -> Mapping[str, int]:
        """{value: number of items that have it}, where several values of an item are joined."""
        return collections.Counter(self.values)

    @functools.cached_property
    def part_counts(self) -> Mapping[str, int]:
        """{value: number of items that have it}, where several values of an item count one by one."""
        return collections.Counter(self.parts)

    def difference(self, count: int) -> float:
        """Returns the probability that two of `count` items differ in this field; a missing value is a value, too."""
        shares = np.array([*self.counts.values(), count - len(self.values)]) / count
        return float(1.0 - np.sum(shares**2))

    def is_useless(self, count: int) -> bool:
        """Whether the field of `count` items would tell a customer nothing: it is dull, a text, or an id."""
        return self.is_dull(count) or self.is_text or self.is_id

    def is_dull(self, count: int) -> bool:
        """Whether nearly all of `count` items have the same value, or have no value."""
        most_frequent = max(*self.counts.values(), count - len(self.values))
        return count - most_frequent < max(1, FEWEST * count)

    @functools.cached_property
    def is_text(self) -> bool:
        """Whether values are long on average, or most of them are sentences, addresses, or repeat a caption."""
        addresses = sum(bool(ADDRESS.match(value)) for value in self.values)
        sentences = sum(value.rstrip().endswith(ENDS) and " " in value for value in self.values)
        length = sum(map(len, self.values)) / len(self.values)
        return length > LONG or 2 * max(addresses, sentences, self.repeated_captions) > len(self.values)

    @functools.cached_property
    def is_price(self) -> bool:
        """Whether all values are numbers or dates, and the field's name or a currency in each speaks of money."""
        is_of_money = OF_PRICES.search(self.name) or all(map(CURRENCY.search, self.values))
        return bool(is_of_money) and self._are_amounts

    @functools.cached_property
    def _are_amounts(self) -> bool:
        """Whether all values are numbers or dates."""
        return all(amount(value) is not None for value in self.part_counts)

    @functools.cached_property
    def is_id(self) -> bool:
        """Whether the field identifies items: by its name, or because nearly all values differ and look like codes."""
        count = len(self.parts)
        are_enough = count >= ENOUGH
        if self.is_price or (are_enough and all(map(DECIMALS.search, self.parts))):  # "19.90": prices or measures
            return False
        different_share = len(self.part_counts) / count
        if OF_IDS.search(self.name) and (different_share > 0.5 or not are_enough):  # a "color code" repeats
            return True
        codes = [value for value in self.parts if CODE.fullmatch(value) and not DATE.fullmatch(value)]
        return are_enough and different_share > 0.9 and len(codes) > 0.9 * count  # nearly all

    @functools.cached_property
    def is_flag(self) -> bool:
        """Whether all values mean yes or no."""
        return {value.strip().casefold() for value in self.part_counts} <= FLAGS

    @functools.cached_property
    def has_shared_values(self) -> bool:
        """Whether a fifth of the values, and at least one, only repeat another item's value."""
        return len(self.parts) - len(self.part_counts) >= max(1, 0.2 * len(self.parts))

    @property
    def is_property(self) -> bool:
        """Whether customers ask for the field: it is a price, or holds words that several items share."""
        return self.is_price or (self.has_shared_values and not self._are_amounts)

    @property
    def is_filter(self) -> bool:
        """Whether the field is offered as a filter: few values that items share, or a range of numbers or dates."""
        if OPERATORS.search(self.name):  # such a name could not be told from its value in --filter=NAME=VALUE
            return False
        value_count = len(self.part_counts)
        is_range = self._are_amounts and value_count > FEW_NUMBERS and not self.is_id
        is_list = self.has_shared_values and value_count <= FEW and not self.is_text
        return is_range or is_list
