"""Imported weights give what Hugging Face's PyTorch models give; needs `pip install -e '.[parity]'`.

The full-size test builds ALIGN as published (EfficientNet-B7 and BERT-base, 172 million parameters).
"""

import foreign_weights as foreign
import numpy as np
import pytest
from test_pretrained_align import IMAGE_EMBEDDINGS, LOGITS_PER_IMAGE, TEXT_EMBEDDINGS

from benchmarks.golden import golden_vectors
from benchmarks.golden_check import main as golden_check
from mural_lite.config import base_config
from mural_tf.pretrained.importers import import_weights
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.vocabulary_file import save_vocabulary
from mural_tf.text.word_pieces import WordPieceTokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def float32_config(model="align", max_length=64):
    config = base_config()
    config.model = model
    config.text_tower.max_length = max_length
    config.image_tower.precision = config.text_tower.precision = "float32"
    return config


def fill(model):
    """Gives every tensor of a PyTorch model the values that `foreign_weights` has for its name."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.dtype == torch.float32:
                tensor.copy_(torch.tensor(foreign.value(name, tuple(tensor.shape))))
    return model.eval()


def hugging_face_outputs(model, images, tokens):
    """Embeddings and logits of uint8 [B, S, S, 3] and tokens; pixels in [-1, 1]."""
    pixels = torch.tensor(images.astype(np.float32) / 127.5 - 1).permute(0, 3, 1, 2)
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(tokens["input_word_ids"]).long(),
            attention_mask=torch.tensor(tokens["input_mask"]).long(),
            pixel_values=pixels,
        )


def compare(model, expected, images, tokens):
    image, text = model.embed_images(images).numpy(), model.embed_texts(tokens).numpy()
    logits = image @ text.T / model.temperature.numpy()
    states = model.text_encoder(tokens).numpy()
    means = model.image_encoder(images.astype(np.float32) / 255.0).numpy()
    assert np.abs(image - expected.image_embeds.numpy()).max() < 1e-4
    assert np.abs(text - expected.text_embeds.numpy()).max() < 1e-4
    assert np.abs(logits - expected.logits_per_image.numpy()).max() < 1e-4
    assert np.abs(states - expected.text_model_output.last_hidden_state[:, 0].numpy()).max() < 1e-4
    pooled = expected.vision_model_output.pooler_output.numpy().reshape(means.shape)
    assert np.abs(means - pooled).max() < 1e-4 * np.abs(pooled).max()
    # The comparison would be worth little if everything were mapped to one point.
    assert np.min(image @ image.T) < 0.95 and np.min(text @ text.T) < 0.95


@pytest.fixture(scope="module")
def small_align(tmp_path_factory):
    """The same weights here and in PyTorch."""
    folder = foreign.write_align(tmp_path_factory.mktemp("align"))
    model, *_ = import_weights("align", folder, float32_config(max_length=16))
    return model, transformers.AlignModel.from_pretrained(folder).eval()


def test_small_align(small_align):
    model, theirs = small_align
    images, tokens = foreign.random_images(4, 33), foreign.random_tokens(len(foreign.PIECES))
    expected = hugging_face_outputs(theirs, images, tokens)
    compare(model, expected, images, tokens)
    # The numbers that tests without PyTorch rely on.
    assert np.abs(expected.image_embeds.numpy()[:2, :5] - IMAGE_EMBEDDINGS).max() < 1e-4
    assert np.abs(expected.text_embeds.numpy()[:2, :5] - TEXT_EMBEDDINGS).max() < 1e-4
    assert np.abs(expected.logits_per_image.numpy() - LOGITS_PER_IMAGE).max() < 1e-4


@pytest.mark.parametrize("side", [32, 33, 47, 289])
def test_image_tower_at_even_and_odd_sizes(small_align, side):
    """289 is ALIGN's size, where "same" padding would give another stem: 145 positions instead of 144."""
    model, theirs = small_align
    images = foreign.random_images(2, side)
    pixels = torch.tensor(images.astype(np.float32) / 127.5 - 1).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = theirs.vision_model(pixels).last_hidden_state
    means = expected.numpy().mean(axis=(2, 3))
    found = model.image_encoder(images.astype(np.float32) / 255.0).numpy()
    assert np.abs(found - means).max() < 1e-4 * np.abs(means).max()


def test_bert_and_labse(tmp_path):
    folder = foreign.write_bert(tmp_path)
    tokens = foreign.random_tokens(len(foreign.PIECES))
    with torch.no_grad():
        expected = transformers.BertModel.from_pretrained(folder).eval()(
            input_ids=torch.tensor(tokens["input_word_ids"]).long(),
            attention_mask=torch.tensor(tokens["input_mask"]).long(),
        )
    config = float32_config(max_length=16)
    config.image_tower.update(dict(width=0.25, depth=0.1, image_size=32, resize=32))
    config.embedding_size = 80
    bert, labse = (import_weights(source, folder, config)[0].text_encoder(tokens) for source in ("bert", "labse"))
    assert np.abs(bert - expected.last_hidden_state[:, 0].numpy()).max() < 1e-5
    assert np.abs(labse - expected.pooler_output.numpy()).max() < 1e-5


SENTENCES = [
    "Two young, White males are outside near many bushes.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "The quick brown fox jumps over the lazy dog (twice!).",
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Un Terrier de Boston court sur l’herbe verte devant une clôture blanche.",
    "Dívka v karate uniformě láme hůl předním kopem.",
    "Жеребёнок стоит на лугу, а рядом пасётся лошадь.",
    "一个男人和一个女人坐在公园的长椅上。",
    "赤い風船が青い空に浮かんでいます。",
    "लाल गुब्बारा नीले आसमान में उड़ रहा है।",
    "رجل يركب دراجة في الشارع",
    "빨간 풍선이 하늘에 떠 있다.",
    "Mtoto anacheza na mpira mwekundu uwanjani.",
    "İstanbul'da iki kedi güneşin altında uyuyor.",
    "naïve café — 100% déjà-vu… “quoted”",
    "It's 3.5km to the U.S. border; price: $1,299.99!",
]


@pytest.mark.parametrize("lower_case", [True, False])
def test_tokens_of_real_sentences(tmp_path, lower_case):
    """The word pieces of `BertTokenizer`, on a vocabulary that has every character of the sentences."""
    write_real_vocabulary(tmp_path, lower_case, size=1500)
    ours = sentence_tokenizer(tmp_path, lower_case)(SENTENCES, pad="longest")
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    expected = theirs(SENTENCES, padding=True, truncation=True, max_length=64, return_tensors="np")
    np.testing.assert_array_equal(ours["input_word_ids"], expected["input_ids"])
    np.testing.assert_array_equal(ours["input_mask"], expected["attention_mask"])


def write_real_vocabulary(folder, lower_case, size):
    pieces = build_vocabulary(SENTENCES, size, "tokenizers", lower_case, strip_accents=lower_case)
    pieces += [f"[unused{i}]" for i in range(size - len(pieces))]
    save_vocabulary(pieces, folder / "vocab.txt")
    foreign.write_json(folder / "tokenizer_config.json", do_lower_case=lower_case)


def sentence_tokenizer(folder, lower_case):
    options = dict(max_length=64, lower_case=lower_case, strip_accents=lower_case)
    return WordPieceTokenizer.load(folder / "vocab.txt", **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["align", "sentences"])
def test_golden_vectors(tmp_path, capsys, kind):
    folder = {"align": foreign.write_align, "sentences": foreign.write_sentences}[kind](tmp_path / kind)
    if kind == "sentences":
        pytest.importorskip("sentence_transformers")
    np.savez(tmp_path / "golden.npz", **golden_vectors(folder))
    golden_check(["golden_check", str(folder), str(tmp_path / "golden.npz")])
    assert "PASS" in capsys.readouterr().out


@pytest.mark.slow
def test_full_size_align(tmp_path):
    """The published architecture with random weights, saved by Hugging Face and imported; all outputs to 1e-4.

    BatchNorm's statistics are those of the images, as in a trained network.
    """
    vision = dict(image_size=289, hidden_dim=640, depthwise_padding=[])
    model = fill(transformers.AlignModel(transformers.AlignConfig(vision_config=vision, projection_dim=640)))
    images = foreign.random_images(4, 289)
    settle_statistics(model, images)
    model.save_pretrained(tmp_path)
    write_real_vocabulary(tmp_path, lower_case=True, size=30522)
    tokens = {k: v.numpy() for k, v in sentence_tokenizer(tmp_path, True)(SENTENCES, pad="longest").items()}
    expected = hugging_face_outputs(model, images, tokens)
    del model
    imported, *_ = import_weights("align", tmp_path, float32_config())
    assert imported.count_params() > 170e6
    compare(imported, expected, images, tokens)


def settle_statistics(model, images):
    """Leaves the images' own statistics in BatchNorm: one pass in training mode with a momentum that forgets at once.

    With statistics of chance, 55 blocks multiply rounding errors until PyTorch in float32 differs from PyTorch in
    float64 altogether. Residual branches are scaled down, as training leaves them, for the same reason.
    """
    norms = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.BatchNorm2d)}
    pixels = torch.tensor(images.astype(np.float32) / 127.5 - 1).permute(0, 3, 1, 2)
    with torch.no_grad():
        for name, norm in norms.items():
            norm.momentum = 1.0
            norm.train()
            if name.endswith("project_bn"):
                norm.weight *= 0.15
        model.vision_model(pixels)
    for norm in norms.values():
        norm.eval()


def spread(model):
    """Random weights under which other inputs give other outputs: as they are made, all would lie close together."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim == 0 or name.startswith("logit"):
                continue
            if "embedding" in name and weights.ndim == 2:
                weights.normal_(0, 1.0 if "token" in name or "word" in name else 0.3)
            elif weights.ndim > 1:
                last = name.endswith(("out_proj.weight", "fc2.weight", "output.dense.weight"))
                weights.normal_(0, (0.3 if last else 1.0) / weights[0].numel() ** 0.5)
            elif name.endswith("weight"):
                weights.uniform_(0.8, 1.2)
            else:
                weights.normal_(0, 0.02)
    return model.eval()
