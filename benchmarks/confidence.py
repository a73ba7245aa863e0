"""Answers that know when they do not know: the share of right answers by language, at one raw cosine and calibrated.

    python -m benchmarks.confidence --model=WORKDIR --data_dir=data/emoji_core --least_precision=0.6

The pictures of the split test are the index, the captions of dev are learnt from, and those of test are asked. "raw" is
the cosine from which the first answers to the English captions of test have that precision (it is chosen on test, and
needs to know what is English). Noise and texts of scripts that no caption has are asked, too.
"""

from __future__ import annotations

import unicodedata

import numpy as np

from mural_tf import cli
from mural_tf.search import confidence
from mural_tf.search.build import index_in_memory
from mural_tf.search.collect import find
from mural_tf.search.items import IMAGES

STRINGS = 200  # of each kind of noise
LATIN, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
SCRIPTS = {"Cyrillic": (0x430, 0x44F), "Han": (0x4E00, 0x9FA5), "Ethiopic": (0x1200, 0x1357), "Tamil": (0xB85, 0xBB9),
           "Greek": (0x3B1, 0x3C9), "Arabic": (0x621, 0x64A), "Devanagari": (0x905, 0x939)}  # fmt: skip


def noise() -> dict[str, list[str]]:
    """Returns kind -> strings; none is made as `confidence.noise_like` makes those that are learnt from."""
    random = np.random.default_rng(5)

    def words(letters: str, least: int, most: int, count: int) -> list[str]:
        sizes = random.integers(least, most + 1, count * STRINGS)
        drawn = ["".join(random.choice(list(letters), size)) for size in sizes]
        return [" ".join(drawn[place::STRINGS]) for place in range(STRINGS)]

    found = {"random letters": words(LATIN, 3, 12, 2), "digits": words(DIGITS, 2, 9, 2)}
    found["one letter"] = [letter * size for size in range(3, 11) for letter in LATIN]
    found["hexadecimal"] = words(DIGITS + LATIN[:6], 8, 32, 1)
    found["punctuation"] = words("!?#%&*()-_=+[]{};:,.<>/|~", 2, 12, 1)
    for name, (first, last) in SCRIPTS.items():
        letters = "".join(c for c in map(chr, range(first, last + 1)) if unicodedata.category(c)[0] == "L")
        found[f"random {name}"] = words(letters, 2, 8, 2)
    return found


def threshold(values, right, precision: float) -> float:
    """Returns the smallest value from which so large a share is right; infinity if there is none."""
    order = np.argsort(-values, kind="stable")
    shares = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    enough = np.flatnonzero(shares >= precision)
    return float(values[order][enough[-1]]) if len(enough) else float("inf")


def report(pictures, index, embedder, least: float) -> None:
    """Fits, asks everything and prints the tables."""
    fitted = confidence.learn(index, embedder, pictures)
    captions = [(language, text, row) for row, item in enumerate(index.table) for language, text in item.captions]
    languages, texts, rows = (np.array(part) for part in zip(*captions))
    texts = texts.tolist()
    asked, first = confidence.ask(index, texts, embedder.encode_text(texts, progress=False))
    right = (first == rows).astype(float)
    sure = fitted.judge(asked)
    probability = np.array([one.probability for one in sure])
    english = languages == "en"
    bound = threshold(asked.found[english, 0], right[english], least)
    ways = {
        "raw cosine": asked.found[:, 0] >= bound,
        "probability": probability >= least,
        "precision": np.array([one.reaches(least) for one in sure]),
    }
    print(f"Learnt from {fitted.captions:,} captions of {fitted.images}, asked {len(texts):,}; kept and share right:")
    print(f"{'':8}{'right of all':>14}" + "".join(f"{name:>20}" for name in ways))
    for language in [*dict.fromkeys(languages.tolist()), "all"]:
        own = np.ones(len(texts), bool) if language == "all" else languages == language
        cells = [f"{int((kept & own).sum()):>12,} {_share(right[kept & own])}" for kept in ways.values()]
        print(f"{language:8}{_share(right[own]):>14}" + "".join(f"{cell:>20}" for cell in cells))
    for name, strings in noise().items():
        answers, _ = confidence.ask(index, strings, embedder.encode_text(strings, progress=False))
        refused = np.mean([not one.reaches(least) for one in fitted.judge(answers)])
        print(f"{name:24} {refused:.3f} refused, at the raw cosine {np.mean(answers.found[:, 0] < bound):.3f}")


def _share(right) -> str:
    return f"{right.mean():.3f}" if len(right) else "  –  "


def main(_) -> None:
    from mural_tf.loading import load

    embedder = load(FLAG["model"].value)
    indexes = [index_in_memory(embedder, find(IMAGES, [FLAG["data_dir"].value], split)) for split in ("dev", "test")]
    report(*indexes, embedder, FLAG["least_precision"].value)


if __name__ == "__main__":
    FLAG = cli.define(
        model=(None, "Workdir or export.", cli.place),
        data_dir=(None, "Folder of the data set: dev to learn from, test to index and ask.", cli.place),
        least_precision=(0.6, "Share of right answers that is demanded."),
    )
    cli.run(main)
