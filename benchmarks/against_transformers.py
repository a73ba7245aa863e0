"""One training step of our ALIGN and of Hugging Face transformers' `AlignModel` in PyTorch, on the same processor.

    python -m benchmarks.against_transformers --pytorch=/path/to/venv/bin/python

EfficientNet-B0 at 128 pixels and BERT-base (30,522 word pieces), 32 pairs; forward, backward and AdamW on both sides
(`torch.optim.AdamW(fused=True)`). PyTorch runs every one of SETTINGS and is compared in its fastest.
Cases, the last three of captions with lengths like Multi30K's (15 word pieces on average, and [CLS] and [SEP]):

    full             all 64 tokens real
    captions         PyTorch pads a batch to its longest caption
    captions_sorted  eight batches; PyTorch's are sorted by length, so that each is padded little; ours are as they come
    captions_64      PyTorch pads to 64, as `AlignProcessor` does

Each side lives in a process of its own and takes one step when asked to, in turns, so that a busy machine slows both
alike; ratios are medians of the rounds' ratios. Processor time counts all threads of the side. Utilisation is the
model's useful floating-point operations (real tokens, multiply and add, three times the forward pass) per second of
elapsed time over the same process's fastest 2048 x 2048 matrix product, measured in the same rounds. PyTorch's side
imports nothing of this project: it needs torch, transformers and NumPy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import time

import numpy as np

SETTINGS = ("float32", "float32+channels_last", "bfloat16", "bfloat16+channels_last")
VOCABULARY = 30_522
SIZE = 2048  # of the matrix product that measures the peak


def caption_lengths(count: int) -> list[int]:
    """Returns the token counts of `count` captions with [CLS] and [SEP], in random order: quantiles of a log-normal.

    Word pieces: 15 on average, at most 40; the words of Multi30K's English and German captions spread like this.
    """
    logarithms = statistics.NormalDist(np.log(14.3), 0.31)
    pieces = [math.exp(logarithms.inv_cdf((i + 0.5) / count)) for i in range(count)]
    return [2 + min(40, round(pieces[i])) for i in np.random.default_rng(0).permutation(count)]


def in_batches(lengths: list[int], batch: int) -> list[list[int]]:
    """Returns the lengths in their order, in lists of `batch`; the last list may be shorter."""
    return [lengths[begin : begin + batch] for begin in range(0, len(lengths), batch)]


def cases_of(batch: int) -> dict[str, dict[str, list[list[int]]]]:
    """Returns {case: {side: batches}}; a batch is a list of its texts' lengths, and PyTorch pads to the longest."""
    full = [[64] * batch]
    captions = [caption_lengths(batch)]
    many = caption_lengths(8 * batch)
    return {
        "full": {"ours": full, "PyTorch": full},
        "captions": {"ours": captions, "PyTorch": captions},
        "captions_sorted": {"ours": in_batches(many, batch), "PyTorch": in_batches(sorted(many), batch)},
        "captions_64": {"ours": captions, "PyTorch": captions},
    }


def useful_operations(lengths: list[int], pixels: int) -> float:
    """Returns the floating-point operations of a step that the model's definition asks for, on real tokens only."""
    layers = 12
    hidden = 768
    feed_forward = 3072
    dense = layers * (4 * hidden**2 + 2 * hidden * feed_forward) * sum(lengths)
    attention = layers * 2 * hidden * sum(n * n for n in lengths)
    image = 0.39e9 * (pixels / 224) ** 2 * len(lengths)  # EfficientNet-B0: 0.39 billion multiply-adds at 224
    return 3 * 2 * (dense + attention + image)


def drawn(lengths: list[int], width: int, pixels: int):
    """Returns images uint8 [N, pixels, pixels, 3], ids and mask int32 [N, width] of texts of `lengths` tokens."""
    generator = np.random.default_rng(0)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
    ids = generator.integers(5, VOCABULARY, mask.shape).astype(np.int32) * mask
    images = generator.integers(0, 256, (len(lengths), pixels, pixels, 3)).astype(np.uint8)
    return images, ids, mask


class Ours:
    """ALIGN with EfficientNet-B0 and BERT-base, compiled with AdamW."""

    def __init__(self, pixels: int):
        import tensorflow as tf

        from mural_lite.config import base_config
        from mural_tf.models.build import build_model
        from mural_tf.training.fit import compile_model

        config = base_config()
        config.model = "align"
        config.embedding_size = 320
        config.image_tower.update(dict(width=1.0, depth=1.0, image_size=pixels, resize=pixels))
        config.text_tower.length_groups = 4
        config.optimizer.update(dict(name="adamw", learning_rate=1e-4))
        config.loss.label_smoothing = 0.1
        model = build_model(config, VOCABULARY)
        compile_model(model, config)
        self._tf = tf
        self._pixels = pixels
        self._step = tf.function(model.train_step, reduce_retracing=True)

    def steps(self, batches: list[list[int]], case: str, setting: str):
        """Returns a function that takes a step on each of the batches, padded to their longest texts."""

        def batch(lengths: list[int]) -> dict:
            images, ids, mask = drawn(lengths, max(lengths), self._pixels)
            ordinals = np.arange(len(lengths))
            tokens = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}
            batch = {"image": images, "image_id": ordinals, "caption": tokens, "caption_id": ordinals}
            return self._tf.nest.map_structure(self._tf.constant, batch)

        examples = [batch(lengths) for lengths in batches]
        return lambda: [float(self._step(example)["loss"]) for example in examples]

    def product(self, dtype: str):
        """Returns a function that computes a matrix product of `SIZE`."""
        a = self._tf.cast(self._tf.random.uniform((SIZE, SIZE)), dtype)
        return lambda: self._tf.matmul(a, a)[0, 0].numpy()


class PyTorch:
    """`AlignModel` with the same towers in a setting: a dtype, then perhaps "+channels_last"."""

    def __init__(self, pixels: int):
        import torch
        from transformers import AlignConfig, AlignModel

        vision = dict(width_coefficient=1.0, depth_coefficient=1.0, image_size=pixels, hidden_dim=320)
        config = AlignConfig(vision_config=vision, text_config=dict(vocab_size=VOCABULARY), projection_dim=320)
        self._torch = torch
        self._pixels = pixels
        self._model = AlignModel(config).train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, weight_decay=1e-5, fused=True)

    def steps(self, batches: list[list[int]], case: str, setting: str):
        """Returns a function that takes a step on each of the batches, padded to 64 tokens if the case says so."""
        torch = self._torch
        layout = torch.channels_last if "channels_last" in setting else torch.contiguous_format
        self._model.to(memory_format=layout)

        def batch(lengths: list[int]) -> dict:
            width = 64 if case.endswith("_64") else max(lengths)
            images, ids, mask = drawn(lengths, width, self._pixels)
            pixels = torch.from_numpy(images / np.float32(255)).permute(0, 3, 1, 2).contiguous(memory_format=layout)
            tokens = {"input_ids": torch.from_numpy(ids).long(), "attention_mask": torch.from_numpy(mask).long()}
            return {"pixel_values": pixels, **tokens}

        def step(batch: dict) -> float:
            self._optimizer.zero_grad(set_to_none=True)
            is_mixed = setting.startswith("bfloat16")
            precision = torch.autocast("cpu", torch.bfloat16) if is_mixed else contextlib.nullcontext()
            with precision:
                loss = self._model(**batch, return_loss=True).loss
            loss.backward()
            self._optimizer.step()
            return loss.item()

        examples = [batch(lengths) for lengths in batches]
        return lambda: [step(example) for example in examples]

    def product(self, dtype: str):
        """Returns a function that computes a matrix product of `SIZE`."""
        a = self._torch.rand(SIZE, SIZE).to(getattr(self._torch, dtype))
        return lambda: a @ a


def answer_as(name: str, pixels: int, cases: dict[str, list[list[int]]]) -> None:
    """Runs one side in a process of its own: answers the requests {"case", "setting"} of standard input, a line each.

    An answer is {"elapsed", "processor": seconds of the case's steps; "peaks": {dtype: operations per second}}.
    """
    side = {"ours": Ours, "PyTorch": PyTorch}[name](pixels)
    products = {dtype: side.product(dtype) for dtype in ("float32", "bfloat16")}
    for line in sys.stdin:
        request = json.loads(line)
        elapsed, processor = seconds(side.steps(cases[request["case"]], **request))
        peaks = {}
        for dtype, multiply in products.items():
            fastest = min(seconds(multiply)[0] for _ in range(3))
            peaks[dtype] = 2 * SIZE**3 / fastest
        print(json.dumps({"elapsed": elapsed, "processor": processor, "peaks": peaks}), flush=True)


def seconds(run) -> tuple[float, float]:
    """Returns the elapsed and the processor seconds of a call."""
    elapsed_start = time.perf_counter()
    processor_start = time.process_time()
    run()
    return time.perf_counter() - elapsed_start, time.process_time() - processor_start


def spread(values: list[float]) -> str:
    """Returns "median (least to most)"."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


class Side:
    """A child process that answers one JSON line to every JSON line it gets."""

    def __init__(self, command: list[str]):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        """Returns the answer to a request, both JSON objects; ends this process if the child has ended."""
        print(json.dumps(request), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        sys.exit(f"{self.process.args[0]} ended with code {self.process.wait()}; its message is above.")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(case: str, lengths: list[int], sides: dict[str, Side], settings: dict[str, str], arguments) -> None:
    """Prints the sides' times, utilisation and ratios over interleaved rounds.

    Args:
      case: the name of a case, whose texts have so many tokens each, `lengths`.
      sides: {name: process that answers}.
      settings: {name of a side: its setting}.
      arguments: of the command line.
    """
    rounds = []  # of each the answers, {side: answer}
    for _ in range(arguments.rounds + 1):
        rounds.append({name: side.ask(case=case, setting=settings[name]) for name, side in sides.items()})
    del rounds[0]  # it warms up
    operations = useful_operations(lengths, arguments.pixels)
    for name in sides:
        elapsed = statistics.median(answers[name]["elapsed"] for answers in rounds)
        processor = statistics.median(answers[name]["processor"] for answers in rounds)
        peak = max(max(answers[name]["peaks"].values()) for answers in rounds)
        print(f"  {name:8} {settings[name]:24} {elapsed:7.2f} s elapsed {processor:7.2f} s processor; utilisation "
              f"{operations / elapsed / peak:.2f} of {peak / 1e9:.0f} GFLOP/s")  # fmt: skip
    for key in ("elapsed", "processor"):
        ratios = [answers["PyTorch"][key] / answers["ours"][key] for answers in rounds]
        print(f"  PyTorch / ours, {key}: {spread(ratios)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", default=sys.executable, help="Python with torch and transformers")
    parser.add_argument("--cases", default="full,captions,captions_sorted,captions_64")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = cases_of(arguments.batch)
    if arguments.side:
        answer_as(arguments.side, arguments.pixels, {case: batches[arguments.side] for case, batches in cases.items()})
        return
    sides = {}
    for name, python in (("ours", sys.executable), ("PyTorch", arguments.pytorch)):
        sides[name] = Side([python, "-m", "benchmarks.against_transformers", *sys.argv[1:], f"--side={name}"])
    for case in arguments.cases.split(","):
        lengths = [length for batch in cases[case]["ours"] for length in batch]
        print(f"{case}: {len(lengths)} pairs, {np.mean(lengths):.1f} tokens on average, at most {max(lengths)}")
        elapsed = {}
        for setting in SETTINGS:
            sides["PyTorch"].ask(case=case, setting=setting)  # it warms up
            elapsed[setting] = sides["PyTorch"].ask(case=case, setting=setting)["elapsed"]
        compare(case, lengths, sides, {"ours": "", "PyTorch": min(elapsed, key=elapsed.get)}, arguments)
    for side in sides.values():
        side.close()


if __name__ == "__main__":
    main()
