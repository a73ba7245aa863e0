"""An embedder whose vectors are known: images and texts *are* their vectors, written as numbers ("1 0 0 0")."""

import pathlib

import numpy as np

from mural_tf.evaluation.benchmarks import run_benchmark
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation


class FakeEmbedder:
    """Images are bytes, or files, that hold their vector; what does not parse does not decode."""

    step = 7
    path = "fake"

    def __init__(self, vectors=None):
        self.vectors = vectors  # text -> vector for texts that are words; None: texts are numbers
        self.texts_encoded, self.images_encoded = [], 0

    def encode_image(self, images, batch_size=64, progress=None, on_error="raise"):
        kept, vectors = [], []
        for index, image in enumerate(images):
            self.images_encoded += 1
            try:
                data = image if isinstance(image, bytes) else pathlib.Path(image).read_bytes()
                vectors.append(np.array(data.split(), np.float32))
                kept.append(index)
            except (OSError, ValueError):
                if on_error == "raise":
                    raise
        vectors = np.array(vectors, np.float32).reshape(len(kept), -1 if kept else 0)
        return (vectors, np.array(kept, np.int64)) if on_error == "skip" else vectors

    def encode_text(self, texts, batch_size=64, progress=None):
        self.texts_encoded += texts
        return np.array([self.vectors[t] if self.vectors else t.split() for t in texts], np.float32)


def one_hot(index, size=4):
    """The text of a unit vector."""
    return " ".join("1" if i == index else "0" for i in range(size))


class TwoHeads(FakeEmbedder):
    """Has a second text head, which reverses the vector."""

    text_heads = ("text_text",)

    def with_text_head(self, name):
        assert name == "text_text"
        other = FakeEmbedder()
        other.encode_text = lambda texts, **options: FakeEmbedder.encode_text(other, texts)[:, ::-1]
        return other


def run(name, folder, embedder=None, split="", languages=(), **options) -> list[Evaluation]:
    """Runs a benchmark; `options` of the protocol have "__" for a dot."""
    protocol = default_protocol()
    protocol.update_from_flattened_dict({key.replace("__", "."): value for key, value in options.items()})
    return run_benchmark(name, Request(embedder or FakeEmbedder(), folder, split, protocol, languages))
