"""The commands about indexes, of `python -m mural_search` and of `python -m mural_tf`, whose table has them all.

A docstring is the command's help, its first line the line in the list of commands. The functions import what they need
themselves, so that `--help` stays fast.
"""

from __future__ import annotations

import gc
import os

from absl import flags

from mural_lite import command_line as cli
from mural_lite.command_line import check_exists, check_model, check_path
from mural_lite.errors import UserError

flags.disclaim_key_flags()  # they belong to the program that has these commands
PROGRAM = "python -m mural_search"
FILTER = "name=value: only items with this field. May be repeated: other values of a field add, other fields narrow."


def _limit_blas_threads() -> None:
    """Makes NumPy multiply matrices in one thread, unless the user says how many; called before NumPy is imported."""
    if not os.environ.keys() & {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"}:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


def define_fields() -> flags.FlagHolder:
    """Defines `--fields`, a list of names, None by default, which several commands have; returns its holder."""
    help_text = "Fields to show, for example brand,price; empty: no fields. Default: chosen by their contents."
    return flags.DEFINE_list("fields", None, help_text)


@cli.command(
    positional=True,
    model=(None, "Workdir, export or hf://ORG/NAME; every worker reads this folder.", check_model),
    output=(None, "Folder for the embeddings; it appears when it is complete.", check_path),
    restart=(False, "Start again instead of continuing a stopped run."),
    kind=("images", "Embed images or texts.", ["images", "texts"]),
    split=("", "Only this split of folders of TFRecords."),
    dtype=("float32", "Type of the stored vectors.", ["float32", "float16"]),
    workers=(1, "Processes, each with the model; 0 embeds in this process.", 0),
    beam=("", "Flags of Apache Beam, to work elsewhere: '--runner=DataflowRunner --project=…'."),
)
def embed(sources, model, output, restart, **settings):
    """Embeds images or texts on many processes or machines, and writes vectors as Parquet.

    python -m mural_tf embed DATA 'photos/**/*.jpg' --model=EXPORT --output=FOLDER [--workers=8]
    python -m mural_tf search index FOLDER --output=INDEX

    Sources are the same as for `search index`. The same command continues after an interruption. See docs/search.md.
    """
    if not sources:
        raise UserError("Nothing to embed: name folders, patterns, TFRecords or tables.")
    from mural_search.embed import Settings, describe, embed

    print(describe(embed(model, sources, output, Settings(**settings), restart)))


@cli.command(
    positional=True,
    model=("", "Workdir, export or hf://ORG/NAME. Default: the model of the index or the vectors.", check_model),
    output=(None, "Folder of the index.", check_path),
    kind=("", "Index images or texts. Default: images.", ["", "images", "texts"]),
    split=("", "Only this split of folders of TFRecords."),
    prune=(False, "Remove items that are no longer in the sources."),
    fields=define_fields,
)
def search_index(sources, **flag):
    """Indexes images or texts; the same command again updates the index.

    python -m mural_tf search index table.tsv FOLDER 'photos/**/*.jpg' DATA --model=WORKDIR_OR_EXPORT --output=INDEX
    python -m mural_tf search index VECTORS --output=INDEX

    The same command continues after an interruption. --kind=texts indexes captions and lines of text instead.
    VECTORS is the output of embed. To remove items that are no longer in the sources:

    python -m mural_tf search index --prune --output=INDEX

    See docs/search.md.
    """
    from mural_search import runs

    runs.index(sources, **flag)


@cli.command(
    positional=True,
    index=(None, "Folder of the index.", check_path),
    model=("", "Workdir, export or hf://ORG/NAME. Default: the model that made the index.", check_model),
    image=((), "An image to search with; may be repeated.", check_exists),
    queries=("", "TSV of language, sentence and right answers: further queries.", check_path),
    filter=((), FILTER),
    rank=("", "Rank by pictures, texts (captions), words or all. Default: all."),
    weights=((), "Weight of a way in the one ranking: pictures=4. May be repeated. See docs/search.md."),
    sort=("", "Sort the best forty by a field of numbers or dates: price, or -price for the largest first."),
    top=(10, "How many to show."),
    html=("", "Write a page of the results.", check_path),
    json=("", "Write the results for programs; - prints them.", check_path),
)
def search_query(sentences, index, model, image, queries, filter, **flag):
    """Finds images or texts by a sentence in any language, or by an image.

    python -m mural_tf search query "ein roter Ballon" --index=INDEX --html=found.html
    python -m mural_tf search query --image=photo.jpg --index=INDEX --json=-

    python -m mural_tf search query "red shoes -sandal" --index=INDEX --filter=brand=acme --filter='price<20' --top=50
    """
    if len(sentences) + len(image) == 1 and not queries:
        _limit_blas_threads()  # the second would compute nothing and cost a third of a second, waiting
        gc.disable()  # a question alone makes little garbage, and Python would look through all of TensorFlow for it
    from mural_search import runs
    from mural_search.items import parse_filters
    from mural_search.queries import Query

    questions = [Query(text) for text in sentences] + [Query(image=name) for name in image]
    if queries:
        from mural_search.query_files import read_queries

        questions += read_queries(queries)
    try:
        runs.query(index, questions, model=model, filters=parse_filters(filter), **flag)
    finally:
        gc.enable()


@cli.command(
    positional=True,
    index=(None, "Folder of the index.", check_path),
    filter=((), FILTER),
    dry_run=(False, "Remove nothing, only count."),
)
def search_delete(names, index, filter, dry_run):
    """Removes images or texts from an index.

    python -m mural_tf search delete shoe-17.jpg shoe-18.jpg --index=INDEX
    python -m mural_tf search delete --filter=brand=acme --index=INDEX [--dry_run]

    A name may be a product's: all of its pictures go. A deleted item stays out until its row in a table
    changes, or without a table its picture.
    """
    from mural_search import runs
    from mural_search.items import parse_filters

    runs.remove(index, names, parse_filters(filter), dry_run)


@cli.command(
    index=(None, "Folder of the index.", check_path),
    output=(None, "The file to write, FILE.parquet.", check_path),
    to=("parquet", "Its format.", ["parquet"]),
)
def search_export(index, output, to):
    """Writes ids, fields and vectors of an index as Parquet, for PostgreSQL, faiss and others.

    python -m mural_tf search export --index=INDEX --to=parquet --output=index.parquet
    """
    from mural_search import runs

    runs.export(index, output)


@cli.command(
    export=("", "The index's model: export or hf://ORG/NAME. Default: the model at the recorded path.", check_model),
    index=("", "Index to search at /search.", check_path),
    host=("localhost", "Address to listen on; 0.0.0.0: every network."),
    port=(8501, "Port to listen on; 0: any free one.", (0, 65535)),
    hosts=([], "Names of the server besides localhost: shop.example,www.shop.example. Default: any with --host."),
    title=("", "Title of the search page."),
    link=("", "Field with the address of a product, to which a hit leads. Default: link, url, permalink, product_url."),
    hide=([], "Fields that nobody shall see, for example cost,supplier."),
    logo=("", "A picture beside the title.", check_exists),
    color=("", "Color of buttons and links: #b3261e."),
    language=("", "Language of the page: de. Default: the browser's."),
    weights=((), "Weight of a way in the one ranking: pictures=4. May be repeated. See docs/search.md."),
    immich=("", "Answer immich as its model of this name: ViT-B-16-SigLIP2__webli. See docs/serving.md."),
)
def serve(index, export, host, port, hosts, hide, weights, immich, **settings):
    """Serves an index as a search page. TensorFlow Serving serves the encoders of an export: see docs/serving.md.

    python -m mural_tf serve --index=my_index --title="My pictures"
    python -m mural_tf serve --index=my_index --link=permalink --hide=cost,supplier --logo=logo.png --color=#b3261e
    python -m mural_tf serve --immich=ViT-B-16-SigLIP2__webli --export=EXPORT --host=0.0.0.0 --port=3003

    Everyone who reaches the page can read all fields of the index but the hidden ones: see docs/put_it_in_your_shop.md.
    """
    _limit_blas_threads()  # the server has threads of its own
    from mural_search.server.app import serve
    from mural_search.server.settings import PageSettings

    page = PageSettings(hide=tuple(hide), weights=tuple(weights), **settings)
    serve(index, export, host, port, page, hosts, immich=immich)


COMMANDS = {
    "embed": embed,
    "search index": search_index,
    "search query": search_query,
    "search delete": search_delete,
    "search export": search_export,
    "serve": serve,
}


def run_script() -> None:
    """Runs the command of the console script `mural`, in an installation without TensorFlow, and exits."""
    cli.run_and_exit(COMMANDS, (), PROGRAM)
