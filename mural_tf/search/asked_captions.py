"""Questions with known answers: what the weights of the ranking, and how sure answers are, is learnt from.

A caption of a picture asks an index as a stranger would, from which every column is hidden that holds the answer: the
captions in its language and in languages that mostly repeat it (en and en-GB), names and fields (a description that
repeats the title). A picture that the index lacks takes part as row -1.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from mural_tf.search import ranking, words
from mural_tf.search.ranking import ALL, DEPTH, PICTURES, QUESTIONS, WAYS, Captions, Ranked, prompt_of

MOST_ASKED = 2000  # captions
LEAST_ASKED = 200  # captions that choose weights
REPEATED = 0.2  # share of the items from which two languages are one column
SAME = 0.9995  # cosine from which two pictures are one
FIRSTS = (1, 10)  # right answers count among these
MOST_FITTED, LEAST_FITTED = 500, 50  # captions that ask for their pictures, to weigh these
SCALES = np.geomspace(0.02, 5.0, 60)  # of cosines, in their units
TRUST = 0.15  # of what pictures say: where they err, captions often err, too


@dataclasses.dataclass(frozen=True)
class AskedCaption:
    """A caption that asked.

    picture: the row of its picture among the asking pictures. target: the right row of the index, -1 for a picture that
    the index lacks. ranked: the results, its own picture among them.
    """

    text: str
    language: str
    picture: int
    target: int
    ranked: Ranked

    @property
    def is_right(self) -> bool:
        """Whether the first answer is right."""
        return len(self.ranked.rows) > 0 and self.ranked.rows[0] == self.target

    def weighted(self, weights: dict[str, float]) -> AskedCaption:
        """Returns the same with other weights."""
        return dataclasses.replace(self, ranked=self.ranked.fused(weights))

    def without_its_picture(self, weights: dict[str, float]) -> Ranked:
        """Returns what is found where the index lacks the picture: nothing that is right."""
        lists = {}
        for way, entries in self.ranked.lists.items():
            others = [(row, value) for row, (_, value) in entries.items() if row != self.target]
            lists[way] = {row: (rank, value) for rank, (row, value) in enumerate(others, start=1)}
        whole = self.ranked.whole - {self.target}
        return dataclasses.replace(self.ranked, lists=lists, whole=whole).fused(weights)


def columns_of(pictures) -> dict[str, set[str]]:
    """Returns for each language the languages whose captions hold its captions, itself among them."""
    of, holds = collections.Counter(), collections.Counter()
    for item in pictures.table:
        own = [(language, words.spread(text)) for language, text in item.captions]
        of.update({language for language, _ in own})
        holds.update({(a, b) for a, text in own for b, other in own if a != b and f" {text} " in f" {other} "})
    languages = set(of)
    return {a: {a} | {b for b in languages if holds[a, b] >= REPEATED * of[a]} for a in languages}


def ask(index, pictures, embedder) -> list[AskedCaption]:
    """Asks with the captions of `pictures`, an index in memory, `MOST_ASKED` at most, evenly spread.

    Where the index has captions, only those ask whose picture has one that is not hidden: no other could be found by
    its captions, however good they are.
    """
    pictures.captions, pictures.weights = None, index.weights
    columns, entries, count = columns_of(pictures), [], 0
    for row, item in enumerate(pictures.table):
        own = {language for language, _ in item.captions}
        for language, text in item.captions:
            if text.strip() and (index.captions is None or own - columns[language]):
                entries.append((row, language, text, count))
            count += 1
    if index.captions is not None and count:
        made = Captions(np.zeros((0, 0), np.float16), pictures.table, index.captions.head)
        made.vectors = made.encode(embedder, [text for item in pictures.table for _, text in item.captions])
        pictures.captions = made
    chosen = np.linspace(0, len(entries) - 1, min(len(entries), MOST_ASKED), dtype=np.int64)
    entries = [entries[n] for n in chosen]
    scores, closest = index.search(np.asarray(pictures.embeddings, np.float32), 1)
    targets = np.where(scores[:, 0] >= SAME, closest[:, 0], -1).tolist()
    answered: dict[int, AskedCaption] = {}
    for language in dict.fromkeys(language for _, language, _, _ in entries):
        rows, _, texts, numbers = zip(*(entry for entry in entries if entry[1] == language))
        vectors = embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, QUESTIONS))
        captions = None if pictures.captions is None else index.captions.encode_questions(embedder, texts, vectors)
        asked = texts, vectors, captions, DEPTH, (), ALL, columns[language]
        own, ranked = ranking.rank_all(pictures, *asked), ranking.rank_all(index, *asked)
        for n, row in enumerate(rows):
            lists = ranked[n] if targets[row] >= 0 else _with_own(ranked[n], own[n], row, index.weights)
            answered[numbers[n]] = AskedCaption(texts[n], language, row, targets[row], lists)
    return [answered[number] for *_, number in entries]


def _with_own(ranked: Ranked, own: Ranked, row: int, weights: dict[str, float]) -> Ranked:
    """Lets a picture that the index lacks, `row` of the asking pictures, take its place as row -1."""
    lists = {}
    for way, entries in ranked.lists.items():
        placed = [(other, value) for other, (_, value) in entries.items()]
        if row in own.lists[way]:
            value = own.lists[way][row][1]
            placed.insert(sum(other >= value for _, other in placed), (-1, value))
        lists[way] = {other: (rank, value) for rank, (other, value) in enumerate(placed, start=1)}
    whole = ranked.whole | {-1} if row in own.whole else ranked.whole
    return dataclasses.replace(ranked, lists=lists, whole=whole).fused(weights)


def weigh_pictures(index, embedder) -> dict[str, float]:
    """Returns the weights of an index, of pictures by how well its captions tell its pictures apart.

    A tower may know drawings well and photographs hardly. So some captions ask for their pictures, and the likelihood
    of the right pictures says how much a cosine means; `TRUST` of it is the weight. With fewer than `LEAST_FITTED`
    captions the weight is the usual one.
    """
    bare = set(index.bare.tolist())
    captions = [(row, text) for row, item in enumerate(index.table) if row not in bare for _, text in item.captions]
    chosen = np.linspace(0, len(captions) - 1, min(len(captions), MOST_FITTED), dtype=np.int64)
    if len(chosen) < LEAST_FITTED:
        return dict(index.weights)
    rows, texts = zip(*(captions[n] for n in chosen))
    vectors = embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, QUESTIONS))
    others = np.union1d(rows, ranking.spread(np.arange(len(index)), MOST_FITTED))
    cosines = vectors @ np.asarray(index.embeddings[others], np.float32).T / ranking.units_of(index)[PICTURES]
    return {**index.weights, PICTURES: TRUST * likeliest_scale(cosines, np.searchsorted(others, rows))}


def likeliest_scale(values: np.ndarray, right: np.ndarray) -> float:
    """Returns the factor of `SCALES` by which a softmax of values [Q, N] gives the right places [Q] most likelihood."""
    values = values - values.max(axis=1, keepdims=True)
    own = values[np.arange(len(right)), right]
    likelihoods = [np.mean(scale * own - np.log(np.exp(scale * values).sum(axis=1))) for scale in SCALES]
    return float(SCALES[int(np.argmax(likelihoods))])


def choose_weights(
    asked: Sequence[AskedCaption], usual: dict[str, float]
) -> tuple[dict[str, float], dict[str, float]] | None:
    """Returns weights by which captions find their picture, and how many each way and all find, held out.

    By half of the pictures' captions the `ranking.MIXES` of the usual weights are put in order: first all that are
    within a standard error of the best, the usual one and others like it before the rest, then the others by how good
    they are. The first mix is taken that is on the other half no worse than each part alone; if no mix is, it is the
    best part. What counts is the mean over languages of the share of right answers first and among ten. None where
    there is too little to learn from.
    """
    if len(asked) < LEAST_ASKED or len({caption.language for caption in asked}) < 2:
        return None
    parts = [{way: float(way == only) for way in WAYS} for only in WAYS]
    tried = parts + [{way: mix[way] * usual[way] for way in WAYS} for mix in ranking.MIXES]
    hits: dict[tuple[int, str], list[np.ndarray]] = collections.defaultdict(list)
    by_picture: dict[int, list[np.ndarray]] = collections.defaultdict(list)
    for caption in asked:
        ranks = caption.ranked.ranks_of(caption.target, tried)  # [W]
        shares = np.mean([ranks <= first for first in FIRSTS], axis=0)
        hits[caption.picture % 2, caption.language].append(shares)
        if caption.picture % 2 == 0:
            by_picture[caption.picture].append(shares[len(WAYS) :])
    chosen, held_out = (
        np.mean([np.mean(shares, axis=0) for (half, _), shares in hits.items() if half == wanted], axis=0)
        for wanted in (0, 1)
    )
    best_part = int(np.argmax(held_out[: len(WAYS)]))
    mixed = chosen[len(WAYS) :]
    order = len(WAYS) + _in_order(mixed, np.array([np.mean(rows, axis=0) for rows in by_picture.values()]))
    best = next((n for n in order.tolist() if held_out[n] >= held_out[best_part]), best_part)
    return tried[best], {**dict(zip(WAYS, held_out.tolist())), ALL: float(held_out[best])}


def _in_order(shares: np.ndarray, by_picture: np.ndarray) -> np.ndarray:
    """Returns the numbers of mixes: those within a standard error of the best in their own order, then by their shares.

    Args:
      shares: float [M].
      by_picture: the shares of each picture, float [P, M].
    """
    best = int(np.argmax(shares))
    behind = by_picture[:, [best]] - by_picture  # a picture's captions are right or wrong together
    error = behind.std(axis=0) / np.sqrt(len(behind))
    close = shares >= shares[best] - error
    return np.lexsort((np.where(close, 0.0, -shares), ~close))
