"""TFRecord files: records by their place, and what is left of a file that is damaged, in Python and in the graph."""

import re

import numpy as np
import pytest
import tensorflow as tf

from mural_lite import tfrecord
from mural_lite.skipped import DAMAGED_FILE, DAMAGED_RECORD
from mural_tf.data.streams.record_files import CYCLE, RecordFiles, read_group

RECORDS = [b"first", b"", b"third record"]
BEGINS = [0, 21, 37, 65]  # 5 bytes and 16 of framing, 0 and 16, 12 and 16


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


def in_python(path):
    problems = []
    found = list(tfrecord.read_all(path, lambda *problem: problems.append(problem)))
    return [(offset - tfrecord.HEADER, data) for offset, data in found], problems


def read(paths, **options):
    group = tf.range(len(paths), dtype=tf.int64)
    return read_group(RecordFiles.of([str(path) for path in paths]), group, **options)


def in_graph(paths):
    """(records, problems) of each file, as `in_python` gives them; one graph for all of them."""
    files = RecordFiles.of([str(path) for path in paths])

    def read_one(number, name, size):
        elements = read_group(RecordFiles(name[None], size[None], False), tf.zeros([1], tf.int64))
        return elements.map(lambda element: (number, element))

    read = tf.data.Dataset.from_tensor_slices((files.names, files.sizes)).enumerate()
    read = read.flat_map(lambda number, file: read_one(number, *file))
    found = [([], []) for _ in paths]
    for number, e in read.as_numpy_iterator():
        whole, problems = found[number]
        if e["problem"]:
            problems.append((e["problem"].decode(), int(e["byte"]), int(e["lost"])))
        else:
            whole.append((int(e["byte"]), e["serialized"]))
    return found


def test_records_and_their_places(tmp_path):
    path = write(tmp_path / "a.tfrecord", RECORDS)
    assert in_python(path) == ([*zip(BEGINS, RECORDS)], [])
    assert [tfrecord.read_at(path, begin) for begin in BEGINS[:3]] == RECORDS


def test_cut_off_at_any_byte(tmp_path):
    path = write(tmp_path / "a.tfrecord", RECORDS)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        count = sum(begin <= size for begin in BEGINS[1:])
        found, problems = in_python(path)
        assert found == [*zip(BEGINS[:count], RECORDS)]
        cut_off = size not in BEGINS
        assert problems == [(DAMAGED_FILE, f"{path}, byte {BEGINS[count]}", 1)] * cut_off
        if cut_off:
            with pytest.raises(ValueError, match=f"no record at byte {BEGINS[count]}: it changed after it was indexed"):
                tfrecord.read_at(path, BEGINS[count])


def test_any_flipped_bit_costs_its_own_record_alone(tmp_path):
    path = write(tmp_path / "a.tfrecord", RECORDS)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        hit = sum(begin <= bit // 8 for begin in BEGINS) - 1
        found, ((kind, _, lost),) = in_python(path)
        assert found == [pair for place, pair in enumerate(zip(BEGINS, RECORDS)) if place != hit] and lost == 1
        in_header = bit // 8 - BEGINS[hit] < tfrecord.HEADER
        assert kind == (DAMAGED_FILE if in_header else DAMAGED_RECORD)


def damage(name, data, records):
    """The file's bytes with one fault, and how many records that costs."""
    data, draw = bytearray(data), np.random.default_rng(3)
    begin = sum(len(record) + tfrecord.FRAME for record in records[:40])
    end = begin + sum(len(record) + tfrecord.FRAME for record in records[40:60])
    if name == "data":
        data[begin + 20] ^= 1
    elif name == "length":
        data[begin + 1] ^= 4
    elif name == "both":
        data[begin + 20] ^= 1
        data[end + 9] ^= 4
    elif name == "stretch":  # 20 records, headers and all, and nothing else
        data[begin:end] = draw.bytes(end - begin)
    elif name == "cut":
        del data[begin + 30 :]
    elif name == "garbage":
        data = draw.bytes(200_000)  # more than a window
    return bytes(data)


FAULTS = {  # fault: how many records are left and lost
    "none": (100, 0), "data": (99, 1), "length": (99, 1), "both": (98, 2), "stretch": (80, 20), "cut": (40, 1),
    "garbage": (0, 1), "empty": (0, 0),
}  # fmt: skip


def test_the_graph_reads_behind_damage_as_python_does(tmp_path):
    draw = np.random.default_rng(0)
    records = [draw.bytes(int(size)) for size in draw.integers(50, 60, 100)]
    paths = [write(tmp_path / f"{fault}.tfrecord", records) for fault in FAULTS]
    for path, fault in zip(paths, FAULTS):
        path.write_bytes(b"" if fault == "empty" else damage(fault, path.read_bytes(), records))
    for path, (fault, (whole, lost)), of_graph in zip(paths, FAULTS.items(), in_graph(paths)):
        found, problems = in_python(path)
        assert len(found) == whole and {data for _, data in found} <= {*records}, fault
        assert sum(count for _, _, count in problems) == lost, fault
        places = [(kind, int(re.search(r"byte (\d+)", place)[1]), count) for kind, place, count in problems]
        assert of_graph == (found, places), fault


def test_the_graph_takes_files_in_turn_past_one_that_is_damaged(tmp_path):
    files = [write(tmp_path / f"{name}.tfrecord", [f"{name}{i}".encode() for i in range(5)]) for name in "ab"]
    files[0].write_bytes(files[0].read_bytes()[:14] + b"?" + files[0].read_bytes()[15:])
    elements = list(read(files).as_numpy_iterator())
    found = [e["serialized"] for e in elements]
    assert found == [b"", b"b0", b"a1", b"b1", b"a2", b"b2", b"a3", b"b3", b"a4", b"b4"]
    # From behind any element on, the rest is the same: the next slot's turn, each file from its own byte.
    places = []
    for read_before in range(len(elements) + 1):
        begins, counts = np.zeros([2, CYCLE], np.int64)
        for element in elements[:read_before]:
            begins[element["slot"]], counts[element["slot"]] = element["end"], element["count"]
        turn = (elements[read_before - 1]["slot"] + 1) % 2 if read_before else 0
        places.append({"turn": turn, "begins": begins, "counts": counts})
    columns = {name: np.array([place[name] for place in places]) for name in places[0]}
    rests = (
        tf.data.Dataset.from_tensor_slices(columns)
        .enumerate()
        .flat_map(lambda number, place: read(files, **place).map(lambda element: (number, element)))
    )  # one graph for all places
    expected = [(number, element) for number in range(len(places)) for element in elements[number:]]
    assert list(rests.as_numpy_iterator()) == expected
