"""The part of `catalogue` that trains: a data set of the table, fine-tuning, a stage of translations."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from mural_lite.config_file import load_config
from mural_lite.dataset_folder import DESCRIPTION, describe
from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_lite.remote_folders import local_copy
from mural_search.tables.products import Entry, RowTally
from mural_tf.commands.config_arguments import find_config, given_fields, read_config
from mural_tf.commands.training_data import make_data_set
from mural_tf.data import records

DATA, WORKDIR, TRANSLATED = "data", "workdir", "translated"
NOTHING = "nothing"


def check_translations(translations: Sequence[str], description: pathlib.Path | None, source: str) -> None:
    """Raises `UserError` for a folder without text pairs to train on, or a source whose method has no such stage."""
    for name in translations:
        if not records.find_files(name, records.TEXT_PAIRS, "train"):
            raise UserError(
                f"--translations={name}: there is no {records.TEXT_PAIRS}/train-*.tfrecord; expected a data folder as "
                "`python -m mural_tf convert` makes it of translation pairs, or the source's training data."
            )
    if description is None:
        return
    from mural_lite.trust import check_class
    from mural_tf.models import method_class
    from mural_tf.models.translation_distillation import TranslationDistillation

    model, stage = load_config(description / "config.json").model, TranslationDistillation
    check_class(model, description / "config.json")
    if not stage.may_start_from(method_class(model)):
        raise UserError(f"--translations: the stage starts from {stage.starts_from}; {source} is {model}.")


def train(
    entries: Sequence[Entry],
    tally: RowTally,
    folder: pathlib.Path,
    source: str,
    config: ConfigDict,
    translations: Sequence[str],
) -> bool:
    """Makes the data set of a table and trains on it, or continues; returns whether training is finished.

    A model that was trained on an earlier state of the table stays as it is.
    """
    data = folder / DATA
    begun = (folder / WORKDIR / "config.json").is_file()
    trained_on = (lambda: names_in(data, "train")) if begun and (data / DESCRIPTION).is_file() else frozenset
    make_data_set(entries, data, tally, trained_on=trained_on)
    print(describe(data), flush=True)
    if not _fit(source, _for_data(config, data, source), folder / WORKDIR):
        return False
    return not translations or _teach(translations, folder)


def names_in(data: pathlib.Path, split: str) -> set[str]:
    """Returns the ids of the pictures in a split, so that no picture of train becomes one to measure with."""
    there = records.find_files(data, records.IMAGE_TEXT, split)
    return {record.image_id for record in records.read_records(data, records.IMAGE_TEXT, split)} if there else set()


def _for_data(config: ConfigDict, data: pathlib.Path, source: str) -> ConfigDict:
    """Returns the configuration for a data set, which may be too small for all that the configuration asks."""
    config = config.copy_and_resolve_references()
    config.data.source, config.data.directory = "records", str(data)
    path = data / DESCRIPTION
    counts: Mapping = json_field(read_json(path), "counts", dict, path)
    if config.evaluation.split not in counts["image_text"]:
        config.evaluation.split = "dev"
    if source == NOTHING:
        pairs, captions = counts["text_pairs"].get("train", 0), counts["image_text"]["train"]["captions"]
        config.train.image_text_batch = min(config.train.image_text_batch, max(2, captions // 2))
        config.train.text_text_batch = min(config.train.text_text_batch, max(2, pairs // 2))
        if not pairs:
            config.loss.text_text_weight = 0.0
    return config


def _fit(source: str, config: ConfigDict, workdir: pathlib.Path) -> bool:
    """Trains, or goes on; returns whether it came to its end."""
    from mural_tf.runs.finetune import finetune
    from mural_tf.runs.finish import is_finished
    from mural_tf.runs.pretrain import pretrain

    if source == NOTHING:
        pretrain(config, workdir)
    else:
        finetune(config, source, workdir, given=given_fields())
    return is_finished(workdir)


def _teach(translations: Sequence[str], folder: pathlib.Path) -> bool:
    """Adds the stage of translations, or goes on with it; returns whether it came to its end."""
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
