"""Serves an export over HTTP, with TensorFlow Serving's REST paths and JSON. Example:

python -m mural_tf.serve --export=exports/emoji_mural --port=8501
"""

import json
import pathlib
import socket

from absl import flags

from mural_tf import cli
from mural_tf.errors import UserError

EXPORT = flags.DEFINE_string("export", None, "Export to serve (made by run_export.py).", required=True)
INDEX = flags.DEFINE_string("index", "", "Index of run_search.py, searched at /search; made with the same model.")
HOST = flags.DEFINE_string("host", "localhost", "Address to listen on; 0.0.0.0: every network.")
PORT = flags.DEFINE_integer("port", 8501, "Port to listen on; 0: any free one.", lower_bound=0, upper_bound=65535)
MAX_BATCH = flags.DEFINE_integer("max_batch", 64, "Rows in one run of an encoder.")
WINDOW = flags.DEFINE_float("batch_window_ms", 2.0, "How long a request waits for others to share a run.")
MAX_REQUEST = flags.DEFINE_float("max_request_mb", 32.0, "Size of a request's body.")
MAX_WAITING = flags.DEFINE_integer("max_waiting", 1024, "Requests that may wait for one signature.")


def main(argv):
    del argv
    try:
        from aiohttp import web

        from mural_tf.serve.app import create_app
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "prometheus_client"):
            raise
        raise UserError(f"The server needs {error.name}: pip install 'mural-tf[serve]'.") from None
    from mural_tf.serve.batching import Limits

    limits = Limits(
        max_batch=MAX_BATCH.value,
        window=WINDOW.value / 1000.0,
        max_request_bytes=int(MAX_REQUEST.value * 2**20),
        max_waiting=MAX_WAITING.value,
    )
    listener = _listen(HOST.value, PORT.value)  # before the models are loaded: a port in use is told at once
    app = create_app(EXPORT.value, limits, _search_routes() if INDEX.value else ())

    async def announce(app):
        del app
        print(f"Serving {EXPORT.value} at http://{HOST.value}:{listener.getsockname()[1]}", flush=True)

    app.on_startup.append(announce)
    # Ends on SIGTERM and SIGINT: no new requests, and those that run get their answer first.
    web.run_app(app, sock=listener, shutdown_timeout=limits.shutdown_timeout, access_log=None, print=None)


def _search_routes() -> list:
    import mural_tf
    from mural_tf.export.saved_model import MODEL_CARD
    from mural_tf.search.index import load_index
    from mural_tf.serve.search_page import search_routes

    embedder = mural_tf.load(EXPORT.value)
    card = json.loads((pathlib.Path(EXPORT.value) / MODEL_CARD).read_text(encoding="utf-8"))
    return search_routes(load_index(INDEX.value), embedder, card["training_data"]["languages"])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UserError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None


if __name__ == "__main__":
    cli.run(main)
