"""The search page beside the encoders: the page, answers, thumbnails, and what is asked wrongly."""

import http.client
import io
import json
import shutil

import pytest
from PIL import Image
from running_app import running
from search_data import ColorEmbedder, write_folder

from mural_tf.errors import UserError
from mural_tf.search import build, collect
from mural_tf.search.items import IMAGES
from mural_tf.serve.app import create_app, serve
from mural_tf.serve.search_page import search_routes


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("pictures") / "images")
    return build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(folder)]))


@pytest.fixture(scope="module")
def ask(index, export):
    routes = search_routes(index, ColorEmbedder(), ["en", "fa"])
    with running(create_app(export, extra_routes=routes)) as server:

        def ask(path):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.headers.get_content_type(), response.read()

        yield ask


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


@pytest.mark.parametrize("path, status", [
    ("/search/answer", 400), ("/search/answer?sentence=red&k=many", 400), ("/search/answer?sentence=red&k=1000", 400),
    ("/search/thumbnail/99", 404), ("/search/thumbnail/..%2F..%2Fetc", 404), ("/search/thumbnail/-1", 404),
])  # fmt: skip
def test_wrong_questions_get_an_error(ask, path, status):
    answer, kind, body = ask(path)
    assert (answer, kind) == (status, "application/json") and json.loads(body)["error"]


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
    (tmp_path / "index/embeddings.npy").write_bytes(b"no")
    with pytest.raises(UserError, match="index is damaged"):
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
