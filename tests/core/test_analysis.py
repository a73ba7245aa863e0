"""The language map against an independent computation, and the page of errors with known vectors."""

import csv
import html.parser
import io

import numpy as np
import pytest
from fake_embedder import FakeEmbedder
from PIL import Image

from mural_tf.analysis import errors, languages
from mural_tf.analysis.languages import basis, family_of, laplacian_eigenmap, map_languages, svcca_matrix
from mural_tf.data import records
from mural_tf.errors import UserError

linalg = pytest.importorskip("scipy.linalg")


def svcca(a, b, variance=0.99):
    return svcca_matrix([a, b], variance)[0, 1]


def independent_svcca(a, b, variance):
    """SVCCA by another way: principal components from the covariance, canonical correlations as eigenvalues."""

    def components(x):
        x = x - x.mean(0)
        values, vectors = np.linalg.eigh(x.T @ x)
        values, vectors = values[::-1], vectors[:, ::-1]
        kept = 1
        while values[:kept].sum() < variance * values.sum():
            kept += 1
        return x @ vectors[:, :kept]

    x, y = components(a), components(b)
    cross, of_x, of_y = x.T @ y, x.T @ x, y.T @ y
    # Canonical correlations squared solve  C Syy^-1 C^T u = r^2 Sxx u.
    squared = linalg.eigh(cross @ np.linalg.solve(of_y, cross.T), of_x, eigvals_only=True)
    squared = np.sort(squared)[::-1][: min(x.shape[1], y.shape[1])]
    return np.sqrt(np.clip(squared, 0, 1)).mean()


@pytest.mark.parametrize("variance", [0.5, 0.9, 0.99])
def test_svcca_equals_an_independent_computation(variance):
    random = np.random.default_rng(0)
    shared = random.standard_normal((200, 6))
    scales = np.linspace(3, 0.1, 12)
    a = (shared @ random.standard_normal((6, 12)) + random.standard_normal((200, 12))) * scales
    b = (shared @ random.standard_normal((6, 12)) + random.standard_normal((200, 12))) * scales[::-1]
    assert svcca(a, b, variance) == pytest.approx(independent_svcca(a, b, variance), abs=1e-8)


def test_svcca_knows_rotations_and_noise():
    random = np.random.default_rng(1)
    a = random.standard_normal((2000, 5))
    rotation, _ = np.linalg.qr(random.standard_normal((5, 5)))
    assert svcca(a, 3 * a @ rotation + 7) == pytest.approx(1)
    assert svcca(a, random.standard_normal((2000, 5))) < 0.1
    matrix = svcca_matrix([a, a @ rotation, random.standard_normal((2000, 5))])
    assert matrix[0, 1] == pytest.approx(1) and matrix[0, 2] == matrix[2, 0] < 0.1


def test_truncation_keeps_the_stated_variance():
    # Three orthogonal directions with variances 16, 4, 1 of 21: 0.75 needs one, 0.8 two, 0.96 three.
    left, _ = np.linalg.qr(np.random.default_rng(2).standard_normal((40, 4)))
    left = left[:, :3] - left[:, :3].mean(0)
    left, _ = np.linalg.qr(left)
    embeddings = left * [4, 2, 1]
    assert [basis(embeddings, v).shape[1] for v in (0.75, 0.8, 0.96, 1.0)] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    "embeddings, variance, message",
    [
        (np.ones((10, 3)), 0.99, "All embeddings are equal"),
        (np.eye(10), 0.99, "10 sentences are too few for the 9 directions"),
        (np.eye(10), 0.0, "must be in"),
    ],
)
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
    from mural_tf.data.datasets.emoji.names import CORE

    assert all(family_of(language) != "other" for language in CORE)
    assert family_of("zh-Hant") == "Sino-Tibetan" and family_of("sr-Latn") == "Slavic" and family_of("xx") == "other"


class Related(FakeEmbedder):
    """Texts "en 7": languages share the sentence's vector, and en and de also a second one."""

    def encode_text(self, texts, **_):
        vectors = []
        for text in texts:
            language, number = text.split()
            group = 1 + int(language in ("en", "de"))
            shared = np.random.default_rng(int(number)).standard_normal(3)
            vectors.append(np.concatenate([shared, np.random.default_rng([int(number), group]).standard_normal(3)]))
        noise = np.random.default_rng(ord(texts[0][0])).standard_normal((len(texts), 6))
        return np.array(vectors) + 0.1 * noise


def test_labels_cover_neither_each_other_nor_markers():
    random = np.random.default_rng(0)
    centres = np.concatenate([random.normal(place, 30, (40, 2)) for place in ((100, 100), (300, 200), (450, 350))])
    sizes = np.array([(random.integers(8, 30), languages.LABEL) for _ in centres])
    middles = centres + languages.label_offsets(centres, sizes)
    apart = np.abs(middles[:, None] - middles) >= (sizes[:, None] + sizes) / 2 - 1e-6  # [L, L, 2]
    assert (apart.any(axis=-1) | np.eye(len(centres), dtype=bool)).all()
    assert (np.abs(middles[:, None] - centres) >= sizes[:, None] / 2 + languages.MARKER - 1e-6).any(axis=-1).all()
    alone = languages.label_offsets(np.array([[0.0, 0.0]]), [(10, 9)])
    assert 0 < alone[0][0] < 15 and alone[0][1] == 0  # beside its marker


def test_map_is_written_whole(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    languages = ["de", "en", "sw", "zu"]
    for language in languages:
        (tmp_path / f"talk.{language}.txt").write_text("\n".join(f"{language} {i}" for i in range(80)) + "\n")
    chosen, matrix = map_languages(Related(), tmp_path, "", [], tmp_path / "map")
    assert chosen == languages
    assert matrix[0, 1] > matrix[0, 2] and matrix[2, 3] > matrix[0, 3]
    rows = list(csv.reader((tmp_path / "map" / "similarity.csv").open()))
    assert rows[0] == ["language", *languages] and float(rows[1][2]) == pytest.approx(matrix[0, 1], abs=1e-6)
    points = list(csv.DictReader((tmp_path / "map" / "map.csv").open()))
    assert [row["family"] for row in points] == ["Germanic", "Germanic", "Bantu", "Bantu"]
    picture = Image.open(tmp_path / "map" / "languages.png")
    assert picture.width > 800 and len(picture.convert("RGB").getcolors(100_000)) > 10
    drawing = (tmp_path / "map" / "languages.svg").read_text()
    assert drawing.lstrip().startswith("<?xml") and "Germanic" in drawing
    assert not list((tmp_path / "map").glob("*.partial"))
    assert "de       en 0.9" in capsys.readouterr().out


def test_too_few_sentences_say_what_to_do(tmp_path):
    for language in ("de", "en", "sw", "zu"):
        (tmp_path / f"talk.{language}.txt").write_text("\n".join(f"{language} {i}" for i in range(6)) + "\n")
    with pytest.raises(UserError, match="too few.*All 4 languages share 6 sentences; fewer --languages"):
        map_languages(Related(), tmp_path, "", [], tmp_path / "map")


# Errors. Images are PNGs of one colour; their vectors follow from the colour.
AXES = {(255, 0, 0): [1, 0, 0], (0, 255, 0): [0, 1, 0], (0, 0, 255): [0, 0, 1]}


class Colours(FakeEmbedder):
    def encode_image(self, images, on_error="raise", **_):
        colours = [Image.open(io.BytesIO(image)).getpixel((0, 0)) for image in images]
        return np.array([AXES[c] for c in colours], np.float32), np.arange(len(images))


@pytest.fixture
def coloured(tmp_path):
    def png(colour):
        buffer = io.BytesIO()
        Image.new("RGB", (200, 100), colour).save(buffer, "PNG")
        return buffer.getvalue()

    captions = [["red <b>", "crimson"], ["green"], ["blue"]]
    rows = [
        records.ImageTextRecord(f"i{k}", png(colour), captions[k], ["en"] * len(captions[k]), [""] * len(captions[k]))
        for k, colour in enumerate(AXES)
    ]
    records.write_records(tmp_path, records.IMAGE_TEXT, "test", rows)
    right = {"red <b>": [1, 0, 0], "crimson": [1, 0, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}
    wrong = {**right, "green": [0, 0.1, 1], "blue": [1, 0, 0.5]}
    return tmp_path, Colours(wrong), Colours(right)


def read_page(path):
    text = path.read_text(encoding="utf-8")

    class Balanced(html.parser.HTMLParser):
        open_tags = []

        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "img"):
                self.open_tags.append(tag)

        def handle_endtag(self, tag):
            assert self.open_tags.pop() == tag

    parser = Balanced()
    parser.feed(text)
    assert not parser.open_tags
    return text


def test_page_shows_wrong_queries_with_the_right_answer_marked(coloured):
    folder, model, _ = coloured
    text = read_page(errors.write_error_page({"<mine>": model}, folder, "test", [], folder / "page.html"))
    assert "&lt;mine&gt;" in text and "<mine>" not in text
    # "green" finds blue first, then green: rank 2. "blue" finds red (1), then blue (.5): rank 2.
    assert "en, text to image: 2 of 4 queries" in text
    assert text.count("rank 2") >= 2 and 'class="rank found"' in text and "class=right" in text
    assert "red &lt;b&gt;" in text and "red <b>" not in text  # a caption among those found is escaped
    assert text.count("data:image/jpeg;base64,") > 6


def test_two_models_side_by_side_and_where_the_first_is_behind(coloured):
    folder, model, other = coloured
    page = errors.write_error_page({"a": model, "b": other}, folder, "test", ["en"], folder / "p.html", show="worse")
    text = read_page(page)
    assert "<th>a</th><th>b</th>" in text and "rank 2" in text and "rank 1" in text
    text = read_page(errors.write_error_page({"b": other}, folder, "test", ["en"], folder / "p.html"))
    assert "text to image: 0 of 4 queries" in text  # it gets nothing wrong
    text = read_page(errors.write_error_page({"b": other}, folder, "test", ["en"], folder / "p.html", show="all"))
    assert "text to image: 4 of 4 queries" in text


def test_both_directions_by_hand(coloured):
    folder, model, _ = coloured
    images = np.array(list(AXES.values()), np.float32)
    texts = model.encode_text(["red <b>", "crimson", "green", "blue"])
    owners = np.array([0, 0, 1, 2])
    queries = errors.find_queries("image_to_text", [(images, texts)], owners)
    # The red image: its captions score 1 and 1, "blue" scores 1 too: the third of a tie with two right ones above it.
    assert queries[0].right == {0, 1} and queries[0].found[0].rank == 1.5
    assert queries[1].right == {2} and queries[1].found[0].rank == 1  # green scores .1, all others 0
    assert queries[2].found[0].rank == 2 and queries[2].found[0].top[:2] == [2, 3]  # blue: "green" 1, "blue" .5


def test_misses_are_shown_from_near_to_far():
    made = [errors.Query(n, {0}, [errors.Found([], float(rank))]) for n, rank in enumerate([1, 9, 2, 1.5, 30, 4])]
    shown = errors.choose_queries(made, 3, "wrong")
    assert [query.found[0].rank for query in shown] == [1.5, 4, 30]
