"""immich's requests of vectors, as its server sends them: forms of `entries` with a text or a picture."""

import json
import types
import uuid

import numpy as np
import pytest
from odd_pictures import png_of_size
from refusals import assert_refused
from running_app import ask, running
from search_data import ColorEmbedder, png

from mural_search.server import immich
from mural_search.server.app import check_served, create_app
from mural_search.server.immich import NAMES, check_name, immich_routes

NAME = "ViT-B-16-SigLIP2__webli"


class Colors(ColorEmbedder):
    embedding_size = 3
    config = types.SimpleNamespace(image_tower=types.SimpleNamespace(name="vit"))


@pytest.fixture(scope="module")
def port():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(immich.DIMENSIONS, NAME, 3)
        routes = immich_routes(Colors(), NAME)
    with running(create_app(routes)) as server:
        yield server.port


def predict(port, entries, **parts):
    """Sends a form as Node's `fetch` does: a Blob is a file of the name "blob", without a type."""
    boundary = uuid.uuid4().hex
    lines = []
    for name, value in {"entries": entries, **parts}.items():
        value = value if isinstance(value, (str, bytes)) else json.dumps(value)
        is_file = isinstance(value, bytes)
        file = '; filename="blob"\r\nContent-Type: application/octet-stream' if is_file else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        lines.append(head.encode() + (value if is_file else value.encode()) + b"\r\n")
    body = b"".join(lines) + f"--{boundary}--\r\n".encode()
    status, answer, _ = ask(
        port, "/predict", body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"}
    )
    return status, answer


def entries(kind, name=NAME, **options):
    return {"clip": {kind: {"modelName": name, **({"options": options} if options else {})}}}


def test_a_text_and_a_picture_have_vectors_as_strings_of_json(port):
    status, answer = predict(port, entries("textual", language="de"), text="red")
    assert status == 200 and list(answer) == ["clip"]
    np.testing.assert_allclose(json.loads(answer["clip"]), Colors().encode_text(["red"])[0], atol=1e-6)
    picture = png((255, 0, 0), (6, 4))
    for name in (NAME, f"immich-app/{NAME}"):
        status, answer = predict(port, entries("visual", name), image=picture)
        assert (status, answer["imageWidth"], answer["imageHeight"]) == (200, 6, 4)
        np.testing.assert_allclose(json.loads(answer["clip"]), Colors().encode_image([picture])[0], atol=1e-6)
    assert ask(port, "/ping")[:2] == (200, b"pong")


@pytest.mark.parametrize("asked, parts, status, words", [
    (entries("textual"), {}, 400, "has no text"),
    (entries("textual"), {"text": "a" * 2001}, 400, "2,001 characters"),
    (entries("visual"), {"text": "red"}, 400, "has no image"),
    (entries("visual"), {"image": b"no picture"}, 400, "cannot be read"),
    (entries("visual"), {"image": png_of_size(10_000, 10_000)}, 400, "million pixels"),
    (entries("textual", "ViT-B-32__openai"), {"text": "red"}, 400, "not 'ViT-B-32__openai'"),
    ({"facial-recognition": {"detection": {"modelName": "buffalo_l"}}}, {"image": b""}, 400, "not facial-recognition"),
    ({"ocr": {"detection": {"modelName": NAME}}}, {"image": b""}, 400, "not ocr (detection)"),
    (entries("textual") | {"ocr": {"detection": {"modelName": NAME}}}, {"text": "red"}, 400, "not ocr"),
    ({"clip": {**entries("textual")["clip"], **entries("visual")["clip"]}}, {"text": "red"}, 422, "for 2 models"),
    ({}, {"text": "red"}, 422, "for 0 models"),
    ({"clip": {"textual": {}}}, {"text": "red"}, 422, "must be JSON"),
    ("[" * 100_000, {"text": "red"}, 422, "must be JSON"),
    (b"\xff", {"text": "red"}, 422, "must be JSON"),
])  # fmt: skip
def test_other_requests_are_refused_with_their_mistake(port, asked, parts, status, words):
    found, answer = predict(port, asked, **parts)
    assert found == status and words in answer["error"]


def test_a_form_that_is_cut_off_is_refused(port):
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert ask(port, "/predict", b"--x\r\nContent-Disposition: nonsense\r\n\r\na", headers=headers)[0] in (400, 422)
    assert ask(port, "/predict", b"", headers={"Content-Type": "text/plain"})[0] == 422


def test_names_are_immichs_and_have_its_dimensions():
    check_name(NAME, "export", 768)
    assert_refused(check_name, ["immich has no model of this name; did you mean ViT-B-16-SigLIP2__webli?"], f"{NAME}x")
    words = [f"--immich={NAME} has 768 dimensions, and the model out/lite 640: names with 640 are RN50x4__openai, "]
    assert_refused(check_name, words, NAME, "out/lite", 640)
    assert_refused(check_name, ["no model of immich has 3"], NAME, "toy", 3)
    names = " ".join(NAMES.values()).split()
    assert len(names) == len(set(names)) > 40
    only_texts = Colors()
    only_texts.config = types.SimpleNamespace(image_tower=types.SimpleNamespace(name="none"))
    only_texts.embedding_size = 768
    assert_refused(immich_routes, ["is a model of texts alone"], only_texts, NAME)


def test_mistakes_are_said_before_a_model_is_opened():
    assert_refused(check_served, ["Nothing to serve"], "")
    assert_refused(check_served, ["--immich needs a model: give --export=EXPORT"], "", immich=NAME)
    assert_refused(check_served, ["did you mean LABSE-Vit-L-14?"], "", "no/model", immich="LABSE-ViT-L-14")
