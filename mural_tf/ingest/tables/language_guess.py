"""The languages of captions that do not say theirs, guessed with lingua.

Alone, a caption of two words is guessed wrong in a third of cases. So what languages a column holds, and how much of
each, is estimated from many of its captions at once (expectation maximisation over lingua's probabilities), and a
caption is then only asked which of these it is in.
"""

from __future__ import annotations

from collections.abc import Sequence

from mural_tf.errors import UserError

SAMPLE = 300  # captions from which the languages of a column are estimated
ROUNDS = 30
LEAST = 0.05  # share of a column's captions: languages with less are taken for mistakes


class Guess:
    """The languages of a column.

    Attributes:
      shares: BCP 47 tag -> estimated share of the captions, the largest first.
    """

    def __init__(self, texts: Sequence[str]):
        """Estimates the languages of texts; raises `UserError` if lingua is not installed."""
        self.shares = _shares(_probabilities(_detector(()), texts[:: max(1, len(texts) // SAMPLE)]))
        self._few = _detector(tuple(self.shares)) if len(self.shares) > 1 else None

    def __call__(self, text: str) -> str:
        """Returns the BCP 47 tag of the likeliest language."""
        if self._few is None:
            return next(iter(self.shares), "und")
        (probabilities,) = _probabilities(self._few, [text])
        return max(self.shares, key=lambda tag: probabilities.get(tag, 0.0) * self.shares[tag])

    def describe(self) -> str:
        """Returns the languages in words."""
        return "guessed: " + ", ".join(f"{tag} {share:.0%}" for tag, share in self.shares.items())


def language_named(name: str) -> str:
    """Returns the BCP 47 tag of a language by its English name, "" if lingua is not there or does not know it."""
    try:
        import lingua
    except ImportError:
        return ""
    return next((_tag(one) for one in lingua.Language.all() if one.name.casefold() == name.casefold()), "")


def _detector(tags: Sequence[str]):
    try:
        import lingua
    except ImportError:
        raise UserError(
            "Captions do not say their language: give --language=de for all of them, name their column with "
            "--columns=language=NAME, or let it be guessed: pip install lingua-language-detector."
        ) from None
    if not tags:
        return lingua.LanguageDetectorBuilder.from_all_languages().build()
    languages = [one for one in lingua.Language.all() if _tag(one) in tags]
    return lingua.LanguageDetectorBuilder.from_languages(*languages).build()


def _tag(language) -> str:
    return language.iso_code_639_1.name.lower()


def _probabilities(detector, texts: Sequence[str]) -> list[dict[str, float]]:
    """Returns of each text tag -> probability, of all languages alike beforehand."""
    found = []
    for text in texts:
        values = detector.compute_language_confidence_values(text)
        found.append({_tag(one.language): one.value for one in values})
    return found


def _shares(probabilities: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns tag -> share of the texts, by expectation maximisation; languages below `LEAST` are left out."""
    tags = sorted({tag for of_text in probabilities for tag in of_text})
    shares = dict.fromkeys(tags, 1 / max(1, len(tags)))
    for _ in range(ROUNDS):
        counts = dict.fromkeys(tags, 0.0)
        for of_text in probabilities:
            joint = {tag: shares[tag] * value for tag, value in of_text.items()}
            total = sum(joint.values())
            for tag, value in joint.items() if total else ():
                counts[tag] += value / total
        total = sum(counts.values()) or 1.0
        shares = {tag: count / total for tag, count in counts.items()}
    kept = {tag: share for tag, share in shares.items() if share >= LEAST}
    return dict(sorted(kept.items(), key=lambda item: -item[1]))
