"""What a server keeps in memory changes the time that a question takes, not its answer."""

import numpy as np
import pytest
from search_data import unit

from mural_tf.search import codes
from mural_tf.search.codes import Codes
from mural_tf.search.index import exact

RANDOM = np.random.default_rng(7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_products_are_within_their_bounds_and_the_best_are_candidates(dtype, monkeypatch):
    monkeypatch.setattr(codes, "PART", 1024)  # several tasks, the last of them short
    vectors, vector = unit(RANDOM.standard_normal((3000, 48))), unit(RANDOM.standard_normal(48))
    vectors[7] = 0.0
    vectors[8] *= 300.0  # a damaged row of another length
    vectors = vectors.astype(dtype)
    made = Codes(vectors)
    products = vectors.astype(np.float64) @ vector.astype(np.float64)
    lower, upper = made.bounds(vector)
    assert (lower <= products).all() and (products <= upper).all()
    # Rounding moves a number by half a step at most, a 254th of the row's largest: of 48 such, far less than this.
    assert np.delete(upper - lower, 8).max() < 0.05
    for among in (None, np.arange(0, 3000, 2), np.arange(100)):
        chosen = made.candidates(vector, 20, among)
        assert among is None or np.isin(chosen, among).all()
        assert len(chosen) < 200
        for got, wanted in zip(exact(vector[None], vectors, 20, chosen), exact(vector[None], vectors, 20, among)):
            np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_rows_that_are_no_numbers_are_candidates():
    vectors = unit(RANDOM.standard_normal((50, 16)))
    vectors[3, 2], vectors[4, 0] = np.nan, np.inf
    assert {3, 4} <= set(Codes(vectors).candidates(unit(RANDOM.standard_normal(16)), 5).tolist())
