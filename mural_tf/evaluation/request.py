"""One run of a published benchmark: its files, rows that cannot be used, images in folders, translated captions."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_tf.evaluation.retrieval import CaptionedImages, Evaluation, Retrieval, check_missing
from mural_tf.evaluation.translated import translate_pool

LONG_LIST = 5000  # encoding at least as many texts shows progress
# Where the images of each collection usually lie below a benchmark's folder.
IMAGE_FOLDERS = (
    "", "images", "flickr30k-images", "val2014", "train2014", "images/val2014", "images/train2014", "data/images",
    "Flicker8k_Dataset", "Images",
)  # fmt: skip


@dataclasses.dataclass
class Request(Retrieval):
    """A `Retrieval` whose `folder` holds a benchmark's own files.

    Attributes:
      problems: rows that could not be used since the last `take_problems`, as (problem, file and line).
    """

    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def on_problem(self, problem: str, location: str) -> None:
        """Adds a row that a reader could not use to `problems`; `take_problems` raises if there are too many."""
        self.problems.append((problem, location))

    def take_problems(self, used: int) -> list[str]:
        """Returns [a note on the rows that could not be used], or [] without such rows, and clears `problems`.

        `used` is how many rows were used. Raises `UserError` if their share is above the protocol's `max_missing`.
        """
        if not self.problems:
            return []
        counts = collections.Counter(problem for problem, _ in self.problems)
        first_locations: dict[str, str] = {}
        for problem, location in self.problems:
            first_locations.setdefault(problem, location)
        listed = "; ".join(f"{counts[name]} x {name}, first at {first_locations[name]}" for name in sorted(counts))
        left_out = len(self.problems)
        rows = used + left_out
        self.problems.clear()
        if left_out > self.protocol.max_missing * rows:
            raise UserError(
                f"{left_out} of {rows} rows cannot be used ({listed}): more than "
                f"--protocol.max_missing={self.protocol.max_missing} allows. Repair the files."
            )
        return [f"NOT COMPLETE: {left_out} of {rows} rows are left out: {listed}."]

    def file_pool(self, captions: Iterable, where: str) -> CaptionedImages:
        """Returns the pool of `captions`, `Caption`s, and their images' files, with a note on `problems`, now cleared.

        `where` names it in messages. With `--protocol.subset` only images whose files exist are in it. Raises
        `UserError` if then no file exists, or as `take_problems`.
        """
        captions = list(captions)
        problems = self.take_problems(len(captions))
        files: dict[str, pathlib.Path] = {}  # {image_id: file}, in the order of the image numbers
        for image_file, image_id, *_ in captions:
            if image_id not in files:
                files[image_id] = self.image_path(image_file)
        subset = ""
        if self.protocol.subset:
            all_files = files
            files = {image_id: path for image_id, path in all_files.items() if path.is_file()}
            if not files:
                first = [*all_files.values(), self.folder][0]  # the folder, if there are no captions
                raise UserError(f"{first} and the other images of {where} are missing: name --protocol.images=FOLDER.")
            subset = f"only the {len(files):,} of {len(all_files):,} images that are in the folder, "
        ids = list(files)
        pool = CaptionedImages(where, lambda numbers: [files[ids[number]] for number in numbers], subset=subset)
        pool.notes += problems
        for _, image_id, caption, language, _ in captions:
            if image_id in files:
                pool.add(image_id, caption, language)
        return pool

    def measure(self, pool: CaptionedImages, *arguments, **options) -> list[Evaluation]:
        """Returns the evaluations of `Retrieval.measure`, after translating `pool` if the protocol has translations."""
        if self.protocol.translations:
            translate_pool(pool, self.protocol.translations, self.protocol.max_missing)
        return super().measure(pool, *arguments, **options)

    def encode_images(self, images: Sequence, where: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Returns embeddings [K, D], int [K] indices of the readable images, and notes, for paths or uint8 arrays.

        Raises `UserError` if too many images cannot be read, as `check_missing` does.
        """
        embeddings, readable = self.encode(images)
        missing = [str(images[i]) for i in np.delete(np.arange(len(images)), readable)]
        return embeddings, readable, check_missing(missing, len(images), where, self.protocol.max_missing)

    def encode_texts(self, texts: Sequence[str], head: str = "") -> np.ndarray:
        """Returns embeddings [N, D] of texts by a text head; "" is the image-text head."""
        embedder = self.embedder
        if head:
            embedder = embedder.with_text_head(head)
        progress = self.progress and len(texts) >= LONG_LIST
        return embedder.encode_text(list(texts), batch_size=self.batch_size, progress=progress)

    def text_heads(self) -> dict[str, str]:
        """Returns {suffix of metrics' names: head}: {"": ""} for the image-text head, then the model's other heads."""
        heads = {"": ""}
        for head in getattr(self.embedder, "text_heads", ()):
            heads[f"_{head}_head"] = head
        return heads

    def image_path(self, name: str) -> pathlib.Path:
        """Returns the path of the image `name` in the image folders; if it is missing, the first path that was tried.

        Flickr8k names a photograph differently: without 1000268201.jpg it is the file 1000268201_693b08cb0e.jpg.
        """
        names = dict.fromkeys((name, pathlib.PurePosixPath(name).name))  # with and without Karpathy's "val2014/"
        options = itertools.product(names, self._image_folders)
        candidates = [folder / file_name for file_name, folder in options]
        for path in candidates:
            if path.is_file():
                return path
        return self._flickr_files.get(pathlib.PurePosixPath(name).stem, candidates[0])

    @functools.cached_property
    def _image_folders(self) -> list[pathlib.Path]:
        """The `IMAGE_FOLDERS` that exist below `--protocol.images` and the benchmark's folder, or else these two."""
        roots = [self.folder]
        if self.protocol.images:
            roots.insert(0, as_path(self.protocol.images))
        folders = [root / folder for root, folder in itertools.product(roots, IMAGE_FOLDERS)]
        return [folder for folder in folders if folder.is_dir()] or roots

    @functools.cached_property
    def _flickr_files(self) -> dict[str, pathlib.Path]:
        """{Flickr's number of a photograph: file} of the image files that are named as Flickr8k names them."""
        files = {}
        for folder in self._image_folders:
            for path in sorted(folder.glob("[0-9]*_*.jpg")):
                number, _, _ = path.name.partition("_")
                files.setdefault(number, path)
        return files
