"""Translation pairs from every published format, with its traps."""

import bz2
import gzip
import json

import pytest
from convert_data import pairs_in, reported, run, write_moses

from mural_tf.data.records import TextPair
from mural_tf.errors import UserError
from mural_tf.ingest.sources.translations import aligned_names


def test_moses_zip(tmp_path):
    path = write_moses(
        tmp_path / "en-iw.txt.zip",
        {  # CRLF, U+2028 and U+0085 inside a sentence, an empty line, bytes that are not text, no newline at the end
            "GNOME.en-iw.en": "One\r\nTwo\u2028and\u0085more\nThree\n\nFive\nSix".encode(),
            "GNOME.en-iw.iw": "אחת\r\nשתיים\nשלוש\nארבע\n".encode() + b"\xff\xfe\n" + "שש".encode(),
            "GNOME.en-iw.ids": b"1\n2\n",
        },
    )
    output = run([f"opus:{path}"], tmp_path / "out")
    assert pairs_in(output) == [
        TextPair("One", "en", "אחת", "he"),
        TextPair("Two and more", "en", "שתיים", "he"),
        TextPair("Three", "en", "שלוש", "he"),
        TextPair("Six", "en", "שש", "he"),
    ]
    place = f"{path}!GNOME.en-iw.en"
    assert reported(output) == {"empty text": 1, "text that is not UTF-8": 1}
    first = {"empty text": f"{place}:4", "text that is not UTF-8": f"{place}:5"}
    assert reported(output, value="first") == first
    assert (output / "skipped.tsv").read_text(encoding="utf-8") == (
        f"empty text\t{place}:4\ntext that is not UTF-8\t{place}:5\n"
    )


def test_ccmatrix_scores(tmp_path):
    members = {"CCMatrix.de-en.de": b"eins\nzwei\ndrei\n", "CCMatrix.de-en.en": b"one\ntwo\nthree\n"}
    path = write_moses(tmp_path / "de-en.txt.zip", {**members, "CCMatrix.de-en.scores": b"1.25\n1.04\nhigh\n"})
    output = run([f"opus:{path},min_score=1.1"], tmp_path / "out")
    assert [pair.text_b for pair in pairs_in(output)] == ["one"]
    assert reported(output, "left_out", "first")["score below min_score"].endswith("CCMatrix.de-en.de:2")
    assert reported(output, value="first")["score that is not a number"].endswith("CCMatrix.de-en.de:3")
    assert len(pairs_in(run([f"opus:{path}"], tmp_path / "all"))) == 3
    without = write_moses(tmp_path / "plain.zip", members)
    with pytest.raises(UserError, match="holds no .scores"):
        run([f"opus:{without},min_score=1.1"], tmp_path / "none")


def test_moses_zips_that_cannot_be_used_are_reported(tmp_path):
    good = write_moses(tmp_path / "a.zip", {"X.de-en.de": b"eins\nzwei\n", "X.de-en.en": b"one\n"})
    write_moses(tmp_path / "b.zip", {"X.de-en.de": b"eins\n"})
    write_moses(tmp_path / "c.zip", {"X.de-xx.de": b"eins\n", "X.de-xx.xx": b"one\n"})
    (tmp_path / "d.zip").write_bytes(good.read_bytes()[:100])
    output = run([f"opus:{tmp_path}/*.zip"], tmp_path / "out")
    assert len(pairs_in(output)) == 1
    kinds = {kind: at.removeprefix(str(tmp_path)) for kind, at in reported(output, value="first").items()}
    assert kinds == {
        "aligned file with fewer lines than its partner": "/a.zip!X.de-en.en:2",
        "zip without aligned files NAME.a-b.a and NAME.a-b.b": "/b.zip",
        "unknown language in de-xx": "/c.zip",
        "file that is not a zip or is cut off": "/d.zip",
    }


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["X.a-b.a", "X.a-b.b"], (("X.a-b.a", "X.a-b.b"), ("a", "b"), None)),
        (["in/X.v1.en-zh-Hant.en", "in/X.v1.en-zh-Hant.zh-Hant"],
         (("in/X.v1.en-zh-Hant.en", "in/X.v1.en-zh-Hant.zh-Hant"), ("en", "zh-Hant"), None)),
        (["X.a-b.scores", "X.a-b.b", "X.a-b.a"], (("X.a-b.a", "X.a-b.b"), ("a", "b"), "X.a-b.scores")),
        (["X.a-b.a", "Y.a-b.b", "README"], None),
    ],
)  # fmt: skip
def test_aligned_names(names, expected):
    assert aligned_names(names) == expected


def test_opus_100(tmp_path):
    def write(name, text):
        path = tmp_path / "v1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    write("supervised/de-en/opus.de-en-train.de", "eins\nzwei\n")
    write("supervised/de-en/opus.de-en-train.en", "one\ntwo\n")
    write("supervised/de-en/opus.de-en-dev.de", "drei\n")
    write("supervised/de-en/opus.de-en-dev.en", "three\n")
    write("supervised/de-en/opus.de-en-test.de", "neun\n")  # not asked for below, though zero-shot has test sets too
    write("supervised/de-en/opus.de-en-test.en", "nine\n")
    write("supervised/en-yi/opus.en-yi-train.en", "four\n")  # English first, and no dev or test
    write("supervised/en-yi/opus.en-yi-train.yi", "פיר\n")
    write("supervised/en-zu/opus.en-zu-train.en", "five\n")  # without its partner
    write("zero-shot/de-fr/opus.de-fr-test.de", "sechs\n")
    write("zero-shot/de-fr/opus.de-fr-test.fr", "six\n")
    output = run([f"opus100:{tmp_path}/v1.0,splits=train+dev+zero-shot"], tmp_path / "out")
    assert {pair.text_a for pair in pairs_in(output)} == {"eins", "zwei", "four"}
    assert pairs_in(output, "dev") == [TextPair("drei", "de", "three", "en")]
    assert pairs_in(output, "test") == [TextPair("sechs", "de", "six", "fr")]
    assert list(reported(output)) == ["aligned file without its partner"]
    output = run([f"opus100:{tmp_path}/v1.0,languages=en+yi"], tmp_path / "yi")
    assert pairs_in(output) == [TextPair("four", "en", "פיר", "yi")]
    with pytest.raises(UserError, match="no split validation"):
        run([f"opus100:{tmp_path}/v1.0,splits=validation"], tmp_path / "no")


def test_tatoeba_test_and_its_exclusion(tmp_path):
    (tmp_path / "tatoeba.deu-eng.deu").write_text("Wie lange soll ich bleiben?\nHallo!\nSTRASSE\n", encoding="utf-8")
    (tmp_path / "tatoeba.deu-eng.eng").write_text("How long should I stay?\nHello!\nstreet\n", encoding="utf-8")
    output = run([f"tatoeba:{tmp_path}"], tmp_path / "test")
    assert pairs_in(output, "test")[1] == TextPair("Hallo!", "de", "Hello!", "en")
    corpus = write_moses(
        tmp_path / "de-en.txt.zip",
        {"Tatoeba.de-en.de": "Wie lange soll ich  bleiben?\nGuten Tag!\nStraße\n".encode(),
         "Tatoeba.de-en.en": b"How long?\nHELLO!\nroad\n"},
    )  # fmt: skip
    with pytest.raises(UserError, match="Nothing to write: .*left out 3 x text of the --exclude_texts files"):
        run([f"opus:{corpus}"], tmp_path / "out", exclude_texts=(f"{tmp_path}/tatoeba.*",))


def test_any_two_files(tmp_path):
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfone\ntwo\n"))
    (tmp_path / "a.de").write_bytes(b"eins\nzwei")
    output = run([f"lines:{tmp_path}/a.en.gz,partner={tmp_path}/a.de,language_b=de,split=dev"], tmp_path / "out")
    assert pairs_in(output, "dev") == [TextPair("one", "en", "eins", "de"), TextPair("two", "en", "zwei", "de")]
    with pytest.raises(UserError, match="Unknown language"):
        run([f"lines:{tmp_path}/a.en.gz,partner={tmp_path}/a.de"], tmp_path / "no")


def test_pairs_tsv(tmp_path):
    path = tmp_path / "pairs.tsv.xz"
    import lzma

    path.write_bytes(
        lzma.compress('score\tl\ta\tb\n0.5\tjp\ta "dog"\t犬\n0.4\tjp\tcat\n0.4\t??\tcat\t猫\n0.1\tja\t\tx\n'.encode())
    )
    source = f"pairs:{path},header=true,text_a=2,text_b=3,language_b=column 1"
    output = run([source], tmp_path / "out")
    assert pairs_in(output) == [TextPair('a "dog"', "en", "犬", "ja")]
    assert reported(output, value="first") == {
        "row with the wrong number of columns": f"{path}:3",
        "unknown language": f"{path}:4",
        "empty text": f"{path}:5",
    }


TMX = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" segtype="sentence"/><body>
 <tu><tuv xml:lang="de"><seg>Ein <bpt i="1">Hund</bpt>
 bellt &amp; rennt.</seg></tuv><tuv xml:lang="EN-us"><seg>A dog barks.</seg></tuv></tu>
 <tu><tuv xml:lang="en"><seg>Only one</seg></tuv></tu>
 <tu><tuv lang="en"><seg>three</seg></tuv><tuv xml:lang="fr"><seg>trois</seg></tuv>
 <tuv xml:lang="iw"><seg>שלוש</seg></tuv></tu>
 <tu><tuv xml:lang="en"><seg>x</seg></tuv><tuv xml:lang="??"><seg>y</seg></tuv></tu>
"""


def test_tmx(tmp_path):
    path = tmp_path / "memory.tmx.gz"
    path.write_bytes(gzip.compress((TMX + "</body></tmx>").encode()))
    output = run([f"tmx:{path}"], tmp_path / "out")
    place = f"{path}, unit 3"
    assert pairs_in(output) == [
        TextPair("Ein Hund bellt & rennt.", "de", "A dog barks.", "en-US"),
        TextPair("three", "en", "trois", "fr", place),
        TextPair("three", "en", "שלוש", "he", place),
        TextPair("trois", "fr", "שלוש", "he", place),
    ]
    assert reported(output, value="first") == {
        "unit with fewer than two languages": f"{path}, unit 2",
        "unknown language": f"{path}, unit 4: '??'",
    }
    path.write_bytes(gzip.compress(TMX.encode()))  # cut off
    output = run([f"tmx:{path},languages=en+fr"], tmp_path / "cut")
    assert pairs_in(output) == [TextPair("three", "en", "trois", "fr")]
    assert any(kind.startswith("XML that is damaged") for kind in reported(output))


def google_line(**changes):
    entry = {
        "image_id": "391895_1", "src_lang": "en", "trg_lang": "de", "caption_tokenized": "a man on a bike .",
        "translation_tokenized": "ein Mann auf einem Fahrrad .", "backtranslation_tokenized": "a man on a bicycle .",
    }  # fmt: skip
    return json.dumps({**entry, **changes}, ensure_ascii=False)


def test_google_translations(tmp_path):
    path = tmp_path / "coco_mt_train.jsonl.bz2"
    lines = [
        google_line(),
        google_line(trg_lang="iw", translation_tokenized="גבר"),
        "{broken",
        google_line(trg_lang="fr"),
    ]
    path.write_bytes(bz2.compress("\n".join([*lines, google_line(translation_tokenized="")]).encode()))
    output = run([f"google_mt:{path},languages=de+he"], tmp_path / "out")
    assert pairs_in(output) == [
        TextPair("a man on a bike .", "en", "ein Mann auf einem Fahrrad .", "de", "391895_1"),
        TextPair("a man on a bike .", "en", "גבר", "he", "391895_1"),
    ]
    assert reported(output)["empty text"] == 1 and reported(output, value="first")["empty text"] == f"{path}:5"
    assert reported(output, "left_out")["language not asked for"] == 1
