"""An export's image encoder in TensorFlow and in LiteRT on one processor: milliseconds per picture, and cosines.

    python -m benchmarks.picture_engines --export=EXPORT --pictures=FOLDER

EXPORT is of `run_export.py … --lite`. Each engine lives in a process of its own with one thread and embeds the same
pictures when asked to, in turns, so that a busy machine slows both alike: in batches of 32, and one by one. Decoding
counts. Ratios are medians of the rounds' ratios of processor time.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import time

import numpy as np

from benchmarks.against_transformers import Side, spread
from benchmarks.text_engines import limit_litert, limit_tensorflow

ENGINES = ("tensorflow", "litert")
BATCH = 32


def serve_engine(options) -> None:
    """Serves an engine in this process: saves the vectors of all pictures, then embeds them for each request.

    A request is a line of JSON on standard input, {"batch": pictures at once} or {}, and the answer, on standard
    output, is {"pictures": their number, "processor": processor seconds}. `options`: the command line's.
    """
    embedder = load_engine(options.worker, pathlib.Path(options.export))
    pictures = sorted(path for path in pathlib.Path(options.pictures).rglob("*") if path.suffix in (".jpg", ".png"))
    pictures = pictures[: options.count]

    def embed(batch: int) -> np.ndarray:
        """Returns the vectors of all pictures, float32 [N, D]."""
        blocks = [pictures[begin : begin + batch] for begin in range(0, len(pictures), batch)]
        return np.concatenate([embedder.encode_image(block, batch_size=batch, progress=False) for block in blocks])

    np.save(f"{options.output}/{options.worker}.npy", embed(BATCH))
    embed(1)  # it warms up
    for line in sys.stdin:
        request = json.loads(line)
        start = time.process_time()
        if "batch" in request:
            embed(request["batch"])
        print(json.dumps({"pictures": len(pictures), "processor": time.process_time() - start}), flush=True)


def load_engine(name: str, export: pathlib.Path):
    """Returns an export's `Embedder` with one thread, in one of `ENGINES`."""
    if name == "tensorflow":
        limit_tensorflow()
        folder = export
    else:
        limit_litert()
        folder = export / "lite"
    import mural_tf

    return mural_tf.load(folder)


def main() -> None:
    """Compares the engines, or serves as the process of one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", required=True, help="with a lite/")
    parser.add_argument("--pictures", required=True, help="a folder")
    parser.add_argument("--output", default="", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=64, help="pictures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return serve_engine(options)
    with tempfile.TemporaryDirectory() as folder:
        compare(options, folder)


def compare(options, folder: str) -> None:
    """Prints times and ratios of the engines, and the least cosine of their vectors.

    `options`: the command line's; `folder`: an empty folder, for the vectors.
    """
    engines = {}
    for name in ENGINES:
        command = [sys.executable, "-m", "benchmarks.picture_engines", *sys.argv[1:]]
        engines[name] = Side([*command, f"--output={folder}", f"--worker={name}"])
    for engine in engines.values():
        count = engine.ask()["pictures"]  # the same for both; waits until the engine has loaded
    for batch in (BATCH, 1):
        seconds = {name: [] for name in ENGINES}  # of each round
        for _ in range(options.rounds):
            for name, engine in engines.items():
                seconds[name].append(engine.ask(batch=batch)["processor"])
        ratios = [tensorflow / litert for tensorflow, litert in zip(seconds["tensorflow"], seconds["litert"])]
        times = ", ".join(f"{name} {min(rounds) / count * 1e3:.2f} ms" for name, rounds in seconds.items())
        print(f"{batch} at once: {times}; tensorflow / litert {spread(ratios)}", flush=True)
    tensorflow_vectors = np.load(f"{folder}/tensorflow.npy")
    litert_vectors = np.load(f"{folder}/litert.npy")
    print(f"cosine at least {(tensorflow_vectors * litert_vectors).sum(axis=1).min():.4f}")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
