"""Caption files as their authors publish them, read into one shape: (image file, image id, caption, language, place).

MS-COCO's JSON (also STAIR and YJ Captions), Karpathy and Li's split files, Multi30K, COCO-CN, Flickr8k, and any
list of images with a file of captions line by line; WIT's are in wit.py. The generators need neither TensorFlow nor
images: conversion and evaluation both use them.

Unusable entries go to `on_problem(kind, place)`, see text_files.py.
"""

from __future__ import annotations

import csv
import itertools
import json
import lzma
import pathlib
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.text_files import Problem, canonical_language, clean, is_text, open_binary, read_lines, refuse

LARGEST_JSON = 2**30  # bytes of a file, which is held in memory; the largest published files have 150 million


class Caption(NamedTuple):
    """One caption of one image.

    Attributes:
      image_file: as the file names it: "COCO_val2014_000000391895.jpg", with its folder in Karpathy's COCO split
        ("val2014/…"), and the image's address in WIT.
      image_id: the same for all captions of the image, within its data set.
      caption: text without line breaks, spaces at its ends or double spaces; never empty.
      language: BCP 47, as `canonical_language` returns it.
      location: "file:line", or "file, annotation 37" where lines mean nothing.
    """

    image_file: str
    image_id: str
    caption: str
    language: str
    location: str


def read_aligned(
    captions: str | pathlib.Path, images: str | pathlib.Path, language: str, on_problem: Problem = refuse
) -> Iterator[Caption]:
    """Reads a file with one caption per line and a list of images, line i to line i (Multi30K, XTD).

    An image name's suffix after "#" (`COCO_train2014_000000117071.jpg#367178`) is left out.

    Raises:
      UserError: the files have different numbers of lines.
    """
    language = canonical_language(language)
    for caption_line, image_line in itertools.zip_longest(read_lines(captions, on_problem), read_lines(images)):
        if caption_line is None or image_line is None:
            if caption_line is None:
                shorter, longer = captions, images
                number, _ = image_line
            else:
                shorter, longer = images, captions
                number, _ = caption_line
            raise UserError(
                f"{shorter} ends before line {number} of {longer}: line i of the captions must belong to line i of the "
                "images. Fetch both again."
            )
        number, text = caption_line
        _, image_name = image_line
        name = (image_name or "").split("#")[0].strip()
        if text is not None:
            yield from checked(name, name, text, language, f"{captions}:{number}", on_problem)


def read_coco(path: str | pathlib.Path, language: str = "en", on_problem: Problem = refuse) -> Iterator[Caption]:
    """Reads captions in MS-COCO's JSON schema: `captions_val2014.json`, STAIR and YJ Captions (language="ja").

    The id is COCO's image id, which joins the data sets; caption ids do not. Captions come in the order of the file.
    """
    language = canonical_language(language)
    content = _read_json(path, "COCO's captions", ("images", "annotations"))
    names = {
        image["id"]: image.get("file_name")
        for image, location in _objects(content["images"], f"{path}, image", on_problem)
        if _is_id(image.get("id"), location, on_problem)
    }
    for annotation, location in _objects(content["annotations"], f"{path}, annotation", on_problem):
        image_id = annotation.get("image_id")
        if _is_id(image_id, location, on_problem):
            caption = annotation.get("caption")
            yield from checked(names.get(image_id), str(image_id), caption, language, location, on_problem)


KARPATHY_SPLITS = ("train", "restval", "val", "test")


def read_karpathy(
    path: str | pathlib.Path,
    split: str | Collection[str],
    language: str = "en",
    captions_per_image: int | None = None,
    on_problem: Problem = refuse,
) -> Iterator[Caption]:
    """Reads Karpathy and Li's `dataset_coco.json` or `dataset_flickr30k.json`.

    Args:
      path: the JSON file.
      split: one of its splits or several; COCO has train, restval, val and test, and MURAL trains without restval.
      language: the captions' language.
      captions_per_image: keep only the first captions; the COCO 5K protocol takes 5, though some images have more.
      on_problem: see the module.

    The id is COCO's image id, or the file name for Flickr30K. Raises `UserError` for an unknown split.
    """
    language = canonical_language(language)
    wanted_splits = {split} if isinstance(split, str) else set(split)
    content = _read_json(path, "Karpathy and Li's splits", ("images",))
    images = list(_objects(content["images"], f"{path}, image", on_problem))
    splits = {image.get("split") for image, _ in images if is_text(image.get("split"))}
    if not wanted_splits <= splits:
        names = ", ".join(sorted(splits))
        raise UserError(f"{path} has no split {', '.join(sorted(wanted_splits - splits))}; it has {names}.")
    for image, location in images:
        if not is_text(image.get("split")):
            on_problem("image without a split", location)
        elif image["split"] not in (*KARPATHY_SPLITS, *wanted_splits):
            on_problem(f"image of an unknown split, expected {', '.join(KARPATHY_SPLITS)}", location)
        elif image["split"] in wanted_splits:
            sentence_place = f"{path}, sentence"
            yield from _captions_of_image(image, location, sentence_place, captions_per_image, language, on_problem)


def _captions_of_image(
    image: dict, location: str, sentence_place: str, most: int | None, language: str, on_problem: Problem
) -> Iterator[Caption]:
    """Yields up to `most` captions of an image of Karpathy and Li's; `None`: all."""
    parts = [part for part in (image.get("filepath"), image.get("filename")) if part]
    identity = image.get("cocoid", image.get("filename"))
    sentences = image.get("sentences")
    if not parts or not all(map(is_text, parts)):
        on_problem("image name that is not text", location)
    elif not isinstance(sentences, list):
        on_problem("image without a list of sentences", location)
    elif _is_id(identity, location, on_problem):
        image_file = "/".join(parts)
        for sentence, entry_location in _objects(sentences[:most], sentence_place, on_problem, "sentid"):
            yield from checked(image_file, str(identity), sentence.get("raw"), language, entry_location, on_problem)


def read_multi30k(
    directory: str | pathlib.Path, split: str, language: str, task: int | None = None, on_problem: Problem = refuse
) -> Iterator[Caption]:
    """Reads a clone of `multi30k/dataset`: `data/task1/raw/train.de.gz` and so on, with its image lists.

    Args:
      directory: the clone, or its `data` folder.
      split: train, val, test_2016_flickr (or test_2016), test_2017_flickr, test_2017_mscoco, test_2018_flickr.
      language: en, de, fr or cs.
      task: 1 is one caption per image, translations of each other; 2 is five independent captions in en and de, of
        train, val and test_2016. Default: 2 where it exists, which is how MURAL, ETCL and MULE count 5,000 English and
        German captions but 1,000 French and Czech captions.
      on_problem: see the module.
    """
    root = as_path(directory)
    if (root / "data").is_dir():
        root = root / "data"
    short = split
    if split.startswith("test_2016"):
        short = split.removesuffix("_flickr")
    if task is None:
        task = 2 if language in ("en", "de") and short in ("train", "val", "test_2016") else 1
    if task == 2:
        images = root / f"task2/image_splits/{short}_images.txt"
        files = [root / f"task2/raw/{short}.{k}.{language}" for k in range(1, 6)]
    else:
        long = "test_2016_flickr" if short == "test_2016" else split
        images = root / f"task1/image_splits/{long}.txt"
        files = [root / f"task1/raw/{long}.{language}"]
    files = [_existing(file, f"Multi30K's task {task}, split {split}, language {language}") for file in files]
    for file in files:
        yield from read_aligned(file, images, language, on_problem)


def read_coco_cn(
    directory: str | pathlib.Path, split: str, annotation: str = "human-written", on_problem: Problem = refuse
) -> Iterator[Caption]:
    """Reads a split (train, val, test) of COCO-CN; `annotation` is "human-written" or "manually-translated".

    The id is COCO's image id, as in `read_coco`, though images of train2014 and val2014 are mixed in each split.
    """
    root = as_path(directory)
    names = _existing(root / f"coco-cn_{split}.txt", f"COCO-CN, split {split}")
    names_of_split = {clean(text) for _, text in read_lines(names)}
    captions = _existing(root / f"imageid.{annotation}-caption.txt", f"COCO-CN's {annotation} captions")
    for name, text, location in _read_token_lines(captions, on_problem):
        if name in names_of_split:
            identity = name.rsplit("_", 1)[-1].lstrip("0")
            yield from checked(f"{name}.jpg", identity, text, "zh", location, on_problem)


def read_flickr8k(path: str | pathlib.Path, language: str, on_problem: Problem = refuse) -> Iterator[Caption]:
    """Reads captions of Flickr8k: `name#k<TAB>caption` lines, or a `captions.txt` of commas below `image,caption`.

    The second form quotes a caption that has a comma. The id is the file name.
    """
    path = as_path(path)
    if path.name == "captions.txt":
        rows = _read_quoted(path, on_problem)
    else:
        rows = _read_token_lines(path, on_problem)
    for name, text, location in rows:
        yield from checked(name, name, text, canonical_language(language), location, on_problem)


def _read_quoted(path: pathlib.Path, on_problem: Problem) -> Iterator[tuple[str, str, str]]:
    """Yields (name, text, place) of the rows below the head `image,caption`."""
    rows = csv.reader(line or "" for _, line in read_lines(path, on_problem))
    head = next(rows, [])
    if head != ["image", "caption"]:
        raise UserError(f"{path} begins with {','.join(head)[:60]!r}, not with image,caption as Flickr8k's captions.")
    for row in rows:
        if len(row) == 2:
            yield row[0], row[1], f"{path}:{rows.line_num}"
        elif row:
            on_problem("row that is not image, caption", f"{path}:{rows.line_num}")


def checked(
    image_file: str | None, image_id: str, text: str | None, language: str, location: str, on_problem: Problem
) -> Iterator[Caption]:
    """Yields the caption if it is usable; texts may be anything that was parsed."""
    if not image_file:
        on_problem("caption of an image that the file does not name", location)
    elif not is_text(image_file) or not is_text(image_id):
        on_problem("image name that is not text", location)
    elif text is not None and not is_text(text):
        on_problem("caption that is not text", location)
    elif not clean(text):
        on_problem("empty caption", location)
    else:
        yield Caption(image_file, image_id, clean(text), language, location)


def _objects(entries: list, location: str, on_problem: Problem, name: str = "id") -> Iterator[tuple[dict, str]]:
    """Yields (entry, its place) of a list's JSON objects; other entries are problems."""
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, dict):
            yield entry, f"{location} {entry.get(name, f'number {number}')}"
        else:
            on_problem("entry that is not a JSON object", f"{location} number {number}")


def _is_id(value: Any, location: str, on_problem: Problem) -> bool:
    """Whether a value can be an image's id; another value is a problem."""
    if isinstance(value, int) or is_text(value):
        return True
    on_problem("image id that is neither a number nor text", location)
    return False


def _read_token_lines(path, on_problem) -> Iterator[tuple[str, str, str]]:
    """Yields (name, text, place) of lines `name#k<TAB>text`."""
    for number, line in read_lines(path, on_problem):
        if line:
            name, tab, text = line.partition("\t")
            if tab:
                yield name.split("#")[0], text, f"{path}:{number}"
            else:
                on_problem("line without a tab between image and caption", f"{path}:{number}")


def _existing(path: pathlib.Path, what: str) -> pathlib.Path:
    """Returns the file, plain or with .gz; raises `UserError` if there is neither."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise UserError(f"{what}: there is no {path} (nor {path.name}.gz).")


def _read_json(path, what: str, keys: Sequence[str]) -> dict:
    """Returns the content of a JSON file; raises `UserError` if it is not `what`, which has lists under `keys`."""
    with open_binary(path) as (file, _):
        content = None
        try:
            text = file.read(LARGEST_JSON + 1)
            if len(text) <= LARGEST_JSON:
                # Token lists are most of Karpathy's files and are never used: dropping them at once halves the memory.
                content = json.loads(text, object_hook=_without_tokens)
        except RecursionError:
            raise UserError(f"{path} is not {what}: its JSON is nested too deeply.") from None
        except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise UserError(f"{path} is not {what}: no valid JSON ({error}).") from None
    if len(text) > LARGEST_JSON:
        raise UserError(f"{path} is not {what}: it has more than {LARGEST_JSON:,} bytes.")
    missing = [key for key in keys if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if missing:
        raise UserError(f"{path} is not {what}: it has no list {missing[0]!r}.")
    return content


def _without_tokens(entry: dict) -> dict:
    entry.pop("tokens", None)
    return entry
