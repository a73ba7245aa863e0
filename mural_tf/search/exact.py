"""Exact search: the images closest to a sentence by cosine, compared with every image of a folder or data split."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from mural_tf.config import ConfigurationError
from mural_tf.data import records
from mural_tf.embedder import load

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")


@dataclasses.dataclass
class Hit:
    """One result; `rank` counts from 1, `score` is the cosine."""

    rank: int
    score: float
    name: str


class FolderImages:
    """The image files below a folder, by their relative path. Raises `ConfigurationError` if there are none."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        if not self.folder.is_dir():
            raise ConfigurationError(f"The image folder {folder} does not exist.")
        files = (path for path in self.folder.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS and path.is_file())
        self.names = sorted(path.relative_to(self.folder).as_posix() for path in files)
        if not self.names:
            raise ConfigurationError(
                f"No images in {folder}: expected files ending in {', '.join(IMAGE_ENDINGS)}, in it or below it; "
                "for a data set of TFRecords name the split as well."
            )

    def __iter__(self) -> Iterator[tuple[str, pathlib.Path]]:
        return ((name, self.folder / name) for name in self.names)

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Returns the encoded images of `names`."""
        return {name: (self.folder / name).read_bytes() for name in names}


class RecordImages:
    """The images of one split of image-text TFRecords, each `image_id` once. Raises `ConfigurationError` for none."""

    def __init__(self, directory: str | os.PathLike, split: str):
        self.directory, self.split = directory, split
        records.list_files(directory, records.IMAGE_TEXT, split)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        seen = set()
        for record in records.read_records(self.directory, records.IMAGE_TEXT, self.split):
            if record.image_id not in seen:
                seen.add(record.image_id)
                yield record.image_id, record.image

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Returns the encoded images of `names`, by reading the split again."""
        wanted = set(names)
        return {name: image for name, image in self if name in wanted}


class ImageIndex:
    """Embeddings of images and their names; scores every image for every query.

    Args:
      names: N names.
      embeddings: float32 [N, D], L2-normalised.
      unreadable: how many images were left out because they do not decode.
    """

    def __init__(self, names: list[str], embeddings: np.ndarray, unreadable: int = 0):
        self.names, self.embeddings, self.unreadable = names, embeddings, unreadable

    def search(self, query: np.ndarray, top: int) -> list[Hit]:
        """Returns the `top` images by cosine with `query` [D], best first; equal scores keep the order of the names."""
        scores = self.embeddings @ query  # [N]
        top = min(top, len(scores))
        threshold = np.partition(scores, -top)[-top]
        best = np.flatnonzero(scores >= threshold)
        best = best[np.argsort(-scores[best], kind="stable")][:top]
        return [Hit(rank, float(scores[i]), self.names[i]) for rank, i in enumerate(best, start=1)]


def open_images(images: str | os.PathLike, split: str = "") -> FolderImages | RecordImages:
    """Returns the images of a folder, or, given a split, of a data set."""
    return RecordImages(images, split) if split else FolderImages(images)


def build_index(
    embedder, images: FolderImages | RecordImages, batch_size: int = 64, progress: bool | None = None
) -> ImageIndex:
    """Encodes every image, leaving out and counting those that do not decode.

    Raises `ConfigurationError` if none does.
    """
    names = []

    def contents():
        for name, content in images:
            names.append(name)
            yield content

    embeddings, kept = embedder.encode_image(contents(), batch_size=batch_size, on_error="skip", progress=progress)
    if not len(kept):
        raise ConfigurationError(f"None of the {len(names)} images can be read.")
    return ImageIndex([names[i] for i in kept], embeddings, len(names) - len(kept))


def search(embedder, images: str | os.PathLike | ImageIndex, query: str, top: int = 10, split: str = "") -> list[Hit]:
    """Returns the `top` images that `query`, a sentence in any language, describes best.

    Args:
      images: a folder of images, a data set (with `split`), or an `ImageIndex` made before, for several queries.

    Raises:
      ConfigurationError: an empty query, `top` below 1, or no images.
    """
    _check(query, top)
    if not isinstance(images, ImageIndex):
        images = build_index(embedder, open_images(images, split))
    return images.search(embedder.encode_text([query])[0], top)


def search_and_show(
    model: str, images: str, query: str, top: int = 10, split: str = "", output: str = "", batch_size: int = 64
) -> list[Hit]:
    """Searches with a saved model, prints the ranked files and, given `output`, writes the contact sheet there."""
    from mural_tf.search.contact_sheet import write_contact_sheet

    _check(query, top)
    source = open_images(images, split)  # mistakes show before the model is loaded
    if output and not pathlib.Path(output).resolve().parent.is_dir():
        raise ConfigurationError(f"The folder of --output={output} does not exist.")
    embedder = load(model)
    index = build_index(embedder, source, batch_size, progress=True)
    hits = search(embedder, index, query, top)
    if index.unreadable:
        print(f"{index.unreadable} of {index.unreadable + len(index.names)} images cannot be read.", file=sys.stderr)
    print(f"{query!r} in {len(index.names):,} images:")
    for hit in hits:
        print(f"{hit.rank:4}  {hit.score:+.3f}  {hit.name}")
    if output:
        note = write_contact_sheet(output, query, hits, source.read(hit.name for hit in hits))
        print(f"Written: {output}" + (f" ({note})" if note else ""))
    return hits


def _check(query: str, top: int) -> None:
    if not query.strip():
        raise ConfigurationError("The query is empty: give a sentence in any language.")
    if top < 1:
        raise ConfigurationError(f"top must be at least 1, got {top}.")
