"""What the server gives at most, over a model that waits for a gate: bytes, time, connections, clients that leave."""

import asyncio
import contextlib
import functools
import gc
import json
import logging
import socket
import threading
import time
import tracemalloc
import types

import numpy as np
import pytest
from prometheus_client import REGISTRY
from running_app import Multiplier, ask, running, until

from mural_tf.errors import UserError
from mural_tf.search.server import app
from mural_tf.search.server.batches import ServedModel
from mural_tf.search.server.limits import Budget, Limits, Overloaded
from mural_tf.search.server.rest_json import MARKS, answer_pieces, parse_body

LIMITS = Limits(
    window=0.0, max_batch=4, max_rows=1000, max_request_bytes=400_000, max_bytes_in_flight=1_000_000,
    request_timeout=20.0, body_timeout=20.0, max_connections=4,
)  # fmt: skip
PATH = "/v1/models/doubler:predict"


@pytest.fixture
def serve(caplog):
    """Returns `serve(limits, width)` → (port, the signature); nothing may leave a stack trace in the log."""
    contexts = []

    def start(limits=LIMITS, width=1, signature=None):
        signature = signature or Multiplier(2.0, width)
        model = ServedModel("doubler", 1, {"serving_default": signature}, {}, limits)
        contexts.append(running(app.create_app(types.SimpleNamespace(models={"doubler": model}), limits), limits))
        return contexts[-1].__enter__().port, signature

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


def clients_that_left():
    """How many the process counted."""
    return REGISTRY.get_sample_value("mural_requests_total", {"model": "doubler", "status": "499"}) or 0.0


def test_a_large_request_leaves_as_much_to_others():
    budget = Budget(100, "bytes")
    with budget.share() as first, budget.share() as second:
        first(30)
        first(20)
        with pytest.raises(Overloaded, match="hold 50 bytes"):
            second(26)
        second(25)  # a small one has room where a large one has none
        with pytest.raises(Overloaded):
            first(1)
        assert budget.used == 75
    assert budget.used == 0


def test_limits_are_checked_and_fit_together():
    with pytest.raises(UserError, match="at least twice max_request_bytes"):
        Limits(max_request_bytes=2**26)
    with pytest.raises(UserError, match="must not be below max_image_pixels"):
        Limits(max_request_pixels=10**6)
    with pytest.raises(UserError, match="request_timeout=nan must be above 0"):
        Limits(request_timeout=float("nan"))
    with pytest.raises(UserError, match="max_batch=0 must be above 0"):
        Limits(max_batch=0)
    assert Limits(window=0).window == 0


@pytest.mark.parametrize("value", ["[]", '"ab"', "{}", '{"":0}', "1000", "null", '"\u20ac"', "[[[1.5]]]"])
def test_what_is_counted_bounds_the_memory_of_the_values(value):
    body = f'{{"instances": [{", ".join([value] * 5000)}]}}'.encode()
    tracemalloc.start()
    parsed = parse_body(body)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(parsed["instances"]) == 5000 and used < 100 * sum(map(body.count, MARKS))


@pytest.mark.parametrize("value", ["[]", "1"])
def test_tiny_values_are_refused_long_before_the_body_is_there(serve, value):
    port, signature = serve(Limits(max_values=20_000))
    for beginning in ('{"instances": [', '{"inputs": [['):
        with send(port, (beginning + ", ".join([value] * 40_000)).encode(), length=2**24) as connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert not signature.runs


def test_what_is_refused_is_not_held(serve):
    port, _ = serve(Limits(max_rows=1))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(6):
            assert ask(port, PATH, b'{"instances": [' + b"1.5, " * 50_000 + b"1]}")[0] == 400
        assert tracemalloc.get_traced_memory()[0] < 4_000_000  # each was 1.8 MB; the last may still be there
    finally:
        tracemalloc.stop()
        gc.enable()


def test_bodies_in_flight_are_bounded_and_small_ones_still_come_in(serve):
    port, _ = serve()
    before = clients_that_left()
    large = json.dumps({"instances": [1.0], "filler": "x" * 350_000}).encode()
    # So much that another is refused, and so little that neither is, should another be in before them.
    first = [send(port, large[:200_000], len(large)) for _ in range(2)]
    until(lambda: ask(port, PATH, large)[0] == 503)
    status, answer, headers = ask(port, PATH, large)
    assert status == 503 and headers["Retry-After"] == "1" and "bytes already" in answer["error"]
    assert ask(port, PATH, {"instances": [4]})[:2] == (200, {"predictions": [[8.0]]})
    for connection in first:
        connection.close()
    until(lambda: ask(port, PATH, large)[0] == 200)
    until(lambda: clients_that_left() == before + 2)  # while they sent; each is noticed by itself


def test_clients_that_leave_are_not_computed_nor_what_they_have_left_to_run(serve):
    port, signature = serve()
    before = clients_that_left()
    signature.gate.clear()
    first = send(port, json.dumps({"instances": list(range(8))}).encode())
    assert signature.began.wait(20)
    second = send(port, b'{"instances": [77, 78]}')
    long = send(port, json.dumps({"instances": list(range(10, 20))}).encode())
    assert ask(port, "/healthz")[0] == 200  # so the three before it are in
    first.close()  # its second part is not run
    second.close()
    until(lambda: clients_that_left() == before + 2)
    signature.gate.set()
    assert b"200 OK" in long.recv(1000)
    assert signature.runs == [[0, 1, 2, 3], [10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
    long.close()


def test_what_is_past_its_deadline_is_not_computed(serve):
    port, signature = serve(Limits(request_timeout=1.0))
    signature.gate.clear()
    assert ask(port, PATH, {"instances": [1]})[0] == 503
    status, answer, headers = ask(port, PATH, {"instances": [2]})
    assert status == 503 and "No answer within 1 seconds" in answer["error"] and headers["Retry-After"] == "1"
    signature.gate.set()
    assert ask(port, PATH, {"instances": [3]})[0] == 200
    assert signature.runs == [[1], [3]]


class SlowOnLarge(Multiplier):
    """Waits for its gate with more than one row."""

    def run(self, inputs):
        return super().run(inputs) if len(inputs["x"]) > 1 else {"y": 2.0 * inputs["x"][:, None]}


def test_small_requests_wait_for_no_large_one(serve, monkeypatch):
    port, signature = serve(signature=SlowOnLarge())
    signature.gate.clear()
    with contextlib.ExitStack() as stack:
        large = [stack.enter_context(send(port, b'{"instances": [1, 2, 3]}')) for _ in range(3)]
        assert signature.began.wait(20)
        assert ask(port, PATH, {"instances": [77]})[:2] == (200, {"predictions": [[154.0]]})
        assert len(signature.runs) == 1  # a large one still runs, and all others wait
        signature.gate.set()
        assert all(b"200 OK" in connection.recv(1000) for connection in large)
    gate, original = threading.Event(), app.parse_body
    monkeypatch.setattr(app, "parse_body", lambda body: original(body) if len(body) < 10**5 else gate.wait(20) and {})
    monkeypatch.setattr(app, "MANY_VALUES", 1000)
    with send(port, b'{"instances": [' + b"1," * 10**5 + b"1]}") as large:
        photo = {"instances": [5], "photo": "x" * (app.SMALL_BODY + 1)}  # parsed in a thread, too
        assert ask(port, PATH, photo)[:2] == (200, {"predictions": [[10.0]]})
        gate.set()
        assert b" 400 " in large.recv(1000)


@pytest.mark.parametrize("inputs, pixels, is_large", [
    ({"text": np.array([b"a" * 2**16] * 16, object)}, None, False),
    ({"text": np.array([b"a"] * 17, object)}, None, True),
    ({"text": np.array([b"a" * 20_000_000], object)}, None, True),
    ({"image_bytes": np.array([b"a" * 9_000_000], object)}, [12_000_000], False),  # a photo
    ({"image_bytes": np.array([b"a"] * 2, object)}, [9_000_000] * 2, True),
])  # fmt: skip
def test_what_is_large_by_rows_pixels_or_texts_has_a_line_of_its_own(inputs, pixels, is_large):
    model = ServedModel("model", 1, {"call": Multiplier()}, {}, Limits())

    async def note(line, *arguments):
        return line

    for line in (False, True):
        model._lines["call", line] = functools.partial(note, line)
    assert asyncio.run(model.run("call", inputs, None if pixels is None else np.array(pixels))) is is_large


def test_connections_are_limited(serve):
    port, _ = serve()
    idle = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(LIMITS.max_connections)]
    until(lambda: ask(port, PATH, {"instances": [1]})[0] == 503)
    status, answer, headers = ask(port, PATH, {"instances": [1]})
    assert (status, answer["error"]) == (503, "Too many connections; try again later.")
    assert headers["Retry-After"] == "1"
    for connection in idle:
        connection.close()
    until(lambda: ask(port, PATH, {"instances": [1]})[0] == 200)


def test_a_connection_without_a_request_is_closed(serve):
    port, _ = serve(Limits(idle_timeout=0.1))
    for beginning in (b"", b"POST / HTTP/1.1\r\nHost: "):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(beginning)
            assert connection.recv(1000) == b""


def test_large_answers_come_whole_and_only_to_those_who_read(serve):
    port, _ = serve(Limits(max_batch=64, body_timeout=2.0, max_rows=100), width=20_000)
    before = clients_that_left()
    status, answer, _ = ask(port, PATH, {"instances": list(range(5))})
    assert status == 200 and np.array_equal(answer["predictions"], np.repeat(2.0 * np.arange(5)[:, None], 20_000, 1))
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    body = json.dumps({"instances": [0.123] * 100}).encode()
    connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    until(lambda: clients_that_left() == before + 1)  # it never reads its 40 MB
    connection.close()


def test_answers_are_the_json_of_their_arrays():
    a, b = np.arange(60_000, dtype=np.float32).reshape(3, 20_000), np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = [{"a": x, "b": y} for x, y in zip(a.tolist(), b.tolist())]
    for outputs, is_rows, expected, pieces in (
        ({"a": a}, True, {"predictions": a.tolist()}, 5),
        ({"a": a}, False, {"outputs": a.tolist()}, 5),
        ({"a": a, "b": b}, True, {"predictions": rows}, 5),
        ({"a": a, "b": b}, False, {"outputs": {"a": a.tolist(), "b": b.tolist()}}, 1),
    ):
        found = list(answer_pieces(outputs, is_rows))
        assert json.loads("".join(found)) == expected and len(found) == pieces


@pytest.mark.parametrize("line", [b"\x16\x03\x01 hello", b"GET / HTTP/9.9", b"POST / HTTP/1.1\r\nContent-Length: -1"])
def test_what_is_not_http_gets_a_json_error(serve, line):
    port, _ = serve()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(line + b"\r\n\r\n")
        answer = b""
        while piece := connection.recv(1000):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.") and b" 400 " in head and "not HTTP" in json.loads(body)["error"]


def test_a_client_that_still_sends_a_body_that_cannot_be_read_gets_the_answer(serve, monkeypatch):
    monkeypatch.setattr(app, "LAST_WORDS", 20.0)
    port, _ = serve()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 300000\r\n\r\n"
        connection.sendall(head.encode() + b" " * 1000)
        for _ in range(3):  # a connection that was closed at once would be reset
            time.sleep(0.1)
            connection.sendall(b" " * 1000)
        assert b" 400 " in connection.recv(1000)
