"""Versions of what is served: published under load, finished in the old one, broken, labelled, taken back, freed."""

import gc
import http.client
import json
import pathlib
import shutil
import threading
import time
import types
import weakref

import fsspec
import numpy as np
import pytest
import tensorflow as tf
from running_app import running

import mural_tf
from mural_tf.errors import UserError
from mural_tf.export import versions as published
from mural_tf.export.versions import add_version, choose_number, follow, models_of, newest_description, newest_version
from mural_tf.files import as_path
from mural_tf.search.server import versions as served
from mural_tf.search.server.app import PREDICT, app_of_models, create_app
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.versions import Export, choose, load_versions, parse_labels

LIMITS = Limits(window=0.0)
PATH = "/v1/models/factor"


def ask(port, path, body=None, connection=None):
    """Returns (status, JSON)."""
    own = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    own.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
    response = own.getresponse()
    answer = response.status, json.loads(response.read())
    if connection is None:
        own.close()
    return answer


def factor(port, where=""):
    status, answer = ask(port, f"{PATH}{where}:predict", {"instances": [1.0]})
    assert status == 200, answer
    return answer["predictions"][0]


def save_factor(path, number):
    """A SavedModel that multiplies by `number`."""
    module = tf.Module()
    module.factor = tf.Variable(float(number))
    spec = [tf.TensorSpec([None], tf.float32, name="x")]
    module.call = tf.function(lambda x: {"y": module.factor * x}, input_signature=spec)
    tf.saved_model.save(module, str(path), signatures=module.call)


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Folders of which `release` makes versions: 1 to 4."""
    folder = tmp_path_factory.mktemp("releases")
    for number in range(1, 5):
        save_factor(folder / str(number), number)
    return folder


@pytest.fixture
def release(releases, tmp_path):
    """Returns `release(number)`, which publishes one; and an export that holds 1."""

    def publish(number, damage=False):
        made = tmp_path / f"made-{number}"
        for name in ("factor", "other"):
            shutil.copytree(releases / str(number), made / name / str(number))
        if damage:
            (made / "other" / str(number) / "saved_model.pb").write_bytes(b"not a graph")
        card = made / "versions" / str(number) / "model_card.json"
        card.parent.mkdir(parents=True)
        card.write_text(json.dumps({"version": number}))
        add_version(made, tmp_path / "export", number)

    publish(1)
    publish.folder = tmp_path / "export"
    return publish


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def states(port, path=PATH):
    status, answer = ask(port, path)
    assert status == 200
    return {int(one["version"]): one["state"] for one in answer["model_version_status"]}


def test_three_releases_into_a_loaded_server_fail_no_request(release):
    stop, failures, answers = threading.Event(), [], [[1.0] for _ in range(4)]

    def client(port, name, seen):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while not stop.is_set():
            status, answer = ask(port, f"/v1/models/{name}:predict", {"instances": [1.0, 2.0]}, connection)
            if status != 200 or answer["predictions"] != [answer["predictions"][0], 2 * answer["predictions"][0]]:
                failures.append((status, answer))
                break
            seen.append(answer["predictions"][0])
            time.sleep(0.005)  # hundreds of requests a second, not as many as the processors can

    app = create_app(release.folder, LIMITS, poll_seconds=0.02)
    gone = weakref.ref(app[PREDICT].__self__.versions.find("factor").model)
    with running(app, LIMITS) as server:
        names = ("factor", "other") * 2
        threads = [threading.Thread(target=client, args=(server.port, *each)) for each in zip(names, answers)]
        for thread in threads:
            thread.start()
        for number in (2, 3, 4):
            release(number)
            until(lambda number=number: states(server.port).get(number) == "AVAILABLE")
        until(lambda: states(server.port) == {4: "AVAILABLE"})
        assert factor(server.port) == factor(server.port, "/versions/4") == 4.0
        until(lambda: failures or all(seen[-1] == 4.0 for seen in answers))  # also of a client that had no turn yet
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not failures and all(seen == sorted(seen) for seen in answers), failures[:3]
        assert "no version 1 loaded; it has 4" in ask(server.port, f"{PATH}/versions/1")[1]["error"]
        until(lambda: gc.collect() is not None and gone() is None)  # the model itself, and with it its variables


def test_a_version_that_appears_during_a_look_is_not_complete(release, monkeypatch):
    """Taken for one without a card, it was served before the card came, and taken back until then."""
    look = pathlib.Path.glob

    def appears(folder, pattern, **options):
        found = list(look(folder, pattern, **options))
        if pattern.startswith("versions") and not (release.folder / "versions/2").exists():
            release(2)
            (release.folder / "versions/2/model_card.json").unlink()
        return iter(found)

    monkeypatch.setattr(pathlib.Path, "glob", appears)
    assert models_of(release.folder) == {"factor": [1], "other": [1]}
    assert (release.folder / "factor/2/saved_model.pb").exists()


class Gated:
    """A signature that multiplies by a number, when its gate is open."""

    def __init__(self, number):
        self.inputs, self.takes_images, self.row_bytes = {"x": tf.TensorSpec([None], tf.float32)}, False, 4
        self.number, self.gate, self.began = number, threading.Event(), threading.Event()
        self.gate.set()

    def run(self, inputs):
        self.began.set()
        assert self.gate.wait(20)
        return {"y": self.number * inputs["x"]}


class Numbered:
    """An export of one model whose versions the test names; loading `broken` ones fails."""

    def __init__(self, *numbers):
        self.numbers, self.broken, self.signatures, self.files = list(numbers), set(), {}, {}

    def available(self):
        return {"factor": sorted(self.numbers)} if self.numbers else {}

    def load(self, name, number):
        if number in self.broken:
            raise RuntimeError("a graph of\nnonsense")
        signature = self.signatures[number] = Gated(number)
        return types.SimpleNamespace(name=name, version=number, signatures={"serving_default": signature}, metadata={})

    def state(self, number):
        return (self.files.get(number, 0),)


@pytest.fixture
def serve():
    """Returns `serve(export, labels)` → port."""
    contexts = []

    def start(export, labels=None):
        app = app_of_models(load_versions(export, labels), LIMITS, (), export, 0.01, labels)
        contexts.append(running(app, LIMITS))
        return contexts[-1].__enter__().port

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


def test_a_request_that_runs_is_finished_in_the_old_version(serve):
    export = Numbered(1)
    port, answers = serve(export), []
    export.signatures[1].gate.clear()
    thread = threading.Thread(target=lambda: answers.append(factor(port)))
    thread.start()
    assert export.signatures[1].began.wait(20)
    export.numbers.append(2)
    until(lambda: states(port) == {2: "AVAILABLE", 1: "UNLOADING"})
    assert factor(port) == 2.0 and not answers
    export.signatures[1].gate.set()
    thread.join(20)
    assert answers == [1.0]
    until(lambda: states(port) == {2: "AVAILABLE"})


def test_a_broken_version_is_one_line_until_its_files_change(serve, caplog):
    export = Numbered(1)
    port = serve(export)
    export.broken.add(2)
    export.numbers.append(2)
    until(lambda: states(port) == {2: "END", 1: "AVAILABLE"})
    assert factor(port) == 1.0
    status, answer = ask(port, f"{PATH}/versions/2")
    message = answer["model_version_status"][0]["status"]
    assert status == 200 and message == {"error_code": "INTERNAL", "error_message": "a graph of nonsense"}
    time.sleep(0.1)  # several looks
    lines = [record.getMessage() for record in caplog.records if "cannot be served" in record.getMessage()]
    assert lines == ["Version 2 of factor cannot be served and is left out: a graph of nonsense"]
    export.broken.clear()
    export.files[2] = 1
    until(lambda: states(port) == {2: "AVAILABLE"})


def test_labels_stay_loaded_and_the_newest_answers_without_one(serve):
    export = Numbered(1, 2)
    port = serve(export, {"stable": 1, "canary": 2})
    export.numbers.append(3)
    until(lambda: states(port) == {number: "AVAILABLE" for number in (1, 2, 3)})
    assert [factor(port, where) for where in ("", "/labels/stable", "/labels/canary", "/versions/2")] == [3, 1, 2, 2]
    assert states(port, f"{PATH}/labels/canary") == {2: "AVAILABLE"}
    assert ask(port, f"{PATH}/labels/stable/metadata")[1]["model_spec"]["version"] == "1"
    status, answer = ask(port, f"{PATH}/labels/old:predict", {"instances": [1.0]})
    assert status == 404 and answer["error"] == "There is no label 'old'; there are canary, stable."
    with pytest.raises(UserError, match="The label old is of version 9, which factor lacks: it has 1, 2, 3"):
        load_versions(export, {"old": 9})


def test_a_deleted_version_goes_and_nothing_does_when_all_are_away(serve, caplog):
    export = Numbered(1, 2)
    port = serve(export)
    assert states(port) == {2: "AVAILABLE"}
    export.numbers.remove(2)
    until(lambda: states(port) == {1: "AVAILABLE"})
    assert factor(port) == 1.0
    export.numbers.clear()
    time.sleep(0.1)
    assert factor(port) == 1.0


def test_a_folder_that_cannot_be_read_is_said_once(serve, caplog):
    export = Numbered(1)
    port = serve(export)
    export.available = lambda: (_ for _ in ()).throw(OSError(5, "Input/output error", "/models"))
    until(lambda: "Cannot look for new versions" in caplog.text)
    time.sleep(0.1)
    assert caplog.text.count("Cannot look for new versions, what is loaded goes on") == 1 and factor(port) == 1.0


def test_a_start_takes_the_newest_that_can_be_loaded(release):
    release(2, damage=True)
    models = load_versions(Export(release.folder))
    assert [(model.name, model.version) for model in models] == [("factor", 1), ("other", 1)]  # both of one version
    with pytest.raises(UserError, match="other/2 is not a SavedModel or is damaged"):
        load_versions(Export(release.folder), {"canary": 2})
    for left in ("other/1", "factor/1"):  # one model has none that works; none has
        shutil.rmtree(release.folder / left)
        with pytest.raises(UserError, match="other/2 is not a SavedModel or is damaged"):
            load_versions(Export(release.folder))


def test_what_is_wanted():
    assert choose({"a": [1, 2], "b": [1]}, {}, [], {}) == {"a": {2}, "b": {1}}
    assert choose({"a": [1, 2], "b": [1, 2]}, {"a": {1}, "b": {1}}, [1], {2}) == {"a": {1}, "b": {1}}
    assert choose({}, {"a": {1, 3}}, [1], {}) == {"a": {1, 3}}
    assert choose({"a": [2]}, {"a": {1}}, [1], {}) == {"a": {1, 2}}  # a label's version is kept


@pytest.mark.parametrize("texts", [["stable"], ["stable=x"], ["a=1", "a=2"], ["a/b=1"], ["=1"], ["a=-1"]])
def test_labels_are_checked(texts):
    with pytest.raises(UserError, match="expected LABEL=NUMBER, each label once, such as stable=1,canary=2"):
        parse_labels(texts)
    assert parse_labels(["stable=1", "canary=12"]) == {"stable": 1, "canary": 12}


def make(folder, number, content="x"):
    """The files of a version as an export writes them, in small."""
    names = [f"{name}/{number}/{file}" for name in ("image_encoder", "text_encoder")
             for file in ("saved_model.pb", "variables/variables.index")]  # fmt: skip
    names += [f"versions/{number}/{file}" for file in ("config.json", "hub/text_encoder/saved_model.pb")]
    for name in [*names, "serving/models.config"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "versions" / str(number) / "model_card.json").write_text(json.dumps({"version": number}))


def test_a_version_that_is_killed_while_it_appears_is_passed_over(tmp_path, monkeypatch):
    export, calls = tmp_path / "export", []
    make(tmp_path / "1", 1)
    add_version(tmp_path / "1", export, 1)
    steps = ("publish", "write_whole")
    originals = {name: getattr(published, name) for name in steps}
    for killed_at in range(4):  # versions/, two encoders, the card
        number = int(choose_number(export, "auto"))
        assert number == killed_at + 2 - (killed_at > 0 and not (export / f"versions/{killed_at + 1}").exists())
        calls.clear()

        def step(name, *arguments, killed_at=killed_at):
            calls.append(name)
            if len(calls) > killed_at:
                raise KeyboardInterrupt
            originals[name](*arguments)

        for name in steps:
            monkeypatch.setattr(published, name, lambda *arguments, name=name: step(name, *arguments))
        make(tmp_path / f"killed-{killed_at}", number)
        with pytest.raises(KeyboardInterrupt):
            add_version(tmp_path / f"killed-{killed_at}", export, number)
        assert models_of(export) == {"image_encoder": [1], "text_encoder": [1]}
        assert newest_version(export, ("image_encoder", "text_encoder")) == 1
        assert newest_description(export) == export / "versions/1"
        monkeypatch.undo()
    make(tmp_path / "again", number, "new")
    add_version(tmp_path / "again", export, number)  # the same number again
    assert models_of(export)["text_encoder"] == [1, number]
    assert (export / f"text_encoder/{number}/variables/variables.index").read_text() == "new"
    with pytest.raises(UserError, match=f"has a version {number} already, and what is served never changes"):
        choose_number(export, str(number))
    with pytest.raises(UserError, match="expected auto or a number from 1 on"):
        choose_number(export, "next")


def test_a_store_gets_the_graphs_and_the_card_last_and_is_followed(tmp_path, monkeypatch):
    fsspec.filesystem("memory").store.clear()
    store, order = as_path("memory://bucket/export"), []
    copy = published.copy_file
    monkeypatch.setattr(published, "copy_file", lambda a, b: (order.append(str(b)), copy(a, b))[1])
    local = tmp_path / "local"
    for number in (1, 2):
        make(tmp_path / str(number), number)
        add_version(tmp_path / str(number), store, number)
        assert [name.split("/")[-1] for name in order[-2:]] == ["saved_model.pb"] * 2
        assert not any("model_card" in name for name in order) and is_card(store, number)
        follow(store, local)
        assert models_of(local) == models_of(store) == {name: list(range(1, number + 1)) for name in models_of(store)}
        assert newest_description(local) == local / f"versions/{number}"
        order.clear()
    follow(store, local)
    assert not order  # nothing is copied twice
    for path in (store / "text_encoder/2").files():
        path.unlink()
    follow(store, local)
    assert models_of(local) == {"image_encoder": [1, 2], "text_encoder": [1]}


def is_card(store, number):
    return json.loads((store / f"versions/{number}/model_card.json").read_text()) == {"version": number}


def test_an_export_with_versions_loads_as_its_newest(export, tmp_path):
    folder = tmp_path / "export"
    shutil.copytree(export, folder)  # version 1, described at the top
    for name in ("image_encoder", "text_encoder"):
        shutil.copytree(export / name / "1", folder / name / "3")
    (folder / "versions/3").mkdir(parents=True)
    for name in ("config.json", "vocabulary.txt", "model_card.json"):
        assert name == "config.json" or newest_version(folder, ("image_encoder", "text_encoder")) == 1  # no card yet
        shutil.copy(export / name, folder / "versions/3" / name)
    (folder / "config.json").unlink()  # of the first
    embedder = mural_tf.load(folder)
    assert np.isfinite(embedder.encode_text("thing")).all() and choose_number(folder, "auto") == 4
    shutil.rmtree(folder / "image_encoder")
    with pytest.raises(UserError, match="image_encoder has no version: expected a SavedModel in .*image_encoder/1"):
        newest_version(folder, ("image_encoder", "text_encoder"))


def test_memory_that_was_frozen_is_freed():
    class Node:
        pass

    node = Node()
    node.itself, seen = node, weakref.ref(node)
    gc.collect()
    gc.freeze()
    try:
        del node
        gc.collect()
        assert seen() is not None
        served._collect()
        assert seen() is None and gc.get_freeze_count()
    finally:
        gc.unfreeze()
