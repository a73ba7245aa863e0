"""What machines, workers and forecasts refuse, in one line each: the call, the words that must occur."""

import urllib.error

import pytest
import tensorflow as tf
import toy_data
from refusals import assert_refused
from test_workers import cluster

from mural_tf.runs.dry_run import dry_run
from mural_tf.training.strategy import build_strategy


def tf_config(text):
    def call():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TF_CONFIG", text)
            build_strategy()

    return call


def tpu(name, failure):
    def call():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
            build_strategy(name)

    def resolver(tpu):
        raise failure

    return call


def planned(machine, **data):
    def call():
        config = toy_data.toy_config("/nowhere")
        config.data.update(data)
        dry_run(config, machine)

    return call


WITHOUT_TPUS = tf.errors.InvalidArgumentError(
    None, None, "No OpKernel was registered to support Op 'ConfigureDistributedTPU' used by {{node}}"
)
NO_SUCH_HOST = urllib.error.URLError(OSError(-2, "Name or service not known"))  # no metadata server
REFUSALS = {
    **{f"TF_CONFIG={text}": (tf_config(text), ["TF_CONFIG", *words]) for text, words in [
        ("{", ["cannot be used"]), ("[]", ["TypeError"]), ('{"cluster": {"worker": ["a:1"]}}', ["KeyError: 'task'"]),
        (cluster("worker", 2), ["task worker 2", "{'worker': 2}"]), (cluster("worker", "first"), ["'first'"]),
        (cluster("ps", 0, ps=["c:1"]), ["of the kind ps"]), (cluster("worker", 0, ps=["c:1"]), ["of the kind ps"]),
        (cluster("evaluator", 0), ["of the kind evaluator"])]},
    "a TensorFlow without TPUs": (tpu("local", WITHOUT_TPUS), ["without TPU support", "install tensorflow-tpu"]),
    "a TPU's name elsewhere": (tpu("typo", NO_SUCH_HOST), ["The TPU 'typo'", "by its name on Google Cloud"]),
    **{f"the slice {name!r}": (planned(name), [f"Unknown --tpu={name} of a dry run", *words]) for name, words in [
        *((name, ["Google Cloud", "v4-32", "v5litepod"]) for name in ("v4", "v9-8", "v4-0", "V4-8", "gpu:a100x8", "")),
        ("v4-12", ["the slices of a v4 are v4-8, v4-16"]), ("v3-4", ["v3-8, v3-32"]), ("v6e-2", ["v6e-1, v6e-4"])]},
    "no data": (planned("here"), ["/nowhere does not exist"]),
    "data of another kind": (planned("here", source="web"), ["data.source 'web'"]),
    "batches that replicas cannot share": (
        planned("v4-64"), ["image_text_batch=16 must be a multiple of 32", "v4-64 has 32 replicas"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    assert_refused(*REFUSALS[name])
