"""One ranking of what is found for a sentence: by pictures, by captions and by words.

    pictures   cosine of the sentence with the picture, by the image-text head
    texts      cosine of the sentence with the item's closest caption, by the text-text head where the model has one
    words      BM25 of the sentence's trigrams in captions, names and fields (`ItemTable.by_words`)

The three lists become one by reciprocal ranks: an item's score is the sum of weight / (60 + rank) over the lists
(Cormack et al., SIGIR 2009). Departure: each counts by its value, too, the cosine or the share of the question, so that
a question in a script or language that no caption has is left to the model, and one that the model does not know to the
words. An item of which a caption, the name or a field is the whole question comes before all others. The weights are
chosen on captions whose language is hidden from the index, so that they ask as a stranger would.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mural_tf.errors import UserError
from mural_tf.metrics import top_k
from mural_tf.search import words

if TYPE_CHECKING:
    from mural_tf.search.database import ItemTable
    from mural_tf.search.items import Filter

PICTURES, TEXTS, WORDS, ALL = "pictures", "texts", "words", "all"
WAYS = (PICTURES, TEXTS, WORDS)
RANKS = (*WAYS, ALL)
EXACT = "exact"  # found as a whole, beside the ways
HEAD = "text_text"
QUESTIONS, CAPTIONS = ("query",), ("document", "passage", "corpus")  # what models call their prompts for these
DEPTH = 200  # of each list, so that the first pages are of one ranking
CONSTANT = 60  # of reciprocal ranks
LEAST = 1e-3  # what a value below counts as, so that the order of a list is kept
DEFAULT_WEIGHTS = {PICTURES: 0.05, TEXTS: 1.0, WORDS: 2.0}
TRIED = np.array(list(itertools.product((0.05, 0.25, 1.0), (1.0,), (2.0, 1.0, 0.5, 4.0, 8.0))))
BLOCK, VALUES = 2**15, 2**24  # captions compared at a time; numbers that are in memory for it
LEAST_ASKED = 50  # captions that choose the weights
MOST_STRANGERS = {PICTURES: 10_000, ALL: 2000}  # captions that ask
NEIGHBOURS = 10  # pictures that are looked at where nothing else is ranked
SAME = 0.9995  # cosine from which two pictures are one


class CannotBeAsked(UserError):
    """A question that an index has no answer to: whoever asks can put it right, who serves it need not."""


def prompt_of(embedder, names: Sequence[str]) -> dict[str, str]:
    """Returns the argument `prompt` of `encode_text`: the first of `names` that the model has, or none."""
    known = getattr(embedder, "prompts", ())
    return next(({"prompt": name} for name in names if name in known), {})


class Captions:
    """Vectors of all captions of an index, float16 [T, D], in the order of the table's `texts`; which rows they are of.

    `head`: of the model, "" for the one that pictures are compared with.
    """

    def __init__(self, vectors: np.ndarray, table: ItemTable, head: str):
        self.vectors, self.table, self.head = vectors, table, head

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The row that each caption is of, int64 [T] rising."""
        return self.table.caption_rows()

    def encode(self, embedder, texts: Sequence[str], prompts: Sequence[str] = CAPTIONS) -> np.ndarray:
        """Returns the vectors of sentences by the captions' head, float32 [Q, D]; `prompts` as `prompt_of` takes it."""
        embedder = embedder.with_text_head(self.head) if self.head else embedder
        return embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, prompts))

    def search(
        self, vectors: np.ndarray, count: int, allowed: np.ndarray | None = None, hidden: str | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns for each vector the rows, int64 [K], whose best caption is closest, and its cosine, float32 [K].

        `allowed`: bool [N], the rows that may be found; `hidden`: a language whose captions are not searched.
        """
        excluded = np.zeros(len(self.rows), bool) if allowed is None else ~allowed[self.rows]
        if hidden is not None:
            excluded[self.table.captions_in(hidden)] = True
        together = max(1, VALUES // len(self.table))
        blocks = (vectors[begin : begin + together] for begin in range(0, len(vectors), together))
        return [found for block in blocks for found in self._search(block, count, excluded)]

    def _search(self, vectors: np.ndarray, count: int, excluded: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        best = np.full((len(vectors), len(self.table)), -np.inf, np.float32)
        longest = 1.01 * np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-6
        for begin in range(0, len(self.rows), BLOCK):
            rows = self.rows[begin : begin + BLOCK]
            scores = vectors @ top_k.as_float32(self.vectors[begin : begin + BLOCK]).T
            if not (np.abs(scores) <= longest).all():  # one flipped bit would be first for every question
                raise UserError("captions.npy is damaged: delete this file, it is made again.")
            scores[:, excluded[begin : begin + BLOCK]] = -np.inf
            firsts = np.flatnonzero(np.diff(rows, prepend=-1))  # captions of one item are beside each other
            best[:, rows[firsts]] = np.maximum(best[:, rows[firsts]], np.maximum.reduceat(scores, firsts, axis=1))
        for scores in best:
            found = np.argpartition(-scores, count)[:count] if count < len(scores) else np.arange(len(scores))
            found = found[np.isfinite(scores[found])]
            found = found[np.lexsort((found, -scores[found]))]
            yield found, scores[found]


@dataclasses.dataclass(frozen=True)
class Ranked:
    """What was found for a sentence, best first.

    rows: int64 [K]. lists: of each way that was asked, {row: (rank from 1, cosine or share)}. whole: rows of which a
    caption, name or value is the whole sentence.
    """

    rows: np.ndarray
    lists: dict[str, dict[int, tuple[int, float]]]
    whole: frozenset[int] = frozenset()

    def found_by(self, row: int) -> dict[str, int]:
        """Returns {way: rank} where a row is among the first ten, otherwise where it is best.

        {"exact": 1} too where it was found as a whole.
        """
        by = {way: found[row][0] for way, found in self.lists.items() if row in found}
        by = {way: rank for way, rank in by.items() if rank <= max(NEIGHBOURS, min(by.values()))}
        return {EXACT: 1, **by} if row in self.whole else by


def resolve(index, rank: str) -> str:
    """Returns how to rank: `rank`, or by default everything where there are captions, else pictures.

    Raises `CannotBeAsked` for an unknown one, or one that the index has not.
    """
    if rank and rank not in RANKS:
        raise CannotBeAsked(f"rank={rank} is not known; known: {', '.join(RANKS)}.")
    if rank == TEXTS and index.captions is None:
        raise CannotBeAsked("rank=texts compares with captions, and this index has none; take pictures or words.")
    return rank or (PICTURES if index.captions is None else ALL)


def fuse(
    lists: dict[str, dict[int, tuple[int, float]]], weights: dict[str, float], whole: Collection[int]
) -> np.ndarray:
    """Returns the rows of several lists as one, int64 [K]; of equal ones the lower first."""
    rows, shares = _shares(lists, whole)
    scores = np.array([weights[way] for way in WAYS]) @ shares + np.isin(rows, list(whole)) * sum(weights.values())
    return rows[np.lexsort((rows, -scores))]


def _shares(lists: dict[str, dict[int, tuple[int, float]]], whole: Collection[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows that lists hold, int64 [K], and what each way gives them for a weight of 1, float64 [3, K]."""
    rows = list(dict.fromkeys(itertools.chain(whole, *lists.values())))
    places = {row: place for place, row in enumerate(rows)}
    shares = np.zeros((len(WAYS), len(rows)))
    for number, way in enumerate(WAYS):
        for row, (rank, value) in lists.get(way, {}).items():
            shares[number, places[row]] = max(LEAST, value) / (CONSTANT + rank)
    return np.array(rows, np.int64), shares


def rank_all(
    index,
    sentences: Sequence[str],
    vectors: np.ndarray | None,
    captions: np.ndarray | None,
    count: int = DEPTH,
    filters: Sequence[Filter] = (),
    rank: str = ALL,
    hidden: str | None = None,
) -> list[Ranked]:
    """Ranks for sentences.

    Args:
      vectors, captions: of the sentences, [Q, D], as `Index.search` and `Captions.search` take them; None where the
        ranking does not need them.
      count: of each list.
      filters: see `Index.search`; -words of the sentences are obeyed, too.
      rank: one of `RANKS`.
      hidden: a language whose captions are not searched.
    """
    ways = WAYS if rank == ALL else (rank,)
    plain, lacking = zip(*map(words.split, sentences))
    if len(set(map(tuple, lacking))) > 1:  # other rows may be found for each
        alone = [
            [part[n : n + 1] if part is not None else None for part in (vectors, captions)] for n in range(len(plain))
        ]
        asked = [rank_all(index, [s], *own, count, filters, rank, hidden) for s, own in zip(sentences, alone)]
        return [found for (found,) in asked]
    rows, allowed = index.rows(filters, lacking[0]), None
    if rows is not None:
        allowed = np.zeros(len(index), bool)
        allowed[rows] = True
        if not len(rows):
            return [Ranked(rows, {way: {} for way in ways}) for _ in sentences]
    lists: list[dict[str, dict[int, tuple[int, float]]]] = [{} for _ in sentences]
    whole = [frozenset()] * len(sentences)
    if PICTURES in ways:
        scores, found = index.search(vectors, count, among=rows)
        for own, *one in zip(lists, found, scores):
            own[PICTURES] = _ranks(*one)
    if TEXTS in ways and captions is not None:
        for own, one in zip(lists, index.captions.search(captions, count, allowed, hidden)):
            own[TEXTS] = _ranks(*one)
    if WORDS in ways:
        for number, sentence in enumerate(plain):
            lists[number][WORDS] = _ranks(*index.table.by_words(sentence, count, allowed, hidden))
            as_whole = index.table.whole(sentence, hidden)
            whole[number] = frozenset(as_whole[allowed[as_whole] if allowed is not None else slice(None)].tolist())
    weights = _weights(index, rank)
    return [Ranked(fuse(own, weights, first), own, first) for own, first in zip(lists, whole)]


def _weights(index, rank: str) -> dict[str, float]:
    """Returns what each way counts; the vectors of an index of texts, or without captions, count as captions do."""
    if rank != ALL:
        return {**dict.fromkeys(WAYS, 0.0), rank: 1.0}
    if index.captions is None:
        return {**index.weights, PICTURES: index.weights[TEXTS], TEXTS: 0.0}
    return index.weights


def _ranks(rows: np.ndarray, values: np.ndarray) -> dict[int, tuple[int, float]]:
    return {row: (rank, value) for rank, (row, value) in enumerate(zip(rows.tolist(), values.tolist()), start=1)}


# Making and choosing.


@dataclasses.dataclass(frozen=True)
class Stranger:
    """A caption that asked an index from which the captions of its language were hidden.

    vector: float32 [D]. picture: the row of its picture among those that asked. target: the right row; -1 where the
    index lacks the picture, which then takes part in `ranked` as row -1.
    """

    text: str
    language: str
    vector: np.ndarray
    picture: int
    target: int
    ranked: Ranked

    def weighted(self, weights: dict[str, float]) -> Stranger:
        """Returns the same with other weights."""
        of = self.ranked
        return dataclasses.replace(self, ranked=Ranked(fuse(of.lists, weights, of.whole), of.lists, of.whole))


def ask_as_strangers(index, pictures, embedder) -> list[Stranger]:
    """Asks with the captions of pictures, `MOST_STRANGERS` at most, evenly spread.

    Of captions in one language none could be found by another: these are hidden all, and pictures are left.
    """
    rank, texts = resolve(index, ""), []
    pictures.captions, pictures.weights = None, index.weights
    for row, item in enumerate(pictures.table):
        texts += [(number, row, *caption) for number, caption in enumerate(item.captions, start=len(texts))]
    if rank == ALL and texts:
        made = Captions(np.zeros((0, 0), np.float16), pictures.table, index.captions.head)
        made.vectors = made.encode(embedder, [text for *_, text in texts]).astype(np.float16)
        pictures.captions = made
    texts = [entry for entry in texts if entry[-1].strip()]
    chosen = np.linspace(0, len(texts) - 1, min(len(texts), MOST_STRANGERS[rank]), dtype=np.int64)
    chosen = [texts[n] for n in chosen]
    scores, closest = index.search(np.asarray(pictures.embeddings, np.float32), 1)
    targets = np.where(scores[:, 0] >= SAME, closest[:, 0], -1)
    asked: dict[int, Stranger] = {}
    for language in dict.fromkeys(language for _, _, language, _ in chosen):
        numbers, rows, _, sentences = zip(*(entry for entry in chosen if entry[2] == language))
        vectors = embedder.encode_text(list(sentences), progress=False, **prompt_of(embedder, QUESTIONS))
        captions = pictures.captions.vectors[list(numbers)].astype(np.float32) if rank == ALL else None
        of = dict(count=DEPTH if rank == ALL else NEIGHBOURS, rank=rank, hidden=language)
        found = rank_all(index, sentences, vectors, captions, **of)
        if (targets[list(rows)] < 0).any():
            own = rank_all(pictures, sentences, vectors, captions, **of)
            for n, row in enumerate(rows):
                if targets[row] < 0:
                    values = {way: entries[row][1] for way, entries in own[n].lists.items() if row in entries}
                    values[PICTURES] = float(vectors[n] @ np.asarray(pictures.embeddings[row], np.float32))
                    found[n] = _with_own(found[n], values, row in own[n].whole, index.weights)
        for n, row in enumerate(rows):
            asked[numbers[n]] = Stranger(sentences[n], language, vectors[n], row, int(targets[row]), found[n])
    return [asked[number] for number, *_ in chosen]


def _with_own(found: Ranked, values: dict[str, float], is_whole: bool, weights: dict[str, float]) -> Ranked:
    """Lets a picture that the index lacks take its place, as row -1, in the lists where it has a value."""
    lists = {}
    for way, entries in found.lists.items():
        placed = [(row, value) for row, (_, value) in entries.items()]
        if way in values:
            better = sum(value >= values[way] for _, value in placed)
            placed.insert(better, (-1, values[way]))
        lists[way] = {row: (rank, value) for rank, (row, value) in enumerate(placed, start=1)}
    first = found.whole | {-1} if is_whole else found.whole
    return Ranked(fuse(lists, weights, first), lists, first)


def choose_weights(asked: Sequence[Stranger]) -> tuple[dict[str, float], dict[str, float]] | None:
    """Returns the weights by which most captions find their picture among ten, and that share by each way and by all.

    Shares are means over languages. Pictures get the least weight that costs no more than one standard error (Breiman
    et al., 1984): the model knows the pictures of languages that have captions better than those of others. None for
    fewer than `LEAST_ASKED` captions, captions in one language, or an index that ranks by pictures alone.
    """
    languages = {one.language for one in asked}
    if len(asked) < LEAST_ASKED or len(languages) < 2 or TEXTS not in asked[0].ranked.lists:
        return None
    tried, hits = np.concatenate([np.eye(len(WAYS)), TRIED]), {}
    for one in asked:
        rows, shares = _shares(one.ranked.lists, one.ranked.whole)
        scores = tried @ shares  # [W, K]
        scores[len(WAYS) :, np.isin(rows, list(one.ranked.whole))] += tried.sum()
        own = scores[:, rows == one.target]
        better = (scores > own).sum(axis=1) if own.size else np.full(len(tried), 10)
        hits.setdefault(one.language, []).append((better < 10) & (own[:, 0] > 0 if own.size else False))
    means = np.mean([np.mean(found, axis=0) for found in hits.values()], axis=0)
    alone, fused = means[: len(WAYS)], means[len(WAYS) :]
    error = np.sqrt(fused.max() * (1 - fused.max()) / len(asked))
    least = TRIED[fused >= fused.max() - error, 0].min()
    best = int(np.argmax(np.where(TRIED[:, 0] == least, fused, -1.0)))
    return dict(zip(WAYS, TRIED[best].tolist())), {**dict(zip(WAYS, alone.tolist())), ALL: float(fused[best])}
