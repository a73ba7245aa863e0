"""One ranking of pictures, captions and words: what comes first, what any question does, and how weights are chosen."""

import string
import subprocess
import sys

import numpy as np
import pytest
from refusals import assert_refused
from search_data import ColorEmbedder, png, ranked, unit, with_captions, write_records

from mural_lite.fingerprint import Fingerprint
from mural_lite.record_format import ImageTextRecord
from mural_search import item_table, queries, ranking
from mural_search import runs as commands
from mural_search.database import table_of
from mural_search.index import Index, load_index, take_fingerprint
from mural_search.items import FILTER, Item
from mural_search.queries import Query, search
from mural_search.results import to_json

ITEMS = [
    Item("p/shoe-17.png", captions=(("en", "a red shoe"), ("de", "ein roter Schuh")), fields={"sku": "AB-12/3"}),
    Item("p/2.png", captions=(("en", "a blue frog"), ("ja", "青い蛙")), fields={"brand": "Zoë & Co", "price": "9"}),
    Item("p/3.png", captions=(("en", "frog"), ("zh", "犬")), fields={"brand": "Zoë & Co", "price": "5"}),
    Item("p/4.png", fields={"page": "https://example.org/frog"}),
]
HOSTILE = ['"', "'", '"; DROP TABLE items; --', "a OR", "NEAR(a b)", "frog AND", "*", "^a", "-", "{x}:y", "a\0b",
           "\ud800", "|", "| a red shoe |", "(", "text:frog", "x" * 5000, "é" * 3000, "aa", "", " ",
           "🎈", "%", "_"]  # fmt: skip


class TwoHeads(ColorEmbedder):
    """By the second head texts are known by their letters, whatever the colours."""

    text_heads, with_text_head = ("text_text",), lambda self, name: Letters()


class Letters:
    def encode_text(self, texts, progress=None):
        return unit(np.array([[text.lower().count(a) + 1e-3 for a in string.ascii_lowercase] for text in texts]))


@pytest.fixture(scope="module")
def index():
    vectors = np.array([[0, 0, 1], [0, 1, 0], [0.6, 0.8, 0], [1, 0, 0]], np.float32)
    return with_captions(Index(ITEMS, vectors, take_fingerprint(TwoHeads())), Letters(), "text_text")


def found(index, sentence, **options):
    return search(index, TwoHeads(), [Query(sentence)], 4, **options)[0].hits


def test_what_cannot_be_asked_is_said(index):
    plain = Index(ITEMS, index.embeddings, index.model)  # no captions are known: as it was before
    by_pictures = found(plain, "red", rank="pictures")
    assert [hit.row for hit in by_pictures] == [3, 2, 0, 1] and by_pictures[0].found_by == {}
    for made, sentence, options, words_ in (
        (plain, "red", {"rank": "texts"}, "rank=texts compares with captions"),
        (index, "frog", {"sort": "-colour"}, "sort=-colour: no item has numbers or dates in a field 'colour'"),
        (index, "red", {"rank": "best"}, "rank=best is not known; known: pictures, texts, words, all"),
        (index, "x" * 10_000, {}, "The sentence has 10,000 characters; at most 2,000 are read."),
        (index, "-red", {}, "'-red' says only what shall not be found"),
    ):
        assert_refused(found, [words_], made, sentence, **options)
    index.check_model(TwoHeads())  # before it is asked
    assert_refused(index.check_model, ["by the head text_text, which this export lacks"], ColorEmbedder())
    for text in (" " * 300_000 + "a" + " " * 300_000, "price<1" + " " * 300_000 + "x"):
        assert FILTER.fullmatch(text) is None or text[0] == "p"  # of one pass: with the square of it this never ends


@pytest.mark.parametrize("text", HOSTILE)
def test_no_question_is_syntax(text):
    table = table_of(ITEMS)
    rows, shares = table.by_words(text, 10)
    assert (rows.dtype, shares.dtype) == (np.int64, np.float64)
    assert ((0 < shares) & (shares <= 1)).all() and len(set(rows.tolist())) == len(rows)
    table.rows_equal_to(text), table.with_words(text)
    assert len(table) == 4


def test_a_question_asks_for_its_rarest_trigrams(monkeypatch):
    monkeypatch.setattr(item_table, "MOST_POSTINGS", 0)
    assert sorted(table_of(ITEMS).by_words("frog", 9)[0].tolist()) == [1, 2]
    assert table_of(ITEMS).by_words("frog shoe roter", 9)[0].tolist() == [0]  # by the four that the fewest have


def test_pictures_that_look_the_same_are_one_hit():
    same = (("en", "x"),)
    items = [Item("1", captions=same), Item("2", captions=same), Item("3", captions=(("en", "y"),)), Item("4")]
    vectors = np.array([[1, 0, 0], [0.99999, 0.004, 0], [1, 0, 0], [0, 1, 0]], np.float32)
    made = Index(items, vectors, take_fingerprint(ColorEmbedder()))
    result = search(made, ColorEmbedder(), [Query("red", right=("2",))], 4)[0]
    assert [(hit.name, hit.alike) for hit in result.hits] == [("1", 1), ("3", 0), ("4", 0)]
    assert result.first_right == 1 and '"alike": 1' in to_json(made, [result])


def test_pictures_are_compared_by_blocks(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[[5, 40]] = 0
    monkeypatch.setattr(queries, "COMPARED", 7)
    firsts = queries._first_alike(vectors)
    assert firsts == [min(r for r in range(60) if r == row or vectors[r] @ vectors[row] >= 0.99) for row in range(60)]
    assert len(set(firsts)) < 60 and firsts[40] == 40


def test_spaces_and_composed_accents_are_no_other_question():
    (wanted,) = queries.encode_queries(ColorEmbedder(), [Query("青い 風船 é")])
    for text in (" 青い 風船 é", "青い  風船\u3000é\n", "青い 風船 -rot e\u0301"):
        np.testing.assert_array_equal(queries.encode_queries(ColorEmbedder(), [Query(text)]), [wanted])


def test_items_without_a_picture_are_hits_of_their_own():
    items = [Item(name, captions=(("en", "red shoe"),)) for name in "123"]
    made = Index(items, np.array([[1, 0, 0], [0, 0, 0], [0, 0, 0]], np.float32), take_fingerprint(ColorEmbedder()))
    hits = search(made, ColorEmbedder(), [Query("red shoe")], 4, rank="words")[0].hits
    assert [(hit.name, hit.alike) for hit in hits] == [("1", 0), ("2", 0), ("3", 0)]


def test_what_found_an_item_is_said_also_beyond_the_tenth_place():
    many = {row: 1 - row / 100 for row in range(20)}
    results = ranked(pictures=many, texts={row: many[row] for row in (30, *range(5, 18)) if row in many})
    assert results.found_by(3) == {"pictures": 4} and results.found_by(19) == {"pictures": 20}
    assert results.found_by(8) == {"pictures": 9, "texts": 4} and results.found_by(17) == {"texts": 13}


def test_a_part_of_a_word_of_another_language_does_not_outvote_pictures():
    """ "sun" is found in *sungura*, a rabbit: two of its three trigrams."""
    items = [Item(str(n), captions=(("sw", f"kitu {n}" if n else "sungura"),)) for n in range(41)]
    vectors = unit(np.random.default_rng(0).standard_normal((41, 8)))
    made = Index(items, vectors, Fingerprint(vectors[:9]))
    made.captions = ranking.Captions(vectors.astype(np.float16), made.table, "")
    (one,) = ranking.rank_all(made, ["sun"], vectors[[7]], vectors[[7]])
    assert list(one.lists["words"]) == [0] and one.lists["words"][0][1] > 0.4 and one.rows[0] == 7


def test_vectors_of_texts_are_not_outvoted_by_their_letters():
    """A question in another language shares a word with the wrong text."""
    items = [Item("red"), Item("a rotten apple"), *(Item(f"{number:04}") for number in range(40))]
    vectors = np.eye(3, dtype=np.float32)[[0, 1, *[2] * 40]]
    texts = Index(items, vectors, take_fingerprint(TwoHeads()), "texts")
    for rank, row, ways in (("all", 0, ["texts", "words"]), ("texts", 0, ["texts"]), ("words", 1, ["words"])):
        (one,) = ranking.rank_all(texts, ["rot wie eine Tomate"], vectors[:1], None, rank=rank)
        assert (one.rows[0], list(one.lists)) == (row, ways) and list(one.lists.get("words", [1])) == [1]


def test_an_index_keeps_its_noise_level_and_words_need_neither_model_nor_tensorflow(tmp_path, monkeypatch):
    """Of a data set whose captions are in two languages."""
    monkeypatch.setattr(commands, "open_model", lambda model, **_: TwoHeads())
    colours = {"red": (250, 0, 0), "green": (0, 250, 0), "purple": (150, 0, 200)}
    for split in ("train", "dev"):
        rows = [ImageTextRecord(f"{split}-{name}", png(colour), [name, f"{name}s"], ["en", "nl"], ["", ""])
                for name, colour in colours.items()]  # fmt: skip
        write_records(tmp_path / "data", split, rows)
    (tmp_path / "model").mkdir()
    index = commands.index([str(tmp_path / "data")], str(tmp_path / "index"), model=str(tmp_path / "model"))
    assert load_index(tmp_path / "index").noise == index.noise is not None and len(index.captions.vectors) == 12
    program = (
        "import sys\nfrom mural_search import embed, runs\nfrom mural_search.queries import Query\n"
        f"found = runs.query({str(tmp_path / 'index')!r}, [Query('purples')], rank='words', json='-')\n"
        "assert found[0].hits[0].name.endswith('purple') and 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("embedder, head, times", [(ColorEmbedder(), "", 1), (TwoHeads(), "text_text", 2)])
def test_a_head_for_pictures_and_captions_encodes_a_question_once(embedder, head, times, monkeypatch):
    colours, asked = ["red", "green", "blue"], []
    items = [Item(f"p{n}", captions=(("en", colour),)) for n, colour in enumerate(colours)]
    encoder = embedder.with_text_head(head) if head else embedder
    made = with_captions(Index(items, np.eye(3, dtype=np.float32), take_fingerprint(embedder)), encoder, head)
    for kind in (ColorEmbedder, Letters):

        def encode(self, texts, real=kind.encode_text, **options):
            return asked.append(texts) or real(self, texts, **options)

        monkeypatch.setattr(kind, "encode_text", encode)
    (result,) = search(made, embedder, [Query("red", "en")], 3)
    assert asked == [["red"]] * times and result.hits[0].name == "p0"
