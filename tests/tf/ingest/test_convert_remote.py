"""Conversions from and to an object store in another process."""

import asyncio
import io
import json
import os
import tarfile

import pytest
import s3fs
from convert_data import contents, run, write_moses
from object_store import object_store, stored, upload
from smooth_pictures import image_bytes
from store_proxy import proxy_before

from mural_lite.errors import UserError
from mural_tf.ingest import convert
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


@pytest.fixture
def slept(monkeypatch):
    """Seconds that the store's client would have waited between two tries; it does not wait."""
    waits, sleep = [], asyncio.sleep

    def note(seconds, *result):
        waits.append(seconds)
        return sleep(0, *result)

    monkeypatch.setattr(asyncio, "sleep", note)
    return waits


@pytest.fixture(scope="module")
def one_store():
    with pytest.MonkeyPatch.context() as patch:
        with object_store(patch) as client, proxy_before(os.environ["S3_ENDPOINT"], patch) as proxy:
            s3fs.S3FileSystem.clear_instance_cache()  # it goes to the proxy from now on
            yield proxy, client


@pytest.fixture
def store(one_store):
    """A proxy and the client of the store behind it."""
    one_store[0].requests.clear()
    yield one_store
    one_store[0].rule = lambda method, path, number: None


TRAIN = "text_pairs/train-00000-of-00001.tfrecord"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\n")
    return f"pairs:{tmp_path}/a.tsv,language_b=de"


def test_a_faster_process_in_a_store_is_said(store, source, monkeypatch, capsys):
    """Stores have no locks: whoever is ready first moves what the other would move, and the data set is right."""

    def late(plan, output, *others, assemble_data_set=convert.assemble_data_set):
        monkeypatch.setattr(convert, "assemble_data_set", assemble_data_set)
        run([source], output)  # another process, from its beginning to its end
        assemble_data_set(plan, output, *others)

    proxy, client = store
    expected = stored_of(client, run([source], "s3://bucket/alone"))
    monkeypatch.setattr(convert, "assemble_data_set", late)
    assert stored_of(client, run([source], "s3://bucket/out")) == expected
    assert "Another process made s3://bucket/out meanwhile." in capsys.readouterr().out
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="bucket")["Contents"]]
    assert {key.split("/")[0] for key in keys} == {"alone", "out"}  # nothing of either is left over


def stored_of(client, output):
    return stored(client, output.name)


@pytest.mark.parametrize("first", [0, 6])
def test_a_store_that_answers_503_for_good_is_one_line_within_a_minute(store, source, slept, first):
    proxy, _ = store
    proxy.rule = lambda method, path, number: 503 if first <= number else None
    with pytest.raises((OSError, UserError), match="SlowDown|Service Unavailable") as error:
        run([source], f"s3://bucket/never{first}")
    assert "\n" not in str(error.value) and len(proxy.requests) < 40 and sum(slept) < 60


def test_three_errors_in_a_row_are_no_loss(store, source, slept):
    proxy, client = store
    proxy.rule = lambda method, path, number: 503 if number % 13 in (6, 7, 8) else None
    assert stored_of(client, run([source], "s3://bucket/three")).keys() == {"dataset.json", TRAIN}
    assert sum(answer == 503 for _, _, answer in proxy.requests) > 6
