"""A map of languages that a model's text tower sees alike (MURAL §5, Figure 3).

    python -m mural_tf.analysis languages --model=WORKDIR_OR_EXPORT --data_dir=DATA --output=FOLDER

The data are the same sentences in many languages: files of aligned lines, NAME.LANGUAGE.txt, or image-text records
whose captions share groups, such as the emoji benchmark. Written are similarity.csv (SVCCA of every two languages),
map.csv (Laplacian eigenmaps) and the drawing, languages.png and languages.svg.
"""

from __future__ import annotations

import pathlib

import numpy as np

from mural_tf.config import ConfigurationError


def map_languages(
    embedder,
    data_dir,
    split: str,
    languages,
    output,
    variance: float = 0.99,
    neighbours: int = 0,
    least_share: float = 0.5,
) -> tuple[list[str], np.ndarray]:
    """Measures, draws and writes the map; returns the languages and their similarities [L, L].

    Raises:
      ConfigurationError: see `read_parallel` and `laplacian_eigenmap`; too few sentences for SVCCA.
    """
    from mural_tf.analysis.language_map import draw_map, laplacian_eigenmap, write_matrix, write_points
    from mural_tf.analysis.svcca import svcca_matrix
    from mural_tf.evaluation.parallel import read_parallel

    texts, notes = read_parallel(data_dir, split, languages, least_share)
    chosen, number = list(texts), len(next(iter(texts.values())))
    embeddings = [embedder.encode_text(sentences, progress=False) for sentences in texts.values()]
    try:
        matrix = svcca_matrix(embeddings, variance)
    except ValueError as error:
        raise ConfigurationError(
            f"The languages cannot be compared: {error} All {len(chosen)} languages share {number} sentences; fewer "
            "--languages or a larger --least_share leave more."
        ) from None
    points = laplacian_eigenmap(matrix, neighbours)
    folder = pathlib.Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    write_matrix(folder / "similarity.csv", matrix, chosen)
    write_points(folder / "map.csv", points, chosen)
    title = f"{len(chosen)} languages by SVCCA of {number:,} sentences"
    drawn = draw_map(points, chosen, title, folder)
    for line in [*notes, *describe_neighbours(matrix, chosen)]:
        print(line)
    print(f"Written: {folder / 'similarity.csv'}, {folder / 'map.csv'}, {', '.join(map(str, drawn))}")
    return chosen, matrix


def describe_neighbours(matrix: np.ndarray, languages: list[str], count: int = 3) -> list[str]:
    """Returns a line for each language: the ones most similar to it."""
    others = matrix - 2 * np.eye(len(matrix))
    lines = []
    for language, row in zip(languages, others):
        nearest = np.argsort(-row, kind="stable")[:count]
        lines.append(f"{language:8} {', '.join(f'{languages[i]} {row[i]:.2f}' for i in nearest)}")
    return lines
