"""Seconds and memory in which each builder learns word pieces.

    pip install wordfreq
    python -m benchmarks.vocabulary                                                      # two minutes
    python -m benchmarks.vocabulary --words 1e7 1e8 --sizes 30000 100000 250000          # hours: a quiet machine

The text is simulated from real word frequencies: wordfreq's lists of about 43 languages, each with an equal share of
`words` running words. A word of frequency f occurs round(f * words of its language) times, not at all below a half.
Each row is a process of its own; its seconds and memory include TensorFlow's start.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import pathlib
import sys
import tempfile

from benchmarks.convert import measure

LEARN = """
import json, sys
from mural_tf.text.learning import learn_vocabulary
path, size, builder = sys.argv[1:]
learn_vocabulary(json.load(open(path)), int(size), builder)
"""


def simulated_counts(words: float) -> dict[str, int]:
    """Returns {word: count} of a text of `words` running words."""
    import wordfreq

    languages, sums = wordfreq.available_languages("best"), collections.Counter()
    share = words / len(languages)
    wordlist = "small" if share < 5e5 else "best"  # the small lists end at one in a million
    for language in languages:
        for word, frequency in wordfreq.get_frequency_dict(language, wordlist).items():
            if round(frequency * share):
                sums[word] += round(frequency * share)
    return dict(sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=float, nargs="+", default=[1e6, 1e7], help="running words of the texts")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8_000, 30_000])
    parser.add_argument("--builders", nargs="+", default=["tokenizers", "tensorflow_text"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for words in arguments.words:
            path, counts = pathlib.Path(folder, "counts.json"), simulated_counts(words)
            path.write_text(json.dumps(counts))
            for builder, size in itertools.product(arguments.builders, arguments.sizes):
                processor, _, memory = measure([sys.executable, "-c", LEARN, str(path), str(size), builder])
                of = f"{words:6.0e} words, {len(counts):,} different, {size:,} pieces"
                print(f"{builder:15} {of}: {processor:7.1f} processor s {memory:7,.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
