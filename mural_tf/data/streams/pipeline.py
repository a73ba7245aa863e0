"""From records to training batches, deterministically from the seed and the places of the last items used.

A method names the streams that it needs, one or two; they run side by side, and every batch holds a part of each:

    image_text   an image and one of its captions
    image_groups an image and several of its captions, in several languages (`captions.py`)
    views        the same with two augmented views of the image (`views.py`) and, for the cloze task, masked tokens
    captions     the caption alone, for training on text
    triples      an image and two of its captions that are translations of each other (`captions.py`)
    text_text    text pairs (`captions.py`)

A record is read and parsed into items. Items are shuffled; each gets its place and is decoded; those that cannot be
used are dropped (`epochs.py`). Items of one or several sources (`mixture.py`) become batches, whose images are
augmented and whose texts are tokenized. `Stream` holds what differs between the kinds of items. Of several input
pipelines (hosts of a TPU, workers) each reads its share of the files and makes its rows of the global batch.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data import records
from mural_tf.data.images import finish_images, read_image
from mural_tf.data.records import parse_image_text, parse_img2dataset, parse_text_pair
from mural_tf.data.streams.captions import (
    ACROSS_LANGUAGES,
    CO_CAPTIONS,
    FILES,
    SOURCES,
    across_languages_parser,
    captions_of,
    draw_across_languages,
    draw_captions,
    group_parser,
    parse_co_captions,
    parse_triples,
    swap_texts,
    with_pivot,
)
from mural_tf.data.streams.epochs import (
    ALL,
    EPOCH,
    PLACE,
    SIDES,
    Share,
    check_first_item,
    count_languages,
    endless_items,
    one_pass,
    place_of_last,
    start_of,
    stated_languages,
    usable_items,
)
from mural_tf.data.streams.masking import mask_tokens
from mural_tf.data.streams.mixture import Source, mixed, training_sources
from mural_tf.data.streams.targets import pivot_languages
from mural_tf.data.streams.views import augment_views
from mural_tf.errors import UserError
from mural_tf.text.language_words import tag_language


@dataclasses.dataclass(frozen=True)
class StreamSettings:
    """What the streams need to know of a configuration; `data`, `image_tower` and `augmentation` are its branches."""

    data: ConfigDict
    image_tower: ConfigDict
    augmentation: ConfigDict
    seed: int
    image_text_batch: int
    text_text_batch: int
    cloze_share: float  # of the tokens; 0: without a cloze task
    captions_per_image: int
    captions_per_language: int
    pivot: str | None  # `text_a` of every text pair is in one of these languages, see `pivots_of`; `None`: any


def stream_settings(config: ConfigDict) -> StreamSettings:
    """Returns what the streams need to know of a whole configuration tree."""
    return StreamSettings(
        data=config.data,
        image_tower=config.image_tower,
        augmentation=config.augmentation,
        seed=config.seed,
        image_text_batch=config.train.image_text_batch,
        text_text_batch=config.train.text_text_batch,
        cloze_share=config.method.cloze_share if config.method.get("cloze_weight") else 0.0,
        captions_per_image=config.method.get("captions_per_image", 1),
        captions_per_language=config.method.get("captions_per_language", 1),
        pivot=config.method.get("pivot"),
    )


@dataclasses.dataclass(frozen=True)
class Stream:
    """One kind of items.

    name: as above.
    parse: from a serialised record to items, {name: [items]}.
    decode: from an item, its position, int64 [2], and whether its image is plain (`data/images.py`) to what it is in a
      batch; `None`: as it is.
    finish: from the items of a batch, {name: [B, …]}, and a seed, int64 [2], to the batch's entries.
    size: items in a batch.
    without: the error where no record holds such an item.
    languages: those of the items to take; empty: all.
    language_key: the entry with an item's language.
    """

    name: str
    parse: Callable
    decode: Callable | None
    finish: Callable
    size: int
    without: str = "There is no record."
    languages: Sequence[str] = ()
    language_key: str = "language"


@tf.autograph.experimental.do_not_convert  # saves seconds; nothing here needs it
def training_batches(
    config: ConfigDict,
    tokenizer,
    places: Mapping[str, np.ndarray] | None = None,
    streams: Sequence[str] = ("image_text", "text_text"),
    pad: str = "max_length",
    share: Share = ALL,
) -> tf.data.Dataset:
    """Returns endless global batches, or an input pipeline's rows of them.

    Args:
      config: the whole configuration tree, of which `stream_settings` reads its part.
      tokenizer: `text.WordPieceTokenizer`.
      places: of the last item used, stream -> int64 [sources, PLACE] (`epochs.py`); `None` starts at the beginning.
      streams: what batches hold, by the names above; a method's `streams`.
      pad: "max_length" for static shapes, or "longest" in the batch.
      share: which of several input pipelines this is; all use the same `seed`, and together every record once an epoch.

    Returns:
      A data set of the streams' dictionaries in one; tokens are dicts of int32 [B, T], ids int64 [B], images uint8
      [B, S, S, 3]. "<stream>_place", int64 [1, sources, PLACE], is that of the batch's last item of each source, -1 if
      it has none, and "<stream>_tally", int64 [1, sources, 1 + kinds, 3], counts what was read and skipped up to there
      (`skipped.py`):
        image_text   "image", "image_id", "caption" (tokens), "caption_id"
        image_groups the same of I = train.image_text_batch / N images and I N captions, an image's in succession, with
                     N the captions per image, and "caption_language_id", the tokenizer's, -1 in empty places
        views        "view_0", "view_1", "image_id", "caption", "caption_id"; "cloze" as in `masking.py`
        captions     "caption", "caption_id"; "cloze"
        triples      "image", "image_id", "text_a", "text_b" (tokens), "text_a_id", "text_b_id"
        text_text    "text_a", "text_b", "text_a_id", "text_b_id", "text_group_id", the same of pairs that all say the
                     same (of one image, of one group); of a tokenizer that takes languages also
                     "text_a_language_id", "text_b_language_id". With method.pivot "text_a" is in a pivot language
    """
    settings, texts = stream_settings(config), Texts(tokenizer.on_device_in_scope(), pad)
    settings = dataclasses.replace(
        settings,
        image_text_batch=settings.image_text_batch // share.pipelines,
        text_text_batch=settings.text_text_batch // share.pipelines,
    )
    parts, finishes = zip(*[_read(name, settings, texts, share, (places or {}).get(name)) for name in streams])

    def finish(*parts):  # one function for all streams: making one takes longer than calling it
        finished = [finish_one(items) for finish_one, items in zip(finishes, parts)]
        return {key: value for part in finished for key, value in part.items()}

    batches = tf.data.Dataset.zip(tuple(parts)).map(finish, num_parallel_calls=2 * len(parts), deterministic=True)
    return _with_wait_time(batches.prefetch(4))


def stream_items(config: ConfigDict, tokenizer, stream: str, names: Sequence[str]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields the entries `names` of a stream's usable items, each once, undecoded and in file order, in blocks."""
    settings, texts = stream_settings(config), Texts(tokenizer, "longest")
    for source, files in stream_sources(config.data, stream):
        kind = _STREAMS[stream](dataclasses.replace(settings, data=_data_of(config.data, source)), texts)
        key, languages = kind.language_key, [name.encode() for name in kind.languages]
        for block in one_pass(files, kind.parse, tuple(dict.fromkeys((*names, key, "problem")))):
            wanted = block["problem"] == b""
            if languages:
                wanted &= np.isin(block[key], languages)
            yield tuple(block[name][wanted] for name in names)


def pivots_of(settings: StreamSettings) -> tuple[str, ...]:
    """Returns the languages that `method.pivot` stands for in this data; those of captions that are trained alone."""
    data = settings.data

    def captions():
        counts = collections.Counter()
        for source, files in stream_sources(data, "captions"):
            counts.update(_captions_by_language(tuple(files), source.format, data.default_language))
        return {name: n for name, n in counts.items() if name in (data.image_text_languages or counts)}

    def pairs():  # with a side in each language; nothing where the pairs are captions
        counts = collections.Counter()
        for _, files in stream_sources(data, "text_text") if data.text_pairs == FILES else ():
            counts.update(_pairs_by_language(tuple(files)))
        return counts

    return pivot_languages(settings.pivot, captions, pairs)


@functools.lru_cache(maxsize=8)  # every start of the input asks again
def _captions_by_language(files: tuple[str, ...], format: str, default_language: str) -> dict[str, int]:
    parse = parse_image_text if format == "mural" else parse_img2dataset(default_language)
    return stated_languages(files, parse, "language") or count_languages(files, parse, "language")


@functools.lru_cache(maxsize=8)
def _pairs_by_language(files: tuple[str, ...]) -> dict[str, int]:
    sides = [stated_languages(files, parse_text_pair, key) for key in SIDES]
    if None in sides:
        return count_languages(files, parse_text_pair, *SIDES)
    return {name: sum(side.get(name, 0) for side in sides) for name in {**sides[0], **sides[1]}}


def batch_size(config: ConfigDict, stream: str) -> int:
    """Returns how many items of a stream a global batch holds."""
    return config.train.text_text_batch if stream == "text_text" else config.train.image_text_batch


def stream_sources(data: ConfigDict, stream: str) -> list[tuple[Source, list[str]]]:
    """Returns the sources that have items of a stream, each with its files in the order by which tallies number them.

    Args:
      data: the configuration's `data` branch.
      stream: its name.

    Raises `UserError` if no source has files of this kind, or one has no training data of any kind.
    """
    reads_pairs = stream == "text_text" and data.text_pairs == FILES
    kind = records.TEXT_PAIRS if reads_pairs else records.IMAGE_TEXT
    sources = training_sources(data)
    if len(sources) == 1:
        return [(sources[0], sources[0].files(kind))]
    found = [(source, records.find_files(source.directory, kind, "train")) for source in sources]
    if not any(files for _, files in found):
        raise UserError(f"None of data.sources ({', '.join(data.sources)}) has {kind} records of split 'train'.")
    return [(source, files) for source, files in found if files]


def _read(name: str, settings: StreamSettings, texts: Texts, share: Share, places: np.ndarray | None):
    """Returns what are to be a stream's batches, {name: [B, …]}, from just after its places, and what finishes one."""
    sources = stream_sources(settings.data, name)
    places = np.stack([start_of(0)] * len(sources)) if places is None else places
    usable = []
    for number, (source, files) in enumerate(sources):
        # What is drawn for an item differs between sources and pipelines, the order of files between sources alone.
        draws = settings.seed + (number * 2**12 + share.pipeline) * 2**20
        of_source = dataclasses.replace(settings, data=_data_of(settings.data, source), seed=draws)
        stream = _STREAMS[name](of_source, texts)
        parse = tf.function(stream.parse, [tf.TensorSpec([], tf.string)], autograph=False)  # traced once for all uses
        check_first_item(files, parse, stream.without)
        order = 2 * settings.seed + (name == "text_text") + number * 2**32  # two streams, two orders
        of_data, after = of_source.data, places[number]
        items = endless_items(files, parse, of_data, order, after, stream.languages, stream.language_key, share)
        part, used = part_name(name, source), int(after[2])
        usable.append(usable_items(items, stream.decode, part, of_data.max_skipped_fraction, used))
    draws = (2 * settings.seed + (name == "text_text"), share.pipeline)
    weights = [source.weight for source, _ in sources]
    batches = mixed(usable, weights, int(places[:, 2].sum()), draws, stream.size)

    def finish(items):
        epoch, offset = tf.unstack(items["position"][0])
        seed = tf.stack([tf.cast(settings.seed, tf.int64) + epoch, offset + share.pipeline * EPOCH])
        return {**stream.finish(items, seed), **_progress(name, items, len(sources))}

    return batches, finish


def _data_of(data: ConfigDict, source: Source) -> ConfigDict:
    changed = ConfigDict(data)
    changed.directory, changed.format = source.directory, source.format
    return changed


def part_name(stream: str, source: Source) -> str:
    """Returns how a source's part of a stream is called in messages and logs."""
    return f"{stream}/{source.name}" if source.name else stream


def _progress(stream: str, items: dict, sources: int) -> dict[str, tf.Tensor]:
    """Returns a batch's places and tallies, those of the last item of each source."""
    if sources == 1:
        places, tallies = place_of_last(items)[None], items["tally"][-1:]
    else:
        of_sources = []
        for number in range(sources):
            rows = tf.where(tf.equal(items["source"], number))[:, 0]
            last = {name: tf.gather(items[name], rows[-1:]) for name in ("position", "used", "begin", "tally")}
            of_sources.append(tf.cond(
                tf.size(rows) > 0,
                lambda last=last: (place_of_last(last), last["tally"][-1]),
                lambda: (tf.fill([PLACE], tf.constant(-1, tf.int64)), tf.zeros_like(items["tally"][0])),
            ))  # fmt: skip
        places, tallies = (tf.stack(values) for values in zip(*of_sources))
    return {f"{stream}_place": places[None], f"{stream}_tally": tallies[None]}


class Texts:
    """The tokenizer as one function for all streams: tracing it takes a large part of the start."""

    def __init__(self, tokenizer, pad: str):
        self.tokenizer = tokenizer
        self._tokens = tf.function(
            lambda texts: tokenizer(texts, pad=pad), [tf.TensorSpec([None], tf.string)], autograph=False
        )

    def tokens(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Tokenizes string [B]: int32 [B, T] each, B as static as it was."""
        return _with_rows(texts, self._tokens(texts))

    def masked(self, tokens: dict[str, tf.Tensor], share: float, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Masks tokens for the cloze task, see `masking.py`."""
        return mask_tokens(tokens, self.tokenizer, share, seed)


def _with_rows(of: tf.Tensor, values):
    """States the number of rows, which tokenizing and resampling forget."""
    return tf.nest.map_structure(lambda v: tf.ensure_shape(v, of.shape[:1] + v.shape[1:]), values)


def _with_wait_time(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Adds `data_wait_seconds`, how long the consumer waited for each batch.

    The parts of a zip are produced in order when the consumer asks: clock, batch, clock.
    """
    clock = tf.data.Dataset.range(np.iinfo(np.int64).max).map(lambda _: tf.timestamp())
    timed = tf.data.Dataset.zip((clock, batches, clock))

    def add(before, batch, after):
        return {**batch, "data_wait_seconds": tf.cast(after - before, tf.float32)[None]}

    options = tf.data.Options()
    # Rewriting the graph takes longer than it saves here, and a prefetcher put in is what the clocks would measure.
    options.experimental_optimization.apply_default_optimizations = False
    return records.untuned(timed.map(add).with_options(options))


# The kinds of items.


def _image_text(settings: StreamSettings, texts: Texts) -> Stream:
    def finish(items, seed):
        return {"image": _images(items, settings, seed), **_caption(items, texts)}

    return _one_caption("image_text", settings, finish)


def _views(settings: StreamSettings, texts: Texts) -> Stream:
    def finish(items, seed):
        size = settings.image_tower.image_size
        views = augment_views(items["image"], size, settings.augmentation, seed)
        first, second = _with_rows(items["image"], views)
        return {"view_0": first, "view_1": second, **_caption(items, texts, settings.cloze_share, seed)}

    return _one_caption("views", settings, finish)


def _captions(settings: StreamSettings, texts: Texts) -> Stream:
    def finish(items, seed):
        finished = _caption(items, texts, settings.cloze_share, seed)
        return {name: value for name, value in finished.items() if name != "image_id"}

    stream = _one_caption("captions", settings, finish)
    return dataclasses.replace(stream, decode=None)  # pictures are neither decoded nor checked


def _one_caption(name: str, settings: StreamSettings, finish: Callable) -> Stream:
    """Returns the stream whose items are an image and one caption."""
    data = settings.data
    return Stream(
        name,
        parse_image_text if data.format == "mural" else parse_img2dataset(data.default_language),
        lambda item, position, plain: _with_image(item, settings, plain),
        finish,
        settings.image_text_batch,
        languages=data.image_text_languages,
    )


def _triples(settings: StreamSettings, texts: Texts) -> Stream:
    def finish(items, seed):
        items = swap_texts(items, seed)
        ids = {"image_id": fingerprint(items["image_id"])}
        return {"image": _images(items, settings, seed), **ids, **_text_pair(items, texts)}

    if settings.data.format != "mural":
        raise UserError(
            f"data.format={settings.data.format} has one caption an image; triples need two: see docs/methods.md."
        )
    return Stream(
        "triples",
        parse_triples(settings.data.image_text_languages),
        lambda item, position, plain: _with_image(item, settings, plain),
        finish,
        settings.image_text_batch,
        without="No image has two captions of one caption_group in different languages (of data.image_text_languages, "
        "if set). Add translations with python -m mural_tf translate.",
    )


def _image_groups(settings: StreamSettings, texts: Texts) -> Stream:
    places, batch, tokenizer = settings.captions_per_image, settings.image_text_batch, texts.tokenizer
    if batch % places or not tokenizer.takes_languages or settings.data.format != "mural":
        raise UserError(
            f"method.captions_per_image={places} must divide train.image_text_batch={batch}, and needs "
            "text_tower.name='words' and data.format='mural'."
        )
    languages = tuple(settings.data.image_text_languages) or tokenizer.languages

    def decode(item, position, plain):
        seed = _item_seed(settings, position)
        drawn = draw_captions(*captions_of(item), places, settings.captions_per_language, seed)
        return {**_with_image(item, settings, plain), **dict(zip(("caption", "language"), drawn))}

    def finish(items, seed):
        captions, of = (tf.reshape(items[name], [-1]) for name in ("caption", "language"))  # [I N]
        tokens = texts.tokens(tag_language(captions, of))
        return {
            "image": _images(items, settings, seed),
            "image_id": fingerprint(items["image_id"]),
            "caption": tokens,
            "caption_id": fingerprint(captions),
            "caption_language_id": tf.where(tf.not_equal(captions, ""), tokens["input_type_ids"][:, 0], -1),
        }

    return Stream(
        "image_groups",
        group_parser(languages),
        decode,
        finish,
        batch // places,
        without=f"No training image has a caption in {', '.join(languages)}.",
    )


def _text_pairs(settings: StreamSettings, texts: Texts) -> Stream:
    source, languages = settings.data.text_pairs, settings.data.text_text_languages
    if source not in SOURCES:
        raise UserError(f"Unknown data.text_pairs {source!r}; known: {', '.join(SOURCES)}.")
    if settings.pivot is not None and source == ACROSS_LANGUAGES:
        raise UserError(f"data.text_pairs={source} draws languages, and a target is in those of method.pivot: use "
                        f"{FILES} or {CO_CAPTIONS}.")  # fmt: skip

    def finish(items, seed):
        return {**_text_pair(items, texts), "text_group_id": fingerprint(items["group_id"])}

    def draw(item, position, plain):
        return draw_across_languages(item, languages, _item_seed(settings, position))

    parse, decode = {
        FILES: (parse_text_pair, None),
        CO_CAPTIONS: (parse_co_captions, None),
        ACROSS_LANGUAGES: (across_languages_parser(languages), draw),
    }[source]
    without = f"No image has two captions for data.text_pairs={source}: it needs images with several captions"
    without += ", in different languages (one of data.text_text_languages, if set)." if decode else "."
    if settings.pivot is not None:
        pivots = pivots_of(settings)
        parse = with_pivot(parse, pivots)
        without = f"No text pair has one side in method.pivot={'+'.join(pivots)} and one in another language."
    return Stream(
        "text_text",
        parse,
        decode,
        finish,
        settings.text_text_batch,
        without=without,
        languages=() if decode else languages,  # drawn among them
        language_key="language_b",
    )


_STREAMS = {
    "image_text": _image_text,
    "image_groups": _image_groups,
    "views": _views,
    "captions": _captions,
    "triples": _triples,
    "text_text": _text_pairs,
}


# Parts of items and batches that several kinds share.


def _item_seed(settings: StreamSettings, position: tf.Tensor) -> tf.Tensor:
    """int64 [2] for one item's draws, which differ in every epoch."""
    return tf.stack([tf.cast(settings.seed, tf.int64) * 2**20 + position[0], position[1]])


def _with_image(item: dict, settings: StreamSettings, plain: bool) -> dict:
    """Decodes the item's image, where the item has no problem; `plain` is as in `decode_image`."""
    usable = tf.equal(item["problem"], "")
    return {**item, "image": read_image(item["image"], settings.image_tower, usable, plain)}


def _images(items: dict, settings: StreamSettings, seed: tf.Tensor) -> tf.Tensor:
    """What the image tower sees."""
    images = finish_images(items["image"], settings.image_tower, settings.augmentation, seed)
    return _with_rows(items["image"], images)


def _caption(items: dict, texts: Texts, cloze_share: float = 0.0, seed: tf.Tensor | None = None) -> dict:
    """Ids and tokens and, with a share above 0, masked tokens."""
    tokens = texts.tokens(items["caption"])
    ids = {"image_id": fingerprint(items["image_id"]), "caption_id": fingerprint(items["caption"])}
    return {**ids, "caption": tokens, **({"cloze": texts.masked(tokens, cloze_share, seed)} if cloze_share else {})}


def _text_pair(items: dict, texts: Texts) -> dict:
    """Tokens of one width, and ids, of the items' `text_a` and `text_b`."""
    sides = [items["text_a"], items["text_b"]]
    ids = {f"text_{side}_id": fingerprint(strings) for side, strings in zip("ab", sides)}
    if texts.tokenizer.takes_languages:
        sides = [tag_language(strings, items[f"language_{side}"]) for side, strings in zip("ab", sides)]
    tokens = texts.tokens(tf.concat(sides, axis=0))
    if texts.tokenizer.takes_languages:
        languages = tf.split(tokens["input_type_ids"][:, 0], 2)
        ids.update({f"text_{side}_language_id": language for side, language in zip("ab", languages)})
    halves = {name: tf.split(value, 2) for name, value in tokens.items()}
    return {**ids, **{f"text_{side}": {n: half[i] for n, half in halves.items()} for i, side in enumerate("ab")}}


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    """Returns an int64 id for each string."""
    return tf.strings.to_hash_bucket_fast(strings, np.iinfo(np.int64).max)
