"""Tallies of input pipelines are counted by stream and kind, and bounded."""

import numpy as np
import pytest

from mural_lite.errors import UserError
from mural_lite.skipped import EMPTY_CAPTION, KINDS, UNREADABLE_IMAGE
from mural_tf.data.skipped_records import SkippedRecords


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
