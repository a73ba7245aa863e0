"""The clients of `benchmarks.serving`: many at once, an attack beside them, then malformed ones."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import sys
import time

import aiohttp
import numpy as np

from benchmarks.rest_attack import resident

MEBI = 2**20


async def run(url: str, pid: int, texts: list[str], images: list[bytes], arguments) -> bool:
    """Prints requests/s, latency, errors and the server's memory; returns whether nothing went wrong."""
    encoded = [{"b64": base64.b64encode(data).decode()} for data in images]
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=arguments.clients)) as session:
        await load(session, "text_encoder", texts, arguments.clients, 10 * arguments.clients, show=False)
        await load(session, "image_encoder", encoded, arguments.clients, 2 * arguments.clients, show=False)
        good = True
        if arguments.attack:
            good &= await under_attack(url, session, pid, texts, encoded, arguments)
        else:
            good &= await plain_load(session, texts, encoded, arguments)
        good &= await send_malformed(session, arguments.malformed)
        async with session.get("/healthz") as answer:
            alive = answer.status == 200
        print(f"  {'alive' if alive else 'DEAD'} after that")
    return good and alive


async def plain_load(session, texts: list[str], encoded: list[dict], arguments) -> bool:
    """Texts, then a tenth as many images; memory before and after."""
    before = await memory(session)
    good = await load(session, "text_encoder", texts, arguments.clients, arguments.requests)
    good &= await load(session, "image_encoder", encoded, arguments.clients, arguments.requests // 10)
    after = await memory(session)
    total = arguments.requests + arguments.requests // 10
    print(f"  memory {before / 1e6:.0f} MB before and {after / 1e6:.0f} MB after {total} requests")
    return good


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


async def under_attack(url: str, session, pid: int, texts: list[str], encoded: list[dict], arguments) -> bool:
    """Good clients alone, then beside an attack; prints and judges latency, memory and /healthz."""
    idle = resident(pid)
    answers = {}
    async with beside_us("watch", url, str(pid)) as watched:
        alone = await both(session, texts, encoded, arguments, answers)
    print(f"  /healthz in {watched['seconds']:.3f} s at most without the attack")
    async with (
        beside_us("watch", url, str(pid)) as watched,
        beside_us("attack", url, arguments.attack, str(arguments.pause)) as refused,
    ):
        beside = await both(session, texts, encoded, arguments, answers)
    good = True
    for name in alone:
        ratio, errors = beside[name][1] / alone[name][1], alone[name][2] + beside[name][2]
        print(f"  {name}: p99 {ratio:.2f} times that without the attack, {errors} wrong answers or errors")
        good &= ratio <= 3 and not errors
    most = 1.5 * idle + 256 * MEBI
    print(f"  answers to the attack {arguments.attack}, a pause of {arguments.pause:g} s after each: {refused}")
    print(f"  memory {idle / 1e6:.0f} MB idle, {watched['memory'] / 1e6:.0f} MB at most; bound {most / 1e6:.0f} MB")
    print(f"  /healthz in {watched['seconds']:.3f} s at most of {watched['asked']} times", flush=True)
    return good and watched["memory"] <= most and watched["seconds"] <= 0.2


async def both(session, texts, encoded, arguments, answers: dict) -> dict[str, tuple[float, float, int]]:
    """Half of the clients ask for texts and half for images; returns {model: (p50, p99, errors)} in ms."""
    end, found = time.perf_counter() + arguments.seconds, {}

    async def client(model, values, number, times):
        while time.perf_counter() < end:
            number = (number + 7) % len(values)
            start = time.perf_counter()
            async with session.post(f"/v1/models/{model}:predict", json={"instances": [values[number]]}) as answer:
                vector = (await answer.json()).get("predictions")
            times.append(1000 * (time.perf_counter() - start))
            known = answers.setdefault((model, number), vector)
            found[model][1] += vector is None or not np.allclose(known, vector, atol=1e-4)

    work = []
    for model, values in (("text_encoder", texts), ("image_encoder", encoded)):
        found[model] = [[], 0]
        work += [client(model, values, i, found[model][0]) for i in range(arguments.clients // 2)]
    await asyncio.gather(*work)
    result = {}
    for model, (times, errors) in found.items():
        p50, p99 = np.percentile(times, [50, 99])
        print(f"  {model}: {len(times)} requests in {arguments.seconds:g} s, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
        result[model] = p50, p99, errors
    return result


@contextlib.asynccontextmanager
async def beside_us(*what: str):
    """Runs `benchmarks.rest_attack`; yields what it last printed. This process is busy with its clients."""
    command = [sys.executable, "-m", "benchmarks.rest_attack", *what]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    last: dict = {}

    async def read():
        async for line in process.stdout:
            last.update(json.loads(line))

    task = asyncio.create_task(read())
    try:
        while not last and not task.done():
            await asyncio.sleep(0.01)
        yield last
    finally:
        process.kill()
        await asyncio.gather(task, process.wait())


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
