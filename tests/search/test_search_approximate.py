"""Approximate search: recall with numbers derived by hand, exact scores, the choice of the effort, files."""

import functools
import json
import sys

import numpy as np
import pytest
from search_data import ColorEmbedder, png

from mural_tf.data import records
from mural_tf.errors import UserError
from mural_tf.metrics import top_k
from mural_tf.search import approximate, build, collect, commands
from mural_tf.search.approximate import LISTS, Group, collect_queries
from mural_tf.search.index import load_index
from mural_tf.search.items import IMAGES, TEXTS
from mural_tf.search.queries import Query


def clustered(count, size=16, clusters=40, seed=0):
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((clusters, size))
    vectors = centres[random.integers(0, clusters, count)] + 0.4 * random.standard_normal((count, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


EMBEDDINGS, QUERIES = clustered(3000), clustered(60, seed=1)


@functools.cache
def build_once():
    approximate.import_faiss().omp_set_num_threads(1)  # more would wait for each other
    return approximate.build(EMBEDDINGS, 64)


def test_recall_counts_what_scores_as_the_exact_results():
    truth = np.array([[0.9, 0.8, 0.7, 0.6], [0.5, 0.5, 0.5, 0.5]])
    found = np.array([[0.9, 0.7, 0.6, 0.55], [0.5, 0.5, 0.4, 0.4]])
    # The first finds .9, .7, .6 of its four, the second two of four (any of the rows tied at .5): (3/4 + 2/4) / 2.
    assert abs(approximate.recall(found, truth) - 0.625) < 1e-12


def test_a_query_does_not_find_itself():
    scores = np.array([[1.0, 0.8, 0.6], [0.9, 0.8, 0.7], [1.0, 1.0, 0.2]])
    rows = np.array([[4, 1, 2], [7, 8, 9], [3, 5, 6]])
    kept = Group(scores, np.array([4, 0, 5])).others(scores, rows)  # first, not among them, second of a tie
    np.testing.assert_array_equal(kept, [[0.8, 0.6], [0.9, 0.8], [1.0, 0.2]])


def test_scores_are_exact_and_nearly_all_is_found():
    built = build_once()
    built.effort = built.cells
    scores, rows = built.search(QUERIES, 10, EMBEDDINGS)
    products = np.einsum("qd,qkd->qk", QUERIES.astype(np.float64), EMBEDDINGS[rows].astype(np.float64))
    assert np.abs(scores - products).max() < 1e-6 and (np.diff(scores) <= 0).all()
    assert rows.dtype == np.int64 and all(len(set(line)) == 10 for line in rows)
    assert approximate.recall(scores, top_k.top_k(QUERIES, EMBEDDINGS, 10)[0]) > 0.97


def test_one_cell_finds_less_than_all_but_never_too_few():
    index = build_once()
    queries = np.random.default_rng(0).standard_normal((60, 16)).astype(np.float32)  # between the clusters
    truth = top_k.top_k(queries, EMBEDDINGS, 10)[0]
    recalls = []
    for index.effort in (64, 8, 1):
        recalls.append(approximate.recall(index.search(queries, 10, EMBEDDINGS)[0], truth))
    assert recalls[0] > recalls[1] > recalls[2] and recalls[2] < 0.9
    rows = index.search(QUERIES[:3], 1000, EMBEDDINGS)[1]  # more than a cell holds are found exactly
    np.testing.assert_array_equal(rows, top_k.top_k(QUERIES[:3], EMBEDDINGS, 1000)[1])
    assert index.search(QUERIES[:3], 5000, EMBEDDINGS)[1].shape == (3, 3000)


def test_unusable_vectors_are_named():
    for vectors, k in ((np.ones((1, 3)), 5), (np.ones(16), 5), (np.ones((1, 16)), 0)):
        with pytest.raises(ValueError, match="Expected vectors|at least 1"):
            build_once().search(vectors, k, EMBEDDINGS)


class Scripted:
    """Finds everything for queries along the first axis at effort 2, for others at effort 8 only."""

    cells = effort = 16

    def search(self, vectors, k, embeddings):
        scores, rows = top_k.top_k(vectors, embeddings, k)
        needed = np.where(vectors[:, 0] > 0.9, 2, 8)
        return np.where(self.effort >= needed[:, None], scores, -1), rows


def test_the_effort_suits_the_worst_language():
    easy, hard = np.tile(np.eye(16)[0], (30, 1)), np.tile(np.eye(16)[1], (30, 1))
    groups = {"image": Group(easy.astype(np.float32)), "text/sw": Group(hard.astype(np.float32))}
    index = Scripted()
    report = approximate.choose_effort(index, EMBEDDINGS, groups)
    assert index.effort == 8 and report["reached"]
    tried = [(tried["effort"], *tried["recall"].values(), tried["worst"]) for tried in report["tried"]]
    assert tried == [
        (1, 0.0, 0.0, "image"), *((effort, 1.0, 0.0, "text/sw") for effort in (2, 3, 4, 6)), (8, 1.0, 1.0, "image")
    ]  # fmt: skip
    assert report["groups"] == {name: {"queries": 30, "recall": 1.0} for name in groups}
    groups["text/sw"] = Group(hard[:5].astype(np.float32))  # too few to choose by
    report = approximate.choose_effort(index, EMBEDDINGS, groups)
    assert index.effort == 2 and report["groups"]["text/sw"]["recall"] == 0.0
    assert any("text/sw" in line and "too few" in line for line in approximate.to_lines(report, index))


def test_parameters_follow_the_size():
    assert approximate.choose(50_000) is None and approximate.choose(1, LISTS) is None
    assert approximate.choose(10**7, "none") is None and approximate.choose(30, LISTS) == 1
    # 4 sqrt(10^6) = 4000, nearest power of two 4096
    assert approximate.choose(10**6) == approximate.choose(10**6, LISTS) == 4096
    # 4 sqrt(7000) = 335, but 256 cells would hold 27 vectors each: 128 hold 55
    assert approximate.choose(7000, LISTS) == 128
    assert approximate.efforts(16) == [1, 2, 3, 4, 6, 8, 12, 16] and approximate.efforts(1) == [1]


def test_saved_and_loaded_find_the_same(tmp_path):
    built = build_once()
    built.effort = 16
    approximate.save(tmp_path, built, {"groups": {}})
    loaded = approximate.load(tmp_path, 3000)
    assert (loaded.cells, loaded.effort) == (64, 16)
    for one, other in zip(built.search(QUERIES, 5, EMBEDDINGS), loaded.search(QUERIES, 5, EMBEDDINGS)):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(UserError, match="3000 vectors, the index 2999"):
        approximate.load(tmp_path, 2999)
    (tmp_path / approximate.FILE).write_bytes(b"damaged")
    with pytest.raises(UserError, match="is damaged"):
        approximate.load(tmp_path, 3000)


@pytest.fixture
def data(tmp_path):
    """Thirty images of different colours with captions in Swahili, six of them in German too."""
    colors = np.random.default_rng(0).integers(1, 255, (30, 3)).tolist()
    rows = []
    for i, color in enumerate(colors):
        captions = [(f"rangi {i}", "sw"), (f"Farbe {i}", "de")][: 2 if i < 6 else 1]
        texts = map(list, zip(*captions))
        rows.append(records.ImageTextRecord(str(i), png(tuple(color)), *texts, [""] * len(captions)))
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "test", rows)
    return tmp_path / "data"


def test_queries_are_collected_per_modality_and_language(data):
    images = build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(data)]))
    groups = collect_queries(images, ColorEmbedder(), [Query("red", "sw"), Query("rot")], per_group=20)
    assert {name: len(group.vectors) for name, group in groups.items()} == {
        "image": 20, "text": 1, "text/de": 6, "text/sw": 21
    }  # fmt: skip
    np.testing.assert_array_equal(groups["image"].vectors, images.embeddings[groups["image"].own])
    assert groups["text/sw"].own is None
    texts = build.index_in_memory(ColorEmbedder(), collect.find(TEXTS, [str(data)]), TEXTS)
    groups = collect_queries(texts, ColorEmbedder(), per_group=20)
    assert {name: len(group.vectors) for name, group in groups.items()} == {
        "image": 20, "text/de": 6, "text/sw": 20
    }  # fmt: skip


def test_an_index_gets_an_approximate_part_with_its_recall(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "load", lambda path: ColorEmbedder())
    monkeypatch.setattr(approximate, "SMALLEST_LIST", 5)  # 30 images in 4 lists
    index_with = functools.partial(commands.index, [str(data)], str(tmp_path / "index"), model="model", split="test")
    index_with(method="none")
    assert load_index(tmp_path / "index").approximate is None
    index_with(method=LISTS)  # the vectors are there: only the lists are added
    printed = capsys.readouterr().out
    assert "Recall@10 against exact search" in printed and "text/sw" in printed and "(too few to choose by)" in printed
    report = json.loads((tmp_path / "index/recall.json").read_text())
    assert report["groups"]["text/sw"] == {"queries": 30, "recall": 1.0} and report["lists"] == 4
    index = load_index(tmp_path / "index")
    assert index.approximate.effort == report["effort"]
    vectors = ColorEmbedder().encode_text(["red", "green"])
    for one, other in zip(index.search(vectors, 5), index.search(vectors, 5, use_exact=True)):
        np.testing.assert_array_equal(one, other)
    assert load_index(tmp_path / "index", use_exact=True).approximate is None
    index_with(method=LISTS)
    assert "there already" in capsys.readouterr().out
    (tmp_path / "queries.tsv").write_text("ga\tdearg\nga\tgorm\n", encoding="utf-8")
    before = (tmp_path / "index/approximate.faiss").read_bytes()
    index_with(method=LISTS, queries_file=str(tmp_path / "queries.tsv"))  # measured, not built, again
    assert json.loads((tmp_path / "index/recall.json").read_text())["groups"]["text/ga"]["queries"] == 2
    assert (tmp_path / "index/approximate.faiss").read_bytes() == before
    records.write_records(
        data, records.IMAGE_TEXT, "test", [records.ImageTextRecord("x", png((9, 9, 9)), [], [], [])], 2
    )
    build.build_index(ColorEmbedder(), [str(data)], tmp_path / "index", split="test", update=True)
    assert load_index(tmp_path / "index").approximate is None  # it lacks the new image


def test_without_faiss_a_large_index_is_searched_exactly(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "load", lambda path: ColorEmbedder())
    monkeypatch.setattr(approximate, "SMALL", 10)
    monkeypatch.setitem(sys.modules, "faiss", None)
    commands.index([str(data)], str(tmp_path / "index"))
    assert "because faiss is not installed" in capsys.readouterr().out
    assert load_index(tmp_path / "index").approximate is None
    with pytest.raises(UserError, match="pip install"):
        commands.index([str(data)], str(tmp_path / "index"), method=LISTS)


def test_an_index_without_known_sentences_warns(data, tmp_path, monkeypatch, capsys):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(png((200, 80 * i, 10)))
    monkeypatch.setattr(commands, "load", lambda path: ColorEmbedder())
    commands.index([f"{tmp_path}/*.png"], str(tmp_path / "index"), method=LISTS)
    assert "not measured for sentences" in capsys.readouterr().err
