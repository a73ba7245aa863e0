"""The exported encoders beside Hugging Face in PyTorch, and the REST server under load.

    python -m benchmarks.serving --pytorch=/path/to/venv/bin/python

1. Encoders. Ours: an export's signatures, raw strings and JPEG bytes in, vectors out. Theirs: `AlignModel`'s two
   encoders of the same sizes (BERT-base, EfficientNet-B0), in several settings, compared in its
   fastest. Batches of 64 in turns, so that a busy machine slows both alike; then single requests. Sentences are English
   prose of mixed length, from the language reference that comes with Python; images are drawn, 640 x 480, JPEG. The
   vocabulary is built from the sentences; both sides read it.
2. Server. --clients clients keep asking for one text, or one image, each: requests/s, latency, errors; the server's
   memory before and after. `benchmarks.rest_attack` is for those who mean harm.

--export serves and measures a model of your own instead of the random one (the comparison is then of unequal models).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import pathlib
import pydoc_data.topics
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image

from benchmarks.rest_attack import resident, served
from benchmarks.serving_sides import BATCH, PIXELS

SETTINGS = ("float32", "bfloat16", "float32+channels_last", "bfloat16+channels_last")  # of PyTorch
SINGLES = 200  # requests


def write_inputs(folder: pathlib.Path, arguments) -> None:
    """Writes what both sides read: texts.txt, vocabulary.txt, images/*.jpg."""
    from mural_tf.text.learning import build_vocabulary
    from mural_tf.text.vocabulary_file import save_vocabulary

    prose = re.sub(r"[*`]|\n(?! *\n)", " ", "\n\n".join(pydoc_data.topics.topics.values()))
    found = [" ".join(part.split()) for part in re.split(r"(?<=[.?!])\s|\n", prose)]
    found = [part for part in found if re.fullmatch(r"[A-Z][\w ,'()-]{8,300}[.?!]", part)]
    texts = [found[i] for i in np.random.default_rng(0).permutation(len(found))][: BATCH * 4]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    save_vocabulary(build_vocabulary(texts, 8000, builder="tokenizers", lower_case=True), folder / "vocabulary.txt")
    (folder / "images").mkdir()
    for i in range(BATCH):
        draw = np.random.default_rng(i)
        coarse = Image.fromarray(draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize((640, 480), Image.BICUBIC)
        pixels = np.asarray(coarse, np.int16) + draw.normal(0, 6, (480, 640, 1)).astype(np.int16)
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        image.save(folder / f"images/{i:03}.jpg", quality=90)
    print(f"{len(texts)} sentences of {statistics.mean(len(text.split()) for text in texts):.1f} words on average")


def build(folder: pathlib.Path, arguments) -> pathlib.Path:
    """Exports EfficientNet-B0 and BERT-base with random weights."""
    from mural_tf.config import base_config
    from mural_tf.export.saved_model import export_model
    from mural_tf.models import build_model
    from mural_tf.text import build_tokenizer

    config = base_config()
    config.model, config.embedding_size, config.vocabulary.lower_case = "align", 320, True
    config.image_tower.update(dict(width=1.0, depth=1.0, image_size=PIXELS, resize=PIXELS))
    if arguments.tiny:
        config.image_tower.update(dict(width=0.25, depth=0.25))
        config.text_tower.update(dict(layers=1, hidden_size=32, heads=2, feed_forward_size=64))
        config.embedding_size = 80
    tokenizer = build_tokenizer(config, folder / "vocabulary.txt")
    export_model(build_model(config, tokenizer.vocabulary_size), tokenizer, config, folder / "export")
    return folder / "export"


def compare_encoders(folder: pathlib.Path, export: pathlib.Path, arguments) -> None:
    """Prints items/s at the batch size, ratios over the rounds, and single-request latency of both sides."""
    sides = {}
    for name, python in (("ours", sys.executable), ("pytorch", arguments.pytorch)):
        command = [python, "benchmarks/serving_sides.py", name, f"--inputs={folder}", f"--export={export}"]
        sides[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(side: str, case: str, setting: str = "", singles: int = 0) -> dict:
        process = sides[side]
        print(json.dumps({"case": case, "setting": setting, "singles": singles}), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    for case in ("text", "image"):
        settings = [name for name in SETTINGS if case == "image" or "+" not in name]
        ask("ours", case)
        seconds = {name: [sum(ask("pytorch", case, name)["times"]) for _ in range(2)][1] for name in settings}
        setting = min(seconds, key=seconds.get)
        print(f"  {case}: PyTorch's seconds a round: { ({name: round(value, 2) for name, value in seconds.items()}) }")
        rounds = [{side: ask(side, case, setting) for side in sides} for _ in range(arguments.rounds)]
        for side in sides:
            rate = statistics.median(one[side]["items"] / sum(one[side]["times"]) for one in rounds)
            processor = statistics.median(1000 * one[side]["processor"] / one[side]["items"] for one in rounds)
            single = 1000 * np.array(ask(side, case, setting, SINGLES + 10)["times"][10:])
            p50, p99 = np.percentile(single, [50, 99])
            print(f"  {case}: {side} {rate:.1f} items/s, {processor:.1f} ms processor each; one request p50 {p50:.1f} "
                  f"ms, p99 {p99:.1f} ms", flush=True)  # fmt: skip
        ratios = sorted(sum(one["pytorch"]["times"]) / sum(one["ours"]["times"]) for one in rounds)
        print(
            f"  {case}: PyTorch {setting} / ours: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    for process in sides.values():
        process.stdin.close()
        process.wait()


async def load(port: int, model: str, values: list, clients: int, requests: int) -> int:
    """Every client sends its next request when the one before is answered; prints the speed and returns the errors."""
    import aiohttp

    milliseconds, errors, numbers = [], 0, iter(range(requests))

    async def client(session):
        nonlocal errors
        for i in numbers:
            start = time.perf_counter()
            body = {"instances": [values[i % len(values)]]}
            async with session.post(f"/v1/models/{model}:predict", json=body) as answer:
                vectors = (await answer.json()).get("predictions", [])
                errors += answer.status != 200 or not np.isclose(np.linalg.norm(vectors), 1.0, atol=1e-3)
            milliseconds.append(1000 * (time.perf_counter() - start))

    async with aiohttp.ClientSession(
        f"http://localhost:{port}", connector=aiohttp.TCPConnector(limit=clients)
    ) as session:
        start = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
    speed, (p50, p99) = requests / (time.perf_counter() - start), np.percentile(milliseconds, [50, 99])
    words = f"{clients} clients, {requests} requests: {speed:.1f} requests/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
    print(f"  {model}: {words}, {errors} errors", flush=True)
    return errors


def load_server(folder: pathlib.Path, export: pathlib.Path, arguments) -> int:
    """Prints what the server does under load, after a warm-up; returns the errors."""
    texts, errors = (folder / "texts.txt").read_text(encoding="utf-8").splitlines(), 0
    images = [path.read_bytes() for path in sorted((folder / "images").iterdir())]
    images = [{"b64": base64.b64encode(data).decode()} for data in images]
    with served(export) as (port, process):
        for requests in (10 * arguments.clients, arguments.requests):
            before = resident(process.pid)
            errors += asyncio.run(load(port, "text_encoder", texts, arguments.clients, requests))
            errors += asyncio.run(load(port, "image_encoder", images, arguments.clients, requests // 10))
        print(f"  memory {before / 1e6:.0f} MB before and {resident(process.pid) / 1e6:.0f} MB after the last two")
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", default="", help="Python with torch and transformers; empty: the server alone")
    parser.add_argument("--export", default="", help="an export to serve instead of a random model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=10_000, help="of texts; a tenth as many of images")
    parser.add_argument("--tiny", action="store_true", help="small towers of ours alone, to see that it all works")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_inputs(folder, arguments)
        export = pathlib.Path(arguments.export) if arguments.export else build(folder, arguments)
        if arguments.pytorch:
            compare_encoders(folder, export, arguments)
        sys.exit(1 if load_server(folder, export, arguments) else 0)


if __name__ == "__main__":
    main()
