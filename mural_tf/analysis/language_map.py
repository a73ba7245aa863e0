"""Languages as points of a plane: Laplacian eigenmaps of their similarities, and the drawing of the map."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Sequence

import numpy as np

from mural_tf.analysis.families import family_of
from mural_tf.config import PARTIAL, ConfigurationError


def laplacian_eigenmap(similarity: np.ndarray, neighbours: int = 0, seed: int = 0) -> np.ndarray:
    """Returns float64 [L, 2]: the two smooth directions of the similarity graph (Belkin and Niyogi, 2003).

    Args:
      similarity: [L, L], symmetric, not negative.
      neighbours: keep the edges to each language's most similar ones only (an edge stays if either end keeps it);
        0: all edges, as Kudugunta et al. (2019) and MURAL.
      seed: of the solver's start.

    Raises:
      ConfigurationError: fewer than four languages, or scikit-learn is not installed.
    """
    try:
        from sklearn.manifold import SpectralEmbedding
    except ImportError:
        raise ConfigurationError("The map needs scikit-learn: pip install 'mural-tf[evaluation]'.") from None
    if len(similarity) < 4:
        raise ConfigurationError(f"A map needs at least four languages; got {len(similarity)}.")
    weights = np.array(similarity, np.float64)
    np.fill_diagonal(weights, 0.0)
    if neighbours:
        bound = np.sort(weights, axis=1)[:, -min(neighbours, len(weights) - 1)]
        weights = np.where((weights >= bound[:, None]) | (weights >= bound), weights, 0.0)
    embedding = SpectralEmbedding(2, affinity="precomputed", random_state=seed, eigen_solver="arpack")
    return embedding.fit_transform(weights)


def draw_map(points: np.ndarray, languages: Sequence[str], title: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws `languages` at `points` [L, 2], coloured by family, as languages.png and languages.svg."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError("Drawing needs matplotlib: pip install 'mural-tf[evaluation]'.") from None
    matplotlib.use("Agg")
    matplotlib.set_loglevel("warning")  # it tells of its font cache
    from matplotlib import pyplot

    families = [family_of(language) for language in languages]
    shown = sorted(set(families), key=lambda family: (-families.count(family), family))
    colors = {family: pyplot.get_cmap("tab20")(number % 20) for number, family in enumerate(shown)}
    markers = {family: "os^DvP"[number // 20 % 6] for number, family in enumerate(shown)}
    figure, axes = pyplot.subplots(figsize=(10, 7.5))
    points = _to_unit_square(points)
    for family in shown:
        members = [i for i, other in enumerate(families) if other == family]
        axes.scatter(*points[members].T, color=colors[family], marker=markers[family], s=44, label=family, zorder=2)
    for (x, y), offset, language in zip(points, _label_offsets(points, languages), languages):
        axes.annotate(language, (x, y), offset, textcoords="offset points", fontsize=9, zorder=3)
    axes.set_title(title, fontsize=11)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.08)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    paths = [folder / "languages.png", folder / "languages.svg"]
    for path in paths:
        partial = path.with_name(path.name + PARTIAL)
        figure.savefig(partial, dpi=150, bbox_inches="tight", format=path.suffix[1:])
        partial.replace(path)
    pyplot.close(figure)
    return paths


def _to_unit_square(points: np.ndarray) -> np.ndarray:
    """Scales both axes to [0, 1]."""
    low, high = points.min(axis=0), points.max(axis=0)
    return (points - low) / np.where(high > low, high - low, 1.0)


def _label_offsets(points: np.ndarray, languages: Sequence[str]) -> list[tuple[float, float]]:
    """Returns where each label goes, in points from its marker: where it covers least of markers and earlier labels."""
    centres = points * (780, 560)  # about the size of the axes, in points
    boxes = [
        (*(centre - 4), *(centre + 4)) for centre in centres
    ]  # of markers; labels are added: left, low, right, high
    offsets = []
    for centre, language in zip(centres, languages):
        width, height = 5.5 * len(language) + 2, 9
        places = [(6, -3), (5, 5), (5, -11), (-width - 5, -3), (-width / 2, 7), (-width / 2, -14), (-width - 4, 5)]
        places += [(-width - 4, -12), (14, -3), (-width - 13, -3), (-width / 2, 16), (-width / 2, -23)]
        candidates = [(*(centre + place), *(centre + place + (width, height))) for place in places]
        best = min(range(len(places)), key=lambda i: (sum(_overlap(candidates[i], box) for box in boxes), i))
        offsets.append(places[best])
        boxes.append(candidates[best])
    return offsets


def _overlap(a: tuple, b: tuple) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def write_matrix(path: pathlib.Path, matrix: np.ndarray, languages: Sequence[str]) -> None:
    """Writes similarities [L, L] as CSV with a row and a column for each language."""
    rows = [["language", *languages]]
    rows += [[language, *(f"{value:.6f}" for value in row)] for language, row in zip(languages, matrix)]
    _write_csv(path, rows)


def write_points(path: pathlib.Path, points: np.ndarray, languages: Sequence[str]) -> None:
    """Writes the map's coordinates [L, 2] as CSV: language, family, x, y."""
    rows = [["language", "family", "x", "y"]]
    rows += [[x, family_of(x), *(f"{value:.6f}" for value in point)] for x, point in zip(languages, points)]
    _write_csv(path, rows)


def _write_csv(path: pathlib.Path, rows: list[list[str]]) -> None:
    partial = path.with_name(path.name + PARTIAL)
    with open(partial, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    partial.replace(path)
