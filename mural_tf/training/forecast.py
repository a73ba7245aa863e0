"""What a run would need and how long it would take, on this machine or on one that is not there.

What a step computes and keeps is read off the graphs of the built model (`step_work.py`). The host's part is measured
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
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.records import describe_shards
from mural_tf.data.streams.mixture import Source
from mural_tf.data.streams.pipeline import batch_size, part_name, stream_sources
from mural_tf.encoders.kernels import compile_first_quietly, compiles_fused, fast_precision, set_fusion
from mural_tf.errors import UserError
from mural_tf.models import build_model, complete
from mural_tf.models.dual_encoder import DualEncoder, trainable_parameters
from mural_tf.optimizers import check_optimizer
from mural_tf.text import build_tokenizer
from mural_tf.training.fit import check_batches, compile_model
from mural_tf.training.graph_costs import Costs
from mural_tf.training.input_costs import ITEM_A_TEXT, InputCosts, measure_input
from mural_tf.training.machines import BEFORE_BFLOAT16, HERE, Machine, find_machine
from mural_tf.training.prepare import SOURCES, check_data, existing_vocabulary, sampled_vocabulary
from mural_tf.training.step_times import LONGEST_STEP, Seconds, StepTimes, measure_steps, measure_towers
from mural_tf.training.step_work import (
    ACTIVATIONS,
    GRADIENTS,
    IMAGES,
    LOSSES,
    TEXTS,
    TOWERS,
    memory_of_replica,
    parameters,
    rows_of_parts,
    step_work,
    tower_of,
    tower_operations,
)
from mural_tf.training.strategy import as_compiled
from mural_tf.training.tpu_check import example_batch

# Assumed of machines that are not here: shares of the published peaks and bandwidths that a run reaches.
ASSUMED = {
    IMAGES: 0.2,  # of the peak: depthwise convolutions and small maps leave matrix units idle
    TEXTS: 0.4,  # of the peak: large matrix products
    LOSSES: 0.4,  # of the peak: one large product a task and direction
    "memory": 0.5,  # of its bandwidth, by the optimiser
    "exchange": 0.5,  # of the bandwidth between replicas
}
LAUNCH = 0.002  # seconds, assumed: no step is shorter, however small the model
FREE = 0.1  # share of a replica's memory that is left to the compiler and what is not counted
REST = "everything else"


@dataclasses.dataclass(frozen=True)
class Stream:
    """What a stream reads of a source.

    files, records, bytes: that there are.
    items: in an epoch.
    drawn: items in a global batch.
    estimated: whether records and items are.
    """

    files: int
    records: float
    bytes: float
    items: float
    drawn: float
    estimated: bool


@dataclasses.dataclass(frozen=True)
class Forecast:
    """All that is printed. Bytes, seconds, and operations of one replica.

    parameters: trainable numbers by part.
    rows: {part of a batch: rows of the global batch}.
    work: as of `step_work`.
    memory: {what: bytes}.
    streams, input: of the data; `None` where none was given.
    seconds: {what: seconds of a step}; empty where nothing can be said.
    times: what was measured of steps here, or `None`.
    """

    config: ConfigDict
    machine: Machine
    parameters: dict[str, int]
    rows: dict[str, int]
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
        if self.times is not None and self.times.step is not None:
            return self.times.step.elapsed
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
    check_batches(config, machine.replicas, machine.name)
    has_data = _has_data(config)
    before = set_fusion(_fusion(config, machine))
    if machine.name == HERE and compiles_fused():
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
    return as_compiled(config, tf.distribute.get_strategy())


def _fusion(config: ConfigDict, machine: Machine) -> str:
    """Which chains of cheap operations keep their inputs alone: XLA makes those of a whole step."""
    if machine.name == HERE:
        return "off" if config.train.jit else config.train.fused
    return "on" if config.train.jit else "off"


def _check_chunks(rows: Mapping[str, int], machine: Machine, chunks: int) -> None:
    for part, count in rows.items():
        if count // machine.replicas % chunks:
            raise UserError(
                f"train.micro_batches={chunks} does not divide the {count // machine.replicas} examples of {part!r} on "
                f"one of {machine.name}'s {machine.replicas} replicas."
            )


def _has_data(config: ConfigDict) -> bool:
    """Tells whether there is data to measure; raises `UserError` for a folder that is named and not there."""
    if config.data.source not in SOURCES:
        raise UserError(f"Unknown data.source {config.data.source!r}; known: {', '.join(SOURCES)}.")
    if not config.data.directory and not config.data.sources:
        return False
    try:
        check_data(config.data)
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
    rows = rows_of_parts(model, config)
    _check_chunks(rows, machine, config.train.micro_batches)
    work = step_work(model, config, machine.replicas, _length(config, costs, pad))
    memory = memory_of_replica(model, config, machine.replicas, work)
    times = None
    if machine.name == HERE:
        times = _measured_times(model, config, machine, tokenizer, pad, costs, work, rows, memory)
    seconds = times.parts if times else _assumed_seconds(model, config, machine, work, rows)
    streams = {} if costs is None else _describe_data(config, model.streams, costs)
    return Forecast(config, machine, parameters(model), rows, work, memory, streams, costs, seconds, times)


def _on_one_cpu(config: ConfigDict, machine: Machine) -> bool:
    """Tells whether batches are as wide as their longest text: everything else needs sizes that are known."""
    cards = tf.config.list_logical_devices("GPU")
    return machine.name == HERE and machine.replicas == 1 and not (config.train.jit or cards)


def _length(config: ConfigDict, costs: InputCosts | None, pad: str) -> int:
    """Returns the tokens of a text that are computed."""
    tower = config.text_tower
    if costs is None or (pad == "max_length" and tower.length_groups == 1):
        return tower.max_length
    if tower.length_groups > 1 and config.train.jit:
        return round(costs.width_in_groups(tower.length_groups, config.train.compiled_lengths))
    return max(round(costs.tokens if tower.length_groups > 1 else costs.width), 2)


def _fits(memory: Mapping[str, float], machine: Machine) -> bool:
    return sum(memory.values()) <= (1 - FREE) * machine.memory


def least_chunks(found: Forecast) -> int | None:
    """Returns the smallest `train.micro_batches` with which a step fits, or `None` where none does."""
    fixed = sum(found.memory.values()) - found.memory[ACTIVATIONS]
    whole = found.memory[ACTIVATIONS] * found.chunks
    shared = math.gcd(*(rows // found.machine.replicas for rows in found.rows.values()))
    for chunks in (number for number in range(found.chunks, shared + 1) if shared % number == 0):
        sum_of_gradients = found.memory[GRADIENTS] if found.chunks == 1 and chunks > 1 else 0.0
        if fixed + sum_of_gradients + whole / chunks <= (1 - FREE) * found.machine.memory:
            return chunks
    return None


# How long a step takes.


def _measured_times(model, config: ConfigDict, machine, tokenizer, pad: str, costs, work, rows, memory) -> StepTimes:
    """Measures the towers, and whole steps where these fit and are short enough."""
    batch = costs.batch if costs is not None else example_batch(model, config, 16)
    shares = _shares(model, batch, rows, machine.replicas)
    chunks = config.train.micro_batches
    operations = {
        tower: {dtype: share * chunks * count for dtype, count in tower_operations(work[tower], 1).items()}
        for tower, share in shares.items()
    }
    seconds, peak, efficiency = measure_towers(model, batch, operations)
    times = {tower: _of_a_step(seconds[tower], work[tower], share, chunks) for tower, share in shares.items()}
    parts, step = {tower: each.elapsed for tower, each in times.items()}, None
    is_small = _fits(memory, machine) and sum(parts.values()) <= LONGEST_STEP
    if tokenizer is not None and machine.replicas == 1 and is_small:
        print("Measuring steps …", flush=True)
        step = measure_steps(model, config, tokenizer, pad)
        # By what each of them uses: how much others leave to this process changes from one measuring to the next.
        parts = {tower: step.elapsed * min(each.used / step.used, 1.0) for tower, each in times.items()}
        parts[REST] = max(step.elapsed - sum(parts.values()), 0.0)
    return StepTimes(step, parts, peak, efficiency)


def _of_a_step(seconds: Seconds, costs: Costs, share: float, chunks: int) -> Seconds:
    """Returns what a tower takes in a replica's step, from what it took for a `share` of the rows in one pass."""
    once, in_chunks = (sum(tower_operations(costs, number).values()) for number in (1, chunks))
    times = in_chunks / (chunks * once) if once else 1.0
    return Seconds(*(times * value / share for value in seconds))


def _shares(model: DualEncoder, batch: dict, rows: Mapping[str, int], replicas: int) -> dict[str, float]:
    """Returns {tower: rows of a batch for it, as a share of those of a replica's step}."""
    there, wanted = dict.fromkeys(TOWERS, 0.0), dict.fromkeys(TOWERS, 0.0)
    for part, count in rows.items():
        tower = tower_of(model, part)
        there[tower] += tf.nest.flatten(batch[part])[0].shape[0]
        wanted[tower] += count / replicas
    return {tower: there[tower] / wanted[tower] for tower in TOWERS if wanted[tower]}


def _assumed_seconds(model, config: ConfigDict, machine: Machine, work, rows) -> dict[str, float]:
    """Returns {what: seconds of a step}, one after the other."""
    chunks, seconds = config.train.micro_batches, {}
    for group, costs in work.items():
        operations = tower_operations(costs, chunks if group in TOWERS else 1)
        seconds[group] = sum(
            count / (ASSUMED[group] * machine.peak.get(dtype, machine.peak["float32"]))
            for dtype, count in operations.items()
        )
    seconds["launch"] = LAUNCH
    gradients = 4.0 * trainable_parameters(model)
    seconds["optimiser"] = 7 * gradients / (ASSUMED["memory"] * machine.bandwidth)
    if machine.replicas > 1:
        embeddings = 4.0 * sum(rows[part] * width for part, width in model.embedding_shapes.values())
        # All-reduce moves each byte twice; embeddings are gathered, and their gradients added up.
        seconds["exchange"] = (2 * gradients + 3 * embeddings) / (ASSUMED["exchange"] * machine.exchange)
    return seconds


# The data.


def _describe_data(config: ConfigDict, streams: Sequence[str], costs: InputCosts) -> dict[str, Stream]:
    """Returns {stream, or stream/source: what there is of it}."""
    found = {}
    for stream in streams:
        sources = stream_sources(config.data, stream)
        whole = sum(source.weight for source, _ in sources)
        for source, files in sources:
            drawn = batch_size(config, stream) * source.weight / whole
            found[part_name(stream, source)] = _describe_part(source, stream, files, drawn, costs)
    return found


def _describe_part(source: Source, stream: str, files: Sequence[str], drawn: float, costs: InputCosts) -> Stream:
    """Returns what `dataset.json` says of files, or an estimate by their sizes and the measured records."""
    folder, name = source.directory.rstrip("/"), part_name(stream, source)
    described = describe_shards(folder)
    shards = [described.get(file[len(folder) + 1 :], {}) for file in files]
    if not all({"records", "bytes", "languages"} <= shard.keys() for shard in shards):
        size = float(sum(tf.io.gfile.stat(file).length for file in files))
        count = size / costs.record_bytes[name]
        return Stream(len(files), count, size, count * costs.items[name], drawn, estimated=True)
    count, size = (float(sum(shard[key] for shard in shards)) for key in ("records", "bytes"))
    texts = float(sum(sum(shard["languages"].values()) for shard in shards))
    return Stream(len(files), count, size, texts if stream in ITEM_A_TEXT else count, drawn, estimated=False)
