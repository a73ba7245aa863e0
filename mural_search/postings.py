"""The words of an index in memory: lengths and owners of its texts, with which BM25 needs no question per text.

FTS5's own `bm25()` reads the length of each text that holds a trigram by a query of its own, 2.5 µs per text. With the
lengths at hand the lists of texts are read as a whole, 0.2 µs per text, and NumPy adds up the same numbers in the same
order: https://www.sqlite.org/fts5.html#the_bm25_function with k1 = 1.2 and b = 0.75.

A server keeps them, see `codes.py`; reading them takes a tenth of a second per 100,000 items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

# BM25's parameters in FTS5: K1 says how soon a repeated trigram counts no more, B how much long texts are held back.
K1 = 1.2
B = 0.75
LEAST_IDF = 1e-6  # FTS5's, of a trigram of half the texts or more
PAIR = np.dtype((np.int64, 2))
LISTS = "temp.trigram_lists"
KEPT = 2**21  # numbers of texts in the lists of trigrams that stay in memory, of 6 bytes each


class Postings:
    """The lengths and items of the texts that the table `words` holds, see `database.documents`.

    Texts are numbered in the order of their rowids, which are never used again and so may be far higher than N.

    Args:
      ask: `ItemTable.each`: yields the rows of a query, given the query and its values.
      ids: int64 [N] rising, the items' ids.
      schema: the database of the table `words`, for SQLite: "main" or "temp".

    Raises `TypeError` or `ValueError` for a damaged table.
    """

    def __init__(self, ask: Callable[..., Iterator[tuple]], ids: np.ndarray, schema: str = "main"):
        self._ask = ask
        self._ids = ids
        self._lists: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        creation = f"CREATE VIRTUAL TABLE IF NOT EXISTS {LISTS} USING fts5vocab({schema}, words, instance)"
        list(ask(creation))  # a query runs when its rows are read
        stored_lengths = ask("SELECT id, sz FROM words_docsize ORDER BY id")
        decoded = ((rowid, _varint(length)) for rowid, length in stored_lengths)
        texts = np.fromiter(decoded, PAIR)  # int64 [T, 2]: rowid, number of trigrams
        lengths = texts[:, 1]
        self._rowids = np.ascontiguousarray(texts[:, 0])  # int64 [T] rising
        self._lengths = lengths.astype(np.int32)
        self._mean_length = lengths.sum() / max(1, len(lengths))
        self._rows = np.full(len(lengths), -1, np.int32)  # the row of each text's item; -1 without an item
        # In `words` a caption's rowid is even, twice its id in `texts`, and the rowid of an item's name and fields is
        # odd, twice the item's id plus 1, because the two kinds of ids would otherwise collide.
        captions = np.fromiter(ask("SELECT 2 * id, item FROM texts"), PAIR)  # int64 [C, 2]: rowid, id of its item
        self._set_owners(captions[:, 0], captions[:, 1])
        self._set_owners(2 * ids + 1, ids)

    def _set_owners(self, rowids: np.ndarray, owners: np.ndarray) -> None:
        """Sets the rows of texts' items in `_rows`, given int64 [K] rowids of texts and int64 [K] ids of their items.

        Texts that `words` lacks, and items that `ids` lacks, are passed over.
        """
        is_known = np.isin(rowids, self._rowids) & np.isin(owners, self._ids)
        texts = np.searchsorted(self._rowids, rowids[is_known])
        self._rows[texts] = np.searchsorted(self._ids, owners[is_known])

    def best(self, grams: Sequence[str], count: int, allowed: np.ndarray | None) -> Iterable[tuple[int, float]]:
        """Returns (item id, BM25 of its best text) for the `count` items with the best texts for trigrams, best first.

        Args:
          grams: the different trigrams of a question.
          count: how many items to return at most.
          allowed: bool [N], the rows of the items that may be found; None for all.
        """
        scores = self._bm25(grams)
        texts = np.flatnonzero(scores)
        texts = texts[self._rows[texts] >= 0]
        if allowed is not None:
            texts = texts[allowed[self._rows[texts]]]
        texts = self._without_worse(texts, scores[texts], count)
        texts = texts[np.lexsort((texts, -scores[texts]))]
        rows = self._rows[texts]
        _, firsts = np.unique(rows, return_index=True)  # an item's first text is its best
        firsts = np.sort(firsts)[:count]
        return zip(self._ids[rows[firsts]].tolist(), scores[texts[firsts]].tolist())

    def _without_worse(self, texts: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
        """Returns the texts, int64 [K], that score at least as much as the best text of the `count`-th best item.

        The few that stay are sorted sooner. `scores`: the texts' BM25, float64 [K].
        """
        rows = self._rows[texts]
        best_scores = np.zeros(1 + rows.max(initial=0))  # by row
        np.maximum.at(best_scores, rows, scores)
        if count >= len(best_scores):
            return texts
        least = np.partition(best_scores, -count)[-count]
        return texts[scores >= least]

    def _bm25(self, grams: Sequence[str]) -> np.ndarray:
        """Returns the BM25 of all texts for trigrams, float64 [T]; 0 for texts without any of the trigrams."""
        scores = np.zeros(len(self._rows))
        for gram in grams:
            texts, counts = self._texts_with(gram)
            idf = max(np.log((len(self._rows) - len(texts) + 0.5) / (len(texts) + 0.5)), LEAST_IDF)
            damped = K1 * (1.0 - B + B * self._lengths[texts] / self._mean_length)
            counts = counts.astype(np.float64)
            scores[texts] += idf * (counts * (K1 + 1.0) / (counts + damped))
        return scores

    def _texts_with(self, gram: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (the numbers of the texts that hold a trigram, int32 [K] rising, how often each does, uint16 [K]).

        The lists of trigrams that were read last stay in memory, `KEPT` numbers at most.
        """
        if gram not in self._lists:
            ((joined,),) = self._ask(f"SELECT group_concat(doc, ' ') FROM {LISTS} WHERE term = ?", (gram,))
            rowids = np.fromstring(joined or "", np.int64, sep=" ")  # each as often as its text holds the trigram
            texts = np.searchsorted(self._rowids, rowids).astype(np.int32)
            firsts = np.flatnonzero(np.diff(texts, prepend=-1))
            counts = np.diff(firsts, append=len(texts))
            self._lists[gram] = texts[firsts], np.minimum(counts, 2**16 - 1).astype(np.uint16)
        while len(self._lists) > 1 and sum(len(texts) for texts, _ in self._lists.values()) > KEPT:
            oldest = next(iter(self._lists))  # a dictionary keeps the order in which its keys came
            del self._lists[oldest]
        return self._lists[gram]


def _varint(data: bytes) -> int:
    """Returns the number that SQLite's varint at the start of `data` holds.

    Each byte holds 7 bits of it, the highest first; the last byte is below 128.
    """
    number = 0
    for byte in data:
        number = (number << 7) | (byte & 127)
        if byte < 128:
            break
    return number
