"""Fine-tuning: settings by the size of the data, the source as the first row, the mix, and averages over steps."""

import json
import re
import types

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data

import mural_tf
from mural_lite.config import base_config
from mural_lite.config_file import load_config, save_config
from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.evaluation.retrieval import HELD_OUT
from mural_tf.models.build import build_model
from mural_tf.models.step import WeightAverage
from mural_tf.runs import import_pretrained, tuning
from mural_tf.runs.finetune import as_begun, finetune, starting_point
from mural_tf.training.fit import compile_model

from mural_tf.configs import translated  # isort: skip
from mural_tf.configs.finetune import get_config  # isort: skip


@pytest.mark.parametrize(
    "captions,batch", [(3, 2), (30, 16), (500, 64), (40_000, 512), (711_000, 2_048), (10**9, 2_048)]
)
def test_batches_grow_with_the_root_of_the_captions(captions, batch):
    assert tuning.batch_for(captions) == batch


def test_zeros_stand_for_what_follows_from_the_data(tmp_path, capsys):
    """64 pictures of two captions: 3 * sqrt(128) = 33.9 -> 32 pairs; 15 * 128 / 32 = 60 steps; a twentieth of 4e-3."""
    toy_data.write_toy_data(tmp_path)
    source = base_config()
    source.optimizer.update(dict(name="adam", learning_rate=4e-3, text_text_learning_rate=2e-3, warmup_steps=9))
    config = get_config()
    config.data.directory, config.optimizer.text_tower_rate = str(tmp_path), 0.1
    found = tuning.settings_by_data(config, source)
    assert (found.train.steps, found.train.image_text_batch, found.train.text_text_batch) == (60, 32, 32)
    assert (found.train.log_every, found.train.evaluate_every, found.train.checkpoint_every) == (3, 12, 12)
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.warmup_steps, optimizer.text_tower_rate) == ("adam", 0, 0.1)
    assert np.allclose([optimizer.learning_rate, optimizer.text_text_learning_rate], [2e-4, 1e-4], rtol=1e-12)
    assert capsys.readouterr().out == "128 captions in 2 languages: 60 steps of 32 pairs, adam at 0.0002.\n"
    config.data.image_text_languages = ("de",)
    assert tuning.settings_by_data(config, source).train.image_text_batch == 32  # 33.9 / sqrt(2) = 23.98
    config.data.image_text_languages = ("fr",)
    with pytest.raises(UserError, match=r"has no training captions in \['fr'\]"):
        tuning.settings_by_data(config, source)


def test_a_stage_of_translations_follows_the_pairs(tmp_path, capsys):
    """64 pairs: 3 * sqrt(64) = 24 -> 32, half of it; a quarter of that for captions; 12 * 64 / 16 = 48 -> 60 steps."""
    toy_data.write_toy_data(tmp_path)
    config = translated.get_config()
    config.data.directory = str(tmp_path)
    found = tuning.settings_by_data(config, base_config())
    assert (found.train.steps, found.train.text_text_batch, found.train.image_text_batch) == (60, 16, 4)
    assert found.optimizer.name == "adam" and np.isclose(found.optimizer.learning_rate, 4e-3 / 36, rtol=1e-12)
    assert capsys.readouterr().out == "64 translation pairs in 1 language: 60 steps of 16 pairs, adam at 0.00011.\n"
    config.text_tower.hidden_size = 64
    config.data.sources = {name: {"directory": str(tmp_path)} for name in ("one", "other")}
    found = tuning.settings_by_data(config, base_config())
    assert found.optimizer.learning_rate == 4e-3 and "128 translation pairs" in capsys.readouterr().out
    config.data.text_text_languages = ("fr",)
    with pytest.raises(UserError, match=r"has no training text pairs in \['fr'\]"):
        tuning.settings_by_data(config, base_config())


def test_what_is_given_stays_and_all_else_is_the_source_s(tmp_path, capsys):
    """A rate that is given moves the other with it: 2e-3 * 1e-2 / 4e-3 = 5e-3."""
    toy_data.write_toy_data(tmp_path)
    source, config = base_config(), get_config()
    source.optimizer.update(dict(name="adam", learning_rate=4e-3, text_text_learning_rate=2e-3))
    source.optimizer.update(dict(beta_2=0.98, clip_norm=1.0))
    config.data.directory, config.train.steps, config.optimizer.learning_rate = str(tmp_path), 7, 1e-2
    found = tuning.settings_by_data(config, source)
    assert (found.train.steps, found.train.log_every, found.train.evaluate_every) == (7, 50, 0)
    assert (found.optimizer.learning_rate, found.train.image_text_batch) == (1e-2, 32)
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.beta_2, optimizer.clip_norm, optimizer.warmup_steps) == ("adam", 0.98, 1, 0)
    assert np.isclose(optimizer.text_text_learning_rate, 5e-3, rtol=1e-12)
    config.train.image_text_batch = config.train.text_text_batch = 8
    given = {"optimizer.name", "optimizer.text_text_learning_rate"}  # though they are the defaults
    found = tuning.settings_by_data(config, source, given).optimizer
    assert (found.name, found.beta_2, found.text_text_learning_rate) == ("lamb", 0.98, 1e-4)
    assert capsys.readouterr().out.endswith("\nOptimiser: lamb at 0.01.\n")


@pytest.mark.parametrize("name, value, kept", [
    ("image_tower.width", 1.5, "[01]"), ("embedding_size", 99, "80"), ("model", "align", "mural"),
])  # fmt: skip
def test_what_is_the_source_s_all_the_same_is_refused(name, value, kept, export, tmp_path):
    toy_data.write_toy_data(tmp_path)
    config = get_config()
    config.data.directory, config.text_tower.frozen = str(tmp_path), True
    config.update_from_flattened_dict({name: value})
    with pytest.raises(UserError, match=rf"--config.{name}={value}: towers, .* here {kept}"):
        starting_point(config, str(export), given={name, "text_tower.frozen"})


def test_a_run_does_not_go_into_its_source(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is the source itself, --from: name a new folder"):
        finetune(get_config(), str(tmp_path), f"{tmp_path}/")


def test_without_dev_nothing_is_trained_unless_asked(tmp_path):
    toy_data.write_toy_data(tmp_path)
    config = get_config()
    config.data.directory = str(tmp_path)
    with pytest.raises(UserError, match="has no dev split, .*--config.train.interpolate=False"):
        tuning.check_dev(config)
    config.train.interpolate = False
    tuning.check_dev(config)
    config.train.interpolate = True
    records.write_records(
        tmp_path, records.IMAGE_TEXT, "dev", records.read_records(tmp_path, records.IMAGE_TEXT, "train")
    )
    tuning.check_dev(config)


def test_a_run_goes_on_with_the_values_of_its_beginning(tmp_path):
    begun = get_config()
    begun.train.update(dict(steps=60, image_text_batch=32, text_text_batch=32, log_every=3, evaluate_every=12))
    begun.optimizer.update(dict(name="adam", learning_rate=2e-4))
    save_config(begun, tmp_path / "config.json")
    given = get_config()
    given.train.image_text_batch = 16
    found = as_begun(given, tmp_path)
    assert (found.train.steps, found.train.log_every, found.train.image_text_batch) == (60, 3, 16)
    assert (found.optimizer.name, found.optimizer.learning_rate, found.train.text_text_batch) == ("adam", 2e-4, 32)
    assert as_begun(given, tmp_path / "new").train.steps == 0
    given.optimizer.name = "adamw"
    given.train.log_every = 7
    found = as_begun(given, tmp_path, ["optimizer.name", "train.log_every"])  # which the workdir then refuses
    assert (found.optimizer.name, found.optimizer.learning_rate) == ("adamw", 2e-4)
    assert (found.train.log_every, found.train.evaluate_every) == (7, 12)


def test_a_workdir_that_was_made_of_another_checkpoint_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(import_pretrained, "kind_of", lambda folder: "clip")
    monkeypatch.setattr(import_pretrained, "import_into_workdir", lambda family, source, folder: folder.mkdir())
    monkeypatch.setattr(import_pretrained, "has_checkpoint", lambda folder: True)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    sources = [str(tmp_path / name) for name in ("first", "second")]
    for _ in range(2):
        assert import_pretrained.workdir_of(sources[0], tmp_path / "w") == f"{tmp_path}/w_source"
    with pytest.raises(
        UserError, match="w_source was made of .*/first as it was then, and .* is .*/second as it is now"
    ):
        import_pretrained.workdir_of(sources[1], tmp_path / "w")
    (tmp_path / "first/config.json").write_text("trained further")
    with pytest.raises(UserError, match="delete .*w_source, or name another --workdir"):
        import_pretrained.workdir_of(sources[0], tmp_path / "w")


def test_captions_are_estimated_where_nothing_states_them(tmp_path, monkeypatch):
    """Half of the records are read; damage in the first costs itself alone."""
    toy_data.write_toy_data(tmp_path)
    monkeypatch.setattr(tuning, "SAMPLED", 32)
    counts = tuning.caption_counts(get_data(tmp_path))
    assert counts.keys() == {"en", "de"} and all(abs(count - 64) <= 4 for count in counts.values())
    tuning._counts_of.cache_clear()
    monkeypatch.setattr(tuning, "SAMPLED", 1000)
    path = tmp_path / "image_text/train-00000-of-00002.tfrecord"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    assert tuning.caption_counts(get_data(tmp_path)) == {"en": 63, "de": 63}


def test_captions_without_a_language_are_called_as_in_evaluations(tmp_path):
    record = records.ImageTextRecord("a", b"", ["ein Ding"], [""], [""])
    records.write_records(tmp_path, records.IMAGE_TEXT, "train", [record])
    assert tuning.caption_counts(get_data(tmp_path)) == {"und": 1}


def test_a_stage_without_captions_tunes_no_language(tmp_path):
    records.write_records(tmp_path, records.TEXT_PAIRS, "train", [records.TextPair("a", "en", "b", "de")])
    config = base_config()
    config.data.directory = str(tmp_path)
    measured = types.SimpleNamespace(at=None)
    assert not tuning.TunedEvaluation(measured, config, "dev")._trained_languages()


def get_data(folder):
    config = base_config()
    config.data.directory = str(folder)
    return config.data


def test_what_is_left_at_its_default_is_the_sources(export, tmp_path):
    toy_data.write_toy_data(tmp_path)
    source = load_config(export / "config.json")
    config = get_config()
    config.data.directory = str(tmp_path)
    config.text_tower.dropout = 0.25
    found, _ = starting_point(config, str(export))
    assert (found.text_tower.dropout, found.image_tower.drop_connect_rate) == (
        0.25,
        source.image_tower.drop_connect_rate,
    )
    assert source.image_tower.drop_connect_rate == 0.0 != base_config().image_tower.drop_connect_rate
    assert found.augmentation.flip is False and base_config().augmentation.flip is True
    assert found.evaluation.source_data == source.data.directory and found.train.interpolate


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_splits(tmp_path_factory.mktemp("tuned") / "data", toy_data.image_text_records(24))


@pytest.fixture(scope="module")
def of_vectors(tmp_path_factory):
    """The same with vectors in place of pictures, and a workdir that knows the English ones: half of the time."""
    folder = tmp_path_factory.mktemp("vectors")
    images = toy_data.image_text_records(24)
    vectors = np.random.default_rng(0).normal(size=[24, contract.FEATURES]).astype("<f4")
    for index, (image, vector) in enumerate(zip(images, vectors)):
        image.image, image.captions[1] = vector.tobytes(), f"ding v{index + 30}"
    config = contract.toy_config("align", text_tower__dropout=0.0)
    tokenizer, model = toy_data.toy_tokenizer(), contract.build(config)
    ids, english = tf.range(12, dtype=tf.int64), tf.constant([image.captions[0] for image in images[:12]])
    batch = {"image": vectors[:12], "image_id": ids, "caption": tokenizer(english), "caption_id": ids}
    for _ in range(12):
        model.train_step(batch)
    write_splits(folder / "data", images)
    (folder / "data/dataset.json").write_text(json.dumps({"held_out_names": ["image0"]}))
    save_config(config, folder / "config.json")
    tokenizer.save(folder / "vocabulary.txt")
    weights = tf.train.Checkpoint(**model.weights_by_part())
    tf.train.Checkpoint(model=weights).write(str(folder / "checkpoints/ckpt-1"))
    return folder / "data", folder


def write_splits(folder, images):
    """Captions in English; dev and test have German ones too."""
    english = [records.ImageTextRecord(i.image_id, i.image, i.captions[:1], ["en"], [i.image_id]) for i in images]
    records.write_records(folder, records.IMAGE_TEXT, "train", english)
    for split in ("dev", "test"):
        records.write_records(folder, records.IMAGE_TEXT, split, images[:12])
    return folder


def run(data, source, workdir, **train):
    config = get_config()
    config.data.directory = str(data)
    config.optimizer.update(dict(name="adam", learning_rate=train.pop("learning_rate", 0.0)))
    config.train.update({**dict(steps=2, image_text_batch=8, log_every=1, evaluate_every=1), **train})
    finetune(config, str(source), workdir)
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


class Evaluated:
    """Mean recalls that follow from a weight w, 0 at the source and 1 after tuning: 10 + 20 w and 40 - 30 w²."""

    name, split, score = "retrieval_dev", "dev", tuning.TunedEvaluation.score

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, step):
        w = float(self.weight[0])
        self.metrics = {
            f"{self.name}/tuned/mean_recall": 10 + 20 * w,
            f"{self.name}/others/mean_recall": 40 - 30 * w**2,
        }
        return self


def test_the_mix_that_dev_prefers_is_the_result(tmp_path, monkeypatch, capsys):
    """The means of both are 25, 26.56, 26.25, 24.06 and 20 at the five shares."""
    weight, counter, kept = tf.Variable([1.0]), tf.Variable([7]), []
    model = types.SimpleNamespace(weights_by_part=lambda: {"tower": weight, "counter": counter, "head": weight})
    config = get_config()
    config.train.steps = 3
    monkeypatch.setattr(tuning, "TunedEvaluation", lambda *_: types.SimpleNamespace(name="retrieval", __call__=None))
    monkeypatch.setattr(tuning, "read_metrics", lambda _: [{"step": 0, "retrieval/all/mean_recall": 1.0}])
    monkeypatch.setattr(tuning, "save_result", lambda *_: kept.append(weight.numpy().tolist()))
    measured = types.SimpleNamespace(at=lambda step: model)
    tuning.mix(measured, lambda model: weight.assign([0.0]), Evaluated(weight), config, tmp_path)
    assert kept == [[0.25]] and counter.numpy() == [7]
    mixes = json.loads((tmp_path / "mixes.json").read_text())
    assert mixes["chosen"] == 0.25 and [row["share"] for row in mixes["mixes"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert mixes["mixes"][2] == {"share": 0.5, "tuned": 20.0, "others": 32.5}
    assert "          0.25   15.0    38.1  <- the result\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_spoils_the_model_ends_as_its_source(of_vectors, tmp_path, eager, capsys):
    data, source = of_vectors
    rows = run(data, source, tmp_path / "w", learning_rate=0.3, export=False, steps=1)
    rows_of_dev = [row for row in rows if "retrieval_dev/all/mean_recall" in row]
    *of_training, of_result = rows_of_dev
    dev = {row["step"]: row for row in of_training}
    assert list(dev) == [0, 1] and of_result["checkpoint"] == "result"
    assert of_result["retrieval_dev/tuned/mean_recall"] == dev[0]["retrieval_dev/tuned/mean_recall"]
    test = {row["step"]: row["retrieval/all/mean_recall"] for row in rows if "retrieval/all/mean_recall" in row}
    assert test[0] == test[1]
    assert json.loads((tmp_path / "w/checkpoints/best/best.json").read_text())["step"] == 0
    printed = capsys.readouterr().out
    (of_tuned,) = {row[f"retrieval/tuned/{HELD_OUT}"] for row in rows if "retrieval/tuned/mean_recall" in row}
    assert re.search(r"\ntuned +1 +\S+ +(\S+)\n", printed)[1] == f"{of_tuned:.1f}"
    mixes = json.loads((tmp_path / "w/mixes.json").read_text())
    assert mixes["chosen"] == 0.0 and [row["share"] for row in mixes["mixes"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert (
        mixes["mixes"][0]["tuned"]
        == dev[0]["retrieval_dev/tuned/mean_recall"]
        == dev[0]["retrieval_dev/en/mean_recall"]
    )
    assert mixes["mixes"][0]["tuned"] > mixes["mixes"][0]["others"] + 10
    assert mixes["mixes"][0]["others"] == dev[0]["retrieval_dev/de/mean_recall"]
    assert mixes["mixes"][-1]["tuned"] == dev[1]["retrieval_dev/tuned/mean_recall"]
    assert "share of tuned  tuned  others\n          0.00" in printed and "  <- the result" in printed
    texts, source = ["thing w1", "ding v3"], mural_tf.load(source)
    result, latest = (mural_tf.load(tmp_path / "w", checkpoint) for checkpoint in ("result", "latest"))
    assert np.abs(result.encode_text(texts) - source.encode_text(texts)).max() < 1e-6
    assert np.abs(latest.encode_text(texts) - source.encode_text(texts)).max() > 1e-2


@pytest.mark.slow
def test_other_languages_come_from_the_sources_data(data, export, tmp_path, eager):
    """The data's own dev is English alone; the source's has German."""
    own = tmp_path / "data"
    english = list(records.read_records(data, records.IMAGE_TEXT, "train"))
    for split in ("train", "dev"):
        records.write_records(own, records.IMAGE_TEXT, split, english[:12])
    config = get_config()
    config.data.directory, config.evaluation.source_data = str(own), str(data)
    config.train.update(dict(steps=1, image_text_batch=4, log_every=1, interpolate=False, export=False))
    finetune(config, str(export), tmp_path / "w")
    rows = [json.loads(line) for line in (tmp_path / "w/metrics.jsonl").read_text().splitlines()]
    (first,) = [row for row in rows if row["step"] == 0]
    assert (
        first["retrieval_dev/all/mean_recall"]
        == first["retrieval_dev/tuned/mean_recall"]
        == first["retrieval_dev/en/mean_recall"]
    )
    assert first["retrieval_dev/others/mean_recall"] == first["retrieval_dev/de/mean_recall"]


def test_the_average_of_weights():
    """By hand, of weights 1, 3, 7 at decay 0.5: d = 0.1, 2/11, 0.25 -> 2.8 after 3, 6.23636… after 7."""
    weight = tf.Variable([1.0])
    average = WeightAverage([weight], 0.5)
    weight.assign([3.0])
    average.update(tf.constant(True))
    assert abs(average.values[0].numpy()[0] - (0.1 * 1 + 0.9 * 3)) < 1e-6
    weight.assign([7.0])
    average.update(tf.constant(True))
    assert abs(average.values[0].numpy()[0] - (2 / 11 * 2.8 + 9 / 11 * 7)) < 1e-6
    weight.assign([float("nan")])
    before = average.values[0].numpy()
    average.update(tf.constant(False))
    assert int(average.steps) == 2 and average.values[0].numpy() == before
    for decay in (-0.1, 1.0):
        with pytest.raises(UserError, match="from 0"):
            WeightAverage([weight], decay)


@pytest.mark.slow
def test_the_average_is_what_a_run_leaves(data, export, tmp_path, eager):
    """In the checkpoints of training, in what is evaluated and exported, and in what is loaded."""
    settings = dict(learning_rate=1e-2, average_decay=0.9, interpolate=False)
    run(data, export, tmp_path / "w", **settings)
    config = load_config(tmp_path / "w/config.json")
    model = build_model(config, 173)
    compile_model(model, config)
    assert model.step.average is not None
    result, latest = (mural_tf.load(tmp_path / "w", checkpoint) for checkpoint in ("result", "latest"))
    texts = ["thing w1", "ding v3"]
    reader = tf.train.load_checkpoint(str(tmp_path / "w/checkpoints/ckpt-2"))
    values = [key for key in reader.get_variable_to_shape_map() if key.startswith("average/values/")]
    assert (
        len(values) == len(model.trainable_variables)
        and reader.get_tensor("average/steps/.ATTRIBUTES/VARIABLE_VALUE") == 2
    )
    assert np.abs(result.encode_text(texts) - latest.encode_text(texts)).max() > 1e-5
    exported = mural_tf.load(tmp_path / "w/export")
    assert np.abs(result.encode_text(texts) - exported.encode_text(texts)).max() < 1e-5
