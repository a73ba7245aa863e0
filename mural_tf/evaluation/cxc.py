"""Crisscrossed Captions (Parekh et al., 2021): four retrieval tasks with all positives, and three correlations.

The ratings extend MS-COCO's Karpathy test (and val) split: 5,000 images, five captions each, with human similarity
0..5 of caption pairs (STS), image pairs (SIS) and caption-image pairs (SITS).

Retrieval: STS and SITS count as positive if at least 3, SIS if at least 2.5 (Parekh et al., §3); R@K is the hit rate.
Text-text and image-image search all other items; queries without a positive are left out. Image-text positives are
MS-COCO's own and the rated pairs (`cxc.positives=union`), or the rated pairs alone (`rated`, what the eccv_caption
package counts). In text-text, only rated co-captions count unless `cxc.co_captions=all`; the paper does not say.

Correlation: mean and standard deviation of Spearman's r, times 100, over bootstrap draws (`metrics/correlation.py`).
Queries are captions for STS, images for SIS and SITS: then simulated draws have the published deviations.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from collections.abc import Iterator

import numpy as np

from mural_lite.errors import UserError
from mural_lite.text_files import clean, read_lines
from mural_tf.evaluation.retrieval import Evaluation, Request
from mural_tf.metrics import ranking
from mural_tf.metrics.correlation import bootstrap_spearman

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
      UserError: a row that is not as documented, an item that is not part of the split, a caption without text.
    """
    folder = folder / "data" if (folder / "data").is_dir() else folder
    rows = {file: list(_read_csv(folder / f"{file}_{split}.csv")) for file in ("sts", "sis", "sits")}
    originals = [row for row in rows["sits"] if row[3] == ORIGINAL]
    if not originals:
        raise UserError(
            f"{folder / f'sits_{split}.csv'} has no rows {ORIGINAL!r}, which name each caption's image: fetch it again."
        )
    images = {name: number for number, name in enumerate(dict.fromkeys(row[1] for row in originals))}
    captions = {row[0]: number for number, row in enumerate(originals)}
    texts = _read_texts(folder if _text_files(folder) else folder.parent)
    missing = [name for name in captions if _sentence_id(name) not in texts]
    if missing:
        raise UserError(f"{len(missing)} captions of the ratings have no text, such as {missing[0]}.")
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
            raise UserError(f"{row[4]}: {unknown} is not part of the split's {ORIGINAL} pairs.")
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
        raise UserError(f"{path}: expected columns item, item, agg_score, sampling_method; got {header}.")
    for row in filter(None, reader):
        location = f"{path}:{reader.line_num}"
        try:
            first, second, score, method = row
            yield first, second, float(score), method, location
        except ValueError:
            raise UserError(f"{location}: expected item, item, score, method; got {row}.") from None


def _sentence_id(name: str) -> str:
    """ "COCO_val2014:sentid:190268" -> "190268"."""
    return name.rsplit(":", 1)[-1]


def _text_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in (folder / "dataset_coco.json", folder / "captions_val2014.json") if path.is_file()]


def _read_texts(folder: pathlib.Path) -> dict[str, str]:
    """Returns MS-COCO's caption id -> text; Karpathy and Li's sentence ids are the same."""
    files = _text_files(folder)
    if not files:
        raise UserError(f"{folder} has neither dataset_coco.json nor captions_val2014.json.")
    try:
        content = json.loads(files[0].read_text(encoding="utf-8"))
        if "annotations" in content:
            return {str(row["id"]): clean(row["caption"]) for row in content["annotations"]}
        return {str(row["sentid"]): clean(row["raw"]) for image in content["images"] for row in image["sentences"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{files[0]} is not as MS-COCO or Karpathy and Li publish it ({error!r}).") from None


TEXT_THRESHOLD, IMAGE_THRESHOLD = 3.0, 2.5


def cxc(request: Request) -> list[Evaluation]:
    """Measures the four retrieval tasks and the three correlations."""
    data = read_split(request.folder, request.split)
    paths = [request.image_path(name) for name in data.images]
    images, kept, notes = request.encode_images(paths, f"Crisscrossed Captions, {request.split}")
    if len(kept) < len(data.images):
        data = restrict(data, kept)
    result = Evaluation("cxc", request.split, "", {}, {}, notes=notes)
    texts = {suffix: request.encode_texts(data.captions, head) for suffix, head in request.text_heads().items()}
    _retrieval(result, data, images, texts, request.protocol.cxc)
    _correlation(result, data, images, texts, request.protocol.cxc)
    options = request.protocol.cxc
    replacement, original = ("with" if flag else "without" for flag in (options.replacement, options.sits_original))
    result.protocol = (
        f"{len(data.images):,} images, {len(data.captions):,} captions; image-text positives: {options.positives}, "
        f"co-captions: {options.co_captions}; correlations: {options.draws:,} draws of half the queries "
        f"{replacement} replacement, SITS {original} {ORIGINAL}, STS queries: {options.sts_queries}"
    )
    if notes:
        result.protocol = f"NOT COMPLETE: {result.protocol}"
    return [result]


def _retrieval(result: Evaluation, data: Rated, images, texts: dict[str, np.ndarray], options) -> None:
    positive = data.sits.scores >= TEXT_THRESHOLD
    captions, owners = data.sits.first[positive], data.sits.second[positive]
    if options.positives == "union":
        captions = np.concatenate([captions, np.arange(len(data.captions))])
        owners = np.concatenate([owners, data.owners])
    to_text, to_image = ranking.ranks_both_ways(images, texts[""], (owners, captions))
    _add(result, "image_to_text", to_text)
    _add(result, "text_to_image", to_image)
    positives = _symmetric(data.sts, TEXT_THRESHOLD)
    if options.co_captions == "all":
        positives = np.concatenate([positives, _co_captions(data.owners)], axis=1)
    for suffix, embeddings in texts.items():
        _add(result, f"text_to_text{suffix}", _ranks_among_themselves(embeddings, positives))
    _add(result, "image_to_image", _ranks_among_themselves(images, _symmetric(data.sis, IMAGE_THRESHOLD)))


def _add(result: Evaluation, row: str, ranks: np.ndarray) -> None:
    ranks = ranks[np.isfinite(ranks)]
    if not len(ranks):
        raise UserError(f"No query of {row} has a positive: the files of ratings and captions do not fit.")
    result.sizes[row] = {"queries": len(ranks)}
    for k in ranking.CUTOFFS:
        result.metrics[f"{result.name}/{row}/recall@{k}"] = ranking.recall_at(ranks, k)
    result.metrics[f"{result.name}/{row}/mean_rank"] = float(np.mean(ranks))


def _symmetric(ratings: Ratings, threshold: float) -> np.ndarray:
    """Returns int [2, P]: (query, candidate) of the pairs rated at least `threshold`, in both orders."""
    good = ratings.scores >= threshold
    first, second = ratings.first[good], ratings.second[good]
    return np.stack([np.concatenate([first, second]), np.concatenate([second, first])])


def _co_captions(owners: np.ndarray) -> np.ndarray:
    """Returns int [2, P]: all ordered pairs of different captions of one image."""
    order = np.argsort(owners, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(owners))[:-1])
    return np.array([(a, b) for group in groups for a in group for b in group if a != b], np.int64).reshape(-1, 2).T


def _ranks_among_themselves(embeddings: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Ranks of the items that have a positive, each searching all others."""
    order = np.lexsort(positives[::-1])
    queries, starts = np.unique(positives[0][order], return_index=True)
    wanted = np.split(positives[1][order], starts[1:])
    return ranking.ranks(embeddings[queries], embeddings, wanted, excluded=queries) if len(queries) else np.zeros(0)


def _correlation(result: Evaluation, data: Rated, images, texts: dict[str, np.ndarray], options) -> None:
    sits = data.sits
    if not options.sits_original:
        sits = sits.keep(np.array([method != ORIGINAL for method in sits.methods]))
    for suffix, embeddings in texts.items():
        sts_query = data.owners if options.sts_queries == "images" else np.arange(len(data.captions))
        _bootstrap(result, f"sts{suffix}", data.sts, embeddings, embeddings, (sts_query, sts_query), options)
    identity = np.arange(len(data.images))
    _bootstrap(result, "sis", data.sis, images, images, (identity, identity), options)
    _bootstrap(result, "sits", sits, texts[""], images, (None, identity), options)


def _bootstrap(result: Evaluation, row: str, ratings: Ratings, left, right, query_of, options) -> None:
    """Adds mean and deviation; an item is given under each end whose `query_of` (item -> query) is not None."""
    cosines = np.einsum("nd,nd->n", left[ratings.first], right[ratings.second], dtype=np.float64)
    ends = [query[items] for query, items in zip(query_of, (ratings.first, ratings.second)) if query is not None]
    draws = bootstrap_spearman(
        np.concatenate(ends),
        np.tile(ratings.scores, len(ends)),
        np.tile(cosines, len(ends)),
        options.draws,
        replacement=options.replacement,
        seed=options.seed,
    )
    result.sizes[row] = {"ratings": len(cosines), "queries": len(np.unique(np.concatenate(ends)))}
    result.metrics[f"{result.name}/{row}/correlation"] = 100.0 * float(np.mean(draws))
    result.metrics[f"{result.name}/{row}/deviation"] = 100.0 * float(np.std(draws))
