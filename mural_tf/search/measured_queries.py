"""Which queries the recall of an approximate index is measured with: samples of every modality and language."""

from __future__ import annotations

import collections
import heapq
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from mural_tf.search.index import Index
from mural_tf.search.items import IMAGES
from mural_tf.search.queries import Query
from mural_tf.search.recall import Group

PER_GROUP = 100  # queries: 1,000 neighbours to find


def collect(index: Index, embedder, queries: Sequence[Query] = (), per_group: int = PER_GROUP) -> dict[str, Group]:
    """Returns "image" and "text/<language>" ("text" where none is known) -> their queries.

    In an index of images the images ask for their neighbours, and captions from the records and `queries` for images;
    in one of texts, texts ask for their neighbours, and the images they describe for texts.
    """
    rows: dict[str, list[int]] = collections.defaultdict(list)
    texts: dict[str, list[str]] = collections.defaultdict(list)
    if index.kind == IMAGES:
        rows["image"] = _sample(range(len(index)), per_group)
        found = ((language, text) for row in range(len(index)) for language, text in index.describe(row).captions)
        texts = _sample_texts(found, per_group)
    else:
        by_language = collections.defaultdict(list)
        for row in range(len(index)):
            by_language[_name(index.describe(row).language)].append(row)
        rows = {name: _sample(own, per_group) for name, own in by_language.items()}
    for query in queries:
        texts[_name(query.language)].append(query.text)
    groups = {name: Group(np.asarray(index.embeddings[own], np.float32), np.array(own)) for name, own in rows.items()}
    for name, sentences in sorted(texts.items()):
        groups[f"{name} (given)" if name in groups else name] = Group(embedder.encode_text(sentences))
    if index.kind != IMAGES:
        images = _described_images(index, per_group)
        if images:
            groups["image"] = Group(embedder.encode_image(images, on_error="skip")[0])
    return {name: group for name, group in groups.items() if len(group.vectors)}


def _name(language: str) -> str:
    return f"text/{language}" if language else "text"


def _sample(rows: Sequence[int], count: int) -> list[int]:
    """Returns up to `count` of the rows, spread evenly."""
    if len(rows) <= count:
        return list(rows)
    return [rows[i * len(rows) // count] for i in range(count)]


def _sample_texts(captions: Iterable[tuple[str, str]], count: int) -> dict[str, list[str]]:
    """Returns up to `count` texts per language: those with the smallest checksums, whatever their order."""
    smallest: dict[str, list[tuple[int, str]]] = collections.defaultdict(list)
    for language, text in captions:
        heap, entry = smallest[_name(language)], (-zlib.crc32(text.encode("utf-8", "replace")), text)
        if entry not in heap:
            if len(heap) < count:
                heapq.heappush(heap, entry)
            elif entry > heap[0]:
                heapq.heapreplace(heap, entry)
    chosen = {name: sorted(text for _, text in heap) for name, heap in smallest.items()}
    return collections.defaultdict(list, chosen)


def _described_images(index: Index, count: int) -> list[bytes]:
    """Returns the distinct images that a sample of the texts describes, as far as they can be read."""
    places, images = set(), []
    for row in _sample(range(len(index)), 4 * count):
        item = index.describe(row)
        if item.has_image and (item.path, item.offset) not in places and len(images) < count:
            places.add((item.path, item.offset))
            try:
                images.append(index.read_image(row))
            except (OSError, ValueError):
                continue
    return images
