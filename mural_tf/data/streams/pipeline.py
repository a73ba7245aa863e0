"""From records to training batches, deterministically from (seed, position).

A method names the streams that it needs, one or two; they run side by side, and every batch holds a part of each:

    image_text   an image and one of its captions
    image_groups an image and several of its captions, in several languages (`image_groups.py`)
    views        the same with two augmented views of the image (`views.py`) and, for the cloze task, masked tokens
    captions     the caption alone, for training on text
    triples      an image and two of its captions that are translations of each other (`triples.py`)
    text_text    text pairs

A stream goes through epochs without end. Each item carries its position, (epoch, offset after shuffling), so that a
run that stopped anywhere starts again at the very next item.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data import records
from mural_tf.data.images import finish_images, read_image
from mural_tf.data.records import TEXT_PAIR_SOURCES, parse_image_text, parse_img2dataset, untuned
from mural_tf.data.streams.epochs import SkippedRecords, drop_problems, map_or_drop, stream_items
from mural_tf.data.streams.epochs import fingerprint as _fingerprint
from mural_tf.data.streams.epochs import of_size as _of_size
from mural_tf.data.streams.image_groups import image_group_batches
from mural_tf.data.streams.masking import mask_tokens
from mural_tf.data.streams.triples import check_has_triples, parse_triples, swap_texts
from mural_tf.data.streams.views import augment_views
from mural_tf.errors import UserError
from mural_tf.text.language_words import tag_language


@tf.autograph.experimental.do_not_convert  # saves seconds; nothing here needs it
def training_batches(
    config: ConfigDict,
    tokenizer,
    skipped: SkippedRecords,
    position: np.ndarray | None = None,
    streams: Sequence[str] = ("image_text", "text_text"),
    pad: str = "max_length",
) -> tf.data.Dataset:
    """Returns endless global batches.

    Args:
      config: the whole configuration tree.
      tokenizer: `text.WordPieceTokenizer`.
      skipped: takes the counts of unusable records.
      position: int64 [2, 2], (epoch, offset) of the last item used of each stream; `None` starts at the beginning.
      streams: what batches hold, by the names above; a method's `streams`.
      pad: "max_length" for static shapes, or "longest" in the batch.

    Returns:
      A data set of the streams' dictionaries in one; tokens are dicts of int32 [B, T], ids int64 [B], images uint8
      [B, S, S, 3], and "<stream>_position" is int64 [B, 2]:
        image_text   "image", "image_id", "caption" (tokens), "caption_id"
        image_groups the same, with more captions than images, and "caption_language_id"
        views        "view_0", "view_1", "image_id", "caption", "caption_id"; "cloze" as in `masking.py`
        captions     "caption", "caption_id"; "cloze"
        triples      "image", "image_id", "text_a", "text_b" (tokens), "text_a_id", "text_b_id"
        text_text    "text_a", "text_b", "text_a_id", "text_b_id"; of a tokenizer that takes languages also
                     "text_a_language_id", "text_b_language_id"
    """
    start = np.full([2, 2], -1, np.int64) if position is None else position
    parts = [_STREAMS[name](config, tokenizer, skipped, start[place], pad) for place, name in enumerate(streams)]
    merged = tf.data.Dataset.zip(tuple(parts)).map(lambda *dicts: {k: v for part in dicts for k, v in part.items()})
    return _with_wait_time(merged.prefetch(4))


def batch_size(config: ConfigDict, stream: str) -> int:
    """Returns how many items of a stream a global batch holds."""
    return config.train.text_text_batch if stream == "text_text" else config.train.image_text_batch


def _image_text_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    images, texts = _image_finisher(config), _caption_finisher(config, tokenizer, pad, cloze=False)

    def finish(items, seed):
        return {"image": images(items["image"], seed), **texts(items, seed)}

    return _image_batches("image_text", config, skipped, start, finish)


def _view_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    texts = _caption_finisher(config, tokenizer, pad, cloze=config.method.get("cloze_weight", 0.0) > 0)
    size = config.train.image_text_batch

    def finish(items, seed):
        views = augment_views(items["image"], config.image_tower.image_size, config.augmentation, seed)
        return {**{f"view_{i}": _of_size(size, view) for i, view in enumerate(views)}, **texts(items, seed)}

    return _image_batches("views", config, skipped, start, finish)


def _caption_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    texts = _caption_finisher(config, tokenizer, pad, cloze=config.method.get("cloze_weight", 0.0) > 0)

    def finish(items, seed):
        return {name: value for name, value in texts(items, seed).items() if name != "image_id"}

    return _image_batches("captions", config, skipped, start, finish, images=False)


def _triple_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    images, size = _image_finisher(config), config.train.image_text_batch

    def finish(items, seed):
        items = swap_texts(items, seed)
        return {
            "image": images(items["image"], seed),
            "image_id": _fingerprint(items["image_id"]),
            **_text_pair(items, tokenizer, size, pad),
        }

    return _image_batches("triples", config, skipped, start, finish)


def _image_finisher(config: ConfigDict):
    """Returns the function from decoded images of a batch to what the image tower sees, given a seed."""
    return lambda images, seed: _of_size(config.train.image_text_batch, finish_images(images, config, seed))


def _caption_finisher(config: ConfigDict, tokenizer, pad: str, cloze: bool):
    """Returns the function from items, given a seed, to ids and tokens and, with `cloze`, masked tokens."""
    size = config.train.image_text_batch

    def finish(items, seed):
        tokens = _of_size(size, tokenizer(items["caption"], pad=pad))
        ids = {name: _fingerprint(items[key]) for name, key in (("image_id", "image_id"), ("caption_id", "caption"))}
        masked = {"cloze": mask_tokens(tokens, tokenizer, config.method.cloze_share, seed)} if cloze else {}
        return {**ids, "caption": tokens, **masked}

    return finish


def _image_batches(stream: str, config, skipped, start, finish, images: bool = True) -> tf.data.Dataset:
    """Batches of items from image-text records; `finish` makes what a method sees from items and a seed, int64 [2].

    With `images` False pictures are neither decoded nor checked.
    """
    data = config.data
    files = records.list_files(data.directory, records.IMAGE_TEXT, "train")
    parse, languages = _image_text_parser(stream, config)
    if stream == "triples":
        check_has_triples(files, parse)
    items = stream_items(files, parse, config, languages, "language", skipped, start, stream=0)

    def decode(item):
        return {**item, "image": read_image(item["image"], config.image_tower, tf.equal(item["problem"], ""))}

    def finish_batch(items):
        first = items["position"][0]
        seed = tf.stack([tf.cast(config.seed, tf.int64) + first[0], first[1]])
        return {**finish(items, seed), f"{stream}_position": items["position"]}

    numbered = map_or_drop(items, decode, skipped, "image that does not decode") if images else items.enumerate()
    usable = drop_problems(numbered, skipped, "image_id")
    size = config.train.image_text_batch
    return usable.batch(size, drop_remainder=True).map(finish_batch, num_parallel_calls=2, deterministic=True)


def _image_text_parser(stream: str, config: ConfigDict):
    """Returns the function from a serialised record to items, and the languages still to be chosen among them."""
    data = config.data
    if data.format not in ("mural", "img2dataset"):
        raise UserError(f"Unknown data.format {data.format!r}; known: mural, img2dataset.")
    if stream != "triples":
        parse = parse_image_text if data.format == "mural" else parse_img2dataset(data.default_language)
        return parse, data.image_text_languages
    if data.format != "mural":
        raise UserError(f"data.format={data.format} has one caption an image; triples need two: see docs/methods.md.")
    return parse_triples(data.image_text_languages), ()


def _text_pair_batches(config, tokenizer, skipped, start, pad) -> tf.data.Dataset:
    data, batch = config.data, config.train.text_text_batch
    if data.text_pairs not in TEXT_PAIR_SOURCES:
        raise UserError(f"Unknown data.text_pairs {data.text_pairs!r}; known: {', '.join(TEXT_PAIR_SOURCES)}.")
    kind, parse = TEXT_PAIR_SOURCES[data.text_pairs]
    files = records.list_files(data.directory, kind, "train")
    items = stream_items(files, parse, config, data.text_text_languages, "language_b", skipped, start, stream=1)
    items = drop_problems(items.enumerate(), skipped, "text_a")

    def finish(items):
        return {**_text_pair(items, tokenizer, batch, pad), "text_text_position": items["position"]}

    return items.batch(batch, drop_remainder=True).map(finish, num_parallel_calls=2, deterministic=True)


_STREAMS = {
    "image_text": _image_text_batches,
    "image_groups": image_group_batches,
    "views": _view_batches,
    "captions": _caption_batches,
    "triples": _triple_batches,
    "text_text": _text_pair_batches,
}


def _text_pair(items, tokenizer, batch: int, pad: str) -> dict:
    """Tokens of one width, and ids, of the items' `text_a` and `text_b`."""
    texts = [items["text_a"], items["text_b"]]
    if tokenizer.takes_languages:
        texts = [tag_language(text, items[f"language_{side}"]) for side, text in zip("ab", texts)]
    tokens = tokenizer(tf.concat(texts, axis=0), pad=pad)
    languages = tf.split(tokens["input_type_ids"][:, 0], 2) if tokenizer.takes_languages else ()
    return {
        **{f"text_{side}_language_id": value for side, value in zip("ab", languages)},
        "text_a": _of_size(batch, {name: value[:batch] for name, value in tokens.items()}),
        "text_b": _of_size(batch, {name: value[batch:] for name, value in tokens.items()}),
        "text_a_id": _fingerprint(items["text_a"]),
        "text_b_id": _fingerprint(items["text_b"]),
    }


def _with_wait_time(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Adds `data_wait_seconds`, how long the consumer waited for each batch.

    The parts of a zip are produced in order when the consumer asks: clock, batch, clock.
    """
    clock = tf.data.Dataset.range(np.iinfo(np.int64).max).map(lambda _: tf.timestamp())
    timed = tf.data.Dataset.zip((clock, batches, clock))

    def add(before, batch, after):
        return {**batch, "data_wait_seconds": tf.cast(after - before, tf.float32)[None]}

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # it would make the clocks measure the prefetcher
    return untuned(timed.map(add).with_options(options))
