"""The language map against an independent computation, and the page of errors with known vectors."""

import csv
import io

import numpy as np
import pytest
from fake_embedder import FakeEmbedder
from page_reader import Page
from PIL import Image
from search_data import png

from mural_lite.errors import UserError
from mural_tf.analysis import errors, languages, queries
from mural_tf.analysis.languages import basis, family_of, laplacian_eigenmap, map_languages, svcca_matrix
from mural_tf.data import records


def independent_svcca(a, b, variance):
    """SVCCA by another way: principal components from the covariance, cosines of the angles between what they span."""

    def components(x):
        x = x - x.mean(0)
        values, vectors = np.linalg.eigh(x.T @ x)
        kept = 1 + np.argmax(np.cumsum(values[::-1]) >= variance * values.sum())
        return x @ vectors[:, -kept:]

    linalg = pytest.importorskip("scipy.linalg")  # which takes seconds to import
    return np.cos(linalg.subspace_angles(components(a), components(b))).mean()


def random_rows(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("variance", [0.5, 0.9, 0.99])
def test_svcca_equals_an_independent_computation(variance):
    shared, scales = random_rows(0, (200, 6)), np.linspace(3, 0.1, 12)
    a = (shared @ random_rows(1, (6, 12)) + random_rows(2, (200, 12))) * scales
    b = (shared @ random_rows(3, (6, 12)) + random_rows(4, (200, 12))) * scales[::-1]
    assert svcca_matrix([a, b], variance)[0, 1] == pytest.approx(independent_svcca(a, b, variance), abs=1e-8)


def test_svcca_knows_rotations_and_noise():
    a, (rotation, _) = random_rows(1, (2000, 5)), np.linalg.qr(random_rows(2, (5, 5)))
    matrix = svcca_matrix([a, 3 * a @ rotation + 7, random_rows(3, (2000, 5))])
    assert matrix[0, 1] == pytest.approx(1) and matrix[0, 2] == matrix[2, 0] < 0.1


def test_truncation_keeps_the_stated_variance():
    # Three orthogonal directions with variances 16, 4, 1 of 21: 0.75 needs one, 0.8 two, 0.96 three.
    left = np.linalg.qr(random_rows(2, (40, 4)))[0][:, :3]
    left, _ = np.linalg.qr(left - left.mean(0))
    assert [basis(left * [4, 2, 1], v).shape[1] for v in (0.75, 0.8, 0.96, 1.0)] == [1, 2, 3, 3]


@pytest.mark.parametrize("embeddings, variance, message", [
    (np.ones((10, 3)), 0.99, "All embeddings are equal"), (np.eye(10), 0.0, "must be in"),
    (np.eye(10), 0.99, "10 sentences are too few for the 9 directions"),
])  # fmt: skip
def test_bad_embeddings_are_named(embeddings, variance, message):
    with pytest.raises(ValueError, match=message):
        basis(embeddings, variance)


def test_eigenmap_separates_two_groups():
    pytest.importorskip("sklearn")
    group = np.repeat([0, 1], 5)
    similarity = np.where(group[:, None] == group, 0.9, 0.1) + 0.01 * np.random.default_rng(0).random((10, 10))
    points = laplacian_eigenmap((similarity + similarity.T) / 2)
    assert points.shape == (10, 2)
    assert (np.sign(points[:5, 0]) == np.sign(points[0, 0])).all()
    assert (np.sign(points[5:, 0]) == -np.sign(points[0, 0])).all()
    # The first direction is the eigenvector of the normalised Laplacian to its second smallest eigenvalue.
    weights = (similarity + similarity.T) / 2 * (1 - np.eye(10))
    degree = weights.sum(0)
    _, vectors = np.linalg.eigh(np.eye(10) - weights / np.sqrt(np.outer(degree, degree)))
    expected = vectors[:, 1] / np.sqrt(degree)
    assert abs(np.corrcoef(expected, points[:, 0])[0, 1]) == pytest.approx(1, abs=1e-6)


def test_families_of_the_benchmark_are_known():
    from mural_tf.demo.emoji import CORE

    assert all(family_of(language) != "other" for language in CORE)
    assert family_of("zh-Hant") == "Sino-Tibetan" and family_of("sr-Latn") == "Slavic" and family_of("xx") == "other"


class Related(FakeEmbedder):
    """Texts "en 7": languages share the sentence's vector, and en and de also a second one."""

    def encode_text(self, texts, **_):
        vectors = []
        for language, number in map(str.split, texts):
            group = 1 + int(language in ("en", "de"))
            vectors.append(np.concatenate([random_rows([int(number)], 3), random_rows([int(number), group], 3)]))
        return np.array(vectors) + 0.1 * random_rows(ord(texts[0][0]), (len(texts), 6))


def test_labels_cover_neither_each_other_nor_markers():
    random = np.random.default_rng(0)
    centres = np.concatenate([random.normal(place, 30, (40, 2)) for place in ((100, 100), (300, 200), (450, 350))])
    sizes = np.array([(random.integers(8, 30), languages.LABEL) for _ in centres])
    middles = centres + languages.label_offsets(centres, sizes)
    apart = np.abs(middles[:, None] - middles) >= (sizes[:, None] + sizes) / 2 - 1e-6  # [L, L, 2]
    assert (apart.any(axis=-1) | np.eye(len(centres), dtype=bool)).all()
    assert (np.abs(middles[:, None] - centres) >= sizes[:, None] / 2 + languages.MARKER - 1e-6).any(axis=-1).all()
    ((right, up),) = languages.label_offsets(np.zeros((1, 2)), np.array([(10, 9)]))
    assert 0 < right < 15 and up == 0  # beside its marker


def write_talks(folder, count):
    for language in ("de", "en", "sw", "zu"):
        (folder / f"talk.{language}.txt").write_text("".join(f"{language} {i}\n" for i in range(count)))


def test_map_is_written_whole(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    write_talks(tmp_path, 80)
    chosen, matrix = map_languages(Related(), tmp_path, "", [], tmp_path / "map")
    assert chosen == ["de", "en", "sw", "zu"]
    assert matrix[0, 1] > matrix[0, 2] and matrix[2, 3] > matrix[0, 3]
    rows = list(csv.reader((tmp_path / "map" / "similarity.csv").open()))
    assert rows[0] == ["language", *chosen] and float(rows[1][2]) == pytest.approx(matrix[0, 1], abs=1e-6)
    points = list(csv.DictReader((tmp_path / "map" / "map.csv").open()))
    assert [row["family"] for row in points] == ["Germanic", "Germanic", "Bantu", "Bantu"]
    picture = Image.open(tmp_path / "map" / "languages.png")
    assert picture.width > 800 and len(picture.convert("RGB").getcolors(100_000)) > 10
    drawing = (tmp_path / "map" / "languages.svg").read_text()
    assert drawing.lstrip().startswith("<?xml") and "Germanic" in drawing
    assert not list((tmp_path / "map").glob("*.partial"))
    assert "de       en 0.9" in capsys.readouterr().out


def test_too_few_sentences_say_what_to_do(tmp_path):
    write_talks(tmp_path, 6)
    with pytest.raises(UserError, match="too few.*All 4 languages share 6 sentences; fewer --languages"):
        map_languages(Related(), tmp_path, "", [], tmp_path / "map")


# Errors. Images are PNGs of one colour; their vectors follow from the colour.
AXES = {(255, 0, 0): [1, 0, 0], (0, 255, 0): [0, 1, 0], (0, 0, 255): [0, 0, 1]}
RIGHT = {"red <b>": [1, 0, 0], "crimson": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}
WRONG = {**RIGHT, "green": [0, 0.1, 1], "blue": [1, 0, 0.5]}


class Colours(FakeEmbedder):
    def encode_image(self, images, on_error="raise", **_):
        colours = [Image.open(io.BytesIO(image)).getpixel((0, 0)) for image in images]
        return np.array([AXES[c] for c in colours], np.float32), np.arange(len(images))


@pytest.fixture
def page_of(tmp_path):
    """A function that makes the page of models and other arguments."""
    captions = [["red <b>", "crimson"], ["green"], ["blue"]]
    rows = [records.ImageTextRecord(f"i{k}", png(colour, (20, 10)), of, ["en"] * len(of), [""] * len(of))
            for k, (colour, of) in enumerate(zip(AXES, captions))]  # fmt: skip
    records.write_records(tmp_path, records.IMAGE_TEXT, "test", rows)

    def made(show="wrong", **models):
        embedders = {name: Colours(vectors) for name, vectors in models.items()}
        path = errors.write_error_page(embedders, tmp_path, "test", [], tmp_path / "new/p.html", show=show)
        return Page(path.read_text(encoding="utf-8"))

    return made


def test_page_shows_wrong_queries_with_the_right_answer_marked(page_of):
    page = page_of(**{"<mine>": WRONG})
    # "green" finds blue first, then green: rank 2. "blue" finds red (1), then blue (.5): rank 2.
    assert "en, text to image: 2 of 4 queries" in page.text and page.text.count("rank 2") >= 2
    assert "<mine>" in page.text and "red <b>" in page.text and not page.all("b")
    assert {of["class"] for of in page.all("li") if "class" in of} == {"right"} and len(page.all("img")) > 6
    assert {"class": "mark"} in page.all("span") and {"class": "text", "dir": "auto", "lang": "en"} in page.all("span")
    assert [of["href"] for of in page.all("a")] == [f"#{of['id']}" for of in page.all("h2")] and len(
        page.all("h2")
    ) == 2


def test_two_models_side_by_side_and_where_the_first_is_behind(page_of):
    page = page_of(show="worse", a=WRONG, b=RIGHT)
    assert "query a b" in page.text and len(page.all("th")) == 2 * 3
    assert "rank 2" in page.text and "rank 1" in page.text
    assert "text to image: 0 of 4 queries" in page_of(b=RIGHT).text  # it gets nothing wrong
    assert "text to image: 4 of 4 queries" in page_of(show="all", b=RIGHT).text


def test_both_directions_by_hand():
    images, owners = np.array(list(AXES.values()), np.float32), np.array([0, 0, 1, 2])
    texts = np.array(list(WRONG.values()), np.float32)
    searched = queries.find_queries("image_to_text", [(images, texts)], owners)
    # The red image: its captions score 1 and 1, "blue" scores 1 too: the third of a tie with two right ones above it.
    assert searched[0].right == {0, 1} and searched[0].found[0].rank == 1.5
    assert searched[1].right == {2} and searched[1].found[0].rank == 1  # green scores .1, all others 0
    assert searched[2].found[0].rank == 2 and searched[2].found[0].top[:2] == [2, 3]  # blue: "green" 1, "blue" .5


def test_misses_are_shown_from_near_to_far():
    made = [queries.Searched(n, {0}, [queries.Found([], float(rank))]) for n, rank in enumerate([1, 9, 2, 1.5, 30, 4])]
    shown = queries.choose_queries(made, 3, "wrong")
    assert [query.found[0].rank for query in shown] == [1.5, 4, 30]
