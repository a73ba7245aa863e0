"""The routes: TensorFlow Serving's REST paths, /healthz and /metrics, and whatever else is mounted.

    POST /v1/models/NAME[/versions/N]:predict       see rest_json.py
    GET  /v1/models/NAME[/versions/N]               the state of the version
    GET  /v1/models/NAME[/versions/N]/metadata      its signatures
    GET  /healthz                                   {"status": "ok"} as soon as everything is loaded
    GET  /metrics                                   Prometheus' text format

The newest version of an export is served, see `models.Versions`; a path with another number gets a 404.

Every error is `{"error": "…"}`: 4xx if the request is at fault, 503 if there is no room or time for it, 500 if the
program is at fault. A client that goes away gets nothing, and what it asked for is not computed; /metrics counts it as
499.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import pathlib
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import numpy as np
from absl import logging

from mural_tf.errors import UserError, install_extra
from mural_tf.files import json_field, read_json

try:
    import prometheus_client
    from aiohttp import web
except ModuleNotFoundError as error:
    raise UserError(f"The server needs {error.name}: {install_extra('serve')}.") from None

from mural_tf.export.versions import MODEL_CARD, newest_description
from mural_tf.loading import load
from mural_tf.paths import RemotePath
from mural_tf.remote_folders import model_place
from mural_tf.search.index import Index, load_index
from mural_tf.search.server.batches import IMAGES, Arrays, ServedModel
from mural_tf.search.server.limits import (
    Budget,
    Limits,
    Overloaded,
    check_read,
    claimed_pixels,
    decodable,
    is_foreign,
    read_body,
    timeout,
)
from mural_tf.search.server.rest_json import (
    PIECE,
    RAISE,
    BadRequest,
    answer_pieces,
    options,
    parse_body,
    parse_inputs,
)
from mural_tf.search.server.search_page import search_routes

REQUESTS = prometheus_client.Counter("mural_requests", "Requests answered.", ["model", "status"])
SECONDS = prometheus_client.Histogram(
    "mural_request_seconds",
    "From the first byte to the answer.",
    ["model"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
Predict = Callable[..., Awaitable[Arrays]]
# For other routes: `await request.app[PREDICT]("text_encoder", "serving_default", {"text": array})` shares batches.
PREDICT: web.AppKey[Predict] = web.AppKey("predict", object)
SMALL_BODY = 2**16  # bytes; larger ones are parsed in a thread, one at a time, so that other requests go on
MANY_VALUES = 10**5  # in a body; those that hold more wait for each other only
CLIENT_LEFT = 499  # as nginx counts it; nobody reads the answer
PAIR = re.compile("[a-z]{2,3}-[a-z]{2,3}")  # cs-en; not pt-BR, zh-Hant
LAST_WORDS = 1.0  # seconds that a refused client has to read why


def serve(
    export: str | pathlib.Path,
    index: str | pathlib.Path = "",
    host: str = "localhost",
    port: int = 8501,
    limits: Limits | None = None,
    poll_seconds: float = 10.0,
) -> None:
    """Serves an export until SIGTERM or SIGINT: then no new requests are taken, and those that run get their answer.

    Args:
      export: the folder; its `lite/`, where it has one, answers without TensorFlow.
      index: an index made with the same model, searched at /search; empty: no search page.
      host, port: the address to listen on; port 0 is any free one. It is printed when the server is ready.
      limits: of requests; defaults if None.
      poll_seconds: between two looks for another version in the export; 0: never.

    Raises:
      UserError: `export` or `index` cannot be served, or the address cannot be listened on.
    """
    limits = limits or Limits()
    listener = _listen(host, port)  # before the models are loaded: a port in use is reported at once
    listed = _listed_languages(export) if index else None  # damage is named before models load
    searched = load_index(index) if index else None
    models = load_models(export, limits)
    routes = _search_routes(export, models, index, searched, listed, limits) if index else ()
    app = create_app(models, limits, routes, poll_seconds)
    run(app, listener, limits, f"Serving {export} at http://{host}:{listener.getsockname()[1]}")


def load_models(export: str | pathlib.Path, limits: Limits):
    """Returns what answers for an export, `LiteModels` or `Versions`; raises `UserError` if it cannot be served."""
    from mural_tf.search.server import lite_models

    if lite_models.folder_of(export) is not None:
        return lite_models.LiteModels(export, limits)
    from mural_tf.search.server.models import Versions  # with TensorFlow

    return Versions(export, limits)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UserError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None


def _listed_languages(export: str | pathlib.Path) -> list[str] | None:
    """The languages that an export's card names; `None` of LiteRT's, whose models tell."""
    from mural_tf.search.server import lite_models

    if lite_models.folder_of(export) is not None:
        return None
    card = newest_description(model_place(export)) / MODEL_CARD
    return json_field(read_json(card), "training_data.languages", list[str], card)


def _search_routes(export, models, folder, index: Index, listed: list[str] | None, limits: Limits):
    embedder = models.embedder if listed is None else load(export)
    listed = models.languages if listed is None else listed
    # Some are pairs of languages that translations were in.
    languages = {name for code in listed for name in (code.split("-") if PAIR.fullmatch(code) else [code])}
    return search_routes(index, embedder, sorted(languages), limits=limits, folder=folder)


def run(app: web.Application, listener: socket.socket, limits: Limits, greeting: str) -> None:
    """Serves an application of `create_app` on a listening socket until SIGTERM or SIGINT, as `serve` does.

    aiohttp's own `web.run_app` works too, without a limit of connections, and goes on working for clients that left.
    """
    # The loop waits for Python's lock after every read and write; by default, 5 ms wherever a thread parses a body.
    sys.setswitchinterval(0.0005)
    # The lists of a large body make Python look for garbage, among all of TensorFlow's objects: nothing else runs for a
    # part of a second. What is loaded by now is not looked at.
    gc.freeze()

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with listening(app, listener, limits):
            print(greeting, flush=True)
            await stop.wait()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def listening(app: web.Application, listener: socket.socket, limits: Limits) -> AsyncIterator[web.AppRunner]:
    """Serves `app` on a socket inside the context; at its end, requests that run get their answer.

    The handler of a client that goes away is cancelled.
    """
    options = {"access_log": None, "keepalive_timeout": limits.idle_timeout}
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=limits.shutdown_timeout, **options)
    await runner.setup()
    loop = asyncio.get_running_loop()

    def connection() -> asyncio.Protocol:
        is_full = len(runner.server.connections) >= limits.max_connections
        return _Refused() if is_full else _Connection(runner.server, loop=loop, **options)

    server = await loop.create_server(connection, sock=listener, backlog=limits.max_connections)
    try:
        yield runner
    finally:
        server.close()
        await runner.cleanup()


class _Connection(web.RequestHandler):
    """aiohttp's, but what is not HTTP is answered in JSON and leaves no stack trace in the log."""

    def handle_error(self, request, status=500, exc=None, message=None):
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        response = _error_response(status, f"This is not HTTP: {' '.join((message or str(exc)).split())}")
        response.force_close()
        return response

    is_unreadable = False  # the body; its rest may still come

    def log_exception(self, *args, **options):
        # The rest of a body is read after its answer, so that the client can send it; what is wrong there is no news.
        self.is_unreadable = isinstance(options.get("exc_info"), web.RequestPayloadError)
        if not self.is_unreadable:
            super().log_exception(*args, **options)

    def force_close(self):
        transport = self.transport
        if self.is_unreadable and transport is not None:
            self.transport = None  # or it would be closed at once
            _close_after_last_words(transport)
        super().force_close()


class _Refused(asyncio.Protocol):
    """One connection too many: a 503, whatever was asked."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        body = json.dumps({"error": "Too many connections; try again later."})
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        head += f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        transport.write((head + body).encode("ascii"))
        _close_after_last_words(transport)


def _close_after_last_words(transport: asyncio.Transport) -> None:
    """Not at once: while what the client sent is unread, its end of the line would be reset and forget the answer."""
    transport.write_eof()
    asyncio.get_running_loop().call_later(LAST_WORDS, transport.abort)


def create_app(
    export,
    limits: Limits | None = None,
    extra_routes: Iterable[web.RouteDef] = (),
    poll_seconds: float = 0.0,
) -> web.Application:
    """Loads an export and returns the application.

    Args:
      export: the folder, or what `load_models` gave of it.
      limits: of requests; defaults if None.
      extra_routes: further routes, as `aiohttp.web.get("/search", handler)`; their `web.HTTPException`s and
        `BadRequest`s become JSON errors too, and `request.app[PREDICT]` runs the encoders.
      poll_seconds: as `serve` takes it.

    Raises:
      UserError: `export` cannot be served.
    """
    limits = limits or Limits()
    versions = load_models(export, limits) if isinstance(export, (str, pathlib.Path, RemotePath)) else export
    server = Server(versions, limits)
    app = web.Application(middlewares=[server.middleware], client_max_size=limits.max_request_bytes)
    model = r"/v1/models/{name:[^/:]+}"
    for prefix in (model, model + r"/versions/{version:\d{1,18}}"):
        app.router.add_post(prefix + ":predict", server.predict)
        app.router.add_get(prefix, server.status)
        app.router.add_get(prefix + "/metadata", server.metadata)
    app.router.add_get("/healthz", server.healthz)
    app.router.add_get("/metrics", server.metrics)
    app.add_routes(extra_routes)
    app[PREDICT] = server.run

    async def watching(app: web.Application) -> AsyncIterator[None]:
        watch = asyncio.create_task(versions.watch(poll_seconds))
        yield
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    if poll_seconds:
        app.cleanup_ctx.append(watching)
    return app


class Server:
    """Handlers over what is loaded."""

    def __init__(self, versions, limits: Limits):
        self.versions, self.limits = versions, limits
        self._bytes = Budget(limits.max_bytes_in_flight, "bytes")
        self._pixels = Budget(2 * limits.max_request_pixels, "pixels")
        # One large request at a time, and one small one beside it: this takes memory and a processor.
        self._parsing, self._decoding = ({is_large: asyncio.Lock() for is_large in (False, True)} for _ in range(2))

    async def run(self, name: str, signature: str, inputs: Arrays, on_error: str = RAISE) -> Arrays:
        """Runs {input: [B, …]} through a signature, in a batch with other requests; strings are object arrays.

        Args:
          name, signature: of the model.
          inputs: one row or more.
          on_error: "raise", or "zeros" for a row of zeros in place of an image that cannot be read.

        Raises:
          BadRequest: an image that cannot be read, or that claims too many pixels.
          Overloaded: there is no room for it, or it took longer than `request_timeout`.
        """
        return await self._in_time(self._run(self.versions.models[name], signature, inputs, on_error))

    async def _in_time(self, work: Awaitable):
        try:
            async with timeout(self.limits.request_timeout):
                return await work
        except asyncio.TimeoutError:
            words = f"No answer within {self.limits.request_timeout:g} seconds"
            raise Overloaded(f"{words}, so the request was dropped; try again later.") from None

    async def _run(self, model: ServedModel, signature, inputs, on_error) -> Arrays:
        if not model.signatures[signature].takes_images:
            return await model.run(signature, inputs)
        images = inputs[IMAGES]
        pixels = await _in_thread(claimed_pixels, images, self.limits)
        with self._pixels.share() as grow:
            grow(int(pixels.sum()))
            if on_error == RAISE:
                check_read(pixels)
            images = np.where(pixels, images, b"")
            if any(map(is_foreign, images)):
                async with self._decoding[self.limits.is_large(len(images), int(pixels.sum()))]:
                    images = await _in_thread(decodable, images)
            outputs = await model.run(signature, {**inputs, IMAGES: images}, pixels)
        if on_error == RAISE:
            check_read(*outputs.values())
        return outputs

    async def predict(self, request: web.Request) -> web.StreamResponse:
        """POST …:predict"""
        self._model(request)  # before the body is read
        with self._bytes.share() as grow:
            body, values = await read_body(request, self.limits, grow)
            outputs, is_rows = await self._in_time(self._answer(self._model(request), body, values, grow))
            return await self._send(request, outputs, is_rows)

    async def _answer(self, model: ServedModel, body: bytearray, values: int, grow) -> tuple[Arrays, bool]:
        if len(body) <= SMALL_BODY:
            parsed = self._parse(body, model)
        else:
            async with self._parsing[values > MANY_VALUES]:
                parsed = await _in_thread(self._parse, body, model)
        name, inputs, is_rows, on_error = parsed
        grow(len(next(iter(inputs.values()))) * model.signatures[name].row_bytes)
        return await self._run(model, name, inputs, on_error), is_rows

    def _parse(self, body: bytearray, model: ServedModel) -> tuple[str, Arrays, bool, str]:
        values = parse_body(body)
        body.clear()
        name, on_error = options(values)
        if name not in model.signatures:
            raise BadRequest(f"{model.name} has no signature {name!r}; it has {', '.join(sorted(model.signatures))}.")
        return name, *parse_inputs(values, model.signatures[name].inputs, self.limits.max_rows), on_error

    async def _send(self, request: web.Request, outputs: Arrays, is_rows: bool) -> web.StreamResponse:
        pieces = answer_pieces(outputs, is_rows)
        if sum(array.size for array in outputs.values()) <= PIECE:
            return web.Response(text="".join(pieces), content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        await response.prepare(request)

        try:
            async with timeout(self.limits.body_timeout):
                while piece := await _in_thread(next, pieces, ""):
                    await response.write(piece.encode("ascii"))  # returns when the client has taken most of it
                await response.write_eof()
        except asyncio.TimeoutError:
            request.transport.abort()  # half an answer cannot become an error
            raise ConnectionResetError("The client did not take its answer.") from None
        return response

    async def status(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME"""
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        version = {"version": str(self._model(request).version), **state}
        return web.json_response({"model_version_status": [version]})

    async def metadata(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME/metadata"""
        model = self._model(request)
        spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
        definitions = {"signature_def": {"signature_def": model.metadata}}
        return web.json_response({"model_spec": spec, "metadata": definitions})

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz"""
        return web.json_response({"status": "ok"})

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics"""
        headers = {"Content-Type": prometheus_client.CONTENT_TYPE_LATEST}
        return web.Response(body=prometheus_client.generate_latest(), headers=headers)

    def _model(self, request: web.Request) -> ServedModel:
        models, name, number = self.versions.models, request.match_info["name"], request.match_info.get("version")
        if name not in models:
            raise web.HTTPNotFound(text=f"There is no model {name!r}; there are {', '.join(sorted(models))}.")
        if number is not None and int(number) != models[name].version:
            served = models[name].version
            raise web.HTTPNotFound(text=f"{name} has no version {int(number)} loaded; it has {served}.")
        return models[name]

    @web.middleware
    async def middleware(self, request: web.Request, handler) -> web.StreamResponse:
        """Turns every exception into a JSON error and counts the answer."""
        start, status = time.perf_counter(), CLIENT_LEFT
        try:
            response = await self._answered(request, handler)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            name = request.match_info.get("name", "")
            name = name if name in self.versions.models else ""
            REQUESTS.labels(name, str(status)).inc()
            SECONDS.labels(name).observe(time.perf_counter() - start)

    async def _answered(self, request: web.Request, handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001 - the server goes on
            if isinstance(error, web.HTTPException) and error.status < 400:
                raise
            response = _error_response(*self._explained(error, request))
            # Its frames hold the body and the arrays of the request, in circles, until Python looks for garbage.
            error.__traceback__ = error.__context__ = None
            return response

    def _explained(self, error: Exception, request: web.Request) -> tuple[int, str]:
        """Returns the status and the words that answer a request that ended in an error."""
        if isinstance(error, web.HTTPException):
            return error.status, error.text or error.reason
        if isinstance(error, (BadRequest, Overloaded)):
            return error.status, str(error)
        if isinstance(error, web.RequestPayloadError):
            return 400, f"The body cannot be read: {error}."
        if isinstance(error, ConnectionError):  # while the body was read, or the answer written
            return CLIENT_LEFT, "The client went away."
        logging.error("%s %s failed", request.method, request.path, exc_info=error)
        return 500, "The server failed on this request; its log says why."


def _error_response(status: int, message: str) -> web.Response:
    headers = {"Retry-After": "1"} if status == 503 else None
    return web.json_response({"error": message}, status=status, headers=headers)


async def _in_thread(function: Callable, *arguments):
    """Calls `function` in a thread, and returns when the thread is done even if it is cancelled.

    A thread cannot be stopped: what counts as in flight must not end before it.
    """
    work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
