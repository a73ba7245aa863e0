"""Fields of items and filters by them; items that change or are removed, killed at every step."""

import concurrent.futures
import functools
import itertools
import multiprocessing
import os

import fsspec
import numpy as np
import pytest
from refusals import assert_refused
from search_data import COLORS, ColorEmbedder, image_records, names, png, write_folder, write_records

from mural_lite.fingerprint import take_fingerprint
from mural_lite.remote_folders import local_folder
from mural_search import changes, collect, database, index, runs
from mural_search.collect import FIELDS
from mural_search.index import Index, load_index, sync
from mural_search.items import Filter, Item
from mural_search.noise_level import NoiseLevel
from mural_search.queries import Query, search
from mural_search.results import to_lines

TABLE = ["path\tcaption\tlanguage\tbrand\tprice", "red.png\ta red shoe\ten\tacme\t10", "blue.png\t\t\tacme",
         "a/orange.PNG\tein oranger Schuh\tde\tzeta", "violet.png\t"]  # fmt: skip


def write_table(folder):
    path = write_folder(folder / "images") / "table.tsv"
    path.write_text("\n".join(TABLE), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The index of a table: not to be changed."""
    folder = tmp_path_factory.mktemp("shared")
    return Index.build(folder / "index", ColorEmbedder(), [write_table(folder)])


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path)


@pytest.fixture
def made(table, tmp_path):
    Index.build(tmp_path / "index", ColorEmbedder(), [table])
    return tmp_path / "index"


@pytest.fixture
def data(tmp_path):
    """Records with two captions an image, and their fields."""
    rows = image_records(lambda name: {"en": name, "de": "x"})
    write_records(tmp_path / "data", "test", rows, shards=2)
    return tmp_path / "data"


def test_fields_are_read_in_any_thread(data):
    (data / FIELDS).write_text('{"image_id": "red.png", "fields": {"brand": "acme"}}\n')
    fields_of = collect.fields_by_id(data / FIELDS)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(fields_of, "red.png").result() == fields_of("red.png") == [{"fields": {"brand": "acme"}}]


def test_a_damaged_file_of_fields_is_named_before_anything_is_made(data, tmp_path):
    words = ["fields.jsonl, line 2: expected a line ", "image_id"]
    for line in ("5", "{", '{"image_id": 5, "fields": {}}', '{"image_id": "a"}', "[" * 50_000,
                 '{"image_id": "a", "fields": {"b": 1}}', '{"image_id": "a", "fields": {}, "name": 1}',
                 '{"image_id": "a", "fields": {}, "captions": ["red"]}'):  # fmt: skip
        (data / FIELDS).write_text('{"image_id": "a", "fields": {}}\n' + line + "\n")
        assert_refused(Index.build, words, tmp_path / "index", ColorEmbedder(), [data])
    assert not (tmp_path / "index").exists()


def test_what_others_wrote_does_not_command_the_terminal():
    item = Item("a\x1b[31m\nb", captions=(("en", "x" * 200 + "\u202e"), ("de", "\x9bK")), fields={"f": "\ud800\r"})
    opened = Index([item], np.eye(1, 3, dtype=np.float32), take_fingerprint(ColorEmbedder()))
    for language in ("en", "de"):
        (line,) = to_lines(opened, search(opened, ColorEmbedder(), [Query("red", language)], 1)[0])[1:]
        assert line.encode() and not any(c < " " or "\x7f" <= c < "\xa0" for c in line) and len(line) < 150


def test_python_asks_in_one_line(opened):
    """As the page does: one ranking, filters as texts."""
    hits = opened.search("a red shoe", k=2)
    assert (hits[0].rank, hits[0].name, opened.describe(hits[0].row).fields["price"]) == (1, "red.png", "10")
    assert [hit.name for hit in opened.search("red", where="brand=zeta")] == ["a/orange.PNG"]
    assert [hit.name for hit in opened.search("red", where=["brand=acme", "price<20"])] == ["red.png"]
    scores, rows = opened.search(np.eye(1, 3, dtype=np.float32), 9, where=["brand=acme"])
    assert [opened.items[row] for row in rows[0]] == ["red.png", "blue.png"] and scores.shape == (1, 2)
    assert_refused(opened.search, ["No item of the index has price<1: price is 10"], "red", where="price<1")


def test_python_loads_the_model_where_it_was(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Index.build("index", ColorEmbedder(), [table])
    monkeypatch.chdir(table.parent)  # the place is kept from anywhere
    words = [f"was made by the model {tmp_path}/colors, which is not there"]
    assert_refused(load_index(tmp_path / "index").search, words, "red")
    (tmp_path / "colors").mkdir()
    monkeypatch.setattr("mural_lite.models.open_model", lambda path: ColorEmbedder())
    assert load_index(tmp_path / "index").search("red")[0].name == "red.png"


def vectors_of(index):
    """{name: (item, vector)}, whatever the rows are."""
    return {item.name: (item, tuple(index.embeddings[row].tolist())) for row, item in enumerate(index.table)}


def items_of(count, begin=0):
    for n in range(begin, begin + count):
        captions = (("en", f"thing {n}"), ("de", f"ein thing {n}"))
        yield Item(f"p{n}", captions=captions, fields={"n": str(n)}, digest=str(n)), png((n, 0, 250 - n))


def end_after(steps, work):
    """Calls `work` in a process that ends without a word at one of its steps; tells whether it did."""
    child = os.fork()
    if not child:
        keep, write = database.keep, index._write_matrix

        def step():
            nonlocal steps
            steps -= 1
            if steps < 0:
                os._exit(9)

        def stopping(function, *arguments, **values):
            step()
            done = function(*arguments, **values)
            step()
            return done

        database.keep = functools.partial(stopping, keep)  # the last of each transaction
        index._write_matrix = functools.partial(stopping, write)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_killed_between_any_two_steps(tmp_path):
    """In a process of its own, because a fork of this one, with the threads of other tests, may end by itself."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for begin in (0, 3):
            pool.submit(kill_between_any_two_steps, tmp_path / f"from {begin}", begin).result()


def kill_between_any_two_steps(folder, begin):
    """The same command again gives what a whole run gives, and leaves nothing."""
    changes.BLOCK, changes.TOGETHER, changes.ABANDONED = {"images": 2, "texts": 2}, 2, 0.0
    whole = vectors_of(sync(folder / "whole", ColorEmbedder(), items_of(7, begin)))
    for steps in itertools.count():
        place = folder / f"{steps}"
        if begin:  # an update: three gone, three new
            sync(place, ColorEmbedder(), items_of(7))
        work = functools.partial(sync, place, ColorEmbedder(), items_of(7, begin), prune=True)
        was_killed = end_after(steps, work)
        embedder = ColorEmbedder()
        after = sync(place, embedder, items_of(7, begin), prune=True)
        assert vectors_of(after) == whole and embedder.encoded <= max(0, 7 - steps // 4 * 2 + 4)
        assert len(after.captions.vectors) == 14 and names(after, "thing 5")[0] == "p5"
        assert not [path for path in place.iterdir() if path.name.endswith(".partial")]
        if not was_killed:
            break
    assert steps > 10


def test_a_data_set_that_is_made_again_shows_no_wrong_pictures(data, tmp_path):
    before = Index.build(tmp_path / "index", ColorEmbedder(), [data])
    rows = image_records(lambda name: {"en": name}, dict(reversed(COLORS.items())))
    write_records(data, "test", rows, shards=2)
    for row in range(4):
        with pytest.raises((ValueError, OSError)):
            before.read_image(row)
    encoder = ColorEmbedder()
    after = Index.build(tmp_path / "index", encoder, [data])
    assert not encoder.encoded and len(after) == 4
    assert all(after.read_image(row) == png(COLORS[after.items[row]]) for row in range(4))


def test_a_noise_level_is_dropped_when_a_tenth_of_the_index_is_other(tmp_path):
    """New, changed and pruned items and items that are removed by hand add up."""
    place, level = tmp_path / "index", NoiseLevel(40, {"texts": 0.25})
    sync(place, ColorEmbedder(), items_of(40))
    changes.keep_noise(place, level)
    assert sync(place, ColorEmbedder(), items_of(1, 40)).noise == level
    others = [(Item("p40"), png((9, 9, 9))), *items_of(1), *items_of(38, 2)]  # without p1
    assert sync(place, ColorEmbedder(), others, prune=True).noise == level
    changes.remove(place, ["p2", "p3"])
    assert load_index(place).noise is None


def test_a_product_goes_with_all_of_its_pictures(tmp_path):
    rows = [("4005", "4005"), ("4005#2", "4005"), ("x", "4005"), ("40051", ""), ("4005#a", ""), ("4006", "4006")]

    def items(digest):
        for n, (name, product) in enumerate(rows):
            yield Item(name, fields={"sku": product} if product else {}, digest=digest), png((n, 0, 9))

    sync(tmp_path / "index", ColorEmbedder(), items("1"), product="sku")
    assert changes.remove(tmp_path / "index", ["4005"], dry_run=True) == (3, 6)
    assert changes.remove(tmp_path / "index", ["4005"]) == (3, 6)
    assert list(sync(tmp_path / "index", ColorEmbedder(), items("1")).items) == ["40051", "4005#a", "4006"]
    assert sorted(sync(tmp_path / "index", ColorEmbedder(), items("2")).items) == sorted(name for name, _ in rows)


def test_a_folder_that_cannot_be_read_for_a_while_empties_no_index(tmp_path):
    folder = tmp_path / "images"
    Index.build(tmp_path / "index", ColorEmbedder(), [write_folder(folder)])
    for path in folder.rglob("*.*"):
        path.unlink()
    (folder / "new.png").write_bytes(b"broken")
    words = ["None of the 1 images can be read; the index keeps its items."]
    assert_refused(Index.build, words, tmp_path / "index", ColorEmbedder(), prune=True)
    assert len(load_index(tmp_path / "index")) == 4


def test_a_matrix_that_a_reader_is_writing_stays(made):
    partial = made / ".vectors.npy.1-a.partial"
    partial.touch()
    changes.remove(made, ["red.png"])
    assert partial.exists()
    os.utime(partial, (0, 0))  # of a process that was killed
    changes.remove(made, ["blue.png"])
    assert not partial.exists()


def test_large_pictures_are_read_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "BLOCK_BYTES", 1)
    sizes = []
    encode = changes.encode

    def noted(embedder, kind, contents, batch_size):
        contents = list(contents)
        sizes.append(len(contents))
        return encode(embedder, kind, contents, batch_size)

    monkeypatch.setattr(changes, "encode", noted)
    assert len(sync(tmp_path / "index", ColorEmbedder(), items_of(20))) == 20
    assert sizes == [8, 8, 4]


def test_readers_go_on_while_the_index_changes(table, made):
    reader, first = load_index(made), load_index(made)
    first.describe(0)
    assert reader.is_current()
    changes.remove(made, ["red.png"])
    assert not reader.is_current()
    (table.parent / "blue.png").write_bytes(png((250, 250, 0)))
    assert len(Index.build(made, ColorEmbedder(), [table])) == 3
    for opened in (reader, first):  # what they opened
        assert names(opened) == ["red.png", "a/orange.PNG", "violet.png", "blue.png"]
        assert names(opened, "red", Filter("brand", "acme")) == ["red.png", "blue.png"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda row: reader.describe(row % 4).name, range(200))) == [*reader.items] * 50
    assert load_index(made).is_current()
    changes.keep_noise(made, NoiseLevel(3, {"texts": 0.5}))
    assert load_index(made).noise.levels == {"texts": 0.5}


def test_changes_in_a_store_arrive_while_the_index_is_open():
    fsspec.filesystem("memory").store.clear()
    store = "memory://bucket/index"
    with local_folder(store) as folder:
        opened = sync(folder, ColorEmbedder(), items_of(9))
        changes.keep_noise(folder, NoiseLevel(len(opened), {"texts": 0.25}))
    assert load_index(store).noise == NoiseLevel(9, {"texts": 0.25})
    runs.remove(store, ["p2", "p3"])
    assert len(load_index(store)) == 7
