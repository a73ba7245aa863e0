"""Babel-ImageNet (Geigle et al., 2023): zero-shot classification by the classes' names in 92 languages and English.

Each language names 18 to 1,000 of ImageNet's classes. A photograph of a named class goes to the class whose name has
the largest cosine; names are encoded as they are, without a template. The authors' own results of twelve models, also
by bare names, are shown next to ours. They are of ImageNet's 50,000 validation photographs, so other photographs are
not like with like: a sample may be of ImageNet's training set, which many image towers learned.
"""

from __future__ import annotations

import collections
import pathlib
import re

import numpy as np

from mural_lite.errors import UserError
from mural_lite.files import check_json, json_field, read_json
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation, add_groups
from mural_tf.evaluation.zero_shot import BABEL, Prompts, measure_language, names_by_number

CLASSES = 1000
VALIDATION = 50_000  # photographs
MANY = 50  # classes of a language, from which on its accuracy enters the group's mean
GROUP = f"{MANY} classes or more, without English"
NOT_ALIKE = (
    "The published columns are NOT LIKE WITH LIKE: they are of 50,000 validation photographs, ours of {images:,} other "
    "photographs, which may be of ImageNet's training set, which the image tower may have learned. With one photograph "
    "per class, {few} classes give a standard error of about 7 points."
)


def babel_imagenet(request: Request) -> list[Evaluation]:
    """Measures accuracy@1 and @5 of photographs among the classes that a language names, for each language."""
    labels_file = request.folder / "Babel-ImageNet/data" / BABEL
    if not labels_file.is_file():
        labels_file = request.folder / BABEL  # `needs` in benchmarks.tsv has made sure of one of the two
    names = {}
    for code, lists in read_json(labels_file).items():
        names[code.lower().replace("_", "-")] = names_by_number(lists, code, labels_file)
    unknown = sorted(set(request.languages) - set(names))
    if unknown:
        raise UserError(f"No class names in {', '.join(unknown)}; there are {', '.join(sorted(names))}.")
    paths, labels = list_photographs(request.folder)
    images, readable, notes = request.encode_images(paths, "Babel-ImageNet")
    protocol = f"class by its bare name; {len(readable):,} photographs, {CLASSES:,} classes"
    result = Evaluation("babel_imagenet", request.split, protocol, {}, {})
    for language in request.languages or sorted(names):
        prompts = Prompts(names[language], ["{}"])
        measure_language(request, result, language, prompts, images, labels[readable], CLASSES)
    # Without the languages' notes on templates and missing classes, which the protocol and the sizes say at once.
    result.notes = notes
    large_languages = [row for row, size in result.sizes.items() if size["classes"] >= MANY and row != "en"]
    groups = {GROUP: large_languages}
    for metric in ("accuracy@1", "accuracy@5"):
        add_groups(result, groups, metric)
    # The authors' results lie next to the labels' folder in their repository.
    result.published = _published(labels_file.parent.parent / "results/babel-imagenet", result, large_languages)
    if result.published and len(paths) != VALIDATION:
        result.notes.append(NOT_ALIKE.format(images=len(paths), few=MANY))
    return [result]


def list_photographs(folder: pathlib.Path) -> tuple[list[pathlib.Path], np.ndarray]:
    """Returns the N photographs and their classes, int [N]: a class's number is its place among the sorted synsets.

    Photographs are `imagenet-sample-images/n01440764_tench.JPEG` or `val/n01440764/….JPEG`. Raises `UserError` if their
    synsets are not 1,000, so that the classes' numbers are unknown.
    """
    files = [*folder.glob("imagenet-sample-images/n*.JPEG"), *folder.glob("val/n*/*")]
    photographs = []
    synsets = []
    for path in sorted(files):
        synset = re.match(r"n\d{8}(?=_)", path.name) or re.fullmatch(r"n\d{8}", path.parent.name)
        if synset:
            photographs.append(path)
            synsets.append(synset[0])
    classes, labels = np.unique(synsets, return_inverse=True)
    if len(classes) != CLASSES:
        raise UserError(
            f"The photographs in {folder} are of {len(classes)} of ImageNet's {CLASSES:,} classes, whose order numbers "
            "the names: expected imagenet-sample-images/n01440764_tench.JPEG or val/n01440764/….JPEG of all. Fetch "
            "them again."
        )
    return photographs, labels


def _published(folder: pathlib.Path, result: Evaluation, large_languages: list[str]) -> dict[str, dict[str, float]]:
    """Returns {row: {model: accuracy@1 in percent}} of the published files in a folder, a file per model.

    Rows are the languages of `result`, our evaluation, and `GROUP`, the mean over `large_languages`.
    """
    published = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.json")):
        accuracies = _accuracies_in(path, result)
        if large_languages and accuracies.keys() >= set(large_languages):
            accuracies[GROUP] = float(np.mean([accuracies[language] for language in large_languages]))
        for row, accuracy in accuracies.items():
            published[row][path.stem] = accuracy
    return dict(published)


def _accuracies_in(path: pathlib.Path, result: Evaluation) -> dict[str, float]:
    """Returns {language: accuracy@1 in percent} of a published file, for languages with as many classes as in ours."""
    accuracies = {}
    for row in json_field(read_json(path), "results", list[dict], path):
        language = json_field(row, "lang", str, path).lower().replace("_", "-")
        if language not in result.sizes or row.get("num_classes") != result.sizes[language]["classes"]:
            continue
        if row.get("prompt") == "label":  # the class's name alone, as in our evaluation
            accuracies[language] = 100.0 * check_json(row.get("accuracy"), float, "accuracy", path)
    return accuracies
