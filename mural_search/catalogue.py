"""From somebody's table of pictures and captions to multilingual search: rows, perhaps training, index, a page.

Everything lies in one folder. The same command goes on where it was stopped, and follows a table that changed; a
trained model stays.

    index/         every product, with pictures, captions and fields
    examples.html  a page with an example in each language
    skipped.tsv    the rows that are not in the index, and why
    languages.json the languages of captions, where they were guessed
    pictures/      pictures without a file of their own, from Parquet or img2dataset

With training also the folders of a `Trainer`, which this package does not know: `mural_tf.commands.training`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.util
import itertools
import operator
import os
import pathlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from mural_lite.config import has_images
from mural_lite.config_file import load_config
from mural_lite.embedder import Reading
from mural_lite.errors import UserError
from mural_lite.files import (
    as_path,
    exclusive_lock,
    read_json,
    remove_partial,
    storage_errors,
    write_whole,
)
from mural_lite.fingerprint import TOLERANCE
from mural_lite.progress import tqdm
from mural_lite.remote_folders import local_folder, model_place
from mural_lite.versions import newest_description
from mural_search import changes
from mural_search.examples import EXAMPLES, write_examples
from mural_search.index import CAPTIONS, VECTORS, described, load_index, model_of, sync
from mural_search.items import Item, amount, fields_of, parse_filters
from mural_search.known_model import KnownModel, known_model
from mural_search.made_index import measure_noise, report
from mural_search.noise_level import NoiseLevel
from mural_search.queries import Query
from mural_search.tables.product_table import ProductTable, TableRequest, inspect_table, keep_guesses
from mural_search.tables.products import Entry, RowTally, languages_of, read

INDEX = "index"
PICTURES = "pictures"
PAGE = "examples.html"
SKIPPED = "skipped.tsv"
LANGUAGES = "languages.json"
NOTHING = "nothing"  # in place of a model to start from
FEWEST_CAPTIONS = 40  # to train on and to measure with: steps on a few pairs only spoil a model
DRAWINGS = ("emoji", "shapes")  # data sets of drawings
PHOTOGRAPHS = "hf://google/siglip2-base-patch16-256"  # a model that knows them


class Trainer(Protocol):
    """Trains a model on a table, in folders next to the index.

    Attributes:
      needs_captions: whether training was asked for by more than the table, so that too few captions are a mistake.
      page: the file in a workdir that describes its training.
    """

    needs_captions: bool
    page: str

    def check(self, description: pathlib.Path | None) -> None:
        """Raises `UserError` for a model to start from that cannot be trained as it was asked for.

        `description`: the folder with its configuration, `None` for a model of another project or for none.
        """

    def train(self, entries: Sequence[Entry], tally: RowTally) -> bool:
        """Trains on entries, or continues; returns whether training is finished: a signal may have stopped it."""

    def workdirs(self) -> list[pathlib.Path]:
        """Returns the workdirs that exist, the last stage's first."""

    def trained(self) -> pathlib.Path | None:
        """Returns the workdir of the finished model, `None` without one."""

    def held_out(self) -> set[str]:
        """Returns the names of entries that the trained model did not learn from."""

    def commands(self, trained: pathlib.Path) -> list[str]:
        """Returns commands that a user may want next, as a shell takes them."""

    def reading(self, description: pathlib.Path, texts: Sequence[str]) -> Reading | None:
        """Returns how the model described in a folder reads texts, `None` where that is not known."""


def catalogue(
    request: TableRequest,
    output: str | os.PathLike,
    source: str,
    trainer: Trainer,
    dry_run: bool = False,
    train: bool = True,
    fields: Sequence[str] | None = None,
) -> pathlib.Path | None:
    """Makes an index of a table's products and a page of examples in a folder, after training a model if wanted.

    Steps that earlier calls finished in `output` are not made again. Prints a report, notes and commands to go on with.

    Args:
      request: the table and how to read it.
      output: folder, here or in a store.
      source: the model to start from, as `mural_lite.open_model` takes it; "nothing": training starts without a model.
      trainer: works in `output`, too.
      dry_run: only print how the table is understood, and write nothing.
      train: whether to train, where there are `FEWEST_CAPTIONS` to train on.
      fields: the names of the fields that the search shows; `None`: it chooses.

    Returns:
      The index's folder; `None` where a signal stopped training, and for a dry run.

    Raises:
      UserError: a table, field, source or output that cannot be used; too few captions to train on, and no model; a
        full disk; another process at work; or the trainer raises it.
    """
    folder = as_path(output)
    if folder.is_file():
        raise UserError(f"--output={output} is a file: name a folder, which may be new.")
    if not dry_run:
        request = dataclasses.replace(request, guesses=str(folder / LANGUAGES))
    table = inspect_table(request)
    print(table.describe(), flush=True)
    _check_fields(table, fields or ())
    if dry_run:
        return None
    config_folder = _checked_config_folder(source, trainer, train)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    busy = f"Another process is at work in {output}: wait for it, or choose another folder."
    with exclusive_lock(folder / "catalogue.lock", busy):
        if isinstance(folder, pathlib.Path):
            remove_partial(folder, below=False)
        entries, tally = _read_table(table, folder)
        if not _train_if_wanted(entries, tally, source, trainer, train):
            return None
        model = _make_index_and_page(folder, source, entries, table, fields, trainer)
        lines = next_lines(folder, entries, trainer)
        if config_folder is not None:
            lines += last_lines(config_folder, entries, trainer, model)
        print("\n".join(lines))
    return folder / INDEX


def _check_fields(table: ProductTable, fields: Sequence[str]) -> None:
    """Raises `UserError` for a field to show that the table does not have."""
    for name in fields:
        if name not in table.fields:
            raise UserError(f"--fields: the table has no field {name!r}; it has {', '.join(table.fields)}.")


def _checked_config_folder(source: str, trainer: Trainer, train: bool) -> pathlib.Path | None:
    """Returns `_config_folder` of the model to start from; raises `UserError` for a model that cannot do the task."""
    _check_source(source, train or trainer.trained() is not None)
    config_folder = _config_folder(source)
    if config_folder is not None and not has_images(load_config(config_folder / "config.json").image_tower):
        raise UserError(f"{source} is a model of texts alone, which cannot index pictures: give one with both towers.")
    if not train and trainer.needs_captions:
        raise UserError("--translations teaches: --train=no only searches, with the model that --from=MODEL names.")
    trainer.check(config_folder)
    return config_folder


def _read_table(table: ProductTable, folder: pathlib.Path) -> tuple[list[Entry], RowTally]:
    """Reads a table; returns its entries and the tally of its rows.

    Prints what was read, and writes the skipped rows and the guessed languages into `folder`.
    """
    tally = RowTally()
    with tqdm(desc="Reading", unit=" rows") as bar:
        entries = read(table, tally, folder / PICTURES, bar)
    print("\n".join(report_lines(entries, tally)), flush=True)
    for line in table.table.inside.describe():  # texts in the files of pictures
        print(f"  {line}")
    _write_skipped(folder / SKIPPED, tally)
    keep_guesses(table)
    return entries, tally


def _check_source(source: str, may_be_nothing: bool) -> None:
    """Raises `UserError` for a model to start from that is not named, or is not there.

    Args:
      source: --from=MODEL.
      may_be_nothing: whether "nothing" is enough, because a model will be trained, or was.
    """
    if not source:
        raise UserError(f"--from is missing: a model, such as --from=workdirs/emoji; for photographs {PHOTOGRAPHS}.")
    if source == NOTHING and may_be_nothing:
        return
    if source == NOTHING:
        raise UserError(
            f"--from={NOTHING} is not a model: --train=no only searches, with the model that --from=MODEL names."
        )
    if "://" in source:  # in a store or on a hub, which is asked when the model is opened
        return
    if not as_path(source).exists():
        raise UserError(f"--from={source}: there is no such workdir, export or module.")


def conditions(texts: Sequence[str]) -> dict[str, list[Callable[[str, str], bool]]]:
    """Returns {column: [test]} for conditions "stock>0" or "brand=acme"; the condition "all" has no test.

    A test is a function from a cell's text and the column's marks of thousands, see `items.group_marks`, to whether the
    text meets the condition. Raises `UserError` as `parse_filters`.
    """
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    tests_of = collections.defaultdict(list)
    for name, value, sign in parse_filters(text for text in texts if text != "all"):
        if sign == "=":
            test = functools.partial(_is_equal, value)
        else:
            test = functools.partial(_is_within, compare[sign], value)
        tests_of[name].append(test)
    return tests_of


def _is_equal(value: str, text: str, groups: str) -> bool:
    """Whether a text equals the value, in large or small letters; `groups` is not used, but every test takes it."""
    return text.casefold() == value.casefold()


def _is_within(compare: Callable[[float, float], bool], bound: str, text: str, groups: str) -> bool:
    """Whether a text is a number or date for which `compare(number, bound)` is true; `groups`: marks of thousands."""
    number = amount(text, groups)
    return number is not None and compare(number, amount(bound, groups))


def _config_folder(source: str) -> pathlib.Path | None:
    """Returns the folder with the `config.json` of a workdir or an export, `None` for another source.

    `source`: --from=MODEL. A model of Hugging Face, a module on a hub and "nothing" lack it.
    """
    if source == NOTHING or source.startswith(("http://", "https://")):
        return None
    folder = newest_description(model_place(source))
    path = folder / "config.json"
    if not path.is_file() or "model_type" in read_json(path):  # a model of Hugging Face
        return None
    return folder


def report_lines(entries: Sequence[Entry], tally: RowTally) -> list[str]:
    """Returns lines that say what was read: rows, problems, products without a picture or captions, and languages."""
    lines = [
        f"{tally.read:,} rows: {tally.written:,} used, {tally.skipped.total:,} skipped, "
        f"{tally.left_out.total:,} left out"
    ]
    lines += [f"  skipped {line}" for line in tally.skipped.lines()]
    lines += [f"  left out {line}" for line in tally.left_out.lines()]
    without_picture = sum(entry.file is None for entry in entries)
    without_caption = sum(not entry.captions for entry in entries)
    if without_picture:
        lines.append(f"{without_picture:,} products have no picture: they are found by their words.")
    if without_caption:
        lines.append(f"{without_caption:,} pictures have no caption: they are found by their contents.")
    for language, counts in languages_of(entries).items():
        line = f"  {language}: {counts.captions:,} captions of {counts.pictures:,} pictures"
        if counts.guessed:
            line += f", language guessed for {counts.guessed:,}"
        lines.append(line)
    return lines


def _write_skipped(path: pathlib.Path, tally: RowTally) -> None:
    """Writes problem[TAB]place of each skipped row; without skipped rows removes the file of an earlier run."""
    if tally.places:
        lines = [f"{problem}\t{location}\n" for problem, location in tally.places]
        write_whole(path, "".join(lines))
    elif (path.parent / INDEX).exists():  # otherwise the folder may be somebody's own, with a file of this name
        path.unlink(missing_ok=True)


def _train_if_wanted(entries: Sequence[Entry], tally: RowTally, source: str, trainer: Trainer, train: bool) -> bool:
    """Trains if `train` and there are enough captions, or prints why not; returns False if a signal stopped training.

    Raises `UserError` for too few captions if no model was trained, and the trainer needs them or `source` is NOTHING.
    """
    caption_count = sum(len(entry.captions) for entry in entries if entry.file)
    if train and caption_count >= FEWEST_CAPTIONS:
        return trainer.train(entries, tally)
    reason = "--train=no"
    if train:
        reason = f"{caption_count} captions are too few to learn from, {FEWEST_CAPTIONS} are needed"
        must_train = trainer.needs_captions or source == NOTHING
        if must_train and not trainer.trained():
            raise UserError(f"{reason}. Give more rows; or search without training: --from=MODEL --train=no.")
    print(f"Nothing is trained: {reason}. {trainer.trained() or source} searches as it is.", flush=True)
    return True


MANY_CUT = 0.1  # share of a language's captions that are cut, above which a note says so
MANY_UNKNOWN = 0.1  # share of its word pieces that are unknown, above which a note says so
MOST_READ = 10_000  # captions of a language that are read for notes


def last_lines(description: pathlib.Path, entries: Sequence[Entry], trainer: Trainer, model: KnownModel) -> list[str]:
    """Returns notes to print on the limits of the model: unfit pictures, unknown languages, captions that are cut.

    Captions are read only if the model was opened: otherwise no caption is new, and an earlier call printed notes.

    Args:
      description: the folder with the configuration of the model to start from.
      entries: the products of the table, with their captions.
      model: the model of the index.
    """
    lines = []
    config = load_config(description / "config.json")
    if config.data.source in DRAWINGS:
        lines.append(_note_on_drawings(config.image_tower))
    if not model.is_open:
        return lines
    reading_of = model.reading or functools.partial(trainer.reading, description)
    lines += _reading_lines(reading_of, entries)
    is_plain_workdir = not model.encoder and (description / "checkpoints").is_dir()  # not an export, no LiteRT
    if is_plain_workdir and importlib.util.find_spec("ai_edge_litert"):
        lines.append(
            f"Note: `python run_export.py --model={_quoted(description)} --overwrite --lite_kind=float32` makes "
            "encoders that need a third of the memory and seconds. Then remove the index: it goes on with its encoders."
        )
    return lines


def _note_on_drawings(tower) -> str:
    """Returns the note on a model that was trained on drawings; `tower`: the configuration of its image tower."""
    if tower.weights:  # trained elsewhere on photographs
        return (
            f"Note: this model learned captions of drawings alone, on the picture tower {tower.weights}; for "
            f"photographs --from={PHOTOGRAPHS}."
        )
    return f"Note: this model knows drawings of {tower.image_size} pixels; for photographs --from={PHOTOGRAPHS}."


def _reading_lines(reading_of: Callable[[Sequence[str]], Reading | None], entries: Sequence[Entry]) -> list[str]:
    """Returns notes on languages whose captions have many unknown pieces, or are often cut; [] if nothing is known.

    `reading_of`: a function that returns how the model reads texts, `None` where that is not known.
    """
    captions_of = collections.defaultdict(list)  # language -> captions
    for entry in entries:
        for language, caption in entry.captions:
            captions_of[language].append(caption)
    unknown = []
    cut = []
    room = 0  # word pieces that the model reads of a text, the same for every language
    for language, captions in captions_of.items():
        reading = reading_of(captions[:MOST_READ])
        if reading is None:
            return []
        room = reading.room
        if reading.unknown > MANY_UNKNOWN:
            unknown.append(f"{language} ({reading.unknown:.0%} of its word pieces are unknown)")
        if reading.cut > MANY_CUT:
            cut.append(f"{language} ({reading.cut:.0%})")
    lines = []
    if unknown:
        lines.append(f"Note: this model does not know {', '.join(unknown)}.")
    if cut:
        lines.append(f"Note: this model reads {room} word pieces; longer are captions in {', '.join(cut)}.")
    return lines


# Index and page.


def items_of(entries: Sequence[Entry]) -> Iterator[tuple]:
    """Yields (item, file of its picture or None) for each product of a table, for `sync`."""
    for entry in entries:
        path = ""
        if entry.file is not None:
            path = str(entry.file)
            if "://" not in path:  # on this machine
                path = str(entry.file.absolute())
        fields, several = fields_of(entry.fields)
        captions = tuple(entry.captions)
        item = Item(entry.name, path, captions=captions, fields=fields, digest=entry.digest(), several=several)
        yield item, entry.file


def _make_index_and_page(
    folder: pathlib.Path,
    source: str,
    entries: Sequence[Entry],
    table: ProductTable,
    fields: Sequence[str] | None,
    trainer: Trainer,
) -> KnownModel:
    """Makes the index or brings it up to date, prints a report, and writes the page of examples; returns its model.

    An index of another model is emptied first.

    Args:
      folder: the output of `catalogue`, in which the index is a folder.
      source: --from=MODEL, which makes the index unless `trainer` has trained a model.
      fields: the names of the fields to show; `None`: chosen.
    """
    trained = trainer.trained()
    with local_folder(folder / INDEX) as index_folder:
        model = known_model(str(trained or source), index_folder)
        is_new = not _is_index_of(index_folder, model)
        earlier_noise = None
        if is_new:
            _empty(index_folder, model)
        else:
            earlier_noise = _noise_of(index_folder)
        index = sync(
            index_folder,
            model,
            items_of(entries),
            prune=True,
            product=table.columns.identity,
            fields=_existing_fields(fields, entries),
            sources=[str(table.request.table)],
            model=model.fingerprint,
            stamp=model.stamp,
            by_catalogue=True,
            progress=True,
        )
        report(index, str(folder / INDEX))
        has_changed_rows = index.counts.added + index.counts.changed + index.counts.pruned > 0
        if trained and not is_new and has_changed_rows:
            first_to_last = reversed(trainer.workdirs())
            workdirs = " ".join(map(_quoted, first_to_last))
            print(f"The model is as it was, not tuned on the new rows: `rm -r {workdirs}` and this command tune it.")
        if index.captions is not None and index.noise is None:  # the index is new, or much of it has changed
            _set_noise(index, index_folder, model, earlier_noise)
        links = {}
        read_held_out = None
        if trained:
            links["What was trained, and how well it finds"] = f"{trained.name}/{trainer.page}"
            read_held_out = trainer.held_out
        choose = functools.partial(_examples, entries, read_held_out)
        write_examples(folder / PAGE, index, index_folder, model, choose, links)
    return model


def _existing_fields(names: Sequence[str] | None, entries: Sequence[Entry]) -> list[str] | None:
    """Returns the names that are fields of at least one entry, because the index refuses others; `None` for `None`.

    A field of the table that no entry has got values only in rows that are left out.
    """
    if names is None:
        return None
    existing_names = set().union(*(entry.fields for entry in entries))
    return [name for name in names if name in existing_names]


def _set_noise(index, folder: pathlib.Path, model: KnownModel, earlier_noise: NoiseLevel | None) -> None:
    """Sets the noise level of an index, also in its folder: the earlier level, or a new level if items were encoded.

    A model that is still closed encoded nothing: items were only removed, or their fields changed.
    """
    if earlier_noise is not None and not model.is_open:
        index.noise = dataclasses.replace(earlier_noise, count=len(index))
        changes.keep_noise(folder, index.noise)
    else:
        measure_noise(index, folder, model)


def _noise_of(folder: pathlib.Path) -> NoiseLevel | None:
    """Returns the noise level of the index in a folder, `None` if it lacks a level or cannot be opened."""
    try:
        return load_index(folder).noise
    except UserError:
        return None


def _is_index_of(folder: pathlib.Path, model: KnownModel) -> bool:
    """Whether a folder holds an index that these encoders of the model made, with a head that the model still has."""
    fingerprint = model.fingerprint
    recorded = model_of(folder)
    if recorded is None:
        return False
    head = described(folder).get("head", "")
    has_head = not head or not model.is_open or head in model.text_heads
    return fingerprint.distance(recorded) <= TOLERANCE and fingerprint.encoder == recorded.encoder and has_head


def _empty(folder: pathlib.Path, model: KnownModel) -> None:
    """Empties the index in a folder and prints so, if there is an index; `model` is the other model to fill it with."""
    if model_of(folder) is None:
        return
    print(f"{folder} is of another model than {model.fingerprint.describe()}: it is made anew.")
    for name in (VECTORS, CAPTIONS, SKIPPED):
        (folder / name).unlink(missing_ok=True)
    changes.clear(folder)


def _examples(entries: Sequence[Entry], read_held_out: Callable[[], set[str]] | None) -> list[Query]:
    """Returns queries: a caption in each of the most frequent languages, if possible of different pictures.

    `read_held_out`: a function that returns the names of entries that a trained model did not learn from; `None`
    without training. Only their captions are queries, with their right answers: all pictures of the product.
    """
    candidates = entries
    names_of_product = collections.defaultdict(list)  # product -> names of its entries
    if read_held_out is not None:
        held_out = read_held_out()
        candidates = [entry for entry in entries if entry.name in held_out]
        for entry in entries:
            names_of_product[entry.product or entry.name].append(entry.name)
    queries = []
    used_names = set()
    frequent_languages = list(languages_of(entries))[:EXAMPLES]
    for language in frequent_languages:
        captioned = [entry for entry in candidates if any(tag == language for tag, _ in entry.captions)]
        unused = [entry for entry in captioned if entry.name not in used_names]
        if not captioned:
            continue
        entry = unused[0] if unused else captioned[0]
        used_names.add(entry.name)
        caption = next(text for tag, text in entry.captions if tag == language)
        right = tuple(names_of_product[entry.product or entry.name])
        queries.append(Query(caption.strip(" |;,."), language, right=right))  # without separators of parts at its ends
    return queries


def _quoted(path: os.PathLike | str) -> str:
    """Returns a path or a text as a shell takes it."""
    return shlex.quote(str(path))


def next_lines(folder: pathlib.Path, entries: Sequence[Entry], trainer: Trainer) -> list[str]:
    """Returns lines that name the files that were written, and commands to go on with, as a shell takes them.

    `entries`: the first caption is the sentence of the search in these commands.
    """
    captions = itertools.chain.from_iterable(entry.captions for entry in entries)
    _, caption = next(captions, ("", "a sentence"))
    text = _quoted(caption)
    index = _quoted(folder / INDEX)
    lines = ["", "Written:", f"  {folder / PAGE}  examples: open it in a browser"]
    if (folder / SKIPPED).is_file():
        lines.append(f"  {folder / SKIPPED}  rows that were not used, and why")
    lines += [
        "Next:",
        f"  python -m mural_tf search query {text} --index={index} --html=found.html",
        f"  python -m mural_tf serve --index={index}  # then http://localhost:8501/search",
    ]
    trained = trainer.trained()
    if trained:
        lines += [f"  {command}" for command in trainer.commands(trained)]
    return lines
