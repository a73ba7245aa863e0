"""An application that answers on a free port while a test runs, and how tests ask it."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
import types

from aiohttp import web

from mural_search.server.app import run_options


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
