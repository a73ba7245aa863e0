"""XTD's captions as parallel texts (Aggarwal and Kale, 2020): retrieval between each two of eleven languages.

Line i of each language's file is a caption of photograph i: a translation of the English caption, or, in Japanese
(STAIR Captions), another person's. A caption finds the caption of the same photograph among 1,000.
"""

from __future__ import annotations

import collections
import itertools

import numpy as np

from mural_lite.errors import UserError
from mural_lite.text_files import canonical_language, clean, read_lines
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation, add_groups
from mural_tf.metrics import ranking
from mural_tf.metrics.ranking import CUTOFFS


def xtd_texts(request: Request) -> list[Evaluation]:
    """Measures, per language, the means of R@K in percent to and from the captions of all other languages.

    The mean recall is the mean of R@1, R@5 and R@10 both ways. A second text head adds metrics that end in its name.
    Raises `UserError` for fewer than two languages, files that are not aligned, or too many empty captions.
    """
    texts, notes = _read_aligned(request)
    languages = list(dict.fromkeys(request.languages or texts))
    if len(languages) < 2 or not set(languages) <= set(texts):
        raise UserError(f"Name two or more of {', '.join(texts)} with --languages; got {', '.join(languages)}.")
    sentences = len(texts[languages[0]])  # as many as in every other language
    protocol = (
        f"text-text retrieval between {len(languages)} languages, both directions, {sentences:,} captions in each"
    )
    if notes:
        protocol = f"NOT COMPLETE: {protocol}"
    result = Evaluation("xtd_texts", request.split, protocol, {}, {}, notes=notes)
    for language in languages:
        repeated = sentences - len(set(texts[language]))
        result.sizes[language] = {"captions": sentences, "repeated_captions": repeated}
    for suffix, head in request.text_heads().items():
        vectors = {language: request.encode_texts(texts[language], head) for language in languages}
        for language, metrics in _measure(vectors).items():
            for key, values in metrics.items():
                result.metrics[f"xtd_texts/{language}/{key}{suffix}"] = float(np.mean(values))
        add_groups(result, {}, f"mean_recall{suffix}")
    return [result]


def _measure(vectors: dict[str, np.ndarray]) -> dict[str, dict[str, list[float]]]:
    """Returns {language: {metric: its values, one for each other language}} of vectors, {language: float32 [N, D]}."""
    metrics = {language: collections.defaultdict(list) for language in vectors}
    for left, right in itertools.combinations(vectors, 2):
        numbers = np.arange(len(vectors[left]))  # caption i translates caption i
        forward, backward = ranking.ranks_both_ways(vectors[left], vectors[right], (numbers, numbers))
        for language, to_others, from_others in ((left, forward, backward), (right, backward, forward)):
            for k in CUTOFFS:
                metrics[language][f"to_others/recall@{k}"].append(ranking.recall_at(to_others, k))
                metrics[language][f"from_others/recall@{k}"].append(ranking.recall_at(from_others, k))
            metrics[language]["mean_recall"].append(ranking.mean_recall(forward, backward))
    return metrics


def _read_aligned(request: Request) -> tuple[dict[str, list[str]], list[str]]:
    """Returns {language: captions}, all lists aligned, and notes on photographs left out, which lack a caption."""
    names = request.folder / "XTD10" / "test_image_names.txt"
    photographs = sum(1 for _ in read_lines(names))
    lines = {}
    for path in sorted(request.folder.glob("*/test_1kcaptions_*.txt")):
        captions = [clean(line) for _, line in read_lines(path)]
        if len(captions) != photographs:
            raise UserError(
                f"{path} has {len(captions)} lines and {names.name} {photographs}: line i must belong to photograph i. "
                "Fetch them again."
            )
        lines[canonical_language(path.stem.removeprefix("test_1kcaptions_"))] = captions
    complete_rows = []
    for row in range(photographs):
        missing = [language for language, captions in lines.items() if not captions[row]]
        if missing:
            request.on_problem(f"photograph without a caption in {', '.join(missing)}", f"{names}:{row + 1}")
        else:
            complete_rows.append(row)
    texts = {}
    for language, captions in sorted(lines.items()):
        texts[language] = [captions[row] for row in complete_rows]
    return texts, request.take_problems(len(complete_rows))
