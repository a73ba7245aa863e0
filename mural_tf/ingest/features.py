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

import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mural_lite import tfrecord
from mural_lite.config import base_config
from mural_lite.dataset_folder import DESCRIPTION
from mural_lite.errors import UserError, first_line
from mural_lite.files import as_path, copy_file, open_path, read_json
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

Encode = Callable[[np.ndarray], np.ndarray]  # from images, uint8 [B, S, S, 3], to features, float32 [B, F]


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
      data_dir: the data set's folder, with image-text records.
      output: a folder that does not exist, or holds this very data set.
      encoder: the folder or the TF-Hub handle of the SavedModel.
      resize: the side in pixels of the square to which images are resized, as in evaluation; 0: as the encoder's
        folder says, as in our exports, or else 256. An export also says how it resizes.
      image_size: the side in pixels of the square that is taken from the centre; 0: as the folder says, or else 224.
      batch_size: the number of images that are encoded at a time.
      max_skipped_fraction: the share of images, 0 to 1, that may fail to decode.

    Raises:
      UserError: there are no records, the encoder has another interface, too many images do not decode, or `output`
        cannot be used.
    """
    check_fraction(max_skipped_fraction, "--max_skipped_fraction")
    source = as_path(data_dir)
    files = sorted((source / "image_text").glob("*.tfrecord"))
    if not files:
        raise UserError(f"No records in {source}/image_text: --data_dir must be a folder as in docs/data.md.")
    preparation = {}
    if not encoder.startswith("http"):  # a handle of TF-Hub has no folder that says how images are prepared
        from mural_tf.export.hub_modules import stored_preparation

        preparation = stored_preparation(model_place(encoder))
    resize = resize or preparation.get("resize", RESIZE)
    image_size = image_size or preparation.get("image_size", IMAGE_SIZE)
    if not 0 < image_size <= resize:
        raise UserError(f"--image_size={image_size} must be above 0 and at most --resize={resize}.")
    identity = {"name": "features", "of": str(source), "encoder": encoder, "resize": resize, "image_size": image_size}
    copied = [path for path in (source / DESCRIPTION, *sorted((source / "text_pairs").glob("*"))) if path.is_file()]
    identity["files"] = paths_and_sizes([*files, *copied])
    identity["encoder_files"] = _describe_encoder(encoder)

    def write(folder: pathlib.Path) -> dict:
        """Writes the data set into a folder, and returns the fields of its description."""
        encode = _load_encoder(encoder, image_size)
        tower = base_config().image_tower
        tower.update({**preparation, "resize": resize, "image_size": image_size})
        counts = _write_features(files, folder, encode, tower, batch_size, max_skipped_fraction)
        if (source / "text_pairs").is_dir():
            (folder / "text_pairs").mkdir()
            for path in sorted((source / "text_pairs").iterdir()):
                copy_file(path, folder / "text_pairs" / path.name)
        return {**counts, **_kept_fields(source)}

    return build_folder(output, identity, write)


def _describe_encoder(encoder: str) -> list[list]:
    """Returns [[path below the encoder's folder, its size or a hash], …] for an identity; [] for an encoder on the web.

    Other weights have files of the same sizes, but another list of checksums.
    """
    if encoder.startswith("http"):
        return []
    folder = model_place(encoder)
    descriptions = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            content = f"{bytes_hash(path.read_bytes()):016x}" if name in HASHED else path.stat().st_size
            descriptions.append([name, content])
    return descriptions


def _write_features(
    files: Sequence[pathlib.Path], folder: pathlib.Path, encode: Encode, tower, batch_size: int, max_fraction: float
) -> dict[str, object]:
    """Writes all files of records with features in place of images, without images that do not decode.

    Args:
      files: the files of image-text records.
      folder: the folder of the data set of features.
      encode: returns the features of images.
      tower: the part `image_tower` of a configuration, which says how images are prepared.
      batch_size: the number of images that are encoded at a time.
      max_fraction: the share of images that may fail to decode.

    Returns:
      {"feature_size": F, "images": number of records, "skipped": {problem: count}}.

    Raises:
      UserError: too many images do not decode.
    """
    import tensorflow as tf

    (folder / "image_text").mkdir()
    skipped = CountsByKind()
    total_bytes = sum(file.stat().st_size for file in files)
    bytes_read = 0
    written = 0
    feature_size = 0
    for file in files:
        path = folder / "image_text" / file.name
        with tf.io.TFRecordWriter(str(path)) as writer, tqdm(desc=file.name, unit=" images") as bar:
            for examples, images in _decoded_batches(file, tower, batch_size, skipped):
                features = encode(images)
                feature_size = features.shape[1]
                for example, feature in zip(examples, features):
                    writer.write(_with_feature(example, feature))
                written += len(examples)
                bar.update(len(examples))
        records = written + skipped.total
        bytes_read += file.stat().st_size
        if skipped.are_too_many(records, max_fraction, bytes_read / max(total_bytes, 1)):  # also before the end
            raise UserError(
                f"Too many of {records} records cannot be used: {'; '.join(skipped.lines())}; at most "
                f"--max_skipped_fraction={max_fraction} may. Repair the data or raise the bound."
            )
    counts = {problem: count for problem, (count, _) in skipped.items()}
    return {"feature_size": feature_size, "images": records, "skipped": counts}


def _with_feature(example, feature: np.ndarray) -> bytes:
    """Puts a feature, float32 [F], in the place of a `tf.train.Example`'s image, and returns the serialised example."""
    example.features.feature["image"].bytes_list.value[0] = feature.astype("<f4").tobytes()
    return example.SerializeToString(deterministic=True)


def _decoded_batches(
    file: pathlib.Path, tower, batch_size: int, skipped: CountsByKind
) -> Iterator[tuple[list, np.ndarray]]:
    """Yields (B examples, `tf.train.Example`; their prepared images, uint8 [B, S, S, 3]) until a file of records ends.

    `tower` says how images are prepared; `skipped` counts records that cannot be used. The last batch may be smaller.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    from mural_tf.data.images import decode_image, evaluation_image

    examples = []
    images = []
    for offset, serialized in tfrecord.read_all(file, skipped.add, open_path):
        location = f"{file}, byte {offset}"
        try:
            example = tf.train.Example.FromString(serialized)
            image = decode_image(example.features.feature["image"].bytes_list.value[0], tower.jpeg)
            images.append(evaluation_image(image, tower).numpy())
            examples.append(example)
        except DecodeError:
            skipped.add(NOT_AN_EXAMPLE, location)
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError, IndexError):
            skipped.add(UNREADABLE_IMAGE, location)
        if len(images) == batch_size:
            yield examples, np.stack(images)
            examples = []
            images = []
    if images:
        yield examples, np.stack(images)


def _load_encoder(encoder: str, image_size: int) -> Encode:
    """Returns the function that computes features of images of `image_size` pixels.

    Raises `UserError` for an encoder that cannot be loaded, or has another interface.
    """
    import tensorflow as tf

    from mural_tf.backend import tensorflow_hub

    interface = "expected a reusable TF2 SavedModel from float32 [batch, height, width, 3] in [0, 1] to [batch, size]"
    try:
        address = encoder  # of TF-Hub, or of a folder
        if not encoder.startswith("http"):
            address = str(local_copy(encoder))
        model = tensorflow_hub().load(address)
        call = tf.function(lambda images: tf.cast(model(tf.cast(images, tf.float32) / 255.0), tf.float32))
        example = call(tf.zeros([2, image_size, image_size, 3], tf.uint8))
    except UserError:
        raise
    except Exception as error:  # errors of the network, archives, protobuf and TensorFlow have no common base
        raise UserError(f"The encoder {encoder!r} cannot be used ({first_line(error)}); {interface}.") from error
    if example.shape.rank != 2:
        raise UserError(f"The encoder {encoder!r} returns {example.shape} for 2 images; {interface}.")
    return lambda images: call(tf.constant(images)).numpy()


def _kept_fields(source: pathlib.Path) -> dict:
    """Returns {field: value} of a data set's description, as far as its fields also hold for features of its images."""
    try:
        description = read_json(source / DESCRIPTION)
    except UserError:
        return {}  # other people's records come without a description
    return {field: description[field] for field in KEPT if field in description}


def describe_features(folder: pathlib.Path) -> str:
    """Returns the counts of a data set of `cache_features` and the flags to train on it, in words."""
    description = read_json(folder / DESCRIPTION)
    return (
        f"{description['images']:,} images in {folder}, left out: {sum(description['skipped'].values())}. Train with "
        f"--config.image_tower.name=features --config.image_tower.feature_size={description['feature_size']}."
    )
