"""The benchmarks by name: which files each needs, where these come from, which protocol options it reads, how it runs.

A benchmark's files lie in `data_dir` itself or in `data_dir/<name>`. `run_benchmark` raises for missing files;
`available` says which benchmarks a folder holds, and the missing files of the others. The code of a benchmark is
imported when it runs, so that the list of benchmarks stays fast.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import importlib
import pathlib
import re

from ml_collections import ConfigDict

from mural_lite.config import training_folders
from mural_lite.errors import UserError
from mural_lite.files import as_path, read_json
from mural_lite.paths import RemotePath
from mural_lite.remote_folders import model_place
from mural_lite.versions import MODEL_CARD, newest_description
from mural_tf.evaluation.protocol import changed_options, check_protocol

ALL = "all"
ONLY_IN_OWN_FOLDER = ("emoji", "wit", "globetrotter")  # their files look like other benchmarks' files


@dataclasses.dataclass(frozen=True)
class Entry:
    """One benchmark, a row of benchmarks.tsv.

    `module`: the file of `mural_tf.evaluation` whose function `name` measures it. `needs`: patterns of files below its
    folder that must exist; "a|b" is either. `source`: where to get the files. `split`: the default split. `options`:
    the sections of the protocol that it reads; `shared`: the options outside sections. `image_sources`: the image
    collections that its test images are from, for the warning of contamination.
    """

    name: str
    module: str
    split: str
    needs: tuple[str, ...]
    options: tuple[str, ...]
    shared: tuple[str, ...]
    image_sources: tuple[str, ...]
    summary: str
    source: str

    def missing(self, folder: pathlib.Path) -> list[str]:
        """Returns the patterns that match nothing in `folder`."""
        return [pattern for pattern in self.needs if not _matches(folder, pattern)]

    @property
    def measure(self):
        """The function that measures the benchmark: it takes a `Request` and returns a list of `Evaluation`s."""
        return getattr(importlib.import_module(f"mural_tf.evaluation.{self.module}"), self.name)


def _matches(folder: pathlib.Path, pattern: str) -> bool:
    """Whether something in `folder` matches a pattern, or one of several patterns "a|b"."""
    return any(any(folder.glob(alternative)) for alternative in pattern.split("|"))


def _read_benchmarks() -> dict[str, Entry]:
    """Returns {name of a benchmark: its row} of benchmarks.tsv next to this file."""
    text = pathlib.Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
    entries = {}
    for row in csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE):
        for column in LISTS:
            row[column] = tuple(row[column].split())
        entries[row["name"]] = Entry(**row)
    return entries


LISTS = ("needs", "options", "shared", "image_sources")  # columns with several values, separated by spaces
BENCHMARKS = _read_benchmarks()


def describe_benchmarks() -> str:
    """Returns the text of `--list`: each benchmark's name, summary, the files that it needs, and where to get them."""
    return "\n".join(
        f"{entry.name}\n    {entry.summary}\n    needs {', '.join(entry.needs)}\n    from {entry.source}"
        for entry in BENCHMARKS.values()
    )


def run_benchmark(name: str, request):
    """Runs one benchmark, as `request`, a `Request`, says, and returns its `Evaluation`s (MS-COCO has two: 5K and 1K).

    The request's folder becomes the benchmark's own, and an empty split the default split. Evaluations get warnings
    of contamination as notes, and changed options in their protocol line. Raises `UserError` for an unknown benchmark,
    a value that an option does not take, or missing files, with where to get them.
    """
    entry = _entry(name)
    check_protocol(request.protocol)
    request.folder = check_files(name, request.folder)
    request.split = request.split or entry.split
    warnings = contamination_notes(name, entry.image_sources, request.split, request.folder, request.embedder)
    evaluations = entry.measure(request)
    options = changed_options(request.protocol)
    for evaluation in evaluations:
        evaluation.notes = [*warnings, *evaluation.notes]
        if options:
            evaluation.protocol += "; " + ", ".join(f"{key}={value}" for key, value in sorted(options.items()))
    return evaluations


def check_files(name: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a benchmark's files; raises `UserError` if files are missing, with where to get them."""
    entry = _entry(name)
    folder = _folder(entry, data_dir)
    missing = entry.missing(folder)
    if missing:
        raise UserError(
            f"{folder} lacks {', '.join(missing)}, which the benchmark {name!r} needs. Get it: {entry.source}."
        )
    return folder


def _entry(name: str) -> Entry:
    """Returns the benchmark of a name; raises `UserError` with the nearest name if no benchmark has this name."""
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"Unknown benchmark {name!r}: {hint}There are {', '.join(BENCHMARKS)}, and {ALL}.")
    return BENCHMARKS[name]


def _folder(entry: Entry, data_dir: pathlib.Path) -> pathlib.Path:
    """Returns `data_dir/<name>` if it is a folder, otherwise `data_dir`; raises `UserError` if neither exists."""
    own_folder = data_dir / entry.name
    if own_folder.is_dir():
        return own_folder
    if not data_dir.is_dir():
        raise UserError(f"The data folder {data_dir} does not exist. For {entry.name!r}: {entry.source}.")
    return data_dir


def available(data_dir: pathlib.Path) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the names of the benchmarks that `data_dir` holds, and {other benchmark: missing files}.

    Files in `data_dir` itself do not count for `ONLY_IN_OWN_FOLDER`: for example, TFRecords there are only "retrieval".
    Raises `UserError` if `data_dir` does not exist.
    """
    if not data_dir.is_dir():
        raise UserError(f"The data folder {data_dir} does not exist.")
    ready = []
    lacking = {}
    for name, entry in BENCHMARKS.items():
        folder = _folder(entry, data_dir)
        if name in ONLY_IN_OWN_FOLDER and folder == data_dir:
            missing = [f"{name}/"]  # this folder itself
        else:
            missing = entry.missing(folder)
        if missing:
            lacking[name] = missing
        else:
            ready.append(name)
    return ready, lacking


def check_options(name: str, protocol: ConfigDict) -> None:
    """Raises `UserError` for a changed option that the benchmark does not read, or for a value that is not known."""
    check_protocol(protocol)
    entry = _entry(name)
    known_names = {*entry.options, *entry.shared}
    unread = [key for key in changed_options(protocol) if key.split(".")[0] not in known_names]
    if unread:
        raise UserError(
            f"The benchmark {name!r} does not read --protocol.{unread[0]}; it reads "
            f"{', '.join(f'--protocol.{known_name}' for known_name in sorted(known_names))}."
        )


# A warning where a model may have been trained on a benchmark's images.
#
# A model's record names its training data: the configuration's data folder with its dataset.json, and an export's
# model card. Their names and splits tell which image collections they hold; for example, 800 of XTD's 1,000 images are
# of MS-COCO's train2014. Only the last training is recorded: the data of an earlier one is unknown, and images from the
# web may happen to be the same.

# (pattern in a description of training data, the image collection); `_parts` tells splits apart.
_COLLECTIONS = (
    (r"flickr30k|multi30k", "flickr30k"),
    (r"flickr8k", "flickr8k"),
    (r"coco(?!-?cn)|stair|yj.?captions", "coco"),
    (r"coco-?cn", "coco_cn"),
    (r"open.?images|crossmodal|xm3600", "open_images"),
    (r"imagenet|ilsvrc", "imagenet"),
    (r"xtd", "xtd"),
)


def contamination_notes(
    benchmark: str, collections: tuple[str, ...], split: str, folder: pathlib.Path, embedder
) -> list[str]:
    """Returns warnings, a sentence each, if the model's record names training data with images of a benchmark.

    `benchmark` is its name, `collections` are its images' collections ("coco_val2014"), `split` and `folder` are the
    measured data, and `embedder` is the model; its `config` and `path`, if it has them, lead to its record.
    """
    directories, descriptions = _training_record(embedder)
    if split == "train":
        for directory in directories:
            if is_same_folder(folder, directory):
                return [f"CONTAMINATED: the model was trained on this very split of {directory}."]
    origins = {}  # {part of a collection: the description that names it}
    for description in descriptions:
        origins.update(dict.fromkeys(_parts(description), description))
    notes = []
    parts = collections
    if benchmark == "multi30k" and "mscoco" in split:  # its test of ambiguous verbs has MS-COCO's images
        parts = ("coco_train2014",)
    for part in parts:
        if part in origins:
            notes.append(
                f"CONTAMINATED: the model's record names {origins[part]!r}, and images of this benchmark are from "
                f"{part.replace('_', ' ')}: do not report these numbers as zero-shot."
            )
    return notes


def is_same_folder(folder: pathlib.Path | RemotePath, other: str) -> bool:
    """Whether `folder` and the name `other` are the same folder, also if a name is relative or a link."""
    other_folder = as_path(other)
    if isinstance(folder, pathlib.Path) and isinstance(other_folder, pathlib.Path):
        return folder.resolve() == other_folder.resolve()
    return folder == other_folder


def _training_record(embedder) -> tuple[list[str], list[str]]:
    """Returns (the folders of a model's training data, texts that name these data sets and their sources)."""
    config = getattr(embedder, "config", None)
    directories = [] if config is None else training_folders(config.data)
    path = getattr(embedder, "path", "")
    texts = []
    for directory in directories:
        texts += [as_path(directory).name, *_describe(as_path(directory) / "dataset.json")]
    if path:
        card = newest_description(model_place(path)) / MODEL_CARD
        texts += _describe(card, "training_data")  # a copy of dataset.json
    return directories, list(dict.fromkeys(texts))


def _describe(path: pathlib.Path, field: str = "") -> list[str]:
    """Returns [name of a data set, a line for each of its sources] from a JSON file; [] if it does not describe them.

    The description is the file's object or, if `field` is not empty, this field of it.
    """
    try:
        description = read_json(path)
        if field:
            description = description[field]
        return [str(description.get("name", "")), *map(_source_line, description.get("sources", []))]
    except (UserError, KeyError, AttributeError, TypeError):
        return []  # other people's records come without a description


def _source_line(source: dict | str) -> str:
    """Returns a source of a dataset.json, an object or its text, as "coco split=train dataset_coco.json"."""
    if not isinstance(source, dict):
        return str(source)
    split = source.get("split") or source.get("splits")
    if isinstance(split, list):
        split = ",".join(split)
    words = [str(source.get("kind", ""))]
    if split:
        words.append(f"split={split}")
    for file in source.get("files", [])[:3]:  # enough to recognise the collection in a warning
        if isinstance(file, list):  # its name comes first
            file = file[0]
        words.append(pathlib.PurePosixPath(str(file)).name)
    return " ".join(words)


def _parts(text: str) -> set[str]:
    """Returns the image collections that a description names; MS-COCO is "coco_train2014" and "coco_val2014"."""
    text = text.lower()
    collections = {collection for pattern, collection in _COLLECTIONS if re.search(pattern, text)}
    splits = _splits(text)
    may_have_train = not splits or "train" in splits
    may_have_others = splits != {"train"}
    coco_sets = collections & {"coco", "coco_cn", "xtd"}
    parts = set()
    if may_have_others:  # a train split by itself gives no warning
        parts |= collections - coco_sets
    if coco_sets - {"coco"}:  # COCO-CN and XTD draw from both parts of MS-COCO, in each split of their own
        return parts | {"coco_train2014", "coco_val2014"}
    if coco_sets and may_have_train:
        parts.add("coco_train2014")
    if coco_sets and may_have_others:  # Karpathy and Li's restval, val and test are of val2014
        parts.add("coco_val2014")
    return parts


def _splits(text: str) -> set[str]:
    """Returns the splits that a description names; an empty set if it names no split, and may mean all splits."""
    stated = re.search(r"split=(\S+)", text)
    if stated:
        return set(stated[1].split(","))
    return {split for split in ("train", "restval", "val", "test") if re.search(rf"(?<![a-z]){split}", text)}
