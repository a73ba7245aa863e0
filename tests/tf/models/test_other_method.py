"""Fine-tuning that continues as another method: parts that the source lacks are new; stages ask the source's class."""

import contract
import numpy as np
import pytest
import toy_data

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.models import method_class, method_names
from mural_tf.models.build import build_model
from mural_tf.runs.finetune import _with_source_architecture
from mural_tf.training.checkpoints import restore_for_inference, training_checkpoints
from mural_tf.training.fit import compile_model


@pytest.mark.slow
def test_mural_starts_from_align(tmp_path):
    models = {}
    for seed, method in enumerate(("align", "mural")):
        config = toy_data.toy_config(tmp_path, method)
        keras.utils.set_random_seed(seed)
        models[method] = build_model(config, 50)
        compile_model(models[method], config)
    align, mural = models["align"], models["mural"]
    checkpoints = training_checkpoints(align, tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    with pytest.raises(UserError, match="does not fit"):
        restore_for_inference(mural, tmp_path)
    before = mural.text_text_head.kernel.numpy()
    restore_for_inference(mural, tmp_path, partly=True)
    np.testing.assert_array_equal(mural.text_text_head.kernel, before)
    for part in ("image_encoder", "text_encoder", "image_text_head"):
        for one, other in zip(getattr(align, part).variables, getattr(mural, part).variables):
            np.testing.assert_array_equal(one, other)


def test_a_method_from_outside_enters_the_stage_of_translations(tmp_path):
    stage, source = contract.toy_config("translation_distillation"), contract.toy_config(contract.OUTSIDE)
    config = _with_source_architecture(stage, source, tmp_path)
    assert (config.model, config.method.heads_of) == ("translation_distillation", contract.OUTSIDE)
    model = contract.build(config)
    assert np.isfinite(model.train_step(contract.batch_of(model, config))["loss"])


def test_captions_after_a_stage_are_learned_by_the_method_that_it_followed(tmp_path):
    source = contract.toy_config("siglip")
    stage = _with_source_architecture(contract.toy_config("translation_distillation"), source, tmp_path)
    models = []
    for config in (stage, _with_source_architecture(contract.toy_config("align"), stage, tmp_path)):
        models.append(contract.build(config))
        compile_model(models[-1], config)
    assert (stage.model, config.model) == ("translation_distillation", "siglip")
    checkpoints = training_checkpoints(models[0], tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    restore_for_inference(models[1], tmp_path, partly=True)
    for part in ("image_encoder", "text_encoder", "image_text_head"):
        for one, other in zip(getattr(models[0], part).variables, getattr(models[1], part).variables):
            np.testing.assert_array_equal(one, other)


def test_the_towers_of_a_stage_are_the_source_s_and_its_heads_its_own(tmp_path):
    source = contract.toy_config("mural", text_tower__hidden_size=24)
    stage = contract.toy_config("etcl", text_tower__layers=3, shared_head=True)
    found = _with_source_architecture(stage, source, tmp_path)
    assert (found.model, found.shared_head) == ("etcl", True)
    assert (found.text_tower.layers, found.text_tower.hidden_size) == (1, 24)
    source.model = "align"  # has no text-text head
    with pytest.raises(UserError, match="etcl starts from mural or etcl; .* is align"):
        _with_source_architecture(contract.toy_config("etcl"), source, tmp_path)
    ordinary = _with_source_architecture(contract.toy_config("mural"), source, tmp_path)
    assert ordinary.model == "align"


def test_stages_ask_the_source_for_what_they_need(tmp_path):
    stage = method_class("translation_distillation")
    names = {name for name in method_names() if stage.may_start_from(method_class(name))}
    assert names == {"align", "mural", "etcl", "siglip", "globetrotter", "translation_distillation"}
    assert {n for n in method_names() if method_class("etcl").may_start_from(method_class(n))} == {"mural", "etcl"}
    config = contract.toy_config("translation_distillation")
    with pytest.raises(UserError, match="starts from a model with an image-text head; .* is mule"):
        _with_source_architecture(config, contract.toy_config("mule"), tmp_path)
