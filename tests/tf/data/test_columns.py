"""Columns of vectors and their folders, by dictionaries: files, blocks, lines and messages."""

import json

import numpy as np
import pytest

from mural_lite.errors import UserError
from mural_tf.data.streams import columns
from mural_tf.data.streams.columns import Column, ColumnFolder, embed_all

KEYS = np.array([7, -3, 9, 2, 5, 11, 4], np.int64)
VECTORS = np.array([[3, 4], [0, 0], [0, 2], [5, 12], [0, 0], [-1, 0], [8, 6]], np.float16)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(columns, "BLOCK", 3)
    monkeypatch.setattr(columns, "TEXTS", 4)


def test_a_column_by_hand(monkeypatch):
    column = Column(KEYS, VECTORS)
    asked = np.array([11, 7, 7, -3], np.int64)
    found = column.find(asked)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[-1, 0], [0.6, 0.8], [0.6, 0.8], [0, 0]], atol=1e-7)
    assert Column(KEYS, VECTORS, as_stored=True).find(asked).tolist() == [[-1, 0], [3, 4], [3, 4], [0, 0]]
    assert column.holds(np.array([-4, -3, 3, 11, 12])).tolist() == [False, True, False, True, False]
    assert column.without_vector.tolist() == [-3, 5]
    whole = Column(KEYS, VECTORS, as_stored=True)
    for most, rows in ((7, [0, 2, 3, 5, 6]), (3, [0, 3, 6]), (4, [0, 2, 6]), (2, [0]), (1, [0])):  # every k-th key
        assert whole.sample(KEYS, most).tolist() == VECTORS[rows].tolist()
    for wrong in (np.array([7, 8]), np.array([12]), np.array([-4])):
        with pytest.raises(UserError, match="^The data changed after training began: a text or picture has no vector"):
            column.find(wrong)
    nothing = Column(np.zeros(0, np.int64), np.zeros([0, 2], np.float16))
    assert nothing.holds(np.array([1])).tolist() == [False] and nothing.without_vector.tolist() == []
    with pytest.raises(ValueError, match="^There are no vectors.$"):
        nothing.find(np.array([1]))
    released = []
    monkeypatch.setattr(columns, "release_pages", released.append)
    for resident, count in ((VECTORS.nbytes, 0), (VECTORS.nbytes - 1, 1)):
        monkeypatch.setattr(columns, "RESIDENT", resident)
        column.find(asked)
        assert len(released) == count


def embed(texts):
    """Two numbers: the length of a text and its first byte; zeros for texts that begin with "?"."""
    return np.array([[len(text), text[0]] if text[:1] != b"?" else [0, 0] for text in texts], np.float32)


def test_texts_of_similar_length_are_embedded_together():
    calls = []
    texts = [b"a" * length for length in (5, 1, 9, 3, 7, 2, 8, 4, 6)]
    vectors = embed_all(texts, lambda block: calls.append([len(text) for text in block]) or embed(block))
    assert calls == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert vectors.dtype == np.float32 and vectors[:, 0].tolist() == [5, 1, 9, 3, 7, 2, 8, 4, 6]


def stream(*numbers, size=2):
    """Texts in blocks, with the negative of a text's number as its key."""
    for begin in range(0, len(numbers), size):
        block = np.array(numbers[begin : begin + size], np.int64)
        yield -block, [b"?%d" % number if number % 5 == 3 else b"%d" % number for number in block]


def lines(text):
    return text.splitlines()


def test_files_of_a_folder(tmp_path, capsys):
    folder = ColumnFolder(tmp_path / "a/b", 2, "float32", "teacher's")
    calls = []

    def note(texts):
        calls.append(texts)
        return embed(texts)

    folder.extend(stream(1, 2, 1, 3, 2, 4, 5, 8), note)
    assert calls == [[b"1", b"2", b"?3"], [b"4", b"5", b"?8"]]  # a block once at least 3 are waiting
    assert lines(capsys.readouterr().out) == ["3 are embedded …", "6 are embedded …"]
    keys = np.fromfile(tmp_path / "a/b/keys", np.int64)
    assert keys.tolist() == [-1, -2, -3, -4, -5, -8]
    expected = embed([b"1", b"2", b"?3", b"4", b"5", b"?8"])
    assert np.fromfile(tmp_path / "a/b/vectors", np.float32).reshape(-1, 2).tolist() == expected.tolist()
    state = dict(
        teacher="teacher's", width=2, dtype="float32", count=6, zeros=2, missing=0, first_missing="", made_for=""
    )
    assert json.loads((tmp_path / "a/b/targets.json").read_text()) == state
    for name, rest in (("keys", b"1234567"), ("vectors", b"123456789")):  # a begun block
        with open(tmp_path / "a/b" / name, "ab") as file:
            file.write(rest)
    again = ColumnFolder(tmp_path / "a/b", 2, "float32", "teacher's")
    again.extend(stream(8, 6, 5, 7, size=1), note, block=1)
    assert calls[2:] == [[b"?8"], [b"6"], [b"7"]]  # what has no vector is tried again
    assert lines(capsys.readouterr().out) == [
        "6 are embedded already; reading the data up to the new texts …",
        "6 are embedded …", "7 are embedded …", "8 are embedded …",
    ]  # fmt: skip
    column = again.column(as_stored=True)
    assert column.find(np.array([-7, -3, -1])).tolist() == embed([b"7", b"?3", b"1"]).tolist()
    np.testing.assert_allclose(again.column().find(np.array([-1])), embed([b"1"]) / np.hypot(1, 49), rtol=1e-6)
    assert len(again.column("group_")._keys) == 0
    with folder.lock():
        assert folder.state["count"] == 8  # as the other one left it
    for name, value, other in (("teacher", "teacher's", "x"), ("width", "2", 3), ("dtype", "float32", "float16")):
        arguments = {"width": 2, "dtype": "float32", "teacher": "teacher's", name: other}
        with pytest.raises(UserError) as raised:
            ColumnFolder(tmp_path / "a/b", **arguments)
        assert str(raised.value) == (
            f"{tmp_path}/a/b holds targets of {name} {value}, and the teacher's is {other}: give the run the teacher "
            "that it began with, or name another --workdir."
        )


def test_vectors_of_another_size(tmp_path):
    with pytest.raises(UserError, match="^The teacher's vectors hold 2 numbers, images' 3.$"):
        ColumnFolder(tmp_path, 3, "float32", "t").extend(stream(1), embed)
    assert not (tmp_path / "vectors").exists()


def test_a_folder_that_is_complete(tmp_path, capsys):
    folder = ColumnFolder(tmp_path, 2, "float16", "t", "vector of the tower's")
    folder.extend(stream(1, 2, 4, 5), embed)
    folder.mark_complete("data 1", 0.0)
    assert "they are not used in training" not in capsys.readouterr().out
    assert [folder.is_made_for(data) for data in ("data 1", "data 2")] == [True, False]
    folder.extend(stream(1, 2, 4, 5, 8), embed)
    with pytest.raises(UserError) as raised:
        folder.mark_complete("data 2", 0.19)
    problem = "1 of 5 have no vector of the tower's, such as '?8'"
    assert str(raised.value) == (
        f"{problem}: more than data.max_skipped_fraction=0.19. For a teacher, embed the texts of the data to train on, "
        "in the languages of method.pivot and data.image_text_languages; for a tower, repair or remove the pictures "
        "that cannot be decoded."
    )
    assert folder.is_made_for("data 1")
    capsys.readouterr()
    folder.mark_complete("data 2", 0.2)
    assert capsys.readouterr().out == f"{problem}: they are not used in training.\n"
    assert ColumnFolder(tmp_path, 2, "float16", "t").is_made_for("data 2")


def test_what_has_no_vector_is_tried_again_and_counts_only_where_it_is(tmp_path, capsys):
    def made(numbers, embed_texts, data):
        folder = ColumnFolder(tmp_path, 2, "float16", "t")
        folder.extend(stream(*numbers), embed_texts)
        folder.mark_complete(data, 0.3)
        state = json.loads((tmp_path / "targets.json").read_text())
        return state["count"], state["zeros"], state["missing"], state["first_missing"]

    def mended(texts):
        return embed([text.lstrip(b"?") for text in texts])

    with pytest.raises(UserError, match="2 of 4 have no vector"):
        made((1, 3, 2, 8), embed, "two fail")
    assert made((1, 2, 4), embed, "they are left out") == (5, 2, 0, "")
    before = np.memmap(tmp_path / "vectors", np.float16, "r")[:2].tolist()
    assert made((1, 2, 4, 3), embed, "one fails again") == (5, 2, 1, "?3")
    assert (
        "1 of 4 have no vector of the teacher's, such as '?3': they are not used in training."
        in capsys.readouterr().out
    )
    calls = []
    assert made((1, 2, 3, 5), lambda texts: calls.extend(texts) or mended(texts), "it is mended") == (6, 1, 0, "")
    assert sorted(calls) == [b"5", b"?3"]
    column = ColumnFolder(tmp_path, 2, "float16", "t").column(as_stored=True)
    found = column.find(np.array([-1, -3, -8, -5]))
    assert found.tolist() == [before, [1, ord("3")], [0, 0], [1, ord("5")]]


def test_a_folder_of_an_earlier_version_is_tried_again(tmp_path):
    ColumnFolder(tmp_path, 2, "float16", "t").extend(stream(3), embed)
    state = json.loads((tmp_path / "targets.json").read_text())
    del state["zeros"]
    (tmp_path / "targets.json").write_text(json.dumps({**state, "missing": 1, "first_missing": "?3"}))
    folder = ColumnFolder(tmp_path, 2, "float16", "t")
    folder.extend(stream(3), lambda texts: embed([b"3"]))
    assert folder.column(as_stored=True).find(np.array([-3])).tolist() == [[1, ord("3")]]


def test_sums_of_groups_by_a_dictionary(tmp_path, monkeypatch):
    """Of more groups than a block holds; a text counts once in a group, and memory is given back after each block."""
    released = []
    monkeypatch.setattr(columns, "release_pages", released.append)
    folder = ColumnFolder(tmp_path, 2, "float32", "t")
    numbers = np.arange(1, 20)
    folder.extend(stream(*numbers), embed)
    draw = np.random.default_rng(0)
    groups = draw.integers(-4, 4, 60)
    members = draw.choice(numbers, 60)
    for _ in range(2):  # anew each time
        folder.write_means(groups, -members)
    expected = {}
    for group, member in sorted(set(zip(groups.tolist(), members.tolist()))):
        text = b"?%d" % member if member % 5 == 3 else b"%d" % member
        expected[group] = expected.get(group, 0) + embed([text])[0]
    found = folder.column("group_", as_stored=True)
    assert found._keys.tolist() == sorted(expected) and len(released) == 2 * -(-len(expected) // 3)
    np.testing.assert_array_equal(found.find(np.array([*expected])), [*expected.values()])
