"""The part of `catalogue` that trains: a data set of the table, fine-tuning, a stage of translations.

data/          the data set to train on, see training_data.py
workdir/       the trained model and its export
translated/    the same after a stage of translations, if asked for: models/translation_distillation.py

TensorFlow is imported where it is needed: searching a table may not need it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import shlex
from collections.abc import Collection, Sequence
from typing import ClassVar

from ml_collections import ConfigDict

from mural_lite.config_file import load_config
from mural_lite.dataset_folder import DESCRIPTION, describe
from mural_lite.embedder import Reading
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json, write_whole
from mural_lite.paths import RemotePath
from mural_lite.record_format import TEXT_PAIRS
from mural_lite.remote_folders import local_copy
from mural_lite.trust import check_class
from mural_search.catalogue import NOTHING
from mural_search.tables.products import Entry, RowTally
from mural_tf.commands.config_arguments import find_config, given_fields, read_config
from mural_tf.runs.finished import is_finished

DATA = "data"
WORKDIR = "workdir"
TRANSLATED = "translated"
TRAINED_AS = "trained_as.json"  # what a finished training was asked for


@dataclasses.dataclass
class CatalogueTrainer:
    """The trainer of a table's model; see `mural_search.catalogue.Trainer`.

    Args:
      output: folder of the table's index, next to which its data and workdirs are, here or in a store.
      source: the model to start from: as `finetune` takes it, or "nothing".
      config: the configuration of training; data and evaluation are set here.
      translations: data folders with text pairs. The model learns these and the table's in a last stage, so that
        languages outside the table are found.
    """

    output: str | os.PathLike
    source: str
    config: ConfigDict
    translations: Sequence[str] = ()
    page: ClassVar[str] = "report.html"

    @property
    def folder(self) -> pathlib.Path | RemotePath:
        """The folder of the index, data and workdirs."""
        return as_path(self.output)

    @property
    def needs_captions(self) -> bool:
        """Whether a stage of translations was asked for."""
        return bool(self.translations)

    def check(self, description: pathlib.Path | None) -> None:
        """Raises `UserError` for a folder without text pairs to train on, or a source that the stage cannot take.

        `description`: the folder with the source's configuration, `None` for a model of another project or for none.
        """
        if not self.translations:
            return
        for name in self.translations:
            if not list(as_path(name).glob(f"{TEXT_PAIRS}/train-*.tfrecord")):
                raise UserError(
                    f"--translations={name}: there is no {TEXT_PAIRS}/train-*.tfrecord; expected a data folder "
                    "as `python -m mural_tf convert` makes it of translation pairs, or the source's training data."
                )
        if description is None:
            return
        from mural_tf.models import method_class
        from mural_tf.models.translation_distillation import TranslationDistillation

        model = load_config(description / "config.json").model
        stage = TranslationDistillation
        check_class(model, description / "config.json")
        if not stage.may_start_from(method_class(model)):
            raise UserError(f"--translations: the stage starts from {stage.starts_from}; {self.source} is {model}.")

    def train(self, entries: Sequence[Entry], tally: RowTally) -> bool:
        """Makes the data set of a table and trains on it, or continues; returns whether training is finished.

        A model that was trained on an earlier state of the table stays as it is.

        Args:
          entries: the table's pictures with their captions.
          tally: counts of the rows, to which pictures that do not decode are added.
        """
        self._make_data(entries, tally)
        config = json.loads(self.config.to_json_best_effort())
        request = json.dumps([self.source, self.translations, config])
        path = self.folder / TRAINED_AS
        stages = [WORKDIR, TRANSLATED] if self.translations else [WORKDIR]
        is_same_request = path.is_file() and path.read_text("utf-8") == request
        if is_same_request and all(is_finished(self.folder / name) for name in stages):
            print(f"Training in {self.folder / stages[-1]} is finished.")
            return True  # without opening a run, which takes a model
        if not self._train_on_table():
            return False
        if self.translations and not self._train_on_translations():
            return False
        write_whole(path, request)
        return True

    def _make_data(self, entries: Sequence[Entry], tally: RowTally) -> None:
        """Makes the data set, unless it exists, and prints it; pictures that a model was trained on stay in train."""
        from mural_tf.commands.training_data import make_data_set

        data = self.folder / DATA
        trained_on = frozenset  # a function that returns no names
        if (self.folder / WORKDIR / "config.json").is_file() and (data / DESCRIPTION).is_file():
            trained_on = functools.partial(names_in, data, "train")
        make_data_set(entries, data, tally, trained_on=trained_on)
        print(describe(data), flush=True)

    def workdirs(self) -> list[pathlib.Path]:
        """Returns the workdirs that exist, the last stage's first."""
        return [self.folder / name for name in (TRANSLATED, WORKDIR) if (self.folder / name).exists()]

    def trained(self) -> pathlib.Path | None:
        """Returns the workdir of the last stage that is finished, `None` if no stage is."""
        for workdir in self.workdirs():
            if is_finished(workdir):
                return workdir
        return None

    def held_out(self) -> set[str]:
        """Returns the names of the pictures in dev."""
        return names_in(self.folder / DATA, "dev")

    def commands(self, trained: pathlib.Path) -> list[str]:
        """Returns the commands that evaluate the model in the workdir `trained`, and show its errors."""
        data = self.folder / DATA
        split = "test" if list((data / "image_text").glob("test-*")) else "dev"
        model_and_data = f"--model={shlex.quote(str(trained))} --data_dir={shlex.quote(str(data))}"
        output = shlex.quote(str(self.folder / "errors.html"))
        return [
            f"python -m mural_tf evaluate {model_and_data} --split={split}",
            f"python -m mural_tf analyse errors {model_and_data} --output={output}",
        ]

    def reading(self, description: pathlib.Path, texts: Sequence[str]) -> Reading | None:
        """Returns the `Reading` of texts by a model's tokenizer; `None` for whole words, and without a vocabulary.

        Args:
          description: the folder with the model's `config.json` and `vocabulary.txt`.
          texts: the table's texts.
        """
        config = load_config(description / "config.json")
        if config.text_tower.name == "words" or not (description / "vocabulary.txt").is_file():
            return None
        from mural_tf.text import build_tokenizer

        tokenizer = build_tokenizer(config, description / "vocabulary.txt")
        pieces = tokenizer.tokenize(list(texts)).merge_dims(1, 2)  # [texts, words, pieces] to [texts, pieces]
        ids = pieces.values.numpy()
        unknown_share = 0.0
        if len(ids):
            unknown_share = float((ids == tokenizer.unknown_id).mean())
        cut_share = float((pieces.row_lengths().numpy() > tokenizer.room).mean())
        return Reading(unknown_share, cut_share, tokenizer.room)

    def _train_on_table(self) -> bool:
        """Trains the first stage, on the table's captions, or continues it; returns whether it is finished."""
        from mural_tf.runs.finetune import finetune
        from mural_tf.runs.pretrain import Start, train_and_finish

        workdir = self.folder / WORKDIR
        config = _with_data(self.config, self.folder / DATA, self.source)
        if self.source == NOTHING:
            given = given_fields()
            config = _restore_batches(config, workdir, given)
            batches = ("image_text_batch", "text_text_batch")
            start = Start(open_batches=[name for name in batches if f"train.{name}" not in given])
            train_and_finish(config, workdir, tpu="", debug_nans=False, profile="", start=start)
        else:
            finetune(config, self.source, workdir, given=given_fields())
        return is_finished(workdir)

    def _train_on_translations(self) -> bool:
        """Trains the second stage, on translations, or continues it; returns whether it is finished."""
        from mural_tf.runs.finetune import finetune

        first_stage = self.folder / WORKDIR
        second_stage = self.folder / TRANSLATED
        data = str(self.folder / DATA)
        folders = [data, *self.translations]
        first_config = load_config(local_copy(first_stage / "config.json"))
        config = read_config(find_config("translated"))
        config.data.update(source="records", directory=data, shuffle_buffer=first_config.data.shuffle_buffer)
        config.data.sources = {f"data_{number}": {"directory": folder} for number, folder in enumerate(folders)}
        config.evaluation.update(first_config.evaluation)
        print(f"Teaching translations of {', '.join(self.translations)} and of the table.", flush=True)
        finetune(config, str(first_stage), second_stage)
        return is_finished(second_stage)


def names_in(data: pathlib.Path, split: str) -> set[str]:
    """Returns the ids of the pictures in a split of a data set; an empty set if there is no such split."""
    from mural_tf.data import records

    if not records.find_files(data, records.IMAGE_TEXT, split):
        return set()
    return {record.image_id for record in records.read_records(data, records.IMAGE_TEXT, split)}


def _with_data(config: ConfigDict, data: pathlib.Path, source: str) -> ConfigDict:
    """Returns a copy of the configuration that trains on the data set in the folder `data`, which may be small.

    It evaluates on dev if `evaluation.split` has no pictures. With the source "nothing" its batches are at most half of
    the data, and without translation pairs there is no text-text loss; raises `UserError` then, if there is no picture
    with a caption to train on.
    """
    config = config.copy_and_resolve_references()
    config.data.source = "records"
    config.data.directory = str(data)
    path = data / DESCRIPTION
    counts = json_field(read_json(path), "counts", dict, path)
    if config.evaluation.split not in counts["image_text"]:
        config.evaluation.split = "dev"
    if source != NOTHING:
        return config  # `finetune` chooses the batches
    pairs = counts["text_pairs"].get("train", 0)
    if "train" not in counts["image_text"]:
        raise UserError(f"{data} has no picture with a caption to train on: too few rows. Give it more rows.")
    captions = counts["image_text"]["train"]["captions"]
    # At least 2 in a batch, because the others are an example's negatives.
    config.train.image_text_batch = min(config.train.image_text_batch, max(2, captions // 2))
    config.train.text_text_batch = min(config.train.text_text_batch, max(2, pairs // 2))
    if not pairs:
        config.loss.text_text_weight = 0.0
    return config


def _restore_batches(config: ConfigDict, workdir: pathlib.Path | RemotePath, given: Collection[str] = ()) -> ConfigDict:
    """Sets the batches and the text-text weight of a run that began on a smaller table; returns `config` itself.

    Fields in `given`, "train.image_text_batch" say, which the user named, keep their values.
    """
    path = workdir / "config.json"
    if not path.is_file():
        return config
    before = load_config(local_copy(path))
    for field in ("train.image_text_batch", "train.text_text_batch", "loss.text_text_weight"):
        if field not in given:
            branch, name = field.split(".")
            config[branch][name] = before[branch][name]
    return config
