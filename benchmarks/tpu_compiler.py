"""The published configurations by the TPU's own compiler: accepted or refused, memory, forecast seconds, transfers.

    python -m benchmarks.tpu_compiler --output=docs/results/tpu_compiler.csv              # rows that the file lacks
    python -m benchmarks.tpu_compiler --output=FILE.csv --only=mural_base --tpus=v3-128,v6e-8
    python -m benchmarks.results                                                          # into docs/devices.md

It needs the extra `[tpu_compiler]`. A row takes two to ten minutes on two cores, and up to 20 GB of memory; answers are
kept under a hash of the step, so a row whose step has not changed takes the time of lowering it. No device runs
anything: seconds are the compiler's forecast, without transfers between chips.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib
import multiprocessing
import pathlib
import sys
import tempfile
from collections.abc import Callable

import tensorflow as tf
from absl import app, flags
from ml_collections import ConfigDict

from benchmarks.results import read_rows, write_rows
from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.progress import announce, announcing
from mural_tf.configs import labse_text
from mural_tf.encoders.kernels import set_fusion
from mural_tf.export.hub_modules import text_encoder_module
from mural_tf.models import complete
from mural_tf.models.build import build_model
from mural_tf.runs.dry_run import compile_for_slice
from mural_tf.runs.tuning import LARGEST_BATCH, MOST_STEPS, STAGE_RATE, STAGE_WIDTH
from mural_tf.training.batch_sizes import check_train
from mural_tf.training.strategy import as_compiled
from mural_tf.training.tpu_forecast import RefusedStep, as_on_tpu
from mural_tf.training.tpu_slices import find_slice

OUTPUT = flags.DEFINE_string("output", None, "The CSV file; rows that it has already are kept.")
ONLY = flags.DEFINE_list("only", [], "Names of rows; empty: all.")
TPUS = flags.DEFINE_list("tpus", [], "Slices; empty: the slices of each row.")
TEXT = flags.DEFINE_string("text", "", "Write the optimised program of the last row here.")

EVERY_GENERATION = ("v3-128", "v4-32", "v5litepod-64", "v5p-32", "v6e-64")


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration with the slices that it is compiled for: a row of the table for each slice.

    configuration: name of a file in configs/, with another model after a colon: "mural_base:siglip".
    tpus: slices as Google Cloud names them.
    fields: {path in the configuration: value}, set after the file's.
    chunks: {slice: `train.micro_batches`} where one pass does not fit.
    write_module: writes the TF-Hub module of the text tower into a folder, for a module that no checkout can hold.
    """

    configuration: str
    tpus: tuple[str, ...] = EVERY_GENERATION
    fields: dict = dataclasses.field(default_factory=dict)
    chunks: dict[str, int] = dataclasses.field(default_factory=dict)
    write_module: Callable[[str], None] | None = None


def _siglip_base() -> dict:
    """Returns {field: value} of SigLIP's base towers (Zhai et al., 2023), as an imported checkpoint sets them."""
    image = dict(name="vit", image_size=224, resize=224, normalization="symmetric", branch_size=0, projection=0)
    text = dict(
        norm="before",
        activation="gelu_tanh",
        epsilon=1e-6,
        attention="full",
        pooling="last",
        pooler_size=0,
        dropout=0.0,
    )
    return {
        **{f"image_tower.{name}": value for name, value in image.items()},
        **{f"text_tower.{name}": value for name, value in text.items()},
        "embedding_size": 768,
        "vocabulary.size": 32_000,
    }


def _write_labse(folder: str) -> None:
    """Writes a TF-Hub module of a text encoder with random weights, with LaBSE's interface, sizes and precision.

    It is BERT-base with 501,153 word pieces and 512 positions. The head, Dense(768), is as large as LaBSE's pooler.
    """
    config = labse_text.get_config()
    config.embedding_size = config.image_tower.projection = 768
    config.text_tower.update(dict(max_length=512, precision="float32"))
    set_fusion("off")
    tf.saved_model.save(text_encoder_module(build_model(config, 501_153)), folder)


def _translation_distillation() -> dict:
    """Returns {field: value} that run_finetune.py sets after a MURAL-base, if there are pairs for its largest batch."""
    pairs = LARGEST_BATCH // 2
    return {
        "method.heads_of": "mural",
        "train.steps": MOST_STEPS,
        "train.text_text_batch": pairs,
        "train.image_text_batch": pairs // 4,
        "optimizer.learning_rate": STAGE_RATE * (STAGE_WIDTH / base_config().text_tower.hidden_size) ** 2,
    }


ROWS = {
    "mural_base": Row("mural_base", chunks={"v4-32": 2, "v5litepod-64": 2}),
    "mural_large": Row("mural_large", chunks={"v3-128": 4, "v4-32": 16, "v5litepod-64": 8, "v5p-32": 8, "v6e-64": 4}),
    "align_base": Row("align_base"),
    "etcl_finetune": Row("etcl_finetune"),
    "globetrotter_resnet18": Row("globetrotter_resnet18", ("v3-32", "v4-32", "v5litepod-32", "v5p-32", "v6e-32")),
    # 450 pictures, which few numbers of replicas divide: the smallest slices of the others have 4 or 8.
    "mule": Row("mule", ("v5litepod-1", "v6e-1"), chunks={"v5litepod-1": 5, "v6e-1": 5}),
    "labse_text": Row("labse_text"),
    "siglip_base": Row("mural_base:siglip", fields=_siglip_base()),
    "mural_labse": Row("mural_labse", chunks={"v4-32": 2}, write_module=_write_labse),
    "translation_distillation": Row("translated", fields=_translation_distillation()),
}


def configuration(row: Row, tpu: str) -> ConfigDict:
    """Returns the complete configuration of a row as a run has it on `tpu`, a slice's name: "v4-32"."""
    module_name, _, method = row.configuration.partition(":")
    config = importlib.import_module(f"mural_tf.configs.{module_name}").get_config()
    if method:
        config.model = method
    config = complete(config)
    with config.unlocked():  # fields of a method may be new
        for path, value in row.fields.items():
            *branches, field = path.split(".")
            branch = config
            for name in branches:
                branch = branch[name]
            branch[field] = value
    config.train.micro_batches = row.chunks.get(tpu, config.train.micro_batches)
    return as_compiled(as_on_tpu(config), tf.distribute.get_strategy())


def measure(name: str, tpu: str) -> dict[str, str]:
    """Returns the cells of a row of `ROWS` on a slice, {column: text}.

    The cell "answer" is "accepted" or the compiler's refusal, after which cells are missing.
    """
    row = ROWS[name]
    config = configuration(row, tpu)
    if row.write_module is None:
        return _measure_step(name, config, tpu)
    with tempfile.TemporaryDirectory() as folder:
        announce("Writing the module of the text tower …")
        # In a process of its own: its weights then leave the compiler memory.
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(row.write_module, folder).result()
        config.text_tower.handle = folder
        return _measure_step(name, config, tpu)


def _measure_step(name: str, config: ConfigDict, tpu: str) -> dict[str, str]:
    """Compiles the step of a configuration for a slice, and returns its cells, see `measure`."""
    slice_ = find_slice(tpu)
    cells = {"configuration": name, "slice": tpu, "chunks": str(config.train.micro_batches)}
    try:
        check_train(config, slice_.replicas, tpu)
        step = compile_for_slice(config, config.vocabulary.size, slice_, TEXT.value)
    except RefusedStep as refused:
        return {**cells, "answer": " ".join(str(refused).split())[:200]}
    transferred = sum(transfers["bytes"] for transfers in step.collectives.values())
    return {
        **cells,
        "answer": "accepted",
        "arguments, GB": f"{step.arguments / 1e9:.2f}",
        "temporary, GB": f"{step.temporary / 1e9:.2f}",
        "program, MB": f"{step.program / 1e6:.0f}",
        "of GB": f"{slice_.generation.memory / 1e9:.1f}",
        "million cycles": f"{step.cycles / 1e6:.1f}",
        "seconds": f"{step.seconds:.4f}",
        "GFLOP": f"{step.flops / 1e9:.0f}",
        "of the peak": f"{step.utilisation:.0%}",
        "between chips, GB": f"{transferred / 1e9:.2f}",
    }


def main(arguments: list[str]) -> None:
    """Measures the rows that the file lacks; after each it prints the row and writes the file."""
    del arguments
    path = pathlib.Path(OUTPUT.value)
    rows = read_rows(path)
    measured = {(row["configuration"], row["slice"]) for row in rows}
    for name in ONLY.value or ROWS:
        for tpu in TPUS.value or ROWS[name].tpus:
            if (name, tpu) in measured:
                continue
            cells = measure(name, tpu)
            print(cells, flush=True)
            rows.append(cells)
            write_rows(path, rows)


if __name__ == "__main__":
    flags.mark_flag_as_required("output")
    with announcing():
        try:
            app.run(main)
        except UserError as error:
            sys.exit(str(error))
