"""Encoding with imported towers and with PyTorch's, on the same processor: SigLIP 2, XLM-RoBERTa, ModernBERT, NaFlex.

    python -m benchmarks.checkpoints --pytorch=/path/to/venv/bin/python

Random weights at full size but for tables of 32,000 pieces, which take memory and no time; batches of 32. Cases:

    images           SigLIP 2's image tower, 224 pixels
    texts            its text tower, 64 tokens each: padding is attended to, so nothing can be skipped
    captions         XLM-RoBERTa with mean pooling on captions (`against_transformers`); PyTorch pads each
                     batch to its longest
    captions_sorted  eight batches; PyTorch's are sorted by length, ours are as they come
    captions_77      PyTorch pads to 77, as open_clip does
    modernbert       ModernBERT of mmBERT base's sizes on the captions; PyTorch pads each batch to its longest
    naflex           SigLIP 2 NaFlex base's image tower, 256 patches of each picture

Both run in float32, as exports and imported models do, and in bfloat16. Sides take turns in processes of their own;
printed are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import statistics
import sys

import numpy as np

from benchmarks.against_transformers import Side, caption_lengths, in_batches, seconds, spread

CASES = ("images", "texts", "captions", "captions_sorted", "captions_77", "modernbert", "naflex")
MMBERT = dict(layers=22, heads=12, feed_forward_size=1152)  # of base; hidden_size is 768
SETTINGS = ("float32", "bfloat16")
BATCH = 32
ROWS = 32_000  # of the tables of pieces
SIDE = 272  # pixels of NaFlex's prepared pictures: 17 cells of 16, for 256 patches and the cell with their numbers


def rows_of(case: str, side: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the batches of a case of texts: (ids, mask) each, both int32 [B, T]; padding has the id 1.

    `side` is "ours" or "PyTorch": the cases "captions_sorted" and "captions_77" differ between the sides.
    """
    if case == "texts":
        lengths = [64] * BATCH
    elif case == "captions_sorted":
        lengths = caption_lengths(8 * BATCH)
        if side == "PyTorch":
            lengths.sort()
    else:
        lengths = caption_lengths(BATCH)
    generator = np.random.default_rng(0)
    batches = []
    for batch_lengths in in_batches(lengths, BATCH):
        width = 77 if (case, side) == ("captions_77", "PyTorch") else max(batch_lengths)
        mask = (np.arange(width) < np.array(batch_lengths)[:, None]).astype(np.int32)
        ids = np.where(mask, generator.integers(4, ROWS, mask.shape), 1).astype(np.int32)
        batches.append((ids, mask))
    return batches


def pictures() -> np.ndarray:
    """Returns a batch of random pixels, float32 [B, 224, 224, 3] in [-1, 1]."""
    return np.random.default_rng(0).integers(0, 256, (BATCH, 224, 224, 3)).astype(np.float32) / 127.5 - 1


def patched_pictures() -> np.ndarray:
    """Returns black pictures of 16 x 16 patches, float32 [B, SIDE, SIDE, 3], as `data/patches.py` prepares them."""
    images = np.zeros((BATCH, SIDE, SIDE, 3), np.float32)
    images[:, -16, -16:-14, 0] = 16 / 255  # rows and columns, at the start of the last patch
    return images


class Ours:
    """Towers as the importers build them, in graphs as an `Embedder` has them, in a setting of `SETTINGS`."""

    def __init__(self, setting: str):
        import tensorflow as tf

        from mural_tf.encoders import build_image_encoder, build_text_encoder
        from mural_tf.encoders.by_length import encode_by_length

        towers = tower_configs(setting)
        vit = build_image_encoder(towers["vit"])
        naflex = build_image_encoder(towers["naflex"])
        siglip = build_text_encoder(towers["siglip"], ROWS)
        roberta = build_text_encoder(towers["roberta"], ROWS)
        modern = build_text_encoder(towers["modernbert"], ROWS)
        self._tf = tf
        self._images = tf.function(lambda images: vit(images, training=False))
        self._naflex = tf.function(lambda images: naflex(images, training=False))
        self._texts = tf.function(lambda tokens: siglip(tokens, training=False), reduce_retracing=True)
        # In 4 groups of lengths, as an `Embedder` encodes; not in training.
        self._captions = tf.function(lambda tokens: encode_by_length(roberta, tokens, 4, False), reduce_retracing=True)
        self._modern = tf.function(lambda tokens: encode_by_length(modern, tokens, 4, False), reduce_retracing=True)

    def run(self, case: str):
        """Returns a function without arguments that encodes a case's batches, one of `CASES`."""
        if case == "images":
            images = self._tf.constant(pictures())
            return lambda: self._images(images).numpy()
        if case == "naflex":
            images = self._tf.constant(patched_pictures())
            return lambda: self._naflex(images).numpy()
        encode = {"texts": self._texts, "modernbert": self._modern}.get(case, self._captions)
        batches = []
        for ids, mask in rows_of(case, "ours"):
            tokens = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}
            batches.append({name: self._tf.constant(value) for name, value in tokens.items()})
        return lambda: [encode(batch).numpy() for batch in batches]


def tower_configs(setting: str) -> dict:
    """Returns {tower: its `ConfigDict`} of our side in a setting; in "bfloat16" weights are bfloat16, as PyTorch's."""
    from mural_lite.config import base_config

    xlm_roberta = dict(epsilon=1e-5, pooling="mean")
    fields = {
        "vit": dict(name="vit", image_size=224, normalization="none"),
        "naflex": dict(name="naflex", patches=256, image_size=SIDE, resize=SIDE, resize_mode="patches",
                       normalization="symmetric", frozen=True, cached=True),
        "siglip": dict(norm="before", activation="gelu_tanh", epsilon=1e-6, attention="full", pooling="last"),
        "roberta": dict(xlm_roberta, max_length=77),
        "modernbert": dict(xlm_roberta, name="modernbert", max_length=512, **MMBERT),
    }  # fmt: skip
    towers = {}
    for name, tower_fields in fields.items():
        config = base_config()
        if name in ("vit", "naflex"):
            tower = config.image_tower
        else:
            tower = config.text_tower
            tower.dropout = 0.0
        tower.update(tower_fields, precision=setting)
        towers[name] = tower
    return towers


class PyTorch:
    """transformers' `SiglipModel`, `XLMRobertaModel`, `ModernBertModel` and `Siglip2VisionModel` in a setting."""

    def __init__(self, setting: str):
        import torch
        from transformers import (
            ModernBertConfig,
            ModernBertModel,
            Siglip2VisionConfig,
            Siglip2VisionModel,
            SiglipConfig,
            SiglipModel,
            XLMRobertaConfig,
            XLMRobertaModel,
        )

        self._torch = torch
        self._dtype = getattr(torch, setting)
        siglip = SiglipConfig(text_config=dict(vocab_size=ROWS), vision_config=dict(image_size=224))
        roberta = XLMRobertaConfig(vocab_size=ROWS, max_position_embeddings=514, type_vocab_size=1)
        self._siglip = SiglipModel(siglip).to(self._dtype).eval()
        self._roberta = XLMRobertaModel(roberta, add_pooling_layer=False).to(self._dtype).eval()
        # As `MMBERT`, whose names are ours.
        sizes = dict(num_hidden_layers=22, num_attention_heads=12, intermediate_size=1152, hidden_size=768)
        modern = ModernBertConfig(vocab_size=ROWS, pad_token_id=0, bos_token_id=2, eos_token_id=1, **sizes)
        self._modern = ModernBertModel(modern).to(self._dtype).eval()
        self._naflex = Siglip2VisionModel(Siglip2VisionConfig()).to(self._dtype).eval()

    def run(self, case: str):
        """Returns a function without arguments that encodes a case's batches, one of `CASES`."""
        torch = self._torch
        if case == "images":
            images = torch.from_numpy(pictures()).permute(0, 3, 1, 2).contiguous().to(self._dtype)
            encoders = [lambda: self._siglip.get_image_features(pixel_values=images)]
        elif case == "naflex":
            patches = dict(
                pixel_values=torch.zeros(BATCH, 256, 768, dtype=self._dtype),
                pixel_attention_mask=torch.ones(BATCH, 256, dtype=torch.int32),
                spatial_shapes=torch.full((BATCH, 2), 16),
            )
            encoders = [lambda: self._naflex(**patches).pooler_output]
        else:
            encoders = []
            for ids, mask in rows_of(case, "PyTorch"):
                encoders.append(self._encoder(case, torch.from_numpy(ids).long(), torch.from_numpy(mask).long()))

        def run():
            """Encodes the batches one after the other."""
            with torch.inference_mode():
                return [encode_batch() for encode_batch in encoders]

        return run

    def _encoder(self, case, ids, mask):
        """Returns a function without arguments that encodes a batch of texts: ids and mask, int64 [B, T]."""
        if case == "texts":
            return lambda: self._siglip.get_text_features(input_ids=ids)

        model = self._modern if case == "modernbert" else self._roberta

        def mean_state():
            """Returns the vectors by mean pooling, [B, D]."""
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
            is_token = mask.unsqueeze(-1).to(states.dtype)
            return (states * is_token).sum(1) / is_token.sum(1)

        return mean_state


def answer_as(name: str, setting: str) -> None:
    """Serves one side in a setting in this process: it encodes a case's batches for each request.

    A request is a line of JSON on standard input, {"case": one of `CASES`}; the answer, on standard output, is
    {"elapsed": seconds}. `name` is "ours" or "PyTorch".
    """
    side = {"ours": Ours, "PyTorch": PyTorch}[name](setting)
    runs = {}
    for line in sys.stdin:
        case = json.loads(line)["case"]
        if case not in runs:
            runs[case] = side.run(case)
            runs[case]()  # it warms up
        elapsed, _ = seconds(runs[case])
        print(json.dumps({"elapsed": elapsed}), flush=True)


def main() -> None:
    """Prints a line of a .csv table for each case, or serves as one side's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", help="a Python with torch and transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES)
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        answer_as(*arguments.side)
        return
    pythons = {"ours": sys.executable, "PyTorch": arguments.pytorch}
    sides = {}
    for name, setting in itertools.product(pythons, SETTINGS):
        sides[name, setting] = Side([pythons[name], "-m", "benchmarks.checkpoints", "--side", name, setting])
    titles = ["case", *(f"{name}, {setting}" for name, setting in sides)]
    titles += [f"{ours} ÷ PyTorch's {theirs}" for ours, theirs in PAIRS]
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(titles)
    for case in arguments.cases:
        table.writerow([case, *cells_of(case, sides, arguments.rounds)])
        sys.stdout.flush()
    for side in sides.values():
        side.close()


PAIRS = list(itertools.product(SETTINGS, SETTINGS))  # our setting and PyTorch's, which are compared


def cells_of(case: str, sides: dict[tuple[str, str], Side], rounds: int) -> list[str]:
    """Returns the cells of a case's line: items per second of each side, then the ratios of `PAIRS`.

    Args:
      case: one of `CASES`.
      sides: {("ours" or "PyTorch", setting): the process that answers}.
      rounds: the number of rounds, in each of which each side has its turn.
    """
    elapsed: dict[tuple[str, str], list[float]] = {key: [] for key in sides}  # seconds of each round
    for _ in range(rounds):
        for key, side in sides.items():
            elapsed[key].append(side.ask(case=case)["elapsed"])
    count = BATCH
    if case == "captions_sorted":
        count *= 8  # batches
    speeds = [f"{count / statistics.median(seconds_of_side):.1f}" for seconds_of_side in elapsed.values()]
    ratios = []
    for ours, theirs in PAIRS:
        both = zip(elapsed["ours", ours], elapsed["PyTorch", theirs])
        ratios.append(spread([their_seconds / our_seconds for our_seconds, their_seconds in both]))
    return [*speeds, *ratios]


if __name__ == "__main__":
    main()
