"""A map of languages that a model's text tower sees as similar ([MURAL] §5, Figure 3).

    python -m mural_tf analyse languages --model=WORKDIR_OR_EXPORT --data_dir=DATA --output=FOLDER

The data are the same sentences in many languages: files of aligned lines, NAME.LANGUAGE.txt, or image-text records
whose captions share groups, such as the emoji benchmark. The command writes similarity.csv (SVCCA of every two
languages), map.csv (Laplacian eigenmaps) and the drawing, languages.png and languages.svg.

SVCCA (Raghu et al., 2017) says how similar two representations of the same sentences are, for any rotation: both
are centred and cut to the directions that explain most of their variance, and the similarity is the mean of the
canonical correlations of the reduced vectors.
"""

from __future__ import annotations

import csv
import functools
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np

from mural_lite.embedder import Embedder
from mural_lite.errors import UserError, install_extra
from mural_lite.files import as_path, atomic_file
from mural_tf.evaluation.parallel import read_parallel

UNKNOWN = "other"


@functools.cache
def _families() -> dict[str, str]:
    """Returns {language: family}, by Glottolog; Indo-European is divided into its branches, as in [MURAL]."""
    families = {}
    path = pathlib.Path(__file__).with_name("families.tsv")
    for line in path.read_text(encoding="utf-8").splitlines():
        family, codes = line.split("\t")
        families.update(dict.fromkeys(codes.split(), family))
    return families


def family_of(language: str) -> str:
    """Returns the family of a BCP 47 tag; a script or region is left out ("zh-Hant" is as "zh")."""
    families = _families()
    if language in families:
        return families[language]
    without_script, _, _ = language.partition("-")
    return families.get(without_script, UNKNOWN)


def map_languages(
    embedder: Embedder, data_dir: str | pathlib.Path, split: str, languages: Sequence[str], output: str | pathlib.Path
) -> tuple[list[str], np.ndarray]:
    """Measures, draws and writes the map, and prints neighbours; returns languages and similarities, float64 [L, L].

    Args:
      embedder: the model whose text tower is examined.
      data_dir: files of aligned lines, NAME.LANGUAGE.txt, or image-text records.
      split: the split of records.
      languages: BCP 47 tags; empty: all that have half of the sentences.
      output: folder of the map.

    Raises:
      UserError: data that `read_parallel` cannot read, fewer than four languages, too few sentences for SVCCA, or a
        missing package.
    """
    texts, notes = read_parallel(data_dir, split, languages)
    text_languages = list(texts)
    sentence_count = len(texts[text_languages[0]])  # the same in every language
    embeddings = [embedder.encode_text(sentences, progress=False) for sentences in texts.values()]
    try:
        matrix = svcca_matrix(embeddings)
    except ValueError as error:
        raise UserError(
            f"The languages cannot be compared: {error} All {len(text_languages)} languages share {sentence_count} "
            "sentences; fewer --languages leave more."
        ) from None
    points = laplacian_eigenmap(matrix)
    folder = as_path(output)
    folder.mkdir(parents=True, exist_ok=True)
    _write_tables(folder, text_languages, matrix, points)
    title = f"{len(text_languages)} languages by SVCCA of {sentence_count:,} sentences"
    drawings = draw_map(points, text_languages, title, folder)
    for line in [*notes, *describe_neighbours(matrix, text_languages)]:
        print(line)
    print(f"Written: {folder / 'similarity.csv'}, {folder / 'map.csv'}, {', '.join(map(str, drawings))}")
    return text_languages, matrix


def _write_tables(folder: pathlib.Path, languages: Sequence[str], matrix: np.ndarray, points: np.ndarray) -> None:
    """Writes similarity.csv, from the matrix [L, L], and map.csv, from the points [L, 2]."""
    similarities = [["language", *languages]]
    coordinates = [["language", "family", "x", "y"]]
    for language, row, point in zip(languages, matrix, points):
        similarities.append([language, *map("{:.6f}".format, row)])
        coordinates.append([language, family_of(language), *map("{:.6f}".format, point)])
    _write_csv(folder / "similarity.csv", similarities)
    _write_csv(folder / "map.csv", coordinates)


def _write_csv(path: pathlib.Path, rows: list[list[str]]) -> None:
    """Writes a table of comma-separated values, which appears when it is complete."""
    with atomic_file(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def describe_neighbours(matrix: np.ndarray, languages: Sequence[str], count: int = 3) -> list[str]:
    """Returns a line for each language, "de       nl 0.81, en 0.77, sv 0.75": the languages most similar to it.

    Args:
      matrix: float [L, L], the similarity of every two languages, see `svcca_matrix`.
      languages: L BCP 47 tags.
      count: how many languages a line has, less than L.
    """
    similarities = np.array(matrix)
    np.fill_diagonal(similarities, -np.inf)  # a language is not its own neighbour
    lines = []
    for language, row in zip(languages, similarities):
        nearest = np.argsort(-row, kind="stable")[:count]
        neighbours = [f"{languages[index]} {row[index]:.2f}" for index in nearest]
        lines.append(f"{language:8} {', '.join(neighbours)}")
    return lines


# Similarity.


def basis(embeddings: np.ndarray, variance: float = 0.99) -> np.ndarray:
    """Returns [N, K]: an orthonormal basis of the leading directions of centred embeddings [N, D].

    K is the smallest number of singular directions whose squared singular values are at least `variance` of all.

    Raises:
      ValueError: variance outside (0, 1], embeddings that are all equal, or fewer than two rows per direction: then any
        two languages would look similar.
    """
    if not 0 < variance <= 1:
        raise ValueError(f"variance={variance} must be in (0, 1].")
    centred = np.asarray(embeddings, np.float64)
    centred = centred - centred.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    if values[0] <= 1e-12 * max(1.0, np.abs(embeddings).max()):
        raise ValueError("All embeddings are equal: there is nothing to compare.")
    explained = np.cumsum(values**2) / np.sum(values**2)
    explaining = int(np.searchsorted(explained, variance - 1e-12)) + 1  # rounded sums may end below 1
    nonzero = int(np.count_nonzero(values > 1e-10 * values[0]))  # smaller values are rounding
    directions = min(explaining, nonzero)
    if len(centred) < 2 * directions:
        raise ValueError(
            f"{len(centred)} sentences are too few for the {directions} directions that explain {variance:.0%} of "
            f"their variance: give at least {2 * directions}, or a smaller variance."
        )
    return left[:, :directions]


def svcca_matrix(embeddings: Sequence[np.ndarray], variance: float = 0.99) -> np.ndarray:
    """Returns the similarity of every two representations of the same N sentences, float64 [L, L] in 0..1.

    It is the mean canonical correlation: the mean of the singular values of two orthonormal bases' product. All must
    embed the same sentences: correlations in fewer sentences are larger, so languages with the same gaps would look
    similar.

    Args:
      embeddings: L matrices [N, D]; row i of all is the same sentence.
      variance: the share of the variance that each `basis` keeps.

    Raises:
      ValueError: matrices of different lengths, or too short for a `basis`.
    """
    if len({len(rows) for rows in embeddings}) > 1:
        raise ValueError(f"Row i of all must be the same sentence; got {[len(rows) for rows in embeddings]} rows.")
    bases = [basis(rows, variance) for rows in embeddings]
    matrix = np.eye(len(bases))
    for i, j in itertools.combinations(range(len(bases)), 2):
        correlations = np.linalg.svd(bases[i].T @ bases[j], compute_uv=False)
        matrix[i, j] = matrix[j, i] = np.clip(correlations, 0.0, 1.0).mean()
    return matrix


def laplacian_eigenmap(similarity: np.ndarray, seed: int = 0) -> np.ndarray:
    """Returns float64 [L, 2]: the two smooth directions of the similarity graph (Belkin and Niyogi, 2003).

    The graph has an edge between any two languages, as Kudugunta et al. (2019) and MURAL have it.

    Args:
      similarity: [L, L], symmetric, not negative.
      seed: the seed of the solver's start.

    Raises:
      UserError: fewer than four languages, or scikit-learn is not installed.
    """
    try:
        from sklearn.manifold import SpectralEmbedding
    except ImportError:
        raise UserError(f"The map needs scikit-learn: {install_extra('evaluation')}.") from None
    if len(similarity) < 4:
        raise UserError(f"A map needs at least four languages; got {len(similarity)}.")
    weights = np.array(similarity, np.float64)
    np.fill_diagonal(weights, 0.0)
    embedding = SpectralEmbedding(2, affinity="precomputed", random_state=seed, eigen_solver="arpack")
    return embedding.fit_transform(weights)


# The drawing.

LABEL = 9  # points: a label's height
MARKER = 4  # a marker's radius
FAR = 18  # a line leads to labels that are farther away


def draw_map(points: np.ndarray, languages: Sequence[str], title: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws `languages` at `points` [L, 2], coloured by family, and returns the files, languages.png and .svg.

    Raises `UserError` without matplotlib.
    """
    try:
        import matplotlib
    except ImportError:
        raise UserError(f"Drawing needs matplotlib: {install_extra('evaluation')}.") from None
    matplotlib.use("Agg")
    matplotlib.set_loglevel("warning")  # it logs its font cache
    from matplotlib import pyplot
    from matplotlib.textpath import TextPath

    low = points.min(axis=0)  # [2]
    high = points.max(axis=0)
    points = (points - low) / np.where(high > low, high - low, 1.0)
    figure, axes = pyplot.subplots(figsize=(10, 7.5))
    axes.set_title(title, fontsize=11)
    axes.set(xticks=[], yticks=[])
    axes.margins(0.08)
    _draw_families(axes, points, [family_of(language) for language in languages], pyplot.get_cmap("tab20"))
    axes.autoscale_view()
    centres = axes.transData.transform(points) * 72 / figure.dpi  # in points, as sizes of fonts are
    extents = [TextPath((0, 0), language, size=LABEL).get_extents() for language in languages]
    offsets = label_offsets(centres, np.array([(extent.width + 2, LABEL) for extent in extents]))  # 2: a gap
    for point, offset, language in zip(points, offsets, languages):
        _draw_label(axes, point, offset, language)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    paths = [folder / "languages.png", folder / "languages.svg"]
    for path in paths:
        with atomic_file(path) as partial:
            figure.savefig(partial, dpi=150, bbox_inches="tight", format=path.suffix[1:])
    pyplot.close(figure)
    return paths


def _draw_families(axes, points: np.ndarray, families: Sequence[str], colors) -> None:
    """Draws the markers, at points [L, 2], of the most frequent family first: 20 colours, then other shapes."""
    by_frequency = sorted(set(families), key=lambda family: (-families.count(family), family))
    for number, family in enumerate(by_frequency):
        members = [index for index, other in enumerate(families) if other == family]
        marker = "os^DvP"[number // 20 % 6]  # matplotlib's names of shapes
        x = points[members, 0]
        y = points[members, 1]
        axes.scatter(x, y, color=colors(number % 20), marker=marker, s=44, label=family, zorder=2)


def _draw_label(axes, point: np.ndarray, offset: np.ndarray, language: str) -> None:
    """Writes a language at an offset from its marker, both [2], with a line to the marker where that is far."""
    line = None
    if np.hypot(*offset) > FAR:
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": "grey", "shrinkA": 0, "shrinkB": 3}
    options = {"textcoords": "offset points", "fontsize": LABEL, "ha": "center", "va": "center", "zorder": 3}
    axes.annotate(language, point, offset, arrowprops=line, **options)


def label_offsets(centres: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns the offset from each marker to the middle of its label, float [L, 2].

    A label goes to the nearest of 160 places around its marker where it covers neither a marker nor a label placed
    before; where it covers something at all places, to the place where it covers the smallest area.

    Args:
      centres: the markers' centres, [L, 2], in points as all other lengths.
      sizes: width and height of the labels, [L, 2].
    """
    distances = np.array([2, 6, 11, 17, 24, 32, 42, 55, 70, 90])[:, None, None]  # [10, 1, 1], from edge to edge
    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)  # rightwards first
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # [16, 2]
    # Lower left and upper right corners of all boxes that must not be covered: of markers, then also of labels.
    occupied_low = centres - MARKER  # [boxes, 2]
    occupied_high = centres + MARKER
    offsets = np.zeros_like(centres, float)
    for number, size in enumerate(sizes):
        candidates = (directions * (MARKER + distances + size / 2)).reshape(-1, 2)  # [10, 16, 2] -> [160, 2]
        low = centres[number] + candidates - size / 2  # [160, 2]
        high = centres[number] + candidates + size / 2
        best = _overlaps(low, high, occupied_low, occupied_high).argmin()  # the first, so the nearest, of equal areas
        offsets[number] = candidates[best]
        occupied_low = np.concatenate([occupied_low, low[best, None]])
        occupied_high = np.concatenate([occupied_high, high[best, None]])
    return offsets


def _overlaps(low: np.ndarray, high: np.ndarray, occupied_low: np.ndarray, occupied_high: np.ndarray) -> np.ndarray:
    """Returns the area of the occupied boxes that each of K boxes covers, float [K].

    Args:
      low, high: the lower left and upper right corners of the K boxes, [K, 2] each.
      occupied_low, occupied_high: the corners of B occupied boxes, [B, 2] each.
    """
    shared = np.minimum(high[:, None], occupied_high) - np.maximum(low[:, None], occupied_low)  # [K, B, 2]
    areas = shared.clip(0).prod(axis=2)  # [K, B]; a negative side means that the boxes do not meet
    return areas.sum(axis=1)
