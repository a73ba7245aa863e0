"""Batching with a model that counts its runs and fails on some values."""

import asyncio

import numpy as np
import pytest
from running_app import Multiplier

from mural_tf.search.server.batches import Batcher


class Doubler(Multiplier):
    """y = 2 x, but 13 is an error; remembers the rows of every run, and waits for its gate."""

    def run(self, inputs):
        doubled = super().run(inputs)["y"]
        if 13 in inputs["x"]:
            raise ValueError("thirteen")
        return {"y": doubled[:, 0]}


def behind_a_run(*requests, most=4):
    """Asks [1], and the requests while it runs; returns their answers and the rows of the runs after it."""
    model = Doubler()

    async def main():
        batcher = Batcher(model.run, most)
        model.gate.clear()
        first = asyncio.create_task(batcher({"x": np.array([1])}))
        await asyncio.to_thread(model.began.wait, 20)
        tasks = [asyncio.create_task(batcher(*request)) for request in requests]
        await asyncio.sleep(0)
        model.gate.set()
        answers = await asyncio.gather(first, *tasks, return_exceptions=True)
        return answers[1:]

    return asyncio.run(main()), [np.shape(rows)[0] for rows in model.runs[1:]]


def x(*values):
    return ({"x": np.array(values)},)


@pytest.mark.parametrize("requests, answers, runs", [
    ([x(1), x(2, 3), x(4), x(5, 6), x(7)], [[2], [4, 6], [8], [10, 12], [14]], [4, 3]),
    ([x(*range(10)), x(77), x()], [[2 * n for n in range(10)], [154], []], [4, 1, 4, 2]),  # others come between parts
    # Of costs 3, 1, 1 and 9 a run of 4 takes two rows, then one, then the last alone, though it costs more.
    ([({"x": np.arange(4)}, np.array([3, 1, 1, 9])), x(5)], [[0, 2, 4, 6], [10]], [2, 1, 1, 1]),
    ([x(1), ({"x": np.ones([1, 3])},), x(2)], [[2], [[2, 2, 2]], [4]], [1, 1, 1]),  # of different shapes
    ([x(1), x(13), x(2)], [[2], "thirteen", [4]], [3, 1, 1, 1]),  # a failing request fails alone
])  # fmt: skip
def test_requests_share_runs_and_get_their_rows(requests, answers, runs):
    got, sizes = behind_a_run(*requests)
    assert [str(one) if isinstance(one, ValueError) else one["y"].tolist() for one in got] == answers and sizes == runs
