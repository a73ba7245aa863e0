"""A page of queries with the results of one or two models, to see a model's mistakes ([MURAL] §5, A.5).

    python -m mural_tf analyse errors --model=A --other=B --data_dir=DATA --languages=sw,de --output=errors.html

The data are image-text TFRecords. For each language and direction the page shows queries with the top five of each
model, the right answer marked, and its rank. The queries are some that the first model gets wrong, from near misses
to the worst; with two models, --show=worse are those where it falls furthest behind the other. The page is one file
that needs nothing outside it.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence

from mural_lite import pages
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path, write_whole
from mural_lite.pictures import thumbnail_url
from mural_tf.analysis.queries import choose_queries, find_queries
from mural_tf.evaluation.retrieval import choose_languages, encode_captions, read_pool

TEMPLATE = pathlib.Path(__file__).with_name("errors.html")
SIDE = 96  # pixels of a thumbnail's longer side
DIRECTIONS = ("text_to_image", "image_to_text")


def write_error_page(
    models: Mapping[str, Embedder],
    data_dir: str | os.PathLike,
    split: str,
    languages: Sequence[str],
    output: str | os.PathLike,
    *,
    queries: int = 20,
    show: str = "wrong",
    seed: int = 0,
) -> pathlib.Path:
    """Writes a page of queries with the results of one or two models, and prints and returns its path.

    Args:
      models: {name to show: model}, one or two.
      data_dir, split: a data folder with image-text records, and one of its splits.
      languages: the languages of the captions; empty: all.
      output: the page's file.
      queries: the most queries of each language and direction.
      show: "wrong", "worse" or "all": which queries, see `choose_queries`.
      seed: chooses the queries for "all".

    Raises:
      UserError: no such records, a language they do not hold, or no image that decodes.
    """
    pool = read_pool(data_dir, split)
    chosen_languages = choose_languages(pool, languages)
    pictures = list(pool.read(range(len(pool.image_numbers))))
    images = []  # [K, D] of each model
    for model in models.values():
        embeddings, readable = model.encode_image(pictures, on_error="skip", progress=False)
        images.append(embeddings)
    if not len(readable):  # numbers of pictures, [K], which every model returns alike
        raise UserError(f"None of the {len(pictures)} images of {pool.where} decodes.")
    sections = []  # one per language and direction, as the template takes them
    for language in chosen_languages:
        texts, owners = pool.readable_captions(language, readable)
        if not texts:
            continue
        captions = [encode_captions(model, texts, language) for model in models.values()]
        embeddings = list(zip(images, captions))
        for direction in DIRECTIONS:
            all_queries = find_queries(direction, embeddings, owners)
            section = {
                "language": language,
                "by_text": direction == "text_to_image",
                "shown": choose_queries(all_queries, queries, show, seed),
                "total": len(all_queries),
                "texts": texts,
            }
            sections.append(section)

    @functools.cache
    def thumbnail(number: int) -> str:
        return thumbnail_url(pictures[readable[number]], SIDE)

    def thumbnails(numbers: Sequence[int], right: Collection[int] = ()) -> list[tuple[str, bool]]:
        """Returns (URL, whether it is a right answer) of readable pictures, by their rows in `readable`."""
        return [(thumbnail(number), number in right) for number in numbers]

    source = f"{data_dir}, split {split}"
    page = pages.render(TEMPLATE, models=list(models), sections=sections, source=source, pictures=thumbnails)
    path = as_path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page)
    total = sum(len(section["shown"]) for section in sections)
    print(f"Written: {path} ({total} queries in {len(chosen_languages)} languages, both directions)")
    return path
