"""Large batches on small memory: time per pair and peak memory of one MURAL step, with and without micro-batches.

    python -m benchmarks.micro_batches --cases=256:1,512:8,4096:64

A case is BATCH:MICRO_BATCHES and runs in a process of its own: MURAL-base (EfficientNet-B5, BERT-base, 250k word
pieces, LAMB), BATCH image-text pairs and as many text pairs, all texts of full length. Two steps; the second is timed.
Prints seconds, milliseconds a pair, peak memory, and both as ratios to the first case.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

from absl import app, flags

CASES = flags.DEFINE_list("cases", ["256:1", "512:8", "4096:64"], "BATCH:MICRO_BATCHES, one process each.")
SIDE = flags.DEFINE_integer("side", 64, "Pixels.")
LENGTH = flags.DEFINE_integer("length", 8, "Tokens of every text.")
VOCABULARY = flags.DEFINE_integer("vocabulary_size", 250_000, "Word pieces.")
ONE = flags.DEFINE_string("one", "", "Used by the benchmark itself: run this case here.")


def step_once(batch: int, micro_batches: int) -> dict:
    """Runs two steps; returns the seconds of both and this process's peak memory in GiB."""
    import tensorflow as tf

    from mural_tf.configs.mural_base import get_config
    from mural_tf.models import build_model
    from mural_tf.training.fit import compile_model

    config = get_config()
    config.image_tower.image_size = SIDE.value
    config.text_tower.max_length = LENGTH.value
    config.train.micro_batches = micro_batches
    model = build_model(config, VOCABULARY.value)
    compile_model(model, config)
    seconds = []
    for _ in range(2):
        begun = time.monotonic()
        logs = model.fit(tf.data.Dataset.from_tensors(examples(batch)), verbose=0).history
        seconds.append(time.monotonic() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "peak_gib": peak, "loss": logs["loss"][0], "parameters": model.count_params()}


def examples(batch: int) -> dict:
    """Random images and texts."""
    import tensorflow as tf

    def tokens(seed):
        words = tf.random.stateless_uniform([batch, LENGTH.value], [seed, 0], 5, VOCABULARY.value, tf.int32)
        return {
            "input_word_ids": words,
            "input_mask": tf.ones_like(words),
            "input_type_ids": tf.zeros_like(words),
        }

    size = [batch, SIDE.value, SIDE.value, 3]
    ids = tf.range(batch, dtype=tf.int64)
    images = tf.cast(tf.random.stateless_uniform(size, [3, 0], 0, 256, tf.int32), tf.uint8)
    texts = {name: tokens(seed) for seed, name in enumerate(("caption", "text_a", "text_b"))}
    return {"image": images, **texts, **{f"{name}_id": ids for name in ("image", *texts)}}


def main(_):
    if ONE.value:
        print("RESULT " + json.dumps(step_once(*map(int, ONE.value.split(":")))))
        return
    first = None
    for case in CASES.value:
        batch, micro_batches = map(int, case.split(":"))
        command = [sys.executable, "-m", "benchmarks.micro_batches", f"--one={case}", *sys.argv[1:]]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            print(f"{case}: did not end (exit code {done.returncode}): {done.stderr.strip()[-300:]}")
            continue
        result = json.loads(lines[0][7:])
        per_pair = 1000 * result["seconds"][1] / batch
        first = first or (per_pair, result["peak_gib"])
        print(
            f"{batch} pairs in {micro_batches} chunk(s): {result['seconds'][1]:.1f} s (first step "
            f"{result['seconds'][0]:.1f} s), {per_pair:.1f} ms a pair ({per_pair / first[0]:.2f}), peak "
            f"{result['peak_gib']:.2f} GiB ({result['peak_gib'] / first[1]:.2f}), loss {result['loss']:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
