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
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks.against_transformers import spread
from benchmarks.text_engines import limit_litert, limit_tensorflow

ENGINES = ("tensorflow", "litert")
BATCH = 32


def work(options) -> None:
    """Runs an engine in a process of its own: answers each line of standard input, a batch size, with seconds.

    These are processor seconds for all pictures. The first line that it prints is the number of pictures.
    """
    embedder = load_engine(options.worker, pathlib.Path(options.export))
    pictures = sorted(path for path in pathlib.Path(options.pictures).rglob("*") if path.suffix in (".jpg", ".png"))
    pictures = pictures[: options.count]

    def embed(batch: int) -> np.ndarray:
        blocks = [pictures[begin : begin + batch] for begin in range(0, len(pictures), batch)]
        return np.concatenate([embedder.encode_image(block, batch_size=batch, progress=False) for block in blocks])

    np.save(f"{options.output}/{options.worker}.npy", embed(BATCH))
    embed(1)  # it warms up
    print(json.dumps(len(pictures)), flush=True)
    for line in sys.stdin:
        start = time.process_time()
        embed(int(line))
        print(json.dumps(time.process_time() - start), flush=True)


def load_engine(name: str, export: pathlib.Path):
    """Returns an export's `Embedder` in TensorFlow or LiteRT, with one thread."""
    if name == "tensorflow":
        limit_tensorflow()
        folder = export
    else:
        limit_litert()
        folder = export / "lite"
    import mural_tf

    return mural_tf.load(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", required=True, help="with a lite/")
    parser.add_argument("--pictures", required=True, help="a folder")
    parser.add_argument("--output", default="", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=64, help="pictures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    with tempfile.TemporaryDirectory() as folder:
        compare(options, folder)


def compare(options, folder: str) -> None:
    """Prints times, ratios and cosines; `folder` holds the vectors."""
    processes = {}
    for name in ENGINES:
        command = [sys.executable, "-m", "benchmarks.picture_engines", *sys.argv[1:]]
        command += [f"--output={folder}", f"--worker={name}"]
        processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(name: str) -> float:
        for line in processes[name].stdout:
            if line[0].isdigit():
                return json.loads(line)
        sys.exit(f"{name} ended; its message is above.")

    for name in ENGINES:
        count = answer(name)  # of pictures, the same in both
    for batch in (BATCH, 1):
        seconds = {name: [] for name in ENGINES}
        for _ in range(options.rounds):
            for name in ENGINES:
                print(batch, file=processes[name].stdin, flush=True)
                seconds[name].append(answer(name))
        ratios = [tensorflow / litert for tensorflow, litert in zip(seconds["tensorflow"], seconds["litert"])]
        times = ", ".join(f"{name} {min(values) / count * 1e3:.2f} ms" for name, values in seconds.items())
        print(f"{batch} at once: {times}; tensorflow / litert {spread(ratios)}", flush=True)
    tensorflow_vectors = np.load(f"{folder}/tensorflow.npy")
    litert_vectors = np.load(f"{folder}/litert.npy")
    print(f"cosine at least {(tensorflow_vectors * litert_vectors).sum(axis=1).min():.4f}")
    for process in processes.values():
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
