"""Our side of `benchmarks.serving`: builds a random model's export, or times an export's signatures when asked."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations


def build(export: pathlib.Path, inputs: pathlib.Path, pixels: int, tiny: bool) -> None:
    """Exports EfficientNet-B0 and BERT-base with random weights."""
    from mural_tf.config import base_config
    from mural_tf.export.saved_model import export_model
    from mural_tf.models import build_model
    from mural_tf.text import build_tokenizer

    config = base_config()
    config.model = "align"
    config.image_tower.update(dict(width=1.0, depth=1.0, image_size=pixels, resize=pixels))
    config.embedding_size = 320
    config.vocabulary.lower_case = True
    if tiny:
        config.image_tower.update(dict(width=0.25, depth=0.25))
        config.text_tower.update(dict(layers=1, hidden_size=32, heads=2, feed_forward_size=64))
        config.embedding_size = 80
    tokenizer = build_tokenizer(config, inputs / "vocabulary.txt")
    export_model(build_model(config, tokenizer.vocabulary_size), tokenizer, config, export)


class Encoders:
    """Times the two signatures from the wire's bytes on."""

    def __init__(self, export: pathlib.Path, inputs: pathlib.Path, batch: int):
        self.batch = batch
        self._loaded = {name: tf.saved_model.load(str(export / f"{name}_encoder/1")) for name in ("text", "image")}
        texts = (inputs / "texts.txt").read_text(encoding="utf-8").splitlines()
        self._items = {
            "text": [text.encode() for text in texts],
            "image": [path.read_bytes() for path in sorted((inputs / "images").iterdir())],
        }

    def encode(self, case: str, items: list[bytes]) -> None:
        signature = self._loaded[case].signatures["serving_default"]
        name = {"text": "text", "image": "image_bytes"}[case]
        signature(**{name: tf.constant(items)})["embedding"].numpy()

    def rounds(self, case: str) -> dict:
        """All items in batches: seconds and processor seconds."""
        items = self._items[case]
        start, processor = time.perf_counter(), time.process_time()
        for i in range(0, len(items), self.batch):
            self.encode(case, items[i : i + self.batch])
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        return {"seconds": seconds, "processor": processor, "items": len(items)}

    def singles(self, case: str, count: int) -> list[float]:
        """Milliseconds of each single request, after ten that are not counted."""
        items, milliseconds = self._items[case], []
        for i in range(count + 10):
            start = time.perf_counter()
            self.encode(case, [items[i % len(items)]])
            milliseconds.append(1000 * (time.perf_counter() - start))
        return milliseconds[10:]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("build", "export", "inputs"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    for name in ("pixels", "batch", "threads"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    if arguments.threads:
        tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    if arguments.build:
        build(arguments.build, arguments.inputs, arguments.pixels, arguments.tiny)
        return
    encoders = Encoders(arguments.export, arguments.inputs, arguments.batch)
    for line in sys.stdin:
        request = json.loads(line)
        if "singles" in request:
            answer = {"milliseconds": encoders.singles(request["case"], request["singles"])}
        else:
            answer = encoders.rounds(request["case"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
