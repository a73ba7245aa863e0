"""The routes: TensorFlow Serving's REST paths, /healthz and /metrics, and whatever else is mounted.

    POST /v1/models/NAME[/versions/N]:predict       see rest_json.py
    GET  /v1/models/NAME[/versions/N]               the state of the loaded version
    GET  /v1/models/NAME[/versions/N]/metadata      its signatures
    GET  /healthz                                   {"status": "ok"} as soon as everything is loaded
    GET  /metrics                                   Prometheus' text format

Every error is `{"error": "…"}`: 4xx if the request is at fault, 503 if too many wait, 500 if the program is.
"""

from __future__ import annotations

import asyncio
import functools
import json
import pathlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterable

import numpy as np
import tensorflow as tf
from absl import logging

from mural_tf.errors import UserError

try:
    import prometheus_client
    from aiohttp import web
    from prometheus_client import CollectorRegistry, Counter, Histogram
except ModuleNotFoundError as error:
    raise UserError(f"The server needs {error.name}: pip install 'mural-tf[serve]'.") from None

from mural_tf.export.saved_model import MODEL_CARD
from mural_tf.loading import load
from mural_tf.search.index import load_index
from mural_tf.serve.models import Batcher, Limits, Overloaded, ServedModel, load_models
from mural_tf.serve.rest_json import BadRequest, make_answer, parse_body, parse_inputs, signature_name
from mural_tf.serve.search_page import search_routes

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


Predict = Callable[[str, str, "dict[str, np.ndarray]"], Awaitable["dict[str, np.ndarray]"]]
# For other routes: `await request.app[PREDICT]("text_encoder", "serving_default", {"text": array})` shares batches.
PREDICT: web.AppKey[Predict] = web.AppKey("predict", object)
LARGE_BODY = 2**16  # bytes; larger ones are parsed in a thread, so that other requests go on

# The graph's own words for what a request may get wrong.
REQUEST_ERRORS = (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, tf.errors.FailedPreconditionError)


def serve(
    export: str | pathlib.Path,
    index: str | pathlib.Path = "",
    host: str = "localhost",
    port: int = 8501,
    limits: Limits | None = None,
) -> None:
    """Serves an export until SIGTERM or SIGINT: then no new requests are taken, and those that run get their answer.

    Args:
      export: the folder.
      index: an index made with the same model, searched at /search; empty: no search page.
      host, port: the address to listen on; port 0 is any free one. It is printed when the server is ready.
      limits: of requests; defaults if None.

    Raises:
      UserError: `export` or `index` cannot be served, or the address cannot be listened on.
    """
    limits = limits or Limits()
    listener = _listen(host, port)  # before the models are loaded: a port in use is reported at once
    app = create_app(export, limits, _search_routes(export, index) if index else ())

    async def announce(app: web.Application) -> None:
        print(f"Serving {export} at http://{host}:{listener.getsockname()[1]}", flush=True)

    app.on_startup.append(announce)
    web.run_app(app, sock=listener, shutdown_timeout=limits.shutdown_timeout, access_log=None, print=None)


def _search_routes(export: str | pathlib.Path, index: str | pathlib.Path) -> list[web.RouteDef]:
    card = json.loads((pathlib.Path(export) / MODEL_CARD).read_text(encoding="utf-8"))
    return search_routes(load_index(index), load(export), card["training_data"]["languages"])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UserError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None


def create_app(
    export: str | pathlib.Path, limits: Limits | None = None, extra_routes: Iterable[web.RouteDef] = ()
) -> web.Application:
    """Loads an export and returns the application.

    Args:
      export: the folder.
      limits: of requests; defaults if None.
      extra_routes: further routes, as `aiohttp.web.get("/search", handler)`; their `web.HTTPException`s and
        `BadRequest`s become JSON errors too, and `request.app[PREDICT]` runs the encoders.

    Raises:
      UserError: `export` cannot be served.
    """
    server = Server(load_models(export), limits or Limits())
    app = web.Application(middlewares=[server.middleware], client_max_size=server.limits.max_request_bytes)
    model = r"/v1/models/{name:[^/:]+}"
    for prefix in (model, model + r"/versions/{version:\d+}"):
        app.router.add_post(prefix + ":predict", server.predict)
        app.router.add_get(prefix, server.status)
        app.router.add_get(prefix + "/metadata", server.metadata)
    app.router.add_get("/healthz", server.healthz)
    app.router.add_get("/metrics", server.metrics)
    app.add_routes(extra_routes)
    app[PREDICT] = server.run
    app.on_cleanup.append(server.close)
    return app


class Server:
    """Handlers over loaded models."""

    def __init__(self, models: dict[str, ServedModel], limits: Limits):
        self.models, self.limits, self.monitoring = models, limits, Monitoring()
        self._batchers: dict[tuple[str, str], Batcher] = {}

    async def run(self, name: str, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs {input: [B, …]} through a signature, in a batch with other requests; strings are object arrays."""
        key = name, signature
        if key not in self._batchers:
            observe = functools.partial(self.monitoring.run, name, signature)
            self._batchers[key] = Batcher(self.models[name].signatures[signature].run, self.limits, observe)
        return await self._batchers[key](inputs)

    async def close(self, app: web.Application) -> None:
        """Ends the threads."""
        await asyncio.gather(*(batcher.close() for batcher in self._batchers.values()))

    async def predict(self, request: web.Request) -> web.Response:
        """POST …:predict"""
        model = self._model(request)
        body = await asyncio.wait_for(request.read(), self.limits.body_timeout)
        name, inputs, is_rows = await _maybe_in_thread(len(body), self._parse, body, model)
        outputs = await self.run(model.name, name, inputs)
        size = sum(array.size for array in outputs.values())
        return _json(await _maybe_in_thread(10 * size, lambda: json.dumps(make_answer(outputs, is_rows))))

    def _parse(self, body: bytes, model: ServedModel) -> tuple[str, dict[str, np.ndarray], bool]:
        values = parse_body(body)
        name = signature_name(values)
        if name not in model.signatures:
            raise BadRequest(f"{model.name} has no signature {name!r}; it has {', '.join(sorted(model.signatures))}.")
        inputs, is_rows = parse_inputs(values, model.signatures[name].inputs)
        rows = len(next(iter(inputs.values())))
        if rows > self.limits.max_rows:
            raise BadRequest(f"{rows} rows in one request; at most {self.limits.max_rows} are taken.")
        return name, inputs, is_rows

    async def status(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME"""
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return _json(json.dumps({"model_version_status": [{"version": str(self._model(request).version), **state}]}))

    async def metadata(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME/metadata"""
        model = self._model(request)
        spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
        return _json(json.dumps({"model_spec": spec, "metadata": {"signature_def": {"signature_def": model.metadata}}}))

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz"""
        return _json(json.dumps({"status": "ok"}))

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics"""
        return web.Response(body=self.monitoring.text(), headers={"Content-Type": CONTENT_TYPE})

    def _model(self, request: web.Request) -> ServedModel:
        name, version = request.match_info["name"], request.match_info.get("version")
        model = self.models.get(name)
        if model is None:
            raise web.HTTPNotFound(text=f"There is no model {name!r}; there are {', '.join(sorted(self.models))}.")
        if version is not None and int(version) != model.version:
            raise web.HTTPNotFound(text=f"{name} has no version {version} loaded; it has {model.version}.")
        return model

    @web.middleware
    async def middleware(self, request: web.Request, handler) -> web.StreamResponse:
        """Turns every exception into a JSON error and counts the answer."""
        start = time.perf_counter()
        try:
            response = await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = _error(error.status, error.text or error.reason)
        except BadRequest as error:
            response = _error(400, str(error))
        except REQUEST_ERRORS as error:
            response = _error(400, " ".join(error.message.split()))
        except Overloaded as error:
            response = _error(503, str(error))
            response.headers["Retry-After"] = "1"
        except asyncio.TimeoutError:
            response = _error(408, f"The body did not arrive within {self.limits.body_timeout:g} seconds.")
        except web.RequestPayloadError as error:
            response = _error(400, f"The body cannot be read: {error}.")
        except Exception:  # noqa: BLE001 - the server goes on
            logging.exception("%s %s failed", request.method, request.path)
            response = _error(500, "The server failed on this request; its log says why.")
        name = request.match_info.get("name", "")
        self.monitoring.request(name if name in self.models else "", response.status, time.perf_counter() - start)
        return response


async def _maybe_in_thread(size: int, function: Callable, *arguments):
    """Calls `function`, in a thread if there is much to do."""
    if size < LARGE_BODY:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def _json(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json(json.dumps({"error": message}), status)
