"""From somebody's table of pictures and captions to multilingual search: data set, fine-tuning, index, a page.

Everything lies in one folder. Each part is made once: a run that stopped goes on where it was by the same command. Of a
table that changed, data set, index and page follow; the model stays.

    data/          the data set, see ingest/tables/catalogue.py; skipped.tsv names the rows that are not in it
    workdir/       the trained model and its export; not there where nothing is trained
    translated/    the same after a stage of translations, where there are some: models/translation_distillation.py
    index/         every picture, with captions and fields
    search.html    a page with an example in each language
    report.json    what was read, and what the model makes of it
"""

from __future__ import annotations

import collections
import functools
import json
import os
import pathlib
import shlex
import tempfile
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from mural_tf.cli import find_config, given_fields, read_config
from mural_tf.config_file import load_config
from mural_tf.data.dataset_folder import DESCRIPTION, describe
from mural_tf.errors import UserError
from mural_tf.export.versions import newest_description
from mural_tf.files import as_path, exclusive_lock, json_field, read_json, remove_tree, storage_errors, write_whole
from mural_tf.ingest.tables.catalogue import (
    SKIPPED,
    WITHOUT_CAPTIONS,
    Examine,
    TableRequest,
    Understood,
    make_data_set,
    understand,
)
from mural_tf.remote_folders import local_copy, local_folder, model_place

DATA, WORKDIR, TRANSLATED, INDEX = "data", "workdir", "translated", "index"
PAGE, REPORT = "search.html", "report.json"
NOTHING = "nothing"
FEWEST_CAPTIONS = 32  # to train on: steps on a few pairs only spoil a model
MANY_CUT, MANY_UNKNOWN = 0.1, 0.02  # shares of captions, of pieces, that are worth a word
EXAMPLES = 12  # queries on the page

NO_SOURCE = (
    "--from is missing: a model to start from. It may be a workdir or an export (workdirs/emoji_mural), a checkpoint's "
    "folder with both towers, the address or folder of a TF-Hub text encoder, or towers from different places once "
    "they are a workdir: `python -m mural_tf import "
    "efficientnet --weights=FILE --config=CONFIG --workdir=A`, then `python -m mural_tf import labse --weights=LaBSE "
    "--onto=A --workdir=B`, and --from=B (docs/your_own_data.md). --from=nothing trains a small model from the start."
)


def catalogue(
    request: TableRequest,
    output: str | os.PathLike,
    source: str,
    config: ConfigDict,
    translations: Sequence[str] = (),
    dry_run: bool = False,
    train: bool = True,
) -> pathlib.Path | None:
    """Makes everything that is not made yet in `output`, and prints what it does; returns the index's folder.

    Args:
      request: the table and what is known of it.
      output: folder, here or in a store.
      source: the model to start from: as `finetune` takes it, or "nothing"; without training as `mural_tf.load` does.
      config: of training; data and evaluation are set here.
      translations: data folders with text pairs. The model learns these and those of the table in a stage at the end,
        so that languages are found that the table lacks.
      dry_run: print what is understood of the table, and do nothing.
      train: whether to train, where there are `FEWEST_CAPTIONS` to train on.

    Returns:
      `None` where a signal stopped training, and for a dry run.

    Raises:
      UserError: a table that cannot be used, no source, another process at work, or what training raises it for.
    """
    understood = understand(request)
    print(understood.describe(), flush=True)
    if dry_run:
        return None
    if not source:
        raise UserError(NO_SOURCE)
    if source != NOTHING and "://" not in source and not as_path(source).exists():
        raise UserError(f"--from={source}: there is no such workdir, export or module.")
    if not train and (translations or source == NOTHING):
        given = "--translations teaches" if translations else f"--from={NOTHING} is no model"
        raise UserError(f"{given}: --train=no searches with a model as it is, --from=MODEL, and teaches nothing.")
    if translations:
        _check_translations(translations, source)
    folder = as_path(output)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    busy = f"Another process is at work in {output}: wait for it, or choose another folder."
    with exclusive_lock(folder / "catalogue.lock", busy):
        return _make(understood, folder, source, config, translations, train)


def _check_translations(translations: Sequence[str], source: str) -> None:
    """Raises `UserError` for a folder without text pairs to train on, or a source whose method has no such stage."""
    from mural_tf.data import records
    from mural_tf.models import method_class
    from mural_tf.models.translation_distillation import TranslationDistillation
    from mural_tf.trust import check_class

    for name in translations:
        if not records.find_files(name, records.TEXT_PAIRS, "train"):
            raise UserError(
                f"--translations={name}: there is no {records.TEXT_PAIRS}/train-*.tfrecord; expected a data folder as "
                "`python -m mural_tf convert` makes it of translation pairs, or the one that the source was trained on."
            )
    folder = _described_folder(source)
    if folder is None:
        return
    model, stage = load_config(folder / "config.json").model, TranslationDistillation
    check_class(model, folder / "config.json")
    if not stage.may_start_from(method_class(model)):
        raise UserError(f"--translations: the stage starts from {stage.starts_from}; {source} is {model}.")


def _described_folder(source: str) -> pathlib.Path | None:
    """Returns the folder with the configuration of a workdir or an export, `None` where the source has none."""
    if source == NOTHING or source.startswith(("http://", "https://")):
        return None
    folder = newest_description(local_copy(source))
    path = folder / "config.json"
    return folder if path.is_file() and "model_type" not in read_json(path) else None  # Hugging Face's have one


def _make(
    understood: Understood,
    folder: pathlib.Path,
    source: str,
    config: ConfigDict,
    translations: Sequence[str],
    train: bool,
) -> pathlib.Path | None:
    data, trained = folder / DATA, _trained(folder)
    if not train:
        _embedder(str(trained or source))  # one that cannot search is said before anything is made
    before = _read_json_of(data)
    begun = (folder / WORKDIR / "config.json").is_file()
    known = functools.partial(_trained_on, data) if begun and before else frozenset
    make_data_set(understood, data, _examination(source), known=known)
    if before == _read_json_of(data):
        print(f"{data} holds this table already; to look at its pictures again, remove it.")
    report = {"table": understood.describe().splitlines(), **report_of(data)}
    write_whole(folder / REPORT, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print("\n".join([describe(data), *report_lines(report)]), flush=True)
    captions = report["pictures"].get("train", {}).get("captions", 0)
    few = f"{captions} captions are too few to learn from, {FEWEST_CAPTIONS} are needed" * (captions < FEWEST_CAPTIONS)
    if few and (translations or source == NOTHING):
        raise UserError(f"{data}: {few}. Give more rows; or search with a model as it is: --from=MODEL --train=no.")
    if few or not train:
        reason = few if train else "--train=no"
        print(f"Nothing is trained: {reason}. {trained or source} searches as it is.", flush=True)
    else:
        if not _train(source, _for_data(config, data, source, report), folder / WORKDIR):
            return None
        if translations and not _teach(translations, folder):
            return None
    model = _searching(folder, source)
    index = _index(folder, model, bool(trained))
    print("\n".join(next_lines(folder, model)))
    return index


def _read_json_of(data: pathlib.Path) -> dict:
    return read_json(data / DESCRIPTION) if (data / DESCRIPTION).is_file() else {}


def _trained_on(data: pathlib.Path) -> set[str]:
    """Returns the ids of the pictures that are in train so far, so that none of them becomes one to measure with."""
    from mural_tf.data import records

    there = records.find_files(data, records.IMAGE_TEXT, "train")
    return {record.image_id for record in records.read_records(data, records.IMAGE_TEXT, "train")} if there else set()


@functools.lru_cache(maxsize=1)
def _embedder(model: str):
    """Loads a model; raises `UserError` if it is one of texts alone."""
    from mural_tf.config import has_images
    from mural_tf.loading import load

    embedder = load(model)
    if hasattr(embedder, "config") and not has_images(embedder.config.image_tower):
        raise UserError(f"{model} is a model of texts alone, which cannot index pictures: give one with both towers.")
    return embedder


# What the model makes of the captions.


def _examination(source: str) -> Examine | None:
    """Returns what counts captions that a model cuts off and pieces that it does not know; None if it has no words."""
    folder = _described_folder(source)
    if folder is None or not (folder / "vocabulary.txt").is_file():
        return None
    config = load_config(folder / "config.json")
    if config.text_tower.name == "words":
        return None
    from mural_tf.text import build_tokenizer

    tokenizer = build_tokenizer(config, folder / "vocabulary.txt")
    unknown = tokenizer.unknown_id

    def examine(texts: Sequence[str]) -> Mapping[str, int]:
        pieces = tokenizer.tokenize(list(texts)).merge_dims(1, 2)
        return {
            "cut": int((pieces.row_lengths().numpy() > tokenizer.room).sum()),
            "pieces": int(pieces.values.shape[0]),
            "unknown": int((pieces.values.numpy() == unknown).sum()),
        }

    return examine


def report_of(data: pathlib.Path) -> dict:
    """Returns what was read, by rows, languages and splits; raises `UserError` for a folder that is something else."""
    path = data / DESCRIPTION
    described = read_json(path)
    places = {name: name for name in ("rows", "captions", "skipped", "left_out")}
    places |= {"pictures": "counts.image_text", "text_pairs": "counts.text_pairs"}
    return {name: json_field(described, place, dict, path) for name, place in places.items()}


def report_lines(report: Mapping) -> list[str]:
    """Returns the report in words."""
    rows = report["rows"]
    lines = [
        f"{rows['read']:,} rows: {rows['used']:,} used, {rows['skipped']:,} skipped, {rows['left_out']:,} left out"
    ]
    bare = report["pictures"].get(WITHOUT_CAPTIONS, {}).get("images", 0)
    if bare:
        lines.append(f"{bare:,} pictures have no caption: they can be found, and nothing is learned from them.")
    for language, counts in sorted(report["captions"].items(), key=lambda item: -item[1]["captions"]):
        notes = [f"{counts['captions']:,} captions of {counts['pictures']:,} pictures"]
        notes += [f"language guessed for {counts['guessed']:,}"] if counts["guessed"] else []
        if counts.get("cut", 0) > MANY_CUT * counts["captions"]:
            notes.append(f"{counts['cut']:,} longer than the model reads")
        if counts.get("unknown", 0) > MANY_UNKNOWN * counts.get("pieces", 0):
            notes.append(f"{counts['unknown'] / counts['pieces']:.0%} of the pieces unknown to the model")
        lines.append(f"  {language}: {', '.join(notes)}")
    return lines


# Training.


def _for_data(config: ConfigDict, data: pathlib.Path, source: str, report: Mapping) -> ConfigDict:
    """Returns the configuration for a data set, which may be too small for all that the configuration asks."""
    config = config.copy_and_resolve_references()
    config.data.source, config.data.directory = "records", str(data)
    if config.evaluation.split not in report["pictures"]:
        config.evaluation.split = "dev"
    if source == NOTHING:
        pairs, captions = report["text_pairs"].get("train", 0), report["pictures"]["train"]["captions"]
        config.train.image_text_batch = min(config.train.image_text_batch, max(2, captions // 2))
        config.train.text_text_batch = min(config.train.text_text_batch, max(2, pairs // 2))
        if not pairs:
            config.loss.text_text_weight = 0.0
    return config


def _train(source: str, config: ConfigDict, workdir: pathlib.Path) -> bool:
    """Trains, or goes on; tells whether it came to its end."""
    from mural_tf.runs.finetune import finetune
    from mural_tf.runs.finish import is_finished
    from mural_tf.runs.pretrain import pretrain

    if source == NOTHING:
        pretrain(config, workdir)
    else:
        finetune(config, source, workdir, given=given_fields())
    return is_finished(workdir)


def _teach(translations: Sequence[str], folder: pathlib.Path) -> bool:
    """Adds the stage of translations, or goes on with it; tells whether it came to its end."""
    from mural_tf.runs.finetune import finetune
    from mural_tf.runs.finish import is_finished

    workdir, tuned = folder / TRANSLATED, load_config(local_copy(folder / WORKDIR / "config.json"))
    stage = read_config(find_config("translated"))
    data = str(folder / DATA)
    stage.data.update(dict(source="records", directory=data, shuffle_buffer=tuned.data.shuffle_buffer))
    names = [data, *translations]
    stage.data.sources = {f"data_{number}": {"directory": name} for number, name in enumerate(names)}
    stage.evaluation.update(tuned.evaluation)
    print(f"Teaching translations of {', '.join(translations)} and of the table.", flush=True)
    finetune(stage, str(folder / WORKDIR), workdir)
    return is_finished(workdir)


# Index and page.


def _index(folder: pathlib.Path, model: pathlib.Path | str, was_trained: bool) -> pathlib.Path:
    """Makes the index, or brings it up to date, and writes the page."""
    from mural_tf.runs.report_page import NAME as RUN_PAGE
    from mural_tf.search.commands import calibrate_index
    from mural_tf.search.index import Index
    from mural_tf.search.queries import search, write_gallery

    embedder = _embedder(str(model))
    with local_folder(folder / INDEX) as place:
        is_new = not _is_index_of(place, embedder)
        index = Index.build(place, embedder, [str(folder / DATA)], prune=True, progress=True)
        print(f"{len(index):,} pictures in {folder / INDEX}.")
        counts = index.counts
        if not is_new and counts.added + counts.changed + counts.pruned:
            print(f"The index follows the table: {counts.added + counts.changed:,} new, {counts.pruned:,} gone.")
            if was_trained:
                models = " ".join(_quoted(folder / name) for name in (WORKDIR, TRANSLATED) if (folder / name).exists())
                print(f"The model is as it was, not tuned on what is new: `rm -r {models}` and this command tune it.")
        queries = _examples(folder / DATA, index.product)
        if queries and index.confidence is None:
            calibrate_index(index, place, embedder, [str(folder / DATA)])
        trained = _trained(folder)
        links = {"What was trained, and how well it finds": f"{trained.name}/{RUN_PAGE}"} if trained else {}
        with tempfile.TemporaryDirectory() as pictures:
            asked = queries or _similar(index, pathlib.Path(pictures))
            write_gallery(folder / PAGE, index, search(index, embedder, asked, top=10), links)
    return folder / INDEX


def _is_index_of(place: pathlib.Path, embedder) -> bool:
    """Tells whether there is an index of this model; one of another model, before training for example, is removed."""
    from mural_tf.fingerprint import TOLERANCE, take
    from mural_tf.search.index import model_of

    model, known = take(embedder), model_of(place)
    if known is None or model.distance(known) <= TOLERANCE:
        return known is not None
    print(f"{place} is of another model than {model.describe()}: it is made anew.")
    remove_tree(place)
    return False


def _trained(folder: pathlib.Path) -> pathlib.Path | None:
    """The workdir of the trained model: that of the stage, where it came to its end; None where there is none."""
    from mural_tf.runs.finish import is_finished

    return next((folder / name for name in (TRANSLATED, WORKDIR) if is_finished(folder / name)), None)


def _searching(folder: pathlib.Path, source: str) -> pathlib.Path | str:
    """The model that searches: the trained one, as an export where there is one, or the source."""
    trained = _trained(folder)
    if trained is None:
        return source
    return trained / "export" if (trained / "export").exists() else trained


def _examples(data: pathlib.Path, product: str) -> list:
    """Returns queries, held-out captions with their right answers: one in each of the most frequent languages.

    They are of different pictures, as far as there are enough. Right is any picture of the `product`, a field.
    """
    from mural_tf.data import records
    from mural_tf.search import collect
    from mural_tf.search.items import IMAGES
    from mural_tf.search.queries import Query

    order = report_of(data)["captions"]
    wanted = sorted(order, key=lambda language: -order[language]["captions"])[:EXAMPLES]
    held_out = bool(records.find_files(data, records.IMAGE_TEXT, "dev"))  # of one or two products none is
    entries = collect.find(IMAGES, [str(data)], "dev") if held_out else ()
    found = [entry[0] for entry in entries if not isinstance(entry, collect.Unreadable)]
    right = collections.defaultdict(list)
    for item in found:
        right[item.fields.get(product, item.name)].append(item.name)
    first, chosen = {}, {}
    for item in found:
        names = tuple(right[item.fields.get(product, item.name)])
        of_picture: dict[str, Query] = {}
        for language, text in item.captions:
            of_picture.setdefault(language, Query(text, language, right=names))
        first = {**of_picture, **first}
        chosen.update([(name, of_picture[name]) for name in wanted if name in of_picture and name not in chosen][:1])
    chosen = {**first, **chosen}
    return [chosen[name] for name in wanted if name in chosen]


def _similar(index, folder: pathlib.Path) -> list:
    """Returns queries where there are no captions: pictures of the index, which are written into `folder`."""
    from mural_tf.search.queries import Query

    rows = range(0, len(index), -(-len(index) // EXAMPLES))
    for row in rows:
        (folder / str(row)).write_bytes(index.read_image(row))
    return [Query(f"Pictures like {index.items[row]}", image=str(folder / str(row))) for row in rows]


def _quoted(path: os.PathLike | str) -> str:
    return shlex.quote(str(path))


def next_lines(folder: pathlib.Path, model: pathlib.Path | str) -> list[str]:
    """Returns what there is now, and commands that go on from there, as a shell takes them."""
    queries, trained = _examples(folder / DATA, ""), _trained(folder)
    place = model_place(model)
    export = model if (place / "text_encoder").is_dir() else place / "export"
    places = (folder / INDEX, trained or model, folder / DATA, export, folder / "errors.html")
    index, workdir, data, served, errors = map(_quoted, places)
    text = _quoted(queries[0].text if queries else "a sentence")
    lines = ["", "Written:", f"  {folder / REPORT}  what was read"]
    skipped = folder / DATA / SKIPPED
    lines += [f"  {skipped}  rows that were not used, and why"] if skipped.is_file() else []
    examples = "an example in each language" if queries else "pictures and those like them"
    lines += [f"  {folder / PAGE}  {examples}: open it in a browser"]
    lines += ["Next:", f"  python -m mural_tf search query {text} --index={index} --html=found.html"]
    if model_place(export).is_dir():
        lines += [f"  python -m mural_tf serve --export={served} --index={index}  # then http://localhost:8501/search"]
    split = "test" if list((folder / DATA / "image_text").glob("test-*")) else "dev" if queries else ""
    if split:
        lines.append(f"  python -m mural_tf evaluate --model={workdir} --data_dir={data} --split={split}")
        lines.append(f"  python -m mural_tf analyse errors --model={workdir} --data_dir={data} --output={errors}")
    return lines
