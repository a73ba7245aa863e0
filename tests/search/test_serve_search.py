"""The search page beside the encoders: the page, answers, thumbnails, and what is asked wrongly."""

import contextlib
import functools
import io
import json
import os
import socket
import types

import numpy as np
import pytest
from PIL import Image
from running_app import ask as ask_server
from running_app import running
from search_data import ColorEmbedder, png, write_folder

from mural_tf.errors import UserError
from mural_tf.search import build, collect
from mural_tf.search import index as index_files
from mural_tf.search.items import IMAGES
from mural_tf.search.server import app
from mural_tf.search.server.app import create_app, serve
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.search_page import search_routes


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("pictures") / "images")
    lines = ["path\tcaption\tlanguage\tbrand", "red.png\ta red spot\ten\tacme", "blue.png\t\t\tacme", "violet.png",
             "a/orange.PNG"]  # fmt: skip
    (folder / "table.tsv").write_text("\n".join(lines))
    return build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(folder / "table.tsv")]))


LIMITS = Limits(max_request_bytes=10_000, max_bytes_in_flight=20_000, body_timeout=2.0)


@contextlib.contextmanager
def asking(index, **options):
    """Yields `ask(path, body)` → (status, JSON or bytes, headers) over the routes of an index alone."""
    app = create_app(types.SimpleNamespace(models={}), Limits(), search_routes(index, ColorEmbedder(), **options))
    with running(app) as server:
        yield functools.partial(ask_server, server.port)


@pytest.fixture(scope="module")
def ask(index):
    with asking(index, languages=["en", "fa"], limits=LIMITS) as ask:
        ask.port = ask.args[0]
        yield ask


def names(answer):
    status, found, _ = answer
    assert status == 200
    return [hit["name"] for hit in found["hits"]]


def test_the_page_offers_languages_and_fields_and_the_root_leads_to_it(ask):
    status, page, headers = ask("/search")
    assert (status, headers.get_content_type()) == (200, "text/html") and "{{" not in page.decode()
    assert b'value="fa"' in page and b">a red spot</button>" in page
    assert ask("/")[0] == 302


def test_a_sentence_finds_its_picture(ask):
    answer = ask("/search/answer?sentence=rot&k=2")
    assert names(answer) == ["red.png", "orange.PNG"]
    status, image, headers = ask(f"/search/thumbnail/{answer[1]['hits'][0]['row']}")
    assert (status, headers.get_content_type()) == (200, "image/jpeg")
    red, green, _ = Image.open(io.BytesIO(image)).convert("RGB").getpixel((2, 2))
    assert red > 200 and green < 50


def test_filters_and_rows_as_queries(ask):
    answer = ask("/search/answer?sentence=rot&filter=brand%3Dacme")
    assert names(answer) == ["red.png", "blue.png"] and answer[1]["matching"] == 2
    assert answer[1]["hits"][0]["fields"] == {"brand": "acme"} and answer[1]["hits"][0]["caption"] == "a red spot"
    row = answer[1]["hits"][1]["row"]
    assert names(ask(f"/search/answer?like={row}&k=2")) == ["violet.png", "red.png"]  # not itself
    assert names(ask("/search/answer?sentence=rot&filter=brand%3Dnone")) == []


def test_a_picture_is_a_query(ask):
    assert names(ask("/search/answer?k=2", png((0, 0, 200)))) == ["blue.png", "violet.png"]
    assert names(ask("/search/answer?filter=brand%3Dacme", png((200, 150, 0)))) == ["red.png", "blue.png"]


def test_pictures_that_are_none_or_too_much_or_do_not_come_are_refused(ask):
    huge = bytearray(png((0, 0, 0)))
    huge[16:24] = b"\0\0\x40\0" * 2  # 16,384 x 16,384, says its header
    for body, wanted in (
        (b"", 400),
        (b"no", 400),
        (png((0, 0, 200))[:45], 400),
        (bytes(huge), 400),
        (bytes(10_001), 413),
    ):
        status, answer, _ = ask("/search/answer", body)
        assert status == wanted and answer["error"]
    with socket.create_connection(("127.0.0.1", ask.port), timeout=30) as connection:
        connection.sendall(b"POST /search/answer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf")
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_larger_pictures_have_nothing_but_pixels(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    Image.new("RGB", (2000, 1000), (250, 0, 0)).save(tmp_path / "a.jpg", exif=exif)
    with asking(build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(tmp_path)]))) as ask:
        status, image, headers = ask("/search/picture/0")
        assert (status, headers.get_content_type()) == (200, "image/jpeg") and b"where I live" not in image
        assert Image.open(io.BytesIO(image)).size == (1600, 800)


def test_a_changed_index_is_served(tmp_path):
    folder = write_folder(tmp_path / "images")
    made = build.build_index(ColorEmbedder(), [str(folder)], tmp_path / "index")
    with asking(made, folder=tmp_path / "index") as ask:
        question = "/search/answer?sentence=rot&k=2"
        assert names(ask(question)) == ["red.png", "orange.PNG"]
        index_files.remove(tmp_path / "index", ["red.png"])
        assert names(ask(question)) == ["orange.PNG", "violet.png"]
        (folder / "green.png").write_bytes(png((220, 90, 0)))
        build.build_index(ColorEmbedder(), [str(folder)], tmp_path / "index", update=True)
        assert names(ask(question)) == ["red.png", "green.png"]
        (tmp_path / "index/items.sqlite").unlink()
        os.utime(tmp_path / "index/index.json")
        assert names(ask(question)) == ["red.png", "green.png"]  # the former one


WRONG = {
    400: ["/search/answer?sentence=red&k=many", "/search/answer?sentence=red&k=2000",
          "/search/answer?sentence=red&filter=brand", "/search/answer?sentence=red&filter=price%3Ccheap",
          "/search/answer?sentence=red&offset=-1", "/search/answer?sentence=red&offset=999", "/search/answer?k=1&k=2",
          "/search/answer?sentence=red&rank=best", "/search/answer?like=1&rank=words", "/search/answer?sentence=-red",
          "/search/answer?like=1&least_precision=0.5", "/search/answer?rank=words",
          "/search/answer?sentence=red&sort=colour", "/search/answer?language=%3Cb%3E", "/search/facets?k=1",
          "/search/answer?sentence=red&like=1", "/search/answer?like=99", "/search/answer?like=-1",
          "/search/answer?like=x", "/search/answer?like=1&k=" + "9" * 5000,
          "/search/answer?sentence=++", "/search/answer?sentence=red&k=0", "/search/answer?sentence=" + "x" * 2001],
    404: ["/search/picture/99", "/search/picture/..%2F..%2Fetc", "/search/thumbnail/99", "/search/thumbnail/-1",
          "/search/thumbnail/..%2F..%2Fetc"],
}  # fmt: skip


def test_wrong_questions_get_an_error(ask):
    for status, paths in WRONG.items():
        for path in paths:
            found, answer, _ = ask(path)
            assert found == status and answer["error"], path


def test_what_is_not_known_of_a_question_is_said(ask):
    answer = ask("/search/answer?sentence=red&page=2")[1]
    assert answer["error"].startswith("Nothing is known of 'page'; it takes sentence, like, k, offset, ")


def test_pages_and_everything_there_is(ask):
    first = names(ask("/search/answer?sentence=rot&rank=pictures&k=4"))
    second = ask("/search/answer?sentence=rot&rank=pictures&k=2&offset=2")
    assert names(second) == first[2:] and [hit["rank"] for hit in second[1]["hits"]] == [3, 4]
    assert second[1]["total"] == 4
    everything = ask("/search/answer?k=3&offset=1")
    assert names(everything) == ["blue.png", "violet.png", "orange.PNG"] and everything[1]["total"] == 4
    assert names(ask("/search/answer?filter=brand%3Dacme")) == ["red.png", "blue.png"]


def test_what_fits_nothing_says_what_to_relax(ask):
    answer = ask("/search/answer?sentence=rot&filter=brand%3Dacme&filter=price%3C5")[1]
    assert answer["matching"] == 0 and answer["relax"] == {"brand=acme": 0, "price<5": 2}
    assert ask("/search/facets")[1] == {"brand": {"values": {"acme": 2}}}


def test_the_page_offers_languages_not_pairs_of_them(tmp_path, monkeypatch):
    card = {"training_data": {"languages": ["cs-en", "de", "en", "en-fra", "pt-BR", "zh-Hant"]}}
    (tmp_path / "model_card.json").write_text(json.dumps(card))
    for name, replaced in (("load", str), ("search_routes", lambda *given, **options: given[2])):
        monkeypatch.setattr(app, name, replaced)
    found = app._search_routes(tmp_path, None, "index", None, app._listed_languages(tmp_path), Limits())
    assert found == ["cs", "de", "en", "fra", "pt-BR", "zh-Hant"]


def test_errors_name_no_place_of_the_machine(tmp_path):
    made = build.build_index(ColorEmbedder(), [str(write_folder(tmp_path / "images"))], tmp_path / "index")
    with asking(made) as ask:
        (tmp_path / "index/items.sqlite").write_bytes(b"damaged")
        status, answer, _ = ask("/search/answer?sentence=orange")
        assert status == 500 and str(tmp_path) not in answer["error"]


def test_an_index_of_another_model_is_refused(index, monkeypatch):
    monkeypatch.setattr(ColorEmbedder, "_color", lambda self, image: np.arange(1.0, 4.0))
    with pytest.raises(UserError, match="The index was made by the model"):
        search_routes(index, ColorEmbedder())


def test_a_damaged_model_card_or_index_is_named_before_models_are_loaded(index, tmp_path):
    for card in ("[]", "{", '{"training_data": 3}', '{"training_data": {"languages": [["en"]]}}'):
        (tmp_path / "model_card.json").write_text(card)
        with pytest.raises(UserError, match="model_card.json"):
            serve(tmp_path, index="index", port=0)
    (tmp_path / "model_card.json").write_text('{"training_data": {"languages": ["en"]}}')
    build.build_index(ColorEmbedder(), [str(write_folder(tmp_path / "images"))], tmp_path / "index")
    (tmp_path / "index/vectors.npy").write_bytes(b"no")
    with pytest.raises(UserError, match="vectors.npy is damaged"):
        serve(tmp_path, index=tmp_path / "index", port=0)
