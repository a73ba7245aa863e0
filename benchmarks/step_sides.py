"""The two sides of `benchmarks.against_transformers`: for every line read, a step of ALIGN on each batch of a case.

    python benchmarks/step_sides.py ours|pytorch --pixels=128 --cases=JSON

Nothing of this project is imported on PyTorch's side, so that it runs in an environment of its own.
"""

import argparse
import contextlib
import json
import pathlib
import sys
import time

import numpy as np

VOCABULARY, SIZE = 30_522, 2048  # of the matrix product that measures the peak


def drawn(lengths: list[int], width: int, pixels: int):
    """Returns images uint8 [N, pixels, pixels, 3], ids and mask int32 [N, width] of texts of `lengths` tokens."""
    draw = np.random.default_rng(0)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
    ids = draw.integers(5, VOCABULARY, mask.shape).astype(np.int32) * mask
    return draw.integers(0, 256, (len(lengths), pixels, pixels, 3)).astype(np.uint8), ids, mask


class Ours:
    """ALIGN with EfficientNet-B0 and BERT-base, compiled with AdamW."""

    def __init__(self, pixels: int):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
        import tensorflow as tf

        from mural_tf.config import base_config
        from mural_tf.models import build_model
        from mural_tf.training.fit import compile_model

        config = base_config()
        config.model, config.embedding_size = "align", 320
        config.image_tower.update(dict(width=1.0, depth=1.0, image_size=pixels, resize=pixels))
        config.text_tower.length_groups = 4
        config.optimizer.update(dict(name="adamw", learning_rate=1e-4))
        config.loss.label_smoothing = 0.1
        model = build_model(config, VOCABULARY)
        compile_model(model, config)
        self._tf, self._step = tf, tf.function(model.train_step, reduce_retracing=True)

    def batch(self, lengths: list[int], case: str, pixels: int, setting: str) -> dict:
        """A batch padded to its longest text."""
        images, ids, mask = drawn(lengths, max(lengths), pixels)
        ordinals = np.arange(len(lengths))
        tokens = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}
        batch = {"image": images, "image_id": ordinals, "caption": tokens, "caption_id": ordinals}
        return self._tf.nest.map_structure(self._tf.constant, batch)

    def step(self, batch: dict, setting: str) -> float:
        return float(self._step(batch)["loss"])

    def product(self, dtype: str):
        """A matrix product of the size, to be called and waited for."""
        a = self._tf.cast(self._tf.random.uniform((SIZE, SIZE)), dtype)
        return lambda: self._tf.matmul(a, a)[0, 0].numpy()


class PyTorch:
    """`AlignModel` with the same towers in a setting: a dtype, then perhaps "+channels_last"."""

    def __init__(self, pixels: int):
        import torch
        from transformers import AlignConfig, AlignModel

        vision = dict(width_coefficient=1.0, depth_coefficient=1.0, image_size=pixels, hidden_dim=320)
        config = AlignConfig(vision_config=vision, text_config=dict(vocab_size=VOCABULARY), projection_dim=320)
        self._torch, self._model = torch, AlignModel(config).train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, weight_decay=1e-5, fused=True)

    def batch(self, lengths: list[int], case: str, pixels: int, setting: str) -> dict:
        """A batch padded to its longest text, or to 64 tokens."""
        images, ids, mask = drawn(lengths, 64 if case.endswith("_64") else max(lengths), pixels)
        layout = self._torch.channels_last if "channels_last" in setting else self._torch.contiguous_format
        self._model.to(memory_format=layout)
        shown = self._torch.from_numpy(images / np.float32(255)).permute(0, 3, 1, 2).contiguous(memory_format=layout)
        tokens = {"input_ids": ids, "attention_mask": mask}
        return {"pixel_values": shown, **{k: self._torch.from_numpy(v).long() for k, v in tokens.items()}}

    def step(self, batch: dict, setting: str) -> float:
        self._optimizer.zero_grad(set_to_none=True)
        low = self._torch.autocast("cpu", self._torch.bfloat16)
        with low if setting.startswith("bfloat16") else contextlib.nullcontext():
            loss = self._model(**batch, return_loss=True).loss
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def product(self, dtype: str):
        """A matrix product of the size, to be called."""
        a = self._torch.rand(SIZE, SIZE).to(getattr(self._torch, dtype))
        return lambda: a @ a


def peak(product) -> float:
    """Floating-point operations a second of one matrix product, the best of three."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - start)
    return 2 * SIZE**3 / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("ours", "pytorch"))
    parser.add_argument("--pixels", type=int)
    parser.add_argument("--cases", type=json.loads)
    arguments = parser.parse_args()
    side = {"ours": Ours, "pytorch": PyTorch}[arguments.side](arguments.pixels)
    products = {dtype: side.product(dtype) for dtype in ("float32", "bfloat16")}
    for line in sys.stdin:
        request = json.loads(line)
        case, setting = request["case"], request["setting"]
        batches = [side.batch(lengths, case, arguments.pixels, setting) for lengths in arguments.cases[case]]
        start, processor = time.perf_counter(), time.process_time()
        for batch in batches:
            loss = side.step(batch, setting)
        answer = {"elapsed": time.perf_counter() - start, "processor": time.process_time() - processor, "loss": loss}
        answer["peaks"] = {dtype: peak(product) for dtype, product in products.items()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
