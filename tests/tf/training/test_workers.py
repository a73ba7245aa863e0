"""Several workers: two processes on loopback train to the weights of one, and one of them writes."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import toy_data
import worker_run
from object_store import object_store, stored

from mural_tf.data import records
from mural_tf.data.streams.epochs import PLACE
from mural_tf.demo.shapes import build_shapes
from mural_tf.training.checkpoints import list_checkpoints
from mural_tf.training.fit import rows_of_replicas
from mural_tf.training.strategy import build_strategy

SCRIPT = pathlib.Path(__file__).parents[3] / "run_pretrain.py"


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(command, index=None, ports=()):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # of the tests: the commands set it
    if index is not None:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output_of(process):
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    return output


def two_workers(data, workdir, read, steps):
    """Two workers, each a process that starts from nothing; their weights are in WORKDIR-STEPS-WORKER.npz."""
    ports = free_ports(2)
    processes = []
    for worker in range(2):
        arguments = map(str, (data, workdir, f"{workdir}-{steps}-{worker}.npz", read, steps))
        processes.append(start([sys.executable, worker_run.__file__, *arguments], worker, ports))
    for process in processes:
        output_of(process)
    return [np.load(f"{workdir}-{steps}-{worker}.npz") for worker in range(2)]


@pytest.mark.slow  # replicas in one process: test_contract.py
def test_two_workers_train_as_one_process(tmp_path, eager):
    toy_data.write_toy_features(tmp_path / "data", size=16, count=40)

    worker_run.train(tmp_path / "data", tmp_path / "one", tmp_path / "one.npz")
    two = two_workers(tmp_path / "data", tmp_path / "two", "all", 6)
    one = np.load(tmp_path / "one.npz")
    initial = max(np.max(np.abs(one[name])) for name in one.files if name != "position")
    assert initial > 0.01 and len(one.files) > 10
    for worker in two:
        assert set(worker.files) == set(one.files)
        for name in one.files:
            assert np.max(np.abs(worker[name] - one[name])) < 2e-4, name
    # One of the workers wrote: each row and each checkpoint once.
    rows = [[json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
            for name in ("one", "two")]  # fmt: skip
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]] == [3, 6]
    for name in ("train/loss", "train/temperature", "train/gradient_norm"):
        assert max(abs(a[name] - b[name]) for a, b in zip(*rows)) < 1e-3, name
    assert len(list((tmp_path / "two/tensorboard").iterdir())) == 1
    assert_same_checkpoint(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow  # three runs of two processes
def test_workers_that_share_the_data_go_on_where_they_were(tmp_path):
    images = toy_data.image_text_records(48)
    for index, image in enumerate(images):
        image.image = np.random.default_rng(index).normal(size=16).astype("<f4").tobytes()
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "train", images, shards=5)
    records.write_records(tmp_path / "data", records.TEXT_PAIRS, "train", toy_data.text_pairs(48), shards=3)
    whole = two_workers(tmp_path / "data", tmp_path / "whole", "share", 6)
    first = two_workers(tmp_path / "data", tmp_path / "stopped", "share", 3)
    rest = two_workers(tmp_path / "data", tmp_path / "stopped", "share", 6)
    assert first[0]["position"].shape == (2, 1, PLACE)  # of each of the two input pipelines
    assert not np.array_equal(*whole[0]["position"])
    assert np.array_equal(whole[0]["position"], whole[1]["position"])
    for worker in (0, 1):
        for name in whole[worker].files:
            assert np.array_equal(whole[worker][name], rest[worker][name]), name


@pytest.mark.slow  # two programs that start TensorFlow
def test_a_pipeline_in_another_process_needs_nothing_of_ours(tmp_path):
    data = toy_data.write_toy_data(tmp_path)
    program = os.path.join(os.path.dirname(worker_run.__file__), "remote_pipeline.py")
    process = start([sys.executable, program, str(data), str(tmp_path)])
    output, errors = process.communicate(timeout=600)
    assert "equal" in output, errors[-3000:]  # how it ends, with its server gone, is TensorFlow's


def assert_same_checkpoint(one, two):
    """What two workers save is what one does, names and all, so that either can go on from it."""
    one, two = (tf.train.load_checkpoint(tf.train.latest_checkpoint(path / "checkpoints")) for path in (one, two))
    assert one.get_variable_to_shape_map() == two.get_variable_to_shape_map()
    for name in one.get_variable_to_shape_map():
        if "VARIABLE_VALUE" in name:
            assert np.max(np.abs(one.get_tensor(name) - two.get_tensor(name))) < 2e-4, name


def test_workers_get_their_rows_of_the_same_batches():
    random, streams = np.random.default_rng(0), ("image_text", "text_text")

    def batch(number):
        rows = {
            "image": random.normal(size=(16, 4, 4, 3)),
            "text_a_id": random.integers(0, 9, 16),
            "text_a": {"input_word_ids": random.integers(0, 9, (16, 5)), "length": random.integers(0, 9, 16)},
        }
        of_all = {f"{stream}_{end}": np.full([1, 1, 3], number) for stream in streams for end in ("place", "tally")}
        return {**rows, **of_all, "data_wait_seconds": np.full([1], number)}

    made, of_all = [batch(0), batch(1)], {f"{stream}_{end}" for stream in streams for end in ("place", "tally")}
    batches = tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda *values: tf.stack(values), *made))
    whole = list(batches.as_numpy_iterator())
    parts = [list(rows_of_replicas(batches, 4, worker, 2).as_numpy_iterator()) for worker in range(2)]
    for step, batch in enumerate(whole):
        of_step = [part for worker in parts for part in worker[2 * step : 2 * step + 2]]  # in the replicas' order
        for name in set(batch) - of_all - {"data_wait_seconds"}:
            joined = tf.nest.map_structure(lambda *values: np.concatenate(values), *[part[name] for part in of_step])
            tf.nest.map_structure(np.testing.assert_array_equal, joined, batch[name])
        assert all(part["data_wait_seconds"].shape == (1,) for part in of_step)
        for name in of_all:
            assert all(np.array_equal(part[name], batch[name]) for part in of_step)


SMALL = ["--config=configs/shapes_smoke.py", "--config.data.read=all", "--config.train.log_every=5",
         "--config.train.checkpoint_every=10", "--config.train.image_text_batch=16",
         "--config.train.text_text_batch=16", "--config.train.export=False"]  # fmt: skip


def small_run(data, workdir, steps, *options):
    places = [f"--config.data.directory={data}", f"--workdir={workdir}"]
    options = [*places, f"--config.train.steps={steps}", *options]
    return [sys.executable, str(SCRIPT), *SMALL, *options]


def wait_for(condition, processes, seconds=400):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline
        assert all(process.poll() is None for process in processes), [process.communicate() for process in processes]
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_that_dies_ends_the_other_with_a_line_and_both_go_on(tmp_path, killed):
    """The same command starts both again; what SIGTERM to one of them saves, they go on from, too."""
    build_shapes(tmp_path / "shapes")
    command, ports = small_run(tmp_path / "shapes", tmp_path / "run", 2000), free_ports(2)
    processes = [start(command, i, ports) for i in range(2)]
    wait_for(lambda: (tmp_path / "run/checkpoints/ckpt-10.index").exists(), processes)
    processes[killed].kill()
    _, errors = processes[1 - killed].communicate(timeout=300)
    processes[killed].communicate()
    assert processes[1 - killed].returncode == 1
    assert errors.startswith("Error: Another worker of this run ended or cannot be reached (")
    assert errors.count("\n") == 1, errors
    saved = list_checkpoints(tmp_path / "run/checkpoints")
    processes = [start(command, i, ports) for i in range(2)]
    wait_for(lambda: list_checkpoints(tmp_path / "run/checkpoints") != saved, processes)
    processes[1 - killed].terminate()
    printed = [output_of(process) for process in processes]
    assert "Stopped by SIGTERM; everything is saved" in printed[1 - killed]
    assert "Stopped by a signal of another worker; everything is saved" in printed[killed]
    steps = [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert list_checkpoints(tmp_path / "run/checkpoints")[-1].endswith(f"ckpt-{steps[-1]}")


@pytest.mark.slow
def test_two_workers_with_a_workdir_in_a_store(tmp_path, monkeypatch):
    """The chief writes it, and the other gets from it what it needs, also to go on."""
    pytest.importorskip("tensorflow_io", reason="s3:// needs tensorflow-io")
    build_shapes(tmp_path / "shapes")
    with object_store(monkeypatch) as client:
        monkeypatch.chdir(tmp_path)
        modules = "from mural_lite import remote_folders; from mural_tf import commands"
        program = f"{modules}; remote_folders.EVERY = 0.5; commands.run()"
        command, ports = small_run(tmp_path / "shapes", "s3://bucket/run", 60), free_ports(2)
        command[1:2] = ["-c", program, "pretrain"]
        for goes_on in (False, True):
            processes = [start(command, i, ports) for i in range(2)]
            if not goes_on:
                wait_for(lambda: "checkpoints/ckpt-10.index" in stored(client, "run"), processes)
                processes[1].terminate()
            printed = [output_of(process) for process in processes]
        assert "Next:" in printed[0] and "Next:" not in printed[1]
        found = stored(client, "run")
        assert {"summary.json", "checkpoints/ckpt-60.index"} <= set(found) and "in_use.lock" not in found
        rows = [json.loads(line) for line in found["metrics.jsonl"].decode().splitlines()]
        assert [row["step"] for row in rows if "train/loss" in row] == list(range(5, 61, 5))
        assert not (tmp_path / "s3:").exists()


def test_float32_means_float32_on_a_tpu(monkeypatch):
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: tpu)
    calls = []
    monkeypatch.setattr(
        tf.config, "experimental_connect_to_cluster", lambda resolver: calls.append(("connect", resolver))
    )
    monkeypatch.setattr(
        tf.tpu.experimental, "initialize_tpu_system", lambda resolver: calls.append(("begin", resolver))
    )
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda resolver: f"strategy of {resolver}")
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        assert build_strategy("local") == "strategy of local"
        assert calls == [("connect", "local"), ("begin", "local")]
        assert not tf.config.experimental.tensor_float_32_execution_enabled()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
