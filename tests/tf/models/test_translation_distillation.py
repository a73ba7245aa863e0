"""Translation distillation: the losses, the teacher that stays, pairs with a pivot, and what it starts from."""

import types

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from contract import losses_of
from test_contrastive_loss import loop_oracle, unit_rows
from toy_export import difference

from mural_tf.data import records
from mural_tf.data.streams import text_text
from mural_tf.data.streams.columns import Column
from mural_tf.data.streams.stream import fingerprint
from mural_tf.data.streams.text_text import pivot_languages
from mural_tf.export import signatures
from mural_tf.losses.pairs import Pairs
from mural_tf.models import complete, translation_distillation
from mural_tf.models.build import build_model
from mural_tf.models.translation_distillation import TranslationDistillation
from mural_tf.runs.finetune import _with_source_architecture
from mural_tf.training.checkpoints import restore_for_inference, training_checkpoints
from mural_tf.training.fit import compile_model
from mural_tf.training.tpu_check import find_problems
from mural_tf.training.tpu_lowering import trace_step

hypothesis = pytest.importorskip("hypothesis", reason="needs hypothesis: pip install -e '.[test]'")
strategies = hypothesis.strategies
METHOD = "translation_distillation"


# The losses.


def test_value_derived_by_hand():
    # The first row stands at right angles to its target and costs 1, the second is its target, the third is opposite
    # and costs 2: 3 over N = 3.
    embeddings, targets = (
        tf.constant([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]),
        tf.constant([[0.0, 1.0], [0.0, 1.0], [-0.6, -0.8]]),
    )
    model = types.SimpleNamespace(options=types.SimpleNamespace(loss="cosine"))
    whole, *parts = [Pairs(embeddings, targets, rows=rows) for rows in (None, (0, 2), (2, 1))]
    found = [float(TranslationDistillation._distance(model, pairs)) for pairs in (whole, *parts)]
    np.testing.assert_allclose(found, [1.0, 1 / 3, 2 / 3], rtol=1e-6)


@pytest.fixture(scope="module")
def stage():
    """A model of the stage, which tests leave as it is, and a batch."""
    model = contract.build(contract.toy_config(METHOD))
    return model, contract.batch_of(model, contract.toy_config(METHOD))


@pytest.mark.parametrize("loss", ["cosine", "softmax"])
def test_equals_the_oracle(stage, loss, monkeypatch):
    model, batch = stage
    monkeypatch.setitem(model.options, "loss", loss)
    names = ("text_a", "text_b", "text_target", "caption", "caption_target")
    a, b, target, caption, kept = rows = [unit_rows(seed, 8, 5) for seed in range(5)]
    found = losses_of(model, dict(zip(names, map(tf.constant, rows))), batch)

    def oracle(texts, targets, ids):
        if loss == "cosine":
            return np.mean([1.0 - np.dot(text, other) for text, other in zip(texts, targets)])
        return loop_oracle(texts, targets, 0.05, ids=ids) + loop_oracle(targets, texts, 0.05, ids=ids)

    same = (batch["caption_id"].numpy(),)  # the batch's first and last texts are the same, on both sides
    np.testing.assert_allclose(found["translation"], oracle(b, target, same), rtol=1e-5)
    np.testing.assert_allclose(found["pivot"], oracle(a, target, same), rtol=1e-5)
    np.testing.assert_allclose(found["captions"], oracle(caption, kept, same), rtol=1e-5)


# The teacher.


def values(part):
    return [variable.numpy() for variable in part.variables]


def assert_equal(one, other):
    for left, right in zip(one, other):
        np.testing.assert_array_equal(left, right)


def test_the_teacher_is_the_model_as_it_was():
    config = contract.toy_config(METHOD)
    model = build_model(config, contract.tokenizer(config).vocabulary_size)
    compile_model(model, complete(config))
    batch = contract.batch_of(model, config)
    found = model.encode(batch, training=True)  # dropout is the student's alone
    np.testing.assert_allclose(found["text_target"], model.embed_texts(batch["text_a"]), atol=1e-6)
    assert np.max(np.abs(found["text_target"] - found["text_a"])) > 1e-4


def test_only_the_text_tower_and_its_head_move(eager):
    config = contract.toy_config(METHOD, optimizer__weight_decay=0.1)
    model = contract.build(config)
    batch = contract.batch_of(model, config)
    still = (model.teacher, model.teacher_head, model.image_encoder)
    pictures = tf.random.stateless_normal([2, contract.FEATURES], [1, 2])
    before, moved = [values(part) for part in still], values(model.text_encoder) + values(model.image_text_head)
    exported = signatures.image_signatures(model, config)[1]["image"](pictures)["embedding"].numpy()
    model.train_step(batch)
    for part, value in zip(still, before):
        assert_equal(values(part), value)
    after = values(model.text_encoder) + values(model.image_text_head)
    assert all(np.any(one != other) for one, other in zip(moved, after))
    assert_equal([signatures.image_signatures(model, config)[1]["image"](pictures)["embedding"].numpy()], [exported])
    assert float(model.temperature) == pytest.approx(0.1)


@pytest.mark.slow
def test_the_first_layers_alone_can_be_trained(eager):
    config = contract.toy_config(METHOD, method__trained="embeddings_and_first", text_tower__layers=2)
    model = contract.build(config)
    tower, before = model.text_encoder, values(model.text_encoder)
    head = values(model.image_text_head)
    model.train_step(contract.batch_of(model, config))
    moved = {v.name for v, value in zip(tower.variables, before) if np.any(v.numpy() != value)}
    first = {v.name for name in ("embeddings", "layer_0") for v in tower.get_layer(name).variables}
    assert moved == first and len(first) < len(before)
    assert_equal(values(model.image_text_head), head)


def test_the_teacher_is_in_checkpoints_of_training_alone(stage, tmp_path):
    config, (model, _) = contract.toy_config(METHOD), stage
    assert set(model.training_parts()) == {"teacher", "teacher_head"}
    mine = {variable.ref() for part in model.training_parts().values() for variable in part.variables}
    assert len(mine) == len(model.text_encoder.variables) + 2
    assert not mine & {variable.ref() for variable in model.trainable_variables}
    kept = model.weights_by_part().values()
    assert not mine & {v.ref() for part in kept for v in (part.variables if isinstance(part, tf.Module) else [part])}
    checkpoints = training_checkpoints(model, tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    again = build_model(config, contract.tokenizer(config).vocabulary_size)  # for evaluation: it has no teacher
    restore_for_inference(again, tmp_path)
    assert_equal(values(again.text_encoder), values(model.text_encoder))
    assert not hasattr(again, "teacher")


# Where it starts.


@pytest.mark.parametrize("method, fields", [
    ("mural", {}), pytest.param("globetrotter", {}, marks=pytest.mark.slow),
    pytest.param("globetrotter", dict(shared_head=True, text_tower__pooling="first"), marks=pytest.mark.slow),
])  # fmt: skip
def test_starts_from_a_trained_model_without_its_head_for_texts(tmp_path, method, fields):
    config = contract.toy_config(method, **fields)
    trained = contract.build(config)
    checkpoints = training_checkpoints(trained, tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    stage = _with_source_architecture(contract.toy_config(METHOD), config, tmp_path)
    assert stage.model == METHOD
    model = build_model(stage, contract.tokenizer(stage).vocabulary_size)
    restore_for_inference(model, tmp_path)
    model.begin(contract.tokenizer(stage), restored=True)
    compile_model(model, complete(stage))
    for part in ("image_encoder", "text_encoder", "image_text_head"):
        assert_equal(values(getattr(model, part)), values(getattr(trained, part)))
    assert_equal(values(model.teacher), values(trained.text_encoder))
    assert_equal(values(model.teacher_head), values(trained.image_text_head))
    assert model.head_names == ("image_text",)
    batch = contract.batch_of(model, stage)
    assert_equal([model.teach(batch["caption"], False)], [trained.embed_texts(batch["caption"])])
    model.train_step(batch)
    again = _with_source_architecture(contract.toy_config(METHOD), complete(stage), tmp_path)  # a stage after the stage
    assert again.method.heads_of == method and again.shared_head == config.shared_head


# Targets that are made before the first step.


PAIRS = [
    *(records.TextPair(f"thing w{i}", "en", f"ding v{i}", "de", f"g{i}") for i in range(20)),
    *(records.TextPair(f"thing w{i}", "en", f"w {i}", "sw", f"g{i}") for i in range(20)),
]


def completed(tmp_path, **fields):
    """A model with cached targets, and a batch with them."""
    config = contract.toy_config(METHOD, method__cached=True, **fields)
    config.data.update(dict(directory=str(tmp_path), shuffle_buffer=100))
    model, tokenizer = contract.build(config), toy_data.toy_tokenizer()
    batch = toy_data.stream_batch(complete(config), tokenizer, *model.streams)
    columns = model.columns(config, tokenizer, tmp_path)
    return model, {**batch, **{target: column.look_up(batch[ids]) for target, (column, ids) in columns.items()}}


def taught(model, batch, name):
    return model.teach(batch[name], training=False).numpy()


def first_words(batch, name):
    pieces = toy_data.toy_tokenizer().vocabulary
    return {pieces[row[1]] for row in batch[name]["input_word_ids"].numpy()}


@pytest.mark.slow
def test_cached_targets_are_what_the_teacher_gives_in_the_step(tmp_path):
    """Also: the pivot's side comes first, and no picture is read."""
    images = toy_data.image_text_records(32)
    for image in images:
        image.image = b"no picture"
    toy_data.write_toy_data(tmp_path, images, pairs=PAIRS)
    model, batch = completed(tmp_path, method__pivot="de")
    assert "image" not in batch and first_words(batch, "caption") == {"thing", "ding"}
    assert (first_words(batch, "text_a"), first_words(batch, "text_b")) == ({"ding"}, {"thing"})
    np.testing.assert_allclose(batch["text_target"], taught(model, batch, "text_a"), atol=1e-6)
    np.testing.assert_allclose(batch["caption_target"], taught(model, batch, "caption"), atol=1e-6)
    assert set(model.parts) == {"text_a", "text_b", "caption", "text_target", "caption_target"}
    weights = dict(method__pivot_weight=0.0, method__captions_weight=0.0)
    without = contract.build(contract.toy_config(METHOD, method__cached=True, method__pivot="en", **weights))
    assert set(without.parts) == {"text_b", "text_target"}


def test_targets_of_a_frozen_tower_come_from_states_that_are_made_once(tmp_path, monkeypatch):
    config = contract.toy_config(METHOD, text_tower__frozen=True, method__cached=True)
    config.data.directory = str(toy_data.write_toy_data(tmp_path, pairs=PAIRS, count=8))
    model = contract.build(config)
    tokenizer = toy_data.toy_tokenizer()
    texts = [pair.text_a.encode() for pair in PAIRS]
    to_vectors = translation_distillation.texts_to_vectors(
        lambda tokens: model.teach(tokens, training=False), tokenizer
    )
    by_tower = to_vectors(texts)
    assert difference(model._embedder(config, tokenizer, tmp_path)(texts), by_tower) < 1e-3  # states are float16
    monkeypatch.setattr(model.towers, "text_states", None)  # would be called
    assert difference(model._embedder(config, tokenizer, tmp_path)(texts[::-1]), by_tower[::-1]) < 1e-3


def test_targets_of_several_pivots_are_means_of_groups_and_of_captions_their_own(stage, tmp_path, monkeypatch):
    """Without a pipeline that reads, and with drawn vectors: a group's mean of the sides in a pivot language."""
    model, _ = stage
    monkeypatch.setitem(model.options, "pivot", "en+de")
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, pairs=PAIRS), METHOD)
    columns = [(pair.text_a, pair.text_b, pair.language_b, pair.group_id) for pair in PAIRS]
    pairs = tuple(np.array([value.encode() for value in column]) for column in zip(*columns))
    items = {"text_text": pairs, "captions": (np.array([b"w 3", b"never a pair"]),)}
    monkeypatch.setattr(translation_distillation, "stream_items", lambda _, __, stream, ___: [items[stream]])
    vectors = {text: unit_rows(number, 1, model.embedding_size)[0] for number, text in enumerate(
        {*pairs[0].tolist(), *pairs[1].tolist(), b"w 3", b"never a pair"})}  # fmt: skip
    monkeypatch.setattr(model, "_embedder", lambda *_: lambda texts: np.stack([vectors[text] for text in texts]))
    found = model.target_columns(config, None, tmp_path)
    ids = {target: ids for target, (_, ids) in found.items()}
    assert ids == {"text_target": "text_group_id", "caption_target": "caption_id"}
    sums = np.stack([vectors[b"thing w%d" % i] + vectors[b"ding v%d" % i] for i in range(20)])
    means = found["text_target"][0].find(fingerprint(tf.constant([b"g%d" % i for i in range(20)])).numpy())
    np.testing.assert_allclose(means, sums / np.linalg.norm(sums, axis=1, keepdims=True), atol=1e-6)
    own = found["caption_target"][0].find(fingerprint(tf.constant([b"never a pair"])).numpy())
    np.testing.assert_allclose(own[0], vectors[b"never a pair"], atol=1e-6)


KEYS = strategies.integers(-(2**63), 2**63 - 1) | strategies.integers(-3, 3)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(strategies.dictionaries(KEYS, strategies.tuples(*[strategies.integers(-9, 9)] * 2)), KEYS)
def test_a_column_is_a_dictionary_of_unit_vectors(vectors, unknown):
    """Keys that are there are found in any order, together and alone; another ends the run."""
    keys = np.array([*vectors], np.int64)
    rows = np.array([*vectors.values()], np.float32).reshape(-1, 2)
    table = Column(keys, rows)
    order = np.random.default_rng(len(keys)).permutation(len(keys))
    if len(keys):
        lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        np.testing.assert_allclose(table.look_up(tf.constant(keys[order])), (rows / lengths)[order], rtol=1e-5)
        np.testing.assert_array_equal(Column(keys, rows, as_stored=True).find(keys[order]), rows[order])
    assert set(table.without_vector) == {key for key, vector in vectors.items() if not any(vector)}
    asked = np.array([*keys[order], unknown], np.int64)
    assert table.holds(asked).tolist() == [key in vectors for key in asked.tolist()]
    if vectors and unknown not in vectors:
        with pytest.raises(tf.errors.InvalidArgumentError, match="The data changed after training began"):
            tf.function(table.look_up)(tf.constant([unknown], tf.int64))


@pytest.mark.parametrize("pivot,expected", [
    ("sw", ("sw",)), ("sw+en", ("sw", "en")), ("", ("de",)), ("mean", ("de", "en", "fr")),
])  # fmt: skip
def test_which_languages_are_pivots(pivot, expected):
    captions = {"en": 10, "fr": 10, "de": 5, "sw": 4, "": 50}
    assert pivot_languages(pivot, lambda: captions, lambda: {"fr": 3, "en": 2, "de": 9}) == expected


@pytest.mark.parametrize("described", [True, False])
def test_of_languages_with_as_many_captions_the_pivot_has_most_pairs(described, tmp_path, monkeypatch):
    pairs = [*toy_data.text_pairs(8), records.TextPair("red", "en", "rouge", "fr", "g")]
    data = toy_data.toy_config(toy_data.write_toy_data(tmp_path, count=8, pairs=pairs)).data
    if described:  # as a conversion describes these data
        stated = {"language": {"en": 8, "de": 8}, "language_a": {"en": 9}, "language_b": {"de": 8, "fr": 1}}
        monkeypatch.setattr(text_text, "stated_languages", lambda files, parse, key: stated[key])
    assert (text_text.pivots_of(data, ""), text_text.pivots_of(data, "mean")) == (("en",), ("de", "en"))
    data.text_pairs = "co_captions"
    assert text_text.pivots_of(data, "") == ("de",)  # in order of the alphabet


@pytest.mark.slow
def test_a_stage_that_caches_has_a_step_that_a_tpu_takes():
    config = contract.toy_config(METHOD, method__cached=True)
    step, example = trace_step(config, toy_data.toy_tokenizer().vocabulary_size, 2)
    assert example["text_target"].shape == example["caption_target"].shape == (2, 24)
    assert find_problems(step.get_concrete_function(example).graph.as_graph_def()) == []
