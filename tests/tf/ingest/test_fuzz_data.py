"""Damaged data files: a few of `benchmarks.fuzz_data`'s cases, and with -m slow all 500 of them."""

import pathlib
import subprocess
import sys

import pytest

from benchmarks import fuzz_data

ROOT = pathlib.Path(__file__).resolve().parents[3]
QUICK = [kind for kind in fuzz_data.KINDS if kind != "tfrecord"]  # which builds training's input


@pytest.mark.parametrize("kind", QUICK)
def test_damaged_files_are_counted_or_refused(kind, tmp_path):
    for seed in (0, 1):
        outcome, detail = fuzz_data.run_case(kind, seed, tmp_path)
        assert outcome != fuzz_data.FAILED, detail


def test_what_is_lost_in_silence_fails(tmp_path, monkeypatch):
    fuzz_data.make_sources(tmp_path)
    lines = (tmp_path / "wit.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "half.tsv").write_text("".join(lines[:6]))
    half = fuzz_data.SOURCES["wit.tsv"].replace("{file}", "{folder}/half.tsv")
    monkeypatch.setitem(fuzz_data.SOURCES, "wit.tsv", half)
    with pytest.raises(AssertionError, match="lost in silence of 5"):
        fuzz_data.convert(tmp_path, tmp_path, "wit.tsv")


@pytest.mark.slow
def test_five_hundred_damaged_files():
    done = subprocess.run([sys.executable, "-m", "benchmarks.fuzz_data"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
