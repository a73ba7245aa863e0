"""STS 2017 and Tatoeba on small files in their formats."""

import fake_embedder
import numpy as np
import pytest
from fake_embedder import TwoHeads, one_hot

from mural_lite.errors import UserError
from mural_tf.evaluation.sentences import LASER_83, MUSE_14, XTREME_36


def spearmanr(one, other):
    """By SciPy, which takes seconds to import."""
    return pytest.importorskip("scipy.stats").spearmanr(one, other).statistic


def run(name, folder, embedder=None, **options):
    return fake_embedder.run(name, folder, embedder, **{"max_missing": 0.1, **options})[0]


@pytest.fixture
def sts(tmp_path):
    """Two pairs of languages; CRLF in the first, no last line end in the second."""
    random = np.random.default_rng(0)
    folder = tmp_path / "STS2017-extended"
    folder.mkdir()
    data = {}
    for pair, end in (("es-en", "\r\n"), ("en-en", "\n")):
        left, right = random.integers(-3, 4, (2, 30, 5))
        scores = random.integers(0, 26, 30) / 5
        lines = [f"{' '.join(map(str, a))}\t{' '.join(map(str, b))}\t{s}" for a, b, s in zip(left, right, scores)]
        (folder / f"STS.{pair}.txt").write_bytes(end.join(lines).encode())
        data[pair] = left, right, scores
    return tmp_path, data


def test_sts_equals_scipy(sts):
    folder, data = sts
    result = run("sts2017", folder)
    for pair, name in (("es-en", "en-es"), ("en-en", "en-en")):
        left, right, scores = data[pair]
        expected = 100 * spearmanr((left * right).sum(1), scores)
        assert result.metrics[f"sts2017/{name}/spearman"] == pytest.approx(expected)
        assert result.sizes[name] == {"pairs": 30}
    assert result.metrics["sts2017/monolingual/spearman"] == result.metrics["sts2017/en-en/spearman"]
    assert result.groups == {"monolingual": ("en-en",), "cross-lingual": ("en-es",)}


def test_both_heads_are_reported(sts):
    result = run("sts2017", sts[0], TwoHeads(), languages=("en-en",))
    left, right, scores = sts[1]["en-en"]
    expected = 100 * spearmanr((left * right).sum(1), scores)  # reversing both keeps the products
    assert result.metrics["sts2017/en-en/spearman_text_text_head"] == pytest.approx(expected)


def test_sts_bad_line_is_listed_and_bounded(sts):
    path = sts[0] / "STS2017-extended" / "STS.en-en.txt"
    path.write_bytes(path.read_bytes() + b"\nonly one column\n")
    result = run("sts2017", sts[0])
    assert "1 of 61 rows" in result.notes[-1] and "STS.en-en.txt:31" in result.notes[-1]
    assert "Group monolingual has 1 of its 3 members." in result.notes
    with pytest.raises(UserError, match="STS.en-en.txt:31.*max_missing=0.01"):
        run("sts2017", sts[0], max_missing=0.01)


def write_tatoeba(folder, code, foreign, english):
    (folder / f"tatoeba.{code}-eng.{code}").write_text("\n".join(foreign) + "\n")
    (folder / f"tatoeba.{code}-eng.eng").write_text("\n".join(english) + "\n")


def test_tatoeba_both_directions_and_groups(tmp_path):
    # deu: sentences 0 and 1 are exchanged: one of three is found, both ways.
    write_tatoeba(tmp_path, "deu", [one_hot(1), one_hot(0), one_hot(2)], [one_hot(i) for i in range(3)])
    # tzl: the second foreign sentence is nearest to the first English one: to English 1 of 2. From English: the first
    # finds 2 . 1 = 2 (sentence 1) above 1 . 1 (its own); the second finds its own (1 against 0).
    write_tatoeba(tmp_path, "tzl", ["1 0", "2 1"], ["1 0", "0 1"])
    result = run("tatoeba", tmp_path)
    assert result.metrics["tatoeba/deu/accuracy"] == pytest.approx(100 / 3)
    assert result.metrics["tatoeba/tzl/to_english"] == 50
    assert result.metrics["tatoeba/tzl/from_english"] == 50
    assert result.metrics["tatoeba/14/accuracy"] == pytest.approx(100 / 3)
    assert result.metrics["tatoeba/all/accuracy"] == pytest.approx((100 / 3 + 50) / 2)
    assert "Group 36 has 1 of its 36 members." in result.notes


def test_group_sizes():
    assert (len(set(MUSE_14)), len(set(XTREME_36)), len(set(LASER_83))) == (14, 36, 83)
    assert set(MUSE_14) <= set(LASER_83)
