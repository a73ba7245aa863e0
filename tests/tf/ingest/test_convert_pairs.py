"""Translation pairs from every published format, with its traps."""

import gzip
import lzma

import pyarrow
import pyarrow.parquet
import pytest
from convert_data import pairs_in, reported, run, write_moses

from mural_lite.errors import UserError
from mural_tf.data.records import TextPair


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
    output = run([f"lines:{tmp_path}/a.en.gz,partner={tmp_path}/a.de,language_b=de"], tmp_path / "out")
    assert pairs_in(output) == [TextPair("one", "en", "eins", "de"), TextPair("two", "en", "zwei", "de")]
    with pytest.raises(UserError, match="needs a language: lines:.*a.en.gz,language_b=de"):
        run([f"lines:{tmp_path}/a.en.gz,partner={tmp_path}/a.de"], tmp_path / "no")


def test_pairs_tsv(tmp_path):
    path = tmp_path / "pairs.tsv.xz"
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
    named = source.replace("text_a=2,text_b=3,language_b=column 1", "text_a=a,text_b=b,language_b=column l")
    assert pairs_in(run([named], tmp_path / "named")) == pairs_in(output)
    with pytest.raises(UserError, match="lacks the column 'c': expected a number from 0, or .* \\(score, l, a, b\\)"):
        run([named.replace("text_b=b", "text_b=c")], tmp_path / "no")


def test_pairs_in_parquet(tmp_path):
    """As data sets have them today: texts in columns or in fields of one, languages and groups in columns."""
    path, odd = tmp_path / "a.parquet", tmp_path / "b.parquet"
    rows = [{"translation": {"de": f"Satz {n}", "en": f"text {n}"}, "to": "jp", "id": n // 2} for n in range(5)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    source = f"pairs:{path},text_a=translation.en,text_b=translation.de,language_b=de,group=id"
    output = run([source], tmp_path / "out", unit_bytes=1)
    assert pairs_in(output) == [TextPair(f"text {n}", "en", f"Satz {n}", "de", str(n // 2)) for n in range(5)]
    by_number = run([f"pairs:{path},text_a=translation.en,text_b=1,language_b=column 1"], tmp_path / "number")
    assert pairs_in(by_number)[0] == TextPair("text 0", "en", "jp", "ja")
    rows = [{"x": "a", "y": 5, "to": "de"}, {"x": "b", "y": None, "to": "de"}, {"x": " ", "y": 1, "to": "de"}]
    texts = [{"x": "a", "y": "b", "to": "??"}, {"x": "a", "y": "b", "to": None}, {"x": "a", "y": "", "to": "de"}]
    for name, table in {"b": rows, "c": [*texts, {"x": "fine", "y": "gut", "to": "de"}]}.items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / f"{name}.parquet")
    (tmp_path / "d.parquet").write_bytes(b"broken")
    output = run([f"pairs:{tmp_path}/[bcd].parquet,text_a=x,text_b=y,language_b=column to"], tmp_path / "odd")
    assert pairs_in(output) == [TextPair("fine", "en", "gut", "de")]
    assert reported(output) == {
        "text or group that is not text": 3, "unknown language": 2, "empty text": 1,
        "Parquet file that cannot be read": 1,
    }  # fmt: skip
    with pytest.raises(UserError, match="b.parquet lacks the column 'z'; it has x, y, to"):
        run([f"pairs:{odd},text_a=z,language_b=de"], tmp_path / "no")
