"""Checkpoints in the form in which their libraries write them today and wrote them before, small, with random weights.

The libraries themselves write the folders and give ids and vectors; needs `pip install -e '.[parity]'`.
"""

import base64
import importlib
import io
import json

import foreign_weights as foreign
import numpy as np
import pytest
from test_pretrained_parity import SENTENCES, spread

import mural_tf
from mural_tf.errors import UserError
from mural_tf.pretrained.importers import import_weights, kind_of, starting_config
from mural_tf.text import piece_models, tokenizer_of
from mural_tf.text.learning import build_vocabulary

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.slow

MORE = ["", "Red BALLOON, Äpfel!", "ｆｕｌｌ　width ①", "a  b\tc", "word " * 70]
TEXTS = [*SENTENCES, *MORE]
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)


def train_pieces(size=600):
    """A unigram model of SentencePiece's own, with its normalisation."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, *(word for text in SENTENCES for word in text.split())] * 3),
        model_writer=model,
        vocab_size=size,
        model_type="unigram",
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
        character_coverage=1.0,
        bos_id=1,
        eos_id=2,
        unk_id=0,
        minloglevel=2,
    )
    return model.getvalue()


def xlm_roberta_tokenizer(folder):
    """Hugging Face's tokenizer on SentencePiece's pieces, with fairseq's ids."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sentencepiece.bpe.model"
    path.write_bytes(train_pieces())
    pieces, settings = piece_models.parse_lines(piece_models.read_lines(path, fairseq=True), path)
    charsmap = base64.b64decode(settings["charsmap"])
    vocabulary = [(piece, score) for piece, score, _ in pieces]
    return transformers.XLMRobertaTokenizer(vocab=vocabulary, _spm_precompiled_charsmap=charsmap)


def word_piece_tokenizer(folder, lower_case=False, **options):
    texts = [*TEXTS, *map(str.lower, TEXTS)]  # a character without a piece is another matter
    pieces = build_vocabulary(texts, 900, "tokenizers", lower_case, strip_accents=lower_case)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return transformers.BertTokenizer(vocab=vocabulary, do_lower_case=lower_case, **options)


def tower(kind, rows, positions=96):
    """A text tower's random weights; `rows` of its table."""
    if kind == "distilbert":
        sizes = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64)
        config = transformers.DistilBertConfig(vocab_size=rows, max_position_embeddings=positions, **sizes)
        return spread(transformers.DistilBertModel(config))
    if kind == "bert":
        return spread(transformers.BertModel(transformers.BertConfig(vocab_size=rows, max_position_embeddings=positions, **SIZES)))
    config = transformers.XLMRobertaConfig(
        vocab_size=rows, max_position_embeddings=positions + 2, type_vocab_size=1, layer_norm_eps=1e-5, **SIZES
    )
    return spread(transformers.XLMRobertaModel(config))


# The tower, its pieces, rows beyond the pieces, length, pooling, Dense layers (size, activation, bias), normalised.
FORMS = {
    "multilingual-e5-small": ("bert", "unigram", 35, 64, "mean", [], True),
    "multilingual-e5-base": ("xlm-roberta", "unigram", 0, 64, "mean", [], True),
    "multilingual-e5-large": ("xlm-roberta", "unigram", 0, 64, "mean", [], True),
    "paraphrase-multilingual-MiniLM-L12-v2": ("bert", "unigram", 35, 24, "mean", [], False),
    "paraphrase-multilingual-mpnet-base-v2": ("xlm-roberta", "unigram", 0, 24, "mean", [], False),
    "distiluse-base-multilingual-cased-v1": ("distilbert", "words", 0, 24, "mean", [(20, "Tanh", True)], False),
    "distiluse-base-multilingual-cased-v2": ("distilbert", "words", 5, 24, "mean", [(20, "Tanh", True)], False),
    "LaBSE": ("bert", "words", 0, 40, "cls", [(32, "Tanh", True)], True),
    "bge-m3": ("xlm-roberta", "unigram", 0, None, "cls", [], True),
    "clip-ViT-B-32-multilingual-v1": ("distilbert", "words", 0, 24, "mean", [(20, "Identity", False)], False),
    "uncased": ("bert", "uncased words", 0, 24, "mean", [], True),
}


def make(name, folder, **options):
    """The library's model of a form, which it has written to `folder`."""
    kind, pieces, more, length, pooling, dense, normalised = FORMS[name]
    if pieces == "unigram":
        tokenizer = xlm_roberta_tokenizer(folder.parent / "tokenizer")
    else:
        tokenizer = word_piece_tokenizer(folder.parent / "tokenizer", lower_case=pieces.startswith("uncased"))
    start = folder.parent / "tower"
    tower(kind, len(tokenizer) + more).save_pretrained(start)
    tokenizer.model_max_length = length or 96
    tokenizer.save_pretrained(start)
    models, width = importlib.import_module("sentence_transformers.sentence_transformer.modules"), 32
    modules = [models.Transformer(str(start)), models.Pooling(32, pooling_mode=pooling)]
    for size, activation, bias in dense:
        torch.manual_seed(size)
        layer = models.Dense(width, size, bias=bias, activation_function=getattr(torch.nn, activation)())
        modules.append(layer)
        width = size
    if normalised:
        modules.append(models.Normalize())
    model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu", **options)
    model.save_pretrained(str(folder))
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def make_older(name, folder):
    """Changes a folder that the library wrote today into what it wrote before: other files, other names of keys."""
    kind, pieces, _, length, pooling, _, _ = FORMS[name]
    source = folder.parent / "tokenizer"
    vocabulary = "sentencepiece.bpe.model" if pieces == "unigram" else "vocab.txt"
    (folder / vocabulary).write_bytes((source / vocabulary).read_bytes())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if pieces != "unigram":  # only the slow tokenizer's files
        (folder / "tokenizer.json").unlink()
        settings = {"do_lower_case": settings["do_lower_case"], "model_max_length": 512, "tokenizer_class": "BertTokenizer"}
    else:
        settings |= {"model_max_length": 512, "tokenizer_class": "XLMRobertaTokenizer"}
        settings.pop("backend", None)
    foreign.write_json(folder / "tokenizer_config.json", **settings)
    names = {"bert": "bert", "xlm-roberta": "xlm-roberta", "distilbert": "distilbert"}
    (folder / "sentence_bert_config.json").unlink()
    foreign.write_json(folder / f"sentence_{names[kind]}_config.json", max_seq_length=length, do_lower_case=False)
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    said = {f"pooling_mode_{flag}": flag.startswith(pooling + "_") and "sqrt" not in flag for flag in flags}
    foreign.write_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=32, **said)
    rows = json.loads((folder / "modules.json").read_text())
    for row in rows:
        row["type"] = f"sentence_transformers.models.{row['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(rows))
    foreign.write_json(folder / "config_sentence_transformers.json", __version__={"sentence_transformers": "2.0.0"})


def ids_here(folder, texts):
    """Rows of ids without padding, from the importer's tokenizer."""
    kind = kind_of(folder)
    _, config, pieces = import_weights(kind, folder, starting_config(kind))
    tokens = tokenizer_of(config, pieces)(texts, pad="longest")
    return [row[mask == 1].tolist() for row, mask in zip(tokens["input_word_ids"].numpy(), tokens["input_mask"].numpy())]


def ids_there(model, texts):
    tokens = model.preprocess(texts)
    return [row[mask == 1].tolist() for row, mask in zip(tokens["input_ids"].numpy(), tokens["attention_mask"].numpy())]


@pytest.mark.parametrize("older", [False, True], ids=["today", "before"])
@pytest.mark.parametrize("name", FORMS)
def test_ids_and_vectors_are_the_librarys(tmp_path, name, older):
    folder = tmp_path / "folder"
    model = make(name, folder)
    if older:
        make_older(name, folder)
        if FORMS[name][3]:
            model.max_seq_length = FORMS[name][3]
    assert ids_here(folder, TEXTS) == ids_there(model, TEXTS)
    expected = model.encode(TEXTS, normalize_embeddings=True, batch_size=4)
    found = mural_tf.load(folder).encode_text(TEXTS)
    difference = np.abs(found - expected).max()
    print(f"FORM {name} {'before' if older else 'today'}: ids equal, vectors differ by {difference:.1e}")
    assert difference < 1e-5
    assert np.min(expected @ expected.T) < 0.98  # or little was compared


def test_prompts_and_lower_case_are_the_librarys(tmp_path):
    prompts = {"query": "query: ", "passage": "PASSAGE "}
    model = make("multilingual-e5-small", tmp_path / "folder", prompts=prompts, default_prompt_name="query")
    here = mural_tf.load(tmp_path / "folder")
    for name in (None, "query", "passage"):
        expected = model.encode(TEXTS, normalize_embeddings=True, prompt_name=name)
        assert np.abs(here.encode_text(TEXTS, prompt=name) - expected).max() < 1e-5
    expected = model.encode(TEXTS, normalize_embeddings=True, prompt="")
    assert np.abs(here.encode_text(TEXTS, prompt="") - expected).max() < 1e-5


@pytest.mark.parametrize("name", ["multilingual-e5-base", "distiluse-base-multilingual-cased-v1"])
def test_lower_casing_of_the_first_module(tmp_path, name):
    make(name, tmp_path / "folder")
    path = tmp_path / "folder/sentence_bert_config.json"
    foreign.write_json(path, **{**json.loads(path.read_text()), "do_lower_case": True})
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "folder"), device="cpu", local_files_only=True)
    expected = model.encode(TEXTS, normalize_embeddings=True)
    assert np.abs(mural_tf.load(tmp_path / "folder").encode_text(TEXTS) - expected).max() < 1e-5


def test_another_architecture_is_refused_by_its_name(tmp_path):
    """gte-multilingual-base is a model of its own code."""
    make("multilingual-e5-base", tmp_path / "folder")
    path = tmp_path / "folder/config.json"
    foreign.write_json(path, **{**json.loads(path.read_text()), "model_type": "new", "architectures": ["NewModel"]})
    with pytest.raises(UserError, match=r"model_type is 'new' \(NewModel\), expected 'bert', 'distilbert' or"):
        mural_tf.load(tmp_path / "folder")
