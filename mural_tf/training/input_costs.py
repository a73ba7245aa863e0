"""What a batch costs the host, measured on this machine: reading, decoding, augmenting, tokenising, and all together.

Each stage is run by itself on records of the data set for a few seconds, then the whole pipeline of training. Times are
of the processor, all threads together, so that other programs on the machine disturb them little.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data import records
from mural_tf.data.images import finish_images, read_image
from mural_tf.data.records import parse_image_text, parse_img2dataset, parse_text_pair, untuned
from mural_tf.data.streams.mixture import Source
from mural_tf.data.streams.pipeline import batch_size, part_name, stream_sources, training_batches
from mural_tf.data.streams.views import augment_views
from mural_tf.errors import UserError
from mural_tf.text.language_words import tag_language
from mural_tf.text.word_pieces import TOKENS

SECONDS = 2.0  # of each stage
PIPELINE_SECONDS = 6.0  # of all together
SAMPLE = 256  # items that the stages run on
SMALLEST_BATCH = 256  # of the pipeline that is measured; a batch costs in proportion to its size
WITHOUT_IMAGES = ("captions", "text_text")
TEXTS = {"triples": 2, "text_text": 2}  # of an item; 1 of others
ITEM_A_TEXT = ("image_text", "views", "captions", "text_text")  # a record has as many items as captions, or one pair
STAGES = ("read", "decode", "augment", "tokenise")


@dataclasses.dataclass(frozen=True)
class InputCosts:
    """Processor seconds for one global batch, and what the measuring has seen.

    stages: {stage: seconds}; where `data.cache` keeps the records in memory nothing is read.
    whole: seconds of the pipeline with all stages and what lies between them.
    tokens, width: mean number of a text's tokens, and of the places that a batch has for them.
    record_bytes, items: {stream, or stream/source: mean bytes in the file, and items, of a record}.
    batch: one of the measured batches, {name: tensor}, smaller than those of training where these are large.
    """

    stages: dict[str, float]
    whole: float
    tokens: float
    width: float
    record_bytes: dict[str, float]
    items: dict[str, float]
    batch: dict

    def width_in_groups(self, groups: int, lengths: Sequence[int]) -> float:
        """Mean number of places of a text that are computed where `groups` of the batch run at known lengths."""
        counts = np.concatenate([tf.reduce_sum(mask, axis=1).numpy() for mask in _masks(self.batch)])
        width = max(mask.shape[1] for mask in _masks(self.batch))
        longest = [part[-1] for part in np.array_split(np.sort(counts), groups) if len(part)]
        return float(
            np.mean([min((length for length in lengths if most <= length < width), default=width) for most in longest])
        )


def measure_input(config: ConfigDict, tokenizer, streams: Sequence[str], pad: str) -> InputCosts:
    """Measures for about 20 seconds; raises `UserError` if the data cannot be read."""
    try:
        return _measure(config, tokenizer, streams, pad)
    except tf.errors.OpError as error:
        reason = error.message.split("\n\t [[")[0].splitlines()[0]
        raise UserError(f"The data in {config.data.directory} cannot be read: {reason}") from None


def _measure(config: ConfigDict, tokenizer, streams: Sequence[str], pad: str) -> InputCosts:
    samples = [sample for stream in streams for sample in _samples(config, stream)]
    stages = dict.fromkeys(STAGES, 0.0)
    for sample in samples:
        if not config.data.cache:
            stages["read"] += sample.seconds_to_read * sample.items_of_batch / sample.items
        if sample.images:
            for stage, seconds in _image_seconds(config, sample).items():
                stages[stage] += seconds * sample.items_of_batch
    sentences = [each for sample in samples for each in sample.sentences(tokenizer)]
    tokenised = tf.data.Dataset.from_tensors(tf.stack(sentences)).map(lambda values: tokenizer(values, pad=pad))
    stages["tokenise"] = sum(sample.texts_of_batch for sample in samples) * _seconds_of(tokenised, len(sentences))
    whole, batch = _seconds_of_pipeline(config, tokenizer, streams, pad)
    return InputCosts(
        stages,
        whole,
        *_tokens_of_a_text(batch),
        {sample.name: sample.record_bytes for sample in samples},
        {sample.name: sample.items for sample in samples},
        batch,
    )


def _samples(config: ConfigDict, stream: str) -> list[_Sample]:
    sources = stream_sources(config.data, stream)
    whole = sum(source.weight for source, _ in sources)
    return [_Sample(config, stream, source, files, source.weight / whole) for source, files in sources]


class _Sample:
    """The first records of a source for a stream, and what reading them costs.

    Args:
      share: of the stream's items that are drawn from this source.

    Attributes:
      images, texts, languages: lists of bytes, of up to `SAMPLE` items.
      items, record_bytes: means of a record.
      items_of_batch, texts_of_batch: in a global batch.
      seconds_to_read: processor seconds for a record, parsing included.
    """

    def __init__(self, config: ConfigDict, stream: str, source: Source, files: list[str], share: float):
        self.name, self.stream = part_name(stream, source), stream
        group = config.method.get("captions_per_image", 1) if stream == "image_groups" else 1
        self.items_of_batch = share * batch_size(config, stream) / group
        self.texts_of_batch = share * batch_size(config, stream) * TEXTS.get(stream, 1)
        self.images, self.texts, self.languages = [], [], []
        parse = _parser(config, source, files)
        self._count(parse, files)
        reading = tf.data.TFRecordDataset(files).map(lambda record: _sizes(parse, record)).repeat().batch(64)
        self.seconds_to_read = _seconds_of(reading, 64, repeats=False)
        self._keep(parse, files)

    def _count(self, parse: Callable, files: Sequence[str]) -> None:
        counts = tf.data.TFRecordDataset(files).take(SAMPLE).map(lambda record: _sizes(parse, record))
        sizes = [(int(size), int(items)) for size, items, _ in counts.as_numpy_iterator()]
        if not sum(items for _, items in sizes):
            raise UserError(f"{files[0]} holds no record to measure.")
        self.record_bytes, items = (sum(values) / len(sizes) for values in zip(*sizes))
        self.items = items if self.stream in ITEM_A_TEXT else 1.0

    def _keep(self, parse: Callable, files: Sequence[str]) -> None:
        for item in tf.data.TFRecordDataset(files).take(SAMPLE).map(parse):
            for text, language in (("caption", "language"), ("text_a", "language_a"), ("text_b", "language_b")):
                if text in item:
                    self.texts += item[text].numpy().tolist()
                    self.languages += item[language].numpy().tolist()
            if self.stream not in WITHOUT_IMAGES:
                self.images.append(item["image"].numpy()[0])

    def sentences(self, tokenizer) -> list[tf.Tensor]:
        """The texts as the tokenizer takes them."""
        if not tokenizer.takes_languages:
            return self.texts[:SAMPLE]
        return list(tag_language(tf.constant(self.texts[:SAMPLE]), tf.constant(self.languages[:SAMPLE])))


def _parser(config: ConfigDict, source: Source, files: Sequence[str]) -> Callable:
    if f"/{records.TEXT_PAIRS}/" in files[0]:
        return parse_text_pair
    return parse_image_text if source.format == "mural" else parse_img2dataset(config.data.default_language)


def _sizes(parse: Callable, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns bytes in the file, items, and a number that needs all that parsing finds."""
    item = parse(record)
    lengths = [tf.reduce_sum(tf.strings.length(value)) for value in item.values()]
    return tf.strings.length(record) + 16, tf.size(item["problem"]), tf.add_n(lengths)


def _image_seconds(config: ConfigDict, sample: _Sample) -> dict[str, float]:
    """Returns processor seconds to decode and to augment an image."""
    tower, images = config.image_tower, tf.stack(sample.images)
    encoded = tf.data.Dataset.from_tensor_slices(images)
    decoded = encoded.map(lambda data: read_image(data, tower, tf.constant(True)))
    seconds = _seconds_of(decoded.batch(32), min(32, len(images)))
    pictures = next(iter(untuned(decoded.batch(64))))

    def augment(pictures, seed):
        if sample.stream == "views":
            return augment_views(pictures, tower.image_size, config.augmentation, seed)
        return finish_images(pictures, tower, config.augmentation, seed)

    seeds = tf.data.Dataset.counter().map(lambda place: tf.stack([place, 0]))
    batches = tf.data.Dataset.zip((tf.data.Dataset.from_tensors(pictures).repeat(), seeds)).map(augment)
    return {"decode": seconds, "augment": _seconds_of(batches, len(pictures), repeats=False)}


def _seconds_of(dataset: tf.data.Dataset, size: int, repeats: bool = True) -> float:
    """Returns processor seconds for each of the `size` things in an element."""
    elements = iter(untuned(dataset.repeat() if repeats else dataset))
    next(elements)
    begun, processor, done = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begun < SECONDS or not done:
        next(elements)
        done += size
    return (time.process_time() - processor) / done


def _seconds_of_pipeline(config: ConfigDict, tokenizer, streams, pad: str) -> tuple[float, dict]:
    """Returns processor seconds of the whole pipeline for a global batch, and a measured batch."""
    smaller, factor = _smaller_batches(config)
    batches = iter(training_batches(smaller, tokenizer, streams=streams, pad=pad))
    batch = next(batches)
    begun, processor, done = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begun < PIPELINE_SECONDS or not done:
        batch, done = next(batches), done + 1
    return factor * (time.process_time() - processor) / done, batch


def _smaller_batches(config: ConfigDict) -> tuple[ConfigDict, int]:
    """Returns a configuration with batches of about `SMALLEST_BATCH`, and how many of them make one of training."""
    train, group = config.train, config.method.get("captions_per_image", 1)
    sizes = (train.image_text_batch // group, train.text_text_batch)
    factors = itertools.takewhile(
        lambda factor: max(sizes) >= factor * SMALLEST_BATCH and not any(size % factor for size in sizes),
        (2**power for power in itertools.count()),
    )
    factor = max(factors, default=1)
    smaller = config.copy_and_resolve_references()
    smaller.train.image_text_batch //= factor
    smaller.train.text_text_batch //= factor
    return smaller, factor


def _masks(batch: dict) -> list[tf.Tensor]:
    return [value[TOKENS[1]] for value in batch.values() if isinstance(value, dict) and TOKENS[1] in value]


def _tokens_of_a_text(batch: dict) -> tuple[float, float]:
    """Returns the mean number of tokens, and of tokens and padding."""
    masks = _masks(batch)
    texts = max(sum(mask.shape[0] for mask in masks), 1)
    tokens, places = (sum(int(of(mask)) for mask in masks) for of in (tf.reduce_sum, tf.size))
    return tokens / texts, places / texts
