"""The conversion itself: the same bytes however it runs, resumed after a kill, bounded, reported."""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import tracemalloc

import pytest
import tensorflow as tf
from convert_data import contents, image_bytes, images_in, pairs_in, run, write_moses

from mural_tf.errors import UserError
from mural_tf.ingest import convert
from mural_tf.ingest.blocks import read_blocks
from mural_tf.ingest.convert import KINDS, Converter
from mural_tf.ingest.source import Settings, parse_source

ROOT = pathlib.Path(__file__).resolve().parents[1]


def write_sources(folder, pairs=1000):
    """Two corpora of unequal size with some bad lines, and a captioned folder of images."""
    big = write_moses(
        folder / "de-en.txt.zip",
        {"X.de-en.de": "".join(f"Satz {n}\n" for n in range(pairs)).encode(),
         "X.de-en.en": "".join("\n" if n % 97 == 5 else f"sentence {n}\n" for n in range(pairs)).encode()},
    )  # fmt: skip
    (folder / "small.tsv").write_text("".join(f"word {n}\tparole {n}\n" for n in range(pairs // 10)))
    for n in range(10):
        (folder / f"{n}.jpg").write_bytes(image_bytes(n))
    (folder / "captions.tsv").write_text("".join(f"{n % 11}.jpg\tcaption {n}\n" for n in range(250)))
    return [
        f"opus:{big}", f"pairs:{folder}/small.tsv,language_b=fr", f"captions:{folder}/captions.tsv,images={folder}",
    ]  # fmt: skip


def test_the_data_set(tmp_path):
    sources = write_sources(tmp_path)
    output = run(sources, tmp_path / "out", shard_megabytes=0)
    pairs, images = pairs_in(output), images_in(output)
    assert {pair.text_a for pair in pairs} == {f"Satz {n}" for n in range(1000) if n % 97 != 5} | {
        f"word {n}" for n in range(100)
    }
    assert len(images) == 250 - 22  # image 10 is missing
    description = json.loads((output / "dataset.json").read_text(encoding="utf-8"))
    assert description["counts"] == {
        "image_text": {"train": {"images": 228, "captions": 228}},
        "text_pairs": {"train": 1089},
    }
    assert description["languages"]["de-en"] == {"text_pairs": {"train": 989}}
    assert description["languages"]["en"] == {"image_text": {"train": 228}}
    place = f"{tmp_path}/de-en.txt.zip!X.de-en.de:6"
    assert description["skipped"]["empty text"] == {"count": 11, "first": place}
    assert description["skipped"]["missing image"]["count"] == 22
    assert len((output / "skipped.tsv").read_text().splitlines()) == 33
    names = sorted(path.name for path in (output / "text_pairs").iterdir())
    assert names == [f"train-{i:05d}-of-00011.tfrecord" for i in range(11)]  # 1,100 lines, 100 in each block
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == [".out.lock"]


def test_shards_mix_the_sources(tmp_path):
    write_sources(tmp_path, pairs=200_000)
    sources = [f"opus:{tmp_path}/de-en.txt.zip", f"pairs:{tmp_path}/small.tsv,language_b=fr"]
    parsed = [parse_source(source, KINDS) for source in sources]
    blocks = list(read_blocks(parsed, Settings(block_sizes=(("pair", 40_000),)), tmp_path))
    shares = [sum(index == 1 for index, _ in block.items) / len(block.items) for block in blocks]
    assert len(shares) == 6 and all(0.05 < share < 0.15 for share in shares[:-1])  # of all, 1 in 11 is the small one's


def test_workers_do_not_change_the_bytes(tmp_path):
    sources = write_sources(tmp_path)
    assert contents(run(sources, tmp_path / "a")) == contents(run(sources, tmp_path / "b", workers=3))


@pytest.mark.parametrize("after", [0, 1, 7])
def test_an_interrupted_conversion_goes_on(tmp_path, monkeypatch, after):
    sources = write_sources(tmp_path)
    whole = contents(run(sources, tmp_path / "whole"))
    done = []

    def stopping(self, block, convert=Converter.__call__):
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(block.number)
        return convert(self, block)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="run the same command again"):
        patch.setattr(Converter, "__call__", stopping)
        run(sources, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    parts = tmp_path / ".out.converting" / "parts"
    before = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.tfrecord")}
    assert len(list(parts.glob("*.json"))) == after
    again = []

    def counting(self, block, convert=Converter.__call__):
        again.append(block.number)
        assert all((parts / name).stat().st_mtime_ns == mtime for name, mtime in before.items())  # kept as they are
        return convert(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(Converter, "__call__", counting)
        assert contents(run(sources, tmp_path / "out")) == whole
    assert not set(again) & set(done) and len(again) + len(done) == 11 + 3


def test_a_kill_while_shards_are_joined(tmp_path, monkeypatch):
    sources = write_sources(tmp_path)
    whole = contents(run(sources, tmp_path / "whole", shard_megabytes=0))
    for after in (0, 1, 5):
        calls = []

        def stopping(source, target, replace=os.replace, calls=calls, after=after):
            if "complete" in str(target):
                calls.append(target)
                if len(calls) > after:
                    raise KeyboardInterrupt
            replace(source, target)

        output = tmp_path / f"out{after}"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("mural_tf.ingest.convert.os.replace", stopping)
            run(sources, output, shard_megabytes=0)
        assert contents(run(sources, output, shard_megabytes=0)) == whole


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_behind_and_goes_on(tmp_path):
    sources = write_sources(tmp_path, pairs=20_000)
    whole = contents(run(sources, tmp_path / "whole"))
    flags = ["--workers=2", "--pairs_per_block=100", "--images_per_block=100", "--max_skipped_fraction=1"]
    command = [sys.executable, "-m", "mural_tf", "convert", *sources, f"--output={tmp_path}/out", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    parts = tmp_path / ".out.converting" / "parts"
    deadline = time.time() + 120
    while len(list(parts.glob("*.json"))) < 20 and time.time() < deadline:
        time.sleep(0.05)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 20 <= len(list(parts.glob("*.json"))) < 200 and workers
    while any(map(alive, workers)) and time.time() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
    assert contents(run(sources, tmp_path / "out")) == whole


def children(pid):
    """All processes below `pid`, by Linux's /proc."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            number, parent = int(path.parent.name), int(path.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found += [number, *children(number)]
    return found


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_finished_data_set_is_left_alone(tmp_path):
    sources = write_sources(tmp_path)
    output = run(sources, tmp_path / "out")
    before = (output / "dataset.json").stat().st_mtime_ns
    assert run(sources, tmp_path / "out", workers=5, max_skipped_fraction=0.9) == output
    assert (output / "dataset.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="holds another data set, with settings"):
        run(sources, tmp_path / "out", image_size=100)


def test_an_unfinished_conversion_of_something_else_is_kept(tmp_path, monkeypatch):
    sources = write_sources(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(convert, "assemble", interrupt)
        run(sources, tmp_path / "out")
    with pytest.raises(UserError, match="unfinished conversion of other sources"):
        run(sources[:1], tmp_path / "out")
    parsed = [parse_source(source, KINDS) for source in sources[:1]]
    convert.convert(
        parsed, tmp_path / "out", Settings(workers=0, max_skipped_fraction=1.0), restart=True, progress=False
    )
    assert {pair.language_b for pair in pairs_in(tmp_path / "out")} == {"en"}


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_too_much_that_is_unusable_stops_the_conversion(tmp_path):
    (tmp_path / "bad.tsv").write_text("".join(f"a{n}\tb\n" if n % 10 else "no tab\n" for n in range(5000)))
    source = f"pairs:{tmp_path}/bad.tsv,language_b=de"
    with pytest.raises(UserError) as error:
        run([source], tmp_path / "out", max_skipped_fraction=0.05)
    message = str(error.value)
    assert "100 of 1000 captions and pairs (100 x row with the wrong number of columns, first at" in message
    assert f"{tmp_path}/bad.tsv:1), more than --max_skipped_fraction=0.05" in message
    assert len(pairs_in(run([source], tmp_path / "out", max_skipped_fraction=0.2))) == 4500


def test_two_processes_make_one_data_set(tmp_path, monkeypatch, caplog):
    sources, begun, go_on, blocks = write_sources(tmp_path), threading.Event(), threading.Event(), []

    def slowly(self, block, convert=Converter.__call__):
        blocks.append(block.number)
        begun.set()
        assert go_on.wait(60)
        return convert(self, block)

    monkeypatch.setattr(Converter, "__call__", slowly)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # each with its own file for the lock, as two processes
        first = pool.submit(run, sources, tmp_path / "out")
        assert begun.wait(60)
        second = pool.submit(run, sources, tmp_path / "out")
        while "Waiting for another process" not in caplog.text and not second.done():
            time.sleep(0.01)
        go_on.set()
        assert first.result() == second.result() == tmp_path / "out"
    assert len(blocks) == len(set(blocks)) and "Waiting for another process" in caplog.text


def test_a_full_disk_is_one_line_and_the_conversion_goes_on_later(tmp_path, monkeypatch):
    sources = write_sources(tmp_path)
    whole = contents(run(sources, tmp_path / "whole"))

    class Full:
        def __init__(self, path):
            raise tf.errors.ResourceExhaustedError(None, None, f"{path}; No space left on device")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="Cannot write to .*No space left on device"):
        patch.setattr(tf.io, "TFRecordWriter", Full)
        run(sources, tmp_path / "out")
    assert contents(run(sources, tmp_path / "out")) == whole


def test_memory_does_not_grow_with_the_input(tmp_path, monkeypatch):
    """A source without end is read in blocks: what is in memory at a time does not depend on how far it was read."""
    tsv = KINDS["pairs"]
    (tmp_path / "any.tsv").write_text("x\ty\n")
    read = 0

    def endless(self, reading):
        nonlocal read
        while True:
            read += 1
            yield f"a sentence with the number {read}\teine Zahl {read}", f"line {read}"

    monkeypatch.setattr(tsv, "read", endless)
    source = parse_source(f"pairs:{tmp_path}/any.tsv,language_b=de", KINDS)
    blocks = read_blocks([source], Settings(block_sizes=(("pair", 1000),)), tmp_path)
    peaks = []
    tracemalloc.start()
    try:
        for block in blocks:
            if block.number in (20, 200):
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
            if block.number == 200:
                break
    finally:
        tracemalloc.stop()
    assert read == 201_000 and peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("ops:x", "Unknown source 'ops:x'.*Did you mean opus"),
        ("data/x.zip", "Unknown source"),
        ("opus:", "names no file"),
        ("opus:missing/*.zip", "There is no file missing"),
        (
            "opus:x,min_scores=1",
            "opus has no option 'min_scores=1'; it has languages, min_score.*Did you mean min_score",
        ),
        ("opus:x,min_score=high", "min_score='high' is not of type float"),
        ("pairs:x,header=maybe", "header='maybe' is not of type bool"),
    ],
)
def test_wrong_sources_teach(tmp_path, source, message):
    with pytest.raises(UserError, match=message):
        run([source], tmp_path / "out")


def test_nothing_to_write(tmp_path):
    (tmp_path / "empty.tsv").write_bytes(b"")
    with pytest.raises(UserError, match="Nothing to write: 0 captions and pairs read"):
        run([f"pairs:{tmp_path}/empty.tsv,language_b=de"], tmp_path / "out")


def test_command(tmp_path):
    sources = write_sources(tmp_path)
    flags = [f"--output={tmp_path}/out", "--workers=0", "--max_skipped_fraction=0.1"]
    command = [sys.executable, "-m", "mural_tf", "convert", *sources, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train: 228 images, 228 captions\ntrain: 1089 text pairs\nskipped 22 x missing image" in done.stdout
    failed = subprocess.run([*command[:4], "ops:x", "--output=x"], cwd=ROOT, capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.startswith("Error: Unknown source 'ops:x'")
    listed = subprocess.run([*command[:4], "--list"], cwd=ROOT, capture_output=True, text=True).stdout
    assert all(f"{kind}:PATH" in listed for kind in KINDS)
