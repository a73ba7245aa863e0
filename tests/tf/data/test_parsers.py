"""From a serialised record to items, whole tables of them; and what is known of a folder without reading records."""

import hashlib
import json

import pytest
import tensorflow as tf
from snapshots import assert_snapshot

from mural_lite.errors import UserError
from mural_lite.skipped import CAPTION_NOT_UTF8, EMPTY_CAPTION, EMPTY_TEXT, NOT_AN_EXAMPLE, TEXT_NOT_UTF8
from mural_tf.data import records
from mural_tf.data.dataset_builder import count_records, counts_of
from mural_tf.data.records import ImageTextRecord, TextPair, parse_image_text, parse_img2dataset, parse_text_pair
from mural_tf.data.streams.epochs import NO_ITEM, PAIR, has_first_item, one_pass, parser, stated_languages
from mural_tf.data.streams.image_groups import captions_of, group_parser
from mural_tf.data.streams.text_text import across_languages_parser, parse_co_captions, with_pivot
from mural_tf.data.streams.triples import parse_triples


def example(**lists):
    """A serialised `tf.train.Example` of texts or bytes."""
    features = {}
    for name, values in lists.items():
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
        features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def table(items, *hidden):
    """{name: values}, texts where they are UTF-8; entries are left out that are checked apart."""
    found = {}
    for name in items.keys() - {*hidden}:
        found[name] = [value if value == b"\xff" else value.decode() for value in items[name].numpy().tolist()]
    return found


CAPTIONS = ["one", " ", b"\xff", "eins", "uno"]
LANGUAGES = ["en", "en", "de", "de"]  # the last caption's is not known
RECORD = example(image_id=["i"], image=["x"], caption=CAPTIONS, language=LANGUAGES, caption_group=["g"] * 4)
PROBLEMS = ["", EMPTY_CAPTION, CAPTION_NOT_UTF8, "", ""]
ALONE = example(image_id=["i"], image=["x"], caption=["one"], language=["en"])
HASHED = "4719488438812764163"  # of the bytes "x"


def test_captions():
    items = {"image_id": ["i"] * 5, "image": ["x"] * 5, "caption": CAPTIONS, "language": [*LANGUAGES, ""]}
    assert table(parse_image_text(RECORD)) == {**items, "problem": PROBLEMS}
    nothing = {"image_id": [HASHED], "image": ["x"], "caption": [""], "language": [""], "problem": [EMPTY_CAPTION]}
    assert table(parse_image_text(example(image=["x"]))) == nothing
    longer = parse_image_text(example(image=["x"], caption=["a"], language=["en", "de"]))
    assert table(longer)["language"] == ["en"]
    foreign = {"image_id": ["k"], "image": ["x"], "caption": ["a"], "language": ["sw"], "problem": [""]}
    assert table(parse_img2dataset("sw")(example(jpg=["x"], txt=["a"], key=["k"]))) == foreign
    foreign.update(image_id=[HASHED], caption=[""], problem=[EMPTY_CAPTION])
    assert table(parse_img2dataset("sw")(example(jpg=["x"]))) == foreign


def test_text_pairs_in_any_number():
    rows = [
        ("a", "en", "b", "de", "g"),
        ("a", "", "b", "de", ""),
        (" ", "en", b"\xff", "", "g"),
        ("a", "en", b"\xff", "de", "g"),
        ("a\nb\x07", "en", "b", "de", "g"),  # control characters are no fault
    ]
    names = ("text_a", "language_a", "text_b", "language_b", "group_id")
    serialized = [example(**{name: [value] for name, value in zip(names, row) if value}) for row in rows]
    expected = {name: list(values) for name, values in zip(names, zip(*rows))}
    expected["group_id"][1] = "a\tb"  # a group of its own
    expected["problem"] = ["", "", EMPTY_TEXT, TEXT_NOT_UTF8, ""]
    assert table(parse_text_pair(serialized)) == expected
    assert table(parse_text_pair(serialized[1])) == {name: values[1:2] for name, values in expected.items()}


def test_each_caption_with_the_next_one():
    expected = {"group_id": ["i"] * 5, "text_a": CAPTIONS, "language_a": [*LANGUAGES, ""]}
    expected.update(text_b=[*CAPTIONS[1:], "one"], language_b=["en", "de", "de", "", "en"])
    expected["problem"] = [EMPTY_CAPTION, EMPTY_CAPTION, CAPTION_NOT_UTF8, "", ""]
    assert table(parse_co_captions(RECORD)) == expected
    assert table(parse_co_captions(ALONE)) == dict.fromkeys(expected, [])


def test_pairs_that_are_turned_to_their_pivot():
    pairs = [
        ("1", "en", "2", "de"),
        ("3", "de", "4", "en"),
        ("5", "de", "6", "de"),
        ("7", "en", "8", "fr"),
        ("9", "fr", "0", "de"),
    ]
    names = ("text_a", "language_a", "text_b", "language_b")
    serialized = [example(**{name: [value] for name, value in zip(names, pair)}) for pair in pairs]
    for pivots, expected in (
        (("de",), "2de1en 3de4en 0de9fr"),
        (("de", "fr"), "2de1en 3de4en 8fr7en 9fr0de"),
        (("sw",), ""),
    ):
        found = table(with_pivot(parse_text_pair, pivots)(serialized))
        turned = zip(*(found[name] for name in names), found["problem"])
        assert " ".join("".join(pair) for *pair, problem in turned if problem != NO_ITEM) == expected
        assert set(found["problem"]) == {"", NO_ITEM} if expected else {NO_ITEM}
        assert len(found["group_id"]) == len(found["text_a"]) == 5  # a record is an item still


def test_captions_that_are_still_to_be_drawn():
    usable = [[b"one", b"eins"], [b"en", b"de"]]
    items = across_languages_parser()(RECORD)
    expected = {"text_a": CAPTIONS, "problem": PROBLEMS, "group_id": ["i"] * 5}
    expected.update(language_a=[""] * 5, language_b=[""] * 5)
    assert table(items, "captions") == expected
    assert [tf.io.parse_tensor(each, tf.string).numpy().tolist() for each in items["captions"]] == [usable] * 5
    assert len(across_languages_parser(("en",))(RECORD)["text_a"]) == 5
    for languages, record in ((("fr",), RECORD), ((), ALONE)):
        assert {len(values) for values in across_languages_parser(languages)(record).values()} == {0}


def test_groups_of_captions():
    group = group_parser(("en", "fr"))
    item = {name: values[0] for name, values in group(RECORD).items()}
    assert [part.numpy().tolist() for part in captions_of(item)] == [[b"one"], [b"en"]]
    expected = {"image_id": ["i"], "image": ["x"], "language": [""], "problem": [""]}
    assert table(group(RECORD), "captions") == expected
    both = group_parser(("en", "de"))(RECORD)["captions"][0]
    assert tf.io.parse_tensor(both, tf.string).numpy().tolist() == [[b"one", b"eins"], [b"en", b"de"]]
    empty = group(example(image_id=["i"], image=["x"], caption=["a", "", b"\xff"], language=["de", "en", "fr"]))
    assert table(empty, "captions") == {**expected, "problem": [EMPTY_CAPTION]}
    unusable = captions_of({name: values[0] for name, values in empty.items()})
    assert [part.numpy().tolist() for part in unusable] == [[b""], [b""]]
    assert {len(values) for values in group_parser(("sw",))(RECORD).values()} == {0}


def test_triples():
    expected = {"image_id": ["i"] * 4, "image": ["x"] * 4, "language": ["en+de"] * 4}
    expected.update(text_a=["one", "one", " ", " "], text_b=[b"\xff", "eins", b"\xff", "eins"])
    expected["problem"] = [CAPTION_NOT_UTF8, "", EMPTY_CAPTION, EMPTY_CAPTION]
    assert table(parse_triples()(RECORD)) == expected
    assert table(parse_triples(("en", "fr"))(RECORD)) == dict.fromkeys(expected, [])
    lists = dict(image=["x"], caption=list("abcde"), language=["en", "de", "fr", "en", "de"], image_id=["i"])
    groups = {("g", "g", "g", "h", "h"): "ab ac bc de", ("g", "", "g", "", ""): "ac", ("g", "g"): "ab", (): ""}
    for group, pairs in groups.items():
        found = table(parse_triples()(example(**lists, caption_group=group)))
        assert " ".join(map("".join, zip(found["text_a"], found["text_b"]))) == pairs
    found = table(parse_triples(("en", "fr"))(example(**lists, caption_group=["g"] * 5)))
    assert [*zip(found["text_a"], found["text_b"], found["language"])] == [("a", "c", "en+fr"), ("c", "d", "fr+en")]


# Folders.

IMAGES = [
    ImageTextRecord("1", b"x", ["a", "b", "c"], ["en", "en", "de"], [""] * 3),
    ImageTextRecord("2", b"x", ["a"], ["de"], [""]),
]  # fmt: skip
PAIRS = [TextPair("a", "en", "b", "de"), TextPair("a", "en", "b", "fr"), TextPair("a", "en", "b", "de")]


def test_counts_of_a_description():
    image_text = {"train": IMAGES, "dev": IMAGES[1:]}
    files = {
        "image_text/my-dev-00000-of-00001.tfrecord": {"records": 1, "languages": {"de": 1}},
        "image_text/train-00000-of-00002.tfrecord": {"records": 2, "languages": {"en": 2, "de": 2}},
        "image_text/train-00001-of-00002.tfrecord": {"records": 3, "languages": {"en": 4}},
        "text_pairs/train-00000-of-00002.tfrecord": {"records": 5, "languages": {"en de": 2, "de en": 3}},
        "text_pairs/train-00001-of-00002.tfrecord": {"records": 6, "languages": {"fr de": 6}},
    }
    counts = [count_records(["en", "de", "fr"], image_text, PAIRS), counts_of(files)]
    assert_snapshot("counts_of_descriptions", "\n".join(json.dumps(found, indent=1) for found in counts))


@pytest.fixture
def folder(tmp_path):
    """A folder whose description knows its files, of both kinds."""
    assert records.write_records(tmp_path, records.IMAGE_TEXT, "train", IMAGES, shards=2) == 2
    assert records.write_records(tmp_path, records.TEXT_PAIRS, "train", PAIRS) == 3
    shards = {}
    for path in sorted(tmp_path.glob("*/*")):
        languages = {"en de": 2, "en fr": 1} if path.parent.name == "text_pairs" else {"en": 2, "de": 1}
        shards[f"{path.parent.name}/{path.name}"] = {"bytes": path.stat().st_size, "languages": languages}
    (tmp_path / "dataset.json").write_text(json.dumps({"name": "n", "shards": shards}))
    return tmp_path


def test_languages_as_a_description_has_them(folder):
    images = records.list_files(folder, records.IMAGE_TEXT, "train")
    pairs = records.list_files(folder, records.TEXT_PAIRS, "train")
    assert stated_languages(images, parse_image_text, "language") == {"en": 4, "de": 2}
    assert stated_languages(images[:1], parse_image_text, "language") == {"en": 2, "de": 1}
    assert stated_languages(pairs, parse_text_pair, "language_a") == {"en": 3}
    assert stated_languages(pairs, parse_text_pair, "language_b") == {"de": 2, "fr": 1}
    assert stated_languages(pairs, parse_text_pair, PAIR) == {"en de": 2, "en fr": 1}
    assert stated_languages(images, parse_co_captions, "language_b") is None  # of items that are not described
    with open(images[1], "ab") as file:
        file.write(b"more")
    assert stated_languages(images, parse_image_text, "language") is None
    (folder / "dataset.json").unlink()
    assert records.describe_shards(str(folder)) == {}
    assert stated_languages(pairs, parse_text_pair, "language_a") is None


def test_what_identifies_data(folder):
    files = records.list_files(folder, records.TEXT_PAIRS, "train")
    name = "text_pairs/train-00000-of-00001.tfrecord"
    size = (folder / name).stat().st_size
    without = records.describe_files(f"{folder}/", files)
    assert without["files"] == {name: size}
    (folder / "dataset.json").write_text('{\n "name": "n"\n}\n')  # as our folders write it
    assert records.describe_files(folder, files) == without
    assert without["dataset"] == hashlib.sha256(b'{\n "name": "n"\n}\n').hexdigest()
    for content, digest in (
        ('{"shards": {}}', ""),
        ("", ""),
        ('{"name": "m"}', "other"),
        ("{", "other"),
        ("[1]", "other"),
    ):
        (folder / "dataset.json").write_text(content)
        found = records.describe_files(folder, files)["dataset"]
        assert found == digest or digest and len(found) == 64 and found != without["dataset"]
    (folder / "dataset.json").unlink()
    assert records.describe_files(folder, files)["dataset"] == ""
    with pytest.raises(UserError, match="^A data file cannot be read: .*nowhere"):
        records.file_sizes([str(folder / "nowhere")])


def test_files_of_a_split(folder):
    with pytest.raises(UserError, match=f"^The data folder {folder}/x does not exist.$"):
        records.find_files(folder / "x", records.IMAGE_TEXT, "train")
    with pytest.raises(UserError) as raised:
        records.find_files("foo://bucket", records.IMAGE_TEXT, "train")
    assert str(raised.value) == (
        f"foo://bucket: TensorFlow {tf.__version__} cannot read foo:// by itself, as training does; copy the data to "
        "this machine, or mount the bucket as a folder."
    )
    foreign = folder / "foreign"
    foreign.mkdir()
    for name in ("1.tfrecord", "0.tfrecord", "2.txt"):
        (foreign / name).touch()
    assert records.find_files(foreign, records.IMAGE_TEXT, "train") == [f"{foreign}/{n}.tfrecord" for n in "01"]
    assert records.find_files(foreign, records.IMAGE_TEXT, "dev") == []
    assert records.find_files(foreign, records.TEXT_PAIRS, "train") == []


def write_file(path, contents):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in contents:
            writer.write(content)
    return str(path)


def test_what_the_first_records_say(tmp_path):
    """Of each file after the first hundred records, which are all of another kind, one record."""
    pair = example(text_a=["a"], text_b=["b"])
    others = write_file(tmp_path / "others", [pair] * 150)
    good = write_file(tmp_path / "good", [pair, RECORD])
    with pytest.raises(UserError) as raised:
        has_first_item([others, good], parse_image_text)
    assert str(raised.value).startswith(f"{others} does not hold records of the expected kind (")
    assert str(raised.value).endswith("). See docs/data.md, and data.format for img2dataset's records.")
    assert "image" in str(raised.value) and "\n" not in str(raised.value)
    assert has_first_item([write_file(tmp_path / "late", [pair] * 99 + [RECORD])], parse_image_text)
    with pytest.raises(UserError, match="does not hold records of the expected kind"):
        has_first_item([write_file(tmp_path / "too late", [pair] * 100 + [RECORD])], parse_image_text)
    assert has_first_item([others, write_file(tmp_path / "first", [RECORD])], parse_image_text)
    assert has_first_item([write_file(tmp_path / "pairs", [pair])], parse_text_pair)
    assert not has_first_item([write_file(tmp_path / "alone", [ALONE])], parse_co_captions)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"?" * 40)
    with pytest.raises(UserError, match=f"^No usable record in 1 files: 1 x stretch .* first at {damaged}, byte 0.$"):
        has_first_item([str(damaged)], parse_image_text)
    parse = parser(with_pivot(parse_text_pair, ["xx"]), takes_many=True)  # what could be read has no item
    assert not has_first_item([str(damaged), write_file(tmp_path / "pair", [pair])], parse)


def test_one_pass_over_records_with_several_items_and_without(tmp_path):
    """In four blocks of records."""
    name = write_file(tmp_path / "records", [RECORD, ALONE, b"\xff", ALONE, RECORD] * 20)
    parse = parser(parse_co_captions, False)
    blocks = list(one_pass([name], parse, ("text_a", "language_b", "problem", "byte", "lost")))
    items = {key: [value for block in blocks for value in block[key].tolist()] for key in blocks[0]}
    captions = [caption.encode() if isinstance(caption, str) else caption for caption in CAPTIONS]
    assert len(blocks) == 4 and items["text_a"] == [*captions, b"", *captions] * 20
    languages = [b"en", b"de", b"de", b"", b"en"]
    assert items["language_b"] == [*languages, b"", *languages] * 20 and items["lost"] == [1] * 220
    problems = [EMPTY_CAPTION.encode()] * 2 + [CAPTION_NOT_UTF8.encode(), b"", b""]
    assert items["problem"] == [*problems, NOT_AN_EXAMPLE.encode(), *problems] * 20
    size, small = len(RECORD) + 16, len(ALONE) + 16  # with the lengths and checksums around them
    begins = [0] * 5 + [size + small] + [size + 2 * small + 17] * 5
    assert items["byte"] == [begin + turn * (2 * size + 2 * small + 17) for turn in range(20) for begin in begins]
