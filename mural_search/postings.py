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
KEPT = 2**21  # places of trigrams that stay in memory, of 6 bytes each


class Postings:
    """The lengths and owners of the rows of the table `words`, see `database.documents`.

    A row's place is its number in the order of rowids, which are never used again and so may be far more than the rows.

    Args:
      ask: function from a query and its values to rows, one by one.
      ids: int64 [N] rising, the items' ids.
      schema: the schema of the table `words`.

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
        documents = np.fromiter(decoded, PAIR)  # int64 [T, 2]: rowid, number of trigrams
        lengths = documents[:, 1]
        self._rowids = np.ascontiguousarray(documents[:, 0])  # int64 [T] rising
        self._lengths = lengths.astype(np.int32)
        self._text_count = len(lengths)
        self._mean_length = lengths.sum() / max(1, len(lengths))
        self._rows = np.full(len(lengths), -1, np.int32)  # each text's row of its item; -1 without an item
        # In `words` a caption's rowid is even, twice its id in `texts`, and the rowid of an item's name and fields is
        # odd, twice the item's id plus 1, because the two kinds of ids would otherwise collide.
        captions = np.fromiter(ask("SELECT 2 * id, item FROM texts"), PAIR)  # int64 [C, 2]: rowid, id of its item
        self._set_owners(captions[:, 0], captions[:, 1])
        self._set_owners(2 * ids + 1, ids)

    def _set_owners(self, rowids: np.ndarray, owners: np.ndarray) -> None:
        """Notes for texts, int64 [T] rowids, the rows of their items, whose ids are `owners`, int64 [T]."""
        is_known = np.isin(rowids, self._rowids) & np.isin(owners, self._ids)
        indices = np.searchsorted(self._rowids, rowids[is_known])
        self._rows[indices] = np.searchsorted(self._ids, owners[is_known])

    def best(self, grams: Sequence[str], count: int, allowed: np.ndarray | None) -> Iterable[tuple[int, float]]:
        """Returns (item id, BM25 of its best text) for the `count` items with the best texts for trigrams, best first.

        For the arguments see `ItemTable.by_words`.
        """
        scores = self._bm25(grams)
        row_of = self._rows
        texts = np.flatnonzero(scores)
        texts = texts[row_of[texts] >= 0]
        if allowed is not None:
            texts = texts[allowed[row_of[texts]]]
        rows = row_of[texts]
        best = np.zeros(1 + rows.max(initial=0))
        np.maximum.at(best, rows, scores[texts])
        least = 0.0
        if count < len(best):
            least = np.partition(best, -count)[-count]
        texts = texts[scores[texts] >= least]
        texts = texts[np.lexsort((texts, -scores[texts]))]
        _, firsts = np.unique(row_of[texts], return_index=True)  # each item's best text
        texts = texts[np.sort(firsts)[:count]]
        return zip(self._ids[row_of[texts]].tolist(), scores[texts].tolist())

    def _bm25(self, grams: Sequence[str]) -> np.ndarray:
        """Returns the scores of all texts, float64 [T], by place; 0 for texts without any of the trigrams."""
        scores = np.zeros(len(self._rows))
        for gram in grams:
            texts, counts = self._list(gram)
            idf = max(np.log((self._text_count - len(texts) + 0.5) / (len(texts) + 0.5)), LEAST_IDF)
            damped = K1 * (1.0 - B + B * self._lengths[texts] / self._mean_length)
            counts = counts.astype(np.float64)
            scores[texts] += idf * (counts * (K1 + 1.0) / (counts + damped))
        return scores

    def _list(self, gram: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places of the texts that hold a trigram, int32 [T] rising, and how often they do, uint16 [T]."""
        if gram not in self._lists:
            ((joined,),) = self._ask(f"SELECT group_concat(doc, ' ') FROM {LISTS} WHERE term = ?", (gram,))
            texts = np.fromstring(joined or "", np.int64, sep=" ")  # each as often as it holds the trigram
            texts = np.searchsorted(self._rowids, texts).astype(np.int32)
            firsts = np.flatnonzero(np.diff(texts, prepend=-1))
            counts = np.diff(firsts, append=len(texts))
            self._lists[gram] = texts[firsts], np.minimum(counts, 2**16 - 1).astype(np.uint16)
        while len(self._lists) > 1 and sum(len(texts) for texts, _ in self._lists.values()) > KEPT:
            oldest = next(iter(self._lists))
            del self._lists[oldest]
        return self._lists[gram]


def _varint(data: bytes) -> int:
    """Returns SQLite's varint at the start of data: 7 bits per byte, highest first; the high bit says: more follow."""
    value = 0
    for byte in data:
        value = value << 7 | byte & 127
        if byte < 128:
            return value
    return value
