"""CLIP, SigLIP and XLM-RoBERTa from elsewhere: the numbers of their PyTorch models, files, and what is refused."""

import json
import os
import shutil
import signal

import foreign_checkpoints as families
import foreign_weights as foreign
import numpy as np
import pytest
import tensorflow as tf
import toy_data

import mural_tf
from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_lite.vectors import model_digest
from mural_tf.configs import bridge
from mural_tf.data import records
from mural_tf.export import serving
from mural_tf.export.saved_model import export_model
from mural_tf.models.embedder import embedder_of
from mural_tf.pretrained import siglip, vocabularies, weight_files
from mural_tf.pretrained.importers import (
    configure,
    import_weights,
    importer_of,
    kind_of,
    starting_config,
)
from mural_tf.pretrained.tables import assign_parts
from mural_tf.runs.finetune import finetune
from mural_tf.runs.import_pretrained import import_into_workdir, with_vocabulary
from mural_tf.text import byte_words, tokenizer_of
from mural_tf.training.callbacks import SaveCheckpoints
from mural_tf.training.trained_model import load_trained
from mural_tf.training.workdir import lock_workdir

# What transformers 5.24.0, open_clip 3.3.0 and PyTorch 2.13.0 give for the folders of `foreign_checkpoints`: first two
# images or texts, first five numbers, normalised. The parity test compares whole vectors wherever PyTorch is installed.
VISION = {
    "siglip": [
        [-0.1926364, -0.2550269, -0.3680023, 0.0387137, 0.2011885],
        [-0.262234, 0.1125552, -0.3227668, 0.1475096, 0.2562786],
    ],
    "clip": [
        [-0.0434729, 0.3721366, 0.0296168, 0.1342824, -0.504012],
        [0.0054901, 0.4017559, 0.056014, 0.0572601, -0.4972338],
    ],
    "xlm_roberta_clip": [
        [-0.1876395, 0.0007618, 0.196306, -0.4269516, -0.1248045],
        [-0.1551096, 0.0023608, 0.1835803, -0.2304722, -0.1782402],
    ],
}
TEXTS = {
    "siglip": [
        [-0.0218739, -0.2452431, -0.2566064, 0.1166698, -0.0347295],
        [0.0601115, -0.2436418, -0.2300496, 0.0096238, 0.0403183],
    ],
    "xlm_roberta_clip": [
        [0.1094879, 0.0924193, 0.1808388, -0.0814066, 0.2091016],
        [0.3167486, -0.1217139, 0.0770942, 0.0086384, 0.0842513],
    ],
    "m_clip": [
        [-0.493646, -0.1172548, 0.0589691, -0.0317845, 0.0594864],
        [-0.5278439, -0.0737762, 0.0789829, 0.0771346, 0.0209654],
    ],
}
# As `VISION`, of three texts; the ids follow from the merges by hand: 97 + 256 is "a</w>", 512 the first merge.
CLIP_TEXTS = {
    "a red balloon": ([353, 514, 520], [0.0583826, -0.1212983, -0.0727583, 0.0605636, 0.0178755]),
    "The  BALLOONS!! café 12": (  # "2" is beyond the length of 12
        [523, 517, 518, 110, 371, 527, 526, 102, 525, 305],
        [0.3232536, 0.0520084, -0.0343586, 0.2727822, -0.1517326],
    ),
    "": ([], [0.0721528, -0.0050238, -0.0184129, 0.1081776, -0.137159]),
}
FULL_IDS = [[14, 26, 28, 10, 6, 19, 21, 23], [20, 22, 27, 27, 28, 26, 22, 27]]
IDS = [[0, 12, 10, 29, 8, 12, 20, 24, 20, 26, 5, 14], [0, 15, 14, 13, 5, 6, 18, 1, 1, 1, 1, 1]]
XLM_ROBERTA_STATES = [
    [1.9952834, 0.4993039, 2.580047, 0.076279, 2.2077761],
    [1.6860209, -0.2615031, 2.1408653, -0.0062493, 2.9266834],
]
WRITERS = {
    "siglip": families.write_siglip,
    "clip": families.write_clip,
    "xlm_roberta_clip": families.write_open_clip,
    "m_clip": families.write_m_clip,
    "bert": families.write_xlm_roberta,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("families")
    written = {kind: write(place / kind) for kind, write in WRITERS.items()}
    return written | {"siglip2": families.write_siglip(place / "siglip2", second=True)}


@pytest.fixture(scope="module")
def imported(folders):
    """SigLIP's model, which tests leave as it is, its configuration and pieces."""
    return import_weights("siglip", folders["siglip"], config_of("siglip"), vocabulary_size=9)


def config_of(kind, length=0):
    config = starting_config(kind)
    config.image_tower.precision = config.text_tower.precision = "float32"
    config.text_tower.max_length = length or config.text_tower.max_length
    if config.image_tower.name == "efficientnet":  # of texts alone, that bring no tower of pictures
        config.image_tower.update(dict(name="none", projection=80))
        config.embedding_size = 80
    return config


def tokens_of(ids):
    """Of texts whose padding, 1, is masked."""
    tokens = families.tokens_of(ids)
    mask = (np.arange(len(ids[0])) < np.array([[12], [7]])).astype(np.int32)
    return {**tokens, "input_mask": mask}


def difference(found, expected):
    return np.abs(np.array(found)[:2, :5] - expected).max()


@pytest.mark.parametrize("kind", WRITERS)
def test_numbers_of_pytorch(folders, imported, kind):
    assert kind_of(folders[kind]) == kind
    model, config, pieces = imported
    if kind != "siglip":
        length = 12 if kind in ("m_clip", "bert") else 0  # else the folder says it
        model, config, pieces = import_weights(kind, folders[kind], config_of(kind, length), vocabulary_size=9)
    images = foreign.random_images(4, families.SIDE)
    if kind in VISION:
        assert difference(model.embed_images(images), VISION[kind]) < 1e-5
        assert float(model.temperature) == pytest.approx(np.exp(-2.5), rel=1e-6)
    tokens = families.tokens_of(FULL_IDS) if kind == "siglip" else tokens_of(IDS)
    if kind in TEXTS:
        for head in model.head_names:
            assert difference(model.embed_texts(tokens, head), TEXTS[kind]) < 1e-5
        packed = model.text_encoder
        if kind == "siglip":
            assert float(model.bias) == -7.0 and not hasattr(packed, "packed_states")
        else:
            assert np.abs(packed.packed_states(tokens, 2, False) - packed(tokens)).max() < 1e-5
    if kind == "bert":
        assert difference(model.text_encoder(tokens), XLM_ROBERTA_STATES) < 1e-5
    if kind == "clip":
        assert_clips_own_texts(model, tokenizer_of(config, pieces))
    assert len(pieces) > 0


def assert_clips_own_texts(model, tokenizer):
    """Their ids and vectors, among others and in a full row: padding and what follows change nothing."""
    tokens = tokenizer(list(CLIP_TEXTS), pad="longest")
    rows = [ids[mask == 1].tolist() for ids, mask in zip(*(tokens[name].numpy() for name in list(tokens)[:2]))]
    assert rows == [[528, *ids, 529] for ids, _ in CLIP_TEXTS.values()]
    words = tokenizer.tokenize(["balloons the", "é red"]).to_list()
    assert words == [[[517, 518, 110, 371], [523]], [[525], [514]]]
    expected = np.array([vector for _, vector in CLIP_TEXTS.values()])
    assert np.abs(model.embed_texts(tokens).numpy()[:, :5] - expected).max() < 1e-5
    full = model.embed_texts(tokenizer(["a red balloon"])).numpy()[0, :5]
    assert np.abs(full - expected[0]).max() < 1e-5


def test_each_byte_and_each_word_of_a_text():
    """All bytes of UTF-8 have a character; an ending, one digit, and marks are words; a word's last byte is another."""
    texts = tf.constant(["it's 12 é!?", " ", "they'll", "''s"])
    found = [text.decode() for text in byte_words.clip_words(texts).numpy()]
    first, others = ("it", "'s", "1", "2", "Ã©", "!?"), ("they", "'ll", "''", "s")
    end = {word: byte_words.with_end_mark(f"{word}</w>") for word in (*first, *others)}
    assert found[0] == "".join(end[word] for word in first)
    assert found[1:] == ["", end["they"] + end["'ll"], end["''"] + end["s"]]
    assert [byte_words.is_end(piece) for piece in (end["it"], "it")] == [True, False]


def test_siglip_2_reads_its_own_pieces_and_pixels(folders):
    first, second = (configure("siglip", folders[name], config_of("siglip"))[0] for name in ("siglip", "siglip2"))
    assert first.vocabulary.layout == "siglip" and first.vocabulary.cleaning == (
        "lower_unicode", "no_punctuation", "single_spaces"
    )  # fmt: skip
    assert second.vocabulary.layout == "siglip2" and second.vocabulary.cleaning == ("lower_characters",)
    assert (first.image_tower.interpolation, second.image_tower.interpolation) == ("bicubic", "bilinear")
    trained, _ = configure("siglip", folders["siglip2"], config_of("siglip"), as_trained=True)
    assert trained.vocabulary.cleaning == ("lower_ascii",) and trained.image_tower.interpolation == "big_vision"
    with pytest.raises(UserError, match="as_trained=True: expected it with siglip only"):
        configure("clip", folders["clip"], config_of("clip"), as_trained=True)


@pytest.mark.parametrize("stacked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_big_vision_s_file_gives_the_same_model(folders, tmp_path, stacked):
    path = families.write_big_vision(tmp_path / "siglip2.npz", folders["siglip2"], stacked)
    config = config_of("siglip")
    with pytest.raises(UserError, match="holds no vocabulary: give .*--vocabulary=FILE"):
        import_weights("siglip", path, config)
    config.vocabulary.file = str(folders["siglip2"] / "tokenizer.model")
    here, ours, pieces = import_weights("siglip", path, config)
    there, theirs, same = import_weights("siglip", folders["siglip2"], config_of("siglip"))
    assert pieces == same and ours.image_tower.image_size == 32  # the five pixels left over are nobody's
    ours.image_tower.image_size = ours.image_tower.resize = theirs.image_tower.image_size
    theirs.image_tower.interpolation = ours.image_tower.interpolation
    assert ours.to_dict() == theirs.to_dict()
    for a, b in zip(here.weights, there.weights):
        np.testing.assert_array_equal(a, b, err_msg=a.name)


@pytest.mark.slow
def test_big_vision_s_older_files(folders, tmp_path):
    """Positions that are to be added, and a text tower without a head."""

    def older(arrays):
        arrays["params/txt/Encoder_0/pos_embedding"] = np.ones_like(arrays["params/txt/pos_embedding"])
        del arrays["params/txt/head/kernel"], arrays["params/txt/head/bias"]

    path = families.write_big_vision(tmp_path / "old.npz", folders["siglip2"], change=older)
    config = config_of("siglip")
    config.vocabulary.file = str(folders["siglip2"] / "tokenizer.model")
    model, *_ = import_weights("siglip", path, config)
    before, *_ = import_weights("siglip", folders["siglip2"], config_of("siglip"))
    added = [one.get_layer("embeddings").position_table.numpy() for one in (model.text_encoder, before.text_encoder)]
    np.testing.assert_allclose(added[0] - added[1], 1, atol=1e-6)
    np.testing.assert_array_equal(model.image_text_head.kernel, np.eye(families.WIDTH))


@pytest.mark.parametrize("changed", ["spiece.model", "model-00002-of-00002.safetensors", "preprocessor_config.json"])
def test_a_folder_is_another_model_once_a_file_of_it_is(folders, tmp_path, changed):
    folder = shutil.copytree(folders["siglip"], tmp_path / "siglip")
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"weights")
    before = model_digest(folder)
    (folder / "README.md").write_text("nothing of the model")
    assert model_digest(folder) == before
    with open(folder / changed, "ab") as file:
        file.write(b" ")
    assert model_digest(folder) != before


def test_padding_is_attended_to_and_cannot_be_left_out(imported):
    """The same text in a batch of its own and beside a longer one; and the row that Hugging Face makes of it."""
    model, config, pieces = imported
    tokenizer = tokenizer_of(config, pieces)
    alone, beside = tokenizer(["red"], pad="longest"), tokenizer(["red", "green cat of Paris"], pad="longest")
    assert alone["input_word_ids"].shape == (1, families.LENGTH)
    np.testing.assert_allclose(model.embed_texts(alone)[0], model.embed_texts(beside)[0], atol=1e-6)
    shorter = {name: ids[:, :4] for name, ids in alone.items()}
    assert np.abs(model.embed_texts(shorter) - model.embed_texts(alone)).max() > 1e-3


@pytest.mark.slow
def test_a_text_tower_without_a_space_gets_a_fresh_head(folders, tmp_path, capsys):
    (folders["siglip2"] / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    import_into_workdir("siglip", folders["siglip2"], tmp_path / "new", text=folders["bert"])
    assert "Not in the weights, so fresh: image_text_head." in capsys.readouterr().out
    config = load_config(tmp_path / "new" / "config.json")
    assert (config.text_tower.norm, config.text_tower.pooling, config.text_tower.epsilon) == ("after", "first", 1e-5)
    assert config.vocabulary.layout == "xlm_roberta" and config.model == "siglip"
    assert config.origin == "siglip siglip2, licence apache-2.0; bert bert, licence not said in its folder"
    vectors = mural_tf.load(tmp_path / "new").encode_image(list(foreign.random_images(2, families.SIDE)))
    whole = mural_tf.load(folders["siglip2"]).encode_image(list(foreign.random_images(2, families.SIDE)))
    np.testing.assert_allclose(vectors, whole, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("pictures", ["siglip2", "clip"])
def test_a_bridge_between_two_folders(folders, tmp_path, pictures):
    """SigLIP 2, or a CLIP, and Sentence-Transformers as they were downloaded: one workdir, and its export."""
    data = toy_data.write_toy_data(tmp_path / "data", count=16)
    records.write_records(data, records.IMAGE_TEXT, "dev", toy_data.image_text_records(6))
    records.write_records(data, records.IMAGE_TEXT, "test", toy_data.image_text_records(6))
    config = bridge.get_config("neighbours")
    config.data.update(dict(directory=str(data), image_text_languages=("en",)))
    config.method.update(dict(student=str(foreign.write_sentences(tmp_path / "sentences")), pivot="en"))
    finetune(config, str(folders[pictures]), tmp_path / "new")
    whole, exported = mural_tf.load(tmp_path / "new"), mural_tf.load(tmp_path / "new/export")
    images, texts = list(foreign.random_images(2, families.SIDE)), ["thing w1", "w 3"]
    np.testing.assert_array_equal(whole.encode_image(images), mural_tf.load(folders[pictures]).encode_image(images))
    np.testing.assert_allclose(exported.encode_text(texts), whole.encode_text(texts), atol=1e-5)
    assert load_config(tmp_path / "new/config.json").method.student == str(tmp_path / "new_student")


@pytest.mark.slow  # its weights: `test_big_vision_s_file_gives_the_same_model`
def test_an_npz_is_imported_by_its_command_and_one_process_at_a_time(folders, tmp_path):
    path = families.write_big_vision(tmp_path / "siglip2.npz", folders["siglip2"])
    config = with_vocabulary("siglip", None, folders["siglip2"] / "tokenizer.model")
    for source, said in (("workdir", "--vocabulary is for weights from elsewhere"), ("siglop", "Got 'siglop'")):
        with pytest.raises(UserError, match=said):
            with_vocabulary(source, None, "tokenizer.model")
    (tmp_path / "busy").mkdir()
    with lock_workdir(tmp_path / "busy"), pytest.raises(UserError, match="is in use by another run"):
        import_into_workdir("siglip", path, tmp_path / "busy", config)
    import_into_workdir("siglip", path, tmp_path / "free", config)
    assert load_config(tmp_path / "free" / "config.json").model == "siglip"


def test_rows_beyond_the_pieces(folders, tmp_path):
    path = folders["siglip2"] / "tokenizer.model"
    lines, kind = vocabularies.read_sentence_pieces(path)
    longer, _ = vocabularies.read_sentence_pieces(path, rows=len(lines) + 2)
    assert kind == "bpe" and longer[:-2] == lines and json.loads(longer[-1]) == [f"<row {len(lines) + 1}>", 0, "unused"]
    with pytest.raises(UserError, match=f"has {len(lines)} pieces and the weights 100 rows"):
        vocabularies.read_sentence_pieces(path, rows=100)


@pytest.mark.slow
def test_towers_compile(folders):
    """XLA takes both towers; what it gives is what they give without."""
    for kind in ("siglip", "clip"):
        model, *_ = import_weights(kind, folders[kind], config_of(kind), vocabulary_size=9)
        images = foreign.random_images(2, families.SIDE)
        compiled = tf.function(lambda x, model=model: model.embed_images(x), jit_compile=True, autograph=False)
        np.testing.assert_allclose(compiled(images), model.embed_images(images), atol=1e-5)
    compiled = tf.function(lambda x: model.embed_texts(x), jit_compile=True, autograph=False)
    model, *_ = import_weights("siglip", folders["siglip"], config_of("siglip"))
    tokens = {name: tf.constant(ids) for name, ids in families.tokens_of(FULL_IDS).items()}
    np.testing.assert_allclose(compiled(tokens), model.embed_texts(tokens), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["siglip", "xlm_roberta_clip", "clip"])
def test_exports_give_what_the_model_gives(folders, tmp_path, kind):
    """Strings and JPEGs in; no operation that a stock server lacks."""
    model, config, pieces = import_weights(kind, folders[kind], config_of(kind))
    tokenizer = tokenizer_of(config, pieces)
    export_model(model, tokenizer, config, tmp_path / "export")
    here, exported = embedder_of(model, tokenizer, config), mural_tf.load(tmp_path / "export")
    texts = ["A red balloon, on the cat!", "", "Paris " * 40]
    pictures = [tf.io.encode_jpeg(image).numpy() for image in foreign.random_images(2, 90)[:, :70]]
    assert np.abs(here.encode_text(texts) - exported.encode_text(texts)).max() < 1e-5
    assert np.abs(here.encode_image(pictures) - exported.encode_image(pictures)).max() < 1e-5
    for encoder in ("image_encoder", "text_encoder"):
        assert serving.unlisted_operations(tmp_path / "export" / encoder / "1") == set()


@pytest.mark.slow
def test_the_translation_stage_starts_from_a_folder_and_resumes_to_the_bit(folders, tmp_path, monkeypatch):
    data = toy_data.write_toy_data(tmp_path / "data")
    weights = {}
    for name in ("whole", "stopped"):
        config = toy_data.toy_config(data, "translation_distillation")
        config.method.update(dict(cached=True, pivot="mean"))
        config.train.update(dict(steps=10, checkpoint_every=5, log_every=5, export=False))
        if name == "stopped":
            with monkeypatch.context() as patched:
                patched.setattr(SaveCheckpoints, "on_train_batch_end", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
                finetune(config, str(folders["siglip"]), tmp_path / name)
            assert not (tmp_path / name / "summary.json").exists()
        finetune(config, str(folders["siglip"]), tmp_path / name)
        weights[name] = [one.numpy() for one in load_trained(tmp_path / name)[0].text_encoder.variables]
    before = load_trained(tmp_path / "whole_source")[0].text_encoder.variables
    assert all(np.array_equal(a, b) for a, b in zip(*weights.values()))
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(weights["whole"], before))


def test_an_import_reads_each_tensor_once_and_tables_in_blocks(folders, imported, monkeypatch):
    """So that it takes little more memory than the weights: a table of 256,000 rows is half of a model."""
    file = siglip.open_weights(folders["siglip"])
    model, config, _ = imported
    expected = [one.numpy() for one in model.weights]
    for one in model.weights:
        one.assign(tf.zeros_like(one))
    read, in_blocks = [], []
    original, blocks = file._read, file._read_blocks
    monkeypatch.setattr(file, "_read", lambda name: read.append(name) or original(name))
    monkeypatch.setattr(file, "_read_blocks", lambda name, rows: in_blocks.append(name) or blocks(name, rows))
    monkeypatch.setattr(weight_files, "BLOCK", 7 * 4 * families.WIDTH)  # seven rows; the last block has fewer
    assign_parts(siglip.hugging_face_table(config), model, importer_of("siglip").parts, file, "", "a SigLIP")
    assert sorted([*read, *in_blocks]) == sorted(file.shapes)
    assert "text_model.embeddings.token_embedding.weight" in in_blocks
    for one, value in zip(model.weights, expected):
        np.testing.assert_array_equal(one, value)
    texts, name = (
        weight_files.open_safetensors(folders["m_clip"]).below("transformer."),
        "embeddings.word_embeddings.weight",
    )
    blocks = list(texts.blocks(name))
    assert {len(block) for block in blocks[:-1]} == {7}
    np.testing.assert_array_equal(np.concatenate(blocks), texts.read(name))
