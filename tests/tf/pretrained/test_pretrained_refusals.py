"""What importers of foreign checkpoints refuse, in one line each: the call, the words that must occur."""

import io
import json
import types
import zipfile

import foreign_checkpoints as families
import foreign_weights as foreign
import numpy as np
import pytest
import tensorflow as tf
from refusals import assert_refused
from test_pretrained_align import small_config
from test_pretrained_families import WRITERS, config_of
from test_pretrained_forms import POOLING, PROMPTS, change_json, scaled, set_in, settings_of

import mural_tf
from mural_tf.demo.torch_file import open_torch
from mural_tf.pretrained import efficientnet
from mural_tf.pretrained.importers import configure, import_weights, starting_config
from mural_tf.runs.import_pretrained import import_into_workdir


def too_many_positions(folder):
    config = small_config()
    config.text_tower.max_length = 97
    configure("align", foreign.write_align(folder), config)


def pooling_without_the_prompt(folder):
    foreign.write_sentences(folder)
    change_json(folder / POOLING, include_prompt=False)
    settings_of(folder)  # without a prompt it is the same
    change_json(folder / PROMPTS, prompts={"query": "query: "})
    settings_of(folder)


def checkpoint(kind, change=None, spoil=lambda folder: None, **values):
    def call(folder):
        WRITERS[kind](folder, **{"change": change} if change else {}, **values)
        spoil(folder)
        import_weights(kind, folder, config_of(kind), vocabulary_size=9)

    return call


def spoilt(kind, write, spoil):
    def call(folder):
        write(folder)
        spoil(folder)
        configure(kind, folder, small_config())

    return call


def without_residuals(folder):
    vision = json.loads((folder / "config.json").read_text())["vision_config"]
    change_json(folder / "config.json", vision_config={**vision, "width_coefficient": 0.25})


def npz(write):
    def call(folder):
        write(folder / "a.npz")
        configure("siglip", folder / "a.npz", starting_config("siglip"))

    return call


def text_tower(kind, write_text, **options):
    def call(folder):
        text = write_text(folder / "text", **options)
        import_into_workdir(kind, WRITERS[kind](folder / "images"), folder / "w", text=text)

    return call


def large_array(folder):
    """An npz that claims more than it holds."""
    header = io.BytesIO()
    claimed = {"descr": "<f4", "fortran_order": False, "shape": (10**11, 8)}
    np.lib.format.write_array_header_1_0(header, claimed)
    with zipfile.ZipFile(folder / "siglip.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("params/txt/Embed_0/embedding.npy", header.getvalue() + bytes(64))
    configure("siglip", folder / "siglip.npz", starting_config("siglip"))


def keras_file(content):
    def call(folder):
        if content is not None:
            (folder / "a.h5").write_bytes(content)
        configure("efficientnet", folder / "a.h5", small_config())

    return call


def dense_network(folder):
    path = foreign.write_keras_h5(folder / "dense.h5", {"dense/kernel:0": np.zeros((3, 2)), "dense/bias:0": [0, 0]})
    tower = types.SimpleNamespace(variables=[tf.Variable(np.zeros((3, 3, 3, 32)), name="stem_conv/kernel")])
    efficientnet.load_weights(path, tower)


CONFIG, PIXELS, WEIGHTS = "config.json", "preprocessor_config.json", "model.safetensors"
ALIGN = [
    (set_in(CONFIG, model_type="clip"), ["model_type is 'clip', expected 'align'"]),
    (set_in(CONFIG, projection_dim=64), ["projection_dim is 64, its image tower gives 160"]),
    (set_in(CONFIG, text_config={"hidden_act": "gelu_new"}), ["hidden_act is 'gelu_new'"]),
    (set_in(CONFIG, vision_config={"kernel_sizes": [3] * 7}), ["kernel_sizes is", "expected"]),
    (without_residuals, ["no residual connection"]),
    (set_in(PIXELS, include_top=True), ["include_top=True: expected times 1/255"]),
    (set_in(PIXELS, size={"height": 40, "width": 41}), ["size is", "expected one height and width"]),
    (lambda folder: (folder / CONFIG).write_text("{"), [CONFIG, "not valid JSON"]),
    (lambda folder: (folder / "vocab.txt").unlink(), ["has no vocabulary: expected vocab.txt"]),
    (lambda folder: (folder / "vocab.txt").write_text("[PAD]\na\n"), ["vocab.txt", "lacks [UNK], [CLS], [SEP]"]),
    (lambda folder: (folder / WEIGHTS).write_bytes(b"12345678" * 9), [WEIGHTS, "damaged or no safetensors file"]),
    (lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"), ["pickles", "checkpoints.md"]),
    (lambda folder: (folder / WEIGHTS).unlink(), ["neither model.safetensors nor"]),
]
REFUSALS = {
    **{f"ALIGN: {words[-1]}": (spoilt("align", foreign.write_align, spoil), words) for spoil, words in ALIGN},
    "another last layer of LaBSE": (
        spoilt("labse", foreign.write_bert, set_in("2_Dense/config.json", activation_function="torch.nn.Identity")),
        ["LaBSE's is Tanh"]),
    "too many positions": (too_many_positions, ["max_length=97", "the weights have 96 positions"]),
    "pooling without the prompt": (pooling_without_the_prompt, ["include_prompt is false"]),
    "NaFlex": (checkpoint("siglip", model_type="siglip2"), ["'siglip2', expected 'siglip'", "import it as naflex"]),
    "a model of another kind": (
        checkpoint("siglip", model_type="blip"), ["config.json: model_type is 'blip', expected 'siglip'"]),
    "no head of images": (checkpoint("siglip", vision_config={"vision_use_head": False}), ["vision_use_head is false"]),
    "patches that leave a rest": (
        checkpoint("clip", vision_config={"image_size": 45, "patch_size": 8}), ["takes 45"]),
    "a missing tensor": (  # seen once the model is built: in seconds, and alike in each kind
        checkpoint("siglip", lambda tensors: tensors.pop("vision_model.head.probe")),
        ["1 missing (vision_model.head.probe)"]),
    **{f"{tower}.hidden_act of {kind} is {value}": (
        checkpoint(kind, **{tower: {"hidden_act": value}}), [f"{tower}.hidden_act is", "expected"])
       for kind, tower, value in [
           ("siglip", "vision_config", "relu"), ("siglip", "vision_config", ["gelu"]),
           ("siglip", "text_config", {"a": 1}), ("clip", "text_config", "relu"), ("clip", "vision_config", ["gelu"])]},
    "a tower beyond its weights": (
        checkpoint("clip", vision_config={"hidden_size": 65536, "image_size": families.SIDE}), ["asks for"]),
    **{f"a scale of {kind} out of range": (checkpoint(kind, scaled(-1000)), ["is -1000, expected the"])
       for kind in ("siglip", "clip")},
    **{f"five scales of {kind}": (checkpoint(kind, scaled(1, (5,))), ["expected one number"])
       for kind in ("siglip", "clip")},
    "no pieces": (checkpoint("siglip", spoil=lambda folder: (folder / "spiece.model").unlink()),
                  ["has no vocabulary", "one of spiece.model"]),
    "another pooling of XLM-RoBERTa": (
        checkpoint("xlm_roberta_clip", hf_pooler_type="cls_pooler"), ["'cls_pooler'", "with 'mean_"]),
    "two texts for SigLIP": (text_tower("siglip", families.write_clip), ["--text=", "with siglip"]),
    "texts of another size": (
        text_tower("clip", families.write_m_clip, dimensions=7), ["leads to 7 numbers", "to 20"]),
    "an npz of text": (npz(lambda path: path.write_text("no arrays")), ["a.npz is no .npz"]),
    "an npz of a pickle": (npz(lambda path: np.savez(path, **{"params/t": np.array([{}], object)})), ["is no .npz"]),
    "an npz of another model": (npz(lambda path: np.savez(path, **{"params/t": np.zeros(1)})), ["big_vision's SigLIP"]),
    "no npz": (npz(lambda path: None), ["a.npz does not exist"]),
    "an npz with a large array": (large_array, ["has the shape [100000000000, 8] and only"]),
    "a single tower": (
        lambda folder: mural_tf.load(foreign.write_bert(folder)), ["cannot be used alone", "import it into a workdir"]),
    "a broken file of Keras": (keras_file(b"broken"), ["not an HDF5 file of Keras weights or is damaged"]),
    "no file of Keras": (keras_file(None), ["a.h5 does not exist"]),
    "another network": (dense_network, ["missing (stem_conv/kernel)", "2 unexpected (dense/bias, dense/kernel)"]),
    "no file of PyTorch": (lambda folder: open_torch(folder / "x.pth"), ["does not exist"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name, tmp_path):
    assert_refused(*REFUSALS[name], tmp_path)
