"""The two sides of `benchmarks.serving`, each in a process of its own, which times what its standard input asks for.

    python benchmarks/serving_sides.py ours|pytorch --inputs=FOLDER [--export=FOLDER]

Nothing of this project is imported on PyTorch's side, so that it runs in an environment of its own: `AlignModel`'s
encoders with Hugging Face's tokenizer and processor (with torchvision there the faster one, else that on Pillow).
"""

import argparse
import contextlib
import io
import json
import pathlib
import sys
import time

BATCH = 64
PIXELS = 224  # of an image's side


class Ours:
    """An export's two signatures, from the wire's bytes on."""

    def __init__(self, arguments):
        import tensorflow as tf

        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
        from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations

        self._constant = tf.constant
        self._loaded = {name: tf.saved_model.load(f"{arguments.export}/{name}_encoder/1") for name in ("text", "image")}

    def encode(self, case: str, items: list, setting: str) -> None:
        signature, name = self._loaded[case].signatures["serving_default"], {"text": "text", "image": "image_bytes"}
        signature(**{name[case]: self._constant(items)})["embedding"].numpy()


class PyTorch:
    """`AlignModel` in a setting: a dtype, then perhaps "+channels_last"."""

    def __init__(self, arguments):
        import torch
        from PIL import Image
        from transformers import AlignConfig, AlignModel, BertTokenizerFast, EfficientNetImageProcessor

        self._torch, self._image = torch, Image
        self._tokenizer = BertTokenizerFast(str(arguments.inputs / "vocabulary.txt"))
        side = {"height": PIXELS, "width": PIXELS}
        self._processor = EfficientNetImageProcessor(size=side, crop_size=side)
        vision = dict(width_coefficient=1.0, depth_coefficient=1.0, image_size=PIXELS, hidden_dim=320)
        text = dict(vocab_size=len(self._tokenizer))
        self._model = AlignModel(AlignConfig(vision_config=vision, text_config=text, projection_dim=320)).eval()

    def encode(self, case: str, items: list, setting: str) -> None:
        torch, parts = self._torch, setting.split("+")
        layout = torch.channels_last if "channels_last" in parts else torch.contiguous_format
        self._model.to(memory_format=layout)
        autocast = torch.autocast("cpu", torch.bfloat16) if parts[0] == "bfloat16" else contextlib.nullcontext()
        with torch.inference_mode(), autocast:
            if case == "text":
                tokens = self._tokenizer(items, padding="longest", truncation=True, max_length=64, return_tensors="pt")
                output = self._model.get_text_features(**tokens)
            else:
                images = [self._image.open(io.BytesIO(data)).convert("RGB") for data in items]
                pixels = self._processor(images, return_tensors="pt")["pixel_values"]
                output = self._model.get_image_features(pixel_values=pixels.contiguous(memory_format=layout))
            vectors = output if isinstance(output, torch.Tensor) else output.pooler_output
            torch.nn.functional.normalize(vectors.float(), dim=-1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("ours", "pytorch"))
    for name in ("inputs", "export"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    arguments = parser.parse_args()
    side = {"ours": Ours, "pytorch": PyTorch}[arguments.side](arguments)
    texts = (arguments.inputs / "texts.txt").read_text(encoding="utf-8").splitlines()
    all_items = {"text": texts, "image": [path.read_bytes() for path in sorted(arguments.inputs.glob("images/*.jpg"))]}
    for line in sys.stdin:  # {"case", "setting", "singles": 0 for all items in batches, or a number of single ones}
        request = json.loads(line)
        items, size, times = all_items[request["case"]], 1 if request["singles"] else BATCH, []
        processor = time.process_time()
        for i in range(0, (request["singles"] or len(items)) * size, size):
            start, first = time.perf_counter(), i % len(items)
            side.encode(request["case"], items[first : first + size], request["setting"])
            times.append(time.perf_counter() - start)
        answer = {"times": times, "processor": time.process_time() - processor, "items": len(items)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
