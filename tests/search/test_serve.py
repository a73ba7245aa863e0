"""The server around the page: how it starts and ends; bounds of bytes, time and clients; clients that leave."""

import asyncio
import gc
import gzip
import http.client
import json
import logging
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from aiohttp import web
from odd_pictures import gif_of_size, png_of_size, saved
from PIL import Image
from refusals import assert_refused
from running_app import ask, running, until
from search_data import ColorEmbedder, png, shop, unit, write_folder

from benchmarks.page_attack import attack, resident
from mural_search.index import Index, take_fingerprint
from mural_search.items import Item
from mural_search.server.app import DEADLINE, create_app, run_options, serve
from mural_search.server.limits import BadRequest, Limits, check_picture
from mural_search.server.routes import search_routes

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = "/length"


class Route:
    """POST /length answers with the number of bytes of its body, when its gate is open; remembers the numbers."""

    def __init__(self):
        self.began, self.done = [], []
        self.is_open = True

    async def length(self, request):
        length = len(await request.read())
        self.began.append(length)
        while not self.is_open:
            await asyncio.sleep(0.01)
        self.done.append(length)
        return web.json_response(length)


@pytest.fixture
def start(caplog):
    """Returns `start(limits)` → (port, the route); nothing may leave a stack trace in the log."""
    contexts = []

    def start(limits=None):
        route = Route()
        contexts.append(running(create_app([web.post(PATH, route.length)], limits)))
        return contexts[-1].__enter__().port, route

    yield start
    for context in contexts:
        context.__exit__(None, None, None)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def send(port, body, length=None):
    """Sends a request, or the beginning of one that claims to be longer; returns the open connection."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_many_requests_and_large_bodies_are_refused_and_health_is_not(start, monkeypatch):
    monkeypatch.setattr("mural_search.server.limits.REQUESTS", 4)
    monkeypatch.setattr("mural_search.server.limits.LARGE_BODIES", 1)
    port, _ = start()
    large = bytes(2**20 + 1)
    first = send(port, large[:1000], len(large))
    until(lambda: ask(port, PATH, large)[0] == 503)
    status, answer, headers = ask(port, PATH, large)
    assert status == 503 and headers["Retry-After"] == "1" and "1 large requests are being" in answer["error"]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as unknown:  # its length counts as large
        unknown.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n".encode())
        assert b" 503 " in unknown.recv(1000)
    assert ask(port, PATH, b"1234")[:2] == (200, 4)
    others = [send(port, b"{", 100) for _ in range(3)]
    until(lambda: ask(port, PATH, b"1")[0] == 503)
    assert ask(port, PATH, b"1")[1]["error"].startswith("4 requests are being answered")
    assert ask(port, "/healthz")[0] == 200
    for connection in (first, *others):
        connection.close()
    until(lambda: ask(port, PATH, large)[0] == 200)


def test_clients_that_leave_and_requests_past_their_deadline_are_dropped(start):
    port, route = start(Limits(timeout=1.0))
    route.is_open = False
    with send(port, b"1"):
        until(lambda: route.began == [1])
    status, answer, headers = ask(port, PATH, b"12")
    assert status == 503 and "No answer within 1 seconds" in answer["error"] and headers["Retry-After"] == "1"
    with send(port, b"{", 100) as connection:  # the body does not arrive
        assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")
    route.is_open = True
    assert ask(port, PATH, b"123")[:2] == (200, 3)
    assert (route.began, route.done) == ([1, 2, 3], [3])


@pytest.mark.parametrize("host, status", [
    ("localhost", 200), ("localhost:8501", 200), ("[::1]:80", 200), ("evil.example", 403), ("a]b", 400), ("[", 400),
])  # fmt: skip
def test_a_name_that_leads_here_from_elsewhere_is_not_answered(host, status):
    with running(create_app([], hosts=("localhost", "::1"))) as server:
        assert ask(server.port, "/healthz", headers={"Host": host})[0] == status


def test_health_and_the_headers_of_every_answer(start):
    port, _ = start()
    status, answer, headers = ask(port, "/healthz")
    assert (status, answer) == (200, {"status": "ok"})
    assert (headers["Server"], headers["X-Content-Type-Options"]) == ("mural_tf", "nosniff")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"


def test_packed_bodies_are_bounded_as_they_unpack_and_bytes_that_are_no_http_get_an_error(start):
    port, _ = start(Limits(max_request_bytes=2**20))
    packed = gzip.compress(b"thing")
    assert ask(port, PATH, packed, headers={"Content-Encoding": "gzip"})[:2] == (200, 5)
    assert ask(port, PATH, bytes(2**20 + 1))[0] == 413
    bomb = gzip.compress(b" " * 2**26)
    assert ask(port, PATH, bomb, headers={"Content-Encoding": "gzip"})[0] in (413, 400)  # 400: aiohttp 3.13
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"\0\1\2 nonsense\r\n\r\n")
        assert b" 400 " in connection.recv(1000)
    assert ask(port, "/healthz")[0] == 200


SCANS = saved(Image.new("L", (40, 30), 77), "JPEG", progressive=True)
BOMB = SCANS[:-2] + 100 * SCANS[SCANS.rindex(b"\xff\xda") : -2] + SCANS[-2:]


@pytest.mark.parametrize("picture, words", [
    (BOMB, "a JPEG of 106 scans; at most 100"),
    (png_of_size(8191, 8191), "has 67.1 million pixels by its header"),
    (png_of_size(4500, 4500, 6), "has 81.0 million pixels by its header (transparent pixels count 4 times)"),
    (png_of_size(2**31 - 1, 2**31 - 1), "million pixels"),
    (gif_of_size(9000), "million pixels"),
])  # fmt: skip
def test_pictures_that_claim_too_much_are_refused_before_decoding(picture, words):
    with pytest.raises(BadRequest, match=re.escape(words)):
        check_picture(picture)


def test_pictures_within_the_bounds_pass_and_pixels_of_a_palette_may_be_transparent(monkeypatch):
    palette = Image.new("P", (1000, 1000))
    palette.info["transparency"] = 0
    for picture in (SCANS, png_of_size(7000, 7000), b"", b"no picture"):
        check_picture(picture)
    monkeypatch.setattr("mural_search.server.limits.IMAGE_PIXELS", 3_999_999)
    check_picture(png((1, 2, 3), (1000, 1000)))
    for image in (Image.new("RGBA", (1000, 1000)), palette):
        with pytest.raises(BadRequest, match="4.0 million pixels"):
            check_picture(saved(image, "PNG"))


def test_a_wrong_address_is_a_page_for_a_browser_and_json_for_others(start):
    port, _ = start()
    status, page, headers = ask(port, "/a/b/c", headers={"Accept": "text/html,*/*"})
    assert status == 404 and headers.get_content_type() == "text/html" and b'href="../../search"' in page
    assert ask(port, "/a/b/c")[:2] == (404, {"error": "404: Not Found"})
    assert ask(port, PATH)[:2] == (405, {"error": "405: Method Not Allowed"})


SLOW = """
import asyncio
from aiohttp import web
from mural_search.server import app
async def slowly(request):
    print("running", flush=True)
    await asyncio.sleep(1)
    return web.json_response(6)
app.load_page = lambda *_: [web.get("/slow", slowly)]  # no model, so no TensorFlow, which takes seconds
from mural_tf.commands import run
run()
"""


def test_the_program_answers_and_ends_on_sigterm(tmp_path):
    """The request that runs when the signal comes gets its answer."""
    (tmp_path / "index.sqlite").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", SLOW, "serve", f"--index={tmp_path}", "--port=0", "--hosts=Shop.example"]
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        line = process.stdout.readline()
        assert line.startswith(f"Serving {tmp_path} at http://localhost:"), process.stderr.read()
        port = int(re.search(r":(\d+)/search$", line)[1])
        for host, status in (("evil.example", 403), ("shop.example", 200), (f"127.0.0.1:{port}", 200), ("[::1]", 200)):
            assert ask(port, "/healthz", headers={"Host": host})[0] == status  # DNS may lead others here
        refused = ask(port, "/healthz", headers={"Host": "laden.example"})[1]["error"]
        assert "not 'laden.example': --hosts=NAME gives it further names." in refused
        connection = http.client.HTTPConnection("localhost", port, timeout=30)
        connection.request("GET", "/slow")
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        code, log = process.wait(30), process.stderr.read()
        assert answer.status == 200 and json.loads(answer.read()) == 6, log
        assert code == 0 and "Traceback" not in log
    finally:
        process.kill()
    with pytest.raises(OSError):
        socket.create_connection(("localhost", port), timeout=1)


STUCK = """
import asyncio, re, threading
from aiohttp import web
import mural_search.server.app as app

async def stuck(request):
    print("stuck", flush=True)
    if request.query_string == "lock":  # `re` keeps Python's lock
        await asyncio.get_running_loop().run_in_executor(None, re.match, "(a|a)*b", "a" * 60)
    await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)

app.load_page = lambda *_: [web.get("/stuck", stuck)]
app.SHUTDOWN, app.DEADLINE = 0.5, 1.5
from mural_tf.commands import run
run()
"""


def test_running_requests_end_before_the_program_is_ended():
    assert 0 < run_options()["shutdown_timeout"] < DEADLINE


@pytest.mark.parametrize("what", ["lock", "thread"])
def test_sigterm_ends_the_program_whatever_runs(tmp_path, what):
    (tmp_path / "index.sqlite").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", STUCK, "serve", f"--index={tmp_path}", "--port=0"]
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE)
    try:
        port = int(re.search(r":(\d+)/search$", process.stdout.readline())[1])
        connection = http.client.HTTPConnection("localhost", port, timeout=30)
        connection.request("GET", f"/stuck?{what}")
        assert process.stdout.readline() == "stuck\n"
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == -signal.SIGKILL
        assert time.monotonic() - begin < 8
    finally:
        process.kill()


def test_what_cannot_be_served_is_said_in_one_line(tmp_path):
    """Before a model is loaded."""
    (tmp_path / "index.sqlite").write_bytes(b"no database")
    (tmp_path / "empty").mkdir()
    Index.build(tmp_path / "good", ColorEmbedder(), [str(write_folder(tmp_path / "images"))])
    with socket.create_server(("localhost", 0)) as taken:
        for options, words in (
            ({"index": ""}, ["Nothing to serve: give --index=INDEX", "docs/serving.md"]),
            ({"index": tmp_path, "port": taken.getsockname()[1]}, ["Cannot listen on localhost", "in use. Try"]),
            ({"index": tmp_path / "good", "export": tmp_path / "gone"}, ["gone does not exist", "export"]),
            ({"index": tmp_path / "good", "export": tmp_path / "empty"}, ["empty is neither a workdir"]),
            ({"index": tmp_path / "empty"}, ["is not an index"]),
            ({"index": tmp_path}, ["index.sqlite is damaged"]),
        ):
            assert_refused(lambda given=options: serve(**{"port": 0, **given}), words)


@pytest.mark.slow
def test_ten_thousand_requests_half_of_them_malformed(tmp_path, caplog):
    """No 500, and memory that does not grow."""
    items = [Item(item.name, str(tmp_path / "a.png"), fields=item.fields, captions=item.captions) for item in shop()]
    (tmp_path / "a.png").write_bytes(png((250, 0, 0), (300, 200)))
    vectors = unit(np.random.default_rng(0).normal(size=(242, 3)))
    index = Index(items, vectors, take_fingerprint(ColorEmbedder()))
    with running(create_app(search_routes(index, ColorEmbedder()))) as server:
        measure = lambda: gc.collect() * 0 + resident(os.getpid())  # noqa: E731
        counts, wrong, memory = attack(server.port, len(index), 10_000, measure)
    print(f"\n{counts}; memory in MB after each thousand: {memory}")
    assert not wrong and max(memory[2:]) - memory[1] < 30
    assert not [record for record in caplog.records if record.exc_info]
