"""Finds images, or texts, by a sentence in any language or by an image.

Make an index once, ask it often:

    python run_search.py index FOLDER 'photos/**/*.jpg' DATA table.tsv --model=WORKDIR_OR_EXPORT --output=INDEX
    python run_search.py query "ein roter Ballon" --index=INDEX --html=found.html
    python run_search.py query --image=photo.jpg --index=INDEX --json=-

Or search a folder, or a split of TFRecords, without keeping an index:

    python run_search.py query "ein roter Ballon" --model=WORKDIR_OR_EXPORT --images=FOLDER --output=found.png

An interrupted `index` goes on with the same command. `--kind=texts` indexes captions and lines of text instead.
docs/search.md has the rest.
"""

from __future__ import annotations

from absl import flags

from mural_tf import cli

MODEL = flags.DEFINE_string("model", "", "Workdir or export; query: by default the model that made the index.")
# index
OUTPUT = flags.DEFINE_string("output", "", "index: folder of the index; query: PNG file for a contact sheet.")
KIND = flags.DEFINE_enum("kind", "images", ["images", "texts"], "index: what of the sources to index.")
SPLIT = flags.DEFINE_string("split", "", "Only this split of folders of TFRecords.")
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "float16"], "index: type of the stored vectors.")
APPROXIMATE = flags.DEFINE_enum(
    "approximate", "auto", ["auto", "none", "inverted_lists", "hnsw"],
    "index: structure for approximate search; auto chooses by size, small ones are searched exactly.",
)  # fmt: skip
UPDATE = flags.DEFINE_bool("update", False, "index: add what is new in the sources to a complete index.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images encoded at a time.", lower_bound=1)
# query
INDEX = flags.DEFINE_string("index", "", "query: folder of the index.")
IMAGES = flags.DEFINE_string("images", "", "query: search this folder, glob or data set, without an index.")
IMAGE = flags.DEFINE_multi_string("image", [], "query: an image to search with; may be repeated.")
QUERIES = flags.DEFINE_string(
    "queries", "", "TSV of language, sentence and names of right answers. query: asked too; index: measure recall."
)
LANGUAGE = flags.DEFINE_string("language", "", "query: BCP 47 code of the sentences, for fonts on the page.")
TOP = flags.DEFINE_integer("top", 10, "query: how many to show.")
EXACT = flags.DEFINE_bool("exact", False, "query: compare with everything, although the index is approximate.")
HTML = flags.DEFINE_string("html", "", "query: write a page of the results.")
JSON = flags.DEFINE_string("json", "", "query: write the results for programs; - prints them.")


def main(argv: list[str]) -> None:
    from mural_tf.errors import UserError

    command, arguments = (argv[1], argv[2:]) if len(argv) > 1 else ("", [])
    if command == "index":
        _index(arguments)
    elif command == "query":
        _query(arguments)
    else:
        raise UserError(
            f"Unknown command {command!r}: expected `run_search.py index IMAGES… --model=… --output=…` or "
            '`run_search.py query "sentence" --index=…`.'
        )


def _index(arguments: list[str]) -> None:
    _need(model=MODEL.value, output=OUTPUT.value)
    from mural_tf.search import commands

    commands.index(MODEL.value, arguments, OUTPUT.value, KIND.value, SPLIT.value, DTYPE.value, APPROXIMATE.value,
                   QUERIES.value, BATCH_SIZE.value, UPDATE.value)  # fmt: skip


def _query(arguments: list[str]) -> None:
    _need(**({"images": IMAGES.value, "model": MODEL.value} if IMAGES.value else {"index": INDEX.value}))
    from mural_tf.search import commands
    from mural_tf.search.queries import Query, read_queries

    queries = [Query(text, LANGUAGE.value) for text in arguments] + [Query(image=image) for image in IMAGE.value]
    queries += read_queries(QUERIES.value) if QUERIES.value else []
    files = {"html": HTML.value, "json": JSON.value, "output": OUTPUT.value}
    if IMAGES.value:
        commands.search_once(MODEL.value, IMAGES.value, queries, TOP.value, SPLIT.value, BATCH_SIZE.value, **files)
    else:
        commands.query(INDEX.value, queries, MODEL.value, TOP.value, EXACT.value, **files)


def _need(**values: str) -> None:
    from mural_tf.errors import UserError

    for flag, value in values.items():
        if not value:
            raise UserError(f"--{flag} is missing; `run_search.py --help` shows how it is used.")


if __name__ == "__main__":
    cli.run(main, positional=True)
