"""Vocabularies learned from texts or from counts of words: word pieces and byte pairs.

MURAL builds its 250k word pieces with the `tensorflow_text` word-piece tool from its training texts ([MURAL] §3.2);
that tool is the default builder. It is pure Python: it lists every substring of every distinct word, once for every
frequency threshold it tries, until the vocabulary has about the size asked for. Its own defaults need ten to twenty
thresholds; `learn_vocabulary` narrows the search and bounds the words. The builders `tokenizers`, WordPiece by merging
pairs, and `byte_pair` are trained by Hugging Face's package, which is much faster and needs `pip install tokenizers`.
docs/results/vocabulary_builders.csv has what the builders cost.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from mural_tf.backend import tf_text  # noqa: F401 - imports the package that has the learner
from mural_tf.errors import UserError
from mural_tf.text.byte_pair import byte_characters, written_in_bytes
from mural_tf.text.vocabulary_file import RESERVED_TOKENS, SUFFIX_INDICATOR
from mural_tf.text.words import count_words, split_words

BUILDERS = ("tensorflow_text", "tokenizers", "byte_pair")
MOST_OCCURRENCES = 100_000_000  # words that the `tokenizers` builder is given
ITERATIONS = 3  # of tensorflow_text's tool at every threshold
# Characters in a piece of tensorflow_text's tool. Its time for a word grows with the third power of its length, so
# longer words are cut into parts of this length before it sees them (its own default of 50 drops words that are longer
# still). Texts in scripts without spaces are the ones concerned.
LONGEST_PIECE = 12


def build_vocabulary(
    texts: Iterable[str],
    size: int,
    builder: str = "tensorflow_text",
    lower_case: bool = False,
    strip_accents: bool = False,
) -> list[str]:
    """Learns word pieces from texts; the same texts and settings give the same list.

    Args:
      texts: read once, in pieces, so a generator over any reader will do.
      lower_case, strip_accents: as in `clean_text`; give the tokenizer the same values.
      size, builder: as in `learn_vocabulary`, which names what it raises.
    """
    _check_request(size, builder)
    return learn_vocabulary(count_words(texts, lower_case, strip_accents), size, builder)


def learn_vocabulary(counts: Mapping[str, int], size: int, builder: str = "tensorflow_text") -> list[str]:
    """Learns pieces from words and how often they occur; the same counts give the same list.

    The alphabet has a sixth of `size`, in small vocabularies up to 1,000 characters (the tool's own default) but no
    more than a third of `size`: a character can cost two pieces, with and without "##". Rarer ones become [UNK], mostly
    Chinese ones. tensorflow_text's tool sees the larger of 30,000 and 4 * `size` distinct words, the most frequent
    ones; its time and memory grow with them.

    Args:
      counts: {word: count}, as words.py gives them.
      size: most pieces the list may hold, with `RESERVED_TOKENS`, which come first, so that [PAD] is 0.
      builder: "tensorflow_text" or "tokenizers"; "byte_pair" learns byte-level pieces, see `byte_pair.py`.

    Raises:
      UserError: unknown builder, a size without room for characters, no words in the texts, or the
        `tokenizers` package is missing.
    """
    _check_request(size, builder)
    if not counts:
        raise UserError("The texts to build the vocabulary from hold no words.")
    if builder == "byte_pair":
        return _learn_byte_pairs(counts, size)
    max_characters = max(size // 6, min(1000, (size - len(RESERVED_TOKENS)) // 3))
    if builder == "tokenizers":
        return _learn_with_tokenizers(counts, size, max_characters)
    words = _most_frequent(_cut_words(counts, LONGEST_PIECE), max(30_000, 4 * size))
    return _learn_with_tensorflow_text(words, size, max_characters)


def _check_request(size: int, builder: str) -> None:
    if builder == "sentence_pieces":
        raise UserError(
            "vocabulary.builder=sentence_pieces: they are not learned here; name a SentencePiece model or a "
            "tokenizer.json with --config.vocabulary.file=…."
        )
    if builder not in BUILDERS:
        raise UserError(f"Unknown vocabulary builder {builder!r}: expected one of {', '.join(BUILDERS)}.")
    least = len(RESERVED_TOKENS) + 3
    if size < least:
        raise UserError(
            f"A vocabulary of {size} pieces has no room: {len(RESERVED_TOKENS)} are reserved "
            f"({', '.join(RESERVED_TOKENS)}); ask for {least} at least."
        )


def _cut_words(counts: dict[str, int], length: int) -> collections.Counter:
    """Cuts words longer than `length` characters into parts of that length.

    Each part starts in the middle of the one before, so that what begins a part also continues another.
    """
    parts = collections.Counter()
    step = max(1, length // 2)
    for word, count in counts.items():
        for start in range(0, max(1, len(word) - length + step), step):
            parts[word[start : start + length]] += count
    return parts


def _most_frequent(counts: dict[str, int], limit: int) -> list[tuple[str, int]]:
    """The `limit` most frequent words, most frequent first, ties in alphabetical order (so it is deterministic)."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]


def _learn_with_tensorflow_text(counts: list[tuple[str, int]], size: int, max_characters: int) -> list[str]:
    """Runs tensorflow_text's learner with a short search for the threshold, then keeps the `size` best pieces.

    A piece enters the vocabulary when its count reaches a threshold; the search halves an interval of thresholds.
    Every part of a word can count for one piece only, so a vocabulary of `size` pieces has a threshold near or below
    (all words) / `size`, where the search starts (the tool's own: at the largest count). It ends as soon as there
    are enough pieces, and at most a quarter too many; the rarest of them are then dropped.
    """
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    unused = {SUFFIX_INDICATOR + c for c in _characters_that_stand_alone({c for word, _ in counts for c in word})}
    low = counts[-1][1]
    high = max(low, min(counts[0][1], sum(count for _, count in counts) // size))
    best = []
    while low <= high and not size <= len(best) <= 1.25 * size:
        threshold = (low + high) // 2
        pieces = learner.learn(
            counts,
            vocab_size=size,  # without effect: the interval of thresholds has one value
            reserved_tokens=list(RESERVED_TOKENS),
            lower_thresh=threshold,
            upper_thresh=threshold,
            num_iterations=ITERATIONS,
            max_input_tokens=-1,
            max_token_length=LONGEST_PIECE,
            max_unique_chars=max_characters,
            joiner=SUFFIX_INDICATOR,
        )
        pieces = [piece for piece in pieces if piece not in unused]
        if len(pieces) < size:
            high = threshold - 1
            best = max(best, pieces, key=len)
        else:
            low = threshold + 1
            best = pieces
    return _trim(best, size)


def _characters_that_stand_alone(characters: set[str]) -> set[str]:
    """Punctuation and Chinese characters, which are words of their own: a piece like "##字" would never be used."""
    characters = sorted(characters)
    words = split_words(tf.constant(["a" + c for c in characters], tf.string))
    return {c for c, length in zip(characters, words.row_lengths().numpy()) if length > 1}


def _trim(pieces: list[str], size: int) -> list[str]:
    """Drops the last pieces of several characters until `size` are left: the learner lists them by falling count."""
    surplus = len(pieces) - size
    if surplus <= 0:
        return pieces
    bodies = [piece.removeprefix(SUFFIX_INDICATOR) for piece in pieces]  # without the mark of one that continues a word
    droppable = [i for i, body in enumerate(bodies) if len(body) > 1 and pieces[i] not in RESERVED_TOKENS]
    dropped = set(droppable[-surplus:])
    return [piece for i, piece in enumerate(pieces) if i not in dropped][:size]


def _learn_with_tokenizers(counts: dict[str, int], size: int, max_characters: int) -> list[str]:
    tokenizers = _tokenizers_package("tokenizers")
    occurrences = collections.Counter()
    for word, count in counts.items():
        for character in word:
            occurrences[character] += count
    alphabet = {character for character, _ in _most_frequent(occurrences, max_characters)}
    words = [(word, count) for word, count in sorted(counts.items()) if alphabet.issuperset(word)]
    continuing = {SUFFIX_INDICATOR + character for word, _ in words for character in word[1:]}
    # The trainer numbers single characters as its threads meet them, and equal counts are decided by number. Naming
    # them as special pieces fixes their order: without this, every run gives another vocabulary.
    special = [*RESERVED_TOKENS, *sorted(alphabet), *sorted(continuing)][:size]
    # Above MOST_OCCURRENCES all counts are scaled down, which leaves the merges' order nearly as it is.
    scale = min(1.0, MOST_OCCURRENCES / sum(count for _, count in words)) if words else 1.0
    words = [(word, round(count * scale)) for word, count in words]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=special, continuing_subword_prefix=SUFFIX_INDICATOR, show_progress=False
    )
    return _train(tokenizers, tokenizers.models.WordPiece(unk_token="[UNK]"), trainer, words)


def _learn_byte_pairs(counts: Mapping[str, int], size: int) -> list[str]:
    special = [*RESERVED_TOKENS, *byte_characters()]  # named, the bytes have the same numbers in every run
    if size < len(special):
        raise UserError(
            f"A byte-pair vocabulary of {size} pieces has no room for the {len(special)} special pieces and bytes."
        )
    tokenizers = _tokenizers_package("byte_pair")
    words = [(part, count) for word, count in sorted(counts.items()) for part in written_in_bytes(word)]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    return _train(tokenizers, tokenizers.models.BPE(), trainer, words)


def _tokenizers_package(builder: str):
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            f"The vocabulary builder {builder!r} needs a package that is not installed: pip install tokenizers "
            "(for word pieces, the builder 'tensorflow_text' does without)."
        ) from None
    return tokenizers


def _train(tokenizers, model, trainer, words: Sequence[tuple[str, int]]) -> list[str]:
    """Returns the pieces that a model and a trainer of the `tokenizers` package learn, in the order of their ids."""
    learner = tokenizers.Tokenizer(model)
    learner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # the words are split already
    # The trainer takes texts, not counts: each word is written as often as it occurs, in lines of bounded length.
    lines = (" ".join([word] * min(1000, count - start)) for word, count in words for start in range(0, count, 1000))
    learner.train_from_iterator(lines, trainer)
    return [piece for piece, _ in sorted(learner.get_vocab().items(), key=lambda item: item[1])]
