"""Hugging Face's ALIGN: the numbers its PyTorch model gives, the layouts of its folder, and files that are wrong."""

import foreign_weights as foreign
import numpy as np
import pytest

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.pretrained import hugging_face_align
from mural_tf.pretrained.importers import configure, import_weights, importer_of
from mural_tf.pretrained.weight_files import open_safetensors

# What transformers 5.23.0 with PyTorch 2.13.0 gives for `write_align`, `random_images` and `random_tokens`; the parity
# test compares them again wherever PyTorch is installed.
IMAGE_EMBEDDINGS = np.array(  # first two images, first five numbers
    [
        [-0.02401791, -0.02354, 0.0343889, 0.00174298, -0.12704886],
        [0.14152256, 0.03718495, 0.08480653, 0.00232077, -0.05684084],
    ]
)
TEXT_EMBEDDINGS = np.array(
    [
        [-0.02497234, 0.05614478, -0.0796549, -0.0418008, -0.06003353],
        [-0.03037521, 0.0709375, -0.06267196, -0.01565401, -0.04821929],
    ]
)
LOGITS_PER_IMAGE = np.array(
    [
        [-0.76911867, -0.49574733, 0.01498, -2.5349448],
        [-0.83637196, -0.3133855, 0.6299704, -0.4909846],
        [2.293324, 2.3162067, 2.3764713, 1.3141056],
        [-0.542126, 0.23011068, 1.4168596, -1.0374923],
    ]
)


def small_config(model="align"):
    config = base_config()
    config.model = model
    config.text_tower.max_length = 16
    config.image_tower.precision = config.text_tower.precision = "float32"
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return foreign.write_align(tmp_path_factory.mktemp("align"))


@pytest.fixture(scope="module")
def imported(folder):
    """Model, configuration and pieces; building the image tower takes longest, so one model takes all weights."""
    return import_weights("align", folder, small_config())


def load_into(imported, folder):
    """Configures for a folder, and fills the one model with its weights."""
    config, pieces = configure("align", folder, small_config())
    hugging_face_align.load_weights(folder, imported[0], config, importer_of("align").parts)
    return config, pieces


def test_numbers_of_hugging_face(imported):
    model, config, pieces = imported
    image = model.embed_images(foreign.random_images(4, 33)).numpy()
    text = model.embed_texts(foreign.random_tokens(len(foreign.PIECES))).numpy()
    assert np.abs(image[:2, :5] - IMAGE_EMBEDDINGS).max() < 1e-4
    assert np.abs(text[:2, :5] - TEXT_EMBEDDINGS).max() < 1e-4
    assert np.abs(image @ text.T / model.temperature.numpy() - LOGITS_PER_IMAGE).max() < 1e-4
    assert pieces == foreign.PIECES and config.vocabulary.size == len(pieces)


def test_other_layouts_of_the_same_folder(imported, folder, tmp_path):
    """Shards instead of one file, tokenizer.json instead of vocab.txt, bfloat16 instead of float32."""
    whole = open_safetensors(folder)
    names = sorted(whole.shapes)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        foreign.write_bfloat16(tmp_path / file, {name: whole.read(name) for name in part})
    weight_map = {name: file for file, part in shards.items() for name in part}
    foreign.write_json(tmp_path / "model.safetensors.index.json", weight_map=weight_map)
    vocabulary = {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(foreign.PIECES)}}
    normalizer = {"type": "BertNormalizer", "lowercase": True, "strip_accents": False}
    foreign.write_json(tmp_path / "tokenizer.json", model=vocabulary, normalizer=normalizer)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    config, pieces = load_into(imported, tmp_path)
    assert pieces == foreign.PIECES
    assert (config.vocabulary.lower_case, config.vocabulary.strip_accents) == (True, False)
    assert (config.image_tower.image_size, config.image_tower.normalization) == (33, "symmetric")
    kernel = whole.read("text_projection.weight").T
    assert 0 < np.abs(imported[0].image_text_head.kernel.numpy() - kernel).max() < 0.01  # bfloat16 keeps 8 bits
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(UserError, match="b.safetensors is missing; model.safetensors.index.json names it"):
        load_into(imported, tmp_path)
    load_into(imported, folder)


def test_missing_unexpected_and_misshaped_names_are_listed(imported, tmp_path):
    def spoil(tensors):
        del tensors["text_projection.bias"], tensors["vision_model.encoder.blocks.2.squeeze_excite.reduce.bias"]
        tensors["text_projection.scale"] = np.ones(3, np.float32)
        tensors["text_model.encoder.layer.1.output.dense.weight"] = np.ones((32, 60), np.float32)

    foreign.write_align(tmp_path, change=spoil)
    with pytest.raises(UserError) as error:
        load_into(imported, tmp_path)
    message = str(error.value)
    assert "model.safetensors does not hold an AlignModel of this architecture" in message
    bias = "vision_model.encoder.blocks.2.squeeze_excite.reduce.bias"
    assert f"2 missing (text_projection.bias, {bias})" in message
    assert "1 unexpected (text_projection.scale)" in message
    kernel = "text_model.encoder.layer.1.output.dense.weight [32, 60] for layer_1/output/kernel [64, 32]"
    assert f"1 of another shape ({kernel})" in message


def test_damaged_numbers_are_refused(imported, tmp_path):
    def spoil(tensors):
        tensors["text_projection.bias"][3] = np.nan

    with pytest.raises(UserError, match="text_projection.bias holds NaN"):
        load_into(imported, foreign.write_align(tmp_path, change=spoil))
