"""Crisscrossed Captions' files of ratings, joined with the captions' texts of MS-COCO."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from collections.abc import Iterator

import numpy as np

from mural_tf.config import ConfigurationError
from mural_tf.data.text_files import clean, read_lines

ORIGINAL = "c2i_original"  # rows of sits: a caption and its own image


@dataclasses.dataclass
class Ratings:
    """Pairs of item numbers with their human score: int [N], int [N], float [N], and the sampling methods."""

    first: np.ndarray
    second: np.ndarray
    scores: np.ndarray
    methods: list[str]

    def keep(self, wanted: np.ndarray) -> Ratings:
        """Returns the rows where `wanted` [N] is true."""
        methods = [method for method, want in zip(self.methods, wanted) if want]
        return Ratings(self.first[wanted], self.second[wanted], self.scores[wanted], methods)


@dataclasses.dataclass
class Rated:
    """A split: image names, captions with the number of their image, and the three kinds of ratings."""

    images: list[str]
    captions: list[str]
    owners: np.ndarray
    sts: Ratings
    sis: Ratings
    sits: Ratings


def restrict(data: Rated, kept: np.ndarray) -> Rated:
    """Leaves out all images but `kept` (numbers), with their captions and ratings."""
    image_place = np.full(len(data.images), -1)
    image_place[kept] = np.arange(len(kept))
    stays = np.flatnonzero(image_place[data.owners] >= 0)
    caption_place = np.full(len(data.captions), -1)
    caption_place[stays] = np.arange(len(stays))

    def move(ratings: Ratings, first: np.ndarray, second: np.ndarray) -> Ratings:
        moved = dataclasses.replace(ratings, first=first[ratings.first], second=second[ratings.second])
        return moved.keep((moved.first >= 0) & (moved.second >= 0))

    return Rated(
        [data.images[i] for i in kept],
        [data.captions[i] for i in stays],
        image_place[data.owners[stays]],
        move(data.sts, caption_place, caption_place),
        move(data.sis, image_place, image_place),
        move(data.sits, caption_place, image_place),
    )


def read_split(folder: pathlib.Path, split: str) -> Rated:
    """Reads the three files of ratings, and the captions' texts from MS-COCO's or Karpathy and Li's file.

    Which images and captions make up the split follows from sits' original pairs.

    Raises:
      ConfigurationError: a row that is not as documented, an item that is no part of the split, a caption without text.
    """
    folder = folder / "data" if (folder / "data").is_dir() else folder
    rows = {kind: list(_read_csv(folder / f"{kind}_{split}.csv")) for kind in ("sts", "sis", "sits")}
    originals = [row for row in rows["sits"] if row[3] == ORIGINAL]
    if not originals:
        raise ConfigurationError(f"{folder / f'sits_{split}.csv'} has no rows {ORIGINAL!r}: which captions are whose?")
    images = {name: number for number, name in enumerate(dict.fromkeys(row[1] for row in originals))}
    captions = {row[0]: number for number, row in enumerate(originals)}
    texts = _read_texts(folder if _text_files(folder) else folder.parent)
    missing = [name for name in captions if _sentence_id(name) not in texts]
    if missing:
        raise ConfigurationError(f"{len(missing)} captions of the ratings have no text, such as {missing[0]}.")
    return Rated(
        list(images),
        [texts[_sentence_id(name)] for name in captions],
        np.array([images[row[1]] for row in originals]),
        _ratings(rows["sts"], captions, captions),
        _ratings(rows["sis"], images, images),
        _ratings(rows["sits"], captions, images),
    )


def _ratings(rows: list[tuple], first: dict[str, int], second: dict[str, int]) -> Ratings:
    for row in rows:
        unknown = row[0] if row[0] not in first else row[1] if row[1] not in second else ""
        if unknown:
            raise ConfigurationError(f"{row[4]}: {unknown} is no part of the split's {ORIGINAL} pairs.")
    return Ratings(
        np.array([first[row[0]] for row in rows]),
        np.array([second[row[1]] for row in rows]),
        np.array([row[2] for row in rows]),
        [row[3] for row in rows],
    )


def _read_csv(path: pathlib.Path) -> Iterator[tuple[str, str, float, str, str]]:
    """Yields (item, item, score, sampling method, file:line)."""
    reader = csv.reader(text or "" for _, text in read_lines(path))
    header = next(reader, [])
    if header[2:] != ["agg_score", "sampling_method"]:
        raise ConfigurationError(f"{path}: expected columns item, item, agg_score, sampling_method; got {header}.")
    for row in filter(None, reader):
        place = f"{path}:{reader.line_num}"
        try:
            first, second, score, method = row
            yield first, second, float(score), method, place
        except ValueError:
            raise ConfigurationError(f"{place}: expected item, item, score, method; got {row}.") from None


def _sentence_id(name: str) -> str:
    """ "COCO_val2014:sentid:190268" -> "190268"."""
    return name.rsplit(":", 1)[-1]


def _text_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in (folder / "dataset_coco.json", folder / "captions_val2014.json") if path.is_file()]


def _read_texts(folder: pathlib.Path) -> dict[str, str]:
    """Returns MS-COCO's caption id -> text; Karpathy and Li's sentence ids are the same."""
    files = _text_files(folder)
    if not files:
        raise ConfigurationError(f"{folder} has neither dataset_coco.json nor captions_val2014.json.")
    try:
        content = json.loads(files[0].read_text(encoding="utf-8"))
        if "annotations" in content:
            return {str(row["id"]): clean(row["caption"]) for row in content["annotations"]}
        return {str(row["sentid"]): clean(row["raw"]) for image in content["images"] for row in image["sentences"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{files[0]} is not as MS-COCO or Karpathy and Li publish it ({error!r}).") from None
