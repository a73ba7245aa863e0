"""The PyTorch side of `benchmarks.serving`: `AlignModel`'s encoders with Hugging Face's tokenizer and processor.

Imports nothing of this project, so that it runs in an environment of its own. With torchvision there, Hugging Face's
faster image processor is used, else the one on Pillow.
"""

import argparse
import contextlib
import io
import json
import pathlib
import sys
import time

import torch
from PIL import Image
from transformers import AlignConfig, AlignModel, BertTokenizerFast, EfficientNetImageProcessor


class Encoders:
    """Times both encoders from strings and JPEG bytes on, in a setting: a dtype, then "+channels_last"."""

    def __init__(self, inputs: pathlib.Path, batch: int, pixels: int):
        self.batch = batch
        self._tokenizer = BertTokenizerFast(str(inputs / "vocabulary.txt"))
        side = {"height": pixels, "width": pixels}
        self._processor = EfficientNetImageProcessor(size=side, crop_size=side)
        config = AlignConfig(
            vision_config=dict(width_coefficient=1.0, depth_coefficient=1.0, image_size=pixels, hidden_dim=320),
            text_config=dict(vocab_size=len(self._tokenizer)),
            projection_dim=320,
        )
        self._model = AlignModel(config).eval()
        texts = (inputs / "texts.txt").read_text(encoding="utf-8").splitlines()
        images = [path.read_bytes() for path in sorted((inputs / "images").iterdir())]
        self._items = {"text": texts, "image": images}

    def encode(self, case: str, items: list, setting: str) -> None:
        parts = setting.split("+")
        autocast = torch.autocast("cpu", torch.bfloat16) if parts[0] == "bfloat16" else contextlib.nullcontext()
        with torch.inference_mode(), autocast:
            if case == "text":
                tokens = self._tokenizer(items, padding="longest", truncation=True, max_length=64, return_tensors="pt")
                output = self._model.get_text_features(**tokens)
            else:
                images = [Image.open(io.BytesIO(data)).convert("RGB") for data in items]
                pixels = self._processor(images, return_tensors="pt")["pixel_values"]
                layout = torch.channels_last if "channels_last" in parts else torch.contiguous_format
                output = self._model.get_image_features(pixel_values=pixels.contiguous(memory_format=layout))
            vectors = output if isinstance(output, torch.Tensor) else output.pooler_output
            torch.nn.functional.normalize(vectors.float(), dim=-1).numpy()

    def prepare(self, setting: str) -> None:
        layout = torch.channels_last if "channels_last" in setting else torch.contiguous_format
        self._model.to(memory_format=layout)

    def rounds(self, case: str, setting: str) -> dict:
        self.prepare(setting)
        items = self._items[case]
        start, processor = time.perf_counter(), time.process_time()
        for i in range(0, len(items), self.batch):
            self.encode(case, items[i : i + self.batch], setting)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        return {"seconds": seconds, "processor": processor, "items": len(items)}

    def singles(self, case: str, setting: str, count: int) -> list[float]:
        self.prepare(setting)
        items, milliseconds = self._items[case], []
        for i in range(count + 10):
            start = time.perf_counter()
            self.encode(case, [items[i % len(items)]], setting)
            milliseconds.append(1000 * (time.perf_counter() - start))
        return milliseconds[10:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=pathlib.Path)
    for name in ("batch", "pixels", "threads"):
        parser.add_argument(f"--{name}", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    encoders = Encoders(arguments.inputs, arguments.batch, arguments.pixels)
    for line in sys.stdin:
        request = json.loads(line)
        if "singles" in request:
            answer = {"milliseconds": encoders.singles(request["case"], request["setting"], request["singles"])}
        else:
            answer = encoders.rounds(request["case"], request["setting"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
