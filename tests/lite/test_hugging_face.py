"""Models by name: hf://ORG/NAME from a stand-in of the Hub, as huggingface_hub asks it; each failure is one line."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from foreign_checkpoints import write_clip, write_open_clip, write_siglip
from foreign_weights import write_bert, write_json, write_sentences
from hub_stand_in import OTHER, SHA, environment, hub_stand_in
from test_commands import run_here
from toy_data import picture, write_toy_data

import mural_tf
from mural_lite import hugging_face, remote_folders
from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_lite.remote_folders import display_name, local_copy, local_model
from mural_search import runs as commands
from mural_search.index import load_index
from mural_tf.commands import COMMANDS
from mural_tf.configs.finetune import get_config
from mural_tf.evaluation import benchmarks
from mural_tf.evaluation.report import evaluate_and_report
from mural_tf.runs.finetune import finetune, starting_point
from mural_tf.runs.import_pretrained import import_into_workdir, workdir_of
from mural_tf.runs.teachers import open_teacher

README = "---\nlicense: apache-2.0\nlanguage:\n- sw\n- 'no'  # Norwegian\n- pt-BR\n---\n# A model\n"
TEXTS = ["a red balloon", "ein roter Ballon", ""]
FETCH = """
import sys
from mural_lite.errors import UserError
from mural_lite.remote_folders import local_copy
for name in sys.argv[1:]:
    try:
        folder = local_copy(name)
        print("fetched", *sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    except UserError as error:
        print(repr(str(error)))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders as they lie in repositories: with much that is not read."""
    folder = tmp_path_factory.mktemp("models")
    for name, write in {
        "sentences": write_sentences, "siglip": write_siglip, "bert": write_bert, "clip": write_clip,
        "xlm": write_open_clip,
    }.items():  # fmt: skip
        (folder / name).mkdir()
        write(folder / name)
        (folder / name / "README.md").write_text(README)
        (folder / name / ".gitattributes").write_text("*.safetensors filter=lfs")
        for other in ("pytorch_model.bin", "onnx/model.onnx", "onnx/tokenizer.json", "tf_model.h5", "training.pt"):
            (folder / name / other).parent.mkdir(exist_ok=True)
            (folder / name / other).write_bytes(b"not read")
    return folder


@pytest.fixture(scope="module")
def server():
    with hub_stand_in() as hub:
        yield hub


@pytest.fixture
def hub(server, models, tmp_path, monkeypatch):
    """A Hub with the models, and none of them in this process' cache."""
    for state in (server.models, server.renamed, server.gated, server.broken, server.asked):
        state.clear()
    server.cut = 0
    for path in models.iterdir():
        server.add(f"org/{path.name}", path)
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(hugging_face, "_fetched", {})
    monkeypatch.setattr(remote_folders, "_hub_names", {})
    return server


def run(hub, cache, program, *arguments, **others):
    """Runs a program in a process of its own, which sees the Hub by its environment alone; returns its lines."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment(hub, cache, **others)}
    done = subprocess.run([sys.executable, "-c", program, *arguments], env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def test_three_lines(hub, models, eager):
    embedder = mural_tf.load("hf://org/sentences")
    expected = mural_tf.load(models / "sentences").encode_text(TEXTS)
    assert np.abs(embedder.encode_text(TEXTS) - expected).max() <= 1e-6
    assert embedder.path == "hf://org/sentences"
    said = f"sentences hf://org/sentences at {SHA}, licence apache-2.0, languages sw no pt-BR"
    assert embedder.config.origin == said


@pytest.mark.parametrize("name, lacks", [
    ("sentences", ()), ("siglip", ()), ("bert", ()), ("clip", ()),
    ("xlm", ("model.safetensors",)),  # open_clip's reader takes its own file
])  # fmt: skip
def test_only_what_the_importer_reads_is_fetched(hub, models, name, lacks):
    if lacks:  # as repositories hold both
        hub.models[f"org/{name}"][SHA]["model.safetensors"] = b"the same once more"
    folder = local_copy(f"hf://org/{name}")
    here = {path.relative_to(models / name).as_posix() for path in (models / name).rglob("*") if path.is_file()}
    not_read = {".gitattributes", "pytorch_model.bin", "onnx/model.onnx", "onnx/tokenizer.json", "tf_model.h5",
                "training.pt", *lacks}  # fmt: skip
    fetched = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert fetched == here - not_read and set(hub.fetched()) == fetched
    assert all((folder / file).read_bytes() == (models / name / file).read_bytes() for file in fetched)
    hub.asked.clear()
    assert local_copy(f"hf://org/{name}") == folder and not hub.asked  # a process does not ask twice
    hugging_face._fetched.clear()
    assert local_copy(f"hf://org/{name}") == folder and not hub.fetched()  # what is there is not fetched again


def test_shards_are_those_that_the_index_names(hub, models):
    files = dict(hub.models["org/bert"][SHA])
    files["part-1.safetensors"], files["part-2.safetensors"] = files.pop("model.safetensors"), b"2"
    files["other.safetensors"], files["evil.bin"] = b"3", b"a pickle"
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors", "c": "evil.bin", "d": "../x/y"}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.models["org/shards"] = {"main": SHA, SHA: files}
    local_copy("hf://org/shards")
    weights = {file for file in hub.fetched() if file.endswith((".safetensors", ".bin"))}
    assert weights == {"part-1.safetensors", "part-2.safetensors"}


def test_a_revision_and_a_renamed_model(hub, models):
    changed = {**hub.models["org/bert"][SHA], "README.md": b"---\nlicense: mit\n---\n"}
    hub.models["org/bert"].update({OTHER: changed, "v2": OTHER, "main": SHA})
    hub.models["org/bert"]["v2"] = changed
    hub.renamed["before/bert"] = "org/bert"
    assert (local_copy(f"hf://org/bert@{OTHER}") / "README.md").read_bytes() == changed["README.md"]
    folder = local_copy("hf://before/bert")
    assert (folder / "README.md").read_text() == README and folder.name == SHA
    assert display_name(f"{folder}/config.json is damaged") == "hf://before/bert/config.json is damaged"
    with pytest.raises(UserError, match="^hf://before/bert holds one tower .* import bert --weights=hf://before/bert "):
        mural_tf.load("hf://before/bert")
    assert local_copy("hf://org/bert/README.md").read_text() == README  # a file alone
    assert local_copy(f"hf://org/bert@{OTHER}/README.md").read_bytes() == changed["README.md"]


FAILURES = [
    ("hf://org/none", "there is no model org/none at http://127.0.0.1:[0-9]+, or it is private: check the name"),
    ("hf://org/gated", "is gated: accept its terms at http://127.0.0.1:[0-9]+/org/gated, then log in"),
    ("hf://org/bert@v9", "org/bert has no revision v9"),
    ("hf://org/broken", "cannot be fetched, .*500 Internal Server Error.* Check the connection"),
    ("hf://org/pickles", "no weights that are read here, expected model.safetensors.*only pickles .pytorch_model.bin"),
    ("hf://org/empty", "no weights that are read here: expected model.safetensors"),
    ("hf://org/bert/nothing.npz", "org/bert has no file nothing.npz"),
    ("hf://org/bert/pytorch_model.bin", "is a pickle, which can run any code when it is opened, and is not fetched"),
    ("hf:/org/bert", "expected a local path, or a store's name with two slashes: gs://…, s3://…, hf://…"),
    ("hf://bert", "expected hf://ORG/NAME, hf://ORG/NAME@REVISION, or either with /FILE"),
    ("hf://org/../../etc", "expected hf://ORG/NAME"),
    ("hf://org/a--b", "expected hf://ORG/NAME"),
    (f"hf://org/{'a' * 99}", "no model can have this name"),
]


@pytest.fixture
def bad_days(hub, tmp_path):
    """Models that cannot be had."""
    write_json(tmp_path / "pickles" / "config.json", model_type="bert")
    (tmp_path / "pickles" / "pytorch_model.bin").write_bytes(b"a pickle")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "README.md").write_text("Coming soon.")
    for name in ("pickles", "empty"):
        hub.add(f"org/{name}", tmp_path / name)
    hub.models["org/gated"], hub.gated["org/gated"] = hub.models["org/bert"], "hf_right"
    hub.broken["org/broken"] = 500
    return hub


def test_every_failure_is_one_line_that_says_what_to_do(bad_days, tmp_path):
    lines = run(bad_days, tmp_path / "home", FETCH, *(name for name, _ in FAILURES))
    assert len(lines) == len(FAILURES)
    for (name, words), line in zip(FAILURES, lines):
        check_line(line, name, words)
    assert "pytorch_model.bin" not in bad_days.fetched()


def check_line(line, name, words):
    assert line.startswith(("'hf:", '"hf:')) and name in line and "\\n" not in line and len(line) < 420, line
    assert re.search(words, line), (words, line)


@pytest.mark.slow
@pytest.mark.parametrize("name, variables, words", [
    ("hf://org/gated", {"HF_TOKEN": "hf_wrong"}, "is gated: accept its terms"),
    ("hf://org/none", {"HF_TOKEN": "hf_wrong"}, "there is no model org/none"),
    ("hf://org/bert", {"HF_HUB_OFFLINE": "1"}, "is missing or incomplete in the cache .*, and HF_HUB_OFFLINE is set"),
    ("hf://org/bert", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be fetched, .*refused.* Check the connection"),
])  # fmt: skip
def test_failures_that_the_environment_makes(bad_days, tmp_path, name, variables, words):
    (line,) = run(bad_days, tmp_path / "home", FETCH, name, **variables)
    check_line(line, name, words)


@pytest.mark.slow
def test_the_environment_holds(bad_days, tmp_path):
    """A token opens a gated model; what is in the cache is used without a connection."""
    home, name = tmp_path / "home", "hf://org/gated"
    (first,) = run(bad_days, home, FETCH, name, HF_TOKEN="hf_right")
    assert "model.safetensors" in first.split()
    bad_days.asked.clear()
    for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        assert run(bad_days, home, FETCH, name, **variables) == [first]
    assert not bad_days.asked
    (line,) = run(bad_days, home, FETCH, "hf://org/gated@v1", HF_HUB_OFFLINE="1")
    check_line(line, "hf://org/gated@v1", "is missing or incomplete in the cache")


@pytest.mark.slow
def test_what_was_cut_off_is_not_taken_for_whole(hub, tmp_path):
    hub.cut = 1
    (line,) = run(hub, tmp_path / "home", FETCH, "hf://org/bert")
    assert "model.safetensors" in line.split() and hub.cut == 0  # the library tries again by itself
    hub.cut = 1000
    (line,) = run(hub, tmp_path / "other", FETCH, "hf://org/bert")
    check_line(line, "hf://org/bert", "was not fetched completely: .* The same command again fetches the rest")
    (line,) = run(hub, tmp_path / "other", FETCH, "hf://org/bert", HF_HUB_OFFLINE="1")
    check_line(line, "hf://org/bert", "is missing or incomplete in the cache")
    hub.cut = 0
    (line,) = run(hub, tmp_path / "other", FETCH, "hf://org/bert")
    assert "model.safetensors" in line.split()


def test_without_the_package(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr(hugging_face.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"hf://org/x needs the package huggingface_hub: pip install -e '.\[hub\]'"):
        local_copy("hf://org/x")
    assert run_here(COMMANDS, "evaluate", "--model=hf://org/x", "--data_dir=.") == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "needs the package huggingface_hub" in errors


@pytest.mark.parametrize("flag", [
    "evaluate --data_dir=. --model", "search query x --index=i --model", "embed x --output=o --model",
    "finetune --config=finetune --workdir=w --from", "catalogue t.csv --output=o --from",
    "import bert --workdir=w --weights", "import bert --workdir=w --weights=. --text",
    "import bert --workdir=w --weights=. --onto", "serve --export",
    "analyse doctor --data_dir=. --model", "analyse errors --data_dir=. --output=o --model=. --other",
])  # fmt: skip
def test_a_name_without_its_scheme_is_told_so(tmp_path, monkeypatch, capsys, flag):
    """Where a model is named, before anything else happens; a path that may be a typing mistake in a folder is not."""
    monkeypatch.chdir(tmp_path)
    assert hugging_face.suggestion("workdirs/siglip") == ""  # README's first command was not run yet
    (tmp_path / "workdirs").mkdir()
    assert run_here(COMMANDS, *f"{flag}=google/siglip2-base-patch16-224".split()) == 1
    errors = capsys.readouterr().err
    hint = "give hf://google/siglip2-base-patch16-224 to fetch it from the Hugging Face Hub"
    assert errors.count("\n") == 1 and hint in errors, errors
    assert not list((tmp_path / "workdirs").iterdir())


@pytest.mark.parametrize("call", [
    lambda name: mural_tf.load(name), lambda name: open_teacher(name), lambda name: starting_point(base(), name),
    lambda name: import_into_workdir("bert", name, "w"), lambda name: local_model(name),
    lambda name: workdir_of(name, "w", "student", "image_text_head"), lambda name: local_model(f"{name}@v2"),
])  # fmt: skip
def test_python_says_so_too(hub, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="google/siglip.* does not exist: give hf://google/siglip.* to fetch it"):
        call("google/siglip")


def base(directory=""):
    config = get_config()
    config.data.source, config.data.directory = "records", str(directory)
    return config


def test_elsewhere_a_path_is_expected(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_here(COMMANDS, "evaluate", "--model=.", "--data_dir=hf://org/data") == 1
    assert "hf://org/data is the name of a model; expected a path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_import_keeps_where_it_came_from(hub, tmp_path, capsys):
    import_into_workdir("siglip", "hf://org/siglip", tmp_path / "w", text="hf://org/bert")
    assert "Imported hf://org/siglip and hf://org/bert into" in capsys.readouterr().out
    said = f"at {SHA}, licence apache-2.0, languages sw no pt-BR"
    assert load_config(tmp_path / "w/config.json").origin == f"siglip hf://org/siglip {said}; bert hf://org/bert {said}"


@pytest.mark.slow
def test_an_export_in_a_repository(hub, toy, tmp_path):
    """A pushed export is loaded, gives the vectors that it had, and is a start for fine-tuning."""
    hub.add("org/mine", toy.path)
    embedder = mural_tf.load("hf://org/mine")
    assert np.array_equal(embedder.encode_text(TEXTS), mural_tf.load(toy.path).encode_text(TEXTS))
    assert not any(file.startswith("serving/") for file in hub.fetched())
    config, restore = starting_point(base(write_toy_data(tmp_path / "data")), "hf://org/mine")
    assert restore is not None and os.path.isfile(config.vocabulary.file)  # a path that stays
    with pytest.raises(UserError, match="data folder"):
        evaluate_and_report("hf://org/mine", str(tmp_path / "no_data"))


@pytest.mark.slow
def test_an_index_knows_its_model_by_name(hub, toy, tmp_path):
    """And the evaluation's look at what the model was trained on, and a question find it there."""
    hub.add("org/mine", toy.path)
    (tmp_path / "lines.txt").write_text("thing\nding\n")
    made = commands.index([str(tmp_path / "lines.txt")], tmp_path / "index", model="hf://org/mine", kind="texts")
    assert load_index(tmp_path / "index").model.path == "hf://org/mine"
    found = commands.model_of(load_index(tmp_path / "index"), by_pictures=True)
    assert found.path == "hf://org/mine" and len(made) == 2
    assert "toys" in benchmarks._training_record(mural_tf.load("hf://org/mine"))[1]


@pytest.mark.slow
def test_a_catalogue_of_pictures_by_a_model_by_name(hub, tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    for number in range(3):
        (tmp_path / "photos" / f"{number}.png").write_bytes(picture(number, 40))
    words = [str(tmp_path / "photos"), f"--output={tmp_path / 'o'}", "--from=hf://org/siglip", "--train=no"]
    assert run_here(COMMANDS, "catalogue", *words) == 0
    printed = capsys.readouterr().out
    assert "hf://org/siglip searches as it is." in printed
    assert "search query" in printed and " serve --index=" in printed


@pytest.mark.slow
def test_a_teacher_and_a_student_by_name(hub, models, tmp_path):
    teacher, here = open_teacher("hf://org/sentences"), open_teacher(str(models / "sentences"))
    assert np.array_equal(teacher.embed([b"red", b"cat"]), here.embed([b"red", b"cat"]))
    student = workdir_of("hf://org/sentences", tmp_path / "w", "student", "image_text_head")
    assert student == f"{tmp_path}/w_student"
    assert load_config(f"{student}/config.json").origin.startswith("sentences hf://org/sentences at ")


@pytest.mark.slow
def test_fine_tuning_a_model_by_name_imports_it_once(hub, tmp_path, monkeypatch):
    from mural_tf.runs import finetune as runs

    started = []
    monkeypatch.setattr(runs, "train_and_finish", lambda config, *arguments: started.append(config))
    monkeypatch.setattr(runs, "check_dev", lambda config: None)
    finetune(base(write_toy_data(tmp_path / "data")), "hf://org/siglip", tmp_path / "new" / "w")
    assert load_config(tmp_path / "new/w_source/config.json").origin.startswith("siglip hf://org/siglip at ")
    assert started[0].origin.startswith("siglip hf://org/siglip at ")
