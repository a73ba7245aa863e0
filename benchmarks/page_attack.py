"""Requests of a search page, every second one malformed: no answer of 500, and memory that does not grow.

    python -m benchmarks.page_attack --index=my_index [--count=10000] [--seed=0]

Starts `serve --index=…`, asks, and prints how many answers had which status (0: none came, because the server waits
for the rest of a request that was cut off) and the server's memory after each tenth.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from urllib.parse import quote

from PIL import Image

ODD = ["", " ", "\0", "\ud800", "é" * 900, "x" * 3000, "-", "-red", '"><b>', "1_0", "٣", "1e309", "nan", "-1", "9" * 30,
       "|", "Brand=Acme", "price<1" + " " * 400, "=", "<", "Stock>=x", "..", "%", "AAAA", "name" * 100]  # fmt: skip
NAMES = ["sentence", "filter", "like", "picture", "k", "offset", "sort", "rank", "item", "closest", "language",
         "facets", "from.Stock", "to.", "x", ""]  # fmt: skip
HEADERS = "Host: localhost\r\nConnection: close\r\n"
PICTURE = io.BytesIO()
Image.new("RGB", (8, 6)).save(PICTURE, "PNG")
BODIES = [b"", b"{", b"[]", b"\xff" * 99, PICTURE.getvalue()[:40], b"--b\r\n\r\n--b--"]
PATHS = ["/search", "/search/answer", "/search/picture/7", "/", "/x/y", "/%ff"]


def good_request(draw: random.Random, items: int) -> bytes:
    """Returns a random HTTP request that the server of an index with so many items answers with status 200."""
    questions = ["sentence=red", "sentence=أحمر&offset=20", f"like={draw.randrange(items)}", "sentence=-5 shoes", ""]
    address = f"{draw.choice(['/search', '/search/answer'])}?{quote(draw.choice(questions), safe='=&-')}"
    picture = f"/search/picture/{draw.randrange(items)}?side={draw.choice([240, 1600])}"
    return f"GET {draw.choice([address, address, picture, '/healthz'])} HTTP/1.1\r\n{HEADERS}\r\n".encode()


def bad_request(draw: random.Random) -> bytes:
    """Returns a random HTTP request with odd parameters, path or body, in which bytes may be changed or cut off."""
    pairs = [(draw.choice(NAMES), draw.choice(ODD)) for _ in range(draw.randrange(5))]
    query = "&".join(f"{name}={quote(text, errors='surrogatepass')}" for name, text in pairs)
    body = draw.choice(BODIES)
    method = draw.choice(["GET", "GET", "GET", "POST", "PUT", "HEAD"])  # mostly GET, as pages are asked
    if method == "POST" and draw.random() < 0.5:
        path = "/search/answer"
    else:
        path = f"{draw.choice(PATHS)}?{query}"
    content_type = draw.choice(["application/json", "multipart/form-data; boundary=b", "multipart/form-data", "x"])
    head = f"{method} {path} HTTP/1.1\r\n{HEADERS}Accept: {draw.choice(['text/html', '*/*'])}\r\n"
    raw = f"{head}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    if draw.random() < 0.2:
        position = draw.randrange(len(raw))
        raw = raw[:position] + bytes(draw.randrange(256) for _ in range(3)) + raw[position + 3 :]
    if draw.random() < 0.9:
        return raw
    return raw[: draw.randrange(1, len(raw))]


def status_of(port: int, raw: bytes, patience: float) -> int:
    """Sends a request to a port of this machine, and returns the status of its answer.

    It is 0 if no answer comes within `patience` seconds.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            connection.sendall(raw)
            while piece := connection.recv(65536):
                answer += piece
    return int(answer[9:12]) if answer else 0  # after b"HTTP/1.1 "


def attack(port: int, items: int, count: int, memory: Callable[[], float], seed: int = 0) -> tuple[dict, list, list]:
    """Sends requests to a server of an index, good and bad in turns.

    Args:
      port: the server's port on this machine.
      items: how many items the index has.
      count: the number of requests.
      memory: returns the server's resident memory in bytes.
      seed: the seed of the requests.

    Returns:
      ({status: number of answers}, [(status, request)] of the wrong answers, [MB of memory after each tenth]). An
      answer is wrong if its status is 500 or more, or if a good request has another status than 200.
    """
    draw = random.Random(seed)
    counts = collections.Counter()
    wrong = []
    sizes = []
    for number in range(count):
        is_good = number % 2 == 1
        raw = good_request(draw, items) if is_good else bad_request(draw)
        patience = 30.0 if is_good else 0.3  # seconds; a request that is cut off is never answered
        status = status_of(port, raw, patience)
        counts[status] += 1
        if status >= 500 or (is_good and status != 200):
            wrong.append((status, raw))
        if (number + 1) % max(1, count // 10) == 0:
            sizes.append(round(memory() / 1e6))
    return dict(counts), wrong, sizes


def resident(pid: int) -> float:
    """Returns a process's resident memory in bytes."""
    _, pages, *_ = pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return 4096.0 * int(pages)  # bytes of a page


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[tuple[int, subprocess.Popen]]:
    """Starts `serve` with flags, yields (port, process), and ends it by SIGTERM.

    This process ends with a message if the server's exit code is not 0 or its log has a traceback.
    """
    command = [sys.executable, "-m", "mural_tf", "serve", *flags, "--port=0"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            address = process.stdout.readline()
            yield int(re.search(r":(\d+)/search$", address)[1]), process
            process.terminate()
            exit_code = process.wait(60)
        finally:
            process.kill()
            log.seek(0)
            text = log.read()
    if exit_code or "Traceback (most recent call last)" in text:
        sys.exit(f"The server ended with {exit_code}; its log: {text[-3000:]}")


def main() -> None:
    """Serves the index that the command line names, and sends requests; exit code 1 for a wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from mural_search.index import load_index

    items = len(load_index(arguments.index))
    with serving(f"--index={arguments.index}") as (port, process):
        counts, wrong, sizes = attack(port, items, arguments.count, lambda: resident(process.pid), arguments.seed)
    print(f"{counts}; {len(wrong)} wrong answers; memory in MB after each tenth: {sizes}")
    print(*wrong[:10], sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
