"""What small functions answer, whole: tests/snapshots/answers_of_ingest.txt has the answer of every call."""

import io
import pathlib

import numpy as np
from PIL import Image
from snapshots import assert_answers, given

from mural_lite.text_files import Part, Unit
from mural_tf.ingest import build_vocabulary, convert, decide, filters, source, translated_captions
from mural_tf.ingest.convert import KINDS
from mural_tf.ingest.source import Captioned, Pair, Text
from mural_tf.ingest.sources import translations, wit

PATH = pathlib.Path("a.tsv")


def parsed(text):
    return source.parse_source(text, KINDS)


def units(*weights, sources=2):
    return range(len(weights)), [(n % sources, Unit(f"{n}.tsv", 0, 1, 0, weight)) for n, weight in enumerate(weights)]


def skipped(content, count):
    reader = io.BufferedReader(io.BytesIO(content), 4)
    return translations.skip_lines(reader, count), reader.read()


def hashed(*values):
    """The perceptual hash of a grey picture of 32 x 32."""
    y, x = np.mgrid[:32, :32]
    waves = sum(factor * np.cos(np.pi * (k * (2 * y + 1) + j * (2 * x + 1)) / 64) for factor, k, j in values)
    return filters.perceptual_hash(Image.fromarray(np.uint8(np.clip(128 + waves, 0, 255))))


def pairs_of(image, *texts):
    return Captioned("i", image, [Text(text, "en", "", "p") for text in texts])


def held_out(everywhere, language, image_id):
    hashes = {name: np.array(sorted(map(wit.image_hash, ids)), np.uint64) for name, ids in HELD.items()}
    splits = {"de": {"test": hashes["a"], "dev": hashes["b"]}, "en": {"test": hashes["c"], "dev": hashes["none"]}}
    made = wit.HeldOut.from_json(wit.HeldOut(everywhere, splits).as_json())
    return made.split_of(language, image_id)


HELD = {"a": ["1", "2"], "b": ["3"], "c": ["4"], "none": []}
IMAGES = {"de": np.array([1, 1, 2, 3, 4, 5, 6, 7], np.uint64), "en": np.array([2, 3, 8, 9], np.uint64)}
GOOGLE = '{{"src_lang": {}, "trg_lang": "de", "caption_tokenized": {}, "translation_tokenized": {}, "image_id": {}}}'
CALLS = {
    source._to_bool: given("true", "True", "1", "0", "FALSE", "yes", ""),
    source._to_tuple: given("", "a", "a++b"),
    source.column_of: given("column 2", "column lang", "column", "column ", "de", "col 2"),
    parsed: given(
        "opus:a.zip", "opus:a.zip,min_score=1.5", "pairs:a.tsv,header=true,language_b=de", "records:a,splits=dev+test",
        "opus:a,min_score", "opus:a,min_scor=1", "opus:a,min_score=x", "pairs:a,header=2", "opus:", "ops:a", "a.zip",
        "cc3m:a=b,images=c"
    ),
    translations.aligned_names: given(
        ["x.de-en.de", "x.de-en.en", "x.de-en.scores"], ["x.de-en.de"], ["a/de-en.en", "a/de-en.de"],
        ["x.zh-Hant-en.zh-Hant", "x.zh-Hant-en.en"],
        ["x.de-en.en", "x.de-en.de"], [], ["x.de.de", "x.de.en"], ["README", "b.de-fr.de", "b.de-fr.fr", "a.de-en.de",
        "a.de-en.en"]
    ),
    lambda pair: list(translations._divisions(pair)): given("de-en", "zh-Hant-en", "de"),
    translations._without_bom: given(None, b"\xef\xbb\xbfa", b"a\xef\xbb\xbf"),
    translations._is_number: given(b"1.5", b"nan", b"-inf", b"", None, b"x", b" 2 "),
    translations._shorter_file: [(("a", "b"), lines, part) for lines in ((translations._END, "x"), ("x",
    translations._END))
        for part in (Part(0, 5), Part(0, None))],
    translations._number_of: [("b", ["a", "b"], PATH), ("1", ["a", "b"], PATH), ("7", [], PATH), ("1", ["a", "b", "1"],
    PATH), ("c", ["a"], PATH)],
    translations._keys_of: [("b", ["a", "b"]), ("1", ["a", "b"]), ("2", ["a", "b"]), ("a.b", ["a"]), ("a.b", ["a.b"])],
    skipped: [(content, count) for content in (b"ab\ncd\nefghijk\n\nl", b"ab\n", b"") for count in range(7)],
    translated_captions.parse_google_line: given(*(GOOGLE.format(*parts) for parts in (
        ('"en"', '" a  b"', '"c"', '"1_0"'), ('"en"', '"a"', '"c"', "5"), ('"en"', '""', '"c"', "5"), ('"en"', '"a"',
        '" "', "5"), ('"xx"', '"a"', '"c"', "5"),
        ("5", '"a"', '"c"', "5"), ('"en"', "5", '"c"', "5"), ('"en"', '"a"', "[]", "5"), ('"en"', '"a"', '"c"', "[]"),
        ('"en"', '"\\ud800"', '"c"', "5"))),
        '{"src_lang": "en", "trg_lang": "xx", "caption_tokenized": "a", "translation_tokenized": "b"}',
        '{"src_lang": "iw", "trg_lang": "deu", "caption_tokenized": "a", "translation_tokenized": "b", "rec_num": 7}',
        "[]", "{", "{}"),
    translated_captions.translation_key: given("A Red-Hat, 12 of 3.5!", "a red hat # of # #", "", "ÄÖ", "12",
    'The "U.S." team, 1990-95', "the `` u.s. '' team , ## - ##"),
    lambda text: list(translated_captions.keys_of(text)): given(Text("A 1", "en", "", ""), Text("A 1", "de", "", "")),
    filters.count_unigrams: given("", "a b", "개가 달린다", "Tokyo 東京 tower", "赤い風船 x", "กข", "a,b  c", "ແລະ", "ខ្មែរ",
    "བོད", "မြန်", "豈"),
    filters.is_near: [(np.array(values, np.uint64), value, distance) for values in ([], [0,
    2**64 - 1]) for value in (0, 1, 3, 2**63 + 2**40, 2**64 - 2)
        for distance in (0, 1)],
    hashed: [((0, 0, 0),), ((50, 1, 0),), ((50, 0, 1),), ((40, 2, 3), (20, 1, 5)), ((30, 7, 7), (-60, 0, 7),
    (9, 8, 0))],
    decide.key_of_text: given(Text("a", "en", "g", "p"), Text("a", "en", "h", "q"), Text("a", "de", "", "")),
    decide.key_of_pair: given(Pair("a", "en", "b", "de", "", ""), Pair("b", "de", "a", "en", "g", "p"), Pair("a", "de",
    "b", "en", "", "")),
    decide.keys_of_captioned: [(name, pairs_of(image, "a", "b")) for name in (decide.SAME_TEXT, decide.SAME_IMAGE,
    "another") for image in (b"x", b"y")],
    build_vocabulary.temperature_factors: [({}, 2.0), ({"en": 100, "de": 25, "sw": 0}, 2.0), ({"en": 100, "de": 25},
    1.0), ({"en": 8, "de": 1}, 3.0)],
    convert._mixed: [(*units(1, 1, 1, 1), False), (*units(9, 1, 1, 1, 1), False), (*units(0, 0, 5), False),
    (*units(1, 1, 1, 1, 1, 1), True), (*units(), False)],
    convert._grouped: [(*units(5, 5, 5), 10), (*units(5, 5, 4), 10), (*units(5, 5, 5, 5), 10), (*units(20, 1), 10),
    (*units(1), 10), (*units(), 10),
        (*units(0, 0), 0)],
    wit._split_size: [(pairs, (100, 10)) for pairs in (400, 399, 40, 39, 3)],
    wit._first_pairs: [(np.array([9, 5, 7], np.uint64), np.array(counts), size) for counts in ([1, 1, 1], [2, 1, 1],
    [1, 5, 1]) for size in (0, 1, 2, 9)],
    wit.choose: [(IMAGES, sizes, everywhere) for sizes in ((1,), (2, 1)) for everywhere in (False, True)],
    wit.image_hash: given("a", ""),
    held_out: [(everywhere, language, name) for everywhere in (False, True) for language in ("de", "en",
    "fr") for name in "12345"],
}  # fmt: skip


def test_answers():
    assert_answers("answers_of_ingest", CALLS)
