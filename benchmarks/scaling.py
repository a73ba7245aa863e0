"""What global negatives cost: gathering embeddings and the loss over them, on 1 to 8 logical devices of this machine.

    python -m benchmarks.scaling --batch=2048 --devices=1,2,4,8

Every device gathers all embeddings of the global batch, ranks its own rows against them, and sends the gradients back,
as the training step does; the towers are left out. The devices share this machine's cores and the products add up to
the same whole, so what grows with their number is the gather and its gradient. One process for each case, in turns.
Then the arithmetic for pods: bytes and memory per core, from batch, embedding size and parameters alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

from absl import app, flags

BATCH = flags.DEFINE_integer("batch", 2048, "Global batch of either task.")
SIZE = flags.DEFINE_integer("embedding_size", 512, "Embedding size.")
DEVICES = flags.DEFINE_list("devices", ["1", "2", "4", "8"], "Numbers of logical devices.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each number of devices.")
STEPS = flags.DEFINE_integer("steps", 3, "Steps a turn.")
PARAMETERS = flags.DEFINE_float("parameters", 300e6, "Parameters, whose gradients are added up too.")
IMAGE_GIGA = flags.DEFINE_float("image_giga", 4.0, "10^9 multiply-adds an image: EfficientNet-B5, 9.9 at 456 pixels.")
TEXT_GIGA = flags.DEFINE_float("text_giga", 5.5, "10^9 multiply-adds a text: BERT-base, 64 tokens.")
TERAFLOPS = flags.DEFINE_float("teraflops", 18.0, "Reached by a core: 30% of a TPU v3 core's 61.5.")
BANDWIDTH = flags.DEFINE_float("bandwidth", 83.0, "GB/s of a core's all-reduce: half of a TPU v3 pod's figure a core.")
WORKER = flags.DEFINE_integer("worker", 0, "Used by the benchmark itself.")

EMBEDDINGS = 4  # image, caption and both texts of a pair
FLOAT = 4  # bytes
KEPT = 2  # copies of the logits that the gradient needs: themselves and their softmax
FLOAT32_PASSES = 6  # bfloat16 products that a TPU makes of one in float32


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
            for _ in range(STEPS.value):
                tf.nest.map_structure(lambda v: v.numpy(), strategy.experimental_local_results(run[gather]()))
            seconds.append((time.monotonic() - begun) / STEPS.value)
        print(json.dumps(seconds), flush=True)


def measure() -> None:
    workers = {}
    for devices in map(int, DEVICES.value):
        command = [sys.executable, "-m", "benchmarks.scaling", f"--worker={devices}", *sys.argv[1:]]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        workers[devices] = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    times = {devices: [] for devices in workers}
    for turn in range(ROUNDS.value + 1):
        for devices, worker in workers.items():
            worker.stdin.write("go\n")
            worker.stdin.flush()
            seconds = json.loads(worker.stdout.readline())
            if turn:  # the first one warms up
                times[devices].append(seconds)
    for worker in workers.values():
        worker.stdin.close()
    print(f"Global batch {BATCH.value} of both tasks, D {SIZE.value}; medians of {ROUNDS.value} turns:")
    base = statistics.median(whole for whole, _ in next(iter(times.values())))
    for devices, seconds in times.items():
        whole, alone = (statistics.median(values) for values in zip(*seconds))
        print(
            f"  {devices} device(s): {1000 * whole:.0f} ms a step ({whole / base:.2f}), {1000 * (whole - alone):.0f} "
            "ms more than the same products without communication"
        )


def arithmetic() -> None:
    """Prints what a core gathers, keeps and computes in a step, and the share of the step that is not towers."""
    operations = 3 * 2 * 1e9 * (IMAGE_GIGA.value + 3 * TEXT_GIGA.value)  # of the towers, both tasks, both passes
    speed, bandwidth = 1e12 * TERAFLOPS.value, 1e9 * BANDWIDTH.value
    gradients = PARAMETERS.value * FLOAT
    print(
        f"Arithmetic: D {SIZE.value}, {PARAMETERS.value / 1e6:.0f}M parameters, {operations / 1e9:.0f} GFLOP a pair of "
        f"both tasks; a core reaches {TERAFLOPS.value:g} TFLOP/s and all-reduces {BANDWIDTH.value:g} GB/s, one after "
        "the other."
    )
    print(
        "| cores | batch | pairs a core | gathered, MiB | logits kept, MiB | towers, s | loss, s | gather and its "
        "gradient, s | gradients added up, s | efficiency |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for cores in (128, 512):
        for batch in (4096, 16384, 65536):
            rows = batch // cores
            gathered = EMBEDDINGS * batch * SIZE.value * FLOAT
            logits = EMBEDDINGS * KEPT * rows * batch * FLOAT  # 2 tasks in 2 directions
            towers = operations * rows / speed
            loss = 3 * 2 * EMBEDDINGS * rows * batch * SIZE.value * FLOAT32_PASSES / speed
            gather = (1 + 2) * gathered / bandwidth  # an all-gather, and an all-reduce in the gradient
            added = 2 * gradients / bandwidth
            print(
                f"| {cores} | {batch:,} | {rows} | {gathered / 2**20:.0f} | {logits / 2**20:.0f} | {towers:.3f} | "
                f"{loss:.4f} | {gather:.4f} | {added:.3f} | {towers / (towers + loss + gather + added):.2f} |"
            )


def main(_):
    if WORKER.value:
        serve(WORKER.value)
    else:
        measure()
        arithmetic()


if __name__ == "__main__":
    app.run(main)
