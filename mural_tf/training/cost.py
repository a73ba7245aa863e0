"""The needs of a run on this machine: parameters, memory, and the seconds of steps that are measured here.

Steps are measured on the batch, or on a part of it where a step of the whole would take long: a step of a part takes
its share of the time. Nothing is left behind. `runs/dry_run.py` prints it all; `tpu_forecast.py` asks the TPU's own
compiler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.progress import announce
from mural_lite.registry import registered
from mural_tf.data.images import prepared_spec
from mural_tf.data.streams.pipeline import captions_per_image, training_batches
from mural_tf.encoders.kernels import compile_first_quietly, compiles_fused, set_fusion
from mural_tf.models import complete
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import TEXT_PAIRS, DualEncoder, trainable_parameters
from mural_tf.models.frozen import on_features
from mural_tf.optimizers import check_optimizer
from mural_tf.text import build_tokenizer
from mural_tf.text.tokens import TOKENS
from mural_tf.training.batch_sizes import check_train
from mural_tf.training.fit import compile_model
from mural_tf.training.prepare import check_data, existing_vocabulary, sampled_vocabulary
from mural_tf.training.strategy import as_compiled

WARM_UP = 8.0  # seconds of steps that are not counted
SECONDS = 15.0  # of steps that are counted
PROBE = 8  # items of each kind, at least, in the first measurement, which tells how large a part is measured
LONGEST = 4.0  # seconds that a measured step takes at most, about


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The figures that a dry run prints. Bytes and seconds are of one replica.

    Attributes:
      config: the complete configuration.
      replicas: cards of this machine, or 1.
      parameters: trainable numbers by part of the model.
      rows: {part of a batch: rows of the global batch}.
      memory: {name: bytes} of all that is there throughout a step.
      seconds: seconds of a step of the whole batch.
      share: the share of the global batch that was measured, 0..1.
      peak: the most bytes that this process, or the first card, has had.
    """

    config: ConfigDict
    replicas: int
    parameters: dict[str, int]
    rows: dict[str, int]
    memory: dict[str, float]
    seconds: float
    share: float
    peak: int

    @property
    def is_partial(self) -> bool:
        """Whether steps were measured on less than a replica's part of the batch."""
        return not math.isclose(self.share, 1 / self.replicas)


def measure(config: ConfigDict, restored: bool = False) -> Measurement:
    """Returns the parameters, memory and time per step of a run on this machine; measuring takes a minute.

    Args:
      config: the resolved configuration.
      restored: whether the run would start from trained weights.

    Raises:
      UserError: settings out of their range, batches that the replicas cannot share, data that is not there, or a model
        that cannot be built.
    """
    replicas = max(len(tf.config.list_logical_devices("GPU")), 1)
    config = as_compiled(complete(config).copy_and_resolve_references(), tf.distribute.get_strategy())
    check_optimizer(config.optimizer)
    check_train(config, replicas, "this machine")
    fusion = "off" if config.train.jit else config.train.fused
    fusion_before = set_fusion(fusion)
    if compiles_fused():
        compile_first_quietly()
    try:
        return _measure(config, replicas, restored)
    finally:
        set_fusion(fusion_before)


def _measure(config: ConfigDict, replicas: int, restored: bool) -> Measurement:
    """As `measure`, for a complete and checked configuration."""
    tokenizer, vocabulary_size = _tokenizer_and_size(config)
    model = on_features(build_model(config, vocabulary_size))
    if tokenizer is not None:
        model.begin(tokenizer, restored)
    takes_columns = model.towers is not model or any(embedding.is_given for embedding in model.used.values())
    if takes_columns:
        tokenizer = None  # columns of vectors are made when training begins, so steps are measured on invented values
    compile_model(model, config)
    announce("Measuring steps …")
    parts = _parts_to_measure(model, config, replicas)
    seconds = _seconds_of_step(model, config, tokenizer, parts, replicas) * parts / replicas
    return Measurement(
        config=config,
        replicas=replicas,
        parameters=parameters(model),
        rows=_rows_of_parts(model, config),
        memory=memory_of_replica(model, config, replicas),
        seconds=seconds,
        share=1 / parts,
        peak=_peak_memory(),
    )


def _tokenizer_and_size(config: ConfigDict):
    """Returns a tokenizer for the data (`None` without data), and the size of the vocabulary that a run would have.

    Where a run would build its vocabulary, the tokenizer has a smaller vocabulary of a few texts.
    """
    if not _has_data(config.data):
        return None, config.vocabulary.size
    vocabulary = existing_vocabulary(config)
    if vocabulary is not None:
        tokenizer = build_tokenizer(config, vocabulary)
        return tokenizer, tokenizer.vocabulary_size
    with tempfile.TemporaryDirectory() as folder:
        sampled = sampled_vocabulary(config, pathlib.Path(folder))
        return build_tokenizer(config, sampled), config.vocabulary.size


def _rows_of_parts(model: DualEncoder, config: ConfigDict) -> dict[str, int]:
    """Returns {part of a batch: its rows in the global batch}."""
    specs = batch_specs(model, config, config.train.image_text_batch, config.train.text_text_batch)
    rows = {}
    for part in streams_of_parts(model):
        first_spec = tf.nest.flatten(specs[part])[0]  # all tensors of a part have as many rows
        rows[part] = first_spec.shape[0]
    return rows


def _has_data(data: ConfigDict) -> bool:
    """Whether there is data to measure; raises `UserError` for a folder that is named and not there."""
    try:
        check_data(data)
    except UserError:
        is_built_by_run = data.source in registered("mural.data")
        is_named = data.directory or data.sources
        if is_named and not is_built_by_run:
            raise
        return False
    return True


def streams_of_parts(model: DualEncoder) -> dict[str, str]:
    """Returns {part of a batch: the stream that brings it}, such as {"image": "image_text", "text_a": "text_text"}."""
    streams = {}
    for name in model.loss_weights():
        for embedding in model.tasks[name].compares:
            streams.setdefault(model.embeddings[embedding].part, model.tasks[name].stream)
    return streams


def batch_specs(model: DualEncoder, config: ConfigDict, image_text: int, text_text: int) -> dict:
    """Returns {name: nest of `tf.TensorSpec`} of a batch without places and tallies, of static shapes.

    Args:
      model: the model that takes the batch.
      config: the whole configuration.
      image_text, text_text: items of the streams, as `train.image_text_batch` and `train.text_text_batch`.
    """
    images = image_text // captions_per_image(config)
    pixels = prepared_spec(model.configuration.image_tower)
    specs = {"image_id": _ids(images), "caption_id": _ids(image_text), "text_group_id": _ids(text_text)}
    for part, stream in streams_of_parts(model).items():
        rows = image_text
        if stream == TEXT_PAIRS:
            rows = text_text
            for side in ("text_a_id", "text_b_id"):  # of both texts, also where a method embeds only one of them
                specs[side] = _ids(rows)
        if part in model.image_parts:
            specs[part] = tf.TensorSpec([images, *pixels.shape], pixels.dtype)
            continue
        specs[f"{part}_id"] = _ids(rows)
        if part in model.token_parts:
            specs[part] = _token_specs(part, rows, config.text_tower.max_length)
            specs[f"{part}_language_id"] = tf.TensorSpec([rows], tf.int32)
        else:
            specs[part] = tf.TensorSpec([rows, _column_width(model, part)])
    return specs


def _ids(rows: int) -> tf.TensorSpec:
    """Returns the spec of a column of ids."""
    return tf.TensorSpec([rows], tf.int64)


def _token_specs(part: str, rows: int, length: int) -> dict[str, tf.TensorSpec]:
    """Returns the specs of tokenized texts; the part "cloze" also has a masked place of each text."""
    specs = dict.fromkeys(TOKENS, tf.TensorSpec([rows, length], tf.int32))
    if part == "cloze":
        specs["places"] = tf.TensorSpec([rows, 1], tf.int32)
        specs["targets"] = tf.TensorSpec([rows, 1], tf.int32)
        specs["weights"] = tf.TensorSpec([rows, 1])
    return specs


def _column_width(model: DualEncoder, part: str) -> int:
    """Returns the numbers per row of a column of vectors: states, which still go through a head, or embeddings."""
    if part in model.text_parts:
        return model.text_encoder.embedding_size
    return model.embedding_size


def batch_values(specs: Mapping) -> dict:
    """Returns a batch for specs of `batch_specs`: even images, full texts of one token and language, different ids."""

    def values_for(name, spec):
        if isinstance(spec, dict):
            return {each: values_for(each, spec_of_part) for each, spec_of_part in spec.items()}
        if spec.dtype == tf.int64:
            return tf.range(spec.shape[0], dtype=tf.int64)
        if name == "input_type_ids" or name.endswith("_language_id"):
            return tf.zeros(spec.shape, spec.dtype)
        return tf.ones(spec.shape, spec.dtype)

    return {name: values_for(name, spec) for name, spec in specs.items()}


def parameters(model: DualEncoder) -> dict[str, int]:
    """Returns {part of the model: how many trainable numbers it has}, with the rest as "others"."""
    counts = {}
    for name, part in model.weights_by_part().items():
        variables = part.trainable_variables if hasattr(part, "trainable_variables") else [part]  # or a variable
        counts[name] = sum(variable.shape.num_elements() for variable in variables)
    rest = trainable_parameters(model) - sum(counts.values())
    if rest > 0:
        counts["others"] = rest
    return counts


def memory_of_replica(model: DualEncoder, config: ConfigDict, replicas: int) -> dict[str, float]:
    """Returns {"weights", "moments", "gradients" or "batches": bytes}; activations are not counted."""
    moments = []
    for optimizer in model.optimizers.values():
        moments += optimizer.weights
    train = config.train
    batch = batch_specs(model, config, train.image_text_batch // replicas, train.text_text_batch // replicas)
    return {
        "weights": _bytes(model.weights),
        "moments": _bytes(moments),
        "gradients": 4.0 * trainable_parameters(model) * len(model.optimizers),  # float32, of each optimiser's loss
        "batches": 2.0 * _bytes(tf.nest.flatten(batch)),  # one is trained on, one is on its way
    }


def _bytes(values) -> float:
    """Returns the bytes of variables or specs together."""
    return float(sum(value.shape.num_elements() * value.dtype.size for value in values))


def _peak_memory() -> int:
    """Returns the most bytes that the first card or, without cards, this process has had."""
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _parts_to_measure(model: DualEncoder, config: ConfigDict, replicas: int) -> int:
    """Returns into how many equal parts the batch is cut to measure steps of one part: replicas times a power of 2.

    There are as few as possible so that a step of one part takes at most about `LONGEST` seconds.
    """
    sizes = (config.train.image_text_batch, config.train.text_text_batch)
    group = captions_per_image(config) * config.train.micro_batches  # items that no cut divides
    choices = [replicas]
    while all(size % (2 * choices[-1] * group) == 0 for size in sizes):
        choices.append(2 * choices[-1])
    # One step of the smallest part that has `PROBE` items of each kind tells how long larger parts take.
    probe_parts = replicas
    for parts in choices:
        if min(sizes) // parts >= PROBE:
            probe_parts = parts
    if probe_parts == replicas:
        return replicas
    probe_seconds = _seconds_of_step(model, config, None, probe_parts, replicas, warm_up=0.0, counted=0.0)
    for parts in choices:
        if probe_seconds * probe_parts / parts <= LONGEST:
            return parts
    return choices[-1]


def _seconds_of_step(
    model: DualEncoder,
    config: ConfigDict,
    tokenizer,
    parts: int,
    replicas: int,
    warm_up: float = WARM_UP,
    counted: float = SECONDS,
) -> float:
    """Returns the seconds of a step of one of `parts` of the batch, input included.

    Args:
      model: a compiled model.
      config: the complete configuration.
      tokenizer: for steps on the data; `None`: on invented values.
      parts: into how many parts the batch is cut.
      replicas: how many replicas share a batch.
      warm_up: seconds of steps that are not counted, in which new shapes are compiled.
      counted: seconds of steps that are counted. Both times have at least one call of the training function.

    Raises:
      UserError: the data cannot be read.
    """
    config = config.copy_and_resolve_references()
    for name in ("image_text_batch", "text_text_batch"):
        config.train[name] //= parts
    batches = iter(_batches_to_measure(model, config, tokenizer, replicas))
    train = model.make_train_function()

    def seconds_per_step(limit: float) -> float:
        begun = time.monotonic()
        steps = 0
        while steps == 0 or time.monotonic() - begun < limit:
            tf.nest.map_structure(np.asarray, train(batches))
            steps += config.train.steps_per_execution
        return (time.monotonic() - begun) / steps

    images = config.train.image_text_batch // (captions_per_image(config) * config.train.micro_batches)
    try:
        with _groups_within(model, images):
            seconds_per_step(warm_up)
            return seconds_per_step(counted)
    except tf.errors.OpError as error:
        reason = error.message.split("\n\t [[")[0].splitlines()[0]  # without the list of nodes
        raise UserError(f"The data in {config.data.directory} cannot be read: {reason}") from None


def _batches_to_measure(model: DualEncoder, config: ConfigDict, tokenizer, replicas: int) -> tf.data.Dataset:
    """Returns batches of the data or, without a tokenizer, of invented values."""
    if tokenizer is None:
        specs = batch_specs(model, config, config.train.image_text_batch, config.train.text_text_batch)
        return tf.data.Dataset.from_tensors(batch_values(specs)).repeat()
    pad = "max_length"
    if replicas == 1 and not config.train.jit and not tf.config.list_logical_devices("GPU"):
        pad = "longest"  # as `fit.py` has it: all devices but a single CPU need sizes that are known
    return training_batches(config, tokenizer, streams=model.streams, pad=pad)


@contextlib.contextmanager
def _groups_within(model: DualEncoder, images: int) -> Iterator[None]:
    """Sets BatchNorm groups that are "global" or do not divide `images` to "local", of equal cost; restores them."""
    groups = {layer: layer.group for layer in model.normalization_layers()}
    for layer, group in groups.items():
        if not isinstance(group, int) or images % group:
            layer.group = "local"
    try:
        yield
    finally:
        for layer, group in groups.items():
            layer.group = group
