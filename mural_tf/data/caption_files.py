"""Caption files as their authors publish them, read into one shape: (image file, image id, caption, language, place).

MS-COCO's JSON (also STAIR and YJ Captions), Karpathy and Li's split files, Multi30K, COCO-CN, Flickr8k, and any
list of images with a file of captions line by line; `ingest/sources/wit.py` reads WIT's. The generators need neither
TensorFlow nor images: conversion and evaluation both use them.

Unusable entries go to `on_problem(problem, location)`, see text_files.py; the default, `refuse`, raises `UserError`.
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
    """Yields the captions of a text file, each of the image that a list of images names in the same line.

    Multi30K and XTD are such pairs of files. A name's suffix after "#" is left out: the image of
    `COCO_train2014_000000117071.jpg#367178` is `COCO_train2014_000000117071.jpg`, which is also its id.

    Args:
      captions: a file with one caption per line.
      images: a file with one image name per line.
      language: the captions' language.
      on_problem: see the module.

    Raises:
      UserError: the files have different numbers of lines, the list is damaged, or `language` is unknown.
    """
    language = canonical_language(language)
    for caption_line, image_line in itertools.zip_longest(read_lines(captions, on_problem), read_lines(images)):
        if caption_line is None:
            raise _ends_early(captions, images, image_line)
        if image_line is None:
            raise _ends_early(images, captions, caption_line)
        number, caption = caption_line
        _, image_line_text = image_line
        image_file = image_line_text.split("#")[0].strip()
        if caption is not None:
            yield from checked(image_file, image_file, caption, language, f"{captions}:{number}", on_problem)


def _ends_early(shorter, longer, line: tuple[int, str | None]) -> UserError:
    """Returns the error for two paths; `line` is (number, text) of the first line that only the `longer` file has."""
    number, _ = line
    return UserError(
        f"{shorter} ends before line {number} of {longer}: line i of the captions must belong to line i of the "
        "images. Fetch both again."
    )


def read_coco(path: str | pathlib.Path, language: str = "en", on_problem: Problem = refuse) -> Iterator[Caption]:
    """Yields the captions of a file in MS-COCO's JSON schema, in the file's order.

    `captions_val2014.json` is such a file, and so are STAIR's and YJ Captions' (language="ja"). A caption's `image_id`
    is COCO's, which is the same in all three data sets. Raises `UserError` for another format or an unknown `language`.
    """
    language = canonical_language(language)
    content = _read_json(path, "COCO's captions", ("images", "annotations"))
    image_files = {}  # {image id: file name}
    for image, location in _objects(content["images"], f"{path}, image", on_problem):
        if _check_id(image.get("id"), location, on_problem):
            image_files[image["id"]] = image.get("file_name")
    for annotation, location in _objects(content["annotations"], f"{path}, annotation", on_problem):
        image_id = annotation.get("image_id")
        if _check_id(image_id, location, on_problem):
            caption = annotation.get("caption")
            yield from checked(image_files.get(image_id), str(image_id), caption, language, location, on_problem)


KARPATHY_SPLITS = ("train", "restval", "val", "test")


def read_karpathy(
    path: str | pathlib.Path,
    split: str | Collection[str],
    language: str = "en",
    captions_per_image: int | None = None,
    on_problem: Problem = refuse,
) -> Iterator[Caption]:
    """Yields the captions of some splits of Karpathy and Li's `dataset_coco.json` or `dataset_flickr30k.json`.

    A caption's `image_id` is COCO's image id, or the file name for Flickr30K.

    Args:
      path: the JSON file.
      split: one split's name or several; COCO has train, restval, val and test, and MURAL trains without restval.
      language: the captions' language.
      captions_per_image: how many captions of an image are kept, its first; `None`: all. The COCO 5K protocol takes 5,
        though some images have more.
      on_problem: see the module.

    Raises:
      UserError: the file lacks one of the splits, is of another format, or `language` is unknown.
    """
    language = canonical_language(language)
    wanted_splits = {split} if isinstance(split, str) else set(split)
    content = _read_json(path, "Karpathy and Li's splits", ("images",))
    images = list(_objects(content["images"], f"{path}, image", on_problem))
    splits_in_file = {image.get("split") for image, _ in images if is_text(image.get("split"))}
    missing_splits = wanted_splits - splits_in_file
    if missing_splits:
        raise UserError(
            f"{path} has no split {', '.join(sorted(missing_splits))}; it has {', '.join(sorted(splits_in_file))}."
        )
    for image, location in images:
        image_split = image.get("split")
        if not is_text(image_split):
            on_problem("image without a split", location)
        elif image_split not in (*KARPATHY_SPLITS, *wanted_splits):
            on_problem(f"image of an unknown split, expected {', '.join(KARPATHY_SPLITS)}", location)
        elif image_split in wanted_splits:
            yield from _captions_of_image(image, location, path, captions_per_image, language, on_problem)


def _captions_of_image(
    image: dict,
    location: str,
    path: str | pathlib.Path,
    captions_per_image: int | None,
    language: str,
    on_problem: Problem,
) -> Iterator[Caption]:
    """Yields the first `captions_per_image` captions of an image, all for `None`, and reports unusable captions.

    `image` is {"filepath": "val2014", "filename": "COCO_….jpg", "cocoid": 391895, "sentences": [{"raw": …}, …]}, an
    entry of "images" in Karpathy's file `path`; Flickr30K's entries lack "filepath" and "cocoid".
    """
    path_parts = [part for part in (image.get("filepath"), image.get("filename")) if part]
    image_id = image.get("cocoid", image.get("filename"))
    sentences = image.get("sentences")
    if not path_parts or not all(map(is_text, path_parts)):
        on_problem("image name that is not text", location)
    elif not isinstance(sentences, list):
        on_problem("image without a list of sentences", location)
    elif _check_id(image_id, location, on_problem):
        image_file = "/".join(path_parts)
        kept = sentences[:captions_per_image]
        for sentence, sentence_location in _objects(kept, f"{path}, sentence", on_problem, "sentid"):
            yield from checked(image_file, str(image_id), sentence.get("raw"), language, sentence_location, on_problem)


def read_multi30k(
    directory: str | pathlib.Path, split: str, language: str, task: int | None = None, on_problem: Problem = refuse
) -> Iterator[Caption]:
    """Yields the captions of a split and language in a clone of `multi30k/dataset`; raises also as `read_aligned`.

    Args:
      directory: the clone, or its `data` folder, which has `task1/raw/train.de.gz` and so on.
      split: train, val, test_2016_flickr (or test_2016), test_2017_flickr, test_2017_mscoco, test_2018_flickr.
      language: en, de, fr or cs.
      task: 1 is one caption per image, translations of each other; 2 is five independent captions in en and de, of
        train, val and test_2016. Default: 2 where it exists, which is how MURAL, ETCL and MULE count 5,000 English and
        German captions but 1,000 French and Czech captions.
      on_problem: see the module.

    Raises:
      UserError: a file is missing.
    """
    root = as_path(directory)
    if (root / "data").is_dir():
        root = root / "data"
    # Task 1 calls the test of 2016 test_2016_flickr, task 2 calls it test_2016.
    is_test_2016 = split in ("test_2016", "test_2016_flickr")
    if task is None:
        is_in_task2 = is_test_2016 or split in ("train", "val")
        task = 2 if is_in_task2 and language in ("en", "de") else 1
    if task == 2:
        name = "test_2016" if is_test_2016 else split
        images = root / f"task2/image_splits/{name}_images.txt"
        files = [root / f"task2/raw/{name}.{number}.{language}" for number in range(1, 6)]
    else:
        name = "test_2016_flickr" if is_test_2016 else split
        images = root / f"task1/image_splits/{name}.txt"
        files = [root / f"task1/raw/{name}.{language}"]
    files = [_existing(file, f"Multi30K's task {task}, split {split}, language {language}") for file in files]
    for file in files:
        yield from read_aligned(file, images, language, on_problem)


def read_coco_cn(
    directory: str | pathlib.Path, split: str, annotation: str = "human-written", on_problem: Problem = refuse
) -> Iterator[Caption]:
    """Yields the Chinese captions of a split of COCO-CN, whose images are of COCO's train2014 and val2014.

    A caption's `image_id` is COCO's, as in `read_coco`.

    Args:
      directory: the unpacked data set.
      split: train, val or test.
      annotation: "human-written" or "manually-translated".
      on_problem: see the module.

    Raises:
      UserError: a file is missing.
    """
    root = as_path(directory)
    list_of_names = _existing(root / f"coco-cn_{split}.txt", f"COCO-CN, split {split}")
    names_of_split = {clean(text) for _, text in read_lines(list_of_names)}
    captions = _existing(root / f"imageid.{annotation}-caption.txt", f"COCO-CN's {annotation} captions")
    for name, text, location in _read_token_lines(captions, on_problem):
        if name in names_of_split:
            image_id = name.rsplit("_", 1)[-1].lstrip("0")  # "391895" of "COCO_val2014_000000391895"
            yield from checked(f"{name}.jpg", image_id, text, "zh", location, on_problem)


def read_flickr8k(path: str | pathlib.Path, language: str, on_problem: Problem = refuse) -> Iterator[Caption]:
    """Yields the captions of a file of Flickr8k; an image's id is its file name.

    A file `captions.txt` is CSV with the head `image,caption`; any other file has lines `name#k<TAB>caption`.
    Raises `UserError` for a `captions.txt` with another head, or an unknown `language`.
    """
    path = as_path(path)
    read_rows = _read_quoted if path.name == "captions.txt" else _read_token_lines
    for name, text, location in read_rows(path, on_problem):
        yield from checked(name, name, text, canonical_language(language), location, on_problem)


def _read_quoted(path: pathlib.Path, on_problem: Problem) -> Iterator[tuple[str, str, str]]:
    """Yields (image name, caption, location) for the rows of a CSV file; raises `UserError` for another head.

    Rows that are not two values are reported to `on_problem`, but for empty rows.
    """
    rows = csv.reader(line or "" for _, line in read_lines(path, on_problem))  # `None`: reported by `read_lines`
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
    """Yields the `Caption` of these values if they are usable, and reports them to `on_problem` otherwise.

    `image_file` and `text` may be any parsed value, `None` if missing; `text` becomes one line with single spaces.
    """
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


def _objects(entries: list, location: str, on_problem: Problem, id_key: str = "id") -> Iterator[tuple[dict, str]]:
    """Yields (entry, its location) for each JSON object in a list; other entries are reported to `on_problem`.

    For the `location` "a.json, image" an entry's location is "a.json, image 37", with the value of its `id_key`, or
    "a.json, image number 1", with its place in the list, where it has no id.
    """
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, dict):
            yield entry, f"{location} {entry.get(id_key, f'number {number}')}"
        else:
            on_problem("entry that is not a JSON object", f"{location} number {number}")


def _check_id(image_id: Any, location: str, on_problem: Problem) -> bool:
    """Returns whether a parsed value can be an image's id, and reports any other value to `on_problem`."""
    if isinstance(image_id, int) or is_text(image_id):
        return True
    on_problem("image id that is neither a number nor text", location)
    return False


def _read_token_lines(path: pathlib.Path, on_problem: Problem) -> Iterator[tuple[str, str, str]]:
    """Yields (image name, caption, location) of lines `name#k<TAB>caption`; reports other lines, passes empty lines."""
    for number, line in read_lines(path, on_problem):
        if line:
            name, tab, caption = line.partition("\t")
            if tab:
                yield name.split("#")[0], caption, f"{path}:{number}"
            else:
                on_problem("line without a tab between image and caption", f"{path}:{number}")


def _existing(path: pathlib.Path, content: str) -> pathlib.Path:
    """Returns `path`, or the file of its name with ".gz"; if both are missing, raises `UserError`, naming `content`."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise UserError(f"{content}: there is no {path} (nor {path.name}.gz).")


def _read_json(path: str | pathlib.Path, expected: str, keys: Sequence[str]) -> dict:
    """Reads a JSON file, whose object has a list under each of `keys`, and returns it without any key "tokens".

    Raises `UserError`, naming the `expected` content, for any other file.
    """
    content = None
    with open_binary(path) as (file, _):
        try:
            text = file.read(LARGEST_JSON + 1)  # a byte more, by which a larger file is recognised
            if len(text) <= LARGEST_JSON:
                # Token lists are most of Karpathy's files and are never used: dropping them at once halves the memory.
                content = json.loads(text, object_hook=_drop_tokens)
        except RecursionError:
            raise UserError(f"{path} is not {expected}: its JSON is nested too deeply.") from None
        except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise UserError(f"{path} is not {expected}: no valid JSON ({error}).") from None
    if len(text) > LARGEST_JSON:
        raise UserError(f"{path} is not {expected}: it has more than {LARGEST_JSON:,} bytes.")
    missing = [key for key in keys if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if missing:
        raise UserError(f"{path} is not {expected}: it has no list {missing[0]!r}.")
    return content


def _drop_tokens(entry: dict) -> dict:
    """Removes the key "tokens" from a parsed JSON object, and returns the object."""
    entry.pop("tokens", None)
    return entry
