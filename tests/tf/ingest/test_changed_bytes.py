"""Files of strangers with changed bytes: every reader takes seconds, and gives rows or one `UserError`.

A number from a file drives no loop and no allocation unchecked. Each test changes bytes of a whole file, also of its
lengths, counts and offsets; further examples run with `-m slow`.
"""

import functools
import io
import pathlib
import tarfile

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
# What readers of binary files take for numbers: 0, small, -1, and the largest of four and eight bytes.
NUMBERS = [
    b"\0" * 4,
    b"\1\0\0\0",
    b"\xff" * 4,
    b"\xff" * 8,
    b"\xff\xff\xff\x7f",
    b"\0\0\0\0\0\0\0\x40",
    b"\xfe\xff\x7f",
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
            read(path)
        except UserError as error:
            assert "\n" not in str(error)

    seconds_and_one_line()


@pytest.mark.parametrize("name", READERS)
def test_changed_bytes_are_one_line_or_rows(name, tmp_path):
    check(name, tmp_path, 8 if name == "a.svg" else 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_changed_bytes_many_times(name, tmp_path):
    check(name, tmp_path, 1000)
