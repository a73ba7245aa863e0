"""When nothing fits: a question that finds no more than strings that mean nothing.

There is always a closest item, for letters that mean nothing, too. So such strings ask an index once (`measure_noise`),
and what most of them find is kept with it, for each way of the ranking. A match as a whole, an exact title or an
article number, fits always.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from mural_lite.errors import UserError
from mural_lite.fingerprint import TEXTS as PROBES
from mural_search import ranking
from mural_search.ranking import ALL, PICTURES, QUESTIONS, TEXTS, WORDS, Ranked, prompt_of

MOST_CAPTIONS = 2000  # of an index, whose letters make the strings
STRINGS = 64  # that ask
SHARES = {PICTURES: 0.75, TEXTS: 0.75, WORDS: 1.0}  # of the strings that find no more than a question nothing fits
CHANGED = 0.1  # share of an index that may change before its noise level is dropped


@dataclasses.dataclass
class NoiseLevel:
    """What strings that mean nothing find, in an index of `count` items: the value that most stay below, by way."""

    count: int
    levels: dict[str, float]

    def nothing_fits(self, ranked: Ranked) -> bool:
        """Whether no way finds more for a question than noise does."""
        if is_whole(ranked):
            return False
        return all(value <= self.levels.get(way, 0.0) for way, value in best_values(ranked).items())


def best_values(ranked: Ranked) -> dict[str, float]:
    """Returns the best value in the list of each way that found anything."""
    return {way: max(value for _, value in entries.values()) for way, entries in ranked.lists.items() if entries}


def is_whole(ranked: Ranked) -> bool:
    """Whether a caption, the name or a value of the first answer is the whole sentence."""
    return len(ranked.rows) > 0 and int(ranked.rows[0]) in ranked.whole


def measure_noise(index, embedder) -> NoiseLevel:
    """Asks an index with strings that mean nothing: its captions, or texts of any model, in disorder."""
    captions = list(itertools.islice((text for item in index.table for _, text in item.captions), MOST_CAPTIONS))
    noise = noise_like(captions or PROBES[:-1], STRINGS)
    best = [best_values(ranked) for ranked in _ask(index, embedder, noise)]
    levels = {}
    for way, share in SHARES.items():
        if values := [values_of[way] for values_of in best if way in values_of]:
            levels[way] = float(np.quantile(values, share))
    return NoiseLevel(len(index), levels)


def _ask(index, embedder, texts: Sequence[str]) -> list[Ranked]:
    """Returns the results of an index for sentences."""
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


def from_meta(values: Mapping, count: int) -> NoiseLevel | None:
    """Returns the noise level that an index keeps, {"count", "levels"}; None if it was of an index of another size.

    Raises `UserError` if it is damaged.
    """
    try:
        level = NoiseLevel(int(values["count"]), {way: float(value) for way, value in values["levels"].items()})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"The noise level is damaged ({error}): delete the index and make it again.") from None
    return level if abs(count - level.count) <= CHANGED * level.count else None
