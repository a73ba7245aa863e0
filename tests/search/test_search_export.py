"""What leaves an index as Parquet, and the recipes of docs/search.md for engines that take it."""

import json
import pathlib
import re

import numpy as np
import pytest
from search_data import ColorEmbedder, png

from mural_tf.data.vectors import read_rows
from mural_tf.errors import UserError
from mural_tf.search import commands, embed
from mural_tf.search.index import load_index, sync
from mural_tf.search.items import Item

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs/search.md"
COUNT = 60


def recipe(name):
    """A function of the page."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(next(block for block in blocks if f"def {name}(" in block), names)
    return names[name]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An index with captions, fields and an item without a picture, and its file."""
    folder = tmp_path_factory.mktemp("exported")
    items = [(Item(f"p{n}", captions=(("sw", f"kitu {n}"),), fields={"brand": "acme", "price": str(n)}, digest="1"),
              png((4 * n, 0, 250 - 4 * n))) for n in range(COUNT)]  # fmt: skip
    sync(folder / "index", ColorEmbedder(), [*items, (Item("a gift", digest="1"), None)], dtype="float16")
    commands.export(str(folder / "index"), str(folder / "index.parquet"))
    return load_index(folder / "index"), folder / "index.parquet"


def test_ids_fields_and_vectors_leave(exported):
    index, path = exported
    ((rows, vectors),) = read_rows(path)
    assert [row["name"] for row in rows] == list(index.items) and vectors.dtype == np.float16
    np.testing.assert_array_equal(vectors, index.embeddings)
    assert json.loads(rows[3]["fields"]) == {"brand": "acme", "price": "3"}
    assert json.loads(rows[3]["captions"]) == [["sw", "kitu 3"]] and not vectors[COUNT].any()


def test_what_left_becomes_an_index_again(exported, tmp_path):
    index, path = exported
    model, about, items = embed.read(path.parent)
    again = sync(tmp_path / "again", None, items, model=model, **about)
    assert list(again.items) == list(index.items) and again.facets() == index.facets()
    assert again.bare.tolist() == index.bare.tolist() == [COUNT]
    np.testing.assert_array_equal(again.embeddings, index.embeddings)
    for vector, words in ((np.full(3, 5.0), "'x' has the length 8.66: expected 1"), (np.full(3, np.nan), "length nan")):
        with pytest.raises(UserError, match=words):
            sync(tmp_path / "again", None, [(Item("x"), vector)], model=model, **about)


def test_the_recipe_for_faiss_finds_what_exact_search_finds(exported):
    pytest.importorskip("faiss")
    index, path = exported
    built, names = recipe("faiss_index")(path, lists=4, visited=4)
    queries = np.asarray(index.embeddings[:9], np.float32)
    _, expected = index.search(queries, 1)
    _, found = built.search(queries, 1)
    assert [names[row] for row in found[:, 0]] == [index.items[row] for row in expected[:, 0]]


def test_the_recipe_for_postgresql_fits_its_table(exported):
    """No PostgreSQL with pgvector runs here: the text and what is copied are looked at."""
    index, path = exported
    (statements,) = re.findall(r"```sql\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (columns,) = re.findall(r"CREATE TABLE items \((.*)\);", statements)
    assert re.findall(r"(\w+) (text|jsonb|halfvec)", columns) == [
        ("name", "text"), ("captions", "jsonb"), ("fields", "jsonb"), ("vector", "halfvec")
    ]  # fmt: skip
    copied = list(recipe("rows")(path))
    assert len(copied) == COUNT + 1 and all(len(row) == 4 for row in copied)
    name, captions, fields, vector = copied[7]
    assert name == "p7" and json.loads(captions) == [["sw", "kitu 7"]] and json.loads(fields)["price"] == "7"
    np.testing.assert_array_equal(np.array(json.loads(vector), np.float16), index.embeddings[7])  # pgvector's text form
