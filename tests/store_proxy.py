"""A proxy before the object store that answers as stores on bad days do: with errors, late, or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import threading
import time
import urllib.parse

DROP = "drop"  # an answer: the connection is closed without one
_ERROR = '<?xml version="1.0"?><Error><Code>{0}</Code><Message>{0} by the proxy</Message></Error>'
CODES = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown", 507: "InsufficientStorage"}


@dataclasses.dataclass
class Proxy:
    """Set `rule`, (method, path, number of the request) → None to pass it on, a status, `DROP`, or seconds to wait."""

    rule: object = staticmethod(lambda method, path, number: None)
    requests: list[tuple[str, str, object]] = dataclasses.field(default_factory=list)

    def decide(self, method: str, path: str):
        """Returns what to do with a request, and notes it."""
        answer = self.rule(method, path, len(self.requests))
        self.requests.append((method, path, answer))
        return answer


@contextlib.contextmanager
def proxy_before(address: str, monkeypatch):
    """Gives a `Proxy` before the store at `address`, through which everything goes that is started from now on."""
    proxy, store = Proxy(), urllib.parse.urlsplit(address)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = proxy.decide(self.command, self.path)
            if answer == DROP:
                self.close_connection = True
                return
            if isinstance(answer, float):
                time.sleep(answer)
            if isinstance(answer, int):
                self.answer(answer, {}, _ERROR.format(CODES[answer]).encode())
                return
            connection = http.client.HTTPConnection(store.hostname, store.port, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            found = connection.getresponse()
            self.answer(found.status, dict(found.getheaders()), found.read())
            connection.close()

        def answer(self, status, headers, content):
            self.send_response_only(status)
            kept = {name: value for name, value in headers.items() if name.lower() not in _OF_THE_CONNECTION}
            length = headers.get("Content-Length", headers.get("content-length")) if self.command == "HEAD" else None
            for name, value in {**kept, "Content-Length": length or str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("AWS_ENDPOINT_URL", "S3_ENDPOINT"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


_OF_THE_CONNECTION = {"content-length", "transfer-encoding", "connection", "keep-alive"}
