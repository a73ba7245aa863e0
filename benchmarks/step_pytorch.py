"""The PyTorch side of `benchmarks.against_transformers`: for every line, a step of `AlignModel` on a case's batches.

Imports nothing of this project, so that it runs in an environment of its own.
"""

import argparse
import contextlib
import json
import sys
import time

import torch
from transformers import AlignConfig, AlignModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build(pixels: int):
    """Returns ALIGN with EfficientNet-B0 and BERT-base, and its optimiser."""
    config = AlignConfig(
        vision_config=dict(width_coefficient=1.0, depth_coefficient=1.0, image_size=pixels, hidden_dim=320),
        text_config=dict(vocab_size=30522),
        projection_dim=320,
    )
    model = AlignModel(config).train()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5, fused=True)


def batch(lengths: list[int], width: int, pixels: int, channels_last: bool) -> dict:
    """A batch padded to `width` tokens."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()
    images = torch.rand(len(lengths), 3, pixels, pixels, generator=generator)
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    ids = torch.randint(5, 30522, mask.shape, generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": images}


def peak(dtype: torch.dtype, size: int = 2048) -> float:
    """Floating-point operations a second of one matrix product, the better of three."""
    a = torch.rand(size, size).to(dtype)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


class Steps:
    """Takes steps in any setting: a dtype, then "+channels_last" and "+compile" where wanted."""

    def __init__(self, arguments):
        self.pixels = arguments.pixels
        self.model, self.optimizer = build(arguments.pixels)
        self.cases = json.loads(arguments.cases)
        self.compiled = None

    def step(self, case: str, setting: str) -> dict:
        parts = setting.split("+")
        channels_last = "channels_last" in parts
        self.model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        widths = [64 if case.endswith("_64") else max(lengths) for lengths in self.cases[case]]
        batches = [
            batch(lengths, width, self.pixels, channels_last) for lengths, width in zip(self.cases[case], widths)
        ]
        dtype = DTYPES[parts[0]]
        autocast = torch.autocast("cpu", dtype) if dtype != torch.float32 else contextlib.nullcontext()
        if "compile" in parts and self.compiled is None:
            self.compiled = torch.compile(self.model)
        model = self.compiled if "compile" in parts else self.model
        start, processor = time.perf_counter(), time.process_time()
        for inputs in batches:
            self.optimizer.zero_grad(set_to_none=True)
            with autocast:
                loss = model(**inputs, return_loss=True).loss
            loss.backward()
            self.optimizer.step()
        loss = loss.item()
        return {"elapsed": time.perf_counter() - start, "processor": time.process_time() - processor, "loss": loss}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("pixels", "threads"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--cases")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    steps = Steps(arguments)
    for line in sys.stdin:
        request = json.loads(line)
        answer = steps.step(request["case"], request["setting"])
        answer["peaks"] = {name: peak(DTYPES[name]) for name in ("float32", "bfloat16")}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
