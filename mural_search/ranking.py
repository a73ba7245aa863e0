"""One ranking of a sentence's results: by pictures, by captions and by words.

    pictures   cosine of the sentence with the picture, by the image-text head
    texts      cosine of the sentence with the item's closest caption, by the text-text head where the model has one
    words      BM25 of the sentence's trigrams in captions, names and fields (`ItemTable.by_words`)

Each way gives the items it finds, and all items that another way finds, a value; an item's score is the weighted sum of
its values, cosines in units of how much cosines differ in this index. So the score is the logarithm of a product of
probabilities: a way that tells items little apart changes little, however sure the others are. An item that a way
cannot judge, because it has no caption or no picture, is as likely there as the mean of the items with a caption or a
picture: it comes before captions that do not fit, and behind a caption that does. An item of which a caption, the name
or a field is the whole question comes before all others.

Captions in the question's own language lie closer to it than better captions in other languages; so each counts by how
much closer it is than the mean of its language (`Captions.means`). The weights were measured (docs/search.md).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Sequence
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

PICTURES = "pictures"
TEXTS = "texts"
WORDS = "words"
ALL = "all"
WAYS = (PICTURES, TEXTS, WORDS)
RANKS = (*WAYS, ALL)
EXACT = "exact"  # a caption, the name or a value is exactly the question, in addition to the ways
HEAD = "text_text"
QUESTIONS = ("query",)  # names that models give to their prompts for questions
CAPTIONS = ("document", "passage", "corpus")  # and for captions
DEPTH = 200  # entries of each list, so that the first pages are of one ranking
SHOWN = 10  # places of a list where it counts as having found an answer
BLOCK = 2**12  # captions compared at a time
VALUES = 2**24  # items' values that are in memory at a time, which limits the questions answered together
SCATTERED = 64  # vectors read at a time that may lie far from each other: each maps a hundred kilobytes around it
SAMPLE = 500  # vectors of which units and means are taken
FEW = 20  # captions with which a language's mean counts half, and the overall mean half
DEFAULT_WEIGHTS = {PICTURES: 0.5, TEXTS: 5.0, WORDS: 16.0}
USUAL = 0.08  # the unit of cosines of captions where few are measured
SURE = 10  # captions with the usual unit that are added to the measured captions


class CannotBeAsked(UserError):
    """A query that this index cannot answer: the caller's mistake, not the server's."""


def prompt_of(embedder, names: Sequence[str]) -> dict[str, str]:
    """Returns {"prompt": name}, an argument of `encode_text`, for the first name that the model has, or {}."""
    for name in names:
        if name in getattr(embedder, "prompts", ()):
            return {"prompt": name}
    return {}


class Captions:
    """Vectors of all captions of an index.

    Attributes:
      vectors: float16 [T, D], in the order of the table's `texts`.
      head: the model's head that encoded them, "" for the head that pictures are compared with.
      codes: a `Codes` of the vectors, where many questions are asked.
    """

    def __init__(self, vectors: np.ndarray, table: ItemTable, head: str):
        self.vectors = vectors
        self.table = table
        self.head = head
        self.codes = None

    @functools.cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """{language: the numbers of its captions, int64 [K] rising}; numbers are rows of `vectors`."""
        return self.table.captions_by_language()

    @functools.cached_property
    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Means of languages less the mean of all, float32 [L, D], and each caption's row in them, int32 [T].

        A language with few captions differs less: `FEW` captions count half.
        """
        overall = self._mean(np.arange(len(self.vectors)))
        means = np.zeros((len(self.numbers), len(overall)), np.float32)
        language_rows = np.zeros(len(self.vectors), np.int32)
        for language_row, numbers in enumerate(self.numbers.values()):
            language_rows[numbers] = language_row
            means[language_row] = (self._mean(numbers) - overall) * len(numbers) / (len(numbers) + FEW)
        return means, language_rows

    def _mean(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the mean vector of a sample of captions, float32 [D]."""
        return vectors_at(self.vectors, spread(numbers, 2 * SAMPLE)).mean(axis=0)  # cheaper than a sample's products

    @functools.cached_property
    def unit(self) -> float:
        """The standard deviation of captions' values, see `search`, when captions are the questions; see `_unit`."""
        sample = spread(np.arange(len(self.vectors)), SAMPLE)
        vectors = vectors_at(self.vectors, sample)
        means, language_rows = self.means
        return _unit(vectors, vectors - means[language_rows[sample]])

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The row of each caption's item, int64 [T] rising."""
        return self.table.caption_rows()

    @functools.cached_property
    def captioned(self) -> np.ndarray:
        """The rows of items that have a caption, int64 [K] rising."""
        return np.unique(self.rows)

    def encode_questions(self, embedder, texts: Sequence[str], vectors: np.ndarray | None = None) -> np.ndarray:
        """Returns the questions' vectors to compare with captions, float32 [Q, D].

        `vectors`: their vectors to compare with pictures, which are returned if captions use the same head.
        """
        if self.head:
            embedder = embedder.with_text_head(self.head)
        elif vectors is not None:
            return vectors
        return embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, QUESTIONS))

    def search(
        self, vectors: np.ndarray, count: int, allowed: np.ndarray | None = None, hidden: Collection[str] = ()
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns for each vector (rows, int64 [K], values, float32 [K]): items by their best captions, best first.

        A value is the cosine with the caption, less the product with its language's row of `means`.

        Args:
          vectors: float32 [Q, D], of questions.
          count: how many items per question.
          allowed: bool [N], the rows that may be found; None for all.
          hidden: languages whose captions are not searched.
        """
        excluded = np.zeros(len(self.rows), bool)
        if allowed is not None:
            excluded = ~allowed[self.rows]
        for language in hidden:
            excluded[self.numbers.get(language, [])] = True
        block_size = max(1, VALUES // len(self.table))
        results = []
        for begin in range(0, len(vectors), block_size):
            block = vectors[begin : begin + block_size]
            for values in self._best_values(block, count, excluded):
                rows = np.arange(len(values))
                if count < len(values):
                    rows = np.argpartition(-values, count)[:count]
                rows = rows[np.isfinite(values[rows])]
                rows = rows[np.lexsort((rows, -values[rows]))]
                results.append((rows, values[rows]))
        return results

    def values(self, vector: np.ndarray, rows: np.ndarray, hidden: Collection[str] = ()) -> np.ndarray:
        """Returns the values of rows, int64 [K], for a vector [D], as `search` does; -inf where no caption counts."""
        means, language_rows = self.means
        first_numbers = np.searchsorted(self.rows, rows)  # a row's captions are adjacent
        end_numbers = np.searchsorted(self.rows, rows, side="right")
        owners = np.repeat(np.arange(len(rows)), end_numbers - first_numbers)  # each caption's index in `rows`
        no_numbers = np.zeros(0, np.int64)  # `np.concatenate` needs an array where there are no rows
        numbers = np.concatenate([no_numbers, *map(np.arange, first_numbers, end_numbers)])
        shifts = means @ vector
        scores = vectors_at(self.vectors, numbers) @ vector - shifts[language_rows[numbers]]
        for language in hidden:
            scores[np.isin(numbers, self.numbers.get(language, []))] = -np.inf
        best = np.full(len(rows), -np.inf, np.float32)
        np.maximum.at(best, owners, scores)
        return best

    def _best_values(self, vectors: np.ndarray, count: int, excluded: np.ndarray) -> np.ndarray:
        """Returns the value of each row's best caption for each vector, float32 [Q, N]; -inf where no caption counts.

        For one vector, the values of rows that are not among the `count` best may be missing.

        `excluded`: bool [T], the captions that do not count. Raises `UserError` for damaged vectors.
        """
        best = np.full((len(vectors), len(self.table)), -np.inf, np.float32)
        means, language_rows = self.means
        shifts = vectors @ means.T  # [Q, L]
        # The largest product with a vector of length 1; the rest is for rounding to float16.
        largest = 1.01 * np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-6
        blocks: Iterable = [slice(begin, begin + BLOCK) for begin in range(0, len(self.rows), BLOCK)]
        if self.codes is not None and len(vectors) == 1:
            caption_shifts = shifts[0, language_rows]
            blocks = [self.codes.candidates_of_items(vectors[0], count, self.rows, caption_shifts, excluded)]
        for block in blocks:
            rows = self.rows[block]
            scores = vectors @ top_k.as_float32(self.vectors[block]).T  # [Q, B]
            if not (np.abs(scores) <= largest).all():  # one flipped bit would be first for every question
                raise UserError("captions.npy is damaged: delete this file, it is made again.")
            scores -= shifts[:, language_rows[block]]
            scores[:, excluded[block]] = -np.inf
            firsts = np.flatnonzero(np.diff(rows, prepend=-1))  # captions of one item are adjacent
            items = rows[firsts]
            best_of_block = np.maximum.reduceat(scores, firsts, axis=1)
            best[:, items] = np.maximum(best[:, items], best_of_block)  # an item may continue in the next block
            release_pages(self.vectors)
        return best


@dataclasses.dataclass(frozen=True)
class Ranked:
    """The results for a sentence, best first.

    Attributes:
      rows: int64 [K].
      lists: {way: {row: (rank from 1, cosine or share)}}, best first; rows that only other ways found are at the end.
      exact_rows: rows of which a caption, name or value is exactly the sentence.
      units: {way: how much its cosines differ}, see `units_of`.
      judged: {way: number of items that have a picture, or a caption, and so a cosine}.
    """

    rows: np.ndarray
    lists: dict[str, Entries]
    exact_rows: frozenset[int] = frozenset()
    units: dict[str, float] = dataclasses.field(default_factory=dict)
    judged: dict[str, int] = dataclasses.field(default_factory=dict)

    def fused(self, weights: dict[str, float]) -> Ranked:
        """Returns the same lists with all their rows as `rows`, ranked by {way: weight}; exact rows come first."""
        every_row = self.exact_rows.union(*self.lists.values())
        rows = np.array(sorted(every_row), np.int64)
        scores = np.zeros(len(rows))
        for way, entries in self.lists.items():
            if entries:
                values = self._values(way, weights[way])
                scores_by_way = np.zeros(len(rows))
                if way != WORDS:
                    scores_by_way += self._neutral(way, values)
                scores_by_way[np.searchsorted(rows, list(entries))] = values
                scores += scores_by_way
        if self.exact_rows:
            is_exact = np.isin(rows, list(self.exact_rows))
            scores += is_exact * (1.0 + np.ptp(scores))  # more than any two scores differ
        return dataclasses.replace(self, rows=rows[np.lexsort((rows, -scores))])

    def _values(self, way: str, weight: float) -> np.ndarray:
        """Returns the weighted values of a way's list in its order, float64 [K], at least 0."""
        values = np.array([value for _, value in self.lists[way].values()], np.float64)
        if way == WORDS:
            return weight * values**2  # a part of a word of another language ("sun" in sungura) tells little
        return weight * (values - values.min()) / self.units[way]

    def _neutral(self, way: str, values: np.ndarray) -> float:
        """Returns the value of an item that a way cannot judge: the logarithm of the mean of exp(value) of the others.

        `values`: of the way's list, float64 [K]; judged items that are not in the list count as exp(value) = 0.
        """
        best = values.max()
        count = max(self.judged.get(way, 0), len(values))
        return best + math.log(np.exp(values - best).sum() / count)

    def found_by(self, row: int) -> dict[str, int]:
        """Returns {way: rank} of a row: the ways with it among their first `SHOWN`, or else the way that ranks it best.

        A row that is exactly the sentence has "exact": 1 as well.
        """
        ranks = {way: entries[row][0] for way, entries in self.lists.items() if row in entries}
        last_rank = max(SHOWN, min(ranks.values(), default=SHOWN))
        ranks = {way: rank for way, rank in ranks.items() if rank <= last_rank}
        if row in self.exact_rows:
            return {EXACT: 1, **ranks}
        return ranks


def resolve(index, rank: str) -> str:
    """Returns the ranking to use, one of `RANKS`: `rank`, or "all" for "".

    Raises `CannotBeAsked` for another text, or for a ranking by captions that the index lacks.
    """
    if rank and rank not in RANKS:
        raise CannotBeAsked(f"rank={rank} is not known; known: {', '.join(RANKS)}.")
    if rank == TEXTS and index.captions is None and index.kind == IMAGES:
        raise CannotBeAsked("rank=texts compares with captions, which this index lacks; take pictures or words.")
    return rank or ALL


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """Returns {way: weight} for the one ranking, from texts such as "pictures=4"; other ways keep their defaults.

    Raises `UserError` for an unknown way, or a weight that cannot be read or is below 0.
    """
    weights = dict(DEFAULT_WEIGHTS)
    for text in texts:
        way, _, value = text.partition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if way not in WAYS or not 0.0 <= weight < math.inf:  # NaN is refused, too
            defaults = ",".join(f"{name}={default}" for name, default in DEFAULT_WEIGHTS.items())
            raise UserError(f"--weights={text}: expected weights from 0 on, such as the defaults {defaults}.")
        weights[way] = weight
    return weights


def needs_vectors(index, rank: str) -> bool:
    """Whether a ranking needs the sentence's vector for pictures; an index of texts compares its texts with it, too."""
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
    weights: dict[str, float] | None = None,
) -> list[Ranked]:
    """Returns the ranked items of an index for each sentence.

    Args:
      sentences: at least a single sentence, each perhaps with -words; "" for an image.
      vectors, captions: the sentences' vectors, [Q, D], as `Index.search` and `Captions.search` take them; None where
        the ranking does not need them.
      count: how many items each way lists.
      filters: see `Index.search`; -words of the sentences are obeyed, too.
      rank: one of `RANKS`. An index of texts has no pictures: without captions the vectors of its texts are compared.
      hidden: languages whose captions are not searched; names and fields then are not, either.
      weights: {way: weight} for the one ranking; None: the index's own.
    """
    texts, unwanted_words = zip(*map(words.split, sentences))
    if len(set(map(tuple, unwanted_words))) > 1:  # one by one, because each sentence excludes other rows
        ranked = []
        for number, sentence in enumerate(sentences):
            its_vector = None if vectors is None else vectors[[number]]
            its_caption_vector = None if captions is None else captions[[number]]
            ranked += rank_all(
                index, [sentence], its_vector, its_caption_vector, count=count, filters=filters, rank=rank,
                hidden=hidden, weights=weights,
            )  # fmt: skip
        return ranked
    ways = _ways(index, rank)
    rows = index.rows(filters, unwanted_words[0])  # the same words for all sentences
    if rows is not None and not len(rows):
        no_result = Ranked(rows, {way: {} for way in ways})
        return [no_result] * len(sentences)
    allowed = None
    if rows is not None:
        allowed = np.zeros(len(index), bool)
        allowed[rows] = True
    wanted = _Wanted(texts, vectors, captions, count, rows, allowed, hidden)
    weights = weights or index.weights
    if rank != ALL:
        weights = {rank: 1.0}
    units = units_of(index)
    judged = _judged(index, allowed)
    ranked = []
    for number, (lists, exact_rows) in enumerate(_search_ways(index, ways, wanted)):
        if rank == ALL:
            caption_vector = None if captions is None else captions[number]
            lists = _with_rows_of_all(index, lists, vectors[number], caption_vector, hidden)
        unsorted = Ranked(np.zeros(0, np.int64), lists, exact_rows, units, judged)
        ranked.append(unsorted.fused(weights))
    return ranked


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """The sentences and vectors that each way searches for, and the rows that may be found.

    Attributes:
      texts: the sentences without their -words.
      vectors, captions, count, hidden: see `rank_all`.
      rows: int64 [K] rising, the rows that may be found; None for all N.
      allowed: the same rows as bool [N]; None for all.
    """

    texts: Sequence[str]
    vectors: np.ndarray | None
    captions: np.ndarray | None
    count: int
    rows: np.ndarray | None
    allowed: np.ndarray | None
    hidden: Collection[str]


def _search_ways(index, ways: Sequence[str], wanted: _Wanted) -> Iterable[tuple[dict[str, Entries], frozenset[int]]]:
    """Returns for each sentence ({way: its list}, the rows that are exactly the sentence, none without `WORDS`)."""
    lists: list[dict[str, Entries]] = [{} for _ in wanted.texts]
    exact = [frozenset()] * len(wanted.texts)
    search_words = functools.partial(_search_words, index.table, wanted)
    if WORDS in ways and index.codes is not None:
        search_words = index.codes.meanwhile(search_words)  # another thread begins now, while this one multiplies
    for way in ways:
        if way == WORDS:
            results, exact = search_words()
        else:
            results = _search_vectors(index, way, wanted)
        for lists_of_sentence, (rows, values) in zip(lists, results):
            lists_of_sentence[way] = _entries(rows, values)
    return zip(lists, exact)


def _search_vectors(index, way: str, wanted: _Wanted) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Returns for each sentence (rows, int64 [K], cosines [K]), best first, by a way that compares vectors."""
    if way == TEXTS and index.captions is not None:
        return index.captions.search(wanted.captions, wanted.count, wanted.allowed, wanted.hidden)
    if way == TEXTS and index.kind == IMAGES:  # an index of pictures without captions has no texts to compare with
        nothing = np.zeros(0, np.int64), np.zeros(0)
        return [nothing] * len(wanted.texts)
    scores, rows = index.search(wanted.vectors, wanted.count, among=wanted.rows)
    return zip(rows, scores)


def _ways(index, rank: str) -> tuple[str, ...]:
    """Returns the ways, of `WAYS`, whose lists a ranking of an index combines."""
    if rank != ALL:
        return (rank,)
    if index.kind == IMAGES:
        return WAYS
    return TEXTS, WORDS


def _judged(index, allowed: np.ndarray | None) -> dict[str, int]:
    """Returns {way: number of items that have a picture, or a caption}; `allowed`: bool [N], the rows to count."""
    if allowed is None:
        allowed = np.ones(len(index), bool)
    pictured = allowed.copy()
    pictured[index.bare] = False
    captioned = allowed
    if index.captions is not None:
        captioned = allowed[index.captions.captioned]
    return {PICTURES: np.count_nonzero(pictured), TEXTS: np.count_nonzero(captioned)}


def _search_words(
    table: ItemTable, wanted: _Wanted
) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[frozenset[int]]]:
    """Returns (each sentence's rows and shares, see `ItemTable.by_words`, each sentence's rows that are exactly it)."""
    results = []
    exact = []
    for text in wanted.texts:
        results.append(table.by_words(text, wanted.count, wanted.allowed, wanted.hidden))
        rows = table.rows_equal_to(text, wanted.hidden)
        if wanted.allowed is not None:
            rows = rows[wanted.allowed[rows]]
        exact.append(frozenset(rows.tolist()))
    return results, exact


def _with_rows_of_all(
    index, lists: dict[str, Entries], vector: np.ndarray, caption_vector: np.ndarray | None, hidden: Collection[str]
) -> dict[str, Entries]:
    """Returns a sentence's lists; each list of cosines also ranks, after its own rows, the rows of the other lists.

    `vector`, `caption_vector`: the sentence's, float32 [D], to compare with pictures and with captions.
    """
    all_rows = set().union(*lists.values())
    completed = dict(lists)
    for way, entries in lists.items():
        rows = np.array(sorted(all_rows - entries.keys()), np.int64)
        if way == WORDS or not len(rows) or not entries:  # no cosines, nothing to add, or no vectors to compare
            continue
        if way == TEXTS and index.captions is not None:
            values = index.captions.values(caption_vector, rows, hidden)
        else:
            embeddings = index.vectors_of(rows)
            values = np.where(embeddings.any(axis=1), embeddings @ vector, -np.inf)  # zeros: no picture
        order = np.lexsort((rows, -values))
        order = order[np.isfinite(values[order])]  # -inf: without a picture or a caption
        completed[way] = entries | _entries(rows[order], values[order], start=len(entries) + 1)
    return completed


def units_of(index) -> dict[str, float]:
    """Returns {way: standard deviation of its cosines in an index}, measured once per index and its captions.

    Pictures are compared with a few sentences, which the model's `Fingerprint` holds; captions, or texts, with each
    other.
    """
    if index.measured_units is None or index.measured_units[0] is not index.captions:
        index.measured_units = index.captions, _measured_units(index)
    _, units = index.measured_units
    return units


def _measured_units(index) -> dict[str, float]:
    """Measures and returns `units_of` an index, by at most `SAMPLE` of its vectors."""
    sample = spread(np.arange(len(index)), SAMPLE)
    vectors = index.vectors_of(sample)
    vectors = vectors[np.any(vectors, axis=1)]
    units = {PICTURES: 1e-3, TEXTS: USUAL}  # the least unit of pictures, and the unit without texts to compare
    if len(vectors):
        cosines = index.model.of_texts @ vectors.T  # [sentences, pictures]
        deviation = cosines.std(axis=1).mean()
        units[PICTURES] = max(units[PICTURES], float(deviation))
    if index.captions is not None:
        units[TEXTS] = index.captions.unit
    elif index.kind != IMAGES:
        units[TEXTS] = _unit(vectors)
    return units


def vectors_at(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns chosen rows, int64 [K], of a matrix as float32 [K, D]; few pages of a mapped file are in memory."""
    vectors = np.empty((len(rows), matrix.shape[1]), np.float32)
    for begin in range(0, len(rows), SCATTERED):
        part = slice(begin, begin + SCATTERED)
        vectors[part] = top_k.as_float32(matrix[rows[part]])
        release_pages(matrix)
    return vectors


def spread(numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns at most `count` of the numbers, int64 [N], evenly spread, two or more from the first to the last."""
    count = min(len(numbers), count)
    return numbers[np.linspace(0, len(numbers) - 1, count, dtype=np.int64)]


def _unit(vectors: np.ndarray, others: np.ndarray | None = None) -> float:
    """Returns the standard deviation of the products of vectors, [N, D], with others, [N, D], by default the same.

    Products of a vector with the other vector in its row do not count. Few vectors say little, so their deviation is
    drawn to `USUAL`.
    """
    if others is None:
        others = vectors
    count = len(vectors)
    products = vectors @ others.T
    variance = 0.0
    if count > 1:
        variance = products[~np.eye(count, dtype=bool)].var()
    return float(np.sqrt((count * variance + SURE * USUAL**2) / (count + SURE)))


def _entries(rows: np.ndarray, values: np.ndarray, start: int = 1) -> Entries:
    """Returns {row: (rank, value)} of rows and their values, best first, with ranks from `start` on."""
    ranks_and_values = enumerate(values.tolist(), start)
    return dict(zip(rows.tolist(), ranks_and_values))
