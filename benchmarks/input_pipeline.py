"""Images a second from JPEG files and captions to training batches: ours, a PIL loader, and what the step consumes.

    python -m benchmarks.input_pipeline
    python -m benchmarks.input_pipeline --resize=346 --crop=289 --skip_step   # the size of the paper's tower

Draws its own photo-like pictures (noise of every scale, falling with frequency like that of photographs), writes them
as one TFRecord and as JPEG files, and times batches from three processes in turns: `training_batches` of ALIGN; PIL
with Hugging Face's tokenizers on two threads (decode, resize, random crop, flip, tokenise, stack); and, for scale, a
training step of ALIGN with EfficientNet-B0 and BERT-base on captions (`benchmarks.step_ours`). Each is timed only while
it works; processor time counts all threads and is the steadier on a busy machine.
"""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from benchmarks.against_transformers import Side, caption_lengths

WORDS = "a man woman dog two people in the of on with red blue street park playing standing young girl boy".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, *WORDS, *(f"##{chr(letter)}" for letter in range(97, 123))]
WARM_UP = 8  # batches before the timed ones: more than the pipeline keeps ready


def draw_picture(rng: np.random.Generator, width: int, height: int) -> bytes:
    """A JPEG of quality 90 whose noise weakens with its frequency."""
    picture = np.full((height, width, 3), 110.0)
    for cells in (2, 4, 8, 16, 32, 64, 128, 256):
        noise = rng.normal(0.0, 110.0 / cells**0.7, (cells * height // width + 1, cells, 3)).clip(-127, 127) + 128
        layer = Image.fromarray(noise.astype(np.uint8)).resize((width, height), Image.BICUBIC)
        picture += np.asarray(layer, np.float64) - 128
    buffer = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_data(folder: pathlib.Path, arguments) -> None:
    """Writes `images` pictures with a caption each as TFRecord and as files, and a vocabulary."""
    from mural_tf.data import records

    rng = np.random.default_rng(0)
    items = []
    for index in range(arguments.images):
        data = draw_picture(rng, arguments.width, arguments.height)
        caption = " ".join(rng.choice(WORDS, rng.integers(11, 17)))
        (folder / f"{index:05}.jpg").write_bytes(data)
        (folder / f"{index:05}.txt").write_text(caption, encoding="utf-8")
        items.append(records.ImageTextRecord(f"{index:05}", data, [caption], ["en"], [str(index)]))
    records.write_records(folder, records.IMAGE_TEXT, "train", items)
    (folder / "vocabulary.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    size = statistics.mean(len(item.image) for item in items) / 1024
    print(f"{len(items)} pictures of {arguments.width} x {arguments.height}, {size:.0f} KiB each")


def our_batches(arguments):
    """Endless training batches of this project."""
    from mural_tf.config import base_config
    from mural_tf.data.streams.pipeline import training_batches
    from mural_tf.text.word_pieces import WordPieceTokenizer

    config = base_config()
    config.model = "align"
    config.data.update(dict(directory=arguments.folder, shuffle_buffer=64))
    config.image_tower.update(dict(resize=arguments.resize, image_size=arguments.crop))
    config.train.image_text_batch = arguments.batch
    tokenizer = WordPieceTokenizer(VOCABULARY, max_length=64)
    return iter(training_batches(config, tokenizer, streams=("image_text",)))


def pil_batches(arguments):
    """Endless batches as a plain PIL loader makes them, a batch ahead on two threads."""
    from tokenizers import BertWordPieceTokenizer

    folder = pathlib.Path(arguments.folder)
    tokenizer = BertWordPieceTokenizer(str(folder / "vocabulary.txt"), lowercase=False)
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(max_length=64)
    names = sorted(folder.glob("*.jpg"))
    rng = np.random.default_rng(0)

    def load(job):
        name, left, top, flip = job
        image = Image.open(name).convert("RGB").resize((arguments.resize, arguments.resize), Image.BILINEAR)
        image = image.crop((left, top, left + arguments.crop, top + arguments.crop))
        if flip:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        return np.asarray(image), name.with_suffix(".txt").read_text(encoding="utf-8")

    with ThreadPoolExecutor(2) as pool:
        while True:
            jobs = [
                (names[i], *rng.integers(0, arguments.resize - arguments.crop + 1, 2), rng.random() < 0.5)
                for i in rng.integers(0, len(names), arguments.batch)
            ]
            images, captions = zip(*pool.map(load, jobs))
            encodings = tokenizer.encode_batch(list(captions))
            yield np.stack(images), np.array([(e.ids, e.attention_mask) for e in encodings])


def serve(arguments) -> None:
    """Answers each line read with the times of `batches` batches, once the process is at rest again."""
    batches = {"ours": our_batches, "PIL": pil_batches}[arguments.role](arguments)
    for _ in sys.stdin:
        for _ in range(WARM_UP):
            next(batches)
        start, processor = time.perf_counter(), time.process_time()
        for _ in range(arguments.batches):
            next(batches)
        answer = {"elapsed": time.perf_counter() - start, "processor": time.process_time() - processor}
        spent = -1.0
        while time.process_time() - spent > 0.02:  # batches made ahead must not run in the other's turn
            spent = time.process_time()
            time.sleep(0.2)
        print(json.dumps(answer), flush=True)


def report(sides: dict[str, Side], images: dict[str, int], rounds: int) -> None:
    times = []
    for turn in range(rounds + 1):
        answers = {name: side.ask(case="captions") for name, side in sides.items()}
        if turn:
            times.append({n: {k: images[n] / a[k] for k in ("elapsed", "processor")} for n, a in answers.items()})
    print("images a second          elapsed   of processor time")
    for name in sides:
        print(f"{name:20} {statistics.median(t[name]['elapsed'] for t in times):11.1f}", end="")
        print(f" {statistics.median(t[name]['processor'] for t in times):19.1f}")
    for name in sides:
        if name != "ours":
            ratios = [[t["ours"][key] / t[name][key] for t in times] for key in ("elapsed", "processor")]
            print(f"ours / {name:13} {statistics.median(ratios[0]):11.2f} {statistics.median(ratios[1]):19.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(images=256, width=500, height=375, resize=153, crop=128, batch=32, batches=8).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip_step", action="store_true", help="leave the training step out")
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        return serve(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_data(pathlib.Path(folder), arguments)
        own = [sys.executable, "-m", "benchmarks.input_pipeline", *sys.argv[1:], f"--folder={folder}"]
        sides = {name: Side([*own, f"--role={name}"]) for name in ("ours", "PIL")}
        images = dict.fromkeys(sides, arguments.batch * arguments.batches)
        if not arguments.skip_step:
            cases = json.dumps({"captions": [caption_lengths(arguments.batch)]})
            options = ["--precision=auto", f"--pixels={arguments.crop}", "--threads=0", "--full=64"]
            sides["step"] = Side([sys.executable, "-m", "benchmarks.step_ours", *options, f"--cases={cases}"])
            images["step"] = arguments.batch
        report(sides, images, arguments.rounds)
        for side in sides.values():
            side.close()


if __name__ == "__main__":
    main()
