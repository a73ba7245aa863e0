"""One ranking of pictures, captions and words: what comes first, what any question does, and how weights are chosen."""

import json
import subprocess
import sys

import numpy as np
import pytest
from search_data import ColorEmbedder, png

from mural_tf.data import records
from mural_tf.data.record_format import IMAGE_TEXT
from mural_tf.errors import UserError
from mural_tf.search import commands, ranking, words
from mural_tf.search.database import ItemTable
from mural_tf.search.index import Index, load_index, take
from mural_tf.search.items import FILTER, Item, amount, parse_filters
from mural_tf.search.queries import Query, search, to_json

ITEMS = [
    Item("p/shoe-17.png", captions=(("en", "a red shoe"), ("de", "ein roter Schuh")), fields={"sku": "AB-12/3"}),
    Item("p/2.png", captions=(("en", "a blue frog"), ("ja", "青い蛙")), fields={"brand": "Zoë & Co", "price": "9"}),
    Item("p/3.png", captions=(("en", "frog"), ("zh", "犬")), fields={"brand": "Zoë & Co", "price": "5"}),
    Item("p/4.png", fields={"page": "https://example.org/frog"}),
]
HOSTILE = [
    *(
        '"',
        "'",
        '"; DROP TABLE items; --',
        "a OR",
        "NEAR(a b)",
        "frog AND",
        "*",
        "^a",
        "-",
        "{x}:y",
        "a\0b",
        "\ud800",
        "|",
    ),
    *("| a red shoe |", "(", "text:frog", "x" * 5000, "é" * 3000, "aa", "", " ", "🎈", "%", "_"),
]


class TwoHeads(ColorEmbedder):
    """By the second head texts are known by their letters, whatever the colours."""

    text_heads = ("text_text",)

    def with_text_head(self, name):
        assert name == "text_text"
        return Letters()


class Letters:
    def encode_text(self, texts, progress=None):
        counts = np.array(
            [[text.lower().count(letter) + 1e-3 for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        )
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def index():
    vectors = np.array([[0, 0, 1], [0, 1, 0], [0.6, 0.8, 0], [1, 0, 0]], np.float32)
    made = Index(ITEMS, vectors, take(TwoHeads()))
    texts = [text for item in ITEMS for _, text in item.captions]
    made.captions = ranking.Captions(Letters().encode_text(texts).astype(np.float16), made.table, "text_text")
    return made


def found(index, sentence, **options):
    return search(index, TwoHeads(), [Query(sentence)], 4, **options)[0].hits


@pytest.mark.parametrize("sentence, row", [
    ("AB-12/3", 0), ("ab 12 3", 0), ("shoe-17.png", None), ("Shoe 17", 0), ("A RED SHOE", 0), ("frog", 2), ("犬", 2),
    ("青い蛙", 1),
])  # fmt: skip
def test_article_numbers_and_whole_titles_come_first(index, sentence, row):
    first = found(index, sentence)[0]
    assert row is None or (first.row == row and first.found_by["exact"] == 1)


def test_all_items_of_a_brand_come_first_and_addresses_are_no_words(index):
    assert [hit.row for hit in found(index, "zoe & co")][:2] in ([1, 2], [2, 1])
    assert 3 not in [hit.row for hit in found(index, "frog", rank="words")]


def test_each_way_is_what_it_says(index):
    assert found(index, "red", rank="pictures")[0].row == 3  # the colour alone
    assert found(index, "der ro fe", rank="texts")[0].row in (0, 2) and len(found(index, "red", rank="texts")) == 3
    assert [hit.row for hit in found(index, "blu frogs", rank="words")] == [1, 2]
    every = found(index, "red")
    assert len(every) == 4 and every[0].found_by.keys() <= {"pictures", "texts", "words"}
    plain = Index(ITEMS, index.embeddings, index.model)  # no captions are known: as it was before
    assert [hit.row for hit in found(plain, "red")] == [3, 2, 0, 1] and found(plain, "red")[0].found_by == {}
    with pytest.raises(UserError, match="rank=texts compares with captions"):
        found(plain, "red", rank="texts")
    with pytest.raises(UserError, match="rank=best is not known; known: pictures, texts, words, all"):
        found(index, "red", rank="best")


def test_a_model_without_the_head_is_refused_before_it_is_asked(index):
    index.check_model(TwoHeads())
    with pytest.raises(UserError, match="by the head text_text, which this export lacks"):
        index.check_model(ColorEmbedder())


@pytest.mark.parametrize("text", HOSTILE)
def test_no_question_is_syntax(text):
    table = ItemTable(ITEMS)
    rows, shares = table.by_words(text, 10)
    assert ((0 < shares) & (shares <= 1)).all() and len(set(rows.tolist())) == len(rows)
    table.whole(text), table.with_words(text)
    assert len(table) == 4


@pytest.mark.parametrize("text, rows", [
    ("犬", [2]), ("蛙", [1]), ("青い", [1]), ("Zo", [1, 2]), ("ZOÉ C", [1, 2]), ("RÉD", [0]), ("猫", []), ("!", []),
])  # fmt: skip
def test_short_words_are_found(text, rows):
    assert sorted(ItemTable(ITEMS).by_words(text, len(rows) or 10)[0].tolist()) == rows


@pytest.mark.parametrize("asked, said", [
    ("كتاب", "كِتَابٌ"), ("احمر", "أَحْمَر"), ("الكتاب", "ٱلْكِتَـاب"), ("שלום", "שָׁלוֹם"), ("IŞIK", "ışık"), ("isik", "ışık"),
    ("izmir", "İZMİR"), ("αθηνα", "Αθήνα"), ("strasse", "Straße"), ("हिन्दी", "हिन्दी"),
])  # fmt: skip
def test_words_are_found_as_people_type_them(asked, said):
    table = ItemTable([Item("1", captions=(("", said),)), Item("2")])
    assert table.whole(asked).tolist() == table.by_words(asked, 9)[0].tolist() == [0]


def test_vowel_signs_of_indic_scripts_tell_words_apart():
    assert words.spread("की") != words.spread("का") != words.spread("क")


def test_a_word_with_a_minus_is_a_whole_word():
    table = ItemTable([Item("1", captions=(("en", text),)) for text in ("coloured", "a red hat", "hundred", "red")])
    assert table.with_words("red").tolist() == [1, 3]


@pytest.mark.parametrize("earlier, later", [
    ("2025-12-31", "2026-01-01"), ("2026-01-31", "2026-02-01"), ("2025-12", "1.1.2026"), ("2026", "2026-01-02"),
])  # fmt: skip
def test_dates_are_in_order_across_the_ends_of_months_and_years(earlier, later):
    assert amount(earlier) < amount(later)


def test_long_questions_and_filters_are_told_their_bounds(index):
    for text in (" " * 300_000 + "a" + " " * 300_000, "price<1" + " " * 300_000 + "x"):
        assert FILTER.fullmatch(text) is None or text[0] == "p"  # of one pass: with the square of it this never ends
    assert parse_filters([f" brand = {'x' * 490}"])[0].value == "x" * 490
    with pytest.raises(UserError, match="A filter has 8,001 characters; at most 500 are read."):
        parse_filters([" " * 8000 + "x"])
    with pytest.raises(UserError, match="The sentence has 10,000 characters; at most 2,000 are read."):
        found(index, "x" * 10_000)


def test_a_language_can_be_hidden():
    table = ItemTable(ITEMS)
    assert table.by_words("roter Schuh", 10)[0].tolist() == [0]
    assert table.by_words("roter Schuh", 10, hidden="de")[0].tolist() == []
    assert table.whole("ein roter Schuh").tolist() == [0] and table.whole("ein roter Schuh", "de").tolist() == []
    assert table.by_words("frog", 10, allowed=np.array([True, True, False, True]))[0].tolist() == [1]


def test_words_with_a_minus_are_left_out(index):
    assert words.split("a shoe -red T-shirt -5 - x") == ("a shoe T-shirt -5 - x", ["red"])
    assert {hit.row for hit in found(index, "frog -blue")} == {0, 2, 3}
    with pytest.raises(UserError, match="'-red' says only what shall not be found"):
        found(index, "-red")


def test_pages_are_parts_of_one_list_and_sorting_is_by_amounts(index):
    every = found(index, "frog")
    pages = [search(index, TwoHeads(), [Query("frog")], 2, offset=offset)[0].hits for offset in (0, 2)]
    assert (*pages[0], *pages[1]) == every
    assert [hit.row for hit in found(index, "frog", sort="price")][:2] == [2, 1]
    assert [hit.row for hit in found(index, "frog", sort="-price")][:2] == [1, 2]
    with pytest.raises(UserError, match="sort=-colour: no item has numbers or dates in a field 'colour'"):
        found(index, "frog", sort="-colour")


def test_pictures_that_look_the_same_are_one_hit():
    same = (("en", "x"),)
    items = [Item("1", captions=same), Item("2", captions=same), Item("3", captions=(("en", "y"),)), Item("4")]
    vectors = np.array([[1, 0, 0], [0.99999, 0.004, 0], [1, 0, 0], [0, 1, 0]], np.float32)
    made = Index(items, vectors, take(ColorEmbedder()))
    result = search(made, ColorEmbedder(), [Query("red", right=("2",))], 4)[0]
    assert [(hit.name, hit.alike) for hit in result.hits] == [("1", 1), ("3", 0), ("4", 0)]
    assert result.first_right == 1 and '"alike": 1' in to_json(made, [result])


def test_what_is_found_counts_by_its_value():
    lists = {"pictures": {1: (1, 0.9), 4: (2, -0.5), 5: (3, -0.6)}, "words": {2: (1, 0.01), 3: (2, 1.0)}}
    weights = {"pictures": 1.0, "texts": 1.0, "words": 1.0}
    assert ranking.fuse(lists, weights, ()).tolist() == [3, 1, 2, 4, 5]
    assert ranking.fuse(lists, weights, {2}).tolist() == [2, 3, 1, 4, 5]


def test_vectors_of_texts_are_not_outvoted_by_their_letters():
    """A question in another language shares a word with the wrong text: 1 · 1/61 against 1 · 0/62 + 2 · share/61."""
    items = [Item("red"), Item("a rotten apple"), *(Item(f"{number:04}") for number in range(40))]
    vectors = np.eye(3, dtype=np.float32)[[0, 1, *[2] * 40]]
    texts, question = Index(items, vectors, take(TwoHeads()), "texts"), "rot wie eine Tomate"
    (one,) = ranking.rank_all(texts, [question], np.array([[1, 0, 0]], np.float32), None)
    assert list(one.lists["words"]) == [1] and 0.05 / 2 < one.lists["words"][1][1] < 0.5
    assert one.rows[:2].tolist() == [0, 1]
    assert ranking.rank_all(texts, [question], None, None, rank="words")[0].rows.tolist() == [1]


def test_pictures_get_the_least_weight_that_costs_nothing():
    def asked(language, pictures, texts):  # the picture 0 is right; 1 to 10 are before it in a list where it is late
        late = {row: (row, 0.1) for row in range(1, 11)}
        lists = {way: {0: (1, 1.0), **late} if good else late for way, good in zip(ranking.WAYS, (pictures, texts))}
        return ranking.Stranger("", language, np.zeros(1), 0, 0, ranking.Ranked(np.arange(11), lists))

    both = [asked(language, True, True) for language in ("de", "en")] * 25
    pictures_alone = [asked(language, True, False) for language in ("de", "en")] * 25
    weights, shares = ranking.choose_weights(both)
    assert weights["pictures"] == 0.05 and shares["all"] == shares["texts"] == 1.0 and shares["words"] == 0.0
    weights, shares = ranking.choose_weights(both + pictures_alone)
    assert weights["pictures"] > 0.05 and shares["all"] == 1.0
    assert ranking.choose_weights(both[:20]) is None and ranking.choose_weights(both[::2] * 2) is None


def test_the_closest_caption_of_an_item_counts():
    items = [Item(str(n), captions=tuple(("en", f"{n} {m}") for m in range(n % 4))) for n in range(40)]
    vectors = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float16)
    captions = ranking.Captions(vectors, ItemTable(items), "")
    asked = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    of_rows = np.repeat(np.arange(40), np.arange(40) % 4)
    for query, (rows, scores) in zip(asked, captions.search(asked, 5, np.arange(40) != 3)):
        best = {row: (vectors[of_rows == row].astype(np.float32) @ query).max() for row in set(of_rows.tolist()) - {3}}
        assert rows.tolist() == sorted(best, key=best.get, reverse=True)[:5]
        np.testing.assert_allclose(scores, [best[row] for row in rows], atol=1e-5)


COLOURS = {"red": (250, 0, 0), "green": (0, 250, 0), "purple": (150, 0, 200)}


@pytest.fixture
def made(tmp_path, monkeypatch, capsys):
    """An index of a data set whose captions are in two languages, its folder, and what was printed."""
    monkeypatch.setattr(ranking, "LEAST_ASKED", 2)
    monkeypatch.setattr(commands, "load", lambda model: TwoHeads())
    for split in ("train", "dev"):
        rows = [records.ImageTextRecord(f"{split}-{name}", png(colour), [name, f"{name}s"], ["en", "nl"], ["", ""])
                for name, colour in COLOURS.items()]  # fmt: skip
        records.write_records(tmp_path / "data", IMAGE_TEXT, split, rows)
    (tmp_path / "model").mkdir()
    index = commands.index(
        [str(tmp_path / "data")], str(tmp_path / "index"), model=str(tmp_path / "model"), method="none"
    )
    return index, tmp_path, capsys.readouterr().out


def test_an_index_keeps_captions_and_weights(made):
    index, tmp_path, printed = made
    kept = json.loads((tmp_path / "index/ranking.json").read_text())
    assert kept["head"] == "text_text" and kept["weights"] == load_index(tmp_path / "index").weights == index.weights
    assert np.load(tmp_path / "index/captions.npy").dtype == np.float16 and len(index.captions.vectors) == 12
    assert "Weights of the one ranking: pictures" in printed and "texts 100.0%" in printed


def test_an_update_encodes_new_captions_alone(made, monkeypatch):
    _, tmp_path, _ = made
    row = records.ImageTextRecord("new", png((200, 150, 0)), ["orange"], ["en"], [""])
    records.write_records(tmp_path / "data", IMAGE_TEXT, "test", [row])
    asked = []
    monkeypatch.setattr(
        ranking.Captions, "encode", lambda self, model, texts: asked.extend(texts) or Letters().encode_text(texts)
    )
    index = build.build_index(TwoHeads(), [str(tmp_path / "data")], tmp_path / "index", update=True)
    assert asked == ["orange"] and len(index.captions.vectors) == 13
    texts = [text for _, text in index.table.caption_texts(0, 13)]
    np.testing.assert_allclose(index.captions.vectors, Letters().encode_text(texts), atol=1e-3)
    (tmp_path / "index/captions.npy").unlink()  # killed before they were kept: the same command makes them
    assert len(build.build_index(TwoHeads(), [str(tmp_path / "data")], tmp_path / "index").captions.vectors) == 13
    (tmp_path / "index/captions.npy").write_bytes(b"no")
    with pytest.raises(UserError, match="captions.npy is damaged"):
        load_index(tmp_path / "index")


def test_words_alone_need_neither_model_nor_tensorflow(made):
    _, tmp_path, _ = made
    program = (
        "import sys\nfrom mural_tf.search import commands\nfrom mural_tf.search.queries import Query\n"
        f"found = commands.query({str(tmp_path / 'index')!r}, [Query('purples')], rank='words', json='-')\n"
        "assert found[0].hits[0].name.endswith('purple') and 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_many_questions_with_answers_are_counted_by_language(index, capsys):
    queries = [Query("frog", "en", right=("p/3.png",))] * 4 + [Query("AB-12/3", "de", right=("no",))] * 3
    commands.show(index, search(index, TwoHeads(), queries, 3))
    assert capsys.readouterr().out.splitlines() == [
        "de           right first 0, among the 3 shown 0 of 3 queries",
        "en           right first 4, among the 3 shown 4 of 4 queries",
        "all          right first 4, among the 3 shown 4 of 7 queries",
    ]
