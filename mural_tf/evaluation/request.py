"""What a benchmark is asked to do, and the folder it finds its files in."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from mural_tf.embedder import Embedder
from mural_tf.errors import UserError
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.retrieval import (
    CaptionedImages,
    Evaluation,
    check_missing,
    held_out_images,
    language_groups,
    measure_pool,
    read_pool,
)
from mural_tf.files import as_path
from mural_tf.text_files import clean, read_lines

LONG_LIST = 5000  # encoding at least as many texts shows progress
# Where the images of each collection usually lie below a benchmark's folder.
IMAGE_FOLDERS = ("", "images", "flickr30k-images", "val2014", "train2014", "images/val2014", "images/train2014")


@dataclasses.dataclass
class Request:
    """One run of a benchmark.

    `embedder`: anything with `Embedder`'s methods. `folder`: of the benchmark's files. `languages`: only these; empty:
    all. `batch_size`: images, or texts, per call of the model.
    """

    embedder: Embedder
    folder: pathlib.Path
    split: str
    protocol: ConfigDict
    languages: tuple[str, ...] = ()
    batch_size: int = 128
    progress: bool = False
    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (kind, file and line)

    def on_problem(self, kind: str, location: str) -> None:
        """Keeps what a reader could not use; `take_problems` decides whether it was too much."""
        self.problems.append((kind, location))

    def take_problems(self, used: int) -> list[str]:
        """Returns a note on the rows left out so far; raises `UserError` if there were too many."""
        if not self.problems:
            return []
        kinds = collections.Counter(kind for kind, _ in self.problems)
        first = {kind: location for kind, location in reversed(self.problems)}
        listed = "; ".join(f"{count} x {kind}, first at {first[kind]}" for kind, count in sorted(kinds.items()))
        left_out = len(self.problems)
        self.problems.clear()
        if left_out > self.protocol.max_missing * (used + left_out):
            raise UserError(
                f"{left_out} of {used + left_out} rows cannot be used ({listed}): more than "
                f"--protocol.max_missing={self.protocol.max_missing} allows. Repair the files."
            )
        return [f"NOT COMPLETE: {left_out} of {used + left_out} rows are left out: {listed}."]

    def file_pool(self, captions: Iterable, where: str) -> CaptionedImages:
        """Returns the pool of images in files, from (image_file, image_id, caption, language, location) tuples."""
        files: dict[str, str] = {}
        pool = CaptionedImages(where, read=lambda wanted: self._paths(files, pool, wanted))
        for image_file, image_id, caption, language, _ in captions:
            files.setdefault(image_id, image_file)
            pool.add(image_id, caption, language)
        pool.notes += self.take_problems(sum(map(len, pool.texts.values())))
        return pool

    def measure(
        self,
        pool: CaptionedImages,
        name: str,
        groups: Mapping[str, Sequence[str]] | None = None,
        views: Mapping[str, Sequence[np.ndarray]] | None = None,
        held_out: Collection[str] = (),
    ) -> list[Evaluation]:
        """Measures image-text retrieval (see `measure_pool`), on translated captions if the protocol names some."""
        if self.protocol.translations:
            translate_pool(pool, self.protocol.translations, self.protocol.max_missing)
        return measure_pool(self, pool, name, groups, views, held_out)

    def measure_records(self, name: str) -> list[Evaluation]:
        """Measures image-text retrieval on a folder of image-text TFRecords."""
        pool = read_pool(self.folder, self.split)
        return self.measure(pool, name, language_groups(self.folder), held_out=held_out_images(self.folder))

    def encode(self, images: Iterable) -> tuple[np.ndarray, np.ndarray]:
        """Returns embeddings [K, D] and the int [K] places of the images that can be read."""
        return self.embedder.encode_image(images, batch_size=self.batch_size, on_error="skip", progress=self.progress)

    def encode_images(self, images: Sequence, where: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Encodes paths or uint8 arrays; what cannot be read is bounded as in `check_missing`.

        Returns embeddings [K, D], the int [K] places of the readable images, and notes.
        """
        embeddings, kept = self.encode(images)
        missing = [str(images[i]) for i in np.delete(np.arange(len(images)), kept)]
        return embeddings, kept, check_missing(missing, len(images), where, self.protocol.max_missing)

    def encode_texts(self, texts: Sequence[str], head: str = "") -> np.ndarray:
        """Returns embeddings [N, D] of the image-text head, or of another one."""
        embedder = self.embedder.with_text_head(head) if head else self.embedder
        progress = self.progress and len(texts) >= LONG_LIST
        return embedder.encode_text(list(texts), batch_size=self.batch_size, progress=progress)

    def text_heads(self) -> dict[str, str]:
        """Returns suffix of a row's name -> head: "" for the image-text head, then the model's others."""
        return {"": "", **{f"_{head}_head": head for head in getattr(self.embedder, "text_heads", ())}}

    def image_path(self, name: str) -> pathlib.Path:
        """Returns where an image lies, or the first place where it should."""
        roots = [as_path(self.protocol.images)] if self.protocol.images else []
        places = [root / folder for root in (*roots, self.folder) for folder in IMAGE_FOLDERS]
        names = dict.fromkeys((name, pathlib.PurePosixPath(name).name))  # with and without Karpathy's "val2014/"
        candidates = [place / one for one in names for place in places]
        return next((path for path in candidates if path.is_file()), candidates[0])

    def _paths(self, files: dict[str, str], pool: CaptionedImages, wanted: Sequence[int]) -> list[pathlib.Path]:
        ids = list(pool.image_numbers)
        return [self.image_path(files[ids[number]]) for number in wanted]


def measure_retrieval(
    embedder: Embedder,
    data_dir: str | pathlib.Path,
    split: str,
    languages: Sequence[str] | None = None,
    batch_size: int = 128,
    name: str = "retrieval",
) -> Evaluation:
    """Measures one split of a folder of records, whatever share of its images decodes.

    Recalls are in percent, ranks count from 1. Keys: `<name>/<language>/image_to_text/recall@1`, `@5`, `@10`,
    `.../mean_rank`, `.../median_rank`, the same for `text_to_image`, `<name>/<language>/mean_recall`,
    `<name>/<group>/mean_recall` and `<name>/all/mean_recall`. Arguments are as in `Request`, `name` begins the keys;
    raises as `measure_pool`.
    """
    protocol = default_protocol()
    protocol.max_missing = 1.0
    request = Request(embedder, as_path(data_dir), split, protocol, tuple(languages or ()), batch_size)
    return request.measure_records(name)[0]


def read_translations(path: str | pathlib.Path) -> dict[tuple[str, str], str]:
    """Returns (language, caption) -> English translation, from a TSV in UTF-8 with these three columns.

    The caption stands exactly as in the benchmark; English captions stay as they are. Nothing here calls a translation
    service. Raises `UserError` for a row without three columns.
    """
    translations = {}
    for number, line in read_lines(path):
        if not line:
            continue
        columns = line.split("\t")
        if len(columns) != 3 or not columns[2].strip():
            raise UserError(
                f"{path}:{number}: expected three columns (language, caption, translation), got {len(columns)}."
            )
        translations[columns[0], clean(columns[1])] = columns[2]
    if not translations:
        raise UserError(f"The file of translations {path} is empty.")
    return translations


def translate_pool(pool: CaptionedImages, path: str | pathlib.Path, max_missing: float) -> None:
    """Replaces the pool's captions by their translations: translate-test ([MURAL] §3.3), for an English model.

    A language without any translation leaves the pool (as MURAL's Table 3 has no Waray-Waray); a caption without one
    is encoded as it is. Both are noted. Raises `UserError` if more than a share of `max_missing` of a
    language's captions lacks a translation, or if there is none at all.
    """
    translations, translated = read_translations(path), []
    for language in [language for language in pool.texts if language != "en"]:
        texts = [translations.get((language, clean(text))) for text in pool.texts[language]]
        missing = [text for text, new in zip(pool.texts[language], texts) if new is None]
        if len(missing) == len(texts):
            del pool.texts[language], pool.owners[language]
            pool.notes.append(f"{language} is left out: {path} has no translation of it.")
            continue
        if len(missing) > max_missing * len(texts):
            raise UserError(
                f"{path} lacks {len(missing)} of the {len(texts)} captions in {language}, such as {missing[0]!r}; "
                f"--protocol.max_missing={max_missing} allows fewer."
            )
        if missing:
            pool.notes.append(f"{len(missing)} captions in {language} have no translation and stay as they are.")
        pool.texts[language] = [old if new is None else new for old, new in zip(pool.texts[language], texts)]
        translated.append(language)
    if not translated:
        raise UserError(f"{path} translates none of the captions of {pool.where}.")
    pool.notes.append(f"Translate-test: the captions in {', '.join(sorted(translated))} are translations from {path}.")
