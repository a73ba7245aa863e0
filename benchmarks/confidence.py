"""Answers that know when they do not know: the share of right answers by language, at one raw cosine and calibrated.

    python -m benchmarks.confidence --model=WORKDIR --data_dir=data/emoji_core --least_precision=0.6

The pictures of the split test are the index, the captions of dev are learnt from, and those of test are asked. "raw" is
the cosine from which the first answers to the English captions of test have that precision (it is chosen on test, and
needs to know what is English). Noise and texts of scripts that no caption has are asked, too. --divisions=5 repeats it
with others of all these pictures in place of dev, drawn at random: how much depends on which they are.
"""

from __future__ import annotations

import unicodedata

from mural_tf import cli

STRINGS = 200  # of each kind of noise
LATIN, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
KEYBOARDS = {
    "keyboard": ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    "Cyrillic keyboard": ("йцукенгшщзх", "фывапролджэ", "ячсмитьбю"),
}
SCRIPTS = {
    "Han": (0x4E00, 0x9FA5), "Hiragana": (0x3041, 0x3096), "Ethiopic": (0x1200, 0x1357), "Georgian": (0x10D0, 0x10F0),
    "Khmer": (0x1780, 0x17B3), "Myanmar": (0x1000, 0x102A), "Sinhala": (0xD85, 0xDC6), "Cherokee": (0x13A0, 0x13F4),
    "Tamil": (0xB85, 0xBB9), "Greek": (0x3B1, 0x3C9), "Armenian": (0x561, 0x586), "Hebrew": (0x5D0, 0x5EA),
    "Thai": (0xE01, 0xE2E), "Arabic": (0x621, 0x64A), "Devanagari": (0x905, 0x939),
}  # fmt: skip


def noise() -> dict[str, list[str]]:
    """Returns kind -> strings; none is made as `confidence.noise_like` makes those that are learnt from."""
    import numpy as np

    random = np.random.default_rng(5)

    def word(letters: str, least: int = 3, most: int = 12) -> str:
        return "".join(random.choice(list(letters), random.integers(least, most + 1)))

    def words(letters: str, *lengths: int) -> list[str]:
        return [" ".join(word(letters, *lengths) for _ in range(random.integers(1, 4))) for _ in range(STRINGS)]

    def walk(rows: tuple[str, ...]) -> str:
        """Fingers that go from key to neighbouring key."""
        steps = np.cumsum(random.integers(-1, 2, (random.integers(4, 14), 2)), axis=0) + random.integers(9, size=2)
        return "".join(rows[y % len(rows)][x % len(rows[y % len(rows)])] for y, x in steps)

    found = {"random letters": words(LATIN), "one letter": [word(LATIN, 1, 1) * size for size in range(3, 15)] * 17}
    found |= {"digits": words(DIGITS, 2, 9), "hexadecimal": [word(DIGITS + LATIN[:6], 8, 32) for _ in range(STRINGS)]}
    found["punctuation"] = [word("!?#%&*()-_=+[]{};:,.<>/|~", 2, 12) for _ in range(STRINGS)]
    for name, rows in KEYBOARDS.items():
        found[name] = [" ".join(walk(rows) for _ in range(random.integers(1, 4))) for _ in range(STRINGS)]
    for name, (first, last) in SCRIPTS.items():
        letters = "".join(c for c in map(chr, range(first, last + 1)) if unicodedata.category(c)[0] == "L")
        found[f"random {name}"] = words(letters, 2, 8)
    return found


def divide(indexes: list, division: int) -> list:
    """Returns the pictures to learn from and the index: dev and test, or as many of both, drawn at random."""
    import numpy as np

    from mural_tf.search.index import Index

    if not division:
        return indexes
    first, last = indexes
    items = [index.describe(row) for index in indexes for row in range(len(index))]
    vectors = np.concatenate([first.embeddings, last.embeddings])
    order = np.random.default_rng(division).permutation(len(items))
    parts = order[: len(first)], order[len(first) :]
    return [Index([items[row] for row in rows], vectors[rows], first.model, first.kind) for rows in parts]


def threshold(values, right, precision: float) -> float:
    """Returns the smallest value from which so large a share is right; infinity if there is none."""
    import numpy as np

    order = np.argsort(-values, kind="stable")
    shares = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    enough = np.flatnonzero(shares >= precision)
    return float(values[order][enough[-1]]) if len(enough) else float("inf")


def report(pictures, index, embedder, least: float) -> None:
    """Fits, asks everything and prints the tables."""
    import numpy as np

    from mural_tf.search import confidence

    fitted = confidence.learn(index, embedder, pictures)
    captions = [(language, text, row) for row in range(len(index)) for language, text in index.describe(row).captions]
    languages, texts, rows = (np.array(part) for part in zip(*captions))
    texts = texts.tolist()
    asked, first = confidence.ask(index, texts, embedder.encode_text(texts, progress=False))
    right = (first == rows).astype(float)
    sure = _judge(fitted, asked)
    probability = np.array([one.probability for one in sure])
    english = languages == "en"
    bound = threshold(asked.scores[english, 0], right[english], least)
    ways = {
        "raw cosine": asked.scores[:, 0] >= bound,
        "probability": probability >= least,
        "precision": np.array([one.reaches(least) for one in sure]),
    }
    print(f"Learnt from {fitted.captions:,} captions of {fitted.images}, asked {len(texts):,}; kept and share right:")
    print(f"{'':8}{'right of all':>14}" + "".join(f"{name:>20}" for name in ways))
    for language in [*dict.fromkeys(languages.tolist()), "all"]:
        own = np.ones(len(texts), bool) if language == "all" else languages == language
        cells = [f"{int((kept & own).sum()):>12,} {_share(right[kept & own])}" for kept in ways.values()]
        print(f"{language:8}{_share(right[own]):>14}" + "".join(f"{cell:>20}" for cell in cells))
    kept = [ways[name] for name in ("probability", "precision")]
    said = ", ".join(f"{_share(probability[one])} ({_share(right[one])})" for one in kept)
    print(f"Mean probability of what these two keep, and how many were right: {said}")
    for name, strings in noise().items():
        answers, _ = confidence.ask(index, strings, embedder.encode_text(strings, progress=False))
        refused = np.mean([not one.reaches(least) for one in _judge(fitted, answers)])
        print(f"{name:24} {refused:.3f} refused, at the raw cosine {np.mean(answers.scores[:, 0] < bound):.3f}")


def _judge(fitted, asked):
    """Returns how sure the answers are, judged a thousand sentences at a time."""
    import numpy as np

    blocks = np.array_split(np.arange(len(asked.texts)), -(-len(asked.texts) // 1000))
    return [one for rows in blocks for one in fitted.judge(asked.rows(rows))]


def _share(right) -> str:
    return f"{right.mean():.3f}" if len(right) else "  –  "


def main(_) -> None:
    from mural_tf.loading import load
    from mural_tf.search.build import index_in_memory
    from mural_tf.search.collect import find
    from mural_tf.search.items import IMAGES

    embedder = load(FLAG["model"])
    indexes = [index_in_memory(embedder, find(IMAGES, [FLAG["data_dir"]], split)) for split in ("dev", "test")]
    for division in range(FLAG["divisions"]):
        report(*divide(indexes, division), embedder, FLAG["least_precision"])


if __name__ == "__main__":
    FLAG = cli.define(
        model=(None, "Workdir or export.", cli.place),
        data_dir=(None, "Folder of the data set: dev to learn from, test to index and ask.", cli.place),
        least_precision=(0.6, "Share of right answers that is demanded."),
        divisions=(1, "How often, from the second on with pictures drawn at random.", 1),
    )
    cli.run(main)
