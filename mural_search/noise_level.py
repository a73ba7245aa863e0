"""When nothing fits: a question that finds no more than strings that mean nothing.

There is always a closest item, for letters that mean nothing, too. So such strings ask an index once (`measure_noise`),
and the value that most of them stay below is kept with it, for each way of the ranking. An exact match, for example of
a title or an article number, fits always.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from mural_lite.errors import UserError
from mural_lite.fingerprint import TEXTS as PROBES
from mural_search import ranking
from mural_search.ranking import PICTURES, QUESTIONS, TEXTS, WORDS, Ranked, prompt_of

MOST_CAPTIONS = 2000  # captions of an index whose letters make the strings
STRINGS = 64  # how many strings ask
SHARES = {PICTURES: 0.75, TEXTS: 0.75, WORDS: 1.0}  # of the strings, whose best values stay below the level or on it
CHANGED = 0.1  # share of an index that may change before its noise level is dropped


@dataclasses.dataclass
class NoiseLevel:
    """The values that an index gives to its best items for strings that mean nothing.

    Attributes:
      count: the number of items when it was measured.
      levels: {way of ranking: the value that most of these strings stay below}.
    """

    count: int
    levels: dict[str, float]

    def nothing_fits(self, ranked: Ranked) -> bool:
        """Whether the best values of a question are within the level in every way, and its best item is not exact."""
        if len(ranked.rows) and int(ranked.rows[0]) in ranked.exact_rows:
            return False
        return all(value <= self.levels.get(way, 0.0) for way, value in best_values(ranked).items())


def best_values(ranked: Ranked) -> dict[str, float]:
    """Returns {way: the best cosine or share in its list}, for each way that found anything."""
    best = {}
    for way, entries in ranked.lists.items():
        if entries:
            best[way] = max(value for _, value in entries.values())
    return best


def measure_noise(index, embedder) -> NoiseLevel:
    """Returns the noise level of an index: for each way of ranking the quantile `SHARES` of the strings' best values.

    The strings are captions of the index with their letters in disorder; without captions, texts of `fingerprint`.
    """
    captions = itertools.chain.from_iterable(item.captions for item in index.table)
    texts = [text for _, text in itertools.islice(captions, MOST_CAPTIONS)]
    strings = noise_like(texts or PROBES[:-1], STRINGS)  # the last probe is empty
    values_by_way = collections.defaultdict(list)
    for ranked in _ask(index, embedder, strings):
        for way, value in best_values(ranked).items():
            values_by_way[way].append(value)
    levels = {}
    for way, share in SHARES.items():
        if way in values_by_way:
            levels[way] = float(np.quantile(values_by_way[way], share))
    return NoiseLevel(len(index), levels)


def _ask(index, embedder, texts: Sequence[str]) -> list[Ranked]:
    """Asks an index with texts; returns the ranked items for each text, by all ways together."""
    vectors = embedder.encode_text(list(texts), progress=False, **prompt_of(embedder, QUESTIONS))
    caption_vectors = None if index.captions is None else index.captions.encode_questions(embedder, texts, vectors)
    return ranking.rank_all(index, texts, vectors, caption_vectors)


def noise_like(texts: Sequence[str], count: int) -> list[str]:
    """Returns `count` strings that mean nothing: drawn texts with their letters in disorder, spaces in their places.

    The same texts give the same strings.
    """
    random = np.random.default_rng(0)
    strings = []
    for number in random.integers(len(texts), size=count):
        letters = np.array(list(texts[number].lower()))
        is_letter = [not letter.isspace() for letter in letters]
        letters[is_letter] = random.permutation(letters[is_letter])
        strings.append("".join(letters))
    return strings


def from_meta(values: Mapping, count: int) -> NoiseLevel | None:
    """Returns the noise level that an index stored, or None if the index has over a tenth more or fewer items now.

    Args:
      values: {"count": items, "levels": {way: value}}.
      count: the number of items now.

    Raises `UserError` for damaged values.
    """
    try:
        level = NoiseLevel(int(values["count"]), {way: float(value) for way, value in values["levels"].items()})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"The noise level is damaged ({error}): delete the index and make it again.") from None
    if abs(count - level.count) > CHANGED * level.count:
        return None
    return level
