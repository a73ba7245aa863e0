"""What a `lite/` makes of texts and pictures without TensorFlow: the graph's ids, its pixels within three of 255."""

import hashlib
import io
import json
import types

import numpy as np
import pytest
import tensorflow as tf
from drawn_texts import drawn_texts
from PIL import Image

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.fingerprint import TEXTS, Original, take_fingerprint
from mural_lite.litert.few_pieces import PLACES
from mural_lite.litert.pieces import IN_LINES, MODEL, SHORT, VOCABULARY, pieces_of
from mural_lite.litert.pixels import prepare
from mural_lite.pictures import BadImage
from mural_tf.data.images import decode_features, prepare_image
from mural_tf.runs.lite import write_places
from mural_tf.text.byte_pair import BytePairTokenizer
from mural_tf.text.language_words import WordTokenizer, build_words
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.sentence_pieces import SentencePieceTokenizer
from mural_tf.text.word_pieces import WordPieceTokenizer

TRAINING = drawn_texts(300)
ODD = [
    b"", b" ", b"a red  heart.", b"Stra\xc3\x9fe, \xce\xa3\xce\x91\xce\xa3!", "ลูกโป่งสีแดง".encode(),
    "漢字かな、カナ".encode(), b"\xf0\x9f\x99", b"<de> ein Haus", b"<xx> a", b"<b>a", b"\r\n\t a",
    b"\xff\xfe\x80abc", b"a\x00b\x01\x1f\x7fc\xc2\x85d", "a\u200bb\u200cc\u200dd\u00ade\u2028f\u3000g\u00a0h".encode(),
    "ｆｕｌｌ ①ﬁ İI ı é e\u0301 नमस्ते ශ්‍රී".encode(), "🙂👩‍👩‍👧 \U0010ffff".encode(),
    b"under_score-and.dots" * 30, b"x" * 5000, ("é" * 3000).encode(), (" \u200d" * 2000 + "end").encode(),
]  # fmt: skip


def config_of(**vocabulary):
    config = base_config()
    config.vocabulary.update(vocabulary)
    config.text_tower.max_length = 16
    return config


def word_pieces(**options):
    vocabulary = build_vocabulary(TRAINING, 900, **{k: v for k, v in options.items() if k != "cleaning"})
    return config_of(**options), WordPieceTokenizer(vocabulary, max_length=16, **options)


def sentence_pieces(layout, cleaning=(), model="unigram"):
    settings = dict(model=model, byte_fallback=False, add_dummy_prefix=True, remove_extra_whitespaces=True,
                    escape_whitespaces=True, treat_whitespace_as_suffix=False, charsmap="")  # fmt: skip
    letters = sorted(set("".join(TRAINING[:200])) - {" "})
    pairs = sorted({a + b for text in TRAINING for a, b in zip(text, text[1:]) if " " not in a + b})[:800]
    pieces = [["<s>", 0.0, "control"], ["<pad>", 0.0, "control"], ["</s>", 0.0, "control"], ["<unk>", 0.0, "unknown"]]
    pieces += [["▁", -3.0, "normal"], *([letter, -9.0 - i / 100, "normal"] for i, letter in enumerate(letters))]
    pieces += [[pair, -9.0 - i / 50, "normal"] for i, pair in enumerate(pairs)]  # some tie with their two letters
    lines = [json.dumps(piece) for piece in [[*pieces[0], settings], *pieces[1:]]]
    config = config_of(builder="sentence_pieces", layout=layout, cleaning=cleaning)
    return config, SentencePieceTokenizer(lines, layout=layout, cleaning=cleaning, max_length=16)


def byte_pairs():
    vocabulary = build_vocabulary(TRAINING, 700, builder="byte_pair")
    return config_of(builder="byte_pair"), BytePairTokenizer(vocabulary, max_length=16)


def words():
    texts = [(language, text) for language, text in zip(["en", "de", "ja"] * 100, TRAINING)]
    texts += [("de", "ein Haus"), ("en", "a red heart")]
    config = config_of(lower_case=True)
    config.text_tower.update(dict(name="words", languages=("en", "de", "ja")))
    vocabulary = build_words(texts, ("en", "de", "ja"), 900, True, False)
    return config, WordTokenizer(vocabulary, ("en", "de", "ja"), max_length=16, lower_case=True)


CLEANED = "sentence pieces, cleaned"
TOKENIZERS = {
    "word pieces": word_pieces,
    "word pieces, uncased": lambda: word_pieces(lower_case=True, strip_accents=True),
    "word pieces of whole Chinese words": lambda: word_pieces(cleaning=("whole_chinese",)),
    "sentence pieces": lambda: sentence_pieces("xlm_roberta"),
    "sentence pieces, full": lambda: sentence_pieces("siglip"),
    CLEANED: lambda: sentence_pieces(
        "siglip2", ("lower_characters", "spaces_for_underscores", "no_punctuation", "single_spaces")
    ),
    "byte pairs": byte_pairs,
    "words": words,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_the_graphs(name, tmp_path):
    config, tokenizer = TOKENIZERS[name]()
    settings, content = tokenizer.for_lite()
    (tmp_path / (VOCABULARY if settings["kind"] in IN_LINES else MODEL)).write_bytes(content)
    settings = json.loads(json.dumps(settings | {"sha256": hashlib.sha256(content).hexdigest()}))
    texts = [*ODD, *(text.encode() for text in drawn_texts(400))]
    tokens = {key: value.numpy() for key, value in tokenizer(tf.constant(texts)).items()}
    pieces = pieces_of(tmp_path, config, settings)
    different = []
    for text, (ids, kind), expected, mask, kinds in zip(texts, pieces.rows(texts), *tokens.values()):
        row = [*ids, *[pieces.pad] * (16 - len(ids))] if pieces.is_full else ids
        same = len(row) == mask.sum() and row == expected[: len(row)].tolist() and (kinds == kind).all()
        different += [] if same else [(text[:40], ids, expected.tolist())]
    assert not different, different[:3]


@pytest.mark.parametrize(
    "tokenizer",
    [lambda: sentence_pieces("xlm_roberta"), lambda: sentence_pieces("siglip2", model="bpe"), TOKENIZERS[CLEANED]],
)
def test_few_texts_need_no_whole_vocabulary(tokenizer, tmp_path):
    config, tokenizer = tokenizer()
    settings, content = tokenizer.for_lite()
    (tmp_path / MODEL).write_bytes(content)
    settings["sha256"] = hashlib.sha256(content).hexdigest()
    texts = [*ODD, *(text.encode() for text in drawn_texts(400)), "<s> ▁▁ <unk>".encode()]
    expected = pieces_of(tmp_path, config, settings).rows(texts)

    write_places(content, tmp_path / PLACES)
    pieces = pieces_of(tmp_path, config, settings)
    pieces._all_pieces = None
    short = [(text, row) for text, row in zip(texts, expected) if len(text) <= SHORT]
    assert len(short) > 400
    for text, row in short:
        assert pieces.rows([text]) == [row], text
    (tmp_path / PLACES).write_bytes((tmp_path / PLACES).read_bytes()[:-100])
    with pytest.raises(UserError, match=f"{PLACES} is damaged: copy the folder again"):
        pieces_of(tmp_path, config, settings)


def encoded(pixels, kind="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def photograph(height, width):
    """Smooth colours with edges and a little noise, uint8 [H, W, 3]."""
    draw = np.random.default_rng(height + width)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (9 + 5 * c) + y / (21 - 4 * c)) for c in range(3)]
    values = 120 + 90 * np.stack(waves, axis=-1) + 40 * ((x // 37 + y // 29) % 2)[..., None]
    return np.clip(values + draw.normal(0, 4, values.shape), 0, 255).astype(np.uint8)


MODES = [(mode, way) for mode in ("squash", "shorter_side") for way in ("bilinear", "bicubic", "big_vision")]


@pytest.mark.parametrize("mode,interpolation", MODES)
def test_pixels_are_the_graphs(mode, interpolation):
    tower = types.SimpleNamespace(name="vit", resize=64, image_size=56, resize_mode=mode, interpolation=interpolation)
    tower.jpeg = "accurate"
    for height, width in ((64, 64), (50, 90), (300, 200), (64, 65), (33, 1), (1, 700), (640, 480)):
        for data in (encoded(photograph(height, width)), encoded(photograph(height, width), "JPEG", quality=92)):
            difference = np.abs(prepare(data, tower).astype(int) - prepare_image(tf.constant(data), tower).numpy())
            assert difference.max() <= 3 and difference.mean() <= 0.5, (height, width, difference.max())
            assert prepare(data, tower).shape == (56, 56, 3)


def test_transparency_and_turned_pictures_are_the_graphs():
    tower = types.SimpleNamespace(name="vit", resize=48, image_size=48, resize_mode="squash", interpolation="bilinear")
    tower.jpeg = "accurate"
    clear = np.dstack([photograph(60, 80), np.tile(np.linspace(0, 255, 80).astype(np.uint8), (60, 1))])
    turned = Image.Exif()
    turned[0x0112] = 6
    for data in (encoded(clear), encoded(photograph(60, 80), "JPEG", exif=turned), encoded(photograph(60, 80)[..., 0])):
        difference = np.abs(prepare(data, tower).astype(int) - prepare_image(tf.constant(data), tower).numpy())
        assert difference.max() <= 3 and difference.mean() <= 0.5, difference.max()
    tower.jpeg = "fast"  # whose coarser arithmetic Pillow does not offer
    data = encoded(photograph(60, 80), "JPEG")
    difference = np.abs(prepare(data, tower).astype(int) - prepare_image(tf.constant(data), tower).numpy())
    assert difference.max() <= 6 and difference.mean() <= 1.5, difference.max()


def test_features_and_what_does_not_decode():
    tower = types.SimpleNamespace(name="features", feature_size=3)
    data = np.array([1.5, -2.0, 0.25], "<f4").tobytes()
    np.testing.assert_array_equal(prepare(data, tower), decode_features(tf.constant(data), 3).numpy())
    with pytest.raises(BadImage, match="8 bytes in place of 3 features"):
        prepare(data[:8], tower)
    tower = types.SimpleNamespace(name="vit", resize=48, image_size=48, resize_mode="squash", interpolation="bilinear")
    for broken in (b"", b"no picture", encoded(photograph(60, 80))[:300]):
        with pytest.raises(BadImage):
            prepare(broken, tower)


def test_a_question_checks_encoders_by_a_few_texts():
    """They carry all probes of their model; the texts that are encoded show that the encoders are its."""
    probes, asked = np.eye(len(TEXTS), dtype=np.float32), []

    def small(vectors):
        encode = lambda texts: asked.append(texts) or vectors[: len(texts)]  # noqa: E731
        return types.SimpleNamespace(encode_text=encode, original=Original(probes, 0.1), path="lite", step=3)

    made = take_fingerprint(small(probes), pictures=False)
    assert asked == [list(TEXTS[:2])] and made.step == 3 and np.array_equal(made.probes, probes)
    with pytest.raises(UserError, match="lite are not the encoders"):
        take_fingerprint(small(probes[::-1]), pictures=False)


def test_how_a_tower_of_whole_words_reads_texts_is_not_known():
    """As `mural_tf` answers for it: each language has its own unknown word."""
    from mural_lite.litert.model import LiteModel

    model = LiteModel.__new__(LiteModel)
    model.config = base_config()
    model.config.text_tower.name = "words"
    assert model.reading(["a hat"]) is None
