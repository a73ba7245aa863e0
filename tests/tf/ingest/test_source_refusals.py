"""What sources and conversions refuse: tests/snapshots/refusals_of_sources.txt has the message of each call."""

import os
import pathlib

from convert_data import run
from refusals import given
from snapshots import assert_refusals

from mural_lite.text_files import read_lines
from mural_search.tables.product_table import TableRequest
from mural_tf.data import caption_files
from mural_tf.ingest.build_vocabulary import count_sources
from mural_tf.ingest.convert import KINDS
from mural_tf.ingest.source import Settings, find_files, parse_source


def source(text, read=lambda source: None):
    return lambda folder: read(parse_source(text.format(folder), KINDS))


def converted(text, **settings):
    """The folder stands for {} in `text`."""
    return lambda folder: run([text.format(folder)], folder / "out", **settings)


def counted(source):
    count_sources([source], Settings(workers=0), pathlib.Path(), progress=False)


PAIRS, CC12M, ADDRESSES = "pairs:{}/a.tsv,language_b=de", "cc12m:{0}/a.tsv", {"a.tsv": b"http://x/1.jpg\ta\n"}
READERS = {"COCO": caption_files.read_coco, "Karpathy": lambda path: caption_files.read_karpathy(path, "train")}
OTHER_JSON = (b"[" * 200_000, b"[]", b"5", b"\xff", b'{"images": 5}', b'{"images": [1, "a", null]}')
REFUSALS = {
    "an unknown kind": source("ops:x"),
    "no kind": source("data/x.zip"),
    "a data set without its kind": given({"mine/text_pairs": os.mkdir}, source("{}/mine,splits=dev")),
    "no file's name": source("opus:"),
    "an unknown option": source("opus:x,min_scores=1"),
    "an option that is no number": source("opus:x,min_score=high"),
    "an option that is neither true nor false": source("pairs:x,header=maybe"),
    **{f"img2dataset:{name}": given({"00000.tar": b""}, source(f"img2dataset:{{}}/{name}", lambda one: one.files()))
       for name in ("*.tar", "00000.tar")},
    "an empty file": given({"a.tsv": b""}, converted(PAIRS)),
    "no file": converted("opus:{}/*.zip"),
    "images of no folder": given(ADDRESSES, converted(CC12M)),
    "images of a folder that lacks": given(ADDRESSES, converted(CC12M + ",images={0}/nowhere")),
    "texts to leave out in another encoding":
        given({"out.txt": b"\xff\n", "a.tsv": b"a\tb\n"}, converted(PAIRS, exclude_texts=("out.txt",))),
    "a table's bound": lambda _: TableRequest("a.csv", max_skipped_fraction=2),
    "a conversion's bound": lambda _: Settings(max_skipped_fraction=2),
    "an image size below 0": lambda _: Settings(image_size=-1),
    "units without a byte": lambda _: Settings(unit_bytes=0),
    "workers below 0": lambda _: Settings(workers=-1),
    "texts to count": given({"a.tsv": b"no tab\n" * 10}, source(PAIRS, counted)),
    "a pipe of files": given({"a.tsv": os.mkfifo}, lambda _: find_files("*.tsv")),
    "a pipe of lines": given({"a.tsv": os.mkfifo}, lambda _: list(read_lines("a.tsv"))),
    "a link to nowhere": given({"b.txt": lambda path: path.symlink_to("nowhere")}, lambda _: find_files("b.txt")),
    **{f"{name}'s captions {content[:20]}":
        given({"x.json": content}, lambda folder, read=read: list(read(folder / "x.json")))
       for name, read in READERS.items() for content in OTHER_JSON},
}  # fmt: skip


def test_refusals(tmp_path):
    assert_refusals("refusals_of_sources", REFUSALS, tmp_path)
