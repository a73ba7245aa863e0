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
    waits until the thread looks again: after as long as the iterator has lived, up to a minute. `tf.data.AUTOTUNE`
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
    """Writes records in turn into the files `directory/record_type/split-00000-of-00004.tfrecord` and so on.

    Args:
      directory: the data set's folder; `record_type`'s folder in it is made if it is missing.
      record_type: `IMAGE_TEXT` or `TEXT_PAIRS`.
      split: "train", "dev" or "test".
      records: the records, of this type.
      shards: the number of files.

    Returns:
      How many records there were.
    """
    folder = pathlib.Path(directory) / record_type
    folder.mkdir(parents=True, exist_ok=True)
    names = [str(folder / f"{split}-{shard:05d}-of-{shards:05d}.tfrecord") for shard in range(shards)]
    writers = [tf.io.TFRecordWriter(name) for name in names]
    count = 0  # also for no records at all
    try:
        for count, record in enumerate(records, start=1):
            writers[(count - 1) % shards].write(serialize(record))
    finally:
        for writer in writers:
            writer.close()
    return count


def list_files(directory: str | pathlib.Path, record_type: str, split: str) -> list[str]:
    """Returns the sorted names of a split's record files; raises `UserError` for no files, and as `find_files`.

    A folder without `record_type` sub-folders (img2dataset's output) is read as image-text records of split "train".

    Args:
      directory: the data set's folder, here or in a store that TensorFlow reads.
      record_type: `IMAGE_TEXT` or `TEXT_PAIRS`.
      split: "train", "dev" or "test".
    """
    files = find_files(directory, record_type, split)
    if not files:
        raise UserError(
            f"No {record_type} records of split {split!r} in {directory}: "
            f"expected {directory}/{record_type}/{split}-*.tfrecord, which `convert` or `catalogue` writes."
        )
    return files


def find_files(directory: str | pathlib.Path, record_type: str, split: str) -> list[str]:
    """Returns the sorted names of a split's record files, [] if there are not any; arguments as in `list_files`.

    Raises `UserError` if `directory` is "", does not exist, or is an address that TensorFlow cannot read.
    """
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

    Folders with the same description are taken as the same data. The digest leaves out `shards`, the counts by file,
    which tell nothing more of the data. Raises `UserError` if a file cannot be read.
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
    """Returns the SHA-256 of a dataset.json without its "shards", in hexadecimal; "" if it has nothing else.

    A file that is not a JSON object, or has no "shards", is taken as it is.
    """
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(description)
        if isinstance(content, dict) and content.get("shards") is not None:
            del content["shards"]
            if not content:
                return ""
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"  # as all our folders write it
            description = text.encode("utf-8", "surrogatepass")  # JSON may escape half a character
    if not description:
        return ""
    return hashlib.sha256(description).hexdigest()


def file_sizes(files: Sequence[str]) -> dict[str, int]:
    """Returns {name: size in bytes} of files on one disk or store; raises `UserError` if one cannot be read."""

    def size(name: str) -> int:
        return tf.io.gfile.stat(name).length

    try:
        # A store's answer takes as long as a thousand of a disk's: many are waited for at once.
        is_in_store = bool(files) and "://" in files[0]
        requests = REQUESTS if is_in_store else 1
        with concurrent.futures.ThreadPoolExecutor(requests) as pool:
            return dict(zip(files, pool.map(size, files)))
    except tf.errors.OpError as error:
        raise UserError(f"A data file cannot be read: {error.message}.") from None


def describe_shards(directory: str) -> dict[str, dict]:
    """Returns the "shards" of a folder's `dataset.json`, {} without them; raises `UserError` for a damaged file.

    {"image_text/train-00000-of-00004.tfrecord": {"bytes": …, "records": …, "languages": {"de": captions}}}
    """
    path = as_path(directory) / "dataset.json"
    if not path.is_file():
        return {}
    return json_field(read_json(path), "shards", dict[str, dict], path, {})


def read_records(
    directory: str | pathlib.Path, record_type: str, split: str, skip_damaged: bool = False
) -> Iterator[ImageTextRecord | TextPair]:
    """Yields a split's records in file order, as Python objects: for evaluation and vocabularies, not for training.

    Args:
      directory, record_type, split: as in `list_files`.
      skip_damaged: whether unusable records are left out, as training does, and their number is logged.

    Raises:
      UserError: as `list_files`; without `skip_damaged`, a damaged file, a missing shard or text that is not UTF-8.
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
                break  # raised below, as is damage behind the last record
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
    """Returns an iterator of (offset of the record's data in bytes, data) over a file, here or in a store.

    `on_problem` is called with (problem, place, number of records) for damage; see `tfrecord.read_all`.
    """
    open_file = tf.io.gfile.GFile if "://" in path else open
    return tfrecord.read_all(path, on_problem, open_file)


# Parsing of records into items, {name: tensor [items]}. Each item has a "problem", which is "" where it can be used.


def parse_image_text(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one image-text record, a string scalar, into an item for each caption.

    Returns {"image_id", "image", "caption", "language", "problem": string [captions]}. A record without captions is one
    item with an empty caption.
    """
    parsed = tf.io.parse_single_example(serialized, IMAGE_TEXT_FEATURES)
    captions = tf.sparse.to_dense(parsed["caption"])
    count = tf.maximum(tf.size(captions), 1)
    captions = tf.cond(tf.size(captions) > 0, lambda: captions, lambda: tf.constant([""]))
    items = {
        "image_id": tf.repeat(_image_id(parsed["image_id"], parsed["image"]), count),
        "image": tf.repeat(parsed["image"], count),
        "caption": captions,
        "language": _padded(tf.sparse.to_dense(parsed["language"]), count),
    }
    return {**items, "problem": _text_problem(captions, EMPTY_CAPTION, CAPTION_NOT_UTF8)}


def parse_text_pair(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses text pairs, a string scalar or [N], into an item each.

    Returns {"text_a", "language_a", "text_b", "language_b", "group_id", "problem": string [N]}. A pair without a group
    gets its two texts as "group_id".
    """
    items = tf.io.parse_example(tf.reshape(serialized, [-1]), TEXT_PAIR_FEATURES)
    both_texts = tf.strings.join([items["text_a"], items["text_b"]], separator="\t")
    items["group_id"] = tf.where(tf.equal(items["group_id"], ""), both_texts, items["group_id"])
    problem_a = _text_problem(items["text_a"], EMPTY_TEXT, TEXT_NOT_UTF8)
    problem_b = _text_problem(items["text_b"], EMPTY_TEXT, TEXT_NOT_UTF8)
    return {**items, "problem": either_problem(problem_a, problem_b)}


def parse_img2dataset(language: str) -> Callable:
    """Returns a function that parses one of img2dataset's records, a string scalar, into one item.

    The item is as `parse_image_text`'s, {name: string [1]}: its id is the record's `key`, its language `language`.
    """

    def parse(serialized):
        """Returns the record's item."""
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
    """Returns image ids, with a hash of the image's bytes in place of "", because each image needs its own id.

    `ids` and `images` are strings of one shape, and so is the result.
    """
    hashes = tf.strings.as_string(tf.strings.to_hash_bucket_fast(images, np.iinfo(np.int64).max))
    return tf.where(tf.equal(ids, ""), hashes, ids)


def either_problem(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns the problem of items of two parts, string [N]: `first` where it is not "", else `second`."""
    return tf.where(tf.equal(first, ""), second, first)


def _text_problem(texts: tf.Tensor, if_empty: str, if_not_utf8: str) -> tf.Tensor:
    """Returns the problem of each text, string [N]: `if_empty`, `if_not_utf8`, or "" for a usable text."""
    repaired = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace", replace_control_characters=False)
    problem = tf.where(tf.equal(repaired, texts), "", if_not_utf8)
    return tf.where(tf.equal(tf.strings.strip(texts), ""), if_empty, problem)


def _padded(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns the first `count` values, string [N] → string [count]; "" where there are fewer."""
    return tf.concat([values, tf.fill([count], "")], axis=0)[:count]


def _let_tensorflow_read(name: str) -> None:
    """Registers the file system of a name like `s3://bucket/data`, if a package has it; does nothing for a local name.

    Raises `UserError` if TensorFlow cannot read such names: `s3://` needs tensorflow-io, which ended with TensorFlow
    2.15.
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
