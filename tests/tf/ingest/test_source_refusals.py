"""What sources and conversions refuse, in one line each: the call, the words that must occur."""

import os
import pathlib

import pytest
from convert_data import run
from refusals import assert_refused, given

from mural_lite.text_files import canonical_language, read_lines
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
    "an unknown kind": (source("ops:x"), ["Unknown source 'ops:x'", "Did you mean opus"]),
    "no kind": (source("data/x.zip"), ["Unknown source", "data/x.zip"]),
    "a data set without its kind": (
        given({"mine/text_pairs": os.mkdir}, source("{}/mine,splits=dev")),
        ["Unknown source", "Did you mean records:", "/mine,splits=dev"]),
    "no file's name": (source("opus:"), ["names no file"]),
    "an unknown option": (source("opus:x,min_scores=1"), ["'min_scores=1'", "Did you mean min_score"]),
    "an option that is no number": (source("opus:x,min_score=high"), ["min_score='high'", "float"]),
    "an option that is neither true nor false": (source("pairs:x,header=maybe"), ["header='maybe'", "bool"]),
    **{f"img2dataset:{name}": (
        given({"00000.tar": b""}, source(f"img2dataset:{{}}/{name}", lambda source: source.files())),
        ["is not a folder", "img2dataset's output, such as"]) for name in ("*.tar", "00000.tar")},
    "an empty file": (given({"a.tsv": b""}, converted(PAIRS)), ["Nothing to write", "0 captions and pairs"]),
    "no file": (converted("opus:{}/*.zip"), ["There is no file", "*.zip"]),
    "images of no folder": (given(ADDRESSES, converted(CC12M)), ["needs images=FOLDER"]),
    "images of a folder that lacks": (
        given(ADDRESSES, converted(CC12M + ",images={0}/nowhere")), ["nowhere is not a folder"]),
    "texts to leave out in another encoding": (
        given({"out.txt": b"\xff\n", "a.tsv": b"a\tb\n"}, converted(PAIRS, exclude_texts=("out.txt",))),
        ["out.txt:1", "not UTF-8"]),
    "a table's bound": (lambda _: TableRequest("a.csv", max_skipped_fraction=2), ["fraction=2", "from 0 to 1"]),
    "a conversion's bound": (lambda _: Settings(max_skipped_fraction=2), ["fraction=2", "from 0 to 1"]),
    "workers below 0": (lambda _: Settings(workers=-1), ["workers=-1", "0 or more"]),
    "texts to count": (
        given({"a.tsv": b"no tab\n" * 10}, source(PAIRS, counted)), ["Too much is unusable: 10 of 10"]),
    "a pipe of files": (
        given({"a.tsv": os.mkfifo}, lambda _: find_files("*.tsv")), ["a.tsv is neither a file nor a folder"]),
    "a pipe of lines": (given({"a.tsv": os.mkfifo}, lambda _: list(read_lines("a.tsv"))), ["not a regular file"]),
    "a link to nowhere": (
        given({"b.txt": lambda path: path.symlink_to("nowhere")}, lambda _: find_files("b.txt")),
        ["b.txt is neither a file nor a folder"]),
    **{f"{name}'s captions {content[:20]}": (
        given({"x.json": content}, lambda folder, read=read: list(read(folder / "x.json"))), ["x.json"])
       for name, read in READERS.items() for content in OTHER_JSON},
    **{f"the language {str(code)[:20]!r}": (lambda _, code=code: canonical_language(code), ["Unknown language"])
       for code in (5, None, ["en"], {"a": 1}, "x" * 10_000, "xx", "", "simple english", "klingonish")},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(*REFUSALS[name], tmp_path)
