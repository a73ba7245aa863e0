"""Vocabularies learned from texts or from counts of words, by Hugging Face's package: word pieces and byte pairs.

MURAL builds its 250k word pieces with the word-piece tool of `tensorflow_text` ([MURAL] §3.2), which is pure Python and
tries every substring of every word again for each threshold. Here WordPiece merges pairs: for 100,000 pieces of a
million words in a seventh of the time, with 8% fewer pieces per word (docs/results/vocabulary_builders.csv).
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mural_lite.errors import UserError
from mural_tf.text.byte_pair import written_in_bytes
from mural_tf.text.byte_words import byte_characters
from mural_tf.text.vocabulary_file import RESERVED_TOKENS, SUFFIX_INDICATOR
from mural_tf.text.words import count_words, most_frequent

BUILDERS = ("tokenizers", "byte_pair")
MOST_OCCURRENCES = 100_000_000  # words that the learner is given


def build_vocabulary(
    texts: Iterable[str],
    size: int,
    builder: str = "tokenizers",
    lower_case: bool = False,
    strip_accents: bool = False,
) -> list[str]:
    """Returns the pieces learned from texts; the same texts and settings give the same list.

    Args:
      texts: the texts, which are read once, so that they may be a generator.
      size, builder: as in `learn_vocabulary`, and so is what it raises.
      lower_case, strip_accents: as in `clean_text`; give the tokenizer the same values.
    """
    _check_request(size, builder)
    return learn_vocabulary(count_words(texts, lower_case, strip_accents), size, builder)


def learn_vocabulary(counts: Mapping[str, int], size: int, builder: str = "tokenizers") -> list[str]:
    """Returns the pieces learned from words and how often they occur; the same counts give the same list.

    Word pieces have the most frequent characters: a sixth of `size`, or in small vocabularies up to 1,000 characters
    but no more than a third of `size`, because a character can cost two pieces, with and without "##". Rarer
    characters, mostly Chinese, become [UNK].

    Args:
      counts: {word: count}, as `count_words` returns them.
      size: the most pieces, `RESERVED_TOKENS` included, which come first, so that [PAD] is 0.
      builder: "tokenizers"; "byte_pair" learns byte-level pieces, see `byte_pair.py`.

    Raises:
      UserError: unknown builder, a size without room for characters, no words, or the `tokenizers` package is missing.
    """
    _check_request(size, builder)
    if not counts:
        raise UserError("The texts to build the vocabulary from hold no words.")
    if builder == "byte_pair":
        return _learn_byte_pairs(counts, size)
    max_characters = max(size // 6, min(1000, (size - len(RESERVED_TOKENS)) // 3))
    return _learn_word_pieces(counts, size, max_characters)


def _check_request(size: int, builder: str) -> None:
    """Raises `UserError` for an unknown builder, or a number of pieces that leaves no room for characters."""
    if builder == "sentence_pieces":
        raise UserError(
            "vocabulary.builder=sentence_pieces: they are not learned here; name a SentencePiece model or a "
            "tokenizer.json with --config.vocabulary.file=…."
        )
    if builder not in BUILDERS:
        raise UserError(f"Unknown vocabulary builder {builder!r}: expected one of {', '.join(BUILDERS)}.")
    least = len(RESERVED_TOKENS) + 3  # a third of the others is for characters: one
    if size < least:
        raise UserError(
            f"A vocabulary of {size} pieces has no room: {len(RESERVED_TOKENS)} are reserved "
            f"({', '.join(RESERVED_TOKENS)}); ask for {least} at least."
        )


def _learn_word_pieces(counts: dict[str, int], size: int, max_characters: int) -> list[str]:
    """Returns word pieces learned from {word: count}, made of only the `max_characters` most frequent characters."""
    tokenizers = _tokenizers_package()
    occurrences = collections.Counter()
    for word, count in counts.items():
        for character in word:
            occurrences[character] += count
    alphabet = set(most_frequent(occurrences, max_characters))
    words = [(word, count) for word, count in sorted(counts.items()) if alphabet.issuperset(word)]
    continuing = set()
    for word, _ in words:
        continuing.update(SUFFIX_INDICATOR + character for character in word[1:])
    # The trainer numbers single characters as its threads meet them, and equal counts are decided by number. Naming
    # them as special pieces fixes their order: without this, every run gives another vocabulary.
    special = [*RESERVED_TOKENS, *sorted(alphabet), *sorted(continuing)]
    # Above MOST_OCCURRENCES all counts are scaled down, which leaves the merges' order nearly as it is.
    total = sum(count for _, count in words)
    if total > MOST_OCCURRENCES:
        words = [(word, round(count * (MOST_OCCURRENCES / total))) for word, count in words]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=special, continuing_subword_prefix=SUFFIX_INDICATOR, show_progress=False
    )
    return _train(tokenizers, tokenizers.models.WordPiece(), trainer, words)


def _learn_byte_pairs(counts: Mapping[str, int], size: int) -> list[str]:
    """Returns byte-level pieces learned from {word: count}; raises `UserError` for a size below all single bytes."""
    special = [*RESERVED_TOKENS, *byte_characters()]  # named, the bytes have the same numbers in every run
    if size < len(special):
        raise UserError(
            f"A byte-pair vocabulary of {size} pieces has no room for the {len(special)} special pieces and bytes."
        )
    tokenizers = _tokenizers_package()
    words = []
    for word, count in sorted(counts.items()):
        words += [(part, count) for part in written_in_bytes(word)]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    return _train(tokenizers, tokenizers.models.BPE(), trainer, words)


def _tokenizers_package():
    """Imports and returns Hugging Face's module `tokenizers`; raises `UserError` if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise UserError("Learning a vocabulary needs a package that is missing: pip install tokenizers.") from None
    return tokenizers


def _train(tokenizers, model, trainer, words: Sequence[tuple[str, int]]) -> list[str]:
    """Trains a model of the `tokenizers` package on (word, count) pairs and returns its pieces, sorted by id."""
    learner = tokenizers.Tokenizer(model)
    learner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # the words are split already
    learner.train_from_iterator(_written_out(words), trainer)
    vocabulary = learner.get_vocab()
    return sorted(vocabulary, key=vocabulary.get)


def _written_out(words: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yields texts that repeat a word up to 1,000 times, `count` times in all: the trainer takes no counts."""
    for word, count in words:
        for start in range(0, count, 1000):
            yield " ".join([word] * min(1000, count - start))
