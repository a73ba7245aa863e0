"""Tables as shops and people have them: what is said of each before anything is done, and what is read of it."""

import contextlib
import csv
import json
import os
import unicodedata

import convert_data
import pytest
from tqdm import tqdm

from mural_tf.errors import UserError
from mural_tf.ingest.tables.catalogue import RowTally, Store, TableRequest, fill, plain_text, understand
from mural_tf.ingest.tables.own_tables import _words_of_name

HATS = [f"red hat {i}" for i in range(4)]
NAMES = [f"p{i}.jpg" for i in range(4)]


def pictures(folder, names=NAMES):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(convert_data.image_bytes(number, 12, 10))


def table(head, *columns, names=NAMES):
    """Returns what writes a table of these columns, and pictures of these names."""

    def write(folder):
        pictures(folder, names)
        return written(folder, [head, *map(list, zip(*columns))])

    return write


def written(folder, rows):
    with (folder / "t.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return folder / "t.csv"


def workbook(folder):
    openpyxl = pytest.importorskip("openpyxl", reason="needs openpyxl: pip install -e '.[catalogue]'")
    pictures(folder)
    book = openpyxl.Workbook()
    book.active.append(["Spring catalogue"])
    book.active.merge_cells("A1:D1")
    for row in [["sku", "image", "title", "price"], *([i, NAMES[i], HATS[i], 5.0 + i] for i in range(4))]:
        book.active.append(row)
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx"


def objects(folder):
    pictures(folder)
    media = [{"file": NAMES[0], "width": 3}, {"file": NAMES[1]}]
    row = {"product": {"id": "A1", "media": media, "title": HATS[0]}}
    (folder / "t.jsonl").write_text(json.dumps(row) + "\n")
    return folder / "t.jsonl"


def shopify(folder):
    pictures(folder)
    address = "https://cdn.example/s/{}?v=1".format
    head = ["Handle", "Title", "Body (HTML)", "Variant SKU", "Image Src"]
    rows = [["hat", "Hat", "<p>A <b>f</b>ine hat &amp; more</p>", "1a", address(NAMES[0])],
            ["hat", "", "", "1b", address(NAMES[1])], ["hat", "", "", "1c", ""],
            ["coat", "Coat", "", "2", address(NAMES[2])]]  # fmt: skip
    return written(folder, [head, *rows])


def elsewhere(folder):
    pictures(folder / "photos")
    (folder / "tables").mkdir()
    return written(folder / "tables", [["image", "caption"], *([f"{folder}/photos/{n}", "a hat"] for n in NAMES)])


def from_the_shell(folder):
    pictures(folder / "photos")
    (folder / "tables").mkdir()
    os.chdir(folder)
    return written(folder / "tables", [["image", "caption"], *([f"photos/{n}", "a hat"] for n in NAMES)])


def folder_of(*names, beside=""):
    def write(folder):
        pictures(folder / "in", names)
        if beside:
            (folder / "in" / beside).write_text("image,caption\n")
        return folder / "in"

    return write


def content(text):
    def write(folder):
        (folder / "t.csv").write_text(text)
        return folder / "t.csv"

    return write


def odd_pictures(folder):
    pictures(folder)
    (folder / "p1.jpg").write_bytes(b"\0\0\0\x18ftypheic")
    (folder / "p2.jpg").write_text("<!doctype html>")
    (folder / "p3.jpg").write_bytes(b"%PDF-1.4")
    return written(folder, [["image", "caption"], *zip(NAMES, HATS)])


PAIRS = ["p0.jpg|p1.jpg", "p2.jpg | p3.jpg"]
WOO = ["https://shop.example/p0.jpg, https://shop.example/p1.jpg", "https://shop.example/p2.jpg"]
COMMAS = ["red, blue.jpg", "a;b.jpg", "p2.jpg", "p3.jpg"]
NFD = [unicodedata.normalize("NFD", "león.jpg"), *NAMES[1:]]
# name: (what makes it, what is said, items, captions, what is said of rows that are not used; "" of none)
TABLES = {
    "bars": (table(["sku", "Images", "Name"], "ab", PAIRS, HATS), "id: sku", 4, 4, ""),
    "WooCommerce": (table(["ID", "SKU", "Name", "Images"], "12", "ab", HATS, WOO), "id: ID", 3, 3, ""),
    "separators in names": (
        table(["image", "caption"], COMMAS, HATS, names=COMMAS), "4 of the first 4 are there", 4, 4, ""
    ),
    "objects in a list": (objects, "pictures: product.media.file", 2, 2, ""),
    "Shopify": (shopify, "id: Handle\n  fields: Body (HTML), Variant SKU\n  HTML in 1 of the first 4", 3, 3, ""),
    "workbook": (workbook, "Excel workbook\n  pictures: image", 4, 4, ""),
    "one picture, two products": (
        table(["sku", "image", "title", "color"], "abcd", ["p0.jpg"] * 4, HATS, "rgby"), "fields: color", 4, 4, ""
    ),
    "HTML": (table(["image", "caption"], NAMES, ["<p>A&nbsp;<b>r</b>ed hat</p>"] * 4), "HTML in 4 of the", 4, 4, ""),
    "two of one name": (
        table(["image", "title", "title", "image"], NAMES, HATS, HATS, NAMES[::-1]),
        "id: no column: a product is a picture\n  fields: title (3), image (4)\n  columns with the name of an earlier",
        4, 4, "",
    ),
    "no captions": (table(["sku", "image"], "abcd", NAMES), "captions: none, pictures are found by what", 4, 0, ""),
    "accents of a Mac": (
        table(["image", "caption"], ["LEÓN.JPG", *NAMES[1:]], HATS, names=NFD), "4 of the first 4", 4, 4, ""
    ),
    "addresses alone": (
        table(["image", "caption"], [f"https://x.example/{n}" for n in NAMES], HATS, names=()),
        "0 of the first 4 are there; addresses are not fetched here: download them with img2dataset", 0, 0,
        "4 x picture that is not there",
    ),
    "pictures elsewhere": (elsewhere, "0 of the first 4 are there, with --images={folder}/photos 4 are", 0, 0,
                           "4 x file name that leads out of its folder"),
    "names from the shell's folder": (from_the_shell, "0 of the first 4 are there, with --images=. 4 are", 0, 0,
                                      "4 x picture that is not there"),
    "odd pictures": (odd_pictures, "4 of the first 4 are there", 1, 1, "pip install pillow-heif"),
    "folder": (folder_of("red_hat.jpg", "x.jpg"), "none, pictures are found by what they show; --captions=n", 2, 0, ""),
    "folder and table": (folder_of("red_hat.jpg", beside="t.csv"), "in/t.csv` that table", 1, 0, ""),
    "empty": (content(""), "t.csv is empty: expected columns", 0, 0, None),
    "lines of nothing": (content("\n \n"), "t.csv is empty: expected columns", 0, 0, None),
    "names of columns": (content("image,caption\n"), "no rows that can be read", 0, 0, None),
    "one column": (content("a\nb\n"), "has one column only", 0, 0, None),
}  # fmt: skip


def counts(understood):
    """Returns how many items and different captions of pictures are read, and what is said of other rows."""
    tally = RowTally()
    with contextlib.closing(Store(":memory:")) as store:
        try:
            fill(understood, store, tally, tqdm(disable=True))
        except UserError as error:
            return 0, 0, str(error)
        ((items,),) = store.select("SELECT count(*) FROM items")
        ((captions,),) = store.select("SELECT count(*) FROM captions")
    return items, captions, "; ".join(tally.skipped.lines())


@pytest.mark.parametrize("name", TABLES)
def test_messy_tables(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    make, said, items, captions, skipped = TABLES[name]
    request = TableRequest(str(make(tmp_path)), language="english", max_skipped_fraction=0.8)
    if skipped is None:
        with pytest.raises(UserError, match=said):
            understand(request)
        return
    understood = understand(request)
    assert said.format(folder=tmp_path) in understood.describe()
    found = counts(understood)
    assert found[:2] == (items, captions) and skipped in found[2] and (skipped or not found[2])


def test_names_of_files_are_captions_where_they_are_words(tmp_path):
    pictures(tmp_path, ["red_hat-2.jpg", "IMG_0001.jpg", "UN LEÓN.jpg", "犬.jpg", "DSC-a.jpg"])
    (tmp_path / "UN LEÓN.txt").write_text("a lion")
    understood = understand(TableRequest(str(tmp_path), captions="names", language="en"))
    found = [caption[1] for row in understood.table.rows(None) for caption in understood.content_of(row).captions]
    assert (
        found == ["a lion", "red hat", "犬"] and [_words_of_name(stem) for stem in ("x1", "photo", "a b")] == [""] * 3
    )
    with pytest.raises(UserError, match="--captions=names is for a folder of pictures; .*t.csv has columns"):
        understand(TableRequest(str(written(tmp_path, [["image", "caption"], ["x.jpg", "y"]])), captions="names"))


@pytest.mark.parametrize("text, plain", [
    ("<p>A <b>f</b>ine hat &amp; more</p><p>yes", "A fine hat & more yes"), ("a < b > c &c", "a < b > c &c"),
    ("I <3 hats; <5 EUR>", "I <3 hats; <5 EUR>"), ("x<br/>y<style>p {}</style><!-- no -->z", "x y z"),
    ("<a href='http://x.example'>hat</a>", "hat"), ("R&D", "R&D"), ("<hat>", "<hat>"),
])  # fmt: skip
def test_html_is_read_as_text(text, plain):
    assert plain_text(text) == plain
