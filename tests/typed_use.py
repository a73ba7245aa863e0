"""A user's program, checked strictly by tests/project/test_types.py and never run: names of README and the notebook."""

from __future__ import annotations

import pathlib

import numpy as np
import numpy.typing as npt

import mural_tf
from mural_lite.errors import UserError
from mural_search.collect import find
from mural_search.gallery import write_gallery
from mural_search.index import index_in_memory, load_index
from mural_search.items import IMAGES
from mural_search.queries import Query, search
from mural_tf.data.records import IMAGE_TEXT, ImageTextRecord, write_records
from mural_tf.evaluation.retrieval import measure_retrieval


def encode(path: str | pathlib.Path) -> npt.NDArray[np.float32]:
    embedder: mural_tf.Embedder = mural_tf.load(path, checkpoint="best", trust=True)
    pixels = np.zeros((8, 8, 3), np.uint8)
    images: npt.NDArray[np.float32] = embedder.encode_image(["a.jpg", pathlib.Path("b.png"), b"\x89PNG", pixels])
    some, kept = embedder.encode_image(["a.jpg"], on_error="skip")
    places: list[int] = kept.tolist()
    texts = embedder.encode_text(["moyo mwekundu"], language="sw")
    print(places, some, embedder.with_text_head("text_text").encode_text(["a red heart"]))
    one: npt.NDArray[np.float32] = embedder.encode_image("a.jpg") - embedder.encode_text("a red heart")
    found, scores = embedder.search(images, (text for text in ("moyo", "heart")), k=3)
    print(one, found.tolist(), scores)
    return embedder.similarity(images, texts)


def classify(embedder: mural_tf.Embedder, images: list[bytes]) -> list[str]:
    labels = ["red", "blue"]
    best, cosines = embedder.classify(images, labels, ["a {} circle"])
    again, _ = embedder.classify(embedder.encode_image(images), embedder.encode_labels(labels))
    print(cosines.shape, again, embedder.embedding_size + 1, embedder.path.upper(), embedder.step)
    return [labels[place] for place in best.tolist()]


def find_pictures(embedder: mural_tf.Embedder, folder: str) -> list[str]:
    index = index_in_memory(embedder, find(IMAGES, [folder], split="test"))
    results = search(index, embedder, [Query("a red circle")], top=3)
    write_gallery("found.html", load_index("index"), results)
    recall: float = measure_retrieval(embedder, folder, "test").metrics["retrieval/all/mean_recall"]
    return [f"{hit.name} {hit.score:.2f} {recall}" for hit in results[0].hits]


def write(folder: pathlib.Path) -> int:
    try:
        record = ImageTextRecord("1", b"\x89PNG", ["un cercle"], ["fr"], ["1"])
        return write_records(folder, IMAGE_TEXT, "train", [record])
    except UserError as error:
        raise SystemExit(str(error)) from None
