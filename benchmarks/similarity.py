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
    """Returns the places of L languages, float64 [L, 3], points on the unit sphere; an unknown place is NaN.

    URIEL has, for each language, the distances to fixed points, as shares of half the Earth's circumference: a
    language's place x solves `points @ x = cos(π distance)`.
    """
    import lang2vec.lang2vec as uriel
    from langcodes import Language

    available = uriel.available_uriel_languages()
    code_of = {}
    for tag in languages:
        for code in (Language.get(tag).to_alpha3(), MACRO.get(tag)):  # MACRO's if URIEL has both
            if code in available:
                code_of[tag] = code
    features = uriel.get_features(list(code_of.values()), "geo", header=True)
    points = _points(features.pop("CODE"))  # [P, 3]
    positions = np.full((len(languages), 3), np.nan)
    for row, tag in enumerate(languages):
        distances = features.get(code_of.get(tag), ["--"])
        if "--" not in distances:  # URIEL's sign for an unknown distance
            cosines = np.cos(np.pi * np.array(distances, float))  # [P]
            vector, *_ = np.linalg.lstsq(points, cosines, rcond=None)  # [3]
            positions[row] = vector / np.linalg.norm(vector)
    return positions


def _points(names: list[str]) -> np.ndarray:
    """Returns the points of P names of URIEL, float64 [P, 3] on the unit sphere.

    A name has the latitude and the longitude in degrees: "GEOLOC_12_-34".
    """
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
    """Returns Mantel's test of two matrices: (correlation of their entries above the diagonal, one-sided p).

    p is the probability of as large a correlation when the languages of `left` are shuffled.

    Args:
      left, right: symmetric matrices, [L, L].
      fixed: a third such matrix, for the partial correlation with it held fixed (Smouse et al., 1986).
      seed: the seed of the shuffling.
    """
    upper = np.triu_indices(len(left), 1)

    def correlation(matrix: np.ndarray) -> float:
        """Returns the correlation, or partial correlation, of a matrix with `right`."""
        if fixed is None:
            return float(np.corrcoef([matrix[upper], right[upper]])[0, 1])
        table = np.corrcoef([matrix[upper], right[upper], fixed[upper]])
        direct, left_fixed, right_fixed = table[np.triu_indices(3, 1)]
        return float((direct - left_fixed * right_fixed) / np.sqrt((1 - left_fixed**2) * (1 - right_fixed**2)))

    measured = correlation(left)
    generator = np.random.default_rng(seed)
    orders = (generator.permutation(len(left)) for _ in range(PERMUTATIONS))
    # 1e-12: equal correlations may differ by rounding. The order as it is counts as a permutation, too.
    as_large = sum(correlation(left[np.ix_(order, order)]) >= measured - 1e-12 for order in orders)
    return measured, (as_large + 1) / (PERMUTATIONS + 1)


def purity(similarity: np.ndarray, families: list[str]) -> tuple[float, float]:
    """Returns (percent of languages whose most similar language is a relative, the same percent by chance).

    Relatives are languages of a family. Languages without a relative do not count; (nan, nan) if no language counts.

    Args:
      similarity: the languages' similarities, [L, L].
      families: the languages' families, L names.
    """
    are_relatives = np.array(families)[:, None] == np.array(families)  # [L, L]
    np.fill_diagonal(are_relatives, False)
    has_relative = are_relatives.any(axis=1)  # [L]
    to_others = similarity.copy()
    np.fill_diagonal(to_others, -np.inf)
    is_hit = are_relatives[np.arange(len(families)), np.argmax(to_others, axis=1)]  # [L]
    by_chance = are_relatives[has_relative].sum(axis=1).mean() / (len(families) - 1)
    return 100 * float(is_hit[has_relative].mean()), 100 * float(by_chance)


def rank(similarity: np.ndarray, language: int, partner: int) -> int:
    """Returns the rank, from 1 on, of a language's partner among all other languages by their similarity to it.

    The partner comes after all that are equally similar.

    Args:
      similarity: the languages' similarities, [L, L].
      language, partner: their rows.
    """
    to_others = np.delete(similarity[language], language)
    return int((to_others >= similarity[language, partner]).sum())


def measure(path: str) -> dict[str, str]:
    """Returns the table's cells for a similarity.csv, {column: text}, and prints how many languages are compared.

    Raises `UserError` for fewer than four languages.
    """
    with open(path, encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    all_tags = head[1:]
    all_positions = places(all_tags)
    rows, without_place = _compared(all_tags, all_positions)
    if len(rows) < 4:
        raise UserError(f"{path}: {len(rows)} languages have a family and a place; at least four are needed.")
    print(f"{path}: {len(rows)} of {len(all_tags)} languages; without a place: {', '.join(without_place) or 'none'}")
    tags = [all_tags[row] for row in rows]
    matrix = np.array([line[1:] for line in lines], float)[np.ix_(rows, rows)]  # [L, L]
    positions = all_positions[rows]  # [L, 3]
    families = list(map(family_of, tags))
    same_family = (np.array(families)[:, None] == np.array(families)).astype(float)  # [L, L], from [L, 1] and [L]
    nearness = -np.arccos(np.clip(positions @ positions.T, -1, 1))  # [L, L], negated great-circle distances
    cells = {"languages": f"{len(rows)}"}
    correlations = {
        "family": mantel(matrix, same_family),
        "nearness": mantel(matrix, nearness),
        "family, nearness fixed": mantel(matrix, same_family, fixed=nearness),
        "nearness, family fixed": mantel(matrix, nearness, fixed=same_family),
    }
    for name, (correlation, p) in correlations.items():
        cells[name] = f"{correlation:.3f}"
        cells[f"p, {name}"] = f"{p:.4f}"
    share, by_chance = purity(matrix, families)
    cells["nearest of the same family, %"] = f"{share:.1f}"
    cells["by chance, %"] = f"{by_chance:.1f}"
    return cells | _ranks_of_named(tags, matrix)


def _compared(tags: list[str], positions: np.ndarray) -> tuple[list[int], list[str]]:
    """Returns (the rows of the languages that are compared, the tags of languages without a place).

    Left out are also variants such as "pt-BR", constructed languages and creoles.

    Args:
      tags: the languages, L tags.
      positions: their places, [L, 3], see `places`.
    """
    rows = []
    without_place = []
    for row, tag in enumerate(tags):
        if "-" in tag:
            continue
        if np.isnan(positions[row]).any():
            without_place.append(tag)
        elif family_of(tag) not in ("Constructed", "Creoles"):
            rows.append(row)
    return rows, without_place


def _ranks_of_named(tags: list[str], matrix: np.ndarray) -> dict[str, str]:
    """Returns {column: "12 and 3"} of the pairs in `NAMED`, the rank of the second for the first, and of the first.

    A pair has an empty cell if a language is missing. `matrix`: the similarities, [L, L], of the languages `tags`.
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
    """Writes the table of the similarities that the command line names; raises `UserError` for too few languages."""
    output, *models = sys.argv[1:]
    rows = []
    for model in models:
        name, path = model.split("=", 1)
        rows.append({"model": name, **measure(path)})
    write_rows(output, rows)


if __name__ == "__main__":
    main()
