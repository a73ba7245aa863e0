"""Sources and indexes that others made, or that are damaged: what is odd is listed or refused, never ranked."""

import json
import os
import shutil

import numpy as np
import pytest
from search_data import ColorEmbedder, png, write_folder

from mural_tf import text_files
from mural_tf.errors import UserError
from mural_tf.search import build, collect
from mural_tf.search import index as index_files
from mural_tf.search.collect import Unreadable
from mural_tf.search.index import load_index
from mural_tf.search.items import IMAGES, TEXTS, from_json, parse_filters
from mural_tf.search.queries import Query, read_queries, search


def unreadable(found):
    return {os.path.basename(entry.name): entry.reason for entry in found if isinstance(entry, Unreadable)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    place = tmp_path_factory.mktemp("shared")
    build.build_index(ColorEmbedder(), [str(write_folder(place / "images"))], place / "index")
    return place / "index"


@pytest.fixture
def index(shared, tmp_path):
    return shutil.copytree(shared, tmp_path / "index")


def test_pipes_folders_and_links_to_nowhere_are_listed(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "red.webp").write_bytes(png((250, 0, 0)))
    (folder / "folder.jpg").mkdir()
    (folder / "lost.jpg").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.jpg")
    os.mkfifo(folder / "pipe.tfrecord")
    odd = {"folder.jpg", "lost.jpg", "pipe.jpg", "pipe.tfrecord"}
    found = list(collect.find(IMAGES, [str(folder)]))
    assert unreadable(found) == dict.fromkeys(odd, "Not a regular file, or a link that leads nowhere.")
    made = build.build_index(ColorEmbedder(), [str(folder)], tmp_path / "index")
    assert list(made.items) == ["red.webp"] and made.skipped == 4
    assert len((tmp_path / "index" / "skipped.tsv").read_text().splitlines()) == 4


def test_tables_do_not_reach_outside_their_folder(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(png((250, 0, 0)))
    (folder / "red.png").write_bytes(png((250, 0, 0)))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    names = ["red.png", "../secret.png", str(tmp_path / "secret.png"), "link.png", "nul\0.png", str(folder / "red.png")]
    (folder / "table.tsv").write_text("\n".join(names))
    found = list(collect.find(IMAGES, [str(folder / "table.tsv")]))
    assert [entry[0].name for entry in found if not isinstance(entry, Unreadable)] == [
        "red.png",
        str(folder / "red.png"),
    ]
    assert sorted(entry.reason for entry in found if isinstance(entry, Unreadable)) == [
        *["File name that leads out of its folder."] * 3, "Text with a null character."
    ]  # fmt: skip


def test_long_lines_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 20)
    (tmp_path / "a.txt").write_text("one\n" + "x" * 30 + "\nthree\n")
    found = list(collect.find(TEXTS, [str(tmp_path / "a.txt")]))
    assert [entry[0].name for entry in found if not isinstance(entry, Unreadable)] == ["one", "three"]
    assert list(unreadable(found)) == ["a.txt:2"]
    (tmp_path / "a.tsv").write_text("one.png\n" + "x" * 30 + "\nthree.png\n")
    assert list(unreadable(collect.find(IMAGES, [str(tmp_path / "a.tsv")]))) == ["a.tsv:2"]
    with pytest.raises(UserError, match="a.txt:2: line of more than"):
        read_queries(tmp_path / "a.txt")


def test_a_description_of_other_types_is_refused(index):
    path = index / index_files.DESCRIPTION
    good = json.loads(path.read_text())
    for changes in ({"kind": 5}, {"sources": "a"}, {"count": "4"}, {"count": -1}, {"skipped": None}, {"model": "m"},
                    {"embedding_size": [3]}, {"model": {"path": 5, "step": 1}}, {"format": 0}):  # fmt: skip
        path.write_text(json.dumps({**good, **changes}))
        with pytest.raises(UserError, match=f"{path}.*{next(iter(changes))}|put together of several: -1 items"):
            load_index(index)
    for content in (b"[" * 200_000, b"[]", b"5", b"\xff", b"{"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"index\.json"):
            load_index(index)


def change(path, edit):
    array = np.load(path).copy()
    np.save(path, edit(array))


@pytest.mark.parametrize("name", [index_files.VECTORS, index_files.PROBES])
def test_arrays_of_another_width_or_type_are_refused(index, name):
    good = np.load(index / name)
    for array in (good[:, :2], good.astype(np.int32), good.astype(np.float64), good[0], good.astype("U"),
                  good.astype(np.complex64), good.astype(object)):  # fmt: skip
        np.save(index / name, array)
        with pytest.raises(UserError, match="is damaged"):
            load_index(index)


@pytest.mark.parametrize("value", [0.0, 7.0, np.nan, np.inf])
def test_vectors_of_another_length_are_refused(index, value):
    def edit(array):
        array[2] = value
        return array

    change(index / index_files.VECTORS, edit)
    with pytest.raises(UserError, match="The vector of row 2 has the length .* instead of 1"):
        load_index(index)


def test_vectors_that_were_not_looked_at_are_not_ranked(index, monkeypatch):
    monkeypatch.setattr(index_files, "CHECKED", 2)  # the first and the last
    array = np.load(index / index_files.VECTORS)
    np.save(index / index_files.VECTORS, array * [[1], [1], [7], [1]])
    change(index / index_files.VECTORS, lambda a: a.astype(np.float32))
    opened = load_index(index)
    with pytest.raises(UserError, match="row 2 has the length 7 instead of 1"):
        search(opened, ColorEmbedder(), [Query("red")], 2)


@pytest.mark.parametrize("name", [index_files.VECTORS, index_files.ITEMS])
def test_damaged_files_do_not_end_in_a_traceback(index, name):
    content, random = (index / name).read_bytes(), np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[random.integers(0, min(len(content), 128 if name == index_files.VECTORS else 10**6))] ^= 255
        (index / name).write_bytes(damaged)
        try:
            opened = load_index(index)
            opened.rows(parse_filters(["a=b"]))
            [opened.describe(row) for row in range(len(opened))]
        except UserError as error:
            assert "\n" not in str(error)
    for damaged in (b"", b"PK\3\4", b"\x93NUMPY", content[: len(content) // 2]):
        (index / name).write_bytes(damaged)
        with pytest.raises(UserError, match=f"{name} is damaged"):
            load_index(index).describe(3)


@pytest.mark.parametrize("line", [
    b"5", b"[]", b"{}", b'{"name": "a", "other": 1}', b"\xff", b"{", b'{"name": "a", "captions": 5}', b"[" * 100_000,
    b'{"name": "a", "captions": [["en"]]}',
])  # fmt: skip
def test_lines_that_are_no_items_are_refused(line):
    with pytest.raises(ValueError):
        from_json(line)


def test_damaged_parts_of_an_unfinished_index_are_named(tmp_path):
    folder = write_folder(tmp_path / "images")
    damages = {"plan.json": b"[]", "parts/000000.items.jsonl": b"5\n", "parts/000000.vectors.npy": b"no",
               "parts/000000.json": b"{}"}  # fmt: skip
    for name, content in damages.items():
        output = tmp_path / name
        with pytest.raises(KeyboardInterrupt):
            build.build_index(ColorEmbedder(fail_after=3), [str(folder)], output, part=2)
        (output / build.BUILDING / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            build.build_index(ColorEmbedder(), [str(folder)], output, part=2)
