"""The parts of the loop, with made-up models, strategies and data: what is compiled, read, said and handed on."""

import collections
import contextlib
import types

import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_lite.errors import UserError
from mural_tf.data.streams.columns import CHANGED
from mural_tf.data.streams.epochs import ALL, PLACE, Share, start_of
from mural_tf.data.streams.mixture import DataSource
from mural_tf.training import batch_sizes, data_progress, failures, fit, strategy, workers
from mural_tf.training.data_progress import DataProgress
from mural_tf.training.metrics_file import append_metrics


@pytest.fixture
def config():
    return toy_data.toy_config("/nowhere")


@pytest.mark.parametrize("compiles,steps", [(False, 30), (True, 0)])
def test_what_a_model_is_compiled_with(config, compiles, steps, monkeypatch):
    config.train.update(dict(steps=steps, micro_batches=2, steps_per_execution=3, jit=True, average_decay=0.9))
    config.seed = 7
    config.optimizer.clip_norm = 0.25
    monkeypatch.setattr(fit, "compiles_steps", lambda config, strategy: compiles)
    monkeypatch.setattr(fit, "build_optimizers", lambda *arguments: arguments)
    compiled = {}
    model = types.SimpleNamespace(compile=lambda **o: compiled.update(o), variable_groups=dict, loss_weights=list)
    fit.compile_model(model, config)
    assert compiled == dict(
        optimizers=(config.optimizer, steps or 1, {}, []), clip_norm=0.25, micro_batches=2, seed=7,
        steps_per_execution=3, jit_compile=True, compiled_lengths=(16, 32) if compiles else (), average_decay=0.9,
    )  # fmt: skip


def test_intervals_are_fitted_until_training_stops():
    fitted = []

    def fit_once(batches, **options):
        fitted.append((batches, options))
        model.stop_training = len(fitted) == 2

    model = types.SimpleNamespace(stop_training=False, fit=fit_once)
    data = iter("abc")
    fit._fit_intervals(model, lambda: next(data), [(1, 3), (2, 5), (1, 2)], ["callbacks"])
    options = dict(callbacks=["callbacks"], verbose=0)
    assert fitted == [
        ("a", dict(epochs=1, steps_per_epoch=3, **options)), ("b", dict(epochs=2, steps_per_epoch=5, **options))
    ]  # fmt: skip


class Strategy:
    """A strategy of four replicas on two hosts, and what it asks of each."""

    num_replicas_in_sync = 4

    def distribute_datasets_from_function(self, function):
        context = collections.namedtuple("Context", "input_pipeline_id num_input_pipelines")
        return [function(context(number, 2)) for number in range(2)]


@pytest.mark.parametrize("read", ["share", "all"])
def test_batches_of_several_hosts(config, read, monkeypatch):
    config.data.read = read
    model = types.SimpleNamespace(
        streams=("s",), progress=types.SimpleNamespace(of_pipeline=lambda number: f"place {number}")
    )
    monkeypatch.setattr(fit, "training_batches", lambda *arguments: arguments)
    monkeypatch.setattr(fit, "rows_of_replicas", lambda *arguments: arguments)
    found = fit._distribute(Strategy(), model, "tokens", config, {"columns": 1})

    def batches(place, share):
        return config, "tokens", place, ("s",), "max_length", share, {"columns": 1}

    if read == "share":
        assert found == [(batches(f"place {number}", Share(number, 2)), 2) for number in range(2)]
    else:
        assert found == [(batches("place 0", ALL), 4, number, 2) for number in range(2)]


@pytest.mark.parametrize("jit,cards,pad", [(False, 0, "longest"), (True, 0, "max_length"), (False, 1, "max_length")])
def test_batches_of_one_replica(config, jit, cards, pad, monkeypatch):
    config.train.jit = jit
    model = types.SimpleNamespace(streams=("s",), progress=types.SimpleNamespace(of_pipeline=lambda number: number))
    monkeypatch.setattr(fit, "training_batches", lambda *arguments: arguments)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: {"GPU": ["card"] * cards}[kind])
    found = fit._distribute(tf.distribute.get_strategy(), model, "tokens", config, {})
    assert found == (config, "tokens", 0, ("s",), pad, ALL, {})


def test_how_data_is_read(config):
    assert [fit._reads_share(config) for config.data.read in ("share", "all")] == [True, False]
    config.data.read = "half"
    with pytest.raises(UserError, match="^Unknown data.read 'half'; known: share, all.$"):
        fit._reads_share(config)


def test_workers_that_restored_different_steps(monkeypatch):
    model = types.SimpleNamespace(steps_taken=tf.Variable(6))
    monkeypatch.setattr(fit, "workers", lambda strategy: 2)
    monkeypatch.setattr(fit, "sum_over_workers", lambda strategy, value: 2 * value)
    assert fit._common_step(model, "strategy") == 6
    monkeypatch.setattr(fit, "sum_over_workers", lambda strategy, value: 2 * value - 1)
    with pytest.raises(UserError) as raised:
        fit._common_step(model, "strategy")
    assert str(raised.value) == (
        "The workers restored different steps, this one 6: --workdir must be one folder that all of them see."
    )


def test_what_changed_in_the_data_is_said(tmp_path, monkeypatch, capsys):
    described = {"files": {}, "dataset": ""}
    changes = ["a is new", "b is new", "c is new"]
    calls = []
    monkeypatch.setattr(fit, "_describe_data", lambda sources, warns: calls.append(warns) or described)
    monkeypatch.setattr(fit, "data_changes", lambda workdir, step, data: changes)
    monkeypatch.setattr(fit, "note_data", lambda *arguments: calls.append(arguments))
    progress = types.SimpleNamespace(next_epochs=lambda: calls.append("next"))
    begin = "The training data changed since step 1,000: a is new; b is new; c is new"
    end = ". Training goes on with a new epoch of the data as they are now.\n"
    fit._adapt_to_data(progress, {}, tmp_path, 1000, True)
    assert capsys.readouterr().out == begin + end and calls == [True, "next", (tmp_path, 1000, described)]
    changes.append("d is new")
    calls.clear()
    fit._adapt_to_data(progress, {}, tmp_path, 1000, False)
    assert capsys.readouterr().out == "" and calls == [False, "next"]
    changes.append("e is new")
    fit._adapt_to_data(progress, {}, tmp_path, 1000, True)
    assert capsys.readouterr().out == begin + "; and 2 more" + end
    calls.clear()
    changes.clear()
    fit._adapt_to_data(progress, {}, tmp_path, 1000, True)
    assert capsys.readouterr().out == "" and calls == [True, (tmp_path, 1000, described)]


def test_the_files_of_all_streams_are_described(monkeypatch, caplog):
    a, b = DataSource("", "/d", 1.0, "mural"), DataSource("b", "/b", 1.0, "mural")
    monkeypatch.setattr(fit, "missing_shards", lambda files: [f"no {name}" for name in files if "x" in name])
    monkeypatch.setattr(fit, "describe_files", lambda folder, files: {
        "files": {name: len(name) for name in files}, "dataset": f"digest of {folder};"})  # fmt: skip
    sources = {"one": [(a, ["p", "xq"]), (b, ["xr"])], "two": [(a, ["s", "p"])]}
    expected = {"files": {"p": 1, "xq": 2, "s": 1, "b/xr": 2}, "dataset": "digest of /d;digest of /b;"}
    assert fit._describe_data(sources, False) == expected and not caplog.records
    assert fit._describe_data(sources, True) == expected
    assert [record.getMessage() for record in caplog.records] == ["Training without 2 files that others name: no xq …"]


def test_records_that_were_skipped_before_count_on(tmp_path):
    source = DataSource("b", "/b", 1.0, "mural")
    sources = {"one": [(DataSource("", "/d", 1.0, "mural"), ["p", "q"]), (source, ["r"])]}
    assert fit._skipped_records(sources, tmp_path).total == 0
    for step, row in enumerate(
        ({"train/skipped_records": 3}, {"train/skipped_records": 5}, {"dev/all/mean_recall": 1.0})
    ):
        append_metrics(tmp_path, {"step": step, **row})
    skipped = fit._skipped_records(sources, tmp_path)
    assert skipped.total == 5 and list(skipped.by_part) == ["one", "one/b"]
    assert skipped._locations["one"](1, 20) == "q, byte 20" and skipped._locations["one/b"](0, 3) == "r, byte 3"


# The place in the data.


def batch_with(places, tallies):
    names = ("a", "b")
    batch = {f"{name}_place": tf.constant(places[name], tf.int64) for name in names}
    return {**batch, **{f"{name}_tally": tf.constant(tallies[name], tf.int64) for name in names}}


def test_places_and_tallies_of_a_step():
    """A source without an item in a batch keeps its place."""
    progress = DataProgress({"a": 1, "b": 2})
    tally = np.ones([1, 2, 10, 3], np.int64)
    first = {"a": np.full([1, 1, PLACE], 5), "b": np.stack([np.stack([np.full(PLACE, 6), np.full(PLACE, 7)])])}
    progress.note(batch_with(first, {"a": tally[:, :1], "b": 2 * tally}))
    second = {"a": first["a"] + 1, "b": np.stack([np.stack([np.full(PLACE, -1), np.full(PLACE, 8)])])}
    progress.note(batch_with(second, {"a": tally[:, :1], "b": 3 * tally}))
    places = progress.of_pipeline(0)
    assert places["a"].tolist() == [[6] * PLACE] and places["b"].tolist() == [[6] * PLACE, [8] * PLACE]
    assert progress.epochs() == {"a": [6], "b": [6, 8]}
    assert [set(tallies.ravel()) for tallies in progress.tallies["b"].numpy()[0]] == [{2}, {3}]
    progress.next_epochs()
    assert progress.of_pipeline(0)["b"].tolist() == [start_of(9).tolist()] * 2
    assert progress.epochs() == {"a": [7], "b": [9, 9]}


@pytest.mark.parametrize("saved,now,reason", [
    (({"a": 1}, 2), ({"a": 1}, 4), "the checkpoint is of 2 input pipelines, and these are 4"),
    (({"a": 1}, 2), ({"a": 3}, 2), "the checkpoint is of 1 sources, and these are 3"),
    (({"a": 2}, 2), ({"a": 2}, 2), ""), (({"b": 1}, 1), ({"a": 1}, 1), ""),
])  # fmt: skip
def test_places_of_another_order_begin_a_new_epoch(saved, now, reason, tmp_path):
    before, after = DataProgress(*saved), DataProgress(*now)
    for places in before.places.values():
        places.assign(np.arange(places.shape.num_elements()).reshape(places.shape))
    path = tf.train.Checkpoint(data_progress=before.saved()).write(str(tmp_path / "ckpt-8"))
    assert after.restore(path) == reason
    if reason:
        epoch = before.places["a"].numpy()[..., 0].max() + 1
        assert set(map(tuple, after.places["a"].numpy().reshape(-1, PLACE))) == {tuple(start_of(epoch))}
    elif "a" in saved[0]:
        np.testing.assert_array_equal(after.places["a"], before.places["a"])
    else:
        assert after.epochs() == {"a": [0]}
    assert (
        data_progress._difference([1, 1, 3], tf.TensorShape([1, 1, 4])) == "the checkpoint's places are of another form"
    )


# Sizes, workers and devices.


@pytest.mark.parametrize("captions,micro,replicas,message", [
    (1, 1, 1, None), (1, 2, 4, None), (2, 2, 4, None),
    (3, 1, 1, "image_text_batch=16 must be a multiple of 3: M has 1 replica, and method.captions_per_image=3."),
    (1, 1, 3, "image_text_batch=16 must be a multiple of 3: M has 3 replicas."),
    (4, 2, 4, "image_text_batch=16 must be a multiple of 32: M has 4 replicas, and method.captions_per_image=4, and "
              "train.micro_batches=2."),
])  # fmt: skip
def test_batches_that_replicas_share(captions, micro, replicas, message, config, monkeypatch):
    monkeypatch.setattr(batch_sizes, "captions_per_image", lambda config: captions)
    config.train.micro_batches = micro
    if message is None:
        batch_sizes.check_train(config, replicas, "M")
        return
    with pytest.raises(UserError) as raised:
        batch_sizes.check_train(config, replicas, "M")
    assert str(raised.value) == f"train.{message}"


@pytest.mark.parametrize(
    "replicas, micro, size, expected", [(3, 1, 16, 15), (8, 1, 4, 8), (2, 4, 21, 16), (2, 1, 16, 16)]
)
def test_batches_that_follow_from_the_data_are_divided_evenly(replicas, micro, size, expected, config, capsys):
    """To the nearest number below, and at least one pair for each replica; a batch that was given stays."""
    config.train.micro_batches = micro
    config.train.image_text_batch = config.train.text_text_batch = size
    batch_sizes.round_batches(config, ["image_text_batch"], replicas)
    assert (config.train.image_text_batch, config.train.text_text_batch) == (expected, size)
    said = capsys.readouterr().out
    changed = f"train.image_text_batch is {expected}, not {size}: a multiple of {replicas * micro}."
    assert said.strip() == (changed if size != expected else "")


@pytest.mark.parametrize("field, value", [
    ("seed", -1), ("seed", 2**31), ("loss.image_text_weight", -0.1), ("loss.text_text_weight", float("nan")),
    ("loss.label_smoothing", 1.0), ("loss.label_smoothing", -0.1),
])  # fmt: skip
def test_numbers_that_would_train_on_in_silence(field, value, config):
    config.update_from_flattened_dict({field: value})
    with pytest.raises(UserError, match=f"^{field}={value}: expected "):
        batch_sizes.check_train(config, 1, "M")


@pytest.mark.parametrize("name,least", batch_sizes.LEAST.items())
def test_the_least_counts(name, least, config, monkeypatch):
    config.train[name] = least - 1
    with pytest.raises(UserError) as raised:
        batch_sizes.check_train(config, 1, "M")
    hint = " Only fine-tuning (run_finetune.py --from=…) takes 0 for values that follow from the data."
    hint *= name in ("steps", "image_text_batch", "text_text_batch")
    assert str(raised.value) == f"train.{name}={least - 1}: expected {least} or more.{hint}"
    config.train[name] = least
    batch_sizes.check_train(config, 1, "M")
    monkeypatch.setattr(batch_sizes, "takes_steps", lambda method: False)
    config.train.steps = 0
    batch_sizes.check_train(config, 1, "M")


@pytest.mark.parametrize("captions,micro,replicas,expected", [
    (1, 1, 1, [2, 4, 8]), (1, 2, 1, [4, 8]), (2, 1, 1, [2, 4, 8]), (4, 1, 1, [2, 4, 8]), (8, 1, 2, [2, 4]),
    (1, 8, 1, []),
])  # fmt: skip
def test_numbers_of_chunks(captions, micro, replicas, expected, config, monkeypatch):
    """Of 64 captions and 24 pairs."""
    monkeypatch.setattr(batch_sizes, "captions_per_image", lambda config: captions)
    config.train.update(dict(image_text_batch=64, text_text_batch=24, micro_batches=micro))
    assert batch_sizes.chunk_numbers(config, replicas) == expected


@pytest.mark.parametrize("count,replicas,gathered,expected", [(2, 4, 14, 7), (3, 3, 9, 9)])
def test_numbers_are_added_up_over_workers(count, replicas, gathered, expected, monkeypatch):
    """Each of a worker's replicas adds its worker's number."""
    monkeypatch.setattr(workers, "workers", lambda strategy: count)
    several = types.SimpleNamespace(
        num_replicas_in_sync=replicas, run=lambda add: "ran", experimental_local_results=lambda ran: [gathered, "other"]
    )
    assert workers.sum_over_workers(several, 5) == expected
    monkeypatch.setattr(workers, "workers", lambda strategy: 1)
    assert workers.sum_over_workers(several, 5) == 5


@pytest.mark.parametrize("chief", [True, False])
def test_the_chief_prepares_first(chief, monkeypatch):
    calls = []
    monkeypatch.setattr(workers, "is_chief", lambda strategy: chief)
    monkeypatch.setattr(workers, "sum_over_workers", lambda strategy, value: calls.append("meet"))
    assert workers.chief_first("strategy", lambda: calls.append("prepare") or 7) == 7
    assert calls == (["prepare", "meet"] if chief else ["meet", "prepare"])


@pytest.mark.parametrize("cards", [0, 1, 2])
def test_cards_of_this_machine_mirror_a_step(cards, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    prepared = []
    monkeypatch.setattr(strategy, "prepare_gpus", lambda: prepared.append("memory and float32"))
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: {"GPU": ["card"] * cards}[kind])
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda: "mirrored")
    assert strategy.build_strategy() == ("mirrored" if cards == 2 else tf.distribute.get_strategy())
    assert prepared == ["memory and float32"]


MEMORY = "A device of this machine has too little memory: {}; --dry_run lists what a step needs."


@pytest.mark.parametrize("error,chunks,count,message", [
    (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating"), [4, 8], 1,
     MEMORY.format("encode a batch in more chunks, with --config.train.micro_batches=4")),
    (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating"), [], 2, MEMORY.format("take smaller batches")),
    (tf.errors.InternalError(None, None, "[[node]] CUDA_ERROR_OUT_OF_MEMORY: out of memory"), [4], 2,
     MEMORY.format("encode a batch in more chunks, with --config.train.micro_batches=4")),
    (tf.errors.ResourceExhaustedError(None, None, "ckpt; No space left on device"), [4], 2, None),  # a disk's
    (tf.errors.InvalidArgumentError(None, None, f"UserError: {CHANGED}\nTraceback (most recent …"), [], 1, CHANGED),
    (tf.errors.AbortedError(None, None, "x: Socket closed, y"), [], 2,
     "Another worker of this run ended or cannot be reached (Socket closed); if it stopped by itself, its own message "
     "says why. The last checkpoint is intact: start all workers again by the same command."),
    (tf.errors.AbortedError(None, None, "Socket closed"), [], 1, None),
    (tf.errors.NotFoundError(None, None, "Socket closed"), [], 2, None), (ValueError("ours"), [], 2, None),
])  # fmt: skip
def test_failures_in_one_line(error, chunks, count, message, config, monkeypatch):
    monkeypatch.setattr(failures, "chunk_numbers", lambda config, replicas: chunks)
    monkeypatch.setattr(failures, "workers", lambda strategy: count)
    with pytest.raises(type(error) if message is None else UserError) as raised:
        with failures.failures_in_one_line(config, tf.distribute.get_strategy()):
            raise error
    assert raised.value is error if message is None else str(raised.value) == message


def test_a_pipeline_has_the_place_of_its_first_replica(monkeypatch):
    context = types.SimpleNamespace(num_replicas_in_sync=6)
    monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: context)
    progress = DataProgress({"a": 1}, pipelines=3)
    assert progress._by_pipeline(tf.range(6)).numpy().tolist() == [0, 2, 4]
    assert progress.places["a"].shape == (3, 1, PLACE) and progress.epochs() == {"a": [0]}


def test_each_replica_of_a_pipeline_has_its_rows_and_the_places_of_all():
    rows = {"caption": tf.range(12), "caption_place": tf.constant([[7, 8]]), "data_wait_seconds": tf.constant([0.5])}
    batches = tf.data.Dataset.from_tensors(rows)
    second_of_three = list(fit.rows_of_replicas(batches, 6, 1, 3).as_numpy_iterator())
    assert [part["caption"].tolist() for part in second_of_three] == [[4, 5], [6, 7]]
    assert [part["caption_place"].tolist() for part in second_of_three] == [[[7, 8]], [[7, 8]]]
    assert [part["data_wait_seconds"].tolist() for part in second_of_three] == [[0.5], [0.5]]


# The whole of `fit`.


class Parts:
    """Stand-ins for the parts of `fit`, which note what they are asked."""

    def __init__(self, monkeypatch, step=0, restored=None, misfit="", failure=None, steps_done=10):
        self.calls = calls = []
        self.made = {}
        saved = types.SimpleNamespace(
            restore=lambda: restored, save=lambda number: calls.append(("save", number)),
            prepare=lambda: calls.append("prepare"), wait=lambda: calls.append("wait"),
        )  # fmt: skip
        progress = types.SimpleNamespace(saved=lambda: "progress", restore=lambda path: calls.append(path) or misfit)
        skipped = types.SimpleNamespace(begin=lambda: calls.append("begin"), stop=lambda *a: calls.append(a))

        def make(name, result):
            def made(*arguments):
                self.made[name] = arguments
                return result(*arguments) if callable(result) else result

            monkeypatch.setattr(fit, name, made)

        class Log:
            def __init__(self, *arguments):
                self.step = step

            def __enter__(self):
                calls.append("enter")

            def __exit__(self, *_):
                calls.append("exit")

        evaluation = types.SimpleNamespace(evaluate_if_due=lambda *arguments: calls.append(arguments))

        def intervals(model, batches, parts, callbacks):
            calls.append((batches(), parts, callbacks))
            log = self.log = callbacks[0]
            log.step = steps_done
            if failure is not None:
                raise failure

        make("is_chief", True)
        make("input_pipelines", 3)
        make("stream_sources", lambda data, stream: [(f"source of {stream}", [])] * 2)
        make("DataProgress", progress)
        make("training_checkpoints", saved)
        make("_common_step", step)
        make("_adapt_to_data", None)
        make("keep_metrics", None)
        make("_skipped_records", skipped)
        make("TrainingLog", Log)
        make("PeriodicEvaluation", evaluation)
        make("SaveCheckpoints", "saving")
        make("StopAfterStep", "stopping")
        make("chief_first", lambda strategy, prepare: prepare())
        make("_distribute", "batches")
        make("_fit_intervals", intervals)
        make("unusable", ("s", "tally") if failure is OpFailure else None)
        self.evaluation, self.skipped, self.saved = evaluation, skipped, saved

    def fit(self, config, **options):
        self.model = types.SimpleNamespace(streams=("image_text", "text_text"))
        signals = types.SimpleNamespace(after_the_step=contextlib.nullcontext)
        columns = lambda *arguments: self.calls.append(("columns", arguments[1:])) or "columns"  # noqa: E731
        strategy = tf.distribute.get_strategy()
        return fit.fit(self.model, "tokens", config, "workdir", strategy, signals, make_columns=columns, **options)


OpFailure = tf.errors.DataLossError(None, None, "unusable")


def test_a_run_from_its_first_step(config, monkeypatch, capsys):
    config.train.update(dict(steps=10, log_every=4, checkpoint_every=7, evaluate_every=5, evaluate_first=True))
    parts = Parts(monkeypatch)
    observers = lambda model, config, log, strategy: ["observer"]  # noqa: E731
    assert parts.fit(config, evaluate="evaluate", make_observers=observers) is True
    callbacks = [parts.log, "stopping", "saving", parts.evaluation, "observer"]
    assert parts.calls == [
        "enter", ("save", 0), (0, True), "prepare", ("columns", (config, "tokens", "workdir")), "begin",
        ("batches", [(2, 4), (1, 2)], callbacks), "wait", "exit",
    ]  # fmt: skip
    made = parts.made
    assert made["DataProgress"] == ({"image_text": 2, "text_text": 2}, 3)
    sources, *of_the_start = made["_adapt_to_data"][1:]
    assert list(sources) == ["image_text", "text_text"] and of_the_start == ["workdir", 0, True]
    assert made["training_checkpoints"] == (parts.model, "workdir", 3, True, "progress")
    assert made["TrainingLog"] == ("workdir", 0, 10, 32, parts.skipped, True)
    intervals = fit.Intervals(10, 4)
    assert made["PeriodicEvaluation"][0] == "evaluate" and made["PeriodicEvaluation"][4:] == (intervals, 5)
    assert made["SaveCheckpoints"][0] is parts.saved and made["SaveCheckpoints"][2:] == (intervals, (7, 5))
    assert made["_distribute"][1:] == (parts.model, "tokens", config, "columns")
    folder, wanted = made["keep_metrics"]
    assert folder == "workdir" and [wanted({"step": number}) for number in (0, 1)] == [True, False]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("step,done,finished", [(8, 9, False), (10, 10, True), (8, 10, True)])
def test_a_run_that_goes_on(config, step, done, finished, monkeypatch, capsys):
    """Without evaluations, as `evaluate` is not given; each pipeline reads everything."""
    config.data.read = "all"
    config.train.update(dict(steps=10, log_every=4, evaluate_every=5, evaluate_first=True))
    parts = Parts(monkeypatch, step, "ckpt-8", "the places do not fit", steps_done=done)
    assert parts.fit(config) is finished
    assert parts.made["DataProgress"][1] == 1 and parts.made["SaveCheckpoints"][3] == (10, 0)
    fitted = [(count, length) for call in parts.calls if call[0] == "batches" for count, length in call[1]]
    assert fitted == ([(1, 2)] if step == 8 else [])
    assert parts.calls[:3] == ["ckpt-8", "enter", (step, False)] and ("save", 0) not in parts.calls
    line = f"Step {step:,}: the places do not fit. Training goes on with a new epoch of the data.\n"
    assert capsys.readouterr().out == line


@pytest.mark.parametrize("failure", [OpFailure, tf.errors.DataLossError(None, None, "other"), ValueError("ours")])
def test_a_run_that_fails(config, failure, monkeypatch):
    config.data.max_skipped_fraction = 0.25
    parts = Parts(monkeypatch, failure=failure)
    with pytest.raises(type(failure)) as raised:
        parts.fit(config)
    assert raised.value is failure and parts.calls[-2:] == ["wait", "exit"]
    assert (("s", "tally", 0.25) in parts.calls) == (failure is OpFailure)
