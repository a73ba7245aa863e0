"""A warning where a model may have been trained on a benchmark's images.

A model's record says what it was trained on: the configuration's data folder with its dataset.json, and an export's
model card. Their names and splits say which image collections they hold; 800 of XTD's 1,000 images, for example, are of
MS-COCO's train2014. Only the last training is recorded: it is not known what a fine-tuned model saw before, or whether
images from the web happen to be the same.
"""

from __future__ import annotations

import pathlib
import re

from mural_tf.errors import UserError
from mural_tf.export.versions import MODEL_CARD, newest_description
from mural_tf.files import as_path, read_json

# What a description of training data says -> the image collection. Splits follow in `_parts`.
_COLLECTIONS = (
    (r"flickr30k|multi30k", "flickr30k"),
    (r"coco(?!-?cn)|stair|yj.?captions", "coco"),
    (r"coco-?cn", "coco_cn"),
    (r"open.?images|crossmodal|xm3600", "open_images"),
    (r"imagenet|ilsvrc", "imagenet"),
    (r"xtd", "xtd"),
)


def contamination_notes(
    benchmark: str, collections: tuple[str, ...], split: str, folder: pathlib.Path, embedder
) -> list[str]:
    """Returns warnings, a sentence each; none if nothing recorded overlaps the benchmark's images.

    `collections`: the image collections that they are from.
    """
    directory, descriptions = _record(embedder)
    if directory and split == "train" and _resolved(as_path(directory)) == _resolved(folder):
        return [f"CONTAMINATED: the model was trained on this very split of {directory}."]
    trained = {part: text for text in descriptions for part in _parts(text)}
    notes = []
    if benchmark == "multi30k" and "mscoco" in split:
        collections = ("coco_train2014",)
    for part in collections:
        if part in trained:
            notes.append(
                f"CONTAMINATED: the model's record names {trained[part]!r}, and images of this benchmark are from "
                f"{part.replace('_', ' ')}: do not report these numbers as zero-shot."
            )
    return notes


def _resolved(folder):
    return folder.resolve() if isinstance(folder, pathlib.Path) else folder


def _record(embedder) -> tuple[str, list[str]]:
    """Returns the training data's folder and what is said of it: a text for each source."""
    config = getattr(embedder, "config", None)
    directory = config.data.directory if config is not None else ""
    texts = []
    if directory:
        texts += [as_path(directory).name, *_describe(as_path(directory) / "dataset.json", ())]
    path = getattr(embedder, "path", "")
    if path:
        texts += _describe(newest_description(as_path(path)) / MODEL_CARD, ("training_data",))
    return directory, list(dict.fromkeys(texts))


def _describe(path: pathlib.Path, keys: tuple[str, ...]) -> list[str]:
    """Returns the name and sources of a dataset.json, or of the part of a model card that copies it."""
    try:
        value = read_json(path)
        for key in keys:
            value = value[key]
        sources = value.get("sources", [])
        return [str(value.get("name", "")), *(_one_line(source) for source in sources)]
    except (UserError, KeyError, AttributeError, TypeError):
        return []  # other people's records come without one


def _one_line(source) -> str:
    """A source as "coco split=train dataset_coco.json": its kind, split and file names."""
    if not isinstance(source, dict):
        return str(source)
    split = source.get("split") or source.get("splits") or ""
    split = ",".join(split) if isinstance(split, list) else split
    files = [
        pathlib.PurePosixPath(str(file[0] if isinstance(file, list) else file)).name for file in source.get("files", [])
    ]
    return " ".join([str(source.get("kind", "")), *([f"split={split}"] if split else []), *files[:3]])


def _parts(text: str) -> set[str]:
    """Returns the parts of image collections that a description names."""
    lower = text.lower()
    parts = set()
    for pattern, collection in _COLLECTIONS:
        if re.search(pattern, lower):
            parts |= _splits(collection, lower)
    return parts


def _splits(collection: str, text: str) -> set[str]:
    stated = re.search(r"split=(\S+)", text)
    splits = set(stated.group(1).split(",")) if stated else set()
    if not splits:
        splits = {name for name in ("train", "restval", "val", "test") if re.search(rf"(?<![a-z]){name}", text)}
    if collection == "coco":
        named = {"coco_train2014"} if "train" in splits or not splits else set()
        return named | ({"coco_val2014"} if splits - {"train"} or not splits else set())
    if collection in ("coco_cn", "xtd"):
        return {"coco_train2014", "coco_val2014"}
    if collection == "flickr30k":
        return {"flickr30k"} if splits != {"train"} else set()
    return {collection} if splits != {"train"} else set()
