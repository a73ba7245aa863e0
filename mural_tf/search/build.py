"""Makes an index: encodes what the sources hold, in memory or part by part into a folder."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from tqdm import tqdm

from mural_tf.config import ConfigurationError
from mural_tf.search import index as index_files
from mural_tf.search import sources
from mural_tf.search.fingerprint import take
from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES, Item
from mural_tf.search.parts import DTYPES, Parts, check_asked
from mural_tf.search.sources import Unreadable

PART = 1024  # items between two saves


def index_in_memory(embedder, found: Iterable, kind: str = IMAGES, batch_size: int = 64, progress=None) -> Index:
    """Encodes what `sources.find` yields into an index that lives in memory.

    Raises `ConfigurationError` if nothing can be read.
    """
    items, embeddings, skipped = _encode(embedder, _distinct(kind, found, set()), kind, batch_size, progress)
    if not items:
        raise ConfigurationError(f"None of the {len(skipped)} {kind} can be read.")
    return Index(items, embeddings, take(embedder), kind, skipped=len(skipped))


def build_index(
    embedder,
    names: Sequence[str],
    output: str | os.PathLike,
    kind: str = IMAGES,
    split: str = "",
    dtype: str = "float32",
    batch_size: int = 64,
    update: bool = False,
    part: int = PART,
    progress: bool = False,
) -> Index:
    """Makes the index `output`, or goes on where an interrupted run was; a complete one is opened as it is.

    Args:
      embedder: anything with `Embedder`'s `encode_image` and `encode_text`.
      names: folders, globs, TFRecords or tables, see `sources.find`.
      kind, split: what of them.
      dtype: of the stored vectors, "float32" or "float16" (half the size; scores change by about 1e-4).
      batch_size: images per call of the model.
      update: add to a complete index what its sources hold by now; its approximate part goes. Nothing is taken out.
      part: items between two saves.

    Raises:
      ConfigurationError: sources that hold nothing, a folder that is something else, an index of other sources or of
        another model, nothing that can be read.
    """
    if dtype not in DTYPES:
        raise ConfigurationError(f"Unknown dtype {dtype!r}; known: {', '.join(DTYPES)}.")
    found = sources.find(kind, names, split)  # mistakes show before anything is written
    output, model = pathlib.Path(output), take(embedder)
    asked = {"kind": kind, "sources": [os.path.abspath(name) for name in names], "split": split, "dtype": dtype}
    complete = None
    if (output / index_files.DESCRIPTION).exists():
        check_asked(output, index_files.read_description(output), asked)
        complete = index_files.load_index(output)
        complete.model.check(model, f"The index {output}")
        if not update:
            return complete
    parts = Parts(output, asked, model, complete)
    try:
        _save_parts(parts, embedder, found, batch_size, part, progress)
        if complete is not None and parts.count() == len(complete):  # nothing is new
            parts.discard()
            return complete
        parts.put_together()
    finally:
        parts.close()
    return index_files.load_index(output)


def _save_parts(parts: Parts, embedder, found: Iterable, batch_size: int, part: int, progress: bool) -> None:
    """Encodes and saves what the parts lack."""
    kind, done = parts.asked["kind"], parts.keys()
    with tqdm(desc=f"Indexing {kind}", unit=f" {kind}", initial=len(done), disable=not progress) as bar:
        new = _distinct(kind, found, done, bar.update)
        for first in new:
            chunk = itertools.chain([first], itertools.islice(new, part - 1))
            parts.save(*_encode(embedder, chunk, kind, batch_size))


def _distinct(kind: str, found: Iterable, done: set, tell: Callable[[], object] = lambda: None) -> Iterator:
    """Leaves out what was found before; `done` grows."""
    for entry in found:
        key = entry.key if isinstance(entry, Unreadable) else sources.key_of(kind, entry[0])
        if key not in done:
            done.add(key)
            tell()
            yield entry


def _encode(embedder, found: Iterable, kind: str, batch_size: int, progress=False):
    """Returns (items, float32 [N, D], unreadable ones) of what was found; images stream through the encoder."""
    items: list[Item] = []
    unreadable: list[Unreadable] = []

    def contents():
        for entry in found:
            if isinstance(entry, Unreadable):
                unreadable.append(entry)
            else:
                items.append(entry[0])
                yield entry[1]

    if kind == IMAGES:
        embeddings, kept = embedder.encode_image(
            contents(), batch_size=batch_size, on_error="skip", progress=bool(progress)
        )
    else:
        embeddings = embedder.encode_text(list(contents()), batch_size=batch_size, progress=bool(progress))
        kept = np.arange(len(items))
    readable = set(kept.tolist())
    unreadable += [_why(kind, item) for row, item in enumerate(items) if row not in readable]
    return [items[row] for row in kept], embeddings, unreadable


def _why(kind: str, item: Item) -> Unreadable:
    if item.offset < 0 and not os.path.isfile(item.path):
        reason = "There is no such file."
    elif item.offset < 0 and not os.access(item.path, os.R_OK):
        reason = "The file may not be read: permission denied."
    else:
        reason = "Damaged, or not a JPEG, PNG, BMP or GIF image."
    return Unreadable(item.name, reason, sources.key_of(kind, item))
