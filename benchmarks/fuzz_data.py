"""Damaged data files of every kind, each read by the part of the project that reads it: 500 by default.

    python -m benchmarks.fuzz_data [--count=500] [--seed=0] [--only tfrecord tar …]

Every case is one good file with one or two kinds of damage, drawn from the kind's name and a seed. Reading it must end
in a `UserError` of one line, or with all that was not used counted as skipped, within a minute, in 3 GB for all cases.
What fails is printed with the command that repeats it; where a case ends the process, that is the last line.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import gzip
import io
import json
import os
import pathlib
import random
import resource
import shutil
import sys
import tarfile
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))  # the tests' small data

import convert_data
import smooth_pictures
import toy_data

from benchmarks.damage import BINARY, JSON, LINES, damaged
from mural_lite import dataset_folder, tfrecord
from mural_lite.errors import UserError
from mural_search import collect
from mural_tf.data import records
from mural_tf.data.streams.pipeline import training_batches

SECONDS = 60  # of a case
GIGABYTES = 3  # of the process
OUTCOMES = USED, COUNTED, REFUSED, FAILED = "all used", "skipped and counted", "refused with one line", "FAILED"
COUNT = 12  # images, pairs, lines


class Kind(NamedTuple):
    """A kind of data files: how good files are made, how they are damaged, and how they are read.

    Attributes:
      make: writes good files into a folder, which it makes.
      files: patterns of the files to damage, one of which is drawn.
      ways: kinds of damage, see `damage.damaged`.
      read: a function of the folder with the damaged file, the folder of good files and the damaged file's name. It
        asserts that nothing is lost in silence, and returns (items that were used, items that were counted as skipped).
    """

    make: Callable[[pathlib.Path], None]
    files: Sequence[str]
    ways: Sequence[Callable]
    read: Callable[[pathlib.Path, pathlib.Path, str], tuple[int, int]]


# TFRecords in training, evaluation and indexing.


def make_records(folder: pathlib.Path) -> None:
    """Writes a data folder of small TFRecords, with a split "dev"."""
    toy_data.write_toy_data(folder, count=COUNT)
    records.write_records(folder, records.IMAGE_TEXT, "dev", toy_data.image_text_records(COUNT))


def frames(path: pathlib.Path) -> list[bytes]:
    """Returns the records of a good TFRecord file, each with its length and checksums as they are in the file."""
    data = path.read_bytes()
    records_with_frames = []
    for begin, record in tfrecord.read_all(path, _fail):
        end = begin + len(record)
        records_with_frames.append(data[begin - tfrecord.HEADER : end + tfrecord.FOOTER])
    return records_with_frames


def intact_records(good: pathlib.Path, copy: pathlib.Path) -> tuple[int, int]:
    """Returns (records of a good TFRecord file that its damaged copy still holds, all records of the good file)."""
    originals = frames(good)
    data = copy.read_bytes()
    return sum(frame in data for frame in originals), len(originals)


def _fail(problem: str, location: str, count: int) -> None:
    """Raises `AssertionError` for a problem of a good file, as `tfrecord.read_all` reports it."""
    raise AssertionError(f"{location}: {problem}, {count}")


def read_in_training(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """Reads an epoch of training's input from TFRecords, and asserts that no whole record is lost in silence.

    For the arguments and the result see `Kind.read`.
    """
    stream = "image_text"
    items_of_record = 2  # captions of an image
    if "text_pairs" in name:
        stream = "text_text"
        items_of_record = 1
    config = toy_data.toy_config(folder)
    config.data.max_skipped_fraction = 1.0
    config.train.image_text_batch = config.train.text_text_batch = 1
    used, skipped = first_epoch(config, stream)
    whole, total = intact_records(good / name, folder / name)
    in_others = sum(len(frames(path)) for path in (good / name).parent.glob("train-*") if path != good / name)
    missing = (whole + in_others) * items_of_record - used
    assert missing <= skipped, f"{whole} records are whole, {missing} items of them are missing, {skipped} skipped"
    assert whole == total or skipped > 0 or is_empty(folder / name), f"{total - whole} records lost in silence"
    return used, skipped


def is_empty(path: pathlib.Path) -> bool:
    """Whether a file has no bytes: it is a valid TFRecord file then, and no reader can tell that records are lost."""
    return path.stat().st_size == 0


def first_epoch(config, stream: str) -> tuple[int, int]:
    """Returns (items that the first epoch of a stream used, items that it skipped), in batches of 1.

    Asserts that the stream's own tally says the same. `config`: a run's configuration; `stream`: "image_text" or
    "text_text".
    """
    used = 0
    tally = None
    for batch in training_batches(config, toy_data.toy_tokenizer(COUNT), streams=(stream,)):
        tally = batch[f"{stream}_tally"].numpy()[0, 0]  # [1 + kinds, 3], of the only pipeline and source
        epoch = int(batch[f"{stream}_place"][0, 0, 0])  # the first number of the place of the batch's last item
        if epoch:  # the first item of the second epoch, which the tally counts, too
            break
        used += 1
    read, skipped = tally[0, :2].tolist()
    assert read == used + 1 + skipped, f"{read} read, {used} + 1 used, {skipped} skipped"
    assert skipped == tally[1:, 0].sum(), "the kinds do not add up"
    return used, skipped


def read_in_python(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """Reads "dev" as an index and as evaluation does, and asserts that no whole record is lost in silence.

    An index lists the records that it leaves out; evaluation raises `UserError` for a single bad record.
    For the arguments and the result see `Kind.read`.
    """
    whole, total = intact_records(good / name, folder / name)
    entries = list(collect.find("images", [str(folder)], "dev"))
    unreadable = [entry for entry in entries if isinstance(entry, collect.Unreadable)]
    items = len(entries) - len(unreadable)
    lost = 0
    for entry in unreadable:
        count, times, _ = entry.reason.partition(" x ")  # "3 x …" are three records
        if times:
            lost += int(count)
    assert whole - items <= lost, f"{whole} records are whole, {items} indexed, {lost} lost"
    is_valid = whole == total or is_empty(folder / name)
    assert is_valid or unreadable, f"{total - whole} lost in silence by an index"
    evaluated = list(records.read_records(folder, records.IMAGE_TEXT, "dev"))
    assert is_valid and len(evaluated) >= whole, f"{len(evaluated)} of {total} evaluated"
    return items, len(unreadable)


# Conversion.

SOURCES = {  # the damaged file → the source that it is part of
    "00000.tar": "img2dataset:{folder}/tars",
    "00000.tfrecord": "img2dataset:{folder}/shards",
    "captions.tsv": "captions:{file},images={folder}/images",
    "pairs.tsv": "pairs:{file},language_a=de,language_b=en",
    "wit.tsv": "wit:{file},images={folder}/images,split=train",
    "wit.tsv.gz": "wit:{file},images={folder}/images,split=train",
    "coco.json": "coco:{file},images={folder}/images",
    "karpathy.json": "karpathy:{file},images={folder}/images",
    "part.parquet": "pairs:{file},text_a=sentence,text_b=text,language_a=de,language_b=en",
    "de-en.txt.zip": "opus:{file}",
}


def convert(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """Converts a source of `SOURCES`, and asserts that no record is missing from the output unless it was counted.

    For the arguments and the result see `Kind.read`.
    """
    file = pathlib.Path(name).name
    output = convert_data.run([SOURCES[file].format(folder=folder, file=folder / name)], folder / "out")
    dataset_folder.describe(output)  # raises for a description that it cannot read
    description = json.loads((output / "dataset.json").read_text(encoding="utf-8"))
    written = written_texts(output, description["counts"])
    counted = [*description["skipped"].items(), *description["left_out"].items()]  # (problem, {"count", …})
    skipped = sum(entry["count"] for _, entry in counted)
    assert (output / "skipped.tsv").exists() == bool(description["skipped"]), f"skipped.tsv: {description['skipped']}"
    assert len(written) > 0, "an empty data set"
    if file in ("captions.tsv", "pairs.tsv"):  # a line is a caption or a pair
        data = (folder / name).read_bytes()
        lines = data.count(b"\n")
        if data and not data.endswith(b"\n"):
            lines += 1
        assert len(written) + skipped == lines, f"{lines} in, {len(written)} written, {skipped}: {counted}"
    lost_captions = {caption(i) for i in range(COUNT)} - set(written)
    changed = changed_in_place(good / name, folder / name)
    is_explained = skipped or len(written) >= COUNT or len(lost_captions) <= changed
    assert is_explained, f"{sorted(lost_captions)} lost in silence of {len(written)}"
    return len(written), skipped


def written_texts(output: pathlib.Path, counts: dict) -> list[str]:
    """Returns the second texts of all pairs, and the captions of all pictures, in a converted data folder.

    `counts`: {"text_pairs": {split: count}, "image_text": {split: count}}, as `dataset.json` has it.
    """
    texts = []
    for split in counts["text_pairs"]:
        texts += [pair.text_b for pair in convert_data.pairs_in(output, split)]
    for split in counts["image_text"]:
        for record in convert_data.images_in(output, split):
            texts += record.captions
    return texts


def changed_in_place(good: pathlib.Path, copy: pathlib.Path) -> int:
    """Returns how many captions of a good file are not in its damaged copy: they were changed, not lost in reading.

    It is 0 for a file that does not hold captions as plain text.
    """
    if caption(0).encode() not in read_unpacked(good):
        return 0
    content = read_unpacked(copy)
    return sum(caption(i).encode() not in content for i in range(COUNT))


def read_unpacked(path: pathlib.Path) -> bytes:
    """Returns a file's content, decompressed if it is a .gz; b"" if it cannot be decompressed."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return content
    except (OSError, EOFError, ValueError, zlib.error):
        return b""


def caption(index: int) -> str:
    """Returns the caption with a number, 0 to 999; no caption is a part of another."""
    return f"the caption number {index:03d} of all"


def make_sources(folder: pathlib.Path) -> None:
    """Writes the files of `SOURCES` into a folder, all with the same pictures and captions."""
    for name in ("images", "tars", "shards"):
        (folder / name).mkdir(parents=True)
    images = [smooth_pictures.image_bytes(i, 24, 20) for i in range(COUNT)]
    captions = [caption(i) for i in range(COUNT)]
    sentences = [f"ein Satz {i:03d}" for i in range(COUNT)]
    for i, image in enumerate(images):
        (folder / f"images/{i}.jpg").write_bytes(image)
    write_tar(folder / "tars/00000.tar", images, captions)
    write_shard(folder / "shards/00000.tfrecord", images, captions)
    (folder / "captions.tsv").write_text("".join(f"{i}.jpg\t{captions[i]}\n" for i in range(COUNT)))
    (folder / "pairs.tsv").write_text("".join(f"{sentences[i]}\t{captions[i]}\n" for i in range(COUNT)))
    write_wit(folder, captions)
    write_json(folder, captions)
    write_parquet(folder / "part.parquet", sentences, captions)
    members = {}
    for language, texts in {"de": sentences, "en": captions}.items():
        members[f"X.de-en.{language}"] = "".join(f"{text}\n" for text in texts).encode()
    convert_data.write_moses(folder / "de-en.txt.zip", members)


def write_tar(path: pathlib.Path, images: Sequence[bytes], captions: Sequence[str]) -> None:
    """Writes a tar file as img2dataset does: a .jpg, a .txt and a .json file for each picture."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for i in range(COUNT):
            metadata = json.dumps({"url": f"http://x/{i}.jpg", "caption": captions[i]}).encode()
            for ending, content in {"jpg": images[i], "txt": captions[i].encode(), "json": metadata}.items():
                member = tarfile.TarInfo(f"{i:09d}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_shard(path: pathlib.Path, images: Sequence[bytes], captions: Sequence[str]) -> None:
    """Writes a TFRecord file as img2dataset does: an `Example` with "key", "jpg" and "txt" for each picture."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in range(COUNT):
            values = {"key": str(i).encode(), "jpg": images[i], "txt": captions[i].encode()}
            feature = {}
            for key, value in values.items():
                feature[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def write_wit(folder: pathlib.Path, captions: Sequence[str]) -> None:
    """Writes a table of captions in the form of WIT into a folder, as wit.tsv and, compressed, as wit.tsv.gz."""
    text = "language\tpage_title\timage_url\tcaption_reference_description\n"
    for i in range(COUNT):
        title = '"a\nb"' if i == 5 else "x"  # WIT's files are quoted as CSV files are
        text += f"en\t{title}\t{i}.jpg\t{captions[i]}\n"
    (folder / "wit.tsv").write_text(text)
    (folder / "wit.tsv.gz").write_bytes(gzip.compress(text.encode()))


def write_json(folder: pathlib.Path, captions: Sequence[str]) -> None:
    """Writes captions in COCO's form, as coco.json, and in Karpathy's, as karpathy.json."""
    pictures = [{"id": i, "file_name": f"{i}.jpg"} for i in range(COUNT)]
    annotations = [{"id": 100 + i, "image_id": i, "caption": captions[i]} for i in range(COUNT)]
    (folder / "coco.json").write_text(json.dumps({"images": pictures, "annotations": annotations}))
    entries = []
    for i in range(COUNT):
        image_sentences = [{"raw": captions[i], "sentid": i}]
        entries.append({"filename": f"{i}.jpg", "cocoid": i, "split": "train", "sentences": image_sentences})
    (folder / "karpathy.json").write_text(json.dumps({"dataset": "coco", "images": entries}))


def write_parquet(path: pathlib.Path, sentences: Sequence[str], captions: Sequence[str]) -> None:
    """Writes pairs of a sentence and a caption as Parquet, in several row groups."""
    import pyarrow
    import pyarrow.parquet

    rows = pyarrow.Table.from_pylist([{"sentence": sentences[i], "text": captions[i]} for i in range(COUNT)])
    pyarrow.parquet.write_table(rows, path, row_group_size=4)


KINDS = {
    "tfrecord": Kind(make_records, ["image_text/train-*", "text_pairs/train-*"], BINARY, read_in_training),
    "records": Kind(make_records, ["image_text/dev-*"], BINARY, read_in_python),
    "tar": Kind(make_sources, ["tars/*"], BINARY, convert),
    "shard": Kind(make_sources, ["shards/*"], BINARY, convert),
    "tsv": Kind(make_sources, ["captions.tsv", "pairs.tsv"], LINES, convert),
    "csv": Kind(make_sources, ["wit.*"], LINES, convert),
    "json": Kind(make_sources, ["*.json"], JSON, convert),
    "parquet": Kind(make_sources, ["*.parquet"], BINARY, convert),
    "texts": Kind(make_sources, ["*.zip"], LINES, convert),
}


def run_case(name: str, seed: int, root: pathlib.Path) -> tuple[str, str]:
    """Damages a file of a kind and reads it; returns (one of `OUTCOMES`, a text with the file, its damage and details).

    The process ends if reading takes more than `SECONDS`.

    Args:
      name: the kind, a name in `KINDS`.
      seed: the seed of the file and of its damage.
      root: a folder, which keeps the good files from case to case.
    """
    file_kind = KINDS[name]
    draw = random.Random(f"{name} {seed}")
    good = root / file_kind.make.__name__
    copy = root / f"{name}-{seed}"
    if not good.exists():
        file_kind.make(good)
    shutil.copytree(good, copy)
    file = draw.choice(sorted(path for pattern in file_kind.files for path in copy.glob(pattern)))
    file_name = str(file.relative_to(copy))
    data, how = damaged(draw, file.read_bytes(), file_kind.ways)
    file.write_bytes(data)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        used, skipped = file_kind.read(copy, good, file_name)
        outcome = COUNTED if skipped else USED
        detail = f"{used} used, {skipped} skipped"
    except UserError as error:
        detail = " ".join(str(error).split())  # as commands print it
        outcome = REFUSED if detail else FAILED
    except Exception:  # noqa: BLE001 - which are what is looked for
        outcome = FAILED
        detail = traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    shutil.rmtree(copy)
    return outcome, f"{file_name}, {how}: {detail}"


def main() -> None:
    """Runs the cases that the command line names, and prints how many had which outcome; exit code 1 for a failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next has the next")
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=KINDS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTES * 2**30,) * 2)
    counts = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="fuzz_data-") as root:
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            name = arguments.only[seed % len(arguments.only)]
            again = f"python -m benchmarks.fuzz_data --only {name} --seed={seed} --count=1"
            print(again, end="\r", flush=True)  # what is read if the process dies
            outcome, detail = run_case(name, seed, pathlib.Path(root))
            counts[name, outcome] += 1
            if outcome == FAILED:
                print(f"FAILED: {again}\n{detail}", flush=True)
    for name in arguments.only:
        print(f"{name:10}", ", ".join(f"{counts[name, outcome]} {outcome}" for outcome in OUTCOMES))
    sys.exit(any(counts[name, FAILED] for name in arguments.only))


if __name__ == "__main__":
    main()
