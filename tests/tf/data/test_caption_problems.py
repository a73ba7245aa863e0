"""What the readers of caption files leave out, and where they say it was; the same entries, read as they should be."""

import json

import pytest

from mural_lite.errors import UserError
from mural_tf.data import caption_files
from mural_tf.data.caption_files import Caption, read_coco, read_coco_cn, read_flickr8k, read_karpathy, read_multi30k


def read(generator, *arguments, **options):
    problems = []
    captions = list(
        generator(*arguments, on_problem=lambda kind, location: problems.append((kind, location)), **options)
    )
    return captions, problems


def test_coco(tmp_path):
    path = tmp_path / "captions.json"
    images = [{"id": 5, "file_name": "5.jpg"}, {"id": "six", "file_name": 6}, {"id": None}, {"id": 7}, 3]
    texts = [(5, "a"), ("six", "a"), (None, "a"), (7, "a"), (5, 1), (5, None), (5, " ")]
    annotations = [{"id": 30 + place, "image_id": image, "caption": text} for place, (image, text) in enumerate(texts)]
    path.write_text(
        json.dumps({"images": images, "annotations": [*annotations, "x", {"image_id": 5, "caption": "b  c"}]})
    )
    captions, problems = read(read_coco, path, "deu")
    assert captions == [
        Caption("5.jpg", "5", "a", "de", f"{path}, annotation 30"),
        Caption("5.jpg", "5", "b c", "de", f"{path}, annotation number 9"),
    ]
    bad_id = "image id that is neither a number nor text"
    assert problems == [
        (bad_id, f"{path}, image None"), ("entry that is not a JSON object", f"{path}, image number 5"),
        ("image name that is not text", f"{path}, annotation 31"), (bad_id, f"{path}, annotation 32"),
        ("caption of an image that the file does not name", f"{path}, annotation 33"),
        ("caption that is not text", f"{path}, annotation 34"), ("empty caption", f"{path}, annotation 35"),
        ("empty caption", f"{path}, annotation 36"),
        ("entry that is not a JSON object", f"{path}, annotation number 8"),
    ]  # fmt: skip


def test_karpathy(tmp_path):
    path = tmp_path / "dataset.json"
    sentences = [{"raw": "a", "tokens": ["a"], "sentid": 70}, "x", {"raw": " "}, {"raw": "b"}]
    good = {"split": "test", "filename": "1.jpg", "imgid": 1, "sentences": sentences}
    changes = [{}, {"filepath": 3}, {"filename": None}, {"sentences": "a"}, {"cocoid": [1]}, {"split": None},
               {"split": "train"}, {"split": "tesu"}, {"cocoid": 9, "filepath": "val"}]  # fmt: skip
    entries = [{**good, "id": 20 + place, **change} for place, change in enumerate(changes)]
    path.write_text(json.dumps({"images": [*entries, 5]}))
    captions, problems = read(read_karpathy, path, "test")
    assert captions == [
        Caption("1.jpg", "1.jpg", "a", "en", f"{path}, sentence 70"),
        Caption("1.jpg", "1.jpg", "b", "en", f"{path}, sentence number 4"),
        Caption("val/1.jpg", "9", "a", "en", f"{path}, sentence 70"),
        Caption("val/1.jpg", "9", "b", "en", f"{path}, sentence number 4"),
    ]
    of_sentences = [
        ("entry that is not a JSON object", f"{path}, sentence number 2"),
        ("empty caption", f"{path}, sentence number 3"),
    ]
    assert problems == [
        ("entry that is not a JSON object", f"{path}, image number 10"), *of_sentences,
        ("image name that is not text", f"{path}, image 21"), ("image name that is not text", f"{path}, image 22"),
        ("image without a list of sentences", f"{path}, image 23"),
        ("image id that is neither a number nor text", f"{path}, image 24"),
        ("image without a split", f"{path}, image 25"),
        ("image of an unknown split, expected train, restval, val, test", f"{path}, image 27"), *of_sentences,
    ]  # fmt: skip
    assert len(read(read_karpathy, path, {"test"}, captions_per_image=1)[0]) == 2
    assert len(read(read_karpathy, path, ["test", "tesu", "train"])[0]) == 8  # all splits that the file has
    captions, others = read(read_karpathy, path, ["tesu", "train"])
    assert len(captions) == 4 and others == [problems[0], problems[7], *of_sentences, *of_sentences]
    with pytest.raises(UserError) as raised:
        read(read_karpathy, path, ("dev", "alt", "test"))
    assert str(raised.value) == f"{path} has no split alt, dev; it has test, tesu, train."


def test_flickr8k(tmp_path):
    quoted = tmp_path / "captions.txt"
    quoted.write_text('image,caption\n1.jpg,"a, b"\n\n2.jpg\n3.jpg,c,d\n4.jpg, e\n')
    assert read(read_flickr8k, quoted, "en") == (
        [Caption("1.jpg", "1.jpg", "a, b", "en", f"{quoted}:2"), Caption("4.jpg", "4.jpg", "e", "en", f"{quoted}:6")],
        [("row that is not image, caption", f"{quoted}:{line}") for line in (4, 5)],
    )
    quoted.write_text("a,b\n")
    with pytest.raises(UserError) as raised:
        read(read_flickr8k, quoted, "en")
    assert str(raised.value) == f"{quoted} begins with 'a,b', not with image,caption as Flickr8k's captions."
    tokens = tmp_path / "token.txt"
    tokens.write_text("1.jpg#0\ta\tb\n\n2.jpg b\n#0\tc\n")
    assert read(read_flickr8k, tokens, "cmn") == (
        [Caption("1.jpg", "1.jpg", "a b", "zh", f"{tokens}:1")],
        [("line without a tab between image and caption", f"{tokens}:3"),
         ("caption of an image that the file does not name", f"{tokens}:4")],
    )  # fmt: skip


def test_coco_cn(tmp_path):
    (tmp_path / "coco-cn_val.txt").write_text("COCO_val2014_000000000042\n COCO_train2014_000000000100 \n")
    for kind, text in (("human-written", "h"), ("manually-translated", "m")):
        lines = [f"COCO_val2014_{number:012d}#{k}\t{text}{k}\n" for number, k in ((42, 0), (43, 0), (42, 1))]
        (tmp_path / f"imageid.{kind}-caption.txt").write_text(
            "".join(lines) + f"COCO_train2014_000000000100#0\t{text}\n"
        )
    captions, problems = read(read_coco_cn, tmp_path, "val")
    assert [caption[1:4] for caption in captions] == [("42", "h0", "zh"), ("42", "h1", "zh"), ("100", "h", "zh")]
    assert captions[0][0] == "COCO_val2014_000000000042.jpg" and not problems
    assert captions[2][4] == f"{tmp_path}/imageid.human-written-caption.txt:4"
    assert [caption[2] for caption in read(read_coco_cn, tmp_path, "val", "manually-translated")[0]] == [
        "m0",
        "m1",
        "m",
    ]
    with pytest.raises(UserError) as raised:
        read(read_coco_cn, tmp_path, "dev")
    path = tmp_path / "coco-cn_dev.txt"
    assert str(raised.value) == f"COCO-CN, split dev: there is no {path} (nor coco-cn_dev.txt.gz)."


@pytest.mark.parametrize("split,language,task,images,first", [
    ("test_2016", "de", None, "task2/image_splits/test_2016_images.txt", "task2/raw/test_2016.1.de"),
    ("test_2016_flickr", "en", None, "task2/image_splits/test_2016_images.txt", "task2/raw/test_2016.1.en"),
    ("train", "en", None, "task2/image_splits/train_images.txt", "task2/raw/train.1.en"),
    ("val", "fr", None, "task1/image_splits/val.txt", "task1/raw/val.fr"),
    ("test_2016", "cs", None, "task1/image_splits/test_2016_flickr.txt", "task1/raw/test_2016_flickr.cs"),
    ("test_2017_mscoco", "de", None, "task1/image_splits/test_2017_mscoco.txt", "task1/raw/test_2017_mscoco.de"),
    ("train", "de", 1, "task1/image_splits/train.txt", "task1/raw/train.de"),
    ("test_2017_flickr", "de", 2, "task2/image_splits/test_2017_flickr_images.txt", "task2/raw/test_2017_flickr.1.de"),
])  # fmt: skip
def test_the_files_of_multi30k(split, language, task, images, first, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(caption_files, "_existing", lambda path, what: path)
    monkeypatch.setattr(caption_files, "read_aligned", lambda *arguments: taken.append(arguments) or ())
    report = print
    list(read_multi30k(tmp_path, split, language, task, report))
    files = [tmp_path / first]
    if "task2" in first:
        files = [tmp_path / first.replace(".1.", f".{k}.") for k in range(1, 6)]
    assert taken == [(file, tmp_path / images, language, report) for file in files]


def test_json_that_is_none(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    for content, message in (
        ("[" * 100_000, "its JSON is nested too deeply"), ("[1]", "it has no list 'images'"),
        ("", "no valid JSON (Expecting"),
        ('{"images": [], "annotations": {}}', "it has no list 'annotations'"),
    ):  # fmt: skip
        path.write_text(content)
        with pytest.raises(UserError) as raised:
            read(read_coco, path)
        assert str(raised.value).startswith(f"{path} is not COCO's captions: {message}")
    path.write_text(json.dumps({"images": [], "annotations": []}))
    monkeypatch.setattr(caption_files, "LARGEST_JSON", path.stat().st_size)
    assert read(read_coco, path) == ([], [])
    monkeypatch.setattr(caption_files, "LARGEST_JSON", path.stat().st_size - 1)
    with pytest.raises(UserError, match=f"^{path} is not COCO's captions: it has more than 32 bytes.$"):
        read(read_coco, path)
