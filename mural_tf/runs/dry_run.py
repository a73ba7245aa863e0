"""The dry run: prints what a run would need and how long a step takes, and trains nothing.

    python run_pretrain.py --config=configs/mural_base.py --config.data.directory=DATA --dry_run --tpu=v4-32

The forecast itself is made in `training/cost.py`; for a TPU, `training/tpu_check.py` looks at every operation.
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
from mural_tf.progress import announce
from mural_tf.text.vocabulary_file import save_vocabulary
from mural_tf.training.cost import FREE, HERE, UTILISATION, Forecast, forecast
from mural_tf.training.tpu_check import check_step
from mural_tf.training.workdir import threads

BUSY = 2.5  # load for each processor, beyond this program's own load


def dry_run(config: ConfigDict, tpu_type: str = HERE, restored: bool = False) -> None:
    """Prints the forecast of a run; arguments and errors as `forecast`, and `UserError` for a step that TPUs refuse."""
    config, pieces = configure_towers(complete(config))
    if not takes_steps(method_class(config.model)):
        raise UserError(f"{config.model} takes no steps, so there is nothing to forecast: run it.")
    announce("Building the model …")
    with tempfile.TemporaryDirectory() as folder:
        if pieces:  # of the weights that the text tower starts with
            config.vocabulary.file = str(pathlib.Path(folder, "vocabulary.txt"))
            save_vocabulary(pieces, config.vocabulary.file)
        costs = forecast(config, tpu_type, restored)
    print(describe(costs), flush=True)
    if costs.machine.is_tpu:
        announce("Tracing a step for XLA …")
        print(check_step(config, config.vocabulary.size, batch=2), flush=True)


def describe(costs: Forecast) -> str:
    """Returns a forecast in lines."""
    return "\n".join(line for part in (_head, _memory, _speed) for line in part(costs))


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    yield from (f"  {name:<{width}}  {value}" for name, value in rows)


def _number(value: float) -> str:
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.3g} GB" if size < 1e12 else f"{size / 1e12:,.3g} TB"


def _head(costs: Forecast) -> Iterator[str]:
    machine = costs.machine
    where = "this machine" if machine.name == HERE else machine.name
    yield f"Dry run of {costs.config.model} on {where}: {machine.replicas} replica{'s' * (machine.replicas > 1)}."
    yield "Nothing is trained and nothing is written."
    yield f"\nParameters: {sum(costs.parameters.values()):,}"
    yield from _table((name, f"{count:,}") for name, count in costs.parameters.items())


def _memory(costs: Forecast) -> Iterator[str]:
    total, machine = sum(costs.memory.values()), costs.machine
    there = "a card's, which TensorFlow does not tell" if machine.memory == math.inf else _gb(machine.memory)
    yield f"\nMemory of a replica: {_gb(total)} of {there}; {FREE:.0%} should stay free"
    yield from _table((name, _gb(size)) for name, size in costs.memory.items() if size)
    rows = ", ".join(f"{count // machine.replicas // costs.chunks:,} {part}" for part, count in costs.rows.items())
    yield f"  Activations are of {rows}, one of {costs.chunks} chunks (train.micro_batches)."


def _speed(costs: Forecast) -> Iterator[str]:
    machine, steps = costs.machine, costs.config.train.steps
    operations = {name: costs.operations(name) / 1e9 for name in costs.work}
    yield "\nProducts of a step, texts at their full length"
    yield from _table((name, f"{count:,.1f} GFLOP per replica") for name, count in operations.items())
    if not costs.fits:
        chunks = costs.least_chunks()
        remedy = "it needs smaller batches, a smaller model, or more replicas"
        if chunks:
            remedy = f"--config.train.micro_batches={chunks} makes it fit"
        yield f"\nIt does not fit into the memory of a replica: {remedy}."
        return
    how = "measured, input included" if machine.name == HERE else (
        f"a guess: {UTILISATION:.0%} of the published {machine.peak / 1e12:,.4g} TFLOP/s"
    )  # fmt: skip
    yield f"\nA step takes {costs.seconds:.4f} seconds ({how})."
    yield (
        f"{_number(1 / costs.seconds)} steps per second; {steps:,} steps take {_number(steps * costs.seconds / 3600)} "
        "hours, without start, evaluation and checkpoints."
    )
    if machine.name == HERE and os.getloadavg()[0] > BUSY * threads():
        yield f"Other programs are busy here (load {os.getloadavg()[0]:.1f}): alone, steps would take less."
