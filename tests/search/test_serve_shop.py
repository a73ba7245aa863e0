"""The search page in a shop: links to products, hidden fields, languages, marked words, prices and what is sold out."""

import base64
import io
import os

import numpy as np
import pytest
from page_reader import Page, assert_page
from PIL import Image
from refusals import assert_refused
from running_app import ask as ask_server
from running_app import running
from search_data import ColorEmbedder, png, unit, with_captions

from mural_search import database
from mural_search.index import Index, sync, take_fingerprint
from mural_search.items import Item
from mural_search.server.app import create_app
from mural_search.server.hidden_fields import hide_fields
from mural_search.server.labels import LANGUAGES, Labels
from mural_search.server.routes import search_routes
from mural_search.server.served_index import ServedIndex
from mural_search.server.settings import PageSettings

SIZES = "38, 36, 37"
SECRET = {"Cost": "7771.55", "Supplier": "Quixotl"}


def products(folder):
    """Twelve pictures of six products, two of each; half of the products are sold out."""
    items = []
    for n in range(12):
        number = n // 2
        path = folder / f"{n}.png"
        path.write_bytes(png((250 - 20 * n, 0, 20 * n)))
        link = "javascript:alert(1)" if number == 5 else f"https://shop.example/p?a={number}&b"
        values = {
            "ID": f"{3000 + number}", "SKU": f"W-{number}", "Price": f"{10 + number}.90", "Currency": "EUR",
            "Size": SIZES, "Stock": "0, 0" if number % 2 else "37, 2, 0", "Permalink": link,
            "variations": f"VAR-{number}", **SECRET,
        }  # fmt: skip
        name = f"{3000 + number}" + "#2" * (n % 2)
        several = {"Size": tuple(SIZES.split(", ")), "Stock": tuple(dict.fromkeys(values["Stock"].split(", ")))}
        captions = (("en", f"red & <b>shoe</b> {number}"),)
        items.append(Item(name, str(path), captions=captions, fields=values, several=several))
    return items


def shop_index(folder):
    vectors = unit(np.random.default_rng(0).normal(size=(12, 3)))
    vectors[1] = vectors[0]  # a product may have the same picture twice
    index = Index(products(folder), vectors, take_fingerprint(ColorEmbedder()))
    with_captions(index, ColorEmbedder())
    index.product = index.table.meta["product"] = "ID"
    return index


def served(index, **settings):
    """The running server of a page, as a context."""
    return running(create_app(search_routes(index, ColorEmbedder(), PageSettings(**settings))))


def page_of(server, path, **headers):
    status, source, headers = ask_server(server.port, path, headers=headers)
    assert status == 200, source
    return Page(source.decode(), is_served=True), headers


ROUTES = [
    "/search", "/search?sentence=red", "/search?like=0", "/search?item=0", "/search/answer?facets=1",
    "/search/answer?sentence=red", "/search/answer?like=0", "/search/answer?filter=SKU%3DW-1",
]  # fmt: skip


def test_hidden_fields_are_nowhere(tmp_path):
    """Also not among the words that are searched: 7771.55 would find the products that cost this."""
    with served(shop_index(tmp_path), hide=("Cost", "Supplier")) as server:
        for path in ROUTES:
            answer = str(ask_server(server.port, path)[1])
            assert not [text for text in (*SECRET, *SECRET.values()) if text in answer], path
        assert not page_of(server, "/search?sentence=Quixotl")[0].all("mark")
        for text, lacking in (("Quixotl", True), ("7771.55", True), ("W-3", False)):
            hits = ask_server(server.port, f"/search/answer?sentence={text}&rank=words")[1]["hits"]
            assert (hits == []) == lacking, text
        assert len(ask_server(server.port, "/search/answer?sentence=red+-Quixotl")[1]["hits"]) == 6
        # Questions by a hidden field are answered as for one that does not exist.
        for name in ("Cost", "Nowhere"):
            found = ask_server(server.port, f"/search/answer?filter={name}%3D7771.55")[1]
            assert found["matching"] == 0 and found["hits"] == []
            assert f"No item has a field “{name}”." in page_of(server, f"/search?filter={name}%3C99")[0].text
            status, answer, _ = ask_server(server.port, f"/search/answer?sort={name}")
            assert (
                status == 400 and answer["error"] == f"sort={name}: no item has numbers or dates in a field '{name}'."
            )
    with served(shop_index(tmp_path)) as server:
        assert "Quixotl" in str(ask_server(server.port, "/search?item=0")[1])
    for flags, words in (
        ({"hide": ("Kost",)}, ["--hide=Kost: no item has this field; the fields are ID, SKU, Price"]),
        ({"link": "Kost"}, ["--link=Kost: no item has this field; the fields are ID"]),
        ({"hide": ("Permalink",), "link": "Permalink"}, ["--link=Permalink is hidden by --hide"]),
    ):
        assert_refused(
            lambda given=flags: search_routes(shop_index(tmp_path), ColorEmbedder(), PageSettings(**given)), words
        )


def test_the_number_of_the_database_can_be_hidden_and_products_stay_together(tmp_path):
    with served(shop_index(tmp_path), hide=("ID",)) as server:
        hits = ask_server(server.port, "/search/answer?sentence=red")[1]["hits"]
        assert len(hits) == 6 and {hit["name"] for hit in hits} == {""}
        assert [hit["number"] for hit in hits] == [hit["fields"]["SKU"] for hit in hits]
        assert ask_server(server.port, "/search/answer?sentence=3004&rank=words")[1]["hits"] == []
        for path in ROUTES:  # the numbers of a product's sizes
            assert "VAR-" not in str(ask_server(server.port, path)[1]), path


def test_a_hidden_column_with_a_new_name_is_not_shown(tmp_path, caplog):
    def write(name):
        for n in range(3):
            yield Item(f"p{n}", captions=(("en", f"shoe {n}"),), fields={name: "7.55"}, digest=name), png((n, 0, 9))

    index = sync(tmp_path / "index", ColorEmbedder(), write("cost"))
    served_index = ServedIndex(index, ColorEmbedder(), PageSettings(hide=("cost",)), tmp_path / "index")
    sync(tmp_path / "index", ColorEmbedder(), write("Cost"))
    served_index.refresh()
    assert served_index.index is index and not served_index.index.describe(0).fields
    assert "--hide=cost: no item has this field; the fields are Cost" in caplog.text


def test_hidden_fields_of_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    (tmp_path / "index").mkdir()
    connection = database.make(tmp_path / "index" / database.NAME)
    for n, item in enumerate(products(tmp_path)):
        database.put(connection, b"%d" % n, item)
    connection.close()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    table = database.ItemTable(tmp_path / "index" / database.NAME)
    hide_fields(table, ["Cost"])
    assert "Cost" not in table[0].fields and list(table.field_names())[:2] == ["ID", "SKU"]
    assert not len(table.with_words("7771.55")) and len(table.with_words("Quixotl")) == 12


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_pages_of_a_shop(tmp_path, language):
    """A hit leads to the product, and to nothing else: the last product's link is not an address."""
    with served(shop_index(tmp_path), language=language, title="Laden") as server:
        for name, path in {"answer": "/search?sentence=red&sort=Price", "item": "/search?item=0"}.items():
            assert_page(f"shop_{name}_{language}", ask_server(server.port, path))


def test_like_this_has_each_product_once(tmp_path):
    index = shop_index(tmp_path)
    with served(index) as server:
        for row in range(12):
            answer = ask_server(server.port, f"/search/answer?like={row}")[1]
            numbers = [hit["number"] for hit in answer["hits"]]
            assert sorted([*numbers, f"W-{row // 2}"]) == [f"W-{n}" for n in range(6)] and answer["total"] == 5


def test_the_start_page_has_each_product_once(tmp_path):
    with served(shop_index(tmp_path)) as server:
        answer = ask_server(server.port, "/search/answer?k=2&offset=1&sort=-Price")[1]
        assert [(hit["number"], hit["alike"], hit["rank"]) for hit in answer["hits"]] == [("W-4", 1, 2), ("W-3", 1, 3)]
        assert (answer["matching"], answer["total"]) == (12, 6)
        answer = ask_server(server.port, "/search/answer?filter=Price%3C12")[1]
        assert [hit["row"] for hit in answer["hits"]] == [0, 2] and answer["total"] == 2


def test_the_page_speaks_the_browsers_language(tmp_path):
    with served(shop_index(tmp_path)) as server:
        for language in LANGUAGES:
            for path in ("/search?sentence=red", "/search?item=0"):
                page, headers = page_of(server, path, **{"Accept-Language": f"sw, {language};q=0.7, en;q=0.1"})
                (root,) = page.all("html")
                assert root == {"lang": language, "dir": "rtl" if language == "ar" else "ltr"}
                assert headers["Vary"] == "Accept-Language" and str(Labels(language)("like_this")) in page.text
        assert page_of(server, "/search")[0].all("html") == [{"lang": "en", "dir": "ltr"}]
    with served(shop_index(tmp_path), language="de") as server:
        page, _ = page_of(server, "/search?sentence=red", **{"Accept-Language": "fr"})
        assert page.all("html")[0]["lang"] == "de"
    assert_refused(lambda: PageSettings(language="klingon"), ["--language=klingon: the page speaks en, de, fr"])


def test_marks_on_the_page_are_escaped(tmp_path):
    with served(shop_index(tmp_path)) as server:
        page, _ = page_of(server, "/search?sentence=red+%3Cb%3E")
        assert "<mark>red</mark> &amp; <mark>&lt;b&gt;shoe&lt;</mark>/b&gt;" in page.source and not page.all("b")


def test_a_logo_is_a_small_picture_without_metadata(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    Image.new("RGB", (2000, 500), (9, 9, 200)).save(tmp_path / "logo.jpg", exif=exif)
    address = PageSettings(logo=str(tmp_path / "logo.jpg")).logo_address()
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    assert Image.open(io.BytesIO(data)).size == (384, 96) and b"where" not in data
    with served(shop_index(tmp_path), logo=str(tmp_path / "logo.jpg")) as server:
        assert address in page_of(server, "/search?item=0")[0].source
    (tmp_path / "large.png").write_bytes(bytes(2**20 + 1))
    (tmp_path / "no.png").write_text("<svg onload=alert(1)>")
    for name, words in (("large.png", "more than 1,048,576 bytes"), ("no.png", "cannot be used"), ("gone", "No such")):
        assert_refused(PageSettings(logo=str(tmp_path / name)).logo_address, ["--logo=", words])
