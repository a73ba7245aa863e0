"""Odd members of every source are skipped, counted and named, whatever stands where something else was expected."""

import errno
import gzip
import io
import json
import os
import tarfile
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from convert_data import images_in, pairs_in, reported, run, write_moses
from smooth_pictures import image_bytes
from test_caption_files import WIT_COLUMNS, Problems

from mural_lite import text_files
from mural_lite.errors import UserError
from mural_lite.img2dataset import read_samples
from mural_lite.skipped import MISSING_SHARD, NOT_AN_EXAMPLE
from mural_tf.data import records
from mural_tf.ingest.sources import wit

DEEP = b"[" * 200_000
HALF = json.dumps({"caption": "half of a pair \ud800"}).encode()
METADATA = {  # key -> metadata that cannot be used, and what they are counted as
    "1": (b"[1, 2]", "metadata that is not a JSON object"),
    "2": (DEEP, "metadata that is not a JSON object"),
    "3": (b'{"caption": 5}', "caption that is not text"),
    "4": (b'{"caption": "a", "url": 7}', "address that is not text"),
    "5": (b'{"caption": ["a"]}', "caption that is not text"),
    "6": (HALF, "caption that is not text"),
    "7": (b'{"caption": "a", "url": {"b": 1}}', "address that is not text"),
    "8": (b"5", "metadata that is not a JSON object"),
}


def expected_counts(**more):
    counts = dict(more)
    for _, kind in METADATA.values():
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def add(archive, name, content=b"", **attributes):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    archive.addfile(info, io.BytesIO(content) if content else None)


def write_tar(path, *extra):
    """A tar file with a good sample first and last, odd metadata between, and further members before the last."""
    with tarfile.open(path, "w") as archive:
        for key, text in [("0", b'{"caption": "first"}'), *((key, text) for key, (text, _) in METADATA.items())]:
            add(archive, f"{key}.jpg", image_bytes(0))
            add(archive, f"{key}.json", text)
        for name, content, attributes in extra:
            add(archive, name, content, **attributes)
        add(archive, "9.jpg", image_bytes(1))
        add(archive, "9.json", b'{"caption": "last"}')
    return path


def captions(output):
    return [record.captions for record in images_in(output)]


def test_odd_members_of_tar_files(tmp_path):
    (tmp_path / "data").mkdir()
    write_tar(
        tmp_path / "data" / "00000.tar",
        ("a.jpg", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("b.jpg", b"", {"type": tarfile.LNKTYPE, "linkname": "0.jpg"}),
        ("c.jpg", b"", {"type": tarfile.DIRTYPE}),
        ("d.jpg", b"", {"type": tarfile.FIFOTYPE}),
        ("e.jpg", b"", {"type": tarfile.GNUTYPE_SPARSE}),
        ("folder", b"", {"type": tarfile.DIRTYPE}),  # nothing that was looked for
        ("f\udcff.jpg", image_bytes(0), {}),
    )
    output = run([f"img2dataset:{tmp_path / 'data'}"], tmp_path / "out")
    assert captions(output) == [["first"], ["last"]]
    odd = {"not a regular file": 5, "name that is not text": 1}
    assert reported(output) == {**expected_counts(), **odd}


def members_tar(path, names):
    """A tar whose images are pictures of their numbers, and whose texts are their own names."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, name in enumerate(names):
            add(archive, name, image_bytes(number) if name.endswith(("jpg", "JPG")) else name.encode())


@pytest.mark.parametrize("names, ids, skipped", [
    (["22.01.jpg", "22.01.txt", "22.02.jpg", "22.02.txt"], ["22.01", "22.02"], {}),  # points in the keys
    (["a/1.jpg", "a/1.txt", "b/1.jpg", "b/1.txt", "1.JPG", "1.txt"], ["a/1", "b/1", "1"], {}),  # folders are of the key
    (["./1.jpg", "./1.txt", "./v1.0/2.jpg", "./v1.0/2.txt"], ["1", "v1.0/2"], {}),
    (["s.input.jpg", "s.outputs.txt"], [], {"empty caption": 1, "sample without an image": 1}),
    (["1.cls", "1.jpg", "1.txt", "1.npy", "2.seg.png.npy", "2.jpg", "2.txt", "._2.jpg", ".DS_Store"], ["1", "2"], {}),
    (["1.jpg", "1.txt", "x.mp3", "readme", "2.jpg", "2.txt", "3.mp4"], ["1", "2"],
     {"member of a tar file that is not an image, text or metadata": 3}),
    (["1.mp3"], [], {"member of a tar file that is not an image, text or metadata": 1}),
])  # fmt: skip
def test_every_member_of_a_tar_is_used_or_counted(tmp_path, names, ids, skipped):
    members_tar(tmp_path / "data/00000.tar", names)
    members_tar(tmp_path / "good/00000.tar", ["0.jpg", "0.txt"])
    output = run([f"img2dataset:{tmp_path}/data", f"img2dataset:{tmp_path}/good"], tmp_path / "out")
    assert [record.image_id for record in images_in(output)] == [*(f"data/{key}" for key in ids), "good/0"]
    assert reported(output) == skipped


def test_a_tar_of_pax_headers_alone_does_not_end_the_conversion(tmp_path):
    members_tar(tmp_path / "data/00000.tar", ["1.jpg", "1.txt"])
    header = tarfile.TarInfo("./PaxHeaders/x")
    header.type = tarfile.XHDTYPE
    (tmp_path / "data/00001.tar").write_bytes(header.tobuf(tarfile.USTAR_FORMAT) * 20_000)
    output = run([f"img2dataset:{tmp_path}/data"], tmp_path / "out")
    assert captions(output) == [["1.txt"]]
    assert reported(output) == {"tar file that is damaged or cut off: what follows is lost": 1}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("reader", ["read_file", "open"])
def test_what_another_run_may_read_ends_this_one(tmp_path, monkeypatch, number, reader):
    """Descriptors, memory, disks and permissions: a conversion that goes on would lose what is there."""

    def fail(path, *_):
        raise OSError(number, os.strerror(number), str(path))

    (tmp_path / "1.jpg").write_bytes(image_bytes(0))
    (tmp_path / "a.tsv").write_text("1.jpg\ta caption\n")
    members_tar(tmp_path / "data/00000.tar", ["1.jpg", "1.txt"])
    if reader == "read_file":
        source = f"captions:{tmp_path}/a.tsv,images={tmp_path}"
        monkeypatch.setattr("mural_tf.ingest.sources.img2dataset.read_file", fail)
    else:
        source = f"img2dataset:{tmp_path}/data"
        monkeypatch.setattr(tarfile, "open", lambda **_: fail(tmp_path))
    with pytest.raises(UserError, match=f"Cannot read .*: {os.strerror(number)}. What is finished is kept") as error:
        run([source], tmp_path / "out")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("place", ["PIL.ImageFile.ImageFile.load", "PIL.Image.open", "mural_lite.pictures.os.fstat"])
def test_want_of_memory_is_no_missing_image(tmp_path, monkeypatch, place):
    (tmp_path / "1.jpg").write_bytes(image_bytes(0, image_format="WEBP"))  # which is decoded and encoded again
    (tmp_path / "a.tsv").write_text("1.jpg\ta caption\n")

    def fail(*_, **options):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(UserError, match="A worker found too little memory: run"):
        patch.setattr(place, fail)
        run([f"captions:{tmp_path}/a.tsv,images={tmp_path}"], tmp_path / "out")


def test_odd_files_of_img2dataset(tmp_path):
    shard = tmp_path / "data" / "00000"
    shard.mkdir(parents=True)
    for key, text in [("0", b'{"caption": "first"}'), *((key, text) for key, (text, _) in METADATA.items())]:
        (shard / f"{key}.jpg").write_bytes(image_bytes(0))
        (shard / f"{key}.json").write_bytes(text)
    (tmp_path / "secret.jpg").write_bytes(image_bytes(5))
    (shard / "a.jpg").symlink_to(tmp_path / "secret.jpg")
    (shard / "b.jpg").symlink_to(shard / "missing.jpg")
    (shard / "c.jpg").mkdir()
    os.mkfifo(shard / "d.jpg")
    output = run([f"img2dataset:{tmp_path / 'data'}"], tmp_path / "out")
    assert captions(output) == [["first"]]
    link = f"link that leads out of its folder (--images={tmp_path} holds its target, too)"
    odd = {link: 1, "file that cannot be read": 1, "not a regular file": 2}
    assert reported(output) == {**expected_counts(), **odd}


def test_odd_records_of_img2dataset(tmp_path):
    (tmp_path / "data").mkdir()
    with tf.io.TFRecordWriter(str(tmp_path / "data" / "00000.tfrecord")) as writer:
        for text in (b'{"caption": "first"}', *(text for text, _ in METADATA.values())):
            values = {"jpg": image_bytes(0), "json": text}
            feature = {k: tf.train.Feature(bytes_list=tf.train.BytesList(value=[v])) for k, v in values.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        number = {"jpg": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}
        writer.write(tf.train.Example(features=tf.train.Features(feature=number)).SerializeToString())
    output = run([f"img2dataset:{tmp_path / 'data'}"], tmp_path / "out")
    assert captions(output) == [["first"]]
    assert reported(output) == {**expected_counts(), "sample without an image": 1}


def test_a_flipped_bit_in_a_tar_header_costs_one_member(tmp_path):
    path = write_tar(tmp_path / "00000.tar")
    with tarfile.open(path) as archive:
        places = {member.name: member.offset for member in archive}
    content = bytearray(path.read_bytes())
    content[places["3.jpg"] + 5] ^= 1
    content[places["9.json"] + 5] ^= 1  # the last one
    path.write_bytes(content)
    problems = Problems()
    found = [sample.key for sample in read_samples(path, problems)]
    assert found == ["0", "4", "5", "6", "7", "9"]
    damaged = [place for kind, place in problems if kind == "tar header that is damaged: its member is lost"]
    assert damaged == [f"{path}, byte {places['3.jpg']}", f"{path}, byte {places['9.json']}"]


def test_members_of_gigabytes_are_not_read(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "00000.tar", ("a.jpg", bytes(5000), {}))
    monkeypatch.setattr("mural_lite.img2dataset.MAX_BYTES", 4999)
    problems = Problems()
    list(read_samples(path, problems))
    assert ("file of more than 4,999 bytes", f"{path}, a.jpg") in problems
    with tarfile.open(tmp_path / "header.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "a.jpg", image_bytes(0), pax_headers={"comment": "x" * 6000})
    problems = Problems()
    assert not list(read_samples(tmp_path / "header.tar", problems))
    assert [kind for kind, _ in problems] == ["tar file that is damaged or cut off: what follows is lost"]


def test_rows_of_parquet_of_other_types(tmp_path):
    (tmp_path / "data").mkdir()
    rows = {
        "numbers": pyarrow.table({"key": [1, 2], "jpg": [image_bytes(0)] * 2, "caption": [3, 4]}),
        "structs": pyarrow.table({"key": ["1"], "jpg": [{"bytes": image_bytes(0)}], "caption": ["a"]}),
        "good": pyarrow.table({"key": ["1"], "jpg": [image_bytes(0)], "caption": ["good"], "url": ["http://x/1"]}),
        "urls": pyarrow.table({"key": ["1"], "jpg": [image_bytes(0)], "caption": ["a"], "url": [5]}),
    }
    invalid = pyarrow.array([b"fine", b"\xff\xfe"], pyarrow.binary()).cast(pyarrow.string(), safe=False)
    rows["utf8"] = pyarrow.table({"key": ["1", "2"], "jpg": [image_bytes(0)] * 2, "caption": invalid})
    for name, table in rows.items():
        pyarrow.parquet.write_table(table, tmp_path / "data" / f"{name}.parquet")
    (tmp_path / "data" / "broken.parquet").write_bytes(b"PAR1 broken")
    output = run([f"img2dataset:{tmp_path / 'data'}"], tmp_path / "out")
    assert sorted(captions(output)) == [["fine"], ["good"]]
    assert reported(output) == {
        "caption that is not text": 2,
        "image that is not bytes": 1,
        "address that is not text": 1,
        "row with values that cannot be read": 1,
        "Parquet file that cannot be read": 1,
    }


def test_damage_in_a_parquet_file_costs_its_row_group(tmp_path):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"jpg": [image_bytes(n) for n in range(6)], "caption": [f"c{n}" for n in range(6)]})
    pyarrow.parquet.write_table(table, path, row_group_size=2, compression="gzip", use_dictionary=False)
    start = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 400] = bytes(400)
    path.write_bytes(content)
    problems = Problems()
    assert [sample.caption for sample in read_samples(path, problems)] == ["c0", "c1", "c4", "c5"]
    assert problems == [("row in a damaged part of a Parquet file", f"{path}, row 2", 2)]


def varint(number):
    """A signed number as Parquet's footer has it."""
    number *= 2
    data = b""
    while number > 127:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def test_rows_that_a_damaged_parquet_file_only_claims_are_not_counted(tmp_path):
    """80 kB once claimed 2^50 rows, which were counted one by one."""
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"jpg": [b"%d" % n for n in range(8_000)], "caption": ["c"] * 8_000})
    pyarrow.parquet.write_table(table, path, use_dictionary=False)
    content = path.read_bytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    assert footer.count(varint(8_000)) >= 4
    claiming = footer.replace(varint(8_000), varint(2**50))
    data = content[: -8 - len(footer)]
    damaged = data[:300] + bytes(2_000) + data[2_300:]
    path.write_bytes(damaged + claiming + len(claiming).to_bytes(4, "little") + b"PAR1")
    problems = Problems()
    assert len(list(read_samples(path, problems))) < 8_000
    assert problems[-1][0::2] == ("row in a damaged part of a Parquet file", path.stat().st_size)


def test_tables_do_not_reach_outside_the_images(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    (images / "0.jpg").write_bytes(image_bytes(0))
    (tmp_path / "secret.jpg").write_bytes(image_bytes(1))
    (images / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (images / "folder.jpg").mkdir()
    os.mkfifo(images / "pipe.jpg")
    names = ["0.jpg", "../secret.jpg", "a/../../secret.jpg", "link.jpg", "folder.jpg", "pipe.jpg", "nul\0.jpg",
             str(tmp_path / "secret.jpg"), "x" * 5000]  # fmt: skip
    (tmp_path / "captions.tsv").write_text("".join(f"{name}\tcaption\n" for name in names))
    output = run([f"captions:{tmp_path}/captions.tsv,images={images}"], tmp_path / "out")
    assert [record.image_id for record in images_in(output)] == ["0.jpg"]
    assert reported(output) == {
        "file name that leads out of its folder": 2,
        f"link that leads out of its folder (--images={tmp_path} holds its target, too)": 1,
        "not a regular file": 2,
        "text with a null character": 1,
        "missing image": 1,  # an absolute name is looked for below the folder
        "file name that leads nowhere": 1,
    }
    assert max(map(len, (output / "skipped.tsv").read_text().splitlines())) < 600


def test_odd_records_of_our_own(tmp_path):
    def example(**features):
        feature = {k: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)) for k, v in features.items()}
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    image = image_bytes(0)
    for kind, examples in {
        records.IMAGE_TEXT: [
            example(image=[image], caption=[b"good", b" "], image_id=[b"a"]),
            example(image=[], caption=[b"a"]),
            example(image=[image], image_id=[], caption=[b"a"]),
            example(image=[image], caption=[b"a", b"b"], language=[b"en"]),
            example(image=[image]),
        ],
        records.TEXT_PAIRS: [example(text_a=[b"a"], text_b=[b"b"]), example(text_a=[b"a"]), example(text_a=[])],
    }.items():
        (tmp_path / "data" / kind).mkdir(parents=True)
        with tf.io.TFRecordWriter(str(tmp_path / "data" / kind / "train-00000-of-00001.tfrecord")) as writer:
            for serialized in examples:
                writer.write(serialized)
    first = tmp_path / "data/text_pairs/train-00000-of-00001.tfrecord"
    first.rename(first.with_name("train-00000-of-00002.tfrecord"))
    output = run([f"records:{tmp_path}/data"], tmp_path / "out")
    assert captions(output) == [["good"], ["a"], ["a", "b"]] and len(pairs_in(output)) == 1
    assert [record.languages for record in images_in(output)] == [[""], [""], ["en", ""]]  # as training reads them
    assert reported(output) == {
        MISSING_SHARD: 1,
        "empty caption": 1,
        NOT_AN_EXAMPLE: 2,
        "image without captions": 1,
        "empty text": 1,
    }


class Endless:
    """A file with a line of many bytes, which is never held as a whole."""

    def __init__(self, size):
        self.left, self.rest = size, b"\nafter\n"

    def read1(self, size):
        taken = min(size, self.left)
        self.left -= taken
        if taken:
            return b"x" * taken
        rest, self.rest = self.rest, b""
        return rest


def test_long_lines_are_passed_over_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 2**18)
    tracemalloc.start()
    try:
        assert list(text_files.bounded_lines(Endless(2**25))) == [None, b"after\n"]
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_long_lines_are_counted_and_others_stay_in_step(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 10)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n" + b"x" * 11 + b"\n0123456789\nthree\n"))
    problems = Problems()
    found = list(text_files.read_lines(tmp_path / "a.txt.gz", problems))
    assert found == [(1, "one"), (2, None), (3, None), (4, "three")]  # 10 bytes with the line's end
    assert problems == [(text_files.TOO_LONG, f"{tmp_path}/a.txt.gz:{n}") for n in (2, 3)]
    path = write_moses(
        tmp_path / "m.zip", {"X.de-en.de": b"eins\n" + b"x" * 99 + b"\ndrei\n", "X.de-en.en": b"one\ntwo\nthree\n"}
    )
    output = run([f"opus:{path}"], tmp_path / "out")
    assert [(pair.text_a, pair.text_b) for pair in pairs_in(output)] == [("eins", "one"), ("drei", "three")]
    assert reported(output) == {text_files.TOO_LONG: 1}


def test_rows_of_wit_that_never_end(tmp_path, monkeypatch):
    good = "\t".join(["en", "", "http://x/1", "", "", "", "a caption", *[""] * 10])
    endless = 'en\t"' + "\n".join(['a"\t"b'] * 100)
    monkeypatch.setattr(wit, "LONGEST_LINE", 500)
    (tmp_path / "w.tsv").write_text("\n".join(["\t".join(WIT_COLUMNS), good, endless, good]) + "\n")
    problems = Problems()
    found = list(wit.read_wit(tmp_path / "w.tsv", on_problem=problems))
    assert len(found) == 2 and ("row that is not TSV (more than 500 characters)", f"{tmp_path}/w.tsv:3") in problems
    (tmp_path / "h.tsv").write_text('"' + "x" * 600)
    with pytest.raises(UserError, match="its first line is not TSV"):
        list(wit.read_wit(tmp_path / "h.tsv"))


def test_zips_that_cannot_be_unpacked(tmp_path):
    members = {"X.de-en.de": b"eins\n", "X.de-en.en": b"one\n"}
    content = write_moses(tmp_path / "good.zip", members).read_bytes()
    locked, unknown = bytearray(content), bytearray(content)
    for place in (place for place in range(len(content)) if content[place : place + 4] in (b"PK\1\2", b"PK\3\4")):
        flags = place + (8 if content[place + 2] == 1 else 6)
        locked[flags] |= 1  # encrypted
        unknown[flags + 2] = 99  # a compression that nobody has
    (tmp_path / "locked.zip").write_bytes(locked)
    (tmp_path / "unknown.zip").write_bytes(unknown)
    (tmp_path / "folder.zip").mkdir()
    output = run([f"opus:{tmp_path}/*.zip"], tmp_path / "out")
    assert len(pairs_in(output)) == 1
    assert reported(output) == {"zip that cannot be unpacked": 2, "file that is not a zip or is cut off": 1}


def test_sources_whose_names_are_no_utf8_are_used(tmp_path):
    (tmp_path / "a\udcff.tsv").write_text("a\tb\n")
    (tmp_path / "b\udcff").mkdir()
    write_tar(tmp_path / "b\udcff/00000.tar")
    sources = [f"pairs:{tmp_path}/a\udcff.tsv,language_b=de", f"img2dataset:{tmp_path}/b\udcff"]
    for _ in range(2):
        output = run(sources, tmp_path / "out", shuffle=True)
    assert len(pairs_in(output)) == 1 and {r.image_id for r in images_in(output)} == {"b\\udcff/0", "b\\udcff/9"}
    assert reported(output) == expected_counts()
