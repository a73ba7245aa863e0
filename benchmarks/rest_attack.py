"""Attacks on a server that this starts: damaged requests, then bodies that want memory next to a good client.

    python -m benchmarks.rest_attack --export=exported [--count=2000] [--seed=0] [--seconds=30]

1. Requests that the server could have answered, damaged (bytes, JSON, base64, images, headers, lengths, compression),
   or left by their client; each follows from its seed. An answer comes within 30 seconds and is either right (vectors
   of length 1) or an error with 4xx or 503, in JSON unless it is not HTTP.
2. Four bodies of 28 MB of tiny values and one whose 64 images claim 67 million pixels each, again and again, next to
   a client that keeps asking for a text or a small picture: its answers are right, and memory is at most 1.5 times the
   memory before + 256 MiB.

At the end the server is well, ends on SIGTERM, and has no stack trace in its log.
"""

from __future__ import annotations

import argparse
import base64
import collections
import contextlib
import gzip
import http.client
import io
import json
import math
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib

import numpy as np
from PIL import Image

from benchmarks.damage import BINARY, damaged

TEXT, IMAGE = "/v1/models/text_encoder:predict", "/v1/models/image_encoder:predict"
ELSEWHERE = ("/", "/v1/models/x:predict", "/v1/models/text_encoder", "/healthz", "/%ff/../..", "*")
KINDS = (("RGB", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("P", "GIF"), ("L", "BMP"), ("1", "TIFF"))
SIGNATURES = ("serving_default", "tokens", "image", "text_text", "x", "", "__saved_model_init_op", 3, None)
NAMES = ("text", "image_bytes", "b64", "input_word_ids", "input_mask", "input_type_ids", "", "é")
ODD = (None, True, 0, -1, 2**31, 2**63, 10**400, 1e308, -0.0, math.nan, math.inf, "", "a", "\0", "\ud800", "é" * 1000,
       '"\\', "x" * 10**5, [], {}, [[]], [{}], [None] * 2000, [[0] * 500] + [[]] * 500)  # fmt: skip
LEFT = "the client left"
SIZE = 28 * 10**6  # bytes of a large body


def post(path: str, content: bytes) -> bytes:
    """Returns the bytes of a whole request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


GOOD = post(TEXT, b'{"instances": ["a red heart"]}')


def of_images(images: list[bytes]) -> bytes:
    """Returns the bytes of a request with these images."""
    rows = [{"b64": base64.b64encode(image).decode()} for image in images]
    return post(IMAGE, json.dumps({"instances": rows}).encode())


def encoded(mode: str, size: tuple[int, int], file_type: str, colour: int = 0) -> bytes:
    """Returns the file of an image of one colour."""
    Image.new(mode, size, colour).save(buffer := io.BytesIO(), file_type)
    return buffer.getvalue()


def picture(draw: random.Random) -> dict:
    """A small image of any format that the server takes, whole or damaged, as JSON has it."""
    mode, file_type = draw.choice(KINDS)
    data = encoded(mode, (draw.randint(1, 60), draw.randint(1, 60)), file_type, draw.randrange(2))
    data = data if draw.random() < 0.5 else damaged(draw, data, BINARY)[0]
    return {"b64": base64.b64encode(data).decode()}


def value(draw: random.Random, depth: int = 3):
    """Any JSON value, odd values above all."""
    choice = draw.randrange(7 if depth else 4)
    if choice < 4:
        return (draw.choice(ODD), draw.choice(["a red heart", 7, 0.5]), picture(draw),
                {"b64": draw.choice(["", "?", "AAAA", "AAA", "é", 3, None])})[choice]  # fmt: skip
    if choice == 4:
        return [value(draw, depth - 1)] * draw.choice([1, 2, 3, 100])
    values = [value(draw, depth - 1) for _ in range(draw.randint(0, 4))]
    return values if choice == 5 else dict(zip(draw.sample(NAMES, len(values)), values))


def request(draw: random.Random) -> tuple[bytes, bool]:
    """Returns the bytes of a request, and whether the client leaves before the answer."""
    right = draw.choice([["a red heart", ""], [picture(draw)]])
    fields = {draw.choice(["instances", "inputs"]): right if draw.random() < 0.25 else value(draw)}
    if draw.random() < 0.4:
        fields["signature_name"] = draw.choice(SIGNATURES)
    if draw.random() < 0.3:
        fields["on_error"] = draw.choice(["zeros", "raise", "skip", None, [], {}])
    content, headers = json.dumps(fields).encode(), {"Host": "localhost", "Content-Type": "application/json"}
    if draw.random() < 0.3:
        content, _ = damaged(draw, content, BINARY)
    if draw.random() < 0.1:
        code, pack = draw.choice([("gzip", gzip.compress), ("deflate", zlib.compress), ("br", bytes), ("gzip", bytes)])
        headers["Content-Encoding"] = code
        content = pack(draw.choice([content, b" " * 2 * 10**6, b""]))
    length, leaves = len(content), draw.random() < 0.05
    if draw.random() < 0.05:
        length, leaves = length + draw.choice([1, 10**6, 10**12]), True
    if draw.random() < 0.05:
        headers["Transfer-Encoding"] = "chunked"
        content = (b"%x\r\n%s\r\n" % (len(content), content) if content else b"") + b"0\r\n\r\n"
    else:
        headers["Content-Length"] = str(length)
    method, path = draw.choice(["POST"] * 15 + ["GET", "PUT", "HEAD"]), draw.choice((TEXT, IMAGE) * 6 + ELSEWHERE)
    head = f"{method} {path} HTTP/1.1\r\n"
    raw = (head + "".join(f"{name}: {text}\r\n" for name, text in headers.items()) + "\r\n").encode()
    if draw.random() < 0.05:
        raw, leaves = damaged(draw, raw, BINARY)[0], True  # it is complete by its own claim, so an answer need not come
    return raw + content, leaves


def ask(port: int, raw: bytes, leaves: bool = False) -> tuple[int, bytes] | str:
    """Sends a request; returns status and body of the answer, or `LEFT`. Raises `OSError` if none comes."""
    with socket.create_connection(("localhost", port), timeout=30) as connection:
        try:
            connection.sendall(raw)
            if leaves:
                connection.settimeout(0.05)
            answer = http.client.HTTPResponse(connection, method="HEAD" if raw.startswith(b"HEAD ") else "POST")
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
    except ValueError:  # aiohttp itself answers broken HTTP and unknown encodings, in plain text
        return "" if status == 400 else f"{status} without JSON: {content[:100]!r}"
    if status == 200:
        lengths = np.linalg.norm(np.array(answer.get("predictions", answer.get("outputs")), float), axis=-1)
        allowed = (np.abs(lengths - 1) < 1e-3) | ((lengths == 0) & (b"zeros" in raw))
        return "" if lengths.size and allowed.all() else f"200 with vectors of length {lengths}"
    is_error = isinstance(answer, dict) and isinstance(answer.get("error"), str) and answer["error"]
    return "" if is_error and (400 <= status < 500 or status == 503) else f"{status}: {content[:200]!r}"


def fuzz(port: int, seeds) -> tuple[collections.Counter, list[str]]:
    """Sends the request of each seed; returns {status: count} and the problems."""
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
    healthy = ask(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200
    return healthy and not verdict(*ask(port, GOOD), GOOD)


def large_bodies() -> list[bytes]:
    """Requests that would take gigabytes: as Python's objects, or as pixels."""
    rows = [b'{"instances": [' + (row + b",") * (SIZE // (len(row) + 1)) + b"0]}" for row in (b"{}", b'"a"', b'{"":0}')]
    columns = b'{"inputs": [[' + b"[]," * (SIZE // 3) + b"[]]]}"
    return [*(post(TEXT, body) for body in (*rows, columns)), of_images([encoded("L", (8191, 8191), "PNG")] * 64)]


def attack(port: int, pid: int, seconds: float, bodies: list[bytes]) -> tuple[dict, np.ndarray, list[str], float]:
    """Returns {status of an attack: count}, seconds of each good request, what went wrong, the most memory."""
    counts, times, wrong, most, end = collections.Counter(), [], [], 0.0, time.perf_counter() + seconds
    ordinary = [GOOD, *(of_images([encoded("RGB", (64, 64), file_type)]) for file_type in ("PNG", "WEBP"))]

    def again(raw: bytes) -> None:
        while time.perf_counter() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                counts[ask(port, raw)[0]] += 1

    threads = [threading.Thread(target=again, args=[raw]) for raw in bodies]
    for thread in threads:
        thread.start()
    while time.perf_counter() < end:
        start, raw = time.perf_counter(), ordinary[len(times) % len(ordinary)]
        status, content = ask(port, raw)
        times.append(time.perf_counter() - start)
        problem = verdict(status, content, raw) if status == 200 else f"{status}: {content[:100]!r}"
        wrong += [problem] if problem else []
        most = max(most, resident(pid))
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    return dict(counts), np.array(times), wrong, most


def resident(pid: int) -> float:
    """A process's resident memory in bytes."""
    return 4096.0 * int(pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])


@contextlib.contextmanager
def served(*flags: str):
    """Starts a server; yields its port and process, and at the end checks its log and that SIGTERM ends it."""
    command = [sys.executable, "-m", "mural_tf", "serve", *flags, "--port=0"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield int(re.search(r":(\d+)(/search)?$", process.stdout.readline())[1]), process
            process.terminate()
            code = process.wait(60)
        finally:
            process.kill()
            log.seek(0)
            text = log.read()
    if code or "Traceback (most recent call last)" in text:
        sys.exit(f"The server ended with {code}; its log: {text[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", required=True)
    parser.add_argument("--count", type=int, default=2000, help="of damaged requests")
    parser.add_argument("--seed", type=int, default=0, help="of the first request; the next has the next")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the good client, alone and during the attack")
    arguments = parser.parse_args()
    with served(f"--export={arguments.export}") as (port, process):
        counts, wrong = fuzz(port, range(arguments.seed, arguments.seed + arguments.count))
        print(f"{arguments.count} damaged requests: {dict(counts)}; {len(wrong)} wrong answers")
        idle = resident(process.pid)
        for name, bodies in {"alone": [], "during the attack": large_bodies()}.items():
            counts, times, problems, most = attack(port, process.pid, arguments.seconds, bodies)
            p50, p99 = 1000 * np.percentile(times, [50, 99])
            print(f"{name}: {len(times)} texts and pictures, p50 {p50:.0f} ms, p99 {p99:.0f} ms, {len(problems)} wrong")
            print(f"  answers to the attack: {counts}; memory {most / 1e6:.0f} MB at most, {idle / 1e6:.0f} before")
            wrong += problems
        alive = is_well(port)
    sys.exit(bool(wrong or most > 1.5 * idle + 2**28 or not alive))


if __name__ == "__main__":
    main()
