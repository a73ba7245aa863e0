"""What the server bears, over a model that waits for a gate: bytes, time, many clients, clients that leave; batches."""

import asyncio
import gc
import json
import logging
import os
import socket

import numpy as np
import pytest
from odd_pictures import saved
from PIL import Image
from running_app import Multiplier, ask, running, until
from search_data import ColorEmbedder, png, shop, unit

from benchmarks.page_attack import attack
from benchmarks.rest_attack import resident
from mural_tf.search.index import Index, take_fingerprint
from mural_tf.search.items import Item
from mural_tf.search.server.app import create_app
from mural_tf.search.server.batches import Batcher
from mural_tf.search.server.limits import Limits, prepare_images
from mural_tf.search.server.rest_json import BadRequest, answer_json
from mural_tf.search.server.search_page import search_routes

PATH = "/v1/models/doubler:predict"


@pytest.fixture
def serve(caplog):
    """Returns `serve(limits, width)` → (port, the signature); nothing may leave a stack trace in the log."""
    contexts = []

    def start(limits=None, width=1):
        signature = Multiplier(2.0, width)
        contexts.append(running(create_app(signature.model(), limits)))
        return contexts[-1].__enter__().port, signature

    yield start
    for context in contexts:
        context.__exit__(None, None, None)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def send(port, body, length=None, path=PATH):
    """Sends a request, or the beginning of one that claims to be longer; returns the open connection."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_many_requests_and_large_bodies_are_refused_and_health_is_not(serve, monkeypatch):
    monkeypatch.setattr("mural_tf.search.server.limits.REQUESTS", 4)
    monkeypatch.setattr("mural_tf.search.server.limits.LARGE_BODIES", 1)
    port, _ = serve()
    large = json.dumps({"instances": [1.0], "filler": "x" * 2**20}).encode()
    first = send(port, large[:1000], len(large))
    until(lambda: ask(port, PATH, large)[0] == 503)
    status, answer, headers = ask(port, PATH, large)
    assert status == 503 and headers["Retry-After"] == "1" and "1 large requests are being" in answer["error"]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as unknown:  # its length counts as large
        unknown.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n".encode())
        assert b" 503 " in unknown.recv(1000)
    assert ask(port, PATH, {"instances": [4]})[:2] == (200, {"predictions": [[8.0]]})
    others = [send(port, b"{", 100) for _ in range(3)]
    until(lambda: ask(port, PATH, {"instances": [1]})[0] == 503)
    assert ask(port, PATH, {"instances": [1]})[1]["error"].startswith("4 requests are being answered")
    assert ask(port, "/healthz")[0] == 200
    for connection in (first, *others):
        connection.close()
    until(lambda: ask(port, PATH, large)[0] == 200)


def test_clients_that_leave_are_not_computed(serve):
    port, signature = serve(Limits(max_batch=4))
    signature.gate.clear()
    first = send(port, json.dumps({"instances": list(range(8))}).encode())
    assert signature.began.wait(20)
    second = send(port, b'{"instances": [77, 78]}')
    long = send(port, json.dumps({"instances": list(range(10, 20))}).encode())
    assert ask(port, "/healthz")[0] == 200  # so the three before it are in
    first.close()  # its second part is not run
    second.close()
    until(lambda: ask(port, "/healthz")[0] == 200)
    for _ in range(20):
        ask(port, "/healthz")
    signature.gate.set()
    assert b"200 OK" in long.recv(1000)
    assert signature.runs == [[0, 1, 2, 3], [10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
    long.close()


def test_what_is_past_its_deadline_is_not_computed_and_slow_bodies_end(serve):
    port, signature = serve(Limits(timeout=1.0))
    signature.gate.clear()
    assert ask(port, PATH, {"instances": [1]})[0] == 503
    status, answer, headers = ask(port, PATH, {"instances": [2]})
    assert status == 503 and "No answer within 1 seconds" in answer["error"] and headers["Retry-After"] == "1"
    signature.gate.set()
    assert ask(port, PATH, {"instances": [3]})[0] == 200
    assert signature.runs == [[1], [3]]
    with send(port, b"{", 100) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("host, status", [
    ("localhost", 200), ("localhost:8501", 200), ("[::1]:80", 200), ("evil.example", 403), ("a]b", 400), ("[", 400),
])  # fmt: skip
def test_a_name_that_leads_here_from_elsewhere_is_not_answered(host, status):
    with running(create_app(Multiplier().model(), hosts=("localhost", "::1"))) as server:
        assert ask(server.port, "/healthz", headers={"Host": host})[0] == status


def test_what_a_picture_costs_and_what_cannot_be_read():
    """Pixels of transparent pictures count four times, also those of a palette."""
    palette = Image.new("P", (1000, 1000))
    palette.info["transparency"] = 0
    files = [png((1, 2, 3), (1500, 2000)), png((1, 2, 3, 4), (10, 10)), b"no"]
    files += [saved(image, "PNG") for image in (Image.new("RGBA", (1000, 1000)), palette)]
    ready, costs = prepare_images(files, "zeros")
    assert ready[2] == b"" and all(ready[place] == files[place] for place in (0, 3, 4))
    assert costs.tolist() == [4, 1, 1, 5, 5]
    with pytest.raises(BadRequest, match=r"Row 2 \(the first is 0\) is not an image"):
        prepare_images(files)


def test_a_wrong_address_is_a_page_for_a_browser_and_json_for_others(serve):
    port, _ = serve()
    status, page, headers = ask(port, "/a/b/c", headers={"Accept": "text/html,*/*"})
    assert status == 404 and headers.get_content_type() == "text/html" and b'href="../../search"' in page
    assert ask(port, "/a/b/c")[:2] == (404, {"error": "404: Not Found"})


def test_answers_are_the_json_of_their_arrays(serve):
    a, b = np.arange(60_000, dtype=np.float32).reshape(3, 20_000), np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = [{"a": x, "b": y} for x, y in zip(a.tolist(), b.tolist())]
    for outputs, is_rows, expected in (
        ({"a": a}, True, {"predictions": a.tolist()}),
        ({"a": a}, False, {"outputs": a.tolist()}),
        ({"a": a, "b": b}, True, {"predictions": rows}),
        ({"a": a, "b": b}, False, {"outputs": {"a": a.tolist(), "b": b.tolist()}}),
    ):
        assert json.loads(answer_json(outputs, is_rows)) == expected
    port, _ = serve(width=20_000)
    status, answer, _ = ask(port, PATH, {"instances": list(range(5))})
    assert status == 200 and np.array_equal(answer["predictions"], np.repeat(2.0 * np.arange(5)[:, None], 20_000, 1))


class Doubler(Multiplier):
    """y = 2 x, but 13 is an error; remembers the rows of every run, and waits for its gate."""

    def run(self, inputs):
        doubled = super().run(inputs)["y"]
        if 13 in inputs["x"]:
            raise ValueError("thirteen")
        return {"y": doubled[:, 0]}


def behind_a_run(*requests, most=4):
    """Asks [1], and the requests while it runs; returns their answers and the rows of the runs after it."""
    model = Doubler()

    async def main():
        batcher = Batcher(model.run, most)
        model.gate.clear()
        first = asyncio.create_task(batcher({"x": np.array([1])}))
        await asyncio.to_thread(model.began.wait, 20)
        tasks = [asyncio.create_task(batcher(*request)) for request in requests]
        await asyncio.sleep(0)
        model.gate.set()
        answers = await asyncio.gather(first, *tasks, return_exceptions=True)
        return answers[1:]

    return asyncio.run(main()), [np.shape(rows)[0] for rows in model.runs[1:]]


def x(*values):
    return ({"x": np.array(values)},)


@pytest.mark.parametrize("requests, answers, runs", [
    ([x(1), x(2, 3), x(4), x(5, 6), x(7)], [[2], [4, 6], [8], [10, 12], [14]], [4, 3]),
    ([x(*range(10)), x(77), x()], [[2 * n for n in range(10)], [154], []], [4, 1, 4, 2]),  # others come between parts
    # Of costs 3, 1, 1 and 9 a run of 4 takes two rows, then one, then the last alone, though it costs more.
    ([({"x": np.arange(4)}, np.array([3, 1, 1, 9])), x(5)], [[0, 2, 4, 6], [10]], [2, 1, 1, 1]),
    ([x(1), ({"x": np.ones([1, 3])},), x(2)], [[2], [[2, 2, 2]], [4]], [1, 1, 1]),  # of different shapes
    ([x(1), x(13), x(2)], [[2], "thirteen", [4]], [3, 1, 1, 1]),  # a failing request fails alone
])  # fmt: skip
def test_requests_share_runs_and_get_their_rows(requests, answers, runs):
    got, sizes = behind_a_run(*requests)
    assert [str(one) if isinstance(one, ValueError) else one["y"].tolist() for one in got] == answers and sizes == runs


@pytest.mark.slow
def test_ten_thousand_requests_half_of_them_malformed(tmp_path, caplog):
    """No 500, and memory that does not grow."""
    items = [Item(item.name, str(tmp_path / "a.png"), fields=item.fields, captions=item.captions) for item in shop()]
    (tmp_path / "a.png").write_bytes(png((250, 0, 0), (300, 200)))
    vectors = unit(np.random.default_rng(0).normal(size=(242, 3)))
    index = Index(items, vectors, take_fingerprint(ColorEmbedder()))
    with running(create_app(Multiplier().model(), Limits(), search_routes(index, ColorEmbedder()))) as server:
        measure = lambda: gc.collect() * 0 + resident(os.getpid())  # noqa: E731
        counts, wrong, memory = attack(server.port, len(index), 10_000, measure)
    print(f"\n{counts}; memory in MB after each thousand: {memory}")
    assert not wrong and max(memory[2:]) - memory[1] < 30
    assert not [record for record in caplog.records if record.exc_info]
