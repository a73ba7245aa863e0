"""The encoded images of items, from where they lie: a file each, or records of a TFRecord file."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from mural_lite import tfrecord
from mural_lite.hashes import bytes_hash
from mural_lite.pictures import read_file
from mural_lite.record_format import Example
from mural_search.items import Item

IMAGE_FEATURES = ("image", "jpg")  # of the project's records and of img2dataset's


def read_image(item: Item) -> bytes:
    """Returns the encoded image of an item, from its file or its record.

    Raises `OSError` or `ValueError` for an item without an image, an image that is gone, or a record that holds
    another image by now.
    """
    if not item.path:
        raise ValueError(f"{item.name!r} is a text without an image.")
    if item.offset < 0:
        return read_file(item.path)
    image = image_of_record(tfrecord.read_at(item.path, item.offset), item.path)
    if item.content and content_of(image) != item.content:
        raise ValueError(f"{item.path} holds another image at byte {item.offset} by now: update the index.")
    return image


def content_of(image: bytes) -> str:
    """Returns a hash of an image's bytes, 16 hexadecimal digits."""
    return f"{bytes_hash(image):016x}"


def image_of_record(serialized: bytes, path: str) -> bytes:
    """Returns the encoded image of a record, a serialised image-text `tf.train.Example`.

    Raises `ValueError` for something else, or a record without an image; `path`, its file, is named in the message.
    """
    try:
        feature = Example.FromString(serialized).features.feature
    except DecodeError:
        raise ValueError(f"{path} holds something else than tf.train.Examples.") from None
    for name in IMAGE_FEATURES:
        if name in feature and feature[name].bytes_list.value:
            return feature[name].bytes_list.value[0]
    raise ValueError(f"{path} holds records without an image (feature {' or '.join(IMAGE_FEATURES)}).")
