"""When nothing fits: what strings that mean nothing find in an index, of two made-up languages, and what it keeps."""

import json
import zlib

import numpy as np
import pytest
from search_data import png, ranked, unit, with_captions

from mural_search import noise_level
from mural_search.index import Index, take_fingerprint
from mural_search.items import IMAGES, Filter, Item
from mural_search.noise_level import SHARES, NoiseLevel, measure_noise, noise_like
from mural_search.queries import Query, search
from mural_search.results import to_json

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


def test_strings_that_mean_nothing_are_texts_in_disorder():
    noise = noise_like(["A red one", "kalo"], 50)
    assert noise == noise_like(["A red one", "kalo"], 50) and len(set(noise)) > 10
    for text in noise:
        assert sorted(text) in (sorted("a red one"), sorted("kalo")) and text.find(" ") in (1, -1)


def test_noise_is_what_most_strings_stay_below(monkeypatch):
    """By pictures and captions three of four strings, by words all."""
    found = [ranked([0], pictures={0: n / 100}, texts={0: n / 10}, words={0: 0.5 + n / 100}) for n in range(5)]
    monkeypatch.setattr(noise_level, "_ask", lambda index, embedder, noise: found)
    level = measure_noise(World().index([1, 2, 3]), None)
    assert level == NoiseLevel(3, {"pictures": 0.03, "texts": pytest.approx(0.3), "words": 0.54})


@pytest.mark.parametrize("texts, words, whole, lacking", [
    (0.2, 0.0, (), True), (0.25, 0.5, (), True), (0.26, 0.5, (), False), (0.2, 0.51, (), False), (0.2, 0.5, {5}, False),
    (0.2, 0.5, {6}, True),  # the first answer counts
])  # fmt: skip
def test_nothing_fits_where_no_way_finds_more_than_noise(texts, words, whole, lacking):
    level = NoiseLevel(300, {"texts": 0.25, "words": 0.5})
    assert level.nothing_fits(ranked([5], whole, texts={5: texts}, words={5: words})) == lacking
    assert not level.nothing_fits(ranked([5], pictures={5: 0.1}, texts={5: 0.1}))  # noise found nothing by pictures
    assert level.nothing_fits(ranked())


def test_a_small_index_knows_nonsense():
    model = World()
    index = with_captions(model.index(np.arange(10)), model)
    index.noise = measure_noise(index, model)
    asked = {f"the {model.caption('aa', n)}": ("aa", n) for n in range(10)}
    model.numbers |= asked
    assert not any(search(index, model, [Query(text)], 1)[0].nothing_fits for text in asked)
    noise = [search(index, model, [Query(f"{n:05}")], 1)[0] for n in range(60)]
    assert 20 <= sum(result.nothing_fits for result in noise) <= 50  # the others find something by chance
    lacking = next(result for result in noise if result.nothing_fits)
    assert json.loads(to_json(index, [lacking]))["results"][0]["nothing_fits"] and len(lacking.hits) == 1
    assert not search(index, model, [Query(model.caption("aa", 0))], 1)[0].nothing_fits  # found as a whole


def test_an_answer_with_the_words_of_the_question_fits():
    model = World()
    index = Index([Item("0", captions=(("aa", "kalo netu"),))], model.pictures[:1], take_fingerprint(model), IMAGES)
    index.noise = NoiseLevel(1, dict.fromkeys(SHARES, np.inf))  # nothing is enough
    assert [search(index, model, [Query(text)], 1)[0].nothing_fits for text in ("netu", "net")] == [False, True]


def test_images_and_filtered_answers_are_not_judged(tmp_path):
    model = World()
    (tmp_path / "a.png").write_bytes(png((250, 0, 0)))
    items = [Item(f"{n}", fields={"brand": "acme", "price": f"{n}"}) for n in range(300, 600)]
    index = Index(items, model.pictures[300:], take_fingerprint(model), IMAGES)
    index.noise = NoiseLevel(300, dict.fromkeys(SHARES, np.inf))
    for query, options, lacking in (
        (Query("kalo"), {}, True), (Query("acme"), {}, False), (Query(image=str(tmp_path / "a.png")), {}, False),
        (Query("kalo -ne"), {}, False), (Query("kalo"), {"filters": [Filter("brand", "acme")]}, False),
        (Query("kalo"), {"rank": "pictures"}, False), (Query("kalo"), {"sort": "price"}, False),
    ):  # fmt: skip
        (result,) = search(index, model, [query], 2, **options)
        assert result.nothing_fits == lacking == ("nothing_fits" in to_json(index, [result])), (query, options)
