"""The server of the search page: its routes, and GET /healthz, {"status": "ok"} as soon as the model is loaded.

Every error is `{"error": "…"}`, for a browser a page: 4xx if the request is at fault, 503 if there is no room or time
for it, 500 if the program is at fault. TLS, users and rates are a proxy's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pathlib
import socket
import sys
from collections.abc import Collection, Iterable, Iterator
from urllib.parse import urlsplit

try:
    from asyncio import timeout  # not `wait_for`: until 3.11 it may forget that a client went away
except ImportError:  # Python 3.10, to which aiohttp brings it
    from async_timeout import timeout

from absl import logging as log

from mural_lite import pages
from mural_lite.errors import UserError, install_extra
from mural_lite.files import as_path

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    raise UserError(f"The server needs {error.name}: {install_extra('serve')}.") from None

from mural_lite.models import open_model, quickest
from mural_lite.remote_folders import model_place
from mural_search.database import check_place
from mural_search.index import load_index
from mural_search.server import limits as bounds
from mural_search.server.immich import check_name, immich_routes
from mural_search.server.limits import BadRequest, Limits, Overloaded
from mural_search.server.routes import search_routes
from mural_search.server.settings import DEFAULTS, PageSettings
from mural_search.server.stopping import end_on_sigterm

SHUTDOWN = 20.0  # seconds that running requests get at the end
DEADLINE = 25.0  # seconds after SIGTERM when the server is ended, also while it works; Kubernetes kills it after 30
LINE = 2**16  # bytes of an address: a question of 2,000 characters takes up to 24,000
HERE = ("localhost", "127.0.0.1", "::1")  # hosts of a server that only this machine reaches
# `frame-ancestors` is not allowed in a page's own policy. As "Server", aiohttp would name its version and Python's.
HEADERS = {
    "Server": "mural_tf", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "frame-ancestors 'self'"
}  # fmt: skip


def serve(
    index: str | pathlib.Path = "",
    export: str | pathlib.Path = "",
    host: str = "localhost",
    port: int = 8501,
    settings: PageSettings = DEFAULTS,
    hosts: Collection[str] = (),
    limits: Limits | None = None,
    immich: str = "",
) -> None:
    """Serves the search page and immich's requests until SIGTERM or SIGINT; prints the address when it is ready.

    At the end no new requests are taken, and running requests get `SHUTDOWN` seconds. Changes settings of the process:
    Python's switches between threads and its garbage collector.

    Args:
      index: the folder of the index that /search answers from; "" to serve only immich's requests.
      export: the model that made the index, which embeds questions; "": the model at the path that the index names. An
        export that has a `lite/` answers by it, without TensorFlow.
      host: the name or IP address to listen on.
      port: the port to listen on; 0 is any free port.
      settings: the settings of the search page.
      hosts: names of the server that requests may have besides localhost. Without them a server on localhost has only
        that name, and a server on other addresses any name.
      limits: the limits of requests; None for the defaults.
      immich: the name of a model of immich, as which the encoders answer its requests, see `immich.py`; "" for no
        such requests.

    Raises:
      UserError: there is no index, the model is missing or did not make the index, the address cannot be listened on,
        or a setting does not fit the index.
    """
    check_served(index, export, immich)
    listener = _listen(host, port)  # before the model is loaded: a port in use is reported at once
    allowed_hosts = []
    if hosts or host in HERE:
        allowed_hosts = [*HERE, *map(str.lower, hosts)]
    app = create_app(load_page(index, export, settings, immich), limits, allowed_hosts)
    sys.setswitchinterval(0.0005)  # seconds for which the loop waits wherever a thread answers; 0.005 by default
    gc.freeze()  # Python looks for garbage when a quarter of all objects is new; TensorFlow's objects now do not count
    named_host = f"[{host}]" if ":" in host else host  # an IPv6 address has colons itself
    address = f"http://{named_host}:{listener.getsockname()[1]}"
    if index:
        print(f"Serving {index} at {address}/search", flush=True)
    if immich:
        print(f"Serving vectors to immich as {immich}: {address}", flush=True)
    app.on_startup.append(_watch_for_the_end)  # after aiohttp has set its handlers of signals
    web.run_app(app, sock=listener, print=None, **run_options())


async def _watch_for_the_end(app: web.Application) -> None:
    """Bounds the time between SIGTERM and the end of the server by `DEADLINE`."""
    end_on_sigterm(DEADLINE)


def run_options() -> dict[str, object]:
    """Returns {option: value} for aiohttp's `run_app` or `AppRunner`, and silences the logger that is among these.

    The options are for an application of `create_app`, whose `Server` logs errors of the program. The logger would get
    aiohttp's tracebacks of broken requests.
    """
    logger = logging.getLogger("mural_tf.server")
    logger.setLevel(logging.CRITICAL)
    return {
        "access_log": None,
        "logger": logger,
        "handler_cancellation": True,
        "shutdown_timeout": SHUTDOWN,
        "max_line_size": LINE,
    }


def check_served(index: str | pathlib.Path, export: str | pathlib.Path = "", immich: str = "") -> None:
    """Raises `UserError` for arguments of `serve` that cannot be served, before anything is opened.

    Refused are: neither an index nor `immich`; a name that immich does not know; `immich` without a model; and a
    folder that cannot hold an index.
    """
    if not index and not immich:
        raise UserError("Nothing to serve: give --index=INDEX. To serve an export's vectors, see docs/serving.md.")
    if immich:
        check_name(immich)
    if not index:
        if not export:
            raise UserError("--immich needs a model: give --export=EXPORT, or --index=INDEX for the index's model.")
        return
    folder = as_path(index)
    if isinstance(folder, pathlib.Path):  # an index in a store is checked when it is opened
        check_place(folder)


def load_page(
    index: str | pathlib.Path,
    export: str | pathlib.Path = "",
    settings: PageSettings = DEFAULTS,
    immich: str = "",
) -> list[web.RouteDef]:
    """Returns the routes of the search page, unless `index` is "", and of immich's requests, unless `immich` is "".

    Args:
      index, export, settings, immich: as in `serve`; `check_served` has checked them.

    Raises:
      UserError: the index, the model or a setting cannot be used.
    """
    if not index:
        return immich_routes(open_model(quickest(export)), immich)
    opened_index = load_index(index)  # before the model, whose loading takes longer
    settings.check(opened_index.table.field_names())
    embedder = open_model(quickest(export or _existing_model(opened_index.model.path)))
    routes = search_routes(opened_index, embedder, settings, index)
    if immich:
        routes = [*immich_routes(embedder, immich), *routes]
    return routes


def _listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on an address; raises `UserError` if the address is unknown or in use."""
    try:
        first_address, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = first_address
        return socket.create_server(address, family=family)
    except OSError as error:
        reason = error.strerror
        if error.errno and error.errno > 0:  # an unknown host's number is negative
            reason = os.strerror(error.errno)  # `strerror` of `create_server` repeats the address
        raise UserError(f"Cannot listen on {host}:{port}: {reason}. Try --port={port + 1}.") from None


def _existing_model(path: str) -> str:
    """Returns the path of the model that made an index; raises `UserError` if no model is there."""
    if not path or not model_place(path).is_dir():
        raise UserError(f"The index was made by {path or 'a model in memory'}, which is not there: give --export.")
    return path


def create_app(
    routes: Iterable[web.RouteDef], limits: Limits | None = None, hosts: Collection[str] = ()
) -> web.Application:
    """Returns an application of aiohttp that answers GET /healthz and the routes, within the limits.

    Args:
      routes: routes of the search page and others, such as `aiohttp.web.get("/about", handler)`. An exception that a
        handler raises becomes an answer with a status of 400 or more.
      limits: the limits of requests; None for the defaults.
      hosts: names of this server that requests may have, in lower case; empty: any name.
    """
    limits = limits or Limits()
    server = Server(limits, hosts)
    app = web.Application(middlewares=[server.middleware], client_max_size=limits.max_request_bytes)
    app.router.add_get("/healthz", healthz)
    app.add_routes(routes)
    app.on_response_prepare.append(_add_headers)
    return app


async def healthz(request: web.Request) -> web.Response:
    """Answers GET /healthz, by which a proxy or Kubernetes asks whether the server runs."""
    return web.json_response({"status": "ok"})


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers that every answer of the server has."""
    response.headers.update(HEADERS)


class Server:
    """Bounds requests, and answers every exception with an error of HTTP; its arguments are as in `create_app`."""

    def __init__(self, limits: Limits, hosts: Collection[str] = ()):
        self._limits = limits
        self._hosts = hosts
        self._running = 0  # the number of requests that are being answered
        self._large_running = 0  # the number of requests with large bodies among them

    @contextlib.contextmanager
    def _room_for(self, request: web.Request) -> Iterator[None]:
        """Counts a request while it runs; raises `Overloaded` if too many run, or too many with large bodies."""
        length = request.content_length
        is_large = request.can_read_body and (length is None or length > bounds.LARGE)
        if self._running >= bounds.REQUESTS:
            raise Overloaded(f"{self._running} requests are being answered; try again later.")
        if is_large and self._large_running >= bounds.LARGE_BODIES:
            raise Overloaded(f"{self._large_running} large requests are being answered; try again later.")
        large_requests = int(is_large)
        self._running += 1
        self._large_running += large_requests
        try:
            yield
        finally:
            self._running -= 1
            self._large_running -= large_requests

    @web.middleware
    async def middleware(self, request: web.Request, handler) -> web.StreamResponse:
        """Returns the handler's answer within the limits; for an exception, an answer that says what went wrong.

        Redirections, which aiohttp's handlers raise as well, are passed on.
        """
        try:
            self._check_host(request)
            if request.path in ("/healthz", "/ping"):
                return await handler(request)
            with self._room_for(request):
                async with timeout(self._limits.timeout):
                    return await handler(request)
        except Exception as error:  # noqa: BLE001 - the server goes on
            if isinstance(error, web.HTTPException) and error.status < 400:
                raise
            status, message = self._status_and_message(error, request)
            response = _error_response(request, status, message)
            # Its frames hold the body and the arrays of the request, in circles, until Python looks for garbage.
            error.__traceback__ = error.__context__ = None
            return response

    def _check_host(self, request: web.Request) -> None:
        """Raises `BadRequest` if a request names another host than this server.

        By a host that resolves to 127.0.0.1 (DNS rebinding) another site's page could ask a server of this machine.
        """
        host = _host_of(request.headers.get("Host", ""))
        if self._hosts and host and host not in self._hosts:
            names = ", ".join(self._hosts)
            raise BadRequest(f"This server is {names}, not {host!r}: --hosts=NAME gives it further names.", 403)

    def _status_and_message(self, error: Exception, request: web.Request) -> tuple[int, str]:
        """Returns (status, message) for a request that ended in an error, and logs an error of the program."""
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
    """Returns the name in a Host header without its port, `None` if it is empty; raises `BadRequest` for other text."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError as error:
        raise BadRequest(f"The header Host cannot be read: {error}.") from None


def _error_response(request: web.Request, status: int, message: str) -> web.Response:
    """Returns the answer that tells a client of an error: a page for a browser, {"error": message} for others."""
    headers = {"Retry-After": "1"} if status == 503 else None  # seconds
    if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
        start = "../" * (request.path.count("/") - 1) + "search"  # relative, because a proxy may serve it elsewhere
        page = pages.render(pages.TEMPLATES / "error.html", status=status, message=message, start=start)
        return web.Response(text=page, status=status, headers=headers, content_type="text/html")
    return web.json_response({"error": message}, status=status, headers=headers)
