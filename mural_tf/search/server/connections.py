"""Connections: how many there are, and that even what is not HTTP gets a JSON error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator

from aiohttp import web

from mural_tf.search.server.limits import Limits

READ_SIZE = 2**16  # bytes of a body that are read ahead of the handler
LAST_WORDS = 1.0  # seconds that a refused client has to read why


def json_response(text: str, status: int = 200) -> web.Response:
    """Returns a response from JSON text."""
    return web.Response(text=text, status=status, content_type="application/json")


def error_response(status: int, message: str) -> web.Response:
    """Returns {"error": message}."""
    return json_response(json.dumps({"error": message}), status)


@contextlib.asynccontextmanager
async def listening(app: web.Application, listener: socket.socket, limits: Limits) -> AsyncIterator[web.AppRunner]:
    """Serves `app` on a socket inside the context; at its end, requests that run get their answer.

    The handler of a client that goes away is cancelled.
    """
    options = {"access_log": None, "read_bufsize": READ_SIZE, "keepalive_timeout": limits.idle_timeout}
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=limits.shutdown_timeout, **options)
    await runner.setup()
    loop, refused = asyncio.get_running_loop(), set()

    def connection() -> asyncio.Protocol:
        if len(runner.server.connections) >= limits.max_connections:
            return _Refused(refused, limits.max_connections)
        return _Connection(runner.server, limits.idle_timeout, loop, options)

    make_request = runner.server.request_factory

    def begin_request(message, payload, protocol, *others):
        protocol.first_request.cancel()
        return make_request(message, payload, protocol, *others)

    runner.server.request_factory = begin_request
    server = await loop.create_server(connection, sock=listener, backlog=limits.max_connections)
    try:
        yield runner
    finally:
        server.close()
        await runner.cleanup()


class _Connection(web.RequestHandler):
    """aiohttp's, but what is not HTTP is answered in JSON and leaves no stack trace in the log.

    It ends if no first request comes in time; aiohttp before 3.14, the last for Python 3.9, waits for it without end.
    """

    def __init__(self, server: web.Server, idle_timeout: float, loop: asyncio.AbstractEventLoop, options: dict):
        super().__init__(server, loop=loop, **options)
        self.first_request = loop.call_later(idle_timeout, self.force_close)

    def connection_lost(self, error: BaseException | None) -> None:
        self.first_request.cancel()
        super().connection_lost(error)

    def handle_error(self, request, status=500, exc=None, message=None):
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        response = error_response(status, f"This is not HTTP: {' '.join((message or str(exc)).split())}")
        response.force_close()
        return response

    def log_exception(self, *args, **options):
        # The rest of a body is read after its answer, so that the client can send it; what is wrong there is no news.
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)


class _Refused(asyncio.Protocol):
    """One connection too many: a 503, whatever was asked."""

    def __init__(self, refused: set[asyncio.Transport], most: int):
        self._refused, self._most, self._transport = refused, most, None

    def connection_made(self, transport: asyncio.Transport) -> None:
        if len(self._refused) >= self._most:
            transport.abort()
            return
        self._transport = transport
        self._refused.add(transport)
        body = json.dumps({"error": "Too many connections; try again later."})
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        head += f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        transport.write((head + body).encode("ascii"))
        # Not closed at once: what the client sent is unread, and then its end of the line would forget the answer.
        transport.write_eof()
        asyncio.get_running_loop().call_later(LAST_WORDS, transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._refused.discard(self._transport)
