"""An index of a million vectors: building, opening, asking, memory; next to NumPy and SQLite by themselves.

    python -m benchmarks.search --output=FILE.csv              # 1,000,000 x 256, float16: 2 GB, some minutes
    python -m benchmarks.search --count=100000                 # a tenth of it

Synthetic vectors are clustered like vectors of pictures: latents of 64 numbers around count/100 centres, mapped to the
full size, with noise, L2-normalised. Each item has a field and, with `--captions`, a caption of four words. No model
encodes anything: only the store is measured. The rivals do no more than they must: NumPy keeps vectors as float32
in memory and multiplies; SQLite keeps names and vectors in one table, without fields, words or transactions in between;
FTS5 only keeps the captions' trigrams, and gives the ten best by BM25.
Each step runs in a process of its own, and peak memory is its maximum resident set, mapped pages that were read
included.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import csv
import heapq
import multiprocessing
import pathlib
import re
import sqlite3
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from mural_lite.fingerprint import TEXTS, Fingerprint
from mural_search.index import load_index, sync
from mural_search.items import Item, parse_filters

# Captions and questions take these 8 and 10 words by turns, by `% 8` and `% 10`.
COLOURS = ("red", "green", "blue", "yellow", "black", "white", "orange", "violet")
THINGS = ("balloon", "shoe", "heart", "lamp", "guitar", "umbrella", "mug", "candle", "cushion", "hat")
QUESTION = "red umbrella"


def make_vectors(count: int, size: int, seed: int = 0) -> np.ndarray:
    """Returns synthetic vectors, float16 [count, size], L2-normalised and in clusters of about a hundred."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(1, count // 100), 64), dtype=np.float32)
    matrix = random.standard_normal((64, size), dtype=np.float32) / 8.0  # 8: the root of 64, so that sizes stay
    vectors = np.empty((count, size), np.float16)
    for begin in range(0, count, 50_000):  # a part at a time, because float32 takes twice the memory
        part = vectors[begin : begin + 50_000]
        latents = centres[random.integers(len(centres), size=len(part))]
        latents = latents + 0.6 * random.standard_normal(latents.shape, dtype=np.float32)
        noisy = latents @ matrix + 0.3 * random.standard_normal(part.shape, dtype=np.float32)
        part[:] = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
    return vectors


def caption(number: int) -> str:
    """Returns the caption of the item with a number, four words: "a green balloon 1"."""
    return f"a {COLOURS[number % 8]} {THINGS[number // 8 % 10]} {number:x}"


class Steps(list):
    """Lines of the table: (name of a step, seconds, processor seconds, peak memory), all of them texts."""

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times the block of a `with`, and adds and prints its line: the peak memory is the whole process's."""
        start = time.perf_counter()
        processor_start = time.process_time()
        yield
        seconds = time.perf_counter() - start
        processor_seconds = time.process_time() - processor_start
        # Not `ru_maxrss`, which a process takes over from its parent.
        peak = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
        line = (name, _short(seconds), _short(processor_seconds), f"{int(peak[1]) / 2**20:.2f} GiB")
        self.append(line)
        print(*line, sep="\t", flush=True)


def _short(seconds: float) -> str:
    """Returns seconds as text, with three digits or, from a thousand on, without decimals."""
    return f"{seconds:.3g}" if seconds < 1000 else f"{seconds:,.0f}"


def build(folder: pathlib.Path, captions: bool) -> Steps:
    """Makes the index or, if it exists, finds that nothing is new, and returns the line of the step.

    Args:
      folder: the folder with the vectors, rows.npy, and with the index.
      captions: whether each item has a caption.
    """
    steps = Steps()
    is_new = not (folder / "index").exists()
    vectors = np.load(folder / "rows.npy", mmap_mode="r")
    # A probe for each text and each of the two pictures.
    model = Fingerprint(np.eye(len(TEXTS) + 2, vectors.shape[1], dtype=np.float32), "synthetic")

    def items():
        """Yields (item, its vector)."""
        for number, vector in enumerate(vectors):
            item_captions = (("en", caption(number)),) if captions else ()
            yield Item(f"{number}.jpg", captions=item_captions, fields={"price": str(number % 1000)}), vector

    name = "built of vectors that are there" if is_new else "the same again, nothing new"
    with steps.step(name):
        sync(folder / "index", None, items(), model=model, dtype="float16")
    return steps


def ask(folder: pathlib.Path, captions: bool) -> Steps:
    """Returns the lines for opening the index and for questions; for the arguments see `build`."""
    steps = Steps()
    with steps.step("opened"):
        index = load_index(folder / "index")
    query = np.asarray(index.embeddings[:1], np.float32)
    for name, where in (("a question", ()), ("a question, warm", ()), ("a tenth passes a filter", ["price<100"])):
        with steps.step(name):
            index.search(query, 10, where)
    if captions:
        with steps.step("by words"):
            index.table.by_words(QUESTION, 200)
    with steps.step("rows of a field"):
        index.rows(parse_filters(["price=7"]))
    return steps


def open_without_matrix(folder: pathlib.Path, captions: bool) -> Steps:
    """Removes the index's matrix, and returns the line for opening the index without it; `captions` is unused."""
    steps = Steps()
    (folder / "index" / "vectors.npy").unlink()
    with steps.step("opened, the matrix made again"):
        load_index(folder / "index")
    return steps


def measure_numpy(folder: pathlib.Path, captions: bool) -> Steps:
    """Returns the lines for reading all vectors and multiplying a question with them; `captions` is unused."""
    steps = Steps()
    with steps.step("NumPy: opened, as float32"):
        vectors = np.load(folder / "rows.npy").astype(np.float32)
    for name in ("NumPy: a question", "NumPy: a question, warm"):
        with steps.step(name):
            scores = vectors @ vectors[0]
            best = np.argpartition(-scores, 10)[:10]
            best[np.argsort(-scores[best])]  # an answer is in order
    return steps


def measure_sqlite(folder: pathlib.Path, captions: bool) -> Steps:
    """Keeps names and vectors in one table of SQLite, and returns the lines for building it and for a question.

    A question reads all of the table. With `captions` come the lines of FTS5, which finds captions by their trigrams.
    `folder`: see `build`.
    """
    steps = Steps()
    vectors = np.load(folder / "rows.npy", mmap_mode="r")
    with contextlib.closing(sqlite3.connect(folder / "alone.sqlite")) as database:
        with steps.step("SQLite: built"), database:
            database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, vector BLOB)")
            rows = ((number, f"{number}.jpg", vector.tobytes()) for number, vector in enumerate(vectors))
            database.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        with steps.step("SQLite: a question"):
            query = vectors[0].astype(np.float32)
            best = []  # (cosine, id) of ten
            items = database.execute("SELECT id, vector FROM items")
            while rows := items.fetchmany(4096):
                ids, blobs = zip(*rows)
                block = np.frombuffer(b"".join(blobs), np.float16).reshape(len(blobs), -1).astype(np.float32)
                best = heapq.nlargest(10, [*best, *zip((block @ query).tolist(), ids)])
        if captions:
            database.execute("CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='trigram')")
            with steps.step("FTS5: built"), database:
                texts = ((caption(number),) for number in range(len(vectors)))
                database.executemany("INSERT INTO words (text) VALUES (?)", texts)
            trigrams = " OR ".join(f'"{QUESTION[begin : begin + 3]}"' for begin in range(len(QUESTION) - 2))
            with steps.step("FTS5: by words"):
                statement = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT 10"
                database.execute(statement, (trigrams,)).fetchall()
    return steps


def main() -> None:
    """Measures each step in a process of its own, writes the table after each of them, and prints the files' sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--captions", action="store_true")
    parser.add_argument("--folder", default=None, help="Where the files lie meanwhile.")
    parser.add_argument("--output", default=None, help="File of the table.")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.folder) as name:
        folder = pathlib.Path(name)
        np.save(folder / "rows.npy", make_vectors(flags.count, flags.size))
        title = f"{flags.count:,} vectors of {flags.size} numbers, float16"
        lines = [(title, "seconds", "processor seconds", "memory")]
        for work in (build, ask, open_without_matrix, measure_numpy, measure_sqlite, build):
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                lines += pool.submit(work, folder, flags.captions).result()
            if flags.output:
                with open(flags.output, "w", encoding="utf-8", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerows(lines)
        for path in sorted((folder / "index").iterdir()):
            print(f"{path.name}: {path.stat().st_size / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
