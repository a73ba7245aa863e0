"""Folders in the forms that their libraries write: what a folder says is used, or the folder is refused in a line."""

import json

import foreign_checkpoints as families
import foreign_weights as foreign
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mural_tf.errors import UserError
from mural_tf.pretrained.importers import import_weights, starting_config
from mural_tf.text import tokenizer_of

TEXTS = ["a red balloon on the photo.", "Paris cat", "", "<row 70> the green cats"]


def change_tensors(folder, change, file="model.safetensors"):
    tensors = load_file(folder / file)
    change(tensors)
    save_file({name: np.array(value, order="C") for name, value in tensors.items()}, folder / file)


def imported(kind, folder):
    """The model, its configuration, its vocabulary, and the vectors of `TEXTS`."""
    config = starting_config(kind)
    if kind in ("bert", "labse"):
        config.image_tower.update(dict(width=0.25, depth=0.1, image_size=32, resize=32))
        config.embedding_size = 80
    config.text_tower.max_length = 16
    model, config, pieces = import_weights(kind, folder, config)
    tokens = tokenizer_of(config, pieces)(TEXTS, pad="longest")
    return model, config, pieces, model.text_encoder(tokens).numpy()


def write_json_vocabulary(folder):
    """A BERT whose pieces stand in tokenizer.json alone."""
    foreign.write_bert(folder)
    (folder / "vocab.txt").unlink()
    vocabulary = {piece: i for i, piece in enumerate(foreign.PIECES)}
    foreign.write_json(folder / "tokenizer.json", model={"type": "WordPiece", "vocab": vocabulary})
    return folder


MORE_ROWS = {
    "vocab.txt": ("bert", foreign.write_bert, "model.safetensors"),
    "tokenizer.json": ("bert", write_json_vocabulary, "model.safetensors"),
    "labse": ("labse", foreign.write_bert, "model.safetensors"),
    "xlm_roberta": ("bert", families.write_xlm_roberta, "model.safetensors"),
    "sentences": ("sentences", foreign.write_sentences, "model.safetensors"),
    "m_clip": ("m_clip", families.write_m_clip, "model.safetensors"),
    "open_clip": ("xlm_roberta_clip", families.write_open_clip, "open_clip_model.safetensors"),
    "align": ("align", foreign.write_align, "model.safetensors"),
}


@pytest.mark.parametrize("name", MORE_ROWS)
def test_a_table_may_have_more_rows_than_there_are_pieces(tmp_path, name):
    """multilingual-e5-small has 250,037 rows for 250,002 pieces; others are filled up to a multiple of 64."""
    kind, write, file = MORE_ROWS[name]
    folder = write(tmp_path / "folder")
    _, _, pieces, expected = imported(kind, folder)

    def more(tensors):
        (table,) = (key for key in tensors if key.endswith("word_embeddings.weight"))
        tensors[table] = np.concatenate([tensors[table], np.full((7, tensors[table].shape[1]), 1e6, np.float32)])

    def fewer(tensors):
        (table,) = (key for key in tensors if key.endswith("word_embeddings.weight"))
        tensors[table] = tensors[table][:20]

    change_tensors(folder, more, file)
    model, config, longer, found = imported(kind, folder)
    assert longer[: len(pieces)] == pieces and len(longer) == len(pieces) + 7 == config.vocabulary.size
    assert model.text_encoder.get_layer("embeddings").token_table.shape[0] == len(longer)
    np.testing.assert_array_equal(found, expected)
    change_tensors(folder, fewer, file)
    with pytest.raises(UserError, match=f"has {len(pieces)} pieces and the weights 20 rows: it is not the one of this"):
        imported(kind, folder)


def change_json(path, **values):
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.is_file() else {}), **values}))
