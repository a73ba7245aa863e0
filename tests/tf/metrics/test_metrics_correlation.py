"""Spearman's r against hand-derived numbers, SciPy, and a naive bootstrap."""

import numpy as np
import pytest

from mural_tf.metrics.correlation import average_ranks, bootstrap_spearman, spearman


def spearmanr(one, other):
    """By SciPy, which takes seconds to import."""
    return pytest.importorskip("scipy.stats").spearmanr(one, other).statistic


def test_average_ranks_by_hand():
    # 1 is first; the two 2s share places 2 and 3; 5 is fourth.
    np.testing.assert_array_equal(average_ranks(np.array([2, 5, 1, 2])), [2.5, 4, 1, 2.5])


def test_spearman_equals_scipy_with_ties():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 9, 500), random.standard_normal(500).round(1)
    assert spearman(x, y) == pytest.approx(spearmanr(x, y), abs=1e-12)


def test_constant_scores_have_no_correlation():
    assert np.isnan(spearman([1, 1, 1], [1, 2, 3]))


@pytest.mark.parametrize("replacement", [False, True])
def test_every_draw_equals_scipy_on_the_items_it_drew(replacement):
    random = np.random.default_rng(1)
    queries = random.integers(0, 60, 400) * 7  # any numbers, unsorted
    human, model = random.integers(0, 6, 400).astype(float), random.standard_normal(400).round(1)
    drawn = bootstrap_spearman(queries, human, model, draws=20, replacement=replacement, seed=3)
    ids = np.unique(queries)
    generator = np.random.default_rng(3)
    for value in drawn:
        chosen = generator.choice(len(ids), len(ids) // 2, replace=replacement)
        places = generator.random(len(chosen))
        items = [np.flatnonzero(queries == ids[q])[int(p * np.sum(queries == ids[q]))] for q, p in zip(chosen, places)]
        assert value == pytest.approx(spearmanr(human[items], model[items]), abs=1e-12)


def test_draws_spread_as_half_samples_do():
    # r is about 0.8; over n = 2,500 of 5,000 items its standard error is about (1 - r^2) / sqrt(n) * sqrt(1 - 1/2)
    # = 0.005 without replacement, and sqrt(2) times that with it.
    random = np.random.default_rng(2)
    human = random.standard_normal(5000)
    model = 0.8 * human + 0.6 * random.standard_normal(5000)
    drawn = bootstrap_spearman(np.arange(5000), human, model, draws=400)
    assert np.mean(drawn) == pytest.approx(spearman(human, model), abs=0.002)
    assert 0.003 < np.std(drawn) < 0.008
    assert np.std(bootstrap_spearman(np.arange(5000), human, model, draws=400, replacement=True)) > np.std(drawn)


@pytest.mark.parametrize("queries, human, model, message", [
    ([0, 1], [1.0], [1.0, 2.0], "equally many"), ([0, 1], [1.0, 2.0], [1.0, np.nan], "finite"),
    ([0, 0], [1.0, 2.0], [1.0, 2.0], "a correlation needs two"),
])  # fmt: skip
def test_bad_input_is_named(queries, human, model, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_spearman(np.array(queries), np.array(human), np.array(model))
