"""The conversion itself: the same bytes however it runs, resumed after a kill, bounded, reported."""

import concurrent.futures
import contextlib
import errno
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc

import google_crc32c
import pytest
from convert_data import contents, images_in, pairs_in, run, write_moses
from smooth_pictures import image_bytes
from test_commands import run_here
from test_work import Note, alive, children

from mural_lite import shards
from mural_lite.errors import UserError
from mural_lite.tfrecord import read_all
from mural_lite.work import Engine, Step
from mural_tf.commands import COMMANDS
from mural_tf.data.records import list_files, parse_image_text, parse_text_pair
from mural_tf.data.streams.epochs import stated_languages
from mural_tf.ingest import convert
from mural_tf.ingest.convert import KINDS, WriteShard
from mural_tf.ingest.source import Filters, Settings, parse_source

ROOT = pathlib.Path(__file__).resolve().parents[3]


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


@pytest.fixture(scope="module")
def small_shards(tmp_path_factory):
    """Sources, which stay as they are, and the files of their data set in many small shards."""
    folder = tmp_path_factory.mktemp("small_shards")
    sources = write_sources(folder)
    return sources, contents(run(sources, folder / "whole", shard_megabytes=0))


def test_the_data_set(tmp_path):
    sources = write_sources(tmp_path)
    output = run(sources, tmp_path / "out", shard_megabytes=0, unit_bytes=10_000)
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
    assert len(names) == 6 and names == [f"train-{i:05d}-of-00006.tfrecord" for i in range(6)]
    for name, shard in description["shards"].items():
        data = (output / name).read_bytes()
        assert shard["bytes"] == len(data) and int(shard["crc32c"], 16) == google_crc32c.value(data)
        assert shard["records"] == sum(shard["languages"].values()) == len(list(read_all(output / name, print)))
    assert sum(shard["records"] for shard in description["shards"].values()) == 1089 + 228
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == [".out.lock"]


BEAM_TWICE = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner --direct_runner_bundle_repeat=1"
EVERYTHING = {"shuffle": True, "drop_duplicates": "both", "filters": Filters(max_images_per_text=2)}


@pytest.mark.parametrize("settings, beam", [
    (EVERYTHING, ""), pytest.param({}, "", marks=pytest.mark.slow),
    pytest.param(EVERYTHING, BEAM_TWICE, marks=pytest.mark.slow),
])  # fmt: skip
def test_nothing_but_the_input_decides_the_bytes(tmp_path, settings, beam):
    """Neither the order of sources and of elements, nor the number of workers, nor work that Beam does twice."""
    sources = write_sources(tmp_path, pairs=200)
    expected = contents(run(sources, tmp_path / "a", **settings))
    assert contents(run(sources[::-1], tmp_path / "b", workers=2, **settings)) == expected
    if beam:
        assert contents(run(sources, tmp_path / "c", beam=beam, **settings)) == expected


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupted_conversion_goes_on(small_shards, tmp_path, monkeypatch, after):
    sources, whole = small_shards
    shards, done = sum(name.endswith(".tfrecord") for name in whole), []

    def stopping(self, number, write=WriteShard.__call__):
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(number)
        return write(self, number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="run the same command again"):
        patch.setattr(WriteShard, "__call__", stopping)
        run(sources, tmp_path / "out", shard_megabytes=0)
    assert not (tmp_path / "out").exists()
    parts = tmp_path / ".out.converting" / "parts"
    before = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.tfrecord")}
    assert len(list(parts.glob("*.json"))) == after
    again = []

    def counting(self, number, write=WriteShard.__call__):
        again.append(number)
        assert all((parts / name).stat().st_mtime_ns == mtime for name, mtime in before.items())  # kept as they are
        return write(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(WriteShard, "__call__", counting)
        assert contents(run(sources, tmp_path / "out", shard_megabytes=0)) == whole
    assert not set(again) & set(done) and len(again) + len(done) == shards


def test_a_kill_while_shards_get_their_names(small_shards, tmp_path, monkeypatch):
    sources, whole = small_shards
    for after in (0, 1, 5):
        calls = []

        def stopping(folder, part, name, rename=shards.rename_part, calls=calls, after=after):
            calls.append(name)
            if len(calls) > after:
                raise KeyboardInterrupt
            rename(folder, part, name)

        output = tmp_path / f"out{after}"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(shards, "rename_part", stopping)
            run(sources, output, shard_megabytes=0)
        assert contents(run(sources, output, shard_megabytes=0)) == whole


def test_left_over_files_and_parts_that_changed(small_shards, tmp_path, monkeypatch):
    """What a killed run left is not in the way, and a part that is not as its manifest says is made anew."""
    sources, whole = small_shards
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(convert, "assemble_data_set", interrupt)
        run(sources, tmp_path / "out", shard_megabytes=0)
    parts = tmp_path / ".out.converting" / "parts"
    (parts / ".000000.text_pairs.train.0000.tfrecord.1.partial").write_bytes(b"half")
    victim = sorted(parts.glob("*.tfrecord"))[2]
    victim.write_bytes(victim.read_bytes()[:-5])
    with pytest.raises(UserError, match="but its manifest says .*Run the same command again"):
        run(sources, tmp_path / "out", shard_megabytes=0)
    assert contents(run(sources, tmp_path / "out", shard_megabytes=0)) == whole


def test_two_attempts_at_one_shard_at_once(tmp_path):
    """Engines start a shard a second time before the first attempt is over: both write the same, whichever is last."""
    sources = write_sources(tmp_path)
    parsed = convert.in_order([parse_source(source, KINDS) for source in sources])
    for source in parsed:
        source.check()
    plan = convert.make_plan(parsed, Settings(unit_bytes=10_000, max_skipped_fraction=1.0), tmp_path / "work")
    (tmp_path / "work" / "parts").mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        attempts = [pool.submit(lambda: WriteShard(plan)(0)) for _ in range(4)]
        assert [attempt.result() for attempt in attempts] == [None] * 4
    names = sorted(path.name for path in (tmp_path / "work" / "parts").iterdir())
    assert all(name.startswith("000000.") for name in names) and "000000.json" in names
    manifest = shards.read_manifest(tmp_path / "work", 0)
    for part in manifest.parts:
        data = (tmp_path / "work" / "parts" / part.name).read_bytes()
        assert len(data) == part.bytes and google_crc32c.value(data) == int(part.crc32c, 16)


@pytest.mark.slow
def test_kills_at_any_moment_and_the_same_command_again(tmp_path):
    """Eight kills, of a worker or of all, then to the end: the same bytes, and finished shards are not touched."""
    sources = write_sources(tmp_path, pairs=20_000)
    whole = contents(run(sources, tmp_path / "whole", shard_megabytes=0))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(sources=sources, output=str(tmp_path / "out")))
    parts, kept, draw = tmp_path / ".out.converting" / "parts", {}, random.Random(0)
    for kill in range(8):
        process = subprocess.Popen([sys.executable, program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        time.sleep(draw.uniform(0.5, 4))
        everyone = children(process.pid)
        if kill % 2 or len(everyone) < 2:
            process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(max(everyone), signal.SIGKILL)
        process.communicate(timeout=60)
        deadline = time.time() + 20
        while any(map(alive, everyone)) and time.time() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, everyone))
        if parts.exists():
            now = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.tfrecord")}
            done = {path.name for path in parts.glob("*.json")}
            assert all(now[name] == mtime for name, mtime in kept.items())
            kept = {name: mtime for name, mtime in now.items() if f"{name[:6]}.json" in done}
    assert contents(run(sources, tmp_path / "out", shard_megabytes=0)) == whole


PROGRAM = """
import pathlib, sys
sys.path.insert(0, "tests")
from convert_data import run
if __name__ == "__main__":
    run({sources!r}, pathlib.Path({output!r}), workers=2, shard_megabytes=0)
"""


def test_a_finished_data_set_is_left_alone(tmp_path):
    sources = write_sources(tmp_path)
    output = run(sources, tmp_path / "out")
    before = (output / "dataset.json").stat().st_mtime_ns
    assert run(sources, tmp_path / "out", workers=5, max_skipped_fraction=0.9) == output
    assert (output / "dataset.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="holds another data set, with settings"):
        run(sources, tmp_path / "out", image_size=100)


def test_an_unfinished_conversion_of_something_else_is_kept_and_a_damaged_plan_is_one_line(tmp_path, monkeypatch):
    sources = write_sources(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(convert, "assemble_data_set", interrupt)
        run(sources, tmp_path / "out")
    with pytest.raises(UserError, match="unfinished work on other sources"):
        run(sources[:1], tmp_path / "out")
    plan = tmp_path / ".out.converting/plan.json"
    plan.write_bytes(plan.read_bytes()[:100])
    with pytest.raises(UserError, match=f"{plan} is not valid JSON: [^\n]* Start again with --restart.$"):
        run(sources, tmp_path / "out")
    parsed = [parse_source(source, KINDS) for source in sources[:1]]
    settings = Settings(workers=0, max_skipped_fraction=1.0)
    convert.convert(parsed, tmp_path / "out", settings, restart=True, progress=False)
    assert {pair.language_b for pair in pairs_in(tmp_path / "out")} == {"en"}


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_too_much_that_is_unusable_stops_the_conversion(tmp_path):
    (tmp_path / "bad.tsv").write_text("".join(f"a{n}\tb\n" if n % 10 else "no tab\n" for n in range(5000)))
    source = f"pairs:{tmp_path}/bad.tsv,language_b=de"
    with pytest.raises(UserError) as error:
        run([source], tmp_path / "out", max_skipped_fraction=0.05)
    message = str(error.value)
    assert "500 of 5000 captions and pairs (500 x row with the wrong number of columns, first at" in message
    assert f"{tmp_path}/bad.tsv:1), more than --max_skipped_fraction=0.05" in message
    assert len(pairs_in(run([source], tmp_path / "out", max_skipped_fraction=0.2))) == 4500


def test_the_first_of_many_files_may_be_unusable(tmp_path):
    """60 of 7,200 are less than 1%, however many they are of what was read when they come."""
    for number in range(120):
        row = "picture\tcaption {}\n" if number else "caption {}\n"
        (tmp_path / f"{number:03d}.tsv").write_text("".join(row.format(60 * number + line) for line in range(60)))
    sources = [f"pairs:{tmp_path}/*.tsv,language_b=de"]
    for output, megabytes in ((tmp_path / "one", 64), (tmp_path / "many", 0)):
        assert len(pairs_in(run(sources, output, shard_megabytes=megabytes, max_skipped_fraction=0.01))) == 7140
    with pytest.raises(UserError, match=r"60 of \d+ captions and pairs read so far, of about .* in all .*, more than"):
        run(sources, tmp_path / "out", shard_megabytes=0, max_skipped_fraction=0.001)


def test_two_processes_make_one_data_set(tmp_path, monkeypatch, caplog):
    sources, begun, go_on, shards = write_sources(tmp_path), threading.Event(), threading.Event(), []

    def slowly(self, number, write=WriteShard.__call__):
        shards.append(number)
        begun.set()
        assert go_on.wait(60)
        return write(self, number)

    monkeypatch.setattr(WriteShard, "__call__", slowly)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # each with its own file for the lock, as two processes
        first = pool.submit(run, sources, tmp_path / "out")
        assert begun.wait(60)
        second = pool.submit(run, sources, tmp_path / "out")
        while "Waiting for another process" not in caplog.text and not second.done():
            time.sleep(0.01)
        go_on.set()
        assert first.result() == second.result() == tmp_path / "out"
    assert len(shards) == len(set(shards)) and "Waiting for another process" in caplog.text


def test_a_full_disk_is_one_line_and_the_conversion_goes_on_later(tmp_path, monkeypatch):
    sources = write_sources(tmp_path)
    whole = contents(run(sources, tmp_path / "whole"))

    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="Cannot write to .*No space left on device"):
        patch.setattr(convert.PartWriter, "_write", full)
        run(sources, tmp_path / "out")
    assert contents(run(sources, tmp_path / "out")) == whole


def test_memory_does_not_grow_with_the_input(tmp_path, monkeypatch):
    """A unit without end is written as it is read: what is in memory at a time does not depend on how far it was."""
    (tmp_path / "any.tsv").write_text("x\ty\n")
    peaks = []

    def long(self, unit, reading):
        for number in range(3_000):
            if number in (600, 2_999):
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
            yield {"0": f"a sentence with the number {number}", "1": f"eine Zahl {number}"}, f"line {number}"

    monkeypatch.setattr(KINDS["pairs"], "read", long)
    plan = convert.make_plan([parse_source(f"pairs:{tmp_path}/any.tsv,language_b=de", KINDS)], Settings(), tmp_path)
    (tmp_path / "parts").mkdir()
    write = WriteShard(plan)
    tracemalloc.start()
    try:
        write(0)
    finally:
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_the_command_does_without_tensorflow(tmp_path):
    """Its import would cost every worker seconds and hundreds of megabytes; one of its versions excludes Beam's gcp."""
    flags = [f"--output={tmp_path}/out", "--workers=0", "--max_skipped_fraction=0.1"]
    program = f"""
import runpy, sys
sys.argv = {["mural", "convert", *write_sources(tmp_path), *flags]!r}
try:
    runpy.run_module("mural_tf", run_name="__main__")
except SystemExit as end:
    assert not end.code, end
from mural_tf.ingest.convert import KINDS, convert
from mural_tf.ingest.source import Filters, Settings, parse_source
from mural_search.tables.product_table import TableRequest
settings = Settings(workers=0, max_skipped_fraction=1.0, drop_duplicates="both", filters=Filters(max_images_per_text=9))
convert([parse_source("records:{tmp_path}/out", KINDS)], {str(tmp_path / "again")!r}, settings, progress=False)
assert not any(name.partition(".")[0] in ("tensorflow", "keras", "tf_keras") for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train: 228 images, 228 captions\ntrain: 1089 text pairs\nskipped 22 x missing image" in done.stdout


def test_training_takes_its_counts_from_the_description(tmp_path):
    """Nothing is read for them, unless a file is not as it was described."""
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\n")
    (tmp_path / "b.tsv").write_text("drei\tthree\n")
    pairs = [f"pairs:{tmp_path}/a.tsv,language_b=pt-BR", f"pairs:{tmp_path}/b.tsv,language_a=de,language_b=en"]
    output = run([*write_sources(tmp_path)[2:], *pairs], tmp_path / "out", shard_megabytes=0)
    for kind, parse, key, counts in (
        ("image_text", parse_image_text, "language", {"en": 228}),
        ("text_pairs", parse_text_pair, "language_b", {"en": 1, "pt-BR": 2}),
    ):
        files = list_files(output, kind, "train")
        assert stated_languages(files, parse, key) == counts
        assert stated_languages(files, lambda serialized: None, key) is None
    with open(files[0], "ab") as file:
        file.write(b"more")
    assert stated_languages(files, parse_text_pair, "language_b") is None


def test_a_dry_run_writes_nothing(tmp_path):
    sources = [parse_source(source, KINDS) for source in write_sources(tmp_path)]
    before = sorted(tmp_path.rglob("*"))
    flags = "--runner=FlinkRunner --flink_master=h:1 --sdk_container_image=me/mural:1"
    text = convert.describe_plan(sources, tmp_path / "out", Settings(drop_duplicates="pair", beam=flags))
    assert sorted(tmp_path.rglob("*")) == before
    assert "3 sources" in text and "Decide duplicate pair" in text and "Write" in text
    assert "FlinkRunner with --runner=FlinkRunner --flink_master=h:1" in text and "Container: me/mural:1" in text


def test_other_ways_to_call_the_command(capsys):
    assert run_here(COMMANDS, "convert", "ops:x", "--output=x") == 1
    assert capsys.readouterr().err.startswith("Error: Unknown source 'ops:x'")
    assert run_here(COMMANDS, "convert", "--list") == 0
    listed = capsys.readouterr().out
    assert all(f"{kind}:PATH" in listed for kind in KINDS)


@pytest.mark.slow
def test_the_protocol_that_other_engines_speak(tmp_path):
    """Beam's own job service, with workers in a pool that it does not start: as Flink and Spark are spoken to."""
    sources = write_sources(tmp_path)
    settings = {"drop_duplicates": "pair", "filters": Filters(max_images_per_text=2)}
    expected = contents(run(sources, tmp_path / "a", **settings))
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the pool starts "python"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        pool_port = probe.getsockname()[1]
    programs = [
        ["apache_beam.runners.portability.local_job_service_main", f"--port_file={tmp_path}/port"],
        ["apache_beam.runners.worker.worker_pool_main", f"--service_port={pool_port}"],
    ]
    servers = [
        subprocess.Popen([sys.executable, "-m", *program], env=environment, stderr=subprocess.DEVNULL)
        for program in programs
    ]
    try:
        deadline = time.time() + 60
        while not ((tmp_path / "port").exists() and (tmp_path / "port").read_text()) and time.time() < deadline:
            time.sleep(0.1)
        port = (tmp_path / "port").read_text()
        flags = f"--runner=PortableRunner --job_endpoint=localhost:{port} --environment_type=EXTERNAL"
        flags += f" --environment_config=localhost:{pool_port}"
        assert contents(run(sources, tmp_path / "b", beam=flags, **settings)) == expected
        (tmp_path / "bad.tsv").write_text("no tab\n" * 2000)
        with pytest.raises(UserError, match="Too much is unusable: 2000 of 2000"):
            bad = [f"pairs:{tmp_path}/bad.tsv,language_b=de"]
            run(bad, tmp_path / "c", beam=flags, max_skipped_fraction=0.1)
    finally:
        for server in servers:
            server.kill()
            server.wait()


def test_engines_that_are_none_are_one_line(tmp_path):
    flags = "--runner=PortableRunner --job_endpoint=localhost:1 --job_server_timeout=1"
    for beam, message in ((flags, "Timeout"), ("--runner=Nonsense", "Unexpected pipeline runner: Nonsense")):
        with pytest.raises(UserError, match=f"The engine failed: .*{message}.*what is finished is kept") as error:
            Engine(beam=beam).map(Step("Note", Note, (tmp_path,)), [1], tmp_path)
        assert "\n" not in str(error.value)
