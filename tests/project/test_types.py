"""The type hints of the public interface: complete, and such that a user's program passes a strict checker."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLIC = [
    "mural_tf/__init__.py",
    "mural_tf/loading.py",
    "mural_tf/models/embedder.py",
    "mural_lite/embedder.py",
    "mural_lite/errors.py",
]
# TensorFlow has no type hints: what its decorators return is unknown to a checker.
OPTIONS = ["--strict", "--allow-untyped-decorators", "--ignore-missing-imports", "--follow-imports=silent"]


MISTAKES = [
    "mural_tf.load(1)",
    "mural_tf.load('a').encode_text('one text', size=3)",
    "mural_tf.load('a').encode_image([1.5])",
    "mural_tf.load('a').encode_image([], on_error='ignore')",
    "mural_tf.load('a').encode_image(['a.jpg']).no_such_name",
]


@pytest.mark.slow
def test_the_public_interface_and_a_users_program_pass_strictly_and_mistakes_are_found(tmp_path):
    """Names that were `Any` would let the mistakes pass."""
    pytest.importorskip("mypy", reason="needs mypy: pip install -e '.[test]'")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import mural_tf\n" + "\n".join(MISTAKES) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", *OPTIONS, f"--cache-dir={tmp_path / 'cache'}", *PUBLIC]
    done = subprocess.run([*command, "tests/typed_use.py", wrong], cwd=ROOT, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert all("wrong.py" in line for line in errors), done.stdout + done.stderr
    assert {int(line.split(":")[1]) for line in errors} == set(range(2, 2 + len(MISTAKES))), done.stdout
