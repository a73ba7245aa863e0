"""States of frozen towers: the vector that such a tower gives of each picture and each text, made once.

States are columns (`data/streams/columns.py`) next to the data, in `.states/`, where every run and every method with
the same tower takes them, or, where that folder cannot be written, in the run's workdir. They are float16, and a run
that was killed goes on from the finished part. A picture that does not decode has no state: streams skip it and count
it as ever. `model` is a `DualEncoder` with its towers; `frozen.py` trains heads on states.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import pathlib
import queue
import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.files import as_path
from mural_tf.backend import keras, without_noise
from mural_tf.data.images import prepare_image
from mural_tf.data.records import describe_files
from mural_tf.data.streams.columns import Column, ColumnFolder, Embed
from mural_tf.data.streams.pipeline import stream_class, stream_items, stream_sources
from mural_tf.data.streams.stream import fingerprint, fingerprints
from mural_tf.encoders.layers import IMAGE_HEAD, unit_range
from mural_tf.encoders.towers import computed_in, preparation
from mural_tf.text.tokens import TOKENS

FOLDER = ".states"
# Pictures and texts in one call of a tower. More texts are slower in float32, and faster in bfloat16.
PICTURES_PER_CALL = 32
TEXTS_PER_CALL = {"float32": 64, "bfloat16": 256}
# A block is embedded between two lines of progress; its encoded pictures are in memory together.
PICTURES_PER_BLOCK = 2**11
TEXTS_PER_BLOCK = 2**13
STATES = "state of the frozen tower"
TensorFunction = Callable[[tf.Tensor], tf.Tensor]
Items = Iterable[tuple[np.ndarray, Sequence[bytes]]]  # ids, int64 [B], and texts or encoded pictures


def digest_of(variables: Iterable[tf.Variable], *settings: object) -> str:
    """Returns 16 hexadecimal digits, a hash of a tower's weights and of `settings` that change its states, as JSON."""
    digest = hashlib.blake2b(digest_size=8)
    for variable in variables:
        digest.update(np.ascontiguousarray(variable.numpy()))
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def data_digest(config: ConfigDict, streams: Sequence[str], *fields: object) -> str:
    """Returns 16 hexadecimal digits: a hash of the streams' files, languages, and `fields`, strings such as "texts"."""
    data = config.data
    descriptions = []
    for stream in streams:
        for source, files in stream_sources(data, stream):
            descriptions.append(describe_files(source.directory, sorted(files)))
    # "" separates the lists: moving a language from one to the other must change the hash.
    selection = [data.text_pairs, *data.image_text_languages, "", *data.text_text_languages, "", *fields]
    content = json.dumps([descriptions, selection])
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


# Texts.


def text_states(model, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> Column:
    """Returns a column with the states of all texts that a run trains on, after embedding the texts without a state."""
    folder = _text_folder(model, config, workdir)
    made_for = data_digest(config, model.streams, "texts")
    with folder.lock():
        if not folder.is_made_for(made_for):
            print("Embedding all texts by the frozen tower, once …", flush=True)
            texts = texts_of(model, config, tokenizer)
            folder.extend(texts, texts_to_states(model, config, tokenizer), TEXTS_PER_BLOCK)
            folder.mark_complete(made_for, 0.0)  # every text has a state
        return folder.column(as_stored=True)


def states_of_texts(texts: Sequence[bytes], model, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> Column:
    """Returns a column with the states of `texts`, after embedding the texts without a state; it may have more."""
    folder = _text_folder(model, config, workdir)
    keys = fingerprints(texts)
    with folder.lock():
        column = folder.column(as_stored=True)
        if column.holds(keys).all():
            return column
        blocks = []
        for begin in range(0, len(texts), TEXTS_PER_BLOCK):
            block = slice(begin, begin + TEXTS_PER_BLOCK)
            blocks.append((keys[block], texts[block]))
        folder.extend(blocks, texts_to_states(model, config, tokenizer), TEXTS_PER_BLOCK)
        return folder.column(as_stored=True)


def existing_text_states(model, config: ConfigDict, workdir: pathlib.Path) -> KnownStates | None:
    """Returns the states of texts that runs with this tower have stored; `None` if no run has stored any."""
    folder = _states_folder(config, workdir)
    has_states = folder.is_dir() and any(folder.glob("texts-*"))
    if not has_states:  # checked first, because `_text_folder` makes a missing folder
        return None
    column = _text_folder(model, config, workdir).column(as_stored=True)
    return KnownStates(model, column)


class KnownStates:
    """Texts whose states are in a column, so that they need only a head.

    States are float16, so vectors differ from the tower's by some thousandths.
    """

    def __init__(self, model, column: Column):
        self._model = model
        self._column = column

    def with_fallback(self, embed_texts: TensorFunction, head: str) -> TensorFunction:
        """Returns a function of texts, string [B], to their vectors by `head`, float32 [B, D].

        It embeds texts without a state by `embed_texts`. It reads the column's files, so it runs eagerly, in no graph.
        """
        model = self._model
        column = self._column
        signature = [tf.TensorSpec([None, model.text_encoder.embedding_size])]
        project = tf.function(lambda rows: model.project_texts(rows, head), signature, autograph=False)

        def embed(texts: tf.Tensor) -> tf.Tensor:
            keys = fingerprint(texts).numpy()
            is_known = column.holds(keys)
            vectors = np.zeros([len(keys), model.embedding_size], np.float32)
            if is_known.any():
                states = column.find(keys[is_known])
                vectors[is_known] = project(tf.constant(states)).numpy()
            if not is_known.all():
                vectors[~is_known] = embed_texts(tf.boolean_mask(texts, ~is_known)).numpy()
            return tf.constant(vectors)

        return embed


# The fields of `vocabulary` that change a text's tokens. Their order is in the names of existing folders.
TOKEN_FIELDS = ("sha256", "layout", "cleaning", "lower_case", "strip_accents", "prompt")


def _text_folder(model, config: ConfigDict, workdir: pathlib.Path) -> ColumnFolder:
    """Returns the folder for the texts' states of a tower, whose name holds digests of its weights and settings."""
    tower = config.text_tower
    settings = [config.vocabulary[name] for name in TOKEN_FIELDS]
    settings.append(tower.max_length)
    settings += _precision_setting(tower, "text")
    if tower.pooling != "first":  # the same weights give other states
        settings.append(tower.pooling)
    digest = f"{digest_of(model.text_encoder.variables)}-{digest_of((), settings)}"
    return _folder(config, workdir, "texts", digest, model.text_encoder.embedding_size)


def texts_of(model, config: ConfigDict, tokenizer) -> Items:
    """Yields (ids, texts) of all texts of a run, block by block; a text may come again."""
    for stream in model.streams:
        entries = stream_class(stream).text_entries(config.data)
        for block in stream_items(config, tokenizer, stream, entries):
            for texts in block:  # of each entry
                yield fingerprints(texts), texts


def texts_to_states(model, config: ConfigDict, tokenizer) -> Embed:
    """Returns the function of texts to states of the model's text tower, float32 [N, H]."""

    def encode(tokens):
        (states,) = model.text_states([tokens], False)
        return tf.cast(states, tf.float32)

    return texts_to_vectors(encode, tokenizer, computed_in(config.text_tower, "text"))


def texts_to_vectors(encode: Callable[[dict], tf.Tensor], tokenizer, dtype: str = "float32") -> Embed:
    """Returns a function of N texts to float32 [N, H], which calls `encode` with few texts of similar length at a time.

    Args:
      encode: maps tokens, {name: int32 [B, T]}, to float32 [B, H].
      tokenizer: the run's tokenizer.
      dtype: the type that `encode` computes in, a key of `TEXTS_PER_CALL`.
    """
    per_call = TEXTS_PER_CALL[dtype]
    signature = [{name: tf.TensorSpec([None, None], tf.int32) for name in TOKENS}]
    traced = tf.function(encode, input_signature=signature, autograph=False)  # AutoGraph takes seconds

    def embed(texts: list[bytes]) -> np.ndarray:
        tokens = tokenizer(tf.constant(texts), pad="longest")
        ids = {name: values.numpy() for name, values in tokens.items() if name in TOKENS}  # [N, T]
        lengths = ids["input_mask"].sum(axis=1)  # [N]
        order = np.argsort(lengths, kind="stable")
        blocks = []
        for begin in range(0, len(texts), per_call):
            rows = order[begin : begin + per_call]
            longest = max(1, lengths[rows[-1]])  # the last row is the longest, with 0 pieces if all texts are empty
            block = {name: values[rows, :longest] for name, values in ids.items()}
            blocks.append(traced(block).numpy())
        return np.concatenate(blocks)[np.argsort(order)]  # in the texts' own order again

    return embed


# Pictures.


def image_states(model, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> Column:
    """Returns a column with the states of a run's pictures, after making missing states; zeros for damaged pictures."""
    tower, _ = split_image_tower(model.image_encoder)
    width = tower.output_shape[-1]

    def encode(images):
        return tower(unit_range(images), training=False)

    folder = _folder(config, workdir, "images", _image_digest(tower, config.image_tower), width)
    made_for = data_digest(config, _picture_streams(model), "images")
    with folder.lock():
        if not folder.is_made_for(made_for):
            print("Embedding all pictures by the frozen tower, once …", flush=True)
            embed = _pictures_to_states(encode, config.image_tower, width)
            folder.extend(pictures_of(model, config, tokenizer), embed, PICTURES_PER_BLOCK)
            folder.mark_complete(made_for, config.data.max_skipped_fraction)
        return folder.column(as_stored=True)


def _image_digest(tower: keras.Model, config: ConfigDict) -> str:
    """Returns the digests of a tower's weights and of the fields of `image_tower` that change its states."""
    settings = [preparation(config), *_precision_setting(config, "image")]
    if config.pooled_stages:  # the same weights give more numbers
        settings.append("pooled_stages")
    return f"{digest_of(tower.variables)}-{digest_of((), *settings)}"


def split_image_tower(image_encoder: keras.Model) -> tuple[keras.Model, keras.layers.Layer | None]:
    """Returns the part of an image tower that gives states, and the trained head above it; `None` without a head."""
    for layer in image_encoder.layers:
        if layer.name == IMAGE_HEAD:
            return keras.Model(image_encoder.input, layer.get_input_at(0)), layer
    return image_encoder, None


def pictures_of(model, config: ConfigDict, tokenizer) -> Items:
    """Yields (ids, encoded pictures) of all pictures of a run, block by block; a picture may come again."""
    for stream in _picture_streams(model):
        for ids, pictures in stream_items(config, tokenizer, stream, ("image_id", "image")):
            yield fingerprints(ids), pictures


def _picture_streams(model) -> list[str]:
    """Returns the model's streams that bring pictures."""
    return [stream for stream in model.streams if stream_class(stream).with_pictures]


def _pictures_to_states(encode: TensorFunction, tower: ConfigDict, width: int) -> Embed:
    """Returns a function of N encoded pictures to float32 [N, width], zeros for pictures that do not decode.

    `encode` maps uint8 [B, S, S, 3] to states; `tower` is the configuration's `image_tower`.
    """
    signature = [tf.TensorSpec([], tf.string)]
    prepare = tf.function(lambda data: prepare_image(data, tower), input_signature=signature, autograph=False)
    if tower.name == "efficientnet_lite" and not tf.config.list_logical_devices("GPU"):
        to_states = _lite_encoder(encode, tower.image_size)
    else:
        to_states = tf.function(encode, reduce_retracing=True, autograph=False)

    def embed(pictures: list[bytes]) -> np.ndarray:
        states = np.zeros([len(pictures), width], np.float32)
        for begin in range(0, len(pictures), PICTURES_PER_CALL):
            rows = []
            images = []
            for row, picture in enumerate(pictures[begin : begin + PICTURES_PER_CALL], start=begin):
                try:
                    image = prepare(tf.constant(picture))
                except tf.errors.OpError:
                    continue  # it does not decode: its state stays zeros, which streams skip and count
                rows.append(row)
                images.append(image)
            if rows:
                states[rows] = to_states(tf.stack(images))
        return states

    return embed


def _lite_encoder(encode: TensorFunction, side: int) -> Callable[[tf.Tensor], np.ndarray]:
    """Returns `encode` as a function of uint8 [B, S, S, 3] that runs on TensorFlow Lite, one picture on each processor.

    Lite's float32 kernels take a third of TensorFlow's time for depthwise convolutions on a processor (docs/speed.md).
    """
    workers = len(os.sched_getaffinity(0))
    free_interpreters = queue.SimpleQueue()
    for interpreter in _make_interpreters(encode, side, workers):
        free_interpreters.put(interpreter)
    pool = concurrent.futures.ThreadPoolExecutor(workers)

    def encode_one(picture: np.ndarray) -> np.ndarray:
        interpreter = free_interpreters.get()
        (pixels,) = interpreter.get_input_details()
        (output,) = interpreter.get_output_details()
        interpreter.set_tensor(pixels["index"], picture[np.newaxis].astype(np.float32))
        interpreter.invoke()
        (state,) = interpreter.get_tensor(output["index"])
        free_interpreters.put(interpreter)
        return state

    def encode_all(pictures: tf.Tensor) -> np.ndarray:
        states = list(pool.map(encode_one, pictures.numpy()))
        return np.stack(states)

    return encode_all


def _make_interpreters(encode: TensorFunction, side: int, count: int) -> list[tf.lite.Interpreter]:
    """Returns `count` interpreters of one thread each, which run `encode` on float32 [1, side, side, 3]."""
    signature = [tf.TensorSpec([1, side, side, 3], tf.float32)]
    traced = tf.function(lambda pixels: encode(tf.cast(pixels, tf.uint8)), input_signature=signature, autograph=False)
    interpreters = []
    with without_noise(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions recommend the package to which these kernels move
        content = tf.lite.TFLiteConverter.from_concrete_functions([traced.get_concrete_function()]).convert()
        for _ in range(count):
            interpreter = tf.lite.Interpreter(model_content=content, num_threads=1)
            interpreter.allocate_tensors()
            interpreters.append(interpreter)
    return interpreters


# Both.


def _folder(config: ConfigDict, workdir: pathlib.Path, modality: str, digest: str, width: int) -> ColumnFolder:
    """Returns the folder of a tower's states, float16 [N, width]; `modality` is "texts" or "images"."""
    folder = _states_folder(config, workdir) / f"{modality}-{digest}"
    return ColumnFolder(folder, width, "float16", digest, STATES)


def _states_folder(config: ConfigDict, workdir: pathlib.Path) -> pathlib.Path:
    """Returns `.states` in the data's folder, which runs share, or in the workdir if that is not local and writable."""
    if config.data.directory:
        folder = as_path(config.data.directory)
        if isinstance(folder, pathlib.Path) and folder.is_dir() and os.access(folder, os.W_OK):
            return folder / FOLDER
    return workdir / FOLDER


def _precision_setting(tower: ConfigDict, modality: str) -> list[str]:
    """Returns the type that a tower computes in as a list of settings for its digest; [] for float32.

    So folders of float32 states keep the names that they had before there was a choice.
    """
    dtype = computed_in(tower, modality)
    if dtype == "float32":
        return []
    return [dtype]
