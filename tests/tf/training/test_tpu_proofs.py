"""Promises about a step on a TPU, read from the program that the TPU's own compiler makes of small models."""

import math
import re

import contract
import pytest
import tensorflow as tf
from proved_program import Program

from mural_tf.configs import shapes_smoke
from mural_tf.models import complete
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import trainable_parameters
from mural_tf.training import tpu_forecast
from mural_tf.training.tpu_forecast import compile_step
from mural_tf.training.tpu_lowering import lower_step
from mural_tf.training.tpu_slices import find_slice

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not tpu_forecast.has_compiler(), reason="needs the extra tpu_compiler"),
]
SLICE = find_slice("v5litepod-4")
IMAGES = 16  # per replica
SIMILARITY = re.compile(r"^(gradient_tape/)?losses/MatMul(_\d+)?(/MatMul(_1)?)?$")


def small_config(**train):
    config = complete(shapes_smoke.get_config())
    for tower in (config.image_tower, config.text_tower):
        tower.precision = "mixed_bfloat16"
    config.train.update(train)
    return config


def compiled(config, folder, images=IMAGES, vocabulary_size=400):
    """(the compiler's figures, the program)."""
    module = lower_step(config, vocabulary_size, images, None, SLICE.replicas)
    step = compile_step(module, SLICE, str(folder / "program.txt"))
    return step, Program((folder / "program.txt").read_text())


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return compiled(small_config(), tmp_path_factory.mktemp("smoke"))


def imprecise(program) -> list:
    """Products of float32 factors that are not float32 to the last bit."""
    return [found for found in program.products() if found[1] == "f32xf32" and found[2] != "highest"]


def similarities(program) -> tuple[list, list]:
    """(forward, backward) products that are no layer's."""
    found = [product for product in program.products() if SIMILARITY.match(product[0])]
    backward = [product for product in found if product[0].startswith("gradient_tape")]
    return [product for product in found if product not in backward], backward


def test_similarities_are_float32_and_towers_bfloat16(smoke):
    _, program = smoke
    forward, backward = similarities(program)
    assert len(forward) >= 4 and len(backward) >= 8  # two tasks in two directions; each with two gradients
    assert {product[1:] for product in (*forward, *backward)} == {("f32xf32", "highest")}
    assert imprecise(program) == []
    towers = {types for place, types, _ in program.products() if "_encoder/" in place}
    assert towers == {"bf16xbf16"}


def test_with_tensor_float_32_similarities_would_not_be(monkeypatch, tmp_path):
    config = contract.toy_config("align")
    monkeypatch.setattr(tf.config.experimental, "enable_tensor_float_32_execution", lambda on: None)
    _, program = compiled(config, tmp_path, 4, contract.tokenizer(config).vocabulary_size)
    forward, backward = similarities(program)
    assert len(imprecise(program)) >= len(forward) + len(backward) > 0


def test_nothing_that_a_step_must_not_have(smoke):
    step, program = smoke
    assert step.refused_features == program.refused_features() == []


def test_weights_and_slots_are_overwritten(smoke):
    """Adam keeps two numbers for each: the memory of all three is taken over by their new values."""
    step, program = smoke
    weights = 4 * trainable_parameters(build_model(small_config(), 400))
    assert step.outputs - step.aliased < 10_000 and step.aliased >= 3 * weights
    forgotten = Program(program.header.replace("input_output_alias", "none"))
    assert len(program.donated()) > 300 and not forgotten.donated()


def summed_bytes(config, images, size) -> tuple[int, int]:
    """Bytes of gradients, and of embeddings that are gathered and of their gradients."""
    model = build_model(config, size)
    widths = sum(width for _, width in model.embedding_shapes.values())
    return 4 * trainable_parameters(model), 2 * 4 * widths * images * SLICE.replicas


def test_gradients_are_summed_once(smoke):
    step, _ = smoke
    gradients, embeddings = summed_bytes(small_config(), IMAGES, 400)
    assert 0 <= step.collectives["all-reduce"]["bytes"] - gradients - embeddings < 20_000


def test_a_batch_of_4096_has_no_array_of_all_its_pairs(tmp_path):
    """Each of four replicas compares its 1,024 queries with all: 1,024 x 4,096 is the largest array there is."""
    config = contract.toy_config("mural")
    _, program = compiled(config, tmp_path, 1024, contract.tokenizer(config).vocabulary_size)
    largest = max(
        math.prod(int(size) for size in sizes.split(",") if size)
        for computation in program.computations.values()
        for instruction in computation
        for sizes in re.findall(r"\b(?:pred|bf16|[suf]\d+)\[([\d,]*)\]", instruction.shape)
    )
    assert largest == 1024 * 4096


def test_two_passes_keep_the_activations_of_a_chunk(tmp_path):
    """Pictures of 128 pixels: activations are nearly all of the temporary memory."""
    one, four = small_config(), small_config(micro_batches=4)
    for config in (one, four):
        config.image_tower.update(dict(image_size=128, resize=128))
    one, _ = compiled(one, tmp_path, 64)
    four, _ = compiled(four, tmp_path, 64)
    assert four.temporary < 0.35 * one.temporary
