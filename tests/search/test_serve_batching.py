"""Batching with a model that counts its runs and fails on some values."""

import asyncio
import threading
import weakref

import numpy as np
import pytest
from running_app import Multiplier, until

from mural_tf.search.server.batches import Batcher
from mural_tf.search.server.limits import Limits, Overloaded


class Doubler(Multiplier):
    """y = 2 x, but 13 is an error; remembers the rows of every run, and waits for its gate."""

    def run(self, inputs):
        doubled = super().run(inputs)["y"]
        if 13 in inputs["x"]:
            raise ValueError("thirteen")
        return {"y": doubled[:, 0]}


def with_batcher(scenario, **limits):
    """Runs `scenario(batcher, model)` in a loop and returns (its result, sizes of the runs)."""
    model = Doubler()

    async def main():
        batcher = Batcher(model.run, Limits(**{"window": 0.05, "max_batch": 4, **limits}), lambda rows: None)
        return await scenario(batcher, model)

    return asyncio.run(main()), [len(rows) for rows in model.runs]


def ask(batcher, *values):
    return batcher({"x": np.array(values)})


def test_requests_share_runs_and_get_their_rows():
    async def scenario(batcher, model):
        return await asyncio.gather(ask(batcher, 1), ask(batcher, 2, 3), ask(batcher, 4, 5), ask(batcher, 6))

    answers, runs = with_batcher(scenario)
    assert [answer["y"].tolist() for answer in answers] == [[2], [4, 6], [8, 10], [12]]
    assert runs == [4, 2]  # 1 + 2 + 1 rows fit into the first; the second keeps [4, 5]


def test_a_request_larger_than_a_batch_is_split_and_an_empty_one_answered():
    async def scenario(batcher, model):
        return [(await ask(batcher, *range(10)))["y"].tolist(), (await ask(batcher))["y"].tolist()]

    answers, runs = with_batcher(scenario)
    assert answers == [[2 * i for i in range(10)], []] and runs == [4, 4, 2, 0]


def test_only_rows_of_one_shape_are_put_together():
    async def scenario(batcher, model):
        wide = batcher({"x": np.ones([1, 3])})
        return await asyncio.gather(ask(batcher, 1), wide, ask(batcher, 2))

    answers, runs = with_batcher(scenario)
    assert [answer["y"].shape for answer in answers] == [(1,), (1, 3), (1,)] and runs == [2, 1]


def test_a_failing_request_fails_alone():
    async def scenario(batcher, model):
        return await asyncio.gather(ask(batcher, 1), ask(batcher, 13), ask(batcher, 2), return_exceptions=True)

    answers, runs = with_batcher(scenario)
    assert answers[0]["y"] == 2 and isinstance(answers[1], ValueError) and answers[2]["y"] == 4
    assert runs == [3, 1, 1, 1]


def test_what_runs_it_ends_with_its_last_reference():
    before, found = threading.active_count(), []

    async def scenario(batcher, model):
        found.append((weakref.ref(batcher), (await ask(batcher, 1))["y"]))

    with_batcher(scenario)
    until(lambda: found[0][0]() is None and threading.active_count() <= before)


def test_too_many_waiting_are_refused():
    async def scenario(batcher, model):
        model.gate.clear()
        running = asyncio.create_task(ask(batcher, 1))
        await asyncio.to_thread(model.began.wait, 20)
        waiting = [asyncio.create_task(ask(batcher, i)) for i in (2, 3)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded, match="2 requests wait already"):
            await ask(batcher, 4)
        model.gate.set()
        return len(await asyncio.gather(running, *waiting))

    assert with_batcher(scenario, max_waiting=2)[0] == 3
