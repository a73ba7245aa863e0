"""The commands of run_search.py: index, query, and a search without an index."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import pathlib
import sys
from collections.abc import Sequence

from mural_tf.data.record_format import IMAGE_TEXT
from mural_tf.errors import UserError, install_extra
from mural_tf.files import as_path, json_field, read_json, write_whole
from mural_tf.remote_folders import local_folder, model_place, shown
from mural_tf.search import approximate, collect, confidence, embed, ranking
from mural_tf.search import index as index_files
from mural_tf.search.build import PLAN, build_index, index_embeddings, index_in_memory
from mural_tf.search.index import BUILDING, SKIPPED, Index, load_index, read_description
from mural_tf.search.items import IMAGES, Filter
from mural_tf.search.queries import (
    Query,
    Result,
    check_filters,
    check_queries,
    read_queries,
    search,
    to_json,
    to_lines,
    write_gallery,
)


def index(
    names: Sequence[str],
    output: str,
    *,
    model: str = "",
    embeddings: str = "",
    method: str = "auto",
    queries_file: str = "",
    calibrate: str = "",
    batch_size: int = 64,
    update: bool = False,
    prune: bool = False,
    **content: str,
) -> Index:
    """Makes the index `output` and, where it is large, an approximate one; prints what was done.

    Args:
      names, batch_size: see `build_index`.
      model: a workdir or an export; not needed with `embeddings`, unless their own is not where it was.
      embeddings: a folder that `embed` made, in place of `names` and `content`.
      method: of the approximate index, see `approximate.choose`.
      queries_file: see `read_queries`.
      calibrate: pictures with captions that the model was not trained on, to learn from how sure answers are; by
        default those of the split dev of `names`.
      update: bring a complete index to what its sources hold; without `names` and `embeddings` those it was made of,
        with the model that made it.
      prune: the update takes out what is in the sources no more.
      content: kind, split and dtype, see `build_index`.
    """
    if prune and not update:
        raise UserError("--prune takes out what the sources hold no more: it needs --update.")
    given = read_queries(queries_file) if queries_file else []
    if method not in ("none", "auto"):
        approximate.import_faiss()
    if embeddings and names:
        raise UserError("--embeddings takes the place of sources: give one or the other.")
    if calibrate and content.get("kind", IMAGES) != IMAGES:
        raise UserError("--calibrate tells how sure the first image for a sentence is: it needs --kind=images.")
    with local_folder(output) as folder:
        if update and not names and not embeddings:
            names, content = _made_of(folder)
            if len(names) == 1 and (as_path(names[0]) / embed.DESCRIPTION).is_file():
                names, embeddings = [], names[0]
            else:
                model = model or read_description(folder)["model"]["path"]
        captioned = [calibrate] if calibrate else list(filter(_has_dev, names))
        _captioned(captioned)  # mistakes show before the model is loaded
        if not embeddings:
            collect.list_files(content.get("kind", IMAGES), names, content.get("split", ""))
        if embeddings:
            made = index_embeddings(embeddings, folder, update, prune)
            embedder = model_of(made, model) if model else LateModel(made)
            if model:
                ranking.add_captions(folder, made, embedder)
            elif made.captions is None and len(made.table.caption_rows()):
                print("Captions are searched by words alone: --model=MODEL encodes them, too.")
        else:
            embedder, of_update = load(model), dict(update=update, prune=prune)
            made = build_index(embedder, names, folder, batch_size=batch_size, progress=True, **of_update, **content)
        print(f"{made.count:,} {made.kind} in {shown(folder)}, made by {made.model.describe()}.")
        if made.skipped:
            print(f"{made.skipped:,} could not be read: see {shown(folder)}/{SKIPPED}.", file=sys.stderr)
        if made.gone:
            print(f"{made.gone:,} of them are in the sources no more; --prune takes them out.")
        _approximate(made, embedder, folder, method, given)
        answered = [one for one in given if one.right]
        unsure = made.confidence is None and (captioned or made.captions is not None)
        if made.kind == IMAGES and (unsure or calibrate or answered):
            calibrate_index(made, folder, embedder, captioned, answered, batch_size)
    return made


def _made_of(folder: pathlib.Path) -> tuple[list[str], dict[str, str]]:
    """Returns the sources of an index, also of one whose update was cut short, and its kind, split and dtype."""
    plan = folder / BUILDING / PLAN
    described = read_json(plan) if plan.exists() else read_description(folder)
    content = {name: json_field(described, name, str, folder) for name in ("kind", "split", "dtype")}
    return json_field(described, "sources", list[str], folder), content


def calibrate_index(
    made: Index,
    folder: pathlib.Path,
    embedder,
    sources: Sequence[str],
    given: Sequence[Query] = (),
    batch_size: int = 64,
) -> None:
    """Chooses the weights of the one ranking, learns how sure answers are, and keeps both; prints so, or why not.

    Args:
      made: an index of images in `folder`, which `embedder` made.
      sources: pictures with captions that the model was not trained on; of data sets the split dev is taken.
      given: sentences; those with right answers count.
    """
    files = _captioned(sources)
    found = itertools.islice(collect.read_files(IMAGES, files), confidence.MOST_IMAGES)
    try:
        pictures = index_in_memory(embedder, found, IMAGES, batch_size) if files else None
        asked = ranking.ask_as_strangers(made, pictures, embedder) if files else []
        chosen = ranking.choose_weights(asked) if made.captions is not None else None
        if chosen is not None:
            made.weights, shares = chosen
            ranking.save_weights(folder, made.captions.head, made.weights)
            weights = ", ".join(f"{way} {weight:g}" for way, weight in made.weights.items())
            found = ", ".join(f"{way} {share:.1%}" for way, share in shares.items())
            print(f"Weights of the one ranking: {weights}. Recall@10 in languages that the captions lack: {found}.")
            asked = [one.weighted(made.weights) for one in asked]
        made.confidence = confidence.learn(made, embedder, pictures, given, asked)
    except UserError as error:
        print(f"Warning: it is not known how sure answers are: {error}", file=sys.stderr)
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


def load(model: str):
    """Loads a model, and TensorFlow with it unless it is a `lite/`."""
    from mural_tf.loading import load as load_model

    return load_model(model)


def quickest(model: str):
    """Returns what is loaded of a model to ask with: the small encoders of an export that has them."""
    from mural_tf.loading import quickest as quickest_of

    return quickest_of(model)


class LateModel:
    """The model of an index, which is loaded when it is asked for something: for nothing but vectors it is not."""

    def __init__(self, made: Index, model: str = ""):
        self._load = functools.cache(lambda: model_of(made, model))

    def __getattr__(self, name: str):
        return getattr(self._load(), name)


def model_of(made: Index, model: str = ""):
    """Loads `model`, by default the one that made the index; raises `UserError` if it is not there or another one."""
    model = model or made.model.path
    if not model or not model_place(model).is_dir():
        raise UserError(
            f"The index was made by the model {model or 'of a process in memory'}, which is not there; "
            "give its place: --model=WORKDIR_OR_EXPORT."
        )
    embedder = load(quickest(model))
    made.check_model(embedder)
    return embedder


def _approximate(made: Index, embedder, folder: pathlib.Path, method: str, given: Sequence[Query]) -> None:
    """Builds an approximate index beside a complete one, chooses its effort by recall, and prints the report.

    One of as many cells is kept, and its effort is chosen again, for the `given` sentences as well.
    """
    cells, built = approximate.choose(len(made), method), made.approximate
    is_there = built is not None and built.cells == cells
    if cells is None or (is_there and not given):
        print("Its approximate index is there already." if is_there else "Searched exactly.")
        return
    if method == "auto" and not importlib.util.find_spec("faiss"):
        print(f"Searched exactly, because faiss is not installed: {install_extra('search')}.")
        return
    if not is_there:
        built = approximate.build(made.embeddings, cells, progress=True)
    groups = approximate.collect_queries(made, embedder, given)
    report = approximate.choose_effort(built, made.embeddings, groups)
    approximate.save(folder, built, report)
    made.approximate = built
    print("\n".join(approximate.to_lines(report, built)))
    if made.kind == IMAGES and not any(name.startswith("text") for name in groups):
        print(
            "Warning: recall was not measured for sentences, because none is known: give some in the languages that "
            "will be asked, --queries=FILE with language[TAB]text a line.",
            file=sys.stderr,
        )


def check_outputs(html: str = "", json: str = "") -> None:
    """Raises `UserError` for a file in a folder that is not there."""
    for flag, file in {"html": html, "json": json}.items():
        parent = as_path(file).parent
        if file and isinstance(parent, pathlib.Path) and not parent.is_dir():  # stores have no folders to make
            raise UserError(f"The folder of --{flag}={file} does not exist.")


MANY = 5  # queries with right answers; of more a table is shown


def recall_lines(answered: Sequence[Result]) -> list[str]:
    """Returns a line for each language of queries with right answers, and one for all: how many were found."""
    languages = sorted({one.query.language for one in answered})
    groups = {language: [one for one in answered if one.query.language == language] for language in languages}
    groups = groups if len(groups) == 1 else {**groups, "all": answered}
    lines = []
    for language, results in groups.items():
        first = sum(one.first_right == 1 for one in results)
        among = sum(one.first_right is not None for one in results)
        most = max(len(one.hits) for one in results)
        of = f"of {len(results):,} queries"
        lines.append(f"{language or 'no language':12} right first {first:,}, among the {most} shown {among:,} {of}")
    return lines


def show(opened: Index, found: Sequence[Result], html: str = "", json: str = "") -> None:
    """Prints the results of an index and writes them: `json`, a file or "-" to print nothing else; `html`, a page."""
    notes = sys.stderr if json == "-" else sys.stdout
    answered = [one for one in found if one.query.right]
    shown = [one for one in found if len(answered) <= MANY or not one.query.right]
    lines = [line for one in shown for line in to_lines(opened, one)]
    if len(answered) > MANY:
        lines += recall_lines(answered)
    print(to_json(opened, found) if json == "-" else "\n".join(lines))
    left_out = sum(result.left_out for result in found)
    if left_out:
        print(f"Left out: {left_out:,} of {len(found):,} queries, whose first answer is not sure enough.", file=notes)
    if json not in ("", "-"):
        write_whole(json, to_json(opened, found) + "\n")
        print(f"Written: {json}", file=notes)
    if html:
        write_gallery(html, opened, found)
        print(f"Written: {html}", file=notes)


def query(
    index_folder: str,
    queries: Sequence[Query],
    *,
    model: str = "",
    use_exact: bool = False,
    html: str = "",
    json: str = "",
    **asked,
) -> list[Result]:
    """Asks an index and shows the answers.

    Args:
      model: workdir or export; by default the one that made the index, where it was. Ranking by words needs none.
      html, json: see `show`.
      asked: top, filters, rank, offset, sort and least_precision, see `queries.search`.
    """
    check_queries(queries, asked.get("top", 1))
    check_outputs(html, json)
    opened = load_index(index_folder, use_exact)
    return _answer(opened, LateModel(opened, model), queries, html, json, asked)


def _answer(opened: Index, embedder, queries: Sequence[Query], html: str, json: str, asked: dict) -> list[Result]:
    check_filters(opened, asked.get("filters", ()))
    found = search(opened, embedder, queries, **asked)
    show(opened, found, html, json)
    return found


def search_once(
    model: str,
    images: str,
    queries: Sequence[Query],
    *,
    split: str = "",
    html: str = "",
    json: str = "",
    **asked,
) -> list[Result]:
    """Searches images exactly without keeping an index; takes what `query` and `build_index` do."""
    check_queries(queries, asked.get("top", 1))
    found_images = collect.find(IMAGES, [images], split)
    check_outputs(html, json)
    embedder = load(quickest(model))
    made = index_in_memory(embedder, found_images, IMAGES, progress=True)
    if made.skipped:
        print(f"{made.skipped} of {made.skipped + len(made)} images cannot be read.", file=sys.stderr)
    return _answer(made, embedder, queries, html, json, asked)


def remove(
    index_folder: str, names: Sequence[str], filters: Sequence[Filter] = (), gone: bool = False, dry_run: bool = False
) -> None:
    """Takes items out of an index: by name, or by filters, or of these the images that are not there any more."""
    if not names and not filters and not gone:
        raise UserError("Nothing to remove: give names as `search query` shows them, --filter=name=value or --gone.")
    if names and (filters or gone):
        raise UserError("Give names, or --filter and --gone, which say which items; not both.")

    with local_folder(index_folder) as folder:
        check_filters(load_index(folder, use_exact=True), filters)
        count, of = index_files.remove(folder, names, filters, gone, dry_run)
        kind = read_description(folder)["kind"]
    print(f"{count:,} of {of:,} {kind} {'would be' if dry_run else 'are'} removed from {shown(index_folder)}.")
