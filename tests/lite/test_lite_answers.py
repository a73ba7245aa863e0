"""What small functions answer, whole: tests/snapshots/answers_of_lite.txt has the answer of every call."""

import errno
import io
import json
import pathlib
import types

import numpy as np
import pytest
from ml_collections import ConfigDict
from snapshots import assert_answers, given

from mural_lite import (
    beam,
    config_file,
    dataset_folder,
    embedder,
    errors,
    files,
    hashes,
    hugging_face,
    img2dataset,
    printable,
    record_format,
    remote_folders,
    skipped,
    text_files,
    tfrecord,
    trust,
)  # fmt: skip
from mural_lite.config import base_config, prompts_of
from mural_lite.record_format import ImageTextRecord, TextPair
from mural_lite.skipped import CountsByKind, Tally
from mural_lite.text_files import Part, Unit

PATH = pathlib.Path("a.json")


def parsed(*more):
    """A configuration's changed fields."""
    stored = json.loads(json.dumps(base_config().to_dict(), default=list))
    for name, value in more:
        *parents, key = name.split(".")
        branch = stored
        for parent in parents:
            branch = branch[parent]
        branch[key] = value
    found = config_file.parse_config(stored, "config.json").to_dict()
    before = base_config().to_dict()
    changed = {name: value for name, value in found.items() if value != before[name]}
    for name, value in changed.items():
        if isinstance(value, dict):
            changed[name] = {key: one for key, one in value.items() if one != before[name].get(key)}
    return changed


def prompts(*entries):
    config = base_config()
    config.vocabulary.prompts = entries
    return prompts_of(config)


def records(record):
    """A record that is written and read, or what is read of bytes."""
    content = record if isinstance(record, bytes) else record_format.serialize(record)
    return record_format.parse_record(content, "a.tfrecord", 7)


def example(**values):
    made = record_format.Example()
    for name, value in values.items():
        made.features.feature[name].bytes_list.value.extend(value)
    return made.SerializeToString(deterministic=True)


def tallied(skip, left, written, *checks):
    tally = Tally(written=written)
    for place, (problem, count) in enumerate(skip):
        tally.skip(problem, f"t.csv:{place}", count)
    for problem, count in left:
        tally.leave_out(problem, "a\n b \udcff" + 300 * "x", count)
    other = Tally()
    other.add(tally)
    other.add(tally)
    tally.check(*checks)
    return tally.read, tally.lines(), tally.described(), tally.places, other.lines()


def skipped_to(content, begin):
    reader = io.BufferedReader(io.BytesIO(content))
    return text_files.skip_to(reader, Part(begin, 99))[0], reader.read()


def lines(content, begin=0, end=None):
    return list(text_files.bounded_lines(io.BytesIO(content[begin:]), Part(begin, end)))


class ResourceExhaustedError(Exception):
    """As TensorFlow's."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message


HUB = (
    "hf://a/b;hf://a/b@main;hf://a/b@refs/pr/1;hf://a/b/c/d.json;hf://a/b@v1/c;hf://a;hf://a/b--c;hf://a/..;hf://a/b@;"
    "hf://-a/b;hf://a/b.bin;hf://a/b/x.pt;hf://a/b/x.bin;hf://a/b/x.ckpt;a/b;hf://a/b/;hf://é/b;hf://a.b/c.d"
).split(";")
GONE = OSError(errno.ENOENT, "No such file", "a.txt")
CALLS = {
    errors.is_out_of_memory: given(
        ValueError("x"), ResourceExhaustedError("OOM"), ResourceExhaustedError("No space left on device"),
        types.SimpleNamespace(message="CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        types.SimpleNamespace(message="Out-of-memory")),
    errors.brief: [("a" * 58,), ("a" * 59,), ([1, 2], 6), ([1, 2], 5)],
    errors.first_line: given(ValueError(" a\nb"), ValueError(), ValueError("\n")),
    files.json_field: [({"a": {"b": 1}, "c": [1, "x"], "d": True, "e": {"x": 1.5, "y": 2}, "f": None},
    *more) for more in (
        ("a.b", int, PATH), ("a.c", int, PATH, 5), ("a.c", int, PATH), ("g.h", int, PATH, 6), ("c.x", int, PATH), ("a",
        dict, PATH),
        ("c", list[int], PATH), ("d", int, PATH), ("d", bool, PATH), ("a.b", bool, PATH), ("a.b", float, PATH), ("e",
        dict[str, float], PATH),
        ("e", dict[str, int], PATH), ("f", str, PATH), ("c", list[list], PATH), ("x", list[str], PATH), ("x",
        dict[str, float], PATH))],
    hashes.text_hash: given("", "a", "\udcff"),
    hashes.contains: [(np.array(values, np.uint64), value) for values in ([], [3, 5, 2**64 - 1]) for value in (0, 3, 4,
    5, 2**64 - 1)],
    hugging_face.parse: given(*HUB),
    hugging_face.suggestion: given("a/b", "a/b@main", "workdirs/x", "a/b.txt", "a/b.5", "tests/b", "a", "/a/b",
    "a/b/c", "a/-b", "é/b", "a/b@c/d"),
    hugging_face._reason: given(GONE, OSError(2, "No such file"), ValueError("\n a. (Request ID: 5)\nb"),
    ValueError()),
    img2dataset.split_name: given(
        "a.jpg", "./x/a.JPG", "a.b.jpg", "a.b.c.txt", "a.b.cls", ".jpg", "x/.a.jpg", "a", "a.json", "a.jpg.json",
        "a.b/c.png"),
    img2dataset._image_column: given(["a", "png"], ["a"], []),
    img2dataset.parse_example: given(example(jpg=[b"x"], txt=[b"hat"], key=[b"7"]), example(webp=[b"y"], json=[b"{}"]),
    example(txt=[])),
    embedder.fill_templates: [(["a", "b"], ["{}", "x {} {c}"]), (["a"], ["a {label}", "{c}"]), ("a", ["{}"]), (["a"],
    "{}"), ([], ["{}"]),
        (["a"], []), ([1], ["{}"]), (["a"], ["x"])],
    embedder.class_embeddings: [(np.float32([[1, 0], [0, 1], [0, -1], [0, -1]]), 2), (np.float32([[1, 0], [-1, 0]]),
    2), (np.eye(2, dtype=np.float32), 1)],
    embedder._image_name: [("a.jpg", 1), (PATH, 1), (b"x", 2), (io.BytesIO(b"x"), 3),
    (types.SimpleNamespace(read=1, name="n"), 4),
        (types.SimpleNamespace(name="n"), 5)],
    lambda value: embedder._is_image(value): given(*(np.zeros(shape, dtype) for shape, dtype in (
        ([2, 2], np.uint8), ([2, 2], np.float32), ([2, 2, 3], np.float32), ([2, 2, 4], np.uint8), ([2, 2, 2],
        np.uint8), ([1, 2, 2, 3], np.uint8))),
        "a", b"a", PATH, ["a"], io.BytesIO()),
    embedder._is_matrix: given(np.zeros([2, 2]), np.zeros([2, 2], np.uint8), np.zeros(2), [[1.0]]),
    lambda *arguments: [len(batch) for batch in embedder._batches(*arguments)]: [
        ([], 2, 9), ([b"a"] * 5, 2, 9), ([b"a" * 600] * 40, 64, 128), ([b"a" * 600] * 40, 64, 4096),
        ([b"a"] * 9 + [b"a" * 9000] * 3, 64, 2**20)],
    prompts: [(), ("query=q: ", "b=c=d"), ("query",), ("=x",), ("x=",)],
    parsed: [(), (("model", "mule"),), (("modle", 5),), (("text_tower.hiden_size", 5),), (("train.steps", "5"),),
    (("train.steps", True),),
        (("method.anything", 5),), (("data.text_text_languages", ["de"]),), (("data.text_text_languages", [1]),),
        (("data.emoji_languages", "all"),),
        (("data.emoji_languages", "all"), ("data.emoji_locale_names", False)), (("text_tower.pooler", True),
        ("text_tower.pooler_size", 0)),
        (("text_tower.pooler", False), ("text_tower.pooler_size", 9)), (("optimizer.decay_rate", 0.5),
        ("optimizer.decay_steps", 3)),
        (("evaluation.groups.x", ["de"]),), (("evaluation.groups.x", "de"),), (("data.sources", {"x": {"a": 1}}),),
        (("data.sources", {"x": 1}),)],
    config_file.field_kind: given(5, 0.5, "", True, (), (1,), [""], ConfigDict({"a": 1})),
    dataset_folder._difference: [({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}), (5, {"a": 1}), ({"a": 1}, {})],
    beam._flag: [(flags, "runner") for flags in ("--runner=Flink --x=1", "--runner Flink", "--runners=x", "",
    "--x --runner=")],
    beam.check: given("--runner=DirectRunner", "--x=1"),
    beam.describe: given("--runner=Flink --sdk_container_image=a/b", "--runner=Flink"),
    beam._reason: given(
        "x\nmural_lite.errors.UserError: It is so. [while running 'y']\nz", "UserError: a\nb",
        "ValueError: a.\nat b\n\n", "last line. ", "x" * 600),
    printable.printable: given("a\udcff", PATH),
    printable.visible: given("a", "a\tb\nc\x07\x85", "\ud800x", "a\u200b"),
    record_format.missing_shards: given(
        [], ["a-00001-of-00003.tfrecord"], ["a-00000-of-00001.tfrecord", "b.tfrecord"], ["a-00001-of-00002.tfrecord",
        "b-00000-of-00002.tfrecord"]),
    record_format._as_many: [(["a"], ["x", "y"]), (["a", "b"], ["x"]), ([], [])],
    records: given(
        ImageTextRecord("i", b"x", ["a", "é"], ["en", ""], ["", "g"]), ImageTextRecord("i", b"x", ["a"], [], []),
        ImageTextRecord("", b"x", [], [], []),
        TextPair("a", "en", "b", "de", "g"), TextPair("", "en", "b", "de"), b"x", example(image=[b"x"],
        caption=[b"\xff"]),
        example(image=[b"x"], caption=[b"a", b"b"], language=[b"de"]), example(text_a=[b"a"]), example(image=[]),
        example(a=[b"x"])),
    remote_folders._order: given("a/b", "a/ckpt-1.index", "checkpoint", "a/config.json", "README.md", "a/index.sqlite",
    "dataset.json"),
    skipped.check_fraction: [(value, "--x") for value in (0, 1, 0.5, float('nan'), -0.1, 1.1, True, "1", None)],
    tallied: [((), (), 3, 0.0), ((("b", 2), ("a", 2), ("c", 1)), (("d", 1),), 4, 1.0), ((("a", 1),), (), 9, 0.1),
    ((("a", 1),), (), 8, 0.1),
        ((("a", 1),), (), 0, 1.0), ((("a", 3),), (), 7, 0.1, 0.5), ((("a", 9),), (), 1, 0.1, 0.5)],
    CountsByKind.are_too_many: [(CountsByKind({"a": [count, ""]}), 100, 0.1, *done) for count in (10, 11, 12,
    30) for done in ((), (0.5,), (0.999,))],
    text_files.refuse_failure: [(error, PATH) for error in (
        ValueError(), OSError("x"), OSError(errno.EINVAL, "x"), OSError(errno.EOVERFLOW, "x"), GONE,
        OSError(errno.EIO, ""))],
    text_files.canonical_language: given("iw", "jp", "deu", "zh_TW", " de ", "xx", "", "de-x", "a" * 100, "sr-latn",
    "english", 5, "no", "zh-Hant-TW"),
    text_files.known_language: given("deu", "xx", 5, "de" + 99 * "a", None),
    text_files.clean: given(None, " a\n b\u2028c "),
    text_files.is_text: given("a", "\udcff", 5, None, b"a"),
    text_files.parse_object: given("{}", b'{"a": 1}', "[]", "5", "{", "null"),
    text_files.decode: given(b"a\xc3\xa9", b"a\0", b"\xff"),
    text_files._decode_line: [(line, number) for number in (1, 2) for line in (None, b"a\r\n", b"a\r\r\n",
    b"\xef\xbb\xbfa", b"\0\n", b"\xff", b"\n")],
    skipped_to: [(b"ab\ncd\n\nefgh", begin) for begin in range(14)] + [(b"", 5), (b"ab", 1)],
    lines: [(b"ab\ncdefgh\n\nij",), (b"ab\ncdefgh\n\nij", 3), (b"ab\ncdefgh\n\nij", 0, 3), (b"ab\ncdefgh\n\nij", 0, 4),
    (b"abcd\nabcde\n",), (b"a" * 40,),
        (b"a" * 10 + b"\nb\n",), (b"",)],
    Unit.part: [(Unit("a", number, 3, 5, 5), 100) for number in range(3)] + [(Unit("a", 0, 1, 5, 5), 10)],
    lambda *arguments: text_files.cut(pathlib.Path("none.txt.gz"), *arguments): [(0, 5), (10, 5), (11, 5), (10**6, 5),
    (10, 0), (10**6, 5, 2)],
    tfrecord.lost_records: [(10, 26, 0, 0), (11, 26, 0, 0), (8, 26, 260, 10), (7, 26, 100, 10), (-1, 26, 100, 10), (-1,
    26, 0, 0), (5, 5, 0, 0), (99, 260, 100, 10)],
    tfrecord.masked_crc: given(b"", b"abc"),
    tfrecord.framed: given(b"", b"abc"),
    trust.needs_trust: given(
        "", "a", "/a", "https://tfhub.dev/x/1", "http://tfhub.dev/x", "https://tfhub.dev:1/x", "https://u@tfhub.dev/x",
        "https://[tfhub.dev/x", "gs://a/b", "https://www.kaggle.com/models/x", "https://kaggle.com/models/x",
        "https://tfhub.dev.example.org/x", r"https://example.org\@tfhub.dev/x", "https://TFHUB.dev/x", "file:///data/x",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_lines(monkeypatch):
    """Lines and blocks are shorter than the texts."""
    monkeypatch.setattr(text_files, "LONGEST_LINE", 5)
    monkeypatch.setattr(text_files, "_COUNTED_CHUNK", 2)


def test_answers():
    assert_answers("answers_of_lite", CALLS)
