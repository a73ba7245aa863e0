"""The small files of a workdir, by whole tables: metrics, evaluations, the environment, the data, the vocabulary."""

import importlib.metadata
import json
import os
import pathlib
import platform

import fsspec
import pytest
import tensorflow as tf
import toy_data

from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_lite.files import PARTIAL, as_path
from mural_tf.data import records
from mural_tf.data.dataset_builder import build_folder
from mural_tf.evaluation.retrieval import Evaluation
from mural_tf.evaluation.tables import metrics_row
from mural_tf.training import environment, prepare, trained_model, trained_on, workdir
from mural_tf.training.evaluated import evaluations_of
from mural_tf.training.metrics_file import append_metrics, has_evaluation, keep_metrics, read_metrics
from mural_tf.training.trained_on import data_changes, note_data
from mural_tf.training.workdir import flat, lock_workdir, open_workdir

# Metrics and evaluations.


def row(step, *keys, **others):
    return {"step": step, **{key: 10.0 * step + len(key) for key in keys}, **others}


RECALLS = ("image_to_text/recall@1", "text_to_image/recall@1")
EN = ("a/en/image_to_text/recall@1", "a/en/mean_recall", "a/all/mean_recall")
DE = ("a/de/text_to_image/recall@1", "a/de/mean_recall")
ROWS = [
    row(1, "train/loss"), row(2, *EN, *DE, "a/rare/mean_recall", evaluated={"a": {"data": "d", "split": "test"}}),
    row(2, *EN), row(2, "b_dev/fr/image_to_text/recall@1", "b_dev/all/mean_recall"), row(3, *EN, "train/loss"),
    row(3, *(key.replace("a/", "c/") for key in EN), evaluated={"a": {"data": "other"}}), row(4, "train/loss"),
]  # fmt: skip


@pytest.fixture
def evaluated(tmp_path):
    for values in ROWS:
        append_metrics(tmp_path, values)
    return tmp_path


def numbers(step, *keys):
    return {key: value for key, value in row(step, *keys).items() if key != "step"}


NOTHING = {"data": "", "split": ""}


@pytest.mark.parametrize("step,exactly,expected", [
    (2, False, (numbers(2, *EN, *DE, "a/rare/mean_recall"),
                {"a": {"data": "d", "split": "test", "step": 2, "languages": ["de", "en"]}})),
    (3, True, (numbers(3, *EN, *(key.replace("a/", "c/") for key in EN)),
               {name: {**NOTHING, "step": 3, "languages": ["en"]} for name in "ac"})),
    (4, True, ({}, {})), (1, True, ({}, {})),
])  # fmt: skip
def test_the_evaluations_of_a_step(evaluated, step, exactly, expected):
    assert evaluations_of(evaluated, step, exactly) == expected
    if step == 3:
        for other in (4, 1, None):  # the last that was evaluated
            assert evaluations_of(evaluated, other) == expected


def test_evaluations_of_dev_count_where_there_are_no_others(tmp_path):
    for languages in (("fr", "cs"), ("fr",), ("sw", "cs")):  # of as many the last
        keys = [f"b_dev/{language}/{recall}" for language in languages for recall in RECALLS]
        append_metrics(tmp_path, row(5, *keys, "b_dev/all/mean_recall"))
    metrics, described = evaluations_of(tmp_path, 5)
    assert described == {"b_dev": {"data": "", "split": "dev", "step": 5, "languages": ["cs", "sw"]}}
    assert sorted(metrics) == sorted([f"b_dev/{name}/{recall}" for name in ("cs", "sw") for recall in RECALLS]
                                     + ["b_dev/all/mean_recall"])  # fmt: skip


def test_evaluations_belong_to_a_checkpoint(tmp_path):
    """The mix that a run results in and the weights after its last step have the same step."""
    for checkpoint, number in (("", 10.0), ("result", 60.0), ("latest", 40.0)):
        metrics = {f"a/en/{recall}": number for recall in (*RECALLS, "mean_recall")}
        evaluation = Evaluation("a", "test", "", metrics, {})
        append_metrics(tmp_path, metrics_row([evaluation], 5, "d", checkpoint))
    for checkpoint, number in (("result", 60.0), ("latest", 40.0), ("best", 10.0)):
        numbers, _ = evaluations_of(tmp_path, 5, checkpoint=checkpoint)
        assert set(numbers.values()) == {number}


def test_lines_of_metrics(tmp_path, caplog):
    assert read_metrics(tmp_path) == []
    keep_metrics(tmp_path, bool)
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "metrics.jsonl"
    good = [b'{"step": 1}', b'{"step": 2, "a/b": 1}', b'{"step": 2, "ab/c": 1}']
    path.write_bytes(b"\n".join([*good, b"["]))  # as a kill or a full disk leaves it
    assert len(read_metrics(tmp_path)) == 3 and not caplog.records
    damaged = [b"[1]", b"7", b'{"loss": 1.0}', b'{"step": "1"}', b'{"step": true}', b"\xff{", b"[" * 100_000]
    path.write_bytes(b"\n".join([good[0], *damaged, *good[1:]]))
    rows = read_metrics(tmp_path)
    assert rows == [{"step": 1}, {"step": 2, "a/b": 1}, {"step": 2, "ab/c": 1}]
    message = f"{path}: 7 damaged lines are left out, the first is line 2."
    assert [record.getMessage() for record in caplog.records] == [message]
    assert [has_evaluation(found, "a", 2) for found in rows] == [False, True, False]
    assert not has_evaluation(rows[1], "a", 1)
    keep_metrics(tmp_path, lambda found: found["step"] == 2)
    assert path.read_text() == '{"step": 2, "a/b": 1}\n{"step": 2, "ab/c": 1}\n'
    before = path.stat().st_ino
    keep_metrics(tmp_path, lambda found: True)
    assert path.stat().st_ino == before  # nothing to write


def test_metrics_in_a_store_are_written_in_one_go():
    fsspec.filesystem("memory").store.clear()
    store = as_path("memory://metrics/run")
    for step in (1, 2):
        append_metrics(store, {"step": step})
    assert (store / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


# The environment.


def test_the_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "threads", lambda: 3)
    monkeypatch.setattr(environment, "_revision", lambda root: f"revision of {root.name}")
    found = environment.environment()
    packages = found.pop("packages")
    assert found == {
        "python": platform.python_version(), "revision": f"revision of {pathlib.Path(__file__).parents[3].name}",
        "processor": platform.machine(), "threads": 3,
    }  # fmt: skip
    assert list(packages) == ["tensorflow", "keras", "tf-keras", "tensorflow-text", "tensorflow-addons",
                              "tensorflow-hub", "protobuf", "numpy", "mural-tf"]  # fmt: skip
    versions = environment.package_versions(["numpy", "no-such-package"])
    assert versions == {"numpy": importlib.metadata.version("numpy"), "no-such-package": "not installed"}
    monkeypatch.undo()
    assert environment.threads() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert environment.threads() == 1


# The data of a run.


def data(files, dataset=""):
    return {"files": files, "dataset": dataset}


def test_changes_of_the_data_by_the_step_they_came_at(tmp_path):
    note_data(tmp_path, 0, data({"b": 1000, "a": 1}))
    note_data(tmp_path, 0, data({"b": 1000, "a": 1}))
    note_data(tmp_path, 5, data({"b": 2000, "c": 1}, "digest"))
    path = tmp_path / "trained_on.json"
    first, second = data({"b": 1000, "a": 1}), data({"b": 2000, "c": 1}, "digest")
    assert json.loads(path.read_text()) == [{"from_step": 0, **first}, {"from_step": 6, **second}]
    assert path.read_text().endswith("\n]\n")
    assert data_changes(tmp_path, 5, second) == ["a is missing", "c is new", "b had 1,000 bytes, has 2,000"]
    assert data_changes(tmp_path, 6, second) == [] and data_changes(tmp_path, 0, second) == []
    note_data(tmp_path, 5, second)  # killed before step 6
    assert len(json.loads(path.read_text())) == 2
    assert data_changes(tmp_path, 6, data(second["files"])) == ["its description, dataset.json, is another one"]
    entry = '[{"from_step": %s, "files": %s, "dataset": ""}]'
    for damaged in ("[1]", "[{}]", "{", "3", "[" * 100_000, entry % ('"1"', "{}"), entry % ("1", '{"a": "many"}')):
        path.write_text(damaged)
        with pytest.raises(UserError) as raised:
            note_data(tmp_path, 5, second)
        message = f"{path} is damaged. Remove it: this start then does not check whether the data changed."
        assert str(raised.value) == message
    path.write_text("[]")
    assert trained_on._entries(tmp_path, 5) == []


@pytest.mark.parametrize("replaced", [{"name": "n", "version": 2}, {"name": "other"}, {}])
def test_a_data_set_is_built_once_and_follows_its_earlier_state(tmp_path, replaced):
    folder, built = tmp_path / "a/b/data", []

    def write(partial):
        built.append(partial)
        (partial / "records").write_text("r")
        return {"count": len(built)}

    def build(identity, **options):
        assert build_folder(str(folder), identity, write, **options) == folder
        return json.loads((folder / "dataset.json").read_text())

    first = {"name": "n", "version": 1}
    for _ in range(2):
        assert build(first) == {**first, "count": 1} and (folder / "records").read_text() == "r"
    assert (folder / "dataset.json").read_text() == '{\n "name": "n",\n "version": 1,\n "count": 1\n}\n'
    if replaced == {"name": "n", "version": 2}:
        with pytest.raises(UserError):
            build(replaced)
        assert build(replaced, follows=True) == {**replaced, "count": 2}
        assert build(replaced, follows=True) == {**replaced, "count": 2}
    elif replaced:
        with pytest.raises(UserError):
            build(replaced, follows=True)
    assert len(built) == 1 + (replaced.get("version") == 2)


def test_a_disk_that_is_full_while_a_data_set_is_built(tmp_path):
    def write(partial):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left")

    with pytest.raises(UserError) as raised:
        build_folder(tmp_path / "data", {"name": "n"}, write)
    assert str(raised.value) == f"Cannot write to {tmp_path}: No space left. Free space there."
    assert not (tmp_path / "data").exists()


# The vocabulary.


def test_where_a_vocabulary_is_kept(tmp_path):
    config = toy_data.toy_config(tmp_path)
    config.vocabulary.update(dict(size=77, builder="b", lower_case=False, strip_accents=False))
    assert prepare.existing_vocabulary(config) is None
    names = []
    for changes in ({}, {"lower_case": True}, {"strip_accents": True}):
        config.vocabulary.update(changes)
        names.append(prepare._path_beside_data(config).relative_to(tmp_path).name)
    config.text_tower.update(dict(name="words", languages=("en", "de")))
    names.append(prepare._path_beside_data(config).name)
    assert names == [
        "vocabulary-b-77-cased.txt", "vocabulary-b-77-lower.txt", "vocabulary-b-77-lower-unaccented.txt",
        "vocabulary-words-en-de-77-lower-unaccented.txt",
    ]  # fmt: skip
    prepare._path_beside_data(config).touch()
    assert prepare.existing_vocabulary(config) == prepare.find_vocabulary(config) == prepare._path_beside_data(config)
    config.data.sources = {"a": {"directory": str(tmp_path)}}
    beside = prepare._path_beside_data(config).name
    assert beside.startswith("vocabulary-words-en-de-77-lower-unaccented-")
    toy_data.write_toy_data(tmp_path)
    assert prepare._path_beside_data(config).name != beside
    config.vocabulary.file = "given.txt"
    assert prepare.existing_vocabulary(config) == prepare.find_vocabulary(config) == pathlib.Path("given.txt")


@pytest.mark.parametrize("languages,line", [
    ((), "Building a vocabulary of up to 77 word pieces (wordpiece) …\n"),
    (("en", "de"), "Collecting up to 77 words in 2 languages …\n"),
])  # fmt: skip
def test_what_a_vocabulary_is_learned_from(languages, line, tmp_path, monkeypatch, capsys):
    texts = []
    learned = []

    def learn(*arguments, **options):
        texts.extend(arguments[0])
        learned.append((arguments[1:], options))
        return ["[PAD]", "a"]

    monkeypatch.setattr(prepare, "build_vocabulary", learn)
    monkeypatch.setattr(prepare, "build_words", learn)
    monkeypatch.setattr(prepare, "SAMPLED_TEXTS", 3)
    monkeypatch.setattr(prepare, "SAMPLED_PIECES", 50)
    records.write_records(tmp_path, records.IMAGE_TEXT, "train", toy_data.image_text_records(2))
    records.write_records(tmp_path, records.TEXT_PAIRS, "train", toy_data.text_pairs(1))
    config = toy_data.toy_config(tmp_path)
    config.vocabulary.update(dict(size=77, builder="wordpiece", lower_case=True, strip_accents=False))
    if languages:
        config.text_tower.update(dict(name="words", languages=languages))
    path = prepare.find_vocabulary(config)
    casing = dict(lower_case=True, strip_accents=False)
    pairs = [
        ("en", "thing w0"),
        ("de", "ding v0"),
        ("en", "thing w1"),
        ("de", "ding v1"),
        *[("en", "thing w0"), ("de", "ding v0")],
    ]
    expected = pairs if languages else [text for _, text in pairs]
    assert texts == expected and path.read_text() == "[PAD]\na\n" and capsys.readouterr().out == line
    assert learned == [((languages, 77), casing) if languages else ((77,), {"builder": "wordpiece", **casing})]
    assert prepare.find_vocabulary(config) == path and len(learned) == 1
    texts.clear()
    sampled = prepare.sampled_vocabulary(config, tmp_path / "image_text")
    assert texts == expected[:3] and sampled == tmp_path / "image_text/vocabulary.txt" and sampled.exists()
    assert learned[1][0] == ((languages, 50) if languages else (50,))
    config.data.sources = {"s": {"directory": str(tmp_path), "format": "img2dataset"}}
    for name in ("data.sources.s", "data"):
        with pytest.raises(UserError) as raised:
            list(prepare._training_texts_by_language(config.data))
        assert str(raised.value) == (
            f"{name}.format=img2dataset: a vocabulary is built from this project's records. Name one with "
            "--config.vocabulary.file, as python -m mural_tf vocabulary makes it of any source."
        )
        config.data.sources = {}
        config.data.format = "img2dataset"


def test_places_that_are_looked_at(tmp_path, monkeypatch):
    read, named = [], []
    monkeypatch.setattr(prepare, "check_readable", read.append)
    monkeypatch.setattr(prepare.hugging_face, "check", named.append)
    monkeypatch.setattr(prepare.hugging_face, "is_name", lambda value: value == "owner/model")
    config = toy_data.toy_config("data folder")
    config.image_tower.update(dict(handle="https://a", weights="owner/model", class_names="names"))
    config.text_tower.update(dict(handle="h", weights="w", word_vectors="http://v"))
    config.vocabulary.file = "http://f"
    config.evaluation.source_data = "e"
    prepare.check_places(config)
    assert named == ["owner/model"] and read == ["data folder", "e", "http://v", "names", "h", "w"]
    read.clear()
    config.data.sources = {"b": {"directory": "two"}, "a": {"directory": "one"}}
    config.vocabulary.file = "f"
    prepare.check_places(config)
    assert read == ["data folder", "e", "f", "http://v", "names", "h", "w", "one", "two"]


def test_data_that_there_is_to_train_on(tmp_path, monkeypatch):
    config = toy_data.toy_config(tmp_path)
    built = []
    monkeypatch.setattr(prepare, "load_registered", lambda group, name: built.append if name == "built" else None)
    monkeypatch.setattr(prepare, "registered", lambda group: ["built", "other"])
    records.write_records(tmp_path / "pairs", records.TEXT_PAIRS, "train", toy_data.text_pairs(2))
    records.write_records(tmp_path, records.IMAGE_TEXT, "train", toy_data.image_text_records(2))
    assert prepare.prepare_data(config) == tmp_path and not built
    config.data.source = "built"
    assert prepare.prepare_data(config) == tmp_path and built == [config.data]
    config.data.directory = str(tmp_path / "pairs")  # pairs alone are not enough, but of one of several sources
    with pytest.raises(UserError, match="No image_text records of split 'train'"):
        prepare.prepare_data(config)
    config.data.sources = {"p": {"directory": str(tmp_path / "pairs")}, "i": {"directory": str(tmp_path)}}
    prepare.check_data(config.data)
    config.data.source = "web"
    with pytest.raises(UserError) as raised:
        prepare.check_data(config.data)
    assert str(raised.value) == (
        "Unknown data.source 'web'; known: records, built, other. Install the package that registers it; in a "
        "checkout, run `pip install -e .` again."
    )


# The folder.


def test_fields_of_a_tree():
    assert flat({"a": {"b": [1, 2], "c": {"d": 3}}, "e": {}, "f": None}) == {"a.b": (1, 2), "a.c.d": 3, "f": None}


def test_a_folder_of_others(tmp_path):
    config = toy_data.toy_config("")
    (tmp_path / "mine").touch()
    message = f"{tmp_path} is neither empty nor a workdir (no config.json); name another folder."
    for enter in (lambda: lock_workdir(tmp_path).__enter__(), lambda: open_workdir(tmp_path, config)):
        with pytest.raises(UserError) as raised:
            enter()
        assert str(raised.value) == message and [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(UserError) as raised:
        open_workdir(tmp_path / "new", config, writes=False)
    assert str(raised.value) == f"--workdir={tmp_path / 'new'} is not the chief's: all workers must see one folder."
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError) as raised:
        trained_model.load_trained(tmp_path / "new")
    assert str(raised.value) == f"The workdir {tmp_path / 'new'} does not exist."


@pytest.mark.parametrize("made", ["checkpoints", "metrics.jsonl"])
def test_a_workdir_of_another_configuration(made, tmp_path, monkeypatch):
    config = toy_data.toy_config("")
    open_workdir(tmp_path, config)
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found == environment.environment() and (tmp_path / "environment.json").read_text().endswith("\n}\n")
    (tmp_path / made).mkdir()
    other = load_config(tmp_path / "config.json")
    other.update_from_flattened_dict({"seed": 1, "embedding_size": 3, "data.directory": "elsewhere"})
    fields = "embedding_size was 80, is 3; seed was 0, is 1"
    rest = f" Run with its own, or name another --workdir; `finetune --from={tmp_path}` goes on from its weights."
    for more in ("", " and 1 more"):
        with pytest.raises(UserError) as raised:
            open_workdir(tmp_path, other)
        assert str(raised.value) == f"{tmp_path} belongs to another configuration ({fields}{more}).{rest}"
        other.text_tower.layers = 5
    other.data.sources = {"a": {"directory": "data/" * 100}}  # a long value is shortened
    with pytest.raises(UserError) as raised:
        open_workdir(tmp_path, other)
    assert len(str(raised.value)) < 500
    monkeypatch.setattr(workdir.os, "access", lambda *_: False)
    with pytest.raises(UserError, match=f"^Cannot write to {tmp_path}: Permission denied"):
        open_workdir(tmp_path, config)


@pytest.mark.parametrize("has_vocabulary", [False, True])
def test_another_configuration_before_training_replaces_the_first(tmp_path, has_vocabulary):
    config = toy_data.toy_config("")
    open_workdir(tmp_path, config)
    if has_vocabulary:
        (tmp_path / "vocabulary.txt").touch()
    config.seed = 1
    open_workdir(tmp_path, config)
    assert load_config(tmp_path / "config.json").seed == 1 and not (tmp_path / "vocabulary.txt").exists()


def test_what_a_killed_run_left_half_written_goes(tmp_path):
    config = toy_data.toy_config("")
    open_workdir(tmp_path, config)
    left = tmp_path / f".summary.json.1-a{PARTIAL}"
    for writes in (False, True):
        left.touch()
        open_workdir(tmp_path, config, writes)
        assert left.exists() != writes
