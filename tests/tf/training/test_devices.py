"""What a machine has, as the run says it, and what follows from it. The devices are made up: there are none here."""

import types

import contract
import pytest
import tensorflow as tf

from mural_lite.errors import UserError
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


def test_a_card_is_shared_and_the_similarity_stays_float32(card, monkeypatch):
    calls = []
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *a: calls.append(a[1]))
    monkeypatch.setattr(tf.config.experimental, "enable_tensor_float_32_execution", lambda on: calls.append(on))
    strategies.prepare_gpus()
    assert not calls
    card((8, 0))
    strategies.prepare_gpus()
    assert calls == [True, False]
    assert strategies.describe_devices(tf.distribute.get_strategy()) == "Devices: 1 GPU (A card)."


def test_a_card_that_tensorflow_cannot_use_is_said(tmp_path, monkeypatch):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0/information").write_text("Model: \t NVIDIA H100\nIRQ: 7\n")
    assert strategies.nvidia_cards(str(tmp_path)) == ["NVIDIA H100"] and strategies.nvidia_cards("/nowhere") == []
    monkeypatch.setattr(strategies, "nvidia_cards", lambda: ["NVIDIA H100"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    said = strategies.describe_devices(tf.distribute.get_strategy())
    assert said.startswith("Devices: CPU, ") and "NVIDIA H100" in said and "-e '.[gpu]'" in said
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as the user wants it
    assert "NVIDIA" not in strategies.describe_devices(tf.distribute.get_strategy())


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
