"""Ranking against independent libraries: scipy (ties), ir_measures (hit rates), eccv_caption (MS-COCO's protocols).

The last holds MS-COCO's real test ids, the folds of the 1K protocol and Crisscrossed Captions' positives.
"""

import json
import pathlib

import numpy as np
import pytest

from mural_lite.top_k import top_k
from mural_tf.metrics import ranking


def random_pools(seed, left=60, right=130, size=5, ties=True):
    """Small integers give exact scores with many ties; every left item has several right ones, some right ones none."""
    random = np.random.default_rng(seed)
    draw = (lambda *shape: random.integers(-2, 3, shape)) if ties else (lambda *shape: random.standard_normal(shape))
    a, b = draw(left, size).astype(np.float32), draw(right, size).astype(np.float32)
    pairs = np.unique(np.stack([random.integers(0, left, 150), random.integers(0, right, 150)]), axis=1)
    pairs = np.concatenate([pairs, [np.arange(left), random.integers(0, right, left)]], axis=1)
    return a, b, pairs


def scipy_ranks(scores, positives):
    """Ranks as scipy gives them to the best positive among the non-positives, ties sharing their mean."""
    rankdata = pytest.importorskip("scipy.stats").rankdata
    ranks = []
    for row, good in zip(scores, positives):
        others = np.delete(row, good)
        ranks.append(rankdata(-np.append(others, row[good].max()), method="average")[-1] if len(good) else np.nan)
    return np.array(ranks)


@pytest.mark.parametrize("chunk", [1, 7, 60, 1000])
@pytest.mark.parametrize("ties", [True, False])
def test_both_ways_equal_scipy(chunk, ties):
    a, b, pairs = random_pools(0, ties=ties)
    forward, backward = ranking.ranks_both_ways(a, b, pairs, chunk=chunk)
    scores = a.astype(float) @ b.T.astype(float)
    of_left = [np.unique(pairs[1][pairs[0] == i]) for i in range(len(a))]
    of_right = [np.unique(pairs[0][pairs[1] == j]) for j in range(len(b))]
    assert np.isnan(backward).any()  # captions of no image
    np.testing.assert_array_equal(forward, scipy_ranks(scores, of_left))
    np.testing.assert_array_equal(backward, scipy_ranks(scores.T, of_right))
    if ties:
        assert (forward % 1 == 0.5).any() and (backward[np.isfinite(backward)] % 1 == 0.5).any()


def test_excluded_candidates_are_not_in_the_pool():
    a, _, _ = random_pools(1)
    positives = [[(i + 1) % len(a), (i + 2) % len(a)] for i in range(len(a))]
    scores = a.astype(float) @ a.T.astype(float)
    without = [np.delete(row, i) for i, row in enumerate(scores)]
    moved = [[p - (p > i) for p in good] for i, good in enumerate(positives)]
    result = ranking.ranks(a, a, positives, chunk=11, excluded=np.arange(len(a)))
    np.testing.assert_array_equal(result, scipy_ranks(without, moved))


@pytest.mark.parametrize("size, spread", [(3, 1e-3), (64, 1e-3), (512, 1e-3), (64, 3e-5)])
def test_no_rank_depends_on_the_block(size, spread):
    # Many candidates lie within float32 rounding of each other: the counts must be those of float64 all the same.
    random = np.random.default_rng(2)
    centre = random.standard_normal(size)
    a = centre + spread * random.standard_normal((40, size))
    b = centre + spread * random.standard_normal((300, size))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    a, b = a.astype(np.float32), b.astype(np.float32)
    owners = np.arange(300) % 40
    scores = a.astype(float) @ b.T.astype(float)
    expected = scipy_ranks(scores, [np.flatnonzero(owners == i) for i in range(40)])
    expected_back = scipy_ranks(scores.T, [[owner] for owner in owners])
    rounded = np.count_nonzero(np.diff(np.sort((a @ b.T).ravel())) == 0)
    assert rounded > 1000  # float32 cannot tell them apart
    for chunk in (1, 13, 40):
        forward, backward = ranking.ranks_both_ways(a, b, (owners, np.arange(300)), chunk=chunk)
        np.testing.assert_array_equal(forward, expected)
        np.testing.assert_array_equal(backward, expected_back)


def test_hit_rate_equals_ir_measures():
    ir_measures = pytest.importorskip("ir_measures")
    a, b, pairs = random_pools(3, ties=False)
    scores = a @ b.T
    judged = [ir_measures.Qrel(str(i), str(j), 1) for i, j in np.unique(pairs, axis=1).T]
    run = [ir_measures.ScoredDoc(str(i), str(j), float(scores[i, j])) for i in range(len(a)) for j in range(len(b))]
    measures = [ir_measures.Success @ k for k in ranking.CUTOFFS]
    expected = ir_measures.calc_aggregate(measures, judged, run)
    forward, _ = ranking.ranks_both_ways(a, b, pairs)
    for k, measure in zip(ranking.CUTOFFS, measures):
        assert ranking.recall_at(forward, k) == pytest.approx(100 * expected[measure], abs=1e-9)
    # And where several positives are in the first ten, the hit rate is not the share of positives found.
    found = ir_measures.calc_aggregate([ir_measures.R @ 10], judged, run)[ir_measures.R @ 10]
    assert 100 * found < ranking.recall_at(forward, 10) - 1


@pytest.fixture(scope="module")
def coco_test():
    """MS-COCO's real test split: caption ids in order, and for each its image id."""
    eccv_caption = pytest.importorskip("eccv_caption")
    folder = pathlib.Path(eccv_caption.__file__).parent / "data"
    captions = np.load(folder / "coco_test_ids.npy")
    owner_of = {int(k): v[0] for k, v in json.loads((folder / "original_caption_to_image.json").read_text()).items()}
    return eccv_caption.Metrics(), captions, np.array([owner_of[int(c)] for c in captions]), folder


@pytest.mark.slow
def test_coco_and_cxc_protocols_equal_eccv_caption(coco_test):
    """5K, 1K by five folds, and CxC's rated positives, on random embeddings for the real ids."""
    metrics, caption_ids, owner_ids, folder = coco_test
    image_ids = np.array(list(dict.fromkeys(owner_ids.tolist())))
    place = {image: i for i, image in enumerate(image_ids.tolist())}
    owners = np.array([place[i] for i in owner_ids.tolist()])
    random = np.random.default_rng(0)
    images = random.standard_normal((5000, 16)).astype(np.float32)
    texts = (images[owners] + 0.9 * random.standard_normal((25_000, 16))).astype(np.float32)

    # As many of the nearest as hold ten of any fold, which is a fifth of the pool.
    to_text, to_image = top_k(images, texts, 1500)[1], top_k(texts, images, 500)[1]
    retrieved = {
        "i2t": {int(image_ids[i]): caption_ids[row].tolist() for i, row in enumerate(to_text)},
        "t2i": {int(caption_ids[j]): image_ids[row].tolist() for j, row in enumerate(to_image)},
    }
    forward, backward = ranking.ranks_both_ways(images, texts, (owners, np.arange(25_000)))
    folds = []
    for begin in range(0, 5000, 1000):
        inside = (owners >= begin) & (owners < begin + 1000)
        pairs = (owners[inside] - begin, np.arange(inside.sum()))
        folds.append(ranking.ranks_both_ways(images[begin : begin + 1000], texts[inside], pairs))
    rated = json.loads((folder / "cxc_caption_to_image.json").read_text())
    number = {int(c): j for j, c in enumerate(caption_ids)}
    pairs = np.array([(place[i], number[int(c)]) for c, found in rated.items() for i in found]).T
    rated_forward, rated_backward = (r[np.isfinite(r)] for r in ranking.ranks_both_ways(images, texts, pairs))
    assert pairs.shape[1] == 35_585 and len(rated_backward) == 24_972  # as counted in the published files
    for k in ranking.CUTOFFS:
        expected = metrics.coco_5k_recalls(retrieved, "all", K=k)
        assert ranking.recall_at(forward, k) == pytest.approx(100 * expected["i2t"])
        assert ranking.recall_at(backward, k) == pytest.approx(100 * expected["t2i"])
        expected = metrics.coco_1k_recalls(retrieved, "all", K=k)
        assert np.mean([ranking.recall_at(f, k) for f, _ in folds]) == pytest.approx(100 * expected["i2t"])
        assert np.mean([ranking.recall_at(b, k) for _, b in folds]) == pytest.approx(100 * expected["t2i"])
        expected = metrics.cxc_recalls(retrieved, "all", K=k)
        assert ranking.recall_at(rated_forward, k) == pytest.approx(100 * expected["i2t"])
        assert ranking.recall_at(rated_backward, k) == pytest.approx(100 * expected["t2i"])
