"""A product as customers see it: its number, the address where it is sold, whether it is sold out, its fields in words.

A table has columns for these, which shops name in many ways; they are found by their names. A product of several rows,
sizes for example, has the values of all rows, "36, 37, 38".
"""

from __future__ import annotations

import dataclasses
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
    """Returns the letters and digits of a name in lower case: "product_url" is "Product URL"."""
    return "".join(filter(str.isalnum, name.casefold()))


@dataclasses.dataclass(frozen=True)
class Product:
    """An item as the page shows it.

    Attributes:
      number: the number by which the shop knows it, "" if no field has it.
      link: the address where it is sold, http or https; "" without an address.
      is_sold_out: whether every field about its stock says so.
      fields: {name: value as the page writes it}, all fields that customers need.
    """

    number: str
    link: str
    is_sold_out: bool
    fields: Mapping[str, str]


def _usual_marks(name: str) -> str:
    """Returns the marks of thousands of a field of which nothing is known."""
    return ","


@dataclasses.dataclass(frozen=True)
class ShopFields:
    """Which fields of an index say what.

    Attributes:
      link, number, currency: names of fields, "" without such a field.
      stock: names of the fields about the stock.
      product: the field of the products' ids, see `Index.product`.
      group_marks: returns a field's marks of thousands, see `ItemTable.group_marks`.
    """

    link: str = ""
    number: str = ""
    currency: str = ""
    stock: frozenset[str] = frozenset()
    product: str = ""
    group_marks: Callable[[str], str] = _usual_marks

    @classmethod
    def of(
        cls, names: Iterable[str], product: str = "", link: str = "", group_marks: Callable[[str], str] = _usual_marks
    ) -> ShopFields:
        """Returns which of the fields `names` say what; `link` names the field of the address, "": it is found, too."""
        names = list(names)

        def first(wanted: frozenset[str]) -> str:
            return next((name for name in names if plain(name) in wanted), "")

        stock = frozenset(name for name in names if plain(name) in _STOCK)
        return cls(link or first(_LINKS), first(_NUMBERS), first(_CURRENCY), stock, product, group_marks)

    def product_of(self, item: Item) -> Product:
        """Returns an item as the page shows it."""
        link = _first(item.fields.get(self.link, ""))
        if not ADDRESS.fullmatch(link):
            link = ""
        number = _first(item.fields.get(self.number, ""))
        stocks = [value for name, value in item.fields.items() if name in self.stock]
        is_sold_out = bool(stocks) and all(map(_is_none_left, stocks))
        currency = item.fields.get(self.currency, "")
        fields = {}
        for name, value in item.fields.items():
            is_id = bool(number) and name in (self.product, VARIATIONS)  # the database's id; people know the number
            is_shown_otherwise = (name == self.link and link) or (name in self.stock and is_sold_out)
            words = self.in_words(name, value, currency, item.values(name))
            if words and name not in (self.number, self.currency) and not is_id and not is_shown_otherwise:
                fields[name] = words
        return Product(number, link, is_sold_out, fields)

    def counts_stock(self, name: str, values: Iterable[str]) -> bool:
        """Whether a field has numbers of things in stock, by which no customer filters."""
        return name in self.stock and any(char.isdigit() for value in values for char in value)

    def in_words(self, name: str, value: str, currency: str = "", parts: Sequence[str] = ()) -> str:
        """Returns a field's value: numbers of several rows as a range, of a stock as "", a price with its currency.

        `parts`: the values of the rows, if there are several; a cell "30, 20, 10" is a value, and stays as it is.
        """
        marks = self.group_marks(name)
        amounts = [amount(part, marks) for part in parts]
        if len(parts) > 1 and None not in amounts:
            if name in self.stock:
                return ""  # rows with equal numbers were joined: their sum is not known
            least = parts[amounts.index(min(amounts))]
            most = parts[amounts.index(max(amounts))]
            value = f"{least} – {most}"
        is_number = re.fullmatch(r"[\d.,\s–]+", value) is not None
        if currency and is_number and _PRICE.search(name):
            value = f"{value} {_first(currency)}"
        return value


def _first(value: str) -> str:
    """Returns the value of a product's first row."""
    first, _, _ = value.partition(", ")
    return first.strip()


def _is_none_left(value: str) -> bool:
    """Whether a field about the stock says of all rows that nothing is left."""
    for part in value.split(", "):
        number = amount(part)
        if number is None:
            is_none = plain(part) in _SOLD_OUT
        else:
            is_none = number <= 0
        if not is_none:
            return False
    return True
