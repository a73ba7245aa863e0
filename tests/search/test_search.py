"""Sources of images and texts, indexes in folders and what they refuse; with images of one colour."""

import dataclasses
import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
from refusals import assert_refused
from search_data import COLORS, ColorEmbedder, image_records, png, write_folder, write_records
from snapshots import assert_snapshot

from mural_lite import text_files
from mural_lite.errors import UserError
from mural_lite.progress import announcing
from mural_lite.record_format import ImageTextRecord, TextPair, serialize
from mural_lite.tfrecord import framed
from mural_search import changes, collect, made_index
from mural_search.collect import Unreadable
from mural_search.index import Index, index_in_memory, load_index
from mural_search.items import IMAGES, TEXTS, Item
from mural_search.queries import Query, search
from mural_search.query_files import read_queries


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "images")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder of images, their index in memory, and an index of them in a folder: not to be changed."""
    place = tmp_path_factory.mktemp("shared")
    folder = write_folder(place / "images")
    return folder, in_memory(folder), built(folder, place / "index"), place / "index"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """TFRecords: four images with captions in two languages; the orange one comes twice, with another caption."""
    place = tmp_path_factory.mktemp("records")
    rows = list(image_records(lambda name: {"en": f"thing {name}", "de": f"ding {name}"}))
    again = ImageTextRecord(rows[0].image_id, rows[0].image, ["thing again"], ["en"], [""])
    write_records(place / "data", "test", [*rows, again], shards=2)
    write_records(place / "data", "dev", [rows[0]])
    return place / "data"


def in_memory(folder, kind=IMAGES, split=""):
    return index_in_memory(ColorEmbedder(), collect.find(kind, [str(folder)], split), kind)


def built(folder, output, embedder=None, **options):
    return Index.build(output, embedder or ColorEmbedder(), [folder], **options)


LONG = "x" * 300
OUTSIDE = ["red.png", "../secret.png", "{folder}/secret.png", "link.png", "nul\0.png", "{folder}/images/red.png"]
PIPES = {"images/folder.jpg": pathlib.Path.mkdir, "images/lost.jpg": lambda path: path.symlink_to("nowhere"),
         "images/pipe.jpg": os.mkfifo, "images/pipe.tfrecord": os.mkfifo}  # fmt: skip
SHARED = [{"image_id": "red.png", "fields": {"brand": "acme", "size": ""}, "name": "r1", "captions": [["en", "one"]]},
          {"image_id": "red.png", "fields": {"brand": "bolt"}, "name": "r2"},
          {"image_id": "x", "fields": {}}, *({"image_id": "violet.png", "fields": {"brand": brand}}
          for brand in ("old", "new"))]  # fmt: skip
OF_SHARED = "\n\n".join(map(json.dumps, SHARED))
SHARD = "data/image_text/test-00000-of-00002.tfrecord"


def changed(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


SOURCES = {  # files, the kind, sources and a split
    "a pattern": ({}, IMAGES, ["images/*.png"]),
    "a deep pattern": ({}, IMAGES, ["images/**/*.PNG"]),
    "a table": ({"a.tsv": "images/red.png\trot\tde\n\nimages/no.png\n"}, IMAGES, ["a.tsv"]),
    "texts": ({"a.tsv": "en\tred\nde\trot\tx\nno\n", "b.txt": "red\n\ngr\teen\n"}, TEXTS, ["a.tsv", "b.txt"]),
    "an ending in capitals": ({"A.TSV": "de\trot\n"}, TEXTS, ["A.TSV"]),
    "broken texts": ({"a.txt": b"red\n\xff\xfe\npurple\n" + bytes(20)}, TEXTS, ["a.txt"]),
    "columns of texts":
        ({"a.tsv": "language\ttext\tbrand\t\nde\trot\t acme\tx\nen\tred\n\t \tx\n"}, TEXTS, ["a.tsv"]),
    "columns": ({"images/a.tsv": "path\tcaption\tlanguage\tbrand\nred.png\ta\ten\tacme\nblue.png\n"}, IMAGES,
        ["images/a.tsv"]),
    "rows without a path": ({"images/a.tsv": "path\tcaption\tlanguage\n\ta hat\ten\n \t\ten\nred.png\ta\ten\n"},
        IMAGES, ["images/a.tsv"]),
    "two columns": ({"images/a.tsv": "path\tcaption\nred.png\ta\nblue.png\n"}, IMAGES, ["images/a.tsv"]),
    "other columns": ({"images/a.tsv": "red.png\tcaption\ten\tacme\nblue.png\n"}, IMAGES, ["images/a.tsv"]),
    "a long line": ({"a.txt": f"one\n{LONG}\nthree\n"}, TEXTS, ["a.txt"]),
    "a long line of a table": ({"a.tsv": f"one.png\n{LONG}\nthree.png\n"}, IMAGES, ["a.tsv"]),
    "no files": (PIPES, IMAGES, ["images"]),
    "names outside": ({"secret.png": png((250, 0, 0)), "images/link.png": lambda path: path.symlink_to("../secret.png"),
        "images/a.tsv": "\n".join(OUTSIDE)}, IMAGES, ["images/a.tsv"]),
    "records": ({}, IMAGES, ["data"], "test"),
    "captions of records": ({}, TEXTS, ["data"], "dev"),
    "all records and a picture": ({}, IMAGES, ["data", "images/red.png"]),
    "fields of records": ({"data/fields.jsonl": OF_SHARED}, IMAGES, ["data"], "test"),
    "texts of shared images": ({"data/fields.jsonl": OF_SHARED}, TEXTS, ["data"], "test"),
    "a record that is cut off": ({SHARD: changed(lambda data: data[:-5])}, IMAGES, ["data"], "test"),
    "a damaged record": ({SHARD: changed(lambda data: data[:20] + b"?" + data[21:])}, IMAGES, ["data"], "test"),
    "a missing shard": ({SHARD: pathlib.Path.unlink}, IMAGES, ["data"], "test"),
    "records of texts": ({"pairs.tfrecord": framed(serialize(TextPair("a", "en", "b", "de")))}, IMAGES,
        ["pairs.tfrecord"]),
    "damaged fields": ({"data/fields.jsonl": '{"image_id": "a", "fields": {"x": 5}}'}, IMAGES, ["data"]),
    "no split": ({}, IMAGES, ["data"], "train"),
    "no file": ({}, IMAGES, ["missing"]), "no match": ({}, IMAGES, ["*.jpg"]), "nothing": ({}, IMAGES, []),
    "an empty folder": ({"empty": pathlib.Path.mkdir}, IMAGES, ["empty"]), "no texts": ({}, TEXTS, ["images"]),
    "another kind": ({}, "sounds", ["images"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_sources(folder, data, monkeypatch, name):
    """All that is found, and why other lines and files are not used."""
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(text_files, "LONGEST_LINE", 200)
    shutil.copytree(data, "data")
    files, *asked = SOURCES[name]
    for file, content in files.items():
        path = folder.parent / file
        if callable(content):
            content(path)
        else:
            path.write_bytes(
                content if isinstance(content, bytes) else content.replace("{folder}", str(folder.parent)).encode()
            )
    lines = []
    try:
        for entry in collect.find(*asked):
            found = entry if isinstance(entry, Unreadable) else (entry[0], type(entry[1]).__name__)
            lines.append(re.sub(r"(offset=|byte )[1-9]\d*", r"\1…", repr(found)))  # it depends on Pillow
    except UserError as error:
        lines.append(f"refused: {error}")
    assert_snapshot(f"sources/{name.replace(' ', '_')}", "\n".join(lines), folder=folder.parent)


def test_every_file_of_a_folder_is_used_or_said(tmp_path, capsys):
    """Thumbnails of programs and hidden files are no pictures of the folder; videos and papers are named."""
    pytest.importorskip("resvg_py", reason="needs resvg-py: pip install 'resvg-py>=0.1.5'")
    folder = tmp_path / "photos"
    for name in ("red.png", ".Trashes/a.png", "@eaDir/red.png/SYNOPHOTO_THUMB_M.jpg", "__MACOSX/b.png", "._red.png",
                 "System Volume Information/c.png", "clip.mp4", "paper.pdf", "raw.CR2"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png((250, 0, 0)))
    blue = '<rect width="8" height="8" fill="#0000fa"/>'
    (folder / "drawing.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8">{blue}</svg>')
    (folder / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(20))
    with announcing():
        made = Index.build(tmp_path / "index", ColorEmbedder(), [folder])
    assert sorted(made.items) == ["drawing.svg", "red.png"]
    assert np.abs(made.embeddings[list(made.items).index("drawing.svg")] - [0, 0, 1]).max() < 0.02
    assert "phone.heic\tHEIC picture: `pip install pillow-heif`" in (tmp_path / "index/skipped.tsv").read_text()
    said = capsys.readouterr()
    lines = [line for line in (said.out + said.err).splitlines() if line.startswith("Not taken: ")]
    for words in ("5 x picture that is hidden", "1 x file that is not a picture (.mp4)", "(.pdf)", "(.CR2)"):
        assert any(words in line for line in lines), lines


def test_images_that_come_again_are_said(tmp_path, capsys):
    """A folder before a table hides the table's captions."""
    write_folder(tmp_path / "photos")
    (tmp_path / "a.tsv").write_text("path\tcaption\nphotos/red.png\trot\n")
    index = Index.build(tmp_path / "index", ColorEmbedder(), [tmp_path / "photos", tmp_path / "a.tsv"])
    made_index.report(index, "index")
    words = "1 came again, under the name of an earlier one, and were passed over: name a table of captions before"
    assert words in capsys.readouterr().out


def test_a_file_name_that_is_no_utf8_is_used_and_found_again(tmp_path):
    write_folder(tmp_path / "images")
    (tmp_path / "images/good\udcff.png").write_bytes(png(COLORS["red.png"]))
    (tmp_path / "images/broken\udcff.png").write_bytes(b"no picture")
    for kept in (0, 5):
        found = Index.build(tmp_path / "index", ColorEmbedder(), [tmp_path / "images"])
        assert "good\udcff.png" in list(found.table.names()) and len(found) == 5 and found.counts.kept == kept
        assert "broken\\udcff.png" in (tmp_path / "index/skipped.tsv").read_text()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_index_is_written_and_read(shared, tmp_path, dtype):
    folder, memory, index, place = shared
    if dtype == "float16":
        index, place = built(folder, tmp_path / "index", dtype=dtype), tmp_path / "index"
    assert list(index.items) == list(memory.items) == sorted(COLORS)
    assert index.embeddings.dtype == dtype and np.abs(index.embeddings - memory.embeddings).max() < 5e-4
    item = dataclasses.replace(index.describe(1), content="", digest="")
    assert item == Item("blue.png", str(folder / "blue.png")) and index.read_image(1) == png((0, 0, 250))
    scores, rows = index.search(np.array([[1, 0, 0], [0, 0, 1]], np.float32), 2)
    assert rows.tolist() == [[2, 0], [1, 3]]
    assert np.abs(scores - [[1, 0.8], [1, 0.8]]).max() < 1e-3
    skipped = dict(line.split("\t") for line in (place / "skipped.tsv").read_text().splitlines())
    assert skipped["broken.png"] == skipped["photo.webp"] == "File that is not an image in a format that is read."
    for row in (-1, 4):
        with pytest.raises(IndexError):
            index.describe(row)


def test_the_matrix_is_a_cache(shared, tmp_path):
    """Made again where it is not there, of another state, damaged or of another index; and not otherwise."""
    place = shutil.copytree(shared[3], tmp_path / "index")
    matrix, good = place / "vectors.npy", (shared[3] / "vectors.npy").read_bytes()
    stamp = matrix.stat().st_mtime_ns
    load_index(place)
    assert matrix.stat().st_mtime_ns == stamp
    other = np.load(matrix).copy()[::-1]
    np.save(tmp_path / "other.npy", other)
    of_another_state = (tmp_path / "other.npy").read_bytes() + b"0" * 32
    for content in (None, b"", b"no", good[:-40], good[:-1] + b"-", of_another_state):
        matrix.unlink() if content is None else matrix.write_bytes(content)
        np.testing.assert_array_equal(load_index(place).embeddings, shared[2].embeddings)
        assert matrix.read_bytes() == good


def test_a_folder_that_may_not_be_written_is_read(shared, tmp_path, monkeypatch):
    """As a container mounts it: without a log, a lock or a matrix beside it."""
    place = shutil.copytree(shared[3], tmp_path / "index", ignore=shutil.ignore_patterns("vectors*", "*-wal", "*-shm"))
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    index = load_index(place)
    assert index.describe(1).name == "blue.png" and index.is_current()
    np.testing.assert_array_equal(index.embeddings, shared[2].embeddings)
    assert sorted(os.listdir(place)) == [".lock", "index.sqlite", "skipped.tsv"]
    (place / "index.sqlite").touch()
    assert not index.is_current()


def test_a_complete_index_stays_as_it_is(shared, tmp_path):
    folder, _, index, place = shared
    again, before = ColorEmbedder(), (place / "index.sqlite").read_bytes()
    assert len(built(folder, place, again)) == 4 and again.encoded == 0 and index.is_current()
    assert (place / "index.sqlite").read_bytes() == before
    (tmp_path / "texts.txt").write_text("red")
    for given, words in (
        (dict(kind=TEXTS), ["kind 'images', not 'texts'"]), (dict(dtype="float16"), ["dtype 'float32', not 'float16'"]),
        (dict(sources=[tmp_path / "texts.txt"]), ["sources ", "texts.txt"]),
        (dict(model=ColorEmbedder(seed=1)), ["The index ", "was made by the model ", "colors at step 7"]),
    ):  # fmt: skip
        options = {"model": again, "sources": [folder], **given}
        assert_refused(lambda named=options: Index.build(place, **named), words)


def test_places_that_are_no_index_are_refused(shared, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/precious.txt").write_text("mine")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/index.json").write_text('{"format": 3}')
    for call, place, words in (
        (lambda place: built(shared[0], place), "mine", "neither empty nor an index"),
        (lambda place: built(shared[0], place), "old", "made by an earlier version: delete it and make it again"),
        (load_index, "mine", "is not an index"), (load_index, "old", "earlier version"),
        (load_index, "none", "is not an index"),
        (lambda place: Index.build(place, ColorEmbedder()), "none", "is not an index yet: name folders"),
    ):  # fmt: skip
        assert_refused(call, [words], tmp_path / place)
    with changes.changing(tmp_path / "index", new=True):
        assert_refused(built, ["Another process"], shared[0], tmp_path / "index")
    assert len(os.listdir(tmp_path / "mine")) == len(os.listdir(tmp_path / "old")) == 1


def test_queries_of_a_table(tmp_path):
    (tmp_path / "queries.tsv").write_text("sw\tnyekundu\tred.png\ta/orange.PNG\n\nred\n", encoding="utf-8")
    right = ("red.png", "a/orange.PNG")
    assert read_queries(tmp_path / "queries.tsv") == [Query("nyekundu", "sw", right=right), Query("red")]


def test_images_and_texts_find_each_other(shared, data):
    folder, images, *_ = shared
    texts = in_memory(data, TEXTS, "test")
    query = Query(image=str(folder / "violet.png"))
    mixed = search(images, ColorEmbedder(), [query, Query("red"), query], 1)
    assert [result.hits[0].name for result in mixed] == ["violet.png", "red.png", "violet.png"]
    caption = search(texts, ColorEmbedder(), [Query("ding red.png")], 1)[0].hits[0]
    assert caption.name == "ding red.png" and abs(caption.score - 1) < 1e-6
    assert texts.read_image(caption.row) == png(COLORS["red.png"])  # a caption knows its image


def test_texts_are_asked_by_a_model_of_the_same_texts(shared):
    """The picture encoder is neither compared nor loaded, unless pictures are the questions or the texts differ."""
    texts_alone, others = ColorEmbedder(), [ColorEmbedder(), ColorEmbedder(seed=5)]
    texts_alone.encode_image = lambda *_, **__: pytest.fail("pictures are encoded")
    for one in others:
        one.encode_image = lambda images, **options: 1.0 - ColorEmbedder().encode_image(images, **options)
    shared[2].check_model(texts_alone, by_pictures=False)
    shared[2].check_model(ColorEmbedder(seed=1))  # any text tower may ask pictures of which no captions are compared
    for embedder, by_pictures in zip(others, (True, False)):
        assert_refused(shared[2].check_model, ["The index was made by the model"], embedder, by_pictures)
