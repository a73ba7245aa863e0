"""What global negatives cost: gathering embeddings and the loss over them, on 1 to 8 logical devices of this machine.

    python -m benchmarks.scaling --batch=2048 --devices=1,2,4,8

Every device gathers all embeddings of the global batch, ranks its own rows against them, and sends the gradients back,
as the training step does; the towers are left out. The devices share this machine's cores and the products add up to
the same whole, so what grows with their number is the gather and its gradient. One process for each case, in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from absl import app, flags

from benchmarks.against_transformers import Side

BATCH = flags.DEFINE_integer("batch", 2048, "Global batch of either task.")
SIZE = flags.DEFINE_integer("embedding_size", 512, "Embedding size.")
DEVICES = flags.DEFINE_list("devices", ["1", "2", "4", "8"], "Numbers of logical devices.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each number of devices.")
WORKER = flags.DEFINE_integer("worker", 0, "Used by the benchmark itself.")

STEPS = 3  # a turn
EMBEDDINGS = 4  # image, caption and both texts of a pair


def serve(devices: int) -> None:
    """Reads lines; for each runs STEPS steps and prints [seconds with gather, seconds without] a step."""
    import tensorflow as tf

    from mural_tf.losses.contrastive import contrastive_loss
    from mural_tf.losses.pairs import Pairs

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    rows = BATCH.value // devices

    def embeddings(context):
        return [
            tf.math.l2_normalize(
                tf.random.stateless_normal([rows, SIZE.value], [seed, context.replica_id_in_sync_group]), axis=1
            )
            for seed in range(EMBEDDINGS)
        ]

    def step(values, gather: bool):
        context = tf.distribute.get_replica_context()
        first = context.replica_id_in_sync_group * rows
        with tf.GradientTape() as tape:
            tape.watch(values)
            if gather and devices > 1:
                whole = [context.all_gather(tf.identity(value), axis=0) for value in values]
            else:  # the same products without communication: the own rows stand in for the others'
                whole = [tf.tile(value, [devices, 1]) for value in values]
            image, caption, text_a, text_b = whole
            loss = contrastive_loss(Pairs(image, caption, rows=(first, rows)), 0.07)
            loss += contrastive_loss(Pairs(text_a, text_b, rows=(first, rows)), 0.01, margin=0.3)
        return tf.add_n([tf.reduce_sum(gradient) for gradient in tape.gradient(loss, values)])

    values = strategy.experimental_distribute_values_from_function(embeddings)
    run = {gather: tf.function(lambda gather=gather: strategy.run(step, (values, gather))) for gather in (True, False)}
    for line in sys.stdin:
        del line
        seconds = []
        for gather in (True, False):
            run[gather]()  # also traces, the first time
            begun = time.monotonic()
            for _ in range(STEPS):
                tf.nest.map_structure(lambda v: v.numpy(), strategy.experimental_local_results(run[gather]()))
            seconds.append((time.monotonic() - begun) / STEPS)
        print(json.dumps({"seconds": seconds}), flush=True)


def main(_) -> None:
    if WORKER.value:
        serve(WORKER.value)
        return
    command = [sys.executable, "-m", "benchmarks.scaling", *sys.argv[1:]]
    workers = {devices: Side([*command, f"--worker={devices}"]) for devices in map(int, DEVICES.value)}
    turns = [{devices: side.ask()["seconds"] for devices, side in workers.items()} for _ in range(ROUNDS.value + 1)]
    for worker in workers.values():
        worker.close()
    print(f"Global batch {BATCH.value} of both tasks, D {SIZE.value}; medians of {ROUNDS.value} turns:")
    base = None
    for devices in workers:
        seconds = [turn[devices] for turn in turns[1:]]  # the first one warms up
        whole, alone = (statistics.median(values) for values in zip(*seconds))
        base = base or whole
        print(
            f"  {devices} device(s): {1000 * whole:.0f} ms a step ({whole / base:.2f}), {1000 * (whole - alone):.0f} "
            "ms more than the same products without communication"
        )


if __name__ == "__main__":
    app.run(main)
