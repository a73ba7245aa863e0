"""What global negatives cost: gathering embeddings and the loss over them, on 1 to 8 logical devices of this machine.

    python -m benchmarks.scaling --batch=2048 --devices=1,2,4,8

Every device gathers all embeddings of the global batch, ranks its own rows against them, and sends the gradients back,
as the training step does; the towers are left out. The devices share this machine's cores and the products add up to
the same whole, so what grows with their number is the gather and its gradient. One process for each number, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import tensorflow as tf

from benchmarks.against_transformers import Side
from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.pairs import Pairs

STEPS = 3  # a turn
EMBEDDINGS = 4  # image, caption and both texts of a pair


def answer_as(devices: int, batch: int, size: int) -> None:
    """Is the process of so many devices: for every line read [seconds of a step, seconds without the gather]."""
    logical = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    rows = batch // devices

    def embeddings(context):
        seeds = [[number, context.replica_id_in_sync_group] for number in range(EMBEDDINGS)]
        return [tf.math.l2_normalize(tf.random.stateless_normal([rows, size], seed), axis=1) for seed in seeds]

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
    run = tf.function(lambda gather: strategy.run(step, (values, gather)))

    def seconds(gather: bool) -> float:
        run(gather)  # traces, the first time
        begun = time.monotonic()
        for _ in range(STEPS):
            for value in strategy.experimental_local_results(run(gather)):
                value.numpy()
        return (time.monotonic() - begun) / STEPS

    for _ in sys.stdin:
        print(json.dumps({"seconds": [seconds(True), seconds(False)]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2048, help="global batch of either task")
    parser.add_argument("--embedding_size", type=int, default=512)
    parser.add_argument("--devices", default="1,2,4,8", help="numbers of logical devices")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each number of devices")
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        answer_as(arguments.worker, arguments.batch, arguments.embedding_size)
        return
    command = [sys.executable, "-m", "benchmarks.scaling", *sys.argv[1:]]
    workers = {devices: Side([*command, f"--worker={devices}"]) for devices in map(int, arguments.devices.split(","))}
    turns = [{devices: side.ask()["seconds"] for devices, side in workers.items()} for _ in range(arguments.rounds + 1)]
    print(f"Global batch {arguments.batch} of both tasks, D {arguments.embedding_size}; medians of the turns:")
    base = None
    for devices, side in workers.items():
        side.close()
        whole, alone = (statistics.median(turn[devices][i] for turn in turns[1:]) for i in range(2))  # one warms up
        base = base or whole
        print(
            f"  {devices} device(s): {1000 * whole:.0f} ms a step ({whole / base:.2f}), {1000 * (whole - alone):.0f} "
            "ms more than the same products without communication"
        )


if __name__ == "__main__":
    main()
