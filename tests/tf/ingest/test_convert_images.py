"""Captioned images from every published format, with its traps."""

import csv
import gzip
import io
import json
import tarfile

import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from convert_data import images_in, reported, run
from smooth_pictures import image_bytes
from test_caption_files import WIT_COLUMNS

from mural_lite.errors import UserError
from mural_tf.ingest.sources.wit import Wit, image_hash


def description(output):
    return json.loads((output / "dataset.json").read_text(encoding="utf-8"))


SAMPLES = [  # (key, url, caption, image)
    ("000000000", "http://x/0.jpg", "a  red\nballoon", image_bytes(0)),
    ("000000001", "http://x/1.jpg", "一只狗", image_bytes(1)),
    ("000000002", "http://x/2.jpg", "", image_bytes(2)),
    ("000000003", "http://x/3.jpg", "cut off", image_bytes(3)[:-200]),
    ("000000004", "http://x/4.webp", "webp", image_bytes(4, image_format="WEBP", lossless=True)),
]


def metadata(sample):
    key, url, caption, _ = sample
    row = {"url": url, "caption": caption, "key": key, "status": "success", "error_message": None, "width": 48}
    return {**row, "LANGUAGE": "zh" if key.endswith("1") else "en"}


def members(sample):
    key, _, caption, image = sample
    return {f"{key}.jpg": image, f"{key}.txt": caption.encode(), f"{key}.json": json.dumps(metadata(sample)).encode()}


def write_img2dataset(folder, output_format):
    """Writes what img2dataset writes: one shard of SAMPLES."""
    folder.mkdir()
    if output_format == "webdataset":
        with tarfile.open(folder / "00000.tar", "w") as archive:
            for sample in SAMPLES:
                for name, content in members(sample).items():
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    elif output_format == "files":
        (folder / "00000").mkdir()
        for sample in SAMPLES:
            for name, content in members(sample).items():
                (folder / "00000" / name).write_bytes(content)
    elif output_format == "tfrecord":
        with tf.io.TFRecordWriter(str(folder / "00000.tfrecord")) as writer:
            for sample in SAMPLES:
                features = {"key": sample[0].encode()}
                features.update({name.split(".")[1]: content for name, content in members(sample).items()})
                feature = {k: tf.train.Feature(bytes_list=tf.train.BytesList(value=[v])) for k, v in features.items()}
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    rows = [{**metadata(sample), **({"jpg": sample[3]} if output_format == "parquet" else {})} for sample in SAMPLES]
    if output_format == "parquet":
        rows.append({**rows[0], "key": "000000005", "status": "failed_to_download", "jpg": None})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "00000.parquet")
    (folder / "00000_stats.json").write_text("{}")
    return folder


@pytest.mark.parametrize("output_format", ["webdataset", "files", "tfrecord", "parquet"])
def test_img2dataset(tmp_path, output_format):
    folder = write_img2dataset(tmp_path / "downloads", output_format)
    output = run([f"img2dataset:{folder},language_column=LANGUAGE"], tmp_path / "out")
    records = images_in(output)
    assert [(r.image_id, r.captions, r.languages) for r in records] == [
        ("http://x/0.jpg", ["a red balloon"], ["en"]),
        ("http://x/1.jpg", ["一只狗"], ["zh"]),
        ("http://x/4.webp", ["webp"], ["en"]),
    ]
    assert records[0].image == SAMPLES[0][3]  # copied, not decoded
    assert tf.io.decode_jpeg(records[2].image).shape == (40, 48, 3)  # what records cannot hold becomes JPEG
    shard = {"files": "00000", "webdataset": "00000.tar"}.get(output_format, f"00000.{output_format}")
    expected = {
        "empty caption": f"{folder}/{shard}, 000000002",
        "image that is cut off": f"{folder}/{shard}, 000000003 (http://x/3.jpg)",
    }
    if output_format == "parquet":
        expected["image that was not downloaded"] = f"{folder}/{shard}, row 5 (failed_to_download)"
    assert reported(output, value="first") == expected


def test_img2dataset_that_was_cut_off(tmp_path):
    folder = write_img2dataset(tmp_path / "downloads", "webdataset")
    content = (folder / "00000.tar").read_bytes()
    (folder / "00001.tar").write_bytes(content[:700])
    output = run([f"img2dataset:{folder}"], tmp_path / "out")
    assert len(images_in(output)) == 3
    assert "tar file that is damaged or cut off: what follows is lost" in reported(output, value="first")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="not an output of img2dataset"):
        run([f"img2dataset:{tmp_path / 'empty'}"], tmp_path / "no")


@pytest.mark.parametrize("output_format", ["webdataset", "files", "tfrecord"])
def test_captions_join_downloaded_images_by_address(tmp_path, output_format):
    folder = write_img2dataset(tmp_path / "downloads", output_format)
    cc3m, cc12m = tmp_path / "Train_GCC-training.tsv", tmp_path / "cc12m.tsv"
    cc3m.write_bytes(b"a balloon\thttp://x/0.jpg\r\nno such image\thttp://x/9.jpg\nonly one column\n\thttp://x/1.jpg\n")
    cc12m.write_bytes(b"http://x/1.jpg\ta dog")
    output = run([f"cc3m:{cc3m},images={folder}", f"cc12m:{cc12m},images={folder}"], tmp_path / "out")
    found = {r.image_id: (r.captions, r.image) for r in images_in(output)}
    assert found == {"http://x/0.jpg": (["a balloon"], SAMPLES[0][3]), "http://x/1.jpg": (["a dog"], SAMPLES[1][3])}
    assert reported(output, value="first") == {
        "missing image": f"{cc3m}:2 (http://x/9.jpg)",
        "row with too few columns, which tabs divide": f"{cc3m}:3",
        "row without address or caption": f"{cc3m}:4",
    }


def test_uc2_translations_that_failed(tmp_path):
    folder = write_img2dataset(tmp_path / "downloads", "webdataset")
    path = tmp_path / "train_imageId2Ann_de.tsv"
    rows = [("0", "http://x/0.jpg", "ein Ballon", "success"), ("1", "http://x/1.jpg", "", "fail")]
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    output = run([f"uc2:{path},language=de,images={folder}"], tmp_path / "out")
    assert [(r.captions, r.languages) for r in images_in(output)] == [(["ein Ballon"], ["de"])]
    assert reported(output, value="first") == {"row that says it failed": f"{path}:2"}


def write_wit(path, rows):
    """Rows are (language, url, caption); written as WIT does, with Python's csv."""
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(WIT_COLUMNS)
        for language, url, caption in rows:
            values = {"language": language, "image_url": url, "caption_reference_description": caption}
            writer.writerow([values.get(column, "false") for column in WIT_COLUMNS])


@pytest.mark.parametrize("scope", ["all", "language"])
def test_wit_no_image_crosses_splits(tmp_path, monkeypatch, scope):
    monkeypatch.setattr(Wit, "SIZES", (40, 20, 5))
    images = tmp_path / "images"
    images.mkdir()
    (images / "one.jpg").write_bytes(image_bytes(0))
    addresses = [f"http://commons/{n}/one.jpg" for n in range(200)]  # one file stands for all of them
    rows = [("en", address, f'caption "{n}"\nof two lines') for n, address in enumerate(addresses)]
    rows += [("iw", address, f"כיתוב {n}") for n, address in enumerate(addresses[:60])]
    rows += [("iw", addresses[0], "עוד"), ("en", "http://commons/unused.jpg", "")]
    write_wit(tmp_path / "wit_v1.train.all-00000-of-00010.tsv.gz", rows[:150])
    write_wit(tmp_path / "wit_v1.train.all-00001-of-00010.tsv.gz", rows[150:])
    source = f"wit:{tmp_path}/wit_v1.train.all-*.tsv.gz,images={images},scope={scope}"
    output = run([source], tmp_path / "out")
    where = {}
    for split in ("train", "dev", "test"):
        for record in images_in(output, split):
            where.setdefault(record.languages[0], {}).setdefault(split, []).append(record.image_id)
    # 200 English pairs allow 2 * 40 held out (at most half), 61 Hebrew ones 2 * 5
    assert {s: len(i) for s, i in where["en"].items() if s != "train"} == {"dev": 40, "test": 40}
    assert {s: len(i) for s, i in where["he"].items() if s != "train"} == {"dev": 5, "test": 5}
    for splits in where.values():
        assert not set(splits["train"]) & (set(splits["dev"]) | set(splits["test"])) and not set(splits["dev"]) & set(
            splits["test"]
        )
    held_out = {i for splits in where.values() for s in ("dev", "test") for i in splits[s]}
    training = {i for splits in where.values() for i in splits["train"]}
    crossing = held_out & training
    if scope == "all":
        assert not crossing
        assert reported(output, "left_out", "first").keys() == {"image that another language's dev or test holds"}
    else:
        assert crossing and sum(len(i) for s in where.values() for i in s.values()) == 261
    assert description(output)["sources"][0]["scope"] == scope


def test_wit_counts_no_image_that_is_left_out_as_the_first_of_its_duplicates(tmp_path, monkeypatch):
    """The first file's row is in no split, because English holds its image out: the next file's equal image stays."""

    def in_order(host):
        names = enumerate(["same", "same", "x", "y"])
        addresses = [f"http://{host}/{n}/{name}.jpg" for n, name in names]
        return addresses, sorted(addresses, key=image_hash)

    drawn = map(in_order, map(str, range(99)))
    held, equal, *others = next(all_ for all_, order in drawn if order[0] == all_[0] and order[-1] != all_[1])
    for seed, name in enumerate(["same", "x", "y"]):
        (tmp_path / f"{name}.jpg").write_bytes(image_bytes(seed))
    rows = [("iw", held, "כיתוב")], [("en", equal, "equal")], [("en", held, "held"), *(("en", a, a) for a in others)]
    for number, of_file in enumerate(rows):
        write_wit(tmp_path / f"{number}.tsv.gz", of_file)
    source = f"wit:{tmp_path}/*.tsv.gz,images={tmp_path}"
    monkeypatch.setattr(Wit, "SIZES", (1,))
    assert [record.image_id for record in images_in(run([source], tmp_path / "all"), "test")] == [held]
    output = run([source], tmp_path / "out", drop_duplicates="image")
    assert equal in [record.image_id for record in images_in(output)]
    assert reported(output, "left_out")["duplicate image"] == 1


def test_wit_own_validation_files(tmp_path):
    write_wit(tmp_path / "wit_v1.val.tsv.gz", [("de", "http://x/one.jpg", "Hund"), ("en", "http://x/none.jpg", "dog")])
    (tmp_path / "one.jpg").write_bytes(image_bytes(0))
    output = run([f"wit:{tmp_path}/wit_v1.val.tsv.gz,images={tmp_path},split=dev"], tmp_path / "out")
    assert [r.captions for r in images_in(output, "dev")] == [["Hund"]]
    assert reported(output, value="first") == {"missing image": f"{tmp_path}/wit_v1.val.tsv.gz:3 (http://x/none.jpg)"}


def coco_file(path, captions, first_id=1):
    numbers = sorted({number for number, _ in captions})
    content = {
        "images": [{"id": n, "file_name": f"COCO_train2014_{n:012d}.jpg"} for n in numbers],
        "annotations": [{"id": first_id + i, "image_id": n, "caption": c} for i, (n, c) in enumerate(captions)],
    }
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def test_coco_with_stair(tmp_path):
    images = tmp_path / "train2014"
    images.mkdir()
    for n in (5, 9):
        (images / f"COCO_train2014_{n:012d}.jpg").write_bytes(image_bytes(n))
    six = [(5, f"caption {k}") for k in range(6)]
    coco = coco_file(tmp_path / "captions_train2014.json", [*six, (9, "one"), (9, "one"), (7, "no image")])
    stair = coco_file(tmp_path / "stair_captions_v1.2_train.json", [(9, "一つ"), (5, "五つ")])
    output = run([f"coco:{coco},images={images},also=jp@{stair}"], tmp_path / "out")
    records = images_in(output)
    assert [(r.image_id, r.captions, r.languages) for r in records] == [
        ("coco/5", [*(c for _, c in six), "五つ"], ["en"] * 6 + ["ja"]),
        ("coco/9", ["one", "一つ"], ["en", "ja"]),
    ]
    assert len(set(records[0].caption_groups)) == 7  # independent captions: none says what another says
    assert reported(output, value="first") == {
        "missing image": f"{coco}, annotation 9 (COCO_train2014_000000000007.jpg)"
    }
    assert reported(output, "left_out", "first") == {"caption that its image has already": f"{coco}, annotation 8"}
    with pytest.raises(UserError, match="expected LANGUAGE@FILE"):
        run([f"coco:{coco},images={images},also={stair}"], tmp_path / "no")


def test_karpathy_splits(tmp_path):
    images = []
    for n, split in enumerate(["train", "restval", "val", "test"]):
        (tmp_path / f"{n}.jpg").write_bytes(image_bytes(n))
        sentences = [{"raw": f"sentence {k}", "sentid": k, "tokens": []} for k in range(6)]
        images.append(
            {"filename": f"{n}.jpg", "filepath": "val2014", "cocoid": n, "split": split, "sentences": sentences}
        )
    path = tmp_path / "dataset_coco.json"
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    source = f"karpathy:{path},images={tmp_path},splits=train+restval+val"
    output = run([source], tmp_path / "out")
    assert [r.image_id for r in images_in(output)] == ["coco/0", "coco/1"]
    assert [(r.image_id, len(r.captions)) for r in images_in(output, "dev")] == [("coco/2", 6)]


def test_multi30k_groups(tmp_path):
    data = tmp_path / "dataset" / "data"
    for name, text in {
        "task1/raw/train.en": "A dog.", "task1/raw/train.de": "Ein Hund.", "task1/raw/train.fr": "Un chien.",
        "task1/raw/train.cs": "Pes.", **{f"task2/raw/train.{k}.en": f"Dog {k}." for k in (1, 3, 4, 5)},
        "task2/raw/train.2.en": "A dog.", **{f"task2/raw/train.{k}.de": f"Hund {k}." for k in range(1, 6)},
    }.items():  # fmt: skip
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / f"{name}.gz").write_bytes(gzip.compress(f"{text}\n".encode()))
    for name in ("task1/image_splits/train.txt", "task2/image_splits/train_images.txt"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("7.jpg\n")
    (tmp_path / "7.jpg").write_bytes(image_bytes(7))
    (record,) = images_in(run([f"multi30k:{tmp_path}/dataset,images={tmp_path}"], tmp_path / "out"))
    groups = {}
    for caption, language, group in zip(record.captions, record.languages, record.caption_groups):
        groups.setdefault(group, []).append((language, caption))
    translations = groups.pop("flickr30k/7.jpg:translations")
    assert translations == [("en", "A dog."), ("de", "Ein Hund."), ("fr", "Un chien."), ("cs", "Pes.")]
    assert len(groups) == 4 + 5 and all(len(members) == 1 for members in groups.values())


def test_coco_cn(tmp_path):
    (tmp_path / "coco-cn_train.txt").write_text("COCO_val2014_000000217153\n")
    (tmp_path / "coco-cn_val.txt").write_text("COCO_train2014_000000000030\n")
    (tmp_path / "imageid.human-written-caption.txt").write_text(
        "COCO_val2014_000000217153#0\t一只狗\nCOCO_train2014_000000000030#0\t花\n", encoding="utf-8"
    )
    for name in ("COCO_val2014_000000217153.jpg", "COCO_train2014_000000000030.jpg"):
        (tmp_path / name).write_bytes(image_bytes(1))
    output = run([f"coco_cn:{tmp_path},images={tmp_path}"], tmp_path / "out")
    assert [(r.image_id, r.captions) for r in images_in(output)] == [("coco/217153", ["一只狗"])]
    assert [(r.image_id, r.captions) for r in images_in(output, "dev")] == [("coco/30", ["花"])]
