"""Somebody's own tables of pictures and captions: how they are understood, what becomes of every row, what is made."""

import codecs
import concurrent.futures.process
import contextlib
import csv
import gzip
import importlib
import io
import json
import os
import pathlib
import random
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import tarfile
import types
import unicodedata

import convert_data
import forked
import pytest
import toy_data
from absl import flags
from object_store import object_store, stored, upload
from search_data import ColorEmbedder
from tqdm import tqdm

from benchmarks import damage
from mural_tf import loading
from mural_tf.config_file import load_config, save_config
from mural_tf.configs.catalogue import get_config
from mural_tf.data.dataset_folder import describe
from mural_tf.data.record_format import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair
from mural_tf.data.records import find_files, read_records, write_records
from mural_tf.errors import UserError
from mural_tf.files import exclusive_lock, write_whole
from mural_tf.ingest.tables import catalogue, own_tables, table_columns
from mural_tf.ingest.tables.catalogue import RowTally, Store, TableRequest, fill, make_data_set, understand
from mural_tf.runs import finish
from mural_tf.search.index import load_index
from mural_tf.search.queries import Query, search
from mural_tf.text.vocabulary_file import save_vocabulary
from mural_tf.text_files import bounded_lines

runs = importlib.import_module("mural_tf.commands.catalogue")  # the package has a function of this name, too
ROOT = pathlib.Path(__file__).resolve().parents[2]
COLORS = {"de": ["rote", "blaue", "grüne"], "en": ["red", "blue", "green"], "ja": ["赤い", "青い", "緑の"]}
THINGS = {"de": ["Jacke", "Hose", "Mütze", "Bluse"], "en": ["jacket", "trousers", "hat", "blouse"],
          "ja": ["上着", "ズボン", "帽子", "ブラウス"]}  # fmt: skip


def title(number, language):
    words = f"{COLORS[language][number % 3]} {THINGS[language][number // 3 % 4]}"
    return f"{words} {number}"


def write_pictures(folder, count, ending="jpg"):
    folder.mkdir(parents=True, exist_ok=True)
    formats = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}
    for number in range(count):
        content = convert_data.image_bytes(number, 12, 10, formats[ending])
        (folder / f"p{number}.{ending}").write_bytes(content)


def write_csv(path, rows, delimiter=",", encoding="utf-8"):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\r\n").writerows(rows)
    path.write_bytes(text.getvalue().encode(encoding))
    return path


def wide(count):
    """A column for each language."""
    head = ["sku", "photo", "title_de", "title_en", "brand"]
    return [head, *([f"S{i}", f"p{i}.jpg", title(i, "de"), title(i, "en"), "acme"] for i in range(count))]


def read(table, **asked):
    """Reads a table; returns (what was understood, tally, {picture's name: [(language, text)]})."""
    understood = understand(TableRequest(str(table), **asked))
    tally = RowTally()
    with contextlib.closing(Store(":memory:")) as store:
        fill(understood, store, tally, tqdm(disable=True))
        query = (
            "SELECT name, language, text FROM items JOIN pictures ON pictures.number = picture "
            "LEFT JOIN captions ON item = items.number ORDER BY captions.rowid"
        )
        found = {}
        for name, language, text in store.select(query):
            found.setdefault(name, []).extend([(language, text)] if text else [])
    assert tally.read == tally.written + tally.skipped.total + tally.left_out.total
    return understood, tally, found


def make(table, output, examine=None):
    """Makes a data set of a table."""
    return make_data_set(understand(TableRequest(str(table))), output, examine, progress=False)


def expected(count, languages=("de", "en"), ending="jpg"):
    return {f"p{i}.{ending}": [(language, title(i, language)) for language in languages] for i in range(count)}


# --- forms of tables


@pytest.mark.parametrize("encoding, delimiter", [
    ("utf-8", ","), ("utf-8-sig", ";"), ("utf-16", "\t"), ("utf-16-le", "|"), ("cp1252", ";"), ("utf-8", "\t"),
])  # fmt: skip
def test_text_of_every_encoding_and_delimiter(tmp_path, encoding, delimiter):
    write_pictures(tmp_path, 4)
    ending = "tsv" if delimiter == "\t" else "csv"
    _, tally, found = read(write_csv(tmp_path / f"t.{ending}", wide(4), delimiter, encoding))
    assert found == expected(4) and tally.written == 4


def test_one_row_for_each_language(tmp_path):
    write_pictures(tmp_path / "images", 4)
    rows = [["image", "language", "caption"]]
    rows += [[f"p{i}.jpg", language, title(i, language)] for i in range(4) for language in ("de", "en", "ja")]
    understood, tally, found = read(write_csv(tmp_path / "t.csv", rows), images=str(tmp_path / "images"))
    assert found == expected(4, ("de", "en", "ja")) and tally.written == 12
    assert understood.columns.language == "language" and not understood.fields


def test_line_breaks_and_quotes_in_cells_and_separators_of_excel(tmp_path):
    write_pictures(tmp_path, 2)
    rows = [["photo", "caption", "language"], ["p0.jpg", 'a "red"\nhat; large', "en"], ["p1.jpg", "eine\r\nHose", "de"]]
    path = write_csv(tmp_path / "t.csv", rows, ";")
    path.write_bytes(b"sep=;\r\n" + path.read_bytes())
    _, _, found = read(path)
    assert found == {"p0.jpg": [("en", 'a "red" hat; large')], "p1.jpg": [("de", "eine Hose")]}


def test_decimal_commas_separate_no_columns(tmp_path):
    write_pictures(tmp_path, 6)
    rows = [[*row, "price" if place == 0 else f"{place},90"] for place, row in enumerate(wide(6))]
    path = write_csv(tmp_path / "t.csv", rows, ";")
    path.write_text(path.read_text().replace("p2.jpg;", 'p2.jpg;"'))  # one row is no longer as the others
    _, tally, found = read(path)
    assert set(found) == {f"p{i}.jpg" for i in (0, 1, 3, 4, 5)} and tally.skipped.total == 1


@pytest.mark.parametrize("opened", [[2], [2, 3]])
def test_quotes_that_nothing_closes_cost_their_rows_alone(tmp_path, opened):
    write_pictures(tmp_path, 6)
    path = write_csv(tmp_path / "t.csv", wide(6))
    for i in opened:
        path.write_text(path.read_text().replace(f"S{i},p{i}.jpg,", f'S{i},p{i}.jpg,"'))
    _, tally, found = read(path)
    kinds = {"row with a quote that nothing closes": [1, f"{path}:4"]}
    assert tally.skipped.total == len(opened) and (len(opened) > 1 or tally.skipped == kinds)
    broken = {f"p{i}.jpg" for i in opened}
    assert found == {name: texts for name, texts in expected(6).items() if name not in broken}


def test_json_in_every_form(tmp_path):
    write_pictures(tmp_path, 3)
    objects = [
        {"file_name": f"p{i}.jpg", "captions": {k: title(i, k) for k in ("de", "en")}, "price": 2.0} for i in range(3)
    ]
    lines = "".join(json.dumps(entry) + "\n" for entry in objects)
    (tmp_path / "t.jsonl").write_text(lines + "broken\n\n[1]\n")
    (tmp_path / "t.json").write_text(json.dumps({"rows": [*objects, 3]}))
    (tmp_path / "t.ndjson.gz").write_bytes(gzip.compress(lines.encode()))
    for name, skipped in (("t.jsonl", 2), ("t.json", 1), ("t.ndjson.gz", 0)):
        understood, tally, found = read(tmp_path / name)
        assert found == expected(3) and tally.skipped.total == skipped and tally.written == 3, name
        assert understood.fields == ["price"]


def test_parquet_with_the_pictures_in_it(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install -e '.[convert]'")
    import pyarrow as arrow

    images = [{"bytes": convert_data.image_bytes(i, 12, 10, "PNG"), "path": f"p{i}.jpg"} for i in range(4)]
    values = {
        "image": images,
        "text": [[title(i, "en"), f"thing {i}"] for i in range(4)],
        "height": [10.0, None, 3.0, 4.5],
    }
    pyarrow.write_table(arrow.table(values), tmp_path / "t.parquet", row_group_size=2)
    understood, tally, found = read(tmp_path / "t.parquet", language="en")
    assert understood.columns.image == "image.bytes" and "height" in understood.fields and tally.written == 4
    assert sorted(found[""]) == sorted(
        [("en", title(i, "en")) for i in range(4)] + [("en", f"thing {i}") for i in range(4)]
    )


def test_a_folder_of_pictures_with_texts_beside_them(tmp_path):
    write_pictures(tmp_path / "a", 4, "webp")
    write_pictures(tmp_path, 1)
    for i in range(2):
        (tmp_path / f"a/p{i}.de.txt").write_text(title(i, "de"))
        (tmp_path / f"a/p{i}.txt").write_bytes(codecs.BOM_UTF8 + f"en={title(i, 'en')}\n".encode())
    (tmp_path / "a/p2.txt").write_text(f"de={title(2, 'de')}\n\nen = {title(2, 'en')}\n")
    (tmp_path / "a/orphan.en.txt").write_text("nobody")
    _, tally, found = read(tmp_path)
    assert {name: sorted(texts) for name, texts in found.items()} == {
        **{f"a/{name}": texts for name, texts in expected(3, ending="webp").items()}, "a/p3.webp": [], "p0.jpg": []
    }  # fmt: skip
    assert tally.written == 5 and tally.skipped == {
        "text without a picture of its name": [1, f"{tmp_path}/a/orphan.en.txt"]
    }


def test_texts_beside_pictures_with_names_of_gettext(tmp_path):
    """One caption without a name, then lines as catalogues of programs name languages, rare ones too."""
    write_pictures(tmp_path, 2)
    lines = ["A red kangaroo.", "ach.utf8=Kangaru", "de_AT.utf8=Ein Känguru", "sr@latin.utf8=kengur", "pt.utf8="]
    (tmp_path / "p0.txt").write_text("\n".join(lines))
    (tmp_path / "p1.txt").write_text("A pea = a small thing\nach = no name of a language that has a shorter one")
    understood, tally, found = read(tmp_path, language="en")
    assert found["p0.jpg"] == [
        ("en", "A red kangaroo."), ("ach", "Kangaru"), ("de-AT", "Ein Känguru"), ("sr-Latn", "kengur")
    ]  # fmt: skip
    assert [language for language, _ in found["p1.jpg"]] == ["en", "en"] and tally.written == 2
    assert "caption.ach (ach)" in understood.describe() and understood.fields == []


@pytest.mark.parametrize("as_images", [True, False])
def test_what_img2dataset_has_downloaded(tmp_path, as_images):
    (tmp_path / "downloads").mkdir()
    rows = [["url", "title_de"]]
    with tarfile.open(tmp_path / "downloads/00000.tar", "w") as tar:
        for i in range(3):
            address = f"https://shop.example/{i}"
            rows.append([address, title(i, "de")])
            metadata = json.dumps({"url": address, "caption": title(i, "en"), "language": "en"}).encode()
            members = {"jpg": convert_data.image_bytes(i, 12, 10), "txt": title(i, "en").encode(), "json": metadata}
            for ending, content in members.items():
                info = tarfile.TarInfo(f"{i:09d}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    if as_images:
        rows.append(["https://shop.example/never", "nie"])
        _, tally, found = read(write_csv(tmp_path / "t.csv", rows), images=str(tmp_path / "downloads"))
        assert found == {f"https://shop.example/{i}": [("de", title(i, "de"))] for i in range(3)}
        assert tally.skipped.total == 1
    else:
        _, tally, found = read(tmp_path / "downloads")
        assert sorted(found[""]) == sorted(("en", title(i, "en")) for i in range(3)) and tally.written == 3


def test_several_files_alike(tmp_path):
    write_pictures(tmp_path, 4)
    write_csv(tmp_path / "t1.csv", wide(2))
    write_csv(tmp_path / "t2.csv", [wide(4)[0], *wide(4)[3:]])
    _, tally, found = read(tmp_path / "t*.csv")
    assert found == expected(4) and tally.written == 4


def test_files_of_stores_can_be_read():
    """They have no `read1`."""
    file = types.SimpleNamespace(read=io.BytesIO(b"one\ntwo\n").read)
    assert list(bounded_lines(file)) == [b"one\n", b"two\n"]


# --- which column is what


@pytest.mark.parametrize("names, columns", [
    (["Artikelnummer", "Bild", "Titel (DE)", "Titel (EN)"], {"Titel (DE)": "de", "Titel (EN)": "en"}),
    (["id", "path", "de", "en"], {"de": "de", "en": "en"}),
    (["product_id", "image_url", "name.de", "name.pt-BR"], {"name.de": "de", "name.pt-BR": "pt-BR"}),
    (["sku", "画像", "caption_deu", "caption_eng"], {"caption_deu": "de", "caption_eng": "en"}),
])  # fmt: skip
def test_names_of_columns(names, columns):
    rows = [
        own_tables.Row("", dict(zip(names, row)))
        for row in ([f"S{i}", f"p{i}.jpg", title(i, "de"), title(i, "en")] for i in range(9))
    ]
    found = table_columns.find_columns(rows, {}, lambda value: False)
    assert (found.identity, found.image, dict(found.captions)) == (names[0], names[1], columns)


def test_columns_without_names_are_known_by_what_they_hold(tmp_path):
    write_pictures(tmp_path, 6)
    rows = [[f"x-{i}a", title(i, "de"), f"p{i}.jpg", "de" if i % 2 else "nl", "acme"] for i in range(6)]
    understood, tally, _ = read(write_csv(tmp_path / "t.csv", rows))
    columns = understood.columns
    assert (columns.identity, dict(columns.captions), columns.image, columns.language) == ("1", {"2": ""}, "3", "4")
    assert tally.written == 6 and understood.fields == ["5"]


def test_words_that_are_also_codes_are_no_languages():
    divided = map(table_columns.split_language, ("title_alt", "image_id", "is_new", "title_max", "name"))
    assert [language for _, language in divided] == ["", "id", "", "", ""]
    rows = [own_tables.Row("", {"image": f"{i}.jpg", "image_id": str(i), "text": f"a hat {i}"}) for i in range(5)]
    assert dict(table_columns.find_columns(rows, {}, lambda value: False).captions) == {"text": ""}


def test_the_user_says_otherwise(tmp_path):
    write_pictures(tmp_path, 3)
    path = write_csv(tmp_path / "t.csv", wide(3))
    choice = ("image=photo", "caption.nl=title_de", "caption=title_en+brand", "id=brand")
    understood, _, found = read(path, columns=choice, language="en")
    assert found["p1.jpg"] == [("nl", title(1, "de")), ("en", title(1, "en"))]
    for wrong, message in [
        ("image=fotto", "did you mean 'photo'"),
        ("picture=photo", "is not understood"),
        ("image", "is not"),
    ]:
        with pytest.raises(UserError, match=message):
            understand(TableRequest(str(path), columns=(wrong,)))


def test_pictures_by_other_names(tmp_path):
    write_pictures(tmp_path / "images", 5)
    (tmp_path / "images" / unicodedata.normalize("NFD", "un león.jpg")).write_bytes(convert_data.image_bytes(9))
    names = [
        f"/somewhere/else/p{0}.jpg",
        "C:\\photos\\p1.JPG",
        "p2",
        f"{tmp_path}/images/p3.jpg",
        "../p4.jpg",
        unicodedata.normalize("NFC", "UN LEÓN.JPG"),
    ]  # as zips of other systems leave them
    rows = [["image", "caption"], *([name, f"hat {i}"] for i, name in enumerate([*names, "none.jpg"]))]
    asked = {"images": str(tmp_path / "images"), "language": "en"}
    understood, tally, _ = read(write_csv(tmp_path / "t.csv", rows), **asked)
    assert tally.written == 6 and "6 of the first 7 are there" in understood.describe()


def test_pictures_that_are_named_by_the_id(tmp_path):
    for i in range(4):
        (tmp_path / f"S{i}.jpg").write_bytes(convert_data.image_bytes(i, 12, 10))
    rows = [["sku", "title_de", "price"], *([f"S{i}", title(i, "de"), f"{i},99"] for i in range(4))]
    understood, tally, found = read(write_csv(tmp_path / "t.csv", rows))
    assert understood.columns.image == understood.columns.identity == "sku" and tally.written == 4
    assert found["S2"] == [("de", title(2, "de"))] and understood.fields == ["price"]


def test_several_pictures_of_one_row(tmp_path):
    write_pictures(tmp_path, 3)
    row = {"id": "S0", "images": ["p0.jpg", "p1.jpg", "p9.jpg"], "name": {"de": ["ein Hut", "Hut"], "en": "a hat"}}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "images": "p2.jpg"}) + "\n")
    made = make(tmp_path / "t.jsonl", tmp_path / "data")
    assert runs.report_of(made)["pictures"] == {"train": {"images": 3, "captions": 9}}
    assert {record.image_id for record in read_records(made, IMAGE_TEXT, "train")} == {"S0", "S0#2", "S0#3"}
    assert (
        "p9" not in (made / "skipped.tsv").read_text()
        and "picture that is not there" in (made / "skipped.tsv").read_text()
    )


def test_no_file_outside_the_folder_of_pictures_is_read(tmp_path):
    write_pictures(tmp_path / "images", 2)
    write_pictures(tmp_path / "secret", 3)
    (tmp_path / "images/link.jpg").symlink_to(tmp_path / "secret/p2.jpg")
    rows = [
        ["image", "caption"],
        ["p0.jpg", "a"],
        ["../secret/p2.jpg", "b"],
        [f"{tmp_path}/secret/p2.jpg", "c"],
        ["link.jpg", "d"],
    ]
    _, tally, found = read(
        write_csv(tmp_path / "t.csv", rows), images=str(tmp_path / "images"), language="en", max_skipped_fraction=1.0
    )
    assert list(found) == ["p0.jpg"] and tally.skipped.total == 3


@pytest.mark.parametrize("content, message", [
    ("a\nb\n", "has one column only"),
    ("", "t.csv is empty"),
    ("caption,price\nred hat,2\nblue hat,3\n", "No column of pictures is found among caption, price: name it"),
    (" \n\n", "t.csv is empty"),
    ("image,caption\n", "no rows that can be read, below its names"),
    (",".join(f"c{i}" for i in range(100_000)) + "\np0.jpg" + ",x" * 99_999, "has 100,000 columns, expected at most"),
    ("image,caption,language\np7.jpg,red,en\n", "no row can be used .*picture that is not there, first .*:2 .p7.jpg"),
])  # fmt: skip
def test_what_cannot_be_used_is_said_in_one_line(tmp_path, content, message):
    write_pictures(tmp_path, 2)
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "t.csv", max_skipped_fraction=1.0)


@pytest.mark.parametrize("form", ["folder", "table"])
def test_a_file_name_that_is_no_utf8_is_counted(tmp_path, monkeypatch, form):
    """Names that old cameras and zips of other systems leave: the row is not used, and the rest is made once."""
    write_pictures(tmp_path / "in", 4)
    for name in ("p0.jpg", "bad\udcff.jpg"):
        (tmp_path / "in" / name).with_suffix(".txt").write_text("en=a hat")
        (tmp_path / "in" / name).write_bytes(convert_data.image_bytes(7))
    table = tmp_path / "in" if form == "folder" else write_csv(tmp_path / "t\udcff.csv", wide(4))
    request = TableRequest(str(table), str(tmp_path / "in"))
    with monkeypatch.context() as patched:  # a terminal as `cli.run` leaves it
        patched.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii", "backslashreplace"))
        runs.catalogue(request, "", "", None, dry_run=True)
    for _ in range(2):
        made = make_data_set(understand(request), tmp_path / "data", progress=False)
    rows = runs.report_of(made)["rows"]
    assert (rows["used"], rows["skipped"]) == ((4, 1) if form == "folder" else (4, 0))
    assert form == "table" or "allow" in (made / "skipped.tsv").read_text() and "bad\\udcff.jpg" in describe(made)


def test_a_line_that_is_too_long_is_what_is_said_of_json(tmp_path, monkeypatch):
    monkeypatch.setattr(own_tables, "LONGEST_LINE", 1000)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b" " * 2000))
    with pytest.raises(UserError, match="t.json.gz:1: line of more than"):
        understand(TableRequest(str(tmp_path / "t.json.gz")))


@pytest.mark.parametrize("name, message", [
    ("t.ods", "save as .xlsx or as CSV"), ("t.xlsx", "no workbook that can be read"), ("empty", "holds no pictures"),
    ("nothing.csv", "There is no file"),
])  # fmt: skip
def test_what_is_no_table(tmp_path, name, message):
    pytest.importorskip("openpyxl", reason="needs openpyxl: pip install -e '.[catalogue]'")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    (tmp_path / "t.ods").write_bytes(b"PK")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        understand(TableRequest(str(tmp_path / name)))


# --- languages that nobody says


class FakeDetector:
    """Tells German from English by a word, and is not sure."""

    def __init__(self, tags):
        self.tags = tags or ("de", "en", "nl")

    def compute_language_confidence_values(self, text):
        values = {"de": 0.7, "nl": 0.25, "en": 0.05} if "ein" in text.split() else {"en": 0.7, "nl": 0.25, "de": 0.05}
        return [types.SimpleNamespace(language=tag, value=values[tag]) for tag in self.tags]


@pytest.fixture
def detector(monkeypatch):
    monkeypatch.setattr(table_columns, "_detector", FakeDetector)
    monkeypatch.setattr(table_columns, "_tag", lambda language: language)


def test_languages_are_guessed_from_many_captions(detector):
    guess = table_columns.Guess(["ein Hut"] * 60 + ["a hat"] * 40)
    assert set(guess.shares) == {"de", "en"} and guess("ein Rock") == "de" and guess("a skirt") == "en"
    alone = table_columns.Guess(["ein Hut"] * 20)
    assert set(alone.shares) == {"de"} and alone("a hat") == "de" and alone.describe() == "guessed: de 100%"
    assert table_columns.Guess([])("a hat") == "und"


def test_guessed_languages_are_marked(tmp_path, detector):
    write_pictures(tmp_path, 10)
    rows = [
        ["image", "caption", "language"],
        *([f"p{i}.jpg", f"ein Hut {i}", "" if i % 2 else "de"] for i in range(10)),
    ]
    made = make(write_csv(tmp_path / "t.csv", rows), tmp_path / "data")
    report = runs.report_of(made)
    assert report["captions"] == {"de": {"captions": 10, "guessed": 5, "pictures": 10}}
    assert "  de: 10 captions of 10 pictures, language guessed for 5" in runs.report_lines(report)


def test_languages_by_their_names(tmp_path, monkeypatch):
    german = types.SimpleNamespace(name="GERMAN", iso_code_639_1=types.SimpleNamespace(name="DE"))
    language = types.SimpleNamespace(all=lambda: [german])
    monkeypatch.setitem(sys.modules, "lingua", types.SimpleNamespace(Language=language))
    write_pictures(tmp_path, 2)
    rows = [["image", "caption", "language"], ["p0.jpg", "ein Hut", "German"], ["p1.jpg", "a hat", "Elvish"]]
    _, tally, found = read(write_csv(tmp_path / "t.csv", rows))
    assert found == {"p0.jpg": [("de", "ein Hut")]} and tally.skipped["unknown language"][1].endswith(
        "t.csv:3 (Elvish)"
    )


def test_without_a_guesser_the_language_is_asked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lingua", None)
    write_pictures(tmp_path, 2)
    table = write_csv(tmp_path / "t.csv", [["image", "caption"], ["p0.jpg", "a hat"], ["p1.jpg", "a skirt"]])
    with pytest.raises(UserError, match="give --language=de .* pip install lingua-language-detector"):
        understand(TableRequest(str(table)))


@pytest.mark.slow
def test_lingua_knows_a_column_of_two_languages():
    pytest.importorskip("lingua", reason="needs lingua: pip install -e '.[catalogue]'")
    guess = table_columns.Guess([title(i, language) for i in range(12) for language in ("de", "en")])
    assert set(guess.shares) == {"de", "en"} and guess("blaue Mütze") == "de" and guess("blue hat") == "en"


# --- records


def test_one_record_for_each_picture_and_pairs_of_its_captions(tmp_path):
    write_pictures(tmp_path, 30)
    (tmp_path / "copy.jpg").write_bytes((tmp_path / "p0.jpg").read_bytes())
    rows = [*wide(30), ["S0", "copy.jpg", "", "again", "bolt"], ["S1", "p1.jpg", title(1, "de"), "", ""],
            ["S50", "", "x", "y", ""], ["S2", "", "", "", "bolt"], ["S99", "p3.jpg", "", "red", "bolt"]]  # fmt: skip
    made = make(write_csv(tmp_path / "t.csv", rows), tmp_path / "data")
    records = {split: list(read_records(made, IMAGE_TEXT, split)) for split in ("train", "dev", "test")}
    assert {split: len(found) for split, found in records.items()} == {"train": 18, "dev": 6, "test": 6}
    found = {record.image_id: record for of_split in records.values() for record in of_split}
    assert set(found) == {f"S{i}" for i in range(30)} and len({record.image for record in found.values()}) == 30
    assert list(found["S0"].captions) == [title(0, "de"), title(0, "en"), "again"]
    assert len(set(found["S0"].caption_groups)) == 2 and len(set(found["S1"].caption_groups)) == 1
    pairs = list(read_records(made, TEXT_PAIRS, "train"))
    assert {(pair.text_a, pair.text_b) for pair in pairs} == {
        (found.captions[1], found.captions[0]) for found in records["train"]
    }
    assert {(pair.language_a, pair.language_b) for pair in pairs} == {("en", "de")}
    lines = [json.loads(line) for line in (made / "fields.jsonl").read_text().splitlines()]
    fields = {line["image_id"]: line["fields"] for line in lines if "name" not in line}
    assert fields["S2"] == {"sku": "S2", "brand": "acme, bolt"} and len(fields) == 29  # of a row without a picture
    items = {line["name"]: line for line in lines if "name" in line}  # two products share a picture
    assert items["S99"] == {
        "image_id": "S3", "name": "S99", "fields": {"brand": "bolt", "sku": "S99"}, "captions": [["en", "red"]]
    }  # fmt: skip
    assert items["S3"]["fields"]["brand"] == "acme" and len(items["S3"]["captions"]) == 2
    assert len(found["S3"].captions) == 3
    skipped = (made / "skipped.tsv").read_text().splitlines()
    kinds = sorted(line.split("\t")[0] for line in skipped)
    assert kinds == [catalogue.DUPLICATE, "row without a picture"]
    assert runs.report_of(made)["rows"] == {"read": 35, "used": 33, "skipped": 1, "left_out": 1}


def test_pictures_of_one_product_and_products_with_one_picture_share_a_split(tmp_path):
    write_pictures(tmp_path, 60)
    rows = [["sku", "image", "caption", "language"]]
    rows += [[f"S{i // 3}", f"p{i}.jpg", f"hat {i}", "en"] for i in range(60)]  # three pictures each
    rows += [["S1", "p0.jpg", "shared", "en"], ["S2", "p0.jpg", "shared too", "en"]]  # with S0
    made = make(write_csv(tmp_path / "t.csv", rows), tmp_path / "data")
    split_of = {}
    for split in ("train", "dev", "test"):
        for record in read_records(made, IMAGE_TEXT, split):
            split_of.setdefault(record.image_id.split("#")[0], set()).add(split)
    assert all(len(splits) == 1 for splits in split_of.values()) and len(split_of) == 20
    assert split_of["S0"] == split_of["S1"] == split_of["S2"]


@pytest.mark.parametrize(
    "products, held", [(1, 0), (2, 0), (3, 1), (10, 2), (100, 20), (500, 50), (5000, 500), (50_000, 1000)]
)
def test_sizes_of_splits(products, held):
    assert catalogue.held_out(products) == held


def test_pictures_without_captions_can_be_found_and_are_not_trained_on(tmp_path):
    write_pictures(tmp_path, 12)
    rows = [["image", "caption", "language"], *([f"p{i}.jpg", "" if i < 3 else f"hat {i}", "en"] for i in range(12))]
    made = make(write_csv(tmp_path / "t.csv", rows), tmp_path / "data")
    assert len(find_files(made, IMAGE_TEXT, catalogue.WITHOUT_CAPTIONS)) == 1
    counts = runs.report_of(made)["pictures"]
    assert counts[catalogue.WITHOUT_CAPTIONS] == {"images": 3, "captions": 0}
    assert sum(of_split["captions"] for of_split in counts.values()) == 9
    assert any("3 pictures have no caption" in line for line in runs.report_lines(runs.report_of(made)))


def test_damaged_pictures_cost_their_rows(tmp_path):
    write_pictures(tmp_path, 6)
    (tmp_path / "p0.jpg").write_bytes(b"no picture")
    (tmp_path / "p1.jpg").write_bytes((tmp_path / "p1.jpg").read_bytes()[:-40])
    (tmp_path / "p2.jpg").write_bytes(b"")
    _, tally, found = read(write_csv(tmp_path / "t.csv", wide(6)))
    assert set(found) == {"p3.jpg", "p4.jpg", "p5.jpg"} and tally.skipped.total == 3
    with pytest.raises(UserError, match="Too much is unusable: 3 of 6 rows"):
        read(tmp_path / "t.csv", max_skipped_fraction=0.4)


def test_the_same_table_gives_the_same_data_set_once(tmp_path):
    write_pictures(tmp_path, 9)
    path = write_csv(tmp_path / "t.csv", wide(9))
    made = make(path, tmp_path / "data")
    before = convert_data.contents(made)
    times = [file.stat().st_mtime_ns for file in sorted(made.rglob("*"))]
    make(path, tmp_path / "data")
    assert times == [file.stat().st_mtime_ns for file in sorted(made.rglob("*"))]
    again = make(path, tmp_path / "again")
    assert convert_data.contents(again) == before
    path.write_text(path.read_text().replace("acme", "bolt"))
    assert "bolt" in (make(path, tmp_path / "data") / "fields.jsonl").read_text()
    (tmp_path / "data/dataset.json").write_text('{"name": "emoji"}')
    with pytest.raises(UserError, match="holds another data set"):
        make(path, tmp_path / "data")


def test_nothing_is_left_of_a_run_that_fails(tmp_path, monkeypatch):
    """Neither at first nor when the data set follows its table: until that has ended well, what was there stays."""
    write_pictures(tmp_path, 9)
    path = write_csv(tmp_path / "t.csv", wide(9))

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    for there in (None, convert_data.contents):
        before = there and there(tmp_path / "data")
        with monkeypatch.context() as patched, pytest.raises(UserError, match="disk is full. Check the free space"):
            patched.setattr(catalogue.Store, "add_row", full)
            make(path, tmp_path / "data")
        assert (tmp_path / "data").exists() == bool(there) and not list(tmp_path.glob(".data*partial"))
        assert not there or convert_data.contents(tmp_path / "data") == before
        assert make(path, tmp_path / "data").is_dir()
        write_csv(path, wide(8))


def test_pictures_that_are_there_are_not_made_again(tmp_path, monkeypatch):
    """Of a changed table only new pictures are decoded, and the data set is what it would be of the table alone."""
    write_pictures(tmp_path, 12)
    path = write_csv(tmp_path / "t.csv", wide(10))
    make(path, tmp_path / "data")
    decoded = []
    opened = catalogue.open_image
    monkeypatch.setattr(catalogue, "open_image", lambda data: decoded.append(data) or opened(data))
    write_csv(path, [wide(1)[0], *wide(12)[3:]])
    made = convert_data.contents(make(path, tmp_path / "data"))
    assert set(decoded) == {(tmp_path / f"p{i}.jpg").read_bytes() for i in (10, 11)}
    assert made == convert_data.contents(make(path, tmp_path / "again"))


def test_what_a_model_was_trained_on_stays_in_train(tmp_path):
    write_pictures(tmp_path, 30)
    path = write_csv(tmp_path / "t.csv", wide(20))
    made = make(path, tmp_path / "data")
    before = {split: {one.image_id for one in read_records(made, IMAGE_TEXT, split)} for split in ("train", "dev")}
    assert before["train"] == runs._trained_on(made)
    write_csv(path, wide(30)[:1] + wide(30)[4:])
    make_data_set(understand(TableRequest(str(path))), made, progress=False, known=lambda: before["train"])
    gone = {"S0", "S1", "S2"}
    for split in ("dev", "test"):
        assert not before["train"] & {one.image_id for one in read_records(made, IMAGE_TEXT, split)}
    assert before["train"] - gone <= {one.image_id for one in read_records(made, IMAGE_TEXT, "train")}
    assert before["dev"] & {one.image_id for one in read_records(made, IMAGE_TEXT, "dev")}


@pytest.fixture
def source(tmp_path):
    """What is read of a workdir before anything is done."""
    (tmp_path / "source").mkdir()
    save_config(toy_data.toy_config(tmp_path / "toy"), tmp_path / "source/config.json")
    save_vocabulary(toy_data.toy_tokenizer().vocabulary, tmp_path / "source/vocabulary.txt")
    return tmp_path / "source"


def test_what_a_model_makes_of_the_captions_is_counted(tmp_path, source):
    write_pictures(tmp_path, 5)
    rows = [
        ["image", "caption", "language"],
        *([f"p{i}.jpg", "ж " * 200 if i else "hat", "ru" if i else "en"] for i in range(5)),
    ]
    examine = runs._examination(str(source))
    made = make(write_csv(tmp_path / "t.csv", rows), tmp_path / "data", examine)
    russian = runs.report_of(made)["captions"]["ru"]
    assert russian["cut"] == 4 and russian["unknown"] == russian["pieces"]
    lines = runs.report_lines(runs.report_of(made))
    assert (
        "  ru: 4 captions of 4 pictures, 4 longer than the model reads, 100% of the pieces unknown to the model"
        in lines
    )


def make_until_killed(table, output, row):
    """Makes a data set in a process that kills itself in a row."""
    add = Store.add_row

    def add_or_die(self, *arguments):
        if self.rows == row:
            os.kill(os.getpid(), signal.SIGKILL)
        return add(self, *arguments)

    Store.add_row = add_or_die
    make(table, output)


@pytest.mark.slow
def test_a_killed_run_starts_again_cleanly(tmp_path):
    write_pictures(tmp_path, 9)
    path = write_csv(tmp_path / "t.csv", wide(9))
    for row in (0, 5, 8):
        with pytest.raises(concurrent.futures.process.BrokenProcessPool):
            forked.call(make_until_killed, path, tmp_path / "data", row)
        assert not (tmp_path / "data").exists()
    killed = convert_data.contents(make(path, tmp_path / "data"))
    assert killed == convert_data.contents(make(path, tmp_path / "again")) and not list(tmp_path.glob(".*partial"))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "folder"])
def test_a_bucket_gives_and_takes_the_same_records(tmp_path, monkeypatch, form):
    pytest.importorskip("apache_beam", reason="needs Apache Beam: pip install -e '.[convert]'")
    write_pictures(tmp_path / "in", 6)
    if form == "folder":
        for i in range(6):
            (tmp_path / f"in/p{i}.txt").write_text(f"de={title(i, 'de')}\nen={title(i, 'en')}\n")
    else:
        write_csv(tmp_path / "in/t.csv", [*wide(5), ["S5", "P5.JPG", "x", "y", "z"]])
    name = "in" if form == "folder" else "in/t.csv"
    expected = convert_data.contents(make(tmp_path / name, tmp_path / "out"))
    with object_store(monkeypatch) as client:
        upload(client, tmp_path / "in", "in")
        make(f"s3://bucket/{name}", "s3://bucket/out")
        found = stored(client, "out")
    assert found.keys() == expected.keys()
    for file, content in found.items():
        assert file == "dataset.json" or content == expected[file], file


# --- damaged tables


def good_table(folder, form):
    """A table of twelve rows, each in a line of its own where it is text; returns its file."""
    write_pictures(folder, 12)
    if form == "csv":
        return write_csv(folder / "t.csv", wide(12))
    if form == "tsv":
        return write_csv(folder / "t.tsv", wide(12), "\t", "utf-16")
    objects = [dict(zip(wide(1)[0], row)) for row in wide(12)[1:]]
    if form == "jsonl":
        (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in objects))
    elif form == "json":
        (folder / "t.json").write_text(json.dumps(objects, indent=0))
    else:
        import pyarrow as arrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(arrow.Table.from_pylist(objects), folder / "t.parquet", row_group_size=4)
    return folder / f"t.{form}"


def mutate(folder, form, seed):
    """Damages a table and reads it; nothing that is whole may be lost without being counted."""
    draw = random.Random(f"{form} {seed}")
    path = good_table(folder, form)
    good = path.read_bytes()
    ways = {"parquet": damage.BINARY, "json": damage.JSON, "jsonl": damage.JSON}.get(form, damage.LINES)
    content, how = damage.damaged(draw, good, ways)
    path.write_bytes(content)
    try:
        _, tally, found = read(path, max_skipped_fraction=1.0)
    except UserError as error:
        assert str(error).strip() and "Traceback" not in str(error), how
        return
    if form in ("csv", "jsonl"):
        was, lines = (re.split(rb"\r\n|\r|\n", table) for table in (good, content))
        whole = [i for i in range(12) if was[i + (form == "csv")] in lines]
        # Without the header in its place a column is taken for captions, and the others are fields.
        languages = ("de",) if form == "jsonl" or lines[0] == was[0] else ("de", "en")
        missing = [
            i
            for i in whole
            if not any((language, title(i, language)) in found.get(f"p{i}.jpg", ()) for language in languages)
        ]
        assert len(missing) <= tally.skipped.total + tally.left_out.total, (how, missing, tally.lines())


FORMS = ("csv", "tsv", "jsonl", "json", "parquet")


@pytest.mark.parametrize("form", FORMS)
def test_mutated_tables(tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install -e '.[convert]'")
    for seed in range(4):
        mutate(tmp_path, form, seed)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_hundred_mutated_tables(tmp_path, form):
    for seed in range(4, 44):
        mutate(tmp_path, form, seed)


# --- the command


def test_a_model_must_be_named(tmp_path):
    write_pictures(tmp_path, 3)
    request = TableRequest(str(write_csv(tmp_path / "t.csv", wide(3))))
    with pytest.raises(UserError, match="a workdir or an export .* TF-Hub .* import labse .* --from=nothing"):
        runs.catalogue(request, tmp_path / "out", "", None)
    with pytest.raises(UserError, match="--from=.*/none: there is no such workdir"):
        runs.catalogue(request, tmp_path / "out", str(tmp_path / "none"), None)
    assert not (tmp_path / "out").exists()


def test_translations_are_looked_for_before_the_table_is_read(tmp_path, source):
    write_pictures(tmp_path, 3)
    request = TableRequest(str(write_csv(tmp_path / "t.csv", wide(3))))
    toy_data.write_toy_data(tmp_path / "toy")
    (tmp_path / "none").mkdir()
    (tmp_path / "labse").mkdir()
    with pytest.raises(UserError, match="--translations=.*/none: there is no text_pairs/train-.*`python -m mural_tf"):
        runs.catalogue(request, tmp_path / "out", str(source), None, [str(tmp_path / "toy"), str(tmp_path / "none")])
    config = load_config(source / "config.json")
    config.model = "labse"
    save_config(config, tmp_path / "labse/config.json")
    with pytest.raises(UserError, match="the stage starts from a model with an image-text head; .*labse is labse"):
        runs.catalogue(request, tmp_path / "out", str(tmp_path / "labse"), None, [str(tmp_path / "toy")])
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_is_understood(tmp_path, capsys):
    write_pictures(tmp_path, 3)
    path = write_csv(tmp_path / "t.csv", wide(3), ";")
    assert runs.catalogue(TableRequest(str(path)), "", "", None, dry_run=True) is None
    printed = capsys.readouterr().out
    assert "columns separated by ';'" in printed and "captions: title_de (de), title_en (en)" in printed
    assert "fields: brand" in printed and "id: sku" in printed and "--columns=image=" in printed


def test_a_second_process_is_told_in_one_line(tmp_path):
    write_pictures(tmp_path, 3)
    request = TableRequest(str(write_csv(tmp_path / "t.csv", wide(3))))
    (tmp_path / "out").mkdir()
    with exclusive_lock(tmp_path / "out/catalogue.lock"):
        with pytest.raises(UserError, match="Another process is at work in .*out: wait for it"):
            runs.catalogue(request, tmp_path / "out", "nothing", None)


def test_examples_are_of_different_pictures(tmp_path):
    languages = ["de", "en", "fr"]
    records = [
        ImageTextRecord(f"S{i}", b"x", [f"{name}{i}" for name in languages], languages, ["g"] * 3) for i in (0, 1)
    ]
    write_records(tmp_path, IMAGE_TEXT, "dev", records)
    counts = {name: {"captions": count} for name, count in zip(languages, (2, 5, 3))}
    described = {"rows": {}, "captions": counts, "counts": {"image_text": {}, "text_pairs": {}}}
    (tmp_path / "dataset.json").write_text(json.dumps({**described, "skipped": {}, "left_out": {}}))
    found = [(query.text, query.right) for query in runs._examples(tmp_path, "")]
    assert found == [("en0", ("S0",)), ("fr1", ("S1",)), ("de0", ("S0",))]  # there is no third picture


@pytest.fixture
def searching(tmp_path, monkeypatch):
    """Runs the command with a model of colours; returns what it printed."""
    embedder = ColorEmbedder()
    monkeypatch.setattr(loading, "load", lambda *_: embedder)
    runs._embedder.cache_clear()
    (tmp_path / "model").mkdir()

    def run(table, capsys, train=False, **asked):
        request = TableRequest(str(table), **asked)
        assert runs.catalogue(request, tmp_path / "out", str(tmp_path / "model"), get_config(), train=train)
        return capsys.readouterr().out

    yield run
    runs._embedder.cache_clear()


def indexed(folder):
    index = load_index(folder / "out/index")
    return {item.name: item for row, item in enumerate(index.table) if row not in index.removed}


def test_the_index_follows_its_table(tmp_path, searching, monkeypatch, capsys):
    """New rows enter, gone ones leave, changed ones are as they are now; a trained model stays."""
    write_pictures(tmp_path, 12)
    table = write_csv(tmp_path / "t.csv", wide(10))
    assert "Nothing is trained: --train=no. " in searching(table, capsys)
    assert "holds this table already" in searching(table, capsys)
    monkeypatch.setattr(finish, "is_finished", lambda workdir: workdir.name == "workdir")
    (tmp_path / "out/workdir").mkdir()
    write_csv(table, [wide(10)[0], *wide(12)[2:]])
    table.write_text(table.read_text().replace(f"{title(5, 'en')},acme", "a cap,bolt"))
    make(table, tmp_path / "out/data")  # as a run leaves it that was killed before the index
    printed = searching(table, capsys)
    assert "The index follows the table: 2 new, 1 gone." in printed and "not tuned on what is new: `rm -r " in printed
    found = indexed(tmp_path)
    assert set(found) == {row[0] for row in wide(12)[2:]}
    assert found["S5"].fields["brand"] == "bolt" and ("en", "a cap") in found["S5"].captions


def test_a_folder_of_pictures_alone_is_indexed(tmp_path, searching, capsys):
    write_pictures(tmp_path / "in", 3)
    printed = searching(tmp_path / "in", capsys, train=True)
    assert "captions: none, pictures are found by what they show; --captions=names" in printed
    assert "Nothing is trained: 0 captions are too few to learn from, 32 are needed." in printed
    assert set(indexed(tmp_path)) == {"p0.jpg", "p1.jpg", "p2.jpg"}
    assert "Pictures like p1.jpg" in (tmp_path / "out/search.html").read_text()


def test_an_index_of_another_model_is_made_anew(tmp_path, searching, monkeypatch, capsys):
    write_pictures(tmp_path, 4)
    table = write_csv(tmp_path / "t.csv", wide(4))
    searching(table, capsys)
    runs._embedder.cache_clear()
    monkeypatch.setattr(loading, "load", lambda *_: ColorEmbedder(seed=1))
    assert "is of another model than colors" in searching(table, capsys) and len(indexed(tmp_path)) == 4


def test_one_product_is_one_hit_and_products_with_one_picture_are_several(tmp_path, searching, capsys):
    """A row with several pictures, follow-up rows with a picture and nothing else, and two products that share one."""
    write_pictures(tmp_path, 8)
    rows = [["Handle", "Image Src", "Title"], ["hat", "p0.jpg|p1.jpg", "a hat"], ["coat", "p2.jpg", "a coat"],
            ["coat", "p3.jpg", ""], ["bag", "p4.jpg", "a bag"], ["cap", "p4.jpg", "a cap"]]  # fmt: skip
    searching(write_csv(tmp_path / "t.csv", rows), capsys, language="en")
    found = indexed(tmp_path)
    assert set(found) == {"hat", "hat#2", "coat", "coat#2", "bag", "cap"}
    assert found["coat#2"].captions == found["coat"].captions == (("en", "a coat"),)
    assert (found["bag"].captions, found["cap"].captions) == ((("en", "a bag"),), (("en", "a cap"),))
    hits = search(load_index(tmp_path / "out/index"), ColorEmbedder(), [Query("red")], top=9)[0].hits
    assert sorted(hit.name.split("#")[0] for hit in hits) == ["bag", "cap", "coat", "hat"]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]


def test_a_model_of_texts_alone_is_refused_before_the_table_is_read(tmp_path, searching, monkeypatch, capsys):
    config = get_config()
    config.image_tower.name = "none"
    monkeypatch.setattr(loading, "load", lambda *_: types.SimpleNamespace(config=config))
    write_pictures(tmp_path, 2)
    table = write_csv(tmp_path / "t.csv", wide(2))
    with pytest.raises(UserError, match="model is a model of texts alone, which cannot index pictures"):
        searching(table, capsys)
    assert not (tmp_path / "out/data").exists()
    request = TableRequest(str(table))
    for source, translations, message in ((runs.NOTHING, (), "nothing is no"), (str(tmp_path), ("d",), "ns teaches")):
        with pytest.raises(UserError, match=message):
            runs.catalogue(request, tmp_path / "out", source, None, translations, train=False)


def test_next_commands_parse(tmp_path):
    from mural_tf.cli import find_command
    from mural_tf.commands import COMMANDS

    folder = tmp_path / "a shop's"
    (folder / "workdir/export/text_encoder").mkdir(parents=True)
    record = ImageTextRecord("S1", convert_data.image_bytes(1), ['it\'s $5; `x` "q"'], ["en"], ["g"])
    for split in ("dev", "test"):
        write_records(folder / "data", IMAGE_TEXT, split, [record])
    described = {"rows": {}, "captions": {"en": {"captions": 1}}, "counts": {"image_text": {}, "text_pairs": {}}}
    (folder / "data/dataset.json").write_text(json.dumps({**described, "skipped": {}, "left_out": {}}))
    write_whole(folder / "workdir/summary.json", "{}")
    model = runs._searching(folder, "")
    commands = [line for line in runs.next_lines(folder, model) if "python -m" in line]
    assert len(commands) == 4
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[:3] == ["python", "-m", "mural_tf"]
        name, rest = find_command(COMMANDS, words[3:])
        before = set(flags.FLAGS)
        COMMANDS[name].define()
        known = set(flags.FLAGS) - before
        for flag in known:
            delattr(flags.FLAGS, flag)
        assert {re.match(r"--(\w+)=", word)[1] for word in rest if word.startswith("--")} <= known, command
    assert record.captions[0] in shlex.split(commands[0])


@pytest.mark.slow
def test_from_a_table_to_a_search(tmp_path, export):
    write_pictures(tmp_path / "photos", 24, "webp")
    rows = [[cell.replace(".jpg", ".webp") for cell in row] for row in wide(24)]
    table = write_csv(tmp_path / "t.csv", [*rows, ["S99", "none.webp", "x", "y", "z"]], ";", "utf-16")
    where = [str(table), f"--images={tmp_path}/photos", f"--output={tmp_path}/out", f"--from={export}"]
    small = ["--config.train.steps=2", "--config.train.image_text_batch=8"]
    command = [sys.executable, "-m", "mural_tf", "catalogue", *where, *small]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "25 rows: 24 used, 1 skipped, 0 left out" in first.stdout and "24 pictures in" in first.stdout
    page = (tmp_path / "out/search.html").read_text()
    assert page.count("<section>") == 2 and page.count("First right answer") + page.count("No right answer") == 2
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0 and "holds this table already" in again.stdout, again.stderr
    assert "is finished" in again.stdout
    search = next(line for line in again.stdout.splitlines() if "search query" in line and "--index=" in line)
    found = subprocess.run([sys.executable, *shlex.split(search)[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0 and (tmp_path / "found.html").is_file(), found.stderr
    pairs = [TextPair(f"word {i}", "en", f"Wort {i}", "de") for i in range(40)]
    write_records(tmp_path / "more", TEXT_PAIRS, "train", pairs)
    taught = subprocess.run([*command, f"--translations={tmp_path}/more"], cwd=ROOT, capture_output=True, text=True)
    assert taught.returncode == 0, taught.stderr
    assert "56 translation pairs in 1 language: 84 steps of 8 pairs, adam at 0.004" in taught.stdout  # 16 of the table
    assert "out/index is of another model" in taught.stdout and "24 pictures in" in taught.stdout
    assert f"--model={tmp_path}/out/translated" in taught.stdout
