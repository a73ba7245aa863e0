"""Contact sheets and galleries: order, any script, nothing that escapes its place."""

import base64
import html.parser
import io

import numpy as np
import pytest
from PIL import Image
from search_data import COLORS, ColorEmbedder, png, write_folder

from mural_tf.data.pictures import thumbnail
from mural_tf.search import build, collect, pages
from mural_tf.search.index import Index, take
from mural_tf.search.items import IMAGES, TEXTS, Item
from mural_tf.search.queries import Hit, Query, search


def test_contact_sheet_shows_the_thumbnails_in_order(tmp_path):
    hits = [Hit(1, 0.9, "red"), Hit(2, 0.5, "blue"), Hit(3, 0.1, "broken")]
    images = {"red": png((250, 0, 0)), "blue": png((0, 0, 250)), "broken": b"broken"}
    pages.write_contact_sheet(tmp_path / "sheet.png", "red", hits, images, columns=2)
    sheet = np.array(Image.open(tmp_path / "sheet.png"))
    red, blue = (np.argwhere((sheet == color).all(-1)) for color in ((250, 0, 0), (0, 0, 250)))
    # 8 x 6 fits into 180 x 180 as 180 x 135.
    assert len(red) == len(blue) == 180 * 135
    assert red[:, 1].max() < blue[:, 1].min() and red[:, 0].min() == blue[:, 0].min()
    assert sheet.shape[0] > red[:, 0].max() + pages.THUMBNAIL  # a second row for the third
    assert (sheet[: red[:, 0].min()] < 100).any()  # the title


SENTENCES = ["ein roter Ballon", "赤い風船", "नमस्ते दुनिया", "بالون أحمر", "လေပူဖောင်း", "🎈", "x" * 500, "a\x00b\n",
             "\udcff"]  # fmt: skip


@pytest.mark.parametrize("query", SENTENCES)
@pytest.mark.parametrize("fonts", ["installed", "none"])
def test_any_script_is_drawn(query, fonts, tmp_path, monkeypatch):
    if fonts == "none":
        monkeypatch.setattr(pages, "_installed_fonts", lambda: ())
    pages._font_for.cache_clear()
    hit = Hit(1, 0.5, f"{query}.png")
    note = pages.write_contact_sheet(tmp_path / "sheet.png", query, [hit], {hit.name: png((9, 9, 9))})
    pages._font_for.cache_clear()
    assert Image.open(tmp_path / "sheet.png").size[0] < 1000
    if fonts == "none" and query == "赤い風船":
        assert "赤" in note
    if query.isascii() and query.isprintable():
        assert note == ""


class Page(html.parser.HTMLParser):
    """The tags of a page with their attributes, and its text; fails on a tag that is closed wrongly."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._open = [], "", []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "link", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def index(tmp_path):
    folder = write_folder(tmp_path / "images")
    return build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(folder)]))


def gallery_of(index, *queries):
    return Page(pages.page_html(index, search(index, ColorEmbedder(), list(queries), 3)))


def test_gallery_shows_images_in_order_with_their_texts(index):
    page = gallery_of(index, Query("red", "en", right=("a/orange.PNG",)), Query("purple"))
    images = page.all("img")
    assert [image["alt"] for image in images[:3]] == ["red.png", "a/orange.PNG", "violet.png"] and len(images) == 6
    data = base64.b64decode(images[0]["src"].removeprefix("data:image/jpeg;base64,"))
    assert np.abs(np.array(Image.open(io.BytesIO(data))).astype(int) - [250, 0, 0]).max() < 8  # red.png as JPEG
    assert "First right answer: rank 2." in page.text and page.text.count("✓ right") == 1
    assert [item["class"] for item in page.all("li")] == ["other", "right", "other", "other", "other", "other"]
    outside = [value for _, a in page.tags for name, value in a.items() if name in ("src", "href")]
    assert all(value.startswith("data:") for value in outside) and not page.all("script")


@pytest.mark.parametrize("sentence", [*SENTENCES, "<script>alert(1)</script>\"'&", "</title><img src=x>"])
def test_gallery_holds_any_sentence(index, sentence):
    page = gallery_of(index, Query(sentence, "ar"))
    page_text = pages.page_html(index, search(index, ColorEmbedder(), [Query(sentence)], 3))
    page_text.encode("utf-8")
    assert len(page.all("img")) == 3 and not page.all("script")
    assert page.all("h2") == [{"class": "text", "dir": "auto", "lang": "ar"}]
    if sentence.isprintable():
        assert sentence in page.text


def test_language_codes_do_not_escape_their_attribute():
    assert pages.language_attribute("zh-Hant") == ' lang="zh-Hant"'
    for code in ('"><script>', "", "e", "en us", "en\n"):
        assert pages.language_attribute(code) == ""


def test_gallery_of_captions_says_what_is_seen(tmp_path):
    (tmp_path / "red.png").write_bytes(png((250, 0, 0)))
    items = [Item("1", str(tmp_path / "red.png"), captions=(("de", "ein roter Fleck"), ("en", "a red spot"))),
             Item("gone", str(tmp_path / "gone.png"))]  # fmt: skip
    vectors = np.array([[1, 0, 0], [0.8, 0.6, 0]], np.float32)
    page = gallery_of(Index(items, vectors, take(ColorEmbedder())), Query("rot", "de"), Query("red"))
    assert [(image["alt"], image["lang"]) for image in page.all("img")] == [("ein roter Fleck", "de"),
                                                                             ("a red spot", "en")]  # fmt: skip
    assert page.text.count("not available") == 2  # the image that is gone


def test_gallery_of_texts(tmp_path):
    (tmp_path / "texts.tsv").write_text("de\trot\nar\tأحمر\n", encoding="utf-8")
    index = build.index_in_memory(ColorEmbedder(), collect.find(TEXTS, [str(tmp_path / "texts.tsv")]), TEXTS)
    page = gallery_of(index, Query("red"))
    assert {"class": "text", "dir": "auto", "lang": "ar"} in page.all("p") and not page.all("img")


def test_thumbnails_are_small_upright_and_on_white():
    image = Image.new("RGBA", (2000, 1000), (255, 0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    buffer = io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    shown = Image.open(io.BytesIO(thumbnail(buffer.getvalue(), pages.SIDE)))
    assert shown.size == (120, 240) and shown.format == "JPEG" and np.array(shown).min() > 250
    for data in (b"", b"no image", png(COLORS["red.png"])[:45]):
        with pytest.raises(ValueError, match="empty|not an image|does not decode"):
            thumbnail(data, pages.SIDE)


def test_gallery_shows_the_image_that_was_asked_for(index):
    page = gallery_of(index, Query(image=index.describe(1).path))
    assert [image["alt"] for image in page.all("img")][:2] == ["The image that was asked for", "blue.png"]
