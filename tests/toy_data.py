"""A tiny data set and configuration that many tests share."""

import io

import numpy as np
import tensorflow as tf
from PIL import Image

from mural_lite.config import base_config
from mural_tf.data import records
from mural_tf.data.streams import pipeline
from mural_tf.models import mount
from mural_tf.text.word_pieces import WordPieceTokenizer

SIDE = 32
# A vision transformer of one layer: traced and exported in two thirds of a ResNet's time, for tests of no convolutions.
ONE_LAYER = dict(name="vit", patch_size=16, layers=1, hidden_size=80, heads=2, feed_forward_size=80, pooling="class")
RESERVED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def picture(index: int, side: int = SIDE, kind: str = "PNG") -> bytes:
    """A picture of random blocks, different for every index."""
    blocks = np.random.default_rng(index).integers(0, 255, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((side, side), Image.NEAREST).save(buffer, kind)
    return buffer.getvalue()


def image_text_records(count: int) -> list[records.ImageTextRecord]:
    """One English and one German caption a picture."""
    return [
        records.ImageTextRecord(f"image{i}", picture(i), [f"thing w{i}", f"ding v{i}"], ["en", "de"], [f"g{i}"] * 2)
        for i in range(count)
    ]


def text_pairs(count: int) -> list[records.TextPair]:
    return [records.TextPair(f"thing w{i}", "en", f"ding v{i}", "de", f"g{i}") for i in range(count)]


def write_toy_data(folder, images=None, pairs=None, count: int = 64):
    """Writes the training split of both kinds and returns the folder."""
    records.write_records(folder, records.IMAGE_TEXT, "train", images or image_text_records(count), shards=2)
    records.write_records(folder, records.TEXT_PAIRS, "train", pairs or text_pairs(count))
    return folder


def write_toy_features(folder, size: int, count: int = 64):
    """The toy data with features [size] in place of images."""
    images = image_text_records(count)
    for index, image in enumerate(images):
        image.image = np.random.default_rng(index).normal(size=size).astype("<f4").tobytes()
    return write_toy_data(folder, images, text_pairs(count))


def toy_tokenizer(count: int = 64, **options) -> WordPieceTokenizer:
    words = ["thing", "ding", "w", "v", *[f"##{i}" for i in range(count)], *[f"##{d}" for d in range(10)]]
    return WordPieceTokenizer([*RESERVED, *dict.fromkeys(words)], max_length=8, **options)


def first_items(config, tokenizer, stream: str) -> dict[str, tf.Tensor]:
    """The usable items of a stream's first source in file order, {name: [items]}, as the stream parses them."""
    (source, files), *_ = pipeline.stream_sources(config.data, stream)
    parse = tf.function(stream_of(config, tokenizer, stream).parse, [tf.TensorSpec([], tf.string)], autograph=False)
    parsed = [parse(serialized) for file in files for _, serialized in records.read_serialized(file, print)]
    items = {name: tf.concat([one[name] for one in parsed], axis=0) for name in parsed[0]}
    return {name: tf.boolean_mask(values, tf.equal(items["problem"], "")) for name, values in items.items()}


def stream_of(config, tokenizer, stream: str) -> pipeline.Stream:
    return pipeline.stream_of(stream, config, pipeline.Texts(tokenizer.on_device_in_scope(), "max_length"))


def stream_batch(config, tokenizer, *streams: str, epoch: int = 0) -> dict:
    """The first batch of the streams' items in file order, without an input pipeline, which takes seconds to build.

    Items are parsed, decoded and finished by the functions that a pipeline calls, as if they stood first in an epoch.
    """
    batch = {}
    for name in streams:
        stream, items = stream_of(config, tokenizer, name), first_items(config, tokenizer, name)
        rows = [{key: values[i] for key, values in items.items()} for i in range(stream.size)]
        if stream.decode is not None:
            rows = [stream.decode(row, tf.constant([epoch, i], tf.int64)) for i, row in enumerate(rows)]
        together = {key: tf.stack([row[key] for row in rows]) for key in rows[0]}
        batch.update(stream.make_batch(together, tf.constant([config.seed + epoch, 0], tf.int64)))
    return batch


def toy_config(folder, model: str = "mural"):
    config = base_config()
    mount(config, model)
    config.data.directory = str(folder)
    config.data.shuffle_buffer = 1000
    # A ResNet of four blocks: an EfficientNet's sixteen take four times as long to trace.
    config.image_tower.update(dict(name="resnet", width=0.15625, depth=0.5, image_size=SIDE, resize=SIDE))
    config.image_tower.drop_connect_rate = 0.0
    config.image_tower.batch_norm_momentum = 0.5
    config.image_tower.precision = config.text_tower.precision = "float32"  # tests compare to its rounding
    config.text_tower.update(dict(layers=1, hidden_size=32, heads=2, feed_forward_size=64, max_length=8, dropout=0.0))
    config.embedding_size = 80
    config.loss.temperature = 0.1
    config.optimizer.update(dict(name="adam", learning_rate=3e-3, text_text_learning_rate=3e-3, warmup_steps=5))
    config.train.update(dict(steps=30, image_text_batch=16, text_text_batch=16, checkpoint_every=10, log_every=10))
    config.augmentation.flip = False
    if model == "globetrotter":
        config.image_tower.head_size = 80
        config.text_tower.pooling = "first_and_mean"
        config.loss.update(dict(text_text_weight=1.0, image_text_weight=0.2))
        config.method.update(dict(image_image_weight=0.2, cloze_weight=0.2))
    if model == "labse":
        config.image_tower.update(dict(name="none", projection=80))
    return config
