"""`benchmarks.mutants` on a made-up package: which mistakes it draws, which tests it runs, what it says."""

import csv
import random
import subprocess

import pytest

from benchmarks import mutants

SMALL = '''"""Texts of this 1 docstring are left out."""
def smallest(values: "1" = ()) -> "2":
    if not values:
        raise ValueError(f"{1 + 1} messages, too")
    print(1)
    return min(values)

def unasked(value):
    return value + 1
'''
TEST = """from mural_tf.text import small

def test_smallest():
    assert small.smallest([2, 1, 3]) == 1 and small.unasked(1)
"""


@pytest.mark.parametrize("operator,before,after", [
    ("comparison", "a < b", "(a <= b)"), ("comparison", "a is None", "(a is not None)"),
    ("arithmetic", "a * b", "(a / b)"), ("arithmetic", "a += b", "a -= b"), ("and, or", "a and b", "(a or b)"),
    ("not", "not a", "(a)"), ("constant", "2", "(3)"), ("true, false", "True", "(False)"),
    ("slice", "a[b:c]", "(a[:c])"), ("axis", "a(axis=-1)", "(a(axis=0))"), ("axis", "a(axis=0)", "(a(axis=1))"),
    ("swapped arguments", "a(b, c, d=e)", "(a(c, b, d=e))"), ("keyword dropped", "a(b, c=d)", "(a(b))"),
    ("statement removed", "a.b = c", "pass"), ("minimum, maximum", "tf.reduce_max(a)", "(tf.reduce_min(a))"),
    ("condition negated", "a if b else c", "(not b)"),
])  # fmt: skip
def test_an_operator_s_mistake(operator, before, after):
    made = [mistake for mistake in mutants.mistakes_in("a.py", f"é\n{before}\n") if mistake.operator == operator]
    assert (made[0].after, made[0].line) == (after, 2)
    assert f"é\n{before}\n".encode()[made[0].begin : made[0].end].decode() == made[0].before


@pytest.mark.parametrize("code", [
    "assert a < 1", "logging.info(1 + 1)", "release_pages(a[1:])", "a(b, flush=True)",
    "def __repr__(self):\n    return 1 + 1",
    "BUFFER = 1 << 18", "pool(ThreadPoolExecutor(2 if a else 1))",
    "a: b[1:2]", "def a(b: c | d = e) -> f | g:\n    h", "'a' + b", "-1.0", "a = {'b': 2}", "tf.equal(a, b)",
])  # fmt: skip
def test_what_changes_no_result_is_left_out(code):
    assert [mistake for mistake in mutants.mistakes_in("a.py", code) if mistake.operator != "statement removed"] == []


def test_every_operator_is_as_likely_as_another():
    mistakes = mutants.mistakes_in("a.py", "a(b, c)\n" * 200 + "not a\n" * 10)
    chosen = mutants.drawn(mistakes, 15, random.Random(0))
    assert sum(mistake.operator == "not" for mistake in chosen) >= 3
    assert len({mistake.begin for mistake in chosen}) > 10
    assert len(mutants.drawn(mistakes, 1000, random.Random(0))) == len(mistakes) == len(set(mistakes))


def test_wilson_by_hand():
    """9 of 14: 0.643 + 0.137 = 0.780 in the middle, ± sqrt(0.0164 + 0.0047) * 1.96 = 0.285; both over 1.274."""
    assert mutants.wilson(9, 14) == pytest.approx((0.388, 0.837), abs=1e-3)


def test_tests_farther_away_run_where_the_nearest_pass():
    class Trial(mutants.Trial):
        def __init__(self):
            self.runs = []
            self.seconds = {f"fails {number}": mutants.FAILS for number in range(mutants.FILES)}

        def tests_for(self, near):
            return [path for path in near if path != "long" and path not in self.seconds]

        def outcome(self, mistake, tests):
            self.runs.append(tests)
            for path, outcome in (("far", "noticed"), ("hangs", "slow")):
                if path in tests:
                    return outcome
            return "survived" if tests else "untested"

    trial = Trial()
    near = [f"near {number}" for number in range(mutants.FILES)]
    assert trial.try_mistake(None, ["far", *near, "b"]) == ("noticed", ["far", *near[:-1]])
    assert trial.try_mistake(None, ["hangs", *near, "far"]) == ("slow", ["hangs", *near[:-1]])
    assert trial.try_mistake(None, [*near, "far"]) == ("noticed", [*near, "far"])
    assert trial.try_mistake(None, [*near, "hangs"]) == ("survived", [*near, "hangs"])
    assert trial.try_mistake(None, near) == ("survived", near)
    assert trial.try_mistake(None, ["long", *near[1:], "b"]) == ("survived", [*near[1:], "b"])
    assert trial.try_mistake(None, ["long"]) == ("untested", [])
    assert trial.try_mistake(None, [*trial.seconds, "far"]) == ("noticed", ["far"])


def test_mistakes_are_tried_in_a_copy_and_the_same_command_goes_on(tmp_path, capsys):
    for name, text in (("mural_tf/text/small.py", SMALL), ("tests/text/test_small.py", TEST),
                       ("tests/test_far.py", "1 / 0")):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    output = tmp_path / "mutants.csv"

    def rows_of(seed, each):
        arguments = [f"--seed={seed}", "--rooms=text", f"--each={each}", "--seconds=120", f"--output={output}"]
        mutants.main(arguments, tmp_path)
        return list(csv.DictReader(output.open()))

    assert len(rows_of(1, 1)) == 1
    rows = rows_of(1, 2)
    printed = capsys.readouterr().out
    assert rows_of(1, 2) == rows and len(rows) == 2
    for row in rows:  # nobody asks for the smallest of nothing, nor for the exact sum
        expected = "survived" if row["operator"] in ("guard removed", "constant") else "noticed"
        assert row["outcome"] == expected
        place = f"survived: mural_tf/text/small.py:{row['line']} {row['operator']}: "
        assert (place in printed) == (expected == "survived")
    assert "text         1 of 2 noticed" in printed
    assert {row["tests"] for row in rows} == {"tests/text/test_small.py"}
    assert (tmp_path / "mural_tf/text/small.py").read_text() == SMALL
    with pytest.raises(SystemExit):
        mutants.main(["--seed=1", "--rooms=txt"], tmp_path)
