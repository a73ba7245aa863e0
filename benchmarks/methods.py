"""The training step of several configurations side by side: how many steps of one buy a step of another.

    python -m benchmarks.methods --configs=emoji_mural_long,emoji_align_long

All run in one process by turns, each on its own data, so that a busy machine slows them alike. Prints the median time
of a step, reading and augmenting included, and its ratio to the last configuration's.
"""

from __future__ import annotations

import importlib
import pathlib
import statistics
import tempfile
import time

from absl import app, flags

CONFIGS = flags.DEFINE_list("configs", ["emoji_mural_long", "emoji_align_long"], "Names of files in configs/.")
DATA = flags.DEFINE_string("data_dir", "", "The data folder; empty: the configurations' own.")
ROUNDS = flags.DEFINE_integer("rounds", 15, "Turns of each configuration.")
STEPS = flags.DEFINE_integer("steps", 10, "Steps a turn.")


def stepper(name: str, folder: pathlib.Path):
    """Returns a function that runs STEPS steps of a configuration and returns seconds a step."""
    import tensorflow as tf

    from mural_tf.data.pipeline import training_batches
    from mural_tf.data.skipped import SkippedRecords
    from mural_tf.models import build_model
    from mural_tf.training.fit import compile_model
    from mural_tf.training.sources import prepare_data, prepare_tokenizer

    config = importlib.import_module(f"configs.{name}").get_config()
    config.data.directory = DATA.value or config.data.directory
    prepare_data(config)
    folder.mkdir()
    tokenizer = prepare_tokenizer(config, folder)
    tf.keras.utils.set_random_seed(config.seed)
    model = build_model(config, tokenizer.vocabulary_size)
    compile_model(model, config)
    batches = training_batches(config, tokenizer, SkippedRecords(1.0), streams=model.streams, pad="longest")
    iterator = iter(batches)

    def run() -> float:
        begun = time.monotonic()
        model.fit(iterator, steps_per_epoch=STEPS.value, verbose=0)
        return (time.monotonic() - begun) / STEPS.value

    return run


def main(_):
    with tempfile.TemporaryDirectory() as folder:
        steppers = {name: stepper(name, pathlib.Path(folder) / name) for name in CONFIGS.value}
        for _ in range(3):  # new shapes of texts are compiled in the first steps
            for run in steppers.values():
                run()
        seconds = {name: [] for name in steppers}
        for _ in range(ROUNDS.value):
            for name, run in steppers.items():
                seconds[name].append(run())
    last = statistics.median(list(seconds.values())[-1])
    for name, values in seconds.items():
        middle, best = statistics.median(values), min(values)
        print(f"{name}: {middle:.3f} s a step (fastest turn {best:.3f}), {middle / last:.2f} of {CONFIGS.value[-1]}'s")


if __name__ == "__main__":
    app.run(main)
