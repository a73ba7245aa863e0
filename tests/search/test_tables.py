"""Tables as shops and people have them: what is said of each before anything is done, and what is read of it."""

import contextlib
import csv
import gzip
import io
import json
import pathlib
import random
import re
import shutil
import sys
import tarfile
import types
import unicodedata

import pytest
import smooth_pictures
import table_data
from refusals import assert_refused
from table_data import (
    HATS,
    NAMES,
    WIDE,
    assert_table,
    columns,
    elsewhere,
    folder_of,
    found,
    parquet,
    pictures,
    rows,
    text,
    texts_of,
    workbook,
)

from benchmarks import damage
from mural_lite.errors import UserError
from mural_search.catalogue import items_of
from mural_search.tables import own_tables, product_table, products, table_columns
from mural_search.tables.product_table import TableRequest, inspect_table, keep_guesses
from mural_search.tables.products import RowTally, read


def odd_pictures(folder):
    made = columns(["image", "caption"], NAMES, HATS)(folder)
    for name in ("p1.jpg", "p2.jpg"):
        (folder / name).unlink()
    (folder / "p1.jpg").symlink_to("/etc/passwd")
    (folder / "p2.jpg").mkdir()
    return made


def download(folder):
    (folder / "in").mkdir()
    with tarfile.open(folder / "in/00000.tar", "w") as tar:
        for i in range(3):
            described = json.dumps({"url": f"https://x.example/{i}", "caption": HATS[i], "language": "en"}).encode()
            members = {"jpg": smooth_pictures.image_bytes(i, 12, 10), "txt": HATS[i].encode(), "json": described}
            for ending, content in members.items():
                info = tarfile.TarInfo(f"{i:09d}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return folder / "in"


def packed_download(folder):
    """webdataset packs shards, too."""
    tar = download(folder) / "00000.tar"
    (folder / "in/00000.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    tar.unlink()
    return folder / "in"


def of_download(folder, make=download):
    make(folder)
    addresses = [f"https://x.example/{i}" for i in range(4)]
    return columns(["url", "title"], addresses, HATS, names=())(folder)


SHOP = pathlib.Path(__file__).resolve().parents[2] / "samples/shop"
CDN = "https://cdn.example/s/{}?v=1".format
WOO_HEAD = ["ID", "Type", "UGS", "Nom", "Publié", "Description", "Images", "Parent"]
WOO = [
    ["10", "variable", "W0", "Chapeau", "1", r"<p>Rouge</p>\n",
        f"{CDN('p0.jpg')}, {CDN('p1-scaled.jpg')}", ""],
    ["11", "variation", "W0-M", "Chapeau - M", "1", "", "", "W0"],
    ["12", "variation", "W0-L", "Chapeau - L", "1", "", CDN("p0-300x200.jpg"), "id:10"],
    ["13", "simple", "W1", "Manteau", "0", "", CDN("p2.jpg"), ""],
    ["14", "variation", "W1-M", "Manteau - M", "1", "", CDN("p2.jpg"), "W1"],
    ["15", "simple", "W2", "Bon d'achat", "1", "", "", ""],
]  # fmt: skip
SHOPIFY = [
    ["Handle", "Title", "Body (HTML)", "Variant SKU", "Image Src", "Status"],
    ["hat", "Hat", "<p>A <b>f</b>ine hat &amp; more</p>", "1a", CDN("p0.jpg"), "active"],
    ["hat", "", "", "1b", CDN("p1.jpg"), ""], ["hat", "", "", "1c", "", ""],
    ["coat", "Coat", "", "2", CDN("p2.jpg"), "draft"], ["coat", "", "", "2b", CDN("p3.jpg"), ""],
]  # fmt: skip
GOOGLE = [
    ["id", "title", "image_link", "additional_image_link", "item_group_id"],
    ["1", "red hat", "p0.jpg", "p1.jpg,p2.jpg", "g"], ["2", "red hat M", "p0.jpg", "", "g"],
        ["3", "bag", "p3.jpg", "", ""],
]  # fmt: skip


def several(*names):
    """Returns what writes tables of a row each, and a pattern of their names."""

    def write(folder):
        for n, name in enumerate(names):
            pictures(folder, [f"p{n}.jpg"])
            said = json.dumps([OBJECTS[n]]) if name.endswith("json") else f"image,caption\np{n}.jpg,hat {n}\n"
            (folder / name).write_text(said)
        return folder / "part*"

    return write


COMMAS = ["red, blue.jpg", "a;b.jpg", "p2.jpg", "p3.jpg"]
NFD = [unicodedata.normalize("NFD", "león.jpg"), *NAMES[1:]]
JAPANESE_NAMES = ["赤いシャツ", "赤いシャツです", "青い帽子", "緑の帽子"]
JAPANESE = columns(["品番", "画像", "商品名"], "abcd", NAMES, JAPANESE_NAMES, encoding="shift_jis")
SHEET = [["sku", "photo", "title"], *([f"A{i}", NAMES[i], HATS[i]] for i in range(4))]
OBJECTS = [{"id": i, "image": NAMES[i], "caption": HATS[i]} for i in range(4)]
GETTEXT = "A red kangaroo.\nach.utf8=Kangaru\nde_AT.utf8=Ein Känguru\nsr@latin.utf8=kengur\npt.utf8="

# name: what makes it; tests/snapshots/tables/ has what is said and read of each.
TABLES = {
    # forms of text
    "UTF-16 without a mark": rows(*WIDE, delimiter="|", encoding="utf-16-le"),
    "semicolons, Windows": rows(*WIDE, ["S0", "", "Müsli", "", ""], delimiter=";", encoding="cp1252"),
    "Excel's separators where commas agree as well": text("sep=;\nphoto;title, long\np0.jpg;hat, red\n"),
    "decimal commas": rows(*[[*line, f"{n},90" if n else "price"] for n, line in enumerate(WIDE)], delimiter=";"),
    "backslashes": text('sku,photo,title\n' + "".join(f'A{i},p{i}.jpg,"a hat, 15\\" wide {i}"\n' for i in range(4))),
    "spaces after commas": text("sku, photo, title\n" + "".join(f'A{i}, p{i}.jpg, "hat, {i}"\n' for i in range(4))),
    "an open quote": text('photo,title\np0.jpg,hat\np1.jpg,"coat\np2.jpg,bag\np3.jpg,cap\n'),
    "more columns": text("photo,title\np0.jpg,hat\np1.jpg,coat,red\np2.jpg,bag\n"),
    "broken bytes": text("photo,title\np0.jpg,hat\np1.jpg,c\udcffat\np2.jpg,bär\n".replace("\udcff", "\x00")),
    "Shift-JIS": JAPANESE,
    "a long cell": text("photo,title\np0.jpg,hat\np1.jpg," + "x" * 140_000 + "\np2.jpg,bag\n"),
    "no file": lambda folder: folder / "none.csv",
    "two files": several("part0.csv", "part1.csv"),
    "two kinds": several("part0.csv", "part1.json"),
    "cut off": lambda folder: _cut_off(rows(*WIDE)(folder)),
    "empty": text(""),
    "lines of nothing": text("\n \n"),
    "names of columns": text("image,caption\n"),
    "one column": text("a\nb\n"),
    "no pictures": text("caption,price\nred hat,2\nblue hat,3\n"),
    "too many columns": text(",".join(f"c{i}" for i in range(16_385)) + "\np0.jpg" + ",x" * 16_384),
    "another spreadsheet": text("PK", "t.ods"),
    # JSON
    "objects in a list": table_data.lines({"product": {"id": "A1", "media": [{"file": "p0.jpg", "w": 3},
        {"file": "p1.jpg"}], "title": "hat"}}),
    "lines named .json": table_data.lines(*OBJECTS, name="t.json"),
    "a list named .jsonl": text(json.dumps(OBJECTS, indent=1), "t.jsonl"),
    "lines with commas": table_data.lines(*OBJECTS, end=",\n"),
    "a line that is broken": text("\n".join(map(json.dumps, OBJECTS)) + "\n{oh", "t.jsonl"),
    "within": text(json.dumps({"total": 4, "tags": ["x"], "items": OBJECTS}), "t.json"),
    "an object": text(json.dumps(OBJECTS[2]), "t.json"),
    "another entry": text(json.dumps([*OBJECTS, 5]), "t.json"),
    "a number": text("5", "t.json"),
    "an empty object": table_data.lines({"id": "a", "image": "p0.jpg", "title": "hat", "size": {}}),
    "deep objects": table_data.lines({"id": "a", "image": "p0.jpg", "title": "hat",
        "a": {"b": {"c": {"d": {"e": "far"}}}}}),
    "no JSON": text("[oh", "t.json"),
    # workbooks
    "title above": workbook(["Spring"], *SHEET),
    "size A1": workbook(*SHEET, dimension=b"A1"),
    "size too small": workbook(*SHEET, dimension=b"A1:B2"),
    "merged cells": workbook(SHEET[0], ["A0", "p0.jpg", "a hat"], [None, "p1.jpg", None], ["A2", "p2.jpg", "a coat"],
        change=table_data.merged),
    "chart": workbook(*SHEET, change=table_data.chart),
    "damaged workbook": text("PK\3\4", "t.xlsx"),
    # Parquet
    "pictures within": parquet(image=lambda images: [{"bytes": one, "path": ""} for one in images], text=[["a",
        "b"]] * 4, height=[1.0, None, 3.0, 4.5]),
    "lists of pictures": parquet(sku=["a", "b"], images=lambda images: [images[:2], images[2:]], title=["hat", "bag"]),
    "null in front": parquet(sku=["a", "b"], image=lambda images: [None, images[0]], title=["hat", "bag"]),
    # which column is what
    "a row a language": rows(["image", "language", "caption"], ["p0.jpg", "de", "Hut"], ["p0.jpg", "en", "hat"],
        ["p1.jpg", "xx-", "?"]),
    "German": columns(["Artikelnummer", "Bild", "Titel (DE)", "Titel (EN)"], "abcd", NAMES, HATS, HATS),
    "languages": columns(["id", "path", "de", "pt-BR"], "abcd", NAMES, HATS, HATS),
    "no names": rows(*([f"x-{i}a", f"a hat {i}", f"p{i}.jpg", "de" if i % 2 else "en", "acme"] for i in range(4))),
    "caption_id": columns(["image", "caption", "caption_id"], NAMES, HATS, "1000 1001 1002 1003".split()),
    "title_id": columns(["image", "title_id", "name"], NAMES, ["17", "18", "19", "20"], HATS),
    "two of one name": columns(["image", "title", "title"], NAMES, HATS, HATS),
    "no captions": columns(["sku", "image"], "abcd", NAMES),
    "HTML": columns(["image", "caption"], NAMES, ["<p>A&nbsp;<b>r</b>ed hat</p>"] * 4),
    "codes that repeat": columns(["lot", "image", "title"], ["A1", "A1", "A2", "A3"], NAMES, HATS),
    "prices that differ": columns(["price", "image", "title"], "1.50 2.50 3.50 4.50".split(), NAMES, HATS),
    "whole prices that differ": columns(["Preis", "stock", "image", "title"], [10, 11, 12, 13], [5, 16, 7, 18],
        NAMES, HATS),
    # pictures
    "two of one name, in folders": columns(["image", "title"], ["x.jpg", "p3.jpg"], HATS, names=["a/x.jpg", "b/x.jpg",
        "p3.jpg"]),
    "image_1, image_2": columns(["sku", "image_1", "image_2", "title_en"], "ab", NAMES[:2], NAMES[2:], HATS),
    "separators": columns(["image", "caption"], COMMAS, HATS, names=COMMAS),
    "in subfolders": rows(["Handle", "Title", "Image Src"], *([NAMES[i][:2], HATS[i],
        CDN(f"{NAMES[i]}")] for i in range(4)), names=[f"sub/{i}/{name}" for i, name in enumerate(NAMES)]),
    "two guesses": rows(["Handle", "Title", "Image Src"], *([NAMES[i][:2], HATS[i],
        CDN(f"x{i}.jpg")] for i in range(4))),
    "by the id": columns(["sku", "title", "price"], ["p0", "P1", "p2", "p3"], HATS, "1234"),
    "accents": columns(["image", "caption"], ["LEÓN.JPG", *NAMES[1:]], HATS, names=NFD),
    "other systems' paths": columns(["image", "caption"], ["/else/p0.jpg", "C:\\x\\p1.JPG", "p2", "../p3.jpg"], HATS),
    "sixty rows": columns(["image", "caption"], [f"{n}.jpg" for n in range(60)], [f"a hat {n}" for n in range(60)]),
    "addresses alone": columns(["image", "caption"], [f"https://x.example/{n}" for n in NAMES], HATS, names=()),
    "elsewhere": elsewhere("tables", "{folder}/photos/{name}"),
    "above": elsewhere("tables", "../photos/{name}"),
    "above, in signs": elsewhere("tables", "%2e%2e/photos/{name}"),
    "from the shell's folder": elsewhere("tables", "photos/{name}"),
    "odd pictures": odd_pictures,
    "img2dataset": download,
    "img2dataset, packed": packed_download,
    # products
    "WooCommerce": rows(WOO_HEAD, *WOO),
    "a number of two products": rows(WOO_HEAD, WOO[0], ["20", "simple", "W0", "Manteau", "1", "", CDN("p3.jpg"), ""],
        ["11", "variation", "", "Chapeau - M", "1", "", CDN("p2.jpg"), "W0"]),
    "Shopify": rows(*SHOPIFY),
    "Google": rows(*GOOGLE),
    "one picture, two products": columns(["sku", "image", "title", "color"], "abcd", ["p0.jpg"] * 4, HATS, "rgby"),
    "repeated": rows(["sku", "image", "title"], *[["a", "p0.jpg", "hat"]] * 2, ["a", "", ""], ["", "", ""]),
    "words alone": rows(["image", "title", "price"], ["p0.jpg", "hat", "3"], ["", "coat", "4"], ["", "", "5"]),
    # folders
    "folder": folder_of("red_hat.jpg", "x.jpg", "@eaDir/x.jpg/y.jpg", "film.mp4"),
    "folder and table": folder_of("red_hat.jpg", t_csv="image,caption\n"),
    "texts beside pictures": folder_of("p0.jpg", "p1.webp", p0_de_txt="Hut", p0_txt="en=hat\n",
        p1_txt="de=Rock\n\nen = skirt", q_en_txt="?"),
    "texts of gettext": folder_of("p0.jpg", "p1.jpg", p0_txt=GETTEXT, p1_txt="A pea = a thing\nach = no language"),
    "the shop of samples": lambda folder: shutil.copytree(SHOP, folder / "shop") / "products.csv",
    "nothing": folder_of(t_txt="x"),
}  # fmt: skip


def _cut_off(path):
    packed = gzip.compress(path.read_bytes().ljust(9000, b"\n"), 0)
    (path.parent / "t.csv.gz").write_bytes(packed[:120])
    return path.parent / "t.csv.gz"


@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    csv.field_size_limit(131_072)  # Python's own; the reader of WIT raises it for its process
    assert_table(f"tables/{name}", TABLES[name], tmp_path, language="english", max_skipped_fraction=0.8)


# What a cell holds, and what is read of it.
CELLS = {
    "hat": "hat", 'a "red" hat': 'a "red" hat', "hat, large": "hat, large", "hat; small": "hat; small", "": "",
    "two\nlines": "two lines", "tab\there": "tab here", " in  spaces ": "in spaces", "Hüte für alle": "Hüte für alle",
    "<p>bold <b>h</b>at</p>": "bold hat", "R&amp;D": "R&D", "a | b": "a | b", "0": "0", "it's -5%": "it's -5%",
    "赤い帽子": "赤い帽子", "#1": "#1", "back\\slash": "back\\slash",
}  # fmt: skip
FORMS_OF_ROWS = {
    ",": lambda lines, names: rows(*lines, names=names),
    ";": lambda lines, names: rows(*lines, names=names, delimiter=";"),
    "UTF-16": lambda lines, names: rows(*lines, names=names, delimiter="\t", encoding="utf-16"),
    "BOM": lambda lines, names: rows(*lines, names=names, delimiter="|", encoding="utf-8-sig"),
    "xlsx": lambda lines, names: workbook(*lines, names=names),
    ".json": lambda lines, names: text(json.dumps(objects(lines), indent=0), "t.json", names),
    ".jsonl": lambda lines, names: table_data.lines(*objects(lines), names=names),
    "Parquet": lambda lines, names: parquet(names, **{name: list(of) for name, *of in zip(*lines)}),
}  # fmt: skip


def objects(table):
    return [dict(zip(table[0], line)) for line in table[1:]]


@pytest.mark.parametrize("form", FORMS_OF_ROWS)
def test_every_form_of_a_table_says_the_same(tmp_path, form):
    """Products of one to three rows, each row with up to two pictures: beside what a dictionary holds of them."""
    draw = random.Random(form)
    table, expected, names = [["sku", "image", "title_de", "title_en", "brand", "price"]], {}, []
    unused, used = 0, 0
    for n in range(40):
        for size in range(draw.choice([1, 1, 1, 2, 3])):
            own = [f"p{n}-{size}-{k}.jpg" for k in range(draw.choice([1, 1, 2, 0 if size else 1]))]
            lost = draw.random() < 0.1 and len(own) == 1
            said = [draw.choice(list(CELLS)), draw.choice(list(CELLS)), draw.choice(list(CELLS)), str(5 + n)]
            table.append([f"S{n}", "|".join(own), *said])
            if lost:
                unused += 1
                continue
            used, names = used + 1, names + own
            captions = [(tag, CELLS[cell]) for tag, cell in (("de", said[0]), ("en", said[1])) if CELLS[cell]]
            fields = {"sku": f"S{n}", "brand": CELLS[said[2]], "price": said[3]}
            expected.setdefault(f"S{n}", []).append((own, captions, {k: v for k, v in fields.items() if v}))
    make = FORMS_OF_ROWS[form](table, names)
    tally = RowTally()
    entries = read(inspect_table(TableRequest(str(make(tmp_path)))), tally, tmp_path / "kept")
    got = {}
    for entry in entries:
        got.setdefault(entry.product, []).append(entry)
    assert (tally.skipped.total, tally.written + tally.left_out.total, got.keys()) == (unused, used, expected.keys())
    for product, of_rows in expected.items():
        of_rows.sort(key=lambda row: not row[0])  # rows without a picture add to the others
        files, captions = ([part for row in of_rows for part in row[place]] for place in (0, 1))
        assert [entry.file and entry.file.name for entry in got[product]] == (files or [None])
        numbered = [f"{product}#{number}" for number in range(2, len(files) + 1)]
        assert [entry.name for entry in got[product]] == [product, *numbered]
        assert {caption for entry in got[product] for caption in entry.captions} == set(captions)
        first = got[product][0]
        assert list(first.captions)[: len(of_rows[0][1])] == of_rows[0][1]
        assert len(of_rows) > 1 or texts_of(first) == of_rows[0][2]


WOO_TABLE, WIDE_TABLE = rows(WOO_HEAD, *WOO), rows(*WIDE)
STOCK = columns(["GTIN, UPC, EAN, or ISBN", "photo", "title", "stock"], "abcd", NAMES, HATS, ["0", "3", "", "12 pcs"])
TWO_PICTURES = columns(["sku", "a", "b"], "x", ["p0.jpg"], ["p1.jpg"])
ABOVE = {"stock": [lambda text, groups: text[:1].isdigit() and int(text.split()[0]) > 0]}
HIDDEN = {"Publié": [lambda text, groups: text == "0"]}
ROLES = ("image=photo", "caption.nl=title_de", "caption=title_en+brand", "id=brand")
ASKED = {  # what makes a table, and what the user says of it
    "roles": (WIDE_TABLE, {"columns": ROLES}),
    "captions by a stem": (WIDE_TABLE, {"columns": ("caption=title",)}),
    "a name that is near": (WIDE_TABLE, {"columns": ("image=fotto",)}),
    "an unknown role": (WIDE_TABLE, {"columns": ("picture=photo",)}),
    "no role": (WIDE_TABLE, {"columns": ("photo",)}),
    "a name with commas": (STOCK, {"columns": ("id=GTIN", "UPC", "EAN", "or ISBN")}),
    "two columns of pictures": (TWO_PICTURES, {"columns": ("image=a+b",)}),
    "conditions": (STOCK, {"where": ABOVE, "columns": ("id=gtin upc ean or isbn",)}),
    "a condition of an unknown column": (STOCK, {"where": {"prize": []}}),
    "all rows": (WOO_TABLE, {"all_rows": True}),
    "only what is not for sale": (WOO_TABLE, {"where": HIDDEN}),
    "an encoding": (JAPANESE, {"encoding": "shift_jis"}),
    "an unknown encoding": (JAPANESE, {"encoding": "shift-jess"}),
    "names as captions of a table": (WIDE_TABLE, {"captions": "names"}),
    "pictures of a download": (of_download, {"images": "in"}),
    "pictures of packed tars": (lambda folder: of_download(folder, packed_download), {"images": "in"}),
    "no folder of pictures": (WIDE_TABLE, {"images": "nowhere"}),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_user_says_otherwise(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    make, asked = ASKED[name]
    assert_table(f"tables_asked/{name}", make, tmp_path, **{"language": "en", "max_skipped_fraction": 0.9, **asked})


def test_what_entries_hold(tmp_path):
    """A product's digest changes with its own rows, and rows of one product tell each other their fields."""
    variations, _ = found(inspect_table(TableRequest(str(WOO_TABLE(tmp_path)), language="fr")), tmp_path)
    digests = [entry.digest() for entry in variations]
    renamed, described = [*WOO[1][:3], "Chapeau - XM", *WOO[1][4:]], [*WOO[5][:5], "50 EUR", "", ""]
    changed = rows(WOO_HEAD, WOO[0], renamed, *WOO[2:5], described)
    again, _ = found(inspect_table(TableRequest(str(changed(tmp_path)), language="fr")), tmp_path)
    assert [a == entry.digest() for a, entry in zip(digests, again)] == [True, True, False]
    several = columns(["sku", "image", "title_en", "colour"], "aaa", NAMES, ["hat", "", ""], ["red", "blue", ""])
    of_one = found(inspect_table(TableRequest(str(several(tmp_path)))), tmp_path)[0]
    assert [texts_of(one)["colour"] for one in of_one] == ["red", "blue", "red"]  # the first says it for all


def test_values_of_several_rows_are_each_a_value(tmp_path):
    """Next to the rows of its sizes a product's own list of sizes says nothing more."""
    sizes = rows(["ID", "Name", "Size", "Price", "Parent", "Images"], ["1", "hat", "36, 37", "", "", "p0.jpg"],
        ["2", "", "36", "19.90", "id:1", ""], ["3", "", "37", "24.90", "id:1", ""])(tmp_path)  # fmt: skip
    tally = RowTally()
    (hat,) = read(inspect_table(TableRequest(str(sizes), language="en")), tally, tmp_path)
    assert (hat.fields["Size"], hat.fields["Price"], tally.written) == (["36", "37"], ["19.90", "24.90"], 3)
    item, _ = next(items_of([hat]))
    assert (item.fields["Size"], item.several["Size"]) == ("36, 37", ("36", "37"))


def test_a_picture_of_another_folder_is_not_taken(tmp_path):
    wanted = ["shoes/1.png", "Shoes/2.png", "2.png", "https://x.example/pictures/2.jpg"]
    make = columns(["image", "caption"], wanted, HATS, names=["shoes/2.jpg", "hats/1.jpg"])
    entries, skipped = found(inspect_table(TableRequest(str(make(tmp_path)), language="en")), tmp_path)
    assert [(str(entry.file.relative_to(tmp_path)), len(entry.captions)) for entry in entries] == [("shoes/2.jpg", 3)]
    assert "1 x picture that is not there" in skipped and "(shoes/1.png)" in skipped


def test_products_that_a_shop_hides_are_left_out(tmp_path):
    """Those that WooCommerce hides in its catalogue, and a 0 as pandas writes it."""
    head = ["ID", "Name", "Published", "Visibility in catalog", "Images"]
    hidden = [["1", "mug", "1", "hidden", "p0.jpg"], ["2", "cap", "0.0", "visible", "p1.jpg"]]
    table = rows(head, *hidden, ["3", "hat", "1.0", "visible", "p2.jpg"])(tmp_path)
    entries, skipped = found(inspect_table(TableRequest(str(table), language="en")), tmp_path)
    assert [entry.name for entry in entries] == ["3"]
    assert "1 x row that is not for sale (Visibility in catalog: hidden)" in skipped
    assert "1 x row that is not for sale (Published: 0)" in skipped


def test_a_product_may_be_called_as_a_second_picture(tmp_path):
    make = columns(["id", "title_en", "image"], ["A", "A#2"], ["hat", "cap"], ["p0.jpg|p1.jpg", "p2.jpg"])
    entries, _ = found(inspect_table(TableRequest(str(make(tmp_path)))), tmp_path)
    assert [(entry.name, entry.product) for entry in entries] == [("A", "A"), ("A#2", "A"), ("A#2#2", "A#2")]


def test_ids_and_article_numbers_that_are_equal_numbers(tmp_path):
    """Drafts and parents are of one product, also where another product's article number is its id."""
    head = ["ID", "SKU", "Name", "Published", "Parent", "Images"]
    drafts = rows(head, ["44", "7", "mug", "0", "", "p0.jpg"], ["7", "8", "cap", "1", "", "p1.jpg"])
    entries, _ = found(inspect_table(TableRequest(str(drafts(tmp_path)), language="en")), tmp_path)
    assert [entry.name for entry in entries] == ["7"]
    mug, cap = ["1", "44", "mug", "1", "", "p0.jpg"], ["44", "", "cap", "1", "", "p1.jpg"]
    for parent, product in (("id:44", "44"), ("44", "1")):
        table = rows(head, mug, cap, ["45", "", "", "1", parent, "p2.jpg"])(tmp_path)
        entries, _ = found(inspect_table(TableRequest(str(table), language="en")), tmp_path)
        assert [entry.product for entry in entries] == ["1", "44", product]


def test_a_workbook_has_a_bounded_number_of_rows(tmp_path, monkeypatch):
    made = workbook(*SHEET, change=lambda book: book.active.cell(9000, 1, "x"))(tmp_path)
    monkeypatch.setattr(own_tables, "MOST_ROWS", 4)
    assert len(list(own_tables.open_table(str(made)).rows(None))) == 3
    for most, words in ((made.stat().st_size, "too large to be held in memory: save it"), (1000, "memory: cut it up")):
        monkeypatch.setattr(own_tables, "LARGEST", most)  # of the file, which is larger unpacked
        assert_refused(lambda: list(own_tables.open_table(str(made)).rows(None)), [words])


@pytest.mark.parametrize(("row", "column"), [(2**31 - 1, 0), (1, 2**31 - 1), (-2, 0)])
def test_a_picture_outside_of_the_sheet_is_left_out(tmp_path, row, column):
    """Its row is a number from the file, up to which rows would be counted."""

    def with_pictures(book):
        from openpyxl.drawing.image import Image
        from openpyxl.drawing.spreadsheet_drawing import AnchorMarker, OneCellAnchor

        for corner in (AnchorMarker(col=column, row=row), AnchorMarker(col=3, row=1)):
            picture = Image(tmp_path / "p0.jpg")
            picture.anchor = OneCellAnchor(_from=corner)
            book.active.add_image(picture)

    made = workbook(*SHEET, change=with_pictures)(tmp_path)
    said = []
    table = own_tables.open_table(str(made))
    table.heading.say = said.append
    rows = list(table.rows(None))
    assert said == [f"a picture in row {row + 1}, column {column + 1} is outside of the sheet"]
    assert len(rows) == len(SHEET) - 1
    assert rows[0].values["column 4"] == ((tmp_path / "p0.jpg").read_bytes(),)


def test_names_of_files_are_captions_where_they_are_words(tmp_path):
    names = ["red_hat-2.jpg", "IMG_0001.jpg", "UN LEÓN.jpg", "犬.jpg", "DSCN0002-1.jpg"]
    folder = folder_of(*names, **{"UN LEÓN_txt": "a lion"})(tmp_path)
    entries, _ = found(inspect_table(TableRequest(str(folder), captions="names", language="en")), tmp_path)
    assert [text for entry in entries for _, text in entry.captions] == ["a lion", "red hat", "犬"]


def test_texts_next_to_pictures_may_have_another_encoding(tmp_path):
    folder = folder_of("p0.jpg", "p1.jpg")(tmp_path)
    (folder / "p1.txt").write_text("a hat")
    (folder / "p0.txt").write_text("красная шляпа", encoding="cp1251")
    entries, skipped = found(inspect_table(TableRequest(str(folder), language="ru")), tmp_path)
    assert len(entries) == 2
    assert "1 x text next to a picture in an unknown encoding, see --encoding" in skipped
    named = inspect_table(TableRequest(str(folder), language="ru", encoding="cp1251"))
    entries, skipped = found(named, tmp_path)
    assert [text for entry in entries for _, text in entry.captions] == ["красная шляпа", "a hat"]
    assert not skipped


def test_cells_of_several_lines_are_cells(tmp_path):
    """In any column; a cell in the first one is closed on a line with all other columns, a picture among them."""
    (tmp_path / "first").mkdir()
    first = 'caption,image\n"red\nhat",p0.jpg\ncoat,p1.jpg\n'
    entries, skipped = found(inspect_table(TableRequest(str(text(first)(tmp_path / "first")), language="en")), tmp_path)
    assert [entry.name for entry in entries] == ["p0.jpg", "p1.jpg"] and not skipped
    lines = ["sku,title,images,info", 'S0,hat,"p0.jpg,\np1.jpg",new', "S1,coat,p2.jpg,old"]
    lines.append('S2,bag,p3.jpg,"Made of felt.\nPictures: front, https://x.example/2.jpg\nWash it cold."')
    entries, skipped = found(inspect_table(TableRequest(str(text("\n".join(lines))(tmp_path)))), tmp_path)
    assert [entry.name for entry in entries] == ["S0", "S0#2", "S1", "S2"]
    assert not skipped


@pytest.mark.parametrize("form", ["folder", "table"])
def test_a_file_name_that_is_no_utf8_is_counted(tmp_path, form):
    """Names that old cameras and zips of other systems leave."""
    table = folder_of("p0.jpg", "bad\udcff.jpg", p0_txt="a hat")(tmp_path)
    if form == "table":
        table = text("image,caption\np0.jpg,hat\n", "t\udcff.csv", ())(table)
    entries, skipped = found(inspect_table(TableRequest(str(table), language="en")), tmp_path)
    assert [entry.name for entry in entries] == ["p0.jpg"]
    assert ("1 x text that its encoding" in skipped) == (form == "folder")


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


def test_languages_are_guessed_from_many_captions(tmp_path, detector):
    guess = table_columns.Guess(["ein Hut"] * 60 + ["a hat"] * 40)
    assert set(guess.shares) == {"de", "en"} and guess("ein Rock") == "de" and guess("a skirt") == "en"
    alone = table_columns.Guess(["ein Hut"] * 20)
    assert set(alone.shares) == {"de"} and alone("a hat") == "de" and alone.describe() == "guessed: de 100%"
    assert table_columns.Guess([])("a hat") == "und"
    head = ["image", "caption", "title", "language"]
    make = columns(head, NAMES, ["ein Hut"] * 4, ["a hat"] * 4, ["", "de", "", "de"])
    inspected = inspect_table(TableRequest(str(make(tmp_path)), columns=("caption=caption+title",)))
    assert "captions: caption (by language), title (by language)" in inspected.describe()
    entries, _ = found(inspected, tmp_path)
    assert entries[0].captions == {("de", "ein Hut"): (0, True), ("en", "a hat"): (0, True)}
    assert entries[1].captions == {("de", "ein Hut"): (1, False), ("de", "a hat"): (1, False)}


def test_equal_captions_are_guessed_once(tmp_path, detector, monkeypatch):
    """From a file next to the index; one that is damaged, or of other captions, is not taken."""
    make = columns(["image", "caption"], NAMES, ["ein Hut", "a hat"] * 2)
    request = TableRequest(str(make(tmp_path)), guesses=str(tmp_path / "languages.json"))
    inspected = inspect_table(request)
    before, _ = found(inspected, tmp_path)
    keep_guesses(inspected)
    detected = []
    monkeypatch.setattr(table_columns, "_detector", lambda tags: detected.append(tags) or FakeDetector(tags))
    inspected = inspect_table(request)
    assert found(inspected, tmp_path)[0] == before and "guessed: " in inspected.describe() and not detected
    columns(["image", "caption"], NAMES[:2], ["a hat", "a hat"])(tmp_path)  # rows that are gone change no language
    assert found(inspect_table(request), tmp_path)[0][0].captions == {("en", "a hat"): (0, True)} and not detected
    make(tmp_path)
    for content in ("[]", "{", '{"a": 1}', '{"a": {"shares": {"de": "x"}}}'):
        (tmp_path / "languages.json").write_text(content)
        assert found(inspect_table(request), tmp_path)[0] == before and detected
        detected.clear()
    keep_guesses(inspected)
    columns(["image", "caption"], NAMES, ["ein Hut", "a coat"] * 2)(tmp_path)
    assert found(inspect_table(request), tmp_path)[0] != before and detected


def test_languages_are_guessed_from_the_whole_table(tmp_path, detector, monkeypatch):
    for module in (product_table, products):
        monkeypatch.setattr(module, "SAMPLE", 20)
    captions = [f"a hat {n}" for n in range(30)] + [f"ein Hut {n}" for n in range(10)]
    made = columns(["id", "image", "caption"], range(40), NAMES * 10, captions)(tmp_path)
    inspected = inspect_table(TableRequest(str(made)))
    assert "guessed: en 100%" in inspected.describe()
    entries, _ = found(inspected, tmp_path)
    languages = [language for entry in entries for language, _ in entry.captions]
    assert languages == ["en"] * 30 + ["de"] * 10


def test_languages_by_their_names(tmp_path, monkeypatch):
    german = types.SimpleNamespace(name="GERMAN", iso_code_639_1=types.SimpleNamespace(name="DE"))
    language = types.SimpleNamespace(all=lambda: [german])
    monkeypatch.setitem(sys.modules, "lingua", types.SimpleNamespace(Language=language))
    make = columns(["image", "caption", "language"], NAMES, ["ein Hut", "a hat"], ["German", "Elvish"])
    entries, skipped = found(inspect_table(TableRequest(str(make(tmp_path)))), tmp_path)
    assert list(entries[0].captions) == [("de", "ein Hut")]
    assert "unknown language, first at" in skipped and "(Elvish)" in skipped


def test_without_readers_and_a_disk(tmp_path, monkeypatch):
    """A workbook is to be saved as CSV, a language asked for; a disk that fails is no damage."""
    inspected, sheet = inspect_table(TableRequest(str(WIDE_TABLE(tmp_path)))), workbook(*SHEET)(tmp_path)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    monkeypatch.setitem(sys.modules, "lingua", None)
    table = columns(["image", "caption"], NAMES, HATS, names=())(tmp_path)
    for path, words in ((sheet, ["t.xlsx needs openpyxl: ", "pip install", "; or save it as CSV (UTF-8)"]),
                        (table, ["give --language=de ", "pip install lingua-language-detector"])):  # fmt: skip
        assert_refused(inspect_table, words, TableRequest(str(path)))
    failing = types.SimpleNamespace(read=lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    monkeypatch.setattr(own_tables, "open_binary", lambda path: contextlib.nullcontext((failing, 0)))
    assert_refused(found, ["Input/output error"], inspected, tmp_path)


@pytest.mark.slow
def test_lingua_knows_a_column_of_two_languages():
    pytest.importorskip("lingua", reason="needs lingua: pip install -e '.[catalogue]'")
    things = [f"{color} {thing}" for color in ("rote", "blaue") for thing in ("Jacke", "Hose", "Mütze", "Bluse")]
    things += [f"{color} {thing}" for color in ("red", "blue") for thing in ("jacket", "trousers", "hat", "blouse")]
    guess = table_columns.Guess(things)
    assert set(guess.shares) == {"de", "en"} and guess("blaue Mütze") == "de" and guess("blue hat") == "en"


DAMAGED = {"csv": ",", "tsv": "UTF-16", "jsonl": ".jsonl", "json": ".json", "parquet": "Parquet"}


def mutate(folder, form, seed):
    """Damages a table, with one row per line where it is text, and reads it; whole rows are read or counted."""
    draw = random.Random(f"{form} {seed}")
    lines = [[f"S{i}", f"p{i}.jpg", f"Hut {i}", f"hat {i}", "acme"] for i in range(12)]
    path = FORMS_OF_ROWS[DAMAGED[form]]([WIDE[0], *lines], [f"p{i}.jpg" for i in range(12)])(folder)
    good = path.read_bytes()
    ways = {"parquet": damage.BINARY, "json": damage.JSON, "jsonl": damage.JSON}.get(form, damage.LINES)
    content, how = damage.damaged(draw, good, ways)
    path.write_bytes(content)
    tally = RowTally()
    request = TableRequest(str(path), language="en", max_skipped_fraction=1.0)
    try:
        entries = read(inspect_table(request), tally, folder / "kept")
    except UserError as error:
        assert str(error).strip() and "Traceback" not in str(error), how
        return
    if form in ("csv", "jsonl"):
        was, lines = (re.split(rb"\r\n|\r|\n", table) for table in (good, content))
        whole = [i for i in range(12) if was[i + (form == "csv")] in lines]
        said = [text for entry in entries for _, text in [*entry.captions, *texts_of(entry).items()]]
        texts = {word for text in said for word in text.split(", ")}
        missing = [i for i in whole if not {f"Hut {i}", f"hat {i}"} & texts]
        assert len(missing) <= tally.skipped.total + tally.left_out.total, (how, missing, tally.lines())


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 44), marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", DAMAGED)
def test_mutated_tables(tmp_path, form, seeds):
    for seed in seeds:
        mutate(tmp_path, form, seed)
