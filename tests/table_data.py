"""Writers of tables and folders as shops and people have them, by the libraries that write them; and a reader."""

import csv
import io
import json
import re
import zipfile

import pytest
import smooth_pictures
from snapshots import assert_snapshot

from mural_lite.errors import UserError
from mural_search.items import fields_of
from mural_search.tables.product_table import TableRequest, inspect_table
from mural_search.tables.products import RowTally, read

HATS = [f"red hat {i}" for i in range(4)]
NAMES = [f"p{i}.jpg" for i in range(4)]
WIDE = [["sku", "photo", "title_de", "title_en", "brand"], *([f"S{i}", f"p{i}.jpg", f"Hut {i}", f"hat {i}", "acme"]
        for i in range(4))]  # fmt: skip


def texts_of(entry):
    """The fields of an entry as an index shows them."""
    texts, _ = fields_of(entry.fields)
    return texts


def pictures(folder, names=NAMES):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(smooth_pictures.image_bytes(number, 12, 10))


def rows(*lines, names=NAMES, delimiter=",", encoding="utf-8"):
    """Returns what writes a table of these rows, and pictures of these names."""
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows(lines)
    return text(file.getvalue(), names=names, encoding=encoding)


def columns(head, *values, **more):
    return rows(head, *map(list, zip(*values)), **more)


def text(content, name="t.csv", names=NAMES, encoding="utf-8"):
    def write(folder):
        pictures(folder, names)
        (folder / name).write_bytes(content.encode(encoding))
        return folder / name

    return write


def lines(*objects, name="t.jsonl", end="\n", names=NAMES):
    return text("".join(json.dumps(one, ensure_ascii=False) + end for one in objects), name, names)


def workbook(*sheets, change=lambda book: None, dimension=None, names=NAMES):
    """Returns what writes a workbook; `dimension` takes the place of what the library says of the sheet's size."""

    def write(folder):
        openpyxl = pytest.importorskip("openpyxl", reason="needs openpyxl: pip install -e '.[catalogue]'")
        pictures(folder, names)
        book = openpyxl.Workbook()
        for line in sheets:
            book.active.append(line)
        change(book)
        book.save(folder / "t.xlsx")
        if dimension:
            with zipfile.ZipFile(folder / "t.xlsx") as archive:
                parts = {name: archive.read(name) for name in archive.namelist()}
            with zipfile.ZipFile(folder / "t.xlsx", "w") as archive:
                for name, part in parts.items():
                    said = b'<dimension ref="%s"' % dimension
                    archive.writestr(name, re.sub(rb'<dimension ref="[^"]*"', said, part))
        return folder / "t.xlsx"

    return write


def merged(book):
    for cell in ("A2:A3", "C2:C3"):
        book.active.merge_cells(cell)


def chart(book):
    from openpyxl.chart import BarChart

    book.create_chartsheet().add_chart(BarChart())
    book.active = 1


def parquet(names=(), **values):
    def write(folder):
        pictures(folder, names)
        arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install -e '.[catalogue]'")
        import pyarrow.parquet

        images = [smooth_pictures.image_bytes(i, 12, 10, "PNG") for i in range(4)]
        made = {name: value(images) if callable(value) else value for name, value in values.items()}
        pyarrow.parquet.write_table(arrow.table(made), folder / "t.parquet", row_group_size=1)
        return folder / "t.parquet"

    return write


def folder_of(*names, **texts):
    """Returns what fills a folder with pictures and files of text, {name with _ for a point: content}."""

    def write(folder):
        (folder / "in").mkdir()
        pictures(folder / "in", names)
        for name, content in texts.items():
            (folder / "in" / name.replace("_", ".")).write_bytes(content.encode("utf-8-sig"))
        return folder / "in"

    return write


def elsewhere(at, value):
    """Returns what writes a table in one folder and its pictures into another."""

    def write(folder):
        pictures(folder / "photos")
        (folder / at).mkdir(exist_ok=True)
        named = [value.format(folder=folder, name=name) for name in NAMES]
        return columns(["image", "caption"], named, HATS, names=())(folder / at)

    return write


def found(understood, folder):
    """Returns the entries and what is said of other rows."""
    tally = RowTally()
    entries = read(understood, tally, folder / "kept")
    assert tally.read == tally.written + tally.skipped.total + tally.left_out.total
    assert all(entry.file is None or entry.file.is_file() for entry in entries)
    return entries, "; ".join([*tally.skipped.lines(), *tally.left_out.lines()])


def assert_table(name, make, folder, **asked):
    """Compares with a snapshot all that is said of a table and read of it, or why it is refused."""
    lines = []
    try:
        inspected = inspect_table(TableRequest(str(make(folder)), **asked))
        lines += [inspected.describe(), ""]
        entries, others = found(inspected, folder)
    except UserError as error:
        entries, others = [], f"refused: {error}"
    numbers = {smooth_pictures.image_bytes(n, 12, 10, kind): n for n in range(4) for kind in ("JPEG", "PNG")}
    for entry in entries:
        place = entry.file and entry.file.relative_to(folder)
        if place and place.parts[0] == "kept":  # named by its content, which depends on Pillow
            place = f"picture {numbers[entry.file.read_bytes()]} out of the table"
            entry.name = entry.name.replace(entry.file.name, "its hash")
        lines.append(f"{entry.name!r} of product {entry.product!r}: {place}")
        for (language, text), (number, is_guessed) in entry.captions.items():
            lines.append(f"    {language}: {text!r}, row {number}{' (guessed)' * is_guessed}")
        lines += [f"    {field} = {text!r}" for field, text in texts_of(entry).items()]
    lines.append(others)
    assert_snapshot(re.sub(r"[^\w/]+", "_", name), "\n".join(lines), folder=folder)
