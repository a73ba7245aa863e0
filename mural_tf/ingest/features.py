"""Computes image features once, so that a model with a frozen image encoder trains on them.

    python -m mural_tf features --data_dir=data/multi30k --output=data/multi30k_features --encoder=FOLDER

Writes a data set with the same records, but features (raw little-endian float32) in place of images, and everything
else copied. Train on it with image_tower.name="features" and image_tower.feature_size as printed. MULE and EmbN
(Kim et al., 2020) train so, on 2,048 numbers of a ResNet-152.

The encoder is a reusable SavedModel (a folder or a TF-Hub handle) from float32 RGB in [0, 1], [B, S, S, 3], to [B, F]:
TF-Hub's feature vectors, or hub/image_encoder of one of our exports. Images that do not decode are left out, counted
and bounded. A split is read and written file by file.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from mural_lite import tfrecord
from mural_lite.config import base_config
from mural_lite.dataset_folder import DESCRIPTION
from mural_lite.errors import UserError, first_line
from mural_lite.files import as_path, copy_file, open_path
from mural_lite.hashes import bytes_hash
from mural_lite.progress import tqdm
from mural_lite.remote_folders import local_copy, model_place
from mural_lite.skipped import NOT_AN_EXAMPLE, UNREADABLE_IMAGE, CountsByKind, check_fraction
from mural_tf.data.dataset_builder import build_folder, paths_and_sizes

# Pixels, for an encoder whose folder says nothing: ImageNet's usual preparation.
RESIZE = 256
IMAGE_SIZE = 224
HASHED = ("variables/variables.index", "assets/settings.json")  # checksums of weights; how pictures are prepared
KEPT = ("language_groups", "license", "packages")  # fields of the source's description that also hold for features


def cache_features(
    data_dir: str | pathlib.Path,
    output: str | pathlib.Path,
    encoder: str,
    resize: int = 0,
    image_size: int = 0,
    batch_size: int = 64,
    max_skipped_fraction: float = 0.05,
) -> pathlib.Path:
    """Writes the data set of features and returns its folder, which appears when it is complete.

    Args:
      data_dir: folder of image-text records.
      output: a folder that does not exist, or holds this very data set.
      encoder: folder or handle of the SavedModel.
      resize, image_size: sides in pixels: images are resized to a square, whose centre is taken, as in evaluation; 0:
        as the encoder's folder says, as our exports do, or else 256 and 224. An export also says how it resizes.
      batch_size: images encoded at a time.
      max_skipped_fraction: share of images that may fail to decode.

    Raises:
      UserError: no records, an encoder of another interface, too many images that do not decode, or an
        `output` that cannot be used.
    """
    check_fraction(max_skipped_fraction, "--max_skipped_fraction")
    source = as_path(data_dir)
    files = sorted((source / "image_text").glob("*.tfrecord"))
    if not files:
        raise UserError(f"No records in {source}/image_text: --data_dir must be a folder as in docs/data.md.")
    stored = {}
    if not encoder.startswith("http"):
        from mural_tf.export.hub_modules import stored_preparation

        stored = stored_preparation(model_place(encoder))
    resize = resize or stored.get("resize", RESIZE)
    image_size = image_size or stored.get("image_size", IMAGE_SIZE)
    if not 0 < image_size <= resize:
        raise UserError(f"--image_size={image_size} must be above 0 and at most --resize={resize}.")
    identity = {"name": "features", "of": str(source), "encoder": encoder, "resize": resize, "image_size": image_size}
    copied = [path for path in (source / DESCRIPTION, *sorted((source / "text_pairs").glob("*"))) if path.is_file()]
    identity["files"] = paths_and_sizes([*files, *copied])
    identity["encoder_files"] = _describe_encoder(encoder)

    def write(folder: pathlib.Path) -> dict:
        encode = _load_encoder(encoder, image_size)
        tower = base_config().image_tower
        tower.update({**stored, "resize": resize, "image_size": image_size})
        skipped = CountsByKind()
        total_bytes = sum(file.stat().st_size for file in files)
        bytes_read = 0
        images = 0
        feature_size = 0
        for file in files:
            with tqdm(desc=file.name, unit=" images") as bar:
                size, count = _convert(file, folder, encode, tower, batch_size, skipped, bar)
            feature_size = size or feature_size  # 0 for a file without readable images
            images += count
            bytes_read += file.stat().st_size
            if skipped.are_too_many(images, max_skipped_fraction, bytes_read / max(total_bytes, 1)):
                raise UserError(
                    f"Too many of {images} records cannot be used: {'; '.join(skipped.lines())}; at most "
                    f"--max_skipped_fraction={max_skipped_fraction} may. Repair the data or raise the bound."
                )
        if (source / "text_pairs").is_dir():
            (folder / "text_pairs").mkdir()
            for path in sorted((source / "text_pairs").iterdir()):
                copy_file(path, folder / "text_pairs" / path.name)
        return {
            "feature_size": feature_size,
            "images": images,
            "skipped": {problem: count for problem, (count, _) in skipped.items()},
            **_kept_fields(source),
        }

    return build_folder(output, identity, write)


def _describe_encoder(encoder: str) -> list[list]:
    """Returns [[path below the encoder's folder, its size or a hash], …] for an identity; [] for an encoder on the web.

    Other weights have files of the same sizes, but another list of checksums.
    """
    if encoder.startswith("http"):
        return []
    folder = model_place(encoder)
    described = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            value = f"{bytes_hash(path.read_bytes()):016x}" if name in HASHED else path.stat().st_size
            described.append([name, value])
    return described


def _convert(file, folder, encode: Callable, tower, batch_size, skipped, bar) -> tuple[int, int]:
    """Writes one file of records; returns the size of a feature, 0 without images, and how many images were read."""
    import tensorflow as tf

    (folder / "image_text").mkdir(exist_ok=True)
    size = 0
    count = 0
    with tf.io.TFRecordWriter(str(folder / "image_text" / file.name)) as writer:
        for batch, records_read in _decoded_batches(file, tower, batch_size, skipped):
            count += records_read
            bar.update(records_read)
            if not batch:
                continue
            features = encode(np.stack([image for _, image in batch]))
            size = features.shape[1]
            for (example, _), feature in zip(batch, features):
                example.features.feature["image"].bytes_list.value[0] = feature.astype("<f4").tobytes()
                writer.write(example.SerializeToString(deterministic=True))
    return size, count


def _decoded_batches(file, tower, batch_size, skipped) -> Iterator[tuple[list, int]]:
    """Yields (list of (example, uint8 [S, S, 3]) for images that decode, how many records were read for it)."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    from mural_tf.data.images import decode_image, evaluation_image

    batch = []
    skipped_before = skipped.total
    for offset, serialized in tfrecord.read_all(file, skipped.add, open_path):
        location = f"{file}, byte {offset}"
        try:
            example = tf.train.Example.FromString(serialized)
            image = decode_image(example.features.feature["image"].bytes_list.value[0], tower.jpeg)
            batch.append((example, evaluation_image(image, tower).numpy()))
        except DecodeError:
            skipped.add(NOT_AN_EXAMPLE, location)
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError, IndexError):
            skipped.add(UNREADABLE_IMAGE, location)
        if len(batch) == batch_size:
            yield batch, len(batch) + skipped.total - skipped_before
            batch = []
            skipped_before = skipped.total
    yield batch, len(batch) + skipped.total - skipped_before


def _load_encoder(encoder: str, image_size: int) -> Callable:
    """Returns the function from uint8 [B, S, S, 3] to float32 [B, F]; raises `UserError` if it is missing."""
    import tensorflow as tf

    from mural_tf.backend import tensorflow_hub

    interface = "expected a reusable TF2 SavedModel from float32 [batch, height, width, 3] in [0, 1] to [batch, size]"
    try:
        address = encoder
        if not encoder.startswith("http"):
            address = str(local_copy(encoder))
        model = tensorflow_hub().load(address)
        call = tf.function(lambda images: tf.cast(model(tf.cast(images, tf.float32) / 255.0), tf.float32))
        example = call(tf.zeros([2, image_size, image_size, 3], tf.uint8))
    except UserError:
        raise
    except Exception as error:  # network, archive, protobuf and TensorFlow errors have no common base
        raise UserError(f"The encoder {encoder!r} cannot be used ({first_line(error)}); {interface}.") from error
    if example.shape.rank != 2:
        raise UserError(f"The encoder {encoder!r} returns {example.shape} for 2 images; {interface}.")
    return lambda images: call(tf.constant(images)).numpy()


def _kept_fields(source: pathlib.Path) -> dict:
    """Returns {name: value} of the fields in the source's description that also hold for its features."""
    try:
        description = json.loads((source / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # other people's records come without a description
    return {key: description[key] for key in KEPT if key in description}


def describe_features(folder: pathlib.Path) -> str:
    """Returns the counts of a data set of `cache_features`, and the flags to train on it."""
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    return (
        f"{description['images']:,} images in {folder}, left out: {sum(description['skipped'].values())}. Train with "
        f"--config.image_tower.name=features --config.image_tower.feature_size={description['feature_size']}."
    )
