"""Data sets of TFRecords, written, listed, read and parsed by TensorFlow (see docs/data.md).

`record_format.py` describes a record. A data set is a folder:

    dataset.json                                     counts, versions, licences, seed
    image_text/<split>-00000-of-00004.tfrecord       `tf.train.Example`s of image-text records
    text_pairs/<split>-00000-of-00001.tfrecord       `tf.train.Example`s of text pairs

An image with several captions may be stored once: `caption`, `language` and `caption_group` are then parallel
lists. Captions that share image and group say the same thing in different languages.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from mural_lite import tfrecord
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json

# A reader of data sets looks here for the fields of a record, too.
from mural_lite.record_format import IMAGE_TEXT as IMAGE_TEXT
from mural_lite.record_format import TEXT_PAIRS as TEXT_PAIRS
from mural_lite.record_format import ImageTextRecord as ImageTextRecord
from mural_lite.record_format import TextPair as TextPair
from mural_lite.record_format import missing_shards as missing_shards
from mural_lite.record_format import parse_record as parse_record
from mural_lite.record_format import serialize as serialize
from mural_lite.skipped import CAPTION_NOT_UTF8, EMPTY_CAPTION, EMPTY_TEXT, MISSING_SHARD, TEXT_NOT_UTF8, CountsByKind

REQUESTS = 32  # to an object store at a time

# Data sets without tf.data's autotuning.


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `dataset` with parallelism and buffers as they are written, instead of tuned while it is read.

    In TensorFlow 2.15 the tuning thread of an iterator that is deleted can miss that it should end, and deleting then
    waits until the thread looks again: after as long as the iterator has lived, up to a minute. Such waits followed
    training, evaluation and every other reader of records. Our pipelines have little to tune. `tf.data.AUTOTUNE`
    becomes the number of cores, at most 16.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


REQUIRED = tf.io.FixedLenFeature([], tf.string)
OPTIONAL = tf.io.FixedLenFeature([], tf.string, default_value="")
IMAGE_TEXT_FEATURES = {
    "image_id": OPTIONAL,  # "": see `_image_id`
    "image": REQUIRED,  # JPEG or PNG bytes
    "caption": tf.io.VarLenFeature(tf.string),  # UTF-8
    "language": tf.io.VarLenFeature(tf.string),  # BCP 47
    "caption_group": tf.io.VarLenFeature(tf.string),
}
TEXT_PAIR_FEATURES = {
    "text_a": REQUIRED,
    "language_a": OPTIONAL,
    "text_b": REQUIRED,
    "language_b": OPTIONAL,
    "group_id": OPTIONAL,
}
IMG2DATASET_FEATURES = {"jpg": REQUIRED, "txt": OPTIONAL, "key": OPTIONAL}


def write_records(
    directory: str | pathlib.Path,
    record_type: str,
    split: str,
    records: Iterable[ImageTextRecord | TextPair],
    shards: int = 1,
) -> int:
    """Writes `records` round robin into `shards` files of `directory/record_type`; returns how many there were."""
    folder = pathlib.Path(directory) / record_type
    folder.mkdir(parents=True, exist_ok=True)
    names = [str(folder / f"{split}-{i:05d}-of-{shards:05d}.tfrecord") for i in range(shards)]
    writers = [tf.io.TFRecordWriter(name) for name in names]
    count = 0
    try:
        for count, record in enumerate(records, start=1):
            writers[(count - 1) % shards].write(serialize(record))
    finally:
        for writer in writers:
            writer.close()
    return count


def list_files(directory: str | pathlib.Path, record_type: str, split: str) -> list[str]:
    """Returns the sorted record files of a split; raises `UserError` if there are not any.

    A folder without `record_type` sub-folders (img2dataset's output) is read as image-text records of split "train".
    """
    files = find_files(directory, record_type, split)
    if not files:
        raise UserError(
            f"No {record_type} records of split {split!r} in {directory}: "
            f"expected {directory}/{record_type}/{split}-*.tfrecord, which `convert` or `catalogue` writes."
        )
    return files


def find_files(directory: str | pathlib.Path, record_type: str, split: str) -> list[str]:
    """Returns the sorted record files of a split, [] without such files; raises `UserError` for a missing folder."""
    directory = str(directory)
    if not directory:
        raise UserError("No data folder given: set --config.data.directory to a folder of TFRecords.")
    _let_tensorflow_read(directory)
    if not tf.io.gfile.isdir(directory):
        raise UserError(f"The data folder {directory} does not exist.")
    files = tf.io.gfile.glob(f"{directory}/{record_type}/{split}-*.tfrecord")
    if not files and record_type == IMAGE_TEXT and split == "train":
        files = tf.io.gfile.glob(f"{directory}/*.tfrecord")
    return sorted(files)


def describe_files(directory: str | pathlib.Path, files: Sequence[str]) -> dict:
    """Returns {"files": {name below the folder: size in bytes}, "dataset": digest of dataset.json or ""}.

    The digest leaves out the counts by file, `shards`: with or without them, a description means the same data.
    """
    sizes = {}
    for name, size in file_sizes(files).items():
        sizes[name.removeprefix(str(directory)).lstrip("/")] = size
    description = f"{directory}/dataset.json"
    digest = ""
    if tf.io.gfile.exists(description):
        with tf.io.gfile.GFile(description, "rb") as file:
            digest = _digest_without_shards(file.read())
    return {"files": sizes, "dataset": digest}


def _digest_without_shards(description: bytes) -> str:
    """Returns the SHA-256 of a description without its "shards", hexadecimal; "" if nothing else is in it."""
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(description)
        if isinstance(content, dict) and content.get("shards") is not None:
            del content["shards"]
            description = b""
            if content:
                text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"  # as all our folders write it
                description = text.encode()
    if not description:
        return ""
    return hashlib.sha256(description).hexdigest()


def file_sizes(files: Sequence[str]) -> dict[str, int]:
    """Returns {name: size in bytes}; raises `UserError` for a file that can no longer be read."""

    def size(name: str) -> int:
        return tf.io.gfile.stat(name).length

    try:
        # A store's answer takes as long as a thousand of a disk's: many are waited for at once.
        requests = REQUESTS if files and "://" in files[0] else 1
        with concurrent.futures.ThreadPoolExecutor(requests) as pool:
            return dict(zip(files, pool.map(size, files)))
    except tf.errors.OpError as error:
        raise UserError(f"A data file cannot be read: {error.message}.") from None


def describe_shards(directory: str) -> dict[str, dict]:
    """Returns {name below the folder: its entry in `dataset.json`: bytes, records, languages}; {} without entries."""
    path = as_path(directory) / "dataset.json"
    if not path.is_file():
        return {}
    return json_field(read_json(path), "shards", dict[str, dict], path, {})


def read_records(
    directory: str | pathlib.Path, record_type: str, split: str, skip_damaged: bool = False
) -> Iterator[ImageTextRecord | TextPair]:
    """Yields a split's records in file order, as Python objects: for evaluation and vocabularies, not for training.

    Raises `UserError` for a damaged file, a shard that is missing or text that is not UTF-8; with `skip_damaged` such
    records are left out, as training does, and how many is logged.
    """
    problems = CountsByKind()
    files = list_files(directory, record_type, split)
    for name in missing_shards(files):
        if not skip_damaged:
            raise UserError(f"{name} is missing, though the other files of its split name it: fetch it again.")
        problems.add(MISSING_SHARD, name)
    for name in files:
        for index, (_, serialized) in enumerate(read_serialized(name, problems.add)):
            if problems and not skip_damaged:
                break
            try:
                record = parse_record(serialized, name, index)
            except UserError:
                if not skip_damaged:
                    raise
                problems.add(TEXT_NOT_UTF8, f"{name}, record {index}")
            else:
                yield record
        if problems and not skip_damaged:
            raise UserError(f"{name} is damaged: {problems.lines()[0]}. Make the file again.")
    for line in problems.lines():
        logging.warning("Left out: %s.", line)


def read_serialized(path: str, on_problem: Callable[[str, str, int], None]) -> Iterator[tuple[int, bytes]]:
    """Yields (offset of the data, data) of the records of a file, local or elsewhere; see `tfrecord.read_all`."""
    open_file = tf.io.gfile.GFile if "://" in path else open
    return tfrecord.read_all(path, on_problem, open_file)


# Parsing into items, which are dicts of parallel lists. Every item has a `problem`, "" where it can be used.


def parse_image_text(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one image-text record into one item per caption: {name: [captions]}."""
    parsed = tf.io.parse_single_example(serialized, IMAGE_TEXT_FEATURES)
    captions = tf.sparse.to_dense(parsed["caption"])
    count = tf.maximum(tf.size(captions), 1)  # a record without captions is one item with an empty caption
    captions = tf.cond(tf.size(captions) > 0, lambda: captions, lambda: tf.constant([""]))
    item = {
        "image_id": tf.repeat(_image_id(parsed["image_id"], parsed["image"]), count),
        "image": tf.repeat(parsed["image"], count),
        "caption": captions,
        "language": _padded(tf.sparse.to_dense(parsed["language"]), count),
    }
    return {**item, "problem": _text_problem(captions, EMPTY_CAPTION, CAPTION_NOT_UTF8)}


def parse_text_pair(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses text pairs, a string or [N], into an item each: {name: [N]}. A pair without a group gets its own group."""
    item = tf.io.parse_example(tf.reshape(serialized, [-1]), TEXT_PAIR_FEATURES)
    both_texts = tf.strings.join([item["text_a"], item["text_b"]], separator="\t")
    item["group_id"] = tf.where(tf.equal(item["group_id"], ""), both_texts, item["group_id"])
    problem_a = _text_problem(item["text_a"], EMPTY_TEXT, TEXT_NOT_UTF8)
    problem_b = _text_problem(item["text_b"], EMPTY_TEXT, TEXT_NOT_UTF8)
    return {**item, "problem": either_problem(problem_a, problem_b)}


def parse_img2dataset(language: str):
    """Returns the parser of one of img2dataset's records into one item, {name: [1]}, with `key` as the image's id."""

    def parse(serialized):
        parsed = tf.io.parse_example(tf.expand_dims(serialized, 0), IMG2DATASET_FEATURES)
        return {
            "image_id": _image_id(parsed["key"], parsed["jpg"]),
            "image": parsed["jpg"],
            "caption": parsed["txt"],
            "language": tf.constant([language]),
            "problem": _text_problem(parsed["txt"], EMPTY_CAPTION, CAPTION_NOT_UTF8),
        }

    return parse


def _image_id(ids: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """Returns ids, string of any shape, with a hash of the image's bytes for ""; otherwise "" would be one image."""
    hashed = tf.strings.as_string(tf.strings.to_hash_bucket_fast(images, np.iinfo(np.int64).max))
    return tf.where(tf.equal(ids, ""), hashed, ids)


def either_problem(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns each item's problem, string [N]: its first part's, or else its second part's; "" if both can be used."""
    return tf.where(tf.equal(first, ""), second, first)


def _text_problem(texts: tf.Tensor, if_empty: str, if_not_utf8: str) -> tf.Tensor:
    """Returns the problem of each text [N], "" for a usable text."""
    repaired = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace", replace_control_characters=False)
    problem = tf.where(tf.equal(repaired, texts), "", if_not_utf8)
    return tf.where(tf.equal(tf.strings.strip(texts), ""), if_empty, problem)


def _padded(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns the first `count` values, string [N] → string [count]; "" where there are fewer."""
    return tf.concat([values, tf.fill([count], "")], axis=0)[:count]


def _let_tensorflow_read(name: str) -> None:
    """Registers the file system with which TensorFlow reads a store's files by itself, where it is a package.

    Raises `UserError` if this TensorFlow lacks it: `s3://` needs tensorflow-io, which ended with TensorFlow 2.15.
    """
    scheme, colon, _ = name.partition("://")
    if colon and scheme == "s3":
        with contextlib.suppress(ImportError):
            import tensorflow_io  # noqa: F401 - registers s3://
    if colon and scheme not in tf.io.gfile.get_registered_schemes():
        raise UserError(
            f"{name}: TensorFlow {tf.__version__} cannot read {scheme}:// by itself, as training does; copy the data "
            "to this machine, or mount the bucket as a folder."
        )
