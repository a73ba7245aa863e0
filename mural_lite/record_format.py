"""Image-text records and text pairs, and their bytes, without TensorFlow (see docs/data.md).

Both are `tf.train.Example`s. The message class is made here from the format's description, so that workers of
conversions need neither TensorFlow nor its memory and seconds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from mural_lite.errors import UserError
from mural_lite.skipped import NOT_AN_EXAMPLE, TEXT_NOT_UTF8

IMAGE_TEXT = "image_text"
TEXT_PAIRS = "text_pairs"


def _example_class():
    """Returns a message class with the wire format of `tf.train.Example`; its pool is not TensorFlow's."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def add_field(message, name, number, type_name="", scalar_type=field.TYPE_MESSAGE, repeated=False, **options):
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        if type_name:
            options["type_name"] = f".tensorflow.{type_name}"
        message.field.add(name=name, number=number, type=scalar_type, label=label, **options)

    lists = {"BytesList": field.TYPE_BYTES, "FloatList": field.TYPE_FLOAT, "Int64List": field.TYPE_INT64}
    for name, scalar_type in lists.items():
        add_field(file.message_type.add(name=name), "value", 1, scalar_type=scalar_type, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(lists, start=1):
        add_field(feature, name.replace("List", "_list").lower(), number, name, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, scalar_type=field.TYPE_STRING)
    add_field(entry, "value", 2, "Feature")
    add_field(features, "feature", 1, "Features.FeatureEntry", repeated=True)
    add_field(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
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
    """Returns the record as a serialised `tf.train.Example`; the same record gives the same bytes."""
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
    """Returns texts in UTF-8, and bytes as they are."""
    return [value.encode("utf-8") if isinstance(value, str) else value for value in values]


def missing_shards(files: Sequence[str]) -> list[str]:
    """Returns the sorted names that `files` lack though names like "…-00001-of-00004.tfrecord" say that they exist."""
    expected = set()
    for name in files:
        match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.tfrecord", name)
        if match:
            beginning, count = match.groups()
            expected |= {f"{beginning}-{number:05d}-of-{count}.tfrecord" for number in range(int(count))}
    return sorted(expected - set(files))


class UnusableRecord(UserError):
    """A record that cannot be used; `problem` says why, one of `skipped.KINDS`."""

    def __init__(self, problem: str, location: str):
        super().__init__(f"{location}: {problem}.")
        self.problem = problem


def parse_record(serialized: bytes, name: str, index: int) -> ImageTextRecord | TextPair:
    """Returns the record of a serialised Example; raises `UnusableRecord`, which names file and number."""
    location = f"{name}, record {index}"
    try:
        feature = Example.FromString(serialized).features.feature
    except DecodeError:
        raise UnusableRecord(NOT_AN_EXAMPLE, location) from None
    values = {key: value.bytes_list.value for key, value in feature.items()}
    if not values.get("image", values.get("text_a")):
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
            languages=_as_many(strings.get("language", []), captions),
            caption_groups=_as_many(strings.get("caption_group", []), captions),
        )
    return TextPair(**{key: first(strings.get(key)) for key in _TEXT_PAIR})


def first(values: Sequence[str] | None) -> str:
    """Returns the first of `values`, "" if `values` is empty."""
    return values[0] if values else ""


def _as_many(values: Sequence[str], captions: Sequence[str]) -> list[str]:
    """Returns one value per caption, cut or filled up with "", as training reads them: no caption is lost."""
    return [*values, *[""] * len(captions)][: len(captions)]
