"""States of frozen towers: what a tower that is not trained gives of each picture and each text, made once.

A step then costs what the heads cost. States are stored next to the data (`.states/`), where every run and every method
with the same tower takes them, or, where that folder cannot be written, in the run's workdir. They are float16, in the
form of `targets.py`, and a run that was killed goes on from the finished part. A picture that does not decode has no
state: streams skip it and count it as ever.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import queue
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.images import prepare_image
from mural_tf.data.records import describe_files
from mural_tf.data.streams.pipeline import stream_class, stream_items, stream_sources
from mural_tf.data.streams.stream import fingerprint
from mural_tf.data.streams.targets import Embed, Targets, TargetTable
from mural_tf.encoders.towers import computed_in, preparation
from mural_tf.files import as_path
from mural_tf.quiet import without_noise
from mural_tf.text.tokens import TOKENS

FOLDER = ".states"
# Of a tower. More texts are slower in float32, and faster in bfloat16.
PICTURES_PER_CALL, TEXTS_PER_CALL = 32, {"float32": 64, "bfloat16": 256}
# Embedded between two lines that say how far it is; encoded pictures of a block are in memory together.
PICTURES_PER_BLOCK, TEXTS_PER_BLOCK = 2**11, 2**13
STATES = "state of the frozen tower"


def digest_of(variables: Iterable[tf.Variable], *settings: object) -> str:
    """Returns 16 hexadecimal digits for a tower's answers: a hash of its weights, and settings as JSON."""
    summed = hashlib.blake2b(digest_size=8)
    for variable in variables:
        summed.update(np.ascontiguousarray(variable.numpy()))
    summed.update(json.dumps(settings, sort_keys=True, default=str).encode())
    return summed.hexdigest()


def data_digest(config: ConfigDict, streams: Sequence[str], *fields: object) -> str:
    """Returns 16 hexadecimal digits for a run's pictures and texts: a hash of files, languages, and `fields`."""
    files = [
        describe_files(source.directory, sorted(files))
        for stream in streams
        for source, files in stream_sources(config.data, stream)
    ]
    data = config.data
    chosen = [data.text_pairs, *data.image_text_languages, "", *data.text_text_languages, "", *fields]
    return hashlib.blake2b(json.dumps([files, chosen]).encode(), digest_size=8).hexdigest()


def text_states(
    config: ConfigDict,
    tokenizer,
    workdir: pathlib.Path,
    streams: Sequence[str],
    encode: Callable,
    tower: str,
    width: int,
) -> TargetTable:
    """Returns the states of all texts of streams by the texts' ids.

    Args:
      config: a complete configuration.
      tokenizer: of the text tower.
      workdir: of the run.
      streams: names of the streams that bring the texts.
      encode: tokens, int32 [B, T] each, to float32 [B, width].
      tower: `digest_of` the tower.
      width: of a state.
    """
    states = _folder_of_texts(config, workdir, tower, width)
    made_for = data_digest(config, streams, "texts")
    with states.lock():
        if not states.is_made_for(made_for):
            print("Embedding all texts by the frozen tower, once …", flush=True)
            embed = of_texts(encode, tokenizer, computed_in(config.text_tower, "text"))
            states.extend(_texts_of(config, tokenizer, streams), embed, TEXTS_PER_BLOCK)
            states.finish(made_for, 0.0)
        return states.table(as_stored=True)


def states_of(
    texts: Sequence[bytes],
    config: ConfigDict,
    tokenizer,
    workdir: pathlib.Path,
    encode: Callable,
    tower: str,
    width: int,
) -> TargetTable:
    """Returns states that hold these texts' states; the states that other runs with this tower made are there, too.

    Arguments are as of `text_states`.
    """
    states = _folder_of_texts(config, workdir, tower, width)
    keys = fingerprint(tf.constant(texts, tf.string)).numpy()
    with states.lock():
        table = states.table(as_stored=True)
        if table.holds(keys).all():
            return table
        begins = range(0, len(texts), TEXTS_PER_BLOCK)
        blocks = ((keys[n : n + TEXTS_PER_BLOCK], texts[n : n + TEXTS_PER_BLOCK]) for n in begins)
        states.extend(blocks, of_texts(encode, tokenizer, computed_in(config.text_tower, "text")), TEXTS_PER_BLOCK)
        return states.table(as_stored=True)


def image_states(
    config: ConfigDict,
    tokenizer,
    workdir: pathlib.Path,
    streams: Sequence[str],
    encode: Callable,
    tower: str,
    width: int,
) -> tuple[TargetTable, np.ndarray]:
    """Returns the states of all pictures of streams by the pictures' ids, and the ids of pictures that do not decode.

    `encode` maps uint8 [B, S, S, 3] to float32 [B, width]; other arguments are as of `text_states`.
    """
    streams = [stream for stream in streams if stream_class(stream).with_pictures]
    settings = [preparation(config.image_tower), *_rounded_to(config.image_tower, "image")]
    states = _folder(config, workdir, "images", f"{tower}-{digest_of((), *settings)}", width)
    made_for = data_digest(config, streams, "images")
    with states.lock():
        if not states.is_made_for(made_for):
            print("Embedding all pictures by the frozen tower, once …", flush=True)
            embed = _of_pictures(encode, config.image_tower, width)
            states.extend(_pictures_of(config, tokenizer, streams), embed, PICTURES_PER_BLOCK)
            states.finish(made_for, config.data.max_skipped_fraction)
        table = states.table(as_stored=True)
    return table, table.without_vector()


def made_text_states(
    config: ConfigDict, workdir: pathlib.Path, tower: Callable[[], str], width: int
) -> TargetTable | None:
    """Returns the states of texts that runs with this tower have made, `None` where no such states lie.

    Arguments are as of `text_states`; `tower` is called only where states of any tower lie.
    """
    root = _place(config, workdir) / FOLDER
    if not (isinstance(root, pathlib.Path) and root.is_dir() and any(root.glob("texts-*"))):
        return None
    folder = root / f"texts-{_digest_of_texts(config, tower())}"
    if not folder.is_dir():
        return None
    return Targets(folder, width, "float16", folder.name.removeprefix("texts-"), STATES).table(as_stored=True)


def _folder_of_texts(config: ConfigDict, workdir: pathlib.Path, tower: str, width: int) -> Targets:
    return _folder(config, workdir, "texts", _digest_of_texts(config, tower), width)


def _digest_of_texts(config: ConfigDict, tower: str) -> str:
    vocabulary = config.vocabulary
    pieces = [vocabulary[name] for name in ("sha256", "layout", "cleaning", "lower_case", "strip_accents", "prompt")]
    pieces += [config.text_tower.max_length, *_rounded_to(config.text_tower, "text")]
    return f"{tower}-{digest_of((), pieces)}"


def _rounded_to(tower: ConfigDict, modality: str) -> list[str]:
    """What tells the states of a tower that computes in bfloat16 from others."""
    return [dtype for dtype in (computed_in(tower, modality),) if dtype != "float32"]


def _folder(config: ConfigDict, workdir: pathlib.Path, modality: str, digest: str, width: int) -> Targets:
    return Targets(_place(config, workdir) / FOLDER / f"{modality}-{digest}", width, "float16", digest, STATES)


def _place(config: ConfigDict, workdir: pathlib.Path) -> pathlib.Path:
    """Returns the data's folder, where runs share states, or the run's where that cannot be written."""
    folder = as_path(config.data.directory) if config.data.directory else workdir
    return folder if isinstance(folder, pathlib.Path) and folder.is_dir() and os.access(folder, os.W_OK) else workdir


def _texts_of(config: ConfigDict, tokenizer, streams: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ids and texts."""
    for stream in streams:
        for block in stream_items(config, tokenizer, stream, stream_class(stream).text_entries(config.data)):
            for texts in block:
                yield fingerprint(tf.constant(texts)).numpy(), texts


def _pictures_of(config: ConfigDict, tokenizer, streams: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ids and encoded pictures."""
    for stream in streams:
        for ids, pictures in stream_items(config, tokenizer, stream, ("image_id", "image")):
            yield fingerprint(tf.constant(ids)).numpy(), pictures


def of_texts(encode: Callable[[dict], tf.Tensor], tokenizer, dtype: str = "float32") -> Embed:
    """Returns a function of tokens, computed in `dtype`, as one of texts: some of about one length at a time."""
    per_call = TEXTS_PER_CALL[dtype]
    signature = [{name: tf.TensorSpec([None, None], tf.int32) for name in TOKENS}]
    traced = tf.function(encode, input_signature=signature, autograph=False)  # AutoGraph takes seconds

    def embed(texts: list[bytes]) -> np.ndarray:
        tokens = tokenizer(tf.constant(texts), pad="longest")
        ids = {name: values.numpy() for name, values in tokens.items() if name in TOKENS}  # [N, T]
        lengths = ids["input_mask"].sum(axis=1)
        order, states = np.argsort(lengths, kind="stable"), None
        for begin in range(0, len(texts), per_call):
            rows = order[begin : begin + per_call]
            longest = max(1, lengths[rows[-1]])
            block = traced({name: values[rows, :longest] for name, values in ids.items()}).numpy()
            states = np.zeros([len(texts), block.shape[1]], block.dtype) if states is None else states
            states[rows] = block
        return states

    return embed


def _of_pictures(encode: Callable[[tf.Tensor], tf.Tensor], tower: ConfigDict, width: int) -> Embed:
    """Returns a function of prepared pixels as one of encoded pictures; zeros for pictures that do not decode."""
    signature = [tf.TensorSpec([], tf.string)]
    prepare = tf.function(lambda data: prepare_image(data, tower), input_signature=signature, autograph=False)
    traced = tf.function(encode, reduce_retracing=True, autograph=False)
    if tower.name == "efficientnet_lite" and not tf.config.list_logical_devices("GPU"):
        traced = _by_lite_runtime(encode, tower.image_size)

    def embed(pictures: list[bytes]) -> np.ndarray:
        states = np.zeros([len(pictures), width], np.float32)
        for begin in range(0, len(pictures), PICTURES_PER_CALL):
            prepared = {}
            for row in range(begin, min(begin + PICTURES_PER_CALL, len(pictures))):
                with contextlib.suppress(tf.errors.OpError):
                    prepared[row] = prepare(tf.constant(pictures[row]))
            if prepared:
                states[list(prepared)] = traced(tf.stack(list(prepared.values())))
        return states

    return embed


def _by_lite_runtime(encode: Callable[[tf.Tensor], tf.Tensor], side: int) -> Callable[[tf.Tensor], np.ndarray]:
    """Returns `encode` of uint8 [B, S, S, 3] by TensorFlow Lite's float32 kernels, one picture on each processor.

    They take a third of TensorFlow's time for depthwise convolutions on a processor (docs/speed.md).
    """
    signature = [tf.TensorSpec([1, side, side, 3], tf.float32)]
    traced = tf.function(lambda pixels: encode(tf.cast(pixels, tf.uint8)), input_signature=signature, autograph=False)
    free: queue.SimpleQueue = queue.SimpleQueue()
    workers = len(os.sched_getaffinity(0))
    with without_noise(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions tell of a package of its own that has these kernels, too
        content = tf.lite.TFLiteConverter.from_concrete_functions([traced.get_concrete_function()]).convert()
        for _ in range(workers):
            interpreter = tf.lite.Interpreter(model_content=content, num_threads=1)
            interpreter.allocate_tensors()
            free.put(interpreter)
    pool = concurrent.futures.ThreadPoolExecutor(workers)

    def run(picture: np.ndarray) -> np.ndarray:
        interpreter = free.get()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], picture[np.newaxis].astype(np.float32))
        interpreter.invoke()
        state = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])[0]
        free.put(interpreter)
        return state

    return lambda pictures: np.stack(list(pool.map(run, pictures.numpy())))
