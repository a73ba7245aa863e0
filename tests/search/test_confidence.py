"""How sure answers are: the regression, what it learns of two made-up languages, files, and what is shown."""

import functools
import json
import zlib

import numpy as np
import pytest
from search_data import ColorEmbedder, png

from mural_tf.data import records
from mural_tf.errors import UserError
from mural_tf.search import commands, confidence, ranking
from mural_tf.search.index import Index, load_index, take
from mural_tf.search.items import IMAGES, Filter, Item
from mural_tf.search.queries import Query, page_html, search, to_json, to_lines
from mural_tf.search.server import search_page

SIZE = 16
SYLLABLES = {"aa": ("ka", "lo", "mi", "ne", "tu", "ra"), "bb": ("бо", "жи", "ду", "ха", "ше", "ля")}
BLUR = {"aa": 1.6, "bb": 6.0}  # how badly the model knows a language: its worst sentences


class World:
    """Texts name the number of a picture in syllables; a model that knows the language aa well and bb badly."""

    path, step = "world", 1

    def __init__(self):
        self.pictures = unit(np.random.default_rng(0).standard_normal((600, SIZE)))
        self.numbers = {self.caption(language, n): (language, n) for language in SYLLABLES for n in range(600)}

    def caption(self, language, number):
        digits = [number // 36 % 6, number // 6 % 6, number % 6, number // 216]
        return "".join(SYLLABLES[language][digit] for digit in digits)

    def encode_text(self, texts, progress=None):
        return unit(np.array([self.vector(text) for text in texts]).reshape(-1, SIZE))

    def vector(self, text):
        random = np.random.default_rng(zlib.crc32(text.encode()))
        if text not in self.numbers:
            return random.standard_normal(SIZE)
        language, number = self.numbers[text]
        return self.pictures[number] + random.uniform(0, BLUR[language]) * unit(random.standard_normal(SIZE))

    def encode_image(self, images):
        return self.pictures[[0] * len(images)]

    def index(self, numbers):
        items = [Item(f"{n}", captions=tuple((a, self.caption(a, n)) for a in SYLLABLES)) for n in numbers]
        return Index(items, self.pictures[numbers], take(self), IMAGES)


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@functools.lru_cache(maxsize=1)
def world():
    """The model, and an index that has learnt from other pictures."""
    model = World()
    index = model.index(np.arange(300, 600))
    index.confidence = confidence.learn(index, model, model.index(np.arange(300)))
    return model, index


def ask(language):
    """Returns of the captions of the index in a language: whether the first answer is right, and how sure it is."""
    model, index = world()
    texts = [model.caption(language, n) for n in range(300, 600)]
    results = search(index, model, [Query(text) for text in texts], 1)
    right = np.array([result.hits[0].row == row for row, result in enumerate(results)])
    return right, np.array([[result.sure.probability, result.sure.precision] for result in results])


def test_probabilities_are_those_of_each_language():
    for language, bounds in (("aa", (0.5, 1.0)), ("bb", (0.1, 0.5))):
        right, sure = ask(language)
        assert bounds[0] < right.mean() < bounds[1]
        assert abs(sure[:, 0].mean() - right.mean()) < 0.08
        halves = np.array_split(np.argsort(sure[:, 0]), 2)
        assert right[halves[1]].mean() > right[halves[0]].mean() + 0.1


def test_the_demanded_precision_holds_in_each_language():
    for language in SYLLABLES:
        right, sure = ask(language)
        kept = sure[:, 1] >= 0.8
        assert kept.sum() >= 20 and 0.7 <= right[kept].mean() <= 1.0, language
        assert (sure[:, 1] >= sure[:, 0] - 0.01).all()  # of answers at least as sure


def test_what_means_nothing_is_refused():
    model, index = world()
    strange = ["ᏣᎳᎩ ᎦᏬᏂ", "தமிழ்", "12345", "!?", "", "🙂"]
    noise = confidence.noise_like(list(model.numbers), [""] * len(model.numbers), 50)
    asked, _ = confidence.ask(index, strange + noise, model.encode_text(strange + noise))
    sure = index.confidence.judge(asked)
    assert [one.probability for one in sure[:6]] == [0.0] * 6
    assert np.mean([not one.reaches(0.6) for one in sure]) >= 0.95


@pytest.mark.parametrize("probability, precision, shown", [(0.3, 0.6, True), (0.29, 0.9, False), (0.5, 0.59, False)])
def test_what_is_shown_is_half_as_sure_itself(probability, precision, shown):
    assert confidence.Sureness(probability, precision).reaches(0.6) == shown


def test_answers_do_not_depend_on_their_company():
    model, index = world()
    texts = [model.caption("aa", n) for n in range(300, 310)]
    together = [result.sure for result in search(index, model, [Query(text) for text in texts], 3)]
    apart = [search(index, model, [Query(text)], 20)[0].sure for text in texts]
    for a, b in zip(together, apart):
        assert a.probability == pytest.approx(b.probability, abs=1e-5) and a.precision == pytest.approx(b.precision)


def test_a_picture_outside_of_the_index_takes_part_in_its_own_search():
    model = World()
    near, far = model.pictures[:1], -model.pictures[:1]
    index, pictures = model.index(np.arange(20, 50)), model.index(np.arange(1))
    model.encode_text = lambda texts, progress=None: near if texts == [model.caption("aa", 0)] else far
    found = ranking.ask_as_strangers(index, pictures, model)
    others = ranking.rank_all(index, ["a", "b"], np.concatenate([near, far]), None, rank="pictures", count=10)
    assert [one.target for one in found] == [-1, -1] and found[0].ranked.rows[0] == -1
    assert found[0].ranked.rows[1:].tolist() == others[0].rows.tolist()
    assert found[1].ranked.rows.tolist() == [*others[1].rows.tolist(), -1]  # the farthest of all
    there = ranking.ask_as_strangers(model.index(np.arange(30)), pictures, model)  # it takes part once
    assert there[0].target == there[0].ranked.rows[0] == 0 and len(there[0].ranked.rows) == 10


def test_sentences_with_known_answers_teach_as_captions_do():
    model, index = world()
    queries = [Query(model.caption(a, n), a, right=(f"{n}",)) for n in range(300, 500) for a in SYLLABLES]
    learnt = confidence.learn(index, model, queries=[*queries, Query("no answer"), Query(image="x", right=("300",))])
    assert (learnt.captions, learnt.images) == (400, 200)
    texts = [model.caption("aa", n) for n in range(500, 600)]
    asked, rows = confidence.ask(index, texts, model.encode_text(texts))
    sure = learnt.judge(asked)
    assert abs(np.mean([one.probability for one in sure]) - np.mean(rows == np.arange(200, 300))) < 0.15


@pytest.mark.parametrize("numbers, message", [
    (range(40), "80 captions of 40 pictures are too few: .* 200 of 50 pictures"), ((), "0 captions of 0 pictures"),
])  # fmt: skip
def test_too_few_captions_teach_nothing(numbers, message):
    model, index = world()
    with pytest.raises(UserError, match=message):
        confidence.learn(index, model, model.index(np.array(numbers)) if numbers else None)


def test_answers_that_are_all_wrong_teach_nothing():
    model, index = world()
    queries = [Query(model.caption("aa", n), right=("nothing", str(n))) for n in range(250)]
    with pytest.raises(UserError, match="0 of 250 captions found their picture first, at least 30 must."):
        confidence.learn(index, model, queries=queries)


# --- its parts


def test_the_regression_finds_the_optimum():
    random = np.random.default_rng(0)
    columns = np.concatenate([np.ones((300, 1)), random.standard_normal((300, 4)) * [1, 5, 0.1, 1]], axis=1)
    right = (random.random(300) < confidence.sigmoid(columns @ [-1, 1, -0.5, 2, 0])).astype(float)
    weights = confidence.fit_logistic(columns, right, 3.0)
    # The penalised likelihood is concave: it has one optimum, where its gradient is 0. The constant is not penalised.
    gradient = columns.T @ (1 / (1 + np.exp(-columns @ weights)) - right) + [0, 3, 3, 3, 3] * weights
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    np.testing.assert_allclose(weights[:3], [-1, 1, -0.5], atol=0.5)


def test_the_regression_bears_what_can_be_told_apart():
    columns = np.stack([np.ones(40), np.repeat([-1e3, 1e3], 20)], axis=1)
    weights = confidence.fit_logistic(columns, np.repeat([0.0, 1.0], 20), 1e-3)
    assert np.isfinite(weights).all() and weights[1] > 0
    assert confidence.sigmoid(np.array([-1e6, 0, 1e6])).tolist() == [0, 0.5, 1]


def test_precision_is_the_mean_of_what_is_as_sure():
    probability, shares = np.array([0.9, 0.2, 0.7]), np.array([100.0, 100.0, 300.0])
    table = dict(zip(confidence.GRID.round(2), confidence.precision_of(probability, shares)))
    assert table[0.5] == pytest.approx((90 + 210 + 0.5) / 401)
    assert table[0.8] == pytest.approx((90 + 0.8) / 101)
    assert table[1.0] == 1.0  # nothing is as sure: its own word counts
    none = confidence.precision_of(probability, np.zeros(3))
    np.testing.assert_allclose(none, confidence.GRID)


@pytest.mark.parametrize("text, share", [
    ("red heart", 1), ("ред", 0), ("ab да", 0.5), ("123", 0), ("", 0), ("é e\u0301", 1), ("\ud800", 0),
])  # fmt: skip
def test_letters_of_known_scripts_are_counted(text, share):
    assert confidence.known_share(text, ("LATIN", "COMBINING")) == share


def test_noise_keeps_lengths_and_is_made_of_the_letters_of_its_kind():
    texts, kinds = ["red heart", "красное сердце", "??"], ["en", "ru", "x"]
    noise = confidence.noise_like(texts, kinds, 40)
    assert noise == confidence.noise_like(texts, kinds, 40) and not set(texts[:2]) & set(noise)
    shapes = {tuple(map(len, text.split())): set(text) for text in texts}
    assert all(set(text) <= shapes[tuple(map(len, text.split()))] for text in noise)


# --- files


def test_a_file_gives_back_what_was_learnt(tmp_path):
    model, index = world()
    confidence.save(tmp_path, index.confidence)
    again = confidence.load(tmp_path, len(index), SIZE)
    texts = [model.caption("bb", 301), "noise"]
    asked, _ = confidence.ask(index, texts, model.encode_text(texts))
    assert again.judge(asked) == index.confidence.judge(asked)
    assert (again.captions, again.images, again.scripts) == (600, 300, ("CYRILLIC", "LATIN"))
    for fits, other in ((329, 331), (271, 269)):  # it grew, or shrank, by more than a tenth
        assert confidence.load(tmp_path, fits, SIZE) and confidence.load(tmp_path, other, SIZE) is None
    assert confidence.load(tmp_path / "none", 300, SIZE) is None


def test_a_damaged_file_is_named(tmp_path):
    _, index = world()
    confidence.save(tmp_path, index.confidence)
    with pytest.raises(UserError, match="confidence.npz is damaged .known is .600, 16., expected .*delete it"):
        confidence.load(tmp_path, 300, SIZE + 1)
    path = tmp_path / confidence.FILE
    whole = path.read_bytes()
    for data in (whole[:1000], b"", b"x" * 100, whole[: len(whole) // 2] + b"\0" * 100):
        path.write_bytes(data)
        with pytest.raises(UserError, match="confidence.npz is damaged"):
            confidence.load(tmp_path, 300, SIZE)
    np.savez(path, format=np.array([{}], dtype=object))  # a pickle
    with pytest.raises(UserError, match="confidence.npz is damaged"):
        confidence.load(tmp_path, 300, SIZE)


# --- what is shown


def surest_and_least(model):
    _, sure = ask("bb")
    order = np.argsort(sure[:, 1])
    return [Query(model.caption("bb", 300 + int(order[place]))) for place in (-1, 0)]


def test_what_is_not_sure_enough_is_left_out():
    model, index = world()
    surest, least = surest_and_least(model)
    found = search(index, model, [surest, least], 3, least_precision=0.6)
    assert [(len(result.hits), result.left_out) for result in found] == [(3, False), (0, True)]
    shown, refused = json.loads(to_json(index, found))["results"]
    assert 0 <= shown["probability"] <= shown["precision"] <= 1 and "left_out" not in shown
    assert refused["left_out"] and refused["hits"] == [] and refused["precision"] < 0.6
    assert "the first is right: " in to_lines(index, found[0])[0]
    assert len(to_lines(index, found[1])) == 1 and "none sure enough" in to_lines(index, found[1])[0]
    page = page_html(index, found)
    assert page.count("<p>The first is right: ") == 1 and page.count("<p>None sure enough") == 1


def test_images_and_filtered_answers_are_not_judged(tmp_path):
    model, index = world()
    (tmp_path / "a.png").write_bytes(b"")
    found = search(index, model, [Query(image=str(tmp_path / "a.png")), Query("kalo")], 2, least_precision=1.0)
    assert found[0].sure is None and len(found[0].hits) == 2 and not found[0].left_out
    assert found[1].left_out
    items = [Item(f"{n}", fields={"brand": "acme"}) for n in range(300, 600)]
    other = Index(items, index.embeddings, index.model, IMAGES)
    other.confidence = index.confidence
    (result,) = search(other, model, [Query("kalo")], 2, [Filter("brand", "acme")])
    assert result.sure is None and "probability" not in to_json(other, [result])


def test_the_page_answers_what_is_sure_enough():
    model, index = world()
    surest, least = surest_and_least(model)
    shown = search_page.answer(index, model, surest.text, 3, least_precision=0.6)
    assert len(shown["hits"]) == 3 and shown["precision"] >= 0.6 and "left_out" not in shown
    refused = search_page.answer(index, model, least.text, 3, least_precision=0.6)
    assert refused["hits"] == [] and refused["left_out"]
    assert len(search_page.answer(index, model, least.text, 3)["hits"]) == 3
    assert "probability" not in search_page.answer(index, model, like=5)
    assert 'name="least_precision"' in search_page.page_html(knows_how_sure=True)
    assert 'name="least_precision"' not in search_page.page_html() and "{{" not in search_page.page_html()


@pytest.mark.parametrize("known, precision, message", [
    (True, 1.5, "between 0 and 1"), (True, float("nan"), "between 0 and 1"), (False, 0.5, "does not know how sure"),
])  # fmt: skip
def test_the_page_names_what_cannot_be_demanded(known, precision, message):
    model, index = world()
    with pytest.raises(ValueError, match=message):
        chosen = index if known else model.index(np.arange(30))
        search_page.answer(chosen, model, "kalo", least_precision=precision)


# --- commands


@pytest.fixture
def data(tmp_path):
    """Captioned pictures in the splits test and dev; the caption of the grey one says that it is red."""
    colors = {"red": (250, 0, 0), "green": (0, 250, 0), "purple": (150, 0, 200), "grey": (90, 90, 90)}
    for split in ("test", "dev"):
        rows = [records.ImageTextRecord(a, png(b), [a.replace("grey", "rot")], ["en"], [""]) for a, b in colors.items()]
        records.write_records(tmp_path / "data", records.IMAGE_TEXT, split, rows)
    return str(tmp_path / "data")


@pytest.fixture
def index_command(monkeypatch):
    monkeypatch.setattr(commands, "load", lambda model: ColorEmbedder())
    for name in ("LEAST_CAPTIONS", "LEAST_IMAGES", "LEAST_RIGHT"):
        monkeypatch.setattr(confidence, name, 1)
    return functools.partial(commands.index, model="model", split="test")


def test_an_index_learns_from_the_dev_split_of_its_data(data, tmp_path, capsys, index_command, monkeypatch):
    output = str(tmp_path / "index")
    index_command([data], output)
    assert "learnt from 4 captions of 4 pictures" in capsys.readouterr().out
    assert load_index(output).confidence.count == 4
    monkeypatch.setattr(confidence, "learn", None)
    index_command([data], output)  # a complete one is opened as it is
    assert load_index(output).confidence.count == 4


@pytest.mark.parametrize("count, stays", [(30, True), (5, False)])
def test_what_was_learnt_survives_a_small_update(data, tmp_path, index_command, count, stays):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for n in range(count):
        (folder / f"{n}.png").write_bytes(png((8 * n, 0, 250 - 8 * n)))
    output = str(tmp_path / "index")
    index_command([str(folder)], output, split="", calibrate=data)
    (folder / "0.png").unlink()
    (folder / "new.png").write_bytes(png((0, 250, 0)))
    index_command([str(folder)], output, split="", update=True, prune=True)
    made = load_index(output)
    assert made.count == count and (made.confidence is not None) == stays


def test_an_index_without_captions_refuses_a_demand(data, tmp_path, capsys, index_command):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "red.png").write_bytes(png((250, 0, 0)))
    output = str(tmp_path / "index")
    index_command([str(tmp_path / "pictures")], output, split="")
    assert "Warning" not in capsys.readouterr().err  # it has no captions that it could have learnt from
    with pytest.raises(UserError, match="least_precision=0.6: the index does not know .*--calibrate=DATA"):
        commands.query(output, [Query("red")], least_precision=0.6)
    index_command([str(tmp_path / "pictures")], output, split="", calibrate=data)
    assert "learnt from 4 captions of 4 pictures" in capsys.readouterr().out
    with pytest.raises(UserError, match="with a filter, sort"):
        commands.query(output, [Query("red")], least_precision=0.6, sort="a")


def test_only_answers_of_images_are_judged(data, tmp_path, index_command):
    with pytest.raises(UserError, match="--kind=images"):
        index_command([data], str(tmp_path / "index"), kind="texts", calibrate=data)


def test_queries_left_out_are_counted(data, tmp_path, capsys, index_command):
    output = str(tmp_path / "index")
    index_command([data], output)
    capsys.readouterr()
    found = commands.query(output, [Query("red"), Query("красный")], model=str(tmp_path), least_precision=0.01)
    assert [result.left_out for result in found] == [False, True]
    assert "Left out: 1 of 2 queries" in capsys.readouterr().out
