"""What the server gives at most, over models that wait for a gate: bytes, time, connections, and clients that leave."""

import http.client
import json
import logging
import random
import socket
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from aiohttp import web
from running_app import running

from mural_tf.errors import UserError
from mural_tf.search.server.app import app_of_models
from mural_tf.search.server.bodies import JsonScan
from mural_tf.search.server.limits import Budget, Limits, Overloaded
from mural_tf.search.server.rest_json import BadRequest, answer_pieces

LIMITS = Limits(
    window=0.0, max_batch=4, max_rows=1000, max_request_bytes=400_000, max_bytes_in_flight=1_000_000,
    request_timeout=20.0, body_timeout=20.0, max_connections=4,
)  # fmt: skip
PATH = "/v1/models/doubler:predict"


class Doubler:
    """A signature: y = [2 x, 2 x, …], `width` times, when its gate is open; remembers the rows of its runs."""

    def __init__(self, width=1):
        self.inputs = {"x": tf.TensorSpec([None], tf.float32)}
        self.takes_images, self.row_bytes, self.width = False, 4 * width, width
        self.runs, self.gate, self.began = [], threading.Event(), threading.Event()
        self.gate.set()

    def run(self, inputs):
        self.runs.append(inputs["x"].tolist())
        self.began.set()
        assert self.gate.wait(20)
        return {"y": np.repeat(2 * inputs["x"][:, None], self.width, axis=1)}


@pytest.fixture
def serve(caplog):
    """Returns `serve(limits, width)` → (port, the signature); nothing may leave a stack trace in the log."""
    contexts = []

    def start(limits=LIMITS, width=1):
        signature = Doubler(width)
        model = types.SimpleNamespace(name="doubler", version=1, signatures={"serving_default": signature}, metadata={})
        contexts.append(running(app_of_models([model], limits), limits))
        return contexts[-1].__enter__().port, signature

    yield start
    for context in contexts:
        context.__exit__(None, None, None)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def ask(port, body, path=PATH):
    """Returns (status, JSON, headers)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(
        "POST" if body else "GET", path, body if isinstance(body, (bytes, None.__class__)) else json.dumps(body)
    )
    response = connection.getresponse()
    data = response.read()
    connection.close()
    is_json = response.headers.get_content_type() == "application/json"
    return response.status, json.loads(data) if is_json else data.decode(), response.headers


def send(port, body, length=None):
    """Sends a request, or the beginning of one that claims to be longer; returns the open connection."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def until(condition):
    """Waits until it holds."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def answered(port, status):
    """How many requests the server counted with this status."""
    text = ask(port, None, "/metrics")[1]
    lines = [line for line in text.splitlines() if line.startswith("mural_requests_total") and f'"{status}"' in line]
    return sum(float(line.split()[-1]) for line in lines)


def test_a_large_request_leaves_as_much_to_others():
    budget = Budget(100, "bytes")
    with budget.share() as first, budget.share() as second:
        first.grow(30)
        first.grow(20)
        with pytest.raises(Overloaded, match="hold 50 bytes"):
            second.grow(26)
        second.grow(25)  # a small one has room where a large one has none
        with pytest.raises(Overloaded):
            first.grow(1)
        assert budget.used == 75
    assert budget.used == 0


def test_limits_fit_together():
    with pytest.raises(UserError, match="at least twice max_request_bytes"):
        Limits(max_request_bytes=2**26)
    with pytest.raises(UserError, match="must not be below max_image_pixels"):
        Limits(max_request_pixels=10**6)
    with pytest.raises(UserError, match="request_timeout=nan must be above 0"):
        Limits(request_timeout=float("nan"))


def random_value(draw, depth):
    kind = draw.randrange(7 if depth else 5)
    if kind < 3:
        return draw.choice([1, -2.5, None, True, "", 'a"b', "\\", '\\"', "[1,2]", '{"a":{}}', "é,\\\\", "\u2028"])
    if kind < 5:
        return "".join(draw.choice('ab\\"[],{}:é') for _ in range(draw.randrange(9)))
    values = [random_value(draw, depth - 1) for _ in range(draw.randrange(5))]
    return values if kind == 5 else {f'k{i}",': value for i, value in enumerate(values)}


def cost(value):
    """What `JsonScan` should count for a value."""
    if isinstance(value, str):
        return 32
    if isinstance(value, list):
        return 64 + 40 * max(0, len(value) - 1) + sum(map(cost, value))
    if isinstance(value, dict):
        return 72 + 40 * max(0, len(value) - 1) + sum(32 + 256 + cost(item) for item in value.values())
    return 0


@pytest.mark.parametrize("seed", range(30))
def test_the_scan_counts_values_wherever_the_body_is_cut(seed):
    draw = random.Random(seed)
    value = {"instances": [random_value(draw, 3) for _ in range(20)]}
    text = json.dumps(value, ensure_ascii=draw.random() < 0.5).encode()
    scan, position = JsonScan(20, 10**9), 0
    while position < len(text):
        step = draw.choice([1, 2, 3, 50])
        scan.feed(text[position : position + step])
        position += step
    assert scan.bytes == cost(value)
    with pytest.raises(BadRequest, match="at most 19"):
        JsonScan(19, 10**9).feed(text)
    with pytest.raises(web.HTTPRequestEntityTooLarge):
        JsonScan(20, cost(value) - 1).feed(text)


@pytest.mark.parametrize("value", ["[]", '"a"', "{}", '{"":0}', "1", "null"])
def test_tiny_rows_are_refused_long_before_the_body_is_there(serve, value):
    port, signature = serve(Limits(max_rows=1000, max_parsed_bytes=10**6))
    for beginning, status in (('{"instances": [', 400), ('{"inputs": [[', 413)):
        body = (beginning + ", ".join([value] * 40_000)).encode()
        with send(port, body, length=2**24) as connection:
            assert connection.recv(1000).startswith(f"HTTP/1.1 {status} ".encode())
    assert not signature.runs


def test_lists_that_would_be_many_objects_are_refused(serve):
    port, _ = serve(Limits(max_parsed_bytes=50_000))
    status, answer, _ = ask(port, {"inputs": [[[], [[]] * 1000]]})
    assert status == 413 and "in several requests" in answer["error"]
    # NumPy would make a square of the first row, and all strings as long as the longest.
    for rows in ([[0] * 300] + [[]] * 300, ["a" * 300_000] + [""] * 300):
        status, answer, _ = ask(port, {"inputs": rows})
        assert status == 400 and "'x'" in answer["error"]


def test_bodies_in_flight_are_bounded_and_small_ones_still_come_in(serve):
    port, _ = serve()
    large = json.dumps({"instances": [1.0], "filler": "x" * 350_000}).encode()
    first = [send(port, large[:300_000], len(large)) for _ in range(2)]
    until(lambda: ask(port, large)[0] == 503)
    status, answer, headers = ask(port, large)
    assert status == 503 and headers["Retry-After"] == "1" and "bytes already" in answer["error"]
    assert ask(port, {"instances": [4]})[:2] == (200, {"predictions": [[8.0]]})
    for connection in first:
        connection.close()
    until(lambda: ask(port, large)[0] == 200)
    assert answered(port, 499) == 2  # they left while they sent


def test_a_client_that_leaves_is_not_computed(serve):
    port, signature = serve()
    signature.gate.clear()
    first = send(port, b'{"instances": [0]}')
    assert signature.began.wait(20)
    second = send(port, b'{"instances": [1]}')
    long = send(port, json.dumps({"instances": list(range(10, 20))}).encode())
    time.sleep(0.1)
    second.close()
    until(lambda: answered(port, 499) == 1)
    signature.began.clear()
    signature.gate.set()
    assert b"200 OK" in first.recv(1000)
    assert b"200 OK" in long.recv(1000)
    assert signature.runs == [[0], [10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
    for connection in (first, long):
        connection.close()


def test_a_client_that_leaves_between_two_parts_ends_the_work(serve):
    port, signature = serve()
    signature.gate.clear()
    connection = send(port, json.dumps({"instances": list(range(12))}).encode())
    assert signature.began.wait(20)
    connection.close()
    until(lambda: answered(port, 499) == 1)
    signature.gate.set()
    assert ask(port, {"instances": [5]})[1] == {"predictions": [[10.0]]}
    assert signature.runs == [[0, 1, 2, 3], [5]]


def test_what_is_past_its_deadline_is_not_computed(serve):
    port, signature = serve(Limits(request_timeout=0.2))
    signature.gate.clear()
    assert ask(port, {"instances": [1]})[0] == 503
    status, answer, headers = ask(port, {"instances": [2]})
    assert status == 503 and "No answer within 0.2 seconds" in answer["error"] and headers["Retry-After"] == "1"
    signature.gate.set()
    assert ask(port, {"instances": [3]})[0] == 200
    assert signature.runs == [[1], [3]]


def test_one_large_request_lets_others_between_its_parts(serve):
    port, signature = serve()
    signature.gate.clear()
    with send(port, json.dumps({"instances": list(range(12))}).encode()) as long:
        assert signature.began.wait(20)
        with send(port, b'{"instances": [77]}') as short:
            time.sleep(0.1)
            signature.gate.set()
            assert b"200 OK" in short.recv(1000) and b"200 OK" in long.recv(1000)
    assert signature.runs.index([77]) < signature.runs.index([8, 9, 10, 11])


def test_connections_are_limited(serve):
    port, _ = serve()
    idle = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(LIMITS.max_connections)]
    until(lambda: ask(port, {"instances": [1]})[0] == 503)
    status, answer, headers = ask(port, {"instances": [1]})
    assert (status, answer["error"]) == (503, "Too many connections; try again later.") and headers[
        "Retry-After"
    ] == "1"
    for connection in idle:
        connection.close()
    until(lambda: ask(port, {"instances": [1]})[0] == 200)


def test_a_connection_without_a_request_is_closed(serve):
    port, _ = serve(Limits(idle_timeout=0.1))
    for beginning in (b"", b"POST / HTTP/1.1\r\nHost: "):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(beginning)
            assert connection.recv(1000) == b""


def test_large_answers_come_whole_and_only_to_those_who_read(serve):
    limits = Limits(max_batch=64, body_timeout=1.0, max_rows=100)
    port, _ = serve(limits, width=20_000)
    status, answer, _ = ask(port, {"instances": list(range(20))})
    assert status == 200 and np.array_equal(answer["predictions"], np.repeat(2.0 * np.arange(20)[:, None], 20_000, 1))
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    body = json.dumps({"instances": [0.123] * 100}).encode()
    connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    until(lambda: answered(port, 499) == 1)  # it never reads its 40 MB
    connection.close()


def test_answers_are_the_json_of_their_arrays():
    a, b = np.arange(60_000, dtype=np.float32).reshape(3, 20_000), np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = [{"a": x, "b": y} for x, y in zip(a.tolist(), b.tolist())]
    for outputs, is_rows, expected in (
        ({"a": a}, True, {"predictions": a.tolist()}),
        ({"a": a}, False, {"outputs": a.tolist()}),
        ({"a": a, "b": b}, True, {"predictions": rows}),
        ({"a": a, "b": b}, False, {"outputs": {"a": a.tolist(), "b": b.tolist()}}),
    ):
        pieces = list(answer_pieces(outputs, is_rows))
        assert json.loads("".join(pieces)) == expected and max(map(len, pieces)) < 300_000


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
