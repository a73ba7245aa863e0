"""Retrieval benchmarks read from files in their published formats, traps included, with vectors known in advance."""

import gzip
import json

import fake_embedder
import numpy as np
import pytest
from fake_embedder import one_hot

from mural_lite.errors import UserError


def run(name, folder, **options):
    return fake_embedder.run(name, folder, **{"max_missing": 0.5, **options})


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))


def write_gz(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))


@pytest.fixture
def multi30k(tmp_path):
    """Three images; five captions in en and de (task 2), one in fr and cs (task 1), in the repository's layout."""
    names = [f"{i}.jpg" for i in range(3)]
    for i, name in enumerate(names):
        write(tmp_path / "flickr30k-images" / name, one_hot(i))
    for k in range(1, 6):
        for language in ("en", "de"):
            write_gz(tmp_path / f"data/task2/raw/test_2016.{k}.{language}.gz", [one_hot(i) for i in range(3)])
    write(tmp_path / "data/task2/image_splits/test_2016_images.txt", "\n".join(names) + "\n")
    for language in ("en", "de", "fr", "cs"):
        write_gz(tmp_path / f"data/task1/raw/test_2016_flickr.{language}.gz", [one_hot(i) for i in (0, 2, 1)])
    write(tmp_path / "data/task1/image_splits/test_2016_flickr.txt", "\n".join(names) + "\n")
    return tmp_path


def test_multi30k_counts_five_captions_where_there_are_five(multi30k):
    (result,) = run("multi30k", multi30k)
    assert result.sizes["en"] == {"images": 3, "captions": 15, "repeated_captions": 0}
    assert result.sizes["cs"] == {"images": 3, "captions": 3, "repeated_captions": 0}
    assert result.metrics["multi30k/de/mean_recall"] == 100
    # cs: image 0 is right, 1 and 2 have each other's caption: recall@1 is 1/3 both ways, the other four are 100.
    assert result.metrics["multi30k/cs/mean_recall"] == pytest.approx((2 * 100 / 3 + 400) / 6)
    assert result.protocol.startswith("image-text retrieval") and not result.notes


def test_multi30k_with_one_caption_each(multi30k):
    (result,) = run("multi30k", multi30k, languages=("en",), multi30k__captions="one")
    assert result.sizes == {"en": {"images": 3, "captions": 3, "repeated_captions": 0}}
    assert "multi30k.captions=one" in result.protocol


def test_missing_images_are_said_and_bounded(multi30k):
    (multi30k / "flickr30k-images" / "1.jpg").unlink()
    (result,) = run("multi30k", multi30k)
    assert result.protocol.startswith("NOT COMPLETE: ") and "2 of 3 images" in result.protocol
    assert "1 of 3 images" in result.notes[0] and "1.jpg" in result.notes[0]
    with pytest.raises(UserError, match="1 of 3 images.*--protocol.max_missing=0.05"):
        run("multi30k", multi30k, max_missing=0.05)


def test_empty_caption_is_listed_with_its_line(multi30k):
    write_gz(multi30k / "data/task1/raw/test_2016_flickr.cs.gz", [one_hot(0), " ", one_hot(2)])
    (result,) = run("multi30k", multi30k, languages=("cs",))
    assert result.sizes["cs"]["captions"] == 2
    assert "empty caption, first at" in result.notes[0] and "test_2016_flickr.cs.gz:2" in result.notes[0]


def karpathy(images, captions_of, filepath="val2014"):
    sentence = iter(range(10_000_000))
    return {
        "images": [
            {
                "filepath": filepath,
                "filename": f"COCO_val2014_{i:012d}.jpg",
                "cocoid": i,
                "split": "test",
                "sentences": [{"raw": text, "sentid": next(sentence), "tokens": []} for text in captions_of(i)],
            }
            for i in images
        ]
    }


@pytest.fixture
def coco(tmp_path, monkeypatch):
    """400 images in folds of 200: six captions of the first, five of the others; STAIR captions of the first 300."""
    monkeypatch.setattr("mural_tf.evaluation.captioned.COCO_FOLD", 200)
    folder = tmp_path
    random = np.random.default_rng(0)
    vectors = {i: random.integers(-9, 10, 8) for i in range(400)}
    text = {i: " ".join(map(str, vector)) for i, vector in vectors.items()}
    noisy = lambda i: " ".join(map(str, vectors[i] + random.integers(-4, 5, 8)))  # noqa: E731
    content = karpathy(range(400), lambda i: [noisy(i) for _ in range(6 if i == 0 else 5)])
    write(folder / "dataset_coco.json", json.dumps(content))
    for i in range(400):
        write(folder / "val2014" / f"COCO_val2014_{i:012d}.jpg", text[i])
    stair = {
        "images": [{"id": i, "file_name": f"COCO_val2014_{i:012d}.jpg"} for i in range(300)],
        "annotations": [{"id": 7, "image_id": i, "caption": text[i]} for i in range(300) for _ in range(5)],
    }
    write(folder / "stair_captions_v1.2_val.json", json.dumps(stair))
    write(folder / "captions_ko.tsv", f"COCO_val2014_000000000003.jpg\t{text[3]}\r\n4\t{text[4]}")
    return folder


def naive_mean_recall(images, captions, owners):
    """Mean recall by a full sort in float64; ties as an expectation."""
    scores = images.astype(float) @ captions.T.astype(float)

    def recall(matrix, positives):
        ranks = []
        for row, own in zip(matrix, positives):
            best = row[own].max()
            others = np.delete(row, own)
            ranks.append(1 + np.sum(others > best) + np.sum(others == best) / 2)
        return [100 * np.mean(np.array(ranks) <= k) for k in (1, 5, 10)]

    forward = recall(scores, [np.flatnonzero(owners == i) for i in range(len(images))])
    backward = recall(scores.T, [[owner] for owner in owners])
    return np.mean(forward + backward)


def test_coco_5k_and_the_folds_of_1k(coco):
    five_k, one_k = run("coco", coco, languages=("en",))
    assert (five_k.name, one_k.name) == ("coco_5k", "coco_1k")
    assert five_k.sizes["en"]["captions"] == 2000  # five of the first image's six
    assert one_k.sizes["en"]["captions"] == 2000 and "means over 2 parts" in one_k.protocol
    content = json.loads((coco / "dataset_coco.json").read_text())["images"]
    images = np.array([(coco / "val2014" / x["filename"]).read_text().split() for x in content], int)
    captions = np.array([s["raw"].split() for x in content for s in x["sentences"][:5]], int)
    owners = np.repeat(np.arange(400), 5)
    assert five_k.metrics["coco_5k/en/mean_recall"] == pytest.approx(naive_mean_recall(images, captions, owners))
    halves = [
        naive_mean_recall(images[a:b], captions[5 * a : 5 * b], owners[: 5 * 200]) for a, b in ((0, 200), (200, 400))
    ]
    assert one_k.metrics["coco_1k/en/mean_recall"] == pytest.approx(np.mean(halves))
    assert one_k.metrics["coco_1k/en/mean_recall"] > five_k.metrics["coco_5k/en/mean_recall"] + 1

    (_, first) = run("coco", coco, languages=("en",), coco__one_k="first")
    assert first.metrics["coco_1k/en/mean_recall"] == pytest.approx(halves[0])


def test_coco_captions_in_other_languages_say_what_they_cover(coco):
    five_k, one_k = run("coco", coco)
    assert five_k.sizes["ja"] == {"images": 300, "captions": 1500, "repeated_captions": 0}
    assert five_k.sizes["ko"]["captions"] == 2  # CRLF, no last line end, file name or id
    notes = " ".join(five_k.notes)
    assert "ja captions 300 of the 400 images" in notes and "has 400 images; MS-COCO's" in notes
    assert one_k.sizes["ja"]["images"] == 300  # 200 of the first fold and 100 of the second


def test_coco_cn_takes_its_own_list_and_any_number_of_captions(tmp_path):
    write(tmp_path / "coco-cn_test.txt", "COCO_val2014_000000000001\nCOCO_train2014_000000000002")
    rows = [
        f"COCO_val2014_000000000001#0\t{one_hot(0)}",
        f"COCO_val2014_000000000001#1\t{one_hot(0)}",
        f"COCO_train2014_000000000002#0\t{one_hot(1)}",
        f"COCO_train2014_000000000009#0\t{one_hot(1)}",  # of another split
    ]
    write(tmp_path / "imageid.human-written-caption.txt", "\n".join(rows) + "\n")
    write(tmp_path / "val2014" / "COCO_val2014_000000000001.jpg", one_hot(0))
    write(tmp_path / "train2014" / "COCO_train2014_000000000002.jpg", one_hot(1))
    (result,) = run("coco_cn", tmp_path)
    assert result.sizes == {"zh": {"images": 2, "captions": 3, "repeated_captions": 0}}
    assert result.metrics["coco_cn/zh/mean_recall"] == 100


def test_mule_coco_pools_the_listed_images(tmp_path):
    def coco_json(language_of):
        images = [{"id": i, "file_name": f"COCO_val2014_{i:012d}.jpg"} for i in (1, 2, 3)]
        rows = [{"id": 9, "image_id": i, "caption": one_hot(i)} for i in language_of]
        return json.dumps({"images": images, "annotations": rows})

    write(tmp_path / "test_images.txt", "COCO_val2014_000000000001.jpg\n2")
    write(tmp_path / "captions_val2014.json", coco_json([1, 1, 2, 3]))
    write(tmp_path / "yjcaptions26k_clean.json", coco_json([1, 2]))
    write(tmp_path / "coco-cn_val.txt", "COCO_val2014_000000000002\n")
    write(tmp_path / "imageid.human-written-caption.txt", f"COCO_val2014_000000000002#0\t{one_hot(2)}\n")
    for i in (1, 2, 3):
        write(tmp_path / "val2014" / f"COCO_val2014_{i:012d}.jpg", one_hot(i))
    (result,) = run("mule_coco", tmp_path)
    assert {language: size["captions"] for language, size in result.sizes.items()} == {"en": 3, "ja": 2, "zh": 1}
    assert result.metrics["mule_coco/ja/mean_recall"] == 100
    assert "zh captions 1 of the 2 images" in " ".join(result.notes)


@pytest.fixture
def xtd(tmp_path):
    """A thousand images in the repository's three folders; CRLF and no last line end where they have it."""
    names = [f"COCO_train2014_{i:012d}.jpg" for i in range(1000)]
    write(tmp_path / "XTD10/test_image_names.txt", "\n".join(names) + "\n")
    vectors = np.random.default_rng(0).standard_normal((1000, 8))
    texts = [" ".join(f"{x:.6f}" for x in v / np.linalg.norm(v)) for v in vectors]
    for i in range(1000):
        write(tmp_path / "train2014" / names[i], texts[i])
    write(tmp_path / "XTD10/test_1kcaptions_es.txt", "\r\n".join(texts))
    write(tmp_path / "MIC/test_1kcaptions_de.txt", "\n".join([texts[1], *texts[1:]]) + "\n")  # a duplicate caption
    write(tmp_path / "STAIR/test_1kcaptions_jp.txt", "\n".join(texts) + "\n")
    return tmp_path


def test_xtd_reads_its_quirks(xtd):
    (result,) = run("xtd", xtd)
    assert set(result.sizes) == {"es", "de", "ja"} and "Group mural-7 has 1 of its 7 members." in result.notes
    assert result.metrics["xtd/es/mean_recall"] == result.metrics["xtd/ja/mean_recall"] == 100
    assert result.sizes["de"]["repeated_captions"] == 2 and result.metrics["xtd/de/mean_recall"] < 100
    assert result.groups == {"mural-7": ("es",)}


def test_xm3600_all_captions_or_the_first(tmp_path):
    lines = []
    for i in range(3):
        entry = {"image/key": f"k{i}", "image/locale": "en"}
        entry["en"] = {"caption": [one_hot(i), one_hot((i + 1) % 3)], "caption/tokenized": []}
        entry["fil"] = {"caption": [one_hot(i)], "caption/tokenized": []}
        lines.append(json.dumps(entry))
        write(tmp_path / "images" / f"k{i}.jpg", one_hot(i))
    write(tmp_path / "captions.jsonl", "\n".join(lines))
    (result,) = run("xm3600", tmp_path)
    assert result.sizes["en"]["captions"] == 6 and result.sizes["fil"]["captions"] == 3
    # en: each image finds its own first caption tied with the neighbour's second: rank 1 + 1/2.
    assert result.metrics["xm3600/en/image_to_text/recall@1"] == 0
    (result,) = run("xm3600", tmp_path, xm3600__captions="first")
    assert result.metrics["xm3600/en/image_to_text/recall@1"] == 100


def test_flickr30k_karpathy(tmp_path):
    content = karpathy(range(3), lambda i: [one_hot(i)] * 5)
    for image in content["images"]:
        del image["filepath"], image["cocoid"]
        write(tmp_path / "flickr30k-images" / image["filename"], one_hot(int(image["filename"][-6:-4])))
    write(tmp_path / "dataset_flickr30k.json", json.dumps(content))
    (result,) = run("flickr30k", tmp_path)
    assert result.sizes["en"]["captions"] == 15 and result.metrics["flickr30k/en/mean_recall"] == 100


def test_translate_test_encodes_the_translations(multi30k, tmp_path):
    rows = [f"cs\t{one_hot(i)}\t{one_hot(j)}" for i, j in ((0, 0), (1, 2), (2, 1))]
    write(tmp_path / "translations.tsv", "\n".join(rows))
    (result,) = run("multi30k", multi30k, translations=str(tmp_path / "translations.tsv"))
    assert result.metrics["multi30k/cs/mean_recall"] == 100  # the translations undo the exchange
    assert set(result.sizes) == {"en", "cs"}  # de and fr have none
    assert any("fr is left out" in note for note in result.notes)
    assert any("Translate-test: the captions in cs" in note for note in result.notes)
