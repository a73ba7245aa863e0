"""The README.md of an export: how to use it and its results, after metadata for the Hugging Face Hub.

So an export can be pushed there unchanged (`hf upload ORG/NAME EXPORT`), and `mural_tf.load("hf://ORG/NAME")` takes it.
The top is YAML: licence, languages, task, library, the models that the weights came from, and results for each language
as a "model-index". All of it follows from the model card, but for a licence that the user gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mural_lite.errors import UserError
from mural_lite.hugging_face import SCHEME
from mural_tf.export.model_card import NOT_TRAINED
from mural_tf.pretrained.origin import origins

README = "README.md"
TRANSFORMERS = ("bert", "modernbert", "vit", "naflex")
LIBRARY = "mural-tf"
# Metrics: {the end of a key in the card: (the metric's type on the Hub, its name in words)}.
METRICS = {
    "mean_recall": ("mean_recall", "mean of R@1, 5, 10, both directions"),
    "text_to_image/recall@1": ("recall_at_1", "text to image, R@1"),
    "text_to_image/recall@10": ("recall_at_10", "text to image, R@10"),
    "image_to_text/recall@1": ("recall_at_1", "image to text, R@1"),
    "image_to_text/recall@10": ("recall_at_10", "image to text, R@10"),
}


def check_license(license: str) -> None:
    """Raises `UserError` for a text that cannot be one of the Hub's identifiers of licences; "" is allowed."""
    if license and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise UserError(f"--license={license}: expected an identifier such as apache-2.0, mit, cc-by-4.0 or other.")


def readme_of(card: Mapping, license: str = "") -> str:
    """Returns the text of the README.md for a model card.

    Args:
      card: as `model_card.describe_model` returns it.
      license: one of the Hub's identifiers; "" is the licence of the imported weights, if it is the same for all.
    """
    head = "\n".join(_yaml(_metadata(card, license)))
    return f"---\n{head}\n---\n\n{_body(card)}\n"


def _metadata(card: Mapping, license: str) -> dict[str, object]:
    """Returns the Hub's metadata, {key: JSON value}, without keys that have no value; arguments as in `readme_of`."""
    parts = origins(card["origin"])
    licences = {part.licence for part in parts}
    shared_licence = licences.pop() if len(licences) == 1 else ""
    bases = [part.repository for part in parts if part.repository]
    languages = _languages(card)
    task = "zero-shot-image-classification" if _has_images(card) else "sentence-similarity"
    metadata = {
        "license": license or shared_licence,
        "language": sorted({tag.split("-")[0].lower() for tag in languages}),
        "language_bcp47": [tag for tag in languages if "-" in tag],
        "library_name": LIBRARY,
        "pipeline_tag": task,
        "tags": _tags(card, languages),
        "base_model": bases,
        "model-index": _model_index(card),
    }
    return {key: value for key, value in metadata.items() if value}


def _tags(card: Mapping, languages: Sequence[str]) -> list[str]:
    """Returns the Hub's tags for a model in some languages, the name of its method (`config.model`) the last.

    In its place a model that was only imported has its text tower's name.
    """
    tags = ["tensorflow", "saved-model", "retrieval", "feature-extraction"]
    if len(languages) > 1:
        tags.append("multilingual")
    if _is_only_imported(card):
        tags.append(card["config"]["text_tower"]["name"])
    else:
        tags.append(card["name"])
    return tags


def _is_only_imported(card: Mapping) -> bool:
    """Whether a model's weights were imported and not trained here."""
    return card["training_data"]["source"] == NOT_TRAINED


def _has_images(card: Mapping) -> bool:
    """Whether a model has an image tower."""
    return card["config"]["image_tower"]["name"] != "none"


def _languages(card: Mapping) -> list[str]:
    """Returns the sorted language codes of the imported weights and, as far as they are known, of the training data."""
    languages = set()
    for part in origins(card["origin"]):
        languages.update(part.languages)
    data = card["training_data"]
    # Data without counts (a mixture's are in its data sets) did not say its languages: they are the configuration's.
    if "counts" in data or "data_sets" in data or not card["origin"]:
        languages.update(data["languages"])
    return sorted(languages)


def _model_index(card: Mapping) -> list[dict]:
    """Returns the Hub's "model-index": one model with its results by evaluation and language; [] without results."""
    results = []
    for name, data, split, language, percents in _results(card):
        metrics = []
        for metric, percent in percents.items():
            metric_type, words = METRICS[metric]
            metrics.append({"type": metric_type, "name": words, "value": percent})
        dataset = {
            "type": data or name,
            "name": f"{_label(name, data)}, {language}",
            "config": language,
            "split": split,
        }
        task = {"type": "image-text-retrieval", "name": "Image-text retrieval"}
        results.append({"task": task, "dataset": dataset, "metrics": metrics})
    if not results:
        return []
    return [{"name": card["name"], "results": results}]


def _results(card: Mapping) -> Iterator[tuple[str, str, str, str, dict[str, float]]]:
    """Yields (evaluation, its data folder's name, split, language, {metric: percent}) if any of `METRICS` is there."""
    for name, evaluation in card["evaluations"].items():
        for language in evaluation["languages"]:
            percents = {}
            for metric in METRICS:
                percent = card["metrics"].get(f"{name}/{language}/{metric}")
                if percent is not None:
                    percents[metric] = round(percent, 2)
            if percents:
                yield name, evaluation["data"], evaluation["split"] or "test", language, percents  # "": not noted


def _yaml(content: Mapping | list, indent: int = 0) -> Iterator[str]:
    """Yields the lines of a JSON object or list as YAML in blocks, below `indent` spaces.

    Every text is quoted, so that `no` stays Norwegian.
    """
    space = " " * indent
    if isinstance(content, Mapping):
        for key, value in content.items():
            if isinstance(value, (Mapping, list)):
                yield f"{space}{key}:"
                yield from _yaml(value, indent + 2)
            else:
                yield f"{space}{key}: {json.dumps(value, ensure_ascii=False)}"
    else:
        for item in content:
            if isinstance(item, Mapping):
                first, *rest = _yaml(item, indent + 2)
                yield f"{space}- {first.strip()}"
                yield from rest
            else:
                yield f"{space}- {json.dumps(item, ensure_ascii=False)}"


def _body(card: Mapping) -> str:
    """Returns the Markdown below the metadata: title, usage, inputs, notes on the weights, results."""
    title = card["name"]
    if _is_only_imported(card):
        title = " and ".join(part.name.removeprefix(SCHEME) for part in origins(card["origin"])) or title
    return "\n".join([f"# {title}", "", *_usage(card), *_inputs(card), *_notes(card), *_result_table(card)])


def _usage(card: Mapping) -> list[str]:
    """Returns the Markdown lines that say which inputs the model embeds, and how it is loaded."""
    method = card["method"]
    inputs = "sentences"
    image_lines = []
    modules = "`text_encoder/1` is a SavedModel"
    if _has_images(card):
        inputs = "images and sentences"
        image_lines = ['embedder.encode_image(["balloon.jpg"])']
        modules = "`text_encoder/1` and `image_encoder/1` are SavedModels"
    space = f"of {inputs} in one space of {card['embedding_size']} numbers; {card['parameters']:,} parameters."
    description = f"{method}: vectors {space}"
    if _is_only_imported(card):
        description = f"Vectors {space} Imported, and not trained here; the method to train it further is {method}."
    return [
        f"{description} `model_card.json` has all that is known of it.",
        "",
        "```python",
        "import mural_tf  # installed from a checkout of it, with the extra hub",
        "",
        'embedder = mural_tf.load("hf://ORG/NAME")  # this repository, or a folder with its files',
        'embedder.encode_text(["a red balloon", "ein roter Ballon"])',
        *image_lines,
        "```",
        "",
        f"Without it: {modules} for TensorFlow Serving, elsewhere after `import tensorflow_text`; `hub/` holds TF-Hub "
        "modules to train further.",
    ]


def _inputs(card: Mapping) -> list[str]:
    """Returns the Markdown lines that say how texts and images are read, by which towers, and with which prompts."""
    text = card["text"]
    text_tower = _describe_tower(card["config"]["text_tower"])
    lines = [
        "",
        f"- Texts: {text_tower}. At most {text['max_length']} pieces of a text are read, begin and end among them.",
    ]
    if text["prompt"]:
        prompt = json.dumps(text["prompt"], ensure_ascii=False)
        lines.append(f"- Every text begins with {prompt} unless told otherwise.")
    for name, prompt in text["prompts"].items():
        quoted = json.dumps(prompt, ensure_ascii=False) if prompt else "nothing"
        lines.append(f'- `encode_text(texts, prompt="{name}")` puts {quoted} before each text.')
    image_tower = card["config"]["image_tower"]
    if _has_images(card):
        lines.append(f"- Images: {_describe_tower(image_tower)}.{_describe_preparation(card['image'], image_tower)}")
    languages = ", ".join(_languages(card)) or "not said where its weights come from"
    return [*lines, f"- Languages: {languages}."]


def _describe_tower(tower: Mapping) -> str:
    """Returns a tower's name and, for a transformer, its size: "`vit`, 12 layers of 768 numbers"."""
    size = ""
    if tower["name"] in TRANSFORMERS:
        size = f", {tower['layers']} layers of {tower['hidden_size']} numbers"
    return f"`{tower['name']}`{size}"


def _describe_preparation(image: Mapping, tower: Mapping) -> str:
    """Returns a sentence on how pictures become the tower's input, after a space; "" for features.

    `image` and `tower` are the card's "image" and its configuration's "image_tower".
    """
    if image.get("resize_mode") == "patches":
        size = tower["patch_size"]
        return f" Pictures keep their shape, in at most {tower['patches']} patches of {size} x {size} pixels."
    if not image.get("resize"):
        return ""
    resized = f"{image['resize']} x {image['resize']}, square or not"
    if image["resize_mode"] == "shorter_side":
        resized = f"{image['resize']} pixels of their shorter side"
    side = image["image_size"]
    return f" Pictures are resized to {resized}; the middle {side} x {side} pixels are read."


def _notes(card: Mapping) -> list[str]:
    """Returns the Markdown lines about the image tower's classes and the weights' origin, as far as there are any."""
    lines = []
    class_count = card["config"]["image_tower"].get("classes")
    if class_count:
        lines += [
            "",
            f"Its image tower's classifier distinguishes {class_count:,} kinds of things, and the model finds "
            "photographs of these by their names. A photograph of any other thing gets the names of the kinds that "
            "look most alike.",
        ]
    if card["origin"]:
        lines += ["", f"Its weights began as {card['origin']}."]
    return lines


def _result_table(card: Mapping) -> list[str]:
    """Returns the Markdown lines of the results, a row per evaluation and language, or a sentence without results."""
    results = list(_results(card))
    if not results:
        return ["", "This export has no results: it was not measured, in any language."]
    measured = set()
    for *_, percents in results:
        measured.update(percents)
    titles = {metric: title for metric, (_, title) in METRICS.items() if metric in measured}
    lines = ["", "## Results", "", "In percent.", ""]
    lines.append(_row(["evaluation", "split", "language", *titles.values()]))
    lines.append(_row(["---"] * 3 + ["---:"] * len(titles)))
    for name, data, split, language, percents in results:
        cells = [f"{percents[metric]:.1f}" if metric in percents else "" for metric in titles]
        lines.append(_row([_label(name, data), split, language, *cells]))
    return lines


def _label(name: str, data: str) -> str:
    """Returns the name of an evaluation and, if it differs, of its data: "flickr30k (flickr30k_karpathy)"."""
    if not data or data == name:
        return name
    return f"{name} ({data})"


def _row(cells: Iterable[str]) -> str:
    """Returns the cells as a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"
