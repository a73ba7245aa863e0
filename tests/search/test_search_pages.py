"""The page of what was found: order, any script, nothing that escapes its place."""

import base64
import io
import pathlib

import numpy as np
import pytest
from page_reader import Page
from PIL import Image
from search_data import ColorEmbedder, png, write_folder

from mural_tf.search import collect
from mural_tf.search.index import Index, index_in_memory, take_fingerprint
from mural_tf.search.items import IMAGES, TEXTS, Item
from mural_tf.search.queries import Query, page_html, search

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
    images = page.all("img")
    assert [image["alt"] for image in images[:3]] == ["red.png", "a/orange.PNG", "violet.png"] and len(images) == 6
    data = base64.b64decode(images[0]["src"].removeprefix("data:image/jpeg;base64,"))
    assert np.abs(np.array(Image.open(io.BytesIO(data))).astype(int) - [250, 0, 0]).max() < 8  # red.png as JPEG
    assert "The expected answer is number 2." in page.text and page.text.count("✓ expected") == 1
    assert [item["class"] for item in page.all("li")] == ["other", "right", "other", "other", "other", "other"]
    files = [pathlib.Path(index.describe(row).path).as_uri() for row in (2, 0)]
    assert [link["href"] for link in page.all("a")][:2] == files


@pytest.mark.parametrize("sentence", SENTENCES)
def test_gallery_holds_any_sentence(index, sentence):
    page = gallery_of(index, Query(sentence, 'ar"><i>'))
    assert len(page.all("img")) == 3 and not page.all("i")
    assert page.all("h2") == [{"class": "text", "dir": "auto", "lang": 'ar"><i>'}]
    shown = sentence.replace("\x00", "\ufffd").replace("\udcff", "?").strip()
    assert page.text.count(shown) == 2  # the title and a heading


def test_gallery_of_captions_says_what_is_seen(tmp_path):
    (tmp_path / "red.png").write_bytes(png((250, 0, 0)))
    items = [Item("1", str(tmp_path / "red.png"), captions=(("de", "ein roter Fleck"), ("en", "a red spot"))),
             Item("gone", str(tmp_path / "gone.png"))]  # fmt: skip
    vectors = np.array([[1, 0, 0], [0.8, 0.6, 0]], np.float32)
    page = gallery_of(Index(items, vectors, take_fingerprint(ColorEmbedder())), Query("rot", "de"), Query("red"))
    shown = [(image["alt"], image["lang"]) for image in page.all("img")]
    assert shown == [("ein roter Fleck", "de"), ("a red spot", "en")]
    assert page.text.count("not available") == 2  # the image that is gone


def test_gallery_shows_fields_and_links_addresses_alone(tmp_path):
    fields = {"brand": '<b>"acme"', "shop": "https://example.org/?a=1&b=2", "run": "javascript:alert(1)",
              "odd": 'https://example.org/"onclick="alert(1)'}  # fmt: skip
    (tmp_path / "red.png").write_bytes(png((250, 0, 0)))
    item = Item("red", f"{tmp_path}/red.png", 0, fields=fields)  # in a file of records: no link
    page = gallery_of(Index([item], np.eye(1, 3, dtype=np.float32), take_fingerprint(ColorEmbedder())), Query("red"))
    assert page.all("a") == [{"href": fields["shop"], "rel": "noopener noreferrer"}] and not page.all("b")
    for text in ('brand: <b>"acme"', "shop", "run: javascript:alert(1)", f"odd: {fields['odd']}"):
        assert text in page.text


def test_gallery_of_texts(tmp_path):
    (tmp_path / "texts.tsv").write_text("de\trot\nar\tأحمر\n", encoding="utf-8")
    index = index_in_memory(ColorEmbedder(), collect.find(TEXTS, [str(tmp_path / "texts.tsv")]), TEXTS)
    page = gallery_of(index, Query("red"))
    assert {"class": "text", "dir": "auto", "lang": "ar"} in page.all("p") and not page.all("img")


def test_gallery_shows_the_image_that_was_asked_for(index):
    page = gallery_of(index, Query(image=index.describe(1).path))
    assert [image["alt"] for image in page.all("img")][:2] == ["The image that was asked for", "blue.png"]
