"""Folders in the forms that their libraries write: what a folder says is used, or the folder is refused in a line."""

import json

import foreign_checkpoints as families
import foreign_weights as foreign
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mural_lite.config import prompts_of
from mural_lite.errors import UserError
from mural_tf.encoders.by_length import encode_by_length
from mural_tf.pretrained.importers import configure, import_weights, starting_config
from mural_tf.pretrained.tokenizer_files import word_settings
from mural_tf.pretrained.vocabularies import read_vocabulary
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
        config.image_tower.update(dict(name="none", projection=80))
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


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name != "sentences")) for name in MORE_ROWS
])  # fmt: skip
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
    with pytest.raises(UserError, match=f"has {len(pieces)} pieces and the weights 20 rows: it is not this model.s"):
        imported(kind, folder)


def change_json(path, **values):
    """Sets keys of a JSON file; `None` stands for null, `...` for no such key."""
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in {**before, **values}.items() if value is not ...}))


def settings_of(folder, kind="sentences"):
    config, pieces = configure(kind, folder, starting_config(kind))
    return config, pieces


LENGTHS = [  # the first module's file, tokenizer_config.json's model_max_length, what is taken of 96 positions
    ({"max_seq_length": 16}, 64, 16),
    ({"max_seq_length": None}, 64, 64),
    ({}, 32, 32),
    ({}, 512, 96),
    ({"max_seq_length": 514}, 64, 96),
    ({}, 1e30, 96),
    ({}, float("inf"), 96),
    ({}, ..., 96),
]


@pytest.mark.parametrize("file", ["sentence_bert_config.json", "sentence_xlm-roberta_config.json"])
@pytest.mark.parametrize("said, of_tokenizer, expected", LENGTHS)
def test_the_length_is_the_folders_own(tmp_path, file, said, of_tokenizer, expected):
    folder = foreign.write_sentences(tmp_path)
    (folder / "sentence_bert_config.json").unlink()
    change_json(folder / file, do_lower_case=False, **said)
    change_json(folder / "tokenizer_config.json", model_max_length=of_tokenizer)
    assert settings_of(folder)[0].text_tower.max_length == expected


def test_a_dense_layer_with_tanh_need_not_be_square(tmp_path):
    """distiluse-base-multilingual: 768 -> 512; here 32 -> 20, by hand from the states of the same tower."""
    plain = foreign.write_sentences(tmp_path / "plain", dense=())
    folder = foreign.write_sentences(tmp_path / "dense", dense=(("Tanh", 20, True),))
    states = import_weights("sentences", plain, starting_config("sentences"))[0].text_encoder
    model, config, pieces = import_weights("sentences", folder, starting_config("sentences"))
    tokens = tokenizer_of(config, pieces)(TEXTS, pad="longest")
    layer = load_file(folder / "2_Dense/model.safetensors")
    expected = np.tanh(states(tokens).numpy() @ layer["linear.weight"].T + layer["linear.bias"])
    assert config.embedding_size == 20 and config.text_tower.pooler_size == 20
    assert np.abs(model.text_encoder(tokens).numpy() - expected).max() < 1e-5
    packed = encode_by_length(model.text_encoder, tokens, 2, training=False).numpy()
    assert np.abs(packed - expected).max() < 1e-5
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(model.embed_texts(tokens).numpy() - expected / lengths).max() < 1e-5


def test_prompts_and_casing_of_a_folder(tmp_path):
    folder = foreign.write_sentences(tmp_path)
    change_json(folder / "sentence_bert_config.json", do_lower_case=True)
    prompts = {"query": "query: ", "passage": "a=b ", "other": None}
    change_json(folder / "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query")
    config, pieces = settings_of(folder)
    assert config.vocabulary.prompt == "query: " and config.vocabulary.lower_case
    assert not config.vocabulary.strip_accents
    assert prompts_of(config) == {"query": "query: ", "passage": "a=b ", "other": ""}
    tokens = tokenizer_of(config, pieces)(["RED cat"], pad="longest")["input_word_ids"].numpy()[0].tolist()
    expected = ["[CLS]", "q", "##u", "##e", "##r", "##y", "[UNK]", "red", "cat", "[SEP]"]
    assert [pieces[i] for i in tokens] == expected
    change_json(
        folder / "config_sentence_transformers.json", prompts={"query": "", "document": ""}, default_prompt_name=None
    )
    given = starting_config("sentences")
    given.vocabulary.prompt = "query: "  # of who imports: the folder says nothing
    assert configure("sentences", folder, given)[0].vocabulary.prompt == "query: "


# tokenizer.json's steps of word pieces, and what becomes of a text.
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
SPLIT = {"type": "BertPreTokenizer"}
STEPS = {
    "as BERT's": ({**BERT, "lowercase": True}, SPLIT, "RÉD 赤い", ["re", "赤", "い"]),
    "cased": ({**BERT, "lowercase": False}, SPLIT, "réd 赤い", ["ré", "赤", "い"]),
    "accents kept": ({**BERT, "lowercase": True, "strip_accents": False}, SPLIT, "RÉ", ["ré"]),
    "a sequence": (
        {"type": "Sequence", "normalizers": [{"type": kind} for kind in ("NFD", "Lowercase", "StripAccents")]},
        SPLIT,
        "RÉ 赤い",
        ["re", "赤", "##い"],
    ),
    "Chinese is letters": ({**BERT, "lowercase": False, "handle_chinese_chars": False}, SPLIT, "赤い", ["赤", "##い"]),
    "two steps": (
        {**BERT, "lowercase": False},
        {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Punctuation"}]},
        "re-re",
        ["re", "-", "re"],
    ),
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "re", "ré", "-", "赤", "い", "##い", "R"]


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_tokenizer_json_are_done(tmp_path, name):
    """The expected pieces are what Hugging Face's `tokenizers` 0.23 gives."""
    normalizer, splitter, text, expected = STEPS[name]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {piece: i for i, piece in enumerate(PIECES)}}
    foreign.write_json(tmp_path / "tokenizer.json", model=model, normalizer=normalizer, pre_tokenizer=splitter)
    config = starting_config("sentences")
    pieces = read_vocabulary(tmp_path, config)
    ids = tokenizer_of(config, pieces)([text.replace("D", "").replace("d", "")], pad="longest")["input_word_ids"]
    assert [pieces[i] for i in ids.numpy()[0]] == ["[CLS]", *expected, "[SEP]"]


@pytest.mark.parametrize(
    "name, said, expected",
    [
        ("BertTokenizer", {"do_lower_case": True}, (True, True, ())),
        (None, {"do_lower_case": True, "strip_accents": False}, (True, False, ())),
        ("BertTokenizer", {"tokenize_chinese_chars": False}, (False, False, ("whole_chinese",))),
        ("PreTrainedTokenizerFast", {"do_lower_case": True}, (False, False, ())),
    ],
)
def test_a_class_of_its_own_makes_its_steps_of_its_settings(tmp_path, name, said, expected):
    """As transformers: BertTokenizer's keys win over tokenizer.json, which a class without steps takes as it is."""
    with_tokenizer(tmp_path, normalizer={**BERT, "lowercase": False}, pre_tokenizer=SPLIT)
    change_json(tmp_path / "tokenizer_config.json", tokenizer_class=name, **said)
    config = starting_config("sentences")
    read_vocabulary(tmp_path, config)
    found = config.vocabulary
    assert (found.lower_case, found.strip_accents, found.cleaning) == expected


def with_tokenizer(folder, **parts):
    vocabulary = {piece: i for i, piece in enumerate(foreign.PIECES)}
    foreign.write_json(folder / "tokenizer.json", model={"type": "WordPiece", "vocab": vocabulary}, **parts)


@pytest.mark.parametrize(
    "steps, expected", [(["Lowercase", "Precompiled"], ("lower_characters",)), (["Precompiled"], ())]
)
def test_steps_before_the_pieces_of_xlm_roberta(tmp_path, steps, expected):
    folder = families.write_xlm_roberta(tmp_path)
    with_steps(folder, *({"type": step, "precompiled_charsmap": ""} for step in steps))
    assert configure("bert", folder, starting_config("bert"))[0].vocabulary.cleaning == expected


def with_steps(folder, *steps):
    normalizer = {"type": "Sequence", "normalizers": steps}
    change_json(folder / "tokenizer.json", model={"type": "Unigram"}, normalizer=normalizer)


def test_added_tokens_are_rows_and_said(tmp_path, caplog):
    folder = foreign.write_sentences(tmp_path)
    count = len(foreign.PIECES)
    change_json(folder / "added_tokens.json", **{"<new>": count})

    def more(tensors):
        name = "embeddings.word_embeddings.weight"
        tensors[name] = np.concatenate([tensors[name], tensors[name][:1]])

    change_tensors(folder, more)
    with caplog.at_level("WARNING"):
        assert len(settings_of(folder)[1]) == count + 1
    assert "adds 1 tokens, among them '<new>': in a text they are letters here" in caplog.text


# Numbers and sizes that lie.
def scaled(value, shape=(1,)):
    return lambda tensors: tensors.update(logit_scale=np.full(shape, value, np.float32))


@pytest.mark.parametrize("kind, write", [("siglip", families.write_siglip), ("clip", families.write_clip)])
def test_the_temperature_is_that_of_the_scale(tmp_path, kind, write):
    """exp(-scale), and the range in which training keeps it reaches there: scale 2.5 gives 0.0821, 5 gives 0.0067."""
    for scale, low, high in ((2.5, 0.01, 2.0), (5.0, np.exp(-5.0), 2.0), (-1.0, 0.01, np.exp(1.0))):
        folder = write(tmp_path / f"{scale}", change=scaled(scale))
        loss = configure(kind, folder, starting_config(kind))[0].loss
        assert abs(loss.temperature - np.exp(-scale)) < 1e-6 * np.exp(-scale)
        np.testing.assert_allclose(loss.temperature_range, (low, high), rtol=1e-6)


@pytest.mark.parametrize(
    ("pieces", "is_lower"),
    [(["[PAD]", "a", "cat"], True), (["[PAD]", "a", "Cat"], False), (["[PAD]", "A", "B"], False)],
)
def test_one_capital_in_a_vocabulary_alone_says_that_a_bert_is_cased(tmp_path, pieces, is_lower):
    assert word_settings(tmp_path, pieces)["lower_case"] is is_lower
