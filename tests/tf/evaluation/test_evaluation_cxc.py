"""Crisscrossed Captions on small files in its format, against a naive computation in plain loops."""

import json

import fake_embedder
import numpy as np
import pytest
from fake_embedder import FakeEmbedder, TwoHeads


def spearmanr(one, other):
    """By SciPy, which takes seconds to import."""
    return pytest.importorskip("scipy.stats").spearmanr(one, other).statistic


IMAGES, CAPTIONS = 12, 60


def text(vector):
    return " ".join(f"{x:.0f}" for x in vector)


@pytest.fixture
def data(tmp_path):
    """Files of the repository, and everything in them as arrays."""
    random = np.random.default_rng(0)
    images = random.integers(-5, 6, (IMAGES, 6))
    owners = np.repeat(np.arange(IMAGES), 5)
    captions = images[owners] + random.integers(-4, 5, (CAPTIONS, 6))
    caption_name = [f"COCO_val2014:sentid:{1000 + 7 * c}" for c in range(CAPTIONS)]
    image_name = [f"COCO_val2014_{i:012d}.jpg" for i in range(IMAGES)]

    def pairs(n, a, b, grid):
        rows = {(int(x), int(y)) for x, y in zip(random.integers(0, a, n), random.integers(0, b, n))}
        return [(x, y, float(random.choice(grid))) for x, y in sorted(rows) if a != b or x != y]

    grid = np.arange(0, 5.01, 0.25)
    sts, sis = pairs(150, CAPTIONS, CAPTIONS, grid), pairs(60, IMAGES, IMAGES, grid)
    sits = [(c, int(owners[c]), float(random.choice(grid))) for c in range(CAPTIONS)]
    extra = [row for row in pairs(80, CAPTIONS, IMAGES, grid) if owners[row[0]] != row[1]]

    def lines(rows, left, right, method):
        return [f"{left[a]},{right[b]},{score},{method}" for a, b, score in rows]

    header = ",agg_score,sampling_method"
    files = {
        "sts_test.csv": ["caption1,caption2" + header, *lines(sts, caption_name, caption_name, "c2c_isim")],
        "sis_test.csv": ["image1,image2" + header, *lines(sis, image_name, image_name, "i2i_csim")],
        "sits_test.csv": [
            "caption,image" + header,
            *lines(extra, caption_name, image_name, "c2i_intrasim"),
            *lines(sits, caption_name, image_name, "c2i_original"),
        ],
    }
    (tmp_path / "data").mkdir()
    for name, content in files.items():
        (tmp_path / "data" / name).write_text("\n".join(content) + "\n")
    annotations = [
        {"id": 1000 + 7 * c, "image_id": int(owners[c]), "caption": text(captions[c])} for c in range(CAPTIONS)
    ]
    (tmp_path / "captions_val2014.json").write_text(json.dumps({"annotations": annotations, "images": []}))
    (tmp_path / "val2014").mkdir()
    for i in range(IMAGES):
        (tmp_path / "val2014" / image_name[i]).write_text(text(images[i]))
    return tmp_path, images, captions, owners, sts, sis, sits, extra


def run(folder, embedder=None, max_missing=0.0, **options):
    options = {f"cxc__{key}": value for key, value in options.items()}
    return fake_embedder.run("cxc", folder, embedder or TwoHeads(), max_missing=max_missing, **options)[0]


def naive_ranks(scores, positives, leave_out=None):
    """scores [Q, C]; positives: query -> set of candidates; leave_out: query -> candidate."""
    ranks = []
    for query, good in sorted(positives.items()):
        best = max(scores[query, c] for c in good)
        others = [s for c, s in enumerate(scores[query]) if c not in good and (leave_out is None or c != query)]
        ranks.append(1 + sum(s > best for s in others) + sum(s == best for s in others) / 2)
    return np.array(ranks)


def symmetric(rows, threshold):
    positives = {}
    for a, b, score in rows:
        if score >= threshold:
            positives.setdefault(a, set()).add(b)
            positives.setdefault(b, set()).add(a)
    return positives


@pytest.mark.parametrize("positives", ["union", "rated"])
def test_retrieval_equals_plain_loops(data, positives):
    folder, images, captions, owners, sts, sis, sits, extra = data
    result = run(folder, positives=positives)
    of_image, of_caption = {}, {}
    good = [(c, i) for c, i, score in sits + extra if score >= 3]
    good += list(enumerate(owners)) if positives == "union" else []
    for c, i in good:
        of_image.setdefault(int(i), set()).add(c)
        of_caption.setdefault(c, set()).add(int(i))
    expected = {
        "image_to_text": naive_ranks(images @ captions.T, of_image),
        "text_to_image": naive_ranks(captions @ images.T, of_caption),
        "text_to_text": naive_ranks(captions @ captions.T, symmetric(sts, 3), leave_out="self"),
        "image_to_image": naive_ranks(images @ images.T, symmetric(sis, 2.5), leave_out="self"),
    }
    for row, ranks in expected.items():
        assert result.sizes[row] == {"queries": len(ranks)}
        assert result.metrics[f"cxc/{row}/mean_rank"] == pytest.approx(ranks.mean())
        for k in (1, 5, 10):
            assert result.metrics[f"cxc/{row}/recall@{k}"] == pytest.approx(100 * np.mean(ranks <= k))
    if positives == "rated":
        assert result.sizes["text_to_image"]["queries"] < CAPTIONS  # captions without a positive drop out


def test_all_co_captions_can_count(data):
    folder, _, captions, owners, sts, *_ = data
    result = run(folder, co_captions="all")
    positives = symmetric(sts, 3)
    for c in range(CAPTIONS):
        positives.setdefault(c, set()).update(x for x in range(CAPTIONS) if owners[x] == owners[c] and x != c)
    ranks = naive_ranks(captions @ captions.T, positives, leave_out="self")
    assert result.metrics["cxc/text_to_text/mean_rank"] == pytest.approx(ranks.mean())


def naive_bootstrap(queries, human, model, draws, seed=0):
    random, ids, values = np.random.default_rng(seed), sorted(set(queries)), []
    for _ in range(draws):
        chosen = random.choice(len(ids), len(ids) // 2, replace=False)
        places = random.random(len(chosen))
        items = []
        for q, place in zip(chosen, places):
            own = [n for n, query in enumerate(queries) if query == ids[q]]
            items.append(own[int(place * len(own))])
        values.append(spearmanr(np.array(human)[items], np.array(model)[items]))
    return 100 * np.mean(values), 100 * np.std(values)


def test_correlations_equal_plain_loops(data):
    folder, images, captions, owners, sts, sis, sits, extra = data
    result = run(folder, draws=20)

    def check(row, queries, rows, left, right, repeats):
        human = [score for *_, score in rows] * repeats
        model = [float(left[a] @ right[b]) for a, b, _ in rows] * repeats
        mean, deviation = naive_bootstrap(queries, human, model, 20)
        assert result.metrics[f"cxc/{row}/correlation"] == pytest.approx(mean), row
        assert result.metrics[f"cxc/{row}/deviation"] == pytest.approx(deviation), row

    ends = lambda rows: [a for a, *_ in rows] + [b for _, b, _ in rows]  # noqa: E731
    check("sts", ends(sts), sts, captions, captions, 2)
    check("sts_text_text_head", ends(sts), sts, captions[:, ::-1], captions[:, ::-1], 2)
    check("sis", ends(sis), sis, images, images, 2)
    check("sits", [i for _, i, _ in extra + sits], extra + sits, captions, images, 1)


def test_options_are_named_in_the_protocol(data):
    result = run(data[0], draws=5, sits_original=False, replacement=True, sts_queries="images")
    assert "with replacement, SITS without c2i_original, STS queries: images" in result.protocol
    assert result.sizes["sits"]["ratings"] == len(data[-1])
    assert result.sizes["sts"]["queries"] <= IMAGES


def test_model_without_second_head_and_missing_image(data):
    folder = data[0]
    (folder / "val2014" / "COCO_val2014_000000000003.jpg").unlink()
    result = run(folder, FakeEmbedder(), max_missing=0.1, draws=5)
    assert not any("text_text_head" in key for key in result.metrics)
    assert result.protocol.startswith("NOT COMPLETE: 11 images, 55 captions")
    assert "000000000003" in result.notes[0]
