"""The command `catalogue`: from somebody's own table to a data set, to an index that follows it, to a page."""

import contextlib
import json
import pathlib
import re
import shlex
import sqlite3
import subprocess
import sys
import types

import convert_data
import pytest
import toy_data
from absl import flags
from object_store import object_store, stored, upload
from refusals import assert_refused
from search_data import ColorEmbedder
from snapshots import assert_snapshot
from table_data import columns, found, parquet, pictures, rows, text

from mural_lite import models
from mural_lite.config import base_config
from mural_lite.config_file import load_config, save_config
from mural_lite.errors import UserError
from mural_lite.files import exclusive_lock
from mural_lite.record_format import IMAGE_TEXT, TEXT_PAIRS, TextPair
from mural_search import catalogue
from mural_search import runs as search_commands
from mural_search.index import load_index
from mural_search.queries import Query, search
from mural_search.tables.product_table import TableRequest, inspect_table
from mural_search.tables.products import Entry, RowTally, read
from mural_tf.commands import training, training_data
from mural_tf.commands.training_data import make_data_set
from mural_tf.data.records import find_files, read_records, write_records
from mural_tf.text.vocabulary_file import save_vocabulary

ROOT = pathlib.Path(__file__).resolve().parents[3]
HEAD = ["sku", "photo", "title_de", "title_en", "brand"]


def search_for(request, output, source, config=None, translations=(), **options):
    """Makes the search of a table, as the command does."""
    trainer = training.CatalogueTrainer(output, source, config, translations)
    return catalogue.catalogue(request, output, source, trainer, **options)


def row(i, **changed):
    values = dict(zip(HEAD, [f"S{i}", f"p{i}.jpg", f"Hut {i}", f"hat {i}", "acme"]))
    return [*{**values, **changed}.values()]


def wide(folder, *which, more=()):
    """Writes a table with a column for each language, and pictures; returns its file."""
    return rows(HEAD, *map(row, which), *more, names=[f"p{i}.jpg" for i in range(30)])(folder)


def make(table, output, **options):
    """Makes a data set of a table."""
    tally = RowTally()
    entries = read(inspect_table(TableRequest(str(table))), tally, output.parent / "kept")
    return make_data_set(entries, output, tally, progress=False, **options)


def ids(data, split):
    has_split = bool(find_files(data, IMAGE_TEXT, split))
    return {record.image_id for record in read_records(data, IMAGE_TEXT, split)} if has_split else set()


def test_one_record_for_each_picture_and_pairs_of_its_captions(tmp_path):
    """Copies of a picture are one, in one split with all products that show it; translations are of one row."""
    copies = [row(0, photo="copy.jpg", title_de="", title_en="again")]
    table = wide(tmp_path, *range(30), more=[*copies, row(99, photo="p3.jpg", title_de="", title_en="red")])
    (tmp_path / "copy.jpg").write_bytes((tmp_path / "p0.jpg").read_bytes())
    (tmp_path / "p9.jpg").write_bytes((tmp_path / "p9.jpg").read_bytes()[:-40])
    made = make(table, tmp_path / "data")
    splits = {split: list(read_records(made, IMAGE_TEXT, split)) for split in ("train", "dev", "test")}
    assert {split: len(records) for split, records in splits.items()} == {"train": 19, "dev": 5, "test": 5}
    records = {record.image_id: record for of_split in splits.values() for record in of_split}
    assert set(records) == {f"S{i}" for i in range(30) if i != 9}
    assert list(records["S0"].captions) == ["Hut 0", "hat 0", "again"] and len(set(records["S0"].caption_groups)) == 2
    assert list(records["S3"].captions) == ["Hut 3", "hat 3", "red"] and len(set(records["S1"].caption_groups)) == 1
    translated = {("en", one.captions[1], "de", one.captions[0]) for one in splits["train"]}
    pairs = read_records(made, TEXT_PAIRS, "train")
    assert {(pair.language_a, pair.text_a, pair.language_b, pair.text_b) for pair in pairs} == translated
    assert "image that does not decode" in (made / "skipped.tsv").read_text()
    described = json.loads((made / "dataset.json").read_text())
    assert described["captions"]["en"] == {"captions": 32, "guessed": 0, "pictures": 32}


def test_a_picture_that_goes_away_while_data_are_made_is_skipped(tmp_path, monkeypatch):
    table = wide(tmp_path, *range(12))
    pictures_of = training_data.pictures_of

    def pictures_before_one_goes(*arguments):
        pictures = pictures_of(*arguments)
        (tmp_path / "p3.jpg").unlink()
        return pictures

    monkeypatch.setattr(training_data, "pictures_of", pictures_before_one_goes)
    made = make(table, tmp_path / "data")
    kept = set().union(*(ids(made, split) for split in ("train", "dev", "test")))
    assert kept == {f"S{i}" for i in range(12) if i != 3}
    assert "picture that cannot be read" in (made / "skipped.tsv").read_text()


@pytest.mark.parametrize("captions, groups", [
    ({("en", "hat"): 1, ("de", "Hut"): 1}, [0, 0]),
    ({("en", "hat"): 1, ("de", "Hut"): 2}, [0, 0]),  # a caption for each language: all of them mean the same
    ({("en", "hat"): 1, ("de", "Hut"): 1, ("en", "cap"): 2}, [0, 0, 1]),
    ({("en", "hat"): 1, ("en", "cap"): 1, ("de", "Hut"): 1}, [1, 2, 3]),  # which of the two is it?
    ({("en", "hat"): 4, ("en", "cap"): 4, ("de", "Hut"): 2, ("fr", "chapeau"): 2}, [2, 3, 1, 1]),
])  # fmt: skip
def test_captions_of_a_row_mean_the_same_unless_a_language_has_several(captions, groups):
    entry = Entry("", "p0.jpg", None, {key: (row, False) for key, row in captions.items()})
    picture = training_data.Picture(None, b"", [entry])
    assert [(caption.language, caption.text) for caption in picture.captions()] == list(captions)
    assert [caption.group for caption in picture.captions()] == groups


def test_pictures_of_one_product_and_products_with_one_picture_share_a_split(tmp_path):
    lines = [[f"S{i // 3}", f"p{i}.jpg", f"hat {i}"] for i in range(60)]  # three pictures each
    lines += [["S1", "p0.jpg", "shared"], ["S2", "p0.jpg", "shared too"], ["S99", "p60.jpg", ""]]
    table = rows(["sku", "image", "caption_en"], *lines, names=[f"p{i}.jpg" for i in range(61)])(tmp_path)
    made = make(table, tmp_path / "data")
    split_of = {}
    for split in ("train", "dev", "test"):
        for name in ids(made, split):
            split_of.setdefault(name.split("#")[0], set()).add(split)
    assert all(len(splits) == 1 for splits in split_of.values()) and len(split_of) == 20
    assert split_of["S0"] == split_of["S1"] == split_of["S2"] and ids(made, training_data.WITHOUT_CAPTIONS) == {"S99"}


def test_the_order_of_rows_does_not_decide_who_is_held_out_and_sizes_are_bounded():
    for count, held in ((1, 0), (2, 0), (3, 1), (10, 2), (100, 20), (500, 50), (5000, 500), (50_000, 1000)):
        assert training_data.held_out(count) == held
    products = [Entry(f"S{n}", f"S{n}", None) for n in range(25)]
    shown = [training_data.Picture(ROOT, b"", products[n : n + 2 - n % 2]) for n in range(24)]
    order = lambda some: [{one.name for one in group.pictures} for group in training_data.find_groups(some)]  # noqa: E731
    assert order(shown) == order(shown[::-1]) and len(order(shown)) == 12


def test_the_data_set_follows_its_table(tmp_path):
    """The same table gives the same files once; what a model was trained on stays in train; a failure leaves all."""
    table = wide(tmp_path, *range(20))
    made = make(table, tmp_path / "data")
    before, times = convert_data.contents(made), [file.stat().st_mtime_ns for file in sorted(made.rglob("*"))]
    make(table, tmp_path / "data")
    assert times == [file.stat().st_mtime_ns for file in sorted(made.rglob("*"))]
    assert convert_data.contents(make(table, tmp_path / "again")) == before
    (tmp_path / "p3.jpg").write_bytes((tmp_path / "p4.jpg").read_bytes())  # replaced in its place
    make(table, tmp_path / "again")
    assert convert_data.contents(tmp_path / "again") != before
    wide(tmp_path, *range(20))
    trained, dev = ids(made, "train"), ids(made, "dev")
    pictures(tmp_path, [f"new{i}.jpg" for i in reversed(range(20))])
    with_others = rows(HEAD, *(row(i, photo=f"new{i}.jpg") for i in range(20)), names=[])(tmp_path)
    assert ids(make(with_others, tmp_path / "other"), "dev") == dev  # by its product, whatever its picture
    assert trained == training.names_in(made, "train")
    wide(tmp_path, *range(3, 30))
    with pytest.raises(ZeroDivisionError):
        make(table, made, trained_on=lambda: 1 / 0)
    assert convert_data.contents(made) == before and not list(tmp_path.glob(".data*partial"))
    make(table, made, trained_on=lambda: trained)
    assert trained - {"S0", "S1", "S2"} <= ids(made, "train") and not trained & (ids(made, "dev") | ids(made, "test"))
    assert dev & ids(made, "dev")
    everything = {f"S{i}" for i in range(29)}
    make(wide(tmp_path, *range(4, 30)), made, trained_on=lambda: everything)
    assert ids(made, "train") == everything - {"S0", "S1", "S2", "S3"} and ids(made, "dev") == {"S29"}
    (made / "dataset.json").write_text('{"name": "emoji"}')
    assert_refused(make, ["holds another data set"], table, made)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "folder"])
def test_a_bucket_gives_and_takes_the_same_records(tmp_path, monkeypatch, form):
    pytest.importorskip("s3fs", reason="needs s3fs: pip install -e '.[s3]'")
    name = "in/t.csv" if form == "table" else "in"
    (tmp_path / "in").mkdir()
    wide(tmp_path / "in", *range(5), more=[row(5, photo="P5.JPG")])
    if form == "folder":
        (tmp_path / "in/t.csv").unlink()
        for i in range(6):
            (tmp_path / f"in/p{i}.txt").write_text(f"de=Hut {i}\nen=hat {i}\n")
    expected = convert_data.contents(make(tmp_path / name, tmp_path / "out"))
    with object_store(monkeypatch) as client:
        upload(client, tmp_path / "in", "in")
        tally = RowTally()
        entries = read(inspect_table(TableRequest(f"s3://bucket/{name}")), tally, tmp_path / "kept")
        make_data_set(entries, "s3://bucket/out", tally, progress=False)
        made = stored(client, "out")
    assert made.keys() == expected.keys()
    assert all(file == "dataset.json" or content == expected[file] for file, content in made.items())


@pytest.fixture
def source(tmp_path):
    """What is read of a workdir before anything is done."""
    (tmp_path / "source").mkdir()
    save_config(toy_data.toy_config(tmp_path / "toy"), tmp_path / "source/config.json")
    save_vocabulary(toy_data.toy_tokenizer().vocabulary, tmp_path / "source/vocabulary.txt")
    return tmp_path / "source"


@pytest.mark.parametrize("change, asked, message", [
    ({}, {"source": ""}, "^--from is missing: a model, such as --from=workdirs/emoji; for photographs hf://[^ ]*.$"),
    ({}, {"source": "none"}, "--from=none: there is no such workdir"),
    ({}, {"source": "nothing", "train": False},
        "--from=nothing is not a model: --train=no only searches, with the model"),
    ({}, {"translations": ["d"], "train": False}, "--translations teaches: --train=no"),
    ({}, {"fields": ["brandt"]}, "--fields: the table has no field 'brandt'; it has brand"),
    ({"image_tower.name": "none"}, {"train": False}, "is a model of texts alone, which cannot index pictures"),
    ({}, {"translations": ["empty"]}, "--translations=.*empty: there is no text_pairs/train-.*`python -m mural_tf"),
    ({"model": "labse"}, {"translations": ["toy"]},
        "the stage starts from a model with an image-text head; .* is labse"),
    ({}, {"source": "nothing"}, "6 captions are too few to learn from, 40 are needed. Give more rows; or"),
])  # fmt: skip
def test_mistakes_are_said_before_anything_is_loaded(tmp_path, monkeypatch, source, change, asked, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "open_model", lambda *_: pytest.fail("a model is loaded"))
    toy_data.write_toy_data(tmp_path / "toy")
    (tmp_path / "empty").mkdir()
    with (config := load_config(source / "config.json")).unlocked():
        config.update_from_flattened_dict(change)
    save_config(config, source / "config.json")
    with pytest.raises(UserError, match=message):
        search_for(TableRequest(str(wide(tmp_path, 0, 1, 2))), tmp_path / "out", **{"source": str(source), **asked})
    assert not (tmp_path / "out/index").exists()


def test_a_dry_run_says_what_is_understood_and_a_second_process_is_told(tmp_path, source, capsys):
    assert search_for(TableRequest(str(wide(tmp_path, 0, 1, 2))), "", "", dry_run=True) is None
    assert_snapshot("catalogue_dry_run", capsys.readouterr().out, folder=tmp_path)
    (tmp_path / "out").mkdir()
    with exclusive_lock(tmp_path / "out/catalogue.lock"):
        asked = TableRequest(str(wide(tmp_path, 0))), tmp_path / "out", str(source)
        assert_refused(search_for, ["Another process is at work in ", "out: wait for it"], *asked)


def test_conditions_of_rows():
    tests = catalogue.conditions(["stock>0", "stock<=12", "brand=Acme", "all"])
    passed = lambda name, text, groups=",": all(fits(text, groups) for fits in tests[name])  # noqa: E731
    assert [passed("stock", text) for text in ("", "0", "3", "12 pcs", "13", "many")] == [0, 0, 1, 1, 0, 0]
    assert passed("brand", "ACME") and not passed("brand", "bolt") and set(tests) == {"stock", "brand"}
    assert_refused(catalogue.conditions, ["'stock' is not of the form"], ["stock"])


@pytest.fixture
def searching(tmp_path, monkeypatch):
    """Runs the command with a model of colours, `--train=no`; returns what it printed."""
    monkeypatch.setattr(models, "open_model", lambda *_: ColorEmbedder())
    (tmp_path / "model").mkdir()

    def run(table, capsys, train=False, fields=None, **asked):
        request = TableRequest(str(table), **asked)
        assert search_for(request, tmp_path / "out", str(tmp_path / "model"), train=train, fields=fields)
        return capsys.readouterr().out

    return run


def indexed(folder):
    return {item.name: item for item in load_index(folder / "out/index").table}


def test_a_field_to_show_may_be_empty_in_all_rows_that_are_indexed(tmp_path, searching, capsys):
    left_out = row(9, photo="none.jpg", title_de="", title_en="")
    table = wide(tmp_path, more=[left_out, *(row(i, brand="") for i in range(4))])
    searching(table, capsys, fields=["brand"])
    assert load_index(tmp_path / "out/index").fields_wanted == ()


def test_the_index_follows_its_table(tmp_path, searching, monkeypatch, capsys):
    """New rows enter, gone ones leave, changed ones are as they are now; a deleted one stays out until it changes."""
    table = wide(tmp_path, *range(10))
    assert "Nothing is trained: --train=no. " in searching(table, capsys, fields=["brand"])
    assert load_index(tmp_path / "out/index").fields_wanted == ("brand",) and not (tmp_path / "out/data").exists()
    assert "10 as before" in searching(table, capsys)
    (tmp_path / "out/.examples.html.1-a.partial").touch()  # of a process that was killed
    search_commands.remove(str(tmp_path / "out/index"), ["S7", "S8"])
    changed = [row(5, title_en="a cap", brand="bolt"), row(8, brand="b")]
    wide(tmp_path, 1, 2, 3, 4, 6, 7, 9, 10, 11, more=changed)
    printed = searching(table, capsys)
    assert "3 new, 1 changed, 1 taken out" in printed and "1 that were deleted by hand stay out" in printed
    items = indexed(tmp_path)
    assert not list((tmp_path / "out").glob("*.partial"))
    assert set(items) == {f"S{i}" for i in range(1, 12) if i != 7} and items["S5"].path == str(tmp_path / "p5.jpg")
    assert (items["S5"].offset, items["S5"].digest != items["S1"].digest) == (-1, True)
    assert items["S5"].fields == {"sku": "S5", "brand": "bolt"} and ("en", "a cap") in items["S5"].captions
    (tmp_path / "p5.jpg").write_bytes(b"no picture")
    searching(wide(tmp_path, *range(4)), capsys)
    assert set(indexed(tmp_path)) == {"S0", "S1", "S2", "S3"} and load_index(tmp_path / "out/index").product == "sku"
    monkeypatch.setattr(models, "open_model", lambda *_: ColorEmbedder(seed=1))
    assert "is of another model than colors" in searching(table, capsys) and len(indexed(tmp_path)) == 4  # made anew


def test_a_model_is_opened_only_for_what_is_new(tmp_path, searching, monkeypatch, capsys):
    """Prices, removed rows and nothing new need none; the page follows all the same."""
    opened = []
    model = [ColorEmbedder()]
    monkeypatch.setattr(models, "open_model", lambda path: opened.append(path) or model[0])
    (tmp_path / "model/vocabulary.txt").write_text("words of some model")
    head, page = ["sku", "image", "title_en", "price"], tmp_path / "out/examples.html"

    def make(prices, names=("p0.jpg", "p1.jpg", "p2.jpg", "p3.jpg", "p4.jpg")):
        lines = [[f"S{i}", name, f"hat {i}", price] for i, (name, price) in enumerate(zip(names, prices))]
        table = rows(head, *lines, names=[f"p{i}.jpg" for i in range(9)])(tmp_path)
        printed = searching(table, capsys)
        return printed, len(opened)

    assert make("12345")[1] == 1
    level = load_index(tmp_path / "out/index").noise
    printed, count = make("12345")
    assert "5 as before" in printed and count == 1
    printed, count = make("12399")
    assert "2 changed" in printed and count == 1 and indexed(tmp_path)["S4"].fields["price"] == "9"
    assert "price: 9" in page.read_text() and load_index(tmp_path / "out/index").noise == level
    printed, count = make("123")  # among them the first example's
    assert "2 taken out" in printed and count == 1 and set(indexed(tmp_path)) == {"S0", "S1", "S2"}
    assert page.read_text().count("<section>") == 1
    assert make("123", ("p0.jpg", "p1.jpg", "p7.jpg"))[1] == 2  # another picture
    assert make("1234", ("p0.jpg", "p1.jpg", "p7.jpg", "p8.jpg"))[1] == 3
    (tmp_path / "model/vocabulary.txt").write_text("words of same model")  # of the same vectors
    assert make("1234", ("p0.jpg", "p1.jpg", "p7.jpg", "p8.jpg"))[1] == 4
    assert make("1234", ("p0.jpg", "p1.jpg", "p7.jpg", "p8.jpg"))[1] == 4  # by the new stamp
    model[0] = ColorEmbedder(seed=1)
    assert_refused(make, ["The index was made by the model", "not by"], "12345")  # in files that did not change
    (tmp_path / "model/vocabulary.txt").write_text("words of that model")
    with contextlib.closing(sqlite3.connect(tmp_path / "out/index/index.sqlite")) as database, database:
        database.execute("UPDATE meta SET value = '\"text_text\"' WHERE key = 'head'")
    model[0] = ColorEmbedder()  # of the same vectors, without the head of the captions
    model[0].text_heads = ()
    printed, count = make("1234", ("p0.jpg", "p1.jpg", "p7.jpg", "p8.jpg"))
    assert "is of another model than colors" in printed
    model[0] = ColorEmbedder(seed=1)
    (tmp_path / "model/vocabulary.txt").write_text("words of some other")
    printed, count = make("1234", ("p0.jpg", "p1.jpg", "p7.jpg", "p8.jpg"))
    assert "is of another model than colors" in printed and "as before" not in printed


def test_a_finished_training_is_not_opened_again(tmp_path, monkeypatch):
    """Unless it is asked for otherwise, or a part of it is gone."""
    runs = []
    monkeypatch.setattr(training_data, "make_data_set", lambda *_, **__: None)
    monkeypatch.setattr(training, "describe", lambda data: "")

    def finish(trainer, name):
        runs.append(name)
        (trainer.folder / name).mkdir(exist_ok=True)
        (trainer.folder / name / "summary.json").write_text("{}")
        return True

    stages = {"_train_on_table": "workdir", "_train_on_translations": "translated"}
    for method, stage in stages.items():
        monkeypatch.setattr(training.CatalogueTrainer, method, lambda trainer, stage=stage: finish(trainer, stage))
    config = toy_data.toy_config(tmp_path)

    def train(steps=3, **asked):
        with config.unlocked():
            config.train.steps = steps
        trainer = training.CatalogueTrainer(tmp_path, "source", config, **asked)
        runs.clear()
        assert trainer.train([], RowTally())
        return list(runs)

    assert [train(), train(), train(steps=4), train(steps=4)] == [["workdir"], [], ["workdir"], []]
    assert [train(translations=["a"]), train(translations=["a"])] == [["workdir", "translated"], []]
    (tmp_path / "translated/summary.json").unlink()
    assert train(translations=["a"]) == ["workdir", "translated"]


def test_a_folder_of_pictures_alone_is_indexed(tmp_path, searching, capsys):
    pictures(tmp_path / "in", ["p0.jpg", "p1.jpg", "film.mp4"])
    printed = searching(tmp_path / "in", capsys, train=True)
    assert "captions: none, pictures are found by their contents; --captions=names" in printed
    assert "Nothing is trained: 0 captions are too few to learn from, 40 are needed." in printed
    assert set(indexed(tmp_path)) == {"p0.jpg", "p1.jpg"} and "film.mp4" in (tmp_path / "out/skipped.tsv").read_text()
    assert "Pictures like p1.jpg" in (tmp_path / "out/examples.html").read_text()


def test_one_product_is_one_hit_and_products_with_one_picture_are_several(tmp_path, searching, capsys):
    """A row with several pictures, follow-up rows with a picture and nothing else, two products that share one."""
    lines = [["hat", "p0.jpg|p1.jpg", "a hat"], ["coat", "p2.jpg", "a coat"], ["coat", "p3.jpg", ""],
             ["bag", "p4.jpg", "a bag"], ["cap", "p4.jpg", "a cap"], ["gift", "", "a gift card"]]  # fmt: skip
    make = rows(["Handle", "Image Src", "Title"], *lines, names=[f"p{i}.jpg" for i in range(5)])
    assert "1 products have no picture" in searching(make(tmp_path), capsys, language="en")
    items = indexed(tmp_path)
    assert set(items) == {"hat", "hat#2", "coat", "coat#2", "bag", "cap", "gift"}
    assert load_index(tmp_path / "out/index").noise is not None
    assert items["coat#2"].captions == items["coat"].captions == (("en", "a coat"),) and items["gift"].path == ""
    assert (items["bag"].captions, items["cap"].captions) == ((("en", "a bag"),), (("en", "a cap"),))
    hits = search(load_index(tmp_path / "out/index"), ColorEmbedder(), [Query("a gift card")], top=9)[0].hits
    products = [hit.name.split("#")[0] for hit in hits]
    assert products[0] == "gift" and sorted(products) == ["bag", "cap", "coat", "gift", "hat"]


def test_pictures_within_the_table_are_kept_beside_the_index(tmp_path, searching, capsys):
    table = parquet(image=lambda images: images, text=["a", "b", "c", "d"])(tmp_path)
    for _ in range(2):
        searching(table, capsys, language="en")
        kept = sorted(path.read_bytes() for path in (tmp_path / "out/pictures").iterdir())
        assert sorted(map(load_index(tmp_path / "out/index").read_image, range(4))) == kept


def test_examples_are_of_different_pictures(tmp_path):
    head = ["sku", "image", "title_de", "title_en", "title_fr"]
    table = columns(head, "ab", ["p0.jpg", "p1.jpg"], ["Hut", "Rock"], ["hat|", "coat;"], ["rond"] * 2)(tmp_path)
    entries, _ = found(inspect_table(TableRequest(str(table))), tmp_path)
    asked = [(query.text, query.language, query.right) for query in catalogue._examples(entries, None)]
    assert asked == [("Hut", "de", ()), ("coat", "en", ()), ("rond", "fr", ())]  # there is no third picture


def test_what_a_model_does_not_know_is_said_last(tmp_path, source):
    make = rows(["image", "title_en", "title_ru"], *([f"p{i}.jpg", "thing " * 99, "жжж"] for i in range(4)))
    entries, _ = found(inspect_table(TableRequest(str(make(tmp_path)))), tmp_path)
    config = load_config(source / "config.json")
    trainer = training.CatalogueTrainer(tmp_path, str(source), config)
    model = types.SimpleNamespace(is_open=True, reading=None, encoder="LiteRT")
    lines = catalogue.last_lines(source, entries, trainer, model)
    assert "Note: this model does not know ru (100% of its word pieces are unknown)." in lines
    assert any("longer are captions in en (100%)" in line for line in lines) and "drawings" not in " ".join(lines)
    config.data.source = "emoji"
    for weights, knows in (
        ("", f"knows drawings of {config.image_tower.image_size} pixels"),
        ("package://lite0", "learned captions of drawings alone, on the picture tower package://lite0"),
    ):
        config.image_tower.weights = weights
        save_config(config, source / "config.json")
        assert catalogue.last_lines(source, entries, trainer, model)[0].startswith(
            f"Note: this model {knows}; for photographs --from=hf://"
        )
    model.is_open = False  # the captions were read when they were new
    assert len(catalogue.last_lines(source, entries, trainer, model)) == 1


def test_next_commands_parse(tmp_path):
    from mural_lite.command_line import find_command
    from mural_tf.commands import COMMANDS

    folder, said = tmp_path / "a shop's", 'it\'s $5; `x` "q"'
    (folder / "workdir/export/text_encoder").mkdir(parents=True)
    (folder / "workdir/summary.json").write_text("{}")
    table = text(f"image\tcaption\np0.jpg\t{said}\n")(tmp_path)
    entries, _ = found(inspect_table(TableRequest(str(table), language="en")), tmp_path)
    trainer = training.CatalogueTrainer(folder, "", None)
    lines = [line for line in catalogue.next_lines(folder, entries, trainer) if "python -m" in line]
    assert len(lines) == 4 and said in shlex.split(lines[0])
    for command in lines:
        words = shlex.split(command, comments=True)
        name, rest = find_command(COMMANDS, words[3:])
        before = set(flags.FLAGS)
        COMMANDS[name].define()
        known = set(flags.FLAGS) - before
        for flag in known:
            delattr(flags.FLAGS, flag)
        assert {re.match(r"--(\w+)=", word)[1] for word in rest if word.startswith("--")} <= known, command


@pytest.mark.slow
def test_from_a_table_to_a_search(tmp_path, export):
    lines = [row(i, photo=f"photos/p{i}.jpg") for i in range(24)]
    table = rows(HEAD, *lines, row(99, photo="none.webp"), names=[f"photos/p{i}.jpg" for i in range(24)])(tmp_path)
    where = [str(table), f"--output={tmp_path}/out", f"--from={export}"]
    small = ["--config.train.steps=2", "--config.train.image_text_batch=8"]
    command = [sys.executable, "-m", "mural_tf", "catalogue", *where, *small]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "25 rows: 24 used, 1 skipped, 0 left out" in first.stdout and "24 images in" in first.stdout
    assert (tmp_path / "out/examples.html").read_text().count("<section>") == 2
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0 and "is finished" in again.stdout and "24 as before" in again.stdout, again.stderr
    asked = next(line for line in again.stdout.splitlines() if "search query" in line and "--index=" in line)
    answer = subprocess.run([sys.executable, *shlex.split(asked)[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0 and (tmp_path / "found.html").is_file(), answer.stderr
    pairs = [TextPair(f"word {i}", "en", f"Wort {i}", "de") for i in range(40)]
    write_records(tmp_path / "more", TEXT_PAIRS, "train", pairs)
    taught = subprocess.run([*command, f"--translations={tmp_path}/more"], cwd=ROOT, capture_output=True, text=True)
    assert taught.returncode == 0, taught.stderr
    assert "56 translation pairs in 1 language: 84 steps of 8 pairs, adam at 0.004" in taught.stdout  # 16 of the table
    assert "out/index is of another model" in taught.stdout and "24 images in" in taught.stdout
    assert f"--model={tmp_path}/out/translated" in taught.stdout


@pytest.mark.parametrize("pairs_before, pairs_now", [(0, 90), (90, 0), (90, 120)])
def test_a_run_from_nothing_goes_on_with_the_batches_and_the_weight_of_its_beginning(tmp_path, pairs_before, pairs_now):
    """The table has grown, got its first translations, or lost them, while the run was interrupted."""
    counts = {"image_text": {"train": {"captions": 50}, "dev": {}}, "text_pairs": {"train": pairs_before}}
    (tmp_path / "dataset.json").write_text(json.dumps({"counts": counts}))
    first = training._with_data(base_config(), tmp_path, training.NOTHING)
    assert first.train.image_text_batch == 25
    (tmp_path / "workdir").mkdir()
    save_config(first, tmp_path / "workdir/config.json")
    counts = {"image_text": {"train": {"captions": 80}, "dev": {}}, "text_pairs": {"train": pairs_now}}
    (tmp_path / "dataset.json").write_text(json.dumps({"counts": counts}))
    again = training._restore_batches(
        training._with_data(base_config(), tmp_path, training.NOTHING), tmp_path / "workdir"
    )
    assert again.to_dict() == first.to_dict()
