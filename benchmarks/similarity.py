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
    names = features.pop("CODE")  # such as "GEOLOC_12_-34"
    latitudes, longitudes = np.radians([list(map(float, name.split("_")[1:])) for name in names]).T
    points = np.stack(
        [np.cos(latitudes) * np.cos(longitudes), np.cos(latitudes) * np.sin(longitudes), np.sin(latitudes)], axis=1
    )
    positions = np.full((len(languages), 3), np.nan)
    for row, tag in enumerate(languages):
        distances = features.get(code_of.get(tag), ["--"])
        if "--" not in distances:
            cosines = np.cos(np.pi * np.array(distances, float))
            vector = np.linalg.lstsq(points, cosines, rcond=None)[0]
            positions[row] = vector / np.linalg.norm(vector)
    return positions


def mantel(left: np.ndarray, right: np.ndarray, fixed: np.ndarray | None = None, seed: int = 0) -> tuple[float, float]:
    """Returns the correlation of two symmetric matrices [L, L] above their diagonals, and its one-sided p.

    p is for as large a correlation when the languages of `left` are shuffled. With `fixed`, a third such matrix, it is
    the partial correlation (Smouse et al., 1986).
    """
    upper = np.triu_indices(len(left), 1)

    def correlation(matrix: np.ndarray) -> float:
        table = np.corrcoef([other[upper] for other in (matrix, right, fixed) if other is not None])
        if fixed is None:
            return float(table[0, 1])
        direct, one_fixed, other_fixed = table[np.triu_indices(3, 1)]
        return float((direct - one_fixed * other_fixed) / np.sqrt((1 - one_fixed**2) * (1 - other_fixed**2)))

    measured = correlation(left)
    generator = np.random.default_rng(seed)
    orders = (generator.permutation(len(left)) for _ in range(PERMUTATIONS))
    larger = sum(correlation(left[np.ix_(order, order)]) >= measured - 1e-12 for order in orders)
    return measured, (larger + 1) / (PERMUTATIONS + 1)


def purity(similarity: np.ndarray, families: list[str]) -> tuple[float, float]:
    """Returns, in percent, the share of languages whose most similar language is of their family, and by chance.

    `similarity`: [L, L]. Languages without a relative do not count; (nan, nan) if no language has a relative.
    """
    same = np.array(families)[:, None] == np.array(families)  # [L, L]
    np.fill_diagonal(same, False)
    has_relative = same.any(axis=1)  # [L]
    to_others = similarity.copy()
    np.fill_diagonal(to_others, -np.inf)
    hits = same[np.arange(len(same)), np.argmax(to_others, axis=1)]
    by_chance = same[has_relative].sum(axis=1).mean() / (len(same) - 1)
    return 100 * float(hits[has_relative].mean()), 100 * float(by_chance)


def rank(similarity: np.ndarray, of: int, partner: int) -> int:
    """Returns the rank of `partner` among the others by their similarity to `of`; equals rank last."""
    row = np.delete(similarity[of], of)
    return int((row >= similarity[of, partner]).sum())


def measure(path: str) -> dict[str, str]:
    """Returns {column: number} of one similarity.csv."""
    with open(path, encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    tags = head[1:]
    matrix = np.array([line[1:] for line in lines], float)
    located = places(tags)
    kept = []
    left_out = []
    for row, tag in enumerate(tags):
        if "-" in tag:
            continue
        if np.isnan(located[row]).any():
            left_out.append(tag)
        elif family_of(tag) not in ("Constructed", "Creoles"):
            kept.append(row)
    if len(kept) < 4:
        raise UserError(f"{path}: {len(kept)} languages have a family and a place; at least four are needed.")
    print(f"{path}: {len(kept)} of {len(tags)} languages; without a place: {', '.join(left_out) or 'none'}")
    tags = [tags[row] for row in kept]
    matrix = matrix[np.ix_(kept, kept)]
    located = located[kept]
    families = list(map(family_of, tags))
    same = (np.array(families)[:, None] == np.array(families)).astype(float)
    near = -np.arccos(np.clip(located @ located.T, -1, 1))
    row = {"languages": f"{len(kept)}"}
    compared = {
        "family": (same,),
        "nearness": (near,),
        "family, nearness fixed": (same, near),
        "nearness, family fixed": (near, same),
    }
    for name, others in compared.items():
        value, p = mantel(matrix, *others)
        row[name] = f"{value:.3f}"
        row[f"p, {name}"] = f"{p:.4f}"
    share, by_chance = purity(matrix, families)
    row["nearest of the same family, %"] = f"{share:.1f}"
    row["by chance, %"] = f"{by_chance:.1f}"
    for pair in NAMED:
        first, second = pair.split("-")
        column = f"rank, {first}–{second}"
        row[column] = ""
        if first in tags and second in tags:
            a, b = tags.index(first), tags.index(second)
            row[column] = f"{rank(matrix, a, b)} and {rank(matrix, b, a)}"
    return row


def main() -> None:
    output, *named = sys.argv[1:]
    rows = []
    for argument in named:
        name, path = argument.split("=", 1)
        rows.append({"model": name, **measure(path)})
    write_rows(output, rows)


if __name__ == "__main__":
    main()
