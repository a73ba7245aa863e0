"""The REST server against TensorFlow Serving's paths and JSON, many clients at once, and everything malformed."""

import base64
import functools
import gzip
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest
from aiohttp import web
from odd_pictures import bitmap, gif_of_size, png_of_size, saved
from PIL import Image
from refusals import assert_refused
from running_app import ask as ask_server
from running_app import running
from toy_data import SIDE, toy_config, toy_tokenizer
from toy_export import TEXTS, pictures, toy_model

from benchmarks.rest_attack import fuzz, is_well
from mural_tf.backend import keras
from mural_tf.data.pictures import for_the_encoder
from mural_tf.export import signatures
from mural_tf.export.saved_model import save_for_inference
from mural_tf.search.server import models
from mural_tf.search.server.app import PREDICT, create_app, serve
from mural_tf.search.server.limits import Limits

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT, IMAGE = "/v1/models/text_encoder", "/v1/models/image_encoder"
LIMITS = Limits(max_batch=16, max_request_bytes=2**20, timeout=8.0)


async def similarity(request):
    """A mounted route that uses an encoder."""
    texts = np.array([request.query["a"], request.query["b"]], object)
    outputs = await request.app[PREDICT]("text_encoder", "text_text", {"text": texts})
    a, b = outputs["text_text_embedding"]
    return web.json_response(float(a @ b))


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """A folder as an export has it, whose image encoder is one layer: half a minute less than a whole export."""
    folder = tmp_path_factory.mktemp("encoders")
    (folder / "data").mkdir()
    config = toy_config(folder / "data")
    config.vocabulary.lower_case = True
    model, pixels = toy_model(config), keras.Input([SIDE, SIDE, 3])
    layers = [keras.layers.AveragePooling2D(8), keras.layers.Flatten(), keras.layers.Dense(config.embedding_size)]
    image_tower = keras.Model(pixels, functools.reduce(lambda values, layer: layer(values), layers, pixels))
    images = types.SimpleNamespace(image_encoder=image_tower, image_shape=(SIDE, SIDE, 3))
    for name, (module, functions) in (
        ("image_encoder", signatures.image_encoder(images, config)),
        ("text_encoder", signatures.text_encoder(model, toy_tokenizer(lower_case=True))),
    ):
        save_for_inference(module, folder / name / "1", functions)
    return folder


@pytest.fixture(scope="module")
def server(encoders):
    """The app on a free port, for all tests."""
    with mock.patch.object(models, "_warm_up", wraps=models._warm_up) as warm_up:
        loaded = models.load_models(encoders)
    app = create_app(loaded, LIMITS, [web.get("/similarity", similarity)])
    with running(app) as test_server:
        test_server.models, test_server.warmed = loaded, [call.args[0] for call in warm_up.call_args_list]
        yield test_server


@pytest.fixture
def ask(server):
    """`ask(path, body, …)` → (status, JSON or bytes)."""
    return lambda *arguments, **options: ask_server(server.port, *arguments, **options)[:2]


@pytest.fixture(scope="module")
def direct(server):
    """`direct(encoder, signature, name=values, …)`: what the signature computes without the server."""

    def run(encoder, signature="serving_default", **inputs):
        (output,) = server.models[encoder].signatures[signature].run(inputs).values()
        return output

    return run


def assert_close(found, expected):
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def b64(data):
    return {"b64": base64.b64encode(data).decode()}


TOKENS = {"input_word_ids": [[2, 5, 3]], "input_mask": [[1, 1, 1]], "input_type_ids": [[0, 0, 0]]}
WORD = base64.b64encode(b"thing w1").decode()  # ends with "="


@pytest.mark.parametrize("path, body, inputs", [
    ("", {"instances": [{"text": text} for text in TEXTS]}, {"text": TEXTS}),
    ("", {"instances": TEXTS, "signature_name": "serving_default"}, {"text": TEXTS}),
    ("", {"instances": [b64(text.encode()) for text in TEXTS]}, {"text": TEXTS}),
    # Base64 without padding and in lines as of MIME: TensorFlow Serving takes these, too.
    ("", {"instances": [{"b64": one} for one in (WORD.rstrip("="), f"{WORD[:4]}\r\n{WORD[4:]}\n")]},
        {"text": ["thing w1"] * 2}),
    ("/versions/1", {"inputs": TEXTS}, {"text": TEXTS}), ("/versions/1", {"inputs": {"text": TEXTS}}, {"text": TEXTS}),
    ("", {"instances": TEXTS, "signature_name": "text_text"}, {"text": TEXTS}),
    ("", {"instances": [{name: row for name, (row,) in TOKENS.items()}], "signature_name": "tokens"}, TOKENS),
    ("", {"inputs": TOKENS, "signature_name": "tokens"}, TOKENS),
    ("", {"instances": ["x" * 10**5, "a\0b"]}, {"text": ["x" * 10**5, "a\0b"]}),
])  # fmt: skip
def test_every_form_of_a_request_gets_the_outputs_of_its_signature(ask, direct, path, body, inputs):
    expected = direct("text_encoder", body.get("signature_name", "serving_default"), **inputs)
    for encoding in ("utf-8", "utf-8-sig"):
        status, answer = ask(f"{TEXT}{path}:predict", json.dumps(body).encode(encoding))
        (values,) = answer.values()
        assert status == 200 and set(answer) == {"predictions" if "instances" in body else "outputs"}
        assert_close(values, expected)


def test_images_that_cannot_be_read_are_named_or_zeros_where_asked_for(ask, direct):
    good = pictures()
    expected = direct("image_encoder", image_bytes=good)
    status, answer = ask(IMAGE + ":predict", {"instances": [{"image_bytes": b64(image)} for image in good]})
    assert status == 200
    assert_close(answer["predictions"], expected)
    gif, webp = (saved(Image.new("RGB", (40, 30), (50, 9, 250)), kind) for kind in ("GIF", "WEBP"))
    damaged = [b"no image", b"", good[1][:40], png_of_size(64, 64), good[0][:-40], gif[:-10], webp[:-40]]
    for data in damaged:
        status, answer = ask(IMAGE + ":predict", {"instances": [b64(good[1]), b64(data)]})
        assert status == 400 and answer["error"].startswith("Row 1 (the first is 0) is not an image"), answer
    rows = [b64(data) for data in (good[1], *damaged)]
    status, answer = ask(IMAGE + ":predict", {"instances": rows, "on_error": "zeros"})
    assert status == 200 and not np.any(answer["predictions"][1:])
    assert_close(answer["predictions"][:1], expected[1:2])
    status, answer = ask(IMAGE + ":predict", {"inputs": rows[:1], "on_error": ["zeros"]})
    assert status == 400 and "\"on_error\" must be 'raise' or 'zeros', got a list" in answer["error"]


SCANS = saved(Image.new("L", (40, 30), 77), "JPEG", progressive=True)
BOMB = SCANS[:-2] + 100 * SCANS[SCANS.rindex(b"\xff\xda") : -2] + SCANS[-2:]


@pytest.mark.parametrize("images, words", [
    ([SCANS, BOMB], "Row 1 (the first is 0) is a JPEG of 106 scans"),
    ([png_of_size(8, 8), png_of_size(8191, 8191)], "Row 1 (the first is 0) brings it to 67.1 million pixels of one"),
    ([png_of_size(4500, 4500, 6)], "Row 0 (the first is 0) brings it to 81.0 million pixels of one image"),
    ([png_of_size(7000, 7000)] * 4, "Row 2 (the first is 0) brings it to 147.0 million pixels of all images of a"),
    ([png_of_size(2**31 - 1, 2**31 - 1)], "million pixels of one image"),
    ([gif_of_size(9000)], "million pixels of one image"),
])  # fmt: skip
def test_images_that_claim_too_many_pixels_are_refused_before_decoding(ask, images, words):
    for extra in ({}, {"on_error": "zeros"}):
        status, answer = ask(IMAGE + ":predict", {"instances": [b64(image) for image in images], **extra})
        assert status == 400 and words in answer["error"], answer
    assert ask(IMAGE + ":predict", {"instances": [b64(SCANS)]})[0] == 200


def test_other_formats_are_encoded_again(ask, direct):
    """By Pillow, so that a BMP is neither white nor black; of a GIF the first frame."""
    frames = [Image.new("RGB", (40, 30), (50 * i, 9, 250 - 50 * i)) for i in range(5)]
    images = [saved(frames[0], "GIF", save_all=True, append_images=frames[1:], **options) for options in
              ({}, {"transparency": 3, "loop": 0, "comment": b"x" * 600, "disposal": 2})]  # fmt: skip
    images += [bitmap(frames[0], 8), bitmap(frames[0], 32)]
    images += [saved(frames[0], kind, **options) for kind, options in (("WEBP", {"lossless": True}), ("TIFF", {}))]
    status, answer = ask(IMAGE + ":predict", {"instances": [b64(image) for image in images]})
    assert status == 200
    assert_close(answer["predictions"], direct("image_encoder", image_bytes=[*map(for_the_encoder, images)]))
    (original,) = direct("image_encoder", image_bytes=[saved(frames[0], "PNG")])
    assert np.min(np.asarray(answer["predictions"]) @ original) > 0.99  # JPEG rounds colours


def test_pictures_are_turned_by_exif_in_every_format(ask):
    """Half red, half blue: turned by a quarter, another picture."""
    picture = Image.fromarray(np.repeat(np.uint8([[[250, 0, 0]] * 20 + [[0, 0, 250]] * 20]), 40, axis=0))
    exif = Image.Exif()
    exif[0x0112] = 6
    (upright,) = ask(IMAGE + ":predict", {"instances": [b64(saved(picture.rotate(-90), "PNG"))]})[1]["predictions"]
    rows = [b64(saved(picture, kind, exif=exif)) for kind in ("PNG", "JPEG", "WEBP")]
    turned = ask(IMAGE + ":predict", {"instances": rows})[1]["predictions"]
    assert np.min(np.asarray(turned) @ upright) > 0.99
    (other,) = ask(IMAGE + ":predict", {"instances": [b64(saved(picture, "PNG"))]})[1]["predictions"]
    assert np.dot(other, upright) < 0.98


def test_status_metadata_and_health(ask, server):
    signatures = [signature for model in server.models.values() for signature in model.signatures.values()]
    assert len(signatures) == 5 and all(any(one is warm for warm in server.warmed) for one in signatures)
    status, answer = ask(TEXT)
    state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert status == 200 and answer == {"model_version_status": [{"version": "1", **state}]}
    status, answer = ask(IMAGE + "/versions/1/metadata")
    assert status == 200 and answer["model_spec"] == {"name": "image_encoder", "signature_name": "", "version": "1"}
    definition = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert definition["inputs"]["image_bytes"]["dtype"] == "DT_STRING"
    assert [size["size"] for size in definition["outputs"]["embedding"]["tensor_shape"]["dim"]] == ["-1", "80"]
    status, answer, headers = ask_server(server.port, "/healthz")
    assert (status, answer) == (200, {"status": "ok"})
    assert (headers["Server"], headers["X-Content-Type-Options"]) == ("mural_tf", "nosniff")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"


def test_a_mounted_route_uses_the_encoders(ask, direct):
    a, b = direct("text_encoder", "text_text", text=["thing w1", "ding v1"])
    status, answer = ask("/similarity?a=thing+w1&b=ding+v1")
    assert status == 200 and abs(answer - a @ b) < 1e-5


def tokens(ids, mask=None):
    mask = mask or ids
    return {"signature_name": "tokens", "inputs": {"input_word_ids": ids, "input_mask": mask, "input_type_ids": mask}}


def pixels(*values):
    return {"signature_name": "image", "inputs": [[[[*values]] * 32] * 32]}


MALFORMED = [
    (b"", "not JSON that"), (b"\xff\xfe", "not UTF-8"), (b"[]", "Expected a JSON object"), ("[" * 100_000, ""),
    ('{"instances": ' + "[" * 900 + "]" * 900 + "}", ""), ('{"instances": [' + "9" * 5000 + "]}", "not JSON that"),
    ({}, 'either "instances"'), ({"instances": ["a"], "inputs": ["a"]}, 'either "instances"'),
    ({"instances": "a"}, '"instances" must be a list, one value a row, got a string'),
    ({"instances": [1]}, "takes strings or"), ({"instances": []}, '"instances" is empty'),
    ({"instances": [{"text": "a"}, {"words": "b"}]}, "\"instances\"[1] has the keys ['words']"),
    ({"instances": [{"b64": "?"}]}, "not base64"), ({"instances": [{"b64": "AAAAA"}]}, "not base64"),
    ({"instances": [["a", "b"]]}, "nested more than 1 deep, expected the shape [any]"),
    ({"instances": [["a"], "b"]}, "ragged"), ('{"instances": ["\\ud800"]}', "surrogate"),
    ({"inputs": {"text": {"b64": "YQ=="}}}, "must be a list"), ({"instances": ["a"] * 1025}, "at most 1024"),
    ({"signature_name": "classify", "instances": ["a"]}, "has no signature 'classify'"),
    ({"signature_name": 3, "instances": ["a"]}, "must be a string"),
    ({"signature_name": "tokens", "instances": ["a"]}, "must be an object with the keys"),
    (tokens([[1.5]], [[1]]), "must hold int32 values only"), (tokens([[2**40]], [[1]]), "outside of int32"),
    (tokens([[True]], [[1]]), "must hold int32 values only"), (tokens([[1, [2]]], [[1]]), "ragged"),
    (tokens([1], [[1]]), "nested 1 deep, expected the shape [any, any]"),
    (tokens([[[1]]], [[1]]), "nested more than 2 deep, expected the shape [any, any]"),
    (tokens([[1], [1]], [[1]]), "same number of rows"), (tokens([[]]), "1 to 8 tokens"),
    (tokens([[1] * 9]), "1 to 8 tokens"), (tokens([[-1]], [[1]]), "indices[0,0] = -1 is not in"),
    (tokens([[1], [1, 2]]), "is ragged: lists of 1 and of 2 values"),
]  # fmt: skip
REFUSED = [
    *((f"{TEXT}:predict", body, 400, words) for body, words in MALFORMED),
    (f"{TEXT}:predict", '{"inputs": [[' + "[]," * 75_000 + "[]]]}", 413, "at most 140000 are taken"),
    (f"{TEXT}:predict", {"instances": ["a" * 2**20]}, 413, ""),
    (f"{IMAGE}:predict", pixels(0.0), 400, "begins with the shape [1, 32, 32, 1], expected [any, 32, 32, 3]"),
    (f"{IMAGE}:predict", pixels(0.0, float("nan"), 0.0), 400, "not finite"),
    ("/v1/models/no:predict", {}, 404, "There is no model 'no'; there are image_encoder, text_encoder."),
    (f"{TEXT}/versions/7:predict", {"instances": ["a"]}, 404, "no version 7"),
    ("/", None, 404, ""), (f"{TEXT}:classify", {}, 404, ""), (f"{TEXT}:predict", None, 405, ""),
]  # fmt: skip


def test_malformed_requests_are_reported(ask, monkeypatch):
    monkeypatch.setattr("mural_tf.search.server.limits.VALUES", 140_000)
    for path, body, status, words in REFUSED:
        got, answer = ask(path, body)
        assert got == status and set(answer) == {"error"} and words in answer["error"], (body, answer)


def test_damaged_requests_and_packed_ones_get_errors_or_right_answers(ask, server):
    counts, wrong = fuzz(server.port, range(150))
    assert not wrong and counts[200] and counts[400] and is_well(server.port)
    packed = gzip.compress(json.dumps({"instances": ["thing"]}).encode())
    assert ask(TEXT + ":predict", packed, headers={"Content-Encoding": "gzip"})[0] == 200
    bomb = gzip.compress(b" " * 2**26)
    assert ask(TEXT + ":predict", bomb, headers={"Content-Encoding": "gzip"})[0] in (413, 400)  # 400: aiohttp 3.13
    assert ask(TEXT + ":predict", packed[:20], headers={"Content-Encoding": "gzip"})[0] == 400
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"\0\1\2 nonsense\r\n\r\n")
        assert b" 400 " in connection.recv(1000)
    assert ask("/healthz")[0] == 200


@pytest.mark.slow
def test_a_whole_export_is_served(export):
    with running(create_app(models.load_models(export), LIMITS)) as server:
        for path, rows in ((TEXT, TEXTS), (IMAGE, [b64(image) for image in pictures()])):
            status, answer, _ = ask_server(server.port, path + ":predict", {"instances": rows})
            assert status == 200 and np.abs(np.linalg.norm(answer["predictions"], axis=1) - 1).max() < 1e-5


def test_rest_client_as_exported(server, direct, tmp_path):
    client = ROOT / "mural_tf/export/clients/rest_client.py"
    (tmp_path / "photo.png").write_bytes(pictures()[0])
    command = [sys.executable, str(client), "photo.png", "thing w1", "ding"]
    environment = {"SERVER": f"http://127.0.0.1:{server.port}"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (image,) = direct("image_encoder", image_bytes=pictures()[:1])
    values = [float(line.split()[0]) for line in run.stdout.splitlines()]
    np.testing.assert_allclose(values, direct("text_encoder", text=["thing w1", "ding"]) @ image, atol=1e-4)
    assert len(client.read_text().splitlines()) <= 25


SLOW = """
import time
import numpy as np
from mural_tf.search.server import app, batches, rest_json
def slowly(inputs):
    print("running", flush=True)
    time.sleep(1)
    return {"y": 2 * inputs["x"]}
signature = batches.Signature(slowly, {"x": rest_json.Spec(np.dtype("float32"), (None,))}, False)
models = {"doubler": batches.ServedModel("doubler", 1, {rest_json.SIGNATURE: signature}, {})}
app.load_served = lambda *_: (models, [])  # no SavedModel, so no TensorFlow, which takes seconds
from mural_tf.commands import run
run()
"""


def test_the_program_answers_and_ends_on_sigterm(tmp_path):
    """The request that runs when the signal comes gets its answer."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", SLOW, "serve", f"--export={tmp_path}", "--port=0"]
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving "), process.stderr.read()
        port = int(line.rsplit(":", 1)[1])
        for host, status in (("evil.example", 403), (f"127.0.0.1:{port}", 200), ("[::1]", 200)):
            assert ask_server(port, "/healthz", headers={"Host": host})[0] == status  # DNS may lead others here
        connection = http.client.HTTPConnection("localhost", port, timeout=30)
        connection.request("POST", "/v1/models/doubler:predict", json.dumps({"instances": [3]}))
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        code, log = process.wait(30), process.stderr.read()
        assert answer.status == 200 and json.loads(answer.read()) == {"predictions": [6.0]}, log
        assert code == 0 and "Traceback" not in log
    finally:
        process.kill()
    with pytest.raises(OSError):
        socket.create_connection(("localhost", port), timeout=1)


def test_what_cannot_be_served_is_said_in_one_line(encoders, tmp_path):
    """Before models are loaded, where it can be known then."""
    (tmp_path / "workdir/export").mkdir(parents=True)
    (tmp_path / "damaged/text_encoder/2").mkdir(parents=True)
    for file in ("damaged/text_encoder/2/saved_model.pb", "index.sqlite"):
        (tmp_path / file).write_bytes(b"no graph")
    with socket.create_server(("localhost", 0)) as taken:
        for options, words in (
            ({}, ["--export=EXPORT, --index=INDEX"]),
            ({"export": encoders, "port": taken.getsockname()[1]}, ["Cannot listen on localhost", "in use"]),
            ({"export": tmp_path / "gone"}, ["gone does not exist", "export"]),
            ({"export": tmp_path / "workdir"}, ["it is a workdir, whose export is", "workdir/export"]),
            ({"export": tmp_path / "damaged"}, ["damaged/text_encoder/2"]),
            ({"export": tmp_path / "damaged", "index": tmp_path / "workdir"}, ["is not an index"]),
            ({"export": tmp_path / "damaged", "index": tmp_path}, ["index.sqlite is damaged"]),
            ({"index": tmp_path / "workdir"}, ["is not an index"]),
        ):
            assert_refused(lambda given=options: serve(**{"port": 0, **given}), words)


def test_the_newest_version_that_all_encoders_have_is_served(encoders, tmp_path):
    for name in ("image_encoder", "text_encoder"):
        for number in ("3", "12"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / number).symlink_to(encoders / name / "1")
    (tmp_path / "text_encoder/13").symlink_to(encoders / "text_encoder/1")
    with mock.patch.object(models, "load_model", side_effect=lambda path, saved_model: path.name):
        assert models.load_models(tmp_path) == {"image_encoder": "12", "text_encoder": "12"}
