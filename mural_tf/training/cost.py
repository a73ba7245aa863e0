"""What a run would need and how long it would take, on this machine or on one that is not there.

Parameters, products and kept activations are read off the graphs of the built model (`graph_costs.py`). What the input
takes the processors is measured here, and for `--tpu_type=here` each tower and a few steps, which leave nothing behind.
On other machines a step takes what published peaks, times the shares of them in `ASSUMED`, allow. `runs/dry_run.py`
prints it all.
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
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data import records
from mural_tf.data.images import prepared_spec
from mural_tf.data.streams.image_groups import captions_per_image
from mural_tf.data.streams.mixture import Source
from mural_tf.data.streams.pipeline import batch_size, part_name, stream_sources, training_batches
from mural_tf.data.tfrecord import FRAME
from mural_tf.encoders.kernels import compile_first_quietly, compiles_fused, fast_precision, set_fusion
from mural_tf.encoders.layers import forward_pass
from mural_tf.errors import UserError
from mural_tf.models import build_model, complete
from mural_tf.models.dual_encoder import TEXT_PAIRS, DualEncoder, trainable_parameters
from mural_tf.optimizers import check_optimizer
from mural_tf.text import build_tokenizer
from mural_tf.text.tokens import TOKENS
from mural_tf.training.fit import check_train, compile_model, more_chunks
from mural_tf.training.graph_costs import Costs, gradient_costs
from mural_tf.training.prepare import BUILT, check_data, existing_vocabulary, sampled_vocabulary
from mural_tf.training.strategy import as_compiled
from mural_tf.training.workdir import threads

IMAGES, TEXTS, LOSSES, STEPS = "image tower", "text tower", "losses", "whole steps"
TOWERS = (IMAGES, TEXTS)
ACTIVATIONS, GRADIENTS = "activations", "gradients"  # in memory
FREE = 0.1  # share of a replica's memory that is left to the compiler and what is not counted
LAUNCH = 0.002  # seconds, assumed: no step is shorter, however small the model
ASSUMED = {  # shares of the published peaks and bandwidths that a run reaches
    IMAGES: 0.2,  # of the peak: depthwise convolutions and small maps leave matrix units idle
    TEXTS: 0.4,  # of the peak: large matrix products
    LOSSES: 0.4,
    "memory": 0.5,  # of its bandwidth, by the optimiser
    "exchange": 0.5,  # of the bandwidth between replicas
}
WARM_UP, SECONDS = 8.0, 15.0  # of steps that are not counted, and of those that are
MOST_OPERATIONS = {"CPU": 2e11, "GPU": 2e13}  # of a step that is measured here: larger batches are, in parts
INPUT_SECONDS = 6.0  # for which the input is measured, in batches of `SMALLEST_BATCH` or more
SMALLEST_BATCH = 256
SAMPLE = 256  # records by which the others are estimated

# Machines, by published numbers; none was measured. A replica is what TensorFlow calls a core: a TensorCore of a v3, a
# chip of later TPUs, a GPU. TPUs: cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e; the exchange is the pod's all-reduce
# bandwidth divided by its chips, of v5p that between chips. GPUs: NVIDIA's data sheets, dense bfloat16 on tensor cores
# (none before A100), float32 without TensorFloat-32, NVLink or PCIe in both directions; processors of Google Cloud's.
HERE = "here"
KINDS = {  # TFLOP/s in bfloat16 and float32; GB; GB/s of memory and exchange; replicas and processors of a host
    "v3": (61.5, 61.5 / 6, 16 * 1.073741824, 450, 166, 8, 96),  # six bfloat16 products make one in float32
    "v4": (275, 275 / 6, 32 * 1.073741824, 1200, 268, 4, 240),
    "v5litepod": (197, 197 / 6, 16, 819, 200, 4, 112),
    "v5p": (459, 459 / 6, 95, 2765, 600, 4, 208),
    "v6e": (918, 918 / 6, 32, 1638, 400, 4, 180),
    "gpu:t4": (8.1, 8.1, 16, 320, 32, 4, 96),
    "gpu:v100": (15.7, 15.7, 16, 900, 300, 8, 96),
    "gpu:l4": (121, 30.3, 24, 300, 64, 8, 96),
    "gpu:a100": (312, 19.5, 40, 1555, 600, 8, 96),
    "gpu:a100-80": (312, 19.5, 80, 2039, 600, 8, 96),
    "gpu:h100": (989, 67, 80, 3350, 900, 8, 208),
}
SLICES = (1, 4, 8, 16, 32, 64, 128, 256)  # chips of a v5litepod or v6e; others have a multiple of 8 cores
ONE_HOST = {"v5litepod": {1: 24, 4: 112, 8: 224}, "v6e": {1: 44, 4: 180, 8: 180}}  # processors of VMs of so many chips


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a run may use; bytes, and bytes or operations a second, are of one replica.

    peak: {dtype of products: operations a second}; empty for this machine, whose memory is infinite where unknown.
    bandwidth, exchange: of its memory, and with other replicas.
    """

    name: str
    replicas: int
    hosts: int
    processors: int
    memory: float
    peak: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bandwidth: float = 0.0
    exchange: float = 0.0

    @property
    def is_tpu(self) -> bool:
        """Whether XLA compiles whole steps."""
        return self.name != HERE and not self.name.startswith("gpu:")


def find_machine(name: str) -> Machine:
    """Returns the machine of a name: "v4-32", "v5litepod-64", "gpu:a100x8", "here"; raises `UserError` for others."""
    if name == HERE:
        cards = len(tf.config.list_logical_devices("GPU"))
        memory = math.inf if cards else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Machine(HERE, max(cards, 1), 1, threads(), memory)
    match = re.fullmatch(r"(gpu:[a-z0-9-]+?)(?:x(\d+))?|([a-z0-9]+)-(\d+)", name)
    kind, size = (match[1] or match[3], int(match[2] or match[4] or 1)) if match else ("", 0)
    is_whole = size > 0 if kind.startswith("gpu:") else size in SLICES if kind in ONE_HOST else size and size % 8 == 0
    if kind not in KINDS or not is_whole:
        tpus = ", ".join(kind for kind in KINDS if ":" not in kind)
        gpus = ", ".join(kind.removeprefix("gpu:") for kind in KINDS if ":" in kind)
        raise UserError(
            f"Unknown --tpu_type={name}: expected {HERE}; a TPU's type and size as Google Cloud names it, of {tpus}, "
            "such as v4-32 or v5litepod-64 (v3, v4, v5p: multiples of 8; v5litepod, v6e: "
            f"{', '.join(map(str, SLICES))}); or gpu:NAMExNUMBER of {gpus}, such as gpu:a100x8."
        )
    bfloat16, float32, memory, bandwidth, exchange, per_host, processors = KINDS[kind]
    replicas = size // 2 if kind in ("v4", "v5p") else size  # named by TensorCores, of which a chip has two
    alone = ONE_HOST.get(kind, {}).get(replicas)
    hosts = 1 if alone else -(-replicas // per_host)
    peak = {"bfloat16": bfloat16 * 1e12, "float32": float32 * 1e12}
    return Machine(name, replicas, hosts, alone or processors, memory * 1e9, peak, bandwidth * 1e9, exchange * 1e9)


@dataclasses.dataclass(frozen=True)
class SourceSize:
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
    """Processor seconds that the pipeline takes for a global batch, and what the measuring has seen.

    tokens, width: mean number of a text's tokens, and of the places that a batch has for them.
    sizes: {stream, or stream/source: what there is of it}.
    batch: one of the measured batches, {name: tensor}, smaller than those of training where these are large.
    """

    whole: float
    tokens: float
    width: float
    sizes: dict[str, SourceSize]
    batch: dict


@dataclasses.dataclass(frozen=True)
class Forecast:
    """All that is printed. Bytes, seconds, and operations of one replica.

    parameters: trainable numbers by part.
    rows: {part of a batch: rows of the global batch}.
    work: {tower, or losses: costs of one chunk, of the losses of a step}.
    memory: {what: bytes}.
    input: of the data; `None` where none was given.
    seconds: {what: seconds of a step}.
    processor: seconds of this machine's processors in a step, where steps were measured.
    """

    config: ConfigDict
    machine: Machine
    parameters: dict[str, int]
    rows: dict[str, int]
    work: dict[str, Costs]
    memory: dict[str, float]
    input: InputCosts | None
    seconds: dict[str, float]
    processor: float = 0.0

    @property
    def chunks(self) -> int:
        """Chunks in which a replica encodes its part of a batch."""
        return self.config.train.micro_batches

    @property
    def host_seconds(self) -> float:
        """What a batch takes the hosts, with all their processors; 0 where the hosts are the replicas themselves."""
        if self.input is None or self.machine.name == HERE:
            return 0.0
        return self.input.whole / (self.machine.hosts * self.machine.processors)

    @property
    def seconds_per_step(self) -> float:
        """Of the replicas, or of the hosts where these are slower."""
        return max(sum(self.seconds.values()), self.host_seconds)

    @property
    def fits(self) -> bool:
        """Whether a replica's memory is enough."""
        return self._room() >= 0

    def _room(self) -> float:
        """The bytes of a replica's memory that would stay free, beyond those that should."""
        return (1 - FREE) * self.machine.memory - sum(self.memory.values())

    @property
    def limit(self) -> str:
        """What would have to be faster, or larger, first."""
        if not self.fits:
            return "memory"
        if self.machine.name == HERE:  # whose processors do both
            host = self.input.whole / self.machine.processors if self.input else 0.0
            operations = {name: sum(self.operations(name).values()) for name in self.work}
            return "host" if 2 * host > self.seconds[STEPS] else max(operations, key=operations.get)
        if self.host_seconds > sum(self.seconds.values()):
            return "host"
        return max(self.seconds, key=self.seconds.get)

    def operations(self, name: str) -> dict[str, float]:
        """Returns {dtype: operations} of a replica's step in a tower or the losses; towers run twice in chunks."""
        costs, chunks = self.work[name], self.chunks if name in TOWERS else 1
        names, forward = {*costs.forward, *costs.backward}, 2 if chunks > 1 else 1
        return {n: chunks * (forward * costs.forward.get(n, 0.0) + costs.backward.get(n, 0.0)) for n in names}

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
    config = complete(config).copy_and_resolve_references()
    if machine.name != HERE:  # precisions as a run there chooses them
        fast = not machine.name.startswith(("gpu:t4", "gpu:v100"))
        for tower in (config.image_tower, config.text_tower):
            tower.precision = fast_precision("image", fast, False) if tower.precision == "auto" else tower.precision
    config.train.jit = config.train.jit or machine.is_tpu
    config = as_compiled(config, tf.distribute.get_strategy())
    check_optimizer(config.optimizer)
    check_train(config, machine.replicas, machine.name)
    # Which chains of cheap operations keep their inputs alone: XLA makes those of a whole step.
    compiled = ("off", "on") if config.train.jit else (config.train.fused, "off")
    before = set_fusion(compiled[machine.name != HERE])
    if machine.name == HERE and compiles_fused():
        compile_first_quietly()
    try:
        return _forecast(config, machine, restored)
    finally:
        set_fusion(before)


def _forecast(config: ConfigDict, machine: Machine, restored: bool) -> Forecast:
    is_here, tokenizer, known = machine.name == HERE, None, None
    if _has_data(config.data):
        known = existing_vocabulary(config)
        with tempfile.TemporaryDirectory() as folder:  # one of a sample of the texts, where it is still to be built
            tokenizer = build_tokenizer(config, known or sampled_vocabulary(config, pathlib.Path(folder)))
    model = build_model(config, tokenizer.vocabulary_size if known else config.vocabulary.size)
    if tokenizer is not None:
        model.begin(tokenizer, restored)
    compile_model(model, config)
    # Batches are as wide as their longest text on one CPU: everything else needs sizes that are known.
    cards = tf.config.list_logical_devices("GPU")
    pad = "longest" if is_here and machine.replicas == 1 and not (config.train.jit or cards) else "max_length"
    costs = None
    if tokenizer is not None:
        print("Measuring the input …", flush=True)
        costs = measure_input(config, tokenizer, model.streams, pad)
    work = step_work(model, config, machine.replicas, _length(config, costs, pad))
    memory = memory_of_replica(model, config, machine.replicas, work)
    whole = batch_specs(model, config, config.train.image_text_batch, config.train.text_text_batch)
    rows = {part: tf.nest.flatten(whole[part])[0].shape[0] for part in streams_of_parts(model)}
    found = Forecast(config, machine, parameters(model), rows, work, memory, costs, {})
    if is_here:
        return _measured(model, found, tokenizer, pad)
    return dataclasses.replace(found, seconds=_assumed_seconds(model, found))


def _has_data(data: ConfigDict) -> bool:
    """Tells whether there is data to measure; raises `UserError` for a folder that is named and not there."""
    try:
        check_data(data)
    except UserError:
        if data.source not in BUILT and (data.directory or data.sources):
            raise
        return False  # none is named, or a run builds it
    return True


def _length(config: ConfigDict, costs: InputCosts | None, pad: str) -> int:
    """Returns the tokens of a text that are computed."""
    tower = config.text_tower
    if costs is None or (pad == "max_length" and tower.length_groups == 1):
        return tower.max_length
    if tower.length_groups > 1 and config.train.jit:
        return round(width_in_groups(masks_of(costs.batch), tower.length_groups, config.train.compiled_lengths))
    return max(round(costs.tokens if tower.length_groups > 1 else costs.width), 2)


# What a batch costs the host, measured on this machine.


def seconds_of(call: Callable, size: int, limit: float) -> tuple[float, float]:
    """Returns what each of the `size` things of a call takes, elapsed and of the processor.

    Calls for `limit` seconds, after one without counting.
    """
    tf.nest.map_structure(np.asarray, call())
    begun, processor, done = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begun < limit or not done:
        tf.nest.map_structure(np.asarray, call())
        done += size
    return (time.monotonic() - begun) / done, (time.process_time() - processor) / done


def measure_input(config: ConfigDict, tokenizer, streams: Sequence[str], pad: str) -> InputCosts:
    """Measures the pipeline of training; raises `UserError` if the data cannot be read."""
    train, smaller, factor = config.train, config.copy_and_resolve_references(), 1
    names = ("image_text_batch", "text_text_batch")
    sizes = train.image_text_batch // captions_per_image(config), train.text_text_batch
    # A batch costs in proportion to its size: large ones are measured in parts.
    while max(sizes) >= 2 * factor * SMALLEST_BATCH and not any(size % (2 * factor) for size in sizes):
        factor *= 2
    smaller.train.update({name: train[name] // factor for name in names})
    found = {}
    try:
        for stream in streams:
            sources = stream_sources(config.data, stream)
            weights = sum(source.weight for source, _ in sources)
            for source, files in sources:
                drawn = source.weight / weights * batch_size(config, stream)
                found[part_name(stream, source)] = _size_of(config, stream, source, files, drawn)
        batches = iter(training_batches(smaller, tokenizer, streams=streams, pad=pad))
        batch = next(batches)
        whole = factor * seconds_of(lambda: next(batches) and (), 1, INPUT_SECONDS)[1]
    except tf.errors.OpError as error:
        reason = error.message.split("\n\t [[")[0].splitlines()[0]
        raise UserError(f"The data in {config.data.directory} cannot be read: {reason}") from None
    masks = masks_of(batch)
    texts = max(sum(mask.shape[0] for mask in masks), 1)
    tokens, width = (sum(int(of(mask)) for mask in masks) / texts for of in (tf.reduce_sum, tf.size))
    return InputCosts(whole, tokens, width, found, batch)


def _size_of(config: ConfigDict, stream: str, source: Source, files: Sequence[str], drawn: float) -> SourceSize:
    """Returns what `dataset.json` says of files, or an estimate by their sizes and the first records."""
    folder, of_texts = source.directory.rstrip("/"), stream not in ("triples", "image_groups")
    described = records.describe_shards(folder)
    shards = [described.get(file[len(folder) + 1 :], {}) for file in files]
    if all({"records", "bytes", "languages"} <= shard.keys() for shard in shards):
        count, size = (float(sum(shard[key] for shard in shards)) for key in ("records", "bytes"))
        texts = float(sum(sum(shard["languages"].values()) for shard in shards))
        return SourceSize(len(files), count, size, texts if of_texts else count, drawn, estimated=False)
    parse = records.parse_img2dataset(config.data.default_language)
    if source.format == "mural":
        of_pairs = f"/{records.TEXT_PAIRS}/" in files[0]
        parse = records.parse_text_pair if of_pairs else records.parse_image_text
    raw = tf.data.TFRecordDataset(files).take(SAMPLE)
    sampled = raw.map(lambda record: tf.stack([tf.strings.length(record) + FRAME, tf.size(parse(record)["problem"])]))
    counts = np.array(list(sampled.as_numpy_iterator()))
    if not len(counts) or not counts[:, 1].any():
        raise UserError(f"{files[0]} holds no record to measure.")
    of_record, texts = counts.mean(axis=0)
    size = float(sum(tf.io.gfile.stat(file).length for file in files))
    items = float(texts) if of_texts else 1.0
    return SourceSize(len(files), size / of_record, size, size / of_record * items, drawn, estimated=True)


def masks_of(batch: dict) -> list[tf.Tensor]:
    """The masks of a batch's texts, int32 [B, T] each."""
    return [value[TOKENS[1]] for value in batch.values() if isinstance(value, dict) and TOKENS[1] in value]


def width_in_groups(masks: Sequence[tf.Tensor], groups: int, lengths: Sequence[int]) -> float:
    """Mean number of places of a text that are computed where `groups` of a batch run at known lengths."""
    counts, width = np.concatenate([mask.numpy().sum(axis=1) for mask in masks]), max(mask.shape[1] for mask in masks)
    longest = [part[-1] for part in np.array_split(np.sort(counts), groups) if len(part)]
    return float(np.mean([min((n for n in lengths if most <= n < width), default=width) for most in longest]))


# What a step is made of, at the sizes that each replica would see.


def streams_of_parts(model: DualEncoder) -> dict[str, str]:
    """Returns {part of a batch: the stream that brings it}."""
    streams = {}
    for name in model.loss_weights():
        for embedding in model.tasks[name].compares:
            streams.setdefault(model.embeddings[embedding].part, model.tasks[name].stream)
    return streams


def batch_specs(model: DualEncoder, config: ConfigDict, image_text: int, text_text: int, length: int = 0) -> dict:
    """Returns {name: nest of `tf.TensorSpec`} of a batch without places and tallies, of static shapes.

    Args:
      image_text, text_text: items of the streams, as `train.image_text_batch` and `train.text_text_batch`.
      length: tokens of a text; 0: `text_tower.max_length`.
    """
    pixels, length = prepared_spec(config.image_tower), length or config.text_tower.max_length
    images = image_text // captions_per_image(config)
    specs = {"image_id": tf.TensorSpec([images], tf.int64), "text_group_id": tf.TensorSpec([text_text], tf.int64)}
    specs["caption_id"] = tf.TensorSpec([image_text], tf.int64)
    for part, stream in streams_of_parts(model).items():
        rows = text_text if stream == TEXT_PAIRS else image_text
        if part in model.vector_parts:
            rows = images if part in model.image_parts else rows
            specs[part] = tf.TensorSpec([rows, model.vector_parts[part]])
            specs[f"{part}_id"] = tf.TensorSpec([rows], tf.int64)
        elif part in model.image_parts:
            specs[part] = tf.TensorSpec([images, *pixels.shape], pixels.dtype)
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
            return {each: values(each, one) for each, one in spec.items()}
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


def step_work(model: DualEncoder, config: ConfigDict, replicas: int, length: int) -> dict[str, Costs]:
    """Returns the costs of a replica's step: of one chunk in each tower, and of the whole batch in the losses.

    Args:
      model: compiled.
      config: its `train.micro_batches` are the chunks.
      replicas: that share the batch.
      length: tokens of a text, padding included.
    """
    train, by_tower = config.train, {tower: [] for tower in TOWERS}
    for name, embedding in model.used.items():  # functions in place of towers take texts
        by_tower[IMAGES if embedding.part in model.image_parts else TEXTS].append(name)

    def specs(parts):
        return batch_specs(model, config, train.image_text_batch // parts, train.text_text_batch // parts, length)

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
    """Returns {what: bytes}; `work` is that of `step_work`."""
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


# How long a step takes.


def _assumed_seconds(model: DualEncoder, found: Forecast) -> dict[str, float]:
    """Returns {what: seconds of a step}, one after the other."""
    machine, seconds = found.machine, {}
    for name in found.work:
        counts = found.operations(name).items()
        peaks = (count / machine.peak.get(dtype, machine.peak["float32"]) for dtype, count in counts)
        seconds[name] = sum(peaks) / ASSUMED[name]
    gradients = 4.0 * trainable_parameters(model)
    seconds["launch"] = LAUNCH
    seconds["optimiser"] = 7 * gradients / (ASSUMED["memory"] * machine.bandwidth)
    if machine.replicas > 1:
        embeddings = 4.0 * sum(found.rows[part] * width for part, width in model.embedding_shapes.values())
        # All-reduce moves each byte twice; embeddings are gathered, and their gradients added up.
        seconds["exchange"] = (2 * gradients + 3 * embeddings) / (ASSUMED["exchange"] * machine.exchange)
    return seconds


def _measured(model: DualEncoder, found: Forecast, tokenizer, pad: str) -> Forecast:
    """Measures whole steps, of a replica's part of a batch or a part of that; other replicas work at the same time."""
    config, cards = found.config.copy_and_resolve_references(), tf.config.list_logical_devices("GPU")
    names, parts = ("image_text_batch", "text_text_batch"), found.machine.replicas
    operations = sum(sum(found.operations(name).values()) for name in found.work)
    most, sizes = MOST_OPERATIONS["GPU" if cards else "CPU"], [found.config.train[name] for name in names]
    group = captions_per_image(config)
    while operations > most and all(size % (2 * parts * group * found.chunks) == 0 for size in sizes):
        parts, operations = 2 * parts, operations / 2
    config.train.update({name: found.config.train[name] // parts for name in names})
    print("Measuring steps …", flush=True)
    if tokenizer is None:
        images, texts = (config.train[name] for name in names)
        batches = tf.data.Dataset.from_tensors(batch_values(batch_specs(model, config, images, texts))).repeat()
    else:
        batches = training_batches(config, tokenizer, streams=model.streams, pad=pad)
    batches, train = iter(batches), model.make_train_function()
    with _known_sizes(model, config.train.image_text_batch // (group * found.chunks), config.text_tower.length_groups):
        seconds_of(lambda: train(batches), 1, WARM_UP)  # new shapes are still compiled
        measured = seconds_of(lambda: train(batches), config.train.steps_per_execution, SECONDS)
    elapsed, processor = (value * parts / found.machine.replicas for value in measured)
    return dataclasses.replace(found, seconds={STEPS: elapsed}, processor=processor)
