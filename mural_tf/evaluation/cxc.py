"""Crisscrossed Captions (Parekh et al., 2021): four retrieval tasks with all positives, and three correlations.

The ratings extend MS-COCO's Karpathy test (and val) split: 5,000 images, five captions each, with human similarity
0..5 of caption pairs (STS), image pairs (SIS) and caption-image pairs (SITS).

Retrieval: STS and SITS count as positive from 3 on, SIS from 2.5 on (CxC §3); R@K is the hit rate. Text-text and
image-image search all other items; queries without a positive are left out. Image-text positives are MS-COCO's own and
the rated ones (`cxc.positives=union`), or the rated ones alone (`rated`, what the eccv_caption package counts).
In text-text only rated co-captions count unless `cxc.co_captions=all`; the paper does not say.

Correlation: mean and standard deviation of Spearman's r, times 100, over bootstrap draws (`metrics/correlation.py`).
Queries are captions for STS, images for SIS and SITS: so simulated draws have the published deviations.
"""

from __future__ import annotations

import numpy as np

from mural_tf.config import ConfigurationError
from mural_tf.evaluation.cxc_files import ORIGINAL, Rated, Ratings, read_split, restrict
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.result import Evaluation
from mural_tf.metrics import ranking
from mural_tf.metrics.correlation import bootstrap_spearman

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
        raise ConfigurationError(f"No query of {row} has a positive: the files of ratings and captions do not fit.")
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
