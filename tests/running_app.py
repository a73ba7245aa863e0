"""An application that answers on a free port while a test runs, listened to as the command serve does."""

import asyncio
import contextlib
import socket
import threading
import types

from mural_tf.search.server.connections import listening
from mural_tf.search.server.limits import Limits


@contextlib.contextmanager
def running(app, limits=None):
    """Yields `.port`, `.runner` and `.loop`; the loop is in a thread."""
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
