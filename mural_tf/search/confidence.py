"""How sure an answer is: the probability that the first picture found for a sentence is the right one.

    index.confidence.estimate(["moyo mwekundu"], ranking.rank_all(…))  # [(0.58, False)]

A cosine says little by itself, and letters that mean nothing have a closest picture, too. So sentences with known
answers ask the index (`asked_captions.ask`), and a ridge-penalised logistic regression learns of a few `FEATURES`
when the first answer is right. Each sentence counts twice: with its results, and with the results of an index without
its answer, where every first answer is wrong. So a hot dog is not an answer to "a dog" because both words are in its
name. Meaningless strings are among the wrong answers. A match as a whole, an exact title or an article number, is sure.
An answer less sure than nearly all right answers does not fit (`fits`).

An index with too few captions to learn from has a `NoiseLevel`, which knows no probability: no item fits a
sentence that finds no more, by any way, than meaningless strings.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence

import numpy as np

from mural_tf.errors import UserError
from mural_tf.fingerprint import TEXTS as PROBES
from mural_tf.search import asked_captions, ranking
from mural_tf.search.ranking import ALL, PICTURES, QUESTIONS, TEXTS, WAYS, WORDS, Ranked, prompt_of

FEATURES = (*(f"{what} of {way}" for way in WAYS for what in ("value", "lead")), "firsts", "characters", "words")
LEAST_ASKED, LEAST_PICTURES, LEAST_RIGHT = 200, 50, 30  # with fewer sentences nothing is known
MOST_PICTURES = 2000  # that ask
NOISE = 0.25  # strings that mean nothing for each sentence
PENALTY = 3.0  # of half the squared weights of standardised features
STEPS = 50  # of Newton's method, at most; it needs about ten
LOST = 0.04  # share of the right answers that may be said not to fit
CHANGED = 0.1  # share of an index that may change before its confidence is dropped
STRINGS = 64  # that mean nothing, where there are too few captions to learn from
NOISE_SHARES = {PICTURES: 0.75, TEXTS: 0.75, WORDS: 1.0}  # of them that find no more than a question nothing fits
Estimate = "tuple[float | None, bool]"  # the probability that an answer is right, if it is known; nothing fits


@dataclasses.dataclass
class Confidence:
    """What was learnt.

    Attributes:
      count: items of the index.
      asked, pictures: how many sentences and pictures it was learnt from.
      center, scale: float64 [F], of `FEATURES`.
      weights: float64 [1 + F]; the first is the constant.
      fits: the probability below which nothing fits.
    """

    count: int
    asked: int
    pictures: int
    center: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    fits: float

    def estimate(self, texts: Sequence[str], ranked: Sequence[Ranked]) -> list[Estimate]:
        """Returns for each sentence the probability that its first answer is right, and whether nothing fits."""
        odds = columns_of(measure(texts, ranked), self.center, self.scale) @ self.weights
        sure = [1.0 if is_whole(answer) else float(value) for answer, value in zip(ranked, sigmoid(odds))]
        return [(value, value < self.fits) for value in sure]


@dataclasses.dataclass
class NoiseLevel:
    """What strings that mean nothing find, in an index of `count` items: the value that most stay below, by way."""

    count: int
    levels: dict[str, float]

    def estimate(self, texts: Sequence[str], ranked: Sequence[Ranked]) -> list[Estimate]:
        """Returns for each sentence None, no probability, and whether nothing fits."""
        return [(None, not is_whole(answer) and self._is_noise(best_values(answer))) for answer in ranked]

    def _is_noise(self, values: dict[str, float]) -> bool:
        return all(value <= self.levels.get(way, 0.0) for way, value in values.items())


def best_values(ranked: Ranked) -> dict[str, float]:
    """Returns the best value in the list of each way that found anything."""
    return {way: max(value for _, value in entries.values()) for way, entries in ranked.lists.items() if entries}


def measure_noise(index, embedder) -> NoiseLevel:
    """Asks an index with strings that mean nothing: its captions, or texts of any model, in disorder."""
    captions = list(itertools.islice((text for item in index.table for _, text in item.captions), MOST_PICTURES))
    noise = noise_like(captions or PROBES[:-1], STRINGS)
    best = [best_values(ranked) for ranked in ask(index, embedder, noise)]
    levels = {}
    for way, share in NOISE_SHARES.items():
        if values := [values_of[way] for values_of in best if way in values_of]:
            levels[way] = float(np.quantile(values, share))
    return NoiseLevel(len(index), levels)


def is_whole(ranked: Ranked) -> bool:
    """Whether a caption, the name or a value of the first answer is the whole sentence."""
    return len(ranked.rows) > 0 and int(ranked.rows[0]) in ranked.whole


def measure(texts: Sequence[str], ranked: Sequence[Ranked]) -> np.ndarray:
    """Returns `FEATURES` of each sentence, float64 [Q, F].

    value, lead: of the first answer its value in the list of a way, 0 where it is not there, and how much it exceeds
    the best other one; of pictures, of which many are alike, the mean of the nine best others. firsts: of how many
    lists it is the first. characters, words: logarithms of how many the sentence has.
    """
    rows = []
    for text, answer in zip(texts, ranked):
        first = int(answer.rows[0]) if len(answer.rows) else None
        measured, firsts = [], 0
        for way in WAYS:
            entries = answer.lists.get(way, {})
            rank, value = entries.get(first, (0, 0.0))
            others = [other for row, (_, other) in entries.items() if row != first][: 9 if way == PICTURES else 1]
            measured += [value, value - sum(others) / max(1, len(others))]
            firsts += rank == 1
        rows.append([*measured, firsts, np.log1p(len(text)), np.log1p(len(text.split()))])
    return np.array(rows, np.float64).reshape(-1, len(FEATURES))


def columns_of(measured: np.ndarray, center: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Returns the columns of the regression, [Q, 1 + F]."""
    return np.concatenate([np.ones((len(measured), 1)), (measured - center) / scale], axis=1)


def sigmoid(values: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + exp(-values)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * values))


def fit_logistic(columns: np.ndarray, right: np.ndarray, penalty: float) -> np.ndarray:
    """Returns the weights, float64 [C], of a ridge-penalised logistic regression, by Newton's method.

    Args:
      columns: float64 [N, C]; the first is 1, and its weight is not penalised.
      right: [N], 0 or 1, both of them.
      penalty: of half the squared weights.
    """
    weights = np.zeros(columns.shape[1])
    ridge = np.full(len(weights), penalty)
    ridge[0] = 0.0
    for _ in range(STEPS):
        probability = sigmoid(columns @ weights)
        gradient = columns.T @ (probability - right) + ridge * weights
        curvature = (columns * (probability * (1.0 - probability))[:, None]).T @ columns + np.diag(ridge + 1e-9)
        step = np.linalg.solve(curvature, gradient)
        weights -= step * min(1.0, 5.0 / max(np.abs(step).max(), 1e-12))  # far away a whole step may lead astray
        if np.abs(step).max() < 1e-8:
            break
    return weights


def learn(index, embedder, asked: Sequence[asked_captions.AskedCaption]) -> Confidence:
    """Learns from what captions found.

    Raises:
      UserError: too few sentences, or too few right answers.
    """
    texts = [x.text for x in asked]
    pictures = len({x.picture for x in asked})
    if len(texts) < LEAST_ASKED or pictures < LEAST_PICTURES:
        raise UserError(
            f"{len(texts):,} captions of {pictures:,} pictures are too few: at least {LEAST_ASKED} of {LEAST_PICTURES} "
            "pictures are needed."
        )
    noise = noise_like(texts, round(NOISE * len(texts)))
    answers = ask(index, embedder, noise)
    right = [x.is_right for x in asked]
    if sum(right) < LEAST_RIGHT:
        raise UserError(
            f"{sum(right):,} of {len(right):,} captions found their picture first, at least {LEAST_RIGHT} must."
        )
    ranked = [x.ranked for x in asked] + answers + [x.without_its_picture(index.weights) for x in asked]
    texts = texts + noise + [x.text for x in asked]
    measured, labels = measure(texts, ranked), np.zeros(len(texts))
    labels[: len(right)] = right
    kept = np.array([not is_whole(x) for x in ranked])  # these are sure anyway
    measured, labels = measured[kept], labels[kept]
    center, scale = measured.mean(axis=0), measured.std(axis=0)
    scale[scale < 1e-6] = 1e9  # a constant feature teaches nothing
    columns = columns_of(measured, center, scale)
    weights = fit_logistic(columns, labels, PENALTY)
    fits = float(np.quantile(sigmoid(columns[labels > 0] @ weights), LOST))
    return Confidence(len(index), len(right), pictures, center, scale, weights, fits)


def ask(index, embedder, texts: Sequence[str]) -> list[Ranked]:
    """Returns what an index finds for sentences."""
    if not texts:
        return []
    vectors = embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, QUESTIONS))
    captions = None if index.captions is None else index.captions.encode_questions(embedder, texts, vectors)
    return ranking.rank_all(index, texts, vectors, captions, rank=ALL)


def noise_like(texts: Sequence[str], count: int) -> list[str]:
    """Returns `count` strings that mean nothing: texts with their own letters in disorder, spaces where they were."""
    random = np.random.default_rng(0)
    made = []
    for number in random.integers(len(texts), size=count):
        drawn = iter(random.permutation([letter for letter in texts[number].lower() if not letter.isspace()]))
        made.append("".join(letter if letter.isspace() else str(next(drawn)) for letter in texts[number].lower()))
    return made


# In the database of an index.


def to_bytes(confidence: Confidence | NoiseLevel) -> bytes:
    """Returns it as JSON."""
    values = dataclasses.asdict(confidence)
    arrays = {name: value.tolist() for name, value in values.items() if isinstance(value, np.ndarray)}
    return json.dumps({**values, **arrays}).encode()


def from_bytes(data: bytes, count: int) -> Confidence | NoiseLevel | None:
    """Returns what `to_bytes` wrote; None if it is for an index of another size than `count`, or of other features.

    Raises `UserError` if it is damaged.
    """
    try:
        values, arrays = json.loads(data), {}
        if "levels" not in values:
            arrays = {name: np.array(values[name], np.float64) for name in ("center", "scale", "weights")}
        levels = {} if arrays else {way: float(level) for way, level in values["levels"].items()}
        stored = Confidence(**{**values, **arrays}) if arrays else NoiseLevel(values["count"], levels)
        same_size = abs(count - stored.count) <= CHANGED * stored.count
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"How sure answers are is damaged ({error}): delete the index and make it again.") from None
    return stored if same_size and (not arrays or arrays["weights"].shape == (1 + len(FEATURES),)) else None
