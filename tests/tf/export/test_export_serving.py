"""The serving bundle against what TensorFlow Serving's documents promise and ask for, without its binary."""

import base64
import concurrent.futures
import http.server
import io
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from aiohttp import web
from google.protobuf import text_format
from PIL import Image
from running_app import ask, running
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2, prediction_service_pb2_grpc
from tensorflow_serving.config import model_server_config_pb2
from toy_data import SIDE, toy_config, toy_tokenizer
from toy_export import TEXTS, pictures, pixels, toy_model

import mural_tf
from mural_lite.errors import UserError
from mural_lite.pictures import MAX_PIXELS, for_the_encoder
from mural_tf.data.images import JPEG, claimed_pixels
from mural_tf.encoders import build_image_encoder
from mural_tf.export import serving
from mural_tf.export.saved_model import computes_in_bfloat16, export_model, in_precision
from mural_tf.export.serving import ENCODERS, WARMUP_FILE, predict_request

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPTS = ["한국어 텍스트", "שלום עולם", "नमस्ते दुनिया", "ສະບາຍດີ", "𝒯𝒽𝒾𝓃𝑔 w1", "👩‍👩‍👧‍👦🇹🇬"]
SCRIPTS += ["e\u0301\u0323", "\u202ething\u0000w1\ufeff"]  # combining marks; direction marks and NUL


@pytest.fixture(scope="module")
def signatures(export):
    loaded = {name: tf.saved_model.load(str(export / name / "1")) for name in ENCODERS}
    yield {name: saved_model.signatures for name, saved_model in loaded.items()}


@pytest.fixture(scope="module")
def image(signatures):
    return lambda data: signatures["image_encoder"]["serving_default"](image_bytes=tf.constant(data, tf.string))


@pytest.fixture(scope="module")
def text(signatures):
    return lambda texts: signatures["text_encoder"]["serving_default"](text=tf.constant(texts, tf.string))


def difference(a, b):
    assert np.shape(a) == np.shape(b)
    return np.abs(np.asarray(a) - np.asarray(b)).max()


@pytest.mark.parametrize("name", ENCODERS)
def test_every_operation_is_one_that_the_stock_server_links(export, name):
    assert serving.unlisted_operations(export / name / "1") == set()
    found = serving.operations(export / name / "1")
    assert bool(found & serving.TEXT_OPS) == (name == "text_encoder")
    of_each = {"image_encoder": {"Conv2D", "DecodePng"}, "text_encoder": {"MatMul"}}  # within functions too
    assert of_each[name] <= found and ("DecodePng" in found) == (name == "image_encoder")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet", "resnet"])
def test_the_list_holds_the_operations_of_convolutional_towers(name):
    """The exports that tests share have a vision transformer."""
    config = toy_config("").image_tower
    config.update(dict(name=name, width=0.25, depth=0.25))
    spec = tf.TensorSpec([None, SIDE, SIDE, 3], tf.uint8)
    graph = tf.function(build_image_encoder(config)).get_concrete_function(spec).graph
    found = {operation.type for operation in graph.get_operations()}
    assert ("DepthwiseConv2dNative" in found) == (name == "efficientnet") and found <= serving.CORE_OPS


def test_the_list_holds_core_operations_and_those_of_tensorflow_text():
    assert {name for name in serving.CORE_OPS if not hasattr(tf.raw_ops, name)} == set()
    assert not any(hasattr(tf.raw_ops, name) for name in serving.TEXT_OPS)
    assert not serving.CORE_OPS & {"PyFunc", "EagerPyFunc", "DecodeBase64", "XlaLaunch"}


@pytest.mark.slow
def test_other_operations_are_found(tmp_path):
    module = tf.Module()
    spec = [tf.TensorSpec([None], tf.float32)]
    module.inner = tf.function(lambda x: tf.numpy_function(np.sin, [x], tf.float32), spec)
    module.outer = tf.function(lambda x: tf.function(tf.math.lgamma, jit_compile=True)(module.inner(x)), spec)
    tf.saved_model.save(module, str(tmp_path), signatures=module.outer)
    assert serving.unlisted_operations(tmp_path) == {"PyFunc", "Lgamma", "XlaMustCompile"}


def test_a_bad_image_gets_zeros_and_its_neighbours_what_they_get_alone(image):
    good = pictures()
    truncated = good[1][: len(good[1]) // 2]
    huge_header = good[0][:16] + b"\x7f\xff\xff\xff" * 2 + good[0][24:]  # a PNG that says it is 2 billion pixels wide
    bad = {1: b"not an image", 3: b"", 4: truncated, 6: huge_header, 7: b"RIFF\x24\0\0\0WEBPVP8 "}
    batch = [bad.get(i, good[i % len(good)]) for i in range(8)]
    rows = image(batch)["embedding"].numpy()
    for i, data in enumerate(batch):
        expected = np.zeros(80) if i in bad else image([data])["embedding"][0]
        assert difference(rows[i], expected) < 1e-6, i
    assert not image([b"x", b"y"])["embedding"].numpy().any()


def test_the_header_tells_how_large_an_image_claims_to_be(image):
    def claimed(data):
        return int(claimed_pixels(tf.constant(data), tf.constant(data.startswith(JPEG))))

    for kind in ("PNG", "JPEG"):
        buffer = io.BytesIO()
        Image.new("RGB", (300, 20)).save(buffer, kind)
        assert claimed(buffer.getvalue()) == 6000, kind
    assert claimed(b"RIFF") == claimed(b"BM") == claimed(b"\x89PN") == MAX_PIXELS + 1
    with pytest.raises(tf.errors.InvalidArgumentError):
        claimed(b"\xff\xd8\xff")
    assert not image([b"\x89PNG", b"\xff\xd8\xff", b"GIF8"])["embedding"].numpy().any()
    buffer = io.BytesIO()
    Image.new("1", (8200, 8200)).save(buffer, "PNG")  # 67.2 million pixels in a few kilobytes
    assert len(buffer.getvalue()) < 20_000
    assert not image([buffer.getvalue()])["embedding"].numpy().any()
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "BMP")
    assert not image([buffer.getvalue()])["embedding"].numpy().any()  # Pillow makes a JPEG of it
    assert image([for_the_encoder(buffer.getvalue())])["embedding"].numpy().any()


def test_an_empty_batch_gives_an_empty_answer(signatures, image, text):
    assert image([])["embedding"].shape == text([])["embedding"].shape == (0, 80)
    images = signatures["image_encoder"]["image"](image=tf.zeros([0, SIDE, SIDE, 3]))
    tokens = tf.zeros([0, 5], tf.int32)
    tokens = signatures["text_encoder"]["tokens"](input_word_ids=tokens, input_mask=tokens, input_type_ids=tokens)
    texts = signatures["text_encoder"]["text_text"](text=tf.constant([], tf.string))
    assert images["embedding"].shape == tokens["embedding"].shape == texts["text_text_embedding"].shape == (0, 80)


def test_any_bytes_are_a_text(text):
    long = ["thing " * 17_000, "x" * 100_000, "語" * 34_000, " " * 100_000, "\u0301" * 50_000]
    batch = [*TEXTS, *SCRIPTS, *long, b"\xff\xfe\xfd", b"\xc3(thing", b"\xed\xa0\x80"]
    rows = text(batch)["embedding"].numpy()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    for i, value in enumerate(batch):
        assert difference(rows[i], text([value])["embedding"][0]) < 1e-5, i
    assert difference(text([long[0]])["embedding"], text(["thing " * 8])["embedding"]) < 1e-6  # max_length is 8


def test_too_many_tokens_are_reported(signatures):
    ids = tf.ones([2, 9], tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="1 to 8 tokens a text"):
        signatures["text_encoder"]["tokens"](input_word_ids=ids, input_mask=ids, input_type_ids=ids)


def test_serving_files_are_what_the_server_reads(export):
    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse((export / "serving/models.config").read_text(), config)
    models = {model.name: model.base_path for model in config.model_config_list.config}
    assert models == {name: f"/models/{name}" for name in ENCODERS}
    for name in ENCODERS:
        assert (export / name / "1/saved_model.pb").is_file()
    lines = (export / "serving/batching_parameters.txt").read_text().splitlines()
    assert all(re.fullmatch(r"#.*|[a-z_]+ \{ value: (\d+|true) \}", line) for line in lines)


def run_proto(signatures, request):
    """What the server does with a gRPC request."""
    signature = signatures[request.model_spec.name][request.model_spec.signature_name]
    inputs = {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
    response = predict_pb2.PredictResponse(model_spec=request.model_spec)
    for name, value in signature(**inputs).items():
        response.outputs[name].CopyFrom(tf.make_tensor_proto(value.numpy()))
    return response


@pytest.mark.parametrize("name", ENCODERS)
def test_warm_up_requests_run(export, signatures, name):
    requests = []
    for record in tf.data.TFRecordDataset(str(export / name / "1" / WARMUP_FILE)).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log" and log.predict_log.request.model_spec.name == name
        requests.append(log.predict_log.request)
    sizes = [run_proto(signatures, request).outputs["embedding"].tensor_shape.dim[0].size for request in requests]
    assert sizes == [1, 2, 16, 64]


@pytest.mark.parametrize("name", ENCODERS)
def test_the_example_request_is_answered(export, signatures, name):
    body = json.loads((export / f"serving/{name}_request.json").read_text(encoding="utf-8"))
    ((key, _),) = body["instances"][0].items()
    values = [row[key] for row in body["instances"]]
    values = [base64.b64decode(v["b64"]) if isinstance(v, dict) else v.encode() for v in values]
    response = run_proto(signatures, predict_request(name, {key: values}, body["signature_name"]))
    direct = signatures[name]["serving_default"](**{key: tf.constant(values)})["embedding"]
    assert difference(tf.make_ndarray(response.outputs["embedding"]), direct) == 0.0


class Servicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, signatures):
        self.signatures = signatures

    def Predict(self, request, context):
        return run_proto(self.signatures, request)


@pytest.mark.parametrize("as_process", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_grpc_client_as_exported(export, signatures, image, text, tmp_path, monkeypatch, capsys, as_process):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Servicer(signatures), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    (tmp_path / "photo.png").write_bytes(pictures()[0])
    command = [str(export / "serving/grpc_client.py"), "photo.png", "thing w1", "ding"]
    environment = {"SERVER": f"localhost:{port}", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    assert "mural_tf" not in pathlib.Path(command[0]).read_text()
    if as_process:
        run = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        printed = run.stdout
    else:
        monkeypatch.setenv("SERVER", environment["SERVER"])
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.chdir(tmp_path)
        runpy.run_path(command[0], run_name="__main__")
        printed = capsys.readouterr().out
    server.stop(None)
    expected = image([pictures()[0]])["embedding"] @ tf.transpose(text(["thing w1", "ding"])["embedding"])
    lines = [f"{value:.4f}  {words}" for value, words in zip(expected[0], ("thing w1", "ding"))]
    assert printed.splitlines() == lines


class RestServer(http.server.BaseHTTPRequestHandler):
    """Answers rows as TensorFlow Serving's documents say: a row is the input, or an object that names it."""

    def do_POST(self):
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
        values = [next(iter(row.values())) if isinstance(row, dict) else row for row in rows]
        values = [base64.b64decode(value["b64"]) if isinstance(value, dict) else value for value in values]
        name = re.fullmatch("/v1/models/(.*):predict", self.path)[1]
        vectors = self.server.encoders[name](values)["embedding"].numpy()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"predictions": vectors.tolist()}).encode())


def test_rest_client_as_exported(export, image, text, tmp_path):
    client = export / "serving/rest_client.py"
    (tmp_path / "photo.png").write_bytes(pictures()[0])
    with http.server.HTTPServer(("127.0.0.1", 0), RestServer) as server:
        server.encoders = {"image_encoder": image, "text_encoder": text}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, str(client), "photo.png", "thing w1", "ding"]
        environment = {"SERVER": f"http://127.0.0.1:{server.server_port}"}
        run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        server.shutdown()
    assert run.returncode == 0, run.stderr
    expected = image([pictures()[0]])["embedding"] @ tf.transpose(text(["thing w1", "ding"])["embedding"])
    lines = [f"{value:.4f}  {words}" for value, words in zip(expected[0], ("thing w1", "ding"))]
    assert run.stdout.splitlines() == lines and len(client.read_text().splitlines()) <= 25


def test_vectors_over_http_as_the_page_shows(export, image, text, tmp_path, monkeypatch):
    """All of the program of docs/serving.md but the port."""
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(# vectors\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    apps = []
    monkeypatch.setattr(web, "run_app", lambda app, host, port: apps.append(app))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported").symlink_to(export)
    exec(compile(program, "vectors.py", "exec"), {})
    with running(apps[0]) as server:
        status, vectors, _ = ask(server.port, "/texts", ["thing w1", "ding"])
        assert status == 200 and difference(vectors, text(["thing w1", "ding"])["embedding"]) < 1e-6
        status, vector, _ = ask(server.port, "/picture", pictures()[0])
        assert status == 200 and difference([vector], image(pictures()[:1])["embedding"]) < 1e-6
        assert ask(server.port, "/picture", b"no picture")[0] == 500


def test_exports_compute_in_float32_whatever_training_chose():
    config = toy_config("")
    config.image_tower.precision = config.text_tower.precision = "mixed_bfloat16"
    model = toy_model(config)
    assert computes_in_bfloat16(model.image_encoder) and computes_in_bfloat16(model.text_encoder)
    exact = in_precision(model, config, toy_tokenizer().vocabulary_size)
    assert not computes_in_bfloat16(exact.image_encoder) and not computes_in_bfloat16(exact.text_encoder)
    assert [v.shape for v in exact.variables] == [v.shape for v in model.variables]
    for ours, theirs in zip(exact.trainable_variables, model.trainable_variables):
        assert difference(ours, theirs) == 0.0, ours.name
    rounding = difference(model.embed_images(pixels(config)), exact.embed_images(pixels(config)))
    assert 1e-4 < rounding < 0.1
    with pytest.raises(UserError, match="Unknown precision 'float16' of an export"):
        in_precision(model, config, 0, "float16")


@pytest.mark.slow
def test_an_export_in_bfloat16_has_weights_of_half_the_size(tmp_path):
    config = toy_config("")
    config.image_tower.precision = config.text_tower.precision = "float32"
    model, sizes, found = toy_model(config), {}, {}
    for precision in ("float32", "bfloat16"):
        folder = export_model(model, toy_tokenizer(), config, tmp_path / precision, precision=precision)
        sizes[precision] = sum(file.stat().st_size for file in folder.rglob("variables.data*"))
        embedder = mural_tf.load(folder)
        found[precision] = embedder.encode_text(TEXTS), embedder.encode_image(pictures())
    assert sizes["bfloat16"] < 0.6 * sizes["float32"]
    for exact, rounded in zip(*found.values()):
        assert 1e-4 < difference(exact, rounded) < 0.1
    rounded = in_precision(model, config, toy_tokenizer().vocabulary_size, "bfloat16")
    with pytest.raises(UserError, match="train with 'mixed_bfloat16'"):
        rounded.compile()


@pytest.mark.slow
def test_saved_model_cli_works_as_pasted(export, text, tmp_path):
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    (block,) = (part for part in page.split("```")[1::2] if "saved_model_cli show" in part)
    for name in ENCODERS:
        (tmp_path / name).symlink_to(export / name)
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = []
    for line in block.strip().splitlines():
        run = subprocess.run(line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, (line, run.stderr[-2000:])
        printed.append(run.stdout)
    assert "image_bytes" in printed[0]
    numbers = printed[1].split("embedding:")[1].replace("[", " ").replace("]", " ").split()
    expected = text(["a red heart", "moyo mwekundu"])["embedding"].numpy()
    assert difference(np.array(numbers, float), expected.ravel()) < 1e-4
