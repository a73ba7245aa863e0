"""Word translations found in aligned sentences (Globetrotter, Surís et al., 2022, appendix B.2).

A word's document is everything said in the other language in the sentences that hold the word; words are paired if
each is among the five with the largest tf-idf in the other's document. The paper pairs byte-pair tokens; these are
whole words, because a model is only asked to encode texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

TOP = 5
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def words_of(sentence: str) -> list[str]:
    """Returns the words of a sentence in lower case; scripts without spaces give longer stretches."""
    return _WORD.findall(sentence.lower())


def count_words(sentences: Sequence[str], limit: int) -> tuple[list[str], np.ndarray]:
    """Returns the `limit` most frequent words and their counts per sentence, float32 [sentences, words]."""
    tokens = [words_of(sentence) for sentence in sentences]
    totals: dict[str, int] = {}
    for sentence in tokens:
        for word in sentence:
            totals[word] = totals.get(word, 0) + 1
    vocabulary = sorted(totals, key=lambda word: (-totals[word], word))[:limit]
    place = {word: i for i, word in enumerate(vocabulary)}
    counts = np.zeros((len(sentences), len(vocabulary)), np.float32)
    for row, sentence in enumerate(tokens):
        for word in sentence:
            if word in place:
                counts[row, place[word]] += 1
    return vocabulary, counts


def pair_words(counts_a: np.ndarray, counts_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns int [P] word numbers of both languages: the mutual top five by tf-idf (Eq. 6 and 7).

    counts_a, counts_b: [sentences, words] of aligned sentences.
    """
    forward, backward = _top(_tf_idf(counts_a, counts_b)), _top(_tf_idf(counts_b, counts_a))
    return np.nonzero(forward & backward.T)


def _tf_idf(counts_a: np.ndarray, counts_b: np.ndarray) -> np.ndarray:
    """Returns [A, B]: of each word of b in the document of each word of a."""
    found = (counts_a > 0).astype(np.float32).T @ counts_b  # [A, B], with repetition
    frequency = found / np.maximum(found.sum(axis=1, keepdims=True), 1)
    documents = np.count_nonzero(found, axis=0)
    return frequency.astype(np.float64) * np.log(len(found) / np.maximum(documents, 1))


def _top(values: np.ndarray) -> np.ndarray:
    """Returns bool [A, B]: the five largest of each row that are above zero; of equal ones the more frequent words."""
    values = values - 1e-12 * np.arange(values.shape[1])  # float64: smaller than any true difference
    count = min(TOP, values.shape[1])
    bound = np.partition(values, -count, axis=1)[:, -count]
    return (values >= bound[:, None]) & (values > 1e-9)
