"""The commands of run_search.py: index, query, and a search without an index."""

from __future__ import annotations

import functools
import itertools
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from mural_tf.data.record_format import IMAGE_TEXT
from mural_tf.errors import UserError
from mural_tf.files import as_path, json_field, read_json, write_whole
from mural_tf.remote_folders import local_folder, shown
from mural_tf.search import approximate, changes, collect, confidence, embed, recall
from mural_tf.search.build import PLAN, build_index, index_embeddings, index_in_memory
from mural_tf.search.changes import BUILDING
from mural_tf.search.fields import Filter
from mural_tf.search.index import SKIPPED, Index, load_index, read_description
from mural_tf.search.items import IMAGES
from mural_tf.search.pages import write_gallery
from mural_tf.search.queries import (
    Query,
    Result,
    check_filters,
    check_queries,
    leave_out,
    read_queries,
    search,
    to_json,
    to_lines,
)
from mural_tf.search.recall import collect_queries


def index(
    model: str,
    names: Sequence[str],
    output: str,
    kind: str = IMAGES,
    split: str = "",
    dtype: str = "float32",
    method: str = "auto",
    queries_file: str = "",
    batch_size: int = 64,
    update: bool = False,
    embeddings: str = "",
    calibrate: str = "",
    prune: bool = False,
) -> Index:
    """Makes the index `output` and, where it is large, an approximate one; prints what was done.

    Args:
      model: a workdir or an export; not needed with `embeddings`, unless their own is not where it was.
      calibrate: pictures with captions that the model was not trained on, to learn from how sure answers are; by
        default those of the split dev of `names`.
      update: bring a complete index to what its sources hold; without `names` and `embeddings` those it was made of,
        with the model that made it.
      embeddings: a folder that `embed` made, in place of `names`, `kind`, `split` and `dtype`.
      prune: the update takes out what is in the sources no more.
    """
    if prune and not update:
        raise UserError("--prune takes out what the sources hold no more: it needs --update.")
    given = read_queries(queries_file) if queries_file else []
    if method not in ("none", "auto"):
        approximate.import_faiss()
    if embeddings and names:
        raise UserError("--embeddings takes the place of sources: give one or the other.")
    if calibrate and kind != IMAGES:
        raise UserError("--calibrate tells how sure the first image for a sentence is: it needs --kind=images.")
    with local_folder(output) as folder:
        if update and not names and not embeddings:
            model, names, kind, split, dtype, embeddings = _made_of(folder, model)
        if not embeddings:
            collect.list_files(kind, names, split)  # mistakes show before the model is loaded
        captioned = [calibrate] if calibrate else list(filter(_has_dev, names))
        _captioned(captioned)  # and these
        made, embedder = _index(
            model, names, folder, kind, split, dtype, method, given, batch_size, update, embeddings, prune
        )
        answered = [one for one in given if one.right]
        if made.kind == IMAGES and (made.confidence is None or calibrate or answered):
            calibrate_index(made, folder, embedder, captioned, answered, batch_size)
    return made


def _made_of(folder: pathlib.Path, model: str) -> tuple[str, list[str], str, str, str, str]:
    """Returns model, sources, kind, split, dtype and embeddings of an index, also of one whose update was cut short."""
    plan = folder / BUILDING / PLAN
    described = read_json(plan) if plan.exists() else read_description(folder)
    wanted = {"sources": list[str], "kind": str, "split": str, "dtype": str}
    sources, kind, split, dtype = (json_field(described, name, of, folder) for name, of in wanted.items())
    is_embedded = len(sources) == 1 and (as_path(sources[0]) / embed.DESCRIPTION).is_file()
    if not model and not is_embedded:
        model = read_description(folder)["model"]["path"]
    return (model, [], kind, split, dtype, sources[0]) if is_embedded else (model, sources, kind, split, dtype, "")


def calibrate_index(
    made: Index,
    folder: pathlib.Path,
    embedder,
    sources: Sequence[str],
    given: Sequence[Query] = (),
    batch_size: int = 64,
) -> None:
    """Learns how sure the answers of an index are and keeps it in its folder; prints so, or why not.

    Args:
      made: an index of images in `folder`, which `embedder` made.
      sources: pictures with captions that the model was not trained on; of data sets the split dev is taken.
      given: sentences; those with right answers count.
    """
    files = _captioned(sources)
    pieces = [piece for group in collect.cut_files(IMAGES, files, confidence.MOST_IMAGES) for piece in group]
    found = itertools.islice(collect.read(IMAGES, pieces), confidence.MOST_IMAGES)
    try:
        pictures = index_in_memory(embedder, found, IMAGES, batch_size) if files else None
        made.confidence = confidence.learn(made, embedder, pictures, given)
    except UserError as error:
        print(f"Not known how sure answers are: {error}")
        return
    confidence.save(folder, made.confidence)
    fitted = made.confidence
    print(f"How sure answers are: learnt from {fitted.captions:,} captions of {fitted.images:,} pictures.")


def _captioned(sources: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the files, and names to show, of pictures with captions."""
    return [file for name in sources for file in collect.list_files(IMAGES, [name], "dev" if _has_dev(name) else "")]


def _has_dev(source: str) -> bool:
    folder = as_path(source) / IMAGE_TEXT
    return folder.is_dir() and any(folder.glob("dev-*.tfrecord"))


def _index(model, names, output, kind, split, dtype, method, given, batch_size, update, embeddings, prune):
    """Returns the index and its model."""
    if embeddings:
        made = index_embeddings(embeddings, output, update, prune)
        embedder = model_of(made, model) if model else LateModel(made)
    else:
        embedder = load(model)
        made = build_index(embedder, names, output, kind, split, dtype, batch_size, update, progress=True, prune=prune)
    print(f"{made.count:,} {made.kind} in {shown(output)}, made by {made.model.describe()}.")
    if made.skipped:
        print(f"{made.skipped:,} could not be read: see {shown(output)}/{SKIPPED}.", file=sys.stderr)
    parameters = approximate.choose(len(made), method)
    there = made.approximate is not None and made.approximate.parameters == parameters
    if parameters is None or (there and not given):
        print("Its approximate index is there already." if there else "Searched exactly.")
        return made, embedder
    if method == "auto" and not approximate.has_faiss():
        print("Searched exactly, because faiss is not installed: pip install 'mural-tf[search]'.")
        return made, embedder
    return add_approximate(made, embedder, output, parameters, given), embedder


def load(model: str):
    """Loads a model, and TensorFlow with it."""
    from mural_tf.loading import load as load_model

    return load_model(model)


class LateModel:
    """The model of an index, which is loaded when it is asked for something: for nothing but vectors it is not."""

    def __init__(self, made: Index):
        self._made = made

    @functools.cached_property
    def _embedder(self):
        return model_of(self._made)

    @property
    def config(self):
        """The model's."""
        return self._embedder.config

    def encode_text(self, texts: Sequence[str], **options) -> np.ndarray:
        """Returns what the model returns."""
        return self._embedder.encode_text(texts, **options)

    def encode_image(self, images: Sequence[bytes], **options):
        """Returns what the model returns."""
        return self._embedder.encode_image(images, **options)


def model_of(made: Index, model: str = ""):
    """Loads `model`, by default the one that made the index; raises `UserError` if it is not there or another one."""
    model = model or made.model.path
    if not model or not as_path(model).is_dir():
        raise UserError(
            f"The index was made by the model {model or 'of a process in memory'}, which is not there; "
            "give its place: --model=WORKDIR_OR_EXPORT."
        )
    embedder = load(model)
    made.check_model(embedder)
    return embedder


def add_approximate(
    made: Index, embedder, output: str, parameters: approximate.Parameters, given: Sequence[Query] = ()
) -> Index:
    """Builds an approximate index beside a complete one, chooses its effort by recall, and prints the report.

    One of the same parameters is kept, and its effort is chosen again, for the `given` sentences as well.
    """
    built = made.approximate
    if built is None or built.parameters != parameters:
        with tqdm(desc=f"Building {parameters.method}", unit=" vectors", total=len(made)) as bar:
            built = approximate.build(made.embeddings, parameters, bar.update)
    groups = collect_queries(made, embedder, given)
    report = recall.choose_effort(built, made.embeddings, groups)
    approximate.save(output, built, report)
    made.approximate = built
    print("\n".join(recall.to_lines(report, built)))
    if made.kind == IMAGES and not any(name.startswith("text") for name in groups):
        print(
            "Warning: recall was not measured for sentences, because none is known: give some in the languages that "
            "will be asked, --queries=FILE with language[TAB]text a line.",
            file=sys.stderr,
        )
    return made


def query(
    index_folder: str,
    queries: Sequence[Query],
    model: str = "",
    top: int = 10,
    use_exact: bool = False,
    html: str = "",
    json: str = "",
    filters: Sequence[Filter] = (),
    least_precision: float = 0.0,
) -> list[Result]:
    """Asks an index. Prints the hits, or JSON if `json` is "-"; writes the page `html`.

    Args:
      model: workdir or export; by default the one that made the index, where it was.
      filters: see `Index.search`.
      json: file for the results, or "-" to print them and nothing else.
      least_precision: leave out sentences whose first answer is less sure, see `confidence.Sureness`.
    """
    check_queries(queries, top)
    _check_outputs(html=html, json="" if json == "-" else json)
    opened = load_index(index_folder, use_exact)
    if least_precision and opened.confidence is None:
        raise UserError(
            f"--least_precision={least_precision:g}: the index {index_folder} does not know how sure its answers are; "
            "index again with --calibrate=DATA, pictures with captions that the model was not trained on."
        )
    if least_precision and filters:
        raise UserError("--least_precision judges answers from the whole index; it cannot be given with --filter.")
    check_filters(opened, filters)
    embedder = model_of(opened, model)
    found = leave_out(search(opened, embedder, queries, top, filters), least_precision)
    _show(opened, found, html, json)
    return found


def search_once(
    model: str, images: str, queries: Sequence[Query], top: int = 10, split: str = "", batch_size: int = 64,
    html: str = "", json: str = "", filters: Sequence[Filter] = (),
) -> list[Result]:  # fmt: skip
    """Searches images exactly without keeping an index."""
    check_queries(queries, top)
    found_images = collect.find(IMAGES, [images], split)
    _check_outputs(html=html, json="" if json == "-" else json)
    embedder = load(model)
    made = index_in_memory(embedder, found_images, IMAGES, batch_size, progress=True)
    if made.skipped:
        print(f"{made.skipped} of {made.skipped + len(made)} images cannot be read.", file=sys.stderr)
    check_filters(made, filters)
    found = search(made, embedder, queries, top, filters)
    _show(made, found, html, json)
    return found


def _check_outputs(**files: str) -> None:
    for flag, file in files.items():
        parent = as_path(file).parent
        if file and isinstance(parent, pathlib.Path) and not parent.is_dir():  # stores have no folders to make
            raise UserError(f"The folder of --{flag}={file} does not exist.")


def _show(opened: Index, found: Sequence[Result], html: str, json: str) -> None:
    if json == "-":
        print(to_json(opened, found))
    else:
        for result in found:
            print("\n".join(to_lines(opened, result)))
    notes = sys.stderr if json == "-" else sys.stdout
    if any(result.left_out for result in found):
        count = sum(result.left_out for result in found)
        print(f"Left out: {count:,} of {len(found):,} queries, whose first answer is not sure enough.", file=notes)
    if json not in ("", "-"):
        write_whole(json, to_json(opened, found) + "\n")
        print(f"Written: {json}", file=notes)
    if html:
        write_gallery(html, opened, found)
        print(f"Written: {html}", file=notes)


def remove(
    index_folder: str, names: Sequence[str], filters: Sequence[Filter] = (), gone: bool = False, dry_run: bool = False
) -> None:
    """Takes items out of an index: by name, or by filters, or of these the images that are not there any more."""
    if not names and not filters and not gone:
        raise UserError("Nothing to remove: give names as `search query` shows them, --filter=name=value or --gone.")
    if names and (filters or gone):
        raise UserError("Give names, or --filter and --gone, which say which items; not both.")

    def is_wanted(opened: Index, row: int) -> bool:
        return not gone or is_gone(opened, row)

    with local_folder(index_folder) as folder:
        check_filters(load_index(folder, use_exact=True), filters)
        count, of = changes.remove(folder, names, filters, is_wanted, dry_run)
        kind = read_description(folder)["kind"]
    print(f"{count:,} of {of:,} {kind} {'would be' if dry_run else 'are'} removed from {shown(index_folder)}.")


def is_gone(opened: Index, row: int) -> bool:
    """Tells whether the image of a row is not there any more; a text without one is not gone."""
    item = opened.describe(row)
    if item.has_image and item.offset < 0:
        return not as_path(item.path).is_file()
    return item.has_image and not image_or_nothing(opened, row)


def image_or_nothing(opened: Index, row: int) -> bytes:
    """Returns the encoded image of a row, b"" if it is gone."""
    try:
        return opened.read_image(row)
    except (OSError, ValueError):
        return b""
