"""The dry run on this machine: steps that are measured, on the whole batch or a part of it, and the text."""

import dataclasses
import os
import types

import contract
import pytest
import toy_data
from snapshots import assert_snapshot

from mural_tf.runs.dry_run import describe_measurement
from mural_tf.training import cost


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy_data.write_toy_data(tmp_path_factory.mktemp("data"), count=48)


@pytest.fixture
def config(data):
    config = toy_data.toy_config(data)
    config.vocabulary.size = 100
    config.image_tower.update(dict(name="resnet", width=0.15625, depth=0.5))
    config.train.micro_batches = 2
    return config


@pytest.fixture
def hasty(monkeypatch):
    """Measures one step only."""
    monkeypatch.setattr(cost, "WARM_UP", 0.0)
    monkeypatch.setattr(cost, "SECONDS", 0.0)


@pytest.mark.slow  # whole steps are traced
@pytest.mark.parametrize("has_data,longest,measured", [(True, 0.0, (2, 2)), (True, 1e9, (16, 16)), (False, 1e9, None)])
def test_steps_of_this_machine(config, data, hasty, monkeypatch, has_data, longest, measured):
    """Of the whole batch, or of the smallest part that chunks divide; without data of values made up."""
    taken, training_batches = [], cost.training_batches

    def batches(config, *arguments, **options):
        taken.append((config.train.image_text_batch, config.train.text_text_batch))
        return training_batches(config, *arguments, **options)

    monkeypatch.setattr(cost, "training_batches", batches)
    monkeypatch.setattr(cost, "LONGEST", longest)
    config.image_tower.batch_norm_group = "4"
    if not has_data:
        config.data.directory = ""
    before = sorted(path.name for path in data.rglob("*"))
    found = cost.measure(config)
    assert sorted(path.name for path in data.rglob("*")) == before  # no vocabulary either
    assert taken == ([measured] if has_data else [])
    assert found.seconds > 0 and found.peak > 1e8 and found.share == (2 / 16 if longest == 0.0 else 1.0)
    assert found.rows == {"image": 16, "caption": 16, "text_a": 16, "text_b": 16}
    sizes = found.memory
    assert sizes["gradients"] == 4 * sum(found.parameters.values()) and sizes["moments"] > 2 * sizes["gradients"] - 100
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    text = describe_measurement(found)
    assert "Dry run of mural on this machine: 1 replica." in text and "Other programs" not in text
    assert ("of 12.50% of the batch" in text) == (longest == 0.0) and "input included)" in text
    assert f"with {found.share * 16:.0f} image, " in text
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    assert "Other programs are busy here (load 1000.0)" in describe_measurement(found)


@pytest.mark.parametrize("longest,parts", [(8.0, 1), (3.0, 4), (0.0, 16)])
def test_the_part_of_a_batch_that_is_measured(config, monkeypatch, longest, parts):
    """Batches of 64 and 32 in 2 chunks are cut in up to 16 parts. An eighth has 4 pairs and takes a second."""
    config.train.update(dict(image_text_batch=64, text_text_batch=32))
    monkeypatch.setattr(cost, "PROBE", 4)
    monkeypatch.setattr(cost, "LONGEST", longest)
    monkeypatch.setattr(cost, "_seconds_of_step", lambda model, config, tokenizer, parts, *_, **__: 8 / parts)
    assert cost._parts_to_measure(None, config, 1) == parts


def test_seconds_of_a_step_by_a_clock(config, monkeypatch):
    """Two steps in each call of 3 s: after warming up, four calls until 10 s are over."""
    clock = [100.0]

    def train(batches):
        clock[0] += 3.0
        return next(batches)

    model = types.SimpleNamespace(make_train_function=lambda: train, normalization_layers=list)
    monkeypatch.setattr(cost, "_batches_to_measure", lambda model, config, *_: [config.train.image_text_batch] * 9)
    monkeypatch.setattr(cost.time, "monotonic", lambda: clock[0])
    config.train.steps_per_execution = 2
    assert cost._seconds_of_step(model, config, None, 4, 1, limits=(1.0, 10.0)) == 12.0 / 8
    assert clock[0] == 115.0 and config.train.image_text_batch == 16


def test_the_lines_of_a_measurement(config, monkeypatch):
    """A step of 0.02 s, of which an eighth of the batch was measured."""
    found = cost.Measurement(
        config=config, replicas=2, parameters={"image tower": 1_234_567, "heads": 10}, rows={"image": 16, "text_a": 16},
        memory={"weights": 4.9e6, "moments": 9.9e12}, seconds=0.02, share=0.125, peak=3_000_000_000,
    )  # fmt: skip
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert_snapshot("training_dry_run", describe_measurement(found))
    whole = describe_measurement(dataclasses.replace(found, share=0.5))  # the part of one of two replicas
    assert "(measured in steps, input included)" in whole


@pytest.mark.slow  # whole steps are traced
def test_heads_on_cached_states(config, hasty):
    """Their states are made when training begins: steps are measured on a batch of the same sizes."""
    for tower in (config.image_tower, config.text_tower):
        tower.update(dict(frozen=True, cached=True))
    assert cost.measure(config).seconds > 0


@pytest.mark.slow  # a method each: other streams, heads and functions in place of towers
@pytest.mark.parametrize("model", ["globetrotter", "labse", "etcl"])
def test_other_methods(model, data, hasty):
    config = toy_data.toy_config(data, model)
    config.vocabulary.size = 100
    found = cost.measure(config)
    assert found.seconds > 0 and ("image" in found.rows) == (model != "labse")


def test_a_batch_has_the_ids_of_both_texts_where_only_one_is_embedded():
    """As the stream of text pairs gives them: the targets of the other side are found by its id."""
    config = contract.toy_config("translation_distillation", method__pivot_weight=0.0, method__cached=True)
    specs = cost.batch_specs(contract.build(config), config, 4, 6)
    assert "text_a" not in specs and specs["text_a_id"].shape == specs["text_b_id"].shape == [6]


def test_what_is_there_throughout_a_step_in_bytes():
    config = contract.toy_config("align")
    model = contract.build(config)
    memory = cost.memory_of_replica(model, config, 1)
    assert memory["weights"] == sum(variable.numpy().nbytes for variable in model.weights)
    assert memory["gradients"] == sum(variable.numpy().nbytes for variable in model.trainable_variables)


def test_texts_of_a_measured_batch_are_of_one_type_and_language():
    config = contract.toy_config("mule")
    batch = cost.batch_values(cost.batch_specs(contract.build(config), config, 4, 6))
    assert not batch["caption_language_id"].numpy().any()
    assert not batch["caption"]["input_type_ids"].numpy().any() and batch["caption"]["input_mask"].numpy().all()
