"""Conversions from and to an object store in another process."""

import io
import json
import tarfile

import pytest
from convert_data import contents, image_bytes, run, write_moses
from object_store import object_store, stored, upload

from mural_tf.errors import UserError
from mural_tf.ingest.source import Filters


def write_sources(folder):
    """Texts, files of images, and what img2dataset downloaded, with captions that name addresses."""
    pairs = {"X.de-en.de": b"eins\nzwei\n\n", "X.de-en.en": b"one\ntwo\nthree\n"}
    write_moses(folder / "de-en.txt.zip", pairs)
    (folder / "images").mkdir()
    for n in range(3):
        (folder / "images" / f"{n}.jpg").write_bytes(image_bytes(n))
    (folder / "captions.tsv").write_text("".join(f"{n}.jpg\tcaption {n}\n" for n in range(4)))
    (folder / "downloads").mkdir()
    with tarfile.open(folder / "downloads" / "00000.tar", "w") as archive:
        for n in range(5):
            metadata = json.dumps({"url": f"http://x/{n}"}).encode()
            for ending, data in (("jpg", image_bytes(n)), ("txt", f"a text {n}".encode()), ("json", metadata)):
                info = tarfile.TarInfo(f"{n}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    (folder / "cc12m.tsv").write_text("".join(f"http://x/{n % 6}\tthe number {n}\n" for n in range(20)))


def sources(root):
    return [
        f"opus:{root}/*.txt.zip", f"captions:{root}/captions.tsv,images={root}/images",
        f"img2dataset:{root}/downloads", f"cc12m:{root}/cc12m.tsv,images={root}/downloads",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bucket_gives_and_takes_the_same_bytes(tmp_path, monkeypatch, workers):
    (tmp_path / "in").mkdir()
    write_sources(tmp_path / "in")
    settings = {"drop_duplicates": "pair", "filters": Filters(max_images_per_text=5), "shard_megabytes": 0}
    expected = contents(run(sources(tmp_path / "in"), tmp_path / "out", **settings))
    with object_store(monkeypatch) as client:
        upload(client, tmp_path / "in", "in")
        run(sources("s3://bucket/in"), "s3://bucket/sets/out", workers=workers, **settings)
        found = stored(client, "sets/out")
        assert found.keys() == expected.keys()
        for name, data in found.items():
            if name.endswith(".tfrecord"):
                assert data == expected[name], name
        ours = json.loads(expected["dataset.json"])
        theirs = json.loads(found["dataset.json"])
        assert theirs["counts"] == ours["counts"] and theirs["shards"] == ours["shards"]
        assert set(stored(client, "sets")) == {f"out/{name}" for name in found}  # nothing is left over
        run(sources("s3://bucket/in"), "s3://bucket/sets/out", workers=workers, **settings)  # it is there already
        run(["records:s3://bucket/sets/out"], tmp_path / "again", workers=workers)
        with pytest.raises(UserError, match="There is no file s3://bucket/missing"):
            run(["opus:s3://bucket/missing*.zip"], tmp_path / "none", workers=0)
        with pytest.raises(UserError, match="Cannot write to s3://nobucket"):
            run(sources(tmp_path / "in"), "s3://nobucket/out", workers=workers)
