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
import functools
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

from benchmarks.against_transformers import spread
from benchmarks.search import COLOURS, THINGS, caption, make_vectors
from mural_lite import command_line as cli
from mural_lite import fingerprint
from mural_lite.models import open_model
from mural_search.index import sync
from mural_search.items import Item

QUESTION = "moyo mwekundu"
PORT = 18501


def make_index(folder: pathlib.Path, export: str, count: int) -> None:
    """Makes an index of `count` items with synthetic vectors, which an export's model may search."""
    model = fingerprint.take_fingerprint(open_model(export))
    vectors = make_vectors(count, model.probes.shape[1])

    def entries():
        """Yields (item, its vector)."""
        for number, vector in enumerate(vectors):
            captions = (("en", caption(number)),)
            yield Item(f"{number}.jpg", f"/pictures/{number}.jpg", captions=captions), vector

    sync(folder, None, entries(), model=model, dtype="float16")


def run(arguments: list[str]) -> tuple[float, float, float]:
    """Runs `python -m mural_tf` with arguments; returns (elapsed seconds, processor seconds, peak memory in MB).

    Raises `SystemExit` if it fails.
    """
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "mural_tf", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments[0]} ended with {status}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def rivals_of(index: pathlib.Path) -> dict[str, Callable[[int], object]]:
    """Returns {name of a rival: function that takes a question's number and answers the question}.

    `index`: the folder of the index, whose vectors and captions the rivals hold in memory.
    """
    vectors = np.array(np.load(index / "vectors.npy", mmap_mode="r"), np.float32)
    words = sqlite3.connect(":memory:")
    words.execute("CREATE VIRTUAL TABLE captions USING fts5(text)")
    with sqlite3.connect(index / "index.sqlite") as database:
        words.executemany("INSERT INTO captions VALUES (?)", database.execute("SELECT text FROM texts"))

    def multiply(number: int) -> np.ndarray:
        """Returns the rows of the ten vectors that are nearest to a vector, the nearest first."""
        scores = vectors @ vectors[number]
        best = np.argpartition(-scores, min(10, len(scores) - 1))[:10]
        return best[np.argsort(-scores[best])]

    def match(number: int) -> list:
        """Returns the rows of ten captions that have one of two words."""
        text = f'"{COLOURS[number % 8]}" OR "{THINGS[number % 10]}"'
        return words.execute(
            "SELECT rowid FROM captions WHERE captions MATCH ? ORDER BY rank LIMIT 10", [text]
        ).fetchall()

    return {"NumPy float32": multiply, "SQLite FTS5": match}


def processor_milliseconds(process: int) -> float:
    """Returns the processor milliseconds that a process, given by its id, has used since it started."""
    _, _, fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")  # the name before may hold spaces
    user, system = fields.split()[11:13]
    return 1000 * (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def memory_of(process: int) -> dict[str, float]:
    """Returns the memory of a process, given by its id, in MB.

    The keys are Linux' names: "VmHWM" is the peak resident set, "VmRSS" the resident set now, and "Pss" the
    proportional set.
    """
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    smaps = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
    kilobytes = {}
    for line in f"{status}{smaps}".splitlines():
        if line.endswith("kB"):
            name, number, _ = line.split()
            kilobytes[name.rstrip(":")] = int(number)
    return {name: kilobytes[name] / 1024 for name in ("VmHWM", "VmRSS", "Pss")}


def serve(export: str, index: pathlib.Path, questions: int, rivals: dict[str, Callable]) -> dict[str, object]:
    """Serves an index, and asks the server and the rivals in turns.

    Args:
      export: the export that the server loads.
      index: the folder of the index.
      questions: how often each engine is asked.
      rivals: see `rivals_of`.

    Returns:
      {"start": seconds until the server answers, "spent": {engine: milliseconds of each question},
      "used": {engine: processor milliseconds per question}} and the entries of `memory_of`.
    """
    address = f"http://localhost:{PORT}"
    start_time = time.perf_counter()
    command = [sys.executable, "-m", "mural_tf", "serve", f"--export={export}", f"--index={index}", f"--port={PORT}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_answer(process, address)
        start_seconds = time.perf_counter() - start_time
        ask(address, 0)  # which waits until the index is in memory
        engines = {"server": functools.partial(ask, address), **rivals}
        spent, used = ask_in_turns(engines, questions, process.pid)
        return {"start": start_seconds, "spent": spent, "used": used, **memory_of(process.pid)}
    finally:
        process.terminate()
        process.wait()


def wait_for_answer(process: subprocess.Popen, address: str) -> None:
    """Waits until the server at an address answers; raises `SystemExit` if its process ends before."""
    while True:
        try:
            urllib.request.urlopen(f"{address}/healthz", timeout=5).read()
            return
        except OSError:
            if process.poll() is not None:
                raise SystemExit("The server ended before it answered.") from None
            time.sleep(0.02)


def ask(address: str, number: int) -> bytes:
    """Asks the server at an address the question with a number, and returns the bytes of its answer."""
    text = urllib.parse.quote(f"a {COLOURS[number % 8]} {THINGS[number % 10]} {number}")
    return urllib.request.urlopen(f"{address}/search/answer?sentence={text}", timeout=60).read()


def ask_in_turns(
    engines: dict[str, Callable[[int], object]], questions: int, server_process: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Asks each engine each question; returns ({engine: milliseconds of each question}, {engine: mean processor ms}).

    Args:
      engines: {name: function that takes a question's number and answers the question}.
      questions: the number of questions.
      server_process: the id of the process in which the engine "server" works; the others work in this process.
    """

    def used_until_now(engine: str) -> float:
        """Returns the processor milliseconds that an engine's process has used."""
        if engine == "server":
            return processor_milliseconds(server_process)
        return 1e3 * time.process_time()

    spent: dict[str, list[float]] = {engine: [] for engine in engines}
    used = dict.fromkeys(engines, 0.0)
    for number in range(questions):
        for engine, answer in engines.items():
            used_before = used_until_now(engine)
            question_time = time.perf_counter()
            answer(number)
            spent[engine].append(1000 * (time.perf_counter() - question_time))
            used[engine] += used_until_now(engine) - used_before
    return spent, {engine: total / questions for engine, total in used.items()}


def main(_) -> None:
    """Makes an index of each size, and prints what questions cost in it by each runtime."""
    export = FLAG["export"].value
    with tempfile.TemporaryDirectory(dir=FLAG["folder"].value or None) as folder:
        # Only the first run compiles modules: every Python that this process starts keeps them in this folder.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        all_exports = {"LiteRT": f"{export}/lite", "TensorFlow": f"{folder}/export"}
        exports = {name: path for name, path in all_exports.items() if name in FLAG["runtimes"].value}
        link_without_lite(pathlib.Path(export), pathlib.Path(folder) / "export")
        for count in map(int, FLAG["counts"].value):
            index = pathlib.Path(folder) / f"index_{count}"
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(make_index, index, f"{export}/lite", count).result()  # its memory is freed with it
            compare(index, count, exports)


def link_without_lite(export: pathlib.Path, folder: pathlib.Path) -> None:
    """Makes a folder of links to an export's files but for its lite/, which would be opened in the export's place."""
    folder.mkdir()
    for path in export.resolve().iterdir():
        if path.name != "lite":
            (folder / path.name).symlink_to(path)


def compare(index: pathlib.Path, count: int, exports: dict[str, str]) -> None:
    """Prints the costs of questions on the command line and to a server, by each runtime.

    Args:
      index: the folder of the index.
      count: the number of its items.
      exports: {runtime: path of the export that it loads}.
    """
    costs = {name: [] for name in exports}  # {runtime: what `run` returned for each question}
    for _ in range(1 + FLAG["rounds"].value):
        for name, path in exports.items():
            costs[name].append(run(["search", "query", QUESTION, f"--index={index}", f"--model={path}"]))
    for name, (_, *counted) in costs.items():  # the first question compiled the modules
        seconds, processor, memory = map(spread, zip(*counted))
        print(f"{count:,}: query, {name}: {seconds} s, {processor} processor s, {memory} MB", flush=True)
    rivals = rivals_of(index)
    for name, path in exports.items():
        served = serve(path, index, FLAG["questions"].value, rivals)
        memory = f"{served['VmHWM']:.0f} MB at most, {served['VmRSS']:.0f} at the end, {served['Pss']:.0f} its share"
        print(f"{count:,}: serve, {name}: start {served['start']:.2f} s, {memory}", flush=True)
        for engine, spent in served["spent"].items():
            percentiles = statistics.quantiles(spent, n=100)  # 1% to 99%
            p50 = percentiles[50 - 1]
            p99 = percentiles[99 - 1]
            ratio = statistics.median(server / other for server, other in zip(served["spent"]["server"], spent))
            used = f"{served['used'][engine]:.1f} processor ms"
            print(f"    {engine}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {used}, server / it {ratio:.2f}", flush=True)


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
