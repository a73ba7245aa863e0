"""Benchmarks whose photographs or drawings anybody can fetch, on small files in their published forms."""

import json
import struct
import zlib

import fake_embedder
import numpy as np
import pytest
from fake_embedder import FakeEmbedder, TwoHeads, one_hot
from test_evaluation_captioned import naive_mean_recall, write, write_gz

from mural_lite.errors import UserError
from mural_tf.evaluation import babel_imagenet, gcompris
from mural_tf.evaluation.tables import table


def run(name, folder, **options):
    (result,) = fake_embedder.run(name, folder, **{"max_missing": 0.5, **options})
    return result


@pytest.fixture
def flickr8k(tmp_path):
    """Two of three photographs, in the clones' folders; a caption has a comma, a line no tab, as in the real files."""
    rows = ["image,caption"]
    for i, name in enumerate(("100_aa.jpg", "200_bb.jpg")):
        rows += [f"{name},{one_hot(i)}", f'{name},"{one_hot(i)} , "']
        write(tmp_path / "sic_translator/data/images" / name, one_hot(i))
    write(tmp_path / "sic_translator/data/captions.txt", "\n".join(rows) + "\n")
    arabic = [f"{name}#{k}\t{one_hot(1)}" for name in ("100_aa.jpg", "200_bb.jpg", "300_cc.jpg") for k in range(3)]
    arabic.insert(4, "rest of a caption")
    write(tmp_path / "Arabic-Image-Captioning/data/Flickr8k_text/Flickr8k.arabic.full.txt", "\n".join(arabic) + "\n")
    return tmp_path


class NoCommas(FakeEmbedder):
    def encode_text(self, texts, **options):
        return super().encode_text([text.replace(",", "") for text in texts], **options)


IMAGES = "sic_translator/data/images"


def test_flickr8k_of_the_photographs_that_are_there(flickr8k):
    result = run("flickr8k", flickr8k, embedder=NoCommas(), subset=True, images=str(flickr8k / IMAGES))
    assert result.sizes["en"] == {"images": 2, "captions": 4, "repeated_captions": 0}
    assert result.metrics["flickr8k/en/mean_recall"] == 100
    # ar: all six captions are of the second photograph. Of them three are right at once, three come second.
    assert result.metrics["flickr8k/ar/text_to_image/recall@1"] == 50
    assert "only the 2 of 3 images that are in the folder, 2 of 2 images" in result.protocol
    assert "subset=True" in result.protocol
    assert ["line without a tab" in note for note in result.notes] == [True]


def test_flickr8k_does_not_hide_missing_photographs(flickr8k):
    result = run("flickr8k", flickr8k, embedder=NoCommas(), images=str(flickr8k / IMAGES))
    assert result.protocol.startswith("NOT COMPLETE: ") and "2 of 3 images" in result.protocol
    with pytest.raises(UserError, match="1 of 3 images.*max_missing"):
        run("flickr8k", flickr8k, embedder=NoCommas(), images=str(flickr8k / IMAGES), max_missing=0.2)
    with pytest.raises(
        UserError, match="100_aa.jpg and the other images of Flickr8k, all are missing: name --protocol.images=FOLDER"
    ):
        run("flickr8k", flickr8k, subset=True)


def test_flickr8k_splits_and_form(flickr8k):
    with pytest.raises(UserError, match="no Flickr_8k.testImages.txt"):
        run("flickr8k", flickr8k, split="test")
    folder = flickr8k / "Arabic-Image-Captioning/data/Flickr8k_text"
    write(folder / "Flickr_8k.testImages.txt", "200_bb.jpg\r\n")
    result = run("flickr8k", flickr8k, embedder=NoCommas(), split="test", images=str(flickr8k / IMAGES))
    assert {language: size["captions"] for language, size in result.sizes.items()} == {"ar": 3, "en": 2}
    write(flickr8k / "sic_translator/data/captions.txt", "name|text\n")
    with pytest.raises(UserError, match=r"begins with 'name\|text', not with image,caption"):
        run("flickr8k", flickr8k)


def test_multi30k_of_flickr8ks_photographs_in_several_splits(flickr8k):
    """Multi30K's 100.jpg is Flickr8k's 100_aa.jpg; the third photograph is missing."""
    for split, names in (("train", ["100.jpg", "999.jpg"]), ("val", ["200.jpg"])):
        write(flickr8k / f"dataset/data/task1/image_splits/{split}.txt", "\n".join(names) + "\n")
        for language in ("en", "cs"):
            lines = [one_hot(int(name[0]) - 1 if name != "999.jpg" else 3) for name in names]
            write_gz(flickr8k / f"dataset/data/task1/raw/{split}.{language}.gz", lines)
    write(flickr8k / "dataset/data/task2/raw/none", "")
    options = dict(subset=True, images=str(flickr8k / IMAGES), multi30k__captions="one", split="train,val")
    result = run("multi30k", flickr8k / "dataset", **options)
    assert result.sizes["cs"] == {"images": 2, "captions": 2, "repeated_captions": 0}
    assert result.metrics["multi30k/en/mean_recall"] == 100
    assert "only the 2 of 3 images that are in the folder" in result.protocol
    with pytest.raises(UserError, match="no split 'test'; it has train, val"):
        run("multi30k", flickr8k / "dataset", **{**options, "split": "train,test"})


@pytest.fixture
def babel(tmp_path, monkeypatch):
    """Four classes, one photograph each; German names three of them, the second one wrongly."""
    monkeypatch.setattr(babel_imagenet, "CLASSES", 4)
    monkeypatch.setattr(babel_imagenet, "MANY", 3)
    monkeypatch.setattr(babel_imagenet, "GROUP", "many")
    for i in range(4):
        write(tmp_path / f"imagenet-sample-images/n0000000{i}_name_{i}.JPEG", one_hot(i))
    write(tmp_path / "imagenet-sample-images/README.md", "")
    names = {
        "EN": [[0, 1, 2, 3], [one_hot(i) for i in range(4)]],
        "DE": [[0, 2, 3], [one_hot(0), one_hot(3), one_hot(3)]],
        "ZH_YUE": [[1], [one_hot(1)]],
    }
    write(tmp_path / "Babel-ImageNet/data/babel_imagenet.json", json.dumps(names))
    results = [
        {"lang": "DE", "prompt": "label", "num_classes": 3, "accuracy": 0.5},
        {"lang": "DE", "prompt": "nllb_dist13b_prompts", "num_classes": 3, "accuracy": 0.9},
        {"lang": "EN", "prompt": "label", "num_classes": 1000, "accuracy": 0.7},  # of other classes than ours
        {"lang": "XX", "prompt": "label", "num_classes": 3, "accuracy": 0.1},
    ]
    write(tmp_path / "Babel-ImageNet/results/babel-imagenet/rival.json", json.dumps({"meta": {}, "results": results}))
    return tmp_path


def test_babel_imagenet_among_the_classes_of_the_language(babel):
    result = run("babel_imagenet", babel)
    # de: photograph 0 is right; both other names are the vector of 3, so photographs 2 and 3 tie: rank 1 1/2, or worse.
    assert result.metrics["babel_imagenet/de/accuracy@1"] == pytest.approx(100 / 3)
    assert result.metrics["babel_imagenet/en/accuracy@1"] == 100
    assert result.sizes["de"] == {"pictures": 3, "classes": 3, "templates": 1}
    assert result.metrics["babel_imagenet/many/accuracy@1"] == pytest.approx(100 / 3)
    assert result.published == {"de": {"rival": 50.0}, "many": {"rival": 50.0}}
    assert "NOT LIKE WITH LIKE" in result.notes[-1] and "ours of 4 other" in result.notes[-1]
    printed = table(result)
    assert [line.split()[-1] for line in printed.splitlines() if line.startswith("de ")] == ["50.00"]
    assert not any("rival" in key for key in result.metrics)  # theirs are not written among ours


def test_babel_imagenet_refuses_other_classes_and_languages(babel):
    with pytest.raises(UserError, match="No class names in xx; there are de, en, zh-yue"):
        run("babel_imagenet", babel, languages=("xx",))
    (babel / "imagenet-sample-images/n00000003_name_3.JPEG").unlink()
    with pytest.raises(UserError, match="are of 3 of ImageNet's 4 classes.*Fetch them again"):
        run("babel_imagenet", babel)


def resources(files, version=3, flags=1, magic=b"qres"):
    """A resource file of Qt with /data/<name> for each of `files`."""
    names, contents, nodes = b"", b"", []

    def name(text):
        nonlocal names
        at = len(names)
        names += struct.pack(">HI", len(text), 0) + text.encode("utf-16-be")
        return at

    time = b"" if version == 1 else struct.pack(">Q", 0)
    nodes.append(struct.pack(">IHII", 0, 2, 1, 1) + time)
    nodes.append(struct.pack(">IHII", name("data"), 2, len(files), 2) + time)
    for file, text in files.items():
        content = text.encode()
        if flags & 1:
            content = struct.pack(">I", len(content)) + zlib.compress(content)
        nodes.append(struct.pack(">IHHHI", name(file), flags, 0, 1, len(contents)) + time)
        contents += struct.pack(">I", len(content)) + content
    head = 20 + 4 * (version > 2)
    tree = head + len(names) + len(contents)
    header = magic + struct.pack(">4I", version, tree, head + len(names), head)
    header += struct.pack(">I", flags) if version > 2 else b""
    return header + names + contents + b"".join(nodes)


def write_gcompris(folder, **form):
    """Three drawings; the Portuguese of Brazil lacks a word, one word has no drawing; "b" and "c" share a word."""
    words = {
        "en": {"a.ogg": one_hot(0), "b.ogg": one_hot(1), "c.ogg": one_hot(2), "10.ogg": one_hot(3)},
        "pt_BR": {"a.ogg": " ", "b.ogg": one_hot(1), "c.ogg": one_hot(1) + " "},
    }
    files = {f"content-{language}.json": json.dumps(entries) for language, entries in words.items()}
    path = folder / "gcompris-qt-data/usr/share/gcompris-qt/rcc/lang.rcc"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(resources({**files, "words.json": "[]"}, **form))
    for i, name in enumerate("abcd"):
        write(folder / f"GCompris-gtk/src/lang-activity/resources/lang/words/{name}.png", one_hot(i))


@pytest.mark.parametrize("form", [{}, {"version": 1}, {"version": 2, "flags": 0}])
def test_gcompris_in_each_version(tmp_path, form):
    write_gcompris(tmp_path, **form)
    result = run("gcompris", tmp_path)
    assert result.sizes == {
        "en": {"images": 3, "captions": 3, "repeated_captions": 0},
        "pt-BR": {"images": 2, "captions": 2, "repeated_captions": 2},
    }
    assert result.metrics["gcompris/en/mean_recall"] == 100
    assert result.metrics["gcompris/pt-BR/text_to_image/recall@1"] == 50  # both words find the drawing b
    assert result.notes == ["1 of 4 drawings have no word and are left out."]


@pytest.mark.parametrize("form, message", [
    ({"flags": 4}, "lang.rcc: /data/content-en.json has a compression that is not known .flags 4.; zlib's is"),
    ({"version": 9}, "version 9 of Qt's resource files; versions 1 to 3 are known"),
    ({"magic": b"PK\3\4"}, "not a resource file of Qt: it begins with b'PK"),
])  # fmt: skip
def test_gcompris_refuses_in_a_line(tmp_path, form, message):
    write_gcompris(tmp_path, **form)
    with pytest.raises(UserError, match=message) as error:
        run("gcompris", tmp_path)
    assert "\n" not in str(error.value)


def test_numbers_of_a_resource_file_take_no_memory(tmp_path, monkeypatch):
    """A folder that claims two thousand million children, and a content that is larger than any file of words."""
    write_gcompris(tmp_path)
    path = tmp_path / "gcompris-qt-data/usr/share/gcompris-qt/rcc/lang.rcc"
    whole = path.read_bytes()
    path.write_bytes(whole[: -22 * 5] + struct.pack(">IHII", 0, 2, 2**31, 0) + whole[-22 * 5 + 14 :])
    with pytest.raises(UserError, match="folders hold more than the file"):
        run("gcompris", tmp_path)
    path.write_bytes(whole)
    monkeypatch.setattr(gcompris, "LARGEST", 8)
    with pytest.raises(UserError, match="content-.* is cut off, or has more than 8 bytes"):
        run("gcompris", tmp_path)


def test_gcompris_refuses_damage(tmp_path):
    write_gcompris(tmp_path)
    path = tmp_path / "gcompris-qt-data/usr/share/gcompris-qt/rcc/lang.rcc"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(UserError, match="is damaged"):
        run("gcompris", tmp_path)
    path.write_bytes(resources({"other.json": "{}"}))
    with pytest.raises(UserError, match="holds no content-<language>.json"):
        run("gcompris", tmp_path)


@pytest.fixture
def xtd(tmp_path):
    """Twelve photographs in three languages and folders; CRLF without a last line end, as the real files have it."""
    random = np.random.default_rng(0)
    write(tmp_path / "XTD10/test_image_names.txt", "".join(f"COCO_val2014_{i:012d}.jpg\n" for i in range(12)))
    vectors = {}
    for language, folder in (("en", "XTD10"), ("es", "XTD10"), ("jp", "STAIR")):
        vectors[language] = random.integers(-9, 10, (12, 3))
        lines = [" ".join(map(str, vector)) for vector in vectors[language]]
        text = "\r\n".join(lines) if language == "es" else "\n".join(lines) + "\n"
        write(tmp_path / folder / f"test_1kcaptions_{language}.txt", text)
    return tmp_path, vectors


def test_xtd_texts_against_a_plain_loop(xtd):
    folder, vectors = xtd
    result = run("xtd_texts", folder)
    assert set(result.sizes) == {"en", "es", "ja"}
    pairs = {}
    for first, second in (("en", "es"), ("en", "jp"), ("es", "jp")):
        pairs[first, second] = naive_mean_recall(vectors[first], vectors[second], np.arange(12))
    expected = (pairs["en", "es"] + pairs["en", "jp"]) / 2
    assert result.metrics["xtd_texts/en/mean_recall"] == pytest.approx(expected)
    assert result.metrics["xtd_texts/all/mean_recall"] == pytest.approx(np.mean(list(pairs.values())))
    with pytest.raises(UserError, match="Name two or more of en, es, ja with --languages; got en"):
        run("xtd_texts", folder, languages=("en", "en"))
    to_ja = [np.argmax(vectors["jp"] @ vector) for vector in vectors["en"]]
    only = run("xtd_texts", folder, languages=("en", "ja"))
    assert only.metrics["xtd_texts/en/to_others/recall@1"] == pytest.approx(
        100 * np.mean(to_ja == np.arange(12)), abs=9
    )
    assert only.metrics["xtd_texts/en/to_others/recall@1"] == only.metrics["xtd_texts/ja/from_others/recall@1"]


def test_xtd_texts_by_each_head(xtd):
    result = run("xtd_texts", xtd[0], embedder=TwoHeads())
    assert result.metrics["xtd_texts/all/mean_recall"] == result.metrics["xtd_texts/all/mean_recall_text_text_head"]


def test_xtd_texts_leaves_out_photographs_without_a_caption_and_says_so(xtd):
    folder, _ = xtd
    path = folder / "XTD10/test_1kcaptions_en.txt"
    lines = path.read_text().splitlines()
    write(path, "\n".join([lines[0], " ", *lines[2:]]) + "\n")
    result = run("xtd_texts", folder)
    assert result.protocol.startswith("NOT COMPLETE") and result.sizes["ja"]["captions"] == 11
    assert "without a caption in en, first at" in result.notes[0] and "test_image_names.txt:2" in result.notes[0]
    with pytest.raises(UserError, match="1 of 12 rows cannot be used"):
        run("xtd_texts", folder, max_missing=0.05)
    write(path, "\n".join(lines[1:]) + "\n")
    with pytest.raises(UserError, match="has 11 lines and test_image_names.txt 12"):
        run("xtd_texts", folder)


@pytest.mark.parametrize("name", ["flickr8k", "babel_imagenet", "gcompris", "xtd_texts"])
def test_a_wrong_folder_says_where_to_get_the_files(tmp_path, name):
    with pytest.raises(UserError, match=f"lacks .*{name!r} needs. Get it: .*(git clone|apt-get download)"):
        run(name, tmp_path)
