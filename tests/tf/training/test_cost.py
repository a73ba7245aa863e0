"""The dry run on this machine: steps that are measured, on the whole batch or a part of it, and the text."""

import dataclasses
import os
import types

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from snapshots import assert_snapshot

from mural_lite.errors import UserError
from mural_tf.runs.dry_run import describe_measurement, dry_run
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
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    assert "Other programs are busy here (load 1000.0)" in describe_measurement(found)


# Parts of a measurement, with made-up models and clocks.


def made_up_model(config):
    """Pictures, captions that are also masked, states of texts, and the vectors of a teacher."""
    tasks = {
        "captions": types.SimpleNamespace(stream="image_text", compares=("image", "caption", "cloze")),
        "pairs": types.SimpleNamespace(stream=cost.TEXT_PAIRS, compares=("text_a", "target", "caption")),
        "unused": types.SimpleNamespace(stream="views", compares=("view",)),
    }
    embeddings = {name: types.SimpleNamespace(part=name) for name in ("image", "caption", "cloze", "text_a", "target")}
    return types.SimpleNamespace(
        configuration=config, tasks=tasks, embeddings=embeddings, loss_weights=lambda: {"captions": 1.0, "pairs": 1.0},
        image_parts=("image",), token_parts=("caption", "cloze"), text_parts=("caption", "text_a"),
        text_encoder=types.SimpleNamespace(embedding_size=5), embedding_size=7,
    )  # fmt: skip


def test_the_batch_that_is_measured(config):
    """6 captions of 3 pictures, 4 pairs: shapes, types and values of all entries."""
    config.method["captions_per_image"] = 2
    model = made_up_model(config)
    streams = dict.fromkeys(("image", "caption", "cloze"), "image_text")
    assert cost.streams_of_parts(model) == {**streams, "text_a": "text_text", "target": "text_text"}
    specs = cost.batch_specs(model, config, 6, 4)
    tokens = dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), ([6, 8], "int32"))
    places = {**dict.fromkeys(("places", "targets"), ([6, 1], "int32")), "weights": ([6, 1], "float32")}
    expected = {
        "image_id": ([3], "int64"), "text_group_id": ([4], "int64"), "caption_id": ([6], "int64"),
        "image": ([3, 32, 32, 3], "uint8"), "caption": tokens, "caption_language_id": ([6], "int32"),
        "cloze": {**tokens, **places}, "cloze_id": ([6], "int64"), "cloze_language_id": ([6], "int32"),
        "text_a": ([4, 5], "float32"), "text_a_id": ([4], "int64"), "text_b_id": ([4], "int64"),
        "target": ([4, 7], "float32"), "target_id": ([4], "int64"),
    }  # fmt: skip
    assert tf.nest.map_structure(lambda spec: (spec.shape.as_list(), spec.dtype.name), specs) == expected
    values = cost.batch_values(specs)
    for name, value in values.items():
        for entry, array in value.items() if isinstance(value, dict) else [(name, value)]:
            if array.dtype == tf.int64:
                assert array.numpy().tolist() == list(range(len(array)))
            else:
                is_zero = entry == "input_type_ids" or entry.endswith("language_id")
                assert np.all(array.numpy() == (0 if is_zero else 1)), entry
            assert (array.shape.as_list(), array.dtype.name) == (
                expected[name] if entry == name else expected[name][entry]
            )


def test_parameters_and_bytes_of_a_replica(config, monkeypatch):
    """18 captions and 12 pairs over 3 replicas: the batch of the test above, twice."""
    config.method["captions_per_image"] = 2
    config.train.update(dict(image_text_batch=18, text_text_batch=12))
    model = made_up_model(config)
    variables = [tf.Variable(tf.zeros(shape)) for shape in ([2, 3], [5], [])]
    model.weights = [*variables, tf.Variable(1, dtype=tf.int64)]
    model.optimizers = {
        "a": types.SimpleNamespace(weights=variables[:2]),
        "b": types.SimpleNamespace(weights=variables[2:]),
    }
    tower = types.SimpleNamespace(trainable_variables=variables[:1])
    model.weights_by_part = lambda: {"tower": tower, "temperature": variables[2]}
    monkeypatch.setattr(cost, "trainable_parameters", lambda model: 12)
    assert cost.parameters(model) == {"tower": 6, "temperature": 1, "others": 5}
    pixels, ids, tokens = 3 * 32 * 32 * 3, 8 * (3 + 4 + 6 + 6 + 4 + 4 + 4), 4 * (6 * 8 * 6 + 6 * 3 + 2 * 6)
    assert cost.memory_of_replica(model, config, 3) == {
        "weights": 4 * 12 + 8, "moments": 4 * 12, "gradients": 4 * 12 * 2,
        "batches": 2 * (pixels + ids + tokens + 4 * 4 * (5 + 7)),
    }  # fmt: skip
    monkeypatch.setattr(cost, "trainable_parameters", lambda model: 7)
    assert cost.parameters(model) == {"tower": 6, "temperature": 1}
    monkeypatch.setattr(cost.resource, "getrusage", lambda who: types.SimpleNamespace(ru_maxrss=3))
    assert cost._peak_memory() == 3072
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", {"GPU:0": {"current": 5, "peak": 7}}.get)
    assert cost._peak_memory() == 7  # of the first card


@pytest.mark.parametrize("replicas,probe,longest,parts,probed", [
    (1, 4, 8.0, 1, 8), (1, 4, 3.9, 4, 8), (1, 4, 4.0, 2, 8), (1, 4, 0.0, 16, 8), (1, 2, 0.0, 16, 16),
    (1, 33, 9.0, 1, None), (2, 4, 8.0, 2, 8), (2, 16, 0.0, 2, None), (2, 8, 2.0, 4, 4),
    (1, 32, 9.0, 1, None), (1, 16, 0.0, 16, 2),
])  # fmt: skip
def test_the_part_of_a_batch_that_is_measured(replicas, probe, longest, parts, probed, config, monkeypatch):
    """Batches of 64 and 32 in 2 chunks are cut in up to 16 parts; a step of the whole takes 8 s."""
    config.train.update(dict(image_text_batch=64, text_text_batch=32))
    asked = []

    def seconds(model, config, tokenizer, parts, replicas, warm_up, counted):
        asked.append((parts, tokenizer, replicas, warm_up, counted))
        return 8.0 / parts

    monkeypatch.setattr(cost, "PROBE", probe)
    monkeypatch.setattr(cost, "LONGEST", longest)
    monkeypatch.setattr(cost, "_seconds_of_step", seconds)
    assert cost._parts_to_measure(None, config, replicas) == parts
    assert asked == ([(probed, None, replicas, 0.0, 0.0)] if probed else [])


class Layer:
    def __init__(self, group):
        self.group = group


def test_seconds_of_a_step_by_a_clock(config, monkeypatch):
    """Two steps in each call of 3 s: after warming up, four calls until 10 s are over."""
    clock = [100.0]
    groups = []

    def train(batches):
        clock[0] += 3.0
        groups.append([layer.group for layer in layers])
        return next(batches)

    layers = [Layer(group) for group in (2, 4, "global")]
    model = types.SimpleNamespace(make_train_function=lambda: train, normalization_layers=lambda: layers)
    sizes = []

    def batches(model, config, tokenizer, replicas):
        sizes.append((config.train.image_text_batch, config.train.text_text_batch, tokenizer, replicas))
        return [0] * 9

    monkeypatch.setattr(cost, "_batches_to_measure", batches)
    monkeypatch.setattr(cost, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    config.train.update(dict(steps_per_execution=2, text_text_batch=24, image_text_batch=16))
    assert cost._seconds_of_step(model, config, "tokens", 4, 3, 1.0, 10.0) == 12.0 / 8
    assert clock[0] == 115.0 and (config.train.image_text_batch, config.train.text_text_batch) == (16, 24)
    assert sizes == [(4, 6, "tokens", 3)]
    assert groups == [[2, "local", "local"]] * 5  # of 2 pictures in a chunk
    assert [layer.group for layer in layers] == [2, 4, "global"]
    assert cost._seconds_of_step(model, config, None, 4, 1, 0.0, 0.0) == 1.5

    clock[0] = 0.0
    cost._seconds_of_step(model, config, None, 4, 1)
    assert clock[0] == 9.0 + 15.0  # whole calls of at least 8 s and 15 s
    assert (cost.PROBE, cost.LONGEST) == (8, 4.0)

    def broken(batches):
        raise tf.errors.DataLossError(None, None, "first\nsecond\n\t [[node]]")

    model.make_train_function = lambda: broken
    with pytest.raises(UserError, match=f"^The data in {config.data.directory} cannot be read: first$"):
        cost._seconds_of_step(model, config, None, 4, 1)


@pytest.mark.parametrize("replicas,jit,cards,pad", [
    (1, False, 0, "longest"), (2, False, 0, "max_length"), (1, True, 0, "max_length"), (1, False, 1, "max_length")
])  # fmt: skip
def test_batches_to_measure_are_padded_as_in_training(replicas, jit, cards, pad, config, monkeypatch):
    monkeypatch.setattr(cost, "training_batches", lambda *arguments, **options: (*arguments, options))
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["card"] * cards)
    config.train.jit = jit
    model = types.SimpleNamespace(streams=("a", "b"))
    found = cost._batches_to_measure(model, config, "tokens", replicas)
    assert found == (config, "tokens", {"streams": ("a", "b"), "pad": pad})


@pytest.mark.parametrize("case", ["data", "no vocabulary yet", "none", "cached"])
def test_a_measurement_of_made_up_parts(case, config, monkeypatch):
    """A quarter of the batch was measured on two replicas: half of a replica's."""
    calls = {}
    model = made_up_model(config)
    model.used = {"image": types.SimpleNamespace(is_given=case == "cached")}
    model.towers = model
    model.begin = lambda *arguments: calls.update(begin=arguments)
    made = types.SimpleNamespace(vocabulary_size=77)
    monkeypatch.setattr(cost, "_has_data", lambda data: case != "none")
    monkeypatch.setattr(cost, "existing_vocabulary", lambda config: None if case == "no vocabulary yet" else "here")
    monkeypatch.setattr(cost, "sampled_vocabulary", lambda config, folder: "sampled")
    monkeypatch.setattr(cost, "build_tokenizer", lambda config, path: calls.update(vocabulary=path) or made)
    monkeypatch.setattr(cost, "build_model", lambda config, size: calls.update(size=size))
    monkeypatch.setattr(cost, "on_features", lambda _: model)
    monkeypatch.setattr(cost, "compile_model", lambda model, config: calls.update(compiled=True))
    monkeypatch.setattr(cost, "_parts_to_measure", lambda *_: 4)
    monkeypatch.setattr(cost, "_seconds_of_step", lambda model, config, tokenizer, *others: calls.update(
        tokenizer=tokenizer, others=others) or 1.5)  # fmt: skip
    monkeypatch.setattr(cost, "memory_of_replica", lambda model, config, replicas: {"weights": replicas})
    monkeypatch.setattr(cost, "parameters", lambda model: {"tower": 3})
    monkeypatch.setattr(cost, "_peak_memory", lambda: 99)
    found = cost._measure(config, 2, "restored")
    rows = {"image": 16, "caption": 16, "cloze": 16, "text_a": 16, "target": 16}
    assert found == cost.Measurement(config, 2, {"tower": 3}, rows, {"weights": 2}, 3.0, 0.25, 99)
    assert calls.pop("compiled") and calls.pop("others") == (4, 2)
    assert calls.pop("tokenizer") is (made if case in ("data", "no vocabulary yet") else None)
    assert calls.pop("size") == (77 if case in ("data", "cached") else 100)
    assert calls.pop("vocabulary", None) == {"none": None, "no vocabulary yet": "sampled"}.get(case, "here")
    assert calls.pop("begin", None) == (None if case == "none" else (made, "restored")) and not calls


def test_fused_kernels_are_as_before_a_measurement(config, monkeypatch):
    calls = []
    monkeypatch.setattr(cost, "set_fusion", lambda way: calls.append(way) or "before")
    monkeypatch.setattr(cost, "compiles_fused", lambda: True)
    monkeypatch.setattr(cost, "compile_first_quietly", lambda: calls.append("quietly"))
    monkeypatch.setattr(cost, "_measure", lambda *arguments: calls.append(arguments[1:]) or 1 / 0)
    for jit, way in ((False, "on"), (True, "off")):
        config.train.update(dict(fused="on", jit=jit))
        with pytest.raises(ZeroDivisionError):
            cost.measure(config, "restored")
        assert calls == [way, "quietly", (1, "restored"), "before"]
        calls.clear()
    config.train.image_text_batch = 7
    with pytest.raises(UserError, match="image_text_batch=7 must be a multiple of 2: this machine has 1 replica, and"):
        cost.measure(config)


def test_data_that_is_there_or_named(config, tmp_path):
    assert cost._has_data(config.data)
    config.data.directory = ""
    assert not cost._has_data(config.data)
    config.data.directory = str(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nowhere does not exist"):
        cost._has_data(config.data)
    config.data.source = "shapes"  # builds its data
    assert not cost._has_data(config.data)


def test_batches_that_the_replicas_of_a_slice_cannot_share():
    with pytest.raises(UserError) as raised:
        dry_run(toy_data.toy_config("/nowhere"), "v4-64")
    assert str(raised.value) == "train.image_text_batch=16 must be a multiple of 32: v4-64 has 32 replicas."
