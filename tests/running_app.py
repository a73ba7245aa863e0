"""An aiohttp application that answers on a free port while a test runs."""

import asyncio
import contextlib
import threading

from aiohttp.test_utils import TestServer


@contextlib.contextmanager
def running(app):
    """Yields the server (`.port`), its loop in a thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    server = TestServer(app)
    asyncio.run_coroutine_threadsafe(server.start_server(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
