"""A product as customers see it: its number, the address where it is sold, whether it is sold out, its fields in words.

A table has columns for these, which shops name in many ways; they are found by their names. A product of several rows,
sizes for example, has the values of all rows, "36, 37, 38".
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from mural_search.items import Item, amount
from mural_search.results import ADDRESS

_LINKS = frozenset("link url permalink producturl productlink".split())
_NUMBERS = frozenset(
    "sku variantsku artikelnummer artikelnr artnr articlenumber articleno itemnumber productnumber productcode "
    "référence reference referencia riferimento codice codicearticolo ugs código indeks stokkodu 商品番号 品番 "
    "货号".split()
)
_STOCK = frozenset(
    "stock instock stockquantity stockqty stockstatus lagerbestand lager bestand auflager vorrätig inventory "
    "inventoryquantity variantinventoryqty quantity qty availability verfügbarkeit disponibilité enstock "
    "disponibilidad existencias inventario disponibilità giacenza magazzino stanmagazynowy dostępność estoque "
    "emestoque disponibilidade stok stokdurumu 在庫 在庫数 库存 المخزون".split()
)
_SOLD_OUT = frozenset(
    "no false nein outofstock soldout unavailable ausverkauft nichtvorrätig nichtverfügbar nichtauflager épuisé "
    "rupturedestock enrupturedestock agotado sinexistencias esaurito nondisponibile brak wyprzedane niedostępny "
    "esgotado foradeestoque tükendi stoktayok 在庫切れ 売り切れ 品切れ 缺货 售罄 نفد".split()
)
_CURRENCY = frozenset(
    "currency currencycode währung devise moneda valuta moeda waluta parabirimi 通貨 货币 العملة".split()
)
VARIATIONS = "variations"  # the field that a table of products gets, see `tables.products`
_PRICE = re.compile(r"price|preis|prix|precio|prezzo|preço|cena|fiyat|価格|价格|السعر", re.I)


def plain(name: str) -> str:
    """Returns the letters and digits of a name in lower case: "producturl" for "product_url" and "Product URL"."""
    return "".join(filter(str.isalnum, name.casefold()))


@dataclasses.dataclass(frozen=True)
class Product:
    """An item as the page shows it.

    Attributes:
      number: the number by which the shop knows it, "" if no field has it.
      link: the address where it is sold, http or https; "" without an address.
      is_sold_out: whether every field about its stock says so.
      fields: {name: value as the page writes it} of all fields that customers need.
    """

    number: str
    link: str
    is_sold_out: bool
    fields: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class ShopFields:
    """The fields of an index that have a meaning for customers.

    Attributes:
      link: the field of the products' addresses, "" without such a field.
      number: the field of the numbers by which the shop knows products, "" without such a field.
      currency: the field of the prices' currency, "" without such a field.
      stock: names of the fields about the stock.
      product: the field of the products' ids, see `Index.product`.
      group_marks: returns the marks of thousands in the numbers of a field, see `ItemTable.group_marks`.
    """

    link: str
    number: str
    currency: str
    stock: frozenset[str]
    product: str
    group_marks: Callable[[str], str]

    @classmethod
    def of(cls, names: Sequence[str], product: str, link: str, group_marks: Callable[[str], str]) -> ShopFields:
        """Returns the fields with a meaning among an index's fields, found by their names.

        Args:
          names: the names of the index's fields.
          product: the field of the products' ids.
          link: the field of the products' addresses; "": it is found as well.
          group_marks: returns the marks of thousands in the numbers of a field.
        """
        return cls(
            link=link or _first_field(names, _LINKS),
            number=_first_field(names, _NUMBERS),
            currency=_first_field(names, _CURRENCY),
            stock=frozenset(name for name in names if plain(name) in _STOCK),
            product=product,
            group_marks=group_marks,
        )

    def product_of(self, item: Item) -> Product:
        """Returns an item as the page shows it, without fields that have another place there or that nobody needs."""
        link = _first_value(item.fields.get(self.link, ""))
        if not ADDRESS.fullmatch(link):
            link = ""
        number = _first_value(item.fields.get(self.number, ""))
        stocks = [value for name, value in item.fields.items() if name in self.stock]
        is_sold_out = bool(stocks) and all(map(_is_none_left, stocks))
        hidden_names = {self.number, self.currency}  # the page shows their values in other places
        if number:
            hidden_names |= {self.product, VARIATIONS}  # the database's ids; people know the number
        if link:
            hidden_names.add(self.link)
        if is_sold_out:
            hidden_names |= self.stock
        currency = item.fields.get(self.currency, "")
        fields = {}
        for name, value in item.fields.items():
            words = self.in_words(name, value, currency, item.values(name))
            if words and name not in hidden_names:
                fields[name] = words
        return Product(number, link, is_sold_out, fields)

    def counts_stock(self, name: str, values: Iterable[str]) -> bool:
        """Whether a field has numbers of things in stock, by which no customer filters."""
        return name in self.stock and any(map(str.isdigit, "".join(values)))

    def in_words(self, name: str, value: str, currency: str = "", parts: Sequence[str] = ()) -> str:
        """Returns a field's value as the page writes it: "36 – 38" for the numbers of several rows, "19.90 EUR".

        Args:
          name: the field's name.
          value: the field's value, which joins the values of several rows: "36, 37, 38".
          currency: the currency of prices, or "".
          parts: the values of the rows, if there are several; a single cell "30, 20, 10" stays as it is.

        Returns:
          The words, "" for numbers of several rows of a stock.
        """
        amount_of = functools.partial(amount, groups=self.group_marks(name))
        are_numbers = len(parts) > 1 and None not in map(amount_of, parts)
        if are_numbers and name in self.stock:
            return ""  # rows with equal numbers were joined: their sum is not known
        if are_numbers:
            value = f"{min(parts, key=amount_of)} – {max(parts, key=amount_of)}"
        is_number = re.fullmatch(r"[\d.,\s–]+", value) is not None  # also "36 – 38"
        if currency and is_number and _PRICE.search(name):
            value = f"{value} {_first_value(currency)}"
        return value


def _first_field(names: Sequence[str], plain_names: frozenset[str]) -> str:
    """Returns the first field whose plain name is among some, "" without such a field."""
    for name in names:
        if plain(name) in plain_names:
            return name
    return ""


def _first_value(value: str) -> str:
    """Returns the value of a product's first row: "36" of "36, 37, 38"."""
    first, _, _ = value.partition(", ")
    return first.strip()


def _is_none_left(value: str) -> bool:
    """Whether a field about the stock says of each of its rows that nothing is left: "0, sold out"."""
    for part in value.split(", "):
        number = amount(part)
        if number is None:
            is_sold_out = plain(part) in _SOLD_OUT
        else:
            is_sold_out = number <= 0
        if not is_sold_out:
            return False
    return True
