"""An application that answers on a free port while a test runs, how tests ask it, and a model that waits for a gate."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
import types

import numpy as np

from mural_tf.search.server.app import listening
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.rest_json import Spec


@contextlib.contextmanager
def running(app, limits=None):
    """Yields `.port`, `.runner` and `.loop`; the loop is in a thread, listened to as the command serve does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]  # before the loop has the socket
    stack = contextlib.AsyncExitStack()
    entered = stack.enter_async_context(listening(app, listener, limits or Limits()))
    runner = asyncio.run_coroutine_threadsafe(entered, loop).result(30)
    try:
        yield types.SimpleNamespace(port=port, runner=runner, loop=loop)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def ask(port, path, body=None, method=None, headers=None, connection=None):
    """Returns (status, JSON or bytes, headers) of a request; anything but bytes and text is sent as JSON."""
    own = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    own.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
    response = own.getresponse()
    data = response.read()
    if connection is None:
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

    def __init__(self, number=2.0, width=1):
        self.inputs = {"x": Spec(np.dtype(np.float32), (None,))}
        self.takes_images, self.row_bytes, self.saved_model = False, 4 * width, threading.Lock()
        self.number, self.width, self.runs = number, width, []
        self.gate, self.began = threading.Event(), threading.Event()
        self.gate.set()

    def run(self, inputs):
        self.runs.append(inputs["x"].tolist())
        self.began.set()
        assert self.gate.wait(20)
        return {"y": np.repeat(self.number * inputs["x"][:, None], self.width, axis=1)}
