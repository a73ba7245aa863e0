"""Counts of what cannot be used: the first of each kind, the bound, and the way through JSON."""

import json

import pytest

from mural_tf.data.skipped import CountsByKind, SkippedRecords
from mural_tf.errors import UserError


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


@pytest.mark.parametrize(("read", "at_end", "too_many"), [(99, False, False), (99, True, True), (100, False, False)])
def test_the_bound_counts_from_a_minimum_on_or_at_the_end(read, at_end, too_many):
    skipped = SkippedRecords(max_fraction=0.1, minimum=100)
    skipped.add("empty caption", "a:1", count=10)  # of 99 more than a tenth, of 100 a tenth
    assert skipped.exceeded(read, at_end) == too_many
    if too_many:
        with pytest.raises(UserError, match=r"10 of 99 records skipped \(10 x empty caption, first at a:1\)"):
            skipped.check()
    else:
        skipped.check()
