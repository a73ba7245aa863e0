"""Image-text records and text pairs, and their bytes, without TensorFlow (see docs/data.md).

Both are `tf.train.Example`s. The message class is made here from the format's description, so that workers of
conversions need neither TensorFlow nor its memory and seconds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from mural_lite.errors import UserError
from mural_lite.skipped import NOT_AN_EXAMPLE, TEXT_NOT_UTF8

IMAGE_TEXT = "image_text"
TEXT_PAIRS = "text_pairs"


_EXAMPLE = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature"
  oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".tensorflow.BytesList" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".tensorflow.FloatList" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".tensorflow.Int64List" label: LABEL_OPTIONAL oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type_name: ".tensorflow.Feature" label: LABEL_OPTIONAL }
  }
  field { name: "feature" number: 1 type_name: ".tensorflow.Features.FeatureEntry" label: LABEL_REPEATED }
}
message_type { name: "Example" field { name: "features" number: 1 type_name: ".tensorflow.Features" } }
"""  # tensorflow/core/example/{feature,example}.proto


def _example_class():
    """Returns the message class `tf.train.Example` in a pool of its own, because TensorFlow's pool has one, too."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = _example_class()


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


_TEXT_PAIR = tuple(field.name for field in dataclasses.fields(TextPair))


def serialize(record: ImageTextRecord | TextPair) -> bytes:
    """Returns a record as a serialised `tf.train.Example`; the same record gives the same bytes.

    Raises `ValueError` if the captions, languages and caption groups of an image differ in number.
    """
    if isinstance(record, ImageTextRecord):
        if not len(record.captions) == len(record.languages) == len(record.caption_groups):
            raise ValueError(
                f"Image {record.image_id}: {len(record.captions)} captions, {len(record.languages)} languages and "
                f"{len(record.caption_groups)} caption groups; the three lists must be parallel."
            )
        feature = {
            "image_id": _encoded([record.image_id]),
            "image": _encoded([record.image]),
            "caption": _encoded(record.captions),
            "language": _encoded(record.languages),
            "caption_group": _encoded(record.caption_groups),
        }
    else:
        feature = {name: _encoded([getattr(record, name)]) for name in _TEXT_PAIR}
    example = Example()
    for name, values in feature.items():
        example.features.feature[name].bytes_list.value.extend(values)
    return example.SerializeToString(deterministic=True)


def _encoded(values: Iterable[str | bytes]) -> list[bytes]:
    """Returns texts encoded in UTF-8, and bytes unchanged."""
    return [value.encode("utf-8") if isinstance(value, str) else value for value in values]


def missing_shards(files: Sequence[str]) -> list[str]:
    """Returns the missing names, sorted: "train-00001-of-00004.tfrecord" among `files` says that there are four."""
    expected = set()
    for name in files:
        match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.tfrecord", name)
        if match:
            split, count = match.groups()
            expected |= {f"{split}-{number:05d}-of-{count}.tfrecord" for number in range(int(count))}
    return sorted(expected - set(files))


class UnusableRecord(UserError):
    """A record that cannot be used; `problem`, one of `skipped.KINDS`, says why."""

    def __init__(self, problem: str, location: str):
        super().__init__(f"{location}: {problem}.")
        self.problem = problem


def parse_record(serialized: bytes, name: str, index: int) -> ImageTextRecord | TextPair:
    """Returns the record in an Example's bytes; raises `UnusableRecord` with the file `name` and the number `index`."""
    location = f"{name}, record {index}"
    try:
        feature = Example.FromString(serialized).features.feature
    except DecodeError:
        raise UnusableRecord(NOT_AN_EXAMPLE, location) from None
    values = {key: value.bytes_list.value for key, value in feature.items()}
    if not values.get("image", values.get("text_a")):  # a text pair has no images
        raise UnusableRecord(NOT_AN_EXAMPLE, location)
    images = values.pop("image", [])
    strings: dict[str, list[str]] = {}
    try:
        for key, encoded in values.items():
            strings[key] = [text.decode("utf-8") for text in encoded]
    except UnicodeDecodeError:
        raise UnusableRecord(TEXT_NOT_UTF8, location) from None
    if images:
        captions = strings.get("caption", [])
        return ImageTextRecord(
            image_id=first(strings.get("image_id")) or f"{name}#{index}",
            image=images[0],
            captions=captions,
            languages=_of_length(strings.get("language", []), len(captions)),
            caption_groups=_of_length(strings.get("caption_group", []), len(captions)),
        )
    return TextPair(**{key: first(strings.get(key)) for key in _TEXT_PAIR})


def first(values: Sequence[str] | None) -> str:
    """Returns the first of `values`, "" if `values` is empty."""
    return values[0] if values else ""


def _of_length(values: list[str], length: int) -> list[str]:
    """Returns values cut to a length, or filled up with "" to it: each caption has a value, as in training."""
    missing = max(0, length - len(values))
    return values[:length] + [""] * missing
