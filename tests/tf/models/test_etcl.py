"""ETCL: the triple loss, the model on MURAL's weights, and triples from records."""

import functools
import math
import types

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from contract import losses_of
from test_contrastive_loss import loop_oracle, unit_rows

from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.evaluation.retrieval import language_groups
from mural_tf.ingest.translate import build_translated
from mural_tf.losses.pairs import Rows
from mural_tf.models.etcl import Etcl


def triple_losses(
    image, captions, texts, temperature, *, text_temperature, text_margin=0.0, label_smoothing=0.0, image_ids=None,
    text_ids=(None, None), rows=None,
):  # fmt: skip
    """What `Etcl` makes of these embeddings: L(I, A) + L(B, I), and L(A, B)."""
    settings = types.SimpleNamespace(label_smoothing=label_smoothing, mask_duplicates=image_ids is not None)
    options = types.SimpleNamespace(text_text_temperature=text_temperature, text_text_margin=text_margin)
    model = types.SimpleNamespace(temperature=temperature, loss_config=settings, options=options)
    model.same = functools.partial(Etcl.same, model)
    model.same_texts = functools.partial(Etcl.same_texts, model)
    ids = {"image_id": image_ids, "text_a_id": text_ids[0], "text_b_id": text_ids[1]}
    image, left = Rows.of(image, rows), Rows.of(texts[0], rows)
    return Etcl.image_text_loss(model, image, *captions, ids), Etcl.text_text_loss(model, left, texts[1], ids)


def eq_4(image, a, b, **options):
    arguments = dict(text_temperature=0.1, text_margin=0.3, **options)
    return sum(triple_losses(image, (a, b), (a, b), 0.5, **arguments)) / 3.0


def test_value_derived_by_hand():
    # Two orthogonal triples. A direction of an image term costs log(1 + e^-2) at τ = 1/2 and there are four; one of
    # the text term log(1 + e^-7) at τ = 0.1 and margin 0.3, and there are two.
    expected = (4 * math.log1p(math.exp(-2)) + 2 * math.log1p(math.exp(-7))) / 3
    np.testing.assert_allclose(eq_4(tf.eye(2), tf.eye(2), tf.eye(2)), expected, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_loop(masked):
    image, a, b, s, t = (unit_rows(seed, 8, 5) for seed in range(5))
    ids = [np.array([1, 2, 1, 4, 5, 6, 7, 8]), np.array([1, 1, 3, 4, 5, 6, 7, 8]), 10 + np.arange(8)]
    options = dict(image_ids=tf.constant(ids[0]), text_ids=(tf.constant(ids[1]), tf.constant(ids[2]))) if masked else {}
    image_text, text_text = triple_losses(
        image, (a, b), (s, t), 0.2, text_temperature=0.1, text_margin=0.3, label_smoothing=0.1, **options
    )
    expected = 0.0
    for caption, own in ((a, ids[1]), (b, ids[2])):
        known = (ids[0], own) if masked else ()
        expected += loop_oracle(image, caption, 0.2, 0.0, 0.1, known) + loop_oracle(
            caption, image, 0.2, 0.0, 0.1, known
        )
    np.testing.assert_allclose(image_text, expected, atol=5e-5)
    known = tuple(ids) if masked else ()
    expected = loop_oracle(s, t, 0.1, 0.3, 0.0, known) + loop_oracle(t, s, 0.1, 0.3, 0.0, known)
    np.testing.assert_allclose(text_text, expected, atol=5e-5)


def test_every_term_reaches_both_of_its_sides():
    image, a, b = (tf.Variable(unit_rows(seed, 6, 4)) for seed in range(3))
    with tf.GradientTape(persistent=True) as tape:
        image_text, text_text = triple_losses(image, (a, b), (a, b), 0.5, text_temperature=0.1)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in tape.gradient(image_text, [image, a, b]))
    to_image, *to_texts = tape.gradient(text_text, [image, a, b])
    assert to_image is None and all(np.abs(gradient).max() > 1e-3 for gradient in to_texts)


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_text_term_compares_by_its_own_head_or_the_shared_one(shared):
    config = contract.toy_config("etcl", shared_head=shared)
    model = contract.build(config)
    batch = contract.batch_of(model, config)
    with tf.GradientTape() as tape:
        loss = losses_of(model, model.encode(batch, True), batch)["text_text"]
    reached = dict(zip([v.ref() for v in model.trainable_variables], tape.gradient(loss, model.trainable_variables)))
    heads = [name for name in model.head_names if reached[model.text_head(name).kernel.ref()] is not None]
    assert heads == (["image_text"] if shared else ["text_text"]) and hasattr(model, "text_text_head") != shared
    assert all(reached[v.ref()] is None for v in model.image_encoder.trainable_variables)


def test_batches_hold_translations_of_one_image_either_way_round(tmp_path):
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path / "data", count=16), "etcl")
    tokenizer, swapped = toy_data.toy_tokenizer(), set()
    batch = toy_data.stream_batch(config, tokenizer, "triples")
    pieces = [[tokenizer.vocabulary[i] for i in row] for row in batch["text_a"]["input_word_ids"].numpy()]
    others = [[tokenizer.vocabulary[i] for i in row] for row in batch["text_b"]["input_word_ids"].numpy()]
    for one, other in zip(pieces, others):
        assert [p for p in one if p.startswith("##")] == [p for p in other if p.startswith("##")] != []
        assert {one[1], other[1]} == {"thing", "ding"}
        swapped.add(one[1])
    assert swapped == {"thing", "ding"}


def test_translations_from_text_pairs_make_triples(tmp_path):
    images = [records.ImageTextRecord(f"i{i}", toy_data.picture(i), [f"thing w{i}"], ["en"], [""]) for i in range(8)]
    pairs = [records.TextPair(f"ding v{i}", "de", f"thing w{i}", "en") for i in range(6)]
    toy_data.write_toy_data(tmp_path / "plain", images, pairs)
    (tmp_path / "plain" / "notes.txt").write_text("not a record")
    (tmp_path / "plain" / "dataset.json").write_text('{"name": "x", "language_groups": {"few": ["de"]}}')
    folder = build_translated(tmp_path / "plain", tmp_path / "plain", tmp_path / "translated")
    found = {r.image_id: r for r in records.read_records(folder, records.IMAGE_TEXT, "train")}
    assert list(found["i3"].captions) == ["thing w3", "ding v3"] and list(found["i3"].languages) == ["en", "de"]
    assert list(found["i3"].caption_groups) == ["i3:0", "i3:0"]
    assert list(found["i7"].captions) == ["thing w7"]  # has no translation
    assert len(list(records.read_records(folder, records.TEXT_PAIRS, "train"))) == 6
    assert language_groups(folder) == {"few": ["de"]}  # evaluated as the data that it is made of
    with pytest.raises(UserError, match="None of the 14 captions"):  # 8 and 6 translations: nothing is added twice
        build_translated(folder, tmp_path / "plain", tmp_path / "again")

    toy_data.write_toy_data(tmp_path / "other", images, [records.TextPair("a", "en", "b", "de")])
    with pytest.raises(UserError, match="None of the 8 captions"):
        build_translated(tmp_path / "plain", tmp_path / "other", tmp_path / "failed")
    assert not (tmp_path / "failed").exists()

    (tmp_path / "plain" / "notes.txt").write_text("another note")
    arguments = tmp_path / "plain", tmp_path / "plain", tmp_path / "translated"
    assert build_translated(*arguments) == folder  # it is there already
    toy_data.write_toy_data(tmp_path / "plain", images, [*pairs, records.TextPair("ding v7", "de", "thing w7", "en")])
    with pytest.raises(UserError, match="holds another data set, with files"):
        build_translated(*arguments)
