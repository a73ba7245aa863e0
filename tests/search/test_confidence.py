"""How sure answers are: what is asked to learn it, the regression, what it learns of two made-up languages, files."""

import dataclasses
import functools
import json
import zlib

import numpy as np
import pytest
from refusals import assert_refused
from search_data import png, ranked, unit, with_captions

from mural_tf.search import asked_captions, confidence
from mural_tf.search.index import Index, take_fingerprint
from mural_tf.search.items import IMAGES, Filter, Item
from mural_tf.search.queries import Query, search, to_json
from mural_tf.search.ranking import DEFAULT_WEIGHTS

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
        return Index(items, self.pictures[numbers], take_fingerprint(self), IMAGES)


@functools.lru_cache(maxsize=1)
def world():
    """The model, and an index of pictures that no words describe, which has learnt from other pictures."""
    model = World()
    index = Index([Item(f"p{n}") for n in range(300, 600)], model.pictures[300:], take_fingerprint(model), IMAGES)
    index.confidence = confidence.learn(index, model, asked_captions.ask(index, model.index(np.arange(300)), model))
    return model, index


def ask(language):
    """Returns of captions that no index holds: whether the first answer is right, and the results."""
    model, index = world()
    results = search(index, model, [Query(model.caption(language, n)) for n in range(300, 600)], 1)
    return np.array([result.hits[0].row == row for row, result in enumerate(results)]), results


def test_an_answer_that_seems_right_is_right_more_often():
    right, sure = {}, {}
    for language in SYLLABLES:
        right[language], results = ask(language)
        sure[language] = np.array([result.sure for result in results])
        halves = np.array_split(np.argsort(sure[language]), 2)
        assert right[language][halves[1]].mean() > right[language][halves[0]].mean() + 0.1
    assert sure["aa"].mean() > sure["bb"].mean() + 0.1
    # Half of what it learns from asks for what is not there, so it says less than what is right of these.
    assert right["aa"].mean() / 2 - 0.1 < sure["aa"].mean() < right["aa"].mean()


def test_what_means_nothing_does_not_fit():
    model, index = world()
    noise = confidence.noise_like(list(model.numbers), 200)
    assert noise == confidence.noise_like(list(model.numbers), 200) and not set(noise) & set(model.numbers)
    results = search(index, model, [Query(text) for text in noise], 3)
    assert np.mean([result.nothing_fits for result in results]) > 0.3 and len(results[0].hits) == 3
    right, results = ask("aa")
    assert np.mean([result.nothing_fits for result in np.array(results, object)[right]]) < 0.1
    (alone,) = search(index, model, [Query(model.caption("aa", 303))], 20)  # whatever else is asked
    assert abs(alone.sure - results[3].sure) < 1e-5


def test_images_and_filtered_answers_are_not_judged(tmp_path):
    model, index = world()
    (tmp_path / "a.png").write_bytes(png((250, 0, 0)))
    of_picture, of_text = search(index, model, [Query(image=str(tmp_path / "a.png")), Query("kalo")], 2)
    assert of_picture.sure is None and not of_picture.nothing_fits and 0 <= of_text.sure <= 1
    assert json.loads(to_json(index, [of_text]))["results"][0]["probability"] == round(of_text.sure, 4)
    items = [Item(f"{n}", fields={"brand": "acme", "price": f"{n}"}) for n in range(300, 600)]
    other = Index(items, index.embeddings, index.model, IMAGES)
    other.confidence = index.confidence
    for options in ({"filters": [Filter("brand", "acme")]}, {"rank": "pictures"}, {"sort": "price"}):
        (result,) = search(other, model, [Query("kalo")], 2, **options)
        assert result.sure is None and "probability" not in to_json(other, [result])
    (whole,) = search(other, model, [Query("acme")], 2)
    assert whole.sure == 1.0  # a value of a field, whatever the model knows of it


def test_what_is_measured():
    pictures = {7: 0.5, 3: 0.9, **{row: 0.1 for row in range(20, 40)}}  # as if 7 were the better one
    found = ranked([7, 3], pictures=pictures, texts={7: 0.8, 3: 0.6, 4: 0.1}, words={3: 1.0})
    (measured,) = confidence.measure(["a bc"], [found])
    expected = [0.5, 0.5 - (0.9 + 8 * 0.1) / 9, 0.8, 0.2, 0.0, -1.0, 2, np.log(5), np.log(3)]
    np.testing.assert_allclose(measured, expected)
    assert confidence.measure(["", "x"], [ranked([]), ranked([1], words={1: 0.5})])[1, 4:7].tolist() == [0.5, 0.5, 1]


def test_a_regression_finds_the_optimum():
    random = np.random.default_rng(0)
    columns = np.concatenate([np.ones((300, 1)), random.standard_normal((300, 4)) * [1, 5, 0.1, 1]], axis=1)
    right = (random.random(300) < confidence.sigmoid(columns @ [-1, 1, -0.5, 2, 0])).astype(float)
    weights = confidence.fit_logistic(columns, right, 3.0)
    # The penalised likelihood is concave: it has one optimum, where its gradient is 0. The constant is not penalised.
    gradient = columns.T @ (1 / (1 + np.exp(-columns @ weights)) - right) + [0, 3, 3, 3, 3] * weights
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    np.testing.assert_allclose(weights[:3], [-1, 1, -0.5], atol=0.5)
    apart = confidence.fit_logistic(columns[:, :2] * [1, 1e3], (columns[:, 1] > 0).astype(float), 1e-3)
    assert np.isfinite(apart).all() and apart[1] > 0
    assert confidence.sigmoid(np.array([-1e6, 0, 1e6])).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("count, right, message", [
    (40, 40, "80 captions of 40 pictures are too few: "),
    (0, 0, "0 captions of 0 pictures"), (300, 10, "10 of 600 captions found their picture first, at least 30 must"),
])  # fmt: skip
def test_too_little_teaches_nothing(count, right, message):
    model, index = world()
    entries = [(n, a) for n in range(count) for a in SYLLABLES]
    answers = [ranked([5 if place < right else 6], pictures={5: 0.5}) for place in range(len(entries))]
    asked = [asked_captions.AskedCaption(model.caption(a, n), a, n, 5, answer)
             for (n, a), answer in zip(entries, answers)]  # fmt: skip
    assert_refused(confidence.learn, [message], index, model, asked)


def test_pictures_weigh_more_where_a_model_knows_them():
    model, weights = World(), {}
    for language, count in (("aa", 60), ("bb", 60), ("aa", 49)):
        items = [Item(f"{n}", captions=((language, model.caption(language, n)),)) for n in range(count)]
        index = Index(items, model.pictures[:count], take_fingerprint(model))
        weights[language, count] = asked_captions.weigh_pictures(index, model)
    assert weights["aa", 60]["pictures"] > 2 * weights["bb", 60]["pictures"] > 0
    known = [Item(f"{n}", captions=(("aa", model.caption("aa", n)),)) for n in range(120)]
    vectors = np.where(np.arange(120)[:, None] < 60, model.pictures[:120], np.float32(0))
    half_bare = asked_captions.weigh_pictures(Index(known, vectors, take_fingerprint(model)), model)
    assert half_bare["pictures"] > 0.7 * weights["aa", 60]["pictures"]  # items without a picture do not ask for one
    assert weights["aa", 49] == DEFAULT_WEIGHTS and weights["aa", 60]["texts"] == DEFAULT_WEIGHTS["texts"]


def test_an_index_too_small_to_learn_from_knows_what_is_nonsense():
    model = World()
    index = with_captions(model.index(np.arange(10)), model)
    index.confidence = confidence.measure_noise(index, model)
    asked = {f"the {model.caption('aa', n)}": ("aa", n) for n in range(10)}
    model.numbers |= asked
    right = [search(index, model, [Query(text)], 1)[0] for text in asked]
    assert not any(result.nothing_fits for result in right) and right[0].sure is None
    noise = [search(index, model, [Query(f"{n:05}")], 1)[0] for n in range(60)]
    assert 20 <= sum(result.nothing_fits for result in noise) <= 50  # the others find something by chance
    lacking = next(result for result in noise if result.nothing_fits)
    assert json.loads(to_json(index, [lacking]))["results"][0]["nothing_fits"] and len(lacking.hits) == 1
    assert not search(index, model, [Query(model.caption("aa", 0))], 1)[0].nothing_fits  # found as a whole
    index = Index([Item("0", captions=(("aa", "kalo netu"),))], model.pictures[:1], take_fingerprint(model), IMAGES)
    index.confidence = confidence.NoiseLevel(1, dict.fromkeys(confidence.NOISE_SHARES, np.inf))  # nothing is enough
    assert [search(index, model, [Query(text)], 1)[0].nothing_fits for text in ("netu", "net")] == [False, True]


def test_it_is_kept_as_json():
    _, index = world()
    learnt = index.confidence
    data = confidence.to_bytes(learnt)
    again = confidence.from_bytes(data, 300)
    for field in dataclasses.fields(learnt):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(learnt, field.name))
    assert confidence.from_bytes(data, 329) and confidence.from_bytes(data, 331) is None  # it grew by a tenth
    assert confidence.from_bytes(data, 271) and confidence.from_bytes(data, 269) is None
    other = {**json.loads(data), "weights": [0.0, 1.0]}  # of a version with other features
    assert confidence.from_bytes(json.dumps(other).encode(), 300) is None
    level = confidence.NoiseLevel(300, {"texts": 0.25})
    assert confidence.from_bytes(confidence.to_bytes(level), 300) == level
    for cosine, whole, lacking in ((0.2, (), True), (0.3, (), False), (0.2, {5}, False)):
        assert level.estimate(["x"], [ranked([5], whole, texts={5: cosine})]) == [(None, lacking)]
    assert confidence.from_bytes(confidence.to_bytes(level), 331) is None
    bad = b'{"levels": [1], "count": 300}', b'{"levels": {}}', data.replace(b'"fits"', b'"fit"')
    for damaged in (data[:100], b"", b"[]", b"{}", *bad):
        words = ["How sure answers are is damaged", "delete the index and make it again"]
        assert_refused(confidence.from_bytes, words, damaged, 300)
