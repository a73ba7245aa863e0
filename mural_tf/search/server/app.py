"""The routes: TensorFlow Serving's REST paths, /healthz, and mounted routes, such as the search page's.

    POST /v1/models/NAME[/versions/N]:predict       see rest_json.py
    GET  /v1/models/NAME[/versions/N]               the state of the version
    GET  /v1/models/NAME[/versions/N]/metadata      its signatures
    GET  /healthz                                   {"status": "ok"} as soon as everything is loaded

Every error is `{"error": "…"}`, for a browser a page: 4xx if the request is at fault, 503 if there is no room or time
for it, 500 if the program is at fault. TensorFlow Serving, which an export is made for, does the rest: gRPC, several
versions, new versions while it runs, metrics. TLS, users and rates are a proxy's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import pathlib
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from absl import logging as log

from mural_tf import pages
from mural_tf.errors import UserError, install_extra

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    raise UserError(f"The server needs {error.name}: {install_extra('serve')}.") from None

from mural_tf.export.versions import newest_models
from mural_tf.loading import export_of, lite_embedder, load
from mural_tf.remote_folders import local_model, model_place
from mural_tf.search.index import load_index
from mural_tf.search.server import limits as bounds
from mural_tf.search.server.batches import IMAGES, Arrays, Batcher, ServedModel
from mural_tf.search.server.limits import Limits, Overloaded, check_read, prepare_images, read_body, timeout
from mural_tf.search.server.rest_json import RAISE, ZEROS, BadRequest, answer_json, options, parse_body, parse_inputs
from mural_tf.search.server.search_page import search_routes

# For other routes: `await request.app[PREDICT]("text_encoder", "serving_default", {"text": array})` shares batches.
PREDICT: web.AppKey[Callable[..., Awaitable[Arrays]]] = web.AppKey("predict", object)
SMALL_BODY = 2**16  # bytes; larger bodies are parsed in a thread, so that other requests go on
SHUTDOWN = 20.0  # seconds that running requests get at the end
LINE = 2**16  # bytes of an address: a question of 2,000 characters takes up to 24,000
HERE = ("localhost", "127.0.0.1", "::1")  # hosts of a server that this machine alone reaches
# `frame-ancestors` is not allowed in a page's own policy. aiohttp would name its version, and Python's.
HEADERS = {
    "Server": "mural_tf", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "frame-ancestors 'self'"
}  # fmt: skip


def serve(
    export: str | pathlib.Path = "",
    index: str | pathlib.Path = "",
    host: str = "localhost",
    port: int = 8501,
    title: str = "",
    limits: Limits | None = None,
) -> None:
    """Serves an export until SIGTERM or SIGINT: then no new requests are taken, and running requests get their answer.

    Args:
      export: the folder; its `lite/`, where it has one, answers without TensorFlow. "": the index's own model, of which
        the encoders are served if it is an export.
      index: an index made with the same model, searched at /search; empty: no search page.
      host, port: the address to listen on; port 0 is any free one. It is printed when the server is ready.
      title: of the search page.
      limits: of requests; defaults if None.

    Raises:
      UserError: `export` or `index` cannot be served, or the address cannot be listened on.
    """
    listener = _listen(host, port)  # before the models are loaded: a port in use is reported at once
    models, routes = load_served(export, index, title)
    app = create_app(models, limits, routes, hosts=HERE if host in HERE else ())
    sys.setswitchinterval(0.0005)  # seconds for which the loop waits wherever a thread parses a body; 0.005 by default
    gc.freeze()  # Python looks for garbage when a quarter of all objects is new: not of TensorFlow's, only of requests'
    address = f"http://{host}:{listener.getsockname()[1]}{'/search' if routes else ''}"
    print(f"Serving {export or index} at {address}", flush=True)
    web.run_app(app, sock=listener, print=None, **run_options())


def run_options() -> dict[str, object]:
    """Returns the options of aiohttp's `run_app` or `AppRunner` that go with `create_app`."""
    quiet = logging.getLogger("mural_tf.server")  # aiohttp's tracebacks of broken requests; a 500 is logged below
    quiet.setLevel(logging.CRITICAL)
    return dict(access_log=None, logger=quiet, handler_cancellation=True, shutdown_timeout=SHUTDOWN, max_line_size=LINE)


def load_served(
    export: str | pathlib.Path, index: str | pathlib.Path, title: str
) -> tuple[Mapping[str, ServedModel], list[web.RouteDef]]:
    """Returns the models and the search page's routes, see `serve`; what can be known before models load is said then.

    An index that says which model made it can be served alone; the page needs no export of it.
    """
    if not export and not index:
        raise UserError("Nothing to serve: give --export=EXPORT, --index=INDEX, or both.")
    searched = None if export else load_index(index)
    if not export:
        export = _export_of(searched.model.path)
        if not (model_place(export) / "text_encoder").is_dir() and _lite(export) is None:
            return {}, search_routes(searched, load(export), title, index)
    small = _lite(export)
    if small is None:
        newest_models(local_model(export), export)
    searched = load_index(index) if index and searched is None else searched
    if small is not None:
        from mural_tf.search.server import lite_models

        models, embedder = lite_models.served_models(*small), lite_embedder(*small)
    else:
        from mural_tf.search.server.models import load_models  # with TensorFlow

        embedder = load(export) if searched is not None else None
        models = load_models(export, embedder.saved_models() if embedder else {})
    if searched is None:
        return models, []
    return models, search_routes(searched, embedder, title, index)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UserError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None


def _export_of(model: str) -> str:
    """Returns the model that made an index, or the export of that workdir, at its recorded path."""
    folder = model_place(model)
    if not model or not folder.is_dir():
        raise UserError(f"The index was made by {model or 'a model in memory'}, which is not there: give --export.")
    return str(export_of(model))


def _lite(export: str | pathlib.Path):
    """Returns the folder of a `lite/` that is served, and its `LiteModel`; None where SavedModels are."""
    from mural_tf.search.server import lite_models

    folder = lite_models.lite_folder(export)
    return None if folder is None else (folder, lite_models.LiteModel(folder))


def create_app(
    models: Mapping[str, ServedModel],
    limits: Limits | None = None,
    extra_routes: Iterable[web.RouteDef] = (),
    hosts: Collection[str] = (),
) -> web.Application:
    """Returns the application.

    Args:
      models: by name, as `models.load_models` gives them.
      limits: of requests; defaults if None.
      extra_routes: further routes, as `aiohttp.web.get("/search", handler)`; their `web.HTTPException`s and
        `BadRequest`s become errors too, and `request.app[PREDICT]` runs the encoders.
      hosts: names of this server that requests may have; any if empty.
    """
    limits = limits or Limits()
    server = Server(models, limits, hosts)
    app = web.Application(middlewares=[server.middleware], client_max_size=limits.max_request_bytes)
    model = r"/v1/models/{name:[^/:]+}{version:(/versions/\d{1,18})?}"
    app.router.add_post(model + ":predict", server.predict)
    app.router.add_get(model, server.status)
    app.router.add_get(model + "/metadata", server.metadata)
    app.router.add_get("/healthz", server.healthz)
    app.add_routes(extra_routes)
    app.on_response_prepare.append(_add_headers)
    app[PREDICT] = server.run
    return app


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


class Server:
    """Handlers over the loaded model."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits, hosts: Collection[str] = ()):
        self.models, self._limits, self._hosts = models, limits, hosts
        self._batchers = {
            (name, key): Batcher(signature.run, limits.max_batch)
            for name, model in models.items()
            for key, signature in model.signatures.items()
        }
        self._threads = concurrent.futures.ThreadPoolExecutor(2, "parsing")  # and decoding, which takes memory
        self._running = self._large = 0  # requests, and requests with large bodies among them

    async def run(self, name: str, signature: str, inputs: Arrays, on_error: str = RAISE) -> Arrays:
        """Runs {input: [B, …]} through a signature, in a batch with other requests; strings are object arrays.

        Args:
          name, signature: of the model.
          inputs: one row or more.
          on_error: "raise", or "zeros" for a row of zeros in place of an image that cannot be read.

        Raises:
          BadRequest: an image that cannot be read, or that claims too many pixels.
        """
        batcher = self._batchers[name, signature]
        if not self.models[name].signatures[signature].takes_images:
            return await batcher(inputs)
        images, costs = await self._in_thread(prepare_images, inputs[IMAGES], on_error)
        outputs = await batcher({**inputs, IMAGES: images}, costs)
        if on_error != ZEROS:
            for output in outputs.values():
                check_read(output)
        return outputs

    async def predict(self, request: web.Request) -> web.Response:
        """POST …:predict"""
        model = self._model(request)  # before the body is read
        body = await read_body(request, self._limits)
        is_small = len(body) <= SMALL_BODY
        parsed = self._parse(body, model) if is_small else await self._in_thread(self._parse, body, model)
        key, inputs, is_rows, on_error = parsed
        outputs = await self.run(model.name, key, inputs, on_error)
        text = await self._in_thread(answer_json, outputs, is_rows)
        return web.Response(text=text, content_type="application/json")

    @contextlib.contextmanager
    def _room_for(self, request: web.Request) -> Iterator[None]:
        """Counts a request while it runs; raises `Overloaded` for one too many, or too many with large bodies."""
        length = request.content_length
        is_large = request.can_read_body and (length is None or length > bounds.LARGE)
        if self._running >= bounds.REQUESTS or (is_large and self._large >= bounds.LARGE_BODIES):
            count = f"{self._large} large requests" if is_large else f"{self._running} requests"
            raise Overloaded(f"{count} are being answered; try again later.")
        self._running, self._large = self._running + 1, self._large + is_large
        try:
            yield
        finally:
            self._running, self._large = self._running - 1, self._large - is_large

    def _parse(self, body: bytes, model: ServedModel) -> tuple[str, Arrays, bool, str]:
        values = parse_body(body, bounds.VALUES)
        key, on_error = options(values)
        if key not in model.signatures:
            raise BadRequest(f"{model.name} has no signature {key!r}; it has {', '.join(sorted(model.signatures))}.")
        return key, *parse_inputs(values, model.signatures[key].inputs, bounds.ROWS), on_error

    def _in_thread(self, function: Callable, *arguments):
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

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

    def _model(self, request: web.Request) -> ServedModel:
        name, version = request.match_info["name"], request.match_info["version"].rpartition("/")[2]
        if name not in self.models:
            raise web.HTTPNotFound(text=f"There is no model {name!r}; there are {', '.join(sorted(self.models))}.")
        served = self.models[name].version
        if version and int(version) != served:
            raise web.HTTPNotFound(text=f"{name} has no version {int(version)} loaded; it has {served}.")
        return self.models[name]

    @web.middleware
    async def middleware(self, request: web.Request, handler) -> web.StreamResponse:
        """Bounds how many requests run and for how long, and turns every exception into an error of HTTP."""
        try:
            host = _host_of(request.headers.get("Host", ""))
            if self._hosts and host and host not in self._hosts:  # a page elsewhere whose name leads here
                raise BadRequest(f"This server is {', '.join(self._hosts)}, not {host!r}.", 403)
            if request.path == "/healthz":
                return await handler(request)
            with self._room_for(request):
                async with timeout(self._limits.timeout):
                    return await handler(request)
        except Exception as error:  # noqa: BLE001 - the server goes on
            if isinstance(error, web.HTTPException) and error.status < 400:
                raise
            response = _error_response(request, *self._explained(error, request))
            # Its frames hold the body and the arrays of the request, in circles, until Python looks for garbage.
            error.__traceback__ = error.__context__ = None
            return response

    def _explained(self, error: Exception, request: web.Request) -> tuple[int, str]:
        """Returns the status and the words that answer a request that ended in an error."""
        if isinstance(error, web.HTTPException):
            return error.status, error.text or error.reason
        if isinstance(error, (BadRequest, Overloaded)):
            return error.status, str(error)
        if isinstance(error, asyncio.TimeoutError):
            return 503, f"No answer within {self._limits.timeout:g} seconds, so the request was dropped."
        if isinstance(error, (web.RequestPayloadError, ConnectionError)):  # the client may have gone away
            return 400, f"The body cannot be read: {error}."
        log.error("%s %s failed", request.method, request.path, exc_info=error)
        return 500, "The server failed on this request; its log says why."


def _host_of(header: str) -> str | None:
    """Returns the name in a Host header without its port; raises `BadRequest` for another text."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError as error:
        raise BadRequest(f"The header Host cannot be read: {error}.") from None


def _error_response(request: web.Request, status: int, message: str) -> web.Response:
    headers = {"Retry-After": "1"} if status == 503 else None
    if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
        start = "../" * (request.path.count("/") - 1) + "search"
        page = pages.render("error.html", status=status, message=message, start=start)
        return web.Response(text=page, status=status, headers=headers, content_type="text/html")
    return web.json_response({"error": message}, status=status, headers=headers)
