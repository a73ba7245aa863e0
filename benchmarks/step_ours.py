"""Our side of `benchmarks.against_transformers`: for every line read, a step of ALIGN on each batch of a case."""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
import tensorflow as tf

from mural_tf.config import base_config
from mural_tf.models import build_model
from mural_tf.training.fit import compile_model

VOCABULARY = 30_522


def build(image_precision: str, text_precision: str, pixels: int):
    """Returns ALIGN with EfficientNet-B0 and BERT-base, compiled with AdamW."""
    config = base_config()
    config.model, config.embedding_size = "align", 320
    config.image_tower.update(dict(width=1.0, depth=1.0, image_size=pixels, resize=pixels, precision=image_precision))
    config.text_tower.update(dict(precision=text_precision, length_groups=4))
    config.optimizer.update(dict(name="adamw", learning_rate=1e-4))
    config.loss.label_smoothing = 0.1
    model = build_model(config, VOCABULARY)
    compile_model(model, config)
    return model


def batch(lengths: list[int], pixels: int) -> dict:
    """A batch padded to its longest text."""
    rng = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    ids = rng.integers(5, VOCABULARY, mask.shape).astype(np.int32) * mask
    tokens = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}
    return {
        "image": tf.constant(rng.integers(0, 256, (len(lengths), pixels, pixels, 3)).astype(np.uint8)),
        "image_id": tf.range(len(lengths), dtype=tf.int64),
        "caption": {name: tf.constant(value) for name, value in tokens.items()},
        "caption_id": tf.range(len(lengths), dtype=tf.int64),
    }


def peak(dtype: tf.DType, size: int = 2048) -> float:
    """Floating-point operations a second of one matrix product, the better of three."""
    a = tf.cast(tf.random.uniform((size, size)), dtype)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        tf.matmul(a, a)[0, 0].numpy()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("pixels", "threads"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("cases", "image_precision", "text_precision"):
        parser.add_argument(f"--{name}")
    arguments = parser.parse_args()
    if arguments.threads:
        tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    model = build(arguments.image_precision, arguments.text_precision, arguments.pixels)
    cases = json.loads(arguments.cases)
    batches = {name: [batch(lengths, arguments.pixels) for lengths in several] for name, several in cases.items()}
    step = tf.function(model.train_step, reduce_retracing=True)
    for line in sys.stdin:
        case = batches[json.loads(line)["case"]]
        start, processor = time.perf_counter(), time.process_time()
        for inputs in case:
            loss = float(step(inputs)["loss"])
        answer = {"elapsed": time.perf_counter() - start, "processor": time.process_time() - processor, "loss": loss}
        answer["peaks"] = {dtype.name: peak(dtype) for dtype in (tf.float32, tf.bfloat16)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
