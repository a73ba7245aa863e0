"""Fields of items and filters by them; items that change or are removed, killed at every step."""

import concurrent.futures
import functools
import itertools
import json
import multiprocessing
import os
import threading

import numpy as np
import pytest
from refusals import assert_refused
from search_data import COLORS, ColorEmbedder, image_records, names, png, write_folder, write_records

from mural_lite.fingerprint import take_fingerprint
from mural_search import changes, collect, database, index
from mural_search import runs as commands
from mural_search.collect import FIELDS
from mural_search.index import Index, load_index, sync
from mural_search.items import IMAGES, TEXTS, Filter, Item, amount, parse_filters
from mural_search.noise_level import NoiseLevel
from mural_search.queries import Query, search
from mural_search.results import to_json, to_lines

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


def test_a_bar_changes_nothing_and_a_field_that_no_item_has_is_said(table, opened, tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "tqdm", functools.partial(changes.tqdm, mininterval=0, miniters=1))
    made = Index.build(tmp_path / "index", ColorEmbedder(), [table], progress=True)
    assert np.array_equal(made.embeddings, opened.embeddings)
    monkeypatch.setattr(commands, "open_model", lambda path, **_: ColorEmbedder())
    given, words = [str(table)], ["--fields=brnad: no item has this field; the fields are brand, price"]
    assert_refused(commands.index, words, given, str(tmp_path / "index"), model="x", fields=["price", "brnad"])


@pytest.mark.parametrize("part", [1, 60])
def test_parts_of_a_table_know_its_columns(table, part, monkeypatch):
    monkeypatch.setattr(collect, "LINE_BYTES", 1)
    groups = collect.cut_files(IMAGES, [(str(table), "table.tsv")], part)
    found = [item for group in groups for item, _ in collect.read(IMAGES, group)]
    assert len(groups) > 1 and [item.fields.get("brand") for item in found] == ["acme", "acme", "zeta", None]


@pytest.fixture
def data(tmp_path):
    """Records with two captions an image, and their fields."""
    rows = image_records(lambda name: {"en": name, "de": "x"})
    write_records(tmp_path / "data", "test", rows, shards=2)
    write_fields(tmp_path / "data", ("red.png", {"brand": "acme"}), ("blue.png", {"brand": "zeta", "size": ""}))
    return tmp_path / "data"


def write_fields(data, *of_images):
    lines = (json.dumps({"image_id": name, "fields": of_image}) for name, of_image in of_images)
    (data / FIELDS).write_text("\n".join(lines) + "\n\n", encoding="utf-8")


@pytest.mark.parametrize("kind", [IMAGES, TEXTS])
def test_a_data_set_has_a_file_of_fields(data, kind):
    found = [item for item, _ in collect.find(kind, [str(data)])]
    brands = {item.name: item.fields for item in found if item.fields and item.name != "x"}
    assert brands == {"red.png": {"brand": "acme"}, "blue.png": {"brand": "zeta"}}  # nothing is no field
    lines = [("violet.png", "old"), ("blue.png", "other"), ("violet.png", "new")]  # of one id the last counts
    write_fields(data, *((name, {"brand": brand}) for name, brand in lines))
    found = {item.name: item.fields for item, _ in collect.find(kind, [str(data)])}
    assert found["violet.png"] == {"brand": "new"} and not found["red.png"]


def test_a_damaged_file_of_fields_is_named_before_anything_is_made(data, tmp_path):
    words = ["fields.jsonl, line 2: expected a line ", "image_id"]
    for line in ("5", "{", '{"image_id": 5, "fields": {}}', '{"image_id": "a"}', "[" * 50_000,
                 '{"image_id": "a", "fields": {"b": 1}}', '{"image_id": "a", "fields": {}, "name": 1}',
                 '{"image_id": "a", "fields": {}, "captions": ["red"]}'):  # fmt: skip
        (data / FIELDS).write_text('{"image_id": "a", "fields": {}}\n' + line + "\n")
        assert_refused(Index.build, words, tmp_path / "index", ColorEmbedder(), [data])
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("text, number", [
    ("19,90 EUR", 19.9), ("5", 5), ("1,234.50", 1234.5), ("$7", 7), ("USD 1.000,5", 1000.5), ("€ -3", -3), ("+4.", 4),
    ("1'234.5", 1234.5), ("1 234,5 kg", 1234.5), ("1,234", 1234), ("1,234,567", 1234567), ("0,123", 0.123),
    ("1,23", 1.23), ("1.234", 1.234), ("1.234,5", 1234.5), ("1.2.3", None), (" 12 pieces", 12), ("12 articles", None),
    ("EURO 5", None), ("AB-1", None), ("cheap", None), ("", None), ("9" * 400, None), ("nan", None), ("5 x 6", None),
    ("2026", 2026), ("2026-05-31", 2026 + 4 / 12 + 30 / 372), ("31.5.2026", 2026 + 4 / 12 + 30 / 372),
    ("2026-05", 2026 + 4 / 12), ("1.1.2026", 2026), ("2026-01-01T10:00", 2026), ("2026-01-01 10", 2026),
    ("2025-12-31", 2025 + 11 / 12 + 30 / 372), ("2026-1-1 ", 2026), ("-3", -3),
])  # fmt: skip
def test_what_values_are_ordered_by(text, number):
    assert amount(text) == (number if number is None else pytest.approx(number, abs=1e-9))


@pytest.mark.parametrize("text, read", [
    ("brand=acme", Filter("brand", "acme")), (" brand = a=b ", Filter("brand", "a=b")), ("a b= ", Filter("a b", "")),
    ("price<20", Filter("price", "20", "<")), ("day >= 2026-05", Filter("day", "2026-05", ">=")),
    ("price<=-3", Filter("price", "-3", "<=")), ("price>1,5", Filter("price", "1,5", ">")), ("x==1", Filter("x", "=1")),
    ("a=line\nline", Filter("a", "line\nline")), (f"x={'y' * 498}", Filter("x", "y" * 498)),
    *((text, "not of the form name=value, such as brand=acme") for text in ("brand", "=acme", " =acme", "", "<5")),
    *((text, "': expected a number or a date") for text in ("price<", "price<cheap", "day>=nan")),
    (f"x={'y' * 499}", "A filter has 501 characters; at most 500 are read"),
])  # fmt: skip
def test_filters_are_read(text, read):
    if isinstance(read, str):
        assert_refused(parse_filters, [read], ["color=red", text])
    else:
        assert parse_filters([text, "color=red", text]) == (read, Filter("color", "red"))
        assert str(read).replace(" ", "") == text.replace(" ", "")


def test_filters_that_leave_nothing_say_what_there_is(opened):
    assert names(opened, "red", Filter("brand", "none")) == []
    without = Index([Item("a")], np.eye(1, 3, dtype=np.float32), opened.model)
    for found, text, message in ((opened, "brand=acm", "brand is acme, zeta"), (without, "a=b", "no item has fields"),
                                 (opened, "colour=red", "fields are brand, price")):  # fmt: skip
        words = [f"No item of the index has {text}: {message}"]
        assert_refused(commands.check_filters, words, found, parse_filters([text]))


def test_a_limit_that_is_no_number_is_one_line(opened):
    """`parse_filters` refuses it first; Python's callers make filters themselves."""
    assert_refused(names, ["'cheap' is neither a number nor a date"], opened, "red", Filter("price", "cheap", "<"))


def test_the_terminal_and_programs_get_captions_and_fields(opened):
    results = search(opened, ColorEmbedder(), [Query("red", "de")], 2)
    first, second = to_lines(opened, results[0])[1:]
    assert first == "   1  +1.000  red.png  a red shoe  brand=acme  price=10  [exact]"
    assert second == "   2  +0.800  a/orange.PNG  ein oranger Schuh  brand=zeta  [meaning]"
    assert "größe" in to_json(opened, search(opened, ColorEmbedder(), [Query("größe")], 1))  # as it is written
    hit = json.loads(to_json(opened, results))["results"][0]["hits"][0]
    assert hit["fields"] == {"brand": "acme", "price": "10"} and hit["captions"] == [["en", "a red shoe"]]


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


@pytest.mark.parametrize("begin", [0, 3])
def test_killed_between_any_two_steps(tmp_path, begin):
    """In a process of its own, because a fork of this one, with the threads of other tests, may end by itself."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(kill_between_any_two_steps, tmp_path, begin).result()


def kill_between_any_two_steps(folder, begin):
    """The same command again gives what a whole run gives, and leaves nothing."""
    changes.BLOCK, changes.TOGETHER = {"images": 2, "texts": 2}, 2
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


def test_the_command_goes_by_what_the_index_was_made_of(table, made, monkeypatch, capsys):
    monkeypatch.setattr(commands, "open_model", lambda path, **_: ColorEmbedder())
    (table.parent / "yellow.png").write_bytes(png((250, 250, 0)))
    table.write_text("\n".join([*TABLE, "yellow.png"]), encoding="utf-8")
    assert len(commands.index([], str(made), fields=["brand"])) == 5 and load_index(made).fields_wanted == ("brand",)
    table.write_text("\n".join(TABLE), encoding="utf-8")
    commands.index([], str(made))
    assert "1 of them are no longer in the sources; --prune removes them." in capsys.readouterr().out
    assert load_index(made).fields_wanted == ("brand",)  # stays
    assert_refused(commands.index, ["is not an index"], [], str(table.parent))


def test_a_noise_level_is_dropped_when_a_tenth_of_the_index_is_other(tmp_path):
    """Changes and removals add up."""
    place, level = tmp_path / "index", NoiseLevel(40, {"texts": 0.25})
    sync(place, ColorEmbedder(), items_of(40))
    changes.keep_noise(place, level)
    for count, begin in ((2, 40), (1, 42)):
        assert sync(place, ColorEmbedder(), items_of(count, begin)).noise == level
    changes.remove(place, ["p0", "p1"])
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


def test_pictures_are_read_by_threads_and_texts_are_not(tmp_path, monkeypatch):
    """A picture waits for its disk or its store."""
    readers = set()

    def read_entry(*arguments, real=changes.read_entry, **options):
        readers.add(threading.current_thread() is threading.main_thread())
        return real(*arguments, **options)

    monkeypatch.setattr(changes, "read_entry", read_entry)
    sync(tmp_path / "images", ColorEmbedder(), items_of(3))
    assert readers == {False}
    readers.clear()
    texts = ((Item(f"text {n}"), f"text {n}") for n in range(3))
    sync(tmp_path / "texts", ColorEmbedder(), texts, kind=TEXTS)
    assert readers == {True}
