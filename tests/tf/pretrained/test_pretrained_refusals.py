"""What importers of foreign checkpoints refuse: tests/snapshots/refusals_of_checkpoints.txt has each call's message."""

import io
import json
import types
import zipfile

import foreign_checkpoints as families
import foreign_weights as foreign
import numpy as np
import tensorflow as tf
from refusals import assert_refused
from snapshots import assert_refusals
from test_pretrained_align import small_config
from test_pretrained_families import WRITERS, config_of
from test_pretrained_forms import BERT, change_json, scaled, settings_of, with_steps, with_tokenizer
from test_pretrained_sentences import text_config

import mural_tf
from mural_tf.demo.torch_file import open_torch
from mural_tf.encoders import build_image_encoder
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


def set_in(file, **values):
    return lambda folder: change_json(folder / file, **values)


def written(file, text):
    return lambda folder: (folder / file).write_text(text)


def without(file):
    return lambda folder: (folder / file).unlink()


def of_sentences(spoil):
    """The call that takes the settings of a folder of Sentence-Transformers, once it is spoilt."""

    def call(folder):
        foreign.write_sentences(folder)
        spoil(folder)
        settings_of(folder)

    return call


def template(*names):
    parts = [{"Sequence": {"id": "A"}} if name == "A" else {"SpecialToken": {"id": name}} for name in names]
    return {"type": "TemplateProcessing", "single": parts}


def with_module(name, path=None):
    def change(folder):
        rows = json.loads((folder / "modules.json").read_text())
        rows[2]["type"] = name
        rows[2]["path"] = path or rows[2]["path"]
        (folder / "modules.json").write_text(json.dumps(rows))

    return change


CONFIG, PIXELS, WEIGHTS = "config.json", "preprocessor_config.json", "model.safetensors"
TOKENIZER, TOWER, POOLING = "tokenizer_config.json", "sentence_bert_config.json", "1_Pooling/config.json"
PROMPTS, DENSE, MODULES = "config_sentence_transformers.json", "2_Dense/config.json", "modules.json"
SAID = [  # keys of a folder of Sentence-Transformers, by file
    (TOKENIZER, dict(tokenizer_class="BertJapaneseTokenizer")),
    (TOKENIZER, dict(word_tokenizer_type="mecab")),
    (TOKENIZER, dict(subword_tokenizer_type="character")),
    (TOKENIZER, dict(do_basic_tokenize=False)),
    (TOKENIZER, dict(never_split=["red"])),
    (TOKENIZER, dict(padding_side="left")),
    (TOKENIZER, dict(truncation_side="left")),
    (TOKENIZER, dict(cls_token="<s>")),
    (TOKENIZER, dict(unk_token={"content": "<unk>"})),
    (TOKENIZER, dict(tokenizer_class=["x"])),
    (TOWER, dict(transformer_task="fill-mask")),
    (TOWER, dict(processing_kwargs={"text": {"max_length": 8}})),
    (TOWER, dict(something_new=1)),
    (TOWER, dict(query_length=32)),
    (TOWER, dict(modality_config={"text": {"method": "get_text_features"}})),
    (POOLING, dict(pooling_mode_max_tokens=True)),
    (POOLING, dict(pooling_mode=["cls", "mean"])),
    (POOLING, dict(weights=[1, 2])),
    (DENSE, dict(use_residual=True)),
    (DENSE, dict(module_input_name="token_embeddings")),
    (DENSE, dict(out_features=10**9)),
    (PROMPTS, dict(model_type="SparseEncoder")),
    (PROMPTS, dict(prompts={"a": "b "}, default_prompt_name="query")),
    (PROMPTS, dict(prompts={"a": 7})),
    (CONFIG, dict(auto_map={"AutoModel": "modeling.X"})),
    (CONFIG, dict(is_decoder=True)),
    (CONFIG, dict(pruned_heads={"0": [1]})),
    (CONFIG, dict(quantization_config={"bits": 4})),
    (CONFIG, dict(activation=["gelu"])),
    (CONFIG, dict(model_type="new", architectures=["NewModel"])),
    (CONFIG, dict(dim=4096, n_layers=60, hidden_dim=16384)),
]
PARTS = [  # parts of tokenizer.json
    dict(pre_tokenizer={"type": "WhitespaceSplit"}),
    dict(pre_tokenizer=None),
    dict(pre_tokenizer={"type": "Punctuation", "behavior": "Removed"}),
    dict(normalizer={"type": "NFKC"}),
    dict(normalizer={**BERT, "clean_text": False}),
    dict(normalizer={"type": "NFD"}),
    dict(normalizer=["x"]),
    dict(post_processor=template("A", "[SEP]")),
]
SENTENCES = {
    **{f"{file}: {values}": of_sentences(set_in(file, **values)) for file, values in SAID},
    **{f"parts {parts}": of_sentences(lambda folder, parts=parts: with_tokenizer(folder, **parts)) for parts in PARTS},
    "ReLU": lambda folder: settings_of(foreign.write_sentences(folder, dense=(("ReLU", 20, True),))),
    "no modules": of_sentences(without(MODULES)),
    "modules that are no JSON": of_sentences(written(MODULES, "{")),
    "modules that are no list": of_sentences(written(MODULES, '{"a": 1}')),
    "a module outside": of_sentences(with_module("sentence_transformers.models.Dense", "x/..")),
    "a module of its own": of_sentences(with_module("x.LSTM")),
    "an LSTM": of_sentences(with_module("sentence_transformers.models.LSTM")),
    "pooling without the prompt": pooling_without_the_prompt,
}


def xlm_roberta(*steps):
    def call(folder):
        families.write_xlm_roberta(folder)
        with_steps(folder, *steps)
        configure("bert", folder, starting_config("bert"))

    return call


CHARACTERS = {"type": "Precompiled", "precompiled_charsmap": ""}


# CLIP's vocabulary, beside which its pictures are none the worse.
def clip_vocabulary(spoil):
    def call(folder):
        families.write_clip(folder)
        spoil(folder)
        configure("clip", folder, config_of("clip"), parts=["image_encoder"])
        mural_tf.load(folder)

    return call


CLIP = {
    "no vocabulary": without("vocab.json"),
    "no begin": lambda folder: foreign.write_json(folder / "vocab.json", a=0),
    "a gap": lambda folder: foreign.write_json(folder / "vocab.json", **{"<|startoftext|>": 0, "<|endoftext|>": 2}),
    "GPT-2's class": set_in(TOKENIZER, tokenizer_class="GPT2Tokenizer"),
    "another end": set_in(TOKENIZER, eos_token="</s>"),
    "another step": set_in("tokenizer.json", pre_tokenizer={"type": "ByteLevel"}),
}


# ModernBERT.
def modernbert(**values):
    return lambda folder: import_weights("modernbert", families.write_modernbert(folder, **values), text_config())


def modernbert_pieces(change):
    def call(folder):
        path = families.write_modernbert(folder) / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        change(tokenizer)
        path.write_text(json.dumps(tokenizer))
        import_weights("modernbert", folder, text_config())

    return call


def other_words(tokenizer):
    tokenizer["normalizer"] = None
    split = {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_only]}


def without_bytes(tokenizer, normalizer=None, space=False):
    tokenizer["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": space}
    tokenizer["model"]["byte_fallback"] = False
    tokenizer["normalizer"] = normalizer


def without_begin(tokenizer):
    del tokenizer["post_processor"]["single"][0]


LOCAL = {"rope_theta": 70.0, "rope_type": "yarn"}
KEYS = [
    {"attention_bias": True},
    {"mlp_bias": True},
    {"norm_bias": True},
    {"is_decoder": True},
    {"rope_scaling": {"factor": 2}},
    {"attention_sinks": 4},
    {"hidden_activation": "relu"},
    {"rope_parameters": {"sliding_attention": LOCAL}},
    {"rope_parameters": {"rope_theta": 5.0}},
    {"layer_types": ["full_attention"] * 3},
    {"layer_types": ["sliding_attention"] * 5},
    {"max_position_embeddings": 16},
    {"num_hidden_layers": 4},
    {"intermediate_size": 41},
]
PIECES = {
    "lower case": lambda tokenizer: without_bytes(tokenizer, {"type": "Lowercase"}),
    "no bytes": without_bytes,
    "a space before": lambda tokenizer: without_bytes(tokenizer, space=True),
    "other words": other_words,
    "no begin": without_begin,
    "text alone": lambda tokenizer: tokenizer.pop("post_processor"),
}


# NaFlex and mexma-siglip2.
def naflex(change=lambda tensors: None, **values):
    return lambda folder: import_weights(
        "naflex", families.write_naflex(folder, change, **values), starting_config("naflex")
    )


def naflex_that_is_trained(folder):
    families.write_naflex(folder)
    tower = configure("naflex", folder, starting_config("naflex"))[0].image_tower
    tower.cached = False
    build_image_encoder(tower)


def mexma(change):
    return lambda folder: import_weights(
        "mexma_siglip", families.write_mexma_siglip(folder, change), starting_config("mexma_siglip")
    )


def with_tensor(name, *shape):
    return lambda tensors: tensors.update({name: np.zeros(shape, np.float32)})


NAFLEX = [
    {"model_type": "siglip3"},
    {"vision_config": {"num_patches": 15}},
    {"vision_config": {"vision_use_head": False}},
    {"vision_config": {"num_channels": 4}},
    {"text_config": {"longtext_len": 196}},
    {"text_config": {"layer_scale": 1}},
    {"vision_config": {"patch_size": 9}},
    {"vision_config": {**families.SIZES, "patch_size": 8, "num_patches": 25}},
]
MEXMA = {
    "another layer": with_tensor("adapter.weight", 3, 3),
    "another number": with_tensor("text_projector.scale", 3),
    "a second tower": with_tensor("teacher.embeddings.word_embeddings.weight", 3, 3),
    "no scale": lambda tensors: tensors.pop("logit_scale"),
    "no norm": lambda tensors: tensors.pop("vision_model.encoder.layers.1.layer_norm2.bias"),
}
ALIGN = {
    "of CLIP": set_in(CONFIG, model_type="clip"),
    "another space": set_in(CONFIG, projection_dim=64),
    "another activation": set_in(CONFIG, text_config={"hidden_act": "gelu_new"}),
    "other kernels": set_in(CONFIG, vision_config={"kernel_sizes": [3] * 7}),
    "no residuals": without_residuals,
    "another scale of pixels": set_in(PIXELS, include_top=True),
    "no squares": set_in(PIXELS, size={"height": 40, "width": 41}),
    "no JSON": written(CONFIG, "{"),
    "no vocabulary": without("vocab.txt"),
    "a small vocabulary": written("vocab.txt", "[PAD]\na\n"),
    "weights that are pickles": lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
    "no weights": without(WEIGHTS),
}
ACTIVATIONS = [
    ("siglip", "vision_config", "relu"),
    ("siglip", "vision_config", ["gelu"]),
    ("siglip", "text_config", {"a": 1}),
    ("clip", "text_config", "relu"),
    ("clip", "vision_config", ["gelu"]),
]
REFUSALS = {
    **{f"ALIGN: {name}": spoilt("align", foreign.write_align, spoil) for name, spoil in ALIGN.items()},
    "another last layer of LaBSE": spoilt("labse", foreign.write_bert, set_in(DENSE, activation_function="x.Identity")),
    "too many positions": too_many_positions,
    **SENTENCES,
    "XLM-RoBERTa: lower case last": xlm_roberta(CHARACTERS, {"type": "Lowercase"}),
    "XLM-RoBERTa: another prefix": xlm_roberta({"type": "Prepend", "prepend": "x"}),
    **{f"CLIP: {name}": clip_vocabulary(spoil) for name, spoil in CLIP.items()},
    **{f"ModernBERT: {values}": modernbert(**values) for values in KEYS},
    **{f"ModernBERT: {name}": modernbert_pieces(change) for name, change in PIECES.items()},
    "ModernBERT: no pieces": lambda folder: (
        without("tokenizer.json")(families.write_modernbert(folder)),
        import_weights("modernbert", folder, text_config()),
    ),
    **{f"NaFlex: {values}": naflex(**values) for values in NAFLEX},
    "NaFlex: FG-CLIP 2's tensor": naflex(with_tensor("longtext_head.weight", 2, 2)),
    "NaFlex: training": naflex_that_is_trained,
    **{f"mexma: {name}": mexma(change) for name, change in MEXMA.items()},
    "SigLIP: NaFlex": checkpoint("siglip", model_type="siglip2"),
    "SigLIP: a model of another kind": checkpoint("siglip", model_type="blip"),
    "SigLIP: no head of images": checkpoint("siglip", vision_config={"vision_use_head": False}),
    "patches that leave a rest": checkpoint("clip", vision_config={"image_size": 45, "patch_size": 8}),
    "a missing tensor": checkpoint("siglip", lambda tensors: tensors.pop("vision_model.head.probe")),
    **{
        f"{tower}.hidden_act of {kind} is {value}": checkpoint(kind, **{tower: {"hidden_act": value}})
        for kind, tower, value in ACTIVATIONS
    },
    "a tower beyond its weights": checkpoint("clip", vision_config={"hidden_size": 65536, "image_size": families.SIDE}),
    **{f"a scale of {kind} out of range": checkpoint(kind, scaled(-1000)) for kind in ("siglip", "clip")},
    **{f"five scales of {kind}": checkpoint(kind, scaled(1, (5,))) for kind in ("siglip", "clip")},
    "no pieces": checkpoint("siglip", spoil=without("spiece.model")),
    "another pooling of XLM-RoBERTa": checkpoint("xlm_roberta_clip", hf_pooler_type="cls_pooler"),
    "two texts for SigLIP": text_tower("siglip", families.write_clip),
    "texts of another size": text_tower("clip", families.write_m_clip, dimensions=7),
    "an npz of a pickle": npz(lambda path: np.savez(path, **{"params/t": np.array([{}], object)})),
    "an npz of another model": npz(lambda path: np.savez(path, **{"params/t": np.zeros(1)})),
    "no npz": npz(lambda path: None),
    "an npz with a large array": large_array,
    "a single tower": lambda folder: mural_tf.load(foreign.write_bert(folder)),
    "no file of Keras": keras_file(None),
    "another network": dense_network,
    "no file of PyTorch": lambda folder: open_torch(folder / "x.pth"),
}


def damaged_align(folder):
    (foreign.write_align(folder) / WEIGHTS).write_bytes(b"12345678" * 9)
    import_weights("align", folder, small_config())


IN_A_LIBRARYS_WORDS = [  # which change: the words that are ours
    (damaged_align, "model.safetensors is damaged or no safetensors file"),
    (keras_file(b"broken"), "a.h5 is not an HDF5 file of Keras weights or is damaged"),
    (npz(lambda path: path.write_text("no arrays")), "a.npz is no .npz file of weights or is damaged"),
]


def test_refusals(tmp_path):
    assert_refusals("refusals_of_checkpoints", REFUSALS, tmp_path)
    for number, (call, words) in enumerate(IN_A_LIBRARYS_WORDS):
        (tmp_path / f"library{number}").mkdir()
        assert_refused(call, [words], tmp_path / f"library{number}")
