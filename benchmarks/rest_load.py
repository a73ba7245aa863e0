"""The clients of `benchmarks.serving`: many at once, then malformed ones."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time

import aiohttp
import numpy as np


async def run(url: str, texts: list[str], images: list[bytes], arguments) -> bool:
    """Prints requests/s, latency, errors and the server's memory; returns whether nothing went wrong."""
    encoded = [{"b64": base64.b64encode(data).decode()} for data in images]
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=arguments.clients)) as session:
        await load(session, "text_encoder", texts, arguments.clients, 10 * arguments.clients, show=False)
        await load(session, "image_encoder", encoded, arguments.clients, 2 * arguments.clients, show=False)
        before = await memory(session)
        good = await load(session, "text_encoder", texts, arguments.clients, arguments.requests)
        good &= await load(session, "image_encoder", encoded, arguments.clients, arguments.requests // 10)
        after = await memory(session)
        total = arguments.requests + arguments.requests // 10
        print(f"  memory {before / 1e6:.0f} MB before and {after / 1e6:.0f} MB after {total} requests")
        good &= await send_malformed(session, arguments.malformed)
        async with session.get("/healthz") as answer:
            alive = answer.status == 200
        print(f"  {'alive' if alive else 'DEAD'} after that")
    return good and alive


async def load(session, model: str, values: list, clients: int, requests: int, show: bool = True) -> bool:
    """Every client sends its next request when the one before is answered."""
    milliseconds, errors = [], 0
    numbers = iter(range(requests))

    async def client():
        nonlocal errors
        for i in numbers:
            start = time.perf_counter()
            body = {"instances": [values[i % len(values)]]}
            async with session.post(f"/v1/models/{model}:predict", json=body) as answer:
                vectors = (await answer.json()).get("predictions", [])
                errors += answer.status != 200 or not np.isclose(np.linalg.norm(vectors), 1.0, atol=1e-3)
            milliseconds.append(1000 * (time.perf_counter() - start))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - start
    if show:
        p50, p99 = np.percentile(milliseconds, [50, 99])
        print(
            f"  {model}: {clients} clients, {requests} requests: {requests / seconds:.1f} requests/s, "
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, {errors} errors",
            flush=True,
        )
    return not errors


async def memory(session) -> float:
    """The server's resident memory in bytes."""
    async with session.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_resident_memory_bytes "))


async def send_malformed(session, count: int) -> bool:
    """Sends requests with damaged bodies; prints how many were answered with each status."""
    draw, statuses = random.Random(0), {}
    good = json.dumps({"instances": [{"text": "a"}, {"text": {"b64": "AAAA"}}]}).encode()
    for i in range(count):
        body = bytearray(good[: draw.randrange(len(good) - 1)])  # cut off, so never valid
        for _ in range(draw.randint(0, 5)):
            if body:
                body[draw.randrange(len(body))] = draw.randrange(256)
        path = ("/v1/models/text_encoder:predict", "/v1/models/image_encoder:predict", "/v1/models/x:predict")[i % 3]
        async with session.post(path, data=bytes(body)) as answer:
            is_error = answer.content_type == "application/json" and "error" in await answer.json()
            key = f"{answer.status}{'' if is_error else ' without a JSON error'}"
            statuses[key] = statuses.get(key, 0) + 1
    print(f"  {count} malformed requests: {statuses}")
    return all(status.startswith("4") and len(status) == 3 for status in statuses)
