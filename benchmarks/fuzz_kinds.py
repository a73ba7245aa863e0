"""The kinds of data files that `fuzz_data` damages, and the part of the project that reads each.

A kind makes a small folder of good files once, and reads a copy of it in which one file is damaged. Reading it ends in
a `UserError`, or returns how many things were used and how many were counted as skipped, after it has checked that
nothing is missing that was not counted: it raises `Wrong` if something is.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import pathlib
import sys
import tarfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))  # the tests' small data

import convert_data
import search_data
import toy_data

from benchmarks.damage import BINARY, JSON, LINES, Damage, other_value
from mural_tf.data import dataset_folder, records, tfrecord
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.loading import load
from mural_tf.search import build, collect
from mural_tf.search.index import load_index
from mural_tf.search.queries import Query, describe_hit, read_queries, search
from mural_tf.training import workdir as workdirs
from mural_tf.training.checkpoints import BestCheckpoint, list_checkpoints

COUNT = 12  # images, pairs, lines
TEXTS = ["thing w1", "ding v7 ding", ""]


class Wrong(AssertionError):
    """Something was lost in silence, or something wrong was taken for right."""


def hold(condition: bool, message: str) -> None:
    """Raises `Wrong` unless the condition holds."""
    if not condition:
        raise Wrong(message)


class Kind(NamedTuple):
    """One kind of data files.

    Attributes:
      make: fills a new folder.
      files: patterns of those that are damaged.
      ways: how.
      read: from (damaged folder, good folder, the damaged file's name) to (used, skipped and counted).
    """

    make: Callable[[pathlib.Path], None]
    files: Sequence[str]
    ways: tuple[Damage, ...]
    read: Callable[[pathlib.Path, pathlib.Path, str], tuple[int, int]]


# TFRecords in training, evaluation and indexing.


def make_records(folder: pathlib.Path) -> None:
    toy_data.write_toy_data(folder, count=COUNT)
    records.write_records(folder, records.IMAGE_TEXT, "dev", toy_data.image_text_records(COUNT))


def frames(path: pathlib.Path) -> list[bytes]:
    """The records of a good file, with their lengths and checksums."""
    data = path.read_bytes()
    found = [(begin, len(record)) for begin, record in tfrecord.read_all(path, _never)]
    return [data[begin - tfrecord.HEADER : begin + size + tfrecord.FOOTER] for begin, size in found]


def _never(kind: str, place: str, count: int) -> None:
    raise AssertionError(f"{place}: {kind}, {count}")


def train(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """One epoch of training's input: what was used or skipped is what was read, and no whole item is lost."""
    stream, each = ("text_text", 1) if "text_pairs" in name else ("image_text", 2)  # captions of an image
    config = toy_data.toy_config(folder)
    config.data.max_skipped_fraction = 1.0
    config.train.image_text_batch = config.train.text_text_batch = 1
    used, tally = 0, None
    for batch in training_batches(config, toy_data.toy_tokenizer(COUNT), streams=(stream,)):
        tally, epoch = batch[f"{stream}_tally"].numpy()[0, 0], int(batch[f"{stream}_place"][0, 0, 0])
        if epoch:
            break
        used += 1
    read, skipped = tally[0, :2].tolist()
    hold(read == used + 1 + skipped, f"{read} read, {used} + 1 used, {skipped} skipped")
    hold(skipped == tally[1:, 0].sum(), "the kinds do not add up")
    damaged, originals = (folder / name).read_bytes(), frames(good / name)
    whole = sum(damaged.count(frame) > 0 for frame in originals)
    in_others = sum(len(frames(path)) for path in (good / name).parent.glob("train-*") if path != good / name)
    missing = (whole + in_others) * each - used
    hold(missing <= skipped, f"{whole} records are whole, {missing} items of them are missing, {skipped} skipped")
    hold(whole == len(originals) or skipped > 0 or not damaged, f"{len(originals) - whole} records lost in silence")
    return used, skipped


def read_in_python(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """Evaluation takes all of a split or nothing of it; an index lists what it leaves out."""
    damaged, originals = (folder / name).read_bytes(), frames(good / name)
    whole = sum(damaged.count(frame) > 0 for frame in originals)
    found = list(collect.find("images", [str(folder)], "dev"))
    unreadable = [entry for entry in found if isinstance(entry, collect.Unreadable)]
    items = len(found) - len(unreadable)
    lost = sum(int(entry.reason.split(" x ")[0]) for entry in unreadable if " x " in entry.reason)
    hold(whole - items <= lost, f"{whole} records are whole, {items} indexed, {lost} lost")
    hold(whole == len(originals) or unreadable or not damaged, f"{len(originals) - whole} lost in silence by an index")
    evaluated = list(records.read_records(folder, records.IMAGE_TEXT, "dev"))
    hold(len(evaluated) >= whole == len(originals) or not damaged, f"{len(evaluated)} of {len(originals)} evaluated")
    return items, len(unreadable)


# Conversion.


def convert(source: str, folder: pathlib.Path) -> tuple[set[str], int, int, str]:
    """Returns the captions and texts written, how many, how many were skipped or left out, and the report."""
    output = convert_data.run([source], folder / "out")
    dataset_folder.describe(output)
    description = json.loads((output / "dataset.json").read_text(encoding="utf-8"))
    counted = [*description["skipped"].items(), *description["left_out"].items()]
    written: list[str] = []
    for split in description["counts"]["text_pairs"]:
        written += [pair.text_b for pair in convert_data.pairs_in(output, split)]
    for split in description["counts"]["image_text"]:
        written += [caption for record in convert_data.images_in(output, split) for caption in record.captions]
    skipped = sum(entry["count"] for _, entry in counted)
    lines = (output / "skipped.tsv").read_text("utf-8").splitlines() if (output / "skipped.tsv").exists() else []
    hold(bool(lines) == bool(description["skipped"]), f"skipped.tsv has {len(lines)} lines: {description['skipped']}")
    return set(written), len(written), skipped, str(counted)


def converted(source: str, in_file: Callable[[bytes], int | None] = lambda data: None):
    """Returns a kind's `read`: nothing is missing from what a source gives unless something was counted.

    Args:
      source: with {folder} and {file}, those of the damaged copy.
      in_file: how many captions or pairs stand in the file's content as it is; `None`: not known.
    """

    def read(folder, good, name):
        names = dict(folder=folder, file=folder / name)
        written, count, skipped, report = convert(source.format(**names), folder)
        hold(count > 0, "an empty data set")
        expected = in_file((folder / name).read_bytes())
        hold(expected is None or count + skipped == expected, f"{expected} in, {count} written, {skipped}: {report}")
        lost = {caption(i) for i in range(COUNT)} - written
        same = changed_in_place(good / name, folder / name)
        hold(skipped or count >= COUNT or len(lost) <= same, f"{sorted(lost)} lost in silence, {count} written")
        return count, skipped

    return read


def changed_in_place(good: pathlib.Path, damaged: pathlib.Path) -> int:
    """How many captions of a good file cannot be found in the damaged one: their words, not they, are lost."""
    data = _unpacked(damaged)
    return sum(caption(i).encode() not in data for i in range(COUNT)) if caption(0).encode() in _unpacked(good) else 0


def _unpacked(path: pathlib.Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, ValueError):
        return b""


def caption(index: int) -> str:
    """No caption is part of another."""
    return f"the caption number {index:03d} of all"


def make_tar(folder: pathlib.Path) -> None:
    (folder / "shards").mkdir(parents=True)
    with tarfile.open(folder / "shards/00000.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for i in range(COUNT):
            metadata = json.dumps({"url": f"http://x/{i}.jpg", "caption": caption(i)}).encode()
            parts = {"jpg": convert_data.image_bytes(i, 24, 20), "txt": caption(i).encode(), "json": metadata}
            for ending, content in parts.items():
                member = tarfile.TarInfo(f"{i:09d}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def make_shard_of_records(folder: pathlib.Path) -> None:
    (folder / "shards").mkdir(parents=True)
    with tf.io.TFRecordWriter(str(folder / "shards/00000.tfrecord")) as writer:
        for i in range(COUNT):
            values = {"key": str(i).encode(), "jpg": convert_data.image_bytes(i, 24, 20), "txt": caption(i).encode()}
            feature = {k: tf.train.Feature(bytes_list=tf.train.BytesList(value=[v])) for k, v in values.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def make_parquet(folder: pathlib.Path) -> None:
    import pyarrow
    import pyarrow.parquet

    make_images(folder)
    rows = [
        {"url": f"{i}.jpg", "text": caption(i), "clip_similarity_vitb32": 0.3, "watermark_score": 0.1}
        for i in range(COUNT)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "part.parquet", row_group_size=4)


def make_images(folder: pathlib.Path) -> None:
    (folder / "images").mkdir(parents=True)
    for i in range(COUNT):
        (folder / f"images/{i}.jpg").write_bytes(convert_data.image_bytes(i, 24, 20))


def make_tables(folder: pathlib.Path) -> None:
    """Tables of image names and captions, and of text pairs."""
    make_images(folder)
    (folder / "captions.tsv").write_text("".join(f"{i}.jpg\t{caption(i)}\n" for i in range(COUNT)))
    (folder / "pairs.tsv").write_text("".join(f"ein Satz {i:03d}\t{caption(i)}\n" for i in range(COUNT)))


def make_csv(folder: pathlib.Path) -> None:
    """WIT, whose files are quoted as CSV files are."""
    from test_caption_files import WIT_COLUMNS

    make_images(folder)
    with gzip.open(folder / "wit.tsv.gz", "wt", encoding="utf-8", newline="") as packed:
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        writer.writerow(WIT_COLUMNS)
        for i in range(COUNT):
            values = {"language": "en", "image_url": f"{i}.jpg", "caption_reference_description": caption(i)}
            writer.writerow([values.get(column, "a\nb" if i == 5 else "x") for column in WIT_COLUMNS])
        packed.write(text.getvalue())
    (folder / "wit.tsv").write_text(text.getvalue())


def make_json(folder: pathlib.Path) -> None:
    make_images(folder)
    coco = {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(COUNT)],
        "annotations": [{"id": 100 + i, "image_id": i, "caption": caption(i)} for i in range(COUNT)],
    }
    karpathy = {
        "dataset": "coco",
        "images": [
            {"filename": f"{i}.jpg", "cocoid": i, "split": "train", "sentences": [{"raw": caption(i), "sentid": i}]}
            for i in range(COUNT)
        ],
    }
    for name, content in (("coco.json", coco), ("karpathy.json", karpathy)):
        (folder / name).write_text(json.dumps(content))


def make_texts(folder: pathlib.Path) -> None:
    """Text pairs as corpora publish them: a zip, XML, and two files side by side."""
    folder.mkdir(parents=True)
    left, right = ("".join(lines) for lines in zip(*((f"Satz {i:03d}\n", f"{caption(i)}\n") for i in range(COUNT))))
    convert_data.write_moses(folder / "de-en.txt.zip", {"X.de-en.de": left.encode(), "X.de-en.en": right.encode()})
    units = "".join(
        f'<tu><tuv xml:lang="de"><seg>Satz {i:03d}</seg></tuv><tuv xml:lang="en"><seg>{caption(i)}</seg></tuv></tu>\n'
        for i in range(COUNT)
    )
    (folder / "pairs.tmx").write_text(f'<?xml version="1.0"?><tmx version="1.4"><body>\n{units}</body></tmx>\n')


def lines_in(data: bytes) -> int:
    """Lines of a table, the last one with or without its end."""
    return len(data.split(b"\n")) - (data[-1:] in (b"\n", b""))


def by_name(**readers):
    """Returns a `read` that takes the reader of the damaged file's stem."""
    return lambda folder, good, name: readers[pathlib.Path(name).name.split(".")[0].replace("-", "_")](
        folder, good, name
    )


# Indexes, queries and search.


def make_index(folder: pathlib.Path) -> None:
    search_data.write_folder(folder / "images")
    found = collect.find("images", [str(folder / "images")])
    build.build_index(search_data.ColorEmbedder(), [str(folder / "images")], folder / "index", progress=False)
    hold(sum(not isinstance(entry, collect.Unreadable) for entry in found) >= len(search_data.COLORS), "too few")
    (folder / "queries.tsv").write_text("".join(f"en\t{word}\tred.png\n" for word in search_data.WORDS))


def search_index(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """An index is refused or ranks all its images, with scores that can be cosines."""
    queries = read_queries(folder / "queries.tsv")
    index = load_index(folder / "index")
    embedder = search_data.ColorEmbedder()
    index.check_model(embedder)
    count = len(load_index(good / "index"))
    hold(len(index) == count, f"{len(index)} of {count} images")
    for result in search(index, embedder, [*queries, Query("red")], top=count):
        scores = np.array([hit.score for hit in result.hits])
        hold(np.isfinite(scores).all() and (np.abs(scores) < 1.01).all(), f"scores {scores}")
        hold(len(scores) == count, f"{len(scores)} hits")
        json.dumps([describe_hit(index, hit) for hit in result.hits])
    return count, 0


# Models: workdirs and exports.


@functools.cache
def _embeddings(folder: pathlib.Path) -> np.ndarray:
    return _embed(load(folder))


def _embed(embedder) -> np.ndarray:
    images = embedder.encode_image([toy_data.picture(i) for i in range(2)])
    return np.concatenate([embedder.encode_text(TEXTS), images])


def make_workdir(folder: pathlib.Path) -> None:
    from toy_export import METRICS, toy_model

    from mural_tf.config import save_config
    from mural_tf.text.vocabulary_file import digest

    toy_data.write_toy_data(folder / "data", count=COUNT)
    config, path = toy_data.toy_config(folder / "data"), folder / "workdir"
    config.image_tower.update(dict(name="resnet", width=80 / 512, depth=0.5))
    workdirs.open_workdir(path, config)
    config.vocabulary.sha256 = digest(toy_data.toy_tokenizer().vocabulary)
    save_config(config, path / "config.json")
    toy_data.toy_tokenizer().save(path / "vocabulary.txt")
    model = toy_model(config)
    best = BestCheckpoint(model, path)
    best.offer(30, 41.5)
    tf.train.Checkpoint(model=tf.train.Checkpoint(**model.weights_by_part())).write(str(path / "checkpoints/ckpt-30"))
    (path / "checkpoints/checkpoint").write_text('model_checkpoint_path: "ckpt-30"\n')
    for step in (10, 20, 30):
        workdirs.append_metrics(path, {"step": step, "loss": 1.0, **({} if step < 30 else METRICS)})
    files = records.list_files(folder / "data", records.IMAGE_TEXT, "train")
    workdirs.note_data(path, 0, records.describe_files(folder / "data", files))


def load_workdir(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """A model that loads gives the very vectors of the undamaged one."""
    found = _embed(load(folder / "workdir"))
    hold(np.array_equal(found, _embeddings(good / "workdir")), "other embeddings")
    return 1, 0


def load_configured(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """A configuration with another value that is right as well is another configuration; the vectors stay unit ones."""
    before, after = ((path / name).read_bytes() for path in (good, folder))
    found = _embed(load(folder / "workdir"))
    if json.loads(before) == json.loads(after):
        hold(np.array_equal(found, _embeddings(good / "workdir")), "other embeddings")
    hold(bool((np.abs(np.linalg.norm(found, axis=1) - 1) < 1e-3).all()), "not of length 1")
    return 1, 0


def resume_workdir(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """What a run that goes on reads of its folder, beside the weights."""
    from mural_tf.config import load_config

    path = folder / "workdir"
    config = load_config(path / "config.json")
    workdirs.open_workdir(path, config)
    step = max(int(prefix.rsplit("-", 1)[1]) for prefix in list_checkpoints(path / "checkpoints"))
    files = records.list_files(good / "data", records.IMAGE_TEXT, "train")
    workdirs.data_changes(path, step, records.describe_files(good / "data", files))
    rows = workdirs.read_metrics(path)
    workdirs.drop_metrics(path, lambda row: row["step"] <= step)
    hold(all(workdirs.has_evaluation(row, "x", 1) in (True, False) for row in rows), "rows")
    return len(rows), 3 - len(rows)


def make_export(folder: pathlib.Path) -> None:
    from toy_export import toy_export

    toy_export(folder / "toy")


def load_export(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """An export that loads gives the very vectors of the undamaged one; hub modules likewise."""
    part = "toy/export/hub" if "/hub/" in name else "toy/export"
    found, expected = _embed(load(folder / part)), _embeddings(good / part)
    if name.endswith("config.json") and json.loads((good / name).read_bytes()) != json.loads(
        (folder / name).read_bytes()
    ):
        return 1, 0
    hold(np.array_equal(found, expected), f"other embeddings, by {np.abs(found - expected).max()}")
    return 1, 0


WORKDIR_JSON = ("workdir/metrics.jsonl", "workdir/trained_on.json", "workdir/environment.json")
SAVED_MODEL = [f"toy/export/{name}" for name in (
    "*_encoder/1/saved_model.pb", "*_encoder/1/variables/variables.*", "text_encoder/1/assets/*", "config.json",
    "hub/*/saved_model.pb", "hub/*/variables/variables.*", "hub/*/assets/*", "*_encoder/1/assets.extra/*.sha256")
]  # fmt: skip

KINDS = {
    "tfrecord": Kind(make_records, ["image_text/train-*", "text_pairs/train-*"], BINARY, train),
    "records": Kind(make_records, ["image_text/dev-*"], BINARY, read_in_python),
    "tar": Kind(make_tar, ["shards/*.tar"], BINARY, converted("img2dataset:{folder}/shards")),
    "shard": Kind(make_shard_of_records, ["shards/*.tfrecord"], BINARY, converted("img2dataset:{folder}/shards")),
    "tsv": Kind(make_tables, ["*.tsv"], LINES, by_name(
        captions=converted("captions:{file},images={folder}/images", lines_in),
        pairs=converted("pairs:{file},language_a=de,language_b=en", lines_in))),
    "csv": Kind(make_csv, ["wit.*"], LINES, converted("wit:{file},images={folder}/images,split=train")),
    "json": Kind(make_json, ["*.json"], JSON, by_name(
        coco=converted("coco:{file},images={folder}/images"),
        karpathy=converted("karpathy:{file},images={folder}/images"))),
    "parquet": Kind(make_parquet, ["*.parquet"], BINARY, converted("coyo:{file},images={folder}/images")),
    "texts": Kind(make_texts, ["*.zip", "*.tmx"], LINES, by_name(
        de_en=converted("opus:{file}"), pairs=converted("tmx:{file}"))),
    "index": Kind(make_index, ["index/*.npy", "index/*.json*", "queries.tsv"], JSON, search_index),
    "vocabulary": Kind(make_workdir, ["workdir/vocabulary.txt"], LINES, load_workdir),
    "checkpoint": Kind(make_workdir, ["workdir/checkpoints/ckpt-*", "workdir/checkpoints/checkpoint"],
                       BINARY, load_workdir),
    "config": Kind(make_workdir, ["workdir/config.json"], (*JSON, *[other_value] * 20), load_configured),
    "workdir": Kind(make_workdir, WORKDIR_JSON, JSON, resume_workdir),
    "export": Kind(make_export, SAVED_MODEL, LINES, load_export),
}  # fmt: skip
