"""What is shown of results: which fields, the lines of the terminal, and the page, from which nothing escapes."""

import base64
import dataclasses
import io
import pathlib

import numpy as np
import pytest
from page_reader import Page, assert_html
from PIL import Image
from search_data import COLOURS, ColorEmbedder, png, shop, write_folder

from mural_lite.fingerprint import Fingerprint, take_fingerprint
from mural_search import collect, fields
from mural_search.gallery import page_html
from mural_search.index import Index, index_in_memory
from mural_search.items import IMAGES, TEXTS, Item
from mural_search.queries import Hit, Query, Result, search
from mural_search.results import to_lines


def test_a_shop_of_twenty_columns_shows_five():
    chosen = fields.choose(shop())
    assert len(shop()[0].fields) == 20
    assert chosen.card == ("Weight (kg)", "Brand", "Colour", "Regular price", "Categories")
    assert chosen.filters == ("In stock?", "Stock", "Weight (kg)", "Brand", "Colour", "Regular price", "Categories")
    assert list(chosen.of(shop()[0])) == list(chosen.card)
    # Pictures of one product count once: otherwise an id, which they all share, would look like a property.
    items = [dataclasses.replace(item, name=f"{item.name}#{n}") for item in shop(30) for n in range(3)]
    assert "ID" not in fields.choose(items).card and fields.choose(items) == fields.choose(shop(30))


def test_who_makes_the_index_may_name_them():
    chosen = fields.choose(shop(), ["Description", "Brand", "gone", "Brand"])
    assert chosen == (("Description", "Brand"), ("Brand",))
    assert fields.choose(shop(), []) == ((), ())
    assert fields.choose([Item("a"), Item("b")]) == ((), ())


@pytest.mark.parametrize("values, on_card, is_filter", [
    (["acme", "bolt"] * 10, True, True),
    (["acme"] * 20, False, False),  # constant
    (["acme"] * 20 + ["bolt"], False, False),  # nearly
    (["new"] * 2 + [""] * 18, True, True),  # a badge that few have: no value is a value
    (["new"] + [""] * 39, False, False),
    (["5 EUR", *map(str, range(19))], False, False),  # sums of money have their currency all
    (["yes", "No"] * 10, False, True),  # a flag
    ([f"{n}" for n in range(20)], False, False),  # a number of rows
    ([f"A-{n}" for n in range(20)], False, False),  # a code
    ([f"red-shoe-{chr(97 + n)}" for n in range(20)], False, False),  # a part of an address
    ([f"{n}.90" for n in range(20)], True, True),  # a price without a currency
    ([f"{n + 5} EUR" for n in range(20)], True, True),
    ([f"2026-05-{n + 1}" for n in range(20)], True, True),
    ([f"Painter {chr(97 + n)}" for n in range(20)], True, False),  # many words
    (["a long sentence that says more than a card has room for"] * 10 + ["b" * 60] * 10, False, False),
    (["Safe to wash.", "Made of wood!", "Which one?"] * 5, False, False),
    (["No. 5", "etc.", "10 St."] * 5, True, True),
    ([f"https://a.example/{n % 3}" for n in range(21)], False, False),
    ([f"{n}.5" for n in range(8)], True, False), ([f"{n}.5" for n in range(9)], True, True),  # a range has nine
    ([str(n % 12) for n in range(36)], True, True),  # few numbers of several items each
])  # fmt: skip
def test_each_rule(values, on_card, is_filter):
    """An empty value is a field that the item does not have."""
    items = [Item(f"{n}", captions=(("en", f"thing {n}"),), fields={"x": v} if v else {}) for n, v in enumerate(values)]
    assert fields.choose(items) == (("x",) * on_card, ("x",) * is_filter)


def test_a_name_with_an_operator_is_not_offered_as_a_filter():
    """A filter "a=b=x" is of the field "a"."""
    for name in ("a=b", "Size <40"):
        items = [Item(f"{n}", fields={name: "xy"[n % 2]}) for n in range(20)]
        assert fields.choose(items) == ((name,), ())


@pytest.mark.parametrize("title, on_card", [
    ("{}", False), ("{}, new", False), ("Rotes Hemd", True), ("Acme", True),
])  # fmt: skip
def test_what_the_caption_says_is_not_said_again(title, on_card):
    said = [f"Acme {colour} shirt {n}" for n in range(4) for colour in COLOURS]
    values = [*((text, title.format(text)) for text in said), *((f"other {n}", f"some {n % 2}") for n in range(10))]
    items = [Item("", captions=(("en", text),), fields={"x": value}) for text, value in values]
    assert bool(fields.choose(items).card) == on_card


def test_ids_and_prices_by_name_and_of_many_the_five_that_differ_most():
    def chosen(name, values):
        return fields.choose([Item(f"{n}", fields={name: value}) for n, value in enumerate(values)]).card

    whole = [str(n * n) for n in range(20)]
    assert chosen("Preis", whole) == ("Preis",) and chosen("Size", whole) == ()
    words = [f"shoe {chr(97 + n)}" for n in range(20)]
    assert chosen("Handle", words) == () and chosen("handler", words) == ("handler",)
    assert chosen("country_code", ["DE", "FR"] * 10) == ("country_code",)  # of many items each: no id
    items = [Item(f"{n}", fields={f"f{k}": f"v {min(n % 12, k)}" for k in range(1, 9)}) for n in range(48)]
    assert fields.choose(items).card == ("f4", "f5", "f6", "f7", "f8")  # in which items differ most


def test_the_terminal_shows_what_a_card_does():
    known = [{"brand": "AB"[n % 2] * 40, "id": f"A-{n}"} for n in range(12)]
    items = [Item(f"{n}", captions=(("en", "x" * 100),), fields=fields) for n, fields in enumerate(known)]
    index = Index(items, np.tile(np.float32([[1, 0]]), (12, 1)), Fingerprint(np.ones((1, 2), np.float32)))
    hits = (Hit(1, 0.5, "0", 0, found_by={"pictures": 1, "words": 1}), Hit(2, 0.25, "1", 1, right=True, alike=2))
    lines = to_lines(index, Result(Query("asked"), hits))
    assert lines == [
        "'asked' in 12 images:",
        f"   1  +0.500  0  {'x' * 79}…  brand={'A' * 29}…  [words]",
        f"   2  +0.250  1  {'x' * 79}…  brand={'B' * 29}…  (and 2 alike)  (right)",
    ]
    assert to_lines(index, Result(Query("a", right=("z",)), hits[:1]))[-1] == "      none of the right answers"


@pytest.mark.parametrize("nothing_fits, said", [(True, " Nothing fits; the closest:"), (False, "")])
def test_that_nothing_fits_is_said_in_one_plain_line(nothing_fits, said):
    index = Index([Item("0")], np.ones((1, 1), np.float32), Fingerprint(np.ones((1, 1), np.float32)))
    result = Result(Query("a"), (Hit(1, 1.0, "0", 0),), nothing_fits=nothing_fits)
    assert to_lines(index, result)[0] == f"'a' in 1 images:{said}"
    page = page_html(index, [result])
    assert said[1:-1] in page and page.count("<p>") == 1 + bool(said)  # the last one is about the model


SENTENCES = ["ein roter Ballon", "赤い風船", "नमस्ते दुनिया", "بالون أحمر", "လေပူဖောင်း", "🎈", "x" * 500, "a\x00b\n",
             "\udcff", "<script>alert(1)</script>\"'&", "</title><img src=x>"]  # fmt: skip


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("images") / "images")
    return index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(folder)]))


def gallery_of(index, *queries):
    return Page(page_html(index, search(index, ColorEmbedder(), list(queries), 3)))


def test_gallery_shows_images_in_order_with_their_texts(index):
    page = gallery_of(index, Query("red", "en", right=("a/orange.PNG",)), Query("purple"))
    assert_html("gallery", page, folder=pathlib.Path(index.describe(2).path).parent, here=pathlib.Path.cwd())
    data = base64.b64decode(page.all("img")[0]["src"].removeprefix("data:image/jpeg;base64,"))
    assert np.abs(np.array(Image.open(io.BytesIO(data))).astype(int) - [250, 0, 0]).max() < 8  # red.png as JPEG
    by_image = gallery_of(index, Query(image=index.describe(1).path))
    words = dict(folder=pathlib.Path(index.describe(2).path).parent, here=pathlib.Path.cwd())
    assert_html("gallery_by_an_image", by_image, **words)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_gallery_holds_any_sentence(index, sentence):
    page = gallery_of(index, Query(sentence, 'ar"><i>'))
    assert len(page.all("img")) == 3 and not page.all("i")
    assert page.all("h2") == [{"class": "text", "dir": "auto", "lang": 'ar"><i>'}]
    shown = sentence.replace("\x00", "\ufffd").replace("\udcff", "?").strip()
    assert page.text.count(shown) == 2  # the title and a heading


def test_gallery_says_what_is_seen_and_links_addresses_alone(tmp_path):
    fields = {"brand": '<b>"acme"', "shop": "https://example.org/?a=1&b=2", "run": "javascript:alert(1)",
              "odd": 'https://example.org/"onclick="alert(1)'}  # fmt: skip
    (tmp_path / "red.png").write_bytes(png((250, 0, 0)))
    captions = (("de", "ein roter Fleck"), ("en", "a red spot"))
    items = [Item("1", f"{tmp_path}/red.png", -1, captions, fields=fields), Item("gone", f"{tmp_path}/gone.png")]
    vectors = np.array([[1, 0, 0], [0.8, 0.6, 0]], np.float32)
    page = gallery_of(Index(items, vectors, take_fingerprint(ColorEmbedder())), Query("rot", "de"), Query("red"))
    assert_html("gallery_of_fields", page, folder=tmp_path)
    assert not page.all("b")


def test_gallery_of_texts():
    items = [Item("rot", language="de"), Item("أحمر", language="ar")]
    made = Index(items, np.eye(2, 3, dtype=np.float32), take_fingerprint(ColorEmbedder()), TEXTS)
    assert_html("gallery_of_texts", gallery_of(made, Query("red")))
