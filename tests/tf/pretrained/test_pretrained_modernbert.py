"""ModernBERT in transformers' folders and Sentence-Transformers': that library's numbers, and keys that are refused.

The whole form, ids and vectors, is compared with the libraries in test_pretrained_library_forms.py.
"""

import json

import foreign_checkpoints as families
import foreign_weights as foreign
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from test_pretrained_sentences import text_config

import mural_tf
from mural_lite.byte_words import EXPRESSIONS, GPT2, GPT4O
from mural_lite.config import base_config
from mural_lite.litert.few_pieces import PLACES, FewPieces
from mural_lite.litert.pieces import SentencePieces
from mural_tf.encoders.by_length import encode_by_length
from mural_tf.models.build import build_model
from mural_tf.pretrained.importers import configure_towers, fill_towers, import_weights, importer_of, kind_of
from mural_tf.runs.lite import write_places
from mural_tf.text import tokenizer_of

TEXTS = ["the hethe", "", "the the the th e éh the he the"]
# Two ways in which transformers writes where layers are local, and the bases of rotations: 5.24's, and 4's.
TODAY = {
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_theta": 9000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 70.0, "rope_type": "default"},
    },
    "hidden_activation": "silu",
}
BEFORE = {"global_attn_every_n_layers": 3, "global_rope_theta": 9000.0, "local_rope_theta": 70.0}
# What transformers 5.24 with PyTorch gives for `TEXTS`: the first five numbers of the first states, and of the means.
NUMBERS = [
    ([[0.630186, 0.2083198, -1.6079971, -1.5207249, -0.4191869],
      [-0.5075816, 0.3516558, 1.297338, -1.3895857, -0.102188],
      [-0.4589715, -0.1931843, -0.0774127, -1.3168555, -0.1525599]],
     [[0.370939, 0.1791547, -1.0951433, -0.9352086, -0.2818675],
      [-0.3425127, -0.0758106, 0.7513576, -1.6595829, 0.4251528],
      [0.6382056, -0.070302, -0.2592866, -0.7431285, -0.2389684]]),
    ([[0.380772, 0.0969846, -1.5866475, -1.4534665, -0.8718584],
      [-0.4548701, 0.2795845, 1.375942, -1.5290736, -0.1660971],
      [-0.5527851, 0.1939639, -0.7388501, -0.8842563, -0.0056332]],
     [[0.1385386, 0.2005814, -1.2092631, -0.9541024, -0.2117061],
      [-0.3233035, -0.1249741, 0.7589519, -1.854773, 0.4192473],
      [0.5589002, -0.1134725, -0.3344124, -0.674007, -0.290385]]),
]  # fmt: skip
IDS = [
    [2, 264, 261, 263, 261, 264, 261, 1, *[0] * 10],
    [2, 1, *[0] * 16],
    [2, 264, 261, 262, 262, 260, 265, 263, 266, 263, 199, 173, 265, 262, 263, 261, 262, 1],
]


def write_sentences(folder, pooling, **values):
    """As Sentence-Transformers saves it: a ModernBERT and its pooling."""
    families.write_modernbert(folder, **values)
    foreign.write_json(folder / "sentence_bert_config.json", max_seq_length=32)
    foreign.write_json(folder / "1_Pooling" / "config.json", embedding_dimension=32, pooling_mode=pooling)
    types = {"": "Transformer", "1_Pooling": "Pooling"}
    rows = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in types.items()]
    (folder / "modules.json").write_text(json.dumps(rows))
    return folder


def states_of(folder, kind):
    """The imported tower's states of `TEXTS`, its rows of ids, the tower and its inputs."""
    model, config, pieces = import_weights(kind, folder, text_config())
    tokens = tokenizer_of(config, pieces)(TEXTS, pad="longest")
    return model.text_encoder(tokens).numpy(), tokens, model


def with_heads(tensors):
    """As `ModernBertForMaskedLM` is saved: the tower is a part of it."""
    for name in list(tensors):
        tensors[f"model.{name}"] = tensors.pop(name)
    tensors["head.dense.weight"] = np.zeros((32, 32), np.float32)
    tensors["decoder.bias"] = np.zeros(9, np.float32)


@pytest.mark.parametrize("number", [0, 1], ids=["today", "before"])
def test_numbers_of_transformers(tmp_path, number):
    first, mean = NUMBERS[number]
    values = (TODAY, BEFORE)[number]
    folder = families.write_modernbert(tmp_path / "plain", with_heads if number else lambda tensors: None, **values)
    assert kind_of(folder) == "modernbert"
    states, tokens, _ = states_of(folder, "modernbert")
    assert tokens["input_word_ids"].numpy().tolist() == IDS
    assert np.abs(states[:, :5] - first).max() < 1e-5
    states, tokens, model = states_of(write_sentences(tmp_path / "sentences", "mean", **values), "sentences")
    assert np.abs(states[:, :5] - mean).max() < 1e-5
    packed = encode_by_length(model.text_encoder, tokens, 2, training=False)
    assert np.abs(packed - states).max() < 1e-5


def test_a_packed_first_state(tmp_path):
    """The last layer computes one token's state, and here it is a local layer: 4 of 5 layers and the window matter."""
    folder = write_sentences(tmp_path, "cls", **{**BEFORE, "local_attention": 2})
    states, tokens, model = states_of(folder, "sentences")
    packed = encode_by_length(model.text_encoder, tokens, 2, training=False)
    assert np.abs(packed - states).max() < 1e-5
    every = model.text_encoder.token_states(tokens, training=False)
    assert np.abs(every[:, 0] - states).max() < 1e-5


def test_folder_is_loaded_as_it_is(tmp_path):
    folder = write_sentences(tmp_path, "cls", **TODAY)
    foreign.write_json(folder / "config_sentence_transformers.json", prompts={"query": "the ", "document": ""})
    embedder = mural_tf.load(folder)
    vectors = embedder.encode_text(TEXTS)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
    asked = embedder.encode_text(TEXTS, prompt="query")
    assert np.abs(asked - embedder.encode_text([f"the {text}" for text in TEXTS])).max() < 1e-6
    assert np.abs(asked - vectors).max() > 1e-3


def test_tower_of_a_run_that_trains_it(tmp_path):
    """`text_tower.weights`: the tower's sizes and pieces come with it, and every variable gets a gradient."""
    config = base_config()
    config.model = "align"
    config.image_tower.update(dict(name="features", feature_size=8, projection=0))
    config.embedding_size = 8
    config.text_tower.update(dict(weights=str(families.write_modernbert(tmp_path)), precision="float32", dropout=0.1))
    config, pieces = configure_towers(config)
    model = build_model(config, len(pieces))
    fill_towers(model, config)
    assert (config.text_tower.name, config.vocabulary.layout) == ("modernbert", "<bos> <eos> <pad>")
    tokens = tokenizer_of(config, pieces)(TEXTS, pad="longest")
    with tf.GradientTape() as tape:
        states = encode_by_length(model.text_encoder, tokens, 2, training=True)
        loss = tf.reduce_sum(states * tf.random.stateless_normal(states.shape, [1, 2]))
    gradients = tape.gradient(loss, model.text_encoder.trainable_variables)
    assert all(np.abs(tf.convert_to_tensor(gradient)).max() > 0 for gradient in gradients)


WORDS = [
    "a red balloon, it's THEY'LL We'Ve", "a  b   c\t\td \n x\n\n  y  ", "  ", "", "x\u00a0\u00a0y z\u3000w",
    "1234567 a1b22 ½ $12.50", "!!!\n/ path/to ...\r\n\r\nnext", "FooBar fooBAR ǅx", "cafe\u0301 é", "\x00a\ufffdb",
    "tab\tword  \tword\u200b", "नदी के किनारे", "雨の中を走る赤いバス", "👩‍👧 and a ❤️", "МОСКВА зимой",
]  # fmt: skip


def byte_level_tokenizer(words, pruned):
    """A small tokenizer of Hugging Face's with GPT-2's or GPT-4o's words; `pruned`: without half of the pairs."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=pruned))
    if words == GPT2:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(EXPRESSIONS[words]), "isolated")
        in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS * 3, trainer)
    if pruned:
        content = json.loads(tokenizer.to_str())
        content["model"]["merges"] = content["model"]["merges"][::2]
        tokenizer = Tokenizer.from_str(json.dumps(content))
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


@pytest.mark.parametrize("words, pruned", [(GPT2, False), (GPT4O, False), (GPT4O, True)])
def test_byte_level_ids_are_hugging_faces(tmp_path, words, pruned):
    """As English ModernBERTs have them, and granite-embedding-97m, of whose words some are pieces without pairs."""
    tokenizer = byte_level_tokenizer(words, pruned)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    foreign.write_json(tmp_path / "tokenizer_config.json", pad_token="[PAD]")
    foreign.write_safetensors(tmp_path, families.modernbert_shapes(tokenizer.get_vocab_size() + 2))
    config = text_config()
    config.text_tower.max_length = 200
    lines = importer_of("modernbert").vocabulary(tmp_path, config)
    assert (config.vocabulary.layout, config.vocabulary.cleaning[-1]) == ("[CLS] [SEP] [PAD]", words)
    assert len(lines) == tokenizer.get_vocab_size() + 2 and pruned == any("user_defined" in line for line in lines)
    ours = tokenizer_of(config, lines)
    tokens = ours(WORDS, pad="longest")
    counts = tokens["input_mask"].numpy().sum(axis=1)
    rows = [row[:count].tolist() for row, count in zip(tokens["input_word_ids"].numpy(), counts)]
    assert rows == [encoded.ids for encoded in tokenizer.encode_batch(WORDS)]
    settings, content = ours.for_lite()
    pieces = SentencePieces(content, config, settings)
    assert [ids for ids, _ in pieces.rows([text.encode() for text in WORDS])] == rows
    write_places(content, tmp_path / PLACES)
    pieces.few = FewPieces(content, tmp_path / PLACES, sentencepiece.SentencePieceProcessor)
    assert [pieces.rows([text.encode()])[0][0] for text in WORDS] == rows
    with np.load(tmp_path / PLACES) as places:
        assert len(places["always"]) < 10  # words that are pieces may be a hundred thousand
