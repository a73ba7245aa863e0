"""TFRecord framing: records by their place, and files that are cut off at any byte."""

import pytest
import tensorflow as tf

from mural_tf.data import tfrecord

RECORDS = [b"first", b"", b"third record"]


@pytest.fixture
def path(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for record in RECORDS:
            writer.write(record)
    return tmp_path / "a.tfrecord"


def test_records_and_their_places(path):
    problems = []
    found = list(tfrecord.read_all(path, lambda *problem: problems.append(problem)))
    # 5 bytes and 16 of framing come before the second record, 0 and 16 more before the third.
    assert found == [(12, b"first"), (21 + 12, b""), (37 + 12, b"third record")] and not problems
    assert [tfrecord.read_at(path, offset - tfrecord.HEADER) for offset, _ in found] == RECORDS
    assert tfrecord.find_damage(str(path)) == "" and tfrecord.find_damage("gs://bucket/a.tfrecord") == ""


def test_cut_off_at_any_byte(path):
    whole = path.read_bytes()
    ends = {0: 0, 21: 1, 37: 2, 65: 3}  # byte: records before it
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        problems = []
        found = list(tfrecord.read_all(path, lambda *problem, problems=problems: problems.append(problem)))
        begin = max(end for end in ends if end <= size)
        assert [record for _, record in found] == RECORDS[: ends[begin]]
        if size in ends:
            assert not problems and tfrecord.find_damage(str(path)) == ""
            continue
        assert problems == [("TFRecord file that is damaged or cut off: what follows is lost", f"{path}, byte {begin}")]
        assert tfrecord.find_damage(str(path)) == f"whole up to record {ends[begin]} (byte {begin} of {size})"
        with pytest.raises(ValueError, match=f"no record at byte {begin}"):
            tfrecord.read_at(path, begin)
