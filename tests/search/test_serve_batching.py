"""Batching with a model that counts its runs and fails on some values."""

import asyncio

import numpy as np
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


def test_requests_share_runs_and_get_their_rows():
    answers, runs = behind_a_run(x(1), x(2, 3), x(4), x(5, 6), x(7))
    assert [answer["y"].tolist() for answer in answers] == [[2], [4, 6], [8], [10, 12], [14]] and runs == [4, 3]


def test_a_request_larger_than_a_batch_is_run_in_parts_and_others_come_between():
    answers, runs = behind_a_run(x(*range(10)), x(77), x())
    assert answers[0]["y"].tolist() == [2 * i for i in range(10)] and answers[1]["y"].tolist() == [154]
    assert answers[2]["y"].tolist() == [] and runs == [4, 1, 4, 2]


def test_rows_cost_differently():
    """Of costs 3, 1, 1 and 9 a run of 4 takes two rows, then one, then the last alone, though it costs more."""
    answers, runs = behind_a_run(({"x": np.arange(4)}, np.array([3, 1, 1, 9])), x(5))
    assert answers[0]["y"].tolist() == [0, 2, 4, 6] and answers[1]["y"].tolist() == [10] and runs == [2, 1, 1, 1]


def test_rows_of_different_shapes_are_answered_apart():
    answers, runs = behind_a_run(x(1), ({"x": np.ones([1, 3])},), x(2))
    assert [answer["y"].shape for answer in answers] == [(1,), (1, 3), (1,)] and runs == [1, 1, 1]


def test_a_failing_request_fails_alone():
    answers, runs = behind_a_run(x(1), x(13), x(2))
    assert answers[0]["y"] == 2 and isinstance(answers[1], ValueError) and answers[2]["y"] == 4 and runs == [3, 1, 1, 1]
