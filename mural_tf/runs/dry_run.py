"""The dry run: prints what a run would need and how long it would take, and trains nothing.

    python run_pretrain.py --config=configs/mural_base.py --config.data.directory=DATA --dry_run --tpu_type=v4-32

The forecast itself is made in `training/cost.py`.
"""

from __future__ import annotations

import math
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

from ml_collections import ConfigDict

from mural_tf.errors import UserError
from mural_tf.models import complete, method_class, takes_steps
from mural_tf.pretrained.importers import configure_towers
from mural_tf.progress import tell
from mural_tf.text.vocabulary_file import save_vocabulary
from mural_tf.training.cost import ASSUMED, FREE, HERE, Forecast, forecast

BUSY = 2.5  # load for each processor, above what this program makes by itself


def dry_run(config: ConfigDict, tpu_type: str = HERE, restored: bool = False) -> None:
    """Prints the forecast of a run; arguments and errors are those of `forecast`."""
    config, pieces = configure_towers(complete(config))
    if not takes_steps(method_class(config.model)):
        raise UserError(f"{config.model} takes no steps, so there is nothing to forecast: run it.")
    tell("Building the model …")
    with tempfile.TemporaryDirectory() as folder:
        if pieces:  # of the weights that the text tower starts with
            config.vocabulary.file = str(pathlib.Path(folder, "vocabulary.txt"))
            save_vocabulary(pieces, config.vocabulary.file)
        found = forecast(config, tpu_type, restored)
    print(describe(found), flush=True)


def describe(found: Forecast) -> str:
    """Returns a forecast in lines."""
    parts = (_head, _memory, _data, _host, _speed, _verdict)
    return "\n".join(line for part in parts for line in part(found))


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    yield from (f"  {name:<{width}}  {value}" for name, value in rows)


def _number(value: float) -> str:
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.3g} GB" if size < 1e12 else f"{size / 1e12:,.3g} TB"


def _head(found: Forecast) -> Iterator[str]:
    machine = found.machine
    where = "this machine" if machine.name == HERE else machine.name
    hosts = f"{machine.hosts} host{'s' * (machine.hosts > 1)} of {machine.processors} processors"
    replicas = f"{machine.replicas} replica{'s' * (machine.replicas > 1)}"
    yield f"Dry run of {found.config.model} on {where}: {replicas}, {hosts}."
    yield "Nothing is trained and nothing is written."
    yield f"\nParameters: {sum(found.parameters.values()):,}"
    yield from _table((name, f"{count:,}") for name, count in found.parameters.items())


def _memory(found: Forecast) -> Iterator[str]:
    total, machine = sum(found.memory.values()), found.machine
    there = "a card's, which TensorFlow does not tell" if machine.memory == math.inf else _gb(machine.memory)
    yield f"\nMemory of a replica: {_gb(total)} of {there}; {FREE:.0%} should stay free"
    yield from _table((name, _gb(size)) for name, size in found.memory.items() if size)
    rows = ", ".join(f"{count // machine.replicas // found.chunks:,} {part}" for part, count in found.rows.items())
    yield f"  Activations are those of {rows}, one of {found.chunks} chunks (train.micro_batches)."


def _data(found: Forecast) -> Iterator[str]:
    if found.input is None:
        yield "\nData: none is there to look at (data.directory); nothing can be said of epochs and of the host."
        return
    yield "\nData"
    steps = found.config.train.steps
    for name, size in found.input.sizes.items():
        about = "about " if size.estimated else ""
        epochs = f"{steps * size.drawn / size.items:,.2f} epochs in {steps:,} steps" if size.items else ""
        yield (
            f"  {name}: {about}{size.records:,.0f} records in {size.files:,} files, {_gb(size.bytes)}; "
            f"{about}{size.items:,.0f} items an epoch, {epochs}"
        )


def _host(found: Forecast) -> Iterator[str]:
    costs, machine = found.input, found.machine
    if costs is None:
        return
    yield f"\nInput: {costs.whole:.3f} processor seconds a global batch, measured on this machine"
    yield f"  Texts have {costs.tokens:.1f} tokens on average."
    needed, there = costs.whole / found.seconds_per_step, machine.hosts * machine.processors
    yield f"  To keep up with the steps below it needs {needed:.1f} processors like these; {there:,} are there."


def _speed(found: Forecast) -> Iterator[str]:
    here, total = found.machine.name == HERE, sum(found.seconds.values())
    yield f"\nSeconds of a step, {'measured' if here else 'from published peaks and assumptions'}"
    if here:
        operations = {name: sum(found.operations(name).values()) / 1e9 for name in found.work}
        yield from _table((name, f"{count:,.1f} GFLOP a replica") for name, count in operations.items())
        rate = f"{sum(operations.values()) / total:,.0f} GFLOP/s"
        yield f"  Whole steps, input included: {total:.4f}, {rate}, and {found.processor:.4f} of the processors."
        if os.getloadavg()[0] > BUSY * found.machine.processors:
            yield f"  Other programs are busy here (load {os.getloadavg()[0]:.1f}): alone, steps would take less."
        return
    yield from _table((name, f"{value:.4f}  {_reason(found, name)}") for name, value in found.seconds.items())
    hosts = f"; with all their processors the hosts need {found.host_seconds:.4f}" if found.input else ""
    yield f"  In all {total:.4f}, one after the other{hosts}."


def _reason(found: Forecast, name: str) -> str:
    """What a part's time comes from."""
    machine = found.machine
    if name in found.work:
        operations = found.operations(name)
        total = sum(operations.values())
        kinds = [dtype for dtype, count in operations.items() if count > 0.001 * total]
        peaks = ", ".join(f"{dtype} {machine.peak.get(dtype, 0.0) / 1e12:,.0f} TFLOP/s" for dtype in kinds)
        return f"{total / 1e9:,.1f} GFLOP a replica, efficiency {ASSUMED[name]:.2f} (assumed) of {peaks}"
    if name == "launch":
        return "assumed: no step is shorter"
    of, bandwidth = ("memory", machine.bandwidth) if name == "optimiser" else ("exchange", machine.exchange)
    return f"efficiency {ASSUMED[of]:.2f} (assumed) of {bandwidth / 1e9:,.0f} GB/s"


def _verdict(found: Forecast) -> Iterator[str]:
    seconds, steps = found.seconds_per_step, found.config.train.steps
    if not found.fits:
        chunks = found.least_chunks()
        remedy = "it needs smaller batches, a smaller model, or more replicas"
        if chunks:
            remedy = f"--config.train.micro_batches={chunks} makes it fit"
        yield f"\nIt does not fit into the memory of a replica: {remedy}."
    else:
        yield (
            f"\n{_number(1 / seconds)} steps a second; {steps:,} steps take {_number(steps * seconds / 3600)} hours, "
            "without start, evaluation and checkpoints."
        )
    yield f"Limited by: {found.limit}."
