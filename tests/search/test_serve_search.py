"""The search page beside the encoders: the page, answers, thumbnails, and what is asked wrongly."""

import contextlib
import dataclasses
import http.client
import io
import json
import os
import shutil
import socket

import pytest
from aiohttp import web
from PIL import Image
from running_app import running
from search_data import ColorEmbedder, png, write_folder

from mural_tf.errors import UserError
from mural_tf.search import build, changes, collect
from mural_tf.search.items import IMAGES
from mural_tf.search.server.app import app_of_models, serve
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.search_page import search_routes


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("pictures") / "images")
    lines = ["path\tcaption\tlanguage\tbrand", "red.png\ta red spot\ten\tacme", "blue.png\t\t\tacme", "violet.png",
             "a/orange.PNG"]  # fmt: skip
    (folder / "table.tsv").write_text("\n".join(lines))
    return build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(folder / "table.tsv")]))


LIMITS = Limits(max_request_bytes=10_000, max_bytes_in_flight=20_000, body_timeout=2)


@contextlib.contextmanager
def asking(app):
    with running(app) as server:

        def ask(path, body=None):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.request("GET" if body is None else "POST", path, body)
            response = connection.getresponse()
            return response.status, response.headers.get_content_type(), response.read()

        yield ask


@pytest.fixture(scope="module")
def ask(index):
    routes = search_routes(index, ColorEmbedder(), ["en", "fa"], limits=LIMITS)
    with asking(app_of_models([], Limits(), routes)) as ask:
        yield ask


def names(body):
    return [hit["name"] for hit in json.loads(body)["hits"]]


def test_the_page_offers_the_languages(ask):
    status, kind, page = ask("/search")
    assert (status, kind) == (200, "text/html") and b'value="fa"' in page and "{{" not in page.decode()


def test_a_sentence_finds_its_picture(ask):
    status, kind, body = ask("/search/answer?sentence=rot&k=2")
    assert (status, kind) == (200, "application/json")
    assert [hit["name"] for hit in json.loads(body)["hits"]] == ["red.png", "orange.PNG"]
    row = json.loads(body)["hits"][0]["row"]
    status, kind, image = ask(f"/search/thumbnail/{row}")
    assert (status, kind) == (200, "image/jpeg")
    red, green, _ = Image.open(io.BytesIO(image)).convert("RGB").getpixel((2, 2))
    assert red > 200 and green < 50


def test_the_root_leads_to_the_page(ask):
    assert ask("/")[0] == 302 and b'<option value="brand=acme">' in ask("/search")[2]


def test_filters_and_rows_as_queries(ask):
    status, _, body = ask("/search/answer?sentence=rot&filter=brand%3Dacme")
    assert status == 200 and names(body) == ["red.png", "blue.png"] and json.loads(body)["matching"] == 2
    assert json.loads(body)["hits"][0]["fields"] == {"brand": "acme"}
    assert json.loads(body)["hits"][0]["caption"] == "a red spot"
    row = json.loads(body)["hits"][1]["row"]
    _, _, body = ask(f"/search/answer?like={row}&k=2")
    assert names(body) == ["violet.png", "red.png"]  # not itself
    assert names(ask("/search/answer?sentence=rot&filter=brand%3Dnone")[2]) == []


def test_a_picture_is_a_query(ask):
    status, _, body = ask("/search/answer?k=2", png((0, 0, 200)))
    assert status == 200 and names(body) == ["blue.png", "violet.png"]
    assert names(ask("/search/answer?filter=brand%3Dacme", png((200, 150, 0)))[2]) == ["red.png", "blue.png"]


def test_pictures_that_are_none_or_too_much_are_refused(ask):
    for body in (b"", b"no picture", png((0, 0, 200))[:45]):
        status, _, answer = ask("/search/answer", body)
        assert status == 400 and json.loads(answer)["error"]
    assert ask("/search/answer", bytes(10_001))[0] == 413
    huge = bytearray(png((0, 0, 0)))
    huge[16:24] = b"\0\0\x40\0" * 2  # 16,384 x 16,384, says its header
    assert ask("/search/answer", bytes(huge))[0] == 400


def test_a_body_that_does_not_come_is_not_waited_for(index):
    app = web.Application()
    app.add_routes(search_routes(index, ColorEmbedder(), limits=dataclasses.replace(LIMITS, body_timeout=0.2)))
    with running(app) as server, socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"POST /search/answer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf")
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_larger_pictures_have_nothing_but_pixels(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    Image.new("RGB", (2000, 1000), (250, 0, 0)).save(tmp_path / "a.jpg", exif=exif)
    made = build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(tmp_path)]))
    app = web.Application()
    app.add_routes(search_routes(made, ColorEmbedder()))
    with asking(app) as ask:
        status, kind, image = ask("/search/picture/0")
        assert (status, kind) == (200, "image/jpeg") and b"where I live" not in image
        assert Image.open(io.BytesIO(image)).size == (1600, 800)


def test_a_changed_index_is_served(tmp_path):
    folder = write_folder(tmp_path / "images")
    made = build.build_index(ColorEmbedder(), [str(folder)], tmp_path / "index")
    app = web.Application()
    app.add_routes(search_routes(made, ColorEmbedder(), folder=tmp_path / "index"))
    with asking(app) as ask:
        question = "/search/answer?sentence=rot&k=2"
        assert names(ask(question)[2]) == ["red.png", "orange.PNG"]
        changes.remove(tmp_path / "index", ["red.png"])
        assert names(ask(question)[2]) == ["orange.PNG", "violet.png"]
        (folder / "green.png").write_bytes(png((220, 90, 0)))
        build.build_index(ColorEmbedder(), [str(folder)], tmp_path / "index", update=True)
        assert names(ask(question)[2]) == ["red.png", "green.png"]
        (tmp_path / "index/items.sqlite").unlink()
        os.utime(tmp_path / "index/index.json")
        assert names(ask(question)[2]) == ["red.png", "green.png"]  # the former one


@pytest.mark.parametrize("path, status", [
    ("/search/answer", 400), ("/search/answer?sentence=red&k=many", 400), ("/search/answer?sentence=red&k=2000", 400),
    ("/search/answer?sentence=red&filter=brand", 400), ("/search/answer?like=99", 400), ("/search/answer?like=-1", 400),
    ("/search/answer?like=x", 400), ("/search/answer?like=1&k=" + "9" * 5000, 400), ("/search/picture/99", 404),
    ("/search/picture/..%2F..%2Fetc", 404), ("/search/thumbnail/99", 404),
    ("/search/thumbnail/..%2F..%2Fetc", 404), ("/search/thumbnail/-1", 404),
])  # fmt: skip
def test_wrong_questions_get_an_error(ask, path, status):
    answer, kind, body = ask(path)
    assert (answer, kind) == (status, "application/json") and json.loads(body)["error"]


def test_errors_name_no_place_of_the_machine(tmp_path):
    made = build.build_index(ColorEmbedder(), [str(write_folder(tmp_path / "images"))], tmp_path / "index")
    app = app_of_models([], Limits(), search_routes(made, ColorEmbedder()))
    (tmp_path / "index/items.sqlite").write_bytes(b"damaged")
    with asking(app) as ask:
        status, _, body = ask("/search/answer?sentence=orange")
        assert status == 500 and str(tmp_path) not in body.decode()


def test_an_index_of_another_model_is_refused(index):
    with pytest.raises(UserError, match="index"):
        search_routes(index, ColorEmbedder(seed=1))


@pytest.mark.parametrize("card", ["[]", "{", '{"training_data": 3}', '{"training_data": {"languages": [["en"]]}}'])
def test_a_damaged_model_card_is_named(export, tmp_path, card):
    (tmp_path / "model_card.json").write_text(card)
    with pytest.raises(UserError, match="model_card.json"):
        serve(tmp_path, index="index", port=0)


def test_a_damaged_index_is_named(export, tmp_path):
    build.build_index(ColorEmbedder(), [str(write_folder(tmp_path / "images"))], tmp_path / "index")
    (tmp_path / "index/vectors.npy").write_bytes(b"no")
    with pytest.raises(UserError, match="vectors.npy is damaged"):
        serve(export, index=tmp_path / "index", port=0)


@pytest.mark.parametrize("name", ["text_encoder/1/saved_model.pb", "image_encoder/1/variables/variables.index",
                                  "text_encoder/1/assets/vocabulary.txt"])  # fmt: skip
def test_a_damaged_export_is_named(export, tmp_path, name):
    shutil.copytree(export, tmp_path / "export")
    with open(tmp_path / "export" / name, "r+b") as file:
        file.seek(40)
        byte = file.read(1)[0]
        file.seek(40)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(UserError, match="is damaged|is not the one that the model was trained with"):
        serve(tmp_path / "export", port=0)
