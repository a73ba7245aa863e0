"""Pretrained word vectors from FastText's text files (`.vec`): one word and its numbers a line.

The first line may hold the number of words and of dimensions. Files are read line by line; only the words of the
vocabulary are kept.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from mural_tf.config import ConfigurationError

MOST_BROKEN_LINES = 0.01  # share of a file above which it is not taken for one of vectors


def read_vectors(path: str | pathlib.Path, words: Mapping[str, int], size: int) -> dict[int, np.ndarray]:
    """Returns {number of the word: float32 [size]} for those of `words` (word → number) that the file holds.

    Lines that are not a word and numbers are left out and counted; the first of a word counts.
    Raises `ConfigurationError` for a missing file, vectors of another size, or too many broken lines.
    """
    path, found, broken, count = pathlib.Path(path), {}, 0, 0
    try:
        file = path.open(encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise ConfigurationError(f"The word vectors {path} cannot be read: {error.strerror}.") from None
    with file:
        for count, line in enumerate(file, start=1):
            fields = line.rstrip().split(" ")
            if count == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                _check_size(path, int(fields[1]), size)
                continue
            if fields[0] not in words or words[fields[0]] in found:
                continue
            try:
                vector = np.array(fields[1:], np.float32)
            except ValueError:
                vector = np.zeros(0, np.float32)
            if vector.shape == (size,) and np.isfinite(vector).all():
                found[words[fields[0]]] = vector
            elif not found and len(vector) > 1 and np.isfinite(vector).all():
                _check_size(path, len(vector), size)
            else:
                broken += 1
    if broken > max(1, MOST_BROKEN_LINES * count):
        raise ConfigurationError(f"{path}: {broken} of {count} lines are not a word and {size} numbers.")
    if broken:
        logging.warning("%s: %d of %d lines are not a word and %d numbers; they were left out.",
                        path, broken, count, size)  # fmt: skip
    return found


def vectors_of_vocabulary(
    pattern: str, vocabulary: Sequence[str], languages: Sequence[str], size: int
) -> tuple[dict[int, np.ndarray], dict[str, tuple[int, int]]]:
    """Reads one file a language for the lines of a `text.language_words` vocabulary.

    Args:
      pattern: path with `{language}`, for example "vectors/cc.{language}.300.vec".
      vocabulary, languages: the tokenizer's.
      size: numbers in a vector.

    Returns:
      {id: float32 [size]} and {language: (words found, words)}.
    """
    if "{language}" not in pattern:
        raise ConfigurationError(f"text_tower.word_vectors={pattern!r} must hold {{language}}, which names the file.")
    vectors, shares = {}, {}
    for language in languages:
        prefix = f"{language}\t"
        words = {line[len(prefix) :]: i for i, line in enumerate(vocabulary) if line.startswith(prefix)}
        found = read_vectors(pattern.replace("{language}", language), words, size)
        vectors.update(found)
        shares[language] = (len(found), len(words) - 1)  # [UNK] is none
    return vectors, shares


def _check_size(path: pathlib.Path, found: int, expected: int) -> None:
    if found != expected:
        raise ConfigurationError(f"{path} holds vectors of {found} numbers; set text_tower.word_size={found}.")
