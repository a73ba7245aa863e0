"""Crisscrossed Captions (Parekh et al., 2021): four retrieval tasks with all positives, and three correlations.

The ratings extend MS-COCO's Karpathy test (and val) split: 5,000 images, five captions each, with human similarity
0..5 of caption pairs (STS), image pairs (SIS) and caption-image pairs (SITS).

Retrieval: STS and SITS count as positive if at least 3, SIS if at least 2.5 (Parekh et al., §3); R@K is the hit rate.
Text-text and image-image search all other items; queries without a positive are left out. Image-text positives are
MS-COCO's own and the rated pairs (`cxc.positives=union`), or only the rated pairs (`rated`, as in the eccv_caption
package). In text-text, only rated co-captions count unless `cxc.co_captions=all`; the paper does not say.

Correlation: mean and standard deviation of Spearman's r, times 100, over bootstrap draws (`metrics/correlation.py`).
Queries are captions for STS, images for SIS and SITS: then simulated draws have the published deviations.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mural_lite.errors import UserError
from mural_lite.text_files import clean, read_lines
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation
from mural_tf.metrics import ranking
from mural_tf.metrics.correlation import bootstrap_spearman

ORIGINAL = "c2i_original"  # rows of sits: a caption and its own image


@dataclasses.dataclass
class Ratings:
    """N pairs of items that people rated.

    Attributes:
      first, second: the items' numbers, int [N].
      scores: how similar people found the pair, float [N].
      methods: how the pair was sampled, N names.
    """

    first: np.ndarray
    second: np.ndarray
    scores: np.ndarray
    methods: list[str]

    def keep(self, is_kept: np.ndarray) -> Ratings:
        """Returns the rows where `is_kept`, bool [N], is true."""
        methods = list(itertools.compress(self.methods, is_kept))
        return Ratings(self.first[is_kept], self.second[is_kept], self.scores[is_kept], methods)


@dataclasses.dataclass
class Rated:
    """The images, captions and ratings of a split.

    Attributes:
      images: the images' names.
      captions: texts.
      owners: the number of each caption's image, int [captions].
      sts, sis, sits: ratings of two captions, of two images, and of a caption and an image.
    """

    images: list[str]
    captions: list[str]
    owners: np.ndarray
    sts: Ratings
    sis: Ratings
    sits: Ratings


def restrict(data: Rated, kept_images: np.ndarray) -> Rated:
    """Returns a split, numbered anew, of only the images `kept_images`, int [K], their captions and ratings."""
    new_image = _new_numbers(kept_images, len(data.images))
    kept_captions = np.flatnonzero(new_image[data.owners] >= 0)
    new_caption = _new_numbers(kept_captions, len(data.captions))

    def renumber(ratings: Ratings, first: np.ndarray, second: np.ndarray) -> Ratings:
        renumbered = dataclasses.replace(ratings, first=first[ratings.first], second=second[ratings.second])
        return renumbered.keep((renumbered.first >= 0) & (renumbered.second >= 0))

    return Rated(
        [data.images[i] for i in kept_images],
        [data.captions[i] for i in kept_captions],
        new_image[data.owners[kept_captions]],
        renumber(data.sts, new_caption, new_caption),
        renumber(data.sis, new_image, new_image),
        renumber(data.sits, new_caption, new_image),
    )


def _new_numbers(kept: np.ndarray, size: int) -> np.ndarray:
    """Returns the new number of each old number 0 to size - 1, int [size]: its index in `kept`, int [K], or -1."""
    numbers = np.full(size, -1)
    numbers[kept] = np.arange(len(kept))
    return numbers


def read_split(folder: pathlib.Path, split: str) -> Rated:
    """Returns a split, from the three files of ratings and the captions' texts in MS-COCO's or Karpathy and Li's file.

    The images and captions of the split are the items of the `ORIGINAL` pairs in sits_<split>.csv. All files lie in
    `folder` or its `data/`, the texts also next to `data/`.

    Raises:
      UserError: a missing or damaged file, no `ORIGINAL` pairs, an item that is in no such pair, a caption without
        text.
    """
    if (folder / "data").is_dir():
        folder = folder / "data"
    sts = list(_read_csv(folder / f"sts_{split}.csv"))
    sis = list(_read_csv(folder / f"sis_{split}.csv"))
    sits = list(_read_csv(folder / f"sits_{split}.csv"))
    originals = [row for row in sits if row.method == ORIGINAL]
    if not originals:
        raise UserError(
            f"{folder / f'sits_{split}.csv'} has no rows {ORIGINAL!r}, which name each caption's image: fetch it again."
        )
    names = dict.fromkeys(row.second for row in originals)
    image_numbers = {name: number for number, name in enumerate(names)}
    caption_numbers = {row.first: number for number, row in enumerate(originals)}
    text_folder = folder if _text_files(folder) else folder.parent
    texts = _read_texts(text_folder)
    missing = [name for name in caption_numbers if _sentence_id(name) not in texts]
    if missing:
        raise UserError(f"{len(missing)} captions of the ratings have no text, such as {missing[0]}.")
    return Rated(
        list(image_numbers),
        [texts[_sentence_id(name)] for name in caption_numbers],
        np.array([image_numbers[row.second] for row in originals]),
        _ratings(sts, caption_numbers, caption_numbers),
        _ratings(sis, image_numbers, image_numbers),
        _ratings(sits, caption_numbers, image_numbers),
    )


class _Row(NamedTuple):
    """A row of a file of ratings; its `location` is FILE:LINE."""

    first: str
    second: str
    score: float
    method: str
    location: str


def _ratings(rows: list[_Row], first: dict[str, int], second: dict[str, int]) -> Ratings:
    """Returns the ratings in rows; raises `UserError` for an item that `first` or `second`, {name: number}, lacks."""
    for row in rows:
        for name, numbers in ((row.first, first), (row.second, second)):
            if name not in numbers:
                raise UserError(f"{row.location}: {name} is not part of the split's {ORIGINAL} pairs.")
    return Ratings(
        np.array([first[row.first] for row in rows]),
        np.array([second[row.second] for row in rows]),
        np.array([row.score for row in rows]),
        [row.method for row in rows],
    )


def _read_csv(path: pathlib.Path) -> Iterator[_Row]:
    """Yields the rows of a file of ratings; raises `UserError` for other columns or a damaged row."""
    reader = csv.reader(text or "" for _, text in read_lines(path))
    header = next(reader, [])
    if header[2:] != ["agg_score", "sampling_method"]:  # the first two are named by the kinds of items
        raise UserError(f"{path}: expected columns item, item, agg_score, sampling_method; got {header}.")
    for row in filter(None, reader):  # an empty line is []
        location = f"{path}:{reader.line_num}"
        try:
            first, second, score, method = row
            yield _Row(first, second, float(score), method, location)
        except ValueError:
            raise UserError(f"{location}: expected item, item, score, method; got {row}.") from None


def _sentence_id(name: str) -> str:
    """Returns the id in a caption's name: "190268" of "COCO_val2014:sentid:190268"."""
    return name.rsplit(":", 1)[-1]


def _text_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files with the captions' texts that the folder holds, the preferred file first."""
    return [path for path in (folder / "dataset_coco.json", folder / "captions_val2014.json") if path.is_file()]


def _read_texts(folder: pathlib.Path) -> dict[str, str]:
    """Returns {MS-COCO's caption id: text} from a folder's file; Karpathy and Li's sentence ids are the same."""
    files = _text_files(folder)
    if not files:
        raise UserError(f"{folder} has neither dataset_coco.json nor captions_val2014.json.")
    try:
        content = json.loads(files[0].read_text(encoding="utf-8"))
        if "annotations" in content:
            return {str(row["id"]): clean(row["caption"]) for row in content["annotations"]}
        sentences = itertools.chain.from_iterable(image["sentences"] for image in content["images"])
        return {str(row["sentid"]): clean(row["raw"]) for row in sentences}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{files[0]} is not as MS-COCO or Karpathy and Li publish it ({error!r}).") from None


# The least rating, 0..5, of a positive: STS and SITS, and SIS (Parekh et al., §3).
TEXT_THRESHOLD = 3.0
IMAGE_THRESHOLD = 2.5


def cxc(request: Request) -> list[Evaluation]:
    """Measures Crisscrossed Captions: one evaluation with the four retrieval tasks and the three correlations."""
    data = read_split(request.folder, request.split)
    paths = [request.image_path(name) for name in data.images]
    images, readable_images, notes = request.encode_images(paths, f"Crisscrossed Captions, {request.split}")
    if len(readable_images) < len(data.images):
        data = restrict(data, readable_images)
    result = Evaluation("cxc", request.split, "", {}, {}, notes=notes)
    texts = {suffix: request.encode_texts(data.captions, head) for suffix, head in request.text_heads().items()}
    options = request.protocol.cxc
    _add_retrieval(result, data, images, texts, options)
    _add_correlations(result, data, images, texts, options)
    result.protocol = _describe_protocol(data, options)
    if notes:
        result.protocol = f"NOT COMPLETE: {result.protocol}"
    return [result]


def _describe_protocol(data: Rated, options) -> str:
    """Returns the protocol line: the size of the data, and `options`, the protocol's `cxc`."""
    words = {True: "with", False: "without"}  # for options that are bools
    return (
        f"{len(data.images):,} images, {len(data.captions):,} captions; image-text positives: {options.positives}, "
        f"co-captions: {options.co_captions}; correlations: {options.draws:,} draws of half the queries "
        f"{words[options.replacement]} replacement, SITS {words[options.sits_original]} {ORIGINAL}, "
        f"STS queries: {options.sts_queries}"
    )


def _add_retrieval(result: Evaluation, data: Rated, images, texts: dict[str, np.ndarray], options) -> None:
    """Adds the recalls of the four retrieval tasks to `result`; `options` are the protocol's `cxc`.

    `images` are embeddings [I, D], `texts` are {suffix of a text head's rows: embeddings of the captions [C, D]}, where
    the suffix "" is the image-text head's.
    """
    is_positive = data.sits.scores >= TEXT_THRESHOLD
    captions = data.sits.first[is_positive]
    owners = data.sits.second[is_positive]
    if options.positives == "union":
        captions = np.concatenate([captions, np.arange(len(data.captions))])
        owners = np.concatenate([owners, data.owners])
    to_text, to_image = ranking.ranks_both_ways(images, texts[""], (owners, captions))
    _add_recalls(result, "image_to_text", to_text)
    _add_recalls(result, "text_to_image", to_image)
    positives = _symmetric(data.sts, TEXT_THRESHOLD)
    if options.co_captions == "all":
        positives = np.concatenate([positives, _co_captions(data.owners)], axis=1)
    for suffix, embeddings in texts.items():
        _add_recalls(result, f"text_to_text{suffix}", _ranks_among_themselves(embeddings, positives))
    similar_images = _symmetric(data.sis, IMAGE_THRESHOLD)
    _add_recalls(result, "image_to_image", _ranks_among_themselves(images, similar_images))


def _add_recalls(result: Evaluation, row: str, ranks: np.ndarray) -> None:
    """Adds a row's recalls, mean rank and size to `result`, from ranks, float [Q]; `UserError` if all are NaN."""
    ranks = ranks[np.isfinite(ranks)]  # NaN: the query has no positive and does not count
    if not len(ranks):
        raise UserError(f"No query of {row} has a positive: the files of ratings and captions do not fit.")
    result.sizes[row] = {"queries": len(ranks)}
    for k in ranking.CUTOFFS:
        result.metrics[f"{result.name}/{row}/recall@{k}"] = ranking.recall_at(ranks, k)
    result.metrics[f"{result.name}/{row}/mean_rank"] = float(np.mean(ranks))


def _symmetric(ratings: Ratings, threshold: float) -> np.ndarray:
    """Returns int [2, P]: (query, candidate) of the pairs rated at least `threshold`, in both orders."""
    positives = ratings.keep(ratings.scores >= threshold)
    pairs = np.stack([positives.first, positives.second])
    return np.concatenate([pairs, pairs[::-1]], axis=1)


def _co_captions(owners: np.ndarray) -> np.ndarray:
    """Returns int [2, P]: (query, candidate) of all ordered pairs of different captions of one image.

    `owners` are the numbers of the captions' images, int [C].
    """
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners))  # in `order`, of each image's captions
    pairs = []
    for group in np.split(order, ends[:-1]):  # a split at the last end would add an empty group
        pairs += itertools.permutations(group, 2)
    return np.array(pairs, np.int64).reshape(-1, 2).T


def _ranks_among_themselves(embeddings: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Returns the rank of the best positive of each item that has positives, among all other items: float [Q].

    `embeddings` are the items', [N, D]; `positives` are pairs (query, candidate), int [2, P].
    """
    order = np.lexsort(positives[::-1])  # by query, then by candidate
    sorted_queries, sorted_candidates = positives[:, order]  # [P] each
    queries, starts = np.unique(sorted_queries, return_index=True)
    if not len(queries):
        return np.zeros(0)
    positives_of_queries = np.split(sorted_candidates, starts[1:])
    return ranking.ranks(embeddings[queries], embeddings, positives_of_queries, excluded=queries)


def _add_correlations(result: Evaluation, data: Rated, images, texts: dict[str, np.ndarray], options) -> None:
    """Adds the three correlations to `result`; arguments as in `_add_retrieval`."""
    sits = data.sits
    if not options.sits_original:
        sits = sits.keep(np.array(sits.methods) != ORIGINAL)
    query_of_caption = np.arange(len(data.captions))
    if options.sts_queries == "images":
        query_of_caption = data.owners
    sts_queries = [query_of_caption[data.sts.first], query_of_caption[data.sts.second]]
    sis_queries = [data.sis.first, data.sis.second]
    for suffix, embeddings in texts.items():
        cosines = _cosines(data.sts, embeddings, embeddings)
        _add_correlation(result, f"sts{suffix}", data.sts, cosines, sts_queries, options)
    _add_correlation(result, "sis", data.sis, _cosines(data.sis, images, images), sis_queries, options)
    _add_correlation(result, "sits", sits, _cosines(sits, texts[""], images), [sits.second], options)


def _cosines(ratings: Ratings, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns the rated pairs' cosines, float64 [N]; `left` has the first items' embeddings, `right` the second's."""
    return np.einsum("nd,nd->n", left[ratings.first], right[ratings.second], dtype=np.float64)


def _add_correlation(
    result: Evaluation, row: str, ratings: Ratings, cosines: np.ndarray, queries: list[np.ndarray], options
) -> None:
    """Adds the mean and deviation of a row's correlation over bootstrap draws to `result`.

    `cosines` are the pairs', float64 [N]. `queries` is a list of an array, the query that each rating belongs to,
    int [N], or of two where both items of a pair are queries: then each rating counts once for each.
    """
    all_queries = np.concatenate(queries)
    draws = bootstrap_spearman(
        all_queries,
        np.tile(ratings.scores, len(queries)),
        np.tile(cosines, len(queries)),
        options.draws,
        replacement=options.replacement,
        seed=options.seed,
    )
    result.sizes[row] = {"ratings": len(cosines), "queries": len(np.unique(all_queries))}
    result.metrics[f"{result.name}/{row}/correlation"] = 100.0 * float(np.mean(draws))
    result.metrics[f"{result.name}/{row}/deviation"] = 100.0 * float(np.std(draws))
