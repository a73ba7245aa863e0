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
EMOJI_LIST = "emoji.json"
GROUPS = {"English": ("en",), "nine": WELL_RESOURCED, "four": HELD_OUT,
          "twelve": tuple(language for language in UNDER_RESOURCED if language not in HELD_OUT)}  # fmt: skip


def classes_of_emoji(tarball: pathlib.Path) -> dict[str, int]:
    """Returns {emoji key, "1f34c" say: number of its class in `CLASSES`, from 0}, without emoji outside all classes.

    `tarball`: the package of the drawings.
    """
    members = read_members(tarball, lambda path: path == EMOJI_LIST)
    categories = {}
    for entry in parse_json(members[EMOJI_LIST], tarball, EMOJI_LIST):
        key = key_of_code_points(entry["unified"])
        categories[key] = f"{entry['category']}/{entry['subcategory']}"
    classes = {}
    for key, category in categories.items():
        for number, beginnings in enumerate(CLASSES.values()):
            if category.startswith(beginnings):
                classes[key] = number
                break
    return classes


def labels(tarball: pathlib.Path) -> dict[str, list[str]]:
    """Returns {language: names of the classes, in the order of `CLASSES`} for languages with labels of their own.

    `tarball`: CLDR's package `LABELS`.
    """
    languages = {f"main/{language}/characterLabels.json": language for language in CORE}
    names = {}
    for path, content in read_members(tarball, lambda path: path in languages).items():
        language = languages[path]
        locale_labels = parse_json(content, tarball, path)["main"][language]["characterLabels"]
        names[language] = [locale_labels[name] for name in CLASSES]
    english = names["en"]
    return {language: classes for language, classes in names.items() if language == "en" or classes != english}


def classification(
    embedder, data_dir: str, classes: dict[str, int], class_names: dict[str, list[str]]
) -> dict[str, str]:
    """Returns {column: cell} of the table for a model's zero-shot classification of the test's drawings.

    Args:
      embedder: the model.
      data_dir: the emoji benchmark's folder.
      classes: {emoji key: number of its class}, see `classes_of_emoji`.
      class_names: {language: names of the classes}, see `labels`.
    """
    from mural_tf.data import records

    pictures = {}
    for record in records.read_records(data_dir, records.IMAGE_TEXT, "test"):
        _, key = record.image_id.split("/")  # the drawing style, the emoji
        if key in classes:
            pictures[key] = record.image
    image_vectors = embedder.encode_image(list(pictures.values()), progress=False)
    right_classes = np.array([classes[key] for key in pictures])
    accuracy = {}  # {(language, k): percent}
    for language, names in class_names.items():
        prototypes = class_embeddings(encode_captions(embedder, names, language), 1)  # one template: the name itself
        ranks = ranking.ranks(image_vectors, prototypes, right_classes)
        for k in (1, 5):
            accuracy[language, k] = ranking.recall_at(ranks, k)
    row = {"drawings": f"{len(pictures)}", "classes": f"{len(CLASSES)}"}
    row["largest class"] = f"{100 * np.bincount(right_classes).max() / len(right_classes):.1f}"
    for k in (1, 5):
        row[f"chance@{k}"] = f"{100 * k / len(CLASSES):.1f}"
        for group, members in GROUPS.items():
            accuracies = [accuracy[language, k] for language in members if language in class_names]
            row[f"accuracy@{k}, {group} ({len(accuracies)} named)"] = f"{np.mean(accuracies):.1f}"
    return row


def translation_matrix(embeddings: list[np.ndarray]) -> np.ndarray:
    """Returns Recall@1 in percent from language a (row) to b (column), float64 [L, L]; the diagonal is 100.

    `embeddings`: each language's vectors of the same N names, [N, D].
    """
    count = len(embeddings)
    right_names = np.arange(len(embeddings[0]))
    recalls = np.full((count, count), 100.0)
    for a, b in np.argwhere(~np.eye(count, dtype=bool)):
        recalls[a, b] = ranking.recall_at(ranking.ranks(embeddings[a], embeddings[b], right_names), 1)
    return recalls


def translation(embedder, data_dir: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Returns ({column: cell} of the table for a model's translation, the matrix's rows, {column: cell} each).

    `embedder`: the model; `data_dir`: the emoji benchmark's folder.
    """
    from mural_tf.evaluation.globetrotter import globetrotter
    from mural_tf.evaluation.parallel import read_parallel

    texts, _ = read_parallel(data_dir, "test", CORE)
    languages = list(texts)
    head = embedder
    if "text_text" in embedder.text_heads:
        head = embedder.with_text_head("text_text")
    matrix = translation_matrix([encode_captions(head, names, language) for language, names in texts.items()])
    row = {"names": f"{len(texts[languages[0]])}", **_cells_of_matrix(matrix, languages)}
    request = Request(embedder, pathlib.Path(data_dir), "test", default_protocol())
    evaluation, *_ = globetrotter(request)
    metrics = evaluation.metrics
    *_, suffix = request.text_heads()  # a head's metrics end with its suffix; the last is the text-text head's, if any
    for name in ("raw", "rotated", "raw_without_identical", "rotated_without_identical"):
        row[f"words, {name.replace('_', ' ')}"] = f"{metrics[f'globetrotter/word_translation/{name}{suffix}']:.1f}"
    matrix_rows = []
    for source, recalls in zip(languages, matrix):
        cells = {target: f"{recall:.1f}" for target, recall in zip(languages, recalls)}
        matrix_rows.append({"from": source, **cells})
    return row, matrix_rows


def _cells_of_matrix(matrix: np.ndarray, languages: list[str]) -> dict[str, str]:
    """Returns {column: cell} of the table for a matrix of `translation_matrix`, [L, L], of the languages."""
    families = np.array([family_of(language) for language in languages])  # [L]
    is_same_family = families[:, None] == families  # [L, L], from [L, 1] and [L]
    is_other_language = ~np.eye(len(languages), dtype=bool)  # [L, L]
    as_source = matrix.sum(axis=1)  # [L]
    as_target = matrix.sum(axis=0)
    advantages = (as_source - as_target) / (len(languages) - 1)
    advantage_of = dict(zip(languages, advantages))
    ordered = sorted(languages, key=advantage_of.get, reverse=True)
    worst_first = ordered[::-1]  # the first three of both orders are shown
    return {
        "R@1": f"{matrix[is_other_language].mean():.1f}",
        "within families": f"{matrix[is_same_family & is_other_language].mean():.1f}",
        "between families": f"{matrix[~is_same_family].mean():.1f}",
        "asymmetry": f"{np.abs(matrix - matrix.T)[is_other_language].mean():.1f}",
        "better as source": " ".join(f"{language} {advantage_of[language]:+.1f}" for language in ordered[:3]),
        "better as target": " ".join(f"{language} {-advantage_of[language]:+.1f}" for language in worst_first[:3]),
    }


def main(argv: Sequence[str]) -> None:
    """Measures the models that the arguments name, prints their rows, and writes the table and the matrices.

    `argv`: the program's name, then OUTPUT.csv DATA_DIR PACKAGES NAME=WORKDIR …; raises `UserError` for others.
    """
    from mural_lite.config_file import load_config
    from mural_lite.models import open_model

    if len(argv) < 5 or not all("=" in argument for argument in argv[4:]):
        raise UserError("Give OUTPUT.csv DATA_DIR PACKAGES NAME=WORKDIR …, see the file's beginning.")
    _, output, data_dir, cache, *models = argv
    drawings_package = PACKAGES[0]
    tarballs = fetch_packages([drawings_package, LABELS], cache)
    classes = classes_of_emoji(tarballs[drawings_package.name])
    class_names = labels(tarballs[LABELS.name])
    rows = []
    matrices = []
    for model in models:
        name, workdir = model.split("=", 1)
        embedder = open_model(workdir)
        entries, matrix_rows = translation(embedder, data_dir)
        row = {"model": name, **entries}
        matrices += [{"model": name, **matrix_row} for matrix_row in matrix_rows]
        if load_config(pathlib.Path(workdir) / "config.json").image_tower.name != "none":
            row.update(classification(embedder, data_dir, classes, class_names))
        rows.append(row)
        print(row, flush=True)
    write_rows(output, rows)
    path = pathlib.Path(output)
    write_rows(path.with_name(f"{path.stem}_matrix.csv"), matrices)


if __name__ == "__main__":
    cli.run(main, positional=True)
