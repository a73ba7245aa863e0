"""The same answers from a few lines of Python and NumPy, over random items; a changing index beside a dictionary."""

import collections
import dataclasses
import functools
import math
import random
import types

import numpy as np
import pytest
from search_data import ColorEmbedder, png, unit

from mural_lite.fingerprint import TEXTS, Fingerprint
from mural_search import changes, codes, database, postings, ranking, words
from mural_search.fields import choose
from mural_search.index import Index, exact, sync
from mural_search.item_table import FEW, FEW_NUMBERS, ItemTable
from mural_search.items import Item, amount, fields_of, parse_filters
from mural_search.ranking import rank_all

THINGS = "red blue shoe shoes hat Hüte Schuhe frog 赤い風船 кот café bandana a".split()
LANGUAGES = ("en", "de", "ja", "")
VALUES = {
    "brand": ["Acme", "Bolt & Co", "acme", "Zoë"], "price": ["5", "19,90 EUR", "$7", "1,200.50", "cheap", "-3"],
    "day": ["2026-05-31", "1.6.2026", "2025", "2026-05"], "page": ["https://shop.example/frog"],
    "code": [f"A{n}" for n in range(99)], "size": [str(n) for n in range(40)],
    "größe": ["42½", 'a"c\\me', "a=b", "\udc80"], "note": ["long " * 30, "a longer note of many words"],
}  # fmt: skip
SIZE = 12
WEIGHTS = {"pictures": 0.7, "texts": 1.9, "words": 6.0}


def some(draw, count):
    """Random items; several without a picture, captions or fields."""
    for n in range(count):
        captions = [(draw.choice(LANGUAGES), " ".join(draw.choices(THINGS, k=draw.randint(1, 4))))
                    for _ in range(draw.choice([0, 1, 1, 2, 3]))]  # fmt: skip
        fields = {name: draw.choice(of) for name, of in VALUES.items() if draw.random() < 0.6}
        path = draw.choice(["", f"/pictures/{draw.choice(THINGS)}_{n}.jpg"])
        name = draw.choice([f"item-{n}", f"{n}/{draw.choice(THINGS)}.png", f"bild \ud800\n名\0{n}"])
        offset, language = draw.choice([-1, 7]) if path else -1, draw.choice(LANGUAGES)
        yield Item(name, path, offset, tuple(captions), language, fields, digest=draw.choice(["", "a1"]))


@pytest.fixture(scope="module")
def world():
    """Items that are left of more, so that ids have gaps, and what is asked of them."""
    draw, generator = random.Random(5), np.random.default_rng(5)
    every = [*some(draw, 90), Item("item-90")]  # the last one is there, and the first are gone
    opened = database.make()
    for n, item in enumerate(every):
        database.put(opened, b"%d" % n, item)
    gone = {0, 1, *draw.sample(range(2, 90), 20)}
    database.take_out(opened, [n + 1 for n in sorted(gone)])
    database.count_trigrams(opened)
    items = [item for n, item in enumerate(every) if n not in gone]
    vectors = unit(generator.standard_normal((len(items), SIZE)))
    vectors[[row for row, item in enumerate(items) if not item.path]] = 0.0
    index = Index(ItemTable(opened), vectors, Fingerprint(unit(generator.standard_normal((len(TEXTS) + 2, SIZE)))))
    of_captions = unit(generator.standard_normal((len(index.table.caption_ids), SIZE)) + 0.3).astype(np.float16)
    index.captions = ranking.Captions(of_captions, index.table, "")
    texts = [(row, *caption) for row, item in enumerate(items) for caption in item.captions]  # row, language, text
    asked = {"draw": draw, "random": generator, "documents": list(documents(items))}
    return types.SimpleNamespace(items=items, index=index, table=index.table, texts=texts, **asked)


# --- items


def test_a_table_knows_its_items(world):
    table, items, count = world.table, world.items, len(world.items)
    assert [list(item.fields) for item in table] == [list(item.fields) for item in items]
    assert list(table) == items == [table[row] for row in range(count)] and table.at(slice(3, 9)) == items[3:9]
    assert list(table.names()) == list(world.index.items) == [item.name for item in items]
    assert table.at([2, 5, 11]) == [items[row] for row in (2, 5, 11)] and world.index.items[-1] == items[-1].name
    assert table.ids.tolist() == sorted(table.ids.tolist()) != list(range(1, count + 1))
    assert table.rows_of(np.array([table.ids[4], 1, 999, table.ids[2]])).tolist() == [4, 2]
    bare = [row for row, item in enumerate(items) if not item.path]
    assert table.without_pictures().tolist() == world.index.bare.tolist() == bare
    assert table.caption_rows().tolist() == [row for row, *_ in world.texts]
    by_language = {tag: [n for n, (_, own, _) in enumerate(world.texts) if own == tag] for tag in LANGUAGES}
    assert {tag: numbers.tolist() for tag, numbers in table.captions_by_language().items()} == by_language
    for most in (1, 3, 99):
        kept = table.captions(most)
        assert kept == table.captions(most) and kept.keys() == set(LANGUAGES)
        for tag, texts in kept.items():
            said = {text for _, own, text in world.texts if own == tag}
            assert len(set(texts)) == len(texts) == min(most, len(said)) and set(texts) <= said
    assert list(table.captions(3)["en"]) != sorted({text for _, own, text in world.texts if own == "en"})[:3]


def passes(item, filters):
    """By the name and the operator: one of the values wanted, or a number on the right side of each."""
    wanted = {}
    for name, value, operator in filters:
        wanted.setdefault((name, operator), []).append(value)
    for (name, operator), values in wanted.items():
        own = item.fields.get(name)
        number = None if own is None else amount(own)
        sides = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}
        if operator == "=" and own not in values:
            return False
        if operator != "=" and (number is None or not all(sides[operator](number, amount(one)) for one in values)):
            return False
    return True


def some_filters(draw):
    of = [f"{name}={draw.choice(values)}" for name, values in VALUES.items()]
    of += [f"{name}{draw.choice(['<', '<=', '>', '>='])}{draw.choice(['5', '7', '19.9', '2026', '2026-05-31', '12'])}"
           for name in ("price", "day", "size", "brand")]  # fmt: skip
    return parse_filters(draw.choices(of, k=draw.choice([1, 1, 2, 3])))


def test_filters_and_facets_are_what_python_counts(world):
    seen = set()
    for _ in range(100):
        filters = some_filters(world.draw)
        rows = [row for row, item in enumerate(world.items) if passes(item, filters)]
        assert world.index.rows(filters).tolist() == world.table.rows_with(filters).tolist() == rows, filters
        assert world.table.facets(np.array(rows, np.int64)) == facets_of([world.items[row] for row in rows]), filters
        seen.add(len(rows))
        others = [item for item in world.items if passes(item, [f for f in filters if f.name != "brand"])]
        assert world.index.facets(filters).get("brand") == facets_of(others).get("brand")  # by the filters of others
    assert len(seen) > 10 and world.table.facets() == facets_of(world.items) == world.index.facets()
    assert world.table.rows_with([]).tolist() == list(range(len(world.items)))
    for name in VALUES:
        rows, amounts = world.table.amounts(name)
        numbers = {row: amount(item.fields.get(name, "")) for row, item in enumerate(world.items)}
        assert dict(zip(rows.tolist(), amounts.tolist())) == {r: n for r, n in numbers.items() if n is not None}


def facets_of(items):
    shown = {}
    for name in {name for item in items for name in item.fields}:
        values = [item.fields[name] for item in items if name in item.fields]
        counts, numbers = {value: values.count(value) for value in values}, {v: amount(v) for v in values}
        if None not in numbers.values() and len(counts) > FEW_NUMBERS:
            ends = sorted(counts, key=lambda value: (numbers[value], value))
            shown[name] = {"least": ends[0], "most": ends[-1]}
        else:
            shown[name] = {"values": counts} if len(counts) <= FEW else {}
    return shown


def test_values_are_offered_by_frequency_and_few_numbers_in_their_order():
    def facet(values):
        return database.table_of(Item(str(n), fields={"x": value}) for n, value in enumerate(values)).facets()["x"]

    assert list(facet("bacabb")["values"].items()) == [("b", 3), ("a", 2), ("c", 1)]
    assert list(facet(["9.90", "18", "18", "7 EUR"])["values"].items()) == [("7 EUR", 1), ("9.90", 1), ("18", 2)]
    assert list(facet([str(n) for n in range(8)] * 2)) == ["values"] != list(facet([str(n) for n in range(9)]))
    assert len(facet([f"v{n}" for n in range(50)])["values"]) == 50 and facet([f"v{n}" for n in range(51)]) == {}
    assert facet([*map(str, range(9)), "none"]) == {"values": {**dict.fromkeys(map(str, range(9)), 1), "none": 1}}


def test_a_product_of_several_rows_has_each_of_their_values():
    """As Shopify and WooCommerce write sizes: a row for each, with a price of its own."""
    fields, several = fields_of({"size": ["36", "37"], "price": ["19.90", "24.90"]})
    prices = [Item("cap", fields={"price": f"{n}.50"}) for n in range(10, 19)]
    table = database.table_of([*prices, Item("hat", fields=fields, several=several)])
    assert table[9] == Item("hat", fields={"size": "36, 37", "price": "19.90, 24.90"}, several=several)
    for text in ("size=36", "size=36, 37", "size=36&size=38", "price<20", "price>20&price<25"):
        assert 9 in table.rows_with(parse_filters(text.split("&"))), text
    for text in ("size=36, 38", "price>20&price<24"):
        assert 9 not in table.rows_with(parse_filters(text.split("&"))), text
    assert table.facets()["size"] == {"values": {"36": 1, "37": 1}}
    assert table.facets()["price"] == {"least": "10.50", "most": "24.90"}
    rows, amounts = table.amounts("price")
    assert (rows[-1], amounts[-1], len(rows)) == (9, 19.9, 10)
    assert choose(table).filters == ("price",)


def test_words_that_few_items_share_are_no_filter():
    """A filter's values are repeated by a fifth of the items: 2 of 12 are too few, 3 of 12 enough."""
    for repeated, filters in ((2, ()), (3, ("maker",))):
        names = [f"maker {number}" for number in range(12 - repeated)] + ["maker 0"] * repeated
        items = [Item(f"hat {number}", fields={"maker": name}) for number, name in enumerate(names)]
        assert choose(items, ["maker"]).filters == filters


# --- words


def document(row, language, texts):
    """What can be found by words at once: a caption, or names and fields, whose language is None."""
    whole = words.document(texts)
    grams = collections.Counter(whole[i : i + 3] for i in range(len(whole) - 2))
    plain = [f" {words.spread(text)} " for text in texts]
    return types.SimpleNamespace(row=row, language=language, texts=texts, grams=grams, plain=plain)


def documents(items):
    for row, item in enumerate(items):
        files = [item.name, *([item.path] if item.offset < 0 else [])]
        stems = [file.rsplit("/")[-1].rsplit(".", 1)[0] for file in files]
        names = list(dict.fromkeys(name for name in [*stems, item.name] if name))
        yield document(row, None, [*names, *(value for value in item.fields.values() if "://" not in value)])
        yield from (document(row, language, [text]) for language, text in item.captions)


def by_words(world, text, count, allowed, hidden=()):
    """BM25 as FTS5 has it, of every document: {row: share}, best first."""
    grams, every = words.grams(text), world.documents
    held = {gram: sum(gram in one.grams for one in every) for gram in grams}
    rarity = {gram: max(1e-6, math.log((len(every) - n + 0.5) / (n + 0.5))) for gram, n in held.items()}
    mean, shares = sum(one.grams.total() for one in every) / len(every), {}
    for one in every:
        damped = 1.2 * (0.25 + 0.75 * one.grams.total() / mean)
        score = sum(rarity[gram] * one.grams[gram] * 2.2 / (one.grams[gram] + damped) for gram in grams)
        is_hidden = bool(hidden) and (one.language is None or one.language in hidden)
        if score and not is_hidden and (allowed is None or allowed[one.row]):
            shares[one.row] = max(shares.get(one.row, 0.0), min(1.0, score / sum(rarity.values())))
    best = sorted(shares.items(), key=lambda item: -item[1])[:count]
    return {row: share for row, share in best if share >= best[0][1] / 4}


def some_question(draw):
    return " ".join([*draw.choices(THINGS, k=draw.randint(1, 4)), *draw.choices(["", "-hat", "acme", "item-7"], k=1)])


@pytest.mark.parametrize("kept", [None, 20, 10**6])
def test_words_are_ranked_by_bm25(world, kept, monkeypatch):
    """With lists in memory, too, of which the longest may be longer than all may be."""
    monkeypatch.setattr(postings, "KEPT", kept)
    world.table.postings = codes.Postings(world.table.each, world.table.ids) if kept else None
    for n in range(30):
        text, hidden = words.split(some_question(world.draw))[0], world.draw.choice([(), ("en",), ("de", "")])
        allowed = None if n % 2 else world.random.random(len(world.items)) < 0.5
        rows, shares = world.table.by_words(text, 200, allowed, hidden)
        expected = by_words(world, text, 200, allowed, hidden)
        assert dict(zip(rows.tolist(), shares.tolist())) == pytest.approx(expected, abs=2e-5), (text, hidden)
        assert (shares[1:] <= shares[:-1] + 1e-9).all()  # of equal ones any is first
        best = world.table.by_words(text, 3, allowed, hidden)[1]
        np.testing.assert_allclose(best, shares[:3], atol=1e-9)
        lists = [texts for texts, _ in world.table.postings._lists.values()] if kept else []
        assert len(lists) <= 1 or sum(map(len, lists)) <= kept
    world.table.postings = None


def test_a_text_may_hold_a_trigram_any_number_of_times():
    table = database.table_of([Item("1", captions=(("en", "ab " * 70_000),)), Item("2"), Item("ab")])
    rows, shares = table.by_words("ab", 9)
    table.postings = codes.Postings(table.each, table.ids)
    assert table.by_words("ab", 9)[0].tolist() == rows.tolist() and len(rows) == 2
    np.testing.assert_allclose(table.by_words("ab", 9)[1], shares, rtol=1e-4)


def test_ids_of_an_index_that_changed_often_take_no_memory():
    opened = database.make()
    database.put(opened, b"0", Item("gone", captions=(("en", "ab"),)))
    database.take_out(opened, [1])
    opened.execute("UPDATE sqlite_sequence SET seq = 3000000000")  # ids are never used again
    for n in range(3):
        database.put(opened, b"%d" % n, Item(f"{n}", captions=(("en", f"ab thing {n}"),)))
    database.count_trigrams(opened)
    table = ItemTable(opened)
    wanted = table.by_words("thing 2", 9)
    table.postings = codes.Postings(table.each, table.ids)
    assert len(table.postings._rows) == 6 and table.by_words("thing 2", 9)[0].tolist() == wanted[0].tolist()
    np.testing.assert_allclose(table.by_words("thing 2", 9)[1], wanted[1], rtol=1e-4)


def test_words_one_after_another_and_whole_texts(world):
    said = [one for document in world.documents[::3] for one in document.texts] + [*THINGS, "shoe hat"]
    for asked in filter(words.spread, said):  # of signs alone nothing is asked
        text = f" {words.spread(asked)} "
        holding = {one.row for one in world.documents if any(text in part for part in one.plain)}
        assert world.table.with_words(asked).tolist() == sorted(holding), asked
        for hidden in ((), ("en",)):
            shown = [one for one in world.documents if not hidden or one.language not in (None, *hidden)]
            assert world.table.rows_equal_to(asked, hidden).tolist() == sorted(
                {one.row for one in shown if text in one.plain}
            )


# --- the ranking


def captions_by_row(world, vector, rows, hidden=()):
    """{row: the best value of its captions}: the cosine less what its language has more than all, halved at 20."""
    vectors = world.index.captions.vectors.astype(np.float32)
    tags = [language for _, language, _ in world.texts]
    values = {}
    for place, (row, language, _) in enumerate(world.texts):
        own = vectors[[tag == language for tag in tags]]
        shift = (own.mean(0) - vectors.mean(0)) * len(own) / (len(own) + 20)
        if row in rows and language not in hidden:
            values[row] = max(values.get(row, -2.0), float(vectors[place] @ vector - shift @ vector))
    return values


def units_of(world):
    vectors, model = world.index.embeddings, world.index.model
    vectors = vectors[vectors.any(axis=1)]
    of_texts = model.of_texts @ vectors.T
    captions = world.index.captions.vectors.astype(np.float32)
    tags, n = np.array([language for _, language, _ in world.texts]), len(captions)
    shifts = np.array([(captions[tags == t].mean(0) - captions.mean(0)) * sum(tags == t) / (sum(tags == t) + 20)
                       for t in tags])  # fmt: skip
    variance = (captions @ (captions - shifts).T)[~np.eye(n, dtype=bool)].var()
    return of_texts.std(axis=1).mean(), math.sqrt((n * variance + 10 * 0.08**2) / (n + 10))


def ranking_of(world, sentence, vector, caption_vector, count, filters, rank, hidden):
    """Lists {way: {row: value}}, and rows by their scores."""
    text, lacking = words.split(sentence)
    rows = {row for row, item in enumerate(world.items) if passes(item, filters)}
    rows -= {row for word in lacking for row in world.table.with_words(word).tolist()}
    allowed = np.isin(np.arange(len(world.items)), list(rows))
    cosines = {row: float(world.index.embeddings[row] @ vector) for row in rows if world.items[row].path}
    every = {"pictures": cosines, "texts": captions_by_row(world, caption_vector, rows, hidden),
             "words": by_words(world, text, count, allowed, hidden)}  # fmt: skip
    every = {way: values for way, values in every.items() if rank in (way, "all")}
    lists = {way: dict(sorted(of.items(), key=lambda item: -item[1])[:count]) for way, of in every.items()}
    together = set().union(*lists.values())
    for way in ("pictures", "texts") if rank == "all" else ():
        if lists[way]:
            lists[way] |= {row: every[way][row] for row in together - lists[way].keys() if row in every[way]}
    exact = rows.intersection(world.table.rows_equal_to(text, hidden).tolist()) if "words" in lists else set()
    weights = WEIGHTS if rank == "all" else {rank: 1.0}
    units, scores = dict(zip(("pictures", "texts"), units_of(world))), dict.fromkeys({*together, *exact}, 0.0)
    judged = {"pictures": len(cosines), "texts": sum(bool(world.items[row].captions) for row in rows), "words": 0}
    for way, of in lists.items():
        least = min(of.values(), default=0.0)
        values = {row: weights[way] * (v**2 if way == "words" else (v - least) / units[way]) for row, v in of.items()}
        absent = 0.0
        if way != "words" and of:
            absent = math.log(sum(map(math.exp, values.values())) / max(judged[way], len(of)))
        for row in scores:
            scores[row] += values.get(row, absent)
    order = sorted(scores, key=lambda row: (row not in exact, -scores[row], row))
    return lists, order, scores


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("rank", ranking.RANKS)
def test_the_ranking_is_the_sum_that_is_documented(world, rank, is_quick, monkeypatch):
    monkeypatch.setattr(ranking, "BLOCK", 16)
    monkeypatch.setattr("mural_search.index._BLOCK", 7)
    index = world.index
    if is_quick:
        codes.quicken(index)
    np.testing.assert_allclose(list(ranking.units_of(index).values()), units_of(world), rtol=1e-4)
    for n in range(16):
        sentence, filters = some_question(world.draw), some_filters(world.draw) if n % 2 else ()
        vector, caption_vector = unit(world.random.standard_normal((2, SIZE)))
        count = (5, 200)[n % 4 > 0]
        given = count, filters, rank, [(), ("en",), ("de", "")][n % 3]
        (found,) = rank_all(index, [sentence], vector[None], caption_vector[None], *given, WEIGHTS)
        lists, order, scores = ranking_of(world, sentence, vector, caption_vector, *given)
        assert found.lists.keys() == lists.keys()
        if count < 200 and found.lists.get("words", {}).keys() != lists.get("words", {}).keys():
            continue  # of equal shares others are among the first
        for way, entries in found.lists.items():
            assert [place for place, _ in entries.values()] == list(range(1, len(entries) + 1))
            assert {row: value for row, (_, value) in entries.items()} == pytest.approx(lists[way], abs=1e-4)
        assert sorted(found.rows.tolist()) == sorted(order)
        steps = [(row in found.exact_rows, scores[row]) for row in found.rows.tolist()]
        assert all(a[0] > b[0] or a[1] >= b[1] - 1e-3 for a, b in zip(steps, steps[1:])), sentence
    index.codes = index.captions.codes = index.table.postings = None


def test_several_questions_at_once_are_each_alone(world):
    asked = [*(some_question(world.draw) for _ in range(10)), "shoe", "red -hat"]  # of other rows
    vectors = unit(world.random.standard_normal((12, SIZE)))
    together = rank_all(world.index, asked, vectors, vectors[::-1])
    for n, found in enumerate(together):
        (alone,) = rank_all(world.index, [asked[n]], vectors[[n]], vectors[::-1][[n]])
        assert found.rows.tolist() == alone.rows.tolist() and found.exact_rows == alone.exact_rows
        assert {way: list(of) for way, of in found.lists.items()} == {way: list(of) for way, of in alone.lists.items()}


# --- codes, which a server keeps in memory


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_products_are_within_their_bounds_and_the_best_are_candidates(dtype, monkeypatch):
    generator = np.random.default_rng(7)
    monkeypatch.setattr(codes, "PART", 1024)  # several tasks, the last of them short
    vectors, vector = unit(generator.standard_normal((3000, 48))), unit(generator.standard_normal(48))
    vectors[7] = 0.0
    vectors[8] *= 300.0  # a damaged row of another length
    vectors = vectors.astype(dtype)
    made = codes.Codes(vectors)
    products = vectors.astype(np.float64) @ vector.astype(np.float64)
    lower, upper = made.bounds(vector)
    assert (lower <= products).all() and (products <= upper).all()
    # Rounding moves a number by half a step at most, a 254th of the row's largest: of 48 such, far less than this.
    assert np.delete(upper - lower, 8).max() < 0.05
    every = np.arange(3000)
    for among in (every, every[::2], every[: 3000 // 8 + 1]):
        least = np.sort(lower[among])[-20]
        chosen = made.candidates(vector, 20, None if among is every else among)
        assert chosen.tolist() == among[upper[among] >= least].tolist() and 20 <= len(chosen) < 200
        for got, wanted in zip(exact(vector[None], vectors, 20, chosen), exact(vector[None], vectors, 20, among)):
            np.testing.assert_allclose(got, wanted, atol=1e-6)
    few = every[: 3000 // 8]  # an eighth is compared as it is, as are no more rows than are wanted
    assert made.candidates(vector, 20, few) is few and made.candidates(vector, 3000) is None
    many = every[: 3000 // 8 + 1]
    assert made.candidates(vector, len(many), many) is many
    if dtype == np.float32:  # rows that are no numbers are candidates
        vectors[3, 2], vectors[4, 0] = np.nan, np.inf
        assert {3, 4} <= set(codes.Codes(vectors).candidates(vector, 5).tolist())


# --- the life of an index


class Source:
    """What a table says now, as {name: (caption, brand, colour)}; a colour is a number, None, or "broken"."""

    def __init__(self, draw):
        self.draw, self.rows = draw, {}

    def change(self):
        pick = self.draw.choice
        for name in self.draw.sample([f"p{n}" for n in range(14)], 4):
            caption, brand, colour = self.rows.pop(name, ("", "", 0))
            other = pick(["", f"thing {self.draw.randrange(5)}"]), pick(["", "acme", "bolt"]), self.draw.randrange(250)
            row = pick([None, (other[0], brand, colour), (caption, other[1], colour), (caption, brand, other[2]),
                        (caption, brand, other[2]), (caption, brand, None),
                        (caption, brand, pick(["broken", colour, colour]))])  # fmt: skip
            self.rows |= {name: row} if row else {}

    def entries(self):
        for name, (caption, brand, colour) in self.rows.items():
            item = Item(name, captions=(("en", caption),) if caption else (), fields={"brand": brand} if brand else {})
            yield item, b"no" if colour == "broken" else None if colour is None else png((colour, 9, 250 - colour))
        for name in list(self.rows)[:2]:  # of repeated ones the first counts
            yield Item(name, captions=(("en", "again"),)), png((1, 2, 3))


class Listening(ColorEmbedder):
    """Keeps the texts that it encodes."""

    texts = frozenset()

    def encode_text(self, texts, **options):
        self.texts |= frozenset(texts)
        return super().encode_text(texts, **options)


def keep_whole(keep, opened, **values):
    """At no commit is there a caption without its vector."""
    keep(opened, **values)
    texts, vectors = (opened.execute(f"SELECT count(*) FROM {t}").fetchone() for t in ("texts", "caption_vectors"))
    assert texts == vectors or "state" not in values


@pytest.mark.parametrize("seed", range(3))
def test_an_index_is_what_its_sources_said(tmp_path, seed, monkeypatch):
    """Whatever changes, comes, goes, breaks or is removed by hand, in any order: beside a dictionary."""
    monkeypatch.setattr(changes, "BLOCK", {"images": 5, "texts": 5})
    monkeypatch.setattr(changes, "TOGETHER", 5)
    monkeypatch.setattr(database, "keep", functools.partial(keep_whole, database.keep))
    draw = random.Random(seed)
    source, known, removed, place = Source(draw), {}, {}, tmp_path / "index"
    for step in range(14):
        source.change()
        prune, wanted = draw.random() < 0.4, dict.fromkeys(("added", "changed", "kept", "deleted", "skipped"), 0)
        encoded, texts = 0, set()
        for name, row in source.rows.items():
            before = known.get(name)
            if row[2] == "broken":  # stays what it was
                wanted["skipped"] += removed.get(name) != row
                wanted["deleted"] += removed.get(name) == row
            elif removed.get(name) == row:
                wanted["deleted"] += 1
            else:
                removed.pop(name, None)
                wanted["kept" if before == row else "changed" if before else "added"] += 1
                encoded += row[2] is not None and (before is None or before[2] != row[2])
                texts |= {row[0]} if before is None or before[0] != row[0] else set()
                known[name] = row
        gone = [name for name in known if name not in source.rows]
        wanted |= {"gone": 0 if prune else len(gone), "pruned": len(gone) if prune else 0}
        wanted["repeated"] = min(2, len(source.rows))
        for name in gone if prune else ():
            del known[name]
        if not known:
            continue
        embedder = Listening()
        index = sync(place, embedder, source.entries(), prune)
        assert dataclasses.asdict(index.counts) == wanted, (seed, step)
        assert embedder.encoded == encoded and index.skipped == wanted["skipped"]
        assert {text for text in embedder.texts if text.startswith("thing")} == texts - {""}
        check(index, known)
        names = draw.sample(list(known), min(len(known) - 1, draw.randrange(3)))
        filters = parse_filters(["brand=acme"]) if draw.random() < 0.2 else []
        if filters:
            names = [name for name, row in known.items() if row[1] == "acme"]
        if 0 < len(names) < len(known):
            asked = (place, [], filters) if filters else (place, names)
            assert changes.remove(*asked, dry_run=True) == changes.remove(*asked) == (len(names), len(known))
            removed |= {name: known.pop(name) for name in names}
            check(sync(place, None, (), model=index.model), known)


def check(index, known):
    assert sorted(index.items) == sorted(known)
    captions = iter(index.captions.vectors if index.captions is not None else ())
    for row, item in enumerate(index.table):
        caption, brand, colour = known[item.name]
        assert item.captions == ((("en", caption),) if caption else ())
        assert item.fields == ({"brand": brand} if brand else {})
        vector = np.zeros(3) if colour is None else unit(np.array([colour, 9.0, 250 - colour]))
        np.testing.assert_allclose(index.embeddings[row], vector, atol=1e-6)
        assert (row in index.bare) == (colour is None)
        if caption:
            np.testing.assert_allclose(next(captions), ColorEmbedder().encode_text([caption])[0], atol=1e-3)
            assert row in index.table.rows_equal_to(caption) and (not brand or row in index.table.with_words(brand))
    assert next(captions, None) is None
    for word, place in (("thing", 0), ("acme", 1)):  # nor are old words found
        wanted = {name for name, row in known.items() if row[place].startswith(word)}
        assert {index.items[row] for row in index.table.with_words(word)} == wanted
