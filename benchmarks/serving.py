"""The exported encoders and the REST server: speed beside Hugging Face in PyTorch, load, memory, malformed requests.

    python -m benchmarks.serving --pytorch=/path/to/venv/bin/python

1. Encoders. Ours: an export's signatures, raw strings and JPEG bytes in, vectors out. Theirs: `AlignModel`'s two
   encoders of the same sizes (BERT-base, EfficientNet-B0) with Hugging Face's fast tokenizer and image processor,
   padding to the longest of the batch, in every setting of --pytorch_settings, compared in its fastest. Batches of 64
   in turns, so that a busy machine slows both alike; then single requests.
   Sentences are English prose of mixed length, from the language reference that comes with Python (or --sentences, one
   a line); images are drawn, 640 x 480, JPEG. The vocabulary is built from the sentences; both sides read it.
2. Server. --clients clients keep asking for one text, or one image, each: requests/s, latency, errors; the server's
   resident memory before and after; then damaged requests, and whether it still answers. With --attack=rows,pixels
   instead: --clients good clients for --seconds alone, and again beside bodies of 28 MB of tiny rows (four at once)
   and of 64 images that claim 67 million pixels each: latency of the good ones, wrong answers, memory, /healthz.

--export serves and measures a model of your own instead of the random one (the comparison is then of unequal models).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import pathlib
import pydoc_data.topics
import re
import signal
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image

from benchmarks import rest_load
from benchmarks.against_transformers import Side

SETTINGS = "float32,bfloat16,float32+channels_last,bfloat16+channels_last"


def sentences(path: str) -> list[str]:
    """Real sentences of mixed length, in random order."""
    if path:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        found = [line.strip() for line in lines if line.strip()]
    else:
        prose = re.sub(r"[*`]|\n(?! *\n)", " ", "\n\n".join(pydoc_data.topics.topics.values()))
        found = [" ".join(part.split()) for part in re.split(r"(?<=[.?!])\s|\n", prose)]
        found = [part for part in found if re.fullmatch(r"[A-Z][\w ,'()-]{8,300}[.?!]", part)]
    return [found[i] for i in np.random.default_rng(0).permutation(len(found))]


def photo(index: int) -> bytes:
    """A JPEG of 640 x 480 pixels with soft colours and fine detail."""
    draw = np.random.default_rng(index)
    coarse = Image.fromarray(draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize((640, 480), Image.BICUBIC)
    pixels = np.asarray(coarse, np.int16) + draw.normal(0, 6, (480, 640, 1)).astype(np.int16)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_inputs(folder: pathlib.Path, arguments) -> None:
    """Writes what both sides read: texts.txt, vocabulary.txt, images/*.jpg."""
    from mural_tf.text.learning import build_vocabulary
    from mural_tf.text.vocabulary_file import save_vocabulary

    texts = sentences(arguments.sentences)[: arguments.batch * arguments.batches]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    pieces = build_vocabulary(texts, arguments.vocabulary_size, builder="tokenizers", lower_case=True)
    save_vocabulary(pieces, folder / "vocabulary.txt")
    (folder / "images").mkdir()
    for i in range(arguments.batch):
        (folder / "images" / f"{i:03}.jpg").write_bytes(photo(i))
    lengths = [len(text.split()) for text in texts]
    print(
        f"{len(texts)} sentences of {statistics.mean(lengths):.1f} words on average, {min(lengths)} to {max(lengths)}"
    )


def compare_encoders(folder: pathlib.Path, export: pathlib.Path, arguments) -> None:
    """Prints items/s at the batch size, ratios over the rounds, and single-request latency of both sides."""
    options = [f"--inputs={folder}", f"--batch={arguments.batch}", f"--threads={arguments.threads}"]
    ours = Side([sys.executable, "-m", "benchmarks.serving_ours", f"--export={export}", *options])
    theirs = Side([arguments.pytorch, "benchmarks/serving_pytorch.py", f"--pixels={arguments.pixels}", *options])
    for case in ("text", "image"):
        settings = arguments.pytorch_settings.split(",")
        if case == "text":
            settings = [setting for setting in settings if "channels_last" not in setting]
        ours.ask(case=case, setting="", rounds=1)
        times = {s: [theirs.ask(case=case, setting=s, rounds=1)["seconds"] for _ in range(2)][1] for s in settings}
        for setting, seconds in times.items():
            print(f"  {case}: PyTorch {setting:24} {seconds:8.2f} s for the items of a round")
        setting = min(times, key=times.get)
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append([side.ask(case=case, setting=setting, rounds=1) for side in (ours, theirs)])
        for name, side in (("ours", 0), (f"PyTorch {setting}", 1)):
            seconds = statistics.median(pair[side]["seconds"] for pair in rounds)
            processor = statistics.median(pair[side]["processor"] for pair in rounds)
            items = rounds[0][side]["items"]
            print(
                f"  {case}: {name:24} {items / seconds:8.1f} items/s, {1000 * processor / items:.1f} ms processor each"
            )
        for key in ("seconds", "processor"):
            ratios = sorted(pair[1][key] / pair[0][key] for pair in rounds)
            middle, low, high = statistics.median(ratios), ratios[0], ratios[-1]
            print(f"  {case}: PyTorch / ours, {key}: {middle:.2f} ({low:.2f} to {high:.2f})")
        for name, side in (("ours", ours), (f"PyTorch {setting}", theirs)):
            single = side.ask(case=case, setting=setting, singles=arguments.singles)["milliseconds"]
            p50, p99 = np.percentile(single, [50, 99])
            print(f"  {case}: {name:24} single request p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
    ours.close()
    theirs.close()


def load_server(folder: pathlib.Path, export: pathlib.Path, arguments) -> bool:
    """Prints what the server does under load; returns whether it answered everything as it should."""
    command = [sys.executable, "-m", "mural_tf", "serve", f"--export={export}", "--port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if not line.startswith("Serving "):
            sys.exit("The server did not start; its message stands above.")
        texts = (folder / "texts.txt").read_text(encoding="utf-8").splitlines()
        images = [path.read_bytes() for path in sorted((folder / "images").iterdir())]
        good = asyncio.run(rest_load.run(line.split()[-1], process.pid, texts, images, arguments))
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    finally:
        process.kill()
    print(f"  ended on SIGTERM with code {code}")
    return good and code == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", default="", help="Python with torch and transformers; empty: the server alone")
    parser.add_argument("--pytorch_settings", default=SETTINGS)
    parser.add_argument("--export", default="", help="an export to serve instead of a random model")
    parser.add_argument("--sentences", default="", help="file with one sentence a line")
    parser.add_argument("--vocabulary_size", type=int, default=8000)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=4, help="of texts, in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--singles", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0, help="of each side; 0: its own default")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=10_000, help="of texts; a tenth as many of images")
    parser.add_argument("--malformed", type=int, default=1000)
    parser.add_argument("--attack", default="", help="rows, pixels or both; empty: none")
    parser.add_argument("--seconds", type=float, default=60.0, help="of good clients, alone and beside the attack")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds from an answer to the attack to the next")
    parser.add_argument("--tiny", action="store_true", help="small towers of ours alone, to see that it all works")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_inputs(folder, arguments)
        export = pathlib.Path(arguments.export or folder / "export")
        if not arguments.export:
            build = [f"--build={export}", f"--inputs={folder}", f"--pixels={arguments.pixels}"]
            build += ["--tiny"] * arguments.tiny
            subprocess.run([sys.executable, "-m", "benchmarks.serving_ours", *build], check=True)
        if arguments.pytorch:
            compare_encoders(folder, export, arguments)
        sys.exit(0 if load_server(folder, export, arguments) else 1)


if __name__ == "__main__":
    main()
