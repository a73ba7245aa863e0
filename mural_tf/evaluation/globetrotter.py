"""Globetrotter's translation by retrieval (Surís et al., 2022): sentences (§5.2) and words (§5.3).

Sentences: 200 of them in M languages are 200 M queries; a query's M - 1 translations are its positives, and the number
is the share of positives among the M - 1 nearest. All other sentences are candidates in the paper (`all_candidates`);
in its code sentences in the query's own language are not (`other_languages`). The code's cut-off is always 50 and it
prints a mean count; here it is M - 1, as in the paper.

Words: Recall@10 over pairs found in the sentences by tf-idf (appendix B.2), both directions, the mean over all pairs of
languages; with and without pairs of identical words; of the raw embeddings and of embeddings rotated onto each other
(`align`). A word's document is the text, in the other language, of the sentences that hold the word; two words are
paired if each is among the five with the largest tf-idf in the other's document. The paper pairs
byte-pair tokens and compares its model's token embeddings; here they are whole words, encoded as texts.

Both are measured with each head of the text tower, as STS and Tatoeba are: the released code compares by the head of
L_t, Globetrotter's second one here, whose metrics end in its name. Exports hold the image-text head only.

Cross-modal recall of the paper is the benchmark "retrieval" on 1,000 images.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from mural_lite.errors import UserError
from mural_lite.top_k import top_k
from mural_tf.evaluation.parallel import read_parallel
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation
from mural_tf.metrics import ranking

TOP = 5  # words, or neighbours, among which a word must be (appendix B.2)
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def words_of(sentence: str) -> list[str]:
    """Returns the words of a sentence in lower case; a script without spaces gives stretches of several words."""
    return _WORD.findall(sentence.lower())


def count_words(sentences: Sequence[str], limit: int) -> tuple[list[str], np.ndarray]:
    """Returns the `limit` most frequent words, in this order, and their counts, float32 [sentences, words]."""
    counters = [collections.Counter(words_of(sentence)) for sentence in sentences]
    totals = collections.Counter()
    for counter in counters:
        totals.update(counter)
    vocabulary = sorted(totals, key=lambda word: (-totals[word], word))[:limit]
    column_of = {word: column for column, word in enumerate(vocabulary)}
    counts = np.zeros((len(sentences), len(vocabulary)), np.float32)
    for row, counter in enumerate(counters):
        for word in counter.keys() & column_of.keys():
            counts[row, column_of[word]] = counter[word]
    return vocabulary, counts


def pair_words(counts_a: np.ndarray, counts_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the words in each pair, int [P] per language: the mutual top five by tf-idf (Eq. 6, 7).

    `counts_a` and `counts_b` are counts of aligned sentences, [sentences, A] and [sentences, B], as in `count_words`.
    """
    forward = _is_in_top(_tf_idf(counts_a, counts_b))  # [A, B]
    backward = _is_in_top(_tf_idf(counts_b, counts_a))  # [B, A]
    return np.nonzero(forward & backward.T)


def _tf_idf(counts_a: np.ndarray, counts_b: np.ndarray) -> np.ndarray:
    """Returns float64 [A, B]: the tf-idf of word b in the document of word a; arguments as in `pair_words`."""
    together = (counts_a > 0).astype(np.float32).T @ counts_b  # [A, B]: how often b is in the document of a
    frequency = together / np.maximum(together.sum(axis=1, keepdims=True), 1)
    documents = np.count_nonzero(together, axis=0)
    return frequency.astype(np.float64) * np.log(len(together) / np.maximum(documents, 1))


def _is_in_top(tf_idf: np.ndarray) -> np.ndarray:
    """Returns bool [A, B]: whether word b is one of the `TOP` words with the largest tf-idf above 0 for word a.

    Among equal values the earlier columns win, which `count_words` gives to the more frequent words.
    """
    words = tf_idf.shape[1]
    # Smaller than any true difference in float64; over all words together below 1e-9, under which a value counts as 0.
    tie_break = min(1e-12, 5e-10 / words) * np.arange(words)
    values = tf_idf - tie_break
    count = min(TOP, values.shape[1])
    smallest_in_top = np.partition(values, -count, axis=1)[:, -count]  # [A]
    is_above_zero = values > 1e-9
    return (values >= smallest_in_top[:, None]) & is_above_zero


WORD_CUTOFF = 10


def globetrotter(request: Request) -> list[Evaluation]:
    """Measures the translation of sentences and of words by retrieval, on the sentences of `read_parallel`."""
    options = request.protocol.globetrotter
    texts, notes = read_parallel(request.folder, request.split, request.languages)
    total = len(list(texts.values())[0])  # as many in each language
    shuffled = np.random.default_rng(options.seed).permutation(total)
    chosen = np.sort(shuffled[: options.sentences])  # the numbers of sentences
    if total < options.sentences:
        notes.append(f"NOT COMPLETE: {total} sentences; the paper takes {options.sentences}.")
    result = Evaluation("globetrotter", request.split, "", {}, {}, notes=notes)
    _add_sentences(request, result, texts, chosen)
    _add_words(request, result, texts, options)
    result.protocol = (
        f"{len(chosen)} sentences in {len(texts)} languages, share of translations among the {len(texts) - 1} nearest; "
        f"words: R@{WORD_CUTOFF} over tf-idf pairs of {total:,} sentences, at most {options.words:,} words a language"
    )
    return [result]


def _add_sentences(request: Request, result: Evaluation, texts: dict[str, list[str]], chosen: np.ndarray) -> None:
    """Adds the share of translations among the nearest sentences to `result`, for each pool and each head.

    `texts` are {language: sentences}; `chosen` are the numbers of the sentences to take in every language, int [N].
    """
    sentences = []
    for lines in texts.values():
        sentences += [lines[i] for i in chosen]
    number = np.arange(len(sentences))
    language, sentence = np.divmod(number, len(chosen))
    # {name of a pool: values}: candidates with the query's own value are not in the pool.
    excluded = {"all_candidates": number, "other_languages": language}
    for suffix, head in request.text_heads().items():
        embeddings = request.encode_texts(sentences, head)  # [M N, D]
        for name, values in excluded.items():
            _, nearest = top_k(embeddings, embeddings, len(texts) - 1, _equality(values))  # [M N, M - 1]
            is_translation = sentence[nearest] == sentence[:, None]
            is_foreign = language[nearest] != language[:, None]
            hits = is_translation & is_foreign
            result.metrics[f"globetrotter/sentence_translation/{name}{suffix}"] = 100.0 * float(hits.mean())
    result.sizes["sentence_translation"] = {"queries": len(sentences), "languages": len(texts)}


def _equality(values: np.ndarray):
    """Returns a function (begin, end) -> bool [end - begin, N] that compares values begin to end with all N values."""

    def equals(begin, end):
        return values[begin:end, None] == values

    return equals


def _add_words(request: Request, result: Evaluation, texts: dict[str, list[str]], options) -> None:
    """Adds the recalls of words' translations to `result`, means over all pairs of languages.

    `texts` are {language: sentences}, `options` the protocol's `globetrotter`. Raises `UserError` for a language
    without any word.
    """
    word_counts = {language: count_words(lines, options.words) for language, lines in texts.items()}
    wordless = [language for language, (words, _) in word_counts.items() if not words]
    if wordless:
        raise UserError(f"No sentence in {', '.join(wordless)} has a word: leave them out of --languages.")
    embeddings = {}
    for suffix, head in request.text_heads().items():
        raw = {language: request.encode_texts(words, head) for language, (words, _) in word_counts.items()}
        embeddings["raw", suffix] = raw
        embeddings["rotated", suffix] = align(raw)
    recalls = collections.defaultdict(list)
    pair_count = 0
    for a, b in itertools.combinations(word_counts, 2):
        words_a, counts_a = word_counts[a]
        words_b, counts_b = word_counts[b]
        left, right = pair_words(counts_a, counts_b)  # [P]
        pair_count += len(left)
        is_different = np.array(words_a)[left] != np.array(words_b)[right]
        for name, is_chosen in {"": np.full(len(left), True), "_without_identical": is_different}.items():
            if not is_chosen.any():
                continue
            for (measure, suffix), words in embeddings.items():
                recall = _word_recall(words[a], words[b], left[is_chosen], right[is_chosen])
                recalls[f"{measure}{name}{suffix}"].append(recall)
    for name, values in recalls.items():
        result.metrics[f"globetrotter/word_translation/{name}"] = float(np.mean(values))
    result.sizes["word_translation"] = {"pairs": pair_count, "languages": len(texts)}


def _word_recall(a: np.ndarray, b: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
    """Returns Recall@10 in percent over the pairs of words (left[p], right[p]), the mean of both directions.

    Each pair is a query; `a` and `b` are the embeddings of all words, [A, D] and [B, D], `left` and `right` int [P].
    """
    forward = ranking.ranks(a[left], b, right)
    backward = ranking.ranks(b[right], a, left)
    recalls = [ranking.recall_at(ranks, WORD_CUTOFF) for ranks in (forward, backward)]
    return float(np.mean(recalls))


# Words that are each other's neighbours across two languages are anchors, and an orthogonal map for each language
# brings the anchors together, as [Globetrotter] (§3.4) refines word translation:
#
#     minimise  sum_{l < m} || A_lm W_l - A_ml W_m ||²,    A_lm: rows of language l's words in its anchors with m
#
# Two languages have the closed solution of Schönemann (1966); more are aligned by sweeps, one map at a time given the
# others (Taitelbaum et al., 2019).


def procrustes(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the orthogonal W, float64 [D, D], that minimises || source W - target ||; both are float [A, D].

    Raises `ValueError` for arrays of different shapes.
    """
    if source.shape != target.shape or source.ndim != 2:
        raise ValueError(f"Expected two arrays of one shape [A, D], got {source.shape} and {target.shape}.")
    left, _, right = np.linalg.svd(source.astype(np.float64).T @ target.astype(np.float64))
    return left @ right


def mutual_neighbours(first: np.ndarray, second: np.ndarray, neighbours: int = TOP) -> np.ndarray:
    """Returns pairs (i, j), int64 [A, 2], such that each is among the other's nearest, by the dot product.

    Args:
      first, second: float [N, D] and [M, D], L2-normalised for cosines.
      neighbours: k, at least 1; of equally near neighbours the first count.
    """
    _, nearest = top_k(first, second, neighbours)  # [N, k]
    _, nearest_back = top_k(second, first, neighbours)  # [M, k]
    i = np.repeat(np.arange(len(first)), nearest.shape[1])
    j = nearest.reshape(-1)
    is_mutual = (nearest_back[j] == i[:, None]).any(axis=1)
    return np.stack([i[is_mutual], j[is_mutual]], axis=1)


def align(embeddings: Mapping[str, np.ndarray], neighbours: int = TOP, sweeps: int = 2) -> dict[str, np.ndarray]:
    """Returns {language: the embeddings times its orthogonal map}, float64 [N_l, D] each.

    Each sweep visits every language, finds its anchors with all other languages as aligned so far, and solves
    Procrustes for them. There is always an anchor: the two words with the largest product.

    Args:
      embeddings: {language: float [N_l, D]}, N_l >= 1, L2-normalised, of two or more languages.
      neighbours: as in `mutual_neighbours`.
      sweeps: how often every language is visited.
    """
    aligned = {language: np.asarray(values, np.float64) for language, values in embeddings.items()}
    for _ in range(sweeps):
        for language, words in aligned.items():
            others = [other for name, other in aligned.items() if name != language]
            anchors = [mutual_neighbours(words, other, neighbours) for other in others]
            source = np.concatenate([words[pairs[:, 0]] for pairs in anchors])
            target = np.concatenate([other[pairs[:, 1]] for other, pairs in zip(others, anchors)])
            aligned[language] = words @ procrustes(source, target)
    return aligned
