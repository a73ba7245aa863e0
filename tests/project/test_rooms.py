"""The order of the rooms: a file imports only from rooms before its own, no files import each other in a circle.

What runs as a program, `__main__.py` and the code below `if __name__ == "__main__":`, may import any room, as the
scripts at the top of the repository do.

Two tables say how large the project is to its readers and users: the lines that whoever reads a file has to follow, and
what a user can name. Both may only fall, unless a commit says why:

    python -m pytest tests/project/test_rooms.py -n 0 -s -k "paths or promises"
"""

import ast
import dataclasses
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2] / "mural_tf"
ROOMS = [
    "errors", "printable", "hugging_face", "paths", "files", "remote_folders", "hashes", "text_files", "pages",
    "progress", "beam", "work", "quiet", "sqlite", "backend", "config", "config_file", "fingerprint", "trust",
    "losses", "metrics", "text", "encoders", "optimizers", "data", "lite", "models", "pretrained", "training",
    "export", "embedder", "loading",
    "evaluation", "analysis", "runs", "ingest", "search", "cli", "commands", "configs",
]  # fmt: skip


@functools.cache
def imported_modules(path):
    """The names of what a file imports, also within functions."""
    found, tree = [], ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def sources():
    return [path for path in sorted(ROOT.rglob("*.py")) if path.name != "__main__.py" and path != ROOT / "__init__.py"]


def module(path):
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def test_every_file_is_in_a_known_room():
    assert {room(path) for path in sources()} <= set(ROOMS)


def test_imports_go_one_way():
    wrong = []
    for path in sources():
        for name in imported_modules(path):
            parts = name.split(".")
            if parts[0] == "mural_tf" and len(parts) > 1 and parts[1] in ROOMS:
                if ROOMS.index(parts[1]) > ROOMS.index(room(path)):
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, wrong


def test_the_wings_have_one_door():
    """The core imports no wing, and no wing the other: only the commands know both."""
    wrong = []
    for path in sources():
        others = {"ingest", "search"} - {room(path)}
        for name in imported_modules(path):
            if room(path) != "commands" and name.startswith("mural_tf.") and name.split(".")[1] in others:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, wrong


def test_the_library_imports_no_configuration():
    """Not even the commands, whose room is beside the configurations': these are read by their names."""
    for path in sources():
        names = imported_modules(path)
        assert room(path) == "configs" or not any(name.startswith("mural_tf.configs") for name in names), path


def test_no_circles():
    """Imports inside functions count too: they only hide a circle."""
    files = {module(path): path for path in sources()}
    packages = {name for name, path in files.items() if path.name == "__init__.py"}
    left = {
        name: {other for other in imported_modules(path) if other in files and other != name} - packages
        for name, path in files.items()
    }
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, {name: sorted(others & left.keys()) for name, others in left.items()}


def test_addons_and_private_modules_stay_out():
    """And `backend.py` alone decides what Keras 2, TF-Hub and TensorFlow Text are."""
    for path in sources():
        names = list(imported_modules(path))
        if path.name != "backend.py":
            assert not {"keras", "tf_keras", "tensorflow_hub", "tensorflow_text"} & set(names), path
            assert "tf.keras" not in path.read_text(encoding="utf-8"), path
        assert room(path) == "optimizers" or not any(name.startswith("tensorflow_addons") for name in names), path
        assert not any(name.startswith(("keras.src", "tensorflow.python")) for name in names), path


def test_losses_know_no_replicas_and_metrics_no_tensorflow():
    for path in (ROOT / "losses").glob("*.py"):
        assert "distribute" not in path.read_text(encoding="utf-8"), path
    for path in (ROOT / "metrics").glob("*.py"):
        assert not any(name.startswith("tensorflow") for name in imported_modules(path)), path


# Lines that an entry file imports at its top, directly or through others, its own included, rounded up to hundreds, so
# that mending a line needs no change here.
PATHS = {
    "losses.contrastive": 200,  # the equation
    "models.mural": 3215,  # a method and its step
    "training.fit": 8737,  # the loop
    "export.saved_model": 8800,  # from an image to a SavedModel
    "runs.pretrain": 15249,  # a whole run
    "search.queries": 2500,  # from a question to an answer
    "search.server.app": 7500,
    "ingest.convert": 4200,  # from sources to records
    "commands.catalogue": 4300,  # from an own table to a page; what only training needs is imported there
}
# What a user can name. Flags and options are counted for every command and kind that has them, a source's path not.
PROMISES = {"commands": 20, "flags": 145, "kinds of sources": 15, "options of sources": 38, "routes of the server": 5}


def top_imports(path, files):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mural_tf"):
            names = (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
            yield from (files[name] for name in names if name in files)


def path_of_a_reader(entry):
    """The files that an entry file imports at its top, directly or through others, and itself."""
    files = {module(path): path for path in ROOT.rglob("*.py")}
    seen, waiting = set(), [files[f"mural_tf.{entry}"]]
    while waiting:
        if (path := waiting.pop()) not in seen:
            seen.add(path)
            waiting += top_imports(path, files)
    return seen


@pytest.mark.parametrize("entry", PATHS)
def test_paths_of_readers_do_not_grow(entry):
    files = path_of_a_reader(entry)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    print(f"\n{entry:20} {lines:7,} lines in {len(files):3} files; at most {PATHS[entry]:,} lines")
    assert lines <= PATHS[entry]


def promises():
    from mural_tf.commands import COMMANDS
    from mural_tf.ingest.convert import KINDS

    servers = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "search").rglob("*.py"))
    return {
        "commands": len(COMMANDS),
        "flags": sum(len(command.entries) for command in COMMANDS.values()) + 1,  # --trust, of every command
        "kinds of sources": len(KINDS),
        "options of sources": sum(len(dataclasses.fields(kind)) - 1 for kind in KINDS.values()),
        "routes of the server": len(re.findall(r"^ *(?:app\.router\.add_|web\.)(?:get|post)\(", servers, re.M)),
    }


def test_promises_do_not_grow():
    counts = promises()
    print("\n" + "\n".join(f"{name:20} {count:7,}; at most {PROMISES[name]}" for name, count in counts.items()))
    assert counts.keys() == PROMISES.keys()
    assert {name: count for name, count in counts.items() if not 0 < count <= PROMISES[name]} == {}
