"""How long a run takes to its first batch: by records, files and place in the data; and what a second pipeline brings.

    python -m benchmarks.first_batch [--folder=FOLDER] [--rounds=3] [--most=1000000]

Makes text pairs of one size in a folder, which is kept and used again. Every number is from a process of its own, in
turns: seconds, elapsed and of the processor, from the call of `training_batches` to its first batch (imports not
counted), of MURAL's text stream in batches of 512. Then two processes, each with a core and a half of the files, beside
one with a core and all of them: records a second.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WINDOW = 16 * 32 * 16  # items; whole blocks of records of sixteen files
SECONDS = 15.0  # that a pipeline is measured for


def write(folder: pathlib.Path, records: int, files: int) -> pathlib.Path:
    """Writes pairs whose records all have one size; a folder that is complete is left alone."""
    import tensorflow as tf

    from mural_tf.data.record_format import TextPair, serialize

    folder = folder / f"{records}-in-{files}" / "text_pairs"
    if (folder / "complete").exists():
        return folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        with tf.io.TFRecordWriter(str(folder / f"train-{file:05d}-of-{files:05d}.tfrecord")) as writer:
            for number in range(file, records, files):
                texts = f"number {number:09d} of the things", f"Nummer {number:09d} der Dinge"
                writer.write(serialize(TextPair(texts[0], "en", texts[1], "de", f"{number:09d}")))
    (folder / "complete").touch()
    return folder.parent


def place_at(folder: pathlib.Path, offset: int):
    """Returns the place before the item `offset` of the first epoch, where a window begins, of 16 files."""
    from mural_tf.data.streams.epochs import start_of
    from mural_tf.data.streams.record_files import CYCLE
    from mural_tf.data.tfrecord import read_all

    (first, *_), files = sorted(folder.glob("text_pairs/*.tfrecord")), CYCLE
    size = next(iter(read_all(str(first), print, open)))[1]
    each = offset // files
    place = start_of(0)
    place[1:4] = offset - 1, offset, offset
    place[6 : 6 + files], place[6 + files :] = each * (len(size) + 16), each
    return place


def measure(folder: str, offset: int, pipeline: int, pipelines: int, seconds: float) -> dict:
    """Returns what one process sees; with `seconds`, records a second after the first batch too."""
    from mural_tf.config import base_config
    from mural_tf.data.streams.epochs import Share
    from mural_tf.data.streams.pipeline import training_batches
    from mural_tf.text.vocabulary_file import RESERVED_TOKENS
    from mural_tf.text.word_pieces import WordPieceTokenizer

    letters = "abcdefghijklmnopqrstuvwxyzND0123456789"
    tokenizer = WordPieceTokenizer([*RESERVED_TOKENS, *letters, *(f"##{c}" for c in letters)], max_length=64)
    config = base_config()
    config.data.update(dict(directory=folder, shuffle_buffer=WINDOW))
    config.train.text_text_batch = 512 * pipelines
    places = {"text_text": place_at(pathlib.Path(folder), offset)[None]} if offset else None
    elapsed, processor = time.monotonic(), time.process_time()
    options = dict(streams=("text_text",), pad="longest", share=Share(pipeline, pipelines))
    batches = iter(training_batches(config, tokenizer, places, **options))
    next(batches)
    found = {"elapsed": time.monotonic() - elapsed, "processor": time.process_time() - processor}
    if seconds:
        count, elapsed, processor = 0, time.monotonic(), time.process_time()
        while time.monotonic() - elapsed < seconds:
            count += len(next(batches)["text_a_id"])
        found["rate"] = count / (time.monotonic() - elapsed)
        found["processor_rate"] = count / (time.process_time() - processor)
    return found


def start(folder: pathlib.Path, offset: int = 0, pipeline: int = 0, pipelines: int = 1, seconds=0.0, core=None):
    """Starts a process that measures, on one core if that is named."""
    arguments = [str(folder), str(offset), str(pipeline), str(pipelines), str(seconds)]
    bound = ["taskset", "-c", str(core)] if core is not None else []
    return subprocess.Popen([*bound, sys.executable, "-m", "benchmarks.first_batch", "--one", *arguments],
                            stdout=subprocess.PIPE, text=True)  # fmt: skip


def result(process: subprocess.Popen) -> dict:
    """Waits for a process that measures."""
    output, _ = process.communicate()
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "first_batch"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=1_000_000, help="records of the largest set")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        folder, offset, pipeline, pipelines, seconds = arguments.one
        print(json.dumps(measure(folder, int(offset), int(pipeline), int(pipelines), float(seconds))), flush=True)
        os._exit(0)
    root, most = pathlib.Path(arguments.folder), arguments.most
    cases = [(count, 16, 0) for count in (most // 100, most // 10, most)]
    cases += [(most // 10, 10_000, 0), (most // 10, 10, 0)]
    cases += [(most, 16, (most * share // 100) // WINDOW * WINDOW) for share in (10, 98)]
    folders = [write(root, records, files) for records, files, _ in cases]
    found: list[list[dict]] = [[] for _ in cases]
    for _ in range(arguments.rounds):
        for place, (_, _, offset) in enumerate(cases):
            found[place].append(result(start(folders[place], offset)))
    print("| records | files | begins at item | elapsed s | processor s |\n|---|---|---|---|---|")
    for (records, files, offset), runs in zip(cases, found):
        medians = [statistics.median(run[name] for run in runs) for name in ("elapsed", "processor")]
        print(f"| {records:,} | {files:,} | {offset:,} | {medians[0]:.2f} | {medians[1]:.2f} |")
    folder, rates = folders[2], {1: [], 2: []}
    for _ in range(arguments.rounds):
        for pipelines in (1, 2):
            processes = [start(folder, 0, n, pipelines, SECONDS, core=n) for n in range(pipelines)]
            rates[pipelines].append(sum(result(process)["rate"] for process in processes))
    one, two = (statistics.median(rates[pipelines]) for pipelines in (1, 2))
    ratios = ", ".join(f"{b / a:.2f}" for a, b in zip(rates[1], rates[2]))
    print(f"\n1 pipeline on a core: {one:,.0f} records a second; 2 on two: {two:,.0f}; ratios {ratios}")


if __name__ == "__main__":
    main()
