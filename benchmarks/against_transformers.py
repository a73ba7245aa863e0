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
    """Returns the numbers of tokens of `count` captions, [CLS] and [SEP] included, in random order.

    They are quantiles of a log-normal distribution of word pieces, 15 on average and at most 40, as the words of
    Multi30K's English and German captions are distributed.
    """
    logarithms = statistics.NormalDist(np.log(14.3), 0.31)
    pieces = [math.exp(logarithms.inv_cdf((i + 0.5) / count)) for i in range(count)]
    return [2 + min(40, round(pieces[i])) for i in np.random.default_rng(0).permutation(count)]


def in_batches(lengths: list[int], batch: int) -> list[list[int]]:
    """Returns the lengths in their order, in lists of `batch`; the last list may be shorter."""
    return [lengths[begin : begin + batch] for begin in range(0, len(lengths), batch)]


def cases_of(batch: int) -> dict[str, dict[str, list[list[int]]]]:
    """Returns {case: {side: batches}}; a batch is a list of its texts' lengths in tokens.

    `batch` is the number of texts in a batch.
    """
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
    """Returns the floating-point operations of a training step that the model's definition asks for.

    Args:
      lengths: the texts' lengths in tokens, without padding; there are as many images.
      pixels: the side of an image.
    """
    layers = 12
    hidden = 768
    feed_forward = 3072
    dense = layers * (4 * hidden**2 + 2 * hidden * feed_forward) * sum(lengths)
    attention = layers * 2 * hidden * sum(n * n for n in lengths)
    image = 0.39e9 * (pixels / 224) ** 2 * len(lengths)  # EfficientNet-B0: 0.39 billion multiply-adds at 224
    return 3 * 2 * (dense + attention + image)  # 3: forward and backward pass; 2: multiply and add


def draw_batch(lengths: list[int], width: int, pixels: int):
    """Returns N random images and texts: (images, ids, mask).

    Images are uint8 [N, pixels, pixels, 3], ids and mask int32 [N, width].

    Args:
      lengths: the texts' lengths in tokens, N numbers.
      width: the length to which texts are padded with 0.
      pixels: the side of an image.
    """
    generator = np.random.default_rng(0)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
    ids = generator.integers(5, VOCABULARY, mask.shape).astype(np.int32) * mask
    images = generator.integers(0, 256, (len(lengths), pixels, pixels, 3)).astype(np.uint8)
    return images, ids, mask


class Ours:
    """ALIGN with EfficientNet-B0 and BERT-base, compiled with AdamW, on images of `pixels` x `pixels`."""

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
        """Returns a function that takes a training step on each batch, padded to its longest text.

        `batches`: the lengths of their texts, see `cases_of`; `case` and `setting` change only PyTorch's steps.
        """

        def example_of(lengths: list[int]) -> dict:
            """Returns a random batch as `train_step` takes it."""
            images, ids, mask = draw_batch(lengths, max(lengths), self._pixels)
            ordinals = np.arange(len(lengths))
            tokens = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}
            example = {"image": images, "image_id": ordinals, "caption": tokens, "caption_id": ordinals}
            return self._tf.nest.map_structure(self._tf.constant, example)

        examples = [example_of(lengths) for lengths in batches]
        return lambda: [float(self._step(example)["loss"]) for example in examples]

    def product(self, dtype: str):
        """Returns a function that multiplies two matrices of `SIZE` rows and columns in a dtype, "bfloat16" say."""
        a = self._tf.cast(self._tf.random.uniform((SIZE, SIZE)), dtype)
        return lambda: self._tf.matmul(a, a)[0, 0].numpy()


class PyTorch:
    """`AlignModel` with the same towers and optimiser, on images of `pixels` x `pixels`, in any of `SETTINGS`."""

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
        """Returns a function that takes a training step on each batch, padded to its longest text.

        Args:
          batches: the lengths of their texts, see `cases_of`.
          case: the case; "captions_64" pads to 64 tokens.
          setting: one of `SETTINGS`.
        """
        torch = self._torch
        layout = torch.channels_last if "channels_last" in setting else torch.contiguous_format
        self._model.to(memory_format=layout)

        def example_of(lengths: list[int]) -> dict:
            """Returns a random batch as `AlignModel` takes it."""
            width = 64 if case.endswith("_64") else max(lengths)
            images, ids, mask = draw_batch(lengths, width, self._pixels)
            pixels = torch.from_numpy(images / np.float32(255)).permute(0, 3, 1, 2).contiguous(memory_format=layout)
            tokens = {"input_ids": torch.from_numpy(ids).long(), "attention_mask": torch.from_numpy(mask).long()}
            return {"pixel_values": pixels, **tokens}

        def step(example: dict) -> float:
            """Takes a step on a batch, and returns its loss."""
            self._optimizer.zero_grad(set_to_none=True)
            is_mixed = setting.startswith("bfloat16")
            precision = torch.autocast("cpu", torch.bfloat16) if is_mixed else contextlib.nullcontext()
            with precision:
                loss = self._model(**example, return_loss=True).loss
            loss.backward()
            self._optimizer.step()
            return loss.item()

        examples = [example_of(lengths) for lengths in batches]
        return lambda: [step(example) for example in examples]

    def product(self, dtype: str):
        """Returns a function that multiplies two matrices of `SIZE` rows and columns in a dtype, "bfloat16" say."""
        a = self._torch.rand(SIZE, SIZE).to(getattr(self._torch, dtype))
        return lambda: a @ a


def answer_as(name: str, pixels: int, cases: dict[str, list[list[int]]]) -> None:
    """Serves one side in this process: it takes a case's steps for each request and answers with their seconds.

    A request is a line of JSON on standard input, {"case": name, "setting": one of `SETTINGS`}. The answer, on standard
    output, is {"elapsed": seconds, "processor": seconds, "peaks": {dtype: operations per second of a matrix product}}.

    Args:
      name: "ours" or "PyTorch".
      pixels: the side of an image.
      cases: {case: the side's batches}, see `cases_of`.
    """
    side = {"ours": Ours, "PyTorch": PyTorch}[name](pixels)
    products = {dtype: side.product(dtype) for dtype in ("float32", "bfloat16")}
    for line in sys.stdin:
        request = json.loads(line)
        case = request["case"]
        elapsed, processor = seconds(side.steps(cases[case], case, request["setting"]))
        peaks = {}
        for dtype, multiply in products.items():
            fastest = min(seconds(multiply)[0] for _ in range(3))
            peaks[dtype] = 2 * SIZE**3 / fastest
        print(json.dumps({"elapsed": elapsed, "processor": processor, "peaks": peaks}), flush=True)


def seconds(run) -> tuple[float, float]:
    """Returns (elapsed seconds, processor seconds of this process) of a call of `run`, which takes no arguments."""
    elapsed_start = time.perf_counter()
    processor_start = time.process_time()
    run()
    return time.perf_counter() - elapsed_start, time.process_time() - processor_start


def spread(values: list[float]) -> str:
    """Returns "median (least to most)" of values, with two decimals."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


class Side:
    """A child process that answers a line of JSON on its standard output to each line of JSON on its standard input."""

    def __init__(self, command: list[str]):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        """Returns the answer to a request, both JSON objects; ends this process if the child has ended."""
        with contextlib.suppress(BrokenPipeError):  # of a child that has ended: its output ends, too
            print(json.dumps(request), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries may print other lines
                return json.loads(line)
        command = " ".join(self.process.args)
        sys.exit(f"{command} ended with code {self.process.wait()}; its message is above.")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(case: str, lengths: list[int], sides: dict[str, Side], settings: dict[str, str], arguments) -> None:
    """Prints the times, utilisation and ratios of the sides, which take a case's steps in turns.

    Args:
      case: the case's name.
      lengths: the lengths of the case's texts in tokens.
      sides: {"ours" or "PyTorch": the process that answers}.
      settings: {side: its setting}.
      arguments: the command line's.
    """
    rounds = []  # {side: answer} of each round
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
    """Compares the sides in the cases that the command line names, or serves as one side's process."""
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
        settings = {"ours": "", "PyTorch": fastest_setting(sides["PyTorch"], case)}
        compare(case, lengths, sides, settings, arguments)
    for side in sides.values():
        side.close()


def fastest_setting(pytorch: Side, case: str) -> str:
    """Returns the setting in which PyTorch takes the least time for a case's steps."""
    elapsed = {}
    for setting in SETTINGS:
        pytorch.ask(case=case, setting=setting)  # it warms up
        elapsed[setting] = pytorch.ask(case=case, setting=setting)["elapsed"]
    return min(elapsed, key=elapsed.get)


if __name__ == "__main__":
    main()
