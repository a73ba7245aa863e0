"""The bridge: targets in a folder, teachers from outside, students of another model, neighbours without training."""

import functools
import json
import pathlib
import re
import types

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from test_translation_distillation import METHOD, PAIRS, assert_equal, values

import mural_tf
from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.configs import bridge
from mural_tf.data import records
from mural_tf.data.streams import columns
from mural_tf.data.streams.columns import Column, ColumnFolder
from mural_tf.data.streams.stream import fingerprint
from mural_tf.encoders.kernels import set_fusion
from mural_tf.models import complete, linear
from mural_tf.models.build import build_model
from mural_tf.models.neighbours import NeighboursHead, with_smallest_keys
from mural_tf.models.states import states_of_texts
from mural_tf.runs.finetune import finetune, starting_point
from mural_tf.runs.pretrain import pretrain
from mural_tf.runs.teachers import Teacher, open_teacher
from mural_tf.text import vocabulary_file
from mural_tf.training.fit import compile_model
from mural_tf.training.trained_model import load_trained

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs/languages.md"
DIGEST = "00112233445566ff"


def vector_of(text: bytes, size: int = 4) -> np.ndarray:
    vector = np.random.default_rng(list(text)).normal(size=size).astype(np.float32)
    return vector / np.linalg.norm(vector)


def embed(texts, size: int = 4, unknown=()):
    return np.stack([0 * vector_of(t, size) if t in unknown else vector_of(t, size) for t in texts])


# Targets in a folder.


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(columns, "BLOCK", 3)


TEXTS = [b"%d" % number for number in range(10)]
STREAM = [(np.arange(begin, begin + 2) * 7 % 31, TEXTS[begin : begin + 2]) for begin in (0, 2, 0, 4, 6, 8)]


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_run_goes_on_with_the_very_same_blocks(tmp_path, small_blocks, capsys):
    ColumnFolder(tmp_path / "whole", 4, "float16", DIGEST).extend(STREAM, embed)
    calls = []

    def killed(texts):
        calls.append(texts)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return embed(texts)

    with pytest.raises(KeyboardInterrupt):
        ColumnFolder(tmp_path / "killed", 4, "float16", DIGEST).extend(STREAM, killed)
    with open(tmp_path / "killed/vectors", "ab") as file:
        file.write(b"half a block")
    again = ColumnFolder(tmp_path / "killed", 4, "float16", DIGEST)
    again.extend(STREAM, lambda texts: calls.append(texts) or embed(texts))
    assert "4 are embedded already; reading the data up to the new texts …" in capsys.readouterr().out
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    assert calls[1] == calls[2] and sum(map(len, calls[2:])) == 6  # what was finished is not embedded again
    keys = np.array([7 * 9 % 31, 0], np.int64)
    np.testing.assert_allclose(again.column().find(keys), embed([b"9", b"0"]), atol=1e-3)


def test_data_that_grew_adds_what_is_new(tmp_path, small_blocks):
    targets = ColumnFolder(tmp_path, 4, "float16", DIGEST)
    targets.extend(STREAM[:2], embed)
    targets.mark_complete("a", 0.0)
    assert ColumnFolder(tmp_path, 4, "float16", DIGEST).is_made_for("a") and not targets.is_made_for("b")
    seen = []
    targets.extend(STREAM, lambda texts: seen.extend(texts) or embed(texts))
    assert sorted(seen) == TEXTS[4:]


def test_the_mean_of_a_group_counts_a_text_once(tmp_path, small_blocks):
    targets = ColumnFolder(tmp_path, 4, "float32", DIGEST)
    targets.extend(STREAM, embed)
    groups, members = np.array([9, 5, 9, 9, 5, 1, 2, 3]), np.array([0, 7, 14, 0, 7, 0, 7, 14])
    targets.write_means(groups, members)
    mean = vector_of(b"0") + vector_of(b"2")
    expected = [mean / np.linalg.norm(mean), vector_of(b"1"), vector_of(b"2")]
    np.testing.assert_allclose(targets.column("group_").find(np.array([9, 5, 3])), expected, atol=1e-6)


def test_texts_without_a_vector_are_counted_bounded_and_teach_nothing(tmp_path, capsys):
    some = functools.partial(embed, unknown=(b"3",))
    targets = ColumnFolder(tmp_path, 4, "float16", DIGEST)
    targets.extend(STREAM, some)
    with pytest.raises(UserError, match="1 of 10 have no vector of the teacher's, such as '3': more than"):
        targets.mark_complete("a", 0.05)
    targets.mark_complete("a", 0.1)
    assert "such as '3': they are not used in training" in capsys.readouterr().out
    target = targets.column().find(np.array([21]))
    np.testing.assert_array_equal(target, np.zeros([1, 4]))


# Teachers.


def write_teacher(*arguments, **options):
    """The function of docs/languages.md."""
    (block,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(block, names)
    names["write_teacher"](*arguments, **options)


def test_a_folder_of_parquet_is_a_teacher(tmp_path):
    texts = ["a ‘quoted’\n text", "zwei", "三"]
    write_teacher(tmp_path / "one", texts, embed([text.encode() for text in texts]), shard=2)
    asked = [b"zwei", b"never seen", "三".encode()]
    teacher = open_teacher(str(tmp_path / "one"))
    np.testing.assert_allclose(teacher.embed(asked), embed(asked, unknown=asked[1:2]), atol=1e-3)
    write_teacher(tmp_path / "two", texts, embed([b"1", b"2", b"3"]), shard=2)
    assert open_teacher(str(tmp_path / "two")).digest != teacher.digest


def test_a_checkpoint_holds_a_digest_in_place_of_the_teacher(tmp_path):
    config = contract.toy_config(METHOD, method__cached=True, method__pivot="de", method__teacher="outside")
    model = build_model(config, toy_data.toy_tokenizer().vocabulary_size)
    model.outside_teacher = Teacher(DIGEST, functools.partial(embed, size=model.embedding_size))
    compile_model(model, complete(config))
    assert list(model.training_parts()) == ["teacher_digest"]
    model.teacher_digest.assign(np.frombuffer(bytes.fromhex(DIGEST), np.int64)[0])  # as a checkpoint has it
    model.outside_teacher = Teacher("ff" * 8, embed)
    with pytest.raises(UserError, match="method.teacher=outside is not the teacher that this run began"):
        model.columns(config, toy_data.toy_tokenizer(), tmp_path / "elsewhere")


@pytest.mark.slow
def test_states_of_texts_are_added_to_those_of_other_runs(tmp_path):
    tokenizer, config = toy_data.toy_tokenizer(), complete(contract.toy_config(METHOD))
    config.data.directory = str(tmp_path)
    asked = (b"w 1", b"w 2", b"thing w3", b"")
    ids = {text: float(tokenizer([text])["input_word_ids"].numpy().sum()) for text in asked}
    found = {}

    def encode(batches, training):
        return [tf.cast(tf.reduce_sum(batches[0]["input_word_ids"], axis=1, keepdims=True), tf.float32)]

    tower = types.SimpleNamespace(embedding_size=1, variables=())
    model = types.SimpleNamespace(text_encoder=tower, text_states=encode)
    for texts in ([b"w 1", b"w 2"], [b"w 2", b"thing w3", b"", b"w 2"], [b"w 1"], []):
        table = states_of_texts(texts, model, config, tokenizer, tmp_path)
        found[len(found)] = (next((tmp_path / ".states").glob("texts-*")) / "vectors").read_bytes()
        keys = fingerprint(tf.constant(texts, tf.string)).numpy()
        assert [ids[text] for text in texts] == (table.find(keys)[:, 0].tolist() if texts else [])
    assert [len(made) for made in found.values()] == [4, 8, 8, 8] and found[1].startswith(found[0])


def test_a_target_of_zeros_has_no_gradient():
    table, text = (
        Column(np.array([1, 2]), np.eye(2, 4, dtype=np.float16) * [[1], [0]]),
        tf.Variable([[0.6, 0.8, 0, 0]]),
    )
    for key, moves in ((1, True), (2, False)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.l2_normalize(text, axis=1) * table.look_up(tf.constant([key], tf.int64)))
        assert bool(np.any(tape.gradient(loss, text).numpy())) == moves


# Neighbours.


def test_neighbours_equal_the_oracle():
    rng = np.random.default_rng(0)
    head = NeighboursHead(keras.layers.Dense(3), 3, 4, name="image_text_head")
    states = rng.normal(size=[5, 6]).astype("f")
    head(states)
    known, vectors = (rng.normal(size=[7, size]).astype("f") for size in (3, 4))
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    head.known.assign(known)
    head.vectors.assign(vectors)
    head.temperature.assign(0.1)
    head.mean.assign(mean := rng.normal(size=3).astype("f") / 4)
    own = states @ head.own.kernel.numpy()
    own = own / np.linalg.norm(own, axis=1, keepdims=True) - mean
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    for row, found in zip(own, head(states).numpy()):
        weights = [np.exp(np.dot(row, other) / 0.1) for other in known]
        np.testing.assert_allclose(found, sum(w * v for w, v in zip(weights, vectors)) / sum(weights), rtol=1e-4)


def test_neighbours_are_centred_on_the_known_texts():
    """Students' vectors (0.8, 0.6) and (0.8, -0.6) have the mean (0.8, 0), so (0, 1) and (0, -1) are compared."""
    head = NeighboursHead(keras.layers.Activation("linear"), 2, 2, name="image_text_head")
    states, vectors = np.array([[1.6, 1.2], [0.4, -0.3]], "f"), np.eye(2, dtype="f")
    head(states)
    head.set_known(states, vectors)
    head.temperature.assign(2.0 / np.log(3.0))  # cosines of 1 and -1: weights of 3 to 1
    np.testing.assert_allclose(head.known, [[0, 1], [0, -1]], atol=1e-6)
    np.testing.assert_allclose(head(states), [[0.75, 0.25], [0.25, 0.75]], atol=1e-6)


# Linear.


@pytest.mark.parametrize("count", [30, 4])  # fewer texts than numbers of a state, too
def test_the_map_equals_least_squares_with_rows_for_the_ridge(count):
    rng = np.random.default_rng(0)
    states, vectors = rng.normal(size=[count, 6]) + 5, rng.normal(size=[count, 3]) - 2
    kernel, bias = linear.ridge(*linear.moments(states, vectors), 0.1)
    centred = states - states.mean(axis=0)
    penalty = np.sqrt(0.1 * (centred**2).sum() / 6) * np.eye(6)
    rows = np.concatenate([centred, penalty]), np.concatenate([vectors - vectors.mean(axis=0), np.zeros([6, 3])])
    expected = np.linalg.lstsq(*rows, rcond=None)[0]
    np.testing.assert_allclose(kernel, expected, atol=1e-9)
    np.testing.assert_allclose(states @ kernel + bias, centred @ expected + vectors.mean(axis=0), atol=1e-9)


# Whole runs.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Workdirs of a model of pictures and of a student, whose vocabulary and widths are its own."""
    set_fusion("off")
    folder = tmp_path_factory.mktemp("bridge")
    data = toy_data.write_toy_data(folder / "data", pairs=PAIRS, count=16)
    records.write_records(data, records.IMAGE_TEXT, "dev", toy_data.image_text_records(6))
    records.write_records(data, records.IMAGE_TEXT, "test", toy_data.image_text_records(6))
    pieces = toy_data.toy_tokenizer().vocabulary
    for name, more in (("align", []), ("labse", ["another"])):
        vocabulary_file.save_vocabulary([*pieces, *more], folder / f"{name}.txt")
        config = toy_data.toy_config(data, name)
        config.vocabulary.file = str(folder / f"{name}.txt")
        config.train.update(dict(steps=1, image_text_batch=4, text_text_batch=4, fused="off", export=name == "align"))
        if name == "labse":
            config.text_tower.hidden_size, config.embedding_size = 48, 40
            config.image_tower.projection = 40
        pretrain(config, folder / name)
    return folder


def bridged(trained, depth, **method):
    config = bridge.get_config(depth)
    config.data.directory, config.data.image_text_languages = str(trained / "data"), ("en",)
    config.method.update(dict(student=str(trained / "labse"), pivot="en", **method))
    config.text_tower.precision = config.image_tower.precision = "float32"
    if depth in ("head", "all"):
        config.train.update(dict(steps=2, image_text_batch=8, text_text_batch=8))
    config.train.update(dict(fused="off", export=depth in ("linear", "neighbours")))
    return config


@pytest.mark.slow
def test_the_student_takes_the_place_of_the_text_tower(trained):
    """And a source that is an export gives the same model."""
    for source in ("align", "align/export"):
        config, restore = starting_point(bridged(trained, "head"), str(trained / source))
        assert config.text_tower.hidden_size == 48 and config.text_tower.frozen and config.embedding_size == 80
        assert config.text_tower.adapter_size == 2_048
        assert config.vocabulary.file == str(trained / "labse/vocabulary.txt")
        assert config.method.teacher == str(trained / source)
        model = build_model(config, toy_data.toy_tokenizer().vocabulary_size + 1)
        restore(model)
        pictures, texts = (load_trained(trained / name)[0] for name in ("align", "labse"))
        assert_equal(values(model.image_encoder), values(pictures.image_encoder))
        assert_equal(values(model.text_encoder), values(texts.text_encoder))
        assert float(model.temperature) == float(pictures.temperature)
    config = bridged(trained, "all")
    config.method.student = str(trained / "data")
    with pytest.raises(UserError, match="method.student=.*data is neither a workdir nor an export nor a checkpoint"):
        starting_point(config, str(trained / "align"))


@pytest.mark.slow
@pytest.mark.parametrize("depth", ["linear", "neighbours", "head"])
def test_a_bridge_is_a_model_like_any_other(trained, depth, tmp_path, capsys):
    finetune(bridged(trained, depth), str(trained / "align"), tmp_path / depth)
    embedder, texts = mural_tf.load(tmp_path / depth), ["thing w1", "w 3", ""]
    assert embedder.encode_text(texts).shape == (3, 80)
    np.testing.assert_array_equal(
        embedder.encode_image([toy_data.picture(1)]),
        mural_tf.load(trained / "align").encode_image([toy_data.picture(1)]),
    )
    assert load_config(tmp_path / depth / "config.json").method.student == str(trained / "labse")
    if depth == "head":
        model, tokenizer, config, _ = load_trained(tmp_path / depth)
        pivots = [caption for r in records.read_records(trained / "data", records.IMAGE_TEXT, "train")
                  for caption, language in zip(r.captions, r.languages) if language == "en"]  # fmt: skip
        pairs = list(records.read_records(trained / "data", records.TEXT_PAIRS, "train"))
        known = sorted({*pivots, *(pair.text_a for pair in pairs), *(pair.text_b for pair in pairs)})
        states_of_known = model.text_states([tokenizer(tf.constant(known))], False)[0].numpy()
        head = model.image_text_head  # of states that are kept in float16
        np.testing.assert_allclose(head.mean, states_of_known.mean(axis=0), atol=1e-3)
        np.testing.assert_allclose(head.deviation, states_of_known.std(axis=0), atol=1e-3)
        further = bridged(trained, "all", teacher=str(trained / "align"))
        further.method.student = ""
        finetune(further, str(tmp_path / depth), tmp_path / "all")
        assert not load_config(tmp_path / "all/config.json").text_tower.frozen
    else:
        said = capsys.readouterr().out
        (recalls,) = re.findall(r"Mean recall on dev by (?:ridge|temperature): (.*?)\. Taken: (\S+)\.", said)
        of_dev = {value: float(recall) for value, recall in (part.split(": ") for part in recalls[0].split(", "))}
        assert of_dev[recalls[1]] == max(of_dev.values()) and len(of_dev) >= 7
        head = load_trained(tmp_path / depth)[0].image_text_head
        assert list(head.variables[0].shape) == ([48, 80] if depth == "linear" else [48, 40])
        exported = mural_tf.load(tmp_path / depth / "export")
        np.testing.assert_allclose(exported.encode_text(texts), embedder.encode_text(texts), atol=1e-5)
        assert (tmp_path / depth / "checkpoints/result").is_dir()
        said = json.loads((tmp_path / depth / ".targets/targets.json").read_text())
        assert said["missing"] == 0 and said["made_for"]
        finetune(bridged(trained, "head", teacher=str(tmp_path / depth)), str(trained / "align"), tmp_path / "taught")


def test_of_too_many_known_texts_translations_go_first():
    found = {(own, taught): (f"{own}", None) for own, taught in ((5, 5), (1, 5), (2, 2), (3, 2), (4, 4))}
    assert list(with_smallest_keys(found, 3)) == [(2, 2), (4, 4), (5, 5)]
    assert list(with_smallest_keys(found, 2)) == [(2, 2), (4, 4)]
    assert list(with_smallest_keys({(1, 5): 0, (3, 2): 0}, 1)) == [(1, 5)]
