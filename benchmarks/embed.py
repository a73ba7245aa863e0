"""What `embed` costs beside a plain loop over the same captions, and what an index of its vectors takes.

    python -m benchmarks.embed --model=exports/emoji_mural                  # 102,400 captions, three times, in turn
    python -m benchmarks.embed --vectors=1000000                            # an index of a million made vectors, 5 GB

Captions are words of the model's vocabulary, all different. The plain loop is a process that loads the model, reads the
file and calls `encode_text` with the blocks that `embed` encodes. Both are whole commands, so that starting counts; it
is measured apart, with few captions. Made vectors are clustered; their index is made exact and with inverted lists.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

import numpy as np

from benchmarks.convert import measure

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
CENTRES, LATENT = 1000, 64


def write_captions(path: pathlib.Path, model: str, count: int) -> None:
    """Writes different captions of 3 to 13 words."""
    random = np.random.default_rng(0)
    lines = pathlib.Path(model, "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    words = [line for line in lines if len(line) > 2 and line.isalpha()]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(" ".join(random.choice(words, random.integers(2, 13))) + f" {number}\n")


def compare(folder: pathlib.Path, model: str, count: int, rounds: int) -> None:
    """Prints the rates of both, in turn."""
    from mural_tf.search.embed import BLOCK

    rates: dict[str, list[float]] = {"loop": [], "embed": []}
    sizes = {"few": FEW, "many": count}
    for size, captions in sizes.items():
        write_captions(folder / f"{size}.txt", model, captions)
    for turn in range(rounds):
        for kind, found in rates.items():
            spent = {}
            for size in sizes:
                texts, output = folder / f"{size}.txt", folder / f"{kind}-{size}-{turn}"
                command = [sys.executable, "-c", LOOP, model, str(texts), str(output), str(BLOCK)]
                if kind == "embed":
                    flags = [f"--model={model}", f"--input={texts}", f"--output={output}", "--workers=1"]
                    command = [sys.executable, "-m", "mural_tf", "embed", "--kind=texts", *flags]
                spent[size] = measure(command)
            found.append((count - FEW) / (spent["many"][0] - spent["few"][0]))
            print(
                f"{kind:6} {spent['many'][0]:6.1f} processor s ({spent['few'][0]:.1f} to start), "
                f"{spent['many'][2]:,.0f} MiB; {found[-1]:,.0f} texts a processor second without its start",
                flush=True,
            )
    ratios = np.array(rates["embed"]) / np.array(rates["loop"])
    print(f"embed / loop: median {np.median(ratios):.2f}, {ratios.min():.2f} to {ratios.max():.2f}")


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


def index(folder: pathlib.Path, count: int, size: int) -> None:
    """Prints what an index of made vectors takes."""
    from mural_tf.search import embed
    from mural_tf.search.index import Fingerprint

    made = Made(size)
    (folder / "model").mkdir()
    (folder / "numbers.txt").write_text("".join(f"{number}\n" for number in range(count)))
    embed.load_model = lambda *_: (made, Fingerprint(made.encode_text(["0", "1"])))
    settings = embed.Settings(kind="texts", workers=0)
    embeddings = embed.embed(str(folder / "model"), [str(folder / "numbers.txt")], folder / "embeddings", settings)
    for method in ("none", "inverted_lists"):
        flags = [f"--embeddings={embeddings}", f"--output={folder / method}", f"--approximate={method}"]
        processor, seconds, memory = measure([sys.executable, "-m", "mural_tf", "search", "index", *flags])
        took = f"{processor:.0f} processor s, {seconds:.0f} s, {memory:,.0f} MiB"
        print(f"index of {count:,} x {size}, approximate={method}: {took}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="an export; without it nothing is embedded")
    parser.add_argument("--captions", type=int, default=102_400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vectors", type=int, default=0, help="of the index; 0: none is made")
    parser.add_argument("--size", type=int, default=512, help="numbers in a vector of the index")
    parser.add_argument("--folder", help="for the index's files, 4 times its vectors")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.model:
            compare(pathlib.Path(folder), arguments.model, arguments.captions, arguments.rounds)
        if arguments.vectors:
            index(pathlib.Path(folder), arguments.vectors, arguments.size)


if __name__ == "__main__":
    main()
