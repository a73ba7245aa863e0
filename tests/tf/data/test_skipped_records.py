"""Tallies of input pipelines are counted by stream and kind, and bounded."""

import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_lite import tfrecord
from mural_lite.errors import UserError
from mural_lite.skipped import EMPTY_CAPTION, KINDS, UNREADABLE_IMAGE
from mural_tf.data import records
from mural_tf.data.skipped_records import SkippedRecords
from mural_tf.data.streams import record_files
from mural_tf.data.streams.columns import Column
from mural_tf.data.streams.stream import fingerprint
from mural_tf.text.language_words import WordTokenizer, build_words

hypothesis = pytest.importorskip("hypothesis", reason="needs hypothesis: pip install -e '.[test]'")
BYTES = hypothesis.strategies.integers(0, 2**31)
BITS = hypothesis.strategies.lists(hypothesis.strategies.integers(0, 62), max_size=4)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(BYTES, BYTES, hypothesis.strategies.integers(0, 2**20), BITS, hypothesis.strategies.booleans())
def test_the_graph_counts_lost_records_as_the_reader_does(lost, before, count, bits, ends):
    """A length of which up to two bits changed is one record; of others the mean size tells how many."""
    count = min(count, before)
    stated = max(lost - tfrecord.FRAME, 0)
    for bit in bits:
        stated ^= 1 << bit
    stated = -1 if ends else stated
    found = record_files._lost_records(*(tf.constant(value, tf.int64) for value in (stated, lost, before, count)))
    assert int(found) == tfrecord.lost_records(stated, lost, before, count)


LENGTHS = (0, 1, 255, 256, 65_535, 0x0102030405060708, 2**40 + 77, 2**63 - 1)


def test_lengths_are_where_their_checksums_agree():
    """At each place of many headers in a row, and of the same with one bit changed in every second."""
    headers = []
    for length in LENGTHS:
        stated = length.to_bytes(8, "little")
        headers.append(stated + tfrecord.masked_crc(stated).to_bytes(4, "little"))
    for number in range(1, len(headers), 2):
        headers.append(bytes([headers[number][0] ^ 4]) + headers[number][1:])
    data = np.frombuffer(b"".join(headers), np.uint8)
    found = record_files._lengths(tf.constant(data)).numpy()
    assert len(found) == len(data) - 11
    assert {place: length for place, length in enumerate(found.tolist()) if length != -1} == {
        12 * number: length for number, length in enumerate(LENGTHS)
    }
    assert record_files._lengths(tf.constant(data[:11])).shape == (0,)


def test_files_in_stores_are_opened_by_tensorflow(monkeypatch):
    monkeypatch.setattr(tfrecord, "read_all", lambda path, on_problem, open_file: open_file)
    assert [records.read_serialized(path, None) for path in ("a/b", "gs://a/b")] == [open, tf.io.gfile.GFile]


def test_what_columns_replace_is_not_tokenized():
    config = toy_data.toy_config("/nowhere")
    items = {f"text_{side}": tf.constant(["thing w1", "w2"]) for side in "ab"}
    texts = toy_data.pipeline.Texts(toy_data.toy_tokenizer(), "longest")
    for columns, expected in (({}, {"text_a", "text_b"}), ({"text_b": None}, set())):
        stream = toy_data.pipeline.stream_of("text_text", config, texts, columns=columns)
        assert stream.text_pair(items).keys() == {"text_a_id", "text_b_id", *expected}


def test_each_text_of_a_pair_has_its_language():
    items = {"text_a": ["rot", "red", "rot"], "language_a": ["de", "en", "de"], "text_b": ["red"] * 3}
    items = {name: tf.constant(values) for name, values in {**items, "language_b": ["en"] * 3}.items()}
    tokenizer = WordTokenizer(build_words([("en", "red"), ("de", "rot")], ("en", "de"), 9, True, False), ("en", "de"))
    texts = toy_data.pipeline.Texts(tokenizer, "longest")
    batch = toy_data.pipeline.stream_of("text_text", toy_data.toy_config("/nowhere"), texts).text_pair(items)
    assert [batch[f"text_{side}_language_id"].numpy().tolist() for side in "ab"] == [[1, 0, 1], [0, 0, 0]]


def test_a_picture_without_a_vector_does_not_decode(tmp_path):
    ids = fingerprint(tf.constant(["image0", "image1", "other"])).numpy()
    column = Column(ids, np.array([[0, 0], [1, 0], [0, 0]], np.float32))
    config = toy_data.toy_config("/nowhere", "align")
    texts = toy_data.pipeline.Texts(toy_data.toy_tokenizer(), "longest")
    stream = toy_data.pipeline.stream_of("image_text", config, texts, columns={"image": column})
    records.write_records(tmp_path, records.IMAGE_TEXT, "train", toy_data.image_text_records(2))
    (file,) = records.list_files(tmp_path, records.IMAGE_TEXT, "train")
    for (_, record), problem in zip(records.read_serialized(file, print), (UNREADABLE_IMAGE, "")):
        items = stream.read(tf.constant(record))
        assert "image" not in items and items["problem"].numpy().tolist() == [problem.encode()] * 2  # captions


def tally(read, counts):
    """As the pipeline makes it: `counts` is {kind: (count, file, byte)}."""
    rows = np.zeros([1 + len(KINDS), 3], np.int64)
    rows[0] = read, sum(count for count, _, _ in counts.values()), 0
    for kind, row in counts.items():
        rows[1 + KINDS.index(kind)] = row
    return rows


def test_tallies_of_streams_are_counted_apart_and_on_from_before(caplog):
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
    with pytest.raises(UserError) as raised:
        skipped.stop("text_text", tally(300, {EMPTY_CAPTION: (4, 0, 7)}), 0.01)
    counted = "4 x empty caption, first at text_text-0, byte 7"
    assert str(raised.value) == (
        f"Too many unusable records: 4 of 300 of the stream text_text skipped ({counted}), more than "
        "data.max_skipped_fraction = 0.01 of an epoch, which has about 300. Repair the data or raise the bound."
    )
    longer = tally(300, {EMPTY_CAPTION: (4, 0, 7)})
    longer[0, 2] = 301
    with pytest.raises(UserError, match="which has about 301[.]"):
        skipped.stop("text_text", longer, 0.01)
    with pytest.raises(UserError) as raised:
        skipped.stop("text_text", tally(4, {EMPTY_CAPTION: (4, 0, 7)}), 1.0)
    assert str(raised.value) == (
        f"None of the 4 records read of the stream text_text can be used ({counted}). Repair the data."
    )
    said = "Skipping records: {}, first at {}. Further records are only counted."
    assert [record.getMessage() for record in caplog.records] == [
        said.format(EMPTY_CAPTION, "image_text-1, byte 300"), said.format(UNREADABLE_IMAGE, "image_text-0, byte 12"),
        said.format(EMPTY_CAPTION, "text_text-0, byte 7"),
    ]  # fmt: skip
