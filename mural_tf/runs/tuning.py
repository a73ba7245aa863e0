"""Additions of fine-tuning to a run: settings that follow the data, recall elsewhere, and mixes with the source.

Zeros in the configuration (`configs/finetune.py`) mean values that follow from the number of captions. Recall on dev
is measured in two groups: "tuned" are the languages of the training captions, "others" all other languages of dev or of
the dev split of the source's own data. At the end `mix` tries weights between the source's and the tuned weights, after
Wortsman et al., "Robust fine-tuning of zero-shot models" (2022), "WiSE-FT", and keeps the mix that dev prefers.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import math
import pathlib
import types
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from ml_collections import ConfigDict

from mural_lite import tfrecord
from mural_lite.config import base_config, has_images
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path, open_path, write_whole
from mural_tf.data import records
from mural_tf.data.streams.epochs import stated_languages
from mural_tf.data.streams.mixture import DataSource, training_sources
from mural_tf.data.streams.pipeline import stream_sources
from mural_tf.evaluation.retrieval import HELD_OUT, UNDETERMINED, Evaluation, measure_retrieval, read_pool
from mural_tf.evaluation.tables import group_table, metrics_row
from mural_tf.export.saved_model import variables_of
from mural_tf.models import method_class, takes_steps
from mural_tf.models.dual_encoder import TEXT_PAIRS, DualEncoder
from mural_tf.models.neighbours import KnownTexts
from mural_tf.models.states import KnownStates, states_of_texts
from mural_tf.runs.finish import MeasuredModel, SplitEvaluation
from mural_tf.runs.pretrain import Start, standardize
from mural_tf.runs.teachers import give_teacher
from mural_tf.training.checkpoints import save_result
from mural_tf.training.metrics_file import CHECKPOINT, append_metrics, has_evaluation, keep_metrics, read_metrics
from mural_tf.training.workers import is_chief

RATE = 1 / 20  # share of the source's learning rate: [MURAL] trains at 1e-3 (§3.2) and fine-tunes at 5e-5 (§4)
EPOCHS = 15
EPOCHS_OF_PAIRS = 12  # epochs of a stage that learns from translation pairs
STAGE_RATE = 4e-3  # that stage's rate for a text tower of `STAGE_WIDTH`; falls with the square of the width
STAGE_WIDTH = 128
FEWEST_STEPS = 60
MOST_STEPS = 40_000  # [MURAL] §4
SMALLEST_BATCH = 16
LARGEST_BATCH = 2_048  # [ETCL]
SAMPLED = 20_000  # records that are read to estimate how many there are
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the tuned weights in a mix
TUNED = "tuned"
OTHERS = "others"
MIXES = "mixes.json"


def settings_by_data(config: ConfigDict, source: ConfigDict, given: Collection[str] = ()) -> ConfigDict:
    """Returns the configuration with values in place of its zeros and, if it takes steps, prints them.

    Args:
      config: the run's configuration, with 0 for some of `train.steps`, `train.image_text_batch`,
        `train.text_text_batch` and `optimizer.learning_rate`.
      source: the configuration of the model that the run starts from. Its optimiser takes the place of defaults.
      given: fields, such as "optimizer.name", whose value in `config` stays, even if it is the default.

    Raises:
      UserError: there are no captions or translation pairs, by whose number sizes are set.
    """
    config = config.copy_and_resolve_references()
    train = config.train
    if not takes_steps(method_class(config.model)):
        # Rate and batches are not used, but have to be above 0.
        train.steps = 0
        train.evaluate_first = True
        train.interpolate = False
        config.optimizer.learning_rate = config.optimizer.learning_rate or RATE
        train.image_text_batch = 1
        train.text_text_batch = 1
        return config
    sizes = (train.steps, train.image_text_batch, train.text_text_batch)
    is_any_open = 0 in (*sizes, config.optimizer.learning_rate)
    _set_optimizer(config, source, given)
    optimizer = f"{config.optimizer.name} at {config.optimizer.learning_rate:.2g}"
    if is_any_open:
        print(f"{_set_sizes(config)}, {optimizer}.", flush=True)
    else:
        print(f"Optimiser: {optimizer}.", flush=True)
    return config


def _set_sizes(config: ConfigDict) -> str:
    """Sets batches and steps that are 0 by the number of texts, and returns words about them.

    For example "5,000 captions in 2 languages: 400 steps of 192 pairs".
    """
    train = config.train
    if method_class(config.model).sized_by == TEXT_PAIRS:
        texts = "translation pairs"
        epochs = EPOCHS_OF_PAIRS
        counts = pair_counts(config.data)
        total = sum(counts.values())
        # Many small steps teach more than few large steps of the same texts; captions only keep their embeddings.
        batch = train.text_text_batch or max(batch_for(total) // 2, 1)
        train.text_text_batch = batch
        train.image_text_batch = train.image_text_batch or max(batch // 4, 1)
    else:
        texts = "captions"
        epochs = EPOCHS
        counts = caption_counts(config.data)
        total = sum(counts.values())
        batch = train.image_text_batch or batch_for(total)
        train.image_text_batch = batch
        train.text_text_batch = train.text_text_batch or batch
    if train.steps == 0:
        _set_steps(train, math.ceil(epochs * total / batch))
    languages = "1 language" if len(counts) == 1 else f"{len(counts)} languages"
    return f"{total:,} {texts} in {languages}: {train.steps:,} steps of {batch:,} pairs"


def _set_steps(train: ConfigDict, steps: int) -> None:
    """Sets steps, within bounds, and an open period of evaluations; shortens the periods of rows and checkpoints."""
    train.steps = min(max(steps, FEWEST_STEPS), MOST_STEPS)
    fifth = max(train.steps // 5, 1)  # at least 20 rows and 5 checkpoints; 5 evaluations by default
    train.log_every = min(train.log_every, max(train.steps // 20, 1))
    train.evaluate_every = train.evaluate_every or fifth
    train.checkpoint_every = min(train.checkpoint_every, fifth)


def _set_optimizer(config: ConfigDict, source: ConfigDict, given: Collection[str]) -> None:
    """Sets fields of the optimiser that the configuration leaves open.

    A stage has its own optimiser; otherwise open fields are the source's, and both learning rates keep their ratio.
    """
    optimizer = config.optimizer
    rate = optimizer.learning_rate
    if method_class(config.model).sized_by == TEXT_PAIRS:
        width = max(config.text_tower.hidden_size, STAGE_WIDTH)  # narrower towers keep `STAGE_RATE`
        if rate == 0:
            optimizer.learning_rate = STAGE_RATE * (STAGE_WIDTH / width) ** 2
        return
    if rate == 0:
        rate = source.optimizer.learning_rate * RATE
    is_default = optimizer.text_text_learning_rate == base_config().optimizer.text_text_learning_rate
    is_open = is_default and "optimizer.text_text_learning_rate" not in given
    optimizer.update(inherited(config, source, "optimizer", source.optimizer, given))
    optimizer.learning_rate = rate
    if is_open and source.optimizer.learning_rate:
        optimizer.text_text_learning_rate *= rate / source.optimizer.learning_rate


def batch_for(captions: int) -> int:
    """Returns the power of two closest to three times the root of `captions`, within bounds and at most `captions`."""
    size = 2 ** round(math.log2(3 * math.sqrt(captions)))
    largest = min(LARGEST_BATCH, 2 ** int(math.log2(captions)))
    return min(max(size, SMALLEST_BATCH), largest)


@functools.lru_cache(maxsize=8)
def _counts_of(source: DataSource, record_type: str) -> dict[str, int]:
    """Returns {language: texts} of a source's records: from `dataset.json`, or else estimated by the first records."""
    files = source.files(record_type)
    if source.format != "mural":
        return _estimated_counts(files, lambda *_: [""])  # other people's records do not say their language
    if record_type == records.TEXT_PAIRS:
        stated = stated_languages(files, records.parse_text_pair, "language_b")
    else:
        stated = stated_languages(files, records.parse_image_text, "language")
    if stated is not None:
        return stated
    return _estimated_counts(files, _languages_of)


def _languages_of(serialized: bytes, name: str, number: int) -> Sequence[str]:
    """Returns the languages of a record's captions, or the second language of a text pair; [] if it is damaged.

    Args:
      serialized: the record's bytes.
      name, number: its file and its number there.
    """
    try:
        record = records.parse_record(serialized, name, number)
    except UserError:  # damaged records are counted in training
        return []
    if isinstance(record, records.TextPair):
        return [record.language_b]
    return record.languages


def _estimated_counts(files: Sequence[str], languages_of: Callable[..., Sequence[str]]) -> dict[str, int]:
    """Returns {language: texts} by the first `SAMPLED` records, scaled by the bytes of all files.

    Args:
      files: the names of TFRecord files.
      languages_of: as `_languages_of`.
    """
    counts = collections.Counter()
    records_read = 0
    bytes_read = 0
    for name in files:
        serialized_records = tfrecord.read_all(name, lambda *_: None, open_path)
        for _, serialized in itertools.islice(serialized_records, SAMPLED - records_read):
            records_read += 1
            bytes_read += len(serialized) + tfrecord.FRAME
            counts.update(languages_of(serialized, name, records_read))
    scale = 1.0
    if records_read == SAMPLED:
        scale = sum(records.file_sizes(files).values()) / bytes_read
    return {language: round(count * scale) for language, count in counts.items()}


def caption_counts(data: ConfigDict) -> dict[str, int]:
    """Returns {language: training captions}, only of `data.image_text_languages` if these are given.

    Raises `UserError` without captions.
    """
    return _counts_in(data.image_text_languages, data, "image_text", records.IMAGE_TEXT, "captions")


def pair_counts(data: ConfigDict) -> dict[str, int]:
    """Returns {second language: training text pairs}, only of `data.text_text_languages` if these are given.

    Where captions are the pairs, captions are counted. Raises `UserError` without pairs.
    """
    if data.text_pairs != "files":
        return caption_counts(data)
    return _counts_in(data.text_text_languages, data, TEXT_PAIRS, records.TEXT_PAIRS, "text pairs")


def _counts_in(languages, data: ConfigDict, stream: str, record_type: str, texts: str) -> dict[str, int]:
    """Returns {language: texts} of a stream's sources.

    Args:
      languages: only these; empty for all.
      data: the configuration's `data` branch.
      stream: the name of the stream.
      record_type: the type of its records.
      texts: the name of its texts, for the message.

    Raises:
      UserError: there are no texts.
    """
    counts = collections.Counter()
    for source, _ in stream_sources(data, stream):
        # The name that evaluations, too, give to the language of records that do not say it.
        unnamed = UNDETERMINED if source.format == "mural" else data.default_language
        for language, count in _counts_of(source, record_type).items():
            language = language or unnamed
            if not languages or language in languages:
                counts[language] += count
    positive_counts = {language: count for language, count in counts.items() if count}
    if not positive_counts:
        restriction = f" in {list(languages)}" if languages else ""
        raise UserError(f"{data.directory} has no training {texts}{restriction}.")
    return positive_counts


def inherited(
    config: ConfigDict, source: ConfigDict, branch: str, names: Iterable[str], given: Collection[str] = ()
) -> dict:
    """Returns {field: value} of a branch: the configuration's values, but the source's in place of defaults.

    Fields that only one of both configurations has are left out.

    Args:
      config: the run's configuration.
      source: the configuration of the model that it starts from.
      branch: such as "optimizer".
      names: the branch's fields to return.
      given: fields, such as "optimizer.name", whose value in `config` is taken even if it is the default.
    """
    defaults = base_config()[branch]
    values = {}
    for name in names:
        if name not in config[branch] or name not in source[branch]:
            continue
        value = config[branch][name]
        is_chosen = value != defaults[name] or f"{branch}.{name}" in given
        values[name] = value if is_chosen else source[branch][name]
    return values


class TunedEvaluation(SplitEvaluation):
    """The evaluation of a split with two more groups of languages, "tuned" and "others"; see the module."""

    def __init__(self, measured: MeasuredModel, config: ConfigDict, split: str):
        super().__init__(measured, config, split)
        self._source = config.evaluation.source_data
        self._other_languages = None  # found by the first evaluation

    def __call__(self, step: int) -> Evaluation | None:
        """Returns the evaluation with both groups, or `None` as `SplitEvaluation` does."""
        evaluation = super().__call__(step)
        if evaluation is None:
            return None
        source_metrics = self._measure_others(evaluation, step)
        source_languages = dict.fromkeys(key.split("/")[1] for key in source_metrics)  # each once, in their order
        languages = [*evaluation.sizes, *source_languages]
        evaluation.metrics = evaluation.metrics | source_metrics
        evaluation.groups = dict(evaluation.groups)
        trained = self._trained_languages()
        self._add_group(evaluation, TUNED, [language for language in languages if language in trained])
        self._add_group(evaluation, OTHERS, [language for language in languages if language not in trained])
        return evaluation

    def _trained_languages(self) -> Collection[str]:
        """Returns the languages of the training captions, () without captions: a stage may have only translations."""
        data = self._config.data
        for source in training_sources(data):
            if records.find_files(source.directory, records.IMAGE_TEXT, "train"):
                return caption_counts(data)
        return ()

    @staticmethod
    def _add_group(evaluation: Evaluation, group: str, languages: Sequence[str]) -> None:
        """Adds a group and the means of its languages' metrics to an evaluation; without languages, does nothing."""
        if not languages:
            return
        evaluation.groups[group] = tuple(languages)
        for metric in ("mean_recall", HELD_OUT):
            values = [evaluation.metrics.get(f"{evaluation.name}/{language}/{metric}") for language in languages]
            if None not in values:
                evaluation.metrics[f"{evaluation.name}/{group}/{metric}"] = float(np.mean(values))

    def score(self, evaluation: Evaluation) -> float:
        """Returns the mean of the mean recalls of both groups, or of the only group, in percent."""
        return float(np.mean(list(_recalls_by_group(evaluation).values())))

    def _measure_others(self, evaluation: Evaluation, step: int) -> dict[str, float]:
        """Returns {key: metric} of the languages that only the source's data has, measured on that data."""
        if self._other_languages is None:
            self._other_languages = self._find_others(evaluation)
        if not self._other_languages:
            return {}
        embedder = self._measured.embedder(step)
        measured = measure_retrieval(embedder, self._source, self.split, self._other_languages, name=evaluation.name)
        prefixes = tuple(f"{evaluation.name}/{language}/" for language in measured.sizes)
        return {key: value for key, value in measured.metrics.items() if key.startswith(prefixes)}

    def _find_others(self, evaluation: Evaluation) -> tuple[str, ...]:
        """Returns the languages of the source's own data that the evaluation does not measure."""
        if not self._source or as_path(self._source) == as_path(self._config.data.directory):
            return ()
        try:
            languages = read_pool(self._source, self.split).texts
        except UserError as error:
            print(f"What is forgotten in the source's other languages is not measured: {error}", flush=True)
            return ()
        return tuple(sorted(set(languages) - set(evaluation.sizes)))


class TunedStart(Start):
    """A run that goes on from a trained model.

    Args:
      initialize: sets a model's weights; it may return the model that the image tower comes from.
      open_batches: as in `Start`.
    """

    evaluation = TunedEvaluation
    is_trained = True

    def __init__(self, initialize: Callable[[DualEncoder], Embedder | None], open_batches: Collection[str] = ()):
        super().__init__(open_batches)
        self._initialize = initialize

    def prepare(self, model):
        give_teacher(model)

    def fill(self, model, tokenizer, config, workdir, strategy):
        """Sets the source's weights, and measures the model that a bridge's image tower comes from."""
        source = self._initialize(model)
        if config.method.get("student") and config.text_tower.adapter_size:  # a bridge's new head
            standardize(model, tokenizer, config, workdir, strategy)
        if is_chief(strategy) and source is not None:
            record_source(source, config, workdir)

    def settle(self, model, measured, evaluate, config, workdir):
        """Saves the mix with the source, the choice by dev, or averaged weights as the run's result."""
        if config.train.interpolate:
            mix(measured, self._initialize, evaluate, config, workdir)
        elif not takes_steps(type(model)):
            choose_on_dev(model, measured, config, workdir)
        else:
            super().settle(model, measured, evaluate, config, workdir)


def record_source(source: Embedder, config: ConfigDict, workdir: pathlib.Path) -> None:
    """Measures the model that a bridge takes its image tower from, writes the numbers as step 0, and prints them."""
    evaluation = TunedEvaluation(_measured_by(source), config, config.evaluation.split)(0)
    if evaluation is not None:
        append_metrics(workdir, metrics_row([evaluation], 0, config.data.directory))
        table = group_table(evaluation.metrics, evaluation.name, evaluation.groups, len(evaluation.sizes))
        print(f"Mean recall of {source.path}, split {evaluation.split}:\n{table}", flush=True)


def _measured_by(embedder) -> types.SimpleNamespace:
    """Returns an embedder in the form of `MeasuredModel`, for evaluations that keep no weights."""
    return types.SimpleNamespace(embedder=lambda step: embedder, at=None)


def check_dev(config: ConfigDict) -> None:
    """Raises `UserError` if no data could show whether tuned weights are better than the source's."""
    data = config.data.directory
    mixes = config.train.interpolate and has_images(config.image_tower)
    if mixes and not records.find_files(data, records.IMAGE_TEXT, "dev"):
        raise UserError(
            f"{data} has no dev split, which decides between the source and the tuned weights: add one (a tenth of the "
            "pictures; `catalogue` makes it), or keep the tuned weights, better or worse, with "
            "--config.train.interpolate=False."
        )


def mix(
    measured: MeasuredModel,
    initialize: Callable[[DualEncoder], None],
    evaluate: TunedEvaluation,
    config: ConfigDict,
    workdir: pathlib.Path,
) -> None:
    """Gives the measured model the mix of weights that dev prefers, and saves it as the run's result.

    It prints and writes each share's recalls. It also measures the source on the result's split, as step 0. `check_dev`
    has made sure of a dev split.

    Args:
      measured: the tuned model.
      initialize: sets the source's weights.
      evaluate: the evaluation on dev.
      config: the run's configuration.
      workdir: the run's folder.
    """
    step = config.train.steps
    model = measured.at(step)
    variables = _variables(model)
    tuned = [variable.numpy() for variable in variables]
    initialize(model)
    source = [variable.numpy() for variable in variables]
    _measure_source(measured, config, workdir)
    rows = []
    best_score = -math.inf
    best_share = 1.0  # the tuned weights
    best_evaluation = None
    for share in SHARES:
        _assign(variables, source, tuned, share)
        evaluation = evaluate(step)
        if evaluation is None:  # a model without pictures
            break
        rows.append({"share": share, **_recalls_by_group(evaluation)})
        score = evaluate.score(evaluation)
        if score >= best_score:  # of equal scores the larger share
            best_score = score
            best_share = share
            best_evaluation = evaluation
    _assign(variables, source, tuned, best_share)
    save_result(model, workdir, step)
    if best_evaluation is not None:  # the dev numbers of training are of the unmixed weights
        name = evaluate.name
        keep_metrics(workdir, lambda row: CHECKPOINT not in row or not has_evaluation(row, name, step))
        append_metrics(workdir, metrics_row([best_evaluation], step, config.data.directory, "result"))
    write_whole(workdir / MIXES, json.dumps({"chosen": best_share, "mixes": rows}, indent=2) + "\n")
    if rows:
        print("\n".join(describe_mixes(rows, best_share)), flush=True)


def _measure_source(measured: MeasuredModel, config: ConfigDict, workdir: pathlib.Path) -> None:
    """Measures the source, whose weights `measured` has, on the result's split, and writes it as step 0, once."""
    evaluate = TunedEvaluation(measured, config, config.evaluation.split)
    if any(has_evaluation(row, evaluate.name, 0) for row in read_metrics(workdir)):
        return
    evaluation = evaluate(config.train.steps)
    if evaluation is not None:
        append_metrics(workdir, metrics_row([evaluation], 0, config.data.directory))


def _recalls_by_group(evaluation: Evaluation) -> dict[str, float]:
    """Returns {"tuned" or "others": mean recall in percent}, without a group that has no languages."""
    recalls = {}
    for group in (TUNED, OTHERS):
        key = f"{evaluation.name}/{group}/mean_recall"
        if key in evaluation.metrics:
            recalls[group] = evaluation.metrics[key]
    return recalls


class StandingTowers:
    """An embedder for a model of which only the head of texts changes: the first call encodes the images for all.

    Args:
      embedder: the model's embedder, which knows the states of the texts.
    """

    takes_languages = False

    def __init__(self, embedder: Embedder):
        self._embedder = embedder
        self._images = None

    def encode_image(self, images, **options):
        if self._images is None:
            self._images = self._embedder.encode_image(images, **options)
        return self._images

    def encode_text(self, texts: Sequence[str], **options) -> np.ndarray:
        return self._embedder.encode_text(texts, **options)


def evaluated_texts(config: ConfigDict) -> list[bytes]:
    """Returns the captions by which a model is chosen and measured, in UTF-8, each once."""
    data = config.data.directory
    texts = {}  # a set that keeps its order
    for split in ("dev", config.evaluation.split):
        if records.find_files(data, records.IMAGE_TEXT, split):
            for captions in read_pool(data, split).texts.values():
                texts.update(dict.fromkeys(captions))
    return [text.encode("utf-8", "replace") for text in texts]


def choose_on_dev(model: KnownTexts, measured: MeasuredModel, config: ConfigDict, workdir: pathlib.Path) -> None:
    """Sets a model without training steps to its choice with the best mean recall on dev, and saves the result.

    Args:
      model: a model that has learned.
      measured: the same model, or its copy.
      config: the run's configuration.
      workdir: the run's folder.
    """
    result = measured.at(0)
    data = config.data.directory
    texts = evaluated_texts(config)
    print(f"Embedding {len(texts):,} texts of dev and {config.evaluation.split} by the student …", flush=True)
    column = states_of_texts(texts, result, config, measured.tokenizer, workdir)
    embedder = measured.embedder(0, KnownStates(result, column))
    if records.find_files(data, records.IMAGE_TEXT, "dev"):
        evaluate = SplitEvaluation(_measured_by(StandingTowers(embedder)), config, "dev")
        evaluation = _choose_best(model, result.image_text_head, evaluate)
        keep_metrics(workdir, lambda row: not has_evaluation(row, evaluate.name, 0))  # of a run that was killed
        append_metrics(workdir, metrics_row([evaluation], 0, data))
    else:
        print(f"The {model.chooses} stays as it is: {data} has no dev split to choose it by.", flush=True)
    save_result(result, workdir, 0)


def _choose_best(model: KnownTexts, head, evaluate: SplitEvaluation) -> Evaluation:
    """Sets a head to the choice with the best mean recall, prints all recalls, and returns the best evaluation."""
    evaluations = {}
    recalls = {}
    for value in model.choices:
        model.choose(value, head)
        evaluation = evaluate(0)
        evaluations[value] = evaluation
        recalls[value] = evaluation.metrics[f"{evaluation.name}/all/mean_recall"]
    best = max(recalls, key=recalls.get)
    model.choose(best, head)
    recalls_in_words = ", ".join(f"{value:g}: {recall:.1f}" for value, recall in recalls.items())
    print(f"Mean recall on dev by {model.chooses}: {recalls_in_words}. Taken: {best:g}.", flush=True)
    return evaluations[best]


def describe_mixes(rows: list[dict], chosen: float) -> list[str]:
    """Returns a table's lines: the mean recall on dev for each share of the tuned weights; 0 is the unchanged source.

    Args:
      rows: {"share", "tuned", "others"} each, without a group that has no languages.
      chosen: the share that is marked as the result.
    """
    groups = [group for group in (TUNED, OTHERS) if group in rows[0]]
    lines = ["Mean recall on dev of source and tuned weights, mixed:", "share of tuned  " + "  ".join(groups)]
    for row in rows:
        cells = "  ".join(f"{row[group]:{len(group)}.1f}" for group in groups)
        mark = "  <- the result" if row["share"] == chosen else ""
        lines.append(f"{row['share']:14.2f}  {cells}{mark}")
    return lines


def _variables(model: DualEncoder) -> list:
    """Returns the variables of a trained model, each once."""
    variables = {}  # by reference: variables cannot be compared
    for part in model.weights_by_part().values():
        for variable in variables_of(part):
            variables[variable.ref()] = variable
    return list(variables.values())


def _assign(variables, source, tuned, share: float) -> None:
    """Sets variables to the mean of source and tuned values, weighted by the share of the tuned values, 0..1."""
    for variable, before, after in zip(variables, source, tuned):
        if np.issubdtype(before.dtype, np.floating):
            variable.assign((1.0 - share) * before + share * after)
        else:  # counters and tables
            variable.assign(after)
