"""What `embed` costs beside a plain loop over the same captions, and what an index of its vectors takes.

    python benchmarks/embed.py --model=exports/emoji_mural                  # 102,400 captions, three times, in turn
    python benchmarks/embed.py --vectors=1000000                            # an index of a million made vectors, 5 GB

Captions are words of the model's vocabulary, all different. The plain loop is a process that loads the model, reads the
file and calls `encode_text` with the blocks that `embed` encodes. Both are whole commands, so that starting counts; it
is measured apart, with few captions. Processor seconds and resident memory are those of a command with all processes
that it starts, as /proc has them 50 times a second; memory of files that are mapped counts.

Made vectors are clustered, 512 numbers each; their index is made by the command, exact and with inverted lists.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
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
TICKS = os.sysconf("SC_CLK_TCK")
CENTRES, LATENT = 1000, 64


def measure(command: list[str]) -> tuple[float, float, float]:
    """Runs a command; returns its processor seconds, its seconds, and the most bytes its processes held at once."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    start, spent, most = time.perf_counter(), {}, 0
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while process.poll() is None:
        held = 0
        for number in family(process.pid):
            try:
                fields = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            spent[number] = (int(fields[11]) + int(fields[12])) / TICKS
            held += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        most = max(most, held)
        time.sleep(0.02)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(process.stderr.read())
    return sum(spent.values()), seconds, most


def family(process: int) -> list[int]:
    """Returns a process and all below it."""
    parents: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
        except (OSError, IndexError):
            continue
    found = [process]
    for number in found:
        found += parents.get(number, [])
    return found


def write_captions(path: pathlib.Path, model: str, count: int) -> None:
    """Writes different captions of 3 to 13 words."""
    random = np.random.default_rng(0)
    lines = pathlib.Path(model, "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    words = [line for line in lines if len(line) > 2 and line.isalpha()]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(" ".join(random.choice(words, random.integers(2, 13))) + f" {number}\n")


def compare(model: str, count: int, rounds: int) -> None:
    """Prints the rates of both, in turn."""
    from mural_tf.search.embed import BLOCK

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_captions(folder / "many.txt", model, count)
        write_captions(folder / "few.txt", model, BATCH)
        print(f"{count:,} captions, {os.cpu_count()} cores, {rounds} times in turn", flush=True)
        ratios: dict[str, list[float]] = {"with its start": [], "without its start": []}
        for turn in range(rounds):
            rates = {}
            for kind in ("loop", "embed"):
                spent = {}
                for size in ("few", "many"):
                    output = folder / f"{kind}-{size}-{turn}"
                    texts = str(folder / f"{size}.txt")
                    command = [sys.executable, "-c", LOOP, model, texts, str(output), str(BLOCK)]
                    if kind == "embed":
                        flags = [f"--model={model}", f"--input={texts}", f"--output={output}", "--workers=1"]
                        command = [sys.executable, "-m", "mural_tf", "embed", "--kind=texts", *flags]
                    spent[size] = measure(command)
                with_start, without = count / spent["many"][0], (count - BATCH) / (spent["many"][0] - spent["few"][0])
                rates[kind] = {"with its start": with_start, "without its start": without}
                print(
                    f"{kind:6} {spent['many'][0]:6.1f} processor s ({spent['few'][0]:.1f} to start), "
                    f"{spent['many'][1]:6.1f} s, {spent['many'][2] / 2**30:.2f} GiB; "
                    f"{with_start:,.0f} texts a processor second, {without:,.0f} without its start",
                    flush=True,
                )
            for what, found in ratios.items():
                found.append(rates["embed"][what] / rates["loop"][what])
        for what, found in ratios.items():
            print(f"embed / loop, {what}: median {np.median(found):.2f}, {min(found):.2f} to {max(found):.2f}")


BATCH = 256  # captions with which starting is measured


class Made:
    """Gives clustered vectors to texts that are numbers, the same ones to the same text."""

    def __init__(self, size: int):
        random = np.random.default_rng(0)
        self._centres = random.standard_normal((CENTRES, LATENT), dtype=np.float32)
        self._matrix = random.standard_normal((LATENT, size), dtype=np.float32) / 8.0

    def encode_text(self, texts, batch_size=256, progress=None):
        """Returns float32 [N, D], L2-normalised."""
        random = np.random.default_rng(int(texts[0]))
        latents = self._centres[random.integers(0, CENTRES, len(texts))]
        latents = latents + 0.6 * random.standard_normal(latents.shape, dtype=np.float32)
        vectors = latents @ self._matrix
        vectors += 0.3 * random.standard_normal(vectors.shape, dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_embeddings(folder: pathlib.Path, count: int, size: int) -> pathlib.Path:
    """Returns a folder as `embed` writes it, of made vectors."""
    from mural_tf.search import embed
    from mural_tf.search.index import Fingerprint

    made = Made(size)
    (folder / "model").mkdir()
    (folder / "numbers.txt").write_text("".join(f"{number}\n" for number in range(count)))
    embed.load_model = lambda *_: (made, Fingerprint(made.encode_text(["0", "1"])))
    settings = embed.Settings(kind="texts", workers=0)
    return embed.embed(str(folder / "model"), [str(folder / "numbers.txt")], folder / "embeddings", settings)


def index(count: int, size: int, parent: str | None) -> None:
    """Prints what an index of made vectors takes."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = pathlib.Path(name)
        embeddings = make_embeddings(folder, count, size)
        for method in ("none", "inverted_lists"):
            flags = [f"--embeddings={embeddings}", f"--output={folder / method}", f"--approximate={method}"]
            spent = measure([sys.executable, "-m", "mural_tf", "search", "index", *flags])
            print(f"index of {count:,} x {size}, approximate={method}: {spent[2] / 2**30:.2f} GiB at most, "
                  f"{spent[1]:.0f} s, {spent[0]:.0f} processor s", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="an export; without it nothing is embedded")
    parser.add_argument("--captions", type=int, default=102_400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vectors", type=int, default=0, help="of the index; 0: none is made")
    parser.add_argument("--size", type=int, default=512, help="numbers in a vector of the index")
    parser.add_argument("--folder", help="for the index's files, 4 times its vectors")
    arguments = parser.parse_args()
    if arguments.model:
        compare(arguments.model, arguments.captions, arguments.rounds)
    if arguments.vectors:
        index(arguments.vectors, arguments.size, arguments.folder)


if __name__ == "__main__":
    main()
