"""A page of queries and what one or two models found for them: for seeing what a model gets wrong ([MURAL] §5, A.5).

    python -m mural_tf analyse errors --model=A --other=B --data_dir=DATA --languages=sw,de --output=errors.html

The data are image-text TFRecords. For each language and direction the page shows queries with the top five of each
model, the right answer marked, and its rank. The queries are some that the first model gets wrong, from near misses
to the worst; with two models, --show=worse are those where it falls furthest behind the other. The page is one file
that needs nothing outside it.
"""

from __future__ import annotations

import dataclasses
import html
import pathlib
from collections.abc import Sequence

import numpy as np

from mural_tf.data.pictures import thumbnail_url
from mural_tf.errors import UserError
from mural_tf.files import as_path, write_whole

THUMBNAIL = 96  # pixels, the longer side
TITLES = {"text_to_image": "text to image", "image_to_text": "image to text"}
STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1.5em; color: #222; }
h2 { margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; width: 100%; }
td, th { vertical-align: top; text-align: start; padding: 8px; border-bottom: 1px solid #eee; }
td.query { width: 22%; font-size: 16px; }
ol { list-style: none; display: flex; gap: 6px; margin: 4px 0; padding: 0; flex-wrap: wrap; }
ol.texts { display: block; }
li { border: 3px solid transparent; padding: 2px; border-radius: 4px; }
li.right { border-color: #1a9641; background: #e8f6ec; }
img { max-width: 96px; max-height: 96px; display: block; }
.rank { color: #666; }
.rank.found { color: #1a9641; font-weight: bold; }
h1, h2, p, td, th { overflow-wrap: anywhere; }
@media (max-width: 600px) { table, tbody, tr, td, th { display: block; } td.query { width: auto; } td { border: 0; } }
"""


@dataclasses.dataclass
class Section:
    """One language and direction: the queries shown, of how many, and the language's captions."""

    language: str
    direction: str
    queries: list
    total: int
    texts: list[str]


def render_page(models: Sequence[str], sections: Sequence[Section], images: Sequence[bytes], source: str) -> str:
    """Returns the page; `images` are encoded ones, and the queries' numbers refer to them and to `Section.texts`."""
    contents = "".join(f'<li><a href="#{_anchor(s)}">{_heading(s)}</a></li>' for s in sections)
    body = "".join(_section(section, models, images) for section in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>Errors</title><style>{STYLE}</style>'
        f"</head><body><h1>What was found</h1><p>{html.escape(source)}. The right answer is framed in green; where it "
        f"is not among the first five, its rank says how far it is.</p><ul>{contents}</ul>{body}</body></html>\n"
    )


def _anchor(section: Section) -> str:
    return html.escape(f"{section.language}-{section.direction}", quote=True)


def _heading(section: Section) -> str:
    count = f"{len(section.queries)} of {section.total:,} queries"
    return f"{html.escape(section.language)}, {TITLES[section.direction]}: {count}"


def _section(section: Section, models: Sequence[str], images: Sequence[bytes]) -> str:
    heads = "".join(f"<th>{html.escape(model)}</th>" for model in models)
    rows = "".join(_row(query, section, images) for query in section.queries)
    return f'<h2 id="{_anchor(section)}">{_heading(section)}</h2><table><tr><th>query</th>{heads}</tr>{rows}</table>'


def _row(query, section: Section, images: Sequence[bytes]) -> str:
    by_text = section.direction == "text_to_image"
    asked = _text(section, query.number) if by_text else _image(images[query.number])
    answers = "".join(_image(images[i]) if by_text else _text(section, i) for i in sorted(query.right))
    cells = [f'<td class="query">{asked}<p class="rank">right:</p>{answers}</td>']
    for found in query.found:
        items = [
            f"<li{' class=right' if i in query.right else ''}>"
            f"{_image(images[i]) if by_text else _text(section, i)}</li>"
            for i in found.top
        ]
        seen = any(i in query.right for i in found.top)
        rank = f'<span class="rank{" found" if seen else ""}">rank {found.rank:g}</span>'
        cells.append(f"<td>{rank}<ol{'' if by_text else ' class=texts'}>{''.join(items)}</ol></td>")
    return f"<tr>{''.join(cells)}</tr>"


def _text(section: Section, number: int) -> str:
    language = html.escape(section.language, quote=True)
    return f'<span dir="auto" lang="{language}">{html.escape(section.texts[number])}</span> '


def _image(data: bytes) -> str:
    """Returns an <img> with the image inside it, shrunk."""
    try:
        return f'<img alt="" src="{thumbnail_url(data, THUMBNAIL)}">'
    except ValueError:
        return "<em>unreadable image</em>"


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
      UserError: no such records, a language they do not hold, or no image that decodes.
    """
    from mural_tf.evaluation.retrieval import choose_languages, read_pool

    pool = read_pool(data_dir, split)
    chosen = choose_languages(pool, languages)
    images = list(pool.read(range(len(pool.image_numbers))))
    encoded = [model.encode_image(images, on_error="skip", progress=False) for model in models.values()]
    kept = encoded[0][1]
    if not len(kept):
        raise UserError(f"None of the {len(images)} images of {pool.where} decodes.")
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
    path = as_path(output)
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
    from mural_tf.metrics.ranking import ranks_both_ways
    from mural_tf.metrics.top_k import top_k

    pool, local = np.unique(owners, return_inverse=True)
    results = []
    for images, texts in shown:
        to_text, to_image = ranks_both_ways(images[pool], texts, (local, np.arange(len(texts))))
        if direction == "text_to_image":
            results.append((pool[top_k(texts, images[pool], TOP)[1]], to_image))
        else:
            results.append((top_k(images[pool], texts, TOP)[1], to_text))
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
