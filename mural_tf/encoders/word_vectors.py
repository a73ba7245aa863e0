"""Word vectors from files of text, such as FastText's: a word and its numbers on each line, divided by spaces."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from mural_lite.errors import UserError
from mural_lite.remote_folders import local_copy

MOST_BROKEN_LINES = 0.01  # share of a file's lines; with more broken lines it is not taken for a file of vectors


def read_vectors(path: str | pathlib.Path, words: Mapping[str, int], size: int) -> dict[int, np.ndarray]:
    """Reads {id: float32 [size]} of the `words`, {word: id}, from a file; warns of broken lines.

    A line of these words is broken if `size` numbers do not follow the word: it is left out. One line, or a hundredth
    of all lines, may be so. Of several good lines of a word the first counts. The file's first line may be FastText's:
    how many words, and how many numbers in each vector.
    Raises `UserError` for a missing file, vectors of another size, or more broken lines.
    """
    path = local_copy(path)
    vectors = {}
    broken_count = 0
    line_count = 0
    try:
        file = path.open(encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise UserError(f"The word vectors {path} cannot be read: {error.strerror}.") from None
    with file:
        for line_count, line in enumerate(file, start=1):
            word, *numbers = line.rstrip().split(" ")
            if line_count == 1 and len(numbers) == 1 and word.isdecimal() and numbers[0].isdecimal():
                _check_size(path, int(numbers[0]), size)
                continue
            if word not in words or words[word] in vectors:
                continue
            vector = _parse_vector(numbers)
            if not vectors and len(vector) > 1:
                _check_size(path, len(vector), size)  # the file's first vector tells the size of all
            if len(vector) == size:
                vectors[words[word]] = vector
            else:
                broken_count += 1
    problem = f"{path}: {broken_count} of {line_count} lines are not a word and {size} numbers"
    if broken_count > max(1, MOST_BROKEN_LINES * line_count):  # a short file, too, may have a broken line
        raise UserError(f"{problem}.")
    if broken_count:
        logging.warning("%s; they were left out.", problem)
    return vectors


def _parse_vector(numbers: Sequence[str]) -> np.ndarray:
    """Returns the numbers that N texts write, float32 [N], or an empty vector if a text is not a finite number."""
    empty = np.zeros(0, np.float32)
    try:
        vector = np.array(numbers, np.float32)
    except ValueError:
        return empty
    return vector if np.isfinite(vector).all() else empty


def vectors_of_vocabulary(
    pattern: str, vocabulary: Sequence[str], languages: Sequence[str], size: int
) -> tuple[dict[int, np.ndarray], dict[str, tuple[int, int]]]:
    """Reads the word vectors of a `text.language_words` vocabulary, from one file per language.

    Args:
      pattern: path with `{language}`, for example "vectors/cc.{language}.300.vec".
      vocabulary: the tokenizer's lines, "LANGUAGE[TAB]WORD".
      languages: the tokenizer's languages.
      size: numbers per vector.

    Returns:
      {id of a word: float32 [size]} and {language: (number of words with a vector, number of words)}.

    Raises:
      UserError: a pattern without {language}, or as `read_vectors`.
    """
    if "{language}" not in pattern:
        raise UserError(f"text_tower.word_vectors={pattern!r} must hold {{language}}, which names the file.")
    vectors = {}
    counts = {}
    for language in languages:
        ids = _ids_of_words(vocabulary, language)
        language_vectors = read_vectors(pattern.replace("{language}", language), ids, size)
        vectors.update(language_vectors)
        counts[language] = (len(language_vectors), len(ids) - 1)  # one line per language is [UNK], not a word
    return vectors, counts


def _ids_of_words(vocabulary: Sequence[str], language: str) -> dict[str, int]:
    """Returns {word: id} of a language's lines, "LANGUAGE[TAB]WORD", in a vocabulary; an id is the line's number."""
    prefix = f"{language}\t"
    ids = {}
    for number, line in enumerate(vocabulary):
        if line.startswith(prefix):
            ids[line.removeprefix(prefix)] = number
    return ids


def _check_size(path: pathlib.Path, numbers: int, expected: int) -> None:
    """Raises `UserError` unless the size of the vectors in the file `path`, `numbers`, is `expected`."""
    if numbers != expected:
        raise UserError(f"{path} holds vectors of {numbers} numbers; set text_tower.word_size={numbers}.")
