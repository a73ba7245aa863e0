"""Counts of what cannot be used: the first of each kind, the bound, and the way through JSON."""

import json

import numpy as np
import pytest

from mural_lite.errors import UserError
from mural_lite.skipped import (
    EMPTY_CAPTION,
    KINDS,
    UNREADABLE_IMAGE,
    CountsByKind,
    SkippedRecords,
    Tally,
    check_fraction,
)


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


def tally(read, counts):
    """As the pipeline makes it: `counts` is {kind: (count, file, byte)}."""
    rows = np.zeros([1 + len(KINDS), 3], np.int64)
    rows[0] = read, sum(count for count, _, _ in counts.values()), 0
    for kind, row in counts.items():
        rows[1 + KINDS.index(kind)] = row
    return rows


def test_tallies_of_streams_are_counted_apart_and_on_from_before():
    places = {name: lambda file, byte, name=name: f"{name}-{file}, byte {byte}" for name in ("image_text", "text_text")}
    skipped = SkippedRecords(places, before=5)
    skipped.add_tallies("image_text", tally(100, {EMPTY_CAPTION: (2, 1, 300)})[None])
    skipped.add_tallies(
        "image_text", tally(200, {EMPTY_CAPTION: (3, 1, 300), UNREADABLE_IMAGE: (1, 0, 12)})[None]
    )  # the newest
    skipped.add_tallies("text_text", tally(50, {})[None])
    assert skipped.total == 5 + 4 and skipped.read == {"image_text": 200, "text_text": 50}
    assert skipped.by_part["image_text"].lines()[0] == "3 x empty caption, first at image_text-1, byte 300"
    skipped.begin()  # a new pipeline, which counts from 0
    of_pipelines = [tally(10, {EMPTY_CAPTION: (1, 2, 8)}), tally(20, {EMPTY_CAPTION: (2, 5, 9)})]
    skipped.add_tallies("image_text", np.stack(of_pipelines))
    assert skipped.total == 5 + 4 + 3 and skipped.by_part["image_text"] == {EMPTY_CAPTION: [3, "image_text-2, byte 8"]}
    message = r"4 of 300 of the stream text_text skipped \(4 x empty caption, first at text_text-0, byte 7\), more than"
    with pytest.raises(UserError, match=message):
        skipped.stop("text_text", tally(300, {EMPTY_CAPTION: (4, 0, 7)}), 0.01)


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
