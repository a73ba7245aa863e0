"""Damaged requests against a server that this starts: 2,000 by default, each from a seed that is printed if it fails.

    python -m benchmarks.fuzz_requests --export=exported [--count=2000] [--seed=0] [--only=SEED]

Every request is one that the server could have answered, damaged in one way or several: bits, cuts, JSON values of
other types, sizes and depths, base64, images, headers, lengths, compressed bodies, and clients that leave. Everything
is on this machine, and no body is above 2 MB. What must hold: an answer within 30 seconds (the server waits 5 for a
body), which is either right (vectors of length 1) or a JSON error with 4xx or 503; no stack trace in the server's log;
/healthz and a good request at the end.
"""

from __future__ import annotations

import argparse
import base64
import collections
import gzip
import http.client
import io
import json
import math
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import zlib

import numpy as np
from PIL import Image

KINDS = (("RGB", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("P", "GIF"), ("L", "BMP"), ("1", "TIFF"))
SIGNATURES = ("serving_default", "tokens", "image", "text_text", "x", "", "__saved_model_init_op", 3, None)
ELSEWHERE = ("/", "/v1/models/x:predict", "/v1/models/text_encoder", "/metrics", "/%ff/../..", "*")
PATHS = ("/v1/models/text_encoder:predict", "/v1/models/image_encoder:predict")
LEFT = "the client left"
SECONDS = 30.0
LARGEST = 2 * 10**6  # bytes of a body


def picture(draw: random.Random) -> bytes:
    """A small image of any format that the server takes, or does not."""
    mode, kind = draw.choice(KINDS)
    buffer = io.BytesIO()
    Image.new(mode, (draw.randint(1, 60), draw.randint(1, 60)), draw.randrange(2)).save(buffer, kind)
    return buffer.getvalue()


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Some bytes changed, removed or doubled, or the end cut off."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        place = draw.randrange(len(data) + 1)
        kind = draw.randrange(4)
        if kind == 0 and place < len(data):
            data[place] = draw.randrange(256)
        elif kind == 1:
            del data[place : place + draw.choice([1, 2, 50])]
        elif kind == 2:
            data[place:place] = data[place : place + draw.choice([1, 10, 1000])]
        elif draw.random() < 0.2:
            del data[place:]
    return bytes(data)


def value(draw: random.Random, depth: int = 3):
    """Any JSON value, odd ones above all."""
    kind = draw.randrange(9 if depth else 6)
    if kind == 0:
        return draw.choice([None, True, False, 0, -1, 2**31, 2**63, 10**400, 1e308, -0.0, 0.1, math.nan, math.inf])
    if kind == 1:
        return draw.choice(["", "a", "\0", "\ud800", "é" * 1000, '"\\', "心" * 50, "x" * draw.choice([10, 10**5])])
    if kind == 2:
        image = base64.b64encode(picture(draw)).decode()
        return {"b64": draw.choice(["", "?", "AAAA", "AAA", "é", image, 3, None, []])}
    if kind == 3:
        return {"b64": base64.b64encode(damaged(draw, picture(draw))).decode()}
    if kind == 4:
        return draw.choice([[], {}, [[]], [{}], [None] * 2000, [[0] * 500] + [[]] * 500, ["x" * 10**5] + [""] * 500])
    if kind == 5:
        return draw.choice(["a red heart", 7, 0.5])
    if kind == 6:
        return [value(draw, depth - 1)] * draw.choice([1, 2, 3, 100])
    if kind == 7:
        return [value(draw, depth - 1) for _ in range(draw.randint(0, 5))]
    names = ("text", "image_bytes", "b64", "input_word_ids", "input_mask", "input_type_ids", "", "é")
    return {name: value(draw, depth - 1) for name in draw.sample(names, draw.randint(0, 4))}


def body(draw: random.Random) -> bytes:
    """The JSON of a request; a quarter of them is right but for what is damaged later."""
    if draw.random() < 0.25:
        texts, images = ["a red heart", ""], [{"b64": base64.b64encode(picture(draw)).decode()}]
        found = {draw.choice(["instances", "inputs"]): draw.choice([texts, images])}
    else:
        names = draw.choices(["instances", "inputs", "instance", ""], k=draw.choice([1, 1, 1, 2]))
        found = {name: value(draw) for name in names}
    if draw.random() < 0.4:
        found["signature_name"] = draw.choice(SIGNATURES)
    if draw.random() < 0.3:
        found["on_error"] = draw.choice(["zeros", "raise", "skip", None, [], {}])
    if draw.random() < 0.05:
        return b"[" * draw.choice([100, 1000, 10**6]) + json.dumps(found).encode()
    try:
        return json.dumps(found, ensure_ascii=draw.random() < 0.5).encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(found).encode()


def request(draw: random.Random) -> tuple[bytes, bool]:
    """Returns the bytes of a request, and whether the client leaves before the answer."""
    content, headers = body(draw)[:LARGEST], {"Host": "localhost", "Content-Type": "application/json"}
    if draw.random() < 0.3:
        content = damaged(draw, content)
    if draw.random() < 0.1:
        kind, pack = draw.choice([("gzip", gzip.compress), ("deflate", zlib.compress), ("br", bytes), ("gzip", bytes)])
        headers["Content-Encoding"] = kind
        content = pack(draw.choice([content, b" " * LARGEST, b""]))
        content = damaged(draw, content) if draw.random() < 0.5 else content
    length, leaves = len(content), draw.random() < 0.05
    if draw.random() < 0.05:
        length, leaves = length + draw.choice([1, 10**6, 10**12]), True
    if draw.random() < 0.05:
        headers["Transfer-Encoding"] = "chunked"
        content = b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content) if content else b"0\r\n\r\n"
    else:
        headers["Content-Length"] = str(length)
    method = draw.choice(["POST"] * 15 + ["GET", "PUT", "HEAD", "NONSENSE"])
    if method == "NONSENSE":  # not HTTP: the server hangs up, and forgets its answer if much is unread
        content = content[:1000]
    path = draw.choice(PATHS * 6 + ELSEWHERE)
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {text}\r\n" for name, text in headers.items()) + "\r\n"
    raw = head.encode()
    if draw.random() < 0.05:
        raw, leaves = damaged(draw, raw), True  # whatever it claims now, it is complete: nothing may come
    return raw + content, leaves


def ask(port: int, raw: bytes, leaves: bool) -> tuple[int, bytes] | str:
    """Sends a request; returns status and body of the answer, or `LEFT`. Raises `OSError` if none comes."""
    with socket.create_connection(("localhost", port), timeout=SECONDS) as connection:
        try:
            connection.sendall(raw)
            if leaves:
                connection.settimeout(0.05)
            answer = http.client.HTTPResponse(connection, method="HEAD" if raw.startswith(b"HEAD ") else "POST")
            answer.begin()
            while answer.status == 100:
                answer.begin()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            if leaves:
                return LEFT
            raise


def verdict(status: int, content: bytes, raw: bytes) -> str:
    """Returns what is wrong with an answer, "" if nothing is."""
    if raw.startswith(b"HEAD ") or (status == 200 and b":predict" not in raw[:100]):
        return ""  # no body; a page other than predictions
    try:
        answer = json.loads(content)
    except ValueError:
        return f"{status} without JSON: {content[:100]!r}"
    if status == 200:
        vectors = np.array(answer.get("predictions", answer.get("outputs")), float)
        lengths = np.linalg.norm(vectors, axis=-1)
        allowed = (np.abs(lengths - 1) < 1e-3) | ((lengths == 0) & (b"zeros" in raw))
        return "" if lengths.size and allowed.all() else f"200 with vectors of length {lengths}"
    is_error = isinstance(answer, dict) and isinstance(answer.get("error"), str) and answer["error"]
    return "" if is_error and (400 <= status < 500 or status == 503) else f"{status}: {content[:200]!r}"


def fuzz(port: int, seeds) -> tuple[collections.Counter, list[str]]:
    """Sends the request of each seed; returns {status: count} and what went wrong."""
    counts, wrong = collections.Counter(), []
    for seed in seeds:
        raw, leaves = request(random.Random(seed))
        try:
            answer = ask(port, raw, leaves)
            problem = "" if answer == LEFT else verdict(*answer, raw)
            counts[answer if answer == LEFT else answer[0]] += 1
        except (OSError, http.client.HTTPException) as error:
            problem = f"no answer: {error!r}"
        if problem:
            wrong.append(f"seed {seed}: {problem}")
            print(" ", wrong[-1], flush=True)
    return counts, wrong


def is_well(port: int) -> bool:
    """Whether /healthz says ok and a text gets its vector."""
    health = ask(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", False)
    text = b'{"instances": ["a red heart"]}'
    raw = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (PATHS[0].encode(), len(text), text)
    return health[0] == 200 and not verdict(*ask(port, raw, False), raw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first request; the next has the next")
    parser.add_argument("--only", type=int, default=-1, help="repeat the request of this seed alone")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.count) if arguments.only < 0 else [arguments.only]
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        command = [sys.executable, "-m", "mural_tf", "serve", f"--export={arguments.export}", "--port=0"]
        command.append("--body_timeout_s=5")
        with open(log, "w", encoding="utf-8") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            line = process.stdout.readline()
            if not line.startswith("Serving "):
                sys.exit(log.read_text(encoding="utf-8"))
            port = int(line.rsplit(":", 1)[1])
            counts, wrong = fuzz(port, seeds)
            alive = is_well(port)
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        finally:
            process.kill()
        text = log.read_text(encoding="utf-8")
    traces = text.count("Traceback (most recent call last)")
    print(f"seeds {seeds[0]} to {seeds[-1]}: {dict(counts)}")
    print(f"{len(wrong)} wrong, {traces} stack traces, {'well' if alive else 'NOT WELL'} at the end, exit code {code}")
    if traces:
        print(text[text.index("Traceback") - 200 :][:3000])
    sys.exit(1 if wrong or traces or not alive or code else 0)


if __name__ == "__main__":
    main()
