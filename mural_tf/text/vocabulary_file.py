"""The vocabulary file: one entry per line, whose number is its id; BERT's and LaBSE's files work as they are.

A line that changed or moved gives other ids, and a model answers them all with vectors that look right. So a digest of
the lines travels with every model, as `vocabulary.sha256` in the configuration of workdirs and exports; a SavedModel's
vocabulary is an asset, see `encoders/saved_models.py`.
"""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterable, Sequence

from mural_lite.errors import UserError
from mural_lite.files import as_path, atomic_file

RESERVED_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SUFFIX_INDICATOR = "##"
LONGEST_PIECE = 1000  # characters: operations keep tables as long as a piece, and longer pieces end the process
NAME = "vocabulary.txt"  # in workdirs, exports and the assets of SavedModels


def save_vocabulary(vocabulary: Sequence[str], path: str | pathlib.Path) -> None:
    """Writes a vocabulary file; raises `UserError` if writing fails, and then `path` keeps its old content."""
    try:
        with atomic_file(path) as partial:
            partial.write_bytes(as_file(vocabulary))
    except OSError as error:
        raise UserError(f"Cannot write the vocabulary {path}: {error.strerror}.") from None


def as_file(vocabulary: Iterable[str]) -> bytes:
    """Returns the content of the file of a vocabulary's lines: each ends in a newline, in UTF-8."""
    return b"".join(_lines(vocabulary))


def _lines(vocabulary: Iterable[str]) -> Iterable[bytes]:
    return (f"{piece}\n".encode() for piece in vocabulary)


def digest(vocabulary: Iterable[str]) -> str:
    """Returns the SHA-256 of the file that `save_vocabulary` writes, hexadecimal; line ends do not matter."""
    sha256 = hashlib.sha256()
    for line in _lines(vocabulary):
        sha256.update(line)
    return sha256.hexdigest()


def check_digest(vocabulary: Iterable[str], expected: str, path: str | pathlib.Path) -> None:
    """Raises `UserError` if a vocabulary's `digest` is not `expected`; "" accepts all. `path` is for the message."""
    actual = digest(vocabulary)
    if expected not in ("", actual):
        raise UserError(
            f"The vocabulary {path} is not the model's: its SHA-256 is {actual}, expected "
            f"{expected}. Lines were changed, moved, added or lost: copy the file again from where it came from."
        )


def load_vocabulary(path: str | pathlib.Path) -> list[str]:
    """Returns the pieces of a vocabulary file of this project, BERT or LaBSE, in the order of their ids.

    Raises `UserError` as `read_lines` and `check_vocabulary`.
    """
    vocabulary = read_lines(path)
    check_vocabulary(vocabulary, str(path))
    return vocabulary


def read_lines(path: str | pathlib.Path) -> list[str]:
    """Returns the lines of a file in UTF-8; raises `UserError` if the file cannot be read, or is not UTF-8 or empty."""
    try:
        data = as_path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"Cannot read the vocabulary {path} ({error.strerror}): expected a text file with one piece per line."
        ) from None
    try:
        # Not splitlines(): multilingual vocabularies hold Unicode's own line separators as pieces.
        vocabulary = [line.rstrip("\r") for line in data.decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise UserError(f"The vocabulary {path} is not UTF-8 text: {error}.") from None
    if vocabulary[-1] == "":
        vocabulary.pop()
    if not vocabulary:
        raise UserError(f"The vocabulary {path} is empty: expected one piece per line.")
    return vocabulary


def check_vocabulary(vocabulary: Sequence[str], name: str = "The vocabulary") -> None:
    """Raises `UserError` if a word piece occurs twice or is too long, or [PAD], [UNK], [CLS] or [SEP] is missing."""
    pieces = set(vocabulary)
    missing = [piece for piece in RESERVED_TOKENS[:4] if piece not in pieces]  # only the cloze task needs [MASK]
    if missing:
        raise UserError(
            f"{name} lacks {', '.join(missing)}: a word-piece vocabulary needs [PAD], [UNK], [CLS] and [SEP]."
        )
    longest = max(map(len, vocabulary))
    if longest > LONGEST_PIECE:
        raise UserError(f"{name} holds a piece of {longest} characters: expected at most {LONGEST_PIECE}.")
    if len(pieces) == len(vocabulary):
        return
    first_line = {}
    for line, piece in enumerate(vocabulary, start=1):
        if piece in first_line:
            raise UserError(f"{name} holds {piece!r} twice, in lines {first_line[piece]} and {line}.")
        first_line[piece] = line
