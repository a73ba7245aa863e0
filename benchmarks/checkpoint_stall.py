"""What a checkpoint costs the training loop, beside writing it in the loop as `tf.train.Checkpoint` does.

    python benchmarks/checkpoint_stall.py                          # 300M parameters and two slots: MURAL-base, 3.6 GB
    python benchmarks/checkpoint_stall.py --parameters=20000000    # a quick look

The model is MURAL-base's sizes in plain variables: a table of 250,000 x 768 token embeddings (two thirds of the
parameters, if fewer are asked for) and 768 x 768 matrices, with MURAL-base's optimiser, LAMB, and its two slots. A
"step" is the optimiser's update alone; it is what parts the memory of the variables from that of a snapshot.

stall: how long `save` keeps the loop. next step: how much longer the first step after it takes than the median step,
because memory is copied there. while writing: how much longer the other steps take together until the file is
complete, because they share the processor with the thread that writes. total: until the file is complete.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import shutil
import statistics
import tempfile
import time

import tensorflow as tf

from mural_tf.config import base_config
from mural_tf.optimizers import build_optimizers
from mural_tf.training.checkpoints import Checkpoints

TABLE, MATRIX = (250_000, 768), (768, 768)


def build(parameters: int):
    """Returns a checkpoint of variables with slots, the variables, and their optimiser."""
    rows = min(TABLE[0], parameters * 2 // 3 // TABLE[1])
    variables = [tf.Variable(tf.zeros([rows, TABLE[1]]), name="embeddings")]
    left = parameters - rows * TABLE[1]
    for number in range(max(1, left // (MATRIX[0] * MATRIX[1]))):
        variables.append(tf.Variable(tf.zeros(MATRIX), name=f"kernel_{number}"))
    optimizer = build_optimizers(base_config().optimizer, 600_000, {}, ())["joint"]
    optimizer._create_all_weights(variables)
    return tf.train.Checkpoint(variables=variables, optimizer=optimizer), variables, optimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=300_000_000)
    parser.add_argument("--saves", type=int, default=2, help="of either kind, interleaved")
    parser.add_argument("--folder", default=None, help="where to write; default: the system's temporary folder")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    checkpoint, variables, optimizer = build(arguments.parameters)
    count = sum(variable.shape.num_elements() for variable in variables)

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in variables])

    def timed(function) -> float:
        begun = time.perf_counter()
        function()
        return time.perf_counter() - begun

    try:
        ours = Checkpoints(checkpoint, folder / "ours", keep=1)
        print(f"{count:,} parameters, {12 * count / 1e9:.1f} GB; prepared in {timed(ours.prepare):.1f} s", flush=True)
        median = statistics.median([timed(step) for _ in range(5)][1:])
        print(f"median step {median:.2f} s")
        for number in range(1, arguments.saves + 1):
            path = str(folder / "theirs-1")
            direct = timed(lambda path=path: checkpoint.write(path))
            begun = time.perf_counter()
            stall = timed(lambda number=number: ours.save(number))
            following = timed(step) - median
            shared = 0.0
            while ours._thread.is_alive():
                shared += timed(step) - median
            ours.wait()
            total = time.perf_counter() - begun
            print(
                f"save {number}: stall {stall:.2f} s, next step +{following:.2f} s, while writing +{shared:.2f} s, "
                f"total {total:.1f} s; in the loop {direct:.1f} s = {direct / (stall + max(following, 0)):.0f} x "
                "stall and next step",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
