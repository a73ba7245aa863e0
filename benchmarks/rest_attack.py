"""Beside `benchmarks.rest_load`, in processes of their own: an attack on a server, and a look at how it bears it.

    python -m benchmarks.rest_attack attack URL rows,pixels PAUSE
    python -m benchmarks.rest_attack watch URL PID

"rows" is four bodies of 28 MB of tiny values, sent at once; "pixels" one of a few megabytes with 64 images of
8191 x 8191 pixels. Each is sent again PAUSE seconds after its answer. Both print one line of JSON whenever something
changes, until they are killed.
"""

from __future__ import annotations

import base64
import collections
import http.client
import json
import pathlib
import struct
import sys
import threading
import time
import urllib.parse
import zlib

SIZE = 28 * 10**6  # bytes


def tiny_rows(row: str) -> bytes:
    """A body that is nothing but small values."""
    return b'{"instances": [' + (row.encode() + b",") * (SIZE // (len(row) + 1)) + b"0]}"


def tiny_columns() -> bytes:
    """The same where no row is counted: one input, deeper than rows are."""
    return b'{"inputs": [[' + b"[]," * (SIZE // 3) + b"[]]]}"


def large_images(count: int = 64, side: int = 8191) -> bytes:
    """A body of a few megabytes whose images decode to 67 million pixels each."""
    pack = zlib.compressobj(9)
    rows = b"".join(pack.compress(bytes(side + 1)) for _ in range(side)) + pack.flush()
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    image = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return json.dumps({"instances": [{"b64": base64.b64encode(image).decode()}] * count}).encode()


# {name of an attack: the (model, body) that are sent at once}
ATTACKS = {
    "rows": lambda: [
        *(("text_encoder", tiny_rows(row)) for row in ("{}", '"a"', '{"":0}')),
        ("text_encoder", tiny_columns()),
    ],
    "pixels": lambda: [("image_encoder", large_images())],
}


def attack(url: str, names: str, pause: str) -> None:
    """Sends; prints {answer's status or error's name: count}."""
    counts: collections.Counter = collections.Counter()
    bodies = [body for name in names.split(",") for body in ATTACKS[name]()]
    whole_lines = threading.Lock()

    def again(model, body):
        while True:
            status = send(url, model, body)
            with whole_lines:
                counts[status] += 1
                print(json.dumps(counts), flush=True)
            time.sleep(float(pause))

    threads = [threading.Thread(target=again, args=body) for body in bodies]
    for thread in threads:
        thread.start()


def send(url: str, model: str, body: bytes) -> str:
    """Returns the status of the answer, or what went wrong."""
    connection = http.client.HTTPConnection(urllib.parse.urlparse(url).netloc, timeout=120)
    try:
        connection.request("POST", f"/v1/models/{model}:predict", body)
        answer = connection.getresponse()
        return str(answer.status) if "error" in json.loads(answer.read()) else "no error"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return type(error).__name__
    finally:
        connection.close()


def watch(url: str, pid: str) -> None:
    """Asks /healthz fifty times a second; prints its worst time and the most memory of the server so far."""
    worst = {"seconds": 0.0, "memory": 0.0, "asked": 0}
    while True:
        start = time.perf_counter()
        connection = http.client.HTTPConnection(urllib.parse.urlparse(url).netloc, timeout=60)
        connection.request("GET", "/healthz")
        if connection.getresponse().status != 200:
            sys.exit("/healthz is not well")
        connection.close()
        worst["seconds"] = max(worst["seconds"], time.perf_counter() - start)
        worst["memory"] = max(worst["memory"], resident(int(pid)))
        worst["asked"] += 1
        print(json.dumps(worst), flush=True)
        time.sleep(0.02)


def resident(pid: int) -> float:
    """A process's resident memory in bytes."""
    return 4096.0 * int(pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])


if __name__ == "__main__":
    {"attack": attack, "watch": watch}[sys.argv[1]](*sys.argv[2:])
