"""The exported encoders and Hugging Face's in PyTorch.

    python -m benchmarks.serving --pytorch=/path/to/venv/bin/python

Ours: an export's signatures, raw strings and JPEG bytes in, vectors out. Theirs: `AlignModel`'s two encoders of equal
sizes (BERT-base, EfficientNet-B0), in the fastest of its settings. Batches of 64 in turns, so that a busy
machine slows both alike; then single requests. Sentences are English prose of mixed length, from the language reference
that comes with Python; images are drawn, 640 x 480, JPEG. The vocabulary is built from the sentences; both sides read
it. PyTorch's side imports nothing of this project: it needs torch, transformers, NumPy and Pillow (with torchvision the
faster processor).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import pathlib
import pydoc_data.topics
import re
import statistics
import sys
import tempfile

import numpy as np
from PIL import Image

from benchmarks.against_transformers import Side, seconds, spread

BATCH = 64
PIXELS = 224  # of an image's side
SETTINGS = ("float32", "bfloat16", "float32+channels_last", "bfloat16+channels_last")  # of PyTorch
SINGLES = 200  # requests


def write_inputs(folder: pathlib.Path) -> None:
    """Writes texts.txt, vocabulary.txt and images/*.jpg, the inputs of both sides, and prints a line on the texts."""
    from mural_tf.text.learning import build_vocabulary
    from mural_tf.text.vocabulary_file import save_vocabulary

    sentences = english_sentences()
    texts = [sentences[i] for i in np.random.default_rng(0).permutation(len(sentences))][: BATCH * 4]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    save_vocabulary(build_vocabulary(texts, 8000, lower_case=True), folder / "vocabulary.txt")
    (folder / "images").mkdir()
    for i in range(BATCH):
        draw = np.random.default_rng(i)
        coarse = Image.fromarray(draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize((640, 480), Image.BICUBIC)
        pixels = np.clip(np.asarray(coarse) + draw.normal(0, 6, (480, 640, 1)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"images/{i:03}.jpg", quality=90)
    print(f"{len(texts)} sentences of {statistics.mean(len(text.split()) for text in texts):.1f} words on average")


def english_sentences() -> list[str]:
    """Returns the plain sentences, of 10 to 302 characters, of the language reference that comes with Python."""
    topics = "\n\n".join(pydoc_data.topics.topics.values())
    prose = re.sub(r"[*`]|\n(?! *\n)", " ", topics)  # without marks, a paragraph per line
    sentences = [" ".join(part.split()) for part in re.split(r"(?<=[.?!])\s|\n", prose)]
    return [sentence for sentence in sentences if re.fullmatch(r"[A-Z][\w ,'()-]{8,300}[.?!]", sentence)]


def export_random_model(folder: pathlib.Path) -> pathlib.Path:
    """Exports EfficientNet-B0 and BERT-base with random weights, and returns the export's folder.

    `folder` has the vocabulary.txt of `write_inputs`, and gets the export.
    """
    from mural_lite.config import base_config
    from mural_tf.export.saved_model import export_model
    from mural_tf.models.build import build_model
    from mural_tf.text import build_tokenizer

    config = base_config()
    config.model = "align"
    config.embedding_size = 320
    config.vocabulary.lower_case = True
    config.image_tower.update(dict(width=1.0, depth=1.0, image_size=PIXELS, resize=PIXELS))
    tokenizer = build_tokenizer(config, folder / "vocabulary.txt")
    export_model(build_model(config, tokenizer.vocabulary_size), tokenizer, config, folder / "export")
    return folder / "export"


class Ours:
    """The encoders of an export, which take texts and JPEG bytes as a server gets them.

    Args:
      inputs: unused; PyTorch's side needs it.
      export: the export's folder.
    """

    def __init__(self, inputs: pathlib.Path, export: str):
        import tensorflow as tf

        from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations

        self._constant = tf.constant
        self._loaded = {name: tf.saved_model.load(f"{export}/{name}_encoder/1") for name in ("text", "image")}

    def encode(self, case: str, items: list, setting: str) -> None:
        """Encodes a batch, to be timed.

        `case`: "text" or "image"; `items`: texts, or bytes of JPEG files; `setting` changes only PyTorch's side.
        """
        signature = self._loaded[case].signatures["serving_default"]
        argument = {"text": "text", "image": "image_bytes"}[case]
        signature(**{argument: self._constant(items)})["embedding"].numpy()


class PyTorch:
    """The encoders of `AlignModel` with random weights, and its processors, in any of `SETTINGS`.

    Args:
      inputs: the folder of `write_inputs`, for its vocabulary.
      export: unused; our side needs it.
    """

    def __init__(self, inputs: pathlib.Path, export: str):
        import torch
        from PIL import Image
        from transformers import AlignConfig, AlignModel, BertTokenizerFast, EfficientNetImageProcessor

        self._torch = torch
        self._open_image = Image.open
        self._tokenizer = BertTokenizerFast(str(inputs / "vocabulary.txt"))
        side = {"height": PIXELS, "width": PIXELS}
        self._processor = EfficientNetImageProcessor(size=side, crop_size=side)
        vision = dict(width_coefficient=1.0, depth_coefficient=1.0, image_size=PIXELS, hidden_dim=320)
        text = dict(vocab_size=len(self._tokenizer))
        self._model = AlignModel(AlignConfig(vision_config=vision, text_config=text, projection_dim=320)).eval()

    def encode(self, case: str, items: list, setting: str) -> None:
        """Encodes a batch, to be timed.

        `case`: "text" or "image"; `items`: texts, or bytes of JPEG files; `setting`: one of `SETTINGS`.
        """
        torch = self._torch
        layout = torch.contiguous_format
        if "channels_last" in setting:
            layout = torch.channels_last
        self._model.to(memory_format=layout)
        autocast = contextlib.nullcontext()
        if setting.startswith("bfloat16"):
            autocast = torch.autocast("cpu", torch.bfloat16)
        with torch.inference_mode(), autocast:
            if case == "text":
                tokens = self._tokenizer(items, padding="longest", truncation=True, max_length=64, return_tensors="pt")
                output = self._model.get_text_features(**tokens)
            else:
                images = [self._open_image(io.BytesIO(data)).convert("RGB") for data in items]
                pixels = self._processor(images, return_tensors="pt")["pixel_values"]
                output = self._model.get_image_features(pixel_values=pixels.contiguous(memory_format=layout))
            vectors = output
            if not isinstance(output, torch.Tensor):  # depends on the version of transformers
                vectors = output.pooler_output
            torch.nn.functional.normalize(vectors.float(), dim=-1).numpy()  # the last operation of our signature, too


def answer_as(side: str, inputs: pathlib.Path, export: str) -> None:
    """Serves one side in this process: it encodes items for each request and answers with the seconds.

    A request is a line of JSON on standard input: {"case": "text" or "image", "setting": one of `SETTINGS`, "singles":
    0 for all items in batches, else the number of items, encoded one by one}. The answer, on standard output, is
    {"times": seconds of each batch, "items": the number of all items}.

    Args:
      side: "ours" or "pytorch".
      inputs: the folder of `write_inputs`.
      export: the export's folder.
    """
    encoder = {"ours": Ours, "pytorch": PyTorch}[side](inputs, export)
    texts = (inputs / "texts.txt").read_text(encoding="utf-8").splitlines()
    all_items = {"text": texts, "image": [path.read_bytes() for path in sorted(inputs.glob("images/*.jpg"))]}
    for line in sys.stdin:
        request = json.loads(line)
        items = all_items[request["case"]]
        size = BATCH
        end = len(items)
        if request["singles"]:
            size = 1
            end = request["singles"]
        times = []
        for begin in range(0, end, size):
            start = begin % len(items)  # there may be fewer items than single requests
            batch = items[start : start + size]
            elapsed, _ = seconds(functools.partial(encoder.encode, request["case"], batch, request["setting"]))
            times.append(elapsed)
        print(json.dumps({"times": times, "items": len(items)}), flush=True)


def compare_encoders(folder: pathlib.Path, export: pathlib.Path, arguments) -> None:
    """Prints items per second in batches, ratios over the rounds, and latency of single requests, of both sides.

    `folder`: the folder of `write_inputs`; `arguments`: the command line's.
    """
    sides = {}
    for name, python in (("ours", sys.executable), ("pytorch", arguments.pytorch)):
        command = [python, "-m", "benchmarks.serving", f"--side={name}", f"--inputs={folder}", f"--export={export}"]
        sides[name] = Side(command)
    for case in ("text", "image"):
        compare_case(case, sides, arguments.rounds)
    for side in sides.values():
        side.close()


def compare_case(case: str, sides: dict[str, Side], rounds: int) -> None:
    """Prints the lines of a case, "text" or "image", with PyTorch in its quickest setting.

    `sides`: {"ours" or "pytorch": the process that answers}; each has its turn in each of the `rounds`.
    """
    sides["ours"].ask(case=case, setting="", singles=0)  # it warms up
    setting = quickest_setting(case, sides["pytorch"])
    answers: dict[str, list[dict]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            answers[name].append(side.ask(case=case, setting=setting, singles=0))
    seconds_of = {}
    for name, side in sides.items():
        seconds_of[name] = [sum(answer["times"]) for answer in answers[name]]
        rate = statistics.median(answer["items"] / sum(answer["times"]) for answer in answers[name])
        singles = side.ask(case=case, setting=setting, singles=SINGLES + 10)
        p50, p99 = np.percentile(singles["times"][10:], [50, 99]) * 1000  # the first ten warm up
        print(f"{case}: {name} {rate:.1f} items/s; one request p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
    ratios = np.divide(seconds_of["pytorch"], seconds_of["ours"]).tolist()
    print(f"{case}: PyTorch {setting} / ours: {spread(ratios)}")


def quickest_setting(case: str, pytorch: Side) -> str:
    """Returns the setting of `SETTINGS` in which PyTorch takes the fewest seconds for all items of a case."""
    elapsed = {}
    for setting in SETTINGS:
        if case == "text" and "+" in setting:  # "+channels_last" is a layout of images
            continue
        pytorch.ask(case=case, setting=setting, singles=0)  # the first is slower
        elapsed[setting] = sum(pytorch.ask(case=case, setting=setting, singles=0)["times"])
    return min(elapsed, key=elapsed.get)


def main() -> None:
    """Makes the inputs and the export, and compares the sides, or serves as one side's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", default=sys.executable, help="Python with torch and transformers")
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("side", "inputs", "export"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        answer_as(arguments.side, pathlib.Path(arguments.inputs), arguments.export)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_inputs(folder)
        compare_encoders(folder, export_random_model(folder), arguments)


if __name__ == "__main__":
    main()
