"""How far the similarity of languages follows families and distances on the map ([MURAL] §5, Figure 3).

    pip install lang2vec langcodes
    python -m benchmarks.similarity docs/results/similarity.csv ALIGN=maps/align/similarity.csv MURAL=maps/mural/...

Prints for each similarity.csv, as `python -m mural_tf analyse languages` writes it: Mantel's correlation with "of the
same family" (`family_of`) and with distance (great-circle, negated: near is similar), each also partial, the other held
fixed, and p of 9,999 permutations of the languages (one-sided); the share of languages whose most similar language
belongs to the same family, where the family has another member here, and the same share for a random neighbour; and of
the pairs that the paper's text names as near the rank of each one among all others' similarities to the other: the
second's, the first's.

A language counts once, by its plain tag; constructed languages, creoles, and those without a place are left out.
Places: URIEL (Littell et al., 2017) out of lang2vec (CC BY-SA 4.0), whose 299 points' distances locate a language.
"""

from __future__ import annotations

import csv
import sys

import numpy as np

from benchmarks.results import write_rows
from mural_lite.errors import UserError
from mural_tf.analysis.languages import family_of

PERMUTATIONS = 9_999
NAMED = "ro-bg ro-mk bg-mk en-fr fi-ru et-ru hu-cs".split()  # [MURAL] §5
# {tag: URIEL's code of a language that represents it}, such as Standard Arabic for Arabic.
MACRO = {"ar": "arb", "az": "azj", "fa": "pes", "lv": "lvs", "mn": "khk", "ms": "zsm", "ne": "npi", "or": "ory",
         "qu": "quz", "sq": "als", "sw": "swh", "uz": "uzn", "yi": "ydd", "zh": "cmn", "no": "nob",
         "ku": "kmr", "et": "ekk", "mg": "plt", "om": "gaz", "sc": "src", "fil": "tgl", "ff": "fuc",
         "kok": "knn", "nn": "nob", "ps": "pst"}  # fmt: skip


def places(languages: list[str]) -> np.ndarray:
    """Returns the places of languages, float64 [L, 3], points on the unit sphere; NaN for unknown places.

    URIEL has, for each language, the distances to fixed points, as shares of half the Earth's circumference: a
    language's vector x solves `points @ x = cos(π distance)`.
    """
    import lang2vec.lang2vec as uriel
    from langcodes import Language

    available = uriel.available_uriel_languages()
    code_of = {}
    for tag in languages:
        for code in (Language.get(tag).to_alpha3(), MACRO.get(tag)):  # the second if both are known
            if code in available:
                code_of[tag] = code
    features = uriel.get_features(list(code_of.values()), "geo", header=True)
    points = _points(features.pop("CODE"))  # [P, 3]
    positions = np.full((len(languages), 3), np.nan)
    for row, tag in enumerate(languages):
        distances = features.get(code_of.get(tag), ["--"])
        if "--" not in distances:
            cosines = np.cos(np.pi * np.array(distances, float))  # [P]
            vector, *_ = np.linalg.lstsq(points, cosines, rcond=None)  # [3]
            positions[row] = vector / np.linalg.norm(vector)
    return positions


def _points(names: list[str]) -> np.ndarray:
    """Returns the points that URIEL's names say, such as "GEOLOC_12_-34", float64 [P, 3] on the unit sphere."""
    latitudes = []
    longitudes = []
    for name in names:
        _, latitude, longitude = name.split("_")
        latitudes.append(float(latitude))
        longitudes.append(float(longitude))
    phi = np.radians(latitudes)
    theta = np.radians(longitudes)
    return np.stack([np.cos(phi) * np.cos(theta), np.cos(phi) * np.sin(theta), np.sin(phi)], axis=1)


def mantel(left: np.ndarray, right: np.ndarray, fixed: np.ndarray | None = None, seed: int = 0) -> tuple[float, float]:
    """Returns (correlation, one-sided p) of two symmetric matrices [L, L], taken above their diagonals.

    p is the probability of as large a correlation when the languages of `left` are shuffled. With `fixed`, a third such
    matrix, it is the partial correlation (Smouse et al., 1986).
    """
    upper = np.triu_indices(len(left), 1)

    def correlation(matrix: np.ndarray) -> float:
        if fixed is None:
            return float(np.corrcoef([matrix[upper], right[upper]])[0, 1])
        table = np.corrcoef([matrix[upper], right[upper], fixed[upper]])
        direct, left_fixed, right_fixed = table[np.triu_indices(3, 1)]
        return float((direct - left_fixed * right_fixed) / np.sqrt((1 - left_fixed**2) * (1 - right_fixed**2)))

    measured = correlation(left)
    generator = np.random.default_rng(seed)
    orders = (generator.permutation(len(left)) for _ in range(PERMUTATIONS))
    larger = sum(correlation(left[np.ix_(order, order)]) >= measured - 1e-12 for order in orders)
    return measured, (larger + 1) / (PERMUTATIONS + 1)


def purity(similarity: np.ndarray, families: list[str]) -> tuple[float, float]:
    """Returns the percentage of languages whose most similar language is of their family, and the percentage by chance.

    `similarity`: [L, L]. Languages without a relative do not count; (nan, nan) if no language has a relative.
    """
    same = np.array(families)[:, None] == np.array(families)  # [L, L]
    np.fill_diagonal(same, False)
    with_relative = same.any(axis=1)  # [L]
    to_others = similarity.copy()
    np.fill_diagonal(to_others, -np.inf)
    hits = same[np.arange(len(same)), np.argmax(to_others, axis=1)]
    by_chance = same[with_relative].sum(axis=1).mean() / (len(same) - 1)
    return 100 * float(hits[with_relative].mean()), 100 * float(by_chance)


def rank(similarity: np.ndarray, language: int, partner: int) -> int:
    """Returns the rank, from 1, of `partner` among the others by their similarity to `language`; equals rank last."""
    to_others = np.delete(similarity[language], language)
    return int((to_others >= similarity[language, partner]).sum())


def measure(path: str) -> dict[str, str]:
    """Returns the table's entries, {column: cell}, for one similarity.csv."""
    with open(path, encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    all_tags = head[1:]
    located = places(all_tags)
    rows, without_place = _compared(all_tags, located)
    if len(rows) < 4:
        raise UserError(f"{path}: {len(rows)} languages have a family and a place; at least four are needed.")
    print(f"{path}: {len(rows)} of {len(all_tags)} languages; without a place: {', '.join(without_place) or 'none'}")
    tags = [all_tags[row] for row in rows]
    matrix = np.array([line[1:] for line in lines], float)[np.ix_(rows, rows)]  # [L, L]
    located = located[rows]  # [L, 3]
    families = list(map(family_of, tags))
    same = (np.array(families)[:, None] == np.array(families)).astype(float)  # [L, L], from [L, 1] and [L]
    near = -np.arccos(np.clip(located @ located.T, -1, 1))  # [L, L]
    cells = {"languages": f"{len(rows)}"}
    correlations = {
        "family": mantel(matrix, same),
        "nearness": mantel(matrix, near),
        "family, nearness fixed": mantel(matrix, same, fixed=near),
        "nearness, family fixed": mantel(matrix, near, fixed=same),
    }
    for name, (correlation, p) in correlations.items():
        cells[name] = f"{correlation:.3f}"
        cells[f"p, {name}"] = f"{p:.4f}"
    share, by_chance = purity(matrix, families)
    cells["nearest of the same family, %"] = f"{share:.1f}"
    cells["by chance, %"] = f"{by_chance:.1f}"
    return cells | _ranks_of_named(tags, matrix)


def _compared(tags: list[str], located: np.ndarray) -> tuple[list[int], list[str]]:
    """Returns (the rows of languages that are compared, the tags of others that have no place).

    `located`: what `places` returns for the tags. A variant such as "pt-BR" counts by its language's plain tag only.
    """
    rows = []
    without_place = []
    for row, tag in enumerate(tags):
        if "-" in tag:
            continue
        if np.isnan(located[row]).any():
            without_place.append(tag)
        elif family_of(tag) not in ("Constructed", "Creoles"):
            rows.append(row)
    return rows, without_place


def _ranks_of_named(tags: list[str], matrix: np.ndarray) -> dict[str, str]:
    """Returns {column: cell} with the ranks of the pairs in `NAMED`; a pair without both languages has an empty cell.

    `matrix`: the similarities [L, L] of the languages `tags`.
    """
    cells = {}
    for pair in NAMED:
        first, second = pair.split("-")
        column = f"rank, {first}–{second}"
        cells[column] = ""
        if first in tags and second in tags:
            first_row = tags.index(first)
            second_row = tags.index(second)
            cells[column] = f"{rank(matrix, first_row, second_row)} and {rank(matrix, second_row, first_row)}"
    return cells


def main() -> None:
    """Writes the table of the similarities that the command line names."""
    output, *models = sys.argv[1:]
    rows = []
    for model in models:
        name, path = model.split("=", 1)
        rows.append({"model": name, **measure(path)})
    write_rows(output, rows)


if __name__ == "__main__":
    main()
