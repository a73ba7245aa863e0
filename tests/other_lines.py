"""A trained workdir with its export, made by one line of TensorFlow to be loaded by another, and what they embed.

`PYTHONPATH=. python tests/other_lines.py` writes tests/other_lines/tensorflow-<version>.zip with the line that runs it.
"""

import os
import pathlib
import tempfile
import zipfile

import numpy as np
from toy_data import picture, toy_config, write_toy_data

FOLDER = pathlib.Path(__file__).parent / "other_lines"
TEXTS = ["thing w1", "", "ding v7 ding ding ding ding ding ding ding", "ŋ 日本", "Thing W1"]
KEPT = ("config.json", "vocabulary.txt", "environment.json", "checkpoints", "export")
STEPS = 3


def pictures():
    return [picture(0), picture(1, side=50), picture(2, side=90)]


def train() -> None:
    """Trains in the working directory, or goes on there: a MURAL of few numbers, with LAMB and its slots."""
    from mural_tf.runs.pretrain import pretrain

    config = toy_config("toys")
    config.image_tower.update(dict(name="resnet", width=0.03125, depth=0.5))
    config.text_tower.update(dict(hidden_size=16, feed_forward_size=32))
    config.embedding_size = 16
    config.optimizer.name = "lamb"
    config.vocabulary.size = 60
    config.train.update(dict(steps=STEPS, checkpoint_every=1, evaluate_every=0, log_every=1))
    pretrain(config, "workdir")


def embed(*paths: str) -> list[dict]:
    """What workdirs and exports make of the texts and pictures, float32 [N, 16] each."""
    import mural_tf

    embedders = map(mural_tf.load, paths)
    return [{"texts": one.encode_text(TEXTS), "images": one.encode_image(pictures())} for one in embedders]


def make() -> pathlib.Path:
    """Trains, embeds and writes the archive of the line that runs, with the checkpoints of the last two steps."""
    import tensorflow as tf

    path = FOLDER / f"tensorflow-{tf.__version__}.zip"
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        os.chdir(folder)
        write_toy_data("toys")
        train()
        files = [
            file for file in sorted(pathlib.Path("workdir").rglob("*")) if file.is_file() and file.parts[1] in KEPT
        ]
        early = [f"ckpt-{step}." for step in range(STEPS - 1)]
        for file in files:
            if not file.name.startswith(tuple(early)):
                archive.write(file)
        np.savez("embeddings.npz", **embed("workdir")[0])
        archive.write("embeddings.npz")
    return path


if __name__ == "__main__":
    written = make()
    print(f"{written}: {written.stat().st_size:,} bytes")
