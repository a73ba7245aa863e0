"""Numbers that go wrong: a step that is not finite changes nothing, is counted, and too many end the run."""

import itertools

import contract
import numpy as np
import pytest
import tensorflow as tf

from mural_lite.errors import UserError
from mural_lite.skipped import KINDS
from mural_tf.data.streams.epochs import PLACE
from mural_tf.encoders.kernels import set_fusion
from mural_tf.training.data_progress import DataProgress


@pytest.fixture(scope="module", params=["eager", pytest.param("graph", marks=pytest.mark.slow)])
def trained(request):
    """A toy model, its batches, and a function that runs one step on a batch."""
    before = set_fusion("off")
    config = contract.toy_config(optimizer__name="lamb")
    model = contract.build(config)
    model.step.guard.limit = 2
    step = model.train_step if request.param == "eager" else tf.function(model.train_step, autograph=False)
    model.progress = DataProgress(dict.fromkeys(model.streams, 1))
    yield model, endless(model, config), step
    set_fusion(before)


def endless(model, config):
    for seed in itertools.count():
        places = {f"{stream}_place": tf.fill([1, 1, PLACE], np.int64(seed)) for stream in model.streams}
        tallies = {f"{stream}_tally": tf.zeros([1, 1, 1 + len(KINDS), 3], tf.int64) for stream in model.streams}
        yield {**contract.batch_of(model, config, seed=seed), **places, **tallies}


def poisoned(batch):
    """The batch with one image that is NaN."""
    return {**batch, "image": tf.concat([batch["image"][:1] * np.nan, batch["image"][1:]], axis=0)}


def state(model):
    optimizer = next(iter(model.optimizers.values()))
    variables = [*model.variables, *optimizer.variables()]
    skip = ("iter", "skipped", "total", "count")
    return [v.numpy() for v in variables if not v.name.startswith(skip)]


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(trained):
    model, batches, step = trained
    step(next(batches))
    before, steps = state(model), int(model.steps_taken)
    model.reset_metrics()
    position = model.progress.of_pipeline(0)["image_text"]
    bad = poisoned(next(batches))
    step(bad)
    assert len(before) > 50
    assert all(np.array_equal(b, a) for b, a in zip(before, state(model)))
    assert int(model.steps_taken) == steps + 1 and int(model.step.guard.total) == 1  # data and schedule go on
    assert not np.array_equal(position, model.progress.of_pipeline(0)["image_text"])
    logs = step(next(batches))
    assert all(np.isfinite(value) for value in logs.values())  # the means leave the step out
    assert not all(np.array_equal(b, a) for b, a in zip(before, state(model)))
    model.step.guard.raise_if_stuck()


def test_too_many_in_a_row_end_the_run_with_their_numbers(trained):
    model, batches, step = trained
    for _ in range(2):
        step(poisoned(next(batches)))
    model.step.guard.raise_if_stuck()
    step(next(batches))
    for _ in range(3):
        step(poisoned(next(batches)))
    step(next(batches))  # asked for only now, as at the end of a log interval
    with pytest.raises(UserError) as caught:
        model.step.guard.raise_if_stuck()
    message = str(caught.value)
    assert message.startswith("3 steps in a row") and f"step {int(model.steps_taken) - 2}" in message
    for name in ("loss_image_text nan", "loss_text_text", "temperature 0.", "gradient_norm/image_tower nan"):
        assert name in message, name


def test_logs_name_every_part(trained):
    model, batches, step = trained
    model.reset_metrics()
    logs = {name: float(value) for name, value in step(next(batches)).items()}
    towers = [logs[f"gradient_norm/{name}"] for name in ("image_tower", "text_tower", "heads")]
    assert min(towers) > 0 and abs(np.sqrt(np.sum(np.square(towers))) - logs["gradient_norm"]) < 1e-4
    assert {"loss", "loss_image_text", "loss_text_text", "temperature"} < set(logs)
    assert 0 <= logs["recall@1_image_text"] <= 1 and 0 <= logs["recall@1_text_text"] <= 1
