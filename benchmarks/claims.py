"""What the papers say of classes and of words, of models trained on the emoji benchmark (core), one line each.

    python -m benchmarks.claims docs/results/claims.csv data/emoji_core data/emoji_packages ALIGN=WORKDIR MURAL=...

Zero-shot classification ([ETCL] §5.2): the test's drawings into `CLASSES`, named by CLDR's character labels; accuracy@1
and @5, the means of languages. Languages without labels of their own (CLDR fills in English) are left out.

Translation ([Globetrotter] §5.3, Figures 9 and 11): Recall@1 between the test's names that all languages have, A from
language a to b, by the head that compares texts; its mean within and between families (`family_of`), the mean |A - Aᵀ|,
and which languages are most better as source than as target, in points. The file `claims_matrix.csv` holds A itself,
for each model. Words: as the benchmark "globetrotter".
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from benchmarks.results import write_rows
from benchmarks.table_rows import HELD_OUT
from mural_lite import command_line as cli
from mural_lite.embedder import class_embeddings
from mural_lite.errors import UserError
from mural_tf.analysis.languages import family_of
from mural_tf.demo.emoji import CORE, PACKAGES, UNDER_RESOURCED, WELL_RESOURCED, key_of_code_points, parse_json
from mural_tf.demo.npm_packages import Package, fetch_packages, read_members
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import encode_captions
from mural_tf.metrics import ranking

LABELS = Package(
    "cldr-misc-full",
    "48.2.0",
    "sha512-dSc2Tr53dQcUGwsTinamEeoP2YXOhQrIZ+SyeuUrv4MzJOSjT/Q0qkSmX11ZwfcTbYSkIqbrgALQLhAm1yf5fA==",
    size=588_129,
    license="Unicode-3.0",
)
CLASSES = {  # CLDR's label, its English where that differs → beginnings of "category/subcategory" in emoji.json
    "animal": ("Animals & Nature/animal",),
    "plant": ("Animals & Nature/plant",),
    "food_drink": ("Food & Drink/",),  # food & drink
    "flag": ("Flags/",),
    "body": ("People & Body/body", "People & Body/hand"),
    "person": ("People & Body/person-role", "People & Body/person-gesture", "People & Body/person-f",
               "People & Body/person-resting"),
    "smiley": ("Smileys & Emotion/face",),
    "heart": ("Smileys & Emotion/heart",),
    "sport": ("Activities/sport", "People & Body/person-sport"),
    "activities": ("Activities/event", "Activities/game", "Activities/arts"),  # activity
    "building": ("Travel & Places/place-building", "Travel & Places/place-religious"),
    "place": ("Travel & Places/place-geographic", "Travel & Places/place-map"),
    "travel": ("Travel & Places/transport",),
    "weather": ("Travel & Places/sky",),
    "objects": ("Objects/",),  # object
    "arrows": ("Symbols/arrow",),  # arrow
    "keycap": ("Symbols/keycap",),
    "math_symbols": ("Symbols/math",),  # math symbol
    "punctuation": ("Symbols/punctuation",),
    "geometric_shapes": ("Symbols/geometric",),  # geometric shape
}  # fmt: skip
GROUPS = {"English": ("en",), "nine": WELL_RESOURCED, "four": HELD_OUT,
          "twelve": tuple(language for language in UNDER_RESOURCED if language not in HELD_OUT)}  # fmt: skip


def classes_of_emoji(tarball: pathlib.Path) -> dict[str, int]:
    """Returns emoji key → number of its class, of the emoji that have one."""
    entries = parse_json(read_members(tarball, lambda path: path == "emoji.json")["emoji.json"], tarball, "emoji.json")
    kinds = {key_of_code_points(x["unified"]): f"{x['category']}/{x['subcategory']}" for x in entries}
    classes = {key: [i for i, of in enumerate(CLASSES.values()) if name.startswith(of)] for key, name in kinds.items()}
    return {key: numbers[0] for key, numbers in classes.items() if numbers}


def labels(tarball: pathlib.Path) -> dict[str, list[str]]:
    """Returns language → names of the classes, of the languages whose labels are not English's."""
    paths = {f"main/{language}/characterLabels.json": language for language in CORE}
    names_of = {}
    for path, content in read_members(tarball, lambda path: path in paths).items():
        locale_labels = parse_json(content, tarball, path)["main"][paths[path]]["characterLabels"]
        names_of[paths[path]] = [locale_labels[name] for name in CLASSES]
    return {language: names for language, names in names_of.items() if language == "en" or names != names_of["en"]}


def classification(embedder, data_dir: str, emoji: dict[str, int], names: dict[str, list[str]]) -> dict[str, str]:
    from mural_tf.data import records

    test_records = records.read_records(data_dir, records.IMAGE_TEXT, "test")
    test = {record.image_id.split("/")[1]: record.image for record in test_records}
    keys = [key for key in test if key in emoji]
    images = embedder.encode_image([test[key] for key in keys], progress=False)
    own = np.array([emoji[key] for key in keys])
    accuracy = {}
    for language, class_names in names.items():
        prototypes = class_embeddings(encode_captions(embedder, class_names, language), 1)
        ranks = ranking.ranks(images, prototypes, own)
        accuracy[language] = [ranking.recall_at(ranks, k) for k in (1, 5)]
    row = {"drawings": f"{len(keys)}", "classes": f"{len(CLASSES)}"}
    row["largest class"] = f"{100 * np.bincount(own).max() / len(own):.1f}"
    for index, k in enumerate((1, 5)):
        row[f"chance@{k}"] = f"{100 * k / len(CLASSES):.1f}"
        for group, members in GROUPS.items():
            accuracies = [accuracy[language][index] for language in members if language in accuracy]
            row[f"accuracy@{k}, {group} ({len(accuracies)} named)"] = f"{np.mean(accuracies):.1f}"
    return row


def translation_matrix(embeddings: list[np.ndarray]) -> np.ndarray:
    """Returns float64 [L, L]: Recall@1 in percent from language a (row) to b, of [N, D] each; the diagonal is 100."""
    own = np.arange(len(embeddings[0]))
    recalls = np.full((len(embeddings),) * 2, 100.0)
    for a, b in np.argwhere(~np.eye(len(embeddings), dtype=bool)):
        recalls[a, b] = ranking.recall_at(ranking.ranks(embeddings[a], embeddings[b], own), 1)
    return recalls


def translation(embedder, data_dir: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Returns a model's entries of the table, and the matrix, a line for each language."""
    from mural_tf.evaluation.globetrotter import globetrotter
    from mural_tf.evaluation.parallel import read_parallel

    texts, _ = read_parallel(data_dir, "test", CORE)
    head = embedder.with_text_head("text_text") if "text_text" in embedder.text_heads else embedder
    matrix = translation_matrix([encode_captions(head, lines, language) for language, lines in texts.items()])
    families = np.array([family_of(language) for language in texts])
    same, apart = families[:, None] == families, ~np.eye(len(texts), dtype=bool)
    better = dict(zip(texts, (matrix.sum(axis=1) - matrix.sum(axis=0)) / (len(texts) - 1)))
    ordered = sorted(better, key=better.get, reverse=True)
    row = {
        "names": f"{len(next(iter(texts.values())))}",
        "R@1": f"{matrix[apart].mean():.1f}",
        "within families": f"{matrix[same & apart].mean():.1f}",
        "between families": f"{matrix[~same].mean():.1f}",
        "asymmetry": f"{np.abs(matrix - matrix.T)[apart].mean():.1f}",
        "better as source": " ".join(f"{x} {better[x]:+.1f}" for x in ordered[:3]),
        "better as target": " ".join(f"{x} {-better[x]:+.1f}" for x in ordered[:-4:-1]),
    }
    request = Request(embedder, pathlib.Path(data_dir), "test", default_protocol())
    metrics, suffix = globetrotter(request)[0].metrics, list(request.text_heads())[-1]
    for name in ("raw", "rotated", "raw_without_identical", "rotated_without_identical"):
        row[f"words, {name.replace('_', ' ')}"] = f"{metrics[f'globetrotter/word_translation/{name}{suffix}']:.1f}"
    lines = [dict(zip(texts, map("{:.1f}".format, recalls))) for recalls in matrix]
    return row, [{"from": language, **line} for language, line in zip(texts, lines)]


def main(argv: Sequence[str]) -> None:
    from mural_lite.config_file import load_config
    from mural_lite.models import open_model

    if len(argv) < 5 or not all("=" in argument for argument in argv[4:]):
        raise UserError("Give OUTPUT.csv DATA_DIR PACKAGES NAME=WORKDIR …, see the file's beginning.")
    _, output, data_dir, cache, *named = argv
    tarballs = fetch_packages([PACKAGES[0], LABELS], cache)
    emoji, names = classes_of_emoji(tarballs[PACKAGES[0].name]), labels(tarballs[LABELS.name])
    rows, matrices = [], []
    for name, workdir in (x.split("=", 1) for x in named):
        embedder = open_model(workdir)
        entries, matrix = translation(embedder, data_dir)
        row = {"model": name, **entries}
        matrices += [{"model": name, **line} for line in matrix]
        if load_config(pathlib.Path(workdir) / "config.json").image_tower.name != "none":
            row.update(classification(embedder, data_dir, emoji, names))
        rows.append(row)
        print(row, flush=True)
    write_rows(output, rows)
    write_rows(pathlib.Path(output).with_name(f"{pathlib.Path(output).stem}_matrix.csv"), matrices)


if __name__ == "__main__":
    cli.run(main, positional=True)
