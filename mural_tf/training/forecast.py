"""What a run would need and how long it would take, on this machine or on one that is not there.

What a step computes and keeps is read off the graphs of the built model (`graph_costs.py`). The host's part is measured
on this machine (`input_costs.py`); so is the speed of `--tpu_type=here`, by steps of training that leave nothing behind
(`step_times.py`). The speed of other machines follows from their published peaks (`machines.py`) and from the
assumptions below, which are printed with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import tempfile
from collections.abc import Iterator, Mapping

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data import records
from mural_tf.data.records import describe_shards
from mural_tf.data.streams.pipeline import batch_size, stream_files
from mural_tf.encoders.kernels import compile_first_quietly, compiles_fused, fast_precision, set_fusion
from mural_tf.encoders.layers import forward_pass
from mural_tf.errors import UserError
from mural_tf.models import build_model, complete
from mural_tf.models.dual_encoder import TEXT_PAIRS, DualEncoder, trainable_parameters
from mural_tf.optimizers import check_optimizer
from mural_tf.text import build_tokenizer
from mural_tf.training.fit import compile_model
from mural_tf.training.graph_costs import Costs, gradient_costs
from mural_tf.training.input_costs import InputCosts, measure_input
from mural_tf.training.machines import BEFORE_BFLOAT16, HERE, Machine, find_machine
from mural_tf.training.prepare import SOURCES, existing_vocabulary, sampled_vocabulary
from mural_tf.training.step_times import LONGEST_STEP, StepTimes, measure_steps, measure_towers
from mural_tf.training.strategy import with_one_length
from mural_tf.training.tpu_check import example_batch

# Assumed of machines that are not here: shares of the published peaks and bandwidths that a run reaches.
ASSUMED = {
    "image tower": 0.2,  # of the peak: depthwise convolutions and small maps leave matrix units idle
    "text tower": 0.4,  # of the peak: large matrix products
    "losses": 0.4,  # of the peak: one large product a task and direction
    "memory": 0.5,  # of its bandwidth, by the optimiser
    "exchange": 0.5,  # of the bandwidth between replicas
}
FREE = 0.1  # share of a replica's memory that is left to the compiler and what is not counted
GROUPS = ("image tower", "text tower")
REST = "everything else"


@dataclasses.dataclass(frozen=True)
class Stream:
    """What a stream reads: `records` and `bytes` in its files, `items` in an epoch, and whether they are estimates."""

    files: int
    records: float
    bytes: float
    items: float
    estimated: bool


@dataclasses.dataclass(frozen=True)
class Forecast:
    """All that is printed. Bytes, seconds, and operations of one replica.

    parameters: trainable numbers by part.
    rows: {part of a batch: rows of the global batch}.
    work: {"image tower", "text tower", "losses": costs of one chunk of the batch}.
    memory: {what: bytes}.
    streams, input: of the data; `None` where none was given.
    seconds: {what: seconds of a step}; empty where nothing can be said.
    times: what was measured of steps here, or `None`.
    """

    config: ConfigDict
    machine: Machine
    model: str
    parameters: dict[str, int]
    rows: dict[str, int]
    image_parts: tuple[str, ...]
    work: dict[str, Costs]
    memory: dict[str, float]
    streams: dict[str, Stream]
    input: InputCosts | None
    seconds: dict[str, float]
    times: StepTimes | None

    @property
    def chunks(self) -> int:
        """Chunks in which a replica encodes its part of a batch."""
        return self.config.train.micro_batches

    @property
    def seconds_per_step(self) -> float:
        """Of the replicas, or of the hosts where these are slower; 0 where nothing can be said."""
        if self.times is not None and self.times.step:
            return self.times.step
        return max(sum(self.seconds.values()), self.host_seconds)

    @property
    def host_seconds(self) -> float:
        """What a batch takes the hosts, with all their processors, where these are not the replicas themselves."""
        if self.input is None or self.machine.name == HERE:
            return 0.0
        return self.input.whole / (self.machine.hosts * self.machine.processors)

    @property
    def fits(self) -> bool:
        """Whether a replica's memory is enough."""
        return _fits(self.memory, self.machine)

    @property
    def limit(self) -> str:
        """What would have to be faster, or larger, first."""
        if not self.fits:
            return "memory"
        shares = dict(self.seconds)
        if self.machine.name == HERE and self.input is not None:
            shares["host"] = self.input.whole / self.machine.processors
        elif self.host_seconds > sum(shares.values()):
            return "host"
        return max(shares, key=shares.get) if shares else ""


def forecast(config: ConfigDict, tpu_type: str = HERE, restored: bool = False) -> Forecast:
    """Returns the forecast of a run with this configuration on a machine; on this one it takes a minute or two.

    Args:
      config: the resolved configuration.
      tpu_type: as `machines.find_machine` takes it.
      restored: whether the run would start from trained weights.

    Raises:
      UserError: an unknown machine, batches that its replicas cannot share, data that is not there, or a model that
        cannot be built.
    """
    machine = find_machine(tpu_type)
    config = _for_machine(complete(config), machine)
    check_optimizer(config.optimizer)
    check_batches(config, machine)
    has_data = _has_data(config)
    before = set_fusion(_fusion(config, machine))
    if compiles_fused():
        compile_first_quietly()
    try:
        with _tokenizer(config) if has_data else contextlib.nullcontext() as tokenizer:
            return _forecast(config, machine, tokenizer, restored)
    finally:
        set_fusion(before)


def _for_machine(config: ConfigDict, machine: Machine) -> ConfigDict:
    """Returns the configuration as a run there takes it: precisions chosen, one length where XLA compiles a step."""
    config = config.copy_and_resolve_references()
    if machine.name != HERE:
        fast = not machine.name.startswith(tuple(f"gpu:{name}" for name in BEFORE_BFLOAT16))
        for tower in (config.image_tower, config.text_tower):
            if tower.precision == "auto":
                tower.precision = fast_precision("image", fast, False)
    if machine.is_tpu:
        config.train.jit = True
    return with_one_length(config, tf.distribute.get_strategy())


def _fusion(config: ConfigDict, machine: Machine) -> str:
    """Which chains of cheap operations keep their inputs alone: XLA makes those of a whole step."""
    if machine.name == HERE:
        return "off" if config.train.jit else config.train.fused
    return "on" if config.train.jit else "off"


def check_batches(config: ConfigDict, machine: Machine) -> None:
    """Raises `UserError` if the replicas, and their chunks, cannot share the batches evenly."""
    group = config.method.get("captions_per_image", 1)
    parts = machine.replicas * config.train.micro_batches
    for name, of_group in (("image_text_batch", group), ("text_text_batch", 1)):
        if config.train[name] % (parts * of_group):
            raise UserError(
                f"train.{name}={config.train[name]} must be a multiple of {parts * of_group}: {machine.name} has "
                f"{machine.replicas} replicas, with train.micro_batches={config.train.micro_batches}"
                + (f" and method.captions_per_image={group}." if of_group > 1 else ".")
            )


def _has_data(config: ConfigDict) -> bool:
    """Tells whether there is data to measure; raises `UserError` for a folder that is named and not there."""
    if config.data.source not in SOURCES:
        raise UserError(f"Unknown data.source {config.data.source!r}; known: {', '.join(SOURCES)}.")
    if not config.data.directory:
        return False
    try:
        records.list_files(config.data.directory, records.IMAGE_TEXT, "train")
    except UserError:
        if config.data.source == "records":
            raise
        return False  # a run builds it
    return True


@contextlib.contextmanager
def _tokenizer(config: ConfigDict) -> Iterator:
    """The tokenizer of a run, or, if its vocabulary is still to be built, one of a sample of the texts."""
    found = existing_vocabulary(config)
    with tempfile.TemporaryDirectory() as folder:
        yield build_tokenizer(config, found or sampled_vocabulary(config, pathlib.Path(folder)))


def _forecast(config: ConfigDict, machine: Machine, tokenizer, restored: bool) -> Forecast:
    known = tokenizer is not None and existing_vocabulary(config) is not None
    model = build_model(config, tokenizer.vocabulary_size if known else config.vocabulary.size)
    if tokenizer is not None:
        model.begin(tokenizer, restored)
    compile_model(model, config)
    pad = "longest" if _on_one_cpu(config, machine) else "max_length"
    costs = None
    if tokenizer is not None:
        print("Measuring the input …", flush=True)
        costs = measure_input(config, tokenizer, model.streams, pad)
    rows = _rows(model, config)
    work = step_work(model, config, machine.replicas, _length(config, costs, pad))
    memory = _memory(model, config, machine, work)
    times = None
    if machine.name == HERE:
        times = _measured_times(model, config, machine, tokenizer, pad, costs, work, rows, memory)
    seconds = times.parts if times else _assumed_seconds(model, config, machine, work, rows)
    streams = {} if costs is None else {name: _describe_stream(config, name, costs) for name in model.streams}
    return Forecast(
        config, machine, config.model, _parameters(model), rows, model.image_parts, work, memory, streams, costs,
        seconds, times,
    )  # fmt: skip


def _on_one_cpu(config: ConfigDict, machine: Machine) -> bool:
    """Tells whether batches are as wide as their longest text: everything else needs sizes that are known."""
    cards = tf.config.list_logical_devices("GPU")
    return machine.name == HERE and machine.replicas == 1 and not (config.train.jit or cards)


def _length(config: ConfigDict, costs: InputCosts | None, pad: str) -> int:
    """Returns the tokens of a text that are computed."""
    if costs is None or (pad == "max_length" and config.text_tower.length_groups == 1):
        return config.text_tower.max_length
    return max(round(costs.tokens if config.text_tower.length_groups > 1 else costs.width), 2)


def _parameters(model: DualEncoder) -> dict[str, int]:
    groups = model.weights_by_part()
    counted = {}
    for name, part in groups.items():
        variables = part.trainable_variables if hasattr(part, "trainable_variables") else [part]
        counted[name] = sum(variable.shape.num_elements() for variable in variables)
    rest = trainable_parameters(model) - sum(counted.values())
    return {**counted, **({"others": rest} if rest > 0 else {})}


# What a step computes and keeps.


def _stream_of(model: DualEncoder) -> dict[str, str]:
    """Returns {part of a batch: the stream that brings it}."""
    streams = {}
    for name in model.loss_weights():
        task = model.tasks[name]
        for embedding in task.compares:
            streams.setdefault(model.embeddings[embedding].part, task.stream)
    return streams


def _rows(model: DualEncoder, config: ConfigDict) -> dict[str, int]:
    """Returns {part of a batch: its rows in the global batch}."""
    group = config.method.get("captions_per_image", 1)
    return {
        part: batch_size(config, stream) // (group if part in model.image_parts else 1)
        for part, stream in _stream_of(model).items()
    }


def _specs(model: DualEncoder, config: ConfigDict, parts: int) -> dict:
    """Returns the specs of a global batch's `parts`-th part, {name: nest of `tf.TensorSpec`}."""
    streams, group = _stream_of(model), config.method.get("captions_per_image", 1)
    others = {"image_id": model.streams[0], "text_group_id": TEXT_PAIRS}

    def spec(name, value):
        of_part = name.removesuffix("_id").removesuffix("_language")
        stream = streams.get(of_part) or others.get(name, model.streams[0])
        times = batch_size(config, stream) // (1 if stream == TEXT_PAIRS else group) // parts
        return tf.TensorSpec([value.shape[0] * times, *value.shape[1:]], value.dtype)

    example = example_batch(model, config, 1)
    return {name: tf.nest.map_structure(lambda v, n=name: spec(n, v), value) for name, value in example.items()}


def step_work(model: DualEncoder, config: ConfigDict, replicas: int, length: int) -> dict[str, Costs]:
    """Returns the costs of a replica's step, {"image tower", "text tower": of one chunk; "losses": of the batch}."""
    at_length = config.copy_and_resolve_references()
    at_length.text_tower.max_length = length
    groups, model.text_tower.length_groups = model.text_tower.length_groups, 1  # for sizes that are known
    try:
        work = tower_costs(model, _specs(model, at_length, replicas * config.train.micro_batches))
    finally:
        model.text_tower.length_groups = groups
    return {**work, "losses": _loss_costs(model, _specs(model, at_length, 1), replicas)}


def tower_costs(model: DualEncoder, specs: Mapping) -> dict[str, Costs]:
    """Returns the costs of encoding a batch of such specs, by tower."""

    def encode(batch):
        with forward_pass(tf.constant([0, 0])):
            return model.encode(batch, training=True)

    images = [name for name, embedding in model.used.items() if embedding.part in model.image_parts]
    groups = dict(zip(GROUPS, (images, [name for name in model.used if name not in images])))
    groups = {group: names for group, names in groups.items() if names}
    return gradient_costs(encode, [specs], groups, model.trainable_variables)


def _loss_costs(model: DualEncoder, specs: Mapping, replicas: int) -> Costs:
    """Of the objective of a replica's rows: it sees the embeddings of the whole batch."""
    counts = {name: tf.nest.flatten(specs[part])[0].shape[0] for name, (part, _) in model.embedding_shapes.items()}
    embeddings = {name: tf.TensorSpec([counts[name], width]) for name, (_, width) in model.embedding_shapes.items()}
    rows = {name: (0, count // replicas) for name, count in counts.items()}

    def objective(embeddings, ids):
        losses, _ = model.objective(embeddings, ids, rows)
        return {"loss": tf.add_n(list(losses.values()))}

    ids = {name: spec for name, spec in specs.items() if name.endswith("_id")}
    return gradient_costs(objective, [embeddings, ids], {"losses": ["loss"]})["losses"]


def _memory(model: DualEncoder, config: ConfigDict, machine: Machine, work: Mapping[str, Costs]) -> dict[str, float]:
    """Returns {what: bytes of one replica}."""
    trainable, chunks = 4 * trainable_parameters(model) * len(model.optimizers), config.train.micro_batches
    moments = [weight for optimizer in model.optimizers.values() for weight in optimizer.weights]
    towers = [work[group] for group in GROUPS if group in work]
    batch = _specs(model, config, machine.replicas)
    return {
        "weights": _bytes(model.weights),
        "moments": _bytes(moments),
        "gradients": float(trainable * (2 if chunks > 1 else 1)),  # the sum, and a chunk's
        "weights in the compute precision": float(sum(costs.copies for costs in towers)),
        "activations": float(sum(costs.kept for costs in towers)),
        "losses": float(work["losses"].kept + work["losses"].copies),
        "batches": 2.0 * _bytes(tf.nest.flatten(batch)),  # one is trained on, one is on its way
    }


def _bytes(values) -> float:
    return float(sum(value.shape.num_elements() * value.dtype.size for value in values))


def _fits(memory: Mapping[str, float], machine: Machine) -> bool:
    return sum(memory.values()) <= (1 - FREE) * machine.memory


def least_chunks(found: Forecast) -> int | None:
    """Returns the smallest `train.micro_batches` with which a step fits, or `None` where none does."""
    fixed = sum(found.memory.values()) - found.memory["activations"]
    whole = found.memory["activations"] * found.chunks
    shared = math.gcd(*(rows // found.machine.replicas for rows in found.rows.values()))
    for chunks in (number for number in range(found.chunks, shared + 1) if shared % number == 0):
        sum_of_gradients = found.memory["gradients"] if found.chunks == 1 and chunks > 1 else 0.0
        if fixed + sum_of_gradients + whole / chunks <= (1 - FREE) * found.machine.memory:
            return chunks
    return None


# How long a step takes.


def tower_operations(costs: Costs, chunks: int) -> dict[str, float]:
    """Returns {dtype: operations} of a replica's step in a tower: in chunks it runs forward twice."""
    names = {*costs.forward, *costs.backward}
    forward = 2 if chunks > 1 else 1
    return {name: chunks * (forward * costs.forward.get(name, 0.0) + costs.backward.get(name, 0.0)) for name in names}


def _measured_times(model, config: ConfigDict, machine, tokenizer, pad: str, costs, work, rows, memory) -> StepTimes:
    """Measures the towers, and whole steps where these fit and are short enough."""
    batch = costs.batch if costs is not None else example_batch(model, config, 16)
    count = {part: tf.nest.flatten(batch[part])[0].shape[0] for part in rows}
    share = min(count[part] * config.train.micro_batches / rows[part] for part in rows)  # of the chunk in `work`
    groups = {name: work[name] for name in GROUPS if name in work}
    operations = {
        name: {dtype: share * number for dtype, number in tower_operations(each, 1).items()}
        for name, each in groups.items()
    }
    seconds, peak, efficiency = measure_towers(model, batch, operations)
    parts = {}
    for name, each in groups.items():
        once, all_chunks = (sum(tower_operations(each, chunks).values()) for chunks in (1, config.train.micro_batches))
        parts[name] = seconds[name] / share * (all_chunks / once if once else config.train.micro_batches)
    step = processor = 0.0
    is_small = _fits(memory, machine) and sum(parts.values()) <= LONGEST_STEP
    if tokenizer is not None and machine.replicas == 1 and is_small:
        print("Measuring steps …", flush=True)
        step, processor = measure_steps(model, config, tokenizer, pad)
        parts[REST] = max(step - sum(parts.values()), 0.0)
    return StepTimes(step, processor, parts, peak, efficiency)


def _assumed_seconds(model, config: ConfigDict, machine: Machine, work, rows) -> dict[str, float]:
    """Returns {what: seconds of a step}, one after the other."""
    chunks, seconds = config.train.micro_batches, {}
    for group, costs in work.items():
        operations = tower_operations(costs, chunks if group in GROUPS else 1)
        seconds[group] = sum(
            count / (ASSUMED[group] * machine.peak.get(dtype, machine.peak["float32"]))
            for dtype, count in operations.items()
        )
    gradients = 4.0 * trainable_parameters(model)
    seconds["optimiser"] = 7 * gradients / (ASSUMED["memory"] * machine.bandwidth)
    if machine.replicas > 1:
        embeddings = 4.0 * sum(rows[part] * width for part, width in model.embedding_shapes.values())
        # All-reduce moves each byte twice; embeddings are gathered, and their gradients added up.
        seconds["exchange"] = (2 * gradients + 3 * embeddings) / (ASSUMED["exchange"] * machine.exchange)
    return seconds


# The data.


ONE_ITEM_A_TEXT = ("image_text", "views", "captions", TEXT_PAIRS)


def _describe_stream(config: ConfigDict, stream: str, costs: InputCosts) -> Stream:
    """Returns what `dataset.json` says of a stream's files, or an estimate by their sizes and the measured records."""
    folder, files = str(config.data.directory).rstrip("/"), stream_files(config, stream)
    described = describe_shards(folder)
    shards = [described.get(name[len(folder) + 1 :], {}) for name in files]
    if not all({"records", "bytes", "languages"} <= shard.keys() for shard in shards):
        size = float(sum(tf.io.gfile.stat(name).length for name in files))
        count = size / costs.record_bytes[stream]
        return Stream(len(files), count, size, count * costs.items[stream], estimated=True)
    count, size = (float(sum(shard[key] for shard in shards)) for key in ("records", "bytes"))
    texts = float(sum(sum(shard["languages"].values()) for shard in shards))
    return Stream(len(files), count, size, texts if stream in ONE_ITEM_A_TEXT else count, estimated=False)
