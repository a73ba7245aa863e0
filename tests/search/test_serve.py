"""The REST server against TensorFlow Serving's paths and JSON, many clients at once, and everything malformed."""

import base64
import concurrent.futures
import gzip
import http.client
import io
import json
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf
from aiohttp import web
from PIL import Image
from running_app import running
from toy_export import TEXTS, pictures

from benchmarks.fuzz_requests import fuzz, is_well
from mural_tf.data.pictures import for_the_encoder
from mural_tf.errors import UserError
from mural_tf.search.server.app import PREDICT, create_app
from mural_tf.search.server.claims import first_frame
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.models import Signature

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT, IMAGE = "/v1/models/text_encoder", "/v1/models/image_encoder"
LIMITS = Limits(window=0.01, max_batch=16, max_rows=100, max_request_bytes=2**20, body_timeout=0.5)


async def similarity(request):
    """A mounted route that uses an encoder."""
    texts = np.array([request.query["a"], request.query["b"]], object)
    outputs = await request.app[PREDICT]("text_encoder", "text_text", {"text": texts})
    a, b = outputs["text_text_embedding"]
    return web.json_response(float(a @ b))


async def broken(request):
    raise RuntimeError("secret")


@pytest.fixture(scope="module")
def server(export):
    """The app on a free port, for all tests."""
    warmed = []
    with pytest.MonkeyPatch.context() as patch:
        original = Signature.run
        patch.setattr(Signature, "run", lambda self, inputs: (warmed.append(self), original(self, inputs))[1])
        app = create_app(export, LIMITS, [web.get("/similarity", similarity), web.get("/broken", broken)])
    with running(app, LIMITS) as test_server:
        test_server.app, test_server.warmed = app, warmed
        yield test_server


@pytest.fixture
def ask(server):
    def ask(path, body=None, method=None, headers=None):
        """Returns (status, JSON or text)."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
        response = connection.getresponse()
        data, kind = response.read(), response.headers.get_content_type()
        connection.close()
        return response.status, json.loads(data) if kind == "application/json" else data.decode()

    return ask


@pytest.fixture(scope="module")
def direct(export):
    """{encoder: its signatures}, run without the server."""
    loaded = {name: tf.saved_model.load(str(export / name / "1")) for name in ("image_encoder", "text_encoder")}
    yield {name: saved_model.signatures for name, saved_model in loaded.items()}


def difference(a, b):
    assert np.shape(a) == np.shape(b)
    return np.abs(np.asarray(a) - np.asarray(b)).max()


def b64(data):
    return {"b64": base64.b64encode(data).decode()}


def test_texts_in_rows_and_columns(ask, direct):
    expected = direct["text_encoder"]["serving_default"](text=tf.constant(TEXTS))["embedding"]
    for body in (
        {"instances": [{"text": text} for text in TEXTS]},
        {"instances": TEXTS, "signature_name": "serving_default"},
        {"instances": [b64(text.encode()) for text in TEXTS]},
    ):
        status, answer = ask(TEXT + ":predict", body)
        assert status == 200 and set(answer) == {"predictions"} and difference(answer["predictions"], expected) < 1e-5
    for inputs in (TEXTS, {"text": TEXTS}):
        status, answer = ask(TEXT + "/versions/1:predict", {"inputs": inputs})
        assert status == 200 and set(answer) == {"outputs"} and difference(answer["outputs"], expected) < 1e-5
    expected = direct["text_encoder"]["text_text"](text=tf.constant(TEXTS))["text_text_embedding"]
    status, answer = ask(TEXT + ":predict", {"signature_name": "text_text", "instances": TEXTS})
    assert status == 200 and difference(answer["predictions"], expected) < 1e-5
    assert ask(TEXT + ":predict", json.dumps({"instances": ["x" * 10**5, "a\0b"]}))[0] == 200


def test_images_and_inputs_with_several_names(ask, direct):
    data = pictures()
    expected = direct["image_encoder"]["serving_default"](image_bytes=tf.constant(data))["embedding"]
    status, answer = ask(IMAGE + ":predict", {"instances": [{"image_bytes": b64(image)} for image in data]})
    assert status == 200 and difference(answer["predictions"], expected) < 1e-5
    tokens = {"input_word_ids": [[2, 5, 3]], "input_mask": [[1, 1, 1]], "input_type_ids": [[0, 0, 0]]}
    expected = direct["text_encoder"]["tokens"](**{k: tf.constant(v) for k, v in tokens.items()})["embedding"]
    row = {name: value[0] for name, value in tokens.items()}
    for body, key in (({"instances": [row]}, "predictions"), ({"inputs": tokens}, "outputs")):
        status, answer = ask(TEXT + ":predict", {"signature_name": "tokens", **body})
        assert status == 200 and difference(answer[key], expected) < 1e-5


def test_an_image_that_cannot_be_read_is_named_or_zeros_where_asked_for(ask, direct):
    good = pictures()[1]  # a JPEG
    expected = direct["image_encoder"]["serving_default"](image_bytes=tf.constant([good]))["embedding"]
    for damaged in (b"no image", b"", good[:40], png_of_size(64, 64), pictures()[0][:-40]):
        rows = [{"image_bytes": b64(image)} for image in (good, damaged)]
        status, answer = ask(IMAGE + ":predict", {"instances": rows})
        assert status == 400 and answer["error"].startswith("Row 1 (the first is 0) is not an image"), answer
        status, answer = ask(IMAGE + ":predict", {"instances": rows, "on_error": "zeros"})
        assert status == 200 and not np.any(answer["predictions"][1])
        assert difference(answer["predictions"][:1], expected) < 1e-5
    status, answer = ask(IMAGE + ":predict", {"inputs": [b64(good)], "on_error": ["zeros"]})
    assert status == 400 and "\"on_error\" must be 'raise' or 'zeros', got a list" in answer["error"]


def png_of_size(width, height, color=2):
    """A PNG's header, and too little after it."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("sizes, words", [
    ([(8, 8), (8191, 8191)], "Row 1 (the first is 0) brings it to 67.1 million pixels of one image"),
    ([(4500, 4500, 6)], "Row 0 (the first is 0) brings it to 81.0 million pixels of one image"),
    ([(7000, 7000)] * 4, "Row 2 (the first is 0) brings it to 147.0 million pixels of all images of a request"),
    ([(2**31 - 1, 2**31 - 1)], "million pixels of one image"),
])  # fmt: skip
def test_images_that_claim_too_many_pixels_are_refused_before_decoding(ask, sizes, words):
    rows = [b64(png_of_size(*size)) for size in sizes]
    for extra in ({}, {"on_error": "zeros"}):
        status, answer = ask(IMAGE + ":predict", {"instances": rows, **extra})
        assert status == 400 and words in answer["error"], answer


def test_of_a_gif_only_the_first_frame_is_unpacked(ask, direct):
    frames = [Image.new("RGB", (40, 30), (50 * i, 9, 250 - 50 * i)) for i in range(5)]
    for options in ({}, {"transparency": 3, "loop": 0, "comment": b"x" * 600, "disposal": 2}):
        buffer = io.BytesIO()
        frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], **options)
        data = buffer.getvalue()
        assert data.startswith(first_frame(data)[0][:-1]) and len(first_frame(data)[0]) < len(data)
        expected = direct["image_encoder"]["serving_default"](image_bytes=tf.constant([data]))["embedding"]
        status, answer = ask(IMAGE + ":predict", {"instances": [b64(data)]})
        assert status == 200 and difference(answer["predictions"], expected) < 1e-5
        status, answer = ask(IMAGE + ":predict", {"instances": [b64(data[: len(first_frame(data)[0]) - 5])]})
        assert status == 400 and "not an image" in answer["error"]


def test_an_image_of_a_gif_may_be_larger_than_its_header_says(ask):
    buffer = io.BytesIO()
    Image.new("P", (40, 30)).save(buffer, "GIF")
    data = bytearray(buffer.getvalue())
    at = data.index(b",\0\0\0\0")  # where its description begins
    data[at + 5 : at + 9] = 2 * (9000).to_bytes(2, "little")
    assert first_frame(bytes(data))[1] == 81_000_000
    status, answer = ask(IMAGE + ":predict", {"instances": [b64(bytes(data))]})
    assert status == 400 and "million pixels of one image" in answer["error"]


@pytest.mark.parametrize("kind, options", [("WEBP", {"lossless": True}), ("TIFF", {})])
def test_other_formats_are_encoded_again(ask, direct, kind, options):
    picture, buffer = Image.new("RGB", (40, 30), (200, 60, 20)), io.BytesIO()
    picture.save(buffer, kind, **options)
    expected = direct["image_encoder"]["serving_default"](
        image_bytes=tf.constant([for_the_encoder(buffer.getvalue())])
    )["embedding"]
    status, answer = ask(IMAGE + ":predict", {"instances": [b64(buffer.getvalue())]})
    assert status == 200 and difference(answer["predictions"], expected) < 1e-5
    status, answer = ask(IMAGE + ":predict", {"instances": [b64(buffer.getvalue()[:-40])]})
    assert status == 400 and "is not an image that can be read" in answer["error"]


def test_a_jpeg_of_many_scans_is_refused(ask):
    buffer = io.BytesIO()
    Image.new("L", (40, 30), 77).save(buffer, "JPEG", progressive=True)
    good = buffer.getvalue()
    assert ask(IMAGE + ":predict", {"instances": [b64(good)]})[0] == 200
    bomb = good[:-2] + 100 * good[good.rindex(b"\xff\xda") : -2] + good[-2:]
    status, answer = ask(IMAGE + ":predict", {"instances": [b64(good), b64(bomb)]})
    assert status == 400 and "Row 1 (the first is 0) is a JPEG of 106 scans" in answer["error"]


def test_damaged_requests_get_errors_or_right_answers(server):
    counts, wrong = fuzz(server.port, range(100))
    assert not wrong and counts[200] and counts[400] and is_well(server.port)


def test_status_metadata_health_and_metrics(ask):
    status, answer = ask(TEXT)
    assert status == 200 and answer["model_version_status"][0]["version"] == "1"
    assert answer["model_version_status"][0]["state"] == "AVAILABLE"
    status, answer = ask(IMAGE + "/versions/1/metadata")
    assert status == 200 and answer["model_spec"] == {"name": "image_encoder", "signature_name": "", "version": "1"}
    definition = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert definition["inputs"]["image_bytes"]["dtype"] == "DT_STRING"
    assert [size["size"] for size in definition["outputs"]["embedding"]["tensor_shape"]["dim"]] == ["-1", "80"]
    assert ask("/healthz") == (200, {"status": "ok"})
    status, text = ask("/metrics")
    assert status == 200 and 'requests_total{model="text_encoder",status="200"}' in text
    assert "process_resident_memory_bytes" in text


def test_every_signature_is_warm_before_the_server_listens(server):
    versions = server.app[PREDICT].__self__.versions
    models = [versions.find(name).model for name in versions.names]
    signatures = [signature for model in models for signature in model.signatures.values()]
    assert len(signatures) == 5
    assert {id(signature) for signature in signatures} == {id(signature) for signature in server.warmed}


def test_a_mounted_route_uses_the_encoders(ask, direct):
    texts = direct["text_encoder"]["text_text"](text=tf.constant(["thing w1", "ding v1"]))["text_text_embedding"]
    status, answer = ask("/similarity?a=thing+w1&b=ding+v1")
    assert status == 200 and abs(answer - float(tf.tensordot(texts[0], texts[1], 1))) < 1e-5
    assert ask("/broken") == (500, {"error": "The server failed on this request; its log says why."})


def test_clients_at_once_share_runs_and_get_their_own_answers(ask, direct):
    def rows():
        lines = [
            line for line in ask("/metrics")[1].splitlines() if 'batch_rows_count{model="text_encoder",sig' in line
        ]
        return sum(float(line.split()[-1]) for line in lines if "serving_default" in line)

    texts = [f"thing w{i}" for i in range(48)]
    expected = direct["text_encoder"]["serving_default"](text=tf.constant(texts))["embedding"].numpy()
    before = rows()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: ask(TEXT + ":predict", {"instances": [text]}), texts))
    assert all(status == 200 for status, _ in answers)
    assert difference([answer["predictions"][0] for _, answer in answers], expected) < 1e-5
    assert rows() - before < 40  # runs; 48 without batching


def test_only_the_request_at_fault_gets_the_error(ask):
    def tokens(word):
        row = {"input_word_ids": [2, word, 3], "input_mask": [1, 1, 1], "input_type_ids": [0, 0, 0]}
        return ask(TEXT + ":predict", {"signature_name": "tokens", "instances": [row]})

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(tokens, [5, 6, 10**6, 7, 5, -1, 6, 7]))
    assert [status for status, _ in answers] == [200, 200, 400, 200, 200, 400, 200, 200]
    wide = {name: [[1] * 9] for name in ("input_word_ids", "input_mask", "input_type_ids")}
    status, answer = ask(TEXT + ":predict", {"signature_name": "tokens", "inputs": wide})
    assert status == 400 and "1 to 8 tokens a text" in answer["error"]


DEEP = "[" * 100_000
MALFORMED = [
    (b"", 400, "not JSON"),
    (b"{", 400, "not JSON"),
    (b"\xff\xfe", 400, "not UTF-8"),
    (b"[]", 400, "Expected a JSON object"),
    (DEEP, 400, ""),
    ('{"instances": ' + "[" * 900 + "]" * 900 + "}", 400, ""),
    ({}, 400, 'either "instances"'),
    ({"instances": ["a"], "inputs": ["a"]}, 400, 'either "instances"'),
    ({"instances": "a"}, 400, '"instances" must be a list, one value a row, got a string'),
    ({"instances": [1]}, 400, "takes strings or"),
    ({"instances": [None]}, 400, "got null"),
    ({"instances": [{"text": "a"}, {"words": "b"}]}, 400, "\"instances\"[1] has the keys ['words']"),
    ({"instances": [{"b64": "?"}]}, 400, "not base64"),
    ({"instances": [{"b64": 3}]}, 400, "takes strings or"),
    ({"instances": {"text": ["a"]}}, 400, "must be a list, one value a row, got an object"),
    ({"instances": []}, 400, '"instances" is empty'),
    ({"inputs": {"text": []}}, 400, "'text' is empty"),
    ({"instances": ["a"], "on_error": "skip"}, 400, '"on_error" must be'),
    ('{"instances": [' + "9" * 5000 + "]}", 400, "not JSON"),
    ({"instances": [["a", "b"]]}, 400, "nested more than 1 deep, expected the shape [any]"),
    ({"instances": [["a"], "b"]}, 400, "ragged"),
    ('{"instances": ["\\ud800"]}', 400, "surrogate"),
    ({"inputs": "a"}, 400, "must be a list"),
    ({"inputs": {"text": {"b64": "YQ=="}}}, 400, "must be a list"),
    ({"signature_name": "classify", "instances": ["a"]}, 400, "has no signature 'classify'"),
    ({"signature_name": 3, "instances": ["a"]}, 400, "must be a string"),
    ({"signature_name": "tokens", "instances": ["a"]}, 400, "must be an object with the keys"),
    ({"instances": ["a"] * 101}, 400, "at most 100"),
    ({"instances": ["a" * 2**20]}, 413, ""),
]
TOKENS = [
    ([[1.5]], "must hold int32 values only"),
    ([["a"]], "must hold int32 values only"),
    ([[2**40]], "outside of int32"),
    ([[2**80]], "must hold int32 values only"),
    ([[1, [2]]], "ragged"),
    ([[True]], "must hold int32 values only"),
    ([[None]], "must hold int32 values only"),
    ([[{}]], "must hold int32 values only"),
    ([1], "nested 1 deep, expected the shape [any, any]"),
    ([[[1]]], "nested more than 2 deep, expected the shape [any, any]"),
    ([[1], [1]], "same number of rows"),
    ([[]], "1 to 8 tokens"),
]


@pytest.mark.parametrize("body, status, words", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_requests_are_reported(ask, body, status, words):
    found, answer = ask(TEXT + ":predict", body)
    assert found == status and set(answer) == {"error"} and words in answer["error"], answer


def test_malformed_numbers_are_reported(ask):
    for ids, words in TOKENS:
        good = [[]] if ids == [[]] else [[1]]
        body = {
            "signature_name": "tokens",
            "inputs": {"input_word_ids": ids, "input_mask": good, "input_type_ids": good},
        }
        status, answer = ask(TEXT + ":predict", body)
        assert status == 400 and words in answer["error"], (ids, answer)
    columns = {name: [[1], [1, 2]] for name in ("input_word_ids", "input_mask", "input_type_ids")}
    status, answer = ask(TEXT + ":predict", {"signature_name": "tokens", "inputs": columns})
    assert status == 400 and "is ragged: lists of 1 and of 2 values" in answer["error"]
    status, answer = ask(IMAGE + ":predict", {"signature_name": "image", "inputs": [[[[0.0]] * 32] * 32]})
    assert status == 400 and "begins with the shape [1, 32, 32, 1], expected [any, 32, 32, 3]" in answer["error"]
    body = {"signature_name": "image", "inputs": [[[[0.0, float("nan"), 0.0]] * 32] * 32]}
    assert "not finite" in ask(IMAGE + ":predict", body)[1]["error"]


def test_wrong_paths_and_methods(ask):
    assert ask("/v1/models/nothing:predict", {"instances": ["a"]}) == (
        404,
        {"error": "There is no model 'nothing'; there are image_encoder, text_encoder."},
    )
    assert "no version 7" in ask(TEXT + "/versions/7:predict", {"instances": ["a"]})[1]["error"]
    for path, method, status in (("/", "GET", 404), (TEXT + ":classify", "POST", 404), (TEXT + ":predict", "PUT", 405)):
        found, answer = ask(path, "{}" if method != "GET" else None, method)
        assert found == status and set(answer) == {"error"}


def test_packed_bodies_and_slow_ones(ask, server):
    packed = gzip.compress(json.dumps({"instances": ["thing"]}).encode())
    assert ask(TEXT + ":predict", packed, headers={"Content-Encoding": "gzip"})[0] == 200
    bomb = gzip.compress(b" " * 2**26)
    assert ask(TEXT + ":predict", bomb, headers={"Content-Encoding": "gzip"})[0] in (413, 400)  # 400: aiohttp 3.13
    assert ask(TEXT + ":predict", packed[:20], headers={"Content-Encoding": "gzip"})[0] == 400
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(f"POST {TEXT}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in connection.recv(1000)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"\0\1\2 nonsense\r\n\r\n")
        assert b" 400 " in connection.recv(1000)
    assert ask("/healthz")[0] == 200


def test_random_damage_never_brings_it_down(ask):
    draw = random.Random(0)
    good = json.dumps({"signature_name": "serving_default", "instances": [{"text": "thing"}, {"b64": "AAAA"}]}).encode()
    statuses = set()
    for _ in range(150):
        body = bytearray(good)
        for _ in range(draw.randint(1, 8)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        statuses.add(ask(TEXT + ":predict", bytes(body[: draw.randint(1, len(body))]))[0])
    assert statuses <= {200, 400} and 400 in statuses
    assert ask(TEXT + ":predict", {"instances": ["thing"]})[0] == 200


def test_rest_client_as_exported(server, direct, export, tmp_path):
    (tmp_path / "photo.png").write_bytes(pictures()[0])
    command = [sys.executable, str(export / "serving/rest_client.py"), "photo.png", "thing w1", "ding"]
    environment = {"SERVER": f"http://127.0.0.1:{server.port}"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    image = direct["image_encoder"]["serving_default"](image_bytes=tf.constant(pictures()[:1]))["embedding"]
    text = direct["text_encoder"]["serving_default"](text=tf.constant(["thing w1", "ding"]))["embedding"]
    values = [float(line.split()[0]) for line in run.stdout.splitlines()]
    assert difference(values, tf.linalg.matvec(text, image[0])) < 1e-4
    assert len((export / "serving/rest_client.py").read_text().splitlines()) <= 25


def start(*flags):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "mural_tf", "serve", *flags]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_program_answers_and_ends_on_sigterm(export):
    process = start(f"--export={export}", "--port=0", "--batch_window_ms=1500")
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving "), process.stderr.read()
        port = int(line.rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("localhost", port, timeout=30)
        connection.request("POST", TEXT + ":predict", json.dumps({"instances": ["thing"]}))
        time.sleep(0.5)  # the request waits for company when the signal comes
        process.send_signal(signal.SIGTERM)
        assert connection.getresponse().status == 200
        assert process.wait(30) == 0
    finally:
        process.kill()
    with pytest.raises(OSError):
        socket.create_connection(("localhost", port), timeout=1)


def test_help_is_quick_and_mistakes_are_named(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "mural_tf", "serve", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "--export" in run.stdout and "--batch_window_ms" in run.stdout
    assert "absl.flags" in run.stderr and not re.search(r"tensorflow|aiohttp|numpy", run.stderr)  # slow imports
    with pytest.raises(UserError, match="is not an export: expected SavedModels such as"):
        create_app(tmp_path)
