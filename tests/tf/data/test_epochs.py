"""The order of items: a function of (seed, epoch) that a run keeps over updates of this package."""

import functools
import hashlib

import numpy as np
import pytest
import tensorflow as tf
from test_shares import place, taken, texts, usable

from mural_lite.skipped import EMPTY_TEXT, KINDS, NOT_AN_EXAMPLE
from mural_tf.data import records
from mural_tf.data.streams.epochs import ALL, Share
from mural_tf.data.streams.mixture import _shares, mixed
from mural_tf.data.streams.record_files import CYCLE

SEED = 5  # of `usable`
SIZES = (7, 1, 3, 9, 0, 2, 5, 4, 6, 3, 8, 1, 2, 7, 5, 3, 4, 9, 6)  # records of more files than are read at a time
LOST = {20: EMPTY_TEXT, 41: NOT_AN_EXAMPLE}  # numbers of records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orders")
    (folder / "text_pairs").mkdir()
    numbers = iter(range(sum(SIZES)))
    for file, size in enumerate(SIZES):
        name = folder / f"text_pairs/train-{file:05d}-of-{len(SIZES):05d}.tfrecord"
        with tf.io.TFRecordWriter(str(name)) as writer:
            for number in (next(numbers) for _ in range(size)):
                text = "" if number == 20 else f"p{number}"
                pair = records.TextPair(text, "en", f"p{number}", "fr" if number % 9 == 0 else "de", "")
                writer.write(b"\xff\xfe" if number == 41 else records.serialize(pair))
    return folder


def in_turn(epoch, share):
    """The numbers of records as they are read: files in the epoch's order, some at a time, a record of each."""
    order = tf.random.experimental.stateless_shuffle(tf.range(len(SIZES), dtype=tf.int64), [SEED, epoch]).numpy()
    order = order[share.pipeline :: share.pipelines]
    begins = np.cumsum([0, *SIZES])
    numbers = []
    for first in range(0, len(order), CYCLE):
        files = [list(range(begins[file], begins[file + 1])) for file in order[first : first + CYCLE]]
        while any(files):
            numbers += [file.pop(0) for file in files if file]
    return numbers


def digest(items):
    """Of all numbers that come with items: text, counts of skipped records, place."""
    rows = []
    for item in items:
        counted = np.where(item["tally"][:, :1] > 0, item["tally"], 0)  # a kind has a place only where it is counted
        rows.append([int(item["text_a"][1:]), *counted.ravel(), *place(item)])
    return hashlib.sha256(np.array(rows, "<i8").tobytes()).hexdigest()[:16]


@functools.cache
def read(folder, share=ALL, window=20, count=150, **changes):
    return taken(usable(folder, share=share, shuffle_buffer=window, **changes), count)


@pytest.mark.parametrize("share,window,expected", [
    (ALL, 20, "402ef44143005dc2"), (Share(1, 2), 0, "9aa77b33a936aec3")
])  # fmt: skip
def test_files_come_in_turn_and_each_window_is_shuffled_by_itself(folder, share, window, expected):
    items = read(folder, share, window)
    numbers = [int(text[1:]) for text in texts(items)]
    for epoch in range(5):
        in_order = in_turn(epoch, share)
        for first in range(0, len(in_order), window or 1):
            wanted = set(in_order[first : first + (window or 1)]) - LOST.keys()
            found = numbers[: len(wanted)]
            del numbers[: len(wanted)]
            assert set(found) == wanted if numbers else set(found) <= wanted
    assert digest(items) == expected
    if share == ALL:  # of two epochs but for the last items
        tally = items[-1]["tally"]
        assert tally[0].tolist() == [154, 4, sum(SIZES)] and tally[1:, 0].sum() == 4
        assert [tally[1 + KINDS.index(kind), 0] for kind in LOST.values()] == [2, 2]


def test_copies_by_language(folder, capsys):
    assert digest(read(folder, language_temperature=5.0)) == "cd32e499f598a138"
    assert capsys.readouterr().out == (
        f"Reading 19 files to count languages; `python -m mural_tf convert records:{folder}` keeps counts.\n"
    )


@pytest.mark.parametrize("stop,window,temperature", [
    (70, 20, 1.0),  # in the second group of files; then in a window, before an epoch's last item, after it, with copies
    *(pytest.param(*more, marks=pytest.mark.slow) for more in (
        (7, 20, 1.0), (81, 20, 1.0), (82, 20, 1.0), (110, 20, 1.0), (110, 20, 5.0), (70, 1000, 1.0), (110, 1000, 1.0))),
])  # fmt: skip
def test_no_record_is_read_again_after_a_restart(folder, stop, window, temperature):
    whole = read(folder, window=window, language_temperature=temperature)
    changes = dict(shuffle_buffer=window, language_temperature=temperature)
    rest = taken(usable(folder, place(whole[stop]), **changes), 39)
    assert texts(rest) == texts(whole[stop + 1 : stop + 40])
    for found, expected in zip(rest, whole[stop + 1 :]):
        np.testing.assert_array_equal(place(found), place(expected))  # bit for bit what it would have been
        assert (found["tally"][:, 0] == expected["tally"][:, 0] - whole[stop]["tally"][:, 0]).all()
    assert place(whole[stop])[2] == stop + 1


def test_draws_have_the_shares_and_are_as_earlier_runs_made_them():
    def drawn(used):
        source = tf.data.Dataset.range(10**6).map(lambda n: {"n": n}).batch(7)
        return next(mixed([source, source], [3.0, 1.0], used, (11, 2), 10_000).as_numpy_iterator())

    first, later = drawn(0), drawn(9_980)
    assert np.bincount(first["source"]).tolist() == [7500, 2500]
    assert first["n"][first["source"] == 1].tolist() == list(range(2500))
    assert later["source"][:20].tolist() == first["source"][-20:].tolist()
    assert "".join(map(str, later["source"][:40])) == "1010000001010010001001000000000011100000"
    assert _shares([5.0, 3.0, 0.1], 81).tolist() == [50, 30, 1]
    assert _shares([1.0, 1.0, 1.0], 10).tolist() == [4, 3, 3]
    assert _shares([1e6, 1.0, 2e6], 10).tolist() == [3, 1, 6]  # of a cycle of 10
