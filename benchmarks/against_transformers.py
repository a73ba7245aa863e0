"""One training step of our ALIGN beside Hugging Face transformers' `AlignModel` in PyTorch, on the same processor.

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
elapsed time over the same process's fastest 2048 x 2048 matrix product, measured in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys

import numpy as np

SETTINGS = ("float32", "float32+channels_last", "bfloat16", "bfloat16+channels_last")


def caption_lengths(count: int) -> list[int]:
    """Token counts of `count` captions with [CLS] and [SEP], in random order: the quantiles of a log-normal.

    Word pieces: 15 on average, at most 40; the words of Multi30K's English and German captions spread like this.
    """
    spread = statistics.NormalDist(np.log(14.3), 0.31)
    pieces = [math.exp(spread.inv_cdf((i + 0.5) / count)) for i in range(count)]
    return [2 + min(40, round(pieces[i])) for i in np.random.default_rng(0).permutation(count)]


def cases_of(batch: int) -> dict[str, dict[str, list[list[int]]]]:
    """Returns case -> side -> batches, as lengths of their texts; PyTorch's are padded to the longest of each."""
    captions = caption_lengths(batch)
    many = caption_lengths(8 * batch)
    cut = {name: [lengths[i : i + batch] for i in range(0, len(lengths), batch)]
           for name, lengths in (("ours", many), ("PyTorch", sorted(many)))}  # fmt: skip
    return {
        "full": {"ours": [[64] * batch], "PyTorch": [[64] * batch]},
        "captions": {"ours": [captions], "PyTorch": [captions]},
        "captions_sorted": cut,
        "captions_64": {"ours": [captions], "PyTorch": [captions]},
    }


def useful_operations(lengths: list[int], pixels: int) -> float:
    """Floating-point operations of one step that the model's definition asks for, on real tokens only."""
    layers, hidden, feed_forward = 12, 768, 3072
    dense = layers * (4 * hidden**2 + 2 * hidden * feed_forward) * sum(lengths)
    attention = layers * 2 * hidden * sum(n * n for n in lengths)
    image = 0.39e9 * (pixels / 224) ** 2 * len(lengths)  # EfficientNet-B0: 0.39 billion multiply-adds at 224
    return 3 * 2 * (dense + attention + image)


class Side:
    """A child process that answers one JSON line to every JSON line it gets."""

    def __init__(self, command: list[str]):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"{self.process.args[0]} ended with code {self.process.wait()}; its message stands above.")
            if line.startswith("{"):
                return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def fastest_setting(side: Side, case: str) -> str:
    """Prints each PyTorch setting's seconds, after a step that warms up, and returns the fastest."""
    seconds = {}
    for setting in SETTINGS:
        side.ask(case=case, setting=setting)
        seconds[setting] = side.ask(case=case, setting=setting)["elapsed"]
        print(f"  PyTorch {setting:24} {seconds[setting]:8.2f} s", flush=True)
    return min(seconds, key=seconds.get)


def compare(case: str, lengths: list[int], sides: dict[str, Side], settings: dict[str, str], arguments) -> None:
    """Prints the two sides' times, pairs a second, utilisation and ratios over interleaved rounds."""
    rounds = []
    for turn in range(arguments.rounds + 1):
        answers = {name: side.ask(case=case, setting=settings[name]) for name, side in sides.items()}
        if turn:
            rounds.append(answers)
    operations = useful_operations(lengths, arguments.pixels)
    for name in sides:
        elapsed, processor = (statistics.median(r[name][key] for r in rounds) for key in ("elapsed", "processor"))
        peaks = {key: max(r[name]["peaks"][key] for r in rounds) for key in rounds[0][name]["peaks"]}
        utilisation = operations / elapsed / max(peaks.values())
        shown = ", ".join(f"{key} {value / 1e9:.0f} GFLOP/s" for key, value in peaks.items())
        print(
            f"  {name:8} {settings[name]:24} {elapsed:7.2f} s elapsed {processor:7.2f} s processor "
            f"{len(lengths) / elapsed:6.2f} pairs/s; utilisation {utilisation:.2f} of the peak ({shown})"
        )
    for key in ("elapsed", "processor"):
        ratios = sorted(r["PyTorch"][key] / r["ours"][key] for r in rounds)
        middle = statistics.median(ratios)
        print(f"  PyTorch / ours, {key:9}: median {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", default=sys.executable, help="Python with torch and transformers")
    parser.add_argument("--cases", default="full,captions,captions_sorted,captions_64")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    cases, sides = cases_of(arguments.batch), {}
    for name, python in (("ours", sys.executable), ("PyTorch", arguments.pytorch)):
        lengths = json.dumps({case: cases[case][name] for case in cases})
        options = [f"--pixels={arguments.pixels}", f"--cases={lengths}"]
        sides[name] = Side([python, "benchmarks/step_sides.py", name.lower(), *options])
    for case in arguments.cases.split(","):
        lengths = [length for batch in cases[case]["ours"] for length in batch]
        print(f"{case}: {len(lengths)} pairs, {np.mean(lengths):.1f} tokens on average, at most {max(lengths)}")
        settings = {"ours": "", "PyTorch": fastest_setting(sides["PyTorch"], case)}
        compare(case, lengths, sides, settings, arguments)
    for side in sides.values():
        side.close()


if __name__ == "__main__":
    main()
