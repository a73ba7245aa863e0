"""The work of the search commands: index, query, delete, export.

A question needs no code that makes an index, so the functions that make or change an index import this code themselves.
"""

from __future__ import annotations

import collections
import functools
import pathlib
import sys
from collections.abc import Sequence

from mural_lite.errors import UserError
from mural_lite.files import as_path, write_whole
from mural_lite.fingerprint import take_fingerprint
from mural_lite.models import open_model, open_to_ask, quickest
from mural_lite.remote_folders import display_name, local_folder, model_place
from mural_search.index import Index, described, load_index, sync
from mural_search.items import IMAGES, Filter
from mural_search.queries import Query, Result, check_filters, check_queries, check_sort, search
from mural_search.ranking import parse_weights
from mural_search.results import to_json, to_lines


def index(
    names: Sequence[str],
    output: str,
    *,
    model: str = "",
    prune: bool = False,
    fields: Sequence[str] | None = None,
    kind: str = "",
    split: str = "",
) -> Index:
    """Makes the index `output`, or brings it up to date with its sources; prints the result, and returns the index.

    Args:
      names: the sources, see `Index.build`, or the only folder that `embed` made; without names the index's own.
      output: the index's folder, here or in a store.
      model: a workdir or an export; by default the model that made the index, or the vectors.
      prune, fields, kind, split: see `Index.build`.

    Raises `UserError` for sources, a folder or a model that cannot be used.
    """
    from mural_search import changes, embed
    from mural_search.made_index import measure_noise, report

    with local_folder(output) as folder:
        recorded = {}
        if names:
            changes.check_free(folder)
        else:
            recorded = described(folder)
            changes.check_not_of_catalogue(folder, recorded)
            names = recorded.get("sources", [])
            if not names:
                raise UserError(f"The index {display_name(folder)} has no sources yet: name folders or files to index.")
        embeddings = list(filter(embed.is_embeddings, names))
        if embeddings and len(names) > 1:
            raise UserError(f"{embeddings[0]} holds vectors that `embed` made: give this folder alone.")
        if embeddings:
            updated_index, embedder = _index_embeddings(embeddings[0], folder, model, prune, fields)
        else:
            if recorded:
                model = model or recorded["model"]["path"]
            settings = {"kind": kind or recorded.get("kind", ""), "split": split or recorded.get("split", "")}
            updated_index, embedder = _index_sources(names, folder, model, prune, fields, settings)
        report(updated_index, display_name(folder))
        if updated_index.kind == IMAGES and updated_index.captions is not None and updated_index.noise is None:
            measure_noise(updated_index, folder, embedder)
    return updated_index


def _index_sources(
    names: Sequence[str], folder, model: str, prune: bool, fields: Sequence[str] | None, settings: dict[str, str]
):
    """Makes or updates the index of sources in `folder` by a model; returns (the `Index`, its `Embedder`); see `index`.

    `settings`: {"kind": "images" or "texts", "split": name}, "" where the index decides.
    """
    from mural_search import collect

    if not model:
        raise UserError("--model is missing: a workdir, an export or hf://ORG/NAME.")
    # Raises for wrong sources, before the model is loaded.
    collect.list_files(settings["kind"] or IMAGES, names, settings["split"])
    embedder = open_model(model, made_states=True)  # the small differences do not matter in an index
    updated_index = Index.build(folder, embedder, names, prune=prune, fields=fields, progress=True, **settings)
    return updated_index, embedder


def _index_embeddings(embeddings: str, folder, model: str, prune: bool, fields: Sequence[str] | None):
    """Makes or updates the index in `folder` of a folder that `embed` made; returns (the `Index`, its `Embedder`).

    Without `model` captions get no vectors, which is printed, and the `Embedder` is loaded when it is used.
    """
    from mural_search import embed

    fingerprint, settings, items = embed.read(embeddings)
    embedder = None
    if model:
        embedder = open_model(quickest(model))
        fingerprint.check(take_fingerprint(embedder), f"The folder {embeddings}")
    updated_index = sync(folder, embedder, items, prune, model=fingerprint, fields=fields, progress=True, **settings)
    if embedder is not None:
        return updated_index, embedder
    if updated_index.captions is None and len(updated_index.table.caption_ids):
        print("Captions are searched by words alone: --model=MODEL encodes them, too.")
    return updated_index, LazyModel(updated_index, by_pictures=False)  # only texts ask it, see `measure_noise`


class LazyModel:
    """The `Embedder` of an index's model, which `model_of` loads at its first use; see there for the arguments."""

    def __init__(self, index: Index, model: str = "", *, by_pictures: bool, few: bool = False):
        self._load = functools.cache(lambda: model_of(index, model, by_pictures=by_pictures, few=few))

    def __getattr__(self, name: str):
        return getattr(self._load(), name)


def model_of(index: Index, model: str = "", *, by_pictures: bool, few: bool = False):
    """Loads a model to ask an index with, and returns its `Embedder`.

    Args:
      index: the index to ask.
      model: a workdir or an export; by default the model that made the index, at its recorded path.
      by_pictures: whether questions may be pictures.
      few: whether it will be asked a few times, so that TensorFlow's rewriting of its graph, which is then switched off
        in this process, would take longer than it saves.

    Raises `UserError` for a model that is not there, or that did not make the index.
    """
    model = model or index.model.path
    if not model or not model_place(model).is_dir():
        raise UserError(
            f"The index was made by the model {model or 'of a process in memory'}, which is not there; "
            "give its place: --model=WORKDIR_OR_EXPORT."
        )

    def prepare(embedder) -> None:
        tensorflow = sys.modules.get("tensorflow")  # LiteRT's encoders do without
        if few and tensorflow:
            tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        index.check_model(embedder, by_pictures)

    return open_to_ask(model, prepare)


def check_outputs(html: str = "", json: str = "") -> None:
    """Raises `UserError` for a file to write, --html or --json, in a folder that is not there; "" and "-" pass."""
    for flag, file in {"html": html, "json": json}.items():
        parent = as_path(file).parent
        if file and isinstance(parent, pathlib.Path) and not parent.is_dir():  # stores have no folders to make
            raise UserError(f"The folder of --{flag}={file} does not exist.")


MANY = 5  # queries with right answers that are shown; for more a table counts the right answers
FEW = 8  # queries for which a model is not made quick first


def recall_lines(judged: Sequence[Result]) -> list[str]:
    """Returns a line per language of queries with right answers, and a line for all: how many were found.

    `judged`: the results of these queries. Example: "sw           right first 3, among the 10 shown 5 of 6 queries".
    """
    results_of = collections.defaultdict(list)  # language -> results
    for result in sorted(judged, key=lambda result: result.query.language):
        results_of[result.query.language].append(result)
    if len(results_of) > 1:
        results_of["all"] = list(judged)
    lines = []
    for language, results in results_of.items():
        first_count = sum(result.first_right == 1 for result in results)
        shown_count = sum(result.first_right is not None for result in results)
        most_hits = max(len(result.hits) for result in results)
        lines.append(
            f"{language or 'no language':12} right first {first_count:,}, among the {most_hits} shown {shown_count:,} "
            f"of {len(results):,} queries"
        )
    return lines


def show(index: Index, results: Sequence[Result], html: str = "", json: str = "") -> None:
    """Prints the results of queries to an index, and writes them into files.

    Args:
      html: a page to write; "" for no page.
      json: a file to write; "" for no file; "-" prints JSON in place of lines.
    """
    if json == "-":
        print(to_json(index, results))
    else:
        print("\n".join(_lines(index, results)))
    if json not in ("", "-"):
        write_whole(json, to_json(index, results) + "\n")
        print(f"Written: {json}")
    if html:
        from mural_search.gallery import write_gallery  # only where a page is made: Pillow comes with it

        write_gallery(html, index, results)
        print(f"Written: {html}", file=sys.stderr if json == "-" else sys.stdout)


def _lines(index: Index, results: Sequence[Result]) -> list[str]:
    """Returns the lines to print for results; for many with right answers only how many of these were found."""
    judged = [result for result in results if result.query.right]
    are_many = len(judged) > MANY
    lines = []
    for result in results:
        if not (are_many and result.query.right):
            lines += to_lines(index, result)
    if are_many:
        lines += recall_lines(judged)
    return lines


def query(
    index_folder: str,
    queries: Sequence[Query],
    *,
    model: str = "",
    html: str = "",
    json: str = "",
    weights: Sequence[str] = (),
    **options,
) -> list[Result]:
    """Asks an index, prints the answers, writes them into the files `html` and `json`, and returns them.

    Args:
      index_folder: the index's folder, here or in a store.
      model: workdir or export; by default the index's, at its recorded path. Ranking by words needs no model.
      html, json: see `show`.
      weights: texts such as "pictures=4", see `ranking.parse_weights`.
      options: top, filters, rank, offset and sort, see `queries.search`.

    Raises `UserError` for queries, files or options that cannot be used, before the model is loaded.
    """
    check_queries(queries, options.get("top", 1))  # without `top`, `search` has a default that is valid
    check_outputs(html, json)
    ranking_weights = parse_weights(weights)
    index = load_index(index_folder)
    index.weights = ranking_weights
    embedder = LazyModel(index, model, by_pictures=any(query.image for query in queries), few=len(queries) <= FEW)
    check_filters(index, options.get("filters", ()))
    check_sort(index, options.get("sort", ""))
    results = search(index, embedder, queries, **options)
    show(index, results, html, json)
    return results


def remove(index_folder: str, names: Sequence[str], filters: Sequence[Filter] = (), dry_run: bool = False) -> None:
    """Takes items out of an index, by name or by filters, and prints how many; with `dry_run` only prints how many.

    Raises `UserError` for no names and filters, for both, for unknown names or fields, or as `changes.remove`.
    """
    from mural_search import changes

    if not names and not filters:
        raise UserError("Nothing to remove: give names as `search query` shows them, or --filter=name=value.")
    if names and filters:
        raise UserError("Give names, or --filter, which says which items; not both.")
    with local_folder(index_folder) as folder:
        index = load_index(folder)
        check_filters(index, filters)
        index.table.close()  # an open table would keep the removal in the database's log
        count, total = changes.remove(folder, names, filters, dry_run)
    verb = "would be" if dry_run else "are"
    print(f"{count:,} of {total:,} {index.kind} {verb} removed from {display_name(index_folder)}.")


def export(index_folder: str, output: str) -> None:
    """Writes the index in a folder as the Parquet file `output`, see `embed.export`, and prints its shape and dtype."""
    from mural_search import embed

    index = load_index(index_folder)
    embed.export(index, output)
    print(f"{len(index):,} {index.kind} in {output}: {index.dtype} [N, {index.embeddings.shape[1]}].")
