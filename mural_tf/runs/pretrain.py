"""Pretraining in one command: data, training, evaluation, export, and a search to look at."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import signal
from collections.abc import Callable, Collection

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.remote_folders import display_name, fetch, local_folder, share
from mural_lite.trust import settle_handles
from mural_tf.backend import keras
from mural_tf.data.streams.mixture import training_sources
from mural_tf.encoders import settle_vocabulary
from mural_tf.encoders.kernels import compile_first_quietly, compiles_fused, set_fusion
from mural_tf.models import complete, takes_steps
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder, trainable_parameters
from mural_tf.models.frozen import columns_of, on_features, standardize_adapters
from mural_tf.optimizers import check_optimizer
from mural_tf.pretrained.importers import configure_towers, fill_towers
from mural_tf.runs.finish import MeasuredModel, SplitEvaluation, describe, finish_run
from mural_tf.runs.finished import SUMMARY, is_finished
from mural_tf.text.vocabulary_file import save_vocabulary
from mural_tf.text.word_pieces import WordPieceTokenizer
from mural_tf.training.batch_sizes import check_train, round_batches
from mural_tf.training.callbacks import StopRequested, StopSignals
from mural_tf.training.checkpoints import has_checkpoint, save_result
from mural_tf.training.failures import failures_in_one_line
from mural_tf.training.fit import compile_model, fit
from mural_tf.training.observers import observers, parse_profile
from mural_tf.training.prepare import check_places, prepare_data, prepare_tokenizer
from mural_tf.training.strategy import as_compiled, build_strategy, check_places_of_pod, describe_devices
from mural_tf.training.workdir import lock_workdir, open_workdir
from mural_tf.training.workers import chief_first, is_chief, sum_over_workers, workers


def pretrain(
    config: ConfigDict, workdir: str | pathlib.Path, tpu: str = "", debug_nans: bool = False, profile: str = ""
) -> None:
    """Trains from scratch, or from where the same command stopped, then evaluates, exports and prints a search.

    SIGTERM ends it after the running step with everything saved; so does Ctrl-C, which then raises `KeyboardInterrupt`.

    Args:
      config: the resolved configuration.
      workdir: the run's folder; made if missing. A finished run says so and changes nothing. Several workers must see
        one folder: the chief writes it, all restore from it.
      tpu: as `build_strategy` takes it.
      debug_nans: stop at the first operation that yields NaN or infinity.
      profile: "START,STOP": write a TensorBoard profile of these steps, counted from 1.

    Raises:
      UserError: anything the user can correct: data, configuration, workdir, disk.
    """
    train_and_finish(config, workdir, tpu, debug_nans, profile)


def train_and_finish(
    config: ConfigDict,
    workdir: str | pathlib.Path,
    tpu: str,
    debug_nans: bool,
    profile: str,
    start: Start | None = None,
) -> None:
    """Trains, evaluates, exports and shows a search, for pretraining and fine-tuning; errors as `pretrain`.

    Args:
      config, workdir, tpu, debug_nans, profile: as in `pretrain`.
      start: where weights come from; `None`: from scratch.
    """
    if start is None:
        start = Start()
    config, pieces = _with_weights_of_towers(complete(config))
    check_places(config)
    profiled_steps = parse_profile(profile, config.train.steps)
    settle_handles(config)
    settle_vocabulary(config)
    strategy = build_strategy(tpu)  # several workers must be set up before TensorFlow does anything else
    round_batches(config, start.open_batches, strategy.num_replicas_in_sync)
    check_train(config, strategy.num_replicas_in_sync, "this machine")
    # This also finds mistakes in the sources before data are fetched.
    data_folders = [source.directory for source in training_sources(config.data)]
    check_places_of_pod(strategy, [workdir, *data_folders])
    with local_folder(workdir, is_chief(strategy)) as folder, StopSignals() as signals:
        lock = contextlib.nullcontext()
        if is_chief(strategy) and not is_finished(folder, config.train.steps):
            lock = lock_workdir(folder)
        try:
            with lock, failures_in_one_line(config, strategy):
                is_complete = _train_in_workdir(
                    config, pieces, folder, strategy, profiled_steps, debug_nans, start, signals
                )
        except StopRequested:
            is_complete = False
    if not is_complete:
        _say_stopped(signals.received, workdir)


def _say_stopped(received: signal.Signals | None, workdir: str | pathlib.Path) -> None:
    """Prints what stopped a run and how it goes on; raises `KeyboardInterrupt` with these words for Ctrl-C."""
    cause = "a signal of another worker"
    if received is not None:
        cause = received.name
    message = f"Stopped by {cause}; everything is saved in {workdir}. The same command goes on from there."
    if received == signal.SIGINT:
        raise KeyboardInterrupt(message)
    print(message)


def _train_in_workdir(
    config: ConfigDict,
    pieces: list[str],
    workdir: pathlib.Path,
    strategy: tf.distribute.Strategy,
    profile: tuple[int, int] | None,
    debug_nans: bool,
    start: Start,
    signals: StopSignals,
) -> bool:
    """Trains in a local workdir and finishes the run; returns whether the run reached its last step.

    Args:
      config: the complete configuration.
      pieces: the vocabulary of the weights that the text tower starts with, or [].
      workdir: a folder of this machine.
      strategy: the strategy of the run.
      profile: (first, last) step to profile, or `None`.
      debug_nans: stop at the first operation that yields NaN or infinity.
      start: where weights come from.
      signals: entered; they end the run with everything saved.
    """
    _open_in_turn(config, workdir, strategy)
    if is_finished(workdir, config.train.steps):
        print(f"{display_name(workdir)} is finished: {config.train.steps:,} steps are trained, evaluated and exported.")
        describe(config, workdir)
        return True
    _set_up_compilation(config, debug_nans)
    keras.utils.set_random_seed(config.seed)
    tokenizer = _in_turn(strategy, workdir, lambda: _prepare(config, pieces, workdir))
    with strategy.scope():
        model = _build_model(config, tokenizer, workdir, strategy, start)
    _announce_training(model, config, workdir, strategy)
    measured = MeasuredModel(model, tokenizer, config, workdir, alone=strategy.num_replicas_in_sync == 1)
    evaluate = None
    if takes_steps(type(model)):
        evaluate = start.evaluation(measured, config, "dev")
    is_complete = fit(
        model,
        tokenizer,
        config,
        workdir,
        strategy,
        signals,
        evaluate,
        make_columns=columns_of,
        make_observers=functools.partial(observers, profile=profile),
    )
    signals.check()  # a signal after the last step ends the run before its evaluation
    if is_complete and is_chief(strategy):
        start.settle(model, measured, evaluate, config, workdir)  # saves averaged, mixed or chosen weights as result
        finish_run(measured, config, workdir, start.evaluation)
    return is_complete


def _open_in_turn(config: ConfigDict, workdir: pathlib.Path, strategy: tf.distribute.Strategy) -> None:
    """Makes or opens the run's workdir, the chief before all others; the workdir of a finished run is not changed."""
    may_change = is_chief(strategy) and not is_finished(workdir, config.train.steps)
    _in_turn(strategy, workdir, lambda: open_workdir(workdir, config, writes=may_change))
    if may_change:
        # A run that was lengthened has the summary of the shorter one, which would say that it is finished.
        (workdir / SUMMARY).unlink(missing_ok=True)


def _set_up_compilation(config: ConfigDict, debug_nans: bool) -> None:
    """Sets whether XLA compiles parts of a step, and whether every operation's result is checked for NaN."""
    # Neither the check nor the whole step's compiler looks into functions that are compiled by themselves.
    compiles_no_parts = debug_nans or config.train.jit
    set_fusion("off" if compiles_no_parts else config.train.fused)
    if debug_nans:
        tf.debugging.enable_check_numerics()


def _build_model(
    config: ConfigDict,
    tokenizer: WordPieceTokenizer,
    workdir: pathlib.Path,
    strategy: tf.distribute.Strategy,
    start: Start,
) -> DualEncoder:
    """Returns the run's compiled model; where there is no checkpoint yet, it has the weights before the first step.

    Call it in the strategy's scope.
    """
    if compiles_fused():
        compile_first_quietly()
    model = build_model(as_compiled(config, strategy), tokenizer.vocabulary_size)
    start.prepare(model)  # gives it, for example, a teacher, which no checkpoint holds
    if not has_checkpoint(workdir):
        start.fill(model, tokenizer, config, workdir, strategy)  # sets trained weights
        model.begin(tokenizer, restored=start.is_trained)  # sets a method's own state before the first step
        if not takes_steps(type(model)):
            model.learn(config, tokenizer, workdir)  # takes the place of all steps
    model = on_features(model)
    compile_model(model, config)
    return model


def _announce_training(
    model: DualEncoder, config: ConfigDict, workdir: pathlib.Path, strategy: tf.distribute.Strategy
) -> None:
    """Prints devices, model, parameters, steps and workdir or, in workers but the chief, only that they train."""
    if is_chief(strategy):
        size = f"{config.model} ({trainable_parameters(model):,} parameters)"
        print(describe_devices(strategy), flush=True)
        print(f"Training {size} for {config.train.steps:,} steps in {display_name(workdir)}.", flush=True)
    else:
        print(f"Training as one of {workers(strategy)} workers: the first one reports.", flush=True)


class Start:
    """How a run begins, is evaluated and ends, for a model from scratch or with trained towers.

    `tuning.TunedStart` goes on from a trained model.

    Args:
      open_batches: fields of `config.train` that follow from the data, such as "image_text_batch".

    Attributes:
      evaluation: the class of the run's evaluations of a split.
      is_trained: whether the first step finds a trained model.
    """

    evaluation = SplitEvaluation
    is_trained = False

    def __init__(self, open_batches: Collection[str] = ()):
        self.open_batches = open_batches

    def prepare(self, model: DualEncoder) -> None:
        """Gives a new model what it needs besides its weights, such as a teacher; called at every start."""

    def fill(self, model: DualEncoder, tokenizer, config: ConfigDict, workdir: pathlib.Path, strategy) -> None:
        """Sets the weights that a new model's towers bring, if any, and standardizes new adapters."""
        if _starts_from_weights(config):
            fill_towers(model, config)
        if config.image_tower.adapter_size or config.text_tower.adapter_size:
            standardize(model, tokenizer, config, workdir, strategy)

    def settle(self, model: DualEncoder, measured: MeasuredModel, evaluate, config, workdir: pathlib.Path) -> None:
        """Saves the run's result where it differs from the weights after the last step: here averaged weights.

        Args:
          model: the trained model.
          measured: the model that is evaluated.
          evaluate: the evaluation on dev, or `None`.
          config: the run's configuration.
          workdir: the run's folder.
        """
        if config.train.average_decay:
            save_result(measured.at(config.train.steps), workdir, config.train.steps)


def standardize(model: DualEncoder, tokenizer, config: ConfigDict, workdir: pathlib.Path, strategy) -> None:
    """Gives new adapters the mean and deviation of the states that they take; the chief computes them first."""
    _in_turn(strategy, workdir, lambda: standardize_adapters(model, config, tokenizer, workdir))


def _starts_from_weights(config: ConfigDict) -> bool:
    """Whether a tower or the classes' names bring weights of their own."""
    return bool(config.image_tower.weights or config.text_tower.weights or config.image_tower.class_names)


def _with_weights_of_towers(config: ConfigDict) -> tuple[ConfigDict, list[str]]:
    """Returns the configuration with the architecture of trained towers, and the text tower's vocabulary or []."""
    if not _starts_from_weights(config):
        return config, []
    return configure_towers(config)


def _in_turn(strategy: tf.distribute.Strategy, workdir: pathlib.Path, prepare: Callable):
    """Returns `prepare()`, which the chief calls first, and then the others with the chief's files in the workdir."""

    def prepare_and_share():
        if not is_chief(strategy):
            fetch(workdir)
        result = prepare()
        if is_chief(strategy) and workers(strategy) > 1:
            share(workdir)
        return result

    result = chief_first(strategy, prepare_and_share)
    sum_over_workers(strategy, 0)  # the chief neither goes on nor ends before the others have got it
    return result


def _prepare(config: ConfigDict, pieces: list[str], workdir: pathlib.Path) -> WordPieceTokenizer:
    """Prepares the data and the workdir's vocabulary where they are missing, and returns the tokenizer.

    `pieces` is the vocabulary of the weights that the text tower starts with; [] if it starts without weights.
    """
    check_optimizer(config.optimizer)
    prepare_data(config)
    if pieces and not (workdir / "vocabulary.txt").exists():
        save_vocabulary(pieces, workdir / "vocabulary.txt")
    return prepare_tokenizer(config, workdir)
