"""The project's TFRecord format: what an image-text record and a text pair hold (see docs/data.md).

A data set is a folder:

    dataset.json                                     counts, versions, licences, seed
    image_text/<split>-00000-of-00004.tfrecord       `tf.train.Example`s of image-text records
    text_pairs/<split>-00000-of-00001.tfrecord       `tf.train.Example`s of text pairs

An image with several captions may be stored once: `caption`, `language` and `caption_group` are then parallel
lists. Captions that share image and group say the same thing in different languages.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from mural_tf.errors import UserError

# Data sets without tf.data's autotuning.


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `dataset` with parallelism and buffers as they are written, instead of tuned while it is read.

    In TensorFlow 2.15 the tuning thread of an iterator that is deleted can miss that it should end, and deleting then
    waits until the thread looks again: after as long as the iterator has lived, up to a minute. Such waits followed
    training, evaluation and whatever else read records. Our pipelines have little to tune. `tf.data.AUTOTUNE` becomes
    the number of cores, at most 16.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


IMAGE_TEXT = "image_text"
TEXT_PAIRS = "text_pairs"

IMAGE_TEXT_FEATURES = {
    "image_id": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "image": tf.io.FixedLenFeature([], tf.string),  # JPEG or PNG bytes
    "caption": tf.io.VarLenFeature(tf.string),  # UTF-8
    "language": tf.io.VarLenFeature(tf.string),  # BCP 47
    "caption_group": tf.io.VarLenFeature(tf.string),
}
TEXT_PAIR_FEATURES = {
    "text_a": tf.io.FixedLenFeature([], tf.string),
    "language_a": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "text_b": tf.io.FixedLenFeature([], tf.string),
    "language_b": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "group_id": tf.io.FixedLenFeature([], tf.string, default_value=""),
}


@dataclasses.dataclass
class ImageTextRecord:
    """One image and its captions; `captions`, `languages` and `caption_groups` are parallel."""

    image_id: str
    image: bytes
    captions: Sequence[str]
    languages: Sequence[str]
    caption_groups: Sequence[str]


@dataclasses.dataclass
class TextPair:
    """Two texts that mean the same; pairs with one `group_id` are translations of each other."""

    text_a: str
    language_a: str
    text_b: str
    language_b: str
    group_id: str = ""


def _bytes_feature(values: Iterable[str | bytes]) -> tf.train.Feature:
    encoded = [v.encode("utf-8") if isinstance(v, str) else v for v in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))


def serialize(record: ImageTextRecord | TextPair) -> bytes:
    """Returns the record as a serialised `tf.train.Example`; the same record gives the same bytes."""
    if isinstance(record, ImageTextRecord):
        if not len(record.captions) == len(record.languages) == len(record.caption_groups):
            raise ValueError(
                f"Image {record.image_id}: {len(record.captions)} captions, {len(record.languages)} languages and "
                f"{len(record.caption_groups)} caption groups; the three lists must be parallel."
            )
        feature = {
            "image_id": _bytes_feature([record.image_id]),
            "image": _bytes_feature([record.image]),
            "caption": _bytes_feature(record.captions),
            "language": _bytes_feature(record.languages),
            "caption_group": _bytes_feature(record.caption_groups),
        }
    else:
        feature = {name: _bytes_feature([getattr(record, name)]) for name in TEXT_PAIR_FEATURES}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True)


def write_records(
    directory: str | pathlib.Path, kind: str, split: str, records: Iterable[ImageTextRecord | TextPair], shards: int = 1
) -> int:
    """Writes `records` round robin into `shards` files of `directory/kind`; returns how many there were."""
    folder = pathlib.Path(directory) / kind
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


def list_files(directory: str | pathlib.Path, kind: str, split: str) -> list[str]:
    """Returns the sorted record files of a split; raises `UserError` if there are none.

    A folder without `kind` sub-folders (img2dataset's output) is read as image-text records of split "train".
    """
    directory = str(directory)
    if not directory:
        raise UserError("No data folder given: set --config.data.directory to a folder of TFRecords.")
    if not tf.io.gfile.isdir(directory):
        raise UserError(f"The data folder {directory} does not exist.")
    files = tf.io.gfile.glob(f"{directory}/{kind}/{split}-*.tfrecord")
    if not files and kind == IMAGE_TEXT and split == "train":
        files = tf.io.gfile.glob(f"{directory}/*.tfrecord")
    if not files:
        raise UserError(
            f"No {kind} records of split {split!r} in {directory}: expected {directory}/{kind}/{split}-*.tfrecord."
        )
    return sorted(files)


def read_records(
    directory: str | pathlib.Path, kind: str, split: str, skip_damaged: bool = False
) -> Iterator[ImageTextRecord | TextPair]:
    """Reads a split in file order, one Python object a record: for evaluation and vocabularies, not for training.

    Raises `UserError` for a truncated or corrupt file, or text that is not UTF-8; with `skip_damaged` it
    leaves out such records, and what follows the damage of a file, as training does.
    """
    for name in list_files(directory, kind, split):
        dataset = untuned(tf.data.TFRecordDataset(name))
        try:
            for index, serialized in enumerate(dataset.as_numpy_iterator()):
                try:
                    record = parse_record(serialized, name, index)
                except UserError:
                    if not skip_damaged:
                        raise
                else:
                    yield record
        except tf.errors.DataLossError as error:
            if not skip_damaged:
                raise UserError(f"{name} is truncated or corrupt: {error.message}") from None


def parse_record(serialized: bytes, name: str, index: int) -> ImageTextRecord | TextPair:
    """Returns what a serialised Example holds; raises `UserError`, with file and number, for broken text."""
    feature = tf.train.Example.FromString(serialized).features.feature
    try:
        strings = {
            key: [v.decode("utf-8") for v in value.bytes_list.value] for key, value in feature.items() if key != "image"
        }
    except UnicodeDecodeError as error:
        raise UserError(f"{name}, record {index}: text that is not UTF-8 ({error}).") from None
    if "image" in feature:
        captions = strings.get("caption", [])
        return ImageTextRecord(
            image_id=strings.get("image_id", [""])[0] or f"{name}#{index}",
            image=feature["image"].bytes_list.value[0],
            captions=captions,
            languages=strings.get("language") or [""] * len(captions),
            caption_groups=strings.get("caption_group") or [""] * len(captions),
        )
    return TextPair(**{key: strings.get(key, [""])[0] for key in TEXT_PAIR_FEATURES})


# Parsing into items, which are dicts of parallel lists. Every item has a `problem`, "" where it can be used.


def parse_image_text(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one image-text record into one item per caption: {name: [captions]}."""
    parsed = tf.io.parse_single_example(serialized, IMAGE_TEXT_FEATURES)
    captions = tf.sparse.to_dense(parsed["caption"])
    count = tf.maximum(tf.size(captions), 1)  # a record without captions is one item with an empty caption
    captions = tf.cond(tf.size(captions) > 0, lambda: captions, lambda: tf.constant([""]))
    item = {
        "image_id": tf.repeat(parsed["image_id"], count),
        "image": tf.repeat(parsed["image"], count),
        "caption": captions,
        "language": _padded(tf.sparse.to_dense(parsed["language"]), count),
    }
    return {**item, "problem": _text_problem(captions, "caption")}


def parse_text_pair(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one text pair into one item: {name: [1]}. A pair without a group is one of its own."""
    item = {name: v[None] for name, v in tf.io.parse_single_example(serialized, TEXT_PAIR_FEATURES).items()}
    alone = tf.strings.join([item["text_a"], item["text_b"]], separator="\t")
    item["group_id"] = tf.where(tf.equal(item["group_id"], ""), alone, item["group_id"])
    problem = tf.strings.join([_text_problem(item["text_a"], "text"), _text_problem(item["text_b"], "text")])
    return {**item, "problem": problem}


def parse_img2dataset(language: str):
    """img2dataset's TFRecords: `jpg` and `txt`, with `key` as the image's id."""
    features = {
        "jpg": tf.io.FixedLenFeature([], tf.string),
        "txt": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "key": tf.io.FixedLenFeature([], tf.string, default_value=""),
    }

    def parse(serialized):
        parsed = {name: value[None] for name, value in tf.io.parse_single_example(serialized, features).items()}
        item = {"image_id": parsed["key"], "image": parsed["jpg"], "caption": parsed["txt"]}
        return {**item, "language": tf.constant([language]), "problem": _text_problem(parsed["txt"], "caption")}

    return parse


def _text_problem(texts: tf.Tensor, what: str) -> tf.Tensor:
    """Returns "" for each usable text [N], else what is wrong with it."""
    repaired = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace", replace_control_characters=False)
    problem = tf.where(tf.equal(repaired, texts), "", f"{what} that is not UTF-8")
    return tf.where(tf.equal(tf.strings.strip(texts), ""), f"empty {what}", problem)


def _padded(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    return tf.concat([values, tf.fill([count], "")], axis=0)[:count]
