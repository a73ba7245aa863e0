"""The type hints of the public interface: complete, and such that a user's program passes a strict checker."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLIC = ["mural_tf/__init__.py", "mural_tf/embedder.py", "mural_tf/loading.py", "mural_tf/errors.py"]
# TensorFlow has no type hints: what its decorators return is unknown to a checker.
OPTIONS = ["--strict", "--allow-untyped-decorators", "--ignore-missing-imports", "--follow-imports=silent"]


def check(*files, cache):
    command = [sys.executable, "-m", "mypy", *OPTIONS, f"--cache-dir={cache}", *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_the_public_interface_and_a_users_program_pass_strictly(tmp_path):
    pytest.importorskip("mypy", reason="needs mypy: pip install 'mural-tf[test]'")
    done = check(*PUBLIC, "tests/typed_use.py", cache=tmp_path / "cache")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_mistakes_of_a_users_program_are_found(tmp_path):
    """Names that were `Any` would let them pass."""
    pytest.importorskip("mypy", reason="needs mypy: pip install 'mural-tf[test]'")
    mistakes = [
        "mural_tf.load(1)",
        "mural_tf.load('a').encode_text('one text', size=3)",
        "mural_tf.load('a').encode_image([1.5])",
        "mural_tf.load('a').encode_image([], on_error='ignore')",
        "mural_tf.load('a').encode_image(['a.jpg']).no_such_name",
    ]
    program = tmp_path / "program.py"
    program.write_text("import mural_tf\n" + "\n".join(mistakes) + "\n", encoding="utf-8")
    printed = check(program, cache=tmp_path / "cache").stdout
    found = {int(line.split(":")[1]) for line in printed.splitlines() if ": error:" in line}
    assert found == set(range(2, 2 + len(mistakes))), printed
