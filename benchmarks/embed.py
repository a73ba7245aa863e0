"""What `embed` costs beside a plain loop over the same captions.

    python -m benchmarks.embed --model=exports/emoji_mural                  # 102,400 captions, three times, in turn

Captions are words of the model's vocabulary, all different. The plain loop is a process that loads the model, reads the
file and calls `encode_text` with the blocks that `embed` encodes. Both are whole commands, so that starting counts; it
is measured apart, with few captions.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

import numpy as np

from benchmarks.convert import measure
from mural_tf.search.embed import BLOCK

LOOP = """
import sys, numpy as np
import mural_tf
model, texts, output, block = sys.argv[1:]
embedder = mural_tf.load(model)
lines = open(texts, encoding="utf-8").read().splitlines()
for begin in range(0, len(lines), int(block)):
    vectors = embedder.encode_text(lines[begin : begin + int(block)], progress=False)
    np.save(f"{output}-{begin}.npy", vectors)
"""
FEW = 256  # captions with which starting is measured


def write_captions(path: pathlib.Path, model: str, count: int) -> None:
    """Writes different captions of 3 to 13 words."""
    random = np.random.default_rng(0)
    lines = pathlib.Path(model, "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    words = [line for line in lines if len(line) > 2 and line.isalpha()]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(" ".join(random.choice(words, random.integers(2, 13))) + f" {number}\n")


def processor_seconds(kind: str, model: str, texts: pathlib.Path, output: pathlib.Path) -> float:
    """Returns what one command takes."""
    command = [sys.executable, "-c", LOOP, model, str(texts), str(output), str(BLOCK)]
    if kind == "embed":
        flags = [f"--model={model}", f"--input={texts}", f"--output={output}", "--workers=1"]
        command = [sys.executable, "-m", "mural_tf", "embed", "--kind=texts", *flags]
    seconds, _, memory = measure(command)
    print(f"{kind:6} {texts.name:9} {seconds:6.1f} processor s, {memory:,.0f} MiB", flush=True)
    return seconds


def compare(folder: pathlib.Path, model: str, count: int, rounds: int) -> None:
    """Prints the rates of both, in turn."""
    rates: dict[str, list[float]] = {"loop": [], "embed": []}
    sizes = {"few": FEW, "many": count}
    for size, captions in sizes.items():
        write_captions(folder / f"{size}.txt", model, captions)
    for turn in range(rounds):
        for kind, found in rates.items():
            few, many = (
                processor_seconds(kind, model, folder / f"{size}.txt", folder / f"{kind}-{size}-{turn}")
                for size in sizes
            )
            found.append((count - FEW) / (many - few))
            print(f"{kind:6} {found[-1]:,.0f} texts a processor second without its start", flush=True)
    ratios = np.array(rates["embed"]) / np.array(rates["loop"])
    print(f"embed / loop: median {np.median(ratios):.2f}, {ratios.min():.2f} to {ratios.max():.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="an export")
    parser.add_argument("--captions", type=int, default=102_400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(pathlib.Path(folder), arguments.model, arguments.captions, arguments.rounds)


if __name__ == "__main__":
    main()
