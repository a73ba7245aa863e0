"""The commands of `python -m mural_tf`: each is a function that defines its flags and returns its main function.

A docstring is the command's help, its first line the line in the list of commands. Main functions take what the flags
say, call the library and return an exit code; they import what they need themselves, so that `--help` stays fast.
"""

from __future__ import annotations

import sys

from absl import flags

from mural_tf import cli
from mural_tf.cli import Command
from mural_tf.errors import UserError

PROGRAM = "python -m mural_tf"


def pretrain():
    """Trains a model from scratch; the same command again resumes.

    python -m mural_tf pretrain --config=configs/emoji_mural.py --workdir=workdirs/emoji_mural

    It evaluates and exports the trained model, and shows a search. --config=configs/emoji.py:etcl,steps=300 gives a
    file of configs/ arguments, --config.optimizer.learning_rate=1e-3 overrides a field of it.
    """
    config, training = cli.define_config(), _define_training()

    def main(_) -> None:
        from mural_tf.runs.pretrain import pretrain

        pretrain(config.value, **{name: flag.value for name, flag in training.items()})

    return main


def finetune():
    """Trains a trained model further; the same command again resumes.

    python -m mural_tf finetune --config=configs/finetune.py --config.data.directory=DATA --from=WORKDIR --workdir=NEW
    """
    config, training = cli.define_config(), _define_training()
    source = flags.DEFINE_string(
        "from", None, "A workdir, an export, or a TF-Hub handle or folder for the text tower.", required=True
    )

    def main(_) -> None:
        from mural_tf.runs.finetune import finetune

        finetune(config.value, source.value, **{name: flag.value for name, flag in training.items()})

    return main


def _define_training() -> dict[str, flags.FlagHolder]:
    """The flags of both kinds of training, by the names of their arguments."""
    return {
        "workdir": flags.DEFINE_string(
            "workdir", None, "Folder for checkpoints, metrics and exports; made if missing.", required=True
        ),
        "tpu": flags.DEFINE_string(
            "tpu", "", 'Empty: this machine; "local": this TPU VM; else a TPU\'s name or address.'
        ),
        "debug_nans": flags.DEFINE_bool(
            "debug_nans", False, "Stop at the first operation that yields NaN or infinity; slow."
        ),
        "profile": flags.DEFINE_string(
            "profile", "", "START,STOP: write a TensorBoard profile of these steps, counted from 1."
        ),
    }


def evaluate():
    """Evaluates a model on a benchmark: prints a table and keeps the numbers.

    python -m mural_tf evaluate --model=WORKDIR_OR_EXPORT --data_dir=DATA --split=test
    python -m mural_tf evaluate --model=WORKDIR_OR_EXPORT --data_dir=DOWNLOADS --benchmark=multi30k --languages=en,de
    python -m mural_tf evaluate --model=WORKDIR_OR_EXPORT --data_dir=DOWNLOADS --benchmark=all
    python -m mural_tf evaluate --list

    The numbers go into the model's workdir (metrics.jsonl, evaluation/) or into --output. --data_dir is the folder of
    the benchmark's files or of folders named after benchmarks; --list names the benchmarks, the files they need and
    where to get them. Choices of a protocol are --protocol.NAME=VALUE: see mural_tf/evaluation/protocol.py and
    docs/evaluation.md.
    """
    from ml_collections import config_flags

    from mural_tf.evaluation.protocol import default_protocol

    model = flags.DEFINE_string("model", None, "Workdir or export to evaluate.")
    data_dir = flags.DEFINE_string("data_dir", None, "Folder of the benchmark's files, or of TFRecords.")
    split = flags.DEFINE_string("split", "", "Choose on dev, report test. Default: the benchmark's test.")
    languages = flags.DEFINE_list("languages", [], "Evaluate these languages only, for example en,de. Default: all.")
    benchmark = flags.DEFINE_string("benchmark", "retrieval", "Name of a benchmark, see --list, or all.")
    output = flags.DEFINE_string("output", "", "Folder for the numbers. Default: the model's workdir.")
    checkpoint = _define_checkpoint()
    batch_size = flags.DEFINE_integer("batch_size", 128, "Images, or texts, encoded at a time.", lower_bound=1)
    compare = flags.DEFINE_bool("compare", False, "Print the papers' numbers beside ours, with the differences.")
    listing = flags.DEFINE_bool("list", False, "List the benchmarks and end.")
    protocol = config_flags.DEFINE_config_dict("protocol", default_protocol(), "Choices of the protocol.")

    def main(_) -> None:
        if listing.value:
            from mural_tf.evaluation.benchmarks import describe_catalogue

            print(describe_catalogue())
            return
        if not model.value or not data_dir.value:
            raise UserError("Give --model=WORKDIR_OR_EXPORT and --data_dir=FOLDER, or --list for the benchmarks.")
        from mural_tf.evaluation.report import evaluate_and_report

        evaluate_and_report(
            model.value, data_dir.value, split.value, languages.value, benchmark.value, output.value,
            batch_size.value, checkpoint.value, protocol.value, compare.value,
        )  # fmt: skip

    return main


def _define_checkpoint() -> flags.FlagHolder:
    return flags.DEFINE_enum("checkpoint", "latest", ["latest", "best"], "Which of the workdir's.")


def export():
    """Exports a trained model for TensorFlow Serving and TF-Hub.

    python -m mural_tf export --model=workdirs/emoji_mural --output=exports/emoji_mural
    """
    model = flags.DEFINE_string("model", None, "Workdir to export a checkpoint of.", required=True)
    output = flags.DEFINE_string("output", "", "Folder for the export. Default: export/ in the workdir.")
    checkpoint = _define_checkpoint()
    precision = flags.DEFINE_enum(
        "precision", "float32", ["float32", "mixed_bfloat16"], "What the exported encoders compute in."
    )
    variants = flags.DEFINE_list(
        "variants", [], "Also write TensorFlow Lite encoders with weights in float16, int8, and measure what they lose."
    )
    languages = flags.DEFINE_list("languages", [], "Languages to measure the variants in. Default: all of the data's.")
    overwrite = flags.DEFINE_bool("overwrite", False, "Replace an export that is already there.")

    def main(_) -> None:
        from mural_tf.export.saved_model import export_workdir

        path = export_workdir(model.value, output.value, overwrite.value, checkpoint.value, precision.value)
        print(f"Exported to {path}")
        if variants.value:
            from mural_tf.runs.variants import describe, export_variants

            report = export_variants(model.value, path, variants.value, checkpoint.value, languages.value or None)
            print(f"{describe(report)}\nWritten to {path}/tflite")

    return main


def search_index():
    """Indexes images, or texts, to be asked often.

    python -m mural_tf search index FOLDER 'photos/**/*.jpg' DATA table.tsv --model=WORKDIR_OR_EXPORT --output=INDEX

    The same command goes on where it was interrupted. --kind=texts indexes captions and lines of text instead.
    docs/search.md has the rest.
    """
    model = flags.DEFINE_string("model", None, "Workdir or export.", required=True)
    output = flags.DEFINE_string("output", None, "Folder of the index.", required=True)
    kind = flags.DEFINE_enum("kind", "images", ["images", "texts"], "What of the sources to index.")
    split = flags.DEFINE_string("split", "", "Only this split of folders of TFRecords.")
    dtype = flags.DEFINE_enum("dtype", "float32", ["float32", "float16"], "Type of the stored vectors.")
    approximate = flags.DEFINE_enum(
        "approximate", "auto", ["auto", "none", "inverted_lists", "hnsw"],
        "Structure for approximate search; auto chooses by size, small ones are searched exactly.",
    )  # fmt: skip
    queries = flags.DEFINE_string("queries", "", "TSV of language and sentence, to measure recall with.")
    batch_size = flags.DEFINE_integer("batch_size", 64, "Images encoded at a time.", lower_bound=1)
    update = flags.DEFINE_bool("update", False, "Add what is new in the sources to a complete index.")

    def main(sources: list[str]) -> None:
        from mural_tf.search import commands

        commands.index(
            model.value, sources, output.value, kind.value, split.value, dtype.value, approximate.value,
            queries.value, batch_size.value, update.value,
        )  # fmt: skip

    return main


def search_query():
    """Finds images, or texts, by a sentence in any language or by an image.

    python -m mural_tf search query "ein roter Ballon" --index=INDEX --html=found.html
    python -m mural_tf search query --image=photo.jpg --index=INDEX --json=-

    Without keeping an index, in a folder or a split of TFRecords:

    python -m mural_tf search query "ein roter Ballon" --model=WORKDIR_OR_EXPORT --images=FOLDER --output=found.png
    """
    index = flags.DEFINE_string("index", "", "Folder of the index.")
    model = flags.DEFINE_string("model", "", "Workdir or export. Default: the model that made the index.")
    images = flags.DEFINE_string("images", "", "Search this folder, glob or data set, without an index.")
    split = flags.DEFINE_string("split", "", "Only this split of a folder of TFRecords.")
    image = flags.DEFINE_multi_string("image", [], "An image to search with; may be repeated.")
    queries = flags.DEFINE_string("queries", "", "TSV of language, sentence and names of right answers, asked too.")
    language = flags.DEFINE_string("language", "", "BCP 47 code of the sentences, for fonts on the page.")
    top = flags.DEFINE_integer("top", 10, "How many to show.")
    exact = flags.DEFINE_bool("exact", False, "Compare with everything, although the index is approximate.")
    batch_size = flags.DEFINE_integer("batch_size", 64, "Images encoded at a time.", lower_bound=1)
    html = flags.DEFINE_string("html", "", "Write a page of the results.")
    json = flags.DEFINE_string("json", "", "Write the results for programs; - prints them.")
    output = flags.DEFINE_string("output", "", "PNG file for a contact sheet.")

    def main(sentences: list[str]) -> None:
        cli.need(**({"images": images.value, "model": model.value} if images.value else {"index": index.value}))
        from mural_tf.search import commands
        from mural_tf.search.queries import Query, read_queries

        asked = [Query(text, language.value) for text in sentences] + [Query(image=name) for name in image.value]
        asked += read_queries(queries.value) if queries.value else []
        files = {"html": html.value, "json": json.value, "output": output.value}
        if images.value:
            commands.search_once(model.value, images.value, asked, top.value, split.value, batch_size.value, **files)
        else:
            commands.query(index.value, asked, model.value, top.value, exact.value, **files)

    return main


def serve():
    """Serves an export over HTTP, with TensorFlow Serving's REST paths and JSON.

    python -m mural_tf serve --export=exports/emoji_mural --port=8501
    """
    exported = flags.DEFINE_string("export", None, "Export to serve, made by the command export.", required=True)
    index = flags.DEFINE_string("index", "", "Index made with the same model, searched at /search.")
    host = flags.DEFINE_string("host", "localhost", "Address to listen on; 0.0.0.0: every network.")
    port = flags.DEFINE_integer("port", 8501, "Port to listen on; 0: any free one.", lower_bound=0, upper_bound=65535)
    max_batch = flags.DEFINE_integer("max_batch", 64, "Rows in one run of an encoder.")
    window = flags.DEFINE_float("batch_window_ms", 2.0, "How long a request waits for others to share a run.")
    max_request = flags.DEFINE_float("max_request_mb", 32.0, "Size of a request's body.")
    max_waiting = flags.DEFINE_integer("max_waiting", 1024, "Requests that may wait for one signature.")

    def main(_) -> None:
        from mural_tf.serve.app import serve
        from mural_tf.serve.models import Limits

        limits = Limits(
            max_batch=max_batch.value,
            window=window.value / 1000.0,
            max_request_bytes=int(max_request.value * 2**20),
            max_waiting=max_waiting.value,
        )
        serve(exported.value, index.value, host.value, port.value, limits)

    return main


def analyse_languages():
    """Draws a map of the languages that a text tower sees alike.

    python -m mural_tf analyse languages --model=WORKDIR --data_dir=DATA --output=FOLDER
    """
    model = flags.DEFINE_string("model", None, "Workdir or export.", required=True)
    data_dir = flags.DEFINE_string("data_dir", None, "Folder of aligned files, or of TFRecords.", required=True)
    split = flags.DEFINE_string("split", "test", "Split of the TFRecords.")
    languages = flags.DEFINE_list(
        "languages", [], "These languages only. Default: all with --least_share of the sentences."
    )
    least_share = flags.DEFINE_float("least_share", 0.5, "Share of the sentences that a language must have.")
    output = flags.DEFINE_string("output", None, "Folder for the map.", required=True)
    head = flags.DEFINE_string("head", "", "Head of the text tower, text_text for example. Default: image_text.")
    variance = flags.DEFINE_float("variance", 0.99, "Share of variance that SVCCA keeps.")
    neighbours = flags.DEFINE_integer(
        "neighbours", 0, "Edges of each language in the map's graph; 0: all.", lower_bound=0
    )

    def main(_) -> None:
        from mural_tf.analysis.languages import map_languages
        from mural_tf.loading import load

        embedder = load(model.value)
        embedder = embedder.with_text_head(head.value) if head.value else embedder
        map_languages(
            embedder, data_dir.value, split.value, languages.value, output.value, variance.value, neighbours.value,
            least_share.value,
        )  # fmt: skip

    return main


def analyse_errors():
    """Makes a page of queries and what one or two models found for them.

    python -m mural_tf analyse errors --model=WORKDIR --data_dir=DATA --languages=sw --output=errors.html
    """
    model = flags.DEFINE_string("model", None, "Workdir or export.", required=True)
    other = flags.DEFINE_string("other", "", "Second workdir or export, shown beside the first.")
    data_dir = flags.DEFINE_string("data_dir", None, "Folder of image-text TFRecords.", required=True)
    split = flags.DEFINE_string("split", "test", "Split of the TFRecords.")
    languages = flags.DEFINE_list("languages", [], "Languages, for example en,sw. Default: all.")
    queries = flags.DEFINE_integer("queries", 20, "Queries for each language and direction.", lower_bound=1)
    show = flags.DEFINE_enum("show", "wrong", ["wrong", "worse", "all"], "Which queries.")
    output = flags.DEFINE_string("output", None, "HTML file.", required=True)
    seed = flags.DEFINE_integer("seed", 0, "Of the choice with --show=all.")

    def main(_) -> None:
        if show.value == "worse" and not other.value:
            raise UserError("--show=worse compares two models: name the second with --other.")
        from mural_tf.analysis.errors import write_error_page
        from mural_tf.loading import load

        models = {path: load(path) for path in (model.value, other.value) if path}
        write_error_page(
            models, data_dir.value, split.value, languages.value, output.value, queries.value, show.value, seed.value
        )

    return main


def import_weights():
    """Turns trained weights from elsewhere into a workdir.

    It can be evaluated, fine-tuned, exported and searched with.

    python -m mural_tf import align --weights=align-base --workdir=workdirs/align_base
    python -m mural_tf import align --weights=align-base --workdir=workdirs/mural_from_align --model=mural
    python -m mural_tf import efficientnet --weights=efficientnetb5_notop.h5 --config=configs/emoji_mural.py \\
        --workdir=workdirs/b5
    python -m mural_tf import labse --weights=LaBSE --onto=workdirs/b5 --workdir=workdirs/b5_labse

    align: a folder of Hugging Face's AlignModel. bert: a folder of Hugging Face's BertModel or of Google's
    checkpoints. labse: a folder of Hugging Face's or Sentence-Transformers' LaBSE. efficientnet: an .h5 file of Keras.
    workdir: one of this project, to give an ALIGN MURAL's second head (--model=mural). See docs/pretrained.md.
    """
    config = cli.define_config("What the weights do not say; default: MURAL-base.", required=False)
    weights = flags.DEFINE_string("weights", None, "The folder or file of the weights.", required=True)
    workdir = flags.DEFINE_string("workdir", None, "Folder to write; it must be empty or not there yet.", required=True)
    model = flags.DEFINE_enum(
        "model", "", ["", "align", "mural"], "Method. Default: align for align, else the config's."
    )
    onto = flags.DEFINE_string("onto", "", "A workdir that gives everything that the weights do not.")

    def main(kinds: list[str]) -> None:
        if len(kinds) > 1:
            raise UserError(f"One kind of weights at a time: got {' '.join(kinds)}.")
        from mural_tf.runs.import_pretrained import import_into_workdir

        kind = kinds[0] if kinds else ""
        import_into_workdir(kind, weights.value, workdir.value, config.value, model.value, onto.value)

    return main


def convert():
    """Converts published training data to the project's TFRecords.

    python -m mural_tf convert SOURCE … --output=data/mine [--workers=8] [--filters=etcl] …

    A SOURCE is KIND:PATH[,OPTION=VALUE…]; --list prints the kinds and their options. Several sources become one data
    set. A conversion that stopped goes on when the same command is run again. See docs/convert.md.
    """
    import dataclasses

    from mural_tf.ingest.source import BLOCK_SIZES, FILTERS, Filters, Settings

    listing = flags.DEFINE_bool("list", False, "Print the kinds of sources and their options.")
    output = flags.DEFINE_string("output", "", "Folder for the data set; it appears when the conversion is complete.")
    restart = flags.DEFINE_bool("restart", False, "Begin anew instead of going on with an unfinished conversion.")
    chosen = flags.DEFINE_enum("filters", "none", list(FILTERS), "A set of filters; other flags change single ones.")
    filters = {}
    for field in dataclasses.fields(Filters):
        define = flags.DEFINE_float if field.type == "float" else flags.DEFINE_integer
        filters[field.name] = define(field.name, field.default, "Filter, see --filters and docs/convert.md; 0 is none.")
    lists = {
        "evaluation_images": flags.DEFINE_multi_string(
            "evaluation_images", [], "File, folder, pattern: leave out images that look like these."
        ),
        "exclude_texts": flags.DEFINE_multi_string(
            "exclude_texts", [], "Text file, pattern: leave out pairs that hold one of its lines."
        ),
        "translations": flags.DEFINE_multi_string(
            "translations", [], "Translations of English captions, added to these as captions."
        ),
        "translation_languages": flags.DEFINE_list(
            "translation_languages", [], "Languages to take from --translations; empty: all."
        ),
    }
    numbers = {
        "workers": flags.DEFINE_integer("workers", 2, "Processes that convert; 0 converts in this one."),
        "max_skipped_fraction": flags.DEFINE_float(
            "max_skipped_fraction", 0.01, "Stop when a larger share of captions and pairs is unusable."
        ),
        "hash_distance": flags.DEFINE_integer(
            "hash_distance", 4, "Bits of 64 by which perceptual hashes of one picture may differ."
        ),
        "image_size": flags.DEFINE_integer(
            "image_size", 0, "Shrink images whose shorter side is longer than this; 0 copies them."
        ),
        "shard_megabytes": flags.DEFINE_integer("shard_megabytes", 64, "Least size of a TFRecord file.", 0),
    }
    blocks = {
        kind: flags.DEFINE_integer(f"{kind}s_per_block", BLOCK_SIZES[kind], f"{what} a worker converts at a time.", 1)
        for kind, what in (("image", "Images"), ("pair", "Text pairs"))
    }

    def settings() -> Settings:
        given = {name: flag.value for name, flag in filters.items() if flag.present}
        return Settings(
            filters=dataclasses.replace(FILTERS[chosen.value], **given),
            block_sizes=tuple({**BLOCK_SIZES, **{kind: flag.value for kind, flag in blocks.items()}}.items()),
            **{name: tuple(flag.value) for name, flag in lists.items()},
            **{name: flag.value for name, flag in numbers.items()},
        )

    def main(sources: list[str]) -> None:
        from mural_tf.data.dataset_folder import describe
        from mural_tf.ingest.convert import KINDS, convert
        from mural_tf.ingest.source import describe_kinds, parse_source

        if listing.value:
            print(describe_kinds(KINDS))
            return
        if not sources:
            raise UserError("No source given: expected KIND:PATH[,OPTION=VALUE…]; --list prints the kinds.")
        cli.need(output=output.value)
        parsed = [parse_source(text, KINDS) for text in sources]
        print(describe(convert(parsed, output.value, settings(), restart.value)))

    return main


def vocabulary():
    """Builds a vocabulary from any sources that can be converted, and from converted data sets.

    python -m mural_tf vocabulary records:data/mine opus:de-en.txt.zip --output=words.txt --size=250000

    The sources are those of `python -m mural_tf convert --list`; images are not needed. Words are counted by parallel
    workers in bounded memory, by language. See docs/convert.md.
    """
    output = flags.DEFINE_string("output", "", "The vocabulary file.")
    size = flags.DEFINE_integer("size", 250_000, "Word pieces, reserved ones included; at most.", 8)
    builder = flags.DEFINE_enum(
        "builder", "tensorflow_text", ["tensorflow_text", "tokenizers"], "What learns the word pieces."
    )
    temperature = flags.DEFINE_float(
        "temperature", 1.0, "A language with share p of all words counts as p^(1/temperature); inf: as any other."
    )
    lower_case = flags.DEFINE_bool("lower_case", False, "Lower case; give training the same value.")
    strip_accents = flags.DEFINE_bool("strip_accents", False, "Drop non-spacing marks; give training the same value.")
    workers = flags.DEFINE_integer("workers", 2, "Processes that count; 0 counts in this one.", 0)
    max_words = flags.DEFINE_integer(
        "max_words_in_memory", 20_000_000, "Distinct words that are held; about 100 bytes each.", 1
    )
    max_skipped = flags.DEFINE_float("max_skipped_fraction", 0.01, "Stop when a larger share of the texts is unusable.")

    def main(sources: list[str]) -> None:
        if not sources or not output.value:
            raise UserError("Expected sources, KIND:PATH[,OPTION=VALUE…], and --output=FILE.")
        from mural_tf.ingest.build_vocabulary import build_vocabulary
        from mural_tf.ingest.convert import KINDS
        from mural_tf.ingest.source import Settings, parse_source

        build_vocabulary(
            [parse_source(text, KINDS) for text in sources],
            output.value,
            Settings(workers=workers.value, max_skipped_fraction=max_skipped.value),
            size.value,
            builder.value,
            temperature.value,
            lower_case.value,
            strip_accents.value,
            max_words.value,
        )

    return main


def features():
    """Computes the features of a data set's images once, to train on them in place of the images.

    python -m mural_tf features --data_dir=data/multi30k --output=data/multi30k_features --encoder=FOLDER
    """
    data_dir = flags.DEFINE_string("data_dir", None, "Folder of image-text records.", required=True)
    output = flags.DEFINE_string(
        "output", None, "Folder for the features; it appears when it is complete.", required=True
    )
    encoder = flags.DEFINE_string(
        "encoder", None, "Folder or TF-Hub handle of the image encoder, a reusable SavedModel.", required=True
    )
    resize = flags.DEFINE_integer("resize", 256, "Pixels; the side to which images are resized.", lower_bound=1)
    image_size = flags.DEFINE_integer(
        "image_size", 224, "Pixels; the side of the centre that the encoder sees.", lower_bound=1
    )
    batch_size = flags.DEFINE_integer("batch_size", 64, "Images encoded at a time.", lower_bound=1)

    def main(_) -> None:
        from mural_tf.ingest.features import cache_features, describe_features

        folder = cache_features(
            data_dir.value, output.value, encoder.value, resize.value, image_size.value, batch_size.value
        )
        print(describe_features(folder))

    return main


def translate():
    """Adds known translations to the captions of a data set, as ETCL's triples and translate-train need them.

    python -m mural_tf translate --data_dir=data/cc3m --translations=data/cc3m_de --output=data/cc3m_en_de

    The translations are text pairs of a data folder, one side of which is a caption word for word.
    """
    data_dir = flags.DEFINE_string("data_dir", None, "A data folder with image-text records.", required=True)
    translations = flags.DEFINE_string(
        "translations", None, "A data folder with text pairs, one side of which is a caption.", required=True
    )
    output = flags.DEFINE_string(
        "output", None, "Folder for the data set; it appears when it is complete.", required=True
    )

    def main(_) -> None:
        from mural_tf.ingest.translated_captions import build_translated, describe_translated

        print(describe_translated(build_translated(data_dir.value, translations.value, output.value)))

    return main


def emoji():
    """Builds the emoji benchmark: real pictures, captions and translations in a hundred languages.

    python -m mural_tf emoji --output=data/emoji_core --languages=core
    """
    output = flags.DEFINE_string(
        "output", None, "Folder for the data set; it appears when the build is complete.", required=True
    )
    cache = flags.DEFINE_string(
        "cache", "", "Folder for the fetched packages, 250 MB; empty: emoji_packages beside --output."
    )
    languages = flags.DEFINE_enum(
        "languages", "core", ["core", "all"], "25 languages, or all that name half of the emoji (122)."
    )
    seed = flags.DEFINE_integer("seed", 0, "Chooses the 3% of captions per under-resourced language.")
    keyword_captions = flags.DEFINE_bool("keyword_captions", False, "Also use CLDR's keywords as training captions.")

    def main(_) -> None:
        import pathlib

        from mural_tf.data.dataset_folder import describe
        from mural_tf.data.emoji.benchmark import build_emoji

        packages = cache.value or pathlib.Path(output.value).parent / "emoji_packages"
        print(describe(build_emoji(output.value, packages, languages.value, seed.value, keyword_captions.value)))

    return main


def shapes():
    """Builds the shapes data set: drawn pictures with captions in six languages, without any download.

    python -m mural_tf shapes --output=data/shapes
    """
    output = flags.DEFINE_string("output", None, "Folder for the data set.", required=True)
    seed = flags.DEFINE_integer("seed", 0, "Chooses the scenes of each split, the drawings and the captioned 3%.")
    images = flags.DEFINE_integer("images", 2_000, "Training pictures.", lower_bound=1)
    image_size = flags.DEFINE_integer("image_size", 48, "Side of a picture in pixels.", lower_bound=16)

    def main(_) -> None:
        from mural_tf.data.dataset_folder import describe
        from mural_tf.data.shapes import build_shapes

        print(describe(build_shapes(output.value, seed.value, images.value, image_size.value, progress=True)))

    return main


def xla_check():
    """Tells what of a configuration's training step a TPU would refuse.

    python -m mural_tf xla_check --config=configs/mural_base.py --batch=2 --compile
    """
    config = cli.define_config()
    batch = flags.DEFINE_integer("batch", 2, "Images, captions and text pairs.")
    vocabulary_size = flags.DEFINE_integer("vocabulary_size", 0, "Word pieces; 0: the configuration's bound.")
    compile_step = flags.DEFINE_bool("compile", False, "Compile and run one step too.")

    def main(_) -> None:
        from mural_tf.training.xla_check import check

        check(config.value, vocabulary_size.value or config.value.vocabulary.size, batch.value, compile_step.value)

    return main


COMMANDS = {
    "pretrain": Command(pretrain),
    "finetune": Command(finetune),
    "evaluate": Command(evaluate),
    "export": Command(export),
    "search index": Command(search_index, positional=True),
    "search query": Command(search_query, positional=True),
    "serve": Command(serve),
    "analyse languages": Command(analyse_languages),
    "analyse errors": Command(analyse_errors),
    "import": Command(import_weights, positional=True),
    "convert": Command(convert, positional=True),
    "vocabulary": Command(vocabulary, positional=True),
    "features": Command(features),
    "translate": Command(translate),
    "emoji": Command(emoji),
    "shapes": Command(shapes),
    "xla_check": Command(xla_check),
}


def run(*words: str) -> None:
    """Runs the command `words` with the flags of the command line, or the one that the command line names itself."""
    cli.run_command(COMMANDS, [*words, *sys.argv[1:]], PROGRAM)


def run_script() -> None:
    """The console script `mural`: as `python -m mural_tf`, which also imports from the working directory."""
    sys.path.insert(0, "")
    run()


def run_former(former: str, command: str) -> None:
    """Runs a command by the name of the module that it had before, and says so."""
    print(f"python -m {former} is now {PROGRAM} {command}", file=sys.stderr)
    run(command)
