"""The routes: TensorFlow Serving's REST paths, /healthz and /metrics, and whatever else is mounted.

    POST /v1/models/NAME[/versions/N|/labels/L]:predict       see rest_json.py
    GET  /v1/models/NAME[/versions/N|/labels/L]               the state of each version, or of one
    GET  /v1/models/NAME[/versions/N|/labels/L]/metadata      its signatures
    GET  /healthz                                             {"status": "ok"} as soon as everything is loaded
    GET  /metrics                                             Prometheus' text format

Without a version or a label, the newest that is loaded answers: see versions.py.

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
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from mural_tf.errors import UserError
from mural_tf.files import read_json

try:
    import prometheus_client
    from aiohttp import web
    from prometheus_client import CollectorRegistry, Counter, Histogram
except ModuleNotFoundError as error:
    raise UserError(f"The server needs {error.name}: pip install 'mural-tf[serve]'.") from None

from mural_tf.export.versions import MODEL_CARD, newest_description
from mural_tf.loading import load
from mural_tf.search.index import load_index
from mural_tf.search.server.bodies import read_body
from mural_tf.search.server.claims import check_claims, decodable, is_foreign, unreadable
from mural_tf.search.server.connections import error_response, json_response, listening
from mural_tf.search.server.limits import Budget, Limits, Overloaded, Share
from mural_tf.search.server.models import IMAGES, ServedModel
from mural_tf.search.server.rest_json import (
    PIECE,
    RAISE,
    BadRequest,
    answer_pieces,
    on_error,
    parse_body,
    parse_inputs,
    signature_name,
)
from mural_tf.search.server.search_page import search_routes
from mural_tf.search.server.versions import Export, Loaded, Versions, load_versions

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Monitoring:
    """What the server counts for Prometheus, in a registry of its own for every app."""

    def __init__(self):
        self._registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        self._requests = Counter("mural_requests", "Requests answered.", ["model", "status"], registry=self._registry)
        self._seconds = Histogram(
            "mural_request_seconds",
            "From the first byte to the answer.",
            ["model"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._rows = Histogram(
            "mural_batch_rows", "Rows in one run.", ["model", "signature"], buckets=ROWS, registry=self._registry
        )

    def request(self, model: str, status: int, seconds: float) -> None:
        """Counts an answer; `model` is "" for a path without one."""
        self._requests.labels(model, str(status)).inc()
        self._seconds.labels(model).observe(seconds)

    def run(self, model: str, signature: str, rows: int) -> None:
        """Counts one run of a model."""
        self._rows.labels(model, signature).observe(rows)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)


Predict = Callable[..., Awaitable["dict[str, np.ndarray]"]]
# For other routes: `await request.app[PREDICT]("text_encoder", "serving_default", {"text": array})` shares batches.
PREDICT: web.AppKey[Predict] = web.AppKey("predict", object)
SMALL_BODY = 2**16  # bytes; larger ones are parsed in a thread, so that other requests go on
LARGE_BODY = 2**20  # bytes; larger ones are parsed one at a time, so that only one is in memory as objects
CLIENT_LEFT = 499  # as nginx counts it; nobody reads the answer

# The graph's own words for what a request may get wrong.
REQUEST_ERRORS = (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, tf.errors.FailedPreconditionError)


def serve(
    export: str | pathlib.Path,
    index: str | pathlib.Path = "",
    host: str = "localhost",
    port: int = 8501,
    limits: Limits | None = None,
    poll_seconds: float = 10.0,
    labels: Mapping[str, int] | None = None,
) -> None:
    """Serves an export until SIGTERM or SIGINT: then no new requests are taken, and those that run get their answer.

    Args:
      export: the folder.
      index: an index made with the same model, searched at /search; empty: no search page.
      host, port: the address to listen on; port 0 is any free one. It is printed when the server is ready.
      limits: of requests; defaults if None.
      poll_seconds: between two looks for other versions in the export; 0: never.
      labels: label -> number of a version.

    Raises:
      UserError: `export` or `index` cannot be served, or the address cannot be listened on.
    """
    limits = limits or Limits()
    listener = _listen(host, port)  # before the models are loaded: a port in use is reported at once
    source = Export(export)
    routes = _search_routes(source.folder, index, limits) if index else ()
    app = app_of_models(load_versions(source, labels), limits, routes, source, poll_seconds, labels)
    run(app, listener, limits, f"Serving {export} at http://{host}:{listener.getsockname()[1]}")


def run(app: web.Application, listener: socket.socket, limits: Limits, greeting: str) -> None:
    """Serves an application of `create_app` on a listening socket until SIGTERM or SIGINT, as `serve` does.

    aiohttp's own `web.run_app` works too, without a limit of connections, and goes on working for clients that left.
    """
    gc.collect()
    gc.freeze()  # TensorFlow's objects stay; the collector need not walk over them after every large request
    # The loop waits for Python's lock after every read and write; by default, 5 ms wherever a thread parses a body.
    sys.setswitchinterval(0.0005)
    asyncio.run(_run(app, listener, limits, greeting))


async def _run(app: web.Application, listener: socket.socket, limits: Limits, greeting: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with listening(app, listener, limits):
        print(greeting, flush=True)
        await stop.wait()


def _search_routes(export: str | pathlib.Path, index: str | pathlib.Path, limits: Limits) -> list[web.RouteDef]:
    data = read_json(newest_description(pathlib.Path(export)) / MODEL_CARD).get("training_data")
    languages = data.get("languages") if isinstance(data, dict) else None
    if not isinstance(languages, list) or not all(isinstance(code, str) for code in languages):
        raise UserError(f'{export}/{MODEL_CARD} is damaged: expected {{"training_data": {{"languages": [codes]}}}}.')
    return search_routes(load_index(index), load(export), languages, limits=limits, folder=index)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UserError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None


def create_app(
    export: str | pathlib.Path,
    limits: Limits | None = None,
    extra_routes: Iterable[web.RouteDef] = (),
    poll_seconds: float = 0.0,
    labels: Mapping[str, int] | None = None,
) -> web.Application:
    """Loads an export and returns the application.

    Args:
      export: the folder.
      limits: of requests; defaults if None.
      extra_routes: further routes, as `aiohttp.web.get("/search", handler)`; their `web.HTTPException`s and
        `BadRequest`s become JSON errors too, and `request.app[PREDICT]` runs the encoders.
      poll_seconds, labels: as `serve` takes them.

    Raises:
      UserError: `export` cannot be served.
    """
    source = Export(export)
    models = load_versions(source, labels)
    return app_of_models(models, limits or Limits(), extra_routes, source, poll_seconds, labels)


def app_of_models(
    models: Iterable[ServedModel],
    limits: Limits,
    extra_routes: Iterable[web.RouteDef] = (),
    export: Export | None = None,
    poll_seconds: float = 0.0,
    labels: Mapping[str, int] | None = None,
) -> web.Application:
    """Returns the application over models that are loaded; see `create_app`."""
    server = Server(models, limits, export, poll_seconds, labels)
    app = web.Application(middlewares=[server.middleware], client_max_size=server.limits.max_request_bytes)
    model = r"/v1/models/{name:[^/:]+}"
    for prefix in (model, model + r"/versions/{version:\d{1,18}}", model + r"/labels/{label:[^/:]+}"):
        app.router.add_post(prefix + ":predict", server.predict)
        app.router.add_get(prefix, server.status)
        app.router.add_get(prefix + "/metadata", server.metadata)
    app.router.add_get("/healthz", server.healthz)
    app.router.add_get("/metrics", server.metrics)
    app.add_routes(extra_routes)
    app[PREDICT] = server.run
    app.on_startup.append(server.start)
    app.on_cleanup.append(server.close)
    return app


class _TooLate(Exception):
    """A deadline passed; what waited for it is cancelled."""


class Server:
    """Handlers over the versions that are loaded."""

    def __init__(
        self,
        models: Iterable[ServedModel],
        limits: Limits,
        export: Export | None,
        poll_seconds: float,
        labels: Mapping[str, int] | None,
    ):
        self.limits, self.monitoring, self._poll_seconds = limits, Monitoring(), poll_seconds
        self.versions = Versions(models, limits, self.monitoring.run, export, labels)
        self._bytes = Budget(limits.max_bytes_in_flight, "bytes")
        self._pixels = Budget(2 * limits.max_request_pixels, "pixels")
        self._decoding = asyncio.Lock()
        self._watch: asyncio.Task | None = None

    async def start(self, app: web.Application) -> None:
        """Makes what belongs to the event loop."""
        self._one_parses, self._few_parse = asyncio.Semaphore(1), asyncio.Semaphore(2)
        if self._poll_seconds:
            self._watch = asyncio.get_running_loop().create_task(self.versions.watch(self._poll_seconds))

    async def close(self, app: web.Application) -> None:
        """Ends the threads."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.versions.close()

    async def run(
        self, name: str, signature: str, inputs: dict[str, np.ndarray], on_error: str = RAISE
    ) -> dict[str, np.ndarray]:
        """Runs {input: [B, …]} through a signature, in a batch with other requests; strings are object arrays.

        Args:
          name, signature: of the model.
          inputs: one row or more.
          on_error: "raise", or "zeros" for a row of zeros in place of an image that cannot be read.

        Raises:
          BadRequest: an image that cannot be read, or that claims too many pixels.
          Overloaded: there is no room for it, or it took longer than `request_timeout`.
        """
        loaded = self.versions.find(name)
        with loaded.in_use():
            return await self._in_time(self._run(loaded, signature, inputs, on_error))

    async def _in_time(self, work: Awaitable):
        try:
            return await _before(self.limits.request_timeout, work)
        except _TooLate:
            words = f"No answer within {self.limits.request_timeout:g} seconds"
            raise Overloaded(f"{words}, so the request was dropped; try again later.") from None

    async def _run(self, loaded: Loaded, signature, inputs, on_error) -> dict[str, np.ndarray]:
        if not loaded.model.signatures[signature].takes_images:
            return await loaded.batcher(signature)(inputs)
        size = sum(map(len, inputs[IMAGES]))
        images, pixels = await _maybe_in_thread(size, check_claims, inputs[IMAGES], self.limits)
        with self._pixels.share() as share:
            share.grow(int(pixels.sum()))
            if on_error == RAISE:
                _check_read(pixels)
            if any(map(is_foreign, images)):
                async with self._decoding:  # one request at a time: this takes memory and a processor
                    images = await _in_thread(decodable, images)
            outputs = await loaded.batcher(signature)({**inputs, IMAGES: images}, pixels)
        if on_error == RAISE:
            _check_read(*outputs.values())
        return outputs

    async def predict(self, request: web.Request) -> web.StreamResponse:
        """POST …:predict"""
        self._loaded(request)  # before the body is read
        with self._bytes.share() as share:
            try:
                body = await _before(self.limits.body_timeout, read_body(request, self.limits, share))
            except _TooLate:
                words = f"The body did not arrive within {self.limits.body_timeout:g} seconds."
                raise web.HTTPRequestTimeout(text=words) from None
            loaded = self._loaded(request)  # again: a body may take longer than a version is wanted
            with loaded.in_use():
                outputs, is_rows = await self._in_time(self._answer(loaded, body, share))
            return await self._send(request, outputs, is_rows)

    async def _answer(self, loaded: Loaded, body: bytearray, share: Share) -> tuple[dict[str, np.ndarray], bool]:
        model = loaded.model
        if len(body) <= SMALL_BODY:
            query = self._parse(body, model)
        else:
            async with self._one_parses if len(body) > LARGE_BODY else self._few_parse:
                query = await _in_thread(self._parse, body, model)
        name, inputs, is_rows, on_error = query
        share.grow(len(next(iter(inputs.values()))) * model.signatures[name].row_bytes)
        return await self._run(loaded, name, inputs, on_error), is_rows

    def _parse(self, body: bytearray, model: ServedModel) -> tuple[str, dict[str, np.ndarray], bool, str]:
        values = parse_body(body)
        body.clear()
        name = signature_name(values)
        if name not in model.signatures:
            raise BadRequest(f"{model.name} has no signature {name!r}; it has {', '.join(sorted(model.signatures))}.")
        return name, *parse_inputs(values, model.signatures[name].inputs, self.limits.max_rows), on_error(values)

    async def _send(self, request: web.Request, outputs: dict[str, np.ndarray], is_rows: bool) -> web.StreamResponse:
        pieces = answer_pieces(outputs, is_rows)
        if sum(array.size for array in outputs.values()) <= PIECE:
            return json_response("".join(pieces))
        response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        await response.prepare(request)
        try:
            await _before(self.limits.body_timeout, _write(response, pieces))
        except _TooLate:
            request.transport.abort()  # half an answer cannot become an error
            raise ConnectionResetError("The client did not take its answer.") from None
        return response

    async def status(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME"""
        name, wanted = self._name(request), self._number(request)
        found = [state for state in self.versions.states(name) if wanted in (None, state[0])]
        if not found:
            self._loaded(request)
        return json_response(json.dumps({"model_version_status": [_state(*state) for state in found]}))

    async def metadata(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME/metadata"""
        model = self._loaded(request).model
        spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
        return json_response(
            json.dumps({"model_spec": spec, "metadata": {"signature_def": {"signature_def": model.metadata}}})
        )

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz"""
        return json_response(json.dumps({"status": "ok"}))

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics"""
        return web.Response(body=self.monitoring.text(), headers={"Content-Type": CONTENT_TYPE})

    def _name(self, request: web.Request) -> str:
        name = request.match_info["name"]
        if name not in self.versions.names:
            raise web.HTTPNotFound(text=f"There is no model {name!r}; there are {', '.join(self.versions.names)}.")
        return name

    def _number(self, request: web.Request) -> int | None:
        """The version that is asked for by its number or a label; None: the newest."""
        label, number = request.match_info.get("label"), request.match_info.get("version")
        if label is None:
            return None if number is None else int(number)
        if label not in self.versions.labels:
            labels = ", ".join(sorted(self.versions.labels)) or "none"
            raise web.HTTPNotFound(text=f"There is no label {label!r}; there are {labels}.")
        return self.versions.labels[label]

    def _loaded(self, request: web.Request) -> Loaded:
        name, number = self._name(request), self._number(request)
        try:
            return self.versions.find(name, number)
        except KeyError:
            listed = ", ".join(map(str, self.versions.numbers(name)))
            raise web.HTTPNotFound(text=f"{name} has no version {number} loaded; it has {listed}.") from None

    @web.middleware
    async def middleware(self, request: web.Request, handler) -> web.StreamResponse:
        """Turns every exception into a JSON error and counts the answer."""
        start = time.perf_counter()
        try:
            response = await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = error_response(error.status, error.text or error.reason)
        except BadRequest as error:
            response = error_response(400, str(error))
        except REQUEST_ERRORS as error:
            response = error_response(400, " ".join(error.message.split()))
        except Overloaded as error:
            response = error_response(503, str(error))
            response.headers["Retry-After"] = "1"
        except web.RequestPayloadError as error:
            response = error_response(400, f"The body cannot be read: {error}.")
        except asyncio.CancelledError:
            self._count(request, CLIENT_LEFT, start)
            raise
        except ConnectionError:  # while the body was read, or the answer written
            response = error_response(CLIENT_LEFT, "The client went away.")
        except Exception:  # noqa: BLE001 - the server goes on
            logging.exception("%s %s failed", request.method, request.path)
            response = error_response(500, "The server failed on this request; its log says why.")
        self._count(request, response.status, start)
        return response

    def _count(self, request: web.Request, status: int, start: float) -> None:
        name = request.match_info.get("name", "")
        self.monitoring.request(name if name in self.versions.names else "", status, time.perf_counter() - start)


def _state(number: int, state: str, error: str) -> dict[str, object]:
    """TensorFlow Serving's JSON of a version's state."""
    code = "INTERNAL" if error else "OK"
    return {"version": str(number), "state": state, "status": {"error_code": code, "error_message": error}}


def _check_read(*arrays: np.ndarray) -> None:
    """Raises `BadRequest` for the first row that is all zeros, as `on_error` has them."""
    for array in arrays:
        is_read = array.reshape(len(array), -1).any(axis=1)
        if not is_read.all():
            raise unreadable(int(np.argmin(is_read)))


async def _write(response: web.StreamResponse, pieces: Iterable[str]) -> None:
    while piece := await _in_thread(next, pieces, ""):
        await response.write(piece.encode("ascii"))  # returns when the client has taken most of it
    await response.write_eof()


async def _before(seconds: float, work: Awaitable):
    """Awaits `work`; cancels it and raises `_TooLate` after so many seconds."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise _TooLate
        return task.result()
    finally:
        task.cancel()  # does nothing to one that is done
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task  # also to have looked at its error


async def _maybe_in_thread(size: int, function: Callable, *arguments):
    """Calls `function`, in a thread if there is much to do."""
    return function(*arguments) if size <= SMALL_BODY else await _in_thread(function, *arguments)


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
