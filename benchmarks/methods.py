"""The training step of several configurations side by side: how many steps of one buy a step of another.

    python -m benchmarks.methods --configs=emoji_mural_long,emoji_align_long

All run in one process in turns, each on its own data, so that a busy machine slows them alike. Prints the median wall
and processor time of a step, reading and augmenting included, and their ratios to the last configuration's. Processor
time is the one to trust when other programs run: it leaves out the waiting for them.
"""

from __future__ import annotations

import importlib
import statistics
import time

from absl import app, flags

CONFIGS = flags.DEFINE_list("configs", ["emoji_mural_long", "emoji_align_long"], "Names of files in configs/.")
DATA = flags.DEFINE_string("data_dir", "", "The data folder; empty: the configurations' own.")
ROUNDS = flags.DEFINE_integer("rounds", 15, "Turns of each configuration.")
STEPS = flags.DEFINE_integer("steps", 10, "Steps a turn.")
WARMUP = flags.DEFINE_integer("warmup", 200, "Steps before: new lengths of texts are compiled in the first ones.")


def stepper(name: str):
    """Returns a function that runs STEPS steps of a configuration and returns (wall, processor) seconds a step."""
    import tensorflow as tf

    from mural_tf.data.streams.pipeline import training_batches
    from mural_tf.models import build_model
    from mural_tf.text import build_tokenizer
    from mural_tf.training.fit import compile_model
    from mural_tf.training.prepare import find_vocabulary, prepare_data

    config = importlib.import_module(f"configs.{name}").get_config()
    config.data.directory = DATA.value or config.data.directory
    prepare_data(config)
    tokenizer = build_tokenizer(config, find_vocabulary(config))
    tf.keras.utils.set_random_seed(config.seed)
    model = build_model(config, tokenizer.vocabulary_size)
    compile_model(model, config)
    batches = training_batches(config, tokenizer, streams=model.streams, pad="longest")
    iterator = iter(batches)

    def run() -> tuple[float, float]:
        begun = time.monotonic(), time.process_time()
        model.fit(iterator, steps_per_epoch=STEPS.value, verbose=0)
        return (time.monotonic() - begun[0]) / STEPS.value, (time.process_time() - begun[1]) / STEPS.value

    return run


def main(_):
    steppers = {name: stepper(name) for name in CONFIGS.value}
    for _ in range(WARMUP.value // STEPS.value):
        for run in steppers.values():
            run()
    seconds = {name: [] for name in steppers}
    for _ in range(ROUNDS.value):
        for name, run in steppers.items():
            seconds[name].append(run())
    medians = {name: [statistics.median(column) for column in zip(*values)] for name, values in seconds.items()}
    reference = CONFIGS.value[-1]
    for name, (wall, processor) in medians.items():
        print(
            f"{name}: {wall:.3f} s a step, {wall / medians[reference][0]:.2f} of {reference}'s; "
            f"{processor:.3f} s of processor time, {processor / medians[reference][1]:.2f} of {reference}'s"
        )


if __name__ == "__main__":
    app.run(main)
