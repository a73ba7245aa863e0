"""Kinds of tables that were once lost in silence, in the forms that pandas, NumPy, `datasets` and openpyxl write."""

import base64
import json
import os

import pytest
import smooth_pictures
import table_data
from refusals import assert_refused
from table_data import (
    HATS,
    NAMES,
    assert_table,
    columns,
    folder_of,
    found,
    parquet,
    pictures,
    rows,
    text,
    texts_of,
    workbook,
)

from mural_search.tables import table_columns
from mural_search.tables.product_table import TableRequest, inspect_table

SHEET = [["sku", "photo", "title"], *([f"A{i}", NAMES[i], HATS[i]] for i in range(4))]
IDS = "A0 A1 A2 A3"
FILES = " ".join(NAMES)
TEXTS = {name: {str(i): value for i, value in enumerate(values)} for name, values in
         (("image", NAMES), ("caption", HATS))}  # fmt: skip
OBJECTS = [{"image": NAMES[i], "caption": HATS[i]} for i in range(4)]
LABELLED = {f"SKU-{i}": OBJECTS[i] for i in range(4)}
SPLIT = {"columns": ["image", "caption"], "index": [0, 1, 2, 3], "data": list(map(list, zip(NAMES, HATS)))}


def lists(write):
    """Returns a table whose cells have two captions, or one, or none, in a form of lists."""
    cells = [write([HATS[0], "it's a hat"]), write([HATS[1]]), write([HATS[2], "a hat, too"]), write([])]
    return columns(["image", "captions", "numbers"], NAMES, cells, [write([i, i + 1]) for i in range(4)])


def in_numpy(values):
    """As NumPy writes arrays: without commas, in several lines."""
    return "[" + "\n ".join(map(repr, values)) + "]"


def document(content):
    return text(json.dumps(content), "t.json")


def encoded(write):
    """Returns a table with pictures in texts, and without a file."""

    def make(folder):
        pictures(folder)
        texts = [write((folder / name).read_bytes()) for name in NAMES]
        return columns(["sku", "picture", "title"], "abcd", texts, HATS, names=())(folder)

    return make


def in_base64(data):
    return base64.b64encode(data).decode()


def drawn(book):
    """Pictures over cells, also below the last row, and one of the firm above the names."""
    from openpyxl.drawing.image import Image

    for cell, number in (("B4", 1), ("B6", 3), ("D1", 0)):
        book.active.add_image(Image(table_data.io.BytesIO(smooth_pictures.image_bytes(number, 12, 10))), cell)


def linked(book):
    for row, name in enumerate(NAMES, start=2):
        book.active.cell(row, 2).hyperlink = f"https://x.example/{name}?a=1&b=2"
    book.active.cell(2, 3).hyperlink = "#Sheet!A1"


def with_cover(book):
    sheet = book.create_sheet("Data")
    for line in SHEET:
        sheet.append(line)


def hidden(book):
    book.active.row_dimensions[3].hidden = True
    book.active.column_dimensions["D"].hidden = True


def zeros(book):
    """The last sku is a plain number."""
    for row in range(2, 5):
        book.active.cell(row, 1).number_format = "00000"


def floats(folder):
    pictures(folder, [f"{1000 + i}.jpg" for i in range(4)])
    return columns(["image_id", "title"], ["1000.0", "", "1002.0", "1003.0"], HATS, names=())(folder)


def with_suffixes(end):
    lines = [f'{name}#{k}\t{hat} {k} "here\n' for name, hat in zip(NAMES, HATS) for k in range(2)]
    return text("".join(lines), f"t.{end}")


# name: what makes it; tests/snapshots/table_kinds/ has what is said and read of each.
KINDS = {
    # lists and objects as texts
    "lists of JSON": lists(json.dumps),
    "lists of Python": lists(repr),
    "lists of NumPy": lists(in_numpy),
    "NaN in lists": columns(["image", "title"], NAMES, [f"['{hat}', nan]" for hat in HATS]),
    "lists in a workbook": workbook(["image", "title"], *([name, f"['{hat}']"] for name, hat in zip(NAMES, HATS))),
    "objects": columns(["image", "title"], [json.dumps([{"src": name, "n": 1}]) for name in NAMES], HATS),
    "brackets of words": columns(["image", "title"], NAMES, ["[red] hat", "[a]", "hat [b]", "(c)"]),
    # JSON by columns
    "to_dict": document({"image": NAMES, "caption": HATS}),
    "columns of objects and texts": document({"image": [{"bytes": None, "path": name} for name in NAMES],
        "caption": HATS}),
    "orient=columns": document(TEXTS),
    "orient=index": document(LABELLED),
    "orient=split": document(SPLIT),
    "orient=split, an index": document({**SPLIT, "index": list(LABELLED)}),
    "orient=values": document(SPLIT["data"]),
    "orient=table": document({"schema": {"fields": []}, "data": OBJECTS}),
    "names as keys": document(dict(zip(NAMES, HATS))),
    "names as keys of lists": document({name: [hat, "hat"] for name, hat in zip(NAMES, HATS)}),
    "orient=split, a MultiIndex": document({**SPLIT, "columns": [["image", ""], ["caption", "en"]]}),
    "orient=split, broken": document({**SPLIT, "data": [5]}),
    "orient=split, a label too few": document({**SPLIT, "index": ["SKU-0"]}),
    "orient=split, a long row": document({**SPLIT, "data": [*SPLIT["data"][:3], [NAMES[3], HATS[3], "more"]]}),
    "orient=split, an empty value behind a row": document({**SPLIT, "data": [[*row, None] for row in SPLIT["data"]]}),
    "names and rows, a long row": document([SPLIT["columns"], *SPLIT["data"][:3], [NAMES[3], HATS[3], "more"]]),
    "rows of nothing": document([{}, {"a": None}]),
    "lists of nothing": document([[], []]),
    "lists in lists": document([{"image": NAMES[0], "caption": [["hat"], ["cap", ["coat"]]], "sizes": [[1, 2], [3]]}]),
    "deep lists": text('{"image": "p0.jpg", "t": ' + "[" * 500 + "5" + "]" * 500 + "}", "t.jsonl"),
    "columns of different lengths": document({"image": NAMES, "caption": HATS[:2]}),
    # rows above the names
    "a title": rows(["Export, all"], [], *SHEET),
    "a title, decimal commas": rows(["Export"], [*SHEET[0], "price"], *([*line, "1,90"] for line in SHEET[1:]),
        delimiter=";"),
    "Amazon": rows(["TemplateType=fptcustom", "Version=2026.0501", "The top 3 rows are for Amazon.com use only."],
        ["Seller SKU", "Main Image URL", "Product Name"], ["item_sku", "main_image_url", "item_name"], *SHEET[1:],
        delimiter="\t"),
    "units": rows(SHEET[0], ["", "", "text"], *SHEET[1:]),
    "no picture first": rows(SHEET[0], ["B1", "", "voucher"], ["B2", "", "card"], *SHEET[1:]),
    "an empty column": rows([*SHEET[0], "colour"], *SHEET[1:]),
    # workbooks
    "formulas": workbook(SHEET[0], *([f"A{i}", NAMES[i], f"=A{i}"] for i in range(4))),
    "formulas of pictures": workbook(SHEET[0], *([f"A{i}", f'=B{i}&".jpg"', HATS[i]] for i in range(4))),
    "formulas of links": workbook(SHEET[0], *([f"A{i}", f'=HYPERLINK("{NAMES[i]}","open")', HATS[i]]
        for i in range(4))),
    "pictures over cells": workbook([], *(["sku", "photo", "title"], ["A0", "p0.jpg", "hat"], ["A1", "", "coat"],
        ["A2", "p2.jpg", "bag"]), change=drawn),
    "links of cells": workbook(SHEET[0], *([f"A{i}", "open", HATS[i]] for i in range(4)), change=linked),
    "a cover sheet": workbook(["Catalogue 2026"], ["made by", "Anna"], ["for", "all"], change=with_cover),
    "hidden rows and columns": workbook([*SHEET[0], "cost"], *([*line, 5] for line in SHEET[1:]), change=hidden),
    "numbers with zeros in front": workbook(SHEET[0], *([i + 7, NAMES[i], HATS[i]] for i in range(4)), change=zeros),
    # names and contents of pictures
    "numbers of captions": with_suffixes("token"),
    "numbers of captions in .txt": with_suffixes("txt"),
    "numbers of pictures as fractions": floats,
    "base64": encoded(in_base64),
    "base64 of addresses": encoded(lambda data: base64.urlsafe_b64encode(data).decode().rstrip("=")),
    "data URLs": encoded(lambda data: f"data:image/jpeg;base64,{in_base64(data)}"),
    "data URLs with parameters": encoded(lambda data: f"data:image/jpeg;name=a.jpg;base64,{in_base64(data)}"),
    "bytes and paths in lists": parquet(NAMES, sku=["a", "b"], images=lambda images: [[{"bytes": images[i],
        "path": NAMES[i]}] for i in range(2)], title=HATS[:2]),
    # folders
    "texts of .caption": folder_of("p0.jpg", p0_caption="a hat\na red hat"),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_kinds(tmp_path, name):
    assert_table(f"table_kinds/{name}", KINDS[name], tmp_path, language="en")


def test_a_picture_in_a_cell_may_be_large_and_a_message_stays_short(tmp_path):
    data = smooth_pictures.image_bytes(0, 12, 10) + bytes(100_000)
    table = columns(["picture", "title"], [in_base64(data), "/9j/" + "A" * 300], HATS[:2], names=())(tmp_path)
    entries, _ = found(inspect_table(TableRequest(str(table), language="en")), tmp_path)
    assert [entry.file.read_bytes() == data for entry in entries] == [True, False]
    table = columns(["image", "title"], ["p0.jpg", "x" * 900 + ".jpg"], HATS[:2])(tmp_path)
    _, skipped = found(inspect_table(TableRequest(str(table), language="en")), tmp_path)
    assert "xxx)" in skipped and len(skipped) < 400


def test_nanoseconds_cost_no_row(tmp_path):
    """Python has no type for them: with pandas its type would be taken, without it the row was lost."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    moments = arrow.array([1764374400123456789, None], arrow.timestamp("ns", "UTC"))
    lengths = arrow.array([1_001, None], arrow.duration("ns"))
    table = parquet(NAMES, image=NAMES[:2], title=HATS[:2], made=lambda _: moments, took=lambda _: lengths)(tmp_path)
    entries, skipped = found(inspect_table(TableRequest(str(table), language="en")), tmp_path)
    assert len(entries) == 2 and not skipped
    assert texts_of(entries[0]) == {"made": "2025-11-29 00:00:00.123456+00:00", "took": "0:00:00.000001"}


def test_links_lead_where_the_user_says(tmp_path):
    """Folders as git-annex and the cache of Hugging Face have them: names are links to files elsewhere."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    pictures(tmp_path / "blobs", [f"hash-{name}" for name in NAMES])
    for name in NAMES:
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/hash-{name}")
    (tmp_path / "snapshot/more").symlink_to("../blobs")
    entries, said = found(inspect_table(TableRequest(str(tmp_path / "snapshot"), language="en")), tmp_path)
    assert [entry.name for entry in entries] == NAMES
    inspected = inspect_table(TableRequest(str(tmp_path / "snapshot")))
    assert "1 x link to a folder, which is not followed: name its target" in inspected.describe()
    table = columns(["image", "title"], NAMES, HATS, names=())(tmp_path / "snapshot")
    words = f"4 x link that leads out of its folder (--images={tmp_path} holds its target, too)"
    assert_refused(found, [words], inspect_table(TableRequest(str(table), language="en")), tmp_path)
    entries, _ = found(inspect_table(TableRequest(str(table), str(tmp_path), language="en")), tmp_path)
    assert len(entries) == 4


def test_words_of_files_elsewhere_are_not_read_and_pipes_are_not_waited_for(tmp_path):
    (tmp_path / "secret").write_text("root:x:0:0")
    packet = (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#">{}</r:RDF>'
    )
    described = '<r:Description d:title="root" xmlns:d="http://purl.org/dc/elements/1.1/"/>'
    (tmp_path / "secret.xmp").write_text(f"{packet.format(described)}</x:xmpmeta>")
    pictures(tmp_path / "photos", ["a.png", "b.png"])
    (tmp_path / "photos/a.txt").symlink_to(tmp_path / "secret")
    (tmp_path / "photos/a.png.xmp").symlink_to(tmp_path / "secret.xmp")
    for name in ("b.txt", "b.png.xmp", "c.jpg"):
        os.mkfifo(tmp_path / "photos" / name)
    inspected = inspect_table(TableRequest(str(tmp_path / "photos"), language="en"))
    entries, said = found(inspected, tmp_path)
    assert [(entry.name, list(entry.captions)) for entry in entries] == [("a.png", []), ("b.png", [])]
    assert "2 x text that is not a file of its folder" in said and "1 x picture that is not there" in said
    assert "1 x file that is not a picture (.xmp)" in inspected.describe()  # the link


def test_short_titles_and_titles_in_another_script():
    """Small models take "a red shirt" for Danish; and a title in Japanese is none of a table's German titles."""
    pytest.importorskip("lingua", reason="needs lingua: pip install -e '.[catalogue]'")
    colors = "red green blue yellow black white orange pink".split()
    guess = table_columns.Guess([f"a {color} shirt made of soft cotton" for color in colors])
    assert guess.describe() == "guessed: en 100%" and guess("アイスクリーム") == "ja" and guess("мороженое") == "ru"
    norwegian = table_columns.Guess(["rød jakke", "blå bukse", "grønn lue", "hvit kjole"])  # Danish as well
    assert norwegian.describe().endswith(", not sure: --language=de says it")
