"""The table of faults says something of every fault in every part, names tests that exist, and stands in the docs."""

import ast
import pathlib
import subprocess
import sys

import pytest
from faults import COUNTED, FAULTS, MENDED, NONE, ONE_LINE, PARTS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def functions(path):
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_cell_names_a_test_that_exists_or_a_reason(fault):
    assert tuple(FAULTS[fault]) == PARTS
    for part, (outcome, because) in FAULTS[fault].items():
        assert outcome in (MENDED, COUNTED, ONE_LINE, NONE) and because, part
        file, _, function = because.partition("::")
        assert bool(function) == (outcome != NONE), part
        assert not function or function in functions(ROOT / file), because


def test_the_document_holds_the_printed_table():
    command = [sys.executable, "-m", "benchmarks.faults"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("| fault | training |") and len(printed.splitlines()) > 2 * len(FAULTS)
    assert printed in (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
