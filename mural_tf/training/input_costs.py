"""What a batch costs the host, measured on this machine: reading, decoding, augmenting, tokenising, and all together.

Each stage is run by itself on records of the data set for a few seconds, then the whole pipeline of training. Times are
of the processor, all threads together, so that other programs on the machine disturb them little.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data import records
from mural_tf.data.images import finish_images, read_image
from mural_tf.data.streams.image_groups import captions_per_image
from mural_tf.data.streams.mixture import Source
from mural_tf.data.streams.pipeline import batch_size, items_in_batch, part_name, stream_sources, training_batches
from mural_tf.data.streams.views import augment_views
from mural_tf.errors import UserError
from mural_tf.text.language_words import tag_language
from mural_tf.text.word_pieces import TOKENS

STAGES = ("read", "decode", "augment", "tokenise")
STAGE_SECONDS = 2.0  # of each; three times as many of the whole pipeline
SAMPLE = 256  # records that stages run on
SMALLEST_BATCH = 256  # of the pipeline that is measured


class Seconds(NamedTuple):
    """Of one call: elapsed, and of the processor, all threads together."""

    elapsed: float
    processor: float

    @property
    def used(self) -> float:
        """What the call takes whatever else the machine does: of the processor where it computes, else elapsed."""
        return self.elapsed if tf.config.list_logical_devices("GPU") else self.processor


def seconds_of(call: Callable, size: int, limit: float) -> Seconds:
    """Returns what each of the `size` things of a call takes: calls for `limit` seconds, after one without counting."""
    tf.nest.map_structure(np.asarray, call())
    begun, processor, done = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begun < limit or not done:
        tf.nest.map_structure(np.asarray, call())
        done += size
    return Seconds((time.monotonic() - begun) / done, (time.process_time() - processor) / done)


@dataclasses.dataclass(frozen=True)
class Stream:
    """What a stream reads of a source: there are `files`, `records` and `bytes`; an epoch has `items`, of which a
    global batch has `drawn`; records and items may be `estimated`."""

    files: int
    records: float
    bytes: float
    items: float
    drawn: float
    estimated: bool


@dataclasses.dataclass(frozen=True)
class InputCosts:
    """Processor seconds for a global batch, by stage and of the whole pipeline, and what the measuring has seen.

    tokens, width: mean number of a text's tokens, and of the places that a batch has for them.
    streams: {stream, or stream/source: what there is of it}.
    batch: one of the measured batches, {name: tensor}, smaller than those of training where these are large.
    """

    stages: dict[str, float]
    whole: float
    tokens: float
    width: float
    streams: dict[str, Stream]
    batch: dict


def measure_input(config: ConfigDict, tokenizer, streams: Sequence[str], pad: str) -> InputCosts:
    """Measures for about 20 seconds; raises `UserError` if the data cannot be read."""
    stages, found, group = dict.fromkeys(STAGES, 0.0), {}, captions_per_image(config)
    train, factor = config.train, 1  # a batch costs in proportion to its size: large ones are measured in parts
    sizes = (train.image_text_batch // group, train.text_text_batch)
    while max(sizes) >= 2 * factor * SMALLEST_BATCH and not any(size % (2 * factor) for size in sizes):
        factor *= 2
    smaller = config.copy_and_resolve_references()
    smaller.train.update(
        dict(image_text_batch=train.image_text_batch // factor, text_text_batch=train.text_text_batch // factor)
    )
    try:
        for stream in streams:
            sources = stream_sources(config.data, stream)
            for source, files in sources:
                share = source.weight / sum(each.weight for each, _ in sources)
                seconds, described = _measure_source(config, tokenizer, stream, source, files, share)
                found[part_name(stream, source)] = described
                for stage, value in seconds.items():
                    stages[stage] += value
        batches = iter(training_batches(smaller, tokenizer, streams=streams, pad=pad))
        batch = next(batches)
        whole = factor * seconds_of(lambda: next(batches) and (), 1, 3 * STAGE_SECONDS)[1]
    except tf.errors.OpError as error:
        reason = error.message.split("\n\t [[")[0].splitlines()[0]
        raise UserError(f"The data in {config.data.directory} cannot be read: {reason}") from None
    masks = masks_of(batch)
    texts = max(sum(mask.shape[0] for mask in masks), 1)
    tokens, width = (sum(int(of(mask)) for mask in masks) / texts for of in (tf.reduce_sum, tf.size))
    return InputCosts(stages, whole, tokens, width, found, batch)


def masks_of(batch: dict) -> list[tf.Tensor]:
    """The masks of a batch's texts, int32 [B, T] each."""
    return [value[TOKENS[1]] for value in batch.values() if isinstance(value, dict) and TOKENS[1] in value]


def width_in_groups(masks: Sequence[tf.Tensor], groups: int, lengths: Sequence[int]) -> float:
    """Mean number of places of a text that are computed where `groups` of a batch run at known lengths."""
    counts, width = np.concatenate([mask.numpy().sum(axis=1) for mask in masks]), max(mask.shape[1] for mask in masks)
    longest = [part[-1] for part in np.array_split(np.sort(counts), groups) if len(part)]
    return float(np.mean([min((n for n in lengths if most <= n < width), default=width) for most in longest]))


def _measure_source(
    config: ConfigDict, tokenizer, stream: str, source: Source, files: Sequence[str], share: float
) -> tuple[dict[str, float], Stream]:
    """Returns processor seconds a global batch by stage, each run by itself, and what the source has for the stream.

    `share` of the stream's items are drawn from it. Where `data.cache` keeps the records in memory nothing is read.
    """
    parse, of_pairs = _parser(config, source, files), f"/{records.TEXT_PAIRS}/" in files[0]

    def sizes(record):
        """Bytes in the file, items, and a number that needs all that parsing finds."""
        item = parse(record)
        lengths = tf.add_n([tf.reduce_sum(tf.strings.length(value)) for value in item.values()])
        return tf.stack([tf.strings.length(record) + 16, tf.size(item["problem"]), lengths])

    raw = tf.data.TFRecordDataset(files)
    counts = np.array(list(raw.take(SAMPLE).map(sizes).as_numpy_iterator()))
    if not len(counts) or not counts[:, 1].any():
        raise UserError(f"{files[0]} holds no record to measure.")
    record_bytes, items = counts[:, :2].mean(axis=0)
    items = 1.0 if stream in ("triples", "image_groups") else float(items)  # else a record has an item a caption
    found = [item for item in raw.take(SAMPLE).map(parse)]
    sides = ("_a", "_b") if of_pairs else ("",)
    texts, languages = (
        tf.concat([item[name + side] for item in found for side in sides], axis=0)[:SAMPLE]
        for name in ("text" if of_pairs else "caption", "language")
    )
    texts = tag_language(texts, languages) if tokenizer.takes_languages else texts
    drawn = share * batch_size(config, stream)
    of_item, of_batch = {}, share * items_in_batch(config, stream)
    if not config.data.cache:
        of_item["read"] = _per_item(raw.map(sizes).repeat().batch(64), 64) / items
    if not of_pairs and stream not in ("captions", "text_text"):
        of_item.update(_image_seconds(config, stream, tf.stack([item["image"][0] for item in found])))
    seconds = {stage: value * of_batch for stage, value in of_item.items()}
    tokens = _per_item(tf.data.Dataset.from_tensors(texts).map(tokenizer).repeat(), len(texts))
    seconds["tokenise"] = tokens * drawn * (2 if stream in ("triples", "text_text") else 1)
    return seconds, _describe(source, stream, files, drawn, record_bytes, items)


def _parser(config: ConfigDict, source: Source, files: Sequence[str]) -> Callable:
    if f"/{records.TEXT_PAIRS}/" in files[0]:
        return records.parse_text_pair
    if source.format == "mural":
        return records.parse_image_text
    return records.parse_img2dataset(config.data.default_language)


def _image_seconds(config: ConfigDict, stream: str, images: tf.Tensor) -> dict[str, float]:
    """Returns processor seconds to decode and to augment an image."""
    tower = config.image_tower
    encoded = tf.data.Dataset.from_tensor_slices(images)
    decoded = encoded.map(lambda data: read_image(data, tower, tf.constant(True))).batch(32)

    def augment(seed):
        if stream == "views":
            return augment_views(pictures, tower.image_size, config.augmentation, tf.stack([seed, 0]))
        return finish_images(pictures, tower, config.augmentation, tf.stack([seed, 0]))

    pictures = next(iter(decoded))
    size = len(pictures)
    return {
        "decode": _per_item(decoded.repeat(), min(32, len(images))),
        "augment": _per_item(tf.data.Dataset.counter().map(augment), size),
    }


def _per_item(dataset: tf.data.Dataset, size: int) -> float:
    """Returns processor seconds for each of the `size` things in an element of an endless data set."""
    elements = iter(records.untuned(dataset))
    return seconds_of(lambda: next(elements) is None, size, STAGE_SECONDS)[1]


def _describe(
    source: Source, stream: str, files: Sequence[str], drawn: float, record_bytes: float, items: float
) -> Stream:
    """Returns what `dataset.json` says of files, or an estimate by their sizes and the measured records."""
    described = records.describe_shards(source.directory.rstrip("/"))
    shards = [described.get(file[len(source.directory.rstrip("/")) + 1 :], {}) for file in files]
    if not all({"records", "bytes", "languages"} <= shard.keys() for shard in shards):
        size = float(sum(tf.io.gfile.stat(file).length for file in files))
        count = size / record_bytes
        return Stream(len(files), count, size, count * items, drawn, estimated=True)
    count, size = (float(sum(shard[key] for shard in shards)) for key in ("records", "bytes"))
    texts = float(sum(sum(shard["languages"].values()) for shard in shards))
    of_texts = stream not in ("triples", "image_groups")
    return Stream(len(files), count, size, texts if of_texts else count, drawn, estimated=False)
