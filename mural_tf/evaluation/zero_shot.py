"""Zero-shot classification (CLIP, Radford et al., 2021, §3.1.4; ETCL §5.2): ImageNet, CIFAR-100, SUN397, Food-101.

A class is represented by the normalised mean of the normalised embeddings of its name in every template; an image
goes to the class with the largest cosine. Accuracy@1 and @5, per language; languages come from the files of class
names (`class_names.py`). Where a language names some of the classes only, the others and their images are left out,
and it says so.
"""

from __future__ import annotations

import json
import pathlib
import pickle
from collections.abc import Sequence

import numpy as np

from mural_tf.config import ConfigurationError
from mural_tf.data.text_files import read_lines
from mural_tf.evaluation.class_names import Prompts, read_prompts
from mural_tf.evaluation.neighbours import list_class_folders
from mural_tf.evaluation.pool import add_groups
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.result import Evaluation
from mural_tf.metrics import ranking

ACCURACIES = (1, 5)
GROUPS = {  # ETCL §4.1
    "well-resourced": tuple("en de fr cs ja zh ru pl tr".split()),
    "under-resourced": tuple("uz ga be mg ceb".split()),
}


def imagenet(request: Request) -> list[Evaluation]:
    """ImageNet's 50,000 validation images; labels are the class folders in alphabetical order."""
    paths, folders = list_class_folders(request.folder / request.split)
    classes = sorted(set(folders))
    labels = np.searchsorted(classes, folders)
    return _classify(request, "imagenet", paths, labels, len(classes), None, expected=50_000)


def cifar100(request: Request) -> list[Evaluation]:
    """CIFAR-100's 10,000 test images, 32 x 32, with its fine labels."""
    folder = request.folder / "cifar-100-python"
    names = [name.replace("_", " ") for name in _unpickle(folder / "meta")["fine_label_names"]]
    data = _unpickle(folder / request.split)
    images = np.asarray(data["data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # [N, 32, 32, 3]
    labels = np.asarray(data["fine_labels"])
    return _classify(request, "cifar100", list(images), labels, len(names), names, expected=10_000)


def sun397(request: Request) -> list[Evaluation]:
    """All 108,754 images of SUN397, as torchvision and CLIP_benchmark count; ETCL does not name a split."""
    folder = request.folder / "SUN397"
    classes = [line[1:] for _, line in read_lines(folder / "ClassName.txt") if line]  # "/a/abbey" -> "a/abbey"
    images = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).glob("sun_*.jpg"))]
    if not images:
        raise ConfigurationError(f"{folder} has no images: expected {folder / classes[0]}/sun_….jpg.")
    paths, labels = zip(*images)
    names = [name.split("/", 1)[1].replace("_", " ").replace("/", " ") for name in classes]
    return _classify(request, "sun397", list(paths), np.array(labels), len(classes), names, expected=108_754)


def food101(request: Request) -> list[Evaluation]:
    """Food-101's test split: 250 images of each of 101 dishes."""
    folder = request.folder / "food-101"
    try:
        listed = json.loads((folder / "meta" / f"{request.split}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{folder / 'meta' / request.split}.json cannot be read ({error}).") from None
    classes = sorted(listed)
    images = [(name, label) for label, dish in enumerate(classes) for name in listed[dish]]
    paths = [folder / "images" / f"{name}.jpg" for name, _ in images]
    names = [dish.replace("_", " ") for dish in classes]
    labels = np.array([label for _, label in images])
    return _classify(request, "food101", paths, labels, len(classes), names, expected=25_250)


def _classify(
    request: Request, name: str, images: Sequence, labels: np.ndarray, classes: int, english, expected: int
) -> list[Evaluation]:
    prompts = read_prompts(request.folder, classes, english)
    unknown = sorted(set(request.languages) - set(prompts))
    if unknown:
        raise ConfigurationError(f"No class names in {', '.join(unknown)}; there are {', '.join(sorted(prompts))}.")
    embeddings, kept, notes = request.encode_images(images, name)
    labels = labels[kept]
    if len(images) != expected:
        notes.append(f"NOT COMPLETE: {len(images):,} images; the benchmark has {expected:,}.")
    protocol = f"class by the mean of normalised prompt embeddings; {len(kept):,} images, {classes} classes"
    result = Evaluation(name, request.split, ("NOT COMPLETE: " if notes else "") + protocol, {}, {}, notes=notes)
    for language in request.languages or prompts:
        _measure_language(request, result, language, prompts[language], embeddings, labels, classes)
    for k in ACCURACIES:
        add_groups(result, GROUPS, f"accuracy@{k}")
    return [result]


def _measure_language(request, result, language: str, prompts: Prompts, images, labels, classes: int) -> None:
    numbers = np.array(sorted(prompts.names))
    inside = np.isin(labels, numbers)
    if not inside.any():
        raise ConfigurationError(f"The class names in {language} name no class of any image.")
    texts = [prompts.texts(number) for number in numbers]
    embeddings = request.encode_texts([text for of_class in texts for text in of_class])
    prototypes = class_embeddings(embeddings.reshape(len(numbers), len(prompts.templates), -1))
    ranks = ranking.ranks(images[inside], prototypes, np.searchsorted(numbers, labels[inside]))
    for k in ACCURACIES:
        result.metrics[f"{result.name}/{language}/accuracy@{k}"] = ranking.recall_at(ranks, k)
    result.sizes[language] = {
        "pictures": int(inside.sum()),
        "classes": len(numbers),
        "templates": len(prompts.templates),
    }
    if len(numbers) < classes:
        result.notes.append(f"NOT COMPLETE: {language} names {len(numbers)} of {classes} classes; others are left out.")
    if prompts.templates == ["{}"]:
        result.notes.append(f"{language} has no templates: class names are encoded alone.")


def class_embeddings(embeddings: np.ndarray) -> np.ndarray:
    """Returns [C, D]: the normalised mean over templates of normalised embeddings [C, T, D]."""
    embeddings = embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)
    means = embeddings.mean(axis=1)
    return means / np.linalg.norm(means, axis=-1, keepdims=True)


class _PlainUnpickler(pickle.Unpickler):
    """Reads arrays, lists and strings; a pickle that wants anything else is refused, as it could run any code."""

    ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it wants {module}.{name}")
        return super().find_class(module, name)


def _unpickle(path: pathlib.Path) -> dict:
    try:
        with open(path, "rb") as file:
            return _PlainUnpickler(file, encoding="latin1").load()
    except (OSError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise ConfigurationError(f"{path} is not a file of CIFAR-100 ({error}).") from None
