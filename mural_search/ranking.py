"""One ranking of a sentence's results: by pictures, by captions and by words.

    pictures   cosine of the sentence with the picture, by the image-text head
    texts      cosine of the sentence with the item's closest caption, by the text-text head where the model has one
    words      BM25 of the sentence's trigrams in captions, names and fields (`ItemTable.by_words`)

Each way gives the items it finds, and all items that another way finds, a value; an item's score is the weighted sum of
its values, cosines in units of how much cosines differ in this index. So the score is the logarithm of a product of
probabilities: a way that tells items little apart changes little, however sure the others are. An item of which a
caption, the name or a field is the whole question comes before all others.

Captions in the question's own language lie closer to it than better captions in others; so each counts by how much
closer it is than the mean of its language (`Captions.means`). The weights were measured (docs/search.md).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mural_lite import top_k
from mural_lite.errors import UserError
from mural_lite.files import release_pages
from mural_search import words
from mural_search.items import IMAGES

if TYPE_CHECKING:
    from mural_search.item_table import ItemTable
    from mural_search.items import Filter

    Entries = dict[int, tuple[int, float]]  # row -> rank from 1, cosine or share

PICTURES, TEXTS, WORDS, ALL = "pictures", "texts", "words", "all"
WAYS = (PICTURES, TEXTS, WORDS)
RANKS = (*WAYS, ALL)
EXACT = "exact"  # found as a whole, in addition to the ways
HEAD = "text_text"
QUESTIONS, CAPTIONS = ("query",), ("document", "passage", "corpus")  # what models call their prompts for these
DEPTH = 200  # of each list, so that the first pages are of one ranking
SHOWN = 10  # places of a list where it counts as having found an answer
BLOCK, VALUES = 2**12, 2**24  # captions compared at a time; numbers that are in memory for it
SCATTERED = 64  # vectors read at a time that may lie far from each other: each maps a hundred kilobytes around it
SAMPLE = 500  # vectors of which units and means are taken
FEW = 20  # captions from which a language has a mean of its own, half and half
DEFAULT_WEIGHTS = {PICTURES: 0.8, TEXTS: 2.4, WORDS: 12.0}
USUAL, SURE = 0.08, 10  # the unit of cosines of captions; as if so many more captions had been measured


class CannotBeAsked(UserError):
    """A query that this index cannot answer: the caller's mistake, not the server's."""


def prompt_of(embedder, names: Sequence[str]) -> dict[str, str]:
    """Returns the argument `prompt` of `encode_text`: the first of `names` that the model has, or none."""
    prompts = getattr(embedder, "prompts", ())
    return next(({"prompt": name} for name in names if name in prompts), {})


class Captions:
    """Vectors of all captions of an index, float16 [T, D], in the order of the table's `texts`; which rows they are of.

    `head`: of the model, "" for the head that pictures are compared with.
    """

    def __init__(self, vectors: np.ndarray, table: ItemTable, head: str):
        self.vectors, self.table, self.head = vectors, table, head
        self.codes = None  # a `Codes` of the vectors, where many questions are asked

    @functools.cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The captions of each language, int64 [K] rising."""
        return self.table.captions_by_language()

    @functools.cached_property
    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Float32 [L, D], each language's mean vector less the overall mean, and each caption's row of it."""
        overall = self._mean(np.arange(len(self.vectors)))
        means, groups = np.zeros((len(self.numbers), len(overall)), np.float32), np.zeros(len(self.vectors), np.int32)
        for number, numbers in enumerate(self.numbers.values()):
            groups[numbers] = number
            means[number] = (self._mean(numbers) - overall) * len(numbers) / (len(numbers) + FEW)
        return means, groups

    def _mean(self, numbers: np.ndarray) -> np.ndarray:
        return vectors_at(self.vectors, spread(numbers, 2 * SAMPLE)).mean(axis=0)

    @functools.cached_property
    def unit(self) -> float:
        """How much the values of captions for each other differ."""
        chosen = spread(np.arange(len(self.vectors)), SAMPLE)
        vectors, (means, groups) = vectors_at(self.vectors, chosen), self.means
        return _unit(vectors, vectors - means[groups[chosen]])

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The row that each caption is of, int64 [T] rising."""
        return self.table.caption_rows()

    def encode(self, embedder, texts: Sequence[str], prompts: Sequence[str] = CAPTIONS) -> np.ndarray:
        """Returns the vectors of sentences by the captions' head, float32 [Q, D]; `prompts` as `prompt_of` takes it."""
        embedder = embedder.with_text_head(self.head) if self.head else embedder
        return embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, prompts))

    def encode_questions(self, embedder, texts: Sequence[str], vectors: np.ndarray | None) -> np.ndarray:
        """Returns the vectors that questions have for captions: `vectors`, theirs for pictures, if the head is one."""
        return vectors if vectors is not None and not self.head else self.encode(embedder, texts, QUESTIONS)

    def search(
        self, vectors: np.ndarray, count: int, allowed: np.ndarray | None = None, hidden: Collection[str] = ()
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns for each vector the rows, int64 [K], of the best captions, and these captions' values, float32 [K].

        A value is the cosine, less what the mean of the caption's language has more than the mean of all.

        `allowed`: bool [N], the rows that may be found; `hidden`: languages whose captions are not searched.
        """
        excluded = np.zeros(len(self.rows), bool) if allowed is None else ~allowed[self.rows]
        for language in hidden:
            excluded[self.numbers.get(language, [])] = True
        together = max(1, VALUES // len(self.table))
        blocks = (vectors[begin : begin + together] for begin in range(0, len(vectors), together))
        return [hits for block in blocks for hits in self._search(block, count, excluded)]

    def values(self, vector: np.ndarray, rows: np.ndarray, hidden: Collection[str] = ()) -> np.ndarray:
        """Returns the values of rows, int64 [K], for a vector [D], as `search` does; -inf where no caption counts."""
        means, groups = self.means
        begins, ends = np.searchsorted(self.rows, rows), np.searchsorted(self.rows, rows, side="right")
        owners = np.repeat(np.arange(len(rows)), ends - begins)
        numbers = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends)] or [owners])
        scores = vectors_at(self.vectors, numbers) @ vector - (means @ vector)[groups[numbers]]
        for language in hidden:
            scores[np.isin(numbers, self.numbers.get(language, []))] = -np.inf
        best = np.full(len(rows), -np.inf, np.float32)
        np.maximum.at(best, owners, scores)
        return best

    def _search(self, vectors: np.ndarray, count: int, excluded: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        best = np.full((len(vectors), len(self.table)), -np.inf, np.float32)
        means, groups = self.means
        shifts = vectors @ means.T  # [Q, L]
        longest = 1.01 * np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-6
        blocks: Iterable = [slice(begin, begin + BLOCK) for begin in range(0, len(self.rows), BLOCK)]
        if self.codes is not None and len(vectors) == 1:
            blocks = [self.codes.candidates_of_items(vectors[0], count, self.rows, shifts[0, groups], excluded)]
        for block in blocks:
            rows = self.rows[block]
            scores = vectors @ top_k.as_float32(self.vectors[block]).T
            if not (np.abs(scores) <= longest).all():  # one flipped bit would be first for every question
                raise UserError("captions.npy is damaged: delete this file, it is made again.")
            scores -= shifts[:, groups[block]]
            scores[:, excluded[block]] = -np.inf
            firsts = np.flatnonzero(np.diff(rows, prepend=-1))  # captions of one item are adjacent
            best[:, rows[firsts]] = np.maximum(best[:, rows[firsts]], np.maximum.reduceat(scores, firsts, axis=1))
            release_pages(self.vectors)
        for scores in best:
            order = np.argpartition(-scores, count)[:count] if count < len(scores) else np.arange(len(scores))
            order = order[np.isfinite(scores[order])]
            order = order[np.lexsort((order, -scores[order]))]
            yield order, scores[order]


@dataclasses.dataclass(frozen=True)
class Ranked:
    """What was found for a sentence, best first.

    rows: int64 [K]. lists: of each way that was asked, {row: (rank from 1, cosine or share)}, best first; rows that
    only other ways found are at the end of a list. whole: rows of which a caption, name or value is the whole sentence.
    units: of the cosines of each list.
    """

    rows: np.ndarray
    lists: dict[str, Entries]
    whole: frozenset[int] = frozenset()
    units: dict[str, float] = dataclasses.field(default_factory=dict)

    def fused(self, weights: dict[str, float]) -> Ranked:
        """Returns the same lists as one by weights."""
        rows, values = self._values()
        return dataclasses.replace(self, rows=rows[np.lexsort((rows, -self._scores(rows, values, weights)))])

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of the results, int64 [K] rising, and their values by each way, float64 [3, K] from 0."""
        rows = np.array(sorted({*self.whole, *itertools.chain(*self.lists.values())}), np.int64)
        values = np.zeros((len(WAYS), len(rows)))
        for way, entries in self.lists.items():
            own = np.array([value for _, value in entries.values()], np.float64)
            if way == WORDS:
                own = own**2  # a part of a word of another language ("sun" in sungura) tells little
            elif len(own):
                own = (own - own.min()) / self.units[way]
            values[WAYS.index(way), np.searchsorted(rows, np.array(list(entries), np.int64))] = own
        return rows, values

    def _scores(self, rows: np.ndarray, values: np.ndarray, weights: dict[str, float]) -> np.ndarray:
        """Returns the scores of rows by weights, float64 [K]; rows that were found whole come first."""
        scores = np.array([weights[way] for way in WAYS]) @ values
        return scores + np.isin(rows, list(self.whole)) * (1.0 + scores.max(initial=0.0))

    def found_by(self, row: int) -> dict[str, int]:
        """Returns {way: rank} where a row is among the first ten, otherwise where it is best.

        {"exact": 1} too where it was found as a whole.
        """
        by = {way: entries[row][0] for way, entries in self.lists.items() if row in entries}
        by = {way: rank for way, rank in by.items() if rank <= max(SHOWN, min(by.values()))}
        return {EXACT: 1, **by} if row in self.whole else by


def resolve(index, rank: str) -> str:
    """Returns how to rank, everything by default. Raises `CannotBeAsked` for an unknown way, or one that is lacking."""
    if rank and rank not in RANKS:
        raise CannotBeAsked(f"rank={rank} is not known; known: {', '.join(RANKS)}.")
    if rank == TEXTS and index.captions is None and index.kind == IMAGES:
        raise CannotBeAsked("rank=texts compares with captions, which this index lacks; take pictures or words.")
    return rank or ALL


def needs_vectors(index, rank: str) -> bool:
    """Whether a ranking needs the sentence's vector for pictures; an index of texts may use the texts'."""
    return rank in (PICTURES, ALL) or (rank == TEXTS and index.captions is None)


def rank_all(
    index,
    sentences: Sequence[str],
    vectors: np.ndarray | None,
    captions: np.ndarray | None,
    count: int = DEPTH,
    filters: Sequence[Filter] = (),
    rank: str = ALL,
    hidden: Collection[str] = (),
    weights: dict[str, float] = DEFAULT_WEIGHTS,
) -> list[Ranked]:
    """Ranks for sentences.

    Args:
      vectors, captions: of the sentences, [Q, D], as `Index.search` and `Captions.search` take them; None where the
        ranking does not need them.
      count: of each list.
      filters: see `Index.search`; -words of the sentences are obeyed, too.
      rank: one of `RANKS`. An index of texts has no pictures: without captions the vectors of its texts are compared.
      hidden: languages whose captions are not searched; names and fields then are not, either.
      weights: of the ways in the one ranking.
    """
    plain, lacking = zip(*map(words.split, sentences))
    if len(set(map(tuple, lacking))) > 1:  # other rows may be found for each
        alone = [[part if part is None else part[n : n + 1] for part in (vectors, captions)] for n in range(len(plain))]
        asked = [rank_all(index, [s], *own, count, filters, rank, hidden, weights) for s, own in zip(sentences, alone)]
        return [results for (results,) in asked]
    ways = (rank,) if rank != ALL else WAYS if index.kind == IMAGES else (TEXTS, WORDS)
    rows, allowed = index.rows(filters, lacking[0]), None
    if rows is not None:
        allowed = np.zeros(len(index), bool)
        allowed[rows] = True
        if not len(rows):
            return [Ranked(rows, {way: {} for way in ways}) for _ in sentences]
    units = units_of(index)
    lists: list[dict[str, Entries]] = [{} for _ in sentences]
    whole = [frozenset()] * len(sentences)

    def ask_words() -> list[tuple]:
        return [(index.table.by_words(t, count, allowed, hidden), index.table.whole(t, hidden)) for t in plain]

    if WORDS in ways and index.codes is not None:
        ask_words = index.codes.meanwhile(ask_words)
    for way in ways:
        if way == WORDS:
            results, as_whole = zip(*ask_words())
            whole = [frozenset((x if allowed is None else x[allowed[x]]).tolist()) for x in as_whole]
        elif way == TEXTS and index.captions is not None:
            results = index.captions.search(captions, count, allowed, hidden)
        elif way == TEXTS and index.kind == IMAGES:
            results = [(np.zeros(0, np.int64), np.zeros(0))] * len(plain)
        else:
            scores, closest = index.search(vectors, count, among=rows)
            results = zip(closest, scores)
        for own, (rows_of_sentence, values) in zip(lists, results):
            own[way] = _ranks(rows_of_sentence, values)
    if rank != ALL:
        weights = {**dict.fromkeys(WAYS, 0.0), rank: 1.0}
    empty = np.zeros(0, np.int64)
    if rank == ALL:
        for number, own in enumerate(lists):
            _complete(index, own, vectors[number], captions if captions is None else captions[number], hidden)
    return [Ranked(empty, own, first, units).fused(weights) for own, first in zip(lists, whole)]


def _complete(index, lists: dict[str, Entries], vector, caption_vector, hidden: Collection[str]) -> None:
    """Adds to the lists of cosines the rows that only other lists hold, with their values, behind all others."""
    together = set(itertools.chain(*lists.values()))
    for way, entries in lists.items():
        rows = np.array(sorted(together - entries.keys()), np.int64)
        if way == WORDS or not len(rows) or not entries:
            continue
        if way == TEXTS and index.captions is not None:
            values = index.captions.values(caption_vector, rows, hidden)
        else:
            embeddings = index.vectors_of(rows)
            values = np.where(embeddings.any(axis=1), embeddings @ vector, -np.inf)
        order = np.lexsort((rows, -values))
        order = order[np.isfinite(values[order])]
        added = zip(rows[order].tolist(), values[order].tolist())
        entries |= {row: (rank, value) for rank, (row, value) in enumerate(added, start=len(entries) + 1)}


def units_of(index) -> dict[str, float]:
    """Returns how much cosines differ in an index, which is measured once: of its pictures with a few sentences, which
    the model's `Fingerprint` holds; of its captions, or texts, with each other.
    """
    cached = getattr(index, "_units", None)
    if cached is None or cached[0] is not index.captions:
        vectors = index.vectors_of(spread(np.arange(len(index)), SAMPLE))
        vectors = vectors[np.any(vectors, axis=1)]
        picture_unit = float((index.model.of_texts @ vectors.T).std(axis=1).mean()) if len(vectors) else 0.0
        without = USUAL if index.kind == IMAGES else _unit(vectors)  # pictures without captions: no texts to compare
        text_unit = index.captions.unit if index.captions is not None else without
        cached = index.captions, {PICTURES: max(picture_unit, 1e-3), TEXTS: text_unit}
        index._units = cached
    return cached[1]


def vectors_at(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns chosen rows, int64 [K], of a matrix as float32 [K, D]; few pages of a mapped file are in memory."""
    vectors = np.empty((len(rows), matrix.shape[1]), np.float32)
    for begin in range(0, len(rows), SCATTERED):
        part = slice(begin, begin + SCATTERED)
        vectors[part] = top_k.as_float32(matrix[rows[part]])
        release_pages(matrix)
    return vectors


def spread(numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns at most `count` of the numbers, evenly spread."""
    return numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), count), dtype=np.int64)]


def _unit(vectors: np.ndarray, others: np.ndarray | None = None) -> float:
    """Returns the standard deviation of the products of vectors with others, except products with themselves.

    Of few vectors it is little known, and drawn to `USUAL`.
    """
    products = vectors @ (vectors if others is None else others).T
    variance = products[~np.eye(len(vectors), dtype=bool)].var() if len(vectors) > 1 else 0.0
    return float(np.sqrt((len(vectors) * variance + SURE * USUAL**2) / (len(vectors) + SURE)))


def _ranks(rows: np.ndarray, values: np.ndarray) -> Entries:
    return {row: (rank, value) for rank, (row, value) in enumerate(zip(rows.tolist(), values.tolist()), start=1)}
