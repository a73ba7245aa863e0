"""Benchmarks by name, run on a model: what each function measures is in the catalogue.

A benchmark's files lie in `data_dir` itself or in `data_dir/<name>`. `run_benchmark` raises for what is missing;
`available` tells which ones a folder holds, and what the others lack.
"""

from __future__ import annotations

import difflib
import pathlib

from ml_collections import ConfigDict

from mural_tf.errors import UserError
from mural_tf.evaluation import captioned, cxc, globetrotter, sentences, zero_shot
from mural_tf.evaluation.catalogue import CATALOGUE, Entry
from mural_tf.evaluation.contamination import contamination_notes
from mural_tf.evaluation.protocol import changed_options, check_protocol
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation, language_groups, read_pool

ALL = "all"
ONLY_IN_OWN_FOLDER = ("emoji", "wit", "globetrotter")  # their files look like those of other benchmarks


def from_records(name: str):
    """Returns the benchmark that pools a folder of image-text TFRecords, under its name."""

    def measure(request: Request) -> list[Evaluation]:
        pool = read_pool(request.folder, request.split)
        return request.measure(pool, name, groups=language_groups(request.folder))

    return measure


BENCHMARKS = {
    "retrieval": from_records("retrieval"),
    "emoji": from_records("emoji"),
    "wit": from_records("wit"),
    "multi30k": captioned.multi30k,
    "flickr30k": captioned.flickr30k,
    "coco": captioned.coco,
    "coco_cn": captioned.coco_cn,
    "mule_coco": captioned.mule_coco,
    "xtd": captioned.xtd,
    "xm3600": captioned.xm3600,
    "cxc": cxc.cxc,
    "sts2017": sentences.sts2017,
    "tatoeba": sentences.tatoeba,
    "imagenet": zero_shot.imagenet,
    "cifar100": zero_shot.cifar100,
    "sun397": zero_shot.sun397,
    "food101": zero_shot.food101,
    "imagenet_knn": zero_shot.imagenet_knn,
    "globetrotter": globetrotter.globetrotter,
}


def run_benchmark(name: str, request: Request) -> list[Evaluation]:
    """Runs one benchmark and returns its evaluations (MS-COCO has two: 5K and 1K).

    Raises:
      UserError: no such benchmark, or files missing (with where to get them).
    """
    entry = find_entry(name)
    check_protocol(request.protocol)
    request.folder = check_files(name, request.folder)
    request.split = request.split or entry.split
    warnings = contamination_notes(entry, request.split, request.folder, request.embedder)
    evaluations = BENCHMARKS[name](request)
    options = changed_options(request.protocol)
    for evaluation in evaluations:
        evaluation.notes = [*warnings, *evaluation.notes]
        if options:
            evaluation.protocol += "; " + ", ".join(f"{key}={value}" for key, value in sorted(options.items()))
    return evaluations


def check_files(name: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Returns the benchmark's folder; raises `UserError` if files are missing, with where to get them."""
    entry = find_entry(name)
    folder = find_folder(entry, data_dir)
    missing = entry.missing(folder)
    if missing:
        raise UserError(
            f"{folder} lacks {', '.join(missing)}, which the benchmark {name!r} needs. Get it: {entry.source}."
        )
    return folder


def find_entry(name: str) -> Entry:
    """Returns the catalogue's entry; raises `UserError` with the nearest name if there is none."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"Unknown benchmark {name!r}: {hint}There are {', '.join(CATALOGUE)}, and {ALL}.")
    return CATALOGUE[name]


def find_folder(entry: Entry, data_dir: pathlib.Path) -> pathlib.Path:
    """Returns `data_dir/<name>` if it is there, `data_dir` otherwise; raises `UserError` if neither is."""
    inside = data_dir / entry.name
    if inside.is_dir():
        return inside
    if not data_dir.is_dir():
        raise UserError(f"The data folder {data_dir} does not exist. For {entry.name!r}: {entry.source}.")
    return data_dir


def available(data_dir: pathlib.Path) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the benchmarks that `data_dir` holds, and those that it does not, with the files they lack.

    TFRecords in `data_dir` itself are run once, as "retrieval"; others need a folder of their name.
    """
    if not data_dir.is_dir():
        raise UserError(f"The data folder {data_dir} does not exist.")
    ready, lacking = [], {}
    for name, entry in CATALOGUE.items():
        folder = find_folder(entry, data_dir)
        if name in ONLY_IN_OWN_FOLDER and folder == data_dir:
            lacking[name] = [f"{name}/"]
            continue
        missing = entry.missing(folder)
        if missing:
            lacking[name] = missing
        else:
            ready.append(name)
    return ready, lacking


def check_options(name: str, protocol: ConfigDict) -> None:
    """Raises `UserError` for an option that the benchmark does not read, or a value that is no choice."""
    check_protocol(protocol)
    entry = find_entry(name)
    read = {*entry.options, *entry.shared}
    unread = [key for key in changed_options(protocol) if key.split(".")[0] not in read]
    if unread:
        raise UserError(
            f"The benchmark {name!r} does not read --protocol.{unread[0]}; it reads "
            f"{', '.join(f'--protocol.{name}' for name in sorted(read))}."
        )
