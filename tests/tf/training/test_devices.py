"""What a machine has, as the run says it, and what follows from it. The devices are made up: there are none here."""

import types
import urllib.error

import contract
import pytest
import tensorflow as tf

from mural_lite.errors import UserError, install_extra
from mural_tf.encoders import kernels
from mural_tf.training import strategy as strategies


@pytest.fixture
def card(monkeypatch):
    """A function that puts a card of a compute capability in the machine."""

    def put(capability):
        devices = [types.SimpleNamespace(name="GPU:0")]
        details = {"compute_capability": capability, "device_name": "A card"}
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: devices if kind == "GPU" else [])
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: devices if kind == "GPU" else [])
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)

    return put


@pytest.mark.parametrize("capability, expected", [
    ((7, 5), "float32"), ((8, 0), "mixed_bfloat16"), ((9, 0), "mixed_bfloat16")
])  # fmt: skip
def test_tensor_cores_compute_both_towers_in_bfloat16(card, capability, expected):
    card(capability)
    assert {kernels.dtype_policy("auto", tower).name for tower in ("image", "text")} == {expected}


def test_chains_are_compiled_on_cpus_or_where_it_is_asked_for(card):
    kernels.set_fusion("auto")
    assert kernels.compiles_fused()
    card((8, 0))
    assert not kernels.compiles_fused()
    assert kernels.set_fusion("on") == "auto" and kernels.compiles_fused()
    with pytest.raises(UserError, match="Unknown train.fused='yes': expected one of auto, on, off"):
        kernels.set_fusion("yes")


def test_cards_that_the_driver_sees(tmp_path):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0/information").write_text("Model: \t NVIDIA H100\nIRQ: 7\n")
    assert strategies.nvidia_cards(str(tmp_path)) == ["NVIDIA H100"] and strategies.nvidia_cards("/nowhere") == []


def test_a_pod_is_not_trained_with_folders_of_one_host(monkeypatch):
    pod, one = (tf.distribute.TPUStrategy.__new__(tf.distribute.TPUStrategy) for _ in range(2))
    hosts = {id(pod): 4, id(one): 1}
    monkeypatch.setattr(strategies, "input_pipelines", lambda strategy: hosts[id(strategy)])
    with pytest.raises(UserError, match="^data/mine: folders of this machine, but this TPU has 4 hosts"):
        strategies.check_places_of_pod(pod, ["gs://b/run", "data/mine"])
    strategies.check_places_of_pod(pod, ["gs://b/run", "gs://b/data"])
    strategies.check_places_of_pod(one, ["run", "data/mine"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["align", "mural"])
def test_a_step_that_is_compiled_whole_is_the_step(method):
    """XLA rounds otherwise: the losses of three steps agree to 1e-4 of their size."""
    losses = []
    for jit in (False, True):
        config = contract.toy_config(method, text_tower__dropout=0.0, train__jit=jit)
        model = contract.build(config)
        batch = contract.batch_of(model, config)
        if jit:
            dataset = tf.data.Dataset.from_tensors(batch).repeat(3)
            losses.append(model.fit(dataset, epochs=1, steps_per_epoch=3, verbose=0).history["loss"][0])
        else:  # without a graph, which takes longer
            losses.append(float([model.train_step(batch) for _ in range(3)][-1]["loss"]))
    assert abs(losses[0] - losses[1]) < 1e-4 * losses[0]


def test_devices_in_a_line(monkeypatch):
    cards = [types.SimpleNamespace(name=f"GPU:{number}") for number in range(3)]
    details = {"GPU:0": {"device_name": "B"}, "GPU:1": {}, "GPU:2": {"device_name": "B"}}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: {"GPU": cards}[kind])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda card: details[card.name])
    alone = tf.distribute.get_strategy()
    assert strategies.describe_devices(alone) == "Devices: 3 GPU (B, GPU:1)."
    grown = []

    def grow(card, on):
        grown.append((card.name, on))
        if card.name == "GPU:1":
            raise RuntimeError("is in use")

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", grow)
    monkeypatch.setattr(tf.config.experimental, "enable_tensor_float_32_execution", grown.append)
    strategies.prepare_gpus()
    assert grown == [*((card.name, True) for card in cards), False]
    cards.clear()
    strategies.prepare_gpus()
    assert len(grown) == 4
    monkeypatch.setattr(strategies.os, "sched_getaffinity", lambda process: {0: range(5)}[process])
    monkeypatch.setattr(strategies, "nvidia_cards", lambda: ["H", "A"])
    plain = "Devices: CPU, 5 processors."
    more = (
        f" An NVIDIA card is in this machine (H, A), but TensorFlow {tf.__version__} cannot use it: install the "
        f"libraries with {install_extra('gpu')}; see docs/devices.md."
    )
    for visible, said in (("0", plain + more), ("", plain), ("-1", plain)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert strategies.describe_devices(alone) == said
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert strategies.describe_devices(alone) == plain + more
    monkeypatch.setattr(strategies, "nvidia_cards", list)
    assert strategies.describe_devices(alone) == plain
    monkeypatch.setattr(tf.distribute, "TPUStrategy", types.SimpleNamespace)
    assert strategies.describe_devices(types.SimpleNamespace(num_replicas_in_sync=8)) == "Devices: 8 TPU cores."


CLUSTER = '{"cluster": {"worker": ["a:1", "b:1"]%s}, "task": {"type": "%s", "index": %s}}'
OTHERS = (
    "TF_CONFIG names tasks of the kind %s: all processes train alike here, each as a worker or the chief; parameter "
    "servers and evaluators do not exist."
)


@pytest.mark.parametrize("text,message", [
    (CLUSTER % ("", "worker", 1), None), (CLUSTER % ("", "worker", '"0"'), None),
    (CLUSTER % (', "chief": ["c:1"]', "chief", 0), None),
    (CLUSTER % ("", "worker", 2), "TF_CONFIG's task worker 2 is not in its cluster, which has {'worker': 2}."),
    (CLUSTER % ("", "worker", -1), "TF_CONFIG's task worker -1 is not in its cluster, which has {'worker': 2}."),
    (CLUSTER % ("", "chief", 0), "TF_CONFIG's task chief 0 is not in its cluster, which has {'worker': 2}."),
    (CLUSTER % (', "ps": []', "worker", 0), OTHERS % "ps"), (CLUSTER % ("", "evaluator", 0), OTHERS % "evaluator"),
    ("{}", "The environment variable TF_CONFIG cannot be used (KeyError: 'task'): expected {\"cluster\": {\"worker\": "
           '["host:port", …]}, "task": {"type": "worker", "index": 0}}.'),
])  # fmt: skip
def test_workers_of_a_cluster(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda: "several")
    if message is None:
        assert strategies.build_strategy() == "several"
    else:
        with pytest.raises(UserError) as raised:
            strategies.build_strategy()
        assert str(raised.value) == message


@pytest.mark.parametrize("error,reason", [
    (ValueError("first\nsecond"), "first"), (RuntimeError("ConfigureDistributedTPU is not there"), f"TensorFlow "
     f"{tf.__version__} here is built without TPU support. On a TPU VM install tensorflow-tpu in its place, see "
     "docs/devices.md"),
    (urllib.error.URLError("x"), "a TPU is known by its name on Google Cloud only, and this machine is not there"),
])  # fmt: skip
def test_a_tpu_that_cannot_be_used(error, reason, monkeypatch):
    def resolver(tpu):
        raise error

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
    with pytest.raises(UserError) as raised:
        strategies.build_strategy("mine")
    assert str(raised.value) == f"The TPU 'mine' cannot be used: {reason}. Leave --tpu empty for this machine."
