"""What a run needs: parameters, memory, products; and how long a step takes, measured here or guessed from a peak.

Products and kept activations are read off the graphs of the built model (`graph_costs.py`), for a replica's part of the
batch and texts of full length. Here whole steps are measured, which leave nothing behind. On a machine that is not
here a step takes its operations divided by `UTILISATION` of the published peak: a guess, and printed as one.
`runs/dry_run.py` prints it all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.images import prepared_spec
from mural_tf.data.streams.image_groups import captions_per_image
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.encoders.kernels import compile_first_quietly, compiles_fused, fast_precision, set_fusion
from mural_tf.encoders.layers import forward_pass
from mural_tf.errors import UserError
from mural_tf.models import build_model, complete
from mural_tf.models.dual_encoder import TEXT_PAIRS, DualEncoder, trainable_parameters
from mural_tf.models.frozen import on_features
from mural_tf.optimizers import check_optimizer
from mural_tf.text import build_tokenizer
from mural_tf.text.tokens import TOKENS
from mural_tf.training.fit import check_train, compile_model, more_chunks
from mural_tf.training.graph_costs import Costs, gradient_costs
from mural_tf.training.prepare import BUILT, check_data, existing_vocabulary, sampled_vocabulary
from mural_tf.training.strategy import as_compiled

IMAGES, TEXTS, LOSSES = "image tower", "text tower", "losses"
TOWERS = (IMAGES, TEXTS)
ACTIVATIONS, GRADIENTS = "activations", "gradients"  # in memory
FREE = 0.1  # share of a replica's memory that is left to the compiler and to uncounted memory
WARM_UP, SECONDS = 8.0, 15.0  # of steps that are not counted, and of steps that are counted
MOST_OPERATIONS = {"CPU": 2e11, "GPU": 2e13}  # of a step that is measured here: larger batches are, in parts
HERE = "here"
UTILISATION = 0.4  # of the peak, a guess
MACHINES = {  # of a replica (a core of v3, a chip, a card): published TFLOP/s in bfloat16 (T4, V100: float32), GB
    "v3": (61.5, 16 * 1.073741824),
    "v4": (275, 32 * 1.073741824),
    "v5litepod": (197, 16),
    "v5p": (459, 95),
    "v6e": (918, 32),
    "gpu:t4": (8.1, 16),
    "gpu:v100": (15.7, 16),
    "gpu:l4": (121, 24),
    "gpu:a100": (312, 40),
    "gpu:a100-80": (312, 80),
    "gpu:h100": (989, 80),
}
NAMED_BY_CORES = ("v4", "v5p")  # a chip has two


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a run may use; bytes, and operations per second at the published peak, are of one replica.

    peak: 0 for this machine, whose memory is infinite where it is not known.
    """

    name: str
    replicas: int
    memory: float
    peak: float = 0.0

    @property
    def is_tpu(self) -> bool:
        return self.name != HERE and not self.name.startswith("gpu:")


def find_machine(name: str) -> Machine:
    """Returns the machine of a name: "v4-32", "v5litepod-64", "gpu:a100x8", "here"; raises `UserError` for others."""
    if name == HERE:
        cards = len(tf.config.list_logical_devices("GPU"))
        memory = math.inf if cards else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Machine(HERE, max(cards, 1), memory)
    match = re.fullmatch(r"(gpu:[a-z0-9-]+?)(?:x([1-9]\d*))?|([a-z0-9]+)-([1-9]\d*)", name)
    chip = (match[1] or match[3]) if match else ""
    if chip not in MACHINES:
        raise UserError(
            f"Unknown --tpu={name} of a dry run: expected a TPU's type and size as Google Cloud names it (v4-32), or "
            f"gpu:NAMExNUMBER (gpu:a100x8), of {', '.join(MACHINES)}."
        )
    size, (peak, memory) = int(match[2] or match[4] or 1), MACHINES[chip]
    return Machine(name, -(-size // 2) if chip in NAMED_BY_CORES else size, memory * 1e9, peak * 1e12)


@dataclasses.dataclass(frozen=True)
class Forecast:
    """All that is printed. Bytes, seconds, and operations of one replica.

    parameters: trainable numbers by part.
    rows: {part of a batch: rows of the global batch}.
    work: {tower, or losses: costs of one chunk, of the losses of a step}.
    memory: {what: bytes}.
    seconds: of a step; measured, or guessed where the machine is not here.
    """

    config: ConfigDict
    machine: Machine
    parameters: dict[str, int]
    rows: dict[str, int]
    work: dict[str, Costs]
    memory: dict[str, float]
    seconds: float = 0.0

    @property
    def chunks(self) -> int:
        """Chunks in which a replica encodes its part of a batch."""
        return self.config.train.micro_batches

    @property
    def fits(self) -> bool:
        """Whether a replica's memory is enough."""
        return self._room() >= 0

    def _room(self) -> float:
        """The bytes of a replica's memory that would stay free, beyond the bytes that should."""
        return (1 - FREE) * self.machine.memory - sum(self.memory.values())

    def operations(self, name: str) -> float:
        """Returns a replica's operations per step in a tower or the losses; towers run twice in chunks."""
        costs, chunks = self.work[name], self.chunks if name in TOWERS else 1
        forward = (2 if chunks > 1 else 1) * sum(costs.forward.values())
        return chunks * (forward + sum(costs.backward.values()))

    def least_chunks(self) -> int | None:
        """Returns the smallest `train.micro_batches` with which a step fits, or `None` where none does."""
        whole, config = self.memory[ACTIVATIONS] * self.chunks, self.config.copy_and_resolve_references()
        while (chunks := more_chunks(config, self.machine.replicas)) is not None:
            sum_of_gradients = self.memory[GRADIENTS] if self.chunks == 1 else 0.0
            if sum_of_gradients + whole / chunks - self.memory[ACTIVATIONS] <= self._room():
                return chunks
            config.train.micro_batches = chunks
        return None


def forecast(config: ConfigDict, tpu_type: str = HERE, restored: bool = False) -> Forecast:
    """Returns the forecast of a run with this configuration on a machine; on this one it takes a minute or two.

    Args:
      config: the resolved configuration.
      tpu_type: as `find_machine` takes it.
      restored: whether the run would start from trained weights.

    Raises:
      UserError: an unknown machine, batches that its replicas cannot share, data that is not there, or a model that
        cannot be built.
    """
    machine = find_machine(tpu_type)
    is_tpu = machine.name != HERE and not machine.name.startswith("gpu:")  # where XLA compiles whole steps
    config = complete(config).copy_and_resolve_references()
    if machine.name != HERE:  # precisions as a run there chooses them
        fast = not machine.name.startswith(("gpu:t4", "gpu:v100"))
        for tower in (config.image_tower, config.text_tower):
            tower.precision = fast_precision("image", fast, False) if tower.precision == "auto" else tower.precision
    config.train.jit = config.train.jit or is_tpu
    config = as_compiled(config, tf.distribute.get_strategy())
    check_optimizer(config.optimizer)
    check_train(config, machine.replicas, machine.name)
    # Which chains of cheap operations keep their inputs alone: XLA makes the chains of a whole step.
    compiled = ("off", "on") if config.train.jit else (config.train.fused, "off")
    before = set_fusion(compiled[machine.name != HERE])
    if machine.name == HERE and compiles_fused():
        compile_first_quietly()
    try:
        return _forecast(config, machine, restored)
    finally:
        set_fusion(before)


def _forecast(config: ConfigDict, machine: Machine, restored: bool) -> Forecast:
    tokenizer, vocabulary = None, None
    if _has_data(config.data):
        vocabulary = existing_vocabulary(config)
        with tempfile.TemporaryDirectory() as folder:  # one of a sample of the texts, where it is still to be built
            tokenizer = build_tokenizer(config, vocabulary or sampled_vocabulary(config, pathlib.Path(folder)))
    model = on_features(build_model(config, tokenizer.vocabulary_size if vocabulary else config.vocabulary.size))
    if tokenizer is not None:
        model.begin(tokenizer, restored)
    if model.towers is not model or any(embedding.is_given for embedding in model.used.values()):
        tokenizer = None  # columns of vectors are made when training begins
    compile_model(model, config)
    work = step_work(model, config, machine.replicas)
    memory = memory_of_replica(model, config, machine.replicas, work)
    whole = batch_specs(model, config, config.train.image_text_batch, config.train.text_text_batch)
    rows = {part: tf.nest.flatten(whole[part])[0].shape[0] for part in streams_of_parts(model)}
    forecast = Forecast(config, machine, parameters(model), rows, work, memory)
    operations = sum(map(forecast.operations, work))
    if machine.name == HERE:
        return dataclasses.replace(forecast, seconds=_measured(model, forecast, operations, tokenizer))
    return dataclasses.replace(forecast, seconds=operations / (UTILISATION * machine.peak))


def _has_data(data: ConfigDict) -> bool:
    """Whether there is data to measure; raises `UserError` for a folder that is named and not there."""
    try:
        check_data(data)
    except UserError:
        if data.source not in BUILT and (data.directory or data.sources):
            raise
        return False  # none is named, or a run builds it
    return True


def streams_of_parts(model: DualEncoder) -> dict[str, str]:
    """Returns {part of a batch: the stream that brings it}."""
    streams = {}
    for name in model.loss_weights():
        for embedding in model.tasks[name].compares:
            streams.setdefault(model.embeddings[embedding].part, model.tasks[name].stream)
    return streams


def batch_specs(model: DualEncoder, config: ConfigDict, image_text: int, text_text: int) -> dict:
    """Returns {name: nest of `tf.TensorSpec`} of a batch without places and tallies, of static shapes.

    `image_text`, `text_text`: items of the streams, as `train.image_text_batch` and `train.text_text_batch`.
    """
    pixels, length = prepared_spec(model.configuration.image_tower), config.text_tower.max_length
    images = image_text // captions_per_image(config)
    specs = {"image_id": tf.TensorSpec([images], tf.int64), "text_group_id": tf.TensorSpec([text_text], tf.int64)}
    specs["caption_id"] = tf.TensorSpec([image_text], tf.int64)
    for part, stream in streams_of_parts(model).items():
        rows = text_text if stream == TEXT_PAIRS else image_text
        if part in model.image_parts:
            specs[part] = tf.TensorSpec([images, *pixels.shape], pixels.dtype)
        elif part not in model.token_parts:
            is_state = part in model.text_parts
            width = model.text_encoder.embedding_size if is_state else model.embedding_size
            specs[part] = tf.TensorSpec([rows, width])
            specs[f"{part}_id"] = tf.TensorSpec([rows], tf.int64)
        else:
            specs[part] = dict.fromkeys(TOKENS, tf.TensorSpec([rows, length], tf.int32))
            if part == "cloze":  # a masked place of each text
                masked = dict.fromkeys(("places", "targets"), tf.TensorSpec([rows, 1], tf.int32))
                specs[part].update(masked, weights=tf.TensorSpec([rows, 1]))
            specs[f"{part}_id"] = tf.TensorSpec([rows], tf.int64)
            specs[f"{part}_language_id"] = tf.TensorSpec([rows], tf.int32)
    return specs


def batch_values(specs: Mapping) -> dict:
    """Returns a batch of such specs: even images, full texts of one token and language, and ids that all differ."""

    def values(name, spec):
        if isinstance(spec, dict):
            return {each: values(each, spec_of_part) for each, spec_of_part in spec.items()}
        if spec.dtype == tf.int64:
            return tf.range(spec.shape[0], dtype=tf.int64)
        is_language = name == "input_type_ids" or name.endswith("_language_id")
        return (tf.zeros if is_language else tf.ones)(spec.shape, spec.dtype)

    return values("", dict(specs))


def parameters(model: DualEncoder) -> dict[str, int]:
    """Returns {part of the model: its trainable numbers}."""
    counted = {}
    for name, part in model.weights_by_part().items():
        variables = part.trainable_variables if hasattr(part, "trainable_variables") else [part]
        counted[name] = sum(variable.shape.num_elements() for variable in variables)
    rest = trainable_parameters(model) - sum(counted.values())
    return {**counted, **({"others": rest} if rest > 0 else {})}


def step_work(model: DualEncoder, config: ConfigDict, replicas: int) -> dict[str, Costs]:
    """Returns the costs of a replica's step: of one chunk in each tower, and of the whole batch in the losses.

    Args:
      model: compiled.
      config: its `train.micro_batches` are the chunks.
      replicas: that share the batch.
    """
    train, by_tower = config.train, {tower: [] for tower in TOWERS}
    for name, embedding in model.used.items():  # functions in place of towers take texts
        by_tower[IMAGES if embedding.part in model.image_parts else TEXTS].append(name)

    def specs(parts):
        return batch_specs(model, config, train.image_text_batch // parts, train.text_text_batch // parts)

    def encode(batch):
        with forward_pass(tf.constant([0, 0])):
            return model.encode(batch, training=True)

    chunk, batch = specs(replicas * train.micro_batches), specs(1)
    with _known_sizes(model, min((chunk[part].shape[0] for part in model.image_parts), default=0)):
        groups = {tower: names for tower, names in by_tower.items() if names}
        work = gradient_costs(encode, [chunk], groups, model.trainable_variables)
    # A replica's losses are of its rows against the embeddings of the whole batch.
    counts = {name: tf.nest.flatten(batch[part])[0].shape[0] for name, (part, _) in model.embedding_shapes.items()}
    embeddings = {name: tf.TensorSpec([counts[name], width]) for name, (_, width) in model.embedding_shapes.items()}
    rows = {name: (0, count // replicas) for name, count in counts.items()}

    def objective(embeddings, ids):
        return {"loss": tf.add_n(list(model.objective(embeddings, ids, rows)[0].values()))}

    ids = {name: spec for name, spec in batch.items() if name.endswith("_id")}
    return {**work, **gradient_costs(objective, [embeddings, ids], {LOSSES: ["loss"]})}


@contextlib.contextmanager
def _known_sizes(model: DualEncoder, images: int, length_groups: int = 1) -> Iterator[None]:
    """Texts of one length, and BatchNorm's groups within so many `images` at once, which costs the same."""
    before, layers = model.text_tower.length_groups, {layer: layer.group for layer in model.normalization_layers()}
    model.text_tower.length_groups = length_groups
    for layer, group in layers.items():
        layer.group = group if isinstance(group, int) and images % group == 0 else "local"
    try:
        yield
    finally:
        model.text_tower.length_groups = before
        for layer, group in layers.items():
            layer.group = group


def memory_of_replica(model: DualEncoder, config: ConfigDict, replicas: int, work: Mapping[str, Costs]) -> dict:
    """Returns {what: bytes}; `work` comes from `step_work`."""
    train, towers = config.train, [work[tower] for tower in TOWERS if tower in work]
    moments = [weight for optimizer in model.optimizers.values() for weight in optimizer.weights]
    gradients = 4.0 * trainable_parameters(model) * len(model.optimizers)
    batch = batch_specs(model, config, train.image_text_batch // replicas, train.text_text_batch // replicas)
    return {
        "weights": _bytes(model.weights),
        "moments": _bytes(moments),
        GRADIENTS: gradients * (2 if train.micro_batches > 1 else 1),  # the sum, and a chunk's
        "weights in the compute precision": float(sum(costs.copies for costs in towers)),
        ACTIVATIONS: float(sum(costs.kept for costs in towers)),
        LOSSES: float(work[LOSSES].kept + work[LOSSES].copies),
        "batches": 2.0 * _bytes(tf.nest.flatten(batch)),  # one is trained on, one is on its way
    }


def _bytes(values) -> float:
    return float(sum(value.shape.num_elements() * value.dtype.size for value in values))


def _measured(model: DualEncoder, plan: Forecast, operations: float, tokenizer) -> float:
    """Returns the seconds of a whole step, of a replica's part of a batch or a part of that; others work meanwhile."""
    config, cards = plan.config.copy_and_resolve_references(), tf.config.list_logical_devices("GPU")
    names, parts = ("image_text_batch", "text_text_batch"), plan.machine.replicas
    most, sizes = MOST_OPERATIONS["GPU" if cards else "CPU"], [plan.config.train[name] for name in names]
    group = captions_per_image(config)
    while operations > most and all(size % (2 * parts * group * plan.chunks) == 0 for size in sizes):
        parts, operations = 2 * parts, operations / 2
    config.train.update({name: plan.config.train[name] // parts for name in names})
    print("Measuring steps …", flush=True)
    if tokenizer is None:
        images, texts = (config.train[name] for name in names)
        batches = tf.data.Dataset.from_tensors(batch_values(batch_specs(model, config, images, texts))).repeat()
    else:  # batches are as wide as their longest text on one CPU: everything else needs sizes that are known
        pad = "longest" if plan.machine.replicas == 1 and not (config.train.jit or cards) else "max_length"
        batches = training_batches(config, tokenizer, streams=model.streams, pad=pad)
    batches, train = iter(batches), model.make_train_function()
    with _known_sizes(model, config.train.image_text_batch // (group * plan.chunks), config.text_tower.length_groups):
        try:
            for limit in (WARM_UP, SECONDS):  # new shapes are compiled while it warms up
                begun, steps = time.monotonic(), 0
                while time.monotonic() - begun < limit or not steps:
                    tf.nest.map_structure(np.asarray, train(batches))
                    steps += config.train.steps_per_execution
        except tf.errors.OpError as error:
            reason = error.message.split("\n\t [[")[0].splitlines()[0]
            raise UserError(f"The data in {config.data.directory} cannot be read: {reason}") from None
    return (time.monotonic() - begun) / steps * parts / plan.machine.replicas
