"""From records to training batches, deterministically from the seed and the places of the last items used.

A method names the streams that it needs, one or two; they run side by side, and every batch holds a part of each. A
stream is a file of this folder, with a subclass of `stream.py`'s `Stream`.

A record is read and parsed into items. Items are shuffled; each gets its place and is decoded; unusable items are
dropped (`epochs.py`). Items of one or several sources (`mixture.py`) become batches, whose images are
augmented and whose texts are tokenized. Each of several input pipelines (hosts of a TPU, workers) reads its share of
the files and makes its rows of the global batch.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.data.streams.columns import Column
from mural_tf.data.streams.epochs import (
    ALL,
    ENDLESS,
    EPOCH,
    PLACE,
    Share,
    balanced_languages,
    endless_items,
    has_first_item,
    one_pass,
    parser,
    place_of_last,
    start_of,
    usable_items,
    without_languages,
)
from mural_tf.data.streams.mixture import DataSource, mixed, sources_of
from mural_tf.data.streams.stream import Settings, Stream, Texts

PREFETCHED = 4  # batches that are ready while one is trained on
COUNTED = 16  # counts of languages, and printed lines, that are remembered


@tf.autograph.experimental.do_not_convert  # saves seconds; nothing here needs it
def training_batches(
    config: ConfigDict,
    tokenizer,
    places: Mapping[str, np.ndarray] | None = None,
    streams: Sequence[str] = ("image_text", "text_text"),
    pad: str = "max_length",
    share: Share = ALL,
    columns: Mapping[str, tuple[Column, str]] | None = None,
) -> tf.data.Dataset:
    """Returns the endless batches of a method's streams: global batches, or one input pipeline's rows of them.

    Args:
      config: the whole configuration tree.
      tokenizer: a `Tokenizer`.
      places: {stream: int64 [sources, PLACE]}, where each source's last used item was (`epochs.py`); `None` starts at
        the beginning.
      streams: the names of the streams that a batch holds; a method's `streams`.
      pad: "max_length" for static shapes, or "longest" for the longest text of the batch.
      share: which input pipeline this is; all use one seed, and together they read every record once per epoch.
      columns: {entry of a batch: (its column of vectors, the entry with its ids)}, in place of pixels and tokens.

    Returns:
      A data set of batches, each one dictionary with the entries of all streams, which the streams' files name: tokens
      are {name: int32 [B, T]}, ids int64 [B], images uint8 [B, S, S, 3]. Each stream adds "<stream>_place", int64
      [1, sources, PLACE], the place of the batch's last item of each source, -1 if it has no item, and
      "<stream>_tally", int64 [1, sources, 1 + kinds, 3], the records read and skipped up to there
      (`skipped_records.py`). "data_wait_seconds", float32 [1], is how long the consumer waited for the batch.

    Raises:
      UserError: a stream is unknown, does not fit the configuration, or has no usable data.
    """
    texts = Texts(tokenizer.on_device_in_scope(), pad)
    columns = columns or {}
    last_places = places or {}
    column_of = {entry: column for entry, (column, _) in columns.items()}
    items_of_streams = []
    batch_makers = []  # one function per stream, from its items to its part of a batch
    for name in streams:
        items, make_part = _read_stream(name, config, texts, share, last_places.get(name), column_of)
        items_of_streams.append(items)
        batch_makers.append(make_part)

    def make_batch(*stream_items):  # one function for all streams: tracing a function takes longer than calling it
        """Returns a batch of the items of each stream, {name: [B, …]} each."""
        batch = {}
        for make_part, items in zip(batch_makers, stream_items):
            batch.update(make_part(items))
        for entry, (column, id_entry) in columns.items():
            batch[entry] = column.look_up(batch[id_entry])
        return batch

    batches = tf.data.Dataset.zip(tuple(items_of_streams))
    batches = batches.map(make_batch, num_parallel_calls=2 * len(batch_makers), deterministic=True)
    return _with_wait_time(batches.prefetch(PREFETCHED))


def stream_class(name: str) -> type[Stream]:
    """Returns the class of the stream `name`: the last `Stream` that its file defines, behind its base classes.

    Raises `UserError` if the file is missing.
    """
    try:
        module = importlib.import_module(f"mural_tf.data.streams.{name}")
    except ModuleNotFoundError:
        raise UserError(f"Unknown stream {name!r}: expected a file of mural_tf/data/streams.") from None
    classes = [member for member in vars(module).values() if inspect.isclass(member) and issubclass(member, Stream)]
    defined_here = [stream for stream in classes if stream.__module__ == module.__name__]
    return defined_here[-1]


def stream_of(
    name: str,
    config: ConfigDict,
    texts: Texts,
    source: DataSource | None = None,
    seed: int | None = None,
    pipelines: int = 1,
    columns: Mapping[str, Column] | None = None,
) -> Stream:
    """Returns the stream `name` of a configuration.

    Args:
      name: as in `stream_class`.
      config: the whole configuration tree.
      texts: the traced tokenizer.
      source: the source that the stream reads; `None`: as the configuration's `data` says.
      seed: the seed of the draws for single items; `None`: the configuration's.
      pipelines: the number of input pipelines, which divide a global batch.
      columns: {entry of a batch: its column of vectors}.

    Raises:
      UserError: the stream is unknown, or the configuration does not fit it.
    """
    stream = stream_class(name)
    data = ConfigDict(config.data)
    if source is not None:
        data.directory = source.directory
        data.format = source.format
    if seed is None:
        seed = config.seed
    batch = batch_size(config, name) // pipelines
    own = ConfigDict({field: config.method.get(field, default) for field, default in stream.fields.items()})
    settings = Settings(data, config.image_tower, config.augmentation, seed, batch, own, columns or {})
    return stream(settings, texts)


def batch_size(config: ConfigDict, stream: str) -> int:
    """Returns how many texts, or text pairs, of the stream of this name a global batch holds."""
    return config.train[stream_class(stream).batch_field]


def captions_per_image(config: ConfigDict) -> int:
    """Returns the number of an image's captions in a batch: the method's number for `ImageGroups`, else 1."""
    return config.method.get("captions_per_image", 1)


def stream_sources(data: ConfigDict, stream: str) -> list[tuple[DataSource, list[str]]]:
    """Returns [(source, its files)] for the sources with records of a stream, by its name; raises as `sources_of`.

    `data` is the configuration's `data` branch.
    """
    return sources_of(data, stream_class(stream).record_type(data))


def stream_items(config: ConfigDict, tokenizer, stream: str, names: Sequence[str]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields blocks of a stream's usable items, each item once, undecoded, in file order; raises as `stream_of`.

    A block is a tuple with an array of bytes, [items], for each of `names`.

    Args:
      config: the whole configuration tree.
      tokenizer: a `Tokenizer`.
      stream: the stream's name.
      names: the entries to read, for example ["caption"].
    """
    texts = Texts(tokenizer, "longest")
    for source, files in stream_sources(config.data, stream):
        reader = stream_of(stream, config, texts, source)
        languages = [name.encode() for name in reader.languages]
        for block in one_pass(files, reader.parse, {*names, reader.language_key, "problem"}):
            is_wanted = block["problem"] == b""
            if languages:
                is_wanted &= np.isin(block[reader.language_key], languages)
            yield tuple(block[name][is_wanted] for name in names)


class _OpenSource(NamedTuple):
    """A source whose items a stream can read.

    Attributes:
      source: its folder and weight.
      files: its training files.
      stream: the stream, set for this source.
      parse: the function from a record to its items.
      has_items: whether a record has an item of the stream.
      counts: {language: items}; {} where the stream takes all languages, as often as they are in the data.
    """

    source: DataSource
    files: list[str]
    stream: Stream
    parse: Callable
    has_items: bool
    counts: dict[str, int]


def _read_stream(
    name: str,
    config: ConfigDict,
    texts: Texts,
    share: Share,
    places: np.ndarray | None,
    columns: Mapping[str, Column],
) -> tuple[tf.data.Dataset, Callable[[dict], dict]]:
    """Returns (the items of a stream's batches, {name: [B, …]}, the function from these items to the stream's entries).

    Args:
      name: the stream's name.
      config, share: as in `training_batches`.
      texts: the traced tokenizer.
      places: int64 [sources, PLACE], the place of each source's last used item; `None`: at the beginning.
      columns: {entry of a batch: its column of vectors}.

    Raises:
      UserError: the stream is unknown, or its data cannot be read or used.
    """
    sources = []
    for number, (source, files) in enumerate(stream_sources(config.data, name)):
        # Draws for an item differ between sources and pipelines, the order of files only between sources. The powers
        # of two keep fewer than 2^12 pipelines and seeds below 2^20 apart.
        draw_seed = config.seed + (number * 2**12 + share.pipeline) * 2**20
        source_stream = stream_of(name, config, texts, source, draw_seed, share.pipelines, columns)
        sources.append(_open_source(source, files, source_stream))
    if places is None:
        places = np.stack([start_of(0)] * len(sources))
    stream = sources[-1].stream  # any would do: they differ only in their folders, and in the draws for single items
    seed = 2 * config.seed + stream.order
    usable = []
    for number, gives_items in enumerate(_which_give_items(name, sources)):
        blocks = None
        if gives_items:
            part = part_name(name, sources[number].source)
            blocks = _usable_of_source(sources[number], part, seed + number * 2**32, places[number], share)
        usable.append(blocks)
    weights = [opened.source.weight for opened in sources]
    items_used = int(places[:, 2].sum())
    batches = mixed(usable, weights, items_used, (seed, share.pipeline), stream.size)

    def make_batch(items):
        epoch, offset = tf.unstack(items["position"][0])
        batch_seed = tf.stack([tf.cast(config.seed, tf.int64) + epoch, offset + share.pipeline * EPOCH])
        return {**stream.make_batch(items, batch_seed), **_progress(name, items, len(sources))}

    return batches, make_batch


def _which_give_items(name: str, sources: Sequence[_OpenSource]) -> list[bool]:
    """Returns for each source whether it has items of the stream `name` in the stream's languages; prints which do not.

    Raises `UserError` if no source has items, or no source has one of the languages.
    """
    stream = sources[-1].stream
    if not any(opened.has_items for opened in sources):
        raise UserError(stream.without)
    all_counts = [opened.counts for opened in sources]
    lacks_languages = without_languages(all_counts, stream.language_key, stream.languages)
    give_items = []
    for opened, lacks in zip(sources, lacks_languages):
        gives_items = opened.has_items and not lacks
        give_items.append(gives_items)
        if not gives_items:
            in_languages = f" in {', '.join(stream.languages)}" if lacks else ""
            part = part_name(name, opened.source)
            _say_once(f"{part} has no item{in_languages}: the other sources have its share.")
    return give_items


def _open_source(source: DataSource, files: list[str], stream: Stream) -> _OpenSource:
    """Looks at a source's first records, counts its languages if the stream needs the counts, and returns the source.

    Raises `UserError` if the records are of another kind than the stream's.
    """
    parse = parser(stream.read, stream.takes_many)
    has_items = has_first_item(files, parse)
    counts = {}
    if stream.settings.data.language_temperature != 1.0 or stream.languages:
        counts = _language_counts(stream, files, parse)
    return _OpenSource(source, files, stream, parse, has_items, counts)


def _usable_of_source(
    opened: _OpenSource, part: str, order_seed: int, last_place: np.ndarray, share: Share
) -> tf.data.Dataset:
    """Returns the blocks of `usable_items` for a source.

    Args:
      opened: the source.
      part: its name in errors, as `part_name` returns it.
      order_seed: the seed of the items' order.
      last_place: the place of its last used item, int64 [PLACE].
      share: which input pipeline this is.
    """
    stream = opened.stream
    data = stream.settings.data
    items = endless_items(
        opened.files,
        opened.parse,
        data,
        seed=order_seed,
        after=last_place,
        languages=stream.languages,
        language_key=stream.language_key,
        share=share,
        counts=opened.counts,
    )
    items_used = int(last_place[2])
    return usable_items(items, stream.decode, part, data.max_skipped_fraction, items_used)


# {(stream, settings, files and sizes): counts}: a start of training reads its data three times, and counts them once.
_counted: dict[tuple, dict[str, int]] = {}


def _language_counts(stream: Stream, files: Sequence[str], parse: Callable) -> dict[str, int]:
    """Returns `balanced_languages` of a stream's files, which `_counted` keeps until the files or settings change.

    `parse` is the stream's traced parser.
    """
    settings = stream.settings
    sizes = tuple(records.file_sizes(files).items())
    key = (type(stream), str(settings.data), str(settings.own), sizes)
    if key not in _counted:
        if len(_counted) >= COUNTED:
            _counted.clear()
        _counted[key] = balanced_languages(files, parse, stream.language_key, stream.parse)
    return _counted[key]


@functools.lru_cache(maxsize=COUNTED)  # a start of training reads its data three times
def _say_once(line: str) -> None:
    """Prints a line, unless it is among the last `COUNTED` lines."""
    print(line, flush=True)


def part_name(stream: str, source: DataSource) -> str:
    """Returns the name of a source's part of a stream in messages and logs: "image_text/flickr", or "image_text"."""
    return f"{stream}/{source.name}" if source.name else stream


def _progress(stream: str, items: dict, sources: int) -> dict[str, tf.Tensor]:
    """Returns the entries "<stream>_place" and "<stream>_tally" of a batch, as `training_batches` describes them.

    `items` are the batch's, {name: [B, …]}, of this number of sources.
    """
    if sources == 1:
        ends = [(place_of_last(items), items["tally"][-1])]
    else:
        ends = [_place_and_tally(items, number) for number in range(sources)]
    places, tallies = map(tf.stack, zip(*ends))
    return {f"{stream}_place": places[None], f"{stream}_tally": tallies[None]}  # [1, …]: of one pipeline


def _place_and_tally(items: dict, source: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (place, tally) of the last of the items that is of this source: int64 [PLACE] and [1 + kinds, 3].

    Without an item of the source the place is -1, and the tally 0.
    """
    rows = tf.where(tf.equal(items["source"], source))[:, 0]
    source_rows = {name: tf.gather(items[name], rows) for name in ("position", "used", "begin", "tally")}
    return tf.cond(
        tf.size(rows) > 0,
        lambda: (place_of_last(source_rows), source_rows["tally"][-1]),
        lambda: (np.full(PLACE, -1, np.int64), tf.zeros_like(items["tally"][0])),
    )


def _with_wait_time(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "data_wait_seconds" to each batch, float32 [1]: how long the consumer waited for it."""
    clock = tf.data.Dataset.range(ENDLESS).map(lambda _: tf.timestamp())
    # The parts of a zip are produced in order when the consumer asks.
    timed = tf.data.Dataset.zip((clock, batches, clock))

    def add_wait_time(before, batch, after):
        return {**batch, "data_wait_seconds": tf.cast(after - before, tf.float32)[None]}

    options = tf.data.Options()
    # Rewriting the graph takes longer than it saves here, and the clocks would measure a prefetcher that it puts in.
    options.experimental_optimization.apply_default_optimizations = False
    return records.untuned(timed.map(add_wait_time).with_options(options))
