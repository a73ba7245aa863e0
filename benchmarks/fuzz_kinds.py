"""The kinds of data files that `fuzz_data` damages, and the part of the project that reads each.

A kind makes a small folder of good files once, and reads a copy of it in which one file is damaged. Reading it ends in
a `UserError`, or returns how many things were used and how many were counted as skipped, after it has checked that
nothing is missing that was not counted: it raises `Wrong` if something is.
"""

from __future__ import annotations

import csv
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

from benchmarks.damage import BINARY, JSON, LINES
from mural_tf.config import save_config
from mural_tf.data import dataset_folder, records, tfrecord
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.loading import load
from mural_tf.search import build, collect
from mural_tf.search.index import load_index
from mural_tf.search.queries import Query, describe_hit, read_queries, search
from mural_tf.text.vocabulary_file import digest
from mural_tf.training import workdir as workdirs
from mural_tf.training.checkpoints import BestCheckpoint

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
    ways: Sequence[Callable]
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

SOURCES = {  # the damaged file → the source that it is part of
    "00000.tar": "img2dataset:{folder}/tars",
    "00000.tfrecord": "img2dataset:{folder}/shards",
    "captions.tsv": "captions:{file},images={folder}/images",
    "pairs.tsv": "pairs:{file},language_a=de,language_b=en",
    "wit.tsv": "wit:{file},images={folder}/images,split=train",
    "wit.tsv.gz": "wit:{file},images={folder}/images,split=train",
    "coco.json": "coco:{file},images={folder}/images",
    "karpathy.json": "karpathy:{file},images={folder}/images",
    "part.parquet": "coyo:{file},images={folder}/images",
    "de-en.txt.zip": "opus:{file}",
    "pairs.tmx": "tmx:{file}",
}


def convert(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """Nothing is missing from what a source gives unless something was counted."""
    file = pathlib.Path(name).name
    output = convert_data.run([SOURCES[file].format(folder=folder, file=folder / name)], folder / "out")
    dataset_folder.describe(output)
    description = json.loads((output / "dataset.json").read_text(encoding="utf-8"))
    written = [pair.text_b for split in description["counts"]["text_pairs"]
               for pair in convert_data.pairs_in(output, split)]  # fmt: skip
    for split in description["counts"]["image_text"]:
        written += [caption for record in convert_data.images_in(output, split) for caption in record.captions]
    counted = [*description["skipped"].items(), *description["left_out"].items()]
    skipped = sum(entry["count"] for _, entry in counted)
    hold((output / "skipped.tsv").exists() == bool(description["skipped"]), f"skipped.tsv: {description['skipped']}")
    hold(len(written) > 0, "an empty data set")
    if file.endswith(".tsv") and not file.startswith("wit"):  # a line is a caption or a pair
        data = (folder / name).read_bytes()
        lines = len(data.split(b"\n")) - (data[-1:] in (b"\n", b""))
        hold(len(written) + skipped == lines, f"{lines} in, {len(written)} written, {skipped}: {counted}")
    lost = {caption(i) for i in range(COUNT)} - set(written)
    same = changed_in_place(good / name, folder / name)
    hold(skipped or len(written) >= COUNT or len(lost) <= same, f"{sorted(lost)} lost in silence of {len(written)}")
    return len(written), skipped


def changed_in_place(good: pathlib.Path, damaged: pathlib.Path) -> int:
    """How many captions of a good file cannot be found in the damaged one: their words, not they, are lost."""
    before, after = map(unpacked, (good, damaged))
    return sum(caption(i).encode() not in after for i in range(COUNT)) if caption(0).encode() in before else 0


def unpacked(path: pathlib.Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, ValueError):
        return b""


def caption(index: int) -> str:
    """No caption is part of another."""
    return f"the caption number {index:03d} of all"


def make_sources(folder: pathlib.Path) -> None:
    """The files of `SOURCES`, of the same pictures and captions."""
    import pyarrow
    import pyarrow.parquet

    for name in ("images", "tars", "shards"):
        (folder / name).mkdir(parents=True)
    images = [convert_data.image_bytes(i, 24, 20) for i in range(COUNT)]
    captions, sentences = [caption(i) for i in range(COUNT)], [f"ein Satz {i:03d}" for i in range(COUNT)]
    for i, image in enumerate(images):
        (folder / f"images/{i}.jpg").write_bytes(image)
    with tarfile.open(folder / "tars/00000.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for i in range(COUNT):
            metadata = json.dumps({"url": f"http://x/{i}.jpg", "caption": captions[i]}).encode()
            for ending, content in {"jpg": images[i], "txt": captions[i].encode(), "json": metadata}.items():
                member = tarfile.TarInfo(f"{i:09d}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    with tf.io.TFRecordWriter(str(folder / "shards/00000.tfrecord")) as writer:
        for i in range(COUNT):
            values = {"key": str(i).encode(), "jpg": images[i], "txt": captions[i].encode()}
            feature = {k: tf.train.Feature(bytes_list=tf.train.BytesList(value=[v])) for k, v in values.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    (folder / "captions.tsv").write_text("".join(f"{i}.jpg\t{captions[i]}\n" for i in range(COUNT)))
    (folder / "pairs.tsv").write_text("".join(f"{sentences[i]}\t{captions[i]}\n" for i in range(COUNT)))
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")  # WIT's files are quoted as CSV files are
    writer.writerow(["language", "page_title", "image_url", "caption_reference_description"])
    writer.writerows(["en", "a\nb" if i == 5 else "x", f"{i}.jpg", captions[i]] for i in range(COUNT))
    (folder / "wit.tsv").write_text(text.getvalue())
    (folder / "wit.tsv.gz").write_bytes(gzip.compress(text.getvalue().encode()))
    coco = {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(COUNT)],
        "annotations": [{"id": 100 + i, "image_id": i, "caption": captions[i]} for i in range(COUNT)],
    }
    (folder / "coco.json").write_text(json.dumps(coco))
    said = [[{"raw": captions[i], "sentid": i}] for i in range(COUNT)]
    entries = [{"filename": f"{i}.jpg", "cocoid": i, "split": "train", "sentences": said[i]} for i in range(COUNT)]
    (folder / "karpathy.json").write_text(json.dumps({"dataset": "coco", "images": entries}))
    scores = {"clip_similarity_vitb32": 0.3, "watermark_score": 0.1}
    rows = pyarrow.Table.from_pylist([{"url": f"{i}.jpg", "text": captions[i], **scores} for i in range(COUNT)])
    pyarrow.parquet.write_table(rows, folder / "part.parquet", row_group_size=4)
    sides = {"de": sentences, "en": captions}
    members = {f"X.de-en.{language}": "".join(f"{s}\n" for s in side).encode() for language, side in sides.items()}
    convert_data.write_moses(folder / "de-en.txt.zip", members)
    units = "".join(
        f'<tu><tuv xml:lang="de"><seg>{de}</seg></tuv><tuv xml:lang="en"><seg>{en}</seg></tuv></tu>\n'
        for de, en in zip(sentences, captions)
    )
    (folder / "pairs.tmx").write_text(f'<?xml version="1.0"?><tmx version="1.4"><body>\n{units}</body></tmx>\n')


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


def embed(folder: pathlib.Path) -> np.ndarray:
    embedder = load(folder)
    images = embedder.encode_image([toy_data.picture(i) for i in range(2)])
    return np.concatenate([embedder.encode_text(TEXTS), images])


def make_workdir(folder: pathlib.Path) -> None:
    from toy_export import toy_model

    toy_data.write_toy_data(folder / "data", count=COUNT)
    config, path = toy_data.toy_config(folder / "data"), folder / "workdir"
    config.image_tower.update(dict(name="resnet", width=80 / 512, depth=0.5))
    workdirs.open_workdir(path, config)
    config.vocabulary.sha256 = digest(toy_data.toy_tokenizer().vocabulary)
    save_config(config, path / "config.json")
    toy_data.toy_tokenizer().save(path / "vocabulary.txt")
    model = toy_model(config)
    BestCheckpoint(model, path).offer(30, 41.5)
    tf.train.Checkpoint(model=tf.train.Checkpoint(**model.weights_by_part())).write(str(path / "checkpoints/ckpt-30"))
    (path / "checkpoints/checkpoint").write_text('model_checkpoint_path: "ckpt-30"\n')
    np.save(folder / "embeddings.npy", embed(path))


def make_export(folder: pathlib.Path) -> None:
    from toy_export import toy_export

    toy_export(folder / "toy")
    for name in ("export", "export/hub"):
        np.save(folder / "toy" / name / "embeddings.npy", embed(folder / "toy" / name))


def load_model(folder: pathlib.Path, good: pathlib.Path, name: str) -> tuple[int, int]:
    """A model that loads gives the very vectors of the undamaged one, of its own configuration unit vectors."""
    part = "workdir" if name.startswith("workdir") else "toy/export/hub" if "/hub/" in name else "toy/export"
    found = embed(folder / part)
    expected = np.load(good / ("embeddings.npy" if part == "workdir" else f"{part}/embeddings.npy"))
    same = not name.endswith("config.json") or json.loads((good / name).read_bytes()) == json.loads(
        (folder / name).read_bytes()
    )
    hold(not same or np.array_equal(found, expected), "other embeddings")
    hold(bool((np.abs(np.linalg.norm(found, axis=1) - 1) < 1e-3).all()), "not of length 1")
    return 1, 0


SAVED_MODEL = [f"toy/export/{name}" for name in (
    "*_encoder/1/saved_model.pb", "*_encoder/1/variables/variables.*", "text_encoder/1/assets/*", "config.json",
    "hub/*/saved_model.pb", "hub/*/variables/variables.*", "hub/*/assets/*", "*_encoder/1/assets.extra/*.sha256")
]  # fmt: skip

KINDS = {
    "tfrecord": Kind(make_records, ["image_text/train-*", "text_pairs/train-*"], BINARY, train),
    "records": Kind(make_records, ["image_text/dev-*"], BINARY, read_in_python),
    "tar": Kind(make_sources, ["tars/*"], BINARY, convert),
    "shard": Kind(make_sources, ["shards/*"], BINARY, convert),
    "tsv": Kind(make_sources, ["captions.tsv", "pairs.tsv"], LINES, convert),
    "csv": Kind(make_sources, ["wit.*"], LINES, convert),
    "json": Kind(make_sources, ["*.json"], JSON, convert),
    "parquet": Kind(make_sources, ["*.parquet"], BINARY, convert),
    "texts": Kind(make_sources, ["*.zip", "*.tmx"], LINES, convert),
    "index": Kind(make_index, ["index/*.npy", "index/*.json*", "queries.tsv"], JSON, search_index),
    "vocabulary": Kind(make_workdir, ["workdir/vocabulary.txt"], LINES, load_model),
    "checkpoint": Kind(make_workdir, ["workdir/checkpoints/*"], BINARY, load_model),
    "config": Kind(make_workdir, ["workdir/config.json"], JSON, load_model),
    "export": Kind(make_export, SAVED_MODEL, LINES, load_model),
}
