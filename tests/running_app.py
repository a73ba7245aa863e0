"""An application that answers on a free port while a test runs, how tests ask it, and a model that waits for a gate."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
import types

import numpy as np
from aiohttp import web

from mural_tf.search.server.app import run_options
from mural_tf.search.server.batches import ServedModel
from mural_tf.search.server.rest_json import Spec


@contextlib.contextmanager
def running(app):
    """Yields `.port` and `.loop`; the loop is in a thread, with the options of the command serve."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = web.AppRunner(app, **run_options())

    async def start():
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner.addresses[0][1]

    port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield types.SimpleNamespace(port=port, loop=loop)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def ask(port, path, body=None, method=None, headers=None):
    """Returns (status, JSON or bytes, headers) of a request; anything but bytes and text is sent as JSON."""
    own = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    own.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
    response = own.getresponse()
    data = response.read()
    own.close()
    is_json = response.headers.get_content_type() == "application/json"
    return response.status, json.loads(data) if is_json else data, response.headers


def until(condition):
    """Waits until it holds."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


class Multiplier:
    """A signature: y = [number · x, number · x, …], `width` times, when its gate is open; remembers its runs' rows."""

    takes_images = False

    def __init__(self, number=2.0, width=1):
        self.inputs = {"x": Spec(np.dtype(np.float32), (None,))}
        self.number, self.width, self.runs = number, width, []
        self.gate, self.began = threading.Event(), threading.Event()
        self.gate.set()

    def run(self, inputs):
        self.runs.append(inputs["x"].tolist())
        self.began.set()
        assert self.gate.wait(20)
        return {"y": np.repeat(self.number * inputs["x"][:, None], self.width, axis=1)}

    def model(self):
        """A model with this signature alone."""
        return {"doubler": ServedModel("doubler", 1, {"serving_default": self}, {})}
