"""Fields of items and filters by them, rows that change or are removed: exact, approximate, killed in the middle."""

import concurrent.futures
import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
from search_data import COLORS, ColorEmbedder, png, write_folder
from test_search_approximate import EMBEDDINGS, QUERIES, build_once

from mural_tf.data import records
from mural_tf.errors import UserError
from mural_tf.metrics import top_k
from mural_tf.search import approximate, build, collect, commands, index
from mural_tf.search.approximate import exact
from mural_tf.search.index import Index, load_index, take
from mural_tf.search.items import FIELDS, IMAGES, TEXTS, Filter, Item, ItemTable, parse_filters
from mural_tf.search.queries import Query, search, to_json, to_lines

TABLE = [
    "path\tcaption\tlanguage\tbrand\tprice",
    "red.png\ta red shoe\ten\tacme\t10",
    "blue.png\t\t\tacme",
    "a/orange.PNG\tein oranger Schuh\tde\tzeta",
    "violet.png\t",
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The index of a table: not to be changed."""
    path = write_folder(tmp_path_factory.mktemp("shared") / "images") / "table.tsv"
    path.write_text("\n".join(TABLE), encoding="utf-8")
    return build.build_index(ColorEmbedder(), [str(path)], path.parent.parent / "index")


@pytest.fixture
def table(tmp_path):
    path = write_folder(tmp_path / "images") / "table.tsv"
    path.write_text("\n".join(TABLE), encoding="utf-8")
    return path


@pytest.fixture
def made(table, tmp_path):
    build.build_index(ColorEmbedder(), [str(table)], tmp_path / "index")
    return tmp_path / "index"


def names(opened, query="red", *filters, embedder=None):
    return [hit.name for hit in search(opened, embedder or ColorEmbedder(), [Query(query)], 9, filters)[0].hits]


def update(table, folder, embedder=None, **options):
    return build.build_index(embedder or ColorEmbedder(), [str(table)], folder, update=True, **options)


# --- fields


def test_a_table_with_names_of_columns_has_fields(opened):
    known = {opened.items[row]: opened.describe(row) for row in range(len(opened))}
    assert known["red.png"].fields == {"brand": "acme", "price": "10"} and known["violet.png"].fields == {}
    assert known["red.png"].captions == (("en", "a red shoe"),) and len(known) == 4


@pytest.mark.parametrize("part", [1, 60])
def test_parts_of_a_table_know_its_columns(table, part, monkeypatch):
    monkeypatch.setattr(collect, "LINE_BYTES", 1)
    groups = collect.cut_files(IMAGES, [(str(table), "table.tsv")], part)
    found = [item for group in groups for item, _ in collect.read(IMAGES, group)]
    assert len(groups) > 1 and [item.fields.get("brand") for item in found] == ["acme", "acme", "zeta", None]


def test_a_table_without_names_is_read_as_ever(table):
    table.write_text("red.png\tcaption\ten\tacme\nblue.png\n", encoding="utf-8")
    assert [item.fields for item, _ in collect.find(IMAGES, [str(table)])] == [{}, {}]


def test_tables_of_texts_have_fields(tmp_path):
    (tmp_path / "texts.tsv").write_text("language\ttext\tbrand\nde\trot\tacme\nen\tred\n", encoding="utf-8")
    found = [item for item, _ in collect.find(TEXTS, [str(tmp_path / "texts.tsv")])]
    assert found == [Item("rot", language="de", fields={"brand": "acme"}), Item("red", language="en")]


@pytest.fixture
def data(tmp_path):
    """Records with two captions an image, and their fields."""
    rows = [records.ImageTextRecord(name, png(color), [name, "x"], ["en", "de"], ["", ""])
            for name, color in COLORS.items()]  # fmt: skip
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "test", rows, shards=2)
    write_fields(tmp_path / "data", {"red.png": {"brand": "acme"}, "blue.png": {"brand": "zeta", "size": ""}})
    return tmp_path / "data"


def write_fields(data, of_images):
    lines = (json.dumps({"image_id": name, "fields": of_image}) for name, of_image in of_images.items())
    (data / FIELDS).write_text("\n".join(lines) + "\n\n", encoding="utf-8")


@pytest.mark.parametrize("kind", [IMAGES, TEXTS])
def test_a_data_set_has_a_file_of_fields(data, kind):
    found = [item for item, _ in collect.find(kind, [str(data)])]
    assert [item.fields for item in found if item.name == "red.png"] == [{"brand": "acme"}]
    assert [item.fields for item in found if item.name == "blue.png"] == [{"brand": "zeta"}]  # nothing is no field
    assert not any(item.fields for item in found if item.name == "violet.png")
    lines = [("violet.png", "old"), ("blue.png", "other"), ("violet.png", "new")]  # of one id the last counts
    lines = [json.dumps({"image_id": name, "fields": {"brand": brand}}) for name, brand in lines]
    (data / FIELDS).write_text("\n".join(lines), encoding="utf-8")
    found = {item.name: item.fields for item, _ in collect.find(kind, [str(data)])}
    assert found["violet.png"] == {"brand": "new"} and not found["red.png"]


def test_a_damaged_file_of_fields_is_named_before_anything_is_made(data, tmp_path):
    for line in ("5", "{", '{"image_id": 5, "fields": {}}', '{"image_id": "a"}',
                 '{"image_id": "a", "fields": {"b": 1}}', '{"image_id": "a", "fields": {}, "name": 1}', "[" * 50_000,
                 '{"image_id": "a", "fields": {}, "captions": ["red"]}'):  # fmt: skip
        (data / FIELDS).write_text('{"image_id": "a", "fields": {}}\n' + line + "\n")
        with pytest.raises(UserError, match=r"fields.jsonl, line 2: expected a line .*image_id"):
            build.build_index(ColorEmbedder(), [str(data)], tmp_path / "index")
    assert not (tmp_path / "index").exists()


# --- filters

OTHER = [("name", "red.png"), ("brand", 'a"c\\me'), ("größe", "42½"), ("brand", "a=b"), ("x", "\udc80")]


def test_filters_narrow_and_add():
    of_rows = [{"brand": "acme", "color": "red"}, {"brand": "zeta", "color": "red"}, {"brand": "acme"}, {},
               *({name: value} for name, value in OTHER)]  # fmt: skip
    rows = ItemTable([Item(f'red.png "brand": "acme" {n}', captions=(("en", '"brand": "acme"'),), fields=of_row)
                      for n, of_row in enumerate(of_rows)]
                     + [Item("brand=acme"), Item("acme", captions=(("brand", "acme"),), fields={"shade": "acme"}),
                        Item("brand", language="acme", fields={"acme": "brand", "color": "brand=acme"})])  # fmt: skip

    def found(*texts):
        return rows.rows_with(parse_filters(texts)).tolist()

    assert found("brand=acme") == [0, 2] and found("brand=acme", "brand=zeta") == [0, 1, 2]
    assert found("brand=acme", "color=red") == [0] and found("brand=acm") == found("brand=none", "color=red") == []
    for place, (name, value) in enumerate(OTHER, start=4):
        assert found(f"{name}={value}") == [place]


PRICES = ("19,90 EUR", "5", "1,234.50", "$7", "cheap", "USD 1.000,5")


def test_numbers_and_dates_are_compared():
    days = ("2026-05-31", "1.6.2026", "2025", "2026-05", "soon", "")
    of_rows = [{"price": price, "day": day, "sku": f"AB-{n}"} for n, (price, day) in enumerate(zip(PRICES, days))]
    items = [Item("", fields=fields) for fields in of_rows]
    rows = ItemTable(items)

    def found(*texts):
        return rows.rows_with(parse_filters(texts)).tolist()

    assert found("price<20") == [0, 1, 3] and found("price>=5", "price<=7") == [1, 3] and found("price>1000") == [2, 5]
    assert found("day<2026") == [2] and found("day > 2026-05-01") == [0, 1] and found("day>=2026-06-01") == [1]
    assert found("price=5") == [1] and found("sku>0") == []  # an article number is no number
    for text in ("price<", "price<cheap", "price<nan", "<5"):
        with pytest.raises(UserError, match="expected a number or a date|not of the form"):
            parse_filters([text])


def test_facets_count_values_and_know_the_ends_of_numbers():
    items = [Item(str(n), fields={"half": str(n % 2), "price": f"{n} €", "id": f"x{n}"}) for n in range(60)]
    index = Index(items, np.eye(60, 3, dtype=np.float32) + 0.0, take(ColorEmbedder()))
    ends = {"least": "0 €", "most": "59 €"}
    assert index.facets() == {"half": {"values": {"0": 30, "1": 30}}, "price": ends, "id": {}}
    below = index.facets(parse_filters(["price<3"]))
    assert below["half"] == {"values": {"0": 2, "1": 1}} and below["price"] == ends  # by the filters of the others
    assert index.facets(parse_filters(["price<0"]))["price"] == ends


def test_filters_that_are_none_are_named():
    for text in ("brand", "=acme", " =acme", ""):
        with pytest.raises(UserError, match="not of the form name=value, such as brand=acme"):
            parse_filters(["color=red", text])


def test_what_filters_leave_is_ranked(opened):
    assert names(opened, "red", Filter("brand", "acme")) == ["red.png", "blue.png"]
    assert names(opened, "red", *parse_filters(["brand=acme", "brand=zeta"])) == ["red.png", "a/orange.PNG", "blue.png"]
    assert names(opened, "red", Filter("brand", "none")) == []
    without = Index([Item("a")], np.eye(1, 3, dtype=np.float32), opened.model)
    for found, text, message in ((opened, "brand=acm", "brand is acme, zeta"), (without, "a=b", "no item has fields"),
                                 (opened, "colour=red", "fields are brand, price")):  # fmt: skip
        with pytest.raises(UserError, match=f"No item of the index has {text}: {message}"):
            commands.check_filters(found, parse_filters([text]))


def test_the_terminal_and_programs_get_captions_and_fields(opened):
    results = search(opened, ColorEmbedder(), [Query("red", "de")], 2)
    assert to_lines(opened, results[0])[1:] == [
        "   1  +1.000  red.png  a red shoe  brand=acme  price=10  [exact, pictures, texts, words]",
        "   2  +0.800  a/orange.PNG  ein oranger Schuh  brand=zeta  [pictures, texts]",
    ]
    hit = json.loads(to_json(opened, results))["results"][0]["hits"][0]
    assert hit["fields"] == {"brand": "acme", "price": "10"} and hit["captions"] == [["en", "a red shoe"]]


def test_what_others_wrote_does_not_command_the_terminal():
    item = Item("a\x1b[31m\nb", captions=(("en", "x" * 200 + "\u202e"), ("de", "\x9bK")), fields={"f": "\ud800\r"})
    opened = Index([item], np.eye(1, 3, dtype=np.float32), take(ColorEmbedder()))
    for language in ("en", "de"):
        (line,) = to_lines(opened, search(opened, ColorEmbedder(), [Query("red", language)], 1)[0])[1:]
        assert line.encode() and not any(c < " " or "\x7f" <= c < "\xa0" for c in line) and len(line) < 150


# --- changes


def test_an_update_replaces_what_changed(table, made):
    before = load_index(made)
    folder = table.parent
    table.write_text("\n".join([TABLE[0], "red.png\ta red boot\ten\tacme\t12", *TABLE[2:]]), encoding="utf-8")
    (folder / "blue.png").write_bytes(png((250, 250, 0)))  # another picture of the same name
    embedder = ColorEmbedder()
    after = update(table, made, embedder)
    assert embedder.encoded == 1 and len(after) == 4  # the other caption needs no encoder
    rows = {after.items[row]: row for row in range(4)}
    assert after.describe(rows["red.png"]).fields["price"] == "12"
    assert after.describe(rows["red.png"]).caption() == ("en", "a red boot")
    expected = np.array([250, 250, 0]) / np.hypot(250, 250)
    assert np.abs(after.embeddings[rows["blue.png"]] - expected).max() < 1e-6
    for name in ("red.png", "violet.png", "a/orange.PNG"):
        was = list(before.items).index(name)
        np.testing.assert_array_equal(after.embeddings[rows[name]], before.embeddings[was])
    again = ColorEmbedder()
    stamp = (made / index.DESCRIPTION).stat().st_mtime_ns
    assert len(update(table, made, again)) == 4 and again.encoded == 0
    assert (made / index.DESCRIPTION).stat().st_mtime_ns == stamp  # nothing was written


def test_an_image_that_is_gone_or_damaged_keeps_its_row(table, made):
    (table.parent / "blue.png").unlink()
    (table.parent / "red.png").write_bytes(b"broken")
    after = update(table, made)
    assert len(after) == 4 and names(after)[0] == "red.png"


@pytest.mark.parametrize("after", [0, 2, 3])
def test_an_update_that_is_killed_goes_on(table, made, tmp_path, after):
    folder = table.parent
    for name, color in (("red.png", (0, 250, 0)), ("yellow.png", (250, 250, 0)), ("blue.png", (0, 0, 249))):
        (folder / name).write_bytes(png(color))
    table.write_text("\n".join([*TABLE, "yellow.png", TABLE[4], "violet.png\tagain\ten"]), encoding="utf-8")
    with pytest.raises(KeyboardInterrupt) if after < 3 else contextlib.nullcontext():
        update(table, made, ColorEmbedder(fail_after=after), part=1)
    if after < 3:
        assert names(load_index(made), "red")[0] == "red.png"  # in use all the time
    index_after = update(table, made, part=1)
    build.build_index(ColorEmbedder(), [str(table)], tmp_path / "new")
    new = load_index(tmp_path / "new")
    assert sorted(index_after.items) == sorted(new.items)
    for row in range(len(new)):
        was = list(index_after.items).index(new.items[row])
        assert index_after.describe(was) == new.describe(row)
        np.testing.assert_array_equal(index_after.embeddings[was], new.embeddings[row])


def test_a_data_set_that_is_made_again_shows_no_wrong_pictures(data, tmp_path):
    before = build.build_index(ColorEmbedder(), [str(data)], tmp_path / "index")
    rows = [records.ImageTextRecord(name, png(color), [name], ["en"], [""]) for name, color in COLORS.items()]
    records.write_records(data, records.IMAGE_TEXT, "test", rows[::-1], shards=2)
    for row in range(4):
        with pytest.raises((ValueError, OSError)):
            before.read_image(row)
    encoder = ColorEmbedder()
    after = build.build_index(encoder, [str(data)], tmp_path / "index", update=True)
    assert not encoder.encoded and len(after) == 4
    assert all(after.read_image(row) == png(COLORS[after.items[row]]) for row in range(4))


@pytest.mark.parametrize("is_killed", [False, True])
def test_pruning_takes_out_what_the_sources_hold_no_more(table, made, monkeypatch, is_killed):
    table.write_text("\n".join([*TABLE[:3], "yellow.png", TABLE[4]]), encoding="utf-8")  # without the orange one
    (table.parent / "yellow.png").write_bytes(png((250, 250, 0)))
    if is_killed:
        with monkeypatch.context() as patch:  # everything is encoded, but not joined
            patch.setattr(build.Building, "put_together", lambda self, _: self.missing_on_purpose)
            with pytest.raises(AttributeError):
                update(table, made, prune=True, part=1)
    after = update(table, made, prune=True, part=1)
    assert sorted(after.items) == ["blue.png", "red.png", "violet.png", "yellow.png"]
    table.write_text("\n".join(TABLE[:3]), encoding="utf-8")
    kept = update(table, made)
    assert sorted(kept.items) == sorted(after.items) and kept.gone == 2
    encoder = ColorEmbedder()
    assert sorted(update(table, made, encoder, prune=True).items) == ["blue.png", "red.png"] and not encoder.encoded
    with pytest.raises(UserError, match="it needs --update"):
        commands.index([str(table)], str(made), model="model", prune=True)


def test_the_command_updates_from_what_the_index_was_made_of(table, made, monkeypatch, capsys):
    monkeypatch.setattr(commands, "load", lambda path: ColorEmbedder())
    (table.parent / "yellow.png").write_bytes(png((250, 250, 0)))
    table.write_text("\n".join([*TABLE, "yellow.png"]), encoding="utf-8")
    commands.index([], str(made), update=True)
    printed = capsys.readouterr().out
    assert "5 images in" in printed and "no more" not in printed
    table.write_text("\n".join(TABLE), encoding="utf-8")
    commands.index([], str(made), update=True)
    assert "1 of them are in the sources no more; --prune takes them out." in capsys.readouterr().out
    with pytest.raises(UserError, match="is not an index"):
        commands.index([], str(table.parent), update=True)


# --- removed rows


def test_removed_rows_are_not_found(made):
    assert index.remove(made, ["red.png"]) == (1, 4)
    opened = load_index(made)
    assert names(opened) == ["a/orange.PNG", "violet.png", "blue.png"] and opened.count == 3
    assert names(opened, "red", Filter("brand", "acme")) == ["blue.png"]
    assert index.remove(made, filters=parse_filters(["brand=zeta"])) == (1, 3)
    assert names(load_index(made)) == ["violet.png", "blue.png"]
    with pytest.raises(UserError, match="no 'red.png'"):
        index.remove(made, ["blue.png", "red.png"])
    assert load_index(made).count == 2
    with pytest.raises(UserError, match="Nothing of the 2 images would be left"):
        index.remove(made, ["blue.png", "violet.png"])


def test_what_is_still_in_the_sources_comes_back_with_an_update(table, made):
    index.remove(made, ["red.png", "blue.png"])
    table.write_text("\n".join(line for line in TABLE if not line.startswith("blue")), encoding="utf-8")
    after = update(table, made)
    assert sorted(after.items) == ["a/orange.PNG", "red.png", "violet.png"] and not len(after.removed)


def test_removed_rows_stay_removed_when_an_update_is_cut_short(table, made):
    with table.open("a") as file:
        file.write("\nyellow.png\nred.png\ttwice\n")
    (table.parent / "yellow.png").write_bytes(png((250, 250, 0)))
    (table.parent / "violet.png").write_bytes(png((150, 0, 201)))
    with pytest.raises(KeyboardInterrupt):
        update(table, made, ColorEmbedder(fail_after=1), part=1)
    index.remove(made, ["red.png"])
    assert sorted(update(table, made, part=1).items) == ["a/orange.PNG", "blue.png", "violet.png", "yellow.png"]


def test_two_processes_do_not_change_one_index(table, made):
    (table.parent / "red.png").write_bytes(png((250, 0, 1)))
    with index.changing(made):
        with pytest.raises(UserError, match="Another process is changing the index"):
            index.remove(made, ["red.png"])
        with pytest.raises(UserError, match="Another process is changing the index"):
            update(table, made)
    assert names(update(table, made))[0] == "red.png"


def test_a_joined_update_goes_first(table, made, monkeypatch):
    (table.parent / "red.png").write_bytes(png((250, 0, 1)))
    with monkeypatch.context() as patch:
        patch.setattr(build, "OF_ONE_STATE", None)  # ends it before the first file is published
        with pytest.raises(TypeError):
            update(table, made)
    with pytest.raises(UserError, match="was interrupted; run that command again first"):
        index.remove(made, ["red.png"])
    assert len(update(table, made)) == 4 and index.remove(made, ["red.png"]) == (1, 4)


def killed_while_removing(folder):
    """Leaves the file of items as a process does that is killed while it writes: changed, and its journal beside it."""
    program = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.executescript("PRAGMA cache_size = 1; BEGIN")
database.execute("UPDATE items SET name = 'lost' || name || hex(zeroblob(9000))")
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", program, str(folder / index.ITEMS)])
    assert (folder / f"{index.ITEMS}-journal").stat().st_size


def test_a_removal_that_is_killed_has_not_been(table, made):
    killed_while_removing(made)
    assert sorted(load_index(made).items) == sorted(COLORS)
    killed_while_removing(made)
    (table.parent / "red.png").write_bytes(png((250, 0, 1)))
    assert sorted(update(table, made).items) == sorted(COLORS)
    assert not (made / f"{index.ITEMS}-journal").exists()


def test_readers_go_on_while_rows_are_removed_and_the_index_is_updated(table, made):
    reader, first = load_index(made), load_index(made)
    first.describe(0)
    index.remove(made, ["red.png"])
    (table.parent / "blue.png").write_bytes(png((250, 250, 0)))
    assert len(update(table, made)) == 4
    for opened in (reader, first):
        assert names(opened) == ["red.png", "a/orange.PNG", "violet.png", "blue.png"]
        assert names(opened, "red", Filter("brand", "acme")) == ["red.png", "blue.png"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda row: reader.describe(row % 4).name, range(200))) == [*reader.items] * 50


def test_the_command_delete(made, table, monkeypatch, capsys):
    (table.parent / "blue.png").unlink()
    commands.remove(str(made), [], gone=True, dry_run=True)
    assert capsys.readouterr().out == f"1 of 4 images would be removed from {made}.\n" and load_index(made).count == 4
    commands.remove(str(made), [], gone=True)
    commands.remove(str(made), [], parse_filters(["brand=zeta"]))
    assert capsys.readouterr().out.splitlines()[1] == f"1 of 3 images are removed from {made}."
    assert names(load_index(made)) == ["red.png", "violet.png"]
    for arguments, message in ((([],), "Nothing to remove"), ((["a"], [Filter("a", "b")]), "not both")):
        with pytest.raises(UserError, match=message):
            commands.remove(str(made), *arguments)


# --- approximate


def test_approximate_search_finds_the_rows_that_are_left(monkeypatch):
    monkeypatch.setattr(approximate, "SMALL", 100)
    vectors, queries = EMBEDDINGS, QUERIES[:40]
    brands = [Item("", fields={"brand": "acme" if n % 4 else "zeta", "few": str(n % 50)}) for n in range(3000)]
    searched = []
    monkeypatch.setattr(approximate, "exact", lambda *of: searched.append(len(of[3])) or exact(*of))
    removed = np.unique(top_k.top_k(queries, vectors, 2)[1])  # the best ones
    built = build_once()
    built.effort = 8
    opened = Index(brands, vectors, take(ColorEmbedder()), approximate_index=built, removed=removed)
    for filters in ((), (Filter("brand", "acme"),), (Filter("brand", "zeta"),), (Filter("few", "7"),)):
        scores, rows = opened.search(queries, 10, filters=filters)
        exact_scores, exact_rows = opened.search(queries, 10, use_exact=True, filters=filters)
        assert not np.isin(rows, removed).any() and not np.isin(exact_rows, removed).any()
        assert all(brands[row].fields.get(one.name) == one.value for row in rows.ravel() for one in filters)
        assert np.mean(scores >= exact_scores[:, -1:] - 1e-6) > 0.95
    assert len([count for count in searched if count > 1500]) == 2  # the exact searches to compare with, alone
    left = opened.rows((Filter("few", "7"),))
    masked = np.where(np.isin(np.arange(3000), left), queries @ vectors.T, -np.inf)
    np.testing.assert_array_equal(exact_rows, np.argsort(-masked, axis=1, kind="stable")[:, :10])
