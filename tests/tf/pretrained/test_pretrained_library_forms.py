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
from mural_tf.pretrained import clip_texts, open_clip_siglip
from mural_tf.pretrained.importers import import_weights, kind_of, starting_config
from mural_tf.runs.teachers import open_teacher
from mural_tf.text import piece_models, tokenizer_of
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.sentence_pieces import SentencePieceTokenizer

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


def gemma_tokenizer(size=700):
    """Hugging Face's tokenizer on byte pairs with byte fallback, as Gemma and mmBERT have them."""
    from tokenizers import Tokenizer, models, normalizers, trainers

    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trained.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, limit_alphabet=250, show_progress=False)
    trained.train_from_iterator(SENTENCES * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = transformers.GemmaTokenizer(vocab=model["vocab"], merges=merges, add_bos_token=True, add_eos_token=True)
    tokenizer.padding_side = "right"
    return tokenizer


def tower(kind, rows, positions=96):
    """A text tower's random weights; `rows` of its table."""
    if kind == "modernbert":
        sizes = {**SIZES, "num_hidden_layers": 5, "intermediate_size": 48}
        ids = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2, cls_token_id=2, sep_token_id=1)
        local = dict(local_attention=8, max_position_embeddings=positions, vocab_size=rows)
        return spread(transformers.ModernBertModel(transformers.ModernBertConfig(**sizes, **ids, **local)))
    if kind == "distilbert":
        sizes = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64)
        config = transformers.DistilBertConfig(vocab_size=rows, max_position_embeddings=positions, **sizes)
        return spread(transformers.DistilBertModel(config))
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=rows, max_position_embeddings=positions, **SIZES)
        return spread(transformers.BertModel(config))
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
    "snowflake-arctic-embed-l-v2.0": ("xlm-roberta", "unigram", 0, 80, "cls", [], True),
    "granite-embedding-311m-multilingual-r2": ("modernbert", "gemma", 0, None, "cls", [], True),
    "mmBERT": ("modernbert", "gemma", 7, 64, "mean", [(20, "Identity", False)], False),
}


def make(name, folder, **options):
    """The library's model of a form, which it has written to `folder`."""
    kind, pieces, more, length, pooling, dense, normalised = FORMS[name]
    if pieces == "unigram":
        tokenizer = xlm_roberta_tokenizer(folder.parent / "tokenizer")
    elif pieces == "gemma":
        tokenizer = gemma_tokenizer()
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
    if pieces != "gemma":  # whose pieces stand in tokenizer.json alone
        (folder / vocabulary).write_bytes((source / vocabulary).read_bytes())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if pieces == "gemma":
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": {"content": "<pad>"}}
        values = json.loads((folder / "config.json").read_text())
        bases = values.pop("rope_parameters")
        del values["layer_types"]
        values |= dict(global_attn_every_n_layers=3, position_embedding_type="sans_pos", layer_norm_eps=1e-5)
        values |= {
            f"{ours}_rope_theta": bases[f"{theirs}_attention"]["rope_theta"]
            for ours, theirs in (("global", "full"), ("local", "sliding"))
        }
        foreign.write_json(folder / "config.json", **values)
    elif pieces != "unigram":  # only the slow tokenizer's files
        (folder / "tokenizer.json").unlink()
        settings = {"do_lower_case": settings["do_lower_case"], "tokenizer_class": "BertTokenizer"}
    else:
        settings["tokenizer_class"] = "XLMRobertaTokenizer"
        settings.pop("backend", None)
    foreign.write_json(folder / "tokenizer_config.json", **{**settings, "model_max_length": 512})
    names = {"bert": "bert", "xlm-roberta": "xlm-roberta", "distilbert": "distilbert", "modernbert": "bert"}
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
    return without_padding(tokens["input_word_ids"].numpy(), tokens["input_mask"].numpy())


def ids_there(model, texts):
    tokens = model.preprocess(texts)
    return without_padding(tokens["input_ids"].numpy(), tokens["attention_mask"].numpy())


def without_padding(ids, mask):
    return [row[kept == 1].tolist() for row, kept in zip(ids, mask)]


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


@pytest.mark.parametrize("name", ["MEXMA", "mmBERT"])
def test_towers_that_transformers_saved(tmp_path, name):
    """MEXMA's XLM-RoBERTa, and mmBERT's `ModernBertForMaskedLM`: a text tower, whose first state is compared."""
    if name == "MEXMA":
        tokenizer = xlm_roberta_tokenizer(tmp_path / "tokenizer")
        saved = model = tower("xlm-roberta", len(tokenizer))
    else:
        tokenizer = gemma_tokenizer()
        saved = spread(transformers.ModernBertForMaskedLM(tower("modernbert", len(tokenizer)).config))
        model = saved.model
    folder = tmp_path / "folder"
    saved.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    family = kind_of(folder)
    assert family == ("bert" if name == "MEXMA" else "modernbert")
    model_here, config, pieces = import_weights(family, folder, starting_config(family))
    here = tokenizer_of(config, pieces)(TEXTS, pad="longest")
    there = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")
    assert np.array_equal(here["input_word_ids"], there["input_ids"]) and config.text_tower.pooling == "first"
    with torch.no_grad():
        expected = model(**there).last_hidden_state[:, 0].numpy()
    difference = np.abs(model_here.text_encoder(here) - expected).max()
    print(f"FORM {name}, a tower: ids equal, states differ by {difference:.1e}")
    assert difference < 1e-5


@pytest.mark.parametrize("form", ["multilingual-e5-small", "granite-embedding-311m-multilingual-r2"])
def test_prompts_and_lower_case_are_the_librarys(tmp_path, form):
    prompts = {"query": "query: ", "passage": "PASSAGE "}
    model = make(form, tmp_path / "folder", prompts=prompts, default_prompt_name="query")
    here = mural_tf.load(tmp_path / "folder")
    for name in (None, "query", "passage"):
        expected = model.encode(TEXTS, normalize_embeddings=True, prompt_name=name)
        assert np.abs(here.encode_text(TEXTS, prompt=name) - expected).max() < 1e-5
    expected = model.encode(TEXTS, normalize_embeddings=True, prompt="")
    assert np.abs(here.encode_text(TEXTS, prompt="") - expected).max() < 1e-5


# Models of images and texts.
SIDE, PATCH = 32, 8
TOWER = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=12, intermediate_size=96)


def pictures(count=4):
    import PIL.Image

    return [PIL.Image.fromarray(image) for image in foreign.random_images(count, SIDE)]


def compare_towers(folder, images, texts, shown, sentences, most=1e-5):
    """Our vectors against the library's, of prepared pixels [B, 3, S, S] and of sentences."""
    here = mural_tf.load(folder)
    found = here.encode_text(sentences)
    difference = np.abs(found - texts).max()
    pixels = np.abs(here.encode_image(shown) - images).max()
    print(f"FORM {folder.name}: texts differ by {difference:.1e}, pictures by {pixels:.1e}")
    assert difference < 1e-5
    assert pixels < most
    assert np.min(texts @ texts.T) < 0.99 and np.min(images @ images.T) < 0.995


def normalised(output):
    vectors = getattr(output, "pooler_output", output).detach().numpy()
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture
def tiny_timm(monkeypatch):
    """timm's `vit_base_patch16_siglip_224`, narrow and shallow, so that open_clip makes a small model of that name."""
    timm = pytest.importorskip("timm")
    from timm.models import vision_transformer

    def make(name, **sizes):
        def build(pretrained=False, pretrained_cfg=None, pretrained_cfg_overlay=None, cache_dir=None, **options):
            fixed = dict(img_size=SIDE, patch_size=PATCH, class_token=False, global_pool="map", embed_dim=48, depth=2)
            return vision_transformer.VisionTransformer(**{**fixed, **sizes, **options})

        monkeypatch.setitem(timm.models._registry._model_entrypoints, name, build)

    return make


@pytest.mark.parametrize("second", [False, True], ids=["siglip", "siglip2"])
def test_open_clips_siglip(tmp_path, tiny_timm, second):
    """As open_clip saves its SigLIPs, and Marqo's are: timm's names, exact GELU, texts canonicalised."""
    open_clip = pytest.importorskip("open_clip")
    from open_clip.tokenizer import basic_clean, canonicalize_text

    name = "vit_so400m_patch16_siglip_256" if second else "vit_base_patch16_siglip_224"
    heads = dict(num_heads=16, act_layer="gelu_tanh") if second else dict(num_heads=12)
    tiny_timm(name, **heads)
    text = dict(context_length=16, vocab_size=0, width=48, heads=4, layers=2, no_causal_mask=True, pool_type="last")
    text |= dict(norm_kwargs={"eps": 1e-6}, tokenizer_kwargs={"clean": "canonicalize"}, hf_tokenizer_name="x")
    text |= dict(act_kwargs={"approximate": "tanh"}, proj_type="none") if second else dict(proj_bias=True)
    vision = dict(image_size=SIDE, timm_model_name=name, timm_model_pretrained=False, timm_pool="map", timm_proj="none")
    folder = tmp_path / f"open_clip_{'siglip2' if second else 'siglip'}"
    pieces = write_siglip_pieces(folder, second)
    text["vocab_size"] = len(pieces) + 3  # rows without pieces
    settings = dict(embed_dim=48, init_logit_bias=-10, custom_text=True, vision_cfg=vision, text_cfg=text)
    model = open_clip.model.CustomTextCLIP(**{k: v for k, v in settings.items() if k != "custom_text"})
    spread(model)
    preprocess = dict(mean=[0.5] * 3, std=[0.5] * 3, interpolation="bicubic", resize_mode="squash")
    save_open_clip(model, folder, settings, preprocess)
    sentences = ["Two young, White_males are outside", "red balloon!", "", "a b c d e f g h i j k l m n o p q r s"]
    end, pad = (1, 0) if second else (1, 1)
    sentences += FTFY_SENTENCES
    rows = pieces_of(folder, [canonicalize_text(basic_clean(text)) for text in sentences], 16, end, pad)
    shown = pictures()
    pixels = torch.stack([torch.tensor(np.array(image)).permute(2, 0, 1) for image in shown]).float() / 127.5 - 1
    with torch.no_grad():
        images = normalised(model.encode_image(pixels))
        texts = normalised(model.encode_text(torch.tensor(rows)))
    compare_towers(folder, images, texts, shown, sentences)


def save_open_clip(model, folder, settings, preprocess):
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, str(folder / "open_clip_model.safetensors"))
    foreign.write_json(folder / "open_clip_config.json", model_cfg=settings, preprocess_cfg=preprocess)


def write_siglip_pieces(folder, second):
    """SentencePiece's model as SigLIP (mT5's unigram) or SigLIP 2 (Gemma's byte pairs) has it; returns its pieces."""
    import foreign_checkpoints as families

    pieces = families.BPE if second else families.UNIGRAM
    settings = families.BPE_SETTINGS if second else families.SETTINGS
    families.write_pieces(folder / ("tokenizer.model" if second else "spiece.model"), pieces, settings)
    return pieces


def pieces_of(folder, texts, length, end, pad):
    """Full rows of SentencePiece's own ids."""
    import sentencepiece

    (path,) = [*folder.glob("spiece.model"), *folder.glob("tokenizer.model")]
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    rows = [[*processor.encode(text)[: length - 1], end] for text in texts]
    return np.array([row + [pad] * (length - len(row)) for row in rows])


@pytest.mark.parametrize("second", [False, True], ids=["siglip", "siglip2"])
def test_siglip_of_transformers(tmp_path, second):
    """As transformers saves it, and as Sentence-Transformers does, with modules.json beside."""
    folder = tmp_path / ("siglip2" if second else "siglip")
    pieces = write_siglip_pieces(folder, second)
    vision = dict(image_size=SIDE, patch_size=PATCH, **TOWER)
    text = dict(vocab_size=len(pieces) + 3, max_position_embeddings=16, projection_size=48, **TOWER)
    model = spread(transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision)))
    model.save_pretrained(folder)
    processor = transformers.SiglipImageProcessor(size={"height": SIDE, "width": SIDE}, resample=2 if second else 3)
    processor.save_pretrained(folder)
    sentences = ["two young white males", "red balloon", "", "a b c d e f g h i j k l m n o p q r s"]
    rows = pieces_of(folder, sentences, 16, 1, 0 if second else 1)
    shown = pictures()
    with torch.no_grad():
        images = normalised(model.get_image_features(**processor(images=shown, return_tensors="pt")))
        texts = normalised(model.get_text_features(input_ids=torch.tensor(rows)))
    compare_towers(folder, images, texts, shown, sentences)
    row = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    (folder / "modules.json").write_text(json.dumps([row]))
    assert kind_of(folder) == "siglip"
    compare_towers(folder, images, texts, shown, sentences)


def test_naflex_of_transformers(tmp_path):
    """As transformers saves it, with pictures of odd shapes; pixels are Pillow's but for rounding."""
    import PIL.Image

    folder = tmp_path / "naflex"
    module = importlib.import_module("transformers.models.siglip2.image_processing_pil_siglip2")
    pieces = gemma_tokenizer()
    vision = dict(num_patches=36, patch_size=PATCH, **TOWER)
    text = dict(vocab_size=len(pieces), max_position_embeddings=16, projection_size=48, **TOWER)
    model = spread(transformers.Siglip2Model(transformers.Siglip2Config(text_config=text, vision_config=vision)))
    model.save_pretrained(folder)
    processor = module.Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=40)
    processor.save_pretrained(folder)
    options = dict(add_eos_token=True, padding_side="right")
    tokenizer = transformers.Siglip2Tokenizer(vocab=pieces._vocab, merges=pieces._merges, **options)
    tokenizer.save_pretrained(folder)
    sides = [(32, 200), (37, 53), (60, 64), (1, 1), (7, 300)]
    shown = [PIL.Image.fromarray(foreign.random_images(1, 304)[0, :height, :width]) for height, width in sides]
    rows = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=16, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        images = normalised(model.get_image_features(**processor(images=shown, return_tensors="pt")))
        texts = normalised(model.get_text_features(input_ids=rows))
    assert ids_here(folder, TEXTS) == rows.tolist()
    compare_towers(folder, images, texts, shown, TEXTS, most=1e-3)


def test_mexma_siglip_of_its_parts(tmp_path):
    """The model's class is not in transformers: its two towers are, and what joins them is written by hand."""
    from safetensors.torch import save_file

    folder = tmp_path / "mexma_siglip"
    tokenizer = xlm_roberta_tokenizer(folder)
    tokenizer.model_max_length = 40
    tokenizer.save_pretrained(folder)
    size = dict(image_size=SIDE, patch_size=PATCH, **TOWER)
    vision = spread(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**size)))
    text = tower("xlm-roberta", len(tokenizer))
    torch.manual_seed(3)
    head = torch.nn.Linear(32, 48)
    parts = {"vision_model": vision, "text_model": text, "text_projector": head}
    tensors = {"logit_scale": torch.tensor(2.5), "logit_bias": torch.tensor(-7.0)}
    for part, module in parts.items():
        tensors |= {f"{part}.{name}": value.contiguous() for name, value in module.state_dict().items()}
    save_file(tensors, str(folder / "model.safetensors"))
    configs = dict(vision_config=size, text_config=text.config.to_dict())
    foreign.write_json(folder / "config.json", architectures=["MexmaSigLIP"], **configs)
    processor = transformers.SiglipImageProcessor(size={"height": SIDE, "width": SIDE}, resample=2)
    processor.save_pretrained(folder)
    tokens = tokenizer(TEXTS, padding=True, truncation=True, max_length=40, return_tensors="pt")
    shown = pictures()
    with torch.no_grad():
        images = normalised(vision(**processor(images=shown, return_tensors="pt")))
        texts = normalised(head(text(**tokens).last_hidden_state[:, 0]))
    here = ids_here(folder, TEXTS)
    assert here == without_padding(tokens["input_ids"].numpy(), tokens["attention_mask"].numpy())
    compare_towers(folder, images, texts, shown, TEXTS)


def test_clip_that_sentence_transformers_saved(tmp_path):
    """`clip-ViT-B-32` lies in a folder below modules.json; beside it the multilingual text tower."""
    from mural_tf.runs.import_pretrained import import_into_workdir

    folder, below = tmp_path / "clip", tmp_path / "clip/0_CLIPModel"
    vision = dict(image_size=SIDE, patch_size=PATCH, **TOWER)
    config = transformers.CLIPConfig(text_config=dict(vocab_size=20, **TOWER), vision_config=vision, projection_dim=20)
    model = spread(transformers.CLIPModel(config))
    model.save_pretrained(below)
    size = dict(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = transformers.CLIPImageProcessor(**size)
    processor.save_pretrained(below)
    row = {"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}
    (folder / "modules.json").write_text(json.dumps([row]))
    assert kind_of(folder) == "clip"
    texts = make("clip-ViT-B-32-multilingual-v1", tmp_path / "texts/folder")
    import_into_workdir("clip", folder, tmp_path / "workdir", text=tmp_path / "texts/folder")
    shown = pictures()
    with torch.no_grad():
        images = normalised(model.get_image_features(**processor(images=shown, return_tensors="pt")))
    compare_towers(tmp_path / "workdir", images, texts.encode(TEXTS, normalize_embeddings=True), shown, TEXTS)


CLIP_SENTENCES = [*TEXTS, "It's a cat's THEY'LL 3½ e\u0301 don't!!", "x\u200by\u00a0z _under_score_ ''s", "word " * 70]


# What ftfy's tables change, and open_clip with them.
FTFY_SENTENCES = ["l’hôtel “Bleu”", "ａｂｃ ２台", "ｶﾞﾗｽ ﾊﾟﾝ", "ﬁne oﬃce", "\ufeffx\x07y\x85", "\x1b[31mred\x1b[0m „so‟"]


def write_clip_pieces(folder, today):
    """OpenAI's byte pairs, which open_clip carries, as transformers saves them today or before; returns a tokenizer."""
    open_clip = pytest.importorskip("open_clip")
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    original = open_clip.tokenizer.SimpleTokenizer()
    ids = {names.get(piece, piece): number for piece, number in original.encoder.items()}
    merges = sorted(original.bpe_ranks, key=original.bpe_ranks.get)
    tokenizer = transformers.CLIPTokenizer(vocab=ids, merges=merges)
    folder.mkdir(parents=True, exist_ok=True)
    if today:
        tokenizer.save_pretrained(folder)
    else:
        (folder / "vocab.json").write_text(json.dumps(ids))  # "path" is a piece
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges)]), encoding="utf-8")
    return tokenizer


@pytest.mark.parametrize("today", [True, False], ids=["today", "before"])
def test_clip_of_transformers(tmp_path, today):
    folder = tmp_path / "clip"
    tokenizer = write_clip_pieces(folder, today)
    vision = dict(image_size=SIDE, patch_size=PATCH, **TOWER)
    text = dict(vocab_size=len(tokenizer), max_position_embeddings=40, eos_token_id=49407, **TOWER)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=20)
    model = spread(transformers.CLIPModel(config))
    model.save_pretrained(folder)
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    tokens = tokenizer(CLIP_SENTENCES, padding=True, truncation=True, max_length=40, return_tensors="pt")
    assert ids_here(folder, CLIP_SENTENCES) == without_padding(
        tokens["input_ids"].numpy(), tokens["attention_mask"].numpy()
    )
    shown = pictures()
    with torch.no_grad():
        images = normalised(model.get_image_features(**processor(images=shown, return_tensors="pt")))
        texts = normalised(model.get_text_features(**tokens))
    compare_towers(folder, images, texts, shown, CLIP_SENTENCES)
    # A teacher's texts are embedded by that tower.
    taught = open_teacher(str(folder)).embed([text.encode() for text in CLIP_SENTENCES])
    assert np.abs(taught - texts).max() < 1e-5


@pytest.mark.parametrize("quick", [True, False], ids=["openai", "laion"])
def test_clip_of_open_clip(tmp_path, quick):
    """Two towers in one class, as OpenAI's, and in two, as `custom_text` has them; the activation of each."""
    open_clip = pytest.importorskip("open_clip")
    folder = tmp_path / f"open_clip_{'openai' if quick else 'laion'}"
    write_clip_pieces(folder, today=True)
    vision = dict(image_size=SIDE, layers=2, width=48, patch_size=PATCH, head_width=12, mlp_ratio=2.0)
    text = dict(context_length=40, vocab_size=49408, width=32, heads=4, layers=2)
    settings = dict(embed_dim=20, quick_gelu=quick, vision_cfg=vision, text_cfg=text)
    model = spread((open_clip.model.CLIP if quick else open_clip.model.CustomTextCLIP)(**settings))
    save_open_clip(model, folder, settings, dict(interpolation="bicubic"))
    tokenizer = open_clip.tokenizer.SimpleTokenizer(context_length=40)
    sentences = [text for text in (*CLIP_SENTENCES, *FTFY_SENTENCES) if not text.isspace()]
    rows = tokenizer(sentences)
    ends = rows.argmax(dim=-1).tolist()
    there = [row[: end + 1].tolist() for row, end in zip(rows, ends)]
    assert ids_here(folder, sentences) == there
    shown = pictures()
    mean, deviation = (np.array(values, np.float32) for values in (PIXEL_MEAN, PIXEL_DEVIATION))
    pixels = np.stack([(np.array(image, np.float32) / 255 - mean) / deviation for image in shown])
    with torch.no_grad():
        images = normalised(model.encode_image(torch.tensor(pixels).permute(0, 3, 1, 2)))
        texts = normalised(model.encode_text(rows))
    compare_towers(folder, images, texts, shown, sentences)


def test_ids_of_open_clips_xlm_roberta(tmp_path):
    """LAION's XLM-R CLIPs: open_clip cleans a text before Hugging Face's tokenizer."""
    open_clip = pytest.importorskip("open_clip")
    tokenizer = xlm_roberta_tokenizer(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lines = piece_models.read_lines(tmp_path / "sentencepiece.bpe.model", fairseq=True)
    cleaning = open_clip_siglip.CLEANING["whitespace"]
    ours = SentencePieceTokenizer(lines, layout="xlm_roberta", cleaning=cleaning, max_length=40)
    sentences = [*TEXTS, *FTFY_SENTENCES]
    theirs = open_clip.tokenizer.HFTokenizer(str(tmp_path), context_length=40)(sentences)
    assert ours(sentences)["input_word_ids"].numpy().tolist() == theirs.tolist()


PIXEL_MEAN, PIXEL_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def test_ids_of_clips_real_pieces(tmp_path):
    """Of many texts in many scripts: pieces are joined by their names here, and by pairs of names there."""
    from drawn_texts import drawn_texts

    tokenizer = write_clip_pieces(tmp_path, today=True)
    config = starting_config("clip")
    lines = clip_texts._read_lines(tmp_path)
    config.vocabulary.update(dict(builder="sentence_pieces", layout="clip", cleaning=clip_texts.CLEANING, size=49408))
    texts = [*CLIP_SENTENCES, *drawn_texts()]
    config.text_tower.max_length = 4_096
    ours = tokenizer_of(config, lines).tokenize(texts).merge_dims(1, 2).to_list()
    theirs = tokenizer(texts, add_special_tokens=False)["input_ids"]
    different = [text for text, a, b in zip(texts, ours, theirs) if a != b]
    print(f"FORM clip: ids of {len(different)} of {len(texts)} texts differ: {different[:5]!r}")
    assert not different
