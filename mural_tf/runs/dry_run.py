"""The dry run: prints what a run would need and how long a step takes, and trains nothing.

    python run_pretrain.py --config=configs/mural_base.py --dry_run --tpu=v3-128

On this machine steps are measured (`training/cost.py`). For a slice of Cloud TPUs the step is compiled by the TPU's own
compiler (`training/tpu_forecast.py`); without it, `training/tpu_check.py` looks at every operation by its name.
"""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import tempfile
from collections.abc import Iterable, Iterator

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.progress import announce
from mural_tf.data.streams.pipeline import captions_per_image
from mural_tf.models import complete, method_class, takes_steps
from mural_tf.optimizers import check_optimizer
from mural_tf.pretrained.importers import configure_towers
from mural_tf.text.vocabulary_file import save_vocabulary
from mural_tf.training.batch_sizes import check_train, chunk_numbers
from mural_tf.training.cost import Measurement, measure
from mural_tf.training.environment import threads
from mural_tf.training.strategy import as_compiled
from mural_tf.training.tpu_check import check_step
from mural_tf.training.tpu_forecast import (
    CompiledStep,
    RefusedStep,
    as_on_tpu,
    compile_step,
    fewest_chunks,
    has_compiler,
    missing_compiler,
)
from mural_tf.training.tpu_lowering import lower_step
from mural_tf.training.tpu_slices import Slice, find_slice

HERE = "here"
BUSY = 2.5  # load per processor, from which on other programs slow the measured steps


def dry_run(config: ConfigDict, tpu: str = HERE, restored: bool = False) -> None:
    """Prints the memory and time that a run needs: measured here or, for a TPU, forecast by its compiler.

    Args:
      config: the configuration.
      tpu: "here", or a slice as Google Cloud names it, such as "v4-32".
      restored: whether the run would start from trained weights.

    Raises:
      UserError: an unknown slice, a step that a TPU refuses, settings out of their range, batches that replicas cannot
        share, a model that takes no steps or cannot be built, data that is not there.
    """
    slice_ = None
    if tpu != HERE:
        slice_ = find_slice(tpu)
    config, pieces = configure_towers(complete(config))
    if not takes_steps(method_class(config.model)):
        raise UserError(f"{config.model} takes no steps, so there is nothing to forecast: run it.")
    announce("Building the model …")
    with tempfile.TemporaryDirectory() as folder:
        if pieces:  # the vocabulary of the weights that the text tower starts with
            config.vocabulary.file = str(pathlib.Path(folder, "vocabulary.txt"))
            save_vocabulary(pieces, config.vocabulary.file)
        if slice_ is None:
            print(describe_measurement(measure(config, restored)), flush=True)
        else:
            _print_for_slice(config, slice_)


def _print_for_slice(config: ConfigDict, slice_: Slice) -> None:
    """Prints the compiler's forecast for a slice; without the compiler, a check of the step's operations."""
    config = as_compiled(as_on_tpu(config), tf.distribute.get_strategy())
    check_optimizer(config.optimizer)
    check_train(config, slice_.replicas, slice_.name)
    vocabulary_size = config.vocabulary.size
    print(f"Dry run of {config.model} on {slice_.name}: {slice_.replicas} replicas.", flush=True)
    print("Nothing is trained and nothing is written.", flush=True)
    if not has_compiler():
        announce("Tracing a step for XLA …")
        print(check_step(config, vocabulary_size, batch=2), flush=True)  # operations are alike for all sizes
        print(missing_compiler(), flush=True)
        return
    try:
        step = compile_for_slice(config, vocabulary_size, slice_)
    except RefusedStep as refused:
        if not refused.is_out_of_memory:
            raise
        print(str(refused), flush=True)
        _print_fewest_chunks(config, vocabulary_size, slice_)
        return
    print(describe_step(step, config), flush=True)


def compile_for_slice(config: ConfigDict, vocabulary_size: int, slice_: Slice, text_file: str = "") -> CompiledStep:
    """Returns the compiler's answer for a configuration's step, as each replica of the slice would run it.

    Args:
      config: a configuration that is set for a TPU.
      vocabulary_size: word pieces.
      slice_: the slice, whose replicas share the batches of `config.train`.
      text_file: where the optimised program's text is written; "": nowhere.
    """
    announce("Lowering a step …")
    replicas = slice_.replicas
    # A method refuses 0 captions per image when it is built.
    images = config.train.image_text_batch // max(captions_per_image(config), 1) // replicas
    pairs = config.train.text_text_batch // replicas
    module = lower_in_subprocess(config, vocabulary_size, images, pairs, replicas)
    return compile_step(module, slice_, text_file)


def lower_in_subprocess(config: ConfigDict, *sizes: int) -> bytes:
    """Returns the module of `lower_step`, made in another process, whose end frees the memory of weights.

    Args:
      config: a configuration that is set for a TPU.
      sizes: the vocabulary's size and the numbers of images, texts and replicas, as `lower_step` takes them.

    Raises:
      UserError: as `lower_step`, and if the process ends without an answer.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_module, args=(sender, config, *sizes), daemon=True)
    process.start()
    sender.close()  # only the process holds it now, so that `recv` raises EOFError if the process dies
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()  # sets the exit code
        raise UserError(
            f"Lowering the step ended with exit code {process.exitcode}; -9 means that the system ran out of memory."
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(answer, UserError):
        raise answer
    return answer


def _send_module(sender: multiprocessing.connection.Connection, config: ConfigDict, *sizes: int) -> None:
    """Sends the module of `lower_step`, or its `UserError`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C interrupts the waiting process, which ends this one
    try:
        sender.send(lower_step(config, *sizes))
    except UserError as error:
        sender.send(error)


def _print_fewest_chunks(config: ConfigDict, vocabulary_size: int, slice_: Slice) -> None:
    """Compiles the step with numbers of chunks, by bisection, and prints the smallest that fits, or that none fits."""

    def fits(chunks: int) -> bool:
        chunked = config.copy_and_resolve_references()
        chunked.train.micro_batches = chunks
        announce(f"Trying train.micro_batches={chunks} …")
        try:
            compile_for_slice(chunked, vocabulary_size, slice_)
        except RefusedStep as refused:
            if not refused.is_out_of_memory:
                raise
            return False
        return True

    chunks = fewest_chunks(fits, chunk_numbers(config, slice_.replicas))
    if chunks is None:
        print("No train.micro_batches makes it fit: it needs a smaller model, or more replicas.", flush=True)
    else:
        print(f"--config.train.micro_batches={chunks} makes it fit.", flush=True)


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields a line per (name, value) of the rows, with the values in one column."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        yield f"  {name:<{width}}  {value}"


def _number(value: float) -> str:
    """Returns a number as text: with three digits or, from 100 on, all digits before its point."""
    if value < 100:
        return f"{value:,.3g}"
    return f"{value:,.0f}"


def _bytes(size: float) -> str:
    """Returns bytes in the largest unit that fits: 1.5e9 is "1.5 GB"."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:,.3g} {unit}"
    return f"{size / 1e3:,.3g} kB"


def describe_step(step: CompiledStep, config: ConfigDict) -> str:
    """Returns the compiler's answer as text: whether it accepts the step, memory, time and the most expensive parts."""
    lines = [*_step_acceptance(step, config), *_step_memory(step), *_step_time(step, config), *_step_parts(step)]
    return "\n".join(lines)


def _step_acceptance(step: CompiledStep, config: ConfigDict) -> Iterator[str]:
    """Yields lines on the accepted step: its size and the first five features that it must not have."""
    slice_ = step.slice
    train = config.train
    captions = train.image_text_batch // slice_.replicas
    pairs = train.text_text_batch // slice_.replicas
    rows = f"{captions:,} image-caption and {pairs:,} text pairs per replica"
    passes = "one pass" if train.micro_batches == 1 else f"two passes of {train.micro_batches} chunks"
    yield f"The TPU's own compiler accepts the step for {slice_.topology}: {rows}, in {passes}."
    if step.refused_features:
        yield f"But it has what a step must not have: {', '.join(step.refused_features[:5])}."


def _step_memory(step: CompiledStep) -> Iterator[str]:
    """Yields lines on a replica's memory, by the compiler."""
    available = step.slice.generation.memory
    yield f"\nMemory of a replica, by the compiler: {_bytes(step.memory)} of {_bytes(available)}"
    arguments = f"{_bytes(step.arguments)}, of which {_bytes(step.aliased)} are overwritten"
    rows = {
        "arguments: weights, slots, a batch": arguments,
        "temporary": _bytes(step.temporary),
        "program": _bytes(step.program),
    }
    yield from _table(rows.items())


def _step_time(step: CompiledStep, config: ConfigDict) -> Iterator[str]:
    """Yields lines on a step's time and transfers, by the compiler's forecast."""
    generation = step.slice.generation
    steps = config.train.steps
    yield (
        f"\nA step takes {step.seconds:.4g} seconds by the compiler's forecast: {step.cycles / 1e6:,.1f} million "
        f"cycles at {generation.clock / 1e9:.2f} GHz, without transfers between chips. No device has run it."
    )
    if step.unknown_loops:
        yield f"{step.unknown_loops} loops count once, because the compiler does not know how often they turn."
    yield (
        f"{_number(step.flops / 1e9)} GFLOP per replica: {step.utilisation:.1%} of the published "
        f"{generation.peak / 1e12:,.4g} TFLOP/s."
    )
    hours = _number(steps * step.seconds / 3600)
    yield f"{steps:,} steps take {hours} hours, without start, evaluation and checkpoints."
    for operation, transfers in step.collectives.items():
        size = _bytes(transfers["bytes"])
        yield f"Between chips: {transfers['count']:,} {operation}, {size} per step and replica."


def _step_parts(step: CompiledStep) -> Iterator[str]:
    """Yields tables of the cycles by part, and of the most expensive operations."""
    yield "\nCycles by part"
    yield from _table((name, f"{count / step.cycles:.1%}") for name, count in step.cycles_by_part.items())
    yield "\nThe most expensive operations"
    rows = []
    for operation in step.most_expensive:
        share = operation["cycles"] / step.cycles
        name = operation["place"] or operation["name"]
        rows.append((f"{share:.1%}  {name}", operation["shape"]))
    yield from _table(rows)


def describe_measurement(measurement: Measurement) -> str:
    """Returns a measurement as text: the model's size, memory and speed."""
    lines = [*_measured_head(measurement), *_measured_memory(measurement), *_measured_speed(measurement)]
    return "\n".join(lines)


def _measured_head(measurement: Measurement) -> Iterator[str]:
    """Yields lines on the model's size."""
    replicas = "1 replica" if measurement.replicas == 1 else f"{measurement.replicas} replicas"
    yield f"Dry run of {measurement.config.model} on this machine: {replicas}."
    yield "Nothing is trained and nothing is written."
    yield f"\nParameters: {sum(measurement.parameters.values()):,}"
    yield from _table((name, f"{count:,}") for name, count in measurement.parameters.items())


def _measured_memory(measurement: Measurement) -> Iterator[str]:
    """Yields lines on a replica's memory, computed by part and measured at most."""
    yield "\nMemory of a replica"
    yield from _table((name, _bytes(size)) for name, size in measurement.memory.items())
    rows = []
    for name, count in measurement.rows.items():
        measured = max(1, math.ceil(count * measurement.share))
        rows.append(f"{measured:,} {name}")
    yield f"  {_bytes(measurement.peak)} were in use at most, with {', '.join(rows)} (measured)."


def _measured_speed(measurement: Measurement) -> Iterator[str]:
    """Yields lines on the time of a step and of the run."""
    steps = measurement.config.train.steps
    measured_in = "steps"
    if measurement.is_partial:
        measured_in = f"steps of {measurement.share:.2%} of the batch"
    yield f"\nA step takes {measurement.seconds:.4f} seconds (measured in {measured_in}, input included)."
    hours = _number(steps * measurement.seconds / 3600)
    yield (
        f"{_number(1 / measurement.seconds)} steps per second; {steps:,} steps take {hours} hours, without start, "
        "evaluation and checkpoints."
    )
    load, _, _ = os.getloadavg()
    if load > BUSY * threads():
        yield f"Other programs are busy here (load {load:.1f}): alone, steps would take less."
