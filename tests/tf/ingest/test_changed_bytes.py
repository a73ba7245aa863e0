"""Files of strangers with changed bytes: readers take seconds and at most 1 GB, and give rows or one `UserError`.

A number from a file drives no loop and no allocation unchecked. Each test changes bytes of a whole file, also of its
lengths, counts and offsets; further examples run with `-m slow`.
"""

import contextlib
import functools
import io
import pathlib
import re
import resource
import tarfile
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from odd_pictures import saved
from PIL import Image

from mural_lite import tfrecord
from mural_lite.errors import UserError
from mural_lite.img2dataset import read_samples
from mural_lite.parquet import read_rows
from mural_lite.pictures import read_file, read_picture
from mural_search.tables.own_tables import open_table
from mural_tf.demo.torch_file import open_torch
from mural_tf.pretrained.weight_files import open_safetensors, open_tensorflow_checkpoint

hypothesis = pytest.importorskip("hypothesis", reason="needs hypothesis: pip install -e '.[test]'")
strategies = hypothesis.strategies
ROWS = [{"key": str(number), "caption": f"a picture of {number} cats", "price": number} for number in range(20)]
WEIGHTS = {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.ones(4, np.float32)}
# What readers take for numbers: 0, small, -1, the largest of four and eight bytes, and digits.
NUMBERS = [
    b"\0" * 4,
    b"\1\0\0\0",
    b"\xff" * 4,
    b"\xff" * 8,
    b"\xff\xff\xff\x7f",
    b"\0\0\0\0\0\0\0\x40",
    b"\xfe\xff\x7f",
    b"9" * 12,
]
CHANGES = strategies.lists(
    strategies.tuples(
        strategies.floats(0, 1, exclude_max=True),  # where, as a share of the file
        strategies.integers(0, 8),  # how many bytes are replaced
        strategies.one_of(strategies.sampled_from(NUMBERS), strategies.binary(max_size=8)),
    ),
    min_size=1,
    max_size=4,
)


def changed(data, changes):
    for share, count, bytes_there in changes:
        begin = int(share * len(data))
        data = data[:begin] + bytes_there + data[begin + count :]
    return data


def write_parquet(path):
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=8)


def write_workbook(path):
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(list(ROWS[0]))
    for row in ROWS:
        book.active.append(list(row.values()))
    book.save(path)


SHEET = "xl/worksheets/sheet1.xml"


@functools.cache
def parts_of_workbook(folder):
    """{name: content} of the files in a workbook, which holds them compressed."""
    write_workbook(folder / "whole.xlsx")
    with zipfile.ZipFile(folder / "whole.xlsx") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_sheet(path):
    path.write_bytes(parts_of_workbook(path.parent)[SHEET])


def read_sheet(path):
    book = path.with_suffix(".xlsx")
    with zipfile.ZipFile(book, "w") as archive:
        for name, part in {**parts_of_workbook(path.parent), SHEET: path.read_bytes()}.items():
            archive.writestr(name, part)
    list(open_table(str(book)).rows(ignore))


def write_csv(path):
    lines = [",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]
    path.write_text("\n".join(lines), encoding="utf-8")


def write_tfrecord(path):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in ROWS:
            writer.write(str(row).encode())


def write_tar(path):
    with tarfile.open(path, "w") as archive:
        for row in ROWS[:5]:
            for ending, content in (("txt", row["caption"].encode()), ("png", saved(Image.new("RGB", (9, 9)), "PNG"))):
                member = tarfile.TarInfo(f"{row['key']}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_safetensors(path):
    from safetensors.numpy import save_file

    save_file(WEIGHTS, path)


def write_checkpoint(path):
    checkpoint = tf.train.Checkpoint(**{name: tf.Variable(value) for name, value in WEIGHTS.items()})
    prefix = checkpoint.write(str(path.with_suffix("")))
    assert path == pathlib.Path(f"{prefix}.index")


def write_torch(path):
    from test_torch_file import GOOD, archive_of  # noqa: I001

    path.write_bytes(archive_of(GOOD))


def write_drawing(path):
    shapes = "".join(f'<rect x="{row["price"]}" width="9" height="9" fill="url(#a)"/>' for row in ROWS)
    gradient = '<linearGradient id="a"><stop stop-color="red"/></linearGradient>'
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="99" height="99">{gradient}{shapes}</svg>')


def read_weights(file):
    for name in file.shapes.keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:  # which is no tensor
        file.read(name)


def ignore(*_):
    pass


READERS = {  # by the file's name: what writes a whole one, and what reads it to its end
    "a.parquet": (write_parquet, lambda path: list(read_rows(path, None, ignore))),
    "a.xlsx": (write_workbook, lambda path: list(open_table(str(path)).rows(ignore))),
    "a.sheet": (write_sheet, read_sheet),
    "a.csv": (write_csv, lambda path: list(open_table(str(path)).rows(ignore))),
    "a.tfrecord": (write_tfrecord, lambda path: list(tfrecord.read_all(path, ignore))),
    "a.tar": (write_tar, lambda path: list(read_samples(path, ignore))),
    "a.safetensors": (write_safetensors, lambda path: read_weights(open_safetensors(path))),
    "a.index": (write_checkpoint, lambda path: read_weights(open_tensorflow_checkpoint(path.with_suffix("")))),
    "a.data-00000-of-00001": (
        write_checkpoint,
        lambda path: read_weights(open_tensorflow_checkpoint(path.parent / "a")),
    ),
    "a.pth": (write_torch, lambda path: read_weights(open_torch(path))),
    "a.svg": (write_drawing, lambda path: read_picture(read_file(path))),
}


@contextlib.contextmanager
def at_most_a_gigabyte():
    """Linux refuses this process memory beyond 1 GB more than it has; a reader then ends with a `MemoryError`."""
    status = pathlib.Path("/proc/self/status")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if status.exists():
        now = 1024 * int(re.search(r"VmData:\s+(\d+) kB", status.read_text())[1])
        resource.setrlimit(resource.RLIMIT_DATA, (now + 2**30, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="only Linux limits a process' data so")
def test_more_than_a_gigabyte_is_refused():
    with at_most_a_gigabyte(), pytest.raises(MemoryError):
        bytearray(2**31)


@functools.cache
def whole_file(name, folder):
    """A file's content, its path, and its reader."""
    write, read = READERS[name]
    write(folder / ("a.index" if write is write_checkpoint else name))
    read(folder / name)
    return (folder / name).read_bytes(), folder / name, read


def check(name, folder, examples):
    data, path, read = whole_file(name, folder)

    @hypothesis.settings(max_examples=examples, deadline=5000, derandomize=True, database=None)
    @hypothesis.given(CHANGES)
    def seconds_and_one_line(changes):
        path.write_bytes(changed(data, changes))
        try:
            with at_most_a_gigabyte():
                read(path)
        except UserError as error:
            assert "\n" not in str(error)

    seconds_and_one_line()


@pytest.mark.parametrize("name", READERS)
def test_changed_bytes_are_one_line_or_rows(name, tmp_path):
    check(name, tmp_path, 8 if name in ("a.svg", "a.sheet") else 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_changed_bytes_many_times(name, tmp_path):
    check(name, tmp_path, 1000)
