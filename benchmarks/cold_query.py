"""What an answer costs from nothing: a question on the command line, and the small server's start, by both runtimes.

    python run_export.py --model=WORKDIR --output=exported --lite
    python -m benchmarks.cold_query --export=exported [--count=100000] [--rounds=5]

An index of `--count` items with a caption of four words each and synthetic vectors of the model's size is asked by a
new process each time, by `exported/lite` (LiteRT) and by `exported` (TensorFlow) in turns; memory is the maximum
resident set, mapped pages that were read included. Then each is served: seconds until /healthz answers, and
milliseconds of one question after the other, each from the request to the answer's last byte.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from benchmarks.search import COLOURS, THINGS, make_vectors
from mural_tf import cli, fingerprint
from mural_tf.loading import load
from mural_tf.search.index import sync
from mural_tf.search.items import Item

QUESTION = "moyo mwekundu"
PORT = 18501


def make_index(folder: pathlib.Path, export: str, count: int) -> None:
    """Makes an index that the export's model may search, of synthetic vectors."""
    model = fingerprint.take_fingerprint(load(export))
    vectors = make_vectors(count, model.probes.shape[1])
    captions = (f"a {COLOURS[n % 8]} {THINGS[n // 8 % 10]} {n:x}" for n in range(count))
    items = (Item(f"{n}.jpg", f"/pictures/{n}.jpg", captions=(("en", caption),)) for n, caption in enumerate(captions))
    sync(folder, None, zip(items, vectors), model=model)


def run(arguments: list[str]) -> tuple[float, float, float]:
    """Returns seconds by the clock, processor seconds and MB of a command that must succeed."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "mural_tf", *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments[0]} ended with {status}")
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def serve(export: str, index: pathlib.Path, questions: int) -> tuple[float, list[float], float]:
    """Returns seconds until the server answers, milliseconds of each question, and the most MB that it had."""
    address, begun = f"http://localhost:{PORT}", time.perf_counter()
    command = [sys.executable, "-m", "mural_tf", "serve", f"--export={export}", f"--index={index}", f"--port={PORT}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/healthz", timeout=5).read()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("The server ended before it answered.") from None
                time.sleep(0.02)
        start, spent = time.perf_counter() - begun, []
        for number in range(questions):
            text = urllib.parse.quote(f"a {COLOURS[number % 8]} {THINGS[number % 10]} {number}")
            asked = time.perf_counter()
            urllib.request.urlopen(f"{address}/search/answer?sentence={text}", timeout=60).read()
            spent.append(1000 * (time.perf_counter() - asked))
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return start, spent, peak / 1024
    finally:
        process.terminate()
        process.wait()


def main(_) -> None:
    export, rounds = FLAG["export"].value, FLAG["rounds"].value
    with tempfile.TemporaryDirectory(dir=FLAG["folder"].value or None) as folder:
        index, exports = pathlib.Path(folder) / "index", {"LiteRT": f"{export}/lite", "TensorFlow": f"{folder}/export"}
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(make_index, index, exports["LiteRT"], FLAG["count"].value).result()  # whose memory is not ours
        pathlib.Path(exports["TensorFlow"]).mkdir()
        for path in pathlib.Path(export).resolve().iterdir():  # without lite/, which would be taken
            if path.name != "lite":
                (pathlib.Path(exports["TensorFlow"]) / path.name).symlink_to(path)
        costs = {name: [] for name in exports}
        for _ in range(rounds):
            for name, path in exports.items():
                costs[name].append(run(["search", "query", QUESTION, f"--index={index}", f"--model={path}"]))
        for name, measured in costs.items():
            columns = [f"{statistics.median(column):.2f} ({min(column):.2f} to {max(column):.2f})"
                       for column in zip(*measured)]  # fmt: skip
            print(f"query, {name}: {columns[0]} s, {columns[1]} processor s, {columns[2]} MB", flush=True)
        for name, path in exports.items():
            start, spent, peak = serve(path, index, FLAG["questions"].value)
            p50, p99 = (statistics.quantiles(spent, n=100)[percent - 1] for percent in (50, 99))
            print(f"serve, {name}: start {start:.2f} s, p50 {p50:.1f} ms, p99 {p99:.1f} ms, {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    FLAG = cli.define(
        export=(None, "Export with lite/.", cli.check_path),
        count=(100_000, "Items of the index.", 1),
        rounds=(5, "Questions on the command line by each runtime.", 1),
        questions=(200, "Questions to the server.", 2),
        folder=("", "Where the index lies meanwhile.", cli.check_path),
    )
    cli.run(main)
