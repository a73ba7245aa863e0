"""The cost of an answer from nothing: a question on the command line, and the page's server, by both runtimes.

    python run_export.py --model=WORKDIR --output=exported --lite
    python -m benchmarks.cold_query --export=exported [--counts=1000,10000,100000] [--rounds=5]

Indexes of so many items with a caption of four words each and synthetic vectors of the model's size are asked by a
new process each time, by `exported/lite` (LiteRT) and by `exported` (TensorFlow) in turns, once before that is not
counted: it compiles the modules, as an installation does. Memory is the maximum resident set, mapped pages that were
read included. Then each is served: seconds until /healthz answers, milliseconds
of one question after the other, each from the request to the answer's last byte, and processor milliseconds of each,
by the server's own account, which a busy machine lengthens less. Memory then also as the proportional set, in which
pages that processes share count by their share.

Next to each server two rivals that know the question's vector and words, between the server's questions: the product
with all vectors in NumPy as float32, and only SQLite's FTS5, two words of captions by BM25.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pathlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable

import numpy as np

from benchmarks.search import COLOURS, THINGS, make_vectors
from mural_lite import command_line as cli
from mural_lite import fingerprint
from mural_lite.models import open_model
from mural_search.index import sync
from mural_search.items import Item

QUESTION = "moyo mwekundu"
PORT = 18501


def make_index(folder: pathlib.Path, export: str, count: int) -> None:
    """Makes an index that the export's model may search, of synthetic vectors."""
    model = fingerprint.take_fingerprint(open_model(export))
    vectors = make_vectors(count, model.probes.shape[1])
    captions = (f"a {COLOURS[n % 8]} {THINGS[n // 8 % 10]} {n:x}" for n in range(count))
    items = (Item(f"{n}.jpg", f"/pictures/{n}.jpg", captions=(("en", caption),)) for n, caption in enumerate(captions))
    sync(folder, None, zip(items, vectors), model=model, dtype="float16")


def run(arguments: list[str]) -> tuple[float, float, float]:
    """Returns seconds by the clock, processor seconds and MB of a command that must succeed."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "mural_tf", *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments[0]} ended with {status}")
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def rivals_of(index: pathlib.Path) -> dict[str, Callable[[int], object]]:
    """Returns {name: function that answers the question of a number}."""
    vectors = np.array(np.load(index / "vectors.npy", mmap_mode="r"), np.float32)
    words = sqlite3.connect(":memory:")
    words.execute("CREATE VIRTUAL TABLE captions USING fts5(text)")
    with sqlite3.connect(index / "index.sqlite") as database:
        words.executemany("INSERT INTO captions VALUES (?)", database.execute("SELECT text FROM texts"))

    def multiply(number: int) -> np.ndarray:
        scores = vectors @ vectors[number]
        best = np.argpartition(-scores, min(10, len(scores) - 1))[:10]
        return best[np.argsort(-scores[best])]

    def match(number: int) -> list:
        text = f'"{COLOURS[number % 8]}" OR "{THINGS[number % 10]}"'
        return words.execute(
            "SELECT rowid FROM captions WHERE captions MATCH ? ORDER BY rank LIMIT 10", [text]
        ).fetchall()

    return {"NumPy float32": multiply, "SQLite FTS5": match}


def used_by(process: int) -> float:
    """Returns processor milliseconds of a process."""
    user, system = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return 1000 * (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def memory_of(process: int) -> dict[str, float]:
    """Returns MB of a process: the most that was resident, the present resident set, and its proportional part."""
    lines = (
        pathlib.Path(f"/proc/{process}/status").read_text() + pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
    )
    values = {line.split(":")[0]: line.split()[1] for line in lines.splitlines()[1:] if line.endswith("kB")}
    return {name: int(values[name]) / 1024 for name in ("VmHWM", "VmRSS", "Pss")}


def serve(export: str, index: pathlib.Path, questions: int, rivals: dict[str, Callable]) -> dict[str, object]:
    """Serves an index; returns seconds until the server answers, {engine: [milliseconds]}, processor milliseconds of
    the same, and MB.
    """
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
        start = time.perf_counter() - begun

        def ask(number: int) -> bytes:
            text = urllib.parse.quote(f"a {COLOURS[number % 8]} {THINGS[number % 10]} {number}")
            return urllib.request.urlopen(f"{address}/search/answer?sentence={text}", timeout=60).read()

        ways = {"server": ask, **rivals}
        spent, used = {way: [] for way in ways}, dict.fromkeys(ways, 0.0)
        ask(0)  # which waits until the index is in memory
        for number in range(questions):
            for way, answer in ways.items():
                before, asked = (
                    used_by(process.pid) if way == "server" else 1e3 * time.process_time(),
                    time.perf_counter(),
                )
                answer(number)
                spent[way].append(1000 * (time.perf_counter() - asked))
                used[way] += (used_by(process.pid) if way == "server" else 1e3 * time.process_time()) - before
        used = {way: total / questions for way, total in used.items()}
        return {"start": start, "spent": spent, "used": used, **memory_of(process.pid)}
    finally:
        process.terminate()
        process.wait()


def main(_) -> None:
    export, runtimes = FLAG["export"].value, FLAG["runtimes"].value
    with tempfile.TemporaryDirectory(dir=FLAG["folder"].value or None) as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        exports = {"LiteRT": f"{export}/lite", "TensorFlow": f"{folder}/export"}
        exports = {name: path for name, path in exports.items() if name in runtimes}
        pathlib.Path(f"{folder}/export").mkdir()
        for path in pathlib.Path(export).resolve().iterdir():  # without lite/, which would be taken
            if path.name != "lite":
                (pathlib.Path(folder) / "export" / path.name).symlink_to(path)
        for count in map(int, FLAG["counts"].value):
            index = pathlib.Path(folder) / f"index_{count}"
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(make_index, index, f"{export}/lite", count).result()  # whose memory is not ours
            compare(index, count, exports)


def compare(index: pathlib.Path, count: int, exports: dict[str, str]) -> None:
    """Asks and serves an index by each runtime, and prints the costs."""
    costs = {name: [] for name in exports}
    for _ in range(1 + FLAG["rounds"].value):
        for name, path in exports.items():
            costs[name].append(run(["search", "query", QUESTION, f"--index={index}", f"--model={path}"]))
    for name, (_, *measured) in costs.items():
        columns = [f"{statistics.median(column):.2f} ({min(column):.2f} to {max(column):.2f})"
                   for column in zip(*measured)]  # fmt: skip
        print(f"{count:,}: query, {name}: {columns[0]} s, {columns[1]} processor s, {columns[2]} MB", flush=True)
    rivals = rivals_of(index)
    for name, path in exports.items():
        served = serve(path, index, FLAG["questions"].value, rivals)
        memory = f"{served['VmHWM']:.0f} MB at most, {served['VmRSS']:.0f} at the end, {served['Pss']:.0f} its share"
        print(f"{count:,}: serve, {name}: start {served['start']:.2f} s, {memory}", flush=True)
        for way, spent in served["spent"].items():
            p50, p99 = (statistics.quantiles(spent, n=100)[percent - 1] for percent in (50, 99))
            ratio = statistics.median(own / other for own, other in zip(served["spent"]["server"], spent))
            used = f"{served['used'][way]:.1f} processor ms"
            print(f"    {way}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {used}, server / it {ratio:.2f}", flush=True)


if __name__ == "__main__":
    FLAG = cli.define(
        export=(None, "Export with lite/.", cli.check_path),
        counts=(["1000", "10000", "100000"], "Items of the indexes."),
        runtimes=(["LiteRT", "TensorFlow"], "LiteRT, TensorFlow."),
        rounds=(5, "Questions on the command line by each runtime.", 1),
        questions=(200, "Questions to the server.", 2),
        folder=("", "Where the index lies meanwhile.", cli.check_path),
    )
    cli.run(main)
