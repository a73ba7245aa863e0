"""Newer versions of what is served: published under load, finished in the old one, broken, taken back, freed."""

import http.client
import shutil
import threading
import time
import types
import weakref

import pytest
import tensorflow as tf
from running_app import Multiplier, ask, running, until

from mural_tf.errors import UserError
from mural_tf.export.versions import add_version
from mural_tf.search.server import models
from mural_tf.search.server.app import create_app
from mural_tf.search.server.batches import ServedModel
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.models import Versions

LIMITS = Limits(window=0.0)
PATH = "/v1/models/factor"


def factor(port, where=""):
    status, answer, _ = ask(port, f"{PATH}{where}:predict", {"instances": [1.0]})
    assert status == 200, answer
    return answer["predictions"][0]


def version(port):
    status, answer, _ = ask(port, PATH)
    assert status == 200 and answer["model_version_status"][0]["state"] == "AVAILABLE"
    return int(answer["model_version_status"][0]["version"])


def save_factor(path, number):
    """A SavedModel that multiplies by `number`."""
    module = tf.Module()
    module.factor = tf.Variable(float(number))
    spec = [tf.TensorSpec([None], tf.float32, name="x")]
    module.call = tf.function(lambda x: {"y": module.factor * x}, input_signature=spec)
    tf.saved_model.save(module, str(path), signatures=module.call)


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Folders of which `release` makes versions: 1 to 3."""
    folder = tmp_path_factory.mktemp("releases")
    for number in range(1, 4):
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
        (made / "versions" / str(number)).mkdir(parents=True)
        (made / "versions" / str(number) / "model_card.json").write_text("{}")
        add_version(made, tmp_path / "export", number)

    publish(1)
    publish.folder = tmp_path / "export"
    return publish


def test_two_releases_into_a_loaded_server_fail_no_request_and_the_old_ones_are_freed(release):
    stop, failures, answers = threading.Event(), [], [[1.0] for _ in range(4)]

    def client(port, name, seen):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while not stop.is_set():
            status, answer, _ = ask(
                port, f"/v1/models/{name}:predict", {"instances": [1.0, 2.0]}, connection=connection
            )
            if status != 200 or answer["predictions"] != [answer["predictions"][0], 2 * answer["predictions"][0]]:
                failures.append((status, answer))
                break
            seen.append(answer["predictions"][0])
            time.sleep(0.01)  # hundreds of requests a second, not as many as the processors can

    versions = Versions(release.folder, LIMITS)
    first = weakref.ref(versions.models["factor"].signatures["serving_default"].saved_model)
    with running(create_app(versions, LIMITS, poll_seconds=0.02), LIMITS) as server:
        clients = zip(("factor", "other") * 2, answers)
        threads = [threading.Thread(target=client, args=(server.port, *each)) for each in clients]
        for thread in threads:
            thread.start()
        for number in (2, 3):
            release(number)
            until(lambda number=number: version(server.port) == number)
        assert factor(server.port) == factor(server.port, "/versions/3") == 3.0
        until(lambda: failures or all(seen[-1] == 3.0 for seen in answers))  # also of a client that had no turn yet
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not failures and all(seen == sorted(seen) for seen in answers), failures[:3]
        status, answer, _ = ask(server.port, f"{PATH}/versions/1:predict", {"instances": [1.0]})
        assert status == 404 and answer["error"] == "factor has no version 1 loaded; it has 3."
        until(lambda: first() is None)  # and with it its variables


def test_a_start_takes_the_newest_that_can_be_loaded(release):
    release(2, damage=True)
    found = Versions(release.folder, LIMITS).models
    assert {name: model.version for name, model in found.items()} == {"factor": 1, "other": 1}  # both of one version
    shutil.rmtree(release.folder / "factor/1")
    with pytest.raises(UserError, match="other/2 is not a SavedModel or is damaged"):
        Versions(release.folder, LIMITS)


class Numbered:
    """An export of one model whose versions are empty folders; loading `broken` ones fails."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.broken, self.signatures = folder, set(), {}
        monkeypatch.setattr(models, "load_model", self.load)
        self.add(1)

    def add(self, number):
        (self.folder / "factor" / str(number)).mkdir(parents=True)
        (self.folder / "factor" / str(number) / "saved_model.pb").write_bytes(b"")

    def load(self, path, limits):
        number = int(path.name)
        if number in self.broken:
            raise RuntimeError("a graph of\nnonsense")
        signature = self.signatures[number] = Multiplier(float(number))
        return ServedModel("factor", number, {"serving_default": signature}, {}, limits)


@pytest.fixture
def numbered(tmp_path, monkeypatch):
    """An export, `.port` where it is served, and `.versions`."""
    export = Numbered(tmp_path / "numbered", monkeypatch)
    export.versions = Versions(export.folder, LIMITS)
    with running(create_app(export.versions, LIMITS, poll_seconds=0.01), LIMITS) as server:
        export.port = server.port
        yield export


def test_a_request_that_runs_is_finished_in_the_old_version(numbered):
    port, answers = numbered.port, []
    numbered.signatures[1].gate.clear()
    thread = threading.Thread(target=lambda: answers.append(factor(port)))
    thread.start()
    assert numbered.signatures[1].began.wait(20)
    numbered.add(2)
    until(lambda: version(port) == 2)
    assert factor(port) == [2.0] and not answers
    numbered.signatures[1].gate.set()
    thread.join(20)
    assert answers == [[1.0]]


def test_a_broken_version_is_one_line_until_its_files_change(numbered, caplog):
    numbered.broken.add(2)
    numbered.add(2)
    until(lambda: "cannot be served" in caplog.text)
    time.sleep(0.05)  # several looks
    lines = [record.getMessage() for record in caplog.records if "cannot be served" in record.getMessage()]
    assert lines == ["Version 2 of factor cannot be served and is left out: a graph of nonsense"]
    assert version(numbered.port) == 1 and factor(numbered.port) == [1.0]
    numbered.broken.clear()
    (numbered.folder / "factor/2/saved_model.pb").write_bytes(b"mended")
    until(lambda: version(numbered.port) == 2)


def test_a_version_that_goes_away_while_it_is_loaded_is_tried_again(numbered, monkeypatch, caplog):
    folder, away, load = numbered.folder / "factor/2", numbered.folder.parent / "away", models.load_model

    def goes_away(path, limits):
        if path == folder and "cannot be served" not in caplog.text:
            folder.rename(away)
            raise OSError(5, "Input/output error", str(path))
        return load(path, limits)

    monkeypatch.setattr(models, "load_model", goes_away)
    numbered.add(2)
    until(lambda: "Version 2 of factor cannot be served" in caplog.text)
    away.rename(folder)  # its files are what they were before
    until(lambda: version(numbered.port) == 2)


def test_a_deleted_version_goes_and_nothing_does_when_all_are_away(numbered, caplog):
    numbered.add(2)
    until(lambda: version(numbered.port) == 2)
    shutil.rmtree(numbered.folder / "factor/2")
    until(lambda: version(numbered.port) == 1)
    (numbered.folder / "factor").rename(numbered.folder / "away")
    time.sleep(0.05)
    assert factor(numbered.port) == [1.0]
    (numbered.folder / "away").rename(numbered.folder / "factor")

    def fails(*_):
        raise OSError(5, "Input/output error", "/models")

    numbered.versions._look = fails
    until(lambda: "Cannot look for new versions" in caplog.text)
    time.sleep(0.05)
    assert caplog.text.count("Cannot look for new versions, what is loaded goes on") == 1
    assert factor(numbered.port) == [1.0]


def test_a_folder_that_is_renamed_behind_a_look_is_not_another_model(tmp_path, monkeypatch):
    export = Numbered(tmp_path / "numbered", monkeypatch)
    versions, look = Versions(export.folder, LIMITS), models.models_of

    def renamed_behind(folder):
        found = look(folder)
        if (folder / "factor").exists():
            (folder / "factor").rename(folder / "away")
        return found

    monkeypatch.setattr(models, "models_of", renamed_behind)
    assert versions._load_newer() == {}


def test_models_are_served_in_a_number_that_all_of_them_have(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "load_model", lambda path, limits: types.SimpleNamespace(version=int(path.name)))
    for name in ("a/1", "a/2", "a/10", "b/2", "b/3"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "saved_model.pb").write_bytes(b"")
    found = Versions(tmp_path, LIMITS).models
    assert {name: model.version for name, model in found.items()} == {"a": 2, "b": 2}
    versions = Versions(tmp_path, LIMITS)
    # Copied in by hand, one after the other; the last one is a model that was not there before.
    for name, names, number in (("a/3", "ab", 3), ("b/11", "", 0), ("a/11", "ab", 11), ("c/11", "abc", 11)):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "saved_model.pb").write_bytes(b"")
        found = versions._load_newer()
        assert {name: model.version for name, model in found.items()} == dict.fromkeys(names, number)
        versions.models = found or versions.models
    shutil.rmtree(tmp_path / "b")
    shutil.rmtree(tmp_path / "c")
    (tmp_path / "b/4").mkdir(parents=True)
    (tmp_path / "b/4/saved_model.pb").write_bytes(b"")
    with pytest.raises(UserError, match="is not an export: expected SavedModels such as .* of one number for all"):
        Versions(tmp_path, LIMITS)
    (tmp_path / "w/export").mkdir(parents=True)
    with pytest.raises(UserError, match=r"; it is a workdir, whose export is .*/w/export\.$"):
        Versions(tmp_path / "w", LIMITS)
    with pytest.raises(UserError, match="does not exist; `python -m mural_tf export` makes one"):
        Versions(tmp_path / "nothing", LIMITS)
