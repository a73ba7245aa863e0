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
COUNTED = 16  # counts of languages that are kept


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
      A data set of the streams' dictionaries in one, whose entries their files name; tokens are dicts of int32 [B, T],
      ids int64 [B], images uint8 [B, S, S, 3]. "<stream>_place", int64 [1, sources, PLACE], is the place of the
      batch's last item of each source, -1 if it has no item, and "<stream>_tally", int64 [1, sources, 1 + kinds, 3],
      counts the records read and skipped up to there (`skipped_records.py`).
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
    """Returns the `Stream` of a name, the last that its file defines; raises `UserError` if it is missing."""
    try:
        module = importlib.import_module(f"mural_tf.data.streams.{name}")
    except ModuleNotFoundError:
        raise UserError(f"Unknown stream {name!r}: expected a file of mural_tf/data/streams.") from None
    classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, Stream)]
    return [value for value in classes if value.__module__ == module.__name__][-1]


def stream_of(
    name: str,
    config: ConfigDict,
    texts: Texts,
    source: DataSource | None = None,
    seed: int | None = None,
    pipelines: int = 1,
    columns: Mapping[str, Column] | None = None,
) -> Stream:
    """Returns a stream of a whole configuration, or of one of its sources and with another seed, for one pipeline."""
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
    """Returns how many texts, or pairs of them, of a stream a global batch holds."""
    return config.train[stream_class(stream).batch_field]


def captions_per_image(config: ConfigDict) -> int:
    """Returns the number of an image's captions in a batch: the method's number for `ImageGroups`, else 1."""
    return config.method.get("captions_per_image", 1)


def stream_sources(data: ConfigDict, stream: str) -> list[tuple[DataSource, list[str]]]:
    """Returns the sources that have items of a stream; raises as `sources_of`, which takes a kind of records."""
    return sources_of(data, stream_class(stream).record_type(data))


def stream_items(config: ConfigDict, tokenizer, stream: str, names: Sequence[str]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields blocks of a stream's usable items, each once, undecoded, in file order: an array [items] per name.

    Args:
      names: the entries to read, for example "caption".
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
      counts: its items by language; `None` where a stream takes them as often as they are in the data.
    """

    source: DataSource
    files: list[str]
    stream: Stream
    parse: Callable
    has_items: bool
    counts: dict[str, int] | None


def _read_stream(
    name: str,
    config: ConfigDict,
    texts: Texts,
    share: Share,
    places: np.ndarray | None,
    columns: Mapping[str, Column],
) -> tuple[tf.data.Dataset, Callable[[dict], dict]]:
    """Returns the items of a stream's batches, {name: [B, …]}, after its places, and the function to make a batch."""
    sources = []
    for number, (source, files) in enumerate(stream_sources(config.data, name)):
        # Draws for an item differ between sources and pipelines, the order of files only between sources.
        draw_seed = config.seed + (number * 2**12 + share.pipeline) * 2**20
        stream = stream_of(name, config, texts, source, draw_seed, share.pipelines, columns)
        sources.append(_open_source(source, files, stream))
    if places is None:
        places = np.stack([start_of(0)] * len(sources))  # [sources, PLACE]
    # Any source's stream would do here: they differ only in their folders, and in the draws for single items.
    seed = 2 * config.seed + stream.order
    if not any(opened.has_items for opened in sources):
        raise UserError(stream.without)
    lacks_languages = [False] * len(sources)
    if stream.languages:
        all_counts = [opened.counts for opened in sources]
        lacks_languages = without_languages(all_counts, stream.language_key, stream.languages)
    usable = []
    for number, opened in enumerate(sources):
        part = part_name(name, opened.source)
        if lacks_languages[number] or not opened.has_items:
            chosen = f" in {', '.join(stream.languages)}" if lacks_languages[number] else ""
            _say_once(f"{part} has no item{chosen}: the other sources have its share.")
            usable.append(None)
        else:
            usable.append(_usable_of_source(opened, part, seed + number * 2**32, places[number], share))
    weights = [opened.source.weight for opened in sources]
    items_used = int(places[:, 2].sum())
    batches = mixed(usable, weights, items_used, (seed, share.pipeline), stream.size)

    def make_batch(items):
        epoch, offset = tf.unstack(items["position"][0])
        batch_seed = tf.stack([tf.cast(config.seed, tf.int64) + epoch, offset + share.pipeline * EPOCH])
        return {**stream.make_batch(items, batch_seed), **_progress(name, items, len(sources))}

    return batches, make_batch


def _open_source(source: DataSource, files: list[str], stream: Stream) -> _OpenSource:
    """Returns a source after a look at its first records; raises `UserError` if they are of another kind."""
    parse = parser(stream.read, stream.takes_many)
    has_items = has_first_item(files, parse)
    counts = None
    if stream.settings.data.language_temperature != 1.0 or stream.languages:
        counts = _language_counts(stream, files, parse)
    return _OpenSource(source, files, stream, parse, has_items, counts)


def _usable_of_source(
    opened: _OpenSource, part: str, order_seed: int, last_place: np.ndarray, share: Share
) -> tf.data.Dataset:
    """Returns a source's usable items after its last place, int64 [PLACE], in blocks; `part` is its name in errors."""
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


_counted: dict[tuple, dict[str, int]] = {}  # by all that decides: a start reads its data three times, and counts once


def _language_counts(stream: Stream, files: Sequence[str], parse: Callable) -> dict[str, int]:
    """Returns a stream's items by language, as `balanced_languages`; files that did not change are counted once."""
    settings = stream.settings
    sizes = tuple(records.file_sizes(files).items())
    key = (type(stream), str(settings.data), str(settings.own), sizes)
    if key not in _counted:
        if len(_counted) >= COUNTED:
            _counted.clear()
        _counted[key] = balanced_languages(files, parse, stream.language_key, stream.parse)
    return _counted[key]


@functools.lru_cache(maxsize=COUNTED)  # a start reads its data three times
def _say_once(line: str) -> None:
    print(line, flush=True)


def part_name(stream: str, source: DataSource) -> str:
    """Returns how a source's part of a stream is called in messages and logs."""
    return f"{stream}/{source.name}" if source.name else stream


def _progress(stream: str, items: dict, sources: int) -> dict[str, tf.Tensor]:
    """Returns a batch's "<stream>_place" and "<stream>_tally" as `training_batches` describes them."""
    if sources == 1:
        ends = [(place_of_last(items), items["tally"][-1])]
    else:
        ends = [_place_and_tally(items, number) for number in range(sources)]
    places, tallies = map(tf.stack, zip(*ends))
    return {f"{stream}_place": places[None], f"{stream}_tally": tallies[None]}


def _place_and_tally(items: dict, source: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns place [PLACE] and tally [1 + kinds, 3] of a source's last item, int64; -1 as place without an item."""
    rows = tf.where(tf.equal(items["source"], source))[:, 0]
    source_rows = {name: tf.gather(items[name], rows) for name in ("position", "used", "begin", "tally")}
    return tf.cond(
        tf.size(rows) > 0,
        lambda: (place_of_last(source_rows), source_rows["tally"][-1]),
        lambda: (np.full(PLACE, -1, np.int64), tf.zeros_like(items["tally"][0])),
    )


def _with_wait_time(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Adds `data_wait_seconds`: how long the consumer waited for each batch.

    The parts of a zip are produced in order when the consumer asks: clock, batch, clock.
    """
    clock = tf.data.Dataset.range(ENDLESS).map(lambda _: tf.timestamp())
    timed = tf.data.Dataset.zip((clock, batches, clock))

    def add(before, batch, after):
        return {**batch, "data_wait_seconds": tf.cast(after - before, tf.float32)[None]}

    options = tf.data.Options()
    # Rewriting the graph takes longer than it saves here, and the clocks would measure a prefetcher that it puts in.
    options.experimental_optimization.apply_default_optimizations = False
    return records.untuned(timed.map(add).with_options(options))
