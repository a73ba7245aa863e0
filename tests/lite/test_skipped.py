"""Counts of what cannot be used: the first of each kind, the bound, and the way through JSON."""

import json

import pytest

from mural_lite.errors import UserError
from mural_lite.skipped import CountsByKind, Tally, check_fraction


def test_the_first_of_each_kind_and_the_largest_kind_first():
    counts, later = CountsByKind(), CountsByKind()
    counts.add("empty caption", "a:1")
    counts.add("empty caption", "a:7")
    later.add("missing image", "b:2", count=5)
    later.add("empty caption", "b:3")
    counts.merge(later)
    assert counts.total == 8
    assert counts.lines() == ["5 x missing image, first at b:2", "3 x empty caption, first at a:1"]
    assert CountsByKind(json.loads(json.dumps(counts))).lines() == counts.lines()


@pytest.mark.parametrize("value", [float("nan"), 2, True, None, -1, "0.1"])
def test_a_bound_is_a_share(value):
    for good in (0, 0.05, 1, 1.0):
        check_fraction(good, "bound")
    with pytest.raises(UserError, match=f"^bound={value!r}: expected a number from 0 to 1[^\n]*$"):
        check_fraction(value, "bound")


def test_the_bound_is_a_share_of_all_there_is():
    counts = CountsByKind()
    counts.add("empty caption", "a:1", count=10)  # of 99 more than a tenth, of 100 a tenth
    assert counts.are_too_many(99, 0.1) and not counts.are_too_many(100, 0.1)
    # Of 20, with a fifth of the work done: of 100 in all, about, so that half as much again is needed.
    assert not counts.are_too_many(20, 0.1, done=0.2) and counts.are_too_many(20, 0.06, done=0.2)
    tally = Tally(written=10, skipped=counts)
    tally.check(0.1, done=0.2)
    with pytest.raises(UserError, match="10 of 20 captions and pairs read so far, of about 100 .*, more than --max"):
        tally.check(0.06, done=0.2)
    with pytest.raises(UserError, match=r"10 of 20 captions and pairs \(10 x empty caption, first at a:1\), more than"):
        tally.check(0.1)
