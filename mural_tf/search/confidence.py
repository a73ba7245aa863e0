"""How sure an answer is: the probability that the first image found for a sentence is the right one.

    index.confidence.judge(answers)[0]  # Sureness(probability=0.58, precision=0.66)

A cosine says little by itself: the number that is right six times of ten in English is right once in ten in a language
that the model knows badly, and letters that mean nothing have a closest image too. So captions of pictures that the
model was not trained on are asked in the index, and a logistic regression learns when the first answer is right, from
the scores and from what a sentence itself shows; no language is asked for.

1. Kinds of text. Each language of the captions (or script, where no language is known) is a kind, and so is noise made
   of the captions' own letters; naive Bayes on character n-grams gives the probability of each kind (n-grams: Cavnar
   and Trenkle, 1994; naive Bayes on them: Lui and Baldwin, 2012).
2. Regression. A ridge-penalised logistic regression on `FEATURES`, the kinds, and the kinds times the score. The
   noise takes part with answers that are wrong.
3. Calibration. Each fifth of the pictures is judged by a regression that has not seen it, and a sigmoid of these
   judgements makes them probabilities (Platt, 1999).
4. Precision. The mean probability of a kind's answers that are at least as sure as this one: the share of right answers
   if all of these are shown and no other. One minus it is Storey's q-value (2002), as one minus the probability is
   Efron's local false discovery rate (2001). A bound on it means the same in every language; one on the probability
   does not, as languages differ in how many sure answers they have.

Captions ask as strangers do, with those of their language hidden (`ranking.ask_as_strangers`). A picture that is not in
the index takes part in the search for its own captions as if it were, so that these are as hard to answer as those of
the index. Sentences of other domains (`other_domains.txt`) are among the wrong answers. What was found as a whole, an
exact title or an article number, is sure. Sentences most of whose letters are of scripts that no caption has get 0.
docs/search.md has what was measured.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import pathlib
import unicodedata
import zlib
from collections.abc import Collection, Sequence

import numpy as np

from mural_tf.errors import UserError
from mural_tf.search import ranking
from mural_tf.search.ranking import NEIGHBOURS, SAME, Ranked

FEATURES = ("score", "lead", "caption", "lead of caption", "share", "lead of share")  # of the first answer
FEATURES += ("characters", "words", "order", "known texts", "hub")
DOMAINS = pathlib.Path(__file__).with_name("other_domains.txt")
BUCKETS = 2**13  # of hashed n-grams
SMOOTHING = 0.1  # added to the count of each bucket
FOLDS = 5
PENALTY = 30.0  # of half the squared weights of standardised features
STEPS = 50  # of Newton's method, at most; it needs about ten
NOISE, OTHER, DOMAIN = "<noise>", "<other>", "<domain>"  # kinds beside languages; of other domains no profile is made
NOISE_SHARE = 0.1  # strings of noise for each caption
DOMAIN_WEIGHT = 6  # how often a sentence of another domain counts
LEAST_CAPTIONS, LEAST_IMAGES, LEAST_RIGHT = 200, 50, 30  # with fewer nothing is fitted
LEAST_OF_KIND = 20  # captions; the kinds with fewer are one
MOST_IMAGES, MOST_KNOWN = 2000, 2000  # pictures asked, captions kept
CHANGED = 0.1  # by which the size of an index may differ from the one that was fitted for
GRID = np.linspace(0.0, 1.0, 101)


@dataclasses.dataclass(frozen=True)
class Sureness:
    """Of the first answer to a sentence: the probability that it is right, and the precision of answers as sure.

    Both 0..1. `precision` is the share of right answers if all answers to this kind of text that are at least as sure
    are shown and no other.
    """

    probability: float
    precision: float

    def reaches(self, least_precision: float) -> bool:
        """Whether to show the answer where so large a share of what is shown must be right.

        It must itself be right with at least half of that probability: where a model finds nearly everything, strings
        that mean nothing would otherwise be shown among answers that make up for them.
        """
        return self.precision >= least_precision and self.probability >= least_precision / 2


@dataclasses.dataclass(frozen=True)
class Answers:
    """Q sentences and what the index answers.

    texts: the sentences. vectors: float32 [Q, D], theirs. first: float32 [Q, D], the vectors of the first answers.
    found: float64 [Q, 6], the first six `FEATURES`. whole: bool [Q], the first answer was found as a whole.
    """

    texts: Sequence[str]
    vectors: np.ndarray
    first: np.ndarray
    found: np.ndarray
    whole: np.ndarray


@dataclasses.dataclass
class Confidence:
    """What was fitted.

    Attributes:
      count: items of the index that it was fitted for.
      captions, images: how many it was fitted on.
      scripts: of the captions.
      counts: float32 [K, BUCKETS], of n-grams in the texts of each kind; the last kind is noise.
      known: float16 [M, D], vectors of captions.
      center, scale: float64 [F], of `FEATURES`.
      weights: float64 [1 + F + 2 K].
      sigmoid: float64 [2], shift and slope.
      precision: float64 [K - 1, len(GRID)], that of each kind's answers whose probability is at least GRID's.
    """

    count: int
    captions: int
    images: int
    scripts: tuple[str, ...]
    counts: np.ndarray
    known: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    sigmoid: np.ndarray
    precision: np.ndarray

    @functools.cached_property
    def _profiles(self) -> np.ndarray:
        return log_shares(self.counts)

    def judge(self, answers: Answers) -> list[Sureness]:
        """Returns how sure the first answer to each sentence is."""
        kinds, shown = read_texts(answers.texts, self._profiles)
        measured = (measure(answers, shown, self.known.astype(np.float32)) - self.center) / self.scale
        odds = design(measured, kinds) @ self.weights
        familiar = np.array([known_share(text, self.scripts) > 0.5 for text in answers.texts])
        probability = np.where(familiar, sigmoid(self.sigmoid[0] + self.sigmoid[1] * odds), 0.0)
        precision = np.where(familiar, self._precision(probability, kinds[:, :-1]), 0.0)
        probability, precision = (np.where(answers.whole, 1.0, values) for values in (probability, precision))
        return [Sureness(float(a), float(b)) for a, b in zip(probability, precision)]

    def _precision(self, probability: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Reads the tables of the kinds, weighted by the probability, [Q, K - 1], that a text is of each."""
        shares = kinds / np.maximum(kinds.sum(axis=1, keepdims=True), 1e-12)
        return sum(share * np.interp(probability, GRID, table) for share, table in zip(shares.T, self.precision))


# What a sentence shows.


def grams(text: str) -> np.ndarray:
    """Returns the hashes, int64 [G] below `BUCKETS`, of the n-grams of one to three characters of a text."""
    text = f" {' '.join(unicodedata.normalize('NFKC', text).lower().split())} "
    found = (text[i : i + n] for n in (1, 2, 3) for i in range(len(text) - n + 1))
    return np.array([zlib.crc32(gram.encode("utf-8", "replace")) % BUCKETS for gram in found if gram != " "], np.int64)


@functools.lru_cache(maxsize=2**16)
def script_of(letter: str) -> str:
    """Returns the script of a letter, the first word of its name: LATIN, CYRILLIC, CJK; "" for what is no letter."""
    return unicodedata.name(letter, "UNKNOWN").split()[0] if unicodedata.category(letter)[0] in "LM" else ""


def scripts_of(text: str) -> list[str]:
    """Returns the script of each letter of a text."""
    return [script for script in map(script_of, text) if script]


def known_share(text: str, scripts: Collection[str]) -> float:
    """Returns the share of a text's letters that are of these scripts, 0 without letters."""
    found = scripts_of(text)
    return sum(script in scripts for script in found) / max(1, len(found))


def count_grams(texts: Sequence[str], kinds: np.ndarray, count: int) -> np.ndarray:
    """Returns float32 [count, BUCKETS]: how often the texts of each kind, int64 [N], hold n-grams of each bucket."""
    counts = np.zeros((count, BUCKETS), np.float32)
    for text, kind in zip(texts, kinds):
        np.add.at(counts[kind], grams(text), 1.0)
    return counts


def log_shares(counts: np.ndarray) -> np.ndarray:
    """Returns the logarithm of each bucket's smoothed share in its kind, [K, BUCKETS]."""
    smoothed = counts + SMOOTHING
    return np.log(smoothed / smoothed.sum(axis=1, keepdims=True))


def read_texts(texts: Sequence[str], profiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probability of each kind, float64 [N, K], and characters, words and order of each text, [N, 3].

    Characters and words are logarithms of their numbers. Order is how much likelier, per n-gram and in logarithms, the
    likeliest kind makes a text than noise does.
    """
    kinds, shown = np.zeros((len(texts), len(profiles))), np.zeros((len(texts), 3))
    for row, text in enumerate(texts):
        found = profiles[:, grams(text)]
        likely = found.sum(axis=1, dtype=np.float64)
        odds = np.exp(likely - likely.max())
        kinds[row] = odds / odds.sum()
        order = (likely[:-1].max() - likely[-1]) / max(1, found.shape[1])
        shown[row] = np.log1p(len(text)), np.log1p(len(text.split())), order
    return kinds, shown


def measure(answers: Answers, shown: np.ndarray, known: np.ndarray, hidden: np.ndarray | None = None) -> np.ndarray:
    """Returns `FEATURES` of each sentence, float64 [Q, F].

    score: the cosine of the first answer. lead: how much it exceeds the mean of the nine closest others. caption,
    share: the cosine of its closest caption, and the share of the question in its words; 0 where it was not found so.
    Their leads: over the best other. characters, words, order: see `read_texts`. known texts: the mean cosine of the
    sentence with the ten captions closest to it. hub: that of the first answer with all captions, large for pictures
    that answer everything (Radovanović et al., 2010).

    Args:
      answers: the sentences.
      shown: of `read_texts`.
      known: float32 [M, D], the vectors of captions.
      hidden: bool [Q, M], the captions that are not known to a sentence.
    """
    near = answers.vectors @ known.T
    if hidden is not None:
        near[hidden] = -1.0
    closest = np.partition(near, -min(10, near.shape[1]), axis=1)[:, -10:].mean(axis=1)
    return np.stack([*answers.found.T, *shown.T, closest, answers.first @ known.mean(axis=0)], axis=1)


def design(measured: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Returns the columns of the regression, [Q, 1 + F + 2 K]: one, the features, the kinds, the kinds times score."""
    return np.concatenate([np.ones((len(kinds), 1)), measured, kinds, kinds * measured[:, :1]], axis=1)


# Regression and calibration.


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


def precision_of(probability: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns the mean probability of the captions at least as sure as each value of `GRID`, float64 [len(GRID)].

    An answer as sure as the value itself counts as one caption more, so that few captions do not decide alone.

    Args:
      probability: [N].
      shares: [N], the weight of each caption: how likely it is of the kind.
    """
    order = np.argsort(-probability)
    total = np.concatenate([[0.0], np.cumsum((probability * shares)[order])])
    count = np.concatenate([[0.0], np.cumsum(shares[order])])
    above = np.searchsorted(-probability[order], -GRID, side="right")
    return (total[above] + GRID) / (count[above] + 1.0)


def fit(answers: Answers, right: np.ndarray, images: np.ndarray, kinds: Sequence[str], count: int) -> Confidence:
    """Fits everything. What is learnt of a picture's captions is measured by what the other folds know.

    Args:
      answers: captions and noise.
      right: float64 [Q], 1 where the first answer is right.
      images: int64 [Q], the number of each caption's picture; each string of noise has one of its own.
      kinds: [Q], `NOISE`, `DOMAIN` or the kind of each caption.
      count: of the items of the index.
    """
    texts = answers.texts
    names = [*sorted(set(kinds) - {NOISE, DOMAIN}), NOISE, DOMAIN]
    numbers = np.array([names.index(kind) for kind in kinds])
    captions = np.flatnonzero(numbers < len(names) - 2)
    spread = captions[np.linspace(0, len(captions) - 1, min(len(captions), MOST_KNOWN), dtype=np.int64)]
    known = answers.vectors[spread].astype(np.float16)
    parts = np.random.default_rng(0).permutation(images.max() + 1)[images] % FOLDS  # pictures, not captions
    folds = [np.flatnonzero(parts == part) for part in range(FOLDS)]
    counted = [count_grams([texts[row] for row in fold], numbers[fold], len(names))[:-1] for fold in folds]
    counts = np.sum(counted, axis=0)
    likely, shown = np.zeros((len(texts), len(names) - 1)), np.zeros((len(texts), 3))
    for fold, own in zip(folds, counted):
        likely[fold], shown[fold] = read_texts([texts[row] for row in fold], log_shares(counts - own))
    measured = measure(answers, shown, known.astype(np.float32), hidden=images[:, None] == images[spread])
    center, scale = measured.mean(axis=0), measured.std(axis=0)
    scale[scale < 1e-6] = np.inf  # nothing can be learnt of what is always the same
    columns = design((measured - center) / scale, likely)
    odds = np.zeros(len(right))
    for fold in folds:
        others = np.setdiff1d(np.arange(len(right)), fold)
        odds[fold] = columns[fold] @ fit_logistic(columns[others], right[others], PENALTY)
    real = np.flatnonzero(numbers != names.index(NOISE))  # captions and other domains
    curve = fit_logistic(np.stack([np.ones(len(real)), odds[real]], axis=1), right[real], 1e-3)
    probability = sigmoid(curve[0] + curve[1] * odds[captions])
    return Confidence(
        count=count,
        captions=len(captions),
        images=len(np.unique(images[captions])),
        scripts=tuple(sorted({script for row in captions for script in scripts_of(texts[row])})),
        counts=counts,
        known=known,
        center=center,
        scale=scale,
        weights=fit_logistic(columns, right, PENALTY),
        sigmoid=curve,
        precision=np.stack([precision_of(probability, shares) for shares in likely[captions, :-1].T]),
    )


# Asking an index.


def ask(index, texts: Sequence[str], vectors: np.ndarray, embedder=None) -> tuple[Answers, np.ndarray]:
    """Returns what an index answers to sentences, and the rows of the first answers, int64 [Q].

    `embedder`: the model, where the index ranks by captions, too.
    """
    rank = ranking.resolve(index, "")
    captions = index.captions.encode(embedder, texts, ranking.QUESTIONS) if rank == ranking.ALL else None
    found = ranking.rank_all(
        index, texts, vectors, captions, ranking.DEPTH if rank == ranking.ALL else NEIGHBOURS, rank=rank
    )
    return describe(index, texts, vectors, found), np.array([one.rows[0] for one in found])


def describe(
    index, texts: Sequence[str], vectors: np.ndarray, found: Sequence[Ranked], own: np.ndarray | None = None
) -> Answers:
    """Returns what was asked and found. `own`: float32 [Q, D], the pictures that take part as row -1."""
    rows = np.array([one.rows[0] for one in found], np.int64)
    first = np.asarray(index.embeddings[np.maximum(rows, 0)], np.float32)
    if own is not None:
        first[rows < 0] = own[rows < 0]
    features = []
    for one, row, cosine in zip(found, rows.tolist(), np.sum(first * vectors, axis=1).tolist()):
        lists = [{row: value for row, (_, value) in one.lists.get(way, {}).items()} for way in ranking.WAYS]
        others = sorted((value for other, value in lists[0].items() if other != row), reverse=True)[: NEIGHBOURS - 1]
        measured = [cosine, cosine - sum(others or [cosine]) / max(1, len(others))]
        for values in lists[1:]:
            best = max((value for other, value in values.items() if other != row), default=0.0)
            measured += [values.get(row, 0.0), values.get(row, 0.0) - best]
        features.append(measured)
    whole = np.array([row in one.whole for one, row in zip(found, rows.tolist())], bool)
    return Answers(texts, vectors, first, np.array(features).reshape(-1, 6), whole)


def learn(index, embedder, pictures=None, queries: Sequence = (), strangers: Sequence | None = None) -> Confidence:
    """Fits on the captions of pictures that the model was not trained on, and on sentences with known answers.

    Args:
      index: an `Index` of images, the one that will be asked.
      embedder: the model that made it.
      pictures: an `Index` of pictures with captions, which the other may hold or not.
      queries: `Query`s; those with right answers count, which are names of the index.
      strangers: what the captions of `pictures` found, where that is known: of `ranking.ask_as_strangers`.

    Raises:
      UserError: too few captions, or too few or no other than right answers.
    """
    if strangers is None:
        strangers = ranking.ask_as_strangers(index, pictures, embedder) if pictures is not None else []
    texts = [one.text for one in strangers]
    kinds = [one.language or _main_script(one.text) for one in strangers]
    images = np.array([one.picture for one in strangers], np.int64)
    answered = [query for query in queries if query.text and query.right]
    numbers = {query.right: number for number, query in enumerate(answered, start=int(images.max(initial=-1)) + 1)}
    images = np.concatenate([images, np.array([numbers[query.right] for query in answered], np.int64)])
    captions, shown = len(images), len(np.unique(images))
    if captions < LEAST_CAPTIONS or shown < LEAST_IMAGES:
        raise UserError(
            f"{captions:,} captions of {shown:,} pictures are too few: at least {LEAST_CAPTIONS} of {LEAST_IMAGES} "
            "pictures are needed (--calibrate=DATA, or right answers in --queries=FILE)."
        )
    kinds += [query.language or _main_script(query.text) for query in answered]
    often = collections.Counter(kinds)
    kinds = [kind if often[kind] >= LEAST_OF_KIND else OTHER for kind in kinds]
    asked = [query.text for query in answered]
    noise = noise_like(texts + asked, kinds, round(NOISE_SHARE * len(kinds)))
    known = _scripts(texts + asked)
    lines = DOMAINS.read_text("utf-8").splitlines()
    domains = [line for line in lines if set(scripts_of(line)) <= known]
    wrong = np.concatenate([np.arange(len(noise)), len(noise) + np.tile(np.arange(len(domains)), DOMAIN_WEIGHT)])
    prompt = ranking.prompt_of(embedder, ranking.QUESTIONS)
    vectors = embedder.encode_text(asked + noise + domains, progress=False, **prompt)
    answers, rows = ask(index, asked + noise + domains, vectors, embedder)
    chosen = np.concatenate([np.arange(len(asked)), len(asked) + wrong]).astype(np.int64)
    answers = Answers([answers.texts[n] for n in chosen], *(getattr(answers, name)[chosen] for name in ARRAYS))
    right = [index.items[row] in query.right for row, query in zip(rows, answered)]
    if strangers:
        own = np.asarray(pictures.embeddings, np.float32)[[one.picture for one in strangers]]
        found = [one.ranked for one in strangers]
        of_captions = describe(index, texts, np.stack([one.vector for one in strangers]), found, own)
        same = np.sum(of_captions.first * own, axis=1) >= SAME  # looks exactly like it
        right = [a or one.ranked.rows[0] == one.target for a, one in zip(same, strangers)] + right
        answers = Answers(
            texts + list(answers.texts),
            *(np.concatenate([getattr(part, name) for part in (of_captions, answers)]) for name in ARRAYS),
        )
    right = np.array(right, np.float64)
    if right.sum() < LEAST_RIGHT:
        raise UserError(
            f"{int(right.sum()):,} of {len(right):,} captions found their picture first, at least {LEAST_RIGHT} must."
        )
    return fit(
        answers,
        np.concatenate([right, np.zeros(len(wrong))]),
        np.concatenate([images, images.max() + 1 + wrong]),  # a fold has all of a sentence
        [*kinds, *[NOISE] * len(noise), *[DOMAIN] * (len(wrong) - len(noise))],
        index.count,
    )


ARRAYS = ("vectors", "first", "found", "whole")  # of `Answers`


def _main_script(text: str) -> str:
    found = collections.Counter(scripts_of(text))
    return found.most_common(1)[0][0] if found else OTHER


def _scripts(texts: Sequence[str]) -> set[str]:
    return {script for text in texts for script in scripts_of(text)}


def noise_like(texts: Sequence[str], kinds: Sequence[str], count: int) -> list[str]:
    """Returns `count` strings that mean nothing: texts with other letters of their kind, or their own in disorder."""
    random = np.random.default_rng(0)
    letters: dict[str, set[str]] = collections.defaultdict(set)
    for text, kind in zip(texts, kinds):
        letters[kind].update(letter for letter in text.lower() if script_of(letter))
    alphabets = {kind: sorted(found) or ["?"] for kind, found in letters.items()}
    made = []
    for number, place in enumerate(random.integers(len(texts), size=count)):
        text, alphabet = texts[place].lower(), alphabets[kinds[place]]
        own = [letter for letter in text if not letter.isspace()]
        drawn = iter(random.permutation(own) if number % 2 else random.choice(alphabet, len(own)))
        made.append("".join(letter if letter.isspace() else str(next(drawn)) for letter in text))
    return made


# In the database of an index.


def to_bytes(confidence: Confidence) -> bytes:
    """Returns a file of NumPy's."""
    file = io.BytesIO()
    np.savez_compressed(file, **dataclasses.asdict(confidence))
    return file.getvalue()


def from_bytes(data: bytes, count: int, size: int) -> Confidence | None:
    """Returns what `to_bytes` wrote; None if it is for an index of another size than `count`.

    Raises `UserError` if it is damaged, or of vectors of another length than `size`.
    """
    try:
        with np.load(io.BytesIO(data)) as values:  # no pickles
            found = {field.name: values[field.name] for field in dataclasses.fields(Confidence)}
        numbers = {name: int(found[name]) for name in ("count", "captions", "images")}
        confidence = Confidence(**{**found, **numbers, "scripts": tuple(map(str, found["scripts"]))})
        if confidence.known.shape[1:] != (size,):
            raise ValueError(f"known is {list(confidence.known.shape)}, expected [M, {size}]")
    except Exception as error:  # noqa: BLE001 - NumPy's reader raises many classes on damaged files
        reason = str(error) or type(error).__name__
        raise UserError(f"How sure answers are is damaged ({reason}): make the index again.") from None
    return confidence if abs(count - confidence.count) <= CHANGED * confidence.count else None
