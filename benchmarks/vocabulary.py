"""How many word pieces each builder learns from how much text, in what time and memory.

    pip install wordfreq
    python benchmarks/vocabulary.py                                                  # two minutes
    python benchmarks/vocabulary.py --words 1e7 1e8 1e9 --sizes 30000 100000 250000    # hours: a quiet machine

The text is simulated from real word frequencies: wordfreq's lists of about 43 languages, each with an equal share of
`words` running words. A word of frequency f occurs round(f * words of its language) times, not at all below a half.
The lists end at one in a hundred million words: from about 1e9 words in all on, real text would have more rare ones.

Every row runs in a process of its own. Seconds are of processor time, in learning alone (`--counting` measures the
counting before it); peak memory is the process's, TensorFlow included; the last columns are word pieces per running
and per distinct word, fewer is better, and the share of running words with [UNK].
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import multiprocessing
import pathlib
import random
import resource
import sys
import tempfile
import time

import numpy as np


def simulated_counts(words: float) -> dict[str, dict[str, int]]:
    """Returns {language: {word: count}} of a text of `words` running words."""
    import wordfreq

    languages = wordfreq.available_languages("best")
    share = words / len(languages)
    wordlist = "small" if share < 5e5 else "best"  # the small lists end at one in a million
    counts = {}
    for language in sorted(languages):
        frequencies = wordfreq.get_frequency_dict(language, wordlist)
        rounded = ((word, round(f * share)) for word, f in frequencies.items())
        counts[language] = {word: count for word, count in rounded if count}
    return counts


def words_of_the_tokenizer(counts: dict[str, dict[str, int]]):
    """Splits the lists' words as the tokenizer does, and adds up the languages."""
    import tensorflow as tf

    from mural_tf.text.words import clean_text, split_words

    sums = collections.Counter()
    for of_language in counts.values():
        listed = list(of_language)
        for first in range(0, len(listed), 100_000):
            part = listed[first : first + 100_000]
            split = split_words(clean_text(tf.constant(part))).to_list()
            for word, pieces in zip(part, split):
                for piece in pieces:
                    sums[piece.decode("utf-8")] += of_language[word]
    return sums


def prepare(words: float, path: pathlib.Path, results) -> None:
    """Writes the counts, so that the lists are in no measured process's memory."""
    path.write_text(json.dumps(words_of_the_tokenizer(simulated_counts(words))))
    results.put(True)


def measure_learning(path: pathlib.Path, size: int, builder: str, results) -> None:
    from mural_tf.text.learning import learn_vocabulary
    from mural_tf.text.word_pieces import WordPieceTokenizer

    counts = json.loads(path.read_text())
    start = time.process_time()
    pieces = learn_vocabulary(counts, size, builder)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB -> GiB on Linux
    weights = np.array(list(counts.values()), np.float64) / sum(counts.values())
    tokens = WordPieceTokenizer(pieces).tokenize(list(counts)).merge_dims(1, -1)
    lengths = tokens.row_lengths().numpy()
    unknown = np.maximum.reduceat(tokens.values.numpy() == pieces.index("[UNK]"), tokens.row_starts().numpy())
    results.put((len(counts), len(pieces), seconds, peak, lengths @ weights, lengths.mean(), unknown @ weights))


def measure_counting(words: float, workers: int, results) -> None:
    """Counts a TSV of text pairs drawn from the lists, through the converter's reader."""
    from mural_tf.ingest.build_vocabulary import count_sources
    from mural_tf.ingest.convert import KINDS
    from mural_tf.ingest.source import Settings, parse_source

    draw = random.Random(0)
    counts = simulated_counts(1e7)
    lists = [(list(c), list(c.values())) for c in counts.values()]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "pairs.tsv"
        with open(path, "w", encoding="utf-8") as file:
            for _ in range(int(words) // 20):
                texts = (" ".join(draw.choices(*draw.choice(lists), k=10)) for _ in range(2))
                file.write("\t".join(texts) + "\n")
        source = parse_source(f"pairs:{path},language_b=de", KINDS)
        start = time.perf_counter()
        found, _ = count_sources([source], Settings(workers=workers), pathlib.Path(folder), progress=False)
        seconds = time.perf_counter() - start
    results.put((sum(found.totals.values()), seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))


def in_own_process(function, *arguments):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=function, args=(*arguments, results))
    process.start()
    while process.is_alive() and results.empty():
        time.sleep(0.2)
    found = results.get() if not results.empty() else None
    process.join()
    return found


def row(found, size: int) -> str:
    if found is None:
        return f"{size:18d}  failed, most likely for want of memory"
    distinct, learned, seconds, peak, running, per_distinct, unknown = found
    numbers = f"{distinct:9d} {size:8d} {learned:8d} {seconds:8.1f} {peak:7.2f}"
    return f"{numbers} {running:9.2f} {per_distinct:13.2f} {unknown:6.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=float, nargs="+", default=[1e6, 1e7], help="running words of the texts")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8_000, 30_000])
    parser.add_argument("--builders", nargs="+", default=["tokenizers", "tensorflow_text"])
    parser.add_argument("--counting", type=float, default=0, help="also count so many words, with 0 and 2 workers")
    arguments = parser.parse_args()
    print(
        "builder          words  distinct    asked  learned  seconds     GiB  per word  per distinct  [UNK]", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        for words in arguments.words:
            path = pathlib.Path(folder) / "counts.json"
            in_own_process(prepare, words, path)
            for builder, size in itertools.product(arguments.builders, arguments.sizes):
                print(f"{builder:15} {words:6.0e} {row(in_own_process(measure_learning, path, size, builder), size)}")
                sys.stdout.flush()
    for workers in (0, 2) if arguments.counting else ():
        words, seconds, peak = in_own_process(measure_counting, arguments.counting, workers)
        print(f"counting {words} words with {workers} workers: {seconds:.1f} s, {peak:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
