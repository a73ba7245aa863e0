"""From records to training batches, deterministically from (seed, position).

A method names the streams that it needs, one or two; they run side by side, and every batch holds a part of each:

    image_text   an image and one of its captions
    image_groups an image and several of its captions, in several languages (`captions.py`)
    views        the same with two augmented views of the image (`views.py`) and, for the cloze task, masked tokens
    captions     the caption alone, for training on text
    triples      an image and two of its captions that are translations of each other (`captions.py`)
    text_text    text pairs (`captions.py`)

A record is read and parsed into items. Items are shuffled; each gets its place and is decoded; those that cannot be
used are dropped (`epochs.py`). Items become batches, whose images are augmented and whose texts are tokenized. `Stream`
holds what differs between the kinds of items.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

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
    check_first_item,
    count_languages,
    endless_items,
    one_pass,
    rebatched,
    stated_languages,
    usable_items,
)
from mural_tf.data.streams.masking import mask_tokens
from mural_tf.data.streams.targets import pivot_languages
from mural_tf.data.streams.views import augment_views
from mural_tf.errors import UserError
from mural_tf.text.language_words import tag_language

FORMATS = ("mural", "img2dataset")


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
    position: np.ndarray | None = None,
    streams: Sequence[str] = ("image_text", "text_text"),
    pad: str = "max_length",
) -> tf.data.Dataset:
    """Returns endless global batches.

    Args:
      config: the whole configuration tree, of which `stream_settings` reads its part.
      tokenizer: `text.WordPieceTokenizer`.
      position: int64 [2, 2], (epoch, offset) of the last item used of each stream; `None` starts at the beginning.
      streams: what batches hold, by the names above; a method's `streams`.
      pad: "max_length" for static shapes, or "longest" in the batch.

    Returns:
      A data set of the streams' dictionaries in one; tokens are dicts of int32 [B, T], ids int64 [B], images uint8
      [B, S, S, 3], "<stream>_position" is int64 [B, 2], and "<stream>_tally", int64 [1, 1 + kinds, 3], counts what was
      read and skipped up to the batch's last item (`skipped.py`):
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
    settings, texts = stream_settings(config), Texts(tokenizer, pad)
    if settings.data.format not in FORMATS:
        raise UserError(f"Unknown data.format {settings.data.format!r}; known: {', '.join(FORMATS)}.")
    start = np.full([2, 2], -1, np.int64) if position is None else position
    kinds = [_STREAMS[name](settings, texts) for name in streams]
    parts = [_read(kind, settings, start[place]) for place, kind in enumerate(kinds)]

    def finish(*parts):  # one function for all streams: making one takes longer than calling it
        finished = [_finish(kind, items, settings.seed) for kind, items in zip(kinds, parts)]
        return {key: value for part in finished for key, value in part.items()}

    batches = tf.data.Dataset.zip(tuple(parts)).map(finish, num_parallel_calls=2 * len(parts), deterministic=True)
    return _with_wait_time(batches.prefetch(4))


def stream_items(config: ConfigDict, tokenizer, stream: str, names: Sequence[str]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields the entries `names` of a stream's usable items, each once, undecoded and in file order, in blocks."""
    settings = stream_settings(config)
    kind, files = _STREAMS[stream](settings, Texts(tokenizer, "longest")), stream_files(config, stream)
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
        counts = _captions_by_language(data.directory, data.format, data.default_language)
        return {name: n for name, n in counts.items() if name in (data.image_text_languages or counts)}

    return pivot_languages(settings.pivot, captions, lambda: _pairs_by_language(data.directory, data.text_pairs))


@functools.lru_cache(maxsize=8)  # every start of the input asks again
def _captions_by_language(directory: str, format: str, default_language: str) -> dict[str, int]:
    files = records.list_files(directory, records.IMAGE_TEXT, "train")
    parse = parse_image_text if format == "mural" else parse_img2dataset(default_language)
    return stated_languages(files, parse, "language") or count_languages(files, parse, "language")


@functools.lru_cache(maxsize=8)
def _pairs_by_language(directory: str, source: str) -> dict[str, int]:
    """How many pairs have a side in each language; nothing where the pairs are captions."""
    if source != FILES:
        return {}
    files = records.list_files(directory, records.TEXT_PAIRS, "train")
    sides = [count_languages(files, parse_text_pair, f"language_{side}") for side in "ab"]
    return {name: sum(side.get(name, 0) for side in sides) for name in {**sides[0], **sides[1]}}


def batch_size(config: ConfigDict, stream: str) -> int:
    """Returns how many items of a stream a global batch holds."""
    return config.train.text_text_batch if stream == "text_text" else config.train.image_text_batch


def stream_files(config: ConfigDict | StreamSettings, stream: str) -> list[str]:
    """Returns the files that a stream reads, in the order by which its tallies number them; raises `UserError`."""
    reads_pairs = stream == "text_text" and config.data.text_pairs == FILES
    kind = records.TEXT_PAIRS if reads_pairs else records.IMAGE_TEXT
    return records.list_files(config.data.directory, kind, "train")


def _read(stream: Stream, settings: StreamSettings, after: np.ndarray) -> tf.data.Dataset:
    """Returns what is to be a batch, {name: [B, …]}, from just after a position."""
    files = stream_files(settings, stream.name)
    parse = tf.function(stream.parse, [tf.TensorSpec([], tf.string)], autograph=False)  # traced once for all its uses
    check_first_item(files, parse, stream.without)
    seed = 2 * settings.seed + (stream.name == "text_text")  # two streams, two orders
    items = endless_items(files, parse, settings.data, seed, after, stream.languages, stream.language_key)
    usable = usable_items(items, stream.decode, stream.name, settings.data.max_skipped_fraction)
    return rebatched(usable, stream.size)


def _finish(stream: Stream, items: dict, seed: int) -> dict:
    """Returns the stream's part of a batch."""
    epoch, offset = tf.unstack(items["position"][0])
    finished = stream.finish(items, tf.stack([tf.cast(seed, tf.int64) + epoch, offset]))
    counted = {f"{stream.name}_position": items["position"], f"{stream.name}_tally": items["tally"][-1:]}
    return {**finished, **counted}


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
