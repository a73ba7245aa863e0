"""What is asked: sentences in any language, or images, with the right answers where these are known."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from mural_tf.config import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Query:
    """A sentence (`text`, in `language` if it is known, BCP 47) or an image file; `right`: names of right answers."""

    text: str = ""
    language: str = ""
    image: str = ""
    right: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to show: the sentence, or the image's path."""
        return self.text or self.image


def read_queries(path: str | os.PathLike) -> list[Query]:
    """Reads a table: a sentence a line, or language[TAB]sentence, and after that any number of right answers' names.

    Raises `ConfigurationError` for a missing file, a line without a sentence, or no line.
    """
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigurationError(f"The queries {path} are not there: expected a file of language[TAB]text.") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"The queries {path} are not UTF-8 ({error}).") from None
    queries = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            language, text, *right = line.split("\t") if "\t" in line else ("", line)
            if not text.strip():
                raise ConfigurationError(f"{path}, line {number}: no sentence; expected language[TAB]text.")
            queries.append(Query(text, language.strip(), right=tuple(name for name in right if name)))
    if not queries:
        raise ConfigurationError(f"{path} holds no queries: expected language[TAB]text, a line each.")
    return queries


def check_queries(queries: Sequence[Query], top: int) -> None:
    """Raises `ConfigurationError` for no query, an empty one, a missing image or `top` below 1."""
    if not queries:
        raise ConfigurationError("Nothing asked: give a sentence in any language, --image=FILE or --queries=FILE.")
    for query in queries:
        if query.image and not os.path.isfile(query.image):
            raise ConfigurationError(f"The image {query.image} does not exist.")
        if not query.name.strip():
            raise ConfigurationError("The query is empty: give a sentence in any language.")
    if top < 1:
        raise ConfigurationError(f"top must be at least 1, got {top}.")


def encode_queries(embedder, queries: Sequence[Query]) -> np.ndarray:
    """Returns float32 [Q, D] of sentences and images mixed. Raises `ConfigurationError` for an unreadable image."""
    texts = [i for i, query in enumerate(queries) if not query.image]
    images = [i for i, query in enumerate(queries) if query.image]
    blocks = []
    if texts:
        blocks.append(embedder.encode_text([queries[i].text for i in texts]))
    if images:
        blocks.append(embedder.encode_image([pathlib.Path(queries[i].image) for i in images]))
    vectors = np.concatenate(blocks)
    return vectors[np.argsort(texts + images)]
