"""A page of queries and what one or two models found for them: for seeing what a model gets wrong (MURAL §5, A.5).

    python -m mural_tf.analysis errors --model=A --other=B --data_dir=DATA --languages=sw,de --output=errors.html

The data are image-text TFRecords. For each language and direction the page shows queries with the top five of each
model, the right answer marked, and its rank. The queries are some that the first model gets wrong, from near misses
to the worst; with two models, --show=worse are those where it falls furthest behind the other.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from mural_tf.config import ConfigurationError, write_whole

TOP = 5
DIRECTIONS = ("text_to_image", "image_to_text")


@dataclasses.dataclass
class Found:
    """What one model found for one query: candidate numbers, best first, and the rank of the best right one."""

    top: list[int]
    rank: float


@dataclasses.dataclass
class Query:
    """One query with the results of each model. `right`: the candidates that answer it."""

    number: int
    right: set[int]
    found: list[Found]


def write_error_page(models, data_dir, split, languages, output, queries=20, show="wrong", seed=0) -> pathlib.Path:
    """Writes the page and returns its path; `models`: one or two, name -> `Embedder`.

    Raises:
      ConfigurationError: no such records, a language they do not hold, or no image that decodes.
    """
    from mural_tf.analysis.error_page import Section, render_page
    from mural_tf.evaluation.pool import choose_languages
    from mural_tf.evaluation.retrieval import read_pool

    pool = read_pool(data_dir, split)
    chosen = choose_languages(pool, languages)
    images = list(pool.read(range(len(pool.image_numbers))))
    encoded = [model.encode_image(images, on_error="skip", progress=False) for model in models.values()]
    kept = encoded[0][1]
    if not len(kept):
        raise ConfigurationError(f"None of the {len(images)} images of {pool.where} decodes.")
    place = np.full(len(images), -1)
    place[kept] = np.arange(len(kept))
    sections = []
    for language in chosen:
        owners = place[pool.owners[language]]
        texts = [text for text, owner in zip(pool.texts[language], owners) if owner >= 0]
        owners = owners[owners >= 0]
        if not len(owners):
            continue
        shown = [
            (of_images, model.encode_text(texts, progress=False))
            for model, (of_images, _) in zip(models.values(), encoded)
        ]
        for direction in DIRECTIONS:
            made = find_queries(direction, shown, owners)
            sections.append(Section(language, direction, choose_queries(made, queries, show, seed), len(made), texts))
    path = pathlib.Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_page(list(models), sections, [images[i] for i in kept], f"{data_dir}, split {split}"))
    total = sum(len(section.queries) for section in sections)
    print(f"Written: {path} ({total} queries in {len(chosen)} languages, both directions)")
    return path


def find_queries(direction: str, shown: list[tuple[np.ndarray, np.ndarray]], owners: np.ndarray) -> list[Query]:
    """Searches with every image that has a caption, or with every caption.

    `shown`: for each model its images [I, D] and texts [C, D]; `owners` [C]: each caption's image. Image-to-text
    searches all captions, text-to-image the images that have one, as the benchmark does.
    """
    from mural_tf.metrics.nearest import nearest
    from mural_tf.metrics.ranking import ranks_both_ways

    pool, local = np.unique(owners, return_inverse=True)
    results = []
    for images, texts in shown:
        to_text, to_image = ranks_both_ways(images[pool], texts, (local, np.arange(len(texts))))
        if direction == "text_to_image":
            top = pool[nearest(texts, images[pool], min(TOP, len(pool)))]
            results.append((top, to_image))
        else:
            results.append((nearest(images[pool], texts, min(TOP, len(texts))), to_text))
    if direction == "text_to_image":
        right = [{int(owner)} for owner in owners]
        numbers = range(len(owners))
    else:
        right = [set(np.flatnonzero(local == i).tolist()) for i in range(len(pool))]
        numbers = pool.tolist()
    return [
        Query(number, right[i], [Found(top[i].tolist(), float(ranks[i])) for top, ranks in results])
        for i, number in enumerate(numbers)
    ]


def choose_queries(queries: list[Query], count: int, show: str, seed: int = 0) -> list[Query]:
    """Returns at most `count`: from near to far misses of the first model, where it falls behind most, or any."""
    if show == "all":
        order = np.random.default_rng(seed).permutation(len(queries))[:count]
        return [queries[i] for i in sorted(order)]
    if show == "worse":
        behind = [query for query in queries if query.found[0].rank > query.found[1].rank]
        return sorted(behind, key=lambda query: query.found[1].rank / query.found[0].rank)[:count]
    wrong = sorted((query for query in queries if query.found[0].rank > 1), key=lambda query: query.found[0].rank)
    spread = np.unique(np.linspace(0, len(wrong) - 1, min(count, len(wrong))).round().astype(int))
    return [wrong[i] for i in spread]
