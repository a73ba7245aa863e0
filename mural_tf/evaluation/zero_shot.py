"""Zero-shot classification (CLIP, Radford et al., 2021, §3.1.4; [ETCL] §5.2): ImageNet, CIFAR-100, SUN397, Food-101.

A class is represented by the normalised mean of the normalised embeddings of its name in every template; an image goes
to the class with the largest cosine. Accuracy@1 and @5, per language. Languages come from the files of class names:

    class_names.<language>.txt   one name per line, in the order of the labels; an empty line: no name for this class
    templates.<language>.txt     one template per line, with {} or {c} where the name goes

Two files of the clip-benchmark package are read, too: nllb_dist13b_prompts.json ({"deu_Latn": [templates], …} or by
two-letter codes), and for ImageNet babel_imagenet.json ({"DE": [[class numbers], [names]], …}). A language needs names;
where it has no templates, the names alone are encoded. Where a language names some of the classes only, the others and
their images are left out. Both are noted.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np

from mural_lite.embedder import PLACES, class_embeddings, fill_templates
from mural_lite.errors import UserError
from mural_lite.files import check_json, read_json
from mural_lite.text_files import canonical_language, read_lines
from mural_lite.top_k import top_k
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation, add_groups
from mural_tf.metrics import ranking
from mural_tf.metrics.ranking import CUTOFFS

BABEL = "babel_imagenet.json"
NLLB = "nllb_dist13b_prompts.json"
IMAGENET_CLASSES = 1000


@dataclasses.dataclass
class Prompts:
    """The names of classes in one language, {class number: name}, and templates with {} or {c} for the name."""

    names: dict[int, str]
    templates: list[str]


def read_prompts(
    folder: pathlib.Path, classes: int, english: list[str] | None, languages: Sequence[str] = ()
) -> dict[str, Prompts]:
    """Returns {language: prompts} of a folder's files; class_names.<language>.txt goes before the other files.

    Args:
      folder: the folder of the files above.
      classes: the number of classes.
      english: the data set's own names, used where there is no class_names.en.txt; `None`: the data set is ImageNet.
      languages: the languages that are measured; empty: all.

    Raises:
      UserError: a wrong number of names, a template without a place for the name, no names at all, Babel's names for
        another number of classes than ImageNet's, JSON of another form.
    """
    names: dict[str, dict[int, str]] = {}
    from_babel = set()  # languages whose names are Babel's
    if english:
        names["en"] = dict(enumerate(english))
    if not english and (folder / BABEL).is_file():
        for code, lists in read_json(folder / BABEL).items():
            names[canonical_language(code.lower())] = names_by_number(lists, code, folder / BABEL)
        from_babel = set(names)
    for path in sorted(folder.glob("class_names.*.txt")):
        lines = [line or "" for _, line in read_lines(path)]
        if len(lines) != classes:
            raise UserError(f"{path} has {len(lines)} lines; there are {classes} classes, one on each line.")
        names[_language(path)] = {number: line for number, line in enumerate(lines) if line.strip()}
        from_babel.discard(_language(path))
    babel_languages = sorted(from_babel.intersection(languages or names))
    if babel_languages and classes != IMAGENET_CLASSES:
        raise UserError(
            f"{folder / BABEL} names ImageNet's {IMAGENET_CLASSES:,} classes by their numbers, and there are {classes} "
            "folders of classes, whose numbers are others: fetch all folders, or write "
            f"class_names.{babel_languages[0]}.txt with a name for each folder, in their order."
        )
    if not names:
        raise UserError(f"{folder} has no class names: write {folder / 'class_names.en.txt'}, with one name per line.")
    templates = _read_templates(folder)
    return {language: Prompts(class_names, templates.get(language, ["{}"])) for language, class_names in names.items()}


def names_by_number(lists: object, code: str, path: pathlib.Path) -> dict[int, str]:
    """Returns {class number: name} of a language's entry in babel_imagenet.json; raises `UserError` for other JSON."""
    if len(check_json(lists, list[list], code, path)) != 2:
        raise UserError(f"{path}: {code} has {len(lists)} lists, expected the classes' numbers and their names.")
    numbers = check_json(lists[0], list[int], code, path)
    names = check_json(lists[1], list[str], code, path)
    return dict(zip(numbers, names))


def _read_templates(folder: pathlib.Path) -> dict[str, list[str]]:
    """Returns {language: templates}; `UserError` for an empty list, or a template without a place for the name."""
    templates = {}
    if (folder / NLLB).is_file():
        for code, lines in read_json(folder / NLLB).items():
            language = canonical_language(code.lower().split("_")[0])
            templates[language] = check_json(lines, list[str], code, folder / NLLB)
    for path in sorted(folder.glob("templates.*.txt")):
        templates[_language(path)] = [line for _, line in read_lines(path) if line]
    for language, lines in templates.items():
        unusable = [line for line in lines if not any(mark in line for mark in PLACES)]
        if unusable or not lines:
            raise UserError(f"A template in {language} has no {{}} for the name: {unusable[:1] or 'no line'}.")
    return templates


def _language(path: pathlib.Path) -> str:
    """Returns the language in a file's name: "de" for class_names.de.txt."""
    return canonical_language(path.name.split(".")[1])


def imagenet_knn(request: Request) -> list[Evaluation]:
    """Measures ImageNet by nearest neighbours, the protocol of ALIGN (Jia et al., 2021, footnote 3).

    Each validation image searches the training images by the cosine of image embeddings. Recall@K is the percentage of
    validation images whose class is among the first K; Recall@1 is the accuracy of one nearest neighbour. The paper
    does not say whether its embedding is projected; ours is the embedding that is searched and exported. Raises
    `UserError` for classes without training images, and if too many images cannot be read.
    """
    queries, query_classes, notes = _encode_split(request, request.split)
    candidates, candidate_classes, train_notes = _encode_split(request, "train")
    unknown = sorted(set(query_classes) - set(candidate_classes))
    if unknown:
        raise UserError(f"{len(unknown)} classes of {request.split}/ are not in train/, such as {unknown[0]}.")
    _, nearest = top_k(queries, candidates, max(CUTOFFS))  # [Q, K]
    hits = candidate_classes[nearest] == query_classes[:, None]
    protocol = (
        f"class of the nearest training images by cosine; {len(queries):,} queries, {len(candidates):,} candidates"
    )
    result = _evaluation_without_numbers("imagenet_knn", request, protocol, notes + train_notes)
    for k in CUTOFFS:
        result.metrics[f"imagenet_knn/image_to_image/recall@{k}"] = 100.0 * float(hits[:, :k].any(axis=1).mean())
    classes = np.union1d(query_classes, candidate_classes)
    result.sizes["image_to_image"] = {"queries": len(queries), "candidates": len(candidates), "classes": len(classes)}
    return [result]


def _evaluation_without_numbers(name: str, request: Request, protocol: str, notes: list[str]) -> Evaluation:
    """Returns an evaluation without numbers, whose protocol says that it is not complete if there are notes."""
    if notes:
        protocol = f"NOT COMPLETE: {protocol}"
    return Evaluation(name, request.split, protocol, {}, {}, notes=notes)


def _encode_split(request: Request, split: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns embeddings, [N, D], of a split's readable images, the names of their class folders, [N], and notes."""
    paths, classes = list_class_folders(request.folder / split)
    embeddings, readable, notes = request.encode_images(paths, f"ImageNet {split}")
    return embeddings, np.array(classes)[readable], notes


def list_class_folders(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[str]]:
    """Returns the files <folder>/<class>/<file>, sorted, and each file's class; raises `UserError` without files."""
    paths = []
    for class_folder in sorted(folder.iterdir()):
        if class_folder.is_dir():
            paths += sorted(class_folder.iterdir())
    if not paths:
        raise UserError(f"{folder} holds no folders of images: expected {folder}/n01440764/….JPEG.")
    return paths, [path.parent.name for path in paths]


ACCURACIES = (1, 5)
GROUPS = {  # [ETCL] §4.1
    "well-resourced": tuple("en de fr cs ja zh ru pl tr".split()),
    "under-resourced": tuple("uz ga be mg ceb".split()),
}


def imagenet(request: Request) -> list[Evaluation]:
    """Measures ImageNet's 50,000 validation images; labels are the class folders in alphabetical order."""
    paths, folders = list_class_folders(request.folder / request.split)
    _, labels = np.unique(folders, return_inverse=True)
    return _classify(request, "imagenet", paths, labels, None, expected=50_000)


_CIFAR_ROW = 2 + 3 * 32 * 32  # bytes: the coarse label, the fine one, and the image, channel by channel


def cifar100(request: Request) -> list[Evaluation]:
    """Measures CIFAR-100's 10,000 test images, 32 x 32, with its fine labels, from its binary version."""
    folder = request.folder / "cifar-100-binary"
    names = [line.replace("_", " ") for _, line in read_lines(folder / "fine_label_names.txt") if line]
    path = folder / f"{request.split}.bin"
    content = np.frombuffer(path.read_bytes(), np.uint8)
    # The second byte of each row is the fine label.
    if not content.size or content.size % _CIFAR_ROW or content[1::_CIFAR_ROW].max() >= len(names):
        raise UserError(f"{path} is not a file of CIFAR-100's binary version with {len(names)} classes.")
    rows = content.reshape(-1, _CIFAR_ROW)
    fine_labels = rows[:, 1]
    images = rows[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # [N, 32, 32, 3]
    return _classify(request, "cifar100", list(images), fine_labels, names, expected=10_000)


def sun397(request: Request) -> list[Evaluation]:
    """Measures all 108,754 images of SUN397, as torchvision and CLIP_benchmark; ETCL does not name a split."""
    folder = request.folder / "SUN397"
    classes = [line[1:] for _, line in read_lines(folder / "ClassName.txt") if line]  # "/a/abbey" -> "a/abbey"
    images = [sorted((folder / name).glob("sun_*.jpg")) for name in classes]
    paths = list(itertools.chain.from_iterable(images))
    if not paths:
        raise UserError(f"{folder} has no images: expected {folder / classes[0]}/sun_….jpg.")
    labels = np.repeat(np.arange(len(classes)), list(map(len, images)))
    names = []
    for class_name in classes:
        _, name = class_name.split("/", 1)  # without its first letter
        names.append(name.replace("_", " ").replace("/", " "))
    return _classify(request, "sun397", paths, labels, names, expected=108_754)


def food101(request: Request) -> list[Evaluation]:
    """Measures Food-101's test split: 250 images of each of 101 dishes."""
    folder = request.folder / "food-101"
    path = folder / "meta" / f"{request.split}.json"
    images_of_dishes = read_json(path)
    dishes = sorted(images_of_dishes)
    paths = []
    labels = []
    for label, dish in enumerate(dishes):
        for name in check_json(images_of_dishes[dish], list[str], dish, path):
            paths.append(folder / "images" / f"{name}.jpg")
            labels.append(label)
    names = [dish.replace("_", " ") for dish in dishes]
    return _classify(request, "food101", paths, np.array(labels), names, expected=25_250)


def _classify(
    request: Request, name: str, images: Sequence, labels: np.ndarray, english: list[str] | None, expected: int
) -> list[Evaluation]:
    """Measures the accuracy of N images, paths or uint8 arrays, in every language; returns [the evaluation].

    `labels` are the images' classes, int [N]; `english` are the classes' names, or `None` if only files have names;
    `expected` is the number of images in the whole benchmark. Raises `UserError` for a language without class names.
    """
    classes = len(english or np.unique(labels))
    prompts = read_prompts(request.folder, classes, english, request.languages)
    unknown = sorted(set(request.languages) - set(prompts))
    if unknown:
        raise UserError(f"No class names in {', '.join(unknown)}; there are {', '.join(sorted(prompts))}.")
    embeddings, readable, notes = request.encode_images(images, name)
    labels = labels[readable]
    if len(images) != expected:
        notes.append(f"NOT COMPLETE: {len(images):,} images; the benchmark has {expected:,}.")
    protocol = f"class by the mean of normalised prompt embeddings; {len(readable):,} images, {classes} classes"
    result = _evaluation_without_numbers(name, request, protocol, notes)
    for language in request.languages or prompts:
        measure_language(request, result, language, prompts[language], embeddings, labels, classes)
    for k in ACCURACIES:
        add_groups(result, GROUPS, f"accuracy@{k}")
    return [result]


def measure_language(
    request: Request, result: Evaluation, language: str, prompts: Prompts, images, labels, classes: int
) -> None:
    """Adds a language's accuracies, sizes and notes to `result`, over the images of the classes that it names.

    `images` are embeddings, [N, D], `labels` their classes, int [N]; `classes` is the number of all classes. Raises
    `UserError` if the language names the class of no image.
    """
    numbers = np.array(sorted(prompts.names))
    has_name = np.isin(labels, numbers)
    if not has_name.any():
        raise UserError(f"The class names in {language} name no class of any image.")
    texts = fill_templates([prompts.names[number] for number in numbers], prompts.templates)
    prototypes = class_embeddings(request.encode_texts(texts), len(prompts.templates))
    ranks = ranking.ranks(images[has_name], prototypes, np.searchsorted(numbers, labels[has_name]))
    for k in ACCURACIES:
        result.metrics[f"{result.name}/{language}/accuracy@{k}"] = ranking.recall_at(ranks, k)
    result.sizes[language] = {
        "pictures": int(has_name.sum()),
        "classes": len(numbers),
        "templates": len(prompts.templates),
    }
    if len(numbers) < classes:
        result.notes.append(f"NOT COMPLETE: {language} names {len(numbers)} of {classes} classes; others are left out.")
    if prompts.templates == ["{}"]:
        result.notes.append(f"{language} has no templates: only the class names are encoded.")
