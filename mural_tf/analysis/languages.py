"""A map of languages that a model's text tower sees as similar ([MURAL] §5, Figure 3).

    python -m mural_tf analyse languages --model=WORKDIR_OR_EXPORT --data_dir=DATA --output=FOLDER

The data are the same sentences in many languages: files of aligned lines, NAME.LANGUAGE.txt, or image-text records
whose captions share groups, such as the emoji benchmark. The command writes similarity.csv (SVCCA of every two
languages), map.csv (Laplacian eigenmaps) and the drawing, languages.png and languages.svg.

SVCCA (Raghu et al., 2017) says how similar two representations of the same sentences are, whatever their rotation: both
are centred and cut to the directions that explain most of their variance, and the similarity is the mean of the
canonical correlations of what is left.
"""

from __future__ import annotations

import csv
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mural_tf.errors import UserError
from mural_tf.evaluation.parallel import read_parallel
from mural_tf.files import as_path, whole

# Branches of Indo-European, otherwise families: Glottolog's classification at the depth of [MURAL] Figure 3.
_FAMILIES = {
    "Germanic": "en de nl sv da no nb nn is fo lb af yi fy gsw nds ang frr",
    "Romance": "fr es pt it ro ca gl oc rm ast an sc scn la vec lij lld wa co",
    "Slavic": "ru uk be pl cs sk sl hr sr bs mk bg hsb dsb csb rue szl",
    "Baltic": "lt lv lvs ltg",
    "Celtic": "ga cy gd br gv kw",
    "Greek": "el",
    "Albanian": "sq",
    "Armenian": "hy hyw",
    "Indo-Aryan": "hi ur bn pa gu mr ne si or as sd kok mai doi sa bho awa ks",
    "Iranian": "fa tg ku ckb kmr ps os",
    "Finnic": "fi et vro krl",
    "Uralic, other": "hu se smn sms smj sma myv mdf udm kv mhr",
    "Basque": "eu",
    "Turkic": "tr az uz kk ky tk tt ug ba cv sah crh",
    "Mongolic": "mn bua",
    "Semitic": "ar he am ti mt arz",
    "Cushitic": "so om",
    "Chadic": "ha",
    "Bantu": "sw zu xh rw st tn ts ny sn ss nso lg rn ln kln nr ve",
    "Niger-Congo, other": "yo ig wo ff ak ee tw",
    "Austronesian": "id ms jv su tl fil ceb mg mi war haw sm to tet ilo bew",
    "Austroasiatic": "vi km sat",
    "Kra-Dai": "th lo",
    "Sino-Tibetan": "zh yue my bo wuu dz cmn brx mni",
    "Japonic": "ja",
    "Koreanic": "ko",
    "Dravidian": "ta te kn ml",
    "Kartvelian": "ka",
    "Quechuan": "qu quz",
    "American, other": "chr gn ay nv",
    "Constructed": "eo ia ie io",
    "Creoles": "pcm tpi jam ht",
}
UNKNOWN = "other"
_OF = {code: family for family, codes in _FAMILIES.items() for code in codes.split()}


def family_of(language: str) -> str:
    """Returns the family of a BCP 47 tag; a script or region is left out ("zh-Hant" is as "zh")."""
    return _OF.get(language, _OF.get(language.split("-")[0], UNKNOWN))


def basis(embeddings: np.ndarray, variance: float = 0.99) -> np.ndarray:
    """Returns [N, K]: an orthonormal basis of the leading directions of centred embeddings [N, D].

    K is the smallest number of singular directions whose squared singular values are at least `variance` of all.

    Raises:
      ValueError: variance outside (0, 1], embeddings that are all equal, or fewer than two rows a direction: then any
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
    kept = min(int(np.searchsorted(explained, variance - 1e-12)) + 1, int(np.count_nonzero(values > 1e-10 * values[0])))
    if len(centred) < 2 * kept:
        raise ValueError(
            f"{len(centred)} sentences are too few for the {kept} directions that explain {variance:.0%} of their "
            f"variance: give at least {2 * kept}, or a smaller variance."
        )
    return left[:, :kept]


def _similarity(a: np.ndarray, b: np.ndarray) -> float:
    """The mean canonical correlation of two orthonormal bases: the singular values of their product."""
    return float(np.clip(np.linalg.svd(a.T @ b, compute_uv=False), 0.0, 1.0).mean())


def svcca_matrix(embeddings: Sequence[np.ndarray], variance: float = 0.99) -> np.ndarray:
    """Returns float64 [L, L]: the similarity of every two representations [N, D] of the same N sentences.

    All must be of the same sentences: correlations found in fewer sentences are larger, so that languages with the same
    gaps would look similar.
    """
    if len({len(rows) for rows in embeddings}) > 1:
        raise ValueError(f"Row i of all must be the same sentence; got {[len(rows) for rows in embeddings]} rows.")
    bases = [basis(rows, variance) for rows in embeddings]
    matrix = np.eye(len(bases))
    for i, j in itertools.combinations(range(len(bases)), 2):
        matrix[i, j] = matrix[j, i] = _similarity(bases[i], bases[j])
    return matrix


def laplacian_eigenmap(similarity: np.ndarray, neighbours: int = 0, seed: int = 0) -> np.ndarray:
    """Returns float64 [L, 2]: the two smooth directions of the similarity graph (Belkin and Niyogi, 2003).

    Args:
      similarity: [L, L], symmetric, not negative.
      neighbours: keep the edges to each language's most similar ones only (an edge stays if either end keeps it);
        0: all edges, as Kudugunta et al. (2019) and MURAL.
      seed: of the solver's start.

    Raises:
      UserError: fewer than four languages, or scikit-learn is not installed.
    """
    try:
        from sklearn.manifold import SpectralEmbedding
    except ImportError:
        raise UserError("The map needs scikit-learn: pip install 'mural-tf[evaluation]'.") from None
    if len(similarity) < 4:
        raise UserError(f"A map needs at least four languages; got {len(similarity)}.")
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
        raise UserError("Drawing needs matplotlib: pip install 'mural-tf[evaluation]'.") from None
    matplotlib.use("Agg")
    matplotlib.set_loglevel("warning")  # it logs its font cache
    from matplotlib import pyplot
    from matplotlib.textpath import TextPath

    families = [family_of(language) for language in languages]
    shown = sorted(set(families), key=lambda family: (-families.count(family), family))
    colors = {family: pyplot.get_cmap("tab20")(number % 20) for number, family in enumerate(shown)}
    markers = {family: "os^DvP"[number // 20 % 6] for number, family in enumerate(shown)}
    figure, axes = pyplot.subplots(figsize=(10, 7.5))
    points = _to_unit_square(points)
    for family in shown:
        members = [i for i, other in enumerate(families) if other == family]
        axes.scatter(*points[members].T, color=colors[family], marker=markers[family], s=44, label=family, zorder=2)
    axes.set_title(title, fontsize=11)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.08)
    axes.autoscale_view()
    places = axes.transData.transform(points) * 72 / figure.dpi  # in points, as sizes of fonts are
    extents = [TextPath((0, 0), language, size=LABEL).get_extents() for language in languages]
    offsets = label_offsets(places, [(extent.width + 2, LABEL) for extent in extents])
    for (x, y), offset, language in zip(points, offsets, languages):
        far = (
            {"arrowstyle": "-", "linewidth": 0.4, "color": "grey", "shrinkA": 0, "shrinkB": 3}
            if np.hypot(*offset) > FAR
            else None
        )
        options = {"textcoords": "offset points", "fontsize": LABEL, "ha": "center", "va": "center", "zorder": 3}
        axes.annotate(language, (x, y), offset, arrowprops=far, **options)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    paths = [folder / "languages.png", folder / "languages.svg"]
    for path in paths:
        with whole(path) as partial:
            figure.savefig(partial, dpi=150, bbox_inches="tight", format=path.suffix[1:])
    pyplot.close(figure)
    return paths


def _to_unit_square(points: np.ndarray) -> np.ndarray:
    """Scales both axes to [0, 1]."""
    low, high = points.min(axis=0), points.max(axis=0)
    return (points - low) / np.where(high > low, high - low, 1.0)


LABEL, MARKER, FAR = 9, 4, 18  # points: a label's height, a marker's radius, from where on a line leads to the label


def label_offsets(centres: np.ndarray, sizes: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns where the middle of each label goes, from its marker: as near as covers no marker and no earlier label.

    `centres`: of the markers, [L, 2]; `sizes`: width and height of the labels; all in points.
    """
    boxes = [(*(centre - MARKER), *(centre + MARKER)) for centre in centres]  # labels are added: left, low, right, high
    offsets = []
    for centre, size in zip(centres, np.asarray(sizes)):
        candidates = [centre + place for place in _places_around(size)]
        around = [(*(middle - size / 2), *(middle + size / 2)) for middle in candidates]
        others = np.array(boxes)
        best = _first_of_least(_overlap(box, others) for box in around)
        offsets.append(tuple(candidates[best] - centre))
        boxes.append(around[best])
    return offsets


def _places_around(size: np.ndarray) -> Iterator[np.ndarray]:
    """Yields middles of a label, rightwards first, farther and farther from (0, 0)."""
    for distance in (2, 6, 11, 17, 24, 32, 42, 55, 70, 90):
        for angle in np.linspace(0, 2 * np.pi, 16, endpoint=False):
            direction = np.array([np.cos(angle), np.sin(angle)])
            yield direction * (MARKER + distance + size / 2)


def _first_of_least(values: Iterable[float]) -> int:
    """Returns the place of the first 0, or else of the least value."""
    least, best = np.inf, 0
    for place, value in enumerate(values):
        if value < least:
            least, best = value, place
        if not value:
            break
    return best


def _overlap(box: tuple, others: np.ndarray) -> float:
    """Returns the area that a box shares with others, [N, 4]."""
    width = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    height = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    return float(np.sum(np.maximum(width, 0) * np.maximum(height, 0)))


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
    with whole(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


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
      UserError: see `read_parallel` and `laplacian_eigenmap`; too few sentences for SVCCA.
    """
    texts, notes = read_parallel(data_dir, split, languages, least_share)
    chosen, number = list(texts), len(next(iter(texts.values())))
    embeddings = [embedder.encode_text(sentences, progress=False) for sentences in texts.values()]
    try:
        matrix = svcca_matrix(embeddings, variance)
    except ValueError as error:
        raise UserError(
            f"The languages cannot be compared: {error} All {len(chosen)} languages share {number} sentences; fewer "
            "--languages or a larger --least_share leave more."
        ) from None
    points = laplacian_eigenmap(matrix, neighbours)
    folder = as_path(output)
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
