"""Several replicas compute the loss and the gradients of one: each case in a process of its own."""

import os
import subprocess
import sys

import numpy as np
import pytest
import toy_data

SCRIPT = """
import sys, numpy as np, tensorflow as tf, toy_data
from mural_tf.backend import keras
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.encoders.kernels import set_fusion
from mural_tf.models.build import build_model
from mural_tf.models.step import compute_gradients
from mural_tf.training.fit import compile_model

replicas, folder, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
set_fusion("off")  # compiling takes longer than computing here
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
results = {}
for case in sys.argv[4:]:
    method, chunks, group = case.split(",")
    config = toy_data.toy_config(folder, method)
    config.image_tower.frozen = group == "frozen"
    config.image_tower.batch_norm_group = "local" if group == "frozen" else group
    config.loss.label_smoothing = 0.1
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = build_model(config, toy_data.toy_tokenizer().vocabulary_size)
        compile_model(model, config)
    batch = next(iter(training_batches(config, toy_data.toy_tokenizer(), streams=model.streams)))
    batch = {name: v for name, v in batch.items() if not name.endswith(("_place", "_tally", "_seconds"))}

    def part(context):
        replica = context.replica_id_in_sync_group
        return tf.nest.map_structure(lambda v: tf.split(v, replicas)[replica], batch)

    def step(mine):
        context = tf.distribute.get_replica_context()
        found = compute_gradients(model, mine, tf.constant([1, 2]), int(chunks))
        logs = context.all_reduce("sum", found.logs)
        reached[:] = [v for v, g in zip(model.trainable_variables, found.by_optimizer["joint"]) if g is not None]
        present = [g for g in found.by_optimizer["joint"] if g is not None]
        moments = [tf.reduce_mean(context.all_gather(found.moments[layer][1][None], axis=0), axis=0)
                   for layer in model.normalization_layers()]
        return logs, context.all_reduce("sum", present), moments

    reached = []  # the variables that have a gradient
    parts = strategy.experimental_distribute_values_from_function(part)
    logs, gradients, moments = tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0],
                                            strategy.run(step, args=(parts,)))
    results.update({f"{case}:{name}": value for name, value in logs.items()})
    results.update({f"{case}:{v.name}": g for v, g in zip(reached, gradients)})
    results.update({f"{case}:moments{i}": value for i, value in enumerate(moments)})
np.savez(out, **results)
"""


def gradients_of(replicas, folder, cases):
    out = folder / f"{replicas}.npz"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(replicas), str(folder), str(out), *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    images = toy_data.image_text_records(32)
    for twin in range(1, 32, 2):  # duplicates, which mostly fall on another replica than their twins
        images[twin].image, images[twin].image_id = images[twin - 1].image, images[twin - 1].image_id
    return toy_data.write_toy_data(folder, images, toy_data.text_pairs(40))


CASES = ["mural,1,global", "mural,2,frozen", "align,1,8"]
FURTHER_CASES = ["etcl,2,frozen", "globetrotter,1,global", "labse,2,frozen"]


@pytest.fixture(scope="module")
def one(folder):
    return gradients_of(1, folder, CASES)


@pytest.mark.slow  # test_contract.py has two replicas of every method with small towers
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_have_the_gradients_of_one(folder, one, replicas):
    """With duplicates, label smoothing, micro-batches, and BatchNorm over all examples or over groups of 8."""
    compare(one, gradients_of(replicas, folder, CASES))
    assert len(one) > 300
    assert all(np.max(np.abs(one[f"{case}:log_temperature:0"])) > 1e-3 for case in CASES)


@pytest.mark.slow
def test_replicas_have_the_gradients_of_one_with_other_methods(folder):
    """Also the streams, embeddings and measures that MURAL does not have."""
    one = gradients_of(1, folder, FURTHER_CASES)
    compare(one, gradients_of(2, folder, FURTHER_CASES))
    assert len(one) > 200 and "globetrotter,1,global:alpha_above_zero" in one


def compare(one, several):
    assert set(one) == set(several)
    for name, expected in one.items():
        bound = 1e-4 * max(1.0, np.max(np.abs(expected)))
        assert np.max(np.abs(expected - several[name])) < bound, name
