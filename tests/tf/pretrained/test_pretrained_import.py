"""From files to a workdir, by the command line, and from there everything: load, evaluate, fine-tune, export."""

import contextlib
import io

import foreign_checkpoints as families
import foreign_weights as foreign
import numpy as np
import pytest
import toy_data
from test_commands import run_here
from test_pretrained_align import small_config

import mural_tf
from mural_lite.errors import UserError
from mural_tf.commands import COMMANDS
from mural_tf.data import records
from mural_tf.encoders import build_image_encoder
from mural_tf.runs.finetune import finetune
from mural_tf.runs.import_pretrained import import_into_workdir
from mural_tf.training.trained_model import load_trained


@pytest.fixture(scope="module")
def align(tmp_path_factory):
    return foreign.write_align(tmp_path_factory.mktemp("align"))


@pytest.fixture(scope="module")
def mural(align, tmp_path_factory):
    """ALIGN's weights with a fresh text-text head."""
    workdir = tmp_path_factory.mktemp("import") / "mural"
    import_into_workdir("align", align, workdir, method="mural")
    return workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A workdir that the command writes: a small CLIP's weights, which take seconds less, with a fresh head."""
    folder = tmp_path_factory.mktemp("clip")
    weights, printed = families.write_clip(folder / "clip", projection=24), io.StringIO()
    with contextlib.redirect_stdout(printed):
        flags = [f"--weights={weights}", f"--workdir={folder}/mural", "--model=mural"]
        assert run_here(COMMANDS, "import", "clip", *flags) == 0
    assert "mural with" in printed.getvalue() and "fresh: text_text_head" in printed.getvalue()
    return folder / "mural"


@pytest.mark.slow
def test_fine_tuning_evaluation_and_export(mural, tmp_path):
    """Checkpoint initialisation: MURAL's two tasks, a few steps from ALIGN's towers, then all the way to an export."""
    data = toy_data.write_toy_data(tmp_path / "data", count=16)
    records.write_records(data, records.IMAGE_TEXT, "test", toy_data.image_text_records(8))
    config = toy_data.toy_config(data)
    config.train.update(dict(steps=3, checkpoint_every=3, log_every=1, image_text_batch=8, text_text_batch=8))
    finetune(config, str(mural), tmp_path / "tuned")
    rows = (tmp_path / "tuned" / "metrics.jsonl").read_text()
    assert "loss_text_text" in rows and "mean_recall" in rows
    tuned, exported = mural_tf.load(tmp_path / "tuned"), mural_tf.load(tmp_path / "tuned" / "export")
    assert tuned.config.text_tower.layers == 2 and tuned.step == 3
    images = list(foreign.random_images(2, 33))
    assert np.abs(tuned.encode_image(images) - exported.encode_image(images)).max() < 1e-5
    assert np.abs(tuned.encode_text(["red cat"]) - exported.encode_text(["red cat"])).max() < 1e-5


@pytest.fixture(scope="module")
def efficientnet(tmp_path_factory):
    """A small image tower as Keras writes one, and the configuration it needs."""
    config = small_config()
    config.image_tower.update(dict(width=0.25, depth=0.25, image_size=32, resize=32))
    tower = build_image_encoder(config.image_tower)
    values = {}
    for variable in tower.variables:
        name = variable.name.split("/", 1)[1] if "_squeeze_excite/" in variable.name else variable.name
        values[name] = foreign.value(name, tuple(variable.shape))
    return foreign.write_keras_h5(tmp_path_factory.mktemp("keras") / "efficientnet.h5", values), config


@pytest.mark.slow
def test_towers_from_different_places(efficientnet, mural, tmp_path, capsys):
    """An image tower of Keras, then a BERT onto it, then MURAL's second head: nothing that was there is lost."""
    path, config = efficientnet
    bert = foreign.write_bert(tmp_path / "bert")
    config.text_tower.update(dict(layers=1, hidden_size=16, heads=2, feed_forward_size=32))
    with pytest.raises(UserError, match="An image tower brings no vocabulary"):
        import_into_workdir("efficientnet", path, tmp_path / "image", config)
    assert not (tmp_path / "image").exists()
    config.vocabulary.file = str(bert / "vocab.txt")
    import_into_workdir("efficientnet", path, tmp_path / "image", config)
    assert "fresh: text_encoder, image_text_head, log_temperature" in capsys.readouterr().out
    import_into_workdir("labse", bert, tmp_path / "both", onto=tmp_path / "image")
    assert "fresh: image_text_head" in capsys.readouterr().out
    import_into_workdir("workdir", tmp_path / "both", tmp_path / "mural", method="mural")
    assert "fresh: text_text_head" in capsys.readouterr().out

    first, (model, tokenizer, loaded, _) = load_trained(tmp_path / "image")[0], load_trained(tmp_path / "mural")
    for variable, value in zip(model.image_encoder.variables, first.image_encoder.variables):
        np.testing.assert_array_equal(variable, value)
    table = model.text_encoder.get_layer("embeddings").token_table
    name = "embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(table, foreign.value(name, foreign.bert_shapes()[name]))
    assert loaded.text_tower.pooler_size and loaded.model == "mural" and tokenizer.vocabulary == foreign.PIECES
    both = load_trained(tmp_path / "both")[0]
    np.testing.assert_array_equal(model.image_text_head.kernel, both.image_text_head.kernel)


@pytest.mark.slow
def test_vocabulary_of_the_training_data(efficientnet, tmp_path):
    path, config = efficientnet
    config = config.copy_and_resolve_references()
    config.vocabulary.update(dict(file="", size=60))
    config.data.directory = str(toy_data.write_toy_data(tmp_path / "data", count=8))
    import_into_workdir("efficientnet", path, tmp_path / "w", config)
    assert mural_tf.load(tmp_path / "w").encode_text(["thing w1"]).shape == (1, 80)


def test_mistakes_leave_nothing_behind(align, workdir, tmp_path):
    with pytest.raises(UserError, match="Got 'gpt', expected one of align"):
        import_into_workdir("gpt", align, tmp_path / "w")
    with pytest.raises(UserError, match="has no config.json: expected the folder of Hugging Face's AlignModel"):
        import_into_workdir("align", tmp_path, tmp_path / "w")
    with pytest.raises(UserError, match="holds a trained model already"):
        import_into_workdir("align", align, workdir)
    with pytest.raises(UserError, match="exclude each other"):
        import_into_workdir("align", align, tmp_path / "w", small_config(), onto=workdir)
    with pytest.raises(UserError, match="leave --onto out"):
        import_into_workdir("workdir", workdir, tmp_path / "w", onto=workdir)
    with pytest.raises(UserError, match="model_type is 'bert', expected 'align'"):
        import_into_workdir("align", foreign.write_bert(tmp_path / "bert"), tmp_path / "w")
    assert not (tmp_path / "w").exists()


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """A folder of Sentence-Transformers whose head leads to 20 numbers."""
    folder = tmp_path_factory.mktemp("sentences")
    foreign.write_sentences(folder)
    return folder


def test_a_model_of_texts_alone_lacks_nothing(sentences, tmp_path, capsys):
    import_into_workdir("sentences", sentences, tmp_path / "w")
    assert "fresh" not in capsys.readouterr().out


@pytest.mark.slow
def test_texts_decide_the_size_of_a_model_with_fresh_images(sentences, tmp_path, capsys):
    config = small_config("mural")
    config.image_tower.update(dict(width=0.25, depth=0.25, image_size=32, resize=32))
    import_into_workdir("sentences", sentences, tmp_path / "w", config)
    assert "Not in the weights, so fresh: image_encoder, log_temperature." in capsys.readouterr().out
    embedder = mural_tf.load(tmp_path / "w")
    assert embedder.encode_image([np.zeros((32, 32, 3), np.uint8)]).shape == embedder.encode_text([""]).shape == (1, 20)


def test_what_would_be_taken_in_silence_is_refused(sentences, workdir, tmp_path):
    rounded = small_config()
    rounded.text_tower.precision = "bfloat16"
    for source, options, said in [
        ("bert", {}, "of Sentence-Transformers, and `import bert` would lose its pooling: .* import sentences"),
        ("sentences", {"config": rounded}, "text_tower.precision=bfloat16 rounds the weights, .*: expected float32"),
        ("sentences", {"onto": workdir}, "leads to 20 numbers, the images of .* to 24: they are not in one space"),
    ]:
        with pytest.raises(UserError, match=said):
            import_into_workdir(source, sentences, tmp_path / "w", **options)
    assert not (tmp_path / "w").exists()
